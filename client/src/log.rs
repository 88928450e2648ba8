//! [`Log`]: a color, seen through a client.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use flexlog_protocol::limits::{MAX_RECORDS_PER_TOKEN, MAX_TOKEN_BYTES};
use flexlog_protocol::{Color, Record, RecordError, SeqNum, ShardId};

use crate::core::{AppendFailure, open_cost};
use crate::error::{AppendError, CallError, ReadError, TrimError};
use crate::payload::IntoPayload;
use crate::shell::{Handle, Waiting};
use crate::subscription::Subscription;

/// A color: one totally ordered log, on one shard or several.
///
/// ```no_run
/// # async fn example(log: flexlog_client::Log) -> Result<(), Box<dyn std::error::Error>> {
/// use flexlog_client::ReadOutcome;
///
/// let n = log.append(b"hello").await?;
/// if let ReadOutcome::Record(record) = log.read(n).await? {
///     assert_eq!(record.payload().as_ref(), b"hello");
/// }
/// assert!(log.tail().await? > n);
/// log.trim(n).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Log {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub handle: Arc<Handle>,
    pub color: Color,
    pub name: String,
    pub shards: Vec<ShardId>,
    /// Whose turn it is to take an append.
    turn: AtomicUsize,
}

/// What a number names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadOutcome {
    /// This record.
    Record(Record),
    /// Nothing, and never will: the number was lost in a failure, or is behind the end of its epoch.
    Hole,
    /// A record that was trimmed, or may have been one.
    Trimmed {
        /// Everything at or below this is gone.
        point: SeqNum,
    },
    /// Nothing yet.
    NotYet {
        /// The next number that will be given.
        tail: SeqNum,
    },
}

/// The first record at or after a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextOutcome {
    /// This one.
    Record {
        /// Its number.
        number: SeqNum,
        /// It.
        record: Record,
    },
    /// Records from that number on were trimmed: ask again from behind `point`.
    Trimmed {
        /// Everything at or below this is gone.
        point: SeqNum,
    },
    /// There is none yet.
    NotYet {
        /// The next number that will be given.
        tail: SeqNum,
    },
}

/// The last record at or before a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrevOutcome {
    /// This one.
    Record {
        /// Its number.
        number: SeqNum,
        /// It.
        record: Record,
    },
    /// It was trimmed, if there was one.
    Trimmed {
        /// Everything at or below this is gone.
        point: SeqNum,
    },
    /// There is none.
    Nothing,
}

impl Log {
    pub(crate) fn new(handle: Arc<Handle>, color: Color, name: String, shards: Vec<ShardId>) -> Self {
        Self { inner: Arc::new(Inner { handle, color, name, shards, turn: AtomicUsize::new(0) }) }
    }

    /// The color's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The color's id.
    #[must_use]
    pub fn color(&self) -> Color {
        self.inner.color
    }

    /// Appends one record and returns its number, once it is on all replicas.
    ///
    /// Cancelling the future does not take the append back.
    ///
    /// # Errors
    /// [`AppendError`]; [`AppendError::is_outcome_unknown`] says whether the record may be in the log all the same.
    pub async fn append(&self, payload: impl IntoPayload) -> Result<SeqNum, AppendError> {
        let record = Record::new(payload.into_payload()).map_err(|source| self.invalid(source))?;
        self.append_record(record).await
    }

    /// As [`Log::append`], for a record that was made before, with tags or without.
    ///
    /// # Errors
    /// [`AppendError`].
    pub async fn append_record(&self, record: Record) -> Result<SeqNum, AppendError> {
        self.submit(record).await?.await
    }

    /// Appends 1 to 4096 records as one, 4 MiB together at most: they get neighbouring numbers, or none does. Returns
    /// the numbers; the end is exclusive.
    ///
    /// # Errors
    /// [`AppendError`].
    pub async fn append_batch(&self, records: impl IntoIterator<Item = Record>) -> Result<Range<SeqNum>, AppendError> {
        let records: Vec<_> = records.into_iter().collect();
        let count = records.len() as u32;
        let first = self.submit_batch(records).await?.await?;
        // The numbers of an append are within one epoch, and so is their exclusive end.
        Ok(first..first.plus(count).unwrap_or(SeqNum::new(first.epoch(), u32::MAX)))
    }

    /// Submits one record, without waiting for its number: many can be under way at once.
    ///
    /// The first `await` waits for room: at most 4096 appends, and 32 MiB of records, are open at a time. The
    /// [`Pending`] that it returns can be awaited later, or dropped: the append goes on.
    ///
    /// ```no_run
    /// # async fn example(log: flexlog_client::Log) -> Result<(), Box<dyn std::error::Error>> {
    /// use flexlog_client::Record;
    ///
    /// let mut open = std::collections::VecDeque::new();
    /// for i in 0..100_000 {
    ///     open.push_back(log.submit(Record::new(format!("record {i}"))?).await?);
    ///     if open.len() == 1000 {
    ///         if let Some(first) = open.pop_front() {
    ///             first.await?;
    ///         }
    ///     }
    /// }
    /// for rest in open {
    ///     rest.await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`AppendError::NotSent`] when there was no room until the deadline, and `Stopped`.
    pub async fn submit(&self, record: Record) -> Result<Pending, AppendError> {
        self.submit_batch(vec![record]).await
    }

