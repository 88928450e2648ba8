//! The bytes of the area: where things are, and what every entry begins with.
//!
//! All numbers are little-endian. The area is two superblock copies ([`crate::superblock`]) in the first
//! [`HEAD_BYTES`], then segments of equal size. A segment is entries, one after the other, each at a multiple of 8; what
//! follows the last of them is not defined (zeros, or what the segment held before). The bodies are in [`crate::codec`].
//!
//! ```text
//! entry header          bytes
//!   kind                 0..1    1 staged, 2 shard-log entry, 3 fence, 4 part of a checkpoint, 5 continue, 6 copied,
//!                                7 truncate, 8 repaired
//!   zero                 1..4
//!   body_len             4..8    bytes of the body; the next entry is at the next multiple of 8
//!   generation           8..12   of the segment
//!   crc                 12..16   CRC32C that goes on from the store's seed: over the header with this field zero, and
//!                                the body (of a staged, copied or repaired entry: the body up to the records, which have their own)
//!   fenced              16..24   the place in the log below which all was durable when this was written
//! ```
//!
//! The seed is the CRC32C of the store's id: a client does not know it, so no payload can look like an entry.

use flexlog_protocol::StoreId;
use flexlog_protocol::checksum::{crc32c, crc32c_append};

/// Bytes before the first segment: one page for each superblock copy.
pub(crate) const HEAD_BYTES: u64 = 8192;
/// Bytes of an entry's header.
pub(crate) const ENTRY_HEADER: usize = 24;
/// What a whole write to the log ends on, so that no line is ever loaded to be completed.
pub(crate) const LINE: usize = 64;

const CRC_AT: usize = 12;
const FENCED_AT: usize = 16;

const _: () = assert!(ENTRY_HEADER == FENCED_AT + 8 && ENTRY_HEADER.is_multiple_of(8));
const _: () = assert!(HEAD_BYTES.is_multiple_of(4096));

/// Zeros to pad with.
pub(crate) static ZEROS: [u8; LINE] = [0; LINE];

/// A place in the log: the generation of a segment, and the bytes from the segment's start. Ordered as the log is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Place {
    /// Generations count up over the life of the store; 0 is before the first.
    pub(crate) generation: u32,
    /// From the segment's start.
    pub(crate) offset: u32,
}

impl Place {
    pub(crate) fn new(generation: u32, offset: u32) -> Self {
        Self { generation, offset }
    }

    pub(crate) fn to_raw(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.offset)
    }

    pub(crate) fn from_raw(raw: u64) -> Self {
        Self { generation: (raw >> 32) as u32, offset: raw as u32 }
    }
}

/// What an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The records of an append.
    Staged = 1,
    /// An entry of the shard log.
    Entry = 2,
    /// A `Fence`.
    Fence = 3,
    /// A part of a checkpoint.
    Part = 4,
    /// The first entry of every segment: names the segment before it, and where that one ended.
    Continue = 5,
    /// Records that came with their numbers.
    Copied = 6,
    /// Takes back shard-log entries that stand before it in the log.
    Truncate = 7,
    /// A record that takes the place of one that was damaged.
    Repaired = 8,
}

impl Kind {
    fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            1 => Self::Staged,
            2 => Self::Entry,
            3 => Self::Fence,
            4 => Self::Part,
            5 => Self::Continue,
            6 => Self::Copied,
            7 => Self::Truncate,
            8 => Self::Repaired,
            _ => return None,
        })
    }

    /// Whether its body is records, whose bytes have checksums of their own.
    #[inline]
    pub(crate) fn has_records(self) -> bool {
        matches!(self, Self::Staged | Self::Copied | Self::Repaired)
    }
}

/// The header of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) body_len: u32,
    pub(crate) generation: u32,
    pub(crate) crc: u32,
    pub(crate) fenced: Place,
}

