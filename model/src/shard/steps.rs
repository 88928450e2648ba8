//! What each step of the shard model does. [`Shard::actions`](super::Shard) says when it may be taken.

use super::state::{Body, Cas, Entry, Leaf, Number, Phase, Set, State, View, number_of, view_at};
use super::{Action, Shard};
use crate::fault::Fault;
use crate::list::common_prefix;

impl Shard {
    /// Changes `state` by a step that is enabled in it.
    pub(super) fn step(&self, state: &mut State, action: Action) {
        let index = |name: u8| usize::from(name);
        let at = |leaf: u8| usize::from(leaf) - 1;
        match action {
            Action::Stage { member, token } => stage(state, index(member), index(token)),
            Action::Take { member } => self.take(state, index(member)),
            Action::Persist { member } => self.persist(state, index(member)),
            Action::Restart { member } => self.restart(state, index(member)),
            Action::Claim => {
                let view = state.meta.view;
                state.leaves.push(Leaf { view, ..Leaf::default() });
                state.meta.epoch = state.leaves.len() as u8;
            }
            Action::Seal { leaf, member } => self.seal(state, at(leaf), index(member)),
            Action::Assign { leaf, token } => self.assign(state, at(leaf), token),
            Action::Drop { leaf, member } => {
                let of = &mut state.leaves[at(leaf)];
                of.wanted = of.view.members.without(index(member));
                of.cas = Cas::Sent;
                state.changes += 1;
                self.advance(state, at(leaf));
            }
            Action::Learn { leaf, member } => self.learn(state, at(leaf), index(member)),
            Action::Add { leaf } => {
                let leaf = &mut state.leaves[at(leaf)];
                let learner = leaf.adding.map_or(Set::default(), |learner| Set::one(index(learner)));
                leaf.wanted = leaf.view.members.or(learner);
                leaf.cas = Cas::Sent;
            }
            Action::GiveUp { leaf } => {
                if let Some(learner) = state.leaves[at(leaf)].adding.take() {
                    state.members[index(learner)].follows = 0;
                }
            }
            Action::Change { leaf } => self.change(state, at(leaf)),
            Action::Known { leaf } => self.known(state, at(leaf)),
            Action::Ask { leaf } => {
                state.asks += 1;
                state.leaves[at(leaf)].round = Some(Set::default());
            }
            Action::Confirm { leaf, member } => self.confirm(state, at(leaf), index(member)),
        }
    }

    /// A leaf that was replaced, that nobody follows and nobody can come to follow, does nothing that anybody sees: all
    /// such states are one.
    pub(super) fn retire(&self, state: &mut State) {
        for place in 0..state.leaves.len() - 1 {
            let (leaf, name) = (&state.leaves[place], place as u8 + 1);
            let reachable = state.members.iter().enumerate().take(self.bounds.replicas).any(|(member, of)| {
                // A restart takes back a seal whose fence is not durable.
                let may_join = match leaf.phase {
                    Phase::Sealing => leaf.in_force().has(member) && of.fence < name,
                    Phase::Serving | Phase::Recovering(_) => !leaf.view.members.has(member) && of.fence <= name,
                    Phase::Stopped => false,
                };
                of.follows == name || of.sealing == name && of.fence < name || may_join
            });
            if !reachable && leaf.cas == Cas::None && !self.has(Fault::FenceForgotten) {
                state.leaves[place] = Leaf { phase: Phase::Stopped, ..Leaf::default() };
            }
        }
    }

    // ---- members ----

    /// Whether the leaf that a member follows has something more for it.
    pub(super) fn can_take(&self, state: &State, member: usize) -> bool {
        let place = usize::from(state.members[member].follows) - 1;
        let leaf = &state.leaves[place];
        let learner = leaf.adding.is_some_and(|learner| usize::from(learner) == member);
        !matches!(leaf.phase, Phase::Sealing)
            && (leaf.in_force().has(member) || learner)
            && self.next_place(state, place, member) < leaf.log.len()
    }

    /// Where a member goes on in the log of a leaf.
    fn next_place(&self, state: &State, leaf: usize, member: usize) -> usize {
        match self.fault {
            Some(Fault::LearnerNotTruncated) => state.members[member].log.len(),
            _ => state.place(leaf, member).0,
        }
    }

