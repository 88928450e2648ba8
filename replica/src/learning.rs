//! How a replica that is no member catches up, and how a member helps it.
//!
//! A learner asks a member how far both logs are the same, takes back what differs, and copies what the member has
//! settled beyond that: its state as of a committed place, and the records whose numbers that place covers. All of it is
//! settled, so a copy that is broken off leaves nothing wrong behind. Once it is durable the learner tells its leaf, which
//! sends the entries from there on. A learner answers no client until a view that it is in has committed.
//!
//! Records that an entry numbers and that are not here are pulled from another member before the entry is persisted: an
//! entry counts as persisted only together with its records.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use flexlog_protocol::api::{Answer, Appended, Failure};
use flexlog_protocol::entry::push_assign;
use flexlog_protocol::media::LogEnd;
use flexlog_protocol::peer::{PeerMessage, Staged, ToLeaf};
use flexlog_protocol::{
    Append, Assign, Body, Color, Entry, Lsn, Record, ReplicaId, SeqNum, SessionId, Time, Token, View, limits,
};

use crate::checkpoint::{self, State};
use crate::color::{ColorState, after};
use crate::following::Origin;
use crate::log::ShardLog;
use crate::mending::is_mend;
use crate::message::{Output, Persist};
use crate::replica::{FetchFor, Pending, Replica};
use crate::session::{Session, Slot, SlotState};

/// Bytes of state in one message.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes of records in one message.
pub(crate) const COPY_BYTES: usize = 1 << 20;

/// Microseconds after which one who was asked for the records of an entry is taken to have lost the question, or the answer
/// to be lost: the next member is asked.
const PULL_MICROS: u64 = 200_000;

/// Not a copy: the records of an append that an entry waits for are read by their numbers. (Copies count from 1.)
const BY_NUMBER: u64 = 0;

/// A learner's copy under way.
#[derive(Debug)]
pub(crate) struct Learning {
    from: ReplicaId,
    copy: u64,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// The member's state comes in pieces.
    State(BytesMut),
    /// Records of these colors come, of the first one now; then the state is taken over.
    Records { left: VecDeque<(Color, SeqNum, SeqNum)>, upto: Lsn, bytes: Bytes, state: Box<State> },
    /// All of it is written, and will be durable.
    Written(Lsn),
}

/// What a learner asked for before the member knew enough.
#[derive(Debug)]
pub(crate) struct CopyAsk {
    from: ReplicaId,
    copy: u64,
    behind: Lsn,
    runs: Vec<LogEnd>,
}

/// A piece of a member's state.
struct Piece {
    copy: u64,
    same: Lsn,
    upto: Lsn,
    bytes: Bytes,
    whole: bool,
}

impl Replica {
    // ---- the learner ----

    /// The leaf has this replica catch up with a member.
    pub(crate) fn on_learn(&mut self, from: ReplicaId, behind: Lsn, out: &mut Vec<Output>) {
        if self.stopped.is_some() || from == self.id {
            return;
        }
        self.outside = true;
        self.blocked.clear();
        self.turn_away(out);
        let commit = self.log.commit();
        if self.learning.is_none()
            && commit >= behind
            && self.log.durable_end().1 == commit
            && self.log.last().1 == commit
        {
            // It lacks nothing. When it is told to learn twice, the leaf may take it in by what it said the first time, and it
            // would drop what it is sent while it copies for nothing.
            self.to_leaf(ToLeaf::Learned { upto: commit }, out);
            return;
        }
        self.next_copy += 1;
        let copy = self.next_copy;
        self.learning = Some(Learning { from, copy, step: Step::State(BytesMut::new()) });
        let runs = self.log.runs().to_vec();
        out.push(Output::ToPeer { to: from, message: PeerMessage::CopyFrom { copy, behind, runs } });
    }

