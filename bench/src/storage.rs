//! `storage`: durable records per second in one store, beside the raw limit of the memory that it is on.
//!
//! One fence a record: one of ours is a record made from bytes (checksum included), staged, and the record before it
//! given its number, with one memory fence for both. One of the limit's is a non-temporal copy of the same bytes and one
//! memory fence, into an area of the same kind, allocated and faulted in as ours is.
//!
//! Sixteen records a fence: ours stages them, and numbers the sixteen before with one entry, as a leaf does when much
//! waits. The limit copies them too, each behind a line with its length, number and checksum.
//!
//! The two take turns, a slice each. Afterwards every store is opened again, and every record is read back and compared.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use flexlog_protocol::checksum::crc32c;
use flexlog_protocol::media::{Device, LogStore};
use flexlog_protocol::{Color, SeqNum};
use flexlog_storage_pm::Options;
use flexlog_storage_pm::device::{Mapping, MmapDevice};

use crate::Outcome;
use crate::measure::{Output, Spread, table};
use crate::stores::{AROUND_A_RECORD, Log, SEGMENT, longest, memory_folder, number, open, payload, pool, together};

/// Bytes of the records; the limit's are copied in whole lines, so these are multiples of 64.
const SIZES: [usize; 4] = [64, 256, 1024, 4096];
const THREADS: [usize; 2] = [1, 2];
/// Records that share a fence.
const GROUPS: [u64; 2] = [1, 16];
/// Slices of each kind that count, and those before them that do not.
const RUNS: usize = 9;
const WARM_UP: usize = 1;
const COLOR: Color = Color(1);
/// What the limit's records begin with where they have a head.
const HEAD: usize = 64;

/// Arguments of `bench storage`.
#[derive(Args)]
pub(crate) struct StorageArgs {
    #[command(flatten)]
    output: Output,
    /// A folder on tmpfs to measure in.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Payloads with a reference count, as a server has them: taking and giving back each is part of what is timed.
    #[arg(long)]
    shared: bool,
}

#[derive(serde::Serialize)]
struct Row {
    size: usize,
    threads: usize,
    records_a_fence: u64,
    per_s: f64,
    limit_per_s: f64,
    ratio: f64,
    ratios: Spread,
    /// How many times as many as with one thread.
    against_one_thread: f64,
}

pub(crate) fn run(args: &StorageArgs) -> Outcome<()> {
    let dir = memory_folder(args.dir.as_deref())?;
    let mut rows: Vec<Row> = Vec::new();
    for group in GROUPS {
        for threads in THREADS {
            for size in SIZES {
                let mut row = measure(&dir, size, threads, group, args.shared)?;
                let one = |other: &&Row| other.size == size && other.records_a_fence == group && other.threads == 1;
                row.against_one_thread = rows.iter().find(one).map_or(1.0, |one| row.per_s / one.per_s);
                rows.push(row);
            }
        }
    }
    let cells = |row: &Row| {
        vec![
            row.size.to_string(),
            row.threads.to_string(),
            row.records_a_fence.to_string(),
            format!("{:.2} M", row.per_s / 1e6),
            format!("{:.2} M", row.limit_per_s / 1e6),
            format!("{:.2}", row.ratio),
            format!("{:.2} to {:.2}", row.ratios.min, row.ratios.max),
            format!("{:.2}", row.against_one_thread),
        ]
    };
    args.output.tell(&serde_json::json!({ "shared": args.shared, "rows": rows }), || {
        let head =
            ["bytes", "threads", "a fence", "records/s", "raw copies/s", "ratio", "ratios", "against one thread"];
        table(&head, &rows.iter().map(cells).collect::<Vec<_>>());
    })
}

/// What one thread works on.
struct Worker {
    /// `None` while the store is closed.
    log: Option<Log>,
    folder: PathBuf,
    options: Options,
    raw: MmapDevice,
    raw_at: u64,
    raw_done: u64,
    pool: &'static [u8],
    /// The same bytes with a reference count, where that is to be measured too.
    shared: Option<Bytes>,
    size: usize,
    group: u64,
    /// Records staged, all but the last group numbered.
    staged: u64,
}

impl Worker {
    fn new(dir: &Path, name: usize, size: usize, group: u64, records: u64, shared: bool) -> Outcome<Self> {
        // What surrounds a record and its number in the log, generously, and what is left over of segments.
        let bytes = records * (size as u64 + AROUND_A_RECORD + 64);
        let segments = bytes / SEGMENT + bytes / SEGMENT / 64 + 6;
        let options = Options {
            segment_bytes: SEGMENT,
            limit_bytes: 8192 + segments * SEGMENT,
            prefault: true,
            ..Options::default()
        };
        let folder = dir.join(format!("store-{name}"));
        let raw_bytes = records * (size + if group > 1 { HEAD } else { 0 }) as u64;
        let mut raw = MmapDevice::open(&dir.join(format!("raw-{name}")), Mapping { limit: raw_bytes, prefault: true })?;
        raw.grow(raw_bytes)?;
        let shared = shared.then(|| Bytes::from(pool().to_vec()));
        let log = Some(Log::new(open(&folder, options)?));
        Ok(Self { log, folder, options, raw, raw_at: 0, raw_done: 0, pool: pool(), shared, size, group, staged: 0 })
    }

