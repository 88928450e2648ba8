//! Media that fail and fill under a running `flexlog up`: every failure is said by name, what was acknowledged stays
//! readable, a full medium is `Full` and no more than that, and the process never ends by it.
//!
//! Failures come from the system calls: strace is attached to the server for as long as they are to last, and changes the
//! calls that are about one path. A small tmpfs is mounted where only the server sees it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "a test that panics has failed")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use support::{BINARY, On, Server, folder, numbers, run, skipped, text, tool, turn};
use tempfile::TempDir;

/// How long something that must come may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The smallest segment that a cluster can have.
const SEGMENT: u64 = 8 << 20;

/// Faults that last until it is stopped.
struct Fault(Child);

impl Fault {
    /// Has calls of `server` that are about one of `paths` fail as `inject` says, see strace(1). `None`, said loudly,
    /// where this machine does not let us.
    fn start(server: &Server, paths: &[PathBuf], inject: &str) -> Option<Self> {
        let Some(strace) = tool("strace") else {
            skipped("no `strace` on this machine (apt-get install strace)");
            return None;
        };
        let calls = inject.split(':').next().unwrap();
        let mut command = Command::new(strace);
        command.args(["-f", "-o", "/dev/null", "-e", &format!("trace={calls}"), "-e", &format!("inject={inject}")]);
        for path in paths {
            command.arg("-P").arg(path);
        }
        command.args(["-p", &server.pid().to_string()]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("attached") {
            if errors.read_line(&mut said).unwrap() == 0 {
                child.wait().unwrap();
                skipped(&format!("no right to trace a process: {said}"));
                return None;
            }
        }
        // What follows is about threads that come and go; it must be taken for strace not to wait.
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        Some(Self(child))
    }

    /// The server goes on, its calls as they are.
    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn up(folder: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["up", "--listen", "127.0.0.1:0", "--dir"]).arg(folder).args(more);
    command
}

fn start(command: Command) -> Server {
    Server::spawn(command).unwrap_or_else(|(status, errors)| panic!("`up` ended with {status}: {errors}"))
}

/// An `append` that is fed one line at a time.
struct Feeder {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Feeder {
    fn start(server: &Server, color: &str) -> Self {
        let mut command = server.command(&["append", color]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// Appends a line; gives its number, or `None` where it was not acknowledged.
    fn feed(&mut self, line: &str) -> Option<String> {
        self.input.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut number = String::new();
        (self.output.read_line(&mut number).unwrap() > 0).then(|| number.trim_end().to_owned())
    }

    /// What it said when it gave up.
    fn ended(mut self) -> String {
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(1), "{errors}");
        errors
    }
}

fn contains(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "'{word}' is not in: {said}");
    }
}

fn lines(text: &str, name: &str, count: usize) -> String {
    (0..count).map(|i| format!("{name} {i} {text}\n")).collect()
}

/// A fault on a running server after which its one replica takes nothing any more: that is said, and why; reads go on; the
/// process ends when it is told to; after a restart everything acknowledged is there.
fn is_final(command: impl Fn() -> Command, paths: &[PathBuf], inject: &str, why: &[&str]) {
    let mut server = start(command());
    let before = lines("", "before", 50);
    server.run_with(&["append", "orders"], before.as_bytes());
    let mut feeder = Feeder::start(&server, "orders");
    assert!(feeder.feed("the last").is_some());
    let acknowledged = before + "the last\n";

    let Some(fault) = Fault::start(&server, paths, inject) else { return };
    assert_eq!(feeder.feed("lost"), None, "an append that cannot be made durable is not acknowledged");
    // Whether it is on the medium nobody knows.
    let said = feeder.ended();
    contains(&said, &["orders"]);
    // Whoever comes now is told at once.
    contains(&server.fails(&["append", "orders"], b"more\n", 1), why);
    contains(&server.run(&["status"]), why);
    let found = server.run(&["read", "orders", "--from", "0.0"]);
    assert!(found.starts_with(&acknowledged), "reads go on");
    fault.stop();

    // For good, though the medium would take more.
    contains(&server.fails(&["append", "orders"], b"more\n", 1), why);
    contains(&server.fails(&["trim", "orders", "1.0"], b"", 1), why);
    assert!(server.run(&["read", "orders", "--from", "0.0"]).starts_with(&acknowledged), "reads go on");
    assert!(server.is_running());
    let (status, errors) = server.terminate();
    assert!(status.success(), "{status} {errors}");
    contains(&errors, why);
    assert!(!errors.contains("panicked"), "{errors}");

    let server = start(command());
    let found = server.run(&["read", "orders", "--from", "0.0"]);
    assert!(found == acknowledged || found == acknowledged.clone() + "lost\n", "after a restart: {found}");
    server.run_with(&["append", "orders"], b"after\n");
    assert!(server.run(&["tail", "orders"]).ends_with("after\n"));
}

/// The same for a fault of the area.
fn is_final_for_the_area(on: On, variables: &[(&str, &str)], inject: &str, error: &str) {
    let Some(folder) = folder(on) else { return };
    let area = folder.path().join("replica-1/area");
    let command = || {
        let mut command = up(folder.path(), &["--replicas", "1", "--ssd", "none"]);
        command.envs(variables.iter().copied());
        command
    };
    // A call to msync is about memory, and no path can be told for it; there is only this one mapping.
    let paths = if inject.starts_with("msync") { vec![] } else { vec![area.clone()] };
    is_final(command, &paths, inject, &[area.to_str().unwrap(), error]);
}

const EIO: &str = "Input/output error";
const ENOSPC: &str = "No space left on device";

#[test]
fn a_failed_fdatasync_is_final() {
    is_final_for_the_area(On::Disk, &[], "fdatasync:error=EIO", EIO);
}

#[test]
fn a_failed_write_is_final() {
    is_final_for_the_area(On::Disk, &[], "pwrite64:error=EIO", EIO);
}

#[test]
fn a_write_that_finds_no_space_after_all_is_final() {
    is_final_for_the_area(On::Disk, &[], "pwrite64:error=ENOSPC", ENOSPC);
}

#[test]
fn a_failed_msync_is_final() {
    is_final_for_the_area(On::Tmpfs, &[("FLEXLOG_FLUSH", "msync")], "msync:error=EIO", EIO);
}

#[test]
fn one_failed_replica_of_three_is_named() {
    let Some(folder) = folder(On::Disk) else { return };
    let server = Server::start(folder.path());
    server.run_with(&["append", "orders"], b"one\ntwo\n");
    let area = folder.path().join("replica-2/area");
    let Some(fault) = Fault::start(&server, std::slice::from_ref(&area), "fdatasync:error=EIO") else { return };
    // A session is an entry of the log; the first that meets the fault waits in vain, and is told so at the end.
    let why = ["replica 2", area.to_str().unwrap(), EIO];
    server.fails(&["append", "orders"], b"three\n", 1);
    contains(&server.fails(&["append", "orders"], b"three\n", 1), &why);
    contains(&server.run(&["status"]), &why);
    assert_eq!(server.run(&["read", "orders", "--from", "0.0"]), "one\ntwo\n");
    fault.stop();
    let (status, errors) = server.terminate();
    assert!(status.success(), "{status} {errors}");
    let server = Server::start(folder.path());
    server.run_with(&["append", "orders"], b"four\n");
    assert_eq!(server.run(&["tail", "orders"]), "one\ntwo\nfour\n");
}

/// Large lines, all of them different.
fn large(name: &str, count: usize) -> String {
    lines(&"x".repeat(500_000), name, count)
}

/// Appends until there is no more room, or all are in; gives what was acknowledged, with the numbers, and what was said.
fn fill(server: &Server, color: &str, input: &str) -> (String, Vec<(u32, u32)>, String) {
    let output = run(server.command(&["append", color]), input.as_bytes());
    let said = text(&output.stderr);
    let numbers = numbers(&text(&output.stdout));
    assert!(matches!(output.status.code(), Some(0 | 1)), "{} {said}", output.status);
    let taken: String = input.split_inclusive('\n').take(numbers.len()).collect();
    assert_eq!(output.status.success(), taken.len() == input.len(), "{said}");
    (taken, numbers, said)
}

fn replica(server: &Server) -> serde_json::Value {
    support::json_lines(&server.run(&["status", "--json"]))[0]["shards"][0]["replicas"][0].clone()
}

/// Waits for what must come.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "{what} did not come");
    }
}

