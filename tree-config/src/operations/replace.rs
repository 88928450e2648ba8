//! Putting a new replica in another one's place.

use flexlog_protocol::ReplicaId;

use super::{OperationError, read, tree, try_commit};
use crate::key::Key;
use crate::metadata::Metadata;
use crate::record::{ClusterRecord, ReplicaRecord, StoreState};
use crate::transaction::Transaction;

/// Puts the replica `new`, at `address` and with a store that nobody opened yet, in the place of `old`: the shard's leaf takes
/// it into the view, and puts `old` out of it. A replica that was replaced never comes back; neither does its number.
///
/// Done already, this changes nothing; so it may be called again after a commit in doubt.
///
/// # Errors
/// [`OperationError::Missing`] without `old`, [`OperationError::Taken`] where `new` is another shard's replica or was one
/// before; those of reading and committing.
pub async fn replace_replica(
    store: &(impl Metadata + ?Sized),
    old: ReplicaId,
    new: ReplicaId,
    address: &str,
) -> Result<ReplicaRecord, OperationError> {
    let (old_key, new_key) = (Key::Replica(old), Key::Replica(new));
    loop {
        let known = tree(store).await?;
        match (known.replica(old), known.replica(new)) {
            (None, Some(record)) => return Ok(record.clone()),
            (None, None) => return Err(OperationError::Missing(old_key)),
            (Some(_), Some(_)) => return Err(OperationError::Taken(new)),
            (Some(_), None) => {}
        }
        let (old_version, gone): (_, ReplicaRecord) = read(store, &old_key).await?;
        let (cluster_version, facts): (_, ClusterRecord) = read(store, &Key::Cluster).await?;
        // Numbers below were given to replicas before.
        if new < facts.next_replica {
            return Err(OperationError::Taken(new));
        }
        let record = ReplicaRecord {
            replica: new,
            shard: gone.shard,
            addresses: vec![address.to_owned()],
            store: StoreState::Fresh,
        };
        let next_replica = ReplicaId(new.0.saturating_add(1));
        let transaction = Transaction::new()
            .when(Key::Cluster, cluster_version)
            .when(old_key.clone(), old_version)
            .when_absent(new_key.clone())
            .put(Key::Cluster, ClusterRecord { next_replica, ..facts })
            .put(new_key.clone(), record.clone())
            .delete(old_key.clone());
        if try_commit(store, transaction).await?.is_some() {
            return Ok(record);
        }
    }
}
