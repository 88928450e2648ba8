//! Serving clients: connections in, the engine run, answers out. Everything on one thread.
//!
//! A connection's requests are handled where they arrive: read, given to the engine, and what the engine then has for
//! any client is written at once. Each connection is one task that reads, and writes what its client did not take at once.
//! A client that does not take its answers is not read from any more once
//! [`MAX_OUTBOUND_BYTES`](flexlog_protocol::limits::MAX_OUTBOUND_BYTES) of them wait, so it slows itself alone.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flexlog_protocol::api::{
    self, Answer, AppendRefusal, AppendRequest, ColorInfo, Failure, Hello, PositionInfo, PositionStatus, ReplicaInfo,
    Request, RetentionChange, Role, ShardInfo, ShardPlace, Status, TreeInfo,
};
use flexlog_protocol::limits::{MAX_COLORS, MAX_CONNECTIONS};
use flexlog_protocol::media::Background;
use flexlog_protocol::net::{self, NodeConnection, in_process};
use flexlog_protocol::peer::Peer;
use flexlog_protocol::{ClusterId, Color, Incarnation, Position, ReplicaId, ShardId, Time, View, wire};
use flexlog_replica::ConnId;
use flexlog_sequencer::ViewOutcome;
use flexlog_tree_config::operations::{self, Placement, Tree, ViewChange};
use flexlog_tree_config::record::{PositionRecord, ReplicaRecord, ShardRecord};
use flexlog_tree_config::{ColorName, ColorRecord, Metadata, Revision, served};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::{Mutex, Notify, Semaphore, watch};
use tokio::task::{JoinHandle, spawn_blocking, spawn_local};
use tokio::time::MissedTickBehavior;

use crate::engine::{Engine, Event, OWN, SlowRead, StoreAt};
use crate::links::{self, Links};
use crate::retention::keeper::{Keeper, Unwritten};
use crate::seat::Seat;
use crate::standby;
use crate::transport::{Incoming, Listener};

mod outbox;

use outbox::Outbox;

/// How long a client may take over the opening words.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// How long a status waits for the metadata: it must come while that is away, too.
const STATUS_PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait before a change of a shard's view is tried, or asked for, again.
const CHANGE_AGAIN: Duration = Duration::from_millis(100);
/// Threads that read SSD files.
const SLOW_READERS: usize = 4;
/// Room for messages to another process that is kept for the next ones.
const KEEP_MESSAGES: usize = 4096;
/// Colors in one page of the list.
const COLORS_PER_PAGE: usize = 1000;
/// How often colors are looked at for their retention, and how often what came of it is written at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const KEEP_EVERY: Duration = Duration::from_secs(10);

/// How far the shard is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Starting,
    /// Another process holds the position.
    StandingBy,
    Serving,
    /// It did not get to serve, and this is why.
    Failed(String),
}

/// The node as its connections see it.
pub(crate) struct Server {
    pub(crate) engine: RefCell<Engine>,
    pub(crate) metadata: Arc<dyn Metadata>,
    /// The metadata that this process keeps for the others of its cluster.
    pub(crate) kept: Option<served::Server>,
    cluster: ClusterId,
    name: String,
    directory: String,
    /// The position that it holds or stands by for.
    pub(crate) seat: Option<Seat>,
    /// The replica of its own and its shard, in a cluster of several processes.
    pub(crate) replica: Option<(ReplicaId, ShardId)>,
    /// The metadata as it is followed.
    pub(crate) tree: RefCell<Tree>,
    /// Where the standbys of positions listen, by the names of these.
    standbys: BTreeMap<String, Vec<String>>,
    /// To the other processes of the cluster; `None` where there are none.
    pub(crate) links: Option<Links>,
    started: Instant,
    /// Colors that are known to be there.
    colors: RefCell<FxHashSet<Color>>,
    next_connection: Cell<u64>,
    outboxes: RefCell<FxHashMap<ConnId, Rc<Outbox>>>,
    /// The engine has more to do, once the answers that it has are on their way.
    unfinished: Notify,
    /// The deadline that the timer waits for.
    armed: Cell<Option<Time>>,
    rearm: Notify,
    /// Reads of SSD files under way at once, and stores that work in the background at once.
    readers: Semaphore,
    worker: Semaphore,
    pub(crate) state: watch::Sender<State>,
    stopping: watch::Sender<bool>,
    pub(crate) keeper: RefCell<Keeper>,
    /// A color was given bounds.
    pub(crate) given_bounds: Notify,
    /// Which colors have bounds that are kept to here is to be read again.
    pub(crate) bounds_due: Cell<bool>,
    /// Retentions change one after the other, so that what is kept to is what was decided last.
    changing: Mutex<()>,
    keeping: RefCell<Option<JoinHandle<()>>>,
}

