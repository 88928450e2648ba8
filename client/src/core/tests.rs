//! The rules of the core, one by one.

use std::sync::Arc;

use flexlog_protocol::api::{AppendRequest, Appended};
use flexlog_protocol::limits::TOKEN_WINDOW;
use flexlog_protocol::{Assign, Epoch, Lsn, ReplicaId, SessionId, Token, View, ViewNumber};

use super::model::{color_info, shard_info};
use super::*;
use AppendRefusal::{Busy, Conflict, Full, NotReady, SessionExpired, StorageFailed, TooOld, Unsupported};

mod spread;

const SHARD: ShardId = ShardId(4);
const HOME: NodeId = NodeId::HOME;
const AT_SHARD: To = To::Shard(SHARD);

type TestCore = Core<u32, u32, u32>;

/// A core with a connection and, once something was submitted, a session.
struct Bench {
    core: TestCore,
    now: Time,
    session: SessionId,
    sent: Vec<Request>,
}

fn record(text: &str) -> Record {
    Record::new(text.to_owned()).unwrap()
}

fn number(counter: u32) -> SeqNum {
    SeqNum::new(Epoch(1), counter)
}

impl Bench {
    fn new() -> Self {
        let mut core = Core::new(Uuid::from_u128(1), &["home".to_owned()]);
        core.connected(HOME);
        core.learn(HOME, &color_info(&["", "", ""]));
        let session = SessionId { epoch: Epoch(1), lsn: Lsn(10) };
        Self { core, now: Time(0), session, sent: Vec::new() }
    }

    /// With `count` appends sent in an open session: waiters and seqs from 1 up.
    fn with_appends(count: u32) -> Self {
        let mut bench = Self::new();
        for waiter in 1..=count {
            bench.submit(waiter);
        }
        bench.open();
        let sent = bench.appends();
        assert_eq!(sent.iter().map(|request| request.appends.len()).sum::<usize>(), count as usize);
        bench
    }

    fn submit(&mut self, waiter: u32) {
        let deadline = self.now.after(30_000_000);
        let job = Job { color: Color(6), records: vec![record("r")], deadline, waiter };
        self.core.submit(SHARD, job);
    }

    fn send(&mut self) -> Vec<Request> {
        self.core.take_requests(self.now, HOME, &mut self.sent);
        std::mem::take(&mut self.sent)
    }

    fn appends(&mut self) -> Vec<Arc<AppendRequest>> {
        let only = |request| if let Request::Append(append) = request { append } else { panic!("{request:?}") };
        self.send().into_iter().map(only).collect()
    }

    /// Answers the session opening that must be asked for now.
    fn open(&mut self) -> Uuid {
        let sent = self.send();
        let [Request::OpenSession { id, shard: SHARD, nonce }] = sent.as_slice() else { panic!("{sent:?}") };
        self.core.answer(self.now, HOME, Answer::SessionOpened { id: *id, session: self.session });
        *nonce
    }

    fn token(&self, seq: u64) -> Token {
        Token { shard: SHARD, session: self.session, seq }
    }

    fn say(&mut self, members: &[u32], view: u32, settled: bool, seq: u64, tokens: u32, first: u32) {
        let run = Assign { tokens, ..Assign::one(self.token(seq), Color(6), number(first), 1) };
        let view = View { number: ViewNumber(view), ..shard_info(&[""; 3]).view };
        let members = members.iter().copied().map(ReplicaId).collect();
        self.core.answer(self.now, HOME, Answer::Appended(Appended { members, view, settled, runs: vec![run] }));
    }

    fn refuse(&mut self, members: &[u32], seq: u64, why: AppendRefusal) {
        for member in members {
            let (token, member) = (self.token(seq), ReplicaId(*member));
            self.core.answer(self.now, HOME, Answer::AppendRefused { token, member, why });
        }
    }

