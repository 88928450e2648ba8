//! Medians, and tables for people.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;

use crate::Outcome;

/// The middle one of some figures, and how far they are apart.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of at least one figure.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let at = |i: usize| figures.get(i).copied().unwrap_or(f64::NAN);
        Self { min: at(0), median: at(figures.len() / 2), max: at(figures.len().saturating_sub(1)) }
    }
}

/// Latencies of one run.
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Self {
        // From a nanosecond to a minute, three digits: the bounds that this constructor can refuse are far away.
        Self(
            Histogram::new_with_bounds(1, 60_000_000_000, 3)
                .unwrap_or_else(|_| unreachable!("these bounds are allowed")),
        )
    }

    pub(crate) fn add(&mut self, time: Duration) {
        self.0.saturating_record(time.as_nanos() as u64);
    }

    pub(crate) fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.add(start.elapsed());
        result
    }

    /// In microseconds.
    pub(crate) fn quantile(&self, q: f64) -> f64 {
        self.0.value_at_quantile(q) as f64 / 1000.0
    }
}

/// Prints a table: its columns are as wide as they need to be.
#[expect(clippy::print_stdout, reason = "this is what the program is for")]
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) {
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            rows.iter().map(|row| row[column].chars().count()).chain([head[column].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        println!("| {} |", cells.join(" | "));
    };
    line(&head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>());
    line(&widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>());
    rows.iter().for_each(|row| line(row));
}

/// How a benchmark tells its figures.
#[derive(Args)]
pub(crate) struct Output {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write that object to this file too.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

impl Output {
    /// Writes and prints the object, as asked; `people` prints the tables instead where no JSON was asked for.
    #[expect(clippy::print_stdout, reason = "this is what the program is for")]
    pub(crate) fn tell(&self, value: &serde_json::Value, people: impl FnOnce()) -> Outcome<()> {
        if let Some(path) = &self.out {
            let text = format!("{value:#}\n");
            std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        if self.json {
            println!("{value}");
        } else {
            people();
        }
        Ok(())
    }
}
