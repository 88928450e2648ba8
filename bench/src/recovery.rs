//! `recovery`: how long a store takes to open, by its size, beside reading its area once with a checksum over it.
//!
//! The stores are filled as a replica fills them, with a checkpoint when one is wanted, and closed. Then opening it and
//! reading its area through a fresh mapping take turns. After the first opening every record is counted and some are
//! compared.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bytes::Bytes;
use clap::Args;
use flexlog_protocol::checksum::crc32c;
use flexlog_protocol::media::{Device, LogStore};
use flexlog_protocol::{Color, Record, SeqNum};
use flexlog_storage_pm::device::{Mapping, MmapDevice, SplitMix};
use flexlog_storage_pm::{Options, Store};
use serde_json::json;
use uuid::Uuid;

use crate::measure::{Output, Spread, table};
use crate::stores::{Log, SEGMENT, closed, memory_folder, number, open, payload, pool};
use crate::{Outcome, plot};

const GIB: f64 = (1u64 << 30) as f64;
/// Records that share a fence while a store is filled.
const FENCED: u64 = 64;
/// Records that are compared after opening.
const COMPARED: u64 = 1000;
/// The baseline's checksums are over this many bytes each.
const PIECE: usize = 1 << 20;
/// From so many GiB on three runs are enough.
const LARGE: u64 = 8;
const COLOR: Color = Color(1);

