//! `append`: the way of a record from a client over a real socket into a three-replica cluster in another process, and
//! back as a number.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::Args;
use flexlog_client::{Client, Log, Record};
use serde_json::json;
use tempfile::TempDir;

use crate::Outcome;
use crate::cluster::Transport;
use crate::cluster_append;
use crate::echo::{Echo, Kind};
use crate::measure::{self, Latencies, Output, Spread};
use crate::servers::{self, Process};

/// Arguments of `bench append`.
#[derive(Args)]
pub(crate) struct AppendArgs {
    /// Bytes of a record where one is outstanding.
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Counted runs, each with appends and baselines in turn.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Where the folder on tmpfs is made.
    #[arg(long, default_value = "/dev/shm")]
    tmpfs: String,
    /// Where the folder on a disk is made.
    #[arg(long, default_value = "target")]
    disk: String,
    /// Leave out the part on disk.
    #[arg(long)]
    no_disk: bool,
    /// Into a cluster of processes instead, one sequencer and three replicas, with the steps of an append.
    #[arg(long)]
    cluster: bool,
    /// How its processes and the client are connected.
    #[arg(long, value_enum, default_value_t = Transport::Tcp, requires = "cluster")]
    transport: Transport,
    /// Two short runs: to see that everything works.
    #[arg(long, requires = "cluster")]
    quick: bool,
    #[command(flatten)]
    output: Output,
}

/// Rounds of one slice: appends and baselines take turns that are this long.
const SLICE: usize = 500;
/// Slices of one run on tmpfs and on disk.
const SLICES: [usize; 2] = [20, 4];
/// Pipelined records of one run, and their bytes.
const PIPELINED: usize = 1_000_000;
const PIPELINED_BYTES: usize = 100;
/// How long an idle server is watched.
const IDLE: Duration = Duration::from_secs(5);
/// What the store writes around a staged record and for its assignment, about: for the fdatasync baseline.
const OVERHEAD: usize = 128;

/// Where client and servers run, appends and baselines alike.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Placement {
    /// The client on one processor, the server on another: as between two machines, each wakes the other's.
    TwoCores,
    /// Both on the same processor: nobody is woken from idle.
    OneCore,
    /// Wherever the scheduler likes, which changes from run to run.
    Anywhere,
}

impl Placement {
    fn name(self) -> &'static str {
        match self {
            Self::TwoCores => "two cores",
            Self::OneCore => "one core",
            Self::Anywhere => "unpinned",
        }
    }

    /// Puts this thread and those servers in their places.
    fn apply(self, servers: &[&Process]) -> Outcome<()> {
        let all = servers::processors_at_start()?;
        let (client, server) = match (self, &all[..]) {
            (Self::TwoCores, [first, second, ..]) => (vec![*first], vec![*second]),
            (Self::OneCore, [first, ..]) => (vec![*first], vec![*first]),
            _ => (all.clone(), all.clone()),
        };
        servers::bind(&client)?;
        servers.iter().try_for_each(|process| process.bind(&server))
    }
}

/// One run with one append outstanding, in microseconds.
#[derive(Clone, Copy)]
struct Run {
    p50: f64,
    p99: f64,
    echo: f64,
    echo_p99: f64,
    /// Two rounds of three parallel fdatasyncs.
    syncs: f64,
}

/// What was measured with the folder on tmpfs.
struct OnTmpfs {
    by_placement: Vec<(Placement, Vec<Run>)>,
    /// Records per second of each run.
    pipelined: Vec<f64>,
    /// Of a core, in percent.
    idle: f64,
}

impl Run {
    fn ratio(&self) -> f64 {
        self.p50 / (self.echo + self.syncs)
    }
}

