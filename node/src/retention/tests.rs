//! The planner against a list of all records.

use std::num::NonZeroU64;

use flexlog_protocol::Epoch;
use proptest::prelude::*;

use super::*;

const RED: Color = Color(1);

fn n(counter: u32) -> SeqNum {
    SeqNum::new(Epoch(1), counter)
}

fn bounds(age: u64, bytes: u64) -> Retention {
    Retention { max_age_secs: NonZeroU64::new(age), max_bytes: NonZeroU64::new(bytes) }
}

fn planner(age: u64, bytes: u64) -> Planner {
    let mut planner = Planner::default();
    assert_eq!(planner.set(RED, bounds(age, bytes)), age > 0 || bytes > 0);
    planner
}

fn all_samples(planner: &Planner) -> Vec<Sample> {
    planner.samples().flat_map(|(_, samples)| samples).collect()
}

#[test]
fn what_is_older_than_the_age_is_due() {
    let mut planner = planner(10, 0);
    assert!(planner.observe(100, RED, n(4), 0));
    assert!(planner.observe(105, RED, n(9), 0));
    assert_eq!(planner.due(110, RED), None, "just as old as the bound is not older");
    assert_eq!(planner.due(111, RED), Some(n(4)));
    assert_eq!(planner.due(115, RED), Some(n(4)));
    assert!(planner.trimmed(RED, n(4)));
    assert_eq!(planner.due(115, RED), None);
    assert_eq!(planner.due(116, RED), Some(n(9)));
    assert!(planner.trimmed(RED, n(9)));
    assert!(!planner.observe(200, RED, n(9), 0), "all of it is gone, and nothing is left to remember");
    assert_eq!(planner.due(1000, RED), None);
}

#[test]
fn what_is_behind_enough_newer_bytes_is_due() {
    let mut planner = planner(0, 100);
    planner.observe(1, RED, n(0), 40);
    planner.observe(1, RED, n(1), 80);
    planner.observe(1, RED, n(2), 139);
    assert_eq!(planner.due(1, RED), None);
    planner.observe(1, RED, n(3), 179);
    assert_eq!(planner.due(1, RED), Some(n(0)));
    planner.observe(1, RED, n(4), 180);
    assert_eq!(planner.due(1, RED), Some(n(1)));
    assert_eq!(planner.due(u64::MAX, RED), Some(n(1)), "age is no matter here");
}

#[test]
fn the_tighter_bound_wins() {
    let mut planner = planner(10, 100);
    planner.observe(1, RED, n(0), 0);
    planner.observe(5, RED, n(1), 50);
    planner.observe(6, RED, n(2), 140);
    assert_eq!(planner.due(6, RED), Some(n(0)));
    assert_eq!(planner.due(16, RED), Some(n(1)));
    assert_eq!(planner.due(17, RED), Some(n(2)));
}

#[test]
fn samples_are_a_64th_of_a_bound_apart() {
    let mut planner = planner(6400, 0);
    assert!(planner.observe(0, RED, n(0), 0));
    assert!(!planner.observe(99, RED, n(1), 1 << 40));
    assert!(planner.observe(100, RED, n(2), 1 << 40));
    assert!(!planner.observe(300, RED, n(2), 1 << 40), "nothing new");
    planner.set(RED, bounds(0, 6400));
    assert!(!planner.observe(500, RED, n(3), (1 << 40) + 99));
    assert!(planner.observe(500, RED, n(3), (1 << 40) + 100));
    assert_eq!(planner.next_mark(RED), Some((1 << 40) + 100 + MIN_MARK_BYTES));
}

#[test]
fn a_clock_that_goes_back_ages_nothing() {
    let mut planner = planner(10, 0);
    planner.observe(1000, RED, n(0), 0);
    planner.observe(5, RED, n(1), 0);
    assert_eq!(all_samples(&planner), [(1000, n(0).to_raw(), 0)].map(Sample::from), "no time has passed");
    assert_eq!(planner.due(20, RED), None);
    assert_eq!(planner.due(1010, RED), None);
    planner.observe(1010, RED, n(1), 0);
    assert_eq!(planner.due(1011, RED), Some(n(0)));
    assert_eq!(planner.due(7, RED), Some(n(0)), "what was due stays so");
    assert_eq!(planner.due(1021, RED), Some(n(1)));
}

#[test]
fn a_color_without_bounds_is_not_known() {
    let mut planner = planner(0, 0);
    assert!(!planner.observe(1, RED, n(3), 5));
    assert_eq!((planner.due(100, RED), planner.next_mark(RED), planner.colors(None).count()), (None, None, 0));
    planner.set(RED, bounds(1, 0));
    planner.observe(1, RED, n(3), 5);
    planner.set(RED, bounds(0, 0));
    assert_eq!(planner.due(100, RED), None);
    planner.set(RED, bounds(1, 0));
    assert_eq!(planner.due(100, RED), None, "what was known of it is forgotten");
}

