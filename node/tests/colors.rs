//! Several colors and several clients: order, trim, and those who follow.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "a test that panics has failed")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

use support::{On, Server, assert_contiguous, folder, numbers};

#[test]
fn each_color_has_its_own_contiguous_numbers() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    const LINES: usize = 5000;
    let writers = [("shared", "a"), ("shared", "b"), ("left", "c"), ("right", "d")];
    let input = |name: &str| (0..LINES).map(|i| format!("{name} {i}\n")).collect::<String>();
    std::thread::scope(|scope| {
        for (color, name) in writers {
            let server = &server;
            scope.spawn(move || server.run_with(&["append", color], input(name).as_bytes()));
        }
    });
    for (color, names) in [("shared", &["a", "b"][..]), ("left", &["c"]), ("right", &["d"])] {
        let output = server.run(&["read", color, "--from", "0.0", "--json"]);
        let given: String =
            support::json_lines(&output).iter().map(|r| r["number"].as_str().unwrap().to_owned() + "\n").collect();
        let given = numbers(&given);
        assert_eq!(given.len(), LINES * names.len(), "{color}");
        assert_contiguous(&given, 0);
        let lines = server.run(&["read", color, "--from", "0.0"]);
        for name in names {
            let of_one: String = lines.split_inclusive('\n').filter(|line| line.starts_with(name)).collect();
            assert_eq!(of_one, input(name), "{color}: the lines of one writer stay in order");
        }
    }
    let listed = server.run(&["colors", "--json"]);
    let names: Vec<_> = support::json_lines(&listed).iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["left", "right", "shared"]);
}

#[test]
fn a_color_says_who_counts_for_it_and_where_it_is() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    let created = server.run(&["color", "create", "a", "--owner", "root", "--width", "1"]);
    assert_eq!(created, "a  (owner root, shard 1, kept until trimmed)\n");
    assert_eq!(server.run(&["color", "create", "a"]), created, "again, as a script would");
    for (args, word) in [(["--owner", "eu"], "'eu'"), (["--width", "2"], "width 2")] {
        let says = server.fails(&["color", "create", "b", args[0], args[1]], b"", 1);
        assert!(says.contains(word), "{says}");
        let says = server.fails(&["color", "create", "a", args[0], args[1]], b"", 1);
        assert!(says.contains("is there already"), "{says}");
    }
    let listed = support::json_lines(&server.run(&["colors", "--json"]));
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["owner"], &listed[0]["shards"]), (&"root".into(), &serde_json::json!([1])));
}

/// A client that takes one line at a time and tells its number before the next.
struct Writer {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    child: std::process::Child,
}

impl Writer {
    fn start(server: &Server, color: &str) -> Self {
        let mut command = server.command(&["append", color]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Self { input: child.stdin.take().unwrap(), output: BufReader::new(child.stdout.take().unwrap()), child }
    }

    fn append(&mut self, line: &str) -> (u32, u32) {
        self.input.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut number = String::new();
        self.output.read_line(&mut number).unwrap();
        numbers(&number)[0]
    }

    fn finish(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn an_append_that_was_acknowledged_first_has_the_smaller_number() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    let mut writers = [Writer::start(&server, "orders"), Writer::start(&server, "orders")];
    let mut last = None;
    for i in 0..1000 {
        let number = Some(writers[i % 2].append("x"));
        assert!(last < number, "{last:?} was acknowledged before {number:?} was sent");
        last = number;
    }
    writers.into_iter().for_each(Writer::finish);
}

#[test]
fn behind_the_trim_point_there_is_trimmed_once_and_then_the_rest() {
    for on in [On::Tmpfs, On::Disk] {
        let Some(folder) = folder(on) else { return };
        let mut server = Server::start(folder.path());
        let lines: String = (0..100).map(|i| format!("line {i}\n")).collect();
        let output = server.run_with(&["append", "orders"], lines.as_bytes());
        let given: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        server.run(&["trim", "orders", &given[59]]);
        // As it is, and as it is after a restart.
        for _ in 0..2 {
            let says = server.fails(&["read", "orders", &given[10]], b"", 1);
            assert!(says.contains("Trimmed") && says.contains(&given[59]), "{says}");
            let read = server.run_with(&["read", "orders", "--from", &given[10]], b"");
            let says = support::text(&read.stderr);
            assert_eq!(says.matches("Trimmed").count(), 1, "{says}");
            assert!(says.contains(&given[59]), "{says}");
            let rest: String = (60..100).map(|i| format!("line {i}\n")).collect();
            assert_eq!(support::text(&read.stdout), rest);
            let says = server.run(&["read", "orders", "--from", "0.0", "--json"]);
            let trimmed: Vec<_> =
                support::json_lines(&says).into_iter().filter_map(|line| line.get("trimmed").cloned()).collect();
            assert_eq!(trimmed, [serde_json::Value::String(given[59].clone())]);
            server.terminate();
            server = Server::start(folder.path());
        }
        let says = server.fails(&["trim", "orders", "4000000000.0"], b"", 1);
        assert!(says.contains("4000000000.0"), "{says}");
    }
}

#[test]
fn a_follower_sees_what_comes() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    server.run_with(&["append", "orders"], b"1\n2\n3\n");
    let mut follower = server.command(&["tail", "orders", "--last", "2", "--follow"]);
    let mut follower = follower.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.by_ref().take(2).collect::<Vec<_>>(), ["2", "3"]);
    server.run_with(&["append", "orders"], b"4\n5\n");
    assert_eq!(lines.by_ref().take(2).collect::<Vec<_>>(), ["4", "5"]);
    follower.kill().unwrap();
    follower.wait().unwrap();
    assert_eq!(server.run(&["tail", "orders"]), "1\n2\n3\n4\n5\n");
    assert_eq!(server.run(&["tail", "orders", "--last", "1"]), "5\n");
    let first = server.run(&["tail", "orders", "--last", "1", "--json"]);
    let number = support::json_lines(&first)[0]["number"].as_str().unwrap().to_owned();
    assert_eq!(server.run(&["tail", "orders", "--from", &number]), "5\n");
    assert_eq!(server.run(&["read", "orders", "--from", "0.0", "--limit", "2"]), "1\n2\n");
    let epoch = number.split_once('.').unwrap().0;
    let to = format!("{epoch}.2");
    assert_eq!(server.run(&["read", "orders", "--from", "0.0", "--to", &to]), "1\n2\n3\n");
}
