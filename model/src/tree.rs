//! The ordering tree over two shards: a root that owns one color, perhaps an inner position, two leaves. Any of them is
//! replaced while the old one goes on, with requests, grants, seals and tail questions on their way.
//!
//! **Relies on** shards that keep what they committed and whose old leaves commit nothing more: the shard model shows
//! that. **Promises** that every order of these steps within the bounds is looked at.
//!
//! The color is *wide* (tokens on both shards, where a number that no shard has is a hole without an entry) or *narrow*
//! (on the first shard only, where lost numbers become `Hole` entries). A shard is its log: what is committed, and behind
//! that what its leaf has written; a new leaf finds the committed part and any piece of what follows. Messages between two
//! processes are numbered streams: delivered in order, or never. A process that is dead is one that takes no step any
//! more.

mod properties;
mod state;
mod steps;

use stateright::{Model, Property};

use crate::explore::Explorable;
use crate::fault::Fault;
pub use state::State;
use state::{INNER, LEAF, Leaf, Link, Node, Position, Question, ROOT, SHARDS, Up, number_of};

/// How far the model goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Whether there is a position between the root and the leaves.
    pub inner: bool,
    /// Whether the color is on both shards.
    pub wide: bool,
    /// Tokens of each shard, at most 3 together.
    pub tokens: [u8; 2],
    /// Processes at the root (at most 3), the inner position, the first and the second leaf (at most 2 each), the first
    /// included.
    pub tenures: [u8; 4],
    /// Tail questions.
    pub asks: u8,
}

/// The model of the tree.
#[derive(Clone, Debug)]
pub struct Tree {
    /// How far it goes.
    pub bounds: Bounds,
    /// The rule that is broken on purpose.
    pub fault: Option<Fault>,
}

/// A step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A token is complete: all members of its shard have it.
    Arrive {
        /// The token.
        token: u8,
    },
    /// A leaf asks for numbers for all complete tokens that no request counts.
    Request {
        /// The leaf.
        leaf: Name,
    },
    /// An inner position makes one request of all that wait.
    Merge {
        /// The position.
        inner: Name,
    },
    /// A position's seal reaches a child, which from then on takes nothing from older ones, and answers.
    Seal {
        /// The position.
        parent: Name,
        /// The child.
        child: Name,
    },
    /// The next message that a child has sent reaches its parent.
    Up {
        /// The child.
        child: Name,
        /// The parent.
        parent: Name,
    },
    /// The next message that a parent has sent reaches its child.
    Down {
        /// The parent.
        parent: Name,
        /// The child.
        child: Name,
    },
    /// A shard commits all that its leaf has written.
    Commit {
        /// The leaf.
        leaf: Name,
    },
    /// A new process claims the root or the inner position.
    Claim {
        /// The new process.
        node: Name,
    },
    /// A new process claims a leaf, and recovers so many entries of its shard's log.
    Recover {
        /// The new leaf.
        leaf: Name,
        /// How many entries were found.
        entries: u8,
    },
    /// Somebody asks at a leaf for the tail.
    Ask {
        /// The leaf.
        leaf: Name,
    },
    /// All members of a shard confirm that they follow this leaf.
    Confirm {
        /// The leaf.
        leaf: Name,
    },
}

/// A process in an action, printed as its position and its place among those that held it: R1, P1, X2.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name(Node);

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Tree {
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Who is above a place.
    fn above(&self, place: u8) -> u8 {
        if place == INNER || !self.bounds.inner { ROOT } else { INNER }
    }

    /// The children of a place.
    fn below(&self, place: u8) -> &'static [u8] {
        if place == ROOT && self.bounds.inner { &[INNER] } else { &[LEAF, LEAF + 1] }
    }

    /// The shard that a token is for.
    fn shard_of(&self, token: usize) -> usize {
        usize::from(token >= usize::from(self.bounds.tokens[0]))
    }

    fn tokens(&self) -> usize {
        self.bounds.tokens.iter().map(|tokens| usize::from(*tokens)).sum()
    }
}

impl Model for Tree {
    type State = State;
    type Action = Action;

