//! `flexlog cert`: a CA, certificates, and what is said when they are not good.

#![cfg(feature = "quic")]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use flexlog_protocol::net::quic::Credentials;
use support::{BINARY, json_lines, run, text};

/// Runs `flexlog cert` with these words and `--dir folder`; gives how it ended and what it said.
fn cert(folder: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(BINARY);
    command.arg("cert").args(words).arg("--dir").arg(folder);
    let output = run(command, b"");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn works(folder: &Path, words: &[&str]) -> String {
    let (code, said, errors) = cert(folder, words);
    assert_eq!(code, Some(0), "{words:?}: {errors}");
    said
}

fn fails(folder: &Path, words: &[&str], code: i32) -> String {
    let (got, _, errors) = cert(folder, words);
    assert_eq!(got, Some(code), "{words:?}: {errors}");
    errors
}

#[test]
fn a_ca_issues_certificates_that_nodes_load() {
    let folder = tempfile::tempdir().unwrap();
    let certs = folder.path().join("new/certs");
    let errors = fails(&certs, &["issue", "a"], 1);
    assert!(errors.contains("ca.pem") && errors.contains("`flexlog cert init"), "{errors}");

    let said = works(&certs, &["init", "--name", "orders"]);
    assert!(said.contains("made the CA 'orders'") && said.contains("ca.key"), "{said}");
    let said = works(&certs, &["issue", "a", "b", "--host", "db1.example", "--host", "10.0.0.7", "--host", "fd00::7"]);
    assert!(said.contains("a.pem: 'a' at db1.example, 10.0.0.7, fd00::7, valid until"), "{said}");
    works(&certs, &["issue", "client"]);
    for key in ["ca.key", "a.key", "b.key", "client.key"] {
        assert_eq!(fs::metadata(certs.join(key)).unwrap().permissions().mode() & 0o777, 0o600, "{key}");
    }
    let a = Credentials::load(&certs, "a").unwrap();
    assert_eq!(a.certificate().hosts, ["db1.example", "10.0.0.7", "fd00::7"]);
    assert_eq!(a.certificate().issuer, "orders");
    let client = Credentials::load(&certs, "client").unwrap();
    assert_eq!(client.certificate().hosts, ["localhost", "127.0.0.1", "::1"]);
    let days = |credentials: &Credentials| {
        (credentials.certificate().until.0 - flexlog_protocol::net::quic::certificate::Moment::now().0) / 86_400
    };
    assert!((364..=365).contains(&days(&client)), "{}", days(&client));

    let said = works(&certs, &["show"]);
    let lines: Vec<_> = said.lines().collect();
    assert!(lines.len() == 4 && lines[0].contains("good: 'orders'"), "{said}");
    assert!(lines[1].starts_with("a ") && lines[1].contains("good: at db1.example, 10.0.0.7, fd00::7"), "{said}");
    let shown = json_lines(&works(&certs, &["show", "--json"]));
    assert_eq!(shown.len(), 4);
    assert!(shown[3]["name"] == "client" && shown[3]["fault"].is_null(), "{shown:?}");
}

#[test]
fn nothing_is_overwritten_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let certs = folder.path();
    works(certs, &["init", "--days", "30"]);
    let before = fs::read(certs.join("ca.key")).unwrap();
    let errors = fails(certs, &["init"], 1);
    assert!(errors.contains("ca.pem is there already"), "{errors}");
    assert_eq!(fs::read(certs.join("ca.key")).unwrap(), before);

    works(certs, &["issue", "a", "--host", "db1"]);
    let before = fs::read(certs.join("a.key")).unwrap();
    // Nothing at all is made when one of the names is taken.
    let errors = fails(certs, &["issue", "b", "a"], 1);
    assert!(errors.contains("a.pem is there already") && errors.contains("--renew"), "{errors}");
    assert!(!certs.join("b.pem").exists());
    assert_eq!(fs::read(certs.join("a.key")).unwrap(), before);
    works(certs, &["issue", "a", "--renew", "--days", "400"]);
    assert_ne!(fs::read(certs.join("a.key")).unwrap(), before);
    let a = Credentials::load(certs, "a").unwrap();
    assert_eq!(a.certificate().hosts, ["db1"], "renewed for the same hosts");
    let ca = flexlog_protocol::net::quic::credentials::read_certificate(certs, "ca").unwrap();
    assert_eq!(a.certificate().until, ca.until, "never longer than the CA");
    assert_eq!(fs::metadata(certs.join("a.key")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let certs = folder.path();
    works(certs, &["init"]);
    for (words, said) in [
        (&["issue", "../a"][..], "'../a' is no name"),
        (&["issue", "ca"], "'ca' is no name"),
        (&["issue", "a", "--host", "db1:7480"], "without a port"),
        (&["issue", "a", "--host", "https://db1"], "without a port"),
        (&["issue", "a", "--days", "0"], "0 is not in"),
        (&["issue"], "required"),
        (&["init", "--name", ""], "a CA has a name"),
    ] {
        let errors = fails(certs, words, 2);
        assert!(errors.contains(said), "{words:?}: {errors}");
    }
    works(certs, &["issue", "a", "b"]);
    fs::copy(certs.join("a.key"), certs.join("b.key")).unwrap();
    let said = works(certs, &["show"]);
    assert!(said.contains("b           NOT GOOD") && said.contains("b.key is not the key of"), "{said}");
    // A CA's certificate with another's key signs nothing.
    let other = tempfile::tempdir().unwrap();
    works(other.path(), &["init"]);
    fs::copy(other.path().join("ca.key"), certs.join("ca.key")).unwrap();
    let errors = fails(certs, &["issue", "c"], 1);
    assert!(errors.contains("ca.key: it is not the key of") && errors.contains("`flexlog cert init`"), "{errors}");
    fs::remove_file(certs.join("ca.key")).unwrap();
    let errors = fails(certs, &["issue", "c"], 1);
    assert!(errors.contains("ca.key") && errors.contains("where the CA was made"), "{errors}");
}
