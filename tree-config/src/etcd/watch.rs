//! Following the changes under the prefix.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::rpc::{Rpc, judge};
use super::{Shared, revision, to_revision};
use crate::metadata::{Change, Changes, Event, ReadError, Revision, Watch};

/// A place in the order of changes, and the stream that tells what follows.
pub(super) struct Watcher {
    shared: Arc<Shared>,
    /// One of the watchers that there may be.
    _place: OwnedSemaphorePermit,
    /// All up to here was told, or is in `ready`.
    seen: Revision,
    /// Told next. As much as one answer of etcd had.
    ready: VecDeque<Event>,
    /// `None` before the first use and after a break.
    stream: Option<WatchStream>,
}

impl Watcher {
    /// Tells what comes after `after`, where the newest revision was `newest`.
    pub(super) fn new(shared: Arc<Shared>, place: OwnedSemaphorePermit, after: Revision, newest: Revision) -> Self {
        let mut watcher = Self { shared, _place: place, seen: after, ready: VecDeque::new(), stream: None };
        watcher.look_ahead(newest);
        watcher
    }

    /// Says so where etcd is behind what was told: as after it was put back from a backup.
    fn look_ahead(&mut self, newest: Revision) {
        if self.seen > newest {
            self.lag(newest);
        }
    }

    fn lag(&mut self, revision: Revision) {
        self.seen = revision;
        self.ready.push_back(Event::Lagged { revision });
        self.stream = None;
    }

    /// Starts the stream behind what was told. Does nothing where that is not possible any more: then `ready` says so.
    async fn connect(&mut self) -> Result<(), ReadError> {
        let newest = self.shared.read(Vec::new()).await?.revision;
        self.look_ahead(newest);
        if !self.ready.is_empty() {
            return Ok(());
        }
        let (from, to) = self.shared.keys.all();
        let start = i64::try_from(self.seen.next().0).unwrap_or(i64::MAX);
        let options = WatchOptions::new().with_range(to).with_start_revision(start).with_progress_notify();
        let mut watches = self.shared.rpc.watches();
        let stream = self.shared.rpc.within(watches.watch(from, Some(options))).await;
        self.stream = Some(stream.map_err(|fault| self.shared.unavailable(fault.to_string()))?);
        Ok(())
    }

    /// Takes in what etcd says.
    async fn take(&mut self, response: &WatchResponse) -> Result<(), ReadError> {
        if response.compact_revision() > 0 || response.canceled() {
            // What followed is forgotten there, or cannot be told.
            self.stream = None;
            let newest = self.shared.read(Vec::new()).await?.revision;
            self.lag(newest);
            return Ok(());
        }
        let mut open: Option<Changes> = None;
        for event in response.events() {
            let Some(kv) = event.kv() else { continue };
            let at = to_revision(kv.mod_revision());
            if at <= self.seen || kv.key() == self.shared.keys.gate() {
                continue;
            }
            if open.as_ref().is_some_and(|open| open.revision != at)
                && let Some(whole) = open.take()
            {
                self.ready.push_back(Event::Changes(Arc::new(whole)));
            }
            let open = open.get_or_insert_with(|| Changes { revision: at, changes: Vec::new() });
            if kv.key() == self.shared.keys.place() {
                continue;
            }
            let key = self.shared.key(kv.key())?;
            let value = match event.event_type() {
                EventType::Put => Some(self.shared.versioned(kv)?.value),
                EventType::Delete => None,
            };
            open.changes.push(Change { key, value });
        }
        // All of a revision comes in one answer.
        if let Some(whole) = open {
            self.ready.push_back(Event::Changes(Arc::new(whole)));
        }
        // An answer without events tells how far all was told, and one with events is complete up to its last.
        let told = match response.events().last().and_then(etcd_client::Event::kv) {
            Some(kv) => kv.mod_revision(),
            None if response.created() => 0,
            None => revision(response.header()),
        };
        self.seen = self.seen.max(to_revision(told));
        Ok(())
    }
}

#[async_trait]
impl Watch for Watcher {
    async fn next(&mut self) -> Result<Event, ReadError> {
        // Since when nothing came although it was asked for.
        let mut broken: Option<Instant> = None;
        let mut tries = 0;
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let Some(stream) = &mut self.stream else {
                let since = *broken.get_or_insert_with(Instant::now);
                match self.connect().await {
                    Ok(()) => {}
                    Err(error) if since.elapsed() >= self.shared.rpc.patience => return Err(error),
                    Err(_) => {
                        Rpc::pause(tries).await;
                        tries += 1;
                    }
                }
                continue;
            };
            match stream.message().await {
                Ok(Some(response)) => {
                    broken = None;
                    self.take(&response).await?;
                }
                Ok(None) => self.stream = None,
                Err(error) => {
                    self.stream = None;
                    // OutOfRange: more at once than is taken. What it was has to be read.
                    if matches!(&error, etcd_client::Error::GRpcStatus(status) if status.code() as i32 == 11) {
                        let newest = self.shared.read(Vec::new()).await?.revision;
                        self.lag(newest);
                        continue;
                    }
                    let since = *broken.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.shared.rpc.patience {
                        return Err(self.shared.unavailable(judge(&error).to_string()));
                    }
                    Rpc::pause(tries).await;
                    tries += 1;
                }
            }
        }
    }
}