    fn run_ours(&mut self, records: u64) -> Outcome<Duration> {
        let Some(log) = &mut self.log else { return Err("the store is closed".into()) };
        let began = Instant::now();
        let end = self.staged + records;
        while self.staged < end {
            let first = self.staged;
            if first > 0 {
                log.assign(COLOR, first - self.group, self.group as u32)?;
            }
            for record in first..first + self.group {
                // Static bytes have no reference count: what it costs to share them is the caller's, not the store's.
                let bytes = payload(self.pool, record, self.size);
                let bytes = match &self.shared {
                    Some(shared) => {
                        let at = bytes.as_ptr().addr() - self.pool.as_ptr().addr();
                        shared.slice(at..at + self.size)
                    }
                    None => Bytes::from_static(bytes),
                };
                log.stage(COLOR, record, bytes)?;
            }
            log.store.fence()?;
            self.staged += self.group;
        }
        Ok(began.elapsed())
    }

    fn run_raw(&mut self, records: u64) -> Outcome<Duration> {
        let began = Instant::now();
        let end = self.raw_done + records;
        let mut head = [0; HEAD];
        while self.raw_done < end {
            for record in self.raw_done..self.raw_done + self.group {
                let bytes = payload(self.pool, record, self.size);
                if self.group > 1 {
                    head[..8].copy_from_slice(&(self.size as u64).to_le_bytes());
                    head[8..16].copy_from_slice(&record.to_le_bytes());
                    head[16..20].copy_from_slice(&crc32c(bytes).to_le_bytes());
                    self.raw.stream(self.raw_at, &head)?;
                    self.raw_at += HEAD as u64;
                }
                self.raw.stream(self.raw_at, bytes)?;
                self.raw_at += self.size as u64;
            }
            self.raw.fence()?;
            self.raw_done += self.group;
        }
        Ok(began.elapsed())
    }

    /// Opens the store again, reads every record, and compares.
    fn check(&mut self) -> Outcome<()> {
        if let Some(mut log) = self.log.take() {
            log.assign(COLOR, self.staged - self.group, self.group as u32)?;
            log.fence()?;
        }
        let store = open(&self.folder, self.options)?;
        let mut next = 0;
        let mut found = Vec::new();
        while next < self.staged {
            found.clear();
            store.read_through(COLOR, number(next), SeqNum::MAX, 4096, usize::MAX, &mut found)?;
            if found.is_empty() {
                return Err(format!("record {} of {} bytes is lost", number(next), self.size).into());
            }
            for (at, record) in &found {
                if *at != number(next) || record.payload() != payload(self.pool, next, self.size) {
                    let what = number(next);
                    return Err(format!("record {what} of {} bytes is not as it was written", self.size).into());
                }
                next += 1;
            }
        }
        if next == self.staged {
            Ok(())
        } else {
            Err(format!("{next} records where {} were written", self.staged).into())
        }
    }
}

fn measure(dir: &Path, size: usize, threads: usize, group: u64, shared: bool) -> Outcome<Row> {
    let folder = tempfile::tempdir_in(dir)?;
    let slice = ((64 << 20) / (size as u64 + 256)).next_multiple_of(group);
    let records = slice * (RUNS + WARM_UP) as u64;
    let mut workers = (0..threads)
        .map(|name| Worker::new(folder.path(), name, size, group, records, shared))
        .collect::<Outcome<Vec<_>>>()?;
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for run in 0..RUNS + WARM_UP {
        let own = together(&mut workers, |worker| worker.run_ours(slice))?;
        let limit = together(&mut workers, |worker| worker.run_raw(slice))?;
        if run >= WARM_UP {
            let done = (slice * threads as u64) as f64;
            ours.push(done / longest(&own).as_secs_f64());
            raw.push(done / longest(&limit).as_secs_f64());
        }
    }
    for worker in &mut workers {
        worker.check()?;
    }
    let ratios = Spread::of(ours.iter().zip(&raw).map(|(ours, raw)| ours / raw));
    Ok(Row {
        size,
        threads,
        records_a_fence: group,
        per_s: Spread::of(ours).median,
        limit_per_s: Spread::of(raw).median,
        ratio: ratios.median,
        ratios,
        against_one_thread: 1.0,
    })
}
