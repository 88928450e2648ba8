//! A replica that catches up with a member, and records that an entry numbers and that are not here.

use super::*;

/// As whom the other one is known.
const OTHER: ReplicaId = ReplicaId(1);

fn peer(message: PeerMessage) -> Input {
    Input::Peer { from: OTHER, message }
}

/// Carries what the learner and the member say to each other until neither has anything to say; the rest is the learner's.
fn copy(learner: &mut Bench, member: &mut Bench, mut said: Vec<Output>) -> Vec<Output> {
    let mut rest = Vec::new();
    while !said.is_empty() {
        let mut answers = Vec::new();
        for output in said {
            match output {
                Output::ToPeer { to, message } => {
                    assert_eq!(to, OTHER);
                    answers.extend(member.step(peer(message)));
                    answers.extend(member.fetch());
                }
                other => rest.push(other),
            }
        }
        said = Vec::new();
        for answer in answers {
            match answer {
                Output::ToPeer { message, .. } => said.extend(learner.step(peer(message))),
                other => panic!("a member that helps says {other:?}"),
            }
        }
    }
    rest
}

fn settled(member: &mut Bench, session: SessionId, upto: u32) {
    for counter in 0..upto {
        member.settle(session, u64::from(counter) + 1, &format!("p{counter}"), n(1, counter));
    }
}

#[test]
fn a_fresh_replica_copies_what_is_settled_and_serves_once_it_is_in_the_view() {
    let (mut member, session) = Bench::serving();
    settled(&mut member, session, 5);
    member.append(session, 9, "staged here, and not there");
    member.fence();
    let upto = Lsn(member.lsn);

    let mut learner = Bench::fresh();
    learner.seal(1);
    let said = learner.leaf(ToMember::Learn { from: OTHER, behind: upto });
    let rest = copy(&mut learner, &mut member, said);
    assert!(rest.iter().all(|output| *output == to_leaf(1, ToLeaf::Learning)), "{rest:?}");
    learner.fence();
    let told = learner.fence();
    assert!(told.contains(&to_leaf(1, ToLeaf::Learned { upto })), "{told:?}");
    assert_eq!((learner.records.len(), &learner.records), (5, &member.records));

    let not_ready = learner.read(n(1, 0));
    assert!(matches!(
        &not_ready[..],
        [Output::Answer { answer: Answer::Failed { why: Failure::NotReady(_), .. }, .. }]
    ));
    learner.lsn = upto.0;
    learner.commit(Body::NewView(view(2)));
    assert_eq!(learner.read(n(1, 3)), [record(n(1, 3), "p3")]);
    // A retry is answered as everywhere.
    let run = Assign::one(Token { shard: SHARD, session, seq: 2 }, COLOR, n(1, 1), 1);
    let settled = Appended { members: vec![ME], view: view(2), settled: true, runs: vec![run] };
    assert_eq!(learner.append(session, 2, "p1"), [answer(Answer::Appended(settled))]);
}

#[test]
fn a_member_waits_until_it_knows_enough() {
    let (mut member, session) = Bench::serving();
    member.append(session, 1, "a");
    member.fence();
    member.write(assign(session, 1, n(1, 0)));
    member.fence();
    let ask = PeerMessage::CopyFrom { copy: 1, behind: Lsn(member.lsn), runs: vec![] };
    assert_eq!(member.step(peer(ask)), []);
    let outputs = member.commit_all();
    let upto = Lsn(member.lsn);
    let told = outputs.iter().any(
        |output| matches!(output, Output::ToPeer { message: PeerMessage::CopyState { same: Lsn(0), upto: at, .. }, .. } if *at == upto),
    );
    assert!(told, "{outputs:?}");
}

