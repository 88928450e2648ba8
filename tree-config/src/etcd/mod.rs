//! The metadata in an etcd cluster, under a prefix of its keys.
//!
//! A fact is one key with the same JSON that the embedded store writes; see `keys` for the names. Beside the facts
//! there is one key, the *gate*: it holds the version of the records ([`crate::record::FORMAT_VERSION`]), and every read
//! and every transaction looks at it, so a program of another version never misreads anything. A transaction also has
//! the condition that the gate was not written since this store saw it last. That is how a doubt ends: etcd may still
//! do a transaction whose answer was lost, long after the caller gave up. Before this store answers the next read it
//! writes the gate once more; whatever is still under way from before cannot be done any more, and what was done is
//! seen. Other stores of the same prefix notice that the gate moved, and send their transaction again.
//!
//! A version is etcd's mod_revision. Revisions have gaps, as other prefixes and the gate have their share of them.
//!
//! It relies on a tokio runtime with its I/O and time drivers. Every request has a time limit, and every call a patience
//! within which it tries again, at another endpoint where there are several. TLS to etcd is not supported yet.

mod keys;
mod rpc;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp, TxnOpResponse};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use crate::key::{Key, Kind, Value};
use crate::metadata::{CommitError, MAX_PAGE, Metadata, Page, ReadError, Revision, Versioned, Watch};
use crate::record::FORMAT_VERSION;
use crate::transaction::{MAX_OPERATIONS, Transaction};
use keys::Keys;
use rpc::{Fault, Rpc};
use watch::Watcher;

/// The most watchers at once.
const MAX_WATCHERS: usize = 1024;
// The condition on the gate is one more than the caller's; etcd takes 128 unless it is told otherwise.
const _: () = assert!(MAX_OPERATIONS < 128);

/// How to reach the metadata.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where etcd listens for clients: `http://host:port` each.
    pub endpoints: Vec<String>,
    /// What the names of all keys begin with, such as `flexlog/demo`. Clusters of different prefixes share an etcd.
    pub prefix: String,
    /// How long one request may take.
    pub timeout: Duration,
    /// How long a call tries until it gives up.
    pub patience: Duration,
}

impl Options {
    /// These endpoints and this prefix, 2 s for a request and 5 s for a call.
    #[must_use]
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>, prefix: impl Into<String>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            prefix: prefix.into(),
            timeout: Duration::from_secs(2),
            patience: Duration::from_secs(5),
        }
    }
}

/// The metadata cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// The options cannot be right.
    #[error("{what} cannot be opened: {why}")]
    Options {
        /// The metadata.
        what: String,
        /// Which option, and what to write instead.
        why: String,
    },
    /// It cannot be read, or has another format.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The metadata of a cluster that is kept in etcd. See the module.
pub struct Etcd {
    shared: Arc<Shared>,
}

struct Shared {
    rpc: Rpc,
    keys: Keys,
    what: String,
    /// The mod_revision of the gate, as seen last.
    gate: AtomicI64,
    /// How many commits were in doubt so far, and how many of these doubts are over.
    doubts: AtomicU64,
    settled: Mutex<u64>,
    watchers: Arc<Semaphore>,
}

impl Etcd {
    /// Opens the metadata under the prefix, and marks it as of this format where there is none yet.
    ///
    /// # Errors
    /// Any [`OpenError`].
    pub async fn open(options: Options) -> Result<Self, OpenError> {
        let what = format!("the metadata in etcd at {} under '{}'", options.endpoints.join(", "), options.prefix);
        let wrong = |why: String| OpenError::Options { what: what.clone(), why };
        let keys = Keys::new(&options.prefix).map_err(wrong)?;
        let rpc = Rpc::new(&options).await.map_err(wrong)?;
        let shared = Arc::new(Shared {
            rpc,
            keys,
            what,
            gate: AtomicI64::new(0),
            doubts: AtomicU64::new(0),
            settled: Mutex::new(0),
            watchers: Arc::new(Semaphore::new(MAX_WATCHERS)),
        });
        shared.begin().await?;
        Ok(Self { shared })
    }
}

/// What was read at one revision, the gate looked at.
struct Reading {
    entries: Vec<(Key, Versioned)>,
    revision: Revision,
}

/// A commit whose outcome is not known unless this is told otherwise: an error on the way, or a caller that stopped
/// waiting, leave it so.
struct Doubt<'a> {
    shared: &'a Shared,
    is_over: bool,
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.doubts.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn revision(header: Option<&etcd_client::ResponseHeader>) -> i64 {
    header.map_or(0, etcd_client::ResponseHeader::revision)
}

fn to_revision(raw: i64) -> Revision {
    // etcd counts from 1 up; never below 0.
    Revision(u64::try_from(raw).unwrap_or(0))
}

impl Shared {
    fn unavailable(&self, why: impl Into<String>) -> ReadError {
        ReadError::Unavailable { what: self.what.clone(), why: why.into() }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.rpc.patience
    }

    fn format() -> String {
        FORMAT_VERSION.to_string()
    }

