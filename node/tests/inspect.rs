//! `flexlog inspect` and `flexlog verify` on real folders: of a cluster that runs, one that stopped, and damaged ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "a test that panics has failed")]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use support::{BINARY, On, Server, copy_folder, folder, run, text};

const SMALL: [&str; 6] = ["--area-limit", "75497472", "--segment", "8388608", "--high-mark", "20"];

fn look(args: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(BINARY);
    command.args(args).arg(dir);
    run(command, b"")
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error} in {}", text(&output.stdout)))
}

/// Every file and folder with what may change when somebody touches it.
fn state(dir: &Path, into: &mut BTreeMap<PathBuf, (u64, i64, i64, Vec<u8>)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let found = fs::symlink_metadata(&path).unwrap();
        let bytes = if found.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        into.insert(path.clone(), (found.len(), found.mtime(), found.mtime_nsec(), bytes));
        if found.is_dir() {
            state(&path, into);
        }
    }
}

fn unchanged<T>(dir: &Path, during: impl FnOnce() -> T) -> T {
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    state(dir, &mut before);
    let result = during();
    state(dir, &mut after);
    let same = before == after;
    assert!(same, "{:?} became {:?}", before.keys(), after.keys());
    result
}

fn flip(file: &Path, at: u64) {
    let opened = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    opened.read_exact_at(&mut byte, at).unwrap();
    opened.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

#[test]
fn a_folder_is_looked_into_while_it_is_used_and_verified_when_it_is_not() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let dir = folder.path().join("data");
    let more: Vec<&str> = SMALL.into_iter().chain(["--replicas", "1"]).collect();
    let server = Server::start_at(&dir, "127.0.0.1:0", &more);
    let mut lines = String::new();
    let wanted = 30_000;
    for i in 0..wanted {
        let _ = writeln!(lines, "{i:06} {}", "x".repeat(1000));
    }
    server.run_with(&["append", "many"], lines.as_bytes());
    server.run_with(&["append", "few"], b"a\nb\nc\n");

    // While it is used.
    let output = look(&["inspect", "--json"], &dir);
    assert_eq!(code(&output), Some(0), "{}", text(&output.stderr));
    let value = json(&output);
    let replica = &value["replicas"][0];
    assert_eq!(replica["in_use"], true);
    assert_eq!(replica["records"], wanted + 3, "{replica:#}");
    assert!(!replica["ssd"]["files"].as_array().unwrap().is_empty(), "nothing moved: {replica:#}");
    assert!(replica["findings"].as_array().unwrap().iter().all(|finding| finding["fault"] == false), "{replica:#}");
    let output = look(&["verify"], &dir);
    assert_eq!(code(&output), Some(2));
    assert!(text(&output.stderr).contains("in use"), "{}", text(&output.stderr));
    server.run_with(&["append", "few"], b"d\n");
    let (status, errors) = server.terminate();
    assert!(status.success(), "{errors}");

    // When it is not.
    let area = dir.join("replica-1/area");
    let area = if area.exists() { area } else { dir.join("replica-0/area") };
    unchanged(&dir, || {
        for place in [&dir, area.parent().unwrap()] {
            let output = look(&["verify"], place);
            assert_eq!(code(&output), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
            assert!(text(&output.stdout).contains(": sound: "), "{}", text(&output.stdout));
        }
        assert_eq!(json(&look(&["verify", "--json"], &dir))["sound"], true);
        let output = look(&["inspect"], &dir);
        let said = text(&output.stdout);
        assert!(said.contains("30004") && said.contains("live") && !said.contains("FAULT"), "{said}");
        let output = look(&["inspect", "--entries"], &dir);
        assert!(text(&output.stdout).contains("open session"));
        let output = look(&["inspect", "--entries", "--json"], &dir);
        let lines = support::json_lines(&text(&output.stdout));
        let listed = lines.iter().filter(|line| line["kind"].is_string()).count() as u64;
        assert_eq!(lines.last().unwrap()["replicas"][0]["log"]["entries"], listed);
    });
    let report = json(&look(&["inspect", "--json"], &dir));

    // Damaged in the middle of the log, and in a file.
    let copy = folder.path().join("copy");
    copy_folder(&dir, &copy);
    let own = |path: &Path| copy.join(path.strip_prefix(&dir).unwrap());
    let replica = &report["replicas"][0];
    let live = replica["segments"].as_array().unwrap().iter().find(|segment| segment["state"] == "live").unwrap();
    let at = live["offset"].as_u64().unwrap() + live["used"].as_u64().unwrap() / 2;
    let file = own(Path::new(replica["ssd"]["files"][0]["path"].as_str().unwrap()));
    flip(&own(&area), at);
    flip(&file, 5000);
    unchanged(&copy, || {
        let output = look(&["verify"], &copy);
        let said = text(&output.stdout);
        assert_eq!(code(&output), Some(1), "{said}");
        for path in [&own(&area), &file] {
            assert!(said.contains(&format!("{}: byte ", path.display())), "{said}");
        }
        // Where the entry begins that the byte is in.
        let prefix = format!("{}: byte ", own(&area).display());
        let offsets =
            said.lines().filter_map(|line| line.strip_prefix(&prefix)?.split(':').next()?.parse::<u64>().ok());
        assert!(offsets.into_iter().any(|offset| offset <= at && at - offset < 8 << 20), "{at}: {said}");
        let value = json(&look(&["verify", "--json"], &copy));
        assert_eq!(value["sound"], false);
        assert!(value["replicas"][0]["findings"].as_array().unwrap().iter().any(|finding| finding["fault"] == true));
        // The rest can be looked at.
        let output = look(&["inspect"], &copy);
        assert_eq!(code(&output), Some(0));
        assert!(text(&output.stdout).contains("FAULT"));
    });
    // Files that are elsewhere.
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(own(&area).parent().unwrap().join("ssd"), &elsewhere).unwrap();
    let output = look(&["verify"], &copy);
    assert!(text(&output.stdout).contains("--ssd"), "{}", text(&output.stdout));
    let output = look(&["verify", "--ssd", elsewhere.to_str().unwrap()], &copy);
    assert!(text(&output.stdout).contains("elsewhere/0000000001.ssd: byte "), "{}", text(&output.stdout));
}

#[test]
fn what_is_no_folder_of_a_cluster_is_refused_by_name() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    fs::write(folder.path().join("something"), b"else").unwrap();
    for command in ["inspect", "verify"] {
        for dir in [folder.path().to_owned(), folder.path().join("none"), folder.path().join("something")] {
            let output = unchanged(folder.path(), || look(&[command], &dir));
            assert_eq!(code(&output), Some(2), "{dir:?}");
            assert!(text(&output.stderr).contains(dir.to_str().unwrap()), "{}", text(&output.stderr));
        }
    }
}
