//! Words that both models use.

use std::fmt;

/// A set of replicas or tokens, a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Set(pub(crate) u8);

impl Set {
    pub(crate) fn one(item: usize) -> Self {
        Self(1 << item)
    }

    pub(crate) fn has(self, item: usize) -> bool {
        self.0 & (1 << item) != 0
    }

    pub(crate) fn with(self, item: usize) -> Self {
        Self(self.0 | (1 << item))
    }

    pub(crate) fn without(self, item: usize) -> Self {
        Self(self.0 & !(1 << item))
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn covers(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..8).filter(move |item| self.has(*item))
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A sequence number. Epochs begin at 1: the default is below every number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Number {
    pub(crate) epoch: u8,
    pub(crate) counter: u8,
}

impl Number {
    pub(crate) const NONE: Self = Self { epoch: 0, counter: 0 };

    pub(crate) fn next(self) -> Self {
        Self { counter: self.counter + 1, ..self }
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.counter)
    }
}
