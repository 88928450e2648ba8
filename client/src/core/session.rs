//! One client's dealings with one shard: its session, what waits for it, and what is open in it.
//!
//! Members on one node make a lane, which has a connection of its own: bytes go there once, at its own pace. One that is
//! away holds up no other; when it is back, what is open is sent again, to it alone. A session is opened through one
//! lane, and through the next with the same nonce if that one does not do it.
//!
//! Rules: an append gets a token when it enters the window, and keeps it. A member that refuses for a while is asked
//! again after a backoff. When the session is over, an append goes to the next one only if nobody can hold it under the
//! old token: it was never sent, or was sent once and refused by every member.

use std::collections::VecDeque;
use std::sync::Arc;

use uuid::Uuid;

use flexlog_protocol::api::{Answer, AppendRefusal, AppendRequest, Appended, Failure, Request, RequestId};
use flexlog_protocol::limits::TOKEN_WINDOW;
use flexlog_protocol::{Append, Assign, ReplicaId, ShardId, Time, Token};

use super::backoff::Backoff;
use super::nodes::{Lane, NodeId, Paths, Place, To};
use super::window::{Job, Refused, Settle, Window};
use super::{AppendFailure, AppendOutcomes, MAX_OPEN_BYTES, open_cost};

/// The first and the longest wait before a member is asked again, in microseconds.
const RETRY_MICROS: (u64, u64) = (1_000, 200_000);
/// How long a node may take to open a session before another is asked, in microseconds.
const OPENING_MICROS: u64 = 2_000_000;

#[derive(Debug)]
enum State<A> {
    /// No session, and none asked for.
    None,
    /// Asked for, to be told under this id. `asked`: over this node's connection in force, with a time to answer if there
    /// is another to ask.
    Opening { id: RequestId, nonce: Uuid, asked: Option<(NodeId, Time)> },
    /// There is one.
    Open(Window<A>),
}

/// One client's dealings with one shard.
#[derive(Debug)]
pub(super) struct ShardSession<A> {
    shard: ShardId,
    /// All members, of all lanes.
    members: Vec<ReplicaId>,
    lanes: Vec<Lane>,
    state: State<A>,
    /// What is left of the session before: sent once, its members have not all spoken.
    old: Option<Window<A>>,
    /// Has no token yet.
    queued: VecDeque<Job<A>>,
    /// Of records, in both windows and the queue.
    bytes: u64,
    backoff: Backoff,
    /// When members that refused, or the leaf that opened no session, are asked again.
    retry_at: Option<Time>,
    /// For each lane whether its members are to be asked again now.
    retry_due: Vec<bool>,
    #[cfg(test)]
    faults: (bool, bool),
}

impl<A> ShardSession<A> {
    pub(super) fn new(shard: ShardId, place: &Place, seed: Uuid) -> Self {
        Self {
            shard,
            members: place.view.members.clone(),
            lanes: place.lanes.clone(),
            state: State::None,
            old: None,
            queued: VecDeque::new(),
            bytes: 0,
            backoff: Backoff::new(RETRY_MICROS.0, RETRY_MICROS.1, seed),
            retry_at: None,
            retry_due: vec![false; place.lanes.len()],
            #[cfg(test)]
            faults: (false, false),
        }
    }

    #[cfg(test)]
    pub(super) fn with_faults(self, one_answer_is_enough: bool, old_refusals_count: bool) -> Self {
        Self { faults: (one_answer_is_enough, old_refusals_count), ..self }
    }

    fn windows(&self) -> impl Iterator<Item = &Window<A>> {
        let current = if let State::Open(window) = &self.state { Some(window) } else { None };
        current.into_iter().chain(&self.old)
    }

    /// How many appends are not finished.
    pub(super) fn open(&self) -> usize {
        self.queued.len() + self.windows().map(Window::open).sum::<usize>()
    }

    pub(super) fn has_room(&self, bytes: u64) -> bool {
        // What is done behind one that is not still takes its place in the window.
        let span = if let State::Open(window) = &self.state { window.span() } else { 0 };
        let window = span + (self.queued.len() as u64) < TOKEN_WINDOW;
        window && (self.bytes == 0 || self.bytes + bytes <= MAX_OPEN_BYTES)
    }

    pub(super) fn submit(&mut self, job: Job<A>) {
        self.bytes += open_cost(&job.records);
        self.queued.push_back(job);
    }

    pub(super) fn wants_opening(&self) -> bool {
        matches!(self.state, State::None) && !self.queued.is_empty() && self.retry_at.is_none()
    }

    pub(super) fn open_with(&mut self, id: RequestId, nonce: Uuid) {
        self.state = State::Opening { id, nonce, asked: None };
    }

    /// Wakes the nodes that something is to be sent to.
    pub(super) fn wake(&self, paths: &mut Paths) {
        if matches!(self.state, State::Opening { asked: None, .. }) && self.retry_at.is_none() {
            paths.pick(To::Shard(self.shard));
        }
        let window = if let State::Open(window) = &self.state { Some(window) } else { None };
        let fresh = !self.queued.is_empty() && window.is_some_and(Window::has_room);
        for (index, lane) in self.lanes.iter().enumerate() {
            let unsent = fresh || window.is_some_and(|window| window.has_unsent(index));
            if unsent || self.retry_due.get(index) == Some(&true) {
                paths.nodes.wake(lane.node);
            }
        }
    }

