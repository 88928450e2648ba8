//! Connections over TCP, without Nagle's delay: for one host, or where the operator says that the network is trusted.

use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::frame::{FrameError, FrameReader, FrameWriter};
use super::{ClientConnection, Connect, ConnectError, Connection, NetError, NodeConnection, Receiver, Sender};
use crate::api::{Hello, Welcome};
use crate::wire::{self, MAX_HANDSHAKE_BYTES, Message};

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
    let greet = async {
        let stream = TcpStream::connect(address)
            .await
            .map_err(|source| ConnectError::Unreachable { address: address.to_owned(), source })?;
        let mut halves = Halves::new(stream, address.to_owned())?;
        wire::encode_hello(hello, halves.writer.buffer());
        halves.flush().await?;
        let frame = halves.frame().await?;
        match wire::decode_welcome(frame).map_err(|source| halves.wire(source))? {
            Welcome::Refused(reason) => Err(ConnectError::Refused { address: address.to_owned(), reason }),
            Welcome::Accepted(theirs) => match wire::mismatch(hello, &theirs) {
                Some(reason) => Err(ConnectError::Refused { address: address.to_owned(), reason }),
                None => Ok(halves.connection(theirs)),
            },
        }
    };
    timeout(patience, greet)
        .await
        .unwrap_or_else(|_| Err(ConnectError::TimedOut { address: address.to_owned(), after: patience }))
}

/// A node's connection over an accepted socket: hears the client's opening words and answers them within `patience`.
/// A client that is not welcome is told why.
///
/// # Errors
/// [`ConnectError`]. All of them are about this client alone.
pub async fn accept(stream: TcpStream, hello: &Hello, patience: Duration) -> Result<NodeConnection, ConnectError> {
    let peer = stream.peer_addr().map_or_else(|_| "a client".to_owned(), |address| address.to_string());
    let greet = async {
        let mut halves = Halves::new(stream, peer.clone())?;
        let said = match halves.frame().await {
            Ok(frame) => wire::decode_hello(frame).map_err(|source| halves.wire(source)),
            Err(error) => Err(error),
        };
        let answer = match &said {
            Ok(theirs) => match wire::mismatch(hello, theirs) {
                None => Welcome::Accepted(hello.clone()),
                Some(reason) => Welcome::Refused(reason),
            },
            // It may be a client all the same, one that knows how to read this.
            Err(NetError::Wire { source, .. }) => Welcome::Refused(source.to_string()),
            Err(_) => return Err(said.err().map_or(closed(&peer), Into::into)),
        };
        wire::encode_welcome(&answer, halves.writer.buffer());
        halves.flush().await?;
        match (answer, said) {
            (Welcome::Accepted(_), Ok(theirs)) => Ok(halves.connection(theirs)),
            (Welcome::Refused(reason), said) => {
                halves.leave().await;
                Err(match said {
                    Ok(_) => ConnectError::Refused { address: peer.clone(), reason },
                    Err(error) => error.into(),
                })
            }
            (Welcome::Accepted(_), Err(error)) => Err(error.into()),
        }
    };
    timeout(patience, greet)
        .await
        .unwrap_or_else(|_| Err(ConnectError::TimedOut { address: peer.clone(), after: patience }))
}

fn closed(peer: &str) -> ConnectError {
    ConnectError::Broken(NetError::Closed { peer: peer.to_owned() })
}

fn blame(peer: &str, error: FrameError) -> NetError {
    let peer = peer.to_owned();
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

/// Both directions of a socket before the opening words are done.
struct Halves {
    reader: FrameReader<OwnedReadHalf>,
    writer: FrameWriter<OwnedWriteHalf>,
    peer: String,
}

impl Halves {
    fn new(stream: TcpStream, peer: String) -> Result<Self, NetError> {
        stream.set_nodelay(true).map_err(|source| NetError::Io { peer: peer.clone(), source })?;
        let (read, write) = stream.into_split();
        Ok(Self { reader: FrameReader::new(read, MAX_HANDSHAKE_BYTES), writer: FrameWriter::new(write), peer })
    }

    fn wire(&self, source: wire::WireError) -> NetError {
        NetError::Wire { peer: self.peer.clone(), source }
    }

    async fn flush(&mut self) -> Result<(), NetError> {
        self.writer.flush().await.map_err(|error| blame(&self.peer, error))
    }

    async fn frame(&mut self) -> Result<bytes::Bytes, NetError> {
        let frame = self.reader.next().await.map_err(|error| blame(&self.peer, error))?;
        frame.ok_or_else(|| NetError::Closed { peer: self.peer.clone() })
    }

    /// Ends the connection so that the other side can still read what was said.
    async fn leave(&mut self) {
        if self.writer.finish().await.is_ok() {
            let _ = timeout(super::CLOSING_TIME, self.reader.discard()).await;
        }
    }

    fn connection<Out: Message, In: Message>(mut self, hello: Hello) -> Connection<Out, In> {
        self.reader.lift_limit();
        Connection {
            sender: Box::new(TcpSender { writer: self.writer, peer: self.peer.clone() }),
            receiver: Box::new(TcpReceiver {
                reader: self.reader,
                peer: self.peer.clone(),
                what: PhantomData::<fn() -> In>,
            }),
            hello,
            peer: self.peer,
        }
    }
}

struct TcpSender {
    writer: FrameWriter<OwnedWriteHalf>,
    peer: String,
}

#[async_trait]
impl<M: Message> Sender<M> for TcpSender {
    async fn send(&mut self, batch: &mut Vec<M>) -> Result<(), NetError> {
        self.writer.send(batch).await.map_err(|error| blame(&self.peer, error))
    }

    async fn finish(&mut self) -> Result<(), NetError> {
        self.writer.finish().await.map_err(|error| blame(&self.peer, error))
    }
}

struct TcpReceiver<M> {
    reader: FrameReader<OwnedReadHalf>,
    peer: String,
    what: PhantomData<fn() -> M>,
}

#[async_trait]
impl<M: Message> Receiver<M> for TcpReceiver<M> {
    async fn recv(&mut self, into: &mut Vec<M>) -> Result<bool, NetError> {
        let before = into.len();
        while into.len() == before {
            let Some(frame) = self.reader.next().await.map_err(|error| blame(&self.peer, error))? else {
                return Ok(false);
            };
            let mut next = Some(frame);
            while let Some(frame) = next {
                let took = M::decode(frame, into).and_then(|()| self.reader.ready());
                next = took.map_err(|source| NetError::Wire { peer: self.peer.clone(), source })?;
            }
        }
        Ok(true)
    }

    async fn discard(&mut self) {
        self.reader.discard().await;
    }
}
