//! How a leaf's view changes: who is dropped, who is taken in, and what follows from that (the design's view change).

use std::cmp::Reverse;

use flexlog_protocol::peer::{SealReport, ToMember};
use flexlog_protocol::{Body, Color, Lsn, ReplicaId, SeqNum, Time, Token, View};

use super::views::{Owing, Step, ViewOutcome};
use super::{Leaf, Output, Phase};
use crate::members::MemberSet;
use crate::recovery::StopReason;

impl Leaf {
    /// What was said to a replica is lost: one that is led must report again, and one that is taken in begins anew.
    pub(super) fn lost_touch(&mut self, now: Time, replica: ReplicaId, out: &mut Vec<Output>) {
        let learns = self.views.absent(now, replica);
        let Some(place) = self.views.place_of(replica) else { return };
        if let Phase::Sealing { reports, early, teacher } = &mut self.phase {
            reports[place] = None;
            early.retain(|(from, _)| *from != place);
            if *teacher == Some(place) && !self.views.changes() {
                self.views.give_up(now);
            }
        }
        if learns && !self.views.may_be_member(place) {
            return;
        }
        self.views.cut(place);
        self.tails.forget(replica);
        self.to_place(place, ToMember::Seal, out);
        self.views.watch(now);
    }

    /// A replica reports although this leaf leads already: one that is taken in, or a member that lost what it was sent.
    pub(super) fn sealed_again(&mut self, now: Time, place: usize, report: &SealReport, out: &mut Vec<Output>) {
        self.views.heard(now, place);
        // Whatever it still wants to know it asks again behind this.
        self.tails.forget(self.views.id(place));
        // If it may be a member by now, what it lost is sent to it like to any other.
        if self.views.is_learner(place) && !self.views.may_be_member(place) {
            return self.teach(place, out);
        }
        let (epoch, last) = report.last;
        if !self.log.covers(epoch, last) {
            // It does not have what it said it had. Without it the shard goes on; with nobody else it must not.
            let (member, commit) = (self.views.id(place), self.log.commit());
            return match self.views.drop(MemberSet::one(place)) {
                Some(to) => self.ask(to, out),
                None => self.stop(StopReason::Lost { member, last, commit }, out),
            };
        }
        let was_cut = self.views.is_cut(place);
        self.views.joined_up(place);
        self.log.has(place, last);
        let committed = self.log.need(self.views.in_force());
        self.committed(committed, out);
        let commit = self.log.commit();
        // Also without entries: how far they are committed may have been said while it was not sent anything.
        if let Some(entries) = self.log.behind(last).filter(|entries| was_cut || !entries.is_empty()) {
            self.to_place(place, ToMember::Entries { entries, commit }, out);
        }
        self.say_stable_again();
        self.persisted(now, place, &report.staged, out);
        self.confirm_again(place, out);
    }

    /// How far wide colors are settled is told once, when that moves: one that lost what it was sent, or comes later, is
    /// told behind the entries that it is sent again. To the others it is nothing new.
    fn say_stable_again(&mut self) {
        let wide = self.colors.iter().filter_map(|(color, state)| Some((*color, state.wide.as_ref()?.stable)));
        self.stable.extend(wide.filter(|(_, stable)| *stable > SeqNum::MIN));
    }

    fn confirm_again(&mut self, place: usize, out: &mut Vec<Output>) {
        if let Some(round) = self.tails.to_confirm() {
            self.to_place(place, ToMember::Confirm { round }, out);
        }
    }

    /// Has the learner copy what is committed now; what commits from now on is kept for it.
    fn teach(&mut self, place: usize, out: &mut Vec<Output>) {
        // The one that has most is least likely to keep it waiting. One that is gone without a word says nothing for ever: the
        // next try asks the next one.
        let mut members: Vec<usize> = self.views.members().iter().collect();
        members.sort_by_key(|member| (self.views.is_cut(*member), Reverse(self.log.acked_by(*member)), *member));
        let Some(source) = self.views.whose_turn(&members) else { return };
        // What was lost when it was a member is not awaited: it is sent what follows on its copy.
        self.views.joined_up(place);
        // What it had staged as a member it may have dropped since.
        self.tokens.forget_member(place);
        self.tails.forget(self.views.id(place));
        let behind = self.log.keep();
        if let Some(learner) = &mut self.views.learner {
            learner.step = Step::Copying;
        }
        self.to_place(place, ToMember::Learn { from: self.views.id(source), behind }, out);
    }

    /// The learner has copied what was committed at `upto`: from there on it is sent the entries.
    pub(super) fn learned(&mut self, now: Time, place: usize, upto: Lsn, out: &mut Vec<Output>) {
        // One that follows already was told to learn once more while it said so: it goes on from where it is now.
        if !self.views.is_learner(place)
            || self.views.may_be_member(place)
            || self.views.learner.as_ref().is_none_or(|learner| learner.step == Step::Sealing)
        {
            self.ignored += 1;
            return;
        }
        self.views.heard(now, place);
        match self.log.behind(upto) {
            // It took too long. What it lacks now is less.
            None => self.teach(place, out),
            Some(entries) => {
                let commit = self.log.commit();
                self.log.has(place, upto);
                self.to_place(place, ToMember::Entries { entries, commit }, out);
                self.say_stable_again();
                if let Some(learner) = &mut self.views.learner {
                    learner.step = Step::Following;
                }
            }
        }
    }

