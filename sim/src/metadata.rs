//! What the metadata store keeps: who holds each position, each shard's view, and how often each store was opened.
//!
//! It survives everything. Each change is one step, as the transactions of `flexlog_tree_config::operations` are; what is
//! asked of it and what it answers may be late, or be lost and asked again.

use flexlog_protocol::{Incarnation, ReplicaId, View};
use flexlog_sequencer::ViewOutcome;
use flexlog_tree_config::StoreState;
use flexlog_tree_config::identity::{IdentityRefusal, Step};

use crate::machine::{OpenFailure, replica_id};
use crate::shape::place_of;

/// See the module.
#[derive(Debug)]
pub(crate) struct Metadata {
    pub(crate) epoch: u32,
    /// By place.
    pub(crate) holders: Vec<Option<Incarnation>>,
    /// By shard.
    pub(crate) views: Vec<View>,
    pub(crate) stores: Vec<StoreState>,
}

impl Metadata {
    /// Changes the view of a shard if `by` holds its position and the view is `from`. `always`: whatever holds.
    pub(crate) fn change_view(
        &mut self,
        by: Incarnation,
        shard: usize,
        from: &View,
        to: &View,
        always: bool,
    ) -> ViewOutcome {
        let view = &mut self.views[shard];
        if *view == *to || always {
            *view = to.clone();
            return ViewOutcome::Applied;
        }
        if self.holders[place_of(by.position)] != Some(by) {
            return ViewOutcome::Deposed;
        }
        if *view != *from {
            return ViewOutcome::Refused;
        }
        *view = to.clone();
        ViewOutcome::Applied
    }

    /// Takes a step of an opening of the store of `member`.
    pub(crate) fn step(
        &mut self,
        member: usize,
        judge: impl Fn(ReplicaId, &StoreState) -> Result<Step, IdentityRefusal>,
    ) -> Result<(), OpenFailure> {
        match judge(replica_id(member), &self.stores[member]) {
            Ok(Step::Write(state)) => self.stores[member] = state,
            Ok(Step::Done) => {}
            Err(refusal) => return Err(OpenFailure::Refused(refusal.to_string())),
        }
        Ok(())
    }
}
