//! The segments of an area: which are in use, what keeps each of them so, and which can be given back.
//!
//! A segment is *held* by records that have a number in the index (not trimmed, not moved to an SSD file), by the
//! `Assign`s of such numbers, by staged records, and by a damaged record elsewhere that one in it stands in for; and by shard-log entries until a checkpoint elsewhere covers them.
//! Entries that were taken back hold nothing, as long as checkpoints say that they were.
//! What is held by nothing is free once the checkpoint that leaves it out is durable. Order plays no part: an old color
//! does not keep the segments after its own.

use flexlog_protocol::{Color, Lsn, SeqNum};
use rustc_hash::FxHashMap;

use crate::layout::Place;

/// Numbers of one color, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) low: SeqNum,
    pub(crate) high: SeqNum,
}

impl Span {
    fn and(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

/// For each color the numbers that hold a segment, as one span.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// The color that was seen last; not in `rest`.
    last: Option<(Color, Span)>,
    rest: FxHashMap<Color, Span>,
}

impl Spans {
    #[inline]
    pub(crate) fn add(&mut self, color: Color, span: Span) {
        match &mut self.last {
            Some((last, held)) if *last == color => *held = held.and(span),
            _ => self.change(color, span),
        }
    }

    fn change(&mut self, color: Color, span: Span) {
        let held = self.rest.remove(&color);
        if let Some((last, before)) = self.last.replace((color, held.map_or(span, |held| held.and(span)))) {
            self.rest.insert(last, before);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Color, Span)> {
        self.last.iter().copied().chain(self.rest.iter().map(|(color, span)| (*color, *span)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_none()
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
    /// The numbers of records in it.
    pub(crate) own: Spans,
    /// The numbers that entries in it give to records.
    pub(crate) given: Spans,
    /// Staged tokens in it that have no number.
    pub(crate) staged: u32,
    /// The highest place of the shard log in it.
    pub(crate) lsn: Lsn,
    /// The highest place of an entry that gave a record in it its number.
    pub(crate) numbered: Lsn,
    /// Its records are on their way to an SSD file.
    pub(crate) moving: bool,
    /// Its records could not be read to be moved: they stay.
    pub(crate) stuck: bool,
    /// Generations of segments that have damaged records which records in this one stand in for: as long as one of those
    /// is in use, recovery must find these.
    pub(crate) stands_in_for: Vec<u32>,
    /// Some of its shard-log entries were taken back.
    pub(crate) taken_back: bool,
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

    /// The entries above `upto` were taken back.
    pub(crate) fn truncate(&mut self, upto: Lsn) {
        for segment in self.list.iter_mut().filter(|segment| segment.lsn > upto) {
            segment.lsn = upto;
            segment.taken_back = true;
        }
        for segment in &mut self.list {
            segment.numbered = segment.numbered.min(upto);
        }
    }

    /// Whether one of those in use, but for `leaving`, has entries that were taken back by what stands at `place`.
    pub(crate) fn any_taken_back(&self, place: Place, leaving: &[usize]) -> bool {
        let mut list = self.list.iter().enumerate();
        list.any(|(slot, segment)| {
            let stays = segment.used == Use::Live && !leaving.contains(&slot);
            stays && segment.taken_back && segment.generation <= place.generation
        })
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

    /// A record in the segment `slot` stands in for a damaged one in the segment of this generation.
    pub(crate) fn stand_in(&mut self, slot: usize, generation: u32) {
        let segment = &mut self.list[slot];
        if segment.generation != generation && !segment.stands_in_for.contains(&generation) {
            segment.stands_in_for.push(generation);
        }
    }

    fn is_live(&self, generation: u32) -> bool {
        self.list.iter().any(|segment| segment.used == Use::Live && segment.generation == generation)
    }

    /// Those but `head` that a checkpoint up to `upto` would leave out. `here`: the area has records of these numbers.
    pub(crate) fn removable(
        &self,
        head: usize,
        upto: Lsn,
        here: impl Fn(Color, Span) -> bool,
    ) -> impl Iterator<Item = usize> {
        self.list.iter().enumerate().filter_map(move |(slot, segment)| {
            let held = slot == head
                || segment.used != Use::Live
                || segment.staged > 0
                || segment.moving
                || segment.lsn > upto
                || segment.stands_in_for.iter().any(|other| self.is_live(*other))
                || segment.own.iter().chain(segment.given.iter()).any(|(color, span)| here(color, span));
            (!held).then_some(slot)
        })
    }

    /// Those whose records can move to SSD files, in the order of the log: durable, written to the end, and all their
    /// numbers given at or below `upto`.
    pub(crate) fn movable(&self, head: usize, fenced: Place, upto: Lsn) -> Vec<usize> {
        let sealed = |(_, segment): &(usize, &Segment)| {
            segment.used == Use::Live && segment.generation < fenced.generation && !segment.own.is_empty()
        };
        let list = self.list.iter().enumerate().filter(|(slot, _)| *slot != head).filter(sealed);
        let mut slots: Vec<usize> = list
            .filter(|(_, segment)| !segment.moving && !segment.stuck && segment.numbered <= upto)
            .map(|(slot, _)| slot)
            .collect();
        slots.sort_unstable_by_key(|slot| self.list[*slot].generation);
        slots
    }

    /// Those that are free once a checkpoint is durable.
    pub(crate) fn leaving(&self) -> usize {
        self.leaving
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
        for (color, low, high) in [(1, 5, 5), (2, 7, 7), (1, 2, 4), (2, 6, 6)] {
            segments.get_mut(1).own.add(Color(color), Span { low: n(low), high: n(high) });
        }
        segments.get_mut(2).lsn = Lsn(9);
        let spans: Vec<_> = segments.get(1).own.iter().collect();
        assert_eq!(spans, [(Color(2), Span { low: n(6), high: n(7) }), (Color(1), Span { low: n(2), high: n(5) })]);
        let with = |lsn, one, two| {
            let trims = [n(0), n(one), n(two)];
            let here = move |color: Color, span: Span| span.high > trims[color.0 as usize];
            segments.removable(head, Lsn(lsn), here).collect::<Vec<_>>()
        };
        assert_eq!(with(8, 4, 7), Vec::<usize>::new());
        assert_eq!(with(8, 5, 6), Vec::<usize>::new());
        assert_eq!(with(8, 5, 7), [1]);
        assert_eq!(with(9, 5, 7), [1, 2]);
        segments.get_mut(1).moving = true;
        let none = segments.removable(head, Lsn(9), |_, _| false).collect::<Vec<_>>();
        assert_eq!(none, [2], "what moves stays until it has moved");
    }

    #[test]
    fn what_can_move_is_sealed_durable_and_numbered_by_committed_entries() {
        let mut segments = Segments::new();
        segments.grow(5);
        let slots: Vec<usize> = [4, 3, 2, 5].map(|generation| segments.take(generation).unwrap()).to_vec();
        for slot in &slots {
            segments.get_mut(*slot).own.add(Color(1), Span { low: n(1), high: n(2) });
            segments.get_mut(*slot).numbered = Lsn(7);
        }
        let with =
            |segments: &Segments, generation, upto| segments.movable(slots[3], Place::new(generation, 8), Lsn(upto));
        assert_eq!(with(&segments, 5, 7), [2, 1, 0], "in the order of the log, without the head");
        assert_eq!(with(&segments, 4, 7), [2, 1]);
        assert!(with(&segments, 5, 6).is_empty());
        segments.get_mut(1).moving = true;
        segments.get_mut(2).own = Spans::default();
        assert_eq!(with(&segments, 5, 7), [0]);
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