    fn take(&self, state: &mut State, member: usize) {
        let leaf = usize::from(state.members[member].follows) - 1;
        let place = self.next_place(state, leaf, member);
        let entry = state.leaves[leaf].log[place];
        if state.members[member].log.len() > place {
            state.history.broken.diverged = true;
        }
        let of = &mut state.members[member];
        of.log.truncate(place);
        of.log.push(entry);
        of.durable = of.durable.min(place as u8);
        if leaf + 1 < usize::from(of.sealing) {
            state.history.broken.old_counted = true;
        }
    }

    /// Whether something that a member has accepted waits to become durable, and can: an assignment counts only with its
    /// record, which is pulled from whoever has it.
    pub(super) fn can_persist(&self, state: &State, member: usize) -> bool {
        let of = &state.members[member];
        match of.log.get(usize::from(of.durable)).map(|entry| entry.body) {
            Some(Body::Assign { token, .. }) => {
                let token = usize::from(token);
                self.has(Fault::AckWithoutRecord) || state.members.iter().any(|other| other.records.has(token))
            }
            Some(_) => true,
            None => of.sealing > of.fence,
        }
    }

    fn persist(&self, state: &mut State, member: usize) {
        let of = &mut state.members[member];
        let place = usize::from(of.durable);
        let Some(entry) = of.log.get(place).copied() else {
            of.fence = of.sealing;
            return self.report(state, member);
        };
        of.durable += 1;
        if let Body::Assign { token, .. } = entry.body
            && !self.has(Fault::AckWithoutRecord)
        {
            of.records = of.records.with(usize::from(token));
        }
        if of.follows > 0 {
            self.acknowledge(state, member);
        }
        if let Body::Assign { token, .. } = entry.body {
            tell_client(state, member, place, usize::from(token));
        }
    }

    fn acknowledge(&self, state: &mut State, member: usize) {
        let leaf = usize::from(state.members[member].follows) - 1;
        let durable = match self.fault {
            Some(Fault::LearnerNotTruncated) => usize::from(state.members[member].durable),
            _ => state.place(leaf, member).1,
        };
        let acked = &mut state.leaves[leaf].acked[member];
        *acked = durable.max(usize::from(*acked)) as u8;
        self.advance(state, leaf);
    }

    /// The fence is durable: the member follows the leaf from here on, and says what it has.
    fn report(&self, state: &mut State, member: usize) {
        let leaf = usize::from(state.members[member].sealing) - 1;
        state.members[member].follows = leaf as u8 + 1;
        let log = state.members[member].log;
        let durable = &log[..usize::from(state.members[member].durable)];
        let key = |log: &[Entry]| (log.last().map_or(0, |entry| entry.leaf), log.len());
        let of = &mut state.leaves[leaf];
        if !matches!(of.phase, Phase::Sealing) {
            return;
        }
        if !of.reported.is_empty() && common_prefix(&of.log, durable) < of.log.len().min(durable.len()) {
            state.history.broken.diverged = true;
        }
        let better = match self.fault {
            Some(Fault::ShortestLog) => key(durable) < key(&of.log),
            _ => key(durable) > key(&of.log),
        };
        if of.reported.is_empty() || better {
            of.log = log;
            of.log.truncate(durable.len());
        }
        of.acked[member] = durable.len() as u8;
        of.reported = of.reported.with(member);
        self.recover(state, leaf);
    }

    fn restart(&self, state: &mut State, member: usize) {
        state.restarts += 1;
        let of = &mut state.members[member];
        let durable = usize::from(of.durable);
        of.log.truncate(durable);
        if self.has(Fault::FenceForgotten) {
            of.fence = 0;
        }
        of.sealing = of.fence;
        of.follows = 0;
    }

    fn seal(&self, state: &mut State, leaf: usize, member: usize) {
        let of = &mut state.members[member];
        of.sealing = leaf as u8 + 1;
        of.follows = 0;
        if self.has(Fault::ReportBeforeFence) {
            of.fence = of.sealing;
            self.report(state, member);
        }
    }

