//! One shard: its leaf, three replicas and the metadata. Leaves are replaced while the old one goes on, members restart,
//! are dropped and come back as learners, changes of view stay in doubt.
//!
//! **Relies on** nothing but itself. **Promises** that every order of these steps within the bounds is looked at.
//!
//! The leaf owns the one color, so a complete token is numbered at once; how numbers come down a tree is the other
//! model's matter. A record is its token. What a stream carries is what its sender has done so far: a leaf's log grows at
//! its end only, so "entries on their way" is the part of it that a member has not taken yet, for as long as anybody
//! follows that leaf, whether it lives or not. A process that is dead is one that takes no step any more: every state is
//! also one in which any process just died. Reports, acknowledgements and confirmations count when they are sent; where
//! they would be late, the leaf's own next step is.

mod properties;
mod state;
mod steps;

use stateright::{Model, Property};

use crate::fault::Fault;
pub use state::State;
use state::{Cas, Leaf, Member, Meta, Phase, REPLICAS, Set, View};

/// How far the model goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Members of the first view; replicas beyond these are there to be added.
    pub members: usize,
    /// Replicas in all, at most 3.
    pub replicas: usize,
    /// The fewest members that may form a view.
    pub min_view: u32,
    /// Leaf incarnations, the first included; at most 3.
    pub leaves: usize,
    /// Tokens, at most 3. Each may be sent to each member at any time, again and again.
    pub tokens: usize,
    /// Changes of view that any leaf may begin.
    pub changes: u8,
    /// Members that crash and come back.
    pub restarts: u8,
    /// Tail questions to leaves whose answer would be too low.
    pub asks: u8,
}

/// The model of one shard.
#[derive(Clone, Debug)]
pub struct Shard {
    /// How far it goes.
    pub bounds: Bounds,
    /// The rule that is broken on purpose.
    pub fault: Option<Fault>,
}

/// A step. Leaves are named by their epoch, members by letters in what is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A member takes a token's record and persists it.
    Stage {
        /// The member.
        member: u8,
        /// The token.
        token: u8,
    },
    /// A member takes the next entry of the leaf that it follows.
    Take {
        /// The member.
        member: u8,
    },
    /// The next that a member has accepted becomes durable: an entry, or its fence, with which it reports.
    Persist {
        /// The member.
        member: u8,
    },
    /// A member crashes and comes back with what is durable, following nobody.
    Restart {
        /// The member.
        member: u8,
    },
    /// A new leaf claims the position, and reads the view.
    Claim,
    /// A leaf's seal reaches a member, which takes nothing from older ones any more.
    Seal {
        /// The leaf.
        leaf: u8,
        /// The member.
        member: u8,
    },
    /// A leaf numbers a complete token.
    Assign {
        /// The leaf.
        leaf: u8,
        /// The token.
        token: u8,
    },
    /// A leaf asks the metadata to drop a member.
    Drop {
        /// The leaf.
        leaf: u8,
        /// The member.
        member: u8,
    },
    /// A leaf begins to add a learner, which truncates what the leaf does not have.
    Learn {
        /// The leaf.
        leaf: u8,
        /// The learner.
        member: u8,
    },
    /// A leaf asks the metadata to add the learner, which has everything.
    Add {
        /// The leaf.
        leaf: u8,
    },
    /// A leaf gives up an addition that it has not asked the metadata for.
    GiveUp {
        /// The leaf.
        leaf: u8,
    },
    /// A change of view reaches the metadata.
    Change {
        /// The leaf.
        leaf: u8,
    },
    /// A leaf learns what became of its change.
    Known {
        /// The leaf.
        leaf: u8,
    },
    /// Somebody asks a leaf for the tail, which knows less than was acknowledged already.
    Ask {
        /// The leaf.
        leaf: u8,
    },
    /// A member confirms that it follows the leaf.
    Confirm {
        /// The leaf.
        leaf: u8,
        /// The member.
        member: u8,
    },
}

impl Shard {
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

impl Model for Shard {
    type State = State;
    type Action = Action;

