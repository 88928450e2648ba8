//! The client's connection tasks, and the handle that everything else goes through.

mod client;
mod shared;
mod task;

use flexlog_protocol::net::Connect;

pub use client::{Builder, Client, ColorOptions};
pub(crate) use shared::{Handle, Waiting};

/// Knows how to get to a node by its address: what transport, and with which credentials.
pub trait Dialer: std::fmt::Debug + Send + Sync + 'static {
    /// What connects to the node at `address`, as the user or the cluster wrote it. Must not wait for anything.
    fn dial(&self, address: &str) -> Box<dyn Connect>;
}