    /// Puts the gate up where there is none, and looks at it.
    async fn begin(&self) -> Result<(), ReadError> {
        let gate = self.keys.gate();
        let txn = Txn::new().when([Compare::mod_revision(gate.clone(), CompareOp::Equal, 0)]).and_then([TxnOp::put(
            gate,
            Self::format(),
            None,
        )]);
        // May be done twice: the second time there is a gate.
        let again = |fault: &Fault| fault.may_go_well_later();
        self.rpc.txn(txn, self.deadline(), again).await.map_err(|fault| self.unavailable(fault.to_string()))?;
        self.read(Vec::new()).await?;
        Ok(())
    }

    /// Looks at the gate as it was read.
    fn check_gate(&self, kvs: &[etcd_client::KeyValue]) -> Result<(), ReadError> {
        let Some(kv) = kvs.first() else {
            return Err(self.unavailable(
                "its format mark is gone: was it deleted, or is etcd another one than before? Put a backup back, or start anew",
            ));
        };
        if kv.value() != Self::format().as_bytes() {
            let found = String::from_utf8_lossy(kv.value()).into_owned();
            return Err(self.unavailable(format!(
                "its records have format {found}, and this program knows {FORMAT_VERSION} only: use the one that wrote them"
            )));
        }
        // Whatever was seen last will do: a transaction that has an old one is told the new one.
        self.gate.store(kv.mod_revision(), Ordering::SeqCst);
        Ok(())
    }

    /// Makes an end of the doubts there are.
    async fn settle(&self, deadline: Instant) -> Result<(), ReadError> {
        let late = || self.unavailable("a change before this is in doubt, and etcd does not answer: check etcd");
        let doubts = self.doubts.load(Ordering::SeqCst);
        let mut settled = tokio::time::timeout_at(deadline, self.settled.lock()).await.map_err(|_| late())?;
        // Others may have made an end of it meanwhile.
        if *settled >= doubts {
            return Ok(());
        }
        let doubts = self.doubts.load(Ordering::SeqCst);
        // Written only where it is what it was: somebody else's format is not ours to overwrite.
        let gate = self.keys.gate();
        let txn = Txn::new()
            .when([Compare::value(gate.clone(), CompareOp::Equal, Self::format())])
            .and_then([TxnOp::put(gate.clone(), Self::format(), None)])
            .or_else([TxnOp::get(gate, None)]);
        // Writing it twice does no harm.
        let response = self.rpc.txn(txn, deadline, Fault::may_go_well_later).await;
        let response = response.map_err(|fault| {
            self.unavailable(format!(
                "a change before this is in doubt, and nothing can be read until it is known: {fault}"
            ))
        })?;
        if response.succeeded() {
            self.gate.store(revision(response.header()), Ordering::SeqCst);
        } else if let Some(TxnOpResponse::Get(found)) = response.op_responses().first() {
            self.check_gate(found.kvs())?;
        }
        *settled = doubts;
        Ok(())
    }

    /// Reads the gate and these ranges, all at one revision.
    async fn read(&self, ranges: Vec<TxnOp>) -> Result<Reading, ReadError> {
        let deadline = self.deadline();
        self.settle(deadline).await?;
        let mut operations = vec![TxnOp::get(self.keys.gate(), None)];
        operations.extend(ranges);
        let txn = Txn::new().and_then(operations);
        let response = self.rpc.txn(txn, deadline, Fault::may_go_well_later).await;
        let response = response.map_err(|fault| self.unavailable(fault.to_string()))?;
        let mut entries = Vec::new();
        for (i, answer) in response.op_responses().into_iter().enumerate() {
            let TxnOpResponse::Get(found) = answer else {
                return Err(self.unavailable("etcd answered something else than was asked: is it etcd?"));
            };
            if i == 0 {
                self.check_gate(found.kvs())?;
                continue;
            }
            for kv in found.kvs() {
                entries.push((self.key(kv.key())?, self.versioned(kv)?));
            }
        }
        Ok(Reading { entries, revision: to_revision(revision(response.header())) })
    }

    fn key(&self, name: &[u8]) -> Result<Key, ReadError> {
        self.keys.parse(name).ok_or_else(|| {
            let name = String::from_utf8_lossy(name);
            self.unavailable(format!(
                "it has a key '{name}' that FlexLog did not write: delete it, or use another prefix"
            ))
        })
    }

    fn versioned(&self, kv: &etcd_client::KeyValue) -> Result<Versioned, ReadError> {
        let key = self.key(kv.key())?;
        let bad = |why: String| {
            self.unavailable(format!("what is there under {key} cannot be used ({why}): put a backup back"))
        };
        let value: Value = serde_json::from_slice(kv.value()).map_err(|e| bad(e.to_string()))?;
        if !value.belongs_under(&key) {
            return Err(bad("a record of another thing".to_owned()));
        }
        value.check().map_err(|e| bad(e.to_string()))?;
        Ok(Versioned { version: to_revision(kv.mod_revision()), value })
    }

