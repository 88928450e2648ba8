//! What clients and nodes say to each other.
//!
//! A client numbers its requests per connection (`id`); every answer but those to appends names the request. Appends
//! are named by their tokens, so a retry over another connection is the same append.

mod status;

use std::num::NonZeroU64;
use std::sync::Arc;

use uuid::Uuid;

use crate::entry::Assign;
use crate::ids::{ClusterId, Color, ReplicaId, SeqNum, SessionId, ShardId, Token, View};
use crate::record::{Append, Record, Tag};

pub use status::{
    LinkStatus, PositionInfo, PositionStatus, ReplicaInfo, ReplicaStatus, ShardPlace, ShardStatus, Status, TreeInfo,
};

/// A connection's name for a request.
pub type RequestId = u64;

/// From a client to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Where does this color live? Answered by [`Answer::Color`] or [`Answer::Failed`].
    Lookup {
        /// Names the request.
        id: RequestId,
        /// The color's name.
        name: String,
        /// Create it like this if there is none.
        create: Option<Placement>,
        /// How its [`Retention`] is to be from now on; the answer has it as it is then.
        retention: RetentionChange,
    },
    /// Which colors are there? Answered by [`Answer::Colors`], in pages.
    Colors {
        /// Names the request.
        id: RequestId,
        /// Only names above this one, in byte order.
        after: Option<String>,
    },
    /// How is the node? Answered by [`Answer::Status`].
    Status {
        /// Names the request.
        id: RequestId,
    },
    /// Does this node hold its position of the tree? Answered at once, by the thread that does the node's work, with
    /// [`Answer::Pong`].
    Ping {
        /// Names the request.
        id: RequestId,
    },
    /// Begin a session. Answered by [`Answer::SessionOpened`].
    OpenSession {
        /// Names the request.
        id: RequestId,
        /// The shard that it is for.
        shard: ShardId,
        /// Drawn by the client; the same nonce names the same session, so this may be repeated.
        nonce: Uuid,
    },
    /// The client is done with a session. Not answered: it is closed if nothing of it is under way, else once it is idle.
    CloseSession {
        /// The shard that it is at.
        shard: ShardId,
        /// The session.
        session: SessionId,
    },
    /// Append these records. Answered by [`Answer::Appended`] and [`Answer::AppendRefused`].
    Append(Arc<AppendRequest>),
    /// One number of a color. Answered by [`Answer::Record`], `Hole`, `Trimmed`, `NotYet` or `Elsewhere`.
    Read {
        /// Names the request.
        id: RequestId,
        /// The log.
        color: Color,
        /// The number.
        number: SeqNum,
        /// How long to wait for a number that was given but is not settled yet.
        wait_micros: u64,
    },
    /// The first record at or after `from`. Answered by `Record`, `Trimmed` or `NotYet`.
    ReadNext {
        /// Names the request.
        id: RequestId,
        /// The log.
        color: Color,
        /// Only records of this sub-stream.
        tag: Option<Tag>,
        /// Inclusive.
        from: SeqNum,
        /// How long to wait for a number that was given but is not settled yet.
        wait_micros: u64,
    },
    /// The last record at or before `upto`. Answered by `Record`, `Trimmed` or `NothingBefore`.
    ReadPrev {
        /// Names the request.
        id: RequestId,
        /// The log.
        color: Color,
        /// Only records of this sub-stream.
        tag: Option<Tag>,
        /// Inclusive.
        upto: SeqNum,
        /// How long to wait for a number that was given but is not settled yet.
        wait_micros: u64,
    },
    /// The next number of a color. Answered by [`Answer::Tail`].
    Tail {
        /// Names the request.
        id: RequestId,
        /// The log.
        color: Color,
    },
    /// Forget a color's records up to and including `upto`. Answered by [`Answer::TrimDone`].
    Trim {
        /// Names the request.
        id: RequestId,
        /// The log.
        color: Color,
        /// Inclusive, below the color's tail.
        upto: SeqNum,
    },
    /// All records of a color from `from` on, as they become stable. Answered by a run of [`Answer::Delivered`] and
    /// [`Answer::Trimmed`] until [`Request::Unsubscribe`].
    Subscribe {
        /// Names the subscription.
        id: RequestId,
        /// The log.
        color: Color,
        /// Only records of this sub-stream.
        tag: Option<Tag>,
        /// Inclusive.
        from: SeqNum,
        /// Bytes that may be sent before more is allowed; see [`delivered_cost`].
        credit: u64,
    },
    /// Allows a subscription to send more.
    Credit {
        /// The subscription.
        id: RequestId,
        /// Bytes on top of what is left.
        bytes: u64,
    },
    /// Ends a subscription. Not answered.
    Unsubscribe {
        /// The subscription.
        id: RequestId,
    },
}

