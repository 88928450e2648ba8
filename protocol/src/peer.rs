//! What the servers say to each other: members and their leaf, a leaf and the owner of a color, members among
//! themselves.
//!
//! Every message between a member and a leaf names the leaf's incarnation; one that names an older one than the
//! receiver has sealed to changes nothing (I9).

use std::sync::Arc;

use uuid::Uuid;

use crate::entry::Entry;
use crate::ids::{Color, Epoch, Incarnation, Lsn, ReplicaId, SeqNum, SessionId, Token, View};
use crate::record::Append;

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

/// How far a color's numbers went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColorEnd {
    /// The log.
    pub color: Color,
    /// The exclusive end of its last epoch with a number or an end.
    pub end: SeqNum,
    /// Whether an `EpochEnd` closed that epoch.
    pub closed: bool,
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
    /// No session now: the shard has as many as it can.
    SessionRefused {
        /// As asked.
        nonce: Uuid,
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
}

/// From a child position to its parent, on the way to a color's owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToParent {
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
    /// Every number of these colors below the one given is settled. Cumulative.
    Settle(Vec<(Color, SeqNum)>),
}

/// From a parent position to its child.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromParent {
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
        /// The end of the color's earlier epoch, where this grant is the first since it: exclusive.
        ends: Option<SeqNum>,
    },
    /// The tails of the colors asked about, in that order: next number, and the end of an earlier epoch not yet told.
    Tails {
        /// As asked.
        round: u64,
        /// Color, next number, exclusive end of the earlier epoch.
        tails: Vec<(Color, SeqNum, Option<SeqNum>)>,
    },
    /// The epoch has not as many numbers left: the owner will claim its position again, in a fresh epoch.
    EpochFull {
        /// As asked.
        batch: u64,
    },
}
