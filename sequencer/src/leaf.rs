//! The shard-log half: one shard's leaf, in one incarnation.
//!
//! It relies on the members of its view: each seals to it before anything else, reports a token only before it has
//! acknowledged its number, persists entries in order, and acknowledges only what is durable together with its records; and on numbered streams to them and to its
//! parent that repeat and lose nothing while the incarnation lives. It promises that a number is asked for only when
//! every member has the record (I2), that each number goes to one token and each token gets one number (I1), that
//! nothing is told to be committed before every member has it (I3), and that messages of another incarnation change
//! nothing (I9). The clock only decides when to ask again and which sessions are idle (I11).
//!
//! A leaf goes through three phases. *Sealing*: every member is asked for its report. *Recovering*: the longest log is
//! completed on all of them and a `NewView` entry behind it must commit; what members say is taken in, but nothing is
//! numbered. *Serving*. It may also stop, with a reason, and then does nothing any more.
//!
//! **Natural batching.** [`Leaf::handle`] takes one input and sends only what cannot be batched. Numbers to ask for,
//! entries, commit, settlements and tail rounds collect until [`Leaf::flush`], which the shell calls whenever it has no
//! more input at hand: under load batches grow by themselves, without a timer, and an idle system waits for nothing.
//!
//! What is held is bounded by what members may have under way: staged tokens and waiting clients there, [`MAX_SESSIONS`]
//! and [`MAX_UNCOMMITTED_ENTRIES`](crate::MAX_UNCOMMITTED_ENTRIES) here. With that many entries uncommitted, complete
//! tokens wait without a number and trims without an entry, and sessions are neither opened nor closed by their clients.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use flexlog_protocol::limits::MAX_SESSIONS;
use flexlog_protocol::peer::{ColorEnd, FromParent, Of, Range, SealReport, Staged, ToLeaf, ToMember, ToParent};
use flexlog_protocol::{
    Assign, Body, Color, Entry, Epoch, Incarnation, Lsn, ReplicaId, SeqNum, SessionId, ShardId, Time, Token, View,
};
use rustc_hash::FxHashMap;
use uuid::Uuid;

use crate::log::ShardLog;
use crate::members::{MAX_MEMBERS, MemberSet};
use crate::recovery::{Recovered, StopReason, push_range, recover};
use crate::tails::Tails;
use crate::tokens::Tokens;

mod changing;
mod replacing;
mod views;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod view_tests;

pub use views::ViewOutcome;
use views::Views;

/// What a leaf is given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A message from a replica, of whichever leaf incarnation it names.
    Member {
        /// Who sent it.
        from: ReplicaId,
        /// What it says.
        message: Of<ToLeaf>,
    },
    /// A message from the position that this incarnation is the leaf of.
    Parent(FromParent),
    /// A replica of the shard that is no member is within reach.
    Present(ReplicaId),
    /// These are the replicas of the shard. A member that is none of them leaves the view once all of them are in it.
    Replicas(Vec<ReplicaId>),
    /// The process of a replica is another one than before, or something that was said to it is lost.
    Lost(ReplicaId),
    /// What became of the last [`Output::ChangeView`].
    View(ViewOutcome),
    /// [`Leaf::next_deadline`] has come.
    Tick,
}

/// What a leaf wants done, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send this to a member.
    Member {
        /// The member.
        to: ReplicaId,
        /// What to say.
        message: Of<ToMember>,
    },
    /// Send this to the parent.
    Parent(ToParent),
    /// Change the shard's view in metadata, if it is `from` and this incarnation still holds the position; read it back
    /// until it is known. [`Input::View`] answers.
    ChangeView {
        /// The view that metadata has.
        from: View,
        /// The one that it shall have.
        to: View,
    },
    /// The shard's log is recovered and on all members; the leaf serves from here on.
    Serving,
    /// The leaf cannot lead its shard and does nothing from here on.
    Stopped(StopReason),
}

