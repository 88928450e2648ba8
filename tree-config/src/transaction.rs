//! What may be asked of a store at once: conditions, and changes that are made all together or not at all.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::key::{Key, Value};
use crate::metadata::Revision;
use crate::record::RecordError;

/// The most conditions of a transaction, and the most changes: etcd's own limit, as it comes, less the one that a backend
/// adds.
pub const MAX_OPERATIONS: usize = 127;

/// Conditions and changes; made only if every condition holds, and then all at once.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transaction {
    /// Each key must be at this version, or absent where there is none. No key twice.
    pub conditions: Vec<(Key, Option<Revision>)>,
    /// Facts to keep, in place of what is there. No key twice, here and in `deletes` together.
    pub puts: Vec<(Key, Value)>,
    /// Keys to forget; one that is absent already is passed by.
    pub deletes: Vec<Key>,
}

/// A transaction that no store takes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransactionError {
    /// It changes nothing.
    #[error("the transaction changes nothing")]
    Empty,
    /// It is too large.
    #[error(
        "the transaction has {conditions} conditions and {changes} changes, and may have {MAX_OPERATIONS} each: split it"
    )]
    TooLarge {
        /// How many conditions it has.
        conditions: usize,
        /// How many changes it makes.
        changes: usize,
    },
    /// Two conditions, or two changes, name one key.
    #[error("the transaction names {0} twice")]
    Twice(Key),
    /// The fact does not belong under its key.
    #[error("the transaction puts a record of another thing under {0}")]
    Misplaced(Key),
    /// A record breaks one of its own rules.
    #[error("{key} cannot be stored: {why}")]
    Record {
        /// Where it was to go.
        key: Key,
        /// The rule.
        why: RecordError,
    },
}

impl Transaction {
    /// A transaction without conditions or changes, to add to.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only if `key` is still at `version`.
    #[must_use]
    pub fn when(mut self, key: Key, version: Revision) -> Self {
        self.conditions.push((key, Some(version)));
        self
    }

    /// Only if there is nothing under `key`.
    #[must_use]
    pub fn when_absent(mut self, key: Key) -> Self {
        self.conditions.push((key, None));
        self
    }

    /// Keep `value` under `key`.
    #[must_use]
    pub fn put(mut self, key: Key, value: impl Into<Value>) -> Self {
        self.puts.push((key, value.into()));
        self
    }

    /// Forget what is under `key`.
    #[must_use]
    pub fn delete(mut self, key: Key) -> Self {
        self.deletes.push(key);
        self
    }

    /// Checks what every backend MUST check before it looks at the conditions: size, keys, and each record's rules.
    ///
    /// # Errors
    /// The first rule that is broken. Nothing of such a transaction may be done.
    pub fn check(&self) -> Result<(), TransactionError> {
        let (conditions, changes) = (self.conditions.len(), self.puts.len() + self.deletes.len());
        if changes == 0 {
            return Err(TransactionError::Empty);
        }
        if conditions > MAX_OPERATIONS || changes > MAX_OPERATIONS {
            return Err(TransactionError::TooLarge { conditions, changes });
        }
        let mut seen = BTreeSet::new();
        if let Some((key, _)) = self.conditions.iter().find(|(key, _)| !seen.insert(key)) {
            return Err(TransactionError::Twice(key.clone()));
        }
        seen.clear();
        let mut changed = self.puts.iter().map(|(key, _)| key).chain(&self.deletes);
        if let Some(key) = changed.find(|key| !seen.insert(key)) {
            return Err(TransactionError::Twice(key.clone()));
        }
        for (key, value) in &self.puts {
            if !value.belongs_under(key) {
                return Err(TransactionError::Misplaced(key.clone()));
            }
            value.check().map_err(|why| TransactionError::Record { key: key.clone(), why })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flexlog_protocol::{Color, Position};

    use super::*;
    use crate::name::ColorName;
    use crate::record::PositionRecord;

    fn name(i: usize) -> Key {
        Key::ColorName(ColorName::new(format!("n{i}")).unwrap())
    }

    #[test]
    fn size_is_bounded_on_both_sides() {
        assert_eq!(Transaction::new().when_absent(name(0)).check(), Err(TransactionError::Empty));
        let puts = |n| (0..n).fold(Transaction::new(), |t, i| t.put(name(i), Color(1)));
        assert_eq!(puts(127).check(), Ok(()));
        assert_eq!(puts(128).check(), Err(TransactionError::TooLarge { conditions: 0, changes: 128 }));
        let whens = |n| (0..n).fold(puts(1), |t, i| t.when_absent(name(i)));
        assert_eq!(whens(127).check(), Ok(()));
        assert_eq!(whens(128).check(), Err(TransactionError::TooLarge { conditions: 128, changes: 1 }));
    }

    #[test]
    fn a_key_comes_once() {
        let twice = Err(TransactionError::Twice(name(0)));
        let one = Transaction::new().put(name(0), Color(1));
        assert_eq!(one.clone().put(name(0), Color(2)).check(), twice);
        assert_eq!(one.clone().delete(name(0)).check(), twice);
        assert_eq!(one.clone().when_absent(name(0)).when(name(0), Revision(1)).check(), twice);
        assert_eq!(one.when_absent(name(0)).check(), Ok(()));
    }

    #[test]
    fn records_keep_their_rules_and_their_place() {
        let root = PositionRecord {
            position: Position(0),
            parent: None,
            name: "a".into(),
            address: String::new(),
            holder: None,
        };
        let key = Key::Position(Position(1));
        let misplaced = Transaction::new().put(key.clone(), root.clone());
        assert_eq!(misplaced.check(), Err(TransactionError::Misplaced(key.clone())));
        let orphan = Transaction::new().put(key.clone(), PositionRecord { position: Position(1), ..root });
        assert_eq!(orphan.check(), Err(TransactionError::Record { key, why: RecordError::Root(Position(1)) }));
    }
}
