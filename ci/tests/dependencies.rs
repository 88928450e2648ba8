//! The rules of the project, on the project; and on small trees with one fault each, to see that each is caught.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::fs;
use std::path::{Path, PathBuf};

use flexlog_ci::files::{self, Allowed};
use flexlog_ci::{Finding, cores, manifests, tree};
use tempfile::TempDir;

/// The only files with `unsafe` code. Each is small, and says of each block why it is sound.
const UNSAFE_CODE: &[&str] = &[
    "protocol/src/checksum.rs",
    "storage-pm/src/device/mmap.rs",
    "storage-pm/src/device/persist.rs",
    "storage-pm/src/device/pmem2.rs",
    "storage-pm/src/device/pmem2_sys.rs",
];
/// Files whose tests may sleep, and why.
const SLEEPING_TESTS: &[(&str, &str)] = &[
    ("storage-pm/tests/kill.rs", "the moment of a kill is drawn at random: nothing waits for anything"),
    ("node/tests/chaos.rs", "how long faults last and how far apart they are, drawn from the seed"),
    ("node/tests/support/load.rs", "the pace of clients whose load lasts as long as the faults"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn assert_none(findings: Vec<Finding>) {
    let text: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{} rules are broken:\n{}", findings.len(), text.join("\n"));
}

#[test]
fn crates_use_only_what_they_may() {
    assert_none(manifests::check(&root()).unwrap());
}

#[test]
fn protocol_cores_are_pure() {
    assert_none(cores::check(&tree::read(&root()).unwrap()));
}

#[test]
fn files_hold_only_what_they_may() {
    let allowed = Allowed { unsafe_code: UNSAFE_CODE, sleeping_tests: SLEEPING_TESTS };
    assert_none(files::check(&tree::read(&root()).unwrap(), allowed));
}

// From here on: the checks themselves.

const MEMBERS: [&str; 12] = [
    "protocol",
    "tree-config",
    "storage-pm",
    "sequencer",
    "replica",
    "client",
    "node",
    "history",
    "sim",
    "model",
    "bench",
    "ci",
];

/// A tree that keeps every rule, with `text` added to `file`.
fn tree_with(file: &str, text: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let old = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, old + text).unwrap();
    };
    let members = MEMBERS.map(|member| format!("\"{member}\"")).join(", ");
    let shared = "tokio = \"1\"\nstore = { package = \"rocksdb\", version = \"1\" }\n\
                  loud = { package = \"flexlog-protocol\", path = \"protocol\", features = [\"net\"] }\n";
    put("Cargo.toml", &format!("[workspace]\nmembers = [{members}]\n[workspace.dependencies]\n{shared}"));
    for member in MEMBERS {
        let package = if member == "bench" { "bench".to_owned() } else { format!("flexlog-{member}") };
        put(&format!("{member}/Cargo.toml"), &format!("[package]\nname = \"{package}\"\n"));
        put(&format!("{member}/src/lib.rs"), "//! tokio, std::fs and Instant are only spoken of here.\n");
    }
    put("client/src/core/mod.rs", "const TEXT: &str = \"std::net println! Instant\";\n");
    put(file, text);
    root
}

fn manifest_findings(file: &str, text: &str) -> Vec<Finding> {
    manifests::check(tree_with(file, text).path()).unwrap()
}

/// Each of these, added to the manifest of that crate, is the one thing that is found.
#[test]
fn planted_dependencies_are_caught() {
    for (member, text) in [
        ("protocol", "[dependencies]\nflexlog-tree-config.workspace = true"),
        ("protocol", "[dependencies]\nserde = \"1\"\ntokio = \"1\""),
        (
            "protocol",
            "[features]\nnet = []\nother = [\"dep:tokio\"]\n[dependencies]\ntokio = { version = \"1\", optional = true }",
        ),
        ("protocol", "[features]\nnet = []\ndefault = [\"net\"]"),
        ("protocol", "[features]\nquic = []\ndefault = [\"quic\"]"),
        ("tree-config", "[dependencies]\nflexlog-storage-pm.workspace = true"),
        ("tree-config", "[dependencies]\ntokio = { workspace = true }"),
        ("tree-config", "[dependencies]\nflexlog-protocol = { workspace = true, features = [\"net\"] }"),
        ("tree-config", "[dependencies]\nflexlog-protocol = { workspace = true, features = [\"quic\"] }"),
        ("storage-pm", "[dependencies]\nflexlog-tree-config.workspace = true"),
        ("storage-pm", "[dev-dependencies]\nflexlog-replica.workspace = true"),
        ("storage-pm", "[dependencies]\ntokio = \"1\""),
        ("sequencer", "[dependencies]\nflexlog-replica.workspace = true"),
        ("sequencer", "[dev-dependencies]\nflexlog-storage-pm.workspace = true"),
        ("sequencer", "[dev-dependencies]\ntokio-util = \"1\""),
        ("sequencer", "[dependencies]\nrand = \"1\""),
        ("sequencer", "[dependencies]\nloud.workspace = true"),
        ("replica", "[build-dependencies]\nflexlog-sequencer.workspace = true"),
        ("replica", "[target.'cfg(unix)'.dependencies]\nflexlog-client.workspace = true"),
        ("replica", "[dependencies]\nother = { package = \"flexlog-storage-pm\", path = \"../storage-pm\" }"),
        ("client", "[dependencies]\nflexlog-replica.workspace = true"),
        ("client", "[dependencies]\nrocksdb = \"1\""),
        ("node", "[dependencies]\nstore.workspace = true"),
        ("sim", "[dependencies]\ntokio = \"1\""),
        ("model", "[dependencies]\nflexlog-sequencer.workspace = true"),
        ("model", "[dependencies]\nflexlog-protocol.workspace = true"),
        ("ci", "[dev-dependencies]\nflexlog-node.workspace = true"),
    ] {
        let file = format!("{member}/Cargo.toml");
        let findings = manifest_findings(&file, text);
        assert_eq!(findings.len(), 1, "{member}: {text}\n{findings:?}");
        assert_eq!(findings[0].file, file);
    }
    assert_eq!(manifest_findings("client/Cargo.toml", "[dependencies]\nsim = { package = \"flexlog-sim\" }").len(), 1);
}

