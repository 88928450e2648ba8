//! The `file` device: an area on any disk.
//!
//! `write` only copies into a queue; `fence` hands the queue to the device's one worker, which writes it out in the order
//! of the writes, neighbours as one, and ends with one fdatasync. The caller never waits for the disk. Reads look at what
//! is queued and at what the worker has in hand before they believe the file.
//!
//! An error of the worker is final: after a failed fdatasync nobody knows what the disk holds.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use flexlog_protocol::media::{AreaReader, Device, FenceId};
use rustix::fs::{FallocateFlags, fallocate};

/// Writes in order; a run is one contiguous range, its bytes in `bytes`.
#[derive(Debug, Default)]
struct Batch {
    runs: Vec<Run>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    at: u64,
    start: usize,
    len: usize,
}

/// The worker keeps this much allocated beyond what the device has, so that growing does not wait for the disk.
const AHEAD: u64 = 32 << 20;
/// A queue that took more than this is not kept for the next batch.
const KEPT_BYTES: usize = 16 << 20;

impl Batch {
    fn push(&mut self, at: u64, parts: &[&[u8]]) {
        // The log pads its writes to whole lines and goes on within the padding, so a write may begin in the last run.
        let goes_on = self.runs.last().is_some_and(|run| run.at <= at && at <= run.at + run.len as u64);
        if !goes_on {
            self.runs.push(Run { at, start: self.bytes.len(), len: 0 });
        }
        let Some(run) = self.runs.last_mut() else { return };
        let mut offset = run.start + (at - run.at) as usize;
        for part in parts {
            let over = part.len().min(self.bytes.len() - offset);
            self.bytes[offset..offset + over].copy_from_slice(&part[..over]);
            self.bytes.extend_from_slice(&part[over..]);
            offset += part.len();
        }
        run.len = self.bytes.len() - run.start;
    }

    /// Puts what this batch has of the range into it.
    fn overlay(&self, at: u64, into: &mut [u8]) {
        let end = at + into.len() as u64;
        for run in &self.runs {
            let (from, to) = (run.at.max(at), (run.at + run.len as u64).min(end));
            if from < to {
                let start = run.start + (from - run.at) as usize;
                let bytes = &self.bytes[start..start + (to - from) as usize];
                into[(from - at) as usize..(to - at) as usize].copy_from_slice(bytes);
            }
        }
    }

    fn recycle(&mut self) {
        if self.bytes.capacity() > KEPT_BYTES {
            *self = Self::default();
        }
        self.runs.clear();
        self.bytes.clear();
    }
}

type Wake = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Desk {
    job: Option<(u64, Arc<Batch>)>,
    stop: bool,
    error: Option<(io::ErrorKind, String)>,
    wake: Option<Wake>,
}

#[derive(Default)]
struct Shared {
    desk: Mutex<Desk>,
    /// A job or the end is there, for the worker; or a job is done, for who waits.
    changed: Condvar,
    done: AtomicU64,
    failed: AtomicBool,
    /// The device's length, and the bytes of the file that are allocated.
    len: AtomicU64,
    allocated: AtomicU64,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        // Nobody panics with the desk in hand.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> io::Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let desk = self.desk();
        let (kind, what) = desk.error.clone().unwrap_or((io::ErrorKind::Other, "the device failed".to_owned()));
        Err(io::Error::new(kind, what))
    }
}

/// See the module.
pub struct FileDevice {
    path: PathBuf,
    file: Arc<File>,
    len: u64,
    queue: Batch,
    in_hand: Option<Arc<Batch>>,
    spare: Batch,
    started: u64,
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileDevice").field("path", &self.path).field("len", &self.len).finish_non_exhaustive()
    }
}

impl FileDevice {
    /// Opens or creates the area at `path`, which is to grow to `limit` bytes, and starts the worker.
    ///
    /// # Errors
    /// Those of the file system, and of starting a thread.
    pub fn open(path: &Path, limit: u64) -> io::Result<Self> {
        let file = Arc::new(OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?);
        let len = file.metadata()?.len();
        if len > 0 {
            // A copy of the file may have holes, and no room to fill them.
            fallocate(&*file, FallocateFlags::empty(), 0, len)?;
        }
        let shared = Arc::new(Shared { len: len.into(), allocated: len.into(), ..Shared::default() });
        let worker = {
            let (file, shared, path) = (Arc::clone(&file), Arc::clone(&shared), path.to_owned());
            std::thread::Builder::new()
                .name("flexlog-disk".to_owned())
                .spawn(move || work(&file, &shared, &path, limit))?
        };
        Ok(Self {
            path: path.to_owned(),
            file,
            len,
            queue: Batch::default(),
            in_hand: None,
            spare: Batch::default(),
            started: 0,
            shared,
            worker: Some(worker),
        })
    }

    fn check(&self, at: u64, len: usize) -> io::Result<()> {
        if at.checked_add(len as u64).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        let what = format!("{len} bytes at {at} are beyond the {} of {}", self.len, self.path.display());
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, what))
    }

    fn put_away(&mut self) {
        if let Some(mut batch) = self.in_hand.take().and_then(Arc::into_inner) {
            batch.recycle();
            self.spare = batch;
        }
    }
}

