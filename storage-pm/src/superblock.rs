//! The superblock: whose store this is, how often it was opened, and which generations are spoken for.
//!
//! There are two copies, at 0 and at 4096, written in turn with a memory fence between, so that one of them is whole at
//! any time. The good copy of the higher sequence counts.
//!
//! ```text
//!   magic             0..8     "FLEXLOGS"
//!   version           8..12    4
//!   zero             12..16
//!   sequence         16..24    writes of the superblock; even ones go to copy 0
//!   cluster          24..40
//!   store            40..56
//!   replica          56..60
//!   intent           60..64    1: an opening is under way
//!   opened           64..72    how many times the store was opened
//!   nonce            72..88    of the opening under way, else of the last one
//!   segment_bytes    88..96
//!   generation_limit 96..100   no segment has this generation or one above it
//!   tiered          100..104   1: there is a manifest of SSD files
//!   segments        104..108   the area had so many segments at least, all durable: a shorter file lost some
//!   zero            108..124
//!   crc             124..128   CRC32C over what stands before it
//! ```

use flexlog_protocol::checksum::crc32c;
use flexlog_protocol::{ClusterId, ReplicaId, StoreId};
use uuid::Uuid;

/// Bytes of a copy.
pub(crate) const BYTES: usize = 128;
/// Bytes from one copy to the next.
pub(crate) const STRIDE: u64 = 4096;
/// The one version of the format that this code knows.
pub(crate) const VERSION: u32 = 4;
const MAGIC: [u8; 8] = *b"FLEXLOGS";
const CRC_AT: usize = BYTES - 4;

const _: () = assert!(BYTES as u64 <= STRIDE && 2 * STRIDE == crate::layout::HEAD_BYTES);

/// What a superblock says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Superblock {
    pub(crate) sequence: u64,
    pub(crate) cluster: ClusterId,
    pub(crate) store: StoreId,
    pub(crate) replica: ReplicaId,
    pub(crate) intent: bool,
    pub(crate) opened: u64,
    pub(crate) nonce: Uuid,
    pub(crate) segment_bytes: u64,
    pub(crate) generation_limit: u32,
    /// There is a manifest of SSD files, and the store is nothing without it.
    pub(crate) tiered: bool,
    /// The area was so many segments long, and that was durable.
    pub(crate) segments: u32,
}

/// What the two copies are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// The one that counts.
    Superblock(Superblock),
    /// Nothing was ever accepted here: all zero, or a first write that did not end.
    Nothing,
    /// Something else than a store.
    Foreign,
    /// A store in a format that this code does not know.
    Version(u32),
    /// A store, but neither copy is whole.
    Damaged,
}

