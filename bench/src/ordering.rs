//! `ordering`: how many numbers a sequencer gives, and how fast, with nothing stored: the core alone, one position over
//! sockets beside omnipaxos and libpaxos, and trees of positions.
//!
//! What is asked for comes from load processes ([`load`]), the same loop for all systems. Ours stand in for a position
//! below the one that is measured ([`child`]): each request is one `Order` of one number over a link, as a position sends
//! it, and each answer one `Grant`. No record travels, because a position never sees one; the others replicate values of
//! 64 bytes, which is the least that they can be asked for.

mod child;
mod core;
mod libpaxos;
pub(crate) mod load;
pub(crate) mod omni;
mod trees;

use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};

use self::load::{Ask, Slice};
use crate::Outcome;
use crate::cluster::{Cluster, Launch, Place, Transport, free_addresses};
use crate::measure::{self, Output, Spread};
use crate::servers::{self, Starting, Worker};

/// Arguments of `bench ordering`.
#[derive(Args)]
pub(crate) struct OrderingArgs {
    /// Counted runs, in which everything that is compared takes turns.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Milliseconds of one turn.
    #[arg(long, default_value_t = 400)]
    slice_ms: u64,
    /// Two runs of short turns: to see that everything works.
    #[arg(long)]
    quick: bool,
    /// The proposer of a libpaxos3 that runs already.
    #[arg(long, value_name = "HOST:PORT")]
    libpaxos: Option<String>,
    /// Its acceptors.
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        default_value = "127.0.0.1:8800,127.0.0.1:8801,127.0.0.1:8802"
    )]
    libpaxos_acceptors: Vec<String>,
    /// Leave out the trees.
    #[arg(long)]
    no_trees: bool,
    /// Where the folders of sequencers are made.
    #[arg(long, default_value = "/dev/shm")]
    tmpfs: String,
    #[command(flatten)]
    output: Output,
}

/// Requests outstanding at once.
const OUTSTANDING: [usize; 3] = [1, 100, 1000];

impl OrderingArgs {
    fn runs(&self) -> usize {
        if self.quick { self.runs.min(2) } else { self.runs }
    }

    fn millis(&self) -> u64 {
        if self.quick { self.slice_ms.min(100) } else { self.slice_ms }
    }

    fn ask(&self, outstanding: usize, owner: u32) -> Ask {
        Ask { outstanding, millis: self.millis(), owner }
    }
}

/// What some turns came to.
#[derive(Clone, Default)]
pub(super) struct Turns(Vec<Slice>);

impl Turns {
    fn add(&mut self, slice: Slice) {
        self.0.push(slice);
    }

    fn per_s(&self) -> Spread {
        Spread::of(self.0.iter().map(|slice| slice.per_s))
    }

    fn p50(&self) -> Spread {
        Spread::of(self.0.iter().map(|slice| slice.p50))
    }

    fn p99(&self) -> Spread {
        Spread::of(self.0.iter().map(|slice| slice.p99))
    }

    fn object(&self) -> Value {
        json!({
            "numbers_per_s": self.per_s().median,
            "numbers_per_s_spread": self.per_s(),
            "p50_us": self.p50().median,
            "p50_us_spread": self.p50(),
            "p99_us": self.p99().median,
        })
    }
}

/// A system that is compared, with what serves it.
struct System {
    name: &'static str,
    worker: Worker,
    /// By how much is outstanding.
    turns: Vec<Turns>,
    _servers: Vec<servers::Process>,
    cluster: Option<Cluster>,
}

impl System {
    fn new(name: &'static str, worker: Worker) -> Self {
        let turns = vec![Turns::default(); OUTSTANDING.len()];
        Self { name, worker, turns, _servers: Vec::new(), cluster: None }
    }

    fn turn(&mut self, ask: Ask) -> Outcome<Slice> {
        self.worker.begin(&ask)?;
        self.worker.end()
    }
}

/// A position in its process, and a load process that asks it.
fn ours(args: &OrderingArgs) -> Outcome<System> {
    let places = [Place::position("root", None), Place::stand_in("load", "root")];
    let launch = Launch::start(&args.tmpfs, &places, Transport::Tcp, false)?;
    let [root, own] = launch.addresses() else { return Err("two positions have two addresses".into()) };
    let mut worker = child_of(own, 1, root, 0, 1)?;
    let cluster = launch.ready()?;
    worker.ready()?;
    Ok(System { cluster: Some(cluster), ..System::new("flexlog", worker) })
}