impl Request {
    /// The name of a request that is answered by this name.
    #[must_use]
    pub fn awaited(&self) -> Option<RequestId> {
        match self {
            Self::Lookup { id, .. }
            | Self::Colors { id, .. }
            | Self::Status { id }
            | Self::Ping { id }
            | Self::OpenSession { id, .. }
            | Self::Read { id, .. }
            | Self::ReadNext { id, .. }
            | Self::ReadPrev { id, .. }
            | Self::Tail { id, .. }
            | Self::Trim { id, .. }
            | Self::Subscribe { id, .. } => Some(*id),
            Self::CloseSession { .. } | Self::Append(_) | Self::Credit { .. } | Self::Unsubscribe { .. } => None,
        }
    }
}

/// Where a color goes that is created. One that is there stays as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// The name of the position that counts for it. Without one the node chooses.
    pub owner: Option<String>,
    /// How many shards it is on; 0 is 1.
    pub width: u32,
}

/// Appends of one session, for some members of its shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppendRequest {
    /// The shard.
    pub shard: ShardId,
    /// The session.
    pub session: SessionId,
    /// The smallest seq that the client still wants an answer for.
    pub low: u64,
    /// The members that are meant, all on the node that this goes to: the bytes go there once.
    pub members: Vec<ReplicaId>,
    /// In ascending order of their seqs, all of this session.
    pub appends: Vec<Arc<Append>>,
}

/// What a delivered record costs of a subscription's credit, in bytes: its payload and 32 for what surrounds it.
#[must_use]
pub fn delivered_cost(record: &Record) -> u64 {
    record.payload().len() as u64 + 32
}

