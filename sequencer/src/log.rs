//! The shard log as its leaf holds it: what it has written, what each member has, what is committed.
//!
//! It relies on each member's stream: what is sent arrives, once and in order, as long as the incarnation lives, so
//! nothing is ever sent twice. It promises places without gaps, and a commit that never passes what *every* member of the
//! views in force has acknowledged. Numbers given within one batch share one `Assign` entry, which closes at the flush, or before the next
//! entry of another kind, so that the log has everything in the order in which it was decided.

use std::collections::VecDeque;
use std::sync::Arc;

use flexlog_protocol::entry::push_assign;
use flexlog_protocol::{Assign, Body, Color, Entry, Epoch, Lsn, SeqNum};

use crate::members::MemberSet;

/// The most runs of numbers in one `Assign` entry.
pub const MAX_RUNS_PER_ENTRY: usize = 4096;
/// The most committed entries that are kept for a replica that is being taken in; with more it copies again.
const MAX_KEPT_ENTRIES: usize = 1 << 16;
/// The most entries that wait for their commit before the leaf stops asking for numbers.
pub const MAX_UNCOMMITTED_ENTRIES: usize = 1024;

#[derive(Debug)]
pub(crate) struct ShardLog {
    epoch: Epoch,
    last: Lsn,
    commit: Lsn,
    /// What each member has acknowledged, by its place.
    acked: Vec<Lsn>,
    /// The members that an entry needs to commit.
    needed: MemberSet,
    /// Committed entries that are kept for a replica that copies what is before them: those above this place.
    kept: Option<(Lsn, VecDeque<Arc<Entry>>)>,
    /// The `Assign` entry that is still growing; it has no place yet.
    runs: Vec<Assign>,
    /// Written since the last flush.
    unsent: Vec<Arc<Entry>>,
    /// Above commit, in order.
    uncommitted: VecDeque<Arc<Entry>>,
    /// The commit that the members were last told.
    told: Lsn,
    /// What commit has passed of wide colors since it was last taken: color, exclusive end. Later ones stand.
    settled: Vec<(Color, SeqNum)>,
}

impl ShardLog {
    /// The log of the leaf incarnation `epoch`, which goes on after `last`.
    ///
    /// `acked` is what each member has, `above` are the recovered entries above the least of what those have that are
    /// `needed`.
    pub(crate) fn new(epoch: Epoch, last: Lsn, acked: Vec<Lsn>, needed: MemberSet, above: Vec<Arc<Entry>>) -> Self {
        let commit = needed.iter().map(|member| acked[member]).min().unwrap_or_default();
        Self {
            epoch,
            last,
            commit,
            needed,
            kept: None,
            acked,
            runs: Vec::new(),
            unsent: Vec::new(),
            uncommitted: above.into(),
            told: Lsn::default(),
            settled: Vec::new(),
        }
    }

    pub(crate) fn last(&self) -> Lsn {
        self.last
    }

    pub(crate) fn commit(&self) -> Lsn {
        self.commit
    }

    /// Whether too much waits for its commit to write more than must be.
    pub(crate) fn is_full(&self) -> bool {
        self.uncommitted.len() >= MAX_UNCOMMITTED_ENTRIES
    }

    /// Writes an entry of its own, and returns its place.
    pub(crate) fn append(&mut self, body: Body) -> Lsn {
        self.close_runs();
        self.push(body)
    }

    /// Writes numbers for a token, together with others of the same batch.
    pub(crate) fn assign(&mut self, assign: Assign) {
        push_assign(&mut self.runs, assign);
        if self.runs.len() >= MAX_RUNS_PER_ENTRY {
            self.close_runs();
        }
    }

    fn close_runs(&mut self) {
        if !self.runs.is_empty() {
            let runs = std::mem::take(&mut self.runs);
            self.push(Body::Assign(runs));
        }
    }

    fn push(&mut self, body: Body) -> Lsn {
        self.last = self.last.next();
        let entry = Arc::new(Entry { lsn: self.last, epoch: self.epoch, body });
        self.uncommitted.push_back(entry.clone());
        self.unsent.push(entry);
        self.last
    }

    /// Takes a member's acknowledgement and returns the entries that commit by it. `None` if it does not count: it may go
    /// neither back nor beyond what was sent.
    pub(crate) fn acked(&mut self, member: usize, lsn: Lsn) -> Option<Vec<Arc<Entry>>> {
        let sent = self.unsent.first().map_or(self.last.0, |entry| entry.lsn.0 - 1);
        let before = self.acked[member];
        if lsn < before || lsn.0 > sent {
            return None;
        }
        self.acked[member] = lsn;
        Some(self.advance())
    }

