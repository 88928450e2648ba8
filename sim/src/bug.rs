//! Faults in the router, planted to see that the invariants find them. Production code has none of this.

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A member hears that its writes are durable when they were made, not when the fence is done.
    DurableBeforeFence,
    /// A member hears that its log entries are durable when the fence is started.
    EntriesDurableWhenFenceStarts,
    /// The `Fence` that a seal asks for is not written.
    SealWithoutFence,
    /// The medium says that fences are done, and does nothing.
    LyingFences,
    /// What an old leaf says is delivered as if the new one had said it.
    OldLeafSpeaksAsNew,
    /// The leaf hears the second member's reports as the third's, too.
    ForgedReport,
    /// The members' reports of a token are sent again once its number is committed.
    ReportedAgain,
    /// An older image of a store is put in its place, and its identity is not looked at.
    OlderImage,
    /// A read is answered with whatever the store has under the number.
    UncommittedRead,
    /// A tail is answered with what is settled at the member, and nobody else is asked.
    LocalTail,
    /// The owner tells the end of an epoch one too low.
    WrongEpochEnd,
    /// A store is told to trim one number more than the log says.
    TrimsOneMore,
    /// An append that a member refuses is dropped, and nobody told.
    SilentRefusal,
    /// What a leaf streams to its last member is lost now and then.
    LosesStream,
    /// The leaf hears one member's reports as those of all: numbers are asked for when one has the record.
    AskedAfterOne,
    /// The leaf hears one member's acknowledgements as those of all: entries commit when one has them.
    CommittedByOne,
    /// The same as long as the leaf's first entry is not committed: it numbers before its `NewView` is there.
    NumbersBeforeNewView,
    /// What a learner copies is not written.
    LosesCopies,
    /// A learner's log is not cut where it differs.
    NotTruncated,
    /// The leaf hears members' acknowledgements as the learner's, too: it joins before it has everything.
    JoinsEarly,
    /// Metadata changes the view whoever asks, and whatever it was.
    ViewWithoutCondition,
    /// A leaf is not told that what it sent to a member is lost.
    LossNotTold,
    /// The last entry of each report of a member that seals is left out.
    ReportsCutShort,
    /// A child takes the grants of an older parent for those of the parent that it has sealed to.
    OldParentsGrants,
    /// Two children are told different ends of a wide color's epoch.
    EpochEndsDiffer,
    /// What a shard is granted of a wide color is taken for settled at once.
    SettledWhenGranted,
    /// A position is not told that what it sent to another is lost.
    PositionLossNotTold,
    /// What a member is sent for its damaged records is another record.
    MendsWithOtherBytes,
    /// Nobody looks for what is damaged and not read.
    RotNotLookedFor,
    /// What is sent for a damaged record is not written.
    LosesRepairs,
    /// A record whose checksum does not match is shown all the same.
    RottenBytesShown,
    /// The leaf hears one member's confirmation of a tail's round as those of all.
    ConfirmedByOne,
    /// A member acknowledges entries when they arrive, whatever it has of them.
    AcksOnArrival,
    /// A member tells a session as soon as its log has the entry.
    SessionToldEarly,
}

impl Bug {
    /// Whether it shows only where bits rot.
    pub(crate) fn is_of_rot(self) -> bool {
        matches!(self, Self::MendsWithOtherBytes | Self::RotNotLookedFor | Self::LosesRepairs | Self::RottenBytesShown)
    }

    /// All of them.
    pub const ALL: [Self; 34] = [
        Self::DurableBeforeFence,
        Self::EntriesDurableWhenFenceStarts,
        Self::SealWithoutFence,
        Self::LyingFences,
        Self::OldLeafSpeaksAsNew,
        Self::ForgedReport,
        Self::ReportedAgain,
        Self::OlderImage,
        Self::UncommittedRead,
        Self::LocalTail,
        Self::WrongEpochEnd,
        Self::TrimsOneMore,
        Self::SilentRefusal,
        Self::LosesStream,
        Self::AskedAfterOne,
        Self::CommittedByOne,
        Self::NumbersBeforeNewView,
        Self::LosesCopies,
        Self::NotTruncated,
        Self::JoinsEarly,
        Self::ViewWithoutCondition,
        Self::LossNotTold,
        Self::ReportsCutShort,
        Self::OldParentsGrants,
        Self::EpochEndsDiffer,
        Self::SettledWhenGranted,
        Self::PositionLossNotTold,
        Self::MendsWithOtherBytes,
        Self::RotNotLookedFor,
        Self::LosesRepairs,
        Self::RottenBytesShown,
        Self::ConfirmedByOne,
        Self::AcksOnArrival,
        Self::SessionToldEarly,
    ];
}
