//! Bits that rot do not stay: with faults at an end, and all replicas there, the scrub leaves nothing damaged that another
//! member has whole, and each store reads back every settled record as it was appended.

use flexlog_protocol::media::{LogStore, ReadError};
use flexlog_protocol::{Color, SeqNum};

use super::{Invariant, Violation, check};
use crate::history::History;

/// Reads everything that is settled of `colors`, and was not trimmed, straight from a member's store. Returns what is
/// damaged; all else is there, and as it was appended.
pub(crate) fn reads_back(
    history: &History,
    member: usize,
    colors: &[Color],
    store: &impl LogStore,
) -> Result<Vec<(Color, SeqNum)>, Violation> {
    let shard = history.home(member);
    let mut all = Vec::new();
    for color in colors {
        let Some(truth) = history.colors.get(color) else { continue };
        let (mut found, mut damaged) = (Vec::new(), Vec::<(SeqNum, SeqNum)>::new());
        let mut from = SeqNum::MIN;
        while from < SeqNum::MAX {
            match store.read_through(*color, from, SeqNum::MAX, usize::MAX, usize::MAX, &mut found) {
                Ok(()) => break,
                Err(ReadError::Damaged { number, end, .. } | ReadError::Io { number, end, .. }) => {
                    from = end.max(number.plus(1).unwrap_or(SeqNum::MAX));
                    damaged.push((number, from));
                }
            }
        }
        let mut found = found.iter().peekable();
        for number in truth.records.keys() {
            if truth.home(*number) != Some(shard) || truth.is_trimmed(shard, *number) {
                continue;
            }
            while found.next_if(|(other, _)| other < number).is_some() {}
            let read = found.peek().filter(|(other, _)| other == number).map(|(_, record)| record);
            if read.is_none() && damaged.iter().any(|(low, high)| (low..high).contains(&number)) {
                all.push((*color, *number));
                continue;
            }
            let appended = history.record(*color, *number);
            check(read == appended, Invariant::Mended, || {
                format!("member {member} has {color}/{number} as {read:?}, and it was appended as {appended:?}")
            })?;
        }
    }
    Ok(all)
}

/// Nothing is damaged any more.
pub(crate) fn nothing_is_left(damaged: &[(usize, Color, SeqNum)]) -> Result<(), Violation> {
    check(damaged.is_empty(), Invariant::Mended, || {
        format!("after all was read and nothing is under way these are damaged (member, color, number): {damaged:?}")
    })
}
