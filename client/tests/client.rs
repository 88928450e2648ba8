//! The client against a node that misbehaves on demand, over both transports.

// Helpers are outside of test functions, where the lints do not see that this is a test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fake;

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use fake::{Node, number};
use flexlog_client::{
    AppendError, Builder, Client, ColorError, ColorOptions, ConnectError, Event, Failure, NextOutcome, PrevOutcome,
    ReadOutcome, Record, RecordError, SeqNum, Subscription, TrimError,
};
use flexlog_protocol::api::AppendRefusal;

async fn over_tcp(node: &Node, builder: Builder) -> Client {
    builder.connect(node.serve_tcp().await).await.unwrap()
}

async fn over_channels(node: &Node, builder: Builder) -> Client {
    builder.connect_with(node.serve_in_process()).await.unwrap()
}

/// The same test over each transport.
macro_rules! over_both {
    ($($name:ident),* $(,)?) => {
        mod tcp {
            $(#[tokio::test]
            async fn $name() {
                let node = super::Node::new();
                super::$name(node.clone(), |builder| async move { super::over_tcp(&node, builder).await }).await;
            })*
        }
        mod channels {
            $(#[tokio::test]
            async fn $name() {
                let node = super::Node::new();
                super::$name(node.clone(), |builder| async move { super::over_channels(&node, builder).await }).await;
            })*
        }
    };
}

over_both!(
    every_operation,
    a_lost_connection_costs_nothing,
    answers_that_do_not_come_end_at_the_deadline,
    a_node_that_is_away_is_named,
    a_connection_that_is_silent_is_given_up,
    the_window_holds_back_who_submits,
    refusals_are_told_apart,
    a_slow_subscriber_is_sent_what_it_allows,
    a_subscription_outlives_connections,
    handles_may_go_before_the_appends_do,
    a_client_that_leaves_closes_its_sessions,
    large_records_go_through,
);

fn text(record: &Record) -> String {
    String::from_utf8(record.payload().to_vec()).unwrap()
}

fn record(text: impl Into<String>) -> Record {
    Record::new(text.into()).unwrap()
}

/// The next record of a subscription, whatever else comes.
async fn next_record(subscription: &mut Subscription) -> (SeqNum, Record) {
    loop {
        match subscription.next().await.unwrap().unwrap() {
            Event::Record { number, record } => return (number, record),
            Event::Trimmed { .. } | Event::Progress { .. } => {}
        }
    }
}

