//! The shard log: how a member follows its leaf, from the seal on.

use std::sync::Arc;

use flexlog_protocol::api::{Answer, AppendRefusal, Appended, Failure};
use flexlog_protocol::entry::push_assign;
use flexlog_protocol::peer::{ColorEnd, Of, PeerMessage, SealReport, Staged, ToLeaf, ToMember};
use flexlog_protocol::{Assign, Body, Color, Entry, Epoch, Incarnation, Lsn, Position, SeqNum, SessionId, Time, Token};
use uuid::Uuid;

use crate::checkpoint;
use crate::color::{ColorState, OutOfOrder};
use crate::message::{ConnId, Input, Output, Persist};
use crate::replica::{Pending, Replica};
use crate::session::{Session, Slot, SlotState};

/// Where an entry comes from: the leaf may only assign what is staged here, the store was that far already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Leaf,
    Store,
}

/// What a leaf has to know of a color; `None` where that is nothing.
fn color_end(color: Color, state: &ColorState) -> Option<ColorEnd> {
    match state {
        ColorState::Narrow(state) => state.end().map(|(end, closed)| ColorEnd::narrow(color, end, closed)),
        // One without numbers was followed: the leaf goes on with that.
        ColorState::Wide(state) => {
            let (end, closed) = state.end().unwrap_or((SeqNum::MIN, false));
            Some(ColorEnd { color, end, closed, stable: state.stable(), own: state.own().collect() })
        }
    }
}

impl Replica {
    pub(crate) fn on_leaf(&mut self, now: Time, of: Of<ToMember>, out: &mut Vec<Output>) {
        if matches!(of.message, ToMember::Seal) {
            return self.on_seal(of.leaf, out);
        }
        // What an old incarnation says changes nothing (I9); a new one must seal first.
        if self.leaf != Some(of.leaf) || self.sealing != Some(of.leaf) {
            return;
        }
        match of.message {
            ToMember::Seal => {}
            // Of the time before it was told to learn: it is sent what follows on its copy.
            ToMember::Entries { .. } if self.learning.is_some() => {}
            // It copied from a member that follows a newer leaf, which has written since: this one gets nothing committed.
            ToMember::Entries { .. } if of.leaf.epoch < self.log.last().0 => {}
            ToMember::Entries { entries, commit } => {
                if !self.in_step && entries.first().is_some_and(|first| first.lsn > self.log.last().1.next()) {
                    // It crossed with the report of a process that came after another one: the leaf answers that, too.
                    return;
                }
                self.in_step |= !entries.is_empty();
                for entry in &entries {
                    if self.stopped.is_some() {
                        return;
                    }
                    self.take_or_wait(entry, out);
                }
                self.commit_told = self.commit_told.max(commit);
                self.commit_upto(commit, out);
            }
            ToMember::Complete { token, from } => {
                let Some(session) = self.sessions.get(&token.session) else { return };
                match session.get(token.seq) {
                    None => {
                        self.pulling.insert(token);
                        out.push(Output::ToPeer { to: from, message: PeerMessage::Pull { token } });
                    }
                    Some(slot) if slot.state == SlotState::Staged => {
                        let staged = Staged { token, color: slot.color, records: slot.records, digest: slot.digest };
                        self.to_leaf(ToLeaf::Persisted(vec![staged]), out);
                    }
                    Some(_) => {}
                }
            }
            ToMember::Confirm { round } => {
                self.to_leaf(ToLeaf::Confirmed { round }, out);
            }
            ToMember::Tail { ask, tail, after } => {
                if let Some(color) = self.readers.tail_known(ask, tail, after) {
                    if self.log.commit() >= after {
                        self.goes_on(color, tail);
                    }
                    self.wake(color, out);
                    if self.readers.expired(now).is_some() {
                        self.handle(now, Input::Tick, out);
                    }
                }
            }
            ToMember::Conflict { token } => {
                if let Some(to) = self.connections.get(&token.session).copied() {
                    let answer = Answer::AppendRefused { token, member: self.id, why: AppendRefusal::Conflict };
                    out.push(Output::Answer { to, answer });
                }
            }
            ToMember::Stable { upto, commit } => self.on_stable(upto, commit, out),
            ToMember::Learn { from, behind } => self.on_learn(from, behind, out),
            ToMember::SessionRefused { nonce } => {
                for (to, id) in self.opening.remove(&nonce).unwrap_or_default() {
                    out.push(Output::Answer { to, answer: Answer::Failed { id, why: Failure::TooManySessions } });
                }
            }
        }
    }

