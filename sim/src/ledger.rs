//! What one member's store was given, and how much of that is durable, kept apart from the store.
//!
//! It relies on the world to say when a memory fence of the medium is done, whatever the member was told. What the
//! invariants call *durable* is what stands here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use flexlog_protocol::{Append, Body, Color, Entry, Incarnation, Lsn, SeqNum, Token};

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
    Entry,
    Fence(Incarnation),
    Nothing,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The shard log from its first entry on, as written.
    pub(crate) log: Vec<Arc<Entry>>,
    /// How much of it is durable.
    pub(crate) durable: u64,
    /// What `log` assigned.
    pub(crate) assigned: BTreeMap<Token, (SeqNum, Lsn)>,
    pub(crate) staged: BTreeMap<Token, Written>,
    pub(crate) dropped: BTreeSet<Token>,
    /// Refused by the store, and the member has not heard of that.
    pub(crate) refused: BTreeSet<Token>,
    /// Every `Fence`, in order.
    pub(crate) fences: Vec<Incarnation>,
    /// The newest of them that is durable.
    pub(crate) fence: Option<Incarnation>,
    pub(crate) checkpoints: Vec<(Lsn, Bytes)>,
    /// What the store was told to forget.
    pub(crate) trims: BTreeMap<Color, SeqNum>,
    pending: VecDeque<Pending>,
    /// How many writes of this process are durable.
    settled: u64,
}

impl Ledger {
    pub(crate) fn note(&mut self, write: Write) {
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
                Pending::Entry
            }
            Write::Fence(incarnation) => {
                self.fences.push(incarnation);
                Pending::Fence(incarnation)
            }
            Write::Checkpoint(upto, state) => {
                self.checkpoints.push((upto, state));
                Pending::Nothing
            }
            Write::Nothing => Pending::Nothing,
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
            match pending {
                Pending::Stage(token) => {
                    if let Some(written) = self.staged.get_mut(&token) {
                        written.durable = true;
                        news.staged.push(token);
                    }
                }
                Pending::Entry => {
                    self.durable += 1;
                    news.entries = true;
                }
                Pending::Fence(incarnation) => self.fence = Some(incarnation),
                Pending::Nothing => {}
            }
        }
        news
    }

    /// The process is gone; what is pending may be there or not.
    pub(crate) fn process_ended(&mut self) {
        self.pending.clear();
        self.refused.clear();
        self.settled = 0;
    }

    /// Only the first `len` entries are there.
    pub(crate) fn truncate(&mut self, len: u64) {
        self.log.truncate(len as usize);
        self.assigned.retain(|_, (_, lsn)| lsn.0 <= len);
        self.durable = len;
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
