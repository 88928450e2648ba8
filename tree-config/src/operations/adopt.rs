//! A cluster and its topology file: the file makes the cluster once, and afterwards has to agree with it.

use std::fmt::Display;

use flexlog_protocol::{ClusterId, Position};

use super::{OperationError, Tree, cluster, create_cluster, read, tree, try_commit};
use crate::key::{Key, Value};
use crate::metadata::{CommitError, Metadata};
use crate::record::{ClusterRecord, PositionRecord, ReplicaRecord};
use crate::topology::Topology;
use crate::transaction::Transaction;

/// Creates the cluster that the topology describes where there is none, with the id `id`. Where there is one, checks that
/// it is the one of the topology, and writes down the addresses that are others now.
///
/// However many processes call this at once, the cluster is created once. May be called again after a commit in doubt,
/// and is to be called again, in a moment, after [`OperationError::BeingCreated`].
///
/// # Errors
/// [`OperationError::Differs`] with every difference, before anything is changed; those of [`create_cluster`], reading
/// and committing.
pub async fn adopt(
    store: &(impl Metadata + ?Sized),
    id: ClusterId,
    topology: &Topology,
) -> Result<ClusterRecord, OperationError> {
    loop {
        if let Some(cluster) = cluster(store).await? {
            let tree = tree(store).await?;
            let differences = differences(&tree, topology);
            if !differences.is_empty() {
                let file = topology.file.display().to_string();
                return Err(OperationError::Differs { file, differences });
            }
            move_addresses(store, &tree, topology).await?;
            return Ok(cluster);
        }
        match create_cluster(store, id, &topology.layout()).await {
            Err(OperationError::Commit(CommitError::Conflict { key: Key::Cluster })) => {}
            created => return created,
        }
    }
}

async fn move_addresses(
    store: &(impl Metadata + ?Sized),
    tree: &Tree,
    topology: &Topology,
) -> Result<(), OperationError> {
    for record in &tree.positions {
        let Some(wanted) = topology.sequencer(&record.name).filter(|wanted| wanted.address != record.address) else {
            continue;
        };
        update(store, &Key::Position(record.position), |record| PositionRecord {
            address: wanted.address.clone(),
            ..record
        })
        .await?;
    }
    for record in &tree.replicas {
        let Some((_, wanted)) = topology.replica(record.replica) else { continue };
        if record.addresses != [wanted.address.as_str()] {
            update(store, &Key::Replica(record.replica), |record| ReplicaRecord {
                addresses: vec![wanted.address.clone()],
                ..record
            })
            .await?;
        }
    }
    Ok(())
}

/// Changes one record, whatever others change in it meanwhile.
async fn update<T>(store: &(impl Metadata + ?Sized), key: &Key, change: impl Fn(T) -> T) -> Result<(), OperationError>
where
    T: TryFrom<Value> + Into<Value>,
{
    loop {
        let (version, record) = read::<T>(store, key).await?;
        let transaction = Transaction::new().when(key.clone(), version).put(key.clone(), change(record));
        if try_commit(store, transaction).await?.is_some() {
            return Ok(());
        }
    }
}

/// What the file and the metadata do not agree on, with what to do about each. Addresses may differ.
fn differences(tree: &Tree, topology: &Topology) -> Vec<String> {
    let file = topology.file.display();
    let mut found = Vec::new();
    let name_of = |position: Position| tree.position(position).map_or("?", |record| record.name.as_str());
    let left_out = |what: &dyn Display, kind: &str| {
        format!(
            "{what} in the metadata and not in {file}: a cluster's {kind} cannot be removed by leaving them out: put it back"
        )
    };
    let put_in = |line: usize, what: &dyn Display, kind: &str| {
        format!(
            "{what} in line {line} of {file} and not in the metadata: a cluster's {kind} are those it was created with: leave \
             it out, or create another cluster"
        )
    };
    let other = |line: usize, what: &dyn Display, known: &dyn Display, written: &dyn Display, put: &dyn Display| {
        format!(
            "{what} {known} in the metadata, and {written} in line {line} of {file}: this is fixed at creation: write {put}"
        )
    };

    for record in &tree.positions {
        let name = &record.name;
        let Some(sequencer) = topology.sequencer(name) else {
            found.push(left_out(&format!("sequencer '{name}' is"), "sequencers"));
            continue;
        };
        let known = record.parent.map(name_of);
        if sequencer.parent.as_deref() != known {
            let below = |parent: Option<&str>| match parent {
                Some(parent) => format!("below '{parent}'"),
                None => "the root".to_owned(),
            };
            let put = known.map_or("no parent".to_owned(), |parent| format!("parent = \"{parent}\""));
            let (known, written) = (below(known), below(sequencer.parent.as_deref()));
            found.push(other(sequencer.line, &format!("sequencer '{name}' is"), &known, &written, &put));
        }
    }
    for sequencer in topology.sequencers().iter().filter(|s| tree.position_named(&s.name).is_none()) {
        found.push(put_in(sequencer.line, &format!("sequencer '{}' is", sequencer.name), "sequencers"));
    }

    for record in &tree.shards {
        let id = record.shard;
        let Some(shard) = topology.shards().iter().find(|shard| shard.id == id) else {
            found.push(left_out(&format!("shard {id} is"), "shards"));
            continue;
        };
        let leaf = name_of(record.leaf);
        if shard.leaf != leaf {
            let put = format!("leaf = \"{leaf}\"");
            let (known, written) = (format!("'{leaf}'"), format!("'{}'", shard.leaf));
            found.push(other(shard.line, &format!("shard {id} is led by"), &known, &written, &put));
        }
        if shard.min_view != record.min_view {
            let put = format!("min_view = {}", record.min_view);
            found.push(other(shard.line, &format!("shard {id} has min_view"), &record.min_view, &shard.min_view, &put));
        }
    }
    for shard in topology.shards().iter().filter(|shard| tree.shard(shard.id).is_none()) {
        found.push(put_in(shard.line, &format!("shard {} is", shard.id), "shards"));
    }

    for record in &tree.replicas {
        let (id, known) = (record.replica, record.shard);
        match topology.replica(id) {
            None => found.push(left_out(&format!("replica {id} of shard {known} is"), "replicas")),
            Some((shard, replica)) if shard.id != known => {
                let put = format!("it below shard {known}");
                let (what, written) = (format!("replica {id} is one of shard"), shard.id);
                found.push(other(replica.line, &what, &known, &written, &put));
            }
            Some(_) => {}
        }
    }
    for shard in topology.shards() {
        for replica in shard.replicas.iter().filter(|replica| tree.replica(replica.id).is_none()) {
            let what = format!("replica {} of shard {} is", replica.id, shard.id);
            found.push(format!(
                "{what} in line {} of {file} and not in the metadata: to put it in the place of another one, run `flexlog \
                 replica replace`; else leave it out",
                replica.line
            ));
        }
    }
    found
}
