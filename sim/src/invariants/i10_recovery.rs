//! I10: after a crash at any instruction, recovery yields every entry that was reported persisted, none torn, none
//! invented.

use std::sync::Arc;

use flexlog_protocol::media::{LogStore, ReadError, Recovered};
use flexlog_protocol::{Body, Color, Entry, Lsn, SeqNum, Token};

use super::{Invariant, Violation, check};
use crate::history::History;

const I10: Invariant = Invariant::Recovery;

/// A store was opened: compares what it found with what it was given, and takes that as the member's medium from here on.
///
/// `Recovered` is looked at as the store gives it, before its replica has seen it.
pub(crate) fn recovered(
    history: &mut History,
    member: usize,
    found: &Recovered,
    store: &impl LogStore,
) -> Result<(), Violation> {
    let broken = |what: String| Violation { invariant: I10, what: format!("member {member} recovers {what}") };
    let ledger = &mut history.ledgers[member];

    let from = match &found.checkpoint {
        None => Lsn(0),
        Some((upto, state)) => {
            let written = ledger.checkpoints.iter().any(|(at, bytes)| at == upto && bytes == state);
            check(written, I10, || format!("member {member} recovers a checkpoint of {upto} that it never wrote"))?;
            *upto
        }
    };
    // What was not fenced may be there or not: the found log is one that the store had on the way.
    let (written, durable) = (ledger.log.len(), ledger.durable);
    while !is_found(&ledger.log, from, found) {
        if !ledger.take_back() {
            let last = from.0 + found.entries.len() as u64;
            return Err(broken(format!(
                "a log up to {last}, from a checkpoint of {from}; {written} entries were written, {durable} of them \
                 durable; found: {:?}; what is due: {:?}",
                found.entries, ledger.log
            )));
        }
    }
    ledger.found();

    let due = ledger.fence;
    let known = found.fence.is_none_or(|fence| ledger.fences.contains(&fence));
    if !known || due.is_some_and(|due| found.fence.is_none_or(|fence| fence.epoch < due.epoch)) {
        return Err(broken(format!("the fence {:?}, {due:?} is due", found.fence)));
    }
    ledger.fence = found.fence;
    ledger.fences = found.fence.into_iter().collect();

    for staged in &found.staged {
        let over = ledger.over.get(&staged.token);
        let given = ledger.staged.get(&staged.token).filter(|_| over.is_none()).or(over);
        let right = given.is_some_and(|given| given.append.digest() == staged.digest)
            && (over.is_some() || !ledger.assigned.contains_key(&staged.token));
        if !right {
            return Err(broken(format!("{staged:?} as staged, and was given {given:?}")));
        }
        let read = store.read_staged(staged.token).ok().flatten();
        if given.map(|given| &*given.append) != read.as_ref() {
            return Err(broken(format!("{} as {read:?}, and was given {given:?}", staged.token)));
        }
    }
    // What was dropped may come back with the process: the store has no word for that.
    found.staged.iter().for_each(|staged| _ = ledger.dropped.remove(&staged.token));
    let is_there = |token: &Token| found.staged.iter().any(|staged| staged.token == *token);
    let mut gone = Vec::new();
    let mut there = Vec::new();
    for (token, written) in &mut ledger.staged {
        if ledger.assigned.contains_key(token) || is_there(token) {
            written.durable = true;
            there.push(*token);
        } else {
            if written.durable && !ledger.dropped.contains(token) {
                return Err(broken(format!("no trace of {token}, which it had persisted")));
            }
            gone.push(*token);
        }
    }
    gone.iter().for_each(|token| _ = ledger.staged.remove(token));
    there.into_iter().for_each(|token| history.staged_durably(member, token));
    history.advance(history.home(member))
}

/// Whether `log` is what was found: a checkpoint of `from` and entries behind it.
fn is_found(log: &[Arc<Entry>], from: Lsn, found: &Recovered) -> bool {
    let behind = log.get(from.0 as usize..);
    behind.is_some_and(|behind| {
        behind.len() == found.entries.len() && behind.iter().zip(&found.entries).all(|(given, entry)| **given == *entry)
    })
}

/// Reads everything that a member's log has numbered and that was not trimmed, straight from its store.
pub(crate) fn reads_back(history: &History, member: usize, store: &impl LogStore) -> Result<(), Violation> {
    let ledger = &history.ledgers[member];
    for entry in &ledger.log {
        let Body::Assign(runs) = &entry.body else { continue };
        for run in runs {
            let mut found = Vec::new();
            let mut rotten = Vec::new();
            let (mut from, upto) = (run.first, run.end());
            while from < upto
                && let Err(error) = store.read_through(run.color, from, upto, usize::MAX, usize::MAX, &mut found)
            {
                let (ReadError::Damaged { number, end, .. } | ReadError::Io { number, end, .. }) = error;
                // Where the place of one does not say which it is, some of those that it may be.
                check(ledger.rot.is_any(run.color, number, end), I10, || format!("member {member}: {error}"))?;
                from = end.max(number.plus(1).unwrap_or(upto));
                rotten.push(number..from);
            }
            for (token, first) in run.each() {
                let staged = ledger.staged.get(&token).map(|written| &written.append);
                let Some(append) = staged.or(history.appends.get(&token)) else { continue };
                for (record, counter) in append.records().iter().zip(first.counter()..) {
                    let number = SeqNum::new(first.epoch(), counter);
                    let read = found.iter().find(|(n, _)| *n == number).map(|(_, record)| record);
                    let is_there = read == Some(record)
                        || read.is_none() && rotten.iter().any(|range| range.contains(&number))
                        || (read.is_none() && is_trimmed(history, member, run.color, number));
                    check(is_there, I10, || {
                        format!("member {member} has {}/{number} as {read:?}, and was given {record:?}", run.color)
                    })?;
                }
            }
        }
    }
    Ok(())
}

fn is_trimmed(history: &History, member: usize, color: Color, number: SeqNum) -> bool {
    history.colors.get(&color).is_some_and(|truth| truth.is_trimmed(history.home(member), number))
}

/// A store cannot be opened, and nobody broke it; or one was opened that is not the member's.
pub(crate) fn opening(member: usize, why: &str) -> Violation {
    Violation { invariant: I10, what: format!("the store of member {member}: {why}") }
}

/// What is committed is on every member of the view, whatever happened.
pub(crate) fn committed_is_there(history: &History) -> Result<(), Violation> {
    for (member, ledger) in (0..history.shards.len()).flat_map(|shard| history.members(shard)) {
        let committed = &history.of(member).committed;
        let same = committed.iter().zip(&ledger.log).all(|(a, b)| Arc::ptr_eq(a, b) || a == b);
        check(same && ledger.log.len() >= committed.len(), I10, || {
            format!("member {member} lacks a part of the committed log")
        })?;
    }
    Ok(())
}
