//! The store of one replica: a log of checksummed entries in persistent memory or on a plain disk.
//!
//! [`Store`] implements [`flexlog_protocol::media::LogStore`] over any [`flexlog_protocol::media::Device`]; the devices
//! are in [`device`]. A store is opened through [`Closed`], [`Intended`] and [`Advanced`], one type a step, because each
//! opening is agreed with the metadata store. What the store promises: after a crash it holds a prefix of what was
//! written that includes all that was fenced, with nothing torn and nothing invented (I10); bytes that were durable and
//! are damaged are reported, not skipped. What is moved out of the area to make room is in [`ssd`].

#[cfg(test)]
extern crate self as flexlog_storage_pm;

mod codec;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
#[cfg(test)]
mod crash;
pub mod device;
#[cfg(test)]
mod fuzz;
mod index;
pub mod inspect;
mod layout;
mod log;
mod open;
#[cfg(test)]
mod planted;
mod recover;
mod segments;
pub mod ssd;
mod store;
mod superblock;
mod tiers;

pub use open::{Advanced, Closed, Intended, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, Mark, OpenError, Options, Owner};
pub use store::Store;
