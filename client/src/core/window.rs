//! The open tokens of one session, in a ring by their seqs.
//!
//! Members on one node make a lane: what is sent goes to all lanes, each at its own pace, and is sent again to one alone
//! when its connection was lost.
//!
//! A slot is found by `seq - base`, so a run of answers costs a step per token and no lookup. The ring promises that
//! it never spans more than [`TOKEN_WINDOW`] seqs, that `base` (the low mark) only goes up, and that each waiter comes
//! out once.

use std::collections::VecDeque;
use std::sync::Arc;

use flexlog_protocol::api::{AppendRefusal, Appended};
use flexlog_protocol::limits::TOKEN_WINDOW;
use flexlog_protocol::{Append, Assign, Color, Record, ReplicaId, SeqNum, SessionId, Time, ViewNumber};

use super::nodes::Lane;
use super::{AppendFailure, AppendOutcomes};

/// Records that are to be appended under one token, and who waits for it.
#[derive(Debug)]
pub struct Job<A> {
    /// The log.
    pub color: Color,
    /// 1 or more, within the bounds of an append.
    pub records: Vec<Record>,
    /// When to give up.
    pub deadline: Time,
    /// Handed back with the outcome.
    pub waiter: A,
}

/// What some members of a view said of a token.
#[derive(Debug, Clone, Copy)]
struct Vote {
    view: ViewNumber,
    first: SeqNum,
    /// By their place in the view.
    members: u64,
}

/// The most different things that are kept of what members said of one token: the newest count.
const MAX_VOTES: usize = 4;

#[derive(Debug)]
struct Open<A> {
    append: Arc<Append>,
    waiter: A,
    deadline: Time,
    /// Whether it was sent over some connection that is gone: what became of that is not known for sure, ever.
    sent_earlier: bool,
    votes: Vec<Vote>,
    /// Members whose last word is a refusal.
    refused: Vec<(ReplicaId, AppendRefusal)>,
}

/// The open tokens of a session.
#[derive(Debug)]
pub(super) struct Window<A> {
    pub session: SessionId,
    /// The seq of the front slot; no smaller one is open.
    base: u64,
    /// `None`: done.
    slots: VecDeque<Option<Box<Open<A>>>>,
    /// How many are not done.
    open: usize,
    /// For each lane the first seq that was not sent over its connection in force.
    unsent: Vec<u64>,
    /// No open slot has a deadline before this.
    earliest: Time,
    /// Faults that the model check must find.
    #[cfg(test)]
    one_answer_is_enough: bool,
    #[cfg(test)]
    old_refusals_count: bool,
}

/// What a refusal led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused<A> {
    /// Not about an open token.
    Stale,
    /// Other members have not said their last word, or it was an old connection's token: the same token will be tried.
    Waiting {
        /// Whether this member is to be asked again.
        retry: bool,
    },
    /// Nobody holds it, and nobody will: it may go under another token.
    Free(A),
    /// It is done.
    Done,
}

impl<A> Window<A> {
    pub(super) fn new(session: SessionId, lanes: usize) -> Self {
        Self {
            session,
            base: 1,
            slots: VecDeque::new(),
            open: 0,
            unsent: vec![1; lanes],
            earliest: Time(u64::MAX),
            #[cfg(test)]
            one_answer_is_enough: false,
            #[cfg(test)]
            old_refusals_count: false,
        }
    }

    #[cfg(test)]
    pub(super) fn with_faults(self, one_answer_is_enough: bool, old_refusals_count: bool) -> Self {
        Self { one_answer_is_enough, old_refusals_count, ..self }
    }

    /// The smallest seq that an answer is wanted for.
    pub(super) fn low(&self) -> u64 {
        self.base
    }