/// What a server is made of.
pub(crate) struct Parts {
    pub(crate) engine: Engine,
    pub(crate) metadata: Arc<dyn Metadata>,
    pub(crate) kept: Option<served::Server>,
    pub(crate) cluster: ClusterId,
    pub(crate) name: String,
    pub(crate) directory: String,
    pub(crate) seat: Option<Seat>,
    pub(crate) replica: Option<(ReplicaId, ShardId)>,
    pub(crate) tree: Tree,
    pub(crate) standbys: BTreeMap<String, Vec<String>>,
    pub(crate) links: Option<Links>,
    /// Follow the metadata from here on: the tree is no older. `None` where nobody else changes it.
    pub(crate) from: Option<Revision>,
    pub(crate) keeper: Keeper,
    /// Told, from any thread, when a fence of a store may be done.
    pub(crate) fenced: Arc<Notify>,
}

impl Server {
    /// Starts the tasks that every node has; the shard has no leaf yet. Must run inside a `LocalSet`.
    pub(crate) fn start(parts: Parts) -> Rc<Self> {
        let has_seat = parts.seat.is_some();
        let server = Rc::new(Self {
            engine: RefCell::new(parts.engine),
            metadata: parts.metadata,
            kept: parts.kept,
            cluster: parts.cluster,
            name: parts.name,
            directory: parts.directory,
            seat: parts.seat,
            replica: parts.replica,
            tree: RefCell::new(parts.tree),
            standbys: parts.standbys,
            links: parts.links,
            started: Instant::now(),
            colors: RefCell::default(),
            next_connection: Cell::new(0),
            outboxes: RefCell::default(),
            unfinished: Notify::new(),
            armed: Cell::new(None),
            rearm: Notify::new(),
            readers: Semaphore::new(SLOW_READERS),
            // One store at a time: each holds the segments in memory that it moves.
            worker: Semaphore::new(1),
            // Members serve whoever comes, once they are led.
            state: watch::Sender::new(if has_seat { State::Starting } else { State::Serving }),
            stopping: watch::Sender::new(false),
            keeper: RefCell::new(parts.keeper),
            given_bounds: Notify::new(),
            bounds_due: Cell::new(false),
            changing: Mutex::new(()),
            keeping: RefCell::default(),
        });
        spawn_local(Rc::clone(&server).keep_time());
        spawn_local(Rc::clone(&server).follow_fences(parts.fenced));
        spawn_local(Rc::clone(&server).finish());
        if let Some(links) = &server.links {
            let weak = Rc::downgrade(&server);
            links.on_arrival(move || {
                if let Some(server) = weak.upgrade() {
                    server.take_links();
                }
            });
            spawn_local(Rc::clone(&server).hear_links());
        }
        if let Some(from) = parts.from {
            spawn_local(Rc::clone(&server).follow(from));
        }
        let keeping = spawn_local(Rc::clone(&server).keep_retentions());
        server.keeping.replace(Some(keeping));
        server
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn directory(&self) -> &str {
        &self.directory
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.started.elapsed().as_micros() as u64)
    }

