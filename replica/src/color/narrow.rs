//! A color that is on one shard: all of its numbers are in this shard's log, in order and without gaps.
//!
//! Only committed entries change it, in the order of the shard log, so it is alike on all members (I6).

use std::collections::BTreeMap;

use flexlog_protocol::{Epoch, SeqNum};

use super::{OutOfOrder, Place, after};

/// The numbers of one epoch: counters from 0 up to but not including `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) epoch: Epoch,
    pub(crate) end: u32,
    pub(crate) closed: bool,
}

/// The settled part of one color.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Narrow {
    /// Epochs that have numbers above the trim point, in order; at most the last is not closed.
    spans: Vec<Span>,
    stable: SeqNum,
    trim: Option<SeqNum>,
    /// First number and count.
    holes: BTreeMap<SeqNum, u32>,
}

impl Narrow {
    pub(crate) fn restore(
        spans: Vec<Span>,
        stable: SeqNum,
        trim: Option<SeqNum>,
        holes: BTreeMap<SeqNum, u32>,
    ) -> Self {
        Self { spans, stable, trim, holes }
    }

    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    pub(crate) fn holes(&self) -> &BTreeMap<SeqNum, u32> {
        &self.holes
    }

    /// Everything below this number is settled.
    pub(crate) fn stable(&self) -> SeqNum {
        self.stable
    }

    pub(crate) fn trim_point(&self) -> Option<SeqNum> {
        self.trim
    }

    /// `count` numbers from `first` on are given to records.
    pub(crate) fn assign(&mut self, first: SeqNum, count: u32) -> Result<(), OutOfOrder> {
        let end = match self.spans.last() {
            Some(span) if span.epoch == first.epoch() && !span.closed => SeqNum::new(span.epoch, span.end),
            Some(span) if span.epoch >= first.epoch() => return Err(OutOfOrder::NotNext { first, end: self.stable }),
            _ => SeqNum::first_of(first.epoch()),
        };
        let after = first.plus(count).filter(|_| first == end && first >= self.stable);
        let Some(after) = after else { return Err(OutOfOrder::NotNext { first, end }) };
        match self.spans.last_mut() {
            Some(span) if span.epoch == first.epoch() => span.end = after.counter(),
            _ => self.spans.push(Span { epoch: first.epoch(), end: after.counter(), closed: false }),
        }
        self.stable = after;
        Ok(())
    }

    /// `count` numbers from `first` on name no record.
    pub(crate) fn hole(&mut self, first: SeqNum, count: u32) -> Result<(), OutOfOrder> {
        self.assign(first, count)?;
        self.holes.insert(first, count);
        Ok(())
    }

    /// The epoch of `end` has no number from `end` on, and the color goes on in `next`.
    pub(crate) fn end_epoch(&mut self, end: SeqNum, next: Epoch) -> Result<(), OutOfOrder> {
        match self.spans.last_mut() {
            Some(span) if span.epoch == end.epoch() => {
                if span.end != end.counter() {
                    return Err(OutOfOrder::NotNext { first: end, end: SeqNum::new(span.epoch, span.end) });
                }
                span.closed = true;
            }
            _ => {}
        }
        self.stable = self.stable.max(SeqNum::first_of(next));
        Ok(())
    }

    /// The color's owner counts in `epoch`, and every earlier epoch with numbers has its end in the committed log.
    pub(crate) fn goes_on_in(&mut self, epoch: Epoch) {
        if self.spans.last().is_none_or(|span| span.closed || span.epoch >= epoch) {
            self.stable = self.stable.max(SeqNum::first_of(epoch));
        }
    }

