//! What a client knows and decides, without a socket, a clock or chance.
//!
//! [`Core`] is told what the user wants, what nodes answered, when a connection to one came and went, and what time it
//! is; it says which nodes it wants to be connected to ([`Core::wanted_nodes`]), what to send to each
//! ([`Core::take_requests`]), what is finished ([`Core::take_outcomes`]), and when it wants to be called again
//! ([`Core::next_deadline`]). It relies on its caller to have one connection to a node at a time, to send what it gave
//! out in that order over it, and to tell it of its end before anything of the next; and on members to
//! refuse each sending of an append at most once (numbers may be told as often as they like). In return every
//! append, call and subscription that went in comes out exactly once with an outcome, an append that is reported done
//! has the number that all members of a view agree on, and an append is never put under a second token while the first
//! may still count.
//!
//! `A`, `C` and `S` are the caller's own handles for appends, calls and subscriptions; the core hands them back.

mod backoff;
mod calls;
mod followers;
mod merge;
pub mod nearest;
mod nodes;
mod session;
mod subscriptions;
mod window;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
use uuid::Uuid;

use flexlog_protocol::api::{Answer, AppendRefusal, ColorInfo, Failure, Request, RequestId, RetentionChange};
use flexlog_protocol::{Color, Record, SeqNum, ShardId, Tag, Time};

pub use calls::CallFailure;
pub use followers::MIN_PART_WINDOW;
pub use nodes::{NodeId, To};
pub use subscriptions::{Delivery, Wanted};

use calls::Calls;
use followers::Followers;
use nodes::Paths;
use session::ShardSession;
pub use window::Job;

/// The most bytes of records that a shard's open appends may have together. One append more than that waits alone.
pub const MAX_OPEN_BYTES: u64 = 32 << 20;

/// Why an append has no number. What is not marked *unknown* was not appended and never will be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AppendFailure {
    /// Every member's storage is full.
    Full,
    /// Every member refused it, for good.
    Refused(AppendRefusal),
    /// There is no session to append in.
    NoSession(Failure),
    /// The deadline passed before it was sent to anyone.
    NotSent,
    /// The deadline passed, and every member had refused it every time, at last like this.
    NotTaken(AppendRefusal),
    /// *Unknown*: the deadline passed after it was sent; it may have been appended, or may still be.
    Deadline,
    /// *Unknown*: its session expired after it was sent; it may have been appended.
    SessionExpired,
    /// *Unknown*: it was sent more than once, and in the end every member refused it like this.
    RefusedLater(AppendRefusal),
}

impl AppendFailure {
    /// Whether the records may be in the log all the same.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::Deadline | Self::SessionExpired | Self::RefusedLater(_))
    }
}

/// Appends that are finished: whose, and the first number.
pub type AppendOutcomes<A> = Vec<(A, Result<SeqNum, AppendFailure>)>;

/// What is finished, or has come.
#[derive(Debug)]
pub struct Outcomes<A, C, S> {
    /// Appends.
    pub appends: AppendOutcomes<A>,
    /// Calls, with the node's answer.
    pub calls: Vec<(C, Result<Answer, CallFailure>)>,
    /// What subscriptions got, in order.
    pub deliveries: Vec<(S, Delivery)>,
}

impl<A, C, S> Default for Outcomes<A, C, S> {
    fn default() -> Self {
        Self { appends: Vec::new(), calls: Vec::new(), deliveries: Vec::new() }
    }
}

impl<A, C, S> Outcomes<A, C, S> {
    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.appends.is_empty() && self.calls.is_empty() && self.deliveries.is_empty()
    }
}

/// How long the core's own questions may take, in microseconds.
const LOOKUP_MICROS: u64 = 10_000_000;

/// The state of one client towards a cluster.
#[derive(Debug)]
pub struct Core<A, C, S> {
    /// Drawn once by the caller; nonces and jitter come from it.
    seed: Uuid,
    nonces: u128,
    next_id: RequestId,
    paths: Paths,
    sessions: FxHashMap<ShardId, ShardSession<A>>,
    calls: Calls<C>,
    followers: Followers<S>,
    outcomes: Outcomes<A, C, S>,
    /// Nodes that were silent until something's deadline.
    silent: Vec<NodeId>,
    /// Faults that the model check must find.
    #[cfg(test)]
    one_answer_is_enough: bool,
    #[cfg(test)]
    old_refusals_count: bool,
}

