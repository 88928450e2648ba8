//! What happened in a run, as someone sees it who sees everything: what was sent, what is committed, what was shown.
//!
//! The truth of a shard log is what is durable on every member of the view that metadata has: an entry is committed from
//! the moment on that this holds, whether or not anyone knows yet. Whoever leads next begins with that view and takes the
//! longest log in it. The invariants compare what the cores say with that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flexlog_protocol::{Append, Body, Color, Entry, Epoch, Record, SeqNum, SessionId, Token};
use uuid::Uuid;

use crate::invariants::{self, Violation};
use crate::ledger::{Ledger, Write};

/// An append that some client sent.
#[derive(Debug)]
pub(crate) struct Sent {
    /// What was sent under this token: more than one only where the client breaks the rules.
    pub(crate) variants: Vec<Arc<Append>>,
    /// Its number is at least this: everything below was given away when it was sent (I4).
    pub(crate) floor: SeqNum,
}

/// What is settled of one color.
#[derive(Debug, Default)]
pub(crate) struct ColorTruth {
    /// The exclusive end of what is settled in the epoch that it counts in; `None` before the first number.
    pub(crate) end: Option<SeqNum>,
    /// Whether that epoch was ended.
    pub(crate) closed: bool,
    /// The last number of each epoch that was ended, exclusive.
    pub(crate) ends: BTreeMap<Epoch, SeqNum>,
    pub(crate) records: BTreeMap<SeqNum, (Token, u32)>,
    /// First and exclusive end.
    pub(crate) holes: Vec<(SeqNum, SeqNum)>,
    /// The trim point, and all that it ever was.
    pub(crate) trim: Option<SeqNum>,
    pub(crate) trims: BTreeSet<SeqNum>,
    /// What was acknowledged or read, and when first.
    pub(crate) shown: BTreeMap<SeqNum, u64>,
    /// Everything below was given away: from acknowledgements, reads and tails.
    pub(crate) floor: SeqNum,
    /// Someone was told that everything below is settled.
    pub(crate) passed: SeqNum,
    /// Someone was told that these name no record.
    pub(crate) told_holes: BTreeSet<SeqNum>,
}

impl ColorTruth {
    pub(crate) fn is_trimmed(&self, number: SeqNum) -> bool {
        self.trim.is_some_and(|trim| number <= trim)
    }
}

/// A session that is committed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionTruth {
    pub(crate) closed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Events so far.
    pub(crate) event: u64,
    pub(crate) sent: BTreeMap<Token, Sent>,
    /// One for each replica.
    pub(crate) ledgers: Vec<Ledger>,
    /// The replicas in the view that metadata has.
    pub(crate) view: Vec<usize>,
    pub(crate) committed: Vec<Arc<Entry>>,
    pub(crate) tokens: BTreeMap<Token, SeqNum>,
    pub(crate) colors: BTreeMap<Color, ColorTruth>,
    pub(crate) sessions: BTreeMap<SessionId, SessionTruth>,
    /// The sessions that each nonce named, the newest last.
    pub(crate) nonces: BTreeMap<Uuid, Vec<SessionId>>,
    /// Staged durably on some replica and not settled.
    pub(crate) open: BTreeMap<Token, (Color, u32)>,
    /// What settled tokens name.
    pub(crate) appends: BTreeMap<Token, Arc<Append>>,
    /// Appends that were acknowledged to their clients.
    pub(crate) acknowledged: u64,
}

impl History {
    /// Of so many replicas the first `members` are in the view.
    pub(crate) fn new(replicas: usize, members: usize) -> Self {
        let ledgers = (0..replicas).map(|_| Ledger::default()).collect();
        Self { ledgers, view: (0..members).collect(), ..Self::default() }
    }

    /// The ledgers of the view's members.
    pub(crate) fn members(&self) -> impl Iterator<Item = (usize, &Ledger)> {
        self.view.iter().map(|member| (*member, &self.ledgers[*member]))
    }

    /// Metadata has another view: what that takes in must have all that is committed.
    pub(crate) fn set_view(&mut self, view: Vec<usize>) -> Result<(), Violation> {
        for member in &view {
            if !self.view.contains(member) {
                invariants::i02_on_every_member::joins(self, *member)?;
            }
        }
        self.view = view;
        self.advance()
    }

    /// A replica's store takes a write.
    pub(crate) fn writes(&mut self, member: usize, write: Write) -> Result<(), Violation> {
        match &write {
            Write::Checkpoint(upto, _) => invariants::i02_on_every_member::copies(self, member, *upto)?,
            Write::Truncate(upto) => invariants::i02_on_every_member::takes_back(self, member, *upto)?,
            _ => {}
        }
        self.ledgers[member].note(write, &self.committed);
        Ok(())
    }