    fn pass(&mut self, micros: u64) {
        self.now = self.now.after(micros);
        self.core.tick(self.now);
    }

    fn outcomes(&mut self) -> Outcomes<u32, u32, u32> {
        let mut outcomes = Outcomes::default();
        self.core.take_outcomes(&mut outcomes);
        outcomes
    }

    fn done(&mut self) -> AppendOutcomes<u32> {
        self.outcomes().appends
    }
}

#[test]
fn appends_wait_for_the_session_and_go_in_one_message() {
    let mut bench = Bench::new();
    bench.submit(1);
    bench.submit(2);
    bench.open();
    let sent = bench.appends();
    let [request] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!((request.session, request.low), (bench.session, 1));
    assert_eq!(request.members, shard_info(&[""; 3]).view.members);
    assert_eq!(request.appends.iter().map(|append| append.token().seq).collect::<Vec<_>>(), [1, 2]);
    assert!(bench.send().is_empty());
}

#[test]
fn an_append_is_done_when_all_members_agree() {
    let mut bench = Bench::with_appends(1);
    bench.say(&[1], 1, false, 1, 1, 50);
    bench.say(&[1], 1, false, 1, 1, 50);
    bench.say(&[3], 1, false, 1, 1, 50);
    assert!(bench.done().is_empty());
    bench.say(&[2], 1, false, 1, 1, 50);
    assert_eq!(bench.done(), [(1, Ok(number(50)))]);
    bench.say(&[2], 1, true, 1, 1, 50);
    assert!(bench.done().is_empty());
}

#[test]
fn answers_of_different_views_or_numbers_do_not_add_up() {
    let mut bench = Bench::with_appends(1);
    bench.say(&[1, 2], 1, false, 1, 1, 50);
    bench.say(&[3], 2, false, 1, 1, 50);
    bench.say(&[3], 1, false, 1, 1, 51);
    assert!(bench.done().is_empty());
    bench.say(&[1, 2], 2, false, 1, 1, 50);
    assert_eq!(bench.done(), [(1, Ok(number(50)))]);
}

#[test]
fn one_members_word_is_enough_when_settled() {
    let mut bench = Bench::with_appends(2);
    bench.say(&[2], 1, true, 2, 1, 7);
    assert_eq!(bench.done(), [(2, Ok(number(7)))]);
}

#[test]
fn runs_of_all_members_finish_many_at_once_and_the_low_mark_follows() {
    let mut bench = Bench::with_appends(10);
    bench.say(&[1, 2, 3], 1, false, 2, 4, 100);
    assert_eq!(bench.done(), (2..6).map(|i| (i, Ok(number(98 + i)))).collect::<Vec<_>>());
    bench.submit(11);
    assert_eq!(bench.appends()[0].low, 1);
    // A run may name more than is open.
    bench.say(&[1, 2, 3], 1, false, 1, u32::MAX / 2, 0);
    assert_eq!(bench.done().len(), 7);
    bench.submit(12);
    assert_eq!(bench.appends()[0].low, 12);
}

#[test]
fn answers_about_other_records_are_passed_over() {
    let mut bench = Bench::with_appends(1);
    let view = shard_info(&[""; 3]).view;
    for run in [
        Assign::one(bench.token(1), Color(7), number(1), 1),
        Assign::one(bench.token(1), Color(6), number(1), 2),
        Assign::one(bench.token(9), Color(6), number(1), 1),
        Assign::one(Token { session: SessionId::default(), ..bench.token(1) }, Color(6), number(1), 1),
        Assign::one(Token { shard: ShardId(9), ..bench.token(1) }, Color(6), number(1), 1),
    ] {
        let appended = Appended { members: view.members.clone(), view: view.clone(), settled: true, runs: vec![run] };
        bench.core.answer(bench.now, HOME, Answer::Appended(appended));
    }
    assert!(bench.done().is_empty());
    assert_eq!(bench.core.open_appends(), 1);
}