    fn learn(&self, state: &mut State, leaf: usize, member: usize) {
        state.changes += 1;
        let (place, durable) = state.place(leaf, member);
        let of = &mut state.members[member];
        if leaf + 1 < usize::from(of.sealing) {
            state.history.broken.old_counted = true;
        }
        of.follows = leaf as u8 + 1;
        if !self.has(Fault::LearnerNotFenced) {
            of.sealing = of.follows;
            of.fence = of.follows;
        }
        if !self.has(Fault::LearnerNotTruncated) {
            of.log.truncate(place);
            of.durable = durable as u8;
        }
        let leaf = &mut state.leaves[leaf];
        leaf.acked[member] = durable as u8;
        leaf.adding = Some(member as u8);
    }

    // ---- the leaf ----

    /// Whether a leaf's tail is not above what was acknowledged.
    pub(super) fn is_behind(&self, state: &State, leaf: usize) -> bool {
        Number { epoch: self.epoch(leaf), counter: state.leaves[leaf].counter } <= state.highest_acked()
    }

    /// The epoch that a leaf counts in.
    fn epoch(&self, leaf: usize) -> u8 {
        if self.has(Fault::EpochReused) { 1 } else { leaf as u8 + 1 }
    }

    /// Whether a token can be numbered: every member has it, and the log does not.
    pub(super) fn is_complete(&self, state: &State, leaf: &Leaf, token: usize) -> bool {
        let all = leaf.in_force();
        let lacking = all.iter().filter(|member| !state.members[*member].records.has(token)).count();
        let enough = if self.has(Fault::NumberWithoutAll) { lacking <= 1 } else { lacking == 0 };
        enough && state.history.sent.has(token) && number_of(&leaf.log, token).is_none()
    }

    /// With the last report: the longest log is completed on all, and a view behind it.
    fn recover(&self, state: &mut State, leaf: usize) {
        let of = &mut state.leaves[leaf];
        if !of.wanted.is_empty() || !of.reported.covers(of.view.members) {
            return;
        }
        let len = of.log.len() as u8;
        of.acked.iter_mut().for_each(|acked| *acked = len.min(*acked));
        if self.has(Fault::AssignBeforeNewView) {
            of.phase = Phase::Serving;
        } else {
            of.phase = Phase::Recovering(len);
            of.log.push(Entry { leaf: leaf as u8 + 1, body: Body::NewView(of.view) });
        }
        self.advance(state, leaf);
    }

    /// Commits what every member of the views in force has acknowledged.
    fn advance(&self, state: &mut State, leaf: usize) {
        let of = &mut state.leaves[leaf];
        if matches!(of.phase, Phase::Sealing | Phase::Stopped) {
            return;
        }
        let all = match self.fault {
            Some(Fault::DoubtIgnored) if !of.wanted.is_empty() => of.wanted,
            _ => of.in_force(),
        };
        let mut acked: Vec<u8> = all.iter().map(|member| of.acked[member]).collect();
        acked.sort_unstable();
        let short = usize::from(self.has(Fault::CommitWithoutAll)).min(acked.len() - 1);
        of.commit = of.commit.max(acked[short]);
        if let Phase::Recovering(new_view) = of.phase
            && of.commit > new_view
        {
            of.phase = Phase::Serving;
        }
        let (log, commit) = (of.log, usize::from(of.commit));
        settle(state, &log[..commit]);
    }

    fn assign(&self, state: &mut State, leaf: usize, token: u8) {
        let epoch = self.epoch(leaf);
        let of = state.leaves[leaf];
        let all = of.in_force();
        if all.iter().any(|member| !state.members[member].records.has(usize::from(token))) {
            state.history.broken.asked_early = true;
        }
        let last = of.log.iter().rev().find_map(|entry| match entry.body {
            Body::Assign { number, .. } => Some((number.next(), number.epoch)),
            Body::EpochEnd { end, next } => Some((end, next)),
            Body::NewView(_) => None,
        });
        let name = leaf as u8 + 1;
        let of = &mut state.leaves[leaf];
        if let Some((end, _)) = last.filter(|(_, goes_on)| *goes_on < epoch) {
            of.log.push(Entry { leaf: name, body: Body::EpochEnd { end, next: epoch } });
        }
        let number = Number { epoch, counter: of.counter };
        of.counter += 1;
        of.log.push(Entry { leaf: name, body: Body::Assign { token, number } });
    }

