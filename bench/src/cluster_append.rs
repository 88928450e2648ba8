//! `append --cluster`: the way of a record into a cluster of processes, one sequencer and three replicas, and where its
//! time goes.
//!
//! A record goes from the client to every replica, from each of them to the sequencer once it is persisted, back with its
//! number, and from every replica to the client once the number is persisted too: four ways, which is what two round trips
//! of an echo are. As long as all of them share two processors, what three replicas do at once is done in turn: two
//! rounds of three echoes at once, whose servers are where the replicas are, stand beside it too. A second cluster, which notes when appends pass its processes, is asked for the steps.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flexlog_client::{Client, Connect, Credentials, Dialer, Log, QuicConnector};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::cluster::{Cluster, Launch, Place, Transport};
use crate::echo::{Echo, Fan, Kind};
use crate::measure::{self, Latencies, Output, Spread};
use crate::servers;

/// What is wanted.
pub(crate) struct Wanted<'a> {
    pub(crate) size: usize,
    pub(crate) runs: usize,
    pub(crate) quick: bool,
    pub(crate) tmpfs: &'a str,
    pub(crate) transport: Transport,
}

/// Replicas of the shard.
const REPLICAS: usize = 3;
/// Rounds of one slice, and slices of one run: appends and echoes take turns.
const SLICE: usize = 250;
const SLICES: usize = 12;
/// Appends whose steps are noted.
const TRACED: usize = 4000;

/// Connects clients by QUIC.
#[derive(Debug)]
struct ByQuic(Credentials);

impl Dialer for ByQuic {
    fn dial(&self, address: &str) -> Box<dyn Connect> {
        Box::new(QuicConnector::new(address, self.0.clone(), Duration::from_secs(5)))
    }
}

/// A client of that cluster, and a color.
pub(crate) async fn connect(cluster: &Cluster) -> Outcome<Log> {
    let mut builder = Client::builder();
    if let Some(certificates) = &cluster.certificates {
        builder = builder.dialer(ByQuic(Credentials::load(certificates, "client")?));
    }
    Ok(builder.connect(cluster.replicas.join(",")).await?.color("bench").await?)
}

/// Where everybody runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Client and sequencer on one processor, replicas on another: each message wakes somebody elsewhere, as between
    /// machines. The echo likewise.
    TwoCores,
    /// Wherever the scheduler likes.
    Anywhere,
}

impl Placement {
    fn name(self) -> &'static str {
        match self {
            Self::TwoCores => "two cores",
            Self::Anywhere => "unpinned",
        }
    }

    /// Puts this thread, the cluster and the echoes in their places.
    pub(crate) fn apply(self, cluster: &Cluster, echo: &Echo, fan: &Fan) -> Outcome<()> {
        let all = servers::processors_at_start()?;
        let (one, other) = match (self, &all[..]) {
            (Self::TwoCores, [first, second, ..]) => (vec![*first], vec![*second]),
            _ => (all.clone(), all.clone()),
        };
        servers::bind(&one)?;
        echo.server.bind(&other)?;
        fan.bind(&other)?;
        for (name, process) in &cluster.processes {
            process.bind(if name == "root" { &one } else { &other })?;
        }
        Ok(())
    }
}

/// One run, in microseconds.
#[derive(Clone, Copy)]
struct Run {
    p50: f64,
    p99: f64,
    echo: f64,
    /// Three echoes at once.
    fan: f64,
}

impl Run {
    fn fan_ratio(&self) -> f64 {
        self.p50 / (2.0 * self.fan)
    }

    fn ratio(&self) -> f64 {
        self.p50 / (2.0 * self.echo)
    }
}

/// The steps of an append, in order: what each is called, and whether it is a way between processes.
const STEPS: [(&str, bool); 7] = [
    ("client to the last replica", true),
    ("replica: stage and persist", false),
    ("replicas to the sequencer, last report", true),
    ("sequencer: number", false),
    ("sequencer to the last replica", true),
    ("replica: persist the number", false),
    ("replicas to the client, last answer", true),
];

pub(crate) fn run(wanted: &Wanted<'_>, output: &Output) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut by_placement = Vec::new();
    let mut echo = Echo::start(Kind::Blocking, wanted.size)?;
    let mut fan = Fan::start(REPLICAS, wanted.size)?;
    {
        let cluster = start(wanted, false)?;
        let log = runtime.block_on(connect(&cluster))?;
        for placement in [Placement::TwoCores, Placement::Anywhere] {
            placement.apply(&cluster, &echo, &fan)?;
            let mut runs = Vec::new();
            for counted in 0..=wanted.runs {
                let run = one_run(wanted, &runtime, &log, &mut echo, &mut fan)?;
                // The first run warms everything up.
                if counted > 0 {
                    runs.push(run);
                }
            }
            by_placement.push((placement, runs));
        }
    }
    let steps = steps(wanted, &runtime, &mut echo, &fan)?;
    let object = object(wanted, &by_placement, &steps);
    output.tell(&object, || tables(wanted, &by_placement, &steps))
}

