//! What each step of the tree model does. [`Tree::actions`](super::Tree) says when it may be taken.

use super::state::{
    Down, Entry, INNER, LEAF, Leaf, Link, Log, Node, Part, Position, Question, ROOT, Request, State, Up, end_of,
};
use super::{Action, Name, Tree};
use crate::fault::Fault;
use crate::words::{Number, Set};

impl Tree {
    /// Changes `state` by a step that is enabled in it.
    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Arrive { token } => {
                let token = usize::from(token);
                state.arrived = state.arrived.with(token);
                state.history.floors[token] = state.highest_acked();
            }
            Action::Request { leaf: Name(leaf) } => {
                let tokens = self.uncounted(state, leaf);
                let of = state.leaf(leaf);
                of.batches += 1;
                let request = Request { batch: of.batches, tokens };
                of.requests.push(request);
                self.say_up(state, leaf, Up::Order { batch: request.batch, count: tokens.len() as u8 });
            }
            Action::Merge { inner: Name(inner) } => {
                let of = state.position(inner);
                of.batches += 1;
                let batch = of.batches;
                of.parts.iter_mut().filter(|part| part.asked == 0).for_each(|part| part.asked = batch);
                let count = of.parts.iter().filter(|part| part.asked == batch).map(|part| part.count).sum();
                self.say_up(state, inner, Up::Order { batch, count });
            }
            Action::Seal { parent: Name(parent), child: Name(child) } => self.seal(state, parent, child),
            Action::Up { child: Name(child), parent: Name(parent) } => {
                let message = state.link(parent, child).and_then(|link| state.links[link].up.pop_front());
                if let Some(message) = message {
                    self.take_up(state, parent, child, message);
                }
            }
            Action::Down { parent: Name(parent), child: Name(child) } => {
                let message = state.link(parent, child).and_then(|link| state.links[link].down.pop_front());
                if let Some(message) = message {
                    self.take_down(state, parent, child, message);
                }
            }
            Action::Commit { leaf: Name(leaf) } => commit(state, leaf),
            Action::Claim { node: Name(node) } => {
                let position = Position { known: self.known(state, node), ..Position::default() };
                if node.place == ROOT {
                    state.roots.push(position);
                } else {
                    state.inners.push(position);
                }
            }
            Action::Recover { leaf: Name(leaf), entries } => {
                let known = self.known(state, leaf);
                let mut log: Log = state.leaves[leaf.shard()].last().map_or(Log::default(), |last| last.log);
                log.truncate(usize::from(entries));
                state.leaves[leaf.shard()].push(Leaf { known, log, ..Leaf::default() });
                commit(state, leaf);
            }
            Action::Ask { leaf: Name(leaf) } => {
                state.asks += 1;
                state.history.asked_at = state.highest_acked();
                state.leaf(leaf).question = Question::Asked;
                self.say_up(state, leaf, Up::Ask);
            }
            Action::Confirm { leaf: Name(leaf) } => {
                state.leaf(leaf).question = Question::None;
                state.history.tail_low = true;
            }
        }
    }

    /// What the metadata says of a place's neighbours when it is claimed.
    fn known(&self, state: &State, node: Node) -> [u8; 4] {
        let mut known = [0; 4];
        if node.place != ROOT {
            let above = self.above(node.place);
            known[usize::from(above)] = state.holder(above).tenure;
        }
        if node.place < LEAF {
            self.below(node.place).iter().for_each(|place| known[usize::from(*place)] = state.holder(*place).tenure);
        }
        known
    }

    /// The epoch in which a root counts.
    fn epoch(&self, root: Node) -> u8 {
        if self.has(Fault::OwnerEpochReused) { 1 } else { root.tenure + 1 }
    }

    // ---- streams ----

    fn parent_of(&self, state: &mut State, child: Node) -> Option<Node> {
        let place = self.above(child.place);
        let tenure = if child.place == INNER { state.position(child).parent } else { state.leaf(child).parent };
        tenure.map(|tenure| Node { place, tenure })
    }

    fn say_up(&self, state: &mut State, child: Node, message: Up) {
        let link = self.parent_of(state, child).and_then(|parent| state.link(parent, child));
        if let Some(link) = link {
            state.links[link].up.push(message);
        }
    }

    fn say_down(&self, state: &mut State, parent: Node, child: Node, message: Down) {
        if let Some(link) = state.link(parent, child) {
            state.links[link].down.push(message);
        }
    }

    /// The index of a child among its parent's.
    fn index(&self, child: Node) -> usize {
        if child.place == INNER { 0 } else { child.shard() }
    }

    /// Drops what nobody will take any more, and processes that were replaced and that nobody will hear of again, so that
    /// states which differ in that alone are one.
    pub(super) fn retire(&self, state: &mut State) {
        let keeps_old = self.has(Fault::OldGrantCounts);
        let mut links = state.links;
        for link in links.iter_mut() {
            if self.parent_of(state, link.child) != Some(link.parent) && !keeps_old {
                link.down.truncate(0);
            }
            let reported = state.position(link.parent).children[self.index(link.child)].reported;
            if reported.is_some_and(|reported| reported > link.child.tenure) {
                link.up.truncate(0);
            }
        }
        let mut seals = Vec::new();
        self.seals(state, &mut seals);
        let may_seal = |node: Node| {
            seals
                .iter()
                .any(|seal| matches!(seal, Action::Seal { parent, child } if parent.0 == node || child.0 == node))
        };
        for place in [ROOT, INNER, LEAF, LEAF + 1] {
            for tenure in 0..state.tenures(place).saturating_sub(1) {
                let node = Node { place, tenure };
                // Those who sealed to it hear it; and so does its own parent, unless that knows its successor.
                let heard_below = links.iter().any(|link| {
                    link.parent == node && (self.parent_of(state, link.child) == Some(node) || !link.down.is_empty())
                });
                let heard_above = links.iter().any(|link| {
                    let reported = state.position(link.parent).children[self.index(link.child)].reported;
                    link.child == node && reported.is_none_or(|reported| reported <= tenure)
                });
                if heard_below || heard_above || may_seal(node) {
                    continue;
                }
                links.retain(|link| link.parent != node && link.child != node);
                match place {
                    ROOT | INNER => *state.position(node) = Position { gone: true, ..Position::default() },
                    _ => *state.leaf(node) = Leaf { gone: true, ..Leaf::default() },
                }
            }
        }
        links.retain(|link| {
            !link.up.is_empty()
                || !link.down.is_empty()
                || self.parent_of(&mut state.clone(), link.child) == Some(link.parent)
        });
        links.sort_unstable_by_key(|link| (link.parent, link.child));
        state.links = links;
    }

    // ---- sealing ----

    fn seal(&self, state: &mut State, parent: Node, child: Node) {
        if state.link(parent, child).is_none() {
            state.links.push(Link { parent, child, ..Link::default() });
        }
        if child.place != INNER {
            let of = state.leaf(child);
            of.parent = Some(parent.tenure);
            let (end, _) = end_of(&of.log);
            self.say_up(state, child, Up::Sealed { by: parent, end });
            return self.ask_again(state, child);
        }
        let of = state.position(child);
        of.parent = Some(parent.tenure);
        of.ready = false;
        of.children.iter_mut().for_each(|child| child.answered = None);
        let children = of.children;
        if self.has(Fault::SealNotPassed) {
            of.children.iter_mut().for_each(|child| child.answered = Some(child.end));
            return self.answer_seal(state, child);
        }
        for (index, below) in self.below(INNER).iter().enumerate() {
            if let Some(tenure) = children[index].reported {
                self.say_down(state, child, Node { place: *below, tenure }, Down::Seal(parent));
            }
        }
    }

    /// With the last answer of its children a position answers its own parent.
    fn answer_seal(&self, state: &mut State, inner: Node) {
        let Some(by) = self.parent_of(state, inner) else { return };
        let of = state.position(inner);
        let enough = |answered: usize| match self.fault {
            Some(Fault::InnerAnswersEarly) => answered > 0,
            _ => answered == of.children.len(),
        };
        let answers = of.children.iter().filter_map(|child| child.answered);
        if of.ready || !enough(answers.clone().count()) {
            return;
        }
        let end = answers.max().unwrap_or_default();
        of.ready = true;
        self.say_up(state, inner, Up::Sealed { by, end });
        self.ask_again(state, inner);
    }

    /// What was asked of a parent before is asked of the new one.
    fn ask_again(&self, state: &mut State, child: Node) {
        if child.place == INNER {
            let of = *state.position(child);
            for batch in 1..=of.batches {
                let count = of.parts.iter().filter(|part| part.asked == batch).map(|part| part.count).sum();
                if count > 0 {
                    self.say_up(state, child, Up::Order { batch, count });
                }
            }
            if of.asks.is_some() {
                self.say_up(state, child, Up::Ask);
            }
            return;
        }
        let of = *state.leaf(child);
        for request in of.requests.iter() {
            self.say_up(state, child, Up::Order { batch: request.batch, count: request.tokens.len() as u8 });
        }
        if of.question == Question::Asked {
            self.say_up(state, child, Up::Ask);
        }
    }

    /// A child reports: what its predecessor asked for is nobody's.
    fn reported(&self, state: &mut State, parent: Node, child: Node, end: Number) {
        let index = self.index(child);
        let of = state.position(parent);
        let known = &mut of.children[index];
        (known.reported, known.end, known.answered) = (Some(child.tenure), end, None);
        of.parts.retain(|part| part.asked > 0 || part.child != Some(index as u8));
        of.parts.iter_mut().filter(|part| part.child == Some(index as u8)).for_each(|part| part.child = None);
        of.asks = of.asks.filter(|asks| usize::from(*asks) != index);
        let awaited = &of.children[..self.below(parent.place).len()];
        let mut reports = awaited.iter().filter(|child| child.reported.is_some());
        let enough = match self.fault {
            Some(Fault::OwnerStartsEarly) if parent.place == ROOT => reports.next().is_some(),
            _ => reports.count() == awaited.len(),
        };
        if enough && !of.serves {
            of.serves = true;
            of.end = of.children.iter().map(|child| child.end).max().unwrap_or_default();
        }
        if let Some(by) = of.parent.filter(|_| !of.ready) {
            self.say_down(state, parent, child, Down::Seal(Node { place: ROOT, tenure: by }));
        }
    }

    // ---- messages ----

    fn take_up(&self, state: &mut State, parent: Node, child: Node, message: Up) {
        let index = self.index(child);
        let of = state.position(parent);
        let counts = of.children[index].reported == Some(child.tenure);
        match message {
            Up::Sealed { by, end } if by == parent => {
                if of.children[index].reported.is_none_or(|known| known < child.tenure) {
                    self.reported(state, parent, child, end);
                }
            }
            Up::Sealed { by, end } => {
                if counts && of.parent == Some(by.tenure) {
                    of.children[index].answered = Some(end);
                    self.answer_seal(state, parent);
                }
            }
            _ if !counts => {}
            Up::Order { batch, count } if parent.place == ROOT => {
                let first = Number { epoch: self.epoch(parent), counter: of.counter };
                of.counter += count;
                let end = if self.has(Fault::TwoEnds) { of.children[index].end } else { of.end };
                self.say_down(state, parent, child, Down::Grant { batch, first, end });
            }
            Up::Order { batch, count } => of.parts.push(Part { child: Some(index as u8), batch, count, asked: 0 }),
            Up::Ask if parent.place == ROOT => {
                let number = Number { epoch: self.epoch(parent), counter: of.counter };
                let end = of.end;
                self.say_down(state, parent, child, Down::Tail { number, end });
            }
            Up::Ask => {
                of.asks = Some(index as u8);
                if of.ready {
                    self.say_up(state, parent, Up::Ask);
                }
            }
        }
    }

    fn take_down(&self, state: &mut State, parent: Node, child: Node, message: Down) {
        let old = self.parent_of(state, child) != Some(parent);
        if old && !(self.has(Fault::OldGrantCounts) && matches!(message, Down::Grant { .. })) {
            return;
        }
        if child.place != INNER {
            return self.leaf_takes(state, child, message, old);
        }
        match message {
            Down::Seal(_) => {}
            Down::Grant { batch, first, end } => {
                let parts = state.position(child).parts;
                let mut first = first;
                for part in parts.iter().filter(|part| part.asked == batch) {
                    state.history.old_counted |= old;
                    let reported =
                        part.child.and_then(|index| state.position(child).children[usize::from(index)].reported);
                    if let (Some(index), Some(tenure)) = (part.child, reported) {
                        let to = Node { place: LEAF + index, tenure };
                        self.say_down(state, child, to, Down::Grant { batch: part.batch, first, end });
                    }
                    first.counter += part.count;
                }
                state.position(child).parts.retain(|part| part.asked != batch);
            }
            Down::Tail { .. } => {
                let asks = state.position(child).asks.take();
                let tenure = asks.and_then(|index| state.position(child).children[usize::from(index)].reported);
                if let (Some(index), Some(tenure)) = (asks, tenure) {
                    self.say_down(state, child, Node { place: LEAF + index, tenure }, message);
                }
            }
        }
    }

    fn leaf_takes(&self, state: &mut State, leaf: Node, message: Down, old: bool) {
        let asked_at = state.history.asked_at;
        let settled = state.settled[leaf.shard()];
        match message {
            Down::Seal(by) => {
                let (end, _) = end_of(&state.leaf(leaf).log);
                self.say_up(state, leaf, Up::Sealed { by, end });
            }
            Down::Tail { number, end } => {
                let of = state.leaf(leaf);
                self.end_epoch(&mut of.log, end, number.epoch);
                let low = of.question == Question::Asked && number <= asked_at;
                of.question = if low { Question::Low } else { Question::None };
            }
            Down::Grant { batch, first, end } => {
                let later = if self.has(Fault::GrantForLater) { self.uncounted(state, leaf) } else { Set::default() };
                let of = state.leaf(leaf);
                if of.requests.first().is_none_or(|request| request.batch != batch) {
                    return;
                }
                let Some(mut request) = of.requests.pop_front() else { return };
                if request.tokens.len() == later.len() {
                    request.tokens = later;
                }
                self.end_epoch(&mut of.log, end, first.epoch);
                let written = end_of(if self.has(Fault::HoleOverRecord) { &settled } else { &of.log });
                self.fill(&mut of.log, written, first);
                let mut number = first;
                for token in request.tokens.iter() {
                    of.log.push(Entry::Assign { token: token as u8, number });
                    number = number.next();
                }
                state.history.old_counted |= old;
            }
        }
    }

    /// Writes the end of the epoch before `next`, unless the log has it or goes on in `next` already.
    fn end_epoch(&self, log: &mut Log, end: Number, next: u8) {
        let (last, goes_on) = end_of(log);
        if end == Number::NONE || goes_on >= next {
            return;
        }
        if !self.bounds.wide && last < end {
            // What a leaf before was granted, and told of, and lost.
            if last != Number::NONE && last.epoch < end.epoch && goes_on < end.epoch {
                log.push(Entry::EpochEnd { end: last, next: end.epoch });
            }
            self.fill(log, end_of(log), end);
        }
        log.push(Entry::EpochEnd { end, next });
    }

    /// Writes holes for the numbers of `first`'s epoch that this log should have and does not: where all numbers are one
    /// shard's, what is missing was lost on its way.
    fn fill(&self, log: &mut Log, (end, goes_on): (Number, u8), first: Number) {
        if self.bounds.wide {
            return;
        }
        let from = if end.epoch == first.epoch && goes_on == first.epoch { end.counter } else { 0 };
        for counter in from..first.counter {
            log.push(Entry::Hole(Number { epoch: first.epoch, counter }));
        }
    }
}

fn commit(state: &mut State, leaf: Node) {
    let log = state.leaf(leaf).log;
    for entry in log.iter().skip(state.settled[leaf.shard()].len()) {
        if let Entry::Assign { token, number } = entry {
            state.history.acked[usize::from(*token)] = *number;
        }
    }
    state.settled[leaf.shard()] = log;
}
