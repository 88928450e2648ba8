//! The store of one replica: [`LogStore`] over any [`Device`].
//!
//! It relies on the log ([`crate::log`]) for what is durable in which order, and keeps in memory what a reader needs:
//! the index from numbers to records, the staged tokens, and what holds each segment. All of that is made anew from the
//! area when the store is opened, and grows with what is in the area; what moved on to SSD files ([`crate::tiers`]) costs
//! no memory a record.

mod repair;
mod returning;

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use flexlog_protocol::media::{Background, Device, FenceId, LogStore, ReadError, Reading, StoreError, Usage};
use flexlog_protocol::{Append, Assign, Body, Color, Entry, Incarnation, Lsn, Record, SeqNum, Time, Token};
use rustc_hash::FxHashMap;

use crate::codec::{
    self, CHECKPOINT_META, Checkpoint, ONE_ASSIGN_ENTRY, PART_META, PartMeta, STAGED_META, StagedMeta, TakenBack,
    decode_record,
};
use crate::device::prefetch;
use crate::index::{Index, Loc};
use crate::layout::{ENTRY_HEADER, HEAD_BYTES, Header, Kind, Place, padded};
use crate::log::Log;
use crate::open::FolderLock;
use crate::segments::{Span, Spans};
use crate::ssd::after;
use crate::tiers::{Batch, Cache, Ended, Moved, Outcome, Source, Tiers};

/// The most bytes of a checkpoint in one part.
const PART_BYTES: usize = 1 << 20;
/// Segments that staging leaves for entries and checkpoints.
const RESERVE: usize = 2;
/// Segments written since the last checkpoint after which a new one is worth its bytes.
const LONG: u64 = 16;
/// Entries after which it is looked again whether a checkpoint would free anything.
const LOOK_AGAIN: u64 = 256;
/// How much is read at once where reading takes a system call: a small record with all that stands before it.
const READ_BYTES: usize = 4096;
/// How much of an entry in a mapped area is called for before its header is looked at: a small record as a whole.
const PREFETCH_BYTES: usize = 1024;
/// The most segments that move into one SSD file.
const MOST_MOVED: usize = 4;

/// An append that waits for its numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StagedAt {
    /// The byte of the area at which its entry begins.
    pub(crate) entry: u64,
    pub(crate) color: Color,
    pub(crate) records: u32,
}

impl StagedAt {
    /// The last of its numbers, if `first` is the first.
    #[inline]
    pub(crate) fn last(&self, first: SeqNum) -> SeqNum {
        first.plus(self.records - 1).unwrap_or(first)
    }
}

/// What happened since the last checkpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Since {
    lsns: u64,
    trims: u64,
    segments: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Store<D> {
    log: Log<D>,
    index: Index,
    staged: FxHashMap<Token, StagedAt>,
    /// The newest `Fence` in the log.
    fence: Option<Incarnation>,
    /// What was taken back in segments that are in use, in the order of the log.
    taken_back: Vec<TakenBack>,
    since: Since,
    wanted: bool,
    /// Bytes of the last checkpoint: the next one will be about as long.
    checkpoint_bytes: usize,
    /// Everything up to here is committed and durable; as far as anybody said.
    committed: Lsn,
    /// What was said last, and where the log ended then, until that is durable.
    committing: Option<(Lsn, Place)>,
    /// Whether anybody says what is committed, other than with checkpoints.
    told: bool,
    tiers: Option<Tiers>,
    /// Percent of the area above which records move to SSD files.
    high_mark: u8,
    cache: Option<Arc<Cache>>,
    /// Whether the area's records are worth caching: not where it is memory itself. Looking a record up and putting it there
    /// costs about as much as reading it.
    cache_area: bool,
    /// Held as long as the store is.
    _lock: Option<FolderLock>,
}

/// What an opened store begins with.
pub(crate) struct Begin<D> {
    pub(crate) log: Log<D>,
    pub(crate) index: Index,
    pub(crate) staged: FxHashMap<Token, StagedAt>,
    pub(crate) fence: Option<Incarnation>,
    pub(crate) taken_back: Vec<TakenBack>,
    pub(crate) checkpoint_bytes: usize,
    pub(crate) committed: Lsn,
    pub(crate) tiers: Option<Tiers>,
    pub(crate) high_mark: u8,
    pub(crate) cache: Option<Arc<Cache>>,
    pub(crate) lock: Option<FolderLock>,
}