/// Whether a future has nothing to say when it is asked once.
async fn is_pending<F: Future>(future: std::pin::Pin<&mut F>) -> bool {
    let mut future = future;
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

async fn every_operation<F: Future<Output = Client>>(_node: Node, connect: impl FnOnce(Builder) -> F) {
    let client = connect(Client::builder()).await;
    assert_eq!(client.cluster(), fake::cluster());
    assert_eq!(client.status().await.unwrap().version, "fake");
    let error = client.existing_color("orders").await.unwrap_err();
    assert!(error.is_no_such_color() && error.to_string().contains("'orders'"), "{error}");
    let log = client.color("orders").await.unwrap();
    assert_eq!(client.existing_color("orders").await.unwrap().color(), log.color());
    let options = ColorOptions { owner: Some("eu".into()), ..ColorOptions::default() };
    assert_eq!(client.create_color("d", options).await.unwrap().owner, "eu");
    assert_eq!(client.create_color("d", ColorOptions::default()).await.unwrap().owner, "eu", "it is there already");
    for name in ["d", "b", "c", "a"] {
        client.color(name).await.unwrap();
    }
    let names: Vec<_> = client.colors().await.unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["a", "b", "c", "d", "orders"]);

    assert_eq!(log.append(b"zero").await, Ok(number(0)));
    assert_eq!(log.append("one").await, Ok(number(1)));
    assert_eq!(log.append(vec![b'2']).await, Ok(number(2)));
    assert_eq!(log.append_record(record("three")).await, Ok(number(3)));
    let batch = log.append_batch((4..7).map(|i| record(i.to_string()))).await.unwrap();
    assert_eq!(batch, number(4)..number(7));
    assert!(matches!(
        log.append_batch([]).await,
        Err(AppendError::Invalid { source: RecordError::RecordCount { records: 0 }, .. })
    ));
    assert!(matches!(log.append(vec![0; (1 << 20) + 1]).await, Err(AppendError::Invalid { .. })));

    assert_eq!(log.tail().await, Ok(number(7)));
    assert_eq!(log.read(number(5)).await, Ok(ReadOutcome::Record(record("5"))));
    assert_eq!(log.read(number(7)).await, Ok(ReadOutcome::NotYet { tail: number(7) }));
    let (n, found) = (number(3), record("three"));
    assert_eq!(log.read_next(n).await, Ok(NextOutcome::Record { number: n, record: found.clone() }));
    assert_eq!(log.read_next(number(9)).await, Ok(NextOutcome::NotYet { tail: number(7) }));
    assert_eq!(log.read_prev(n).await, Ok(PrevOutcome::Record { number: n, record: found }));
    assert_eq!(log.read_prev(SeqNum::MIN).await, Ok(PrevOutcome::Nothing));

    let error = log.trim(number(7)).await.unwrap_err();
    assert!(matches!(&error, TrimError::Failed { why: Failure::TrimBeyondTail { .. }, .. }), "{error}");
    assert_eq!(log.trim(number(2)).await, Ok(number(2)));
    assert_eq!(log.read(number(1)).await, Ok(ReadOutcome::Trimmed { point: number(2) }));
    assert_eq!(log.read_next(number(1)).await, Ok(NextOutcome::Trimmed { point: number(2) }));
    assert_eq!(log.read_prev(number(1)).await, Ok(PrevOutcome::Trimmed { point: number(2) }));

    let mut events = log.subscribe(SeqNum::MIN);
    assert_eq!(events.next().await, Some(Ok(Event::Trimmed { point: number(2) })));
    for i in 3..7 {
        assert!(matches!(events.next().await, Some(Ok(Event::Record { number: n, .. })) if n == number(i)));
    }
    assert_eq!(events.next().await, Some(Ok(Event::Progress { upto: number(7) })));
    log.append("seven").await.unwrap();
    assert_eq!(events.next().await, Some(Ok(Event::Record { number: number(7), record: record("seven") })));
}

async fn a_lost_connection_costs_nothing<F: Future<Output = Client>>(node: Node, connect: impl FnOnce(Builder) -> F) {
    let log = connect(Client::builder()).await.color("c").await.unwrap();
    let total = 3000;
    let mut open = VecDeque::new();
    for i in 0..total {
        if i % 500 == 100 {
            // The node takes some of what is under way, and is gone before it says so.
            node.tell(|state| state.close_after = Some(37));
        }
        open.push_back(log.submit(record(i.to_string())).await.unwrap());
        if open.len() > 300 {
            open.pop_front().unwrap().await.unwrap();
        }
        if i % 1000 == 999 {
            assert!(log.tail().await.unwrap() > number(0));
        }
    }
    for pending in open {
        pending.await.unwrap();
    }
    let mut payloads = node.payloads();
    payloads.sort_by_key(|payload| payload.parse::<u32>().unwrap());
    assert_eq!(payloads, (0..total).map(|i| i.to_string()).collect::<Vec<_>>());
    assert!(node.state.lock().connections > 3, "no connection was lost");
}

async fn answers_that_do_not_come_end_at_the_deadline<F: Future<Output = Client>>(
    node: Node,
    connect: impl FnOnce(Builder) -> F,
) {
    let log = connect(Client::builder().append_deadline(Duration::from_millis(30))).await.color("c").await.unwrap();
    node.tell(|state| state.hold = true);
    let error = log.append("x").await.unwrap_err();
    assert!(matches!(error, AppendError::OutcomeUnknown { .. }) && error.is_outcome_unknown(), "{error}");
    assert!(error.to_string().contains("'c'") && error.to_string().contains("within 30 ms"), "{error}");
    node.tell(|state| state.hold = false);
    assert_eq!(log.append("y").await, Ok(number(1)));
}

