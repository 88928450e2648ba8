//! A connection that was accepted, before the accepting side has settled what is said on it.

use std::fmt;

#[cfg(feature = "quic")]
use super::quic::QuicHalves;
use super::stream::Carrier as _;
use super::tcp::TcpHalves;
use super::{Connection, Hello};
use crate::wire::Message;

/// A connection whose opening words are done, from the side that accepted it. The other side's role says which messages
/// belong on it; what goes with which role is for the caller to know.
pub struct Accepted {
    hello: Hello,
    halves: Kind,
}

enum Kind {
    Tcp(TcpHalves),
    #[cfg(feature = "quic")]
    Quic(QuicHalves, String),
}

impl Accepted {
    pub(super) fn over_tcp(hello: Hello, halves: TcpHalves) -> Self {
        Self { hello, halves: Kind::Tcp(halves) }
    }

    #[cfg(feature = "quic")]
    pub(super) fn over_quic(hello: Hello, halves: QuicHalves, certificate_name: String) -> Self {
        Self { hello, halves: Kind::Quic(halves, certificate_name) }
    }

    /// The opening words of the side that dialed.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Its address, for people.
    #[must_use]
    pub fn peer(&self) -> &str {
        match &self.halves {
            Kind::Tcp(halves) => halves.carrier().peer(),
            #[cfg(feature = "quic")]
            Kind::Quic(halves, _) => halves.carrier().peer(),
        }
    }

    /// The name that the cluster's CA gave to it: the common name of its certificate. `None` by TCP, where nobody
    /// proves who he is.
    #[must_use]
    pub fn certificate_name(&self) -> Option<&str> {
        match &self.halves {
            Kind::Tcp(_) => None,
            #[cfg(feature = "quic")]
            Kind::Quic(_, name) => Some(name),
        }
    }

    /// The connection, for the messages that go with the other side's role.
    #[must_use]
    pub fn into_connection<Out: Message, In: Message>(self) -> Connection<Out, In> {
        match self.halves {
            Kind::Tcp(halves) => halves.connection(self.hello),
            #[cfg(feature = "quic")]
            Kind::Quic(halves, _) => halves.connection(self.hello),
        }
    }
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.certificate_name();
        f.debug_struct("Accepted")
            .field("peer", &self.peer())
            .field("hello", &self.hello)
            .field("certificate_name", &name)
            .finish_non_exhaustive()
    }
}
