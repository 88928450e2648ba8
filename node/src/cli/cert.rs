//! `flexlog cert`: the certificates by which machines of a cluster know one another. A folder holds the cluster's CA and
//! what it has issued; each machine gets `ca.pem` and its own two files, and `ca.key` stays where it was made.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use flexlog_protocol::net::quic::Credentials;
use flexlog_protocol::net::quic::certificate::{Certificate, Moment};
use flexlog_protocol::net::quic::credentials::{CA_FILE, check_name, read_certificate};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _,
};
use serde_json::json;
use time::{Duration, OffsetDateTime};

use super::output::Output;
use super::{Stop, absolute};

/// The file with the CA's key.
const CA_KEY: &str = "ca.key";
/// Certificates are valid from a little before they are made: the clocks of machines differ.
const BEFORE: Duration = Duration::hours(1);

/// Commands of `flexlog cert`.
#[derive(Subcommand)]
pub(crate) enum CertCommand {
    /// Make the CA of a cluster. Its key, ca.key, is what lets others in: keep it away from the nodes.
    Init(InitArgs),
    /// Make certificates for nodes and clients, signed by the CA.
    Issue(IssueArgs),
    /// List the certificates of a folder, and whether they are good.
    Show(ShowArgs),
}

/// Arguments of `flexlog cert init`.
#[derive(Args)]
pub(crate) struct InitArgs {
    /// The folder for the CA; made if need be.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The name of the CA, for messages.
    #[arg(long, value_name = "CLUSTER", default_value = "FlexLog")]
    name: String,
    /// How long the CA is valid [default: 10 years].
    #[arg(long, value_name = "N", default_value_t = 3652, value_parser = days())]
    days: i64,
}

/// Arguments of `flexlog cert issue`.
#[derive(Args)]
pub(crate) struct IssueArgs {
    /// Who it is for: the name of a node or a client, and of its files.
    #[arg(required = true)]
    names: Vec<String>,
    /// The folder with the CA; the certificates are put there too.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// A host name or IP address at which the node is reached, without a port; may be given several times
    /// [default: localhost, 127.0.0.1 and ::1, or with --renew the hosts of the old certificate].
    #[arg(long = "host", value_name = "ADDRESS")]
    hosts: Vec<String>,
    /// How long the certificates are valid; never longer than the CA is.
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = days())]
    days: i64,
    /// Replace certificates that are there.
    #[arg(long)]
    renew: bool,
}

/// Arguments of `flexlog cert show`.
#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The folder.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

fn days() -> clap::builder::RangedI64ValueParser<i64> {
    clap::value_parser!(i64).range(1..=36_524)
}

pub(crate) fn run(command: CertCommand) -> Result<(), Stop> {
    match command {
        CertCommand::Init(args) => init(&args),
        CertCommand::Issue(args) => issue(&args),
        CertCommand::Show(args) => show(&args),
    }
}

fn init(args: &InitArgs) -> Result<(), Stop> {
    let dir = absolute(&args.dir);
    if args.name.is_empty() || args.name.len() > 64 || args.name.chars().any(char::is_control) {
        return Err(Stop::Usage("a CA has a name of 1 to 64 bytes, without control characters".to_owned()));
    }
    let (certificate, key) = (dir.join(CA_FILE), dir.join(CA_KEY));
    for path in [&certificate, &key] {
        if path.exists() {
            return Err(Stop::Failed(format!(
                "{} is there already, and certificates may have been issued by it: give another folder, or move it away",
                path.display()
            )));
        }
    }
    fs::create_dir_all(&dir).map_err(|error| cannot("make", &dir, &error))?;
    let pair = KeyPair::generate()?;
    let mut params = params(&args.name, args.days);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let made = params.self_signed(&pair)?;
    put(&key, &pair.serialize_pem(), 0o600, false)?;
    put(&certificate, &made.pem(), 0o644, false)?;
    let mut output = Output::new(false);
    let made = read_certificate(&dir, "ca")?;
    output.line(&format!("made the CA '{}' in {}, valid until {}", made.name, certificate.display(), made.until))?;
    output.line(&format!("its key is {}: keep it safe, and away from the nodes", key.display()))?;
    output.line(&format!("next: flexlog cert issue NAME --host ADDRESS --dir {}", args.dir.display()))?;
    output.flush()
}

/// The CA of a folder, with its key.
fn ca(dir: &Path) -> Result<(Certificate, Issuer<'static, KeyPair>), Stop> {
    let certificate = read_certificate(dir, "ca")?;
    let (path, key) = (dir.join(CA_FILE), dir.join(CA_KEY));
    let unusable = |what: &str| {
        Stop::Failed(format!(
            "{}: {what}. Certificates are issued where the CA was made: `flexlog cert init` makes one in a folder",
            key.display()
        ))
    };
    let pem = fs::read_to_string(&key).map_err(|error| unusable(&error.to_string()))?;
    let pair = KeyPair::from_pem(&pem).map_err(|_| unusable("it holds no private key in PEM form"))?;
    if pair.subject_public_key_info() != certificate.public_key {
        return Err(unusable(&format!("it is not the key of {}", path.display())));
    }
    let pem = fs::read_to_string(&path).map_err(|error| cannot("read", &path, &error))?;
    let issuer = Issuer::from_ca_cert_pem(&pem, pair)?;
    if !certificate.is_ca || certificate.until <= Moment::now() {
        let until = certificate.until;
        return Err(Stop::Failed(format!(
            "{}: the CA '{}' may sign nothing (valid until {until}): make a new one in another folder (`flexlog cert init`)",
            path.display(),
            certificate.name
        )));
    }
    Ok((certificate, issuer))
}

