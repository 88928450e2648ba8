//! Finding the log in an area: which segments belong to it, and where it ends.
//!
//! Every segment is scanned for entries that are good: length, generation, and checksums hold. The log is the chain that
//! the first entries of the segments form, read back from the newest. An entry that is not good ends the log there,
//! unless some good entry, wherever it stands, says that the place was durable: then bytes were lost, and that is
//! [`Problem::Corrupt`]; but where only records of an entry are damaged, it is known what the entry is, and so they are
//! left to be repaired: reading says that they are damaged. What stands behind the end is no part of the log, now or ever: the next segment's first entry
//! says so.
//!
//! The newest checkpoint in the log that is whole says which segments before its own still belong to it. That, and the
//! `Truncate`s in the log, say which shard-log entries are no more: everyone who reads the log passes them by.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use flexlog_protocol::checksum::crc32c;
use flexlog_protocol::media::Device;
use flexlog_protocol::{Lsn, StoreId};

use crate::codec::{self, CONTINUE, Checkpoint, Continue, PART_META, PartMeta, StagedMeta, TakenBack, Truncate};
use crate::layout::{ENTRY_HEADER, HEAD_BYTES, Header, Kind, Place, entry_crc};
use crate::superblock::Superblock;

/// The most threads that scan an area, and how large one is that is worth more than one.
const MOST_THREADS: usize = 4;
const PARALLEL_BYTES: u64 = 8 << 20;

/// Why there is no log to be found.
#[derive(Debug)]
pub(crate) enum Problem {
    /// Bytes that were durable are not as they were written; where in the area.
    Corrupt(u64),
    /// The medium cannot be read.
    Io(io::Error),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The log that was found.
#[derive(Debug)]
pub(crate) struct Found {
    /// Slot of each segment of the log, and where its entries end, in order.
    pub(crate) chain: Vec<(usize, Place)>,
    /// The newest whole checkpoint, and the place of its first part.
    pub(crate) checkpoint: Option<(Place, Checkpoint)>,
    /// Which entries are no more, in the order of the log.
    pub(crate) taken_back: Vec<TakenBack>,
    /// Whether the next entry can go right behind the last: nothing there can be mistaken for one.
    pub(crate) clean: bool,
    /// Entries of the log with damaged records, by their bytes of the area.
    pub(crate) spoiled: Vec<u64>,
    /// Below this all was durable, as far as anything says.
    pub(crate) fenced: Place,
    /// The highest generation that was seen.
    pub(crate) generation: u32,
}

impl Found {
    /// Whether the shard-log entry at `place` was taken back.
    pub(crate) fn is_taken_back(&self, place: Place, lsn: Lsn) -> bool {
        #[cfg(test)]
        if crate::planted::is(crate::planted::Bug::TakenBackComesBack) {
            return false;
        }
        self.taken_back.iter().any(|taken| taken.covers(place, lsn))
    }

    /// Whether it was, and the newest checkpoint does not know it: what the entry numbered is staged, though the
    /// checkpoint's list lacks it.
    pub(crate) fn is_taken_back_since(&self, place: Place, lsn: Lsn) -> bool {
        let name = self.checkpoint.as_ref().map_or(Place::default(), |(name, _)| *name);
        // Places of the shard log are used again, so a later one may cover it too: the first is the one that took it back.
        self.taken_back.iter().find(|taken| taken.covers(place, lsn)).is_some_and(|taken| taken.place > name)
    }
}

/// A part of a checkpoint.
#[derive(Clone, Copy, Debug)]
struct Part {
    at: Place,
    end: Place,
    meta: PartMeta,
}

/// What one segment holds.
#[derive(Debug)]
struct Scan {
    slot: usize,
    before: Place,
    /// The end of the entries whose heads are good without a gap.
    good: u32,
    /// Where those of them are that have damaged records.
    spoiled: Vec<u32>,
    /// Behind that is nothing that was, or could be taken for, an entry of this generation.
    clean: bool,
    parts: Vec<Part>,
    truncates: Vec<TakenBack>,
}

impl Scan {
    /// The end of the entries that are good without a gap. An entry with damaged records that was durable is one of them:
    /// what it is is known, and what is damaged is to be repaired.
    fn good_below(&self, generation: u32, fenced: Place) -> u32 {
        let torn = self.spoiled.iter().find(|at| Place::new(generation, **at) >= fenced);
        torn.copied().unwrap_or(self.good)
    }
}

/// What segments hold, by generation.
type Scans = BTreeMap<u32, Scan>;

/// The area as recovery reads it.
pub(crate) struct Reader<'a, D> {
    device: &'a D,
    seed: u32,
    segment_bytes: u64,
    slots: usize,
}

