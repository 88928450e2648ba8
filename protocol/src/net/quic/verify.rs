//! Whether the other side's certificate is good, decided by webpki; and when it is not, why, in words for both sides.
//!
//! TLS tells a side that was refused only the number of an alert, and QUIC carries a reason beside it. The reasons of a
//! FlexLog node go there whole, after a mark by which the other side knows them. In TLS 1.3 the dialing side is done
//! before the accepting side has looked at its certificate, so a refusal may reach it with the first thing it reads.

use std::fmt;
use std::sync::Arc;

use quinn::{ConnectionError, TransportErrorCode};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme,
};

use super::certificate::{Certificate, Moment, printable};
use super::credentials::provider;

/// What stands before the words of a FlexLog node in a reason.
const MARK: &str = "flexlog: ";
/// Bytes that a reason may have, to fit into one packet of the handshake.
const MAX_WORDS: usize = 800;
/// Hosts of a certificate that are named.
const MAX_HOSTS: usize = 8;

/// The CAs that a side believes, and how they are called.
#[derive(Debug, Clone)]
pub(super) struct Trust {
    roots: Arc<RootCertStore>,
    name: String,
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Trust {
    /// Believes those who have a certificate of one of `cas`.
    pub(super) fn new(cas: &[(CertificateDer<'static>, Certificate)]) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        for (der, _) in cas {
            roots.add(der.clone())?;
        }
        let names: Vec<_> = cas.iter().map(|(_, ca)| format!("'{}' (SHA-256 {}…)", ca.name, ca.fingerprint)).collect();
        Ok(Self { roots: Arc::new(roots), name: names.join(", ") })
    }

    pub(super) fn of_servers(&self) -> Result<Arc<ServerVerifier>, Error> {
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::clone(&self.roots), provider()).build();
        let inner = inner.map_err(|error| Error::General(error.to_string()))?;
        Ok(Arc::new(ServerVerifier { inner, trust: self.clone() }))
    }

    pub(super) fn of_clients(&self) -> Result<Arc<ClientVerifier>, Error> {
        let inner = WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.roots), provider()).build();
        let inner = inner.map_err(|error| Error::General(error.to_string()))?;
        Ok(Arc::new(ClientVerifier { inner, trust: self.clone() }))
    }

    /// Why `der` is not good, in words that do for the side that shows it and for the one that looks.
    pub(super) fn explain(&self, der: &[u8], error: &CertificateError) -> String {
        let shown = match Certificate::parse(der) {
            Ok(shown) => shown,
            Err(fault) => return format!("the certificate that was shown cannot be used: {fault}"),
        };
        let name = &shown.name;
        match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => format!(
                "the certificate {shown} has expired; now it is {}: renew it (`flexlog cert issue {name} --renew`)",
                Moment::now()
            ),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => format!(
                "the certificate {shown} is valid from {} only, and now it is {}: set the clocks, or issue it anew \
                 (`flexlog cert issue {name} --renew`)",
                shown.from,
                Moment::now()
            ),
            CertificateError::NotValidForName => self.wrong_host(&shown, "this address"),
            CertificateError::NotValidForNameContext { expected, .. } => {
                self.wrong_host(&shown, &printable(&expected.to_str()))
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
                "the certificate {shown} is not of the expected CA {self}: both sides need certificates of one CA \
                 (`flexlog cert issue {name}` in the folder of that CA)"
            ),
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => format!(
                "the certificate {shown} is not made for this end of a connection: make it by `flexlog cert issue {name}`"
            ),
            other => format!("the certificate {shown} is not good for CA {self}: {}", printable(&other.to_string())),
        }
    }

    fn wrong_host(&self, shown: &Certificate, expected: &str) -> String {
        let mut hosts = shown.hosts.iter().take(MAX_HOSTS).cloned().collect::<Vec<_>>().join(", ");
        if shown.hosts.len() > MAX_HOSTS {
            hosts.push_str(", …");
        }
        format!(
            "the certificate {shown} is for the hosts [{hosts}], and the address says {expected}: check the address, or \
             add the host (`flexlog cert issue {} --renew --host {expected}`, with the other hosts again)",
            shown.name
        )
    }

    fn in_words(&self, der: &[u8], error: Error) -> Error {
        match error {
            Error::InvalidCertificate(error) => {
                let words = Words(self.explain(der, &error));
                Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(words))))
            }
            other => other,
        }
    }
}

