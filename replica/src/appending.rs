//! Appends: what a member stages, and what it answers to those it knows.

use std::sync::Arc;

use flexlog_protocol::api::{Answer, AppendRefusal, AppendRequest, Appended};
use flexlog_protocol::entry::push_assign;
use flexlog_protocol::peer::PeerMessage;
use flexlog_protocol::{Append, Assign, Lsn, ReplicaId, Time, Token, limits};

use crate::message::{ConnId, Output, Persist};
use crate::replica::{Pending, Replica};
use crate::session::{Lookup, Slot, SlotState};

impl Replica {
    pub(crate) fn on_append(&mut self, from: ConnId, request: &AppendRequest, out: &mut Vec<Output>) {
        // What it knows of sessions is of another time.
        if self.learning.is_some() {
            return;
        }
        let (commit, persisted) = (self.log.commit(), self.log.persisted());
        let member = self.id;
        let mut settled = Vec::new();
        let mut unsettled: Vec<(Lsn, Assign)> = Vec::new();
        let mut stage = Vec::new();
        let mut refuse = |token: Token, why| {
            out.push(Output::Answer { to: from, answer: Answer::AppendRefused { token, member, why } });
        };
        let session = self.sessions.get_mut(&request.session).filter(|_| request.shard == self.shard);
        let Some(session) = session else {
            for append in &request.appends {
                refuse(append.token(), AppendRefusal::SessionExpired);
            }
            return;
        };
        self.connections.insert(request.session, from);
        session.forget_below(request.low);
        for append in &request.appends {
            let token = append.token();
            let bytes = append.encoded_len();
            match session.lookup(token.seq) {
                Lookup::TooOld => refuse(token, AppendRefusal::TooOld),
                Lookup::WindowFull => refuse(token, AppendRefusal::WindowFull),
                // The digest of what was assigned before a restart is not known any more.
                Lookup::Known(slot) if slot.digest != 0 && slot.digest != append.digest() => {
                    refuse(token, AppendRefusal::Conflict);
                }
                Lookup::Known(Slot { state: SlotState::Assigned(first, lsn), color, records, .. }) => {
                    let assign = Assign::one(token, color, first, records);
                    if lsn <= commit {
                        push_assign(&mut settled, assign);
                    } else if lsn <= persisted {
                        unsettled.push((lsn, assign));
                    }
                }
                // It was on its way when the store failed, and will not arrive.
                Lookup::Known(Slot { state: SlotState::Staging, .. }) if self.stopped.is_some() => {
                    refuse(token, AppendRefusal::StorageFailed);
                }
                Lookup::Known(_) => {}
                Lookup::Free if self.stopped.is_some() => refuse(token, AppendRefusal::StorageFailed),
                Lookup::Free if append.condition().is_some() => refuse(token, AppendRefusal::Unsupported),
                Lookup::Free
                    if self.staged_tokens >= limits::MAX_STAGED_TOKENS
                        || self.staged_bytes + bytes as u64 > self.max_staged_bytes =>
                {
                    refuse(token, AppendRefusal::Busy);
                }
                Lookup::Free => {
                    session.put(token.seq, slot_of(append));
                    self.staged_tokens += 1;
                    self.staged_bytes += bytes as u64;
                    stage.push(Arc::clone(append));
                }
            }
        }
        for append in stage {
            self.follow(append.color(), out);
            self.persist(Persist::Stage(append), out);
        }
        if !self.blocked.is_empty() {
            self.unblock(out);
        }
        if let Some(view) = self.log.view().filter(|_| !settled.is_empty()) {
            let answer = Appended { members: vec![member], view: view.clone(), settled: true, runs: settled };
            out.push(Output::Answer { to: from, answer: Answer::Appended(answer) });
        }
        for (lsn, assign) in unsettled {
            if let Some(view) = self.log.view_at(lsn) {
                let answer = Appended { members: vec![member], view: view.clone(), settled: false, runs: vec![assign] };
                out.push(Output::Answer { to: from, answer: Answer::Appended(answer) });
            }
        }
    }

    pub(crate) fn on_stage_refused(&mut self, token: Token, out: &mut Vec<Output>) {
        // The write counts as done, but there is nothing to report about it.
        if let Some(pending) = self.pending.iter_mut().find(|p| matches!(p, Pending::Stage(t) if *t == token)) {
            *pending = Pending::Other;
        }
        let Some(session) = self.sessions.get_mut(&token.session) else { return };
        if let Some(slot) = session.get(token.seq) {
            session.clear(token.seq);
            self.unstage(slot);
        }
        if let Some(to) = self.connections.get(&token.session).copied() {
            let answer = Answer::AppendRefused { token, member: self.id, why: AppendRefusal::Full };
            out.push(Output::Answer { to, answer });
        }
    }

    pub(crate) fn unstage(&mut self, slot: Slot) {
        self.staged_tokens = self.staged_tokens.saturating_sub(1);
        self.staged_bytes = self.staged_bytes.saturating_sub(u64::from(slot.bytes));
    }

    pub(crate) fn on_peer(&mut self, now: Time, from: ReplicaId, message: PeerMessage, out: &mut Vec<Output>) {
        match message {
            PeerMessage::Pull { token } => self.on_pull(from, token, out),
            PeerMessage::Pulled(append) => {
                let token = append.token();
                // A pull ignores the client's low mark: the record is staged elsewhere and will be numbered.
                let wanted = self.sessions.get_mut(&token.session).filter(|s| s.get(token.seq).is_none());
                let asked = self.pulling.remove(&token);
                if let Some(session) = wanted.filter(|_| asked && self.stopped.is_none()) {
                    session.put(token.seq, slot_of(&append));
                    self.staged_tokens += 1;
                    self.staged_bytes += append.encoded_len() as u64;
                    self.persist(Persist::Stage(append), out);
                    self.unblock(out);
                }
            }
            PeerMessage::NotHere { token } => self.on_not_here(from, token, out),
            other => self.on_copying(now, from, other, out),
        }
    }
}

fn slot_of(append: &Append) -> Slot {
    Slot {
        color: append.color(),
        records: append.count(),
        digest: append.digest(),
        bytes: append.encoded_len() as u32,
        state: SlotState::Staging,
    }
}
