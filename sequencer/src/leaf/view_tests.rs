//! One test beside each rule of a changing view.

use flexlog_protocol::limits::{ADD_PAUSE_MICROS, LEARNER_TIMEOUT_MICROS, REPLICA_TIMEOUT_MICROS};
use flexlog_protocol::{Entry, Position, ViewNumber};

use super::*;

const START: Time = Time(5);
const RED: Color = Color(1);
const A: ReplicaId = ReplicaId(11);
const B: ReplicaId = ReplicaId(12);
const C: ReplicaId = ReplicaId(13);
const D: ReplicaId = ReplicaId(14);
const SESSION: SessionId = SessionId { epoch: Epoch(1), lsn: Lsn(2) };

fn me() -> Incarnation {
    Incarnation { position: Position(0), epoch: Epoch(3), uuid: Uuid::from_u128(3) }
}

fn view(number: u32, members: &[ReplicaId]) -> View {
    View { number: ViewNumber(number), members: members.to_vec() }
}

fn n(counter: u32) -> SeqNum {
    SeqNum::new(Epoch(3), counter)
}

fn staged(seq: u64) -> Staged {
    let token = Token { shard: ShardId(4), session: SESSION, seq };
    Staged { token, color: RED, records: 1, digest: seq }
}

fn assign(seq: u64, counter: u32) -> Body {
    Body::Assign(vec![Assign::one(staged(seq).token, RED, n(counter), 1)])
}

fn report(last: u64) -> SealReport {
    SealReport {
        last: (Epoch(2), Lsn(last)),
        commit: Lsn(last),
        view: Some(view(1, &[A, B, C])),
        entries: vec![],
        staged: vec![],
        colors: vec![],
        sessions: vec![SESSION],
    }
}

fn to(member: ReplicaId, message: ToMember) -> Output {
    Output::Member { to: member, message: Of { leaf: me(), message } }
}

fn entries(members: &[ReplicaId], first: u64, bodies: Vec<Body>, commit: u64) -> Vec<Output> {
    let entry = |(lsn, body)| Arc::new(Entry { lsn: Lsn(lsn), epoch: Epoch(3), body });
    let message = ToMember::Entries { entries: (first..).zip(bodies).map(entry).collect(), commit: Lsn(commit) };
    members.iter().map(|member| to(*member, message.clone())).collect()
}

fn change(from: View, next: View) -> Output {
    Output::ChangeView { from, to: next }
}

struct Rig {
    leaf: Leaf,
    now: Time,
}

impl Rig {
    fn sealing(members: &[ReplicaId], min_view: u32) -> Self {
        let leaf = Leaf::new(me(), ShardId(4), view(1, members));
        let mut leaf = leaf.with_views(min_view, REPLICA_TIMEOUT_MICROS);
        let mut out = Vec::new();
        leaf.start(START, &mut out);
        Self { leaf, now: START }
    }

    /// Serves with its `NewView` at 11, all acknowledged, under a parent that has sealed it.
    fn serving(members: &[ReplicaId], min_view: u32) -> Self {
        let mut rig = Self::sealing(members, min_view);
        for member in members {
            rig.say(*member, ToLeaf::Sealed(Box::new(SealReport { view: None, ..report(10) })));
        }
        rig.flush();
        members.iter().for_each(|member| _ = rig.say(*member, ToLeaf::Acked(Lsn(11))));
        rig.flush();
        rig.input(Input::Parent(FromParent::Seal { by: me(), nth: 0 }));
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

    fn flush(&mut self) -> Vec<Output> {
        let mut out = Vec::new();
        self.leaf.flush(&mut out);
        out
    }

    /// All that comes of the time going on so far, with a tick at each deadline, questions for records aside.
    fn wait(&mut self, micros: u64) -> Vec<Output> {
        let until = self.now.after(micros);
        let mut all = Vec::new();
        while let Some(at) = self.leaf.next_deadline().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            all.extend(self.input(Input::Tick));
            all.extend(self.flush());
        }
        self.now = until;
        all.retain(|output| {
            !matches!(output, Output::Member { message: Of { message: ToMember::Complete { .. }, .. }, .. })
        });
        all
    }

    fn order(&mut self, seq: u64, members: &[ReplicaId]) {
        members.iter().for_each(|member| _ = self.say(*member, ToLeaf::Persisted(vec![staged(seq)])));
    }

