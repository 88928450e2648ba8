//! On a disk, a record's number is told only after an fdatasync of every replica's file behind the record's write.
//!
//! `kill -9` does not show this, since it keeps the page cache; the system calls do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "a test that panics has failed")]

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use support::{BINARY, On, Server, folder, skipped, tool};

const RECORDS: usize = 30;
const REPLICAS: usize = 3;

fn marker(i: usize) -> String {
    format!("marker-{i:04}-end")
}

/// One system call of the trace: where it began and ended, in lines of the trace.
#[derive(Debug)]
struct Call {
    name: String,
    /// The file or socket that it is about.
    on: String,
    text: String,
    began: usize,
    ended: usize,
}

/// The calls of a trace written with `-f -y`: `PID name(FD<what>, …) = result`, or in two parts where another thread
/// came between.
fn calls(trace: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, line) in trace.lines().enumerate() {
        let Some((pid, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        if rest.starts_with("<... ") {
            if let Some(call) = open.remove(pid) {
                calls[call].ended = at;
                calls[call].text.push_str(rest);
            }
            continue;
        }
        let Some((name, arguments)) = rest.split_once('(') else { continue };
        let on = arguments.split_once('<').and_then(|(_, on)| on.split_once('>')).map_or("", |(on, _)| on);
        if rest.ends_with("<unfinished ...>") {
            open.insert(pid, calls.len());
        }
        calls.push(Call { name: name.into(), on: on.into(), text: rest.into(), began: at, ended: at });
    }
    calls
}

#[test]
fn a_number_is_told_after_an_fdatasync_behind_the_write_of_its_record() {
    let Some(strace) = tool("strace") else { return skipped("no `strace` on this machine (apt-get install strace)") };
    let Some(folder) = folder(On::Disk) else { return };
    let trace = folder.path().join("trace");
    let mut command = Command::new(strace);
    command.args([
        "-f",
        "-y",
        "-s",
        "2000",
        "-e",
        "trace=recvfrom,pwrite64,pwritev,fdatasync,sendto,write,writev",
        "-o",
    ]);
    command.arg(&trace).arg(BINARY).args(["up", "--listen", "127.0.0.1:0", "--dir"]).arg(folder.path().join("data"));
    let server = match Server::spawn(command) {
        Ok(server) => server,
        Err((_, errors)) if errors.contains("ptrace") || errors.contains("not permitted") => {
            return skipped(&format!("no right to trace a process: {errors}"));
        }
        Err((status, errors)) => panic!("{status}: {errors}"),
    };
    assert!(server.run(&["status"]).contains("file"), "the folder is on a disk");

    // One at a time: each number is told before the next line is written.
    let mut client =
        server.command(&["append", "orders"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (client.stdin.take().unwrap(), BufReader::new(client.stdout.take().unwrap()));
    for i in 0..RECORDS {
        input.write_all(format!("{}\n", marker(i)).as_bytes()).unwrap();
        let mut number = String::new();
        assert!(output.read_line(&mut number).unwrap() > 0);
    }
    drop(input);
    assert!(client.wait().unwrap().success());
    let (status, errors) = server.terminate_child();
    assert!(status.success(), "{status} {errors}");

    let trace = std::fs::read_to_string(trace).unwrap();
    let calls = calls(&trace);
    let arrival = |i: usize| calls.iter().find(|call| call.name == "recvfrom" && call.text.contains(&marker(i)));
    for i in 0..RECORDS {
        let arrived = arrival(i).unwrap_or_else(|| panic!("record {i} did not arrive"));
        // Each member answers for itself, and the client goes on when all have: the last answer before the next record.
        let next = arrival(i + 1).map_or(usize::MAX, |call| call.began);
        let answered = calls.iter().rfind(|call| {
            (arrived.ended..next).contains(&call.began)
                && matches!(call.name.as_str(), "writev" | "write" | "sendto")
                && (call.on.contains("TCP") || call.on.contains("socket"))
        });
        let answered = answered.unwrap_or_else(|| panic!("record {i} was not answered"));
        let writes: Vec<&Call> =
            calls.iter().filter(|call| call.name.starts_with("pwrite") && call.text.contains(&marker(i))).collect();
        let mut files: Vec<&str> = writes.iter().map(|call| call.on.as_str()).collect();
        files.sort_unstable();
        files.dedup();
        assert_eq!(files.len(), REPLICAS, "record {i} is written to {files:?}");
        for write in writes {
            let between = |call: &&Call| {
                call.name == "fdatasync"
                    && call.on == write.on
                    && call.began > write.ended
                    && call.ended < answered.began
            };
            let syncs = calls.iter().filter(between).filter(|call| call.text.ends_with("= 0")).count();
            // One for the record, one for the entry that numbers it.
            assert!(syncs >= 2, "record {i}: {syncs} fdatasync of {} between its write and its answer", write.on);
        }
    }
}
