//! Subscriptions as their users have them: one part for each shard of the color, merged by number.
//!
//! A color on one shard has one part, and what comes is passed on as it is. Of several parts each has a window of its own,
//! so one that is behind stops the others once theirs are full, and is never stopped by them: what waits is bounded, and
//! all go on. What the user took is given back to the parts that it came from.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use uuid::Uuid;

use flexlog_protocol::api::{Answer, Request, RequestId};
use flexlog_protocol::limits::MAX_RECORD_BYTES;
use flexlog_protocol::{ShardId, Time};

use super::merge::{Merge, Merged};
use super::nodes::{NodeId, Paths};
use super::subscriptions::{Delivery, Subscriptions, Wanted};

/// The least that one part of several has as its window, in bytes: less would stop at a large record for ever, as part of
/// it is with the user until it is worth a message.
pub const MIN_PART_WINDOW: u64 = 2 * MAX_RECORD_BYTES as u64;

/// Whose part, and which.
type PartOf = (RequestId, usize);

#[derive(Debug)]
struct Follower<S> {
    handle: S,
    parts: Vec<RequestId>,
    /// Of more than one part.
    merge: Option<Merge>,
    /// What the user has and did not take yet: runs of one part and their bytes.
    with_user: VecDeque<(usize, u64)>,
}

/// The subscriptions of a client.
#[derive(Debug)]
pub(super) struct Followers<S> {
    open: FxHashMap<RequestId, Follower<S>>,
    parts: Subscriptions<PartOf>,
    came: Vec<(PartOf, Delivery)>,
}

impl<S: Clone> Followers<S> {
    pub(super) fn new(seed: Uuid) -> Self {
        Self { open: FxHashMap::default(), parts: Subscriptions::new(seed), came: Vec::new() }
    }

    /// Begins one under the first of `ids`, which are as many as its shards.
    pub(super) fn begin(
        &mut self,
        ids: Vec<RequestId>,
        wanted: &Wanted,
        shards: &[ShardId],
        window: u64,
        handle: S,
        paths: &mut Paths,
    ) {
        let Some(name) = ids.first().copied() else { return };
        let window = if ids.len() == 1 { window } else { (window / ids.len() as u64).max(MIN_PART_WINDOW) };
        for (which, (id, shard)) in ids.iter().zip(shards).enumerate() {
            self.parts.begin(*id, wanted.clone(), *shard, window, (name, which), paths);
        }
        let merge = (ids.len() > 1).then(|| Merge::new(ids.len(), wanted.from));
        self.open.insert(name, Follower { handle, parts: ids, merge, with_user: VecDeque::new() });
    }

    pub(super) fn consumed(&mut self, name: RequestId, mut bytes: u64, paths: &mut Paths) {
        let Some(follower) = self.open.get_mut(&name) else { return };
        if follower.merge.is_none() {
            return self.parts.consumed(name, bytes, paths);
        }
        while bytes > 0
            && let Some((which, left)) = follower.with_user.front_mut()
        {
            let taken = bytes.min(*left);
            (bytes, *left) = (bytes - taken, *left - taken);
            if let Some(part) = follower.parts.get(*which) {
                self.parts.consumed(*part, taken, paths);
            }
            if *left == 0 {
                follower.with_user.pop_front();
            }
        }
    }

    pub(super) fn end(&mut self, name: RequestId, paths: &mut Paths) {
        for part in self.open.remove(&name).into_iter().flat_map(|follower| follower.parts) {
            self.parts.end(part, paths);
        }
    }

    /// Whether a request is one of its parts.
    pub(super) fn has(&self, id: RequestId) -> bool {
        self.parts.has(id)
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
        self.parts.answer(now, from, id, answer, paths, &mut self.came);
        while let Some(((name, which), delivery)) = self.came.pop() {
            let Some(follower) = self.open.get_mut(&name) else { continue };
            let merged = match (delivery, &mut follower.merge) {
                (Delivery::Records { records, upto }, Some(merge)) => merge.records(which, records, upto),
                (Delivery::Trimmed(point), Some(merge)) => merge.trimmed(which, point),
                (delivery, _) => {
                    let over = matches!(delivery, Delivery::Failed(_));
                    out.push((follower.handle.clone(), delivery));
                    if over {
                        self.end(name, paths);
                    }
                    continue;
                }
            };
            let Merged { deliveries, passed, dropped } = merged;
            for (which, cost) in passed {
                match follower.with_user.back_mut() {
                    Some((last, bytes)) if *last == which => *bytes += cost,
                    _ => follower.with_user.push_back((which, cost)),
                }
            }
            out.extend(deliveries.into_iter().map(|delivery| (follower.handle.clone(), delivery)));
            for (which, cost) in dropped {
                if let Some(part) = follower.parts.get(which) {
                    self.parts.consumed(*part, cost, paths);
                }
            }
        }
    }

    pub(super) fn disconnected(&mut self, node: NodeId) {
        self.parts.disconnected(node);
    }

    pub(super) fn steer(&mut self, paths: &mut Paths) {
        self.parts.steer(paths);
    }

    pub(super) fn needs(&self, node: NodeId) -> bool {
        self.parts.needs(node)
    }

    pub(super) fn tick(&mut self, now: Time, paths: &mut Paths) {
        self.parts.tick(now, paths);
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.parts.next_deadline()
    }

    pub(super) fn take_requests(&mut self, node: NodeId, into: &mut Vec<Request>) {
        self.parts.take_requests(node, into);
    }

    pub(super) fn into_handles(self) -> impl Iterator<Item = S> {
        self.open.into_values().map(|follower| follower.handle)
    }
}
