//! The record nearest to a number, of a color that is on several shards.
//!
//! Each shard knows its own records. The first at or after a number is the smallest that any shard names, once every
//! other shard has said that it has none up to there; one that has not come so far is asked again, from where it was. For
//! the last at or before a number one answer of each shard is enough: each covers all that was acknowledged before it
//! was asked.

use flexlog_protocol::{Record, SeqNum};

/// What there is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Nearest {
    /// This record.
    Record(SeqNum, Record),
    /// Records were trimmed up to and including this number.
    Trimmed(SeqNum),
    /// None below this number.
    None(SeqNum),
}

/// The first record at or after a number.
#[derive(Debug)]
pub struct Next {
    from: SeqNum,
    /// What each shard said last; nothing below `from` counts as that before it was asked.
    said: Vec<Nearest>,
    asked: bool,
}

impl Next {
    /// Nobody was asked yet.
    #[must_use]
    pub fn new(shards: usize, from: SeqNum) -> Self {
        Self { from, said: vec![Nearest::None(SeqNum::MIN); shards], asked: false }
    }

    fn candidate(&self) -> Option<SeqNum> {
        let numbers = self.said.iter().filter_map(|said| match said {
            Nearest::Record(number, _) => Some(*number),
            _ => None,
        });
        numbers.min()
    }

    fn trimmed(&self) -> Option<SeqNum> {
        let points = self.said.iter().filter_map(|said| match said {
            Nearest::Trimmed(point) => Some(*point),
            _ => None,
        });
        points.max()
    }

    /// Which shards are to be asked now for the first record from where; none: it is decided.
    pub fn asks(&mut self) -> Vec<(usize, SeqNum)> {
        let all = !std::mem::replace(&mut self.asked, true);
        let candidate = self.candidate();
        if self.trimmed().is_some() {
            return Vec::new();
        }
        let shards = self.said.iter().enumerate().filter_map(|(shard, said)| match said {
            Nearest::None(below) if all || candidate.is_some_and(|candidate| *below <= candidate) => {
                Some((shard, self.from.max(*below)))
            }
            _ => None,
        });
        shards.collect()
    }

    /// What a shard said.
    pub fn answered(&mut self, shard: usize, said: Nearest) {
        if let Some(before) = self.said.get_mut(shard) {
            *before = said;
        }
    }

    /// What is known, also where not all is decided: then that there is none up to where all shards have come.
    #[must_use]
    pub fn outcome(self) -> Nearest {
        if let Some(point) = self.trimmed() {
            return Nearest::Trimmed(point);
        }
        let candidate = self.candidate();
        let bound = self.said.iter().filter_map(|said| match said {
            Nearest::None(below) => Some(*below),
            _ => None,
        });
        match (candidate, bound.min()) {
            (Some(candidate), Some(bound)) if bound <= candidate => Nearest::None(bound),
            (None, bound) => Nearest::None(bound.unwrap_or(self.from)),
            (Some(candidate), _) => {
                let found = self.said.into_iter().find(|said| matches!(said, Nearest::Record(n, _) if *n == candidate));
                found.unwrap_or(Nearest::None(candidate))
            }
        }
    }
}

/// The last record at or before a number, of what each shard said: `None` stands for nothing at or before it.
#[must_use]
pub fn previous(said: Vec<Option<Nearest>>) -> Option<Nearest> {
    // A record that is there is above every trim point of its shard, and above those of others or as good as trimmed.
    let key = |said: &Nearest| match said {
        Nearest::Record(number, _) => (*number, 0),
        Nearest::Trimmed(point) => (*point, 1),
        Nearest::None(_) => (SeqNum::MIN, 0),
    };
    said.into_iter().flatten().max_by_key(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(raw: u64) -> SeqNum {
        SeqNum::from_raw(raw)
    }

    fn record(raw: u64) -> Nearest {
        Nearest::Record(n(raw), Record::new(raw.to_string()).unwrap())
    }

    #[test]
    fn the_smallest_candidate_counts_once_nobody_can_have_a_smaller_one() {
        let mut next = Next::new(3, n(10));
        assert_eq!(next.asks(), [(0, n(10)), (1, n(10)), (2, n(10))]);
        next.answered(0, record(15));
        next.answered(1, Nearest::None(n(12)));
        next.answered(2, Nearest::None(n(16)));
        // Shard 1 may have one from 12 to 15.
        assert_eq!(next.asks(), [(1, n(12))]);
        next.answered(1, Nearest::None(n(15)));
        assert_eq!(next.asks(), [(1, n(15))], "the bound itself is not covered");
        next.answered(1, record(13));
        assert_eq!(next.asks(), []);
        assert_eq!(next.outcome(), record(13));
    }

    #[test]
    fn a_shard_that_stays_behind_bounds_what_is_known() {
        let mut next = Next::new(2, n(10));
        next.asks();
        next.answered(0, record(15));
        next.answered(1, Nearest::None(n(12)));
        assert_eq!(next.outcome(), Nearest::None(n(12)));
    }

    #[test]
    fn without_a_record_the_lowest_bound_counts_and_nobody_is_asked_again() {
        let mut next = Next::new(2, n(10));
        next.asks();
        next.answered(0, Nearest::None(n(30)));
        next.answered(1, Nearest::None(n(20)));
        assert_eq!(next.asks(), []);
        assert_eq!(next.outcome(), Nearest::None(n(20)));
    }

    #[test]
    fn what_one_shard_has_trimmed_is_trimmed() {
        let mut next = Next::new(2, n(10));
        next.asks();
        next.answered(0, record(11));
        next.answered(1, Nearest::Trimmed(n(14)));
        assert_eq!(next.asks(), []);
        assert_eq!(next.outcome(), Nearest::Trimmed(n(14)));
    }

    #[test]
    fn the_last_before_is_the_largest_unless_it_is_trimmed() {
        assert_eq!(previous(vec![Some(record(3)), None, Some(record(7))]), Some(record(7)));
        assert_eq!(previous(vec![None, None]), None);
        let trimmed = Nearest::Trimmed(n(7));
        assert_eq!(previous(vec![Some(record(7)), Some(trimmed.clone())]), Some(trimmed.clone()));
        assert_eq!(previous(vec![Some(record(8)), Some(trimmed)]), Some(record(8)));
    }
}
