//! I9: a message from an old incarnation changes nothing.

use std::fmt::Debug;

use flexlog_protocol::Incarnation;
use flexlog_protocol::peer::SealReport;

use super::{Invariant, Violation, check};
use crate::history::History;

const I9: Invariant = Invariant::OldIncarnations;

/// Someone took a message of an incarnation that it does not follow, or that is not meant.
pub(crate) fn unchanged<S: PartialEq + Debug, O: Debug>(
    who: &str,
    before: &S,
    after: &S,
    outputs: &[O],
) -> Result<(), Violation> {
    check(outputs.is_empty() && before == after, I9, || {
        format!("{who} took a message of another incarnation: {before:?} became {after:?}, it wants {outputs:?}")
    })
}

/// A member has sealed: its medium says so, and what it reports is on it.
pub(crate) fn seals(history: &History, member: usize, leaf: Incarnation, report: &SealReport) -> Result<(), Violation> {
    let ledger = &history.ledgers[member];
    check(ledger.fence == Some(leaf), I9, || {
        format!(
            "member {member} reports that it has sealed to epoch {}, its medium says {:?}",
            leaf.epoch, ledger.fence
        )
    })?;
    let last = report.last.1.0;
    let end = last.checked_sub(1).and_then(|at| ledger.log.get(at as usize)).map(|entry| entry.epoch);
    check(last <= ledger.durable && end.unwrap_or_default() == report.last.0, I9, || {
        format!("member {member} reports a log up to {:?}, its medium has {} entries", report.last, ledger.durable)
    })?;
    super::i02_on_every_member::reports_staged(history, member, &report.staged)
}
