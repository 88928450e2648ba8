//! What the facts are called in etcd.
//!
//! | name, behind the prefix and a `/` | what it is |
//! |---|---|
//! | `format` | the gate, see [`super`] |
//! | `place` | written by a transaction that may have nothing else to write; of no meaning |
//! | `0/` | the cluster |
//! | `1/`, `2/`, `3/` and ten digits | a position, a shard, a replica |
//! | `4/` and twenty digits | a color |
//! | `5/` and a name | the color of that name |
//!
//! Digits are decimal with leading zeros, so that etcd's order, that of the bytes, is the order of the keys.

use flexlog_protocol::{Color, Position, ReplicaId, ShardId};

use crate::ColorName;
use crate::key::{Key, Kind};

#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// Ends with a `/`.
    prefix: String,
}

fn digit(kind: Kind) -> u8 {
    match kind {
        Kind::Cluster => b'0',
        Kind::Position => b'1',
        Kind::Shard => b'2',
        Kind::Replica => b'3',
        Kind::Color => b'4',
        Kind::ColorName => b'5',
    }
}

/// A number of exactly `width` digits.
fn number(text: &str, width: usize) -> Option<u64> {
    (text.len() == width && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

impl Keys {
    /// Names below `prefix`, or what is wrong with it.
    pub(super) fn new(prefix: &str) -> Result<Self, String> {
        let prefix = prefix.trim_end_matches('/');
        if prefix.is_empty() || prefix.len() > 255 || prefix.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err("its prefix must have 1 to 255 bytes and no spaces: write for example flexlog/demo".to_owned());
        }
        Ok(Self { prefix: format!("{prefix}/") })
    }

    pub(super) fn gate(&self) -> Vec<u8> {
        format!("{}format", self.prefix).into_bytes()
    }

    pub(super) fn place(&self) -> Vec<u8> {
        format!("{}place", self.prefix).into_bytes()
    }

    /// Where all names begin and, excluded, end.
    pub(super) fn all(&self) -> (Vec<u8>, Vec<u8>) {
        (self.prefix.clone().into_bytes(), after_slash(self.prefix.clone().into_bytes()))
    }

    fn start(&self, kind: Kind) -> Vec<u8> {
        let mut name = self.prefix.clone().into_bytes();
        name.extend([digit(kind), b'/']);
        name
    }

    pub(super) fn of(&self, key: &Key) -> Vec<u8> {
        let mut name = self.start(key.kind());
        match key {
            Key::Cluster => {}
            Key::Position(Position(id)) | Key::Shard(ShardId(id)) | Key::Replica(ReplicaId(id)) => {
                name.extend(format!("{id:010}").bytes());
            }
            Key::Color(Color(id)) => name.extend(format!("{id:020}").bytes()),
            Key::ColorName(text) => name.extend(text.as_str().bytes()),
        }
        name
    }

    pub(super) fn parse(&self, name: &[u8]) -> Option<Key> {
        let name = std::str::from_utf8(name).ok()?.strip_prefix(&self.prefix)?;
        let (kind, id) = name.split_once('/')?;
        let short = || number(id, 10).and_then(|id| u32::try_from(id).ok());
        match kind {
            "0" => id.is_empty().then_some(Key::Cluster),
            "1" => short().map(|id| Key::Position(Position(id))),
            "2" => short().map(|id| Key::Shard(ShardId(id))),
            "3" => short().map(|id| Key::Replica(ReplicaId(id))),
            "4" => number(id, 20).map(|id| Key::Color(Color(id))),
            "5" => ColorName::new(id).ok().map(Key::ColorName),
            _ => None,
        }
    }

    /// Where the keys of `kind` above `after` begin and, excluded, end.
    pub(super) fn range(&self, kind: Kind, after: Option<&Key>) -> (Vec<u8>, Vec<u8>) {
        let start = self.start(kind);
        let from = match after {
            Some(after) if *after >= Key::lowest(kind) => {
                let mut from = self.of(after);
                from.push(0);
                from
            }
            _ => start.clone(),
        };
        (from, after_slash(start))
    }
}

/// Above all names that begin with this one, which ends with a slash.
fn after_slash(mut name: Vec<u8>) -> Vec<u8> {
    if let Some(last) = name.last_mut() {
        *last = b'/' + 1;
    }
    name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_key() -> impl Strategy<Value = Key> {
        prop_oneof![
            Just(Key::Cluster),
            any::<u32>().prop_map(|id| Key::Position(Position(id))),
            any::<u32>().prop_map(|id| Key::Shard(ShardId(id))),
            any::<u32>().prop_map(|id| Key::Replica(ReplicaId(id))),
            any::<u64>().prop_map(|id| Key::Color(Color(id))),
            (0..300u64).prop_map(|id| Key::Color(Color(id))),
            "[a-c/\u{e9}\u{10ffff}]{1,4}".prop_map(|text| Key::ColorName(ColorName::new(text).unwrap())),
        ]
    }

    proptest! {
        #[test]
        fn names_are_read_back_and_ordered_as_keys(a in any_key(), b in any_key()) {
            let keys = Keys::new("flexlog/demo").unwrap();
            prop_assert_eq!(keys.parse(&keys.of(&a)), Some(a.clone()));
            prop_assert_eq!(keys.of(&a).cmp(&keys.of(&b)), a.cmp(&b));
            let (from, to) = keys.all();
            prop_assert!(from <= keys.of(&a) && keys.of(&a) < to);
        }

        #[test]
        fn a_range_has_what_is_above_and_of_the_kind(a in any_key(), after in proptest::option::of(any_key()), k in 0..6usize) {
            let kind = [Kind::Cluster, Kind::Position, Kind::Shard, Kind::Replica, Kind::Color, Kind::ColorName][k];
            let keys = Keys::new("p").unwrap();
            let (from, to) = keys.range(kind, after.as_ref());
            let inside = from <= keys.of(&a) && keys.of(&a) < to;
            // At `lowest` itself nothing is asked for; no name is as low as the bound of the names.
            let above = after.as_ref().is_none_or(|after| *after < Key::lowest(kind) || a > *after);
            prop_assert_eq!(inside, a.kind() == kind && above);
        }
    }

    #[test]
    fn what_others_write_is_no_key() {
        let keys = Keys::new("p/").unwrap();
        assert_eq!(keys.parse(b"p/1/0000000007"), Some(Key::Position(Position(7))));
        let foreign: [&[u8]; 9] = [
            b"p/1/7",
            b"p/1/00000000+7",
            b"p/1/9999999999",
            b"p/0/x",
            b"p/5/",
            b"p/6/a",
            b"q/0/",
            b"p/format",
            b"p/5/\xff",
        ];
        for name in foreign {
            assert_eq!(keys.parse(name), None, "{}", String::from_utf8_lossy(name));
        }
        for bad in ["", "/", "a b", "a\n"] {
            assert!(Keys::new(bad).unwrap_err().contains("prefix"), "{bad:?}");
        }
    }
}
