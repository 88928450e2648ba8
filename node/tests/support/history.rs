//! Histories of colors and how they are checked, and what tests of whole clusters need besides.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use flexlog_client::{Client, Dialer, Event};
use flexlog_history::Operation;
use flexlog_protocol::SeqNum;
use flexlog_protocol::net::quic::{self, Credentials};
use flexlog_protocol::net::{Connect, tcp};

use super::{BINARY, free_addresses};

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct ByQuic(pub Credentials);

impl Dialer for ByQuic {
    fn dial(&self, address: &str) -> Box<dyn Connect> {
        Box::new(quic::Connector::new(address, self.0.clone(), PATIENCE))
    }
}

#[derive(Clone, Debug)]
pub struct ByTcp;

impl Dialer for ByTcp {
    fn dial(&self, address: &str) -> Box<dyn Connect> {
        Box::new(tcp::Connector::new(address, PATIENCE))
    }
}

pub fn flexlog(words: &[&str], folder: &Path) {
    let output = Command::new(BINARY).args(words).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An append that was acknowledged, and when it was sent and acknowledged: ticks of one clock of the test.
#[derive(Clone, Debug)]
pub struct Done {
    pub payload: String,
    pub number: SeqNum,
    pub sent: u64,
    pub acknowledged: u64,
}

/// The numbers below the last of each epoch that no record was delivered for.
pub fn missing(read: &[(SeqNum, String)]) -> Vec<SeqNum> {
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
pub fn check(color: &str, done: &[Done], read: &[(SeqNum, String)], holes: &[SeqNum]) -> Result<(), String> {
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
    let mut history = flexlog_history::History::default();
    for Done { payload, number, sent, acknowledged } in done {
        let append = Operation::Append { first: number.to_raw(), records: vec![payload.clone()] };
        history.push(*sent, *acknowledged, append);
    }
    history.check().map_err(|violation| format!("{color}: {violation}"))?;
    // I6: every number of an epoch is a record or a hole.
    if let Some(number) = missing(read).into_iter().find(|number| !holes.contains(number)) {
        return Err(format!("{color}: {number} is neither a record nor a hole"));
    }
    Ok(())
}

/// In how many epochs the records of a color were numbered.
pub fn epochs(read: &[(SeqNum, String)]) -> usize {
    read.iter().map(|(number, _)| number.epoch().0).collect::<BTreeSet<u32>>().len()
}

/// All records of a color up to its tail.
pub async fn read_all(client: &Client, color: &str) -> Vec<(SeqNum, String)> {
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

/// What all futures come to, in their order.
pub async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
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

/// An etcd of one member on free ports. Killed with this.
pub struct Etcd {
    child: Child,
    pub address: String,
}

impl Etcd {
    /// Starts one; whoever needs it waits until it answers. `None` where there is none on this machine.
    pub fn start(data: &Path) -> Option<Self> {
        let [client, peer] = [0, 1].map(|at| format!("http://{}", free_addresses(2)[at]));
        Self::start_as(Command::new("etcd"), &client, &peer, data)
    }

    /// The same as this command, at these addresses.
    pub fn start_as(mut command: Command, client: &str, peer: &str, data: &Path) -> Option<Self> {
        if super::tool("etcd").is_none() {
            super::skipped("no `etcd` on this machine: apt-get install etcd-server");
            return None;
        }
        let started = command
            .args(["--name", "one", "--log-level", "error", "--data-dir"])
            .arg(data)
            .args(["--listen-client-urls", client, "--advertise-client-urls", client])
            .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match started {
            Ok(child) => Some(Self { child, address: client.to_owned() }),
            Err(error) => {
                super::skipped(&format!("etcd cannot be started ({error}): apt-get install etcd-server"));
                None
            }
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
