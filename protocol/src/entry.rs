//! The shard log: what its leaf writes and every member keeps, in one order.

use uuid::Uuid;

use crate::ids::{Color, Epoch, Lsn, SeqNum, SessionId, Token, View};

/// One entry of a shard log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its place: contiguous from 1, also across leaf epochs.
    pub lsn: Lsn,
    /// The leaf incarnation that wrote it.
    pub epoch: Epoch,
    /// What it says.
    pub body: Body,
}

/// What an entry says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// Numbers for staged records, in the order in which they were granted.
    Assign(Vec<Assign>),
    /// These `count` numbers from `first` on name no record.
    Hole {
        /// The log that they belong to.
        color: Color,
        /// The first of them.
        first: SeqNum,
        /// How many, all of one epoch.
        count: u32,
    },
    /// `color` has no number at or above `end` in the epoch of `end`, and none at all in the epochs between that and
    /// `next`.
    EpochEnd {
        /// The log that the epoch belongs to.
        color: Color,
        /// Exclusive end of the epoch.
        end: SeqNum,
        /// The epoch in which the color goes on.
        next: Epoch,
    },
    /// From here on commit needs these members.
    NewView(View),
    /// A client's session begins; its id is this entry's (epoch, lsn). The same nonce again names the first session.
    OpenSession {
        /// Drawn by the client.
        nonce: Uuid,
    },
    /// A session ends; what it staged and nobody numbered is dropped.
    CloseSession(SessionId),
    /// Everything of `color` at or below `upto` may be forgotten.
    Trim {
        /// The log that is trimmed.
        color: Color,
        /// Inclusive.
        upto: SeqNum,
    },
}

/// Numbers for `tokens` appends of consecutive seqs of one session, each of `records` records, all of one color.
///
/// The token `token.plus(i)` gets the numbers from `first + i · records` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assign {
    /// The first of the appends.
    pub token: Token,
    /// How many appends.
    pub tokens: u32,
    /// How many records each of them has.
    pub records: u32,
    /// The log they belong to.
    pub color: Color,
    /// The first number; `tokens · records` numbers from here are contiguous and of one epoch.
    pub first: SeqNum,
}

impl Assign {
    /// Numbers for one append.
    #[must_use]
    pub fn one(token: Token, color: Color, first: SeqNum, records: u32) -> Self {
        Self { token, tokens: 1, records, color, first }
    }

    /// How many numbers it gives away.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.tokens * self.records
    }

    /// The exclusive end of its numbers.
    ///
    /// Saturates where the epoch has no such number; whoever decodes an `Assign` refuses that with [`Assign::is_sound`].
    #[must_use]
    pub fn end(&self) -> SeqNum {
        self.first.plus(self.count()).unwrap_or(SeqNum::new(self.first.epoch(), u32::MAX))
    }

    /// Whether the counts fit into one epoch; checked on everything that comes from the media or the network.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.tokens > 0
            && self.records > 0
            && self.tokens.checked_mul(self.records).is_some_and(|count| self.first.plus(count).is_some())
            && self.token.seq.checked_add(u64::from(self.tokens)).is_some()
    }

    /// Each append with its first number.
    pub fn each(&self) -> impl Iterator<Item = (Token, SeqNum)> + use<> {
        let this = *self;
        (0..this.tokens).map(move |i| {
            let counter = this.first.counter() + i * this.records;
            (this.token.plus(u64::from(i)), SeqNum::new(this.first.epoch(), counter))
        })
    }

    /// Takes `other` in, if it goes on where this one ends.
    ///
    /// Returns whether it did.
    pub fn extend(&mut self, other: &Self) -> bool {
        let goes_on = other.color == self.color
            && other.records == self.records
            && other.token == self.token.plus(u64::from(self.tokens))
            && self.first.plus(self.count()) == Some(other.first);
        if goes_on {
            self.tokens += other.tokens;
        }
        goes_on
    }
}

/// Puts `assign` at the end of `list`, as part of the last one where it goes on from there.
pub fn push_assign(list: &mut Vec<Assign>, assign: Assign) {
    if !list.last_mut().is_some_and(|last| last.extend(&assign)) {
        list.push(assign);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ShardId;

    fn assign(seq: u64, counter: u32, records: u32) -> Assign {
        let session = SessionId { epoch: Epoch(1), lsn: Lsn(2) };
        let token = Token { shard: ShardId(0), session, seq };
        Assign::one(token, Color(7), SeqNum::new(Epoch(1), counter), records)
    }

    #[test]
    fn neighbours_become_one() {
        let mut list = Vec::new();
        for i in 0..5 {
            push_assign(&mut list, assign(10 + i, 100 + 2 * i as u32, 2));
        }
        push_assign(&mut list, assign(16, 110, 2));
        push_assign(&mut list, assign(17, 112, 1));
        assert_eq!(list.iter().map(|a| a.tokens).collect::<Vec<_>>(), [5, 1, 1]);
        let each: Vec<_> = list[0].each().map(|(t, n)| (t.seq, n.counter())).collect();
        assert_eq!(each, [(10, 100), (11, 102), (12, 104), (13, 106), (14, 108)]);
        assert_eq!(list[0].end(), SeqNum::new(Epoch(1), 110));
    }

    #[test]
    fn counts_beyond_an_epoch_are_unsound() {
        assert!(assign(1, u32::MAX - 2, 2).is_sound());
        assert!(!assign(1, u32::MAX - 1, 2).is_sound());
        assert!(!assign(1, 0, 0).is_sound());
        assert!(!Assign { tokens: u32::MAX, ..assign(1, 0, 2) }.is_sound());
    }
}