impl<'a, D: Device> Reader<'a, D> {
    pub(crate) fn new(device: &'a D, superblock: &Superblock) -> Self {
        Self::over(device, superblock.store, superblock.segment_bytes)
    }

    /// The same by what it needs of the superblock.
    pub(crate) fn over(device: &'a D, store: StoreId, segment_bytes: u64) -> Self {
        let slots = (device.len().saturating_sub(HEAD_BYTES) / segment_bytes) as usize;
        Self { device, seed: crate::layout::seed(store), segment_bytes, slots }
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// The byte of the area.
    pub(crate) fn byte(&self, slot: usize, offset: u32) -> u64 {
        HEAD_BYTES + slot as u64 * self.segment_bytes + u64::from(offset)
    }

    /// The segment that a byte of the area is in.
    pub(crate) fn slot_of(&self, at: u64) -> usize {
        ((at - HEAD_BYTES) / self.segment_bytes) as usize
    }

    /// The bytes of a segment.
    pub(crate) fn segment(&self, slot: usize) -> io::Result<Cow<'a, [u8]>> {
        let (at, len) = (self.byte(slot, 0), self.segment_bytes as usize);
        if let Some(bytes) = self.device.slice(at, len) {
            return Ok(Cow::Borrowed(bytes));
        }
        let mut bytes = vec![0; len];
        self.device.read(at, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    fn scan(&self, slot: usize, facts: &mut Facts) -> io::Result<Option<(u32, Scan)>> {
        self.device.will_read(self.byte(slot, 0), self.segment_bytes);
        let bytes = self.segment(slot)?;
        let Some((generation, first)) = self.decode_first(&bytes, slot) else {
            facts.look_behind(&bytes, 0, None, self, slot);
            return Ok(None);
        };
        let mut scan = Scan {
            slot,
            before: first.before,
            good: 0,
            spoiled: Vec::new(),
            clean: false,
            parts: Vec::new(),
            truncates: Vec::new(),
        };
        while let Some((header, body, whole)) = head_entry(&bytes, scan.good as usize, Some(generation), self.seed) {
            facts.note(&header);
            if !whole {
                scan.spoiled.push(scan.good);
            }
            let end = scan.good + header.stride() as u32;
            let at = Place::new(generation, scan.good);
            match header.kind {
                Kind::Part => {
                    let part = |meta| Part { at, end: Place::new(generation, end), meta };
                    scan.parts.extend(PartMeta::decode(body).map(part));
                }
                Kind::Truncate => {
                    let taken_back = |truncate: Truncate| TakenBack { place: at, upto: truncate.upto };
                    scan.truncates.extend(Truncate::decode(body).map(taken_back));
                }
                _ => {}
            }
            scan.good = end;
        }
        scan.clean = facts.look_behind(&bytes, scan.good as usize, Some(generation), self, slot);
        Ok(Some((generation, scan)))
    }

    /// Scans all segments, several at once where the machine can: nothing that is said of one depends on another.
    fn scan_all(&self) -> io::Result<(Scans, Facts)> {
        let next = AtomicUsize::new(0);
        let work = || {
            let (mut scans, mut facts) = (Scans::new(), Facts::default());
            loop {
                let slot = next.fetch_add(1, Ordering::Relaxed);
                if slot >= self.slots {
                    return Ok((scans, facts));
                }
                scans.extend(self.scan(slot, &mut facts)?);
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        let threads = if self.slots as u64 * self.segment_bytes < PARALLEL_BYTES { 1 } else { threads };
        let results: Vec<io::Result<(Scans, Facts)>> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut results = vec![work()];
            let panicked = |_| Err(io::Error::other("a thread that scanned the area ended early"));
            results.extend(others.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)));
            results
        });
        let (mut scans, mut facts) = (Scans::new(), Facts::default());
        for result in results {
            let (some, more) = result?;
            scans.extend(some);
            facts.join(more);
        }
        Ok((scans, facts))
    }

