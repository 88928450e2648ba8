//! `reads`: how long one record takes to read, drawn at random, beside a copy of as many bytes with their checksum.
//!
//! Sources take turns, a slice each: the area of a store; the cache of another, whose records are on SSD; and the SSD files of
//! a third without a cache, whose blocks the system has in its own.

use std::hint::black_box;
use std::path::PathBuf;

use bytes::Bytes;
use clap::Args;
use flexlog_protocol::checksum::crc32c;
use flexlog_protocol::media::{Device, LogStore};
use flexlog_protocol::{Color, Record, SeqNum};
use flexlog_storage_pm::Options;
use flexlog_storage_pm::device::{Mapping, MmapDevice, SplitMix};
use serde_json::json;

use crate::Outcome;
use crate::measure::{Latencies, Output, Spread, table};
use crate::stores::{AROUND_A_RECORD, Log, SEGMENT, memory_folder, number, open, open_tiered, payload, pool};

/// Reads of one source in one turn.
const SLICE: usize = 20_000;
/// Turns of a run.
const SLICES: usize = 5;
/// Records that fit into the cache.
const HOT: u64 = 1 << 14;
/// Records that are on SSD at least.
const ON_SSD: u64 = 1 << 17;
/// Records that share a fence while the store is filled.
const GROUP: u64 = 64;
const COLOR: Color = Color(1);

/// Arguments of `bench reads`.
#[derive(Args)]
pub(crate) struct ReadsArgs {
    #[command(flatten)]
    output: Output,
    /// A folder on tmpfs to measure in.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Bytes of a record.
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Records to draw from.
    #[arg(long, default_value_t = 1 << 20)]
    records: u64,
    /// A folder on a disk for SSD files.
    #[arg(long, default_value = ".")]
    disk: PathBuf,
    /// Runs that count.
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

/// Something to read records from.
struct Source<'a> {
    name: &'static str,
    /// Reads the n-th record and checks it.
    read: Box<dyn FnMut(u64) -> Outcome<()> + 'a>,
}

/// One source's figures, in nanoseconds.
#[derive(serde::Serialize)]
struct Row {
    source: &'static str,
    p50_ns: Spread,
    p99_ns: Spread,
}

pub(crate) fn run(args: &ReadsArgs) -> Outcome<()> {
    let dir = memory_folder(args.dir.as_deref())?;
    let folder = tempfile::Builder::new().prefix("flexlog-bench-").tempdir_in(&dir)?;
    let (size, records) = (args.size, args.records);

    let segments = records * (size as u64 + AROUND_A_RECORD) / SEGMENT + 8;
    let options = Options {
        segment_bytes: SEGMENT,
        limit_bytes: 8192 + segments * SEGMENT,
        prefault: true,
        cache_bytes: 0,
        ..Options::default()
    };
    let mut log = Log::new(open(&folder.path().join("store"), options)?);
    let mut raw =
        MmapDevice::open(&folder.path().join("raw"), Mapping { limit: records * size as u64, prefault: true })?;
    raw.grow(records * size as u64)?;
    for first in (0..records).step_by(GROUP as usize) {
        let end = records.min(first + GROUP);
        for record in first..end {
            let payload = payload(pool(), record, size);
            log.stage(COLOR, record, Bytes::from_static(payload))?;
            raw.write(record * size as u64, &[payload])?;
        }
        log.assign(COLOR, first, (end - first) as u32)?;
        log.fence()?;
        log.checkpoint_if_wanted()?;
    }

    let disk = tempfile::Builder::new().prefix("flexlog-bench-").tempdir_in(&args.disk)?;
    let small = Options { limit_bytes: 8192 + 12 * SEGMENT, high_mark: 10, ..options };
    let tiered = |name: &str, options: Options| -> Outcome<Log> {
        let ssd = disk.path().join(name);
        std::fs::create_dir(&ssd)?;
        let mut log = Log::new(open_tiered(&folder.path().join(name), &ssd, options)?);
        fill(&mut log, ON_SSD + (8 * SEGMENT) / size as u64, size)?;
        Ok(log)
    };
    let cached = tiered("cached", Options { cache_bytes: 64 << 20, ..small })?;
    let tiered = tiered("tiered", small)?;
    if tiered.store.usage().ssd_records < ON_SSD {
        return Err(format!("only {} records moved to SSD files", tiered.store.usage().ssd_records).into());
    }

    let (mut found, mut hot, mut cold) = (Vec::with_capacity(1), Vec::with_capacity(1), Vec::with_capacity(1));
    let mut copy = vec![0; size];
    let mut sources = [
        Source { name: "the clock alone", read: Box::new(|_| Ok(())) },
        Source {
            name: "copy + CRC32C",
            read: Box::new(|record| {
                raw.read(record * size as u64, &mut copy)?;
                black_box(crc32c(&copy));
                Ok(())
            }),
        },
        Source { name: "store, area on tmpfs", read: Box::new(|record| read(&log, record, size, &mut found)) },
        Source { name: "store, cached", read: Box::new(|record| read(&cached, record % HOT, size, &mut hot)) },
        Source { name: "store, SSD file", read: Box::new(|record| read(&tiered, record % ON_SSD, size, &mut cold)) },
    ];
    let rows = measure(&mut sources, records, args.runs)?;
    let object = json!({ "size": size, "records": records, "runs": args.runs, "rows": rows });
    let cells = |row: &Row| {
        let spread = |spread: &Spread| format!("{:.0} ({:.0}–{:.0})", spread.median, spread.min, spread.max);
        vec![row.source.to_owned(), spread(&row.p50_ns), spread(&row.p99_ns)]
    };
    args.output.tell(&object, || {
        let head = format!("reading {size} B");
        table(&[&head, "p50 ns", "p99 ns"], &rows.iter().map(cells).collect::<Vec<_>>());
    })
}

