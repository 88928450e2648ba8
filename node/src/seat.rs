//! The shell of [`crate::standby`]: has this process hold its position of the tree, or stand by for the one that does.
//!
//! It reads and claims in the metadata, sends heartbeats to the holder, starts and stops the position's cores, and wakes
//! the machine when its deadline has come. Heartbeats go over a connection of their own like a client's, and are answered
//! by the thread that runs the other process's engine: one that is stopped or stuck does not answer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flexlog_protocol::api::{Answer, Hello, Request, Role};
use flexlog_protocol::net::Connection;
use flexlog_protocol::{ClusterId, Epoch, Incarnation, Position, wire};
use flexlog_tree_config::operations::{self, OperationError};
use flexlog_tree_config::{CommitError, ReadError};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::timeout;

use crate::engine::Claimed;
use crate::links::Peer;
use crate::server::{Server, State};
use crate::standby::{Input, Output, Part, Standby};
use crate::transport::Transport;

/// How long to wait before the metadata is asked again at the start.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// Heartbeats in a row without an answer after which another connection is tried: half of those that a holder may miss.
const MISSED: u32 = 3;

/// A position that this process may hold.
pub(crate) struct Seat {
    position: Position,
    part: Part,
    standby: RefCell<Standby>,
    heart: Option<Heart>,
    /// The deadline may be another one.
    rearm: Notify,
    /// People were told that the metadata is away.
    said: Cell<bool>,
}

/// How holders are asked whether they are there.
pub(crate) struct Heart {
    transport: Transport,
    cluster: ClusterId,
    beating: RefCell<Option<Beating>>,
}

