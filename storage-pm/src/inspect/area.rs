//! The area: its superblocks, its segments, and what the entries of its log say.

use std::collections::BTreeMap;
use std::io;

use flexlog_protocol::media::Device;
use flexlog_protocol::{Assign, Body, Color, Entry, Incarnation, Lsn, SeqNum, Token};
use rustc_hash::{FxHashMap, FxHashSet};

use super::numbers::{Run, RunSet, above};
use super::report::{
    Checkpoint, ColorReport, EntryLine, Identity, KINDS, LogEnd, Report, SegmentReport, SegmentState, SuperblockCopy,
};
use super::ssd::Tier;
use crate::codec::{self, StagedMeta};
use crate::layout::{ENTRY_HEADER, HEAD_BYTES, Header, Kind, Place};
use crate::open::{MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, find_superblock};
use crate::recover::{Found, Problem, Reader};
use crate::superblock::{self, Superblock};

/// Reads the superblock; `None`, and the report says why: there is nothing more to be read.
pub(super) fn superblocks<D: Device>(device: &D, report: &mut Report) -> Option<Superblock> {
    let mut copies = [None; 2];
    for (nth, copy) in copies.iter_mut().enumerate() {
        let offset = nth as u64 * superblock::STRIDE;
        let mut bytes = [0; superblock::BYTES];
        if device.len() >= offset + bytes.len() as u64 {
            match device.read(offset, &mut bytes) {
                Ok(()) => *copy = Superblock::decode(&bytes),
                Err(error) => report.bad(offset, error.to_string()),
            }
        }
        let sequence = copy.map_or(0, |copy| copy.sequence);
        report.superblocks[nth] = SuperblockCopy { offset, good: copy.is_some(), counts: false, sequence };
    }
    let found = match find_superblock(device) {
        Ok(superblock::Found::Superblock(found)) => found,
        Ok(superblock::Found::Nothing) => {
            let area = report.area.clone();
            report.note(area, Some(0), "nothing was ever stored here");
            return None;
        }
        Ok(superblock::Found::Foreign) => {
            report.bad(0, "this is not a FlexLog store");
            return None;
        }
        Ok(superblock::Found::Version(found)) => {
            let known = superblock::VERSION;
            report.bad(
                8,
                format!(
                    "it has format version {found}, this program knows version {known}: use the program that wrote it"
                ),
            );
            return None;
        }
        Ok(superblock::Found::Damaged) => {
            report.bad(0, "neither copy of the superblock is good");
            return None;
        }
        Err(error) => {
            report.bad(0, error.to_string());
            return None;
        }
    };
    for (nth, copy) in copies.iter().enumerate() {
        report.superblocks[nth].counts = *copy == Some(found);
        if copy.is_none() {
            let offset = report.superblocks[nth].offset;
            report.bad(offset, "this copy of the superblock is not good; the other one counts, and the next start writes this one again");
        }
    }
    report.identity = Some(Identity::from(&found));
    let segment = found.segment_bytes;
    if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&segment) || !segment.is_multiple_of(4096) {
        report.bad(found.offset() + 88, format!("a segment of {segment} bytes is not possible"));
        return None;
    }
    Some(found)
}

/// An append that waits for its numbers.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    place: Place,
    at: u64,
    records: u32,
    slot: usize,
}

/// What the log says.
#[derive(Debug, Default)]
pub(super) struct Log {
    waiting: FxHashMap<Token, Waiting>,
    /// Numbers with a record in the area that did not move.
    here: RunSet,
    /// Numbers with a record in the area that was copied there and did not move.
    copied: RunSet,
    /// Those of them that take the place of damaged ones, and are whole.
    repaired: RunSet,
    /// Numbers with a record in the area that was copied, and another copy of it there.
    twice: RunSet,
    /// Numbers with a record in the area that the manifest says has moved.
    moved: RunSet,
    /// Numbers that were given to appends that are not in the area.
    absent: RunSet,
    trims: BTreeMap<Color, SeqNum>,
    fence: Option<Incarnation>,
    pub(super) last: Lsn,
    pub(super) end: Place,
    /// Which records of an entry are damaged, by the entry's byte of the area, as long as their numbers are not known.
    spoiled: FxHashMap<u64, Vec<u32>>,
    /// Records that are damaged: number, and byte of their entry.
    bad: Vec<(Color, SeqNum, u64)>,
    /// Some of the area cannot be read as it was written, so less is there than should be.
    damaged: bool,
    /// What got its numbers from entries that were taken back since the checkpoint.
    again: FxHashSet<Token>,
}

