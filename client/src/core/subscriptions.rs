//! Subscriptions: where each one is, and how much the node may still send.
//!
//! Each has a window of bytes. What was delivered and not taken yet, and what the node may still send, together never
//! exceed it by more than one record, so a slow user costs that much memory and no more. After a reconnect a subscription goes on
//! from the first number that did not come; numbers that come twice are passed over.

use rustc_hash::FxHashMap;
use uuid::Uuid;

use flexlog_protocol::api::{Answer, Failure, Request, RequestId, delivered_cost};
use flexlog_protocol::{Color, Record, SeqNum, Tag, Time};

use super::backoff::Backoff;

/// The first and the longest wait before a node that is not ready is asked again, in microseconds.
const RETRY_MICROS: (u64, u64) = (5_000, 500_000);

/// What a subscription is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The log.
    pub color: Color,
    /// Only records of this sub-stream.
    pub tag: Option<Tag>,
    /// Inclusive.
    pub from: SeqNum,
}

/// What a subscription got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// Records, in order; everything below `upto` has come now.
    Records {
        /// May be empty.
        records: Vec<(SeqNum, Record)>,
        /// Exclusive.
        upto: SeqNum,
    },
    /// What was there up to and including this number is gone; it goes on behind.
    Trimmed(SeqNum),
    /// It is over.
    Failed(Failure),
}

#[derive(Debug)]
struct Subscription<S> {
    /// `from` is the first number that did not come yet.
    wanted: Wanted,
    window: u64,
    /// Bytes that came and that the user has not taken.
    held: u64,
    /// Bytes that the user has taken and the node does not know of.
    owed: u64,
    /// Whether the node has been asked, over the connection in force.
    asked: bool,
    retry_at: Option<Time>,
    handle: S,
}

/// The subscriptions of a client.
#[derive(Debug)]
pub(super) struct Subscriptions<S> {
    open: FxHashMap<RequestId, Subscription<S>>,
    /// Those that may have something to send.
    dirty: Vec<RequestId>,
    ended: Vec<RequestId>,
    backoff: Backoff,
}

impl<S: Clone> Subscriptions<S> {
    pub(super) fn new(seed: Uuid) -> Self {
        let backoff = Backoff::new(RETRY_MICROS.0, RETRY_MICROS.1, seed);
        Self { open: FxHashMap::default(), dirty: Vec::new(), ended: Vec::new(), backoff }
    }

    pub(super) fn begin(&mut self, id: RequestId, wanted: Wanted, window: u64, handle: S) {
        let subscription = Subscription { wanted, window, held: 0, owed: 0, asked: false, retry_at: None, handle };
        self.open.insert(id, subscription);
        self.dirty.push(id);
    }

    pub(super) fn has(&self, id: RequestId) -> bool {
        self.open.contains_key(&id)
    }

    pub(super) fn into_handles(self) -> impl Iterator<Item = S> {
        self.open.into_values().map(|subscription| subscription.handle)
    }

    pub(super) fn consumed(&mut self, id: RequestId, bytes: u64) {
        if let Some(subscription) = self.open.get_mut(&id) {
            subscription.held = subscription.held.saturating_sub(bytes);
            subscription.owed += bytes;
            // Not for each record: a quarter of the window is worth a message.
            if subscription.owed >= subscription.window / 4 {
                self.dirty.push(id);
            }
        }
    }

    pub(super) fn end(&mut self, id: RequestId, connected: bool) {
        if self.open.remove(&id).is_some_and(|subscription| subscription.asked && connected) {
            self.ended.push(id);
        }
    }

    pub(super) fn begin_all_again(&mut self) {
        self.ended.clear();
        self.dirty = self.open.keys().copied().collect();
        self.dirty.sort_unstable();
        for subscription in self.open.values_mut() {
            subscription.asked = false;
            subscription.retry_at = None;
        }
        self.backoff.reset();
    }

    pub(super) fn answer(&mut self, now: Time, id: RequestId, answer: Answer, out: &mut Vec<(S, Delivery)>) {
        let Some(subscription) = self.open.get_mut(&id) else { return };
        let delivery = match answer {
            Answer::Delivered { mut records, upto, .. } => {
                let next = subscription.wanted.from;
                if records.first().is_some_and(|(number, _)| *number < next) {
                    records.retain(|(number, _)| *number >= next);
                }
                if upto <= next && records.is_empty() {
                    return;
                }
                subscription.held += records.iter().map(|(_, record)| delivered_cost(record)).sum::<u64>();
                subscription.wanted.from = next.max(upto);
                self.backoff.reset();
                Delivery::Records { records, upto: subscription.wanted.from }
            }
            Answer::Trimmed { point, .. } => {
                if point < subscription.wanted.from {
                    return;
                }
                subscription.wanted.from = point.plus(1).unwrap_or(point);
                Delivery::Trimmed(point)
            }
            Answer::Failed { why: Failure::NotReady(_), .. } => {
                subscription.asked = false;
                subscription.retry_at = Some(self.backoff.next(now));
                return;
            }
            Answer::Failed { why, .. } => {
                if let Some(subscription) = self.open.remove(&id) {
                    out.push((subscription.handle, Delivery::Failed(why)));
                }
                return;
            }
            // Not an answer to a subscription.
            _ => return,
        };
        out.push((subscription.handle.clone(), delivery));
    }

    pub(super) fn tick(&mut self, now: Time) {
        for (id, subscription) in &mut self.open {
            if subscription.retry_at.is_some_and(|at| at <= now) {
                subscription.retry_at = None;
                self.dirty.push(*id);
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.open.values().filter_map(|subscription| subscription.retry_at).min()
    }

    pub(super) fn take_requests(&mut self, into: &mut Vec<Request>) {
        into.extend(self.ended.drain(..).map(|id| Request::Unsubscribe { id }));
        for id in self.dirty.drain(..) {
            let Some(subscription) = self.open.get_mut(&id) else { continue };
            if subscription.retry_at.is_some() {
                continue;
            }
            if subscription.asked {
                let bytes = std::mem::take(&mut subscription.owed);
                if bytes > 0 {
                    into.push(Request::Credit { id, bytes });
                }
            } else {
                subscription.asked = true;
                subscription.owed = 0;
                let Wanted { color, tag, from } = subscription.wanted.clone();
                let credit = subscription.window.saturating_sub(subscription.held);
                into.push(Request::Subscribe { id, color, tag, from, credit });
            }
        }
    }
}
