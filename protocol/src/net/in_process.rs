//! Connections within one process: bounded channels that carry the messages as they are, nothing encoded.

use std::collections::VecDeque;
use std::io;

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::{ClientConnection, Connect, ConnectError, Connection, NetError, NodeConnection, Receiver, Sender};
use crate::api::Hello;
use crate::wire;

/// Messages that may wait in each direction of a connection.
pub const MESSAGES: usize = 1024;
/// Connections that may wait to be accepted.
pub const BACKLOG: usize = 64;

/// A place to connect to in this process: `name` is for people, `hello` are the node's opening words.
#[must_use]
pub fn listen(name: impl Into<String>, hello: Hello) -> (Connector, Listener) {
    let (incoming, accepted) = mpsc::channel(BACKLOG);
    (Connector { name: name.into(), hello, incoming }, Listener { accepted })
}

/// Connects to the node that holds the [`Listener`].
#[derive(Debug, Clone)]
pub struct Connector {
    name: String,
    hello: Hello,
    incoming: mpsc::Sender<NodeConnection>,
}

/// Gives out the connections that clients made, as long as there is a [`Connector`].
#[derive(Debug)]
pub struct Listener {
    accepted: mpsc::Receiver<NodeConnection>,
}

impl Listener {
    /// The next connection; `None` when there is no [`Connector`] left.
    pub async fn accept(&mut self) -> Option<NodeConnection> {
        self.accepted.recv().await
    }
}

#[async_trait]
impl Connect for Connector {
    async fn connect(&self, hello: &Hello) -> Result<ClientConnection, ConnectError> {
        let refused = |reason| ConnectError::Refused { address: self.name.clone(), reason };
        if let Some(reason) = wire::mismatch(&self.hello, hello).or_else(|| wire::not_a_client(hello)) {
            return Err(refused(reason));
        }
        let (requests, node_in) = mpsc::channel(MESSAGES);
        let (answers, client_in) = mpsc::channel(MESSAGES);
        let node = connection(answers, node_in, hello.clone(), "a client in this process".to_owned());
        if self.incoming.send(node).await.is_err() {
            let source = io::Error::new(io::ErrorKind::ConnectionRefused, "the node in this process has stopped");
            return Err(ConnectError::Unreachable { address: self.name.clone(), source });
        }
        Ok(connection(requests, client_in, self.hello.clone(), self.name.clone()))
    }

    fn address(&self) -> String {
        self.name.clone()
    }
}

fn connection<Out: Send + 'static, In: Send + 'static>(
    out: mpsc::Sender<Out>,
    messages: mpsc::Receiver<In>,
    hello: Hello,
    peer: String,
) -> Connection<Out, In> {
    Connection {
        sender: Box::new(ChannelSender { out: Some(out), left: VecDeque::new(), peer: peer.clone() }),
        receiver: Box::new(ChannelReceiver { messages }),
        hello,
        peer,
    }
}

struct ChannelSender<M> {
    /// Gone when the side has finished.
    out: Option<mpsc::Sender<M>>,
    /// Taken by a call that was dropped while it waited.
    left: VecDeque<M>,
    peer: String,
}

#[async_trait]
impl<M: Send + 'static> Sender<M> for ChannelSender<M> {
    async fn send(&mut self, batch: &mut Vec<M>) -> Result<(), NetError> {
        let closed = || NetError::Closed { peer: self.peer.clone() };
        let out = self.out.as_ref().ok_or_else(closed)?;
        self.left.extend(batch.drain(..));
        while let Some(message) = self.left.pop_front() {
            match out.try_send(message) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Closed(_)) => return Err(closed()),
                Err(mpsc::error::TrySendError::Full(message)) => {
                    self.left.push_front(message);
                    // Only now wait: what is taken stays in `left` if this is dropped here.
                    drop(out.reserve().await.map_err(|_| closed())?);
                }
            }
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), NetError> {
        if self.out.is_some() {
            self.send(&mut Vec::new()).await?;
            self.out = None;
        }
        Ok(())
    }
}

struct ChannelReceiver<M> {
    messages: mpsc::Receiver<M>,
}

#[async_trait]
impl<M: Send + 'static> Receiver<M> for ChannelReceiver<M> {
    async fn recv(&mut self, into: &mut Vec<M>) -> Result<bool, NetError> {
        Ok(self.messages.recv_many(into, MESSAGES).await > 0)
    }

    async fn discard(&mut self) {
        while self.messages.recv().await.is_some() {}
    }
}
