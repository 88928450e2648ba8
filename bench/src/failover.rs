//! `failover`: for how long appends wait when somebody is killed. A root, an inner position and a leaf with a standby each for
//! the lower two, and a shard of three replicas, all processes. One client appends all the time, one record at a time, to a
//! color that the position in question counts for; then its process is killed with SIGKILL. The gap is the time from the
//! last acknowledgement before the kill to the first one after it. Afterwards the process is started again, and it is
//! waited for everybody to be back. With `--etcd` the root is killed too, which has a standby then.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use flexlog_client::{Client, ColorOptions, Log, Record};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::cluster::free_addresses;
use crate::measure::{self, Output, Spread};
use crate::servers::{Process, Starting};
use crate::{Outcome, plot};

/// Arguments of `bench failover`.
#[derive(Args)]
pub(crate) struct FailoverArgs {
    /// How often each of them is killed.
    #[arg(long, default_value_t = 20)]
    runs: usize,
    /// How long a sequencer may be silent, in milliseconds.
    #[arg(long, default_value_t = 300)]
    detect_ms: u64,
    /// How long a replica may make no progress, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    replica_timeout_ms: u64,
    /// Bytes of a record.
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Where the areas are.
    #[arg(long, default_value = "/dev/shm")]
    tmpfs: String,
    /// With the metadata in an etcd that is started for it: the root is killed too. Needs a build with the feature `etcd`, and etcd.
    #[arg(long)]
    etcd: bool,
    /// Write a picture of every gap, the shortest first, to this file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Appends before a kill, and after the first that is acknowledged again.
const AROUND: usize = 50;
/// How long to wait for everybody to be back.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    Leaf,
    Inner,
    Replica,
    Root,
}

impl Victim {
    fn name(self) -> &'static str {
        match self {
            Self::Leaf => "leaf",
            Self::Inner => "inner position",
            Self::Replica => "replica",
            Self::Root => "root",
        }
    }

    /// The owner of the color that is appended to.
    fn owner(self) -> &'static str {
        match self {
            Self::Inner => "inner",
            Self::Root => "root",
            Self::Leaf | Self::Replica => "leaf",
        }
    }
}

/// The cluster; its processes end, and its folder goes, with it.
pub(crate) struct Bed {
    file: PathBuf,
    /// The addresses of the replicas.
    pub(crate) replicas: Vec<String>,
    processes: Vec<(Vec<String>, Process)>,
    _etcd: Option<Etcd>,
    _folder: TempDir,
}

/// An etcd of one member. Killed with this.
struct Etcd(Child);