#[test]
fn samples_of_another_history_are_left_out() {
    let mut planner = planner(10, 0);
    planner.observe(1, RED, n(3), 0);
    planner.observe(2, RED, n(8), 0);
    assert!(planner.observe(3, RED, n(5), 0), "the log lost its end");
    assert_eq!(planner.due(100, RED), Some(n(5)));
    let mut fresh = Planner::default();
    fresh.set(RED, bounds(10, 0));
    let wrong = [(5, n(2).to_raw(), 7), (6, n(4).to_raw(), 8), (6, n(4).to_raw(), 9), (7, n(9).to_raw(), 9)];
    fresh.restore(50, RED, wrong.map(Sample::from));
    assert_eq!(all_samples(&fresh), wrong[..2].iter().copied().map(Sample::from).collect::<Vec<_>>());
    fresh.restore(50, Color(2), wrong.map(Sample::from));
    assert_eq!(fresh.colors(None).collect::<Vec<_>>(), [RED], "it has no bounds any more");
    let mut late = Planner::default();
    late.set(RED, bounds(10, 0));
    late.restore(4, RED, wrong.map(Sample::from));
    assert_eq!(all_samples(&late), [], "taken after the last time that was seen");
}

#[test]
fn a_full_ring_keeps_every_second_sample_and_the_newest() {
    let mut planner = planner(u64::MAX, 64);
    for i in 0..MAX_SAMPLES as u32 {
        assert!(planner.observe(i.into(), RED, n(i), i.into()));
    }
    assert_eq!(all_samples(&planner).len(), MAX_SAMPLES);
    planner.observe(500, RED, n(500), 500);
    let left: Vec<u32> = all_samples(&planner).iter().map(|sample| sample.last.counter()).collect();
    let expected: Vec<u32> = (0..MAX_SAMPLES as u32).filter(|i| i % 2 == 1).chain([500]).collect();
    assert_eq!(left, expected);
}

#[derive(Clone, Debug)]
enum Step {
    /// Seconds pass.
    Pass(u64),
    /// The clock is put back by so much, for good.
    PutBack(u64),
    /// So many records, of so many bytes each.
    Append(u32, u64),
    /// A record is staged and has no number yet, all through the next look.
    Stage(u64),
    NewEpoch,
    /// The node looks, and trims what is due.
    Look,
    /// The node looks, and the trim fails.
    LookInVain,
    /// A client trims so many of what is left.
    Trim(usize),
    Bounds(u64, u64),
    /// The node ends and starts again; the last save was at the last look, or it lost everything.
    Restart(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let age = || prop_oneof![Just(0), 1_u64..200];
    let bytes = || prop_oneof![Just(0), 1_u64..5000];
    prop_oneof![
        6 => (0_u64..40).prop_map(Step::Pass),
        1 => (0_u64..300).prop_map(Step::PutBack),
        6 => (1_u32..20, 0_u64..200).prop_map(|(count, each)| Step::Append(count, each)),
        1 => (0_u64..500).prop_map(Step::Stage),
        1 => Just(Step::NewEpoch),
        8 => Just(Step::Look),
        1 => Just(Step::LookInVain),
        1 => (0_usize..10).prop_map(Step::Trim),
        1 => (age(), bytes()).prop_map(|(age, bytes)| Step::Bounds(age, bytes)),
        1 => any::<bool>().prop_map(Step::Restart),
    ]
}

/// A record that is there.
#[derive(Clone, Copy, Debug)]
struct Kept {
    number: SeqNum,
    /// By the true time.
    at: u64,
    /// Bytes appended up to and including it.
    bytes: u64,
}

/// The log, the true time, and a clock that may be put back.
struct World {
    planner: Planner,
    bounds: Retention,
    truth: u64,
    clock: u64,
    kept: Vec<Kept>,
    next: SeqNum,
    /// Bytes appended with a number, and all that the engine of this process counted.
    bytes: u64,
    counted: u64,
    trimmed: Option<SeqNum>,
    saved: (u64, Vec<Sample>),
}

impl World {
    fn last(&self) -> Option<SeqNum> {
        self.kept.last().map(|record| record.number).or(self.trimmed)
    }

