//! The index from numbers to records: for each color, runs of contiguous numbers, 8 bytes a number.
//!
//! A run is within one epoch and has at most [`RUN`] numbers, so that growing copies little and trimming gives memory
//! back. A number that names no record here is either between runs, or [`NONE`] within one.

use std::collections::VecDeque;

use flexlog_protocol::{Color, SeqNum};
use rustc_hash::FxHashMap;

/// The most numbers of a run.
const RUN: usize = 1 << 16;
/// A gap in the numbers up to this long is filled with [`NONE`]; a longer one begins a new run.
const FILLED_GAP: u32 = 64;

/// Where a record is: its entry in the area, and which of the entry's records it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Loc(u64);

const NONE: Loc = Loc(u64::MAX);

impl Loc {
    /// `entry` is the byte of the area at which the entry begins, a multiple of 8.
    #[inline]
    pub(crate) fn new(entry: u64, index: u32) -> Self {
        Self((entry / 8) << 24 | u64::from(index))
    }

    pub(crate) fn entry(self) -> u64 {
        (self.0 >> 24) * 8
    }

    pub(crate) fn index(self) -> u32 {
        self.0 as u32 & 0xff_ffff
    }
}

#[derive(Debug)]
struct Run {
    /// The number of `locs[0]`, trimmed or not.
    first: SeqNum,
    locs: Vec<Loc>,
    /// How many at the front are trimmed.
    gone: usize,
}

impl Run {
    /// The place of `number` in the run, or where it would be.
    fn offset(&self, number: SeqNum) -> Option<usize> {
        (number >= self.first && number.epoch() == self.first.epoch())
            .then(|| (number.counter() - self.first.counter()) as usize)
    }

    fn number(&self, offset: usize) -> SeqNum {
        SeqNum::new(self.first.epoch(), self.first.counter() + offset as u32)
    }

    /// How many of its numbers are below `bound`.
    fn below(&self, bound: SeqNum) -> usize {
        if bound <= self.first {
            0
        } else {
            self.offset(bound).map_or(self.locs.len(), |offset| offset.min(self.locs.len()))
        }
    }

    fn below_or_at(&self, bound: SeqNum) -> usize {
        let at = self.offset(bound).is_some_and(|offset| offset < self.locs.len());
        self.below(bound) + usize::from(at)
    }
}

#[derive(Debug, Default)]
struct ColorIndex {
    trim: Option<SeqNum>,
    runs: VecDeque<Run>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Index {
    places: FxHashMap<Color, usize>,
    colors: Vec<ColorIndex>,
    /// The color that was looked up last.
    last: Option<(Color, usize)>,
    records: u64,
}

impl Index {
    #[inline]
    fn color(&mut self, color: Color) -> &mut ColorIndex {
        let place = match self.last {
            Some((last, place)) if last == color => place,
            _ => {
                let next = self.colors.len();
                let place = *self.places.entry(color).or_insert(next);
                if place == next {
                    self.colors.push(ColorIndex::default());
                }
                self.last = Some((color, place));
                place
            }
        };
        &mut self.colors[place]
    }

    fn get(&self, color: Color) -> Option<&ColorIndex> {
        self.places.get(&color).map(|place| &self.colors[*place])
    }

    /// Numbers from `first` on name the `count` records of the entry at `entry`. Trimmed numbers are passed by, and those
    /// that name a record already: what they name was written first, so it is durable first.
    #[inline]
    pub(crate) fn insert(&mut self, color: Color, first: SeqNum, count: u32, entry: u64) {
        let index = self.color(color);
        let skip = match index.trim {
            Some(trim) if first <= trim && trim.epoch() != first.epoch() => return,
            Some(trim) if first <= trim => (trim.counter() - first.counter()).saturating_add(1),
            _ => 0,
        };
        let mut added = 0;
        for i in skip..count {
            let Some(number) = first.plus(i) else { break };
            added += u64::from(index.put(number, Loc::new(entry, i)));
        }
        self.records += added;
    }

    /// A number names what is at `loc` from now on, whatever it named before, unless it is trimmed. Returns what it named.
    pub(crate) fn replace(&mut self, color: Color, number: SeqNum, loc: Loc) -> Option<Loc> {
        let before = self.find(color, number);
        if let Some(before) = before {
            self.forget(color, number, before);
        }
        self.put_one(color, number, loc);
        before
    }

    fn put_one(&mut self, color: Color, number: SeqNum, loc: Loc) {
        let index = self.color(color);
        if index.trim.is_none_or(|trim| trim < number) {
            let added = u64::from(index.put(number, loc));
            self.records += added;
        }
    }