    /// It serves nobody from now on: what is known here may be of another history, and who waits may ask another member.
    fn turn_away(&mut self, out: &mut Vec<Output>) {
        self.drop_mends(out);
        let why = || Failure::NotReady(format!("replica {} catches up with its shard", self.id));
        for name in self.readers.all() {
            if let Some(ask) = self.readers.finish(name) {
                out.push(Output::Answer { to: ask.from, answer: Answer::Failed { id: ask.id, why: why() } });
            }
        }
        // What was to be read for an answer is not waited for. For other members it is.
        let asks = |of: &FetchFor| matches!(of, FetchFor::Ask { .. } | FetchFor::Search { .. });
        let mut names: Vec<u64> = self.fetches.iter().filter(|(_, of)| asks(of)).map(|(name, _)| *name).collect();
        names.sort_unstable();
        for name in names {
            if let Some(FetchFor::Ask { ask, .. } | FetchFor::Search { ask, .. }) = self.fetches.remove(&name) {
                out.push(Output::Answer { to: ask.from, answer: Answer::Failed { id: ask.id, why: why() } });
            }
        }
        for (to, id) in self.readers.take_subscriptions() {
            out.push(Output::Answer { to, answer: Answer::Failed { id, why: why() } });
        }
    }

    /// What the member says, if it belongs to the copy under way.
    fn copy_of(&mut self, from: ReplicaId, copy: u64) -> Option<&mut Learning> {
        self.learning.as_mut().filter(|learning| learning.from == from && learning.copy == copy)
    }

    fn on_copy_state(&mut self, from: ReplicaId, piece: &Piece, out: &mut Vec<Output>) {
        let Piece { copy, same, upto, ref bytes, whole } = *piece;
        let piece = bytes;
        let Some(Learning { step: Step::State(bytes), .. }) = self.copy_of(from, copy) else { return };
        bytes.extend_from_slice(piece);
        if !whole {
            return;
        }
        let bytes = std::mem::take(bytes).freeze();
        let same = same.min(upto).min(self.log.persisted());
        if same < self.log.commit() {
            let why = format!(
                "its shard log is committed up to {}, but only up to {same} it is that of replica {from}: its store is not \
                 of this history; replace the replica",
                self.log.commit()
            );
            return self.stop(why, out);
        }
        let state = match checkpoint::decode(upto, &bytes) {
            Ok(state) => Box::new(state),
            Err(error) => return self.stop(format!("the state of replica {from}: {error}"), out),
        };
        self.truncate(same, out);
        // What stays is the member's history too, which has it committed.
        self.commit_upto(same, out);
        let mut left: Vec<(Color, SeqNum, SeqNum)> =
            state.colors.iter().filter_map(|(color, theirs)| self.lacks(*color, theirs)).collect();
        left.sort_unstable();
        if let Some(learning) = &mut self.learning {
            learning.step = Step::Records { left: left.into(), upto, bytes, state };
        }
        self.to_leaf(ToLeaf::Learning, out);
        self.copy_on(out);
    }

    /// The numbers of a color that the member's state covers and this store may lack.
    fn lacks(&self, color: Color, theirs: &ColorState) -> Option<(Color, SeqNum, SeqNum)> {
        let (upto, _) = theirs.end()?;
        let mine = self.colors.get(&color).and_then(ColorState::end).map_or(SeqNum::MIN, |(end, _)| end);
        let from = theirs.trim_point().map_or(mine, |trim| mine.max(after(trim)));
        (from < upto).then_some((color, from, upto))
    }