#[test]
fn the_window_is_never_exceeded_even_when_what_is_behind_is_done() {
    let mut bench = Bench::with_appends(TOKEN_WINDOW as u32);
    assert!(!bench.core.has_room(SHARD, 1));
    bench.say(&[1, 2, 3], 1, false, 2, TOKEN_WINDOW as u32, 100);
    assert_eq!(bench.done().len(), TOKEN_WINDOW as usize - 1);
    assert!(!bench.core.has_room(SHARD, 1));
    bench.say(&[1, 2, 3], 1, false, 1, 1, 0);
    assert!(bench.core.has_room(SHARD, 1));
}

#[test]
fn bytes_are_bounded_and_given_back() {
    let mut bench = Bench::new();
    let half = MAX_OPEN_BYTES / 2;
    let records = || vec![Record::new(vec![0; 1 << 20]).unwrap(); 3];
    let cost = open_cost(&records());
    let mut count = 0;
    while bench.core.has_room(SHARD, cost) {
        let job = Job { color: Color(6), records: records(), deadline: Time(1_000), waiter: count };
        bench.core.submit(SHARD, job);
        count += 1;
    }
    assert_eq!(u64::from(count), MAX_OPEN_BYTES / cost);
    bench.pass(1_000);
    assert_eq!(bench.done().len(), count as usize);
    assert!(bench.core.has_room(SHARD, half));
    // One alone always has room.
    assert!(bench.core.has_room(SHARD, MAX_OPEN_BYTES + 1));
}

#[test]
fn a_member_that_refuses_for_a_while_is_asked_again_alone() {
    for why in [Full, Busy, NotReady, AppendRefusal::WindowFull] {
        let mut bench = Bench::with_appends(3);
        bench.refuse(&[2], 1, why);
        bench.refuse(&[2], 2, why);
        assert!(bench.send().is_empty());
        let at = bench.core.next_deadline().unwrap();
        assert!(at > bench.now && at <= bench.now.after(1_000));
        bench.pass(1_000);
        let sent = bench.appends();
        let [retry] = sent.as_slice() else { panic!("{sent:?}") };
        assert_eq!(retry.members, [ReplicaId(2)]);
        assert_eq!(retry.appends.iter().map(|append| append.token().seq).collect::<Vec<_>>(), [1, 2]);
        assert!(bench.done().is_empty());
    }
}

#[test]
fn waits_grow_while_nothing_goes_well() {
    let mut bench = Bench::with_appends(1);
    let mut waits = Vec::new();
    for _ in 0..12 {
        bench.refuse(&[2], 1, Busy);
        let at = bench.core.next_deadline().unwrap();
        waits.push(at.0 - bench.now.0);
        bench.pass(at.0 - bench.now.0);
        assert_eq!(bench.appends().len(), 1);
    }
    assert!(waits[0] < 1_000 && waits[11] >= 100_000 && waits[11] < 200_000, "{waits:?}");
}

#[test]
fn full_everywhere_is_an_answer() {
    let mut bench = Bench::with_appends(1);
    bench.refuse(&[1, 2], 1, Full);
    assert!(bench.done().is_empty());
    bench.refuse(&[3], 1, Full);
    assert_eq!(bench.done(), [(1, Err(AppendFailure::Full))]);
    assert!(!AppendFailure::Full.is_outcome_unknown());
}