/// Reads the log.
pub(super) fn log<D: Device>(device: &D, superblock: &Superblock, tier: &Tier, live: bool, report: &mut Report) -> Log {
    let reader = Reader::new(device, superblock);
    let found = if live { reader.find_meanwhile() } else { reader.find() };
    let (found, refused) = match found {
        Ok(found) => (found, None),
        Err(problem) => match reader.salvage() {
            Ok(found) => (found, Some(problem)),
            Err(error) => {
                report.bad(HEAD_BYTES, error.to_string());
                return Log { damaged: true, ..Log::default() };
            }
        },
    };
    if found.generation >= superblock.generation_limit {
        report.bad(superblock.offset() + 96, "the log is newer than this copy of the superblock");
    }
    let mut walk = Walk { reader: &reader, report, log: Log::default(), found: &found, tier, last: None };
    walk.log.damaged = refused.is_some();
    walk.segments();
    let mut log = walk.finish();
    match refused {
        Some(Problem::Corrupt(offset)) if report.findings.iter().all(|finding| finding.offset != Some(offset)) => {
            report.bad(offset, "what was durable here is not as it was written");
        }
        Some(Problem::Io(error)) => report.bad(HEAD_BYTES, error.to_string()),
        Some(Problem::Corrupt(_)) | None => {}
    }
    if refused_tail(&found, live) {
        let (file, at) = (report.area.clone(), report.log.offset);
        report.note(
            file,
            Some(at),
            "the log ends here; what stands behind it was written and never durable, or stands there from before",
        );
    }
    for (color, run) in log.here.sort() {
        report.bad(run.at, format!("the number {color}/{} names two records", run.first));
    }
    log.moved.sort();
    log.repaired.sort();
    log.absent.sort();
    // What was copied twice is there twice.
    for (color, run) in log.copied.sort() {
        log.twice.add(color, run);
    }
    for (color, run) in log.copied.shared(&log.here) {
        log.twice.add(color, run);
    }
    log
}

fn refused_tail(found: &Found, live: bool) -> bool {
    !live && !found.clean && !found.chain.is_empty()
}

struct Walk<'a, D> {
    reader: &'a Reader<'a, D>,
    report: &'a mut Report,
    log: Log,
    found: &'a Found,
    tier: &'a Tier,
    /// The place of the last entry, if nothing is missing behind it.
    last: Option<Lsn>,
}

