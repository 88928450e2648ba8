//! Explores the models, and prints for each how far it went, what it found, and in what time.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use flexlog_model::{Until, full, planted, quick};

/// Looks at every state of the protocol's models, within bounds. Ends with 1 and the way there if a property is broken.
#[derive(Parser)]
#[command(name = "flexlog-model")]
struct Arguments {
    /// Smaller bounds, for a first look.
    #[arg(long)]
    quick: bool,
    /// Instead of that, plants each fault, and wants a counterexample.
    #[arg(long)]
    faults: bool,
    /// With --faults: prints the steps to each counterexample.
    #[arg(long)]
    paths: bool,
    /// How many threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let out = &mut io::stdout().lock();
    let done = if arguments.faults { faults(&arguments, out) } else { models(&arguments, out) };
    match done {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) | Err(_) => ExitCode::FAILURE,
    }
}

/// How many of the models break a property.
fn models(arguments: &Arguments, out: &mut impl Write) -> io::Result<usize> {
    let cases = if arguments.quick { quick() } else { full() };
    let (mut states, mut seconds, mut failed) = (0, 0.0, 0);
    for case in &cases {
        let report = case.explore(arguments.threads, Until::AllStates);
        write!(out, "{report}")?;
        out.flush()?;
        states += report.states;
        seconds += report.time.as_secs_f64();
        failed += usize::from(!report.failures.is_empty());
    }
    writeln!(out, "{} models, {states} states, {seconds:.0} s, {failed} failed", cases.len())?;
    Ok(failed)
}

/// How many of the faults are not found. One thread, so that the way to each is the same every time.
fn faults(arguments: &Arguments, out: &mut impl Write) -> io::Result<usize> {
    let cases = planted();
    let mut missed = 0;
    for case in &cases {
        let report = case.explore(1, Until::Counterexample);
        let fault = case.fault().map_or(String::new(), |fault| format!("{fault:?}"));
        match report.failures.first() {
            Some(failure) => {
                let steps = failure.path.len() - 1;
                writeln!(out, "{fault}: {steps} steps, {} states: {}", report.states, failure.property)?;
                let shown = if arguments.paths { steps } else { 0 };
                failure.path.iter().take(shown).try_for_each(|step| writeln!(out, "    {step}"))?;
            }
            None => {
                writeln!(out, "{fault}: NOT FOUND in {} states", report.states)?;
                missed += 1;
            }
        }
    }
    writeln!(out, "{} faults, {missed} not found", cases.len())?;
    Ok(missed)
}