fn issue(args: &IssueArgs) -> Result<(), Stop> {
    let dir = absolute(&args.dir);
    for host in &args.hosts {
        check_host(host)?;
    }
    for name in &args.names {
        check_name(name).map_err(|error| Stop::Usage(error.to_string()))?;
    }
    let (ca, issuer) = ca(&dir)?;
    // All is looked at before anything is made.
    let mut wanted = Vec::new();
    for name in &args.names {
        let (certificate, key) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
        if let Some(there) = [&certificate, &key].into_iter().find(|path| path.exists())
            && !args.renew
        {
            return Err(Stop::Failed(format!(
                "{} is there already: --renew replaces it and its key, another name leaves it",
                there.display()
            )));
        }
        let hosts = match (args.hosts.as_slice(), certificate.exists()) {
            ([], true) => read_certificate(&dir, name)?.hosts,
            ([], false) => ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec(),
            (given, _) => given.to_vec(),
        };
        wanted.push((name, certificate, key, hosts));
    }
    let mut output = Output::new(false);
    for (name, certificate, key, hosts) in wanted {
        let pair = KeyPair::generate()?;
        let mut params = params(name, args.days);
        params.subject_alt_names = names(&hosts)?;
        let ca_until = OffsetDateTime::from_unix_timestamp(ca.until.0)?;
        params.not_after = params.not_after.min(ca_until);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let made = params.signed_by(&pair, &issuer)?;
        put(&key, &pair.serialize_pem(), 0o600, args.renew)?;
        put(&certificate, &made.pem(), 0o644, args.renew)?;
        // As a node will see it.
        let made = Credentials::load(&dir, name)?;
        let until = made.certificate().until;
        output.line(&format!(
            "made {}: '{name}' at {}, valid until {until}",
            certificate.display(),
            hosts.join(", ")
        ))?;
    }
    output.line(&format!("a machine needs {CA_FILE} and its own two files, NAME.pem and NAME.key"))?;
    output.flush()
}

fn show(args: &ShowArgs) -> Result<(), Stop> {
    let dir = absolute(&args.dir);
    let ca = read_certificate(&dir, "ca")?;
    let mut names = Vec::new();
    for entry in fs::read_dir(&dir).map_err(|error| cannot("read", &dir, &error))? {
        let name = entry.map_err(|error| cannot("read", &dir, &error))?.file_name();
        let name = name.to_str().and_then(|name| name.strip_suffix(".pem")).map(str::to_owned);
        names.extend(name.filter(|name| check_name(name).is_ok()));
    }
    names.sort();
    let mut output = Output::new(args.json);
    let now = Moment::now();
    if args.json {
        output.object(&as_json(&ca, "ca", (ca.until < now).then(|| "expired".to_owned())))?;
    } else {
        let state = if ca.until < now { "EXPIRED" } else { "good" };
        let Certificate { name, fingerprint, until, .. } = &ca;
        output.line(&format!("ca          {state}: '{name}', SHA-256 {fingerprint}…, valid until {until}"))?;
    }
    for name in names {
        let fault = Credentials::load(&dir, &name).err().map(|error| error.to_string());
        match (read_certificate(&dir, &name), args.json) {
            (Ok(shown), true) => output.object(&as_json(&shown, &name, fault))?,
            (Ok(shown), false) => {
                let hosts = shown.hosts.join(", ");
                let state = if fault.is_none() { "good" } else { "NOT GOOD" };
                let Certificate { from, until, .. } = shown;
                output.line(&format!("{name:<10}  {state}: at {hosts}, valid from {from} until {until}"))?;
                if let Some(fault) = fault {
                    output.line(&format!("            {fault}"))?;
                }
            }
            (Err(error), true) => output.object(&json!({ "file": name, "fault": error.to_string() }))?,
            (Err(error), false) => output.line(&format!("{name:<10}  NOT GOOD\n            {error}"))?,
        }
    }
    output.flush()
}

fn as_json(certificate: &Certificate, file: &str, fault: Option<String>) -> serde_json::Value {
    json!({
        "file": file,
        "name": certificate.name,
        "issuer": certificate.issuer,
        "hosts": certificate.hosts,
        "valid_from": certificate.from.to_string(),
        "valid_until": certificate.until.to_string(),
        "sha256_begins": certificate.fingerprint,
        "fault": fault,
    })
}

/// What all certificates have: a name and a time.
fn params(name: &str, days: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = OffsetDateTime::now_utc();
    params.not_before = now - BEFORE;
    params.not_after = now + Duration::days(days);
    params
}

fn names(hosts: &[String]) -> Result<Vec<rcgen::SanType>, Stop> {
    Ok(CertificateParams::new(hosts)?.subject_alt_names)
}

fn check_host(host: &str) -> Result<(), Stop> {
    let label = |label: &str| {
        let fits = label.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        fits && !label.is_empty() && label.len() <= 63 && !label.starts_with('-') && !label.ends_with('-')
    };
    if host.parse::<std::net::IpAddr>().is_ok() || (host.len() <= 253 && host.split('.').all(label)) {
        return Ok(());
    }
    Err(Stop::Usage(format!("--host {host}: give a host name or an IP address alone, without a port")))
}

/// Writes a file that must be new; or with `replace`, in place of the one that is there.
fn put(path: &Path, text: &str, mode: u32, replace: bool) -> Result<(), Stop> {
    let write = |path: &Path| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    if !replace {
        return write(path).map_err(|error| cannot("write", path, &error));
    }
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    // One that a crash left is of no use to anybody.
    let _ = fs::remove_file(&new);
    write(&new).and_then(|()| fs::rename(&new, path)).map_err(|error| cannot("write", path, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Stop {
    Stop::Failed(format!("cannot {what} {}: {error}", path.display()))
}
