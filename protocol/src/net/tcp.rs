//! Connections over TCP, without Nagle's delay: for one host, or where the operator says that the network is trusted.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::frame::FrameError;
use super::stream::{Carrier, Halves};
use super::{Accepted, ClientConnection, Connect, ConnectError, Connection, NetError, NodeConnection};
use crate::api::Hello;
use crate::wire::{self, Message};

/// Connects to a node by TCP.
#[derive(Debug, Clone)]
pub struct Connector {
    address: String,
    patience: Duration,
}

impl Connector {
    /// Connects to `address`, `host:port`; connection and opening words together may take `patience`.
    pub fn new(address: impl Into<String>, patience: Duration) -> Self {
        Self { address: address.into(), patience }
    }
}

#[async_trait]
impl Connect for Connector {
    async fn connect(&self, hello: &Hello) -> Result<ClientConnection, ConnectError> {
        connect(&self.address, hello, self.patience).await
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

/// A client's connection to the node at `address`, `host:port`, within `patience`.
///
/// # Errors
/// [`ConnectError`]; all but `Refused` may go well later.
pub async fn connect(address: &str, hello: &Hello, patience: Duration) -> Result<ClientConnection, ConnectError> {
    connect_as(address, hello, patience).await
}

/// A connection to the node at `address`, `host:port`, within `patience`. What is said on it goes by the role in
/// `hello`, and the node has to know it as the same.
///
/// # Errors
/// [`ConnectError`]; all but `Refused` may go well later.
pub async fn connect_as<Out: Message, In: Message>(
    address: &str,
    hello: &Hello,
    patience: Duration,
) -> Result<Connection<Out, In>, ConnectError> {
    let greet = async {
        let stream = TcpStream::connect(address)
            .await
            .map_err(|source| ConnectError::Unreachable { address: address.to_owned(), source })?;
        let mut halves = halves(stream, address.to_owned())?;
        let theirs = halves.dial(hello).await?;
        Ok(halves.connection(theirs))
    };
    timeout(patience, greet)
        .await
        .unwrap_or_else(|_| Err(ConnectError::TimedOut { address: address.to_owned(), after: patience }))
}

/// What dialed an accepted socket: hears its opening words and answers them within `patience`. Who is not welcome is
/// told why.
///
/// # Errors
/// [`ConnectError`]. All of them are about this connection alone.
pub async fn accept(stream: TcpStream, hello: &Hello, patience: Duration) -> Result<Accepted, ConnectError> {
    accept_if(stream, hello, patience, |_| None).await
}

/// As [`accept`], and whom `judge` gives a reason against is not welcome either.
///
/// # Errors
/// As those of [`accept`].
pub async fn accept_if(
    stream: TcpStream,
    hello: &Hello,
    patience: Duration,
    judge: impl Fn(&Hello) -> Option<String>,
) -> Result<Accepted, ConnectError> {
    let peer = peer_of(&stream);
    let greet = async {
        let mut halves = halves(stream, peer.clone())?;
        let theirs = halves.welcome(hello, judge).await?;
        Ok(Accepted::over_tcp(theirs, halves))
    };
    timeout(patience, greet)
        .await
        .unwrap_or_else(|_| Err(ConnectError::TimedOut { address: peer.clone(), after: patience }))
}

/// As [`accept`] where only clients are served.
///
/// # Errors
/// As those of [`accept`].
pub async fn accept_client(
    stream: TcpStream,
    hello: &Hello,
    patience: Duration,
) -> Result<NodeConnection, ConnectError> {
    Ok(accept_if(stream, hello, patience, wire::not_a_client).await?.into_connection())
}

fn peer_of(stream: &TcpStream) -> String {
    stream.peer_addr().map_or_else(|_| "a client".to_owned(), |address| address.to_string())
}

/// Both directions of a socket.
pub(super) type TcpHalves = Halves<OwnedReadHalf, OwnedWriteHalf, Tcp>;

fn halves(stream: TcpStream, peer: String) -> Result<TcpHalves, NetError> {
    stream.set_nodelay(true).map_err(|source| NetError::Io { peer: peer.clone(), source })?;
    let (read, write) = stream.into_split();
    Ok(Halves::new(read, write, Tcp { peer }))
}

/// How a socket fails.
#[derive(Debug, Clone)]
pub(super) struct Tcp {
    peer: String,
}

impl Carrier for Tcp {
    fn peer(&self) -> &str {
        &self.peer
    }

    fn blame(&self, error: FrameError) -> NetError {
        let peer = self.peer.clone();
        match error {
            // A reset is how TCP says that the other side is gone.
            FrameError::Io(source)
                if matches!(source.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) =>
            {
                NetError::Closed { peer }
            }
            FrameError::Io(source) => NetError::Io { peer, source },
            FrameError::Wire(source) => NetError::Wire { peer, source },
        }
    }
}
