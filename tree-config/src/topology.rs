//! The topology file: one TOML file that describes a whole cluster, and that every process of it starts from.
//!
//! This module is pure but for [`Topology::load`]. It takes a file apart and promises that what it gives fits together:
//! one root, no circles, a shard below every sequencer, no name, id or address twice. Whoever breaks a rule is told the
//! line and what to write instead, about all of a file at once. What of it is already in the metadata of a running
//! cluster is judged elsewhere ([`crate::operations::adopt`]); things have names here, and ids of positions there.
//!
//! ```toml
//! cluster = "demo"               # for people; optional
//! transport = "tcp"              # or "quic": see [certificates]
//! data = "flexlog-cluster"       # the folder below which processes keep what they keep
//!
//! [certificates]                 # for quic
//! directory = "certs"            # ca.pem, and NAME.pem and NAME.key of each process
//!
//! [metadata]
//! backend = "embedded"           # kept by the root's process; or "etcd" with:
//! # endpoints = ["http://127.0.0.1:2379"]
//! # prefix = "flexlog/demo"
//!
//! [failover]
//! detect_ms = 300                # a standby takes over when a sequencer has not answered for so long; optional
//! replica_timeout_ms = 1000      # a replica that makes no progress for so long is dropped from the view; optional
//!
//! [storage]                      # of every replica; all optional
//! area_limit = "1GiB"
//! segment = "16MiB"
//! device = "mmap"                # or "file", "pmem2"
//! high_mark = 75
//! cache = "64MiB"
//! ssd = true
//! scrub_mib_s = 8                # MiB a second that are read to find damage; 0: none
//!
//! [[sequencer]]                  # one position of the tree; the root has no parent
//! name = "root"
//! address = "127.0.0.1:7400"
//! linger_micros = 0
//! # standbys = ["127.0.0.1:7450"] # further processes that take over when the one before is gone
//!
//! [[shard]]
//! id = 1
//! leaf = "root"                  # the sequencer that leads it
//! min_view = 1                   # default: 2, or 1 with one replica
//!
//! [[shard.replica]]
//! id = 1
//! address = "127.0.0.1:7411"
//! ```
//!
//! Folders in it are relative to the file's own folder.

mod check;
mod load;
mod parse;
mod reader;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use flexlog_protocol::{Position, ReplicaId, ShardId, limits};

use crate::operations::Layout;
use crate::record::{PositionRecord, ReplicaRecord, ShardRecord, StoreState};

/// The longest that requests may wait for others to be merged with, in microseconds.
pub const MAX_LINGER_MICROS: u64 = 10_000;
/// How long a sequencer may be silent before a standby takes over, in milliseconds, unless the file says otherwise.
pub const DEFAULT_DETECT_MS: u64 = 300;
/// How long a replica may make no progress where the file does not say, and may be made to, in milliseconds.
pub const DEFAULT_REPLICA_TIMEOUT_MS: u64 = limits::REPLICA_TIMEOUT_MICROS / 1000;
/// As above: from, to.
pub const REPLICA_TIMEOUT_MS: (u64, u64) = (100, 60_000);
/// The least and the most that this may be.
pub const DETECT_MS: (u64, u64) = (50, 60_000);
/// The most standbys of a sequencer.
pub const MAX_STANDBYS: usize = 9;
/// The folder of a cluster that names none.
pub const DEFAULT_DATA: &str = "flexlog-cluster";

/// A cluster as its file describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// The file, as it was named.
    pub file: PathBuf,
    /// What people call the cluster.
    pub cluster: Option<String>,
    /// How processes talk to one another.
    pub transport: Transport,
    /// The folder below which processes keep what they keep.
    pub data: PathBuf,
    /// Where the metadata is kept.
    pub metadata: MetadataPlace,
    /// How every replica stores its records.
    pub storage: Storage,
    /// How long a sequencer may be silent before a standby takes over, in milliseconds: in [`DETECT_MS`].
    pub detect_ms: u64,
    /// How long a replica that owes an answer may make no progress before it is dropped from the view, in milliseconds: in
    /// [`REPLICA_TIMEOUT_MS`].
    pub replica_timeout_ms: u64,
    sequencers: Vec<Sequencer>,
    shards: Vec<Shard>,
}

