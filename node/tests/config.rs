//! `flexlog config check`: on the example, and on files with every kind of mistake.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "a test that panics has failed")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use support::{BINARY, run, text};

/// What the tests spoil.
const EXAMPLE: &str = include_str!("../../examples/cluster.toml");

fn check(args: &[&str], dir: &Path, file: &str) -> Output {
    let mut command = Command::new(BINARY);
    command.current_dir(dir).args(["config", "check"]).args(args).arg(file);
    run(command, b"")
}

/// The line of the example that holds `piece` first, from 1 up.
fn line_of(piece: &str) -> usize {
    let (before, _) = EXAMPLE.split_once(piece).unwrap_or_else(|| panic!("{piece} is not in the example"));
    before.matches('\n').count() + 1
}

#[test]
fn the_example_is_good_and_shown_as_a_tree() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let output = check(&[], &examples, "cluster.toml");
    assert!(output.status.success(), "{output:?}");
    let shown = text(&output.stdout);
    let expected = "\
cluster demo: 7 sequencers, 1 standby, 4 shards, 12 replicas
transport tcp
metadata embedded, kept by root
data in flexlog-cluster
a standby takes over after 300 ms of silence
root at 127.0.0.1:7400
  left at 127.0.0.1:7401
    left-1 at 127.0.0.1:7403
      left-1-standby-1 at 127.0.0.1:7453
      shard 1, views of 2 or more
        replica 1 at 127.0.0.1:7411
        replica 2 at 127.0.0.1:7412
        replica 3 at 127.0.0.1:7413
    left-2 at 127.0.0.1:7404
";
    assert!(shown.starts_with(expected), "{shown}");
    assert!(shown.contains("\n  right at 127.0.0.1:7402\n    right-1 at"), "{shown}");
    assert_eq!(shown.lines().count(), 5 + 7 + 1 + 4 + 12);
    assert_eq!(text(&output.stderr), "");

    let output = check(&["--json"], &examples, "cluster.toml");
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&found["good"], &found["cluster"], &found["data"]),
        (&json!(true), &json!("demo"), &json!("flexlog-cluster"))
    );
    let right_2 = json!({
        "name": "right-2", "parent": "right", "depth": 2, "address": "127.0.0.1:7406", "linger_micros": 0,
        "standbys": []
    });
    assert_eq!((&found["detect_ms"], &found["sequencers"][3]["standbys"]), (&json!(300), &json!(["127.0.0.1:7453"])));
    assert_eq!((found["sequencers"].as_array().unwrap().len(), &found["sequencers"][6]), (7, &right_2));
    let replicas =
        [(4, 7414), (5, 7415), (6, 7416)].map(|(id, port)| json!({ "id": id, "address": format!("127.0.0.1:{port}") }));
    let shard = json!({ "id": 2, "leaf": "left-2", "min_view": 2, "replicas": replicas });
    assert_eq!((found["shards"].as_array().unwrap().len(), &found["shards"][1]), (4, &shard));
    assert_eq!(found["metadata"], json!({ "backend": "embedded", "sequencer": "root" }));
}

