//! Records that are damaged here: another member of the view is asked for each, and what it sends is answered, and written.
//!
//! Whoever wanted such a record waits meanwhile, for a bounded time. Members are asked one after the other. Only when each
//! of them has said that it has none that is whole is the record lost, and that is said with its color and number; as long
//! as one did not answer, those who wait are told to try again. A member answers only for numbers that it knows to be
//! settled, and not to be trimmed, so that what it lacks is not there. Where its own is damaged it says so at once, and asks
//! nobody for it: so no two members wait for each other, or ask each other without end. Its own readers and scrubs find it.

use flexlog_protocol::api::{Answer, Failure};
use flexlog_protocol::peer::PeerMessage;
use flexlog_protocol::{Color, Record, ReplicaId, SeqNum, Time, limits};

use crate::color::{ColorState, after, before};
use crate::learning::COPY_BYTES;
use crate::message::{Damage, Output, Persist};
use crate::readers::Question;
use crate::reading::{DELIVERY_BYTES, DELIVERY_RECORDS};
use crate::replica::{FetchFor, Replica};

/// Marks the name of a copy that is to mend something.
const MENDS: u64 = 1 << 63;
/// How long a member may take to answer, in microseconds: 1 s.
const REPLY_MICROS: u64 = 1_000_000;
/// After that time those who did not answer are asked again, in microseconds: 1 s.
const AGAIN_MICROS: u64 = 1_000_000;
/// How long whoever wants the record waits, in microseconds: 5 s.
const WAIT_MICROS: u64 = 5_000_000;
/// How often the members are asked where nobody waits: it will be found again.
const ROUNDS: u32 = 3;
/// The most that are mended at once, and the most who wait for them.
const MOST_MENDS: usize = 1024;
const MOST_WAITING: usize = 4096;

/// Whether a copy of this name is to mend something.
pub(crate) fn is_mend(copy: u64) -> bool {
    copy & MENDS != 0
}

/// Numbers of which some are damaged here.
#[derive(Debug)]
pub(crate) struct Mend {
    name: u64,
    damage: Damage,
    /// Who was asked last and did not answer yet.
    asked: Option<ReplicaId>,
    /// Who has none that is whole.
    bad: Vec<ReplicaId>,
    /// Who did not answer, or cannot say now.
    missed: Vec<ReplicaId>,
    rounds: u32,
    /// When that is given up, or the members are asked again.
    at: Time,
    waiting: Vec<(Time, FetchFor)>,
}

impl Replica {
    /// When something is to be done about what is being mended.
    pub(crate) fn mends_at(&self) -> Option<Time> {
        let each = |mend: &Mend| mend.waiting.iter().map(|(until, _)| *until).chain([mend.at]).min();
        self.mends.iter().filter_map(each).min()
    }

    /// Has records mended, and then goes on with what they were read for.
    pub(crate) fn mend(&mut self, now: Time, damage: Damage, waits: Option<FetchFor>, out: &mut Vec<Output>) {
        let Damage { color, number, end, .. } = damage;
        if self.colors.get(&color).and_then(ColorState::trim_point).is_some_and(|point| point >= number) {
            // It was trimmed since it was read.
            return waits.into_iter().for_each(|purpose| self.look_again(purpose, out));
        }
        let range = match self.colors.get(&color) {
            // It is known which numbers name records.
            Some(ColorState::Narrow(state)) => state.next_record(number).map(|first| (first, after(first))),
            Some(ColorState::Wide(_)) => Some((number, end)).filter(|_| number < end),
            None => None,
        };
        if color.is_wide() {
            self.follow(color, out);
        }
        let stable = self.stable(color);
        let Some((first, upto)) = range.map(|(first, upto)| (first, upto.min(stable))).filter(|(n, upto)| n < upto)
        else {
            // What is not settled must not be written under a number.
            return self.unreadable(waits, Failure::Unreadable(damage.why), out);
        };
        if number < end && first >= end {
            // What is damaged is of no record.
            return self.read_on(waits, (number, end), out);
        }
        if self.outside || self.learning.is_some() {
            let why = format!("replica {} catches up with its shard", self.id);
            return self.unreadable(waits, Failure::NotReady(why), out);
        }
        let same = |mend: &Mend| (mend.damage.color, mend.damage.number, mend.damage.end) == (color, first, upto);
        let waiting: usize = self.mends.iter().map(|mend| mend.waiting.len()).sum();
        let known = self.mends.iter().position(same);
        if waits.is_some() && waiting >= MOST_WAITING || known.is_none() && self.mends.len() >= MOST_MENDS {
            let why = format!("replica {} has too many damaged records to mend at once", self.id);
            return self.unreadable(waits, Failure::NotReady(why), out);
        }
        let waits = waits.map(|purpose| (now.after(WAIT_MICROS), purpose));
        if let Some(nth) = known {
            return self.mends[nth].waiting.extend(waits);
        }
        self.next_copy += 1;
        let name = MENDS | self.next_copy;
        let damage = Damage { number: first, end: upto, ..damage };
        out.push(Output::Damaged(damage.clone()));
        let (bad, missed, waiting) = (Vec::new(), Vec::new(), waits.into_iter().collect());
        self.mends.push(Mend { name, damage, asked: None, bad, missed, rounds: 0, at: now, waiting });
        self.ask_for(now, name, out);
    }