impl<D: Device> Walk<'_, D> {
    fn segments(&mut self) {
        for slot in 0..self.reader.slots() {
            let first = self.reader.first_entry(slot);
            let generation = first.as_ref().ok().and_then(|first| first.as_ref()).map(|(generation, _)| *generation);
            let state = match first {
                Err(error) => {
                    self.report.bad(self.reader.byte(slot, 0), error.to_string());
                    SegmentState::Unknown
                }
                Ok(None) if self.log.damaged => SegmentState::Unknown,
                Ok(_) => SegmentState::Free,
            };
            let offset = self.reader.byte(slot, 0);
            self.report.segments.push(SegmentReport { slot, offset, state, generation, ..SegmentReport::default() });
        }
        self.report.chain.clone_from(&self.found.chain);
        self.report.taken_back.clone_from(&self.found.taken_back);
        if let Some((name, checkpoint)) = &self.found.checkpoint {
            self.log.fence = checkpoint.fence;
            self.log.last = checkpoint.upto;
            self.log.trims = checkpoint.trims.iter().copied().collect();
            let slot =
                self.found.chain.iter().find(|(_, end)| end.generation == name.generation).map(|(slot, _)| *slot);
            self.report.checkpoint = Some(Checkpoint {
                offset: slot.map_or(0, |slot| self.reader.byte(slot, name.offset)),
                upto: checkpoint.upto,
                state_bytes: checkpoint.state.len() as u64,
                staged: checkpoint.staged.len(),
                trims: checkpoint.trims.len(),
                live: checkpoint.live.iter().map(|place| place.generation).collect(),
            });
        }
        let mut ends: BTreeMap<u32, Place> = BTreeMap::new();
        for (slot, end) in &self.found.chain {
            self.segment(*slot, *end, &ends);
            ends.insert(end.generation, *end);
        }
    }

    fn segment(&mut self, slot: usize, end: Place, ends: &BTreeMap<u32, Place>) {
        let bytes = match self.reader.segment(slot) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.damage(slot, 0, error.to_string());
                return;
            }
        };
        self.report.segments[slot].state = SegmentState::Live;
        self.report.segments[slot].used = end.offset;
        let mut offset = 0;
        while offset < end.offset {
            let Some((header, body, whole)) = self.reader.head(&bytes, offset as usize, end.generation) else {
                let bad = offset;
                offset += 8;
                while offset < end.offset && self.reader.head(&bytes, offset as usize, end.generation).is_none() {
                    offset += 8;
                }
                self.damage(
                    slot,
                    bad,
                    format!("{} bytes that were durable are not as they were written", offset - bad),
                );
                continue;
            };
            let at = self.reader.byte(slot, offset);
            if !whole {
                self.log.spoiled.insert(at, codec::damaged_records(body));
            }
            self.entry(slot, Place::new(end.generation, offset), at, &header, body, ends);
            offset += header.stride() as u32;
        }
    }

    fn damage(&mut self, slot: usize, offset: u32, what: String) {
        self.log.damaged = true;
        self.last = None;
        self.report.bad(self.reader.byte(slot, offset), what);
    }

    fn entry(&mut self, slot: usize, place: Place, at: u64, header: &Header, body: &[u8], ends: &BTreeMap<u32, Place>) {
        self.report.log.entries += 1;
        self.report.segments[slot].entries[header.kind as usize - 1] += 1;
        let name = self.found.checkpoint.as_ref().map_or(Place::default(), |(name, _)| *name);
        let read = match header.kind {
            Kind::Staged => StagedMeta::decode(body).map(|meta| {
                let waiting = Waiting { place, at, records: meta.staged.records, slot };
                if let Some(before) = self.log.waiting.insert(meta.staged.token, waiting)
                    && before.place > name
                {
                    let file = self.report.area.clone();
                    self.report.note(file, Some(at), format!("the append {} is here twice", meta.staged.token));
                }
                // Reading one checks more than its entry: the digest, the tags.
                if !self.log.spoiled.contains_key(&at)
                    && codec::decode_append(bytes::Bytes::copy_from_slice(body)).is_none()
                {
                    self.report.bad(at, format!("the append {} cannot be read", meta.staged.token));
                }
            }),
            Kind::Entry => codec::decode_entry(body).map(|entry| {
                if self.found.is_taken_back(place, entry.lsn) {
                    self.taken_back(self.found.is_taken_back_since(place, entry.lsn), &entry);
                } else {
                    self.shard_entry(slot, at, &entry);
                }
            }),
            Kind::Copied | Kind::Repaired => codec::decode_copied(body).map(|(meta, first)| {
                let last = first.plus(meta.staged.records - 1).unwrap_or(first);
                let moved = self.tier.moved.contains_key(&place.generation);
                let set = if moved { &mut self.log.moved } else { &mut self.log.copied };
                set.add(meta.staged.color, Run { first, last, at });
                if header.kind == Kind::Repaired && !moved && !self.log.spoiled.contains_key(&at) {
                    self.log.repaired.add(meta.staged.color, Run { first, last, at });
                }
                if self.log.spoiled.contains_key(&at) {
                    self.log.numbered(at, meta.staged.color, first);
                } else if codec::decode_append(bytes::Bytes::copy_from_slice(body)).is_none() {
                    self.report.bad(at, format!("the records from {}/{first} on cannot be read", meta.staged.color));
                }
            }),
            Kind::Truncate => codec::Truncate::decode(body).map(|truncate| {
                // The next one follows that place.
                self.last = self.last.map(|last| last.min(truncate.upto));
            }),
            Kind::Fence => codec::decode_fence(body).map(|fence| {
                if place > name {
                    self.log.fence = Some(fence);
                }
            }),
            Kind::Part => Some(()),
            Kind::Continue => codec::Continue::decode(body).map(|first| {
                if ends.get(&first.before.generation).is_some_and(|end| *end != first.before) {
                    self.report.bad(at, "the segment before this one does not end where this one says");
                }
            }),
        };
        if read.is_none() {
            self.report.bad(at, "this entry is not one that this program writes");
        }
    }

    /// `since`: later than the checkpoint.
    fn taken_back(&mut self, since: bool, entry: &Entry) {
        if let (true, Body::Assign(assigns)) = (since, &entry.body) {
            self.log.again.extend(assigns.iter().flat_map(Assign::each).map(|(token, _)| token));
        }
    }

    fn shard_entry(&mut self, slot: usize, at: u64, entry: &Entry) {
        let lsns = &mut self.report.segments[slot].lsns;
        *lsns = Some(lsns.map_or((entry.lsn, entry.lsn), |(low, high)| (low.min(entry.lsn), high.max(entry.lsn))));
        let upto = self.found.checkpoint.as_ref().map(|(_, checkpoint)| checkpoint.upto);
        // Below the checkpoint's place whole segments are missing.
        let above = upto.is_none_or(|upto| entry.lsn > upto);
        let before = match self.last {
            Some(last) => Some(if above { last.max(upto.unwrap_or(last)) } else { last }),
            None if self.log.damaged => None,
            None => above.then(|| upto.unwrap_or(Lsn(0))),
        };
        if let Some(before) = before
            && (entry.lsn <= before || above && before.next() != entry.lsn)
        {
            self.report.bad(at, format!("entry {} follows entry {before} of the shard log", entry.lsn));
        }
        self.last = Some(entry.lsn);
        self.log.last = self.log.last.max(entry.lsn);
        match &entry.body {
            Body::Assign(assigns) => assigns.iter().for_each(|assign| self.assign(at, entry.lsn, assign)),
            Body::Trim { color, upto } => {
                let point = self.log.trims.entry(*color).or_insert(*upto);
                *point = (*point).max(*upto);
            }
            _ => {}
        }
    }

    fn assign(&mut self, at: u64, lsn: Lsn, assign: &Assign) {
        for (token, first) in assign.each() {
            let last = first.plus(assign.records - 1).unwrap_or(first);
            let (set, at) = match self.log.waiting.remove(&token) {
                None => (&mut self.log.absent, at),
                Some(waiting) => {
                    if waiting.records != assign.records {
                        let what = format!("{token} has {} records, and {} numbers", waiting.records, assign.records);
                        self.report.bad(at, what);
                    }
                    let moved = self.tier.moved.get(&waiting.place.generation).is_some_and(|upto| lsn <= *upto);
                    (if moved { &mut self.log.moved } else { &mut self.log.here }, waiting.at)
                }
            };
            set.add(assign.color, Run { first, last, at });
            self.log.numbered(at, assign.color, first);
        }
    }

    fn finish(self) -> Log {
        let Self { report, mut log, found, reader, .. } = self;
        let (name, kept) = match &found.checkpoint {
            Some((name, checkpoint)) => (*name, checkpoint.staged.iter().copied().collect()),
            None => (Place::default(), FxHashSet::default()),
        };
        let again = std::mem::take(&mut log.again);
        log.waiting
            .retain(|token, waiting| waiting.place > name || kept.contains(&waiting.place) || again.contains(token));
        for (token, waiting) in &log.waiting {
            report.segments[waiting.slot].staged += 1;
            if log.spoiled.contains_key(&waiting.at) {
                report.bad(
                    waiting.at,
                    format!("a record of the append {token}, which waits for its numbers, is damaged"),
                );
            }
        }
        let (slot, end) = found.chain.last().map_or((None, Place::default()), |(slot, end)| (Some(*slot), *end));
        let entries = report.log.entries;
        report.log = LogEnd {
            offset: slot.map_or(HEAD_BYTES, |slot| reader.byte(slot, end.offset)),
            generation: end.generation,
            last: log.last,
            entries,
            clean: found.clean,
        };
        report.fence = log.fence;
        log.end = end;
        log
    }
}