    fn on_seal(&mut self, leaf: Incarnation, out: &mut Vec<Output>) {
        if self.stopped.is_some() {
            return;
        }
        match self.sealing {
            Some(newest) if newest.epoch > leaf.epoch => {}
            Some(newest) if newest.epoch == leaf.epoch && newest.uuid != leaf.uuid => {}
            Some(newest) if newest == leaf && self.leaf == Some(leaf) => self.report(leaf, out),
            Some(newest) if newest == leaf && self.fence_is_pending(leaf) => {}
            _ => {
                self.sealing = Some(leaf);
                self.leaf = None;
                self.learning = None;
                self.blocked.clear();
                self.persist(Persist::Fence(leaf), out);
            }
        }
    }

    /// Whoever leads from there now may have sealed this member already, and what it was answered be lost.
    pub(crate) fn on_leaf_replaced(&mut self, position: Position, out: &mut Vec<Output>) {
        if let Some(leaf) = self.leaf.filter(|leaf| leaf.position == position && self.stopped.is_none()) {
            self.report(leaf, out);
        }
    }

    fn fence_is_pending(&self, leaf: Incarnation) -> bool {
        self.pending.iter().any(|pending| matches!(pending, Pending::Fence(fence) if *fence == leaf))
    }

    /// Tells a leaf whose fence is durable everything it needs to go on from here.
    pub(crate) fn report(&mut self, leaf: Incarnation, out: &mut Vec<Output>) {
        self.leaf = Some(leaf);
        self.in_step = false;
        // What was settled under an earlier leaf is in the log, and it may be for this one to tell that it is committed.
        self.commit_told = self.log.last().1;
        self.stables.clear();
        let commit = self.log.commit();
        let mut staged = Vec::new();
        let mut sessions = Vec::new();
        for (id, session) in &self.sessions {
            if id.lsn <= commit {
                sessions.push(*id);
            }
            for (seq, slot) in session.slots().filter(|(_, slot)| slot.state == SlotState::Staged) {
                let token = Token { shard: self.shard, session: *id, seq };
                staged.push(Staged { token, color: slot.color, records: slot.records, digest: slot.digest });
            }
        }
        // Orders what came from hash maps, so that the same history always gives the same report.
        staged.sort_unstable_by_key(|staged| staged.token);
        sessions.sort_unstable();
        let mut colors: Vec<ColorEnd> =
            self.colors.iter().filter_map(|(color, state)| color_end(*color, state)).collect();
        colors.sort_unstable_by_key(|end| end.color);
        let mut follow: Vec<Color> = staged.iter().map(|staged| staged.color).collect();
        follow.extend(self.readers.subscribed());
        follow.sort_unstable();
        // Said again, it must not count what was sent meanwhile and is not durable: that will be acknowledged when it is.
        // While it copies, its log is not one to count on, and nobody does.
        let last = if self.learning.is_some() { (Epoch(0), Lsn(0)) } else { self.log.durable_end() };
        let report = SealReport {
            last,
            commit,
            view: self.log.view().cloned(),
            entries: self.log.open().take_while(|entry| entry.lsn <= last.1).cloned().collect(),
            staged,
            colors,
            sessions,
        };
        self.to_leaf(ToLeaf::Sealed(Box::new(report)), out);
        // Whatever an earlier leaf left unanswered is asked again.
        self.asked.clear();
        for color in follow {
            self.follow(color, out);
        }
        let nonces: Vec<Uuid> = self.opening.keys().copied().collect();
        for nonce in nonces {
            self.to_leaf(ToLeaf::OpenSession { nonce }, out);
        }
        for name in self.readers.all() {
            if let Some(ask) = self.readers.ask_mut(name) {
                ask.told = None;
            }
            self.judge(name, out);
        }
    }

    /// Takes an entry into the log, and into what appends are answered from. Returns false for one that was there.
    pub(crate) fn take_entry(&mut self, entry: &Arc<Entry>, origin: Origin) -> Result<bool, String> {
        if !self.log.append(entry).map_err(|error| error.to_string())? {
            return Ok(false);
        }
        match &entry.body {
            Body::Assign(assigns) => {
                for assign in assigns {
                    self.take_assign(assign, entry.lsn, origin)?;
                }
            }
            Body::OpenSession { nonce } => {
                // A repeated nonce names the first session.
                if !self.nonces.contains_key(nonce) {
                    let id = SessionId { epoch: entry.epoch, lsn: entry.lsn };
                    self.nonces.insert(*nonce, id);
                    self.sessions.insert(id, Session::new(*nonce));
                }
            }
            // From here on its nonce is free; the session itself goes when this commits.
            Body::CloseSession(id) => {
                if let Some(session) = self.sessions.get(id)
                    && self.nonces.get(&session.nonce) == Some(id)
                {
                    self.nonces.remove(&session.nonce);
                }
            }
            Body::Hole { .. } | Body::EpochEnd { .. } | Body::NewView(_) | Body::Trim { .. } => {}
        }
        Ok(true)
    }