#[test]
fn each_mistake_is_told_with_its_line_and_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    // A piece of the example, what is there instead, the line that is to be named, and what is said.
    type Mistake<'a> = (&'a str, &'a str, usize, &'a [&'a str]);
    let at = line_of;
    #[rustfmt::skip]
    let mistakes: &[Mistake<'_>] = &[
        ("transport = \"tcp\"", "transprt = \"tcp\"", at("transport"), &["unknown key 'transprt' in the file", "did you mean transport?"]),
        ("high_mark = 75", "high_mark = \"75\"", at("high_mark"), &["high_mark is a string", "write high_mark = 75"]),
        ("cache = \"64MiB\"", "cache = \"64 M\"", at("cache ="), &["cache is '64 M'", "MiB", "write cache = \"64MiB\""]),
        ("\"left-2\"", "\"left 2\"", at("name = \"left-2\""), &["'left 2' is no name", "letters"]),
        ("\"left-2\"", "\"left-1\"", at("name = \"left-2\""), &["the name 'left-1' of a sequencer", "too: write another one"]),
        ("id = 2\nleaf", "id = 1\nleaf", at("id = 2\nleaf"), &["the id 1 of a shard", "too: write another one"]),
        ("id = 12\n", "id = 1\n", at("id = 12\n"), &["the id 1 of a replica", "too: write another one"]),
        (":7422", ":7400", at(":7422"), &["address '127.0.0.1:7400' of replica 12", "sequencer 'root'"]),
        ("127.0.0.1:7402", "localhost", at(":7402"), &["'localhost' is no address", "no port", "write address = "]),
        ("127.0.0.1:7402", "127.0.0.1:0", at(":7402"), &["the port '0'", "write address = "]),
        ("name = \"left\"\nparent", "name = \"left\"\n#", at("name = \"left\"") - 1, &["'left' has no parent", "the root is 'root'", "parent = \"root\""]),
        ("name = \"root\"", "name = \"root\"\nparent = \"left\"", at("name = \"root\"") + 1, &["'root' is below 'left' is below 'root', a circle"]),
        ("\"right-1\"\nparent = \"right\"", "\"right-1\"\nparent = \"rigth\"", at("name = \"right-1\"") + 1, &["there is no such sequencer", "did you mean right?"]),
        ("leaf = \"left-1\"", "leaf = \"left-l\"", at("leaf = \"left-1\""), &["leaf = 'left-l'", "did you mean left-1?"]),
        ("leaf = \"left-1\"", "leaf = \"left\"", at("name = \"left-1\"") - 1, &["no shard is below sequencer 'left-1'", "leave the sequencer out"]),
        ("leaf = \"left-1\"\nmin_view = 2", "leaf = \"left-1\"\nmin_view = 4", at("min_view"), &["min_view is 4", "3 replicas", "write min_view = 2"]),
        ("transport = \"tcp\"", "transport = \"quic\"", at("transport"), &["needs certificates", "[certificates]"]),
        ("backend = \"embedded\"", "backend = \"etcd\"", at("backend"), &["endpoints = [\"http://127.0.0.1:2379\"]"]),
        (":7453", ":7400", at(":7453"), &["address '127.0.0.1:7400' of standby 1 of 'left-1'", "sequencer 'root'"]),
        ("detect_ms = 300", "detect_ms = 0", at("detect_ms = 300"), &["detect_ms is 0", "50 to 60000", "write detect_ms = 300"]),
        ("[metadata]", "[metadata", at("[metadata]"), &["this is no TOML"]),
    ];
    for (piece, by, line, words) in mistakes {
        let spoilt = EXAMPLE.replace(piece, by);
        assert_ne!(spoilt, EXAMPLE, "{piece}");
        refused(folder.path(), &spoilt, *line, words);
    }
    let (sequencers, _) = EXAMPLE.split_once("[[shard]]").unwrap();
    refused(folder.path(), sequencers, at("name = \"right-2\"") - 1, &["there is no shard", "write [[shard]]"]);
    let (settings, rest) = EXAMPLE.split_once("[[sequencer]]").unwrap();
    let (_, shards) = rest.split_once("[[shard]]").unwrap();
    refused(
        folder.path(),
        &format!("{settings}[[shard]]{shards}"),
        1,
        &["there is no sequencer", "write [[sequencer]]"],
    );
    let one_more = format!("{EXAMPLE}\n[[shard]]\nid = 5\nleaf = \"right\"\n");
    refused(folder.path(), &one_more, EXAMPLE.lines().count() + 2, &["no replica", "[[shard.replica]]"]);
    let many: String = (13..26).map(|id| format!("[[shard.replica]]\nid = {id}\naddress = \"h:{id}\"\n")).collect();
    let line = at("id = 4\nleaf") - 1;
    refused(folder.path(), &format!("{EXAMPLE}{many}"), line, &["16 replicas", "may have 15"]);
}

/// `text` has one thing wrong with it, in this line, and what is said has all these words.
#[track_caller]
fn refused(folder: &Path, file: &str, line: usize, words: &[&str]) {
    fs::write(folder.join("c.toml"), file).unwrap();
    let output = check(&[], folder, "c.toml");
    let said = text(&output.stdout);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{words:?}: {output:?}");
    assert!(said.starts_with(&format!("c.toml:{line}: ")), "line {line} {words:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{word} in {said}");
    }
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn all_mistakes_of_a_file_are_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let spoilt = EXAMPLE
        .replace(":7422", "")
        .replace("name = \"root\"", "nam = \"root\"")
        .replace("high_mark = 75", "high_mark = 0");
    fs::write(folder.path().join("c.toml"), spoilt).unwrap();
    let output = check(&["--json"], folder.path(), "c.toml");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["good"], &found["file"]), (&json!(false), &json!("c.toml")));
    let errors = found["errors"].as_array().unwrap();
    let lines: Vec<u64> = errors.iter().map(|error| error["line"].as_u64().unwrap()).collect();
    assert!(lines.is_sorted(), "{lines:?}");
    for (line, word) in [
        (line_of("high_mark"), "1 to 99"),
        (line_of("name = \"root\"") - 1, "has no name"),
        (line_of("name = \"root\""), "did you mean name?"),
        (line_of(":7422"), "no port"),
    ] {
        let told = |error: &&Value| error["line"] == json!(line) && error["message"].as_str().unwrap().contains(word);
        assert!(errors.iter().any(|error| told(&error)), "{line} {word} in {errors:#?}");
    }
    let plain = check(&[], folder.path(), "c.toml");
    assert_eq!(text(&plain.stdout).lines().count(), errors.len());
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let output = check(&[], folder.path(), "missing.toml");
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""));
    assert!(text(&output.stderr).contains("cannot read the topology missing.toml: "), "{output:?}");
}