    pub(crate) fn color(&mut self, color: Color) -> &mut ColorTruth {
        self.colors.entry(color).or_default()
    }

    pub(crate) fn floor(&self, color: Color) -> SeqNum {
        self.colors.get(&color).map_or(SeqNum::MIN, |truth| truth.floor)
    }

    /// A client sends this; for the first time, or again.
    pub(crate) fn sends(&mut self, append: &Arc<Append>) {
        let floor = self.floor(append.color());
        let sent = self.sent.entry(append.token()).or_insert(Sent { variants: Vec::new(), floor });
        if sent.variants.iter().all(|variant| variant.digest() != append.digest()) {
            sent.variants.push(Arc::clone(append));
        }
    }

    /// The record that a settled number names: as the members staged it.
    pub(crate) fn record(&self, color: Color, number: SeqNum) -> Option<&Record> {
        let (token, index) = self.colors.get(&color)?.records.get(&number)?;
        self.appends.get(token)?.records().get(*index as usize)
    }

    /// A number was acknowledged or read.
    pub(crate) fn shows(&mut self, color: Color, number: SeqNum) {
        let event = self.event;
        let truth = self.color(color);
        truth.shown.entry(number).or_insert(event);
        // A record's number is never the last of its epoch.
        truth.floor = truth.floor.max(number.plus(1).unwrap_or(number));
    }

    /// Writes of a member became durable.
    pub(crate) fn durable_upto(&mut self, member: usize, upto: u64) -> Result<(), Violation> {
        let news = self.ledgers[member].durable_upto(upto);
        for token in news.staged {
            self.staged_durably(member, token);
        }
        if news.entries { self.advance() } else { Ok(()) }
    }

    /// Some replica has this token durably.
    pub(crate) fn staged_durably(&mut self, member: usize, token: Token) {
        if !self.tokens.contains_key(&token)
            && let Some(written) = self.ledgers[member].staged.get(&token)
        {
            self.open.insert(token, (written.append.color(), written.append.count()));
        }
    }

    /// Commits what is durable on every member of the view now.
    pub(crate) fn advance(&mut self) -> Result<(), Violation> {
        let durable = self.members().map(|(_, ledger)| ledger.durable).min().unwrap_or_default();
        while (self.committed.len() as u64) < durable {
            let at = self.committed.len();
            invariants::i02_on_every_member::entry_is_the_same(self, at)?;
            let entry = Arc::clone(&self.ledgers[self.view[0]].log[at]);
            self.commit(&entry)?;
            self.committed.push(entry);
        }
        Ok(())
    }

    fn commit(&mut self, entry: &Entry) -> Result<(), Violation> {
        match &entry.body {
            Body::Assign(runs) => {
                for run in runs {
                    for (token, first) in run.each() {
                        invariants::i01_one_number_one_record::settles(self, token, run.color, first, run.records)?;
                        invariants::i04_acknowledged_before_sent::numbered(self, token, run.color, first)?;
                        invariants::i06_alike_below_stable::goes_on(self, run.color, first, run.records)?;
                        self.tokens.insert(token, first);
                        self.open.remove(&token);
                        let written = self.members().find_map(|(_, ledger)| ledger.staged.get(&token));
                        if let Some(append) = written.map(|written| Arc::clone(&written.append)) {
                            self.appends.insert(token, append);
                        }
                        let truth = self.color(run.color);
                        for index in 0..run.records {
                            let number = SeqNum::new(first.epoch(), first.counter() + index);
                            truth.records.insert(number, (token, index));
                        }
                    }
                }
            }
            Body::Hole { color, first, count } => {
                invariants::i06_alike_below_stable::goes_on(self, *color, *first, *count)?;
                let end = SeqNum::new(first.epoch(), first.counter() + count);
                self.color(*color).holes.push((*first, end));
            }
            Body::EpochEnd { color, end, next } => {
                invariants::i06_alike_below_stable::epoch_ends(self, *color, *end, *next)?;
            }
            Body::NewView(_) => {}
            Body::OpenSession { nonce } => {
                let id = SessionId { epoch: entry.epoch, lsn: entry.lsn };
                let newest = self.nonces.get(nonce).and_then(|ids| ids.last());
                if newest.and_then(|id| self.sessions.get(id)).is_none_or(|session| session.closed) {
                    self.nonces.entry(*nonce).or_default().push(id);
                    self.sessions.insert(id, SessionTruth { closed: false });
                }
            }
            Body::CloseSession(id) => {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.closed = true;
                }
            }
            Body::Trim { color, upto } => {
                let truth = self.color(*color);
                truth.trim = truth.trim.max(Some(*upto));
                truth.trims.insert(*upto);
            }
        }
        Ok(())
    }
}
