//! The bytes of an SSD file, version 1.
//!
//! All numbers are little-endian. A file is a header, blocks of records, regions, and a footer, with nothing between
//! them. Records are sorted by (color, number). Decoding trusts nothing: what does not fit is refused, and no length is
//! believed before it was compared with what is there.
//!
//! ```text
//! header                bytes
//!   magic                0..8    "FLEXLOGD"
//!   version              8..12   1
//!   zero                12..16
//!   store               16..32
//!   id                  32..40   of this file
//!   zero                40..60
//!   crc                 60..64   CRC32C over what stands before it
//! block                          about 16 KiB; a record that is larger has one of its own
//!   bytes                0..4    of the records
//!   records              4..8    how many
//!   zero                 8..12
//!   crc                 12..16   over the block's offset in the file (u64), bytes, records, zero, and the records
//! record
//!   color                0..8
//!   number               8..16
//!   len                 16..20   bytes of the encoded form
//!   crc                 20..24   the record's own, from its client to its reader
//!   check               24..28   over the record's offset in the file (u64) and what stands before it
//!   encoded                      number of tags u8, for each tag its length u8 and bytes, the payload; padded to 4
//! region: colors                 each 40, ascending
//!   color                0..8
//!   first                8..16   lowest number
//!   last                16..24   highest number
//!   records             24..32
//!   bytes               32..40   of the encoded forms
//! region: blocks                 each 48, in order: the sparse index
//!   first color          0..8
//!   first number         8..16
//!   last color          16..24
//!   last number         24..32
//!   offset              32..40   in the file
//!   len                 40..44   with the block's header
//!   records             44..48
//! region: filter                 words of 64 bits, see [`crate::ssd::filter`]
//! region: tags                   ascending by (color, tag)
//!   color                0..8
//!   last                 8..16   the tag's tail: its highest number
//!   count               16..20
//!   tag_len             20..24
//!   tag                          padded to 8
//!   numbers                      count times u64, ascending
//! region: sources                each u32: generation of a segment that the records were moved from
//! footer                         the last bytes of the file
//!   version              0..4    1
//!   zero                 4..8
//!   id                   8..16
//!   store               16..32
//!   records             32..40
//!   blocks_end          40..48   where the last block ends
//!   upto                48..56   the committed place that the records were moved at
//!   regions             56..176  each: offset u64, len u64, crc u32, zero u32; colors, blocks, filter, tags, sources
//!   zero               176..180
//!   crc                180..184  CRC32C over what stands before it
//!   magic              184..192  "FLEXLOGE"
//! ```
//!
//! The checksums of blocks, records' headers and regions go on from a seed: CRC32C of the store's id and the file's. A
//! client does not know it, so no payload can look like a record, and what is of another file is not taken for part of
//! this one. Blocks and records are bound to their place in the file too, so none is good anywhere else.

use flexlog_protocol::checksum::{crc32c, crc32c_append};
use flexlog_protocol::{Color, Lsn, SeqNum, StoreId, limits};
use uuid::Uuid;

/// The one version of the format that this code knows.
pub(crate) const VERSION: u32 = 1;
pub(crate) const MAGIC: [u8; 8] = *b"FLEXLOGD";
pub(crate) const END_MAGIC: [u8; 8] = *b"FLEXLOGE";
/// Bytes of the header.
pub(crate) const HEADER: usize = 64;
/// Bytes of a block's header.
pub(crate) const BLOCK_HEADER: usize = 16;
/// Bytes of a record's header.
pub(crate) const RECORD_HEADER: usize = 28;
/// Bytes that a block has at most, unless it holds one record.
pub(crate) const BLOCK_BYTES: usize = 16 << 10;
/// Bytes of a row of the color table.
pub(crate) const COLOR_ROW: usize = 40;
/// Bytes of a row of the sparse index.
pub(crate) const BLOCK_ROW: usize = 48;
/// Bytes of a tag's entry before the tag.
pub(crate) const TAG_HEADER: usize = 24;
/// Bytes of the footer.
pub(crate) const FOOTER: usize = 192;
/// Regions of a file.
pub(crate) const REGIONS: usize = 5;
const REGION_ROW: usize = 24;
const REGIONS_AT: usize = 56;
const FOOTER_CRC_AT: usize = FOOTER - 12;

