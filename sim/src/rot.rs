//! Bits that rot: bytes of settled records change on one replica's media behind its store's back, and are mended from
//! another member, when somebody reads them or when the scrub finds them.
//!
//! It promises that no more rots than the cluster must survive: of each record, however small a view may become, one of
//! its members keeps a good copy. For that each replica's [`Rot`] says of which records it may have none, and forgets that
//! only when a good one is known to be durable. Only tags and payload rot, and only of what has its number and is known, by
//! a later entry on the same medium, to have been durable: damage to more than that a store may refuse.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use flexlog_protocol::media::{Late, LaterRead, LogStore, ReadError, Reading};
use flexlog_protocol::{Color, Record, SeqNum, Token};
use flexlog_replica::{Damage, Input};
use flexlog_storage_pm::ssd::Folder;

use crate::bug::Bug;
use crate::invariants::{Violation, i05_stays_readable as i05, mended};
use crate::ledger::Write;
use crate::net::{Packet, Stream};
use crate::world::{Action, World};

/// What is shorter may look like another record's.
const SHORTEST: usize = 16;
/// How often everything is read, and as long as what a member waits before it asks again passes in between.
const ROUNDS: usize = 40;
const ROUND_MICROS: u64 = 1_000_000;

/// What may be rotten on one replica's media, and what is known there to have been durable.
///
/// Writes are counted over all processes. What a write says to be durable holds once that write is durable itself.
#[derive(Debug, Default)]
pub(crate) struct Rot {
    rotten: BTreeSet<(Color, SeqNum)>,
    writes: u64,
    /// So many of them the store has seen to be durable.
    durable: u64,
    /// Of so many of them the medium says that they were.
    known: u64,
    pending: VecDeque<Pending>,
    /// Which write staged a token last, and which wrote a record by its number.
    staged: BTreeMap<Token, u64>,
    numbered: BTreeMap<(Color, SeqNum), u64>,
    /// A repair had no room.
    pub(crate) was_full: bool,
}

/// A write that is not durable.
#[derive(Debug)]
struct Pending {
    write: u64,
    /// What it says to have been durable before, if it says anything.
    says: u64,
    mends: Option<(Color, SeqNum)>,
}

impl Rot {
    /// The store is given a write.
    pub(crate) fn note(&mut self, write: &Write) {
        self.writes += 1;
        let (mut says, mut mends) = (self.durable, None);
        match write {
            Write::Stage(append) => _ = self.staged.insert(append.token(), self.writes),
            Write::Copy(numbers) => numbers.iter().for_each(|key| _ = self.numbered.insert(*key, self.writes)),
            Write::Repair { color, number, written } => {
                mends = Some((*color, *number));
                if *written {
                    self.numbered.insert((*color, *number), self.writes);
                } else {
                    says = 0;
                }
            }
            Write::Nothing => says = 0,
            Write::Entry(_) | Write::Fence(_) | Write::Checkpoint(..) | Write::Truncate(_) => {}
        }
        self.pending.push_back(Pending { write: self.writes, says, mends });
    }

    /// The oldest write is durable.
    pub(crate) fn settles(&mut self) {
        if let Some(Pending { write, says, mends }) = self.pending.pop_front() {
            (self.durable, self.known) = (write, self.known.max(says));
            mends.into_iter().for_each(|key| _ = self.rotten.remove(&key));
        }
    }

    /// The newest write was lost.
    pub(crate) fn take_back(&mut self) {
        self.pending.pop_back();
    }

    /// The store was opened, and has made durable what it found.
    pub(crate) fn found(&mut self) {
        self.pending.clear();
        self.durable = self.writes;
    }

    /// Whether nothing may be rotten here.
    pub(crate) fn is_none(&self) -> bool {
        self.rotten.is_empty()
    }

    /// Whether any of these numbers may be rotten here.
    pub(crate) fn is_any(&self, color: Color, low: SeqNum, end: SeqNum) -> bool {
        self.rotten.range((color, low)..).next().is_some_and(|key| *key < (color, end))
    }

    /// Whether all that was written of a record is known to have been durable.
    fn is_known(&self, token: Token, key: (Color, SeqNum)) -> bool {
        let last = self.staged.get(&token).max(self.numbered.get(&key));
        last.is_some_and(|last| *last <= self.known)
    }
}

/// How far a member's store was read through.
#[derive(Default)]
pub(crate) struct Scrub {
    left: Vec<Color>,
    at: Option<(Color, SeqNum)>,
    /// What a disk is asked for.
    reading: Option<(Color, LaterRead)>,
    under_way: bool,
    passes: u64,
}

