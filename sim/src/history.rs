//! What happened in a run, as someone sees it who sees everything: what was sent, what is committed, what was shown.
//!
//! The truth of a shard log is what is durable on every member of the view that metadata has: an entry is committed from
//! the moment on that this holds, whether or not anyone knows yet. Whoever leads next begins with that view and takes the
//! longest log in it. The invariants compare what the cores say with that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flexlog_history::Operation;
use flexlog_protocol::{Append, Body, Color, Entry, Epoch, Record, SeqNum, SessionId, Token};
use uuid::Uuid;

use crate::invariants::{self, Violation};
use crate::ledger::{Ledger, Write};
use crate::shape::{Shape, Shard, shard_of};

/// An append that some client sent.
#[derive(Debug)]
pub(crate) struct Sent {
    /// What was sent under this token: more than one only where the client breaks the rules.
    pub(crate) variants: Vec<Arc<Append>>,
    /// Its number is at least this: everything below was given away when it was sent (I4).
    pub(crate) floor: SeqNum,
    /// When it was sent first.
    pub(crate) event: u64,
    pub(crate) is_acknowledged: bool,
}

/// What is settled of one color.
#[derive(Debug, Default)]
pub(crate) struct ColorTruth {
    /// The exclusive end of what is settled, on any shard; `None` before the first number.
    pub(crate) end: Option<SeqNum>,
    /// What each shard has of it.
    pub(crate) parts: BTreeMap<usize, ColorPart>,
    /// The last number of each epoch that was ended, exclusive.
    pub(crate) ends: BTreeMap<Epoch, SeqNum>,
    pub(crate) records: BTreeMap<SeqNum, (Token, u32)>,
    /// First and exclusive end.
    pub(crate) holes: Vec<(SeqNum, SeqNum)>,
    /// All that its trim points ever were.
    pub(crate) trims: BTreeSet<SeqNum>,
    /// What was acknowledged or read, and when first.
    pub(crate) shown: BTreeMap<SeqNum, u64>,
    /// Everything below was given away: from acknowledgements, reads and tails.
    pub(crate) floor: SeqNum,
    /// Someone was told that everything below is settled.
    pub(crate) passed: SeqNum,
    /// Someone was told that these name no record.
    pub(crate) told_holes: BTreeSet<SeqNum>,
    /// What its owners gave away, and what leaves were given of it: exclusive end by first number.
    pub(crate) granted: BTreeMap<SeqNum, SeqNum>,
    pub(crate) given: BTreeMap<SeqNum, SeqNum>,
}

/// What is settled of one color in one shard's log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ColorPart {
    /// The exclusive end in the epoch that it counts in; `None` before the first number.
    pub(crate) end: Option<SeqNum>,
    /// Whether that epoch was ended.
    pub(crate) closed: bool,
    /// The trim point.
    pub(crate) trim: Option<SeqNum>,
}

impl ColorTruth {
    /// Whether a shard has forgotten a number.
    pub(crate) fn is_trimmed(&self, shard: usize, number: SeqNum) -> bool {
        self.trim(shard).is_some_and(|trim| number <= trim)
    }

    /// The trim point at a shard.
    pub(crate) fn trim(&self, shard: usize) -> Option<SeqNum> {
        self.parts.get(&shard)?.trim
    }

    /// The shard that has a record.
    pub(crate) fn home(&self, number: SeqNum) -> Option<usize> {
        self.records.get(&number).map(|(token, _)| shard_of(token.shard))
    }
}

/// A session that is committed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionTruth {
    pub(crate) closed: bool,
}