    /// Forgets the numbers of `color` up to and including `upto`. Returns whether that is new.
    pub(crate) fn trim(&mut self, color: Color, upto: SeqNum) -> bool {
        let index = self.color(color);
        if index.trim.is_some_and(|trim| trim >= upto) {
            return false;
        }
        index.trim = Some(upto);
        let mut removed = 0;
        while let Some(run) = index.runs.front_mut() {
            let gone = run.below_or_at(upto).max(run.gone);
            removed += run.locs[run.gone..gone].iter().filter(|loc| **loc != NONE).count();
            run.gone = gone;
            if gone < run.locs.len() {
                break;
            }
            index.runs.pop_front();
        }
        self.records -= removed as u64;
        true
    }

    /// Forgets a number, if it still names what is at `loc`.
    pub(crate) fn forget(&mut self, color: Color, number: SeqNum, loc: Loc) {
        let index = self.color(color);
        let after = index.runs.partition_point(|run| run.first <= number);
        let Some(place) = after.checked_sub(1) else { return };
        let run = &mut index.runs[place];
        let held = run.offset(number).filter(|offset| *offset >= run.gone).and_then(|offset| run.locs.get_mut(offset));
        let Some(held) = held.filter(|held| **held == loc) else { return };
        *held = NONE;
        while run.locs.get(run.gone) == Some(&NONE) {
            run.gone += 1;
        }
        if run.gone == run.locs.len() {
            index.runs.remove(place);
        }
        self.records -= 1;
    }

    /// Where the record of a number is.
    pub(crate) fn find(&self, color: Color, number: SeqNum) -> Option<Loc> {
        self.range(color, number, SeqNum::MAX).next().filter(|(found, _)| *found == number).map(|(_, loc)| loc)
    }

    /// Whether any number from `low` to `high`, both included, names a record here.
    pub(crate) fn any(&self, color: Color, low: SeqNum, high: SeqNum) -> bool {
        self.range(color, low, SeqNum::MAX).next().is_some_and(|(number, _)| number <= high)
    }

    /// The trim points of all colors that have one.
    pub(crate) fn trims(&self) -> impl Iterator<Item = (Color, SeqNum)> {
        self.places.iter().filter_map(|(color, place)| Some((*color, self.colors[*place].trim?)))
    }

    /// The trim point of a color.
    pub(crate) fn trim_point(&self, color: Color) -> Option<SeqNum> {
        self.get(color).and_then(|found| found.trim)
    }

    /// The records of `color` from `from` up to but not including `upto`, in order.
    pub(crate) fn range(&self, color: Color, from: SeqNum, upto: SeqNum) -> impl Iterator<Item = (SeqNum, Loc)> {
        let runs = self.get(color).map(|found| &found.runs);
        let start = runs.map_or(0, |runs| runs.partition_point(|run| run.number(run.locs.len() - 1) < from));
        runs.into_iter().flat_map(move |runs| runs.range(start..)).take_while(move |run| run.first < upto).flat_map(
            move |run| {
                let (low, high) = (run.below(from).max(run.gone), run.below(upto));
                (low..high.max(low)).map(|i| (run.number(i), run.locs[i])).filter(|(_, loc)| *loc != NONE)
            },
        )
    }

    /// The last record of `color` at or before `upto`.
    pub(crate) fn prev(&self, color: Color, upto: SeqNum) -> Option<(SeqNum, Loc)> {
        let runs = &self.get(color)?.runs;
        let after = runs.partition_point(|run| run.first <= upto);
        runs.range(..after).rev().find_map(|run| {
            let named = run.gone..run.below_or_at(upto).max(run.gone);
            named.rev().map(|i| (run.number(i), run.locs[i])).find(|(_, loc)| *loc != NONE)
        })
    }

    /// Numbers that can be read.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Bytes of memory that it takes, about.
    pub(crate) fn bytes(&self) -> u64 {
        let of_run = |run: &Run| size_of::<Run>() + run.locs.capacity() * size_of::<Loc>();
        let of_color = |index: &ColorIndex| size_of::<ColorIndex>() + index.runs.iter().map(of_run).sum::<usize>();
        let map = self.places.capacity() * size_of::<(Color, usize)>();
        (map + self.colors.iter().map(of_color).sum::<usize>()) as u64
    }
}

impl ColorIndex {
    /// Returns whether the number named nothing before.
    #[inline]
    fn put(&mut self, number: SeqNum, loc: Loc) -> bool {
        if let Some(run) = self.runs.back_mut()
            && let Some(offset) = run.offset(number)
        {
            if offset == run.locs.len() && offset < RUN {
                run.locs.push(loc);
                return true;
            }
            if offset > run.locs.len() && offset < RUN && offset - run.locs.len() <= FILLED_GAP as usize {
                run.locs.resize(offset, NONE);
                run.locs.push(loc);
                return true;
            }
        }
        self.put_anywhere(number, loc)
    }

