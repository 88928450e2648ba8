//! What a new leaf makes of its members' reports.
//!
//! A pure function of the reports of *every* member of the view, all of which refuse older leaves by now. The longest log
//! among them (highest leaf epoch, then place) has everything that may have settled: what was committed is on all of
//! them. The others get what they lack of it. Reports that cannot have come from members that kept the rules stop the
//! leaf with a reason, before it has written anything.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use flexlog_protocol::peer::{ColorEnd, Range, SealReport, Staged};
use flexlog_protocol::{Body, Color, Entry, Epoch, Lsn, ReplicaId, SeqNum, SessionId, View, ViewNumber};
use rustc_hash::FxHashSet;

/// Why a leaf cannot lead its shard. The members are as they were; a new leaf would find the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// The view has no members, or more than a leaf can lead.
    ViewSize(usize),
    /// A member lacks entries that another one knows to be committed.
    Lost {
        /// The member that lacks them.
        member: ReplicaId,
        /// The last that it has.
        last: Lsn,
        /// What another member knows to be committed.
        commit: Lsn,
    },
    /// The entries that a member reported are not its log above its commit, without gaps.
    Gap {
        /// The member with the longest log.
        member: ReplicaId,
        /// The first place where something else was expected.
        at: Lsn,
    },
    /// Two members have different entries at one place.
    Diverged {
        /// The member whose log is not a part of the longest.
        member: ReplicaId,
        /// The place of its last entry.
        at: Lsn,
    },
    /// The log has entries of this leaf's epoch or a later one.
    OldEpoch {
        /// The latest epoch in the log.
        log: Epoch,
    },
    /// The log is under a later view than the one in the metadata, or another one of the same number.
    OldView {
        /// The view's number in the log.
        log: ViewNumber,
    },
    /// Another process holds the position by now.
    Deposed,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ViewSize(n) => {
                write!(f, "the shard's view has {n} members: it must have 1 to {}", crate::MAX_MEMBERS)
            }
            Self::Lost { member, last, commit } => write!(
                f,
                "replica {member} has the shard log up to {last} only, but {commit} is committed: its store lost \
                 entries; restore it, or replace the replica"
            ),
            Self::Gap { member, at } => write!(
                f,
                "the shard log of replica {member} has no entry at {at} where one must be: its store is damaged; \
                 replace the replica"
            ),
            Self::Diverged { member, at } => write!(
                f,
                "replica {member} has another entry at {at} of the shard log than the longest log: its store is not of \
                 this history; replace the replica"
            ),
            Self::OldEpoch { log } => write!(
                f,
                "the shard log has entries of epoch {log}, which this leaf's epoch is not above: the metadata is older \
                 than the log; restore the metadata"
            ),
            Self::OldView { log } => write!(
                f,
                "the shard log is under view {log}, which is not the metadata's view: the metadata is older than the \
                 log; restore the metadata"
            ),
            Self::Deposed => f.write_str("another process holds the position now"),
        }
    }
}

/// Where the new leaf begins.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Recovered {
    /// The end of the longest log; the leaf writes on behind it.
    pub(crate) last: Lsn,
    /// What each member has, by its place in the view.
    pub(crate) acked: Vec<Lsn>,
    /// The longest log above the least of `acked`.
    pub(crate) above: Vec<Arc<Entry>>,
    /// The colors that have numbers, with the longest log taken in.
    pub(crate) colors: Vec<ColorEnd>,
    /// The open sessions, with the longest log taken in, and perhaps some that nobody uses: see [`sessions`].
    pub(crate) sessions: Vec<SessionId>,
    /// What each member has staged that the longest log does not number.
    pub(crate) staged: Vec<Vec<Staged>>,
}