impl<D: Device> Store<D> {
    pub(crate) fn new(begin: Begin<D>) -> Self {
        let Begin { log, index, staged, fence, taken_back, checkpoint_bytes, committed, .. } = begin;
        let Begin { tiers, high_mark, cache, lock, .. } = begin;
        let since = Since::default();
        let log_is_slow = log.device.slice(0, 1).is_none();
        Self {
            log,
            index,
            staged,
            fence,
            taken_back,
            since,
            wanted: false,
            checkpoint_bytes,
            committed,
            committing: None,
            told: false,
            tiers,
            high_mark,
            cache_area: cache.is_some() && log_is_slow,
            cache,
            _lock: lock,
        }
    }

    /// Has `wake` called, from any thread, each time a memory fence is done or failed after it was started.
    pub fn on_fenced(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        self.log.device.on_fenced(wake);
    }

    /// Waits until `fence` is done. For those who have nothing else to do.
    ///
    /// # Errors
    /// `Failed`, final.
    pub fn wait(&mut self, fence: FenceId) -> Result<(), StoreError> {
        self.log.wait(fence)
    }

    /// The device under the store.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.log.device
    }

    /// Bytes that are left in the segment that is written.
    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.log.segment_bytes() as usize - self.log.next().offset as usize
    }

    /// The byte of the area at which the entry of a record begins, if it is there.
    #[cfg(test)]
    pub(crate) fn entry_of(&self, color: Color, number: SeqNum) -> Option<u64> {
        self.index.find(color, number).map(Loc::entry)
    }

    #[cfg(test)]
    pub(crate) fn plant(&self, bug: Option<crate::ssd::PlantedBug>) {
        if let Some(tiers) = &self.tiers {
            tiers.tier.plant(bug);
        }
    }

    /// Free segments that staging must leave: for the numbers of all that is staged, and for checkpoints.
    #[inline]
    fn reserve(&self) -> usize {
        let bytes = self.staged.len() * ONE_ASSIGN_ENTRY + 2 * self.checkpoint_bytes;
        RESERVE + bytes / self.log.segment_bytes() as usize
    }

    /// Gets the segments that the first staging will need.
    pub(crate) fn allocate(&mut self) -> Result<(), StoreError> {
        self.log.want_free(self.reserve() + 1).map(|_| ())
    }

    /// The store was opened, and so many segments of its log are behind the last checkpoint.
    pub(crate) fn opened(&mut self, segments: u64) {
        // What was trimmed before is not known here, so a look is worth its while.
        self.since = Since { lsns: 0, trims: 1, segments };
        self.consider();
    }

    /// Puts an entry whose body `fill` appends, `len` bytes of it.
    #[inline]
    fn put_entry(&mut self, kind: Kind, len: usize, fill: impl FnOnce(&mut Vec<u8>)) -> Result<(), StoreError> {
        self.log.check()?;
        let head = self.log.head();
        self.log.make_room_in_reserve(ENTRY_HEADER + len)?;
        self.since.segments += u64::from(head != self.log.head());
        fill(self.log.begin());
        debug_assert_eq!(self.log.begun(), ENTRY_HEADER + len);
        self.log.finish(kind)
    }

    /// An entry in the segment `by` gave staged appends their numbers.
    #[inline]
    fn assign(&mut self, assign: &Assign, by: usize, lsn: Lsn) {
        for (token, first) in assign.each() {
            let Some(staged) = self.staged.remove(&token) else {
                // What was written again stayed when the entry before this one was taken back.
                let stayed = self.index.find(assign.color, first).is_some();
                debug_assert!(stayed, "{token} was given numbers and is not staged");
                continue;
            };
            self.index.insert(assign.color, first, staged.records, staged.entry);
            let (slot, last) = (self.log.slot_of(staged.entry), staged.last(first));
            let span = Span { low: first, high: last };
            let segment = self.log.segments.get_mut(slot);
            segment.staged -= 1;
            segment.own.add(assign.color, span);
            segment.numbered = lsn;
            if by != slot {
                self.log.segments.get_mut(by).given.add(assign.color, span);
            }
        }
    }

    /// An append that was put at `entry` waits for numbers.
    #[inline]
    fn note_staged(&mut self, token: Token, staged: StagedAt) {
        let slot = self.log.slot_of(staged.entry);
        if let Some(old) = self.staged.insert(token, staged) {
            debug_assert!(false, "{token} was staged twice");
            let slot = self.log.slot_of(old.entry);
            self.log.segments.get_mut(slot).staged -= 1;
        }
        self.log.segments.get_mut(slot).staged += 1;
    }

    /// Looks whether a checkpoint would be of use.
    fn consider(&mut self) {
        let max = self.log.max_segments();
        if self.since.segments >= LONG.min(max as u64 / 4 + 1) {
            self.wanted = true;
            return;
        }
        let low = self.log.available() < (max / 2).max(self.reserve() + 2) || self.above_mark();
        let changed = self.since.trims > 0 || self.since.lsns >= LOOK_AGAIN || self.is_tight();
        // Where it is known what a checkpoint could cover, one that frees nothing is not asked for.
        let upto = if self.told { self.committed } else { Lsn(u64::MAX) };
        self.wanted = low && changed && self.would_free(upto);
    }

    /// Whether staging is refused now, or nearly.
    fn is_tight(&self) -> bool {
        self.log.available() <= self.reserve() + 1
    }

    /// Whether a checkpoint up to `upto` would give any segment back.
    fn would_free(&self, upto: Lsn) -> bool {
        let here = |color, span: Span| self.index.any(color, span.low, span.high);
        self.log.segments.removable(self.log.head(), upto, here).next().is_some()
    }

    /// Whether so much of the area is in use that records are to move to SSD files.
    fn above_mark(&self) -> bool {
        let used = self.log.segments.used();
        self.tiers.is_some() && used * 100 > (used + self.log.available()) * usize::from(self.high_mark)
    }

    /// Picks records to move and starts that.
    fn start_move(&mut self) -> Result<Option<Background>, StoreError> {
        let head = self.log.head();
        let most = (self.log.max_segments() / 8).clamp(1, MOST_MOVED);
        let (mut records, mut held, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for slot in self.log.segments.movable(head, self.log.durable(), self.committed) {
            let spans = std::mem::take(&mut self.log.segments.get_mut(slot).own);
            let before = records.len();
            for (color, Span { low, high }) in spans.iter() {
                let numbers = self.index.range(color, low, SeqNum::MAX).take_while(|(number, _)| *number <= high);
                let here = numbers.filter(|(_, loc)| self.log.slot_of(loc.entry()) == slot);
                records.extend(here.map(|(number, loc)| Moved { color, number, loc }));
            }
            if records.len() == before {
                // All was trimmed.
                self.since.trims += 1;
                continue;
            }
            let segment = self.log.segments.get_mut(slot);
            segment.moving = true;
            sources.push(Source { slot, generation: segment.generation, end: segment.end });
            held.push((slot, spans));
            if sources.len() == most {
                break;
            }
        }
        if sources.is_empty() {
            if self.since.trims > 0 {
                self.consider();
            }
            return Ok(None);
        }
        records.sort_unstable_by_key(|moved| (moved.color, moved.number));
        let batch = Batch { records: Arc::new(records), held };
        let area = match self.log.device.reader() {
            Ok(area) => area,
            Err(error) => return Err(self.log.fail(&error)),
        };
        let (segment_bytes, upto) = (self.log.segment_bytes(), self.committed);
        Ok(self.tiers.as_mut().map(|tiers| tiers.start_move(batch, area, segment_bytes, sources, upto)))
    }

    /// Background work has ended.
    fn take_in(&mut self, ended: Ended) -> Result<(), StoreError> {
        let outcome = match ended {
            Ended::Move(batch, Outcome::Moved { left }) => {
                self.moved(batch, &left);
                return Ok(());
            }
            Ended::Move(batch, outcome) => {
                batch.held.into_iter().for_each(|(slot, spans)| self.stays(slot, spans));
                outcome
            }
            Ended::Reclaim(outcome) => outcome,
        };
        match outcome {
            Outcome::Failed(why) => Err(self.log.fail(&io::Error::other(why))),
            Outcome::Full(why) => {
                tracing::warn!(why, "records stay in the area");
                Ok(())
            }
            Outcome::GivenUp(why) => {
                tracing::warn!(
                    why,
                    "a move to SSD was given up and is tried again: records stay in the area meanwhile"
                );
                Ok(())
            }
            Outcome::Moved { .. } | Outcome::Reclaimed { .. } => Ok(()),
        }
    }

    /// What was to move from a segment is where it was.
    fn stays(&mut self, slot: usize, spans: Spans) {
        let segment = self.log.segments.get_mut(slot);
        segment.moving = false;
        spans.iter().for_each(|(color, span)| segment.own.add(color, span));
    }

    /// The batch is on SSD, but for what was in the segments that are `left`.
    fn moved(&mut self, batch: Batch, left: &[usize]) {
        for moved in batch.records.iter() {
            if left.contains(&self.log.slot_of(moved.loc.entry())) {
                continue;
            }
            self.index.forget(moved.color, moved.number, moved.loc);
        }
        for (slot, spans) in batch.held {
            if left.contains(&slot) {
                self.stays(slot, spans);
                self.log.segments.get_mut(slot).stuck = true;
            } else {
                self.log.segments.get_mut(slot).moving = false;
            }
        }
        self.since.trims += 1;
        self.consider();
    }

    /// Reads on from `from`, as long as the area or the cache has the very next number that there is.
    fn read_here(
        &self,
        color: Color,
        from: SeqNum,
        upto: SeqNum,
        (max_records, max_bytes): (usize, usize),
        cache: Option<&Arc<Cache>>,
        into: &mut Vec<(SeqNum, Record)>,
    ) -> Result<Reading, ReadError> {
        let on_ssd = self.tiers.as_ref().and_then(|tiers| tiers.tier.highest(color));
        let (mut next, mut bytes, mut count) = (from, 0, 0);
        let mut here = self.index.range(color, from, upto).peekable();
        while count < max_records && (count == 0 || bytes < max_bytes) && next < upto {
            let first = here.peek().copied();
            let at_next = first.is_some_and(|(number, _)| number == next);
            let (number, record) = if !at_next && on_ssd.is_some_and(|highest| next <= highest) {
                match cache.and_then(|cache| cache.get(color, next)) {
                    Some(record) => (next, record),
                    None if count > 0 => break,
                    None => {
                        let highest = on_ssd.and_then(|highest| highest.plus(1)).unwrap_or(SeqNum::MAX);
                        let upto = first.map_or(upto, |(number, _)| number.min(upto)).min(highest);
                        let (Some(tiers), cache) = (&self.tiers, cache.cloned()) else { break };
                        return Ok(Reading::Later(tiers.read(cache, color, next, upto, max_records, max_bytes)));
                    }
                }
            } else {
                let Some((number, loc)) = here.next() else { break };
                (number, self.read_at(color, number, loc, cache)?)
            };
            bytes += record.payload().len();
            if count > 0 && bytes > max_bytes {
                break;
            }
            into.push((number, record));
            count += 1;
            match number.plus(1) {
                Some(after) => next = after,
                None => break,
            }
        }
        Ok(Reading::Done)
    }

    /// The last record from `from` on, up to and including `upto`.
    fn prev_here(
        &self,
        color: Color,
        from: SeqNum,
        upto: SeqNum,
        into: &mut Vec<(SeqNum, Record)>,
    ) -> Result<Reading, ReadError> {
        let here = self.index.prev(color, upto).filter(|(number, _)| *number >= from);
        let found = here
            .map(|(number, loc)| self.read_at(color, number, loc, self.cache.as_ref()).map(|record| (number, record)));
        let from = here.map_or(from, |(number, _)| after(number));
        if let Some(tiers) = self.tiers.as_ref().filter(|_| from <= upto)
            && tiers.tier.highest(color).is_some_and(|highest| highest >= from)
        {
            if let Some(record) = self.cache.as_ref().and_then(|cache| cache.get(color, upto)) {
                into.push((upto, record));
                return Ok(Reading::Done);
            }
            // What is here now is read now: should it move meanwhile, it is there twice.
            return Ok(Reading::Later(tiers.last(self.cache.clone(), color, from, upto, found)));
        }
        into.extend(found.transpose()?);
        Ok(Reading::Done)
    }

    #[inline]
    fn read_at(&self, color: Color, number: SeqNum, loc: Loc, cache: Option<&Arc<Cache>>) -> Result<Record, ReadError> {
        let cache = cache.filter(|_| self.cache_area);
        if let Some(record) = cache.and_then(|cache| cache.get(color, number)) {
            return Ok(record);
        }
        let what = || self.log.what.clone();
        let record = match self.load(color, loc) {
            Ok(Some(record)) => record,
            Ok(None) => {
                return Err(ReadError::Damaged { what: what(), color, number, end: after(number), at: loc.entry() });
            }
            Err(source) => return Err(ReadError::Io { what: what(), color, number, end: after(number), source }),
        };
        if let Some(cache) = cache {
            cache.put(color, number, &record);
        }
        Ok(record)
    }

    /// Segments that a checkpoint of so many bytes needs besides the current one, and the bytes of each of its parts.
    fn split_checkpoint(&self, bytes: usize) -> (usize, usize) {
        let piece = PART_BYTES.min(self.log.capacity() / 4) - ENTRY_HEADER - PART_META;
        let parts = bytes.div_ceil(piece).max(1);
        // A part is at most a quarter of a segment, so at least three whole ones fit, and the rest of one is wasted.
        (parts.div_ceil(3), piece)
    }

    /// The bytes of the area at `at`: all `len` of them, or as many as can be had cheaply, at least `least`.
    fn bytes(&self, at: u64, least: usize, len: usize) -> io::Result<Cow<'_, [u8]>> {
        if let Some(bytes) = self.log.device.slice(at, len) {
            return Ok(Cow::Borrowed(bytes));
        }
        let mut bytes = vec![0; least.max(len.min(READ_BYTES))];
        self.log.device.read(at, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    /// Reads one record. `Ok(None)`: it is damaged.
    fn load(&self, color: Color, loc: Loc) -> io::Result<Option<Record>> {
        let at = loc.entry();
        let slot = self.log.slot_of(at);
        let end = HEAD_BYTES + (slot as u64 + 1) * self.log.segment_bytes();
        let within = (end - at) as usize;
        let bytes = self.bytes(at, ENTRY_HEADER + STAGED_META, within)?;
        if let Cow::Borrowed(bytes) = bytes {
            // Where the record is follows from the header: without this its lines would be waited for after that one.
            prefetch(&bytes[..bytes.len().min(PREFETCH_BYTES)]);
        }
        // The entry's own checksum would have to go over the whole table of a batch. What an old entry in this place
        // could have left is told by the generation, damage by the record's checksum.
        let sound = Header::peek(&bytes)
            .filter(|header| header.kind.has_records() && header.generation == self.log.segments.get(slot).generation)
            .and_then(|_| StagedMeta::decode(bytes.get(ENTRY_HEADER..)?))
            .filter(|meta| meta.staged.color == color && loc.index() < meta.staged.records);
        let Some(meta) = sound else { return Ok(None) };
        let index = loc.index() as usize;
        let table = ENTRY_HEADER + meta.table_at();
        let records = ENTRY_HEADER + meta.records_at();
        if records > within {
            return Ok(None);
        }
        let fetch = |from: usize, len: usize| -> io::Result<Cow<'_, [u8]>> {
            match bytes.get(from..from + len) {
                Some(held) => Ok(Cow::Borrowed(held)),
                None => self.bytes(at + from as u64, len, len),
            }
        };
        let first_row = index.saturating_sub(1);
        let rows = fetch(table + codec::ROW * first_row, codec::ROW * (index + 1 - first_row))?;
        let from = if index == 0 { Some(0) } else { codec::row(&rows, 0).map(|(end, _)| end as usize) };
        let (Some(from), Some((to, crc))) = (from, codec::row(&rows, index - first_row)) else { return Ok(None) };
        let to = to as usize;
        if from > to || to > within - records {
            return Ok(None);
        }
        let encoded = match fetch(records + from, to - from)? {
            Cow::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Cow::Owned(bytes) => Bytes::from(bytes),
        };
        Ok(decode_record(encoded, crc))
    }

    fn load_staged(&self, token: Token, at: u64) -> io::Result<Option<Append>> {
        let slot = self.log.slot_of(at);
        let end = HEAD_BYTES + (slot as u64 + 1) * self.log.segment_bytes();
        let head = self.bytes(at, ENTRY_HEADER, ENTRY_HEADER)?;
        let header = Header::peek(&head).filter(|header| {
            header.kind == Kind::Staged
                && header.generation == self.log.segments.get(slot).generation
                && u64::from(header.body_len) <= end - at - ENTRY_HEADER as u64
        });
        let Some(header) = header else { return Ok(None) };
        let len = header.body_len as usize;
        let body = match self.bytes(at + ENTRY_HEADER as u64, len, len)? {
            Cow::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Cow::Owned(bytes) => Bytes::from(bytes),
        };
        Ok(codec::decode_append(body).filter(|append| append.token() == token))
    }

    /// Puts an append as an entry of this kind, as long as that leaves what is kept back. Returns the byte of the area that
    /// it begins at.
    #[inline]
    fn put_append(&mut self, kind: Kind, append: &Append) -> Result<u64, StoreError> {
        self.log.check()?;
        let len = ENTRY_HEADER + codec::staged_len(append);
        if let Err(error) = self.log.make_room(len, self.reserve()) {
            self.consider();
            return Err(error);
        }
        let entry = self.put_records(kind, append, len)?;
        self.log.grow_ahead(len, self.reserve());
        Ok(entry)
    }

    /// Puts an append of `len` bytes as an entry, for which there is room.
    #[inline]
    fn put_records(&mut self, kind: Kind, append: &Append, len: usize) -> Result<u64, StoreError> {
        let head = self.log.begin();
        codec::put_staged_head(head, append);
        match append.records() {
            [record] if record.tags().is_empty() => {
                codec::put_tags(head, record);
                // The record's first byte is behind what the checksum of the entry covers.
                let covered = self.log.begun() - 1;
                self.log.finish_with(kind, covered, len, &[record.payload()])
            }
            records => {
                let covered = self.log.begun();
                let mut tags = Vec::with_capacity(2 * records.len());
                let mut ends = Vec::with_capacity(records.len());
                for record in records {
                    codec::put_tags(&mut tags, record);
                    ends.push(tags.len());
                }
                let mut parts: Vec<&[u8]> = Vec::with_capacity(2 * ends.len());
                let mut from = 0;
                for (record, end) in records.iter().zip(ends) {
                    parts.push(&tags[from..end]);
                    parts.push(record.payload());
                    from = end;
                }
                self.log.finish_with(kind, covered, len, &parts)
            }
        }
    }
}

