//! The member's copy of the shard log: what it was sent, what is persisted of that, and what is committed.

use std::collections::VecDeque;
use std::sync::Arc;

use flexlog_protocol::media::LogEnd;
use flexlog_protocol::{Body, Color, Entry, Epoch, Lsn, SeqNum, View};

/// Why a member cannot follow its leaf any further. Only a broken peer or store leads here.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error("the shard log goes from {last} to {next}: entries are missing")]
    Gap { last: Lsn, next: Lsn },
    #[error("entry {lsn} was written in epoch {epoch}, after one of epoch {last}")]
    EpochBack { lsn: Lsn, epoch: Epoch, last: Epoch },
}

/// A shard log, of which only what is not committed stays in memory.
#[derive(Debug, Default)]
pub(crate) struct ShardLog {
    last: (Epoch, Lsn),
    persisted: Lsn,
    commit: Lsn,
    /// The epoch of the entry at commit.
    commit_epoch: Epoch,
    /// The entries above commit.
    open: VecDeque<Arc<Entry>>,
    /// How many of them are trims.
    open_trims: usize,
    /// The view in force at commit.
    view: Option<View>,
    /// The last place of each leaf epoch, ascending, up to `last`.
    runs: Vec<LogEnd>,
}

/// The most epochs that are remembered; a log is compared by them with another's.
const MAX_RUNS: usize = 1024;

impl ShardLog {
    pub(crate) fn restore(last: (Epoch, Lsn), view: Option<View>, runs: Vec<LogEnd>) -> Self {
        Self { last, persisted: last.1, commit: last.1, commit_epoch: last.0, view, runs, ..Self::default() }
    }

    /// The last place of each leaf epoch, as far back as is remembered.
    pub(crate) fn runs(&self) -> &[LogEnd] {
        &self.runs
    }

    /// The same up to commit.
    pub(crate) fn committed_runs(&self) -> Vec<LogEnd> {
        cut(&self.runs, self.commit)
    }

    /// The last committed place that a log with these runs has in common with this one. Each epoch has one leaf, so where
    /// both have an entry of an epoch they have the same ones up to there.
    pub(crate) fn same_upto(&self, theirs: &[LogEnd]) -> Lsn {
        let mine = self.committed_runs();
        let common = |(epoch, last): &LogEnd| {
            let (_, here) = mine.iter().find(|(own, _)| own == epoch)?;
            Some((*last).min(*here))
        };
        theirs.iter().filter_map(common).max().unwrap_or_default()
    }

    /// Takes back the entries above `upto`, which is not below commit, and returns them.
    pub(crate) fn truncate(&mut self, upto: Lsn) -> Vec<Arc<Entry>> {
        let stay = self.open.partition_point(|entry| entry.lsn <= upto);
        let gone: Vec<_> = self.open.drain(stay..).collect();
        self.runs = cut(&self.runs, upto);
        self.last = self.open.back().map_or((self.commit_epoch, self.commit), |entry| (entry.epoch, entry.lsn));
        self.persisted = self.persisted.min(self.last.1);
        self.open_trims = self.open.iter().filter(|entry| matches!(entry.body, Body::Trim { .. })).count();
        gone
    }

    /// The epoch and place of the last entry.
    pub(crate) fn last(&self) -> (Epoch, Lsn) {
        self.last
    }

    /// Everything up to here is durable on this member.
    pub(crate) fn persisted(&self) -> Lsn {
        self.persisted
    }

    /// The epoch and place of the last entry that is durable on this member.
    pub(crate) fn durable_end(&self) -> (Epoch, Lsn) {
        if self.persisted >= self.last.1 {
            return self.last;
        }
        self.open_at(self.persisted).map_or((self.commit_epoch, self.commit), |entry| (entry.epoch, entry.lsn))
    }

    /// Everything up to here is durable on every member of the view in force.
    pub(crate) fn commit(&self) -> Lsn {
        self.commit
    }

