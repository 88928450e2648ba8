//! `kill -9` at random moments of a load: every number that was printed reads back with its bytes, and a client that
//! outlives the server finishes with each line exactly once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "a test that panics has failed")]

mod support;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use support::{On, Seeded, Server, folder, free_port, turn};

const KILLS: u64 = 20;
/// Numbers that are printed before the server may be killed.
const PRINTED: u64 = 1000;

/// Numbers as they are printed, and a way to wait for them.
#[derive(Default)]
struct Printed {
    numbers: Mutex<Vec<String>>,
    more: Condvar,
}

impl Printed {
    fn wait_for(&self, count: usize) {
        let numbers = self.numbers.lock().unwrap();
        drop(self.more.wait_while(numbers, |numbers| numbers.len() < count).unwrap());
    }
}

fn line(kill: u64, i: usize) -> String {
    format!("kill {kill} line {i}")
}

fn kills(on: On, seed: u64) {
    let _turn = turn();
    let Some(folder) = folder(on) else { return };
    let mut seeded = Seeded::new(seed);
    let listen = format!("127.0.0.1:{}", free_port());
    let mut server = Server::start_at(folder.path(), &listen, &[]);
    let mut printed_before: Vec<(String, String)> = Vec::new();
    for kill in 0..KILLS {
        let color = format!("load-{kill}");
        let mut client = server.command(&["append", &color]);
        let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let fed = Arc::new(AtomicUsize::new(0));
        let mut stdin = client.stdin.take().unwrap();
        let feeder = std::thread::spawn({
            let (stop, fed) = (Arc::clone(&stop), Arc::clone(&fed));
            move || {
                // The pipe and the client's own bounds hold it back when the server is away.
                while !stop.load(Ordering::Acquire) {
                    let i = fed.fetch_add(1, Ordering::AcqRel);
                    stdin.write_all((line(kill, i) + "\n").as_bytes()).unwrap();
                }
            }
        });
        let printed = Arc::new(Printed::default());
        let stdout = BufReader::new(client.stdout.take().unwrap());
        let reader = std::thread::spawn({
            let printed = Arc::clone(&printed);
            move || {
                for number in stdout.lines() {
                    printed.numbers.lock().unwrap().push(number.unwrap());
                    printed.more.notify_all();
                }
            }
        });

        printed.wait_for((PRINTED + seeded.below(5000)) as usize);
        server.kill();
        let told = printed.numbers.lock().unwrap().clone();
        server = Server::start_at(folder.path(), &listen, &[]);
        // More goes through the new server before the input ends.
        printed.wait_for(told.len() + 500);
        stop.store(true, Ordering::Release);
        feeder.join().unwrap();
        assert!(client.wait().unwrap().success(), "kill {kill}: the client outlives the server and finishes");
        reader.join().unwrap();

        let fed = fed.load(Ordering::Acquire);
        let numbers = printed.numbers.lock().unwrap().clone();
        assert_eq!(numbers.len(), fed, "kill {kill}: one number a line");
        assert!(numbers.len() as u64 >= PRINTED);
        let log = read_all(&server, &color);
        assert_eq!(log.len(), fed, "kill {kill}: each line is there once and nothing else is");
        for (i, number) in numbers.iter().enumerate() {
            assert_eq!(log.get(number), Some(&line(kill, i)), "kill {kill}: {number}");
        }
        let at = seeded.below(numbers.len() as u64) as usize;
        printed_before.push((color, numbers[at].clone()));
    }
    // What was settled many crashes ago is still there.
    for (kill, (color, number)) in printed_before.iter().enumerate() {
        let line = server.run(&["read", color, number]);
        assert!(line.starts_with(&format!("kill {kill} line ")), "{color} {number}: {line}");
    }
}

/// Every record of a color by its number.
fn read_all(server: &Server, color: &str) -> HashMap<String, String> {
    use base64::Engine as _;
    let output = server.run(&["read", color, "--from", "0.0", "--json"]);
    let decode = |text: &str| base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    let all: Vec<(String, String)> = support::json_lines(&output)
        .into_iter()
        .map(|record| {
            let payload = decode(record["payload"].as_str().unwrap());
            (record["number"].as_str().unwrap().to_owned(), String::from_utf8(payload).unwrap())
        })
        .collect();
    let count = all.len();
    let by_number: HashMap<_, _> = all.into_iter().collect();
    assert_eq!(by_number.len(), count, "no number is there twice");
    by_number
}

#[test]
fn killed_on_tmpfs() {
    kills(On::Tmpfs, 11);
}

#[test]
fn killed_on_disk() {
    kills(On::Disk, 12);
}

#[test]
fn a_stop_by_signal_is_a_clean_one() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    server.run_with(&["append", "orders"], b"one\ntwo\n");
    let (status, errors) = server.terminate();
    assert!(status.success(), "{status} {errors}");
    assert_eq!(errors, "");
    let server = Server::start(folder.path());
    assert_eq!(server.run(&["tail", "orders"]), "one\ntwo\n");
}
