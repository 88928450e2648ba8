//! Serving clients: connections in, the engine run, answers out. Everything on one thread.
//!
//! A connection's requests are handled where they arrive: read, given to the engine, and what the engine then has for
//! any client is put into that client's outbox. Each connection is one task that reads and writes at once. A client that
//! does not take its answers is not read from any more once [`MAX_OUTBOUND_BYTES`] of them wait, so it slows itself alone.

use std::cell::{Cell, RefCell};
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flexlog_protocol::api::{
    self, Answer, AppendRefusal, AppendRequest, ColorInfo, Failure, Hello, Request, RetentionChange, Role, ShardInfo,
    Status, delivered_cost,
};
use flexlog_protocol::limits::{MAX_COLORS, MAX_CONNECTIONS, MAX_OUTBOUND_BYTES};
use flexlog_protocol::media::Background;
use flexlog_protocol::net::{self, NodeConnection, in_process, tcp};
use flexlog_protocol::{ClusterId, Color, Incarnation, Position, ShardId, Time, View, wire};
use flexlog_replica::ConnId;
use flexlog_tree_config::operations::{self, Placement};
use flexlog_tree_config::{ColorName, ColorRecord, Metadata};
use rustc_hash::FxHashMap;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Notify, Semaphore, watch};
use tokio::task::{JoinHandle, spawn_blocking, spawn_local};
use tokio::time::MissedTickBehavior;
use uuid::Uuid;

use crate::engine::{Engine, Event, OWN, SlowRead, StoreAt};
use crate::retention::keeper::{Keeper, Unwritten};

/// How long a client may take over the opening words.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Threads that read SSD files.
const SLOW_READERS: usize = 4;
/// Colors in one page of the list.
const COLORS_PER_PAGE: usize = 1000;
/// How often colors are looked at for their retention, and how often what came of it is written at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const KEEP_EVERY: Duration = Duration::from_secs(10);
/// The one position of this cluster.
const ROOT: &str = "root";

/// Answers on their way to one client.
#[derive(Default)]
struct Outbox {
    answers: RefCell<Vec<Answer>>,
    bytes: Cell<usize>,
    filled: Notify,
    emptied: Notify,
}

/// How far the shard is.
#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    Starting,
    Serving,
    /// It did not get to serve, and this is why.
    Failed(String),
}

/// The node as its connections see it.
pub(crate) struct Server {
    engine: RefCell<Engine>,
    metadata: Arc<dyn Metadata>,
    cluster: ClusterId,
    directory: String,
    placement: Placement,
    view: View,
    started: Instant,
    /// Colors have the ids from 1 up to this, exclusive.
    next_color: Cell<u64>,
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
    state: watch::Sender<State>,
    stopping: watch::Sender<bool>,
    keeper: RefCell<Keeper>,
    /// A color was given bounds.
    given_bounds: Notify,
    /// Retentions change one after the other, so that what is kept to is what was decided last.
    changing: Mutex<()>,
    keeping: RefCell<Option<JoinHandle<()>>>,
}

/// What a server is made of.
pub(crate) struct Parts {
    pub(crate) engine: Engine,
    pub(crate) metadata: Arc<dyn Metadata>,
    pub(crate) cluster: ClusterId,
    pub(crate) directory: String,
    pub(crate) shard: ShardId,
    pub(crate) owner: Position,
    pub(crate) view: View,
    pub(crate) next_color: Color,
    pub(crate) keeper: Keeper,
    /// Told, from any thread, when a fence of a store may be done.
    pub(crate) fenced: Arc<Notify>,
}

impl Server {
    /// Starts the tasks that every node has; the shard has no leaf yet. Must run inside a `LocalSet`.
    pub(crate) fn start(parts: Parts) -> Rc<Self> {
        let server = Rc::new(Self {
            engine: RefCell::new(parts.engine),
            metadata: parts.metadata,
            cluster: parts.cluster,
            directory: parts.directory,
            placement: Placement { owner: parts.owner, shard: parts.shard },
            view: parts.view,
            started: Instant::now(),
            next_color: Cell::new(parts.next_color.0),
            next_connection: Cell::new(0),
            outboxes: RefCell::default(),
            unfinished: Notify::new(),
            armed: Cell::new(None),
            rearm: Notify::new(),
            readers: Semaphore::new(SLOW_READERS),
            // One store at a time: each holds the segments in memory that it moves.
            worker: Semaphore::new(1),
            state: watch::Sender::new(State::Starting),
            stopping: watch::Sender::new(false),
            keeper: RefCell::new(parts.keeper),
            given_bounds: Notify::new(),
            changing: Mutex::new(()),
            keeping: RefCell::default(),
        });
        spawn_local(Rc::clone(&server).keep_time());
        spawn_local(Rc::clone(&server).follow_fences(parts.fenced));
        spawn_local(Rc::clone(&server).finish());
        let keeping = spawn_local(Rc::clone(&server).keep_retentions());
        server.keeping.replace(Some(keeping));
        server
    }

