//! `tiers`: what records on SSD cost in memory, and how many bytes are written for those that move.
//!
//! A store with a small area takes many records, and moves all but the last of them to SSD files. At some points it is
//! closed and opened again by another process, and that process's memory is measured.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use bytes::Bytes;
use clap::Args;
use flexlog_protocol::media::LogStore;
use flexlog_protocol::{Append, Color, Record};
use flexlog_storage_pm::Options;
use serde_json::json;

use crate::Outcome;
use crate::measure::{Output, table};
use crate::stores::{Log, SEGMENT, memory_folder, open_tiered, payload, pool, token};

/// Records of an append.
const BATCH: u64 = 64;

/// Arguments of `bench tiers`.
#[derive(Args)]
pub(crate) struct TiersArgs {
    #[command(flatten)]
    output: Output,
    /// A folder on tmpfs for the area.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A folder on a disk for the SSD files.
    #[arg(long, default_value = ".")]
    disk: PathBuf,
    /// Bytes of a record.
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// How many colors the records are spread over.
    #[arg(long, default_value_t = 1000)]
    colors: u64,
    /// Where memory is measured, in millions of records; the last is how many there are.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 5, 10])]
    millions: Vec<u64>,
}

/// Arguments of the process that opens a store to be measured.
#[derive(Args)]
pub(crate) struct OpenArgs {
    area: PathBuf,
    ssd: PathBuf,
}

#[derive(serde::Serialize)]
struct Row {
    records_on_ssd: u64,
    ssd_files: u64,
    ssd_bytes: u64,
    /// Bytes of files for each byte of the records' own encoded form.
    write_amplification: f64,
    /// What the store says its indexes take, and what the process that opened it has in anonymous memory, in bytes.
    index_bytes: u64,
    anonymous_bytes: u64,
    opening_s: f64,
}

fn options() -> Options {
    Options { limit_bytes: 8192 + 16 * SEGMENT, high_mark: 25, ..Options::default() }
}

/// Anonymous memory of this process, in bytes.
fn anonymous() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: u64 = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(0);
    Ok(kib << 10)
}

/// Opens a store and says what that took.
#[expect(clippy::print_stdout, reason = "the process that started this one reads it")]
pub(crate) fn open_and_tell(args: &OpenArgs) -> Outcome<()> {
    let before = anonymous()?;
    let began = Instant::now();
    let store = open_tiered(&args.area, &args.ssd, options())?;
    let seconds = began.elapsed().as_secs_f64();
    let (usage, after) = (store.usage(), anonymous()?);
    println!(
        "{}",
        json!({ "seconds": seconds, "index_bytes": usage.index_bytes, "anonymous": after.saturating_sub(before),
            "ssd_records": usage.ssd_records, "ssd_files": usage.ssd_files, "ssd_bytes": usage.ssd_bytes })
    );
    Ok(())
}

pub(crate) fn run(args: &TiersArgs) -> Outcome<()> {
    let dir = memory_folder(args.dir.as_deref())?;
    let area = tempfile::Builder::new().prefix("flexlog-bench-").tempdir_in(&dir)?;
    let disk = tempfile::Builder::new().prefix("flexlog-bench-").tempdir_in(&args.disk)?;
    let mut log = Some(Log::new(open_tiered(area.path(), disk.path(), options())?));
    let mut rows = Vec::new();
    let mut appends = 0;
    for millions in &args.millions {
        let Some(mut filling) = log.take() else { break };
        while appends * BATCH < millions * 1_000_000 {
            for _ in 0..16 {
                append(&mut filling, appends, args)?;
                appends += 1;
            }
            filling.fence()?;
            filling.checkpoint_if_wanted()?;
            filling.work()?;
        }
        let entry = filling.close();
        rows.push(open_elsewhere(area.path(), disk.path(), args.size)?);
        log = Some(Log::reopened(open_tiered(area.path(), disk.path(), options())?, entry));
    }
    let slope = match (rows.first(), rows.last()) {
        (Some(first), Some(last)) if last.records_on_ssd > first.records_on_ssd => {
            let records = (last.records_on_ssd - first.records_on_ssd) as f64;
            (last.anonymous_bytes as f64 - first.anonymous_bytes as f64) / records
        }
        _ => f64::NAN,
    };
    let object = json!({ "size": args.size, "colors": args.colors, "rows": rows, "anonymous_bytes_per_record": slope });
    let cells = |row: &Row| {
        vec![
            format!("{:.2} M", row.records_on_ssd as f64 / 1e6),
            row.ssd_files.to_string(),
            format!("{:.0}", row.ssd_bytes as f64 / f64::from(1 << 20)),
            format!("{:.3}", row.write_amplification),
            format!("{:.2}", row.index_bytes as f64 / f64::from(1 << 20)),
            format!("{:.2}", row.anonymous_bytes as f64 / f64::from(1 << 20)),
            format!("{:.3}", row.opening_s),
        ]
    };
    args.output.tell(&object, || {
        let head =
            ["records on SSD", "files", "MiB", "bytes / record bytes", "index MiB", "anonymous MiB", "opening s"];
        table(&head, &rows.iter().map(cells).collect::<Vec<_>>());
        table(&["anonymous bytes for each more record"], &[vec![format!("{slope:.2}")]]);
    })
}

fn append(log: &mut Log, nth: u64, args: &TiersArgs) -> Outcome<()> {
    let (color, of_color) = (Color(1 + nth % args.colors), nth / args.colors);
    let records: Result<Vec<Record>, _> =
        (0..BATCH).map(|i| Record::new(Bytes::from_static(payload(pool(), nth * BATCH + i, args.size)))).collect();
    let token = token(color, of_color);
    log.store.stage(&Append::new(token, color, None, records?)?)?;
    log.assign_batch(token, color, of_color * BATCH, BATCH as u32)
}

fn open_elsewhere(area: &Path, ssd: &Path, size: usize) -> Outcome<Row> {
    let output = Command::new(std::env::current_exe()?).arg("open").arg(area).arg(ssd).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let told: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let number = |name: &str| told[name].as_u64().unwrap_or(0);
    let records_on_ssd = number("ssd_records");
    Ok(Row {
        records_on_ssd,
        ssd_files: number("ssd_files"),
        ssd_bytes: number("ssd_bytes"),
        write_amplification: number("ssd_bytes") as f64 / (records_on_ssd * (size as u64 + 1)) as f64,
        index_bytes: number("index_bytes"),
        anonymous_bytes: number("anonymous"),
        opening_s: told["seconds"].as_f64().unwrap_or(f64::NAN),
    })
}
