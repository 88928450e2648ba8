//! What a cluster does with its metadata, over any [`Metadata`].
//!
//! Each operation reads, decides, and commits on the condition that what it read still holds; on a conflict it reads
//! again, so somebody else made progress each time. None holds anything between calls. Where a commit is in doubt
//! ([`CommitError::Unknown`]) the operation says so and may be called again: each says what that does.

mod adopt;
mod layout;
mod replace;
mod tree;
mod view;

use std::collections::BTreeSet;

use flexlog_protocol::api::RetentionChange;
use flexlog_protocol::limits::MAX_COLORS;
use flexlog_protocol::{Color, Epoch, Position, ReplicaId, ShardId, StoreId};
use uuid::Uuid;

pub use self::adopt::adopt;
pub use self::layout::{Layout, create_cluster};
pub use self::replace::replace_replica;
pub use self::tree::{Tree, place, tree};
pub use self::view::{ViewChange, change_view};

use crate::identity::{self, IdentityRefusal, Opening, Step};
use crate::key::{Key, Kind, Value};
use crate::metadata::{CommitError, MAX_PAGE, Metadata, ReadError, Revision};
use crate::name::ColorName;
use crate::record::{
    ClusterRecord, ColorRecord, Holder, MAX_WIDTH, PositionRecord, ReplicaRecord, Retention, ShardRecord,
};
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
    /// Ids of colors have no room for the position.
    #[error("position {0} cannot own colors: only those up to {max} can", max = Color::MAX_OWNER)]
    Owner(Position),
    /// The cluster has as many colors as it can.
    #[error("the cluster has {0} colors, and can have {MAX_COLORS}")]
    TooManyColors(u64),
    /// The store is not the replica's.
    #[error(transparent)]
    Refused(#[from] IdentityRefusal),
    /// The records that a cluster was to start with do not fit together.
    #[error("the cluster cannot be created: {0}")]
    Layout(String),
    /// Another process is creating the cluster.
    #[error("the cluster is being created by another process: try again in a moment")]
    BeingCreated,
    /// No color has such a width.
    #[error("a color is 1 to {MAX_WIDTH} shards wide, not {0}")]
    Width(u32),
    /// A color was to be wider than the tree is below its owner.
    #[error(
        "a color of width {width} needs as many shards, and below sequencer '{owner}' there are {shards}: choose a smaller \
         width, or an owner above more shards"
    )]
    TooWide {
        /// The name of the owner.
        owner: String,
        /// How many shards are below it.
        shards: usize,
        /// The width that was asked for.
        width: u32,
    },
    /// A color was to be on a shard that is not below its owner, which thus never hears of it.
    #[error("shard {shard} is not below position {owner}: choose a shard that is, or an owner above it")]
    NotBelow {
        /// The shard.
        shard: ShardId,
        /// The owner.
        owner: Position,
    },
    /// The number of a new replica is in use, or was.
    #[error("the number {0} is or was another replica's: numbers are not used twice, choose a higher one")]
    Taken(ReplicaId),
    /// The topology is not that of the cluster.
    #[error("{file} is not the cluster that the metadata holds:\n{}", .differences.join("\n"))]
    Differs {
        /// The topology's file.
        file: String,
        /// Every difference, with what to do about it.
        differences: Vec<String>,
    },
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

/// Every fact of a kind, in order of their keys. Read page by page, so not all of one moment.
async fn list_all(store: &(impl Metadata + ?Sized), kind: Kind) -> Result<Vec<(Key, Value)>, OperationError> {
    let mut all: Vec<(Key, Value)> = Vec::new();
    loop {
        let page = store.list(kind, all.last().map(|(key, _)| key), MAX_PAGE).await?;
        if page.entries.is_empty() {
            return Ok(all);
        }
        all.extend(page.entries.into_iter().map(|(key, found)| (key, found.value)));
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
        let place = read(store, &key).await?;
        if let Some(epoch) = try_claim(store, place, uuid, address).await? {
            return Ok(epoch);
        }
    }
}

/// As [`claim`], but only from the holder of the epoch `from`, or where `from` is `None` from nobody: `None` where another
/// one holds it meanwhile.
///
/// May be called again after a commit in doubt, with the same `uuid` and the same `from`, and does not claim twice then. So
/// a process that claims more than once may draw its uuid once: epochs tell its claims apart.
///
/// # Errors
/// As [`claim`].
pub async fn take_over(
    store: &(impl Metadata + ?Sized),
    position: Position,
    from: Option<Epoch>,
    uuid: Uuid,
    address: &str,
) -> Result<Option<Epoch>, OperationError> {
    let key = Key::Position(position);
    loop {
        let (place_version, place): (_, PositionRecord) = read(store, &key).await?;
        match &place.holder {
            // A commit that was in doubt was made.
            Some(holder) if holder.uuid == uuid && Some(holder.epoch) > from => return Ok(Some(holder.epoch)),
            holder if holder.as_ref().map(|holder| holder.epoch) != from => return Ok(None),
            _ => {}
        }
        if let Some(epoch) = try_claim(store, (place_version, place), uuid, address).await? {
            return Ok(Some(epoch));
        }
    }
}

