//! The leaf and the counter together with three model members, under any interleaving of messages: late, repeated or
//! from leaves that are gone, with leaves replaced at any moment. Planted faults show that the checks can fail.

mod checker;
mod member;
mod world;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use world::{Plant, World};

/// What happens next, with two numbers to choose by.
type Script = Vec<(u8, u8, u8)>;

fn scripts() -> impl Strategy<Value = Script> {
    prop::collection::vec(any::<(u8, u8, u8)>(), 100..1000)
}

fn run(script: &Script, plant: Plant) -> Result<World, String> {
    let mut world = World::new(plant);
    for (step, a, b) in script {
        world.step(*step, *a as usize, *b as usize)?;
    }
    world.finish()?;
    Ok(world)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_rules_hold_under_any_interleaving(script in scripts()) {
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
    random_scripts(100).find_map(|script| run(&script, plant).err())
}

#[test]
fn numbering_before_all_members_have_the_record_is_found() {
    assert!(found(Plant::ForgedReports).is_some_and(|violation| violation.starts_with("I2")));
}

#[test]
fn committing_before_all_members_have_the_entry_is_found() {
    assert!(found(Plant::ForgedAcks).is_some_and(|violation| violation.starts_with("I2")));
}

#[test]
fn numbering_a_token_twice_is_found() {
    assert!(found(Plant::LateReports).is_some_and(|violation| violation.starts_with("I1")));
}

/// The scripts reach what they are meant to reach.
#[test]
fn runs_are_not_idle() {
    let mut sums = [0; 6];
    for script in random_scripts(100) {
        let reached = run(&script, Plant::Nothing).unwrap().reached();
        sums.iter_mut().zip(reached).for_each(|(sum, count)| *sum += count);
    }
    let [numbered, holes, ends, tails, leaves, full] = sums;
    assert!(numbered > 1000 && ends > 100 && tails > 100 && leaves > 300, "{sums:?}");
    assert!(holes > 0 && full > 0, "{sums:?}");
}