impl Log {
    /// The records of the entry at this byte have the numbers from `first` on.
    fn numbered(&mut self, at: u64, color: Color, first: SeqNum) {
        let damaged = self.spoiled.remove(&at).unwrap_or_default();
        self.bad.extend(damaged.into_iter().filter_map(|index| Some((color, first.plus(index)?, at))));
    }

    /// Says of every damaged record whether it is whole elsewhere. `known`: what the SSD files have is known.
    pub(super) fn damaged_records(&self, tier: &Tier, known: bool, report: &mut Report) {
        for (color, number, at) in &self.bad {
            let (file, at) = (report.area.clone(), Some(*at));
            if self.trim(*color).is_some_and(|point| point >= *number) {
                report.note(file, at, format!("the record {color}/{number}, which is trimmed, is damaged"));
            } else if self.repaired(*color, *number) || tier.numbers.has(*color, *number) {
                report.note(
                    file,
                    at,
                    format!("the record {color}/{number} is damaged here, and whole where it is read"),
                );
            } else if !known && self.moved.has(*color, *number) {
                report.note(
                    file,
                    at,
                    format!("the record {color}/{number}, which moved to an SSD file, is damaged here"),
                );
            } else {
                report.fault(file, at, format!("the record {color}/{number} is damaged"));
            }
        }
    }