    fn grant(&mut self, batch: u64, counter: u32) -> Vec<Output> {
        self.input(Input::Parent(FromParent::Grant { batch, color: RED, first: n(counter), count: 1, ends: None }))
    }

    /// Has D copied, and following from `upto` on.
    fn learner_follows(&mut self, upto: u64) -> Vec<Output> {
        self.input(Input::Present(D));
        assert_eq!(self.wait(0), [to(D, ToMember::Seal)]);
        assert_eq!(
            self.say(D, ToLeaf::Sealed(Box::new(report(3)))),
            [to(D, ToMember::Learn { from: A, behind: Lsn(11) })]
        );
        self.say(D, ToLeaf::Learned { upto: Lsn(upto) })
    }
}

#[test]
fn a_member_that_makes_no_progress_is_dropped_and_what_waited_goes_on() {
    let mut rig = Rig::serving(&[A, B, C], 2);
    rig.order(1, &[A, B, C]);
    rig.flush();
    rig.grant(1, 0);
    assert_eq!(rig.flush(), entries(&[A, B, C], 12, vec![assign(1, 0)], 11));
    rig.say(A, ToLeaf::Acked(Lsn(12)));
    rig.say(B, ToLeaf::Acked(Lsn(12)));
    rig.order(2, &[A, B]);
    rig.flush();
    assert_eq!(rig.wait(REPLICA_TIMEOUT_MICROS - 1), []);
    let (old, new) = (view(1, &[A, B, C]), view(2, &[A, B]));
    assert_eq!(rig.wait(REPLICA_TIMEOUT_MICROS / 10), [change(old, new.clone())]);
    assert_eq!(
        (rig.leaf.status().commit, rig.wait(5_000_000)),
        (Lsn(11), vec![]),
        "both views count until it is known"
    );

    assert_eq!(rig.input(Input::View(ViewOutcome::Applied)), []);
    let mut expected = entries(&[A, B], 13, vec![Body::NewView(new)], 12);
    expected.push(Output::Parent(ToParent::Order { batch: 2, color: RED, count: 1 }));
    assert_eq!((rig.flush(), rig.leaf.status().commit), (expected, Lsn(12)));
    assert_eq!((rig.say(C, ToLeaf::Acked(Lsn(13))), rig.leaf.status().ignored), (vec![], 1));
}

#[test]
fn progress_keeps_a_member() {
    let mut rig = Rig::serving(&[A, B, C], 2);
    for seq in 1..30 {
        rig.order(seq, &[A, B, C]);
        rig.flush();
        rig.grant(seq, seq as u32 - 1);
        rig.flush();
        [A, B].iter().for_each(|member| _ = rig.say(*member, ToLeaf::Acked(Lsn(11 + seq))));
        rig.say(C, ToLeaf::Acked(Lsn(10 + seq)));
        rig.flush();
        assert_eq!(rig.wait(REPLICA_TIMEOUT_MICROS / 3), [], "{seq}");
    }
}

#[test]
fn one_that_confirms_tails_and_acknowledges_nothing_is_dropped() {
    let mut rig = Rig::serving(&[A, B, C], 2);
    rig.order(1, &[A, B, C]);
    rig.flush();
    rig.grant(1, 0);
    rig.flush();
    [A, B].iter().for_each(|member| _ = rig.say(*member, ToLeaf::Acked(Lsn(12))));
    // A reader asks all the time, and C, whose store has failed, answers.
    let (mut seen, dropped) = (Vec::new(), change(view(1, &[A, B, C]), view(2, &[A, B])));
    for round in 1..=8 {
        rig.say(A, ToLeaf::TailAsk { ask: round, color: RED });
        rig.flush();
        rig.input(Input::Parent(FromParent::Tails { round, tails: vec![(RED, n(1), None)] }));
        [A, B, C].iter().for_each(|member| _ = rig.say(*member, ToLeaf::Confirmed { round }));
        seen.extend(rig.wait(REPLICA_TIMEOUT_MICROS / 4));
    }
    assert_eq!(seen, [dropped]);
}

#[test]
fn a_view_keeps_its_least_and_an_idle_shard_drops_nobody() {
    let mut rig = Rig::serving(&[A, B, C], 2);
    assert_eq!((rig.wait(10 * REPLICA_TIMEOUT_MICROS), rig.leaf.next_deadline().is_some()), (vec![], true));
    rig.order(1, &[A]);
    rig.flush();
    assert_eq!(rig.wait(10 * REPLICA_TIMEOUT_MICROS), [], "one of three is too few");
    rig.say(B, ToLeaf::Persisted(vec![staged(1)]));
    assert_eq!(rig.wait(REPLICA_TIMEOUT_MICROS / 10), [change(view(1, &[A, B, C]), view(2, &[A, B]))]);
}

