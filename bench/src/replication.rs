//! `replication`: what more replicas cost. For each number of replicas a cluster of processes with one sequencer; all of
//! them take turns, so that the machine's moods hit them alike. Client and sequencer are on one processor, the replicas on
//! another, and so are the servers of the baseline: as many echoes at once as there are replicas, twice, because a record
//! goes to all replicas and comes back twice.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use flexlog_client::{Log, Record};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::cluster::{Cluster, Launch, Place, Transport};
use crate::cluster_append::{Placement, connect};
use crate::echo::{Echo, Fan, Kind};
use crate::measure::{self, Latencies, Output, Spread};
use crate::plot;

/// Arguments of `bench replication`.
#[derive(Args)]
pub(crate) struct ReplicationArgs {
    /// Numbers of replicas.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,6,8")]
    replicas: Vec<usize>,
    /// Bytes of a record.
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Counted runs.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Milliseconds of one turn.
    #[arg(long, default_value_t = 500)]
    slice_ms: u64,
    /// One and three replicas, two runs of short turns: to see that everything works.
    #[arg(long)]
    quick: bool,
    /// How processes and clients are connected.
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    transport: Transport,
    /// Where the areas are.
    #[arg(long, default_value = "/dev/shm")]
    tmpfs: String,
    /// Draw the latency into this SVG file.
    #[arg(long, value_name = "FILE")]
    plot_latency: Option<PathBuf>,
    /// Draw the throughput into this SVG file.
    #[arg(long, value_name = "FILE")]
    plot_throughput: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Records outstanding at once for the throughput.
const OUTSTANDING: usize = 256;
/// Echoes of one turn.
const ECHOES: usize = 500;

/// What was measured with so many replicas.
struct Row {
    replicas: usize,
    log: Log,
    cluster: Cluster,
    fan: Fan,
    /// As many echoes at once as there are replicas, one round.
    echoes: Vec<f64>,
    ratio: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    per_s: Vec<f64>,
    /// Processor time of all servers for a record, in microseconds.
    cpu: Vec<f64>,
}

pub(crate) fn run(args: &ReplicationArgs) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (runs, slice) = if args.quick { (args.runs.min(2), 100) } else { (args.runs, args.slice_ms) };
    let slice = Duration::from_millis(slice);
    let replicas = if args.quick { vec![1, 3] } else { args.replicas.clone() };
    let mut rows = Vec::new();
    let mut echo = Echo::start(Kind::Blocking, args.size)?;
    for replicas in replicas {
        let cluster = Launch::start(&args.tmpfs, &[Place::shard(replicas)], args.transport, false)?.ready()?;
        let log = runtime.block_on(connect(&cluster))?;
        let fan = Fan::start(replicas, args.size)?;
        Placement::TwoCores.apply(&cluster, &echo, &fan)?;
        let none = Vec::new;
        let (echoes, ratio, p50, p99, per_s, cpu) = (none(), none(), none(), none(), none(), none());
        rows.push(Row { replicas, log, cluster, fan, echoes, ratio, p50, p99, per_s, cpu });
    }
    let mut echoes = Vec::new();
    for counted in 0..=runs {
        let mut latencies = Latencies::new();
        echo.measure(ECHOES, &mut latencies)?;
        for row in &mut rows {
            row.turn(args.size, slice, &runtime, counted > 0)?;
            echo.measure(ECHOES, &mut latencies)?;
        }
        // The first run warms everything up.
        if counted > 0 {
            echoes.push(latencies.quantile(0.5));
        }
    }
    let echo = Spread::of(echoes);
    if let Some(path) = &args.plot_latency {
        let limit = rows.iter().map(|row| (row.replicas as f64, times(spread_of(&row.echoes), 2.0))).collect();
        let ours = rows.iter().map(|row| (row.replicas as f64, spread_of(&row.p50))).collect();
        let title = format!("An append of {} B, one outstanding", args.size);
        let lines = [("append, p50", ours), ("two rounds of as many TCP echoes", limit)];
        plot::write(path, &plot::lines(&title, ["replicas", "µs"], &lines))?;
    }
    if let Some(path) = &args.plot_throughput {
        let ours = rows.iter().map(|row| (row.replicas as f64, times(spread_of(&row.per_s), 1e-3))).collect();
        let title = format!("Appends of {} B, {OUTSTANDING} outstanding", args.size);
        let lines = [("records", ours)];
        plot::write(path, &plot::lines(&title, ["replicas", "thousand/s"], &lines))?;
    }
    let list: Vec<_> = rows.iter().map(Row::object).collect();
    let object = json!({
        "size": args.size,
        "runs": runs,
        "transport": args.transport.name(),
        "outstanding": OUTSTANDING,
        "tcp_echo_p50_us": echo.median,
        "replicas": list,
    });
    args.output.tell(&object, || tables(args, &rows, echo))
}

