//! Who waits for what: reads that wait for the tail or for a number to settle, and subscriptions.
//!
//! A question is answered from what is settled here if that is enough. Else it asks the leaf for the tail, and then
//! either has its answer or waits until stable covers it. No answer rests on a number that is not settled (I3).

use std::collections::BTreeMap;

use flexlog_protocol::api::{Answer, Failure, RequestId};
use flexlog_protocol::{Color, Lsn, SeqNum, Time};
use rustc_hash::FxHashMap;

use crate::color::{ColorState, Place, after};
use crate::message::ConnId;
#[cfg(test)]
use crate::planted::{self, Bug};

/// What a client wants to know, or to have done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Question {
    Read(SeqNum),
    Next(SeqNum),
    Prev(SeqNum),
    Tail,
    Trim(SeqNum),
}

impl Question {
    /// Whether its client says how long it may wait for a number to settle.
    fn waits_by_choice(self) -> bool {
        matches!(self, Self::Read(_) | Self::Next(_) | Self::Prev(_))
    }
}

/// A question and who asked it.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) from: ConnId,
    pub(crate) id: RequestId,
    pub(crate) color: Color,
    pub(crate) question: Question,
    /// How long it may wait once the tail is known.
    pub(crate) until: Time,
    /// When it is given up.
    pub(crate) deadline: Time,
    /// The tail as the owner knew it, confirmed, and how far the log must be committed for it to hold here.
    pub(crate) tail: Option<(SeqNum, Lsn)>,
    /// What the leaf followed now was asked already on its behalf.
    pub(crate) told: Option<Told>,
    /// For the next record of a wide color: below this, it is not here.
    pub(crate) searched: SeqNum,
}

/// What a leaf was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    Tail,
    Trim,
}

/// What becomes of a question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// That is the answer.
    Answer(Answer),
    /// The answer is the record of this number.
    Fetch(SeqNum),
    /// The answer follows from what the store has from here on, up to but not including there.
    Search { from: SeqNum, upto: SeqNum },
    /// The leaf must write a trim.
    Trim,
    /// Nothing can be said before the tail is known.
    NeedTail,
    /// The answer will be known when stable moves.
    Wait,
}

impl Ask {
    /// What `color` says to the question. `coming`: a trim of it that is not committed.
    pub(crate) fn judge(&self, color: &ColorState, commit: Lsn, coming: Option<SeqNum>) -> Verdict {
        let id = self.id;
        let tail = match self.tail {
            Some((_, after)) if commit < after => return Verdict::Wait,
            tail => tail.map(|(tail, _)| tail),
        };
        match self.question {
            Question::Read(n) => match color.place(n) {
                Place::Trimmed(point) => Verdict::Answer(Answer::Trimmed { id, point }),
                Place::Record => Verdict::Fetch(n),
                Place::Settled => Verdict::Search { from: n, upto: after(n) },
                Place::Hole => Verdict::Answer(Answer::Hole { id }),
                Place::Beyond => match tail {
                    None => Verdict::NeedTail,
                    Some(tail) if n >= tail => Verdict::Answer(Answer::NotYet { id, tail }),
                    Some(_) => Verdict::Wait,
                },
            },
            Question::Next(from) => {
                if let Some(point) = color.trim_point().filter(|point| *point >= from) {
                    return Verdict::Answer(Answer::Trimmed { id, point });
                }
                let stable = color.stable();
                let here = match color {
                    ColorState::Narrow(state) => state.next_record(from).map(Verdict::Fetch),
                    // What the store has may begin behind what is trimmed, or not.
                    ColorState::Wide(_) if Some(from) <= coming => return Verdict::Wait,
                    // Looking again with each number that settles would lose the tail on its way.
                    ColorState::Wide(_) if tail.is_none() && self.told == Some(Told::Tail) => None,
                    ColorState::Wide(_) => {
                        let from = from.max(self.searched);
                        let upto = stable;
                        #[cfg(test)]
                        let upto = if planted::is(Bug::ReadsBeyondStable) { SeqNum::MAX } else { upto };
                        (from < stable).then_some(Verdict::Search { from, upto })
                    }
                };
                match (here, tail) {
                    (Some(verdict), _) => verdict,
                    (None, None) => Verdict::NeedTail,
                    (None, Some(tail)) if from >= tail || stable >= tail => {
                        Verdict::Answer(Answer::NotYet { id, tail })
                    }
                    (None, Some(_)) => Verdict::Wait,
                }
            }
            Question::Prev(upto) => {
                let stable = color.stable();
                if stable <= upto && tail.is_none_or(|tail| stable < tail) {
                    return if tail.is_none() { Verdict::NeedTail } else { Verdict::Wait };
                }
                let here = match color {
                    ColorState::Narrow(state) => state.prev_record(upto).map(Verdict::Fetch),
                    ColorState::Wide(_) if color.trim_point().is_some_and(|point| upto <= point) => None,
                    ColorState::Wide(_) => Some(Verdict::Search { from: SeqNum::MIN, upto: stable.min(after(upto)) }),
                };
                here.unwrap_or(Verdict::Answer(match color.trim_point() {
                    Some(point) => Answer::Trimmed { id, point },
                    None => Answer::NothingBefore { id },
                }))
            }
            Question::Tail => match tail {
                None => Verdict::NeedTail,
                Some(tail) => Verdict::Answer(Answer::Tail { id, tail }),
            },
            Question::Trim(upto) => {
                if let Some(point) = color.trim_point().filter(|point| *point >= upto) {
                    return Verdict::Answer(Answer::TrimDone { id, point });
                }
                match tail {
                    _ if upto < color.stable() => Verdict::Trim,
                    None => Verdict::NeedTail,
                    Some(tail) if upto >= tail => {
                        Verdict::Answer(Answer::Failed { id, why: Failure::TrimBeyondTail { upto, tail } })
                    }
                    Some(_) => Verdict::Wait,
                }
            }
        }
    }

