//! One position of the ordering tree, in one incarnation: it counts for the colors that it owns, and merges what its
//! children ask of the positions above.
//!
//! It relies on numbered streams to its neighbours that repeat and lose nothing while both incarnations live, and on its
//! shell to say when a neighbour's process was replaced. It promises contiguous numbers of one epoch for every request,
//! each once (I1); that nothing is numbered before everything below has reported to this incarnation; that only the
//! parent sealed to last counts, and only the child that reported last (I9); and that what a color's stable passes is
//! settled, or was lost where nobody will ever find it (I6).
//!
//! **Start.** Every child is asked to seal. It answers with how far the numbers in the logs below it went, behind all
//! that it had handed on; with the last of these reports the position knows enough to count, in an epoch of its own.
//! Recovery needs nothing from above. A parent's seal goes down to all children and is answered with their reports
//! together, so that a grant which was on its way is in the report of whoever it reached.
//!
//! **Natural batching.** [`Sequencer::handle`] takes one input and sends only what cannot be batched. What goes up, and
//! stable, collect until [`Sequencer::flush`], which the shell calls whenever it has no more input at hand.
//!
//! What is held is bounded by what children have under way, a few words for each owned color with numbers, and those of
//! wide colors that are followed below.

mod granted;
mod owner;
mod questions;
mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use flexlog_protocol::peer::{Between, Child, ColorEnd, FromParent, Range, ToParent};
use flexlog_protocol::{Color, Epoch, Incarnation, Position, SeqNum, ShardId};
use rustc_hash::FxHashMap;

use granted::Granted;
use owner::{Numbers, Owner};
use questions::{Question, Questions};
use requests::{Part, Request, Requests};

#[cfg(test)]
mod tests;

/// What a position is given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A message from a position below, of whichever incarnations it names.
    Child {
        /// The place it comes from.
        from: Position,
        /// What it says.
        message: Between<ToParent>,
    },
    /// A message from the leaf of a shard of this position, of this incarnation.
    Shard {
        /// The shard.
        from: ShardId,
        /// What it says.
        message: ToParent,
    },
    /// A message from the position above, of whichever incarnations it names.
    Parent(Between<FromParent>),
    /// The process at a position below is another one than before, or does not have all that was said to it.
    ChildReplaced(Position),
    /// The process at the position above is another one than before, or does not have all that was said to it.
    ParentReplaced,
}

/// What a position wants done, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send this to a position below.
    Child {
        /// The place.
        to: Position,
        /// What to say.
        message: Between<FromParent>,
    },
    /// Tell the leaf of a shard of this position.
    Shard {
        /// The shard.
        to: ShardId,
        /// What to say.
        message: FromParent,
    },
    /// Send this to the position above.
    Parent(Between<ToParent>),
    /// Everything below has reported: the position counts from here on.
    Serving,
    /// A color has used up its epoch, or nearly: claim the position again, and start it in the fresh epoch. What this
    /// incarnation has not granted, the next one will.
    EpochFull,
}

/// A position's state, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The incarnation's epoch.
    pub epoch: Epoch,
    /// The children that have not reported yet.
    pub awaited: Vec<Child>,
    /// The parent's epoch, if the position has sealed to one; the root has none.
    pub parent: Option<Epoch>,
    /// Owned colors with numbers.
    pub colors: usize,
    /// Numbers granted of owned colors.
    pub granted: u64,
    /// Requests under way to the parent.
    pub under_way: usize,
    /// Messages that changed nothing: of another incarnation, out of turn, for a color that is nobody's here.
    pub ignored: u64,
}

