//! Members of several shards of one wide color, under an owner and leaves that are played by hand, beside a model of the
//! whole log: whatever the members answer, and the client makes of it, is what the model says.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use flexlog_protocol::api::{Answer, AppendRequest, Request, RequestId};
use flexlog_protocol::media::Recovered;
use flexlog_protocol::peer::{Of, SealReport, Staged, ToLeaf, ToMember};
use flexlog_protocol::{
    Append, Assign, Body, Color, Entry, Epoch, Incarnation, Lsn, Position, Record, ReplicaId, SeqNum, SessionId,
    ShardId, Time, Token, View, ViewNumber,
};
use proptest::prelude::*;
use rustc_hash::FxHashMap;
use uuid::Uuid;

use crate::color::after;
use crate::planted::{Bug, plant};
use crate::{ConnId, FetchId, Input, Output, Persist, Replica};

const COLOR: Color = Color::new(Position(5), true, 9).unwrap();
const CLIENT: ConnId = ConnId(1);
const SUBSCRIPTION: RequestId = 1;
const TRIM: RequestId = 2;
const LONG: u64 = 1_000_000_000;

/// Numbers on their way to a leaf.
#[derive(Clone, Copy)]
struct Grant {
    first: SeqNum,
    count: u32,
    /// `None`: they become a hole.
    token: Option<Token>,
}

/// A number that was given.
struct Given {
    shard: usize,
    /// `None`: it names none.
    record: Option<Record>,
    settled: bool,
}

enum Fetch {
    Next { fetch: FetchId, from: SeqNum, upto: SeqNum, max: usize },
    Prev { fetch: FetchId, upto: SeqNum },
    Found(Input),
}

struct Shard {
    replica: Replica,
    written: Vec<Persist>,
    durable: u64,
    staged: FxHashMap<Token, Arc<Append>>,
    records: BTreeMap<SeqNum, Record>,
    kept: Vec<Arc<Entry>>,
    checkpoint: Option<(Lsn, Bytes)>,
    fence: Option<Incarnation>,
    // Its leaf.
    epoch: u32,
    log: Vec<Arc<Entry>>,
    queue: VecDeque<Grant>,
    ended: Epoch,
    trims: Vec<SeqNum>,
    report: Option<SealReport>,
    // Its client.
    session: SessionId,
    seq: u64,
    fetches: VecDeque<Fetch>,
    tails: Vec<u64>,
    delivered: SeqNum,
    got: Vec<SeqNum>,
}

#[derive(Clone, Copy, Debug)]
enum Question {
    Read(SeqNum),
    Next(SeqNum),
    Prev(SeqNum),
}

struct Asked {
    question: Question,
    patient: bool,
    /// The tail when it was asked.
    tail: SeqNum,
    answers: Vec<Option<Answer>>,
}

struct World {
    shards: Vec<Shard>,
    given: BTreeMap<SeqNum, Given>,
    tail: SeqNum,
    /// The ends of epochs and what came after them.
    ends: Vec<(SeqNum, Epoch)>,
    /// The highest trim asked for.
    trimmed: Option<SeqNum>,
    asked: BTreeMap<RequestId, Asked>,
    draw: u64,
}

fn leaf(epoch: u32) -> Incarnation {
    Incarnation { position: Position(0), epoch: Epoch(epoch), uuid: Uuid::from_u128(epoch.into()) }
}

fn me(shard: usize) -> ReplicaId {
    ReplicaId(shard as u32 + 1)
}

impl Shard {
    fn new(at: usize) -> Self {
        let (replica, _) = Replica::restore(me(at), ShardId(at as u32), Recovered::default()).unwrap();
        Self {
            replica,
            written: vec![],
            durable: 0,
            staged: FxHashMap::default(),
            records: BTreeMap::new(),
            kept: vec![],
            checkpoint: None,
            fence: None,
            epoch: 0,
            log: vec![],
            queue: VecDeque::new(),
            ended: Epoch(1),
            trims: vec![],
            report: None,
            session: SessionId::default(),
            seq: 0,
            fetches: VecDeque::new(),
            tails: vec![],
            delivered: SeqNum::MIN,
            got: vec![],
        }
    }

