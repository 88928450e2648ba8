//! `storage`: durable records per second in one store, beside the raw limit of the memory that it is on.
//!
//! One of ours is a record made from bytes (checksum included), staged, and the record before it given its number, with
//! one memory fence for both. One of the limit's is a non-temporal copy of the same bytes and one memory fence, into an
//! area of the same kind, allocated and faulted in as ours is. The two take turns, a slice each. Afterwards every store is
//! opened again, and every record is read back and compared.

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use flexlog_protocol::media::{Device, LogStore};
use flexlog_protocol::{
    Append, Assign, Body, ClusterId, Color, Entry, Epoch, Lsn, Record, ReplicaId, SeqNum, SessionId, ShardId, StoreId,
    Token,
};
use flexlog_storage_pm::device::{AnyDevice, DeviceKind, Mapping, MmapDevice, SplitMix, device_for};
use flexlog_storage_pm::{Closed, Options, Owner, Store};
use uuid::Uuid;

use crate::Outcome;
use crate::measure::{Spread, json, table};

/// Bytes of the records; the limit's are copied in whole lines, so these are multiples of 64.
const SIZES: [usize; 4] = [64, 256, 1024, 4096];
const THREADS: [usize; 2] = [1, 2];
/// Slices of each kind that count, and those before them that do not.
const RUNS: usize = 9;
const WARM_UP: usize = 1;
/// Payloads are cut from this many random bytes, at a different place each.
const POOL: usize = 1 << 20;
const SEGMENT: u64 = 16 << 20;
const COLOR: Color = Color(1);

/// Arguments of `bench storage`.
#[derive(Args)]
pub(crate) struct StorageArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
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
    per_s: f64,
    limit_per_s: f64,
    ratio: f64,
    #[serde(skip)]
    ratios: (f64, f64),
}

