//! Connections over QUIC, for nodes and clients on different machines: TLS 1.3, and both sides show a certificate of
//! the cluster's own CA.
//!
//! A connection carries one stream in both directions, with the same frames and the same opening words as TCP. Whoever
//! has no good certificate is refused, and told why: so is the side that looked at it ([`ConnectError`] on both sides).
//! A port that listens by QUIC listens by TCP too, to tell those who come that way; a side that dials by QUIC and is
//! not answered asks by TCP whether there is anybody. There is no 0-RTT and no
//! resumption.

pub mod certificate;
pub mod credentials;
#[cfg(test)]
pub(super) mod tests;
mod verify;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use quinn::{ConnectionError, Endpoint, RecvStream, SendStream, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::io::AsyncWrite;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::certificate::Certificate;
pub use self::credentials::{Credentials, CredentialsError};
use super::frame::FrameError;
use super::stream::{Carrier, Halves};
use super::{
    Accepted, CLOSING_TIME, ClientConnection, Connect, ConnectError, Connection, NetError, NodeConnection, tcp,
};
use crate::api::Hello;
use crate::wire::{self, Message};

/// The protocol, as TLS names it.
const ALPN: &[u8] = b"flexlog/1";
/// Bytes that may be on their way in each direction, and that each side keeps for one that does not read: 4 MiB.
const WINDOW_BYTES: u32 = 4 << 20;
/// A side that has nothing to say says so this often.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// A side that was not heard for this long is gone.
const IDLE: Duration = Duration::from_secs(30);
/// Connections that may wait to be accepted.
const BACKLOG: usize = 1024;
/// Addresses that a name is tried at, and the head start of each before the next.
const ADDRESSES: (usize, Duration) = (4, Duration::from_millis(100));

fn transport() -> Arc<quinn::TransportConfig> {
    let mut transport = quinn::TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32(WINDOW_BYTES))
        .receive_window(VarInt::from_u32(WINDOW_BYTES))
        .send_window(WINDOW_BYTES.into())
        .send_fairness(false)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(VarInt::from_u32(IDLE.as_millis() as u32).into()));
    Arc::new(transport)
}

/// Connects to a node by QUIC.
#[derive(Debug, Clone)]
pub struct Connector {
    address: String,
    credentials: Credentials,
    patience: Duration,
}

impl Connector {
    /// Connects to `address`, `host:port`, whose host the node's certificate must name; connection and opening words
    /// together may take `patience`.
    pub fn new(address: impl Into<String>, credentials: Credentials, patience: Duration) -> Self {
        Self { address: address.into(), credentials, patience }
    }
}

