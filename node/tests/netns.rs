//! A cluster whose processes have an address each: one network namespace per process, joined by a bridge, with QUIC and
//! certificates for those addresses. What goes on loopback alone does not show here: listening addresses, names in
//! certificates, links that are cut while the processes live.
//!
//! Needs iproute2 and the right to make namespaces: `apt-get install iproute2`, and root.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use support::net::Net;
use support::{BINARY, On, folder};

const PROCESSES: [&str; 7] = ["root", "leaf-1", "leaf-2", "replica-1", "replica-2", "replica-3", "replica-4"];
const PORT: u16 = 7400;

fn topology(folder: &Path, net: &Net) {
    let at = |name: &str| format!("{}:{PORT}", net.host(name));
    let mut text = format!(
        "cluster = \"apart\"\ntransport = \"quic\"\n[certificates]\ndirectory = \"certs\"\n\
         [storage]\narea_limit = \"64MiB\"\nsegment = \"8MiB\"\nssd = false\n\
         [[sequencer]]\nname = \"root\"\naddress = \"{}\"\n",
        at("root")
    );
    for leaf in ["leaf-1", "leaf-2"] {
        text += &format!("[[sequencer]]\nname = \"{leaf}\"\nparent = \"root\"\naddress = \"{}\"\n", at(leaf));
    }
    for shard in [1, 2] {
        text += &format!("[[shard]]\nid = {shard}\nleaf = \"leaf-{shard}\"\n");
        for replica in [2 * shard - 1, 2 * shard] {
            let address = at(&format!("replica-{replica}"));
            text += &format!("[[shard.replica]]\nid = {replica}\naddress = \"{address}\"\n");
        }
    }
    fs::write(folder.join("cluster.toml"), text).unwrap();
}

fn done(mut command: Command, folder: &Path) -> String {
    let output = command.current_dir(folder).output().unwrap();
    said(&output)
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A process of the cluster, killed with this.
struct Process(Child);

impl Process {
    fn start(net: &Net, folder: &Path, name: &str) -> Self {
        let words = match name.strip_prefix("replica-") {
            Some(id) => ["replica", id],
            None => ["sequencer", name],
        };
        let mut command = net.flexlog(name, &words);
        command.args(["--config", "cluster.toml"]).current_dir(folder);
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap())
    }

    /// Waits until it serves.
    fn serves(&mut self) {
        let mut lines = BufReader::new(self.0.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert!(line.starts_with("ready "), "{line:?}");
        std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn processes_with_addresses_of_their_own_are_one_cluster() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let Some(net) = Net::new(&PROCESSES) else { return };
    let folder = folder.path();
    topology(folder, &net);
    let certificate = |words: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(words).args(["--dir", "certs"]);
        done(command, folder);
    };
    certificate(&["cert", "init"]);
    for name in PROCESSES.into_iter().chain(["client"]) {
        certificate(&["cert", "issue", name, "--host", &net.host(name)]);
    }
    let mut processes: Vec<Process> = PROCESSES.iter().map(|name| Process::start(&net, folder, name)).collect();
    processes.iter_mut().for_each(Process::serves);

    let client = |words: &[&str], at: &str| {
        let mut command = net.flexlog("client", words);
        command.args(["--cluster", &format!("{}:{PORT}", net.host(at)), "--certs", "certs"]).current_dir(folder);
        command
    };
    let append = |color: &str, lines: &str, at: &str| {
        let mut command = client(&["append", color], at);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        child
    };
    done(client(&["color", "create", "near", "--owner", "leaf-1"], "replica-1"), folder);
    done(client(&["color", "create", "far", "--owner", "root", "--width", "2"], "replica-3"), folder);
    for color in ["near", "far"] {
        let child = append(color, "one\ntwo\nthree\n", "replica-4");
        assert_eq!(said(&child.wait_with_output().unwrap()).lines().count(), 3);
        // From a node of the other shard than the one that the client appended by.
        let mut read: Vec<String> =
            done(client(&["tail", color], "replica-1"), folder).lines().map(str::to_owned).collect();
        read.sort();
        assert_eq!(read, ["one", "three", "two"], "{color}");
    }

    // A member that is cut off holds its shard's appends up; joined again, it takes them, and nothing is lost or twice.
    net.link("replica-2", "down");
    let child = append("near", "four\n", "replica-1");
    net.link("replica-2", "up");
    said(&child.wait_with_output().unwrap());
    assert_eq!(done(client(&["tail", "near"], "replica-2"), folder), "one\ntwo\nthree\nfour\n");
    let status = done(client(&["status"], "root"), folder);
    assert!(status.contains("leaf-2") && status.contains("replica 4"), "{status}");
}