#[test]
fn full_is_no_answer_while_someone_may_have_it() {
    // A member has answered with a number.
    let mut bench = Bench::with_appends(1);
    bench.say(&[1], 1, false, 1, 1, 3);
    bench.refuse(&[1, 2, 3], 1, Full);
    assert!(bench.done().is_empty());
    // It was sent over an earlier connection too: that frame may still arrive.
    let mut bench = Bench::with_appends(1);
    bench.core.disconnected(HOME);
    bench.core.connected(HOME);
    assert_eq!(bench.appends().len(), 1);
    bench.refuse(&[1, 2, 3], 1, Full);
    assert!(bench.done().is_empty());
    bench.pass(30_000_000);
    assert_eq!(bench.done(), [(1, Err(AppendFailure::Deadline))]);
    // One member's refusal is being asked about again.
    let mut bench = Bench::with_appends(1);
    bench.refuse(&[1], 1, Full);
    bench.pass(1_000);
    assert_eq!(bench.appends().len(), 1);
    bench.refuse(&[2, 3], 1, Full);
    assert!(bench.done().is_empty());
    bench.refuse(&[1], 1, Full);
    assert_eq!(bench.done(), [(1, Err(AppendFailure::Full))]);
}

#[test]
fn final_refusals_count_when_everyone_refused() {
    for why in [Conflict, TooOld, Unsupported, StorageFailed, AppendRefusal::NoSuchColor] {
        let mut bench = Bench::with_appends(2);
        bench.refuse(&[1], 1, why);
        bench.refuse(&[2], 1, Full);
        // The leaf may yet complete it from a member that took it.
        assert!(bench.done().is_empty());
        bench.refuse(&[3], 1, why);
        assert_eq!(bench.done(), [(1, Err(AppendFailure::Refused(why)))]);
        // One that refused for good is not asked again.
        bench.refuse(&[1], 2, why);
        bench.pass(1_000_000);
        assert!(bench.send().is_empty());
        bench.core.disconnected(HOME);
        bench.core.connected(HOME);
        bench.send();
        bench.refuse(&[1, 2, 3], 2, why);
        assert_eq!(bench.done(), [(2, Err(AppendFailure::RefusedLater(why)))]);
        assert!(AppendFailure::RefusedLater(why).is_outcome_unknown());
    }
}

#[test]
fn at_the_deadline_it_is_said_what_is_known() {
    // Never sent.
    let mut bench = Bench::new();
    bench.submit(1);
    bench.pass(30_000_000);
    assert_eq!(bench.done(), [(1, Err(AppendFailure::NotSent))]);
    // Sent, and someone is silent.
    let mut bench = Bench::with_appends(2);
    bench.refuse(&[1, 2], 1, Busy);
    bench.refuse(&[1, 2, 3], 2, Busy);
    assert_eq!(bench.core.next_deadline().map(|at| at <= Time(1_000)), Some(true));
    bench.pass(30_000_000);
    assert_eq!(bench.done(), [(1, Err(AppendFailure::Deadline)), (2, Err(AppendFailure::NotTaken(Busy)))]);
    assert_eq!(bench.core.next_deadline(), None);
    // What was given up is not in the way.
    bench.submit(3);
    assert_eq!(bench.appends()[0].low, 3);
    assert!(bench.core.next_deadline().is_some());
}

#[test]
fn an_expired_session_is_replaced_and_what_nobody_has_goes_to_the_next() {
    let mut bench = Bench::new();
    bench.submit(1);
    let first = bench.open();
    assert_eq!(bench.appends().len(), 1);
    bench.submit(2);
    bench.refuse(&[1], 1, SessionExpired);
    // 2 was never sent: it asks for the next session; 1 may be staged with the others.
    let expired = bench.session;
    bench.session = SessionId { epoch: Epoch(1), lsn: Lsn(20) };
    let second = bench.open();
    assert_ne!(first, second);
    let sent = bench.appends();
    assert_eq!(sent[0].session, bench.session);
    assert_eq!(sent[0].appends.len(), 1);
    // Now nobody has it.
    bench.session = expired;
    bench.refuse(&[2, 3], 1, SessionExpired);
    bench.session = SessionId { epoch: Epoch(1), lsn: Lsn(20) };
    assert!(bench.done().is_empty());
    assert_eq!(bench.appends()[0].appends[0].token().seq, 2);
    bench.say(&[1, 2, 3], 1, false, 1, 2, 5);
    assert_eq!(bench.done(), [(2, Ok(number(5))), (1, Ok(number(6)))]);
}

