//! Random walks of the store beside its model, with crashes that lose any part of what was not fenced.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{World, options};
use flexlog_storage_pm::device::{Fences, SplitMix};
use proptest::prelude::*;

fn walk(seed: u64, segments: u64, fences: Fences, steps: &[u64]) -> Result<World, String> {
    let mut world = World::new(seed, options(4096, segments));
    world.media.set_fences(fences);
    for (at, step) in steps.iter().enumerate() {
        world.step(*step).map_err(|error| format!("step {at} ({step}): {error}"))?;
    }
    world.crash(Fences::AtOnce)?;
    Ok(world)
}

proptest! {
    #[test]
    fn a_crash_leaves_a_prefix_with_all_that_was_fenced(
        seed: u64, segments in 4u64..24, late: bool, steps in proptest::collection::vec(0u64..100, 1..250),
    ) {
        let fences = if late { Fences::WhenTold } else { Fences::AtOnce };
        if let Err(error) = walk(seed, segments, fences, &steps) {
            prop_assert!(false, "{}", error);
        }
    }
}

proptest! {
    #[test]
    fn so_it_does_when_records_move_to_ssd_files(
        seed: u64, segments in 6u64..16, mark in 10u8..80, late: bool,
        steps in proptest::collection::vec(0u64..100, 1..400),
    ) {
        let options = flexlog_storage_pm::Options { high_mark: mark, ..options(4096, segments) };
        let mut world = World::tiered(seed, options);
        world.media.set_fences(if late { Fences::WhenTold } else { Fences::AtOnce });
        for (at, step) in steps.iter().enumerate() {
            if let Err(error) = world.step(*step) {
                prop_assert!(false, "step {} ({}): {}", at, step, error);
            }
        }
        if let Err(error) = world.crash(Fences::AtOnce) {
            prop_assert!(false, "the last crash: {}", error);
        }
    }
}

/// The walks move records, and read them back from where they went.
#[test]
fn the_walks_move_records() {
    let mut moved = 0;
    for seed in 0..20 {
        let mut draw = SplitMix(seed);
        let mut world = World::tiered(seed, options(4096, 8));
        for _ in 0..400 {
            world.step(draw.draw() % 100).unwrap();
        }
        moved += world.moved;
    }
    assert!(moved > 20, "{moved} times");
}

/// The walks are worth something only if they get to the places that matter.
#[test]
fn the_walks_fill_the_area_and_free_segments() {
    let (mut full, mut freed, mut copied, mut taken_back) = (0, 0, 0, 0);
    for seed in 0..20 {
        let mut draw = SplitMix(seed);
        let steps: Vec<u64> = (0..400).map(|_| draw.draw() % 100).collect();
        let world = walk(seed, 8, Fences::AtOnce, &steps).unwrap();
        full += world.full;
        freed += world.freed;
        copied += world.copied;
        taken_back += world.taken_back;
    }
    assert!(full > 10 && freed > 10, "{full} times full, {freed} times freed");
    assert!(copied > 20 && taken_back > 20, "{copied} times copied, {taken_back} entries taken back");
}

/// The checker notices a medium whose fences do nothing.
#[test]
fn a_lying_medium_is_found_out() {
    let found = (0..50).filter(|seed| {
        let mut world = World::new(*seed, options(4096, 16));
        world.media.set_fences(Fences::Lying);
        for _ in 0..5 {
            world.stage(300).unwrap();
            world.assign().unwrap();
        }
        world.fence().unwrap();
        world.crash(Fences::AtOnce).is_err()
    });
    assert!(found.count() > 25);
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let mut draw = SplitMix(5);
    let steps: Vec<u64> = (0..300).map(|_| draw.draw() % 100).collect();
    let bytes = || walk(9, 16, Fences::WhenTold, &steps).unwrap().media.bytes();
    assert!(bytes() == bytes());
}