    fn take_assign(&mut self, assign: &Assign, lsn: Lsn, origin: Origin) -> Result<(), String> {
        let Some(session) = self.sessions.get_mut(&assign.token.session) else {
            return Err(format!("entry {lsn} numbers {}, whose session is not open here", assign.token));
        };
        for (token, first) in assign.each() {
            let known = session.get(token.seq);
            if !self.pulling.is_empty() {
                self.pulling.remove(&token);
            }
            let staged = known.filter(|slot| !matches!(slot.state, SlotState::Assigned(..)));
            match (staged, origin) {
                (Some(slot), _) if slot.color != assign.color || slot.records != assign.records => {
                    return Err(format!("entry {lsn} numbers {token} for other records than those staged here"));
                }
                (None, Origin::Leaf) => {
                    return Err(format!("entry {lsn} numbers {token}, which is not staged here"));
                }
                _ => {}
            }
            let slot = Slot {
                color: assign.color,
                records: assign.records,
                digest: staged.map_or(0, |slot| slot.digest),
                bytes: 0,
                state: SlotState::Assigned(first, lsn),
            };
            session.put(token.seq, slot);
            if let Some(slot) = staged {
                self.staged_tokens = self.staged_tokens.saturating_sub(1);
                self.staged_bytes = self.staged_bytes.saturating_sub(u64::from(slot.bytes));
            }
        }
        Ok(())
    }

    /// Applies what the leaf says is committed. It cannot be more than what this member acknowledged.
    pub(crate) fn commit_upto(&mut self, commit: Lsn, out: &mut Vec<Output>) {
        let upto = commit.min(self.log.persisted());
        let mut touched: Vec<Color> = Vec::new();
        while let Some(entry) = self.log.commit_next(upto) {
            if let Err(error) = self.apply(&entry, &mut touched, out) {
                return self.stop(format!("entry {}: {error}", entry.lsn), out);
            }
        }
        self.answer_copies(out);
        touched.sort_unstable();
        touched.dedup();
        for color in touched {
            self.wake(color, out);
        }
        self.settle(out);
    }

    fn on_stable(&mut self, list: Vec<(Color, SeqNum)>, commit: Lsn, out: &mut Vec<Output>) {
        self.commit_told = self.commit_told.max(commit);
        for (color, upto) in list.into_iter().filter(|(color, _)| color.is_wide()) {
            let stable = self.stables.entry(color).or_insert(upto);
            *stable = upto.max(*stable);
        }
        self.settle(out);
    }

    /// Takes what the leaf said to be settled on all shards, once all is committed here that it told before.
    fn settle(&mut self, out: &mut Vec<Output>) {
        if self.log.commit() < self.commit_told {
            return;
        }
        for (color, upto) in std::mem::take(&mut self.stables) {
            self.asked.remove(&color);
            if let ColorState::Wide(state) = self.color_mut(color)
                && state.settle(upto)
            {
                self.wake(color, out);
            }
        }
    }

    /// The owner of a color on this shard alone counts in the epoch of its tail.
    pub(crate) fn goes_on(&mut self, color: Color, tail: SeqNum) {
        if !color.is_wide()
            && let ColorState::Narrow(state) = self.color_mut(color)
        {
            state.goes_on_in(tail.epoch());
        }
    }

    fn apply(&mut self, entry: &Entry, touched: &mut Vec<Color>, out: &mut Vec<Output>) -> Result<(), OutOfOrder> {
        match &entry.body {
            Body::Assign(assigns) => {
                for assign in assigns {
                    self.color_mut(assign.color).assign(assign.first, assign.count())?;
                    self.touch(assign.color, touched);
                }
                self.tell_given(assigns, out);
            }
            Body::Hole { color, first, count } => {
                self.color_mut(*color).hole(*first, *count)?;
                self.touch(*color, touched);
            }
            Body::EpochEnd { color, end, next } => {
                self.color_mut(*color).end_epoch(*end, *next)?;
                self.touch(*color, touched);
            }
            Body::NewView(view) => {
                let outside = self.outside;
                if self.view_before.replace(view.number).is_some_and(|before| before != view.number) || outside {
                    self.tell_settled(view, out);
                }
                // What was copied meanwhile came without a word to those who wait for it.
                if outside && !self.outside {
                    touched.extend(self.readers.colors());
                }
            }
            Body::OpenSession { nonce } => {
                let session = self.nonces.get(nonce).copied();
                if session.is_none_or(|id| id.lsn <= entry.lsn) {
                    for (to, id) in self.opening.remove(nonce).unwrap_or_default() {
                        let closed = || Failure::NotReady("the session was closed as idle before it was told".into());
                        let answer = match session {
                            Some(session) => Answer::SessionOpened { id, session },
                            // An entry behind closes it: whoever waits asks again, and gets another.
                            None => Answer::Failed { id, why: closed() },
                        };
                        out.push(Output::Answer { to, answer });
                    }
                }
            }
            Body::CloseSession(id) => self.close_session(*id, out),
            Body::Trim { color, upto } => {
                if self.color_mut(*color).trim(*upto) {
                    out.push(Output::Trim { color: *color, upto: *upto });
                }
                self.touch(*color, touched);
            }
        }
        Ok(())
    }