    fn look(&mut self, trims: bool) -> Result<(), TestCaseError> {
        if self.bounds.is_unlimited() {
            prop_assert_eq!(self.planner.due(self.clock, RED), None);
            return Ok(());
        }
        if let Some(last) = self.last() {
            self.planner.observe(self.clock, RED, last, self.counted);
        }
        prop_assert!(all_samples(&self.planner).len() <= MAX_SAMPLES);
        let due = self.planner.due(self.clock, RED);
        if let Some(upto) = due {
            prop_assert!(Some(upto) <= self.last(), "{} is beyond what is settled", upto);
            for record in self.kept.iter().filter(|record| record.number <= upto) {
                let aged = self.bounds.max_age_secs.is_some_and(|age| self.truth - record.at > age.get());
                let newer = self.counted_after(record);
                let full = self.bounds.max_bytes.is_some_and(|most| newer >= most.get());
                prop_assert!(aged || full, "{:?} goes early, with {} newer bytes", record, newer);
            }
            if trims {
                self.forget(upto);
            }
        }
        self.saved = (self.planner.time(), all_samples(&self.planner));
        Ok(())
    }

    /// Bytes that came after a record, those without a number included: they are in the log soon.
    fn counted_after(&self, record: &Kept) -> u64 {
        self.bytes - record.bytes
    }

    fn forget(&mut self, upto: SeqNum) {
        self.kept.retain(|record| record.number > upto);
        self.trimmed = self.trimmed.max(Some(upto));
        self.planner.trimmed(RED, upto);
    }

    fn restart(&mut self, lost: bool) {
        self.planner = Planner::default();
        self.planner.set(RED, self.bounds);
        if !lost {
            let (time, samples) = self.saved.clone();
            self.planner.restore(time, RED, samples);
            self.clock = self.clock.max(time);
        }
        self.counted = self.planner.bytes(RED);
    }
}

proptest! {
    #[test]
    fn nothing_goes_early_and_nothing_stays_for_ever(
        age in 0_u64..200,
        bytes in 0_u64..5000,
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut world = World {
            planner: planner(age, bytes),
            bounds: bounds(age, bytes),
            truth: 1000,
            clock: 1000,
            kept: Vec::new(),
            next: n(0),
            bytes: 0,
            counted: 0,
            trimmed: None,
            saved: (0, Vec::new()),
        };
        for step in steps {
            match step {
                Step::Pass(seconds) => {
                    world.truth += seconds;
                    world.clock += seconds;
                }
                Step::PutBack(seconds) => world.clock = world.clock.saturating_sub(seconds),
                Step::Append(count, each) => {
                    for _ in 0..count {
                        world.bytes += each;
                        world.counted += each;
                        world.kept.push(Kept { number: world.next, at: world.truth, bytes: world.bytes });
                        world.next = world.next.plus(1).unwrap();
                    }
                }
                Step::Stage(each) => {
                    world.bytes += each;
                    world.counted += each;
                    world.look(true)?;
                    // Its bytes were counted before anything that came meanwhile; it is in the log from now on.
                    world.kept.push(Kept { number: world.next, at: world.truth, bytes: world.bytes });
                    world.next = world.next.plus(1).unwrap();
                }
                Step::NewEpoch => world.next = SeqNum::first_of(world.next.epoch().next().unwrap()),
                Step::Look => world.look(true)?,
                Step::LookInVain => world.look(false)?,
                Step::Trim(count) => {
                    if let Some(record) = world.kept.get(count).copied() {
                        world.kept.retain(|other| other.number > record.number);
                        world.trimmed = Some(record.number);
                    }
                }
                Step::Bounds(age, bytes) => {
                    world.bounds = bounds(age, bytes);
                    if !world.planner.set(RED, world.bounds) {
                        world.counted = 0;
                    }
                }
                Step::Restart(lost) => world.restart(lost),
            }
        }
        // Once the clock has caught up, nothing is left that is older than the bound, and what a look may come late by.
        if let Some(age) = world.bounds.max_age_secs {
            world.clock = world.clock.max(world.planner.time());
            let until = world.truth + 2 * age.get() + 2 * (age.get() / PARTS).max(1) + 2;
            while world.truth < until {
                world.look(true)?;
                world.truth += 1;
                world.clock += 1;
            }
            world.look(true)?;
            prop_assert!(world.kept.is_empty(), "{:?} of {} s", world.kept, age);
        }
        // And no more bytes than the bound, a 64th of it, and one record for each look.
        if let Some(most) = world.bounds.max_bytes {
            for _ in 0..200 {
                let each = (most.get() / 100).max(1);
                world.bytes += each;
                world.counted += each;
                world.kept.push(Kept { number: world.next, at: world.truth, bytes: world.bytes });
                world.next = world.next.plus(1).unwrap();
                world.look(true)?;
            }
            let first = world.kept.first().unwrap();
            let left = world.bytes - first.bytes;
            prop_assert!(left <= most.get() + most.get() / PARTS + 2 * (most.get() / 100).max(1), "{left} of {most}");
        }
    }
}
