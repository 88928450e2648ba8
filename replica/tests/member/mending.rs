//! Records that are damaged here and whole on another member.

use super::*;

const OTHER: ReplicaId = ReplicaId(1);
const THIRD: ReplicaId = ReplicaId(3);

/// A member of a view of three with three settled records.
fn three() -> (Bench, SessionId) {
    let (mut bench, session) = Bench::serving();
    bench.commit(Body::NewView(View { number: ViewNumber(2), members: vec![OTHER, ME, THIRD] }));
    for counter in 0..3 {
        bench.settle(session, u64::from(counter) + 1, &format!("p{counter}"), n(1, counter));
    }
    (bench, session)
}

fn damage(counter: u32) -> Damage {
    super::damage((COLOR, n(1, counter)))
}

/// The name of the only question in `outputs`, who is asked, and for which numbers.
fn asked(outputs: &[Output]) -> (u64, ReplicaId, SeqNum, SeqNum) {
    let mut asked = outputs.iter().filter_map(|output| match output {
        Output::ToPeer { to, message: PeerMessage::CopyRead { copy, color, from, upto } } => {
            assert_eq!(*color, COLOR);
            Some((*copy, *to, *from, *upto))
        }
        _ => None,
    });
    let one = asked.next().unwrap_or_else(|| panic!("nobody is asked in {outputs:?}"));
    assert_eq!(asked.next(), None);
    one
}

fn from(from: ReplicaId, message: PeerMessage) -> Input {
    Input::Peer { from, message }
}

fn copied(copy: u64, counter: u32, payload: &str) -> PeerMessage {
    let records = vec![(n(1, counter), Record::new(payload.to_owned()).unwrap())];
    PeerMessage::Copied { copy, color: COLOR, records, covered: n(1, counter + 1) }
}

fn bad(copy: u64) -> PeerMessage {
    PeerMessage::CannotCopy { copy, why: "it is damaged".into(), damaged: true }
}

fn record_is(outputs: &[Output], counter: u32, payload: &str) {
    let record = Record::new(payload.to_owned()).unwrap();
    assert!(outputs.contains(&answer(Answer::Record { id: 9, number: n(1, counter), record })), "{outputs:?}");
}

#[test]
fn a_damaged_record_is_answered_from_another_member_and_written_again() {
    let (mut bench, _) = three();
    bench.damaged.insert((COLOR, n(1, 1)));
    let outputs = bench.read(n(1, 1));
    assert_eq!(outputs.len(), 2, "no answer yet: {outputs:?}");
    assert_eq!(outputs[0], Output::Damaged(damage(1)));
    let (copy, to, first, upto) = asked(&outputs);
    assert_eq!((to, first, upto), (OTHER, n(1, 1), n(1, 2)));
    // Others who want it wait for the same answer.
    assert_eq!(bench.read(n(1, 1)), []);
    let outputs = bench.step(from(OTHER, copied(copy, 1, "p1")));
    record_is(&outputs, 1, "p1");
    assert_eq!(outputs.len(), 2, "both are answered: {outputs:?}");
    let record = Record::new("p1").unwrap();
    assert_eq!(bench.written, [Persist::Repair { color: COLOR, number: n(1, 1), record }]);
    bench.fence();
    record_is(&bench.read(n(1, 1)), 1, "p1");
    assert_eq!(bench.step(from(OTHER, copied(copy, 1, "p1"))), [], "once is enough");
}

#[test]
fn members_are_asked_in_turn_and_only_when_none_has_it_whole_is_it_lost() {
    let (mut bench, _) = three();
    bench.damaged.insert((COLOR, n(1, 1)));
    let (copy, to, ..) = asked(&bench.read(n(1, 1)));
    assert_eq!(to, OTHER);
    let (again, to, ..) = asked(&bench.step(from(OTHER, bad(copy))));
    assert_eq!((again, to), (copy, THIRD));
    // One who does not have it at all, though it is settled, has none that is whole.
    let none = PeerMessage::Copied { copy, color: COLOR, records: vec![], covered: n(1, 2) };
    let outputs = bench.step(from(THIRD, none));
    let [Output::Lost(lost), Output::Answer { answer: Answer::Failed { id: 9, why: Failure::Unreadable(why) }, .. }] =
        &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert!(why.contains("1/1.1") && why.contains("no other member"), "{why}");
    assert_eq!((lost.number, &lost.why), (n(1, 1), why));
    assert_eq!(bench.written, []);
    // It is looked for again by the next read.
    asked(&bench.read(n(1, 1)));
}

