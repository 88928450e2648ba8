//! The rules for members at several nodes, and for colors on several shards.

use flexlog_protocol::api::ShardInfo;

use super::*;

/// A bench whose members are at three nodes: home, and two that it is connected to.
fn spread() -> (Bench, [NodeId; 3]) {
    let mut bench = Bench::new();
    bench.core.learn(HOME, &color_info(&["", "b", "c"]));
    let nodes = [HOME, NodeId(1), NodeId(2)];
    bench.submit(1);
    nodes.iter().for_each(|node| bench.core.connected(*node));
    (bench, nodes)
}

impl Bench {
    fn sent_to(&mut self, node: NodeId) -> Vec<Request> {
        self.core.take_requests(self.now, node, &mut self.sent);
        std::mem::take(&mut self.sent)
    }

    fn appends_to(&mut self, node: NodeId) -> Vec<(Vec<u32>, Vec<u64>)> {
        let only = |request| if let Request::Append(append) = request { append } else { panic!("{request:?}") };
        let sent: Vec<_> = self.sent_to(node).into_iter().map(only).collect();
        let seqs = |request: &AppendRequest| request.appends.iter().map(|append| append.token().seq).collect();
        sent.iter().map(|one| (one.members.iter().map(|member| member.0).collect(), seqs(one))).collect()
    }

    /// The one node that is asked to open the session, and what it is asked.
    fn opening(&mut self, nodes: [NodeId; 3]) -> (NodeId, RequestId, Uuid) {
        let mut found = Vec::new();
        for node in nodes {
            for request in self.sent_to(node) {
                if let Request::OpenSession { id, nonce, .. } = request {
                    found.push((node, id, nonce));
                }
            }
        }
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]
    }
}

#[test]
fn each_node_gets_what_is_for_its_members_and_a_lost_one_gets_it_again_alone() {
    let (mut bench, nodes) = spread();
    let (at, id, _) = bench.opening(nodes);
    bench.core.answer(bench.now, at, Answer::SessionOpened { id, session: bench.session });
    for (node, member) in nodes.into_iter().zip(1..) {
        assert_eq!(bench.appends_to(node), [(vec![member], vec![1])]);
    }
    bench.core.disconnected(nodes[1]);
    bench.submit(2);
    assert_eq!(bench.appends_to(nodes[0]), [(vec![1], vec![2])]);
    assert_eq!(bench.appends_to(nodes[1]), []);
    bench.say(&[1, 3], 1, false, 1, 2, 50);
    assert!(bench.done().is_empty(), "one member has not answered");
    bench.core.connected(nodes[1]);
    assert_eq!(bench.appends_to(nodes[1]), [(vec![2], vec![1, 2])]);
    assert_eq!(bench.appends_to(nodes[0]), []);
    assert_eq!(bench.appends_to(nodes[2]), [(vec![3], vec![2])]);
    bench.say(&[2], 1, false, 1, 2, 50);
    assert_eq!(bench.done(), [(1, Ok(number(50))), (2, Ok(number(51)))]);
}

#[test]
fn a_session_is_opened_through_another_node_with_the_same_nonce() {
    let (mut bench, nodes) = spread();
    let (first, id, nonce) = bench.opening(nodes);
    let why = Failure::NotReady("no leaf".into());
    bench.core.answer(bench.now, first, Answer::Failed { id, why });
    bench.pass(1_000);
    let (second, id, again) = bench.opening(nodes);
    assert!(first != second && nonce == again);
    // It says nothing.
    assert!(bench.core.next_deadline().unwrap() <= bench.now.after(2_000_000));
    bench.pass(2_000_000);
    let (third, _, again) = bench.opening(nodes);
    assert!(third != first && third != second && nonce == again);
    bench.core.disconnected(third);
    let (fourth, _, again) = bench.opening(nodes);
    assert!(fourth != third && nonce == again);
    // Whoever answers, it is the same session.
    bench.core.answer(bench.now, second, Answer::SessionOpened { id, session: bench.session });
    assert_eq!(bench.appends_to(first).len(), 1);
}

#[test]
fn what_a_node_was_never_sent_its_members_do_not_hold_when_the_session_expires() {
    let (mut bench, nodes) = spread();
    let (at, id, _) = bench.opening(nodes);
    let away = nodes.into_iter().find(|node| *node != at).unwrap();
    bench.core.disconnected(away);
    bench.core.answer(bench.now, at, Answer::SessionOpened { id, session: bench.session });
    for node in nodes {
        assert_eq!(bench.appends_to(node).len(), usize::from(node != away));
    }
    for (node, member) in nodes.into_iter().zip(1..).filter(|(node, _)| *node != away) {
        let (token, member) = (bench.token(1), ReplicaId(member));
        bench.core.answer(bench.now, node, Answer::AppendRefused { token, member, why: SessionExpired });
    }
    assert!(bench.done().is_empty());
    bench.session.lsn = Lsn(11);
    let (at, id, _) = bench.opening(nodes);
    bench.core.answer(bench.now, at, Answer::SessionOpened { id, session: bench.session });
    assert_eq!(bench.appends_to(at).len(), 1, "it goes under the next session");
}

