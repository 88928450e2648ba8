//! One test beside each rule of the leaf: inputs in, the list of outputs out.

use std::sync::Arc;

use flexlog_protocol::limits::{COMPLETION_DELAY_MICROS, SESSION_IDLE_MICROS, SESSION_SPARE_MICROS};
use flexlog_protocol::{Entry, Position, ViewNumber};

use super::*;
use crate::MAX_UNCOMMITTED_ENTRIES;

const START: Time = Time(5);
const RED: Color = Color(1);
const BLUE: Color = Color(2);
/// One that other shards have too.
const WIDE: Color = Color(1 << 63 | 3);
const A: ReplicaId = ReplicaId(11);
const B: ReplicaId = ReplicaId(12);
const C: ReplicaId = ReplicaId(13);
const SESSION: SessionId = SessionId { epoch: Epoch(1), lsn: Lsn(2) };

fn me() -> Incarnation {
    Incarnation { position: Position(0), epoch: Epoch(3), uuid: Uuid::from_u128(3) }
}

/// A position that seals.
fn by(epoch: u32) -> Incarnation {
    Incarnation { epoch: Epoch(epoch), ..me() }
}

fn view() -> View {
    View { number: ViewNumber(1), members: vec![A, B, C] }
}

fn n(epoch: u32, counter: u32) -> SeqNum {
    SeqNum::new(Epoch(epoch), counter)
}

fn token(seq: u64) -> Token {
    Token { shard: ShardId(4), session: SESSION, seq }
}

fn staged(color: Color, seq: u64, records: u32) -> Staged {
    Staged { token: token(seq), color, records, digest: seq }
}

fn entry(lsn: u64, epoch: u32, body: Body) -> Arc<Entry> {
    Arc::new(Entry { lsn: Lsn(lsn), epoch: Epoch(epoch), body })
}

/// A report of a member that is committed up to 10, with one open session.
fn report(entries: &[Arc<Entry>], staged: &[Staged]) -> SealReport {
    SealReport {
        last: entries.last().map_or((Epoch(2), Lsn(10)), |entry| (entry.epoch, entry.lsn)),
        commit: Lsn(10),
        view: Some(view()),
        entries: entries.to_vec(),
        staged: staged.to_vec(),
        colors: vec![],
        sessions: vec![SESSION],
    }
}

fn to(member: ReplicaId, message: ToMember) -> Output {
    Output::Member { to: member, message: Of { leaf: me(), message } }
}

fn to_all(message: &ToMember) -> Vec<Output> {
    [A, B, C].map(|member| to(member, message.clone())).into()
}

/// What every member is sent when the leaf writes these bodies from `first` on.
fn entries(first: u64, bodies: Vec<Body>, commit: u64) -> Vec<Output> {
    let entries = (first..).zip(bodies).map(|(lsn, body)| entry(lsn, 3, body)).collect();
    to_all(&ToMember::Entries { entries, commit: Lsn(commit) })
}

fn order(batch: u64, color: Color, count: u32) -> Output {
    Output::Parent(ToParent::Order { batch, color, count })
}

fn grant(batch: u64, color: Color, first: SeqNum, count: u32, ends: Option<SeqNum>) -> Input {
    Input::Parent(FromParent::Grant { batch, color, first, count, ends })
}

/// What a leaf before this one was granted in epoch 2, and wrote nowhere.
fn lost(counter: u32, count: u32) -> Body {
    Body::Hole { color: RED, first: n(2, counter), count }
}

struct Rig {
    leaf: Leaf,
    now: Time,
}

impl Rig {
    fn sealing() -> Self {
        let mut leaf = Leaf::new(me(), ShardId(4), view());
        let mut out = Vec::new();
        leaf.start(START, &mut out);
        assert_eq!(out, to_all(&ToMember::Seal));
        Self { leaf, now: START }
    }

    /// Serves, with its `NewView` at 11 and nothing else in the log above 10.
    fn serving() -> Self {
        Self::serving_after(&report(&[], &[]))
    }

    fn serving_after(report: &SealReport) -> Self {
        let mut rig = Self::sealing();
        for member in [A, B, C] {
            assert_eq!(rig.say(member, ToLeaf::Sealed(Box::new(report.clone()))), []);
        }
        assert_eq!(rig.flush(), entries(11, vec![Body::NewView(view())], 10));
        rig.ack_all(11);
        assert_eq!(rig.flush(), entries(12, vec![], 11));
        let sealed = Output::Parent(ToParent::Sealed { by: me(), nth: 0, colors: report.colors.clone() });
        assert_eq!(rig.input(Input::Parent(FromParent::Seal { by: me(), nth: 0 })), [sealed]);
        rig
    }

