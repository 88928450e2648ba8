//! What clients of a color did and saw, from outside, can be the history of one log: judged by a checker that knows nothing
//! of what happened inside.

use std::fmt::Debug;

use flexlog_history::History;
use flexlog_protocol::Color;

use super::{Invariant, Violation};

/// The run is over.
pub(crate) fn is_of_a_log<V: Clone + Ord + Debug>(color: Color, seen: &History<V>) -> Result<(), Violation> {
    seen.check().map_err(|why| Violation { invariant: Invariant::History, what: format!("color {color}: {why}") })
}
