//! A store on the simulated medium beside a model of what it must hold, and the check that compares the two.
//!
//! The model is the list of writes, in order. After a crash the store must be as some prefix of them says, one that
//! includes all that was fenced.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flexlog_protocol::entry::push_assign;
use flexlog_protocol::media::{FenceId, LogStore, Recovered, StoreError};
use flexlog_protocol::peer::Staged;
use flexlog_protocol::{
    Append, Assign, Body, ClusterId, Color, Entry, Epoch, Incarnation, Lsn, Position, Record, ReplicaId, SeqNum,
    SessionId, ShardId, StoreId, Tag, Time, Token, View, ViewNumber,
};
use flexlog_storage_pm::device::{Fences, SimDevice, SimMedia, SplitMix};
use flexlog_storage_pm::ssd::SimFolder;
use flexlog_storage_pm::{Closed, OpenError, Options, Owner, Store};
use uuid::Uuid;

pub const OWNER: Owner = Owner { cluster: ClusterId(Uuid::from_u128(1)), replica: ReplicaId(2) };
pub const STORE: StoreId = StoreId(Uuid::from_u128(3));

pub fn options(segment_bytes: u64, segments: u64) -> Options {
    // Without the cache every read shows what is on the medium.
    Options { segment_bytes, limit_bytes: 8192 + segments * segment_bytes, cache_bytes: 0, ..Options::default() }
}

pub fn session() -> SessionId {
    SessionId { epoch: Epoch(1), lsn: Lsn(1) }
}

pub fn token(seq: u64) -> Token {
    Token { shard: ShardId(0), session: session(), seq }
}

pub fn append(seq: u64, color: u64, payloads: &[Vec<u8>]) -> Append {
    let records = payloads.iter().map(|payload| Record::new(payload.clone()).unwrap()).collect();
    Append::new(token(seq), Color(color), None, records).unwrap()
}

pub fn open(media: &SimMedia, options: Options) -> Result<(Store<SimDevice>, Recovered), OpenError> {
    Closed::open(media.device(), "sim".to_owned(), OWNER, STORE, options)?.open_alone(Uuid::from_u128(77))
}

/// The same with a folder for SSD files.
pub fn open_tiered(
    media: &SimMedia,
    folder: &SimFolder,
    options: Options,
) -> Result<(Store<SimDevice>, Recovered), OpenError> {
    let closed = Closed::open(media.device(), "sim".to_owned(), OWNER, STORE, options)?;
    closed.with_ssd(Arc::new(folder.clone())).open_alone(Uuid::from_u128(77))
}

/// A record that tells which it is.
fn record(n: u32) -> Record {
    let tags = (0..n % 3).map(|i| Tag::new(vec![i as u8; i as usize]).unwrap()).collect();
    Record::with_tags(vec![n as u8; (n % 5) as usize * 23], tags).unwrap()
}

pub fn read_all(store: &dyn LogStore, color: u64) -> Vec<(SeqNum, Record)> {
    let mut records = Vec::new();
    store.read_through(Color(color), SeqNum::MIN, SeqNum::MAX, usize::MAX, usize::MAX, &mut records).unwrap();
    records
}

/// One write, in the order in which they were made.
#[derive(Clone, Debug)]
pub enum Write {
    Staged(Append),
    Entry(Entry),
    Seal(Incarnation),
    Checkpoint(Lsn, Vec<u8>),
    Copied(Color, SeqNum, Vec<Record>),
    Truncate(Lsn),
    /// A record that rotted was written again; it is the same as before.
    Repaired(Color, SeqNum),
}

/// The entries that stand after some writes, in order, each with its place among the writes.
fn standing(writes: &[Write]) -> Vec<(usize, &Entry)> {
    let mut entries: Vec<(usize, &Entry)> = Vec::new();
    for (at, write) in writes.iter().enumerate() {
        match write {
            Write::Entry(entry) => entries.push((at, entry)),
            Write::Truncate(upto) => entries.retain(|(_, entry)| entry.lsn <= *upto),
            _ => {}
        }
    }
    entries
}

