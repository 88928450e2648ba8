//! Each planted fault is found, soon, and by an invariant that it breaks.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use flexlog_sim::{Bug, Config, Invariant, run};

/// Seeds within which each must be found.
const SEEDS: u64 = 1000;

/// What a fault may be found by; which of them comes first is up to the seed.
fn broken_by(bug: Bug) -> &'static [Invariant] {
    use Invariant as I;
    match bug {
        // A seal that is reported before it is durable is a promise that a crash takes back.
        Bug::DurableBeforeFence | Bug::EntriesDurableWhenFenceStarts => &[I::OnEveryMember, I::OldIncarnations],
        Bug::SealWithoutFence | Bug::OldLeafSpeaksAsNew => &[I::OldIncarnations],
        Bug::LyingFences | Bug::OlderImage => &[I::Recovery],
        // A member that is gone seems to have reported: nobody takes its place.
        Bug::ForgedReport => &[I::OnEveryMember, I::Liveness],
        Bug::ReportedAgain => &[I::OneNumberOneRecord, I::OnEveryMember],
        Bug::UncommittedRead | Bug::SessionToldEarly => &[I::SettledBeforeShown],
        Bug::LocalTail | Bug::ConfirmedByOne => &[I::StaysReadable],
        Bug::WrongEpochEnd => &[I::AlikeBelowStable],
        Bug::TrimsOneMore => &[I::StaysReadable, I::AlikeBelowStable, I::OnEveryMember, I::Mended],
        Bug::SilentRefusal => &[I::Bounds],
        // The member sees the gap in its log, and stops.
        Bug::LosesStream => &[I::Liveness],
        Bug::AcksOnArrival | Bug::AskedAfterOne | Bug::CommittedByOne | Bug::NumbersBeforeNewView => {
            &[I::OnEveryMember]
        }
        Bug::LosesCopies | Bug::NotTruncated | Bug::JoinsEarly => &[I::OnEveryMember],
        Bug::ViewWithoutCondition => &[I::OnEveryMember, I::Liveness],
        Bug::OldParentsGrants | Bug::EpochEndsDiffer | Bug::SettledWhenGranted => &[I::AlikeBelowStable],
        Bug::LossNotTold | Bug::PositionLossNotTold => &[I::Liveness],
        // A reader is shown it, or it is what is written again.
        Bug::MendsWithOtherBytes => &[I::StaysReadable, I::Mended],
        Bug::RottenBytesShown => &[I::StaysReadable],
        Bug::RotNotLookedFor | Bug::LosesRepairs => &[I::Mended],
        // What was committed is written over, or the members pass by what the new leaf writes in its place, or see
        // what is missing in their log, and stop.
        Bug::ReportsCutShort => &[I::OnEveryMember, I::OneNumberOneRecord, I::OldIncarnations, I::Liveness],
    }
}

fn finds(bug: Bug) {
    let config = Config { bug: Some(bug), ..Config::default() };
    let violation = (1..=SEEDS).find_map(|seed| run(seed, config).violation);
    let found = violation.map(|violation| violation.invariant);
    assert!(found.is_some_and(|found| broken_by(bug).contains(&found)), "{bug:?} is found by {found:?}");
}

#[test]
fn planted_bugs_are_caught() {
    // What is drawn does not lead to where one member's confirmation is not enough: `scenarios.rs` does.
    Bug::ALL.into_iter().filter(|bug| *bug != Bug::ConfirmedByOne).for_each(finds);
}