    fn input(&mut self, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        self.leaf.handle(self.now, input, &mut out);
        out
    }

    fn say(&mut self, from: ReplicaId, message: ToLeaf) -> Vec<Output> {
        self.input(Input::Member { from, message: Of { leaf: me(), message } })
    }

    fn all_have(&mut self, list: &[Staged]) {
        for member in [A, B, C] {
            assert_eq!(self.say(member, ToLeaf::Persisted(list.to_vec())), []);
        }
    }

    fn ack_all(&mut self, lsn: u64) -> Vec<Output> {
        [A, B, C].map(|member| self.say(member, ToLeaf::Acked(Lsn(lsn)))).concat()
    }

    fn seal(&mut self, epoch: u32) -> Vec<Output> {
        self.input(Input::Parent(FromParent::Seal { by: by(epoch), nth: 0 }))
    }

    fn flush(&mut self) -> Vec<Output> {
        let mut out = Vec::new();
        self.leaf.flush(&mut out);
        out
    }

    fn ignored(&self) -> u64 {
        self.leaf.status().ignored
    }
}

#[test]
fn recovery_completes_the_longest_log_before_anything_is_numbered() {
    let run = |seq, counter| Body::Assign(vec![Assign::one(token(seq), RED, n(2, counter), 1)]);
    let log = [entry(11, 2, run(1, 0)), entry(12, 2, run(2, 1))];
    let mut rig = Rig::sealing();
    let sealed = |report| ToLeaf::Sealed(Box::new(report));
    assert_eq!(rig.say(A, sealed(report(&log[..1], &[staged(RED, 2, 1), staged(RED, 3, 1)]))), []);
    assert_eq!(rig.say(A, ToLeaf::Persisted(vec![staged(RED, 4, 1)])), [], "sealed members go on");
    assert_eq!(rig.say(B, sealed(report(&log, &[staged(RED, 3, 1)]))), []);
    assert_eq!((rig.flush(), rig.leaf.status().phase), (vec![], "sealing"));

    let lacks = |member, from: usize| to(member, ToMember::Entries { entries: log[from..].to_vec(), commit: Lsn(10) });
    assert_eq!(rig.say(C, sealed(report(&[], &[staged(RED, 3, 1)]))), [lacks(A, 1), lacks(C, 0)]);
    assert_eq!(rig.flush(), entries(13, vec![Body::NewView(view())], 10));
    assert_eq!(rig.leaf.status().phase, "recovering");
    assert_eq!(rig.leaf.status().pending, 2);

    // Complete tokens wait, and so do tails.
    rig.say(B, ToLeaf::Persisted(vec![staged(RED, 4, 1)]));
    rig.say(C, ToLeaf::Persisted(vec![staged(RED, 4, 1)]));
    rig.say(C, ToLeaf::TailAsk { ask: 1, color: BLUE });
    assert_eq!(rig.flush(), []);
    assert_eq!((rig.say(A, ToLeaf::Acked(Lsn(13))), rig.say(B, ToLeaf::Acked(Lsn(13)))), (vec![], vec![]));
    assert_eq!(rig.say(C, ToLeaf::Acked(Lsn(12))), []);
    assert_eq!(rig.seal(3), [], "not yet");
    assert_eq!(rig.seal(4), [], "in its place");
    let colors = vec![ColorEnd::narrow(RED, n(2, 2), false)];
    let sealed = Output::Parent(ToParent::Sealed { by: by(4), nth: 0, colors });
    assert_eq!(rig.say(C, ToLeaf::Acked(Lsn(13))), [Output::Serving, sealed]);
    let mut expected = entries(14, vec![], 13);
    expected.push(order(1, RED, 2));
    expected.push(Output::Parent(ToParent::Tails { round: 1, colors: vec![BLUE] }));
    assert_eq!(rig.flush(), expected);
    assert_eq!(rig.ignored(), 0);
}