    /// Takes back every entry above `upto`.
    fn truncate(&mut self, upto: Lsn, out: &mut Vec<Output>) {
        let entries = self.log.truncate(upto);
        if entries.is_empty() {
            return;
        }
        let mut dropped = Vec::new();
        for entry in &entries {
            match &entry.body {
                Body::Assign(runs) => {
                    for (assign, token) in runs.iter().flat_map(|run| run.each().map(move |(token, _)| (run, token))) {
                        let session = self.sessions.get_mut(&token.session);
                        match session.map(|session| (session.get(token.seq), session)) {
                            Some((Some(slot), session)) if slot.digest != 0 => {
                                // Its records may have been staged right before, and not be durable yet.
                                let waits = |p: &Pending| matches!(p, Pending::Stage(staged) if *staged == token);
                                let waits = self.pending.iter().any(waits);
                                let state = if waits { SlotState::Staging } else { SlotState::Staged };
                                let slot = Slot { state, records: assign.records, ..slot };
                                session.put(token.seq, slot);
                                self.staged_tokens += 1;
                            }
                            // Whose digest is not known after a restart cannot be reported; whose client has given it up is
                            // not known at all. A member that has it will give it.
                            Some((_, session)) => {
                                session.clear(token.seq);
                                dropped.push(token);
                            }
                            None => dropped.push(token),
                        }
                    }
                }
                Body::OpenSession { nonce } => {
                    let id = SessionId { epoch: entry.epoch, lsn: entry.lsn };
                    if self.nonces.get(nonce) == Some(&id) {
                        self.nonces.remove(nonce);
                    }
                    // What waited in it for numbers has none to wait for; what had some is met in its entry.
                    let session = self.sessions.remove(&id);
                    for (seq, slot) in session.iter().flat_map(Session::slots) {
                        if !matches!(slot.state, SlotState::Assigned(..)) {
                            dropped.push(Token { shard: self.shard, session: id, seq });
                            self.unstage(slot);
                        }
                    }
                }
                Body::CloseSession(id) => {
                    if let Some(session) = self.sessions.get(id) {
                        self.nonces.entry(session.nonce).or_insert(*id);
                    }
                }
                Body::Hole { .. } | Body::EpochEnd { .. } | Body::NewView(_) | Body::Trim { .. } => {}
            }
        }
        // Nobody is to be told that they are durable.
        for pending in &mut self.pending {
            if matches!(pending, Pending::Entry(lsn) if *lsn > upto) {
                *pending = Pending::Other;
            }
        }
        self.persist(Persist::Truncate { upto, entries }, out);
        if !dropped.is_empty() {
            out.push(Output::DropStaged(dropped));
        }
    }

    /// Asks for the next records, or takes the state over when there are none.
    fn copy_on(&mut self, out: &mut Vec<Output>) {
        let Some(Learning { from, copy, step: Step::Records { left, .. } }) = &self.learning else { return };
        if let Some((color, first, upto)) = left.front().copied() {
            let message = PeerMessage::CopyRead { copy: *copy, color, from: first, upto };
            return out.push(Output::ToPeer { to: *from, message });
        }
        // The store may still refuse some of them, and what this state covers is not copied again.
        if self.pending.iter().any(|pending| matches!(pending, Pending::Copy)) {
            return;
        }
        let Some(learning) = &mut self.learning else { return };
        let step = std::mem::replace(&mut learning.step, Step::State(BytesMut::new()));
        let Step::Records { upto, bytes, state, .. } = step else { return };
        learning.step = Step::Written(upto);
        self.take_over(*state, out);
        self.persist(Persist::Checkpoint { upto, state: bytes }, out);
    }