    /// Asks the next member.
    fn ask_for(&mut self, now: Time, name: u64, out: &mut Vec<Output>) {
        let Some(nth) = self.mends.iter().position(|mend| mend.name == name) else { return };
        let Damage { color, number, end, .. } = self.mends[nth].damage;
        if self.colors.get(&color).and_then(ColorState::trim_point).is_some_and(|point| point >= number) {
            let mend = self.mends.remove(nth);
            return mend.waiting.into_iter().for_each(|(_, purpose)| self.look_again(purpose, out));
        }
        let others: Vec<ReplicaId> =
            self.log.view().iter().flat_map(|view| &view.members).copied().filter(|id| *id != self.id).collect();
        let mend = &mut self.mends[nth];
        if let Some(to) = others.iter().find(|id| !mend.bad.contains(id) && !mend.missed.contains(id)) {
            mend.asked = Some(*to);
            mend.at = now.after(REPLY_MICROS);
            let message = PeerMessage::CopyRead { copy: name, color, from: number, upto: end };
            return out.push(Output::ToPeer { to: *to, message });
        }
        mend.asked = None;
        if mend.missed.is_empty() {
            let mend = self.mends.remove(nth);
            let why = format!(
                "{}; and no other member of shard {} has the record {color}/{number} whole",
                mend.damage.why, self.shard
            );
            out.push(Output::Lost(Damage { why: why.clone(), ..mend.damage }));
            for (_, purpose) in mend.waiting {
                self.unreadable(Some(purpose), Failure::Unreadable(why.clone()), out);
            }
            return;
        }
        mend.missed.clear();
        mend.rounds += 1;
        mend.at = now.after(AGAIN_MICROS);
        if mend.waiting.is_empty() && mend.rounds >= ROUNDS {
            self.mends.remove(nth);
        }
    }

    /// A member has sent what there is of damaged numbers.
    pub(crate) fn on_mended(
        &mut self,
        now: Time,
        from: ReplicaId,
        name: u64,
        records: Vec<(SeqNum, Record)>,
        out: &mut Vec<Output>,
    ) {
        let Some(nth) = self.mends.iter().position(|mend| mend.name == name) else { return };
        let Damage { color, number, end, .. } = self.mends[nth].damage;
        let fits = records.iter().all(|(found, _)| (number..end).contains(found));
        // Of a color on one shard it was one record that was asked for.
        let there = if color.is_wide() { fits } else { fits && records.len() == 1 };
        if !there {
            return self.on_not_mended(now, from, name, true, out);
        }
        let mend = self.mends.remove(nth);
        let trim = self.colors.get(&color).and_then(ColorState::trim_point);
        for (number, record) in records.iter().filter(|(number, _)| trim.is_none_or(|point| point < *number)) {
            if self.stopped.is_none() {
                self.persist(Persist::Repair { color, number: *number, record: record.clone() }, out);
            }
        }
        for (_, purpose) in mend.waiting {
            if records.is_empty() {
                self.read_on(Some(purpose), (number, end), out);
            } else {
                self.fetched(now, purpose, Ok(records.clone()), out);
            }
        }
    }

    /// A member has none that is whole (`bad`), or cannot say.
    pub(crate) fn on_not_mended(&mut self, now: Time, from: ReplicaId, name: u64, bad: bool, out: &mut Vec<Output>) {
        let Some(mend) = self.mends.iter_mut().find(|mend| mend.name == name) else { return };
        if bad && !mend.bad.contains(&from) {
            mend.bad.push(from);
        }
        if mend.asked == Some(from) {
            mend.asked = None;
            if !bad {
                mend.missed.push(from);
            }
            self.ask_for(now, name, out);
        }
    }

    /// Time has passed, or what was said to `lost` is lost.
    pub(crate) fn tick_mends(&mut self, now: Time, lost: Option<ReplicaId>, out: &mut Vec<Output>) {
        let mut late = Vec::new();
        for mend in &mut self.mends {
            let (gone, stay) = std::mem::take(&mut mend.waiting).into_iter().partition(|(until, _)| *until <= now);
            mend.waiting = stay;
            let Damage { color, number, .. } = mend.damage;
            let gone: Vec<(Time, FetchFor)> = gone;
            late.extend(gone.into_iter().map(|(_, purpose)| (color, number, purpose)));
        }
        for (color, number, purpose) in late {
            let why = format!(
                "the record {color}/{number} is damaged at replica {}, and no other member has sent it so far: try again",
                self.id
            );
            self.unreadable(Some(purpose), Failure::NotReady(why), out);
        }
        let due = |mend: &&mut Mend| mend.at <= now || lost.is_some() && mend.asked == lost;
        let mut names = Vec::new();
        for mend in self.mends.iter_mut().filter(due) {
            mend.missed.extend(mend.asked.take());
            names.push(mend.name);
        }
        for name in names {
            self.ask_for(now, name, out);
        }
    }