    /// The epoch of the last committed entry.
    pub(crate) fn commit_epoch(&self) -> Epoch {
        self.commit_epoch
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.open.iter()
    }

    /// The entry at `lsn`, which is above commit.
    pub(crate) fn open_at(&self, lsn: Lsn) -> Option<&Arc<Entry>> {
        let at = lsn.0.checked_sub(self.commit.0 + 1)?;
        self.open.get(usize::try_from(at).ok()?)
    }

    /// The trim point of `color` once all that is above commit is committed, where that moves it.
    pub(crate) fn open_trim(&self, color: Color) -> Option<SeqNum> {
        if self.open_trims == 0 {
            return None;
        }
        let trims = self.open.iter().filter_map(|entry| match &entry.body {
            Body::Trim { color: trimmed, upto } if *trimmed == color => Some(*upto),
            _ => None,
        });
        trims.max()
    }

    /// The view in force at commit.
    pub(crate) fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// The view in force at `lsn`, which is above commit.
    pub(crate) fn view_at(&self, lsn: Lsn) -> Option<&View> {
        let newer = self.open.iter().rev().filter(|entry| entry.lsn <= lsn).find_map(|entry| match &entry.body {
            Body::NewView(view) => Some(view),
            _ => None,
        });
        newer.or(self.view.as_ref())
    }

    /// Takes the next entry. Returns false for one that is there already.
    pub(crate) fn append(&mut self, entry: &Arc<Entry>) -> Result<bool, LogError> {
        let (epoch, last) = self.last;
        if entry.lsn <= last {
            return Ok(false);
        }
        if entry.lsn != last.next() {
            return Err(LogError::Gap { last, next: entry.lsn });
        }
        if entry.epoch < epoch {
            return Err(LogError::EpochBack { lsn: entry.lsn, epoch: entry.epoch, last: epoch });
        }
        self.last = (entry.epoch, entry.lsn);
        match self.runs.last_mut() {
            Some((run, last)) if *run == entry.epoch => *last = entry.lsn,
            _ => self.runs.push(self.last),
        }
        if self.runs.len() > MAX_RUNS {
            self.runs.remove(0);
        }
        self.open.push_back(Arc::clone(entry));
        self.open_trims += usize::from(matches!(entry.body, Body::Trim { .. }));
        Ok(true)
    }

    pub(crate) fn persisted_upto(&mut self, lsn: Lsn) {
        self.persisted = self.persisted.max(lsn);
    }

    /// The next entry at or below `upto`, now committed.
    pub(crate) fn commit_next(&mut self, upto: Lsn) -> Option<Arc<Entry>> {
        let entry = self.open.pop_front_if(|entry| entry.lsn <= upto)?;
        self.commit = entry.lsn;
        self.commit_epoch = entry.epoch;
        match &entry.body {
            Body::NewView(view) => self.view = Some(view.clone()),
            Body::Trim { .. } => self.open_trims -= 1,
            _ => {}
        }
        Some(entry)
    }
}

