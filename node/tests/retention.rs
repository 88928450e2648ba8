//! Colors that forget by themselves: by bytes, by age, after a restart, and not any more once they are told to keep all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "a test that panics has failed")]

mod support;

use std::time::{Duration, Instant};

use support::{On, Server, folder, numbers, text};

/// How long something may take that takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(120);
const LINE_BYTES: usize = 32 << 10;

/// Lines of [`LINE_BYTES`], each of which begins with its place.
fn lines(places: std::ops::Range<usize>) -> String {
    places.map(|i| format!("{:0<width$}\n", format!("{i:05} "), width = LINE_BYTES)).collect()
}

fn append(server: &Server, color: &str, input: &str) -> Vec<String> {
    let output = server.run_with(&["append", color], input.as_bytes());
    let given = text(&output.stdout);
    assert_eq!(numbers(&given).len(), input.lines().count());
    given.lines().map(str::to_owned).collect()
}

/// What `read` says of one number: the record, or why there is none.
fn read(server: &Server, color: &str, number: &str) -> Result<String, String> {
    let output = support::run(server.command(&["read", color, number]), b"");
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

fn is_trimmed(server: &Server, color: &str, number: &str) -> bool {
    match read(server, color, number) {
        Ok(_) => false,
        Err(says) => {
            assert!(says.contains("Trimmed"), "{says}");
            true
        }
    }
}

/// Asks until it is so.
fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        // Each question is a process of its own, so this does not spin.
        std::thread::yield_now();
    }
}

/// What is left of a color, in bytes of payload.
fn bytes_left(server: &Server, color: &str) -> usize {
    let left = server.run(&["read", color, "--from", "0.0"]);
    left.lines().map(str::len).sum()
}

fn described(server: &Server, color: &str) -> serde_json::Value {
    let listed = support::json_lines(&server.run(&["color", "list", "--json"]));
    listed.into_iter().find(|line| line["name"] == color).unwrap()
}

#[test]
fn a_color_with_a_bound_in_bytes_keeps_the_newest() {
    const MOST: usize = 4 << 20;
    for on in [On::Tmpfs, On::Disk] {
        let Some(folder) = folder(on) else { continue };
        let mut server = Server::start(folder.path());
        server.run(&["color", "create", "logs", "--max-bytes", "4MiB"]);
        let mut first = String::new();
        // After the restart it goes on by itself.
        for round in 0..2 {
            assert_eq!(described(&server, "logs")["max_bytes"], MOST);
            // What is in flight at once is one piece, so it comes in several.
            let given: Vec<String> =
                (0..8).flat_map(|part| append(&server, "logs", &lines(64 * part..64 * part + 64))).collect();
            if round == 0 {
                first.clone_from(&given[0]);
            }
            wait_until("what is above the bound goes", || bytes_left(&server, "logs") < 2 * MOST);
            let left = bytes_left(&server, "logs");
            assert!(left >= MOST, "{left} bytes are left of {MOST}");
            assert!(is_trimmed(&server, "logs", &first));
            assert!(is_trimmed(&server, "logs", &given[100]));
            // The newest bytes up to the bound are all there.
            let kept = MOST / LINE_BYTES;
            for at in [512 - kept, 511] {
                assert!(read(&server, "logs", &given[at]).unwrap().starts_with(&format!("{at:05}")), "{at}");
            }
            server.terminate();
            server = Server::start(folder.path());
        }
    }
}

#[test]
fn a_color_with_a_bound_in_age_forgets_what_is_older() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    let kept = append(&server, "kept", "for ever\n");
    server.run(&["color", "create", "moods", "--max-age", "2s"]);
    let began = Instant::now();
    let given = append(&server, "moods", "one\ntwo\n");
    wait_until("both go", || is_trimmed(&server, "moods", &given[1]));
    assert!(began.elapsed() > Duration::from_secs(2), "they went early, after {:?}", began.elapsed());
    assert_eq!(bytes_left(&server, "moods"), 0);
    let next = append(&server, "moods", "three\n");
    wait_until("so does the next", || is_trimmed(&server, "moods", &next[0]));
    assert_eq!(read(&server, "kept", &kept[0]).unwrap(), "for ever\n");
}

