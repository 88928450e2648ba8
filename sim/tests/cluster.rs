//! The cluster under the scheduler: many short seeds, one device that loses lines, and the proof that a run is its seed.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use flexlog_sim::{Config, Counts, Report, run};

/// Runs a seed; on a violation it runs again, to say what led there.
fn survives(seed: u64, config: Config) -> Report {
    let report = run(seed, config);
    if let Some(violation) = &report.violation {
        let again = run(seed, Config { record: true, ..config });
        let last = again.last_events.len().saturating_sub(40);
        panic!(
            "seed {seed}, event {}: {violation}\n{}\nmore: cargo run --release -p flexlog-sim -- --from {seed} --seeds 1",
            report.events,
            again.last_events[last..].join("\n")
        );
    }
    report
}

/// The log as a whole on the simulated device that loses unfenced lines at random: what was acknowledged or read is there
/// after every crash, on every member, with the same number and the same bytes.
#[test]
fn whole_log_survives_lost_lines() {
    let (mut acknowledged, mut counts) = (0, Counts::default());
    for seed in 1..=400 {
        let report = survives(seed, Config { tree: false, ..Config::default() });
        acknowledged += report.acknowledged;
        counts += report.counts;
    }
    // Runs in which nothing happens would survive too.
    let Counts { crashes, refused_images, partitions, lost_streams, views, added, copies, truncations, .. } = counts;
    let Counts { rotten, mended, .. } = counts;
    assert!(acknowledged > 3000 && crashes > 2000 && refused_images > 50, "{acknowledged} {counts:?}");
    assert!(partitions > 1000 && lost_streams > 1500 && views > 500 && added > 300, "{counts:?}");
    assert!(copies > 1000 && truncations > 8, "{counts:?}");
    assert!(rotten > 300 && mended > 300, "{counts:?}");
}

/// The same with several positions and shards, colors of each and of all of them, and numbers from above.
#[test]
fn nothing_is_lost_below_a_tree() {
    let (mut acknowledged, mut counts) = (0, Counts::default());
    for seed in 5001..=5400 {
        let report = survives(seed, Config::default());
        acknowledged += report.acknowledged;
        counts += report.counts;
    }
    let Counts { crashes, partitions, lost_streams, views, added, copies, .. } = counts;
    assert!(acknowledged > 3000 && crashes > 4000 && views > 400 && added > 300, "{acknowledged} {counts:?}");
    assert!(partitions > 1400 && lost_streams > 2000 && copies > 300 && counts.lost_in_turns > 70, "{counts:?}");
    assert!(counts.rotten > 300 && counts.mended > 300, "{counts:?}");
}

/// The same where the shard keeps its first view, whatever happens.
#[test]
fn nothing_is_lost_while_the_view_stays() {
    let mut acknowledged = 0;
    for seed in 1..=100 {
        let report = survives(seed, Config { views: false, tree: false, ..Config::default() });
        assert_eq!(report.counts.views, 0);
        acknowledged += report.acknowledged;
    }
    assert!(acknowledged > 700, "{acknowledged}");
}

#[test]
fn a_longer_run_goes_through_many_openings() {
    for seed in 1001..=1010 {
        survives(seed, Config { events: 20_000, ..Config::default() });
    }
}

#[test]
fn shards_of_other_sizes() {
    for members in [1, 2, 5] {
        for seed in 2001..=2040 {
            survives(seed, Config { members, tree: false, ..Config::default() });
        }
    }
}

#[test]
fn without_faults_nothing_is_lost_and_most_is_acknowledged() {
    let (mut acknowledged, mut without) = (0, 0);
    for seed in 3001..=3040 {
        let report = survives(seed, Config { faults: false, ..Config::default() });
        assert!(report.counts.crashes <= 1, "seed {seed}: {report:?}");
        acknowledged += report.acknowledged;
        without += u32::from(report.acknowledged == 0);
    }
    // In a few runs whoever appends dies, or has no turn, before its session is open.
    assert!(acknowledged > 800 && without <= 5, "{acknowledged} in all, none in {without} runs");
}

/// Nothing that the simulator says counts before this holds: every event, in words, is the same the second time.
#[test]
fn the_same_seed_is_the_same_run() {
    let mut traces = Vec::new();
    for seed in 1..=30 {
        for record in [false, true] {
            let config = Config { record, ..Config::default() };
            let report = run(seed, config);
            assert_eq!(report, run(seed, config), "seed {seed}");
            traces.push(report.trace);
        }
    }
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 60, "another seed is another run");
}