/// From a node to a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// These appends are in the shard log at these numbers, as far as these members are concerned.
    Appended(Appended),
    /// This member does not take the append.
    AppendRefused {
        /// The append.
        token: Token,
        /// Who says so.
        member: ReplicaId,
        /// Why.
        why: AppendRefusal,
    },
    /// Where a color lives.
    Color {
        /// As asked.
        id: RequestId,
        /// The color.
        info: ColorInfo,
    },
    /// Some colors in order of their names. An empty page is the last.
    Colors {
        /// As asked.
        id: RequestId,
        /// The page.
        colors: Vec<ColorInfo>,
    },
    /// How the node is.
    Status {
        /// As asked.
        id: RequestId,
        /// The report.
        status: Box<Status>,
    },
    /// The node is there.
    Pong {
        /// As asked.
        id: RequestId,
        /// Whether it holds its position of the tree. False of a standby, and of a node that has no position.
        holder: bool,
    },
    /// The session with the nonce asked for.
    SessionOpened {
        /// As asked.
        id: RequestId,
        /// Its name.
        session: SessionId,
    },
    /// A record.
    Record {
        /// As asked.
        id: RequestId,
        /// Its number.
        number: SeqNum,
        /// The record.
        record: Record,
    },
    /// The number names no record, and never will.
    Hole {
        /// As asked.
        id: RequestId,
    },
    /// To a read: the number is at or below the trim point. To a subscription: what was asked for from its place up to
    /// and including `point` is gone; it goes on behind.
    Trimmed {
        /// As asked.
        id: RequestId,
        /// The trim point, inclusive.
        point: SeqNum,
    },
    /// The number is not given yet, or was not settled in the time the request allowed.
    NotYet {
        /// As asked.
        id: RequestId,
        /// The next number of the color.
        tail: SeqNum,
    },
    /// There is no record at or before the number asked for.
    NothingBefore {
        /// As asked.
        id: RequestId,
    },
    /// Not on this shard; the color has others.
    Elsewhere {
        /// As asked.
        id: RequestId,
    },
    /// The next number of a color.
    Tail {
        /// As asked.
        id: RequestId,
        /// Exclusive: no record has this number or one above it.
        tail: SeqNum,
    },
    /// The color is trimmed up to at least the number asked for.
    TrimDone {
        /// As asked.
        id: RequestId,
        /// The trim point, inclusive.
        point: SeqNum,
    },
    /// The next records of a subscription.
    Delivered {
        /// The subscription.
        id: RequestId,
        /// In order.
        records: Vec<(SeqNum, Record)>,
        /// Exclusive: every record below this number was delivered, or was never there.
        upto: SeqNum,
    },
    /// The request cannot be done. It ends a subscription too.
    Failed {
        /// As asked.
        id: RequestId,
        /// Why.
        why: Failure,
    },
    /// The node closes the connection, and this is why.
    Closing {
        /// For people.
        reason: String,
    },
}

/// Numbers of appends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Appended {
    /// The members that say so; each speaks for itself.
    pub members: Vec<ReplicaId>,
    /// The view in force at the entries that assigned these numbers.
    pub view: View,
    /// Whether the numbers are settled: then one member's word is enough.
    pub settled: bool,
    /// The numbers. The color of a run that answers a retry is as in the retry.
    pub runs: Vec<Assign>,
}

/// Why a member does not take an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppendRefusal {
    /// The member's area is full. It holds nothing of the append.
    #[error("the replica's storage is full: trim colors, or give it a larger area")]
    Full,
    /// The member has as much staged as it may. It holds nothing of the append; try again.
    #[error("the replica has too much in flight: try again")]
    Busy,
    /// The session is unknown or closed.
    #[error("the session has expired: open a new one")]
    SessionExpired,
    /// The seq is below the client's own low mark.
    #[error("the append is older than what its session still cares about")]
    TooOld,
    /// The seq is [`crate::limits::TOKEN_WINDOW`] or more above the client's low mark.
    #[error("the session has too many appends open")]
    WindowFull,
    /// Other records came under this token before.
    #[error("the token was used for other records")]
    Conflict,
    /// Something that this version does not do.
    #[error("this version does not support conditions on appends")]
    Unsupported,
    /// The member's storage failed; it takes nothing any more.
    #[error("the replica's storage failed: see its log")]
    StorageFailed,
    /// The member follows no leaf yet.
    #[error("the shard is starting: try again")]
    NotReady,
    /// There is no such color.
    #[error("the color does not exist")]
    NoSuchColor,
}

impl AppendRefusal {
    /// Whether the same append may go well a little later.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Full | Self::Busy | Self::NotReady | Self::WindowFull)
    }
}