    fn look(&self, fetch: &Fetch) -> Input {
        let range = |from: SeqNum, upto: SeqNum| self.records.range(from..upto.max(from)).map(|(n, r)| (*n, r.clone()));
        match fetch {
            Fetch::Next { fetch, from, upto, max } => {
                Input::Fetched { fetch: *fetch, result: Ok(range(*from, *upto).take(*max).collect()) }
            }
            Fetch::Prev { fetch, upto } => {
                let last = range(SeqNum::MIN, after(*upto)).last();
                Input::Fetched { fetch: *fetch, result: Ok(last.into_iter().collect()) }
            }
            Fetch::Found(input) => input.clone(),
        }
    }
}

impl World {
    fn new(shards: usize, draw: u64) -> Self {
        let mut world = Self {
            shards: (0..shards).map(Shard::new).collect(),
            given: BTreeMap::new(),
            tail: SeqNum::first_of(Epoch(1)),
            ends: vec![],
            trimmed: None,
            asked: BTreeMap::new(),
            draw,
        };
        for at in 0..shards {
            world.take_over(at);
            let nonce = Uuid::from_u128(99);
            world.write(at, Body::OpenSession { nonce });
            let lsn = Lsn(world.shards[at].log.len() as u64);
            world.shards[at].session = SessionId { epoch: Epoch(1), lsn };
            world.commit(at);
            world.subscribe(at);
        }
        world
    }

    fn draw(&mut self) -> u64 {
        self.draw = self.draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.draw >> 33
    }

    /// Everything below is settled on all shards.
    fn stable(&self) -> SeqNum {
        self.given.iter().find(|(_, given)| !given.settled).map_or(self.tail, |(n, _)| *n)
    }

    fn own(&self, at: usize) -> impl DoubleEndedIterator<Item = SeqNum> {
        let own = self.given.iter().filter(move |(_, given)| given.shard == at && given.record.is_some());
        own.map(|(n, _)| *n)
    }

    fn tell(&mut self, at: usize, input: Input) {
        let mut out = Vec::new();
        self.shards[at].replica.handle(Time(0), input, &mut out);
        for output in out {
            let at_once = self.draw().is_multiple_of(2);
            let shard = &mut self.shards[at];
            let fetch = match output {
                Output::Persist(what) => {
                    shard.written.push(what);
                    continue;
                }
                Output::Trim { upto, .. } => {
                    shard.records.retain(|n, _| *n > upto);
                    continue;
                }
                Output::ToLeaf(Of { message, .. }) => {
                    match message {
                        ToLeaf::TailAsk { ask, .. } => shard.tails.push(ask),
                        ToLeaf::Trim { upto, .. } => shard.trims.push(upto),
                        ToLeaf::Sealed(report) => shard.report = Some(*report),
                        _ => {}
                    }
                    continue;
                }
                Output::Answer { answer, .. } => {
                    self.answered(at, answer);
                    continue;
                }
                Output::Fetch { fetch, from, upto, max_records, .. } => {
                    Fetch::Next { fetch, from, upto, max: max_records.min(3) }
                }
                Output::FetchPrev { fetch, upto, .. } => Fetch::Prev { fetch, upto },
                other => panic!("{other:?}"),
            };
            let fetch = if at_once { Fetch::Found(shard.look(&fetch)) } else { fetch };
            shard.fetches.push_back(fetch);
        }
    }

    fn leaf(&mut self, at: usize, message: ToMember) {
        let leaf = leaf(self.shards[at].epoch);
        self.tell(at, Input::Leaf(Of { leaf, message }));
    }

    /// Makes what a member wrote durable.
    fn fence(&mut self, at: usize) {
        let shard = &mut self.shards[at];
        for what in std::mem::take(&mut shard.written) {
            shard.durable += 1;
            match what {
                Persist::Stage(append) => _ = shard.staged.insert(append.token(), append),
                Persist::Entry(entry) => {
                    if let Body::Assign(assigns) = &entry.body {
                        for (token, first) in assigns.iter().flat_map(Assign::each) {
                            let append = shard.staged.remove(&token).unwrap();
                            for (i, record) in append.records().iter().enumerate() {
                                shard.records.insert(first.plus(i as u32).unwrap(), record.clone());
                            }
                        }
                    }
                    shard.kept.push(entry);
                }
                Persist::Fence(incarnation) => shard.fence = Some(incarnation),
                Persist::Copy { .. } | Persist::Repair { .. } | Persist::Truncate { .. } => {
                    panic!("nobody has to catch up here")
                }
                Persist::Checkpoint { upto, state } => shard.checkpoint = Some((upto, state)),
            }
        }
        let upto = shard.durable;
        self.tell(at, Input::Durable { upto });
    }

