//! Open sessions, and the tokens that some members have reported and whose numbers are not committed yet.
//!
//! It relies on members to report a token only before they acknowledge the entry that numbers it, on a stream that keeps
//! that order. That is why a token is forgotten when this entry commits, and can be: no member reports it after that.
//! Until then a repeated report changes nothing. It promises that a token is complete once, and only when every member
//! has reported the same append (I2); one that members disagree on is never complete.
//!
//! This is the leaf's hot path, three reports a token: one lookup of the session per run of its tokens, one of the seq.

use std::collections::VecDeque;

use flexlog_protocol::limits::{COMPLETION_DELAY_MICROS, SESSION_IDLE_MICROS, SESSION_SPARE_MICROS};
use flexlog_protocol::peer::Staged;
use flexlog_protocol::{Assign, Color, SessionId, ShardId, Time, Token};
use rustc_hash::{FxHashMap, FxHashSet};
use uuid::Uuid;

use crate::members::MemberSet;

/// How many tokens are looked at for who lacks them: one that a member lacks stays, so the oldest tell enough.
const LOOKED_AT: usize = 256;

#[derive(Debug)]
pub(crate) struct Tokens {
    shard: ShardId,
    /// The members that a token needs.
    all: MemberSet,
    sessions: FxHashMap<SessionId, Session>,
    /// Numbered by entries of earlier incarnations that are not committed: a member that does not have those yet may report
    /// them as staged.
    numbered: FxHashSet<Token>,
    /// Nonces that surely name an open session: one opened in this incarnation, or one that recovery found, whose nonces
    /// are not known. In the second case members take the session that is counted here for the earlier one. That is
    /// harmless: nobody uses it, and it is closed as idle. Not to count one that a client uses would not be.
    nonces: FxHashSet<Uuid>,
    /// Tokens in the order of their first report, each with the time at which it is late.
    late: VecDeque<(Time, Token)>,
    /// No session is idle for too long before this.
    idle_at: Option<Time>,
}

#[derive(Debug)]
struct Session {
    nonce: Option<Uuid>,
    active: Time,
    /// By seq. Bounded by what the members may hold staged.
    pending: FxHashMap<u64, Pending>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    color: Color,
    records: u32,
    digest: u64,
    /// The members that have it.
    have: MemberSet,
    /// The members that have something else under this token, and were told.
    differ: MemberSet,
    /// Every member that it needed had it.
    complete: bool,
}

impl Pending {
    /// The members whose report is still to come; none once the token is complete or in dispute everywhere.
    fn lacking(&self, all: MemberSet) -> MemberSet {
        if self.complete { MemberSet::default() } else { all.without(self.have).without(self.differ) }
    }
}

/// A token that is late: who has it, and who must get it from there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Late {
    pub(crate) token: Token,
    pub(crate) have: MemberSet,
    pub(crate) lacking: MemberSet,
}

impl Tokens {
    pub(crate) fn new(shard: ShardId, all: MemberSet) -> Self {
        Self {
            shard,
            all,
            sessions: FxHashMap::default(),
            numbered: FxHashSet::default(),
            nonces: FxHashSet::default(),
            late: VecDeque::new(),
            idle_at: None,
        }
    }

    /// A session begins, or was found by recovery, and then without its nonce.
    pub(crate) fn open(&mut self, now: Time, id: SessionId, nonce: Option<Uuid>) {
        self.sessions.insert(id, Session { nonce, active: now, pending: FxHashMap::default() });
        if let Some(nonce) = nonce {
            self.nonces.insert(nonce);
        }
        self.idle_at.get_or_insert(now.after(SESSION_IDLE_MICROS));
    }

    pub(crate) fn knows(&self, nonce: Uuid) -> bool {
        self.nonces.contains(&nonce)
    }

    pub(crate) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn pending(&self) -> usize {
        self.sessions.values().map(|session| session.pending.len()).sum()
    }