#[test]
fn what_differs_is_taken_back_and_staged_again() {
    let (mut member, session) = Bench::serving();
    let (mut learner, _) = Bench::serving();
    settled(&mut member, session, 2);
    for (seq, payload, counter) in [(1, "p0", 0), (2, "p1", 1)] {
        learner.settle(session, seq, payload, n(1, counter));
    }
    let same = Lsn(learner.lsn);
    // An entry that reached this one only, and one that the others went on with.
    learner.append(session, 3, "mine");
    learner.fence();
    learner.write(assign(session, 3, n(1, 2)));
    learner.fence();
    member.seal(2);
    member.commit(Body::NewView(view(2)));
    member.append(session, 4, "theirs");
    member.fence();
    member.commit(Body::EpochEnd { color: COLOR, end: n(1, 2), next: Epoch(2) });
    member.commit(assign(session, 4, n(2, 0)));

    let report = learner.seal(2);
    assert_eq!(report.last, (Epoch(1), same.next()));
    let said = learner.leaf(ToMember::Learn { from: OTHER, behind: Lsn(member.lsn) });
    copy(&mut learner, &mut member, said);
    let truncated = learner.written.iter().any(|what| matches!(what, Persist::Truncate { upto, .. } if *upto == same));
    assert!(truncated, "{:?}", learner.written);
    learner.fence();
    let told = learner.fence();
    let upto = Lsn(member.lsn);
    assert!(told.contains(&to_leaf(2, ToLeaf::Learned { upto })), "{told:?}");
    assert_eq!(learner.records, member.records);

    // After a crash it is as far.
    let mut learner = learner.restart();
    let report = learner.seal(3);
    assert_eq!((report.last, report.commit), ((Epoch(2), upto), upto));
    assert_eq!(report.staged, [staged_of(&make(session, 3, &["mine"]))]);
    assert_eq!(report.colors.iter().map(|end| end.end).collect::<Vec<_>>(), [n(2, 1)]);
}

#[test]
fn only_what_is_missing_is_copied_and_what_was_trimmed_is_not() {
    let (mut member, session) = Bench::serving();
    let (mut learner, _) = Bench::serving();
    settled(&mut member, session, 6);
    for counter in 0..3 {
        learner.settle(session, u64::from(counter) + 1, &format!("p{counter}"), n(1, counter));
    }
    member.commit(Body::Trim { color: COLOR, upto: n(1, 3) });
    let said = learner.leaf(ToMember::Learn { from: OTHER, behind: Lsn(member.lsn) });
    let rest = copy(&mut learner, &mut member, said);
    let copies: Vec<_> = learner
        .written
        .iter()
        .filter_map(
            |what| if let Persist::Copy { first, records, .. } = what { Some((*first, records.len())) } else { None },
        )
        .collect();
    assert_eq!(copies, [(n(1, 4), 2)]);
    let rest = [rest, learner.fence()].concat();
    assert!(rest.contains(&Output::Trim { color: COLOR, upto: n(1, 3) }), "{rest:?}");
}

#[test]
fn a_log_of_another_history_is_not_followed() {
    let (mut member, session) = Bench::serving();
    settled(&mut member, session, 2);
    let mut learner = Bench::fresh();
    learner.seal(7);
    learner.commit(Body::NewView(view(1)));
    let said = learner.leaf(ToMember::Learn { from: OTHER, behind: Lsn(member.lsn) });
    let rest = copy(&mut learner, &mut member, said);
    let stopped = |output: &Output| matches!(output, Output::Stopped(why) if why.contains("not of this history"));
    assert!(rest.iter().any(stopped), "{rest:?}");
}

