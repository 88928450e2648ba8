//! The whole tree at once: who is above whom, and where wide colors go.

use std::cmp::Reverse;

use flexlog_protocol::{Color, Position, ReplicaId, ShardId};

use super::{OperationError, list_all};
use crate::key::{Key, Kind, Value};
use crate::metadata::Metadata;
use crate::record::{MAX_WIDTH, PositionRecord, ReplicaRecord, ShardRecord};

/// The positions, shards and replicas of a cluster, each in ascending order of their ids.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tree {
    /// All positions.
    pub positions: Vec<PositionRecord>,
    /// All shards.
    pub shards: Vec<ShardRecord>,
    /// All replicas.
    pub replicas: Vec<ReplicaRecord>,
}

impl Tree {
    /// The position of this id.
    #[must_use]
    pub fn position(&self, position: Position) -> Option<&PositionRecord> {
        let at = self.positions.binary_search_by_key(&position, |record| record.position).ok()?;
        self.positions.get(at)
    }

    /// The position of this name.
    #[must_use]
    pub fn position_named(&self, name: &str) -> Option<&PositionRecord> {
        self.positions.iter().find(|record| record.name == name)
    }

    /// The shard of this id.
    #[must_use]
    pub fn shard(&self, shard: ShardId) -> Option<&ShardRecord> {
        let at = self.shards.binary_search_by_key(&shard, |record| record.shard).ok()?;
        self.shards.get(at)
    }

    /// The replica of this id.
    #[must_use]
    pub fn replica(&self, replica: ReplicaId) -> Option<&ReplicaRecord> {
        let at = self.replicas.binary_search_by_key(&replica, |record| record.replica).ok()?;
        self.replicas.get(at)
    }

    /// Forgets a replica that was replaced; returns what was known of it.
    pub fn remove_replica(&mut self, replica: ReplicaId) -> Option<ReplicaRecord> {
        let at = self.replicas.iter().position(|record| record.replica == replica)?;
        Some(self.replicas.remove(at))
    }

    /// Takes a record in, in place of the one before. Says whether that is another one. Records of other kinds than a tree
    /// is made of change nothing, nor does one that is older than the one before: of an earlier claim, or view.
    pub fn take(&mut self, value: &Value) -> bool {
        match value {
            Value::Position(record) => {
                let epoch = |record: &PositionRecord| record.holder.as_ref().map(|holder| holder.epoch);
                let is_older = |before: &PositionRecord| epoch(record) < epoch(before);
                put(&mut self.positions, record, |record| record.position, is_older)
            }
            Value::Shard(record) => {
                let is_older = |before: &ShardRecord| record.view.number < before.view.number;
                put(&mut self.shards, record, |record| record.shard, is_older)
            }
            Value::Replica(record) => put(&mut self.replicas, record, |record| record.replica, |_| false),
            Value::Cluster(_) | Value::Color(_) | Value::ColorName(_) => false,
        }
    }

    /// The positions right below one.
    pub fn children(&self, position: Position) -> impl Iterator<Item = &PositionRecord> {
        self.positions.iter().filter(move |record| record.parent == Some(position))
    }

    /// The shards that a position leads itself.
    pub fn led_by(&self, position: Position) -> impl Iterator<Item = &ShardRecord> {
        self.shards.iter().filter(move |record| record.leaf == position)
    }

    /// The replicas of a shard, whether or not they are in its view.
    pub fn replicas_of(&self, shard: ShardId) -> impl Iterator<Item = &ReplicaRecord> {
        self.replicas.iter().filter(move |record| record.shard == shard)
    }

    /// The positions from one up to the root, itself first.
    pub fn path(&self, position: Position) -> impl Iterator<Item = &PositionRecord> {
        let above = |record: &&PositionRecord| record.parent.and_then(|parent| self.position(parent));
        // Records that lead around in a circle are refused at creation; should there be some, this ends all the same.
        std::iter::successors(self.position(position), above).take(self.positions.len())
    }

    /// The shards that a position leads itself, or positions below it lead, in ascending order.
    pub fn shards_below(&self, owner: Position) -> impl Iterator<Item = &ShardRecord> {
        self.shards.iter().filter(move |shard| self.path(shard.leaf).any(|record| record.position == owner))
    }

