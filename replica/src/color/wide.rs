//! A color that is on several shards: this shard's log has some of its numbers, ascending, with gaps that belong to others.
//!
//! How far all shards are settled, the leaf says; entries of this shard's log do not move that. Below it nothing is kept
//! here a record: which numbers are this shard's is asked of the store. At or above it the shard's own numbers are kept,
//! for the leaf to report when another one takes over. They are bounded by what is on its way.

use std::collections::BTreeMap;

use flexlog_protocol::peer::Range;
use flexlog_protocol::{Epoch, SeqNum};

use super::{OutOfOrder, Place, before};

/// What a member knows of one such color.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Wide {
    /// Everything below is settled, on whichever shard; the least number where the leaf has not said any.
    stable: SeqNum,
    trim: Option<SeqNum>,
    /// Numbers of this log that name no record, not all trimmed: first number and count, apart.
    holes: BTreeMap<SeqNum, u32>,
    /// Known ends of epochs, exclusive, and the epoch in which the color went on; not where all is trimmed.
    ends: BTreeMap<SeqNum, Epoch>,
    /// The exclusive end of the last epoch with a number or an end here, and whether it is closed.
    last: Option<(SeqNum, bool)>,
    /// The numbers of this log at or above `stable`, holes included: first number and count, apart.
    own: BTreeMap<SeqNum, u32>,
    /// The exclusive end of what was given to records. Not in checkpoints: what it guards against comes from a leaf.
    assigned: SeqNum,
}

impl Wide {
    pub(crate) fn restore(
        (stable, trim): (SeqNum, Option<SeqNum>),
        last: Option<(SeqNum, bool)>,
        own: BTreeMap<SeqNum, u32>,
        holes: BTreeMap<SeqNum, u32>,
        ends: BTreeMap<SeqNum, Epoch>,
    ) -> Self {
        Self { stable, trim, holes, ends, last, own, assigned: SeqNum::MIN }
    }

    pub(crate) fn stable(&self) -> SeqNum {
        self.stable
    }

    pub(crate) fn trim_point(&self) -> Option<SeqNum> {
        self.trim
    }

    pub(crate) fn holes(&self) -> &BTreeMap<SeqNum, u32> {
        &self.holes
    }

    pub(crate) fn ends(&self) -> &BTreeMap<SeqNum, Epoch> {
        &self.ends
    }

    /// The exclusive end of the last epoch with a number or an end here, and whether it is closed.
    pub(crate) fn end(&self) -> Option<(SeqNum, bool)> {
        self.last
    }

    /// The numbers of this log at or above stable, ascending and apart.
    pub(crate) fn own(&self) -> impl Iterator<Item = Range> {
        self.own.iter().map(|(first, count)| Range { first: *first, count: *count })
    }

    /// `count` numbers from `first` on are given to records. Those of one log ascend, over all of its leaves.
    pub(crate) fn assign(&mut self, first: SeqNum, count: u32) -> Result<(), OutOfOrder> {
        if first < self.assigned {
            return Err(OutOfOrder::NotNext { first, end: self.assigned });
        }
        self.assigned = self.take(first, count)?;
        #[cfg(test)]
        if crate::planted::is(crate::planted::Bug::OwnNumbersMoveStable) {
            self.settle(self.assigned);
        }
        Ok(())
    }

    /// `count` numbers from `first` on name no record. They may be behind or before others of this log: what another
    /// shard's leaf lost is made a hole wherever there is a log.
    pub(crate) fn hole(&mut self, first: SeqNum, count: u32) -> Result<(), OutOfOrder> {
        self.take(first, count)?;
        if self.trim.is_none_or(|trim| trim < last_of(first, count)) {
            self.holes.insert(first, count);
        }
        Ok(())
    }

    /// Makes numbers this log's own. Returns their exclusive end.
    fn take(&mut self, first: SeqNum, count: u32) -> Result<SeqNum, OutOfOrder> {
        let end = first.plus(count).filter(|end| first >= self.stable && self.is_free(first, *end));
        let end = end.ok_or(OutOfOrder::NotFree { first })?;
        let mut range = (first, count);
        let before = self.own.range(..first).next_back().map(|(at, count)| (*at, *count));
        if let Some((at, held)) = before.filter(|(at, held)| at.plus(*held) == Some(first)) {
            range = (at, held + count);
        }
        if let Some(held) = self.own.remove(&end) {
            range.1 += held;
        }
        self.own.insert(range.0, range.1);
        self.last = match self.last {
            Some((last, closed)) if last >= end => Some((last, closed)),
            _ => Some((end, false)),
        };
        Ok(end)
    }