/// Takes the reports of all members of `view`, in its order, for a leaf of `epoch`.
pub(crate) fn recover(epoch: Epoch, view: &View, reports: Vec<SealReport>) -> Result<Recovered, StopReason> {
    let who = |place: usize| view.members.get(place).copied().unwrap_or_default();
    let longest = (0..reports.len()).max_by_key(|place| reports[*place].last);
    let longest = longest.ok_or(StopReason::ViewSize(0))?;
    check_longest(epoch, who(longest), &reports[longest])?;
    check_view(view, &reports)?;

    let entries = reports[longest].entries.clone();
    let commit = reports.iter().map(|report| report.commit).max().unwrap_or_default();
    for (place, report) in reports.iter().enumerate() {
        let (last_epoch, last) = report.last;
        if last < commit {
            return Err(StopReason::Lost { member: who(place), last, commit });
        }
        // Nothing above the longest commit is missing in `entries`, so `last` is at it or among them.
        let same = entries.iter().find(|entry| entry.lsn == last);
        if last > reports[longest].last.1 || same.is_some_and(|entry| entry.epoch != last_epoch) {
            return Err(StopReason::Diverged { member: who(place), at: last });
        }
    }

    let numbered: FxHashSet<_> = entries
        .iter()
        .filter_map(|entry| if let Body::Assign(runs) = &entry.body { Some(runs) } else { None })
        .flat_map(|runs| runs.iter().flat_map(|run| run.each().map(|(token, _)| token)))
        .collect();
    let last = reports[longest].last.1;
    let acked: Vec<Lsn> = reports.iter().map(|report| report.last.1).collect();
    let colors = colors(&reports, longest, &entries);
    let sessions = sessions(&reports[longest].sessions, &entries);
    let unnumbered = |mut report: SealReport| {
        report.staged.retain(|staged| !numbered.contains(&staged.token));
        report.staged
    };
    let staged = reports.into_iter().map(unnumbered).collect();
    let least = acked.iter().min().copied().unwrap_or_default();
    let above = entries.into_iter().filter(|entry| entry.lsn > least).collect();
    Ok(Recovered { last, acked, above, colors, sessions, staged })
}

/// The longest log goes from its commit to its last without gaps, and is older than this leaf.
fn check_longest(epoch: Epoch, member: ReplicaId, report: &SealReport) -> Result<(), StopReason> {
    let (log, last) = report.last;
    if log >= epoch {
        return Err(StopReason::OldEpoch { log });
    }
    let mut end = report.commit;
    for entry in &report.entries {
        if entry.lsn != end.next() {
            return Err(StopReason::Gap { member, at: end.next() });
        }
        end = entry.lsn;
    }
    if end == last { Ok(()) } else { Err(StopReason::Gap { member, at: end.next() }) }
}

/// No member has a later view in its log than the metadata has.
fn check_view(view: &View, reports: &[SealReport]) -> Result<(), StopReason> {
    for report in reports {
        let written = report.entries.iter().filter_map(|entry| match &entry.body {
            Body::NewView(view) => Some(view),
            _ => None,
        });
        for seen in written.chain(&report.view) {
            if seen.number > view.number || (seen.number == view.number && seen.members != view.members) {
                return Err(StopReason::OldView { log: seen.number });
            }
        }
    }
    Ok(())
}

/// How far each color's numbers go with `entries` taken in, which lie above the commit of the longest log.
fn colors(reports: &[SealReport], longest: usize, entries: &[Arc<Entry>]) -> Vec<ColorEnd> {
    let mut colors: BTreeMap<Color, ColorEnd> =
        reports[longest].colors.iter().map(|end| (end.color, end.clone())).collect();
    let mut set = |color: Color, end: SeqNum, closed: bool, range: Option<Range>| {
        let known = colors.entry(color).or_insert_with(|| ColorEnd::narrow(color, SeqNum::MIN, false));
        (known.end, known.closed) = (end, closed);
        if color.is_wide() {
            push_range(&mut known.own, range);
        }
    };
    for entry in entries {
        match &entry.body {
            Body::Assign(runs) => runs.iter().for_each(|run| {
                set(run.color, run.end(), false, Some(Range { first: run.first, count: run.count() }));
            }),
            Body::Hole { color, first, count } => {
                let range = Range { first: *first, count: *count };
                set(*color, range.end(), false, Some(range));
            }
            Body::EpochEnd { color, end, .. } => set(*color, *end, true, None),
            Body::NewView(_) | Body::OpenSession { .. } | Body::CloseSession(_) | Body::Trim { .. } => {}
        }
    }
    // How far a wide color is settled everywhere is told apart from the log, and some member may know more.
    for told in reports.iter().flat_map(|report| &report.colors).filter(|end| end.color.is_wide()) {
        let known = colors.entry(told.color).or_insert_with(|| ColorEnd::narrow(told.color, SeqNum::MIN, false));
        known.stable = known.stable.max(told.stable);
    }
    for known in colors.values_mut() {
        known.own.retain(|range| range.end() > known.stable);
    }
    colors.into_values().collect()
}