/// Arguments of `bench recovery`.
#[derive(Args)]
pub(crate) struct RecoveryArgs {
    #[command(flatten)]
    output: Output,
    /// A folder on tmpfs to measure in; it needs as much memory as the largest store.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Sizes of stores of 1 KiB records, in GiB.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 8])]
    gib: Vec<u64>,
    /// Leave out the store of 1 GiB of 64 B records.
    #[arg(long)]
    no_small: bool,
    /// Records that share the entry that numbers them: 1 where each append came alone.
    #[arg(long, default_value_t = 1)]
    group: u32,
    /// Runs; 3 of them for stores of 8 GiB and more.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Write a picture of seconds against GiB to this file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(serde::Serialize)]
struct Row {
    record_bytes: usize,
    records: u64,
    area_bytes: u64,
    /// Of opening, all in all.
    seconds: Spread,
    /// Of that, mapping the area and reading the superblock.
    mapping_seconds: Spread,
    gib_per_s: f64,
    records_per_s: f64,
    /// Of reading the area once.
    limit_seconds: Spread,
    limit_gib_per_s: f64,
    /// How many times as long opening takes.
    ratio: Spread,
}

impl Row {
    fn gib(&self) -> f64 {
        self.area_bytes as f64 / GIB
    }
}

pub(crate) fn run(args: &RecoveryArgs) -> Outcome<()> {
    let dir = memory_folder(args.dir.as_deref())?;
    let mut rows = Vec::new();
    for &gib in &args.gib {
        let runs = if gib >= LARGE { args.runs.min(3) } else { args.runs };
        rows.push(measure(&dir, gib, 1024, args.group, runs)?);
    }
    if !args.no_small {
        rows.push(measure(&dir, 1, 64, args.group, args.runs)?);
    }
    if let Some(path) = &args.plot {
        let points = |of: fn(&Row) -> Spread| {
            rows.iter().filter(|row| row.record_bytes == 1024).map(|row| (row.gib(), of(row))).collect::<Vec<_>>()
        };
        let picture = plot::lines(
            "Opening a store of 1 KiB records",
            ["GiB", "seconds"],
            &[("opening the store", points(|row| row.seconds)), ("reading its area", points(|row| row.limit_seconds))],
        );
        plot::write(path, &picture)?;
    }
    let cells = |row: &Row| {
        vec![
            row.record_bytes.to_string(),
            format!("{:.2}", row.gib()),
            format!("{:.2} M", row.records as f64 / 1e6),
            format!("{:.3} ({:.3}–{:.3})", row.seconds.median, row.seconds.min, row.seconds.max),
            format!("{:.3}", row.mapping_seconds.median),
            format!("{:.2}", row.gib_per_s),
            format!("{:.2} M", row.records_per_s / 1e6),
            format!("{:.3}", row.limit_seconds.median),
            format!("{:.2}", row.limit_gib_per_s),
            format!("{:.2} ({:.2}–{:.2})", row.ratio.median, row.ratio.min, row.ratio.max),
        ]
    };
    args.output.tell(&json!({ "group": args.group, "rows": rows }), || {
        let head = [
            "record B",
            "GiB",
            "records",
            "opening s",
            "mapping s",
            "GiB/s",
            "records/s",
            "area read s",
            "GiB/s",
            "opening / read",
        ];
        table(&head, &rows.iter().map(cells).collect::<Vec<_>>());
    })
}

/// How the stores are opened: as a replica does it, nothing faulted in beforehand.
fn options(gib: u64) -> Options {
    Options { segment_bytes: SEGMENT, limit_bytes: 8192 + (gib << 30) + 8 * SEGMENT, ..Options::default() }
}

/// Fills a store until its segments take so many GiB; returns how many records it holds.
fn fill(folder: &Path, gib: u64, size: usize, group: u32) -> Outcome<u64> {
    let mut log = Log::new(open(folder, options(gib))?);
    let group = u64::from(group.max(1));
    let mut records = 0;
    while log.store.usage().used_bytes < gib << 30 {
        for _ in 0..FENCED.div_ceil(group) {
            for record in records..records + group {
                log.stage(COLOR, record, Bytes::from_static(payload(pool(), record, size)))?;
            }
            log.assign(COLOR, records, group as u32)?;
            records += group;
        }
        log.fence()?;
        log.checkpoint_if_wanted()?;
    }
    Ok(records)
}

fn measure(dir: &Path, gib: u64, size: usize, group: u32, runs: usize) -> Outcome<Row> {
    let folder = tempfile::Builder::new().prefix("flexlog-bench-").tempdir_in(dir)?;
    let records = fill(folder.path(), gib, size, group)?;
    let area = folder.path().join("area");
    let (mut seconds, mut mapping, mut limit) = (Vec::new(), Vec::new(), Vec::new());
    let mut area_bytes = 0;
    for run in 0..runs {
        let (bytes, taken) = read_area(&area)?;
        area_bytes = bytes;
        limit.push(taken);
        let began = Instant::now();
        let closed = closed(folder.path(), options(gib))?;
        mapping.push(began.elapsed().as_secs_f64());
        let (store, recovered) = closed.open_alone(Uuid::from_u128(run as u128 + 10))?;
        seconds.push(began.elapsed().as_secs_f64());
        drop(recovered);
        check(&store, records, size)?;
    }
    let seconds_of = Spread::of(seconds.iter().copied());
    let limit_of = Spread::of(limit.iter().copied());
    Ok(Row {
        record_bytes: size,
        records,
        area_bytes,
        seconds: seconds_of,
        mapping_seconds: Spread::of(mapping),
        gib_per_s: area_bytes as f64 / GIB / seconds_of.median,
        records_per_s: records as f64 / seconds_of.median,
        limit_seconds: limit_of,
        limit_gib_per_s: area_bytes as f64 / GIB / limit_of.median,
        ratio: Spread::of(seconds.iter().zip(&limit).map(|(ours, limit)| ours / limit)),
    })
}

/// Reads the area once, with checksums, through a mapping of its own; returns its bytes, and the seconds.
fn read_area(area: &Path) -> Outcome<(u64, f64)> {
    let limit = std::fs::metadata(area)?.len();
    let device = MmapDevice::open(area, Mapping { limit, prefault: false })?;
    let began = Instant::now();
    let mut at = 0;
    while at < limit {
        let len = PIECE.min((limit - at) as usize);
        black_box(crc32c(device.slice(at, len).ok_or("the area is no memory")?));
        at += len as u64;
    }
    Ok((limit, began.elapsed().as_secs_f64()))
}

fn check<D: Device>(store: &Store<D>, records: u64, size: usize) -> Outcome<()> {
    let held = store.usage().records;
    if held != records {
        return Err(format!("{held} records where {records} were written").into());
    }
    let mut draw = SplitMix(records);
    let mut found: Vec<(SeqNum, Record)> = Vec::new();
    for _ in 0..COMPARED {
        let record = draw.draw() % records;
        found.clear();
        store.read_through(COLOR, number(record), number(record + 1), 1, usize::MAX, &mut found)?;
        if !matches!(&found[..], [(_, found)] if found.payload() == payload(pool(), record, size)) {
            return Err(format!("record {} is not as it was written", number(record)).into());
        }
    }
    Ok(())
}
