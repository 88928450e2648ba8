//! What a member is told, and what it wants done.

use std::sync::Arc;

use bytes::Bytes;
use flexlog_protocol::api::{Answer, AppendRequest, Request};
use flexlog_protocol::media::ReadError;
use flexlog_protocol::peer::{Of, PeerMessage, ToLeaf, ToMember};
use flexlog_protocol::{
    Append, Color, Entry, Epoch, Incarnation, Lsn, Position, Record, ReplicaId, SeqNum, Token, ViewNumber,
};

/// A client's connection, as whoever runs the member names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);

/// Names a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FetchId(pub(crate) u64);

/// Numbers whose records cannot be read as they were written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The log.
    pub color: Color,
    /// The first number that may be affected.
    pub number: SeqNum,
    /// Exclusive: no number from here on is. The same as `number` where it is not known which are.
    pub end: SeqNum,
    /// What is wrong, and where.
    pub why: String,
}

impl From<ReadError> for Damage {
    fn from(error: ReadError) -> Self {
        let why = error.to_string();
        let (ReadError::Damaged { color, number, end, .. } | ReadError::Io { color, number, end, .. }) = error;
        Self { color, number, end, why }
    }
}

/// What a member is told.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client asks for something; appends and what the node itself answers aside.
    Request {
        /// The client.
        from: ConnId,
        /// What it asks.
        request: Request,
    },
    /// A client appends.
    Append {
        /// The client.
        from: ConnId,
        /// What it appends.
        request: Arc<AppendRequest>,
    },
    /// A client is gone.
    Disconnected(ConnId),
    /// The leaf speaks.
    Leaf(Of<ToMember>),
    /// The process at this position is another one than before, or does not have all that was said to it.
    LeafReplaced(Position),
    /// Another member speaks.
    Peer {
        /// The member.
        from: ReplicaId,
        /// What it says.
        message: PeerMessage,
    },
    /// The first `upto` of all [`Output::Persist`] since the start are durable.
    Durable {
        /// How many.
        upto: u64,
    },
    /// The process of another replica is another one than before, or something that was said to it is lost.
    PeerReplaced(ReplicaId),
    /// The store had no room for this append: nothing of it is there. Its [`Output::Persist`] counts as done.
    StageRefused(Token),
    /// The store had no room for a [`Persist::Copy`]: nothing of it is there, and it counts as done.
    CopyRefused,
    /// A checkpoint would be of use.
    CheckpointWanted,
    /// The store failed and takes nothing any more.
    StoreFailed(String),
    /// What an [`Output::Fetch`] or [`Output::FetchPrev`] found; the records in order, or why one cannot be read.
    Fetched {
        /// Which.
        fetch: FetchId,
        /// What.
        result: Result<Vec<(SeqNum, Record)>, Damage>,
    },
    /// Somebody who looked for it found this damaged.
    Damaged(Damage),
    /// The time has come that [`Replica::next_deadline`](crate::Replica::next_deadline) named.
    Tick,
}

/// A write that the store must make, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Persist {
    /// Records of a client.
    Stage(Arc<Append>),
    /// An entry of the shard log.
    Entry(Arc<Entry>),
    /// The promise to follow this incarnation and no older one.
    Fence(Incarnation),
    /// Records that are settled elsewhere, with the numbers from `first` on.
    Copy {
        /// The log.
        color: Color,
        /// The first number.
        first: SeqNum,
        /// The records, in order.
        records: Vec<Record>,
    },
    /// A record that is damaged here, as another member has it.
    Repair {
        /// The log.
        color: Color,
        /// Its number.
        number: SeqNum,
        /// What it is.
        record: Record,
    },
    /// These entries, all that are above `upto`, are taken back.
    Truncate {
        /// The last place that stays.
        upto: Lsn,
        /// What goes, in order.
        entries: Vec<Arc<Entry>>,
    },
    /// The member's state as of this place.
    Checkpoint {
        /// The place.
        upto: Lsn,
        /// The state.
        state: Bytes,
    },
}

/// What a member wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Write this, after what was said before.
    Persist(Persist),
    /// Read records; see `LogStore::read`.
    Fetch {
        /// Names it.
        fetch: FetchId,
        /// The log.
        color: Color,
        /// Inclusive.
        from: SeqNum,
        /// Exclusive.
        upto: SeqNum,
        /// At most this many records.
        max_records: usize,
        /// No further record once this many bytes are reached.
        max_bytes: usize,
    },
    /// Read one record; see `LogStore::prev`.
    FetchPrev {
        /// Names it.
        fetch: FetchId,
        /// The log.
        color: Color,
        /// Inclusive.
        upto: SeqNum,
    },
    /// Read a staged append, and send it to `to` as [`PeerMessage::Pulled`], or [`PeerMessage::NotHere`].
    FetchStaged {
        /// The append.
        token: Token,
        /// Who wants it.
        to: ReplicaId,
    },
    /// Forget these numbers.
    Trim {
        /// The log.
        color: Color,
        /// Inclusive.
        upto: SeqNum,
    },
    /// Forget these staged appends.
    DropStaged(Vec<Token>),
    /// To the leaf.
    ToLeaf(Of<ToLeaf>),
    /// To another member.
    ToPeer {
        /// The member.
        to: ReplicaId,
        /// What to say.
        message: PeerMessage,
    },
    /// To a client.
    Answer {
        /// The client.
        to: ConnId,
        /// What to say.
        answer: Answer,
    },
    /// A record is damaged here; another member is asked for it. Said once, however many want to read it.
    Damaged(Damage),
    /// The same, and no other member has it.
    Lost(Damage),
    /// The member cannot go on, and takes nothing any more. Reads of what is settled go on.
    Stopped(String),
}

/// Why a member cannot start from what its store holds.
#[derive(Debug, thiserror::Error)]
#[error("the store does not hold a replica's state: {0}. It may be of another version; restore it from another member")]
pub struct RestoreError(pub(crate) String);

/// A member in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The last entry of its log.
    pub last: Lsn,
    /// The last entry it knows committed.
    pub commit: Lsn,
    /// The view in force there.
    pub view: ViewNumber,
    /// The epoch of the leaf that it follows; 0 without one.
    pub epoch: Epoch,
    /// Open sessions.
    pub sessions: u64,
    /// Colors with numbers.
    pub colors: u64,
    /// Tokens staged.
    pub staged: u64,
    /// Why it takes nothing any more.
    pub stopped: Option<String>,
}
