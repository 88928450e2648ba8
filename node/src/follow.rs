//! Following the metadata: what of it this process goes by is kept current while it runs.
//!
//! Every process of a cluster watches the metadata. It relies on a revision that is not newer than the tree that the
//! process started with, and promises that [`Server::changed`] hears of every record of the tree that is another one than
//! before, in the order of the changes; of two that follow each other closely it may hear of the later one alone. While
//! the metadata is away, all goes on with what is known.

use std::rc::Rc;
use std::time::Duration;

use flexlog_protocol::{ReplicaId, ShardId};
use flexlog_tree_config::operations::{self, OperationError, Tree};
use flexlog_tree_config::record::{PositionRecord, ReplicaRecord, ShardRecord};
use flexlog_tree_config::{ColorRecord, Event, Key, Kind, Metadata, ReadError, Revision, Value};

use crate::links::{Links, Peer};
use crate::seat::Seat;
use crate::server::Server;
use crate::standby::Input;

/// How long to wait before a watch that ended is begun again.
const FOLLOW_AGAIN: Duration = Duration::from_millis(200);

/// A revision to follow from, to be read before what is followed.
pub(crate) async fn revision(metadata: &dyn Metadata) -> Result<Revision, ReadError> {
    Ok(metadata.list(Kind::Cluster, None, 1).await?.revision)
}

/// Where the process is that holds a position, or is to.
pub(crate) fn address_of(record: &PositionRecord) -> &str {
    let holder = record.holder.as_ref().map(|holder| holder.address.as_str());
    holder.filter(|address| !address.is_empty()).unwrap_or(&record.address)
}

/// A record that is another one than before.
#[derive(Debug)]
enum Changed {
    /// Its holder, or its address in the topology.
    Position(PositionRecord),
    /// Its view.
    Shard(ShardRecord),
    /// A new one, or its address, or how often its store was opened.
    Replica(ReplicaRecord),
}

impl Server {
    /// Follows the metadata from a revision on, for as long as the process runs.
    pub(crate) async fn follow(self: Rc<Self>, from: Revision) {
        let (mut after, mut said) = (from, false);
        loop {
            let error = match self.follow_on(&mut after, &mut said).await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            if !said {
                said = true;
                tracing::warn!(%error, "the metadata is not followed: going on with what is known, and trying again");
            }
            tokio::time::sleep(FOLLOW_AGAIN).await;
        }
    }

    /// Follows until the watch ends.
    async fn follow_on(
        self: &Rc<Self>,
        after: &mut Revision,
        said: &mut bool,
    ) -> Result<std::convert::Infallible, OperationError> {
        let mut watch = self.metadata.watch(*after).await?;
        if std::mem::take(said) {
            tracing::info!("the metadata is followed again");
        }
        loop {
            if self.bounds_due.get() {
                self.read_bounds().await?;
                self.bounds_due.set(false);
            }
            match watch.next().await? {
                Event::Changes(changes) => {
                    for change in &changes.changes {
                        match &change.value {
                            Some(value) => self.take(value.clone()),
                            None => self.gone(&change.key),
                        }
                    }
                    *after = changes.revision;
                }
                Event::Lagged { revision } => {
                    let Tree { positions, shards, replicas } = operations::tree(&*self.metadata).await?;
                    let known: Vec<ReplicaId> =
                        self.tree.borrow().replicas.iter().map(|record| record.replica).collect();
                    for replica in known {
                        if replicas.iter().all(|record| record.replica != replica) {
                            self.gone(&Key::Replica(replica));
                        }
                    }
                    let positions = positions.into_iter().map(Value::from);
                    let shards = shards.into_iter().map(Value::from);
                    let replicas = replicas.into_iter().map(Value::from);
                    replicas.chain(shards).chain(positions).for_each(|value| self.take(value));
                    // Colors are many: only those that matter are read.
                    self.bounds_due.set(self.replica.is_some());
                    *after = revision;
                }
            }
        }
    }

    /// A record is gone: a replica that was replaced.
    fn gone(self: &Rc<Self>, key: &Key) {
        let Key::Replica(replica) = key else { return };
        let removed = self.tree.borrow_mut().remove_replica(*replica);
        if let (Some(links), Some(record)) = (&self.links, removed) {
            self.replicas_changed(links, record.shard);
            self.forget_replaced(links);
        }
    }

