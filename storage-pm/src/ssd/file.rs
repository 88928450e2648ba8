//! One SSD file, for reading: opened by what the manifest says of it, read a block at a time, every byte checked.
//!
//! Opening reads the header and the footer. The indexes are read when they are asked for, and kept by the caller, so that
//! memory is bounded by the caller's cache and not by the number of files. Blocks whose records are all trimmed are
//! punched out of the file: they take no space any more, and nobody asks for them.

use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use flexlog_protocol::checksum::crc32c_append;
use flexlog_protocol::{Color, Record, SeqNum, StoreId, Tag, limits};
use parking_lot::Mutex;

use super::error::{Refusal, SsdError};
use super::filter::Filter;
use super::folder::{Folder, Reading};
use super::format::{
    BLOCK_HEADER, BLOCK_ROW, Bad, BlockRow, COLOR_ROW, ColorRow, FOOTER, Footer, HEADER, MAX_BLOCK, RECORD_HEADER,
    Region, TAG_HEADER, VERSION, block_is_good, decode_header, file_name, file_seed, is_zero, u32_at, u64_at,
};
use super::manifest::{FileMeta, path};
use super::read::{Cursor, Spot, after, merge, walk};
use crate::codec::decode_record;

const PAGE: u64 = 4096;

/// A color's trim point; `None` where it was never trimmed.
pub(crate) type Trims<'a> = &'a dyn Fn(Color) -> Option<SeqNum>;

/// The indexes of a file that reading needs: which colors, and which block has what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileIndex {
    pub(crate) colors: Vec<ColorRow>,
    pub(crate) blocks: Vec<BlockRow>,
}

impl FileIndex {
    /// What the file holds of each color, ascending.
    #[must_use]
    pub fn colors(&self) -> &[ColorRow] {
        &self.colors
    }

    /// What the file holds of a color.
    #[must_use]
    pub fn color(&self, color: Color) -> Option<&ColorRow> {
        self.colors.binary_search_by_key(&color, |row| row.color).ok().map(|at| &self.colors[at])
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (size_of::<Self>() + self.colors.capacity() * COLOR_ROW + self.blocks.capacity() * BLOCK_ROW) as u64
    }

    /// The blocks that may have numbers of `color` in `from..upto`.
    pub(crate) fn blocks_of(&self, color: Color, from: SeqNum, upto: SeqNum) -> Range<usize> {
        let start = self.blocks.partition_point(|row| row.last < (color, from));
        let end = self.blocks.partition_point(|row| row.first < (color, upto));
        start..end.max(start)
    }

    /// Whether all numbers of a block are trimmed.
    fn block_is_trimmed(&self, row: &BlockRow, trim: Trims<'_>) -> bool {
        let gone = |color, last| trim(color).is_some_and(|point| point >= last);
        let ended = self.colors.partition_point(|color| color.color < row.first.0);
        // The last color may go on in the next block, the ones before it end here.
        self.colors[ended..].iter().take_while(|color| color.color < row.last.0).all(|c| gone(c.color, c.last))
            && gone(row.last.0, row.last.1)
    }

    /// Sorted, without gaps in the file, and as many records as there should be.
    fn is_sound(&self, footer: &Footer) -> bool {
        let colors = self.colors.is_sorted_by(|a, b| a.color < b.color)
            && self.colors.iter().all(|row| row.first <= row.last && row.records > 0);
        let mut at = HEADER as u64;
        let mut blocks = self.blocks.is_sorted_by(|a, b| a.last < b.first);
        for row in &self.blocks {
            let len = BLOCK_HEADER + RECORD_HEADER..=MAX_BLOCK;
            blocks &= row.offset == at && len.contains(&(row.len as usize)) && row.len.is_multiple_of(4);
            blocks &= row.first <= row.last && row.records > 0;
            blocks &= self.color(row.first.0).is_some() && self.color(row.last.0).is_some();
            at += u64::from(row.len);
        }
        let by_color = self.colors.iter().try_fold(0u64, |sum, row| sum.checked_add(row.records));
        let by_block: u64 = self.blocks.iter().map(|row| u64::from(row.records)).sum();
        colors && blocks && at == footer.blocks_end && by_color == Some(footer.records) && by_block == footer.records
    }
}

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Where in the file.
    pub offset: u64,
    /// What.
    pub what: String,
    /// The record that is damaged, where it is one and known which.
    pub record: Option<(Color, SeqNum)>,
    /// The block that it is in, by its byte, where it is damage to records of one.
    pub within: Option<u64>,
}

