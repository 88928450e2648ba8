//! Who a side is, and whom it believes: three PEM files of one folder, checked together before they are used.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, ServerConfig};

use super::certificate::{Certificate, CertificateFault, Moment};
use super::verify::Trust;
use super::{ALPN, transport};

/// The file with the certificate of the cluster's CA, in its folder.
pub const CA_FILE: &str = "ca.pem";

/// Why files do not make [`Credentials`]. Each names the file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A name that cannot be the name of a file.
    #[error(
        "'{0}' is no name for a certificate: letters, digits, '.', '_' and '-' make one, and it is not '{CA_NAME}'"
    )]
    Name(String),
    /// A file is missing, or cannot be read.
    #[error("cannot read {}: {source}. {next}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
        /// What to do.
        next: String,
    },
    /// A file does not hold what it should.
    #[error("{} holds no {what} in PEM form: {reason}. {next}", path.display())]
    NoPem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What is wrong.
        reason: rustls::pki_types::pem::Error,
        /// What to do.
        next: String,
    },
    /// A certificate in a file cannot be used.
    #[error("{}: {fault}. {next}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: CertificateFault,
        /// What to do.
        next: String,
    },
    /// The CA's own certificate may not sign, or is not valid now.
    #[error("{}: the CA '{}' {what}. {next}", path.display(), ca.name)]
    Ca {
        /// The file.
        path: PathBuf,
        /// Its certificate.
        ca: Box<Certificate>,
        /// What is wrong with it.
        what: String,
        /// What to do.
        next: String,
    },
    /// A key is not that of the certificate, or of a kind that nobody here knows.
    #[error("{} is not the key of {}: {reason}. {next}", key.display(), certificate.display())]
    Key {
        /// The file with the key.
        key: PathBuf,
        /// The file with the certificate.
        certificate: PathBuf,
        /// What is wrong.
        reason: Box<Error>,
        /// What to do.
        next: String,
    },
    /// The certificate would be refused by everybody.
    #[error("{}: {why}", path.display())]
    Useless {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
    /// TLS does not take them, for a reason that none of the others names.
    #[error("{}: TLS does not take these files: {source}. {next}", directory.display())]
    Tls {
        /// The folder.
        directory: PathBuf,
        /// What it said.
        source: Error,
        /// What to do.
        next: String,
    },
}

/// The name that belongs to the CA's files.
const CA_NAME: &str = "ca";

/// Checks that `name` can be the name of a certificate, and so of its files.
///
/// # Errors
/// [`CredentialsError::Name`]
pub fn check_name(name: &str) -> Result<(), CredentialsError> {
    let fits = name.len() <= 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
    if name.is_empty() || name.starts_with(['.', '-']) || name == CA_NAME || !fits {
        return Err(CredentialsError::Name(name.to_owned()));
    }
    Ok(())
}

/// A certificate with its key, and the CA whose certificates this side believes. Cheap to clone.
#[derive(Clone)]
pub struct Credentials {
    parts: Arc<Parts>,
}

struct Parts {
    own: Certificate,
    trust: Trust,
    client: quinn::ClientConfig,
    server: quinn::ServerConfig,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { own, trust, .. } = &*self.parts;
        f.debug_struct("Credentials").field("own", own).field("trust", trust).finish_non_exhaustive()
    }
}

/// The cryptography, in pure cargo: no tool of the system is wanted for it.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// What one side has, read but not checked against each other.
pub(super) struct Material {
    pub(super) cas: Vec<(CertificateDer<'static>, Certificate)>,
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) own: Certificate,
    pub(super) key: PrivateKeyDer<'static>,
}

/// The files of one side, and what to do when one of them is not as it must be.
struct Files<'a> {
    directory: &'a Path,
    name: &'a str,
}

impl Files<'_> {
    fn certificate(&self) -> PathBuf {
        self.directory.join(format!("{}.pem", self.name))
    }

    fn key(&self) -> PathBuf {
        self.directory.join(format!("{}.key", self.name))
    }

    /// What makes the certificate.
    fn issue(&self) -> String {
        let directory = self.directory.display();
        if self.name == CA_NAME {
            return format!(
                "`flexlog cert init --dir {directory}` makes a CA; or copy {CA_FILE} from where the cluster's CA is"
            );
        }
        format!("`flexlog cert issue {} --dir {directory}` makes it", self.name)
    }

    /// What makes certificate and key when they are there and no good.
    fn renew(&self) -> String {
        format!("`flexlog cert issue {} --renew --dir {}` makes both anew", self.name, self.directory.display())
    }

    fn certificates(&self) -> Result<Vec<(CertificateDer<'static>, Certificate)>, CredentialsError> {
        let path = self.certificate();
        let bytes = read(&path, self.issue())?;
        let no_pem = |reason| {
            let (path, next) = (path.clone(), self.issue());
            CredentialsError::NoPem { path, what: "certificate", reason, next }
        };
        let ders = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>().map_err(no_pem)?;
        if ders.is_empty() {
            return Err(no_pem(rustls::pki_types::pem::Error::NoItemsFound));
        }
        let parse = |der: CertificateDer<'static>| match Certificate::parse(&der) {
            Ok(certificate) => Ok((der, certificate)),
            Err(fault) => Err(CredentialsError::Certificate { path: path.clone(), fault, next: self.issue() }),
        };
        ders.into_iter().map(parse).collect()
    }
}

