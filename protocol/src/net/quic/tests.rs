//! Who is let in and who is not, and what both sides say about it. What travels on a connection is in the suite of all
//! transports.

use std::fs;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::PrivateKeyDer;
use time::{Duration as Days, OffsetDateTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use uuid::Uuid;

use super::certificate::Moment;
use super::credentials::Material;
use super::verify::Trust;
use super::*;
use crate::api::{Answer, Request, Welcome};
use crate::ids::ClusterId;

const PATIENCE: Duration = Duration::from_secs(10);
const HOSTS: &[&str] = &["localhost", "127.0.0.1", "::1"];
/// The validity of certificates that are good, in days from now.
const GOOD: (i64, i64) = (-1, 30);

fn hello() -> Hello {
    Hello::node(ClusterId(Uuid::from_u128(77)))
}

/// A CA, and what it signs.
pub(crate) struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        Self::valid(name, GOOD)
    }

    fn valid(name: &str, days: (i64, i64)) -> Self {
        let mut params = params(name, &[], days);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.extended_key_usages.clear();
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn credentials(&self, name: &str) -> Credentials {
        self.issue(name, HOSTS, GOOD, self)
    }

    /// Credentials with a certificate of this CA, of a side that believes `trusted`.
    fn issue(&self, name: &str, hosts: &[&str], days: (i64, i64), trusted: &Self) -> Credentials {
        let key = KeyPair::generate().unwrap();
        let leaf = params(name, hosts, days).signed_by(&key, &self.0).unwrap().der().clone();
        let own = Certificate::parse(&leaf).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let material = Material { cas: vec![trusted.parsed()], chain: vec![leaf], own, key };
        Credentials::new(material).unwrap()
    }

    fn parsed(&self) -> (CertificateDer<'static>, Certificate) {
        (self.0.der().clone(), Certificate::parse(self.0.der()).unwrap())
    }

    /// As files in `folder`.
    fn write(&self, folder: &Path, name: &str, days: (i64, i64)) {
        let key = KeyPair::generate().unwrap();
        let leaf = params(name, HOSTS, days).signed_by(&key, &self.0).unwrap();
        fs::write(folder.join("ca.pem"), self.0.pem()).unwrap();
        fs::write(folder.join(format!("{name}.pem")), leaf.pem()).unwrap();
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

fn params(name: &str, hosts: &[&str], days: (i64, i64)) -> CertificateParams {
    let mut params = CertificateParams::new(hosts.iter().map(|&host| host.to_owned()).collect::<Vec<_>>()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now + Days::days(days.0), now + Days::days(days.1));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// What both sides say when `dialing` dials `listening` at `host`: first the one that dials.
async fn no_connection(dialing: Credentials, listening: Credentials, host: &str) -> (String, String) {
    let listener = Listener::bind("127.0.0.1:0", listening).await.unwrap();
    let address = format!("{host}:{}", listener.local_addr().port());
    let accept = async { accept(listener.accept().await.unwrap(), &hello(), PATIENCE).await.unwrap_err() };
    let dial = async { connect_as::<Request, Answer>(&address, &dialing, &hello(), PATIENCE).await.unwrap_err() };
    let (accepting, dialing) = tokio::join!(accept, dial);
    for (error, whose) in [(&dialing, address.as_str()), (&accepting, "127.0.0.1:")] {
        let ConnectError::Refused { address, .. } = error else { panic!("{error}") };
        assert!(address.starts_with(whose), "{address}");
    }
    (dialing.to_string(), accepting.to_string())
}

/// Asserts that both sides say all of `words`, and that the one that did not look at the certificate says so.
fn assert_said(said: &(String, String), refused_by_dialing: bool, words: &[&str]) {
    for word in words {
        assert!(said.0.contains(word), "the dialing side does not say {word}: {}", said.0);
        assert!(said.1.contains(word), "the accepting side does not say {word}: {}", said.1);
    }
    let other = "the other side refused: the certificate";
    assert_eq!((said.0.contains(other), said.1.contains(other)), (!refused_by_dialing, refused_by_dialing), "{said:?}");
    for said in [&said.0, &said.1] {
        assert!(!said.contains("flexlog: ") && !said.contains("))"), "wrapping is left: {said}");
    }
}

#[tokio::test]
async fn who_is_let_in_is_known_by_name() {
    let ca = Ca::new("FlexLog one");
    let listener = Listener::bind("127.0.0.1:0", ca.credentials("node-1")).await.unwrap();
    let address = format!("localhost:{}", listener.local_addr().port());
    for dialing in [hello(), Hello::metadata(hello().cluster), Hello::client(hello().cluster)] {
        let credentials = ca.credentials("node-2");
        let accept = async { accept(listener.accept().await.unwrap(), &hello(), PATIENCE).await.unwrap() };
        let dial = connect_as::<Answer, Request>(&address, &credentials, &dialing, PATIENCE);
        let (accepted, dialed) = tokio::join!(accept, dial);
        let mut dialed = dialed.unwrap();
        assert_eq!(accepted.hello(), &dialing);
        assert_eq!(accepted.certificate_name(), Some("node-2"));
        assert!(accepted.peer().starts_with("127.0.0.1:"), "{}", accepted.peer());
        assert_eq!((&dialed.hello, &dialed.peer), (&hello(), &address));
        let mut accepted = accepted.into_connection::<Request, Answer>();
        accepted.sender.send(&mut vec![Request::Status { id: 1 }]).await.unwrap();
        let mut got = Vec::new();
        assert!(dialed.receiver.recv(&mut got).await.unwrap());
        assert_eq!(got, [Request::Status { id: 1 }]);
    }
}

/// What was sent before a side let go of the connection still arrives.
#[tokio::test]
async fn last_words_arrive() {
    let ca = Ca::new("FlexLog one");
    let listener = Listener::bind("127.0.0.1:0", ca.credentials("node")).await.unwrap();
    let address = listener.local_addr().to_string();
    let credentials = ca.credentials("client");
    let client = Hello::client(hello().cluster);
    let accept = async { accept_client(listener.accept().await.unwrap(), &hello(), PATIENCE).await.unwrap() };
    let dial = connect_as::<Request, Answer>(&address, &credentials, &client, PATIENCE);
    let (mut accepted, dialed) = tokio::join!(accept, dial);
    let mut dialed = dialed.unwrap();
    dialed.sender.send(&mut (0..10_000).map(|id| Request::Status { id }).collect()).await.unwrap();
    drop(dialed);
    let mut got = Vec::new();
    while accepted.receiver.recv(&mut got).await.unwrap() {}
    assert!(got.len() == 10_000 && got[9_999] == Request::Status { id: 9_999 });
}

#[tokio::test]
async fn a_node_of_another_ca_is_refused() {
    let (one, two) = (Ca::new("FlexLog one"), Ca::new("FlexLog two"));
    let said = no_connection(one.credentials("a"), two.credentials("b"), "127.0.0.1").await;
    let fingerprint = one.parsed().1.fingerprint;
    assert_said(
        &said,
        true,
        &[
            "the certificate 'b' (valid until 20",
            "signed by 'FlexLog two') is not of the expected CA 'FlexLog one'",
            &fingerprint,
            "`flexlog cert issue b`",
        ],
    );
    assert!(said.1.contains("This side shows 'b' (valid until"), "{}", said.1);
    // A CA that has the same name is another one all the same.
    let same = Ca::new("FlexLog one");
    let said = no_connection(one.credentials("a"), same.credentials("b"), "127.0.0.1").await;
    assert_said(&said, true, &["is not of the expected CA 'FlexLog one'", &fingerprint]);
}

#[tokio::test]
async fn a_dialing_side_of_another_ca_is_refused() {
    let (one, two) = (Ca::new("FlexLog one"), Ca::new("FlexLog two"));
    let mixed = two.issue("a", HOSTS, GOOD, &one);
    let said = no_connection(mixed, one.credentials("b"), "127.0.0.1").await;
    assert_said(
        &said,
        false,
        &["'a' (valid until", "signed by 'FlexLog two') is not of the expected CA 'FlexLog one'"],
    );
}

#[tokio::test]
async fn certificates_out_of_their_time_are_refused() {
    let ca = Ca::new("FlexLog one");
    for (days, words, next) in
        [((-9, -2), "has expired; now it is 20", "issue old --renew"), ((2, 9), "is valid from 20", "set the clocks")]
    {
        let old = || ca.issue("old", HOSTS, days, &ca);
        let until = old().certificate().until.to_string();
        let said = no_connection(old(), ca.credentials("b"), "127.0.0.1").await;
        assert_said(&said, false, &["the certificate 'old'", &until, words, next]);
        let said = no_connection(ca.credentials("a"), old(), "127.0.0.1").await;
        assert_said(&said, true, &["the certificate 'old'", &until, words, next]);
    }
}

#[tokio::test]
async fn a_node_at_an_address_that_is_not_its_own_is_refused() {
    let ca = Ca::new("FlexLog one");
    let elsewhere = || ca.issue("b", &["db1.example", "10.0.0.7"], GOOD, &ca);
    let said = no_connection(ca.credentials("a"), elsewhere(), "127.0.0.1").await;
    let words = ["is for the hosts [db1.example, 10.0.0.7]", "the address says 127.0.0.1", "--host 127.0.0.1"];
    assert_said(&said, true, &words);
    let said = no_connection(ca.credentials("a"), elsewhere(), "localhost").await;
    assert_said(&said, true, &["the address says localhost", "--host localhost"]);
}

#[tokio::test]
async fn a_certificate_for_one_end_only_does_not_do_for_the_other() {
    let ca = Ca::new("FlexLog one");
    let key = KeyPair::generate().unwrap();
    let mut params = params("a", HOSTS, GOOD);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let leaf = params.signed_by(&key, &ca.0).unwrap().der().clone();
    let own = Certificate::parse(&leaf).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let half = Credentials::new(Material { cas: vec![ca.parsed()], chain: vec![leaf], own, key }).unwrap();
    let said = no_connection(half, ca.credentials("b"), "127.0.0.1").await;
    assert_said(&said, false, &["the certificate 'a'", "is not made for this end"]);
}

#[tokio::test]
async fn who_shows_no_certificate_or_speaks_something_else_is_refused() {
    let ca = Ca::new("FlexLog one");
    let (trust, node) = (Trust::new(&[ca.parsed()]).unwrap(), ca.credentials("b"));
    for (protocol, words, alert) in [
        (ALPN, "it shows no certificate; expected is one of the CA 'FlexLog one'", 116_u64),
        (b"h3", "it speaks QUIC, but not FlexLog's protocol", 120),
    ] {
        let listener = Listener::bind("127.0.0.1:0", node.clone()).await.unwrap();
        let tls = rustls::ClientConfig::builder_with_provider(credentials::provider());
        let tls = tls.with_protocol_versions(&[&rustls::version::TLS13]).unwrap().dangerous();
        let mut tls = tls.with_custom_certificate_verifier(trust.of_servers().unwrap()).with_no_client_auth();
        tls.alpn_protocols = vec![protocol.to_vec()];
        let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(tls));
        let dial = async {
            let connecting = endpoint.connect_with(config, listener.local_addr(), "127.0.0.1").unwrap();
            match connecting.await {
                Ok(connection) => connection.closed().await,
                Err(error) => error,
            }
        };
        let accept = async { accept(listener.accept().await.unwrap(), &hello(), PATIENCE).await.unwrap_err() };
        let (closed, error) = tokio::join!(dial, accept);
        assert!(error.to_string().contains(words), "{error}");
        let ConnectionError::ConnectionClosed(close) = &closed else { panic!("{closed}") };
        assert_eq!(u64::from(close.error_code), 0x100 + alert);
        // What one of us would make of it.
        let said = verify::refusal(&closed, node.certificate(), &trust).unwrap();
        let next = if alert == 116 { "`flexlog cert issue NAME`" } else { "check the address" };
        assert!(said.contains("the other side refused") && said.contains(next), "{said}");
    }
}

#[tokio::test]
async fn plain_tcp_at_a_port_for_quic_is_told_so() {
    let ca = Ca::new("FlexLog one");
    let listener = Listener::bind("127.0.0.1:0", ca.credentials("b")).await.unwrap();
    let address = listener.local_addr().to_string();
    let client = Hello::client(hello().cluster);
    let accept = async { accept(listener.accept().await.unwrap(), &hello(), PATIENCE).await.unwrap_err() };
    let dial = async { tcp::connect(&address, &client, PATIENCE).await.unwrap_err() };
    let (accepting, dialing) = tokio::join!(accept, dial);
    for error in [accepting, dialing] {
        assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("it came by plain TCP, and this port is for QUIC"), "{error}");
    }
    // Not even words of ours.
    let turned_away = async { super::accept(listener.accept().await.unwrap(), &hello(), PATIENCE).await.unwrap_err() };
    let raw = async {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).await.unwrap();
        wire::decode_welcome(said[4..].to_vec().into()).unwrap()
    };
    let (error, said) = tokio::join!(turned_away, raw);
    assert!(matches!(said, Welcome::Refused(_)), "{said:?}");
    assert!(error.to_string().contains("is the other side FlexLog?"), "{error}");
}