/// Why a request other than an append cannot be done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// There is no color of this name or id.
    #[error("there is no color {0}")]
    NoSuchColor(String),
    /// The name cannot be a color's.
    #[error("'{name}' cannot name a color: {why}")]
    BadName {
        /// As asked.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// A color cannot be created where it was asked for.
    #[error("the color cannot be created there: {0}")]
    Placement(String),
    /// The cluster has as many colors as it can.
    #[error("the cluster has {0} colors, its limit")]
    TooManyColors(u64),
    /// The shard has as many sessions as it can.
    #[error("the shard has as many sessions as it can: close clients, or wait until idle ones expire")]
    TooManySessions,
    /// The trim point would be at or above the tail.
    #[error("cannot trim up to {upto}: the color's next number is {tail}, and only numbers below it can be trimmed")]
    TrimBeyondTail {
        /// As asked.
        upto: SeqNum,
        /// The next number of the color.
        tail: SeqNum,
    },
    /// The connection has as many of these as it may.
    #[error("the connection has too many {0}")]
    TooMany(String),
    /// There is no such shard here.
    #[error("there is no shard {0} here")]
    NoSuchShard(ShardId),
    /// Something that this version does not do.
    #[error("this version does not support {0}")]
    Unsupported(String),
    /// A record cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// A replica's storage failed, and nothing that must be written to it can be done before it is started again.
    #[error("a replica's storage failed: {0}")]
    StorageFailed(String),
    /// The metadata store did not do what was asked.
    #[error("the metadata store failed: {0}")]
    Metadata(String),
    /// The node cannot do this now; try again.
    #[error("the node is not ready: {0}")]
    NotReady(String),
}

/// A color, as clients need to know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColorInfo {
    /// Its id.
    pub color: Color,
    /// Its name.
    pub name: String,
    /// The shards that it may be appended to: as many as its width.
    pub shards: Vec<ShardInfo>,
    /// The name of the position that counts for it.
    pub owner: String,
    /// How long its records are kept.
    pub retention: Retention,
}

/// How long a color's records are kept: until they are trimmed, or until one of these bounds is passed.
///
/// The bounds say what may be forgotten, not when: a record that is inside of both is never trimmed for them, one that
/// is outside of one is, soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Retention {
    /// Records older than this many seconds may be forgotten.
    pub max_age_secs: Option<NonZeroU64>,
    /// The newest records with this many bytes of payload together are kept, and older ones may be forgotten.
    pub max_bytes: Option<NonZeroU64>,
}

impl Retention {
    /// Whether records are kept until somebody trims them.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.max_age_secs.is_none() && self.max_bytes.is_none()
    }
}

/// What becomes of one bound of a [`Retention`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BoundChange {
    /// It stays as it is.
    #[default]
    Keep,
    /// There is none.
    Remove,
    /// It is this.
    Set(NonZeroU64),
}

impl BoundChange {
    /// What a bound is after the change.
    #[must_use]
    pub fn apply(self, before: Option<NonZeroU64>) -> Option<NonZeroU64> {
        match self {
            Self::Keep => before,
            Self::Remove => None,
            Self::Set(bound) => Some(bound),
        }
    }
}

/// How a [`Retention`] is to be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RetentionChange {
    /// Its age, in seconds.
    pub max_age_secs: BoundChange,
    /// Its bytes.
    pub max_bytes: BoundChange,
}

impl RetentionChange {
    /// What a retention is after the change.
    #[must_use]
    pub fn apply(&self, before: Retention) -> Retention {
        Retention {
            max_age_secs: self.max_age_secs.apply(before.max_age_secs),
            max_bytes: self.max_bytes.apply(before.max_bytes),
        }
    }

    /// Whether it leaves every retention as it is.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// A shard, as clients need to know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardInfo {
    /// Its id.
    pub shard: ShardId,
    /// Its current view.
    pub view: View,
    /// Where each member is, in the order of the view: `host:port`. Empty is the node that answers.
    pub addresses: Vec<String>,
}

/// The opening words of a connection, from both sides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// [`crate::wire::VERSION`].
    pub version: u32,
    /// The cluster; zero from a client that does not know it yet.
    pub cluster: ClusterId,
    /// Who speaks.
    pub role: Role,
}

/// What the side of a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A client of the log.
    Client,
    /// A node that serves it, or one that dials another to work with it.
    Node,
    /// A node that dials another one for the metadata that the other keeps.
    Metadata,
}

/// The answer to the opening words: go on, or why not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Welcome {
    /// The node's own opening words.
    Accepted(Hello),
    /// For people.
    Refused(String),
}
