//! Who a leaf needs: the members of its views, and one replica on its way in.
//!
//! What completion, commit and confirmation need is every member of the view in force, and of both views while a change
//! is in doubt. This part keeps who that is, notices who makes no progress, and takes a replica in: seal, copy, follow,
//! and a moment without any entry in which it catches up. It promises that a change of view is asked for only one at a
//! time, never below `min_view`, and only among members that follow this leaf; what metadata says of it is taken as it is.
//! The clock decides only when to give a replica up (I11).

use std::collections::{BTreeMap, VecDeque};

use flexlog_protocol::limits::{ADD_PAUSE_MICROS, LEARNER_TIMEOUT_MICROS, MAX_ADD_PAUSE_MICROS};
use flexlog_protocol::{Lsn, ReplicaId, Time, View, ViewNumber};

use super::Input;
use crate::members::{MAX_MEMBERS, MemberSet};

/// How often it is looked who makes progress, as a part of the time that a member is given.
const LOOKS_PER_TIMEOUT: u64 = 20;
/// A learner that lacks no more entries than this is close.
pub(super) const CLOSE_ENTRIES: u64 = 64;

/// What became of a change of view that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ViewOutcome {
    /// Metadata has the new view.
    Applied,
    /// Metadata has the old view, and this incarnation holds the position.
    Refused,
    /// Another incarnation holds the position.
    Deposed,
}

/// A replica on its way into the view.
#[derive(Debug)]
pub(super) struct Learner {
    pub(super) place: usize,
    pub(super) step: Step,
    /// When it was last heard of.
    heard: Time,
}

/// How far a learner has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// It is to report.
    Sealing,
    /// It copies what it lacks from a member.
    Copying,
    /// It is sent every entry.
    Following,
    /// No entry is written until it has them all, or this time comes.
    CatchingUp(Time),
}

/// Since when a member owes something, and when it last made progress: with what it is to make durable, and with answers. One
/// whose store has failed answers still, so an answer does not count as progress with the store.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    owes: Option<Time>,
    progress: Time,
    owes_answer: Option<Time>,
    answered: Time,
}

/// Who owes something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Owing {
    /// An entry, a record, or the report that it is sealed.
    pub(super) store: MemberSet,
    /// A confirmation.
    pub(super) answer: MemberSet,
}

impl Owing {
    pub(super) fn is_empty(self) -> bool {
        self.store.is_empty() && self.answer.is_empty()
    }
}

/// When a replica may be tried again, and after how long if that fails too.
#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Time,
    next: u64,
}

#[derive(Debug)]
pub(super) struct Views {
    /// That of the last change known to be applied.
    view: View,
    /// The change that was asked for, until it is known what became of it.
    doubt: Option<View>,
    min_view: usize,
    timeout: u64,
    /// Everybody that this incarnation spoke with, by place.
    ids: Vec<ReplicaId>,
    paces: Vec<Pace>,
    pub(super) learner: Option<Learner>,
    /// Members that lost something they were sent: they are sent no entry until they have reported again.
    cut: MemberSet,
    /// The replicas of the shard, where that is known.
    registered: Vec<ReplicaId>,
    /// Replicas of the shard that are within reach and not in the view.
    present: Vec<ReplicaId>,
    pauses: BTreeMap<ReplicaId, Pause>,
    /// Learners that were given up.
    given_up: usize,
    /// What waits for the learner to catch up: it may write entries.
    held: VecDeque<Input>,
    look_at: Option<Time>,
}

impl Views {
    pub(super) fn new(view: View) -> Self {
        let count = view.members.len();
        Self {
            ids: view.members.clone(),
            paces: vec![Pace::default(); count],
            min_view: count,
            view,
            doubt: None,
            timeout: u64::MAX,
            learner: None,
            cut: MemberSet::default(),
            registered: Vec::new(),
            present: Vec::new(),
            pauses: BTreeMap::new(),
            given_up: 0,
            held: VecDeque::new(),
            look_at: None,
        }
    }

    pub(super) fn may_change(&mut self, min_view: u32, timeout_micros: u64) {
        (self.min_view, self.timeout) = (min_view.max(1) as usize, timeout_micros);
    }

    pub(super) fn view(&self) -> &View {
        &self.view
    }

