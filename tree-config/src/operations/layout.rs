//! What a cluster starts with, and its creation.

use std::collections::BTreeSet;

use flexlog_protocol::{ClusterId, Position, ReplicaId, ShardId};

use super::{OperationError, list_all};
use crate::key::{Key, Kind, Value};
use crate::metadata::{CommitError, Metadata};
use crate::record::{ClusterRecord, PositionRecord, ReplicaRecord, ShardRecord};
use crate::transaction::{MAX_OPERATIONS, Transaction};

/// What a cluster starts with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The positions of its tree, one of them the root.
    pub positions: Vec<PositionRecord>,
    /// Its shards.
    pub shards: Vec<ShardRecord>,
    /// Its replicas.
    pub replicas: Vec<ReplicaRecord>,
}

impl Layout {
    /// One position, and one shard 1 under it with replicas 1 to `replicas`, all in one process.
    #[must_use]
    pub fn single(replicas: u32, min_view: u32) -> Self {
        let (root, shard) = (Position(0), ShardId(1));
        let members: Vec<ReplicaId> = (1..=replicas).map(ReplicaId).collect();
        let replica = |&replica: &ReplicaId| ReplicaRecord {
            replica,
            shard,
            addresses: Vec::new(),
            store: crate::StoreState::Fresh,
        };
        Self {
            replicas: members.iter().map(replica).collect(),
            shards: vec![ShardRecord { shard, leaf: root, view: ShardRecord::first_view(members), min_view }],
            positions: vec![PositionRecord {
                position: root,
                parent: None,
                name: "root".into(),
                address: String::new(),
                holder: None,
            }],
        }
    }

    /// Checks that the records fit together: parents lead to the root, leaves are there, and members are replicas of
    /// the shard.
    fn check(&self) -> Result<(), OperationError> {
        let wrong = |why: String| Err(OperationError::Layout(why));
        let position = |p: Position| self.positions.iter().find(|record| record.position == p);
        if position(Position(0)).is_none() {
            return wrong("there is no root, position 0".into());
        }
        let mut names = BTreeSet::new();
        for record in &self.positions {
            if !names.insert(&record.name) {
                return wrong(format!("two positions are called '{}'", record.name));
            }
            let mut at = record;
            for _ in 0..self.positions.len() {
                match at.parent {
                    None => break,
                    Some(parent) => match position(parent) {
                        Some(above) => at = above,
                        None => return wrong(format!("position {}: its parent {parent} is not there", at.position)),
                    },
                }
            }
            if at.parent.is_some() {
                return wrong(format!("position {} does not lead up to the root", record.position));
            }
        }
        for shard in &self.shards {
            if position(shard.leaf).is_none() {
                return wrong(format!("shard {}: its leaf, position {}, is not there", shard.shard, shard.leaf));
            }
            let is_ours = |m: &ReplicaId| self.replicas.iter().any(|r| r.replica == *m && r.shard == shard.shard);
            if let Some(member) = shard.view.members.iter().find(|m| !is_ours(m)) {
                return wrong(format!("shard {}: member {member} is not one of its replicas", shard.shard));
            }
        }
        match self.replicas.iter().find(|r| !self.shards.iter().any(|s| s.shard == r.shard)) {
            Some(stray) => wrong(format!("replica {}: there is no shard {}", stray.replica, stray.shard)),
            None => Ok(()),
        }
    }
}