    /// The first processes hold their positions, and everybody has sealed to the one above.
    fn init_states(&self) -> Vec<State> {
        let mut state = State::default();
        let mut position = Position { serves: true, ..Position::default() };
        position.children[..self.below(ROOT).len()].iter_mut().for_each(|child| child.reported = Some(0));
        state.roots.push(position);
        let first = |place| Node { place, tenure: 0 };
        let link = |place| Link { parent: first(self.above(place)), child: first(place), ..Link::default() };
        if self.bounds.inner {
            position.children.iter_mut().for_each(|child| child.reported = Some(0));
            state.inners.push(Position { parent: Some(0), ready: true, ..position });
            state.links.push(link(INNER));
        }
        for shard in 0..SHARDS {
            state.leaves[shard].push(Leaf { parent: Some(0), ..Leaf::default() });
            state.links.push(link(LEAF + shard as u8));
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for token in 0..self.tokens() {
            // Tokens of a shard are alike: they come in order.
            let before = token == 0 || self.shard_of(token) != self.shard_of(token - 1) || state.arrived.has(token - 1);
            if !state.arrived.has(token) && before {
                actions.push(Action::Arrive { token: token as u8 });
            }
        }
        self.leaf_steps(state, actions);
        for (tenure, inner) in state.inners.iter().enumerate() {
            let waits = inner.parts.iter().any(|part| part.asked == 0);
            if inner.ready && waits {
                actions.push(Action::Merge { inner: Name(Node { place: INNER, tenure: tenure as u8 }) });
            }
        }
        self.seals(state, actions);
        for link in state.links.iter() {
            let (parent, child) = (Name(link.parent), Name(link.child));
            if let Some(message) = link.up.first() {
                // What needs numbers waits until the position serves.
                let above = if link.parent.place == ROOT { &*state.roots } else { &*state.inners };
                if above[link.parent.at()].serves || matches!(message, Up::Sealed { .. }) {
                    actions.push(Action::Up { child, parent });
                }
            }
            if !link.down.is_empty() {
                actions.push(Action::Down { parent, child });
            }
        }
        for place in [ROOT, INNER] {
            let tenure = state.tenures(place);
            if tenure > 0 && tenure < self.bounds.tenures[usize::from(place)] {
                actions.push(Action::Claim { node: Name(Node { place, tenure }) });
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        self.step(&mut next, action);
        self.retire(&mut next);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

impl Tree {
    fn leaf_steps(&self, state: &State, actions: &mut Vec<Action>) {
        for shard in 0..SHARDS {
            let place = LEAF + shard as u8;
            for (tenure, leaf) in state.leaves[shard].iter().enumerate() {
                let node = Node { place, tenure: tenure as u8 };
                if leaf.parent.is_some() && !self.uncounted(state, node).is_empty() {
                    actions.push(Action::Request { leaf: Name(node) });
                }
                if state.is_holder(node) && leaf.log.len() > state.settled[shard].len() {
                    actions.push(Action::Commit { leaf: Name(node) });
                }
                // A color's tail is asked for where the color is.
                let has_color = self.bounds.wide || shard == 0;
                if has_color
                    && state.asks < self.bounds.asks
                    && leaf.parent.is_some()
                    && leaf.question == Question::None
                {
                    actions.push(Action::Ask { leaf: Name(node) });
                }
                if leaf.question == Question::Low && state.is_holder(node) {
                    actions.push(Action::Confirm { leaf: Name(node) });
                }
            }
            let tenure = state.tenures(place);
            if tenure < self.bounds.tenures[usize::from(place)] {
                let leaf = Name(Node { place, tenure });
                let written = state.leaves[shard].last().map_or(0, |leaf| leaf.log.len());
                for entries in state.settled[shard].len()..=written {
                    actions.push(Action::Recover { leaf, entries: entries as u8 });
                }
            }
        }
    }

    /// The complete tokens of a leaf that have no number and no request.
    fn uncounted(&self, state: &State, node: Node) -> crate::words::Set {
        let leaf = &state.leaves[node.shard()][node.at()];
        let mine = state.arrived.iter().filter(|token| self.shard_of(*token) == node.shard());
        let counted = |token: &usize| {
            number_of(&leaf.log, *token).is_some() || leaf.requests.iter().any(|request| request.tokens.has(*token))
        };
        mine.filter(|token| !counted(token)).fold(crate::words::Set::default(), crate::words::Set::with)
    }

    /// A position seals a child that it does not know yet; a child takes the seal of a newer parent than its own. Neither
    /// takes a neighbour that is older than the one that the metadata named when it claimed its own place.
    fn seals(&self, state: &State, actions: &mut Vec<Action>) {
        for place in [ROOT, INNER] {
            for tenure in 0..state.tenures(place) {
                let parent = Node { place, tenure };
                let of = if place == ROOT { &state.roots[parent.at()] } else { &state.inners[parent.at()] };
                if of.gone {
                    continue;
                }
                for (index, below) in self.below(place).iter().enumerate() {
                    for child in (0..state.tenures(*below)).map(|tenure| Node { place: *below, tenure }) {
                        let (sealed, known, gone) = match child.place {
                            INNER => {
                                let inner = &state.inners[child.at()];
                                (inner.parent, inner.known, inner.gone)
                            }
                            _ => {
                                let leaf = &state.leaves[child.shard()][child.at()];
                                (leaf.parent, leaf.known, leaf.gone)
                            }
                        };
                        let new_to_child = sealed.is_none_or(|sealed| sealed < tenure);
                        let new_to_parent = of.children[index].reported.is_none_or(|known| known < child.tenure);
                        let may = (self.has(Fault::OldParentTaken) || tenure >= known[usize::from(place)])
                            && (self.has(Fault::OldChildTaken) || child.tenure >= of.known[usize::from(child.place)]);
                        if new_to_child && new_to_parent && may && !gone {
                            actions.push(Action::Seal { parent: Name(parent), child: Name(child) });
                        }
                    }
                }
            }
        }
    }
}

impl Explorable for Tree {
    fn name(&self) -> &'static str {
        match (self.bounds.inner, self.bounds.wide) {
            (false, false) => "root and two leaves, a color on one shard",
            (false, true) => "root and two leaves, a color on both shards",
            (true, false) => "root, inner position and two leaves, a color on one shard",
            (true, true) => "root, inner position and two leaves, a color on both shards",
        }
    }

    fn bounds(&self) -> String {
        let Bounds { inner, tokens, tenures, asks, .. } = self.bounds;
        let [root, position, x, y] = tenures;
        let inner = if inner { format!("{position} inner positions, ") } else { String::new() };
        format!(
            "{root} roots, {inner}{x} and {y} leaves, {} and {} tokens, {asks} tail questions",
            tokens[0], tokens[1]
        )
    }
}