impl<A, C, S: Clone> Core<A, C, S> {
    /// A client that has done nothing yet, of the cluster that the nodes at these addresses, at least one, belong to.
    /// `seed` must be drawn at random: sessions are named by it.
    #[must_use]
    pub fn new(seed: Uuid, homes: &[String]) -> Self {
        Self {
            seed,
            nonces: 0,
            next_id: 1,
            paths: Paths::new(seed, homes),
            sessions: FxHashMap::default(),
            calls: Calls::new(seed),
            followers: Followers::new(seed),
            outcomes: Outcomes::default(),
            silent: Vec::new(),
            #[cfg(test)]
            one_answer_is_enough: false,
            #[cfg(test)]
            old_refusals_count: false,
        }
    }

    /// Takes in where the shards of a color are, as `node` says. [`Core::answer`] does so by itself; appends and reads of
    /// a shard need it.
    pub fn learn(&mut self, node: NodeId, info: &ColorInfo) {
        let mut news = false;
        for shard in &info.shards {
            if self.paths.learn(node, shard, &info.name) {
                news = true;
                if let (Some(session), Some(place)) =
                    (self.sessions.get_mut(&shard.shard), self.paths.place(shard.shard))
                {
                    session.moved(place);
                }
            }
        }
        if news {
            self.steer();
        }
    }

    /// Whether an append of `bytes` to this shard may be submitted now: its window and its bytes have space.
    #[must_use]
    pub fn has_room(&self, shard: ShardId, bytes: u64) -> bool {
        self.sessions.get(&shard).is_none_or(|session| session.has_room(bytes))
    }

    /// Appends records under one token. The caller has seen to it that there is room ([`Core::has_room`]), that the
    /// records keep the bounds of an append, and that it is known where the shard is: without that nothing is taken, and
    /// the job is dropped.
    pub fn submit(&mut self, shard: ShardId, job: Job<A>) {
        let session = match self.sessions.entry(shard) {
            Entry::Occupied(session) => session.into_mut(),
            Entry::Vacant(free) => {
                let Some(place) = self.paths.place(shard) else { return };
                let session = ShardSession::new(shard, place, self.seed);
                #[cfg(test)]
                let session = session.with_faults(self.one_answer_is_enough, self.old_refusals_count);
                free.insert(session)
            }
        };
        session.submit(job);
        Self::set_going(session, &mut self.paths, self.seed, &mut self.nonces, &mut self.next_id);
    }

    /// Sees to it that a session is opened if it must be, and wakes the nodes that it has something for.
    fn set_going(
        session: &mut ShardSession<A>,
        paths: &mut Paths,
        seed: Uuid,
        nonces: &mut u128,
        next_id: &mut RequestId,
    ) {
        if session.wants_opening() {
            *nonces += 1;
            // The seed has 122 random bits; counting up from it keeps one client's nonces apart.
            session.open_with(*next_id, Uuid::from_u128(seed.as_u128().wrapping_add(*nonces)));
            *next_id += 1;
        }
        session.wake(paths);
    }

    fn set_all_going(&mut self) {
        for session in self.sessions.values_mut() {
            Self::set_going(session, &mut self.paths, self.seed, &mut self.nonces, &mut self.next_id);
        }
    }

    /// How many appends are not finished.
    #[must_use]
    pub fn open_appends(&self) -> usize {
        self.sessions.values().map(ShardSession::open).sum()
    }

    /// Ends the sessions that have nothing open and a member at `node`: what to send there for that goes to the end of
    /// `into`. Nothing while there is no connection to it; then they stay, and are closed at the shard once they are idle.
    pub fn close_sessions(&mut self, node: NodeId, into: &mut Vec<Request>) {
        if self.paths.nodes.is_up(node) {
            into.extend(self.sessions.values_mut().filter_map(|session| session.close(node)));
        }
    }

