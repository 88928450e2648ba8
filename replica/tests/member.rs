//! One rule of a member a test, as lists of what it does. The leaf and the store are played by hand.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "a test that panics has failed")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use flexlog_protocol::api::{Answer, AppendRefusal, AppendRequest, Appended, Failure, Request};
use flexlog_protocol::limits::{MAX_STAGED_BYTES, TOKEN_WINDOW};
use flexlog_protocol::media::Recovered;
use flexlog_protocol::peer::{Of, PeerMessage, SealReport, Staged, ToLeaf, ToMember};
use flexlog_protocol::{
    Append, Assign, Body, Color, Entry, Epoch, Incarnation, Lsn, Position, Record, ReplicaId, SeqNum, SessionId,
    ShardId, Time, Token, View, ViewNumber,
};
use flexlog_replica::{ConnId, Damage, FetchId, Input, Output, Persist, Replica};
use uuid::Uuid;

#[path = "member/learning.rs"]
mod learning;
#[path = "member/mending.rs"]
mod mending;

const ME: ReplicaId = ReplicaId(2);
const SHARD: ShardId = ShardId(1);
const COLOR: Color = Color(1);
const CLIENT: ConnId = ConnId(7);
const SECOND: u64 = 1_000_000;

fn leaf(epoch: u32) -> Incarnation {
    Incarnation { position: Position(0), epoch: Epoch(epoch), uuid: Uuid::from_u128(epoch.into()) }
}

fn view(number: u32) -> View {
    View { number: ViewNumber(number), members: vec![ReplicaId(1), ME] }
}

fn n(epoch: u32, counter: u32) -> SeqNum {
    SeqNum::new(Epoch(epoch), counter)
}

/// A member, its store, and the leaf that it follows.
struct Bench {
    replica: Replica,
    now: Time,
    /// Writes that were asked for and are not durable.
    written: Vec<Persist>,
    durable: u64,
    staged: HashMap<Token, Arc<Append>>,
    records: BTreeMap<(Color, SeqNum), Record>,
    /// Those of them that cannot be read.
    damaged: BTreeSet<(Color, SeqNum)>,
    fetches: Vec<(FetchId, Color, SeqNum, SeqNum, usize, usize)>,
    entries: Vec<Arc<Entry>>,
    checkpoint: Option<(Lsn, Bytes)>,
    fence: Option<Incarnation>,
    epoch: u32,
    lsn: u64,
}

impl Bench {
    /// A fresh member without a leaf.
    fn fresh() -> Self {
        Self::over(Recovered::default())
    }

    fn over(recovered: Recovered) -> Self {
        let entries: Vec<Arc<Entry>> = recovered.entries.iter().cloned().map(Arc::new).collect();
        let fence = recovered.fence;
        let checkpoint = recovered.checkpoint.clone();
        let lsn = entries.last().map_or(checkpoint.as_ref().map_or(0, |(lsn, _)| lsn.0), |entry| entry.lsn.0);
        let (replica, _) = Replica::restore(ME, SHARD, recovered).unwrap();
        Self {
            replica,
            now: Time(0),
            written: vec![],
            durable: 0,
            staged: HashMap::new(),
            records: BTreeMap::new(),
            damaged: BTreeSet::new(),
            fetches: vec![],
            entries,
            checkpoint,
            fence,
            epoch: 0,
            lsn,
        }
    }

    /// A member that follows the leaf of epoch 1, in a committed view, with a session opened by `CLIENT`.
    fn serving() -> (Self, SessionId) {
        let mut bench = Self::fresh();
        bench.seal(1);
        bench.commit(Body::NewView(view(1)));
        let session = bench.open_session(1);
        (bench, session)
    }

    fn step(&mut self, input: Input) -> Vec<Output> {
        let mut all = Vec::new();
        self.replica.handle(self.now, input, &mut all);
        let mut rest = Vec::new();
        for output in all {
            match output {
                Output::Persist(what) => self.written.push(what),
                Output::Fetch { fetch, color, from, upto, max_records, max_bytes } => {
                    self.fetches.push((fetch, color, from, upto, max_records, max_bytes));
                }
                other => rest.push(other),
            }
        }
        rest
    }

