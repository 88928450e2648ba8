//! I2: a number is asked for only when every member has persisted the record; an entry commits only when its bytes are on
//! every member.
//!
//! Checked against the media: what members report, what the leaf asks for and gives out, and what it calls committed.

use std::collections::BTreeSet;

use flexlog_protocol::peer::Staged;
use flexlog_protocol::{Color, Lsn, Token};

use super::{Invariant, Violation, check};
use crate::history::History;

const I2: Invariant = Invariant::OnEveryMember;

/// A member says that it has these persisted.
pub(crate) fn reports_staged(history: &History, member: usize, list: &[Staged]) -> Result<(), Violation> {
    for staged in list {
        let written = history.ledgers[member].staged.get(&staged.token);
        let right = written.is_some_and(|written| {
            written.durable
                && written.append.digest() == staged.digest
                && written.append.color() == staged.color
                && written.append.count() == staged.records
        });
        check(right, I2, || {
            format!("member {member} reports {} persisted, its medium does not have it", staged.token)
        })?;
    }
    Ok(())
}

/// A member says that it has its log persisted up to `lsn`.
pub(crate) fn acknowledges(history: &History, member: usize, lsn: Lsn) -> Result<(), Violation> {
    let ledger = &history.ledgers[member];
    check(lsn.0 <= ledger.durable, I2, || {
        format!("member {member} acknowledges {lsn}, its medium has the log up to {}", ledger.durable)
    })
}

/// A leaf asks for numbers: `outstanding` of them with those it has asked for and not given out, beyond `numbered`.
pub(crate) fn asks(
    history: &History,
    color: Color,
    outstanding: u64,
    numbered: &BTreeSet<Token>,
) -> Result<(), Violation> {
    let complete = history.complete.iter().filter(|(token, (of, _))| *of == color && !numbered.contains(token));
    let records: u64 = complete.map(|(_, (_, records))| u64::from(*records)).sum();
    check(outstanding <= records, I2, || {
        format!("the leaf asks for {outstanding} numbers of color {color}, every member has {records} records for them")
    })
}

/// A leaf gives a number to `token`.
pub(crate) fn numbers(history: &History, token: Token) -> Result<(), Violation> {
    let lacking = history.ledgers.iter().position(|ledger| !ledger.is_staged_durably(token));
    check(lacking.is_none(), I2, || {
        format!("the leaf numbers {token}, the medium of member {} does not have it", lacking.unwrap_or_default())
    })
}

/// A leaf says that its log is committed up to `lsn`.
pub(crate) fn commits(history: &History, lsn: Lsn) -> Result<(), Violation> {
    let committed = history.committed.len() as u64;
    check(lsn.0 <= committed, I2, || format!("the leaf commits {lsn}, every medium has the log up to {committed} only"))
}

/// The entry at index `at` is durable on every member.
pub(crate) fn entry_is_the_same(history: &History, at: usize) -> Result<(), Violation> {
    let first = &history.ledgers[0].log[at];
    let other = history.ledgers.iter().position(|ledger| ledger.log[at] != *first);
    check(other.is_none(), I2, || {
        format!("entry {} is {first:?} on member 0, and another on member {}", at + 1, other.unwrap_or_default())
    })
}
