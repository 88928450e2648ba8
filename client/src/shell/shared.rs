//! What the user's tasks, the connection tasks and their manager share: the core behind a lock that is held for moments
//! only, and bells: one for each connection task, one for the manager, and one for those who wait for room.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use flexlog_protocol::Time;
use flexlog_protocol::api::{Answer, Hello, Request, RequestId};
use flexlog_protocol::net::Connect;

use super::Dialer;
use crate::core::{AppendFailure, CallFailure, Core, Job, NodeId, Outcomes, To, Wanted, open_cost};
use crate::error::{CallError, NoAnswer};
use crate::subscription::Inbox;
use flexlog_protocol::{Color, Record, SeqNum, ShardId};

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

/// What the task that keeps a connection to one node is told.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Rung when there may be something to send, and with everything below.
    pub bell: Notify,
    /// Nothing needs the connection any more.
    dismissed: AtomicBool,
    /// The node may have been silent for too long.
    suspected: AtomicBool,
}

impl Link {
    /// Whether the node may have been silent for too long. Told once.
    pub(super) fn take_suspicion(&self) -> bool {
        self.suspected.swap(false, Ordering::Relaxed)
    }
}

struct State {
    core: Core<AppendWaiter, CallWaiter, Arc<Inbox>>,
    /// The connection tasks there are, by their nodes.
    links: Vec<Option<Arc<Link>>>,
    /// Why there is no connection to a node.
    troubles: Vec<(NodeId, String)>,
    /// When the manager lets time pass.
    armed: Time,
    woken: Vec<NodeId>,
    /// No user is left, or one closed the client: the tasks end when the open appends have.
    abandoned: bool,
    stopped: bool,
}

impl State {
    fn link(&self, node: NodeId) -> Option<&Arc<Link>> {
        self.links.get(node.0 as usize)?.as_ref()
    }

    fn is_over(&self) -> bool {
        self.abandoned && self.core.open_appends() == 0
    }
}

/// A connection task that is to be started.
pub(super) struct Start {
    pub node: NodeId,
    pub link: Arc<Link>,
    pub connector: Arc<dyn Connect>,
}