async fn a_node_that_is_away_is_named<F: Future<Output = Client>>(node: Node, connect: impl FnOnce(Builder) -> F) {
    let short = Duration::from_millis(60);
    let client = connect(Client::builder().append_deadline(short).deadline(short)).await;
    let log = client.color("c").await.unwrap();
    node.tell(|state| {
        state.away = true;
        state.reason = Some("the node is stopping".into());
    });
    let error = log.append("x").await.unwrap_err();
    assert!(error.to_string().contains(&client.address()), "{error}");
    let error = log.append("x").await.unwrap_err();
    assert!(matches!(error, AppendError::NotSent { .. }) && !error.is_outcome_unknown(), "{error}");
    let error = client.color("d").await.unwrap_err();
    assert!(matches!(&error, ColorError::NoAnswer { source, .. } if source.trouble.is_some()), "{error}");
    node.tell(|state| state.away = false);
    let log = loop {
        // The wait between attempts to connect may be longer than the deadline.
        if let Ok(log) = client.color("c").await {
            break log;
        }
    };
    while log.append("again").await.is_err() {}
}

async fn a_connection_that_is_silent_is_given_up<F: Future<Output = Client>>(
    node: Node,
    connect: impl FnOnce(Builder) -> F,
) {
    let log = connect(Client::builder().deadline(Duration::from_millis(30))).await.color("c").await.unwrap();
    node.tell(|state| state.mute = 1);
    // It has time enough for the next connection.
    let append = log.append("x");
    let (number_of, tail) = tokio::join!(append, log.tail());
    assert_eq!(number_of, Ok(number(0)));
    let error = tail.unwrap_err();
    assert!(error.to_string().contains("did not answer within 30 ms"), "{error}");
    assert_eq!(node.state.lock().connections, 2);
}

async fn the_window_holds_back_who_submits<F: Future<Output = Client>>(node: Node, connect: impl FnOnce(Builder) -> F) {
    let log = connect(Client::builder()).await.color("c").await.unwrap();
    node.tell(|state| state.hold = true);
    let mut open = Vec::new();
    for i in 0..4096 {
        open.push(log.submit(record(i.to_string())).await.unwrap());
    }
    let mut more = Box::pin(log.submit(record("more")));
    assert!(is_pending(more.as_mut()).await);
    node.until(|state| state.logs.values().any(|log| log.records.len() == 4096)).await;
    assert!(is_pending(more.as_mut()).await);
    node.tell(|state| state.hold = false);
    assert_eq!(more.await.unwrap().await, Ok(number(4096)));
    for (i, pending) in open.into_iter().enumerate() {
        assert_eq!(pending.await, Ok(number(i as u32)));
    }
}

async fn refusals_are_told_apart<F: Future<Output = Client>>(node: Node, connect: impl FnOnce(Builder) -> F) {
    let client = connect(Client::builder().append_deadline(Duration::from_millis(100))).await;
    let log = client.color("c").await.unwrap();
    node.tell(|state| state.refuse = Some(AppendRefusal::Full));
    let error = log.append("x").await.unwrap_err();
    assert!(matches!(error, AppendError::Full { .. }) && !error.is_outcome_unknown(), "{error}");
    node.tell(|state| state.refuse = Some(AppendRefusal::Busy));
    let error = log.append("x").await.unwrap_err();
    assert!(!matches!(error, AppendError::Full { .. }), "{error}");
    // Busy passes.
    node.tell(|state| state.refuse = None);
    assert_eq!(log.append("y").await, Ok(number(0)));
    node.tell(|state| state.refuse = Some(AppendRefusal::Busy));
    let mut pending = Box::pin(log.append("z"));
    assert!(is_pending(pending.as_mut()).await);
    node.tell(|state| state.refuse = None);
    assert_eq!(pending.await, Ok(number(1)));
}

async fn a_slow_subscriber_is_sent_what_it_allows<F: Future<Output = Client>>(
    node: Node,
    connect: impl FnOnce(Builder) -> F,
) {
    let client = connect(Client::builder().subscription_window(2 << 20)).await;
    let log = client.color("c").await.unwrap();
    let (count, bytes) = (200, 50_000);
    for _ in 0..count / 20 {
        log.append_batch((0..20).map(|_| Record::new(vec![1; bytes]).unwrap())).await.unwrap();
    }
    let mut events = log.subscribe(SeqNum::MIN);
    // Nobody takes anything: the node stops at the window.
    node.until(|state| state.sent_to_subscribers > (2 << 20) - 60_000).await;
    log.tail().await.unwrap();
    assert!(node.state.lock().sent_to_subscribers <= 2 << 20);
    let mut taken = 0;
    for i in 0..count {
        let (n, record) = next_record(&mut events).await;
        assert_eq!((n, record.payload().len()), (number(i), bytes));
        taken += bytes as u64 + 32;
        assert!(node.state.lock().allowed_to_subscribers <= taken + (2 << 20));
    }
    assert_eq!(node.state.lock().unsubscribed, 0);
    drop(events);
    node.until(|state| state.unsubscribed == 1).await;
}

