//! I5: what was acknowledged or read stays readable, same number, same bytes, until trimmed; and who asks after that is
//! shown it, at whichever member.

use flexlog_protocol::{Color, Record, SeqNum};

use super::{Invariant, Violation, check};
use crate::history::History;

const I5: Invariant = Invariant::StaysReadable;

/// A record is shown: it is the one that was appended.
pub(crate) fn same_bytes(history: &History, color: Color, number: SeqNum, record: &Record) -> Result<(), Violation> {
    let appended = history.record(color, number);
    check(appended == Some(record), I5, || {
        format!("{color}/{number} is shown as {record:?}, and was appended as {appended:?}")
    })
}

/// Whoever asked at `event` was told by a shard that it has no record from `from` up to but not including `upto`.
pub(crate) fn none_shown(
    history: &History,
    (shard, color): (usize, Color),
    from: SeqNum,
    upto: SeqNum,
    event: u64,
) -> Result<(), Violation> {
    let Some(truth) = history.colors.get(&color).filter(|_| from < upto) else { return Ok(()) };
    let is_here = |number: SeqNum| truth.home(number) == Some(shard) && !truth.is_trimmed(shard, number);
    let missed = truth.shown.range(from..upto).find(|(number, shown)| **shown < event && is_here(**number));
    match missed {
        Some((number, shown)) => check(false, I5, || {
            format!("{color}/{number} was shown at event {shown}; who asked at {event} is told that it is not there")
        }),
        None => Ok(()),
    }
}

/// A tail is told to one who asked when everything below `floor` was given away.
pub(crate) fn tail(color: Color, tail: SeqNum, floor: SeqNum) -> Result<(), Violation> {
    check(tail >= floor, I5, || {
        format!(
            "the tail of color {color} is told to be {tail}, and all below {floor} were given away when it was asked"
        )
    })
}

/// A member says that it cannot read a record.
pub(crate) fn unreadable(why: &str) -> Violation {
    Violation { invariant: I5, what: format!("a settled record cannot be read: {why}") }
}
