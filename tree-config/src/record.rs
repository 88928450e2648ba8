//! The facts themselves, one type a kind, and the rules that each keeps on its own.
//!
//! A record that breaks its rules is refused before it reaches a store ([`crate::Transaction::check`]), so whoever
//! reads one may rely on them. Rules between records are kept by the [`crate::operations`] that write them.

pub use flexlog_protocol::api::Retention;
use flexlog_protocol::limits::MAX_COLORS;
use flexlog_protocol::{ClusterId, Color, Epoch, Position, ReplicaId, ShardId, StoreId, View, ViewNumber};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::name::ColorName;

/// The version of the records in this module. A store that holds another is refused.
pub const FORMAT_VERSION: u32 = 3;
/// The longest address of a node, in bytes.
pub const MAX_ADDRESS_BYTES: usize = 255;
/// The most addresses of a replica.
pub const MAX_ADDRESSES: usize = 8;
/// The most members of a view.
pub const MAX_VIEW_MEMBERS: usize = 15;
/// The longest name of a position, in bytes.
pub const MAX_POSITION_NAME_BYTES: usize = 64;
/// The widest a color can be, in shards.
pub const MAX_WIDTH: u32 = 64;

/// The cluster as a whole: who it is, and what it hands out next.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterRecord {
    /// The cluster.
    pub id: ClusterId,
    /// [`FORMAT_VERSION`] of its records.
    pub format: u32,
    /// The epoch that the next claim of any position is given.
    pub next_epoch: Epoch,
    /// The serial ([`Color::serial`]) that the next color is given.
    pub next_color: Color,
    /// The id that the next replica is given.
    pub next_replica: ReplicaId,
}

/// A place in the ordering tree.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PositionRecord {
    /// The place. The root is 0.
    pub position: Position,
    /// The place above it; `None` at the root alone.
    pub parent: Option<Position>,
    /// What people call it, unique in the cluster: a word, as [`is_word`] says.
    pub name: String,
    /// Where its process is to listen, `host:port`. Empty where everything shares one process.
    pub address: String,
    /// Who claimed it last; `None` before the first claim.
    pub holder: Option<Holder>,
}

/// A process that claimed a position. With the position it makes an [`flexlog_protocol::Incarnation`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// Given to this claim alone.
    pub epoch: Epoch,
    /// Drawn by the process.
    pub uuid: Uuid,
    /// Where it listens for its neighbours in the tree: `host:port`. Empty where all of them share its process.
    pub address: String,
}

/// Replicas that hold the same records.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardRecord {
    /// The shard.
    pub shard: ShardId,
    /// The position that leads it. Fixed at creation.
    pub leaf: Position,
    /// The view decided last.
    pub view: View,
    /// The fewest members that a view may have, from 1 up.
    pub min_view: u32,
}

/// A replica, and what its store must prove to be taken for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaRecord {
    /// The replica.
    pub replica: ReplicaId,
    /// The shard that it holds, or is to hold.
    pub shard: ShardId,
    /// Where it listens, `host:port` each. None where everything shares one process.
    pub addresses: Vec<String>,
    /// Its store, as the cluster knows it.
    pub store: StoreState,
}

/// How far the cluster knows a replica's store. Moved by [`crate::operations::begin_open`] and
/// [`crate::operations::finish_open`] alone:
///
/// ```text
/// Fresh ──begin(n = 0)──▶ Opening{n, nonce} ──finish──▶ Opened{n + 1} ──begin──▶ Opening{n + 1, nonce'} ──▶ …
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum StoreState {
    /// No store was ever opened for this replica.
    Fresh,
    /// The store was opened `n` times, and is good at that count alone.
    Opened {
        /// The store.
        store: StoreId,
        /// How many times it was opened.
        n: u64,
    },
    /// The store was opened `n` times and is being opened once more. It may neither accept nor report anything.
    Opening {
        /// The store.
        store: StoreId,
        /// How many times it was opened before.
        n: u64,
        /// Drawn for this opening, and written to the store first.
        nonce: Uuid,
    },
}

