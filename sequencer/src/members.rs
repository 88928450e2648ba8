//! Sets of members, by their place.
//!
//! Three rules need *all* members of the views in force: a token's completion, an entry's commit, a tail's
//! confirmation. A member's place is where this leaf incarnation met it first, and never changes.

/// The most members that a view may have.
pub const MAX_MEMBERS: usize = 32;

/// Some members of a view.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct MemberSet(u32);

impl MemberSet {
    /// The first `count` members, at most [`MAX_MEMBERS`].
    pub(crate) fn first(count: usize) -> Self {
        Self((0..count.min(MAX_MEMBERS)).fold(0, |bits, member| bits | 1 << member))
    }

    /// This member alone.
    pub(crate) fn one(member: usize) -> Self {
        Self(1 << member)
    }

    /// Adds the member and returns whether it was not in the set before.
    pub(crate) fn insert(&mut self, member: usize) -> bool {
        let before = self.0;
        self.0 |= 1 << member;
        self.0 != before
    }

    /// Whether the member is in it.
    pub(crate) fn contains(self, member: usize) -> bool {
        self.0 & 1 << member != 0
    }

    /// How many members there are.
    pub(crate) fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Those of either.
    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are in this set and in `other`.
    pub(crate) fn within(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those of this set that are not in `other`.
    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The members' places in the view, ascending.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_MEMBERS).filter(move |member| self.contains(*member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_count_members_once() {
        let mut set = MemberSet::default();
        assert!(set.is_empty() && set.insert(2) && !set.insert(2) && set.insert(0));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(MemberSet::first(3).without(set).iter().collect::<Vec<_>>(), [1]);
        assert_eq!(MemberSet::first(MAX_MEMBERS).iter().count(), MAX_MEMBERS);
    }
}
