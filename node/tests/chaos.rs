//! Chaos on real processes: while clients write, tail and ask, processes of every kind are killed with `kill -9` and started
//! again, stopped and let go on, cut off from all others, and replicas lose their stores, their disks and their space. Of a
//! shard's replicas at most one is unavailable at a time, which is what three of them promise to bear, or all are killed and
//! come back; of sequencers any number is. Afterwards the cluster must be whole again by itself, and every history must be one that a log can have.
//!
//! `FLEXLOG_CHAOS_SECONDS` says for how long each test makes trouble, `FLEXLOG_CHAOS_SEED` what it is; the seed is printed.
//! The order of faults follows from it, their moments do not: these are real processes. `FLEXLOG_CHAOS_KEEP` names a folder
//! that gets what all processes said when a test fails. `ci/chaos` runs this for long.

#![cfg(feature = "quic")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "tests")]

mod support;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use flexlog_client::{AppendError, Client, ColorOptions};
use rustix::process::Signal;
use support::fleet::{Fleet, Plan, REPLICAS, SHARDS};
use support::load::Load;
use support::{Seeded, skipped, tool, turn};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

/// What is written to: name, owner, width.
const COLORS: [(&str, &str, u32); 6] = [
    ("of-leaf-1", "leaf-1", 1),
    ("of-leaf-2", "leaf-2", 1),
    ("of-inner", "inner", 1),
    ("of-root", "root", 1),
    ("wide-inner", "inner", 2),
    ("wide-root", "root", 2),
];
/// What fills a shard up.
const FILLERS: [(&str, &str); SHARDS] = [("filler-1", "leaf-1"), ("filler-2", "leaf-2")];
/// Between two appends of a writer: two cores run all processes.
const PACE: Duration = Duration::from_millis(25);
/// How long a client may be kept waiting while faults come one after the other.
const PATIENT: Duration = Duration::from_secs(60);
/// A client that would rather not know.
const HASTY: Duration = Duration::from_millis(700);
/// How long the cluster may take to be whole again.
const WHOLE: Duration = Duration::from_secs(40);
/// Faults of sequencers that overlap.
const SEQUENCERS_AT_ONCE: u64 = 2;

struct Chaos {
    fleet: Fleet,
    load: Rc<Load>,
    begun: Instant,
    until: Instant,
    /// Sequencers that something is wrong with.
    busy: RefCell<BTreeSet<usize>>,
    counts: RefCell<std::collections::BTreeMap<&'static str, usize>>,
}

fn seconds(otherwise: u64) -> Duration {
    let given = std::env::var("FLEXLOG_CHAOS_SECONDS").ok();
    Duration::from_secs(given.map_or(otherwise, |given| given.parse().expect("FLEXLOG_CHAOS_SECONDS is a number")))
}

fn seed() -> u64 {
    match std::env::var("FLEXLOG_CHAOS_SEED") {
        Ok(given) => given.parse().expect("FLEXLOG_CHAOS_SEED is a number"),
        Err(_) => u64::from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos()),
    }
}

fn between(seeded: &mut Seeded, from: u64, upto: u64) -> Duration {
    Duration::from_millis(from + seeded.below(upto - from))
}

