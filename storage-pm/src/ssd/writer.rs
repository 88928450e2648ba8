//! Writing an SSD file: records in, sorted; a file out that is durable under its name.
//!
//! It is written under another name first, so that a file with the right name is whole. What it keeps in memory is a
//! buffer, the file's indexes, and the tags of one color.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use flexlog_protocol::checksum::{crc32c, crc32c_append};
use flexlog_protocol::{Color, Lsn, SeqNum, StoreId, limits};

use super::filter::Filter;
use super::folder::{Folder, Writing};
use super::format::{
    BLOCK_BYTES, BLOCK_HEADER, BlockRow, ColorRow, Footer, HEADER, MAX_ENCODED, RecordHeader, Region, block_header,
    file_name, file_seed, header,
};
use super::manifest::FileMeta;

/// Bytes that are handed to the file system at once.
const BUFFER: usize = 256 << 10;

/// A file that is being written. Dropped before [`Writer::finish`] it leaves a file that nobody takes for one.
pub struct Writer {
    folder: Arc<dyn Folder>,
    file: Box<dyn Writing>,
    store: StoreId,
    id: u64,
    seed: u32,
    /// What was not handed to the file yet.
    buffer: Vec<u8>,
    /// Bytes before the buffer.
    written: u64,
    /// The records of the block that is being filled.
    block: Vec<u8>,
    block_first: Option<(Color, SeqNum)>,
    block_records: u32,
    last: Option<(Color, SeqNum)>,
    colors: Vec<ColorRow>,
    blocks: Vec<BlockRow>,
    /// The tag region, up to the color that is being written.
    tags: Vec<u8>,
    /// The tags of that color.
    color_tags: BTreeMap<Vec<u8>, Vec<SeqNum>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Writer(file {}, {} bytes)", self.id, self.written)
    }
}

/// The name of a file before it is whole.
pub(crate) fn temporary(id: u64) -> String {
    format!("{}.tmp", file_name(id))
}