    /// Whether no number from `first` up to `end` is this log's at or above stable, or behind the end of its epoch.
    fn is_free(&self, first: SeqNum, end: SeqNum) -> bool {
        let taken =
            self.own.range(..end).next_back().is_some_and(|(at, count)| at.plus(*count).is_none_or(|e| e > first));
        let closed = self.ends.range(..end).next_back().is_some_and(|(_, next)| first.epoch() < *next);
        !taken && !closed
    }

    /// The epoch of `end` has no number from `end` on, and the color goes on in `next`.
    pub(crate) fn end_epoch(&mut self, end: SeqNum, next: Epoch) -> Result<(), OutOfOrder> {
        let of_epoch = SeqNum::first_of(end.epoch())..=SeqNum::new(end.epoch(), u32::MAX);
        let passed = next <= end.epoch()
            || self.last.is_some_and(|(last, _)| last > end && last.epoch() == end.epoch())
            || self.own.range(end..SeqNum::first_of(next)).next().is_some()
            || self.ends.range(of_epoch).any(|(other, _)| *other != end);
        if passed {
            return Err(OutOfOrder::OtherEnd { end });
        }
        if self.trim.is_none_or(|trim| trim < before(SeqNum::first_of(next))) {
            self.ends.insert(end, next);
        }
        if self.last.is_none_or(|(last, _)| last <= end) {
            self.last = Some((end, true));
        }
        Ok(())
    }

    /// Everything below `upto` is settled on all shards, and what of it is in this log is committed. Returns whether that
    /// is news.
    pub(crate) fn settle(&mut self, upto: SeqNum) -> bool {
        if upto <= self.stable {
            return false;
        }
        self.stable = upto;
        while let Some(range) = self.own.first_entry().filter(|range| *range.key() < upto) {
            let (first, count) = range.remove_entry();
            // What is left of it begins at `upto`, which is then of the same epoch.
            if let Some(end) = first.plus(count).filter(|end| *end > upto) {
                self.own.insert(upto, end.counter() - upto.counter());
            }
        }
        true
    }

    /// Everything at or below `upto` is gone. Returns whether that is news.
    pub(crate) fn trim(&mut self, upto: SeqNum) -> bool {
        if self.trim.is_some_and(|trim| trim >= upto) {
            return false;
        }
        self.trim = Some(upto);
        self.holes.retain(|first, count| last_of(*first, *count) > upto);
        self.ends.retain(|_, next| before(SeqNum::first_of(*next)) > upto);
        true
    }

    /// What `n` is.
    pub(crate) fn place(&self, n: SeqNum) -> Place {
        if let Some(trim) = self.trim.filter(|trim| n <= *trim) {
            return Place::Trimmed(trim);
        }
        if n >= self.stable {
            return Place::Beyond;
        }
        let in_hole = self.holes.range(..=n).next_back().is_some_and(|(first, count)| n <= last_of(*first, *count));
        let ended = self.ends.range(..=n).next_back().is_some_and(|(_, next)| n < SeqNum::first_of(*next));
        if in_hole || ended { Place::Hole } else { Place::Settled }
    }
}