    #[cold]
    fn put_anywhere(&mut self, number: SeqNum, loc: Loc) -> bool {
        let after = self.runs.partition_point(|run| run.first <= number);
        if let Some(run) = after.checked_sub(1).and_then(|place| self.runs.get_mut(place))
            && let Some(offset) = run.offset(number).filter(|offset| *offset < run.locs.len())
        {
            if offset < run.gone {
                // What is behind it is as gone as before.
                run.locs[offset..run.gone].fill(NONE);
                run.gone = offset;
            }
            let free = run.locs[offset] == NONE;
            if free {
                run.locs[offset] = loc;
            }
            return free;
        }
        self.runs.insert(after, Run { first: number, locs: vec![loc], gone: 0 });
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use flexlog_protocol::Epoch;
    use proptest::prelude::*;

    use super::*;

    const C: Color = Color(1);

    fn n(epoch: u32, counter: u32) -> SeqNum {
        SeqNum::new(Epoch(epoch), counter)
    }

    fn all(index: &Index) -> Vec<(SeqNum, u64, u32)> {
        index.range(C, SeqNum::MIN, SeqNum::MAX).map(|(n, loc)| (n, loc.entry(), loc.index())).collect()
    }

    #[test]
    fn places_fit_their_bits() {
        for (entry, index) in [(0, 0), (8192, 4095), (1 << 42, 1)] {
            let loc = Loc::new(entry, index);
            assert_eq!((loc.entry(), loc.index()), (entry, index));
        }
    }

    #[test]
    fn a_far_number_costs_no_memory() {
        let mut index = Index::default();
        index.insert(C, n(1, 0), 1, 8);
        index.insert(C, n(1, u32::MAX - 2), 1, 16);
        index.insert(C, n(9, 5), 1, 24);
        assert_eq!(all(&index), [(n(1, 0), 8, 0), (n(1, u32::MAX - 2), 16, 0), (n(9, 5), 24, 0)]);
        assert!(index.bytes() < 4096);
    }

    #[test]
    fn long_runs_are_cut_and_given_back() {
        let mut index = Index::default();
        for i in 0..200 {
            index.insert(C, n(1, i * 1000), 1000, 8);
        }
        assert_eq!((index.records(), index.colors[0].runs.len()), (200_000, 4));
        assert!(index.trim(C, n(1, 199_998)) && !index.trim(C, n(1, 5)));
        assert_eq!((index.records(), index.colors[0].runs.len()), (1, 1));
        assert_eq!(all(&index), [(n(1, 199_999), 8, 999)]);
        assert_eq!(index.trim_point(C), Some(n(1, 199_998)));
    }

    proptest! {
        #[test]
        fn it_is_a_map(
            steps in proptest::collection::vec((0u32..3, 0u32..300, 1u32..20, 0u8..8), 1..60),
            from in (0u32..3, 0u32..320), upto in (0u32..3, 0u32..320),
        ) {
            let (mut index, mut model, mut trim) = (Index::default(), BTreeMap::new(), None);
            for (at, (epoch, counter, count, what)) in steps.into_iter().enumerate() {
                let first = n(epoch, counter);
                if what == 1 {
                    let held: Vec<_> = index.range(C, first, SeqNum::MAX).take(count as usize).collect();
                    for (number, loc) in held {
                        index.forget(C, number, Loc::new(loc.entry() + 8, 0));
                        index.forget(C, number, loc);
                        index.forget(C, number, loc);
                        model.remove(&number);
                    }
                } else if what == 0 {
                    index.trim(C, first);
                    trim = trim.max(Some(first));
                    model.retain(|number, _| *number > first);
                } else {
                    let entry = 8 * at as u64;
                    index.insert(C, first, count, entry);
                    for i in 0..count {
                        let number = n(epoch, counter + i);
                        if Some(number) > trim {
                            model.entry(number).or_insert((entry, i));
                        }
                    }
                }
                prop_assert_eq!(index.records(), model.len() as u64);
            }
            let (from, upto) = (n(from.0, from.1), n(upto.0, upto.1));
            let found: Vec<_> = index.range(C, from, upto).map(|(n, l)| (n, (l.entry(), l.index()))).collect();
            let expected: Vec<_> =
                model.iter().filter(|(n, _)| (from..upto).contains(*n)).map(|(n, l)| (*n, *l)).collect();
            if from <= upto {
                let any = model.range(from..=upto).next().is_some();
                prop_assert_eq!(index.any(C, from, upto), any);
            }
            prop_assert_eq!(found, expected);
            let last = index.prev(C, upto).map(|(n, l)| (n, (l.entry(), l.index())));
            prop_assert_eq!(last, model.range(..=upto).next_back().map(|(n, l)| (*n, *l)));
        }
    }
}