    fn write(&mut self, at: usize, body: Body) {
        let shard = &mut self.shards[at];
        let entry = Entry { lsn: Lsn(shard.log.len() as u64 + 1), epoch: Epoch(shard.epoch), body };
        let entry = Arc::new(entry);
        shard.log.push(Arc::clone(&entry));
        self.leaf(at, ToMember::Entries { entries: vec![entry], commit: Lsn(0) });
    }

    /// The leaf writes what it was granted, or asked to trim.
    fn write_one(&mut self, at: usize) {
        if let Some(upto) = self.shards[at].trims.pop() {
            return self.write(at, Body::Trim { color: COLOR, upto });
        }
        let Some(Grant { first, count, token }) = self.shards[at].queue.pop_front() else { return };
        if self.shards[at].ended < first.epoch() {
            self.shards[at].ended = first.epoch();
            let (end, next) = *self.ends.iter().find(|(_, next)| *next == first.epoch()).unwrap();
            self.write(at, Body::EpochEnd { color: COLOR, end, next });
        }
        self.write(
            at,
            match token {
                Some(token) => Body::Assign(vec![Assign::one(token, COLOR, first, count)]),
                None => Body::Hole { color: COLOR, first, count },
            },
        );
    }

    fn commit(&mut self, at: usize) {
        self.fence(at);
        for entry in &self.shards[at].log {
            let numbers = match &entry.body {
                Body::Assign(assigns) => assigns.iter().map(|a| (a.first, a.count())).collect(),
                Body::Hole { first, count, .. } => vec![(*first, *count)],
                _ => vec![],
            };
            for n in numbers.iter().flat_map(|(first, count)| (0..*count).map(|i| first.plus(i).unwrap())) {
                self.given.get_mut(&n).unwrap().settled = true;
            }
        }
        let commit = Lsn(self.shards[at].log.len() as u64);
        self.leaf(at, ToMember::Entries { entries: vec![], commit });
        assert_eq!(self.shards[at].replica.commit(), commit);
    }

    fn give(&mut self, at: usize, token: Option<Token>, records: Vec<Option<Record>>) {
        let (first, count) = (self.tail, records.len() as u32);
        for (i, record) in records.into_iter().enumerate() {
            self.given.insert(first.plus(i as u32).unwrap(), Given { shard: at, record, settled: false });
        }
        self.tail = first.plus(count).unwrap();
        self.shards[at].queue.push_back(Grant { first, count, token });
    }

    fn append(&mut self, at: usize, count: u32) {
        let shard = &mut self.shards[at];
        shard.seq += 1;
        let (session, seq) = (shard.session, shard.seq);
        let token = Token { shard: ShardId(at as u32), session, seq };
        let records: Vec<_> = (0..count).map(|i| Record::new(format!("{at}/{seq}/{i}")).unwrap()).collect();
        let append = Arc::new(Append::new(token, COLOR, None, records.clone()).unwrap());
        let request =
            AppendRequest { shard: token.shard, session, low: 1, members: vec![me(at)], appends: vec![append] };
        self.tell(at, Input::Append { from: CLIENT, request: Arc::new(request) });
        self.fence(at);
        self.give(at, Some(token), records.into_iter().map(Some).collect());
    }

    fn settle(&mut self, at: usize) {
        let upto = self.stable();
        self.leaf(at, ToMember::Stable { upto: vec![(COLOR, upto)], commit: Lsn(0) });
    }

    fn new_epoch(&mut self, skip: u32) {
        let next = Epoch(self.tail.epoch().0 + skip);
        self.ends.push((self.tail, next));
        self.tail = SeqNum::first_of(next);
    }

