//! Replicas of a real cluster that are lost, come back, and are replaced, while it is written to: `kill -9`, SIGSTOP, a
//! store that is wiped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "tests")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{BINARY, On, Server, assert_contiguous, folder, free_addresses, json_lines, numbers, run, text, turn};

/// Long enough for two cores to bring the cluster to any state that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// One sequencer and a shard of three replicas, each a process.
struct Cluster {
    file: PathBuf,
    /// By number; those that run.
    replicas: BTreeMap<u32, Server>,
    addresses: BTreeMap<u32, String>,
    sequencer: Option<Server>,
}

/// The file of a cluster with these replicas.
fn write(file: &Path, sequencer: &str, replicas: &BTreeMap<u32, String>) {
    let mut text = format!(
        "cluster = \"views\"\ndata = \"data\"\n[failover]\nreplica_timeout_ms = 300\n[storage]\narea_limit = \"64MiB\"\nsegment = \"8MiB\"\n\
         [[sequencer]]\nname = \"root\"\naddress = \"{sequencer}\"\n[[shard]]\nid = 1\nleaf = \"root\"\nmin_view = 2\n"
    );
    for (id, address) in replicas {
        text += &format!("[[shard.replica]]\nid = {id}\naddress = \"{address}\"\n");
    }
    fs::write(file, text).unwrap();
}

fn start(file: &Path, words: &[&str]) -> Server {
    let mut command = Command::new(BINARY);
    command.args(words).arg("--config").arg(file).env("FLEXLOG_LOG", "info");
    Server::spawn(command).unwrap_or_else(|(status, errors)| panic!("{words:?} ended with {status}: {errors}"))
}

impl Cluster {
    fn start(folder: &Path) -> Self {
        let file = folder.join("cluster.toml");
        let mut free = free_addresses(4);
        let root = free.remove(0);
        let addresses: BTreeMap<u32, String> = (1..).zip(free).collect();
        write(&file, &root, &addresses);
        // Whoever is ready first waits for nobody: a replica for the metadata, a sequencer for its replicas.
        let others = file.clone();
        let sequencer = std::thread::spawn(move || start(&others, &["sequencer", "root"]));
        let replicas = addresses.keys().map(|id| (*id, start(&file, &["replica", &id.to_string()]))).collect();
        Self { file, replicas, addresses, sequencer: Some(sequencer.join().unwrap()) }
    }

    /// Every replica's address, those that are away included.
    fn all(&self) -> String {
        self.addresses.values().cloned().collect::<Vec<_>>().join(",")
    }

    fn run(&self, args: &[&str], input: &str) -> String {
        let mut command = Command::new(BINARY);
        command.args(args).args(["--cluster", &self.all()]);
        let output = run(command, input.as_bytes());
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Appends these lines; their numbers must go on where the last ended.
    fn append(&self, from: u32, count: u32) {
        let lines: String = (from..from + count).map(|n| format!("line {n}\n")).collect();
        let given = numbers(&self.run(&["append", "red"], &lines));
        assert_eq!(given.len(), count as usize);
        assert_contiguous(&given, from);
    }

    fn shard(&self) -> Value {
        let status = json_lines(&self.run(&["status", "--json", "--interval", "0"], "")).remove(0);
        status["shards"][0].clone()
    }

    /// Waits until these are the members of the view.
    fn until_view(&self, members: &[u32]) {
        let begun = Instant::now();
        loop {
            let shard = self.shard();
            let found: Vec<u64> = shard["members"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
            if found.iter().eq(members.iter().map(|id| u64::from(*id)).collect::<Vec<_>>().iter()) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "the view is not of {members:?}: {shard}");
        }
    }

    /// Waits until no process keeps a link to a replica any more.
    fn until_no_link_to(&self, replica: u32) {
        let begun = Instant::now();
        loop {
            let status = json_lines(&self.run(&["status", "--json", "--interval", "0"], "")).remove(0);
            let links =
                status["processes"].as_array().unwrap().iter().filter_map(|process| process["links"].as_array());
            let names: Vec<&str> = links.flatten().map(|link| link["to"].as_str().unwrap()).collect();
            assert!(names.contains(&"replica-4"), "{status}");
            if !names.contains(&&*format!("replica-{replica}")) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "links to replica {replica} stay: {status}");
        }
    }

    fn kill(&mut self, id: u32) {
        self.replicas.remove(&id).unwrap().kill();
    }

    /// `kill -9` of the sequencer; another process takes its place while this replica starts.
    fn replace_sequencer_and_restart(&mut self, id: u32) {
        self.sequencer.take().unwrap().kill();
        let file = self.file.clone();
        // Either waits for the other.
        let sequencer = std::thread::spawn(move || start(&file, &["sequencer", "root"]));
        self.restart(id);
        self.sequencer = Some(sequencer.join().unwrap());
    }

    fn restart(&mut self, id: u32) {
        let server = start(&self.file, &["replica", &id.to_string()]);
        self.replicas.insert(id, server);
    }