fn ssd_files(folder: &Path) -> Vec<PathBuf> {
    let names = (0..40).flat_map(|id| [format!("{id:010}.ssd"), format!("{id:010}.ssd.tmp")]);
    names.map(|name| folder.join(name)).collect()
}

#[test]
fn a_disk_that_cannot_grow_the_area_is_full_until_it_can() {
    let _turn = turn();
    let Some(folder) = folder(On::Disk) else { return };
    let options = ["--replicas", "1", "--ssd", "none", "--segment", "8388608"];
    let server = start(up(folder.path(), &options));
    server.run_with(&["append", "orders"], b"one\n");
    let area = folder.path().join("replica-1/area");
    let Some(fault) = Fault::start(&server, std::slice::from_ref(&area), "fallocate:error=ENOSPC") else { return };
    let input = large("large", 200);
    let (mut taken, _, said) = fill(&server, "large", &input);
    contains(&said, &["storage is full"]);
    assert!(replica(&server)["state"] == "ok");
    assert!(server.run(&["read", "large", "--from", "0.0"]) == taken, "reads go on");
    fault.stop();
    let rest = large("more", 40);
    let (more, _, said) = fill(&server, "large", &rest);
    assert!(more == rest, "once there is space appends go on: {said}");
    taken += &more;
    assert!(server.run(&["read", "large", "--from", "0.0"]) == taken);
    let (status, errors) = server.terminate();
    assert!(status.success(), "{status} {errors}");
}

