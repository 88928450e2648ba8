//! Questions that have one answer. All of them may be asked again, and are: over the next connection, or of another node
//! that can answer them.

use rustc_hash::FxHashMap;
use uuid::Uuid;

use flexlog_protocol::Time;
use flexlog_protocol::api::{Answer, Failure, Request, RequestId};

use super::backoff::Backoff;
use super::nodes::{NodeId, Paths, To};

/// The first and the longest wait before a node that is not ready is asked again, in microseconds.
const RETRY_MICROS: (u64, u64) = (2_000, 200_000);

/// Why a call has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallFailure {
    /// The node cannot do it.
    Failed(Failure),
    /// The deadline passed; if the node was not ready all the time, this is why.
    Deadline(Option<String>),
}

#[derive(Debug)]
struct Call<C> {
    request: Request,
    to: To,
    /// Whom it is asked of, and whether it was, over the connection in force.
    at: NodeId,
    asked: bool,
    deadline: Time,
    /// What the node was not ready for, last time.
    not_ready: Option<String>,
    /// `None`: the core itself.
    waiter: Option<C>,
}

/// The open calls.
#[derive(Debug)]
pub(super) struct Calls<C> {
    open: FxHashMap<RequestId, Call<C>>,
    /// By the node.
    to_send: Vec<Vec<RequestId>>,
    /// Asked again when the backoff is over.
    later: Vec<RequestId>,
    retry_at: Option<Time>,
    backoff: Backoff,
    /// No open call has a deadline before this.
    earliest: Time,
}

/// What became of calls.
pub(super) type CallOutcomes<C> = Vec<(C, Result<Answer, CallFailure>)>;

impl<C> Calls<C> {
    pub(super) fn new(seed: Uuid) -> Self {
        Self {
            open: FxHashMap::default(),
            to_send: Vec::new(),
            later: Vec::new(),
            retry_at: None,
            backoff: Backoff::new(RETRY_MICROS.0, RETRY_MICROS.1, seed),
            earliest: Time(u64::MAX),
        }
    }

    pub(super) fn ask(
        &mut self,
        id: RequestId,
        request: Request,
        to: To,
        deadline: Time,
        waiter: Option<C>,
        paths: &mut Paths,
    ) {
        let at = paths.pick(to);
        self.open.insert(id, Call { request, to, at, asked: false, deadline, not_ready: None, waiter });
        self.send_to(at, id);
        self.earliest = self.earliest.min(deadline);
    }

    fn send_to(&mut self, node: NodeId, id: RequestId) {
        let node = node.0 as usize;
        if self.to_send.len() <= node {
            self.to_send.resize_with(node + 1, Vec::new);
        }
        self.to_send[node].push(id);
    }

    /// The connection to this node is gone, and with it the answers.
    pub(super) fn disconnected(&mut self, node: NodeId) {
        for call in self.open.values_mut().filter(|call| call.at == node) {
            call.asked = false;
        }
        let open = &self.open;
        self.later.retain(|id| open.get(id).is_some_and(|call| call.at != node));
        if self.later.is_empty() {
            self.retry_at = None;
        }
        self.backoff.reset();
    }

    /// Some node came or went: what was not asked goes to whoever is to be asked now.
    pub(super) fn steer(&mut self, paths: &mut Paths) {
        self.to_send.iter_mut().for_each(Vec::clear);
        let waits = |(id, call): &(&RequestId, &Call<C>)| !call.asked && !self.later.contains(id);
        let mut waiting: Vec<_> = self.open.iter().filter(waits).map(|(id, call)| (*id, call.to)).collect();
        waiting.sort_unstable_by_key(|(id, _)| *id);
        for (id, to) in waiting {
            self.direct(id, to, paths);
        }
    }

    fn direct(&mut self, id: RequestId, to: To, paths: &mut Paths) {
        let at = paths.pick(to);
        if let Some(call) = self.open.get_mut(&id) {
            call.at = at;
            self.send_to(at, id);
        }
    }

    /// Whether something is asked of this node.
    pub(super) fn needs(&self, node: NodeId) -> bool {
        self.open.values().any(|call| call.at == node)
    }

    pub(super) fn answer(
        &mut self,
        now: Time,
        from: NodeId,
        id: RequestId,
        answer: Answer,
        paths: &mut Paths,
        done: &mut CallOutcomes<C>,
    ) {
        if let Answer::Failed { why: Failure::NotReady(why), .. } = answer {
            if let Some(call) = self.open.get_mut(&id)
                && call.at == from
            {
                call.not_ready = Some(why);
                call.asked = false;
                paths.move_on(call.to, from);
                if !self.later.contains(&id) {
                    self.later.push(id);
                }
                self.retry_at.get_or_insert_with(|| self.backoff.next(now));
            }
            return;
        }
        // One that is not there was given up, or was asked over two connections.
        if let Some(call) = self.open.remove(&id) {
            self.backoff.reset();
            let outcome = match answer {
                Answer::Failed { why, .. } => Err(CallFailure::Failed(why)),
                answer => Ok(answer),
            };
            done.extend(call.waiter.map(|waiter| (waiter, outcome)));
        }
    }

    /// Time has passed. Nodes that were silent until a deadline go to `silent`.
    pub(super) fn tick(&mut self, now: Time, paths: &mut Paths, silent: &mut Vec<NodeId>, done: &mut CallOutcomes<C>) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            for id in std::mem::take(&mut self.later) {
                if let Some(to) = self.open.get(&id).map(|call| call.to) {
                    self.direct(id, to, paths);
                }
            }
        }
        if self.open.is_empty() || now < self.earliest {
            return;
        }
        let late: Vec<_> = self.open.iter().filter(|(_, call)| call.deadline <= now).map(|(id, _)| *id).collect();
        for id in late {
            if let Some(call) = self.open.remove(&id) {
                if call.asked && call.not_ready.is_none() {
                    silent.push(call.at);
                }
                let outcome = Err(CallFailure::Deadline(call.not_ready));
                done.extend(call.waiter.map(|waiter| (waiter, outcome)));
            }
        }
        let open = &self.open;
        self.later.retain(|id| open.contains_key(id));
        if self.later.is_empty() {
            self.retry_at = None;
        }
        self.earliest = self.open.values().map(|call| call.deadline).min().unwrap_or(Time(u64::MAX));
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        let earliest = (!self.open.is_empty()).then_some(self.earliest);
        earliest.into_iter().chain(self.retry_at).min()
    }

    pub(super) fn take_requests(&mut self, node: NodeId, into: &mut Vec<Request>) {
        let Some(to_send) = self.to_send.get_mut(node.0 as usize) else { return };
        for id in to_send.drain(..) {
            if let Some(call) = self.open.get_mut(&id) {
                call.asked = true;
                into.push(call.request.clone());
            }
        }
    }
}