fn read(path: &Path, next: String) -> Result<Vec<u8>, CredentialsError> {
    fs::read(path).map_err(|source| CredentialsError::Unreadable { path: path.to_owned(), source, next })
}

/// What the certificate of `name` in `directory` says, good or not; that of the CA is called `ca`.
///
/// # Errors
/// [`CredentialsError`]: there is none.
pub fn read_certificate(directory: &Path, name: &str) -> Result<Certificate, CredentialsError> {
    let mut all = Files { directory, name }.certificates()?;
    // There is at least one, and the first is the file's own.
    Ok(all.swap_remove(0).1)
}

impl Credentials {
    /// Reads `ca.pem`, `NAME.pem` and `NAME.key` from `directory`, where NAME is `name`, and checks that they are good
    /// together, now.
    ///
    /// # Errors
    /// [`CredentialsError`]
    pub fn load(directory: &Path, name: &str) -> Result<Self, CredentialsError> {
        check_name(name)?;
        let ca = Files { directory, name: CA_NAME };
        let cas = ca.certificates()?;
        for (_, certificate) in &cas {
            check_ca(&ca, certificate)?;
        }
        let files = Files { directory, name };
        let mut chain = files.certificates()?;
        let own = chain[0].1.clone();
        let chain: Vec<_> = chain.drain(..).map(|(der, _)| der).collect();
        let bytes = read(&files.key(), files.renew())?;
        let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|reason| CredentialsError::NoPem {
            path: files.key(),
            what: "private key",
            reason,
            next: files.renew(),
        })?;
        CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider()).map_err(|reason| {
            CredentialsError::Key {
                key: files.key(),
                certificate: files.certificate(),
                reason: Box::new(reason),
                next: files.renew(),
            }
        })?;
        let material = Material { cas, chain, own, key };
        let tls = |source| CredentialsError::Tls { directory: directory.to_owned(), source, next: files.renew() };
        let trust = Trust::new(&material.cas).map_err(tls)?;
        let own = material.chain[0].clone();
        if let Err(error) =
            trust.of_clients().map_err(tls)?.webpki().verify_client_cert(&own, &material.chain[1..], UnixTime::now())
        {
            let why = match error {
                Error::InvalidCertificate(error) => trust.explain(&own, &error),
                other => other.to_string(),
            };
            return Err(CredentialsError::Useless { path: files.certificate(), why });
        }
        Self::new(material).map_err(tls)
    }

    /// Takes `material` as it is; whoever looks at it will say what is wrong with it.
    pub(super) fn new(material: Material) -> Result<Self, Error> {
        let Material { cas, chain, own, key } = material;
        let trust = Trust::new(&cas)?;
        let provider = provider();
        let key =
            Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, provider.key_provider.load_private_key(key)?)));

        let client = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13])?;
        // The verifier is the ordinary one, and says in words what it has against a certificate.
        let client = client.dangerous().with_custom_certificate_verifier(trust.of_servers()?);
        let mut client = client.with_client_cert_resolver(Arc::clone(&key) as _);
        client.alpn_protocols = vec![ALPN.to_vec()];
        // A resumed session would not be asked for a certificate, which may have expired since.
        client.resumption = Resumption::disabled();

        let server = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
        let server = server.with_client_cert_verifier(trust.of_clients()?);
        let mut server = server.with_cert_resolver(key);
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});

        let unfit = |error: quinn::crypto::rustls::NoInitialCipherSuite| Error::General(error.to_string());
        let client = QuicClientConfig::try_from(client).map_err(unfit)?;
        let server = QuicServerConfig::try_from(server).map_err(unfit)?;
        let mut client = quinn::ClientConfig::new(Arc::new(client));
        client.transport_config(transport());
        let mut server = quinn::ServerConfig::with_crypto(Arc::new(server));
        server.transport_config(transport());
        server.max_incoming(super::BACKLOG);
        Ok(Self { parts: Arc::new(Parts { own, trust, client, server }) })
    }

    /// The certificate that this side shows.
    #[must_use]
    pub fn certificate(&self) -> &Certificate {
        &self.parts.own
    }

    pub(super) fn trust(&self) -> &Trust {
        &self.parts.trust
    }

    pub(super) fn client(&self) -> quinn::ClientConfig {
        self.parts.client.clone()
    }

    pub(super) fn server(&self) -> quinn::ServerConfig {
        self.parts.server.clone()
    }
}

fn check_ca(files: &Files<'_>, ca: &Certificate) -> Result<(), CredentialsError> {
    let now = Moment::now();
    let what = if !ca.is_ca {
        "is not a CA: its certificate may not sign others".to_owned()
    } else if ca.until < now {
        format!("has expired: it was valid until {}", ca.until)
    } else if ca.from > now {
        format!("is valid from {} only, and now it is {now}: are the clocks right?", ca.from)
    } else {
        return Ok(());
    };
    let next =
        "`flexlog cert init` in another folder makes a new one, and all certificates are to be issued anew".to_owned();
    Err(CredentialsError::Ca { path: files.certificate(), ca: Box::new(ca.clone()), what, next })
}