    /// The answer when the deadline has passed: nothing is wrong, it takes longer. `stable`: that of the color.
    pub(crate) fn give_up(&self, stable: SeqNum) -> Answer {
        match (self.question, self.tail) {
            // The client asks other shards too, and takes it that nothing below is here.
            (Question::Next(from), Some((tail, _))) if self.color.is_wide() => {
                let tail = tail.min(stable).min(self.searched.max(from));
                Answer::NotYet { id: self.id, tail }
            }
            (Question::Read(_) | Question::Next(_) | Question::Prev(_), Some((tail, _))) => {
                Answer::NotYet { id: self.id, tail }
            }
            _ => {
                let why = Failure::NotReady("the shard did not answer in time: try again".into());
                Answer::Failed { id: self.id, why }
            }
        }
    }
}

/// A subscription.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) color: Color,
    /// Everything below was delivered, or is not there.
    pub(crate) next: SeqNum,
    /// Bytes that may be sent. Below zero after a record that was larger than what was left.
    pub(crate) credit: i64,
    /// A fetch is under way.
    pub(crate) fetching: bool,
}

/// All who wait, findable by connection and by color.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    asks: FxHashMap<u64, Ask>,
    next_ask: u64,
    asks_of: FxHashMap<Color, Vec<u64>>,
    waiting_of: FxHashMap<ConnId, usize>,
    deadlines: BTreeMap<(Time, u64), ()>,
    subscriptions: FxHashMap<(ConnId, RequestId), Subscription>,
    subscriptions_of: FxHashMap<Color, Vec<(ConnId, RequestId)>>,
}

impl Readers {
    /// Names questions from here on.
    pub(crate) fn name_from(&mut self, first: u64) {
        self.next_ask = first;
    }

    /// Keeps a question; returns its name.
    pub(crate) fn wait(&mut self, ask: Ask) -> u64 {
        self.next_ask += 1;
        let name = self.next_ask;
        self.deadlines.insert((ask.deadline, name), ());
        self.asks_of.entry(ask.color).or_default().push(name);
        *self.waiting_of.entry(ask.from).or_default() += 1;
        self.asks.insert(name, ask);
        name
    }

    pub(crate) fn ask_mut(&mut self, name: u64) -> Option<&mut Ask> {
        self.asks.get_mut(&name)
    }

    pub(crate) fn ask(&self, name: u64) -> Option<&Ask> {
        self.asks.get(&name)
    }

    /// The answer to a tail check: from now on the question waits no longer than its client allowed.
    pub(crate) fn tail_known(&mut self, name: u64, tail: SeqNum, after: Lsn) -> Option<Color> {
        let ask = self.asks.get_mut(&name)?;
        ask.tail = Some((tail, after));
        if ask.question.waits_by_choice() {
            self.deadlines.remove(&(ask.deadline, name));
            ask.deadline = ask.until;
            self.deadlines.insert((ask.deadline, name), ());
        }
        Some(ask.color)
    }

