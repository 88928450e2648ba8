//! Transports: how two sides of a connection exchange messages.
//!
//! A [`Connection`] is a [`Sender`] of one kind of message and a [`Receiver`] of the other, so a task can read while
//! it, or another one, writes. There are three transports: `quic` between machines (behind the feature of that name),
//! [`tcp`], and [`in_process`], which hands the messages over as they are. All begin with the same opening words
//! ([`Hello`], [`Welcome`](crate::api::Welcome)) and the same checks, and all pass the same conformance tests. They rely
//! on a tokio runtime with its I/O and time drivers enabled.
//!
//! Messages arrive in the order in which they were sent, each once, or the connection is at its end. Both halves may be
//! used inside `select!`: what [`Sender::send`] has taken goes out with the next call if this one is dropped, and
//! [`Receiver::recv`] loses nothing.

mod accepted;
mod frame;
pub mod in_process;
pub mod link;
#[cfg(feature = "quic")]
pub mod quic;
mod stream;
pub mod tcp;

use std::io;
use std::time::Duration;

use async_trait::async_trait;

use crate::api::{Answer, Hello, Request};
use crate::wire::WireError;

pub use accepted::Accepted;
pub use frame::{FrameReader, FrameWriter};

/// How long [`close`] waits for the other side to take in the reason and leave.
pub const CLOSING_TIME: Duration = Duration::from_secs(1);

/// Why a connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The network failed.
    #[error("the connection to {peer} broke: {source}")]
    Io {
        /// The other side's address.
        peer: String,
        /// What the system said.
        source: io::Error,
    },
    /// The other side does not speak the protocol, or a message does not fit into it.
    #[error("{peer}: {source}")]
    Wire {
        /// The other side's address.
        peer: String,
        /// What is wrong.
        source: WireError,
    },
    /// The other side is gone.
    #[error("the connection to {peer} is closed")]
    Closed {
        /// The other side's address.
        peer: String,
    },
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody answers at the address.
    #[error("cannot reach a node at {address}: {source}. Is it running (`flexlog up`), and is the address right?")]
    Unreachable {
        /// As given.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The other side did not do its part in time.
    #[error("{address} did not answer within {} ms: is it a FlexLog node, and is it overloaded?", after.as_millis())]
    TimedOut {
        /// As given.
        address: String,
        /// The time it had.
        after: Duration,
    },
    /// One side does not want to talk to the other.
    #[error("{address}: no connection, {reason}")]
    Refused {
        /// The other side's address.
        address: String,
        /// In words.
        reason: String,
    },
    /// The connection broke before the opening words were done.
    #[error("no handshake: {0}")]
    Broken(#[from] NetError),
}

/// The half of a connection that messages go out by.
#[async_trait]
pub trait Sender<M>: Send {
    /// Sends all of `batch`, in order, and leaves it empty. An empty batch sends what an earlier, dropped call left.
    ///
    /// Waits while the other side does not take more, after it has taken all of `batch`. When this returns, the messages are with the transport, which
    /// is not to say that the other side has them.
    ///
    /// # Errors
    /// Every error is final for the connection.
    async fn send(&mut self, batch: &mut Vec<M>) -> Result<(), NetError>;

    /// Sends what is left, and tells the other side that nothing follows. Its `recv` then returns `false`.
    ///
    /// # Errors
    /// As [`Sender::send`].
    async fn finish(&mut self) -> Result<(), NetError>;
}

/// The half of a connection that messages come in by.
#[async_trait]
pub trait Receiver<M>: Send {
    /// Puts what has come, at least one message, at the end of `into`; waits if there is none.
    ///
    /// Returns `false`, with nothing added, when the other side has finished.
    ///
    /// # Errors
    /// Every error is final for the connection. Messages that came before what is wrong may have been added.
    async fn recv(&mut self, into: &mut Vec<M>) -> Result<bool, NetError>;

    /// Takes in and drops whatever comes until the other side has finished, or the connection broke.
    async fn discard(&mut self);
}

/// A connection whose opening words are done.
pub struct Connection<Out, In> {
    /// Messages to the other side.
    pub sender: Box<dyn Sender<Out>>,
    /// Messages from the other side.
    pub receiver: Box<dyn Receiver<In>>,
    /// The opening words of the other side.
    pub hello: Hello,
    /// The other side's address, for people.
    pub peer: String,
}

impl<Out, In> std::fmt::Debug for Connection<Out, In> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer).field("hello", &self.hello).finish_non_exhaustive()
    }
}

/// A connection as its client has it.
pub type ClientConnection = Connection<Request, Answer>;
/// A connection as its node has it.
pub type NodeConnection = Connection<Answer, Request>;

/// Makes connections to one node, as often as asked.
#[async_trait]
pub trait Connect: Send + Sync + 'static {
    /// A new connection, its opening words done.
    ///
    /// # Errors
    /// [`ConnectError`]; all but `Refused` may go well later.
    async fn connect(&self, hello: &Hello) -> Result<ClientConnection, ConnectError>;

    /// Where it connects to, for people.
    fn address(&self) -> String;
}

/// Ends a connection from the node's side, in words: sends [`Answer::Closing`], then waits up to [`CLOSING_TIME`] for
/// the client to leave. Without that wait a TCP stack may throw away what the client has not read yet.
pub async fn close(sender: &mut dyn Sender<Answer>, receiver: &mut dyn Receiver<Request>, reason: String) {
    let goodbye = async {
        if sender.send(&mut vec![Answer::Closing { reason }]).await.is_ok() && sender.finish().await.is_ok() {
            receiver.discard().await;
        }
    };
    // Whether the client heard it makes no difference: the connection ends here.
    let _ = tokio::time::timeout(CLOSING_TIME, goodbye).await;
}

#[cfg(test)]
mod tests;
