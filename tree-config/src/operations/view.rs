//! Changing a shard's view: by its leaf alone, and only while that holds the position.

use flexlog_protocol::{Incarnation, ShardId, View};

use super::{OperationError, read, try_commit};
use crate::key::Key;
use crate::metadata::Metadata;
use crate::record::{PositionRecord, ShardRecord};
use crate::transaction::Transaction;

/// What became of a change of view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ViewChange {
    /// The shard has the new view.
    Applied,
    /// The shard has another view than the one that was to be changed.
    Refused,
    /// Another incarnation holds the position that leads the shard.
    Deposed,
}

/// Changes the view of `shard` from `from` to `to` if `by` still holds the position that leads it, in one transaction.
/// After a commit in doubt it is called again, until the outcome is known.
///
/// # Errors
/// Those of reading and committing; [`OperationError::Missing`] without the shard or the position.
pub async fn change_view(
    store: &(impl Metadata + ?Sized),
    by: Incarnation,
    shard: ShardId,
    from: &View,
    to: &View,
) -> Result<ViewChange, OperationError> {
    let (place_key, shard_key) = (Key::Position(by.position), Key::Shard(shard));
    loop {
        let (shard_version, record): (_, ShardRecord) = read(store, &shard_key).await?;
        if record.view == *to {
            return Ok(ViewChange::Applied);
        }
        let (place_version, place): (_, PositionRecord) = read(store, &place_key).await?;
        let holds = place.holder.is_some_and(|holder| (holder.epoch, holder.uuid) == (by.epoch, by.uuid));
        if !holds || record.leaf != by.position {
            return Ok(ViewChange::Deposed);
        }
        if record.view != *from {
            return Ok(ViewChange::Refused);
        }
        let transaction = Transaction::new()
            .when(place_key.clone(), place_version)
            .when(shard_key.clone(), shard_version)
            .put(shard_key.clone(), ShardRecord { view: to.clone(), ..record });
        if try_commit(store, transaction).await?.is_some() {
            return Ok(ViewChange::Applied);
        }
    }
}
