//! What the user's tasks and the connection task share: the core behind a lock that is held for moments only, and two
//! bells, one for the connection task and one for those who wait for room.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use flexlog_protocol::Time;
use flexlog_protocol::api::{Answer, Hello, Request, RequestId, ShardInfo};
use flexlog_protocol::net::Connect;

use crate::core::{AppendFailure, CallFailure, Core, Job, Outcomes, Wanted, open_cost};
use crate::error::{CallError, NoAnswer};
use crate::subscription::Inbox;
use flexlog_protocol::{Color, Record, SeqNum};

pub(crate) type AppendResult = Result<SeqNum, AppendFailure>;
type AppendWaiter = oneshot::Sender<AppendResult>;
type CallWaiter = oneshot::Sender<Result<Answer, CallFailure>>;
type Finished = Outcomes<AppendWaiter, CallWaiter, Arc<Inbox>>;

/// How long things may take, and how much they may hold.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub deadline: Duration,
    pub append_deadline: Duration,
    pub subscription_window: u64,
}

struct State {
    core: Core<AppendWaiter, CallWaiter, Arc<Inbox>>,
    /// Why there is no connection.
    trouble: Option<String>,
    /// No user is left, or one closed the client: the task ends when the open appends have.
    abandoned: bool,
    stopped: bool,
}