impl<D: Device> Store<D> {
    fn write_checkpoint(&mut self, upto: Lsn, state: &[u8]) -> Result<(), StoreError> {
        let mut trims: Vec<(Color, SeqNum)> = self.index.trims().collect();
        trims.sort_unstable();
        let lists = 8 * (self.log.segments.len() + self.staged.len()) + 16 * (trims.len() + self.taken_back.len());
        let most = CHECKPOINT_META + lists + state.len();
        let (segments, piece) = self.split_checkpoint(most);
        let first = ENTRY_HEADER + PART_META + piece.min(most);
        // One that fits behind what is there needs no other segment. Where the last but one went to entries, this is the
        // only checkpoint that there can be, and without it nothing would ever move and make room.
        let segments = if most <= piece && self.log.fits(first) { 0 } else { segments };
        if !self.log.want_free(segments + self.log.keep)? {
            // Until something changes the next one would meet the same.
            self.wanted = false;
            return Err(self.log.full());
        }
        self.log.make_room_in_reserve(first)?;
        let (head, name) = (self.log.head(), self.log.next());
        let here = |color, span: Span| self.index.any(color, span.low, span.high);
        let leaving: Vec<usize> = self.log.segments.removable(head, upto, here).collect();
        let gone: Vec<u32> = leaving.iter().map(|slot| self.log.segments.get(*slot).generation).collect();
        let mut live = self.log.segments.live();
        live.retain(|end| end.generation < name.generation && !gone.contains(&end.generation));
        let mut staged: Vec<Place> = self.staged.values().map(|staged| self.log.place_of(staged.entry)).collect();
        staged.sort_unstable();
        // Of segments that leave, nobody needs to know.
        let mut taken_back = self.taken_back.clone();
        taken_back.retain(|taken| self.log.segments.any_taken_back(taken.place, &leaving));
        let truncates = taken_back.clone();
        let mut bytes = Vec::with_capacity(CHECKPOINT_META + lists + state.len());
        // The state is the replica's and may be long, so it is not copied on the way.
        Checkpoint { upto, fence: self.fence, live, staged, trims, truncates, state: Bytes::new() }.put(&mut bytes);
        bytes.extend_from_slice(state);
        let parts = bytes.len().div_ceil(piece);
        for (part, piece) in bytes.chunks(piece).enumerate() {
            let meta = PartMeta { name, part: part as u32, parts: parts as u32 };
            self.put_entry(Kind::Part, PART_META + piece.len(), |body| {
                meta.put(body);
                body.extend_from_slice(piece);
            })?;
        }
        self.log.segments.leave(&leaving, self.log.next());
        self.taken_back = taken_back;
        self.checkpoint_bytes = bytes.len();
        self.committing.get_or_insert((upto, self.log.next()));
        self.since = Since::default();
        self.wanted = false;
        Ok(())
    }
}