#[test]
fn calls_move_to_the_next_member_and_silent_nodes_are_named() {
    let (mut bench, nodes) = spread();
    bench.core.call(Time(3_000_000), AT_SHARD, 7, |id| Request::Tail { id, color: Color(6) });
    let asked = |bench: &mut Bench| {
        let is_tail = |request: &Request| matches!(request, Request::Tail { .. });
        nodes.into_iter().filter(|node| bench.sent_to(*node).iter().any(is_tail)).collect::<Vec<_>>()
    };
    let first = asked(&mut bench);
    assert_eq!(first.len(), 1);
    bench.core.disconnected(first[0]);
    let second = asked(&mut bench);
    assert!(second.len() == 1 && second != first);
    bench.core.take_silent();
    bench.pass(3_000_000);
    assert_eq!(bench.outcomes().calls, [(7, Err(CallFailure::Deadline(None)))]);
    assert_eq!(bench.core.take_silent(), second);
}

#[test]
fn members_that_moved_are_sent_what_is_open() {
    let (mut bench, nodes) = spread();
    let (at, id, _) = bench.opening(nodes);
    bench.core.answer(bench.now, at, Answer::SessionOpened { id, session: bench.session });
    nodes.iter().for_each(|node| drop(bench.appends_to(*node)));
    bench.core.learn(HOME, &color_info(&["", "b", "d"]));
    let moved = NodeId(3);
    assert!(bench.core.wanted_nodes().any(|(node, address)| node == moved && address == "d"));
    bench.core.connected(moved);
    assert_eq!(bench.appends_to(moved), [(vec![3], vec![1])]);
    assert_eq!(bench.appends_to(nodes[1]), []);
}

#[test]
fn a_newer_view_is_looked_up() {
    let (mut bench, nodes) = spread();
    let (at, id, _) = bench.opening(nodes);
    bench.core.answer(bench.now, at, Answer::SessionOpened { id, session: bench.session });
    nodes.iter().for_each(|node| drop(bench.appends_to(*node)));
    bench.say(&[1], 2, false, 1, 1, 50);
    bench.pass(1);
    let sent = bench.send();
    assert!(matches!(sent.as_slice(), [Request::Lookup { name, create: None, .. }] if name == "c"), "{sent:?}");
    // Its answer is nobody's.
    let Request::Lookup { id, .. } = sent[0] else { panic!() };
    bench.core.answer(bench.now, HOME, Answer::Color { id, info: color_info(&["", "b", "c"]) });
    assert!(bench.outcomes().calls.is_empty());
}

#[test]
fn parts_of_a_subscription_are_merged_and_given_their_own_back() {
    let mut bench = Bench::new();
    let info = color_info(&[""; 3]);
    let other = ShardInfo { shard: ShardId(5), ..info.shards[0].clone() };
    bench.core.learn(HOME, &ColorInfo { shards: vec![other], ..info });
    let window = 2 * MIN_PART_WINDOW;
    let name = bench.core.subscribe(&Wanted::all(Color(1), number(0)), &[SHARD, ShardId(5)], window, 5);
    let sent = bench.send();
    let [Request::Subscribe { id: a, credit, .. }, Request::Subscribe { id: b, .. }] = sent.as_slice() else {
        panic!("{sent:?}")
    };
    assert_eq!(*credit, MIN_PART_WINDOW);
    let large = |id, at: u32, upto: u32| Answer::Delivered {
        id,
        records: vec![(number(at), Record::new(vec![0; 700_000]).unwrap())],
        upto: number(upto),
    };
    bench.core.answer(bench.now, HOME, large(*a, 1, 5));
    assert!(bench.outcomes().deliveries.is_empty(), "the other may have 0");
    bench.core.answer(bench.now, HOME, large(*b, 0, 2));
    let got = bench.outcomes().deliveries;
    let [(5, Delivery::Records { records, upto })] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!((records.iter().map(|(n, _)| n.counter()).collect::<Vec<_>>(), *upto), (vec![0, 1], number(2)));
    bench.core.consumed(name, 700_032);
    assert_eq!(bench.send(), [Request::Credit { id: *b, bytes: 700_032 }], "0 came from there");
    bench.core.consumed(name, 700_032);
    assert_eq!(bench.send(), [Request::Credit { id: *a, bytes: 700_032 }]);
    // One part's failure ends the whole.
    let why = Failure::NoSuchColor("c".into());
    bench.core.answer(bench.now, HOME, Answer::Failed { id: *a, why: why.clone() });
    assert_eq!(bench.outcomes().deliveries, [(5, Delivery::Failed(why))]);
    assert_eq!(bench.send(), [Request::Unsubscribe { id: *b }]);
}