    /// The first leaf serves, and its `NewView` is on all members.
    fn init_states(&self) -> Vec<State> {
        let members = (0..self.bounds.members).fold(Set::default(), Set::with);
        let view = View { number: 1, members };
        let mut leaf = Leaf { phase: Phase::Serving, view, reported: members, commit: 1, ..Leaf::default() };
        leaf.log.push(state::Entry { leaf: 1, body: state::Body::NewView(view) });
        let mut all = [Member::default(); REPLICAS];
        for member in members.iter() {
            all[member] = Member { log: leaf.log, durable: 1, fence: 1, sealing: 1, follows: 1, ..Member::default() };
            leaf.acked[member] = 1;
        }
        let mut state = State {
            meta: Meta { epoch: 1, view },
            leaves: crate::list::List::default(),
            members: all,
            history: state::History::default(),
            changes: 0,
            restarts: 0,
            asks: 0,
        };
        state.history.settled = leaf.log;
        state.leaves.push(leaf);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.member_steps(state, actions);
        self.leaf_steps(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        self.step(&mut next, action);
        self.retire(&mut next);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

impl Shard {
    fn member_steps(&self, state: &State, actions: &mut Vec<Action>) {
        let Bounds { replicas, tokens, restarts, .. } = self.bounds;
        for (place, member) in state.members.iter().enumerate().take(replicas) {
            let name = place as u8;
            if state.meta.view.members.has(place) {
                // Tokens are alike: the first to be sent is token 0.
                let sent = state.history.sent;
                let new = (0..tokens).find(|token| !sent.has(*token));
                for token in sent.iter().chain(new) {
                    if !member.records.has(token) && state::number_of(&member.log, token).is_none() {
                        actions.push(Action::Stage { member: name, token: token as u8 });
                    }
                }
            }
            if member.follows > 0 && self.can_take(state, place) {
                actions.push(Action::Take { member: name });
            }
            if self.can_persist(state, place) {
                actions.push(Action::Persist { member: name });
            }
            if state.restarts < restarts && (member.follows > 0 || member.sealing > member.fence) {
                actions.push(Action::Restart { member: name });
            }
        }
    }

    fn leaf_steps(&self, state: &State, actions: &mut Vec<Action>) {
        let Bounds { replicas, min_view, leaves, tokens, changes, asks, .. } = self.bounds;
        if state.leaves.len() < leaves {
            actions.push(Action::Claim);
        }
        for (place, leaf) in state.leaves.iter().enumerate() {
            let name = place as u8 + 1;
            let follows = |member: &usize| state.members[*member].follows == name;
            if leaf.cas == Cas::Sent {
                actions.push(Action::Change { leaf: name });
            }
            if matches!(leaf.phase, Phase::Stopped) {
                continue;
            }
            if matches!(leaf.cas, Cas::Applied | Cas::Refused) || (leaf.cas == Cas::Sent && self.gives_up_doubt(leaf)) {
                actions.push(Action::Known { leaf: name });
            }
            // A leaf that does not lead any more can be refused only, and then stops: that shows nobody anything.
            let leads = name == state.meta.epoch || self.has(Fault::StaleViewAccepted);
            let idle = leaf.wanted.is_empty() && leaf.adding.is_none() && leaf.cas == Cas::None;
            if idle && leads && state.changes < changes && !leaf.view.members.and(leaf.reported).is_empty() {
                for member in leaf.view.members.iter().filter(|_| leaf.view.members.len() > min_view) {
                    actions.push(Action::Drop { leaf: name, member: member as u8 });
                }
            }
            match leaf.phase {
                Phase::Sealing => {
                    for member in leaf.in_force().iter().filter(|member| state.members[*member].sealing < name) {
                        actions.push(Action::Seal { leaf: name, member: member as u8 });
                    }
                }
                Phase::Recovering(_) | Phase::Stopped => {}
                Phase::Serving => {
                    let complete = |token: &usize| self.is_complete(state, leaf, *token);
                    for token in (0..tokens).filter(|_| leaf.adding.is_none()).filter(complete) {
                        actions.push(Action::Assign { leaf: name, token: token as u8 });
                    }
                    if idle && state.changes < changes {
                        let outside = (0..replicas).filter(|member| !leaf.view.members.has(*member));
                        for member in outside.filter(|member| state.members[*member].sealing <= name) {
                            actions.push(Action::Learn { leaf: name, member: member as u8 });
                        }
                    }
                    if let Some(learner) = leaf.adding.filter(|_| leaf.cas == Cas::None) {
                        let acked = usize::from(leaf.acked[usize::from(learner)]);
                        if leads && (acked == leaf.log.len() || self.has(Fault::LearnerAddedEarly)) {
                            actions.push(Action::Add { leaf: name });
                        }
                        actions.push(Action::GiveUp { leaf: name });
                    }
                    match leaf.round {
                        // Any other answer is good, whoever confirms it.
                        None if state.asks < asks && self.is_behind(state, place) => {
                            actions.push(Action::Ask { leaf: name })
                        }
                        None => {}
                        Some(round) => {
                            let silent = leaf.in_force().iter().filter(|member| !round.has(*member));
                            for member in silent.filter(follows) {
                                actions.push(Action::Confirm { leaf: name, member: member as u8 });
                            }
                        }
                    }
                }
            }
        }
    }
}

impl crate::explore::Explorable for Shard {
    fn name(&self) -> &'static str {
        "shard"
    }

    fn bounds(&self) -> String {
        let Bounds { members, replicas, min_view, leaves, tokens, changes, restarts, asks } = self.bounds;
        format!(
            "{members} members of {replicas} replicas, views of {min_view} or more, {leaves} leaves, {tokens} tokens, \
             {changes} changes of view, {restarts} restarts, {asks} tail questions"
        )
    }
}