    /// Takes a member's reports. Adds the tokens that are complete by them to `complete`, those that it must be told are
    /// in conflict to `conflicts`, and returns how many could not be counted: of no open session, or malformed.
    pub(crate) fn report(
        &mut self,
        now: Time,
        member: usize,
        mut reports: &[Staged],
        complete: &mut Vec<Staged>,
        conflicts: &mut Vec<Token>,
    ) -> u64 {
        let mut ignored = 0;
        while let Some(first) = reports.first() {
            let id = first.token.session;
            let run = reports.iter().take_while(|staged| staged.token.session == id).count();
            let (of_session, rest) = reports.split_at(run);
            reports = rest;
            let Some(session) = self.sessions.get_mut(&id) else {
                ignored += run as u64;
                continue;
            };
            session.active = now;
            for staged in of_session {
                let Staged { token, color, records, digest } = *staged;
                if token.shard != self.shard || records == 0 {
                    ignored += 1;
                    continue;
                }
                if self.numbered.contains(&token) {
                    continue;
                }
                let late = &mut self.late;
                let pending = session.pending.entry(token.seq).or_insert_with(|| {
                    late.push_back((now.after(COMPLETION_DELAY_MICROS), token));
                    let (have, differ) = (MemberSet::default(), MemberSet::default());
                    Pending { color, records, digest, have, differ, complete: false }
                });
                if (pending.color, pending.records, pending.digest) != (color, records, digest) {
                    if pending.differ.insert(member) {
                        conflicts.push(token);
                    }
                } else if pending.have.insert(member) && !pending.complete && self.all.without(pending.have).is_empty()
                {
                    pending.complete = true;
                    complete.push(*staged);
                }
            }
        }
        ignored
    }

    /// From now on tokens need these members. Returns those that are complete by it, in order.
    pub(crate) fn need(&mut self, all: MemberSet) -> Vec<Staged> {
        self.all = all;
        let shard = self.shard;
        let mut complete = Vec::new();
        for (session, state) in &mut self.sessions {
            for (seq, pending) in &mut state.pending {
                if !pending.complete && all.without(pending.have).is_empty() {
                    pending.complete = true;
                    let Pending { color, records, digest, .. } = *pending;
                    let token = Token { shard, session: *session, seq: *seq };
                    complete.push(Staged { token, color, records, digest });
                }
            }
        }
        complete.sort_unstable_by_key(|staged| staged.token);
        complete
    }

    /// Whether a token that was complete, and that no number was asked for, is so still with the members needed now. If not
    /// it is awaited again, and late at once.
    pub(crate) fn is_still_complete(&mut self, now: Time, token: Token) -> bool {
        let all = self.all;
        let pending = self.sessions.get_mut(&token.session).and_then(|session| session.pending.get_mut(&token.seq));
        // Its session was closed: numbers for it would only become holes.
        let Some(pending) = pending else { return false };
        pending.complete = all.without(pending.have).is_empty();
        if !pending.complete {
            self.late.push_front((now, token));
        }
        pending.complete
    }

    /// Whether some token waits for a member's report.
    pub(crate) fn is_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// The members that some token waits for although others have had it for a while.
    pub(crate) fn lacking(&self) -> MemberSet {
        let mut lacking = MemberSet::default();
        for (_, token) in self.late.iter().take(LOOKED_AT) {
            if let Some(late) = self.waits(*token).filter(|late| !late.have.is_empty()) {
                lacking = lacking.with(late.lacking);
            }
        }
        lacking
    }

    /// These have their numbers from an earlier incarnation.
    pub(crate) fn are_numbered(&mut self, run: &Assign) {
        self.numbered.extend(run.each().map(|(token, _)| token));
    }

