//! Our store as it is measured: one for each thread, or one that all threads share with a fence for all that waits.
//!
//! A store holds so many bytes and forgets the oldest records beyond; forgetting, and the checkpoints for it, are part of
//! what is timed.

use std::hint::black_box;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexlog_protocol::media::{FenceId, LogStore};
use flexlog_protocol::{Color, Record, SeqNum};
use flexlog_storage_pm::Options;

use super::cell::{Cell, Client};
use crate::Outcome;
use crate::stores::{AROUND_A_RECORD, Log, SEGMENT, number, open, payload, pool};

/// What all stores of a row hold together, about.
pub(super) const HELD_BYTES: u64 = 256 << 20;
/// Segments beyond what is held: those that are about to be given back, and the reserves.
const SPARE_SEGMENTS: u64 = 8;
/// Records that share a fence before the first slice.
const BEFORE_GROUP: u64 = 1024;

fn open_log(folder: &Path, held: u64) -> Outcome<Log> {
    // A segment is given back as a whole, so some hold less than they have room for.
    let segments = held.div_ceil(SEGMENT) + held.div_ceil(SEGMENT) / 4 + SPARE_SEGMENTS;
    let options = Options {
        segment_bytes: SEGMENT,
        limit_bytes: 8192 + segments * SEGMENT,
        prefault: true,
        ..Options::default()
    };
    Ok(Log::new(open(folder, options)?))
}

/// One thread's records in a store.
struct Stream {
    color: Color,
    pool: &'static [u8],
    size: usize,
    /// The oldest record that is held, and the one that comes next.
    oldest: u64,
    next: u64,
    /// How many are held, and how many more there may be until the oldest are forgotten.
    held: u64,
    slack: u64,
    found: Vec<(SeqNum, Record)>,
}

impl Stream {
    fn new(nth: usize, cell: Cell) -> Self {
        let each = cell.size as u64 + AROUND_A_RECORD;
        Self {
            color: Color(nth as u64 + 1),
            pool: pool(),
            size: cell.size,
            oldest: 0,
            next: 0,
            held: HELD_BYTES / cell.threads as u64 / each,
            slack: SEGMENT / each,
            found: Vec::with_capacity(1),
        }
    }

    /// Stages the next record and gives it its number.
    #[inline]
    fn put(&mut self, log: &mut Log) -> Outcome<()> {
        if self.next - self.oldest >= self.held + self.slack {
            self.oldest = self.next - self.held;
            log.store.trim(self.color, number(self.oldest - 1));
            log.checkpoint_if_wanted()?;
        }
        log.stage(self.color, self.next, Bytes::from_static(payload(self.pool, self.next, self.size)))?;
        log.assign(self.color, self.next, 1)?;
        self.next += 1;
        Ok(())
    }

    fn put_before(&mut self, log: &mut Log, cell: Cell) -> Outcome<()> {
        for record in 1..=cell.before() {
            self.put(log)?;
            if record % BEFORE_GROUP == 0 {
                log.fence()?;
            }
        }
        log.fence()
    }

    #[inline]
    fn read(&mut self, log: &Log, drawn: u64, compare: bool) -> Outcome<()> {
        let record = self.oldest + drawn % (self.next - self.oldest);
        self.found.clear();
        log.store.read_through(self.color, number(record), number(record + 1), 1, usize::MAX, &mut self.found)?;
        let [(_, found)] = &self.found[..] else {
            return Err(format!("the store lost the record {}/{}", self.color, number(record)).into());
        };
        let found = found.payload();
        if found.len() != self.size || compare && found != payload(self.pool, record, self.size) {
            return Err(format!("the store changed the record {}/{}", self.color, number(record)).into());
        }
        black_box(found);
        Ok(())
    }
}

/// A store that one thread has for itself.
pub(super) struct OwnStore {
    log: Log,
    stream: Stream,
}

impl OwnStore {
    pub(super) fn new(folder: &Path, nth: usize, cell: Cell) -> Outcome<Self> {
        let mut log = open_log(folder, HELD_BYTES / cell.threads as u64)?;
        let mut stream = Stream::new(nth, cell);
        stream.put_before(&mut log, cell)?;
        Ok(Self { log, stream })
    }
}