#[test]
fn what_an_expired_session_may_hold_is_not_appended_again() {
    // One member took it.
    let mut bench = Bench::with_appends(1);
    bench.refuse(&[1, 2], 1, SessionExpired);
    assert!(bench.send().is_empty());
    bench.pass(30_000_000);
    assert_eq!(bench.done(), [(1, Err(AppendFailure::SessionExpired))]);
    assert!(AppendFailure::SessionExpired.is_outcome_unknown());
    // It was sent over an earlier connection.
    let mut bench = Bench::with_appends(1);
    bench.core.disconnected(HOME);
    bench.core.connected(HOME);
    assert_eq!(bench.appends().len(), 1);
    bench.refuse(&[1], 1, SessionExpired);
    assert_eq!(bench.done(), [(1, Err(AppendFailure::SessionExpired))]);
    assert!(bench.send().is_empty());
    // Its members can no longer say.
    let mut bench = Bench::with_appends(1);
    bench.refuse(&[1], 1, SessionExpired);
    bench.core.disconnected(HOME);
    assert_eq!(bench.done(), [(1, Err(AppendFailure::SessionExpired))]);
    // A member answers for it after all.
    let mut bench = Bench::with_appends(1);
    bench.refuse(&[1], 1, SessionExpired);
    bench.say(&[2], 1, true, 1, 1, 77);
    assert_eq!(bench.done(), [(1, Ok(number(77)))]);
}

#[test]
fn after_a_lost_connection_everything_open_is_sent_again_in_the_same_session() {
    let mut bench = Bench::with_appends(3);
    bench.say(&[1, 2, 3], 1, false, 2, 1, 9);
    bench.say(&[1, 2], 1, false, 1, 1, 8);
    bench.core.disconnected(HOME);
    bench.submit(4);
    assert!(bench.send().is_empty());
    bench.core.connected(HOME);
    let sent = bench.appends();
    let seqs: Vec<_> = sent[0].appends.iter().map(|append| append.token().seq).collect();
    assert_eq!((sent.len(), sent[0].session, seqs), (1, bench.session, vec![1, 3, 4]));
    // What members said before still counts.
    bench.say(&[3], 1, false, 1, 1, 8);
    assert_eq!(bench.done(), [(2, Ok(number(9))), (1, Ok(number(8)))]);
}

#[test]
fn an_opening_is_asked_again_with_the_same_nonce() {
    let mut bench = Bench::new();
    bench.submit(1);
    let Request::OpenSession { id, nonce, .. } = bench.send().remove(0) else { panic!() };
    bench.core.disconnected(HOME);
    bench.core.connected(HOME);
    let Request::OpenSession { nonce: again, .. } = bench.send().remove(0) else { panic!() };
    assert_eq!(nonce, again);
    let why = Failure::NotReady("no leaf".into());
    bench.core.answer(bench.now, HOME, Answer::Failed { id, why });
    assert!(bench.send().is_empty());
    bench.pass(1_000);
    assert_eq!(bench.open(), nonce);
    assert_eq!(bench.appends().len(), 1);
}

#[test]
fn a_session_that_is_refused_fails_what_waits_for_it() {
    let mut bench = Bench::new();
    bench.submit(1);
    let Request::OpenSession { id, .. } = bench.send().remove(0) else { panic!() };
    bench.core.answer(bench.now, HOME, Answer::Failed { id, why: Failure::TooManySessions });
    assert_eq!(bench.done(), [(1, Err(AppendFailure::NoSession(Failure::TooManySessions)))]);
    bench.submit(2);
    bench.open();
}

