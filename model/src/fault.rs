//! Faults to plant: each breaks one rule of the protocol, and the checker must find what comes of it.

/// A rule that is broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    // ---- shard ----
    /// A number is asked for when all members but one have the record.
    NumberWithoutAll,
    /// An entry counts as committed when all members but one have it.
    CommitWithoutAll,
    /// A member acknowledges an assignment whose record it does not have.
    AckWithoutRecord,
    /// A member reports to a new leaf before what it had accepted is durable.
    ReportBeforeFence,
    /// A member forgets its fence when it restarts.
    FenceForgotten,
    /// A new leaf takes the shortest log instead of the longest.
    ShortestLog,
    /// A new leaf assigns at once, without a `NewView` entry that has committed.
    AssignBeforeNewView,
    /// A learner keeps entries that the leaf's log does not have.
    LearnerNotTruncated,
    /// A learner is added before it has everything.
    LearnerAddedEarly,
    /// A change of view counts as soon as it is asked for.
    DoubtIgnored,
    /// A change of view that is not known to be applied is taken for refused.
    DoubtTakenForNo,
    /// A tail stands when one member has confirmed.
    TailByOneMember,
    /// A change of view is applied whoever leads the shard by then.
    StaleViewAccepted,
    /// A new incarnation counts in the epoch of the one before.
    EpochReused,
}