/// What a store must hold after some writes.
#[derive(Default, PartialEq, Debug)]
pub struct Expected {
    fence: Option<Incarnation>,
    checkpoint: Option<(Lsn, Vec<u8>)>,
    entries: Vec<Entry>,
    /// As recovery tells it: what was dropped since the last checkpoint is still there.
    staged: Vec<Staged>,
    dropped: Vec<Token>,
    trims: BTreeMap<Color, SeqNum>,
    records: BTreeMap<(Color, SeqNum), Record>,
}

impl Expected {
    pub fn after(writes: &[Write]) -> Self {
        let mut expected = Self::default();
        let mut appends: BTreeMap<Token, Append> = BTreeMap::new();
        // What was taken back might as well never have been written.
        let standing: BTreeSet<usize> = standing(writes).into_iter().map(|(at, _)| at).collect();
        for (at, write) in writes.iter().enumerate() {
            match write {
                Write::Entry(_) if !standing.contains(&at) => {}
                Write::Truncate(_) | Write::Repaired(..) => {}
                Write::Copied(color, first, records) => {
                    for (i, record) in (0..).zip(records) {
                        expected.records.insert((*color, first.plus(i).unwrap()), record.clone());
                    }
                }
                Write::Staged(append) => {
                    let (token, color) = (append.token(), append.color());
                    expected.staged.push(Staged { token, color, records: append.count(), digest: append.digest() });
                    appends.insert(token, append.clone());
                }
                Write::Entry(entry) => {
                    expected.entries.push(entry.clone());
                    match &entry.body {
                        Body::Assign(assigns) => {
                            for assign in assigns {
                                for (token, first) in assign.each() {
                                    expected.staged.retain(|staged| staged.token != token);
                                    for (i, record) in appends[&token].records().iter().enumerate() {
                                        let number = first.plus(i as u32).unwrap();
                                        expected.records.insert((assign.color, number), record.clone());
                                    }
                                }
                            }
                        }
                        // The tests close a session to drop the one append whose seq it names.
                        Body::CloseSession(session) => expected.dropped.push(token(session.lsn.0)),
                        Body::Trim { color, upto } => {
                            let trim = expected.trims.entry(*color).or_insert(*upto);
                            *trim = (*trim).max(*upto);
                        }
                        _ => {}
                    }
                }
                Write::Seal(incarnation) => expected.fence = Some(*incarnation),
                Write::Checkpoint(upto, state) => {
                    expected.checkpoint = Some((*upto, state.clone()));
                    let dropped = std::mem::take(&mut expected.dropped);
                    expected.staged.retain(|staged| !dropped.contains(&staged.token));
                }
            }
        }
        let upto = expected.checkpoint.as_ref().map_or(Lsn(0), |(upto, _)| *upto);
        expected.entries.retain(|entry| entry.lsn > upto);
        expected
    }

    fn trimmed(&self, color: Color, number: SeqNum) -> bool {
        self.trims.get(&color).is_some_and(|trim| number <= *trim)
    }

    fn matches(&self, recovered: &Recovered) -> Result<(), String> {
        let checkpoint = recovered.checkpoint.as_ref().map(|(upto, state)| (*upto, state.to_vec()));
        let same = [
            ("fence", self.fence == recovered.fence),
            ("checkpoint", self.checkpoint == checkpoint),
            ("entries", self.entries == recovered.entries),
            ("staged", self.staged == recovered.staged),
        ];
        match same.iter().find(|(_, same)| !same) {
            None => Ok(()),
            Some((what, _)) => Err(format!("{what} differ: expected {self:?}, found {recovered:?}")),
        }
    }
}