    /// Makes everything written durable.
    fn fence(&mut self) -> Vec<Output> {
        for what in std::mem::take(&mut self.written) {
            self.durable += 1;
            match what {
                Persist::Stage(append) => {
                    self.staged.insert(append.token(), append);
                }
                Persist::Entry(entry) => {
                    if let Body::Assign(assigns) = &entry.body {
                        for (assign, (token, first)) in assigns.iter().flat_map(|a| a.each().map(move |e| (a, e))) {
                            let append = self.staged.remove(&token).unwrap();
                            for (i, record) in append.records().iter().enumerate() {
                                let number = first.plus(i as u32).unwrap();
                                self.records.insert((assign.color, number), record.clone());
                            }
                        }
                    }
                    self.entries.push(entry);
                }
                Persist::Fence(incarnation) => self.fence = Some(incarnation),
                Persist::Copy { color, first, records } => {
                    for (i, record) in records.into_iter().enumerate() {
                        self.records.insert((color, first.plus(i as u32).unwrap()), record);
                    }
                }
                Persist::Repair { color, number, record } => {
                    self.damaged.remove(&(color, number));
                    self.records.insert((color, number), record);
                }
                Persist::Truncate { upto, entries } => {
                    self.entries.retain(|entry| entry.lsn <= upto);
                    let assigns = entries.iter().flat_map(|entry| match &entry.body {
                        Body::Assign(assigns) => assigns.clone(),
                        _ => vec![],
                    });
                    for assign in assigns {
                        for (token, first) in assign.each() {
                            let numbers = (0..assign.records).map(|i| first.plus(i).unwrap());
                            let records = numbers.map(|n| self.records.remove(&(assign.color, n)).unwrap()).collect();
                            let append = Append::new(token, assign.color, None, records).unwrap();
                            self.staged.insert(token, Arc::new(append));
                        }
                    }
                }
                Persist::Checkpoint { upto, state } => self.checkpoint = Some((upto, state)),
            }
        }
        let upto = self.durable;
        self.step(Input::Durable { upto })
    }

    /// Answers every fetch, and those that follow from it.
    fn fetch(&mut self) -> Vec<Output> {
        let mut all = Vec::new();
        while let Some((fetch, color, from, upto, max_records, max_bytes)) = self.fetches.pop() {
            let mut bytes = 0;
            let here = self.records.range((color, from)..(color, upto)).take(max_records);
            let bad = here.clone().next().map(|(at, _)| *at).filter(|at| self.damaged.contains(at));
            let here = here.take_while(|(at, _)| !self.damaged.contains(at));
            let found = here.take_while(|(_, record)| {
                let fits = bytes == 0 || bytes < max_bytes;
                bytes += record.payload().len().max(1);
                fits
            });
            let found = found.map(|((_, number), record)| (*number, record.clone())).collect();
            let result = bad.map_or(Ok(found), |at| Err(damage(at)));
            all.extend(self.step(Input::Fetched { fetch, result }));
        }
        all
    }

    fn leaf(&mut self, message: ToMember) -> Vec<Output> {
        let leaf = leaf(self.epoch);
        self.step(Input::Leaf(Of { leaf, message }))
    }

    fn seal(&mut self, epoch: u32) -> SealReport {
        self.epoch = epoch;
        assert_eq!(self.leaf(ToMember::Seal), []);
        let outputs = self.fence();
        let report = outputs.into_iter().find_map(|output| match output {
            Output::ToLeaf(Of { message: ToLeaf::Sealed(report), .. }) => Some(*report),
            _ => None,
        });
        report.expect("a sealed member reports")
    }

    /// The leaf writes an entry; it is not persisted yet.
    fn write(&mut self, body: Body) -> Vec<Output> {
        self.lsn += 1;
        let entry = Arc::new(Entry { lsn: Lsn(self.lsn), epoch: Epoch(self.epoch), body });
        self.leaf(ToMember::Entries { entries: vec![entry], commit: Lsn(0) })
    }

    fn commit_all(&mut self) -> Vec<Output> {
        let commit = Lsn(self.lsn);
        self.leaf(ToMember::Entries { entries: vec![], commit })
    }

    /// The leaf writes an entry and commits it.
    fn commit(&mut self, body: Body) -> Vec<Output> {
        self.write(body);
        self.fence();
        self.commit_all()
    }

    fn open_session(&mut self, nonce: u128) -> SessionId {
        let nonce = Uuid::from_u128(nonce);
        let request = Request::OpenSession { id: 1, shard: SHARD, nonce };
        self.step(Input::Request { from: CLIENT, request });
        self.commit(Body::OpenSession { nonce });
        SessionId { epoch: Epoch(self.epoch), lsn: Lsn(self.lsn) }
    }

    fn append(&mut self, session: SessionId, seq: u64, payload: &str) -> Vec<Output> {
        self.append_with(session, seq, 1, &[payload])
    }

