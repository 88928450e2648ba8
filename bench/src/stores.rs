//! Stores as the benchmarks use them: records of random bytes, staged and numbered as a replica does it.
//!
//! Which bytes a record has follows from its number, so that every one can be checked when it is read back.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flexlog_protocol::media::LogStore;
use flexlog_protocol::{
    Append, Assign, Body, ClusterId, Color, Entry, Epoch, Lsn, Record, ReplicaId, SeqNum, SessionId, ShardId, StoreId,
    Time, Token,
};
use flexlog_storage_pm::device::{AnyDevice, DeviceKind, SplitMix, device_for};
use flexlog_storage_pm::ssd::DirFolder;
use flexlog_storage_pm::{Closed, Options, Owner, Store};
use uuid::Uuid;

use crate::Outcome;

/// Bytes of a segment, the default of a replica.
pub(crate) const SEGMENT: u64 = flexlog_protocol::limits::SEGMENT_BYTES;
/// Bytes of the log that a record and its number take at most, besides the payload.
pub(crate) const AROUND_A_RECORD: u64 = 256;
/// Payloads are cut from this many random bytes.
const POOL: usize = 1 << 20;

static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut draw = SplitMix(1);
    (0..POOL / 8).flat_map(|_| draw.draw().to_le_bytes()).collect()
});

/// The bytes of a record.
#[inline]
pub(crate) fn payload(pool: &'static [u8], record: u64, size: usize) -> &'static [u8] {
    let at = (record as usize).wrapping_mul(4099) % (POOL - size);
    &pool[at..at + size]
}

/// What payloads are cut from; taken once, outside what is timed.
pub(crate) fn pool() -> &'static [u8] {
    &BYTES
}

/// The append that a record came with: the n-th record of a color, counted from 0.
#[inline]
pub(crate) fn token(color: Color, record: u64) -> Token {
    Token { shard: ShardId(0), session: SessionId { epoch: Epoch(1), lsn: Lsn(color.0) }, seq: record + 1 }
}

/// Its number.
#[inline]
pub(crate) fn number(record: u64) -> SeqNum {
    SeqNum::new(Epoch(1), record as u32)
}

/// A folder in memory: the one that was asked for, or where the system has one.
pub(crate) fn memory_folder(asked: Option<&Path>) -> Outcome<PathBuf> {
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

/// A store that nobody else knows of, in the steps that opening it takes.
pub(crate) fn closed(folder: &Path, options: Options) -> Outcome<Closed<AnyDevice>> {
    let owner = Owner { cluster: ClusterId(Uuid::from_u128(1)), replica: ReplicaId(1) };
    Ok(Closed::open_folder(folder, None, owner, StoreId(Uuid::from_u128(2)), options)?)
}

/// Opens a store; a fresh one if there is none.
pub(crate) fn open(folder: &Path, options: Options) -> Outcome<Store<AnyDevice>> {
    Ok(closed(folder, options)?.open_alone(Uuid::from_u128(3))?.0)
}

/// Opens a store whose older records move to SSD files in `ssd`.
pub(crate) fn open_tiered(folder: &Path, ssd: &Path, options: Options) -> Outcome<Store<AnyDevice>> {
    let closed = closed(folder, options)?.with_ssd(Arc::new(DirFolder::new(ssd)));
    Ok(closed.open_alone(Uuid::from_u128(3))?.0)
}

/// A store, and what its next entry needs.
pub(crate) struct Log {
    pub(crate) store: Store<AnyDevice>,
    entry: Entry,
    began: Instant,
}

impl Log {
    /// Of a store that holds no entry yet.
    pub(crate) fn new(store: Store<AnyDevice>) -> Self {
        let body = Body::Assign(Vec::with_capacity(1));
        Self { store, entry: Entry { lsn: Lsn(0), epoch: Epoch(1), body }, began: Instant::now() }
    }

    /// Of a store whose last entry was `entry`.
    pub(crate) fn reopened(store: Store<AnyDevice>, entry: Entry) -> Self {
        Self { store, entry, began: Instant::now() }
    }

    /// Closes the store; gives its last entry.
    pub(crate) fn close(self) -> Entry {
        self.entry
    }

    /// Gives the records of one append their numbers.
    pub(crate) fn assign_batch(&mut self, token: Token, color: Color, first: u64, records: u32) -> Outcome<()> {
        self.entry.lsn = self.entry.lsn.next();
        if let Body::Assign(list) = &mut self.entry.body {
            list.clear();
            list.push(Assign::one(token, color, number(first), records));
        }
        Ok(self.store.append(&self.entry)?)
    }

    /// Stages a record.
    #[inline]
    pub(crate) fn stage(&mut self, color: Color, record: u64, payload: Bytes) -> Outcome<()> {
        let append = Append::new(token(color, record), color, None, vec![Record::new(payload)?])?;
        Ok(self.store.stage(&append)?)
    }

    /// Gives `count` staged records their numbers, with one entry.
    #[inline]
    pub(crate) fn assign(&mut self, color: Color, first: u64, count: u32) -> Outcome<()> {
        self.entry.lsn = self.entry.lsn.next();
        if let Body::Assign(list) = &mut self.entry.body {
            list.clear();
            list.push(Assign { tokens: count, ..Assign::one(token(color, first), color, number(first), 1) });
        }
        Ok(self.store.append(&self.entry)?)
    }

    /// Writes a checkpoint when a replica would.
    pub(crate) fn checkpoint_if_wanted(&mut self) -> Outcome<()> {
        if self.store.checkpoint_wanted() {
            self.store.checkpoint(self.entry.lsn, b"the state of a replica")?;
        }
        Ok(())
    }

    /// Does what the store has to do in the background, here and now.
    pub(crate) fn work(&mut self) -> Outcome<()> {
        let now = Time(self.began.elapsed().as_micros() as u64);
        while let Some(work) = self.store.background(now, self.entry.lsn)? {
            work();
        }
        Ok(())
    }

    /// Fences, and waits until that is done.
    pub(crate) fn fence(&mut self) -> Outcome<()> {
        let fence = self.store.fence()?;
        Ok(self.store.wait(fence)?)
    }
}

/// Has all workers do this at the same time; returns what each said.
pub(crate) fn together<W: Send, T: Send>(
    workers: &mut [W],
    work: impl Fn(&mut W) -> Outcome<T> + Sync,
) -> Outcome<Vec<T>> {
    let start = Barrier::new(workers.len());
    let results: Vec<Result<T, String>> = std::thread::scope(|scope| {
        let (start, work) = (&start, &work);
        let threads: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                scope.spawn(move || {
                    start.wait();
                    work(worker).map_err(|error| error.to_string())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
            .collect()
    });
    results.into_iter().map(|result| result.map_err(Into::into)).collect()
}

/// The longest of some times.
pub(crate) fn longest(times: &[Duration]) -> Duration {
    times.iter().copied().max().unwrap_or_default()
}
