//! The models within small bounds: every property holds in every state, and every interesting case is reached.

use flexlog_model::{Until, quick};

#[test]
fn every_property_holds_and_every_case_is_reached() {
    for case in quick() {
        let report = case.explore(2, Until::AllStates);
        assert!(report.failures.is_empty(), "{report}");
        assert!(report.states > 1000 && !report.held.is_empty() && !report.reached.is_empty(), "{report}");
    }
}

#[test]
fn the_same_model_has_the_same_states_each_time_and_on_any_number_of_threads() {
    for case in quick().into_iter().skip(2).take(1) {
        let count = |threads| case.explore(threads, Until::AllStates).states;
        assert_eq!(count(1), count(2));
    }
}
