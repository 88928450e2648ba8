//! Links to the other processes of a cluster: what the engine says to a replica or a position goes to whoever is at its
//! address, over connections that are made, lost and made again without the engine's doing.
//!
//! This is the shell of [`flexlog_protocol::net::link`]. It relies on one thread (a `LocalSet`) and on connections that
//! come from the given [`Dial`], or that the node accepted and hands to [`Links::incoming`]. It promises: what is sent
//! to a peer arrives there once and in order, or [`Event::Restarted`] or [`Event::Overflowed`] says that some of it was
//! lost; and what is sent between such a loss and the moment when the engine takes the event counts as lost too, so
//! that a peer never sees a message behind one that it missed before the engine knows.
//!
//! A pair of processes has one connection for each direction. All messages that the engine sends at once go out with one
//! write, by whoever runs the engine; all that arrive with one read reach the engine at once, which the task that read
//! may run itself ([`Links::on_arrival`]). No timer is on that way.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use flexlog_protocol::net::link::{Incoming, LinkFrame, Outgoing, Via, Welcomed};
use flexlog_protocol::net::{ConnectError, Connection, Receiver, Sender};
use flexlog_protocol::peer::NodeMessage;
use flexlog_protocol::wire;
use tokio::select;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::outlet::Outlet;

pub use flexlog_protocol::api::LinkStatus;
pub use flexlog_protocol::peer::Peer;

/// Wait before the second attempt to connect; it doubles with each.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
/// The longest wait between two attempts.
const LAST_BACKOFF: Duration = Duration::from_secs(1);
/// The time for an answer to the opening of a link, and for one to learn why it was refused.
const PATIENCE: Duration = Duration::from_secs(5);
/// A connection by which nothing is acknowledged for twice this time, though something waits, is given up: its other end
/// may be gone without a word.
const STALL: Duration = Duration::from_secs(3);
/// What was received is acknowledged within this time.
const ACK_DELAY: Duration = Duration::from_millis(100);
/// Bytes of messages that may wait for the engine before no more are read.
const MAX_INBOX_BYTES: usize = 16 << 20;

/// A connection of a link.
pub type LinkConnection = Connection<LinkFrame, LinkFrame>;
/// An attempt to connect.
pub type Dialing = Pin<Box<dyn Future<Output = Result<LinkConnection, ConnectError>>>>;
/// Connects to an address; opening words and patience are its own.
pub type Dial = Box<dyn Fn(String) -> Dialing>;

/// What the engine hears.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A message to one who is here.
    Message(NodeMessage),
    /// Another process is at the peer's end, or it lost the stream: what was sent before and not answered may not have
    /// arrived.
    Restarted(Peer),
    /// More waited for the peer than may: what was sent before and not answered may not have arrived.
    Overflowed(Peer),
    /// There is a connection to the peer.
    Up(Peer),
    /// There is no connection to the peer any more, or the first attempt failed. Attempts go on.
    Down {
        /// The peer.
        peer: Peer,
        /// In words.
        why: String,
    },
}

/// Nobody has said where the peer is; see [`Links::locate`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no address of {0} is known")]
pub struct NoAddress(pub Peer);

/// The links of one process, in both directions. They end when this is dropped.
#[derive(Debug)]
pub struct Links {
    shared: Rc<Shared>,
    tasks: RefCell<JoinSet<()>>,
}

struct Shared {
    process: Uuid,
    dial: Dial,
    /// Who is here.
    here: RefCell<BTreeSet<Peer>>,
    addresses: RefCell<BTreeMap<Peer, String>>,
    /// Where nobody will be any more.
    forgotten: RefCell<BTreeSet<Peer>>,
    links: RefCell<BTreeMap<Peer, Rc<Link>>>,
    incoming: RefCell<Incoming>,
    /// Ends the connection that a stream comes by.
    closers: RefCell<HashMap<Via, Rc<Notify>>>,
    inbox: Inbox,
    /// Called when messages have come, by the task that read them.
    arrived: RefCell<Option<Box<dyn Fn()>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("process", &self.process).field("here", &self.here).finish_non_exhaustive()
    }
}

