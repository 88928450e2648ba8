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
    /// A learner joins without a fence, so that an older leaf may have it join again.
    LearnerNotFenced,
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

    // ---- tree ----
    /// A grant of a parent that was replaced counts after a new seal.
    OldGrantCounts,
    /// A hole is written over everything that is not committed, and not over what is missing.
    HoleOverRecord,
    /// Each child is told its own end of the epoch before.
    TwoEnds,
    /// A new root counts in the epoch of the one before.
    OwnerEpochReused,
    /// A root counts when the first child has reported.
    OwnerStartsEarly,
    /// An inner position answers a seal from what it knows, and does not hand it down.
    SealNotPassed,
    /// An inner position answers a seal when the first child has.
    InnerAnswersEarly,
    /// A grant serves tokens that came after its request.
    GrantForLater,
    /// A child seals to a parent that is older than the one in the metadata when the child claimed its place.
    OldParentTaken,
    /// A parent takes the report of a child that is older than the one in the metadata when the parent claimed its place.
    OldChildTaken,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 25] = [
        Self::NumberWithoutAll,
        Self::CommitWithoutAll,
        Self::AckWithoutRecord,
        Self::ReportBeforeFence,
        Self::FenceForgotten,
        Self::ShortestLog,
        Self::AssignBeforeNewView,
        Self::LearnerNotTruncated,
        Self::LearnerNotFenced,
        Self::LearnerAddedEarly,
        Self::DoubtIgnored,
        Self::DoubtTakenForNo,
        Self::TailByOneMember,
        Self::StaleViewAccepted,
        Self::EpochReused,
        Self::OldGrantCounts,
        Self::HoleOverRecord,
        Self::TwoEnds,
        Self::OwnerEpochReused,
        Self::OwnerStartsEarly,
        Self::SealNotPassed,
        Self::InnerAnswersEarly,
        Self::GrantForLater,
        Self::OldParentTaken,
        Self::OldChildTaken,
    ];
}
