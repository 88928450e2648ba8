//! Mistakes planted for the tests: a checker that misses one of them checks nothing.

use std::cell::Cell;

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// Numbers of this shard count as settled on all of them.
    OwnNumbersMoveStable,
    /// What the store has counts as settled.
    ReadsBeyondStable,
}

thread_local! {
    static BUG: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Makes this mistake from now on in this thread; none where it is `None`.
pub(crate) fn plant(bug: Option<Bug>) {
    BUG.set(bug);
}

pub(crate) fn is(bug: Bug) -> bool {
    BUG.get() == Some(bug)
}
