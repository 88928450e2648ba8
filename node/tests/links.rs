//! Links between processes over real sockets: cut, resumed, restarted.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use flexlog_node::links::{Dial, Event, LinkConnection, Links, Peer};
use flexlog_protocol::api::Hello;
use flexlog_protocol::net::link::LinkFrame;
use flexlog_protocol::net::{ConnectError, Connection, FrameReader, FrameWriter, NetError, Receiver, Sender};
use flexlog_protocol::peer::{NodeMessage, Of, ToLeaf, ToMember};
use flexlog_protocol::wire::Message as _;
use flexlog_protocol::{ClusterId, Epoch, Incarnation, Position, ReplicaId, SeqNum, ShardId};
use tokio::io::copy_bidirectional;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::timeout;
use uuid::Uuid;

const REPLICA: Peer = Peer::Replica(ReplicaId(1));
const LEAF: Peer = Peer::Position(Position(0));

/// Frames over a socket, without the opening words.
struct Out(FrameWriter<OwnedWriteHalf>);
struct In(FrameReader<OwnedReadHalf>);

fn broken(_: impl std::fmt::Debug) -> NetError {
    NetError::Closed { peer: "the other side".into() }
}

#[async_trait]
impl Sender<LinkFrame> for Out {
    async fn send(&mut self, batch: &mut Vec<LinkFrame>) -> Result<(), NetError> {
        self.0.send(batch).await.map_err(broken)
    }

    async fn finish(&mut self) -> Result<(), NetError> {
        self.0.finish().await.map_err(broken)
    }
}

#[async_trait]
impl Receiver<LinkFrame> for In {
    async fn recv(&mut self, into: &mut Vec<LinkFrame>) -> Result<bool, NetError> {
        let Some(frame) = self.0.next().await.map_err(broken)? else { return Ok(false) };
        LinkFrame::decode(frame, into).map_err(broken)?;
        while let Some(frame) = self.0.ready().map_err(broken)? {
            LinkFrame::decode(frame, into).map_err(broken)?;
        }
        Ok(true)
    }

    async fn discard(&mut self) {
        self.0.discard().await;
    }
}

fn connection(stream: TcpStream) -> LinkConnection {
    stream.set_nodelay(true).unwrap();
    let (read, write) = stream.into_split();
    let mut reader = FrameReader::new(read, 4096);
    reader.lift_limit();
    Connection {
        sender: Box::new(Out(FrameWriter::new(write))),
        receiver: Box::new(In(reader)),
        hello: Hello::node(ClusterId::default()),
        peer: "the other side".into(),
    }
}

fn dial() -> Dial {
    Box::new(|address| {
        Box::pin(async move {
            let stream = TcpStream::connect(&address).await;
            let stream = stream.map_err(|source| ConnectError::Unreachable { address, source })?;
            Ok(connection(stream))
        })
    })
}

fn links(here: Peer, addresses: &[(Peer, &str)]) -> Rc<Links> {
    let addresses = addresses.iter().map(|(peer, address)| (*peer, (*address).to_owned()));
    Rc::new(Links::new(Uuid::new_v4(), [here], addresses, dial()))
}

/// Hands what a listener accepts to whoever `target` holds.
async fn listen(target: Rc<RefCell<Option<Rc<Links>>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Some(links) = &*target.borrow() {
                links.incoming(connection(stream));
            }
        }
    });
    address
}

/// A network between a dialer and a listener that can be cut.
#[derive(Clone, Default)]
struct Proxy {
    running: Rc<RefCell<Vec<JoinHandle<()>>>>,
    cuts: Rc<Cell<usize>>,
}

impl Proxy {
    async fn before(target: String) -> (Self, String) {
        let proxy = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let running = Rc::clone(&proxy.running);
        spawn_local(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let target = target.clone();
                running.borrow_mut().push(spawn_local(async move {
                    let Ok(mut far) = TcpStream::connect(&target).await else { return };
                    let _ = copy_bidirectional(&mut near, &mut far).await;
                }));
            }
        });
        (proxy, address)
    }

    /// Ends all connections, with whatever is on the way.
    fn cut(&self) {
        for task in self.running.borrow_mut().drain(..) {
            self.cuts.set(self.cuts.get() + usize::from(!task.is_finished()));
            task.abort();
        }
    }
}

fn leaf() -> Incarnation {
    Incarnation { position: Position(0), epoch: Epoch(1), uuid: Uuid::from_u128(7) }
}