#[test]
fn an_entry_waits_for_the_records_that_it_numbers() {
    let (mut bench, session) = Bench::serving();
    let token = Token { shard: SHARD, session, seq: 1 };
    let pull = Output::ToPeer { to: OTHER, message: PeerMessage::Pull { token } };
    assert_eq!(bench.write(assign(session, 1, n(1, 0))), std::slice::from_ref(&pull));
    assert_eq!(bench.write(Body::CloseSession(SessionId { epoch: Epoch(1), lsn: Lsn(99) })), []);
    assert_eq!((bench.fence(), bench.written.len()), (vec![], 0), "nothing is persisted, nothing acknowledged");
    // One who does not know it any more may have it under its number.
    let read = PeerMessage::CopyRead { copy: 0, color: COLOR, from: n(1, 0), upto: n(1, 1) };
    let ask = |message| Output::ToPeer { to: OTHER, message };
    assert_eq!(bench.step(peer(PeerMessage::NotHere { token })), [ask(read)]);
    let none = PeerMessage::Copied { copy: 0, color: COLOR, records: vec![], covered: n(1, 1) };
    assert_eq!(bench.step(peer(none)), std::slice::from_ref(&pull), "there is only one to ask");
    assert_eq!(bench.step(Input::PeerReplaced(OTHER)), std::slice::from_ref(&pull));
    // An answer that does not come is asked for again.
    let at = bench.replica.next_deadline().unwrap();
    assert_eq!(bench.step(Input::Tick), [], "not yet");
    bench.now = at;
    assert_eq!(bench.step(Input::Tick), [pull]);
    assert!(bench.replica.next_deadline().is_some_and(|next| next > at));
    let record = make(session, 1, &["a"]).records()[0].clone();
    bench.step(peer(PeerMessage::Copied { copy: 0, color: COLOR, records: vec![(n(1, 0), record)], covered: n(1, 1) }));
    let told = bench.fence();
    assert!(told.contains(&to_leaf(1, ToLeaf::Acked(Lsn(bench.lsn)))), "{told:?}");
    assert!(matches!(bench.entries.last().map(|entry| &entry.body), Some(Body::CloseSession(_))));
    assert_eq!(bench.replica.next_deadline(), None);
}

#[test]
fn with_another_view_its_members_are_asked_for_what_an_entry_waits_for() {
    let (mut bench, session) = Bench::serving();
    let token = Token { shard: SHARD, session, seq: 1 };
    let pull = |to| Output::ToPeer { to, message: PeerMessage::Pull { token } };
    assert_eq!(bench.write(assign(session, 1, n(1, 0))), [pull(OTHER)]);
    // The one who was asked is gone for good, and nobody says so but the view.
    let joined = ReplicaId(77);
    let view = View { number: ViewNumber(9), members: vec![ME, joined] };
    assert_eq!(bench.write(Body::NewView(view)), [pull(joined)]);
}

#[test]
fn one_that_knows_the_number_gives_the_records_and_says_when_they_are_settled() {
    let (mut bench, session) = Bench::serving();
    let token = Token { shard: SHARD, session, seq: 1 };
    bench.append(session, 1, "a");
    bench.fence();
    bench.write(assign(session, 1, n(1, 0)));
    bench.fence();
    assert_eq!(bench.step(peer(PeerMessage::Pull { token })), []);
    let append = Arc::new(make(session, 1, &["a"]));
    assert_eq!(bench.fetch(), [Output::ToPeer { to: OTHER, message: PeerMessage::Pulled(append) }]);
    assert_eq!(bench.commit_all(), [appended(session, 1, n(1, 0), true)], "the other may not reach the client");
}

#[test]
fn a_new_view_says_again_what_is_settled() {
    let (mut bench, session) = Bench::serving();
    bench.settle(session, 1, "a", n(1, 0));
    let run = Assign::one(Token { shard: SHARD, session, seq: 1 }, COLOR, n(1, 0), 1);
    let settled = Appended { members: vec![ME], view: view(2), settled: true, runs: vec![run] };
    assert_eq!(bench.commit(Body::NewView(view(2))), [answer(Answer::Appended(settled))]);
    assert_eq!(bench.commit(Body::NewView(view(2))), [], "the same view under another leaf");
}