#[test]
fn dependencies_that_are_allowed_are_let_pass() {
    for (member, text) in [
        (
            "protocol",
            "[features]\nnet = [\"dep:tokio\"]\n[dependencies]\ntokio = { version = \"1\", optional = true }\n[dev-dependencies]\ntokio = \"1\"",
        ),
        (
            "tree-config",
            "[features]\ndefault = [\"embedded\"]\nembedded = [\"dep:tokio\"]\n[dependencies]\nflexlog-protocol.workspace = true\ntokio = { workspace = true, optional = true }",
        ),
        ("sequencer", "[dependencies]\nflexlog-protocol.workspace = true\nflexlog-tree-config.workspace = true"),
        (
            "client",
            "[dependencies]\nflexlog-protocol = { workspace = true, features = [\"net\"] }\ntokio = \"1\"\nrand = \"1\"",
        ),
        ("sim", "[dependencies]\nflexlog-replica.workspace = true\nflexlog-storage-pm.workspace = true\nrand = \"1\""),
        ("bench", "[dependencies]\nflexlog-node.workspace = true\nstore.workspace = true\ntokio = \"1\""),
    ] {
        assert_none(manifest_findings(&format!("{member}/Cargo.toml"), text));
    }
}

#[test]
fn a_crate_without_a_rule_or_with_another_name_is_caught() {
    let root = tree_with("extra/Cargo.toml", "[package]\nname = \"extra\"\n");
    let manifest = root.path().join("Cargo.toml");
    let text = fs::read_to_string(&manifest).unwrap().replace("\"ci\"]", "\"ci\", \"extra\"]");
    fs::write(manifest, text).unwrap();
    let findings = manifests::check(root.path()).unwrap();
    assert!(findings.len() == 1 && findings[0].file == "extra/Cargo.toml", "{findings:?}");

    let root = tree_with("ci/unused", "");
    fs::write(root.path().join("replica/Cargo.toml"), "[package]\nname = \"flexlog-member\"\n").unwrap();
    assert_eq!(manifests::check(root.path()).unwrap().len(), 1);
    fs::write(root.path().join("Cargo.toml"), "[workspace]\n").unwrap();
    assert_eq!(manifests::check(root.path()).unwrap().len(), 1);
}

fn core_findings(file: &str, text: &str) -> Vec<Finding> {
    cores::check(&tree::read(tree_with(file, text).path()).unwrap())
}

#[test]
fn planted_words_in_cores_are_caught() {
    for text in [
        "use tokio::sync::mpsc;",
        "fn f() { ::tokio::spawn(g()); }",
        "use std::net::TcpStream;",
        "use std::{io, net};",
        "use std::{cmp::{self, Ordering}, fs::{self, File}};",
        "use std::*;",
        "fn f() { std::fs::read(\"x\"); }",
        "fn f() { std::thread::spawn(g); }",
        "use std::time::Instant;",
        "use std::time::{Duration, SystemTime};",
        "fn f(now: Instant) {}",
        "fn f() { rand::random() }",
        "fn f() { let id = Uuid::new_v4(); }",
        "use std::collections::HashMap;",
        "use std::collections::{BTreeMap, HashSet};",
        "fn f() { println!(\"x\") }",
        "#[cfg(test)] mod tests { use std::fs; }",
    ] {
        for file in [
            "sequencer/src/leaf.rs",
            "replica/src/a/b.rs",
            "client/src/core/x.rs",
            "protocol/src/ids.rs",
            "tree-config/src/key.rs",
        ] {
            let findings = core_findings(file, &format!("//! A file.\n{text}\n"));
            assert_eq!(findings.len(), 1, "{file}: {text}\n{findings:?}");
            assert_eq!((findings[0].file.as_str(), findings[0].line), (file, 2));
        }
        // The same is nobody's business outside of the cores.
        for file in [
            "protocol/src/net.rs",
            "protocol/src/net/tcp.rs",
            "tree-config/src/embedded/mod.rs",
            "node/src/main.rs",
            "client/src/shell.rs",
            "sequencer/build.rs",
        ] {
            assert_none(core_findings(file, text));
        }
    }
    // A name that only begins like a backend's is none.
    assert_eq!(core_findings("protocol/src/network.rs", "use std::fs;").len(), 1);
}