    fn append_with(&mut self, session: SessionId, seq: u64, low: u64, payloads: &[&str]) -> Vec<Output> {
        let append = Arc::new(make(session, seq, payloads));
        let request = AppendRequest { shard: SHARD, session, low, members: vec![ME], appends: vec![append] };
        self.step(Input::Append { from: CLIENT, request: Arc::new(request) })
    }

    /// Appends one record that is settled when this returns.
    fn settle(&mut self, session: SessionId, seq: u64, payload: &str, number: SeqNum) {
        self.append(session, seq, payload);
        self.fence();
        self.commit(assign(session, seq, number));
    }

    fn ask(&mut self, request: Request) -> Vec<Output> {
        self.step(Input::Request { from: CLIENT, request })
    }

    fn read(&mut self, number: SeqNum) -> Vec<Output> {
        let mut outputs = self.ask(Request::Read { id: 9, color: COLOR, number, wait_micros: SECOND });
        outputs.extend(self.fetch());
        outputs
    }

    /// The leaf's answer to the only tail question in `outputs`.
    fn tail(&mut self, outputs: &[Output], tail: SeqNum) -> Vec<Output> {
        let ask = outputs.iter().find_map(|output| match output {
            Output::ToLeaf(Of { message: ToLeaf::TailAsk { ask, .. }, .. }) => Some(*ask),
            _ => None,
        });
        let ask = ask.unwrap_or_else(|| panic!("no tail question in {outputs:?}"));
        let mut outputs = self.leaf(ToMember::Tail { ask, tail, after: Lsn(0) });
        outputs.extend(self.fetch());
        outputs
    }

    /// The same member after a crash.
    fn restart(self) -> Self {
        let upto = self.checkpoint.as_ref().map_or(Lsn(0), |(lsn, _)| *lsn);
        let entries = self.entries.iter().filter(|entry| entry.lsn > upto).map(|entry| (**entry).clone()).collect();
        let mut staged: Vec<Staged> = self.staged.values().map(|append| staged_of(append)).collect();
        staged.sort_by_key(|staged| staged.token);
        let recovered = Recovered { fence: self.fence, checkpoint: self.checkpoint, entries, staged };
        let next = Self::over(recovered);
        Self { staged: self.staged, records: self.records, entries: self.entries, ..next }
    }
}

fn damage((color, number): (Color, SeqNum)) -> Damage {
    let why = format!("store: the record {color}/{number} is damaged");
    Damage { color, number, end: number.plus(1).unwrap(), why }
}

fn make(session: SessionId, seq: u64, payloads: &[&str]) -> Append {
    let token = Token { shard: SHARD, session, seq };
    let records = payloads.iter().map(|p| Record::new(p.to_string()).unwrap()).collect();
    Append::new(token, COLOR, None, records).unwrap()
}

fn staged_of(append: &Append) -> Staged {
    let (token, color, records, digest) = (append.token(), append.color(), append.count(), append.digest());
    Staged { token, color, records, digest }
}

fn assign(session: SessionId, seq: u64, first: SeqNum) -> Body {
    Body::Assign(vec![Assign::one(Token { shard: SHARD, session, seq }, COLOR, first, 1)])
}

fn answer(answer: Answer) -> Output {
    Output::Answer { to: CLIENT, answer }
}

fn to_leaf(epoch: u32, message: ToLeaf) -> Output {
    Output::ToLeaf(Of { leaf: leaf(epoch), message })
}

fn appended(session: SessionId, seq: u64, first: SeqNum, settled: bool) -> Output {
    let run = Assign::one(Token { shard: SHARD, session, seq }, COLOR, first, 1);
    answer(Answer::Appended(Appended { members: vec![ME], view: view(1), settled, runs: vec![run] }))
}

fn refused(session: SessionId, seq: u64, why: AppendRefusal) -> Output {
    let token = Token { shard: SHARD, session, seq };
    answer(Answer::AppendRefused { token, member: ME, why })
}

fn record(number: SeqNum, payload: &str) -> Output {
    answer(Answer::Record { id: 9, number, record: Record::new(payload.to_owned()).unwrap() })
}

#[test]
fn a_record_is_reported_once_it_is_durable() {
    let (mut bench, session) = Bench::serving();
    assert_eq!(bench.append(session, 1, "a"), []);
    let staged = staged_of(&make(session, 1, &["a"]));
    assert_eq!(bench.fence(), [to_leaf(1, ToLeaf::Persisted(vec![staged]))]);
}