    /// Done when that moment has come; never, if there is none.
    pub(crate) async fn reached(&self, deadline: Option<Time>) {
        match deadline {
            Some(at) => tokio::time::sleep_until((self.started + Duration::from_micros(at.0)).into()).await,
            None => std::future::pending().await,
        }
    }

    /// Takes in what becomes of links; messages are taken in by the tasks that read them.
    async fn hear_links(self: Rc<Self>) {
        let Some(links) = &self.links else { return };
        loop {
            links.ready().await;
            self.take_links();
        }
    }

    /// Takes in what other processes say, and what becomes of links, in order.
    fn take_links(self: &Rc<Self>) {
        let Some(links) = &self.links else { return };
        while let Some(event) = links.next() {
            match event {
                links::Event::Message(message) => self.engine.borrow_mut().remote(message),
                links::Event::Restarted(peer) => {
                    tracing::info!(%peer, "it was started again, or lost what was said");
                    self.engine.borrow_mut().replaced(peer);
                }
                links::Event::Overflowed(peer) => {
                    tracing::warn!(%peer, "it does not take what it is told: beginning anew");
                    self.engine.borrow_mut().replaced(peer);
                    if !matches!(peer, Peer::Replica(_)) {
                        self.stand(standby::Input::Again);
                    }
                }
                links::Event::Up(peer) => {
                    tracing::info!(%peer, "connected");
                    self.engine.borrow_mut().reached(peer);
                }
                links::Event::Down { peer, why } => {
                    tracing::info!(%peer, why, "not connected");
                    self.engine.borrow_mut().unreached(peer);
                }
            }
        }
        self.run();
    }

    /// Changes a shard's view in metadata; tries until it is known what became of it.
    async fn change_view(self: Rc<Self>, by: Incarnation, shard: ShardId, from: View, to: View) {
        let mut said = false;
        let outcome = loop {
            match operations::change_view(&*self.metadata, by, shard, &from, &to).await {
                Ok(ViewChange::Applied) => break ViewOutcome::Applied,
                Ok(ViewChange::Refused) => break ViewOutcome::Refused,
                Ok(ViewChange::Deposed) => break ViewOutcome::Deposed,
                Err(error) if !said => {
                    said = true;
                    tracing::warn!(%shard, %error, "the view cannot be changed now: trying until it is known");
                }
                Err(_) => {}
            }
            tokio::time::sleep(CHANGE_AGAIN).await;
        };
        tracing::info!(%shard, view = %to.number, members = ?to.members, ?outcome, "change of view");
        self.engine.borrow_mut().view_decided(by, shard, outcome);
        self.run();
    }

    /// Waits until the shard serves, or another process holds the position, or why neither will ever be.
    pub(crate) async fn serves(&self) -> Result<(), String> {
        let mut state = self.state.subscribe();
        // The sender lives in `self`, so this ends when the state is another.
        match state.wait_for(|state| *state != State::Starting).await.as_deref() {
            Ok(State::Failed(why)) => Err(why.clone()),
            _ => Ok(()),
        }
    }

    /// Tells every connection to close, and writes what is to outlive the process.
    pub(crate) async fn stop(&self) {
        self.stopping.send_replace(true);
        let patience = Instant::now() + net::CLOSING_TIME;
        while !self.outboxes.borrow().is_empty() && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let keeping = self.keeping.take();
        if let Some(keeping) = keeping
            && let Err(error) = keeping.await
        {
            tracing::error!(%error, "the task that keeps colors to their retentions ended");
        }
        self.engine.borrow_mut().write_trace();
        let last = self.keeper.borrow_mut().take_last(&mut self.engine.borrow_mut());
        self.write_kept(last).await;
    }