#[test]
fn silent_members_are_dropped_before_the_log_is_recovered() {
    let mut rig = Rig::sealing(&[A, B, C], 2);
    rig.say(C, ToLeaf::Sealed(Box::new(report(10))));
    assert_eq!(rig.wait(10 * REPLICA_TIMEOUT_MICROS), [], "one alone may not put out the others");
    rig.say(B, ToLeaf::Sealed(Box::new(report(10))));
    let (old, new) = (view(1, &[A, B, C]), view(2, &[B, C]));
    assert_eq!(rig.wait(REPLICA_TIMEOUT_MICROS / 10), [change(old, new.clone())]);
    assert_eq!(rig.say(A, ToLeaf::Sealed(Box::new(report(10)))), [], "it is not known whether it is a member");
    assert_eq!(rig.input(Input::View(ViewOutcome::Applied)), []);
    assert_eq!(rig.flush(), entries(&[B, C], 11, vec![Body::NewView(new)], 10));
    rig.say(B, ToLeaf::Acked(Lsn(11)));
    assert_eq!(rig.say(C, ToLeaf::Acked(Lsn(11))), [Output::Serving]);
}

#[test]
fn a_change_that_was_refused_leaves_the_view_and_a_deposed_leaf_stops() {
    let mut rig = Rig::sealing(&[A, B, C], 2);
    rig.say(B, ToLeaf::Sealed(Box::new(report(10))));
    rig.say(C, ToLeaf::Sealed(Box::new(report(10))));
    assert_eq!(rig.wait(2 * REPLICA_TIMEOUT_MICROS).len(), 1);
    rig.input(Input::View(ViewOutcome::Refused));
    assert_eq!(rig.wait(2 * REPLICA_TIMEOUT_MICROS).len(), 1, "it asks again");
    assert_eq!(rig.input(Input::View(ViewOutcome::Deposed)), [Output::Stopped(StopReason::Deposed)]);
}

#[test]
fn a_member_that_lost_what_it_was_sent_reports_and_goes_on() {
    let mut rig = Rig::serving(&[A, B, C], 2);
    rig.order(1, &[A, B, C]);
    rig.flush();
    rig.grant(1, 0);
    rig.flush();
    assert_eq!(rig.input(Input::Lost(C)), [to(C, ToMember::Seal)]);
    rig.order(2, &[A, B]);
    rig.order(3, &[A, B, C]);
    rig.flush();
    rig.grant(2, 1);
    assert_eq!(rig.flush(), entries(&[A, B], 13, vec![assign(3, 1)], 11), "nothing behind what is lost");
    let again = SealReport { last: (Epoch(3), Lsn(11)), staged: vec![staged(2)], ..report(11) };
    assert_eq!(rig.say(C, ToLeaf::Sealed(Box::new(again))), entries(&[C], 12, vec![assign(1, 0), assign(3, 1)], 11));
    assert_eq!(rig.flush(), [Output::Parent(ToParent::Order { batch: 3, color: RED, count: 1 })]);
    rig.say(C, ToLeaf::Acked(Lsn(13)));
    [A, B].iter().for_each(|member| _ = rig.say(*member, ToLeaf::Acked(Lsn(13))));
    assert_eq!(rig.leaf.status().commit, Lsn(13));
}

#[test]
fn a_member_that_lost_what_was_committed_is_put_out() {
    let mut rig = Rig::serving(&[A, B, C], 2);
    rig.input(Input::Lost(C));
    let put_out = change(view(1, &[A, B, C]), view(2, &[A, B]));
    assert_eq!(rig.say(C, ToLeaf::Sealed(Box::new(report(10)))), [put_out]);

    let mut rig = Rig::serving(&[A], 1);
    rig.input(Input::Lost(A));
    let reason = StopReason::Lost { member: A, last: Lsn(10), commit: Lsn(11) };
    assert_eq!(rig.say(A, ToLeaf::Sealed(Box::new(report(10)))), [Output::Stopped(reason)]);
}