    fn advance(&mut self) -> Vec<Arc<Entry>> {
        let least = self.needed.iter().map(|member| self.acked[member]).min().unwrap_or_default();
        self.commit = self.commit.max(least);
        let passed = self.uncommitted.partition_point(|entry| entry.lsn <= self.commit);
        let passed: Vec<_> = self.uncommitted.drain(..passed).collect();
        passed.iter().for_each(|entry| self.settle(entry));
        if let Some((_, kept)) = &mut self.kept {
            kept.extend(passed.iter().cloned());
            if kept.len() > MAX_KEPT_ENTRIES {
                self.kept = None;
            }
        }
        passed
    }

    /// From now on entries need these members. Returns the entries that commit by it.
    pub(crate) fn need(&mut self, members: MemberSet) -> Vec<Arc<Entry>> {
        self.needed = members;
        self.advance()
    }

    /// What a member or a learner has acknowledged.
    pub(crate) fn acked_by(&self, member: usize) -> Lsn {
        self.acked.get(member).copied().unwrap_or_default()
    }

    /// A replica with this place has the log up to `lsn`, whatever was known of it before.
    pub(crate) fn has(&mut self, member: usize, lsn: Lsn) {
        if self.acked.len() <= member {
            self.acked.resize(member + 1, Lsn::default());
        }
        self.acked[member] = lsn;
    }

    /// Whether a log that ends with `lsn`, of that epoch, may be a part of this one that has all that is committed.
    pub(crate) fn covers(&self, epoch: Epoch, lsn: Lsn) -> bool {
        let here = self.uncommitted.iter().find(|entry| entry.lsn == lsn);
        lsn >= self.commit && lsn <= self.last && here.is_none_or(|entry| entry.epoch == epoch)
    }

    /// Whether one of these members has all entries of earlier incarnations that are not committed, with their records.
    pub(crate) fn recovered_held_by(&self, members: MemberSet) -> bool {
        let last = self.uncommitted.iter().take_while(|entry| entry.epoch != self.epoch).last();
        last.is_none_or(|last| members.iter().any(|member| self.acked_by(member) >= last.lsn))
    }

    /// Keeps what commits from now on; returns the place behind which it is kept.
    pub(crate) fn keep(&mut self) -> Lsn {
        self.kept = Some((self.commit, VecDeque::new()));
        self.commit
    }

    /// Nobody needs what was kept.
    pub(crate) fn keep_no_more(&mut self) {
        self.kept = None;
    }

    /// Every entry behind `lsn` that was sent to the members; `None` where some are not here any more.
    pub(crate) fn behind(&self, lsn: Lsn) -> Option<Vec<Arc<Entry>>> {
        let none = VecDeque::new();
        let kept = match &self.kept {
            Some((from, kept)) if *from <= lsn => kept,
            _ if lsn >= self.commit => &none,
            _ => return None,
        };
        let sent = self.unsent.first().map_or(Lsn(u64::MAX), |entry| entry.lsn);
        let all = kept.iter().chain(&self.uncommitted);
        Some(all.filter(|entry| entry.lsn > lsn && entry.lsn < sent).cloned().collect())
    }