#[test]
fn a_session_with_nothing_open_is_closed_and_the_next_append_opens_another() {
    let mut bench = Bench::with_appends(1);
    let close = |bench: &mut Bench| {
        let mut sent = Vec::new();
        bench.core.close_sessions(HOME, &mut sent);
        sent
    };
    assert_eq!(close(&mut bench), [], "an append is open");
    bench.say(&[1, 2, 3], 1, false, 1, 1, 50);
    bench.core.disconnected(HOME);
    assert_eq!(close(&mut bench), [], "nobody would hear it");
    bench.core.connected(HOME);
    assert_eq!(close(&mut bench), [Request::CloseSession { shard: SHARD, session: bench.session }]);
    assert_eq!(close(&mut bench), []);
    bench.session.lsn = Lsn(11);
    bench.submit(2);
    bench.open();
    assert_eq!(bench.appends()[0].appends[0].token(), bench.token(1));
}

#[test]
fn calls_are_asked_again_and_answered_once() {
    let mut bench = Bench::new();
    let color = Color(1);
    bench.core.call(Time(500), AT_SHARD, 7, |id| Request::Tail { id, color });
    bench.core.call(Time(500), AT_SHARD, 8, |id| Request::Tail { id, color });
    let sent = bench.send();
    bench.core.answer(bench.now, HOME, Answer::Tail { id: 1, tail: number(3) });
    bench.core.answer(bench.now, HOME, Answer::Tail { id: 1, tail: number(4) });
    let calls = bench.outcomes().calls;
    assert_eq!(calls, [(7, Ok(Answer::Tail { id: 1, tail: number(3) }))]);
    bench.core.disconnected(HOME);
    bench.core.connected(HOME);
    assert_eq!(bench.send(), sent[1..]);
    let why = Failure::NotReady("recovering".into());
    bench.core.answer(bench.now, HOME, Answer::Failed { id: 2, why });
    assert!(bench.outcomes().calls.is_empty());
    bench.pass(500);
    assert_eq!(bench.outcomes().calls, [(8, Err(CallFailure::Deadline(Some("recovering".into()))))]);
    assert!(bench.send().is_empty());
    assert_eq!(bench.core.next_deadline(), None);
}

#[test]
fn a_node_that_is_not_ready_is_asked_again() {
    let mut bench = Bench::new();
    bench.core.call(Time(10_000_000), AT_SHARD, 7, |id| Request::Status { id });
    let sent = bench.send();
    bench.core.answer(bench.now, HOME, Answer::Failed { id: 1, why: Failure::NotReady("x".into()) });
    assert!(bench.send().is_empty());
    bench.pass(bench.core.next_deadline().unwrap().0);
    assert_eq!(bench.send(), sent);
    let why = Failure::Unreadable("damaged".into());
    bench.core.answer(bench.now, HOME, Answer::Failed { id: 1, why: why.clone() });
    assert_eq!(bench.outcomes().calls, [(7, Err(CallFailure::Failed(why)))]);
}

fn delivered(id: RequestId, numbers: std::ops::Range<u32>, bytes: usize) -> Answer {
    let upto = number(numbers.end);
    let records = numbers.map(|i| (number(i), Record::new(vec![0; bytes]).unwrap())).collect();
    Answer::Delivered { id, records, upto }
}

#[test]
fn a_subscription_gives_credit_back_in_portions_and_never_more_than_its_window() {
    let mut bench = Bench::new();
    let wanted = Wanted::all(Color(1), number(0));
    let id = bench.core.subscribe(&wanted, &[SHARD], 10_000, 5);
    let sent = bench.send();
    let [Request::Subscribe { credit, .. }] = sent.as_slice() else { panic!("{sent:?}") };
    let mut credit = *credit;
    assert_eq!(credit, 10_000);
    // Whatever the user does, the node's credit and what is held make one window at most.
    let (mut held, mut next) = (0, 0);
    for round in 0..200 {
        while credit >= 532 {
            bench.core.answer(bench.now, HOME, delivered(id, next..next + 1, 500));
            next += 1;
            credit -= 532;
            held += 532;
        }
        assert_eq!(bench.outcomes().deliveries.iter().map(|(handle, _)| *handle).max(), Some(5));
        while held > 532 * (round % 8) {
            bench.core.consumed(id, 532);
            held -= 532;
        }
        for request in bench.send() {
            let Request::Credit { bytes, .. } = request else { panic!("{request:?}") };
            assert!(bytes >= 2_500);
            credit += bytes;
        }
        assert!(credit + held <= 10_000);
        if credit < 532 {
            bench.core.consumed(id, held);
            held = 0;
            for request in bench.send() {
                let Request::Credit { bytes, .. } = request else { panic!("{request:?}") };
                credit += bytes;
            }
        }
        assert!(credit >= 532, "the subscription is stuck");
    }
}