impl std::fmt::Debug for Scrub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scrub({:?}, {} passes)", self.at, self.passes)
    }
}

fn after(number: SeqNum) -> Option<SeqNum> {
    number.to_raw().checked_add(1).map(SeqNum::from_raw)
}

impl World {
    /// Bits of some records change on one replica's media.
    pub(crate) fn bits_rot(&mut self) {
        let at = self.chooser.below(self.machines.len() as u64) as usize;
        // What lies in the place of a medium is not what it was written to.
        if self.machines[at].aside.is_some() {
            return;
        }
        for _ in 0..self.chooser.between(1, 4) {
            let may = self.may_rot(at);
            if may.is_empty() {
                return;
            }
            let (color, number) = self.chooser.pick(&may);
            self.rots(at, color, number);
        }
    }

    /// The records that may rot at a member.
    fn may_rot(&self, at: usize) -> Vec<(Color, SeqNum)> {
        let shard = self.history.home(at);
        if !self.history.of(at).view.contains(&at) {
            return Vec::new();
        }
        let replicas = self.shape.shards[shard].replicas.clone();
        // Each view has at least so many members; and so each has one that has it whole.
        let most = self.shape.shards[shard].min_view.saturating_sub(1) as usize;
        let ledger = &self.history.ledgers[at];
        let mut may = Vec::new();
        for color in &self.shape.shards[shard].colors {
            let Some(truth) = self.history.colors.get(color) else { continue };
            for (number, (token, _)) in &truth.records {
                let key = (*color, *number);
                let long =
                    self.history.record(*color, *number).is_some_and(|record| record.payload().len() >= SHORTEST);
                let here = truth.home(*number) == Some(shard) && !truth.is_trimmed(shard, *number);
                // One that its store may still take for staged has no number there.
                let numbered = ledger.has_numbered(*token, key) && ledger.rot.is_known(*token, key);
                let others = replicas.clone().filter(|other| *other != at);
                let rotten = others.filter(|other| self.history.ledgers[*other].rot.rotten.contains(&key)).count();
                if long && here && numbered && rotten < most {
                    may.push(key);
                }
            }
        }
        may
    }

    /// Some bits of a record change wherever it lies, or in one of the places.
    fn rots(&mut self, at: usize, color: Color, number: SeqNum) {
        let Some(encoded) = self.history.record(color, number).map(encoded) else { return };
        let media = self.machines[at].media.clone();
        let ssd = self.machines[at].ssd.clone();
        let mut places: Vec<(Option<String>, usize)> = Vec::new();
        places.extend(find(&media.bytes(), &encoded).map(|place| (None, place)));
        for name in ssd.iter().flat_map(|ssd| ssd.list().unwrap_or_default()) {
            let bytes = ssd.as_ref().and_then(|ssd| ssd.contents(&name)).unwrap_or_default();
            places.extend(find(&bytes, &encoded).map(|place| (Some(name.clone()), place)));
        }
        if places.is_empty() {
            return;
        }
        if places.len() > 1 && self.chooser.one_in(3) {
            let one = self.chooser.below(places.len() as u64) as usize;
            places = vec![places.swap_remove(one)];
        }
        for (file, place) in places {
            for _ in 0..self.chooser.between(1, 3) {
                let byte = self.chooser.below(encoded.len() as u64) as usize;
                let changed = [encoded[byte] ^ (1 << self.chooser.below(8))];
                match (&file, &ssd) {
                    (Some(name), Some(ssd)) => _ = ssd.damage(name, place + byte, &changed),
                    _ => media.damage((place + byte) as u64, &changed),
                }
            }
            self.record(|| format!("         {color}/{number} rots at member {at}: {file:?} at {place}"));
        }
        self.history.ledgers[at].rot.rotten.insert((color, number));
        self.counts.rotten += 1;
    }

    /// A store was opened: what can be read is durable.
    pub(crate) fn opened_with_rot(&mut self, at: usize) {
        let Some(member) = self.machines[at].up() else { return };
        let is_whole = |color: Color, number: SeqNum| {
            let mut found = Vec::new();
            let upto = after(number).unwrap_or(SeqNum::MAX);
            member.store.read_through(color, number, upto, 1, 1, &mut found).is_ok() && !found.is_empty()
        };
        let rotten = &mut self.history.ledgers[at].rot.rotten;
        rotten.retain(|(color, number)| !is_whole(*color, *number));
    }

