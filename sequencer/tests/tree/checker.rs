//! The invariants: on what settles in the shards' logs, on what owners give and leaves are given, on what is told.

use std::collections::BTreeMap;

use flexlog_protocol::peer::Range;
use flexlog_protocol::{Body, Color, Entry, Epoch, SeqNum, SessionId, Token};

use crate::member::{Sessions, take_session};

#[derive(Default)]
pub struct Checker {
    pub tokens: BTreeMap<Token, SeqNum>,
    pub holes: usize,
    pub ends: usize,
    /// What was acknowledged of the token's color before it was sent.
    pub floors: BTreeMap<Token, SeqNum>,
    /// The exclusive end of what was acknowledged.
    pub acknowledged: BTreeMap<Color, SeqNum>,
    /// The highest that was told.
    pub tails: BTreeMap<Color, SeqNum>,
    pub stable: BTreeMap<Color, SeqNum>,
    /// The records, and the holes that are written down.
    numbers: BTreeMap<(Color, SeqNum), Option<Token>>,
    /// By shard.
    logs: BTreeMap<(usize, Color), (SeqNum, bool)>,
    sessions: BTreeMap<usize, Sessions>,
    epochs: BTreeMap<(Color, Epoch), SeqNum>,
    /// What owners gave, and what leaves were given: exclusive end by first number.
    owned: BTreeMap<Color, BTreeMap<SeqNum, SeqNum>>,
    given: BTreeMap<Color, BTreeMap<SeqNum, SeqNum>>,
}

/// Raises what is known of a color.
pub fn raise(map: &mut BTreeMap<Color, SeqNum>, color: Color, to: SeqNum) {
    let value = map.entry(color).or_default();
    *value = to.max(*value);
}

fn overlaps(ranges: &BTreeMap<SeqNum, SeqNum>, range: Range) -> bool {
    ranges.range(..range.end()).next_back().is_some_and(|(_, end)| *end > range.first)
}

impl Checker {
    /// An owner gives these numbers to a child.
    pub fn granted(&mut self, color: Color, range: Range) -> Result<(), String> {
        let owned = self.owned.entry(color).or_default();
        if overlaps(owned, range) {
            return Err(format!("I1: the owner of {color} gives {range:?} twice"));
        }
        owned.insert(range.first, range.end());
        Ok(())
    }

    /// A leaf is given these numbers.
    pub fn given(&mut self, color: Color, range: Range) -> Result<(), String> {
        let given = self.given.entry(color).or_default();
        if overlaps(given, range) {
            return Err(format!("a split gives {range:?} of {color} twice"));
        }
        given.insert(range.first, range.end());
        let owned = self.owned.entry(color).or_default();
        match owned.range(..=range.first).next_back() {
            Some((_, end)) if *end >= range.end() => Ok(()),
            _ => Err(format!("a split gives {range:?} of {color}, which the owner never gave in one piece")),
        }
    }

    /// A leaf tells its members that everything below is settled.
    pub fn told_stable(&mut self, color: Color, upto: SeqNum) {
        raise(&mut self.stable, color, upto);
    }

    /// An entry is on all members of a shard. Returns the session that begins with it.
    pub fn settled(&mut self, shard: usize, entry: &Entry) -> Result<Option<SessionId>, String> {
        match &entry.body {
            Body::Assign(runs) => {
                for run in runs {
                    self.range(shard, run.color, Range { first: run.first, count: run.count() })?;
                    for (token, number) in run.each() {
                        if let Some(other) = self.tokens.insert(token, number) {
                            return Err(format!("I1: {token} has the numbers {other} and {number}"));
                        }
                        if self.floors.get(&token).is_some_and(|floor| number < *floor) {
                            return Err(format!("I4: {token} got {number}, below one acknowledged before it was sent"));
                        }
                        for i in 0..run.records {
                            self.number(run.color, number.plus(i), Some(token))?;
                        }
                    }
                }
            }
            Body::Hole { color, first, count } => {
                self.holes += 1;
                self.range(shard, *color, Range { first: *first, count: *count })?;
                (0..*count).try_for_each(|i| self.number(*color, first.plus(i), None))?;
            }
            Body::EpochEnd { color, end, next } => self.epoch_end(shard, *color, *end, *next)?,
            Body::OpenSession { .. } | Body::CloseSession(_) => {
                return Ok(take_session(self.sessions.entry(shard).or_default(), entry));
            }
            Body::NewView(_) | Body::Trim { .. } => {}
        }
        Ok(None)
    }

    fn number(&mut self, color: Color, number: Option<SeqNum>, token: Option<Token>) -> Result<(), String> {
        let number = number.ok_or("a number beyond its epoch")?;
        if let Some(other) = self.numbers.insert((color, number), token) {
            return Err(format!("I1: {number} of {color} names {other:?} and {token:?}"));
        }
        if self.epochs.get(&(color, number.epoch())).is_some_and(|end| number >= *end) {
            return Err(format!("I6: {number} of {color} lies behind the end of its epoch"));
        }
        if self.stable.get(&color).is_some_and(|stable| number < *stable) {
            return Err(format!("I6: {number} of {color} settles below a stable that was told"));
        }
        Ok(())
    }

    /// Narrow: numbers are contiguous within an epoch, and an epoch with numbers ends before the next one begins. Wide:
    /// they ascend.
    fn range(&mut self, shard: usize, color: Color, range: Range) -> Result<(), String> {
        let first = range.first;
        let known = self.logs.get(&(shard, color)).copied();
        let (end, closed) = known.unwrap_or((SeqNum::first_of(Epoch(0)), true));
        let fits = if color.is_wide() {
            first >= end && (!closed || first.epoch() > end.epoch())
        } else if closed {
            first.counter() == 0 && first.epoch() > end.epoch()
        } else {
            first == end
        };
        if !fits {
            return Err(format!("I6: color {color} goes on at {first} after {end} (closed: {closed})"));
        }
        self.logs.insert((shard, color), (range.end(), false));
        Ok(())
    }

    fn epoch_end(&mut self, shard: usize, color: Color, end: SeqNum, next: Epoch) -> Result<(), String> {
        self.ends += 1;
        let known = self.logs.insert((shard, color), (end, true));
        let fits = if color.is_wide() {
            known.is_none_or(|(known, _)| known <= end)
        } else {
            known.is_some_and(|(known, _)| known == end)
        };
        if !fits || next <= end.epoch() {
            return Err(format!("I6: {color} ends at {end}, but its numbers at {known:?}"));
        }
        if self.epochs.insert((color, end.epoch()), end).is_some_and(|other| other != end) {
            return Err(format!("I6: an epoch of {color} ends at {end} and elsewhere"));
        }
        let epoch = (color, end)..=(color, SeqNum::new(end.epoch(), u32::MAX));
        match self.numbers.range(epoch).next() {
            Some(((_, number), _)) => Err(format!("I6: {color} ends at {end}, and has {number}")),
            None => Ok(()),
        }
    }

    /// Numbers that owners gave and no log has.
    pub fn lost(&self) -> u64 {
        let numbers = |ranges: &BTreeMap<SeqNum, SeqNum>| -> u64 {
            ranges.iter().map(|(first, end)| u64::from(end.counter() - first.counter())).sum()
        };
        self.owned.values().map(numbers).sum::<u64>() - self.numbers.len() as u64
    }

    /// Records of wide colors, by color.
    pub fn wide(&self) -> usize {
        self.numbers.keys().filter(|(color, _)| color.is_wide()).count()
    }
}