    /// Shards for a color of this width below `owner`, in ascending order.
    ///
    /// Each color draws its own, so many colors use all shards alike; the same color draws the same ones each time.
    /// `color` is the id that it is to have, or any other number that differs from color to color.
    ///
    /// # Errors
    /// [`OperationError::Missing`] without the owner; [`OperationError::Width`], [`OperationError::TooWide`].
    pub fn place(&self, owner: Position, width: u32, color: Color) -> Result<Vec<ShardId>, OperationError> {
        let record = self.position(owner).ok_or(OperationError::Missing(Key::Position(owner)))?;
        let mut shards: Vec<ShardId> = self.shards_below(owner).map(|record| record.shard).collect();
        if !(1..=MAX_WIDTH).contains(&width) {
            return Err(OperationError::Width(width));
        }
        if shards.len() < width as usize {
            return Err(OperationError::TooWide { owner: record.name.clone(), shards: shards.len(), width });
        }
        // Rendezvous hashing: another shard in the tree takes its part of the new colors, and moves none between others.
        shards.sort_unstable_by_key(|shard| (Reverse(weight(color, *shard)), *shard));
        shards.truncate(width as usize);
        shards.sort_unstable();
        Ok(shards)
    }
}

fn put<R: Clone + PartialEq, I: Ord>(
    records: &mut Vec<R>,
    record: &R,
    id: impl Fn(&R) -> I,
    is_older: impl Fn(&R) -> bool,
) -> bool {
    match records.binary_search_by(|known| id(known).cmp(&id(record))) {
        Ok(at) if records[at] == *record || is_older(&records[at]) => return false,
        Ok(at) => records[at] = record.clone(),
        Err(at) => records.insert(at, record.clone()),
    }
    true
}

/// How much a color is drawn to a shard.
fn weight(color: Color, shard: ShardId) -> u64 {
    mix(color.0 ^ mix(u64::from(shard.0)))
}

/// Spreads the bits of a number over all of it: the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// Reads the whole tree. Its records are not all of one moment; but the tree itself is fixed once the cluster is there,
/// so only holders, addresses, views and store states may be newer in one than in another.
///
/// # Errors
/// Those of reading.
pub async fn tree(store: &(impl Metadata + ?Sized)) -> Result<Tree, OperationError> {
    Ok(Tree {
        positions: all(store, Kind::Position).await?,
        shards: all(store, Kind::Shard).await?,
        replicas: all(store, Kind::Replica).await?,
    })
}

async fn all<T>(store: &(impl Metadata + ?Sized), kind: Kind) -> Result<Vec<T>, OperationError>
where
    T: TryFrom<Value>,
{
    let found = list_all(store, kind).await?.into_iter();
    found.map(|(key, value)| T::try_from(value).map_err(|_| OperationError::Misplaced(key))).collect()
}