/// A leaf's state, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// The incarnation's epoch.
    pub epoch: Epoch,
    /// `sealing`, `recovering`, `serving` or `stopped`.
    pub phase: &'static str,
    /// The last entry written.
    pub last: Lsn,
    /// The last entry that every member has.
    pub commit: Lsn,
    /// Open sessions.
    pub sessions: usize,
    /// Tokens that some member has reported and whose numbers are not committed yet.
    pub pending: usize,
    /// Messages and reports that changed nothing: of another incarnation, of no open session, out of turn.
    pub ignored: u64,
    /// The replica that is being taken into the view.
    pub learner: Option<ReplicaId>,
}

/// One shard's leaf, in one incarnation: it makes numbers facts by leading the shard's log. [`Leaf::start`] once, then
/// [`Leaf::handle`] each input, and [`Leaf::flush`] whenever no more input is at hand.
#[derive(Debug)]
pub struct Leaf {
    me: Incarnation,
    views: Views,
    now: Time,
    phase: Phase,
    log: ShardLog,
    tokens: Tokens,
    colors: FxHashMap<Color, ColorState>,
    /// The colors with complete tokens that no request counts yet.
    ready: Vec<Color>,
    /// Trims that have no entry yet: the highest of each color.
    trims: BTreeMap<Color, SeqNum>,
    tails: Tails,
    /// Seals that are answered once the leaf serves.
    asked: Vec<Incarnation>,
    /// Whether one was answered: what is said before would not count.
    reported: bool,
    /// Wide colors whose stable the members are to be told.
    stable: BTreeMap<Color, SeqNum>,
    batches: u64,
    ignored: u64,
}

#[derive(Debug)]
enum Phase {
    /// The reports so far, by the members' places, what sealed members said after theirs, and the member that a newcomer
    /// copies from.
    Sealing {
        reports: Vec<Option<SealReport>>,
        early: Vec<(usize, ToLeaf)>,
        teacher: Option<usize>,
    },
    /// Over when the entry at `new_view` has committed.
    Recovering {
        new_view: Lsn,
    },
    Serving,
    Stopped,
}

#[derive(Debug, Default)]
struct ColorState {
    /// Complete tokens that no request counts yet, each with its number of records.
    ready: Vec<(Token, u32)>,
    /// Requests that the owner has not answered, in the order in which it will.
    orders: VecDeque<Order>,
    /// The exclusive end of the last epoch with a number or an end, and whether it has an end. The least number: none.
    end: SeqNum,
    closed: bool,
    wide: Option<Box<Wide>>,
    /// The last `EpochEnd` written in this incarnation: the epoch it leads to, and its place.
    ended: Option<(Epoch, Lsn)>,
    /// The highest trim written in this incarnation.
    trimmed: Option<SeqNum>,
}

/// What more there is to know of a wide color.
#[derive(Debug, Default)]
struct Wide {
    /// Everything below is settled on all its shards.
    stable: SeqNum,
    /// The numbers of this shard at or above.
    own: Vec<Range>,
    /// Its numbers below are committed.
    settled: SeqNum,
}

impl ColorState {
    /// Numbers that the log gives away, to records or as holes.
    fn give(&mut self, range: Range) {
        (self.end, self.closed) = (range.end(), false);
        if let Some(wide) = &mut self.wide {
            push_range(&mut wide.own, Some(range));
        }
    }
}

/// A request for numbers, and the tokens that it counts.
#[derive(Debug)]
struct Order {
    batch: u64,
    count: u32,
    tokens: Vec<(Token, u32)>,
}

