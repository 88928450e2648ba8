//! The parts of one color, one from each of its shards, merged by number.
//!
//! Each part comes in order and says how far it has come. A record is passed on once every part has come past its
//! number, so what comes out is the sorted union of the parts, whatever the batches. What waits here is what the parts
//! were allowed to send, so it is bounded by their windows. A trim point counts for the color as a whole as soon as one
//! part says it: it is told once, and what other parts still bring at or below it is dropped.

use std::collections::VecDeque;

use flexlog_protocol::api::delivered_cost;
use flexlog_protocol::{Record, SeqNum};

use super::subscriptions::Delivery;

#[derive(Debug)]
struct Part {
    waiting: VecDeque<(SeqNum, Record)>,
    /// Exclusive: everything of this part below has come.
    upto: SeqNum,
}

/// The parts of one color.
#[derive(Debug)]
pub(super) struct Merge {
    parts: Vec<Part>,
    /// Exclusive: everything below was passed on.
    passed: SeqNum,
    /// Inclusive: everything at or below is gone.
    trimmed: Option<SeqNum>,
}

/// What came of one step.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Merged {
    pub deliveries: Vec<Delivery>,
    /// For each record that was passed on, in order, its part and its cost.
    pub passed: Vec<(usize, u64)>,
    /// What was dropped: of which part, and its cost.
    pub dropped: Vec<(usize, u64)>,
}

fn after(number: SeqNum) -> SeqNum {
    SeqNum::from_raw(number.to_raw().saturating_add(1))
}

impl Merge {
    pub(super) fn new(parts: usize, from: SeqNum) -> Self {
        let part = || Part { waiting: VecDeque::new(), upto: from };
        Self { parts: (0..parts).map(|_| part()).collect(), passed: from, trimmed: None }
    }

    /// The next records of a part; everything of it below `upto` has come with them.
    pub(super) fn records(&mut self, which: usize, records: Vec<(SeqNum, Record)>, upto: SeqNum) -> Merged {
        let mut merged = Merged::default();
        let Some(part) = self.parts.get_mut(which) else { return merged };
        for (number, record) in records {
            if self.trimmed.is_some_and(|point| number <= point) {
                merged.dropped.push((which, delivered_cost(&record)));
            } else {
                part.waiting.push_back((number, record));
            }
        }
        part.upto = part.upto.max(upto);
        self.pass_on(&mut merged);
        merged
    }

    /// What a part had from its place up to and including `point` is gone.
    pub(super) fn trimmed(&mut self, which: usize, point: SeqNum) -> Merged {
        let mut merged = Merged::default();
        if which >= self.parts.len() || point < self.passed || self.trimmed.is_some_and(|before| point <= before) {
            return merged;
        }
        self.trimmed = Some(point);
        for (which, part) in self.parts.iter_mut().enumerate() {
            while let Some((_, record)) = part.waiting.pop_front_if(|(number, _)| *number <= point) {
                merged.dropped.push((which, delivered_cost(&record)));
            }
            part.upto = part.upto.max(after(point));
        }
        self.passed = after(point);
        merged.deliveries.push(Delivery::Trimmed(point));
        self.pass_on(&mut merged);
        merged
    }

