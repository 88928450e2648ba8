//! The members of a process with their stores: writes and fences, reads, and what is done elsewhere meanwhile.

use flexlog_protocol::api::ReplicaStatus;
use flexlog_protocol::media::{FenceId, Late, LaterRead, LogStore, ReadError, Reading, StoreError};
use flexlog_protocol::{Color, Record, ReplicaId, SeqNum, Time};
use flexlog_replica::{Damage, FetchId, Persist, Replica};

use super::scrub::Scrub;
use super::{Engine, Message};

/// What a member wants from its store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// `None`: it is the engine's own, see `scrub`.
    pub(super) fetch: Option<FetchId>,
    pub(super) color: Color,
    pub(super) from: SeqNum,
    pub(super) upto: SeqNum,
    pub(super) max_records: usize,
    pub(super) max_bytes: usize,
}

/// A read that may wait for a disk.
pub struct SlowRead {
    pub(super) at: usize,
    pub(super) wanted: Wanted,
    pub(super) read: LaterRead,
}

/// What a [`SlowRead`] came to.
pub struct ReadDone {
    pub(super) at: usize,
    pub(super) wanted: Wanted,
    pub(super) late: Late,
}

impl SlowRead {
    /// Reads. To be called on another thread.
    #[must_use]
    pub fn run(self) -> ReadDone {
        ReadDone { at: self.at, wanted: self.wanted, late: (self.read)() }
    }
}

/// Names the store that background work is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreAt(pub(super) usize);

/// A member and its store.
pub struct Member {
    pub(super) id: ReplicaId,
    pub(super) replica: Replica,
    pub(super) store: Box<dyn LogStore>,
    /// For people.
    pub(super) path: String,
    pub(super) opened: u64,
    /// Writes that the store was given.
    pub(super) written: u64,
    /// Writes that a fence was started for.
    pub(super) covered: u64,
    /// The fence under way, and how many writes it covers.
    pub(super) fence: Option<(FenceId, u64)>,
    pub(super) checkpointing: bool,
    /// The last checkpoint had no room: the next is tried once more was given up.
    pub(super) cramped: bool,
    /// Work of its store is under way elsewhere.
    pub(super) working: bool,
    pub(super) failed: Option<String>,
    pub(super) scrub: Scrub,
    /// Records that were found damaged, written again, and lost, since the start.
    pub(super) damaged: u64,
    pub(super) repaired: u64,
    pub(super) lost: u64,
}

impl Member {
    /// A member over an opened store, which lies at `path` and was opened `opened` times.
    pub fn new(id: ReplicaId, replica: Replica, store: Box<dyn LogStore>, path: String, opened: u64) -> Self {
        Self {
            id,
            replica,
            store,
            path,
            opened,
            written: 0,
            covered: 0,
            fence: None,
            checkpointing: false,
            cramped: false,
            working: false,
            failed: None,
            scrub: Scrub::default(),
            damaged: 0,
            repaired: 0,
            lost: 0,
        }
    }

    /// The same, whose store is read through at so many bytes a second to find what is damaged; 0 for not at all.
    #[must_use]
    pub fn with_scrub(mut self, bytes_per_second: u64) -> Self {
        self.scrub.rate = bytes_per_second;
        self
    }
}

impl Member {
    pub(super) fn status(&self, now: Time) -> ReplicaStatus {
        let usage = self.store.usage();
        ReplicaStatus {
            replica: self.id,
            state: self.failed.clone().unwrap_or_else(|| "ok".to_owned()),
            path: self.path.clone(),
            device: usage.device,
            used_bytes: usage.used_bytes,
            limit_bytes: usage.limit_bytes,
            records: usage.records,
            staged: usage.staged_tokens,
            index_bytes: usage.index_bytes,
            ssd_files: usage.ssd_files,
            ssd_bytes: usage.ssd_bytes,
            ssd_records: usage.ssd_records,
            opened: self.opened,
            damaged: self.damaged,
            repaired: self.repaired,
            lost: self.lost,
            scrubbed_bytes: self.scrub.bytes,
            scrub_passes: self.scrub.passes,
            scrub_ended_secs: self.scrub.ended.map_or(0, |ended| now.0.saturating_sub(ended.0) / 1_000_000),
        }
    }
}

impl Engine {
    /// A read has ended. [`Engine::run`] comes next.
    pub fn read_done(&mut self, done: ReadDone) {
        let ReadDone { at, wanted, late } = done;
        let Some(fetch) = wanted.fetch else { return self.scrub_read(at, wanted.color, late) };
        let Late { records, covered, error } = late;
        let result = match error {
            Some(error) if records.is_empty() => Err(Damage::from(error)),
            // What was read goes out; the one that cannot be read is met again, first, by the next fetch.
            Some(_) => Ok(records),
            None if records.is_empty() && covered < wanted.upto => {
                return self.fetch(at, Wanted { from: covered, ..wanted });
            }
            None => Ok(records),
        };
        let input = flexlog_replica::Input::Fetched { fetch, result };
        self.queue.push_back(Message::Member(at, input));
    }

    /// Work of a store has ended. [`Engine::run`] comes next.
    pub fn work_done(&mut self, store: StoreAt) {
        self.members[store.0].working = false;
        // What moved may have made room for a checkpoint.
        self.members[store.0].cramped = false;
    }