    /// Whether something that is open waits for this node.
    pub(super) fn needs(&self, node: NodeId) -> bool {
        self.open() > 0 && self.lanes.iter().any(|lane| lane.node == node)
    }

    /// The members are elsewhere, or others, from now on.
    pub(super) fn moved(&mut self, place: &Place) {
        let kept: Vec<_> = place.lanes.iter().map(|lane| self.lanes.iter().position(|old| old == lane)).collect();
        if let State::Open(window) = &mut self.state {
            window.lanes_changed(&kept);
        }
        if let State::Opening { asked, .. } = &mut self.state {
            *asked = None;
        }
        self.members.clone_from(&place.view.members);
        self.lanes.clone_from(&place.lanes);
        // Whoever refused before is asked again, or was asked anew.
        self.retry_due = vec![true; place.lanes.len()];
    }

    /// Ends the session, unless something of it is open or `node` has no member; the next append opens another. What to
    /// send there for that.
    pub(super) fn close(&mut self, node: NodeId) -> Option<Request> {
        let State::Open(Window { session, .. }) = self.state else { return None };
        if self.open() > 0 || !self.lanes.iter().any(|lane| lane.node == node) {
            return None;
        }
        self.state = State::None;
        Some(Request::CloseSession { shard: self.shard, session })
    }

    pub(super) fn is_opening(&self, with: RequestId) -> bool {
        matches!(self.state, State::Opening { id, .. } if id == with)
    }

    /// The answer to the opening that [`ShardSession::is_opening`] said yes to.
    pub(super) fn opening_answered(
        &mut self,
        now: Time,
        from: NodeId,
        answer: Answer,
        paths: &mut Paths,
        done: &mut AppendOutcomes<A>,
    ) {
        match answer {
            Answer::SessionOpened { session, .. } => {
                let window = Window::new(session, self.lanes.len());
                #[cfg(test)]
                let window = window.with_faults(self.faults.0, self.faults.1);
                self.state = State::Open(window);
                self.backoff.reset();
            }
            Answer::Failed { why: Failure::NotReady(_), .. } => {
                // The same nonce again, so that an opening that went through after all is found.
                if let State::Opening { asked, .. } = &mut self.state
                    && asked.is_none_or(|(node, _)| node == from)
                {
                    *asked = None;
                    paths.move_on(To::Shard(self.shard), from);
                    self.retry_at.get_or_insert(self.backoff.next(now));
                }
            }
            Answer::Failed { why, .. } => {
                self.state = State::None;
                for job in self.queued.drain(..) {
                    self.bytes -= open_cost(&job.records);
                    done.push((job.waiter, Err(AppendFailure::NoSession(why.clone()))));
                }
            }
            _ => {}
        }
    }

    pub(super) fn appended(&mut self, said: &Appended, run: &Assign, done: &mut AppendOutcomes<A>) {
        let before = done.len();
        let session = run.token.session;
        let mut settle = Settle { outcomes: done, bytes: &mut self.bytes };
        match (&mut self.state, &mut self.old) {
            (State::Open(window), _) if window.session == session => window.appended(said, run, &mut settle),
            (_, Some(window)) if window.session == session => window.appended(said, run, &mut settle),
            _ => {}
        }
        self.drop_old();
        if done.len() > before {
            self.backoff.reset();
        }
    }

    pub(super) fn refused(
        &mut self,
        now: Time,
        token: Token,
        member: ReplicaId,
        why: AppendRefusal,
        done: &mut AppendOutcomes<A>,
    ) {
        let current = matches!(&self.state, State::Open(window) if window.session == token.session);
        if current && why == AppendRefusal::SessionExpired {
            self.session_over(done);
        }
        let mut settle = Settle { outcomes: done, bytes: &mut self.bytes };
        let (window, over) = match (&mut self.state, &mut self.old) {
            (State::Open(window), _) if window.session == token.session => (window, false),
            (_, Some(window)) if window.session == token.session => (window, true),
            _ => return,
        };
        match window.refused(token.seq, member, why, &self.members, over, &mut settle) {
            Refused::Free(job) => self.submit(job),
            Refused::Waiting { retry: true } if self.retry_at.is_none() => {
                self.retry_at = Some(self.backoff.next(now));
            }
            _ => {}
        }
        self.drop_old();
    }

    /// The session in force is over: the next append opens another.
    fn session_over(&mut self, done: &mut AppendOutcomes<A>) {
        let State::Open(mut window) = std::mem::replace(&mut self.state, State::None) else { return };
        let mut settle = Settle { outcomes: done, bytes: &mut self.bytes };
        if let Some(mut older) = self.old.take() {
            older.fail_all(&AppendFailure::SessionExpired, &mut settle);
        }
        let free = window.session_over(&self.lanes, &mut settle);
        self.old = Some(window);
        for job in free.into_iter().rev() {
            self.bytes += open_cost(&job.records);
            self.queued.push_front(job);
        }
    }

