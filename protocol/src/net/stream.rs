//! What transports over a stream of bytes share: the opening words and the two halves of a connection. What is a
//! stream's own is how it fails, and [`Carrier`] says that.

use std::marker::PhantomData;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::frame::{FrameError, FrameReader, FrameWriter};
use super::{CLOSING_TIME, ConnectError, Connection, NetError, Receiver, Sender};
use crate::api::{Hello, Role, Welcome};
use crate::wire::{self, MAX_HANDSHAKE_BYTES, Message};

/// Whose stream it is, and what its errors mean.
pub(super) trait Carrier: Clone + Send + Sync + 'static {
    /// The other side's address, for people.
    fn peer(&self) -> &str;

    /// An error of the stream in the words of connections.
    fn blame(&self, error: FrameError) -> NetError;
}

/// Both directions of a stream.
pub(super) struct Halves<R, W, C> {
    reader: FrameReader<R>,
    writer: FrameWriter<W>,
    carrier: C,
}

impl<R, W, C> Halves<R, W, C>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
    C: Carrier,
{
    pub(super) fn new(read: R, write: W, carrier: C) -> Self {
        Self { reader: FrameReader::new(read, MAX_HANDSHAKE_BYTES), writer: FrameWriter::new(write), carrier }
    }

    pub(super) fn carrier(&self) -> &C {
        &self.carrier
    }

    /// The opening words of the dialing side; gives those of the other.
    pub(super) async fn dial(&mut self, hello: &Hello) -> Result<Hello, ConnectError> {
        wire::encode_hello(hello, self.writer.buffer());
        self.flush().await?;
        let frame = self.frame().await?;
        let refused = |reason| Err(ConnectError::Refused { address: self.carrier.peer().to_owned(), reason });
        match wire::decode_welcome(frame).map_err(|source| self.wire(source))? {
            Welcome::Refused(reason) => refused(reason),
            Welcome::Accepted(theirs) => match wire::mismatch(hello, &theirs) {
                Some(reason) => refused(reason),
                None if theirs.role != Role::Node => {
                    refused("what answers does not say that it is a node: check the address".to_owned())
                }
                None => Ok(theirs),
            },
        }
    }

    /// The opening words of the accepting side; gives those of the other, which `judge` has nothing against. Who is
    /// not welcome is told why.
    pub(super) async fn welcome(
        &mut self,
        hello: &Hello,
        judge: impl Fn(&Hello) -> Option<String>,
    ) -> Result<Hello, ConnectError> {
        let said = match self.frame().await {
            Ok(frame) => wire::decode_hello(frame).map_err(|source| self.wire(source)),
            Err(error) => Err(error),
        };
        match said {
            Ok(theirs) => match wire::mismatch(hello, &theirs).or_else(|| judge(&theirs)) {
                None => {
                    wire::encode_welcome(&Welcome::Accepted(hello.clone()), self.writer.buffer());
                    self.flush().await?;
                    Ok(theirs)
                }
                Some(reason) => {
                    self.refuse(reason.clone()).await?;
                    Err(ConnectError::Refused { address: self.carrier.peer().to_owned(), reason })
                }
            },
            // It may be one of us all the same, one that knows how to read this.
            Err(NetError::Wire { source, peer }) => {
                self.refuse(source.to_string()).await?;
                Err(NetError::Wire { source, peer }.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Says why there is no connection, and ends it so that the other side can still read that.
    async fn refuse(&mut self, reason: String) -> Result<(), NetError> {
        wire::encode_welcome(&Welcome::Refused(reason), self.writer.buffer());
        self.flush().await?;
        if self.writer.finish().await.is_ok() {
            let _ = timeout(CLOSING_TIME, self.reader.discard()).await;
        }
        Ok(())
    }

    fn wire(&self, source: wire::WireError) -> NetError {
        NetError::Wire { peer: self.carrier.peer().to_owned(), source }
    }

    async fn flush(&mut self) -> Result<(), NetError> {
        self.writer.flush().await.map_err(|error| self.carrier.blame(error))
    }

    async fn frame(&mut self) -> Result<bytes::Bytes, NetError> {
        let frame = self.reader.next().await.map_err(|error| self.carrier.blame(error))?;
        frame.ok_or_else(|| NetError::Closed { peer: self.carrier.peer().to_owned() })
    }

    /// The opening words are done; the other side's were `hello`.
    pub(super) fn connection<Out: Message, In: Message>(mut self, hello: Hello) -> Connection<Out, In> {
        self.reader.lift_limit();
        let peer = self.carrier.peer().to_owned();
        Connection {
            sender: Box::new(StreamSender { writer: self.writer, carrier: self.carrier.clone() }),
            receiver: Box::new(StreamReceiver {
                reader: self.reader,
                carrier: self.carrier,
                what: PhantomData::<fn() -> In>,
            }),
            hello,
            peer,
        }
    }
}

struct StreamSender<W, C> {
    writer: FrameWriter<W>,
    carrier: C,
}

#[async_trait]
impl<M: Message, W: AsyncWrite + Unpin + Send, C: Carrier> Sender<M> for StreamSender<W, C> {
    async fn send(&mut self, batch: &mut Vec<M>) -> Result<(), NetError> {
        self.writer.send(batch).await.map_err(|error| self.carrier.blame(error))
    }

    async fn finish(&mut self) -> Result<(), NetError> {
        self.writer.finish().await.map_err(|error| self.carrier.blame(error))
    }
}

struct StreamReceiver<R, C, M> {
    reader: FrameReader<R>,
    carrier: C,
    what: PhantomData<fn() -> M>,
}

#[async_trait]
impl<M: Message, R: AsyncRead + Unpin + Send, C: Carrier> Receiver<M> for StreamReceiver<R, C, M> {
    async fn recv(&mut self, into: &mut Vec<M>) -> Result<bool, NetError> {
        let before = into.len();
        while into.len() == before {
            let Some(frame) = self.reader.next().await.map_err(|error| self.carrier.blame(error))? else {
                return Ok(false);
            };
            let mut next = Some(frame);
            while let Some(frame) = next {
                let took = M::decode(frame, into).and_then(|()| self.reader.ready());
                next = took.map_err(|source| self.carrier.blame(source.into()))?;
            }
        }
        Ok(true)
    }

    async fn discard(&mut self) {
        self.reader.discard().await;
    }
}