    /// Whether the area has a whole record of this number that did not move.
    pub(super) fn is_whole(&self, color: Color, number: SeqNum) -> bool {
        let bad = |(c, n, _): &(Color, SeqNum, u64)| (*c, *n) == (color, number);
        self.repaired(color, number) || self.has(color, number) && !self.bad.iter().any(bad)
    }

    /// Whether the area has a whole record of this number that takes the place of a damaged one.
    fn repaired(&self, color: Color, number: SeqNum) -> bool {
        self.repaired.has(color, number)
    }

    pub(super) fn trim(&self, color: Color) -> Option<SeqNum> {
        self.trims.get(&color).copied()
    }

    /// Whether the area has a record of this number that did not move.
    pub(super) fn has(&self, color: Color, number: SeqNum) -> bool {
        self.here.has(color, number) || self.copied.has(color, number)
    }

    /// What the log says of numbers must fit what the SSD files have. Returns the numbers that are here twice, or here and
    /// there: all of these must be the same record.
    pub(super) fn check_against(&self, tier: &Tier, report: &mut Report) -> RunSet {
        let mut there = tier.numbers.clone();
        self.copied.each().for_each(|(color, run)| there.add(color, run));
        there.sort();
        let lost = |report: &mut Report, set: &RunSet, there: &RunSet, what: &str| {
            for (color, run) in set.each() {
                let Some(run) = above(run, self.trim(color)) else { continue };
                if let Some(number) = there.lacks(color, run) {
                    report.bad(run.at, format!("the record {color}/{number} {what}, and is in no SSD file"));
                }
            }
        };
        lost(report, &self.absent, &there, "got its number here, is not in the area");
        // What was copied here again did not move from where it was copied to first.
        self.here.each().for_each(|(color, run)| there.add(color, run));
        there.sort();
        lost(report, &self.moved, &there, "moved from here");
        let mut twice = self.twice.clone();
        let both = self.here.shared(&tier.numbers).chain(self.copied.shared(&tier.numbers));
        both.for_each(|(color, run)| twice.add(color, run));
        twice.sort();
        twice
    }

    pub(super) fn colors(&self, tier: &Tier, report: &mut Report) {
        let mut left = RunSet::default();
        for (color, run) in self.here.each().chain(self.copied.each()) {
            if let Some(run) = above(run, self.trim(color)) {
                left.add(color, run);
            }
        }
        left.sort();
        let mut colors: Vec<Color> =
            left.colors().chain(tier.colors.keys().copied()).chain(self.trims.keys().copied()).collect();
        colors.sort_unstable();
        colors.dedup();
        let row = |color| ColorReport {
            color,
            area: left.summary(color),
            ssd: tier.colors.get(&color).copied(),
            trim: self.trim(color),
        };
        report.colors = colors.into_iter().map(row).collect();
    }
}

