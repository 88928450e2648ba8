//! A run that breaks an invariant, made smaller: fewer events before the faults end, and only the faults that matter.
//!
//! What is left out changes what is drawn behind it, so that each attempt is another run; it counts if it breaks the same
//! invariant. So nothing is promised but that: what is left is a run that fails, with no more in it than before.

use crate::{Config, Report, run};

/// Faults of a run that can be left out, by their numbers.
const MOST: u32 = u128::BITS;
/// A run that goes on for less than that says little more if it is still shorter.
const FEW_EVENTS: u64 = 20;

/// Runs `seed` again and again, with less each time. `None`: it does not fail.
#[must_use]
pub fn shrink(seed: u64, config: Config) -> Option<(Config, Report)> {
    let report = run(seed, config);
    let broken = report.violation.as_ref()?.invariant;
    let fails = |config: Config| {
        let report = run(seed, config);
        report.violation.as_ref().is_some_and(|violation| violation.invariant == broken).then_some((config, report))
    };
    // What happens behind the violation is not looked at.
    let mut best = (Config { events: config.events.min(report.events), ..config }, report);
    loop {
        let before = best.0;
        for number in 0..MOST {
            let left_out = best.0.left_out | 1 << number;
            let is_there = best.1.faults.iter().any(|fault| fault.number == number);
            if is_there && let Some(smaller) = fails(Config { left_out, ..best.0 }) {
                best = smaller;
            }
        }
        let mut step = best.0.events / 2;
        while step > FEW_EVENTS {
            let events = best.0.events - step;
            match fails(Config { events, ..best.0 }) {
                Some(smaller) => best = smaller,
                None => step /= 2,
            }
            step = step.min(best.0.events / 2);
        }
        if best.0 == before {
            return Some(best);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bug;

    #[test]
    fn what_fails_fails_with_less() {
        let config = Config { bug: Some(Bug::LyingFences), tree: false, ..Config::default() };
        let seed = (1..200).find(|seed| run(*seed, config).violation.is_some()).unwrap_or_default();
        let first = run(seed, config);
        let (small, report) = shrink(seed, config).unwrap_or_else(|| panic!("seed {seed} does not fail"));
        let broken = |report: &Report| report.violation.as_ref().map(|violation| violation.invariant);
        assert_eq!(broken(&report), broken(&first));
        assert!(report.faults.len() <= first.faults.len() && small.events <= config.events);
        assert_eq!(run(seed, small), report, "it can be run again");
        // One power cut is enough for fences that lie.
        assert!(report.faults.len() <= 3, "{:?}", report.faults);
    }

    #[test]
    fn what_does_not_fail_is_not_shrunk() {
        assert_eq!(shrink(1, Config { tree: false, ..Config::default() }), None);
    }
}