    /// The transaction as etcd has it, under the condition that the gate is at `gate`.
    fn txn(&self, transaction: &Transaction, gate: i64) -> Result<Txn, String> {
        let mut compares = vec![Compare::mod_revision(self.keys.gate(), CompareOp::Equal, gate)];
        // Read where it is not done: to say which condition did not hold.
        let mut reads = vec![TxnOp::get(self.keys.gate(), None)];
        for (key, wanted) in &transaction.conditions {
            let name = self.keys.of(key);
            // The mod_revision of an absent key is 0. No fact ever has that version, or one that does not fit.
            let wanted = match wanted {
                None => 0,
                Some(Revision(0)) => i64::MAX,
                Some(version) => i64::try_from(version.0).unwrap_or(i64::MAX),
            };
            compares.push(Compare::mod_revision(name.clone(), CompareOp::Equal, wanted));
            reads.push(TxnOp::get(name, Some(GetOptions::new().with_keys_only())));
        }
        let mut operations = Vec::new();
        for (key, value) in &transaction.puts {
            let json = serde_json::to_vec(value).map_err(|e| format!("{key} cannot be written down: {e}"))?;
            operations.push(TxnOp::put(self.keys.of(key), json, None));
        }
        for key in &transaction.deletes {
            operations.push(TxnOp::delete(self.keys.of(key), None));
        }
        if transaction.puts.is_empty() {
            // Deletes of absent keys are no change to etcd, and have no place in its order.
            operations.push(TxnOp::put(self.keys.place(), "", None));
        }
        Ok(Txn::new().when(compares).and_then(operations).or_else(reads))
    }
}

#[async_trait]
impl Metadata for Etcd {
    fn describe(&self) -> String {
        self.shared.what.clone()
    }

    async fn get(&self, key: &Key) -> Result<Option<Versioned>, ReadError> {
        let reading = self.shared.read(vec![TxnOp::get(self.shared.keys.of(key), None)]).await?;
        Ok(reading.entries.into_iter().next().map(|(_, found)| found))
    }

    async fn list(&self, kind: Kind, after: Option<&Key>, limit: usize) -> Result<Page, ReadError> {
        let (from, to) = self.shared.keys.range(kind, after);
        // To etcd a limit of 0 is none, and an empty range is a single key.
        let ranges = if limit == 0 || from >= to {
            Vec::new()
        } else {
            let limit = i64::try_from(limit.min(MAX_PAGE)).unwrap_or(i64::MAX);
            vec![TxnOp::get(from, Some(GetOptions::new().with_range(to).with_limit(limit)))]
        };
        let Reading { entries, revision } = self.shared.read(ranges).await?;
        Ok(Page { entries, revision })
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision, CommitError> {
        transaction.check()?;
        let shared = &*self.shared;
        let what = || shared.what.clone();
        let deadline = shared.deadline();
        let certain = |error| match error {
            ReadError::Unavailable { what, why } => CommitError::Unavailable { what, why },
            ReadError::TooManyWatchers { .. } => CommitError::Unavailable { what: what(), why: error.to_string() },
        };
        loop {
            // Or what is in doubt could come behind this one.
            shared.settle(deadline).await.map_err(certain)?;
            let txn = shared.txn(&transaction, shared.gate.load(Ordering::SeqCst));
            let txn = txn.map_err(|why| CommitError::Refused { what: what(), why })?;
            let mut doubt = Doubt { shared, is_over: false };
            let outcome = shared.rpc.txn(txn, deadline, Fault::was_not_sent).await;
            doubt.is_over = !matches!(outcome, Err(Fault::InDoubt(_)));
            drop(doubt);
            let response = outcome.map_err(|fault| match fault {
                Fault::NotSent(_) => CommitError::Unavailable { what: what(), why: fault.to_string() },
                Fault::Refused(_) => CommitError::Refused { what: what(), why: fault.to_string() },
                Fault::InDoubt(_) => CommitError::Unknown { what: what(), why: fault.to_string() },
            })?;
            if response.succeeded() {
                return Ok(to_revision(revision(response.header())));
            }
            // The order of the answers is that of the conditions, the gate first.
            let answers = response.op_responses();
            let mut found = answers.iter().map(|answer| match answer {
                TxnOpResponse::Get(found) => found.kvs(),
                _ => &[],
            });
            let before = shared.gate.load(Ordering::SeqCst);
            shared.check_gate(found.next().unwrap_or(&[])).map_err(certain)?;
            for ((key, wanted), found) in transaction.conditions.iter().zip(found) {
                if found.first().map(|kv| to_revision(kv.mod_revision())) != *wanted {
                    return Err(CommitError::Conflict { key: key.clone() });
                }
            }
            // All conditions held but the one on the gate: the next try knows where it is.
            if Instant::now() >= deadline {
                let why = format!(
                    "its format mark moves all the time (it was at {before}): does something else write there?"
                );
                return Err(CommitError::Refused { what: what(), why });
            }
        }
    }

    async fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, ReadError> {
        let Ok(place) = Arc::clone(&self.shared.watchers).try_acquire_owned() else {
            return Err(ReadError::TooManyWatchers { what: self.describe(), limit: MAX_WATCHERS });
        };
        let newest = self.shared.read(Vec::new()).await?.revision;
        Ok(Box::new(Watcher::new(Arc::clone(&self.shared), place, after, newest)))
    }
}