#[test]
fn a_number_is_told_once_its_entry_is_durable_and_shown_to_readers_once_it_is_committed() {
    let (mut bench, session) = Bench::serving();
    bench.append(session, 1, "a");
    bench.fence();
    assert_eq!(bench.write(assign(session, 1, n(1, 0))), []);
    let lsn = Lsn(bench.lsn);
    assert_eq!(bench.fence(), [to_leaf(1, ToLeaf::Acked(lsn)), appended(session, 1, n(1, 0), false)]);
    let asked = bench.read(n(1, 0));
    assert!(!asked.contains(&record(n(1, 0), "a")), "not settled");
    assert_eq!(bench.tail(&asked, n(1, 1)), [], "given, so the reader waits");
    bench.commit_all();
    assert_eq!(bench.fetch(), [record(n(1, 0), "a")]);
    assert_eq!(bench.read(n(1, 0)), [record(n(1, 0), "a")]);
}

#[test]
fn a_retry_is_answered_with_the_number_it_has() {
    let (mut bench, session) = Bench::serving();
    bench.append(session, 1, "a");
    assert_eq!(bench.append(session, 1, "a"), [], "on its way");
    bench.fence();
    assert_eq!(bench.append(session, 1, "a"), [], "staged");
    bench.write(assign(session, 1, n(1, 0)));
    assert_eq!(bench.append(session, 1, "a"), [], "numbered, and not durable");
    bench.fence();
    assert_eq!(bench.append(session, 1, "a"), [appended(session, 1, n(1, 0), false)]);
    bench.commit_all();
    assert_eq!(bench.append(session, 1, "a"), [appended(session, 1, n(1, 0), true)]);
    assert!(bench.written.is_empty(), "nothing was staged twice");
}

#[test]
fn other_records_under_a_used_token_are_a_conflict() {
    let (mut bench, session) = Bench::serving();
    bench.append(session, 1, "a");
    assert_eq!(bench.append(session, 1, "b"), [refused(session, 1, AppendRefusal::Conflict)]);
    bench.fence();
    bench.commit(assign(session, 1, n(1, 0)));
    assert_eq!(bench.append(session, 1, "b"), [refused(session, 1, AppendRefusal::Conflict)]);
}

#[test]
fn appends_outside_the_window_or_the_session_are_refused() {
    let (mut bench, session) = Bench::serving();
    let full = bench.append(session, TOKEN_WINDOW + 1, "a");
    assert_eq!(full, [refused(session, TOKEN_WINDOW + 1, AppendRefusal::WindowFull)]);
    bench.append_with(session, 5, 5, &["a"]);
    assert_eq!(bench.append(session, 4, "a"), [refused(session, 4, AppendRefusal::TooOld)]);
    let other = SessionId { epoch: Epoch(1), lsn: Lsn(99) };
    assert_eq!(bench.append(other, 1, "a"), [refused(other, 1, AppendRefusal::SessionExpired)]);
}

#[test]
fn staged_bytes_are_bounded_and_come_free_with_the_number() {
    let (mut bench, session) = Bench::serving();
    let large = "x".repeat(1 << 20);
    let fit = MAX_STAGED_BYTES / (large.len() as u64 + 1);
    for seq in 1..=fit {
        assert_eq!(bench.append(session, seq, &large), []);
    }
    assert_eq!(bench.append(session, fit + 1, &large), [refused(session, fit + 1, AppendRefusal::Busy)]);
    bench.fence();
    bench.commit(assign(session, 1, n(1, 0)));
    assert_eq!(bench.append(session, fit + 1, &large), []);
}

#[test]
fn a_full_store_leaves_nothing_of_the_append() {
    let (mut bench, session) = Bench::serving();
    bench.append(session, 1, "a");
    let Some(Persist::Stage(append)) = bench.written.pop() else { panic!("the append is staged") };
    let outputs = bench.step(Input::StageRefused(append.token()));
    assert_eq!(outputs, [refused(session, 1, AppendRefusal::Full)]);
    bench.durable += 1;
    assert_eq!(bench.fence(), [], "there is nothing to report");
    assert_eq!(bench.append(session, 1, "a"), []);
    let staged = staged_of(&make(session, 1, &["a"]));
    assert_eq!(bench.fence(), [to_leaf(1, ToLeaf::Persisted(vec![staged]))]);
}

#[test]
fn what_was_on_its_way_when_the_store_failed_is_refused() {
    let (mut bench, session) = Bench::serving();
    bench.append(session, 1, "a");
    bench.step(Input::StoreFailed("no disk".into()));
    assert_eq!(bench.append(session, 1, "a"), [refused(session, 1, AppendRefusal::StorageFailed)]);
}

