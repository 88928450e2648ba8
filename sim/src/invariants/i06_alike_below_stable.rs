//! I6: every number below stable is a record, a hole or trimmed, alike on all members; an epoch has one last number.

use flexlog_protocol::{Color, Epoch, SeqNum};

use super::{Invariant, Violation, check};
use crate::history::History;
use crate::shape::shard_of;

const I6: Invariant = Invariant::AlikeBelowStable;

/// `count` numbers from `first` on are settled on a shard: of a color that is on no other they are the next, of a wide one
/// they come behind those that are there.
pub(crate) fn goes_on(
    history: &mut History,
    shard: usize,
    color: Color,
    first: SeqNum,
    count: u32,
) -> Result<(), Violation> {
    let truth = history.color(color);
    let part = truth.parts.entry(shard).or_default();
    let fits = match part.end {
        Some(end) if color.is_wide() => first >= end && (!part.closed || first.epoch() > end.epoch()),
        None if color.is_wide() => true,
        Some(end) if end.epoch() == first.epoch() && !part.closed => first == end,
        Some(end) if end.epoch() >= first.epoch() || !part.closed => false,
        _ => first.counter() == 0,
    };
    check(fits, I6, || {
        format!("{color}/{first} settles, and the shard's numbers went up to {:?}, ended: {}", part.end, part.closed)
    })?;
    let end = first.plus(count).unwrap_or(SeqNum::MAX);
    (part.end, part.closed) = (Some(end), false);
    let ended = truth.ends.get(&first.epoch()).copied();
    check(ended.is_none_or(|ended| end <= ended), I6, || {
        format!("{color}/{first} settles, {count} in all, and their epoch ended at {ended:?}")
    })?;
    check(first >= truth.passed, I6, || {
        format!("{color}/{first} settles, and it was told that all below {} are settled", truth.passed)
    })?;
    let hole = truth.told_holes.range(first..end).next();
    check(hole.is_none(), I6, || format!("{color}/{hole:?} settles, and a reader was told that it is a hole"))?;
    truth.end = truth.end.max(Some(end));
    Ok(())
}

/// The epoch of `end` is over, as a shard has it.
pub(crate) fn epoch_ends(
    history: &mut History,
    shard: usize,
    color: Color,
    end: SeqNum,
    next: Epoch,
) -> Result<(), Violation> {
    let truth = history.color(color);
    let before = truth.ends.get(&end.epoch());
    check(before.is_none_or(|before| *before == end), I6, || {
        format!("an epoch of color {color} ends at {end}, and did end at {before:?}")
    })?;
    let part = truth.parts.entry(shard).or_default();
    let fits = if color.is_wide() { part.end <= Some(end) } else { part.end == Some(end) };
    check(fits && next > end.epoch(), I6, || {
        format!("an epoch of color {color} ends at {end} before {next}, and its numbers went up to {:?}", part.end)
    })?;
    (part.end, part.closed) = (Some(end), true);
    let behind = truth.records.range(end..SeqNum::new(end.epoch(), u32::MAX)).next();
    check(behind.is_none(), I6, || format!("an epoch of color {color} ends at {end}, and has the record {behind:?}"))?;
    truth.ends.insert(end.epoch(), end);
    truth.end = truth.end.max(Some(end));
    Ok(())
}

/// Everything below `upto` is told to be settled, on all shards.
pub(crate) fn told_stable(history: &mut History, color: Color, upto: SeqNum) {
    let truth = history.color(color);
    truth.passed = truth.passed.max(upto);
}

/// A shard says that a number below the color's stable is on another one.
pub(crate) fn told_elsewhere(
    history: &mut History,
    shard: usize,
    color: Color,
    number: SeqNum,
) -> Result<(), Violation> {
    let home = history.color(color).home(number);
    check(color.is_wide() && home != Some(shard), I6, || {
        format!("{color}/{number} is told to be on another shard than {shard}, and is on {home:?}")
    })?;
    told_stable(history, color, number.plus(1).unwrap_or(number));
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

/// A reader got `numbers` from a shard and was told that they are all that this has from `from` up to but not including
/// `upto`.
pub(crate) fn told_all(
    history: &mut History,
    (shard, color): (usize, Color),
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
        .filter(|(_, (token, _))| shard_of(token.shard) == shard)
        .map(|(number, _)| *number)
        .find(|number| !truth.is_trimmed(shard, *number) && numbers.binary_search(number).is_err());
    check(missed.is_none(), I6, || {
        format!("{color}/{missed:?} is passed by for one who reads on from {from} up to {upto}")
    })?;
    Ok(())
}

/// With nothing under way, a member's word on something is that of the first member.
pub(crate) fn level<T: PartialEq + std::fmt::Debug>(what: &str, color: Color, all: &[T]) -> Result<(), Violation> {
    check(all.iter().all(|one| *one == all[0]), I6, || {
        format!("members differ in the {what} of color {color}: {all:?}")
    })
}
