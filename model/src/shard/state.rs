//! What a state of the shard model holds.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::list::{List, common_prefix};
pub(crate) use crate::words::{Number, Set};

/// Replicas A, B and C.
pub(crate) const REPLICAS: usize = 3;
/// The most leaf incarnations and tokens that a state has room for.
pub(crate) const MAX_LEAVES: usize = 3;
pub(crate) const MAX_TOKENS: usize = 3;

/// A view: its number in the metadata, and who is in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct View {
    pub(crate) number: u8,
    pub(crate) members: Set,
}

/// What an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Body {
    NewView(View),
    Assign {
        token: u8,
        number: Number,
    },
    /// The epoch of `end` has no number from `end` on; the color goes on in epoch `next`.
    EpochEnd {
        end: Number,
        next: u8,
    },
}

/// An entry of the shard log; its lsn is its place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) leaf: u8,
    pub(crate) body: Body,
}

/// In one piece: most of a state is entries, and most of the time goes into hashing states.
impl Hash for Entry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let body = match self.body {
            Body::NewView(view) => [0, view.number, view.members.0],
            Body::Assign { token, number } => [1 + token, number.epoch, number.counter],
            Body::EpochEnd { end, next } => [128 + next, end.epoch, end.counter],
        };
        state.write_u32(u32::from_le_bytes([self.leaf, body[0], body[1], body[2]]));
    }
}

impl Default for Entry {
    fn default() -> Self {
        Self { leaf: 0, body: Body::NewView(View::default()) }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.body {
            Body::NewView(view) => write!(f, "L{}:view{}{:?}", self.leaf, view.number, view.members),
            Body::Assign { token, number } => write!(f, "L{}:t{token}={number:?}", self.leaf),
            Body::EpochEnd { end, next } => write!(f, "L{}:end{end:?}->{next}", self.leaf),
        }
    }
}

pub(crate) type Log = List<Entry, 12>;

/// The view in force at the entry at `place` of a log.
pub(crate) fn view_at(log: &[Entry], place: usize) -> Option<View> {
    log[..=place].iter().rev().find_map(|entry| if let Body::NewView(view) = entry.body { Some(view) } else { None })
}

/// The number that a log gives to a token.
pub(crate) fn number_of(log: &[Entry], token: usize) -> Option<Number> {
    log.iter().find_map(|entry| match entry.body {
        Body::Assign { token: other, number } if usize::from(other) == token => Some(number),
        _ => None,
    })
}

/// A replica. What it has accepted and not persisted is lost when it restarts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Member {
    /// The shard log as accepted, and how much of it is durable.
    pub(crate) log: Log,
    pub(crate) durable: u8,
    /// Tokens whose record is durable here.
    pub(crate) records: Set,
    /// The durable fence, and the newest leaf whose seal was accepted: between the two the fence waits in the queue.
    pub(crate) fence: u8,
    pub(crate) sealing: u8,
    /// The leaf that it takes entries from; 0: nobody.
    pub(crate) follows: u8,
}

impl Member {
    pub(crate) fn durable_log(&self) -> &[Entry] {
        &self.log[..usize::from(self.durable)]
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) enum Phase {
    #[default]
    Sealing,
    /// Over when the entry at this place is committed.
    Recovering(u8),
    Serving,
    Stopped,
}

/// What became of a compare-and-set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) enum Cas {
    #[default]
    None,
    /// On its way to the metadata.
    Sent,
    /// Applied or refused, and the answer is not known to the leaf.
    Applied,
    Refused,
}

/// A leaf incarnation; its epoch is its place in the list of them, from 1 on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Leaf {
    pub(crate) phase: Phase,
    pub(crate) view: View,
    pub(crate) log: Log,
    /// How much of the log each member has acknowledged; who has reported.
    pub(crate) acked: [u8; REPLICAS],
    pub(crate) reported: Set,
    pub(crate) commit: u8,
    /// The next counter of its epoch.
    pub(crate) counter: u8,
    /// The members of the view that a compare-and-set asks for, and what became of that. Empty: none is in doubt.
    pub(crate) wanted: Set,
    pub(crate) cas: Cas,
    /// Members of a view that was asked for and is not waited for any more: only a planted fault does that.
    pub(crate) forgotten: u8,
    /// The learner that everything waits for.
    pub(crate) adding: Option<u8>,
    /// A tail question whose answer would be too low, and who has confirmed it.
    pub(crate) round: Option<Set>,
}

impl Leaf {
    /// Who must have something before it counts: the members of every view that may be in force.
    pub(crate) fn in_force(&self) -> Set {
        self.view.members.or(self.wanted)
    }
}

/// The metadata: who leads the shard, and its view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Meta {
    pub(crate) epoch: u8,
    pub(crate) view: View,
}

/// What happened so far, for the properties alone: nobody in the model acts on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct History {
    /// The longest log that any leaf has committed.
    pub(crate) settled: Log,
    /// The number that each token's client was told.
    pub(crate) acked: [Number; MAX_TOKENS],
    /// What had been acknowledged when the token was first sent.
    pub(crate) floors: [Number; MAX_TOKENS],
    pub(crate) sent: Set,
    pub(crate) broken: Broken,
}

/// What a step, and not a state, shows to be broken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Broken {
    /// A leaf committed another log than one before it.
    pub(crate) forked: bool,
    /// Logs that sealed to one leaf went apart.
    pub(crate) diverged: bool,
    /// A client was told two numbers for one token.
    pub(crate) told_twice: bool,
    /// A number was given to a token that some member of the view lacked.
    pub(crate) asked_early: bool,
    /// What an old incarnation said changed something.
    pub(crate) old_counted: bool,
    /// A tail question was answered with less than was acknowledged before it.
    pub(crate) tail_low: bool,
}

/// A state of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub(crate) meta: Meta,
    pub(crate) leaves: List<Leaf, MAX_LEAVES>,
    pub(crate) members: [Member; REPLICAS],
    pub(crate) history: History,
    /// What of the bounds is used up.
    pub(crate) changes: u8,
    pub(crate) restarts: u8,
    pub(crate) asks: u8,
}

impl State {
    /// The last leaf incarnation.
    pub(crate) fn last_leaf(&self) -> &Leaf {
        &self.leaves[self.leaves.len() - 1]
    }

    /// The highest number that anybody was told.
    pub(crate) fn highest_acked(&self) -> Number {
        self.history.acked.iter().copied().max().unwrap_or_default()
    }

    /// How much of a leaf's log a member has, and how much of that is durable.
    pub(crate) fn place(&self, leaf: usize, member: usize) -> (usize, usize) {
        let (leaf, member) = (&self.leaves[leaf], &self.members[member]);
        let has = common_prefix(&member.log, &leaf.log);
        (has, has.min(usize::from(member.durable)))
    }
}
