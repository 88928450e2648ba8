//! A replica as far as its leaf can tell: it persists at once, and knows nothing of readers.

use std::collections::BTreeMap;
use std::sync::Arc;

use flexlog_protocol::peer::{ColorEnd, Of, Range, SealReport, Staged, ToLeaf};
use flexlog_protocol::{Body, Color, Entry, Epoch, Incarnation, Lsn, SeqNum, SessionId, Token};
use uuid::Uuid;

/// The open sessions by nonce: the same nonce again names the first.
pub type Sessions = BTreeMap<Uuid, SessionId>;

/// Takes an entry of the log in, and returns the session that begins with it.
pub fn take_session(sessions: &mut Sessions, entry: &Entry) -> Option<SessionId> {
    match &entry.body {
        Body::OpenSession { nonce } if !sessions.contains_key(nonce) => {
            let id = SessionId { epoch: entry.epoch, lsn: entry.lsn };
            sessions.insert(*nonce, id);
            Some(id)
        }
        Body::CloseSession(closed) => {
            sessions.retain(|_, id| id != closed);
            None
        }
        _ => None,
    }
}

#[derive(Default)]
pub struct Member {
    pub sealed: Option<Incarnation>,
    pub log: Vec<Arc<Entry>>,
    pub commit: Lsn,
    pub staged: BTreeMap<Token, Staged>,
    pub numbered: BTreeMap<Token, (Staged, SeqNum)>,
    pub sessions: Sessions,
    /// The wide colors that somebody here cares for, and the stable that was told of each.
    pub wide: BTreeMap<Color, SeqNum>,
}

impl Member {
    pub fn last(&self) -> Lsn {
        Lsn(self.log.len() as u64)
    }

    /// What it holds under this token.
    pub fn has(&self, token: Token) -> Option<Staged> {
        self.staged.get(&token).copied().or_else(|| self.numbered.get(&token).map(|(staged, _)| *staged))
    }

    /// Persists a record, and returns whether that is new.
    pub fn stage(&mut self, staged: Staged) -> bool {
        let new = self.sessions.values().any(|id| *id == staged.token.session) && self.has(staged.token).is_none();
        if new {
            self.staged.insert(staged.token, staged);
        }
        new
    }

    /// A message to the leaf that it follows.
    pub fn say(&self, message: ToLeaf) -> Option<Of<ToLeaf>> {
        Some(Of { leaf: self.sealed?, message })
    }

    pub fn seal(&mut self, leaf: Incarnation) -> ToLeaf {
        self.sealed = Some(leaf);
        let committed = &self.log[..self.commit.0 as usize];
        let mut view = None;
        let followed = |(color, stable): (&Color, &SeqNum)| {
            (*color, ColorEnd { stable: *stable, ..ColorEnd::narrow(*color, SeqNum::MIN, false) })
        };
        let mut colors: BTreeMap<Color, ColorEnd> = self.wide.iter().map(followed).collect();
        let mut give = |color: Color, end: SeqNum, closed: bool, range: Option<Range>| {
            let known = colors.entry(color).or_insert_with(|| ColorEnd::narrow(color, end, closed));
            (known.end, known.closed) = (end, closed);
            if color.is_wide() {
                known.own.extend(range.filter(|range| range.end() > known.stable));
            }
        };
        let mut sessions = Sessions::new();
        for entry in committed {
            match &entry.body {
                Body::Assign(runs) => runs.iter().for_each(|run| {
                    give(run.color, run.end(), false, Some(Range { first: run.first, count: run.count() }));
                }),
                Body::Hole { color, first, count } => {
                    let range = Range { first: *first, count: *count };
                    give(*color, range.end(), false, Some(range));
                }
                Body::EpochEnd { color, end, .. } => give(*color, *end, true, None),
                Body::NewView(new) => view = Some(new.clone()),
                Body::OpenSession { .. } | Body::CloseSession(_) => _ = take_session(&mut sessions, entry),
                Body::Trim { .. } => {}
            }
        }
        ToLeaf::Sealed(Box::new(SealReport {
            last: (self.log.last().map_or(Epoch(0), |entry| entry.epoch), self.last()),
            commit: self.commit,
            view,
            entries: self.log[self.commit.0 as usize..].to_vec(),
            staged: self.staged.values().copied().collect(),
            colors: colors.into_values().collect(),
            sessions: sessions.into_values().collect(),
        }))
    }

    /// Takes the next entry of the shard log.
    pub fn apply(&mut self, entry: &Arc<Entry>) -> Result<(), String> {
        if entry.lsn <= self.last() {
            let own = &self.log[entry.lsn.0 as usize - 1];
            return if own == entry { Ok(()) } else { Err(format!("I5: {own:?} is replaced by {entry:?}")) };
        }
        if entry.lsn != self.last().next() {
            return Err(format!("a gap in the stream before {entry:?}"));
        }
        self.log.push(entry.clone());
        match &entry.body {
            Body::Assign(runs) => {
                for (token, number) in runs.iter().flat_map(|run| run.each()) {
                    if self.numbered.contains_key(&token) {
                        return Err(format!("I1: {token} gets the number {number} too"));
                    }
                    let staged = self.staged.remove(&token).ok_or(format!("I2: {token} is numbered but not here"))?;
                    self.numbered.insert(token, (staged, number));
                }
            }
            Body::OpenSession { .. } => _ = take_session(&mut self.sessions, entry),
            Body::CloseSession(id) => {
                take_session(&mut self.sessions, entry);
                self.staged.retain(|token, _| token.session != *id);
            }
            _ => {}
        }
        Ok(())
    }
}
