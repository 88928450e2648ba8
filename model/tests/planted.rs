//! Each rule of the protocol is needed: without it the checker finds a state that must not be.

use flexlog_model::{Fault, Until, planted};

#[test]
fn every_planted_fault_has_a_counterexample() {
    let cases = planted();
    assert_eq!(cases.iter().filter_map(|case| case.fault()).collect::<Vec<_>>(), Fault::ALL);
    let missed: Vec<_> = cases
        .iter()
        .filter(|case| {
            let failures = case.explore(1, Until::Counterexample).failures;
            failures.iter().all(|failure| failure.path.is_empty())
        })
        .map(|case| format!("{:?} within {}", case.fault(), case.bounds()))
        .collect();
    assert!(missed.is_empty(), "not found: {missed:#?}");
}

#[test]
fn without_its_fault_none_of_them_has_one() {
    let mut done = Vec::new();
    for case in planted() {
        if !done.contains(&case.bounds()) {
            let failures = case.sound().explore(2, Until::AllStates).failures;
            // Cases that such small bounds do not reach are none.
            let broken: Vec<_> = failures.iter().filter(|failure| !failure.path.is_empty()).collect();
            assert!(broken.is_empty(), "{}: {broken:#?}", case.bounds());
            done.push(case.bounds());
        }
    }
}
