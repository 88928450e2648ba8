//! One connection to the process that keeps the metadata, from its first words to its break.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flexlog_protocol::net::{Connection, NetError};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use uuid::Uuid;

use super::message::{MetadataAnswer, MetadataRequest, Question, Reply};
use super::{AskingConnection, MAX_IN_FLIGHT, MAX_WATCHES};

/// Requests that may wait to be sent: as many as are under way, and a beginning, an event and an end of each watch.
const MAX_WAITING: usize = MAX_IN_FLIGHT + 3 * MAX_WATCHES;
/// The request that asks whether the other side is there. No other has this id.
const PING: u64 = 0;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Lost {
    /// The request was not sent, and never will be.
    NotSent(String),
    /// It may have been sent.
    InDoubt(String),
}

impl Lost {
    pub(super) fn why(self) -> String {
        match self {
            Self::NotSent(why) | Self::InDoubt(why) => why,
        }
    }
}

/// The asking half. The connection ends when the last one is dropped.
#[derive(Debug)]
pub(super) struct Link {
    outbox: mpsc::Sender<MetadataRequest>,
    shared: Arc<Shared>,
    next_id: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Told when the connection is to end.
    end: Notify,
}

#[derive(Debug)]
enum State {
    /// Who waits for an answer.
    Open(HashMap<u64, oneshot::Sender<Reply>>),
    /// Why.
    Closed(String),
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets all who wait know that nothing comes any more. The first reason stays.
    fn close(&self, why: String) {
        let mut state = self.state();
        if matches!(*state, State::Open(_)) {
            *state = State::Closed(why);
        }
        drop(state);
        self.end.notify_one();
    }

    fn settle(&self, answer: MetadataAnswer) {
        if let State::Open(waiting) = &mut *self.state()
            && let Some(who) = waiting.remove(&answer.id)
        {
            // Nobody waits any more where the caller was dropped.
            let _ = who.send(answer.reply);
        }
    }

    fn is_waited_for(&self) -> bool {
        matches!(&*self.state(), State::Open(waiting) if !waiting.is_empty())
    }

    fn why(&self) -> String {
        match &*self.state() {
            State::Open(_) => "the connection is being closed".to_owned(),
            State::Closed(why) => why.clone(),
        }
    }
}

impl Link {
    /// Says the first words over a new connection, and waits for their answer: from then on no commit of an earlier
    /// connection of the same `client` is made any more.
    ///
    /// A connection over which nothing comes for twice `silence`, although somebody waits, is taken for broken.
    pub(super) async fn begin(
        mut connection: AskingConnection,
        client: Uuid,
        dial: u64,
        silence: Duration,
    ) -> Result<Self, NetError> {
        let first = MetadataRequest { id: PING, question: Question::Begin { client, dial } };
        connection.sender.send(&mut vec![first]).await?;
        let mut come = Vec::new();
        if !connection.receiver.recv(&mut come).await? {
            return Err(NetError::Closed { peer: connection.peer });
        }
        // Nothing else was asked, so nothing else can have been answered.
        let (outbox, waiting) = mpsc::channel(MAX_WAITING);
        let shared = Arc::new(Shared { state: Mutex::new(State::Open(HashMap::new())), end: Notify::new() });
        tokio::spawn(run(connection, waiting, outbox.downgrade(), Arc::clone(&shared), silence));
        Ok(Self { outbox, shared, next_id: AtomicU64::new(PING + 1) })
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(*self.shared.state(), State::Open(_))
    }

    /// Ends the connection. Nobody is answered by it from here.
    pub(super) fn close(&self, why: &str) {
        self.shared.close(why.to_owned());
    }

    /// An id that no other request of this connection has.
    pub(super) fn fresh_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request. Dropping the future before it is done sends nothing.
    pub(super) async fn ask(&self, id: u64, question: Question) -> Result<oneshot::Receiver<Reply>, Lost> {
        let place = self.outbox.reserve().await.map_err(|_| Lost::NotSent(self.shared.why()))?;
        let (who, answer) = oneshot::channel();
        match &mut *self.shared.state() {
            State::Closed(why) => return Err(Lost::NotSent(why.clone())),
            State::Open(waiting) => waiting.insert(id, who),
        };
        place.send(MetadataRequest { id, question });
        Ok(answer)
    }

    /// Waits for the answer to a request; there is none after a break.
    pub(super) async fn answer(&self, answer: &mut oneshot::Receiver<Reply>) -> Result<Reply, Lost> {
        answer.await.map_err(|_| Lost::InDoubt(self.shared.why()))
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn call(&self, id: u64, question: Question, deadline: Instant) -> Result<Reply, Lost> {
        let late = || "it did not answer in time".to_owned();
        let asked = timeout_at(deadline, self.ask(id, question)).await;
        let mut answer = asked.unwrap_or_else(|_| Err(Lost::NotSent(late())))?;
        let answered = timeout_at(deadline, self.answer(&mut answer)).await;
        if answered.is_err()
            && let State::Open(waiting) = &mut *self.shared.state()
        {
            waiting.remove(&id);
        }
        answered.unwrap_or_else(|_| Err(Lost::InDoubt(late())))
    }

    /// Sends what needs no answer, if the connection is there at all.
    pub(super) fn tell(&self, question: Question) {
        // There is room, by the bounds on what waits; where there is none the other side has stopped reading.
        let _ = self.outbox.try_send(MetadataRequest { id: self.fresh_id(), question });
    }
}

/// Closes however the task ends: nobody must wait for what never comes.
struct Closing(Arc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close("the task of the connection was stopped".to_owned());
    }
}

async fn run(
    connection: AskingConnection,
    mut outbox: mpsc::Receiver<MetadataRequest>,
    to_outbox: mpsc::WeakSender<MetadataRequest>,
    shared: Arc<Shared>,
    silence: Duration,
) {
    let closing = Closing(Arc::clone(&shared));
    let Connection { mut sender, mut receiver, peer, .. } = connection;
    let write = async {
        let mut batch = Vec::new();
        while outbox.recv_many(&mut batch, MAX_WAITING).await > 0 {
            if let Err(error) = sender.send(&mut batch).await {
                return error.to_string();
            }
        }
        let _ = sender.finish().await;
        "nobody uses it any more".to_owned()
    };
    let read = async {
        let mut come = Vec::new();
        let mut pinged = false;
        loop {
            match timeout(silence, receiver.recv(&mut come)).await {
                Ok(Ok(true)) => {
                    pinged = false;
                    come.drain(..).for_each(|answer| shared.settle(answer));
                }
                Ok(Ok(false)) => return format!("the connection to {peer} was closed"),
                Ok(Err(error)) => return error.to_string(),
                Err(_) if !shared.is_waited_for() => pinged = false,
                Err(_) if pinged => return format!("{peer} has been silent for {} ms", 2 * silence.as_millis()),
                Err(_) => {
                    pinged = true;
                    if let Some(outbox) = to_outbox.upgrade() {
                        // Where there is no room it has stopped reading, and is found silent next time.
                        let _ = outbox.try_send(MetadataRequest { id: PING, question: Question::Ping });
                    }
                }
            }
        }
    };
    let why = tokio::select! {
        why = read => why,
        why = write => why,
        () = shared.end.notified() => return,
    };
    closing.0.close(why);
}