    /// The member's state is this one's from here on; what is staged here stays where it may still be numbered.
    fn take_over(&mut self, state: State, out: &mut Vec<Output>) {
        let State { last, view, sessions, colors, runs } = state;
        let before = std::mem::replace(&mut self.sessions, sessions);
        let old_colors = std::mem::replace(&mut self.colors, colors);
        self.view_before = view.as_ref().map(|view| view.number);
        self.log = ShardLog::restore(last, view, runs);
        self.nonces = self.sessions.iter().map(|(id, session)| (session.nonce, *id)).collect();
        (self.staged_tokens, self.staged_bytes) = (0, 0);
        let mut dropped = Vec::new();
        for (id, session) in before {
            for (seq, slot) in session.slots().filter(|(_, slot)| !matches!(slot.state, SlotState::Assigned(..))) {
                match self.sessions.get_mut(&id).filter(|now| now.get(seq).is_none() && seq >= now.base()) {
                    Some(now) => {
                        now.put(seq, slot);
                        self.staged_tokens += 1;
                        self.staged_bytes += u64::from(slot.bytes);
                    }
                    None => dropped.push(Token { shard: self.shard, session: id, seq }),
                }
            }
        }
        if !dropped.is_empty() {
            dropped.sort_unstable();
            out.push(Output::DropStaged(dropped));
        }
        let mut trims: Vec<(Color, SeqNum)> = self
            .colors
            .iter()
            .filter_map(|(color, state)| Some((*color, state.trim_point()?)))
            .filter(|(color, upto)| old_colors.get(color).and_then(ColorState::trim_point) != Some(*upto))
            .collect();
        trims.sort_unstable();
        out.extend(trims.into_iter().map(|(color, upto)| Output::Trim { color, upto }));
        self.pulling.clear();
        self.stables.clear();
        self.asked.clear();
        self.commit_told = self.log.commit();
    }

    fn on_copied(
        &mut self,
        from: ReplicaId,
        copy: u64,
        color: Color,
        records: Vec<(SeqNum, Record)>,
        covered: SeqNum,
        out: &mut Vec<Output>,
    ) {
        let Some(Learning { step: Step::Records { left, .. }, .. }) = self.copy_of(from, copy) else { return };
        let Some((asked, first, upto)) = left.front_mut().filter(|(asked, ..)| *asked == color) else { return };
        let fits = records.first().is_none_or(|(number, _)| *number >= *first)
            && records.last().is_none_or(|(number, _)| *number < *upto)
            && covered > *first;
        if !fits {
            let why = format!("replica {from} sent records of color {asked} that it was not asked for");
            return self.stop(why, out);
        }
        *first = covered;
        if covered >= *upto {
            left.pop_front();
        }
        // What follows one another goes in one write.
        let mut records = records.into_iter().peekable();
        while let Some((first, record)) = records.next() {
            let mut run = vec![record];
            let next = |run: &Vec<Record>| first.plus(run.len() as u32);
            while run.len() < limits::MAX_RECORDS_PER_TOKEN
                && let Some((_, record)) = records.next_if(|(number, _)| next(&run) == Some(*number))
            {
                run.push(record);
            }
            self.persist(Persist::Copy { color, first, records: run }, out);
        }
        self.copy_on(out);
    }

    /// What was copied last is durable here.
    pub(crate) fn on_copy_durable(&mut self, out: &mut Vec<Output>) {
        self.to_leaf(ToLeaf::Learning, out);
        if matches!(&self.learning, Some(Learning { step: Step::Records { left, .. }, .. }) if left.is_empty()) {
            self.copy_on(out);
        }
    }

    /// A checkpoint is durable: if it is the copied one, the leaf may send what follows.
    pub(crate) fn on_checkpoint_durable(&mut self, of: Lsn, out: &mut Vec<Output>) {
        let Some(Learning { step: Step::Written(upto), .. }) = self.learning else { return };
        if of != upto {
            return;
        }
        self.learning = None;
        self.in_step = false;
        self.to_leaf(ToLeaf::Learned { upto }, out);
    }

    /// What is staged here is for the leaf to know from now on: it is not numbered by anything that has committed.
    fn report_staged(&self, out: &mut Vec<Output>) {
        let mut staged = Vec::new();
        for (id, session) in &self.sessions {
            for (seq, slot) in session.slots().filter(|(_, slot)| slot.state == SlotState::Staged) {
                let token = Token { shard: self.shard, session: *id, seq };
                staged.push(Staged { token, color: slot.color, records: slot.records, digest: slot.digest });
            }
        }
        staged.sort_unstable_by_key(|staged| staged.token);
        if !staged.is_empty() {
            self.to_leaf(ToLeaf::Persisted(staged), out);
        }
    }

