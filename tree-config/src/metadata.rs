//! What a store of metadata does, whatever keeps it.
//!
//! The semantics are those of compare-and-set with watch. All changes of a store form one order, counted by
//! [`Revision`]; a transaction takes exactly one place in it. Backends MUST keep every word of the docs below; the
//! suite in `conformance` checks what can be checked from outside.

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::key::{Key, Kind, Value};
use crate::transaction::{Transaction, TransactionError};

/// A place in the order of a store's changes; 0 is before the first.
///
/// The *version* of a key is the revision that wrote it last, so a key that was deleted and written again never has an
/// old version again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Revision(pub u64);

impl Revision {
    /// The one after this.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A fact, and when it was written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Versioned {
    /// The revision that wrote it.
    pub version: Revision,
    /// The fact.
    pub value: Value,
}

/// Part of a listing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Page {
    /// In ascending order of their keys.
    pub entries: Vec<(Key, Versioned)>,
    /// The revision at which all of them were read.
    pub revision: Revision,
}

/// What happened to one key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Change {
    /// The key.
    pub key: Key,
    /// What is there now; `None` when it was deleted.
    pub value: Option<Value>,
}

/// What one transaction changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Changes {
    /// Its revision: the version of every key that it put.
    pub revision: Revision,
    /// In the order of the transaction, puts first; a delete of an absent key is not among them.
    pub changes: Vec<Change>,
}

/// What a watcher is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The transaction right after the one it was told of last.
    Changes(std::sync::Arc<Changes>),
    /// It fell behind what is kept for watchers, or asked for a place that the store never reached: it knows nothing of
    /// what happened up to `revision`, and MUST read again what it cares for. It goes on behind that place.
    Lagged {
        /// The newest revision.
        revision: Revision,
    },
}

/// Nothing could be read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum ReadError {
    /// The store does not answer any more: it failed, or was closed. Open it again.
    #[error("{what} cannot be read: {why}")]
    Unavailable {
        /// The store.
        what: String,
        /// Why, and what to do.
        why: String,
    },
    /// There are as many watchers as may be.
    #[error("{what} has {limit} watchers, its limit: end one")]
    TooManyWatchers {
        /// The store.
        what: String,
        /// The most it takes.
        limit: usize,
    },
}

/// A transaction was not done, or may not have been.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommitError {
    /// A condition did not hold. Nothing was changed; read again and decide anew.
    #[error("{key} was changed by another")]
    Conflict {
        /// The first condition that did not hold, in the order of the transaction.
        key: Key,
    },
    /// No store takes such a transaction. Nothing was changed.
    #[error(transparent)]
    Invalid(#[from] TransactionError),
    /// The store could not take it, and goes on. Nothing was changed; the same may go well later.
    #[error("{what} could not take the change: {why}")]
    Refused {
        /// The store.
        what: String,
        /// Why, and what to do.
        why: String,
    },
    /// The store does not take anything any more. Nothing was changed.
    #[error("{what} takes no changes: {why}")]
    Unavailable {
        /// The store.
        what: String,
        /// Why, and what to do.
        why: String,
    },
    /// Whether it was done is not known. Until it is read back, both outcomes MUST be reckoned with.
    #[error("{what}: it is not known whether the change was made: {why}")]
    Unknown {
        /// The store.
        what: String,
        /// Why, and what to do.
        why: String,
    },
}

impl CommitError {
    /// Whether nothing was changed, for sure.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }
}

/// A store of the cluster's metadata.
///
/// All methods are linearizable: one that starts after another has returned sees what that one saw or did.
#[async_trait]
pub trait Metadata: Send + Sync {
    /// What it is, for people: `the metadata in ./flexlog-data/metadata`.
    fn describe(&self) -> String;

    /// What is under `key`; `None` where there is nothing.
    ///
    /// The answer MUST be durable: a fact that was shown to anyone is not taken back by a crash.
    ///
    /// # Errors
    /// Any [`ReadError`]. A store that left a transaction in doubt MUST fail here until it knows, rather than show the
    /// state without it.
    async fn get(&self, key: &Key) -> Result<Option<Versioned>, ReadError>;

    /// The keys of `kind` in ascending order, those above `after` only, at most `limit` (and at most
    /// [`MAX_PAGE`]) of them.
    ///
    /// A page may be shorter than `limit` where that would be too much at once; only an empty one says that nothing
    /// follows. A page is read at one revision; two pages may not be. To follow a listing without a gap, [`Metadata::watch`]
    /// from the revision of its *first* page: what is told twice has a version to tell it by. An `after` of another
    /// kind is taken as it is ordered.
    ///
    /// # Errors
    /// As [`Metadata::get`].
    async fn list(&self, kind: Kind, after: Option<&Key>, limit: usize) -> Result<Page, ReadError>;

    /// Makes all of a transaction's changes if all of its conditions hold, and answers with its revision: the version
    /// of every key that it put.
    ///
    /// When this returns `Ok` the changes MUST be durable and visible to every later read. No other transaction comes
    /// between its conditions and its changes. Dropping the future leaves the outcome unknown.
    ///
    /// # Errors
    /// Any [`CommitError`]. On every one but [`CommitError::Unknown`] the store MUST be as if the transaction had never
    /// been sent, now and after a crash.
    async fn commit(&self, transaction: Transaction) -> Result<Revision, CommitError>;

    /// Tells of every transaction behind `after`, in order, none left out without a word.
    ///
    /// # Errors
    /// Any [`ReadError`].
    async fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, ReadError>;
}

/// The most entries of a [`Page`].
pub const MAX_PAGE: usize = 4096;

/// A place in the order of a store's changes that moves with them.
///
/// What is kept for watchers is bounded; one that does not ask for long is told [`Event::Lagged`].
#[async_trait]
pub trait Watch: Send {
    /// The next event; waits for it. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Any [`ReadError`]. The watch is over then.
    async fn next(&mut self) -> Result<Event, ReadError>;
}
