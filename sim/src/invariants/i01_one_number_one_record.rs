//! I1: no settled number names two records; no token settles twice.

use flexlog_protocol::{Color, SeqNum, Token};

use super::{Invariant, Violation, check};
use crate::history::History;

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
    let digests: Vec<_> = history.members().map(|(_, ledger)| ledger.staged.get(&token)).collect();
    let same = digests.iter().all(|written| {
        written.is_some_and(|written| {
            written.durable
                && written.append.color() == color
                && written.append.count() == records
                && digests[0].is_some_and(|first| first.append.digest() == written.append.digest())
        })
    });
    check(same, I1, || format!("{token} settles at {color}/{first}, and members have different records under it"))?;
    let Some(truth) = history.colors.get(&color) else { return Ok(()) };
    let end = first.plus(records).unwrap_or(SeqNum::MAX);
    match truth.records.range(first..end).next() {
        Some((number, (other, _))) => {
            check(false, I1, || format!("{color}/{number} is given to {token}, and named a record of {other}"))
        }
        None => Ok(()),
    }
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