/// Puts so many records into a store, as a replica does it, its background work included.
fn fill(log: &mut Log, records: u64, size: usize) -> Outcome<()> {
    for first in (0..records).step_by(GROUP as usize) {
        for record in first..first + GROUP {
            log.stage(COLOR, record, Bytes::from_static(payload(pool(), record, size)))?;
        }
        log.assign(COLOR, first, GROUP as u32)?;
        log.fence()?;
        log.checkpoint_if_wanted()?;
        log.work()?;
    }
    Ok(())
}

#[inline]
fn read(log: &Log, record: u64, size: usize, found: &mut Vec<(SeqNum, Record)>) -> Outcome<()> {
    found.clear();
    log.store.read_through(COLOR, number(record), number(record + 1), 1, usize::MAX, found)?;
    match &found[..] {
        [(_, record)] if record.payload().len() == size => Ok(()),
        _ => Err(format!("the store lost the record {}", number(record)).into()),
    }
}

fn measure(sources: &mut [Source<'_>], records: u64, runs: usize) -> Outcome<Vec<Row>> {
    let mut draw = SplitMix(1);
    let mut figures = vec![Vec::new(); sources.len()];
    for run in 0..=runs {
        let mut latencies: Vec<Latencies> = sources.iter().map(|_| Latencies::new()).collect();
        for _ in 0..SLICES {
            for (source, latencies) in sources.iter_mut().zip(&mut latencies) {
                for _ in 0..SLICE {
                    let record = draw.draw() % records;
                    latencies.time(|| (source.read)(record))?;
                }
            }
        }
        // The first run warms everything up.
        if run > 0 {
            for (figures, latencies) in figures.iter_mut().zip(&latencies) {
                figures.push((latencies.quantile(0.5) * 1e3, latencies.quantile(0.99) * 1e3));
            }
        }
    }
    let row = |(source, figures): (&Source<'_>, &Vec<(f64, f64)>)| Row {
        source: source.name,
        p50_ns: Spread::of(figures.iter().map(|(p50, _)| *p50)),
        p99_ns: Spread::of(figures.iter().map(|(_, p99)| *p99)),
    };
    Ok(sources.iter().zip(&figures).map(row).collect())
}
