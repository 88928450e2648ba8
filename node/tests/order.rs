//! Order in a real cluster: root, two inner positions, four leaves and four shards of three replicas, each its own
//! process, with writers on colors of every level at once, over TCP and over QUIC. Epochs are short, so that positions
//! of every level claim themselves again while others go on. Every color's history is checked.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "tests")]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use flexlog_client::{Client, ColorOptions, ReadOutcome, Record};
use flexlog_protocol::SeqNum;
use flexlog_protocol::net::quic::Credentials;
#[cfg(feature = "etcd")]
use support::history::Etcd;
use support::history::{ByQuic, ByTcp, Done, PATIENCE, check, epochs, flexlog, join_all, missing, read_all};
use support::{BINARY, On, folder, free_addresses};

/// Appends of one writer: half of them one after the other, half at once.
const APPENDS: u64 = 60;
const WRITERS: u64 = 3;
/// Less than a color is given by its writers, so that every color sees the end of an epoch.
const NUMBERS_PER_EPOCH: u32 = 100;

const SEQUENCERS: [(&str, Option<&str>); 7] = [
    ("root", None),
    ("west", Some("root")),
    ("east", Some("root")),
    ("leaf-1", Some("west")),
    ("leaf-2", Some("west")),
    ("leaf-3", Some("east")),
    ("leaf-4", Some("east")),
];
const REPLICAS: usize = 3;

/// What is written to: name, owner, width.
const COLORS: [(&str, &str, u32); 7] = [
    ("of-leaf-1", "leaf-1", 1),
    ("of-leaf-4", "leaf-4", 1),
    ("of-west", "west", 1),
    ("of-root", "root", 1),
    ("wide-west", "west", 2),
    ("wide-root", "root", 4),
    ("wide-three", "root", 3),
];

struct Cluster {
    child: Child,
    /// Of the replicas.
    addresses: Vec<String>,
    credentials: Option<Credentials>,
}

/// How the processes of a cluster reach one another, and where its metadata is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By<'a> {
    Tcp,
    Quic,
    /// TCP, with the metadata in etcd at this address.
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "its test is not built"))]
    Etcd(&'a str),
}

fn topology(folder: &Path, by: By) -> (PathBuf, Vec<String>) {
    let leaves: Vec<&str> = SEQUENCERS.iter().map(|(name, _)| *name).filter(|name| name.starts_with("leaf")).collect();
    let mut addresses = free_addresses(SEQUENCERS.len() + leaves.len() * REPLICAS);
    let replicas = addresses.split_off(SEQUENCERS.len());
    let mut text = String::from("cluster = \"order\"\n");
    match by {
        By::Tcp => {}
        By::Quic => text += "transport = \"quic\"\n[certificates]\ndirectory = \"certs\"\n",
        By::Etcd(address) => {
            writeln!(text, "[metadata]\nbackend = \"etcd\"\nendpoints = [\"{address}\"]\nprefix = \"flexlog/order\"")
                .unwrap();
        }
    }
    text += "[storage]\narea_limit = \"64MiB\"\nsegment = \"8MiB\"\nssd = false\n";
    for ((name, parent), address) in SEQUENCERS.iter().zip(&addresses) {
        write!(text, "[[sequencer]]\nname = \"{name}\"\naddress = \"{address}\"\n").unwrap();
        if let Some(parent) = parent {
            writeln!(text, "parent = \"{parent}\"").unwrap();
        }
    }
    for (shard, leaf) in leaves.iter().enumerate() {
        write!(text, "[[shard]]\nid = {}\nleaf = \"{leaf}\"\n", shard + 1).unwrap();
        for (replica, address) in (1..).zip(&replicas).skip(shard * REPLICAS).take(REPLICAS) {
            write!(text, "[[shard.replica]]\nid = {replica}\naddress = \"{address}\"\n").unwrap();
        }
    }
    let file = folder.join("cluster.toml");
    fs::write(&file, text).unwrap();
    (file, replicas)
}

impl Cluster {
    fn start(folder: &Path, by: By) -> Self {
        let (file, addresses) = topology(folder, by);
        let credentials = (by == By::Quic).then(|| {
            flexlog(&["cert", "init", "--dir", "certs"], folder);
            let replicas: Vec<String> = (1..=addresses.len()).map(|id| format!("replica-{id}")).collect();
            let mut words = vec!["cert", "issue", "--dir", "certs", "client"];
            words.extend(SEQUENCERS.iter().map(|(name, _)| *name));
            words.extend(replicas.iter().map(String::as_str));
            flexlog(&words, folder);
            Credentials::load(&folder.join("certs"), "client").unwrap()
        });
        let mut child = Command::new(BINARY)
            .args(["cluster", "up", "--numbers-per-epoch", &NUMBERS_PER_EPOCH.to_string()])
            .arg(file)
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
        if !line.starts_with("ready") {
            let _ = child.kill();
            panic!("the cluster did not start: {line}{}", said.join().unwrap());
        }
        // What follows is for people; it must be taken for the cluster not to wait.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        std::thread::spawn(move || said.join().map(|text| eprint!("{text}")));
        Self { child, addresses, credentials }
    }