impl Header {
    /// Reads a header without looking at its checksum; `None` where the bytes cannot be one.
    pub(crate) fn peek(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ENTRY_HEADER] = bytes.get(..ENTRY_HEADER)?.try_into().ok()?;
        if bytes[1..4] != [0; 3] {
            return None;
        }
        let kind = Kind::from_raw(bytes[0])?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(Self {
            kind,
            body_len: word(4),
            generation: word(8),
            crc: word(CRC_AT),
            fenced: Place::new(word(FENCED_AT + 4), word(FENCED_AT)),
        })
    }

    /// Bytes from this entry to the next.
    pub(crate) fn stride(&self) -> usize {
        padded(ENTRY_HEADER + self.body_len as usize)
    }
}

/// The next multiple of 8.
pub(crate) const fn padded(len: usize) -> usize {
    (len + 7) & !7
}

/// The seed of a store's entry checksums.
pub(crate) fn seed(store: StoreId) -> u32 {
    crc32c(store.0.as_bytes())
}

/// Writes the header into the first bytes of `head`, which are followed by what the checksum covers.
pub(crate) fn finish_head(
    head: &mut [u8],
    kind: Kind,
    body_len: u32,
    place: Place,
    fenced: Place,
    seed: u32,
    covered: usize,
) {
    head[..8].copy_from_slice(&(u64::from(body_len) << 32 | kind as u64).to_le_bytes());
    head[8..16].copy_from_slice(&u64::from(place.generation).to_le_bytes());
    head[FENCED_AT..ENTRY_HEADER].copy_from_slice(&fenced.to_raw().to_le_bytes());
    #[cfg(test)]
    if crate::planted::is(crate::planted::Bug::ChecksumWithoutLength) {
        let crc = planted_crc(head, covered, seed);
        head[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        return;
    }
    let crc = crc32c_append(seed, &head[..covered]);
    head[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// The checksum that the first `covered` bytes of `entry` should have.
pub(crate) fn entry_crc(entry: &[u8], covered: usize, seed: u32) -> u32 {
    #[cfg(test)]
    if crate::planted::is(crate::planted::Bug::ChecksumWithoutLength) {
        return planted_crc(entry, covered, seed);
    }
    let mut header = [0; ENTRY_HEADER];
    header.copy_from_slice(&entry[..ENTRY_HEADER]);
    header[CRC_AT..CRC_AT + 4].fill(0);
    crc32c_append(crc32c_append(seed, &header), &entry[ENTRY_HEADER..covered])
}

/// A checksum that leaves out the length and all but 16 bytes of the body.
#[cfg(test)]
fn planted_crc(entry: &[u8], covered: usize, seed: u32) -> u32 {
    let mut head = entry[..covered.min(ENTRY_HEADER + 16)].to_vec();
    head[4..8].fill(0);
    head[CRC_AT..CRC_AT + 4].fill(0);
    crc32c_append(seed, &head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_ordered_as_the_log_is_and_round_trip() {
        let (a, b, c) = (Place::new(1, u32::MAX), Place::new(2, 0), Place::new(2, 8));
        assert!(a < b && b < c);
        for place in [a, b, c] {
            assert_eq!(Place::from_raw(place.to_raw()), place);
        }
        assert!(a.to_raw() < b.to_raw() && b.to_raw() < c.to_raw());
    }

    #[test]
    fn a_header_round_trips_and_its_checksum_notices_each_bit() {
        let mut head = vec![0; ENTRY_HEADER + 8];
        head[ENTRY_HEADER..].copy_from_slice(b"the body");
        let fenced = Place::new(6, 64);
        finish_head(&mut head, Kind::Fence, 8, Place::new(7, 128), fenced, 99, ENTRY_HEADER + 8);
        let header = Header::peek(&head).unwrap();
        assert_eq!((header.kind, header.body_len, header.generation, header.fenced), (Kind::Fence, 8, 7, fenced));
        assert_eq!(header.crc, entry_crc(&head, head.len(), 99));
        assert_ne!(header.crc, entry_crc(&head, head.len(), 98));
        for bit in 0..head.len() * 8 {
            let mut bad = head.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let held = Header::peek(&bad).is_some_and(|h| h.crc == entry_crc(&bad, bad.len(), 99));
            assert!(!held, "bit {bit}");
        }
    }
}