/// The runs of a log that ends at `upto`.
fn cut(runs: &[LogEnd], upto: Lsn) -> Vec<LogEnd> {
    let mut kept = Vec::new();
    let mut before = Lsn(0);
    for (epoch, last) in runs {
        if before < upto {
            kept.push((*epoch, (*last).min(upto)));
        }
        before = *last;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexlog_protocol::{ReplicaId, ViewNumber};

    fn entry(epoch: u32, lsn: u64) -> Arc<Entry> {
        let view = View { number: ViewNumber(lsn as u32), members: vec![ReplicaId(1)] };
        Arc::new(Entry { lsn: Lsn(lsn), epoch: Epoch(epoch), body: Body::NewView(view) })
    }

    #[test]
    fn entries_follow_one_another() {
        let mut log = ShardLog::default();
        assert_eq!(log.append(&entry(1, 1)), Ok(true));
        assert_eq!(log.append(&entry(1, 1)), Ok(false), "a repeated entry is passed over");
        assert_eq!(log.append(&entry(1, 3)), Err(LogError::Gap { last: Lsn(1), next: Lsn(3) }));
        assert_eq!(log.append(&entry(3, 2)), Ok(true));
        assert!(matches!(log.append(&entry(2, 3)), Err(LogError::EpochBack { .. })));
    }

    #[test]
    fn a_trim_is_open_until_it_is_committed() {
        let mut log = ShardLog::default();
        for (lsn, color, counter) in [(1, 1, 5), (2, 2, 9), (3, 1, 3)] {
            let body = Body::Trim { color: Color(color), upto: SeqNum::new(Epoch(1), counter) };
            log.append(&Arc::new(Entry { lsn: Lsn(lsn), epoch: Epoch(1), body })).unwrap();
        }
        let open = |log: &ShardLog| (log.open_trim(Color(1)), log.open_trim(Color(2)), log.open_trim(Color(3)));
        assert_eq!(open(&log), (Some(SeqNum::new(Epoch(1), 5)), Some(SeqNum::new(Epoch(1), 9)), None));
        while log.commit_next(Lsn(2)).is_some() {}
        assert_eq!(open(&log), (Some(SeqNum::new(Epoch(1), 3)), None, None));
        log.commit_next(Lsn(3));
        assert_eq!(open(&log), (None, None, None));
    }

    #[test]
    fn the_view_in_force_is_that_of_the_last_new_view_at_or_before() {
        let mut log = ShardLog::default();
        for lsn in 1..=3 {
            log.append(&entry(1, lsn)).unwrap();
        }
        assert_eq!(log.view(), None);
        assert_eq!(log.view_at(Lsn(2)).map(|view| view.number), Some(ViewNumber(2)));
        assert_eq!(log.commit_next(Lsn(1)).map(|entry| entry.lsn), Some(Lsn(1)));
        assert_eq!(log.commit_next(Lsn(1)), None);
        assert_eq!(log.view().map(|view| view.number), Some(ViewNumber(1)));
        assert_eq!(log.view_at(Lsn(2)).map(|view| view.number), Some(ViewNumber(2)));
    }
    #[test]
    fn logs_are_the_same_as_far_as_their_epochs_are() {
        let mut log = ShardLog::default();
        for (epoch, lsn) in [(1, 1), (1, 2), (1, 3), (3, 4), (3, 5)] {
            log.append(&entry(epoch, lsn)).unwrap();
        }
        log.persisted_upto(Lsn(5));
        assert_eq!(log.runs(), [(Epoch(1), Lsn(3)), (Epoch(3), Lsn(5))]);
        assert_eq!(log.same_upto(&[(Epoch(1), Lsn(2))]), Lsn(0), "nothing is committed");
        while log.commit_next(Lsn(4)).is_some() {}
        for (theirs, same) in [
            (vec![], 0),
            (vec![(1, 2)], 2),
            (vec![(1, 3), (2, 9)], 3),
            (vec![(1, 3), (3, 4)], 4),
            (vec![(1, 3), (3, 7)], 4),
            (vec![(2, 4)], 0),
        ] {
            let theirs: Vec<LogEnd> = theirs.into_iter().map(|(epoch, lsn)| (Epoch(epoch), Lsn(lsn))).collect();
            assert_eq!(log.same_upto(&theirs), Lsn(same), "{theirs:?}");
        }
        assert_eq!(log.truncate(Lsn(4)).iter().map(|entry| entry.lsn.0).collect::<Vec<_>>(), [5]);
        assert_eq!(
            (log.last(), log.persisted(), log.runs().last()),
            ((Epoch(3), Lsn(4)), Lsn(4), Some(&(Epoch(3), Lsn(4))))
        );
        assert_eq!(log.append(&entry(4, 5)), Ok(true));
        assert_eq!(log.runs(), [(Epoch(1), Lsn(3)), (Epoch(3), Lsn(4)), (Epoch(4), Lsn(5))]);
    }
}