impl<D: Device> LogStore for Store<D> {
    fn stage(&mut self, append: &Append) -> Result<(), StoreError> {
        let before = self.log.head();
        let entry = self.put_append(Kind::Staged, append)?;
        self.note_staged(append.token(), StagedAt { entry, color: append.color(), records: append.count() });
        if before != self.log.head() {
            self.since.segments += 1;
            self.consider();
        }
        Ok(())
    }

    fn append(&mut self, entry: &Entry) -> Result<(), StoreError> {
        self.put_entry(Kind::Entry, codec::entry_len(entry), |body| codec::put_entry(body, entry))?;
        let head = self.log.head();
        let segment = self.log.segments.get_mut(head);
        segment.lsn = segment.lsn.max(entry.lsn);
        if let Body::Assign(assigns) = &entry.body {
            for assign in assigns {
                self.assign(assign, head, entry.lsn);
            }
        }
        self.since.lsns += 1;
        if self.since.lsns.is_multiple_of(LOOK_AGAIN) {
            self.consider();
        }
        Ok(())
    }

    fn seal(&mut self, incarnation: Incarnation) -> Result<(), StoreError> {
        self.put_entry(Kind::Fence, codec::FENCE, |body| codec::put_fence(body, &incarnation))?;
        self.fence = Some(incarnation);
        Ok(())
    }

