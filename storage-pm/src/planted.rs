//! Mistakes planted for the tests of the crash enumeration: a checker that misses one of them checks nothing.

use std::cell::Cell;

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// The checksum of an entry covers a fixed part of it: neither its length nor what that spans.
    ChecksumWithoutLength,
    /// An opening counts generations on from the log that it finds, not from the counter that was durable before their use.
    GenerationReuse,
    /// An opening does not heed what was taken back.
    TakenBackComesBack,
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
