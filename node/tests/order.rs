//! Order in a real cluster: root, two inner positions, four leaves and four shards of three replicas, each its own
//! process, with writers on colors of every level at once, over TCP and over QUIC. Epochs are short, so that positions
//! of every level claim themselves again while others go on. Every color's history is checked.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "tests")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flexlog_client::{Client, ColorOptions, Dialer, Event, ReadOutcome, Record};
use flexlog_protocol::SeqNum;
use flexlog_protocol::net::quic::{self, Credentials};
use flexlog_protocol::net::{Connect, tcp};
use support::{BINARY, On, folder};

const PATIENCE: Duration = Duration::from_secs(60);
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

#[derive(Clone, Debug)]
struct ByQuic(Credentials);

impl Dialer for ByQuic {
    fn dial(&self, address: &str) -> Box<dyn Connect> {
        Box::new(quic::Connector::new(address, self.0.clone(), PATIENCE))
    }
}

#[derive(Clone, Debug)]
struct ByTcp;

impl Dialer for ByTcp {
    fn dial(&self, address: &str) -> Box<dyn Connect> {
        Box::new(tcp::Connector::new(address, PATIENCE))
    }
}

/// Addresses that are free now.
fn free_addresses(count: usize) -> Vec<String> {
    // All at once, so that they differ.
    let taken: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    taken.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
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

fn flexlog(words: &[&str], folder: &Path) {
    let output = Command::new(BINARY).args(words).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
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

/// An append that was acknowledged, and when it was sent and acknowledged: ticks of one clock of the test.
#[derive(Clone, Debug)]
struct Done {
    payload: String,
    number: SeqNum,
    sent: u64,
    acknowledged: u64,
}

/// The numbers below the last of each epoch that no record was delivered for.
fn missing(read: &[(SeqNum, String)]) -> Vec<SeqNum> {
    let mut missing = Vec::new();
    let mut next: BTreeMap<u32, u32> = BTreeMap::new();
    for (number, _) in read {
        let next = next.entry(number.epoch().0).or_default();
        missing.extend((*next..number.counter()).map(|counter| SeqNum::new(number.epoch(), counter)));
        *next = number.counter() + 1;
    }
    missing
}

/// Checks one color's history: `read` is all of it in the order in which it was delivered, `holes` are numbers that were
/// asked for and found to be holes.
fn check(color: &str, done: &[Done], read: &[(SeqNum, String)], holes: &[SeqNum]) -> Result<(), String> {
    // Every number names one record, and the records are those that were acknowledged, no more and no less.
    if let Some(pair) = read.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        return Err(format!("{color}: {} is delivered after {}", pair[1].0, pair[0].0));
    }
    let by_number: BTreeMap<SeqNum, &str> = read.iter().map(|(number, payload)| (*number, payload.as_str())).collect();
    for append in done {
        match by_number.get(&append.number) {
            Some(payload) if *payload == append.payload => {}
            other => return Err(format!("{color}: {append:?} was acknowledged, and its number names {other:?}")),
        }
    }
    if read.len() != done.len() {
        return Err(format!("{color}: {} appends were acknowledged, {} records are there", done.len(), read.len()));
    }
    // I4: what was acknowledged before another was sent has the smaller number.
    let mut by_time: Vec<&Done> = done.iter().collect();
    by_time.sort_by_key(|append| append.acknowledged);
    for late in done {
        let before = by_time.partition_point(|early| early.acknowledged < late.sent);
        if let Some(early) = by_time[..before].iter().max_by_key(|early| early.number)
            && early.number >= late.number
        {
            return Err(format!("{color}: {late:?} was sent after {early:?} was acknowledged"));
        }
    }
    // I6: every number of an epoch is a record or a hole.
    if let Some(number) = missing(read).into_iter().find(|number| !holes.contains(number)) {
        return Err(format!("{color}: {number} is neither a record nor a hole"));
    }
    let epochs: BTreeSet<u32> = read.iter().map(|(number, _)| number.epoch().0).collect();
    if epochs.len() < 2 {
        return Err(format!("{color}: all of it is in one epoch, which is not what this test is to see"));
    }
    Ok(())
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

/// All records of a color up to its tail.
async fn read_all(client: &Client, color: &str) -> Vec<(SeqNum, String)> {
    let log = client.existing_color(color).await.unwrap();
    let tail = log.tail().await.unwrap();
    let mut events = log.subscribe(SeqNum::MIN);
    let mut read = Vec::new();
    loop {
        match events.next().await.unwrap().unwrap() {
            Event::Record { number, record } => {
                read.push((number, String::from_utf8(record.payload().to_vec()).unwrap()));
            }
            Event::Progress { upto } if upto >= tail => return read,
            Event::Progress { .. } => {}
            Event::Trimmed { point } => panic!("{color} is trimmed up to {point}"),
        }
    }
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

/// What all futures come to, in their order.
async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in futures.iter_mut().zip(&mut outputs).filter(|(_, output)| output.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
                *output = Some(value);
            }
        }
        if outputs.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
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

/// An etcd of one member on free ports. Killed with this.
#[cfg(feature = "etcd")]
struct Etcd(Child);

#[cfg(feature = "etcd")]
impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(feature = "etcd")]
#[test]
fn every_colors_history_is_in_order_with_the_metadata_in_etcd() {
    let Some(data) = folder(On::Tmpfs) else { return };
    let [client, peer] = [0, 1].map(|at| format!("http://{}", free_addresses(2)[at]));
    let started = Command::new("etcd")
        .args(["--name", "one", "--log-level", "error", "--data-dir"])
        .arg(data.path())
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("one={peer}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    match started {
        // The cluster waits until it answers.
        Ok(child) => {
            let _etcd = Etcd(child);
            histories_pass(By::Etcd(&client));
        }
        Err(error) => support::skipped(&format!("etcd cannot be started ({error}): apt-get install etcd-server")),
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
    assert!(wrong(&late, &read).contains("was sent after"));
    let gap = [(number(1, 0), "a".to_owned()), (number(1, 2), "b".to_owned()), (number(2, 0), "c".to_owned())];
    let mut gone = good.to_vec();
    gone[1].number = number(1, 2);
    assert!(wrong(&gone, &gap).contains("1.1 is neither"));
    assert_eq!(check("red", &gone, &gap, &[number(1, 1)]), Ok(()));
}