    /// The store had no room for what was copied: it is given up until the leaf has it tried again.
    pub(crate) fn on_copy_refused(&mut self) {
        if !matches!(self.learning, Some(Learning { step: Step::Written(_), .. })) {
            self.learning = None;
        }
    }

    // ---- the member ----

    pub(crate) fn on_copying(&mut self, now: Time, from: ReplicaId, message: PeerMessage, out: &mut Vec<Output>) {
        match message {
            PeerMessage::CopyFrom { copy, behind, runs } => {
                self.copy_asks.retain(|ask| ask.from != from);
                self.copy_asks.push(CopyAsk { from, copy, behind, runs });
                self.answer_copies(out);
            }
            PeerMessage::CopyRead { copy, color, from: first, upto } => {
                if is_mend(copy) && !self.can_mend(color, first, upto) {
                    self.follow(color, out);
                    let why = format!("replica {} does not know what is settled of {color}/{first}", self.id);
                    let message = PeerMessage::CannotCopy { copy, why, damaged: false };
                    return out.push(Output::ToPeer { to: from, message });
                }
                let fetch = self.remember(FetchFor::Copy { to: from, copy, color, from: first, upto });
                let max_records = limits::MAX_RECORDS_PER_TOKEN;
                let max_bytes = if copy == BY_NUMBER { usize::MAX } else { COPY_BYTES };
                out.push(Output::Fetch { fetch, color, from: first, upto, max_records, max_bytes });
            }
            PeerMessage::CopyState { copy, same, upto, piece, whole } => {
                self.on_copy_state(from, &Piece { copy, same, upto, bytes: piece, whole }, out);
            }
            PeerMessage::Copied { copy: BY_NUMBER, color, records, covered } => {
                self.on_read_by_number(now, from, color, records, covered, out);
            }
            PeerMessage::Copied { copy, records, .. } if is_mend(copy) => {
                self.on_mended(now, from, copy, records, out);
            }
            PeerMessage::Copied { copy, color, records, covered } => {
                self.on_copied(from, copy, color, records, covered, out);
            }
            // The leaf will see that nothing comes of it.
            PeerMessage::CannotCopy { copy, damaged, .. } if is_mend(copy) => {
                self.on_not_mended(now, from, copy, damaged, out);
            }
            PeerMessage::CannotCopy { copy, .. } => {
                if self.copy_of(from, copy).is_some() {
                    self.learning = None;
                }
            }
            PeerMessage::Pull { .. } | PeerMessage::Pulled(_) | PeerMessage::NotHere { .. } => {}
        }
    }

    /// Answers learners whose question this member knows enough for by now.
    pub(crate) fn answer_copies(&mut self, out: &mut Vec<Output>) {
        let commit = self.log.commit();
        if self.outside || self.copy_asks.is_empty() {
            return;
        }
        let (now, later) = std::mem::take(&mut self.copy_asks).into_iter().partition(|ask| ask.behind <= commit);
        self.copy_asks = later;
        for CopyAsk { from: to, copy, runs, .. } in now {
            let same = self.log.same_upto(&runs);
            let state = checkpoint::encode(&self.log, &self.sessions, &self.colors);
            let mut rest = state;
            loop {
                let piece = rest.split_to(rest.len().min(PIECE_BYTES));
                let whole = rest.is_empty();
                let message = PeerMessage::CopyState { copy, same, upto: commit, piece, whole };
                out.push(Output::ToPeer { to, message });
                if whole {
                    break;
                }
            }
        }
    }

    /// What a learner asked for was read.
    pub(crate) fn on_copy_fetched(
        &mut self,
        to: ReplicaId,
        copy: u64,
        color: Color,
        (from, upto): (SeqNum, SeqNum),
        records: Vec<(SeqNum, Record)>,
        out: &mut Vec<Output>,
    ) {
        let message = if is_mend(copy) && !self.can_mend(color, from, upto) {
            let why = format!("{color}/{from} was trimmed meanwhile");
            PeerMessage::CannotCopy { copy, why, damaged: false }
        } else {
            // More may follow where reading stopped for other reasons than the end.
            let covered = records.last().map_or(upto, |(number, _)| after(*number).min(upto));
            PeerMessage::Copied { copy, color, records, covered }
        };
        out.push(Output::ToPeer { to, message });
    }

