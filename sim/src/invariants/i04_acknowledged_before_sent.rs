//! I4: if append A was acknowledged before append B of the same color was sent, A's number is smaller. So it is if A was
//! read, or a tail above A told, before B was sent.

use flexlog_protocol::{Color, SeqNum, Token};

use super::{Invariant, Violation, check};
use crate::history::History;

/// An append gets its number.
pub(crate) fn numbered(history: &History, token: Token, color: Color, first: SeqNum) -> Result<(), Violation> {
    let Some(sent) = history.sent.get(&token) else { return Ok(()) };
    check(first >= sent.floor, Invariant::AcknowledgedBeforeSent, || {
        format!("{token} gets {color}/{first}, and all below {} were given away before it was sent", sent.floor)
    })
}