#[test]
fn staged_bytes_stay_below_the_share_of_a_small_store() {
    let (mut bench, session) = Bench::serving();
    bench.replica = bench.replica.with_staged_limit(10);
    assert_eq!(bench.append(session, 1, "12345"), []);
    assert_eq!(bench.append(session, 2, "12345"), [refused(session, 2, AppendRefusal::Busy)]);
}

#[test]
fn an_old_leaf_changes_nothing() {
    let (mut bench, session) = Bench::serving();
    bench.append(session, 1, "a");
    bench.fence();
    bench.seal(2);
    bench.epoch = 1;
    assert_eq!(bench.write(assign(session, 1, n(1, 0))), []);
    assert_eq!(bench.leaf(ToMember::Confirm { round: 1 }), []);
    assert_eq!(bench.leaf(ToMember::Seal), []);
    assert!(bench.written.is_empty());
    bench.epoch = 2;
    assert_eq!(bench.leaf(ToMember::Confirm { round: 1 }), [to_leaf(2, ToLeaf::Confirmed { round: 1 })]);
}

#[test]
fn between_the_seal_and_its_fence_neither_leaf_is_heeded() {
    let (mut bench, _) = Bench::serving();
    bench.epoch = 2;
    bench.leaf(ToMember::Seal);
    for epoch in [1, 2] {
        bench.epoch = epoch;
        assert_eq!(bench.leaf(ToMember::Confirm { round: 1 }), []);
    }
}

#[test]
fn the_seal_report_covers_all_that_came_before_it() {
    let (mut bench, session) = Bench::serving();
    bench.settle(session, 1, "a", n(1, 0));
    bench.append(session, 2, "b");
    bench.append(session, 3, "c");
    bench.fence();
    bench.write(assign(session, 2, n(1, 1)));
    let (commit, last) = (Lsn(bench.lsn - 1), Lsn(bench.lsn));
    let report = bench.seal(2);
    assert_eq!((report.last, report.commit), ((Epoch(1), last), commit));
    assert_eq!(report.entries.iter().map(|entry| entry.lsn).collect::<Vec<_>>(), [last]);
    assert_eq!(report.staged, [staged_of(&make(session, 3, &["c"]))]);
    assert_eq!(report.colors.iter().map(|end| (end.end, end.closed)).collect::<Vec<_>>(), [(n(1, 1), false)]);
    assert_eq!((report.sessions, report.view), (vec![session], Some(view(1))));
}

#[test]
fn a_missing_record_is_pulled_from_a_member_that_has_it() {
    let (mut bench, session) = Bench::serving();
    let token = Token { shard: SHARD, session, seq: 1 };
    let from = ReplicaId(1);
    let pull = Output::ToPeer { to: from, message: PeerMessage::Pull { token } };
    assert_eq!(bench.leaf(ToMember::Complete { token, from }), [pull]);
    let append = Arc::new(make(session, 1, &["a"]));
    bench.step(Input::Peer { from, message: PeerMessage::Pulled(Arc::clone(&append)) });
    let report = to_leaf(1, ToLeaf::Persisted(vec![staged_of(&append)]));
    assert_eq!(bench.fence(), std::slice::from_ref(&report));
    assert_eq!(bench.leaf(ToMember::Complete { token, from }), [report], "told again, it reports again");
    let outputs = bench.step(Input::Peer { from, message: PeerMessage::Pull { token } });
    assert_eq!(outputs, [Output::FetchStaged { token, to: from }]);
    let unknown = Token { seq: 2, ..token };
    let outputs = bench.step(Input::Peer { from, message: PeerMessage::Pull { token: unknown } });
    let message = PeerMessage::NotHere { token: unknown };
    assert_eq!(outputs, [Output::ToPeer { to: from, message }]);
}

#[test]
fn a_nonce_names_one_session_which_is_told_once_committed() {
    let mut bench = Bench::fresh();
    bench.seal(1);
    bench.commit(Body::NewView(view(1)));
    let nonce = Uuid::from_u128(5);
    let open = Request::OpenSession { id: 1, shard: SHARD, nonce };
    assert_eq!(bench.ask(open.clone()), [to_leaf(1, ToLeaf::OpenSession { nonce })]);
    bench.write(Body::OpenSession { nonce });
    bench.fence();
    let session = SessionId { epoch: Epoch(1), lsn: Lsn(bench.lsn) };
    let opened = answer(Answer::SessionOpened { id: 1, session });
    assert_eq!(bench.commit_all(), std::slice::from_ref(&opened));
    assert_eq!(bench.ask(open), [opened]);
    bench.commit(Body::OpenSession { nonce });
    assert_eq!(bench.replica.summary().sessions, 1);
}