    // ---- records that an entry numbers and that are not here ----

    /// Takes an entry from the leaf, or has it wait, with all behind it, until its records are here.
    pub(crate) fn take_or_wait(&mut self, entry: &Arc<Entry>, out: &mut Vec<Output>) {
        let lacking = if entry.lsn > self.log.last().1 { self.lacking(entry) } else { Vec::new() };
        if self.blocked.is_empty() && lacking.is_empty() {
            return self.take_from_leaf(entry, out);
        }
        for token in lacking {
            self.pull(token, None, out);
        }
        if self.blocked.back().is_none_or(|last| last.lsn < entry.lsn) {
            self.blocked.push_back(Arc::clone(entry));
            if matches!(entry.body, Body::NewView(_)) {
                // Whoever was asked may be gone for good, which is why there is another view: its members are asked.
                self.pull_all(None, out);
            }
        }
    }

    /// Asks for everything that entries wait for; others than `not`, where there are any.
    fn pull_all(&mut self, not: Option<ReplicaId>, out: &mut Vec<Output>) {
        let lacking: Vec<Token> = self.blocked.iter().flat_map(|entry| self.lacking(entry)).collect();
        for token in lacking {
            self.pull(token, not, out);
        }
    }

    fn take_from_leaf(&mut self, entry: &Arc<Entry>, out: &mut Vec<Output>) {
        match self.take_entry(entry, Origin::Leaf) {
            Ok(true) => self.persist(Persist::Entry(Arc::clone(entry)), out),
            Ok(false) => {}
            Err(why) => self.stop(why, out),
        }
    }

    /// The tokens that an entry numbers and whose records are not here.
    fn lacking(&self, entry: &Entry) -> Vec<Token> {
        let Body::Assign(runs) = &entry.body else { return Vec::new() };
        let mut lacking = Vec::new();
        for run in runs {
            // Without its session it is refused as it is.
            let Some(session) = self.sessions.get(&run.token.session) else { continue };
            let seqs = (0..u64::from(run.tokens)).map(|i| run.token.seq + i);
            lacking.extend(seqs.filter(|seq| session.get(*seq).is_none()).map(|seq| Token { seq, ..run.token }));
        }
        lacking
    }

    /// Asks a member of the view for an append; another one than `not`, if there is one.
    fn pull(&mut self, token: Token, not: Option<ReplicaId>, out: &mut Vec<Output>) {
        let others = self.others();
        let next = not.and_then(|not| others.iter().position(|id| *id == not)).map_or(0, |at| at + 1);
        self.pull_from(&others, next, token, out);
    }

    fn pull_from(&mut self, others: &[ReplicaId], next: usize, token: Token, out: &mut Vec<Output>) {
        if let Some(to) = others.get(next % others.len().max(1)) {
            self.pulling.insert(token);
            out.push(Output::ToPeer { to: *to, message: PeerMessage::Pull { token } });
        }
    }

    /// The other members of the newest view that is known here.
    fn others(&self) -> Vec<ReplicaId> {
        // Who joined later has it too, and who was there before may be gone.
        let later = self.blocked.iter().rev().find_map(|entry| match &entry.body {
            Body::NewView(view) => Some(view),
            _ => None,
        });
        let view = later.or(self.log.view_at(self.log.last().1));
        view.iter().flat_map(|view| &view.members).copied().filter(|id| *id != self.id).collect()
    }

    /// Sees to it that what entries wait for is asked for again after a while.
    pub(crate) fn watch_pulls(&mut self, now: Time) {
        if self.blocked.is_empty() || self.stopped.is_some() {
            self.ask_again = None;
        } else {
            self.ask_again.get_or_insert((now.after(PULL_MICROS), 1));
        }
    }