    /// What members may do to find what is damaged.
    pub(crate) fn scrub_options(&self, options: &mut Vec<(Action, u64)>) {
        if self.kind.scrubs == 0 || self.is_bug(Bug::RotNotLookedFor) {
            return;
        }
        let event = self.history.event;
        let idle = |at: &usize| {
            let machine = &self.machines[*at];
            machine.still_until <= event && machine.up().is_some_and(|member| member.failed.is_none())
        };
        options.extend((0..self.machines.len()).filter(idle).map(|at| (Action::Scrub(at), self.kind.scrubs)));
    }

    /// Reads a piece of a member's store, as the node's engine does it.
    pub(crate) fn scrub(&mut self, at: usize) -> Result<(), Violation> {
        let max_records = self.chooser.pick(&[1, 4, 64]);
        let later = self.chooser.one_in(2);
        let Some(member) = self.machines[at].up_mut().filter(|member| member.failed.is_none()) else { return Ok(()) };
        let scrub = &mut member.scrub;
        let mut records = Vec::new();
        let (color, result) = if let Some((color, read)) = scrub.reading.take() {
            (color, ended(read(), &mut records))
        } else {
            if !scrub.under_way {
                scrub.under_way = true;
                scrub.left = member.replica.colors().collect();
                scrub.left.sort_unstable();
            }
            scrub.at = scrub.at.or_else(|| scrub.left.pop().map(|color| (color, SeqNum::MIN)));
            let Some((color, from)) = scrub.at else {
                scrub.under_way = false;
                scrub.passes += 1;
                return Ok(());
            };
            let result = match member.store.scrub(color, from, max_records, usize::MAX, &mut records) {
                // A disk may read later than it was asked to.
                Ok(Reading::Later(read)) if later => {
                    scrub.reading = Some((color, read));
                    return Ok(());
                }
                Ok(Reading::Later(read)) => ended(read(), &mut records),
                Ok(Reading::Done) => Ok(records.last().and_then(|(last, _)| after(*last))),
                Err(error) => Err(error),
            };
            (color, result)
        };
        let mut damage = None;
        let next = match result {
            Ok(next) => next,
            Err(error) => {
                let found = Damage::from(error);
                let next = after(found.number).map(|next| next.max(found.end));
                damage = Some(found);
                next
            }
        };
        scrub.at = next.filter(|next| *next < SeqNum::MAX).map(|next| (color, next));
        if let Some(damage) = damage {
            self.push(Stream::Store { member: at }, Packet::Store(Input::Damaged(damage)));
        }
        for (number, record) in &records {
            if self.history.name(color, *number).is_some() {
                i05::same_bytes(&self.history, color, *number, record)?;
            }
        }
        Ok(())
    }

    /// With faults at an end, everything that is damaged is found, and written again.
    pub(crate) fn mend_everything(&mut self) -> Result<(), Violation> {
        for round in 0..ROUNDS {
            if !self.is_bug(Bug::RotNotLookedFor) {
                for at in 0..self.machines.len() {
                    let passes = |world: &Self| world.member(at).map_or(0, |member| member.scrub.passes);
                    let before = passes(self);
                    // What is left of a pass, and then a whole one.
                    while self.member(at).is_some_and(|member| member.failed.is_none()) && passes(self) < before + 2 {
                        self.act(Action::Scrub(at))?;
                    }
                }
                self.rest()?;
            }
            if self.damaged()?.is_empty() {
                return Ok(());
            }
            let full = |ledger: &mut crate::ledger::Ledger| std::mem::take(&mut ledger.rot.was_full);
            if self.history.ledgers.iter_mut().map(full).fold(false, |any, one| any | one) && round % 10 == 9 {
                // A store without room for what is to be written again.
                self.trim_everything();
            }
            self.pass(ROUND_MICROS)?;
            self.rest()?;
        }
        mended::nothing_is_left(&self.damaged()?)
    }

    /// What each member cannot read, straight from its store; all else it has as it was appended.
    fn damaged(&self) -> Result<Vec<(usize, Color, SeqNum)>, Violation> {
        let mut all = Vec::new();
        for at in 0..self.machines.len() {
            if let Some(member) = self.member(at) {
                let colors = &self.shape.shards[self.history.home(at)].colors;
                let damaged = mended::reads_back(&self.history, at, colors, &member.store)?;
                all.extend(damaged.into_iter().map(|(color, number)| (at, color, number)));
            }
        }
        Ok(all)
    }