#[test]
fn a_client_may_close_a_session_that_is_open_here() {
    let (mut bench, session) = Bench::serving();
    let close = |shard, session| Request::CloseSession { shard, session };
    assert_eq!(bench.ask(close(ShardId(9), session)), []);
    assert_eq!(bench.ask(close(SHARD, SessionId { lsn: Lsn(99), ..session })), []);
    assert_eq!(bench.ask(close(SHARD, session)), [to_leaf(1, ToLeaf::CloseSession { session })]);
    bench.commit(Body::CloseSession(session));
    assert_eq!(bench.ask(close(SHARD, session)), []);
}

#[test]
fn a_closed_session_takes_its_staged_records_along() {
    let (mut bench, session) = Bench::serving();
    bench.settle(session, 1, "a", n(1, 0));
    bench.append(session, 2, "b");
    bench.fence();
    let dropped = Token { shard: SHARD, session, seq: 2 };
    let told = refused(session, 2, AppendRefusal::SessionExpired);
    assert_eq!(bench.commit(Body::CloseSession(session)), [told, Output::DropStaged(vec![dropped])]);
    assert_eq!(bench.append(session, 3, "c"), [refused(session, 3, AppendRefusal::SessionExpired)]);
    assert_eq!(bench.read(n(1, 0)), [record(n(1, 0), "a")]);
}

#[test]
fn a_read_beyond_the_tail_is_not_yet_and_a_wait_ends_with_its_deadline() {
    let (mut bench, session) = Bench::serving();
    bench.settle(session, 1, "a", n(1, 0));
    let asked = bench.read(n(1, 1));
    assert_eq!(bench.tail(&asked, n(1, 1)), [answer(Answer::NotYet { id: 9, tail: n(1, 1) })]);
    let asked = bench.read(n(1, 1));
    assert_eq!(bench.tail(&asked, n(1, 2)), []);
    assert_eq!(bench.replica.next_deadline(), Some(Time(SECOND)));
    bench.now = Time(SECOND);
    assert_eq!(bench.step(Input::Tick), [answer(Answer::NotYet { id: 9, tail: n(1, 2) })]);
    assert_eq!(bench.replica.next_deadline(), None);
}

#[test]
fn numbers_that_name_no_record_are_holes() {
    let (mut bench, session) = Bench::serving();
    bench.settle(session, 1, "a", n(1, 0));
    bench.commit(Body::Hole { color: COLOR, first: n(1, 1), count: 2 });
    bench.commit(Body::EpochEnd { color: COLOR, end: n(1, 3), next: Epoch(3) });
    for number in [n(0, 0), n(1, 1), n(1, 2), n(1, 3), n(2, 0)] {
        assert_eq!(bench.read(number), [answer(Answer::Hole { id: 9 })], "{number}");
    }
    let next = Request::ReadNext { id: 9, color: COLOR, tag: None, from: n(1, 1), wait_micros: 0 };
    let asked = bench.ask(next);
    assert_eq!(bench.tail(&asked, n(3, 0)), [answer(Answer::NotYet { id: 9, tail: n(3, 0) })]);
    bench.ask(Request::ReadPrev { id: 9, color: COLOR, tag: None, upto: n(2, 7), wait_micros: 0 });
    assert_eq!(bench.fetch(), [record(n(1, 0), "a")]);
}

#[test]
fn a_previous_record_is_looked_for_below_the_tail() {
    let (mut bench, session) = Bench::serving();
    let last = Request::ReadPrev { id: 9, color: COLOR, tag: None, upto: SeqNum::MAX, wait_micros: SECOND };
    let asked = bench.ask(last.clone());
    assert_eq!(bench.tail(&asked, n(1, 0)), [answer(Answer::NothingBefore { id: 9 })]);
    bench.settle(session, 1, "a", n(1, 0));
    let asked = bench.ask(last);
    assert_eq!(bench.tail(&asked, n(1, 2)), [], "1.1 is given and may come");
    bench.settle(session, 2, "b", n(1, 1));
    assert_eq!(bench.fetch(), [record(n(1, 1), "b")]);
}