    /// Asks again for what entries wait for, another member each time: whoever was asked may be gone for good, and an
    /// answer that is lost with its stream is noticed by its sender alone.
    pub(crate) fn pull_again(&mut self, now: Time, out: &mut Vec<Output>) {
        let Some((_, round)) = self.ask_again.filter(|(at, _)| *at <= now) else { return };
        self.ask_again = Some((now.after(PULL_MICROS), round + 1));
        let others = self.others();
        let lacking: Vec<Token> = self.blocked.iter().flat_map(|entry| self.lacking(entry)).collect();
        for token in lacking {
            self.pull_from(&others, round, token, out);
        }
    }

    /// Something that was missing may be here now.
    pub(crate) fn unblock(&mut self, out: &mut Vec<Output>) {
        while let Some(entry) = self.blocked.front().cloned() {
            if self.stopped.is_some() || !self.lacking(&entry).is_empty() {
                return;
            }
            self.blocked.pop_front();
            self.take_from_leaf(&entry, out);
        }
    }

    /// What an entry that waits numbers and is not here: with its color, its first number and the end of its numbers.
    fn waited_for(&self) -> Vec<(Token, Color, SeqNum, SeqNum)> {
        let mut list = Vec::new();
        for entry in &self.blocked {
            let (lacking, Body::Assign(runs)) = (self.lacking(entry), &entry.body) else { continue };
            for run in runs {
                let lacks = run.each().filter(|(token, _)| lacking.contains(token));
                list.extend(
                    lacks.filter_map(|(token, first)| Some((token, run.color, first, first.plus(run.records)?))),
                );
            }
        }
        list
    }

    /// One who was asked for an append does not know it any more, if its client has given it up. What an entry waits for
    /// it may still have under its numbers.
    pub(crate) fn on_not_here(&mut self, from: ReplicaId, token: Token, out: &mut Vec<Output>) {
        if let Some((_, color, first, upto)) = self.waited_for().into_iter().find(|(waited, ..)| *waited == token) {
            let message = PeerMessage::CopyRead { copy: BY_NUMBER, color, from: first, upto };
            out.push(Output::ToPeer { to: from, message });
        }
    }

    /// The records of an append that an entry waits for, by their numbers; if they are not all there, the next member is
    /// asked.
    fn on_read_by_number(
        &mut self,
        now: Time,
        from: ReplicaId,
        color: Color,
        records: Vec<(SeqNum, Record)>,
        covered: SeqNum,
        out: &mut Vec<Output>,
    ) {
        let is_it =
            |waited: &(Token, Color, SeqNum, SeqNum)| waited.1 == color && waited.2 < covered && covered <= waited.3;
        let Some((token, _, first, upto)) = self.waited_for().into_iter().find(is_it) else { return };
        let whole = records.len() as u64 == upto.to_raw() - first.to_raw();
        let records = records.into_iter().map(|(_, record)| record).collect();
        match Append::new(token, color, None, records).ok().filter(|_| whole) {
            Some(append) => {
                self.pulling.insert(token);
                self.on_peer(now, from, PeerMessage::Pulled(Arc::new(append)), out);
            }
            // They were trimmed meanwhile: the state of now is to be copied instead.
            None if self.outside => {
                self.blocked.clear();
                if let Some(leaf) = self.leaf {
                    self.report(leaf, out);
                }
            }
            None => self.pull(token, Some(from), out),
        }
    }

    /// What was said to a peer is lost.
    pub(crate) fn on_peer_replaced(&mut self, peer: ReplicaId, out: &mut Vec<Output>) {
        // Once all is written nothing more is needed of the other.
        let copies = |learning: &Learning| learning.from == peer && !matches!(learning.step, Step::Written(_));
        if self.learning.as_ref().is_some_and(copies) {
            self.learning = None;
        }
        self.copy_asks.retain(|ask| ask.from != peer);
        self.pull_all(Some(peer), out);
    }