async fn a_subscription_outlives_connections<F: Future<Output = Client>>(
    node: Node,
    connect: impl FnOnce(Builder) -> F,
) {
    let log = connect(Client::builder()).await.color("c").await.unwrap();
    let mut events = log.subscribe(SeqNum::MIN);
    for i in 0..200 {
        if i % 20 == 10 {
            node.tell(|state| state.close_after = Some(1));
        }
        log.append(i.to_string()).await.unwrap();
        let (n, record) = next_record(&mut events).await;
        assert_eq!((n, text(&record)), (number(i), i.to_string()));
    }
    assert!(node.state.lock().connections >= 10);
}

async fn handles_may_go_before_the_appends_do<F: Future<Output = Client>>(
    node: Node,
    connect: impl FnOnce(Builder) -> F,
) {
    let log = connect(Client::builder()).await.color("c").await.unwrap();
    drop(log.submit(record("nobody waits for this")).await.unwrap());
    drop(log);
    node.until(|state| state.logs.values().any(|log| log.records.len() == 1)).await;
}

async fn a_client_that_leaves_closes_its_sessions<F: Future<Output = Client>>(
    node: Node,
    connect: impl FnOnce(Builder) -> F,
) {
    let client = connect(Client::builder()).await;
    let log = client.color("c").await.unwrap();
    node.tell(|state| state.hold = true);
    let open = log.submit(record("open")).await.unwrap();
    node.until(|state| state.logs.values().any(|log| log.records.len() == 1)).await;
    let mut closing = Box::pin(client.close());
    assert!(is_pending(closing.as_mut()).await, "an append is open");
    assert!(matches!(log.append("later").await, Err(AppendError::Stopped { .. })));
    assert!(log.tail().await.is_err());
    assert_eq!(node.state.lock().closed, []);
    node.tell(|state| state.hold = false);
    closing.await;
    assert_eq!(open.await, Ok(number(0)));
    assert_eq!(node.state.lock().closed.len(), 1);
    assert!(matches!(log.append("later").await, Err(AppendError::Stopped { .. })));
}

#[tokio::test]
async fn the_last_handle_that_goes_closes_the_sessions() {
    let node = Node::new();
    let log = over_tcp(&node, Client::builder()).await.color("c").await.unwrap();
    log.append("x").await.unwrap();
    drop(log);
    node.until(|state| state.closed.len() == 1).await;
}

async fn large_records_go_through<F: Future<Output = Client>>(_node: Node, connect: impl FnOnce(Builder) -> F) {
    let log = connect(Client::builder()).await.color("c").await.unwrap();
    let mut events = log.subscribe(SeqNum::MIN);
    let largest = Record::new(vec![7; 1 << 20]).unwrap();
    for i in 0..10 {
        assert_eq!(log.append_record(largest.clone()).await, Ok(number(i)));
    }
    for i in 0..10 {
        assert_eq!(next_record(&mut events).await, (number(i), largest.clone()));
    }
    let records: Vec<_> = (0..4096).map(|i: u32| Record::new(vec![i as u8; 900]).unwrap()).collect();
    let range = log.append_batch(records).await.unwrap();
    assert_eq!(range, number(10)..number(4106));
}