    /// Whether a token of this session may be numbered.
    pub(crate) fn is_open(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// The numbers of these tokens are committed.
    pub(crate) fn forget(&mut self, run: &Assign) {
        if !self.numbered.is_empty() {
            run.each().for_each(|(token, _)| _ = self.numbered.remove(&token));
        }
        if let Some(session) = self.sessions.get_mut(&run.token.session) {
            (0..u64::from(run.tokens)).for_each(|i| _ = session.pending.remove(&(run.token.seq + i)));
        }
    }

    /// Whether each token that was complete, and is not settled, is at one of these members.
    pub(crate) fn all_held_by(&self, members: MemberSet) -> bool {
        let mut pending = self.sessions.values().flat_map(|session| session.pending.values());
        pending.all(|pending| !pending.complete || !pending.have.within(members).is_empty())
    }

    /// What this member has reported does not count any more.
    pub(crate) fn forget_member(&mut self, member: usize) {
        let gone = MemberSet::one(member);
        for pending in self.sessions.values_mut().flat_map(|session| session.pending.values_mut()) {
            (pending.have, pending.differ) = (pending.have.without(gone), pending.differ.without(gone));
        }
    }

    /// The members whose report of this token is still to come, with those that have it.
    fn waits(&self, token: Token) -> Option<Late> {
        let pending = self.sessions.get(&token.session)?.pending.get(&token.seq)?;
        let lacking = pending.lacking(self.all);
        // From one that is no member any more nothing can be got.
        (!lacking.is_empty()).then_some(Late { token, have: pending.have.within(self.all), lacking })
    }

    /// Forgets the oldest tokens as far as they wait for no report, so that [`Tokens::next_deadline`] means something.
    pub(crate) fn forget_done(&mut self) {
        while self.late.front().is_some_and(|(_, token)| self.waits(*token).is_none()) {
            self.late.pop_front();
        }
    }

    /// The tokens that are late now; each comes again after the same delay.
    pub(crate) fn take_late(&mut self, now: Time) -> Vec<Late> {
        let mut list = Vec::new();
        while let Some((_, token)) = self.late.front().copied().filter(|(deadline, _)| *deadline <= now) {
            self.late.pop_front();
            if let Some(late) = self.waits(token) {
                list.push(late);
                self.late.push_back((now.after(COMPLETION_DELAY_MICROS), token));
            }
        }
        list
    }

    /// Closes the sessions that are idle and returns them. One with a token that waits for a member's report is not idle;
    /// tokens in dispute, and complete ones that nobody numbered in all that time, go with their session.
    pub(crate) fn close_idle(&mut self, now: Time) -> Vec<SessionId> {
        if self.idle_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let all = self.all;
        let nonces = &mut self.nonces;
        let mut closed = Vec::new();
        let mut next = None;
        self.sessions.retain(|id, session| {
            if session.active.after(SESSION_IDLE_MICROS) <= now {
                if session.pending.values().all(|pending| pending.lacking(all).is_empty()) {
                    closed.push(*id);
                    forget_nonce(nonces, session.nonce);
                    return false;
                }
                session.active = now; // Not idle: look again after as long.
            }
            let at = session.active.after(SESSION_IDLE_MICROS);
            next = Some(next.map_or(at, |next: Time| next.min(at)));
            true
        });
        self.idle_at = next;
        closed.sort_unstable();
        closed
    }

    /// Closes a session that its client is done with. Returns whether it was open and nothing of it is pending; else it
    /// stays as it is, and is closed once it is idle.
    pub(crate) fn close(&mut self, id: SessionId) -> bool {
        if self.sessions.get(&id).is_none_or(|session| !session.pending.is_empty()) {
            return false;
        }
        if let Some(session) = self.sessions.remove(&id) {
            forget_nonce(&mut self.nonces, session.nonce);
        }
        true
    }

    /// The session that is idle for longest, for a minute at least, with nothing pending.
    pub(crate) fn spare(&self, now: Time) -> Option<SessionId> {
        let spare = |session: &Session| session.pending.is_empty() && session.active.after(SESSION_SPARE_MICROS) <= now;
        let sessions = self.sessions.iter().filter(|(_, session)| spare(session));
        sessions.min_by_key(|(id, session)| (session.active, **id)).map(|(id, _)| *id)
    }

    /// When [`Tokens::take_late`] or [`Tokens::close_idle`] may have something to do.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let late = self.late.front().map(|(deadline, _)| *deadline);
        late.into_iter().chain(self.idle_at).min()
    }
}