    /// Finds the log.
    pub(crate) fn find(&self) -> Result<Found, Problem> {
        let (scans, facts) = self.scan_all()?;
        self.search(scans, facts)
    }

    /// The same for an area that another process writes meanwhile: all that was there when this began, and nothing that
    /// came later. The area must be read as it is, without a cache of its own.
    pub(crate) fn find_meanwhile(&self) -> Result<Found, Problem> {
        let mut newest: Option<(u32, usize)> = None;
        for slot in 0..self.slots {
            newest = newest.max(self.first_entry(slot)?.map(|(generation, _)| (generation, slot)));
        }
        let (mut facts, mut scans) = (Facts::default(), BTreeMap::new());
        let Some((newest, head)) = newest else { return self.search(scans, facts) };
        let mut end = Place::new(newest, 0);
        if let Some((generation, scan)) = self.scan(head, &mut facts)? {
            end = Place::new(generation, scan.good);
            scans.insert(generation, scan);
        }
        // Every other segment of the log was written to its end before the newest was begun.
        for slot in (0..self.slots).filter(|slot| *slot != head) {
            let mut theirs = Facts::default();
            if let Some((generation, scan)) = self.scan(slot, &mut theirs)?
                && generation < end.generation
            {
                scans.insert(generation, scan);
            }
            facts.fenced = facts.fenced.max(theirs.fenced.min(end));
            facts.headless.extend(theirs.headless.into_iter().filter(|(generation, _)| *generation < end.generation));
        }
        facts.fenced = facts.fenced.min(end);
        self.search(scans, facts)
    }

    /// What can still be told of a log that [`Reader::find`] refuses: every segment with a good first entry, as far as
    /// anything says that it was written.
    pub(crate) fn salvage(&self) -> io::Result<Found> {
        let (scans, facts) = self.scan_all()?;
        let mut ends: BTreeMap<u32, Place> =
            scans.iter().map(|(generation, scan)| (*generation, Place::new(*generation, scan.good))).collect();
        // Those behind it, and what was durable, say more where entries are damaged.
        for told in scans.values().map(|scan| scan.before).chain([facts.fenced]) {
            if let Some(end) = ends.get_mut(&told.generation) {
                *end = (*end).max(told);
            }
        }
        let search = Search { reader: self, scans, facts };
        let chain: Vec<Place> = ends.values().copied().collect();
        let checkpoint = search.checkpoint(&chain).unwrap_or_default();
        let in_log = |end: &Place| {
            checkpoint.as_ref().is_none_or(|(name, checkpoint)| {
                end.generation >= name.generation
                    || checkpoint.live.iter().any(|live| live.generation == end.generation)
            })
        };
        let slot = |end: Place| Some((search.scans.get(&end.generation)?.slot, end));
        let chain: Vec<_> = chain.into_iter().filter(in_log).filter_map(slot).collect();
        let taken_back = search.taken_back(&chain, checkpoint.as_ref());
        let spoiled = search.spoiled(&chain);
        let Facts { fenced, generation, .. } = search.facts;
        Ok(Found { chain, checkpoint, taken_back, clean: false, spoiled, fenced, generation })
    }

    /// The first entry of a segment, if it is one: the segment's generation, and what it says.
    pub(crate) fn first_entry(&self, slot: usize) -> io::Result<Option<(u32, Continue)>> {
        let mut bytes = [0; ENTRY_HEADER + CONTINUE];
        self.device.read(self.byte(slot, 0), &mut bytes)?;
        Ok(self.decode_first(&bytes, slot))
    }

    fn decode_first(&self, bytes: &[u8], slot: usize) -> Option<(u32, Continue)> {
        good_entry(bytes, 0, None, self.seed)
            .filter(|(header, _)| header.kind == Kind::Continue)
            .and_then(|(header, body)| Some((header.generation, Continue::decode(body)?)))
            .filter(|(_, first)| first.slot as usize == slot)
    }

