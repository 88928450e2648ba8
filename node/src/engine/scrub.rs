//! Reading all that the stores of this process hold, to find what is damaged before somebody needs it.
//!
//! A store is read color by color, a bounded piece at a time and so many bytes a second, like a client would read it: what
//! is in the area on this thread, what is in SSD files on those of other slow reads. What cannot be read goes to the
//! member, which has it from another one. When all was read, a store is left alone for a while.

use flexlog_protocol::media::{Late, ReadError, Reading};
use flexlog_protocol::{Color, Record, SeqNum, Time};
use flexlog_replica::Damage;

use super::members::{Member, SlowRead, Wanted};
use super::{Engine, Message};

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 128 << 10;
/// Records that are read at a time.
const PIECE_RECORDS: usize = 1024;
/// What a read counts for at least: a block of a file.
const READ_COST: u64 = 4096;
/// No pass begins sooner after the one before began, in microseconds: 10 min.
const PASS_MICROS: u64 = 600_000_000;

/// How far a store was read.
#[derive(Debug, Default)]
pub(super) struct Scrub {
    /// Bytes a second; 0 for none.
    pub(super) rate: u64,
    /// Colors that are yet to be read, and where the one that is read now is.
    left: Vec<Color>,
    at: Option<(Color, SeqNum)>,
    /// A read is under way elsewhere.
    reading: bool,
    /// A pass is under way; it began then.
    began: Option<Time>,
    due: Time,
    /// Payload that was read, passes that were ended, and the end of the last.
    pub(super) bytes: u64,
    pub(super) passes: u64,
    pub(super) ended: Option<Time>,
}

impl Member {
    /// When the store is to be read on.
    pub(super) fn scrub_at(&self) -> Option<Time> {
        (self.scrub.rate > 0 && !self.scrub.reading && self.failed.is_none()).then_some(self.scrub.due)
    }

    /// The next place that is to be read, if this pass has any.
    fn next_scrub(&mut self, now: Time) -> Option<(Color, SeqNum)> {
        let scrub = &mut self.scrub;
        let Some(began) = scrub.began else {
            scrub.began = Some(now);
            scrub.left = self.replica.colors().collect();
            return None;
        };
        scrub.at = scrub.at.or_else(|| scrub.left.pop().map(|color| (color, SeqNum::MIN)));
        if scrub.at.is_none() {
            scrub.began = None;
            scrub.passes += 1;
            scrub.ended = Some(now);
            scrub.due = began.after(PASS_MICROS).max(now);
        }
        scrub.at
    }

    /// Payload was read, and the next read of the color is to begin at `next`; there is no more where that is `None`.
    fn scrubbed(&mut self, now: Time, records: &[(SeqNum, Record)], color: Color, next: Option<SeqNum>) {
        let bytes: u64 = records.iter().map(|(_, record)| record.payload().len() as u64).sum();
        let scrub = &mut self.scrub;
        scrub.bytes += bytes;
        scrub.at = next.map(|next| (color, next));
        let micros = bytes.max(READ_COST).saturating_mul(1_000_000) / scrub.rate.max(1);
        scrub.due = scrub.due.max(now).after(micros);
    }
}

/// The number after this one; `None` where there is none.
fn after(number: SeqNum) -> Option<SeqNum> {
    number.to_raw().checked_add(1).map(SeqNum::from_raw)
}

impl Engine {
    /// Reads on where it is time.
    pub(super) fn scrub(&mut self, now: Time) {
        for at in 0..self.members.len() {
            let mut budget = PIECE_BYTES as u64;
            while budget > 0 && self.members[at].scrub_at().is_some_and(|due| due <= now || budget < PIECE_BYTES as u64)
            {
                let member = &mut self.members[at];
                let Some((color, from)) = member.next_scrub(now) else {
                    if member.scrub.began.is_none() {
                        break;
                    }
                    continue;
                };
                let before = member.scrub.bytes;
                let mut records = Vec::new();
                let max_bytes = budget as usize;
                let read = member.store.scrub(color, from, PIECE_RECORDS, max_bytes, &mut records);
                match read {
                    Ok(Reading::Later(read)) => {
                        member.scrub.reading = true;
                        let (upto, max_records) = (SeqNum::MAX, PIECE_RECORDS);
                        let wanted = Wanted { fetch: None, color, from, upto, max_records, max_bytes };
                        self.reads.push(SlowRead { at, wanted, read });
                        break;
                    }
                    Ok(Reading::Done) => {
                        let next = records.last().and_then(|(last, _)| after(*last));
                        member.scrubbed(now, &records, color, next);
                    }
                    Err(error) => self.scrub_found(now, at, color, &records, error),
                }
                let read = self.members[at].scrub.bytes - before;
                budget = budget.saturating_sub(read.max(READ_COST));
            }
        }
    }

    /// A read of a scrub that was done elsewhere has ended.
    pub(super) fn scrub_read(&mut self, at: usize, color: Color, late: Late) {
        let now = self.now;
        self.members[at].scrub.reading = false;
        match late.error {
            Some(error) => self.scrub_found(now, at, color, &late.records, error),
            None => {
                let next = Some(late.covered).filter(|covered| *covered < SeqNum::MAX);
                self.members[at].scrubbed(now, &late.records, color, next);
            }
        }
    }

    fn scrub_found(&mut self, now: Time, at: usize, color: Color, records: &[(SeqNum, Record)], error: ReadError) {
        let damage = Damage::from(error);
        let next = after(damage.number).map(|next| next.max(damage.end)).filter(|next| *next < SeqNum::MAX);
        self.members[at].scrubbed(now, records, color, next);
        self.queue.push_back(Message::Member(at, flexlog_replica::Input::Damaged(damage)));
    }
}
