//! What the servers say to each other: members and their leaf, a leaf and the owner of a color, members among
//! themselves.
//!
//! Every message between a member and a leaf names the leaf's incarnation; one that names an older one than the
//! receiver has sealed to changes nothing (I9).

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

use crate::entry::Entry;
use crate::ids::{Color, Epoch, Incarnation, Lsn, Position, ReplicaId, SeqNum, SessionId, ShardId, Token, View};
use crate::media::LogEnd;
use crate::record::{Append, Record};

/// A token that a member has staged: its records are persisted there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Staged {
    /// The append.
    pub token: Token,
    /// The log that it goes to.
    pub color: Color,
    /// How many numbers it needs.
    pub records: u32,
    /// [`Append::digest`].
    pub digest: u64,
}

/// From a member to its leaf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToLeaf {
    /// The `Fence` for this incarnation is durable here; older ones are refused from now on.
    Sealed(Box<SealReport>),
    /// These records are persisted here.
    Persisted(Vec<Staged>),
    /// Everything up to this place of the shard log is persisted here, records included.
    Acked(Lsn),
    /// A client wants a session.
    OpenSession {
        /// Drawn by the client.
        nonce: Uuid,
    },
    /// A client is done with its session.
    CloseSession {
        /// The session.
        session: SessionId,
    },
    /// A client wants `color` trimmed up to and including `upto`, which is below stable.
    Trim {
        /// The log to trim.
        color: Color,
        /// Inclusive.
        upto: SeqNum,
    },
    /// What is the tail of `color`?
    TailAsk {
        /// The member's name for the question.
        ask: u64,
        /// The log that is asked about.
        color: Color,
    },
    /// The member still follows the leaf that sent this round.
    Confirmed {
        /// As in [`ToMember::Confirm`].
        round: u64,
    },
    /// The learner goes on copying.
    Learning,
    /// The learner has everything up to this place of the shard log, durable: it can follow from there.
    Learned {
        /// The place.
        upto: Lsn,
    },
}

/// What a sealed member knows. Commit is as the member learned it, so a log above it may be settled already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SealReport {
    /// The leaf epoch and place of its last entry.
    pub last: (Epoch, Lsn),
    /// The highest place that it knows to be committed.
    pub commit: Lsn,
    /// The view in force at commit; `None` before the first.
    pub view: Option<View>,
    /// Its entries above commit, in order.
    pub entries: Vec<Arc<Entry>>,
    /// What is persisted here and not assigned by any entry it has.
    pub staged: Vec<Staged>,
    /// The colors that have numbers, as of commit.
    pub colors: Vec<ColorEnd>,
    /// The sessions open at commit.
    pub sessions: Vec<SessionId>,
}

/// Numbers of one epoch, from `first` on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Range {
    /// The first of them.
    pub first: SeqNum,
    /// How many; `first` and they fit into the epoch.
    pub count: u32,
}

impl Range {
    /// Its exclusive end. Saturates where the epoch has no such number; whoever decodes a range refuses that.
    #[must_use]
    pub fn end(&self) -> SeqNum {
        self.first.plus(self.count).unwrap_or(SeqNum::new(self.first.epoch(), u32::MAX))
    }
}

/// How far a color's numbers went, as a shard knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColorEnd {
    /// The log.
    pub color: Color,
    /// The exclusive end of its last epoch with a number or an end.
    pub end: SeqNum,
    /// Whether an `EpochEnd` closed that epoch.
    pub closed: bool,
    /// Of a wide color: everything below is settled, on whichever shard. Else the least number.
    pub stable: SeqNum,
    /// Of a wide color: the numbers at or above `stable` that this shard's log gives to records or holes, ascending and
    /// apart. Else empty: there is one range, up to `end`.
    pub own: Vec<Range>,
}

impl ColorEnd {
    /// That of a color on one shard.
    #[must_use]
    pub fn narrow(color: Color, end: SeqNum, closed: bool) -> Self {
        Self { color, end, closed, stable: SeqNum::MIN, own: Vec::new() }
    }
}

