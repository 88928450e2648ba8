//! `rocksdb`: appends and reads in our store beside the same in RocksDB, at several sizes, threads, mixes and media.
//!
//! One append is a record that is durable and can be read when it returns: ours stages it, gives it its number, and
//! fences, once for each record. RocksDB puts it with its write-ahead log on, and syncs that log where the medium says
//! so; ours fences always. Reads ask for a number drawn evenly from those that the thread has appended and that are
//! still held. Keys only go up, and no two slices write the same.
//!
//! On memory every thread has a store of its own, as every shard has; RocksDB's threads share one database. On a disk
//! all threads share one store, where all that waits shares a fence; stores for each thread stand beside it. With
//! `--gather-us`, those that the last fence let go have a moment to come back before the next starts, as with a database's
//! commit delay. RocksDB is as it comes: who waits first syncs for all that came while the sync before was under way.
//!
//! The two take turns, a slice each, in a fresh store and database for each row.

mod cell;
mod ours;
mod peer;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use flexlog_storage_pm::device::{DeviceKind, device_for};
use serde_json::json;

use self::cell::{Cell, Medium, Row};
use crate::Outcome;
use crate::measure::{Output, table};
use crate::stores::memory_folder;

/// Arguments of `bench rocksdb`.
#[derive(Args)]
pub(crate) struct RocksArgs {
    #[command(flatten)]
    output: Output,
    /// A folder on tmpfs to measure in.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A folder on a disk to measure in; made if need be.
    #[arg(long, default_value = "target")]
    disk: PathBuf,
    /// Only these media.
    #[arg(long, value_delimiter = ',', default_values = ["tmpfs", "tmpfs-sync", "disk"])]
    media: Vec<Medium>,
    /// Fewer rows, for a first look.
    #[arg(long)]
    quick: bool,
    /// Slices of each kind that count; one more comes first and does not.
    #[arg(long, default_value_t = 5)]
    slices: usize,
    /// How long a slice is, in milliseconds.
    #[arg(long, default_value_t = 300)]
    slice_ms: u64,
    /// The longest that a shared store waits for all its threads before it starts a fence, in microseconds.
    #[arg(long, default_value_t = 0)]
    gather_us: u64,
    /// Only records of these many bytes; up to 65536.
    #[arg(long, value_delimiter = ',')]
    sizes: Option<Vec<usize>>,
    /// Only so many threads.
    #[arg(long, value_delimiter = ',')]
    threads: Option<Vec<usize>>,
    /// Only these parts of reads, in percent.
    #[arg(long, value_delimiter = ',')]
    reads: Option<Vec<u64>>,
}

/// What we want to be true.
struct Target {
    what: &'static str,
    times: f64,
    of: fn(&Cell) -> bool,
}

const TARGETS: [Target; 6] = [
    Target {
        what: "1 KiB appends, tmpfs, one thread, sync off",
        times: 20.0,
        of: |cell| (cell.medium, cell.size, cell.threads, cell.reads) == (Medium::Tmpfs, 1024, 1, 0),
    },
    Target {
        what: "up to half reads, tmpfs, sync off",
        times: 10.0,
        of: |cell| cell.medium == Medium::Tmpfs && cell.reads <= 50,
    },
    Target {
        what: "up to half reads, tmpfs, sync on",
        times: 10.0,
        of: |cell| cell.medium == Medium::TmpfsSync && cell.reads <= 50,
    },
    Target {
        what: "99 % reads, tmpfs, sync off",
        times: 3.0,
        of: |cell| cell.medium == Medium::Tmpfs && cell.reads == 99,
    },
    Target {
        what: "99 % reads, tmpfs, sync on",
        times: 3.0,
        of: |cell| cell.medium == Medium::TmpfsSync && cell.reads == 99,
    },
    Target {
        what: "appends, disk, sync on, 8 threads",
        times: 1.5,
        of: |cell| cell.medium == Medium::Disk && cell.threads == 8 && cell.reads == 0,
    },
];

/// The rows that are asked for.
fn cells(args: &RocksArgs) -> Vec<Cell> {
    let sizes =
        args.sizes.clone().unwrap_or_else(|| if args.quick { vec![64, 1024] } else { vec![64, 256, 1024, 4096] });
    let threads = args.threads.clone().unwrap_or_else(|| if args.quick { vec![1, 8] } else { vec![1, 2, 8] });
    let reads = args.reads.clone().unwrap_or_else(|| if args.quick { vec![0, 50, 99] } else { vec![0, 50, 95, 99] });
    let mut cells = Vec::new();
    for &medium in &args.media {
        for &size in &sizes {
            for &threads in &threads {
                cells.extend(reads.iter().map(|&reads| Cell { medium, size, threads, reads }));
            }
        }
    }
    cells
}