    fn answer_tails(&mut self, at: usize) {
        let after = Lsn(self.shards[at].log.len() as u64);
        for ask in std::mem::take(&mut self.shards[at].tails) {
            let tail = self.tail;
            self.leaf(at, ToMember::Tail { ask, tail, after });
        }
    }

    fn fetch(&mut self, at: usize) {
        if let Some(fetch) = self.shards[at].fetches.pop_front() {
            let input = self.shards[at].look(&fetch);
            self.tell(at, input);
        }
    }

    fn subscribe(&mut self, at: usize) {
        let from = self.shards[at].delivered;
        let request = Request::Subscribe { id: SUBSCRIPTION, color: COLOR, tag: None, from, credit: 1 << 22 };
        self.tell(at, Input::Request { from: CLIENT, request });
    }

    /// A number near one that was given.
    fn near(&mut self) -> SeqNum {
        let draw = self.draw() as usize;
        let given = self.given.keys().nth(draw % (self.given.len() + 1)).copied().unwrap_or(self.tail);
        SeqNum::from_raw(given.to_raw() + self.draw() % 3)
    }

    fn ask(&mut self, what: u32) {
        let (n, patient) = (self.near(), !self.draw().is_multiple_of(3));
        self.ask_for(what, n, patient);
    }

    fn ask_for(&mut self, what: u32, n: SeqNum, patient: bool) -> RequestId {
        let id = 10 + self.asked.len() as u64;
        let (color, tag, wait_micros) = (COLOR, None, if patient { LONG } else { 0 });
        let (question, request) = match what % 3 {
            0 => (Question::Read(n), Request::Read { id, color, number: n, wait_micros }),
            1 => (Question::Next(n), Request::ReadNext { id, color, tag, from: n, wait_micros }),
            _ => (Question::Prev(n), Request::ReadPrev { id, color, tag, upto: n, wait_micros }),
        };
        let answers = vec![None; self.shards.len()];
        self.asked.insert(id, Asked { question, patient, tail: self.tail, answers });
        for at in 0..self.shards.len() {
            self.tell(at, Input::Request { from: CLIENT, request: request.clone() });
        }
        id
    }

    fn trim(&mut self) {
        let upto = self.near();
        if upto < self.stable() {
            self.trimmed = self.trimmed.max(Some(upto));
            for at in 0..self.shards.len() {
                let request = Request::Trim { id: TRIM, color: COLOR, upto };
                self.tell(at, Input::Request { from: CLIENT, request });
            }
        }
    }

    /// The member's process ends, and what is not durable is lost; another one follows a new leaf.
    fn restart(&mut self, at: usize) {
        let shard = &mut self.shards[at];
        let upto = shard.checkpoint.as_ref().map_or(Lsn(0), |(lsn, _)| *lsn);
        let entries = shard.kept.iter().filter(|entry| entry.lsn > upto).map(|entry| (**entry).clone()).collect();
        let staged_of = |append: &Arc<Append>| {
            let (token, color) = (append.token(), append.color());
            Staged { token, color, records: append.count(), digest: append.digest() }
        };
        let staged = shard.staged.values().map(staged_of).collect();
        let recovered = Recovered { fence: shard.fence, checkpoint: shard.checkpoint.clone(), entries, staged };
        let (replica, _) = Replica::restore(me(at), ShardId(at as u32), recovered).unwrap();
        shard.replica = replica;
        shard.written.clear();
        shard.durable = 0;
        shard.fetches.clear();
        shard.tails.clear();
        let lost = shard.log.split_off(shard.kept.len());
        self.take_over(at);
        for entry in lost {
            self.write(at, entry.body.clone());
        }
        self.subscribe(at);
    }