/// Opens what a crash left. Gives the store, what it recovered, and which prefix of `writes` that is: one that has the
/// first `fenced` at least.
pub fn recover(
    media: &SimMedia,
    folder: Option<&SimFolder>,
    options: Options,
    writes: &[Write],
    fenced: usize,
) -> Result<(Store<SimDevice>, Recovered, usize), String> {
    let (store, recovered) = World::open(media, folder, options).map_err(|error| error.to_string())?;
    let mut why = String::new();
    // Recovery says nothing of copies: those that are not durable yet are there or not.
    let copied = |len: usize, expected: &Expected| {
        writes[fenced..len].iter().all(|write| match write {
            Write::Copied(color, first, records) => {
                let last = first.plus(records.len() as u32 - 1).unwrap();
                let found = store.prev_through(*color, last).ok().flatten();
                expected.trimmed(*color, last) || found.is_some_and(|(number, _)| number == last)
            }
            _ => true,
        })
    };
    let prefix = (fenced..=writes.len()).rev().find(|len| {
        let expected = Expected::after(&writes[..*len]);
        let matched = expected.matches(&recovered);
        matched.map_err(|error| why = error).is_ok() && copied(*len, &expected)
    });
    match prefix {
        Some(prefix) => Ok((store, recovered, prefix)),
        None => Err(format!("no prefix of {fenced} to {} writes is there; the shortest: {why}", writes.len())),
    }
}

/// Whether a store holds what it must and nothing else. `trimmed_may_be_there`: the replica
/// has not told it the trim points yet.
pub fn check(
    store: &Store<SimDevice>,
    expected: &Expected,
    tiered: bool,
    trimmed_may_be_there: bool,
) -> Result<(), String> {
    let mut count = 0;
    for color in 1..=3 {
        let mut found = Vec::new();
        let read = store.read_through(Color(color), SeqNum::MIN, SeqNum::MAX, usize::MAX, usize::MAX, &mut found);
        read.map_err(|error| error.to_string())?;
        count += found.len() as u64;
        let numbers: BTreeSet<SeqNum> = found.iter().map(|(number, _)| *number).collect();
        if !found.is_sorted_by(|a, b| a.0 < b.0) {
            return Err("numbers are not in order".to_owned());
        }
        // A few bounds are enough: there is a check after each of very many crashes.
        let at = |place: usize| found.get(place).map(|(number, _)| number.to_raw());
        let middle = at(found.len() / 2);
        let bounds =
            [Some(u64::MAX), middle, middle.map(|raw| raw.saturating_sub(1)), at(0).map(|raw| raw.saturating_sub(1))];
        for raw in bounds.into_iter().flatten() {
            let upto = SeqNum::from_raw(raw);
            let last = store.prev_through(Color(color), upto).map_err(|error| error.to_string())?;
            if last.as_ref() != found.iter().rfind(|(number, _)| *number <= upto) {
                return Err(format!("the last record of {color} up to {upto} is {last:?}"));
            }
        }
        for (number, record) in &found {
            if expected.records.get(&(Color(color), *number)) != Some(record) {
                let wanted = expected.records.get(&(Color(color), *number));
                return Err(format!("{color}/{number} is {record:?} and should be {wanted:?}"));
            }
            if !trimmed_may_be_there && expected.trimmed(Color(color), *number) {
                return Err(format!("{color}/{number} is trimmed and there"));
            }
        }
        for (c, number) in expected.records.keys() {
            if c.0 == color && !expected.trimmed(*c, *number) && !numbers.contains(number) {
                return Err(format!("{color}/{number} is lost"));
            }
        }
    }
    let usage = store.usage();
    // What was trimmed may be on SSD for a while, and what moved may be in the area too.
    let counted = if tiered { usage.records + usage.ssd_records >= count } else { usage.records == count };
    if !counted {
        return Err(format!("{} records are counted, {count} are there", usage.records));
    }
    for staged in expected.staged.iter().filter(|staged| !expected.dropped.contains(&staged.token)) {
        match store.read_staged(staged.token).map_err(|error| error.to_string())? {
            Some(append) if append.digest() == staged.digest => {}
            other => return Err(format!("{} is {other:?}", staged.token)),
        }
    }
    Ok(())
}

