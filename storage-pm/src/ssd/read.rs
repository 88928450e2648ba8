//! Reading records out of blocks, in order, over one file or several.
//!
//! A block is taken apart record by record. Every record's header and bytes have checksums of their own, so what is good
//! is given out, and what is not costs only itself; the block's checksum is for those who look at it as a whole
//! ([`SsdFile::verify`]). Where it cannot be told which number a damaged place had, every number that it may have had is told to be damaged.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use flexlog_protocol::{Color, Record, SeqNum};

use super::error::SsdError;
use super::file::{FileIndex, SsdFile};
use super::format::{BLOCK_HEADER, BlockRow, RECORD_HEADER, RecordHeader};
use crate::codec::decode_record;

/// What stands at some place of a block.
pub(crate) enum Spot {
    /// A record whose header is good; where its encoded form is in the block.
    Record { at: usize, header: RecordHeader, encoded: Range<usize> },
    /// Something else. What comes next is the next record whose header is good, or the block's end.
    Gap { at: usize },
}

/// Calls `each` with everything in a block, in order, as long as it says to go on. A record that cannot stand there, by its number, is none.
pub(crate) fn walk(block: &[u8], row: &BlockRow, seed: u32, mut each: impl FnMut(Spot) -> bool) {
    let (mut at, mut low, mut in_gap) = (BLOCK_HEADER, None, false);
    while at < block.len() {
        let header = RecordHeader::decode(&block[at..], seed, row.offset + at as u64).filter(|header| {
            let key = (header.color, header.number);
            low.is_none_or(|low| low < key) && (row.first..=row.last).contains(&key)
        });
        match header {
            Some(header) => {
                let from = at + RECORD_HEADER;
                low = Some((header.color, header.number));
                in_gap = false;
                if !each(Spot::Record { at, header, encoded: from..from + header.len as usize }) {
                    return;
                }
                at += header.stride();
            }
            None => {
                if !in_gap && !each(Spot::Gap { at }) {
                    return;
                }
                in_gap = true;
                // The next one that can stand here: records are at multiples of 4.
                at += 4;
            }
        }
    }
}

/// The number after this one, in the order of all numbers; not one that is handed out next.
pub(crate) fn after(number: SeqNum) -> SeqNum {
    SeqNum::from_raw(number.to_raw().saturating_add(1))
}

/// What reading comes upon at some number.
enum Item {
    Record(SeqNum, Record),
    /// Damage: of some numbers from this one on, below `end`; of this one, if there is no other.
    Damaged {
        number: SeqNum,
        end: SeqNum,
        offset: u64,
    },
    /// The block that may have such numbers cannot be read.
    Io {
        number: SeqNum,
        end: SeqNum,
        offset: u64,
        source: io::Error,
    },
}

impl Item {
    /// Exclusive: it is of no number from here on.
    fn end(&self) -> SeqNum {
        match self {
            Self::Record(number, _) => after(*number),
            Self::Damaged { end, .. } | Self::Io { end, .. } => *end,
        }
    }

    fn number(&self) -> SeqNum {
        match self {
            Self::Record(number, _) | Self::Damaged { number, .. } | Self::Io { number, .. } => *number,
        }
    }
}

/// Reads one color's numbers of one file, a block at a time: forward ([`merge`]) or backward ([`last`]).
pub(crate) struct Cursor {
    file: Arc<SsdFile>,
    index: Arc<FileIndex>,
    color: Color,
    from: SeqNum,
    upto: SeqNum,
    blocks: Range<usize>,
    items: VecDeque<Item>,
}

impl Cursor {
    pub(crate) fn new(file: Arc<SsdFile>, index: Arc<FileIndex>, color: Color, from: SeqNum, upto: SeqNum) -> Self {
        // The block index alone does not tell that no number of this color is here.
        let (from, upto) = match index.color(color) {
            Some(row) => (from.max(row.first), upto.min(after(row.last))),
            None => (from, from),
        };
        let blocks = if from < upto { index.blocks_of(color, from, upto) } else { 0..0 };
        Self { file, index, color, from, upto, blocks, items: VecDeque::new() }
    }

