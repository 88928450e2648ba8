//! The names of things, one type each, so that no two of them can be mixed up.
//!
//! All arithmetic on numbers of the log lives in this file: the off-by-one risk has one home.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

id!(
    /// A totally ordered log. Ids are handed out by the metadata store, see [`Color::new`]; 0 names none.
    Color(u64)
);
id!(
    /// One tenure of one process at a position of the tree. Fresh for each claim, from 1 up; 0 is before any.
    Epoch(u32)
);
id!(
    /// A place in a shard's log of entries, contiguous from 1 across leaf epochs; 0 is before the first.
    Lsn(u64)
);
id!(
    /// A set of replicas that hold the same records, under one leaf.
    ShardId(u32)
);
id!(
    /// One replica of the cluster, from 1 up.
    ReplicaId(u32)
);
id!(
    /// A place in the ordering tree. The root is 0.
    Position(u32)
);
id!(
    /// The number of a view; a shard's views are counted from 1.
    ViewNumber(u32)
);
id!(
    /// A set of nodes that share one metadata store. Zero stands for "any" where a client does not know it yet.
    ClusterId(Uuid)
);
id!(
    /// The identity of one replica's store, drawn when the store is formatted.
    StoreId(Uuid)
);

impl Color {
    /// Bits of an id that count colors.
    const SERIAL_BITS: u32 = 40;
    /// The bit that says that the color is on several shards.
    const WIDE: u64 = 1 << 63;
    /// The largest serial.
    pub const MAX_SERIAL: u64 = (1 << Self::SERIAL_BITS) - 1;
    /// The largest position that can own colors.
    pub const MAX_OWNER: Position = Position((1 << (63 - Self::SERIAL_BITS)) - 1);

    /// The id of a color: what is fixed at its creation and everyone on the way of its numbers must know is in the id
    /// itself, so that nobody has to look it up.
    ///
    /// `owner` counts for it, `wide` says that it is on several shards, and `serial` tells it from all others of the
    /// cluster, from 1 up. `None` where the owner or the serial is out of range.
    #[must_use]
    pub const fn new(owner: Position, wide: bool, serial: u64) -> Option<Self> {
        if owner.0 > Self::MAX_OWNER.0 || serial == 0 || serial > Self::MAX_SERIAL {
            return None;
        }
        let wide = if wide { Self::WIDE } else { 0 };
        Some(Self(wide | (owner.0 as u64) << Self::SERIAL_BITS | serial))
    }

    /// The position that counts for it.
    #[must_use]
    pub const fn owner(self) -> Position {
        Position(((self.0 & !Self::WIDE) >> Self::SERIAL_BITS) as u32)
    }

    /// Whether it is on several shards. One that is not has all its numbers in the log of one shard, in order and
    /// without gaps.
    #[must_use]
    pub const fn is_wide(self) -> bool {
        self.0 & Self::WIDE != 0
    }

    /// What tells it from the other colors of the cluster.
    #[must_use]
    pub const fn serial(self) -> u64 {
        self.0 & Self::MAX_SERIAL
    }
}

impl Lsn {
    /// The place right after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Epoch {
    /// The epoch after this one.
    ///
    /// Returns `None` after the last of the 2³² epochs.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

/// A number of a color's log: `epoch | counter`, ordered as the u64 that holds both, written `epoch.counter`.
///
/// Counters are contiguous from 0 within an epoch. The largest counter of a record is `u32::MAX - 1`, so that the
/// exclusive end of every range of numbers is a `SeqNum` too. The number before or after another one across epochs is
/// *not* u64 arithmetic: it goes through the epoch ends that the log records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SeqNum(u64);

impl SeqNum {
    /// Below or equal to every number.
    pub const MIN: Self = Self(0);
    /// Above every number of a record.
    pub const MAX: Self = Self(u64::MAX);
    /// The most numbers that one epoch of a color has.
    pub const MAX_COUNT: u32 = u32::MAX;

    /// The number `epoch.counter`.
    #[must_use]
    pub const fn new(epoch: Epoch, counter: u32) -> Self {
        Self((epoch.0 as u64) << 32 | counter as u64)
    }

    /// The smallest number of `epoch`.
    #[must_use]
    pub const fn first_of(epoch: Epoch) -> Self {
        Self::new(epoch, 0)
    }

    /// The half that names the incarnation which handed the number out.
    #[must_use]
    pub const fn epoch(self) -> Epoch {
        Epoch((self.0 >> 32) as u32)
    }