/// One direction, to one peer.
struct Link {
    peer: Peer,
    address: RefCell<String>,
    outgoing: RefCell<Outgoing>,
    /// The engine has not heard yet that messages were lost.
    lost: Cell<bool>,
    /// `None` when there is a connection.
    down: RefCell<Option<String>>,
    /// Where frames go out while there is a connection.
    outlet: Outlet<LinkFrame>,
    /// The connection is to be made anew; or not, if the peer is forgotten.
    cut: Notify,
    forgotten: Cell<bool>,
}

/// What waits for the engine.
#[derive(Default)]
struct Inbox {
    /// Each with the bytes that it is counted with.
    events: RefCell<VecDeque<(Event, usize)>>,
    bytes: Cell<usize>,
    filled: Notify,
    emptied: Notify,
}

impl Inbox {
    fn push(&self, event: Event, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
        self.events.borrow_mut().push_back((event, bytes));
        self.filled.notify_one();
    }

    /// Events that came as one. The first of them stands for the bytes of all. Whoever takes them is to be told.
    fn extend(&self, events: impl Iterator<Item = Event>, mut bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
        self.events.borrow_mut().extend(events.map(|event| (event, std::mem::take(&mut bytes))));
    }

    fn pop(&self) -> Option<Event> {
        let (event, bytes) = self.events.borrow_mut().pop_front()?;
        let before = self.bytes.replace(self.bytes.get() - bytes);
        if before > MAX_INBOX_BYTES && before - bytes <= MAX_INBOX_BYTES {
            self.emptied.notify_waiters();
        }
        Some(event)
    }

    async fn room(&self) {
        // All on one thread: nobody can take anything out between the look and the wait.
        while self.bytes.get() > MAX_INBOX_BYTES {
            self.emptied.notified().await;
        }
    }
}

impl Links {
    /// Links of this `process`, a uuid drawn at its start, where the peers `here` are. `addresses` says where others are,
    /// `dial` connects to them.
    #[must_use]
    pub fn new(
        process: Uuid,
        here: impl IntoIterator<Item = Peer>,
        addresses: impl IntoIterator<Item = (Peer, String)>,
        dial: Dial,
    ) -> Self {
        let shared = Shared {
            process,
            dial,
            here: RefCell::new(here.into_iter().collect()),
            addresses: RefCell::new(addresses.into_iter().collect()),
            forgotten: RefCell::default(),
            links: RefCell::default(),
            incoming: RefCell::new(Incoming::new(process)),
            closers: RefCell::default(),
            inbox: Inbox::default(),
            arrived: RefCell::default(),
        };
        Self { shared: Rc::new(shared), tasks: RefCell::default() }
    }

    /// From now on `arrived` is called when messages have come, by the task that read them, for it to take them with
    /// [`Links::next`] without another task's doing. [`Links::ready`] tells of everything else as before.
    pub fn on_arrival(&self, arrived: impl Fn() + 'static) {
        self.shared.arrived.replace(Some(Box::new(arrived)));
    }

    /// From now on `peer` is here too: messages to it are taken in.
    pub fn answer_to(&self, peer: Peer) {
        self.shared.here.borrow_mut().insert(peer);
    }

    /// `peer` is at `address` from now on. A connection to another address is cut; its stream goes on at the new one, or
    /// is lost.
    pub fn locate(&self, peer: Peer, address: impl Into<String>) {
        let address = address.into();
        self.shared.forgotten.borrow_mut().remove(&peer);
        self.shared.addresses.borrow_mut().insert(peer, address.clone());
        if let Some(link) = self.shared.links.borrow().get(&peer)
            && link.address.replace(address.clone()) != address
        {
            link.cut.notify_one();
        }
    }

    /// Nobody will be at `peer` any more: no connection to it is kept or tried, and what is sent there goes nowhere; unless it
    /// is located again.
    pub fn forget(&self, peer: Peer) {
        self.shared.addresses.borrow_mut().remove(&peer);
        self.shared.forgotten.borrow_mut().insert(peer);
        if let Some(link) = self.shared.links.borrow_mut().remove(&peer) {
            link.forgotten.set(true);
            link.cut.notify_one();
        }
    }

