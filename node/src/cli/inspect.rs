//! `flexlog inspect`: what is in a folder, whoever uses it.

use std::path::{Path, PathBuf};

use clap::Args;
use flexlog_storage_pm::inspect::{self, EntryLine, Finding, InspectError, KINDS, Numbers, Report, SegmentState};
use serde_json::{Value, json};

use super::output::Output;
use super::{Stop, absolute};

/// What `inspect` and `verify` are asked to look at.
#[derive(Args)]
pub(crate) struct Place {
    /// A replica's folder, or the data folder of a cluster: then all its replicas.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Where the SSD files are, if not beside the area: what `up --ssd` was given.
    #[arg(long, value_name = "DIR")]
    ssd: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Place {
    /// Each replica's folder, and where its SSD files are if it is not the usual place.
    pub(crate) fn replicas(&self) -> Result<Vec<(PathBuf, Option<PathBuf>)>, Stop> {
        let dir = absolute(&self.dir);
        if dir.join("area").exists() {
            let name = dir.file_name().map(PathBuf::from);
            return Ok(vec![(dir, self.ssd_of(name.as_deref()))]);
        }
        let refuse = |why: String| Stop::Usage(format!("{}: {why}", dir.display()));
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(|error| refuse(error.to_string()))? {
            let name = entry.map_err(|error| refuse(error.to_string()))?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("replica-")?.parse::<u32>().ok());
            if let Some(number) = number {
                found.push((number, dir.join(&name), self.ssd_of(Some(Path::new(&name)))));
            }
        }
        if found.is_empty() {
            let why = "this is neither a replica's folder (it has no `area`) nor a cluster's (it has no `replica-N`)";
            return Err(refuse(why.to_owned()));
        }
        found.sort_unstable();
        Ok(found.into_iter().map(|(_, dir, ssd)| (dir, ssd)).collect())
    }

    /// `--ssd` names the folder itself, or the one that has a folder for each replica.
    fn ssd_of(&self, replica: Option<&Path>) -> Option<PathBuf> {
        let ssd = absolute(self.ssd.as_deref()?);
        let own = replica.map(|replica| ssd.join(replica)).filter(|own| own.is_dir());
        Some(own.unwrap_or(ssd))
    }
}

/// Why a folder was not looked at.
pub(crate) fn not_looked_at(error: &InspectError) -> Stop {
    Stop::Usage(error.to_string())
}

/// Arguments of `flexlog inspect`.
#[derive(Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    place: Place,
    /// List every entry of the log, too.
    #[arg(long)]
    entries: bool,
}

pub(crate) fn run(args: &InspectArgs) -> Result<(), Stop> {
    let mut output = Output::new(args.place.json);
    let mut reports = Vec::new();
    for (nth, (dir, ssd)) in args.place.replicas()?.into_iter().enumerate() {
        let report = inspect::inspect(&dir, ssd.as_deref()).map_err(|error| not_looked_at(&error))?;
        if args.entries {
            list(&mut output, &dir, &report)?;
        }
        if args.place.json {
            reports.push(as_json(&report));
            continue;
        }
        if nth > 0 {
            output.line("")?;
        }
        for line in as_text(&report) {
            output.line(&line)?;
        }
    }
    if args.place.json {
        output.object(&json!({ "replicas": reports }))?;
    }
    output.flush()
}

fn list(output: &mut Output, dir: &Path, report: &Report) -> Result<(), Stop> {
    let mut stopped = None;
    let listed = inspect::entries(dir, report, &mut |entry| {
        let printed =
            if output.is_json() { output.object(&entry_json(report, entry)) } else { output.line(&entry_text(entry)) };
        stopped = printed.err();
        stopped.is_none()
    });
    match stopped {
        Some(stop) => Err(stop),
        None => listed.map_err(|error| not_looked_at(&error)),
    }
}

fn entry_text(entry: &EntryLine) -> String {
    let lsn = entry.lsn.map_or(String::new(), |lsn| format!("lsn {lsn} "));
    format!("{:>12}  {}:{:<10} {:<10} {lsn}{}", entry.offset, entry.generation, entry.at, entry.kind, entry.says)
}

