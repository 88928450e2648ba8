//! I12: memory, staged bytes, queues and sessions are bounded; at the bound the sender is told to wait; nothing is dropped
//! in silence.

use flexlog_protocol::api::{Answer, AppendRequest};
use flexlog_protocol::limits::{MAX_SESSIONS, MAX_STAGED_TOKENS};
use flexlog_protocol::{Append, Token};
use flexlog_replica::{Output, Persist, Summary};
use flexlog_sequencer::{MAX_UNCOMMITTED_ENTRIES, Status};

use super::{Invariant, Violation, check};
use crate::history::History;

const I12: Invariant = Invariant::Bounds;
/// What a leaf may write beyond its bound: ends of epochs, holes, and closed sessions.
const BEYOND: u64 = 256;
/// The most messages that wait in one stream: what a leaf has uncommitted, and what its flushes and rounds add.
const MAX_QUEUE: usize = 4 * MAX_UNCOMMITTED_ENTRIES;

/// A member took appends: each was staged, answered, refused, or is known to it from before.
pub(crate) fn told(
    history: &History,
    member: usize,
    request: &AppendRequest,
    outputs: &[Output],
) -> Result<(), Violation> {
    for append in &request.appends {
        let heard = history.ledgers[member].knows(append.token())
            || outputs.iter().any(|output| speaks_of(output, append.token()) || stages(output, append));
        check(heard, I12, || format!("member {member} dropped {} and told nobody", append.token()))?;
    }
    Ok(())
}

fn stages(output: &Output, append: &Append) -> bool {
    matches!(output, Output::Persist(Persist::Stage(staged)) if staged.token() == append.token())
}

fn speaks_of(output: &Output, token: Token) -> bool {
    match output {
        Output::Answer { answer: Answer::AppendRefused { token: of, .. }, .. } => *of == token,
        Output::Answer { answer: Answer::Appended(appended), .. } => {
            appended.runs.iter().any(|run| run.each().any(|(of, _)| of == token))
        }
        _ => false,
    }
}

/// A member's counts are within their bounds.
pub(crate) fn member(member: usize, summary: &Summary) -> Result<(), Violation> {
    check(summary.staged <= MAX_STAGED_TOKENS as u64, I12, || {
        format!("member {member} has {} staged", summary.staged)
    })?;
    check(summary.sessions <= MAX_SESSIONS as u64, I12, || format!("member {member} has {} sessions", summary.sessions))
}

/// A leaf's counts are within their bounds.
pub(crate) fn leaf(status: &Status) -> Result<(), Violation> {
    let uncommitted = status.last.0.saturating_sub(status.commit.0);
    check(uncommitted <= MAX_UNCOMMITTED_ENTRIES as u64 + BEYOND, I12, || {
        format!("the leaf of epoch {} has {uncommitted} entries uncommitted", status.epoch)
    })?;
    check(status.sessions <= MAX_SESSIONS, I12, || format!("the leaf has {} sessions", status.sessions))
}

/// No stream was ever longer than it may be.
pub(crate) fn queues(longest: usize) -> Result<(), Violation> {
    check(longest <= MAX_QUEUE, I12, || format!("{longest} messages waited in one stream"))
}

/// A client was refused in a way that it gave no reason for.
pub(crate) fn wrong_refusal(what: String) -> Violation {
    Violation { invariant: I12, what }
}