impl Etcd {
    fn start(folder: &Path, client: &str, peer: &str) -> Outcome<Self> {
        let [client, peer] = [client, peer].map(|address| format!("http://{address}"));
        let child = Command::new("etcd")
            .args(["--name", "one", "--log-level", "error", "--data-dir"])
            .arg(folder.join("etcd"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Ok(Self(child.map_err(|error| format!("etcd cannot be started ({error}): apt-get install etcd-server"))?))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(file: &Path, words: &[String]) -> Outcome<Starting> {
    let file = file.to_str().ok_or("the folder's name is not UTF-8")?;
    let mut args = vec!["flexlog"];
    args.extend(words.iter().map(String::as_str));
    args.extend(["--config", file]);
    Starting::new(&args)
}

pub(crate) fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

impl Bed {
    pub(crate) fn new(tmpfs: &str, (detect_ms, replica_timeout_ms): (u64, u64), with_etcd: bool) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("flexlog-bench-").tempdir_in(tmpfs)?;
        let free = free_addresses(11)?;
        let mut text = format!(
            "cluster = \"bench\"\ndata = \"data\"\n[storage]\nssd = false\n[failover]\ndetect_ms = {detect_ms}\nreplica_timeout_ms = {replica_timeout_ms}\n"
        );
        let mut etcd = None;
        if with_etcd {
            etcd = Some(Etcd::start(folder.path(), &free[8], &free[9])?);
            let _ = writeln!(
                text,
                "[metadata]\nbackend = \"etcd\"\nendpoints = [\"http://{}\"]\nprefix = \"flexlog/bench\"",
                free[8]
            );
        }
        let of_root = with_etcd.then_some(10);
        for (name, parent, address, standby) in
            [("root", None, 0, of_root), ("inner", Some("root"), 1, Some(2)), ("leaf", Some("inner"), 3, Some(4))]
        {
            // Writing to a String does not fail.
            let _ = writeln!(text, "[[sequencer]]\nname = \"{name}\"\naddress = \"{}\"", free[address]);
            if let Some(parent) = parent {
                let _ = writeln!(text, "parent = \"{parent}\"");
            }
            if let Some(standby) = standby {
                let _ = writeln!(text, "standbys = [\"{}\"]", free[standby]);
            }
        }
        text.push_str("[[shard]]\nid = 1\nleaf = \"leaf\"\nmin_view = 2\n");
        for (id, address) in (1..).zip(&free[5..8]) {
            let _ = writeln!(text, "[[shard.replica]]\nid = {id}\naddress = \"{address}\"");
        }
        let file = folder.path().join("cluster.toml");
        std::fs::write(&file, text)?;
        let lines = ["sequencer root", "sequencer inner", "sequencer leaf", "replica 1", "replica 2", "replica 3"];
        let starting: Vec<_> =
            lines.iter().map(|line| Ok((words(line), start(&file, &words(line))?))).collect::<Outcome<_>>()?;
        let mut processes = Vec::new();
        for (words, starting) in starting {
            processes.push((words, starting.ready()?));
        }
        // Once somebody holds the positions, so that these are standbys.
        let mut standbys = vec!["sequencer inner --standby 1", "sequencer leaf --standby 1"];
        standbys.extend(with_etcd.then_some("sequencer root --standby 1"));
        for line in standbys {
            processes.push((words(line), start(&file, &words(line))?.ready()?));
        }
        Ok(Self { file, replicas: free[5..8].to_vec(), processes, _etcd: etcd, _folder: folder })
    }

    /// Kills the process that was started with these words, and gives back how to start it again.
    pub(crate) fn kill(&mut self, victim: &[String]) -> Outcome<()> {
        let at = self.processes.iter().position(|(words, _)| words == victim).ok_or("it does not run")?;
        // This is SIGKILL.
        drop(self.processes.swap_remove(at));
        Ok(())
    }

    pub(crate) fn restart(&mut self, victim: Vec<String>) -> Outcome<()> {
        let process = start(&self.file, &victim)?.ready()?;
        self.processes.push((victim, process));
        Ok(())
    }
}

/// What came of all kills of one kind, in milliseconds.
struct Row {
    victim: Victim,
    gaps: Vec<f64>,
    /// From its start until everybody was back.
    returns: Vec<f64>,
}

pub(crate) fn run(args: &FailoverArgs) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut bed = Bed::new(&args.tmpfs, (args.detect_ms, args.replica_timeout_ms), args.etcd)?;
    let mut rows = Vec::new();
    // With the metadata in the root's process nobody stands by for that.
    let root = args.etcd.then_some(Victim::Root);
    let victims = [Victim::Leaf, Victim::Inner].into_iter().chain(root).chain([Victim::Replica]);
    for victim in victims {
        let mut row = Row { victim, gaps: Vec::new(), returns: Vec::new() };
        for nth in 0..args.runs {
            let (gap, back) = once(&runtime, &mut bed, victim, nth, args.size)?;
            row.gaps.push(gap.as_secs_f64() * 1e3);
            row.returns.push(back.as_secs_f64() * 1e3);
        }
        row.gaps.sort_by(f64::total_cmp);
        row.returns.sort_by(f64::total_cmp);
        rows.push(row);
    }
    if let Some(path) = &args.plot {
        let points = |row: &Row| -> Vec<(f64, Spread)> {
            let part = |nth: usize| 100.0 * (nth + 1) as f64 / row.gaps.len() as f64;
            row.gaps.iter().enumerate().map(|(nth, gap)| (part(nth), Spread::of([*gap]))).collect()
        };
        let lines: Vec<_> = rows.iter().map(|row| (row.victim.name(), points(row))).collect();
        let picture =
            plot::lines("Nothing is acknowledged for so long when this is killed", ["% of kills", "ms"], &lines);
        plot::write(path, &picture)?;
    }
    tell(args, &rows)
}

/// Kills once, and waits until all is as before.
fn once(runtime: &Runtime, bed: &mut Bed, victim: Victim, nth: usize, size: usize) -> Outcome<(Duration, Duration)> {
    let record = Record::new(vec![7; size])?;
    let client = runtime.block_on(Client::builder().append_deadline(PATIENCE).connect(bed.replicas.join(",")))?;
    let options = ColorOptions { owner: Some(victim.owner().to_owned()), ..ColorOptions::default() };
    let name = format!("of-{}", victim.owner());
    runtime.block_on(client.create_color(&name, options))?;
    let log = runtime.block_on(client.existing_color(&name))?;
    let last = runtime.block_on(append(&log, &record, AROUND))?;
    let words = match victim {
        Victim::Replica => words(&format!("replica {}", nth % 3 + 1)),
        _ => words(&holder(runtime, &client, victim.owner())?),
    };
    bed.kill(&words)?;
    let after = runtime.block_on(append(&log, &record, 1))?;
    runtime.block_on(append(&log, &record, AROUND))?;
    let begun = Instant::now();
    bed.restart(words)?;
    until_back(runtime, &client, victim, begun)?;
    let back = begun.elapsed();
    runtime.block_on(client.close());
    Ok((after - last, back))
}

/// Appends one after the other; when the last was acknowledged.
async fn append(log: &Log, record: &Record, count: usize) -> Outcome<Instant> {
    for _ in 0..count {
        log.append_record(record.clone()).await?;
    }
    Ok(Instant::now())
}

/// The words that the process was started with which holds a position.
fn holder(runtime: &Runtime, client: &Client, position: &str) -> Outcome<String> {
    let status = runtime.block_on(client.status())?;
    let found = status.tree.positions.iter().find(|found| found.name == position).ok_or("no such position")?;
    let at_home = found.holder.is_empty() || found.holder == found.address;
    Ok(if at_home { format!("sequencer {position}") } else { format!("sequencer {position} --standby 1") })
}

/// Waits until the view has all three replicas again.
fn until_back(runtime: &Runtime, client: &Client, victim: Victim, begun: Instant) -> Outcome<()> {
    if victim != Victim::Replica {
        return Ok(());
    }
    loop {
        let status = runtime.block_on(client.status())?;
        if status.tree.shards.iter().all(|shard| shard.view.members.len() == 3) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("a replica was not in the view again after {} s", PATIENCE.as_secs()).into());
        }
    }
}

