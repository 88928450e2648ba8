//! How the processes of a cluster reach one another: TCP on one host or a trusted network, QUIC with certificates on
//! both sides elsewhere. One choice for a whole cluster.

use std::net::SocketAddr;
use std::time::Duration;

use flexlog_protocol::api::Hello;
use flexlog_protocol::net::{Accepted, ConnectError, Connection, tcp};
use flexlog_protocol::wire::Message;
use tokio::net::{TcpListener, TcpStream};

#[cfg(feature = "quic")]
use flexlog_protocol::net::quic::{self, Credentials};

use crate::embedded::StartError;

/// How long a connection to another process may take, opening words included.
const PATIENCE: Duration = Duration::from_secs(5);

/// How connections are made.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    Tcp,
    #[cfg(feature = "quic")]
    Quic(Credentials),
}

impl Transport {
    /// Connects to another process; `hello` says as what.
    pub(crate) async fn dial<Out: Message, In: Message>(
        &self,
        address: &str,
        hello: &Hello,
    ) -> Result<Connection<Out, In>, ConnectError> {
        match self {
            Self::Tcp => tcp::connect_as(address, hello, PATIENCE).await,
            #[cfg(feature = "quic")]
            Self::Quic(credentials) => quic::connect_as(address, credentials, hello, PATIENCE).await,
        }
    }

    pub(crate) async fn listen(&self, address: &str) -> Result<Listener, StartError> {
        let cannot = |source| StartError::Listen { address: address.to_owned(), source };
        match self {
            Self::Tcp => Ok(Listener::Tcp(TcpListener::bind(address).await.map_err(cannot)?)),
            #[cfg(feature = "quic")]
            Self::Quic(credentials) => {
                Ok(Listener::Quic(quic::Listener::bind(address, credentials.clone()).await.map_err(cannot)?))
            }
        }
    }
}

/// Where connections come in.
pub(crate) enum Listener {
    Tcp(TcpListener),
    #[cfg(feature = "quic")]
    Quic(quic::Listener),
}

/// Somebody at the door.
pub(crate) enum Incoming {
    Tcp(TcpStream),
    #[cfg(feature = "quic")]
    Quic(quic::Incoming),
}

impl Listener {
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            #[cfg(feature = "quic")]
            Self::Quic(listener) => Some(listener.local_addr()),
        }
    }

    /// The next who comes. Nothing is lost when this is dropped.
    pub(crate) async fn accept(&self) -> std::io::Result<Incoming> {
        match self {
            Self::Tcp(listener) => Ok(Incoming::Tcp(listener.accept().await?.0)),
            #[cfg(feature = "quic")]
            Self::Quic(listener) => Ok(Incoming::Quic(listener.accept().await?)),
        }
    }
}

impl Incoming {
    /// Hears who it is within `patience`; whom `judge` gives a reason against is told that and sent away.
    pub(crate) async fn welcome(
        self,
        hello: &Hello,
        patience: Duration,
        judge: impl Fn(&Hello) -> Option<String>,
    ) -> Result<Accepted, ConnectError> {
        match self {
            Self::Tcp(stream) => tcp::accept_if(stream, hello, patience, judge).await,
            #[cfg(feature = "quic")]
            Self::Quic(incoming) => quic::accept_if(incoming, hello, patience, judge).await,
        }
    }
}