    fn pass_on(&mut self, merged: &mut Merged) {
        let Some(upto) = self.parts.iter().map(|part| part.upto).min() else { return };
        let mut ready = Vec::new();
        for (which, part) in self.parts.iter_mut().enumerate() {
            while let Some(one) = part.waiting.pop_front_if(|(number, _)| *number < upto) {
                ready.push((which, one));
            }
        }
        if ready.is_empty() && upto <= self.passed {
            return;
        }
        ready.sort_unstable_by_key(|(which, (number, _))| (*number, *which));
        // A node that has several shards of the color may bring one record for each.
        ready.dedup_by(|(which, (number, record)), (_, (before, _))| {
            let again = number == before;
            if again {
                merged.dropped.push((*which, delivered_cost(record)));
            }
            again
        });
        merged.passed.extend(ready.iter().map(|(which, (_, record))| (*which, delivered_cost(record))));
        let records = ready.into_iter().map(|(_, one)| one).collect();
        self.passed = self.passed.max(upto);
        merged.deliveries.push(Delivery::Records { records, upto: self.passed });
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn n(raw: u64) -> SeqNum {
        SeqNum::from_raw(raw)
    }

    fn record(raw: u64) -> (SeqNum, Record) {
        (n(raw), Record::new(raw.to_string()).unwrap())
    }

    /// What a user saw: numbers, trim points, and how far it is.
    #[derive(Default)]
    struct Seen {
        numbers: Vec<u64>,
        points: Vec<u64>,
        upto: u64,
        /// By part: bytes passed on or dropped.
        given_back: Vec<u64>,
    }

    impl Seen {
        fn take(&mut self, merged: Merged) -> Result<(), TestCaseError> {
            let mut costs = merged.passed.iter();
            for delivery in merged.deliveries {
                match delivery {
                    Delivery::Records { records, upto } => {
                        prop_assert!(upto.to_raw() >= self.upto, "it went back");
                        self.upto = upto.to_raw();
                        for (number, record) in records {
                            prop_assert!(number < upto);
                            prop_assert_eq!(costs.next().map(|(_, cost)| *cost), Some(delivered_cost(&record)));
                            prop_assert!(self.points.last().is_none_or(|point| number.to_raw() > *point));
                            self.numbers.push(number.to_raw());
                        }
                    }
                    Delivery::Trimmed(point) => {
                        prop_assert!(self.points.last().is_none_or(|before| *before < point.to_raw()), "told twice");
                        self.points.push(point.to_raw());
                        self.upto = self.upto.max(point.to_raw() + 1);
                    }
                    Delivery::Failed(why) => return Err(TestCaseError::fail(why.to_string())),
                }
            }
            prop_assert!(costs.next().is_none());
            for (part, cost) in merged.passed.into_iter().chain(merged.dropped) {
                self.given_back.resize(self.given_back.len().max(part + 1), 0);
                self.given_back[part] += cost;
            }
            Ok(())
        }
    }

    /// One shard: its records, how many have come, and how far it said that it is.
    struct Shard {
        numbers: Vec<u64>,
        come: usize,
        upto: u64,
        bytes: u64,
    }

    /// Numbers of a color, each with its shard; and steps: which shard, how many records, how much of the way to its next
    /// record it says that it has come, and whether it is trimmed instead, at which of all numbers.
    type Script = (usize, Vec<(u64, usize)>, Vec<(usize, usize, u64, Option<usize>)>);

    fn script(trims: bool) -> impl Strategy<Value = Script> {
        let trim =
            move || if trims { proptest::option::weighted(0.15, 0_usize..80).boxed() } else { Just(None).boxed() };
        let steps = vec((0_usize..5, 0_usize..5, 0_u64..100, trim()), 0..120);
        (1_usize..5, vec((1_u64..4, 0_usize..5), 0..80), steps)
    }

    fn run((count, numbers, steps): Script) -> Result<(), TestCaseError> {
        let mut all = Vec::new();
        for (gap, shard) in numbers {
            all.push((all.last().map_or(0, |(last, _): &(u64, usize)| *last) + gap, shard % count));
        }
        let end = all.last().map_or(1, |(last, _)| last + 1);
        let of = |which: usize| all.iter().filter(|(_, shard)| *shard == which).map(|(number, _)| *number).collect();
        let mut shards: Vec<_> =
            (0..count).map(|which| Shard { numbers: of(which), come: 0, upto: 0, bytes: 0 }).collect();
        let (mut merge, mut seen) = (Merge::new(count, n(0)), Seen::default());
        let mut trims: Vec<u64> = Vec::new();
        // In the end everything comes.
        let last = (0..count).map(|which| (which, usize::MAX, 100, None));
        for (which, take, way, trim) in steps.into_iter().chain(last) {
            let which = which % count;
            let shard = &mut shards[which];
            if let Some(point) = trim.and_then(|at| all.get(at)).map(|(number, _)| *number)
                && point >= shard.upto
            {
                shard.come = shard.numbers.partition_point(|number| *number <= point);
                shard.upto = point + 1;
                seen.take(merge.trimmed(which, n(point)))?;
                trims.push(point);
                continue;
            }
            let batch: Vec<_> = shard.numbers[shard.come..].iter().take(take).map(|raw| record(*raw)).collect();
            shard.come += batch.len();
            shard.bytes += batch.iter().map(|(_, record)| delivered_cost(record)).sum::<u64>();
            let least = batch.last().map_or(shard.upto, |(number, _)| number.to_raw() + 1).max(shard.upto);
            let most = shard.numbers.get(shard.come).copied().unwrap_or(end);
            shard.upto = least + most.saturating_sub(least) * way / 100;
            seen.take(merge.records(which, batch, n(shard.upto)))?;
            // Nothing is kept back that every shard has come past, and nothing comes before that.
            let floor = shards.iter().map(|shard| shard.upto).min().unwrap_or_default();
            let floor = trims.iter().map(|point| point + 1).max().unwrap_or_default().max(floor);
            prop_assert_eq!(seen.upto.max(trims.iter().max().map_or(0, |point| point + 1)), floor);
        }
        let gone = trims.iter().copied().max();
        let (below, above): (Vec<u64>, Vec<u64>) =
            all.iter().map(|(number, _)| *number).partition(|number| gone.is_some_and(|point| *number <= point));
        let split = seen.numbers.partition_point(|number| gone.is_some_and(|point| *number <= point));
        prop_assert_eq!(&seen.numbers[split..], &above[..]);
        // What was trimmed later may have come before, in order and once.
        prop_assert!(seen.numbers[..split].is_sorted_by(|a, b| a < b));
        prop_assert!(seen.numbers[..split].iter().all(|number| below.contains(number)));
        prop_assert!(seen.points.is_sorted_by(|a, b| a < b));
        for (which, shard) in shards.iter().enumerate() {
            prop_assert_eq!(seen.given_back.get(which).copied().unwrap_or_default(), shard.bytes);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn what_comes_out_is_the_sorted_union(script in script(false)) {
            run(script)?;
        }

        #[test]
        fn trims_are_told_once_and_nothing_at_or_below_comes_behind_them(script in script(true)) {
            run(script)?;
        }
    }

    #[test]
    fn a_part_that_is_behind_holds_the_others_back() {
        let mut merge = Merge::new(2, n(5));
        assert_eq!(merge.records(0, vec![record(6), record(8)], n(9)), Merged::default());
        let merged = merge.records(1, vec![record(7)], n(8));
        let records = vec![record(6), record(7)];
        assert_eq!(merged.deliveries, [Delivery::Records { records, upto: n(8) }]);
        assert_eq!(merged.passed.iter().map(|(part, _)| *part).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(merge.records(1, vec![], n(8)), Merged::default());
        let merged = merge.records(1, vec![], n(20));
        assert_eq!(merged.deliveries, [Delivery::Records { records: vec![record(8)], upto: n(9) }]);
    }

    #[test]
    fn a_record_that_two_parts_bring_is_passed_on_once() {
        let mut merge = Merge::new(2, n(0));
        merge.records(0, vec![record(3), record(4)], n(5));
        let merged = merge.records(1, vec![record(3), record(4)], n(5));
        let records = vec![record(3), record(4)];
        assert_eq!(merged.deliveries, [Delivery::Records { records, upto: n(5) }]);
        assert_eq!((merged.passed, merged.dropped), (vec![(0, 33), (0, 33)], vec![(1, 33), (1, 33)]));
    }

    #[test]
    fn a_trim_point_is_told_once_and_drops_what_waits() {
        let mut merge = Merge::new(2, n(0));
        merge.records(0, vec![record(3), record(9)], n(10));
        let merged = merge.trimmed(1, n(4));
        assert_eq!(merged.deliveries, [Delivery::Trimmed(n(4))]);
        assert_eq!(merged.dropped, [(0, 33)]);
        assert_eq!(merge.trimmed(0, n(4)), Merged::default());
        let merged = merge.records(1, vec![record(4)], n(12));
        assert_eq!(merged.deliveries, [Delivery::Records { records: vec![record(9)], upto: n(10) }]);
        assert_eq!(merged.dropped, [(1, 33)]);
    }
}
