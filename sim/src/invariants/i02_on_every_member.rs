//! I2: a number is asked for only when every member of the view at that time has persisted the record; an entry commits
//! only when its bytes are on every member of the view in force; and who joins a view has all that is committed.
//!
//! Checked against the media: what members report, what the leaf asks for and gives out, and what it calls committed.

use std::collections::BTreeSet;

use flexlog_protocol::peer::Staged;
use flexlog_protocol::{Body, Color, Lsn, SeqNum, ShardId, Token};

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

/// A leaf asks for `count` numbers, for tokens that are at all `members` of the views in force. With those it has asked for
/// and not given out that is `outstanding`, beyond `numbered`: of these, members that joined meanwhile may lack some, but
/// not those that were there `since`.
pub(crate) fn asks(
    history: &History,
    (members, since): (&[usize], &[usize]),
    (shard, color): (ShardId, Color),
    (count, outstanding): (u32, u64),
    numbered: &BTreeSet<Token>,
) -> Result<(), Violation> {
    let records = |at: &[usize]| {
        let open = history.open.iter();
        let open = open.filter(|(token, (of, _))| *of == color && token.shard == shard && !numbered.contains(token));
        let complete =
            open.filter(|(token, _)| at.iter().all(|member| history.ledgers[*member].is_staged_durably(**token)));
        complete.map(|(_, (_, records))| u64::from(*records)).sum::<u64>()
    };
    let (now, before) = (records(members), records(since));
    check(u64::from(count) <= now && outstanding <= before, I2, || {
        format!(
            "the leaf asks for {count} numbers of color {color}, {outstanding} in all; all of {members:?} have {now} \
             records for them, all of {since:?} have {before}"
        )
    })
}

/// A leaf gives a number to `token`, which these members have had since it was asked for.
pub(crate) fn numbers(history: &History, members: &[usize], token: Token) -> Result<(), Violation> {
    let lacking = members.iter().find(|member| !history.ledgers[**member].is_staged_durably(token));
    check(lacking.is_none(), I2, || {
        format!("the leaf numbers {token}, the medium of member {lacking:?} does not have it")
    })
}

/// A leaf says that its log is committed up to `lsn`.
pub(crate) fn commits(history: &History, shard: usize, lsn: Lsn) -> Result<(), Violation> {
    let committed = history.shards[shard].committed.len() as u64;
    check(lsn.0 <= committed, I2, || format!("the leaf commits {lsn}, every medium has the log up to {committed} only"))
}

/// The entry at index `at` is durable on every member of the view.
pub(crate) fn entry_is_the_same(history: &History, shard: usize, at: usize) -> Result<(), Violation> {
    let view = &history.shards[shard].view;
    let first = &history.ledgers[view[0]].log[at];
    let other = history.members(shard).find(|(_, ledger)| ledger.log[at] != *first);
    check(other.is_none(), I2, || {
        format!("entry {} is {first:?} on member {}, and another on member {:?}", at + 1, view[0], other)
    })
}

/// A replica writes a state as of `upto`: that is committed, and where its own log ends before, that is a part of it.
pub(crate) fn copies(history: &History, member: usize, upto: Lsn) -> Result<(), Violation> {
    let (log, committed) = (&history.ledgers[member].log, &history.of(member).committed);
    check(upto.0 <= committed.len() as u64, I2, || {
        format!("replica {member} writes a state as of {upto}, only {} is committed", committed.len())
    })?;
    let differs = log.iter().zip(&committed[..upto.0 as usize]).position(|(here, there)| here != there);
    check(differs.is_none(), I2, || {
        format!("replica {member} writes a state as of {upto}, and its log is another one from index {differs:?} on")
    })
}

/// A replica takes back its log above `upto`: none that is in the view does so.
pub(crate) fn takes_back(history: &History, member: usize, upto: Lsn) -> Result<(), Violation> {
    check(!history.of(member).view.contains(&member), I2, || {
        format!("replica {member} is in the view and takes back its log above {upto}")
    })
}

/// A replica joins the view, or says that it can follow: the log up to `upto` is durable there, and so is each record that
/// this numbers, unless it was trimmed.
pub(crate) fn has_all(history: &History, member: usize, upto: Lsn) -> Result<(), Violation> {
    let ledger = &history.ledgers[member];
    let (shard, committed) = (history.home(member), &history.of(member).committed);
    let whole = committed.iter().zip(&ledger.log).take(upto.0 as usize).all(|(a, b)| a == b);
    check(ledger.durable >= upto.0 && whole, I2, || {
        format!(
            "replica {member} is to have the log up to {upto}; its medium has {} entries, alike: {whole}",
            ledger.durable
        )
    })?;
    for entry in committed.iter().take(upto.0 as usize) {
        let Body::Assign(runs) = &entry.body else { continue };
        for run in runs {
            for (_, first) in run.each().filter(|(token, _)| !ledger.is_staged_durably(*token)) {
                for index in 0..run.records {
                    let number = SeqNum::new(first.epoch(), first.counter() + index);
                    let here = ledger.copied.get(&(run.color, number)).copied().unwrap_or_default();
                    let trimmed = history.colors.get(&run.color).is_some_and(|truth| truth.is_trimmed(shard, number));
                    check(here || trimmed, I2, || {
                        format!("replica {member} has the log up to {upto} and not the record {}/{number}", run.color)
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// A replica joins the view.
pub(crate) fn joins(history: &History, member: usize) -> Result<(), Violation> {
    has_all(history, member, Lsn(history.of(member).committed.len() as u64))
}
