//! A FlexLog node: server sockets, clocks, the embedded cluster and the flexlog command.

pub mod cli;
pub mod embedded;
pub mod engine;
mod retention;
mod server;
