//! Tail questions, in rounds.
//!
//! A round asks the owner for the tails of all colors that waiters wait for, and then *every* member whether it still
//! follows this leaf. The confirmations count only because they are asked for after the owner has answered, and a
//! waiter only joins a round that has not been sent: so the answer is no older than the question, and no newer leaf had
//! settled anything when the owner gave it. One round is under way at most; who comes meanwhile shares the next one.

use flexlog_protocol::peer::ToMember;
use flexlog_protocol::{Color, Lsn, ReplicaId, SeqNum};
use rustc_hash::FxHashMap;

use crate::members::MemberSet;

#[derive(Debug, Default)]
pub(crate) struct Tails {
    waiters: Vec<Waiter>,
    rounds: u64,
    under_way: Option<Round>,
}

#[derive(Debug)]
struct Waiter {
    member: ReplicaId,
    ask: u64,
    color: Color,
}

#[derive(Debug)]
struct Round {
    waiters: Vec<Waiter>,
    /// What the owner answered: next number, and the place in the log that ends the earlier epochs.
    answers: Option<FxHashMap<Color, (SeqNum, Lsn)>>,
    confirmed: MemberSet,
}

impl Tails {
    pub(crate) fn ask(&mut self, member: ReplicaId, ask: u64, color: Color) {
        self.waiters.push(Waiter { member, ask, color });
    }

    /// This member's process may be another one: it has names of its own for what it asks, and asks again.
    pub(crate) fn forget(&mut self, member: ReplicaId) {
        self.waiters.retain(|waiter| waiter.member != member);
        if let Some(round) = &mut self.under_way {
            round.waiters.retain(|waiter| waiter.member != member);
        }
    }

    /// Begins a round if anyone waits and none is under way; returns its number and the colors to ask the owner for.
    pub(crate) fn begin(&mut self) -> Option<(u64, Vec<Color>)> {
        if self.under_way.is_some() || self.waiters.is_empty() {
            return None;
        }
        let waiters = std::mem::take(&mut self.waiters);
        let mut colors: Vec<Color> = waiters.iter().map(|waiter| waiter.color).collect();
        colors.sort_unstable();
        colors.dedup();
        self.rounds += 1;
        self.under_way = Some(Round { waiters, answers: None, confirmed: MemberSet::default() });
        Some((self.rounds, colors))
    }

    /// Whether the owner's answer to this round is still to come.
    pub(crate) fn expects(&self, round: u64) -> bool {
        round == self.rounds && self.under_way.as_ref().is_some_and(|round| round.answers.is_none())
    }

    /// Takes the owner's answer, if it is the one expected. From here on confirmations count.
    pub(crate) fn answered(&mut self, answers: FxHashMap<Color, (SeqNum, Lsn)>) {
        if let Some(round) = &mut self.under_way {
            round.answers = Some(answers);
        }
    }

    /// Takes a member's confirmation; with the last of `all`, the round is over and this returns who is told what.
    pub(crate) fn confirmed(&mut self, member: usize, round: u64, all: MemberSet) -> Vec<(ReplicaId, ToMember)> {
        if round != self.rounds {
            return Vec::new();
        }
        let Some(Round { answers: Some(_), confirmed, .. }) = &mut self.under_way else { return Vec::new() };
        confirmed.insert(member);
        self.look(all)
    }

    /// The members whose confirmation is awaited; of none without a round that the owner has answered.
    pub(crate) fn lacking(&self, all: MemberSet) -> MemberSet {
        match &self.under_way {
            Some(Round { answers: Some(_), confirmed, .. }) => all.without(*confirmed),
            _ => MemberSet::default(),
        }
    }

    /// The round that members are to confirm.
    pub(crate) fn to_confirm(&self) -> Option<u64> {
        self.under_way.as_ref().filter(|round| round.answers.is_some()).map(|_| self.rounds)
    }

    /// Ends the round if all of `all` have confirmed it: also where fewer are needed than before.
    pub(crate) fn look(&mut self, all: MemberSet) -> Vec<(ReplicaId, ToMember)> {
        let Some(Round { answers: Some(_), confirmed, .. }) = &self.under_way else { return Vec::new() };
        if !all.without(*confirmed).is_empty() {
            return Vec::new();
        }
        let Some(Round { waiters, answers: Some(answers), .. }) = self.under_way.take() else { return Vec::new() };
        let answer = |waiter: Waiter| {
            let (tail, after) = *answers.get(&waiter.color)?;
            Some((waiter.member, ToMember::Tail { ask: waiter.ask, tail, after }))
        };
        waiters.into_iter().filter_map(answer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexlog_protocol::Epoch;

    const RED: Color = Color(1);
    const BLUE: Color = Color(2);
    const A: ReplicaId = ReplicaId(1);
    const B: ReplicaId = ReplicaId(2);

    fn answers(counter: u32) -> FxHashMap<Color, (SeqNum, Lsn)> {
        [RED, BLUE].map(|color| (color, (SeqNum::new(Epoch(1), counter), Lsn(0)))).into_iter().collect()
    }

    fn tail(ask: u64, counter: u32) -> ToMember {
        ToMember::Tail { ask, tail: SeqNum::new(Epoch(1), counter), after: Lsn(0) }
    }

    #[test]
    fn a_round_needs_the_owner_and_then_every_member() {
        let all = MemberSet::first(2);
        let mut tails = Tails::default();
        assert_eq!(tails.begin(), None);
        tails.ask(A, 1, BLUE);
        tails.ask(B, 1, RED);
        tails.ask(B, 2, BLUE);
        assert_eq!(tails.begin(), Some((1, vec![RED, BLUE])));
        assert_eq!((tails.confirmed(0, 1, all), tails.confirmed(1, 1, all)), (vec![], vec![]), "before the answer");
        assert!(tails.expects(1) && !tails.expects(2));
        tails.answered(answers(5));
        assert!(!tails.expects(1));
        assert_eq!((tails.confirmed(0, 1, all), tails.confirmed(0, 1, all)), (vec![], vec![]), "the same one twice");
        assert_eq!(tails.confirmed(1, 1, all), [(A, tail(1, 5)), (B, tail(1, 5)), (B, tail(2, 5))]);
        assert_eq!(tails.confirmed(1, 1, all), []);
    }

    #[test]
    fn who_asks_during_a_round_waits_for_the_next() {
        let all = MemberSet::first(1);
        let mut tails = Tails::default();
        tails.ask(A, 1, RED);
        assert!(tails.begin().is_some());
        tails.ask(A, 2, RED);
        assert_eq!(tails.begin(), None, "one at a time");
        tails.answered(answers(5));
        assert_eq!(tails.confirmed(0, 1, all), [(A, tail(1, 5))]);
        assert_eq!(tails.begin(), Some((2, vec![RED])));
        tails.answered(answers(6));
        assert_eq!(tails.confirmed(0, 1, all), [], "an older round's confirmation");
        assert_eq!(tails.confirmed(0, 2, all), [(A, tail(2, 6))]);
    }

    #[test]
    fn a_process_that_is_gone_is_not_answered() {
        let all = MemberSet::first(1);
        let mut tails = Tails::default();
        tails.ask(A, 1, RED);
        tails.ask(B, 1, RED);
        assert!(tails.begin().is_some());
        tails.ask(A, 2, RED);
        tails.forget(A);
        tails.answered(answers(5));
        assert_eq!(tails.confirmed(0, 1, all), [(B, tail(1, 5))]);
        assert_eq!(tails.begin(), None);
    }
}