    /// Everything at or below `upto` is gone. Returns whether that is news.
    pub(crate) fn trim(&mut self, upto: SeqNum) -> bool {
        if self.trim.is_some_and(|trim| trim >= upto) {
            return false;
        }
        self.trim = Some(upto);
        // The last span stays: it tells where the next number must be.
        let gone = self.spans.partition_point(|span| span.closed && SeqNum::new(span.epoch, span.end) <= upto);
        self.spans.drain(..gone.min(self.spans.len().saturating_sub(1)));
        self.holes.retain(|first, count| first.plus(*count).is_none_or(|end| end > upto));
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
        let named = self.spans.iter().rev().any(|span| span.epoch == n.epoch() && n.counter() < span.end);
        if named && !self.in_hole(n) { Place::Record } else { Place::Hole }
    }

    fn in_hole(&self, n: SeqNum) -> bool {
        self.hole_at(n).is_some()
    }

    /// The hole that `n` is in: first number and exclusive end.
    fn hole_at(&self, n: SeqNum) -> Option<(SeqNum, SeqNum)> {
        let (first, count) = self.holes.range(..=n).next_back()?;
        let end = first.plus(*count)?;
        (n < end).then_some((*first, end))
    }

    /// The first record at or after `from` that is settled and not trimmed.
    pub(crate) fn next_record(&self, from: SeqNum) -> Option<SeqNum> {
        let from = match self.trim {
            Some(trim) if trim >= from => after(trim),
            _ => from,
        };
        let start = self.spans.partition_point(|span| SeqNum::new(span.epoch, span.end) <= from);
        for span in &self.spans[start..] {
            let mut n = from.max(SeqNum::first_of(span.epoch));
            while let Some((_, end)) = self.hole_at(n) {
                n = end;
            }
            if n < SeqNum::new(span.epoch, span.end) {
                return Some(n);
            }
        }
        None
    }

    /// The last record at or before `upto` that is settled and not trimmed.
    pub(crate) fn prev_record(&self, upto: SeqNum) -> Option<SeqNum> {
        for span in self.spans.iter().rev() {
            let Some(last) = span.end.checked_sub(1).map(|counter| SeqNum::new(span.epoch, counter)) else { continue };
            let first = SeqNum::first_of(span.epoch);
            let mut n = upto.min(last);
            loop {
                if n < first || self.trim.is_some_and(|trim| n <= trim) {
                    break;
                }
                match self.hole_at(n) {
                    None => return Some(n),
                    Some((hole, _)) if hole > first => n = SeqNum::new(span.epoch, hole.counter() - 1),
                    Some(_) => break,
                }
            }
        }
        None
    }