#[test]
fn a_leaf_that_cannot_lead_stops_and_says_why() {
    let mut rig = Rig::sealing();
    rig.say(A, ToLeaf::Sealed(Box::new(report(&[], &[]))));
    rig.say(B, ToLeaf::Sealed(Box::new(report(&[], &[]))));
    let ahead = SealReport { commit: Lsn(11), last: (Epoch(2), Lsn(11)), ..report(&[], &[]) };
    let reason = StopReason::Lost { member: A, last: Lsn(10), commit: Lsn(11) };
    assert_eq!(rig.say(C, ToLeaf::Sealed(Box::new(ahead))), [Output::Stopped(reason)]);
    assert_eq!((rig.ack_all(11), rig.flush(), rig.leaf.next_deadline()), (vec![], vec![], None));
    assert_eq!(rig.leaf.status().phase, "stopped");

    for members in [0, MAX_MEMBERS as u32 + 1] {
        let members: Vec<_> = (0..members).map(ReplicaId).collect();
        let reason = StopReason::ViewSize(members.len());
        let mut out = Vec::new();
        Leaf::new(me(), ShardId(4), View { number: ViewNumber(1), members }).start(START, &mut out);
        assert_eq!(out, [Output::Stopped(reason)]);
    }
}

#[test]
fn other_incarnations_and_strangers_change_nothing() {
    let mut rig = Rig::serving();
    let message = ToLeaf::Persisted(vec![staged(RED, 1, 1)]);
    for leaf in [Incarnation { epoch: Epoch(2), ..me() }, Incarnation { uuid: Uuid::from_u128(4), ..me() }] {
        for from in [A, B, C] {
            assert_eq!(rig.input(Input::Member { from, message: Of { leaf, message: message.clone() } }), []);
        }
    }
    assert_eq!(rig.say(ReplicaId(99), message), []);
    let again = SealReport { last: (Epoch(3), Lsn(11)), ..report(&[], &[]) };
    assert_eq!(rig.say(A, ToLeaf::Sealed(Box::new(again))), [], "a second report");
    assert_eq!((rig.flush(), rig.ignored(), rig.leaf.status().pending), (vec![], 7, 0));
}

#[test]
fn numbers_are_asked_for_when_all_members_have_the_record() {
    let mut rig = Rig::serving();
    rig.say(A, ToLeaf::Persisted(vec![staged(RED, 1, 2), staged(BLUE, 2, 1), staged(RED, 3, 5)]));
    rig.say(B, ToLeaf::Persisted(vec![staged(RED, 3, 5), staged(RED, 1, 2), staged(BLUE, 2, 1)]));
    assert_eq!(rig.flush(), []);
    rig.say(C, ToLeaf::Persisted(vec![staged(RED, 1, 2), staged(BLUE, 2, 1)]));
    rig.say(C, ToLeaf::Persisted(vec![staged(RED, 3, 5)]));
    assert_eq!(rig.flush(), [order(1, RED, 7), order(2, BLUE, 1)], "one request a color");
    assert_eq!(rig.flush(), []);
    rig.all_have(&[staged(RED, 4, 1)]);
    assert_eq!(rig.flush(), [order(3, RED, 1)], "several may be open");
}

#[test]
fn grants_of_one_batch_share_an_entry_and_settle_when_all_have_it() {
    let mut rig = Rig::serving();
    rig.all_have(&[staged(RED, 1, 2), staged(RED, 2, 2), staged(BLUE, 3, 1), staged(RED, 5, 2)]);
    rig.flush();
    assert_eq!(rig.input(grant(1, RED, n(3, 0), 6, None)), []);
    assert_eq!(rig.input(grant(2, BLUE, n(3, 0), 1, None)), []);
    let runs = vec![
        Assign { token: token(1), tokens: 2, records: 2, color: RED, first: n(3, 0) },
        Assign::one(token(5), RED, n(3, 4), 2),
        Assign::one(token(3), BLUE, n(3, 0), 1),
    ];
    assert_eq!(rig.flush(), entries(12, vec![Body::Assign(runs)], 11));
    rig.say(A, ToLeaf::Acked(Lsn(12)));
    rig.say(B, ToLeaf::Acked(Lsn(12)));
    rig.say(C, ToLeaf::Persisted(vec![staged(RED, 1, 2)]));
    assert_eq!((rig.flush(), rig.leaf.status().pending), (vec![], 4), "a repeated report changes nothing");
    rig.say(C, ToLeaf::Acked(Lsn(12)));
    assert_eq!(rig.leaf.status().pending, 0);
    assert_eq!(rig.flush(), entries(13, vec![], 12));
    assert_eq!(rig.flush(), []);
}