    /// The number of the next item, if that is known, or one that is not above it. `None`: there is none.
    fn bound(&self) -> Option<SeqNum> {
        let of_block = || {
            let row = self.index.blocks.get(self.blocks.clone().next()?)?;
            Some(if row.first.0 == self.color { row.first.1.max(self.from) } else { self.from })
        };
        self.items.front().map(Item::number).or_else(of_block)
    }

    /// Reads a block.
    fn load(&mut self, nth: usize) {
        let row = self.index.blocks[nth];
        match self.file.block(nth, &row) {
            Ok(Some(block)) => self.take(&row, &block),
            // All of it is trimmed.
            Ok(None) => {}
            Err(source) => {
                let number = if row.first.0 == self.color { row.first.1.max(self.from) } else { self.from };
                let end = if row.last.0 == self.color { after(row.last.1).min(self.upto) } else { self.upto };
                self.items.push_back(Item::Io { number, end, offset: row.offset, source });
            }
        }
    }

    /// What a block has of the color and range. The block's checksum is not looked at: those of the records' headers and
    /// of the records cover all that is given out, and what is missing shows as a gap.
    fn take(&mut self, row: &BlockRow, block: &Bytes) {
        let (color, from, upto) = (self.color, self.from, self.upto);
        let items = &mut self.items;
        // Everything up to here was seen: the last good record, or what is before the block.
        let mut seen: Option<(Color, SeqNum)> = None;
        let mut gap: Option<usize> = None;
        let close = |seen: Option<(Color, SeqNum)>, gap: Option<usize>, next: Option<(Color, SeqNum)>| {
            let at = gap?;
            let low = match seen {
                Some((last, number)) if last == color => after(number),
                Some((last, _)) if last > color => return None,
                Some(_) => SeqNum::MIN,
                None if row.first.0 == color => row.first.1,
                None if row.first.0 > color => return None,
                None => SeqNum::MIN,
            };
            // Exclusive.
            let high = match next.unwrap_or((row.last.0, after(row.last.1))) {
                (next, number) if next == color => number,
                (next, _) if next < color => return None,
                _ => SeqNum::MAX,
            };
            let (low, high) = (low.max(from), high.min(upto));
            Some((low < high).then_some((low, high, row.offset + at as u64))).flatten()
        };
        let mut found = Vec::new();
        walk(block, row, self.file.seed, |spot| match spot {
            Spot::Gap { at } => {
                gap = gap.or(Some(at));
                true
            }
            Spot::Record { at, header, encoded } => {
                let key = (header.color, header.number);
                if let Some((number, end, offset)) = close(seen, gap.take(), Some(key)) {
                    found.push(Item::Damaged { number, end, offset });
                }
                seen = Some(key);
                if header.color == color && (from..upto).contains(&header.number) {
                    let number = header.number;
                    // A small record must not keep its whole block in memory.
                    let bytes =
                        if row.records == 1 { block.slice(encoded) } else { Bytes::copy_from_slice(&block[encoded]) };
                    found.push(match decode_record(bytes, header.crc) {
                        Some(record) => Item::Record(number, record),
                        None => Item::Damaged { number, end: after(number), offset: row.offset + at as u64 },
                    });
                }
                key < (color, upto)
            }
        });
        if let Some((number, end, offset)) = close(seen, gap, None) {
            found.push(Item::Damaged { number, end, offset });
        }
        items.extend(found);
    }

    /// No number that is left is above this. `None`: there is none.
    fn highest(&self) -> Option<SeqNum> {
        let row = self.index.blocks.get(self.blocks.clone().next_back()?)?;
        let below = SeqNum::from_raw(self.upto.to_raw().saturating_sub(1));
        Some(if row.last.0 == self.color { row.last.1.min(below) } else { below })
    }

    fn error(&self, item: Item) -> Option<SsdError> {
        let (file, color) = (self.file.name.clone(), self.color);
        match item {
            Item::Record(..) => None,
            Item::Damaged { number, end, offset } => Some(SsdError::Damaged { file, offset, color, number, end }),
            Item::Io { number, end, offset, source } => Some(SsdError::Io { file, offset, color, number, end, source }),
        }
    }
}

