//! I1: no settled number names two records; no token settles twice.

use std::collections::BTreeMap;

use flexlog_protocol::peer::Range;
use flexlog_protocol::{Color, SeqNum, Token};

use super::{Invariant, Violation, check};
use crate::history::History;
use crate::shape::shard_of;

const I1: Invariant = Invariant::OneNumberOneRecord;

/// An `Assign` commits: `records` numbers from `first` on for `token`.
pub(crate) fn settles(
    history: &History,
    token: Token,
    color: Color,
    first: SeqNum,
    records: u32,
) -> Result<(), Violation> {
    if let Some(before) = history.tokens.get(&token) {
        return check(false, I1, || format!("{token} settles at {first}, and did at {before}"));
    }
    let members = history.members(shard_of(token.shard));
    let digests: Vec<_> = members.map(|(_, ledger)| ledger.staged.get(&token)).collect();
    let same = digests.iter().all(|written| {
        written.is_some_and(|written| {
            written.durable
                && written.append.color() == color
                && written.append.count() == records
                && digests[0].is_some_and(|first| first.append.digest() == written.append.digest())
        })
    });
    check(same, I1, || format!("{token} settles at {color}/{first}, and members have different records under it"))?;
    is_no_record(history, color, first, records)
}

/// Numbers are about to settle, on whichever shard: none of them names a record or is a hole already.
pub(crate) fn is_no_record(history: &History, color: Color, first: SeqNum, count: u32) -> Result<(), Violation> {
    let Some(truth) = history.colors.get(&color) else { return Ok(()) };
    let end = first.plus(count).unwrap_or(SeqNum::MAX);
    if let Some((number, (other, _))) = truth.records.range(first..end).next() {
        return check(false, I1, || format!("{color}/{number} is given away, and named a record of {other}"));
    }
    let hole = truth.holes.iter().find(|hole| hole.0 < end && first < hole.1);
    check(hole.is_none(), I1, || format!("{color}/{first} and {count} in all are given away, and {hole:?} are holes"))
}

fn overlaps(ranges: &BTreeMap<SeqNum, SeqNum>, range: Range) -> bool {
    ranges.range(..range.end()).next_back().is_some_and(|(_, end)| *end > range.first)
}

/// An owner grants numbers: none of them was granted before.
pub(crate) fn grants(history: &mut History, color: Color, range: Range) -> Result<(), Violation> {
    let granted = &mut history.color(color).granted;
    check(!overlaps(granted, range), I1, || format!("the owner of color {color} grants {range:?}, and did before"))?;
    granted.insert(range.first, range.end());
    Ok(())
}

/// A leaf is granted numbers: no leaf was before, and the owner granted them in one piece.
pub(crate) fn is_given(history: &mut History, color: Color, range: Range) -> Result<(), Violation> {
    let truth = history.color(color);
    check(!overlaps(&truth.given, range), I1, || {
        format!("a leaf is given {color}/{range:?}, and some leaf was before")
    })?;
    let piece = truth.granted.range(..=range.first).next_back();
    check(piece.is_some_and(|(_, end)| *end >= range.end()), I1, || {
        format!("a leaf is given {color}/{range:?}, and the owner granted {piece:?} there")
    })?;
    truth.given.insert(range.first, range.end());
    Ok(())
}

/// A leaf gives a number to `token`: no log of `members` may have given it one already, and it is not settled.
pub(crate) fn has_no_number(
    history: &History,
    members: &[usize],
    token: Token,
    first: SeqNum,
) -> Result<(), Violation> {
    let given = members.iter().find_map(|member| history.ledgers[*member].assigned.get(&token));
    let known = history.tokens.get(&token).or(given.map(|(number, _)| number));
    check(known.is_none_or(|known| *known == first), I1, || {
        format!("the leaf numbers {token} as {first}, and its number is {}", known.copied().unwrap_or_default())
    })
}

/// A client was told a number for its token by one who says it is settled.
pub(crate) fn told(history: &History, token: Token, first: SeqNum) -> Result<(), Violation> {
    match history.tokens.get(&token) {
        Some(settled) => check(*settled == first, I1, || format!("{token} is told {first}, and settled at {settled}")),
        None => Ok(()),
    }
}