#[test]
fn a_learner_copies_follows_and_joins_behind_everything() {
    let mut rig = Rig::serving(&[A, B], 2);
    rig.order(1, &[A, B]);
    rig.flush();
    rig.input(Input::Present(D));
    assert_eq!(rig.wait(0), [to(D, ToMember::Seal)]);
    let learn = to(D, ToMember::Learn { from: A, behind: Lsn(11) });
    assert_eq!(rig.say(D, ToLeaf::Sealed(Box::new(report(3)))), [learn]);
    rig.grant(1, 0);
    assert_eq!(rig.flush(), entries(&[A, B], 12, vec![assign(1, 0)], 11), "it does not follow yet");
    [A, B].iter().for_each(|member| _ = rig.say(*member, ToLeaf::Acked(Lsn(12))));
    rig.flush();
    assert_eq!(rig.say(D, ToLeaf::Learned { upto: Lsn(11) }), entries(&[D], 12, vec![assign(1, 0)], 12));

    // It is close: nothing is written until it has all.
    rig.order(2, &[A, B]);
    assert_eq!(rig.flush(), [Output::Parent(ToParent::Order { batch: 2, color: RED, count: 1 })]);
    assert_eq!(rig.grant(2, 1), []);
    rig.say(A, ToLeaf::OpenSession { nonce: Uuid::from_u128(7) });
    rig.order(3, &[A, B]);
    assert_eq!(rig.flush(), [], "neither entries nor requests");
    rig.say(D, ToLeaf::Acked(Lsn(12)));
    let (old, new) = (view(1, &[A, B]), view(2, &[A, B, D]));
    assert_eq!(rig.flush(), [change(old, new.clone())]);
    assert_eq!((rig.flush(), rig.wait(10 * REPLICA_TIMEOUT_MICROS)), (vec![], vec![]));
    assert_eq!(rig.input(Input::View(ViewOutcome::Applied)), []);
    let bodies = vec![Body::NewView(new), assign(2, 1), Body::OpenSession { nonce: Uuid::from_u128(7) }];
    let behind = entries(&[A, B, D], 13, bodies, 12);
    assert_eq!(rig.flush(), behind, "what waited comes behind, and 3 needs the new member");
    rig.now = rig.now.after(100_000);
    let complete = ToMember::Complete { token: staged(3).token, from: A };
    assert_eq!(rig.input(Input::Tick), [to(D, complete)]);
    rig.say(D, ToLeaf::Persisted(vec![staged(3)]));
    assert_eq!(rig.flush(), [Output::Parent(ToParent::Order { batch: 3, color: RED, count: 1 })]);
    [A, B].iter().for_each(|member| _ = rig.say(*member, ToLeaf::Acked(Lsn(15))));
    assert_eq!(rig.leaf.status().commit, Lsn(12));
    rig.say(D, ToLeaf::Acked(Lsn(15)));
    assert_eq!(rig.leaf.status().commit, Lsn(15));
}

#[test]
fn a_member_that_was_slow_is_taken_in_again_though_nobody_says_that_it_is_there() {
    let mut rig = Rig::serving(&[A, B, C], 2);
    rig.order(1, &[A, B]);
    rig.flush();
    assert_eq!(rig.wait(REPLICA_TIMEOUT_MICROS + REPLICA_TIMEOUT_MICROS / 10).len(), 1);
    rig.input(Input::View(ViewOutcome::Applied));
    rig.flush();
    assert_eq!(rig.wait(ADD_PAUSE_MICROS / 2), []);
    assert_eq!(rig.wait(ADD_PAUSE_MICROS), [to(C, ToMember::Seal)]);
    let rig = &mut Rig::serving(&[A, B, C], 2);
    rig.input(Input::Replicas(vec![A, B, D]));
    assert_eq!(rig.wait(REPLICA_TIMEOUT_MICROS), [], "one that goes stays until the new one has joined");
    rig.input(Input::Replicas(vec![A, B]));
    assert_eq!(rig.wait(0), [change(view(1, &[A, B, C]), view(2, &[A, B]))]);
    rig.input(Input::View(ViewOutcome::Applied));
    rig.flush();
    assert_eq!(rig.wait(5 * REPLICA_TIMEOUT_MICROS), [], "it is not taken in again");
}