fn confirm(round: u64) -> NodeMessage {
    let message = Of { leaf: leaf(), message: ToMember::Confirm { round } };
    NodeMessage::ToMember { shard: ShardId(0), to: ReplicaId(1), message }
}

fn confirmed(round: u64) -> NodeMessage {
    let message = Of { leaf: leaf(), message: ToLeaf::Confirmed { round } };
    NodeMessage::ToLeaf { shard: ShardId(0), from: ReplicaId(1), message }
}

fn round(message: &NodeMessage) -> u64 {
    match message {
        NodeMessage::ToMember { message: Of { message: ToMember::Confirm { round }, .. }, .. }
        | NodeMessage::ToLeaf { message: Of { message: ToLeaf::Confirmed { round }, .. }, .. } => *round,
        message => panic!("{message:?}"),
    }
}

/// The next event that `pick` takes; others are passed by.
async fn wait<T>(links: &Links, mut pick: impl FnMut(Event) -> Option<T>) -> T {
    let found = async {
        loop {
            links.ready().await;
            while let Some(event) = links.next() {
                if let Some(found) = pick(event) {
                    return found;
                }
            }
        }
    };
    timeout(Duration::from_secs(60), found).await.expect("an event within a minute")
}

fn message(event: Event) -> Option<NodeMessage> {
    match event {
        Event::Message(message) => Some(message),
        Event::Restarted(peer) | Event::Overflowed(peer) => panic!("{peer}: nothing was to be lost"),
        Event::Up(_) | Event::Down { .. } => None,
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// A node at an address that stays the same when the node is another one.
async fn place(links: Option<Rc<Links>>) -> (Rc<RefCell<Option<Rc<Links>>>>, String) {
    let slot = Rc::new(RefCell::new(links));
    let address = listen(Rc::clone(&slot)).await;
    (slot, address)
}

#[test]
fn messages_cross_connections_that_are_cut_once_and_in_order() {
    run(async {
        let (leaf_slot, leaf_address) = place(None).await;
        let (replica_slot, replica_address) = place(None).await;
        let (proxy, by_proxy) = Proxy::before(replica_address).await;
        let (back, back_by_proxy) = Proxy::before(leaf_address).await;
        let leaf = links(LEAF, &[(REPLICA, &by_proxy)]);
        let replica = links(REPLICA, &[(LEAF, &back_by_proxy)]);
        *leaf_slot.borrow_mut() = Some(Rc::clone(&leaf));
        *replica_slot.borrow_mut() = Some(Rc::clone(&replica));

        const ROUNDS: u64 = 6000;
        let answering = spawn_local(async move {
            for want in 0..ROUNDS {
                let got = wait(&replica, message).await;
                assert_eq!(round(&got), want);
                replica.send(LEAF, &[confirmed(want)]).unwrap();
                if want % 500 == 250 {
                    back.cut();
                }
            }
            back.cuts.get()
        });
        let mut sent = 0;
        for want in 0..ROUNDS {
            while sent < ROUNDS && sent < want + 100 {
                leaf.send(REPLICA, &[confirm(sent)]).unwrap();
                sent += 1;
            }
            assert_eq!(round(&wait(&leaf, message).await), want);
            if want % 700 == 300 {
                proxy.cut();
            }
        }
        assert!(answering.await.unwrap() > 5);
        assert!(proxy.cuts.get() > 5);
    });
}

#[test]
fn messages_are_taken_by_the_task_that_read_them_where_that_is_asked_for() {
    run(async {
        let (slot, address) = place(None).await;
        let replica = links(REPLICA, &[]);
        *slot.borrow_mut() = Some(Rc::clone(&replica));
        let (heard, told) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Notify::new()));
        let (weak, into, tell) = (Rc::downgrade(&replica), Rc::clone(&heard), Rc::clone(&told));
        replica.on_arrival(move || {
            while let Some(event) = weak.upgrade().and_then(|links| links.next()) {
                into.borrow_mut().extend(message(event).map(|message| round(&message)));
            }
            tell.notify_one();
        });
        let leaf = links(LEAF, &[(REPLICA, &address)]);
        // Nobody waits for them otherwise.
        for first in [0, 3] {
            leaf.send(REPLICA, &[confirm(first), confirm(first + 1), confirm(first + 2)]).unwrap();
            let all = async {
                while heard.borrow().len() < first as usize + 3 {
                    told.notified().await;
                }
            };
            timeout(Duration::from_secs(60), all).await.expect("messages within a minute");
        }
        assert_eq!(*heard.borrow(), [0, 1, 2, 3, 4, 5]);
    });
}