/// Calls `each` with the entries of the log that `report` is about, until it says no.
///
/// # Errors
/// Those of the medium.
pub fn list_entries<D: Device>(
    device: &D,
    report: &Report,
    each: &mut dyn FnMut(&EntryLine) -> bool,
) -> io::Result<()> {
    let Some(identity) = &report.identity else { return Ok(()) };
    let reader = Reader::over(device, identity.store, identity.segment_bytes);
    for (slot, end) in &report.chain {
        let bytes = reader.segment(*slot)?;
        let mut at = 0;
        while at < end.offset {
            let Some((header, body, whole)) = reader.head(&bytes, at as usize, end.generation) else {
                at += 8;
                continue;
            };
            let (lsn, mut says) = says(&header, body);
            let place = Place::new(end.generation, at);
            if !whole {
                says.push_str(" (damaged)");
            }
            if lsn.is_some_and(|lsn| report.is_taken_back(place, lsn)) {
                says.push_str(" (taken back)");
            }
            let line = EntryLine {
                offset: reader.byte(*slot, at),
                generation: end.generation,
                at,
                kind: KINDS[header.kind as usize - 1],
                bytes: (ENTRY_HEADER + body.len()) as u64,
                lsn,
                says,
            };
            if !each(&line) {
                return Ok(());
            }
            at += header.stride() as u32;
        }
    }
    Ok(())
}

fn says(header: &Header, body: &[u8]) -> (Option<Lsn>, String) {
    let unknown = || "?".to_owned();
    match header.kind {
        Kind::Staged => {
            let text = StagedMeta::decode(body).map(|meta| {
                let staged = meta.staged;
                format!("append {} of {} records to color {}", staged.token, staged.records, staged.color)
            });
            (None, text.unwrap_or_else(unknown))
        }
        Kind::Entry => match codec::decode_entry(body) {
            Some(entry) => (Some(entry.lsn), body_says(&entry)),
            None => (None, unknown()),
        },
        Kind::Copied | Kind::Repaired => {
            let text = codec::decode_copied(body).map(|(meta, first)| {
                let color = meta.staged.color;
                let last = first.plus(meta.staged.records - 1).unwrap_or(first);
                if header.kind == Kind::Repaired {
                    format!("record {color}/{first}, in place of a damaged one")
                } else {
                    format!("records {color}/{first}..{last}, settled elsewhere")
                }
            });
            (None, text.unwrap_or_else(unknown))
        }
        Kind::Truncate => {
            let text = codec::Truncate::decode(body)
                .map(|truncate| format!("entries above {} are taken back, up to {}", truncate.upto, truncate.last));
            (None, text.unwrap_or_else(unknown))
        }
        Kind::Fence => {
            let text = codec::decode_fence(body).map(|fence| format!("epoch {} of {}", fence.epoch, fence.uuid));
            (None, text.unwrap_or_else(unknown))
        }
        Kind::Part => {
            let text = codec::PartMeta::decode(body).map(|meta| format!("part {} of {}", meta.part + 1, meta.parts));
            (None, text.unwrap_or_else(unknown))
        }
        Kind::Continue => {
            let text = codec::Continue::decode(body).map(|first| {
                format!(
                    "segment {} follows generation {}, {} bytes",
                    first.slot, first.before.generation, first.before.offset
                )
            });
            (None, text.unwrap_or_else(unknown))
        }
    }
}

fn body_says(entry: &Entry) -> String {
    let epoch = entry.epoch;
    let what = match &entry.body {
        Body::Assign(assigns) => {
            let each = assigns.iter().map(|assign| {
                let last = assign.first.plus(assign.count() - 1).unwrap_or(assign.first);
                format!("{} gets {}/{}..{last}", assign.token, assign.color, assign.first)
            });
            each.collect::<Vec<_>>().join(", ")
        }
        Body::Hole { color, first, count } => format!("hole of {count} from {color}/{first}"),
        Body::EpochEnd { color, end, next } => format!("color {color} ends at {end}, goes on in epoch {next}"),
        Body::NewView(view) => format!("view {}: {:?}", view.number, view.members),
        Body::OpenSession { nonce } => format!("open session, nonce {nonce}"),
        Body::CloseSession(session) => format!("close session {session}"),
        Body::Trim { color, upto } => format!("trim color {color} up to {upto}"),
    };
    format!("epoch {epoch}: {what}")
}