impl Superblock {
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..40].copy_from_slice(self.cluster.0.as_bytes());
        bytes[40..56].copy_from_slice(self.store.0.as_bytes());
        bytes[56..60].copy_from_slice(&self.replica.0.to_le_bytes());
        bytes[60..64].copy_from_slice(&u32::from(self.intent).to_le_bytes());
        bytes[64..72].copy_from_slice(&self.opened.to_le_bytes());
        bytes[72..88].copy_from_slice(self.nonce.as_bytes());
        bytes[88..96].copy_from_slice(&self.segment_bytes.to_le_bytes());
        bytes[96..100].copy_from_slice(&self.generation_limit.to_le_bytes());
        bytes[100..104].copy_from_slice(&u32::from(self.tiered).to_le_bytes());
        bytes[104..108].copy_from_slice(&self.segments.to_le_bytes());
        let crc = crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a copy; `None` where it is not whole.
    pub(crate) fn decode(bytes: &[u8; BYTES]) -> Option<Self> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let uuid_at = |at: usize| Uuid::from_slice(&bytes[at..at + 16]).ok();
        if bytes[..8] != MAGIC || u32_at(8) != VERSION || u32_at(CRC_AT) != crc32c(&bytes[..CRC_AT]) {
            return None;
        }
        Some(Self {
            sequence: u64_at(16),
            cluster: ClusterId(uuid_at(24)?),
            store: StoreId(uuid_at(40)?),
            replica: ReplicaId(u32_at(56)),
            intent: u32_at(60) != 0,
            opened: u64_at(64),
            nonce: uuid_at(72)?,
            segment_bytes: u64_at(88),
            generation_limit: u32_at(96),
            tiered: u32_at(100) != 0,
            segments: u32_at(104),
        })
    }

    /// Where this write of the superblock goes.
    pub(crate) fn offset(&self) -> u64 {
        self.sequence % 2 * STRIDE
    }

    /// Looks at both copies. `rest_is_zero`: the area has nothing behind them; asked only where it decides.
    pub(crate) fn find(copies: [&[u8; BYTES]; 2], rest_is_zero: impl FnOnce() -> bool) -> Found {
        for copy in copies {
            let version = u32::from_le_bytes([copy[8], copy[9], copy[10], copy[11]]);
            if copy[..8] == MAGIC && version != VERSION && version != 0 {
                return Found::Version(version);
            }
        }
        let good = copies.iter().filter_map(|copy| Self::decode(copy)).max_by_key(|found| found.sequence);
        if let Some(good) = good {
            return Found::Superblock(good);
        }
        let zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let ours = copies.iter().all(|copy| copy[..8] == MAGIC || zero(&copy[..8]));
        if !ours {
            return Found::Foreign;
        }
        // The second copy is written before anything is accepted, and behind a fence over the first. Where it is zero
        // nothing was accepted, so a torn first copy may be written again.
        if zero(copies[1]) && rest_is_zero() { Found::Nothing } else { Found::Damaged }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(sequence: u64) -> Superblock {
        Superblock {
            sequence,
            cluster: ClusterId(Uuid::from_u128(1)),
            store: StoreId(Uuid::from_u128(2)),
            replica: ReplicaId(3),
            intent: true,
            opened: 4,
            nonce: Uuid::from_u128(5),
            segment_bytes: 6,
            generation_limit: 7,
            tiered: true,
            segments: 8,
        }
    }

    #[test]
    fn the_newer_good_copy_counts() {
        let (a, b) = (sample(8), sample(7));
        let zero = [0; BYTES];
        assert_eq!(Superblock::find([&a.encode(), &b.encode()], || false), Found::Superblock(a));
        assert_eq!(Superblock::find([&zero, &b.encode()], || false), Found::Superblock(b));
        let mut torn = a.encode();
        torn[64..72].fill(9);
        assert_eq!(Superblock::find([&torn, &b.encode()], || false), Found::Superblock(b));
        assert_eq!(Superblock::find([&torn, &torn], || true), Found::Damaged);
        assert_eq!((a.offset(), b.offset()), (0, STRIDE));
    }

    #[test]
    fn only_what_was_never_used_is_taken_for_new() {
        let zero = [0; BYTES];
        let mut torn = sample(0).encode();
        torn[32..40].fill(0);
        assert_eq!(Superblock::find([&zero, &zero], || true), Found::Nothing);
        assert_eq!(Superblock::find([&zero, &zero], || false), Found::Damaged);
        assert_eq!(Superblock::find([&torn, &zero], || true), Found::Nothing);
        assert_eq!(Superblock::find([&torn, &zero], || false), Found::Damaged);
        let mut foreign = zero;
        foreign[..8].copy_from_slice(b"\x7fELF0000");
        assert_eq!(Superblock::find([&foreign, &zero], || true), Found::Foreign);
        let mut newer = sample(2).encode();
        newer[8] = 5;
        assert_eq!(Superblock::find([&newer, &sample(1).encode()], || false), Found::Version(5));
    }

    #[test]
    fn its_bytes_are_fixed() {
        let bytes = sample(8).encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "464c45584c4f475304000000000000000800000000000000\
             0000000000000000000000000000000100000000000000000000000000000002\
             03000000010000000400000000000000\
             00000000000000000000000000000005060000000000000007000000\
             010000000800000000000000000000000000000000000000"
                .to_owned()
                + &format!("{:08x}", crc32c(&bytes[..124]).swap_bytes())
        );
    }
}
