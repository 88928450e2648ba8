//! Sets of numbers as runs, so that they take memory by the run and not by the number.

use std::collections::BTreeMap;

use flexlog_protocol::{Color, SeqNum};

use super::report::Numbers;

/// Numbers of one color: both ends of each run, and a byte of the area or of a file that says where it comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) first: SeqNum,
    pub(super) last: SeqNum,
    pub(super) at: u64,
}

/// Numbers of every color. Runs are added in any order and sorted once, by [`RunSet::sort`].
#[derive(Clone, Debug, Default)]
pub(super) struct RunSet(BTreeMap<Color, Vec<Run>>);

impl RunSet {
    pub(super) fn add(&mut self, color: Color, run: Run) {
        let runs = self.0.entry(color).or_default();
        match runs.last_mut() {
            Some(last) if last.last.plus(1) == Some(run.first) => last.last = run.last,
            _ => runs.push(run),
        }
    }

    /// Sorts and joins the runs. Returns the numbers that were added twice, with the place of the later one.
    pub(super) fn sort(&mut self) -> Vec<(Color, Run)> {
        let mut twice = Vec::new();
        for (color, runs) in &mut self.0 {
            runs.sort_by_key(|run| (run.first, run.last));
            let mut sorted: Vec<Run> = Vec::with_capacity(runs.len());
            for run in runs.drain(..) {
                match sorted.last_mut() {
                    Some(before) if run.first <= before.last => {
                        twice.push((*color, Run { last: run.last.min(before.last), ..run }));
                        before.last = before.last.max(run.last);
                    }
                    Some(before) if before.last.plus(1) == Some(run.first) => before.last = run.last,
                    _ => sorted.push(run),
                }
            }
            *runs = sorted;
        }
        twice
    }

    pub(super) fn colors(&self) -> impl Iterator<Item = Color> {
        self.0.keys().copied()
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (Color, Run)> {
        self.0.iter().flat_map(|(color, runs)| runs.iter().map(|run| (*color, *run)))
    }

    /// The first number of `run` that is not in here. Both are sorted.
    pub(super) fn lacks(&self, color: Color, run: Run) -> Option<SeqNum> {
        let none = Vec::new();
        let runs = self.0.get(&color).unwrap_or(&none);
        let mut next = run.first;
        for held in &runs[runs.partition_point(|held| held.last < next)..] {
            if held.first > next {
                break;
            }
            if held.last >= run.last {
                return None;
            }
            next = held.last.plus(1)?;
        }
        Some(next)
    }

    /// Whether a number is in here.
    pub(super) fn has(&self, color: Color, number: SeqNum) -> bool {
        let runs = self.0.get(&color).map_or(&[][..], Vec::as_slice);
        runs.get(runs.partition_point(|held| held.last < number)).is_some_and(|held| held.first <= number)
    }

    /// The runs of numbers that are in both.
    pub(super) fn shared<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (Color, Run)> {
        self.each().flat_map(|(color, run)| {
            let runs = other.0.get(&color).map_or(&[][..], Vec::as_slice);
            let from = runs.partition_point(|held| held.last < run.first);
            let both = runs[from..].iter().take_while(move |held| held.first <= run.last);
            both.map(move |held| {
                (color, Run { first: held.first.max(run.first), last: held.last.min(run.last), ..run })
            })
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn summary(&self, color: Color) -> Option<Numbers> {
        let runs = self.0.get(&color)?;
        let (first, last) = (runs.first()?.first, runs.last()?.last);
        Some(Numbers { first, last, records: runs.iter().map(count).sum() })
    }
}

fn count(run: &Run) -> u64 {
    // A run is within one epoch.
    u64::from(run.last.counter() - run.first.counter()) + 1
}

/// What of `run` is above the trim point.
pub(super) fn above(run: Run, trim: Option<SeqNum>) -> Option<Run> {
    match trim {
        Some(trim) if run.last <= trim => None,
        Some(trim) if run.first <= trim => Some(Run { first: trim.plus(1)?, ..run }),
        _ => Some(run),
    }
}

#[cfg(test)]
mod tests {
    use flexlog_protocol::Epoch;

    use super::*;

    fn run(first: u32, last: u32) -> Run {
        Run { first: SeqNum::new(Epoch(1), first), last: SeqNum::new(Epoch(1), last), at: u64::from(first) }
    }

    fn n(counter: u32) -> SeqNum {
        SeqNum::new(Epoch(1), counter)
    }

    #[test]
    fn runs_join_and_say_what_is_in_them() {
        let mut set = RunSet::default();
        let color = Color(1);
        for (first, last) in [(4, 5), (6, 6), (0, 1), (9, 9), (2, 2)] {
            set.add(color, run(first, last));
        }
        assert!(set.sort().is_empty());
        assert_eq!(
            set.each().map(|(_, run)| (run.first, run.last)).collect::<Vec<_>>(),
            [(n(0), n(2)), (n(4), n(6)), (n(9), n(9))]
        );
        assert_eq!(set.summary(color), Some(Numbers { first: n(0), last: n(9), records: 7 }));
        assert_eq!((set.lacks(color, run(0, 2)), set.lacks(color, run(5, 6))), (None, None));
        assert_eq!((set.lacks(color, run(1, 4)), set.lacks(color, run(3, 4))), (Some(n(3)), Some(n(3))));
        assert_eq!((set.lacks(color, run(9, 10)), set.lacks(Color(2), run(7, 7))), (Some(n(10)), Some(n(7))));
        for (number, held) in [(0, true), (2, true), (3, false), (6, true), (8, false), (9, true), (10, false)] {
            assert_eq!(set.has(color, n(number)), held, "{number}");
        }
        assert!(!set.has(Color(2), n(1)));
        let mut other = RunSet::default();
        other.add(color, run(1, 4));
        other.add(color, run(6, 20));
        other.add(Color(2), run(0, 9));
        let shared = |a: &RunSet, b: &RunSet| a.shared(b).map(|(_, run)| (run.first, run.last)).collect::<Vec<_>>();
        let both = [(n(1), n(2)), (n(4), n(4)), (n(6), n(6)), (n(9), n(9))];
        assert_eq!((shared(&set, &other), shared(&other, &set)), (both.to_vec(), both.to_vec()));
    }

    #[test]
    fn a_number_that_comes_twice_is_told() {
        let mut set = RunSet::default();
        set.add(Color(1), run(0, 5));
        set.add(Color(1), run(9, 9));
        set.add(Color(1), run(3, 3));
        assert_eq!(set.sort(), [(Color(1), run(3, 3))]);
    }

    #[test]
    fn trimmed_numbers_are_left_out() {
        assert_eq!(above(run(2, 4), None), Some(run(2, 4)));
        assert_eq!(above(run(2, 4), Some(n(4))), None);
        assert_eq!(above(run(2, 4), Some(n(1))), Some(run(2, 4)));
        assert_eq!(above(run(2, 4), Some(n(2))), Some(Run { at: 2, ..run(3, 4) }));
        assert_eq!(above(run(2, 4), Some(SeqNum::new(Epoch(2), 0))), None);
    }
}
