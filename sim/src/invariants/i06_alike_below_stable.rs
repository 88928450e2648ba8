//! I6: every number below stable is a record, a hole or trimmed, alike on all members; an epoch has one last number.

use flexlog_protocol::{Color, Epoch, SeqNum};

use super::{Invariant, Violation, check};
use crate::history::History;

const I6: Invariant = Invariant::AlikeBelowStable;

/// `count` numbers from `first` on are settled: they are the next of their color.
pub(crate) fn goes_on(history: &mut History, color: Color, first: SeqNum, count: u32) -> Result<(), Violation> {
    let truth = history.color(color);
    let next = match truth.end {
        Some(end) if end.epoch() == first.epoch() && !truth.closed => Some(end),
        Some(end) if end.epoch() >= first.epoch() || !truth.closed => None,
        _ => Some(SeqNum::first_of(first.epoch())),
    };
    check(next == Some(first), I6, || {
        format!("{color}/{first} settles, and the color's numbers went up to {:?}, ended: {}", truth.end, truth.closed)
    })?;
    check(first >= truth.passed, I6, || {
        format!("{color}/{first} settles, and a reader was told that all below {} are settled", truth.passed)
    })?;
    let end = first.plus(count).unwrap_or(SeqNum::MAX);
    let hole = truth.told_holes.range(first..end).next();
    check(hole.is_none(), I6, || format!("{color}/{hole:?} settles, and a reader was told that it is a hole"))?;
    truth.end = Some(end);
    truth.closed = false;
    Ok(())
}

/// The epoch of `end` is over.
pub(crate) fn epoch_ends(history: &mut History, color: Color, end: SeqNum, next: Epoch) -> Result<(), Violation> {
    let truth = history.color(color);
    let before = truth.ends.get(&end.epoch());
    check(before.is_none_or(|before| *before == end), I6, || {
        format!("an epoch of color {color} ends at {end}, and did end at {before:?}")
    })?;
    check(truth.end == Some(end) && next > end.epoch(), I6, || {
        format!("an epoch of color {color} ends at {end} before {next}, and its numbers went up to {:?}", truth.end)
    })?;
    truth.ends.insert(end.epoch(), end);
    truth.closed = true;
    Ok(())
}

/// A reader is told that `number` names no record.
pub(crate) fn told_hole(history: &mut History, color: Color, number: SeqNum) -> Result<(), Violation> {
    let truth = history.color(color);
    check(!truth.records.contains_key(&number), I6, || {
        format!("{color}/{number} is told to be a hole, and names a record")
    })?;
    truth.told_holes.insert(number);
    Ok(())
}

/// A reader is told that everything up to `point` is gone.
pub(crate) fn told_trimmed(history: &History, color: Color, point: SeqNum) -> Result<(), Violation> {
    let known = history.colors.get(&color).is_some_and(|truth| truth.trims.contains(&point));
    check(known, I6, || format!("color {color} is told to be trimmed up to {point}, and no committed entry says so"))
}

/// A reader got `numbers` and was told that they are all there is from `from` up to but not including `upto`.
pub(crate) fn told_all(
    history: &mut History,
    color: Color,
    from: SeqNum,
    upto: SeqNum,
    numbers: &[SeqNum],
) -> Result<(), Violation> {
    let ascending = numbers.windows(2).all(|pair| pair[0] < pair[1]);
    let within = numbers.iter().all(|number| (from..upto).contains(number));
    check(ascending && within && from <= upto, I6, || {
        format!("{numbers:?} are told to be the records of color {color} from {from} up to {upto}")
    })?;
    let truth = history.color(color);
    let missed = truth
        .records
        .range(from..upto)
        .map(|(number, _)| *number)
        .find(|number| !truth.is_trimmed(*number) && numbers.binary_search(number).is_err());
    check(missed.is_none(), I6, || {
        format!("{color}/{missed:?} is passed by for one who reads on from {from} up to {upto}")
    })?;
    truth.passed = truth.passed.max(upto);
    Ok(())
}

/// With nothing under way, a member's word on something is that of the first member.
pub(crate) fn level<T: PartialEq + std::fmt::Debug>(what: &str, color: Color, all: &[T]) -> Result<(), Violation> {
    check(all.iter().all(|one| *one == all[0]), I6, || {
        format!("members differ in the {what} of color {color}: {all:?}")
    })
}