/// The most bytes of a record's encoded form.
pub(crate) const MAX_ENCODED: usize = limits::MAX_RECORD_BYTES + 1 + limits::MAX_TAGS * (1 + limits::MAX_TAG_BYTES);
/// The most bytes of a block.
pub(crate) const MAX_BLOCK: usize = BLOCK_HEADER + RECORD_HEADER + padded(MAX_ENCODED);

const _: () = assert!(HEADER.is_multiple_of(8) && BLOCK_HEADER == 12 + 4 && RECORD_HEADER == 24 + 4);
const _: () = assert!(COLOR_ROW == 5 * 8 && BLOCK_ROW == 5 * 8 + 4 + 4 && TAG_HEADER.is_multiple_of(8));
const _: () = assert!(REGIONS_AT + REGIONS * REGION_ROW + 4 == FOOTER_CRC_AT && FOOTER_CRC_AT + 12 == FOOTER);
const _: () = assert!(BLOCK_BYTES < MAX_BLOCK && MAX_BLOCK < u32::MAX as usize);

/// The next multiple of 4: what a record's bytes are padded to.
pub(crate) const fn padded(len: usize) -> usize {
    (len + 3) & !3
}

/// The u32 at `at`, which is within `bytes`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The u64 at `at`, which is within `bytes`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn uuid_at(bytes: &[u8], at: usize) -> Uuid {
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[at..at + 16]);
    Uuid::from_bytes(id)
}

/// Whether there is nothing but zeros.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// What the checksums of a file go on from.
pub(crate) fn file_seed(store: StoreId, id: u64) -> u32 {
    crc32c_append(crate::layout::seed(store), &id.to_le_bytes())
}

/// The name of a file.
pub(crate) fn file_name(id: u64) -> String {
    format!("{id:010}.ssd")
}

/// The id in a file's name; `None`: it is not a name that [`file_name`] gives.
pub(crate) fn file_id(name: &str) -> Option<u64> {
    let id = name.strip_suffix(".ssd")?.parse().ok()?;
    (file_name(id) == name).then_some(id)
}

/// Why bytes are not a file's header or footer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    Foreign,
    Version(u32),
    Damaged,
}

/// The header: which file of which store it is.
pub(crate) fn header(store: StoreId, id: u64) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..32].copy_from_slice(store.0.as_bytes());
    bytes[32..40].copy_from_slice(&id.to_le_bytes());
    let crc = crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Reads a header.
pub(crate) fn decode_header(bytes: &[u8; HEADER]) -> Result<(StoreId, u64), Bad> {
    if bytes[..8] != MAGIC {
        return Err(Bad::Foreign);
    }
    let sound = u32_at(bytes, 60) == crc32c(&bytes[..60]);
    let version = u32_at(bytes, 8);
    // A newer version may have its checksum elsewhere, so this comes first.
    if version > VERSION {
        return Err(Bad::Version(version));
    }
    if !sound || version != VERSION {
        return Err(Bad::Damaged);
    }
    Ok((StoreId(uuid_at(bytes, 16)), u64_at(bytes, 32)))
}

/// The header of a block whose records are `records`.
pub(crate) fn block_header(seed: u32, offset: u64, records: &[u8], count: u32) -> [u8; BLOCK_HEADER] {
    let mut bytes = [0; BLOCK_HEADER];
    bytes[..4].copy_from_slice(&(records.len() as u32).to_le_bytes());
    bytes[4..8].copy_from_slice(&count.to_le_bytes());
    let crc = block_crc(seed, offset, &bytes[..12], records);
    bytes[12..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn block_crc(seed: u32, offset: u64, head: &[u8], records: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c_append(seed, &offset.to_le_bytes()), head), records)
}