#[tokio::test]
async fn quic_at_a_port_for_tcp_and_at_one_for_nothing_are_told_apart() {
    let credentials = Ca::new("FlexLog one").credentials("a");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let patience = Duration::from_secs(2);
    let hello = hello();
    let dial = || connect_as::<Request, Answer>(&address, &credentials, &hello, patience);
    let error = dial().await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("nobody answers by QUIC, and somebody does by TCP"), "{error}");
    drop(listener);
    let error = dial().await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_side_that_says_nothing_does_not_hold_the_port() {
    let ca = Ca::new("FlexLog one");
    let listener = Listener::bind("127.0.0.1:0", ca.credentials("b")).await.unwrap();
    let patience = Duration::from_millis(100);
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let silent = ca.credentials("a").client();
    let connecting = endpoint.connect_with(silent, listener.local_addr(), "127.0.0.1").unwrap();
    let accept = async { accept(listener.accept().await.unwrap(), &hello(), patience).await.unwrap_err() };
    let (connected, error) = tokio::join!(connecting, accept);
    assert!(matches!(error, ConnectError::TimedOut { after, .. } if after == patience), "{error}");
    let closed = match connected {
        Ok(connection) => connection.closed().await,
        // On a machine with much to do the time was up before the certificates were shown.
        Err(error) => error,
    };
    let by_peer = matches!(closed, ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_));
    assert!(by_peer, "{closed}");
}

