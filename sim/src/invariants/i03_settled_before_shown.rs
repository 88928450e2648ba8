//! I3: nothing is shown to anyone (acknowledgement, read, subscription) before it is settled.

use flexlog_protocol::{Color, SeqNum, SessionId, Token};
use uuid::Uuid;

use super::{Invariant, Violation, check};
use crate::history::History;

const I3: Invariant = Invariant::SettledBeforeShown;

/// A reader is shown a record.
pub(crate) fn shows(history: &History, color: Color, number: SeqNum) -> Result<(), Violation> {
    let settled = history.colors.get(&color).is_some_and(|truth| truth.records.contains_key(&number));
    check(settled, I3, || format!("{color}/{number} is shown to a reader, and is not settled"))
}

/// A client may take its append for done, or was told that it is.
pub(crate) fn acknowledged(history: &History, token: Token, first: SeqNum) -> Result<(), Violation> {
    check(history.tokens.contains_key(&token), I3, || format!("{token} is acknowledged as {first}, and is not settled"))
}

/// One member tells a client what its entry says: that entry must be durable there.
pub(crate) fn member_tells(history: &History, member: usize, token: Token, first: SeqNum) -> Result<(), Violation> {
    let ledger = &history.ledgers[member];
    let holds = ledger.assigned.get(&token).is_some_and(|(number, lsn)| *number == first && lsn.0 <= ledger.durable);
    check(holds, I3, || {
        format!("member {member} tells {token} its number {first}, and has no such entry on its medium")
    })
}

/// A client is told its session.
pub(crate) fn session_told(history: &History, shard: usize, nonce: Uuid, session: SessionId) -> Result<(), Violation> {
    let known = history.shards[shard].nonces.get(&nonce);
    check(known.is_some_and(|known| known.contains(&session)), I3, || {
        format!("session {session} is told, and what is committed is {known:?}")
    })
}
