//! What a member knows of one color: which numbers are settled, which of them name records, and what was trimmed.
//!
//! A color that is on one shard ([`narrow`]) is known from this shard's log alone. Of one that is on several ([`wide`]) the
//! log has a part, and the leaf tells how far all of it is settled. Nothing changes either but committed entries, in the
//! order of the shard log, and that word of the leaf, which stands behind the entries that it covers.

mod narrow;
mod wide;

use flexlog_protocol::{Color, Epoch, SeqNum};

pub(crate) use narrow::{Narrow, Span};
pub(crate) use wide::Wide;

/// What a number is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// At or below the trim point, which is this.
    Trimmed(SeqNum),
    /// It names a record, and the record is here.
    Record,
    /// It is settled; whether its record is here, the store knows.
    Settled,
    /// It names none and never will.
    Hole,
    /// At or above stable: not known here yet.
    Beyond,
}

/// An entry does not go on where the color's numbers ended: the shard log is not what its rules promise.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum OutOfOrder {
    #[error("the numbers from {first} on do not follow on {end}, where the color's numbers end")]
    NotNext { first: SeqNum, end: SeqNum },
    #[error(
        "the numbers from {first} on are given already, or settled on all shards, or behind the end of their epoch"
    )]
    NotFree { first: SeqNum },
    #[error("an epoch cannot end at {end}: the log has numbers behind that, or another end of it")]
    OtherEnd { end: SeqNum },
}

/// The number after this one in the order of all numbers; not one that is handed out next.
pub(crate) fn after(n: SeqNum) -> SeqNum {
    SeqNum::from_raw(n.to_raw().saturating_add(1))
}

/// The number before this one in the order of all numbers.
pub(crate) fn before(n: SeqNum) -> SeqNum {
    SeqNum::from_raw(n.to_raw().saturating_sub(1))
}

/// One color.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ColorState {
    /// On this shard alone.
    Narrow(Narrow),
    /// On several shards.
    Wide(Wide),
}

impl ColorState {
    /// One that nothing is known of.
    pub(crate) fn new(color: Color) -> Self {
        if color.is_wide() { Self::Wide(Wide::default()) } else { Self::Narrow(Narrow::default()) }
    }

    /// What is known where it is on this shard alone.
    pub(crate) fn narrow(&self) -> Option<&Narrow> {
        match self {
            Self::Narrow(state) => Some(state),
            Self::Wide(_) => None,
        }
    }

    /// Everything below this number is settled.
    pub(crate) fn stable(&self) -> SeqNum {
        match self {
            Self::Narrow(state) => state.stable(),
            Self::Wide(state) => state.stable(),
        }
    }

    /// What `n` is.
    pub(crate) fn place(&self, n: SeqNum) -> Place {
        match self {
            Self::Narrow(state) => state.place(n),
            Self::Wide(state) => state.place(n),
        }
    }

    /// The exclusive end of the last epoch with a number of this shard or an end, and whether it is closed.
    pub(crate) fn end(&self) -> Option<(SeqNum, bool)> {
        match self {
            Self::Narrow(state) => state.end(),
            Self::Wide(state) => state.end(),
        }
    }

    pub(crate) fn trim_point(&self) -> Option<SeqNum> {
        match self {
            Self::Narrow(state) => state.trim_point(),
            Self::Wide(state) => state.trim_point(),
        }
    }

    /// `count` numbers from `first` on are given to records.
    pub(crate) fn assign(&mut self, first: SeqNum, count: u32) -> Result<(), OutOfOrder> {
        match self {
            Self::Narrow(state) => state.assign(first, count),
            Self::Wide(state) => state.assign(first, count),
        }
    }

    /// `count` numbers from `first` on name no record.
    pub(crate) fn hole(&mut self, first: SeqNum, count: u32) -> Result<(), OutOfOrder> {
        match self {
            Self::Narrow(state) => state.hole(first, count),
            Self::Wide(state) => state.hole(first, count),
        }
    }

    /// The epoch of `end` has no number from `end` on, and the color goes on in `next`.
    pub(crate) fn end_epoch(&mut self, end: SeqNum, next: Epoch) -> Result<(), OutOfOrder> {
        match self {
            Self::Narrow(state) => state.end_epoch(end, next),
            Self::Wide(state) => state.end_epoch(end, next),
        }
    }

    /// Everything at or below `upto` is gone. Returns whether that is news.
    pub(crate) fn trim(&mut self, upto: SeqNum) -> bool {
        match self {
            Self::Narrow(state) => state.trim(upto),
            Self::Wide(state) => state.trim(upto),
        }
    }
}