#[tokio::test]
async fn nobody_at_the_address_is_an_error_at_once() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = Client::connect(&address).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }) && error.to_string().contains(&address), "{error}");
    let node = Node::new();
    let other = flexlog_client::ClusterId(uuid::Uuid::from_u128(6));
    let error = Client::builder().cluster(other).connect(node.serve_tcp().await).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_on_many_threads_share_a_client() {
    let node = Node::new();
    let log = over_tcp(&node, Client::builder()).await.color("c").await.unwrap();
    let tasks: Vec<_> = (0..50)
        .map(|task| {
            let log = log.clone();
            tokio::spawn(async move {
                let mut last = None;
                for i in 0..100 {
                    let n = log.append(format!("{task}.{i}")).await.unwrap();
                    assert!(Some(n) > last);
                    last = Some(n);
                    assert!(matches!(log.read(n).await, Ok(ReadOutcome::Record(found)) if text(&found) == format!("{task}.{i}")));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(log.tail().await, Ok(number(5000)));
}

#[test]
fn a_client_whose_runtime_is_gone_says_so() {
    let serving = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let node = Node::new();
    let address = serving.block_on(node.serve_tcp());
    let short = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let log = short.block_on(async { Client::connect(address).await.unwrap().color("c").await.unwrap() });
    drop(short);
    let later = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    later.block_on(async {
        assert!(matches!(log.append("x").await, Err(AppendError::Stopped { .. })));
        assert!(log.tail().await.unwrap_err().to_string().contains("has stopped"));
        assert!(matches!(log.subscribe(SeqNum::MIN).next().await, Some(Err(_))));
    });
}

/// A cluster of three nodes with a member each; the client is given the first `homes` addresses.
async fn three_nodes(homes: usize) -> (Node, Client) {
    let node = Node::new();
    let mut addresses = Vec::new();
    for _ in 0..3 {
        addresses.push(node.serve_tcp().await);
    }
    node.tell(|state| state.addresses.clone_from(&addresses));
    let client = Client::connect(addresses[..homes].join(",")).await.unwrap();
    (node, client)
}

#[tokio::test]
async fn appends_go_to_every_node_and_wait_for_one_that_is_away() {
    let (node, client) = three_nodes(1).await;
    let log = client.color("c").await.unwrap();
    assert_eq!(log.append("zero").await, Ok(number(0)));
    assert_eq!(node.state.lock().connections, 3);
    node.tell(|state| {
        state.down.insert(2);
    });
    let mut pending = Box::pin(log.append("one"));
    assert!(is_pending(pending.as_mut()).await);
    node.until(|state| state.logs.values().any(|log| log.records.len() == 2)).await;
    // Others go on meanwhile, and the members that are there have it.
    assert_eq!(log.tail().await, Ok(number(2)));
    assert!(is_pending(pending.as_mut()).await, "one member has not answered");
    node.tell(|state| state.down.clear());
    assert_eq!(pending.await, Ok(number(1)));
    assert_eq!(node.payloads(), ["zero", "one"]);
}

#[tokio::test]
async fn reads_stay_with_one_member_until_it_is_away_or_not_ready() {
    let (node, client) = three_nodes(1).await;
    let log = client.color("c").await.unwrap();
    log.append("zero").await.unwrap();
    let reader = |skip: &[usize]| {
        let reads: Vec<_> = node.state.lock().reads.keys().copied().filter(|which| !skip.contains(which)).collect();
        assert_eq!(reads.len(), 1, "reads went to several nodes");
        reads[0]
    };
    for _ in 0..20 {
        log.read(number(0)).await.unwrap();
    }
    let first = reader(&[]);
    node.tell(|state| {
        state.down.insert(first);
    });
    for _ in 0..20 {
        log.read(number(0)).await.unwrap();
    }
    let second = reader(&[first]);
    node.tell(|state| {
        state.not_ready.insert(second);
    });
    for _ in 0..20 {
        log.read(number(0)).await.unwrap();
    }
    reader(&[first, second]);
}

#[tokio::test]
async fn another_home_answers_where_the_first_is_away() {
    let (node, client) = three_nodes(2).await;
    client.color("c").await.unwrap();
    node.tell(|state| {
        state.down.insert(0);
    });
    client.color("d").await.unwrap();
    assert_eq!(client.colors().await.unwrap().len(), 2);
    // One that is away from the beginning is passed over.
    let addresses = node.state.lock().addresses.join(",");
    let late = Client::connect(addresses).await.unwrap();
    late.existing_color("d").await.unwrap();
}

#[tokio::test]
async fn a_subscription_goes_on_at_another_member() {
    let (node, client) = three_nodes(1).await;
    let log = client.color("c").await.unwrap();
    let mut events = log.subscribe(SeqNum::MIN);
    for i in 0..12 {
        log.append(i.to_string()).await.unwrap();
        assert_eq!(next_record(&mut events).await.0, number(i));
        // Whichever it is at, it is away now, and one of the others is there.
        for down in 0..3 {
            node.tell(|state| state.down = [down].into());
            client.status().await.ok();
        }
        node.tell(|state| state.down.clear());
    }
}

/// A color on three shards, each at a node of its own.
async fn wide(client: &Client) -> flexlog_client::Log {
    let options = ColorOptions { width: 3, ..ColorOptions::default() };
    assert_eq!(client.create_color("wide", options).await.unwrap().shards.len(), 3);
    client.existing_color("wide").await.unwrap()
}

#[tokio::test]
async fn a_wide_color_is_one_log() {
    let (node, client) = three_nodes(1).await;
    let log = wide(&client).await;
    for i in 0..30 {
        assert_eq!(log.append(i.to_string()).await, Ok(number(i)));
    }
    node.tell(|state| {
        let log = state.logs.values_mut().next().unwrap();
        for shard in 0..3 {
            assert_eq!(log.shards.iter().filter(|of| **of == shard).count(), 10, "appends are spread");
        }
        // A number that no shard has.
        log.next += 1;
    });
    assert_eq!(log.append("31").await, Ok(number(31)));
    for i in (0..30).chain([31]) {
        let record = record(i.to_string());
        assert_eq!(log.read(number(i)).await, Ok(ReadOutcome::Record(record.clone())));
        let (n, r) = (number(i), record);
        assert_eq!(log.read_next(n).await, Ok(NextOutcome::Record { number: n, record: r.clone() }));
        assert_eq!(log.read_prev(n).await, Ok(PrevOutcome::Record { number: n, record: r }));
    }
    assert_eq!(log.read(number(30)).await, Ok(ReadOutcome::Hole));
    assert_eq!(log.read_next(number(30)).await, Ok(NextOutcome::Record { number: number(31), record: record("31") }));
    assert_eq!(log.tail().await, Ok(number(32)));
    assert_eq!(log.read(number(32)).await, Ok(ReadOutcome::NotYet { tail: number(32) }));
    assert_eq!(log.read_next(number(32)).await, Ok(NextOutcome::NotYet { tail: number(32) }));
    assert_eq!(log.trim(number(4)).await, Ok(number(4)));
    assert_eq!(log.read(number(3)).await, Ok(ReadOutcome::Trimmed { point: number(4) }));
    assert_eq!(log.read_next(number(3)).await, Ok(NextOutcome::Trimmed { point: number(4) }));
    assert_eq!(log.read_prev(number(3)).await, Ok(PrevOutcome::Trimmed { point: number(4) }));
    let mut events = log.subscribe(SeqNum::MIN);
    assert_eq!(events.next().await, Some(Ok(Event::Trimmed { point: number(4) })));
    for i in (5..30).chain([31]) {
        let (n, record) = next_record(&mut events).await;
        assert_eq!((n, text(&record)), (number(i), i.to_string()));
    }
}

#[tokio::test]
async fn a_subscription_to_a_wide_color_outlives_connections_and_keeps_to_its_windows() {
    let (node, client) = three_nodes(1).await;
    let log = wide(&client).await;
    let (count, bytes) = (300, 100_000);
    for _ in 0..count / 10 {
        log.append_batch((0..10).map(|_| Record::new(vec![1; bytes]).unwrap())).await.unwrap();
    }
    let mut events = log.subscribe(SeqNum::MIN);
    // Nobody takes anything: each node stops at its window.
    node.until(|state| state.sent_to_subscribers > 3 * ((2 << 20) - 110_000)).await;
    assert!(node.state.lock().sent_to_subscribers <= 3 * (2 << 20));
    for i in 0..count {
        if i % 50 == 25 {
            // Until one of them has seen to it.
            let before = node.state.lock().connections;
            node.tell(|state| state.down = [i as usize / 50 % 3].into());
            client.status().await.ok();
            node.tell(|state| state.down.clear());
            node.until(|state| state.connections > before).await;
        }
        let (n, record) = next_record(&mut events).await;
        assert_eq!((n, record.payload().len()), (number(i), bytes));
    }
    assert!(node.state.lock().connections > 3, "no connection was lost");
}