impl Leaf {
    /// The leaf of `shard` as incarnation `me`, under the view that the metadata has. [`Leaf::start`] comes next.
    #[must_use]
    pub fn new(me: Incarnation, shard: ShardId, view: View) -> Self {
        let members = view.members.len();
        Self {
            me,
            phase: Phase::Sealing { reports: vec![None; members], early: Vec::new(), teacher: None },
            now: Time::default(),
            log: ShardLog::new(me.epoch, Lsn(0), vec![Lsn(0); members], MemberSet::first(members), Vec::new()),
            tokens: Tokens::new(shard, MemberSet::first(members)),
            views: Views::new(view),
            colors: FxHashMap::default(),
            ready: Vec::new(),
            trims: BTreeMap::new(),
            tails: Tails::default(),
            asked: Vec::new(),
            reported: false,
            stable: BTreeMap::new(),
            batches: 0,
            ignored: 0,
        }
    }

    /// The same, but members that make no progress for `timeout_micros` are dropped from the view, as long as it keeps
    /// `min_view` of them, and replicas that are within reach are taken in. Without this the view stays as it is.
    #[must_use]
    pub fn with_views(mut self, min_view: u32, timeout_micros: u64) -> Self {
        self.views.may_change(min_view, timeout_micros);
        self
    }

    /// Seals the members.
    pub fn start(&mut self, now: Time, out: &mut Vec<Output>) {
        self.now = now;
        let members = self.views.view().members.len();
        if members == 0 || members > MAX_MEMBERS {
            return self.stop(StopReason::ViewSize(members), out);
        }
        self.to_all(&ToMember::Seal, out);
        self.views.watch(now);
    }

    /// Takes one input. Adds to `out` what cannot wait for [`Leaf::flush`].
    pub fn handle(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        self.now = now;
        if self.views.is_frozen() && may_write(&input) {
            return self.views.hold(input);
        }
        match (&mut self.phase, input) {
            (Phase::Stopped, _) => self.ignored += 1,
            (_, Input::Member { from, message }) => match self.views.place_of(from) {
                Some(member) if message.leaf == self.me => self.member_says(now, member, message.message, out),
                _ => self.ignored += 1,
            },
            (_, Input::Present(replica)) => self.views.present(now, replica),
            (_, Input::Replicas(replicas)) => self.views.register(now, replicas),
            (_, Input::Lost(replica)) => self.lost_touch(now, replica, out),
            (_, Input::View(outcome)) => self.view_decided(now, outcome, out),
            (_, Input::Parent(FromParent::Seal { by, .. })) => self.sealed_by(by, out),
            (Phase::Serving, Input::Parent(message)) => self.parent_says(message, out),
            (_, Input::Parent(_)) => self.ignored += 1,
            (_, Input::Tick) => self.tick(now, out),
        }
        // Whatever ended the wait for a learner: what was held comes before anything else.
        self.thaw(now, out);
    }

    /// Sends what has collected. To be called whenever no more input is at hand.
    pub fn flush(&mut self, out: &mut Vec<Output>) {
        if matches!(self.phase, Phase::Sealing { .. } | Phase::Stopped) {
            return;
        }
        if !self.views.is_frozen() {
            self.write_trims();
        }
        if let Some((entries, commit)) = self.log.take_unsent() {
            self.to_all(&ToMember::Entries { entries, commit }, out);
        }
        if matches!(self.phase, Phase::Serving) && !self.stable.is_empty() {
            // Behind the commit that covers what is this shard's of it.
            let upto = std::mem::take(&mut self.stable).into_iter().collect();
            self.to_all(&ToMember::Stable { upto, commit: self.log.commit() }, out);
        }
        if matches!(self.phase, Phase::Serving) && self.reported {
            let settled = self.log.take_settled();
            for (color, upto) in &settled {
                if let Some(wide) = &mut self.color(*color).wide {
                    wide.settled = *upto;
                }
            }
            if !settled.is_empty() {
                out.push(Output::Parent(ToParent::Settle(settled)));
            }
            self.order(out);
            if let Some((round, colors)) = self.tails.begin() {
                out.push(Output::Parent(ToParent::Tails { round, colors }));
            }
        }
        self.tokens.forget_done();
        self.take_in(out);
        if self.is_waiting() {
            self.views.watch(self.now);
        }
    }