    async fn client(&self, at: usize) -> Client {
        let builder = Client::builder().append_deadline(PATIENCE).deadline(PATIENCE).connect_deadline(PATIENCE);
        let builder = match &self.credentials {
            Some(credentials) => builder.dialer(ByQuic(credentials.clone())),
            None => builder.dialer(ByTcp),
        };
        builder.connect(self.addresses[at % self.addresses.len()].clone()).await.unwrap()
    }

    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // After a test that failed: whoever started the others has to end them.
        if let Ok(None) = self.child.try_wait() {
            let pid = rustix::process::Pid::from_child(&self.child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

async fn write(client: &Client, color: &str, writer: u64, clock: &AtomicU64) -> Vec<Done> {
    let tick = || clock.fetch_add(1, Ordering::SeqCst);
    let log = client.existing_color(color).await.unwrap();
    let mut done = Vec::new();
    for i in 0..APPENDS / 2 {
        let (payload, sent) = (format!("{color} {writer} {i}"), tick());
        let number = log.append(payload.clone()).await.unwrap();
        done.push(Done { payload, number, sent, acknowledged: tick() });
    }
    let mut pending = Vec::new();
    for i in APPENDS / 2..APPENDS {
        let (payload, sent) = (format!("{color} {writer} {i}"), tick());
        pending.push((payload.clone(), sent, log.submit(Record::new(payload).unwrap()).await.unwrap()));
    }
    for (payload, sent, number) in pending {
        let number = number.await.unwrap();
        done.push(Done { payload, number, sent, acknowledged: tick() });
    }
    done
}

async fn run(cluster: &Cluster) -> Result<(), String> {
    let clock = AtomicU64::new(0);
    let first = cluster.client(0).await;
    for (name, owner, width) in COLORS {
        let options = ColorOptions { owner: Some(owner.to_owned()), width, ..ColorOptions::default() };
        let info = first.create_color(name, options).await.unwrap();
        assert_eq!((info.owner.as_str(), info.shards.len()), (owner, width as usize));
    }
    let mut clients = Vec::new();
    for at in 0..WRITERS as usize {
        clients.push(cluster.client(5 * at + 1).await);
    }
    // All colors and writers at once.
    let mut writing = Vec::new();
    for (name, _, _) in COLORS {
        for (writer, client) in (0..).zip(&clients) {
            let clock = &clock;
            writing.push(async move { (name, write(client, name, writer, clock).await) });
        }
    }
    let mut histories: BTreeMap<&str, Vec<Done>> = BTreeMap::new();
    for (name, done) in join_all(writing).await {
        histories.entry(name).or_default().extend(done);
    }
    for reader in 0..2 {
        let client = cluster.client(4 * reader + 2).await;
        for (name, _, _) in COLORS {
            let read = read_all(&client, name).await;
            let log = client.existing_color(name).await.unwrap();
            let mut holes = Vec::new();
            for number in missing(&read) {
                if matches!(log.read(number).await.unwrap(), ReadOutcome::Hole) {
                    holes.push(number);
                }
            }
            check(name, &histories[name], &read, &holes)?;
            if epochs(&read) < 2 {
                return Err(format!("{name}: all of it is in one epoch, which is not what this test is to see"));
            }
            let (last, payload) = read.last().cloned().unwrap();
            match log.read(last).await.unwrap() {
                ReadOutcome::Record(record) if record.payload() == payload.as_bytes() => {}
                other => return Err(format!("{name}: {last} is {other:?}")),
            }
            let tail = log.tail().await.unwrap();
            if tail <= last {
                return Err(format!("{name}: the tail is {tail}, the last record {last}"));
            }
        }
    }
    Ok(())
}

fn histories_pass(by: By) {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let cluster = Cluster::start(folder.path(), by);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let Err(violation) = runtime.block_on(run(&cluster)) {
        panic!("{violation}");
    }
    cluster.stop();
}

#[test]
fn every_colors_history_is_in_order_over_tcp() {
    histories_pass(By::Tcp);
}

#[test]
fn every_colors_history_is_in_order_over_quic() {
    histories_pass(By::Quic);
}

#[cfg(feature = "etcd")]
#[test]
fn every_colors_history_is_in_order_with_the_metadata_in_etcd() {
    let Some(data) = folder(On::Tmpfs) else { return };
    if let Some(etcd) = Etcd::start(data.path()) {
        histories_pass(By::Etcd(&etcd.address));
    }
}

/// The checker can fail.
#[test]
fn mistakes_in_a_history_are_found() {
    let number = |epoch, counter| SeqNum::new(flexlog_protocol::Epoch(epoch), counter);
    let append =
        |payload: &str, number, sent, acknowledged| Done { payload: payload.into(), number, sent, acknowledged };
    let good = [append("a", number(1, 0), 0, 1), append("b", number(1, 1), 2, 5), append("c", number(2, 0), 3, 4)];
    let read = [(number(1, 0), "a".to_owned()), (number(1, 1), "b".to_owned()), (number(2, 0), "c".to_owned())];
    assert_eq!(check("red", &good, &read, &[]), Ok(()));
    let wrong = |done: &[Done], read: &[(SeqNum, String)]| check("red", done, read, &[]).unwrap_err();

    assert!(wrong(&good, &read[..2]).contains("names None"), "a lost record");
    let mut twice = read.to_vec();
    twice.insert(1, (number(1, 0), "a".to_owned()));
    assert!(wrong(&good, &twice).contains("delivered after"));
    let mut other = read.to_vec();
    other[1].1 = "x".to_owned();
    assert!(wrong(&good, &other).contains("names Some"));
    let mut more = read.to_vec();
    more.push((number(2, 1), "d".to_owned()));
    assert!(wrong(&good, &more).contains("records are there"));
    let mut late = good.to_vec();
    (late[0].sent, late[0].acknowledged) = (8, 9);
    assert!(wrong(&late, &read).contains("had returned"));
    let gap = [(number(1, 0), "a".to_owned()), (number(1, 2), "b".to_owned()), (number(2, 0), "c".to_owned())];
    let mut gone = good.to_vec();
    gone[1].number = number(1, 2);
    assert!(wrong(&gone, &gap).contains("1.1 is neither"));
    assert_eq!(check("red", &gone, &gap, &[number(1, 1)]), Ok(()));
}