/// A load process at a position below another one. It is not ready yet.
fn child_of(own: &str, position: u32, parent_address: &str, parent: u32, serial: u64) -> Outcome<Worker> {
    let (position, parent, serial) = (position.to_string(), parent.to_string(), serial.to_string());
    let args = ["order-load", "child", "--listen", own, "--position", &position, "--parent", &parent];
    Worker::start(&[&args[..], &["--parent-address", parent_address, "--serial", &serial]].concat())
}

fn omnipaxos() -> Outcome<System> {
    let addresses = free_addresses(3)?;
    let mut starting = Vec::new();
    for node in ["1", "2", "3"] {
        let mut args = vec!["omni-node", node];
        args.extend(addresses.iter().map(String::as_str));
        starting.push(Starting::new(&args)?);
    }
    // The followers never say that they take values: what counts is the node that clients speak to.
    let mut starting = starting.into_iter();
    let leader = starting.next().ok_or("there is no leader")?.ready()?;
    let servers = starting.map(Starting::into_process).chain([leader]).collect();
    let mut worker = Worker::start(&["order-load", "omni", &addresses[0]])?;
    worker.ready()?;
    Ok(System { _servers: servers, ..System::new("omnipaxos", worker) })
}

fn libpaxos(args: &OrderingArgs, proposer: &str) -> Outcome<System> {
    let mut words = vec!["order-load", "libpaxos", proposer];
    words.extend(args.libpaxos_acceptors.iter().map(String::as_str));
    let mut worker = Worker::start(&words)?;
    worker.ready()?;
    Ok(System::new("libpaxos", worker))
}

/// An echo of as many bytes as a request has.
pub(super) struct EchoLoad {
    worker: Worker,
}

impl EchoLoad {
    /// With its client on one processor and its server on another, where there are two.
    fn start() -> Outcome<Self> {
        // The runtime that our own processes have.
        let mut worker = Worker::start(&["order-load", "echo", "tokio", &child::request_bytes().to_string()])?;
        worker.ready()?;
        let [client, server] = two_processors()?;
        servers::bind_process(worker.process().address.parse()?, &[server])?;
        worker.process().bind(&[client])?;
        Ok(Self { worker })
    }

    fn turn(&mut self, ask: Ask) -> Outcome<Slice> {
        self.worker.begin(&ask)?;
        self.worker.end()
    }
}

/// The first two processors, or the only one twice.
pub(super) fn two_processors() -> Outcome<[usize; 2]> {
    let all = servers::processors_at_start()?;
    match &all[..] {
        [first, second, ..] => Ok([*first, *second]),
        [only] => Ok([*only; 2]),
        [] => Err("this program may run on no processor".into()),
    }
}

/// One position and the baselines.
struct Single {
    systems: Vec<System>,
    /// With one request outstanding, ours and the echo with both ends on processors of their own.
    pinned: Turns,
    echo: Turns,
    ratio: Spread,
}

pub(crate) fn run(args: &OrderingArgs) -> Outcome<()> {
    let mut core = Vec::new();
    for batch in core::BATCHES {
        let time = Duration::from_millis(args.millis());
        let runs: Outcome<Vec<f64>> = (0..=args.runs()).map(|_| core::numbers_per_s(batch, time)).collect();
        core.push((batch, Spread::of(runs?.into_iter().skip(1))));
    }
    let single = single(args)?;
    let trees = if args.no_trees { None } else { Some(trees::run(args)?) };
    let object = object(args, &core, &single, trees.as_ref());
    args.output.tell(&object, || tables(args, &core, &single, trees.as_ref()))
}

fn single(args: &OrderingArgs) -> Outcome<Single> {
    let mut systems = vec![ours(args)?, omnipaxos()?];
    if let Some(proposer) = &args.libpaxos {
        systems.push(libpaxos(args, proposer)?);
    }
    for counted in 0..=args.runs() {
        for (at, outstanding) in OUTSTANDING.into_iter().enumerate() {
            for system in &mut systems {
                let slice = system.turn(args.ask(outstanding, 0))?;
                // The first run warms everything up.
                if counted > 0 {
                    system.turns[at].add(slice);
                }
            }
        }
    }
    let [client, server] = two_processors()?;
    let mut echo_load = EchoLoad::start()?;
    let ours = &mut systems[0];
    ours.worker.process().bind(&[client])?;
    if let Some(cluster) = &ours.cluster {
        cluster.process("root")?.bind(&[server])?;
    }
    let (mut pinned, mut echo, mut ratios) = (Turns::default(), Turns::default(), Vec::new());
    for counted in 0..=args.runs() {
        let (own, other) = (ours.turn(args.ask(1, 0))?, echo_load.turn(args.ask(1, 0))?);
        if counted > 0 {
            pinned.add(own);
            echo.add(other);
            ratios.push(own.p50 / other.p50);
        }
    }
    Ok(Single { systems, pinned, echo, ratio: Spread::of(ratios) })
}

