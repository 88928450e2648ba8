//! The metadata store of one process: a folder with a journal in it.
//!
//! Everything is in memory as well, so reads never touch the disk. A thread of the store's own writes: it takes what
//! waits, up to a bound, writes one line a transaction, makes all of them durable with one `fdatasync`, and only then
//! shows and answers them. A failed `fdatasync` is final: what the disk holds is not known from then on, so the store
//! stops answering, reads included, until it is opened again.
//!
//! The folder belongs to one process at a time (an exclusive lock on the file `lock`) and must be on a local disk.
//! Dropping the store writes what waits, then lets go of the folder.

mod error;
mod folder;
mod journal;
mod state;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};

pub use error::OpenError;

use crate::key::{Key, Kind};
use crate::metadata::{Changes, CommitError, Event, MAX_PAGE, Metadata, Page, ReadError, Revision, Versioned, Watch};
use crate::transaction::Transaction;
use folder::Folder;
use state::State;
use worker::{Job, Worker};

/// The most transactions that wait for the store's thread; more callers wait for a place.
const MAX_WAITING: usize = 1024;
/// How many of the last transactions are kept for watchers.
const HISTORY: usize = 1024;
/// The most watchers at once.
const MAX_WATCHERS: usize = 1024;

/// Why a store without its thread does nothing.
const GONE: &str = "it was closed, or its thread failed: open it again";

/// The metadata of a cluster that lives in one process. See the module.
#[derive(Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
    /// `None` only while it is being dropped.
    jobs: Option<mpsc::Sender<Job>>,
    worker: Option<JoinHandle<()>>,
    dropped_bytes: u64,
}

/// What the store's thread writes and everyone reads.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// Written by the store's thread alone.
    inner: RwLock<Inner>,
    /// Told after each change of `inner` that a watcher could wait for.
    news: watch::Sender<()>,
}

#[derive(Debug)]
struct Inner {
    state: State,
    /// The newest transactions, in order, the last of them at the state's revision.
    history: VecDeque<Arc<Changes>>,
    /// Why nothing is answered any more.
    stopped: Option<String>,
}

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        // Nothing panics between two changes that belong together.
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn what(&self) -> String {
        format!("the metadata in {}", self.path.display())
    }

    /// The state, unless the store has stopped.
    fn readable(&self) -> Result<RwLockReadGuard<'_, Inner>, ReadError> {
        let inner = self.read();
        match &inner.stopped {
            Some(why) => Err(ReadError::Unavailable { what: self.what(), why: why.clone() }),
            None => Ok(inner),
        }
    }

    /// Stops answering, for good. The first reason stays.
    fn stop(&self, why: &str) {
        self.write().stopped.get_or_insert_with(|| why.to_owned());
        self.news.send_replace(());
    }
}

impl Embedded {
    /// Opens the store in `folder`, and creates both where they are not there.
    ///
    /// Blocks on the disk: for when a process starts. What a crash left half written is dropped, see
    /// [`Embedded::dropped_bytes`].
    ///
    /// # Errors
    /// Any [`OpenError`]. The journal is then as it was.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, OpenError> {
        let folder = Folder::lock(folder.as_ref())?;
        let (journal, state, dropped_bytes) = folder.open_journal()?;
        let shared = Arc::new(Shared {
            path: folder.path().to_owned(),
            inner: RwLock::new(Inner { state, history: VecDeque::new(), stopped: None }),
            news: watch::Sender::new(()),
        });
        let (jobs, waiting) = mpsc::channel(MAX_WAITING);
        let worker = Worker::new(folder, journal, Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("metadata".to_owned())
            .spawn(move || worker.run(waiting))
            .map_err(|source| OpenError::io("start the thread for", &shared.path, source))?;
        Ok(Self { shared, jobs: Some(jobs), worker: Some(thread), dropped_bytes })
    }

    /// How many bytes of transactions were dropped when this was opened, because a crash had left them half written.
    /// Nobody was told that they were done.
    #[must_use]
    pub fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // Without senders the thread writes what waits, and ends.
        self.jobs = None;
        if let Some(worker) = self.worker.take() {
            // A panic there has nothing left to stop here.
            let _ = worker.join();
        }
    }
}

#[async_trait]
impl Metadata for Embedded {
    fn describe(&self) -> String {
        self.shared.what()
    }

    async fn get(&self, key: &Key) -> Result<Option<Versioned>, ReadError> {
        Ok(self.shared.readable()?.state.get(key))
    }

    async fn list(&self, kind: Kind, after: Option<&Key>, limit: usize) -> Result<Page, ReadError> {
        Ok(self.shared.readable()?.state.list(kind, after, limit.min(MAX_PAGE)))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision, CommitError> {
        transaction.check()?;
        let unavailable = || CommitError::Unavailable { what: self.shared.what(), why: GONE.to_owned() };
        let jobs = self.jobs.as_ref().ok_or_else(unavailable)?;
        let (answer, answered) = oneshot::channel();
        jobs.send(Job { transaction, answer }).await.map_err(|_| unavailable())?;
        let unknown = |_| CommitError::Unknown { what: self.shared.what(), why: GONE.to_owned() };
        answered.await.map_err(unknown)?
    }

    async fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, ReadError> {
        drop(self.shared.readable()?);
        if self.shared.news.receiver_count() >= MAX_WATCHERS {
            return Err(ReadError::TooManyWatchers { what: self.shared.what(), limit: MAX_WATCHERS });
        }
        Ok(Box::new(Watcher { shared: Arc::clone(&self.shared), news: self.shared.news.subscribe(), seen: after }))
    }
}

/// A place in the history. It holds nothing of the history itself, so a slow one costs nothing.
struct Watcher {
    shared: Arc<Shared>,
    news: watch::Receiver<()>,
    /// The revision told last.
    seen: Revision,
}

impl Watcher {
    /// The next event, if it is there.
    fn look(&mut self) -> Result<Option<Event>, ReadError> {
        let inner = self.shared.readable()?;
        let newest = inner.state.revision();
        if self.seen == newest {
            return Ok(None);
        }
        // Revisions in the history are contiguous and end at the newest.
        let behind = newest.0.checked_sub(self.seen.0).and_then(|n| usize::try_from(n).ok());
        let place = behind.and_then(|behind| inner.history.len().checked_sub(behind));
        let event = match place.and_then(|place| inner.history.get(place)) {
            Some(changes) => Event::Changes(Arc::clone(changes)),
            None => Event::Lagged { revision: newest },
        };
        self.seen = match &event {
            Event::Changes(changes) => changes.revision,
            Event::Lagged { revision } => *revision,
        };
        Ok(Some(event))
    }
}

#[async_trait]
impl Watch for Watcher {
    async fn next(&mut self) -> Result<Event, ReadError> {
        loop {
            // Marked before looking, so that what comes after the look wakes this again.
            self.news.mark_unchanged();
            if let Some(event) = self.look()? {
                return Ok(event);
            }
            // The sender lives in what this holds; it cannot be gone.
            let _ = self.news.changed().await;
        }
    }
}
