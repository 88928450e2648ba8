//! A record that is damaged here and whole on another member: it is written again, and takes the place of the damaged one.
//!
//! The new one is an entry of its own in the area, wherever the damaged bytes are: in an older entry, or in an SSD file.
//! The index names it from then on; recovery does the same when it meets the entry, which always stands behind the one
//! that gave the number, and the segment of the new one stays as long as that of the damaged one. From there it moves to
//! an SSD file like any other; where two files have the number, reading takes the whole one.

#[cfg(doc)]
use flexlog_protocol::media::LogStore;
use flexlog_protocol::media::{Device, StoreError};
use flexlog_protocol::{Append, Color, Record, SeqNum};

use super::Store;
use crate::codec;
use crate::index::Loc;
use crate::layout::Kind;
use crate::segments::Span;
use crate::ssd::after;

impl<D: Device> Store<D> {
    /// See [`LogStore::repair`].
    pub(super) fn put_repaired(&mut self, color: Color, number: SeqNum, record: &Record) -> Result<bool, StoreError> {
        self.log.check()?;
        if self.index.trim_point(color).is_some_and(|point| point >= number) || self.is_whole(color, number) {
            return Ok(false);
        }
        let token = codec::copied_token(number);
        let append = Append::new(token, color, None, vec![record.clone()]).ok().filter(|_| number.plus(1).is_some());
        let Some(append) = append else {
            debug_assert!(false, "{color}/{number} is no record's number");
            return Ok(false);
        };
        let before = self.log.head();
        let entry = self.put_append(Kind::Repaired, &append)?;
        let slot = self.log.slot_of(entry);
        if let Some(damaged) = self.index.replace(color, number, Loc::new(entry, 0)) {
            let old = self.log.segments.get_mut(self.log.slot_of(damaged.entry()));
            // It was this record that kept the others from moving, or there is another one that does.
            old.stuck = false;
            let generation = old.generation;
            self.log.segments.stand_in(slot, generation);
        }
        self.log.segments.get_mut(slot).own.add(color, Span { low: number, high: number });
        if before != self.log.head() {
            self.since.segments += 1;
        }
        self.consider();
        Ok(true)
    }

    /// Whether the record of a number can be read where it is. Waits for a disk, if need be: it is asked only of what
    /// could not be read before.
    fn is_whole(&self, color: Color, number: SeqNum) -> bool {
        if let Some(loc) = self.index.find(color, number) {
            return matches!(self.load(color, loc), Ok(Some(_)));
        }
        let mut found = Vec::new();
        let read = |tiers: &crate::tiers::Tiers| {
            tiers.tier.read(color, number, after(number), 1, usize::MAX, &mut found).is_ok() && !found.is_empty()
        };
        self.tiers.as_ref().is_some_and(read)
    }
}