#[test]
fn commit_rides_on_the_next_entries() {
    let mut rig = Rig::serving();
    rig.all_have(&[staged(RED, 1, 1)]);
    rig.flush();
    rig.input(grant(1, RED, n(3, 0), 1, None));
    rig.flush();
    rig.ack_all(12);
    rig.say(A, ToLeaf::Trim { color: RED, upto: n(3, 0) });
    let trim = Body::Trim { color: RED, upto: n(3, 0) };
    assert_eq!(rig.flush()[..3], entries(13, vec![trim], 12));
}

#[test]
fn acknowledgements_out_of_turn_are_ignored() {
    let mut rig = Rig::serving();
    rig.say(A, ToLeaf::OpenSession { nonce: Uuid::from_u128(1) });
    assert_eq!(rig.ack_all(12), [], "not sent yet");
    assert_eq!(rig.ignored(), 3);
    rig.flush();
    rig.ack_all(13);
    rig.ack_all(10);
    assert_eq!((rig.ignored(), rig.leaf.status().commit), (9, Lsn(11)));
}

#[test]
fn grants_out_of_turn_are_ignored() {
    let mut rig = Rig::serving();
    rig.all_have(&[staged(RED, 1, 1)]);
    rig.flush();
    rig.all_have(&[staged(RED, 2, 1)]);
    rig.flush();
    for input in [
        grant(2, RED, n(3, 0), 1, None),
        grant(1, BLUE, n(3, 0), 1, None),
        grant(1, RED, n(3, 0), 2, None),
        grant(1, RED, n(3, u32::MAX), 1, None),
    ] {
        rig.input(input);
    }
    assert_eq!((rig.ignored(), rig.flush()), (4, vec![]));
    rig.input(grant(1, RED, n(3, 0), 1, None));
    rig.input(grant(1, RED, n(3, 1), 1, None));
    let one = Body::Assign(vec![Assign::one(token(1), RED, n(3, 0), 1)]);
    assert_eq!((rig.ignored(), rig.flush()), (5, entries(12, vec![one], 11)));
}

#[test]
fn an_earlier_epochs_end_is_written_once_before_the_numbers() {
    let mut rig = Rig::serving();
    rig.all_have(&[staged(RED, 1, 1)]);
    rig.flush();
    rig.all_have(&[staged(RED, 2, 1)]);
    rig.flush();
    rig.input(grant(1, RED, n(3, 0), 1, Some(n(2, 8))));
    rig.input(grant(2, RED, n(3, 1), 1, Some(n(2, 8))));
    let end = Body::EpochEnd { color: RED, end: n(2, 8), next: Epoch(3) };
    let runs = Body::Assign(vec![Assign { token: token(1), tokens: 2, records: 1, color: RED, first: n(3, 0) }]);
    assert_eq!(rig.flush(), entries(12, vec![lost(0, 8), end, runs], 11));
    rig.ack_all(12);
    assert_eq!(rig.flush(), entries(15, vec![], 12));
}

#[test]
fn what_was_told_and_lost_with_a_leaf_is_holes_before_its_epoch_ends() {
    let known = |end, closed| SealReport { colors: vec![ColorEnd::narrow(RED, end, closed)], ..report(&[], &[]) };
    let end = |end, next| Body::EpochEnd { color: RED, end, next: Epoch(next) };
    let cases = [
        (n(2, 8), false, vec![end(n(2, 8), 3)]),
        (n(2, 5), false, vec![lost(5, 3), end(n(2, 8), 3)]),
        (n(1, 5), false, vec![end(n(1, 5), 2), lost(0, 8), end(n(2, 8), 3)]),
        (n(1, 5), true, vec![lost(0, 8), end(n(2, 8), 3)]),
    ];
    for (last, closed, bodies) in cases {
        let mut rig = Rig::serving_after(&known(last, closed));
        rig.all_have(&[staged(RED, 1, 1)]);
        rig.flush();
        rig.input(grant(1, RED, n(3, 0), 1, Some(n(2, 8))));
        let run = Body::Assign(vec![Assign::one(token(1), RED, n(3, 0), 1)]);
        assert_eq!(rig.flush(), entries(12, [bodies, vec![run]].concat(), 11));
    }
}