    /// Asks something; `request` makes the question from the id it is given.
    pub fn call(&mut self, deadline: Time, to: To, waiter: C, request: impl FnOnce(RequestId) -> Request) {
        let id = self.fresh_id();
        self.calls.ask(id, request(id), to, deadline, Some(waiter), &mut self.paths);
    }

    /// Begins a subscription to a color on these shards, at least one, with room for `window` bytes, or
    /// [`MIN_PART_WINDOW`] for each of several shards if that is more.
    pub fn subscribe(&mut self, wanted: &Wanted, shards: &[ShardId], window: u64, handle: S) -> RequestId {
        let ids: Vec<_> = shards.iter().map(|_| self.fresh_id()).collect();
        let name = ids.first().copied().unwrap_or_default();
        self.followers.begin(ids, wanted, shards, window, handle, &mut self.paths);
        name
    }

    /// The user has taken deliveries of this cost; the node may send as much again.
    pub fn consumed(&mut self, subscription: RequestId, bytes: u64) {
        self.followers.consumed(subscription, bytes, &mut self.paths);
    }

    /// Ends a subscription.
    pub fn unsubscribe(&mut self, subscription: RequestId) {
        self.followers.end(subscription, &mut self.paths);
    }

    /// A new connection to `node` is there; the one before it is gone.
    pub fn connected(&mut self, node: NodeId) {
        self.paths.connected(node);
        self.steer();
    }

    /// The connection to `node` is gone.
    pub fn disconnected(&mut self, node: NodeId) {
        self.paths.away(node);
        for session in self.sessions.values_mut() {
            session.disconnected(node, &mut self.outcomes.appends);
        }
        self.calls.disconnected(node);
        self.followers.disconnected(node);
        self.steer();
    }

    /// There is still no connection to `node`: an attempt failed.
    pub fn unreachable(&mut self, node: NodeId) {
        self.paths.away(node);
        self.steer();
    }

    /// Some node came, went or moved: what waits goes where it can.
    fn steer(&mut self) {
        self.calls.steer(&mut self.paths);
        self.followers.steer(&mut self.paths);
        self.set_all_going();
    }

    /// `node` said this, over the connection in force.
    pub fn answer(&mut self, now: Time, node: NodeId, answer: Answer) {
        match answer {
            Answer::Appended(appended) => {
                for run in &appended.runs {
                    if let Some(session) = self.sessions.get_mut(&run.token.shard) {
                        session.appended(&appended, run, &mut self.outcomes.appends);
                        session.wake(&mut self.paths);
                    }
                }
                if let Some(run) = appended.runs.first() {
                    self.paths.heard_of(run.token.shard, &appended.view);
                }
            }
            Answer::AppendRefused { token, member, why } => {
                if let Some(session) = self.sessions.get_mut(&token.shard) {
                    session.refused(now, token, member, why, &mut self.outcomes.appends);
                    Self::set_going(session, &mut self.paths, self.seed, &mut self.nonces, &mut self.next_id);
                }
            }
            // Whoever holds the connection ends it; there is nothing to know here.
            Answer::Closing { .. } => {}
            other => {
                let Some(id) = id_of(&other) else { return };
                if let Answer::Color { info, .. } = &other {
                    self.learn(node, info);
                }
                let opening = self.sessions.values_mut().find(|session| session.is_opening(id));
                if let Some(session) = opening {
                    session.opening_answered(now, node, other, &mut self.paths, &mut self.outcomes.appends);
                    Self::set_going(session, &mut self.paths, self.seed, &mut self.nonces, &mut self.next_id);
                } else if self.followers.has(id) {
                    let deliveries = &mut self.outcomes.deliveries;
                    self.followers.answer(now, node, id, other, &mut self.paths, deliveries);
                } else {
                    self.calls.answer(now, node, id, other, &mut self.paths, &mut self.outcomes.calls);
                }
            }
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        for session in self.sessions.values_mut() {
            if session.tick(now, &mut self.paths, &mut self.outcomes.appends) {
                self.silent.extend(session.nodes());
            }
        }
        self.set_all_going();
        self.calls.tick(now, &mut self.paths, &mut self.silent, &mut self.outcomes.calls);
        self.followers.tick(now, &mut self.paths);
        if let Some(name) = self.paths.take_stale(now) {
            let (id, retention) = (self.fresh_id(), RetentionChange::default());
            let request = Request::Lookup { id, name, create: None, retention };
            self.calls.ask(id, request, To::Home, now.after(LOOKUP_MICROS), None, &mut self.paths);
        }
        if self.paths.is_sweep_due(now) {
            let (sessions, calls, followers) = (&self.sessions, &self.calls, &self.followers);
            let needs = |node| {
                calls.needs(node) || followers.needs(node) || sessions.values().any(|session| session.needs(node))
            };
            self.paths.sweep(now, needs);
        }
    }

    /// When [`Core::tick`] is to be called next, if nothing else happens. May be too early, never too late.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let sessions = self.sessions.values().filter_map(ShardSession::next_deadline);
        let others = [self.calls.next_deadline(), self.followers.next_deadline(), self.paths.next_deadline()];
        sessions.chain(others.into_iter().flatten()).min()
    }