    /// Sends `messages` to `peer`, with one write as long as it takes them. Returns at once; what becomes of them is told
    /// by events. The first message to a peer has it dialed. Must be called inside a `LocalSet`.
    ///
    /// # Errors
    /// `NoAddress`; nothing is sent then.
    pub fn send(&self, peer: Peer, messages: &[NodeMessage]) -> Result<(), NoAddress> {
        let known = self.shared.links.borrow().get(&peer).cloned();
        let link = match known {
            Some(link) => link,
            None if self.shared.forgotten.borrow().contains(&peer) => return Ok(()),
            None => self.link(peer)?,
        };
        if link.lost.get() {
            return Ok(());
        }
        let mut rest = messages;
        while !rest.is_empty() {
            let mut run = rest.len();
            let sent = link.outgoing.borrow_mut().send(|out| run = wire::encode_node_messages(rest, out));
            if sent.is_err() {
                link.outgoing.borrow_mut().restart(Uuid::new_v4());
                link.cut.notify_one();
                self.shared.lost(&link, Event::Overflowed(peer));
                return Ok(());
            }
            rest = &rest[run..];
        }
        link.outlet.write_now(|batch| link.outgoing.borrow_mut().take(batch));
        Ok(())
    }

    /// Has a connection to `peer` made, if its address is known, and kept. Must be called inside a `LocalSet`.
    pub fn reach(&self, peer: Peer) {
        if !self.shared.links.borrow().contains_key(&peer) {
            // Without an address there is nobody to reach yet.
            drop(self.link(peer));
        }
    }

    fn link(&self, peer: Peer) -> Result<Rc<Link>, NoAddress> {
        let address = self.shared.addresses.borrow().get(&peer).cloned().ok_or(NoAddress(peer))?;
        let link = Rc::new(Link {
            peer,
            address: RefCell::new(address),
            outgoing: RefCell::new(Outgoing::new(Uuid::new_v4())),
            lost: Cell::new(false),
            down: RefCell::new(Some("not connected yet".into())),
            outlet: Outlet::default(),
            cut: Notify::new(),
            forgotten: Cell::new(false),
        });
        self.shared.links.borrow_mut().insert(peer, Rc::clone(&link));
        self.spawn(Rc::clone(&self.shared).keep(Rc::clone(&link)));
        Ok(link)
    }

    /// Takes messages in from a connection that was accepted from a process of the cluster. Must be called inside a
    /// `LocalSet`.
    pub fn incoming(&self, connection: LinkConnection) {
        self.spawn(Rc::clone(&self.shared).receive(connection));
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_local(task);
    }

    /// Waits until there is an event. Loses nothing when dropped.
    pub async fn ready(&self) {
        while self.shared.inbox.events.borrow().is_empty() {
            self.shared.inbox.filled.notified().await;
        }
    }

    /// The next event. After [`Links::ready`], call it until there is none. From the moment that it returns a loss,
    /// messages to that peer go out again.
    #[must_use]
    pub fn next(&self) -> Option<Event> {
        let event = self.shared.inbox.pop()?;
        if let Event::Restarted(peer) | Event::Overflowed(peer) = event
            && let Some(link) = self.shared.links.borrow().get(&peer)
        {
            link.lost.set(false);
        }
        Some(event)
    }

    /// How every link does, in the order of the peers.
    #[must_use]
    pub fn status(&self) -> Vec<LinkStatus> {
        let status = |link: &Rc<Link>| LinkStatus {
            peer: link.peer,
            address: link.address.borrow().clone(),
            down: link.down.borrow().clone(),
            queued_bytes: link.outgoing.borrow().unacked_bytes() as u64,
        };
        self.shared.links.borrow().values().map(status).collect()
    }
}

impl Shared {
    /// Messages were lost. The engine hears it once, however often it happens until then.
    fn lost(&self, link: &Link, event: Event) {
        if !link.lost.replace(true) {
            self.inbox.push(event, 0);
        }
    }

    /// Keeps a connection to the peer.
    async fn keep(self: Rc<Self>, link: Rc<Link>) {
        let mut backoff = FIRST_BACKOFF;
        let mut failed = false;
        loop {
            let address = link.address.borrow().clone();
            let acks = Cell::new(0);
            let why = select! {
                why = self.connection(&link, address, &acks) => why,
                () = link.cut.notified() => "it is made anew".to_owned(),
            };
            link.outlet.take();
            link.outgoing.borrow_mut().disconnected();
            let was_up = link.down.replace(Some(why.clone())).is_none();
            if was_up || !failed {
                tracing::info!(peer = %link.peer, "no connection: {why}");
                self.inbox.push(Event::Down { peer: link.peer, why }, 0);
            }
            if link.forgotten.get() {
                return;
            }
            failed = true;
            if acks.get() > 0 {
                backoff = FIRST_BACKOFF;
            }
            select! {
                () = sleep(backoff) => backoff = (backoff * 2).min(LAST_BACKOFF),
                () = link.cut.notified() => backoff = FIRST_BACKOFF,
            }
            if link.forgotten.get() {
                return;
            }
        }
    }