    /// A new leaf seals the member, and goes on from what it reports.
    fn take_over(&mut self, at: usize) {
        self.shards[at].epoch += 1;
        self.leaf(at, ToMember::Seal);
        self.fence(at);
        let report = self.shards[at].report.take().expect("a sealed member reports");
        let shard = &mut self.shards[at];
        shard.tails.retain(|ask| *ask == 0);
        shard.log.truncate(report.last.1.0 as usize);
        if let Some(end) = report.colors.iter().find(|end| end.color == COLOR) {
            assert!(end.stable <= self.stable());
            let committed = self.shards[at].log.iter().filter(|entry| entry.lsn <= report.commit);
            let mut numbers: Vec<SeqNum> = committed
                .flat_map(|entry| match &entry.body {
                    Body::Assign(assigns) => assigns.iter().map(|a| (a.first, a.count())).collect(),
                    Body::Hole { first, count, .. } => vec![(*first, *count)],
                    _ => vec![],
                })
                .flat_map(|(first, count)| (0..count).map(move |i| first.plus(i).unwrap()))
                .filter(|n| *n >= end.stable)
                .collect();
            numbers.sort_unstable();
            let own = end.own.iter().flat_map(|range| (0..range.count).map(|i| range.first.plus(i).unwrap()));
            assert_eq!(own.collect::<Vec<_>>(), numbers);
        }
        let members = vec![me(at)];
        self.write(at, Body::NewView(View { number: ViewNumber(1), members }));
    }

    fn step(&mut self, op: u8, shard: u8, x: u32) {
        let at = usize::from(shard) % self.shards.len();
        match op {
            0..=19 => self.append(at, 1 + x % 3),
            20..=24 => self.give(at, None, (0..=x % 3).map(|_| None).collect()),
            25..=39 => self.write_one(at),
            40..=49 => self.commit(at),
            50..=59 => self.settle(at),
            60..=61 => self.new_epoch(1 + x % 2),
            62..=67 => self.answer_tails(at),
            68..=79 => self.fetch(at),
            80..=91 => self.ask(x),
            92..=93 => self.trim(),
            94..=95 => {
                self.tell(at, Input::CheckpointWanted);
                self.fence(at);
            }
            96 => self.take_over(at),
            _ => self.restart(at),
        }
    }

    /// Everything gets where it is going; what was asked is answered and delivered.
    fn finish(&mut self) {
        for _ in 0..2 {
            for at in 0..self.shards.len() {
                while !self.shards[at].queue.is_empty() || !self.shards[at].trims.is_empty() {
                    self.write_one(at);
                }
                self.commit(at);
            }
            for at in 0..self.shards.len() {
                self.settle(at);
                while !self.shards[at].fetches.is_empty() || !self.shards[at].tails.is_empty() {
                    self.answer_tails(at);
                    self.fetch(at);
                }
            }
        }
        assert_eq!(self.stable(), self.tail);
        for (at, shard) in self.shards.iter().enumerate() {
            let last = shard.log.iter().rev().find_map(|entry| match &entry.body {
                Body::Trim { upto, .. } => Some(*upto),
                _ => None,
            });
            assert!(last <= self.trimmed);
            assert_eq!(shard.delivered, self.tail, "shard {at} delivers all that is settled");
            let missing = self.own(at).find(|n| Some(*n) > self.trimmed && !shard.got.contains(n));
            assert_eq!(missing, None, "shard {at} delivers all of its own");
        }
        for asked in self.asked.values() {
            self.merged(asked);
        }
    }