fn start(wanted: &Wanted<'_>, traced: bool) -> Outcome<Cluster> {
    Launch::start(wanted.tmpfs, &[Place::shard(REPLICAS)], wanted.transport, traced)?.ready()
}

fn one_run(wanted: &Wanted<'_>, runtime: &Runtime, log: &Log, echo: &mut Echo, fan: &mut Fan) -> Outcome<Run> {
    let (mut appends, mut echoes, mut fans) = (Latencies::new(), Latencies::new(), Latencies::new());
    let payload = vec![b'x'; wanted.size];
    for _ in 0..if wanted.quick { 2 } else { SLICES } {
        runtime.block_on(async {
            for _ in 0..SLICE {
                let start = Instant::now();
                log.append(&payload[..]).await?;
                appends.add(start.elapsed());
            }
            Outcome::Ok(())
        })?;
        echo.measure(SLICE, &mut echoes)?;
        fan.measure(SLICE, &mut fans)?;
    }
    let (p50, p99) = (appends.quantile(0.5), appends.quantile(0.99));
    Ok(Run { p50, p99, echo: echoes.quantile(0.5), fan: fans.quantile(0.5) })
}

/// How long the steps took, in microseconds.
struct Steps {
    medians: Vec<f64>,
    means: Vec<f64>,
    p50: f64,
    echo: f64,
    appends: usize,
}

fn now_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

fn steps(wanted: &Wanted<'_>, runtime: &Runtime, echo: &mut Echo, fan: &Fan) -> Outcome<Steps> {
    let mut cluster = start(wanted, true)?;
    let log = runtime.block_on(connect(&cluster))?;
    Placement::TwoCores.apply(&cluster, echo, fan)?;
    let payload = vec![b'x'; wanted.size];
    let (mut client, mut echoes) = (Vec::new(), Latencies::new());
    let appends = if wanted.quick { TRACED / 10 } else { TRACED };
    for nth in 0..appends {
        let took = runtime.block_on(async {
            let start = now_nanos();
            log.append(&payload[..]).await?;
            Outcome::Ok((start, now_nanos()))
        })?;
        client.push(took);
        if nth % SLICE == 0 {
            echo.measure(SLICE, &mut echoes)?;
        }
    }
    drop(log);
    cluster.stop()?;
    let sequencer = Marks::read(&cluster.traces.join("root"))?;
    let replicas: Vec<Marks> =
        (1..=REPLICAS).map(|id| Marks::read(&cluster.traces.join(format!("replica-{id}")))).collect::<Outcome<_>>()?;
    let mut found: Vec<Vec<f64>> = vec![Vec::new(); STEPS.len()];
    let mut totals = Vec::new();
    // The first ones open connections and sessions.
    for (start, end) in client.into_iter().skip(appends / 10) {
        let last = |mark| replicas.iter().map(|marks| marks.last_within(mark, start, end)).max().flatten();
        let moments = [
            Some(start),
            last("received"),
            last("staged"),
            sequencer.last_within("heard", start, end),
            sequencer.last_within("assigned", start, end),
            last("told"),
            last("answered"),
            Some(end),
        ];
        let Some(moments) = moments.into_iter().collect::<Option<Vec<u64>>>() else { continue };
        totals.push((end - start) as f64 / 1e3);
        for (step, pair) in found.iter_mut().zip(moments.windows(2)) {
            // Those of the last replica of each kind: now and then they are not in order.
            step.push((pair[1] as f64 - pair[0] as f64) / 1e3);
        }
    }
    if totals.len() < appends / 2 {
        return Err(format!("of {appends} appends only {} left traces of all their steps", totals.len()).into());
    }
    Ok(Steps {
        medians: found.iter().map(|step| Spread::of(step.iter().copied()).median).collect(),
        means: found.iter().map(|step| step.iter().sum::<f64>() / step.len() as f64).collect(),
        p50: Spread::of(totals.iter().copied()).median,
        echo: echoes.quantile(0.5),
        appends: totals.len(),
    })
}

/// When appends passed a process, in order.
struct Marks(Vec<(String, u64)>);

impl Marks {
    fn read(file: &Path) -> Outcome<Self> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("a process left no times of appends in {}: {error}", file.display()))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Outcome<Self> {
        let line = |line: &str| {
            let (mark, at) = line.split_once(' ').ok_or_else(|| format!("'{line}' is no moment of an append"))?;
            Outcome::Ok((mark.to_owned(), at.parse()?))
        };
        Ok(Self(text.lines().map(line).collect::<Outcome<_>>()?))
    }

    /// The last moment of this kind in a span of time.
    fn last_within(&self, mark: &str, start: u64, end: u64) -> Option<u64> {
        let from = self.0.partition_point(|(_, at)| *at < start);
        let within = self.0[from..].iter().take_while(|(_, at)| *at <= end);
        within.filter(|(other, _)| other == mark).map(|(_, at)| *at).last()
    }
}

