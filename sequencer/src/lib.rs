//! The ordering tree: who hands out numbers, and who makes them facts.
//!
//! Two pure machines, which know each other only through [`flexlog_protocol::peer`]: [`Counter`] owns colors and counts
//! for them (soft state, rebuilt from below after every claim); [`Leaf`] leads one shard's log, which is where a number
//! becomes a fact. Neither has a clock, a socket or chance inside: a shell feeds messages and the time in, and carries
//! the outputs away. With one sequencer both run in one process and start together: the leaf recovers its shard's log
//! first ([`Output::Recovered`]), the counter begins with what that found.

mod counter;
mod leaf;
mod log;
mod members;
mod recovery;
mod tails;
mod tokens;

pub use counter::Counter;
pub use leaf::{Input, Leaf, Output, Status};
pub use log::{MAX_RUNS_PER_ENTRY, MAX_UNCOMMITTED_ENTRIES};
pub use members::MAX_MEMBERS;
pub use recovery::StopReason;