impl Fault {
    fn new(offset: u64, what: impl Into<String>) -> Self {
        Self { offset, what: what.into(), record: None, within: None }
    }
}

/// What was given back to the file system.
#[derive(Debug, Default)]
struct Gone {
    /// Blocks that are not all there any more.
    blocks: Vec<bool>,
    /// Pages that were punched: from, to; ascending, apart.
    pages: Vec<(u64, u64)>,
    bytes: u64,
    /// The file system has no holes.
    unsupported: bool,
}

/// See the module.
#[derive(Debug)]
pub struct SsdFile {
    /// Its full path.
    pub(crate) name: String,
    pub(crate) reading: Arc<dyn Reading>,
    meta: FileMeta,
    footer: Footer,
    pub(crate) seed: u32,
    filter: OnceLock<Filter>,
    gone: Mutex<Gone>,
}

impl SsdFile {
    /// Opens a file that the manifest of `store` lists as `meta`.
    ///
    /// # Errors
    /// `Refused`: it is missing, too short, too long, or not that file.
    pub fn open(folder: &dyn Folder, store: StoreId, meta: FileMeta) -> Result<Self, SsdError> {
        let name = path(folder, &file_name(meta.id));
        let file = || name.clone();
        let io = |source| Refusal::Io { file: file(), source };
        let reading = folder.open(&file_name(meta.id)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Refusal::Missing { file: file() },
            _ => io(error),
        })?;
        let found = reading.len().map_err(io)?;
        if found != meta.bytes || found < (HEADER + FOOTER) as u64 {
            return Err(Refusal::Length { file: file(), found, wanted: meta.bytes }.into());
        }
        let (mut header, mut footer) = ([0; HEADER], [0; FOOTER]);
        let footer_at = found - FOOTER as u64;
        reading.read_at(0, &mut header).map_err(io)?;
        reading.read_at(footer_at, &mut footer).map_err(io)?;
        let refusal = |bad, offset, what| match bad {
            Bad::Foreign => Refusal::Foreign { file: file() },
            Bad::Version(found) => Refusal::Version { file: file(), found, known: VERSION },
            Bad::Damaged => Refusal::Damaged { file: file(), offset, what },
        };
        let (owner, id) = decode_header(&header).map_err(|bad| refusal(bad, 0, "its header is not good"))?;
        if owner != store {
            return Err(Refusal::OtherStore { file: file(), found: owner, wanted: store }.into());
        }
        let footer = Footer::decode(&footer, found).map_err(|bad| refusal(bad, footer_at, "its footer is not good"))?;
        let same = id == meta.id && footer.id == meta.id && footer.store == store;
        if !same || footer.records != meta.records || footer.upto != meta.upto {
            let what = "it is not the file that the manifest lists";
            return Err(Refusal::Damaged { file: file(), offset: footer_at, what }.into());
        }
        let seed = file_seed(store, id);
        Ok(Self { name, reading, meta, footer, seed, filter: OnceLock::new(), gone: Mutex::default() })
    }

    /// What the manifest says of it.
    #[must_use]
    pub fn meta(&self) -> &FileMeta {
        &self.meta
    }

    /// Its full path.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn damaged(&self, offset: u64, what: &'static str) -> Refusal {
        Refusal::Damaged { file: self.name.clone(), offset, what }
    }

    /// Reads `region` and checks it.
    fn region(&self, bytes: &[u8], region: Region, what: &'static str) -> Result<(), Refusal> {
        if crc32c_append(self.seed, bytes) == region.crc { Ok(()) } else { Err(self.damaged(region.offset, what)) }
    }

    fn load(&self, offset: u64, len: u64) -> Result<Vec<u8>, Refusal> {
        // The footer's regions are within the file, so `len` is no more than what is there.
        let mut bytes = vec![0; len as usize];
        let read = self.reading.read_at(offset, &mut bytes);
        read.map_err(|source| Refusal::Io { file: self.name.clone(), source })?;
        Ok(bytes)
    }

    /// Reads the indexes.
    ///
    /// # Errors
    /// `Refused`: they cannot be read or are damaged, and so none of the file's records can be read.
    pub fn index(&self) -> Result<Arc<FileIndex>, SsdError> {
        let Footer { colors, blocks, filter, .. } = self.footer;
        let bytes = self.load(colors.offset, filter.end() - colors.offset)?;
        let (color_bytes, rest) = bytes.split_at(colors.len as usize);
        let (block_bytes, filter_bytes) = rest.split_at(blocks.len as usize);
        self.region(color_bytes, colors, "its color table's checksum does not match")?;
        self.region(block_bytes, blocks, "its block index's checksum does not match")?;
        self.region(filter_bytes, filter, "its filter's checksum does not match")?;
        let index = FileIndex {
            colors: color_bytes.chunks_exact(COLOR_ROW).map(ColorRow::decode).collect(),
            blocks: block_bytes.chunks_exact(BLOCK_ROW).map(BlockRow::decode).collect(),
        };
        let filter = Filter::decode(filter_bytes).ok_or_else(|| self.damaged(filter.offset, "this is no filter"))?;
        if !index.is_sound(&self.footer) {
            return Err(self.damaged(colors.offset, "its indexes contradict themselves").into());
        }
        let _ = self.filter.set(filter);
        Ok(Arc::new(index))
    }

    /// Whether the file may hold records of a color. Costs nothing; true as long as the indexes were never read.
    #[must_use]
    pub fn may_have(&self, color: Color) -> bool {
        self.filter.get().is_none_or(|filter| filter.may_have(color))
    }

    /// Reads the records of `color` from `from` on, up to but not including `upto`, in order. Stops after `max_records`,
    /// or when `max_bytes` of payload are reached, but not before one record.
    ///
    /// # Errors
    /// Those of the first record that could not be read; what came before it is in `into`.
    #[allow(clippy::too_many_arguments, reason = "the arguments of LogStore::read, and the index")]
    pub fn read(
        self: &Arc<Self>,
        index: &Arc<FileIndex>,
        color: Color,
        from: SeqNum,
        upto: SeqNum,
        max_records: usize,
        max_bytes: usize,
        into: &mut Vec<(SeqNum, Record)>,
    ) -> Result<(), SsdError> {
        let cursor = Cursor::new(self.clone(), index.clone(), color, from, upto);
        merge(vec![cursor], from, upto, max_records, max_bytes, into).map(|_| ())
    }

    /// The bytes of a block; `None` where it is not all there any more.
    pub(crate) fn block(&self, nth: usize, row: &BlockRow) -> io::Result<Option<Bytes>> {
        let gone = || self.gone.lock().blocks.get(nth).copied().unwrap_or(false);
        if gone() {
            return Ok(None);
        }
        let mut bytes = vec![0; row.len as usize];
        self.reading.read_at(row.offset, &mut bytes)?;
        // It is noted before the first byte goes.
        Ok((!gone()).then(|| Bytes::from(bytes)))
    }

    /// The numbers of `color` in this file that carry `tag`, ascending. Reads the whole tag index.
    ///
    /// # Errors
    /// `Refused`: it cannot be read or is damaged.
    pub fn tags(&self, color: Color, tag: &Tag) -> Result<Vec<SeqNum>, SsdError> {
        let bytes = self.tag_bytes()?;
        for entry in TagEntries(&bytes) {
            let entry = entry.ok_or_else(|| self.damaged(self.footer.tags.offset, "this is no tag index"))?;
            if (entry.color, entry.tag) == (color, tag.as_bytes()) {
                return Ok(entry.numbers().collect());
            }
        }
        Ok(Vec::new())
    }

    fn tag_bytes(&self) -> Result<Vec<u8>, Refusal> {
        let tags = self.footer.tags;
        let bytes = self.load(tags.offset, tags.len)?;
        self.region(&bytes, tags, "its tag index's checksum does not match")?;
        Ok(bytes)
    }

    /// Reads all of the file and says what is not as it should be. A block may be gone where all its numbers are at or
    /// below their color's trim point.
    #[must_use]
    pub fn verify(&self, trim: Trims<'_>) -> Vec<Fault> {
        let index = match self.index() {
            Ok(index) => index,
            Err(error) => return vec![Fault::new(self.footer.colors.offset, error.to_string())],
        };
        let mut faults = Vec::new();
        let mut found: Vec<ColorRow> = Vec::new();
        let mut all = true;
        let mut tags: Vec<(Color, Vec<u8>, SeqNum)> = Vec::new();
        for (nth, row) in index.blocks.iter().enumerate() {
            let trimmed = index.block_is_trimmed(row, trim);
            match self.block(nth, row) {
                Ok(Some(bytes)) if !trimmed => self.verify_block(row, &bytes, &mut found, &mut tags, &mut faults),
                // What is trimmed may be there, in part or not at all.
                Ok(_) if trimmed => all = false,
                Ok(_) => faults.push(Fault::new(row.offset, "the block was given back too early")),
                Err(error) => faults.push(Fault::new(row.offset, error.to_string())),
            }
        }
        if all && faults.is_empty() && found != index.colors {
            faults.push(Fault::new(self.footer.colors.offset, "the color table is wrong"));
        }
        let missing = index.colors.iter().any(|row| !self.may_have(row.color));
        if missing {
            faults.push(Fault::new(self.footer.filter.offset, "the filter lacks a color"));
        }
        self.verify_tags(tags, all && faults.is_empty(), &mut faults);
        let sources = self.footer.sources;
        let listed = self.load(sources.offset, sources.len).and_then(|bytes| {
            self.region(&bytes, sources, "its sources' checksum does not match")?;
            Ok(bytes.chunks_exact(4).map(|source| u32_at(source, 0)).eq(self.meta.sources.iter().copied()))
        });
        match listed {
            Ok(true) => {}
            Ok(false) => faults.push(Fault::new(sources.offset, "the sources are not the manifest's")),
            Err(error) => faults.push(Fault::new(sources.offset, error.to_string())),
        }
        faults
    }

    fn verify_block(
        &self,
        row: &BlockRow,
        bytes: &Bytes,
        found: &mut Vec<ColorRow>,
        tags: &mut Vec<(Color, Vec<u8>, SeqNum)>,
        faults: &mut Vec<Fault>,
    ) {
        if !block_is_good(self.seed, row.offset, bytes, row.records) {
            let what = if is_zero(bytes) { "the block is gone" } else { "the block's checksum does not match" };
            faults.push(Fault::new(row.offset, what));
        }
        let mut keys = Vec::new();
        // The last record whose number is known; and a place behind it that has no such record.
        let (mut last, mut gap): (Option<(Color, SeqNum)>, Option<usize>) = (None, None);
        let in_gap = |at: usize, record: Option<(Color, SeqNum)>| Fault {
            offset: row.offset + at as u64,
            what: "what is here is no record".into(),
            record,
            within: Some(row.offset),
        };
        walk(bytes, row, self.seed, |spot| {
            match spot {
                Spot::Record { at, header, encoded } => {
                    let offset = row.offset + at as u64;
                    let key = (header.color, header.number);
                    if let Some(at) = gap.take() {
                        // The only number between two others is that of what is between them.
                        let only = |(color, number): (Color, SeqNum)| {
                            let next = after(number);
                            (color == key.0 && after(next) == key.1).then_some((color, next))
                        };
                        let first = || (row.first.0 == key.0 && after(row.first.1) == key.1).then_some(row.first);
                        faults.push(in_gap(at, last.map_or_else(first, only)));
                    }
                    last = Some(key);
                    let Some(record) = decode_record(bytes.slice(encoded), header.crc) else {
                        let what = format!("the record {}/{} is damaged", key.0, key.1);
                        faults.push(Fault { offset, what, record: Some(key), within: Some(row.offset) });
                        return true;
                    };
                    keys.push(key);
                    if found.last().is_none_or(|last| last.color != key.0) {
                        found.push(ColorRow { color: key.0, first: key.1, last: key.1, records: 0, bytes: 0 });
                    }
                    if let Some(color) = found.last_mut() {
                        color.last = key.1;
                        color.records += 1;
                        color.bytes += u64::from(header.len);
                    }
                    for tag in record.tags() {
                        tags.push((key.0, tag.as_bytes().to_vec(), key.1));
                    }
                }
                Spot::Gap { at } => gap = Some(at),
            }
            true
        });
        if let Some(at) = gap {
            let before = last.map_or(row.records == 1, |(color, number)| (color, after(number)) == row.last);
            faults.push(in_gap(at, before.then_some(row.last)));
        }
        if keys.len() != row.records as usize {
            let what = format!("the block has {} good records and should have {}", keys.len(), row.records);
            faults.push(Fault::new(row.offset, what));
        } else if (keys.first(), keys.last()) != (Some(&row.first), Some(&row.last)) {
            faults.push(Fault::new(row.offset, "the block index is wrong"));
        }
    }

    /// `whole`: all records of the file are in `tags`.
    fn verify_tags(&self, mut tags: Vec<(Color, Vec<u8>, SeqNum)>, whole: bool, faults: &mut Vec<Fault>) {
        let offset = self.footer.tags.offset;
        let bytes = match self.tag_bytes() {
            Ok(bytes) => bytes,
            Err(error) => return faults.push(Fault::new(offset, error.to_string())),
        };
        let mut listed = Vec::new();
        for entry in TagEntries(&bytes) {
            let Some(entry) = entry else {
                return faults.push(Fault::new(offset, "this is no tag index"));
            };
            listed.extend(entry.numbers().map(|number| (entry.color, entry.tag.to_vec(), number)));
        }
        tags.sort_unstable();
        tags.dedup();
        let sound = listed.is_sorted_by(|a, b| a < b)
            && if whole { listed == tags } else { tags.iter().all(|tag| listed.binary_search(tag).is_ok()) };
        if !sound {
            faults.push(Fault::new(offset, "the tag index is wrong"));
        }
    }

    /// Whether none of the file's records is needed any more.
    #[must_use]
    pub fn all_trimmed(&self, index: &FileIndex, trim: Trims<'_>) -> bool {
        index.colors.iter().all(|row| trim(row.color).is_some_and(|point| point >= row.last))
    }

    /// Gives back the space of blocks whose records are all trimmed, in whole pages. Returns how many bytes. What was
    /// given back before is not counted again. Where the file system cannot, it is 0.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn reclaim(&self, index: &FileIndex, trim: Trims<'_>) -> io::Result<u64> {
        let mut gone = self.gone.lock();
        if gone.unsupported {
            return Ok(0);
        }
        let mut given = 0;
        let mut nth = 0;
        while nth < index.blocks.len() {
            let start = nth;
            while index.blocks.get(nth).is_some_and(|row| index.block_is_trimmed(row, trim)) {
                nth += 1;
            }
            if start == nth {
                nth += 1;
                continue;
            }
            let from = index.blocks[start].offset.next_multiple_of(PAGE);
            let to = index.blocks[nth - 1].end() / PAGE * PAGE;
            for (from, to) in apart(from, to, &gone.pages) {
                // Noted first, so that no reader takes zeros for damage.
                gone.blocks.resize(index.blocks.len(), false);
                for (at, row) in index.blocks.iter().enumerate().take(nth).skip(start) {
                    gone.blocks[at] |= row.offset < to && row.end() > from;
                }
                match self.reading.punch(from, to - from) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                        gone.unsupported = true;
                        return Ok(given);
                    }
                    Err(error) => return Err(error),
                }
                note(&mut gone.pages, from, to);
                gone.bytes += to - from;
                given += to - from;
            }
        }
        Ok(given)
    }

    /// Bytes that [`SsdFile::reclaim`] gave back since the file was opened.
    #[must_use]
    pub fn given_back(&self) -> u64 {
        self.gone.lock().bytes
    }

    /// Bytes of memory that the file takes without its indexes.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let gone = self.gone.lock();
        let filter = self.filter.get().map_or(0, Filter::bytes);
        let sources = self.meta.sources.capacity() * 4;
        (size_of::<Self>()
            + self.name.capacity()
            + filter
            + sources
            + gone.blocks.capacity()
            + gone.pages.capacity() * 16) as u64
    }
}