/// Claims a position that is as it was read. `None` after a conflict.
async fn try_claim(
    store: &(impl Metadata + ?Sized),
    (version, place): (Revision, PositionRecord),
    uuid: Uuid,
    address: &str,
) -> Result<Option<Epoch>, OperationError> {
    let key = Key::Position(place.position);
    let (cluster_version, cluster): (_, ClusterRecord) = read(store, &Key::Cluster).await?;
    let epoch = cluster.next_epoch;
    let next_epoch = epoch.next().ok_or(OperationError::EpochsExhausted(place.position))?;
    let holder = Holder { epoch, uuid, address: address.to_owned() };
    let transaction = Transaction::new()
        .when(Key::Cluster, cluster_version)
        .when(key.clone(), version)
        .put(Key::Cluster, ClusterRecord { next_epoch, ..cluster })
        .put(key, PositionRecord { holder: Some(holder), ..place });
    Ok(try_commit(store, transaction).await?.map(|_| epoch))
}

/// The position.
///
/// # Errors
/// [`OperationError::Missing`], and those of reading.
pub async fn position(store: &(impl Metadata + ?Sized), position: Position) -> Result<PositionRecord, OperationError> {
    Ok(read(store, &Key::Position(position)).await?.1)
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

/// The color of this id, or `None`.
///
/// # Errors
/// Those of reading.
pub async fn color(store: &(impl Metadata + ?Sized), color: Color) -> Result<Option<ColorRecord>, OperationError> {
    Ok(find(store, &Key::Color(color)).await?.map(|(_, record)| record))
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

/// Where new colors go. [`place`] and [`Tree::place`] choose the shards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The position that counts for them.
    pub owner: Position,
    /// The shards that they are spread over: below the owner, in ascending order, as many as the colors are wide.
    pub shards: Vec<ShardId>,
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
    placement: &Placement,
) -> Result<ColorRecord, OperationError> {
    let colors = create_colors(store, std::slice::from_ref(name), placement).await?;
    colors.into_iter().next().ok_or_else(|| OperationError::Missing(Key::ColorName(name.clone())))
}

/// As [`create_color`] for many names, in their order, with one commit for each [`COLORS_PER_TRANSACTION`] of those
/// that are new. On an error some of them may have been created.
///
/// # Errors
/// [`OperationError::Missing`] without the cluster, the owner or a shard, [`OperationError::NotBelow`],
/// [`OperationError::TooManyColors`], those of reading and committing.
pub async fn create_colors(
    store: &(impl Metadata + ?Sized),
    names: &[ColorName],
    placement: &Placement,
) -> Result<Vec<ColorRecord>, OperationError> {
    let mut colors = Vec::with_capacity(names.len());
    let mut is_checked = false;
    for chunk in names.chunks(COLORS_PER_TRANSACTION) {
        create_some(store, chunk, placement, &mut is_checked).await?;
        for name in chunk {
            let color = find_color(store, name).await?;
            colors.push(color.ok_or_else(|| OperationError::Missing(Key::ColorName(name.clone())))?);
        }
    }
    Ok(colors)
}

/// Checks that the shards of a placement are there, below its owner.
async fn check_placement(store: &(impl Metadata + ?Sized), placement: &Placement) -> Result<(), OperationError> {
    let owner = placement.owner;
    read::<PositionRecord>(store, &Key::Position(owner)).await?;
    let mut below = BTreeSet::from([owner]);
    for shard in &placement.shards {
        let mut at = read::<ShardRecord>(store, &Key::Shard(*shard)).await?.1.leaf;
        let mut path = Vec::new();
        while !below.contains(&at) {
            path.push(at);
            let above = read::<PositionRecord>(store, &Key::Position(at)).await?.1.parent;
            at = above.ok_or(OperationError::NotBelow { shard: *shard, owner })?;
        }
        below.extend(path);
    }
    Ok(())
}

/// Creates those of `names` that are not there, in one transaction.
async fn create_some(
    store: &(impl Metadata + ?Sized),
    names: &[ColorName],
    placement: &Placement,
    is_checked: &mut bool,
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
        // The tree is fixed, so it is looked at once, and no condition on it is needed.
        if !*is_checked {
            check_placement(store, placement).await?;
            *is_checked = true;
        }
        let mut transaction = Transaction::new().when(Key::Cluster, version);
        for name in new {
            let serial = cluster.next_color.0;
            let color = Color::new(placement.owner, placement.shards.len() > 1, serial);
            let color = color.ok_or(OperationError::Owner(placement.owner))?;
            cluster.next_color = Color(serial + 1);
            let record = ColorRecord {
                color,
                name: name.clone(),
                owner: placement.owner,
                width: u32::try_from(placement.shards.len()).unwrap_or(u32::MAX),
                shards: placement.shards.clone(),
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

/// The colors whose records are not kept until they are trimmed.
///
/// # Errors
/// Those of reading.
pub async fn retentions(store: &(impl Metadata + ?Sized)) -> Result<Vec<ColorRecord>, OperationError> {
    let mut bounded = Vec::new();
    let mut after = None;
    loop {
        let page = store.list(Kind::Color, after.as_ref(), MAX_PAGE).await?;
        let Some((last, _)) = page.entries.last() else { return Ok(bounded) };
        after = Some(last.clone());
        for (key, found) in page.entries {
            let record = ColorRecord::try_from(found.value).map_err(|_| OperationError::Misplaced(key))?;
            if !record.retention.is_unlimited() {
                bounded.push(record);
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