    /// Links to replicas that were replaced are given up, once no view has them any more.
    fn forget_replaced(&self, links: &Links) {
        let tree = self.tree.borrow();
        for link in links.status() {
            if let Peer::Replica(replica) = link.peer
                && tree.replica(replica).is_none()
                && tree.shards.iter().all(|shard| !shard.view.members.contains(&replica))
            {
                tracing::info!(%replica, "it was replaced: no link to it is kept any more");
                links.forget(link.peer);
            }
        }
    }

    fn take(self: &Rc<Self>, value: Value) {
        if let Value::Color(record) = value {
            return self.color_changed(&record);
        }
        if !self.tree.borrow_mut().take(&value) {
            return;
        }
        match value {
            Value::Position(record) => self.changed(Changed::Position(record)),
            Value::Shard(record) => self.changed(Changed::Shard(record)),
            Value::Replica(record) => self.changed(Changed::Replica(record)),
            Value::Cluster(_) | Value::Color(_) | Value::ColorName(_) => {}
        }
    }

    /// A record of the tree is another one than before; `self.tree` has it already. Whoever in this process goes by such
    /// records is told here.
    fn changed(self: &Rc<Self>, what: Changed) {
        match what {
            Changed::Position(record) => {
                if self.seat.as_ref().is_some_and(|seat| seat.position() == record.position) {
                    self.stand(Input::Told(record.holder));
                } else if let Some(links) = &self.links {
                    links.locate(Peer::Position(record.position), address_of(&record));
                }
            }
            Changed::Replica(record) => {
                if let (Some(links), Some(address)) = (&self.links, record.addresses.first()) {
                    links.locate(Peer::Replica(record.replica), address);
                    self.replicas_changed(links, record.shard);
                }
            }
            Changed::Shard(record) => {
                if let Some(links) = &self.links {
                    self.forget_replaced(links);
                }
                // The first member of a shard's view trims for all.
                if self.replica.is_some_and(|(_, shard)| shard == record.shard) {
                    self.bounds_due.set(true);
                }
            }
        }
    }

    /// A shard has other replicas than before: whoever leads it may take them in.
    fn replicas_changed(self: &Rc<Self>, links: &Links, shard: ShardId) {
        let (leaf, replicas) = {
            let tree = self.tree.borrow();
            let replicas: Vec<ReplicaId> = tree.replicas_of(shard).map(|record| record.replica).collect();
            (tree.shard(shard).map(|record| record.leaf), replicas)
        };
        if leaf.is_none() || leaf != self.seat.as_ref().map(Seat::position) {
            return;
        }
        if self.seat.as_ref().is_some_and(Seat::is_held) {
            replicas.iter().for_each(|replica| links.reach(Peer::Replica(*replica)));
        }
        self.engine.borrow_mut().set_replicas(shard, replicas);
        self.run();
    }

    /// The shard whose colors this process keeps to their retentions, if it is the first member of its view.
    fn trims(&self) -> Option<ShardId> {
        let (replica, shard) = self.replica?;
        trims(&self.tree.borrow(), replica).filter(|trimmed| *trimmed == shard)
    }

    fn color_changed(self: &Rc<Self>, record: &ColorRecord) {
        if self.trims().is_some_and(|shard| record.shards.contains(&shard))
            && self.keeper.borrow().bounds(record.color) != record.retention
        {
            self.keep(|keeper, engine| keeper.set(engine, record.color, record.retention));
            self.given_bounds.notify_one();
        }
    }

    /// Reads which colors this process is to keep to their retentions.
    async fn read_bounds(self: &Rc<Self>) -> Result<(), OperationError> {
        let bounds = match self.trims() {
            Some(shard) => bounds_of(&*self.metadata, shard).await?,
            None => Vec::new(),
        };
        self.keep(|keeper, engine| keeper.set_all(engine, bounds));
        self.given_bounds.notify_one();
        Ok(())
    }
}

/// The shard that a replica trims for all of its members.
pub(crate) fn trims(tree: &Tree, replica: ReplicaId) -> Option<ShardId> {
    let first = |record: &&ShardRecord| record.view.members.first() == Some(&replica);
    tree.shards.iter().find(first).map(|record| record.shard)
}

/// The colors of a shard with bounds, and these.
pub(crate) async fn bounds_of(
    metadata: &dyn Metadata,
    shard: ShardId,
) -> Result<Vec<(flexlog_protocol::Color, flexlog_protocol::api::Retention)>, OperationError> {
    let bounded = operations::retentions(metadata).await?.into_iter();
    Ok(bounded.filter(|record| record.shards.contains(&shard)).map(|record| (record.color, record.retention)).collect())
}