    fn copy(&mut self, color: Color, first: SeqNum, records: &[Record]) -> Result<(), StoreError> {
        self.put_copies(color, first, records)
    }

    fn repair(&mut self, color: Color, number: SeqNum, record: &Record) -> Result<bool, StoreError> {
        self.put_repaired(color, number, record)
    }

    fn truncate(&mut self, upto: Lsn, entries: &[Arc<Entry>]) -> Result<(), StoreError> {
        self.take_back(upto, entries)
    }

    fn checkpoint(&mut self, upto: Lsn, state: &[u8]) -> Result<(), StoreError> {
        self.log.check()?;
        // The last free segment is the next opening's, except for a checkpoint that gives others back: without it, an area
        // that is full to the brim could not make use of a trim.
        self.log.keep = usize::from(!self.would_free(upto));
        let result = self.write_checkpoint(upto, state);
        self.log.keep = 1;
        result
    }

    fn checkpoint_wanted(&self) -> bool {
        self.wanted
    }

    fn trim(&mut self, color: Color, upto: SeqNum) {
        if self.index.trim(color, upto) {
            self.since.trims += 1;
            if let Some(tiers) = &mut self.tiers {
                tiers.trim(color, upto, self.log.next());
            }
            self.consider();
        }
    }

    fn drop_staged(&mut self, tokens: &[Token]) {
        for token in tokens {
            if let Some(staged) = self.staged.remove(token) {
                let slot = self.log.slot_of(staged.entry);
                self.log.segments.get_mut(slot).staged -= 1;
                self.since.trims += 1;
            }
        }
        self.consider();
    }