    /// A member's answer, when it comes.
    fn answered(&mut self, at: usize, answer: Answer) {
        let stable = self.stable();
        let is_own = |n: SeqNum, record: &Record| {
            let given = &self.given[&n];
            assert!(n < stable && given.settled, "{n} was shown before it and all below were settled");
            assert_eq!((given.shard, given.record.as_ref()), (at, Some(record)));
        };
        let id = match &answer {
            Answer::Record { id, .. } | Answer::Trimmed { id, .. } | Answer::NotYet { id, .. } => *id,
            Answer::Hole { id } | Answer::NothingBefore { id } | Answer::Elsewhere { id } => *id,
            Answer::Delivered { id, records, upto } => {
                assert_eq!(*id, SUBSCRIPTION);
                assert!(*upto <= stable, "{upto} is not settled");
                records.iter().for_each(|(n, record)| is_own(*n, record));
                let numbers: Vec<SeqNum> = records.iter().map(|(n, _)| *n).collect();
                let from = self.shards[at].delivered;
                let expected: Vec<SeqNum> = self.own(at).filter(|n| (from..*upto).contains(n)).collect();
                assert_eq!(numbers, expected, "from {from} up to {upto}");
                self.shards[at].delivered = *upto;
                self.shards[at].got.extend(numbers);
                return;
            }
            Answer::Appended(_) | Answer::SessionOpened { .. } | Answer::TrimDone { .. } => return,
            other => panic!("{other:?}"),
        };
        if let Answer::Trimmed { point, .. } = answer {
            assert!(Some(point) <= self.trimmed, "{point} was not trimmed");
            if id == SUBSCRIPTION {
                assert!(point >= self.shards[at].delivered);
                self.shards[at].delivered = after(point);
                return;
            }
        }
        let asked = &self.asked[&id];
        // What the answer must take into account.
        let first = |from: SeqNum| self.own(at).find(|n| *n >= from);
        let last = |upto: SeqNum| self.own(at).rfind(|n| *n <= upto && *n < asked.tail);
        match (asked.question, &answer) {
            (Question::Read(n), Answer::Record { number, record, .. }) => {
                is_own(*number, record);
                assert_eq!(*number, n);
            }
            (Question::Read(n), Answer::Elsewhere { .. }) => {
                assert!(n < stable && first(n) != Some(n), "{n} is here");
            }
            (Question::Read(n), Answer::Hole { .. }) => {
                assert!(n < stable && self.given.get(&n).is_none_or(|given| given.record.is_none()), "{n} is no hole");
            }
            (Question::Read(n) | Question::Next(n), Answer::Trimmed { point, .. }) => assert!(n <= *point),
            (Question::Read(n), Answer::NotYet { tail, .. }) => {
                assert!(*tail >= asked.tail && (n >= *tail || !asked.patient), "{n} is below {tail}");
            }
            (Question::Next(from), Answer::Record { number, record, .. }) => {
                is_own(*number, record);
                assert_eq!(Some(*number), first(from), "the next from {from}");
            }
            (Question::Next(from), Answer::NotYet { tail, .. }) => {
                assert!(*tail <= self.tail && (*tail >= asked.tail || !asked.patient));
                assert!(first(from).is_none_or(|n| n >= *tail), "there is one from {from} below {tail}");
            }
            (Question::Prev(upto), Answer::Record { number, record, .. }) => {
                is_own(*number, record);
                assert!(*number <= upto && last(upto) <= Some(*number), "the last up to {upto} is not {number}");
            }
            (Question::Prev(upto), Answer::NothingBefore { .. }) => assert_eq!(last(upto), None, "up to {upto}"),
            (Question::Prev(upto), Answer::Trimmed { point, .. }) => assert!(last(upto) <= Some(*point)),
            (Question::Prev(_), Answer::NotYet { .. }) => assert!(!asked.patient),
            (question, answer) => panic!("{question:?} is answered with {answer:?}"),
        }
        let answers = &mut self.asked.get_mut(&id).unwrap().answers[at];
        assert_eq!(answers.replace(answer), None, "it is answered once");
    }

    /// What a client makes of the answers of all shards, where it has them.
    fn merged(&self, asked: &Asked) {
        let Some(answers) = asked.answers.iter().cloned().collect::<Option<Vec<_>>>() else { return };
        if answers.iter().any(|answer| matches!(answer, Answer::Trimmed { .. })) {
            return;
        }
        let mut numbers: Vec<SeqNum> = answers
            .iter()
            .filter_map(|answer| match answer {
                Answer::Record { number, .. } => Some(*number),
                _ => None,
            })
            .collect();
        numbers.sort_unstable();
        let records = || self.given.iter().filter(|(_, given)| given.record.is_some()).map(|(n, _)| *n);
        let below = answers.iter().filter_map(|answer| match answer {
            Answer::NotYet { tail, .. } => Some(*tail),
            _ => None,
        });
        let waits = below.min();
        match asked.question {
            Question::Read(n) => match numbers.as_slice() {
                [found] => assert_eq!(*found, n),
                [] => assert!(waits.is_some() || !records().any(|other| other == n), "{n} is lost"),
                more => panic!("{n} is on {} shards", more.len()),
            },
            Question::Next(from) => {
                if let Some(first) = numbers.first().filter(|first| waits.is_none_or(|tail| tail > **first)) {
                    assert_eq!(records().find(|n| *n >= from), Some(*first), "from {from}");
                }
            }
            Question::Prev(upto) if waits.is_none() => {
                let last = records().filter(|n| *n <= upto && *n < asked.tail).last();
                assert!(numbers.last().copied() >= last, "{last:?} is lost, the last up to {upto}");
            }
            Question::Prev(_) => {}
        }
    }
}