#[test]
fn a_closed_sessions_numbers_become_holes() {
    let mut rig = Rig::serving();
    let nonce = Uuid::from_u128(1);
    assert_eq!(rig.say(A, ToLeaf::OpenSession { nonce }), []);
    rig.flush();
    let other = |seq| Staged {
        token: Token { session: SessionId { epoch: Epoch(3), lsn: Lsn(12) }, ..token(seq) },
        ..staged(RED, seq, 3)
    };
    rig.all_have(&[staged(RED, 1, 2), staged(RED, 2, 2)]);
    rig.now = Time(START.0 + 100);
    rig.all_have(&[other(1)]);
    assert_eq!(rig.flush(), [order(1, RED, 7)]);
    rig.now = START.after(SESSION_IDLE_MICROS);
    assert_eq!(rig.leaf.next_deadline(), Some(rig.now));
    assert_eq!(rig.input(Input::Tick), []);
    assert_eq!(rig.flush(), entries(13, vec![Body::CloseSession(SESSION)], 11));
    rig.input(grant(1, RED, n(3, 0), 7, None));
    let hole = Body::Hole { color: RED, first: n(3, 0), count: 4 };
    let run = Body::Assign(vec![Assign::one(other(1).token, RED, n(3, 4), 3)]);
    assert_eq!(rig.flush(), entries(14, vec![hole, run], 11));
    assert_eq!((rig.leaf.status().sessions, rig.leaf.status().pending), (1, 1));
    // And no report of that session counts any more.
    rig.all_have(&[staged(RED, 3, 1)]);
    assert_eq!((rig.flush(), rig.ignored()), (vec![], 3));
}

#[test]
fn a_session_is_closed_for_its_client_once_its_numbers_are_committed() {
    let mut rig = Rig::serving();
    let close = || ToLeaf::CloseSession { session: SESSION };
    rig.all_have(&[staged(RED, 1, 1)]);
    rig.say(A, close());
    assert_eq!(rig.flush(), [order(1, RED, 1)]);
    rig.say(B, close());
    rig.input(grant(1, RED, n(3, 0), 1, None));
    rig.say(A, close());
    assert_eq!(rig.flush(), entries(12, vec![Body::Assign(vec![Assign::one(token(1), RED, n(3, 0), 1)])], 11));
    rig.ack_all(12);
    rig.say(A, close());
    rig.say(C, close());
    assert_eq!(rig.flush(), entries(13, vec![Body::CloseSession(SESSION)], 12), "once");
    assert_eq!(rig.leaf.status().sessions, 0);
    rig.all_have(&[staged(RED, 2, 1)]);
    assert_eq!((rig.flush(), rig.ignored()), (vec![], 3));
}

#[test]
fn the_longest_idle_session_makes_room_for_another() {
    let mut rig = Rig::serving();
    for i in 2..=MAX_SESSIONS as u128 {
        rig.say(A, ToLeaf::OpenSession { nonce: Uuid::from_u128(i) });
        rig.flush();
        let last = rig.leaf.status().last.0;
        rig.ack_all(last);
        rig.now = rig.now.after(1);
    }
    let first = rig.leaf.status().last.0 - (MAX_SESSIONS as u64 - 2);
    let used = Staged {
        token: Token { session: SessionId { epoch: Epoch(3), lsn: Lsn(first) }, ..token(1) },
        ..staged(RED, 1, 1)
    };
    rig.say(A, ToLeaf::Persisted(vec![used]));
    rig.flush();
    let nonce = Uuid::from_u128(u128::MAX);
    rig.now = Time(START.0 + SESSION_SPARE_MICROS - 1);
    let refused = [to(B, ToMember::SessionRefused { nonce })];
    assert_eq!(rig.say(B, ToLeaf::OpenSession { nonce }), refused, "nobody is idle for long enough");
    rig.now = rig.now.after(3);
    let last = rig.leaf.status().last.0;
    assert_eq!(rig.say(B, ToLeaf::OpenSession { nonce }), []);
    let bodies = vec![Body::CloseSession(SESSION), Body::OpenSession { nonce }];
    assert_eq!(rig.flush(), entries(last + 1, bodies, last));
    // The next one in age has something pending, so it is the one after it.
    let nonce = Uuid::from_u128(u128::MAX - 1);
    rig.say(B, ToLeaf::OpenSession { nonce });
    let bodies =
        vec![Body::CloseSession(SessionId { epoch: Epoch(3), lsn: Lsn(first + 1) }), Body::OpenSession { nonce }];
    assert_eq!(rig.flush(), entries(last + 3, bodies, last));
    assert_eq!(rig.leaf.status().sessions, MAX_SESSIONS);
}