pub(crate) fn run(args: &StorageArgs) -> Outcome<()> {
    let dir = memory_folder(args.dir.as_deref())?;
    let mut rows = Vec::new();
    for threads in THREADS {
        for size in SIZES {
            rows.push(measure(&dir, size, threads, args.shared)?);
        }
    }
    if args.json {
        json(&serde_json::json!({ "rows": rows }));
        return Ok(());
    }
    let cells = |row: &Row| {
        vec![
            row.size.to_string(),
            row.threads.to_string(),
            format!("{:.2} M", row.per_s / 1e6),
            format!("{:.2} M", row.limit_per_s / 1e6),
            format!("{:.2}", row.ratio),
            format!("{:.2} to {:.2}", row.ratios.0, row.ratios.1),
        ]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    table(&["bytes", "threads", "records/s", "raw copies/s", "ratio", "ratios"], &rows);
    Ok(())
}

fn memory_folder(asked: Option<&Path>) -> Outcome<PathBuf> {
    let is_memory = |dir: &Path| device_for(dir).is_ok_and(|kind| kind == DeviceKind::Mmap);
    match asked {
        Some(dir) if is_memory(dir) => Ok(dir.to_owned()),
        Some(dir) => Err(format!("{} is not a folder on tmpfs: give one with --dir", dir.display()).into()),
        None => ["/dev/shm", "/run/shm", "/tmp", "/run"]
            .into_iter()
            .map(PathBuf::from)
            .find(|dir| is_memory(dir) && tempfile::tempdir_in(dir).is_ok())
            .ok_or_else(|| "there is no tmpfs at /dev/shm: mount one, and give its folder with --dir".into()),
    }
}

/// What one thread works on.
struct Worker {
    /// `None` while the store is closed.
    store: Option<Store<AnyDevice>>,
    folder: PathBuf,
    options: Options,
    raw: MmapDevice,
    raw_at: u64,
    pool: &'static [u8],
    /// The same bytes with a reference count, where that is to be measured too.
    shared: Option<Bytes>,
    size: usize,
    /// Records staged, all but the last numbered.
    staged: u64,
}

impl Worker {
    fn new(dir: &Path, name: usize, size: usize, records: u64, shared: bool) -> Outcome<Self> {
        // What surrounds a record and its number in the log, generously, and what is left over of segments.
        let bytes = records * (size as u64 + 320);
        let segments = bytes / SEGMENT + bytes / SEGMENT / 64 + 6;
        let options = Options {
            segment_bytes: SEGMENT,
            limit_bytes: 8192 + segments * SEGMENT,
            prefault: true,
            ..Options::default()
        };
        let folder = dir.join(format!("store-{name}"));
        let raw_bytes = records * size as u64;
        let mut raw = MmapDevice::open(&dir.join(format!("raw-{name}")), Mapping { limit: raw_bytes, prefault: true })?;
        raw.grow(raw_bytes)?;
        let mut draw = SplitMix(name as u64);
        let pool: Vec<u8> = (0..POOL / 8).flat_map(|_| draw.draw().to_le_bytes()).collect();
        let shared = shared.then(|| Bytes::from(pool.clone()));
        let mut worker = Self {
            store: None,
            folder,
            options,
            raw,
            raw_at: 0,
            pool: Box::leak(pool.into_boxed_slice()),
            shared,
            size,
            staged: 0,
        };
        worker.open()?;
        Ok(worker)
    }

    fn open(&mut self) -> Outcome<()> {
        let owner = Owner { cluster: ClusterId(Uuid::from_u128(1)), replica: ReplicaId(1) };
        let closed = Closed::open_folder(&self.folder, None, owner, StoreId(Uuid::from_u128(2)), self.options)?;
        self.store = Some(closed.open_alone(Uuid::from_u128(3))?.0);
        Ok(())
    }

    /// Where in the pool the bytes of a record are.
    fn place(&self, record: u64) -> usize {
        (record as usize).wrapping_mul(4099) % (POOL - self.size)
    }

    fn run_ours(&mut self, records: u64) -> Outcome<()> {
        let Some(mut store) = self.store.take() else { return Err("the store is closed".into()) };
        let mut entry = Entry { lsn: Lsn(self.staged), epoch: Epoch(1), body: Body::Assign(Vec::with_capacity(1)) };
        for record in self.staged..self.staged + records {
            let place = self.place(record);
            // Static bytes have no reference count: what it costs to share them is the caller's, not the store's.
            let payload = match &self.shared {
                Some(shared) => shared.slice(place..place + self.size),
                None => Bytes::from_static(&self.pool[place..place + self.size]),
            };
            let append = Append::new(token(record), COLOR, None, vec![Record::new(payload)?])?;
            if record > 0 {
                assign(&mut entry, record - 1);
                store.append(&entry)?;
            }
            store.stage(&append)?;
            store.fence()?;
        }
        self.staged += records;
        self.store = Some(store);
        Ok(())
    }

    fn run_raw(&mut self, records: u64) -> Outcome<()> {
        let first = self.raw_at / self.size as u64;
        for record in first..first + records {
            let place = self.place(record);
            self.raw.stream(self.raw_at, &self.pool[place..place + self.size])?;
            self.raw.fence()?;
            self.raw_at += self.size as u64;
        }
        Ok(())
    }

    /// Opens the store again, reads every record, and compares.
    fn check(&mut self) -> Outcome<()> {
        if let Some(mut store) = self.store.take() {
            let mut entry = Entry { lsn: Lsn(0), epoch: Epoch(1), body: Body::Assign(Vec::new()) };
            assign(&mut entry, self.staged - 1);
            store.append(&entry)?;
            store.fence()?;
        }
        self.open()?;
        let Some(store) = &self.store else { return Err("the store is closed".into()) };
        let mut next = 0;
        let mut found = Vec::new();
        while next < self.staged {
            found.clear();
            store.read_through(COLOR, number(next), SeqNum::MAX, 4096, usize::MAX, &mut found)?;
            if found.is_empty() {
                return Err(format!("record {} of {} bytes is lost", number(next), self.size).into());
            }
            for (at, record) in &found {
                let place = self.place(next);
                if *at != number(next) || *record.payload() != self.pool[place..place + self.size] {
                    return Err(
                        format!("record {} of {} bytes is not as it was written", number(next), self.size).into()
                    );
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

fn token(record: u64) -> Token {
    Token { shard: ShardId(0), session: SessionId { epoch: Epoch(1), lsn: Lsn(1) }, seq: record + 1 }
}

fn number(record: u64) -> SeqNum {
    SeqNum::new(Epoch(1), record as u32)
}

/// Makes `entry` the one that gives a record its number.
fn assign(entry: &mut Entry, record: u64) {
    entry.lsn = Lsn(record + 1);
    if let Body::Assign(list) = &mut entry.body {
        list.clear();
        list.push(Assign::one(token(record), COLOR, number(record), 1));
    }
}

fn measure(dir: &Path, size: usize, threads: usize, shared: bool) -> Outcome<Row> {
    let folder = tempfile::tempdir_in(dir)?;
    let slice = (64 << 20) / (size as u64 + 256);
    let records = slice * (RUNS + WARM_UP) as u64;
    let mut workers = (0..threads)
        .map(|name| Worker::new(folder.path(), name, size, records, shared))
        .collect::<Outcome<Vec<_>>>()?;
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for run in 0..RUNS + WARM_UP {
        let own = together(&mut workers, |worker| worker.run_ours(slice))?;
        let limit = together(&mut workers, |worker| worker.run_raw(slice))?;
        if run >= WARM_UP {
            let done = (slice * threads as u64) as f64;
            ours.push(done / own.as_secs_f64());
            raw.push(done / limit.as_secs_f64());
        }
    }
    for worker in &mut workers {
        worker.check()?;
    }
    let ratios = Spread::of(ours.iter().zip(&raw).map(|(ours, raw)| ours / raw));
    Ok(Row {
        size,
        threads,
        per_s: Spread::of(ours).median,
        limit_per_s: Spread::of(raw).median,
        ratio: ratios.median,
        ratios: (ratios.min, ratios.max),
    })
}

/// Has all workers do this at the same time; returns how long the slowest took.
fn together(workers: &mut [Worker], work: impl Fn(&mut Worker) -> Outcome<()> + Sync) -> Outcome<Duration> {
    let start = Barrier::new(workers.len());
    let results: Vec<Result<Duration, String>> = std::thread::scope(|scope| {
        let (start, work) = (&start, &work);
        let threads: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                scope.spawn(move || {
                    start.wait();
                    let began = Instant::now();
                    work(worker).map_err(|error| error.to_string())?;
                    Ok(began.elapsed())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
            .collect()
    });
    let mut longest = Duration::ZERO;
    for result in results {
        longest = longest.max(result?);
    }
    Ok(longest)
}