/// A log of its own, and where it lives. All of it but its retention is fixed at creation for now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColorRecord {
    /// The color.
    pub color: Color,
    /// Its name, unique in the cluster.
    pub name: ColorName,
    /// The position that counts for it.
    pub owner: Position,
    /// How many shards it is spread over, from 1 to [`MAX_WIDTH`].
    pub width: u32,
    /// Those shards, in ascending order: as many as its width.
    pub shards: Vec<ShardId>,
    /// How long its records are kept.
    pub retention: Retention,
}

/// A record breaks a rule of its own.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// The records are of a version that this program does not know.
    #[error(
        "the cluster's records have format {found}, and this program knows {FORMAT_VERSION} only: use the one that wrote them"
    )]
    Format {
        /// As found.
        found: u32,
    },
    /// A counter or id starts at 1, and this one is 0.
    #[error("{what} is 0, and counts from 1")]
    Zero {
        /// Which.
        what: &'static str,
    },
    /// The position has no parent although it is not the root, or the other way round.
    #[error("position {0}: the root is position 0 and has no parent; every other position has one")]
    Root(Position),
    /// The position is its own parent.
    #[error("position {0} is its own parent")]
    OwnParent(Position),
    /// The position's name is no word.
    #[error(
        "position {position}: '{name}' is no name: write 1 to {MAX_POSITION_NAME_BYTES} letters (a to z), digits, '-' and '_'"
    )]
    Name {
        /// The position.
        position: Position,
        /// As found.
        name: String,
    },
    /// The address cannot be one.
    #[error("'{0}' is not an address: write host:port, at most {MAX_ADDRESS_BYTES} bytes without spaces")]
    Address(String),
    /// The replica has too many addresses.
    #[error("replica {replica} has {count} addresses, and may have {MAX_ADDRESSES}")]
    TooManyAddresses {
        /// The replica.
        replica: ReplicaId,
        /// How many it has.
        count: usize,
    },
    /// The members are out of order, or one is there twice.
    #[error("shard {0}: the members of its view must ascend, none twice")]
    ViewOrder(ShardId),
    /// The view is smaller than the shard allows, or larger than any may be.
    #[error("shard {shard}: its view has {members} members, and must have {min_view} to {MAX_VIEW_MEMBERS}")]
    ViewSize {
        /// The shard.
        shard: ShardId,
        /// How many members the view has.
        members: usize,
        /// The fewest it may have.
        min_view: u32,
    },
    /// The width is none that this version knows, or the shards are not as many, or out of order.
    #[error(
        "color {color}: its width is {width} with {shards} shards; it must be 1 to {MAX_WIDTH}, with as many shards in ascending order"
    )]
    Width {
        /// The color.
        color: Color,
        /// The width.
        width: u32,
        /// How many shards are named.
        shards: usize,
    },
}

fn from_one(what: &'static str, n: u64) -> Result<(), RecordError> {
    if n == 0 { Err(RecordError::Zero { what }) } else { Ok(()) }
}

fn address(text: &str) -> Result<(), RecordError> {
    if text.len() > MAX_ADDRESS_BYTES || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(RecordError::Address(text.to_owned()));
    }
    Ok(())
}

/// Whether a text may name a position: 1 to [`MAX_POSITION_NAME_BYTES`] ASCII letters, digits, `-` and `_`, so that it
/// can also name a folder, a file and a key.
#[must_use]
pub fn is_word(text: &str) -> bool {
    let fits = (1..=MAX_POSITION_NAME_BYTES).contains(&text.len());
    fits && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn ascends<T: PartialOrd>(items: &[T]) -> bool {
    items.windows(2).all(|pair| pair[0] < pair[1])
}

impl ClusterRecord {
    /// A cluster that handed out nothing yet.
    #[must_use]
    pub fn new(id: ClusterId) -> Self {
        Self { id, format: FORMAT_VERSION, next_epoch: Epoch(1), next_color: Color(1), next_replica: ReplicaId(1) }
    }

    /// Checks the rules of this record.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self) -> Result<(), RecordError> {
        if self.format != FORMAT_VERSION {
            return Err(RecordError::Format { found: self.format });
        }
        from_one("the next epoch", self.next_epoch.0.into())?;
        from_one("the next color", self.next_color.0)?;
        from_one("the next replica", self.next_replica.0.into())
    }

    /// How many colors it has: they are numbered from 1 and never deleted.
    #[must_use]
    pub fn colors(&self) -> u64 {
        self.next_color.0.saturating_sub(1)
    }

    /// How many more colors it may have.
    #[must_use]
    pub fn colors_left(&self) -> u64 {
        (MAX_COLORS as u64).saturating_sub(self.colors())
    }
}

