//! A member of a shard, as a pure machine: what it does is a function of what it is told.
//!
//! [`Replica`] stages the records that clients send, tells its leaf when they are persisted, keeps the shard log that
//! the leaf writes, and answers readers from what is committed. It has no clock, socket, thread or file: it is told the
//! time, and it asks for storage with [`Output::Persist`] and [`Output::Fetch`]. Whoever runs it performs these in
//! order and reports back, at once on persistent memory or later on a disk.
//!
//! The parts, all private: `replica` (the state, and which part handles what), `appending`, `following` (the leaf and its
//! log), `learning` (how a replica catches up, and
//! members help it), `reading`, `searching` (what only the store can tell), and `mending` (what is damaged here is had
//! from another member); and what they rest on: `session` (what a retry is answered), `color` (what a number is), `readers`
//! (who waits for what), `log` (the member's copy of the shard log) and `checkpoint` (the state as bytes).

mod appending;
mod checkpoint;
mod color;
mod following;
mod learning;
mod log;
mod mending;
mod message;
#[cfg(test)]
mod planted;
mod readers;
mod reading;
mod replica;
mod searching;
mod session;
#[cfg(test)]
mod wide_tests;

pub use message::{ConnId, Damage, FetchId, Input, Output, Persist, RestoreError, Summary};
pub use replica::Replica;
