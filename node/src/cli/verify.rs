//! `flexlog verify`: whether all of a folder is as it was written.
//!
//! Exit codes: 0 all is well, 1 there are faults, 2 it was not looked at.

use clap::Args;
use flexlog_storage_pm::inspect::{self, Report};
use serde_json::{Value, json};

use super::Stop;
use super::inspect::{Place, finding_json, not_looked_at};
use super::output::Output;

/// Arguments of `flexlog verify`.
#[derive(Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(args: &VerifyArgs) -> Result<(), Stop> {
    let mut output = Output::new(args.place.json);
    let (mut sound, mut replicas) = (true, Vec::new());
    for (dir, ssd) in args.place.replicas()? {
        let report = inspect::verify(&dir, ssd.as_deref()).map_err(|error| not_looked_at(&error))?;
        sound &= report.is_sound();
        if args.place.json {
            replicas.push(as_json(&report));
            continue;
        }
        for finding in &report.findings {
            let note = if finding.is_fault { "" } else { "note: " };
            output.line(&format!("{note}{finding}"))?;
        }
        if report.more_findings > 0 {
            output.line(&format!("{}: and {} more", report.area, report.more_findings))?;
        }
        output.line(&summary(&report))?;
    }
    if args.place.json {
        output.object(&json!({ "sound": sound, "replicas": replicas }))?;
    }
    output.flush()?;
    if sound { Ok(()) } else { Err(Stop::Told) }
}

fn summary(report: &Report) -> String {
    let files = report.ssd.as_ref().map_or(0, |ssd| ssd.files.len());
    let verdict = if report.is_sound() { "sound" } else { "NOT SOUND" };
    format!(
        "{}: {verdict}: {} entries, lsn {}, {} records, {files} SSD files",
        report.area,
        report.log.entries,
        report.log.last,
        report.records()
    )
}

fn as_json(report: &Report) -> Value {
    json!({
        "area": report.area,
        "sound": report.is_sound(),
        "entries": report.log.entries,
        "last_lsn": report.log.last.0,
        "records": report.records(),
        "ssd_files": report.ssd.as_ref().map_or(0, |ssd| ssd.files.len()),
        "findings": report.findings.iter().map(finding_json).collect::<Vec<_>>(),
        "more_findings": report.more_findings,
    })
}
