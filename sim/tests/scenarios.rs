//! Every scenario comes to its end with every seed, and the rule that it is about is caught where it is broken.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use flexlog_sim::{Bug, Config, Invariant, Scenario, run};

/// Seeds of each scenario, and seeds within which it finds a planted mistake.
const SEEDS: u64 = 10;
const BUG_SEEDS: u64 = 40;

fn played(name: &str, bug: Option<Bug>) -> Config {
    let scenario = Scenario::named(name);
    assert!(scenario.is_some(), "there is no scenario {name}");
    Config { scenario, bug, ..Config::default() }
}

#[test]
fn every_scenario_comes_to_its_end() {
    for scenario in Scenario::all() {
        for seed in 1..=SEEDS {
            let report = run(seed, played(scenario.name, None));
            let again =
                format!("again: cargo run --release -p flexlog-sim -- --scenario {} --from {seed}", scenario.name);
            assert_eq!(report.violation, None, "{again} --seeds 1");
        }
    }
}

#[test]
fn the_same_seed_plays_the_same_way_and_another_does_not() {
    for scenario in Scenario::all() {
        let config = played(scenario.name, None);
        let report = run(1, config);
        assert_eq!(report, run(1, config), "{}", scenario.name);
        assert_ne!(report.trace, run(2, config).trace, "{}", scenario.name);
    }
}

#[test]
fn names_are_told_apart_and_executions_come_in_order() {
    let all = Scenario::all();
    let executions: Vec<u32> = all.iter().map(|scenario| scenario.execution).collect();
    assert!(executions.is_sorted_by(|a, b| a < b), "{executions:?}");
    assert!(all.iter().all(|scenario| Scenario::named(scenario.name) == Some(*scenario)));
    assert_eq!(Scenario::named("no such thing"), None);
}

/// Where the rule is broken, the scenario finds it, and not because its script gets stuck.
fn finds(name: &str, bug: Bug) {
    let violation = (1..=BUG_SEEDS).find_map(|seed| run(seed, played(name, Some(bug))).violation);
    let found = violation.as_ref().map(|violation| violation.invariant);
    assert!(found.is_some_and(|found| found != Invariant::Scenario), "{name} with {bug:?}: {violation:?}");
}

/// The mistakes that a scenario is to find.
const FOUND: &[(&str, Bug)] = &[
    ("the-other-side-goes-on", Bug::LocalTail),
    ("the-other-side-goes-on", Bug::ConfirmedByOne),
    ("leaf-follows-the-old-inner-position", Bug::OldParentsGrants),
    ("assignment-on-one-member", Bug::NotTruncated),
    ("seal-during-a-fence", Bug::SealWithoutFence),
    ("seal-during-a-fence", Bug::EntriesDurableWhenFenceStarts),
    ("learner-outlives-the-old-members", Bug::JoinsEarly),
    ("learner-outlives-the-old-members", Bug::LosesCopies),
    ("positions-die-together", Bug::WrongEpochEnd),
    ("positions-die-together", Bug::ReportsCutShort),
    ("torn-entry-and-a-whole-one-behind", Bug::LyingFences),
    ("image-of-yesterday", Bug::OlderImage),
    ("shards-settle-apart", Bug::SettledWhenGranted),
    ("cut-off-with-grants", Bug::OldParentsGrants),
    ("added-member-is-all-that-is-reached", Bug::JoinsEarly),
    ("no-number-before-the-new-view", Bug::NumbersBeforeNewView),
    ("epoch-ends-twice", Bug::EpochEndsDiffer),
    ("epoch-ends-twice", Bug::WrongEpochEnd),
    ("assignment-before-its-record", Bug::AcksOnArrival),
    ("session-on-one-member", Bug::SessionToldEarly),
    ("checkpoint-below-what-is-taken-back", Bug::NotTruncated),
];

#[test]
fn scenarios_find_what_breaks_their_rules() {
    FOUND.iter().for_each(|(name, bug)| finds(name, *bug));
}