pub(crate) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = (q * (sorted.len().max(1) - 1) as f64).round() as usize;
    sorted.get(at).copied().unwrap_or_default()
}

const QUANTILES: [f64; 5] = [0.0, 0.5, 0.9, 0.99, 1.0];

fn tell(args: &FailoverArgs, rows: &[Row]) -> Outcome<()> {
    let value = json!({
        "detect_ms": args.detect_ms,
        "replica_timeout_ms": args.replica_timeout_ms,
        "rows": rows.iter().map(|row| json!({
            "killed": row.victim.name(),
            "gaps_ms": row.gaps,
            "returns_ms": row.returns,
        })).collect::<Vec<_>>(),
    });
    args.output.tell(&value, || {
        let head = ["killed", "runs", "gap ms: least", "p50", "p90", "p99", "most", "back after ms: p50", "most"];
        let row = |row: &Row| {
            let mut cells = vec![row.victim.name().to_owned(), row.gaps.len().to_string()];
            cells.extend(QUANTILES.map(|q| format!("{:.0}", quantile(&row.gaps, q))));
            cells.extend([0.5, 1.0].map(|q| format!("{:.0}", quantile(&row.returns, q))));
            cells
        };
        measure::table(&head, &rows.iter().map(row).collect::<Vec<_>>());
    })
}
