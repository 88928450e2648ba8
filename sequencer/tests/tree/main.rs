#![allow(clippy::unwrap_used, reason = "tests")]
//! Whole trees of positions, leaves and model members, under any interleaving of messages: late, lost or from processes
//! that were replaced and do not know it, with positions claimed again at any moment. Planted faults show that the checks
//! can fail.

mod checker;
#[path = "../ordering/member.rs"]
mod member;
mod process;
mod shape;
mod world;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use shape::Seed;
use world::{Plant, Reached, World};

/// A tree, and what happens next, each with two numbers to choose by.
type Script = (Seed, Vec<(u8, u8, u8)>);

fn scripts() -> impl Strategy<Value = Script> {
    let seed = (any::<u8>(), prop::collection::vec(any::<u8>(), 1..16));
    (seed, prop::collection::vec(any::<(u8, u8, u8)>(), 100..1500))
}

fn run((seed, steps): &Script, plant: Plant) -> Result<Reached, String> {
    let mut world = World::new(seed, plant);
    for (step, a, b) in steps {
        world.step(*step, *a as usize, *b as usize)?;
    }
    world.finish()?;
    Ok(world.reached())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_rules_hold_in_any_tree_under_any_interleaving(script in scripts()) {
        if let Err(violation) = run(&script, Plant::Nothing) {
            prop_assert!(false, "{}", violation);
        }
    }
}

fn random_scripts(count: usize) -> impl Iterator<Item = Script> {
    let mut runner = TestRunner::deterministic();
    (0..count).filter_map(move |_| Some(scripts().new_tree(&mut runner).ok()?.current()))
}

/// The first violation that a planted fault leads to.
fn found(plant: Plant) -> Option<String> {
    random_scripts(2000).find_map(|script| run(&script, plant).err())
}

#[test]
fn grants_of_an_old_parent_taken_for_the_new_ones_are_found() {
    assert!(found(Plant::OldParentsGrants).is_some_and(|violation| violation.starts_with("I")));
}

#[test]
fn what_a_replaced_child_was_granted_given_to_the_new_one_is_found() {
    assert!(found(Plant::OldChildsGrants).is_some_and(|violation| violation.starts_with("I")));
}

#[test]
fn stable_that_does_not_wait_for_a_child_is_found() {
    assert!(found(Plant::EarlySettle).is_some_and(|violation| violation.starts_with("I6")));
}

#[test]
fn a_split_that_is_off_by_one_is_found() {
    assert!(found(Plant::SplitOffByOne).is_some_and(|violation| violation.starts_with("a split gives")));
}

#[test]
fn requests_answered_out_of_order_are_found() {
    assert!(found(Plant::OutOfOrder).is_some_and(|violation| violation.contains("nothing is under way")));
}

/// The scripts reach what they are meant to reach.
#[test]
fn runs_are_not_idle() {
    let mut sum = Reached::default();
    random_scripts(100).for_each(|script| sum.add(&run(&script, Plant::Nothing).unwrap()));
    let Reached { numbered, wide, holes, ends, tails, merges, lost, full, replaced: [root, inner, leaf] } = sum;
    assert!(numbered > 3000 && wide > 1000 && ends > 200 && tails > 1000 && merges > 20, "{sum:?}");
    assert!(root > 50 && inner > 50 && leaf > 50, "{sum:?}");
    assert!(holes > 3 && lost > 50 && full > 3, "{sum:?}");
}