    /// Runs the engine, and hands out what came of it.
    pub(crate) fn run(self: &Rc<Self>) {
        let mut engine = self.engine.borrow_mut();
        if engine.run(self.now()) {
            self.unfinished.notify_one();
        }
        if engine.has_marked() {
            // At once: a task that waits for its turn would take all that a burst brings for one piece.
            self.keeper.borrow_mut().look_at_marked(&mut engine);
            self.unfinished.notify_one();
        }
        let outboxes = self.outboxes.borrow();
        for (conn, mut answers) in engine.take_answers() {
            if conn == OWN {
                answers.drain(..).for_each(|answer| self.keeper.borrow_mut().answered(answer));
                continue;
            }
            // A client that is gone hears no answer.
            let Some(outbox) = outboxes.get(&conn) else { continue };
            answers.drain(..).for_each(|answer| outbox.put(answer));
            outbox.write_now();
        }
        if let Some(links) = &self.links {
            for (peer, messages) in engine.remote_messages() {
                if let Err(error) = links.send(peer, messages) {
                    tracing::error!(%error, "messages were not sent: is the topology file of this process an old one?");
                }
                messages.clear();
                messages.shrink_to(KEEP_MESSAGES);
            }
        }
        for read in engine.take_reads() {
            spawn_local(Rc::clone(self).read_slowly(read));
        }
        for (store, work) in engine.take_work() {
            spawn_local(Rc::clone(self).work(store, work));
        }
        let mut again = false;
        for event in engine.take_events() {
            match event {
                Event::Serving => {
                    self.state.send_replace(State::Serving);
                }
                Event::ClaimAgain => again = true,
                Event::ChangeView { by, shard, from, to } => {
                    spawn_local(Rc::clone(self).change_view(by, shard, from, to));
                }
                // The metadata says who does, and is followed.
                Event::Deposed => tracing::warn!("another process holds the position"),
            }
        }
        if *self.state.borrow() == State::Starting
            && let Some(why) = engine.trouble()
        {
            self.state.send_replace(State::Failed(why));
        }
        let deadline = engine.next_deadline();
        if deadline.is_some_and(|deadline| self.armed.get().is_none_or(|armed| deadline < armed)) {
            self.rearm.notify_one();
        }
        drop((engine, outboxes));
        if again {
            self.stand(standby::Input::Again);
        }
    }

    /// Reads where waiting for a disk keeps nobody else waiting.
    async fn read_slowly(self: Rc<Self>, read: SlowRead) {
        // Nobody closes the semaphore.
        let Ok(_one) = self.readers.acquire().await else { return };
        match spawn_blocking(move || read.run()).await {
            Ok(done) => self.engine.borrow_mut().read_done(done),
            Err(error) => tracing::error!(%error, "a read of SSD files did not end"),
        }
        self.run();
    }

    async fn work(self: Rc<Self>, store: StoreAt, work: Background) {
        let Ok(_one) = self.worker.acquire().await else { return };
        if let Err(error) = spawn_blocking(work).await {
            tracing::error!(%error, "background work did not end");
        }
        self.engine.borrow_mut().work_done(store);
        self.run();
    }

    async fn keep_time(self: Rc<Self>) {
        loop {
            let deadline = self.engine.borrow().next_deadline();
            self.armed.set(deadline);
            tokio::select! {
                () = self.rearm.notified() => {}
                () = self.reached(deadline) => {
                    self.engine.borrow_mut().tick();
                    self.run();
                }
            }
        }
    }

    async fn follow_fences(self: Rc<Self>, fenced: Arc<Notify>) {
        loop {
            fenced.notified().await;
            self.engine.borrow_mut().fenced();
            self.run();
        }
    }

    /// Keeps colors to their retentions until the server stops; nothing is done while none has any.
    async fn keep_retentions(self: Rc<Self>) {
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            served = self.serves() => if served.is_err() {
                return;
            },
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        let mut turns = tokio::time::interval(LOOK_EVERY);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut kept = Instant::now();
        loop {
            let idle = self.keeper.borrow().is_idle();
            tokio::select! {
                () = self.given_bounds.notified() => {}
                _ = turns.tick(), if !idle => self.keep(Keeper::look_around),
                _ = stopping.wait_for(|stopping| *stopping) => return,
            }
            if kept.elapsed() >= KEEP_EVERY {
                kept = Instant::now();
                let changed = self.keeper.borrow_mut().take_changed();
                self.write_kept(changed).await;
            }
        }
    }

