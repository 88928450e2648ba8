//! Whether what clients of one color saw can be the history of one log: the checker for runs of the simulator and of real
//! processes.
//!
//! A [`History`] holds what clients did and were told, each with the times of its call and its return, and knows nothing
//! of who served it. [`History::check`] finds a violation if there is no order of all of it that (a) a single log would
//! give, (b) has everything that returned before something else was called before that. This is linearizability (Herlihy
//! and Wing, TOPLAS 1990). For most objects it is costly to decide; a log's numbers give the order away, so that one pass
//! over calls and returns in the order of time is enough: O(n log n).
//!
//! **Why one pass is enough.** Every operation has a place in the order of numbers, or a range of places. With `2n + 1` as
//! the place of the record with number `n`: an append is at its records; a tail `t` is right before `2t + 1`; whoever was
//! told that `n` is not there yet was before `n`'s place; whoever was shown `n`, or told that it is a hole, is behind it,
//! and so is whoever was given all records below `n + 1`. An order exists if and only if nothing that returned before
//! another one was called must be behind the places where that one can be: then each at the highest lower bound of all
//! that came before it is such an order. What was shown is compared with what was appended besides.
//!
//! It relies on one clock for all times, which no two events share (ticks of a counter, or a monotonic clock with ties
//! broken so that calls come before returns), and on records that all differ. Trims are outside: leave out answers that say *trimmed*, or give
//! [`History::trimmed`] what was trimmed.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};

/// A number of the color, as one integer: epoch and counter, in their order.
pub type Number = u64;

/// A time: what is smaller was earlier.
pub type Time = u64;

/// What a client did, and what it was told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation<V> {
    /// Records were appended, and got this number and those that follow it.
    Append {
        /// The number of the first record.
        first: Number,
        /// The records.
        records: Vec<V>,
    },
    /// An append whose outcome is not known: all of its records are there, or none.
    Unanswered {
        /// The records.
        records: Vec<V>,
    },
    /// An append that failed for certain: its records are nowhere.
    Failed {
        /// The records.
        records: Vec<V>,
    },
    /// A record was read.
    Read {
        /// Its number.
        number: Number,
        /// The record.
        record: V,
    },
    /// There is no record with this number yet.
    NotYet {
        /// The number.
        number: Number,
    },
    /// There is no record with this number, and never will be.
    Hole {
        /// The number.
        number: Number,
    },
    /// These are all records from one number up to, but not including, another.
    Range {
        /// The first number that was asked for.
        from: Number,
        /// Exclusive.
        upto: Number,
        /// Numbers and records, in order.
        records: Vec<(Number, V)>,
    },
    /// The number behind the last record: every later append is not below it.
    Tail {
        /// The number.
        number: Number,
    },
}

/// One operation and its times.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Event<V> {
    operation: Operation<V>,
    call: Time,
    /// `None`: it never returned.
    ret: Option<Time>,
}

/// Why a history is not one of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

/// What clients of one color did and saw.
#[derive(Clone, Debug)]
pub struct History<V> {
    events: Vec<Event<V>>,
    trimmed: Option<Number>,
}

impl<V> Default for History<V> {
    fn default() -> Self {
        Self { events: Vec::new(), trimmed: None }
    }
}

/// Places in the order of numbers. A record's place is odd, what lies between two records even.
type Place = u128;

const fn place(number: Number) -> Place {
    2 * number as Place + 1
}

impl<V: Clone + Ord + Debug> History<V> {
    /// Takes an operation that returned.
    pub fn push(&mut self, call: Time, ret: Time, operation: Operation<V>) {
        self.events.push(Event { operation, call, ret: Some(ret) });
    }

    /// Takes an operation that never returned.
    pub fn push_open(&mut self, call: Time, operation: Operation<V>) {
        self.events.push(Event { operation, call, ret: None });
    }

    /// Everything up to this number may be gone: ranges need not have it.
    pub fn trimmed(&mut self, upto: Number) {
        self.trimmed = self.trimmed.max(Some(upto));
    }

    /// Operations so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Looks for an order of everything that a log could have.
    ///
    /// # Errors
    ///
    /// There is none: with the operations that contradict each other.
    pub fn check(&self) -> Result<(), Violation> {
        let log = self.log()?;
        self.shown(&log)?;
        self.in_time(&log)
    }