/// One position, in one incarnation. [`Sequencer::start`] once, then [`Sequencer::handle`] each input, and
/// [`Sequencer::flush`] whenever no more input is at hand.
#[derive(Debug)]
pub struct Sequencer {
    me: Incarnation,
    limit: u32,
    children: Vec<Neighbour>,
    places: BTreeMap<Child, usize>,
    parent: Parent,
    /// Counts, once every child has reported.
    owner: Option<Owner>,
    /// How far owned colors went, by the reports so far.
    ends: FxHashMap<Color, SeqNum>,
    /// Requests for owned colors that came before that.
    held: VecDeque<(usize, u64, Color, u32)>,
    /// Seals of the parent and of positions above it that are on their way down, the latest of each, in the order in
    /// which they came: that is the order in which they are to be answered.
    passing: Vec<Passing>,
    requests: Requests,
    questions: Questions,
    wide: FxHashMap<Color, Wide>,
    /// Wide colors that something is to be told about: upward how far they are settled, downward their stable.
    moved: BTreeSet<Color>,
    told_full: bool,
    /// Incarnations of neighbours below these epochs were replaced before this one began: nothing they say counts, though
    /// they may not know it.
    least: BTreeMap<Position, Epoch>,
    ignored: u64,
}

/// A child.
#[derive(Debug)]
struct Neighbour {
    who: Child,
    /// The incarnation whose report is in force. A shard's leaf is of this position's own.
    incarnation: Option<Incarnation>,
    /// Whether it has reported and was not replaced since.
    reported: bool,
    /// How often it was asked to report again. A shard never is.
    seals: u32,
}

/// The position above.
#[derive(Debug)]
struct Parent {
    is_root: bool,
    /// The incarnation sealed to last, and how often it had asked before.
    incarnation: Option<Incarnation>,
    nth: u32,
    /// It need not seal again: nothing that was said since is lost.
    sealed: bool,
    /// Whether that seal was answered: nothing goes up before.
    ready: bool,
}

/// A seal on its way down, and the reports so far.
#[derive(Debug)]
struct Passing {
    by: Incarnation,
    nth: u32,
    reports: Vec<Option<Vec<ColorEnd>>>,
}

#[derive(Debug, Default)]
struct Wide {
    granted: Granted,
    /// The children that are told its stable, and what each was told last.
    followers: BTreeMap<usize, SeqNum>,
    /// Everything below is settled on all its shards.
    stable: SeqNum,
    /// What the parent was told.
    told: SeqNum,
}

impl Sequencer {
    /// The position that `me` has claimed, with these children. [`Sequencer::start`] comes next.
    #[must_use]
    pub fn new(me: Incarnation, is_root: bool, children: &[Child]) -> Self {
        let neighbour = |who: &Child| {
            let incarnation = matches!(who, Child::Shard(_)).then_some(me);
            Neighbour { who: *who, incarnation, reported: false, seals: 0 }
        };
        Self {
            me,
            limit: SeqNum::MAX_COUNT,
            children: children.iter().map(neighbour).collect(),
            places: children.iter().enumerate().map(|(place, who)| (*who, place)).collect(),
            parent: Parent { is_root, incarnation: None, nth: 0, sealed: false, ready: false },
            owner: None,
            ends: FxHashMap::default(),
            held: VecDeque::new(),
            passing: Vec::new(),
            requests: Requests::default(),
            questions: Questions::default(),
            wide: FxHashMap::default(),
            moved: BTreeSet::new(),
            told_full: false,
            least: BTreeMap::new(),
            ignored: 0,
        }
    }

    /// The same position, giving out at most `limit` numbers of a color in its epoch. For tests of a full epoch.
    #[must_use]
    pub fn with_limit(self, limit: u32) -> Self {
        Self { limit, ..self }
    }

    /// The same, knowing who held the positions right above and below when this one had been claimed: what older
    /// incarnations of those say changes nothing.
    ///
    /// Claims have one order, that of the metadata. Of two neighbours that are claimed at about the same time the later one
    /// knows of the earlier; without this the earlier one's predecessor and the later one could take each other for good, and
    /// two pairs would count side by side.
    #[must_use]
    pub fn with_neighbours(self, holders: impl IntoIterator<Item = (Position, Epoch)>) -> Self {
        Self { least: holders.into_iter().collect(), ..self }
    }

    fn is_replaced(&self, speaker: Incarnation) -> bool {
        self.least.get(&speaker.position).is_some_and(|least| speaker.epoch < *least)
    }