#[test]
fn members_that_disagree_are_told() {
    let mut rig = Rig::serving();
    rig.say(A, ToLeaf::Persisted(vec![staged(RED, 1, 1)]));
    let other = Staged { digest: 99, ..staged(RED, 1, 1) };
    assert_eq!(rig.say(B, ToLeaf::Persisted(vec![other])), [to(B, ToMember::Conflict { token: token(1) })]);
    assert_eq!(rig.say(C, ToLeaf::Persisted(vec![staged(RED, 1, 1)])), []);
    assert_eq!(rig.flush(), []);
}

#[test]
fn late_tokens_are_completed_from_a_member_that_has_them() {
    let mut rig = Rig::serving();
    rig.say(B, ToLeaf::Persisted(vec![staged(RED, 1, 1)]));
    rig.flush();
    let due = START.after(COMPLETION_DELAY_MICROS);
    assert_eq!(rig.leaf.next_deadline(), Some(due));
    rig.now = due;
    let pull = ToMember::Complete { token: token(1), from: B };
    assert_eq!(rig.input(Input::Tick), [to(A, pull.clone()), to(C, pull)]);
    rig.say(A, ToLeaf::Persisted(vec![staged(RED, 1, 1)]));
    rig.say(C, ToLeaf::Persisted(vec![staged(RED, 1, 1)]));
    assert_eq!(rig.flush(), [order(1, RED, 1)]);
    assert_eq!(rig.leaf.next_deadline(), Some(START.after(SESSION_IDLE_MICROS)), "nothing is late");
}

#[test]
fn a_nonce_names_one_session_and_sessions_are_bounded() {
    let mut rig = Rig::serving();
    let nonce = Uuid::from_u128;
    rig.say(A, ToLeaf::OpenSession { nonce: nonce(1) });
    rig.say(B, ToLeaf::OpenSession { nonce: nonce(1) });
    let open = Body::OpenSession { nonce: nonce(1) };
    assert_eq!(rig.flush(), entries(12, vec![open.clone(), open.clone()], 11));
    assert_eq!(rig.leaf.status().sessions, 2);
    for i in 3..=MAX_SESSIONS as u128 {
        assert_eq!(rig.say(A, ToLeaf::OpenSession { nonce: nonce(i) }), []);
        rig.flush();
        let last = rig.leaf.status().last.0;
        rig.ack_all(last);
    }
    let refused = [to(C, ToMember::SessionRefused { nonce: nonce(0) })];
    assert_eq!(rig.say(C, ToLeaf::OpenSession { nonce: nonce(0) }), refused);
    rig.flush();
    assert_eq!(rig.say(C, ToLeaf::OpenSession { nonce: nonce(1) }), [], "this one is open");
    assert_eq!(rig.flush()[0], entries(rig.leaf.status().last.0, vec![open], rig.leaf.status().commit.0)[0]);
}

#[test]
fn trims_are_written_once_and_only_forward() {
    let mut rig = Rig::serving();
    let trim = |counter| ToLeaf::Trim { color: RED, upto: n(2, counter) };
    rig.say(A, trim(5));
    rig.say(B, trim(7));
    rig.say(C, trim(6));
    assert_eq!(rig.flush(), entries(12, vec![Body::Trim { color: RED, upto: n(2, 7) }], 11));
    rig.say(A, trim(7));
    rig.say(B, trim(3));
    assert_eq!(rig.flush(), []);
    rig.say(B, trim(8));
    assert_eq!(rig.flush(), entries(13, vec![Body::Trim { color: RED, upto: n(2, 8) }], 11));
}