#[test]
fn a_leaf_that_did_not_run_takes_nobody_for_dead() {
    let mut rig = Rig::serving(&[A, B, C], 2);
    rig.order(1, &[A, B]);
    rig.flush();
    rig.wait(REPLICA_TIMEOUT_MICROS / 10);
    rig.now = rig.now.after(10 * REPLICA_TIMEOUT_MICROS);
    assert_eq!(rig.wait(REPLICA_TIMEOUT_MICROS / 2), []);
    assert_eq!(rig.wait(REPLICA_TIMEOUT_MICROS).len(), 1, "but then");
}

#[test]
fn a_learner_that_does_not_catch_up_in_time_is_let_go_and_tried_again_later() {
    let mut rig = Rig::serving(&[A, B], 2);
    assert_eq!(rig.learner_follows(11), entries(&[D], 0, vec![], 11));
    rig.say(A, ToLeaf::OpenSession { nonce: Uuid::from_u128(7) });
    assert_eq!(rig.flush(), entries(&[A, B, D], 12, vec![Body::OpenSession { nonce: Uuid::from_u128(7) }], 11));
    rig.say(B, ToLeaf::OpenSession { nonce: Uuid::from_u128(8) });
    assert_eq!(rig.flush(), []);
    let held = entries(&[A, B], 13, vec![Body::OpenSession { nonce: Uuid::from_u128(8) }], 11);
    assert_eq!(rig.wait(REPLICA_TIMEOUT_MICROS + REPLICA_TIMEOUT_MICROS / 20), held);
    assert_eq!(rig.leaf.status().learner, None);
    [A, B].iter().for_each(|member| _ = rig.say(*member, ToLeaf::Acked(Lsn(13))));
    rig.flush();
    assert_eq!(rig.wait(ADD_PAUSE_MICROS * 2), [to(D, ToMember::Seal)]);
}

#[test]
fn a_learner_that_copies_too_long_copies_again_and_one_that_is_silent_is_given_up() {
    let mut rig = Rig::serving(&[A, B], 2);
    assert_eq!(
        rig.learner_follows(10),
        [to(D, ToMember::Learn { from: A, behind: Lsn(11) })],
        "10 is not here any more"
    );
    assert_eq!(rig.wait(LEARNER_TIMEOUT_MICROS / 2), []);
    rig.say(D, ToLeaf::Learning);
    assert_eq!(rig.wait(LEARNER_TIMEOUT_MICROS - 100_000), []);
    assert_eq!(rig.leaf.status().learner, Some(D));
    assert_eq!(rig.wait(400_000), [to(D, ToMember::Seal)], "given up, and tried anew");
}

#[test]
fn a_learner_that_restarts_begins_anew() {
    let mut rig = Rig::serving(&[A, B], 2);
    rig.learner_follows(11);
    assert_eq!(rig.input(Input::Lost(D)), []);
    assert_eq!(rig.leaf.status().learner, None);
    assert_eq!(rig.say(D, ToLeaf::Acked(Lsn(11))), []);
}

#[test]
fn a_tail_round_goes_on_with_who_is_there() {
    let mut rig = Rig::serving(&[A, B, C], 2);
    rig.say(A, ToLeaf::TailAsk { ask: 1, color: RED });
    assert_eq!(rig.flush(), [Output::Parent(ToParent::Tails { round: 1, colors: vec![RED] })]);
    rig.input(Input::Parent(FromParent::Tails { round: 1, tails: vec![(RED, n(0), None)] }));
    rig.say(A, ToLeaf::Confirmed { round: 1 });
    rig.say(B, ToLeaf::Confirmed { round: 1 });
    rig.flush();
    let dropped = change(view(1, &[A, B, C]), view(2, &[A, B]));
    assert_eq!(rig.wait(REPLICA_TIMEOUT_MICROS + REPLICA_TIMEOUT_MICROS / 10), [dropped]);
    let tail = to(A, ToMember::Tail { ask: 1, tail: n(0), after: Lsn(0) });
    assert_eq!(rig.input(Input::View(ViewOutcome::Applied)), [tail]);
}

#[test]
fn a_learner_that_reports_while_a_drop_is_in_doubt_is_taught() {
    let mut rig = Rig::serving(&[A, B, C], 2);
    rig.input(Input::Present(D));
    assert_eq!(rig.wait(0), [to(D, ToMember::Seal)]);
    rig.order(1, &[A, B]);
    rig.flush();
    let dropped = view(2, &[A, B]);
    assert_eq!(rig.wait(2 * REPLICA_TIMEOUT_MICROS), [change(view(1, &[A, B, C]), dropped)]);
    let told = rig.say(D, ToLeaf::Sealed(Box::new(report(3))));
    assert_eq!(told, [to(D, ToMember::Learn { from: A, behind: Lsn(11) })]);
    // One that begins anew is given up, and nothing is asked of it as of a member.
    assert_eq!(rig.input(Input::Lost(D)), []);
    assert_eq!(rig.leaf.status().learner, None);
}

