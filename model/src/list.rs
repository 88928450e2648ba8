//! A list of fixed capacity that is copied as one piece: what a state is made of, so that copying one allocates nothing.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

/// At most `N` items. Equality and hash are those of the items that are there.
#[derive(Clone, Copy)]
pub(crate) struct List<T, const N: usize> {
    items: [T; N],
    len: u8,
}

impl<T: Copy + Default, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self { items: [T::default(); N], len: 0 }
    }
}

impl<T: Copy + Default, const N: usize> List<T, N> {
    /// Puts an item behind the others. With no room left it panics: a model's bounds are too large for its lists.
    pub(crate) fn push(&mut self, item: T) {
        self.items[usize::from(self.len)] = item;
        self.len += 1;
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.len = len as u8;
        }
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        let old = *self;
        self.len = 0;
        old.iter().filter(|item| keep(item)).for_each(|item| self.push(*item));
    }

    /// Takes the first item out.
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let first = *self.first()?;
        let len = self.len();
        self.items.copy_within(1..len, 0);
        self.len -= 1;
        Some(first)
    }
}

impl<T, const N: usize> Deref for List<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items[..usize::from(self.len)]
    }
}

impl<T, const N: usize> DerefMut for List<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..usize::from(self.len)]
    }
}

impl<T: PartialEq, const N: usize> PartialEq for List<T, N> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq, const N: usize> Eq for List<T, N> {}

impl<T: Hash, const N: usize> Hash for List<T, N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<T: fmt::Debug, const N: usize> fmt::Debug for List<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// How many items two lists have in common from the front.
pub(crate) fn common_prefix<T: PartialEq>(one: &[T], other: &[T]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_does_not_count() {
        let mut list = List::<u8, 4>::default();
        (1..=4).for_each(|item| list.push(item));
        list.truncate(2);
        let mut other = List::<u8, 4>::default();
        (1..=2).for_each(|item| other.push(item));
        assert_eq!(list, other);
        list.truncate(3);
        assert_eq!(list.len(), 2);
        list.push(7);
        assert_eq!((list.pop_front(), &*list), (Some(1), &[2, 7][..]));
        list.retain(|item| *item > 2);
        assert_eq!(&*list, &[7]);
        assert_eq!(common_prefix(&[1, 2, 3], &[1, 2, 4, 5]), 2);
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn a_list_that_is_full_says_so() {
        let mut list = List::<u8, 1>::default();
        list.push(1);
        list.push(2);
    }
}