fn object(args: &OrderingArgs, core: &[(usize, Spread)], single: &Single, trees: Option<&trees::Trees>) -> Value {
    let by_outstanding = |system: &System| {
        let rows = OUTSTANDING.iter().zip(&system.turns);
        let mut object: Map<String, Value> =
            rows.map(|(outstanding, turns)| (format!("outstanding_{outstanding}"), turns.object())).collect();
        let most = system.turns.iter().map(|turns| turns.per_s().median).fold(0.0, f64::max);
        object.insert("numbers_per_s".to_owned(), most.into());
        Value::Object(object)
    };
    let mut baselines = Map::new();
    for system in &single.systems[1..] {
        baselines.insert(system.name.to_owned(), by_outstanding(system));
    }
    let most_outstanding = |system: &System| system.turns.last().map_or(f64::NAN, |turns| turns.per_s().median);
    let times: Map<String, Value> = single.systems[1..]
        .iter()
        .map(|other| (other.name.to_owned(), (most_outstanding(&single.systems[0]) / most_outstanding(other)).into()))
        .collect();
    let by_batch: Map<String, Value> =
        core.iter().map(|(batch, spread)| (format!("batch_{batch}"), json!(spread))).collect();
    json!({
        "numbers_per_s": most_outstanding(&single.systems[0]),
        "latency_ratio": single.ratio.median,
        "latency_ratio_spread": single.ratio,
        "latency_two_cores": single.pinned.object(),
        "tcp_echo_two_cores": single.echo.object(),
        "request_bytes": child::request_bytes(),
        "flexlog": by_outstanding(&single.systems[0]),
        "baselines": baselines,
        "times_at_1000_outstanding": times,
        "core_numbers_per_s": core.iter().map(|(_, spread)| spread.median).fold(0.0, f64::max),
        "core": by_batch,
        "trees": trees.map(trees::Trees::object),
        "runs": args.runs(),
        "slice_ms": args.millis(),
    })
}

/// A figure and its spread, in units of `unit`.
fn spread(spread: Spread, unit: f64, digits: usize) -> String {
    let Spread { min, median, max } = spread;
    format!("{:.digits$} ({:.digits$}–{:.digits$})", median / unit, min / unit, max / unit)
}

#[expect(clippy::print_stdout, reason = "this is what the program is for")]
fn tables(args: &OrderingArgs, core: &[(usize, Spread)], single: &Single, trees: Option<&trees::Trees>) {
    let rows: Vec<_> = core.iter().map(|(batch, per_s)| vec![batch.to_string(), spread(*per_s, 1e6, 1)]).collect();
    measure::table(&["the core alone: requests in a batch", "million numbers/s"], &rows);
    let mut rows = Vec::new();
    for (at, outstanding) in OUTSTANDING.into_iter().enumerate() {
        let ours = single.systems[0].turns[at].per_s().median;
        for system in &single.systems {
            let turns = &system.turns[at];
            rows.push(vec![
                outstanding.to_string(),
                system.name.to_owned(),
                spread(turns.per_s(), 1e3, 1),
                spread(turns.p50(), 1.0, 0),
                spread(turns.p99(), 1.0, 0),
                format!("{:.1}", ours / turns.per_s().median),
            ]);
        }
    }
    measure::table(&["outstanding", "unpinned", "thousand numbers/s", "p50 µs", "p99 µs", "flexlog is times"], &rows);
    let (own, echo) = (&single.pinned, &single.echo);
    measure::table(
        &["one outstanding, two cores: p50 µs", "TCP echo of as many bytes, p50 µs", "ratio"],
        &[vec![spread(own.p50(), 1.0, 1), spread(echo.p50(), 1.0, 1), spread(single.ratio, 1.0, 2)]],
    );
    if let Some(trees) = trees {
        trees.tables();
    }
    if args.libpaxos.is_none() {
        println!("libpaxos: skipped, give --libpaxos HOST:PORT");
    }
}
