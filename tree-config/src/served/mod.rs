//! The metadata that one process keeps, for the other processes of its cluster.
//!
//! The process with the store has a [`Server`] over it and lets it [`Server::serve`] each connection; every other
//! process has a [`Remote`], which is a [`Metadata`](crate::Metadata) too. They speak over the project's own framed
//! connections ([`flexlog_protocol::net`]), whatever carries those: who connects is the caller's business ([`Dial`]).
//! Both need a tokio runtime with its time driver.
//!
//! A [`Remote`] dials again after a break. What it promises is what the trait asks for: a commit whose answer was lost
//! is in doubt, and no read is answered before that doubt is over. For that each connection begins with the name of its
//! `Remote` and a number that grows with each dial: the server first lets the commits that earlier connections of that
//! `Remote` have under way come to their ends, and takes none from those connections afterwards.
//!
//! Bounded are the requests of a connection that are under way, its watches, and the bytes of a page.

mod link;
mod message;
mod remote;
mod server;
#[cfg(test)]
mod tests;

pub use message::{MetadataAnswer, MetadataRequest};
pub use remote::{Dial, PATIENCE, Remote};
pub use server::{ServeError, Server};

use flexlog_protocol::net::Connection;

/// A connection as the one who asks has it.
pub type AskingConnection = Connection<MetadataRequest, MetadataAnswer>;
/// A connection as the one who keeps the metadata has it.
pub type ServingConnection = Connection<MetadataAnswer, MetadataRequest>;

/// The most requests of one connection that are under way at once; more wait.
pub const MAX_IN_FLIGHT: usize = 64;
/// The most watches of one connection.
pub const MAX_WATCHES: usize = 64;
/// A page that takes more bytes than this on the wire is made shorter.
pub const PAGE_BYTES: usize = 1 << 20;