    /// The metadata takes a change if the leaf that asks for it is the one that leads.
    fn change(&self, state: &mut State, leaf: usize) {
        let current = usize::from(state.meta.epoch) == leaf + 1;
        let of = &mut state.leaves[leaf];
        if !current && !self.has(Fault::StaleViewAccepted) {
            of.cas = Cas::Refused;
            return;
        }
        of.cas = if of.wanted.is_empty() { Cas::None } else { Cas::Applied };
        let members = if of.wanted.is_empty() { Set(std::mem::take(&mut of.forgotten)) } else { of.wanted };
        state.meta.view = View { number: state.meta.view.number + 1, members };
        state.history.broken.old_counted |= !current;
    }

    /// Whether this leaf takes a change that it knows nothing of for one that was refused.
    pub(super) fn gives_up_doubt(&self, leaf: &Leaf) -> bool {
        self.has(Fault::DoubtTakenForNo) && !leaf.wanted.is_empty()
    }

    fn known(&self, state: &mut State, leaf: usize) {
        let name = leaf as u8 + 1;
        let of = &mut state.leaves[leaf];
        match of.cas {
            Cas::Applied => {
                of.view = View { number: of.view.number + 1, members: of.wanted };
                of.wanted = Set::default();
                of.cas = Cas::None;
                of.adding = None;
                if matches!(of.phase, Phase::Sealing) {
                    return self.recover(state, leaf);
                }
                of.log.push(Entry { leaf: name, body: Body::NewView(of.view) });
                self.advance(state, leaf);
            }
            Cas::Refused => {
                of.phase = Phase::Stopped;
                of.cas = Cas::None;
                (of.wanted, of.adding, of.round) = (Set::default(), None, None);
            }
            Cas::Sent => {
                of.forgotten = of.wanted.0;
                of.wanted = Set::default();
                of.adding = None;
                if matches!(of.phase, Phase::Sealing) {
                    self.recover(state, leaf);
                }
            }
            Cas::None => {}
        }
    }

    fn confirm(&self, state: &mut State, leaf: usize, member: usize) {
        let of = &mut state.leaves[leaf];
        let Some(mut round) = of.round else { return };
        round = round.with(member);
        of.round = Some(round);
        if round.covers(of.in_force()) || self.has(Fault::TailByOneMember) {
            of.round = None;
            state.history.broken.tail_low = true;
        }
    }
}

fn stage(state: &mut State, member: usize, token: usize) {
    if !state.history.sent.has(token) {
        state.history.sent = state.history.sent.with(token);
        state.history.floors[token] = state.highest_acked();
    }
    state.members[member].records = state.members[member].records.with(token);
}

/// A member tells the client the number of its token, and the view in force at that entry. The client is done when all
/// members of that view have said the same.
fn tell_client(state: &mut State, member: usize, place: usize, token: usize) {
    let log = state.members[member].log;
    let (Some(number), Some(view)) = (number_of(&log, token), view_at(&log, place)) else { return };
    let says = |other: usize| {
        let log = state.members[other].durable_log();
        let place = log.iter().position(|entry| {
            matches!(entry.body, Body::Assign { token: t, number: n } if usize::from(t) == token && n == number)
        });
        place.is_some_and(|place| view_at(log, place) == Some(view))
    };
    if view.members.iter().all(says) {
        acknowledged(state, token, number);
    }
}

fn acknowledged(state: &mut State, token: usize, number: Number) {
    let history = &mut state.history;
    if history.acked[token] == Number::NONE {
        history.acked[token] = number;
    } else if history.acked[token] != number {
        history.broken.told_twice = true;
    }
}

/// A leaf has committed this much: any member may say so to clients and readers from here on.
fn settle(state: &mut State, log: &[Entry]) {
    let known = state.history.settled;
    if common_prefix(&known, log) < known.len().min(log.len()) {
        state.history.broken.forked = true;
    }
    for entry in log.iter().skip(known.len()) {
        state.history.settled.push(*entry);
    }
    for entry in log {
        if let Body::Assign { token, number } = entry.body {
            acknowledged(state, usize::from(token), number);
        }
    }
}