    /// The exclusive end of the last epoch with numbers, and whether it is closed.
    pub(crate) fn end(&self) -> Option<(SeqNum, bool)> {
        self.spans.last().map(|span| (SeqNum::new(span.epoch, span.end), span.closed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn n(epoch: u32, counter: u32) -> SeqNum {
        SeqNum::new(Epoch(epoch), counter)
    }

    #[test]
    fn numbers_must_follow_on() {
        let mut color = Narrow::default();
        assert!(color.assign(n(2, 1), 1).is_err(), "an epoch starts at 0");
        color.assign(n(2, 0), 3).unwrap();
        assert!(color.assign(n(2, 4), 1).is_err(), "no gap");
        assert!(color.assign(n(2, 2), 1).is_err(), "none twice");
        assert!(color.assign(n(1, 0), 1).is_err(), "never back");
        color.end_epoch(n(2, 3), Epoch(4)).unwrap();
        assert!(color.assign(n(2, 3), 1).is_err(), "a closed epoch stays closed");
        assert!(color.assign(n(3, 0), 1).is_err(), "an epoch that was passed over stays empty");
        color.assign(n(4, 0), 1).unwrap();
        assert_eq!(color.stable(), n(4, 1));
    }

    #[test]
    fn an_epoch_ends_where_its_numbers_end() {
        let mut color = Narrow::default();
        color.assign(n(1, 0), 3).unwrap();
        assert!(color.clone().end_epoch(n(1, 2), Epoch(2)).is_err());
        assert!(color.clone().end_epoch(n(1, 4), Epoch(2)).is_err());
        color.end_epoch(n(1, 3), Epoch(2)).unwrap();
        assert_eq!(color.stable(), n(2, 0));
        assert_eq!(color.place(n(1, 3)), Place::Hole);
        assert_eq!(color.place(n(2, 0)), Place::Beyond);
    }

    #[test]
    fn stable_waits_for_the_end_of_an_open_epoch() {
        let mut color = Narrow::default();
        color.assign(n(1, 0), 3).unwrap();
        color.goes_on_in(Epoch(2));
        assert_eq!(color.stable(), n(1, 3));
        let mut never_used = Narrow::default();
        never_used.goes_on_in(Epoch(2));
        assert_eq!((never_used.stable(), never_used.place(n(1, 7))), (n(2, 0), Place::Hole));
    }

    #[test]
    fn trimmed_wins_over_everything() {
        let mut color = Narrow::default();
        color.assign(n(1, 0), 3).unwrap();
        color.end_epoch(n(1, 3), Epoch(2)).unwrap();
        color.assign(n(2, 0), 2).unwrap();
        assert!(color.trim(n(2, 0)));
        assert!(!color.trim(n(1, 1)), "trim never goes back");
        assert_eq!(color.place(n(1, 1)), Place::Trimmed(n(2, 0)));
        assert_eq!(color.place(n(2, 1)), Place::Record);
        assert_eq!(color.spans().len(), 1);
        assert_eq!((color.next_record(SeqNum::MIN), color.prev_record(SeqNum::MAX)), (Some(n(2, 1)), Some(n(2, 1))));
        assert!(color.trim(n(2, 1)));
        assert_eq!(color.next_record(SeqNum::MIN), None);
        assert_eq!(color.assign(n(2, 2), 1), Ok(()), "numbers go on after everything was trimmed");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Assign(u32),
        Hole(u32),
        NewEpoch(u32),
        Trim(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1u32..5).prop_map(Step::Assign),
            2 => (1u32..4).prop_map(Step::Hole),
            1 => (1u32..3).prop_map(Step::NewEpoch),
            1 => (0usize..40).prop_map(Step::Trim),
        ]
    }

    proptest! {
        #[test]
        fn neighbours_are_what_a_list_of_all_numbers_says(steps in prop::collection::vec(step(), 0..40)) {
            let mut color = Narrow::default();
            let (mut epoch, mut next) = (1, 0);
            let mut records: Vec<SeqNum> = Vec::new();
            let mut all: Vec<SeqNum> = Vec::new();
            for step in steps {
                match step {
                    Step::Assign(count) => {
                        color.assign(n(epoch, next), count).unwrap();
                        records.extend((next..next + count).map(|c| n(epoch, c)));
                        all.extend((next..next + count).map(|c| n(epoch, c)));
                        next += count;
                    }
                    Step::Hole(count) => {
                        color.hole(n(epoch, next), count).unwrap();
                        all.extend((next..next + count).map(|c| n(epoch, c)));
                        next += count;
                    }
                    Step::NewEpoch(skip) => {
                        color.end_epoch(n(epoch, next), Epoch(epoch + skip)).unwrap();
                        (epoch, next) = (epoch + skip, 0);
                    }
                    Step::Trim(at) => {
                        if let Some(upto) = all.get(at).copied() {
                            color.trim(upto);
                        }
                    }
                }
            }
            let kept: Vec<SeqNum> =
                records.iter().copied().filter(|r| color.trim_point().is_none_or(|t| *r > t)).collect();
            for epoch in 0..=epoch + 1 {
                for counter in 0..40 {
                    let at = n(epoch, counter);
                    prop_assert_eq!(color.next_record(at), kept.iter().copied().find(|r| *r >= at));
                    prop_assert_eq!(color.prev_record(at), kept.iter().copied().rfind(|r| *r <= at));
                    let want = match color.trim_point() {
                        Some(trim) if at <= trim => Place::Trimmed(trim),
                        _ if at >= color.stable() => Place::Beyond,
                        _ if kept.contains(&at) => Place::Record,
                        _ => Place::Hole,
                    };
                    prop_assert_eq!(color.place(at), want);
                }
            }
        }
    }
}
