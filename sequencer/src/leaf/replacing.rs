//! How a view that lost members for good gets others before its log is recovered.
//!
//! A new leaf drops silent members and recovers from those that are left. Where so few are left that the view would be below
//! `min_view`, a replica of the shard that is within reach is taken in in their place: it copies from the sealed member with
//! the longest log, until it has all that this one has, and only then metadata is asked for the view with it and without the
//! silent ones. Whatever may have settled is on every member of the view, so on that one, too. The newcomer is sealed once
//! more, and what follows is the recovery of the new view, as if it had always been in force.
//!
//! A silent member that reports before metadata was asked ends this: the view is as it was.

use flexlog_protocol::peer::{SealReport, ToLeaf, ToMember};
use flexlog_protocol::{Lsn, Time};

use super::views::Step;
use super::{Leaf, Output, Phase};
use crate::members::MemberSet;
use crate::recovery::StopReason;

impl Leaf {
    /// Members that are silent for too long cannot be dropped: begins with a replica that is within reach.
    pub(super) fn replace(&mut self, now: Time, out: &mut Vec<Output>) {
        if self.longest_sealed().is_none() {
            return;
        }
        if let Some(place) = self.views.begin(now) {
            self.send_again(place, out);
        }
    }

    /// What the replica said counts no more: it is to report.
    pub(super) fn send_again(&mut self, place: usize, out: &mut Vec<Output>) {
        if let Phase::Sealing { reports, early, .. } = &mut self.phase {
            reports.resize(self.views.places(), None);
            reports[place] = None;
            early.retain(|(from, _)| *from != place);
        }
        self.to_place(place, ToMember::Seal, out);
    }

    /// The members that have not reported, while that is awaited.
    pub(super) fn silent(&self) -> MemberSet {
        let Phase::Sealing { reports, .. } = &self.phase else { return MemberSet::default() };
        let silent = self.views.members().iter().filter(|member| reports[*member].is_none());
        silent.fold(MemberSet::default(), |set, member| set.with(MemberSet::one(member)))
    }

    /// A member with the longest log among those that have reported.
    fn longest_sealed(&self) -> Option<usize> {
        let Phase::Sealing { reports, .. } = &self.phase else { return None };
        let members = self.views.members();
        let last = |member: usize| reports[member].as_ref().map(|report| report.last);
        let longest = members.iter().filter_map(last).max()?;
        let longest: Vec<usize> = members.iter().filter(|member| last(*member) == Some(longest)).collect();
        self.views.whose_turn(&longest)
    }

    /// What a replica says that is taken in before the log is recovered.
    pub(super) fn newcomer_says(&mut self, now: Time, place: usize, message: ToLeaf, out: &mut Vec<Output>) {
        match message {
            // It begins anew, or lacks records that its teacher has given up: not at once, or it would be so again and again.
            ToLeaf::Sealed(_) if self.views.learner.as_ref().is_some_and(|learner| learner.step != Step::Sealing) => {
                self.views.give_up(now);
            }
            ToLeaf::Sealed(report) => {
                self.views.heard(now, place);
                self.teach_newcomer(place, *report, out);
            }
            ToLeaf::Learning => self.views.heard(now, place),
            ToLeaf::Learned { upto } => self.newcomer_learned(now, place, upto, out),
            ToLeaf::Acked(lsn) => {
                self.views.heard(now, place);
                self.newcomer_has(now, lsn, out);
            }
            // It says so again once it is a member.
            _ => {}
        }
    }

    fn teach_newcomer(&mut self, place: usize, report: SealReport, out: &mut Vec<Output>) {
        let Some(source) = self.longest_sealed() else { return };
        let Phase::Sealing { reports, teacher, .. } = &mut self.phase else { return };
        // It may have been a member once, and know more of what is committed than its teacher was told.
        let commit = reports.iter().flatten().map(|report| report.commit).fold(report.commit, Lsn::max);
        let last = reports[source].as_ref().map_or(Lsn::default(), |report| report.last.1);
        if last < commit {
            return self.stop(StopReason::Lost { member: self.views.id(source), last, commit }, out);
        }
        *teacher = Some(source);
        if let Some(learner) = &mut self.views.learner {
            learner.step = Step::Copying;
        }
        self.to_place(source, ToMember::Entries { entries: Vec::new(), commit }, out);
        self.to_place(place, ToMember::Learn { from: self.views.id(source), behind: commit }, out);
    }

    /// What its teacher has, as long as that one is there.
    fn lesson(&self) -> Option<&SealReport> {
        let Phase::Sealing { reports, teacher, .. } = &self.phase else { return None };
        reports[(*teacher)?].as_ref()
    }

    /// The newcomer has copied what is committed at `upto`. It gets the rest of what its teacher has.
    fn newcomer_learned(&mut self, now: Time, place: usize, upto: Lsn, out: &mut Vec<Output>) {
        let copies = self.views.learner.as_ref().is_some_and(|learner| learner.step == Step::Copying);
        let Some(report) = self.lesson().filter(|_| copies) else {
            self.ignored += 1;
            return;
        };
        let entries: Vec<_> = report.entries.iter().filter(|entry| entry.lsn > upto).cloned().collect();
        let commit = upto.max(report.commit);
        self.views.heard(now, place);
        if let Some(learner) = &mut self.views.learner {
            learner.step = Step::Following;
        }
        if !entries.is_empty() {
            self.to_place(place, ToMember::Entries { entries, commit }, out);
        }
        self.newcomer_has(now, upto, out);
    }

    /// With all that its teacher has, it may take the place of a member.
    fn newcomer_has(&mut self, now: Time, upto: Lsn, out: &mut Vec<Output>) {
        let follows = self.views.learner.as_ref().is_some_and(|learner| learner.step == Step::Following);
        if !follows || self.lesson().is_none_or(|report| upto < report.last.1) {
            return;
        }
        if let Some(to) = self.views.exchange(self.silent()) {
            self.ask(to, out);
            self.views.watch(now);
        }
    }

    /// A change that was asked for while the members are sealed is decided. Whoever is new in the view reports once more:
    /// what it said before it had all is not its log.
    pub(super) fn seal_joined(&mut self, now: Time, before: MemberSet, out: &mut Vec<Output>) {
        for place in self.views.members().without(before).iter() {
            self.send_again(place, out);
        }
        if self.views.learner.is_some() {
            self.views.give_up(now);
        }
    }
}