    fn drop_old(&mut self) {
        if self.old.as_ref().is_some_and(|window| window.open() == 0) {
            self.old = None;
        }
    }

    /// Time has passed. Returns whether somebody was silent about something that is past its deadline.
    pub(super) fn tick(&mut self, now: Time, paths: &mut Paths, done: &mut AppendOutcomes<A>) -> bool {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.retry_due.fill(true);
        }
        if let State::Opening { asked, .. } = &mut self.state
            && let Some((node, until)) = *asked
            && until <= now
        {
            *asked = None;
            paths.move_on(To::Shard(self.shard), node);
        }
        let mut silent = false;
        let mut settle = Settle { outcomes: done, bytes: &mut self.bytes };
        if let State::Open(window) = &mut self.state {
            silent |= window.expire(now, &self.members, false, &mut settle);
        }
        if let Some(window) = &mut self.old {
            silent |= window.expire(now, &self.members, true, &mut settle);
        }
        self.drop_old();
        // All of one client's appends have the same time, so the queue is in the order of its deadlines but for what
        // came back from a session before.
        if self.queued.iter().any(|job| job.deadline <= now) {
            let (late, rest) = self.queued.drain(..).partition(|job| job.deadline <= now);
            self.queued = rest;
            let late: VecDeque<Job<A>> = late;
            for job in late {
                self.bytes -= open_cost(&job.records);
                done.push((job.waiter, Err(AppendFailure::NotSent)));
            }
        }
        silent
    }

    /// The nodes that its members are on.
    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.lanes.iter().map(|lane| lane.node)
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        let queued = self.queued.iter().map(|job| job.deadline).min();
        let opening = match &self.state {
            State::Opening { asked: Some((_, until)), .. } if until.0 < u64::MAX => Some(*until),
            _ => None,
        };
        self.windows().filter_map(Window::next_deadline).chain(queued).chain(self.retry_at).chain(opening).min()
    }

    /// The connection to this node is gone.
    pub(super) fn disconnected(&mut self, node: NodeId, done: &mut AppendOutcomes<A>) {
        if let State::Opening { asked, .. } = &mut self.state
            && asked.is_some_and(|(whom, _)| whom == node)
        {
            *asked = None;
            self.retry_at = None;
        }
        let Some(index) = self.lanes.iter().position(|lane| lane.node == node) else { return };
        let members = &self.lanes[index].members;
        if let State::Open(window) = &mut self.state {
            window.lane_lost(index, members);
        }
        if let Some(window) = &mut self.old {
            // Nobody will say any more what became of it.
            let mut settle = Settle { outcomes: done, bytes: &mut self.bytes };
            window.lane_lost_for_good(members, &mut settle);
        }
        self.drop_old();
        self.retry_due[index] = false;
        if self.lanes.len() == 1 {
            self.retry_at = None;
        }
        self.backoff.reset();
    }

    /// What is to be sent to `node`.
    pub(super) fn take_requests(&mut self, now: Time, node: NodeId, paths: &mut Paths, into: &mut Vec<Request>) {
        let shard = self.shard;
        if let State::Opening { id, nonce, asked } = &mut self.state
            && asked.is_none()
            && self.retry_at.is_none()
            && paths.pick(To::Shard(shard)) == node
        {
            let choice = paths.place(shard).is_some_and(|place| place.route.has_choice());
            *asked = Some((node, if choice { now.after(OPENING_MICROS) } else { Time(u64::MAX) }));
            into.push(Request::OpenSession { id: *id, shard, nonce: *nonce });
        }
        let Some(index) = self.lanes.iter().position(|lane| lane.node == node) else { return };
        let lane = &self.lanes[index].members;
        let retry_due = self.retry_due.get_mut(index).is_some_and(std::mem::take);
        let request = |window: &Window<A>, members: Vec<ReplicaId>, appends| {
            let (session, low) = (window.session, window.low());
            Request::Append(Arc::new(AppendRequest { shard, session, low, members, appends }))
        };
        if retry_due && let Some(window) = &mut self.old {
            for (members, appends) in window.take_retries(lane) {
                into.push(request(window, members, appends));
            }
        }
        let State::Open(window) = &mut self.state else { return };
        if retry_due {
            for (members, appends) in window.take_retries(lane) {
                into.push(request(window, members, appends));
            }
        }
        while window.has_room()
            && let Some(job) = self.queued.pop_front()
        {
            let token = Token { shard, session: window.session, seq: window.seq() };
            let cost = open_cost(&job.records);
            match Append::new(token, job.color, None, job.records) {
                Ok(append) => window.push(Arc::new(append), job.deadline, job.waiter),
                // The caller has checked the bounds; if not, nobody may wait for it for ever.
                Err(_) => {
                    self.bytes -= cost;
                    drop(job.waiter);
                }
            }
        }
        if window.has_unsent(index) {
            let appends = window.take_unsent(index);
            if !appends.is_empty() {
                into.push(request(window, lane.clone(), appends));
            }
        }
    }
}