fn times(spread: Spread, by: f64) -> Spread {
    Spread { min: spread.min * by, median: spread.median * by, max: spread.max * by }
}

fn spread_of(figures: &[f64]) -> Spread {
    Spread::of(figures.iter().copied())
}

impl Row {
    fn turn(&mut self, size: usize, slice: Duration, runtime: &Runtime, counts: bool) -> Outcome<()> {
        let payload = vec![b'x'; size];
        let mut latencies = Latencies::new();
        let log = &self.log;
        runtime.block_on(async {
            let begin = Instant::now();
            while begin.elapsed() < slice {
                let start = Instant::now();
                log.append(&payload[..]).await?;
                latencies.add(start.elapsed());
            }
            Outcome::Ok(())
        })?;
        let mut echoes = Latencies::new();
        self.fan.measure(ECHOES, &mut echoes)?;
        let before = self.cpu_s()?;
        let (appended, per_s, last) = runtime.block_on(pipeline(log, &payload, slice))?;
        let cpu_s = self.cpu_s()? - before;
        // So that no area gets full, however long this goes on.
        runtime.block_on(log.trim(last))?;
        if counts {
            self.echoes.push(echoes.quantile(0.5));
            self.ratio.push(latencies.quantile(0.5) / (2.0 * echoes.quantile(0.5)));
            self.p50.push(latencies.quantile(0.5));
            self.p99.push(latencies.quantile(0.99));
            self.per_s.push(per_s);
            self.cpu.push(cpu_s * 1e6 / appended as f64);
        }
        Ok(())
    }

    fn cpu_s(&self) -> Outcome<f64> {
        let times = self.cluster.processes.iter().map(|(_, process)| process.cpu_time());
        Ok(times.collect::<Outcome<Vec<_>>>()?.iter().map(Duration::as_secs_f64).sum())
    }

    fn object(&self) -> serde_json::Value {
        json!({
            "replicas": self.replicas,
            "p50_us": spread_of(&self.p50).median,
            "p50_us_spread": spread_of(&self.p50),
            "tcp_echoes_at_once_p50_us": spread_of(&self.echoes).median,
            "ratio_to_two_rounds": spread_of(&self.ratio).median,
            "ratio_spread": spread_of(&self.ratio),
            "p99_us": spread_of(&self.p99).median,
            "records_per_s": spread_of(&self.per_s).median,
            "records_per_s_spread": spread_of(&self.per_s),
            "server_cpu_us_a_record": spread_of(&self.cpu).median,
        })
    }
}

/// How many records were appended, how many a second, and the number of the last.
async fn pipeline(log: &Log, payload: &[u8], slice: Duration) -> Outcome<(u64, f64, flexlog_client::SeqNum)> {
    let begin = Instant::now();
    let mut pending = VecDeque::new();
    let (mut appended, mut last) = (0, None);
    while begin.elapsed() < slice {
        while pending.len() < OUTSTANDING {
            pending.push_back(log.submit(Record::new(payload.to_vec())?).await?);
        }
        if let Some(oldest) = pending.pop_front() {
            last = Some(oldest.await?);
            appended += 1;
        }
    }
    for one in pending {
        last = Some(one.await?);
        appended += 1;
    }
    let last = last.ok_or("a turn was too short for one record")?;
    Ok((appended, appended as f64 / begin.elapsed().as_secs_f64(), last))
}

fn tables(args: &ReplicationArgs, rows: &[Row], echo: Spread) {
    let spread = |s: Spread, digits: usize| format!("{:.digits$} ({:.digits$}–{:.digits$})", s.median, s.min, s.max);
    let table: Vec<_> = rows
        .iter()
        .map(|row| {
            vec![
                row.replicas.to_string(),
                spread(spread_of(&row.p50), 1),
                spread(spread_of(&row.p99), 0),
                format!("{:.2}", spread_of(&row.p50).median / (2.0 * echo.median)),
                spread(spread_of(&row.echoes), 1),
                spread(spread_of(&row.ratio), 2),
                spread(times(spread_of(&row.per_s), 1e-3), 1),
                spread(spread_of(&row.cpu), 1),
            ]
        })
        .collect();
    let outstanding = format!("{OUTSTANDING} outstanding, thousand records/s");
    let size = format!("replicas, {} B, {}", args.size, args.transport.name());
    measure::table(
        &[
            &size,
            "one outstanding, p50 µs",
            "p99 µs",
            "p50 / 2 TCP echoes",
            "as many echoes at once, p50 µs",
            "p50 / 2 of those",
            &outstanding,
            "server CPU µs a record",
        ],
        &table,
    );
}
