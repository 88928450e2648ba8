//! What must hold in every state of the shard model, and what must be reached.

use stateright::Property;

use super::Shard;
use super::state::{Body, Cas, Entry, Number, Phase, State, number_of};
use crate::list::common_prefix;

pub(super) fn all() -> Vec<Property<Shard>> {
    vec![
        Property::always("I1: no settled number names two tokens, no token settles twice", |_, s: &State| i1(s)),
        Property::always("I2: a number is asked for when all members have the record", |_, s: &State| {
            !s.history.broken.asked_early
        }),
        Property::always("I2: what is committed is on every member of the view", |_, s: &State| i2(s)),
        Property::always("I3: what is acknowledged is on every member of the view", |_, s: &State| i3(s)),
        Property::always("I4: acknowledged before sent is numbered before", |_, s: &State| i4(s)),
        Property::always("I5: what is acknowledged is in the log that a later leaf recovers", |_, s: &State| i5(s)),
        Property::always("I6: committed logs are alike, without gaps, an epoch has one end", |_, s: &State| {
            !s.history.broken.forked && i6(&s.history.settled)
        }),
        Property::always("logs that seal to one leaf are prefixes of the longest", |_, s: &State| {
            !s.history.broken.diverged
        }),
        Property::always("I9: what an old incarnation says changes nothing", |_, s: &State| {
            !s.history.broken.old_counted
        }),
        Property::always("a tail is above all that was acknowledged before the question", |_, s: &State| {
            !s.history.broken.tail_low
        }),
        Property::sometimes("every token is acknowledged", |model, s: &State| {
            s.history.acked.iter().take(model.bounds.tokens).all(|number| *number != Number::NONE)
        }),
        Property::sometimes("an assignment that was not committed survives a failover", |model, s: &State| {
            survives(s) || model.bounds.leaves < 2
        }),
        Property::sometimes("an assignment that was not committed is lost, and the token gets another", |model, s| {
            lost(s) || model.bounds.leaves < 2 || model.bounds.changes == 0
        }),
        Property::sometimes("an epoch is ended", |model, s: &State| {
            s.history.settled.iter().any(|entry| matches!(entry.body, Body::EpochEnd { .. }))
                || model.bounds.leaves < 2
                || model.bounds.tokens < 2
        }),
        Property::sometimes("a member is dropped, and the rest goes on", |model, s: &State| {
            let bounds = model.bounds;
            let may_drop = bounds.changes > u8::from(bounds.members as u32 <= bounds.min_view);
            has_view(s, |before, after| after < before) || !may_drop
        }),
        Property::sometimes("a learner is added", |model, s: &State| {
            let bounds = model.bounds;
            let may_add = bounds.changes > u8::from(bounds.members == bounds.replicas);
            has_view(s, |before, after| after > before) || !may_add
        }),
        Property::sometimes("a change in doubt was applied, and only the next leaf knows", |model, s: &State| {
            let deposed = &s.leaves[..s.leaves.len() - 1];
            deposed.iter().any(|leaf| leaf.cas == Cas::Applied && matches!(s.last_leaf().phase, Phase::Serving))
                || model.bounds.leaves < 2
                || model.bounds.changes == 0
        }),
        Property::sometimes("a change in doubt was refused, and the old leaf steps down", |model, s: &State| {
            s.leaves.iter().any(|leaf| matches!(leaf.phase, Phase::Stopped))
                || model.bounds.leaves < 2
                || model.bounds.changes == 0
        }),
        Property::sometimes(
            "an old leaf is asked for the tail, and a member that follows it confirms",
            |model, s: &State| {
                s.leaves.iter().any(|leaf| leaf.round.is_some_and(|confirmed| !confirmed.is_empty()))
                    || model.bounds.asks == 0
                    || model.bounds.leaves < 2
            },
        ),
    ]
}

fn assigned(log: &[Entry]) -> impl Iterator<Item = (u8, Number)> {
    log.iter().filter_map(|entry| match entry.body {
        Body::Assign { token, number } => Some((token, number)),
        _ => None,
    })
}

fn i1(s: &State) -> bool {
    let log = &s.history.settled;
    let twice = assigned(log).enumerate().any(|(place, (token, number))| {
        assigned(log).skip(place + 1).any(|(other, same)| other == token || same == number)
    });
    !twice && !s.history.broken.told_twice
}

fn i2(s: &State) -> bool {
    let settled = &s.history.settled;
    s.meta.view.members.iter().all(|member| common_prefix(s.members[member].durable_log(), settled) == settled.len())
}

fn i3(s: &State) -> bool {
    let acked = s.history.acked.iter().enumerate().filter(|(_, number)| **number != Number::NONE);
    acked.into_iter().all(|(token, number)| {
        s.meta.view.members.iter().all(|member| {
            let of = &s.members[member];
            of.records.has(token) && number_of(of.durable_log(), token) == Some(*number)
        })
    })
}

fn i4(s: &State) -> bool {
    assigned(&s.history.settled).all(|(token, number)| number > s.history.floors[usize::from(token)])
}

fn i5(s: &State) -> bool {
    let leaf = s.last_leaf();
    if matches!(leaf.phase, Phase::Sealing) {
        return true;
    }
    let settled = &s.history.settled;
    let acked = s.history.acked.iter().enumerate().filter(|(_, number)| **number != Number::NONE);
    common_prefix(settled, &leaf.log) == settled.len()
        && acked.into_iter().all(|(token, number)| number_of(&leaf.log, token) == Some(*number))
}

/// Within an epoch numbers go up from 0 without gaps; an epoch that is ended has as many as its end says, none later.
fn i6(log: &[Entry]) -> bool {
    let mut next = Number { epoch: 1, counter: 0 };
    let mut closed = Number::NONE;
    log.iter().all(|entry| match entry.body {
        Body::NewView(_) => true,
        Body::Assign { number, .. } => {
            // The first number of a color opens its first epoch, whichever that is.
            let first = next == Number { epoch: 1, counter: 0 } && number.counter == 0;
            let good = number == next || first;
            next = number.next();
            good
        }
        Body::EpochEnd { end, next: goes_on } => {
            // It is written again when epochs without a number lie between.
            let good = (end == next || end == closed && next.counter == 0) && goes_on >= next.epoch.max(end.epoch + 1);
            closed = end;
            next = Number { epoch: goes_on, counter: 0 };
            good
        }
    })
}

fn survives(s: &State) -> bool {
    let leaf = s.last_leaf();
    let settled = s.history.settled.len();
    matches!(leaf.phase, Phase::Recovering(_)) && assigned(&leaf.log[settled.min(leaf.log.len())..]).count() > 0
}

fn lost(s: &State) -> bool {
    let leaf = s.last_leaf();
    let gone =
        |token: u8, number: Number| number_of(&leaf.log, usize::from(token)).is_some_and(|other| other != number);
    s.leaves.len() > 1
        && matches!(leaf.phase, Phase::Serving)
        && s.members.iter().any(|member| assigned(&member.log).any(|(token, number)| gone(token, number)))
}

/// Whether a view follows one of another size in the committed log.
fn has_view(s: &State, compare: impl Fn(u32, u32) -> bool) -> bool {
    let views = || {
        s.history.settled.iter().filter_map(|entry| match entry.body {
            Body::NewView(view) => Some(view.members.len()),
            _ => None,
        })
    };
    views().zip(views().skip(1)).any(|(before, after)| compare(before, after))
}
