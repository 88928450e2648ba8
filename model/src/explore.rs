//! Looks at every state of a model, and says what was found.
//!
//! **Relies on** models whose states are finite in number. **Promises** that a report without a failure means that every
//! state within the bounds was looked at. States are told apart by 64-bit fingerprints: two of them may have the same one,
//! with a chance of about n²/2⁶⁵ for n states, and then one is not looked at.

use std::fmt;
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// A model, and the words to speak of it.
pub trait Explorable: Model + Clone + Send + Sync + 'static
where
    Self::State: Clone + fmt::Debug + Hash + PartialEq + Send + Sync,
    Self::Action: Clone + fmt::Debug + PartialEq,
{
    /// What it is called.
    fn name(&self) -> &'static str;

    /// How far it goes, in one line.
    fn bounds(&self) -> String;
}

/// A way to a state that must not be, or the lack of one to a state that must.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The property.
    pub property: &'static str,
    /// The steps to a counterexample and the state there; nothing for a property that no state has.
    pub path: Vec<String>,
}

/// What an exploration found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The model's name.
    pub name: &'static str,
    /// How far it went.
    pub bounds: String,
    /// Different states.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// The most steps from the start.
    pub depth: usize,
    /// How long it took.
    pub time: Duration,
    /// Properties that hold in every state.
    pub held: Vec<&'static str>,
    /// Cases that some state shows.
    pub reached: Vec<&'static str>,
    /// What went wrong.
    pub failures: Vec<Failure>,
}

/// Where to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// Every state was looked at.
    AllStates,
    /// A counterexample was found, one with the fewest steps or nearly so. What is not reached by then is no failure.
    Counterexample,
}

/// Explores a model on so many threads.
pub fn explore<M>(model: &M, threads: usize, until: Until) -> Report
where
    M: Explorable,
    M::State: Clone + fmt::Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + fmt::Debug + PartialEq + Send + Sync,
{
    let started = Instant::now();
    let builder = model.clone().checker().threads(threads);
    // Always-properties that fail and sometimes-properties that are met are both "discoveries": only the former stop it.
    let builder = match until {
        Until::AllStates => builder.finish_when(HasDiscoveries::AllFailures),
        Until::Counterexample => builder.finish_when(HasDiscoveries::AnyFailures),
    };
    let checker = builder.spawn_bfs().join();
    let time = started.elapsed();
    let found = checker.discoveries();
    let (mut held, mut reached, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for property in model.properties() {
        match (property.expectation, found.get(property.name)) {
            (Expectation::Sometimes, Some(_)) => reached.push(property.name),
            (Expectation::Sometimes, None) if until == Until::AllStates => {
                failures.push(Failure { property: property.name, path: Vec::new() });
            }
            (Expectation::Sometimes, None) => {}
            (_, None) => held.push(property.name),
            (_, Some(path)) => {
                let steps = path.clone().into_vec();
                let mut path: Vec<String> = steps
                    .iter()
                    .filter_map(|(_, action)| action.as_ref())
                    .map(|action| format!("{action:?}"))
                    .collect();
                path.extend(steps.last().map(|(state, _)| format!("{state:#?}")));
                failures.push(Failure { property: property.name, path });
            }
        }
    }
    Report {
        name: model.name(),
        bounds: model.bounds(),
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        time,
        held,
        reached,
        failures,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        writeln!(f, "  bounds: {}", self.bounds)?;
        let seconds = self.time.as_secs_f64();
        writeln!(f, "  {} states, {} steps, depth {}, {seconds:.1} s", self.states, self.steps, self.depth)?;
        self.held.iter().try_for_each(|property| writeln!(f, "  holds    {property}"))?;
        self.reached.iter().try_for_each(|property| writeln!(f, "  reached  {property}"))?;
        for Failure { property, path } in &self.failures {
            if path.is_empty() {
                writeln!(f, "  NEVER    {property}")?;
            } else {
                writeln!(f, "  BROKEN   {property}")?;
                path.iter().try_for_each(|step| writeln!(f, "    {step}"))?;
            }
        }
        Ok(())
    }
}