#[test]
fn a_trim_is_written_by_the_leaf_and_takes_effect_when_committed() {
    let (mut bench, session) = Bench::serving();
    bench.settle(session, 1, "a", n(1, 0));
    bench.settle(session, 2, "b", n(1, 1));
    let trim = Request::Trim { id: 9, color: COLOR, upto: n(1, 0) };
    assert_eq!(bench.ask(trim.clone()), [to_leaf(1, ToLeaf::Trim { color: COLOR, upto: n(1, 0) })]);
    assert_eq!(bench.read(n(1, 0)), [record(n(1, 0), "a")]);
    let done = answer(Answer::TrimDone { id: 9, point: n(1, 0) });
    let outputs = bench.commit(Body::Trim { color: COLOR, upto: n(1, 0) });
    assert_eq!(outputs, [Output::Trim { color: COLOR, upto: n(1, 0) }, done.clone()]);
    assert_eq!(bench.ask(trim), [done]);
    assert_eq!(bench.read(n(1, 0)), [answer(Answer::Trimmed { id: 9, point: n(1, 0) })]);
    let next = Request::ReadNext { id: 9, color: COLOR, tag: None, from: n(1, 0), wait_micros: 0 };
    assert_eq!(bench.ask(next), [answer(Answer::Trimmed { id: 9, point: n(1, 0) })]);
    let beyond = bench.ask(Request::Trim { id: 9, color: COLOR, upto: n(1, 5) });
    let why = Failure::TrimBeyondTail { upto: n(1, 5), tail: n(1, 2) };
    assert_eq!(bench.tail(&beyond, n(1, 2)), [answer(Answer::Failed { id: 9, why })]);
}

fn subscribe(bench: &mut Bench, from: SeqNum, credit: u64) -> Vec<Output> {
    let mut outputs = bench.ask(Request::Subscribe { id: 9, color: COLOR, tag: None, from, credit });
    outputs.extend(bench.fetch());
    outputs
}

fn delivered(records: &[(SeqNum, &str)], upto: SeqNum) -> Output {
    let records = records.iter().map(|(n, p)| (*n, Record::new(p.to_string()).unwrap())).collect();
    answer(Answer::Delivered { id: 9, records, upto })
}

#[test]
fn a_subscription_gets_what_is_there_and_what_comes_as_far_as_its_credit_goes() {
    let (mut bench, session) = Bench::serving();
    bench.settle(session, 1, "a", n(1, 0));
    let outputs = subscribe(&mut bench, SeqNum::MIN, 40);
    assert_eq!(outputs, [delivered(&[(n(1, 0), "a")], n(1, 1))]);
    bench.settle(session, 2, "b", n(1, 1));
    assert_eq!(bench.fetch(), [delivered(&[(n(1, 1), "b")], n(1, 2))], "7 bytes are left, and one record may go over");
    bench.settle(session, 3, "c", n(1, 2));
    assert_eq!(bench.fetch(), [], "nothing is left");
    bench.ask(Request::Credit { id: 9, bytes: 20 });
    assert_eq!(bench.fetch(), [], "still owed");
    bench.ask(Request::Credit { id: 9, bytes: 20 });
    assert_eq!(bench.fetch(), [delivered(&[(n(1, 2), "c")], n(1, 3))]);
    bench.ask(Request::Unsubscribe { id: 9 });
    bench.settle(session, 4, "d", n(1, 3));
    assert_eq!(bench.fetch(), []);
}

#[test]
fn a_subscription_is_told_once_what_was_trimmed_and_passes_epoch_ends() {
    let (mut bench, session) = Bench::serving();
    bench.settle(session, 1, "a", n(1, 0));
    bench.settle(session, 2, "b", n(1, 1));
    bench.commit(Body::Trim { color: COLOR, upto: n(1, 0) });
    let trimmed = answer(Answer::Trimmed { id: 9, point: n(1, 0) });
    let outputs = subscribe(&mut bench, SeqNum::MIN, 1000);
    assert_eq!(outputs, [trimmed, delivered(&[(n(1, 1), "b")], n(1, 2))]);
    let end = Body::EpochEnd { color: COLOR, end: n(1, 2), next: Epoch(4) };
    assert_eq!(bench.commit(end), [delivered(&[], n(4, 0))]);
    bench.settle(session, 3, "c", n(4, 0));
    assert_eq!(bench.fetch(), [delivered(&[(n(4, 0), "c")], n(4, 1))]);
}