impl Chaos {
    fn tell(&self, what: &'static str, who: usize, more: &str) {
        *self.counts.borrow_mut().entry(what).or_default() += 1;
        eprintln!("{:7.3} {} {what}{more}", self.begun.elapsed().as_secs_f64(), self.fleet.name(who));
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// What may happen to any process. Afterwards it runs and is reached.
    async fn any(&self, at: usize, seeded: &mut Seeded) {
        match seeded.below(if self.fleet.net.is_some() { 3 } else { 2 }) {
            0 => {
                let away = between(seeded, 0, 3000);
                self.tell("killed", at, &format!(" for {away:?}"));
                self.fleet.kill(at);
                sleep(away).await;
                self.fleet.run(at);
            }
            1 => {
                let away = between(seeded, 100, 3000);
                self.tell("stopped", at, &format!(" for {away:?}"));
                self.fleet.signal(at, Signal::STOP);
                sleep(away).await;
                self.fleet.signal(at, Signal::CONT);
            }
            _ => {
                let away = between(seeded, 500, 3000);
                self.tell("cut off", at, &format!(" for {away:?}"));
                self.fleet.link(at, "down");
                sleep(away).await;
                self.fleet.link(at, "up");
            }
        }
    }

    /// Faults of sequencers, one after the other, of whichever has none.
    async fn sequencers(self: Rc<Self>, mut seeded: Seeded) {
        while !self.is_over() {
            sleep(between(&mut seeded, 300, 3000)).await;
            let all = self.fleet.sequencers();
            let at = all[seeded.below(all.len() as u64) as usize];
            if !self.busy.borrow_mut().insert(at) {
                continue;
            }
            self.any(at, &mut seeded).await;
            self.busy.borrow_mut().remove(&at);
        }
    }

    /// Faults of a shard's replicas, one after the other.
    async fn replicas(self: Rc<Self>, shard: usize, mut seeded: Seeded) {
        let client = self.fleet.client(shard * REPLICAS, Duration::from_secs(1)).await;
        while !self.is_over() {
            sleep(between(&mut seeded, 100, 1500)).await;
            let at = self.fleet.replicas_of(shard)[seeded.below(REPLICAS as u64) as usize];
            match seeded.below(9) {
                0 | 1 => {
                    // A leaf that is cut off meanwhile may drop a good replica before it misses the one that is gone for
                    // good: then two are lost, which is more than is promised.
                    let leaves = self.leaves(shard);
                    if leaves.iter().any(|leaf| self.busy.borrow().contains(leaf)) {
                        continue;
                    }
                    self.busy.borrow_mut().extend(&leaves);
                    self.tell("replaced", at, "");
                    self.fleet.kill(at);
                    sleep(between(&mut seeded, 0, 1500)).await;
                    self.fleet.replace(at).await;
                    self.whole(&client, shard).await;
                    self.busy.borrow_mut().retain(|busy| !leaves.contains(busy));
                }
                2 | 3 if self.fleet.is_on_disk(at) => self.failed_sync(&client, shard, at).await,
                4 => self.no_space(shard, at).await,
                5 => self.blackout(shard, at, &mut seeded).await,
                _ => self.any(at, &mut seeded).await,
            }
            self.whole(&client, shard).await;
        }
    }

    /// The processes that may lead a shard.
    fn leaves(&self, shard: usize) -> Vec<usize> {
        let name = format!("leaf-{}", shard + 1);
        self.fleet.sequencers().into_iter().filter(|at| self.fleet.name(*at).starts_with(&name)).collect()
    }

    /// A view as a node knows it.
    async fn view(&self, client: &Client, shard: usize) -> Option<Vec<u32>> {
        let status = client.status().await.ok()?;
        let found = status.tree.shards.iter().find(|place| place.shard.0 as usize == shard + 1)?;
        let mut members: Vec<u32> = found.view.members.iter().map(|member| member.0).collect();
        members.sort_unstable();
        Some(members)
    }

    /// Waits until the view is as wanted, twice with an append between: what a node knows may be old.
    async fn until_view(&self, client: &Client, shard: usize, what: &str, wanted: impl Fn(&[u32]) -> bool) {
        let begun = Instant::now();
        let mut seen = 0;
        while seen < 2 {
            self.fleet.replicas_of(shard).into_iter().for_each(|at| self.fleet.assert_runs(at));
            let view = self.view(client, shard).await;
            let is_so = view.as_deref().is_some_and(&wanted);
            let appended = is_so && {
                let log = client.existing_color(FILLERS[shard].0).await;
                match log {
                    Ok(log) => matches!(log.append("probe").await, Ok(_) | Err(AppendError::Full { .. })),
                    Err(_) => false,
                }
            };
            seen = if appended { seen + 1 } else { 0 };
            if begun.elapsed() > WHOLE {
                let status = self.fleet.status().await;
                panic!("shard {} is not {what} after {WHOLE:?}; a node says {view:?}; {status:?}", shard + 1);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn whole(&self, client: &Client, shard: usize) {
        let wanted = self.fleet.members(shard);
        self.until_view(client, shard, "whole", |view| view == wanted).await;
    }

    /// A sync that fails: the replica takes nothing any more, is dropped, and is started again.
    async fn failed_sync(&self, client: &Client, shard: usize, at: usize) {
        let Some(fault) = self.trace(at, "fdatasync:error=EIO") else { return };
        self.tell("fails to sync", at, "");
        let gone: u32 = self.fleet.name(at).trim_start_matches("replica-").parse().unwrap();
        self.until_view(client, shard, "without the replica whose sync failed", |view| !view.contains(&gone)).await;
        end(fault).await;
        self.fleet.kill(at);
        self.fleet.run(at);
    }

    /// The shard gets so much that its records move to SSD files; one replica on a disk finds no space for its area meanwhile.
    /// A trim makes room again.
    async fn no_space(&self, shard: usize, at: usize) {
        let fault = if self.fleet.is_on_disk(at) { self.trace(at, "fallocate:error=ENOSPC") } else { None };
        self.tell("fills up", at, if fault.is_some() { " and finds no space" } else { "" });
        let client = self.fleet.client(at, Duration::from_secs(2)).await;
        let Ok(log) = client.existing_color(FILLERS[shard].0).await else { return };
        let (mut last, begun) = (None, Instant::now());
        while begun.elapsed() < Duration::from_secs(4) {
            match log.append(vec![7; 512 << 10]).await {
                Ok(number) => last = Some(number),
                Err(AppendError::Full { .. }) => {
                    self.tell("is full", at, "");
                    break;
                }
                Err(_) => {}
            }
        }
        if let Some(fault) = fault {
            end(fault).await;
        }
        // Until it succeeds: else the others would be full for ever.
        let begun = Instant::now();
        while let Some(upto) = last {
            match log.trim(upto).await {
                Ok(_) => break,
                Err(error) => assert!(begun.elapsed() < WHOLE, "{error}"),
            }
        }
        // And there is room again.
        while let Err(error) = log.append(vec![7; 512 << 10]).await {
            assert!(begun.elapsed() < WHOLE, "no room after a trim up to {last:?}: {error}");
            sleep(Duration::from_millis(20)).await;
        }
        client.close().await;
    }

    /// All of a shard's replicas at once, and back in any order: nothing is promised while they are away, and all afterwards.
    async fn blackout(&self, shard: usize, at: usize, seeded: &mut Seeded) {
        self.tell("killed with its whole shard", at, "");
        let mut all = self.fleet.replicas_of(shard);
        all.iter().for_each(|replica| self.fleet.kill(*replica));
        all.rotate_left(seeded.below(REPLICAS as u64) as usize);
        for replica in all {
            sleep(between(seeded, 0, 1500)).await;
            self.fleet.run(replica);
        }
    }

    /// Has a replica's calls about its area fail, until it is ended. `None` where this machine does not let us.
    fn trace(&self, at: usize, inject: &str) -> Option<Child> {
        use std::io::{BufRead, BufReader};
        let Some(strace) = tool("strace") else {
            skipped("no `strace` on this machine (apt-get install strace)");
            return None;
        };
        let calls = inject.split(':').next().unwrap();
        let mut said = String::new();
        // A thread that ends at this moment cannot be traced, and nothing of its process is then.
        for _ in 0..5 {
            let mut command = Command::new(&strace);
            command.args(["-f", "-o", "/dev/null", "-e", &format!("trace={calls}"), "-e", &format!("inject={inject}")]);
            command.arg("-P").arg(self.fleet.area(at)).args(["-p", &self.fleet.pid(at).as_raw_nonzero().to_string()]);
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let mut errors = BufReader::new(child.stderr.take().unwrap());
            while errors.read_line(&mut said).unwrap() > 0 {
                if said.contains("attached") {
                    std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
                    return Some(child);
                }
            }
            child.wait().unwrap();
        }
        skipped(&format!("no right to trace a process: {said}"));
        None
    }

    /// Everybody runs and answers, and all replicas are in their views.
    async fn heal(&self) {
        let begun = Instant::now();
        loop {
            (0..self.fleet.count()).for_each(|at| self.fleet.assert_runs(at));
            let status = self.fleet.status().await;
            let views_are_whole = |status: &serde_json::Value| {
                (0..SHARDS).all(|shard| {
                    let members = status["shards"][shard]["members"].as_array().unwrap();
                    let mut members: Vec<u64> = members.iter().map(|member| member.as_u64().unwrap()).collect();
                    members.sort_unstable();
                    members.iter().copied().eq(self.fleet.members(shard).into_iter().map(u64::from))
                })
            };
            if status.as_ref().is_ok_and(|status| status["healthy"] == true && views_are_whole(status)) {
                eprintln!("{:7.3} whole again after {:?}", self.begun.elapsed().as_secs_f64(), begun.elapsed());
                return;
            }
            assert!(begun.elapsed() < WHOLE, "the cluster is not whole after {WHOLE:?}: {status:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Lets the process that is traced go on.
async fn end(mut fault: Child) {
    let pid = rustix::process::Pid::from_child(&fault);
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    tokio::task::spawn_blocking(move || fault.wait().unwrap()).await.unwrap();
}

async fn run(plan: Plan, fleet: Fleet, duration: Duration, seed: u64) -> Fleet {
    let client = fleet.client(0, PATIENT).await;
    let fillers = FILLERS.iter().map(|(name, owner)| (*name, *owner, 1));
    for (name, owner, width) in COLORS.into_iter().chain(fillers) {
        let options = ColorOptions { owner: Some(owner.to_owned()), width, ..ColorOptions::default() };
        client.create_color(name, options).await.unwrap();
    }
    let load = Rc::new(Load::new(COLORS.iter().map(|(name, ..)| *name)));
    let (patient, hasty) = (fleet.client(1, PATIENT).await, fleet.client(4, HASTY).await);
    let (reader, asker) = (fleet.client(2, PATIENT).await, fleet.client(5, Duration::from_secs(5)).await);
    let mut tasks = Vec::new();
    for (name, ..) in COLORS {
        tasks.push(spawn_local(Rc::clone(&load).write(patient.clone(), name, 1, PACE, true)));
        tasks.push(spawn_local(Rc::clone(&load).write(hasty.clone(), name, 3, 2 * PACE, false)));
        tasks.push(spawn_local(Rc::clone(&load).tail(reader.clone(), name)));
        tasks.push(spawn_local(Rc::clone(&load).ask(asker.clone(), name, 2 * PACE)));
    }
    load.grow(5, WHOLE).await;
    let begun = Instant::now();
    let chaos = Rc::new(Chaos {
        fleet,
        load: Rc::clone(&load),
        begun,
        until: begun + duration,
        busy: RefCell::default(),
        counts: RefCell::default(),
    });
    let lanes = (0..SEQUENCERS_AT_ONCE)
        .map(|lane| spawn_local(Rc::clone(&chaos).sequencers(Seeded::new(seed.wrapping_mul(100).wrapping_add(lane)))));
    let mut lanes: Vec<_> = lanes.collect();
    for shard in 0..SHARDS {
        let seeded = Seeded::new(seed.wrapping_mul(100).wrapping_add(50 + shard as u64));
        lanes.push(spawn_local(Rc::clone(&chaos).replicas(shard, seeded)));
    }
    // A panic of a task ends the test at once: later things would hide its cause.
    for lane in lanes {
        lane.await.unwrap();
    }
    chaos.heal().await;
    chaos.load.grow(10, WHOLE).await;
    load.stop();
    for task in tasks {
        task.await.unwrap();
    }
    let total: usize = load.acknowledged().iter().sum();
    let (unknown, not_appended, counts) = (load.unknown(), load.not_appended.get(), chaos.counts.take());
    eprintln!("{plan:?}: {total} records acknowledged, {unknown} appends unknown, {not_appended} refused; {counts:?}");
    let readers = [chaos.fleet.client(0, PATIENT).await, chaos.fleet.client(4, PATIENT).await];
    load.judge(&readers).await;
    let Ok(chaos) = Rc::try_unwrap(chaos) else { panic!("somebody uses the cluster still") };
    chaos.fleet
}

/// The numbers of each color that was never trimmed, by its id: the lowest, the highest, and how many have a record.
fn holds(report: &serde_json::Value) -> Vec<(u64, String, String, u64)> {
    let of = |color: &serde_json::Value| {
        let parts = [&color["area"], &color["ssd"]].into_iter().filter(|part| part.is_object());
        let number = |value: &serde_json::Value| {
            let (epoch, counter) = value.as_str().unwrap().split_once('.').unwrap();
            (epoch.parse::<u32>().unwrap(), counter.parse::<u32>().unwrap())
        };
        let first = parts.clone().map(|part| number(&part["first"])).min();
        let last = parts.clone().map(|part| number(&part["last"])).max();
        let count = parts.map(|part| part["records"].as_u64().unwrap()).sum();
        (color["color"].as_u64().unwrap(), format!("{first:?}"), format!("{last:?}"), count)
    };
    let colors = report["colors"].as_array().unwrap();
    let mut all: Vec<_> = colors.iter().filter(|color| color["trim"].is_null()).map(of).collect();
    all.sort_unstable();
    all
}

fn chaos(plan: Plan, otherwise: u64) {
    let _turn = turn();
    let (seed, duration) = (seed(), seconds(otherwise));
    eprintln!("FLEXLOG_CHAOS_SEED={seed} FLEXLOG_CHAOS_SECONDS={} {plan:?}", duration.as_secs());
    // A thread of its own: it stays in the client's namespace.
    let test = std::thread::spawn(move || {
        let Some(fleet) = Fleet::start(plan) else { return };
        if let Some(net) = &fleet.net {
            net.enter_client();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = LocalSet::new();
        let fleet = local.block_on(&runtime, run(plan, fleet, duration, seed));
        drop(local);
        drop(runtime);
        let reports = fleet.stop_and_inspect();
        for (shard, reports) in reports.chunks(REPLICAS).enumerate() {
            for other in 1..REPLICAS {
                let (one, other) = (holds(&reports[0].1), holds(&reports[other].1));
                assert_eq!(one, other, "members of shard {} hold different records", shard + 1);
            }
        }
    });
    if let Err(panic) = test.join() {
        eprintln!("FLEXLOG_CHAOS_SEED={seed} {plan:?} failed");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_cluster_bears_chaos_over_tcp() {
    chaos(Plan { is_quic: false, in_etcd: false }, 12);
}

#[test]
fn a_cluster_bears_chaos_over_quic() {
    chaos(Plan { is_quic: true, in_etcd: false }, 6);
}

#[cfg(feature = "etcd")]
#[test]
fn a_cluster_bears_chaos_with_the_metadata_in_etcd() {
    chaos(Plan { is_quic: false, in_etcd: true }, 12);
}