impl Client for OwnStore {
    #[inline]
    fn append(&mut self) -> Outcome<()> {
        self.stream.put(&mut self.log)?;
        self.log.fence()
    }

    #[inline]
    fn read(&mut self, drawn: u64, compare: bool) -> Outcome<()> {
        self.stream.read(&self.log, drawn, compare)
    }
}

/// Told each time a fence is done.
#[derive(Default)]
struct Bell {
    rung: Mutex<u64>,
    changed: Condvar,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        *self.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until it was rung once more than `seen`.
    fn wait(&self, seen: u64) {
        let mut rung = self.lock();
        while *rung == seen {
            rung = self.changed.wait(rung).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

struct Shared {
    log: Log,
    /// Records put so far, how many of them the fence under way covers, and how many are durable.
    put: u64,
    covered: u64,
    durable: u64,
    fence: FenceId,
    /// Somebody is about to start the next fence.
    gathering: bool,
}

/// A store on a disk that all threads share. Whoever waits and finds that no fence is under way starts one for all that was
/// put. Before that it can let those come back who were let go by the last one, for a short while: otherwise part of the threads
/// waits for the fence of the others.
pub(super) struct SharedStore {
    shared: Mutex<Shared>,
    bell: Arc<Bell>,
    threads: u64,
    gather: Duration,
}

impl SharedStore {
    /// One that waits this long for all threads before a fence.
    pub(super) fn new(folder: &Path, cell: Cell, gather: Duration) -> Outcome<Self> {
        let mut log = open_log(folder, HELD_BYTES)?;
        let bell = Arc::new(Bell::default());
        let ringing = Arc::clone(&bell);
        log.store.on_fenced(Box::new(move || ringing.ring()));
        let shared = Shared { log, put: 0, covered: 0, durable: 0, fence: FenceId(0), gathering: false };
        Ok(Self { shared: Mutex::new(shared), bell, threads: cell.threads as u64, gather })
    }

    /// Lets others put their records, until all threads did or it was long enough.
    fn gather<'a>(&'a self, mut shared: MutexGuard<'a, Shared>) -> MutexGuard<'a, Shared> {
        shared.gathering = true;
        let began = Instant::now();
        while shared.put - shared.durable < self.threads && began.elapsed() < self.gather {
            drop(shared);
            std::thread::yield_now();
            shared = self.lock();
        }
        shared.gathering = false;
        shared
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One thread's records in a store that it shares.
pub(super) struct SharedClient<'a> {
    store: &'a SharedStore,
    stream: Stream,
}

impl<'a> SharedClient<'a> {
    pub(super) fn new(store: &'a SharedStore, nth: usize, cell: Cell) -> Outcome<Self> {
        let mut stream = Stream::new(nth, cell);
        stream.put_before(&mut store.lock().log, cell)?;
        Ok(Self { store, stream })
    }
}

impl Client for SharedClient<'_> {
    fn append(&mut self) -> Outcome<()> {
        let mut mine = None;
        loop {
            let seen = *self.store.bell.lock();
            let mut shared = self.store.lock();
            let mine = match mine {
                Some(mine) => mine,
                None => {
                    self.stream.put(&mut shared.log)?;
                    shared.put += 1;
                    *mine.insert(shared.put)
                }
            };
            if shared.log.store.fenced()? >= shared.fence {
                shared.durable = shared.covered;
            }
            if shared.durable >= mine {
                return Ok(());
            }
            // Who put a record and was not covered by the last fence is here or about to be: the bell woke it.
            if shared.durable == shared.covered && !shared.gathering {
                shared = self.store.gather(shared);
                shared.covered = shared.put;
                shared.fence = shared.log.store.fence()?;
            }
            drop(shared);
            self.store.bell.wait(seen);
        }
    }

    fn read(&mut self, drawn: u64, compare: bool) -> Outcome<()> {
        self.stream.read(&self.store.lock().log, drawn, compare)
    }
}