#[test]
fn what_a_learner_has_staged_counts_once_it_has_joined() {
    let mut rig = Rig::serving(&[A, B], 1);
    rig.input(Input::Present(D));
    rig.wait(0);
    rig.say(D, ToLeaf::Sealed(Box::new(report(3))));
    // Numbered, committed and forgotten before the learner's report arrives.
    rig.order(1, &[A, B]);
    rig.flush();
    rig.grant(1, 0);
    rig.flush();
    [A, B].into_iter().for_each(|member| _ = rig.say(member, ToLeaf::Acked(Lsn(12))));
    rig.say(D, ToLeaf::Persisted(vec![staged(1)]));
    assert_eq!((rig.leaf.status().pending, rig.leaf.status().learner), (0, Some(D)));
}

#[test]
fn a_member_that_was_lost_while_it_sealed_is_sent_entries() {
    let mut rig = Rig::sealing(&[A, B], 2);
    assert_eq!(rig.input(Input::Lost(B)), [to(B, ToMember::Seal)]);
    for member in [A, B] {
        rig.say(member, ToLeaf::Sealed(Box::new(SealReport { view: None, ..report(10) })));
    }
    assert_eq!(rig.flush(), entries(&[A, B], 11, vec![Body::NewView(view(1, &[A, B]))], 10));
}

#[test]
fn the_last_member_with_a_record_that_has_a_number_is_not_dropped() {
    let mut rig = Rig::serving(&[A], 1);
    rig.order(1, &[A]);
    rig.flush();
    rig.input(Input::Present(D));
    assert_eq!(rig.wait(0), [to(D, ToMember::Seal)]);
    rig.say(D, ToLeaf::Sealed(Box::new(report(3))));
    rig.say(D, ToLeaf::Learned { upto: Lsn(11) });
    rig.flush();
    rig.say(D, ToLeaf::Acked(Lsn(11)));
    rig.flush();
    rig.input(Input::View(ViewOutcome::Applied));
    rig.flush();
    rig.grant(1, 0);
    rig.flush();
    // A is silent, and D lacks the record.
    rig.say(D, ToLeaf::Acked(Lsn(12)));
    assert_eq!(rig.wait(3 * REPLICA_TIMEOUT_MICROS), []);
    rig.say(D, ToLeaf::Persisted(vec![staged(1)]));
    let (old, new) = (view(2, &[A, D]), view(3, &[D]));
    rig.say(D, ToLeaf::Acked(Lsn(13)));
    assert_eq!(rig.wait(3 * REPLICA_TIMEOUT_MICROS), [change(old, new)]);
}

#[test]
fn a_member_that_reports_again_hears_how_far_all_is_committed() {
    let mut rig = Rig::serving(&[A, B], 2);
    rig.order(1, &[A, B]);
    rig.flush();
    rig.grant(1, 0);
    rig.flush();
    rig.say(B, ToLeaf::Acked(Lsn(12)));
    rig.input(Input::Lost(B));
    rig.say(A, ToLeaf::Acked(Lsn(12)));
    assert_eq!(rig.flush(), entries(&[A], 0, vec![], 12));
    let again = SealReport { last: (Epoch(3), Lsn(12)), ..report(11) };
    assert_eq!(rig.say(B, ToLeaf::Sealed(Box::new(again))), entries(&[B], 0, vec![], 12));
}

#[test]
fn a_learner_that_learns_twice_goes_on_from_the_second_time() {
    let mut rig = Rig::serving(&[A, B], 2);
    rig.learner_follows(11);
    let learn = to(D, ToMember::Learn { from: A, behind: Lsn(11) });
    assert_eq!(rig.say(D, ToLeaf::Sealed(Box::new(report(3)))), [learn]);
    for _ in 0..2 {
        assert_eq!(rig.say(D, ToLeaf::Learned { upto: Lsn(11) }), entries(&[D], 0, vec![], 11));
    }
}

