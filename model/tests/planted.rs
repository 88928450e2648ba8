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