/// What is settled of one shard.
#[derive(Debug)]
pub(crate) struct ShardTruth {
    /// The replicas in the view that metadata has.
    pub(crate) view: Vec<usize>,
    pub(crate) committed: Vec<Arc<Entry>>,
    pub(crate) sessions: BTreeMap<SessionId, SessionTruth>,
    /// The sessions that each nonce named, the newest last.
    pub(crate) nonces: BTreeMap<Uuid, Vec<SessionId>>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Events so far.
    pub(crate) event: u64,
    pub(crate) sent: BTreeMap<Token, Sent>,
    /// One for each replica, and the shard that it is of.
    pub(crate) ledgers: Vec<Ledger>,
    homes: Vec<usize>,
    pub(crate) shards: Vec<ShardTruth>,
    pub(crate) tokens: BTreeMap<Token, SeqNum>,
    pub(crate) colors: BTreeMap<Color, ColorTruth>,
    /// Staged durably on some replica and not settled.
    pub(crate) open: BTreeMap<Token, (Color, u32)>,
    /// What settled tokens name.
    pub(crate) appends: BTreeMap<Token, Arc<Append>>,
    /// Appends that were acknowledged to their clients.
    pub(crate) acknowledged: u64,
    /// What clients did and saw, color by color, for those who judge it without knowing what happened inside.
    pub(crate) seen: BTreeMap<Color, flexlog_history::History<(Token, u32)>>,
}

impl History {
    /// Of so many shards, with as many replicas.
    pub(crate) fn new(shape: &Shape) -> Self {
        let truth = |shard: &Shard| ShardTruth {
            view: shard.replicas.clone().take(shard.members).collect(),
            committed: Vec::new(),
            sessions: BTreeMap::new(),
            nonces: BTreeMap::new(),
        };
        Self {
            ledgers: (0..shape.replicas()).map(|_| Ledger::default()).collect(),
            homes: (0..shape.replicas()).map(|at| shape.shard_at(at)).collect(),
            shards: shape.shards.iter().map(truth).collect(),
            ..Self::default()
        }
    }

    /// The shard of a replica.
    pub(crate) fn home(&self, member: usize) -> usize {
        self.homes[member]
    }

    /// What is settled of the shard of a replica.
    pub(crate) fn of(&self, member: usize) -> &ShardTruth {
        &self.shards[self.homes[member]]
    }

    /// The ledgers of a view's members.
    pub(crate) fn members(&self, shard: usize) -> impl Iterator<Item = (usize, &Ledger)> {
        self.shards[shard].view.iter().map(|member| (*member, &self.ledgers[*member]))
    }

    /// Entries that are committed, of all shards.
    pub(crate) fn committed(&self) -> u64 {
        self.shards.iter().map(|shard| shard.committed.len() as u64).sum()
    }

    /// Metadata has another view: what that takes in must have all that is committed.
    pub(crate) fn set_view(&mut self, shard: usize, view: Vec<usize>) -> Result<(), Violation> {
        for member in &view {
            if !self.shards[shard].view.contains(member) {
                invariants::i02_on_every_member::joins(self, *member)?;
            }
        }
        self.shards[shard].view = view;
        self.advance(shard)
    }

    /// A replica's store takes a write.
    pub(crate) fn writes(&mut self, member: usize, write: Write) -> Result<(), Violation> {
        match &write {
            Write::Checkpoint(upto, _) => invariants::i02_on_every_member::copies(self, member, *upto)?,
            Write::Truncate(upto) => invariants::i02_on_every_member::takes_back(self, member, *upto)?,
            _ => {}
        }
        let committed = &self.shards[self.homes[member]].committed;
        self.ledgers[member].note(write, committed);
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
        let sent = self.sent.entry(append.token()).or_insert(Sent {
            variants: Vec::new(),
            floor,
            event: self.event,
            is_acknowledged: false,
        });
        if sent.variants.iter().all(|variant| variant.digest() != append.digest()) {
            sent.variants.push(Arc::clone(append));
        }
    }

    /// What a settled number names.
    pub(crate) fn name(&self, color: Color, number: SeqNum) -> Option<(Token, u32)> {
        self.colors.get(&color)?.records.get(&number).copied()
    }

    /// The record that a settled number names: as the members staged it.
    pub(crate) fn record(&self, color: Color, number: SeqNum) -> Option<&Record> {
        let (token, index) = self.colors.get(&color)?.records.get(&number)?;
        self.appends.get(token)?.records().get(*index as usize)
    }

    /// Someone is told something now that was asked at the event `asked`.
    pub(crate) fn saw(&mut self, color: Color, asked: u64, operation: Operation<(Token, u32)>) {
        self.seen.entry(color).or_default().push(2 * asked, 2 * self.event + 1, operation);
    }

