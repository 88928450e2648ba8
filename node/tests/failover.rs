//! Standbys of real processes: whoever holds a position is killed with `kill -9`, or stopped and let go on, while
//! writers append all the time. Appends go on at the standby in a higher epoch, and every color's history is in order with
//! nothing lost that was acknowledged. The metadata is kept by the root's process for leaves and inner positions, and in
//! etcd for the root.

#![cfg(feature = "quic")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "tests")]

mod support;

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flexlog_client::{Client, ColorOptions, ReadOutcome};
use flexlog_protocol::SeqNum;
use flexlog_protocol::net::quic::Credentials;
use rustix::process::Signal;
use serde_json::Value;
use support::history::{ByQuic, ByTcp, Done, PATIENCE, check, flexlog, missing, read_all};
use support::{BINARY, On, folder, free_addresses, json_lines, run, text, turn};
use tokio::sync::Notify;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::MissedTickBehavior;

const SEQUENCERS: [(&str, Option<&str>); 4] =
    [("root", None), ("inner", Some("root")), ("leaf-1", Some("inner")), ("leaf-2", Some("inner"))];
const LEAVES: [&str; 2] = ["leaf-1", "leaf-2"];
const REPLICAS: usize = 3;

/// What is written to: name, owner, width.
const COLORS: [(&str, &str, u32); 4] =
    [("of-leaf", "leaf-1", 1), ("of-inner", "inner", 1), ("of-root", "root", 1), ("wide", "inner", 2)];
/// Long enough that a holder which has to wait for one of two cores is not taken for dead.
const DETECT_MS: u64 = 1000;
/// Of each color.
const WRITERS: usize = 2;
/// Between two appends of a writer: two cores run all processes.
const PACE: Duration = Duration::from_millis(10);

/// How the processes of a cluster reach one another, where its metadata is, and who has a standby.
struct Plan<'a> {
    is_quic: bool,
    /// Where etcd is; else the root's process keeps the metadata.
    etcd: Option<&'a str>,
    with_standby: &'a [&'a str],
}

struct Cluster {
    child: Child,
    /// Of the replicas.
    addresses: Vec<String>,
    certificates: Option<std::path::PathBuf>,
    said: Option<JoinHandle<String>>,
}

fn topology(plan: &Plan<'_>, addresses: &[String]) -> String {
    let mut addresses = addresses.iter();
    let mut address = || addresses.next().unwrap();
    let mut replicas = String::new();
    for (shard, leaf) in LEAVES.iter().enumerate() {
        write!(replicas, "[[shard]]\nid = {}\nleaf = \"{leaf}\"\n", shard + 1).unwrap();
        for replica in (1..).skip(shard * REPLICAS).take(REPLICAS) {
            write!(replicas, "[[shard.replica]]\nid = {replica}\naddress = \"{}\"\n", address()).unwrap();
        }
    }
    let mut text = String::from("cluster = \"failover\"\n");
    if plan.is_quic {
        text += "transport = \"quic\"\n[certificates]\ndirectory = \"certs\"\n";
    }
    if let Some(etcd) = plan.etcd {
        writeln!(text, "[metadata]\nbackend = \"etcd\"\nendpoints = [\"{etcd}\"]\nprefix = \"flexlog/failover\"")
            .unwrap();
    }
    writeln!(text, "[failover]\ndetect_ms = {DETECT_MS}").unwrap();
    text += "[storage]\narea_limit = \"64MiB\"\nsegment = \"8MiB\"\nssd = false\n";
    for (name, parent) in SEQUENCERS {
        write!(text, "[[sequencer]]\nname = \"{name}\"\naddress = \"{}\"\n", address()).unwrap();
        if let Some(parent) = parent {
            writeln!(text, "parent = \"{parent}\"").unwrap();
        }
        if plan.with_standby.contains(&name) {
            writeln!(text, "standbys = [\"{}\"]", address()).unwrap();
        }
    }
    text + &replicas
}