#[test]
fn a_report_that_is_asked_for_again_counts_only_what_is_durable() {
    let (mut bench, session) = Bench::serving();
    bench.append(session, 1, "a");
    bench.fence();
    let durable = Lsn(bench.lsn);
    bench.write(assign(session, 1, n(1, 0)));
    let told = bench.leaf(ToMember::Seal);
    let [Output::ToLeaf(Of { message: ToLeaf::Sealed(report), .. })] = &told[..] else { panic!("{told:?}") };
    assert_eq!((report.last, &report.entries[..]), ((Epoch(1), durable), &[][..]));
    assert!(bench.fence().contains(&to_leaf(1, ToLeaf::Acked(durable.next()))));
    let told = bench.leaf(ToMember::Seal);
    let [Output::ToLeaf(Of { message: ToLeaf::Sealed(report), .. })] = &told[..] else { panic!("{told:?}") };
    assert_eq!((report.last, report.entries.len()), ((Epoch(1), durable.next()), 1));
}

#[test]
fn what_the_store_had_no_room_for_is_copied_again() {
    let (mut member, session) = Bench::serving();
    settled(&mut member, session, 3);
    let upto = Lsn(member.lsn);
    let mut learner = Bench::fresh();
    learner.seal(1);
    let said = learner.leaf(ToMember::Learn { from: OTHER, behind: upto });
    copy(&mut learner, &mut member, said);
    for what in &mut learner.written {
        if let Persist::Copy { records, .. } = what {
            records.clear();
        }
    }
    learner.step(Input::CopyRefused);
    let told = [learner.fence(), learner.fence()].concat();
    assert!(!told.contains(&to_leaf(1, ToLeaf::Learned { upto })) && learner.checkpoint.is_none(), "{told:?}");

    let said = learner.leaf(ToMember::Learn { from: OTHER, behind: upto });
    copy(&mut learner, &mut member, said);
    let told = [learner.fence(), learner.fence()].concat();
    assert!(told.contains(&to_leaf(1, ToLeaf::Learned { upto })), "{told:?}");
    assert_eq!(learner.records, member.records);
}

#[test]
fn a_checkpoint_of_before_is_not_taken_for_the_copied_one() {
    let (mut member, session) = Bench::serving();
    let (mut learner, _) = Bench::serving();
    member.commit(Body::CloseSession(session));
    let upto = Lsn(member.lsn);
    learner.step(Input::CheckpointWanted);
    let said = learner.leaf(ToMember::Learn { from: OTHER, behind: upto });
    copy(&mut learner, &mut member, said);
    assert_eq!(learner.written.len(), 2);
    // The first of them alone.
    learner.durable += 1;
    let first = learner.durable;
    learner.written.remove(0);
    assert_eq!(learner.step(Input::Durable { upto: first }), []);
    assert_eq!(learner.fence(), [to_leaf(1, ToLeaf::Learned { upto })]);
}

#[test]
fn what_is_taken_back_after_a_restart_is_dropped_as_its_digest_is_not_known() {
    let (mut member, _) = Bench::serving();
    let (mut learner, session) = Bench::serving();
    learner.append(session, 1, "mine");
    learner.fence();
    learner.write(assign(session, 1, n(1, 0)));
    learner.fence();
    let mut learner = learner.restart();
    member.seal(2);
    member.commit(Body::NewView(view(2)));
    learner.seal(2);
    let said = learner.leaf(ToMember::Learn { from: OTHER, behind: Lsn(member.lsn) });
    let rest = copy(&mut learner, &mut member, said);
    let token = Token { shard: SHARD, session, seq: 1 };
    assert!(rest.contains(&Output::DropStaged(vec![token])), "{rest:?}");
    assert_eq!(learner.fence(), [to_leaf(2, ToLeaf::Learned { upto: Lsn(member.lsn) })]);
}