fn entry_json(report: &Report, entry: &EntryLine) -> Value {
    json!({
        "area": report.area,
        "offset": entry.offset,
        "generation": entry.generation,
        "at": entry.at,
        "kind": entry.kind,
        "bytes": entry.bytes,
        "lsn": entry.lsn.map(|lsn| lsn.0),
        "says": entry.says,
    })
}

fn state(state: SegmentState) -> &'static str {
    match state {
        SegmentState::Live => "live",
        SegmentState::Free => "free",
        SegmentState::Unknown => "unknown",
    }
}

pub(crate) fn finding_json(finding: &Finding) -> Value {
    json!({ "file": finding.file, "offset": finding.offset, "what": finding.what, "fault": finding.is_fault })
}

fn numbers_json(numbers: Option<Numbers>) -> Value {
    numbers.map_or(Value::Null, |numbers| {
        json!({ "first": numbers.first.to_string(), "last": numbers.last.to_string(), "records": numbers.records })
    })
}

fn as_json(report: &Report) -> Value {
    let identity = report.identity.map(|identity| {
        json!({
            "version": identity.version,
            "cluster": identity.cluster.to_string(),
            "replica": identity.replica.0,
            "store": identity.store.to_string(),
            "opened": identity.opened,
            "intent": identity.intent,
            "nonce": identity.nonce.to_string(),
            "segment_bytes": identity.segment_bytes,
            "generation_limit": identity.generation_limit,
            "tiered": identity.tiered,
        })
    });
    let copy = |copy: &inspect::SuperblockCopy| json!({ "offset": copy.offset, "good": copy.good, "counts": copy.counts, "sequence": copy.sequence });
    let segment = |segment: &inspect::SegmentReport| {
        let entries: serde_json::Map<String, Value> =
            KINDS.iter().zip(segment.entries).map(|(kind, count)| ((*kind).to_owned(), count.into())).collect();
        json!({
            "slot": segment.slot,
            "offset": segment.offset,
            "state": state(segment.state),
            "generation": segment.generation,
            "used": segment.used,
            "entries": entries,
            "first_lsn": segment.lsns.map(|(first, _)| first.0),
            "last_lsn": segment.lsns.map(|(_, last)| last.0),
            "staged": segment.staged,
        })
    };
    let checkpoint = report.checkpoint.as_ref().map(|checkpoint| {
        json!({
            "offset": checkpoint.offset,
            "upto": checkpoint.upto.0,
            "state_bytes": checkpoint.state_bytes,
            "staged": checkpoint.staged,
            "trims": checkpoint.trims,
            "live": checkpoint.live,
        })
    });
    let color = |color: &inspect::ColorReport| {
        json!({
            "color": color.color.0,
            "area": numbers_json(color.area),
            "ssd": numbers_json(color.ssd),
            "trim": color.trim.map(|trim| trim.to_string()),
        })
    };
    let file = |file: &inspect::SsdFileReport| {
        json!({
            "path": file.path,
            "bytes": file.bytes,
            "records": file.records,
            "colors": file.colors,
            "upto": file.upto.0,
            "sources": file.sources,
        })
    };
    json!({
        "area": report.area,
        "area_bytes": report.area_bytes,
        "in_use": report.in_use,
        "superblocks": report.superblocks.iter().map(copy).collect::<Vec<_>>(),
        "identity": identity,
        "segments": report.segments.iter().map(segment).collect::<Vec<_>>(),
        "checkpoint": checkpoint,
        "log": {
            "offset": report.log.offset,
            "generation": report.log.generation,
            "last_lsn": report.log.last.0,
            "entries": report.log.entries,
            "clean": report.log.clean,
        },
        "fence": report.fence.map(|fence| json!({ "epoch": fence.epoch.0, "uuid": fence.uuid.to_string() })),
        "records": report.records(),
        "colors": report.colors.iter().map(color).collect::<Vec<_>>(),
        "ssd": report.ssd.as_ref().map(|ssd| json!({
            "path": ssd.path,
            "next_id": ssd.next_id,
            "files": ssd.files.iter().map(file).collect::<Vec<_>>(),
        })),
        "findings": report.findings.iter().map(finding_json).collect::<Vec<_>>(),
        "more_findings": report.more_findings,
    })
}

fn numbers_text(numbers: Option<Numbers>) -> String {
    numbers.map_or("-".to_owned(), |numbers| format!("{} ({}..{})", numbers.records, numbers.first, numbers.last))
}