fn walk(shards: usize, seed: u64, steps: &[(u8, u8, u32)]) {
    let mut world = World::new(shards, seed);
    for (op, shard, x) in steps {
        world.step(*op, *shard, *x);
    }
    world.finish();
}

proptest! {
    #[test]
    fn what_all_shards_answer_is_what_the_model_says(
        shards in 2usize..4, seed: u64, steps in prop::collection::vec((0u8..100, any::<u8>(), any::<u32>()), 1..300),
    ) {
        walk(shards, seed, &steps);
    }
}

/// How many of some walks notice a mistake.
fn noticed(bug: Bug) -> usize {
    plant(Some(bug));
    let found = (0..40u64).filter(|seed| {
        let mut draw = *seed;
        let mut next = || {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            draw >> 33
        };
        let steps: Vec<_> = (0..300).map(|_| ((next() % 100) as u8, next() as u8, next() as u32)).collect();
        std::panic::catch_unwind(|| walk(3, *seed, &steps)).is_err()
    });
    let found = found.count();
    plant(None);
    found
}

#[test]
fn planted_mistakes_are_noticed() {
    for bug in [Bug::OwnNumbersMoveStable, Bug::ReadsBeyondStable] {
        let found = noticed(bug);
        assert!(found > 5, "{bug:?} is noticed by {found} of 40 walks");
    }
}

fn n(epoch: u32, counter: u32) -> SeqNum {
    SeqNum::new(Epoch(epoch), counter)
}

#[test]
fn a_leaf_is_asked_once_to_follow_a_color_that_is_subscribed_to_or_appended_to() {
    let mut world = World::new(1, 0);
    assert_eq!(std::mem::take(&mut world.shards[0].tails), [0]);
    world.append(0, 1);
    assert_eq!(world.shards[0].tails, [], "it was asked");
    world.take_over(0);
    assert_eq!(std::mem::take(&mut world.shards[0].tails), [0], "the new leaf does not know");
    world.commit(0);
    world.settle(0);
    world.append(0, 1);
    world.take_over(0);
    assert_eq!(world.shards[0].tails, [], "it has told how far the color is settled");
}

#[test]
fn a_color_that_is_followed_is_reported_without_numbers_too() {
    let mut world = World::new(2, 0);
    world.append(1, 2);
    world.write_one(1);
    world.commit(1);
    world.settle(0);
    world.leaf(0, ToMember::Seal);
    let report = world.shards[0].report.take().unwrap();
    let end = &report.colors[0];
    assert_eq!((end.color, end.end, end.closed, end.stable), (COLOR, SeqNum::MIN, false, n(1, 2)));
    assert_eq!(end.own, []);
}

#[test]
fn stable_waits_for_what_was_told_to_be_committed_before() {
    let mut world = World::new(1, 0);
    world.append(0, 1);
    world.write_one(0);
    let commit = Lsn(world.shards[0].log.len() as u64);
    world.given.values_mut().for_each(|given| given.settled = true);
    world.leaf(0, ToMember::Entries { entries: vec![], commit });
    world.settle(0);
    assert_eq!(world.shards[0].replica.stable(COLOR), SeqNum::MIN, "the entry is not durable here");
    world.commit(0);
    assert_eq!(world.shards[0].replica.stable(COLOR), n(1, 1));
}

#[test]
fn who_does_not_wait_is_told_how_far_this_shard_was_looked_through() {
    let mut world = World::new(2, 0);
    for at in 0..2 {
        world.append(at, 1);
        world.write_one(at);
    }
    world.commit(1);
    world.settle(1);
    let id = world.ask_for(1, n(1, 0), false);
    world.answer_tails(1);
    assert_eq!(world.asked[&id].answers[1], Some(Answer::NotYet { id, tail: n(1, 0) }));
    world.commit(0);
    world.settle(1);
    let id = world.ask_for(1, n(1, 0), false);
    world.fetch(1);
    world.fetch(1);
    let found = &world.asked[&id].answers[1];
    assert!(matches!(found, Some(Answer::Record { number, .. }) if *number == n(1, 1)), "{found:?}");
}