/// The last of `count` numbers, which are of one epoch and at least one.
fn last_of(first: SeqNum, count: u32) -> SeqNum {
    SeqNum::new(first.epoch(), first.counter().saturating_add(count.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(epoch: u32, counter: u32) -> SeqNum {
        SeqNum::new(Epoch(epoch), counter)
    }

    fn own(wide: &Wide) -> Vec<(SeqNum, u32)> {
        wide.own().map(|range| (range.first, range.count)).collect()
    }

    #[test]
    fn numbers_of_records_ascend_with_gaps() {
        let mut wide = Wide::default();
        wide.assign(n(1, 5), 2).unwrap();
        assert!(wide.clone().assign(n(1, 6), 1).is_err(), "none twice");
        assert!(wide.clone().assign(n(1, 3), 1).is_err(), "never back");
        wide.assign(n(1, 7), 1).unwrap();
        wide.assign(n(1, 20), 1).unwrap();
        wide.assign(n(3, 4), 2).unwrap();
        assert_eq!(own(&wide), [(n(1, 5), 3), (n(1, 20), 1), (n(3, 4), 2)], "neighbours are one range");
        assert_eq!(wide.end(), Some((n(3, 6), false)));
        assert!(wide.clone().assign(n(1, 30), 1).is_err(), "an earlier epoch is over");
        assert!(wide.assign(n(3, u32::MAX), 1).is_err(), "an epoch has no such number");
    }

    #[test]
    fn holes_may_be_anywhere_where_nothing_is() {
        let mut wide = Wide::default();
        wide.assign(n(1, 5), 2).unwrap();
        wide.assign(n(1, 10), 2).unwrap();
        for (first, count) in [(n(1, 4), 2), (n(1, 6), 1), (n(1, 7), 4), (n(1, 0), 30)] {
            assert_eq!(wide.clone().hole(first, count), Err(OutOfOrder::NotFree { first }), "{first} {count}");
        }
        wide.hole(n(1, 7), 3).unwrap();
        wide.hole(n(1, 20), 3).unwrap();
        assert_eq!(own(&wide), [(n(1, 5), 7), (n(1, 20), 3)]);
        wide.assign(n(1, 15), 1).unwrap();
        assert_eq!(wide.end(), Some((n(1, 23), false)));
        wide.settle(n(1, 23));
        assert_eq!(
            (wide.place(n(1, 9)), wide.place(n(1, 10)), wide.place(n(1, 22))),
            (Place::Hole, Place::Settled, Place::Hole)
        );
        assert!(wide.hole(n(1, 16), 1).is_err(), "what is settled everywhere was somebody's");
    }

    #[test]
    fn stable_moves_by_word_alone_and_never_back() {
        let mut wide = Wide::default();
        wide.assign(n(1, 5), 4).unwrap();
        wide.end_epoch(n(1, 9), Epoch(2)).unwrap();
        wide.assign(n(2, 0), 1).unwrap();
        assert_eq!((wide.stable(), wide.place(n(1, 5))), (SeqNum::MIN, Place::Beyond));
        assert!(wide.settle(n(1, 7)));
        assert!(!wide.settle(n(1, 6)) && !wide.settle(n(1, 7)));
        assert_eq!((wide.stable(), own(&wide)), (n(1, 7), vec![(n(1, 7), 2), (n(2, 0), 1)]));
        assert!(wide.settle(n(2, 0)));
        assert_eq!(own(&wide), [(n(2, 0), 1)]);
    }

    #[test]
    fn an_epoch_has_one_end() {
        let mut wide = Wide::default();
        wide.assign(n(2, 3), 2).unwrap();
        for end in [n(2, 3), n(2, 4)] {
            assert_eq!(
                wide.clone().end_epoch(end, Epoch(4)),
                Err(OutOfOrder::OtherEnd { end }),
                "numbers are behind it"
            );
        }
        wide.end_epoch(n(2, 9), Epoch(4)).unwrap();
        wide.end_epoch(n(2, 9), Epoch(4)).unwrap();
        assert!(wide.clone().end_epoch(n(2, 8), Epoch(4)).is_err());
        assert_eq!(wide.end(), Some((n(2, 9), true)));
        assert!(wide.clone().assign(n(2, 9), 1).is_err() && wide.clone().assign(n(2, 8), 2).is_err(), "closed");
        assert!(wide.clone().hole(n(3, 0), 1).is_err(), "passed over");
        wide.hole(n(2, 7), 2).unwrap();
        wide.assign(n(4, 0), 1).unwrap();
        assert!(wide.clone().end_epoch(n(3, 0), Epoch(5)).is_err(), "numbers are behind it");
        wide.settle(n(4, 1));
        assert_eq!(
            (wide.place(n(2, 6)), wide.place(n(2, 9)), wide.place(n(3, 7))),
            (Place::Settled, Place::Hole, Place::Hole)
        );
        assert_eq!(wide.place(n(4, 0)), Place::Settled);
    }

    #[test]
    fn a_trim_forgets_what_is_wholly_below() {
        let mut wide = Wide::default();
        wide.hole(n(1, 0), 2).unwrap();
        wide.hole(n(1, 4), 3).unwrap();
        wide.end_epoch(n(1, 7), Epoch(2)).unwrap();
        wide.settle(n(2, 5));
        assert!(wide.trim(n(1, 5)));
        assert!(!wide.trim(n(1, 5)) && !wide.trim(n(1, 0)), "trim never goes back");
        assert_eq!((wide.holes().len(), wide.ends().len()), (1, 1));
        assert_eq!((wide.place(n(1, 5)), wide.place(n(1, 6))), (Place::Trimmed(n(1, 5)), Place::Hole));
        assert!(wide.trim(n(1, 6)));
        assert_eq!((wide.holes().len(), wide.ends().len(), wide.place(n(1, 9))), (0, 1, Place::Hole));
        assert!(wide.trim(n(2, 0)));
        assert_eq!((wide.ends().len(), wide.end()), (0, Some((n(1, 7), true))));
        assert_eq!(wide.place(n(2, 1)), Place::Settled);
    }
}