impl Device for FileDevice {
    fn describe(&self) -> String {
        "file on a disk (fdatasync)".to_owned()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn grow(&mut self, len: u64) -> io::Result<()> {
        if len > self.len {
            let allocated = self.shared.allocated.load(Ordering::Acquire);
            if len > allocated {
                fallocate(&*self.file, FallocateFlags::empty(), self.len, len - self.len)?;
                self.shared.allocated.fetch_max(len, Ordering::AcqRel);
            }
            self.len = len;
            self.shared.len.store(len, Ordering::Release);
        }
        Ok(())
    }

    fn write(&mut self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.check(at, parts.iter().map(|part| part.len()).sum())?;
        self.queue.push(at, parts);
        Ok(())
    }

    fn fence(&mut self) -> io::Result<FenceId> {
        self.shared.check()?;
        if self.shared.done.load(Ordering::Acquire) < self.started {
            // A caller that keeps to the contract never gets here.
            self.wait(FenceId(self.started))?;
        }
        self.put_away();
        let batch = Arc::new(std::mem::replace(&mut self.queue, std::mem::take(&mut self.spare)));
        self.started += 1;
        self.in_hand = Some(Arc::clone(&batch));
        self.shared.desk().job = Some((self.started, batch));
        self.shared.changed.notify_all();
        Ok(FenceId(self.started))
    }

    fn fenced(&mut self) -> io::Result<FenceId> {
        self.shared.check()?;
        let done = self.shared.done.load(Ordering::Acquire);
        if done == self.started {
            self.put_away();
        }
        Ok(FenceId(done))
    }

    fn wait(&mut self, fence: FenceId) -> io::Result<()> {
        let mut desk = self.shared.desk();
        while self.shared.done.load(Ordering::Acquire) < fence.0.min(self.started)
            && !self.shared.failed.load(Ordering::Acquire)
        {
            desk = self.shared.changed.wait(desk).unwrap_or_else(PoisonError::into_inner);
        }
        drop(desk);
        self.shared.check()
    }

    fn on_fenced(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        self.shared.desk().wake = Some(wake.into());
    }

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.check(at, into.len())?;
        self.file.read_exact_at(into, at)?;
        if let Some(batch) = &self.in_hand {
            batch.overlay(at, into);
        }
        self.queue.overlay(at, into);
        Ok(())
    }

    fn slice(&self, _at: u64, _len: usize) -> Option<&[u8]> {
        None
    }

    fn reader(&self) -> io::Result<Arc<dyn AreaReader>> {
        Ok(Arc::new(super::FileReader(Arc::clone(&self.file))))
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        self.shared.desk().stop = true;
        self.shared.changed.notify_all();
        if let Some(worker) = self.worker.take() {
            // It ends after the job it has in hand; it does not panic.
            let _ = worker.join();
        }
    }
}

fn work(file: &File, shared: &Shared, path: &Path, limit: u64) {
    loop {
        let (fence, batch) = {
            let mut desk = shared.desk();
            loop {
                if let Some(job) = desk.job.take() {
                    break job;
                }
                if desk.stop {
                    return;
                }
                desk = shared.changed.wait(desk).unwrap_or_else(PoisonError::into_inner);
            }
        };
        let result = write_out(file, &batch);
        // The batch goes back before the fence is told, so that its memory can be used again.
        drop(batch);
        let wake = {
            let mut desk = shared.desk();
            match &result {
                Ok(()) => shared.done.store(fence, Ordering::Release),
                Err(error) => {
                    desk.error = Some((error.kind(), format!("{}: {error}", path.display())));
                    shared.failed.store(true, Ordering::Release);
                }
            }
            desk.wake.clone()
        };
        shared.changed.notify_all();
        if let Some(wake) = wake {
            wake();
        }
        if result.is_err() {
            return;
        }
        allocate_ahead(file, shared, limit);
    }
}

fn allocate_ahead(file: &File, shared: &Shared, limit: u64) {
    let len = shared.len.load(Ordering::Acquire);
    let allocated = shared.allocated.load(Ordering::Acquire);
    let wanted = (len + AHEAD).min(limit);
    if allocated < wanted && allocated < len + AHEAD / 2 {
        // Where that fails, growing says so.
        if fallocate(file, FallocateFlags::empty(), allocated, wanted - allocated).is_ok() {
            shared.allocated.fetch_max(wanted, Ordering::AcqRel);
        }
    }
}

fn write_out(file: &File, batch: &Batch) -> io::Result<()> {
    for run in &batch.runs {
        file.write_all_at(&batch.bytes[run.start..run.start + run.len], run.at)?;
    }
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_write_and_padding_is_written_over() {
        let mut batch = Batch::default();
        batch.push(64, &[b"abc", b"de\0\0\0"]);
        batch.push(69, &[b"f", b"ghij"]);
        batch.push(66, &[b"C"]);
        batch.push(0, &[b"xy"]);
        batch.push(64, &[b"A"]);
        let runs: Vec<_> =
            batch.runs.iter().map(|run| (run.at, &batch.bytes[run.start..run.start + run.len])).collect();
        assert_eq!(runs, [(64, &b"abCdefghij"[..]), (0, b"xy"), (64, b"A")]);
        let mut seen = *b"................";
        batch.overlay(60, &mut seen);
        assert_eq!(&seen, b"....AbCdefghij..");
    }
}