fn as_text(report: &Report) -> Vec<String> {
    let in_use = if report.in_use { ", in use: what is written meanwhile is left out" } else { "" };
    let mut lines = vec![format!("area        {} ({} bytes{in_use})", report.area, report.area_bytes)];
    for copy in report.superblocks {
        let what = match (copy.good, copy.counts) {
            (true, true) => format!("write {}, counts", copy.sequence),
            (true, false) => format!("write {}", copy.sequence),
            (false, _) => "not good".to_owned(),
        };
        lines.push(format!("superblock  at byte {}: {what}", copy.offset));
    }
    if let Some(identity) = &report.identity {
        let intent = if identity.intent { ", an opening began" } else { "" };
        let tiered = if identity.tiered { ", with SSD files" } else { "" };
        lines.push(format!(
            "store       {} of replica {}, version {}",
            identity.store, identity.replica, identity.version
        ));
        lines.push(format!("cluster     {}", identity.cluster));
        lines.push(format!(
            "opened      {} times{intent}; generations below {}; segments of {} bytes{tiered}",
            identity.opened, identity.generation_limit, identity.segment_bytes
        ));
        lines.push(format!(
            "log         {} entries, lsn {}, ends in generation {} at byte {}",
            report.log.entries, report.log.last, report.log.generation, report.log.offset
        ));
    }
    if let Some(fence) = &report.fence {
        lines.push(format!("fence       epoch {} of {}", fence.epoch, fence.uuid));
    }
    if let Some(checkpoint) = &report.checkpoint {
        lines.push(format!(
            "checkpoint  up to lsn {}, {} bytes of state, {} staged, {} trim points, at byte {}",
            checkpoint.upto, checkpoint.state_bytes, checkpoint.staged, checkpoint.trims, checkpoint.offset
        ));
    }
    segments_text(report, &mut lines);
    for color in &report.colors {
        let trim = color.trim.map_or(String::new(), |trim| format!(", trimmed up to {trim}"));
        let (area, ssd) = (numbers_text(color.area), numbers_text(color.ssd));
        lines.push(format!("color {:<5} area {area}, SSD {ssd}{trim}", color.color));
    }
    lines.push(format!("records     {}", report.records()));
    if let Some(ssd) = &report.ssd {
        lines.push(format!("SSD         {} files in {}", ssd.files.len(), ssd.path));
        for file in &ssd.files {
            let name = Path::new(&file.path).file_name().unwrap_or_default().to_string_lossy();
            lines.push(format!(
                "  {name}  {} records of {} colors, {} bytes, up to lsn {}, from {:?}",
                file.records, file.colors, file.bytes, file.upto, file.sources
            ));
        }
    }
    findings_text(report, &mut lines);
    lines
}

fn segments_text(report: &Report, lines: &mut Vec<String>) {
    let count = |state| report.segments.iter().filter(|segment| segment.state == state).count();
    lines.push(format!(
        "segments    {} live, {} free, {} unknown",
        count(SegmentState::Live),
        count(SegmentState::Free),
        count(SegmentState::Unknown)
    ));
    for segment in report.segments.iter().filter(|segment| segment.state != SegmentState::Free) {
        let kinds = KINDS.iter().zip(segment.entries).filter(|(_, count)| *count > 0);
        let kinds: Vec<String> = kinds.map(|(kind, count)| format!("{count} {kind}")).collect();
        let lsns = segment.lsns.map_or(String::new(), |(first, last)| format!(", lsn {first}..{last}"));
        let waiting = if segment.staged > 0 { format!(", {} wait", segment.staged) } else { String::new() };
        let generation = segment.generation.map_or("?".to_owned(), |generation| generation.to_string());
        lines.push(format!(
            "  {:>5} {} generation {generation}: {} bytes, {}{lsns}{waiting}",
            segment.slot,
            state(segment.state),
            segment.used,
            kinds.join(", ")
        ));
    }
}

fn findings_text(report: &Report, lines: &mut Vec<String>) {
    for finding in &report.findings {
        lines.push(format!("{}       {finding}", if finding.is_fault { "FAULT" } else { "note " }));
    }
    if report.more_findings > 0 {
        lines.push(format!("and {} more findings", report.more_findings));
    }
}
