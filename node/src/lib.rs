//! A FlexLog node: server sockets, clocks, the embedded cluster and the flexlog command.

pub mod cli;
pub mod embedded;
pub mod engine;
mod follow;
pub mod links;
mod outlet;
pub mod process;
mod retention;
mod seat;
mod server;
mod standby;
mod stores;
mod trace;
mod transport;