    /// One who lacks an append whose number is known here gets it with that. Its clients may not reach the one who asks,
    /// so they are told here when it is settled.
    pub(crate) fn on_pull(&mut self, from: ReplicaId, token: Token, out: &mut Vec<Output>) {
        let slot = self.sessions.get(&token.session).and_then(|session| session.get(token.seq));
        match slot {
            Some(Slot { state: SlotState::Staged, .. }) => {
                self.gave.insert(token);
                out.push(Output::FetchStaged { token, to: from });
            }
            Some(Slot { state: SlotState::Assigned(first, lsn), color, records, .. }) => {
                if lsn > self.log.commit() {
                    self.gave.insert(token);
                }
                let fetch = self.remember(FetchFor::Pull { to: from, token, color, records });
                let upto = first.plus(records).unwrap_or(SeqNum::MAX);
                let (max_records, max_bytes) = (records as usize, usize::MAX);
                out.push(Output::Fetch { fetch, color, from: first, upto, max_records, max_bytes });
            }
            _ => out.push(Output::ToPeer { to: from, message: PeerMessage::NotHere { token } }),
        }
    }

    /// The numbered records of an append that another member lacks were read.
    pub(crate) fn on_pull_fetched(
        to: ReplicaId,
        token: Token,
        color: Color,
        count: u32,
        records: Vec<(SeqNum, Record)>,
        out: &mut Vec<Output>,
    ) {
        let records: Vec<Record> = records.into_iter().map(|(_, record)| record).collect();
        let append = Some(records).filter(|records| records.len() == count as usize);
        let append = append.and_then(|records| Append::new(token, color, None, records).ok());
        let message = match append {
            Some(append) => PeerMessage::Pulled(Arc::new(append)),
            None => PeerMessage::NotHere { token },
        };
        out.push(Output::ToPeer { to, message });
    }

    /// These numbers are committed: clients hear so where not every member that they ask may tell them.
    pub(crate) fn tell_given(&mut self, runs: &[Assign], out: &mut Vec<Output>) {
        if self.gave.is_empty() {
            return;
        }
        let Some(view) = self.log.view().cloned() else { return };
        for run in runs {
            for (token, first) in run.each() {
                if self.gave.remove(&token)
                    && let Some(to) = self.connections.get(&token.session)
                {
                    let runs = vec![Assign::one(token, run.color, first, run.records)];
                    let answer = Appended { members: vec![self.id], view: view.clone(), settled: true, runs };
                    out.push(Output::Answer { to: *to, answer: Answer::Appended(answer) });
                }
            }
        }
    }

    /// A new view is in force. What was answered under an older one is settled now, and some member of that may be gone
    /// without a word: so clients hear it of everything that they may still wait for.
    pub(crate) fn tell_settled(&mut self, view: &View, out: &mut Vec<Output>) {
        // What it learns by copying is of the past.
        if self.learning.is_none() {
            let (was, is) = (self.outside, !view.members.contains(&self.id));
            self.outside = is;
            match (was, is) {
                (true, false) => self.report_staged(out),
                (false, true) => self.turn_away(out),
                _ => {}
            }
        }
        let commit = self.log.commit();
        for (id, to) in &self.connections {
            let Some(session) = self.sessions.get(id) else { continue };
            let mut runs: Vec<Assign> = Vec::new();
            for (seq, slot) in session.slots() {
                if let SlotState::Assigned(first, lsn) = slot.state
                    && lsn <= commit
                {
                    let token = Token { shard: self.shard, session: *id, seq };
                    push_assign(&mut runs, Assign::one(token, slot.color, first, slot.records));
                }
            }
            if !runs.is_empty() {
                let answer = Appended { members: vec![self.id], view: view.clone(), settled: true, runs };
                out.push(Output::Answer { to: *to, answer: Answer::Appended(answer) });
            }
        }
    }
}