    /// As [`Log::submit`], for 1 to 4096 records under one token. The number is that of the first.
    ///
    /// # Errors
    /// As [`Log::submit`], and `Invalid` outside the bounds of an append.
    pub async fn submit_batch(&self, records: Vec<Record>) -> Result<Pending, AppendError> {
        if records.is_empty() || records.len() > MAX_RECORDS_PER_TOKEN {
            return Err(self.invalid(RecordError::RecordCount { records: records.len() }));
        }
        let bytes = open_cost(&records);
        if bytes > MAX_TOKEN_BYTES as u64 {
            return Err(self.invalid(RecordError::AppendTooLarge { bytes: bytes as usize }));
        }
        let inner = &self.inner;
        let turn = inner.turn.fetch_add(1, Ordering::Relaxed);
        match inner.handle.submit(&inner.shards, turn, inner.color, records).await {
            Some(Ok(waiting)) => Ok(Pending { waiting, inner: Arc::clone(inner) }),
            Some(Err(failure)) => Err(inner.append_error(failure)),
            None => Err(AppendError::Stopped { address: inner.handle.address() }),
        }
    }

    fn invalid(&self, source: RecordError) -> AppendError {
        AppendError::Invalid { color: self.inner.name.clone(), source }
    }

    /// What `number` names. What was appended before this was called is seen by it.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn read(&self, number: SeqNum) -> Result<ReadOutcome, ReadError> {
        self.inner.read(number).await.map_err(|error| self.read_error(error, number.to_string()))
    }

    /// The first record at or after `from`.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn read_next(&self, from: SeqNum) -> Result<NextOutcome, ReadError> {
        self.inner.read_next(from).await.map_err(|error| self.read_error(error, format!("what follows {from}")))
    }

    /// The last record at or before `upto`; with [`SeqNum::MAX`] the last of all.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn read_prev(&self, upto: SeqNum) -> Result<PrevOutcome, ReadError> {
        self.inner.read_prev(upto).await.map_err(|error| self.read_error(error, format!("what precedes {upto}")))
    }

    /// The next number that will be given: above every append that was acknowledged before this was called.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn tail(&self) -> Result<SeqNum, ReadError> {
        self.inner.tail().await.map_err(|error| self.read_error(error, "the tail".to_owned()))
    }

    /// Forgets all records up to and including `upto`, which must be below the tail. Returns the trim point, which may
    /// be above `upto` if more was trimmed before.
    ///
    /// # Errors
    /// [`TrimError`]. Some shards of a color on several may have done it then; to ask again is safe.
    pub async fn trim(&self, upto: SeqNum) -> Result<SeqNum, TrimError> {
        let inner = &self.inner;
        let error = |error| TrimError::new(error, inner.handle.address(), inner.name.clone(), upto);
        inner.trim(upto).await.map_err(error)
    }

    /// All records from `from` on, in order, as they become stable; [`SeqNum::MIN`] begins with the first there is.
    ///
    /// Returns at once. A subscription outlives lost connections, and ends with the color or when it is dropped.
    #[must_use]
    pub fn subscribe(&self, from: SeqNum) -> Subscription {
        Subscription::new(Arc::clone(&self.inner), from)
    }

    fn read_error(&self, error: CallError, what: String) -> ReadError {
        ReadError::new(error, self.inner.handle.address(), self.inner.name.clone(), what)
    }
}

impl Inner {
    fn append_error(&self, failure: AppendFailure) -> AppendError {
        let (color, address) = (self.name.clone(), self.handle.address());
        let source = || self.handle.no_answer(self.handle.settings().append_deadline, None);
        match failure {
            AppendFailure::Full => AppendError::Full { color, address },
            AppendFailure::Refused(why) | AppendFailure::NotTaken(why) => AppendError::Refused { color, address, why },
            AppendFailure::NoSession(why) => AppendError::NoSession { color, address, why },
            AppendFailure::NotSent => AppendError::NotSent { color, source: source() },
            AppendFailure::Deadline => AppendError::OutcomeUnknown { color, source: source() },
            AppendFailure::SessionExpired => AppendError::SessionExpired { color, address },
            AppendFailure::RefusedLater(why) => AppendError::RefusedLater { color, address, why },
        }
    }
}

/// An append under way; resolves to its first number. Dropping it does not take the append back.
#[derive(Debug)]
#[must_use = "the append goes on, but nobody learns what becomes of it"]
pub struct Pending {
    waiting: Waiting,
    inner: Arc<Inner>,
}

impl Future for Pending {
    type Output = Result<SeqNum, AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.waiting).poll(context).map(|outcome| match outcome {
            Ok(Ok(number)) => Ok(number),
            Ok(Err(failure)) => Err(self.inner.append_error(failure)),
            Err(_) => Err(AppendError::Stopped { address: self.inner.handle.address() }),
        })
    }
}
