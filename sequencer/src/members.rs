//! Sets of a view's members, by their place in it.
//!
//! Three rules need *all* members of the views in force: a token's completion, an entry's commit, a tail's
//! confirmation. While a shard has one view that never changes, that is everyone in it; the leaf says so in one place
//! (`Leaf::in_force`).

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

    /// Adds the member and returns whether it was not in the set before.
    pub(crate) fn insert(&mut self, member: usize) -> bool {
        let before = self.0;
        self.0 |= 1 << member;
        self.0 != before
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
        (0..MAX_MEMBERS).filter(move |member| self.0 & 1 << member != 0)
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
