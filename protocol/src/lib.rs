//! The vocabulary of FlexLog.
//!
//! What the other crates share and nothing else: names ([`ids`]), records ([`record`]), shard-log entries ([`entry`]),
//! what servers say to each other ([`peer`]), what clients and nodes say to each other ([`api`]) and how that looks on
//! the wire ([`wire`]), the storage traits ([`media`]), and every bound of the system ([`limits`]). There is no
//! behaviour here beyond encoding and checking; the protocol cores do not import one another, only this.

pub mod api;
pub mod checksum;
pub mod entry;
pub mod ids;
pub mod limits;
pub mod media;
#[cfg(feature = "net")]
pub mod net;
pub mod peer;
pub mod record;
pub mod wire;

pub use entry::{Assign, Body, Entry};
pub use ids::{
    ClusterId, Color, Epoch, Incarnation, Lsn, Position, ReplicaId, SeqNum, SessionId, ShardId, StoreId, Time, Token,
    View, ViewNumber,
};
pub use record::{Append, Condition, Record, RecordError, Tag};