    /// Whether everything written was sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.runs.is_empty() && self.unsent.is_empty()
    }

    /// Notes what a committed entry settles. Entries of earlier incarnations are recovery's to tell.
    fn settle(&mut self, entry: &Entry) {
        if entry.epoch != self.epoch {
            return;
        }
        match &entry.body {
            Body::Assign(runs) => runs.iter().for_each(|run| self.settle_upto(run.color, run.end())),
            Body::Hole { color, first, count } => {
                if let Some(end) = first.plus(*count) {
                    self.settle_upto(*color, end);
                }
            }
            Body::EpochEnd { .. }
            | Body::NewView(_)
            | Body::OpenSession { .. }
            | Body::CloseSession(_)
            | Body::Trim { .. } => {}
        }
    }

    /// Of colors that are on this shard alone nobody asks.
    fn settle_upto(&mut self, color: Color, end: SeqNum) {
        if !color.is_wide() {
            return;
        }
        match self.settled.last_mut() {
            Some(last) if last.0 == color => last.1 = end,
            _ => self.settled.push((color, end)),
        }
    }

    /// What has settled since this was last asked.
    pub(crate) fn take_settled(&mut self) -> Vec<(Color, SeqNum)> {
        std::mem::take(&mut self.settled)
    }

    /// What the members must be sent now: the entries since the last flush, or commit alone where it moved, or nothing.
    pub(crate) fn take_unsent(&mut self) -> Option<(Vec<Arc<Entry>>, Lsn)> {
        self.close_runs();
        if self.unsent.is_empty() && self.told == self.commit {
            return None;
        }
        self.told = self.commit;
        Some((std::mem::take(&mut self.unsent), self.commit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexlog_protocol::{SessionId, ShardId, Token};

    const RED: Color = Color(1 << 63 | 1);

    fn log() -> ShardLog {
        ShardLog::new(Epoch(3), Lsn(10), vec![Lsn(10); 3], MemberSet::first(3), vec![])
    }

    fn run(seq: u64, counter: u32) -> Assign {
        let session = SessionId { epoch: Epoch(3), lsn: Lsn(2) };
        Assign::one(Token { shard: ShardId(0), session, seq }, RED, SeqNum::new(Epoch(3), counter), 1)
    }

    #[test]
    fn of_a_color_that_is_on_this_shard_alone_nobody_is_told() {
        let mut log = log();
        log.assign(Assign { color: Color(1), ..run(1, 0) });
        log.take_unsent();
        (0..3).for_each(|member| assert!(log.acked(member, Lsn(11)).is_some()));
        assert_eq!((log.commit(), log.take_settled()), (Lsn(11), vec![]));
    }

    fn bodies(log: &mut ShardLog) -> Vec<Body> {
        log.take_unsent().map_or(vec![], |(entries, _)| entries.iter().map(|e| e.body.clone()).collect())
    }

    #[test]
    fn numbers_of_one_batch_share_an_entry_and_keep_their_place() {
        let mut log = log();
        log.assign(run(1, 0));
        log.assign(run(5, 1));
        let trim = Body::Trim { color: RED, upto: SeqNum::new(Epoch(3), 0) };
        assert_eq!(log.append(trim.clone()), Lsn(12));
        log.assign(run(6, 2));
        let expected = [Body::Assign(vec![run(1, 0), run(5, 1)]), trim, Body::Assign(vec![run(6, 2)])];
        assert_eq!(bodies(&mut log), expected);
        assert_eq!((log.last(), bodies(&mut log)), (Lsn(13), vec![]));
    }

    #[test]
    fn an_entry_has_a_bounded_number_of_runs() {
        let mut log = log();
        (0..MAX_RUNS_PER_ENTRY as u32 + 1).for_each(|i| log.assign(run(2 * u64::from(i), i)));
        assert_eq!(bodies(&mut log).len(), 2);
    }

    #[test]
    fn commit_is_what_every_member_has() {
        let mut log = log();
        log.assign(run(1, 0));
        log.assign(run(2, 1));
        log.append(Body::EpochEnd { color: Color(2), end: SeqNum::new(Epoch(2), 5), next: Epoch(3) });
        assert_eq!(log.acked(0, Lsn(11)), None, "not sent yet");
        assert_eq!(log.take_unsent().map(|(entries, commit)| (entries.len(), commit)), Some((2, Lsn(10))));
        assert_eq!((log.acked(0, Lsn(12)), log.acked(1, Lsn(12))), (Some(vec![]), Some(vec![])));
        assert_eq!((log.commit(), log.take_unsent()), (Lsn(10), None));
        assert_eq!(log.acked(2, Lsn(11)).map(|passed| passed[0].lsn), Some(Lsn(11)));
        assert_eq!((log.commit(), log.take_unsent()), (Lsn(11), Some((vec![], Lsn(11)))));
        assert_eq!(log.take_settled(), [(RED, SeqNum::new(Epoch(3), 2))]);
        assert!(log.acked(2, Lsn(12)).is_some());
        assert_eq!(log.take_settled(), [], "an end is no number");
        assert_eq!((log.acked(2, Lsn(11)), log.acked(2, Lsn(13))), (None, None), "neither back nor beyond");
        assert_eq!((log.commit(), log.uncommitted.len()), (Lsn(12), 0));
    }

    #[test]
    fn recovered_entries_commit_but_are_not_settled_again() {
        let old = Arc::new(Entry { lsn: Lsn(10), epoch: Epoch(2), body: Body::Assign(vec![run(1, 0)]) });
        let mut log = ShardLog::new(Epoch(3), Lsn(10), vec![Lsn(9), Lsn(10)], MemberSet::first(2), vec![old]);
        assert_eq!(log.commit(), Lsn(9));
        assert!(log.acked(0, Lsn(10)).is_some());
        assert_eq!((log.commit(), log.take_settled()), (Lsn(10), vec![]));
    }

    #[test]
    fn it_is_full_until_commit_catches_up() {
        let mut log = log();
        for i in 0..MAX_UNCOMMITTED_ENTRIES {
            assert!(!log.is_full(), "{i}");
            log.append(Body::CloseSession(SessionId::default()));
        }
        log.take_unsent();
        assert!(log.is_full());
        (0..3).for_each(|member| assert!(log.acked(member, Lsn(11)).is_some()));
        assert!(!log.is_full());
    }
}