/// The parts of `from..to` that `pages` does not have.
fn apart(from: u64, to: u64, pages: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut parts = Vec::new();
    let mut at = from;
    for (start, end) in pages {
        if *end <= at || *start >= to {
            continue;
        }
        if *start > at {
            parts.push((at, *start));
        }
        at = *end;
    }
    if at < to {
        parts.push((at, to));
    }
    parts
}

/// Adds `from..to`, which is apart from all others, and joins what touches.
fn note(pages: &mut Vec<(u64, u64)>, from: u64, to: u64) {
    let at = pages.partition_point(|page| page.0 < from);
    pages.insert(at, (from, to));
    pages.dedup_by(|later, earlier| {
        let touch = earlier.1 == later.0;
        if touch {
            earlier.1 = later.1;
        }
        touch
    });
}

/// A tag's entry in the tag index.
struct TagEntry<'a> {
    color: Color,
    tag: &'a [u8],
    numbers: &'a [u8],
}

impl TagEntry<'_> {
    fn numbers(&self) -> impl Iterator<Item = SeqNum> {
        self.numbers.chunks_exact(8).map(|word| SeqNum::from_raw(u64_at(word, 0)))
    }
}

/// The entries of a tag index; `None` where there is something else, and nothing after that.
struct TagEntries<'a>(&'a [u8]);

impl<'a> TagEntries<'a> {
    fn entry(bytes: &'a [u8]) -> Option<(TagEntry<'a>, &'a [u8])> {
        let (head, rest) = bytes.split_at_checked(TAG_HEADER)?;
        let (count, len) = (u32_at(head, 16) as usize, u32_at(head, 20) as usize);
        if len > limits::MAX_TAG_BYTES || count == 0 {
            return None;
        }
        let (tag, rest) = rest.split_at_checked(len.next_multiple_of(8))?;
        let (numbers, rest) = rest.split_at_checked(count.checked_mul(8)?)?;
        let last = u64_at(numbers, numbers.len() - 8);
        (last == u64_at(head, 8))
            .then_some((TagEntry { color: Color(u64_at(head, 0)), tag: &tag[..len], numbers }, rest))
    }
}

impl<'a> Iterator for TagEntries<'a> {
    type Item = Option<TagEntry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let found = Self::entry(self.0);
        self.0 = found.as_ref().map_or(&[], |(_, rest)| rest);
        Some(found.map(|(entry, _)| entry))
    }
}
