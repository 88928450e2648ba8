//! The invariants, on the committed log as it grows.

use std::collections::BTreeMap;
use std::sync::Arc;

use flexlog_protocol::{Body, Color, Entry, Epoch, SeqNum, SessionId, Token};

use crate::member::{Sessions, take_session};

#[derive(Default)]
pub struct Checker {
    pub committed: Vec<Arc<Entry>>,
    /// All that ever began, in order.
    pub sessions: Vec<SessionId>,
    pub tokens: BTreeMap<Token, SeqNum>,
    pub holes: usize,
    pub ends: usize,
    /// What was acknowledged of the token's color before it was sent.
    pub floors: BTreeMap<Token, SeqNum>,
    open: Sessions,
    numbers: BTreeMap<(Color, SeqNum), Token>,
    colors: BTreeMap<Color, (SeqNum, bool)>,
}

impl Checker {
    /// Somebody says that `log` is committed.
    pub fn commit(&mut self, log: &[Arc<Entry>]) -> Result<(), String> {
        let known = self.committed.len().min(log.len());
        if self.committed[..known] != log[..known] {
            return Err("I5: committed logs differ".into());
        }
        for entry in &log[known..] {
            self.entry(entry)?;
            self.committed.push(entry.clone());
        }
        Ok(())
    }

    fn entry(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.body {
            Body::Assign(runs) => {
                for run in runs {
                    self.numbers(run.color, run.first, run.count())?;
                    for (token, number) in run.each() {
                        if let Some(other) = self.tokens.insert(token, number) {
                            return Err(format!("I1: {token} has the numbers {other} and {number}"));
                        }
                        if let Some(other) = self.numbers.insert((run.color, number), token) {
                            return Err(format!("I1: {number} names {other} and {token}"));
                        }
                        if self.floors.get(&token).is_some_and(|floor| number < *floor) {
                            return Err(format!("I4: {token} got {number}, below one acknowledged before it was sent"));
                        }
                    }
                }
            }
            Body::Hole { color, first, count } => {
                self.holes += 1;
                self.numbers(*color, *first, *count)?;
            }
            Body::EpochEnd { color, end, next } => {
                self.ends += 1;
                let known = self.colors.insert(*color, (*end, true));
                if known.is_none_or(|(known, _)| known != *end) || *next <= end.epoch() {
                    return Err(format!("I6: {color} ends at {end}, but its numbers at {known:?}"));
                }
            }
            Body::OpenSession { .. } | Body::CloseSession(_) => {
                self.sessions.extend(take_session(&mut self.open, entry));
            }
            Body::NewView(_) | Body::Trim { .. } => {}
        }
        Ok(())
    }

    /// Numbers are contiguous within an epoch, and an epoch with numbers ends before the next one begins.
    fn numbers(&mut self, color: Color, first: SeqNum, count: u32) -> Result<(), String> {
        let (end, closed) = self.colors.get(&color).copied().unwrap_or((SeqNum::first_of(Epoch(0)), true));
        let fits = if closed { first.counter() == 0 && first.epoch() > end.epoch() } else { first == end };
        if !fits {
            return Err(format!("I6: color {color} goes on at {first} after {end} (closed: {closed})"));
        }
        self.colors.insert(color, (first.plus(count).unwrap_or(SeqNum::MAX), false));
        Ok(())
    }
}
