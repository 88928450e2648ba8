//! What a client knows and decides, without a socket, a clock or chance.
//!
//! [`Core`] is told what the user wants, what the node answered, when a connection came and went, and what time it is;
//! it says what to send ([`Core::take_requests`]), what is finished ([`Core::take_outcomes`]), and when it wants to be
//! called again ([`Core::next_deadline`]). It relies on its caller to send what it gave out in that order over the
//! connection in force, and to tell it of the end of that connection before anything of the next; and on members to
//! refuse each sending of an append at most once (numbers may be told as often as they like). In return every
//! append, call and subscription that went in comes out exactly once with an outcome, an append that is reported done
//! has the number that all members of a view agree on, and an append is never put under a second token while the first
//! may still count.
//!
//! `A`, `C` and `S` are the caller's own handles for appends, calls and subscriptions; the core hands them back.

mod backoff;
mod calls;
mod session;
mod subscriptions;
mod window;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use rustc_hash::FxHashMap;
use uuid::Uuid;

use flexlog_protocol::api::{Answer, AppendRefusal, Failure, Request, RequestId, ShardInfo};
use flexlog_protocol::{Color, Record, SeqNum, ShardId, Tag, Time};

pub use calls::CallFailure;
pub use subscriptions::{Delivery, Wanted};

use calls::Calls;
use session::ShardSession;
use subscriptions::Subscriptions;
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

/// The state of one client towards one node.
#[derive(Debug)]
pub struct Core<A, C, S> {
    /// Drawn once by the caller; nonces and jitter come from it.
    seed: Uuid,
    nonces: u128,
    next_id: RequestId,
    connected: bool,
    sessions: FxHashMap<ShardId, ShardSession<A>>,
    calls: Calls<C>,
    subscriptions: Subscriptions<S>,
    outcomes: Outcomes<A, C, S>,
    /// A fault that the model check must find.
    #[cfg(test)]
    one_answer_is_enough: bool,
}

impl<A, C, S: Clone> Core<A, C, S> {
    /// A client that has done nothing yet. `seed` must be drawn at random: sessions are named by it.
    #[must_use]
    pub fn new(seed: Uuid) -> Self {
        Self {
            seed,
            nonces: 0,
            next_id: 1,
            connected: false,
            sessions: FxHashMap::default(),
            calls: Calls::new(seed),
            subscriptions: Subscriptions::new(seed),
            outcomes: Outcomes::default(),
            #[cfg(test)]
            one_answer_is_enough: false,
        }
    }

    /// Whether an append of `bytes` to this shard may be submitted now: its window and its bytes have space.
    #[must_use]
    pub fn has_room(&self, shard: ShardId, bytes: u64) -> bool {
        self.sessions.get(&shard).is_none_or(|session| session.has_room(bytes))
    }

    /// Appends records under one token. The caller has seen to it that there is room ([`Core::has_room`]) and that the
    /// records keep the bounds of an append.
    pub fn submit(&mut self, shard: &ShardInfo, job: Job<A>) {
        let session = self.sessions.entry(shard.shard).or_insert_with(|| {
            let session = ShardSession::new(shard.shard, shard.view.members.clone(), self.seed);
            #[cfg(test)]
            let session = session.with_fault(self.one_answer_is_enough);
            session
        });
        session.submit(job);
    }

    /// How many appends are not finished.
    #[must_use]
    pub fn open_appends(&self) -> usize {
        self.sessions.values().map(ShardSession::open).sum()
    }

    /// Ends the sessions that have nothing open: what to send for that goes to the end of `into`. Nothing while there is
    /// no connection; then they stay, and are closed at the shard once they are idle.
    pub fn close_sessions(&mut self, into: &mut Vec<Request>) {
        if self.connected {
            into.extend(self.sessions.values_mut().filter_map(ShardSession::close));
        }
    }

    /// Asks the node something; `request` makes the question from the id it is given.
    pub fn call(&mut self, deadline: Time, waiter: C, request: impl FnOnce(RequestId) -> Request) {
        let id = self.fresh_id();
        self.calls.ask(id, request(id), deadline, waiter);
    }