#[test]
fn what_was_copied_over_is_not_staged_after_a_crash() {
    let (mut bench, session) = Bench::serving();
    bench.settle(session, 1, "a", n(1, 0));
    bench.step(Input::CheckpointWanted);
    bench.fence();
    let append = make(session, 1, &["a"]);
    let recovered =
        Recovered { checkpoint: bench.checkpoint.clone(), staged: vec![staged_of(&append)], ..Recovered::default() };
    let (_, outputs) = Replica::restore(ME, SHARD, recovered).unwrap();
    assert_eq!(outputs, [Output::DropStaged(vec![append.token()])]);
}

#[test]
fn what_is_taken_back_before_it_is_durable_is_not_acknowledged() {
    let (mut member, session) = Bench::serving();
    let (mut learner, _) = Bench::serving();
    member.commit(Body::NewView(view(2)));
    let said = learner.leaf(ToMember::Learn { from: OTHER, behind: Lsn(member.lsn) });
    // It crossed with an entry that is not durable, and not the member's.
    learner.write(Body::CloseSession(session));
    learner.write(Body::CloseSession(session));
    copy(&mut learner, &mut member, said);
    let told = [learner.fence(), learner.fence()].concat();
    let acked = |output: &Output| matches!(output, Output::ToLeaf(Of { message: ToLeaf::Acked(_), .. }));
    assert!(!told.iter().any(acked), "{told:?}");
}

#[test]
fn what_is_settled_on_all_shards_waits_for_the_entries_that_it_counts_on() {
    let wide = Color::new(Position(0), true, 1).unwrap();
    let (mut bench, session) = Bench::serving();
    let commit = Lsn(bench.lsn + 1);
    bench.leaf(ToMember::Stable { upto: vec![(wide, n(1, 9))], commit });
    assert_eq!(bench.replica.stable(wide), SeqNum::MIN);
    bench.commit(Body::CloseSession(session));
    assert_eq!(bench.replica.stable(wide), n(1, 9));
}

#[test]
fn what_was_staged_in_a_session_that_is_taken_back_is_dropped() {
    let (mut member, _) = Bench::serving();
    let (mut learner, _) = Bench::serving();
    // A session that only the learner has heard of, and an append in it.
    learner.write(Body::OpenSession { nonce: Uuid::from_u128(9) });
    let session = SessionId { epoch: Epoch(1), lsn: Lsn(learner.lsn) };
    let append = make(session, 1, &["a"]);
    learner.append(session, 1, "a");
    learner.fence();
    let said = learner.leaf(ToMember::Learn { from: OTHER, behind: Lsn(member.lsn) });
    let rest = copy(&mut learner, &mut member, said);
    assert!(rest.contains(&Output::DropStaged(vec![append.token()])), "{rest:?}");
}

#[test]
fn a_view_of_the_past_lets_nobody_in() {
    let (mut member, session) = Bench::serving();
    let (mut learner, _) = Bench::serving();
    // The learner has an old view's entry that it does not know to be committed.
    learner.write(Body::NewView(view(2)));
    learner.fence();
    member.commit(Body::NewView(view(2)));
    member.commit(Body::CloseSession(session));
    let said = learner.leaf(ToMember::Learn { from: OTHER, behind: Lsn(member.lsn) });
    copy(&mut learner, &mut member, said);
    learner.fence();
    let not_ready = learner.read(n(1, 0));
    assert!(matches!(
        &not_ready[..],
        [Output::Answer { answer: Answer::Failed { why: Failure::NotReady(_), .. }, .. }]
    ));
}

fn is_turned_away(answers: &[Output]) -> bool {
    matches!(answers, [Output::Answer { answer: Answer::Failed { why: Failure::NotReady(_), .. }, .. }])
}