#[test]
fn a_tail_needs_the_owner_and_then_every_member() {
    let mut rig = Rig::serving();
    rig.say(A, ToLeaf::TailAsk { ask: 7, color: RED });
    rig.say(B, ToLeaf::TailAsk { ask: 8, color: BLUE });
    let asked = |round, colors| Output::Parent(ToParent::Tails { round, colors });
    assert_eq!(rig.flush(), [asked(1, vec![RED, BLUE])]);
    rig.say(C, ToLeaf::TailAsk { ask: 9, color: RED });
    for member in [A, B, C] {
        assert_eq!(rig.say(member, ToLeaf::Confirmed { round: 1 }), [], "before the owner's answer");
    }
    let tails = vec![(RED, n(3, 0), Some(n(2, 4))), (BLUE, n(3, 6), None)];
    let answer = FromParent::Tails { round: 1, tails };
    assert_eq!(rig.input(Input::Parent(answer.clone())), to_all(&ToMember::Confirm { round: 1 }));
    assert_eq!((rig.input(Input::Parent(answer)), rig.ignored()), (vec![], 1));
    let end = Body::EpochEnd { color: RED, end: n(2, 4), next: Epoch(3) };
    // What was granted of the other one has not come, so that it was lost: nobody is to wait for it.
    let hole = Body::Hole { color: BLUE, first: n(3, 0), count: 6 };
    assert_eq!(rig.flush(), entries(12, vec![lost(0, 4), end, hole], 11), "one round at a time");
    assert_eq!(rig.say(A, ToLeaf::Confirmed { round: 1 }), []);
    assert_eq!(rig.say(C, ToLeaf::Confirmed { round: 1 }), []);
    let tail = |ask, tail, after| ToMember::Tail { ask, tail, after: Lsn(after) };
    let told = [to(A, tail(7, n(3, 0), 13)), to(B, tail(8, n(3, 6), 14))];
    assert_eq!(rig.say(B, ToLeaf::Confirmed { round: 1 }), told);
    assert_eq!(rig.flush(), [asked(2, vec![RED])]);
    let tails = vec![(RED, n(3, 0), Some(n(2, 4)))];
    rig.input(Input::Parent(FromParent::Tails { round: 2, tails }));
    assert_eq!(rig.flush(), [], "the end is written already");
    let told = [A, B, C].map(|member| rig.say(member, ToLeaf::Confirmed { round: 2 })).concat();
    assert_eq!(told, [to(C, tail(9, n(3, 0), 13))]);
}

#[test]
fn with_too_much_uncommitted_numbers_wait() {
    let mut rig = Rig::serving();
    for i in 0..MAX_UNCOMMITTED_ENTRIES as u32 {
        rig.say(A, ToLeaf::Trim { color: RED, upto: n(2, i) });
        rig.flush();
    }
    rig.all_have(&[staged(RED, 1, 1)]);
    rig.say(A, ToLeaf::Trim { color: RED, upto: n(2, 5000) });
    assert_eq!(rig.flush(), []);
    let nonce = Uuid::from_u128(1);
    assert_eq!(rig.say(A, ToLeaf::OpenSession { nonce }), [to(A, ToMember::SessionRefused { nonce })]);
    rig.ack_all(13);
    let last = rig.leaf.status().last.0;
    let mut expected = entries(last + 1, vec![Body::Trim { color: RED, upto: n(2, 5000) }], 13);
    expected.push(order(1, RED, 1));
    assert_eq!(rig.flush(), expected);
}

#[test]
fn a_seal_is_answered_with_all_that_was_granted_so_far() {
    let mut rig = Rig::serving();
    rig.all_have(&[staged(RED, 1, 2), staged(BLUE, 2, 1)]);
    rig.flush();
    rig.input(grant(1, RED, n(3, 0), 2, Some(n(2, 8))));
    let sealed = |by, colors| [Output::Parent(ToParent::Sealed { by, nth: 0, colors })];
    assert_eq!(rig.seal(9), sealed(by(9), vec![ColorEnd::narrow(RED, n(3, 2), false)]), "nothing of it is sent yet");
    rig.input(grant(2, BLUE, n(3, 0), 1, None));
    let both = vec![ColorEnd::narrow(RED, n(3, 2), false), ColorEnd::narrow(BLUE, n(3, 1), false)];
    assert_eq!(rig.seal(10), sealed(by(10), both));
}

#[test]
fn numbers_that_were_lost_on_the_way_become_a_hole() {
    let mut rig = Rig::serving();
    rig.all_have(&[staged(RED, 1, 2)]);
    rig.flush();
    rig.input(grant(1, RED, n(3, 4), 2, Some(n(2, 8))));
    let end = Body::EpochEnd { color: RED, end: n(2, 8), next: Epoch(3) };
    let hole = |counter, count| Body::Hole { color: RED, first: n(3, counter), count };
    let run = |seq, counter| Body::Assign(vec![Assign::one(token(seq), RED, n(3, counter), 2)]);
    assert_eq!(rig.flush(), entries(12, vec![lost(0, 8), end, hole(0, 4), run(1, 4)], 11));
    rig.all_have(&[staged(RED, 2, 2)]);
    rig.flush();
    rig.input(grant(2, RED, n(3, 9), 2, Some(n(2, 8))));
    assert_eq!(rig.flush(), entries(16, vec![hole(6, 3), run(2, 9)], 11));
}