    /// All records that are known to be there: those of appends that were answered, and those that were seen.
    fn log(&self) -> Result<Log<'_, V>, Violation> {
        let mut unanswered = BTreeMap::new();
        for (at, event) in self.events.iter().enumerate() {
            if let Operation::Unanswered { records } = &event.operation {
                unanswered.extend(records.iter().enumerate().map(|(nth, record)| (record, (at, nth))));
            }
        }
        let mut firsts: Vec<Option<Number>> = vec![None; self.events.len()];
        for (number, record) in self.seen() {
            if let Some((at, nth)) = unanswered.get(record) {
                // Where it was seen first; if it is somewhere else too, nobody appended what is there.
                firsts[*at] = firsts[*at].or(number.checked_sub(*nth as Number));
            }
        }
        let mut slots = BTreeMap::new();
        for (first, event) in firsts.iter_mut().zip(&self.events) {
            let records = match &event.operation {
                Operation::Append { first: given, records } => {
                    *first = Some(*given);
                    records
                }
                Operation::Unanswered { records } => records,
                _ => continue,
            };
            let Some(first) = *first else { continue };
            let last = first + (records.len() as Number).saturating_sub(1);
            for (number, record) in (first..).zip(records) {
                if let Some(Slot { record: other, .. }) = slots.insert(number, Slot { record, first, last }) {
                    return Err(Violation(format!("number {number} is {record:?} and {other:?}")));
                }
            }
        }
        Ok(Log { slots, firsts })
    }

    /// Every record that anyone was shown.
    fn seen(&self) -> impl Iterator<Item = (Number, &V)> {
        self.events.iter().flat_map(|event| {
            let one = match &event.operation {
                Operation::Read { number, record } => Some((*number, record)),
                _ => None,
            };
            let many = match &event.operation {
                Operation::Range { records, .. } => &records[..],
                _ => &[],
            };
            one.into_iter().chain(many.iter().map(|(number, record)| (*number, record)))
        })
    }

    /// What was shown is what was appended, and what was left out is not there.
    fn shown(&self, log: &Log<'_, V>) -> Result<(), Violation> {
        for (number, record) in self.seen() {
            match log.slots.get(&number) {
                Some(slot) if slot.record == record => {}
                other => {
                    let appended = other.map(|slot| slot.record);
                    return Err(Violation(format!("{record:?} was seen at {number}, where {appended:?} was appended")));
                }
            }
        }
        for event in &self.events {
            match &event.operation {
                Operation::Hole { number } => {
                    if let Some(slot) = log.slots.get(number) {
                        return Err(Violation(format!("{number} was said to be a hole and is {:?}", slot.record)));
                    }
                }
                Operation::Range { from, upto, records } => log.holds_all(*from, *upto, records, self.trimmed)?,
                Operation::Tail { number } => {
                    if let Some(slot) = log.slots.get(number).filter(|slot| slot.first < *number) {
                        return Err(Violation(format!(
                            "the tail was said to be {number}, in the middle of an append at {}",
                            slot.first
                        )));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Everything in the order of time: what returned first must not have to be behind what was called later.
    fn in_time(&self, log: &Log<'_, V>) -> Result<(), Violation> {
        let mut calls: Vec<(Time, Place, &Event<V>)> = Vec::new();
        let mut returns: Vec<(Time, Place, &Event<V>)> = Vec::new();
        for (first, event) in log.firsts.iter().zip(&self.events) {
            let (lowest, highest) = log.places(&event.operation, *first);
            calls.extend(highest.map(|highest| (event.call, highest, event)));
            returns.extend(lowest.zip(event.ret).map(|(lowest, ret)| (ret, lowest, event)));
        }
        calls.sort_by_key(|(time, place, _)| (*time, *place));
        returns.sort_by_key(|(time, place, _)| (*time, *place));
        let mut returned = returns.into_iter().peekable();
        let mut furthest: Option<(Place, &Event<V>)> = None;
        for (called, highest, event) in calls {
            while let Some((_, lowest, before)) = returned.next_if(|(time, ..)| *time < called) {
                if furthest.is_none_or(|(place, _)| place < lowest) {
                    furthest = Some((lowest, before));
                }
            }
            if let Some((_, before)) = furthest.filter(|(lowest, _)| *lowest > highest) {
                return Err(Violation(format!(
                    "{:?} was called at {called}, after {:?} had returned at {:?}: in no order of the log does it come \
                     later",
                    event.operation, before.operation, before.ret
                )));
            }
        }
        Ok(())
    }
}

/// A record that is known to be there.
#[derive(Debug)]
struct Slot<'a, V> {
    record: &'a V,
    /// The numbers of its append.
    first: Number,
    last: Number,
}

#[derive(Debug)]
struct Log<'a, V> {
    slots: BTreeMap<Number, Slot<'a, V>>,
    /// The first number of each append, as far as it is known.
    firsts: Vec<Option<Number>>,
}

impl<V: Ord + Debug> Log<'_, V> {
    fn holds_all(
        &self,
        from: Number,
        upto: Number,
        records: &[(Number, V)],
        trimmed: Option<Number>,
    ) -> Result<(), Violation> {
        let ascend = records.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if from > upto || !ascend || records.iter().any(|(number, _)| !(from..upto).contains(number)) {
            return Err(Violation(format!("records from {from} up to {upto} came as {records:?}")));
        }
        let mut given = records.iter().map(|(number, _)| *number).peekable();
        for (number, slot) in self.slots.range(from..upto) {
            while given.next_if(|given| given < number).is_some() {}
            if given.peek() != Some(number) && trimmed.is_none_or(|trimmed| trimmed < *number) {
                let what = &slot.record;
                return Err(Violation(format!("who read from {from} up to {upto} was not given {what:?} at {number}")));
            }
        }
        Ok(())
    }

    /// Where an operation can be: at the lowest, at the highest. `None`: no bound.
    fn places(&self, operation: &Operation<V>, first: Option<Number>) -> (Option<Place>, Option<Place>) {
        let behind = |number: Number| self.slots.get(&number).map_or(number, |slot| slot.last);
        match operation {
            Operation::Append { records, .. } | Operation::Unanswered { records } => {
                let last = first.map(|first| first + (records.len() as Number).saturating_sub(1));
                (last.map(place), first.map(place))
            }
            Operation::Failed { .. } => (None, None),
            Operation::Read { number, .. } | Operation::Hole { number } => (Some(place(behind(*number)) + 1), None),
            Operation::NotYet { number } => {
                let first = self.slots.get(number).map_or(*number, |slot| slot.first);
                (None, Some(place(first) - 1))
            }
            Operation::Range { from, upto, .. } => {
                (upto.checked_sub(1).filter(|last| last >= from).map(|last| place(behind(last)) + 1), None)
            }
            Operation::Tail { number } => (Some(place(*number) - 1), Some(place(*number) - 1)),
        }
    }
}

#[cfg(test)]
mod tests;