#[test]
fn what_waited_for_a_learner_that_is_lost_comes_before_all_else() {
    let mut rig = Rig::serving(&[A, B], 2);
    rig.order(1, &[A, B]);
    rig.flush();
    rig.learner_follows(11);
    // It lacks this one, so that the change is not asked for yet.
    rig.say(A, ToLeaf::OpenSession { nonce: Uuid::from_u128(7) });
    rig.flush();
    assert_eq!(rig.grant(1, 0), [], "it waits");
    assert_eq!(rig.flush(), []);
    rig.input(Input::Lost(D));
    rig.order(2, &[A, B]);
    assert_eq!(rig.flush()[..2], entries(&[A, B], 13, vec![assign(1, 0)], 11));
}

#[test]
fn a_member_that_was_lost_and_dropped_is_sent_entries_when_it_is_back() {
    let mut rig = Rig::serving(&[A, B, C], 2);
    rig.input(Input::Lost(C));
    rig.order(1, &[A, B]);
    rig.flush();
    assert_eq!(rig.wait(2 * REPLICA_TIMEOUT_MICROS), [change(view(1, &[A, B, C]), view(2, &[A, B]))]);
    rig.input(Input::View(ViewOutcome::Applied));
    rig.flush();
    [A, B].iter().for_each(|member| _ = rig.say(*member, ToLeaf::Acked(Lsn(12))));
    rig.flush();
    rig.input(Input::Present(C));
    rig.wait(ADD_PAUSE_MICROS);
    assert_eq!(rig.say(C, ToLeaf::Sealed(Box::new(report(10)))), [to(C, ToMember::Learn { from: A, behind: Lsn(12) })]);
    rig.say(C, ToLeaf::Learned { upto: Lsn(12) });
    rig.say(A, ToLeaf::OpenSession { nonce: Uuid::from_u128(7) });
    let body = Body::OpenSession { nonce: Uuid::from_u128(7) };
    assert_eq!(rig.flush()[..3], entries(&[A, B, C], 13, vec![body], 12));
}

#[test]
fn a_member_that_reports_again_is_told_how_far_wide_colors_are_settled() {
    let wide = Color::new(Position(0), true, 1).unwrap();
    let mut rig = Rig::serving(&[A, B], 1);
    rig.say(A, ToLeaf::TailAsk { ask: 1, color: wide });
    rig.input(Input::Parent(FromParent::Stable(vec![(wide, n(5))])));
    let stable = ToMember::Stable { upto: vec![(wide, n(5))], commit: Lsn(11) };
    assert!(rig.flush().contains(&to(B, stable.clone())));
    assert!(!rig.flush().contains(&to(B, stable.clone())), "once, as long as nothing is lost");
    rig.input(Input::Lost(B));
    rig.say(B, ToLeaf::Sealed(Box::new(report(11))));
    assert!(rig.flush().contains(&to(B, stable)));
}

/// A log of the sealed: committed up to 10, with one entry above.
fn longer(commit: u64) -> SealReport {
    let entry = Entry { lsn: Lsn(11), epoch: Epoch(2), body: Body::CloseSession(SESSION) };
    SealReport {
        last: (Epoch(2), Lsn(11)),
        commit: Lsn(commit),
        entries: vec![Arc::new(entry)],
        view: None,
        ..report(10)
    }
}

/// A view that may not be smaller, of which A alone has reported for long; D is asked to.
fn newcomer(members: &[ReplicaId]) -> Rig {
    let mut rig = Rig::sealing(members, members.len() as u32);
    rig.say(A, sealed(longer(10)));
    rig.input(Input::Present(D));
    assert_eq!(rig.wait(REPLICA_TIMEOUT_MICROS * 2), [to(D, ToMember::Seal)], "nobody can be dropped");
    rig
}

fn sealed(report: SealReport) -> ToLeaf {
    ToLeaf::Sealed(Box::new(report))
}