    /// Seals the children, and asks the parent to seal this position.
    pub fn start(&mut self, out: &mut Vec<Output>) {
        (0..self.children.len()).for_each(|child| self.seal(child, self.me, out));
        self.say_here(out);
    }

    fn say_here(&self, out: &mut Vec<Output>) {
        if !self.parent.is_root {
            out.push(Output::Parent(Between { from: self.me, to: None, message: ToParent::Here }));
        }
    }

    /// Takes one input. Adds to `out` what cannot wait for [`Sequencer::flush`].
    pub fn handle(&mut self, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Shard { from, message } => match self.places.get(&Child::Shard(from)) {
                Some(child) => self.child_says(*child, self.me, message, out),
                None => self.ignored += 1,
            },
            Input::Child { message: Between { from: speaker, .. }, .. }
            | Input::Parent(Between { from: speaker, .. })
                if self.is_replaced(speaker) =>
            {
                self.ignored += 1;
            }
            Input::Child { from, message: Between { from: speaker, to, message } } => {
                let child = self.places.get(&Child::Position(from)).copied();
                match (child, to) {
                    (Some(child), None) if message == ToParent::Here => self.child_is_new(child, speaker, out),
                    (Some(child), Some(to)) if to == self.me => self.child_says(child, speaker, message, out),
                    _ => self.ignored += 1,
                }
            }
            Input::Parent(Between { from, to, message }) => match (message, to) {
                (FromParent::Seal { by, nth }, _) => self.sealed_by(from, by, nth, out),
                (message, Some(to)) if to == self.me && self.parent.incarnation == Some(from) => {
                    self.parent_says(message, out);
                }
                _ => self.ignored += 1,
            },
            Input::ChildReplaced(position) => {
                if let Some(child) = self.places.get(&Child::Position(position)).copied() {
                    self.ask_again(child, out);
                }
            }
            Input::ParentReplaced => {
                // What was said may be lost, the answer to a seal too: whoever is there asks anew.
                self.parent.sealed = false;
                self.parent.ready = false;
                self.say_here(out);
            }
        }
    }

    /// Sends what has collected. To be called whenever no more input is at hand.
    pub fn flush(&mut self, out: &mut Vec<Output>) {
        if self.parent.ready {
            for request in self.requests.merge() {
                self.order(request, out);
            }
            if self.owner.is_some() {
                let own = self.me.position;
                if let Some((round, colors)) = self.questions.begin(|color| color.owner() != own) {
                    self.to_parent(ToParent::Tails { round, colors }, out);
                }
            }
        }
        self.tell_moved(out);
    }

    /// Whether everything below has reported, and the position counts.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.owner.is_some()
    }

    /// How the position is doing.
    #[must_use]
    pub fn status(&self) -> Status {
        let awaited = self.children.iter().filter(|child| !child.reported);
        Status {
            epoch: self.me.epoch,
            awaited: awaited.map(|child| child.who).collect(),
            parent: self.parent.incarnation.map(|parent| parent.epoch),
            colors: self.owner.as_ref().map_or(0, Owner::colors),
            granted: self.owner.as_ref().map_or(0, Owner::granted),
            under_way: self.requests.under_way(),
            ignored: self.ignored,
        }
    }

    // ---- sealing ----

    fn seal(&self, child: usize, by: Incarnation, out: &mut Vec<Output>) {
        let nth = if by == self.me { self.children[child].seals } else { 0 };
        let message = FromParent::Seal { by, nth };
        out.push(match self.children[child].who {
            Child::Position(to) => Output::Child { to, message: Between { from: self.me, to: None, message } },
            Child::Shard(to) => Output::Shard { to, message },
        });
    }

    fn child_is_new(&mut self, child: usize, speaker: Incarnation, out: &mut Vec<Output>) {
        // One that is known says so when what it had said may be lost.
        if self.children[child].incarnation.is_none_or(|known| known.epoch <= speaker.epoch) {
            // What is on its way from one before is not taken for its report.
            self.children[child].incarnation = Some(speaker);
            self.ask_again(child, out);
        } else {
            self.ignored += 1;
        }
    }

    /// The child has to report anew; what its predecessor waits for, it does not.
    fn ask_again(&mut self, child: usize, out: &mut Vec<Output>) {
        let neighbour = &mut self.children[child];
        neighbour.reported = false;
        neighbour.seals += u32::from(matches!(neighbour.who, Child::Position(_)));
        self.forget(child);
        self.seal(child, self.me, out);
        self.passing.iter().for_each(|passing| self.seal(child, passing.by, out));
    }

    /// What was asked and told by a child that is not there any more.
    fn forget(&mut self, child: usize) {
        self.requests.forget(child);
        self.questions.forget(child);
        self.held.retain(|(other, ..)| *other != child);
        self.wide.values_mut().for_each(|wide| _ = wide.followers.remove(&child));
        self.passing.iter_mut().for_each(|passing| passing.reports[child] = None);
    }

    fn sealed_by(&mut self, from: Incarnation, by: Incarnation, nth: u32, out: &mut Vec<Output>) {
        let current = self.parent.incarnation;
        let counts = if by == from {
            // Not from one that was replaced, nor the same once more. One that asks again has lost what was said, or what
            // it had said is lost: of that perhaps nobody here has heard.
            let again = current == Some(from) && self.parent.nth < nth;
            !self.parent.is_root && (again || current.is_none_or(|current| current.epoch < from.epoch))
        } else {
            // One that does not know yet that this position is another one hands seals down before its own: it will
            // hand them down again behind that.
            let known = |passing: &Passing| passing.by.position == by.position && passing.by.epoch >= by.epoch;
            current == Some(from) && !self.passing.iter().any(known)
        };
        if !counts {
            self.ignored += 1;
            return;
        }
        let passing = Passing { by, nth, reports: vec![None; self.children.len()] };
        if by == from {
            if current != Some(from) {
                // What the parent before handed down is asked again by the new one.
                self.passing.clear();
            }
            self.parent.incarnation = Some(from);
            self.parent.nth = nth;
            self.parent.sealed = true;
            self.parent.ready = false;
            if let Some(passing) = self.passing.iter_mut().find(|passing| passing.by == by) {
                passing.nth = nth;
                return self.answer_seals(out); // It is on its way down already, or everybody has answered.
            }
            // The parent takes nothing else before this answer.
            self.passing.insert(0, passing);
        } else {
            self.passing.retain(|passing| passing.by.position != by.position);
            self.passing.push(passing);
        }
        (0..self.children.len()).for_each(|child| self.seal(child, by, out));
    }

    fn reported(
        &mut self,
        child: usize,
        speaker: Incarnation,
        (by, nth): (Incarnation, u32),
        colors: Vec<ColorEnd>,
        out: &mut Vec<Output>,
    ) {
        let neighbour = &mut self.children[child];
        if by == self.me {
            let news = match neighbour.incarnation {
                Some(known) if known == speaker => !neighbour.reported,
                known => known.is_none_or(|known| known.epoch < speaker.epoch),
            };
            if !news || nth != neighbour.seals {
                self.ignored += 1;
                return;
            }
            let other = neighbour.incarnation.is_some_and(|known| known != speaker);
            neighbour.incarnation = Some(speaker);
            neighbour.reported = true;
            if other {
                // The one before it may have reported late, when it was known to be replaced already.
                self.forget(child);
            }
            self.take_report(child, &colors);
            if self.owner.is_none() && self.children.iter().all(|child| child.reported) {
                self.begin(out);
            }
            return;
        }
        let passing = self.passing.iter_mut().find(|passing| passing.by == by);
        match passing {
            Some(passing) if neighbour.incarnation == Some(speaker) && neighbour.reported => {
                passing.reports[child].get_or_insert(colors);
                self.answer_seals(out);
            }
            _ => self.ignored += 1,
        }
    }

    /// What a child's logs have is what counts of all that it and its predecessors were granted.
    fn take_report(&mut self, child: usize, colors: &[ColorEnd]) {
        let mut gone: BTreeSet<Color> =
            self.wide.iter().filter(|(_, wide)| wide.granted.has(child)).map(|(color, _)| *color).collect();
        for end in colors {
            if end.color.owner() == self.me.position && self.owner.is_none() {
                let known = self.ends.entry(end.color).or_default();
                *known = end.end.max(*known);
                if end.stable.counter() > 0 {
                    *known = end.stable.max(*known);
                }
            }
            if end.color.is_wide() {
                gone.remove(&end.color);
                let wide = self.wide.entry(end.color).or_default();
                wide.granted.pass_over(end.stable);
                if self.owner.is_some() && end.color.owner() == self.me.position {
                    // Asked of the child's predecessor, and not of this position before.
                    wide.granted.pass_over(SeqNum::first_of(self.me.epoch));
                }
                wide.granted.replace(child, &end.own);
                wide.stable = wide.stable.max(end.stable);
                // Whatever its predecessor was told.
                wide.followers.insert(child, SeqNum::MIN);
                self.moved.insert(end.color);
            }
        }
        for color in gone {
            if let Some(wide) = self.wide.get_mut(&color) {
                wide.granted.replace(child, &[]);
                self.moved.insert(color);
            }
        }
    }

    /// All that is below has reported: from here on this position counts.
    fn begin(&mut self, out: &mut Vec<Output>) {
        let (epoch, own) = (self.me.epoch, self.me.position);
        self.owner = Some(Owner::new(epoch, self.limit, self.ends.drain()));
        for (color, wide) in self.wide.iter_mut().filter(|(color, _)| color.owner() == own) {
            wide.granted.pass_over(SeqNum::first_of(epoch));
            self.moved.insert(*color);
        }
        out.push(Output::Serving);
        for (child, batch, color, count) in std::mem::take(&mut self.held) {
            self.grant(child, batch, color, count, out);
        }
        self.answer_own_questions(out);
    }

    /// Answers those seals that all children have, in their order: the parent takes nothing before the answer to its own.
    /// One that is about to seal again has the answer then, and not twice: what is asked again behind it is asked once.
    fn answer_seals(&mut self, out: &mut Vec<Output>) {
        while self.parent.sealed && self.passing.first().is_some_and(|first| first.reports.iter().all(Option::is_some))
        {
            let first = self.passing.remove(0);
            self.answer_seal(first, out);
        }
    }

    /// Tells the parent what all children know, and what of it was asked for before and not granted.
    fn answer_seal(&mut self, Passing { by, nth, reports }: Passing, out: &mut Vec<Output>) {
        let own = self.me.position;
        let mut colors: BTreeMap<Color, ColorEnd> = BTreeMap::new();
        for end in reports.into_iter().flatten().flatten().filter(|end| end.color.owner() != own) {
            match colors.get_mut(&end.color) {
                Some(known) => join(known, end),
                None => _ = colors.insert(end.color, end),
            }
        }
        self.to_parent(ToParent::Sealed { by, nth, colors: colors.into_values().collect() }, out);
        if self.parent.incarnation != Some(by) {
            return;
        }
        self.parent.ready = true;
        for request in self.requests.again() {
            self.order(request, out);
        }
        if let Some((round, colors)) = self.questions.again() {
            self.to_parent(ToParent::Tails { round, colors }, out);
        }
        for (color, wide) in self.wide.iter_mut().filter(|(color, _)| color.owner() != own) {
            wide.told = SeqNum::MIN;
            self.moved.insert(*color);
        }
    }

    // ---- children ----

    fn child_says(&mut self, child: usize, speaker: Incarnation, message: ToParent, out: &mut Vec<Output>) {
        if let ToParent::Sealed { by, nth, colors } = message {
            return self.reported(child, speaker, (by, nth), colors, out);
        }
        let neighbour = &self.children[child];
        if neighbour.incarnation != Some(speaker) || !neighbour.reported {
            self.ignored += 1;
            return;
        }
        let own = self.me.position;
        match message {
            ToParent::Here | ToParent::Sealed { .. } => self.ignored += 1,
            ToParent::Order { batch, color, count } => {
                self.follow(child, color);
                if color.owner() == own {
                    self.grant(child, batch, color, count, out);
                } else if self.parent.is_root {
                    self.ignored += 1;
                } else {
                    self.requests.push(color, Part { child: Some(child), batch, count });
                }
            }
            ToParent::Tails { round, colors } => {
                colors.iter().for_each(|color| self.follow(child, *color));
                self.questions.push(Question { child, round, colors });
                self.answer_own_questions(out);
            }
            ToParent::Settle(settled) => {
                for (color, upto) in settled {
                    if let Some(wide) = self.wide.get_mut(&color) {
                        wide.granted.settle(child, upto);
                        self.moved.insert(color);
                    }
                }
            }
        }
    }

    /// A child that cares for a wide color is told its stable from now on.
    fn follow(&mut self, child: usize, color: Color) {
        if color.is_wide() {
            let wide = self.wide.entry(color).or_default();
            if wide.followers.is_empty() && color.owner() == self.me.position && self.owner.is_some() {
                wide.granted.pass_over(SeqNum::first_of(self.me.epoch));
            }
            wide.followers.entry(child).or_insert_with(|| {
                self.moved.insert(color);
                SeqNum::MIN
            });
        }
    }

    fn grant(&mut self, child: usize, batch: u64, color: Color, count: u32, out: &mut Vec<Output>) {
        let Some(owner) = &mut self.owner else {
            self.held.push_back((child, batch, color, count));
            return;
        };
        if let Some(Numbers { first, ends }) = owner.grant(color, count) {
            self.note(child, color, first, count);
            self.to_child(child, FromParent::Grant { batch, color, first, count, ends }, out);
        }
        if self.owner.as_ref().is_some_and(Owner::is_full) && !self.told_full {
            self.told_full = true;
            out.push(Output::EpochFull);
        }
    }

    /// Remembers which child has these numbers, where that matters.
    fn note(&mut self, child: usize, color: Color, first: SeqNum, count: u32) {
        if color.is_wide() {
            self.wide.entry(color).or_default().granted.grant(Range { first, count }, child);
        }
    }

    fn answer_own_questions(&mut self, out: &mut Vec<Output>) {
        if self.owner.is_some() {
            let (own, is_root) = (self.me.position, self.parent.is_root);
            let all_own = |question: &Question| is_root || question.colors.iter().all(|color| color.owner() == own);
            for question in self.questions.take_if(all_own) {
                self.answer(&question, &FxHashMap::default(), out);
            }
        }
    }

    fn answer(&self, question: &Question, above: &FxHashMap<Color, Numbers>, out: &mut Vec<Output>) {
        let own = self.me.position;
        let tail = |color: &Color| {
            let tail = match &self.owner {
                Some(owner) if color.owner() == own => owner.tail(*color),
                // A color of an owner that is not on the way up has no numbers here, ever.
                _ if self.parent.is_root => Numbers { first: SeqNum::MIN, ends: None },
                _ => *above.get(color)?,
            };
            Some((*color, tail.first, tail.ends))
        };
        let tails: Option<Vec<_>> = question.colors.iter().map(tail).collect();
        // A parent that answers for other colors than it was asked for keeps its child waiting.
        if let Some(tails) = tails {
            self.to_child(question.child, FromParent::Tails { round: question.round, tails }, out);
        }
    }

    // ---- the parent ----

    fn parent_says(&mut self, message: FromParent, out: &mut Vec<Output>) {
        match message {
            FromParent::Seal { .. } => self.ignored += 1,
            FromParent::Grant { batch, color, first, count, ends } => {
                match self.requests.granted(color, batch, count).filter(|_| first.plus(count).is_some()) {
                    Some(parts) => self.split(color, first, ends, parts, out),
                    None => self.ignored += 1,
                }
            }
            FromParent::Tails { round, tails } => {
                let above = tails.into_iter().map(|(color, first, ends)| (color, Numbers { first, ends })).collect();
                for question in self.questions.answered(round) {
                    self.answer(&question, &above, out);
                }
            }
            FromParent::Stable(stable) => {
                for (color, upto) in stable {
                    // Whoever below it is for may not have said so here yet, and it is told once.
                    let wide = self.wide.entry(color).or_default();
                    wide.stable = wide.stable.max(upto);
                    self.moved.insert(color);
                }
            }
        }
    }

    /// Splits the numbers from `first` on among the parts of a request, in its order.
    fn split(&mut self, color: Color, first: SeqNum, ends: Option<SeqNum>, parts: Vec<Part>, out: &mut Vec<Output>) {
        let mut counter = first.counter();
        for Part { child, batch, count } in parts {
            let first = SeqNum::new(first.epoch(), counter);
            counter += count; // At most what was granted, which fits.
            if let Some(child) = child {
                self.note(child, color, first, count);
                self.to_child(child, FromParent::Grant { batch, color, first, count, ends }, out);
            } else if color.is_wide() {
                let end = SeqNum::new(first.epoch(), counter);
                self.wide.entry(color).or_default().granted.pass_over(end);
                self.moved.insert(color);
            }
        }
    }

    fn order(&self, Request { batch, color, count }: Request, out: &mut Vec<Output>) {
        self.to_parent(ToParent::Order { batch, color, count }, out);
    }

    /// Tells the parent how far wide colors are settled below, and the children how far they are everywhere.
    fn tell_moved(&mut self, out: &mut Vec<Output>) {
        if self.owner.is_none() {
            return;
        }
        let (own, ready) = (self.me.position, self.parent.ready);
        let mut settled = Vec::new();
        let mut stable: BTreeMap<usize, Vec<(Color, SeqNum)>> = BTreeMap::new();
        for color in std::mem::take(&mut self.moved) {
            let Some(wide) = self.wide.get_mut(&color) else { continue };
            let floor = wide.granted.floor();
            if color.owner() != own {
                if ready && floor > wide.told {
                    wide.told = floor;
                    settled.push((color, floor));
                }
            } else {
                wide.stable = wide.stable.max(floor);
            }
            let now = wide.stable;
            // One that has not reported yet is told when it has.
            let reported = |child: usize| self.children[child].reported;
            let behind = wide.followers.iter_mut().filter(|(child, told)| reported(**child) && **told < now);
            for (child, told) in behind {
                *told = now;
                stable.entry(*child).or_default().push((color, now));
            }
        }
        if !settled.is_empty() {
            self.to_parent(ToParent::Settle(settled), out);
        }
        for (child, colors) in stable {
            self.to_child(child, FromParent::Stable(colors), out);
        }
    }

    // ---- sending ----

    fn to_child(&self, child: usize, message: FromParent, out: &mut Vec<Output>) {
        let Neighbour { who, incarnation, .. } = &self.children[child];
        out.push(match who {
            Child::Position(to) => {
                let message = Between { from: self.me, to: *incarnation, message };
                Output::Child { to: *to, message }
            }
            Child::Shard(to) => Output::Shard { to: *to, message },
        });
    }

    fn to_parent(&self, message: ToParent, out: &mut Vec<Output>) {
        out.push(Output::Parent(Between { from: self.me, to: self.parent.incarnation, message }));
    }
}

/// Takes what another child knows of a color into what is known.
fn join(known: &mut ColorEnd, other: ColorEnd) {
    known.closed = match known.end.cmp(&other.end) {
        std::cmp::Ordering::Less => other.closed,
        std::cmp::Ordering::Equal => known.closed || other.closed,
        std::cmp::Ordering::Greater => known.closed,
    };
    known.end = known.end.max(other.end);
    known.stable = known.stable.max(other.stable);
    known.own.extend(other.own);
    known.own.sort_unstable();
}