/// Puts a range behind others, joined with the last where they touch.
pub(crate) fn push_range(ranges: &mut Vec<Range>, range: Option<Range>) {
    match (ranges.last_mut(), range) {
        (Some(last), Some(next)) if last.end() == next.first => {
            last.count = last.count.saturating_add(next.count);
        }
        (_, Some(next)) => ranges.push(next),
        (_, None) => {}
    }
}

/// The sessions that are open with `entries` taken in. A nonce that is there twice names one session only, but which one
/// depends on what was closed between them and before: both count. Nobody uses the other, and it is closed as idle.
fn sessions(at_commit: &[SessionId], entries: &[Arc<Entry>]) -> Vec<SessionId> {
    let mut sessions = at_commit.to_vec();
    for entry in entries {
        match &entry.body {
            Body::OpenSession { .. } => sessions.push(SessionId { epoch: entry.epoch, lsn: entry.lsn }),
            Body::CloseSession(closed) => sessions.retain(|id| id != closed),
            _ => {}
        }
    }
    sessions
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexlog_protocol::{Assign, ShardId, Token};

    const RED: Color = Color(1);
    const BLUE: Color = Color(2);
    const SESSION: SessionId = SessionId { epoch: Epoch(1), lsn: Lsn(2) };

    fn view() -> View {
        View { number: ViewNumber(1), members: vec![ReplicaId(11), ReplicaId(12), ReplicaId(13)] }
    }

    fn token(seq: u64) -> Token {
        Token { shard: ShardId(4), session: SESSION, seq }
    }

    fn staged(seq: u64) -> Staged {
        Staged { token: token(seq), color: RED, records: 1, digest: 0 }
    }

    fn n(epoch: u32, counter: u32) -> SeqNum {
        SeqNum::new(Epoch(epoch), counter)
    }

    fn entry(lsn: u64, body: Body) -> Arc<Entry> {
        Arc::new(Entry { lsn: Lsn(lsn), epoch: Epoch(2), body })
    }

    fn assign(seq: u64, counter: u32) -> Body {
        Body::Assign(vec![Assign::one(token(seq), RED, n(2, counter), 1)])
    }

    /// A member that is committed up to 10, of epoch 2, with these entries above.
    fn report(entries: &[Arc<Entry>], staged: Vec<Staged>) -> SealReport {
        SealReport {
            last: entries.last().map_or((Epoch(2), Lsn(10)), |entry| (entry.epoch, entry.lsn)),
            commit: Lsn(10),
            view: Some(view()),
            entries: entries.to_vec(),
            staged,
            colors: vec![ColorEnd::narrow(RED, n(1, 7), false)],
            sessions: vec![SESSION],
        }
    }

    fn run(reports: Vec<SealReport>) -> Result<Recovered, StopReason> {
        recover(Epoch(3), &view(), reports)
    }

    #[test]
    fn a_fresh_shard_has_nothing() {
        let empty = SealReport {
            last: (Epoch(0), Lsn(0)),
            commit: Lsn(0),
            view: None,
            colors: vec![],
            sessions: vec![],
            ..report(&[], vec![])
        };
        let found = run(vec![empty.clone(), empty.clone(), empty]).unwrap();
        assert_eq!((found.last, found.acked, found.above), (Lsn(0), vec![Lsn(0); 3], vec![]));
        assert_eq!((found.colors, found.sessions, found.staged), (vec![], vec![], vec![vec![]; 3]));
    }

    #[test]
    fn the_longest_log_is_taken_and_what_it_numbers_is_not_staged() {
        let log = [entry(11, assign(1, 0)), entry(12, assign(2, 1)), entry(13, assign(3, 2))];
        let reports = vec![
            report(&log[..1], vec![staged(2), staged(3), staged(4)]),
            report(&log, vec![staged(4)]),
            report(&log[..2], vec![staged(3)]),
        ];
        let found = run(reports).unwrap();
        assert_eq!((found.last, found.acked), (Lsn(13), vec![Lsn(11), Lsn(13), Lsn(12)]));
        assert_eq!(found.above, log[1..]);
        assert_eq!(found.staged, [vec![staged(4)], vec![staged(4)], vec![]]);
        assert_eq!(found.colors, [ColorEnd::narrow(RED, n(2, 3), false)]);
    }

    #[test]
    fn a_higher_leaf_epoch_is_longer_than_a_higher_place_claims() {
        // Members that kept the rules never look like this: it must not be taken for a log that goes on.
        let mut odd = report(&[], vec![]);
        odd.last = (Epoch(1), Lsn(12));
        let log = [entry(11, assign(1, 0))];
        let stop = StopReason::Diverged { member: ReplicaId(12), at: Lsn(12) };
        assert_eq!(run(vec![report(&log, vec![]), odd, report(&log, vec![])]), Err(stop));
    }

    #[test]
    fn colors_go_as_far_as_the_longest_log_says() {
        let log = [
            entry(11, Body::EpochEnd { color: RED, end: n(1, 7), next: Epoch(2) }),
            entry(12, Body::Hole { color: BLUE, first: n(2, 0), count: 4 }),
        ];
        let found = run(vec![report(&log, vec![]), report(&log, vec![]), report(&log, vec![])]).unwrap();
        let ends = [ColorEnd::narrow(RED, n(1, 7), true), ColorEnd::narrow(BLUE, n(2, 4), false)];
        assert_eq!(found.colors, ends);
        assert_eq!(found.above, []);
    }

    #[test]
    fn sessions_are_open_as_the_longest_log_says() {
        let nonce = uuid::Uuid::from_u128(9);
        let log = [
            entry(11, Body::OpenSession { nonce }),
            entry(12, Body::OpenSession { nonce }),
            entry(13, Body::CloseSession(SESSION)),
        ];
        let found = run(vec![report(&log, vec![]), report(&[], vec![]), report(&[], vec![])]).unwrap();
        let opened = |lsn| SessionId { epoch: Epoch(2), lsn: Lsn(lsn) };
        assert_eq!(found.sessions, [opened(11), opened(12)]);
    }

    #[test]
    fn reports_that_break_the_rules_stop_it() {
        let log = [entry(11, assign(1, 0)), entry(12, assign(2, 1))];
        let full = || report(&log, vec![]);

        let mut knows_more = full();
        (knows_more.commit, knows_more.entries) = (Lsn(12), vec![]);
        let lost = StopReason::Lost { member: ReplicaId(11), last: Lsn(11), commit: Lsn(12) };
        assert_eq!(run(vec![report(&log[..1], vec![]), full(), knows_more]), Err(lost));

        for (entries, at) in [(vec![log[1].clone()], 11), (vec![log[0].clone()], 12), (vec![], 11)] {
            let gap = StopReason::Gap { member: ReplicaId(12), at: Lsn(at) };
            assert_eq!(run(vec![report(&[], vec![]), SealReport { entries, ..full() }, report(&[], vec![])]), Err(gap));
        }

        let other = Arc::new(Entry { epoch: Epoch(1), ..Entry::clone(&log[0]) });
        let diverged = StopReason::Diverged { member: ReplicaId(13), at: Lsn(11) };
        assert_eq!(run(vec![full(), full(), report(&[other], vec![])]), Err(diverged));

        let old = StopReason::OldEpoch { log: Epoch(2) };
        assert_eq!(recover(Epoch(2), &view(), vec![full(), full(), full()]), Err(old));

        let mut later = view();
        later.number = ViewNumber(2);
        let old = Err(StopReason::OldView { log: ViewNumber(2) });
        assert_eq!(run(vec![full(), SealReport { view: Some(later.clone()), ..full() }, full()]), old);
        let log = [entry(11, Body::NewView(later))];
        assert_eq!(run(vec![report(&[], vec![]), report(&log, vec![]), report(&[], vec![])]), old);
    }
}