impl Cluster {
    fn start(folder: &Path, plan: &Plan<'_>) -> Self {
        let count = LEAVES.len() * REPLICAS + SEQUENCERS.len() + plan.with_standby.len();
        let addresses = free_addresses(count);
        let file = folder.join("cluster.toml");
        fs::write(&file, topology(plan, &addresses)).unwrap();
        let certificates = plan.is_quic.then(|| {
            flexlog(&["cert", "init", "--dir", "certs"], folder);
            let replicas = (1..=LEAVES.len() * REPLICAS).map(|id| format!("replica-{id}"));
            let standbys = plan.with_standby.iter().map(|name| format!("{name}-standby-1"));
            let names: Vec<String> = replicas.chain(standbys).collect();
            let mut words = vec!["cert", "issue", "--dir", "certs", "client"];
            words.extend(SEQUENCERS.iter().map(|(name, _)| *name));
            words.extend(names.iter().map(String::as_str));
            flexlog(&words, folder);
            folder.join("certs")
        });
        let mut child = Command::new(BINARY)
            .args(["cluster", "up"])
            .arg(file)
            .env("FLEXLOG_LOG", "flexlog_node::seat=info,warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = child.stderr.take().unwrap();
        let said = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            text
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let cluster = Self { child, addresses, certificates, said: Some(said) };
        assert!(line.starts_with("ready"), "the cluster did not start: {line}");
        let expected = format!("4 sequencers, {} standby", plan.with_standby.len());
        assert!(line.contains(&expected), "{line}");
        // What follows is for people; it must be taken for the cluster not to wait.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        cluster
    }

    async fn client(&self, at: usize) -> Client {
        let builder = Client::builder().append_deadline(PATIENCE).deadline(PATIENCE).connect_deadline(PATIENCE);
        let builder = match &self.certificates {
            Some(folder) => builder.dialer(ByQuic(Credentials::load(folder, "client").unwrap())),
            None => builder.dialer(ByTcp),
        };
        builder.connect(self.addresses[at].clone()).await.unwrap()
    }

    fn status(&self) -> Value {
        let mut command = Command::new(BINARY);
        command.args(["status", "--json", "--interval", "0", "--cluster", &self.addresses[0]]);
        if let Some(folder) = &self.certificates {
            command.arg("--certs").arg(folder);
        }
        let output = run(command, b"");
        assert!(output.status.success(), "{}", text(&output.stderr));
        json_lines(&text(&output.stdout)).remove(0)
    }

    fn status_of(&self, position: &str) -> Value {
        let status = self.status();
        let positions = status["positions"].as_array().unwrap();
        positions.iter().find(|found| found["name"] == position).unwrap().clone()
    }

    /// Asks how a position is until it is as wanted.
    fn until(&self, position: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let status = self.status_of(position);
            if wanted(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "{status}");
        }
    }

    /// The process of this name.
    fn pid(&self, name: &str) -> rustix::process::Pid {
        let standby = name.split_once("-standby-");
        let words = match standby {
            Some((of, number)) => vec!["sequencer", of, "--standby", number, "--config"],
            None => vec!["sequencer", name, "--config"],
        };
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let is_it = |pid: &&str| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let found: Vec<&[u8]> = line.split(|byte| *byte == 0).skip(1).take(words.len()).collect();
            found == words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>()
        };
        let pid = children.split_whitespace().find(is_it).unwrap_or_else(|| panic!("{name} does not run"));
        rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap()
    }

    /// The process that holds a position: its name, and its pid.
    fn holder(&self, position: &str) -> (String, rustix::process::Pid) {
        let status = self.until(position, |status| status["serving"] == true);
        let name = status["holder"].as_str().unwrap().to_owned();
        let pid = self.pid(&name);
        (name, pid)
    }

    /// Ends all; gives what they said.
    fn stop(mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        self.said.take().unwrap().join().unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // After a test that failed: whoever started the others has to end them.
        if let Ok(None) = self.child.try_wait() {
            let pid = rustix::process::Pid::from_child(&self.child);
            let _ = rustix::process::kill_process(pid, Signal::TERM);
            let _ = self.child.wait();
        }
        if let Some(said) = self.said.take() {
            eprintln!("the cluster said:\n{}", said.join().unwrap_or_default());
        }
    }
}

/// What writers have done so far, and how others wait for more of it.
#[derive(Default)]
struct Writing {
    /// Of each color, in the order of [`COLORS`], with the moments of the acknowledgements.
    done: RefCell<[Vec<(Done, Instant)>; COLORS.len()]>,
    clock: Cell<u64>,
    more: Notify,
    over: Cell<bool>,
}

impl Writing {
    fn tick(&self) -> u64 {
        self.clock.replace(self.clock.get() + 1)
    }