    fn now(&self) -> Time {
        Time(self.started.elapsed().as_micros() as u64)
    }

    /// Claims the position and starts a leaf there.
    ///
    /// # Errors
    /// Those of the metadata store.
    pub(crate) async fn lead(self: &Rc<Self>) -> Result<(), operations::OperationError> {
        let uuid = Uuid::new_v4();
        let position = self.placement.owner;
        let epoch = operations::claim(&*self.metadata, position, uuid, "").await?;
        self.engine.borrow_mut().lead(Incarnation { position, epoch, uuid }, self.view.clone());
        self.run();
        Ok(())
    }

    /// Waits until the shard serves, or why it never will.
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
        let last = self.keeper.borrow_mut().take_last(&mut self.engine.borrow_mut());
        self.write_kept(last).await;
    }

    /// Runs the engine, and hands out what came of it.
    fn run(self: &Rc<Self>) {
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
            outbox.bytes.set(outbox.bytes.get() + answers.iter().map(cost).sum::<usize>());
            outbox.answers.borrow_mut().append(&mut answers);
            outbox.filled.notify_one();
        }
        for read in engine.take_reads() {
            spawn_local(Rc::clone(self).read_slowly(read));
        }
        for (store, work) in engine.take_work() {
            spawn_local(Rc::clone(self).work(store, work));
        }
        for event in engine.take_events() {
            match event {
                Event::Serving => {
                    self.state.send_replace(State::Serving);
                }
                Event::EpochFull => {
                    let server = Rc::clone(self);
                    spawn_local(async move {
                        if let Err(error) = server.lead().await {
                            tracing::error!(%error, "the position cannot be claimed again");
                        }
                    });
                }
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
            let expired = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until((self.started + Duration::from_micros(at.0)).into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.rearm.notified() => {}
                () = expired => {
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
        if self.serves().await.is_err() {
            return;
        }
        let mut stopping = self.stopping.subscribe();
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

    fn keep(self: &Rc<Self>, what: impl FnOnce(&mut Keeper, &mut Engine)) {
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

    /// Accepts clients over TCP until the server stops.
    pub(crate) async fn listen(self: Rc<Self>, listener: TcpListener) {
        let mut stopping = self.stopping.subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopping.wait_for(|stopping| *stopping) => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    let server = Rc::clone(&self);
                    spawn_local(async move {
                        match tcp::accept(stream, &server.hello(), HANDSHAKE_TIME).await {
                            Ok(connection) => server.serve(connection).await,
                            Err(error) => tracing::warn!(%error, "a client was turned away"),
                        }
                    });
                }
                Err(error) => {
                    // Out of file descriptors, as a rule: others may close some.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
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
        self.outboxes.borrow_mut().insert(conn, Rc::clone(&outbox));

        let read = async {
            let mut requests = Vec::new();
            loop {
                match receiver.recv(&mut requests).await {
                    Ok(true) => self.handle(conn, &outbox, &mut requests).await,
                    Ok(false) => return None,
                    Err(error) => return Some(error),
                }
                while outbox.bytes.get() > MAX_OUTBOUND_BYTES {
                    outbox.emptied.notified().await;
                }
            }
        };
        let write = async {
            let mut batch = Vec::new();
            loop {
                mem::swap(&mut batch, &mut *outbox.answers.borrow_mut());
                if batch.is_empty() {
                    outbox.filled.notified().await;
                    continue;
                }
                // Until they are on their way they count, so that a client which does not read is not read from.
                let bytes: usize = batch.iter().map(cost).sum();
                let sent = sender.send(&mut batch).await;
                outbox.bytes.set(outbox.bytes.get().saturating_sub(bytes));
                outbox.emptied.notify_one();
                if let Err(error) = sent {
                    return error;
                }
            }
        };
        let mut stopping = self.stopping.subscribe();
        let reason = tokio::select! {
            ended = read => ended.map(|error| error.to_string()),
            error = write => Some(error.to_string()),
            _ = stopping.wait_for(|stopping| *stopping) => Some("the node stops".to_owned()),
        };
        self.engine.borrow_mut().disconnected(conn);
        self.run();
        if let Some(reason) = reason {
            tracing::info!(peer, reason, "a connection ends");
            net::close(&mut *sender, &mut *receiver, reason).await;
        }
        self.outboxes.borrow_mut().remove(&conn);
    }

    async fn handle(self: &Rc<Self>, conn: ConnId, outbox: &Outbox, requests: &mut Vec<Request>) {
        for request in requests.drain(..) {
            match request {
                Request::Append(request) if request.appends.iter().any(|append| !self.knows(append.color())) => {
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
                Request::Status { id } => {
                    self.run();
                    self.answer(outbox, Answer::Status { id, status: Box::new(self.status()) });
                }
                Request::Read { id, color, .. }
                | Request::ReadNext { id, color, .. }
                | Request::ReadPrev { id, color, .. }
                | Request::Tail { id, color }
                | Request::Trim { id, color, .. }
                | Request::Subscribe { id, color, .. }
                    if !self.knows(color) =>
                {
                    let why = Failure::NoSuchColor(format!("with id {color}"));
                    self.answer(outbox, Answer::Failed { id, why });
                }
                request => self.engine.borrow_mut().request(conn, request),
            }
        }
        self.run();
    }

    fn answer(&self, outbox: &Outbox, answer: Answer) {
        outbox.bytes.set(outbox.bytes.get() + cost(&answer));
        outbox.answers.borrow_mut().push(answer);
        outbox.filled.notify_one();
    }

    /// Refuses the appends to colors that are not there, and passes on the others.
    fn append_known(&self, conn: ConnId, outbox: &Outbox, request: &AppendRequest) {
        let (known, unknown): (Vec<_>, Vec<_>) =
            request.appends.iter().cloned().partition(|append| self.knows(append.color()));
        for append in unknown {
            for member in &request.members {
                let (token, why) = (append.token(), AppendRefusal::NoSuchColor);
                self.answer(outbox, Answer::AppendRefused { token, member: *member, why });
            }
        }
        let request = AppendRequest { appends: known, ..request.clone() };
        self.engine.borrow_mut().request(conn, Request::Append(Arc::new(request)));
    }

    fn knows(&self, color: Color) -> bool {
        (1..self.next_color.get()).contains(&color.0)
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
                check_placement(&asked)?;
                operations::create_color(&*self.metadata, &color_name, self.placement)
                    .await
                    .map_err(metadata_failure)?
            }
        };
        self.next_color.set(self.next_color.get().max(record.color.0 + 1));
        if !retention.is_nothing() {
            record = self.set_retention(record.color, retention).await?;
        }
        Ok(self.info(record))
    }

    /// Changes a color's retention, and keeps to it from then on.
    ///
    /// Where it is in doubt whether the change was made, the node keeps to what it knew until it is made again.
    async fn set_retention(self: &Rc<Self>, color: Color, change: RetentionChange) -> Result<ColorRecord, Failure> {
        let server = Rc::clone(self);
        // A task of its own: whoever asked may leave meanwhile, and what was decided is to be kept to all the same.
        let decided = spawn_local(async move {
            let _turn = server.changing.lock().await;
            let record = operations::set_retention(&*server.metadata, color, change).await?;
            server.keep(|keeper, engine| keeper.set(engine, color, record.retention));
            server.given_bounds.notify_one();
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
        let shard = |shard: ShardId| ShardInfo {
            shard,
            view: self.view.clone(),
            // Every member is on this node.
            addresses: vec![String::new(); self.view.members.len()],
        };
        let shards = record.shards.into_iter().map(shard).collect();
        let (name, owner) = (record.name.to_string(), ROOT.to_owned());
        ColorInfo { color: record.color, name, shards, owner, retention: record.retention }
    }

    fn status(&self) -> Status {
        let engine = self.engine.borrow();
        Status {
            cluster: self.cluster,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            directory: self.directory.clone(),
            uptime_micros: self.now().0,
            connections: self.outboxes.borrow().len() as u64,
            colors: self.next_color.get() - 1,
            appends: engine.appends(),
            shards: vec![engine.status()],
        }
    }
}

/// Whether a color can be created as asked: one position and one shard are all that there is.
fn check_placement(asked: &api::Placement) -> Result<(), Failure> {
    if let Some(owner) = asked.owner.as_ref().filter(|owner| *owner != ROOT) {
        return Err(Failure::Unsupported(format!(
            "colors of position '{owner}': the only position of this cluster is '{ROOT}'"
        )));
    }
    if asked.width > 1 {
        let width = asked.width;
        return Err(Failure::Unsupported(format!("colors on {width} shards: this cluster has one")));
    }
    Ok(())
}

fn metadata_failure(error: operations::OperationError) -> Failure {
    match error {
        operations::OperationError::TooManyColors(_) => Failure::TooManyColors(MAX_COLORS as u64),
        error => Failure::Metadata(error.to_string()),
    }
}

/// What an answer takes of an outbox, in bytes, about.
fn cost(answer: &Answer) -> usize {
    let payload = match answer {
        Answer::Delivered { records, .. } => records.iter().map(|(_, record)| delivered_cost(record) as usize).sum(),
        Answer::Record { record, .. } => record.payload().len(),
        Answer::Appended(appended) => appended.runs.len() * 48,
        Answer::Colors { colors, .. } => colors.len() * 128,
        _ => 0,
    };
    64 + payload
}