    pub(crate) fn keep(self: &Rc<Self>, what: impl FnOnce(&mut Keeper, &mut Engine)) {
        what(&mut self.keeper.borrow_mut(), &mut self.engine.borrow_mut());
        self.run();
    }

    async fn write_kept(&self, what: Option<Unwritten>) {
        let Some(what) = what else { return };
        let written = spawn_blocking(move || what.write()).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            self.keeper.borrow_mut().not_written(&error);
        }
    }

    async fn finish(self: Rc<Self>) {
        loop {
            self.unfinished.notified().await;
            self.run();
        }
    }

    fn hello(&self) -> Hello {
        Hello { version: wire::VERSION, cluster: self.cluster, role: Role::Node }
    }

    /// Accepts clients and other processes until the server stops.
    pub(crate) async fn listen(self: Rc<Self>, listener: Listener) {
        let mut stopping = self.stopping.subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopping.wait_for(|stopping| *stopping) => return,
            };
            match accepted {
                Ok(incoming) => {
                    spawn_local(Rc::clone(&self).welcome(incoming));
                }
                Err(error) => {
                    // Out of file descriptors, as a rule: others may close some.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    async fn welcome(self: Rc<Self>, incoming: Incoming) {
        let judge = |theirs: &Hello| match theirs.role {
            Role::Client => None,
            Role::Node if self.links.is_some() => None,
            Role::Node => Some("this node is a cluster of its own: is the address right?".to_owned()),
            Role::Metadata if self.kept.is_some() => None,
            Role::Metadata => Some("the metadata is not kept here: is the address that of the root?".to_owned()),
        };
        let accepted = match incoming.welcome(&self.hello(), HANDSHAKE_TIME, judge).await {
            Ok(accepted) => accepted,
            Err(error) => return tracing::warn!(%error, "a connection was turned away"),
        };
        match (accepted.hello().role, &self.links, &self.kept) {
            (Role::Node, Some(links), _) => links.incoming(accepted.into_connection()),
            (Role::Metadata, _, Some(kept)) => {
                let peer = accepted.peer().to_owned();
                if let Err(error) = kept.serve(accepted.into_connection()).await {
                    tracing::info!(peer, %error, "a connection for metadata ends");
                }
            }
            _ => self.serve(accepted.into_connection()).await,
        }
    }

    /// Accepts clients of this process until the server stops.
    pub(crate) async fn listen_in_process(self: Rc<Self>, mut listener: in_process::Listener) {
        let mut stopping = self.stopping.subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopping.wait_for(|stopping| *stopping) => return,
            };
            let Some(connection) = accepted else { return };
            spawn_local(Rc::clone(&self).serve(connection));
        }
    }

    async fn serve(self: Rc<Self>, connection: NodeConnection) {
        let NodeConnection { mut sender, mut receiver, peer, .. } = connection;
        if self.outboxes.borrow().len() >= MAX_CONNECTIONS {
            let reason =
                format!("the node has {MAX_CONNECTIONS} connections, its limit: close some, or try again later");
            return net::close(&mut *sender, &mut *receiver, reason).await;
        }
        let conn = ConnId(self.next_connection.get());
        self.next_connection.set(conn.0 + 1);
        let outbox = Rc::new(Outbox::default());
        outbox.open(sender);
        self.outboxes.borrow_mut().insert(conn, Rc::clone(&outbox));

        let read = async {
            let mut requests = Vec::new();
            loop {
                match receiver.recv(&mut requests).await {
                    Ok(true) => self.handle(conn, &outbox, &mut requests).await,
                    Ok(false) => return None,
                    Err(error) => return Some(error),
                }
                outbox.room().await;
            }
        };
        let mut stopping = self.stopping.subscribe();
        let reason = tokio::select! {
            ended = read => ended.map(|error| error.to_string()),
            error = outbox.write() => Some(error.to_string()),
            _ = stopping.wait_for(|stopping| *stopping) => Some("the node stops".to_owned()),
        };
        self.engine.borrow_mut().disconnected(conn);
        self.run();
        if let Some(reason) = reason
            && let Some(mut sender) = outbox.take()
        {
            tracing::info!(peer, reason, "a connection ends");
            net::close(&mut *sender, &mut *receiver, reason).await;
        }
        self.outboxes.borrow_mut().remove(&conn);
    }

    async fn handle(self: &Rc<Self>, conn: ConnId, outbox: &Outbox, requests: &mut Vec<Request>) {
        for request in requests.drain(..) {
            match request {
                Request::Append(request) if request.appends.iter().any(|append| !self.knows(append.color())) => {
                    self.run();
                    for append in &request.appends {
                        self.look_for(append.color()).await;
                    }
                    self.append_known(conn, outbox, &request);
                }
                Request::Lookup { id, name, create, retention } => {
                    // What came before is not kept waiting by the metadata store.
                    self.run();
                    let answer = match self.lookup(&name, create, retention).await {
                        Ok(info) => Answer::Color { id, info },
                        Err(why) => Answer::Failed { id, why },
                    };
                    self.answer(outbox, answer);
                }
                Request::Colors { id, after } => {
                    self.run();
                    let answer = match self.colors(after.as_deref()).await {
                        Ok(colors) => Answer::Colors { id, colors },
                        Err(why) => Answer::Failed { id, why },
                    };
                    self.answer(outbox, answer);
                }
                Request::Ping { id } => {
                    outbox.is_heartbeat.set(true);
                    let holder = self.seat.as_ref().is_some_and(Seat::is_held);
                    self.answer(outbox, Answer::Pong { id, holder });
                }
                Request::Status { id } => {
                    self.run();
                    let status = Box::new(self.status().await);
                    self.answer(outbox, Answer::Status { id, status });
                }
                Request::Read { id, color, .. }
                | Request::ReadNext { id, color, .. }
                | Request::ReadPrev { id, color, .. }
                | Request::Tail { id, color }
                | Request::Trim { id, color, .. }
                | Request::Subscribe { id, color, .. }
                    if !self.knows(color) =>
                {
                    self.run();
                    if self.look_for(color).await {
                        self.engine.borrow_mut().request(conn, request);
                    } else {
                        let why = Failure::NoSuchColor(format!("with id {color}"));
                        self.answer(outbox, Answer::Failed { id, why });
                    }
                }
                request => self.engine.borrow_mut().request(conn, request),
            }
        }
        self.run();
    }

    fn answer(&self, outbox: &Outbox, answer: Answer) {
        outbox.put(answer);
        outbox.write_now();
    }

    /// Refuses the appends to colors that are not there, and passes on the others.
    fn append_known(&self, conn: ConnId, outbox: &Outbox, request: &AppendRequest) {
        let (known, unknown): (Vec<_>, Vec<_>) =
            request.appends.iter().cloned().partition(|append| self.knows(append.color()));
        for append in unknown {
            for member in &request.members {
                let (token, why) = (append.token(), AppendRefusal::NoSuchColor);
                outbox.put(Answer::AppendRefused { token, member: *member, why });
            }
        }
        outbox.write_now();
        let request = AppendRequest { appends: known, ..request.clone() };
        self.engine.borrow_mut().request(conn, Request::Append(Arc::new(request)));
    }

    fn knows(&self, color: Color) -> bool {
        self.colors.borrow().contains(&color)
    }

    /// Whether there is such a color, as the metadata knows.
    async fn look_for(&self, color: Color) -> bool {
        if self.knows(color) {
            return true;
        }
        match operations::color(&*self.metadata, color).await {
            Ok(found) => {
                if found.is_some() {
                    self.colors.borrow_mut().insert(color);
                }
                found.is_some()
            }
            Err(error) => {
                tracing::warn!(%color, %error, "it is not known whether there is such a color");
                false
            }
        }
    }

    /// Where a new color goes. If nobody says, a shard is drawn for it and the shard's leaf counts, so that nothing of it
    /// goes further up; for a wide one the root.
    fn place(&self, name: &ColorName, asked: &api::Placement) -> Result<Placement, Failure> {
        let tree = self.tree.borrow();
        let width = asked.width.max(1);
        let top = match &asked.owner {
            None => Position(0),
            Some(owner) => {
                let position = tree.position_named(owner).map(|record| record.position);
                position.ok_or_else(|| {
                    let known: Vec<&str> = tree.positions.iter().map(|record| record.name.as_str()).collect();
                    Failure::Placement(format!("there is no position '{owner}': there are {}", known.join(", ")))
                })?
            }
        };
        // Any number that differs from color to color will do.
        let draw =
            Color(name.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            }));
        let shards = tree.place(top, width, draw).map_err(|error| Failure::Placement(error.to_string()))?;
        let leaf = || shards.first().and_then(|shard| tree.shard(*shard)).map(|shard| shard.leaf);
        let owner = if asked.owner.is_none() && width == 1 { leaf().unwrap_or(top) } else { top };
        Ok(Placement { owner, shards })
    }

    async fn lookup(
        self: &Rc<Self>,
        name: &str,
        create: Option<api::Placement>,
        retention: RetentionChange,
    ) -> Result<ColorInfo, Failure> {
        let bad = |error: &dyn std::fmt::Display| Failure::BadName { name: name.to_owned(), why: error.to_string() };
        let color_name = ColorName::new(name).map_err(|error| bad(&error))?;
        let found = operations::find_color(&*self.metadata, &color_name).await.map_err(metadata_failure)?;
        let mut record = match found {
            Some(record) => record,
            None => {
                let asked = create.ok_or_else(|| Failure::NoSuchColor(format!("named '{name}'")))?;
                let placement = self.place(&color_name, &asked)?;
                operations::create_color(&*self.metadata, &color_name, &placement).await.map_err(metadata_failure)?
            }
        };
        self.colors.borrow_mut().insert(record.color);
        if !retention.is_nothing() {
            record = self.set_retention(record.color, retention).await?;
        }
        Ok(self.info(record))
    }

    /// Changes a color's retention, which is kept to from then on.
    ///
    /// Where it is in doubt whether the change was made, the node keeps to what it knew until it is made again.
    async fn set_retention(self: &Rc<Self>, color: Color, change: RetentionChange) -> Result<ColorRecord, Failure> {
        let server = Rc::clone(self);
        // A task of its own: whoever asked may leave meanwhile, and what was decided is to be kept to all the same.
        let decided = spawn_local(async move {
            let _turn = server.changing.lock().await;
            let record = operations::set_retention(&*server.metadata, color, change).await?;
            // Where the metadata is followed, whoever keeps to it hears of it in that way.
            if server.links.is_none() {
                server.keep(|keeper, engine| keeper.set(engine, color, record.retention));
                server.given_bounds.notify_one();
            }
            Ok(record)
        });
        decided.await.map_err(|error| Failure::NotReady(error.to_string()))?.map_err(metadata_failure)
    }

    async fn colors(&self, after: Option<&str>) -> Result<Vec<ColorInfo>, Failure> {
        let after = match after {
            None => None,
            Some(name) => match ColorName::new(name) {
                Ok(name) => Some(name),
                Err(error) => return Err(Failure::BadName { name: name.to_owned(), why: error.to_string() }),
            },
        };
        let page = operations::colors_by_name(&*self.metadata, after.as_ref(), COLORS_PER_PAGE).await;
        Ok(page.map_err(metadata_failure)?.into_iter().map(|record| self.info(record)).collect())
    }

    fn info(&self, record: ColorRecord) -> ColorInfo {
        let tree = self.tree.borrow();
        let address = |member: &ReplicaId| {
            // In a cluster of one process every member is on this node.
            tree.replica(*member).and_then(|record| record.addresses.first()).cloned().unwrap_or_default()
        };
        let shard = |shard: ShardId| {
            let view = tree.shard(shard)?.view.clone();
            Some(ShardInfo { shard, addresses: view.members.iter().map(address).collect(), view })
        };
        let shards = record.shards.into_iter().filter_map(shard).collect();
        let owner = tree.position(record.owner).map(|owner| owner.name.clone()).unwrap_or_default();
        let (color, name) = (record.color, record.name.to_string());
        ColorInfo { color, name, shards, owner, retention: record.retention }
    }

    async fn status(&self) -> Status {
        let asked = async {
            let cluster = operations::cluster(&*self.metadata).await?;
            Ok::<_, operations::OperationError>((cluster, operations::tree(&*self.metadata).await?))
        };
        // Where the metadata does not answer, the rest is worth knowing all the same.
        let (cluster, tree) = match tokio::time::timeout(STATUS_PATIENCE, asked).await {
            Ok(Ok((cluster, tree))) => (cluster, self.tree_info(&tree, None)),
            Ok(Err(error)) => (None, self.tree_info(&self.tree.borrow(), Some(error.to_string()))),
            Err(_) => {
                let why = format!("the metadata did not answer within {} s", STATUS_PATIENCE.as_secs());
                (None, self.tree_info(&self.tree.borrow(), Some(why)))
            }
        };
        let engine = self.engine.borrow();
        let position = engine.position().map(|status| {
            let tree = self.tree.borrow();
            let name = tree.position(status.position).map(|record| record.name.clone()).unwrap_or_default();
            PositionStatus { name, standby: self.seat.as_ref().is_some_and(Seat::stands_by), ..status }
        });
        Status {
            process: self.name.clone(),
            position,
            links: self.links.as_ref().map(Links::status).unwrap_or_default(),
            tree,
            cluster: self.cluster,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            directory: self.directory.clone(),
            uptime_micros: self.now().0,
            connections: self.outboxes.borrow().values().filter(|outbox| !outbox.is_heartbeat.get()).count() as u64,
            colors: cluster.map_or(0, |cluster| cluster.colors()),
            appends: engine.appends(),
            shards: engine.shards(),
        }
    }

    fn tree_info(&self, tree: &Tree, stale: Option<String>) -> TreeInfo {
        let position = |record: &PositionRecord| PositionInfo {
            position: record.position,
            name: record.name.clone(),
            parent: record.parent,
            address: record.address.clone(),
            epoch: record.holder.as_ref().map(|holder| holder.epoch).unwrap_or_default(),
            holder: record.holder.as_ref().map(|holder| holder.address.clone()).unwrap_or_default(),
            standbys: self.standbys.get(&record.name).cloned().unwrap_or_default(),
        };
        let replica = |record: &ReplicaRecord| ReplicaInfo {
            replica: record.replica,
            address: record.addresses.first().cloned().unwrap_or_default(),
        };
        let shard = |record: &ShardRecord| ShardPlace {
            shard: record.shard,
            leaf: record.leaf,
            view: record.view.clone(),
            min_view: record.min_view,
            replicas: tree.replicas_of(record.shard).map(replica).collect(),
        };
        TreeInfo {
            stale,
            positions: tree.positions.iter().map(position).collect(),
            shards: tree.shards.iter().map(shard).collect(),
        }
    }
}

fn metadata_failure(error: operations::OperationError) -> Failure {
    match error {
        operations::OperationError::TooManyColors(_) => Failure::TooManyColors(MAX_COLORS as u64),
        error => Failure::Metadata(error.to_string()),
    }
}