fn figure(runs: &[Run], of: fn(&Run) -> f64) -> Spread {
    Spread::of(runs.iter().map(of))
}

fn object(wanted: &Wanted<'_>, by_placement: &[(Placement, Vec<Run>)], steps: &Steps) -> serde_json::Value {
    let figures = |runs: &[Run]| {
        json!({
            "p50_us": figure(runs, |run| run.p50).median,
            "p99_us": figure(runs, |run| run.p99).median,
            "tcp_echo_p50_us": figure(runs, |run| run.echo).median,
            "three_tcp_echoes_at_once_p50_us": figure(runs, |run| run.fan).median,
            "ratio_to_three_at_once": figure(runs, Run::fan_ratio).median,
            "ratio": figure(runs, Run::ratio).median,
            "ratio_spread": figure(runs, Run::ratio),
        })
    };
    let mut object = by_placement.first().map(|(_, runs)| figures(runs)).unwrap_or_default();
    object["size"] = wanted.size.into();
    object["runs"] = wanted.runs.into();
    object["transport"] = wanted.transport.name().into();
    for (placement, runs) in by_placement {
        object[placement.name()] = figures(runs);
    }
    let list = STEPS.iter().zip(steps.medians.iter().zip(&steps.means));
    let list = list.map(|((name, way), (p50, mean))| json!({"step": name, "way": way, "p50_us": p50, "mean_us": mean}));
    object["steps"] = json!({
        "appends": steps.appends,
        "p50_us": steps.p50,
        "tcp_echo_p50_us": steps.echo,
        "steps": list.collect::<Vec<_>>(),
    });
    object
}

#[expect(clippy::print_stdout, reason = "this is what the program is for")]
fn tables(wanted: &Wanted<'_>, by_placement: &[(Placement, Vec<Run>)], steps: &Steps) {
    let spread = |s: Spread, digits: usize| format!("{:.digits$} ({:.digits$}–{:.digits$})", s.median, s.min, s.max);
    let rows: Vec<_> = by_placement
        .iter()
        .map(|(placement, runs)| {
            vec![
                format!("{} B, {}, {}", wanted.size, wanted.transport.name(), placement.name()),
                spread(figure(runs, |run| run.p50), 1),
                spread(figure(runs, |run| run.p99), 0),
                spread(figure(runs, |run| run.echo), 1),
                spread(figure(runs, Run::ratio), 2),
                spread(figure(runs, |run| run.fan), 1),
                spread(figure(runs, Run::fan_ratio), 2),
            ]
        })
        .collect();
    measure::table(
        &[
            "append, cluster of 4 processes, one outstanding",
            "p50 µs",
            "p99 µs",
            "TCP echo p50 µs",
            "p50 / 2 echoes",
            "3 echoes at once p50 µs",
            "p50 / 2 of those",
        ],
        &rows,
    );
    let way = steps.echo / 2.0;
    let mut rows: Vec<_> = STEPS
        .iter()
        .zip(steps.medians.iter().zip(&steps.means))
        .map(|((name, is_way), (p50, mean))| {
            let limit = if *is_way { way } else { 0.0 };
            vec![
                (*name).to_owned(),
                format!("{p50:.1}"),
                format!("{mean:.1}"),
                format!("{limit:.1}"),
                format!("{:.1}", p50 - limit),
            ]
        })
        .collect();
    rows.push(vec![
        "all".to_owned(),
        format!("{:.1}", steps.p50),
        format!("{:.1}", steps.means.iter().sum::<f64>()),
        format!("{:.1}", 4.0 * way),
        format!("{:.1}", steps.p50 - 4.0 * way),
    ]);
    measure::table(
        &["where the time goes, two cores", "p50 µs", "mean µs", "half an echo µs", "more than that µs"],
        &rows,
    );
    println!(
        "1.5 × two echoes are {:.1} µs: {:.1} µs would have to go.",
        1.5 * 4.0 * way,
        (steps.p50 - 6.0 * way).max(0.0)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_moment_within_a_span_counts() {
        let marks = Marks::parse("heard 10\nheard 12\nassigned 13\nheard 20\n").unwrap();
        assert_eq!(marks.last_within("heard", 10, 19), Some(12));
        assert_eq!(marks.last_within("heard", 13, 19), None);
        assert_eq!(marks.last_within("assigned", 0, 100), Some(13));
        assert!(Marks::parse("heard\n").is_err());
    }
}