/// How processes talk to one another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Neither encrypted nor authenticated: one host, or a network that is trusted.
    Tcp,
    /// TLS with certificates on both sides.
    Quic {
        /// A folder with `ca.pem`, and `NAME.pem` and `NAME.key` of each process.
        certificates: PathBuf,
    },
}

/// Where the metadata is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetadataPlace {
    /// By the process of the root, in its folder, for all others.
    Embedded,
    /// In etcd.
    Etcd {
        /// Its servers, at least one: `http://host:port` each.
        endpoints: Vec<String>,
        /// What the keys of this cluster begin with.
        prefix: String,
    },
}

/// How replicas store their records. What is `None` is left to the process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Storage {
    /// Bytes that the area may grow to.
    pub area_limit: Option<u64>,
    /// Bytes of a segment of a new area.
    pub segment: Option<u64>,
    /// What the area is on.
    pub device: Option<Device>,
    /// Percent of the area above which its oldest records move to SSD files, from 1 to 99.
    pub high_mark: Option<u8>,
    /// Bytes of memory for records that were read.
    pub cache: Option<u64>,
    /// Whether older records move to SSD files, in a folder beside the area.
    pub ssd: Option<bool>,
    /// MiB a second that are read of each replica's records to find what is damaged; 0 for none.
    pub scrub_mib_s: Option<u32>,
}

/// What an area is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    /// Memory on tmpfs.
    Mmap,
    /// Any disk.
    File,
    /// Persistent memory, through libpmem2.
    Pmem2,
}

/// A position of the tree, and the process that holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sequencer {
    /// Its line in the file.
    pub line: usize,
    /// Its name, unique in the cluster: a word ([`crate::record::is_word`]).
    pub name: String,
    /// The name of the one above; `None` at the root alone.
    pub parent: Option<String>,
    /// Where it listens, `host:port`.
    pub address: String,
    /// How long requests may wait for others to be merged with, in microseconds up to [`MAX_LINGER_MICROS`].
    pub linger_micros: u64,
    /// Where its standbys listen, `host:port` each: at most [`MAX_STANDBYS`].
    pub standbys: Vec<String>,
}

/// A shard and its replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shard {
    /// Its line in the file.
    pub line: usize,
    /// The shard, from 1 up.
    pub id: ShardId,
    /// The name of the sequencer that leads it.
    pub leaf: String,
    /// The fewest members that a view may have, from 1 to the number of replicas.
    pub min_view: u32,
    /// Its replicas, in the order of the file.
    pub replicas: Vec<Replica>,
}

/// A replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replica {
    /// Its line in the file.
    pub line: usize,
    /// The replica, unique in the cluster, from 1 up.
    pub id: ReplicaId,
    /// Where it listens, `host:port`.
    pub address: String,
}

/// A topology file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// It could not be read.
    #[error("cannot read the topology {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It breaks rules.
    #[error(transparent)]
    Wrong(#[from] Problems),
}

/// Everything that is wrong with a topology file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problems {
    /// The file, as it was named.
    pub file: PathBuf,
    /// What is wrong, in order of the lines; at least one.
    pub problems: Vec<Problem>,
}

/// Something that is wrong with a topology file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Problem {
    /// Where, from 1 up.
    pub line: usize,
    /// What, and what to write instead.
    pub message: String,
}

impl fmt::Display for Problems {
    /// A line for each, `file:line: message`, as compilers do it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}{}:{}: {}", self.file.display(), problem.line, problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

impl Topology {
    /// Takes the text of a file apart. `file` is for messages, and for the folders that are relative to it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(file: &Path, text: &str) -> Result<Self, Problems> {
        parse::parse(file, text)
    }

    /// All sequencers, in the order of the file.
    #[must_use]
    pub fn sequencers(&self) -> &[Sequencer] {
        &self.sequencers
    }

    /// All shards, in the order of the file.
    #[must_use]
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The sequencer of this name.
    #[must_use]
    pub fn sequencer(&self, name: &str) -> Option<&Sequencer> {
        self.sequencers.iter().find(|sequencer| sequencer.name == name)
    }

    /// The replica of this id, and its shard.
    #[must_use]
    pub fn replica(&self, id: ReplicaId) -> Option<(&Shard, &Replica)> {
        let all = self.shards.iter().flat_map(|shard| shard.replicas.iter().map(move |replica| (shard, replica)));
        all.into_iter().find(|(_, replica)| replica.id == id)
    }

