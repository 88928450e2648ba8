//! What a FlexLog cluster is made of.
//!
//! Small, rarely changed facts that all nodes must agree on: the cluster and its counters, the positions of the ordering
//! tree and who holds them, shards and their views, replicas and the identity of their stores, colors and where they
//! live. Run-time state of a color never goes here.
//!
//! The *pure part* holds the types and their rules ([`name`], [`record`], [`key`]), what may be asked of a store
//! ([`transaction`], [`metadata`]), how a store's identity is judged ([`identity`]), what is done with it all
//! ([`operations`]), and the file that describes a cluster ([`topology`]). It needs no runtime, and does no I/O but to
//! read that file. *Backends* keep the facts, each a feature: `embedded` in a folder, for one process; `served` lets that
//! process serve it to the others of its cluster; `etcd` keeps them in an etcd cluster. Every backend passes the same
//! suite, `conformance`.

pub mod amount;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod identity;
pub mod key;
pub mod metadata;
pub mod name;
pub mod operations;
pub mod record;
#[cfg(feature = "served")]
pub mod served;
pub mod topology;
pub mod transaction;

#[cfg(feature = "embedded")]
pub use embedded::Embedded;
#[cfg(feature = "etcd")]
pub use etcd::Etcd;
pub use identity::IdentityRefusal;
pub use key::{Key, Kind, Value};
pub use metadata::{Change, Changes, CommitError, Event, Metadata, Page, ReadError, Revision, Versioned, Watch};
pub use name::{ColorName, ColorNameError};
pub use record::{
    ClusterRecord, ColorRecord, Holder, PositionRecord, RecordError, ReplicaRecord, Retention, ShardRecord, StoreState,
};
pub use topology::{Topology, TopologyError};
pub use transaction::{Transaction, TransactionError};