pub struct World {
    pub media: SimMedia,
    /// Where records move to, if anywhere.
    pub folder: Option<SimFolder>,
    now: Time,
    pub options: Options,
    pub store: Store<SimDevice>,
    pub writes: Vec<Write>,
    /// How many of the writes were covered by a fence that is done.
    pub fenced: usize,
    under_way: Option<(FenceId, usize)>,
    draw: SplitMix,
    seq: u64,
    lsn: Lsn,
    /// Nothing at or below this may be taken back by a checkpoint that covers less.
    committed: Lsn,
    next: BTreeMap<u64, SeqNum>,
    epoch: u32,
    pub full: u64,
    pub freed: u64,
    /// How often records moved to SSD files.
    pub moved: u64,
    /// The color that was copied to last, and the end of what was.
    copied_upto: Option<(u64, SeqNum)>,
    pub copied: u64,
    pub taken_back: u64,
}

impl World {
    pub fn new(seed: u64, options: Options) -> Self {
        Self::over(seed, options, None)
    }

    /// One that has a place for SSD files.
    pub fn tiered(seed: u64, options: Options) -> Self {
        Self::over(seed, options, Some(SimFolder::new()))
    }

    fn over(seed: u64, options: Options, folder: Option<SimFolder>) -> Self {
        // The limit is the store's to keep, not the medium's.
        let media = SimMedia::new(options.limit_bytes + (1 << 20));
        let (store, recovered) = Self::open(&media, folder.as_ref(), options).unwrap();
        Expected::default().matches(&recovered).unwrap();
        Self {
            media,
            folder,
            now: Time(0),
            options,
            store,
            writes: Vec::new(),
            fenced: 0,
            under_way: None,
            draw: SplitMix(seed),
            seq: 0,
            lsn: Lsn(0),
            committed: Lsn(0),
            next: BTreeMap::new(),
            epoch: 1,
            full: 0,
            freed: 0,
            moved: 0,
            copied_upto: None,
            copied: 0,
            taken_back: 0,
        }
    }

    fn open(
        media: &SimMedia,
        folder: Option<&SimFolder>,
        options: Options,
    ) -> Result<(Store<SimDevice>, Recovered), OpenError> {
        match folder {
            None => open(media, options),
            Some(folder) => open_tiered(media, folder, options),
        }
    }

    /// Does the store's background work, if it has any.
    pub fn work(&mut self) -> Result<(), String> {
        self.now = self.now.after(2_000_000);
        for _ in 0..8 {
            let before = self.store.usage().ssd_records;
            let Some(work) = self.store.background(self.now, self.committed).map_err(|error| error.to_string())? else {
                break;
            };
            work();
            self.moved += u64::from(self.store.usage().ssd_records > before);
        }
        Ok(())
    }

    fn below(&mut self, n: u64) -> u64 {
        self.draw.draw() % n
    }