    /// One connection to the peer, until it ends. Returns why, and counts in `acks` how often something arrived by it.
    async fn connection(&self, link: &Link, address: String, acks: &Cell<u64>) -> String {
        let Connection { mut sender, mut receiver, .. } = match (self.dial)(address).await {
            Ok(connection) => connection,
            Err(error) => return error.to_string(),
        };
        match timeout(PATIENCE, self.greet(link, &mut *sender, &mut *receiver)).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => return why,
            Err(_) => return format!("{} did not answer within {} s", link.peer, PATIENCE.as_secs()),
        }
        link.down.replace(None);
        self.inbox.push(Event::Up(link.peer), 0);
        link.outlet.open(sender);
        select! {
            biased;
            error = link.outlet.write(|batch| link.outgoing.borrow_mut().take(batch)) => error.to_string(),
            why = hear(link, &mut *receiver, acks) => why,
            why = stall(link, acks) => why,
        }
    }

    /// The opening of a link: afterwards the stream goes on, or another one has begun.
    async fn greet(
        &self,
        link: &Link,
        sender: &mut dyn Sender<LinkFrame>,
        receiver: &mut dyn Receiver<LinkFrame>,
    ) -> Result<(), String> {
        let mut frames = Vec::new();
        loop {
            let open = link.outgoing.borrow_mut().open(self.process, &link.peer.to_string());
            sender.send(&mut vec![open]).await.map_err(in_words)?;
            if !receiver.recv(&mut frames).await.map_err(in_words)? {
                return Err(format!("{} closed the connection", link.peer));
            }
            match frames.drain(..).next() {
                Some(LinkFrame::Welcome { process, next }) => {
                    let welcomed = link.outgoing.borrow_mut().welcomed(process, next);
                    if welcomed == Welcomed::Resumed {
                        return Ok(());
                    }
                    link.outgoing.borrow_mut().restart(Uuid::new_v4());
                    self.lost(link, Event::Restarted(link.peer));
                }
                Some(LinkFrame::Refused { reason }) => return Err(refused(link, &reason)),
                frame => return Err(format!("{} answered the opening of a link with {frame:?}", link.peer)),
            }
        }
    }

    /// Takes in what comes by one connection.
    async fn receive(self: Rc<Self>, connection: LinkConnection) {
        let Connection { mut sender, mut receiver, peer, .. } = connection;
        let closer = Rc::new(Notify::new());
        let via = Cell::new(None);
        let outcome = select! {
            outcome = self.serve(&mut *sender, &mut *receiver, &via, &closer) => outcome,
            () = closer.notified() => Err("the stream goes on over another connection".to_owned()),
        };
        // What had come before the end.
        self.tell_arrived();
        if let Some(via) = via.get() {
            self.incoming.borrow_mut().closed(via);
            self.closers.borrow_mut().remove(&via);
        }
        if let Err(reason) = outcome {
            tracing::warn!(%peer, "a link from another node is closed: {reason}");
            let goodbye = async {
                let sent = sender.send(&mut vec![LinkFrame::Refused { reason }]).await;
                if sent.is_ok() && sender.finish().await.is_ok() {
                    receiver.discard().await;
                }
            };
            // Whether the other side heard it makes no difference here.
            let _ = timeout(PATIENCE, goodbye).await;
        }
    }

    async fn serve(
        &self,
        sender: &mut dyn Sender<LinkFrame>,
        receiver: &mut dyn Receiver<LinkFrame>,
        via: &Cell<Option<Via>>,
        closer: &Rc<Notify>,
    ) -> Result<(), String> {
        let (mut frames, mut messages) = (Vec::new(), Vec::new());
        let mut due = pin!(sleep(ACK_DELAY));
        let mut owes = false;
        loop {
            let more = select! {
                more = async {
                    self.inbox.room().await;
                    receiver.recv(&mut frames).await
                } => more.map_err(in_words)?,
                () = &mut due, if owes => {
                    owes = false;
                    self.ack(via.get(), sender).await?;
                    continue;
                }
            };
            if !more {
                return Ok(());
            }
            for frame in frames.drain(..) {
                match frame {
                    LinkFrame::Data(parcel) => {
                        let via = via.get().ok_or("messages came before the opening of the link")?;
                        let whole = self.incoming.borrow_mut().data(via, parcel).map_err(in_words)?;
                        if let Some(bytes) = whole {
                            self.deliver(via, &bytes, &mut messages)?;
                        }
                    }
                    LinkFrame::Open { process, stream, to, first } => {
                        if !self.here.borrow().iter().any(|peer| peer.to_string() == to) {
                            return Err(format!("{to} is not at this address, check the addresses of the cluster"));
                        }
                        let opened = self.incoming.borrow_mut().open(process, stream, &to, first);
                        let (fresh, welcome, superseded) = opened.map_err(in_words)?;
                        if let Some(before) = via.replace(Some(fresh)) {
                            self.closers.borrow_mut().remove(&before);
                        }
                        let older = superseded.and_then(|via| self.closers.borrow_mut().remove(&via));
                        if let Some(older) = older {
                            older.notify_one();
                        }
                        self.closers.borrow_mut().insert(fresh, Rc::clone(closer));
                        sender.send(&mut vec![welcome]).await.map_err(in_words)?;
                    }
                    frame => return Err(format!("{frame:?} is not for the side that was dialed")),
                }
            }
            self.tell_arrived();
            if via.get().is_some_and(|via| self.incoming.borrow().ack_is_due(via)) {
                owes = false;
                self.ack(via.get(), sender).await?;
            } else if !owes {
                owes = true;
                due.as_mut().reset(Instant::now() + ACK_DELAY);
            }
        }
    }

    fn tell_arrived(&self) {
        if !self.inbox.events.borrow().is_empty() {
            match &*self.arrived.borrow() {
                Some(arrived) => arrived(),
                None => self.inbox.filled.notify_one(),
            }
        }
    }

    async fn ack(&self, via: Option<Via>, sender: &mut dyn Sender<LinkFrame>) -> Result<(), String> {
        let ack = via.and_then(|via| self.incoming.borrow_mut().ack(via));
        match ack {
            Some(ack) => sender.send(&mut vec![ack]).await.map_err(in_words),
            None => Ok(()),
        }
    }

    fn deliver(&self, via: Via, bytes: &bytes::Bytes, messages: &mut Vec<NodeMessage>) -> Result<(), String> {
        if let Err(error) = wire::decode_node_messages(bytes, messages) {
            // It would come again for ever; so the sender hears that it did not arrive.
            self.incoming.borrow_mut().forget(via);
            return Err(error.to_string());
        }
        self.inbox.extend(messages.drain(..).map(Event::Message), bytes.len());
        Ok(())
    }
}