    fn touch(&self, color: Color, touched: &mut Vec<Color>) {
        if touched.last() != Some(&color) && self.readers.cares_for(color) {
            touched.push(color);
        }
    }

    fn close_session(&mut self, id: SessionId, out: &mut Vec<Output>) {
        let Some(session) = self.sessions.remove(&id) else { return };
        if self.nonces.get(&session.nonce) == Some(&id) {
            self.nonces.remove(&session.nonce);
        }
        self.pulling.retain(|token| token.session != id);
        let client = self.connections.remove(&id);
        let mut dropped = Vec::new();
        for (seq, slot) in session.slots() {
            if !matches!(slot.state, SlotState::Assigned(..)) {
                self.unstage(slot);
                let token = Token { shard: self.shard, session: id, seq };
                dropped.push(token);
                // It crossed with the entry on its way: without a word its client would wait until the deadline.
                if let Some(to) = client {
                    let (member, why) = (self.id, AppendRefusal::SessionExpired);
                    out.push(Output::Answer { to, answer: Answer::AppendRefused { token, member, why } });
                }
            }
        }
        if !dropped.is_empty() {
            out.push(Output::DropStaged(dropped));
        }
    }

    pub(crate) fn on_durable(&mut self, upto: u64, out: &mut Vec<Output>) {
        let mut staged: Vec<Staged> = Vec::new();
        let mut acked = None;
        let (mut copied, mut checkpointed) = (false, None);
        let mut answers: Vec<(ConnId, Appended)> = Vec::new();
        while self.durable < upto {
            let Some(pending) = self.pending.pop_front() else { break };
            self.durable += 1;
            match pending {
                Pending::Stage(token) => {
                    let Some(session) = self.sessions.get_mut(&token.session) else { continue };
                    let Some(slot) = session.get(token.seq).filter(|slot| slot.state == SlotState::Staging) else {
                        continue;
                    };
                    session.put(token.seq, Slot { state: SlotState::Staged, ..slot });
                    staged.push(Staged { token, color: slot.color, records: slot.records, digest: slot.digest });
                }
                Pending::Entry(lsn) => {
                    self.log.persisted_upto(lsn);
                    acked = Some(lsn);
                    self.answer_assigned(lsn, &mut answers);
                }
                Pending::Fence(leaf) => {
                    // The report covers everything up to here.
                    staged.clear();
                    acked = None;
                    if self.sealing == Some(leaf) {
                        self.report(leaf, out);
                    }
                }
                Pending::Copy => copied = true,
                Pending::Checkpoint(upto) => checkpointed = Some(upto),
                Pending::Other => {}
            }
        }
        if !staged.is_empty() {
            self.to_leaf(ToLeaf::Persisted(staged), out);
        }
        if let Some(lsn) = acked {
            self.to_leaf(ToLeaf::Acked(lsn), out);
        }
        for (to, appended) in answers {
            out.push(Output::Answer { to, answer: Answer::Appended(appended) });
        }
        if copied {
            self.on_copy_durable(out);
        }
        if let Some(upto) = checkpointed {
            self.on_checkpoint_durable(upto, out);
        }
    }

    /// Tells clients the numbers that the entry at `lsn` gave to their appends: it is persisted here, with its records.
    fn answer_assigned(&self, lsn: Lsn, answers: &mut Vec<(ConnId, Appended)>) {
        let Some(Body::Assign(assigns)) = self.log.open_at(lsn).map(|entry| &entry.body) else { return };
        let Some(view) = self.log.view_at(lsn) else { return };
        for assign in assigns {
            let Some(to) = self.connections.get(&assign.token.session) else { continue };
            let same = |(conn, appended): &&mut (ConnId, Appended)| conn == to && appended.view == *view;
            match answers.iter_mut().rev().find(same) {
                Some((_, appended)) => push_assign(&mut appended.runs, *assign),
                None => {
                    let members = vec![self.id];
                    let appended = Appended { members, view: view.clone(), settled: false, runs: vec![*assign] };
                    answers.push((*to, appended));
                }
            }
        }
    }

    pub(crate) fn on_checkpoint_wanted(&mut self, out: &mut Vec<Output>) {
        let upto = self.log.commit();
        if upto > Lsn(0) && self.stopped.is_none() {
            let state = checkpoint::encode(&self.log, &self.sessions, &self.colors);
            self.persist(Persist::Checkpoint { upto, state }, out);
        }
    }
}