    /// The entry at `offset` of a segment's bytes, if all of it but for records is as it was written; and whether those
    /// are, too.
    pub(crate) fn head<'b>(&self, bytes: &'b [u8], offset: usize, generation: u32) -> Option<(Header, &'b [u8], bool)> {
        head_entry(bytes, offset, Some(generation), self.seed)
    }

    fn search(&self, scans: BTreeMap<u32, Scan>, facts: Facts) -> Result<Found, Problem> {
        let search = Search { reader: self, scans, facts };
        // What is at this place or behind it is no part of the log.
        let mut upper = Place::new(u32::MAX, u32::MAX);
        loop {
            match search.below(upper)? {
                Attempt::Found(found) => return Ok(*found),
                // Each attempt is cut off before the last one's bad place, so this ends.
                Attempt::Bad(place) if place >= search.facts.fenced => upper = place,
                Attempt::Bad(place) => return Err(Problem::Corrupt(search.byte_of(place))),
            }
        }
    }

    /// Calls `each` with every entry of a segment up to `end`.
    pub(crate) fn replay(
        &self,
        slot: usize,
        end: Place,
        mut each: impl FnMut(Place, u64, &Header, &[u8]) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let bytes = self.segment(slot)?;
        let mut offset = 0;
        while offset < end.offset {
            let at = self.byte(slot, offset);
            // `find` read the same bytes, so what is not there now was lost since.
            let header = Header::peek(&bytes[offset as usize..]).ok_or(Problem::Corrupt(at))?;
            let from = offset as usize + ENTRY_HEADER;
            let body = bytes.get(from..from + header.body_len as usize).ok_or(Problem::Corrupt(at))?;
            each(Place::new(end.generation, offset), at, &header, body)?;
            offset += header.stride() as u32;
        }
        Ok(())
    }
}

/// What entries say, wherever they stand: it was true when it was written, and stays so.
#[derive(Debug, Default)]
struct Facts {
    /// Below this all was durable.
    fenced: Place,
    /// The highest generation that was seen.
    generation: u32,
    /// Where generations were seen whose segment has no good first entry.
    headless: BTreeMap<u32, u64>,
}

impl Facts {
    fn join(&mut self, other: Self) {
        self.fenced = self.fenced.max(other.fenced);
        self.generation = self.generation.max(other.generation);
        self.headless.extend(other.headless);
    }

    fn note(&mut self, header: &Header) {
        self.fenced = self.fenced.max(header.fenced);
        self.generation = self.generation.max(header.generation);
    }

    /// Looks for entries at any multiple of 8 from `from` on. Returns whether there is none, not even a damaged one.
    fn look_behind<D: Device>(
        &mut self,
        bytes: &[u8],
        from: usize,
        generation: Option<u32>,
        reader: &Reader<'_, D>,
        slot: usize,
    ) -> bool {
        let mut clean = true;
        let mut at = from;
        while at + ENTRY_HEADER <= bytes.len() {
            let word = [8, 9, 10, 11].map(|nth| bytes[at + nth]);
            // Whatever became of an entry's first word: its second has what the checksum is, and a later entry in the
            // same place may give the first one back.
            clean &= generation.is_none_or(|own| own != u32::from_le_bytes(word));
            if bytes[at] == 0 {
                at += 8;
                continue;
            }
            let header = Header::peek(&bytes[at..])
                .filter(|header| header.generation != 0 && generation.is_none_or(|own| own == header.generation));
            if let Some(header) = header {
                clean = false;
                if good_head(bytes, at, &header, reader.seed).is_some() {
                    self.note(&header);
                    if generation.is_none() {
                        self.headless.entry(header.generation).or_insert(reader.byte(slot, 0));
                    }
                }
            }
            at += 8;
        }
        clean
    }
}

enum Attempt {
    Found(Box<Found>),
    Bad(Place),
}

struct Search<'a, D> {
    reader: &'a Reader<'a, D>,
    scans: BTreeMap<u32, Scan>,
    facts: Facts,
}