/// Words on their way into a reason: what is shown of them, whichever way rustls shows it, begins with the mark.
struct Words(String);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = (0..=MAX_WORDS.min(self.0.len())).rev().find(|end| self.0.is_char_boundary(*end)).unwrap_or(0);
        write!(f, "{MARK}{}", &self.0[..end])
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Words {}

/// Looks at the certificate of the side that was dialed.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    inner: Arc<WebPkiServerVerifier>,
    trust: Trust,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        verified.map_err(|error| self.trust.in_words(end_entity, error))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Looks at the certificate of the side that dialed; there has to be one.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    trust: Trust,
}

impl ClientVerifier {
    /// The same check, its errors as webpki has them.
    pub(super) fn webpki(&self) -> &dyn ClientCertVerifier {
        &*self.inner
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        true
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now);
        verified.map_err(|error| self.trust.in_words(end_entity, error))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// The number of the TLS alert in an error code of QUIC, if it is one.
fn alert(code: TransportErrorCode) -> Option<u8> {
    // RFC 9001, section 4.8: 0x100 and the alert.
    u64::from(code).checked_sub(0x100).and_then(|alert| u8::try_from(alert).ok())
}

/// The words of a FlexLog node in a reason.
fn marked(reason: &str) -> Option<String> {
    let (_, words) = reason.split_once(MARK)?;
    // What is left of the wrapping around them.
    Some(printable_words(words.trim_end_matches("))")))
}

fn printable_words(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_WORDS).collect()
}

// TLS alerts, RFC 8446 section 6.
const HANDSHAKE_FAILURE: u8 = 40;
const BAD_CERTIFICATE: u8 = 42;
const ACCESS_DENIED: u8 = 49;
const CERTIFICATE_REQUIRED: u8 = 116;
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// Why two sides do not trust each other, for the one that shows the certificate `own` and believes `trust`; `None` if
/// `error` is about something else.
pub(super) fn refusal(error: &ConnectionError, own: &Certificate, trust: &Trust) -> Option<String> {
    match error {
        // This side looked.
        ConnectionError::TransportError(error) => {
            let alert = alert(error.code)?;
            Some(marked(&error.reason).unwrap_or_else(|| match alert {
                CERTIFICATE_REQUIRED => format!(
                    "it shows no certificate; expected is one of the CA {trust} (`flexlog cert issue NAME` makes one)"
                ),
                NO_APPLICATION_PROTOCOL => "it speaks QUIC, but not FlexLog's protocol: check the address".to_owned(),
                _ => format!("TLS failed: {}", printable(&error.reason)),
            }))
        }
        // The other side looked.
        ConnectionError::ConnectionClosed(close) => {
            let alert = alert(close.error_code)?;
            let reason = String::from_utf8_lossy(&close.reason);
            let words = marked(&reason).unwrap_or_else(|| match alert {
                CERTIFICATE_REQUIRED => {
                    "a certificate is required, and none was shown (`flexlog cert issue NAME` makes one)".to_owned()
                }
                NO_APPLICATION_PROTOCOL => "it speaks QUIC, but not FlexLog's protocol: check the address".to_owned(),
                HANDSHAKE_FAILURE | BAD_CERTIFICATE..=ACCESS_DENIED => {
                    format!("the certificate is not accepted (TLS alert {alert}) {}", printable(&reason))
                }
                _ => format!("TLS failed (alert {alert}) {}", printable(&reason)),
            });
            Some(format!("the other side refused: {words}. (This side shows {own} and trusts the CA {trust}.)"))
        }
        ConnectionError::VersionMismatch => {
            Some("it speaks no version of QUIC that this side does: check the address".to_owned())
        }
        _ => None,
    }
}
