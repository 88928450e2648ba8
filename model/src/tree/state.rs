//! What a state of the tree model holds.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::list::List;
use crate::words::{Number, Set};

pub(crate) const SHARDS: usize = 2;
pub(crate) const MAX_TOKENS: usize = 3;

/// A process: its position, and its place among the processes that have held that, from 0 on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Node {
    pub(crate) place: u8,
    pub(crate) tenure: u8,
}

pub(crate) const ROOT: u8 = 0;
pub(crate) const INNER: u8 = 1;
/// The leaf of the first shard; that of the second comes behind it.
pub(crate) const LEAF: u8 = 2;

impl Node {
    /// The shard of a leaf.
    pub(crate) fn shard(self) -> usize {
        usize::from(self.place - LEAF)
    }

    pub(crate) fn at(self) -> usize {
        usize::from(self.tenure)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ["R", "P", "X", "Y"].get(usize::from(self.place)).copied().unwrap_or("?");
        write!(f, "{name}{}", self.tenure + 1)
    }
}

/// An entry of a shard's log. All that concerns members is the other model's matter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    Assign {
        token: u8,
        number: Number,
    },
    /// One number that names no record.
    Hole(Number),
    /// The epoch of `end` has no number from `end` on; the color goes on in epoch `next`.
    EpochEnd {
        end: Number,
        next: u8,
    },
}

impl Default for Entry {
    fn default() -> Self {
        Self::Hole(Number::NONE)
    }
}

impl Hash for Entry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (kind, number) = match *self {
            Self::Assign { token, number } => (token, number),
            Self::Hole(number) => (64, number),
            Self::EpochEnd { end, next } => (128 + next, end),
        };
        state.write_u32(u32::from_le_bytes([kind, number.epoch, number.counter, 0]));
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Assign { token, number } => write!(f, "t{token}={number:?}"),
            Self::Hole(number) => write!(f, "hole{number:?}"),
            Self::EpochEnd { end, next } => write!(f, "end{end:?}->{next}"),
        }
    }
}

pub(crate) type Log = List<Entry, 10>;

/// The number behind the last one that a log speaks of, and the epoch in which the color goes on after it.
pub(crate) fn end_of(log: &[Entry]) -> (Number, u8) {
    log.last().map_or((Number::NONE, 0), |entry| match *entry {
        Entry::Assign { number, .. } | Entry::Hole(number) => (number.next(), number.epoch),
        Entry::EpochEnd { end, next } => (end, next),
    })
}

/// The number that a log gives to a token.
pub(crate) fn number_of(log: &[Entry], token: usize) -> Option<Number> {
    log.iter().find_map(|entry| match entry {
        Entry::Assign { token: other, number } if usize::from(*other) == token => Some(*number),
        _ => None,
    })
}

/// What a child says.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Up {
    /// How far the color's numbers went, to whoever it is sealed to, or to the root whose seal came down.
    Sealed {
        by: Node,
        end: Number,
    },
    Order {
        batch: u8,
        count: u8,
    },
    #[default]
    Ask,
}

/// In one piece, as all that states have many of: most of the time goes into hashing them.
impl Hash for Up {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(u32::from_le_bytes(match *self {
            Self::Sealed { by, end } => [by.place, by.tenure, end.epoch, end.counter],
            Self::Order { batch, count } => [8, batch, count, 0],
            Self::Ask => [9, 0, 0, 0],
        }));
    }
}

/// What a parent says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Down {
    /// A root's seal, on its way down.
    Seal(Node),
    /// Numbers for a request, and where the epoch before ended.
    Grant {
        batch: u8,
        first: Number,
        end: Number,
    },
    Tail {
        number: Number,
        end: Number,
    },
}

impl Hash for Down {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let pair = |[a, b]: [Number; 2]| [a.epoch, a.counter, b.epoch, b.counter];
        let (kind, [a, b, c, d]) = match *self {
            Self::Seal(by) => (0, [by.place, by.tenure, 0, 0]),
            Self::Grant { batch, first, end } => (1 + batch, pair([first, end])),
            Self::Tail { number, end } => (255, pair([number, end])),
        };
        state.write_u64(u64::from_le_bytes([kind, a, b, c, d, 0, 0, 0]));
    }
}

impl Default for Down {
    fn default() -> Self {
        Self::Seal(Node::default())
    }
}

/// The streams between two processes. What is on them is delivered in order, or never.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Link {
    pub(crate) parent: Node,
    pub(crate) child: Node,
    pub(crate) up: List<Up, 5>,
    pub(crate) down: List<Down, 5>,
}