    #[inline]
    fn fence(&mut self) -> Result<FenceId, StoreError> {
        self.log.fence()
    }

    fn background(&mut self, now: Time, commit: Lsn) -> Result<Option<Background>, StoreError> {
        if let Some(tiers) = &mut self.tiers
            && let Some(ended) = tiers.ended(now)
        {
            self.take_in(ended)?;
        }
        self.log.check()?;
        self.told = true;
        if commit > self.committed {
            self.committing.get_or_insert((commit, self.log.next()));
        }
        let durable = self.log.durable();
        if let Some((upto, _)) = self.committing.take_if(|(_, place)| *place <= durable) {
            self.committed = self.committed.max(upto);
            if !self.wanted && self.is_tight() {
                self.consider();
            }
        }
        let Some(tiers) = &mut self.tiers else { return Ok(None) };
        tiers.settle(durable);
        if tiers.busy() {
            return Ok(None);
        }
        if let Some(reclaim) = tiers.start_reclaim(now) {
            return Ok(Some(reclaim));
        }
        let may_move = tiers.may_move(now);
        if may_move && (self.above_mark() || self.is_tight()) { self.start_move() } else { Ok(None) }
    }

    fn background_at(&self) -> Option<Time> {
        self.tiers.as_ref().and_then(Tiers::at)
    }