/// Whether a block is as it was written. `block` has a header.
pub(crate) fn block_is_good(seed: u32, offset: u64, block: &[u8], count: u32) -> bool {
    let (head, records) = block.split_at(BLOCK_HEADER);
    u32_at(head, 0) as usize == records.len()
        && u32_at(head, 4) == count
        && block_crc(seed, offset, &head[..12], records) == u32_at(head, 12)
}

fn record_check(seed: u32, offset: u64, head: &[u8]) -> u32 {
    crc32c_append(crc32c_append(seed, &offset.to_le_bytes()), head)
}

/// What stands before a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordHeader {
    pub(crate) color: Color,
    pub(crate) number: SeqNum,
    pub(crate) len: u32,
    pub(crate) crc: u32,
}

impl RecordHeader {
    /// `offset`: where in the file it goes.
    pub(crate) fn encode(&self, seed: u32, offset: u64) -> [u8; RECORD_HEADER] {
        let mut bytes = [0; RECORD_HEADER];
        bytes[..8].copy_from_slice(&self.color.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_raw().to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.crc.to_le_bytes());
        let check = record_check(seed, offset, &bytes[..24]);
        bytes[24..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads the header at the start of `bytes`, which are at `offset` of the file, if it is as it was written there and
    /// its record fits.
    pub(crate) fn decode(bytes: &[u8], seed: u32, offset: u64) -> Option<Self> {
        let head = bytes.get(..RECORD_HEADER)?;
        let len = u32_at(head, 16);
        let fits = padded(len as usize) <= bytes.len() - RECORD_HEADER;
        (fits && u32_at(head, 24) == record_check(seed, offset, &head[..24])).then(|| Self {
            color: Color(u64_at(head, 0)),
            number: SeqNum::from_raw(u64_at(head, 8)),
            len,
            crc: u32_at(head, 20),
        })
    }

    /// Bytes from this record to the next.
    pub(crate) fn stride(&self) -> usize {
        RECORD_HEADER + padded(self.len as usize)
    }
}

/// What a file holds of a color.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColorRow {
    /// The log.
    pub color: Color,
    /// Its lowest number here.
    pub first: SeqNum,
    /// Its highest number here.
    pub last: SeqNum,
    /// Its records here.
    pub records: u64,
    /// Bytes of their encoded forms.
    pub bytes: u64,
}

impl ColorRow {
    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        let words = [self.color.0, self.first.to_raw(), self.last.to_raw(), self.records, self.bytes];
        words.iter().for_each(|word| into.extend_from_slice(&word.to_le_bytes()));
    }

    /// `row` has [`COLOR_ROW`] bytes.
    pub(crate) fn decode(row: &[u8]) -> Self {
        Self {
            color: Color(u64_at(row, 0)),
            first: SeqNum::from_raw(u64_at(row, 8)),
            last: SeqNum::from_raw(u64_at(row, 16)),
            records: u64_at(row, 24),
            bytes: u64_at(row, 32),
        }
    }
}

/// Where a block is, and what is in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockRow {
    pub(crate) first: (Color, SeqNum),
    pub(crate) last: (Color, SeqNum),
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) records: u32,
}

impl BlockRow {
    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }

    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        let words = [self.first.0.0, self.first.1.to_raw(), self.last.0.0, self.last.1.to_raw(), self.offset];
        words.iter().for_each(|word| into.extend_from_slice(&word.to_le_bytes()));
        into.extend_from_slice(&self.len.to_le_bytes());
        into.extend_from_slice(&self.records.to_le_bytes());
    }

    /// `row` has [`BLOCK_ROW`] bytes.
    pub(crate) fn decode(row: &[u8]) -> Self {
        Self {
            first: (Color(u64_at(row, 0)), SeqNum::from_raw(u64_at(row, 8))),
            last: (Color(u64_at(row, 16)), SeqNum::from_raw(u64_at(row, 24))),
            offset: u64_at(row, 32),
            len: u32_at(row, 40),
            records: u32_at(row, 44),
        }
    }
}

