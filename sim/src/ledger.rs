//! What one replica's store was given, and how much of that is durable, kept apart from the store.
//!
//! It relies on the world to say when a memory fence of the medium is done, whatever the replica was told. What the
//! invariants call *durable* is what stands here. Writes that no fence covered may be there or not after a crash, but
//! always a prefix of them: so they can be taken back one by one, from the last, until what is left is what was found.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use flexlog_protocol::{Append, Body, Color, Entry, Incarnation, Lsn, SeqNum, Token};

use crate::rot::Rot;

/// Records that were staged.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) append: Arc<Append>,
    pub(crate) durable: bool,
}

/// One write of a store.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    Stage(Arc<Append>),
    Entry(Arc<Entry>),
    Fence(Incarnation),
    Checkpoint(Lsn, Bytes),
    /// Records with these numbers.
    Copy(Vec<(Color, SeqNum)>),
    /// Only the log up to here stands.
    Truncate(Lsn),
    /// A record that was damaged. Not `written`: it is whole, or trimmed.
    Repair {
        color: Color,
        number: SeqNum,
        written: bool,
    },
    /// The store refused it.
    Nothing,
}

/// What became durable.
#[derive(Debug, Default)]
pub(crate) struct Durable {
    pub(crate) staged: Vec<Token>,
    pub(crate) entries: bool,
}

#[derive(Debug)]
enum Pending {
    Stage(Token),
    /// The entry at this place, and whether it stands: it may have been taken back before it was durable.
    Entry(u64, bool),
    Fence(Incarnation),
    Copy(Vec<(Color, SeqNum)>),
    /// These were taken back, from the place behind which the log ends.
    Truncate(Vec<Arc<Entry>>),
    /// The log went on at a place above its end, and this was its end.
    Jump(u64, u64),
    Nothing,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The shard log from its first entry on, as written. What was copied is here as it was committed.
    pub(crate) log: Vec<Arc<Entry>>,
    /// How much of it is durable.
    pub(crate) durable: u64,
    /// What `log` assigned.
    pub(crate) assigned: BTreeMap<Token, (SeqNum, Lsn)>,
    pub(crate) staged: BTreeMap<Token, Written>,
    /// What was staged here and numbered by a part of the log that was copied: the store may still have it.
    pub(crate) over: BTreeMap<Token, Written>,
    pub(crate) dropped: BTreeSet<Token>,
    /// Refused by the store, and the member has not heard of that.
    pub(crate) refused: BTreeSet<Token>,
    /// Numbers whose records were copied from another replica, and whether that is durable.
    pub(crate) copied: BTreeMap<(Color, SeqNum), bool>,
    /// Up to here the log was copied: its records need not have been staged here.
    pub(crate) jumped: u64,
    /// Every `Fence`, in order.
    pub(crate) fences: Vec<Incarnation>,
    /// The newest of them that is durable.
    pub(crate) fence: Option<Incarnation>,
    pub(crate) checkpoints: Vec<(Lsn, Bytes)>,
    /// What the store was told to forget.
    pub(crate) trims: BTreeMap<Color, SeqNum>,
    pub(crate) rot: Rot,
    pending: VecDeque<Pending>,
    /// How many writes of this process are durable.
    settled: u64,
}

impl Ledger {
    /// Takes a write. A checkpoint above the end of the log stands for all that is `committed` up to it.
    pub(crate) fn note(&mut self, write: Write, committed: &[Arc<Entry>]) {
        self.rot.note(&write);
        let pending = match write {
            Write::Stage(append) => {
                let token = append.token();
                self.staged.insert(token, Written { append, durable: false });
                self.dropped.remove(&token);
                Pending::Stage(token)
            }
            Write::Entry(entry) => {
                self.assign(&entry);
                self.log.push(entry);
                Pending::Entry(self.log.len() as u64, true)
            }
            Write::Fence(incarnation) => {
                self.fences.push(incarnation);
                Pending::Fence(incarnation)
            }
            Write::Checkpoint(upto, state) => {
                self.checkpoints.push((upto, state));
                let end = self.log.len() as u64;
                if upto.0 > end {
                    for entry in &committed[end as usize..upto.0 as usize] {
                        self.assign(entry);
                        self.log.push(Arc::clone(entry));
                        for token in tokens(entry) {
                            if let Some(written) = self.staged.remove(&token) {
                                self.over.insert(token, written);
                            }
                        }
                    }
                    self.jumped = upto.0;
                    Pending::Jump(end, upto.0)
                } else {
                    Pending::Nothing
                }
            }
            Write::Copy(numbers) => {
                numbers.iter().for_each(|number| _ = self.copied.entry(*number).or_insert(false));
                Pending::Copy(numbers)
            }
            Write::Truncate(upto) => {
                let gone = self.log.split_off(self.log.len().min(upto.0 as usize));
                self.assigned.retain(|_, (_, lsn)| *lsn <= upto);
                self.durable = self.durable.min(upto.0);
                for pending in &mut self.pending {
                    if let Pending::Entry(lsn, stands) = pending {
                        *stands &= *lsn <= upto.0;
                    }
                }
                Pending::Truncate(gone)
            }
            Write::Repair { .. } | Write::Nothing => Pending::Nothing,
        };
        self.pending.push_back(pending);
    }