#[test]
fn a_client_that_is_gone_is_forgotten() {
    let (mut bench, session) = Bench::serving();
    subscribe(&mut bench, SeqNum::MIN, 1000);
    bench.read(n(1, 0));
    bench.append(session, 1, "a");
    bench.step(Input::Disconnected(CLIENT));
    assert_eq!(bench.replica.next_deadline(), None);
    bench.fence();
    bench.write(assign(session, 1, n(1, 0)));
    let acked = to_leaf(1, ToLeaf::Acked(Lsn(bench.lsn)));
    assert_eq!(bench.fence(), [acked], "its append goes on, with nobody to tell");
    assert_eq!(bench.commit_all(), []);
}

#[test]
fn questions_are_asked_again_of_a_new_leaf() {
    let (mut bench, _) = Bench::serving();
    let asked = bench.read(n(1, 0));
    assert!(matches!(asked[..], [Output::ToLeaf(Of { message: ToLeaf::TailAsk { .. }, .. })]));
    bench.epoch = 2;
    bench.leaf(ToMember::Seal);
    let outputs = bench.fence();
    let again = bench.tail(&outputs, n(2, 0));
    assert_eq!(again, [answer(Answer::Hole { id: 9 })], "epoch 1 gave no number");
}

#[test]
fn a_member_comes_back_with_what_was_durable() {
    for checkpoint in [false, true] {
        let (mut bench, session) = Bench::serving();
        bench.settle(session, 1, "a", n(1, 0));
        bench.settle(session, 2, "b", n(1, 1));
        bench.commit(Body::Trim { color: COLOR, upto: n(1, 0) });
        if checkpoint {
            bench.step(Input::CheckpointWanted);
            bench.fence();
            assert!(bench.checkpoint.is_some());
        }
        bench.append(session, 3, "c");
        bench.append(session, 4, "d");
        bench.fence();
        bench.write(assign(session, 3, n(1, 2)));
        bench.fence();
        let lsn = bench.lsn;
        let mut bench = bench.restart();
        let report = bench.seal(2);
        assert_eq!(report.last, (Epoch(1), Lsn(lsn)));
        assert_eq!(report.staged, [staged_of(&make(session, 4, &["d"]))]);
        bench.commit(Body::NewView(view(2)));
        let retry = bench.append(session, 3, "c");
        let run = Assign::one(Token { shard: SHARD, session, seq: 3 }, COLOR, n(1, 2), 1);
        let answer_3 = Appended { members: vec![ME], view: view(2), settled: true, runs: vec![run] };
        assert_eq!(retry, [answer(Answer::Appended(answer_3))]);
        assert_eq!(bench.append(session, 4, "d"), [], "still staged");
        assert_eq!(bench.read(n(1, 0)), [answer(Answer::Trimmed { id: 9, point: n(1, 0) })]);
        assert_eq!(bench.read(n(1, 1)), [record(n(1, 1), "b")]);
        assert_eq!(bench.read(n(1, 2)), [record(n(1, 2), "c")]);
    }
}

/// The store may have given a trimmed record up before a restart, and the replica is yet to hear that the trim is committed.
#[test]
fn what_a_trim_took_before_a_restart_is_waited_for_not_missed() {
    let (mut bench, session) = Bench::serving();
    bench.settle(session, 1, "a", n(1, 0));
    bench.settle(session, 2, "b", n(1, 1));
    bench.step(Input::CheckpointWanted);
    bench.fence();
    bench.commit(Body::Trim { color: COLOR, upto: n(1, 0) });
    bench.records.remove(&(COLOR, n(1, 0)));
    let mut bench = bench.restart();
    bench.seal(2);
    assert_eq!(bench.read(n(1, 0)), [], "it is settled here, and not there");
    let trimmed = answer(Answer::Trimmed { id: 9, point: n(1, 0) });
    assert!(bench.commit(Body::NewView(view(2))).contains(&trimmed));
}

#[test]
fn a_checkpoint_holds_nothing_above_commit() {
    let (mut bench, session) = Bench::serving();
    bench.append(session, 1, "a");
    bench.fence();
    bench.write(assign(session, 1, n(1, 0)));
    bench.fence();
    bench.step(Input::CheckpointWanted);
    bench.fence();
    let lost = bench.entries.pop();
    assert!(lost.is_some());
    bench.staged.insert(Token { shard: SHARD, session, seq: 1 }, Arc::new(make(session, 1, &["a"])));
    let mut bench = bench.restart();
    let report = bench.seal(2);
    assert_eq!(report.colors, []);
    assert_eq!(report.staged, [staged_of(&make(session, 1, &["a"]))], "without the entry, the append has no number");
}