    pub(crate) fn finish(&mut self, name: u64) -> Option<Ask> {
        let ask = self.asks.remove(&name)?;
        self.deadlines.remove(&(ask.deadline, name));
        if let Some(names) = self.asks_of.get_mut(&ask.color) {
            names.retain(|other| *other != name);
            if names.is_empty() {
                self.asks_of.remove(&ask.color);
            }
        }
        if let Some(count) = self.waiting_of.get_mut(&ask.from) {
            *count -= 1;
            if *count == 0 {
                self.waiting_of.remove(&ask.from);
            }
        }
        Some(ask)
    }

    /// The questions about `color`, oldest first.
    pub(crate) fn asks_of(&self, color: Color) -> Vec<u64> {
        self.asks_of.get(&color).cloned().unwrap_or_default()
    }

    /// Every question, oldest first.
    pub(crate) fn all(&self) -> Vec<u64> {
        let mut names: Vec<_> = self.asks.keys().copied().collect();
        names.sort_unstable();
        names
    }

    pub(crate) fn waiting_of(&self, from: ConnId) -> usize {
        self.waiting_of.get(&from).copied().unwrap_or_default()
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first_key_value().map(|((at, _), ())| *at)
    }

    /// A question whose deadline has passed.
    pub(crate) fn expired(&self, now: Time) -> Option<u64> {
        self.deadlines.first_key_value().filter(|((at, _), ())| *at <= now).map(|((_, name), ())| *name)
    }

    pub(crate) fn subscribe(&mut self, from: ConnId, id: RequestId, subscription: Subscription) {
        let names = self.subscriptions_of.entry(subscription.color).or_default();
        if !names.contains(&(from, id)) {
            names.push((from, id));
        }
        self.subscriptions.insert((from, id), subscription);
    }

    pub(crate) fn subscription(&mut self, from: ConnId, id: RequestId) -> Option<&mut Subscription> {
        self.subscriptions.get_mut(&(from, id))
    }

    pub(crate) fn unsubscribe(&mut self, from: ConnId, id: RequestId) {
        let Some(subscription) = self.subscriptions.remove(&(from, id)) else { return };
        if let Some(names) = self.subscriptions_of.get_mut(&subscription.color) {
            names.retain(|other| *other != (from, id));
            if names.is_empty() {
                self.subscriptions_of.remove(&subscription.color);
            }
        }
    }

    pub(crate) fn subscriptions_of(&self, color: Color) -> Vec<(ConnId, RequestId)> {
        self.subscriptions_of.get(&color).cloned().unwrap_or_default()
    }

    /// Forgets all subscriptions, and says which there were.
    pub(crate) fn take_subscriptions(&mut self) -> Vec<(ConnId, RequestId)> {
        self.subscriptions_of.clear();
        let mut names: Vec<_> = self.subscriptions.drain().map(|(name, _)| name).collect();
        names.sort_unstable();
        names
    }

    /// The colors that have subscriptions.
    pub(crate) fn subscribed(&self) -> impl Iterator<Item = Color> {
        self.subscriptions_of.keys().copied()
    }

    /// The colors that somebody waits for news of, sorted.
    pub(crate) fn colors(&self) -> Vec<Color> {
        let mut colors: Vec<Color> = self.asks_of.keys().chain(self.subscriptions_of.keys()).copied().collect();
        colors.sort_unstable();
        colors
    }

    pub(crate) fn subscriptions_from(&self, from: ConnId) -> usize {
        self.subscriptions.keys().filter(|(conn, _)| *conn == from).count()
    }

    /// Forgets everything a connection waits for.
    pub(crate) fn disconnect(&mut self, from: ConnId) {
        let asks: Vec<u64> = self.asks.iter().filter(|(_, ask)| ask.from == from).map(|(name, _)| *name).collect();
        for name in asks {
            self.finish(name);
        }
        let subscriptions: Vec<RequestId> =
            self.subscriptions.keys().filter(|(conn, _)| *conn == from).map(|(_, id)| *id).collect();
        for id in subscriptions {
            self.unsubscribe(from, id);
        }
    }

    /// Whether anyone waits for news of `color`.
    pub(crate) fn cares_for(&self, color: Color) -> bool {
        self.asks_of.contains_key(&color) || self.subscriptions_of.contains_key(&color)
    }
}