pub(super) struct Shared {
    state: Mutex<State>,
    /// Rung when the manager may have something to do.
    pub manager: Notify,
    /// Rung when appends are finished, and when the manager is.
    room: Notify,
    /// To the nodes that the user gave.
    homes: Vec<Arc<dyn Connect>>,
    /// To all others.
    dialer: Arc<dyn Dialer>,
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
    /// `answered` is the home that has a connection already; those before it could not be reached.
    pub(super) fn new(
        seed: uuid::Uuid,
        homes: Vec<Arc<dyn Connect>>,
        answered: NodeId,
        dialer: Arc<dyn Dialer>,
        hello: Hello,
        settings: Settings,
    ) -> Self {
        let addresses: Vec<_> = homes.iter().map(|home| home.address()).collect();
        let mut core = Core::new(seed, &addresses);
        (0..answered.0).map(NodeId).for_each(|node| core.unreachable(node));
        let state = State {
            core,
            links: Vec::new(),
            troubles: Vec::new(),
            armed: Time(u64::MAX),
            woken: Vec::new(),
            abandoned: false,
            stopped: false,
        };
        let address = addresses.get(answered.0 as usize).cloned().unwrap_or_default();
        Self {
            state: Mutex::new(state),
            manager: Notify::new(),
            room: Notify::new(),
            homes,
            dialer,
            address,
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

    /// Tells those who may have something to do, but for the task of `busy`, which looks anyway.
    fn ring(&self, state: &mut State, busy: Option<NodeId>) {
        let mut woken = std::mem::take(&mut state.woken);
        state.core.take_woken(&mut woken);
        for node in woken.drain(..).filter(|node| Some(*node) != busy) {
            if let Some(link) = state.link(node) {
                link.bell.notify_one();
            }
        }
        state.woken = woken;
        if state.core.take_wanted_changed() {
            self.manager.notify_one();
        }
    }

    /// Something must happen at that time.
    fn arm(&self, state: &mut State, deadline: Option<Time>) {
        if let Some(deadline) = deadline
            && deadline < state.armed
        {
            state.armed = deadline;
            self.manager.notify_one();
        }
    }

    /// After the core was told something by the task of `busy`, or by nobody who sends.
    fn told(&self, state: &mut State, busy: Option<NodeId>) -> Finished {
        let mut finished = Finished::default();
        state.core.take_outcomes(&mut finished);
        // Under the lock: what another task is told next must not overtake this.
        finished.deliveries.drain(..).for_each(|(inbox, delivery)| inbox.put(delivery));
        self.ring(state, busy);
        let deadline = state.core.next_deadline();
        self.arm(state, deadline);
        if state.is_over() {
            self.ring_all(state);
        }
        finished
    }

    fn ring_all(&self, state: &State) {
        state.links.iter().flatten().for_each(|link| link.bell.notify_one());
        self.manager.notify_one();
    }

    fn tell<T>(&self, busy: Option<NodeId>, what: impl FnOnce(&mut State) -> T) -> T {
        let (told, finished) = {
            let mut state = self.state.lock();
            let told = what(&mut state);
            let finished = self.told(&mut state, busy);
            (told, finished)
        };
        self.hand_out(finished);
        told
    }

    /// A connection to `node` is there.
    pub(super) fn connected(&self, node: NodeId) {
        self.tell(Some(node), |state| {
            state.troubles.retain(|(which, _)| *which != node);
            state.core.connected(node);
        });
    }

    /// The connection to `node` is gone.
    pub(super) fn disconnected(&self, node: NodeId, why: Option<String>) {
        self.tell(Some(node), |state| {
            state.troubles.extend(why.map(|why| (node, why)));
            state.core.disconnected(node);
        });
    }

    /// There is still no connection to `node`.
    pub(super) fn unreachable(&self, node: NodeId, why: String) {
        self.tell(Some(node), |state| {
            state.troubles.retain(|(which, _)| *which != node);
            state.troubles.push((node, why));
            state.core.unreachable(node);
        });
    }

    /// What is to be sent to `node`, into `outbox`. Returns whether these are the last words: nobody is left and nothing is
    /// open, or nothing needs this connection any more.
    pub(super) fn collect(&self, node: NodeId, outbox: &mut Vec<Request>) -> bool {
        let now = self.now();
        let mut state = self.state.lock();
        state.core.take_requests(now, node, outbox);
        if !outbox.is_empty() {
            let deadline = state.core.next_deadline();
            self.arm(&mut state, deadline);
        }
        if state.is_over() {
            state.core.close_sessions(node, outbox);
            return true;
        }
        Self::is_dismissed_in(&state, node)
    }

    fn is_dismissed_in(state: &State, node: NodeId) -> bool {
        state.link(node).is_none_or(|link| link.dismissed.load(Ordering::Relaxed))
    }

    /// Whether nothing needs a connection to `node` any more, while there is none.
    pub(super) fn is_dismissed(&self, node: NodeId) -> bool {
        let state = self.state.lock();
        state.is_over() || Self::is_dismissed_in(&state, node)
    }

    /// Looks which connections there are to be: those to make go to `start`, the others are dismissed. Returns when time
    /// is to pass next; `None`: nobody is left, and nothing is open.
    pub(super) fn plan(&self, start: &mut Vec<Start>) -> Option<Time> {
        let mut state = self.state.lock();
        if state.is_over() {
            self.ring_all(&state);
            return None;
        }
        let State { core, links, .. } = &mut *state;
        let mut unwanted = vec![true; links.len()];
        for (node, address) in core.wanted_nodes() {
            let index = node.0 as usize;
            if links.len() <= index {
                links.resize(index + 1, None);
            }
            if let Some(unwanted) = unwanted.get_mut(index) {
                *unwanted = false;
            }
            if links[index].is_none() {
                let link = Arc::new(Link::default());
                links[index] = Some(Arc::clone(&link));
                let connector = match self.homes.get(index) {
                    Some(home) => Arc::clone(home),
                    None => self.dialer.dial(address).into(),
                };
                start.push(Start { node, link, connector });
            }
        }
        for link in links.iter().zip(unwanted).filter(|(_, unwanted)| *unwanted).filter_map(|(link, _)| link.as_ref()) {
            link.dismissed.store(true, Ordering::Relaxed);
            link.bell.notify_one();
        }
        state.armed = state.core.next_deadline().unwrap_or(Time(u64::MAX));
        Some(state.armed)
    }

    /// The connection task of `node` has ended.
    pub(super) fn ended(&self, node: NodeId) {
        let mut state = self.state.lock();
        state.troubles.retain(|(which, _)| *which != node);
        if let Some(link) = state.links.get_mut(node.0 as usize) {
            *link = None;
        }
    }

    /// Time has passed.
    pub(super) fn tick(&self) {
        let now = self.now();
        self.tell(None, |state| {
            state.core.tick(now);
            for node in state.core.take_silent() {
                if let Some(link) = state.link(node) {
                    link.suspected.store(true, Ordering::Relaxed);
                    link.bell.notify_one();
                }
            }
        });
    }

    /// How long a node may say nothing, while something is asked of it, before its connection counts as broken.
    pub(super) fn patience(&self) -> Duration {
        self.settings.deadline.min(self.settings.append_deadline)
    }

    /// Takes in what `node` said. Returns its last words, if these were they.
    pub(super) fn take_in(&self, node: NodeId, peer: &str, answers: &mut Vec<Answer>) -> Option<String> {
        let now = self.now();
        self.tell(Some(node), |state| {
            let mut last_words = None;
            for answer in answers.drain(..) {
                if let Answer::Closing { reason } = &answer {
                    last_words = Some(format!("{peer} closed the connection: {reason}"));
                }
                state.core.answer(now, node, answer);
            }
            last_words
        })
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
        if room {
            self.room.notify_waiters();
        }
    }

    /// Nobody is left, or one does not want to go on.
    fn abandon(&self) {
        let mut state = self.state.lock();
        state.abandoned = true;
        self.ring_all(&state);
    }

    /// The manager ends: nobody may wait for it any more.
    pub(super) fn stop(&self) {
        let core = {
            let mut state = self.state.lock();
            state.stopped = true;
            std::mem::replace(&mut state.core, Core::new(uuid::Uuid::nil(), &[]))
        };
        // Dropping the waiters tells those who hold the other ends.
        core.into_subscriptions().for_each(|inbox| inbox.stop());
        self.room.notify_waiters();
    }
}

/// The end of an append that its user waits at.
pub(crate) type Waiting = oneshot::Receiver<AppendResult>;

/// The end of a call that its user waits at.
pub(crate) type Asked = oneshot::Receiver<Result<Answer, CallFailure>>;

/// A user's way to the connection tasks; they end some time after the last one is gone.
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
        self.shared.abandon();
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
        let trouble = why.or_else(|| {
            let state = self.shared.state.lock();
            let trouble = state.troubles.iter().min_by_key(|(node, _)| *node);
            trouble.map(|(_, why)| why.clone())
        });
        NoAnswer { address: self.address(), after, trouble }
    }