    /// It serves nobody from now on.
    pub(crate) fn drop_mends(&mut self, out: &mut Vec<Output>) {
        let why = format!("replica {} catches up with its shard", self.id);
        for mend in std::mem::take(&mut self.mends) {
            for (_, purpose) in mend.waiting {
                self.unreadable(Some(purpose), Failure::NotReady(why.clone()), out);
            }
        }
    }

    /// Nothing comes of a read.
    fn unreadable(&mut self, purpose: Option<FetchFor>, why: Failure, out: &mut Vec<Output>) {
        match purpose {
            None => {}
            Some(FetchFor::Ask { ask, .. } | FetchFor::Search { ask, .. }) => {
                out.push(Output::Answer { to: ask.from, answer: Answer::Failed { id: ask.id, why } });
            }
            Some(FetchFor::Subscription { from, id, .. }) if self.readers.subscription(from, id).is_some() => {
                self.readers.unsubscribe(from, id);
                out.push(Output::Answer { to: from, answer: Answer::Failed { id, why } });
            }
            Some(FetchFor::Subscription { .. }) => {}
            Some(FetchFor::Copy { to, copy, .. }) => {
                let damaged = matches!(why, Failure::Unreadable(_));
                let message = PeerMessage::CannotCopy { copy, why: why.to_string(), damaged };
                out.push(Output::ToPeer { to, message });
            }
            Some(FetchFor::Pull { to, token, .. }) => {
                out.push(Output::ToPeer { to, message: PeerMessage::NotHere { token } });
            }
        }
    }

    /// The numbers were trimmed meanwhile.
    fn look_again(&mut self, purpose: FetchFor, out: &mut Vec<Output>) {
        match purpose {
            FetchFor::Ask { ask, .. } | FetchFor::Search { ask, .. } => self.decide(ask, out),
            FetchFor::Subscription { from, id, .. } => {
                if let Some(subscription) = self.readers.subscription(from, id) {
                    subscription.fetching = false;
                    self.feed(from, id, out);
                }
            }
            FetchFor::Copy { color, upto, .. } => {
                let point = self.colors.get(&color).and_then(ColorState::trim_point);
                let from = point.map_or(upto, after);
                self.read_on(Some(purpose), (from, from), out);
            }
            FetchFor::Pull { .. } => self.unreadable(Some(purpose), Failure::NotReady("trimmed".into()), out),
        }
    }

    /// From `low` on and below `from` there is no record: a read goes on from there.
    fn read_on(&mut self, purpose: Option<FetchFor>, (low, from): (SeqNum, SeqNum), out: &mut Vec<Output>) {
        let Some(purpose) = purpose else { return };
        let (color, upto, max_records, max_bytes) = match &purpose {
            FetchFor::Search { ask, upto } => {
                if let Question::Prev(_) = ask.question {
                    // Nothing is above what was damaged.
                    let (color, upto) = (ask.color, before(low));
                    let fetch = self.remember(purpose);
                    return out.push(Output::FetchPrev { fetch, color, upto });
                }
                (ask.color, *upto, 1, 1)
            }
            FetchFor::Ask { ask, number, .. } => (ask.color, after(*number), 1, 1),
            FetchFor::Subscription { from: conn, id, upto } => {
                let (conn, id, upto) = (*conn, *id, *upto);
                let Some(subscription) = self.readers.subscription(conn, id) else { return };
                (subscription.color, upto, DELIVERY_RECORDS, DELIVERY_BYTES as usize)
            }
            FetchFor::Copy { color, upto, .. } => (*color, *upto, limits::MAX_RECORDS_PER_TOKEN, COPY_BYTES),
            FetchFor::Pull { .. } => return self.unreadable(Some(purpose), Failure::NotReady(String::new()), out),
        };
        let fetch = self.remember(purpose);
        out.push(Output::Fetch { fetch, color, from: from.min(upto), upto, max_records, max_bytes });
    }

    /// Whether this member can say what there is of these numbers: they are settled here, and none is trimmed, or about to
    /// be.
    pub(crate) fn can_mend(&self, color: Color, from: SeqNum, upto: SeqNum) -> bool {
        let trim = self.colors.get(&color).and_then(ColorState::trim_point).max(self.log.open_trim(color));
        !self.outside && self.learning.is_none() && upto <= self.stable(color) && trim.is_none_or(|point| point < from)
    }
}