/// Creates the cluster with all that it starts with: there is no cluster before all of it is there.
///
/// # Errors
/// [`OperationError::Layout`]; [`OperationError::BeingCreated`] where another process began later; a [`CommitError::Conflict`] on [`Key::Cluster`] where there is a cluster already (after
/// a commit in doubt: it was done); those of committing.
pub async fn create_cluster(
    store: &(impl Metadata + ?Sized),
    id: ClusterId,
    layout: &Layout,
) -> Result<ClusterRecord, OperationError> {
    layout.check()?;
    let highest = layout.replicas.iter().map(|r| r.replica.0).max().unwrap_or(0);
    let next_replica = highest
        .checked_add(1)
        .map(ReplicaId)
        .ok_or_else(|| OperationError::Layout(format!("replica {highest}: its number is the last there is")))?;
    let cluster = ClusterRecord { next_replica, ..ClusterRecord::new(id) };
    let mut records: Vec<(Key, Value)> = Vec::new();
    records.extend(layout.positions.iter().map(|r| (Key::Position(r.position), r.clone().into())));
    records.extend(layout.shards.iter().map(|r| (Key::Shard(r.shard), r.clone().into())));
    records.extend(layout.replicas.iter().map(|r| (Key::Replica(r.replica), r.clone().into())));

    // Mostly all of it goes into one transaction. Every creation writes the root first, so where there is no root there
    // is nothing that another one left.
    if records.len() < MAX_OPERATIONS {
        let begin = Transaction::new().when_absent(Key::Cluster).when_absent(ROOT);
        let all = records.iter().fold(begin, |all, (key, value)| all.put(key.clone(), value.clone()));
        match store.commit(all.put(Key::Cluster, cluster.clone())).await {
            Err(CommitError::Conflict { key: ROOT }) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(cluster),
        }
    }
    create_in_parts(store, cluster, records).await
}

const ROOT: Key = Key::Position(Position(0));

/// Writes the root, which stops whoever else is creating the cluster, then all else, and the cluster record last: before
/// that there is no cluster. Everything is written on the condition that nobody wrote the root again.
async fn create_in_parts(
    store: &(impl Metadata + ?Sized),
    cluster: ClusterRecord,
    records: Vec<(Key, Value)>,
) -> Result<ClusterRecord, OperationError> {
    let (roots, others): (Vec<_>, Vec<_>) = records.into_iter().partition(|(key, _)| *key == ROOT);
    let begin = Transaction::new().when_absent(Key::Cluster);
    let first = roots.iter().fold(begin, |all, (key, value)| all.put(key.clone(), value.clone()));
    let root = store.commit(first).await?;
    let ours = || Transaction::new().when_absent(Key::Cluster).when(ROOT, root);
    // What a creation left that did not get to its end.
    let mut changes: Vec<(Key, Option<Value>)> = Vec::new();
    for kind in [Kind::Position, Kind::Shard, Kind::Replica] {
        let found = list_all(store, kind).await?.into_iter().map(|(key, _)| key);
        let stray = found.filter(|key| *key != ROOT && !others.iter().any(|(ours, _)| ours == key));
        changes.extend(stray.map(|key| (key, None)));
    }
    changes.extend(others.iter().map(|(key, value)| (key.clone(), Some(value.clone()))));
    let parts = changes.chunks(MAX_OPERATIONS).map(|part| {
        part.iter().fold(ours(), |all, (key, value)| match value {
            Some(value) => all.put(key.clone(), value.clone()),
            None => all.delete(key.clone()),
        })
    });
    for part in parts.chain([ours().put(Key::Cluster, cluster.clone())]) {
        match store.commit(part).await {
            // To begin again at once would stop the other in turn, and so on for ever.
            Err(CommitError::Conflict { key: ROOT }) => return Err(OperationError::BeingCreated),
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
    }
    Ok(cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_single_layout_fits_together() {
        Layout::single(3, 2).check().unwrap();
    }

    #[test]
    fn layouts_that_do_not_fit_are_refused() {
        let at = |p, parent: Option<u32>| PositionRecord {
            position: Position(p),
            parent: parent.map(Position),
            name: format!("p{p}"),
            address: String::new(),
            holder: None,
        };
        let with = |change: &dyn Fn(&mut Layout)| {
            let mut layout = Layout::single(3, 2);
            change(&mut layout);
            match layout.check() {
                Err(OperationError::Layout(why)) => why,
                other => panic!("{other:?}"),
            }
        };
        assert!(with(&|l| l.positions.clear()).contains("no root"));
        assert!(with(&|l| l.positions.push(at(5, Some(4)))).contains("parent 4"));
        let looped = with(&|l| l.positions.extend([at(5, Some(4)), at(4, Some(5))]));
        assert!(looped.contains("does not lead up"), "{looped}");
        assert!(
            with(&|l| l.positions.push(PositionRecord { name: "root".into(), ..at(5, Some(0)) })).contains("'root'")
        );
        assert!(with(&|l| l.shards[0].leaf = Position(9)).contains("leaf"));
        assert!(with(&|l| l.replicas[2].shard = ShardId(2)).contains("member 3"));
        assert!(with(&|l| l.shards.clear()).contains("no shard 1"));
    }
}