    fn signal(&self, id: u32, signal: Signal) {
        let pid = Pid::from_raw(self.replicas[&id].pid() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Every record, as the replica with this number alone has it.
    fn read_at(&self, id: u32) -> String {
        let mut command = Command::new(BINARY);
        command.args(["read", "red", "--from", "0.0", "--cluster", &self.addresses[&id]]);
        let output = run(command, b"");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    /// All members that run have the same records, and so many.
    fn assert_alike(&self, count: usize) {
        let all: Vec<String> = self.replicas.keys().map(|id| self.read_at(*id)).collect();
        assert_eq!(all[0].lines().count(), count);
        assert!(all.iter().all(|read| *read == all[0]), "members have different records");
    }

    /// Stops everything; no folder has a fault.
    fn stop_and_verify(mut self) {
        for (_, server) in std::mem::take(&mut self.replicas) {
            assert!(server.terminate().0.success());
        }
        assert!(self.sequencer.take().unwrap().terminate().0.success());
        for id in self.addresses.keys() {
            let mut command = Command::new(BINARY);
            command.arg("verify").arg(self.file.parent().unwrap().join(format!("data/replica-{id}")));
            let output = run(command, b"");
            assert!(output.status.success(), "replica {id}: {} {}", text(&output.stdout), text(&output.stderr));
        }
    }
}

#[test]
fn a_replica_that_is_killed_is_dropped_and_taken_in_again() {
    let _turn = turn();
    let Some(folder) = folder(On::Tmpfs) else { return };
    let mut cluster = Cluster::start(folder.path());
    cluster.append(0, 500);
    for (at, id) in [3, 1, 2].into_iter().enumerate() {
        let from = 500 + 1000 * at as u32;
        cluster.kill(id);
        cluster.append(from, 500);
        let others: Vec<u32> = (1..=3).filter(|other| *other != id).collect();
        cluster.until_view(&others);
        cluster.restart(id);
        cluster.append(from + 500, 500);
        cluster.until_view(&[1, 2, 3]);
    }
    cluster.append(3500, 10);
    cluster.assert_alike(3510);
    cluster.stop_and_verify();
}

#[test]
fn a_replica_that_comes_back_at_once_or_was_stopped_loses_nothing() {
    let _turn = turn();
    let Some(folder) = folder(On::Disk) else { return };
    let mut cluster = Cluster::start(folder.path());
    cluster.append(0, 200);
    for at in 0..3 {
        let id = at + 1;
        cluster.kill(id);
        cluster.restart(id);
        cluster.append(200 * (at + 1), 200);
    }
    // Stopped for longer than it is given, and going on as if nothing had been.
    cluster.signal(2, Signal::STOP);
    cluster.append(800, 200);
    cluster.until_view(&[1, 3]);
    cluster.signal(2, Signal::CONT);
    cluster.until_view(&[1, 2, 3]);
    cluster.append(1000, 200);
    cluster.assert_alike(1200);
    cluster.stop_and_verify();
}

#[test]
fn a_replica_whose_store_is_lost_is_replaced_and_never_comes_back() {
    let _turn = turn();
    let Some(folder) = folder(On::Tmpfs) else { return };
    let mut cluster = Cluster::start(folder.path());
    cluster.append(0, 300);
    cluster.kill(3);
    fs::remove_dir_all(folder.path().join("data/replica-3")).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["replica", "3", "--config"]).arg(&cluster.file);
    let refused = run(command, b"");
    assert_eq!(refused.status.code(), Some(1), "a wiped store is another one");
    cluster.append(300, 100);

    let address = cluster.addresses.remove(&3).unwrap();
    cluster.addresses.insert(4, address);
    let root = cluster.sequencer.as_ref().unwrap().address.split_whitespace().last().unwrap().to_owned();
    let replace = |file: &Path, old: &str, new: &str| {
        let mut command = Command::new(BINARY);
        command.args(["replica", "replace", old, new, "--config"]).arg(file);
        run(command, b"")
    };
    let output = replace(&cluster.file, "3", "4");
    assert!(
        !output.status.success() && text(&output.stderr).contains("still has replica 3"),
        "{}",
        text(&output.stderr)
    );
    write(&cluster.file, &root, &cluster.addresses);
    let output = replace(&cluster.file, "3", "4");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(replace(&cluster.file, "3", "4").status.success(), "done already");
    cluster.restart(4);
    cluster.until_view(&[1, 2, 4]);
    cluster.until_no_link_to(3);
    cluster.append(400, 100);
    cluster.assert_alike(500);
    cluster.stop_and_verify();
}

#[test]
fn all_down_and_all_up_in_any_order_goes_on() {
    let _turn = turn();
    let Some(folder) = folder(On::Disk) else { return };
    let mut cluster = Cluster::start(folder.path());
    cluster.append(0, 100);
    for (at, order) in [[2, 1, 3], [3, 2, 1]].into_iter().enumerate() {
        for id in order {
            cluster.kill(id);
        }
        for id in order.into_iter().rev() {
            cluster.restart(id);
        }
        cluster.append(100 * (at as u32 + 1), 100);
    }
    // One of them stays away: the others are enough.
    cluster.kill(1);
    cluster.kill(2);
    cluster.kill(3);
    cluster.restart(3);
    cluster.restart(1);
    cluster.append(300, 100);
    cluster.until_view(&[1, 3]);
    cluster.restart(2);
    cluster.until_view(&[1, 2, 3]);
    cluster.assert_alike(400);
    cluster.stop_and_verify();
}

/// What was acknowledged is on the one member of the view that is left; the leaf does not lead yet, and the view may not be
/// smaller.
#[test]
fn a_new_leaf_with_one_of_two_members_left_takes_another_in() {
    let _turn = turn();
    let Some(folder) = folder(On::Tmpfs) else { return };
    let mut cluster = Cluster::start(folder.path());
    cluster.append(0, 100);
    cluster.kill(3);
    cluster.append(100, 100);
    cluster.until_view(&[1, 2]);
    cluster.append(200, 100);
    cluster.kill(2);
    fs::remove_dir_all(folder.path().join("data/replica-2")).unwrap();
    cluster.replace_sequencer_and_restart(3);
    cluster.until_view(&[1, 3]);
    cluster.addresses.remove(&2);
    // Of the new leaf's epoch, which is the root's, too.
    assert_eq!(cluster.run(&["append", "red"], "line 300\n").trim(), "2.0");
    cluster.assert_alike(301);
    cluster.stop_and_verify();
}