#[test]
fn ages_outlive_a_restart_and_an_idle_color_forgets_too() {
    let Some(folder) = folder(On::Disk) else { return };
    let server = Server::start(folder.path());
    let given = append(&server, "moods", "one\ntwo\n");
    server.run(&["color", "set", "moods", "--max-age", "1h"]);
    server.terminate();
    // The color's epoch ends with this: its numbers go on in another, in which there is none yet.
    let server = Server::start(folder.path());
    server.run(&["colors"]);
    let described = described(&server, "moods");
    assert_eq!((&described["max_age_secs"], &described["max_bytes"]), (&3600.into(), &serde_json::Value::Null));
    assert_eq!(read(&server, "moods", &given[1]).unwrap(), "two\n");
    server.terminate();
    // It was written two hours ago, as far as the node knows.
    let file = folder.path().join("retention.json");
    let mut content: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(content["version"], 1);
    let samples = content["colors"][0][1].as_array_mut().unwrap();
    assert!(!samples.is_empty());
    for sample in samples {
        sample[0] = (sample[0].as_u64().unwrap() - 7200).into();
    }
    std::fs::write(&file, content.to_string()).unwrap();
    let server = Server::start(folder.path());
    wait_until("they go", || is_trimmed(&server, "moods", &given[1]));
    server.terminate();
    // Without the file nothing is known of ages, and a color whose epoch is empty ages all the same.
    let server = Server::start(folder.path());
    let given = append(&server, "others", "one\n");
    server.terminate();
    let server = Server::start(folder.path());
    server.run(&["colors"]);
    server.terminate();
    std::fs::remove_file(&file).unwrap();
    let server = Server::start(folder.path());
    assert_eq!(read(&server, "others", &given[0]).unwrap(), "one\n");
    server.run(&["color", "set", "others", "--max-age", "1s"]);
    wait_until("it goes", || is_trimmed(&server, "others", &given[0]));
    server.terminate();
    // Another version is refused in words.
    std::fs::write(&file, r#"{"version":9}"#).unwrap();
    let mut command = std::process::Command::new(support::BINARY);
    command.args(["up", "--listen", "127.0.0.1:0", "--dir"]).arg(folder.path());
    let (_, says) = Server::spawn(command).err().unwrap();
    assert!(
        says.contains("retention.json") && says.contains("version 9") && says.contains("remove the file"),
        "{says}"
    );
}

#[test]
fn none_keeps_everything_from_then_on() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    server.run(&["color", "create", "a", "--max-age", "1s", "--max-bytes", "1MiB"]);
    server.run(&["color", "create", "b", "--max-age", "1s"]);
    assert_eq!(
        server.run(&["color", "set", "a", "--max-age", "none", "--max-bytes", "none"]),
        "a  (owner root, shard 1, kept until trimmed)\n"
    );
    let kept = append(&server, "a", &lines(0..64));
    let gone = append(&server, "b", "x\n");
    wait_until("the other forgets", || is_trimmed(&server, "b", &gone[0]));
    assert_eq!(bytes_left(&server, "a"), 64 * LINE_BYTES);
    assert!(read(&server, "a", &kept[0]).is_ok());
    let tail = support::json_lines(&server.run(&["colors", "--json"]))[1]["tail"].as_str().unwrap().to_owned();
    assert!(server.run(&["colors"]).ends_with(&format!("b  (next number {tail}, owner root, shard 1, kept 1s)\n")));
}

#[test]
fn what_is_asked_for_is_understood_or_refused_in_words() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    let create = ["color", "create", "orders", "--max-age", "7d", "--max-bytes", "10GiB"];
    assert_eq!(server.run(&create), "orders  (owner root, shard 1, kept 1w, the newest 10GiB kept)\n");
    assert_eq!(
        server.run(&create),
        "orders  (owner root, shard 1, kept 1w, the newest 10GiB kept)\n",
        "it is there, as asked"
    );
    let says = server.fails(&["color", "create", "orders", "--max-age", "1h"], b"", 1);
    assert!(says.contains("orders") && says.contains("color set"), "{says}");
    // The other bound stays.
    assert_eq!(
        server.run(&["color", "set", "orders", "--max-age", "90m"]),
        "orders  (owner root, shard 1, kept 90m, the newest 10GiB kept)\n"
    );
    let said = support::json_lines(&server.run(&["color", "set", "orders", "--max-age", "none", "--json"]));
    assert_eq!(
        said,
        [serde_json::json!({
            "name": "orders", "id": 1, "owner": "root", "shards": [1], "max_age_secs": null, "max_bytes": 10_u64 << 30
        })]
    );
    let says = server.fails(&["color", "set", "missing", "--max-age", "1h"], b"", 1);
    assert!(says.contains("missing"), "{says}");
    for (args, word) in [
        (&["color", "set", "orders"][..], "--max-age"),
        (&["color", "set", "orders", "--max-age", "soon"], "soon"),
        (&["color", "create", "c", "--max-bytes", "10"], "10GiB"),
    ] {
        let says = server.fails(args, b"", 2);
        assert!(says.contains(word), "{says}");
    }
    assert_eq!(server.run(&["colors", "--json"]).lines().count(), 1);
}