#[test]
fn as_long_as_one_member_did_not_answer_the_client_is_told_to_try_again() {
    let (mut bench, _) = three();
    bench.damaged.insert((COLOR, n(1, 1)));
    let (copy, ..) = asked(&bench.read(n(1, 1)));
    assert_eq!(asked(&bench.step(from(OTHER, bad(copy)))).1, THIRD);
    let mut seen = Vec::new();
    while seen.is_empty() {
        bench.now = bench.replica.next_deadline().unwrap();
        assert!(bench.now < Time(20 * SECOND));
        let outputs = bench.step(Input::Tick);
        seen.extend(outputs.into_iter().filter(|output| matches!(output, Output::Answer { .. })));
    }
    let [Output::Answer { answer: Answer::Failed { id: 9, why: Failure::NotReady(why) }, .. }] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert!(why.contains("1/1.1"), "{why}");
    // Nobody waits any more, and it is not asked for without end.
    for _ in 0..20 {
        let Some(next) = bench.replica.next_deadline() else { break };
        bench.now = next;
        bench.step(Input::Tick);
    }
    assert_eq!(bench.replica.next_deadline(), None);
}

#[test]
fn a_member_that_is_not_there_is_passed_over_and_a_late_answer_is_taken() {
    let (mut bench, _) = three();
    bench.damaged.insert((COLOR, n(1, 1)));
    let (copy, ..) = asked(&bench.read(n(1, 1)));
    assert_eq!(asked(&bench.step(Input::PeerReplaced(OTHER))).1, THIRD);
    bench.now = bench.replica.next_deadline().unwrap();
    assert_eq!(bench.step(Input::Tick), [], "all were asked; they are asked again later");
    record_is(&bench.step(from(THIRD, copied(copy, 1, "p1"))), 1, "p1");
}

#[test]
fn a_subscription_gets_what_is_mended_and_goes_on() {
    let (mut bench, _) = three();
    bench.damaged.insert((COLOR, n(1, 1)));
    let subscribe = Request::Subscribe { id: 4, color: COLOR, tag: None, from: n(1, 0), credit: 1 << 20 };
    let mut outputs = bench.ask(subscribe);
    outputs.extend(bench.fetch());
    let (copy, ..) = asked(&outputs);
    let mut outputs = bench.step(from(OTHER, copied(copy, 1, "p1")));
    outputs.extend(bench.fetch());
    let delivered: Vec<SeqNum> = outputs
        .iter()
        .flat_map(|output| match output {
            Output::Answer { answer: Answer::Delivered { records, .. }, .. } => records.clone(),
            _ => vec![],
        })
        .map(|(number, _)| number)
        .collect();
    assert_eq!(delivered, [n(1, 1), n(1, 2)]);
}

#[test]
fn what_nobody_reads_is_mended_too_and_what_is_not_settled_is_left_alone() {
    let (mut bench, session) = three();
    bench.damaged.insert((COLOR, n(1, 2)));
    let outputs = bench.step(Input::Damaged(damage(2)));
    let (copy, ..) = asked(&outputs);
    assert_eq!(bench.step(Input::Damaged(damage(2))), [], "it is under way");
    assert_eq!(bench.step(from(OTHER, copied(copy, 2, "p2"))), []);
    assert_eq!(bench.written.len(), 1);
    bench.append(session, 4, "not committed");
    bench.fence();
    bench.write(assign(session, 4, n(1, 3)));
    assert_eq!(bench.step(Input::Damaged(damage(3))), []);
}