#[test]
fn a_subscription_goes_on_where_it_was() {
    let mut bench = Bench::new();
    let id = bench.core.subscribe(&Wanted::all(Color(1), number(0)), &[SHARD], 10_000, 5);
    bench.send();
    bench.core.answer(bench.now, HOME, delivered(id, 0..4, 968));
    bench.core.consumed(id, 1_000);
    bench.core.disconnected(HOME);
    bench.core.connected(HOME);
    let sent = bench.send();
    let [Request::Subscribe { from, credit, .. }] = sent.as_slice() else { panic!("{sent:?}") };
    // 3 records of 1000 are with the user.
    assert_eq!((*from, *credit), (number(4), 7_000));
    bench.outcomes();
    bench.core.answer(bench.now, HOME, delivered(id, 2..6, 1));
    bench.core.answer(bench.now, HOME, delivered(id, 2..6, 1));
    let numbers = |deliveries: Vec<(u32, Delivery)>| -> Vec<u32> {
        let records = deliveries.into_iter().flat_map(|(_, delivery)| match delivery {
            Delivery::Records { records, .. } => records,
            other => panic!("{other:?}"),
        });
        records.map(|(number, _)| number.counter()).collect()
    };
    assert_eq!(numbers(bench.outcomes().deliveries), [4, 5]);
    bench.core.answer(bench.now, HOME, Answer::Trimmed { id, point: number(3) });
    assert!(bench.outcomes().deliveries.is_empty());
    bench.core.answer(bench.now, HOME, Answer::Trimmed { id, point: number(30) });
    assert_eq!(bench.outcomes().deliveries, [(5, Delivery::Trimmed(number(30)))]);
    bench.core.answer(bench.now, HOME, delivered(id, 31..32, 1));
    assert_eq!(numbers(bench.outcomes().deliveries), [31]);
}

#[test]
fn a_subscription_ends_with_a_failure_or_with_its_user() {
    let mut bench = Bench::new();
    let id = bench.core.subscribe(&Wanted::all(Color(1), number(0)), &[SHARD], 10_000, 5);
    bench.send();
    // Not for want of readiness.
    bench.core.answer(bench.now, HOME, Answer::Failed { id, why: Failure::NotReady("x".into()) });
    assert!(bench.send().is_empty());
    bench.pass(5_000);
    assert!(matches!(bench.send().as_slice(), [Request::Subscribe { .. }]));
    let why = Failure::NoSuchColor("c".into());
    bench.core.answer(bench.now, HOME, Answer::Failed { id, why: why.clone() });
    assert_eq!(bench.outcomes().deliveries, [(5, Delivery::Failed(why))]);
    bench.core.unsubscribe(id);
    assert!(bench.send().is_empty());
    let id = bench.core.subscribe(&Wanted::all(Color(1), number(0)), &[SHARD], 10_000, 6);
    bench.send();
    bench.core.unsubscribe(id);
    assert_eq!(bench.send(), [Request::Unsubscribe { id }]);
    bench.core.answer(bench.now, HOME, delivered(id, 0..1, 1));
    assert!(bench.outcomes().is_empty());
}