    /// The sequencer without a parent.
    ///
    /// # Panics
    /// Never: a topology has one.
    #[must_use]
    pub fn root(&self) -> &Sequencer {
        let root = self.sequencers.iter().find(|sequencer| sequencer.parent.is_none());
        root.unwrap_or(&self.sequencers[0])
    }

    /// The sequencer above one; `None` at the root.
    #[must_use]
    pub fn parent(&self, name: &str) -> Option<&Sequencer> {
        self.sequencer(self.sequencer(name)?.parent.as_deref()?)
    }

    /// The sequencers right below one, in the order of the file.
    pub fn children(&self, name: &str) -> impl Iterator<Item = &Sequencer> {
        self.sequencers.iter().filter(move |sequencer| sequencer.parent.as_deref() == Some(name))
    }

    /// The shards that a sequencer leads itself, in the order of the file.
    pub fn shards_of(&self, name: &str) -> impl Iterator<Item = &Shard> {
        self.shards.iter().filter(move |shard| shard.leaf == name)
    }

    /// How many sequencers are above this one: 0 at the root.
    #[must_use]
    pub fn depth(&self, name: &str) -> usize {
        std::iter::successors(self.parent(name), |above| self.parent(&above.name)).count()
    }

    /// What the process of a replica is called: its folder, and its certificate.
    #[must_use]
    pub fn replica_name(id: ReplicaId) -> String {
        format!("replica-{id}")
    }

    /// What the process of a sequencer's standby is called, which is its `number`th from 1 up: its folder, and its
    /// certificate.
    #[must_use]
    pub fn standby_name(name: &str, number: usize) -> String {
        format!("{name}-standby-{number}")
    }

    /// The standbys of all sequencers: their names and addresses, in the order of the file.
    pub fn standbys(&self) -> impl Iterator<Item = (String, &str)> {
        self.sequencers.iter().flat_map(|sequencer| {
            let numbered = (1..).zip(&sequencer.standbys);
            numbered.map(|(number, address)| (Self::standby_name(&sequencer.name, number), address.as_str()))
        })
    }

    /// The folder of the process of a sequencer, or of a standby, by its name.
    #[must_use]
    pub fn sequencer_folder(&self, name: &str) -> PathBuf {
        self.data.join(name)
    }

    /// The folder of a replica's process.
    #[must_use]
    pub fn replica_folder(&self, id: ReplicaId) -> PathBuf {
        self.data.join(Self::replica_name(id))
    }

    /// What a new cluster of this topology starts with: the root is position 0, the others count from 1 in the order of
    /// the file.
    ///
    /// A cluster that is there already keeps the numbers it has, so a process looks its position up by name in
    /// [`crate::operations::tree`].
    #[must_use]
    pub fn layout(&self) -> Layout {
        let others = self.sequencers.iter().filter(|sequencer| sequencer.parent.is_some());
        let in_order = std::iter::once(self.root()).chain(others);
        let ids: BTreeMap<&str, Position> =
            in_order.clone().zip(0..).map(|(sequencer, id)| (sequencer.name.as_str(), Position(id))).collect();
        // Every name was looked up when the file was read.
        let id = |name: &str| ids.get(name).copied().unwrap_or(Position(0));
        let position = |sequencer: &Sequencer| PositionRecord {
            position: id(&sequencer.name),
            parent: sequencer.parent.as_deref().map(id),
            name: sequencer.name.clone(),
            address: sequencer.address.clone(),
            holder: None,
        };
        let shard = |shard: &Shard| ShardRecord {
            shard: shard.id,
            leaf: id(&shard.leaf),
            view: ShardRecord::first_view(shard.replicas.iter().map(|replica| replica.id).collect()),
            min_view: shard.min_view,
        };
        let replicas = self.shards.iter().flat_map(|shard| {
            shard.replicas.iter().map(|replica| ReplicaRecord {
                replica: replica.id,
                shard: shard.id,
                addresses: vec![replica.address.clone()],
                store: StoreState::Fresh,
            })
        });
        Layout {
            positions: in_order.map(position).collect(),
            shards: self.shards.iter().map(shard).collect(),
            replicas: replicas.collect(),
        }
    }
}