    /// Whether some member or learner may owe something.
    fn is_waiting(&self) -> bool {
        self.log.last() > self.log.commit()
            || self.tokens.is_late()
            || self.tails.to_confirm().is_some()
            || self.views.awaits()
    }

    /// When to call with [`Input::Tick`], if no input comes before; right after a flush. `None`: not at all.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        match self.phase {
            Phase::Stopped => None,
            Phase::Sealing { .. } => self.views.look_at(),
            Phase::Recovering { .. } | Phase::Serving => {
                self.tokens.next_deadline().into_iter().chain(self.views.look_at()).min()
            }
        }
    }

    /// How the leaf is doing.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            epoch: self.me.epoch,
            phase: match self.phase {
                Phase::Sealing { .. } => "sealing",
                Phase::Recovering { .. } => "recovering",
                Phase::Serving => "serving",
                Phase::Stopped => "stopped",
            },
            last: self.log.last(),
            commit: self.log.commit(),
            sessions: self.tokens.sessions(),
            pending: self.tokens.pending(),
            ignored: self.ignored,
            learner: self.views.learner.as_ref().map(|learner| self.views.id(learner.place)),
        }
    }

    /// The view of the last change known to be applied.
    #[must_use]
    pub fn view(&self) -> &View {
        self.views.view()
    }

    // ---- members ----

    fn member_says(&mut self, now: Time, member: usize, message: ToLeaf, out: &mut Vec<Output>) {
        if matches!(self.phase, Phase::Sealing { .. }) && !self.views.may_be_member(member) {
            return self.newcomer_says(now, member, message, out);
        }
        if let Phase::Sealing { reports, early, .. } = &mut self.phase {
            match message {
                ToLeaf::Sealed(report) if reports[member].is_none() => {
                    reports[member] = Some(*report);
                    self.views.joined_up(member);
                    self.recover_if_sealed(now, out);
                }
                ToLeaf::Sealed(_) => self.ignored += 1,
                later => early.push((member, later)),
            }
            return;
        }
        match message {
            ToLeaf::Sealed(report) => self.sealed_again(now, member, &report, out),
            ToLeaf::Learning => self.views.heard(now, member),
            ToLeaf::Learned { upto } => self.learned(now, member, upto, out),
            // The number of what it has staged may be committed and forgotten here: it reports again once it has joined.
            ToLeaf::Persisted(_) if self.views.is_learner(member) && !self.views.may_be_member(member) => {
                self.views.heard(now, member);
            }
            ToLeaf::Persisted(reports) => self.persisted(now, member, &reports, out),
            ToLeaf::Acked(lsn) => self.acked(member, lsn, out),
            ToLeaf::OpenSession { nonce } => self.open_session(now, member, nonce, out),
            ToLeaf::CloseSession { session } => self.close_session(session),
            ToLeaf::Trim { color, upto } => self.trim(color, upto),
            // Of the process before: the one that is there now asks behind its report.
            ToLeaf::TailAsk { .. } if self.views.is_cut(member) => self.ignored += 1,
            ToLeaf::TailAsk { ask, color } => {
                if color.is_wide() {
                    self.color(color); // It is followed from now on.
                }
                self.tails.ask(self.views.id(member), ask, color);
            }
            ToLeaf::Confirmed { round } => {
                self.views.answered(self.now, member);
                for (to, message) in self.tails.confirmed(member, round, self.views.in_force()) {
                    self.to(to, message, out);
                }
            }
        }
    }

    /// With the last report: takes the longest log, gives the others what they lack of it, and begins to write.
    fn recover_if_sealed(&mut self, now: Time, out: &mut Vec<Output>) {
        let Phase::Sealing { reports, early, .. } = &mut self.phase else { return };
        let members = self.views.members();
        // While a change is in doubt it is not known who these are.
        if self.views.changes() || members.iter().any(|member| reports[member].is_none()) {
            return;
        }
        let reports: Vec<SealReport> = members.iter().filter_map(|member| reports[member].take()).collect();
        let early = std::mem::take(early);
        let Recovered { last, acked, above, colors, sessions, staged } =
            match recover(self.me.epoch, self.views.view(), reports) {
                Ok(recovered) => recovered,
                Err(reason) => return self.stop(reason, out),
            };
        // Whoever was to take the place of a member that is back after all.
        self.views.give_up(now);

        for id in sessions {
            self.tokens.open(now, id, None);
        }
        let mut places = vec![Lsn::default(); self.views.places()];
        members.iter().zip(&acked).for_each(|(member, acked)| places[member] = *acked);
        self.log = ShardLog::new(self.me.epoch, last, places, members, above.clone());
        self.tokens.need(members);
        for entry in &above {
            if let Body::Assign(runs) = &entry.body {
                runs.iter().for_each(|run| self.tokens.are_numbered(run));
            }
        }
        for (member, acked) in members.iter().zip(acked) {
            let entries: Vec<_> = above.iter().filter(|entry| entry.lsn > acked).cloned().collect();
            if !entries.is_empty() {
                let commit = self.log.commit();
                self.to_place(member, ToMember::Entries { entries, commit }, out);
            }
        }
        let new_view = self.log.append(Body::NewView(self.views.view().clone()));
        self.phase = Phase::Recovering { new_view };
        for ColorEnd { color, end, closed, stable, own } in colors {
            let state = self.color(color);
            (state.end, state.closed) = (end, closed);
            if let Some(wide) = &mut state.wide {
                // By the time that anyone asks, all of it is committed.
                let settled = own.last().map_or(end, Range::end);
                **wide = Wide { stable, own, settled };
            }
        }
        for (member, staged) in members.iter().zip(staged) {
            self.persisted(now, member, &staged, out);
        }
        for (member, message) in early {
            self.member_says(now, member, message, out);
        }
    }

    fn acked(&mut self, member: usize, lsn: Lsn, out: &mut Vec<Output>) {
        match self.log.acked(member, lsn) {
            Some(committed) => {
                self.views.heard(self.now, member);
                self.committed(committed, out);
            }
            None => self.ignored += 1,
        }
    }

    fn committed(&mut self, committed: Vec<Arc<Entry>>, out: &mut Vec<Output>) {
        for entry in committed {
            if let Body::Assign(runs) = &entry.body {
                runs.iter().for_each(|run| self.tokens.forget(run));
            }
        }
        if let Phase::Recovering { new_view } = self.phase
            && self.log.commit() >= new_view
        {
            self.phase = Phase::Serving;
            out.push(Output::Serving);
            for by in std::mem::take(&mut self.asked) {
                self.report(by, out);
            }
        }
    }

    fn color(&mut self, color: Color) -> &mut ColorState {
        state_of(&mut self.colors, color)
    }

    /// Sessions are opened by an entry. A nonce that is known gets another one, which members take for the first session.
    /// With as many sessions as there may be, one that nobody seems to need makes room.
    fn open_session(&mut self, now: Time, member: usize, nonce: Uuid, out: &mut Vec<Output>) {
        let known = self.tokens.knows(nonce);
        if !known
            && self.tokens.sessions() >= MAX_SESSIONS
            && let Some(spare) = self.tokens.spare(now)
        {
            self.close_session(spare);
        }
        if self.log.is_full() || (!known && self.tokens.sessions() >= MAX_SESSIONS) {
            return self.to(self.views.id(member), ToMember::SessionRefused { nonce }, out);
        }
        let lsn = self.log.append(Body::OpenSession { nonce });
        if !known {
            self.tokens.open(now, SessionId { epoch: self.me.epoch, lsn }, Some(nonce));
        }
    }

    /// What of a session is pending must be numbered first, or be given up by the rule for idle ones.
    fn close_session(&mut self, session: SessionId) {
        if !self.log.is_full() && self.tokens.close(session) {
            self.log.append(Body::CloseSession(session));
        }
    }

    /// A trim that one already written covers needs no entry: that one answers whoever waits for it.
    fn trim(&mut self, color: Color, upto: SeqNum) {
        if self.color(color).trimmed.is_none_or(|trimmed| upto > trimmed) {
            let wanted = self.trims.entry(color).or_insert(upto);
            *wanted = upto.max(*wanted);
        }
    }

    fn write_trims(&mut self) {
        while !self.log.is_full()
            && let Some((color, upto)) = self.trims.pop_first()
        {
            self.log.append(Body::Trim { color, upto });
            self.color(color).trimmed = Some(upto);
        }
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Output>) {
        if self.views.looks(now) {
            self.look(now, out);
        }
        if matches!(self.phase, Phase::Sealing { .. }) {
            return;
        }
        for late in self.tokens.take_late(now) {
            let Some(source) = late.have.iter().next() else { continue };
            let from = self.views.id(source);
            for member in late.lacking.iter() {
                self.to_place(member, ToMember::Complete { token: late.token, from }, out);
            }
        }
        if self.views.is_frozen() {
            return;
        }
        for session in self.tokens.close_idle(now) {
            self.log.append(Body::CloseSession(session));
        }
    }

    // ---- numbers ----

    fn persisted(&mut self, now: Time, member: usize, reports: &[Staged], out: &mut Vec<Output>) {
        self.views.heard(now, member);
        let (mut complete, mut conflicts) = (Vec::new(), Vec::new());
        self.ignored += self.tokens.report(now, member, reports, &mut complete, &mut conflicts);
        for token in conflicts {
            self.to(self.views.id(member), ToMember::Conflict { token }, out);
        }
        self.completed(&complete);
    }

    /// These tokens may be given numbers.
    fn completed(&mut self, mut complete: &[Staged]) {
        while let Some(first) = complete.first() {
            let run = complete.iter().take_while(|staged| staged.color == first.color).count();
            let state = state_of(&mut self.colors, first.color);
            if state.ready.is_empty() {
                self.ready.push(first.color);
            }
            state.ready.extend(complete[..run].iter().map(|staged| (staged.token, staged.records)));
            complete = &complete[run..];
        }
    }

    /// Asks for numbers for all complete tokens, one request a color. (The count fits: members hold far fewer records
    /// staged than an epoch has numbers.)
    fn order(&mut self, out: &mut Vec<Output>) {
        if self.log.is_full() || self.views.is_frozen() {
            return;
        }
        for color in std::mem::take(&mut self.ready) {
            let state = state_of(&mut self.colors, color);
            let tokens = std::mem::take(&mut state.ready);
            let count = tokens.iter().fold(0, |sum: u32, (_, records)| sum.saturating_add(*records));
            self.batches += 1;
            let batch = self.batches;
            state.orders.push_back(Order { batch, count, tokens });
            out.push(Output::Parent(ToParent::Order { batch, color, count }));
        }
    }

    /// Whoever seals is told how far numbers went, with all that was granted so far; once, when the shard's members have
    /// all sealed to this leaf.
    fn sealed_by(&mut self, by: Incarnation, out: &mut Vec<Output>) {
        match self.phase {
            Phase::Serving => self.report(by, out),
            Phase::Stopped => self.ignored += 1,
            // A newer one of the same place is the one that still wants to know.
            Phase::Sealing { .. } | Phase::Recovering { .. } => {
                self.asked.retain(|other| other.position != by.position);
                self.asked.push(by);
            }
        }
    }

    fn report(&mut self, by: Incarnation, out: &mut Vec<Output>) {
        self.reported = true;
        let end = |(color, state): (&Color, &ColorState)| {
            let (stable, own) = state.wide.as_ref().map_or_else(Default::default, |w| (w.stable, w.own.clone()));
            let known = state.end > SeqNum::MIN || state.wide.is_some();
            known.then_some(ColorEnd { color: *color, end: state.end, closed: state.closed, stable, own })
        };
        let mut colors: Vec<_> = self.colors.iter().filter_map(end).collect();
        colors.sort_unstable_by_key(|end| end.color);
        out.push(Output::Parent(ToParent::Sealed { by, nth: 0, colors }));
        let settled = |(color, state): (&Color, &ColorState)| {
            Some((*color, state.wide.as_ref()?.settled)).filter(|s| s.1 > SeqNum::MIN)
        };
        let mut settled: Vec<_> = self.colors.iter().filter_map(settled).collect();
        settled.sort_unstable();
        if !settled.is_empty() {
            out.push(Output::Parent(ToParent::Settle(settled)));
        }
    }

    fn parent_says(&mut self, message: FromParent, out: &mut Vec<Output>) {
        match message {
            FromParent::Grant { batch, color, first, count, ends } => {
                let orders = self.colors.get_mut(&color).map(|state| &mut state.orders);
                let asked = |order: &Order| order.batch == batch && order.count == count && first.plus(count).is_some();
                match orders {
                    Some(orders) if orders.front().is_some_and(asked) => {
                        let tokens = orders.pop_front().map_or(Vec::new(), |order| order.tokens);
                        self.granted(color, first, ends, tokens);
                    }
                    _ => self.ignored += 1,
                }
            }
            FromParent::Tails { round, tails } if self.tails.expects(round) => {
                let mut answers = FxHashMap::default();
                for (color, tail, ends) in tails {
                    let after = self.end_epoch(color, ends, tail.epoch());
                    let after = self.fill_upto(color, tail).unwrap_or(after);
                    answers.insert(color, (tail, after));
                }
                self.tails.answered(answers);
                self.to_all(&ToMember::Confirm { round }, out);
            }
            FromParent::Tails { .. } => self.ignored += 1,
            FromParent::Seal { .. } => self.ignored += 1,
            FromParent::Stable(colors) => {
                for (color, upto) in colors {
                    if let Some(wide) = self.colors.get_mut(&color).and_then(|state| state.wide.as_mut()) {
                        wide.stable = wide.stable.max(upto);
                        wide.own.retain(|range| range.end() > wide.stable);
                        self.stable.insert(color, wide.stable);
                    }
                }
            }
        }
    }

    /// Splits the numbers from `first` on among the tokens of a request, in its order. A token whose session was closed
    /// meanwhile leaves a hole.
    fn granted(&mut self, color: Color, first: SeqNum, ends: Option<SeqNum>, tokens: Vec<(Token, u32)>) {
        self.end_epoch(color, ends, first.epoch());
        let mut hole: Option<(SeqNum, u32)> = self.lost(color, first);
        let given = hole.map_or(first, |(lost, _)| lost);
        let mut counter = first.counter();
        for (token, records) in tokens {
            let number = SeqNum::new(first.epoch(), counter);
            counter += records; // At most what was granted, which fits.
            if self.tokens.is_open(token.session) {
                self.write_hole(color, hole.take());
                self.log.assign(Assign::one(token, color, number, records));
            } else {
                let (start, count) = hole.unwrap_or((number, 0));
                hole = Some((start, count + records));
            }
        }
        self.write_hole(color, hole);
        self.color(color).give(Range { first: given, count: counter - given.counter() });
    }

    fn write_hole(&mut self, color: Color, hole: Option<(SeqNum, u32)>) {
        if let Some((first, count)) = hole {
            self.log.append(Body::Hole { color, first, count });
        }
    }

    /// The numbers below `first` that this shard should have been granted and was not: they were lost on the way with the
    /// position that had them. All numbers of a color that is not wide are this shard's.
    fn lost(&self, color: Color, first: SeqNum) -> Option<(SeqNum, u32)> {
        let end = self.colors.get(&color).map_or(SeqNum::MIN, |state| state.end);
        let end = if end.epoch() == first.epoch() { end } else { SeqNum::first_of(first.epoch()) };
        let count = first.counter().checked_sub(end.counter()).filter(|count| *count > 0)?;
        (!color.is_wide()).then_some((end, count))
    }

    /// Grants come before a tail that counts them. So what is below it and has not come was lost, and whoever reads up to
    /// the tail would wait for it until the color's next append. Returns the place of the hole.
    fn fill_upto(&mut self, color: Color, tail: SeqNum) -> Option<Lsn> {
        let (first, count) = self.lost(color, tail)?;
        let lsn = self.log.append(Body::Hole { color, first, count });
        self.color(color).give(Range { first, count });
        Some(lsn)
    }

    /// Numbers that a leaf before this one was granted, and told of, count in the end of their epoch though its entries
    /// were lost with it. Where all numbers of a color are this shard's, they are written down as holes.
    fn lost_below(&mut self, color: Color, end: SeqNum) {
        let known = self.colors.get(&color).map_or((SeqNum::MIN, false), |state| (state.end, state.closed));
        let (last, closed) = known;
        if color.is_wide() || last >= end {
            return;
        }
        if last > SeqNum::MIN && last.epoch() < end.epoch() && !closed {
            self.log.append(Body::EpochEnd { color, end: last, next: end.epoch() });
        }
        self.write_hole(color, self.lost(color, end));
    }

    /// Writes the end of a color's earlier epoch, unless this incarnation has: the owner tells it until it is settled.
    ///
    /// Returns the place of the last such entry of the color, 0 if there is none in this incarnation.
    fn end_epoch(&mut self, color: Color, ends: Option<SeqNum>, next: Epoch) -> Lsn {
        let state = self.colors.get(&color);
        let goes_on = state.is_some_and(|state| state.end.epoch() >= next);
        let written = state.and_then(|state| state.ended);
        match (ends, written) {
            (Some(end), written) if !goes_on && written.is_none_or(|(epoch, _)| epoch < next) => {
                self.lost_below(color, end);
                let lsn = self.log.append(Body::EpochEnd { color, end, next });
                let state = self.color(color);
                state.ended = Some((next, lsn));
                (state.end, state.closed) = (end, true);
                lsn
            }
            (_, written) => written.map_or(Lsn(0), |(_, lsn)| lsn),
        }
    }

    // ---- sending ----

    fn to(&self, to: ReplicaId, message: ToMember, out: &mut Vec<Output>) {
        out.push(Output::Member { to, message: Of { leaf: self.me, message } });
    }

    fn to_place(&self, place: usize, message: ToMember, out: &mut Vec<Output>) {
        self.to(self.views.id(place), message, out);
    }

    /// To all who are sent every entry.
    fn to_all(&self, message: &ToMember, out: &mut Vec<Output>) {
        self.views.audience().iter().for_each(|place| self.to_place(place, message.clone(), out));
    }

    fn stop(&mut self, reason: StopReason, out: &mut Vec<Output>) {
        self.phase = Phase::Stopped;
        out.push(Output::Stopped(reason));
    }
}

/// Whether the input may have the leaf write an entry, or tell its parent what it has not written yet.
fn may_write(input: &Input) -> bool {
    match input {
        Input::Parent(_) => true,
        Input::Member { message, .. } => {
            matches!(message.message, ToLeaf::OpenSession { .. } | ToLeaf::CloseSession { .. } | ToLeaf::Trim { .. })
        }
        Input::Present(_) | Input::Replicas(_) | Input::Lost(_) | Input::View(_) | Input::Tick => false,
    }
}

fn state_of(colors: &mut FxHashMap<Color, ColorState>, color: Color) -> &mut ColorState {
    let fresh = || ColorState { wide: color.is_wide().then(Box::default), ..ColorState::default() };
    colors.entry(color).or_insert_with(fresh)
}
