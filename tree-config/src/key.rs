//! What a store of metadata maps from and to: typed keys, and the record that belongs under each.

use std::fmt;

use flexlog_protocol::{Color, Position, ReplicaId, ShardId};
use serde::{Deserialize, Serialize};

use crate::name::ColorName;
use crate::record::{ClusterRecord, ColorRecord, PositionRecord, RecordError, ReplicaRecord, ShardRecord};

/// Where a fact is kept. Ordered by kind, and within one by id (names: by their bytes).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Key {
    /// The cluster itself.
    Cluster,
    /// A place of the tree.
    Position(Position),
    /// A shard.
    Shard(ShardId),
    /// A replica.
    Replica(ReplicaId),
    /// A color, by its id.
    Color(Color),
    /// The color of this name.
    ColorName(ColorName),
}

/// A family of keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// [`Key::Cluster`].
    Cluster,
    /// [`Key::Position`].
    Position,
    /// [`Key::Shard`].
    Shard,
    /// [`Key::Replica`].
    Replica,
    /// [`Key::Color`].
    Color,
    /// [`Key::ColorName`].
    ColorName,
}

/// A fact.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// Under [`Key::Cluster`].
    Cluster(ClusterRecord),
    /// Under [`Key::Position`].
    Position(PositionRecord),
    /// Under [`Key::Shard`].
    Shard(ShardRecord),
    /// Under [`Key::Replica`].
    Replica(ReplicaRecord),
    /// Under [`Key::Color`].
    Color(ColorRecord),
    /// Under [`Key::ColorName`]: the color of that name.
    ColorName(Color),
}

impl Key {
    /// The family that it belongs to.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Cluster => Kind::Cluster,
            Self::Position(_) => Kind::Position,
            Self::Shard(_) => Kind::Shard,
            Self::Replica(_) => Kind::Replica,
            Self::Color(_) => Kind::Color,
            Self::ColorName(_) => Kind::ColorName,
        }
    }

    /// At or below every key of `kind`, above every key of the kinds before it: where a range over the kind starts.
    #[must_use]
    pub fn lowest(kind: Kind) -> Self {
        match kind {
            Kind::Cluster => Self::Cluster,
            Kind::Position => Self::Position(Position(0)),
            Kind::Shard => Self::Shard(ShardId(0)),
            Kind::Replica => Self::Replica(ReplicaId(0)),
            Kind::Color => Self::Color(Color(0)),
            Kind::ColorName => Self::ColorName(ColorName::lowest()),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => write!(f, "the cluster record"),
            Self::Position(position) => write!(f, "position {position}"),
            Self::Shard(shard) => write!(f, "shard {shard}"),
            Self::Replica(replica) => write!(f, "replica {replica}"),
            Self::Color(color) => write!(f, "color {color}"),
            Self::ColorName(name) => write!(f, "the color name '{name}'"),
        }
    }
}

/// The fact is not of the kind that was expected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a record of another kind is stored there")]
pub struct WrongKind;

macro_rules! value {
    ($($variant:ident($record:ty)),+) => {
        $(
            impl From<$record> for Value {
                fn from(record: $record) -> Self {
                    Self::$variant(record)
                }
            }

            impl TryFrom<Value> for $record {
                type Error = WrongKind;

                fn try_from(value: Value) -> Result<Self, WrongKind> {
                    match value {
                        Value::$variant(record) => Ok(record),
                        _ => Err(WrongKind),
                    }
                }
            }
        )+
    };
}

value!(
    Cluster(ClusterRecord),
    Position(PositionRecord),
    Shard(ShardRecord),
    Replica(ReplicaRecord),
    Color(ColorRecord),
    ColorName(Color)
);

impl Value {
    /// Whether this fact belongs under `key`: of its kind, and about the very thing that the key names.
    #[must_use]
    pub fn belongs_under(&self, key: &Key) -> bool {
        match (self, key) {
            (Self::Cluster(_), Key::Cluster) | (Self::ColorName(_), Key::ColorName(_)) => true,
            (Self::Position(record), Key::Position(position)) => record.position == *position,
            (Self::Shard(record), Key::Shard(shard)) => record.shard == *shard,
            (Self::Replica(record), Key::Replica(replica)) => record.replica == *replica,
            (Self::Color(record), Key::Color(color)) => record.color == *color,
            _ => false,
        }
    }

    /// Checks the record's own rules.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self) -> Result<(), RecordError> {
        match self {
            Self::Cluster(record) => record.check(),
            Self::Position(record) => record.check(),
            Self::Shard(record) => record.check(),
            Self::Replica(record) => record.check(),
            Self::Color(record) => record.check(),
            Self::ColorName(Color(0)) => Err(RecordError::Zero { what: "the color id" }),
            Self::ColorName(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_key_of_a_kind_parts_it_from_the_kind_before() {
        let kinds = [Kind::Cluster, Kind::Position, Kind::Shard, Kind::Replica, Kind::Color, Kind::ColorName];
        let highest = [
            Key::Cluster,
            Key::Position(Position(u32::MAX)),
            Key::Shard(ShardId(u32::MAX)),
            Key::Replica(ReplicaId(u32::MAX)),
            Key::Color(Color(u64::MAX)),
            Key::ColorName(ColorName::new("\u{10ffff}").unwrap()),
        ];
        for (i, kind) in kinds.into_iter().enumerate() {
            assert_eq!(Key::lowest(kind).kind(), kind);
            assert!(Key::lowest(kind) <= highest[i]);
            assert!(i == 0 || highest[i - 1] < Key::lowest(kind), "{kind:?}");
        }
    }

    #[test]
    fn a_fact_belongs_under_its_own_key_only() {
        let root = PositionRecord {
            position: Position(0),
            parent: None,
            name: "a".into(),
            address: String::new(),
            holder: None,
        };
        let value = Value::from(root.clone());
        assert!(value.belongs_under(&Key::Position(Position(0))));
        assert!(!value.belongs_under(&Key::Position(Position(1))));
        assert!(!value.belongs_under(&Key::Shard(ShardId(0))));
        assert_eq!(PositionRecord::try_from(value.clone()), Ok(root));
        assert_eq!(Color::try_from(value), Err(WrongKind));
    }
}