/// What a position knows of one child.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Child {
    /// Whose report counts.
    pub(crate) reported: Option<u8>,
    /// What it said.
    pub(crate) end: Number,
    /// What it answered to the root's seal that is on its way.
    pub(crate) answered: Option<Number>,
}

/// A request of a child, at a position that hands it on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Part {
    /// Which child; none if it was replaced.
    pub(crate) child: Option<u8>,
    pub(crate) batch: u8,
    pub(crate) count: u8,
    /// The request it became part of; 0: it waits.
    pub(crate) asked: u8,
}

impl Hash for Part {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let child = self.child.map_or(0, |child| child + 1);
        state.write_u32(u32::from_le_bytes([child, self.batch, self.count, self.asked]));
    }
}

/// The root or an inner position.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Position {
    pub(crate) children: [Child; SHARDS],
    /// The holders of the neighbouring places when this one was claimed: what is older does not count.
    pub(crate) known: [u8; 4],
    /// It was replaced, and nobody will hear of it again.
    pub(crate) gone: bool,
    pub(crate) serves: bool,
    /// The root's: the next counter of its epoch, and where the epoch before ended.
    pub(crate) counter: u8,
    pub(crate) end: Number,
    /// An inner position's: whom it has sealed to, whether that was answered, its requests, the child that asks for the
    /// tail.
    pub(crate) parent: Option<u8>,
    pub(crate) ready: bool,
    pub(crate) parts: List<Part, 5>,
    pub(crate) batches: u8,
    pub(crate) asks: Option<u8>,
}

/// A tail question.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) enum Question {
    #[default]
    None,
    /// On its way to the owner.
    Asked,
    /// The answer is at or below what was acknowledged before the question, and waits for the members.
    Low,
}

/// A request of a leaf: its tokens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Request {
    pub(crate) batch: u8,
    pub(crate) tokens: Set,
}

/// A leaf.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Leaf {
    pub(crate) gone: bool,
    pub(crate) known: [u8; 4],
    pub(crate) parent: Option<u8>,
    pub(crate) log: Log,
    /// Not answered, in order.
    pub(crate) requests: List<Request, 3>,
    pub(crate) batches: u8,
    pub(crate) question: Question,
}

/// What happened so far, for the properties alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct History {
    /// The number that each token's client was told, and what had been acknowledged when it was sent.
    pub(crate) acked: [Number; MAX_TOKENS],
    pub(crate) floors: [Number; MAX_TOKENS],
    /// What had been acknowledged when the tail was asked for.
    pub(crate) asked_at: Number,
    pub(crate) tail_low: bool,
    pub(crate) old_counted: bool,
}

/// A state of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct State {
    pub(crate) roots: List<Position, 3>,
    pub(crate) inners: List<Position, 2>,
    pub(crate) leaves: [List<Leaf, 2>; SHARDS],
    pub(crate) links: List<Link, 9>,
    /// What each shard has committed; only its last leaf can add to that.
    pub(crate) settled: [Log; SHARDS],
    /// Tokens that all members of their shard have.
    pub(crate) arrived: Set,
    pub(crate) asks: u8,
    pub(crate) history: History,
}

impl State {
    /// How many processes have held a position.
    pub(crate) fn tenures(&self, place: u8) -> u8 {
        (match place {
            ROOT => self.roots.len(),
            INNER => self.inners.len(),
            _ => self.leaves[usize::from(place - LEAF)].len(),
        }) as u8
    }

    /// The last process at a position.
    pub(crate) fn holder(&self, place: u8) -> Node {
        Node { place, tenure: self.tenures(place).saturating_sub(1) }
    }

    pub(crate) fn position(&mut self, node: Node) -> &mut Position {
        let of = if node.place == ROOT { &mut *self.roots } else { &mut *self.inners };
        &mut of[node.at()]
    }

    pub(crate) fn leaf(&mut self, node: Node) -> &mut Leaf {
        &mut self.leaves[node.shard()][node.at()]
    }

    pub(crate) fn is_holder(&self, node: Node) -> bool {
        self.holder(node.place) == node
    }

    pub(crate) fn highest_acked(&self) -> Number {
        self.history.acked.iter().copied().max().unwrap_or_default()
    }

    pub(crate) fn link(&self, parent: Node, child: Node) -> Option<usize> {
        self.links.iter().position(|link| link.parent == parent && link.child == child)
    }
}