    pub(super) fn id(&self, place: usize) -> ReplicaId {
        self.ids[place]
    }

    /// The place of a member of the views in force, or of the learner; nobody else is heeded.
    pub(super) fn place_of(&self, id: ReplicaId) -> Option<usize> {
        let place = self.ids.iter().position(|known| *known == id)?;
        (self.in_force().contains(place) || self.is_learner(place)).then_some(place)
    }

    pub(super) fn is_learner(&self, place: usize) -> bool {
        self.learner.as_ref().is_some_and(|learner| learner.place == place)
    }

    fn set_of(&self, view: &View) -> MemberSet {
        let mut set = MemberSet::default();
        for (place, id) in self.ids.iter().enumerate() {
            if view.members.contains(id) {
                set.insert(place);
            }
        }
        set
    }

    /// The members that completion, commit and confirmation need.
    pub(super) fn in_force(&self) -> MemberSet {
        let now = self.set_of(&self.view);
        self.doubt.as_ref().map_or(now, |next| now.with(self.set_of(next)))
    }

    /// Whether it is a member of the view, or of the one that is in doubt.
    pub(super) fn may_be_member(&self, place: usize) -> bool {
        self.in_force().contains(place)
    }

    /// The places of the members of the view.
    pub(super) fn members(&self) -> MemberSet {
        self.set_of(&self.view)
    }

    /// Those who are sent every entry.
    pub(super) fn audience(&self) -> MemberSet {
        let mut set = self.in_force();
        if let Some(Learner { place, step: Step::Following | Step::CatchingUp(_), .. }) = self.learner {
            set.insert(place);
        }
        set.without(self.cut)
    }

    /// Nothing that is sent to this member now may be taken for what follows on what it has.
    pub(super) fn cut(&mut self, place: usize) {
        self.cut.insert(place);
    }

    pub(super) fn is_cut(&self, place: usize) -> bool {
        self.cut.contains(place)
    }

    /// The member has reported, and is sent entries again.
    pub(super) fn joined_up(&mut self, place: usize) {
        self.cut = self.cut.without(MemberSet::one(place));
    }

    // ---- changes ----

    pub(super) fn changes(&self) -> bool {
        self.doubt.is_some()
    }

    /// The view without these members, if there may be such a one now.
    pub(super) fn drop(&mut self, gone: MemberSet) -> Option<View> {
        let stay = self.members().without(gone);
        if self.changes() || gone.is_empty() || stay.count() < self.min_view || stay == self.members() {
            return None;
        }
        let members = self.view.members.iter().copied();
        let members =
            members.filter(|id| self.ids.iter().position(|known| known == id).is_some_and(|p| stay.contains(p)));
        let next = View { number: after(self.view.number), members: members.collect() };
        self.doubt = Some(next.clone());
        Some(next)
    }

    /// The view with the learner.
    pub(super) fn add(&mut self) -> Option<View> {
        let learner = self.learner.as_ref().filter(|_| self.doubt.is_none())?;
        let mut members = self.view.members.clone();
        members.push(self.ids[learner.place]);
        members.sort_unstable();
        let next = View { number: after(self.view.number), members };
        self.doubt = Some(next.clone());
        Some(next)
    }

    /// The view with the learner, and without as many of these members as it can be without.
    pub(super) fn exchange(&mut self, silent: MemberSet) -> Option<View> {
        let stay = self.members().without(silent);
        let short = self.min_view.saturating_sub(stay.count() + 1);
        let gone = silent.iter().skip(short).fold(MemberSet::default(), |set, place| set.with(MemberSet::one(place)));
        if gone.is_empty() || stay.is_empty() {
            return None;
        }
        let gone: Vec<ReplicaId> = gone.iter().map(|place| self.ids[place]).collect();
        let mut next = self.add()?;
        next.members.retain(|id| !gone.contains(id));
        self.doubt = Some(next.clone());
        Some(next)
    }