/// Reads what the cursors have, in order, no number twice. Returns the bound up to which all was looked at, exclusive.
///
/// Where records are damaged in one file and whole in another, the whole ones are taken.
pub(crate) fn merge(
    mut cursors: Vec<Cursor>,
    from: SeqNum,
    upto: SeqNum,
    max_records: usize,
    max_bytes: usize,
    into: &mut Vec<(SeqNum, Record)>,
) -> Result<SeqNum, SsdError> {
    if max_records == 0 {
        return Ok(from.min(upto));
    }
    let mut heap: BinaryHeap<_> =
        cursors.iter().enumerate().filter_map(|(nth, cursor)| Some(Reverse((cursor.bound()?, nth)))).collect();
    let (mut count, mut bytes) = (0, 0);
    let mut last = None;
    // Damaged numbers that another file may have, each of them: from, and up to but not including.
    let mut bad: Option<(SeqNum, SeqNum, SsdError)> = None;
    while let Some(Reverse((bound, nth))) = heap.pop() {
        if let Some((low, end, error)) = bad.take_if(|(low, ..)| *low < bound) {
            return Err(error.of_numbers(low, end));
        }
        let cursor = &mut cursors[nth];
        match cursor.items.pop_front() {
            None => {
                if let Some(nth) = cursor.blocks.next() {
                    cursor.load(nth);
                }
            }
            Some(Item::Record(number, record)) if last.is_none_or(|last| last < number) => {
                if count > 0 && bytes + record.payload().len() > max_bytes {
                    return Ok(number);
                }
                if let Some((low, ..)) = &mut bad {
                    *low = after(number);
                }
                bad.take_if(|(low, end, _)| *low >= *end);
                last = Some(number);
                count += 1;
                bytes += record.payload().len();
                into.push((number, record));
                if count == max_records || bytes >= max_bytes {
                    return Ok(after(number).min(upto));
                }
            }
            // It was given out already.
            Some(Item::Record(..)) => {}
            Some(item) => {
                let (low, end) = (last.map_or(item.number(), |last| after(last).max(item.number())), item.end());
                if let Some(error) = cursor.error(item).filter(|_| low < end) {
                    let end = bad.take().map_or(end, |(_, other, _)| other.max(end));
                    bad = Some((low, end, error));
                }
            }
        }
        let next = cursors[nth].bound();
        heap.extend(next.map(|next| Reverse((next, nth))));
    }
    match bad {
        Some((low, end, error)) => Err(error.of_numbers(low, end)),
        None => Ok(upto.max(from)),
    }
}

/// Reads the last of the records that the cursors have.
///
/// Where it is damaged in one file and whole in another, the whole one is taken; and so is any record that is known to
/// be behind all damage.
pub(crate) fn last(mut cursors: Vec<Cursor>) -> Result<Option<(SeqNum, Record)>, SsdError> {
    let mut heap: BinaryHeap<_> =
        cursors.iter().enumerate().filter_map(|(nth, cursor)| Some((cursor.highest()?, nth))).collect();
    let mut best: Option<(SeqNum, Record)> = None;
    // Damage that may hide a record, none above this number.
    let mut bad: Option<(SeqNum, SsdError)> = None;
    while let Some((highest, nth)) = heap.pop() {
        // What is left in all cursors is no higher.
        let reached = best.iter().map(|(number, _)| *number).chain(bad.iter().map(|(number, _)| *number)).max();
        if reached.is_some_and(|reached| reached > highest || best.as_ref().is_some_and(|(n, _)| *n == highest)) {
            break;
        }
        let cursor = &mut cursors[nth];
        let Some(block) = cursor.blocks.next_back() else { continue };
        cursor.load(block);
        match cursor.items.pop_back() {
            // Its records are before `from`, or trimmed.
            None => {}
            Some(Item::Record(number, record)) => {
                if best.as_ref().is_none_or(|(best, _)| *best < number) {
                    best = Some((number, record));
                }
                continue;
            }
            Some(item) => {
                let upper = SeqNum::from_raw(item.end().to_raw().saturating_sub(1)).min(highest).max(item.number());
                if bad.as_ref().is_none_or(|(number, _)| *number < upper)
                    && let Some(error) = cursor.error(item)
                {
                    bad = Some((upper, error));
                }
                continue;
            }
        }
        let next = cursors[nth].highest();
        heap.extend(next.map(|next| (next, nth)));
    }
    match (best, bad) {
        (Some((number, _)), Some((upper, error))) if number < upper => Err(error),
        (None, Some((_, error))) => Err(error),
        (best, _) => Ok(best),
    }
}
