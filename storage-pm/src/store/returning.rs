//! What only the store of a member that comes back is asked for: copies of records that settled elsewhere, and entries that
//! are taken back because they never settled.
//!
//! Nothing on the media is erased for it. A `Truncate` says which entries are no more, here in memory their work is undone,
//! and recovery passes them by ([`crate::recover`]).

use std::sync::Arc;

#[cfg(doc)]
use flexlog_protocol::media::LogStore;
use flexlog_protocol::media::{Device, StoreError};
use flexlog_protocol::{Append, Assign, Body, Color, Entry, Lsn, Record, SeqNum, Token};

use super::{StagedAt, Store};
use crate::codec::{self, STAGED_META, StagedMeta, TRUNCATE, TakenBack, Truncate};
use crate::index::Loc;
use crate::layout::{ENTRY_HEADER, Header, Kind, Place, padded};
use crate::segments::Span;

impl<D: Device> Store<D> {
    /// See [`LogStore::copy`].
    pub(super) fn put_copies(&mut self, color: Color, first: SeqNum, records: &[Record]) -> Result<(), StoreError> {
        if records.is_empty() {
            return self.log.check();
        }
        let sound = first.plus(records.len() as u32).is_some();
        let append = Append::new(codec::copied_token(first), color, None, records.to_vec()).ok().filter(|_| sound);
        let Some(append) = append else {
            debug_assert!(false, "{} records from {color}/{first} on are no append", records.len());
            return Err(self.log.full());
        };
        let before = self.log.head();
        let entry = self.put_append(Kind::Copied, &append)?;
        self.index.insert(color, first, append.count(), entry);
        let high = StagedAt { entry, color, records: append.count() }.last(first);
        let slot = self.log.slot_of(entry);
        self.log.segments.get_mut(slot).own.add(color, Span { low: first, high });
        if before != self.log.head() {
            self.since.segments += 1;
            self.consider();
        }
        Ok(())
    }

    /// See [`LogStore::truncate`].
    pub(super) fn take_back(&mut self, upto: Lsn, entries: &[Arc<Entry>]) -> Result<(), StoreError> {
        let Some(last) = entries.last().map(|entry| entry.lsn) else { return self.log.check() };
        debug_assert_eq!((entries[0].lsn, last.0), (upto.next(), upto.0 + entries.len() as u64));
        debug_assert!(upto >= self.committed, "{upto} is below {}, which is committed", self.committed);
        self.put_entry(Kind::Truncate, TRUNCATE, |body| Truncate { upto, last }.put(body))?;
        let Place { generation, offset: end } = self.log.next();
        let place = Place::new(generation, end - padded(ENTRY_HEADER + TRUNCATE) as u32);
        self.taken_back.push(TakenBack { place, upto });
        self.log.segments.truncate(upto);
        for entry in entries.iter().rev() {
            if let Body::Assign(assigns) = &entry.body {
                assigns.iter().rev().for_each(|assign| self.unassign(assign));
            }
        }
        self.consider();
        Ok(())
    }

    /// The entry that gave these numbers was taken back.
    fn unassign(&mut self, assign: &Assign) {
        for (token, first) in assign.each() {
            let named = self.index.find(assign.color, first).filter(|loc| loc.index() == 0).map(Loc::entry);
            let Some(entry) = named.filter(|entry| self.is_staged_at(token, *entry)) else {
                // Only what is settled is written again, so what takes the place of a damaged record stays: the same entry will
                // give the number once more. So do numbers that were copied, against the rules.
                let repaired = (0..assign.records).filter_map(|i| first.plus(i));
                let repaired = repaired.filter_map(|number| self.index.find(assign.color, number));
                debug_assert!(
                    repaired.into_iter().any(|loc| self.is_repaired_at(loc.entry())),
                    "{token} is not where {}/{first} is",
                    assign.color
                );
                continue;
            };
            for (i, number) in (0..assign.records).filter_map(|i| Some((i, first.plus(i)?))) {
                self.index.forget(assign.color, number, Loc::new(entry, i));
                if let Some(cache) = &self.cache {
                    cache.forget(assign.color, number);
                }
            }
            self.note_staged(token, StagedAt { entry, color: assign.color, records: assign.records });
        }
    }

    /// Whether this byte of the area is that of a record that was written again.
    fn is_repaired_at(&self, entry: u64) -> bool {
        let header = self.bytes(entry, ENTRY_HEADER, ENTRY_HEADER).ok();
        header.and_then(|bytes| Header::peek(&bytes)).is_none_or(|header| header.kind == Kind::Repaired)
    }

    /// Whether the append under `token` is the entry at this byte of the area. Where that cannot be read the index is trusted:
    /// reading the append will say what is wrong.
    fn is_staged_at(&self, token: Token, entry: u64) -> bool {
        let Ok(bytes) = self.bytes(entry, ENTRY_HEADER + STAGED_META, ENTRY_HEADER + STAGED_META) else { return true };
        let meta = bytes.get(ENTRY_HEADER..).and_then(StagedMeta::decode);
        meta.is_some_and(|meta| meta.staged.token == token)
    }
}