    /// The half that counts within the epoch.
    #[must_use]
    pub const fn counter(self) -> u32 {
        self.0 as u32
    }

    /// The number `n` places further on in the same epoch, or `None` where the epoch has no such number.
    #[must_use]
    pub const fn plus(self, n: u32) -> Option<Self> {
        match self.counter().checked_add(n) {
            Some(counter) => Some(Self::new(self.epoch(), counter)),
            None => None,
        }
    }

    /// As the u64 that orders it; for storage and wire.
    #[must_use]
    pub const fn to_raw(self) -> u64 {
        self.0
    }

    /// From the u64 that orders it; for storage and wire.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
}

impl fmt::Display for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch().0, self.counter())
    }
}

impl fmt::Debug for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The text is not a number of the form `epoch.counter`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a log number: write it as epoch.counter, for example 3.17, each part from 0 to 4294967295")]
pub struct ParseSeqNumError(pub String);

impl FromStr for SeqNum {
    type Err = ParseSeqNumError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let part = |digits: &str| -> Option<u32> {
            // `parse` alone would take a leading `+`.
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            digits.parse().ok()
        };
        text.split_once('.')
            .and_then(|(epoch, counter)| Some(Self::new(Epoch(part(epoch)?), part(counter)?)))
            .ok_or_else(|| ParseSeqNumError(text.to_owned()))
    }
}

/// A client's tenure at one shard: the place of the `OpenSession` entry that began it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SessionId {
    /// The leaf epoch in which the entry was written.
    pub epoch: Epoch,
    /// The place of the entry in the shard log.
    pub lsn: Lsn,
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.lsn)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {self}")
    }
}

/// Names one append. A retry carries the same token to the same shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Token {
    /// The shard that the append was sent to.
    pub shard: ShardId,
    /// The session it belongs to.
    pub session: SessionId,
    /// Its place in the session, from 1 up.
    pub seq: u64,
}

impl Token {
    /// The token `n` places later in the same session.
    #[must_use]
    pub fn plus(self, n: u64) -> Self {
        Self { seq: self.seq + n, ..self }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.shard, self.session, self.seq)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {self}")
    }
}

/// One process's tenure at a position: what a message must name to be heeded (I9).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Incarnation {
    /// The place in the tree.
    pub position: Position,
    /// Fresh for each claim.
    pub epoch: Epoch,
    /// Drawn by the process that claimed it, so that two claims can never be taken for one.
    pub uuid: Uuid,
}

/// The replicas that a shard's entries must reach before they commit.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct View {
    /// Which of the shard's views this is.
    pub number: ViewNumber,
    /// Its members, in ascending order, none twice.
    pub members: Vec<ReplicaId>,
}

impl View {
    /// Where `replica` stands among the members.
    #[must_use]
    pub fn index_of(&self, replica: ReplicaId) -> Option<usize> {
        self.members.iter().position(|member| *member == replica)
    }
}

/// A moment, in microseconds since the process that speaks of it started.
///
/// Cores are told the time and never ask for it. No safety property rests on it (I11).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Time(pub u64);

impl Time {
    /// This moment moved by `micros` microseconds.
    #[must_use]
    pub fn after(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_ordered_by_epoch_first() {
        assert!(SeqNum::new(Epoch(1), u32::MAX) < SeqNum::new(Epoch(2), 0));
        assert!(SeqNum::new(Epoch(2), 0) < SeqNum::new(Epoch(2), 1));
    }

    #[test]
    fn numbers_do_not_run_over_into_the_next_epoch() {
        assert_eq!(SeqNum::new(Epoch(1), u32::MAX - 1).plus(1), Some(SeqNum::new(Epoch(1), u32::MAX)));
        assert_eq!(SeqNum::new(Epoch(1), u32::MAX).plus(1), None);
    }

    #[test]
    fn text_that_is_no_number_is_refused() {
        for text in ["", ".", "1", "1.", ".1", "1.2.3", "+1.2", "1.+2", "-1.2", "1.4294967296", "1 .2", "a.b"] {
            assert_eq!(text.parse::<SeqNum>(), Err(ParseSeqNumError(text.to_owned())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_and_raw_forms_round_trip(epoch: u32, counter: u32) {
            let n = SeqNum::new(Epoch(epoch), counter);
            prop_assert_eq!(n.to_string().parse::<SeqNum>(), Ok(n));
            prop_assert_eq!(SeqNum::from_raw(n.to_raw()), n);
            prop_assert_eq!((n.epoch(), n.counter()), (Epoch(epoch), counter));
        }
    }
}