    /// The change is decided. Returns whether the view is another one.
    pub(super) fn decided(&mut self, now: Time, applied: bool) -> bool {
        let Some(next) = self.doubt.take() else { return false };
        if !applied {
            self.let_go();
            return false;
        }
        for id in &self.view.members {
            if !next.members.contains(id) {
                // It may be slow and not gone.
                self.present.push(*id);
                let pause = self.pauses.entry(*id).or_insert(Pause { until: now, next: ADD_PAUSE_MICROS });
                pause.until = now.after(pause.next);
                pause.next = (pause.next * 2).min(MAX_ADD_PAUSE_MICROS);
            }
        }
        self.view = next;
        if self.learner.as_ref().is_some_and(|learner| self.members().contains(learner.place)) {
            self.learner = None;
        }
        let registered = |id: &ReplicaId| self.registered.is_empty() || self.registered.contains(id);
        self.present.retain(|id| !self.view.members.contains(id) && registered(id));
        self.paces.iter_mut().for_each(|pace| (pace.owes, pace.owes_answer) = (None, None));
        true
    }

    // ---- learners ----

    /// A replica of the shard that is no member is within reach.
    pub(super) fn present(&mut self, now: Time, id: ReplicaId) {
        if !self.view.members.contains(&id) && !self.present.contains(&id) {
            self.present.push(id);
        }
        // Whatever it failed by, it begins anew.
        if let Some(pause) = self.pauses.get_mut(&id) {
            pause.until = pause.until.min(now.after(ADD_PAUSE_MICROS));
        }
        if !self.view.members.contains(&id) && self.timeout != u64::MAX {
            self.look_at = Some(now);
        }
    }

    /// The shard has these replicas from now on.
    pub(super) fn register(&mut self, now: Time, replicas: Vec<ReplicaId>) {
        self.registered = replicas;
        let registered = &self.registered;
        self.present.retain(|id| registered.contains(id));
        if self.timeout != u64::MAX {
            self.look_at = Some(now);
        }
    }

    /// Members that are replicas of the shard no more, once all that are have joined.
    pub(super) fn retired(&self) -> MemberSet {
        let joined = self.registered.iter().all(|id| self.view.members.contains(id));
        let mut retired = MemberSet::default();
        for place in self.members().iter().filter(|_| joined && !self.registered.is_empty()) {
            if !self.registered.contains(&self.ids[place]) {
                retired.insert(place);
            }
        }
        retired
    }

    /// It is out of reach, or what was said to it is lost. Returns whether it was being taken in.
    pub(super) fn absent(&mut self, now: Time, id: ReplicaId) -> bool {
        self.present.retain(|other| *other != id);
        let learns = self.learner.as_ref().is_some_and(|learner| self.ids[learner.place] == id);
        if learns && self.doubt.as_ref().is_none_or(|next| !next.members.contains(&id)) {
            self.give_up(now);
        }
        learns
    }

    /// Begins with a replica that is within reach; it is to be sealed.
    pub(super) fn begin(&mut self, now: Time) -> Option<usize> {
        if self.learner.is_some() || self.changes() || self.view.members.len() >= MAX_MEMBERS {
            return None;
        }
        let due = |id: &ReplicaId| self.pauses.get(id).is_none_or(|pause| pause.until <= now);
        let id = self.present.iter().copied().find(due)?;
        let place = match self.ids.iter().position(|known| *known == id) {
            Some(place) => place,
            None if self.ids.len() >= MAX_MEMBERS => return None,
            None => {
                self.ids.push(id);
                self.paces.push(Pace::default());
                self.ids.len() - 1
            }
        };
        self.learner = Some(Learner { place, step: Step::Sealing, heard: now });
        Some(place)
    }

    pub(super) fn places(&self) -> usize {
        self.ids.len()
    }

    /// The learner is not taken in now; it is tried again after a pause that grows.
    pub(super) fn give_up(&mut self, now: Time) -> Option<ReplicaId> {
        let learner = self.learner.take()?;
        self.given_up += 1;
        let id = self.ids[learner.place];
        let pause = self.pauses.entry(id).or_insert(Pause { until: now, next: ADD_PAUSE_MICROS });
        pause.until = now.after(pause.next);
        pause.next = (pause.next * 2).min(MAX_ADD_PAUSE_MICROS);
        Some(id)
    }

    /// The one of these that a learner copies from now: another one each time that one was given up.
    pub(super) fn whose_turn(&self, members: &[usize]) -> Option<usize> {
        members.get(self.given_up % members.len().max(1)).copied()
    }