    /// What the planted faults make of a read.
    pub(crate) fn rot_shown(&self, error: ReadError) -> Result<Vec<(SeqNum, Record)>, Damage> {
        let damage = Damage::from(error);
        let rotten = Record::new("as it is").ok().filter(|_| self.is_bug(Bug::RottenBytesShown));
        rotten.map(|record| vec![(damage.number, record)]).ok_or(damage)
    }
}

/// What a disk was asked for: where the next read begins, if anywhere.
fn ended(late: Late, records: &mut Vec<(SeqNum, Record)>) -> Result<Option<SeqNum>, ReadError> {
    records.extend(late.records);
    late.error.map_or(Ok(Some(late.covered)), Err)
}

/// A record's bytes that only its own checksum covers: its tags, where it has some, and its payload.
fn encoded(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    if !record.tags().is_empty() {
        bytes.push(record.tags().len() as u8);
        for tag in record.tags() {
            bytes.push(tag.as_bytes().len() as u8);
            bytes.extend_from_slice(tag.as_bytes());
        }
    }
    bytes.extend_from_slice(record.payload());
    bytes
}

/// Where `record` lies in `bytes`.
fn find<'a>(bytes: &'a [u8], record: &'a [u8]) -> impl Iterator<Item = usize> + use<'a> {
    let (key, rest) = record.split_at(record.len().min(8));
    let words = bytes.windows(key.len().max(1)).enumerate();
    words
        .filter(move |(_, word)| *word == key)
        .map(|(at, _)| at)
        .filter(move |at| bytes.get(at + 8..).is_some_and(|found| found.starts_with(rest)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flexlog_protocol::{Append, Epoch, Incarnation, Position};
    use uuid::Uuid;

    use super::*;

    const KEY: (Color, SeqNum) = (Color(1), SeqNum::MIN);

    fn stage() -> (Token, Write) {
        let token = Token { seq: 1, ..Token::default() };
        let record = Record::new("a record that is long enough").unwrap_or_else(|error| panic!("{error}"));
        let append = Append::new(token, KEY.0, None, vec![record]).unwrap_or_else(|error| panic!("{error}"));
        (token, Write::Stage(Arc::new(append)))
    }

    fn fence() -> Write {
        Write::Fence(Incarnation { position: Position(0), epoch: Epoch(1), uuid: Uuid::nil() })
    }

    #[test]
    fn only_what_a_later_durable_write_says_to_have_been_durable_may_rot() {
        let (token, stage) = stage();
        let mut rot = Rot::default();
        rot.note(&stage);
        // Made before the first was durable: it says nothing of that.
        rot.note(&fence());
        rot.settles();
        rot.settles();
        assert!(!rot.is_known(token, KEY));
        // One that the store did not take says nothing either.
        rot.note(&Write::Nothing);
        rot.settles();
        assert!(!rot.is_known(token, KEY));
        rot.note(&fence());
        assert!(!rot.is_known(token, KEY));
        rot.settles();
        assert!(rot.is_known(token, KEY));
        // It is written once more, which is not known.
        rot.note(&Write::Copy(vec![KEY]));
        assert!(!rot.is_known(token, KEY));
        // An opening makes what it found durable; the next write says so.
        rot.found();
        assert!(!rot.is_known(token, KEY));
        rot.note(&fence());
        rot.settles();
        assert!(rot.is_known(token, KEY));
    }

    #[test]
    fn what_is_rotten_stays_so_until_its_repair_is_durable() {
        let repair = Write::Repair { color: KEY.0, number: KEY.1, written: true };
        let after = SeqNum::from_raw(1);
        let mut rot = Rot::default();
        rot.rotten.insert(KEY);
        rot.note(&repair);
        assert!(rot.is_any(KEY.0, KEY.1, after) && !rot.is_any(KEY.0, after, SeqNum::MAX));
        // The power goes before it is durable.
        rot.take_back();
        rot.found();
        assert!(rot.is_any(KEY.0, KEY.1, after));
        rot.note(&repair);
        rot.settles();
        assert!(!rot.is_any(KEY.0, KEY.1, after));
    }

    #[test]
    fn records_are_found_wherever_they_lie() {
        let record = b"0123456789abcdef";
        let bytes = [&b"xx"[..], record, b"01234567", record, &record[..12]].concat();
        assert_eq!(find(&bytes, record).collect::<Vec<_>>(), [2, 26]);
    }
}