pub(super) struct Shared {
    state: Mutex<State>,
    /// Rung when there may be something to send.
    pub bell: Notify,
    /// Rung when appends are finished, and when the task is.
    room: Notify,
    pub connector: Box<dyn Connect>,
    /// What is said on every connection after the first: names the cluster that the first one led to.
    pub hello: Hello,
    address: String,
    settings: Settings,
    start: Instant,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Shared {
    pub(super) fn new(seed: uuid::Uuid, connector: Box<dyn Connect>, hello: Hello, settings: Settings) -> Self {
        let state = State { core: Core::new(seed), trouble: None, abandoned: false, stopped: false };
        Self {
            state: Mutex::new(state),
            bell: Notify::new(),
            room: Notify::new(),
            address: connector.address(),
            connector,
            hello,
            settings,
            start: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Time {
        Time(micros(self.start.elapsed()))
    }

    /// When `time` is, for the runtime.
    pub(super) fn instant(&self, time: Time) -> Instant {
        // Further off than anyone waits.
        const DAY: u64 = 24 * 3600 * 1_000_000;
        let now = self.now();
        self.start + Duration::from_micros(time.0.min(now.after(DAY).0))
    }

    /// A connection is there.
    pub(super) fn connected(&self) {
        let mut state = self.state.lock();
        state.trouble = None;
        state.core.connected();
    }

    /// The connection is gone.
    pub(super) fn disconnected(&self, why: String) {
        let finished = {
            let mut state = self.state.lock();
            state.trouble = Some(why);
            state.core.disconnected();
            take(&mut state)
        };
        self.hand_out(finished);
    }

    /// There is still no connection.
    pub(super) fn still_disconnected(&self, why: String) {
        self.state.lock().trouble = Some(why);
    }

    /// What is to be sent, into `outbox`, and when to come back. `None`: nobody is left, and nothing is open, so these are
    /// the last words.
    pub(super) fn collect(&self, outbox: &mut Vec<Request>) -> Option<Time> {
        let mut state = self.state.lock();
        state.core.take_requests(outbox);
        if state.abandoned && state.core.open_appends() == 0 {
            state.core.close_sessions(outbox);
            return None;
        }
        Some(state.core.next_deadline().unwrap_or(Time(u64::MAX)))
    }

    /// Time has passed. Returns whether something that was sent ran out of it.
    pub(super) fn tick(&self) -> bool {
        let now = self.now();
        let finished = {
            let mut state = self.state.lock();
            state.core.tick(now);
            take(&mut state)
        };
        let late = finished.appends.iter().any(|(_, outcome)| *outcome == Err(AppendFailure::Deadline))
            || finished.calls.iter().any(|(_, outcome)| *outcome == Err(CallFailure::Deadline(None)));
        self.hand_out(finished);
        late
    }

    /// How long a node may say nothing, while something is asked of it, before its connection counts as broken.
    pub(super) fn patience(&self) -> Duration {
        self.settings.deadline.min(self.settings.append_deadline)
    }

    /// Takes in what the node said. Returns its last words, if these were they.
    pub(super) fn take_in(&self, answers: &mut Vec<Answer>) -> Option<String> {
        let now = self.now();
        let mut last_words = None;
        let finished = {
            let mut state = self.state.lock();
            for answer in answers.drain(..) {
                if let Answer::Closing { reason } = &answer {
                    last_words = Some(format!("{} closed the connection: {reason}", self.address));
                }
                state.core.answer(now, answer);
            }
            take(&mut state)
        };
        self.hand_out(finished);
        last_words
    }

    /// Wakes whoever waited for these. Nobody holds the lock meanwhile.
    fn hand_out(&self, finished: Finished) {
        let room = !finished.appends.is_empty();
        // A waiter that is gone does not want to know.
        for (waiter, outcome) in finished.appends {
            let _ = waiter.send(outcome);
        }
        for (waiter, outcome) in finished.calls {
            let _ = waiter.send(outcome);
        }
        for (inbox, delivery) in finished.deliveries {
            inbox.put(delivery);
        }
        if room {
            self.room.notify_waiters();
        }
    }

    /// The task ends: nobody may wait for it any more.
    pub(super) fn stop(&self) {
        let core = {
            let mut state = self.state.lock();
            state.stopped = true;
            std::mem::replace(&mut state.core, Core::new(uuid::Uuid::nil()))
        };
        // Dropping the waiters tells those who hold the other ends.
        core.into_subscriptions().for_each(|inbox| inbox.stop());
        self.room.notify_waiters();
    }
}

fn take(state: &mut State) -> Finished {
    let mut finished = Finished::default();
    state.core.take_outcomes(&mut finished);
    finished
}

/// The end of an append that its user waits at.
pub(crate) type Waiting = oneshot::Receiver<AppendResult>;

/// A user's way to the connection task; the task ends some time after the last one is gone.
pub(crate) struct Handle {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("address", &self.shared.address).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.state.lock().abandoned = true;
        self.shared.bell.notify_one();
    }
}

impl Handle {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    pub(crate) fn address(&self) -> String {
        self.shared.address.clone()
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Why an append or a call had no outcome in its time.
    pub(crate) fn no_answer(&self, after: Duration, why: Option<String>) -> NoAnswer {
        let trouble = why.or_else(|| self.shared.state.lock().trouble.clone());
        NoAnswer { address: self.address(), after, trouble }
    }

    /// Sees the open appends through, then has the task leave, and waits until it has. Nothing new is taken from here on.
    pub(crate) async fn close(&self) {
        let shared = &*self.shared;
        shared.state.lock().abandoned = true;
        shared.bell.notify_one();
        // Those who wait for room need not any more.
        shared.room.notify_waiters();
        loop {
            let mut rung = std::pin::pin!(shared.room.notified());
            rung.as_mut().enable();
            if shared.state.lock().stopped {
                return;
            }
            rung.await;
        }
    }

    /// Submits an append that keeps its bounds, as soon as there is room. `None`: the task has stopped. An error: there
    /// was no room until the deadline.
    pub(crate) async fn submit(
        &self,
        shard: &ShardInfo,
        color: Color,
        records: Vec<Record>,
    ) -> Option<Result<Waiting, AppendFailure>> {
        let shared = &*self.shared;
        let deadline = shared.now().after(micros(shared.settings.append_deadline));
        let bytes = open_cost(&records);
        let mut records = Some(records);
        let mut try_now = || {
            let mut state = shared.state.lock();
            if state.stopped || state.abandoned {
                return Some(None);
            }
            if !state.core.has_room(shard.shard, bytes) {
                return None;
            }
            let records = records.take()?;
            let (waiter, waiting) = oneshot::channel();
            state.core.submit(shard, Job { color, records, deadline, waiter });
            drop(state);
            shared.bell.notify_one();
            Some(Some(Ok(waiting)))
        };
        loop {
            if let Some(done) = try_now() {
                return done;
            }
            let mut room = std::pin::pin!(shared.room.notified());
            // From here on no bell is missed.
            room.as_mut().enable();
            if let Some(done) = try_now() {
                return done;
            }
            if tokio::time::timeout_at(shared.instant(deadline), room).await.is_err() && shared.now() >= deadline {
                return Some(Err(AppendFailure::NotSent));
            }
        }
    }

    /// Asks the node.
    pub(crate) async fn call(&self, request: impl FnOnce(RequestId) -> Request) -> Result<Answer, CallError> {
        let (waiter, waiting) = oneshot::channel();
        let after = self.shared.settings.deadline;
        {
            let mut state = self.shared.state.lock();
            if state.stopped || state.abandoned {
                return Err(CallError::Stopped);
            }
            state.core.call(self.shared.now().after(micros(after)), waiter, request);
        }
        self.shared.bell.notify_one();
        match waiting.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(failure)) => Err(CallError::new(failure, |why| self.no_answer(after, why))),
            Err(_) => Err(CallError::Stopped),
        }
    }

    pub(crate) fn subscribe(&self, wanted: Wanted, inbox: &Arc<Inbox>) -> RequestId {
        let id = {
            let mut state = self.shared.state.lock();
            if state.stopped || state.abandoned {
                inbox.stop();
                return 0;
            }
            state.core.subscribe(wanted, self.shared.settings.subscription_window, Arc::clone(inbox))
        };
        self.shared.bell.notify_one();
        id
    }

    pub(crate) fn consumed(&self, subscription: RequestId, bytes: u64) {
        self.shared.state.lock().core.consumed(subscription, bytes);
        self.shared.bell.notify_one();
    }

    pub(crate) fn unsubscribe(&self, subscription: RequestId) {
        self.shared.state.lock().core.unsubscribe(subscription);
        self.shared.bell.notify_one();
    }
}