    pub(super) fn want_work(&mut self, now: Time) {
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            if member.working || member.failed.is_some() {
                continue;
            }
            match member.store.background(now, member.replica.commit()) {
                Ok(Some(work)) => {
                    member.working = true;
                    self.work.push((StoreAt(at), work));
                }
                Ok(None) => {}
                Err(error) => self.fail(at, &error.to_string()),
            }
        }
    }

    pub(super) fn fetch(&mut self, at: usize, wanted: Wanted) {
        let Wanted { color, from, upto, max_records, max_bytes, .. } = wanted;
        let mut records = Vec::new();
        let read = self.members[at].store.read(color, from, upto, max_records, max_bytes, &mut records);
        self.fetched(at, wanted, read, records);
    }

    pub(super) fn fetch_prev(&mut self, at: usize, fetch: FetchId, color: Color, upto: SeqNum) {
        let mut records = Vec::new();
        let read = self.members[at].store.prev(color, upto, &mut records);
        // What comes of it is all that there is: nothing is read on.
        let wanted = Wanted { fetch: Some(fetch), color, from: upto, upto, max_records: 1, max_bytes: 1 };
        self.fetched(at, wanted, read, records);
    }

    fn fetched(&mut self, at: usize, wanted: Wanted, read: Result<Reading, ReadError>, records: Vec<(SeqNum, Record)>) {
        let Some(fetch) = wanted.fetch else { return };
        let result = match read {
            Ok(Reading::Later(read)) => return self.reads.push(SlowRead { at, wanted, read }),
            Err(error) if records.is_empty() => Err(Damage::from(error)),
            // As in `read_done`.
            _ => Ok(records),
        };
        self.queue.push_back(Message::Member(at, flexlog_replica::Input::Fetched { fetch, result }));
    }

    pub(super) fn write(&mut self, at: usize, what: Persist) {
        let member = &mut self.members[at];
        member.written += 1;
        if member.failed.is_some() {
            return;
        }
        let result = match &what {
            Persist::Stage(append) => member.store.stage(append),
            Persist::Entry(entry) => member.store.append(entry),
            Persist::Fence(incarnation) => member.store.seal(*incarnation),
            Persist::Copy { color, first, records } => member.store.copy(*color, *first, records),
            Persist::Repair { color, number, record } => member.store.repair(*color, *number, record).map(|written| {
                if written {
                    member.repaired += 1;
                    tracing::warn!(store = member.path, %color, %number, "a damaged record was written again");
                }
            }),
            Persist::Truncate { upto, entries } => member.store.truncate(*upto, entries),
            Persist::Checkpoint { upto, state } => {
                member.checkpointing = false;
                member.store.checkpoint(*upto, state)
            }
        };
        match (result, &what) {
            // Every member stages the same, so what one stages is counted.
            (Ok(()), Persist::Stage(append)) if at == 0 => self.count(append),
            (Ok(()), _) => {}
            (Err(StoreError::Full { .. }), Persist::Stage(append)) => {
                let input = flexlog_replica::Input::StageRefused(append.token());
                self.queue.push_back(Message::Member(at, input));
            }
            (Err(error @ StoreError::Full { .. }), Persist::Copy { .. }) => {
                tracing::warn!(replica = %member.id, %error, "no room for what is copied from another replica");
                self.queue.push_back(Message::Member(at, flexlog_replica::Input::CopyRefused));
            }
            (Err(error @ StoreError::Full { .. }), Persist::Repair { color, number, .. }) => {
                tracing::warn!(store = member.path, %color, %number, %error, "no room to write a damaged record again");
            }
            // The space kept back for checkpoints is gone: the next one may find more, once more was trimmed.
            (Err(error @ StoreError::Full { .. }), Persist::Checkpoint { .. }) => {
                tracing::warn!(replica = %member.id, %error, "no room for a checkpoint");
                member.cramped = true;
            }
            (Err(error), _) => self.fail(at, &error.to_string()),
        }
    }

    pub(super) fn fail(&mut self, at: usize, why: &str) {
        let member = &mut self.members[at];
        if member.failed.is_none() {
            tracing::error!(replica = %member.id, why, "a store failed");
            member.failed = Some(why.to_owned());
            self.queue.push_back(Message::Member(at, flexlog_replica::Input::StoreFailed(why.to_owned())));
        }
    }

    /// One fence for everything that a store was given since the last; none while one is under way.
    pub(super) fn start_fences(&mut self) {
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            if member.fence.is_some() || member.written == member.covered || member.failed.is_some() {
                continue;
            }
            match member.store.fence() {
                Ok(id) => {
                    member.covered = member.written;
                    member.fence = Some((id, member.written));
                }
                Err(error) => self.fail(at, &error.to_string()),
            }
        }
        self.fenced();
    }

    pub(super) fn look_at_fence(&mut self, at: usize) {
        let member = &mut self.members[at];
        let Some((id, upto)) = member.fence else { return };
        match member.store.fenced() {
            Ok(done) if done >= id => {
                member.fence = None;
                self.queue.push_back(Message::Member(at, flexlog_replica::Input::Durable { upto }));
            }
            Ok(_) => {}
            Err(error) => {
                member.fence = None;
                self.fail(at, &error.to_string());
            }
        }
    }

    pub(super) fn want_checkpoints(&mut self) {
        for (at, member) in self.members.iter_mut().enumerate() {
            // The next one waits until this one is durable: only then does the store know whether it wants another.
            let idle = member.fence.is_none() && !member.checkpointing && !member.cramped && member.failed.is_none();
            // Before it is led nothing new is known to be committed.
            if idle && member.replica.is_led() && member.store.checkpoint_wanted() {
                member.checkpointing = true;
                self.queue.push_back(Message::Member(at, flexlog_replica::Input::CheckpointWanted));
            }
        }
    }
}