    fn next_seq(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// How many seqs it spans.
    pub(super) fn span(&self) -> u64 {
        self.slots.len() as u64
    }

    pub(super) fn has_room(&self) -> bool {
        self.span() < TOKEN_WINDOW
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        (self.open > 0).then_some(self.earliest)
    }

    /// The seq that the next append gets.
    pub(super) fn seq(&self) -> u64 {
        self.next_seq()
    }

    /// Takes an append that carries [`Window::seq`].
    pub(super) fn push(&mut self, append: Arc<Append>, deadline: Time, waiter: A) {
        debug_assert!(self.has_room() && append.token().seq == self.next_seq());
        self.earliest = self.earliest.min(deadline);
        self.open += 1;
        let open = Open { append, waiter, deadline, sent_earlier: false, votes: Vec::new(), refused: Vec::new() };
        self.slots.push_back(Some(Box::new(open)));
    }

    /// What was not sent over the lane's connection in force, in order. It counts as sent now.
    pub(super) fn take_unsent(&mut self, lane: usize) -> Vec<Arc<Append>> {
        let next = self.next_seq();
        let Some(unsent) = self.unsent.get_mut(lane) else { return Vec::new() };
        let from = std::mem::replace(unsent, next).max(self.base);
        let fresh = self.slots.range((from - self.base) as usize..);
        fresh.flatten().map(|open| Arc::clone(&open.append)).collect()
    }

    pub(super) fn has_unsent(&self, lane: usize) -> bool {
        self.unsent.get(lane).is_some_and(|unsent| (*unsent).max(self.base) < self.next_seq())
    }

    /// The lane's connection is gone, and with it all answers to what was sent over it.
    pub(super) fn lane_lost(&mut self, lane: usize, members: &[ReplicaId]) {
        let Some(unsent) = self.unsent.get_mut(lane) else { return };
        let sent = std::mem::replace(unsent, self.base).saturating_sub(self.base) as usize;
        #[cfg(test)]
        if self.old_refusals_count {
            return;
        }
        for open in self.slots.iter_mut().take(sent).flatten() {
            open.sent_earlier = true;
            open.refused.retain(|(member, _)| !members.contains(member));
        }
    }

    /// As [`Window::lane_lost`] when nothing is sent any more: what those members have not refused for good, nobody will
    /// speak of.
    pub(super) fn lane_lost_for_good(&mut self, members: &[ReplicaId], done: &mut Settle<'_, A>) {
        for slot in 0..self.slots.len() {
            let Some(Some(open)) = self.slots.get(slot) else { continue };
            let spoken =
                |member: &ReplicaId| open.refused.iter().any(|(who, why)| who == member && !why.is_retryable());
            if !members.iter().all(spoken) {
                self.finish(slot, Err(AppendFailure::SessionExpired), done);
            }
        }
        self.advance();
    }

    /// The members are on other nodes now: `kept` says for each lane which one it was, if it is as before.
    pub(super) fn lanes_changed(&mut self, kept: &[Option<usize>]) {
        for (lane, unsent) in self.unsent.iter().enumerate() {
            if !kept.contains(&Some(lane)) {
                let sent = unsent.saturating_sub(self.base) as usize;
                self.slots.iter_mut().take(sent).flatten().for_each(|open| open.sent_earlier = true);
            }
        }
        let unsent = |lane: &Option<usize>| lane.and_then(|lane| self.unsent.get(lane).copied()).unwrap_or(self.base);
        self.unsent = kept.iter().map(unsent).collect();
    }

    /// No smaller seq was sent to nobody.
    fn reach(&self) -> u64 {
        self.unsent.iter().copied().max().unwrap_or(self.base)
    }

    /// The numbers of some tokens, as some members say.
    pub(super) fn appended(&mut self, said: &Appended, run: &Assign, done: &mut Settle<'_, A>) {
        let view = &said.view;
        let all = !view.members.is_empty() && view.members.iter().all(|member| said.members.contains(member));
        let enough = said.settled || all;
        #[cfg(test)]
        let enough = enough || self.one_answer_is_enough;
        // Only what is open: a run may be as long as it likes.
        let from = run.token.seq.max(self.base);
        let upto = run.token.seq.saturating_add(u64::from(run.tokens)).min(self.next_seq());
        for seq in from..upto {
            let slot = (seq - self.base) as usize;
            let Some(Some(open)) = self.slots.get_mut(slot) else { continue };
            if open.append.count() != run.records || open.append.color() != run.color {
                continue;
            }
            let Some(first) = u32::try_from(seq - run.token.seq)
                .ok()
                .and_then(|nth| nth.checked_mul(run.records))
                .and_then(|offset| run.first.plus(offset))
            else {
                continue;
            };
            if enough || open.vote(said, first) {
                self.finish(slot, Ok(first), done);
            }
        }
        self.advance();
    }

    /// A member does not take a token. `members` is everyone that it was sent to.
    pub(super) fn refused(
        &mut self,
        seq: u64,
        member: ReplicaId,
        why: AppendRefusal,
        members: &[ReplicaId],
        session_over: bool,
        done: &mut Settle<'_, A>,
    ) -> Refused<Job<A>> {
        let Some(slot) = seq.checked_sub(self.base).map(|slot| slot as usize) else { return Refused::Stale };
        let Some(Some(open)) = self.slots.get_mut(slot) else { return Refused::Stale };
        if !members.contains(&member) {
            return Refused::Stale;
        }
        open.refused.retain(|(who, _)| *who != member);
        open.refused.push((member, why));
        let all = open.votes.is_empty() && members.iter().all(|m| open.refused.iter().any(|(who, _)| who == m));
        if !all {
            return Refused::Waiting { retry: why.is_retryable() };
        }
        let expired = AppendRefusal::SessionExpired;
        let last = open.refused.iter().map(|(_, why)| *why).find(|why| !why.is_retryable() && *why != expired);
        let known = !open.sent_earlier;
        let outcome = if let Some(why) = last {
            if known { AppendFailure::Refused(why) } else { AppendFailure::RefusedLater(why) }
        } else if session_over {
            if known {
                let job = self.free(slot, done);
                self.advance();
                return job.map_or(Refused::Stale, Refused::Free);
            }
            AppendFailure::SessionExpired
        } else if known && open.refused.iter().all(|(_, why)| *why == AppendRefusal::Full) {
            AppendFailure::Full
        } else {
            return Refused::Waiting { retry: true };
        };
        self.finish(slot, Err(outcome), done);
        self.advance();
        Refused::Done
    }

    /// Which of a lane's members are to be asked again about what: those that refused for a while. Their refusals are
    /// forgotten.
    pub(super) fn take_retries(&mut self, lane: &[ReplicaId]) -> Vec<(Vec<ReplicaId>, Vec<Arc<Append>>)> {
        let mut retries: Vec<(Vec<ReplicaId>, Vec<Arc<Append>>)> = Vec::new();
        for open in self.slots.iter_mut().flatten() {
            let again = |(member, why): &(ReplicaId, AppendRefusal)| why.is_retryable() && lane.contains(member);
            let mut members: Vec<_> = open.refused.iter().filter(|one| again(one)).map(|(member, _)| *member).collect();
            if members.is_empty() {
                continue;
            }
            members.sort_unstable();
            open.refused.retain(|one| !again(one));
            let append = Arc::clone(&open.append);
            match retries.last_mut() {
                Some((same, appends)) if *same == members => appends.push(append),
                _ => retries.push((members, vec![append])),
            }
        }
        retries
    }

    /// Ends what is past its deadline. Returns whether somebody was silent about it.
    pub(super) fn expire(
        &mut self,
        now: Time,
        members: &[ReplicaId],
        session_over: bool,
        done: &mut Settle<'_, A>,
    ) -> bool {
        if self.open == 0 || now < self.earliest {
            return false;
        }
        let (reach, mut silent) = (self.reach(), false);
        self.earliest = Time(u64::MAX);
        for slot in 0..self.slots.len() {
            let sent = self.base + (slot as u64) < reach;
            let Some(Some(open)) = self.slots.get(slot) else { continue };
            if open.deadline > now {
                self.earliest = self.earliest.min(open.deadline);
                continue;
            }
            let outcome = if !open.sent_earlier && !sent {
                AppendFailure::NotSent
            } else if session_over {
                AppendFailure::SessionExpired
            } else {
                match open.refused.last() {
                    Some((_, why))
                        if !open.sent_earlier && open.votes.is_empty() && open.refused.len() == members.len() =>
                    {
                        AppendFailure::NotTaken(*why)
                    }
                    _ => AppendFailure::Deadline,
                }
            };
            silent |= outcome == AppendFailure::Deadline;
            self.finish(slot, Err(outcome), done);
        }
        self.advance();
        silent
    }

    /// The session is over: what was never sent comes back in order, what an earlier connection had is failed, the rest
    /// stays until its members have spoken.
    ///
    /// Nothing is sent to anyone any more. What did not get to a lane, its members do not hold: they count as having said
    /// so.
    pub(super) fn session_over(&mut self, lanes: &[Lane], done: &mut Settle<'_, A>) -> Vec<Job<A>> {
        let mut free = Vec::new();
        let reach = self.reach();
        for slot in 0..self.slots.len() {
            let sent = self.base + (slot as u64) < reach;
            let seq = self.base + slot as u64;
            match self.slots.get_mut(slot) {
                Some(Some(open)) if open.sent_earlier => {
                    self.finish(slot, Err(AppendFailure::SessionExpired), done);
                }
                Some(Some(_)) if !sent => free.extend(self.free(slot, done)),
                Some(Some(open)) => {
                    let missed = lanes.iter().zip(&self.unsent).filter(|(_, unsent)| **unsent <= seq);
                    for member in missed.flat_map(|(lane, _)| &lane.members) {
                        open.refused.retain(|(who, _)| who != member);
                        open.refused.push((*member, AppendRefusal::SessionExpired));
                    }
                }
                _ => {}
            }
        }
        let next = self.next_seq();
        self.unsent.fill(next);
        self.advance();
        free
    }

    /// Ends everything that is left.
    pub(super) fn fail_all(&mut self, why: &AppendFailure, done: &mut Settle<'_, A>) {
        for slot in 0..self.slots.len() {
            self.finish(slot, Err(why.clone()), done);
        }
        self.advance();
    }

    fn finish(&mut self, slot: usize, outcome: Result<SeqNum, AppendFailure>, done: &mut Settle<'_, A>) {
        if let Some(open) = self.slots.get_mut(slot).and_then(Option::take) {
            self.open -= 1;
            *done.bytes -= open.append.encoded_len() as u64;
            done.outcomes.push((open.waiter, outcome));
        }
    }

    fn free(&mut self, slot: usize, done: &mut Settle<'_, A>) -> Option<Job<A>> {
        let open = self.slots.get_mut(slot).and_then(Option::take)?;
        self.open -= 1;
        *done.bytes -= open.append.encoded_len() as u64;
        let records = open.append.records().to_vec();
        Some(Job { color: open.append.color(), records, deadline: open.deadline, waiter: open.waiter })
    }

    fn advance(&mut self) {
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.base += 1;
        }
    }
}

impl<A> Open<A> {
    /// Counts what some members said; whether all of that view have said the same now.
    fn vote(&mut self, said: &Appended, first: SeqNum) -> bool {
        let places = said.members.iter().filter_map(|member| said.view.index_of(*member)).filter(|place| *place < 64);
        let members = places.fold(0_u64, |members, place| members | 1 << place);
        if members == 0 {
            return false;
        }
        let everyone = u64::MAX >> (64 - said.view.members.len().clamp(1, 64));
        let found = self.votes.iter_mut().find(|vote| vote.view == said.view.number && vote.first == first);
        if let Some(vote) = found {
            vote.members |= members;
            return vote.members == everyone;
        }
        if self.votes.len() >= MAX_VOTES {
            self.votes.remove(0);
        }
        self.votes.push(Vote { view: said.view.number, first, members });
        members == everyone
    }
}

/// Where finished appends go, and the bytes that they give back.
pub(super) struct Settle<'a, A> {
    pub outcomes: &'a mut AppendOutcomes<A>,
    pub bytes: &'a mut u64,
}