impl<D: Device> Search<'_, D> {
    fn byte_of(&self, place: Place) -> u64 {
        let scanned = self.scans.get(&place.generation).map(|scan| self.reader.byte(scan.slot, place.offset));
        let headless = || self.facts.headless.get(&place.generation).copied();
        scanned.or_else(headless).unwrap_or(HEAD_BYTES)
    }

    /// The log, if what is at `upper` or behind it does not belong to it.
    fn below(&self, upper: Place) -> Result<Attempt, Problem> {
        let head = self.scans.iter().rev().find(|(generation, _)| Place::new(**generation, 0) < upper);
        let Some((&head, scan)) = head else {
            let start = Place::default();
            if self.facts.fenced > start {
                return Ok(Attempt::Bad(start));
            }
            return Ok(Attempt::Found(Box::new(Found {
                chain: Vec::new(),
                checkpoint: None,
                taken_back: Vec::new(),
                clean: false,
                spoiled: Vec::new(),
                fenced: start,
                generation: self.facts.generation,
            })));
        };
        // Records that are damaged behind what was durable were not written to the end: with those the log ends.
        let mut end = Place::new(head, scan.good_below(head, self.facts.fenced));
        let cut = end >= upper || end.offset < scan.good;
        end = end.min(upper);
        if self.facts.fenced > end {
            return Ok(Attempt::Bad(end));
        }
        // From the newest back, as far as it goes.
        let mut chain = vec![end];
        let mut before = scan.before;
        while let Some(scan) = self.scans.get(&before.generation) {
            if chain.last().is_some_and(|last| last.generation <= before.generation) {
                break;
            }
            chain.push(before);
            before = scan.before;
        }
        chain.reverse();
        let missing = (before.generation != 0).then_some(Place::new(before.generation, 0));
        let checkpoint = self.checkpoint(&chain)?;
        let chain = match &checkpoint {
            Some((place, checkpoint)) => {
                let own = chain.iter().copied().filter(|end| end.generation >= place.generation);
                checkpoint.live.iter().copied().filter(|end| end.generation < place.generation).chain(own).collect()
            }
            None => match missing {
                Some(missing) => {
                    // Where damage hides the checkpoint, the damage is what people should look at.
                    let bad = chain.iter().find_map(|end| self.bad_before(*end)).filter(|bad| *bad < self.facts.fenced);
                    return Ok(Attempt::Bad(bad.filter(|_| missing < self.facts.fenced).unwrap_or(missing)));
                }
                None => chain,
            },
        };
        let mut slots = Vec::with_capacity(chain.len());
        for end in chain {
            match (self.bad_before(end), self.scans.get(&end.generation)) {
                (None, Some(scan)) => slots.push((scan.slot, end)),
                (bad, _) => return Ok(Attempt::Bad(bad.unwrap_or(end))),
            }
        }
        let clean = scan.clean && !cut;
        let taken_back = self.taken_back(&slots, checkpoint.as_ref());
        let spoiled = self.spoiled(&slots);
        let Facts { fenced, generation, .. } = self.facts;
        let chain = slots;
        Ok(Attempt::Found(Box::new(Found { chain, checkpoint, taken_back, clean, spoiled, fenced, generation })))
    }

    /// The entries before the ends of their segments that have damaged records.
    fn spoiled(&self, chain: &[(usize, Place)]) -> Vec<u64> {
        let of = |(slot, end): &(usize, Place)| {
            let (slot, end) = (*slot, *end);
            let scan = self.scans.get(&end.generation).into_iter();
            scan.flat_map(|scan| &scan.spoiled).filter(move |at| **at < end.offset).map(move |at| (slot, *at))
        };
        chain.iter().flat_map(of).map(|(slot, at)| self.reader.byte(slot, at)).collect()
    }

    /// What the log says to be taken back, in its segments or in its checkpoint.
    fn taken_back(&self, chain: &[(usize, Place)], checkpoint: Option<&(Place, Checkpoint)>) -> Vec<TakenBack> {
        let here = chain.iter().filter_map(|(_, end)| Some((end, self.scans.get(&end.generation)?)));
        let here = here.flat_map(|(end, scan)| scan.truncates.iter().filter(move |taken| taken.place < *end));
        let told = checkpoint.into_iter().flat_map(|(_, checkpoint)| &checkpoint.truncates);
        let mut all: Vec<TakenBack> = here.chain(told).copied().collect();
        all.sort_unstable_by_key(|taken| taken.place);
        all.dedup();
        all
    }

    /// The first entry of a segment that is not good, before the segment's end.
    fn bad_before(&self, end: Place) -> Option<Place> {
        let good = self.scans.get(&end.generation).map_or(0, |scan| scan.good_below(end.generation, self.facts.fenced));
        (good < end.offset).then_some(Place::new(end.generation, good))
    }

    /// The newest whole checkpoint in the chain.
    fn checkpoint(&self, chain: &[Place]) -> Result<Option<(Place, Checkpoint)>, Problem> {
        let mut parts: Vec<&Part> = Vec::new();
        for end in chain {
            let scan = self.scans.get(&end.generation);
            parts.extend(scan.into_iter().flat_map(|scan| &scan.parts).filter(|part| part.end <= *end));
        }
        // The last part of a checkpoint that is there with all the others right before it.
        let whole = (0..parts.len()).rev().find_map(|last| {
            let count = parts[last].meta.parts as usize;
            let run = (last + 1).checked_sub(count).and_then(|first| parts.get(first..=last))?;
            let name = run[0].at;
            let in_order =
                |(i, part): (usize, &&Part)| part.meta == PartMeta { name, part: i as u32, parts: count as u32 };
            run.iter().enumerate().all(in_order).then_some(run)
        });
        let Some(run) = whole else { return Ok(None) };
        let mut bytes = Vec::new();
        for part in run {
            let Some(scan) = self.scans.get(&part.at.generation) else { continue };
            let segment = self.reader.segment(scan.slot)?;
            let at = part.at.offset as usize;
            let header = Header::peek(&segment[at..]).ok_or_else(|| Problem::Corrupt(self.byte_of(part.at)))?;
            let body = segment.get(at + ENTRY_HEADER + PART_META..at + ENTRY_HEADER + header.body_len as usize);
            bytes.extend_from_slice(body.ok_or_else(|| Problem::Corrupt(self.byte_of(part.at)))?);
        }
        let name = run[0].at;
        let checkpoint = Checkpoint::decode(Bytes::from(bytes));
        Ok(Some((name, checkpoint.ok_or_else(|| Problem::Corrupt(self.byte_of(name)))?)))
    }
}

