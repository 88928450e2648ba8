//! The counting half: the owner of colors, which hands out their numbers.
//!
//! It relies on having been told, by recovery, how far every color's numbers went before it, and on its incarnation's
//! epoch being fresh. It promises numbers that are contiguous from 0 within its epoch for each color, every request's
//! numbers in one piece, and the end of a color's earlier epoch with every answer until that end is known to be in the
//! log. All of this is soft state: a few words for each color that has numbers.

use flexlog_protocol::peer::{ColorEnd, FromParent, ToParent};
use flexlog_protocol::{Color, Epoch, Incarnation, SeqNum};
use rustc_hash::FxHashMap;

/// The owner of colors, in one incarnation.
#[derive(Debug)]
pub struct Counter {
    epoch: Epoch,
    limit: u32,
    colors: FxHashMap<Color, State>,
}

/// What the owner knows of one color.
#[derive(Clone, Copy, Debug)]
struct State {
    /// The next number's counter in the own epoch, from 0.
    next: u32,
    /// The exclusive end of the earlier epoch, until the log is known to say it.
    ends: Option<SeqNum>,
    /// Everything below is settled.
    stable: SeqNum,
    /// A request did not fit. Smaller ones behind it get nothing either: answers are in request order.
    full: bool,
}

impl Counter {
    /// The owner as `incarnation`, where recovery found `colors`.
    ///
    /// An epoch that an `EpochEnd` closed already is ended once more, at the same number: between that entry and this
    /// incarnation there may have been epochs that gave no number, and a new `EpochEnd` is what says so. (With a color
    /// on several shards, `closed` also tells which of their ends stands.)
    #[must_use]
    pub fn new(incarnation: Incarnation, colors: Vec<ColorEnd>) -> Self {
        let found = |c: ColorEnd| (c.color, State { next: 0, ends: Some(c.end), stable: c.end, full: false });
        let colors = colors.into_iter().map(found).collect();
        Self { epoch: incarnation.epoch, limit: SeqNum::MAX_COUNT, colors }
    }

    /// The same owner, giving out at most `limit` numbers of a color in its epoch. For tests of a full epoch.
    #[must_use]
    pub fn with_limit(self, limit: u32) -> Self {
        Self { limit, ..self }
    }

    /// Takes one message from the child, and adds the answer, if it has one, to `out`.
    pub fn handle(&mut self, input: ToParent, out: &mut Vec<FromParent>) {
        match input {
            ToParent::Order { batch, color, count } => out.push(self.order(batch, color, count)),
            ToParent::Tails { round, colors } => {
                let tails = colors.into_iter().map(|color| self.tail(color)).collect();
                out.push(FromParent::Tails { round, tails });
            }
            ToParent::Settle(settled) => settled.into_iter().for_each(|(color, upto)| self.settle(color, upto)),
            ToParent::Here | ToParent::Sealed { .. } | ToParent::Filled(_) => {}
        }
    }

    /// Everything of `color` below this number is settled, as far as the child has said.
    #[must_use]
    pub fn stable(&self, color: Color) -> SeqNum {
        self.colors.get(&color).map_or(SeqNum::MIN, |state| state.stable)
    }

    fn order(&mut self, batch: u64, color: Color, count: u32) -> FromParent {
        let fresh = State { next: 0, ends: None, stable: SeqNum::MIN, full: false };
        let state = self.colors.entry(color).or_insert(fresh);
        match state.next.checked_add(count) {
            Some(end) if end <= self.limit && !state.full => {
                let first = SeqNum::new(self.epoch, state.next);
                state.next = end;
                FromParent::Grant { batch, color, first, count, ends: state.ends }
            }
            _ => {
                state.full = true;
                FromParent::EpochFull { batch }
            }
        }
    }

    /// A question leaves no state behind: colors without numbers cost nothing.
    fn tail(&self, color: Color) -> (Color, SeqNum, Option<SeqNum>) {
        match self.colors.get(&color) {
            Some(state) => (color, SeqNum::new(self.epoch, state.next), state.ends),
            None => (color, SeqNum::first_of(self.epoch), None),
        }
    }