    /// The nodes that are to be connected to, and their addresses. Others need not be any more.
    pub fn wanted_nodes(&self) -> impl Iterator<Item = (NodeId, &str)> {
        self.paths.nodes.wanted()
    }

    /// Whether [`Core::wanted_nodes`] has changed since this was called last.
    pub fn take_wanted_changed(&mut self) -> bool {
        self.paths.nodes.take_changed()
    }

    /// The nodes that there may be something to send to since this was called last, at the end of `into`.
    pub fn take_woken(&mut self, into: &mut Vec<NodeId>) {
        self.paths.nodes.take_woken(into);
    }

    /// Nodes that were asked something and may have said nothing until its deadline, since this was called last.
    pub fn take_silent(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.silent)
    }

    /// What is to be sent over the connection to `node`, in order, at the end of `into`. Nothing while there is none.
    pub fn take_requests(&mut self, now: Time, node: NodeId, into: &mut Vec<Request>) {
        if !self.paths.nodes.is_up(node) {
            return;
        }
        for session in self.sessions.values_mut() {
            session.take_requests(now, node, &mut self.paths, into);
        }
        self.calls.take_requests(node, into);
        self.followers.take_requests(node, into);
    }

    /// What is finished, or has come, since this was called last.
    pub fn take_outcomes(&mut self, into: &mut Outcomes<A, C, S>) {
        into.appends.append(&mut self.outcomes.appends);
        into.calls.append(&mut self.outcomes.calls);
        into.deliveries.append(&mut self.outcomes.deliveries);
    }

    /// The handles of all subscriptions, where the core is of no use any more.
    pub fn into_subscriptions(self) -> impl Iterator<Item = S> {
        self.followers.into_handles()
    }

    fn fresh_id(&mut self) -> RequestId {
        let id = self.next_id;
        self.next_id += 1;
        id
    }
}

/// The request that an answer names.
fn id_of(answer: &Answer) -> Option<RequestId> {
    match answer {
        Answer::Appended(_) | Answer::AppendRefused { .. } | Answer::Closing { .. } => None,
        Answer::Color { id, .. }
        | Answer::Colors { id, .. }
        | Answer::Status { id, .. }
        | Answer::Pong { id, .. }
        | Answer::SessionOpened { id, .. }
        | Answer::Record { id, .. }
        | Answer::Hole { id }
        | Answer::Trimmed { id, .. }
        | Answer::NotYet { id, .. }
        | Answer::NothingBefore { id }
        | Answer::Elsewhere { id }
        | Answer::Tail { id, .. }
        | Answer::TrimDone { id, .. }
        | Answer::Delivered { id, .. }
        | Answer::Failed { id, .. } => Some(*id),
    }
}

impl Wanted {
    /// All records of `color` from `from` on.
    #[must_use]
    pub fn all(color: Color, from: SeqNum) -> Self {
        Self { color, tag: None::<Tag>, from }
    }
}

/// How many bytes an append's records take of a shard's [`MAX_OPEN_BYTES`].
#[must_use]
pub fn open_cost(records: &[Record]) -> u64 {
    records.iter().map(|record| record.encoded_len() as u64).sum()
}