#[test]
fn one_that_went_down_outside_the_view_serves_nobody_either() {
    let (mut bench, _) = Bench::serving();
    bench.commit(Body::NewView(View { number: ViewNumber(2), members: vec![OTHER] }));
    bench.step(Input::CheckpointWanted);
    bench.fence();
    let mut bench = bench.restart();
    let not_ready = bench.read(n(1, 0));
    assert!(matches!(
        &not_ready[..],
        [Output::Answer { answer: Answer::Failed { why: Failure::NotReady(_), .. }, .. }]
    ));
}

#[test]
fn one_whose_log_says_that_it_is_no_member_serves_nobody_after_a_restart() {
    let body = Body::NewView(View { number: ViewNumber(2), members: vec![OTHER] });
    let entries = vec![Entry { lsn: Lsn(1), epoch: Epoch(1), body }];
    let mut bench = Bench::over(Recovered { entries, ..Recovered::default() });
    assert!(is_turned_away(&bench.read(n(1, 0))));
}

#[test]
fn one_that_learns_that_it_was_dropped_turns_away_who_waits() {
    let (mut bench, session) = Bench::serving();
    bench.settle(session, 1, "a", n(1, 0));
    bench.ask(Request::Read { id: 9, color: COLOR, number: n(1, 0), wait_micros: SECOND });
    bench.ask(Request::Subscribe { id: 10, color: COLOR, tag: None, from: n(1, 1), credit: 100 });
    let told = bench.commit(Body::NewView(View { number: ViewNumber(2), members: vec![OTHER] }));
    let turned_away = told.iter().filter(|output| is_turned_away(std::slice::from_ref(*output)));
    assert_eq!(turned_away.count(), 2, "{told:?}");
    assert_eq!(bench.fetch(), []);
}

#[test]
fn one_that_copied_what_a_newer_leaf_wrote_passes_by_what_the_old_one_says() {
    let (mut member, session) = Bench::serving();
    member.seal(2);
    member.commit(Body::NewView(view(2)));
    let mut learner = Bench::fresh();
    learner.seal(1);
    let said = learner.leaf(ToMember::Learn { from: OTHER, behind: Lsn(0) });
    copy(&mut learner, &mut member, said);
    learner.fence();
    learner.fence();
    learner.lsn = member.lsn;
    assert_eq!((learner.write(Body::CloseSession(session)), learner.written.len()), (vec![], 0));
    assert_eq!(learner.replica.summary().stopped, None);
}

#[test]
fn what_is_taken_back_is_reported_once_it_is_durable() {
    let (mut member, _) = Bench::serving();
    let (mut learner, session) = Bench::serving();
    member.commit(Body::NewView(view(2)));
    learner.append(session, 1, "mine");
    learner.write(assign(session, 1, n(1, 0)));
    let said = learner.leaf(ToMember::Learn { from: OTHER, behind: Lsn(member.lsn) });
    copy(&mut learner, &mut member, said);
    let told = learner.leaf(ToMember::Seal);
    let [Output::ToLeaf(Of { message: ToLeaf::Sealed(report), .. })] = &told[..] else { panic!("{told:?}") };
    assert_eq!(report.staged, []);
    let mine = staged_of(&make(session, 1, &["mine"]));
    assert!(learner.fence().contains(&to_leaf(1, ToLeaf::Persisted(vec![mine]))));
}

#[test]
fn a_session_that_is_closed_before_it_is_told_is_not_waited_for() {
    let (mut bench, _) = Bench::serving();
    let nonce = Uuid::from_u128(5);
    let ask = Request::OpenSession { id: 4, shard: SHARD, nonce };
    let asked = to_leaf(1, ToLeaf::OpenSession { nonce });
    assert_eq!(bench.ask(ask.clone()), std::slice::from_ref(&asked));
    bench.write(Body::OpenSession { nonce });
    let session = SessionId { epoch: Epoch(1), lsn: Lsn(bench.lsn) };
    assert!(is_turned_away(&bench.commit(Body::CloseSession(session))));
    assert_eq!(bench.ask(ask), [asked], "it is asked for anew");
}
