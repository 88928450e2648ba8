//! The member's copy of the shard log: what it was sent, what is persisted of that, and what is committed.

use std::collections::VecDeque;
use std::sync::Arc;

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
}

impl ShardLog {
    pub(crate) fn restore(last: (Epoch, Lsn), view: Option<View>) -> Self {
        Self { last, persisted: last.1, commit: last.1, commit_epoch: last.0, view, ..Self::default() }
    }

    /// The epoch and place of the last entry.
    pub(crate) fn last(&self) -> (Epoch, Lsn) {
        self.last
    }

    /// Everything up to here is durable on this member.
    pub(crate) fn persisted(&self) -> Lsn {
        self.persisted
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
}