/// As [`Tree::place`], of the tree as it is in the store. Who places many colors reads the tree once instead.
///
/// # Errors
/// Those of [`Tree::place`] and of reading.
pub async fn place(
    store: &(impl Metadata + ?Sized),
    owner: Position,
    width: u32,
    color: Color,
) -> Result<Vec<ShardId>, OperationError> {
    tree(store).await?.place(owner, width, color)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// root(0) over left(1) and right(2); left leads shards 1 to 4, right 5 to 8, the root 9.
    fn example() -> Tree {
        let at = |position: u32, parent: Option<u32>, name: &str| PositionRecord {
            position: Position(position),
            parent: parent.map(Position),
            name: name.into(),
            address: String::new(),
            holder: None,
        };
        let led = |shard: u32, leaf: u32| ShardRecord {
            shard: ShardId(shard),
            leaf: Position(leaf),
            view: ShardRecord::first_view(vec![ReplicaId(shard)]),
            min_view: 1,
        };
        let leaf_of = |shard| [1, 2, 0][(shard as usize - 1) / 4];
        Tree {
            positions: vec![at(0, None, "root"), at(1, Some(0), "left"), at(2, Some(0), "right")],
            shards: (1..=9).map(|shard| led(shard, leaf_of(shard))).collect(),
            replicas: Vec::new(),
        }
    }

    #[test]
    fn records_are_taken_in_unless_they_are_older() {
        use flexlog_protocol::{Epoch, ViewNumber};
        use uuid::Uuid;

        let mut tree = example();
        let held = |epoch| {
            let holder = crate::record::Holder { epoch: Epoch(epoch), uuid: Uuid::nil(), address: "h:1".into() };
            PositionRecord { holder: Some(holder), ..example().positions[1].clone() }
        };
        let unchanged = Value::from(example().positions[1].clone());
        assert!(!tree.take(&unchanged));
        assert!(tree.take(&held(4).into()) && !tree.take(&held(4).into()) && !tree.take(&held(3).into()));
        assert!(!tree.take(&unchanged), "from before the first claim");
        assert_eq!(tree.position(Position(1)), Some(&held(4)));
        let viewed = |number| {
            let mut record = example().shards[2].clone();
            record.view.number = ViewNumber(number);
            record
        };
        assert!(tree.take(&viewed(7).into()) && !tree.take(&viewed(6).into()));
        assert_eq!(tree.shard(ShardId(3)), Some(&viewed(7)));
        for replica in [2, 1].map(ReplicaId) {
            let record = ReplicaRecord {
                replica,
                shard: ShardId(1),
                addresses: Vec::new(),
                store: crate::record::StoreState::Fresh,
            };
            assert!(tree.take(&record.clone().into()));
            assert_eq!(tree.replica(replica), Some(&record));
        }
        assert!(!tree.take(&Value::ColorName(Color(1))));
    }

    #[test]
    fn below_is_oneself_and_all_under_it() {
        let tree = example();
        let below = |position| tree.shards_below(Position(position)).map(|s| s.shard.0).collect::<Vec<_>>();
        assert_eq!(below(0), (1..=9).collect::<Vec<_>>());
        assert_eq!((below(1), below(2)), (vec![1, 2, 3, 4], vec![5, 6, 7, 8]));
        assert_eq!(below(7), Vec::<u32>::new());
        assert_eq!(tree.led_by(Position(0)).map(|s| s.shard).collect::<Vec<_>>(), [ShardId(9)]);
        let path: Vec<&str> = tree.path(Position(2)).map(|record| record.name.as_str()).collect();
        assert_eq!(path, ["right", "root"]);
    }

    #[test]
    fn colors_are_spread_over_what_is_below_their_owner() {
        let tree = example();
        let mut by_shard: BTreeMap<ShardId, usize> = BTreeMap::new();
        for color in (1..=4000).map(Color) {
            let shards = tree.place(Position(1), 2, color).unwrap();
            assert_eq!(shards, tree.place(Position(1), 2, color).unwrap());
            assert!(shards.len() == 2 && shards[0] < shards[1], "{shards:?}");
            for shard in shards {
                *by_shard.entry(shard).or_default() += 1;
            }
        }
        assert!(by_shard.keys().copied().eq((1..=4).map(ShardId)), "{by_shard:?}");
        // 2000 each on average; the deviation is about 32.
        assert!(by_shard.values().all(|count| (1800..2200).contains(count)), "{by_shard:?}");
    }

    #[test]
    fn a_new_shard_moves_no_color_between_the_others() {
        let after = example();
        let mut before = example();
        before.shards.pop();
        let (mut kept, mut moved) = (0, 0);
        for color in (1..=900).map(Color) {
            let place = |tree: &Tree| tree.place(Position(0), 1, color).unwrap()[0];
            if place(&after) == place(&before) {
                kept += 1
            } else {
                moved += 1
            }
            assert!(place(&after) == place(&before) || place(&after) == ShardId(9));
        }
        assert!(kept > 700 && moved > 50, "{kept} {moved}");
    }

    #[test]
    fn a_width_that_does_not_fit_is_refused() {
        let tree = example();
        assert_eq!(tree.place(Position(0), 9, Color(1)).unwrap().len(), 9);
        let too_wide = OperationError::TooWide { owner: "left".into(), shards: 4, width: 5 };
        let says = too_wide.to_string();
        assert!(says.contains("'left'") && says.contains('4') && says.contains('5'), "{says}");
        assert_eq!(tree.place(Position(1), 5, Color(1)), Err(too_wide));
        assert_eq!(tree.place(Position(1), 0, Color(1)), Err(OperationError::Width(0)));
        assert_eq!(tree.place(Position(1), 65, Color(1)), Err(OperationError::Width(65)));
        assert_eq!(tree.place(Position(3), 1, Color(1)), Err(OperationError::Missing(Key::Position(Position(3)))));
    }
}