/// Where a region is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Region {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) crc: u32,
}

impl Region {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// What the footer says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Footer {
    pub(crate) id: u64,
    pub(crate) store: StoreId,
    pub(crate) records: u64,
    pub(crate) blocks_end: u64,
    pub(crate) upto: Lsn,
    pub(crate) colors: Region,
    pub(crate) blocks: Region,
    pub(crate) filter: Region,
    pub(crate) tags: Region,
    pub(crate) sources: Region,
}

impl Footer {
    pub(crate) fn encode(&self) -> [u8; FOOTER] {
        let mut bytes = [0; FOOTER];
        bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..32].copy_from_slice(self.store.0.as_bytes());
        bytes[32..40].copy_from_slice(&self.records.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.blocks_end.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.upto.0.to_le_bytes());
        let regions = [self.colors, self.blocks, self.filter, self.tags, self.sources];
        for (nth, region) in regions.iter().enumerate() {
            let at = REGIONS_AT + nth * REGION_ROW;
            bytes[at..at + 8].copy_from_slice(&region.offset.to_le_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&region.len.to_le_bytes());
            bytes[at + 16..at + 20].copy_from_slice(&region.crc.to_le_bytes());
        }
        let crc = crc32c(&bytes[..FOOTER_CRC_AT]);
        bytes[FOOTER_CRC_AT..FOOTER_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes[FOOTER_CRC_AT + 4..].copy_from_slice(&END_MAGIC);
        bytes
    }

    /// Reads the footer of a file of `len` bytes, the header and footer included. What it gives fits the file.
    pub(crate) fn decode(bytes: &[u8; FOOTER], len: u64) -> Result<Self, Bad> {
        let version = u32_at(bytes, 0);
        if bytes[FOOTER - 8..] == END_MAGIC && version > VERSION {
            return Err(Bad::Version(version));
        }
        let good = bytes[FOOTER - 8..] == END_MAGIC
            && version == VERSION
            && u32_at(bytes, FOOTER_CRC_AT) == crc32c(&bytes[..FOOTER_CRC_AT]);
        if !good {
            return Err(Bad::Damaged);
        }
        let region = |nth: usize| {
            let at = REGIONS_AT + nth * REGION_ROW;
            Region { offset: u64_at(bytes, at), len: u64_at(bytes, at + 8), crc: u32_at(bytes, at + 16) }
        };
        let footer = Self {
            id: u64_at(bytes, 8),
            store: StoreId(uuid_at(bytes, 16)),
            records: u64_at(bytes, 32),
            blocks_end: u64_at(bytes, 40),
            upto: Lsn(u64_at(bytes, 48)),
            colors: region(0),
            blocks: region(1),
            filter: region(2),
            tags: region(3),
            sources: region(4),
        };
        footer.fits(len).then_some(footer).ok_or(Bad::Damaged)
    }

    /// The regions follow the blocks and one another, and the footer follows them.
    fn fits(&self, len: u64) -> bool {
        let mut at = self.blocks_end;
        let rows = [COLOR_ROW, BLOCK_ROW, 8, 8, 4];
        for (region, row) in [self.colors, self.blocks, self.filter, self.tags, self.sources].iter().zip(rows) {
            let Some(end) = region.offset.checked_add(region.len) else { return false };
            if region.offset != at || end > len || !region.len.is_multiple_of(row as u64) {
                return false;
            }
            at = end;
        }
        self.blocks_end >= HEADER as u64 && at.checked_add(FOOTER as u64) == Some(len)
    }
}
