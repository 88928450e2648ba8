//! Bytes of records that rot in the folders of a real cluster's replicas: readers get the right ones all the same, what is
//! damaged is written again, and only what is damaged on every replica is an error.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "tests")]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{BINARY, On, Server, folder, numbers, run, text, turn};

const PATIENCE: Duration = Duration::from_secs(60);
/// Records of 32 KiB: three segments and more.
const RECORDS: usize = 900;

fn payload(i: usize) -> String {
    let words = (0..).map(|word| format!("{i:05}x{word:05}."));
    let mut line: String = words.take(32768 / 12).collect();
    line.truncate(32000);
    line
}

fn start(folder: &Path, scrub: &str) -> Server {
    let size = ["--segment", "8388608", "--area-limit", "67108864", "--high-mark", "10"];
    Server::start_at(folder, "127.0.0.1:0", &[&size[..], &["--scrub-mib-s", scrub]].concat())
}

fn replicas(server: &Server) -> Vec<Value> {
    let status: Value = serde_json::from_str(&server.run(&["status", "--json"])).unwrap();
    fn find(value: &Value, into: &mut Vec<Value>) {
        match value {
            Value::Object(fields) if fields.contains_key("ssd_files") => into.push(value.clone()),
            Value::Object(fields) => fields.values().for_each(|value| find(value, into)),
            Value::Array(values) => values.iter().for_each(|value| find(value, into)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    find(&status, &mut found);
    assert_eq!(found.len(), 3, "{status}");
    found
}

fn sum(server: &Server, what: &str) -> u64 {
    replicas(server).iter().map(|replica| replica[what].as_u64().unwrap()).sum()
}

fn wait_for(server: &Server, what: &str, mut holds: impl FnMut(&[Value]) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        let now = replicas(server);
        if holds(&now) {
            return;
        }
        assert!(Instant::now() < end, "{what} does not come: {now:?}");
    }
}

/// A cluster with records in its areas and in SSD files, and the number of each.
fn filled(folder: &Path) -> (Server, Vec<String>) {
    let server = start(folder, "0");
    let lines: String = (0..RECORDS).map(|i| payload(i) + "\n").collect();
    let output = text(&server.run_with(&["append", "red"], lines.as_bytes()).stdout);
    let numbers = numbers(&output).into_iter().map(|(epoch, counter)| format!("{epoch}.{counter}")).collect();
    // What stands behind them tells that they were durable.
    (0..2).for_each(|_| drop(server.run_with(&["append", "blue"], b"the end\n")));
    wait_for(&server, "a move", |replicas| replicas.iter().all(|replica| replica["ssd_records"].as_u64() > Some(100)));
    (server, numbers)
}

fn files(folder: &Path, replica: u32) -> (PathBuf, Vec<PathBuf>) {
    let folder = folder.join(format!("replica-{replica}"));
    let ssd = fs::read_dir(folder.join("ssd")).unwrap().map(|entry| entry.unwrap().path());
    (folder.join("area"), ssd.filter(|path| path.extension().is_some_and(|ext| ext == "ssd")).collect())
}

/// Changes a byte of a record in this file, if it is there.
fn rot(path: &Path, i: usize) -> bool {
    let bytes = fs::read(path).unwrap();
    let payload = payload(i);
    let Some(at) = bytes.windows(24).position(|window| window == &payload.as_bytes()[..24]) else { return false };
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(b"!", at as u64 + 100).unwrap();
    true
}

/// The same wherever a replica has it.
fn rot_all(folder: &Path, replica: u32, i: usize) {
    let (area, ssd) = files(folder, replica);
    let hit = [rot(&area, i)].into_iter().chain(ssd.iter().map(|path| rot(path, i))).filter(|hit| *hit).count();
    assert!(hit > 0, "record {i} is not found in the folder of replica {replica}");
}

/// Every connection reads from another replica, in turn.
fn reads_well(server: &Server, number: &str, i: usize) {
    for _ in 0..3 {
        assert_eq!(server.run(&["read", "red", number]).trim_end(), payload(i), "record {i}");
    }
}

fn verify(folder: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(BINARY);
    command.arg("verify").arg(folder);
    let output = run(command, b"");
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn a_reader_gets_the_right_bytes_and_the_damage_is_mended() {
    let _turn = turn();
    let Some(folder) = folder(On::Tmpfs) else { return };
    let (server, numbers) = filled(folder.path());
    // The oldest are in SSD files, the newest in the area, which the process has mapped.
    let (area, ssd) = files(folder.path(), 1);
    assert!(ssd.iter().any(|path| rot(path, 3)), "record 3 is in no SSD file");
    assert!(rot(&area, RECORDS - 2));
    for i in [3, RECORDS - 2, RECORDS - 1] {
        reads_well(&server, &numbers[i], i);
    }
    wait_for(&server, "the repair", |replicas| {
        replicas.iter().map(|replica| replica["repaired"].as_u64().unwrap()).sum::<u64>() == 2
    });
    assert_eq!((sum(&server, "damaged"), sum(&server, "lost")), (2, 0));
    let status = server.run(&["status"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(status.contains("2 records found damaged, 2 repaired"), "{status}");
    let (status, errors) = server.terminate();
    assert!(status.success(), "{errors}");
    assert!(errors.contains("damaged") && errors.contains(&numbers[3]), "{errors}");

    let (code, said) = verify(folder.path());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("note:") && said.contains(&format!("/{} is damaged", numbers[3])), "{said}");
    let server = start(folder.path(), "0");
    for i in [3, RECORDS - 2] {
        reads_well(&server, &numbers[i], i);
    }
    assert_eq!(sum(&server, "damaged"), 0, "it was written again for good");
}

#[test]
fn damage_that_nobody_reads_is_found_and_what_is_damaged_everywhere_is_named() {
    let _turn = turn();
    let Some(folder) = folder(On::Tmpfs) else { return };
    let (server, numbers) = filled(folder.path());
    assert!(server.terminate().0.success());
    rot_all(folder.path(), 1, 5);
    rot_all(folder.path(), 2, RECORDS - 50);
    (1..=3).for_each(|replica| rot_all(folder.path(), replica, 7));
    let (code, said) = verify(folder.path());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("/{} is damaged", numbers[5])), "{said}");

    let server = start(folder.path(), "4000");
    wait_for(&server, "the end of a pass", |replicas| {
        replicas.iter().all(|replica| {
            replica["scrub_passes"].as_u64() > Some(0) && replica["scrubbed_bytes"].as_u64() > Some(1 << 24)
        })
    });
    wait_for(&server, "the repair", |replicas| {
        replicas.iter().map(|replica| replica["repaired"].as_u64().unwrap()).sum::<u64>() == 2
    });
    // Each replica has found that for itself.
    wait_for(&server, "the loss", |replicas| replicas.iter().all(|replica| replica["lost"].as_u64() == Some(1)));
    for i in [5, RECORDS - 50] {
        reads_well(&server, &numbers[i], i);
    }
    let said = server.fails(&["read", "red", &numbers[7]], b"", 1);
    assert!(said.contains(&format!("/{}", numbers[7])) && said.contains("no other member"), "{said}");
    reads_well(&server, &numbers[8], 8);
}