#[test]
fn what_does_not_fit_the_question_is_not_taken() {
    let (mut bench, _) = three();
    bench.damaged.insert((COLOR, n(1, 1)));
    let (copy, ..) = asked(&bench.read(n(1, 1)));
    assert_eq!(bench.step(from(OTHER, copied(copy + 1, 1, "p1"))), []);
    assert_eq!(asked(&bench.step(from(OTHER, copied(copy, 2, "p2")))).1, THIRD);
    assert_eq!(bench.written, []);
}

#[test]
fn a_member_says_what_it_has_and_what_it_cannot_know() {
    let (mut bench, _) = three();
    let copy = 1 << 63 | 5;
    let ask = |bench: &mut Bench, first, upto| {
        let message = PeerMessage::CopyRead { copy, color: COLOR, from: first, upto };
        let mut outputs = bench.step(from(OTHER, message));
        outputs.extend(bench.fetch());
        outputs
    };
    let says = |outputs: &[Output]| match outputs {
        [Output::ToPeer { to: OTHER, message: PeerMessage::CannotCopy { damaged, .. } }, ..] => Some(*damaged),
        _ => None,
    };
    let sent = ask(&mut bench, n(1, 1), n(1, 2));
    assert_eq!(sent, [Output::ToPeer { to: OTHER, message: copied(copy, 1, "p1") }]);
    assert_eq!(says(&ask(&mut bench, n(1, 3), n(1, 4))), Some(false), "it is not settled here");
    bench.damaged.insert((COLOR, n(1, 2)));
    let outputs = ask(&mut bench, n(1, 2), n(1, 3));
    assert_eq!(says(&outputs), Some(true), "it is damaged here, too");
    assert_eq!(outputs.len(), 1, "members that ask for what all have damaged must come to an end: {outputs:?}");
    bench.commit(Body::Trim { color: COLOR, upto: n(1, 1) });
    assert_eq!(says(&ask(&mut bench, n(1, 1), n(1, 2))), Some(false), "what is trimmed it may not have any more");
}

#[test]
fn one_that_is_trimmed_meanwhile_is_not_written() {
    let (mut bench, _) = three();
    bench.damaged.insert((COLOR, n(1, 1)));
    let (copy, ..) = asked(&bench.read(n(1, 1)));
    bench.commit(Body::Trim { color: COLOR, upto: n(1, 1) });
    bench.now = bench.replica.next_deadline().unwrap();
    let outputs = bench.step(Input::Tick);
    assert_eq!(outputs, [answer(Answer::Trimmed { id: 9, point: n(1, 1) })]);
    assert_eq!(bench.step(from(OTHER, copied(copy, 1, "p1"))), []);
    assert_eq!(bench.written, []);
}

#[test]
fn a_member_that_is_alone_says_at_once_that_it_is_lost() {
    let mut bench = Bench::fresh();
    bench.seal(1);
    bench.commit(Body::NewView(View { number: ViewNumber(1), members: vec![ME] }));
    let session = bench.open_session(1);
    bench.settle(session, 1, "p0", n(1, 0));
    bench.damaged.insert((COLOR, n(1, 0)));
    let outputs = bench.read(n(1, 0));
    assert!(
        matches!(
            &outputs[..],
            [
                Output::Damaged(_),
                Output::Lost(_),
                Output::Answer { answer: Answer::Failed { why: Failure::Unreadable(_), .. }, .. },
            ]
        ),
        "{outputs:?}"
    );
}

#[test]
fn one_that_has_to_learn_gives_it_up() {
    let (mut bench, _) = three();
    bench.damaged.insert((COLOR, n(1, 1)));
    bench.read(n(1, 1));
    let outputs = bench.leaf(ToMember::Learn { from: OTHER, behind: Lsn(1) });
    let told = |output: &Output| {
        matches!(output, Output::Answer { answer: Answer::Failed { id: 9, why: Failure::NotReady(_) }, .. })
    };
    assert!(outputs.iter().any(told), "{outputs:?}");
    assert_eq!(bench.step(Input::Damaged(damage(2))), []);
}