impl PositionRecord {
    /// Checks the rules of this record.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self) -> Result<(), RecordError> {
        if self.parent == Some(self.position) {
            return Err(RecordError::OwnParent(self.position));
        }
        if self.parent.is_none() != (self.position == Position(0)) {
            return Err(RecordError::Root(self.position));
        }
        if !is_word(&self.name) {
            return Err(RecordError::Name { position: self.position, name: self.name.clone() });
        }
        address(&self.address)?;
        match &self.holder {
            Some(holder) => {
                from_one("the holder's epoch", holder.epoch.0.into())?;
                address(&holder.address)
            }
            None => Ok(()),
        }
    }
}

impl ShardRecord {
    /// Checks the rules of this record: views count from 1, their members ascend and are at least `min_view`.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self) -> Result<(), RecordError> {
        from_one("the view number", self.view.number.0.into())?;
        from_one("min_view", self.min_view.into())?;
        let members = &self.view.members;
        if !ascends(members) {
            return Err(RecordError::ViewOrder(self.shard));
        }
        if members.len() < self.min_view as usize || members.len() > MAX_VIEW_MEMBERS {
            return Err(RecordError::ViewSize { shard: self.shard, members: members.len(), min_view: self.min_view });
        }
        match members.first() {
            Some(lowest) => from_one("a member's replica id", lowest.0.into()),
            None => Ok(()),
        }
    }

    /// The first view of a shard with these members, put in order.
    #[must_use]
    pub fn first_view(mut members: Vec<ReplicaId>) -> View {
        members.sort_unstable();
        View { number: ViewNumber(1), members }
    }
}

impl ReplicaRecord {
    /// Checks the rules of this record.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self) -> Result<(), RecordError> {
        from_one("the replica id", self.replica.0.into())?;
        if self.addresses.len() > MAX_ADDRESSES {
            return Err(RecordError::TooManyAddresses { replica: self.replica, count: self.addresses.len() });
        }
        if let StoreState::Opened { n, .. } = self.store {
            from_one("the open counter of an opened store", n)?;
        }
        for text in &self.addresses {
            address(text)?;
            if text.is_empty() {
                return Err(RecordError::Address(String::new()));
            }
        }
        Ok(())
    }
}

