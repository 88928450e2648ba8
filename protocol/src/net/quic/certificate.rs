//! What a certificate says, for people and for checks. Nothing here says whether it may be believed: that is for the
//! verifiers, and for them alone.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{ASN1Time, FromDer as _, X509Certificate, X509Name};

/// A moment, in seconds since 1970, as certificates know it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Moment(pub i64);

impl Moment {
    /// By this machine's clock.
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(time) = ASN1Time::from_timestamp(self.0) else { return write!(f, "{} s after 1970", self.0) };
        let time = time.to_datetime();
        let (year, month, day) = (time.year(), u8::from(time.month()), time.day());
        write!(f, "{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", time.hour(), time.minute())
    }
}

/// Why bytes are no certificate that a cluster uses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    /// It is not X.509.
    #[error("it is no X.509 certificate")]
    Encoding,
    /// Its subject has no common name, or several.
    #[error("its subject has {0} common names, and must have one")]
    Names(usize),
}

/// What a certificate says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Certificate {
    /// The common name of its subject.
    pub name: String,
    /// The common name of who signed it.
    pub issuer: String,
    /// The host names and addresses that it is good for.
    pub hosts: Vec<String>,
    /// Valid from here.
    pub from: Moment,
    /// Valid up to here, inclusive.
    pub until: Moment,
    /// Whether it may sign others.
    pub is_ca: bool,
    /// The first 8 bytes of the SHA-256 over it, in hex: tells apart those of one name.
    pub fingerprint: String,
    /// Its public key, as `SubjectPublicKeyInfo` in DER.
    pub public_key: Vec<u8>,
}

fn common_names(name: &X509Name<'_>) -> Vec<String> {
    name.iter_common_name().map(|name| name.as_str().map_or_else(|_| "?".to_owned(), printable)).collect()
}

/// `text` without what could lead a terminal or a log astray. Certificates and reasons come from others.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).take(512).collect()
}

fn host(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(printable(name)),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(|bytes| Ipv4Addr::from(bytes).to_string());
            v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(|bytes| Ipv6Addr::from(bytes).to_string())).ok()
        }
        _ => None,
    }
}

impl Certificate {
    /// What the certificate in `der` says.
    ///
    /// # Errors
    /// [`CertificateFault`]
    pub fn parse(der: &[u8]) -> Result<Self, CertificateFault> {
        let (rest, parsed) = X509Certificate::from_der(der).map_err(|_| CertificateFault::Encoding)?;
        if !rest.is_empty() {
            return Err(CertificateFault::Encoding);
        }
        let mut names = common_names(parsed.subject());
        let (1, Some(name)) = (names.len(), names.pop()) else {
            return Err(CertificateFault::Names(common_names(parsed.subject()).len()));
        };
        let alternatives = parsed.subject_alternative_name().map_err(|_| CertificateFault::Encoding)?;
        let hosts = alternatives.iter().flat_map(|names| &names.value.general_names).filter_map(host).collect();
        Ok(Self {
            name,
            issuer: common_names(parsed.issuer()).join(", "),
            hosts,
            from: Moment(parsed.validity().not_before.timestamp()),
            until: Moment(parsed.validity().not_after.timestamp()),
            is_ca: parsed.is_ca(),
            fingerprint: fingerprint(der),
            public_key: parsed.public_key().raw.to_vec(),
        })
    }
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' (valid until {}, signed by '{}')", self.name, self.until, self.issuer)
    }
}

fn fingerprint(der: &[u8]) -> String {
    // The only suite with SHA-256 that is known by name; the hash is all that is wanted of it.
    let Some(suite) = TLS13_AES_128_GCM_SHA256.tls13() else { return String::new() };
    let hash = suite.common.hash_provider.hash(der);
    hash.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