    fn did(&mut self, result: Result<(), StoreError>, write: Write) -> Result<bool, String> {
        match result {
            Ok(()) => {
                self.writes.push(write);
                Ok(true)
            }
            Err(StoreError::Full { .. }) => {
                self.full += 1;
                Ok(false)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn put(&mut self, body: Body) -> Result<bool, String> {
        let entry = Entry { lsn: self.lsn.next(), epoch: Epoch(self.epoch), body };
        let result = self.store.append(&entry);
        let done = self.did(result, Write::Entry(entry))?;
        if done {
            self.lsn = self.lsn.next();
        }
        Ok(done)
    }

    fn staged(&self) -> Vec<Staged> {
        let expected = Expected::after(&self.writes);
        expected.staged.into_iter().filter(|staged| !expected.dropped.contains(&staged.token)).collect()
    }

    pub fn stage(&mut self, max_bytes: u64) -> Result<bool, String> {
        let color = 1 + self.below(3);
        let count = if self.below(4) == 0 { 1 + self.below(6) } else { 1 };
        let mut records = Vec::new();
        for _ in 0..count {
            let len = if self.below(6) == 0 { 0 } else { self.below(max_bytes) };
            let payload: Vec<u8> = (0..len).map(|_| self.draw.draw() as u8).collect();
            let tags = (0..self.below(3)).map(|i| Tag::new(vec![i as u8; 1 + i as usize]).unwrap()).collect();
            records.push(Record::with_tags(payload, tags).unwrap());
        }
        self.seq += 1;
        let append = Append::new(token(self.seq), Color(color), None, records).unwrap();
        let result = self.store.stage(&append);
        self.did(result, Write::Staged(append))
    }

    pub fn assign(&mut self) -> Result<(), String> {
        let mut staged = self.staged();
        let mut assigns = Vec::new();
        let mut next = self.next.clone();
        for _ in 0..1 + self.below(4) {
            if staged.is_empty() {
                break;
            }
            let place = self.below(staged.len() as u64) as usize;
            // Mostly the oldest, so that runs of seqs come about.
            let place = if self.below(3) == 0 { place } else { 0 };
            let Staged { token, color, records, .. } = staged.remove(place);
            let epoch = self.epoch;
            let first = *next.entry(color.0).or_insert(SeqNum::first_of(Epoch(epoch)));
            next.insert(color.0, first.plus(records).unwrap());
            push_assign(&mut assigns, Assign::one(token, color, first, records));
        }
        if !assigns.is_empty() && self.put(Body::Assign(assigns))? {
            self.next = next;
        }
        Ok(())
    }

    pub fn hole(&mut self) -> Result<(), String> {
        let color = 1 + self.below(3);
        let first = *self.next.entry(color).or_insert(SeqNum::first_of(Epoch(self.epoch)));
        let count = 1 + self.below(100) as u32;
        if self.put(Body::Hole { color: Color(color), first, count })? {
            self.next.insert(color, first.plus(count).unwrap());
        }
        Ok(())
    }

    pub fn new_epoch(&mut self) -> Result<(), String> {
        self.epoch += 1;
        let next = Epoch(self.epoch);
        for (color, end) in self.next.clone() {
            if self.put(Body::EpochEnd { color: Color(color), end, next })? {
                self.next.insert(color, SeqNum::first_of(next));
            }
        }
        Ok(())
    }

    pub fn trim(&mut self, color: u64, share: u64) -> Result<(), String> {
        let expected = Expected::after(&self.writes);
        let numbers: Vec<SeqNum> = expected.records.keys().filter(|(c, _)| c.0 == color).map(|(_, n)| *n).collect();
        if numbers.is_empty() {
            return Ok(());
        }
        let upto = numbers[((numbers.len() as u64 - 1) * share / 100) as usize];
        if self.put(Body::Trim { color: Color(color), upto })? {
            self.committed = self.lsn;
            self.store.trim(Color(color), upto);
        }
        Ok(())
    }

    pub fn drop_one(&mut self) -> Result<(), String> {
        let staged = self.staged();
        if staged.is_empty() {
            return Ok(());
        }
        let Staged { token, .. } = staged[self.below(staged.len() as u64) as usize];
        if self.put(Body::CloseSession(SessionId { epoch: Epoch(1), lsn: Lsn(token.seq) }))? {
            self.committed = self.lsn;
            self.store.drop_staged(&[token]);
        }
        Ok(())
    }

    /// Copies records: new ones, or some that are there.
    pub fn copy(&mut self, color: u64, count: u64, again: bool) -> Result<bool, String> {
        let mut copy = if again { self.settled(color, count) } else { Vec::new() };
        if copy.is_empty() {
            // Entries number nothing in epochs that are copied to.
            let goes_on = self.copied_upto.filter(|(c, end)| *c == color && end.epoch().0 + 1 == self.epoch);
            let first = goes_on.filter(|_| self.below(2) == 0).map(|(_, end)| end).unwrap_or_else(|| {
                self.epoch += 2;
                self.next.clear();
                SeqNum::first_of(Epoch(self.epoch - 1))
            });
            self.copied_upto = first.plus(count as u32).map(|end| (color, end));
            copy = (0..count as u32).map(|i| (first.plus(i).unwrap(), record(first.counter() + i))).collect();
        }
        let (first, records) = (copy[0].0, copy.into_iter().map(|(_, record)| record).collect::<Vec<_>>());
        let result = self.store.copy(Color(color), first, &records);
        let done = self.did(result, Write::Copied(Color(color), first, records))?;
        self.copied += u64::from(done);
        Ok(done)
    }

    /// The first record of a color, if it is there.
    pub fn first(&self, color: u64) -> Option<(SeqNum, Record)> {
        let records = Expected::after(&self.writes).records;
        records.into_iter().find(|((c, _), _)| c.0 == color).map(|((_, number), record)| (number, record))
    }

    /// Writes a record again that is damaged. Returns whether there was room.
    pub fn repair(&mut self, color: u64, number: SeqNum, record: &Record) -> Result<bool, String> {
        let result = self.store.repair(Color(color), number, record).map(|_| ());
        self.did(result, Write::Repaired(Color(color), number))
    }

    /// Some records that nobody can take back, their numbers in a row.
    fn settled(&mut self, color: u64, count: u64) -> Vec<(SeqNum, Record)> {
        let committed = self.committed;
        let settled = |write: &&Write| !matches!(write, Write::Entry(entry) if entry.lsn > committed);
        let writes: Vec<Write> = self.writes.iter().filter(settled).cloned().collect();
        let records = Expected::after(&writes).records;
        let records =
            records.into_iter().filter(|((c, _), _)| c.0 == color).map(|((_, number), record)| (number, record));
        let records: Vec<_> = records.collect();
        let from = self.below(records.len().max(1) as u64) as usize;
        let mut run: Vec<(SeqNum, Record)> = Vec::new();
        for (number, record) in records.into_iter().skip(from).take(count as usize) {
            if run.last().is_some_and(|(last, _)| last.plus(1) != Some(number)) {
                break;
            }
            run.push((number, record));
        }
        run
    }

    /// Takes back a `share`, in percent, of the entries that are not committed: the last of them.
    pub fn truncate(&mut self, share: u64) -> Result<(), String> {
        let go: Vec<Arc<Entry>> = {
            let entries = standing(&self.writes).into_iter().map(|(_, entry)| entry);
            entries.filter(|entry| entry.lsn > self.committed).cloned().map(Arc::new).collect()
        };
        let stay = go.len() - (go.len() * share as usize).div_ceil(100);
        let upto = Lsn(self.lsn.0 - (go.len() - stay) as u64);
        let result = self.store.truncate(upto, &go[stay..]);
        // Without entries nothing is written.
        if stay < go.len() && self.did(result, Write::Truncate(upto))? {
            self.lsn = upto;
            self.taken_back += (go.len() - stay) as u64;
            self.epoch += 1;
            if self.below(2) == 0 {
                self.next.clear();
                return Ok(());
            }
            // The next leaf may give the same numbers to others, within the same epoch.
            let mut ends = BTreeMap::new();
            for (_, entry) in standing(&self.writes) {
                match &entry.body {
                    Body::Assign(assigns) => ends.extend(assigns.iter().map(|assign| (assign.color.0, assign.end()))),
                    Body::Hole { color, first, count } => ends.extend(first.plus(*count).map(|end| (color.0, end))),
                    _ => {}
                }
            }
            self.next.retain(|color, next| match ends.get(color) {
                Some(end) if end.epoch() == next.epoch() => {
                    *next = *end;
                    true
                }
                _ => false,
            });
        }
        Ok(())
    }

    /// A checkpoint far above the last entry, as after copying: all that is there is settled.
    pub fn jump(&mut self) -> Result<(), String> {
        let upto = Lsn(self.lsn.0 + 1 + self.below(50));
        let result = self.store.checkpoint(upto, b"jump");
        if self.did(result, Write::Checkpoint(upto, b"jump".to_vec()))? {
            self.committed = upto;
            self.lsn = upto;
        }
        Ok(())
    }

    pub fn seal(&mut self) -> Result<(), String> {
        let n = self.below(1000) as u32;
        let incarnation = Incarnation { position: Position(0), epoch: Epoch(n), uuid: Uuid::from_u128(n.into()) };
        let result = self.store.seal(incarnation);
        self.did(result, Write::Seal(incarnation)).map(|_| ())
    }

    pub fn checkpoint(&mut self) -> Result<(), String> {
        // Where nothing above it was taken as committed, any place from there on will do.
        let upto = Lsn(self.committed.0 + self.below(self.lsn.0 - self.committed.0 + 1));
        let len = if self.below(4) == 0 { self.options.segment_bytes } else { 200 };
        let state: Vec<u8> = (0..self.below(len)).map(|_| self.draw.draw() as u8).collect();
        let result = self.store.checkpoint(upto, &state);
        if self.did(result, Write::Checkpoint(upto, state))? {
            self.committed = upto;
            let used = self.store.usage().segments;
            self.fence()?;
            self.finish_fence();
            self.freed += u64::from(self.store.usage().segments < used);
        }
        Ok(())
    }

    pub fn fence(&mut self) -> Result<(), String> {
        self.look();
        if self.under_way.is_none() {
            let fence = self.store.fence().map_err(|error| error.to_string())?;
            self.under_way = Some((fence, self.writes.len()));
            self.look();
        }
        Ok(())
    }

    pub fn finish_fence(&mut self) {
        self.media.finish_fence();
        self.look();
    }

    fn look(&mut self) {
        if let Some((fence, count)) = self.under_way
            && self.store.fenced().unwrap() >= fence
        {
            self.fenced = count;
            self.under_way = None;
        }
    }

    /// The machine loses power and comes back.
    pub fn crash(&mut self, fences: Fences) -> Result<(), String> {
        let seed = self.draw.draw();
        let folder = self.folder.as_ref().map(|folder| folder.crash(seed));
        self.reopen(self.media.crash(seed), folder, fences)
    }

    /// The process dies, the machine goes on.
    pub fn restart(&mut self, fences: Fences) -> Result<(), String> {
        if self.below(2) == 0 {
            self.finish_fence();
            self.fence()?;
            self.finish_fence();
        }
        let folder = self.folder.as_ref().map(SimFolder::copy);
        self.reopen(self.media.copy(), folder, fences)
    }

    fn reopen(&mut self, media: SimMedia, folder: Option<SimFolder>, fences: Fences) -> Result<(), String> {
        media.set_fences(fences);
        let (store, recovered, prefix) = recover(&media, folder.as_ref(), self.options, &self.writes, self.fenced)?;
        self.writes.truncate(prefix);
        self.fenced = prefix;
        self.under_way = None;
        self.media = media;
        self.folder = folder;
        self.store = store;
        // The model goes on from what is there.
        let expected = Expected::after(&self.writes);
        self.lsn = recovered.entries.last().map_or(expected.checkpoint.as_ref().map_or(Lsn(0), |c| c.0), |e| e.lsn);
        // What was known to be committed is so, as far as it is still there.
        self.committed = self.committed.min(self.lsn);
        self.epoch += 1;
        self.next.clear();
        // Before the replica has told the trim points again, old numbers may be there, but not wrong ones.
        check(&self.store, &expected, self.folder.is_some(), true)?;
        for (color, upto) in &expected.trims {
            self.store.trim(*color, *upto);
        }
        self.store.drop_staged(&expected.dropped);
        self.check_now()
    }

    pub fn check_now(&self) -> Result<(), String> {
        check(&self.store, &Expected::after(&self.writes), self.folder.is_some(), false)
    }

    /// A world that goes on from what a crash left, which must hold the first `fenced` of `writes`.
    pub fn resume(
        seed: u64,
        media: SimMedia,
        folder: SimFolder,
        options: Options,
        writes: &[Write],
        fenced: usize,
    ) -> Result<Self, String> {
        let blank = SimMedia::new(options.limit_bytes + (1 << 20));
        let (store, _) = open(&blank, options).map_err(|error| error.to_string())?;
        let next_seq = |seq: u64, write: &Write| match write {
            Write::Staged(append) => seq.max(append.token().seq),
            _ => seq,
        };
        let mut world = Self {
            media: blank,
            folder: None,
            now: Time(0),
            options,
            store,
            writes: writes.to_vec(),
            fenced,
            under_way: None,
            draw: SplitMix(seed),
            seq: writes.iter().fold(0, next_seq),
            lsn: Lsn(0),
            // Some of what is there may have moved: all of it counts as committed.
            committed: Lsn(u64::MAX),
            next: BTreeMap::new(),
            epoch: 100,
            full: 0,
            freed: 0,
            moved: 0,
            copied_upto: None,
            copied: 0,
            taken_back: 0,
        };
        world.reopen(media, Some(folder), Fences::AtOnce)?;
        Ok(world)
    }

    /// Stages records of these lengths.
    pub fn stage_exactly(&mut self, color: u64, lens: &[usize]) -> Result<bool, String> {
        self.seq += 1;
        let seq = self.seq;
        let payloads: Vec<Vec<u8>> = lens.iter().map(|len| vec![seq as u8 | 1; *len]).collect();
        let append = append(seq, color, &payloads);
        let result = self.store.stage(&append);
        self.did(result, Write::Staged(append))
    }

    /// Gives numbers to all that is staged.
    pub fn assign_all(&mut self) -> Result<(), String> {
        let (mut assigns, mut next) = (Vec::new(), self.next.clone());
        for Staged { token, color, records, .. } in self.staged() {
            let first = *next.entry(color.0).or_insert(SeqNum::first_of(Epoch(self.epoch)));
            next.insert(color.0, first.plus(records).unwrap());
            push_assign(&mut assigns, Assign::one(token, color, first, records));
        }
        if !assigns.is_empty() && self.put(Body::Assign(assigns))? {
            self.next = next;
        }
        Ok(())
    }

    pub fn new_view(&mut self) -> Result<(), String> {
        let view = View { number: ViewNumber(self.lsn.0 as u32 + 2), members: vec![ReplicaId(1), ReplicaId(2)] };
        self.put(Body::NewView(view)).map(|_| ())
    }

    /// A checkpoint that covers everything, and a fence for it.
    pub fn checkpoint_all(&mut self) -> Result<(), String> {
        self.fence()?;
        self.finish_fence();
        self.committed = self.lsn;
        self.checkpoint()
    }

    /// One step of a random walk.
    pub fn step(&mut self, what: u64) -> Result<(), String> {
        let fences = if self.below(2) == 0 { Fences::AtOnce } else { Fences::WhenTold };
        match what {
            0..=29 => self.stage(300).map(|_| ()),
            30..=54 => self.assign(),
            55..=56 => self.hole(),
            57 => self.new_epoch(),
            58..=60 => {
                let (color, share) = (1 + self.below(3), 50 + self.below(51));
                self.trim(color, share)
            }
            61 => self.drop_one(),
            62..=63 => {
                let (color, count, again) = (1 + self.below(3), 1 + self.below(12), self.below(3) == 0);
                self.copy(color, count, again).map(|_| ())
            }
            64 => {
                let share = self.below(101);
                self.truncate(share)
            }
            65 => self.jump(),
            66 => self.seal(),
            67 => self.checkpoint(),
            68..=72 if self.store.checkpoint_wanted() => self.checkpoint(),
            68..=85 => self.fence(),
            86..=95 => {
                self.finish_fence();
                Ok(())
            }
            96..=97 => {
                self.work()?;
                self.check_now()
            }
            98 => self.crash(fences),
            _ => self.restart(fences),
        }
    }
}
