//! A replica that is not in the view, and knows it, serves nobody until a view that it is in has committed; and who is in
//! the view does not deny a session that is open.

use flexlog_protocol::Token;
use flexlog_protocol::api::Answer;

use super::{Invariant, Violation, check};

/// A replica answers a client.
pub(crate) fn answers(member: usize, outside: bool, answer: &Answer) -> Result<(), Violation> {
    let serves = match answer {
        Answer::Failed { .. } | Answer::AppendRefused { .. } => false,
        // What it says of its own log counts for nothing where it is not in the view; what is settled stays so.
        Answer::Appended(_) | Answer::SessionOpened { .. } => false,
        _ => true,
    };
    check(!(outside && serves), Invariant::OutsideServesNobody, || {
        format!("replica {member} catches up with its shard, and answers {answer:?}")
    })
}

/// A member of the view says that a session is over.
pub(crate) fn denies(member: usize, token: Token, closed: bool) -> Result<(), Violation> {
    check(closed, Invariant::OutsideServesNobody, || {
        format!("member {member} takes the session of {token} for closed, and it is not")
    })
}