fn in_words(error: impl fmt::Display) -> String {
    error.to_string()
}

fn refused(link: &Link, reason: &str) -> String {
    format!("{} refuses: {reason}", link.peer)
}

/// Takes in acknowledgements.
async fn hear(link: &Link, receiver: &mut dyn Receiver<LinkFrame>, acks: &Cell<u64>) -> String {
    let mut frames = Vec::new();
    loop {
        match receiver.recv(&mut frames).await {
            Ok(true) => {}
            Ok(false) => return format!("{} closed the connection", link.peer),
            Err(error) => return error.to_string(),
        }
        for frame in frames.drain(..) {
            match frame {
                LinkFrame::Ack { upto } => match link.outgoing.borrow_mut().acked(upto) {
                    Ok(news) => acks.set(acks.get() + u64::from(news)),
                    Err(error) => return format!("{}: {error}", link.peer),
                },
                LinkFrame::Refused { reason } => return refused(link, &reason),
                frame => return format!("{} sent {frame:?}, which is not for the side that dialed", link.peer),
            }
        }
    }
}

/// Returns when the other side has not acknowledged anything for long.
async fn stall(link: &Link, acks: &Cell<u64>) -> String {
    let mut silent = 0;
    loop {
        let before = acks.get();
        sleep(STALL).await;
        silent = if acks.get() == before && link.outgoing.borrow().awaits_ack() { silent + 1 } else { 0 };
        if silent == 2 {
            return format!("{} has not acknowledged anything for {} s", link.peer, 2 * STALL.as_secs());
        }
    }
}