#[expect(clippy::print_stderr, reason = "a run takes minutes, and people want to see that it goes on")]
pub(crate) fn run(args: &RocksArgs) -> Outcome<()> {
    let memory = memory_folder(args.dir.as_deref())?;
    let disk = args.media.contains(&Medium::Disk).then(|| disk_folder(&args.disk)).transpose()?;
    let began = Instant::now();
    let cells = cells(args);
    let mut rows = Vec::new();
    let mut version = String::new();
    for (done, cell) in cells.iter().enumerate() {
        let dir = match cell.medium {
            Medium::Tmpfs | Medium::TmpfsSync => &memory,
            Medium::Disk => disk.as_ref().unwrap_or(&memory),
        };
        let folder = tempfile::Builder::new().prefix("flexlog-bench-").tempdir_in(dir)?;
        eprintln!("{:4} s  {done} of {}: {}", began.elapsed().as_secs(), cells.len(), cell.name());
        let slice = Duration::from_millis(args.slice_ms);
        let gather = Duration::from_micros(args.gather_us);
        let (row, found) = cell::measure(folder.path(), *cell, args.slices, slice, gather)?;
        rows.push(row);
        version = found;
    }
    let judged: Vec<_> = TARGETS.iter().filter_map(|target| judge(target, &rows)).collect();
    let object = json!({
        "rocksdb": version,
        "slices": args.slices,
        "slice_ms": args.slice_ms,
        "gather_us": args.gather_us,
        "rows": rows,
        "targets": judged.iter().map(Judged::object).collect::<Vec<_>>(),
    });
    args.output.tell(&object, || {
        table(&Row::HEAD, &rows.iter().map(Row::cells).collect::<Vec<_>>());
        let head = ["target", "at least", "rows", "hold", "lowest", "where"];
        table(&head, &judged.iter().map(Judged::cells).collect::<Vec<_>>());
    })
}

fn disk_folder(dir: &Path) -> Outcome<PathBuf> {
    std::fs::create_dir_all(dir)?;
    if device_for(dir)? == DeviceKind::File {
        Ok(dir.to_owned())
    } else {
        Err(format!("{} is in memory: give a folder on a disk with --disk, or leave it out of --media", dir.display())
            .into())
    }
}

/// Whether a target holds.
struct Judged {
    what: &'static str,
    times: f64,
    rows: usize,
    hold: usize,
    lowest: f64,
    place: String,
}

/// `None` where no row says anything about it.
fn judge(target: &Target, rows: &[Row]) -> Option<Judged> {
    let judged: Vec<&Row> = rows.iter().filter(|row| (target.of)(&row.cell)).collect();
    let lowest = judged.iter().min_by(|a, b| a.ratio.median.total_cmp(&b.ratio.median))?;
    Some(Judged {
        what: target.what,
        times: target.times,
        rows: judged.len(),
        hold: judged.iter().filter(|row| row.ratio.median >= target.times).count(),
        lowest: lowest.ratio.median,
        place: lowest.cell.name(),
    })
}

impl Judged {
    fn object(&self) -> serde_json::Value {
        json!({
            "what": self.what, "at_least": self.times, "rows": self.rows, "hold": self.hold,
            "lowest": self.lowest, "where": self.place,
        })
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.what.to_owned(),
            format!("{:.1}", self.times),
            self.rows.to_string(),
            self.hold.to_string(),
            format!("{:.2}", self.lowest),
            self.place.clone(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;

    fn row(medium: Medium, threads: usize, reads: u64, ratio: f64) -> Row {
        let spread = Spread::of([ratio]);
        Row {
            cell: Cell { medium, size: 1024, threads, reads },
            ours: spread,
            peer: spread,
            ratio: spread,
            stores: None,
        }
    }

    #[test]
    fn a_target_looks_at_its_own_rows_and_names_the_lowest() {
        let memory = Medium::Tmpfs;
        let rows =
            [row(memory, 1, 0, 12.0), row(memory, 8, 50, 9.0), row(memory, 8, 95, 2.0), row(Medium::Disk, 8, 0, 1.0)];
        let judged = judge(&TARGETS[1], &rows).unwrap();
        assert_eq!((judged.rows, judged.hold, judged.lowest), (2, 1, 9.0));
        assert_eq!(judged.place, rows[1].cell.name());
        assert!(judge(&TARGETS[3], &rows).is_none(), "no row has 99 % reads");
        assert_eq!(judge(&TARGETS[5], &rows).unwrap().hold, 0);
    }
}
