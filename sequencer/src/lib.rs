//! The ordering tree: who hands out numbers, and who makes them facts.
//!
//! Two pure machines, which know each other only through [`flexlog_protocol::peer`]: [`Sequencer`] is a position of the
//! tree, which counts for the colors that it owns and merges what goes further up (soft state, rebuilt from below after
//! every claim); [`Leaf`] leads one shard's log, which is where a number becomes a fact. Neither has a clock, a socket or
//! chance inside: a shell feeds messages and the time in, and carries the outputs away. The process that holds a position
//! runs its `Sequencer` and one `Leaf` for each of its shards, all of one incarnation, started together.

mod leaf;
mod log;
mod members;
mod recovery;
mod tails;
mod tokens;
pub mod tree;

pub use leaf::{Input, Leaf, Output, Status, ViewOutcome};
pub use log::{MAX_RUNS_PER_ENTRY, MAX_UNCOMMITTED_ENTRIES};
pub use members::MAX_MEMBERS;
pub use recovery::StopReason;
pub use tree::Sequencer;