#[test]
fn hosts_are_taken_from_addresses() {
    for (address, wanted) in [("db1:7480", "db1"), ("10.0.0.7:1", "10.0.0.7"), ("[::1]:7480", "::1"), ("db1", "db1")] {
        assert_eq!(host(address), wanted);
    }
    assert_eq!(Moment(1_800_000_000).to_string(), "2027-01-15 08:00 UTC");
}

#[test]
fn files_are_loaded_or_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = |file: &str| folder.path().join(file);
    let load = |name: &str| Credentials::load(folder.path(), name);
    let refused = |name: &str, file: &str, words: &[&str]| {
        let error = load(name).unwrap_err().to_string();
        let path = at(file).display().to_string();
        for word in words.iter().chain([&path.as_str(), &"`flexlog cert i"]) {
            assert!(error.contains(word), "{word} is not in: {error}");
        }
    };
    let (ca, other) = (Ca::new("FlexLog one"), Ca::new("FlexLog two"));
    refused("a", "ca.pem", &["cannot read", "`flexlog cert init --dir"]);
    ca.write(folder.path(), "a", GOOD);
    ca.write(folder.path(), "b", GOOD);
    let loaded = load("a").unwrap();
    assert_eq!(loaded.certificate().name, "a");
    assert_eq!(loaded.certificate().hosts, HOSTS);

    refused("c", "c.pem", &["cannot read", "`flexlog cert issue c --dir"]);
    for name in ["", "ca", "../a", "a/b", ".a", "-a", "ä"] {
        assert!(matches!(load(name), Err(CredentialsError::Name(_))), "{name}");
    }
    fs::remove_file(at("b.key")).unwrap();
    refused("b", "b.key", &["cannot read", "issue b --renew"]);
    fs::copy(at("a.key"), at("b.key")).unwrap();
    refused("b", "b.key", &["is not the key of", "b.pem", "issue b --renew"]);
    fs::write(at("b.key"), "no key").unwrap();
    refused("b", "b.key", &["holds no private key in PEM form", "issue b --renew"]);
    fs::write(at("b.pem"), "no certificate").unwrap();
    refused("b", "b.pem", &["holds no certificate in PEM form"]);
    fs::write(at("b.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    refused("b", "b.pem", &["it is no X.509 certificate"]);

    ca.write(folder.path(), "old", (-9, -2));
    refused("old", "old.pem", &["has expired", "issue old --renew"]);
    ca.write(folder.path(), "early", (2, 9));
    refused("early", "early.pem", &["is valid from"]);
    other.write(folder.path(), "foreign", GOOD);
    ca.write(folder.path(), "a", GOOD);
    refused("foreign", "foreign.pem", &["signed by 'FlexLog two') is not of the expected CA 'FlexLog one'"]);
    fs::copy(at("a.pem"), at("ca.pem")).unwrap();
    refused("a", "ca.pem", &["'a' is not a CA"]);
    Ca::valid("FlexLog old", (-9, -2)).write(folder.path(), "a", GOOD);
    refused("a", "ca.pem", &["'FlexLog old' has expired"]);
}
