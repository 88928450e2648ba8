//! What must hold in every state of the tree model, and what must be reached.

use stateright::Property;

use super::Tree;
use super::state::{Entry, State};
use crate::words::Number;

pub(super) fn all() -> Vec<Property<Tree>> {
    vec![
        Property::always("I1: no settled number names two things, no token settles twice", |_, s: &State| i1(s)),
        Property::always("I4: acknowledged before sent is numbered before", |_, s: &State| i4(s)),
        Property::always("I6: an epoch has one last number", |_, s: &State| one_end(s)),
        Property::always("I6: the numbers of a color on one shard have no gaps", |model, s: &State| {
            model.bounds.wide || no_gaps(&s.settled[0])
        }),
        Property::always("I6: an epoch is ended before a log goes on in a later one", |_, s: &State| {
            s.settled.iter().all(|log| ends_between(log))
        }),
        Property::always("the numbers of a log go up", |_, s: &State| s.settled.iter().all(|log| goes_up(log))),
        Property::always("I9: a grant of an old parent changes nothing", |_, s: &State| !s.history.old_counted),
        Property::always("a tail is above all that was acknowledged before the question", |_, s: &State| {
            !s.history.tail_low
        }),
        Property::sometimes("every token is acknowledged", |model, s: &State| {
            s.history.acked.iter().take(model.tokens()).all(|number| *number != Number::NONE)
        }),
        Property::sometimes("an epoch is ended, and the color goes on", |model, s: &State| {
            model.bounds.tenures[0] < 2
                || s.settled.iter().any(|log| {
                    let ended = log.iter().position(|entry| matches!(entry, Entry::EpochEnd { .. }));
                    ended.is_some_and(|place| log[place..].iter().any(|entry| matches!(entry, Entry::Assign { .. })))
                })
        }),
        Property::sometimes("a number is lost on its way and becomes a hole", |model, s: &State| lost(model, s)),
        Property::sometimes("a request of two shards is merged and split", |model, s: &State| {
            !model.bounds.inner
                || !model.bounds.wide
                || s.inners.iter().any(|inner| {
                    let asked = |child| inner.parts.iter().any(|part| part.child == Some(child) && part.asked == 1);
                    asked(0) && asked(1)
                })
        }),
        Property::sometimes("a leaf is replaced while its request is under way", |model, s: &State| {
            model.bounds.tenures[2] < 2 || s.leaves[0].len() > 1 && !s.leaves[0][0].requests.is_empty()
        }),
    ]
}

fn numbers(log: &[Entry]) -> impl Iterator<Item = (Option<u8>, Number)> {
    log.iter().filter_map(|entry| match *entry {
        Entry::Assign { token, number } => Some((Some(token), number)),
        Entry::Hole(number) => Some((None, number)),
        Entry::EpochEnd { .. } => None,
    })
}

fn i1(s: &State) -> bool {
    let all = || s.settled.iter().flat_map(|log| numbers(log));
    !all().enumerate().any(|(place, (token, number))| {
        all().skip(place + 1).any(|(other, same)| same == number || (token.is_some() && token == other))
    })
}

fn i4(s: &State) -> bool {
    s.settled
        .iter()
        .flat_map(|log| numbers(log))
        .all(|(token, number)| token.is_none_or(|token| number > s.history.floors[usize::from(token)]))
}

/// All ends that any shard has settled agree, and no number lies behind the end of its epoch.
fn one_end(s: &State) -> bool {
    let ends = || {
        s.settled.iter().flat_map(|log| log.iter()).filter_map(|entry| match *entry {
            Entry::EpochEnd { end, next } => Some((end, next)),
            _ => None,
        })
    };
    ends().all(|(end, next)| {
        let passed = |number: Number| number >= end && number.epoch < next;
        ends().all(|(other, _)| other.epoch != end.epoch || other == end)
            && !s.settled.iter().flat_map(|log| numbers(log)).any(|(_, number)| passed(number))
    })
}

/// Within an epoch numbers go up from 0 by one; an end says how many there were.
fn no_gaps(log: &[Entry]) -> bool {
    let mut next = Number::NONE;
    let mut closed = Number::NONE;
    log.iter().all(|entry| match *entry {
        Entry::Assign { number, .. } | Entry::Hole(number) => {
            let opens = next == Number::NONE && number.counter == 0;
            let good = number == next || opens;
            next = number.next();
            good
        }
        Entry::EpochEnd { end, next: goes_on } => {
            let good = end == next || end == closed && next.counter == 0;
            closed = end;
            next = Number { epoch: goes_on, counter: 0 };
            good
        }
    })
}

fn ends_between(log: &[Entry]) -> bool {
    log.iter().zip(log.iter().skip(1)).all(|(before, after)| match (before, after) {
        (Entry::EpochEnd { .. }, _) | (_, Entry::EpochEnd { .. }) => true,
        (
            Entry::Assign { number: before, .. } | Entry::Hole(before),
            Entry::Assign { number: after, .. } | Entry::Hole(after),
        ) => before.epoch == after.epoch,
    })
}

fn goes_up(log: &[Entry]) -> bool {
    numbers(log).zip(numbers(log).skip(1)).all(|((_, before), (_, after))| before < after)
}

/// A hole: an entry where there are such, else a number below another of its epoch that nobody can have any more.
fn lost(model: &Tree, s: &State) -> bool {
    if !model.bounds.wide {
        return s.settled[0].iter().any(|entry| matches!(entry, Entry::Hole(_)));
    }
    let all = || s.settled.iter().flat_map(|log| numbers(log));
    let done = s.history.acked.iter().take(model.tokens()).all(|number| *number != Number::NONE);
    done && all().any(|(_, number)| {
        (0..number.counter).any(|counter| !all().any(|(_, other)| other == Number { counter, ..number }))
    })
}