/// From a leaf to a member of its view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToMember {
    /// Write a `Fence` for this incarnation behind everything accepted so far, then report.
    Seal,
    /// The next entries of the shard log, and how far it is committed.
    Entries {
        /// In order, without gaps; ones that the member has are passed over.
        entries: Vec<Arc<Entry>>,
        /// The committed prefix. Below the first of `entries`, or among those before it.
        commit: Lsn,
    },
    /// Get this append's records from that member and stage them.
    Complete {
        /// The append.
        token: Token,
        /// A member that has it.
        from: ReplicaId,
    },
    /// Do you still follow me?
    Confirm {
        /// Counts up.
        round: u64,
    },
    /// The answer to [`ToLeaf::TailAsk`].
    Tail {
        /// As asked.
        ask: u64,
        /// The next number of the color, exclusive.
        tail: SeqNum,
        /// The answer holds for one who has seen the log committed up to here: what ends the color's earlier epochs.
        after: Lsn,
    },
    /// The member's records under this token differ from another member's: the client reused a token.
    Conflict {
        /// The append.
        token: Token,
    },
    /// To a replica that is no member: copy what you lack from that member, up to `behind` at least, and say
    /// [`ToLeaf::Learned`].
    Learn {
        /// A member.
        from: ReplicaId,
        /// Everything up to here is committed.
        behind: Lsn,
    },
    /// No session now: the shard has as many as it can.
    SessionRefused {
        /// As asked.
        nonce: Uuid,
    },
    /// Everything of these wide colors below the numbers given is settled on all shards.
    Stable {
        /// Colors, and where what is not settled begins.
        upto: Vec<(Color, SeqNum)>,
        /// What of it is this shard's is in the log up to here. A learner may have missed what was said before this.
        commit: Lsn,
    },
}

/// A message of one leaf incarnation, to or from a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Of<M> {
    /// The leaf incarnation that sends, or that is meant.
    pub leaf: Incarnation,
    /// What is said.
    pub message: M,
}

/// Between members of one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerMessage {
    /// Send me this append.
    Pull {
        /// The append.
        token: Token,
    },
    /// The records asked for.
    Pulled(Arc<Append>),
    /// Not here: staged nowhere on this member, or gone.
    NotHere {
        /// The append.
        token: Token,
    },
    /// A learner asks where its log is the same as the member's, and for the member's state.
    CopyFrom {
        /// Names the copy; the learner's own.
        copy: u64,
        /// The state must cover this place.
        behind: Lsn,
        /// The last place of each leaf epoch in the learner's log, ascending.
        runs: Vec<LogEnd>,
    },
    /// The answer: the learner's log is the member's up to `same`.
    CopyState {
        /// As asked.
        copy: u64,
        /// The last place that both logs have, with the same epoch; 0 if there is none.
        same: Lsn,
        /// The place that the state covers.
        upto: Lsn,
        /// The next piece of the member's state there, as in its checkpoints.
        piece: Bytes,
        /// Whether no piece follows.
        whole: bool,
    },
    /// Send me the records of `color` from `from` up to, and without, `upto`.
    CopyRead {
        /// As in [`PeerMessage::CopyFrom`].
        copy: u64,
        /// The log.
        color: Color,
        /// Inclusive.
        from: SeqNum,
        /// Exclusive.
        upto: SeqNum,
    },
    /// Records: all that there are of `color` from where was asked up to, and without, `covered`.
    Copied {
        /// As asked.
        copy: u64,
        /// The log.
        color: Color,
        /// In order.
        records: Vec<(SeqNum, Record)>,
        /// Exclusive.
        covered: SeqNum,
    },
    /// The member cannot send what was asked for.
    CannotCopy {
        /// As asked.
        copy: u64,
        /// Why.
        why: String,
        /// What was asked for is damaged there.
        damaged: bool,
    },
}

/// One that messages are sent to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Peer {
    /// A replica.
    Replica(ReplicaId),
    /// A position of the tree.
    Position(Position),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica(replica) => write!(f, "replica {replica}"),
            Self::Position(position) => write!(f, "position {position}"),
        }
    }
}