    /// Sees the open appends through, then has the task leave, and waits until it has. Nothing new is taken from here on.
    pub(crate) async fn close(&self) {
        let shared = &*self.shared;
        shared.abandon();
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

    /// Submits an append that keeps its bounds to one of `shards`, the first from the `start`th on that has room, as soon
    /// as one has. `None`: the task has stopped. An error: there
    /// was no room until the deadline.
    pub(crate) async fn submit(
        &self,
        shards: &[ShardId],
        start: usize,
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
            let (before, from) = shards.split_at(start % shards.len().max(1));
            let mut turns = from.iter().chain(before).copied();
            let shard = turns.find(|shard| state.core.has_room(*shard, bytes))?;
            let records = records.take()?;
            let (waiter, waiting) = oneshot::channel();
            state.core.submit(shard, Job { color, records, deadline, waiter });
            shared.ring(&mut state, None);
            shared.arm(&mut state, Some(deadline));
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

    /// When what begins now is to end.
    pub(crate) fn deadline(&self) -> Time {
        self.shared.now().after(micros(self.shared.settings.deadline))
    }

    /// Microseconds until then.
    pub(crate) fn left(&self, deadline: Time) -> u64 {
        deadline.0.saturating_sub(self.shared.now().0)
    }

    /// Asks something, within the usual time.
    pub(crate) async fn call(&self, to: To, request: impl FnOnce(RequestId) -> Request) -> Result<Answer, CallError> {
        let waiting = self.ask(self.deadline(), to, request)?;
        self.answer(waiting).await
    }

    /// Asks something.
    pub(crate) fn ask(
        &self,
        deadline: Time,
        to: To,
        request: impl FnOnce(RequestId) -> Request,
    ) -> Result<Asked, CallError> {
        let (waiter, waiting) = oneshot::channel();
        let mut state = self.shared.state.lock();
        if state.stopped || state.abandoned {
            return Err(CallError::Stopped);
        }
        state.core.call(deadline, to, waiter, request);
        self.shared.ring(&mut state, None);
        self.shared.arm(&mut state, Some(deadline));
        Ok(waiting)
    }

    /// Waits for the answer.
    pub(crate) async fn answer(&self, asked: Asked) -> Result<Answer, CallError> {
        match asked.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(failure)) => Err(CallError::new(failure, |why| self.no_answer(self.shared.settings.deadline, why))),
            Err(_) => Err(CallError::Stopped),
        }
    }

    pub(crate) fn subscribe(&self, wanted: &Wanted, shards: &[ShardId], inbox: &Arc<Inbox>) -> RequestId {
        let mut state = self.shared.state.lock();
        if state.stopped || state.abandoned {
            inbox.stop();
            return 0;
        }
        let window = self.shared.settings.subscription_window;
        let id = state.core.subscribe(wanted, shards, window, Arc::clone(inbox));
        self.shared.ring(&mut state, None);
        id
    }

    pub(crate) fn consumed(&self, subscription: RequestId, bytes: u64) {
        let mut state = self.shared.state.lock();
        state.core.consumed(subscription, bytes);
        self.shared.ring(&mut state, None);
    }

    pub(crate) fn unsubscribe(&self, subscription: RequestId) {
        let mut state = self.shared.state.lock();
        state.core.unsubscribe(subscription);
        self.shared.ring(&mut state, None);
    }
}