impl ColorRecord {
    /// Checks the rules of this record; its name was checked when it was made.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self) -> Result<(), RecordError> {
        from_one("the color id", self.color.0)?;
        let fits = (1..=MAX_WIDTH).contains(&self.width) && self.shards.len() == self.width as usize;
        if !fits || !ascends(&self.shards) {
            return Err(RecordError::Width { color: self.color, width: self.width, shards: self.shards.len() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(members: &[u32], min_view: u32) -> ShardRecord {
        let members = members.iter().copied().map(ReplicaId).collect();
        ShardRecord { shard: ShardId(1), leaf: Position(0), view: View { number: ViewNumber(1), members }, min_view }
    }

    #[test]
    fn a_view_ascends_and_is_large_enough() {
        assert_eq!(shard(&[1, 2, 3], 2).check(), Ok(()));
        assert_eq!(shard(&[7], 1).check(), Ok(()));
        assert_eq!(shard(&[2, 1], 1).check(), Err(RecordError::ViewOrder(ShardId(1))));
        assert_eq!(shard(&[1, 1], 1).check(), Err(RecordError::ViewOrder(ShardId(1))));
        let small = RecordError::ViewSize { shard: ShardId(1), members: 1, min_view: 2 };
        assert_eq!(shard(&[1], 2).check(), Err(small));
        assert_eq!(shard(&[], 0).check(), Err(RecordError::Zero { what: "min_view" }));
        assert_eq!(shard(&[0, 1], 1).check(), Err(RecordError::Zero { what: "a member's replica id" }));
        let all: Vec<u32> = (1..=16).collect();
        assert!(shard(&all[..15], 1).check().is_ok());
        assert!(matches!(shard(&all, 1).check(), Err(RecordError::ViewSize { members: 16, .. })));
    }

    #[test]
    fn the_first_view_is_put_in_order() {
        let view = ShardRecord::first_view(vec![ReplicaId(3), ReplicaId(1)]);
        assert_eq!(view, View { number: ViewNumber(1), members: vec![ReplicaId(1), ReplicaId(3)] });
    }

    #[test]
    fn the_root_alone_has_no_parent() {
        let at = |position, parent: Option<u32>| PositionRecord {
            position: Position(position),
            parent: parent.map(Position),
            name: "a".into(),
            address: String::new(),
            holder: None,
        };
        assert_eq!(at(0, None).check(), Ok(()));
        assert_eq!(at(3, Some(0)).check(), Ok(()));
        assert_eq!(at(3, None).check(), Err(RecordError::Root(Position(3))));
        assert_eq!(at(0, Some(3)).check(), Err(RecordError::Root(Position(0))));
        assert_eq!(at(3, Some(3)).check(), Err(RecordError::OwnParent(Position(3))));
    }

    #[test]
    fn an_unknown_format_is_refused() {
        let cluster = ClusterRecord::new(ClusterId(Uuid::from_u128(1)));
        assert_eq!(cluster.check(), Ok(()));
        for found in [1, 2, 4] {
            let of_another = ClusterRecord { format: found, ..cluster.clone() };
            assert_eq!(of_another.check(), Err(RecordError::Format { found }));
        }
    }

    #[test]
    fn positions_have_words_for_names() {
        let named = |name: &str, address: &str| PositionRecord {
            position: Position(0),
            parent: None,
            name: name.into(),
            address: address.into(),
            holder: None,
        };
        for name in ["a", "left-1", "Left_1", &"a".repeat(64)] {
            assert_eq!(named(name, "a:1").check(), Ok(()), "{name}");
        }
        for name in ["", "a b", "a/b", "..", "é", "a\n", &"a".repeat(65)] {
            let refused = RecordError::Name { position: Position(0), name: name.into() };
            assert_eq!(named(name, "").check(), Err(refused), "{name}");
        }
        assert_eq!(named("a", "a b:1").check(), Err(RecordError::Address("a b:1".into())));
    }

    #[test]
    fn addresses_are_words() {
        let replica = |addresses: &[&str]| ReplicaRecord {
            replica: ReplicaId(1),
            shard: ShardId(1),
            addresses: addresses.iter().map(|&a| a.to_owned()).collect(),
            store: StoreState::Fresh,
        };
        assert_eq!(replica(&[]).check(), Ok(()));
        assert_eq!(replica(&["node-1:7480", "[::1]:7480"]).check(), Ok(()));
        for bad in ["", "a b:1", "a\n:1", &"a".repeat(256)] {
            assert_eq!(replica(&[bad]).check(), Err(RecordError::Address(bad.to_owned())));
        }
        assert!(matches!(replica(&["a:1"; 9]).check(), Err(RecordError::TooManyAddresses { count: 9, .. })));
    }

    #[test]
    fn a_color_has_as_many_shards_as_its_width() {
        let color = |width, shards: &[u32]| ColorRecord {
            color: Color(1),
            name: ColorName::new("a").unwrap(),
            owner: Position(0),
            width,
            shards: shards.iter().copied().map(ShardId).collect(),
            retention: Retention::default(),
        };
        let most: Vec<u32> = (1..=65).collect();
        for (width, shards) in [(1, &[4][..]), (3, &[1, 2, 9][..]), (64, &most[..64])] {
            assert_eq!(color(width, shards).check(), Ok(()));
        }
        let wrong = [(0, &[][..]), (1, &[][..]), (1, &[1, 2]), (2, &[1]), (2, &[2, 1]), (2, &[1, 1]), (65, &most)];
        for (width, shards) in wrong {
            assert!(matches!(color(width, shards).check(), Err(RecordError::Width { .. })), "{width} {shards:?}");
        }
    }
}
