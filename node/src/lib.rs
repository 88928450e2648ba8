//! A FlexLog node: server sockets, clocks, the embedded cluster and the flexlog command.

pub mod cli;
pub mod embedded;
pub mod engine;
pub mod links;
mod retention;
mod server;