/// The header and body of the entry at `at`, if the part of it that its checksum covers is as it was written.
fn good_head<'a>(bytes: &'a [u8], at: usize, header: &Header, seed: u32) -> Option<(&'a [u8], Option<StagedMeta>)> {
    let entry = bytes.get(at..at.checked_add(ENTRY_HEADER)?.checked_add(header.body_len as usize)?)?;
    let body = &entry[ENTRY_HEADER..];
    let (covered, meta) = if header.kind.has_records() {
        let meta = StagedMeta::decode(body)?;
        (ENTRY_HEADER + meta.records_at(), Some(meta))
    } else {
        (entry.len(), None)
    };
    (covered <= entry.len() && entry_crc(entry, covered, seed) == header.crc).then_some((body, meta))
}

/// The entry at `at`, if all of it is as it was written.
pub(crate) fn good_entry(bytes: &[u8], at: usize, generation: Option<u32>, seed: u32) -> Option<(Header, &[u8])> {
    head_entry(bytes, at, generation, seed).filter(|(.., whole)| *whole).map(|(header, body, _)| (header, body))
}

/// The entry at `at`, if its header is as it was written, and its body but for records; and whether the records are, too.
fn head_entry(bytes: &[u8], at: usize, generation: Option<u32>, seed: u32) -> Option<(Header, &[u8], bool)> {
    let header = Header::peek(bytes.get(at..)?)?;
    if header.generation == 0 || generation.is_some_and(|own| own != header.generation) {
        return None;
    }
    let (body, meta) = good_head(bytes, at, &header, seed)?;
    let mut whole = true;
    if let Some(meta) = meta {
        let (table, records) = body[meta.table_at()..].split_at(meta.records_at() - meta.table_at());
        let mut from = 0;
        for index in 0..meta.staged.records as usize {
            let (end, crc) = codec::row(table, index)?;
            let record = records.get(from..end as usize)?;
            whole &= crc32c(record) == crc;
            from = end as usize;
        }
        if from != records.len() {
            return None;
        }
    }
    Some((header, body, whole))
}
