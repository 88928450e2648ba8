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

/// The trim commits between the read of the damaged record and its end.
#[test]
fn one_that_was_trimmed_since_it_was_read_is_answered_as_such() {
    let read = Request::Read { id: 9, color: COLOR, number: n(1, 1), wait_micros: 0 };
    let subscribe = Request::Subscribe { id: 9, color: COLOR, tag: None, from: n(1, 1), credit: 1 << 20 };
    // Behind the trim point is another record, or none.
    for (request, upto) in [read, subscribe].into_iter().flat_map(|request| [(request.clone(), 1), (request, 2)]) {
        let (mut bench, _) = three();
        assert_eq!(bench.ask(request), []);
        let (fetch, ..) = bench.fetches.pop().unwrap();
        bench.commit(Body::Trim { color: COLOR, upto: n(1, upto) });
        let outputs = bench.step(Input::Fetched { fetch, result: Err(damage(1)) });
        assert!(outputs.contains(&answer(Answer::Trimmed { id: 9, point: n(1, upto) })), "{outputs:?}");
        let others = outputs.iter().filter(|output| !matches!(output, Output::Trim { .. })).count();
        assert!(others <= 2, "{outputs:?}");
        let failed = |output: &Output| matches!(output, Output::Answer { answer: Answer::Failed { .. }, .. });
        assert!(!outputs.iter().any(failed) && bench.written.is_empty(), "{outputs:?}");
    }
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

/// A color on several shards. Of its first five numbers 1 and 3 are here, the others on another shard.
const WIDE: Color = Color::new(Position(0), true, 1).unwrap();

fn settle_wide(bench: &mut Bench, session: SessionId, seq: u64, number: SeqNum) {
    let token = Token { shard: SHARD, session, seq };
    let records = vec![Record::new(format!("w{}", number.counter())).unwrap()];
    let append = Arc::new(Append::new(token, WIDE, None, records).unwrap());
    let request = AppendRequest { shard: SHARD, session, low: 1, members: vec![ME], appends: vec![append] };
    bench.step(Input::Append { from: CLIENT, request: Arc::new(request) });
    bench.fence();
    bench.commit(Body::Assign(vec![Assign::one(token, WIDE, number, 1)]));
}

fn wide() -> Bench {
    let (mut bench, session) = three();
    settle_wide(&mut bench, session, 4, n(1, 1));
    settle_wide(&mut bench, session, 5, n(1, 3));
    bench
}

fn wide_stable(bench: &mut Bench, upto: u32) {
    let commit = Lsn(bench.lsn);
    bench.leaf(ToMember::Stable { upto: vec![(WIDE, n(1, upto))], commit });
}

fn wide_copied(copy: u64, counters: &[u32]) -> PeerMessage {
    let record = |counter: &u32| (n(1, *counter), Record::new(format!("w{counter}")).unwrap());
    PeerMessage::Copied { copy, color: WIDE, records: counters.iter().map(record).collect(), covered: n(1, 4) }
}

/// The question to another member in `outputs`: its name, who is asked, and for which numbers of the wide color.
fn wide_asked(outputs: &[Output]) -> (u64, ReplicaId, SeqNum, SeqNum) {
    let asked = outputs.iter().find_map(|output| match output {
        Output::ToPeer { to, message: PeerMessage::CopyRead { copy, color: WIDE, from, upto } } => {
            Some((*copy, *to, *from, *upto))
        }
        _ => None,
    });
    asked.unwrap_or_else(|| panic!("nobody is asked in {outputs:?}"))
}

/// A damaged place of which it is not known which number it had: any from 1 up to 3.
fn blurred() -> Damage {
    Damage { color: WIDE, number: n(1, 1), end: n(1, 4), why: "file: a block is damaged".into() }
}

/// What the store finds for the only fetch is `blurred`.
fn fetch_blurred(bench: &mut Bench) -> Vec<Output> {
    let [(fetch, WIDE, ..)] = bench.fetches[..] else { panic!("{:?}", bench.fetches) };
    bench.fetches.clear();
    bench.step(Input::Fetched { fetch, result: Err(blurred()) })
}

fn repairs(bench: &Bench) -> Vec<(Color, SeqNum, Record)> {
    let each = bench.written.iter().map(|written| match written {
        Persist::Repair { color, number, record } => (*color, *number, record.clone()),
        other => panic!("{other:?}"),
    });
    each.collect()
}

fn wide_record(counter: u32) -> (Color, SeqNum, Record) {
    (WIDE, n(1, counter), Record::new(format!("w{counter}")).unwrap())
}

#[test]
fn a_damaged_record_of_a_wide_color_is_mended_among_numbers_of_another_shard() {
    let mut bench = wide();
    wide_stable(&mut bench, 5);
    bench.damaged.insert((WIDE, n(1, 1)));
    let read = |number| Request::Read { id: 9, color: WIDE, number, wait_micros: SECOND };
    let mut outputs = bench.ask(read(n(1, 1)));
    outputs.extend(bench.fetch());
    let (copy, to, first, upto) = wide_asked(&outputs);
    assert_eq!((to, first, upto), (OTHER, n(1, 1), n(1, 2)));
    let outputs = bench.step(from(OTHER, wide_copied(copy, &[1])));
    record_is(&outputs, 1, "w1");
    assert_eq!(repairs(&bench), [wide_record(1)]);
    bench.fence();
    // Its neighbours are as before: of another shard, and whole.
    for (number, right) in [(0, None), (1, Some("w1")), (2, None), (3, Some("w3"))] {
        let mut outputs = bench.ask(read(n(1, number)));
        outputs.extend(bench.fetch());
        match right {
            Some(payload) => record_is(&outputs, number, payload),
            None => assert_eq!(outputs, [answer(Answer::Elsewhere { id: 9 })], "{number}"),
        }
    }
}

#[test]
fn where_it_is_not_known_which_numbers_are_damaged_all_that_are_of_this_shard_are_written_again() {
    let mut bench = wide();
    wide_stable(&mut bench, 5);
    bench.ask(Request::Read { id: 9, color: WIDE, number: n(1, 1), wait_micros: SECOND });
    let (copy, to, first, upto) = wide_asked(&fetch_blurred(&mut bench));
    assert_eq!((to, first, upto), (OTHER, n(1, 1), n(1, 4)));
    // What is of none of these numbers is not taken, and the next is asked.
    let stray = wide_copied(copy, &[1, 4]);
    assert_eq!(wide_asked(&bench.step(from(OTHER, stray))).1, THIRD);
    assert_eq!(bench.written, []);
    let outputs = bench.step(from(THIRD, wide_copied(copy, &[1, 3])));
    record_is(&outputs, 1, "w1");
    assert_eq!(repairs(&bench), [wide_record(1), wide_record(3)]);
}

#[test]
fn a_subscription_to_a_wide_color_goes_on_behind_what_was_mended() {
    for there in [&[1, 3][..], &[]] {
        let mut bench = wide();
        wide_stable(&mut bench, 5);
        bench.ask(Request::Subscribe { id: 4, color: WIDE, tag: None, from: n(1, 1), credit: 1 << 20 });
        let (copy, ..) = wide_asked(&fetch_blurred(&mut bench));
        let mut outputs = bench.step(from(OTHER, wide_copied(copy, there)));
        // Where nothing of this shard was damaged there is nothing to be written, and the read goes on behind it.
        assert_eq!(repairs(&bench).len(), there.len());
        bench.fence();
        if there.is_empty() {
            bench.records.remove(&(WIDE, n(1, 1)));
            bench.records.remove(&(WIDE, n(1, 3)));
        }
        outputs.extend(bench.fetch());
        let (mut numbers, mut end) = (Vec::new(), n(1, 0));
        for output in &outputs {
            if let Output::Answer { answer: Answer::Delivered { records, upto, .. }, .. } = output {
                numbers.extend(records.iter().map(|(number, _)| number.counter()));
                end = *upto;
            }
        }
        assert_eq!((&numbers[..], end), (there, n(1, 5)), "{outputs:?}");
    }
}

#[test]
fn damage_of_a_wide_color_waits_until_it_is_known_how_far_that_is_settled() {
    let mut bench = wide();
    // The leaf has not said yet how far it is settled: it is asked, and nothing is written.
    let outputs = bench.step(Input::Damaged(blurred()));
    let follows =
        |output: &Output| matches!(output, Output::ToLeaf(Of { message: ToLeaf::TailAsk { color: WIDE, .. }, .. }));
    let peers = |output: &Output| matches!(output, Output::ToPeer { .. });
    assert!(!outputs.iter().any(peers), "{outputs:?}");
    assert!(outputs.iter().all(follows), "{outputs:?}");
    // Of what is settled by now.
    wide_stable(&mut bench, 2);
    let (copy, _, first, upto) = wide_asked(&bench.step(Input::Damaged(blurred())));
    assert_eq!((first, upto), (n(1, 1), n(1, 2)));
    bench.step(from(OTHER, wide_copied(copy, &[1])));
    assert_eq!(repairs(&bench), [wide_record(1)]);
}