#[test]
fn numbers_of_a_wide_color_are_settled_here_and_stable_everywhere() {
    let mut rig = Rig::serving();
    rig.all_have(&[staged(WIDE, 1, 2), staged(WIDE, 2, 1)]);
    assert_eq!(rig.flush(), [order(1, WIDE, 3)]);
    rig.input(grant(1, WIDE, n(3, 4), 3, None));
    let run = Assign::one(token(1), WIDE, n(3, 4), 2);
    let runs = vec![run, Assign::one(token(2), WIDE, n(3, 6), 1)];
    assert_eq!(rig.flush(), entries(12, vec![Body::Assign(runs)], 11), "a gap is another shard's");
    let own = vec![Range { first: n(3, 4), count: 3 }];
    let end = ColorEnd { own, ..ColorEnd::narrow(WIDE, n(3, 7), false) };
    let sealed = |colors| Output::Parent(ToParent::Sealed { by: by(9), nth: 0, colors });
    assert_eq!(rig.seal(9), [sealed(vec![end.clone()])], "not committed, so not settled");

    rig.ack_all(12);
    let settle = Output::Parent(ToParent::Settle(vec![(WIDE, n(3, 7))]));
    let mut expected = entries(13, vec![], 12);
    expected.push(settle.clone());
    assert_eq!(rig.flush(), expected);
    assert_eq!(rig.seal(9), [sealed(vec![end.clone()]), settle.clone()]);
    rig.input(Input::Parent(FromParent::Stable(vec![(RED, n(3, 1)), (WIDE, n(3, 5))])));
    assert_eq!(rig.flush(), to_all(&ToMember::Stable { upto: vec![(WIDE, n(3, 5))], commit: Lsn(12) }));
    let end = ColorEnd { stable: n(3, 5), ..end };
    assert_eq!(rig.seal(9), [sealed(vec![end.clone()]), settle.clone()]);
    rig.input(Input::Parent(FromParent::Stable(vec![(WIDE, n(3, 9))])));
    rig.flush();
    assert_eq!(rig.seal(9), [sealed(vec![ColorEnd { stable: n(3, 9), own: vec![], ..end }]), settle]);
}

#[test]
fn a_wide_color_that_is_asked_about_is_followed() {
    let mut rig = Rig::serving();
    rig.say(A, ToLeaf::TailAsk { ask: 1, color: RED });
    rig.say(A, ToLeaf::TailAsk { ask: 2, color: WIDE });
    let followed = vec![ColorEnd::narrow(WIDE, SeqNum::MIN, false)];
    assert_eq!(rig.seal(9), [Output::Parent(ToParent::Sealed { by: by(9), nth: 0, colors: followed })]);
}

#[test]
fn a_new_leaf_knows_of_a_wide_color_what_any_member_knows() {
    let mut rig = Rig::sealing();
    let end = |stable, own: &[(u32, u32)]| ColorEnd {
        stable,
        own: own.iter().map(|(first, count)| Range { first: n(2, *first), count: *count }).collect(),
        ..ColorEnd::narrow(WIDE, n(2, 9), false)
    };
    let log = [entry(11, 2, Body::Assign(vec![Assign::one(token(1), WIDE, n(2, 9), 2)]))];
    let sealed = |report, end| ToLeaf::Sealed(Box::new(SealReport { colors: vec![end], ..report }));
    rig.say(A, sealed(report(&log, &[]), end(n(2, 3), &[(3, 2), (7, 2)])));
    rig.say(B, sealed(report(&[], &[]), end(n(2, 6), &[(7, 2)])));
    rig.say(C, sealed(report(&[], &[]), end(n(2, 1), &[(1, 4), (7, 2)])));
    rig.flush();
    rig.ack_all(12);
    let expected = ColorEnd { end: n(2, 11), ..end(n(2, 6), &[(7, 4)]) };
    let settle = Output::Parent(ToParent::Settle(vec![(WIDE, n(2, 11))]));
    assert_eq!(rig.seal(9), [Output::Parent(ToParent::Sealed { by: by(9), nth: 0, colors: vec![expected] }), settle]);
}