    /// An append is acknowledged, for the first time.
    pub(crate) fn acknowledges(&mut self, token: Token, color: Color, first: SeqNum, count: u32) {
        let Some(sent) = self.sent.get_mut(&token).filter(|sent| !sent.is_acknowledged) else { return };
        sent.is_acknowledged = true;
        let asked = sent.event;
        let records = (0..count).map(|index| (token, index)).collect();
        self.saw(color, asked, Operation::Append { first: first.to_raw(), records });
    }

    /// Judges what clients saw, with nothing else known than that.
    pub(crate) fn judge(&mut self) -> Result<(), Violation> {
        for (token, sent) in self.sent.iter().filter(|(_, sent)| !sent.is_acknowledged) {
            // Where a client breaks the rules, any of what it sent.
            let Some(append) = self.appends.get(token).or(sent.variants.first()) else { continue };
            let records = (0..append.count()).map(|index| (*token, index)).collect();
            let seen = self.seen.entry(append.color()).or_default();
            seen.push_open(2 * sent.event, Operation::Unanswered { records });
        }
        for (color, seen) in &mut self.seen {
            if let Some(trim) =
                self.colors.get(color).and_then(|truth| truth.parts.values().filter_map(|part| part.trim).max())
            {
                seen.trimmed(trim.to_raw());
            }
            invariants::history::is_of_a_log(*color, seen)?;
        }
        Ok(())
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
        if news.entries { self.advance(self.homes[member]) } else { Ok(()) }
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
    pub(crate) fn advance(&mut self, shard: usize) -> Result<(), Violation> {
        let durable = self.members(shard).map(|(_, ledger)| ledger.durable).min().unwrap_or_default();
        while (self.shards[shard].committed.len() as u64) < durable {
            let at = self.shards[shard].committed.len();
            invariants::i02_on_every_member::entry_is_the_same(self, shard, at)?;
            let entry = Arc::clone(&self.ledgers[self.shards[shard].view[0]].log[at]);
            self.commit(shard, &entry)?;
            self.shards[shard].committed.push(entry);
        }
        Ok(())
    }

    fn commit(&mut self, shard: usize, entry: &Entry) -> Result<(), Violation> {
        match &entry.body {
            Body::Assign(runs) => {
                for run in runs {
                    for (token, first) in run.each() {
                        invariants::i01_one_number_one_record::settles(self, token, run.color, first, run.records)?;
                        invariants::i04_acknowledged_before_sent::numbered(self, token, run.color, first)?;
                        invariants::i06_alike_below_stable::goes_on(self, shard, run.color, first, run.records)?;
                        self.tokens.insert(token, first);
                        self.open.remove(&token);
                        let written = self.members(shard).find_map(|(_, ledger)| ledger.staged.get(&token));
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
                invariants::i01_one_number_one_record::is_no_record(self, *color, *first, *count)?;
                invariants::i06_alike_below_stable::goes_on(self, shard, *color, *first, *count)?;
                let end = SeqNum::new(first.epoch(), first.counter() + count);
                self.color(*color).holes.push((*first, end));
            }
            Body::EpochEnd { color, end, next } => {
                invariants::i06_alike_below_stable::epoch_ends(self, shard, *color, *end, *next)?;
            }
            Body::NewView(_) => {}
            Body::OpenSession { nonce } => {
                let id = SessionId { epoch: entry.epoch, lsn: entry.lsn };
                let truth = &mut self.shards[shard];
                let newest = truth.nonces.get(nonce).and_then(|ids| ids.last());
                if newest.and_then(|id| truth.sessions.get(id)).is_none_or(|session| session.closed) {
                    truth.nonces.entry(*nonce).or_default().push(id);
                    truth.sessions.insert(id, SessionTruth { closed: false });
                }
            }
            Body::CloseSession(id) => {
                if let Some(session) = self.shards[shard].sessions.get_mut(id) {
                    session.closed = true;
                }
            }
            Body::Trim { color, upto } => {
                let truth = self.color(*color);
                truth.trims.insert(*upto);
                let part = truth.parts.entry(shard).or_default();
                part.trim = part.trim.max(Some(*upto));
            }
        }
        Ok(())
    }
}