    fn pressed(&self) -> bool {
        let moving = self.tiers.as_ref().is_some_and(Tiers::moving);
        self.is_tight() && (moving || self.wanted || self.log.segments.leaving() > 0)
    }

    #[inline]
    fn fenced(&mut self) -> Result<FenceId, StoreError> {
        self.log.fenced()
    }

    fn read(
        &self,
        color: Color,
        from: SeqNum,
        upto: SeqNum,
        max_records: usize,
        max_bytes: usize,
        into: &mut Vec<(SeqNum, Record)>,
    ) -> Result<Reading, ReadError> {
        let trimmed = self.index.trim_point(color).filter(|trim| *trim >= from);
        let from = trimmed.map_or(from, |trim| trim.plus(1).unwrap_or(SeqNum::MAX));
        self.read_here(color, from, upto, (max_records, max_bytes), self.cache.as_ref(), into)
    }

    fn scrub(
        &self,
        color: Color,
        from: SeqNum,
        max_records: usize,
        max_bytes: usize,
        into: &mut Vec<(SeqNum, Record)>,
    ) -> Result<Reading, ReadError> {
        let from = self.index.trim_point(color).map_or(from, |trim| from.max(after(trim)));
        self.read_here(color, from, SeqNum::MAX, (max_records, max_bytes), None, into)
    }

