//! Which numbers of a wide color are granted and not settled: what keeps the color's stable where it is.
//!
//! A position knows which child it gave every range to. A child says, cumulatively, how far what it was given is settled;
//! a new child says which ranges its predecessor's logs have, and what else that one was given is lost for good, since
//! everybody below has sealed to the new one: nobody will ever give those numbers to a record, so they count as settled
//! and are holes. Nothing is kept of what is settled.

use std::collections::VecDeque;

use flexlog_protocol::SeqNum;
use flexlog_protocol::peer::Range;

#[derive(Debug, Default)]
pub(super) struct Granted {
    /// What is not known to be settled, ascending, and the child that has it.
    open: VecDeque<(Range, usize)>,
    /// How far each child has settled what it was given.
    settled: Vec<SeqNum>,
    /// The exclusive end of all that was granted.
    upto: SeqNum,
    /// Everything below is settled or lost: it never goes back.
    floor: SeqNum,
}

impl Granted {
    /// A child is given a range, which lies above all before.
    pub(super) fn grant(&mut self, range: Range, child: usize) {
        self.open.push_back((range, child));
        self.upto = self.upto.max(range.end());
    }

    /// Everything below `upto` that no child has is nobody's.
    pub(super) fn pass_over(&mut self, upto: SeqNum) {
        self.upto = self.upto.max(upto);
    }

    /// What `child` was given below `upto` is settled.
    pub(super) fn settle(&mut self, child: usize, upto: SeqNum) {
        let settled = self.of(child);
        *settled = upto.max(*settled);
    }

    /// A new `child` reports that its logs have `own`, and nothing else of what its predecessor was given.
    pub(super) fn replace(&mut self, child: usize, own: &[Range]) {
        *self.of(child) = SeqNum::MIN;
        let floor = self.floor;
        let mut all: Vec<_> = self.open.drain(..).filter(|(_, other)| *other != child).collect();
        all.extend(own.iter().filter(|range| range.end() > floor).map(|range| (*range, child)));
        all.sort_unstable();
        self.upto = all.iter().fold(self.upto, |upto, (range, _)| upto.max(range.end()));
        self.open = all.into();
    }

    /// Whether `child` has anything that is not settled.
    pub(super) fn has(&self, child: usize) -> bool {
        self.open.iter().any(|(_, other)| *other == child)
    }

    /// Everything below is settled or lost. To be asked only when every child has reported: what one that has not may
    /// have is not known.
    pub(super) fn floor(&mut self) -> SeqNum {
        let settled = |child: usize| self.settled.get(child).copied().unwrap_or_default();
        let done = self.open.iter().take_while(|(range, child)| range.end() <= settled(*child)).count();
        self.open.drain(..done);
        let floor = self.open.front().map_or(self.upto, |(range, _)| range.first);
        self.floor = self.floor.max(floor);
        self.floor
    }

    fn of(&mut self, child: usize) -> &mut SeqNum {
        if self.settled.len() <= child {
            self.settled.resize(child + 1, SeqNum::MIN);
        }
        &mut self.settled[child]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexlog_protocol::Epoch;

    fn n(epoch: u32, counter: u32) -> SeqNum {
        SeqNum::new(Epoch(epoch), counter)
    }

    fn range(counter: u32, count: u32) -> Range {
        Range { first: n(7, counter), count }
    }

    #[test]
    fn the_floor_is_the_first_number_that_is_not_settled() {
        let mut granted = Granted::default();
        granted.pass_over(n(7, 0));
        assert_eq!(granted.floor(), n(7, 0));
        granted.grant(range(0, 3), 0);
        granted.grant(range(3, 2), 1);
        granted.grant(range(5, 1), 0);
        granted.settle(1, n(7, 5));
        assert_eq!(granted.floor(), n(7, 0));
        granted.settle(0, n(7, 3));
        assert_eq!(granted.floor(), n(7, 5));
        granted.settle(0, n(7, 2));
        assert_eq!(granted.floor(), n(7, 5), "what was said later is older");
        granted.settle(0, n(7, 6));
        assert_eq!(granted.floor(), n(7, 6));
        granted.grant(range(6, 1), 2);
        assert_eq!(granted.floor(), n(7, 6));
    }

    #[test]
    fn what_a_new_child_does_not_have_is_lost() {
        let mut granted = Granted::default();
        granted.grant(range(0, 4), 0);
        granted.grant(range(4, 4), 1);
        granted.grant(range(8, 4), 0);
        granted.replace(0, &[range(2, 2)]);
        assert!(granted.has(0));
        granted.settle(1, n(7, 8));
        assert_eq!(granted.floor(), n(7, 2), "0 and 1 are lost, 2 and 3 are not settled");
        granted.settle(0, n(7, 4));
        assert_eq!(granted.floor(), n(7, 12), "8 to 11 are lost too");
        assert!(!granted.has(0) && !granted.has(1));
    }

    #[test]
    fn a_report_of_what_is_settled_already_takes_nothing_back() {
        let mut granted = Granted::default();
        granted.grant(range(0, 4), 0);
        granted.settle(0, n(7, 4));
        assert_eq!(granted.floor(), n(7, 4));
        granted.replace(0, &[range(0, 4)]);
        assert_eq!(granted.floor(), n(7, 4));
        granted.grant(range(4, 1), 0);
        assert_eq!(granted.floor(), n(7, 4), "what the old child settled says nothing of the new one's");
    }

    #[test]
    fn what_a_position_finds_when_it_starts_is_in_order() {
        let mut granted = Granted::default();
        granted.replace(1, &[range(2, 1), range(7, 2)]);
        granted.settle(1, n(7, 3));
        granted.replace(0, &[range(3, 1)]);
        granted.pass_over(n(9, 0));
        assert_eq!(granted.floor(), n(7, 3));
        granted.settle(0, n(7, 4));
        granted.settle(1, n(7, 9));
        assert_eq!(granted.floor(), n(9, 0));
    }
}
