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

use support::{BINARY, On, folder, skipped};

/// Each with the last byte of its address.
const PROCESSES: [(&str, u8); 7] =
    [("root", 2), ("leaf-1", 3), ("leaf-2", 4), ("replica-1", 5), ("replica-2", 6), ("replica-3", 7), ("replica-4", 8)];
const CLIENT: (&str, u8) = ("client", 9);
const PORT: u16 = 7400;

fn address(last: u8) -> String {
    format!("10.83.71.{last}")
}

/// One namespace for each process and one for the bridge between them. They go with this.
struct Net {
    /// Begins the names of the namespaces.
    prefix: String,
}

impl Net {
    /// `None` where the machine does not allow it.
    fn new() -> Option<Self> {
        let net = Self { prefix: format!("flx{}", std::process::id()) };
        let made = net.hub().and_then(|()| {
            PROCESSES
                .into_iter()
                .chain([CLIENT])
                .zip(0..)
                .try_for_each(|((name, last), place)| net.join(name, last, place))
        });
        match made {
            Ok(()) => Some(net),
            Err(why) => {
                skipped(&format!("network namespaces cannot be made here: {why}"));
                None
            }
        }
    }

    fn name(&self, of: &str) -> String {
        format!("{}-{of}", self.prefix)
    }

    fn hub(&self) -> Result<(), String> {
        let hub = self.name("hub");
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "add", "bridge", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "bridge", "up"])
    }

    fn join(&self, process: &str, last: u8, place: usize) -> Result<(), String> {
        let (hub, name) = (self.name("hub"), self.name(process));
        let port = format!("port{place}");
        ip(&["netns", "add", &name])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        ip(&["-n", &hub, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
        ip(&["-n", &hub, "link", "set", &port, "master", "bridge"])?;
        ip(&["-n", &hub, "link", "set", &port, "up"])?;
        ip(&["-n", &name, "address", "add", &format!("{}/24", address(last)), "dev", "eth0"])?;
        ip(&["-n", &name, "link", "set", "eth0", "up"])
    }

    /// Cuts a process off from all others, or joins it again.
    fn link(&self, process: &str, state: &str) {
        let place = PROCESSES.iter().position(|(name, _)| *name == process).unwrap();
        ip(&["-n", &self.name("hub"), "link", "set", &format!("port{place}"), state]).unwrap();
    }

    /// `flexlog` in a process's namespace.
    fn flexlog(&self, process: &str, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(process), BINARY]).args(words);
        command
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in PROCESSES.into_iter().chain([CLIENT]).map(|(name, _)| name).chain(["hub"]) {
            // It may not have been made.
            let _ = ip(&["netns", "delete", &self.name(name)]);
        }
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(words).output().map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {}: {}", words.join(" "), said.trim())) }
}

fn topology(folder: &Path) {
    let at = |name: &str| {
        let (_, last) = PROCESSES.iter().find(|(known, _)| *known == name).unwrap();
        format!("{}:{PORT}", address(*last))
    };
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
    let Some(net) = Net::new() else { return };
    let folder = folder.path();
    topology(folder);
    let certificate = |words: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(words).args(["--dir", "certs"]);
        done(command, folder);
    };
    certificate(&["cert", "init"]);
    for (name, last) in PROCESSES.into_iter().chain([CLIENT]) {
        certificate(&["cert", "issue", name, "--host", &address(last)]);
    }
    let mut processes: Vec<Process> = PROCESSES.iter().map(|(name, _)| Process::start(&net, folder, name)).collect();
    processes.iter_mut().for_each(Process::serves);

    let at = |last: u8| format!("{}:{PORT}", address(last));
    let client = |words: &[&str], last: u8| {
        let mut command = net.flexlog("client", words);
        command.args(["--cluster", &at(last), "--certs", "certs"]).current_dir(folder);
        command
    };
    let append = |color: &str, lines: &str, last: u8| {
        let mut command = client(&["append", color], last);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        child
    };
    done(client(&["color", "create", "near", "--owner", "leaf-1"], 5), folder);
    done(client(&["color", "create", "far", "--owner", "root", "--width", "2"], 7), folder);
    for color in ["near", "far"] {
        let child = append(color, "one\ntwo\nthree\n", 8);
        assert_eq!(said(&child.wait_with_output().unwrap()).lines().count(), 3);
        // From a node of the other shard than the one that the client appended by.
        let mut read: Vec<String> = done(client(&["tail", color], 5), folder).lines().map(str::to_owned).collect();
        read.sort();
        assert_eq!(read, ["one", "three", "two"], "{color}");
    }

    // A member that is cut off holds its shard's appends up; joined again, it takes them, and nothing is lost or twice.
    net.link("replica-2", "down");
    let child = append("near", "four\n", 5);
    net.link("replica-2", "up");
    said(&child.wait_with_output().unwrap());
    assert_eq!(done(client(&["tail", "near"], 6), folder), "one\ntwo\nthree\nfour\n");
    let status = done(client(&["status"], 2), folder);
    assert!(status.contains("leaf-2") && status.contains("replica 4"), "{status}");
}
