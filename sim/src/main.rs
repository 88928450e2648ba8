//! Runs seeds of the simulator until one breaks an invariant.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use flexlog_sim::{Bug, Config, Counts, Report, Scenario, run, shrink};

/// Runs the whole cluster under a seeded scheduler, one seed after another, and checks the invariants.
#[derive(Parser)]
#[command(name = "flexlog-sim")]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Events of each run before the faults end.
    #[arg(long, default_value_t = Config::default().events)]
    events: u64,
    /// Without faults.
    #[arg(long)]
    calm: bool,
    /// Without views that change: no member is dropped or taken in, no process is cut off or stands still.
    #[arg(long)]
    fixed: bool,
    /// Only one position, with one shard: no trees.
    #[arg(long)]
    one: bool,
    /// Members of the shard.
    #[arg(long, default_value_t = Config::default().members)]
    members: usize,
    /// Plant this fault, by its name as in `Bug`, to see what finds it.
    #[arg(long, value_parser = bug_named)]
    bug: Option<Bug>,
    /// Leave these faults out: numbers as a shrunk run says them.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(..128))]
    without: Vec<u32>,
    /// Play this scenario, with everything that its script leaves open drawn from the seeds.
    #[arg(long, value_parser = scenario_named, conflicts_with_all = ["calm", "fixed", "one", "members", "events", "without"])]
    scenario: Option<&'static Scenario>,
    /// List the scenarios.
    #[arg(long)]
    scenarios: bool,
    /// Do not look for a smaller run when one fails.
    #[arg(long)]
    as_it_is: bool,
    /// Go on after a seed that fails.
    #[arg(long)]
    keep_going: bool,
    /// Print the last events of a run that fails.
    #[arg(long, default_value_t = 60)]
    last: usize,
}

fn bug_named(name: &str) -> Result<Bug, String> {
    let known = Bug::ALL.iter().find(|bug| format!("{bug:?}") == name);
    known.copied().ok_or_else(|| format!("there is no such fault; there are {:?}", Bug::ALL))
}

fn scenario_named(name: &str) -> Result<&'static Scenario, String> {
    Scenario::named(name).ok_or_else(|| "there is no such scenario; --scenarios lists them".to_owned())
}

fn list(out: &mut impl Write) -> io::Result<u64> {
    for Scenario { name, execution, says, .. } in Scenario::all() {
        writeln!(out, "{execution:2}  {name:42} {says}")?;
    }
    Ok(0)
}

fn main() -> ExitCode {
    let (arguments, mut out) = (Arguments::parse(), io::stdout().lock());
    match if arguments.scenarios { list(&mut out) } else { series(&arguments, &mut out) } {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) | Err(_) => ExitCode::FAILURE,
    }
}

/// A run, where a core that panics is a failure like any other.
fn guarded(seed: u64, config: Config) -> Result<Report, String> {
    catch_unwind(AssertUnwindSafe(|| run(seed, config))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })
}

/// Says how to have a run of a scenario again, and how far that came.
fn again(seed: u64, scenario: &Scenario, report: &Report, out: &mut impl Write) -> io::Result<()> {
    for step in &report.faults {
        writeln!(out, "    event {:6} {}", step.event, step.what)?;
    }
    let scenario = scenario.name;
    writeln!(out, "  again: cargo run --release -p flexlog-sim -- --scenario {scenario} --seeds 1 --from {seed}")
}

/// Looks for a smaller run that fails in the same way, and says how to have it again.
fn smaller(seed: u64, config: Config, arguments: &Arguments, out: &mut impl Write) -> io::Result<Config> {
    let Some((small, report)) = shrink(seed, config) else { return Ok(config) };
    let violation = report.violation.as_ref().map(ToString::to_string).unwrap_or_default();
    writeln!(out, "  smaller: {} events, {} faults: {violation}", report.events, report.faults.len())?;
    for fault in &report.faults {
        writeln!(out, "    event {:6} {}", fault.event, fault.what)?;
    }
    let mut again = format!("--seeds 1 --from {seed} --events {} --as-it-is", small.events);
    for (given, word) in [(arguments.calm, " --calm"), (arguments.fixed, " --fixed"), (arguments.one, " --one")] {
        again.push_str(if given { word } else { "" });
    }
    if small.members != Config::default().members {
        again.push_str(&format!(" --members {}", small.members));
    }
    if let Some(bug) = small.bug {
        again.push_str(&format!(" --bug {bug:?}"));
    }
    let left_out: Vec<String> =
        (0..u128::BITS).filter(|number| small.left_out >> number & 1 == 1).map(|number| number.to_string()).collect();
    if !left_out.is_empty() {
        again.push_str(&format!(" --without {}", left_out.join(",")));
    }
    writeln!(out, "  again: cargo run --release -p flexlog-sim -- {again}")?;
    Ok(small)
}

fn series(arguments: &Arguments, out: &mut impl Write) -> io::Result<u64> {
    let config = Config {
        events: arguments.events,
        members: arguments.members,
        faults: !arguments.calm,
        views: !arguments.fixed,
        tree: !arguments.one,
        bug: arguments.bug,
        scenario: arguments.scenario,
        left_out: arguments.without.iter().fold(0, |left_out, number| left_out | 1 << number),
        ..Config::default()
    };
    let started = Instant::now();
    let (mut events, mut appends, mut failed, mut done) = (0, 0, 0, 0);
    let mut counts = Counts::default();
    for seed in arguments.from..arguments.from.saturating_add(arguments.seeds) {
        done += 1;
        match guarded(seed, config) {
            Ok(report) => {
                events += report.events;
                appends += report.acknowledged;
                counts += report.counts;
                let Some(violation) = &report.violation else { continue };
                writeln!(out, "seed {seed}, event {}: {violation}", report.events)?;
                if let Some(scenario) = arguments.scenario {
                    again(seed, scenario, &report, out)?;
                }
                let as_it_is = arguments.as_it_is || arguments.scenario.is_some();
                let config = if as_it_is { config } else { smaller(seed, config, arguments, out)? };
                if arguments.last > 0 {
                    let again = run(seed, Config { record: true, ..config });
                    let skip = again.last_events.len().saturating_sub(arguments.last);
                    again.last_events.iter().skip(skip).try_for_each(|line| writeln!(out, "  {line}"))?;
                }
            }
            Err(panic) => writeln!(out, "seed {seed}: panic: {panic}")?,
        }
        failed += 1;
        if !arguments.keep_going {
            break;
        }
    }
    let seconds = started.elapsed().as_secs_f64().max(0.001);
    let Counts { faults, crashes, partitions, lost_streams, refused_images, moves, .. } = counts;
    let Counts { views, added, lost_in_turns, copies, truncations, rotten, mended, .. } = counts;
    writeln!(
        out,
        "{done} seeds ({:.1}/s), {failed} failed; {events} events ({:.0}/s), {faults} faults: {crashes} crashes, \
         {partitions} partitions, {lost_streams} lost streams, {refused_images} older images refused; {appends} appends \
         acknowledged, {views} view changes, {added} replicas taken in, {lost_in_turns} shards that lost two, {copies} copies, \
         {truncations} truncations, {moves} moves to SSD files, {rotten} records rotten, {mended} written again; {seconds:.1} s",
        f64::from(u32::try_from(done).unwrap_or(u32::MAX)) / seconds,
        events as f64 / seconds,
    )?;
    Ok(failed)
}
