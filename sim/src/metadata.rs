//! What the metadata store keeps: who holds the position, the shard's view, and how often each store was opened.
//!
//! It survives everything. Each change is one step, as the transactions of `flexlog_tree_config::operations` are; what is
//! asked of it and what it answers may be late, or be lost and asked again.

use flexlog_protocol::{Incarnation, ReplicaId, View};
use flexlog_sequencer::ViewOutcome;
use flexlog_tree_config::StoreState;
use flexlog_tree_config::identity::{IdentityRefusal, Step};

use crate::machine::{OpenFailure, replica_id};

/// See the module.
#[derive(Debug)]
pub(crate) struct Metadata {
    pub(crate) epoch: u32,
    pub(crate) holder: Option<Incarnation>,
    pub(crate) view: View,
    pub(crate) stores: Vec<StoreState>,
}

impl Metadata {
    /// Changes the view if `by` holds the position and the view is `from`. `always`: whatever holds.
    pub(crate) fn change_view(&mut self, by: Incarnation, from: &View, to: &View, always: bool) -> ViewOutcome {
        if self.view == *to || always {
            self.view = to.clone();
            return ViewOutcome::Applied;
        }
        if self.holder != Some(by) {
            return ViewOutcome::Deposed;
        }
        if self.view != *from {
            return ViewOutcome::Refused;
        }
        self.view = to.clone();
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
