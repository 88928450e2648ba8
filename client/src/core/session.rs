//! One client's dealings with one shard: its session, what waits for it, and what is open in it.
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
use super::window::{Job, Refused, Settle, Window};
use super::{AppendFailure, AppendOutcomes, MAX_OPEN_BYTES, open_cost};

/// The first and the longest wait before a member is asked again, in microseconds.
const RETRY_MICROS: (u64, u64) = (1_000, 200_000);

#[derive(Debug)]
enum State<A> {
    /// No session, and none asked for.
    None,
    /// Asked for, to be told under this id. `asked`: over the connection in force.
    Opening { id: RequestId, nonce: Uuid, asked: bool },
    /// There is one.
    Open(Window<A>),
}

/// One client's dealings with one shard.
#[derive(Debug)]
pub(super) struct ShardSession<A> {
    shard: ShardId,
    members: Vec<ReplicaId>,
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
    retry_due: bool,
    #[cfg(test)]
    one_answer_is_enough: bool,
}

impl<A> ShardSession<A> {
    pub(super) fn new(shard: ShardId, members: Vec<ReplicaId>, seed: Uuid) -> Self {
        Self {
            shard,
            members,
            state: State::None,
            old: None,
            queued: VecDeque::new(),
            bytes: 0,
            backoff: Backoff::new(RETRY_MICROS.0, RETRY_MICROS.1, seed),
            retry_at: None,
            retry_due: false,
            #[cfg(test)]
            one_answer_is_enough: false,
        }
    }

    #[cfg(test)]
    pub(super) fn with_fault(self, one_answer_is_enough: bool) -> Self {
        Self { one_answer_is_enough, ..self }
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
        self.state = State::Opening { id, nonce, asked: false };
    }

    /// Ends the session, unless something of it is open; the next append opens another. What to send for that.
    pub(super) fn close(&mut self) -> Option<Request> {
        let State::Open(Window { session, .. }) = self.state else { return None };
        if self.open() > 0 {
            return None;
        }
        self.state = State::None;
        Some(Request::CloseSession { shard: self.shard, session })
    }

    pub(super) fn is_opening(&self, with: RequestId) -> bool {
        matches!(self.state, State::Opening { id, .. } if id == with)
    }

    /// The answer to the opening that [`ShardSession::is_opening`] said yes to.
    pub(super) fn opening_answered(&mut self, now: Time, answer: Answer, done: &mut AppendOutcomes<A>) {
        match answer {
            Answer::SessionOpened { session, .. } => {
                let window = Window::new(session);
                #[cfg(test)]
                let window = window.with_fault(self.one_answer_is_enough);
                self.state = State::Open(window);
                self.backoff.reset();
            }
            Answer::Failed { why: Failure::NotReady(_), .. } => {
                // The same nonce again, so that an opening that went through after all is found.
                self.retry_at.get_or_insert(self.backoff.next(now));
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
            Refused::Waiting { retry: true } if self.retry_at.is_none() && !self.retry_due => {
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
        let free = window.session_over(&mut settle);
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

    pub(super) fn tick(&mut self, now: Time, done: &mut AppendOutcomes<A>) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.retry_due = true;
            if let State::Opening { asked, .. } = &mut self.state {
                *asked = false;
            }
        }
        let mut settle = Settle { outcomes: done, bytes: &mut self.bytes };
        if let State::Open(window) = &mut self.state {
            window.expire(now, &self.members, false, &mut settle);
        }
        if let Some(window) = &mut self.old {
            window.expire(now, &self.members, true, &mut settle);
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
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        let queued = self.queued.iter().map(|job| job.deadline).min();
        self.windows().filter_map(Window::next_deadline).chain(queued).chain(self.retry_at).min()
    }

    pub(super) fn disconnected(&mut self, done: &mut AppendOutcomes<A>) {
        match &mut self.state {
            State::Open(window) => window.disconnected(),
            State::Opening { asked, .. } => *asked = false,
            State::None => {}
        }
        if let Some(mut window) = self.old.take() {
            // Nobody will say any more what became of it.
            let mut settle = Settle { outcomes: done, bytes: &mut self.bytes };
            window.fail_all(&AppendFailure::SessionExpired, &mut settle);
        }
        self.retry_at = None;
        self.retry_due = false;
        self.backoff.reset();
    }

    pub(super) fn take_requests(&mut self, into: &mut Vec<Request>) {
        let (shard, retry_due) = (self.shard, std::mem::take(&mut self.retry_due));
        if let State::Opening { id, nonce, asked } = &mut self.state
            && !*asked
            && self.retry_at.is_none()
        {
            *asked = true;
            into.push(Request::OpenSession { id: *id, shard, nonce: *nonce });
        }
        let request = |window: &Window<A>, members: Vec<ReplicaId>, appends| {
            let (session, low) = (window.session, window.low());
            Request::Append(Arc::new(AppendRequest { shard, session, low, members, appends }))
        };
        if retry_due && let Some(window) = &mut self.old {
            for (members, appends) in window.take_retries() {
                into.push(request(window, members, appends));
            }
        }
        let State::Open(window) = &mut self.state else { return };
        if retry_due {
            for (members, appends) in window.take_retries() {
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
        if window.has_unsent() {
            let appends = window.take_unsent();
            if !appends.is_empty() {
                into.push(request(window, self.members.clone(), appends));
            }
        }
    }
}
