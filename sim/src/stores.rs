//! What members want of their stores, as the node's engine has it done: writes in their order, fences, work of other
//! threads; and what of it the ledgers are told.

use flexlog_protocol::SeqNum;
use flexlog_protocol::media::{LogStore, StoreError};
use flexlog_replica::{Input, Persist};

use crate::bug::Bug;
use crate::invariants::Violation;
use crate::ledger::Write;
use crate::machine::Job;
use crate::net::{Packet, Stream};
use crate::world::World;

impl World {
    pub(crate) fn write(&mut self, at: usize, what: Persist) -> Result<(), Violation> {
        let unwritten = match &what {
            Persist::Fence(_) => self.is_bug(Bug::SealWithoutFence),
            Persist::Copy { .. } => self.is_bug(Bug::LosesCopies),
            Persist::Truncate { .. } => self.is_bug(Bug::NotTruncated),
            Persist::Repair { .. } => self.is_bug(Bug::LosesRepairs),
            _ => false,
        };
        let Some(member) = self.machines[at].up_mut() else { return Ok(()) };
        member.written += 1;
        member.may_have_work = true;
        if member.failed.is_some() || unwritten {
            return self.history.writes(at, Write::Nothing);
        }
        let mut repaired = false;
        let result = match &what {
            Persist::Stage(append) => member.store.stage(append),
            Persist::Entry(entry) => member.store.append(entry),
            Persist::Fence(incarnation) => member.store.seal(*incarnation),
            Persist::Copy { color, first, records } => member.store.copy(*color, *first, records),
            Persist::Repair { color, number, record } => {
                member.store.repair(*color, *number, record).map(|written| repaired = written)
            }
            Persist::Truncate { upto, entries } => member.store.truncate(*upto, entries),
            Persist::Checkpoint { upto, state } => {
                member.checkpointing = false;
                member.store.checkpoint(*upto, state)
            }
        };
        let full = matches!(result, Err(StoreError::Full { .. }));
        let stage = if let Persist::Stage(append) = &what { Some(append.token()) } else { None };
        let repair = matches!(what, Persist::Repair { .. });
        let (checkpoint, copy) = (matches!(what, Persist::Checkpoint { .. }), matches!(what, Persist::Copy { .. }));
        self.counts.copies += u64::from(copy && !full);
        self.counts.mended += u64::from(repaired);
        self.history.ledgers[at].rot.was_full |= repair && full;
        self.counts.truncations += u64::from(matches!(what, Persist::Truncate { .. }));
        // Where the medium failed a part of it may be there.
        let write = match what {
            _ if full && (stage.is_some() || checkpoint || copy || repair) => Write::Nothing,
            Persist::Stage(append) => Write::Stage(append),
            Persist::Entry(entry) => Write::Entry(entry),
            Persist::Fence(incarnation) => Write::Fence(incarnation),
            Persist::Checkpoint { upto, state } => Write::Checkpoint(upto, state),
            Persist::Copy { color, first, records } => {
                let counters = first.counter()..;
                let numbers = records.iter().zip(counters).map(|(_, at)| (color, SeqNum::new(first.epoch(), at)));
                Write::Copy(numbers.collect())
            }
            Persist::Repair { color, number, .. } => Write::Repair { color, number, written: repaired },
            Persist::Truncate { upto, .. } => Write::Truncate(upto),
        };
        self.history.writes(at, write)?;
        match (result, stage) {
            (Ok(()), _) => {
                if self.is_bug(Bug::DurableBeforeFence) {
                    let upto = self.member(at).map_or(0, |member| member.written);
                    self.push(Stream::Store { member: at }, Packet::Store(Input::Durable { upto }));
                }
                Ok(())
            }
            (Err(StoreError::Full { .. }), Some(token)) => {
                self.history.ledgers[at].refused.insert(token);
                self.push(Stream::Store { member: at }, Packet::Store(Input::StageRefused(token)));
                Ok(())
            }
            (Err(StoreError::Full { .. }), None) if copy => {
                self.push(Stream::Store { member: at }, Packet::Store(Input::CopyRefused));
                Ok(())
            }
            (Err(StoreError::Full { .. }), None) if checkpoint || repair => Ok(()),
            (Err(error), _) => self.store_failed(at, &error.to_string()),
        }
    }

    fn store_failed(&mut self, at: usize, why: &str) -> Result<(), Violation> {
        if !self.machines[at].armed {
            return self.stopped(&format!("the store of member {at}"), why);
        }
        if self.chooser.one_in(4) {
            // Only the medium is broken.
            (self.broken_stores, self.ever_broken) = (true, true);
            if let Some(member) = self.machines[at].up_mut()
                && member.failed.is_none()
            {
                member.failed = Some(why.to_owned());
                self.push(Stream::Store { member: at }, Packet::Store(Input::StoreFailed(why.to_owned())));
            }
        } else {
            self.power_fails = true;
        }
        Ok(())
    }

    /// Another thread does what it has for a store, or the store is asked what there is.
    pub(crate) fn work(&mut self, at: usize) -> Result<(), Violation> {
        let now = self.now;
        let Some(member) = self.machines[at].up_mut() else { return Ok(()) };
        if let Some(Job(work)) = member.job.take() {
            let before = member.store.usage().ssd_records;
            work();
            self.counts.moves += u64::from(member.store.usage().ssd_records > before);
            member.may_have_work = true;
            return Ok(());
        }
        match member.store.background(now, member.replica.commit()) {
            Ok(work) => {
                member.may_have_work = false;
                member.job = work.map(Job);
                Ok(())
            }
            Err(error) => {
                member.may_have_work = false;
                self.store_failed(at, &error.to_string())
            }
        }
    }

    pub(crate) fn start_fence(&mut self, at: usize) -> Result<(), Violation> {
        let Some(member) = self.machines[at].up_mut() else { return Ok(()) };
        match member.store.fence() {
            Ok(id) => {
                let upto = member.written;
                member.covered = upto;
                member.fence = Some((id, upto));
                if self.is_bug(Bug::EntriesDurableWhenFenceStarts) {
                    self.push(Stream::Store { member: at }, Packet::Store(Input::Durable { upto }));
                }
                self.look_at_fence(at)
            }
            Err(error) => self.store_failed(at, &error.to_string()),
        }
    }

    pub(crate) fn finish_fence(&mut self, at: usize) -> Result<(), Violation> {
        self.machines[at].media.finish_fence();
        self.look_at_fence(at)
    }

    fn look_at_fence(&mut self, at: usize) -> Result<(), Violation> {
        let Some(member) = self.machines[at].up_mut() else { return Ok(()) };
        let Some((id, upto)) = member.fence else { return Ok(()) };
        match member.store.fenced() {
            Ok(done) if done >= id => {
                member.fence = None;
                member.may_have_work = true;
                self.history.durable_upto(at, upto)?;
                self.push(Stream::Store { member: at }, Packet::Store(Input::Durable { upto }));
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) => {
                member.fence = None;
                let why = error.to_string();
                self.store_failed(at, &why)
            }
        }
    }

    pub(crate) fn want_checkpoint(&mut self, at: usize) {
        if let Some(member) = self.machines[at].up_mut() {
            member.checkpointing = true;
            self.push(Stream::Store { member: at }, Packet::Store(Input::CheckpointWanted));
        }
    }
}