    /// Goes on with the replica that is taken in; with every flush, after what was written has been sent.
    pub(super) fn take_in(&mut self, out: &mut Vec<Output>) {
        let Some(place) = self.views.learner.as_ref().map(|learner| learner.place) else { return };
        if !matches!(self.phase, Phase::Serving) || self.views.changes() {
            return;
        }
        let (acked, last) = (self.log.acked_by(place), self.log.last());
        if self.views.is_close(acked, last) {
            self.log.keep_no_more();
            self.views.catch_up(self.now);
        }
        if self.views.is_frozen()
            && self.log.is_sent()
            && acked == last
            && let Some(to) = self.views.add()
        {
            self.ask(to, out);
        }
    }

    /// Looks who makes progress.
    pub(super) fn look(&mut self, now: Time, out: &mut Vec<Output>) {
        let owing = match &self.phase {
            Phase::Stopped => return,
            Phase::Sealing { .. } => Owing { store: self.silent(), ..Owing::default() },
            Phase::Recovering { .. } | Phase::Serving => {
                let members = self.views.members();
                let last = self.log.last();
                let behind = members.iter().filter(|member| self.log.acked_by(*member) < last);
                let behind = behind.fold(MemberSet::default(), |set, member| set.with(MemberSet::one(member)));
                // That all are behind may be this leaf's own doing: it has not sent yet.
                let behind = if self.log.is_sent() { behind } else { MemberSet::default() };
                Owing {
                    store: behind.with(self.tokens.lacking()).within(members),
                    answer: self.tails.lacking(members).within(members),
                }
            }
        };
        let stalled = self.views.stalled(now, owing);
        let retired = if matches!(self.phase, Phase::Serving) { self.views.retired() } else { MemberSet::default() };
        let gone = stalled.with(retired);
        if self.keep_records(self.views.members().without(gone))
            && let Some(to) = self.views.drop(gone)
        {
            self.ask(to, out);
        }
        if self.views.learner_is_late(now) {
            self.views.give_up(now);
            self.log.keep_no_more();
        }
        if matches!(self.phase, Phase::Serving) {
            if let Some(place) = self.views.begin(now) {
                self.log.has(place, Lsn::default());
                self.to_place(place, ToMember::Seal, out);
            }
        } else if !gone.is_empty() {
            self.replace(now, out);
        }
        if matches!(self.phase, Phase::Sealing { .. }) || !owing.is_empty() || self.views.awaits() {
            self.views.watch(now);
        }
    }

    /// Whether these members have, together, all records that a number was asked for, or that have one and are not
    /// committed: one who joined gets them from one who has them, so the last who has them is not dropped.
    fn keep_records(&self, members: MemberSet) -> bool {
        self.tokens.all_held_by(members) && self.log.recovered_held_by(members)
    }

    pub(super) fn ask(&self, to: View, out: &mut Vec<Output>) {
        out.push(Output::ChangeView { from: self.views.view().clone(), to });
    }

    /// It is known what became of the change that was asked for.
    pub(super) fn view_decided(&mut self, now: Time, outcome: ViewOutcome, out: &mut Vec<Output>) {
        if outcome == ViewOutcome::Deposed {
            return self.stop(StopReason::Deposed, out);
        }
        let before = self.views.members();
        let applied = self.views.decided(now, outcome == ViewOutcome::Applied);
        match (&self.phase, applied) {
            (Phase::Sealing { .. }, _) => {
                self.seal_joined(now, before, out);
                self.recover_if_sealed(now, out);
            }
            (_, true) => self.enter_view(now, out),
            (_, false) => self.need_members(now, out),
        }
        self.views.watch(now);
    }

    /// The first entry under the new view, and what completes, commits or is confirmed by it.
    fn enter_view(&mut self, now: Time, out: &mut Vec<Output>) {
        let new_view = self.log.append(Body::NewView(self.views.view().clone()));
        if let Phase::Recovering { new_view: first } = &mut self.phase {
            *first = new_view;
        }
        self.need_members(now, out);
    }

    /// Completion, commit and confirmation need those who are in force now.
    fn need_members(&mut self, now: Time, out: &mut Vec<Output>) {
        let members = self.views.in_force();
        let complete = self.tokens.need(members);
        self.completed(&complete);
        self.look_at_ready(now);
        let committed = self.log.need(members);
        self.committed(committed, out);
        for (to, message) in self.tails.look(members) {
            self.to(to, message, out);
        }
        for place in self.tails.lacking(members).iter() {
            self.confirm_again(place, out);
        }
    }

    /// Tokens that no request counts yet need the new member too.
    fn look_at_ready(&mut self, now: Time) {
        let colors: Vec<Color> = self.ready.clone();
        for color in colors {
            let Some(state) = self.colors.get_mut(&color) else { continue };
            let tokens = &mut self.tokens;
            state.ready.retain(|(token, _): &(Token, u32)| tokens.is_still_complete(now, *token));
            if state.ready.is_empty() {
                self.ready.retain(|other| *other != color);
            }
        }
    }

    /// Takes what waited for the learner to catch up, unless it still does.
    pub(super) fn thaw(&mut self, now: Time, out: &mut Vec<Output>) {
        if self.views.is_frozen() {
            return;
        }
        for input in self.views.take_held() {
            self.handle(now, input, out);
        }
    }
}