/// The session that this nonce named is closed.
fn forget_nonce(nonces: &mut FxHashSet<Uuid>, nonce: Option<Uuid>) {
    match nonce {
        Some(nonce) => _ = nonces.remove(&nonce),
        None => nonces.clear(), // Any of them may have named it.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexlog_protocol::{Epoch, Lsn, SeqNum};

    const START: Time = Time(1_000);
    const SESSION: SessionId = SessionId { epoch: Epoch(1), lsn: Lsn(2) };

    fn staged(seq: u64) -> Staged {
        let token = Token { shard: ShardId(4), session: SESSION, seq };
        Staged { token, color: Color(1), records: 2, digest: 77 }
    }

    fn tokens() -> Tokens {
        let mut tokens = Tokens::new(ShardId(4), MemberSet::first(3));
        tokens.open(START, SESSION, Some(Uuid::from_u128(5)));
        tokens
    }

    /// What becomes complete, what is in conflict, how many are not counted.
    fn report(tokens: &mut Tokens, now: Time, member: usize, list: &[Staged]) -> (Vec<Staged>, Vec<Token>, u64) {
        let (mut complete, mut conflicts) = (vec![], vec![]);
        let ignored = tokens.report(now, member, list, &mut complete, &mut conflicts);
        (complete, conflicts, ignored)
    }

    #[test]
    fn a_token_is_complete_once_when_all_have_it() {
        let mut t = tokens();
        assert_eq!(report(&mut t, START, 0, &[staged(1), staged(2)]), (vec![], vec![], 0));
        assert_eq!(report(&mut t, START, 0, &[staged(1)]), (vec![], vec![], 0), "the same member again");
        assert_eq!(report(&mut t, START, 2, &[staged(1)]), (vec![], vec![], 0));
        assert_eq!(report(&mut t, START, 1, &[staged(2), staged(1)]), (vec![staged(1)], vec![], 0));
        assert_eq!(report(&mut t, START, 2, &[staged(1)]), (vec![], vec![], 0), "complete already");
        assert_eq!(t.pending(), 2);
        t.forget(&Assign::one(staged(1).token, Color(1), SeqNum::MIN, 2));
        assert_eq!(t.pending(), 1);
    }

    #[test]
    fn what_a_closed_session_had_complete_is_so_no_more() {
        let mut t = tokens();
        (0..3).for_each(|member| _ = report(&mut t, START, member, &[staged(1)]));
        assert!(t.is_still_complete(START, staged(1).token));
        let idle = START.after(SESSION_IDLE_MICROS);
        assert_eq!(t.close_idle(idle), [SESSION]);
        assert!(!t.is_still_complete(idle, staged(1).token));
    }

    #[test]
    fn what_differs_is_told_once_and_never_complete() {
        let others = [
            Staged { digest: 78, ..staged(1) },
            Staged { records: 3, ..staged(1) },
            Staged { color: Color(2), ..staged(1) },
        ];
        for other in others {
            let mut t = tokens();
            report(&mut t, START, 0, &[staged(1)]);
            assert_eq!(report(&mut t, START, 1, &[other]), (vec![], vec![other.token], 0));
            assert_eq!(report(&mut t, START, 1, &[other]), (vec![], vec![], 0));
            assert_eq!(report(&mut t, START, 2, &[staged(1)]), (vec![], vec![], 0));
            t.forget_done();
            assert!(t.late.is_empty(), "nobody is asked to pull it");
        }
    }

    #[test]
    fn reports_of_no_open_session_are_not_counted() {
        let mut t = tokens();
        let mut elsewhere = staged(1);
        elsewhere.token.shard = ShardId(5);
        let mut unknown = staged(1);
        unknown.token.session.lsn = Lsn(3);
        let empty = Staged { records: 0, ..staged(1) };
        assert_eq!(report(&mut t, START, 0, &[elsewhere, unknown, empty, staged(1)]), (vec![], vec![], 3));
        assert_eq!(t.pending(), 1);
    }

    #[test]
    fn what_is_late_comes_again_until_it_is_complete() {
        let mut t = tokens();
        report(&mut t, START, 0, &[staged(1), staged(2), staged(3)]);
        report(&mut t, START, 1, &[staged(1), staged(2)]);
        report(&mut t, START, 2, &[staged(1)]);
        t.forget_done();
        let due = START.after(COMPLETION_DELAY_MICROS);
        assert_eq!(t.next_deadline(), Some(due));
        assert_eq!(t.take_late(Time(due.0 - 1)), []);
        let expected = |have: usize, lacking: &[usize], seq| {
            let mut set = MemberSet::default();
            lacking.iter().for_each(|member| assert!(set.insert(*member)));
            Late { token: staged(seq).token, have: MemberSet::first(have), lacking: set }
        };
        assert_eq!(t.take_late(due), [expected(2, &[2], 2), expected(1, &[1, 2], 3)]);
        assert_eq!(t.take_late(due), []);
        report(&mut t, due, 2, &[staged(2)]);
        report(&mut t, due, 1, &[staged(3)]);
        assert_eq!(t.take_late(due.after(COMPLETION_DELAY_MICROS)), [expected(2, &[2], 3)]);
    }

    #[test]
    fn idle_sessions_are_closed() {
        let mut t = tokens();
        assert!(t.knows(Uuid::from_u128(5)));
        let used = START.after(500);
        (0..3).for_each(|member| _ = report(&mut t, used, member, &[staged(1)]));
        assert_eq!(t.take_late(used.after(COMPLETION_DELAY_MICROS)), []);
        assert_eq!(t.close_idle(START.after(SESSION_IDLE_MICROS)), [], "it was used since");
        let idle = used.after(SESSION_IDLE_MICROS);
        assert_eq!(t.next_deadline(), Some(idle));
        assert_eq!(t.close_idle(idle), [SESSION]);
        assert_eq!((t.sessions(), t.pending(), t.next_deadline()), (0, 0, None));
        assert!(!t.is_open(SESSION) && !t.knows(Uuid::from_u128(5)));
    }

    #[test]
    fn a_session_is_closed_for_its_client_unless_something_of_it_is_pending() {
        let mut t = tokens();
        assert!(!t.close(SessionId { lsn: Lsn(3), ..SESSION }), "of no open session");
        let closes = |t: &mut Tokens| (t.close(SESSION), t.is_open(SESSION));
        report(&mut t, START, 0, &[staged(1)]);
        assert_eq!(closes(&mut t), (false, true), "members are awaited");
        (1..3).for_each(|member| _ = report(&mut t, START, member, &[staged(1)]));
        assert_eq!(closes(&mut t), (false, true), "complete, and its number not committed");
        t.forget(&Assign::one(staged(1).token, Color(1), SeqNum::MIN, 2));
        assert_eq!(closes(&mut t), (true, false));
        assert_eq!((t.close(SESSION), t.knows(Uuid::from_u128(5))), (false, false));
    }

    #[test]
    fn the_session_to_spare_is_the_one_that_is_idle_for_longest() {
        let session = |lsn| SessionId { lsn: Lsn(lsn), ..SESSION };
        let mut t = tokens();
        t.open(START.after(2), session(3), None);
        t.open(START.after(1), session(4), None);
        report(&mut t, START, 0, &[staged(1)]);
        let spare = START.after(1 + SESSION_SPARE_MICROS);
        assert_eq!(t.spare(Time(spare.0 - 1)), None, "the oldest has something pending");
        assert_eq!((t.spare(spare), t.spare(spare.after(1))), (Some(session(4)), Some(session(4))));
        assert!(t.close(session(4)));
        assert_eq!((t.spare(spare), t.spare(spare.after(1))), (None, Some(session(3))));
    }

    #[test]
    fn a_nonce_counts_again_once_the_session_that_it_may_name_is_closed() {
        let (known, other) = (Uuid::from_u128(5), SessionId { epoch: Epoch(1), lsn: Lsn(3) });
        for (nonce, still_known) in [(None, false), (Some(Uuid::from_u128(6)), true)] {
            let mut t = Tokens::new(ShardId(4), MemberSet::first(3));
            t.open(START, other, nonce);
            t.open(START.after(1), SESSION, Some(known));
            assert_eq!(t.close_idle(START.after(SESSION_IDLE_MICROS)), [other]);
            assert_eq!(t.knows(known), still_known);
        }
    }

    #[test]
    fn a_session_is_not_idle_while_a_member_is_awaited() {
        let mut t = tokens();
        report(&mut t, START, 0, &[staged(1)]);
        assert_eq!(t.close_idle(START.after(SESSION_IDLE_MICROS)), []);
        (1..3).for_each(|member| _ = report(&mut t, START, member, &[Staged { digest: 1, ..staged(1) }]));
        assert_eq!(t.close_idle(START.after(3 * SESSION_IDLE_MICROS)), [SESSION], "a dispute is not waited for");
    }

    #[test]
    fn what_an_earlier_incarnation_numbered_is_not_pending() {
        let mut tokens = tokens();
        let run = Assign::one(staged(1).token, Color(1), SeqNum::new(Epoch(1), 0), 2);
        tokens.are_numbered(&run);
        let late = report(&mut tokens, START, 0, &[staged(1), staged(2)]);
        assert_eq!((late, tokens.pending()), ((vec![], vec![], 0), 1), "only the other one");
        tokens.forget(&run);
        report(&mut tokens, START, 0, &[staged(1)]);
        assert_eq!(tokens.pending(), 2);
    }
}