    fn settle(&mut self, color: Color, upto: SeqNum) {
        let Some(state) = self.colors.get_mut(&color) else { return };
        if upto > SeqNum::new(self.epoch, state.next) {
            return; // Nobody was given these.
        }
        state.stable = state.stable.max(upto);
        if upto.epoch() == self.epoch {
            // The child writes the `EpochEnd` before anything of the new epoch.
            state.ends = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexlog_protocol::Position;
    use uuid::Uuid;

    const RED: Color = Color(1);
    const BLUE: Color = Color(2);

    fn counter(colors: Vec<ColorEnd>) -> Counter {
        Counter::new(Incarnation { position: Position(0), epoch: Epoch(7), uuid: Uuid::from_u128(7) }, colors)
    }

    fn number(epoch: u32, counter: u32) -> SeqNum {
        SeqNum::new(Epoch(epoch), counter)
    }

    fn answer(counter: &mut Counter, input: ToParent) -> FromParent {
        let mut out = Vec::new();
        counter.handle(input, &mut out);
        assert_eq!(out.len(), 1);
        out.remove(0)
    }

    fn order(counter: &mut Counter, batch: u64, color: Color, count: u32) -> FromParent {
        answer(counter, ToParent::Order { batch, color, count })
    }

    fn tail(counter: &mut Counter, color: Color) -> (Color, SeqNum, Option<SeqNum>) {
        let FromParent::Tails { round: 1, tails } = answer(counter, ToParent::Tails { round: 1, colors: vec![color] })
        else {
            panic!("no tails")
        };
        tails[0]
    }

    fn settle(counter: &mut Counter, color: Color, upto: SeqNum) {
        let mut out = Vec::new();
        counter.handle(ToParent::Settle(vec![(color, upto)]), &mut out);
        assert_eq!(out, []);
    }

    fn grant(batch: u64, color: Color, first: SeqNum, count: u32, ends: Option<SeqNum>) -> FromParent {
        FromParent::Grant { batch, color, first, count, ends }
    }

    #[test]
    fn each_color_counts_from_zero_without_gaps() {
        let mut c = counter(vec![]);
        assert_eq!(order(&mut c, 1, RED, 3), grant(1, RED, number(7, 0), 3, None));
        assert_eq!(order(&mut c, 2, BLUE, 1), grant(2, BLUE, number(7, 0), 1, None));
        assert_eq!(order(&mut c, 3, RED, 2), grant(3, RED, number(7, 3), 2, None));
        assert_eq!(tail(&mut c, RED), (RED, number(7, 5), None));
    }

    #[test]
    fn tails_are_answered_in_the_order_asked_and_leave_nothing_behind() {
        let mut c = counter(vec![ColorEnd::narrow(BLUE, number(3, 9), false)]);
        let asked = ToParent::Tails { round: 4, colors: vec![RED, BLUE] };
        let tails = vec![(RED, number(7, 0), None), (BLUE, number(7, 0), Some(number(3, 9)))];
        assert_eq!(answer(&mut c, asked), FromParent::Tails { round: 4, tails });
        assert_eq!(c.colors.len(), 1);
    }

    #[test]
    fn the_earlier_end_is_told_until_the_log_says_it() {
        for closed in [false, true] {
            let mut c = counter(vec![ColorEnd::narrow(RED, number(3, 9), closed)]);
            let ends = Some(number(3, 9));
            assert_eq!(order(&mut c, 1, RED, 1), grant(1, RED, number(7, 0), 1, ends));
            settle(&mut c, RED, number(3, 9));
            assert_eq!(order(&mut c, 2, RED, 1), grant(2, RED, number(7, 1), 1, ends));
            assert_eq!(tail(&mut c, RED), (RED, number(7, 2), ends));
            settle(&mut c, RED, number(7, 0));
            assert_eq!(order(&mut c, 3, RED, 1), grant(3, RED, number(7, 2), 1, None));
            assert_eq!(tail(&mut c, RED), (RED, number(7, 3), None));
        }
    }

    #[test]
    fn stable_only_grows_and_never_beyond_what_was_given() {
        let mut c = counter(vec![ColorEnd::narrow(RED, number(3, 9), true)]);
        assert_eq!((c.stable(RED), c.stable(BLUE)), (number(3, 9), SeqNum::MIN));
        order(&mut c, 1, RED, 5);
        for (said, stable) in [(2, 2), (5, 5), (3, 5), (6, 5)] {
            settle(&mut c, RED, number(7, said));
            assert_eq!(c.stable(RED), number(7, stable));
        }
        settle(&mut c, BLUE, number(7, 0));
        assert_eq!((c.stable(BLUE), c.colors.len()), (SeqNum::MIN, 1));
    }

    #[test]
    fn a_full_epoch_is_said_and_stays_full() {
        let mut c = counter(vec![]).with_limit(4);
        assert_eq!(order(&mut c, 1, RED, 3), grant(1, RED, number(7, 0), 3, None));
        assert_eq!(order(&mut c, 2, RED, 2), FromParent::EpochFull { batch: 2 });
        assert_eq!(order(&mut c, 3, RED, 1), FromParent::EpochFull { batch: 3 });
        assert_eq!(order(&mut c, 4, BLUE, 4), grant(4, BLUE, number(7, 0), 4, None));
        assert_eq!(tail(&mut c, RED), (RED, number(7, 3), None));
    }

    #[test]
    fn the_exclusive_end_of_an_epoch_is_a_number_too() {
        let mut c = counter(vec![]);
        assert_eq!(order(&mut c, 1, RED, u32::MAX), grant(1, RED, number(7, 0), u32::MAX, None));
        assert_eq!(tail(&mut c, RED), (RED, number(7, u32::MAX), None));
        assert_eq!(order(&mut c, 2, RED, 1), FromParent::EpochFull { batch: 2 });
    }
}