/// A server whose area is small, so that records move to SSD files on a disk.
fn tiered(area: &TempDir, ssd: &TempDir) -> Command {
    let mut command = up(area.path(), &["--replicas", "1", "--segment", "8388608", "--area-limit", "67117056"]);
    command.args(["--high-mark", "30", "--cache", "0", "--ssd"]).arg(ssd.path());
    command
}

#[test]
fn a_failed_sync_of_an_ssd_file_is_final() {
    let _turn = turn();
    let (Some(area), Some(ssd)) = (folder(On::Tmpfs), folder(On::Disk)) else { return };
    let server = start(tiered(&area, &ssd));
    let (mut taken, ..) = fill(&server, "large", &large("before", 10));
    let files = ssd_files(&ssd.path().join("replica-1"));
    let Some(fault) = Fault::start(&server, &files, "fdatasync:error=EIO") else { return };
    let (more, _, said) = fill(&server, "large", &large("large", 200));
    assert!(!said.is_empty(), "the move failed, and everything was taken all the same");
    taken += &more;
    let why = [ssd.path().to_str().unwrap(), EIO];
    contains(&server.run(&["status"]), &why);
    contains(&server.fails(&["append", "large"], b"more\n", 1), &why);
    assert!(server.run(&["read", "large", "--from", "0.0"]).starts_with(&taken), "reads go on");
    fault.stop();
    contains(&server.fails(&["append", "large"], b"more\n", 1), &why);
    let (status, errors) = server.terminate();
    assert!(status.success(), "{status} {errors}");
    contains(&errors, &why);
    let server = start(tiered(&area, &ssd));
    assert!(server.run(&["read", "large", "--from", "0.0"]).starts_with(&taken), "after a restart");
    let (more, ..) = fill(&server, "large", &large("after", 60));
    assert_eq!(more.lines().count(), 60);
}

#[test]
fn a_full_ssd_keeps_records_in_the_area_and_is_tried_again() {
    let _turn = turn();
    let (Some(area), Some(ssd)) = (folder(On::Tmpfs), folder(On::Disk)) else { return };
    let server = start(tiered(&area, &ssd));
    server.run_with(&["append", "orders"], b"one\n");
    let files = ssd_files(&ssd.path().join("replica-1"));
    let Some(fault) = Fault::start(&server, &files, "write:error=ENOSPC") else { return };
    let (mut taken, _, said) = fill(&server, "large", &large("large", 200));
    contains(&said, &["storage is full"]);
    let found = replica(&server);
    assert_eq!((&found["state"], &found["ssd_records"]), (&"ok".into(), &0.into()), "{found}");
    let (used, limit) = (found["used_bytes"].as_u64().unwrap(), found["limit_bytes"].as_u64().unwrap());
    assert!(used + 3 * SEGMENT >= limit, "full with {used} of {limit} bytes");
    assert!(server.run(&["read", "large", "--from", "0.0"]) == taken, "reads go on");
    fault.stop();
    until("a move", || replica(&server)["ssd_records"].as_u64().unwrap() > 0);
    let rest = large("more", 150);
    let (more, _, said) = fill(&server, "large", &rest);
    assert!(more == rest, "once the SSD has room appends go on: {said}");
    taken += &more;
    assert!(server.run(&["read", "large", "--from", "0.0"]) == taken);
}

