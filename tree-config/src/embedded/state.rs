//! All facts in memory, as of one revision.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::journal::entry_bytes;
use crate::key::{Key, Kind, Value};
use crate::metadata::{Change, Changes, Page, Revision, Versioned};
use crate::transaction::Transaction;

#[derive(Debug)]
struct Entry {
    version: Revision,
    value: Value,
    /// What it takes of a snapshot.
    bytes: u64,
}

/// The facts, and how much of a journal they need.
#[derive(Debug, Default)]
pub(super) struct State {
    entries: BTreeMap<Key, Entry>,
    revision: Revision,
    live_bytes: u64,
}

impl State {
    /// Nothing, as of `revision`.
    pub(super) fn at(revision: Revision) -> Self {
        Self { revision, ..Self::default() }
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How long a journal of this alone would be, but for its first line.
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&Key, Revision, &Value)> {
        self.entries.iter().map(|(key, entry)| (key, entry.version, &entry.value))
    }

    pub(super) fn version(&self, key: &Key) -> Option<Revision> {
        self.entries.get(key).map(|entry| entry.version)
    }

    pub(super) fn get(&self, key: &Key) -> Option<Versioned> {
        self.entries.get(key).map(|entry| Versioned { version: entry.version, value: entry.value.clone() })
    }

    pub(super) fn list(&self, kind: Kind, after: Option<&Key>, limit: usize) -> Page {
        let lowest = Key::lowest(kind);
        let from = match after {
            Some(after) if *after >= lowest => Bound::Excluded(after),
            _ => Bound::Included(&lowest),
        };
        let entries = self
            .entries
            .range((from, Bound::Unbounded))
            .take_while(|(key, _)| key.kind() == kind)
            .take(limit)
            .map(|(key, entry)| (key.clone(), Versioned { version: entry.version, value: entry.value.clone() }))
            .collect();
        Page { entries, revision: self.revision }
    }

    /// Takes a fact from a snapshot. The revision stays.
    pub(super) fn restore(&mut self, key: Key, version: Revision, value: Value) {
        let bytes = entry_bytes(&key, version, &value);
        self.live_bytes += bytes;
        if let Some(old) = self.entries.insert(key, Entry { version, value, bytes }) {
            self.live_bytes -= old.bytes;
        }
    }

    /// Makes a transaction's changes at the next revision; its conditions were looked at by the caller.
    pub(super) fn apply(&mut self, transaction: Transaction) -> Changes {
        self.revision = self.revision.next();
        let mut changes = Vec::with_capacity(transaction.puts.len() + transaction.deletes.len());
        for (key, value) in transaction.puts {
            changes.push(Change { key: key.clone(), value: Some(value.clone()) });
            self.restore(key, self.revision, value);
        }
        for key in transaction.deletes {
            if let Some(old) = self.entries.remove(&key) {
                self.live_bytes -= old.bytes;
                changes.push(Change { key, value: None });
            }
        }
        Changes { revision: self.revision, changes }
    }
}