impl Writer {
    /// Begins file `id` of `store`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn new(folder: Arc<dyn Folder>, id: u64, store: StoreId) -> io::Result<Self> {
        let file = folder.create(&temporary(id))?;
        Ok(Self {
            folder,
            file,
            store,
            id,
            seed: file_seed(store, id),
            buffer: header(store, id).to_vec(),
            written: 0,
            block: Vec::with_capacity(BLOCK_BYTES),
            block_first: None,
            block_records: 0,
            last: None,
            colors: Vec::new(),
            blocks: Vec::new(),
            tags: Vec::new(),
            color_tags: BTreeMap::new(),
        })
    }

    /// Adds a record: its own checksum, and its encoded form. They come in ascending order of (color, number).
    ///
    /// # Errors
    /// `InvalidInput`: it is out of order. `InvalidData`: the checksum does not match, or it is no record. The file is
    /// then as it was. All others are those of the file system.
    pub fn add(&mut self, color: Color, number: SeqNum, crc: u32, encoded: &[u8]) -> io::Result<()> {
        if self.last.is_some_and(|last| last >= (color, number)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{color}/{number} is out of order")));
        }
        let tags = tags_of(encoded).filter(|_| encoded.len() <= MAX_ENCODED && crc32c(encoded) == crc);
        let Some(tags) = tags else {
            let why = format!("the record {color}/{number} is damaged: its checksum does not match");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        };
        let head = RecordHeader { color, number, len: encoded.len() as u32, crc };
        if self.block_records > 0 && BLOCK_HEADER + self.block.len() + head.stride() > BLOCK_BYTES {
            self.end_block()?;
        }
        if self.colors.last().is_none_or(|row| row.color != color) {
            self.end_color();
            self.colors.push(ColorRow { color, first: number, last: number, records: 0, bytes: 0 });
        }
        if let Some(row) = self.colors.last_mut() {
            row.last = number;
            row.records += 1;
            row.bytes += encoded.len() as u64;
        }
        for tag in tags {
            match self.color_tags.get_mut(tag) {
                // A record may carry a tag twice.
                Some(numbers) if numbers.last() == Some(&number) => {}
                Some(numbers) => numbers.push(number),
                None => drop(self.color_tags.insert(tag.to_vec(), vec![number])),
            }
        }
        let end = self.block.len() + head.stride();
        // The block will be where the buffer ends now.
        let offset = self.at() + (BLOCK_HEADER + self.block.len()) as u64;
        self.block.extend_from_slice(&head.encode(self.seed, offset));
        self.block.extend_from_slice(encoded);
        self.block.resize(end, 0);
        self.block_first = self.block_first.or(Some((color, number)));
        self.block_records += 1;
        self.last = Some((color, number));
        Ok(())
    }

    fn at(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.append(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn end_block(&mut self) -> io::Result<()> {
        let (Some(first), Some(last)) = (self.block_first.take(), self.last) else { return Ok(()) };
        let offset = self.at();
        let head = block_header(self.seed, offset, &self.block, self.block_records);
        self.buffer.extend_from_slice(&head);
        self.buffer.extend_from_slice(&self.block);
        let len = (BLOCK_HEADER + self.block.len()) as u32;
        self.blocks.push(BlockRow { first, last, offset, len, records: self.block_records });
        self.block.clear();
        self.block_records = 0;
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    fn end_color(&mut self) {
        let Some(row) = self.colors.last() else { return };
        for (tag, numbers) in std::mem::take(&mut self.color_tags) {
            let last = numbers.last().map_or(0, |last| last.to_raw());
            self.tags.extend_from_slice(&row.color.0.to_le_bytes());
            self.tags.extend_from_slice(&last.to_le_bytes());
            self.tags.extend_from_slice(&(numbers.len() as u32).to_le_bytes());
            self.tags.extend_from_slice(&(tag.len() as u32).to_le_bytes());
            self.tags.extend_from_slice(&tag);
            self.tags.resize(self.tags.len().next_multiple_of(8), 0);
            numbers.iter().for_each(|number| self.tags.extend_from_slice(&number.to_raw().to_le_bytes()));
        }
    }

    fn region(&mut self, bytes: &[u8]) -> io::Result<Region> {
        let region = Region { offset: self.at(), len: bytes.len() as u64, crc: crc32c_append(self.seed, bytes) };
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER {
            self.flush()?;
        }
        Ok(region)
    }

    /// Ends the file, makes it durable, and gives it its name. `upto` and `sources` are for the manifest.
    ///
    /// # Errors
    /// Those of the file system; there is no file then.
    pub fn finish(self, upto: Lsn, sources: Vec<u32>) -> io::Result<FileMeta> {
        self.end(upto, sources, true)
    }

    /// As [`Writer::finish`]; `durable` is false for the sake of a planted bug only.
    pub(crate) fn end(mut self, upto: Lsn, sources: Vec<u32>, durable: bool) -> io::Result<FileMeta> {
        self.end_block()?;
        self.end_color();
        let blocks_end = self.at();
        let (mut colors, mut blocks, mut filter, mut from) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        self.colors.iter().for_each(|row| row.put(&mut colors));
        self.blocks.iter().for_each(|row| row.put(&mut blocks));
        Filter::of(self.colors.iter().map(|row| row.color)).put(&mut filter);
        sources.iter().for_each(|source| from.extend_from_slice(&source.to_le_bytes()));
        let tags = std::mem::take(&mut self.tags);
        let footer = Footer {
            id: self.id,
            store: self.store,
            records: self.colors.iter().map(|row| row.records).sum(),
            blocks_end,
            upto,
            colors: self.region(&colors)?,
            blocks: self.region(&blocks)?,
            filter: self.region(&filter)?,
            tags: self.region(&tags)?,
            sources: self.region(&from)?,
        };
        self.buffer.extend_from_slice(&footer.encode());
        self.flush()?;
        if durable {
            self.file.sync()?;
        }
        self.folder.rename(&temporary(self.id), &file_name(self.id))?;
        self.folder.sync()?;
        Ok(FileMeta { id: self.id, bytes: self.written, records: footer.records, upto, sources })
    }
}

const _: () = assert!(HEADER < BUFFER);

/// The tags in a record's encoded form. `None`: it is no record.
pub(crate) fn tags_of(encoded: &[u8]) -> Option<Vec<&[u8]>> {
    let (count, mut rest) = encoded.split_first()?;
    if usize::from(*count) > limits::MAX_TAGS {
        return None;
    }
    let mut tags = Vec::with_capacity(usize::from(*count));
    for _ in 0..*count {
        let (len, behind) = rest.split_first()?;
        let (tag, behind) = behind.split_at_checked(usize::from(*len))?;
        if tag.len() > limits::MAX_TAG_BYTES {
            return None;
        }
        tags.push(tag);
        rest = behind;
    }
    Some(tags)
}