#[test]
fn words_that_only_look_alike_are_let_pass() {
    for text in [
        "// use std::fs;",
        "/* tokio::spawn */",
        "const T: &str = \"std::fs\";",
        "const T: &str = r#\"tokio \" rand\"#;",
        "fn f(instant: Time, randomly: u8, fs: u8) {}",
        "use std::time::Duration;",
        "use rustc_hash::FxHashMap; use std::collections::{BTreeMap, VecDeque};",
        "fn f() { self.std.fs.net() }",
    ] {
        assert_none(core_findings("replica/src/x.rs", text));
    }
}

#[test]
fn a_core_that_is_gone_is_caught() {
    let root = tree_with("ci/unused", "");
    fs::remove_dir_all(root.path().join("client/src/core")).unwrap();
    let findings = cores::check(&tree::read(root.path()).unwrap());
    assert!(findings.len() == 1 && findings[0].file == "client/src/core", "{findings:?}");
}

fn file_findings(file: &str, text: &str, allowed: Allowed<'_>) -> Vec<Finding> {
    files::check(&tree::read(tree_with(file, text).path()).unwrap(), allowed)
}

const NOTHING: Allowed<'_> = Allowed { unsafe_code: &[], sleeping_tests: &[] };

#[test]
fn planted_faults_in_files_are_caught() {
    let home = format!("/{}/someone/x", "home");
    for (file, text) in [
        ("node/src/a.rs", "fn f() { unsafe { g() } }".to_owned()),
        ("node/src/a.rs", "unsafe impl Send for X {}".to_owned()),
        ("node/src/a.rs", "fn f() { todo!() }".to_owned()),
        ("node/tests/a.rs", "fn f() { unimplemented!(\"later\") }".to_owned()),
        ("node/src/a.rs", "#[test]\n#[ignore]\nfn f() {}".to_owned()),
        ("node/src/a.rs", "#[ignore = \"slow\"]\nfn f() {}".to_owned()),
        ("node/tests/a.rs", "fn f() { std::thread::sleep(d); }".to_owned()),
        ("node/tests/a/b.rs", "use tokio::time::{sleep, timeout};".to_owned()),
        ("node/src/x/tests.rs", "async fn f() { tokio::time::sleep_until(d).await }".to_owned()),
        ("node/src/a.rs", "#[cfg(test)]\nmod tests { fn f() { sleep(d) } }".to_owned()),
        ("node/src/a.rs", "// x\n".repeat(files::MAX_LINES + 1)),
        ("docs/a.md", format!("see {home}")),
        ("node/src/a.rs", format!("const X: &str = \"{home}\";")),
        (".ci/run", format!("cd /{}/x", "root")),
    ] {
        let findings = file_findings(file, &text, NOTHING);
        assert_eq!(findings.len(), 1, "{file}: {text}\n{findings:?}");
        assert_eq!(findings[0].file, file);
    }
}

#[test]
fn files_without_faults_are_let_pass() {
    for (file, text) in [
        ("node/src/a.rs", "// unsafe { todo!() }\n#![allow(unsafe_code)]".to_owned()),
        ("node/src/a.rs", "async fn f() { tokio::time::sleep(d).await }\n#[cfg(test)]\nmod tests {}".to_owned()),
        ("node/src/a.rs", "// x\n".repeat(files::MAX_LINES)),
        ("docs/a.md", format!("$HOME/{0}/x and a/{0}/b and http://host/{0}", "home")),
        ("target/debug/a.rs", "todo!()".to_owned()),
    ] {
        assert_none(file_findings(file, &text, NOTHING));
    }
}

#[test]
fn exceptions_are_for_the_files_they_name_and_no_longer_than_needed() {
    let allowed = Allowed { unsafe_code: &["node/src/a.rs"], sleeping_tests: &[("node/tests/a.rs", "a reason")] };
    assert_none(file_findings("node/src/a.rs", "unsafe fn f() {}", allowed));
    let stale = file_findings("node/src/a.rs", "fn f() {}", allowed);
    assert!(stale.len() == 1 && stale[0].file == "node/src/a.rs", "{stale:?}");
    let elsewhere = file_findings("node/src/b.rs", "unsafe fn f() {}", allowed);
    assert_eq!(elsewhere.len(), 2, "{elsewhere:?}");
    let allowed = Allowed { unsafe_code: &[], ..allowed };
    assert_none(file_findings("node/tests/a.rs", "fn f() { sleep(d) }", allowed));
    assert_eq!(file_findings("node/tests/b.rs", "fn f() { sleep(d) }", allowed).len(), 1);
}
