//! Requests for numbers on their way up: those of one color that wait together become one.
//!
//! It relies on the parent to answer the requests of a color in their order, and promises that what is granted for a
//! merged request is split among its parts in the order in which they came, each part once and in one piece, and that a
//! request which a new parent has not answered is asked again. A part whose child was replaced gets nothing: its numbers
//! are nobody's. Nothing is kept of a color with no request under way.

use std::collections::VecDeque;

use flexlog_protocol::Color;
use rustc_hash::FxHashMap;

/// The most numbers that are asked for at once, so that an epoch which has some left has enough.
const MAX_COUNT: u32 = 1 << 24;

/// What a child asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// `None`: it was replaced since.
    pub(super) child: Option<usize>,
    /// The child's name for the request.
    pub(super) batch: u64,
    pub(super) count: u32,
}

/// One request of this position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) batch: u64,
    pub(super) color: Color,
    pub(super) count: u32,
}

#[derive(Debug, Default)]
struct OfColor {
    waiting: Vec<Part>,
    /// Asked for and not granted, oldest first.
    asked: VecDeque<(u64, u32, Vec<Part>)>,
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    colors: FxHashMap<Color, OfColor>,
    /// The colors with waiting parts, in the order in which the first came.
    waiting: Vec<Color>,
    batches: u64,
}

impl Requests {
    pub(super) fn push(&mut self, color: Color, part: Part) {
        let of_color = self.colors.entry(color).or_default();
        if of_color.waiting.is_empty() {
            self.waiting.push(color);
        }
        of_color.waiting.push(part);
    }

    /// Merges what waits, one request a color as a rule, and returns what to ask for.
    pub(super) fn merge(&mut self) -> Vec<Request> {
        let mut requests = Vec::new();
        for color in std::mem::take(&mut self.waiting) {
            let Some(of_color) = self.colors.get_mut(&color) else { continue };
            let mut parts = Vec::new();
            let mut count = 0;
            let waiting = std::mem::take(&mut of_color.waiting);
            let mut waiting = waiting.into_iter().peekable();
            while let Some(part) = waiting.next() {
                count += part.count; // Both are small: see below.
                parts.push(part);
                if waiting.peek().is_none_or(|next| next.count.saturating_add(count) > MAX_COUNT) {
                    self.batches += 1;
                    requests.push(Request { batch: self.batches, color, count });
                    of_color.asked.push_back((self.batches, count, std::mem::take(&mut parts)));
                    count = 0;
                }
            }
            if of_color.asked.is_empty() {
                self.colors.remove(&color);
            }
        }
        requests
    }

    /// The parts of the oldest request of `color`, if that is the one which is granted.
    pub(super) fn granted(&mut self, color: Color, batch: u64, count: u32) -> Option<Vec<Part>> {
        let of_color = self.colors.get_mut(&color)?;
        of_color.asked.front().filter(|(name, asked, _)| (*name, *asked) == (batch, count))?;
        let (_, _, parts) = of_color.asked.pop_front()?;
        if of_color.asked.is_empty() && of_color.waiting.is_empty() {
            self.colors.remove(&color);
        }
        Some(parts)
    }

    /// What a new parent is to be asked again, in the order in which it was.
    pub(super) fn again(&self) -> Vec<Request> {
        let mut requests: Vec<_> = self
            .colors
            .iter()
            .flat_map(|(color, of_color)| of_color.asked.iter().map(|(batch, count, _)| (*batch, *color, *count)))
            .map(|(batch, color, count)| Request { batch, color, count })
            .collect();
        requests.sort_unstable_by_key(|request| request.batch);
        requests
    }

    /// A child was replaced: what it waits for is not asked for any more, and what was is nobody's.
    pub(super) fn forget(&mut self, child: usize) {
        self.colors.retain(|_, of_color| {
            of_color.waiting.retain(|part| part.child != Some(child));
            let parts = of_color.asked.iter_mut().flat_map(|(_, _, parts)| parts);
            parts.filter(|part| part.child == Some(child)).for_each(|part| part.child = None);
            !of_color.waiting.is_empty() || !of_color.asked.is_empty()
        });
        self.waiting.retain(|color| self.colors.get(color).is_some_and(|of_color| !of_color.waiting.is_empty()));
    }

    /// How many requests are under way.
    pub(super) fn under_way(&self) -> usize {
        self.colors.values().map(|of_color| of_color.asked.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: Color = Color(1);
    const BLUE: Color = Color(2);

    fn part(child: usize, batch: u64, count: u32) -> Part {
        Part { child: Some(child), batch, count }
    }

    #[test]
    fn what_waits_for_one_color_is_asked_for_together_and_split_in_order() {
        let mut requests = Requests::default();
        let red = [part(0, 1, 3), part(1, 1, 2), part(0, 2, 1)];
        red.iter().for_each(|part| requests.push(RED, *part));
        requests.push(BLUE, part(1, 2, 9));
        let asked = [Request { batch: 1, color: RED, count: 6 }, Request { batch: 2, color: BLUE, count: 9 }];
        assert_eq!(requests.merge(), asked);
        assert_eq!((requests.merge(), requests.under_way()), (vec![], 2));
        requests.push(RED, part(1, 3, 4));
        assert_eq!(requests.merge(), [Request { batch: 3, color: RED, count: 4 }]);
        assert_eq!(requests.granted(RED, 3, 4), None, "the older one first");
        assert_eq!(requests.granted(RED, 1, 5), None, "another count");
        assert_eq!(requests.granted(RED, 1, 6), Some(red.to_vec()));
        assert_eq!(requests.granted(RED, 1, 6), None, "once");
        assert!(requests.granted(RED, 3, 4).is_some() && requests.granted(BLUE, 2, 9).is_some());
        assert!(requests.colors.is_empty(), "nothing is kept");
    }

    #[test]
    fn no_request_is_larger_than_an_epoch_can_serve() {
        let mut requests = Requests::default();
        (0..4).for_each(|batch| requests.push(RED, part(0, batch, MAX_COUNT / 2)));
        requests.push(RED, part(1, 0, u32::MAX));
        let counts: Vec<_> = requests.merge().into_iter().map(|request| request.count).collect();
        assert_eq!(counts, [MAX_COUNT, MAX_COUNT, u32::MAX]);
    }

    #[test]
    fn a_new_parent_is_asked_again_in_order() {
        let mut requests = Requests::default();
        for (color, batch) in [(RED, 1), (BLUE, 2), (RED, 3)] {
            requests.push(color, part(0, batch, 1));
            requests.merge();
        }
        requests.push(RED, part(0, 4, 1));
        let again: Vec<_> = requests.again().into_iter().map(|request| request.batch).collect();
        assert_eq!(again, [1, 2, 3]);
        requests.granted(RED, 1, 1);
        assert_eq!(requests.again().len(), 2);
    }

    #[test]
    fn a_replaced_child_gets_nothing() {
        let mut requests = Requests::default();
        requests.push(RED, part(0, 1, 3));
        requests.push(RED, part(1, 1, 2));
        requests.merge();
        requests.push(RED, part(0, 2, 1));
        requests.push(BLUE, part(0, 3, 1));
        requests.forget(0);
        assert_eq!(requests.merge(), [], "nobody waits any more");
        let nobody = Part { child: None, ..part(0, 1, 3) };
        assert_eq!(requests.granted(RED, 1, 5), Some(vec![nobody, part(1, 1, 2)]));
        assert!(requests.colors.is_empty());
    }
}
