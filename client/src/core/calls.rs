//! Questions that have one answer. All of them may be asked again, and are, over the next connection.

use rustc_hash::FxHashMap;
use uuid::Uuid;

use flexlog_protocol::Time;
use flexlog_protocol::api::{Answer, Failure, Request, RequestId};

use super::backoff::Backoff;

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
    deadline: Time,
    /// What the node was not ready for, last time.
    not_ready: Option<String>,
    waiter: C,
}

/// The open calls.
#[derive(Debug)]
pub(super) struct Calls<C> {
    open: FxHashMap<RequestId, Call<C>>,
    to_send: Vec<RequestId>,
    /// Asked again when the backoff is over.
    later: Vec<RequestId>,
    retry_at: Option<Time>,
    backoff: Backoff,
    /// No open call has a deadline before this.
    earliest: Time,
}

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

    pub(super) fn ask(&mut self, id: RequestId, request: Request, deadline: Time, waiter: C) {
        self.open.insert(id, Call { request, deadline, not_ready: None, waiter });
        self.to_send.push(id);
        self.earliest = self.earliest.min(deadline);
    }

    pub(super) fn ask_all_again(&mut self) {
        self.to_send = self.open.keys().copied().collect();
        self.to_send.sort_unstable();
        self.later.clear();
        self.retry_at = None;
        self.backoff.reset();
    }

    pub(super) fn answer(
        &mut self,
        now: Time,
        id: RequestId,
        answer: Answer,
        done: &mut Vec<(C, Result<Answer, CallFailure>)>,
    ) {
        if let Answer::Failed { why: Failure::NotReady(why), .. } = answer {
            if let Some(call) = self.open.get_mut(&id) {
                call.not_ready = Some(why);
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
            done.push((call.waiter, outcome));
        }
    }

    pub(super) fn tick(&mut self, now: Time, done: &mut Vec<(C, Result<Answer, CallFailure>)>) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.to_send.append(&mut self.later);
        }
        if self.open.is_empty() || now < self.earliest {
            return;
        }
        let late: Vec<_> = self.open.iter().filter(|(_, call)| call.deadline <= now).map(|(id, _)| *id).collect();
        for id in late {
            if let Some(call) = self.open.remove(&id) {
                done.push((call.waiter, Err(CallFailure::Deadline(call.not_ready))));
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

    pub(super) fn take_requests(&mut self, into: &mut Vec<Request>) {
        let open = &self.open;
        into.extend(self.to_send.drain(..).filter_map(|id| open.get(&id).map(|call| call.request.clone())));
    }
}