    fn assign(&mut self, entry: &Entry) {
        let Body::Assign(runs) = &entry.body else { return };
        for (token, first) in runs.iter().flat_map(flexlog_protocol::Assign::each) {
            self.assigned.insert(token, (first, entry.lsn));
        }
    }

    /// The first `upto` writes of this process are durable.
    pub(crate) fn durable_upto(&mut self, upto: u64) -> Durable {
        let mut news = Durable::default();
        while self.settled < upto {
            let Some(pending) = self.pending.pop_front() else { break };
            self.settled += 1;
            self.rot.settles();
            match pending {
                Pending::Stage(token) => {
                    if let Some(written) = self.staged.get_mut(&token) {
                        written.durable = true;
                        news.staged.push(token);
                    }
                }
                Pending::Entry(lsn, true) | Pending::Jump(_, lsn) => {
                    self.durable = lsn;
                    news.entries = true;
                }
                Pending::Fence(incarnation) => self.fence = Some(incarnation),
                Pending::Copy(numbers) => numbers.into_iter().for_each(|number| _ = self.copied.insert(number, true)),
                Pending::Entry(_, false) | Pending::Truncate(_) | Pending::Nothing => {}
            }
        }
        news
    }

    /// The process is gone; what is pending may be there or not.
    pub(crate) fn process_ended(&mut self) {
        self.refused.clear();
        self.settled = 0;
    }

    /// The last write that may not be there is not. Returns false when all that is left must be there.
    pub(crate) fn take_back(&mut self) -> bool {
        self.rot.take_back();
        match self.pending.pop_back() {
            None => return false,
            Some(Pending::Entry(..)) => _ = self.log.pop(),
            Some(Pending::Truncate(gone)) => self.log.extend(gone),
            Some(Pending::Jump(end, _)) => {
                for entry in self.log.split_off(end as usize) {
                    for token in tokens(&entry) {
                        if let Some(written) = self.over.remove(&token) {
                            self.staged.insert(token, written);
                        }
                    }
                }
            }
            Some(Pending::Stage(_) | Pending::Fence(_) | Pending::Copy(_) | Pending::Nothing) => {}
        }
        true
    }

    /// What is in the log now is durable, and nothing is pending.
    pub(crate) fn found(&mut self) {
        self.rot.found();
        let jump = self.pending.iter().rposition(|pending| matches!(pending, Pending::Jump(..)));
        for pending in self.pending.drain(..).take(jump.unwrap_or_default()) {
            if let Pending::Copy(numbers) = pending {
                self.copied.extend(numbers.into_iter().map(|number| (number, true)));
            }
        }
        self.durable = self.log.len() as u64;
        self.jumped = self.jumped.min(self.durable);
        self.assigned.clear();
        for entry in std::mem::take(&mut self.log) {
            self.assign(&entry);
            self.log.push(entry);
        }
    }

    /// Whether the records of a token are durable with their numbers, and only so.
    pub(crate) fn has_numbered(&self, token: Token, key: (Color, SeqNum)) -> bool {
        if self.over.contains_key(&token) {
            return false;
        }
        let assigned = self.assigned.get(&token).is_some_and(|(_, lsn)| lsn.0 <= self.durable);
        match self.staged.get(&token) {
            Some(written) => written.durable && assigned,
            None => self.copied.get(&key) == Some(&true),
        }
    }

    /// The entries among the first `upto` writes of this process that are not known durable.
    pub(crate) fn covers(&self, upto: u64) -> impl Iterator<Item = &Entry> {
        let pending = self.pending.iter().take(upto.saturating_sub(self.settled) as usize);
        pending.filter_map(|pending| match pending {
            Pending::Entry(lsn, true) => self.log.get(*lsn as usize - 1).map(|entry| &**entry),
            _ => None,
        })
    }

    pub(crate) fn is_staged_durably(&self, token: Token) -> bool {
        self.staged.get(&token).is_some_and(|written| written.durable)
    }

    /// Whether the member has heard of it in a way that it remembers.
    pub(crate) fn knows(&self, token: Token) -> bool {
        self.refused.contains(&token)
            || self.assigned.contains_key(&token)
            || (self.staged.contains_key(&token) && !self.dropped.contains(&token))
    }
}

fn tokens(entry: &Entry) -> impl Iterator<Item = Token> + use<'_> {
    let runs: &[flexlog_protocol::Assign] = if let Body::Assign(runs) = &entry.body { runs } else { &[] };
    runs.iter().flat_map(flexlog_protocol::Assign::each).map(|(token, _)| token)
}