#[test]
fn a_large_message_crosses_a_connection_that_is_cut() {
    run(async {
        let (slot, address) = place(None).await;
        let (proxy, address) = Proxy::before(address).await;
        let replica = links(REPLICA, &[]);
        *slot.borrow_mut() = Some(Rc::clone(&replica));
        let leaf = links(LEAF, &[(REPLICA, &address)]);
        let list: Vec<_> =
            (0..1_000_000).map(|i| (flexlog_protocol::Color(u64::MAX - i), SeqNum::from_raw(i))).collect();
        let message_of =
            Of { leaf: self::leaf(), message: ToMember::Stable { upto: list, commit: flexlog_protocol::Lsn(0) } };
        let large = NodeMessage::ToMember { shard: ShardId(0), to: ReplicaId(1), message: message_of };
        leaf.send(REPLICA, std::slice::from_ref(&large)).unwrap();
        leaf.send(REPLICA, &[confirm(1)]).unwrap();
        assert!(leaf.status()[0].queued_bytes > 10_000_000);
        wait(&leaf, |event| matches!(event, Event::Up(REPLICA)).then_some(())).await;
        proxy.cut();
        assert!(wait(&replica, message).await == large);
        assert_eq!(round(&wait(&replica, message).await), 1);
    });
}

#[test]
fn who_sends_is_told_that_the_receiver_is_another_process() {
    run(async {
        let (slot, address) = place(None).await;
        let (proxy, address) = Proxy::before(address).await;
        let first = links(REPLICA, &[]);
        *slot.borrow_mut() = Some(Rc::clone(&first));
        let leaf = links(LEAF, &[(REPLICA, &address)]);
        leaf.send(REPLICA, &[confirm(0)]).unwrap();
        assert_eq!(round(&wait(&first, message).await), 0);

        let second = links(REPLICA, &[]);
        *slot.borrow_mut() = Some(Rc::clone(&second));
        drop(first);
        proxy.cut();
        // Meant for the first, as far as the engine knows.
        leaf.send(REPLICA, &[confirm(1)]).unwrap();
        let told = wait(&leaf, |event| match event {
            // There is a connection to the second one, but the engine has not heard whose it is.
            Event::Restarted(peer) => Some(peer),
            Event::Down { .. } | Event::Up(_) => {
                leaf.send(REPLICA, &[confirm(2)]).unwrap();
                None
            }
            event => panic!("{event:?}"),
        });
        assert_eq!(told.await, REPLICA);
        leaf.send(REPLICA, &[confirm(3)]).unwrap();
        assert_eq!(round(&wait(&second, message).await), 3);
        assert_eq!(leaf.status()[0].down, None);
    });
}

#[test]
fn too_much_that_waits_is_told_and_the_link_goes_on() {
    run(async {
        // Nobody listens at this address any more.
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
        let leaf = links(LEAF, &[(REPLICA, &gone)]);
        assert_eq!(leaf.send(LEAF, &[confirm(0)]).unwrap_err().to_string(), "no address of position 0 is known");
        let nonce = Uuid::nil();
        let list = vec![(flexlog_protocol::Color(u64::MAX), SeqNum::MAX); 100_000];
        let message_of =
            Of { leaf: self::leaf(), message: ToMember::Stable { upto: list, commit: flexlog_protocol::Lsn(0) } };
        let big = NodeMessage::ToMember { shard: ShardId(0), to: ReplicaId(1), message: message_of };
        let mut sent = 0;
        leaf.send(REPLICA, &[confirm(0)]).unwrap();
        let why = wait(&leaf, |event| match event {
            Event::Down { peer: REPLICA, why } => Some(why),
            event => panic!("{event:?}"),
        });
        let why = why.await;
        assert!(why.contains("cannot reach") && why.contains(&gone), "{why}");
        assert_eq!(leaf.status()[0].down, Some(why));
        let lost = loop {
            leaf.send(REPLICA, std::slice::from_ref(&big)).unwrap();
            sent += 1;
            assert!(sent < 100, "64 MiB were sent");
            if let Some(event) = leaf.next() {
                break event;
            }
        };
        assert_eq!(lost, Event::Overflowed(REPLICA));
        assert_eq!(leaf.status()[0].queued_bytes, 0);

        // It listens elsewhere.
        let (slot, address) = place(None).await;
        let replica = links(REPLICA, &[]);
        *slot.borrow_mut() = Some(Rc::clone(&replica));
        leaf.send(REPLICA, &[confirm(5)]).unwrap();
        leaf.locate(REPLICA, address);
        assert_eq!(round(&wait(&replica, message).await), 5);
        let refused = Of { leaf: self::leaf(), message: ToMember::SessionRefused { nonce } };
        let refused = NodeMessage::ToMember { shard: ShardId(0), to: ReplicaId(1), message: refused };
        leaf.send(REPLICA, std::slice::from_ref(&refused)).unwrap();
        assert_eq!(wait(&replica, message).await, refused);
    });
}