    /// Begins a subscription with room for `window` bytes.
    pub fn subscribe(&mut self, wanted: Wanted, window: u64, handle: S) -> RequestId {
        let id = self.fresh_id();
        self.subscriptions.begin(id, wanted, window, handle);
        id
    }

    /// The user has taken deliveries of this cost; the node may send as much again.
    pub fn consumed(&mut self, subscription: RequestId, bytes: u64) {
        self.subscriptions.consumed(subscription, bytes);
    }

    /// Ends a subscription.
    pub fn unsubscribe(&mut self, subscription: RequestId) {
        self.subscriptions.end(subscription, self.connected);
    }

    /// A new connection is there; the one before it is gone.
    pub fn connected(&mut self) {
        self.connected = true;
        self.calls.ask_all_again();
        self.subscriptions.begin_all_again();
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        self.connected = false;
        for session in self.sessions.values_mut() {
            session.disconnected(&mut self.outcomes.appends);
        }
    }

    /// The node said this, over the connection in force.
    pub fn answer(&mut self, now: Time, answer: Answer) {
        match answer {
            Answer::Appended(appended) => {
                for run in &appended.runs {
                    if let Some(session) = self.sessions.get_mut(&run.token.shard) {
                        session.appended(&appended, run, &mut self.outcomes.appends);
                    }
                }
            }
            Answer::AppendRefused { token, member, why } => {
                if let Some(session) = self.sessions.get_mut(&token.shard) {
                    session.refused(now, token, member, why, &mut self.outcomes.appends);
                }
            }
            // Whoever holds the connection ends it; there is nothing to know here.
            Answer::Closing { .. } => {}
            other => {
                let Some(id) = id_of(&other) else { return };
                let opening = self.sessions.values_mut().find(|session| session.is_opening(id));
                if let Some(session) = opening {
                    session.opening_answered(now, other, &mut self.outcomes.appends);
                } else if self.subscriptions.has(id) {
                    self.subscriptions.answer(now, id, other, &mut self.outcomes.deliveries);
                } else {
                    self.calls.answer(now, id, other, &mut self.outcomes.calls);
                }
            }
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        for session in self.sessions.values_mut() {
            session.tick(now, &mut self.outcomes.appends);
        }
        self.calls.tick(now, &mut self.outcomes.calls);
        self.subscriptions.tick(now);
    }

    /// When [`Core::tick`] is to be called next, if nothing else happens. May be too early, never too late.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let sessions = self.sessions.values().filter_map(ShardSession::next_deadline);
        sessions.chain(self.calls.next_deadline()).chain(self.subscriptions.next_deadline()).min()
    }

    /// What is to be sent over the connection in force, in order, at the end of `into`. Nothing while there is none.
    pub fn take_requests(&mut self, into: &mut Vec<Request>) {
        if !self.connected {
            return;
        }
        for session in self.sessions.values_mut() {
            if session.wants_opening() {
                self.nonces += 1;
                // The seed has 122 random bits; counting up from it keeps one client's nonces apart.
                let nonce = Uuid::from_u128(self.seed.as_u128().wrapping_add(self.nonces));
                let id = self.next_id;
                self.next_id += 1;
                session.open_with(id, nonce);
            }
            session.take_requests(into);
        }
        self.calls.take_requests(into);
        self.subscriptions.take_requests(into);
    }

    /// What is finished, or has come, since this was called last.
    pub fn take_outcomes(&mut self, into: &mut Outcomes<A, C, S>) {
        into.appends.append(&mut self.outcomes.appends);
        into.calls.append(&mut self.outcomes.calls);
        into.deliveries.append(&mut self.outcomes.deliveries);
    }

    /// The handles of all subscriptions, where the core is of no use any more.
    pub fn into_subscriptions(self) -> impl Iterator<Item = S> {
        self.subscriptions.into_handles()
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