    async fn write(self: Rc<Self>, client: Client, color: usize, writer: usize) {
        let name = COLORS[color].0;
        let log = client.existing_color(name).await.unwrap();
        let mut turns = tokio::time::interval(PACE);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for i in 0.. {
            if self.over.get() {
                return;
            }
            let (payload, sent) = (format!("{name} {writer} {i}"), self.tick());
            let number = log.append(payload.clone()).await.unwrap_or_else(|error| panic!("{payload}: {error}"));
            let done = Done { payload, number, sent, acknowledged: self.tick() };
            self.done.borrow_mut()[color].push((done, Instant::now()));
            self.more.notify_waiters();
            turns.tick().await;
        }
    }

    /// Waits until every color has so many more acknowledgements.
    async fn grow(&self, by: usize) {
        let before: Vec<usize> = self.done.borrow().iter().map(Vec::len).collect();
        let grown = || self.done.borrow().iter().zip(&before).all(|(done, before)| done.len() >= before + by);
        self.wait("more acknowledgements", grown).await;
    }

    /// The highest number of a color.
    fn last(&self, color: usize) -> SeqNum {
        self.done.borrow()[color].iter().map(|(done, _)| done.number).max().unwrap()
    }

    /// Waits until a color has a number in a higher epoch than `before`.
    async fn new_epoch(&self, color: usize, before: SeqNum) {
        self.wait("a higher epoch", || self.last(color).epoch() > before.epoch()).await;
    }

    async fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let waiting = async {
            loop {
                let more = self.more.notified();
                if is_so() {
                    return;
                }
                more.await;
            }
        };
        let counts = || self.done.borrow().iter().map(Vec::len).collect::<Vec<_>>();
        tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("no {what}: {:?}", counts()));
    }

    /// The longest time without an acknowledgement of a color around this moment.
    fn gap(&self, color: usize, around: Instant) -> Duration {
        let done = self.done.borrow();
        let last = done[color].iter().map(|(_, at)| *at).filter(|at| *at <= around).max().unwrap_or(around);
        let first = done[color].iter().map(|(_, at)| *at).filter(|at| *at > around).min().unwrap_or(around);
        // What was on its way when the process died may have been acknowledged still.
        let mut moments: Vec<Instant> = done[color].iter().map(|(_, at)| *at).filter(|at| *at >= last).collect();
        moments.sort_unstable();
        let longest = moments.windows(2).take(100).map(|pair| pair[1] - pair[0]).max();
        longest.unwrap_or_default().max(first - last)
    }
}

fn color(name: &str) -> usize {
    COLORS.iter().position(|(color, ..)| *color == name).unwrap()
}

/// Writes to all colors of a cluster while `faults` happen, and checks all histories afterwards.
fn histories_pass<F: Future<Output = ()>>(plan: &Plan<'_>, faults: impl FnOnce(Rc<Cluster>, Rc<Writing>) -> F) {
    let _turn = turn();
    let Some(folder) = folder(On::Tmpfs) else { return };
    let cluster = Rc::new(Cluster::start(folder.path(), plan));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let first = cluster.client(0).await;
        for (name, owner, width) in COLORS {
            let options = ColorOptions { owner: Some(owner.to_owned()), width, ..ColorOptions::default() };
            first.create_color(name, options).await.unwrap();
        }
        let writing = Rc::new(Writing::default());
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let client = cluster.client(3 * writer + 1).await;
            for color in 0..COLORS.len() {
                writers.push(spawn_local(Rc::clone(&writing).write(client.clone(), color, writer)));
            }
        }
        writing.grow(20).await;
        faults(Rc::clone(&cluster), Rc::clone(&writing)).await;
        writing.grow(20).await;
        writing.over.set(true);
        for writer in writers {
            writer.await.unwrap();
        }
        for (at, done) in writing.done.take().into_iter().enumerate() {
            let name = COLORS[at].0;
            let done: Vec<Done> = done.into_iter().map(|(done, _)| done).collect();
            let reader = cluster.client(2).await;
            let read = read_all(&reader, name).await;
            let log = reader.existing_color(name).await.unwrap();
            let mut holes = Vec::new();
            for number in missing(&read) {
                if matches!(log.read(number).await.unwrap(), ReadOutcome::Hole) {
                    holes.push(number);
                }
            }
            if let Err(violation) = check(name, &done, &read, &holes) {
                panic!("{violation}");
            }
        }
    });
    drop(local);
    let Ok(cluster) = Rc::try_unwrap(cluster) else { panic!("somebody uses the cluster still") };
    cluster.stop();
}

