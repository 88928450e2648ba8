//! Subscriptions to one shard: where each one is, and how much the node may still send.
//!
//! Each has a window of bytes. What was delivered and not taken yet, and what the node may still send, together never
//! exceed it by more than one record, so a slow user costs that much memory and no more. After a reconnect a subscription goes on
//! from the first number that did not come; numbers that come twice are passed over.

use rustc_hash::FxHashMap;
use uuid::Uuid;

use flexlog_protocol::api::{Answer, Failure, Request, RequestId, delivered_cost};
use flexlog_protocol::{Color, Record, SeqNum, ShardId, Tag, Time};

use super::backoff::Backoff;
use super::nodes::{NodeId, Paths, To};

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
    shard: ShardId,
    /// Whom it is at.
    at: NodeId,
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
    ended: Vec<(NodeId, RequestId)>,
    backoff: Backoff,
}

impl<S: Clone> Subscriptions<S> {
    pub(super) fn new(seed: Uuid) -> Self {
        let backoff = Backoff::new(RETRY_MICROS.0, RETRY_MICROS.1, seed);
        Self { open: FxHashMap::default(), dirty: Vec::new(), ended: Vec::new(), backoff }
    }

    pub(super) fn begin(
        &mut self,
        id: RequestId,
        wanted: Wanted,
        shard: ShardId,
        window: u64,
        handle: S,
        paths: &mut Paths,
    ) {
        let at = paths.pick(To::Shard(shard));
        let (held, owed, asked, retry_at) = (0, 0, false, None);
        let subscription = Subscription { wanted, shard, at, window, held, owed, asked, retry_at, handle };
        self.open.insert(id, subscription);
        self.dirty.push(id);
    }

    pub(super) fn has(&self, id: RequestId) -> bool {
        self.open.contains_key(&id)
    }

    pub(super) fn consumed(&mut self, id: RequestId, bytes: u64, paths: &mut Paths) {
        if let Some(subscription) = self.open.get_mut(&id) {
            subscription.held = subscription.held.saturating_sub(bytes);
            subscription.owed += bytes;
            // Not for each record: a quarter of the window is worth a message.
            if subscription.owed >= subscription.window / 4 {
                self.dirty.push(id);
                paths.nodes.wake(subscription.at);
            }
        }
    }

    pub(super) fn end(&mut self, id: RequestId, paths: &mut Paths) {
        if let Some(subscription) = self.open.remove(&id)
            && subscription.asked
        {
            self.ended.push((subscription.at, id));
            paths.nodes.wake(subscription.at);
        }
    }

    /// The connection to this node is gone, and its subscriptions with it.
    pub(super) fn disconnected(&mut self, node: NodeId) {
        self.ended.retain(|(at, _)| *at != node);
        for subscription in self.open.values_mut().filter(|subscription| subscription.at == node) {
            subscription.asked = false;
            subscription.retry_at = None;
        }
        self.backoff.reset();
    }

    /// Some node came or went: what was not asked goes to whoever is to be asked now.
    pub(super) fn steer(&mut self, paths: &mut Paths) {
        for (id, subscription) in &mut self.open {
            if !subscription.asked && subscription.retry_at.is_none() {
                subscription.at = paths.pick(To::Shard(subscription.shard));
                self.dirty.push(*id);
            }
        }
        self.dirty.sort_unstable();
        self.dirty.dedup();
    }

    /// Whether something is at this node.
    pub(super) fn needs(&self, node: NodeId) -> bool {
        self.open.values().any(|subscription| subscription.at == node)
    }

    pub(super) fn answer(
        &mut self,
        now: Time,
        from: NodeId,
        id: RequestId,
        answer: Answer,
        paths: &mut Paths,
        out: &mut Vec<(S, Delivery)>,
    ) {
        // One that moved hears no more of where it was.
        let Some(subscription) = self.open.get_mut(&id).filter(|subscription| subscription.at == from) else { return };
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
                paths.move_on(To::Shard(subscription.shard), from);
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

    pub(super) fn tick(&mut self, now: Time, paths: &mut Paths) {
        for (id, subscription) in &mut self.open {
            if subscription.retry_at.is_some_and(|at| at <= now) {
                subscription.retry_at = None;
                subscription.at = paths.pick(To::Shard(subscription.shard));
                self.dirty.push(*id);
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.open.values().filter_map(|subscription| subscription.retry_at).min()
    }

    pub(super) fn take_requests(&mut self, node: NodeId, into: &mut Vec<Request>) {
        let ended = self.ended.extract_if(.., |(at, _)| *at == node);
        into.extend(ended.map(|(_, id)| Request::Unsubscribe { id }));
        let open = &self.open;
        let here = |id: &mut RequestId| open.get(id).is_none_or(|subscription| subscription.at == node);
        let dirty: Vec<_> = self.dirty.extract_if(.., here).collect();
        for id in dirty {
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