#[test]
fn a_replica_takes_the_place_of_a_silent_member_before_the_log_is_recovered() {
    let mut rig = newcomer(&[A, B]);
    // It knows more of what is committed than A was told.
    let hears = ToMember::Entries { entries: vec![], commit: Lsn(11) };
    let told = rig.say(D, sealed(SealReport { entries: vec![], ..longer(11) }));
    assert_eq!(told, [to(A, hears), to(D, ToMember::Learn { from: A, behind: Lsn(11) })]);
    rig.say(D, ToLeaf::Learning);
    // As far as A had been told before.
    let rest = ToMember::Entries { entries: longer(10).entries, commit: Lsn(10) };
    assert_eq!(rig.say(D, ToLeaf::Learned { upto: Lsn(10) }), [to(D, rest)]);
    assert_eq!(rig.flush(), []);
    let asked = change(view(1, &[A, B]), view(2, &[A, D]));
    assert_eq!(rig.say(D, ToLeaf::Acked(Lsn(11))), [asked]);
    // B is back, but it may be out of the view by now.
    assert_eq!(rig.say(B, sealed(longer(10))), []);
    assert_eq!(rig.input(Input::View(ViewOutcome::Applied)), [to(D, ToMember::Seal)]);
    assert_eq!(rig.flush(), []);
    rig.say(D, sealed(longer(10)));
    let first = vec![Body::NewView(view(2, &[A, D]))];
    assert_eq!(rig.flush(), entries(&[A, D], 12, first, 11));
    assert_eq!(rig.say(A, ToLeaf::Acked(Lsn(12))), []);
    assert_eq!(rig.say(D, ToLeaf::Acked(Lsn(12))), [Output::Serving]);
}

#[test]
fn a_silent_member_that_is_back_in_time_keeps_its_place() {
    let mut rig = newcomer(&[A, B]);
    rig.say(D, sealed(report(3)));
    rig.say(D, ToLeaf::Learned { upto: Lsn(10) });
    rig.say(B, sealed(SealReport { view: None, ..report(10) }));
    assert_eq!(rig.leaf.status().phase, "recovering");
    assert_eq!(rig.leaf.status().learner, None);
    assert_eq!(rig.say(D, ToLeaf::Acked(Lsn(11))), []);
}

#[test]
fn a_replica_whose_teacher_is_lost_takes_nobodys_place() {
    let mut rig = newcomer(&[A, B]);
    rig.say(D, sealed(report(3)));
    rig.say(D, ToLeaf::Learned { upto: Lsn(10) });
    assert_eq!(rig.input(Input::Lost(A)), [to(A, ToMember::Seal)]);
    assert_eq!(rig.say(D, ToLeaf::Acked(Lsn(11))), []);
    // With A's report all begins anew.
    rig.say(A, sealed(longer(10)));
    assert_eq!(rig.wait(ADD_PAUSE_MICROS * 2), [to(D, ToMember::Seal)]);
}

#[test]
fn a_view_that_needs_a_silent_member_is_not_smaller_than_it_may_be() {
    let mut rig = newcomer(&[A, B, C]);
    rig.say(D, sealed(report(3)));
    rig.say(D, ToLeaf::Learned { upto: Lsn(10) });
    // One of the two who are gone stays until somebody else takes its place.
    let asked = change(view(1, &[A, B, C]), view(2, &[A, B, D]));
    assert_eq!(rig.say(D, ToLeaf::Acked(Lsn(11))), [asked]);
}

#[test]
fn a_member_that_lacks_what_a_newcomer_knows_to_be_committed_stops_the_leaf() {
    let mut rig = newcomer(&[A, B]);
    let lost = StopReason::Lost { member: A, last: Lsn(11), commit: Lsn(12) };
    assert_eq!(rig.say(D, sealed(report(12))), [Output::Stopped(lost)]);
}

#[test]
fn a_learner_that_was_given_up_copies_from_another_member() {
    let mut rig = Rig::serving(&[A, B, C], 2);
    rig.input(Input::Present(D));
    rig.wait(0);
    // A is gone without a word, and nobody waits for it.
    assert_eq!(rig.say(D, sealed(report(3))), [to(D, ToMember::Learn { from: A, behind: Lsn(11) })]);
    assert_eq!(rig.wait(LEARNER_TIMEOUT_MICROS + 2 * ADD_PAUSE_MICROS), [to(D, ToMember::Seal)]);
    assert_eq!(rig.say(D, sealed(report(3))), [to(D, ToMember::Learn { from: B, behind: Lsn(11) })]);
}

#[test]
fn a_newcomer_that_reports_again_is_left_alone_for_a_while() {
    let mut rig = newcomer(&[A, B]);
    rig.say(D, sealed(report(3)));
    rig.say(D, ToLeaf::Learned { upto: Lsn(10) });
    assert_eq!(rig.say(D, sealed(report(3))), []);
    assert_eq!(rig.leaf.status().learner, None);
    assert_eq!(rig.wait(ADD_PAUSE_MICROS * 2), [to(D, ToMember::Seal)]);
}
