//! With faults at an end and every member there, everything comes to an end: every open append of a living client is
//! resolved, every reader answered, all members' stable equal; and no core stops by itself.

use super::{Invariant, Violation};

/// Something does not end, or ended that should not have.
pub(crate) fn stuck(what: impl Into<String>) -> Violation {
    Violation { invariant: Invariant::Liveness, what: what.into() }
}