/// A child of a position: another position, or the leaf of a shard, which is in the position's own process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Child {
    /// The position below.
    Position(Position),
    /// The shard that the position leads.
    Shard(ShardId),
}

/// From a child to its parent, on the way to a color's owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToParent {
    /// This incarnation of the child is new, or what it has said may be lost: seal it.
    Here,
    /// The answer to [`FromParent::Seal`]: what the child and all below it know, grants included that arrived before.
    /// After this only the sealing parent's grants, tails and stables count.
    Sealed {
        /// As asked.
        by: Incarnation,
        /// As asked.
        nth: u32,
        /// The colors with numbers, or followed, that the child does not own itself.
        colors: Vec<ColorEnd>,
    },
    /// `count` numbers for `color`, please. Requests of one color are answered in order.
    Order {
        /// The child's name for the request.
        batch: u64,
        /// The log.
        color: Color,
        /// How many numbers.
        count: u32,
    },
    /// What is the tail of these colors?
    Tails {
        /// The child's name for the question.
        round: u64,
        /// The logs asked about.
        colors: Vec<Color>,
    },
    /// Every number of these wide colors that the child was granted below the one given is settled, or lost for good.
    /// Cumulative.
    Settle(Vec<(Color, SeqNum)>),
}

/// From a parent to its child.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromParent {
    /// Report, behind everything that you have handed on so far.
    Seal {
        /// Who asks: the parent itself, or one above it whose question it hands on.
        by: Incarnation,
        /// How often this parent has asked this child for itself before: the answer to an earlier time is none, and what
        /// was said between the two counts no more. 0 where it hands on, and for a shard.
        nth: u32,
    },
    /// Numbers for a request, all of one epoch.
    Grant {
        /// As asked.
        batch: u64,
        /// The log.
        color: Color,
        /// The first of the numbers.
        first: SeqNum,
        /// How many.
        count: u32,
        /// The exclusive end of the color's earlier epoch, if it had one.
        ends: Option<SeqNum>,
    },
    /// The tails of the colors asked about, in that order: next number, and the end of the earlier epoch as in a grant.
    Tails {
        /// As asked.
        round: u64,
        /// Color, next number, exclusive end of the earlier epoch.
        tails: Vec<(Color, SeqNum, Option<SeqNum>)>,
    },
    /// Everything of these wide colors below the number given is settled on all their shards, or was lost on the way and
    /// is nobody's. Cumulative.
    Stable(Vec<(Color, SeqNum)>),
}

/// A message of one incarnation of a position to one of its neighbour's: what either says to another than is there
/// changes nothing (I9).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Between<M> {
    /// Who speaks.
    pub from: Incarnation,
    /// Who is meant. `None`: whoever holds the position; only for [`ToParent::Here`] and [`FromParent::Seal`].
    pub to: Option<Incarnation>,
    /// What is said.
    pub message: M,
}

/// From one process of a cluster to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeMessage {
    /// From the leaf of a shard to a member.
    ToMember {
        /// The shard.
        shard: ShardId,
        /// The member.
        to: ReplicaId,
        /// What is said.
        message: Of<ToMember>,
    },
    /// From a member to the leaf of its shard.
    ToLeaf {
        /// The shard.
        shard: ShardId,
        /// The member.
        from: ReplicaId,
        /// What is said.
        message: Of<ToLeaf>,
    },
    /// From a member to another of its shard.
    Peer {
        /// The shard.
        shard: ShardId,
        /// Who speaks.
        from: ReplicaId,
        /// Who is meant.
        to: ReplicaId,
        /// What is said.
        message: PeerMessage,
    },
    /// From a position to the one above it.
    Up {
        /// The position above.
        to: Position,
        /// What is said.
        message: Between<ToParent>,
    },
    /// From a position to one below it.
    Down {
        /// The position below.
        to: Position,
        /// What is said.
        message: Between<FromParent>,
    },
}