    /// The learner goes on following, and entries are written again.
    fn let_go(&mut self) {
        if let Some(learner) = &mut self.learner
            && matches!(learner.step, Step::CatchingUp(_))
        {
            learner.step = Step::Following;
        }
    }

    /// No entry may be written until the learner has all that there are.
    pub(super) fn catch_up(&mut self, now: Time) {
        let until = now.after(self.timeout);
        if let Some(learner) = &mut self.learner {
            learner.step = Step::CatchingUp(until);
        }
    }

    /// Whether no entry may be written now.
    pub(super) fn is_frozen(&self) -> bool {
        matches!(self.learner, Some(Learner { step: Step::CatchingUp(_), .. }))
    }

    pub(super) fn hold(&mut self, input: Input) {
        self.held.push_back(input);
    }

    pub(super) fn take_held(&mut self) -> VecDeque<Input> {
        std::mem::take(&mut self.held)
    }

    // ---- time ----

    /// A member has answered, which it can without its store.
    pub(super) fn answered(&mut self, now: Time, place: usize) {
        self.paces[place].answered = now;
    }

    /// A member or the learner said something that shows progress.
    pub(super) fn heard(&mut self, now: Time, place: usize) {
        let pace = &mut self.paces[place];
        (pace.progress, pace.answered) = (now, now);
        if let Some(learner) = self.learner.as_mut().filter(|learner| learner.place == place) {
            learner.heard = now;
        }
    }

    /// Something is under way: it is to be looked who makes progress.
    pub(super) fn watch(&mut self, now: Time) {
        if self.timeout != u64::MAX && self.look_at.is_none() {
            self.look_at = Some(now.after(self.timeout / LOOKS_PER_TIMEOUT));
        }
    }

    pub(super) fn look_at(&self) -> Option<Time> {
        self.look_at
    }

    /// Whether it is time to look.
    pub(super) fn looks(&mut self, now: Time) -> bool {
        let Some(at) = self.look_at.filter(|at| *at <= now) else { return false };
        self.look_at = None;
        // Whoever did not run itself for a while has not heard anybody, and takes nobody for dead.
        if at.after(self.timeout / 2) < now {
            self.paces.iter_mut().for_each(|pace| (pace.progress, pace.answered) = (now, now));
        }
        true
    }

    /// Whether there is anybody to be taken in, now or later.
    pub(super) fn awaits(&self) -> bool {
        self.learner.is_some() || self.changes() || !self.present.is_empty() || !self.retired().is_empty()
    }

    /// Members that owe something and made no progress for as long as a member is given.
    pub(super) fn stalled(&mut self, now: Time, owing: Owing) -> MemberSet {
        let timeout = self.timeout;
        let is_late = |owes: &mut Option<Time>, is_owing: bool, progress: Time| {
            if !is_owing {
                *owes = None;
            }
            is_owing && (*owes.get_or_insert(now)).max(progress).after(timeout) <= now
        };
        let mut stalled = MemberSet::default();
        for place in self.members().iter() {
            let pace = &mut self.paces[place];
            // Both are looked at, so that both are remembered.
            let store = is_late(&mut pace.owes, owing.store.contains(place), pace.progress);
            let answer = is_late(&mut pace.owes_answer, owing.answer.contains(place), pace.answered);
            if store || answer {
                stalled.insert(place);
            }
        }
        stalled
    }

    /// Whether the learner has not been heard of for too long, or did not catch up in time.
    pub(super) fn learner_is_late(&self, now: Time) -> bool {
        !self.changes()
            && self.learner.as_ref().is_some_and(|learner| match learner.step {
                Step::CatchingUp(until) => until <= now,
                _ => learner.heard.after(LEARNER_TIMEOUT_MICROS.max(self.timeout)) <= now,
            })
    }

    /// Whether the learner follows and lacks little of a log that ends at `last`, of which it has `acked`.
    pub(super) fn is_close(&self, acked: Lsn, last: Lsn) -> bool {
        let follows = matches!(self.learner, Some(Learner { step: Step::Following, .. }));
        follows && !self.changes() && last.0 - acked.0.min(last.0) <= CLOSE_ENTRIES
    }
}

fn after(view: ViewNumber) -> ViewNumber {
    ViewNumber(view.0.saturating_add(1))
}
