//! The ordering and failover protocol as small models, explored in full.
mod explore;
mod fault;
mod list;
pub mod shard;
pub mod tree;
mod words;

pub use explore::{Explorable, Failure, Report, Until, explore};
pub use fault::Fault;
