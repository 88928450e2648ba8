//! The store's thread: takes what waits, writes it, makes it durable once for all, then shows and answers it.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::folder::Folder;
use super::journal::{AppendError, Journal, push_transaction};
use super::{GONE, HISTORY, Shared};
use crate::key::Key;
use crate::metadata::{CommitError, Revision};
use crate::transaction::Transaction;

/// The most transactions that are made durable at once.
const MAX_BATCH: usize = 256;
/// A journal shorter than this is not worth a new one.
const MIN_COMPACTION_BYTES: u64 = 64 << 10;

type Answer = Result<Revision, CommitError>;
type Accepted = (Transaction, oneshot::Sender<Answer>);
type Refused = (oneshot::Sender<Answer>, CommitError);

/// A transaction that somebody waits for.
pub(super) struct Job {
    pub(super) transaction: Transaction,
    pub(super) answer: oneshot::Sender<Answer>,
}

pub(super) struct Worker {
    folder: Folder,
    pub(super) journal: Journal,
    shared: Arc<Shared>,
    /// The journal is replaced when it is longer than this.
    compact_above: u64,
}

impl Worker {
    pub(super) fn new(folder: Folder, journal: Journal, shared: Arc<Shared>) -> Self {
        let compact_above = compaction_bound(shared.read().state.live_bytes());
        Self { folder, journal, shared, compact_above }
    }

    #[cfg(test)]
    pub(super) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(super) fn run(mut self, mut waiting: mpsc::Receiver<Job>) {
        let mut batch = Vec::with_capacity(MAX_BATCH);
        while waiting.blocking_recv_many(&mut batch, MAX_BATCH) > 0 {
            self.commit(std::mem::take(&mut batch));
            self.compact();
        }
    }

    /// Writes, makes durable, shows and answers these transactions, each as if it came alone and in this order.
    pub(super) fn commit(&mut self, batch: Vec<Job>) {
        if let Some(why) = self.shared.read().stopped.clone() {
            for job in batch {
                let _ = job.answer.send(Err(CommitError::Unavailable { what: self.shared.what(), why: why.clone() }));
            }
            return;
        }
        let (lines, accepted, refused) = self.judge(batch);
        let outcome = if lines.is_empty() { Ok(()) } else { self.journal.append(&lines) };
        match outcome {
            Ok(()) => self.show(accepted),
            Err(AppendError::Undone(error)) => {
                let why = format!("{error}. Make room on its disk, or repair it, and try again");
                for (_, answer) in accepted {
                    let _ = answer.send(Err(CommitError::Refused { what: self.shared.what(), why: why.clone() }));
                }
            }
            Err(AppendError::InDoubt(error)) => {
                let why = format!("its disk failed: {error}. Check the disk, then restart the process");
                self.shared.stop(&why);
                for (_, answer) in accepted {
                    let _ = answer.send(Err(CommitError::Unknown { what: self.shared.what(), why: why.clone() }));
                }
            }
        }
        // After the others were shown: whoever reads after such an answer sees what it ran into.
        for (answer, error) in refused {
            let _ = answer.send(Err(error));
        }
    }

    /// Looks at the conditions, each as if what was accepted before it had been done, and writes the accepted down.
    fn judge(&self, batch: Vec<Job>) -> (Vec<u8>, Vec<Accepted>, Vec<Refused>) {
        let (mut lines, mut accepted, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        let inner = self.shared.read();
        let mut revision = inner.state.revision();
        // What the accepted ones change, on top of the state.
        let mut changed: HashMap<Key, Option<Revision>> = HashMap::new();
        for Job { transaction, answer } in batch {
            let version = |key: &Key| changed.get(key).copied().unwrap_or_else(|| inner.state.version(key));
            if let Some((key, _)) = transaction.conditions.iter().find(|(key, wanted)| version(key) != *wanted) {
                refused.push((answer, CommitError::Conflict { key: key.clone() }));
                continue;
            }
            let before = lines.len();
            if let Err(e) = push_transaction(&mut lines, revision.next(), self.journal.size(), &transaction) {
                lines.truncate(before);
                refused.push((answer, CommitError::Refused { what: self.shared.what(), why: e.to_string() }));
                continue;
            }
            revision = revision.next();
            changed.extend(transaction.puts.iter().map(|(key, _)| (key.clone(), Some(revision))));
            changed.extend(transaction.deletes.iter().map(|key| (key.clone(), None)));
            accepted.push((transaction, answer));
        }
        (lines, accepted, refused)
    }

    /// Makes the changes visible, all of them durable, then answers.
    fn show(&self, accepted: Vec<Accepted>) {
        let mut answers = Vec::with_capacity(accepted.len());
        let mut inner = self.shared.write();
        for (transaction, answer) in accepted {
            let changes = inner.state.apply(transaction);
            answers.push((answer, changes.revision));
            if inner.history.len() == HISTORY {
                inner.history.pop_front();
            }
            inner.history.push_back(Arc::new(changes));
        }
        drop(inner);
        self.shared.news.send_replace(());
        for (answer, revision) in answers {
            // Nobody waits any more where the caller was dropped.
            let _ = answer.send(Ok(revision));
        }
    }

    /// Replaces the journal where it is more than twice as long as it need be.
    fn compact(&mut self) {
        if self.journal.size() <= self.compact_above {
            return;
        }
        let inner = self.shared.read();
        let live = inner.state.live_bytes();
        if inner.stopped.is_some() || self.journal.size() <= compaction_bound(live) {
            self.compact_above = compaction_bound(live);
            return;
        }
        // Other readers go on meanwhile: no one but this thread writes.
        let next = self.folder.write_next(&inner.state);
        drop(inner);
        match next {
            Ok(journal) => match self.folder.install() {
                Ok(()) => {
                    self.compact_above = compaction_bound(live);
                    self.journal = journal;
                }
                // The old journal may be back after a crash, without what would go to the new one.
                Err(error) => self.shared.stop(&format!(
                    "its new journal could not be put in place: {error}. Check the disk, then restart the process"
                )),
            },
            // The old journal stays good. Such as a full disk: tried again when it has grown some more.
            Err(_) => self.compact_above = self.journal.size() + self.journal.size() / 4,
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // However it ended: watchers must not wait for what never comes.
        self.shared.stop(GONE);
    }
}

fn compaction_bound(live_bytes: u64) -> u64 {
    (2 * live_bytes).max(MIN_COMPACTION_BYTES)
}
