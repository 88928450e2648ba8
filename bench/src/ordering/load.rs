//! What asks for numbers: a process of its own for each load, which is told how many requests to keep outstanding and for
//! how long, and tells what came of it. The same loop drives all systems that are compared.

use std::collections::VecDeque;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::child::{Child, ChildArgs};
use super::libpaxos::{Libpaxos, LibpaxosArgs};
use super::omni::OmniClient;
use crate::Outcome;
use crate::echo::{Echo, Kind};
use crate::measure::Latencies;
use crate::servers::ready;

/// How long any answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Arguments of a load process.
#[derive(Args)]
pub(crate) struct LoadArgs {
    #[command(subcommand)]
    of: Of,
}

#[derive(Subcommand)]
enum Of {
    /// A position of the tree that asks the one above it.
    Child(ChildArgs),
    /// A client of omnipaxos.
    Omni { address: String },
    /// A client of libpaxos.
    Libpaxos(LibpaxosArgs),
    /// An echo, whose server it starts.
    Echo { kind: Kind, size: usize },
}

/// What a load process is told.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub(crate) outstanding: usize,
    pub(crate) millis: u64,
    /// The position that owns the color asked for, where there are any.
    pub(crate) owner: u32,
}

/// What came of it.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Slice {
    pub(crate) per_s: f64,
    /// In microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// A system that gives numbers.
pub(super) trait Target {
    /// What the next requests are for.
    fn aim(&mut self, _ask: Ask) -> Outcome<()> {
        Ok(())
    }

    /// One request of this id goes out, at the latest with the next [`Target::answered`].
    fn ask(&mut self, id: u64) -> Outcome<()>;

    /// Waits for answers; puts their requests' ids, at least one, at the end of `into`. Loses nothing when dropped.
    async fn answered(&mut self, into: &mut Vec<u64>) -> Outcome<()>;
}

/// Serves until whoever started it leaves.
pub(crate) fn serve(args: LoadArgs) -> Outcome<()> {
    if let Of::Echo { kind, size } = args.of {
        return echo(kind, size);
    }
    let (say, heard) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if say.blocking_send(line).is_err() {
                return;
            }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        match args.of {
            Of::Child(args) => obey(Child::start(args).await?, heard).await,
            Of::Omni { address } => obey(OmniClient::connect(&address).await?, heard).await,
            Of::Libpaxos(args) => obey(Libpaxos::connect(args).await?, heard).await,
            Of::Echo { .. } => Ok(()),
        }
    })
}

fn tell(slice: Slice) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(&slice)?)?;
    Ok(out.flush()?)
}

fn echo(kind: Kind, size: usize) -> Outcome<()> {
    let mut echo = Echo::start(kind, size)?;
    // For whoever puts both ends in their places.
    ready(&echo.server.id().to_string());
    for line in std::io::stdin().lock().lines() {
        let ask: Ask = serde_json::from_str(&line?)?;
        let begin = Instant::now();
        let mut latencies = Latencies::new();
        let mut rounds = 0;
        while begin.elapsed() < Duration::from_millis(ask.millis) {
            echo.measure(16, &mut latencies)?;
            rounds += 16;
        }
        let per_s = f64::from(rounds) / begin.elapsed().as_secs_f64();
        tell(Slice { per_s, p50: latencies.quantile(0.5), p99: latencies.quantile(0.99) })?;
    }
    Ok(())
}

async fn obey(mut target: impl Target, mut heard: mpsc::Receiver<String>) -> Outcome<()> {
    ready("load");
    let mut next = 0;
    let mut idle = Vec::new();
    loop {
        // Connections are looked after while nothing is asked for: some systems say things unasked.
        let line = tokio::select! {
            line = heard.recv() => line,
            answered = target.answered(&mut idle) => {
                answered?;
                idle.clear();
                continue;
            }
        };
        let Some(line) = line else { return Ok(()) };
        let ask: Ask = serde_json::from_str(&line)?;
        target.aim(ask)?;
        tell(slice(&mut target, ask, &mut next).await?)?;
    }
}

async fn slice(target: &mut impl Target, ask: Ask, next: &mut u64) -> Outcome<Slice> {
    let begin = Instant::now();
    let end = begin + Duration::from_millis(ask.millis);
    let (mut now, mut first) = (begin, *next);
    // When those from `first` on were asked for, as far as they are not answered.
    let mut open: VecDeque<Option<Instant>> = VecDeque::new();
    let (mut outstanding, mut numbers) = (0, 0u64);
    let (mut latencies, mut answered) = (Latencies::new(), Vec::new());
    loop {
        while now < end && outstanding < ask.outstanding {
            target.ask(*next)?;
            open.push_back(Some(now));
            *next += 1;
            outstanding += 1;
        }
        if outstanding == 0 {
            break;
        }
        timeout(PATIENCE, target.answered(&mut answered))
            .await
            .map_err(|_| format!("{outstanding} requests got no answer within {} s", PATIENCE.as_secs()))??;
        now = Instant::now();
        for id in answered.drain(..) {
            let at = id.checked_sub(first).and_then(|at| open.get_mut(usize::try_from(at).ok()?));
            if let Some(asked) = at.and_then(Option::take) {
                latencies.add(now - asked);
                outstanding -= 1;
                numbers += 1;
            }
        }
        while let Some(None) = open.front() {
            open.pop_front();
            first += 1;
        }
    }
    let per_s = numbers as f64 / begin.elapsed().as_secs_f64();
    Ok(Slice { per_s, p50: latencies.quantile(0.5), p99: latencies.quantile(0.99) })
}