/// Heartbeats to one holder.
struct Beating {
    epoch: Epoch,
    due: Rc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for Beating {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Heart {
    pub(crate) fn new(transport: Transport, cluster: ClusterId) -> Self {
        Self { transport, cluster, beating: RefCell::default() }
    }
}

impl Seat {
    /// `heart` is `None` where no other process may hold the position, which shares this process with all others.
    pub(crate) fn new(position: Position, part: Part, heart: Option<Heart>) -> Self {
        // Drawn with the uuid; its last bytes are all chance.
        let seed = part.uuid.as_u64_pair().1;
        let standby = RefCell::new(Standby::new(part.clone(), seed));
        Self { position, part, standby, heart, rearm: Notify::new(), said: Cell::new(false) }
    }

    pub(crate) fn position(&self) -> Position {
        self.position
    }

    /// Whether this process holds the position, as far as it knows.
    pub(crate) fn is_held(&self) -> bool {
        self.standby.borrow().holds().is_some()
    }

    /// Whether it waits for another one that does.
    pub(crate) fn stands_by(&self) -> bool {
        self.standby.borrow().stands_by()
    }
}

impl Server {
    /// Takes part in the position of this process, if it has one, from now on.
    pub(crate) fn take_seat(self: &Rc<Self>) {
        if self.seat.is_some() {
            spawn_local(Rc::clone(self).keep_seat());
        }
    }

    async fn keep_seat(self: Rc<Self>) {
        let Some(seat) = &self.seat else { return };
        loop {
            match operations::position(&*self.metadata, seat.position).await {
                Ok(record) => {
                    self.stand(Input::Told(record.holder));
                    break;
                }
                Err(error) => self.no_metadata(seat, &error),
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
        loop {
            let deadline = seat.standby.borrow().next_deadline();
            tokio::select! {
                () = seat.rearm.notified() => {}
                () = self.reached(deadline) => self.stand(Input::Tick),
            }
        }
    }

    /// Gives the machine an input, and does what it says.
    pub(crate) fn stand(self: &Rc<Self>, input: Input) {
        let Some(seat) = &self.seat else { return };
        let position = seat.position;
        let outputs = seat.standby.borrow_mut().handle(self.now(), input);
        for output in outputs {
            match output {
                Output::Beat { epoch, address } => self.beat(seat, epoch, address),
                Output::Read => {
                    spawn_local(Rc::clone(self).read_holder());
                }
                Output::Claim(from) => {
                    spawn_local(Rc::clone(self).claim(from));
                }
                Output::Lead(epoch) => {
                    tracing::info!(%position, %epoch, "claimed");
                    seat.still();
                    spawn_local(Rc::clone(self).lead(epoch));
                }
                Output::Depose => {
                    tracing::warn!(%position, "another process has claimed the position: this one stands by for it");
                    self.engine.borrow_mut().depose();
                    self.run();
                }
                Output::StandBy => {
                    tracing::info!(%position, "its holder answers: this process stands by for it");
                    self.state.send_replace(State::StandingBy);
                }
            }
        }
        seat.rearm.notify_one();
    }

    async fn read_holder(self: Rc<Self>) {
        let Some(seat) = &self.seat else { return };
        let input = match operations::position(&*self.metadata, seat.position).await {
            Ok(record) => {
                seat.said.set(false);
                Input::Read(record.holder)
            }
            Err(error) => {
                self.no_metadata(seat, &error);
                Input::Away
            }
        };
        self.stand(input);
    }

    async fn claim(self: Rc<Self>, from: Option<Epoch>) {
        let Some(seat) = &self.seat else { return };
        let Part { uuid, address, .. } = &seat.part;
        let input = match operations::take_over(&*self.metadata, seat.position, from, *uuid, address).await {
            Ok(claimed) => {
                seat.said.set(false);
                claimed.map_or(Input::Lost, Input::Claimed)
            }
            Err(error) => {
                self.no_metadata(seat, &error);
                Input::Away
            }
        };
        self.stand(input);
    }

    /// Starts the cores of a claim that was made, with the position's shards as nobody else may change them any more.
    async fn lead(self: Rc<Self>, epoch: Epoch) {
        let Some(seat) = &self.seat else { return };
        let claimed = loop {
            match operations::tree(&*self.metadata).await {
                Ok(tree) => break Claimed::by(&tree, seat.position),
                Err(error) => self.no_metadata(seat, &error),
            }
            tokio::time::sleep(ASK_AGAIN).await;
        };
        // Meanwhile it may have been claimed again, by this process or another.
        if seat.standby.borrow().holds() != Some(epoch) {
            return;
        }
        if let Some(links) = &self.links {
            let replicas = claimed.shards.iter().flat_map(|led| &led.replicas);
            replicas.for_each(|replica| links.reach(Peer::Replica(*replica)));
        }
        let (position, uuid) = (seat.position, seat.part.uuid);
        let replicas: Vec<_> = claimed.shards.iter().map(|led| (led.shard, led.replicas.clone())).collect();
        self.engine.borrow_mut().lead(self.now(), Incarnation { position, epoch, uuid }, claimed);
        for (shard, replicas) in replicas {
            self.engine.borrow_mut().set_replicas(shard, replicas);
        }
        self.run();
    }

    /// The metadata did not do what was asked. It is asked again; but where that cannot help, a process that has not
    /// served yet does not start.
    fn no_metadata(&self, seat: &Seat, error: &OperationError) {
        let may_come_back = matches!(
            error,
            OperationError::Read(ReadError::Unavailable { .. })
                | OperationError::Commit(
                    CommitError::Unavailable { .. } | CommitError::Unknown { .. } | CommitError::Refused { .. }
                )
        );
        let position = seat.position;
        if !seat.said.replace(true) {
            tracing::warn!(%position, %error, "the position cannot be claimed, or is not known to be: trying again");
        }
        // A store in this process that failed stays as it is until the process is started again.
        let elsewhere = self.links.is_some() && self.kept.is_none();
        if !(may_come_back && elsewhere) {
            self.state.send_if_modified(|state| {
                let starting = *state == State::Starting;
                if starting {
                    *state = State::Failed(error.to_string());
                }
                starting
            });
        }
    }

    fn beat(self: &Rc<Self>, seat: &Seat, epoch: Epoch, address: String) {
        let Some(heart) = &seat.heart else { return };
        let mut beating = heart.beating.borrow_mut();
        if beating.as_ref().is_none_or(|beating| beating.epoch != epoch) {
            let due = Rc::new(Notify::new());
            let task = spawn_local(Rc::clone(self).keep_beating(epoch, address, Rc::clone(&due)));
            *beating = Some(Beating { epoch, due, task });
        }
        if let Some(beating) = &*beating {
            beating.due.notify_one();
        }
    }

    /// Sends a heartbeat whenever one is due, over one connection as long as that is good.
    async fn keep_beating(self: Rc<Self>, epoch: Epoch, address: String, due: Rc<Notify>) {
        let Some(Seat { heart: Some(heart), part, .. }) = &self.seat else { return };
        let patience = Duration::from_micros(part.detect_micros);
        let hello = Hello { version: wire::VERSION, cluster: heart.cluster, role: Role::Client };
        loop {
            due.notified().await;
            let dialed = timeout(patience, heart.transport.dial(&address, &hello)).await;
            // It is tried again with the next heartbeat; in silence, as whoever is away for long is replaced.
            let Ok(Ok(Connection { mut sender, mut receiver, .. })) = dialed else { continue };
            // The one that was due goes over it.
            due.notify_one();
            let (mut id, mut missed, mut answers) = (0, 0, Vec::new());
            loop {
                tokio::select! {
                    () = due.notified() => {
                        if missed == MISSED {
                            due.notify_one();
                            break;
                        }
                        (id, missed) = (id + 1, missed + 1);
                        if sender.send(&mut vec![Request::Ping { id }]).await.is_err() {
                            break;
                        }
                    }
                    more = receiver.recv(&mut answers) => {
                        if !matches!(more, Ok(true)) {
                            break;
                        }
                        for answer in answers.drain(..) {
                            if let Answer::Pong { holder, .. } = answer {
                                missed = 0;
                                // One that runs but does not hold the position is no holder.
                                if holder {
                                    self.stand(Input::Answered(epoch));
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

impl Seat {
    /// No more heartbeats until one is due.
    fn still(&self) {
        if let Some(heart) = &self.heart {
            heart.beating.take();
        }
    }
}
