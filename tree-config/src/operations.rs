//! What a cluster does with its metadata, over any [`Metadata`].
//!
//! Each operation reads, decides, and commits on the condition that what it read still holds; on a conflict it reads
//! again, so somebody else made progress each time. None holds anything between calls. Where a commit is in doubt
//! ([`CommitError::Unknown`]) the operation says so and may be called again: each says what that does.

use flexlog_protocol::api::RetentionChange;
use flexlog_protocol::limits::MAX_COLORS;
use flexlog_protocol::{ClusterId, Color, Epoch, Position, ReplicaId, ShardId, StoreId};
use uuid::Uuid;

use crate::identity::{self, IdentityRefusal, Opening, Step};
use crate::key::{Key, Kind, Value};
use crate::metadata::{CommitError, MAX_PAGE, Metadata, ReadError, Revision};
use crate::name::ColorName;
use crate::record::{ClusterRecord, ColorRecord, Holder, PositionRecord, ReplicaRecord, Retention, ShardRecord};
use crate::transaction::{MAX_OPERATIONS, Transaction};

/// An operation on the metadata was not done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OperationError {
    /// The store could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The store did not take the change, or it is in doubt. A conflict is never passed on but by [`create_cluster`].
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// Something that must be there is not.
    #[error("the metadata has no record of {0}: create the cluster first, or check the number")]
    Missing(Key),
    /// A record is of another kind than its key: no store of this version writes such a thing.
    #[error("the metadata holds a record of another kind under {0}: put a backup back")]
    Misplaced(Key),
    /// Every epoch was given.
    #[error("position {0} cannot be claimed: all 4294967295 epochs of the cluster were given")]
    EpochsExhausted(Position),
    /// The cluster has as many colors as it can.
    #[error("the cluster has {0} colors, and can have {MAX_COLORS}")]
    TooManyColors(u64),
    /// The store is not the replica's.
    #[error(transparent)]
    Refused(#[from] IdentityRefusal),
    /// The records that a cluster was to start with do not fit together.
    #[error("the cluster cannot be created: {0}")]
    Layout(String),
}

/// The fact under `key`, if there is one, with its version.
async fn find<T>(store: &(impl Metadata + ?Sized), key: &Key) -> Result<Option<(Revision, T)>, OperationError>
where
    T: TryFrom<Value>,
{
    match store.get(key).await? {
        None => Ok(None),
        Some(found) => match T::try_from(found.value) {
            Ok(record) => Ok(Some((found.version, record))),
            Err(_) => Err(OperationError::Misplaced(key.clone())),
        },
    }
}

/// The fact under `key`, which must be there.
async fn read<T>(store: &(impl Metadata + ?Sized), key: &Key) -> Result<(Revision, T), OperationError>
where
    T: TryFrom<Value>,
{
    find(store, key).await?.ok_or_else(|| OperationError::Missing(key.clone()))
}