pub(crate) fn run(args: &AppendArgs) -> Outcome<()> {
    if args.cluster {
        let &AppendArgs { size, quick, transport, ref tmpfs, .. } = args;
        let runs = if quick { args.runs.min(2) } else { args.runs };
        let wanted = cluster_append::Wanted { size, runs, quick, tmpfs, transport };
        return cluster_append::run(&wanted, &args.output);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tmpfs = tempfile::Builder::new().prefix("flexlog-bench-").tempdir_in(&args.tmpfs)?;
    let memory = on_tmpfs(args, &runtime, &tmpfs)?;
    let disk = match args.no_disk {
        true => None,
        false => Some(on_disk(args, &runtime)?),
    };
    args.output.tell(&object(args, &memory, disk.as_deref()), || tables(args, &memory, disk.as_deref()))
}

fn on_tmpfs(args: &AppendArgs, runtime: &tokio::runtime::Runtime, folder: &TempDir) -> Outcome<OnTmpfs> {
    let server = Process::cluster(folder.path())?;
    let log = runtime.block_on(connect(&server))?;
    let mut by_placement = Vec::new();
    for placement in [Placement::TwoCores, Placement::OneCore, Placement::Anywhere] {
        let mut echo = fastest_echo(args.size, placement)?;
        placement.apply(&[&server, &echo.server])?;
        let mut runs = Vec::new();
        for counted in 0..=args.runs {
            let run = one_outstanding(args.size, SLICES[0], runtime, &log, &mut echo, None)?;
            // The first run warms everything up.
            if counted > 0 {
                runs.push(run);
            }
        }
        by_placement.push((placement, runs));
    }
    let mut pipelined = Vec::new();
    for counted in 0..=args.runs {
        let per_s = runtime.block_on(pipeline(&log))?;
        if counted > 0 {
            pipelined.push(per_s);
        }
    }
    let (before, start) = (server.cpu_time()?, Instant::now());
    std::thread::sleep(IDLE);
    let idle = (server.cpu_time()? - before).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
    Ok(OnTmpfs { by_placement, pipelined, idle })
}

fn on_disk(args: &AppendArgs, runtime: &tokio::runtime::Runtime) -> Outcome<Vec<Run>> {
    std::fs::create_dir_all(&args.disk)?;
    let folder = tempfile::Builder::new().prefix("flexlog-bench-").tempdir_in(&args.disk)?;
    let server = Process::cluster(&folder.path().join("data"))?;
    let log = runtime.block_on(connect(&server))?;
    let mut echo = fastest_echo(args.size, Placement::Anywhere)?;
    let mut syncs = Syncs::start(folder.path(), args.size + OVERHEAD)?;
    let mut runs = Vec::new();
    for counted in 0..=args.runs {
        let run = one_outstanding(args.size, SLICES[1], runtime, &log, &mut echo, Some(&mut syncs))?;
        if counted > 0 {
            runs.push(run);
        }
    }
    Ok(runs)
}

async fn connect(server: &Process) -> Outcome<Log> {
    Ok(Client::connect(&server.address).await?.color("bench").await?)
}

/// The faster of a blocking echo and one on tokio, as measured now.
fn fastest_echo(size: usize, placement: Placement) -> Outcome<Echo> {
    let mut echoes = Vec::new();
    for kind in [Kind::Blocking, Kind::Tokio] {
        let mut echo = Echo::start(kind, size)?;
        placement.apply(&[&echo.server])?;
        echo.measure(SLICE, &mut Latencies::new())?;
        let mut latencies = Latencies::new();
        echo.measure(4 * SLICE, &mut latencies)?;
        echoes.push((latencies.quantile(0.5), echo));
    }
    echoes.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(echoes.swap_remove(0).1)
}

fn one_outstanding(
    size: usize,
    slices: usize,
    runtime: &tokio::runtime::Runtime,
    log: &Log,
    echo: &mut Echo,
    mut syncs: Option<&mut Syncs>,
) -> Outcome<Run> {
    let (mut appends, mut echoes, mut rounds) = (Latencies::new(), Latencies::new(), Latencies::new());
    let payload = vec![b'x'; size];
    for _ in 0..slices {
        runtime.block_on(async {
            for _ in 0..SLICE {
                let start = Instant::now();
                log.append(&payload[..]).await?;
                appends.add(start.elapsed());
            }
            Outcome::Ok(())
        })?;
        echo.measure(SLICE, &mut echoes)?;
        if let Some(syncs) = &mut syncs {
            for _ in 0..SLICE {
                rounds.time(|| syncs.round().and_then(|()| syncs.round()))?;
            }
        }
    }
    Ok(Run {
        p50: appends.quantile(0.5),
        p99: appends.quantile(0.99),
        echo: echoes.quantile(0.5),
        echo_p99: echoes.quantile(0.99),
        syncs: if syncs.is_some() { rounds.quantile(0.5) } else { 0.0 },
    })
}

/// Records per second with as many appends in flight as the client's window allows.
async fn pipeline(log: &Log) -> Outcome<f64> {
    let payload = vec![b'x'; PIPELINED_BYTES];
    let start = Instant::now();
    let mut pending = std::collections::VecDeque::new();
    for _ in 0..PIPELINED {
        if pending.len() == flexlog_protocol::limits::TOKEN_WINDOW as usize
            && let Some(oldest) = pending.pop_front()
        {
            wait(oldest).await?;
        }
        pending.push_back(log.submit(Record::new(payload.clone())?).await?);
    }
    for one in pending {
        wait(one).await?;
    }
    Ok(PIPELINED as f64 / start.elapsed().as_secs_f64())
}

async fn wait(pending: flexlog_client::Pending) -> Outcome<()> {
    pending.await?;
    Ok(())
}

/// Three files, each with a thread that writes to it and calls fdatasync, as a store on a disk does.
struct Syncs {
    starts: Vec<mpsc::Sender<()>>,
    done: mpsc::Receiver<std::io::Result<()>>,
}

impl Syncs {
    fn start(folder: &Path, size: usize) -> Outcome<Self> {
        let (told, done) = mpsc::channel();
        let mut starts = Vec::new();
        for i in 0..3 {
            let file =
                File::options().create(true).truncate(true).write(true).open(folder.join(format!("sync-{i}")))?;
            // As the store does: space is allocated ahead of the writes.
            let segment = flexlog_protocol::limits::SEGMENT_BYTES;
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 4 * segment)?;
            file.sync_all()?;
            let (start, started) = mpsc::channel::<()>();
            let told = told.clone();
            starts.push(start);
            std::thread::spawn(move || {
                let bytes = vec![7; size];
                let mut at = 0;
                while started.recv().is_ok() {
                    let result =
                        file.write_all_at(&bytes, at % (4 * segment - size as u64)).and_then(|()| file.sync_data());
                    at += size as u64;
                    if told.send(result).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { starts, done })
    }

    fn round(&mut self) -> Outcome<()> {
        for start in &self.starts {
            start.send(())?;
        }
        for _ in &self.starts {
            self.done.recv()??;
        }
        Ok(())
    }
}

fn figure(runs: &[Run], of: fn(&Run) -> f64) -> Spread {
    Spread::of(runs.iter().map(of))
}

fn object(args: &AppendArgs, memory: &OnTmpfs, disk: Option<&[Run]>) -> serde_json::Value {
    let figures = |runs: &[Run]| {
        json!({
            "p50_us": figure(runs, |run| run.p50).median,
            "p99_us": figure(runs, |run| run.p99).median,
            "tcp_echo_p50_us": figure(runs, |run| run.echo).median,
            "tcp_echo_p99_us": figure(runs, |run| run.echo_p99).median,
            "two_fdatasync_rounds_p50_us": figure(runs, |run| run.syncs).median,
            "ratio": figure(runs, Run::ratio).median,
        })
    };
    // What is asked for first stands at the top: client and server on a core each.
    let mut object = memory.by_placement.first().map(|(_, runs)| figures(runs)).unwrap_or_default();
    object["size"] = args.size.into();
    object["runs"] = args.runs.into();
    object["pipelined_per_s"] = Spread::of(memory.pipelined.iter().copied()).median.into();
    object["pipelined_size"] = PIPELINED_BYTES.into();
    object["idle_cpu_percent"] = memory.idle.into();
    for (placement, runs) in &memory.by_placement {
        object[placement.name()] = figures(runs);
    }
    if let Some(disk) = disk {
        object["disk"] = figures(disk);
    }
    object
}

fn tables(args: &AppendArgs, memory: &OnTmpfs, disk: Option<&[Run]>) {
    let pipelined = Spread::of(memory.pipelined.iter().copied());
    let spread = |s: Spread, digits: usize| format!("{:.digits$} ({:.digits$}–{:.digits$})", s.median, s.min, s.max);
    let mut rows = Vec::new();
    let on_tmpfs =
        memory.by_placement.iter().map(|(placement, runs)| (format!("tmpfs, {}", placement.name()), &runs[..]));
    let on_disk = disk.map(|runs| ("disk, unpinned".to_owned(), runs));
    for (place, runs) in on_tmpfs.chain(on_disk) {
        rows.push(vec![
            format!("{} B, {place}", args.size),
            spread(figure(runs, |run| run.p50), 1),
            spread(figure(runs, |run| run.p99), 0),
            spread(figure(runs, |run| run.echo), 1),
            spread(figure(runs, |run| run.echo_p99), 0),
            spread(figure(runs, |run| run.syncs), 1),
            spread(figure(runs, Run::ratio), 2),
        ]);
    }
    measure::table(
        &[
            "append, one outstanding",
            "p50 µs",
            "p99 µs",
            "TCP echo p50 µs",
            "TCP echo p99 µs",
            "2 × 3 fdatasync p50 µs",
            "p50 / limit",
        ],
        &rows,
    );
    let rate = spread(Spread { min: pipelined.min / 1e3, median: pipelined.median / 1e3, max: pipelined.max / 1e3 }, 0);
    measure::table(
        &["pipelined", "thousand records/s", "idle server, % of a core"],
        &[vec![format!("{PIPELINED_BYTES} B on tmpfs, 4096 in flight"), rate, format!("{:.2}", memory.idle)]],
    );
}