#[test]
fn one_who_is_forgotten_is_not_dialed_any_more() {
    run(async {
        let (slot, address) = place(None).await;
        let replica = links(REPLICA, &[]);
        *slot.borrow_mut() = Some(Rc::clone(&replica));
        let leaf = links(LEAF, &[(REPLICA, &address)]);
        leaf.send(REPLICA, &[confirm(0)]).unwrap();
        assert_eq!(round(&wait(&replica, message).await), 0);
        leaf.forget(REPLICA);
        assert_eq!(leaf.status(), []);
        // The connection ends, and what is said goes nowhere: not to the address, which nobody else is told of.
        wait(&leaf, |event| matches!(event, Event::Down { peer: REPLICA, .. }).then_some(())).await;
        leaf.reach(REPLICA);
        leaf.send(REPLICA, &[confirm(1)]).unwrap();
        assert_eq!(leaf.status(), []);
        // Once it is located it is another link.
        leaf.locate(REPLICA, address);
        leaf.send(REPLICA, &[confirm(2)]).unwrap();
        assert_eq!(round(&wait(&replica, message).await), 2);
        assert_eq!(leaf.status().len(), 1);
    });
}

#[test]
fn one_who_is_away_and_forgotten_is_not_tried_again() {
    run(async {
        let other = Peer::Replica(ReplicaId(2));
        // Nobody listens at these addresses.
        let listeners =
            [TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap()];
        let [here, there] = listeners.map(|listener| listener.local_addr().unwrap().to_string());
        let tries = Rc::new(RefCell::new(Vec::new()));
        let (tried, told) = (Rc::clone(&tries), Rc::new(Notify::new()));
        let tell = Rc::clone(&told);
        let counting: Dial = Box::new(move |address: String| {
            tried.borrow_mut().push(address.clone());
            tell.notify_one();
            dial()(address)
        });
        let addresses = [(REPLICA, here.clone()), (other, there.clone())];
        let leaf = Links::new(Uuid::new_v4(), [LEAF], addresses, counting);
        let count = |of: &str| tries.borrow().iter().filter(|address| *address == of).count();
        let until = async |here_too: usize, most: usize| {
            let all = async {
                while count(&here) < here_too || count(&there) < most {
                    told.notified().await;
                }
            };
            timeout(Duration::from_secs(60), all).await.expect("tries within a minute");
        };
        leaf.reach(REPLICA);
        leaf.reach(other);
        until(3, 3).await;
        leaf.forget(REPLICA);
        let (before, others) = (count(&here), count(&there));
        // The other one is tried as often as both were before, and more rarely each time.
        until(before, 2 * others).await;
        assert_eq!(count(&here), before);
        assert_eq!(leaf.status().iter().map(|link| link.peer).collect::<Vec<_>>(), [other]);
    });
}

#[test]
fn one_who_is_not_at_the_address_says_so() {
    run(async {
        let (slot, address) = place(None).await;
        let other = links(Peer::Replica(ReplicaId(2)), &[]);
        *slot.borrow_mut() = Some(Rc::clone(&other));
        let leaf = links(LEAF, &[(REPLICA, &address)]);
        leaf.send(REPLICA, &[confirm(0)]).unwrap();
        let why = wait(&leaf, |event| match event {
            Event::Down { why, .. } => Some(why),
            event => panic!("{event:?}"),
        });
        assert_eq!(
            why.await,
            "replica 1 refuses: replica 1 is not at this address, check the addresses of the cluster"
        );
        // It comes to be there.
        other.answer_to(REPLICA);
        assert_eq!(round(&wait(&other, message).await), 0);
    });
}