/// Kills the holder of a position, and waits for the color that it counts for to go on.
async fn kill(cluster: &Cluster, writing: &Writing, position: &str, of: &str) {
    let color = color(of);
    let (name, pid) = cluster.holder(position);
    // Nobody took in acknowledgements while it was asked.
    writing.grow(5).await;
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    let (killed, before) = (Instant::now(), writing.last(color));
    writing.new_epoch(color, before).await;
    writing.grow(10).await;
    eprintln!("{name} was killed: {of} had a gap of {:?}", writing.gap(color, killed));
    let status = cluster.until(position, |status| status["serving"] == true && status["holder"] != name.as_str());
    assert!(status["holder_epoch"].as_u64().unwrap() > u64::from(before.epoch().0), "{status}");
    let standbys = status["standbys"].as_array().unwrap();
    assert_eq!(standbys.len(), 1, "{status}");
    assert_eq!(standbys[0]["name"], name.as_str(), "{status}");
    assert!(standbys[0]["state"].as_str().unwrap().starts_with("not reachable: "), "{status}");
}

fn leaf_and_inner_are_killed(is_quic: bool) {
    let plan = Plan { is_quic, etcd: None, with_standby: &["leaf-1", "inner"] };
    histories_pass(&plan, |cluster, writing| async move {
        kill(&cluster, &writing, "leaf-1", "of-leaf").await;
        kill(&cluster, &writing, "inner", "of-inner").await;
        let status = cluster.status();
        assert_eq!(status["healthy"], false, "two standbys are gone: {status}");
    });
}

#[test]
fn standbys_take_over_from_a_leaf_and_an_inner_position_over_tcp() {
    leaf_and_inner_are_killed(false);
}

#[test]
fn standbys_take_over_from_a_leaf_and_an_inner_position_over_quic() {
    leaf_and_inner_are_killed(true);
}

#[test]
fn a_holder_that_was_stopped_changes_nothing_becomes_a_standby_and_takes_over_again() {
    let plan = Plan { is_quic: false, etcd: None, with_standby: &["leaf-1", "inner"] };
    histories_pass(&plan, |cluster, writing| async move {
        for (position, of) in [("leaf-1", "of-leaf"), ("inner", "of-inner")] {
            let color = color(of);
            let (old, pid) = cluster.holder(position);
            rustix::process::kill_process(pid, Signal::STOP).unwrap();
            let before = writing.last(color);
            writing.new_epoch(color, before).await;
            writing.grow(10).await;
            rustix::process::kill_process(pid, Signal::CONT).unwrap();
            let waits = |status: &Value| {
                status["serving"] == true
                    && status["holder"] != old.as_str()
                    && status["standbys"][0]["name"] == old.as_str()
                    && status["standbys"][0]["state"] == "waiting"
            };
            let status = cluster.until(position, waits);
            writing.grow(10).await;
            let epoch = |status: &Value| status["holder_epoch"].as_u64().unwrap();
            assert_eq!(epoch(&cluster.status_of(position)), epoch(&status), "the old holder changed something");

            let (new, killed) = cluster.holder(position);
            assert_ne!(new, old);
            rustix::process::kill_process(killed, Signal::KILL).unwrap();
            let before = writing.last(color);
            writing.new_epoch(color, before).await;
            cluster.until(position, |status| status["serving"] == true && status["holder"] == old.as_str());
            writing.grow(10).await;
        }
    });
}

#[cfg(feature = "etcd")]
#[test]
fn a_standby_takes_over_from_the_root_with_the_metadata_in_etcd() {
    let Some(data) = folder(On::Tmpfs) else { return };
    let Some(etcd) = support::history::Etcd::start(data.path()) else { return };
    let plan = Plan { is_quic: false, etcd: Some(&etcd.address), with_standby: &["root", "leaf-1"] };
    histories_pass(&plan, |cluster, writing| async move {
        kill(&cluster, &writing, "root", "of-root").await;
        kill(&cluster, &writing, "leaf-1", "of-leaf").await;
    });
}