/// Commits; `None` after a conflict.
async fn try_commit(
    store: &(impl Metadata + ?Sized),
    transaction: Transaction,
) -> Result<Option<Revision>, OperationError> {
    match store.commit(transaction).await {
        Ok(revision) => Ok(Some(revision)),
        Err(CommitError::Conflict { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The cluster, or `None` before it was created.
///
/// # Errors
/// Those of reading.
pub async fn cluster(store: &(impl Metadata + ?Sized)) -> Result<Option<ClusterRecord>, OperationError> {
    Ok(find(store, &Key::Cluster).await?.map(|(_, record)| record))
}

/// The replica.
///
/// # Errors
/// [`OperationError::Missing`], and those of reading.
pub async fn replica(store: &(impl Metadata + ?Sized), replica: ReplicaId) -> Result<ReplicaRecord, OperationError> {
    Ok(read(store, &Key::Replica(replica)).await?.1)
}

/// The shard.
///
/// # Errors
/// [`OperationError::Missing`], and those of reading.
pub async fn shard(store: &(impl Metadata + ?Sized), shard: ShardId) -> Result<ShardRecord, OperationError> {
    Ok(read(store, &Key::Shard(shard)).await?.1)
}

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
            positions: vec![PositionRecord { position: root, parent: None, holder: None }],
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
        for record in &self.positions {
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

/// Creates the cluster with all that it starts with, in one transaction.
///
/// # Errors
/// [`OperationError::Layout`]; a [`CommitError::Conflict`] on [`Key::Cluster`] where there is a cluster already (after
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
    let mut transaction = Transaction::new().when_absent(Key::Cluster).put(Key::Cluster, cluster.clone());
    for record in &layout.positions {
        transaction = transaction.put(Key::Position(record.position), record.clone());
    }
    for record in &layout.shards {
        transaction = transaction.put(Key::Shard(record.shard), record.clone());
    }
    for record in &layout.replicas {
        transaction = transaction.put(Key::Replica(record.replica), record.clone());
    }
    store.commit(transaction).await?;
    Ok(cluster)
}

/// Claims a position for a process, whoever held it: takes a fresh epoch and names the holder, in one transaction.
///
/// Epochs of one position strictly grow, and no two claims of a cluster are given the same one. Called again after a
/// commit in doubt it claims again, with a higher epoch.
///
/// # Errors
/// [`OperationError::Missing`] without the cluster or the position, [`OperationError::EpochsExhausted`], those of
/// reading and committing.
pub async fn claim(
    store: &(impl Metadata + ?Sized),
    position: Position,
    uuid: Uuid,
    address: &str,
) -> Result<Epoch, OperationError> {
    let key = Key::Position(position);
    loop {
        let (place_version, place): (_, PositionRecord) = read(store, &key).await?;
        let (cluster_version, cluster): (_, ClusterRecord) = read(store, &Key::Cluster).await?;
        let epoch = cluster.next_epoch;
        let next_epoch = epoch.next().ok_or(OperationError::EpochsExhausted(position))?;
        let holder = Holder { epoch, uuid, address: address.to_owned() };
        let transaction = Transaction::new()
            .when(Key::Cluster, cluster_version)
            .when(key.clone(), place_version)
            .put(Key::Cluster, ClusterRecord { next_epoch, ..cluster })
            .put(key.clone(), PositionRecord { holder: Some(holder), ..place });
        if try_commit(store, transaction).await?.is_some() {
            return Ok(epoch);
        }
    }
}

/// The color of this name, or `None`.
///
/// # Errors
/// Those of reading.
pub async fn find_color(
    store: &(impl Metadata + ?Sized),
    name: &ColorName,
) -> Result<Option<ColorRecord>, OperationError> {
    match find::<Color>(store, &Key::ColorName(name.clone())).await? {
        // Name and record are written in one transaction, and neither is ever deleted.
        Some((_, color)) => Ok(Some(read(store, &Key::Color(color)).await?.1)),
        None => Ok(None),
    }
}

/// Colors in byte order of their names, those above `after` only, at most `limit`.
///
/// # Errors
/// Those of reading.
pub async fn colors_by_name(
    store: &(impl Metadata + ?Sized),
    after: Option<&ColorName>,
    limit: usize,
) -> Result<Vec<ColorRecord>, OperationError> {
    let after = after.map(|name| Key::ColorName(name.clone()));
    let page = store.list(Kind::ColorName, after.as_ref(), limit).await?;
    let mut colors = Vec::with_capacity(page.entries.len());
    for (key, found) in page.entries {
        let color = Color::try_from(found.value).map_err(|_| OperationError::Misplaced(key))?;
        colors.push(read(store, &Key::Color(color)).await?.1);
    }
    Ok(colors)
}

/// Where new colors go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The position that counts for them.
    pub owner: Position,
    /// The shard that holds them.
    pub shard: ShardId,
}

/// How many colors one transaction creates: the cluster record, and two records each.
pub const COLORS_PER_TRANSACTION: usize = (MAX_OPERATIONS - 1) / 2;
const _: () = assert!(2 * COLORS_PER_TRANSACTION < MAX_OPERATIONS);

/// The color of this name; creates it there where there is none.
///
/// However many call this at once for one name, all get the same color, and it is created once. May be called again
/// after a commit in doubt. The placement counts for a new color alone.
///
/// # Errors
/// As [`create_colors`].
pub async fn create_color(
    store: &(impl Metadata + ?Sized),
    name: &ColorName,
    placement: Placement,
) -> Result<ColorRecord, OperationError> {
    let colors = create_colors(store, std::slice::from_ref(name), placement).await?;
    colors.into_iter().next().ok_or_else(|| OperationError::Missing(Key::ColorName(name.clone())))
}

/// As [`create_color`] for many names, in their order, with one commit for each [`COLORS_PER_TRANSACTION`] of those
/// that are new. On an error some of them may have been created.
///
/// # Errors
/// [`OperationError::Missing`] without the cluster, the owner or the shard, [`OperationError::TooManyColors`], those of
/// reading and committing.
pub async fn create_colors(
    store: &(impl Metadata + ?Sized),
    names: &[ColorName],
    placement: Placement,
) -> Result<Vec<ColorRecord>, OperationError> {
    let mut colors = Vec::with_capacity(names.len());
    for chunk in names.chunks(COLORS_PER_TRANSACTION) {
        create_some(store, chunk, placement).await?;
        for name in chunk {
            let color = find_color(store, name).await?;
            colors.push(color.ok_or_else(|| OperationError::Missing(Key::ColorName(name.clone())))?);
        }
    }
    Ok(colors)
}

/// Creates those of `names` that are not there, in one transaction.
async fn create_some(
    store: &(impl Metadata + ?Sized),
    names: &[ColorName],
    placement: Placement,
) -> Result<(), OperationError> {
    loop {
        let (version, mut cluster): (_, ClusterRecord) = read(store, &Key::Cluster).await?;
        let mut new: Vec<&ColorName> = Vec::new();
        for name in names {
            if !new.contains(&name) && find::<Color>(store, &Key::ColorName(name.clone())).await?.is_none() {
                new.push(name);
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        if cluster.colors_left() < new.len() as u64 {
            return Err(OperationError::TooManyColors(cluster.colors()));
        }
        // Both are fixed once they are there, so no condition on them is needed.
        read::<PositionRecord>(store, &Key::Position(placement.owner)).await?;
        read::<ShardRecord>(store, &Key::Shard(placement.shard)).await?;
        let mut transaction = Transaction::new().when(Key::Cluster, version);
        for name in new {
            let color = cluster.next_color;
            cluster.next_color = Color(color.0 + 1);
            let record = ColorRecord {
                color,
                name: name.clone(),
                owner: placement.owner,
                width: 1,
                shards: vec![placement.shard],
                retention: Retention::default(),
            };
            let key = Key::ColorName(name.clone());
            transaction = transaction.when_absent(key.clone()).put(key, color).put(Key::Color(color), record);
        }
        if try_commit(store, transaction.put(Key::Cluster, cluster)).await?.is_some() {
            return Ok(());
        }
    }
}

/// Changes how long a color's records are kept, and answers with the color as it is then. A change that changes nothing
/// writes nothing.
///
/// May be called again after a commit in doubt.
///
/// # Errors
/// [`OperationError::Missing`] without the color; those of reading and committing.
pub async fn set_retention(
    store: &(impl Metadata + ?Sized),
    color: Color,
    change: RetentionChange,
) -> Result<ColorRecord, OperationError> {
    let key = Key::Color(color);
    loop {
        let (version, before): (_, ColorRecord) = read(store, &key).await?;
        let after = ColorRecord { retention: change.apply(before.retention), ..before.clone() };
        if after == before {
            return Ok(after);
        }
        let transaction = Transaction::new().when(key.clone(), version).put(key.clone(), after.clone());
        if try_commit(store, transaction).await?.is_some() {
            return Ok(after);
        }
    }
}

/// The colors whose records are not kept until they are trimmed, and how long they are.
///
/// # Errors
/// Those of reading.
pub async fn retentions(store: &(impl Metadata + ?Sized)) -> Result<Vec<(Color, Retention)>, OperationError> {
    let mut bounded = Vec::new();
    let mut after = None;
    loop {
        let page = store.list(Kind::Color, after.as_ref(), MAX_PAGE).await?;
        let Some((last, _)) = page.entries.last() else { return Ok(bounded) };
        after = Some(last.clone());
        for (key, found) in page.entries {
            let record = ColorRecord::try_from(found.value).map_err(|_| OperationError::Misplaced(key))?;
            if !record.retention.is_unlimited() {
                bounded.push((record.color, record.retention));
            }
        }
    }
}

/// Step 2 of opening a replica's store (see [`crate::identity`]): the store has made `intent(n, nonce)` durable.
///
/// Once this is done the store makes `n + 1` durable, keeping the nonce. May be called again, with the same nonce, after
/// a crash or a commit in doubt.
///
/// # Errors
/// [`OperationError::Refused`]: the store must not be used. [`OperationError::Missing`] without the replica; those of
/// reading and committing.
pub async fn begin_open(
    store: &(impl Metadata + ?Sized),
    replica: ReplicaId,
    id: StoreId,
    n: u64,
    nonce: Uuid,
) -> Result<(), OperationError> {
    open_step(store, replica, Opening { store: id, n, nonce }, identity::begin).await
}

/// Step 4 of opening a replica's store (see [`crate::identity`]): the store has made `n + 1` durable, where `n` and the
/// nonce are those that [`begin_open`] was called with.
///
/// Once this is done the store may accept and report. May be called again after a crash or a commit in doubt.
///
/// # Errors
/// As [`begin_open`].
pub async fn finish_open(
    store: &(impl Metadata + ?Sized),
    replica: ReplicaId,
    id: StoreId,
    n: u64,
    nonce: Uuid,
) -> Result<(), OperationError> {
    open_step(store, replica, Opening { store: id, n, nonce }, identity::finish).await
}

async fn open_step(
    store: &(impl Metadata + ?Sized),
    replica: ReplicaId,
    seen: Opening,
    judge: fn(ReplicaId, &crate::StoreState, Opening) -> Result<Step, IdentityRefusal>,
) -> Result<(), OperationError> {
    let key = Key::Replica(replica);
    loop {
        let (version, record): (_, ReplicaRecord) = read(store, &key).await?;
        let state = match judge(replica, &record.store, seen)? {
            Step::Done => return Ok(()),
            Step::Write(state) => state,
        };
        let transaction =
            Transaction::new().when(key.clone(), version).put(key.clone(), ReplicaRecord { store: state, ..record });
        if try_commit(store, transaction).await?.is_some() {
            return Ok(());
        }
    }
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
        assert!(with(&|l| l.shards[0].leaf = Position(9)).contains("leaf"));
        assert!(with(&|l| l.replicas[2].shard = ShardId(2)).contains("member 3"));
        assert!(with(&|l| l.shards.clear()).contains("no shard 1"));
    }
}
