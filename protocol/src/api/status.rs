//! How a process and its cluster are, for people: what [`super::Answer::Status`] carries.

use crate::ids::{ClusterId, Epoch, Lsn, Position, ReplicaId, ShardId, View};
use crate::peer::{Child, Peer};

/// How a process is, and the cluster as far as it knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node's version.
    pub version: String,
    /// Where its data is.
    pub directory: String,
    /// Time since it started, in microseconds.
    pub uptime_micros: u64,
    /// Client connections.
    pub connections: u64,
    /// Colors of the cluster.
    pub colors: u64,
    /// Appends that were numbered here since the start.
    pub appends: u64,
    /// The shards that it leads or has members of.
    pub shards: Vec<ShardStatus>,
    /// The name of the process in the topology; that of the only position where there is one process.
    pub process: String,
    /// The position that it holds or is about to.
    pub position: Option<PositionStatus>,
    /// Its links to other processes that it has said anything to.
    pub links: Vec<LinkStatus>,
    /// What the cluster is made of.
    pub tree: TreeInfo,
}

/// How a position is, as its process sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PositionStatus {
    /// The position.
    pub position: Position,
    /// Its name.
    pub name: String,
    /// The epoch in which it is held; 0 before the first claim of this process.
    pub epoch: Epoch,
    /// Whether it numbers, and every shard that it leads takes appends.
    pub serving: bool,
    /// Those below that have not reported yet.
    pub awaited: Vec<Child>,
    /// The epoch of the position above, once that has sealed this one; the root has none.
    pub parent_epoch: Option<Epoch>,
    /// Colors that it counts for and that have numbers.
    pub colors: u64,
    /// Numbers of these colors granted since the process started.
    pub granted: u64,
    /// Requests that the position above has not answered yet.
    pub under_way: u64,
    /// Messages since the claim that changed nothing: of another incarnation, or out of turn.
    pub ignored: u64,
    /// Whether the process waits for another one that holds the position.
    pub standby: bool,
}

/// How a link of a process to another one is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkStatus {
    /// The other end.
    pub peer: Peer,
    /// Where it is.
    pub address: String,
    /// `None` when there is a connection; else why not, in words.
    pub down: Option<String>,
    /// Bytes that the other end has not acknowledged.
    pub queued_bytes: u64,
}

/// The cluster as its metadata has it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TreeInfo {
    /// Why the metadata was not to be had: then the rest is as the process knew it last, and there is no number of
    /// colors.
    pub stale: Option<String>,
    /// All positions, in ascending order.
    pub positions: Vec<PositionInfo>,
    /// All shards, in ascending order.
    pub shards: Vec<ShardPlace>,
}

/// A position, as the metadata has it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PositionInfo {
    /// The position.
    pub position: Position,
    /// Its name, which is that of its first process too.
    pub name: String,
    /// The position above; `None` at the root.
    pub parent: Option<Position>,
    /// Where its first process listens. Empty where everything is in one process.
    pub address: String,
    /// The epoch of the last claim; 0 before the first.
    pub epoch: Epoch,
    /// Where the process of the last claim listens. Empty before the first, and where everything is in one process.
    pub holder: String,
    /// Where its standbys listen, as the topology of the process that was asked has it.
    pub standbys: Vec<String>,
}

/// A shard, as the metadata has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardPlace {
    /// The shard.
    pub shard: ShardId,
    /// The position that leads it.
    pub leaf: Position,
    /// The view decided last.
    pub view: View,
    /// The fewest members that a view may have.
    pub min_view: u32,
    /// Its replicas, in the view or not.
    pub replicas: Vec<ReplicaInfo>,
}

/// A replica, as the metadata has it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplicaInfo {
    /// The replica.
    pub replica: ReplicaId,
    /// Where its process listens. Empty where everything is in one process.
    pub address: String,
}

/// How a shard is, as its leaf sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardStatus {
    /// The shard.
    pub shard: ShardId,
    /// The epoch of its leaf.
    pub epoch: Epoch,
    /// Which view is in force.
    pub view: u32,
    /// `recovering`, `serving` or `stopped: why`.
    pub state: String,
    /// The last entry of its log.
    pub last: Lsn,
    /// The last committed entry.
    pub commit: Lsn,
    /// Open sessions.
    pub sessions: u64,
    /// Its members.
    pub replicas: Vec<ReplicaStatus>,
}

/// How a replica is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplicaStatus {
    /// The replica.
    pub replica: ReplicaId,
    /// `ok`, or why it takes nothing.
    pub state: String,
    /// Its folder.
    pub path: String,
    /// What its device is and promises.
    pub device: String,
    /// Bytes of segments in use.
    pub used_bytes: u64,
    /// Bytes that the area may grow to.
    pub limit_bytes: u64,
    /// Numbers that can be read here from memory or the area.
    pub records: u64,
    /// Tokens staged.
    pub staged: u64,
    /// Bytes of memory that its indexes take.
    pub index_bytes: u64,
    /// How often its store was opened.
    pub opened: u64,
    /// SSD files that older records moved to.
    pub ssd_files: u64,
    /// Bytes that they take.
    pub ssd_bytes: u64,
    /// Records in them, trimmed ones whose space was not given back yet included.
    pub ssd_records: u64,
    /// Records that were found damaged since the process started.
    pub damaged: u64,
    /// Those that were written again, as another replica has them.
    pub repaired: u64,
    /// Those that no other replica had whole.
    pub lost: u64,
    /// Bytes of records that were read to find damage.
    pub scrubbed_bytes: u64,
    /// How often all were.
    pub scrub_passes: u64,
    /// For how many seconds that is over; 0 where it never was.
    pub scrub_ended_secs: u64,
}
