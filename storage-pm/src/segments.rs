//! The segments of an area: which are in use, what keeps each of them so, and which can be given back.
//!
//! A segment is *held* by the records of numbers that are not trimmed, by the `Assign`s of such numbers, and by staged
//! records; and by shard-log entries until a checkpoint elsewhere covers them. What is held by nothing is free once the
//! checkpoint that leaves it out is durable. Order plays no part: an old color does not keep the segments after its own.

use flexlog_protocol::{Color, Lsn, SeqNum};
use rustc_hash::FxHashMap;

use crate::layout::Place;

/// The highest number of each color that holds a segment.
#[derive(Debug, Default)]
pub(crate) struct High {
    /// The color that was seen last; not in `rest`.
    last: Option<(Color, SeqNum)>,
    rest: FxHashMap<Color, SeqNum>,
}

impl High {
    #[inline]
    pub(crate) fn raise(&mut self, color: Color, number: SeqNum) {
        match &mut self.last {
            Some((last, high)) if *last == color => *high = (*high).max(number),
            _ => self.change(color, number),
        }
    }

    fn change(&mut self, color: Color, number: SeqNum) {
        let held = self.rest.remove(&color);
        if let Some((last, high)) = self.last.replace((color, number.max(held.unwrap_or(SeqNum::MIN)))) {
            self.rest.insert(last, high);
        }
    }

    fn all(&self, mut test: impl FnMut(Color, SeqNum) -> bool) -> bool {
        self.last.iter().all(|(color, number)| test(*color, *number))
            && self.rest.iter().all(|(color, number)| test(*color, *number))
    }
}

/// Whether a segment is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Use {
    /// It can be written.
    #[default]
    Free,
    /// It is part of the log.
    Live,
    /// It is free once the checkpoint that ends here is durable.
    Leaving(Place),
}

/// One segment.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    pub(crate) used: Use,
    pub(crate) generation: u32,
    /// Where its entries end.
    pub(crate) end: u32,
    pub(crate) high: High,
    /// Staged tokens in it that have no number.
    pub(crate) staged: u32,
    /// The highest place of the shard log in it.
    pub(crate) lsn: Lsn,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Segments {
    list: Vec<Segment>,
    /// Free ones, the next to be used last.
    free: Vec<usize>,
    leaving: usize,
}

impl Segments {
    pub(crate) fn new() -> Self {
        Self { list: Vec::new(), free: Vec::new(), leaving: 0 }
    }

    /// The area has so many now.
    pub(crate) fn grow(&mut self, count: usize) {
        // Used before those that were free already: their pages are nobody's yet.
        for slot in self.list.len()..count {
            self.list.push(Segment::default());
            self.free.insert(0, slot);
        }
    }

    /// How many the area has.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Those that are in use or leave.
    pub(crate) fn used(&self) -> usize {
        self.list.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn get(&self, slot: usize) -> &Segment {
        &self.list[slot]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: usize) -> &mut Segment {
        &mut self.list[slot]
    }

    /// Takes a free one into use.
    pub(crate) fn take(&mut self, generation: u32) -> Option<usize> {
        let slot = self.free.pop()?;
        self.list[slot] = Segment { used: Use::Live, generation, ..Segment::default() };
        Some(slot)
    }

    /// Takes this one into use; for recovery.
    pub(crate) fn adopt(&mut self, slot: usize, place: Place) {
        self.free.retain(|free| *free != slot);
        let Place { generation, offset: end } = place;
        self.list[slot] = Segment { used: Use::Live, generation, end, ..Segment::default() };
    }

    /// Those but `head` that a checkpoint up to `upto` would leave out.
    pub(crate) fn removable(
        &self,
        head: usize,
        upto: Lsn,
        trimmed: impl Fn(Color, SeqNum) -> bool,
    ) -> impl Iterator<Item = usize> {
        self.list.iter().enumerate().filter_map(move |(slot, segment)| {
            let held = slot == head
                || segment.used != Use::Live
                || segment.staged > 0
                || segment.lsn > upto
                || !segment.high.all(&trimmed);
            (!held).then_some(slot)
        })
    }

    /// Those in use, in the order of the log, with their ends.
    pub(crate) fn live(&self) -> Vec<Place> {
        let live = self.list.iter().filter(|segment| segment.used == Use::Live);
        let mut live: Vec<Place> = live.map(|segment| Place::new(segment.generation, segment.end)).collect();
        live.sort_unstable();
        live
    }

    /// These are free once what was written up to `place` is durable.
    pub(crate) fn leave(&mut self, slots: &[usize], place: Place) {
        for slot in slots {
            self.list[*slot].used = Use::Leaving(place);
        }
        self.leaving += slots.len();
    }

    /// Everything below `fenced` is durable. Returns how many became free.
    #[inline]
    pub(crate) fn fenced(&mut self, fenced: Place) -> usize {
        if self.leaving == 0 {
            return 0;
        }
        let mut freed = 0;
        for (slot, segment) in self.list.iter_mut().enumerate() {
            if matches!(segment.used, Use::Leaving(place) if place <= fenced) {
                *segment = Segment::default();
                self.free.push(slot);
                freed += 1;
            }
        }
        self.leaving -= freed;
        freed
    }
}

#[cfg(test)]
mod tests {
    use flexlog_protocol::Epoch;

    use super::*;

    fn n(counter: u32) -> SeqNum {
        SeqNum::new(Epoch(1), counter)
    }

    #[test]
    fn each_holder_alone_keeps_a_segment() {
        let mut segments = Segments::new();
        segments.grow(5);
        let slots: Vec<usize> = (1..=4).map(|generation| segments.take(generation).unwrap()).collect();
        assert_eq!(slots, [0, 1, 2, 3], "in the order of the area");
        let head = slots[3];
        segments.get_mut(0).staged = 1;
        for (color, number) in [(1, 5), (2, 7), (1, 4), (2, 6)] {
            segments.get_mut(1).high.raise(Color(color), n(number));
        }
        segments.get_mut(2).lsn = Lsn(9);
        let with = |lsn, one, two| {
            let trims = [n(0), n(one), n(two)];
            let trimmed = move |color: Color, number| number <= trims[color.0 as usize];
            segments.removable(head, Lsn(lsn), trimmed).collect::<Vec<_>>()
        };
        assert_eq!(with(8, 4, 7), Vec::<usize>::new());
        assert_eq!(with(8, 5, 6), Vec::<usize>::new());
        assert_eq!(with(8, 5, 7), [1]);
        assert_eq!(with(9, 5, 7), [1, 2]);
    }

    #[test]
    fn what_leaves_is_free_only_behind_the_fence() {
        let mut segments = Segments::new();
        segments.grow(2);
        let slot = segments.take(1).unwrap();
        segments.leave(&[slot], Place::new(2, 64));
        assert_eq!((segments.fenced(Place::new(2, 56)), segments.free()), (0, 1));
        assert_eq!((segments.fenced(Place::new(2, 64)), segments.free()), (1, 2));
    }
}