    fn prev(&self, color: Color, upto: SeqNum, into: &mut Vec<(SeqNum, Record)>) -> Result<Reading, ReadError> {
        let from = self.index.trim_point(color).map_or(SeqNum::MIN, after);
        self.prev_here(color, from, upto, into)
    }

    fn read_staged(&self, token: Token) -> Result<Option<Append>, ReadError> {
        let Some(staged) = self.staged.get(&token) else { return Ok(None) };
        // It has no number yet; the place says which it is.
        let (color, number, end, at) = (staged.color, SeqNum::MIN, SeqNum::MIN, staged.entry);
        match self.load_staged(token, at) {
            Ok(Some(append)) => Ok(Some(append)),
            Ok(None) => Err(ReadError::Damaged { what: self.log.what.clone(), color, number, end, at }),
            Err(source) => Err(ReadError::Io { what: self.log.what.clone(), color, number, end, source }),
        }
    }

    fn usage(&self) -> Usage {
        let segments = self.log.segments.used() as u64;
        let staged = self.staged.capacity() * size_of::<(Token, StagedAt)>();
        let ssd = self.tiers.as_ref().map(|tiers| tiers.tier.usage()).unwrap_or_default();
        Usage {
            device: self.log.device.describe(),
            used_bytes: segments * self.log.segment_bytes(),
            area_bytes: self.log.device.len(),
            limit_bytes: HEAD_BYTES + self.log.max_segments() as u64 * self.log.segment_bytes(),
            segments,
            records: self.index.records(),
            staged_tokens: self.staged.len() as u64,
            index_bytes: self.index.bytes() + staged as u64 + ssd.index_bytes,
            cache_bytes: self.cache.as_ref().map_or(0, |cache| cache.bytes()),
            ssd_files: ssd.files,
            ssd_bytes: ssd.bytes,
            ssd_records: ssd.records,
        }
    }
}

const _: () = assert!(padded(ONE_ASSIGN_ENTRY) == ONE_ASSIGN_ENTRY);