#[async_trait]
impl Connect for Connector {
    async fn connect(&self, hello: &Hello) -> Result<ClientConnection, ConnectError> {
        connect_as(&self.address, &self.credentials, hello, self.patience).await
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

/// A connection to the node at `address`, `host:port`, within `patience`. What is said on it goes by the role in
/// `hello`, and the node has to know it as the same.
///
/// # Errors
/// [`ConnectError`]; all but `Refused` may go well later.
pub async fn connect_as<Out: Message, In: Message>(
    address: &str,
    credentials: &Credentials,
    hello: &Hello,
    patience: Duration,
) -> Result<Connection<Out, In>, ConnectError> {
    // The last part is for finding out why there is no answer.
    let spare = (patience / 4).min(Duration::from_secs(1));
    let greet = async {
        let (connection, carrier) = dial(address, credentials).await?;
        let spoken = async {
            let (write, read) = connection.open_bi().await.map_err(|error| carrier.lost(&error))?;
            let mut halves = Halves::new(read, Lingering::new(write), carrier.clone());
            let theirs = halves.dial(hello).await?;
            Ok(halves.connection(theirs))
        };
        // This side may be refused only now.
        spoken.await.map_err(|error| carrier.why().unwrap_or(error))
    };
    match timeout(patience - spare, greet).await {
        Ok(done) => done,
        Err(_) => Err(silence(address, patience, spare).await),
    }
}

/// Why nobody answers by QUIC, as far as `spare` is enough to find out.
async fn silence(address: &str, patience: Duration, spare: Duration) -> ConnectError {
    match timeout(spare, TcpStream::connect(address)).await {
        Ok(Ok(_)) => ConnectError::Refused {
            address: address.to_owned(),
            reason:
                "nobody answers by QUIC, and somebody does by TCP: is it a node without certificates (connect without \
                     them), or does something in between hold UDP back?"
                    .to_owned(),
        },
        Ok(Err(source)) if source.kind() == io::ErrorKind::ConnectionRefused => {
            ConnectError::Unreachable { address: address.to_owned(), source }
        }
        _ => ConnectError::TimedOut { address: address.to_owned(), after: patience },
    }
}

/// The host of `host:port`, without the brackets of an IPv6 address.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// The first of the addresses behind `address` that shows a good certificate.
async fn dial(address: &str, credentials: &Credentials) -> Result<(quinn::Connection, Quic), ConnectError> {
    let unreachable = |source| ConnectError::Unreachable { address: address.to_owned(), source };
    let found = tokio::net::lookup_host(address).await.map_err(unreachable)?;
    let mut attempts = JoinSet::new();
    for (nth, socket) in (0..).zip(found.take(ADDRESSES.0)) {
        let (peer, host) = (address.to_owned(), host(address).to_owned());
        let credentials = credentials.clone();
        attempts.spawn(async move {
            tokio::time::sleep(ADDRESSES.1 * nth).await;
            let unreachable = |source| ConnectError::Unreachable { address: peer.clone(), source };
            let endpoint = Endpoint::client(unspecified(socket)).map_err(unreachable)?;
            let connecting = endpoint
                .connect_with(credentials.client(), socket, &host)
                .map_err(|error| unreachable(io::Error::new(io::ErrorKind::InvalidInput, error.to_string())))?;
            match connecting.await {
                Ok(connection) => {
                    let carrier = Quic { peer, credentials, connection: connection.clone() };
                    Ok((connection, carrier))
                }
                Err(error) => Err(trouble(&peer, &credentials, &error)),
            }
        });
    }
    let nowhere = || unreachable(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    let mut first = None;
    while let Some(ended) = attempts.join_next().await {
        match ended {
            Ok(Ok(connected)) => return Ok(connected),
            // Somebody is there, and will not do: the others may be silent for long.
            Ok(Err(error @ ConnectError::Refused { .. })) => return Err(error),
            Ok(Err(error)) => first = first.or(Some(error)),
            // Attempts do not panic, and are not aborted while this waits for them.
            Err(_) => {}
        }
    }
    Err(first.unwrap_or_else(nowhere))
}

/// Where to dial `to` from.
fn unspecified(to: SocketAddr) -> SocketAddr {
    let any = if to.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(any, 0)
}

/// A port that listens by QUIC.
#[derive(Debug)]
pub struct Listener {
    endpoint: Endpoint,
    credentials: Credentials,
    local: SocketAddr,
    /// For those who come by TCP; `None` where somebody else has that port.
    signpost: Option<TcpListener>,
}

/// Somebody who has come to a [`Listener`], about whom nothing is known yet. [`accept`] finds out.
#[derive(Debug)]
pub struct Incoming(Kind);

#[derive(Debug)]
enum Kind {
    Quic(Box<quinn::Incoming>, Credentials),
    Tcp(TcpStream),
}

impl Listener {
    /// Listens at `address`, `host:port`; port 0 takes a free one.
    ///
    /// # Errors
    /// Those of the system, with the address.
    pub async fn bind(address: &str, credentials: Credentials) -> io::Result<Self> {
        let cannot =
            |error: io::Error| io::Error::new(error.kind(), format!("cannot listen by QUIC at {address}: {error}"));
        let found = tokio::net::lookup_host(address).await.map_err(cannot)?.next();
        let wanted = found.ok_or_else(|| cannot(io::Error::other("the name has no address")))?;
        let endpoint = Endpoint::server(credentials.server(), wanted).map_err(cannot)?;
        let local = endpoint.local_addr().map_err(cannot)?;
        let signpost = TcpListener::bind(local).await.ok();
        Ok(Self { endpoint, credentials, local, signpost })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next who comes. Nothing is lost when this is dropped.
    ///
    /// # Errors
    /// The port is lost, or the system is out of something for the moment: wait a little before the next call.
    pub async fn accept(&self) -> io::Result<Incoming> {
        let by_tcp = async {
            match &self.signpost {
                Some(signpost) => signpost.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            incoming = self.endpoint.accept() => match incoming {
                Some(incoming) => Ok(Incoming(Kind::Quic(Box::new(incoming), self.credentials.clone()))),
                None => Err(io::Error::other(format!("the UDP port {} is lost: start the node again", self.local))),
            },
            by_tcp = by_tcp => by_tcp.map(|(stream, _)| Incoming(Kind::Tcp(stream))),
        }
    }
}

/// Who has come: checks the certificate, hears the opening words and answers them, all within `patience`. Who is not
/// welcome is told why.
///
/// # Errors
/// [`ConnectError`]. All of them are about this connection alone.
pub async fn accept(incoming: Incoming, hello: &Hello, patience: Duration) -> Result<Accepted, ConnectError> {
    accept_if(incoming, hello, patience, |_| None).await
}

/// As [`accept`], and whom `judge` gives a reason against is not welcome either.
///
/// # Errors
/// As those of [`accept`].
pub async fn accept_if(
    incoming: Incoming,
    hello: &Hello,
    patience: Duration,
    judge: impl Fn(&Hello) -> Option<String>,
) -> Result<Accepted, ConnectError> {
    let (incoming, credentials) = match incoming.0 {
        Kind::Quic(incoming, credentials) => (incoming, credentials),
        Kind::Tcp(stream) => {
            let words = |_: &Hello| {
                Some(
                    "it came by plain TCP, and this port is for QUIC: connect with certificates (--certs DIR)"
                        .to_owned(),
                )
            };
            return tcp::accept_if(stream, hello, patience, words).await;
        }
    };
    let peer = incoming.remote_address().to_string();
    let greet = async {
        let connected = async { incoming.accept()?.await }.await;
        let connection = connected.map_err(|error| trouble(&peer, &credentials, &error))?;
        let name = name_of(&peer, &connection)?;
        let carrier = Quic { peer: peer.clone(), credentials, connection: connection.clone() };
        let (write, read) = connection.accept_bi().await.map_err(|error| carrier.lost(&error))?;
        let mut halves = Halves::new(read, Lingering::new(write), carrier.clone());
        let theirs = halves.welcome(hello, judge).await.map_err(|error| match error {
            ConnectError::Broken(error) => carrier.why().unwrap_or(ConnectError::Broken(error)),
            other => other,
        })?;
        Ok(Accepted::over_quic(theirs, halves, name))
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
    incoming: Incoming,
    hello: &Hello,
    patience: Duration,
) -> Result<NodeConnection, ConnectError> {
    Ok(accept_if(incoming, hello, patience, wire::not_a_client).await?.into_connection())
}

/// The name in the certificate that the other side has shown, and that TLS has checked.
fn name_of(peer: &str, connection: &quinn::Connection) -> Result<String, ConnectError> {
    let shown = connection.peer_identity().and_then(|shown| shown.downcast::<Vec<CertificateDer<'static>>>().ok());
    let refused = |reason| ConnectError::Refused { address: peer.to_owned(), reason };
    let Some(der) = shown.as_ref().and_then(|shown| shown.first()) else {
        return Err(refused("it shows no certificate".to_owned()));
    };
    match Certificate::parse(der) {
        Ok(certificate) => Ok(certificate.name),
        Err(fault) => {
            let reason = format!("its certificate names nobody: {fault}");
            connection.close(VarInt::from_u32(0), reason.as_bytes());
            Err(refused(reason))
        }
    }
}

/// Why there is no connection, by what QUIC says.
fn trouble(peer: &str, credentials: &Credentials, error: &ConnectionError) -> ConnectError {
    match verify::refusal(error, credentials.certificate(), credentials.trust()) {
        Some(reason) => ConnectError::Refused { address: peer.to_owned(), reason },
        None => lost(peer, error).into(),
    }
}

/// What QUIC says of a connection that is at its end.
fn lost(peer: &str, error: &ConnectionError) -> NetError {
    let peer = peer.to_owned();
    match error {
        ConnectionError::ApplicationClosed(close) if close.reason.is_empty() => NetError::Closed { peer },
        ConnectionError::LocallyClosed | ConnectionError::Reset => NetError::Closed { peer },
        ConnectionError::TimedOut => {
            let words = format!("nothing was heard for {} s", IDLE.as_secs());
            NetError::Io { peer, source: io::Error::new(io::ErrorKind::TimedOut, words) }
        }
        other => NetError::Io { peer, source: io::Error::other(certificate::printable(&other.to_string())) },
    }
}

/// Both directions of the stream.
pub(super) type QuicHalves = Halves<RecvStream, Lingering, Quic>;

/// How the stream fails.
#[derive(Debug, Clone)]
pub(super) struct Quic {
    peer: String,
    credentials: Credentials,
    connection: quinn::Connection,
}

impl Quic {
    fn lost(&self, error: &ConnectionError) -> ConnectError {
        trouble(&self.peer, &self.credentials, error)
    }

    /// Why the connection ended, if it was for a certificate.
    fn why(&self) -> Option<ConnectError> {
        let error = self.connection.close_reason()?;
        let reason = verify::refusal(&error, self.credentials.certificate(), self.credentials.trust())?;
        Some(ConnectError::Refused { address: self.peer.clone(), reason })
    }
}

impl Carrier for Quic {
    fn peer(&self) -> &str {
        &self.peer
    }

    fn blame(&self, error: FrameError) -> NetError {
        let peer = self.peer.clone();
        match error {
            FrameError::Wire(source) => NetError::Wire { peer, source },
            FrameError::Io(source) => match self.connection.close_reason() {
                Some(reason) => lost(&self.peer, &reason),
                // The other side has let go of the stream.
                None if source.kind() == io::ErrorKind::ConnectionReset => NetError::Closed { peer },
                None => NetError::Io { peer, source },
            },
        }
    }
}

/// The half to write to. When it is dropped, what was written still goes out for a while, as it does by TCP: without
/// that, QUIC would throw it away together with the connection.
#[derive(Debug)]
pub(super) struct Lingering(SendStream);

impl Lingering {
    fn new(stream: SendStream) -> Self {
        Self(stream)
    }
}

impl AsyncWrite for Lingering {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.0), context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.0), context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.0), context)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        // It may have been finished before, and the connection may be gone.
        let _ = self.0.finish();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let taken_in = self.0.stopped();
            runtime.spawn(async move {
                let _ = timeout(CLOSING_TIME, taken_in).await;
            });
        }
    }
}