#[test]
fn a_record_that_cannot_be_read_is_named_and_the_others_can() {
    let _turn = turn();
    let (Some(area), Some(ssd)) = (folder(On::Tmpfs), folder(On::Disk)) else { return };
    let server = start(tiered(&area, &ssd));
    let input = large("large", 120);
    let (taken, numbers, said) = fill(&server, "large", &input);
    assert!(taken == input, "{said}");
    until("a move", || replica(&server)["ssd_records"].as_u64().unwrap() > 0);
    let name = |(epoch, counter): &(u32, u32)| format!("{epoch}.{counter}");
    let (first, last) = (name(&numbers[0]), name(numbers.last().unwrap()));
    let files = ssd_files(&ssd.path().join("replica-1"));
    let Some(fault) = Fault::start(&server, &files, "pread64:error=EIO") else { return };
    let said = server.fails(&["read", "large", &first], b"", 1);
    contains(&said, &[&first, EIO]);
    assert!(input.ends_with(&server.run(&["read", "large", &last])), "those in the area can be read");
    server.run_with(&["append", "orders"], b"one\n");
    fault.stop();
    assert!(input.starts_with(&server.run(&["read", "large", &first])), "the same record, later");
    assert!(server.run(&["read", "large", "--from", "0.0"]) == taken);
    assert_eq!(replica(&server)["state"], "ok");
}

/// A server that alone sees a tmpfs of 64 MiB at `folder`.
fn on_small_tmpfs(folder: &Path, more: &[&str]) -> Option<Server> {
    let Some(unshare) = tool("unshare") else {
        skipped("no `unshare` on this machine");
        return None;
    };
    let mut command = Command::new(unshare);
    let own_user = if rustix::process::geteuid().is_root() { "-m" } else { "-Urm" };
    command.args([own_user, "sh", "-c", "mount -t tmpfs -o size=64m none \"$0\" && exec \"$@\""]).arg(folder);
    command.args([BINARY, "up", "--listen", "127.0.0.1:0", "--dir"]).arg(folder);
    command.args(["--replicas", "1", "--segment", "8388608"]).args(more);
    match Server::spawn(command) {
        Ok(server) => Some(server),
        Err((_, errors)) if errors.contains("mount") || errors.contains("unshare") => {
            skipped(&format!("no right to mount a tmpfs: {errors}"));
            None
        }
        Err((status, errors)) => panic!("{status}: {errors}"),
    }
}

#[test]
fn a_full_tmpfs_is_full_and_a_trim_gives_it_back() {
    let _turn = turn();
    let Some(folder) = folder(On::Disk) else { return };
    let Some(mut server) = on_small_tmpfs(folder.path(), &["--ssd", "none"]) else { return };
    // Made now: the metadata is on the same tmpfs.
    server.run_with(&["append", "proof"], b"start\n");
    for round in 0..4 {
        let input = large(&format!("round {round}"), 200);
        let (taken, numbers, said) = fill(&server, "large", &input);
        contains(&said, &["storage is full"]);
        assert!(server.is_running());
        assert!(numbers.len() >= 10, "round {round}: only {} of half a MB each", numbers.len());
        let name = |(epoch, counter): &(u32, u32)| format!("{epoch}.{counter}");
        let (first, last) = (name(&numbers[0]), name(numbers.last().unwrap()));
        assert!(server.run(&["read", "large", "--from", &first]) == taken, "round {round}: reads go on");
        server.run(&["trim", "large", &last]);
        until("room after a trim", || {
            run(server.command(&["append", "proof"]), format!("{round}\n").as_bytes()).status.success()
        });
    }
    assert_eq!(server.run(&["read", "proof", "--from", "0.0"]), "start\n0\n1\n2\n3\n");
    let (status, errors) = server.terminate();
    assert!(status.success(), "{status} {errors}");
}

#[test]
fn a_full_tmpfs_with_an_ssd_goes_on() {
    let _turn = turn();
    let (Some(folder), Some(ssd)) = (folder(On::Disk), folder(On::Disk)) else { return };
    let path = ssd.path().to_str().unwrap();
    // The area's limit is what the tmpfs has room for: the high mark is a share of the limit.
    let Some(mut server) =
        on_small_tmpfs(folder.path(), &["--ssd", path, "--area-limit", "50339840", "--high-mark", "30"])
    else {
        return;
    };
    let mut all = String::new();
    for round in 0..3 {
        let input = large(&format!("round {round}"), 150);
        let (taken, _, said) = fill(&server, "large", &input);
        assert!(taken == input, "round {round}: {} of {} bytes: {said}", taken.len(), input.len());
        assert!(server.is_running());
        all += &taken;
    }
    assert!(server.run(&["read", "large", "--from", "0.0"]) == all);
    let (status, errors) = server.terminate();
    assert!(status.success(), "{status} {errors}");
}
