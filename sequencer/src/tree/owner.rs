//! The counting: numbers of the colors that a position owns.
//!
//! It relies on having been told, by the reports of everything below, how far every color's numbers went before it, and
//! on its incarnation's epoch being fresh. It promises numbers that are contiguous from 0 within its epoch for each
//! color, every request's numbers in one piece, and the end of a color's earlier epoch with every answer: shards write it
//! once. All of this is soft state, a few words for each color that has numbers.

use flexlog_protocol::{Color, Epoch, SeqNum};
use rustc_hash::FxHashMap;

/// What an owner hands out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Numbers {
    pub(super) first: SeqNum,
    /// The exclusive end of the color's earlier epoch, if it had one.
    pub(super) ends: Option<SeqNum>,
}

#[derive(Debug)]
pub(super) struct Owner {
    epoch: Epoch,
    /// The most numbers of a color in this epoch, and how many of them are given before a new epoch is asked for.
    limit: u32,
    enough: u32,
    colors: FxHashMap<Color, State>,
    granted: u64,
    full: bool,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// The next number's counter in the own epoch.
    next: u32,
    ends: Option<SeqNum>,
    /// A request did not fit. Smaller ones behind it get nothing either: answers are in request order.
    full: bool,
}

impl Owner {
    /// The owner in its epoch, where `ends` are the exclusive ends of the colors that had numbers before.
    ///
    /// Each is told again though an `EpochEnd` may have closed it already: between that entry and this incarnation there
    /// may have been epochs that gave no number, and a new `EpochEnd` is what says so.
    pub(super) fn new(epoch: Epoch, limit: u32, ends: impl IntoIterator<Item = (Color, SeqNum)>) -> Self {
        let state = |end: SeqNum| State { next: 0, ends: (end > SeqNum::MIN).then_some(end), full: false };
        let colors = ends.into_iter().map(|(color, end)| (color, state(end))).collect();
        // Early enough that the last numbers of the epoch are still there for what comes while the next one begins.
        Self { epoch, limit, enough: limit - limit / 64, colors, granted: 0, full: false }
    }

    /// The next `count` numbers of `color`, or `None` where the epoch has not as many left.
    pub(super) fn grant(&mut self, color: Color, count: u32) -> Option<Numbers> {
        let state = self.colors.entry(color).or_insert(State { next: 0, ends: None, full: false });
        let end = state.next.checked_add(count).filter(|end| *end <= self.limit && !state.full);
        state.full |= end.is_none();
        self.full |= end.is_none_or(|end| end > self.enough);
        let first = SeqNum::new(self.epoch, state.next);
        state.next = end?;
        self.granted += u64::from(count);
        Some(Numbers { first, ends: state.ends })
    }

    /// The next number. A question leaves no state behind: colors without numbers cost nothing.
    pub(super) fn tail(&self, color: Color) -> Numbers {
        match self.colors.get(&color) {
            Some(state) => Numbers { first: SeqNum::new(self.epoch, state.next), ends: state.ends },
            None => Numbers { first: SeqNum::first_of(self.epoch), ends: None },
        }
    }

    /// Whether some color has used up its epoch, or nearly so.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// How many colors have numbers.
    pub(super) fn colors(&self) -> usize {
        self.colors.len()
    }

    /// How many numbers were given, of all colors.
    pub(super) fn granted(&self) -> u64 {
        self.granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: Color = Color(1);
    const BLUE: Color = Color(2);

    fn n(epoch: u32, counter: u32) -> SeqNum {
        SeqNum::new(Epoch(epoch), counter)
    }

    fn numbers(first: SeqNum, ends: Option<SeqNum>) -> Numbers {
        Numbers { first, ends }
    }

    #[test]
    fn numbers_of_a_color_are_contiguous_from_0_in_the_own_epoch() {
        let mut owner = Owner::new(Epoch(7), u32::MAX, []);
        assert_eq!(owner.grant(RED, 3), Some(numbers(n(7, 0), None)));
        assert_eq!(owner.grant(BLUE, 2), Some(numbers(n(7, 0), None)));
        assert_eq!(owner.grant(RED, 1), Some(numbers(n(7, 3), None)));
        assert_eq!((owner.tail(RED), owner.tail(BLUE)), (numbers(n(7, 4), None), numbers(n(7, 2), None)));
        assert_eq!((owner.colors(), owner.granted()), (2, 6));
    }

    #[test]
    fn the_end_of_an_earlier_epoch_comes_with_every_answer() {
        let mut owner = Owner::new(Epoch(7), u32::MAX, [(RED, n(3, 9)), (BLUE, SeqNum::MIN)]);
        assert_eq!(owner.tail(RED), numbers(n(7, 0), Some(n(3, 9))));
        assert_eq!(owner.grant(RED, 2), Some(numbers(n(7, 0), Some(n(3, 9)))));
        assert_eq!(owner.grant(RED, 2), Some(numbers(n(7, 2), Some(n(3, 9)))));
        assert_eq!(owner.grant(BLUE, 1), Some(numbers(n(7, 0), None)), "it was followed and had no numbers");
    }

    #[test]
    fn a_question_costs_nothing() {
        let owner = Owner::new(Epoch(7), u32::MAX, []);
        assert_eq!((owner.tail(RED), owner.colors()), (numbers(n(7, 0), None), 0));
    }

    #[test]
    fn what_does_not_fit_is_not_given_and_neither_is_what_comes_behind_it() {
        let mut owner = Owner::new(Epoch(7), 128, []);
        assert_eq!(owner.grant(RED, 126).map(|n| n.first), Some(n(7, 0)));
        assert!(!owner.is_full());
        assert_eq!(owner.grant(RED, 3), None);
        assert!(owner.is_full());
        assert_eq!(owner.grant(RED, 1), None, "not before the one that did not fit");
        assert_eq!(owner.grant(BLUE, 1).map(|n| n.first), Some(n(7, 0)));
        assert_eq!(owner.tail(RED).first, n(7, 126));
    }

    #[test]
    fn a_new_epoch_is_asked_for_shortly_before_the_last_number() {
        let mut owner = Owner::new(Epoch(7), 128, []);
        assert!(owner.grant(RED, 126).is_some() && !owner.is_full());
        assert!(owner.grant(RED, 1).is_some() && owner.is_full());
        assert!(owner.grant(RED, 1).is_some(), "the rest is still given");
        let mut owner = Owner::new(Epoch(7), u32::MAX, []);
        assert_eq!(owner.grant(RED, u32::MAX).map(|n| n.first), Some(n(7, 0)));
        assert_eq!((owner.grant(RED, 1), owner.tail(RED).first), (None, n(7, u32::MAX)));
    }
}
