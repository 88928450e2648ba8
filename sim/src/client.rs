//! Model clients: they open sessions, append, retry under the same tokens, give up, lose their connections, and die in the
//! middle of sending. A few break the rules and send different records under one token.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use flexlog_protocol::api::{Answer, AppendRefusal, AppendRequest, Appended, Failure, Request};
use flexlog_protocol::limits::TOKEN_WINDOW;
use flexlog_protocol::{Append, Color, Record, ReplicaId, SeqNum, SessionId, Tag, Token, ViewNumber};
use flexlog_replica::ConnId;
use uuid::Uuid;

use crate::history::History;
use crate::invariants::{self, Violation, i12_bounds};
use crate::machine::replica_id;
use crate::net::{Net, Packet, Stream};
use crate::schedule::Chooser;
use crate::shape::{Shape, shard_id};

/// What those outside the cluster act with.
pub(crate) struct Outside<'a> {
    pub(crate) chooser: &'a mut Chooser,
    pub(crate) history: &'a mut History,
    pub(crate) net: &'a mut Net,
    pub(crate) shape: &'a Shape,
    /// The most bytes of a record's payload.
    pub(crate) payload: u64,
}

impl Outside<'_> {
    /// Any color, and any replica of a shard that it is on.
    pub(crate) fn color_and_replica(&mut self) -> (Color, usize) {
        let shape = self.shape;
        let (color, shards) = &shape.colors[self.chooser.below(shape.colors.len() as u64) as usize];
        let shard = if shards.len() > 1 { self.chooser.pick(shards) } else { shards[0] };
        let replicas = &shape.shards[shard].replicas;
        (*color, replicas.start + self.chooser.below(replicas.len() as u64) as usize)
    }

    /// Any color of a shard.
    pub(crate) fn color_on(&mut self, shard: usize) -> Color {
        self.chooser.pick(&self.shape.shards[shard].colors)
    }

    pub(crate) fn request(&mut self, conn: ConnId, member: usize, request: Request) {
        self.net.push(Stream::Request { conn, member }, Packet::Request(request));
    }
}

/// What a client wants of its surroundings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    Nothing,
    Connect,
    Disconnect,
}

#[derive(Debug)]
enum Session {
    None,
    Opening { nonce: Uuid, id: u64 },
    Open(SessionId),
}

#[derive(Debug)]
struct Open {
    append: Arc<Append>,
    /// Who said that it has this number, in which view.
    votes: BTreeMap<(ViewNumber, SeqNum), BTreeSet<ReplicaId>>,
    /// Other records were sent to others under this token.
    lie: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) alive: bool,
    pub(crate) conn: Option<ConnId>,
    /// The shard that its session is at.
    shard: usize,
    session: Session,
    open: BTreeMap<u64, Open>,
    next_seq: u64,
    next_id: u64,
    most_open: usize,
    liar: bool,
    /// The members of the view, as it was told some time.
    members: Vec<usize>,
    /// Some member had no room.
    pub(crate) met_full: bool,
}

impl Client {
    pub(crate) fn new(most_open: usize, liar: bool) -> Self {
        Self {
            alive: true,
            conn: None,
            shard: 0,
            session: Session::None,
            open: BTreeMap::new(),
            next_seq: 1,
            next_id: 0,
            most_open,
            liar,
            members: Vec::new(),
            met_full: false,
        }
    }

    /// Whether it waits for appends or for its session.
    pub(crate) fn waits(&self) -> bool {
        self.alive && (!self.open.is_empty() || matches!(self.session, Session::Opening { .. }))
    }

    /// Whether it waits for an append that is numbered somewhere and not everywhere.
    pub(crate) fn waits_for_some(&self, history: &History) -> bool {
        self.alive
            && self.open.values().any(|open| {
                let token = open.append.token();
                history.ledgers.iter().any(|ledger| ledger.assigned.contains_key(&token))
                    && !history.tokens.contains_key(&token)
            })
    }

    /// Whether it was told of a session.
    pub(crate) fn has_session(&self) -> bool {
        matches!(self.session, Session::Open(_))
    }

    /// For people.
    pub(crate) fn state(&self) -> String {
        format!("{:?}, open: {:?}", self.session, self.open.keys().collect::<Vec<_>>())
    }

    /// Whether a token is of its session.
    fn is_at(&self, token: Token) -> bool {
        let here = token.shard == shard_id(self.shard);
        matches!(self.session, Session::Open(session) if session == token.session && here)
    }

    fn low(&self) -> u64 {
        self.open.keys().next().copied().unwrap_or(self.next_seq)
    }

    pub(crate) fn disconnected(&mut self) {
        self.conn = None;
    }

    /// Does one thing of its choice.
    pub(crate) fn act(&mut self, world: &mut Outside<'_>) -> Wish {
        let Some(conn) = self.conn else { return Wish::Connect };
        if matches!(self.session, Session::None) && world.shape.shards.len() > 1 {
            self.shard = world.chooser.below(world.shape.shards.len() as u64) as usize;
            self.members.clear();
        }
        if self.members.is_empty() || world.chooser.one_in(10) {
            self.members = world.history.shards[self.shard].view.clone();
        }
        let session = match &self.session {
            Session::Open(session) => *session,
            Session::None => {
                self.open_session(conn, world);
                return Wish::Nothing;
            }
            Session::Opening { .. } => {
                if world.chooser.one_in(4) {
                    self.ask_for_session(conn, world);
                }
                return if world.chooser.one_in(40) { Wish::Disconnect } else { Wish::Nothing };
            }
        };
        let room = u64::from(self.open.len() < self.most_open);
        let list = [(0, 60 * room), (1, 12), (2, 2), (3, 2), (4, 1), (5, 1), (6, 1)];
        match world.chooser.weighted(&list) {
            Some(0) => {
                self.append(conn, session, world);
                Wish::Nothing
            }
            Some(1) => {
                self.retry(conn, session, world);
                Wish::Nothing
            }
            Some(2) => Wish::Disconnect,
            Some(3) => {
                // Does not care any more: for what it hears of these later, it is not there.
                let keep = world.chooser.below(self.open.len() as u64 + 1);
                while self.open.len() as u64 > keep {
                    self.open.pop_first();
                }
                Wish::Nothing
            }
            Some(4) => {
                self.probe_window(conn, session, world);
                Wish::Nothing
            }
            Some(5) if world.chooser.one_in(3) => {
                // Another session comes next. What is open it will not hear of.
                let member = self.member(world);
                world.request(conn, member, Request::CloseSession { shard: shard_id(self.shard), session });
                self.session = Session::None;
                self.open.clear();
                Wish::Nothing
            }
            Some(6) if world.chooser.one_in(6) => {
                self.alive = false;
                Wish::Disconnect
            }
            _ => Wish::Nothing,
        }
    }

    /// Sends everything that is open again, to all; opens a session where appends wait for one.
    pub(crate) fn retry_all(&mut self, world: &mut Outside<'_>) -> Wish {
        let Some(conn) = self.conn else { return Wish::Connect };
        self.members = world.history.shards[self.shard].view.clone();
        match &self.session {
            Session::Open(session) => {
                let session = *session;
                let appends = self.open.values().map(|open| Arc::clone(&open.append)).collect();
                self.send(conn, session, appends, None, world);
            }
            Session::Opening { .. } => self.ask_for_session(conn, world),
            Session::None => {}
        }
        Wish::Nothing
    }

    /// One of the members.
    fn member(&self, world: &mut Outside<'_>) -> usize {
        world.chooser.pick(&self.members)
    }

    fn open_session(&mut self, conn: ConnId, world: &mut Outside<'_>) {
        self.next_id += 1;
        self.session = Session::Opening { nonce: world.chooser.uuid(), id: self.next_id };
        self.ask_for_session(conn, world);
    }

    fn ask_for_session(&self, conn: ConnId, world: &mut Outside<'_>) {
        let Session::Opening { nonce, id } = self.session else { return };
        let member = self.member(world);
        world.request(conn, member, Request::OpenSession { id, shard: shard_id(self.shard), nonce });
    }

    fn append(&mut self, conn: ConnId, session: SessionId, world: &mut Outside<'_>) {
        let count = world.chooser.pick(&[1, 1, 1, 2, 3]);
        let mut appends = Vec::new();
        for _ in 0..count {
            let token = Token { shard: shard_id(self.shard), session, seq: self.next_seq };
            let color = world.color_on(self.shard);
            let Some(append) = draw_append(token, color, world) else { return };
            self.next_seq += 1;
            world.history.sends(&append);
            let open = Open { append: Arc::clone(&append), votes: BTreeMap::new(), lie: false };
            self.open.insert(token.seq, open);
            appends.push(append);
        }
        if self.liar && world.chooser.one_in(5) {
            return self.lie(conn, session, &appends, world);
        }
        let upto =
            if world.chooser.one_in(12) { Some(world.chooser.below(self.members.len() as u64) as usize) } else { None };
        self.send(conn, session, appends.clone(), upto, world);
        if world.chooser.one_in(10) {
            self.send(conn, session, appends, None, world);
        }
    }

    /// To the first members what it should send, to the others something else.
    fn lie(&mut self, conn: ConnId, session: SessionId, appends: &[Arc<Append>], world: &mut Outside<'_>) {
        let mut others = Vec::new();
        for append in appends {
            let Some(other) = draw_append(append.token(), append.color(), world) else { return };
            world.history.sends(&other);
            others.push(other);
            if let Some(open) = self.open.get_mut(&append.token().seq) {
                open.lie = true;
            }
        }
        let first = world.chooser.below(self.members.len() as u64) as usize;
        for (nth, member) in self.members.iter().copied().enumerate() {
            let appends = if nth < first { appends.to_vec() } else { others.clone() };
            self.send_to(conn, session, appends, member, world);
        }
    }

    fn retry(&mut self, conn: ConnId, session: SessionId, world: &mut Outside<'_>) {
        if self.open.is_empty() {
            return;
        }
        let skip = world.chooser.below(self.open.len() as u64) as usize;
        let appends: Vec<_> = self.open.values().skip(skip).map(|open| Arc::clone(&open.append)).collect();
        if world.chooser.one_in(3) {
            let member = self.member(world);
            self.send_to(conn, session, appends, member, world);
        } else {
            self.send(conn, session, appends, None, world);
        }
    }

    /// Sends to all members, or to the first of them only: the others will have to get it from these.
    fn send(
        &self,
        conn: ConnId,
        session: SessionId,
        appends: Vec<Arc<Append>>,
        upto: Option<usize>,
        world: &mut Outside<'_>,
    ) {
        let (from, count) = (world.chooser.below(self.members.len() as u64) as usize, self.members.len());
        for nth in 0..upto.unwrap_or(count) {
            let member = self.members[(from + nth) % count];
            self.send_to(conn, session, appends.clone(), member, world);
        }
    }

    fn send_to(
        &self,
        conn: ConnId,
        session: SessionId,
        appends: Vec<Arc<Append>>,
        member: usize,
        world: &mut Outside<'_>,
    ) {
        if appends.is_empty() {
            return;
        }
        let (low, members) = (self.low(), vec![replica_id(member)]);
        let request = AppendRequest { shard: shard_id(self.shard), session, low, members, appends };
        world.net.push(Stream::Request { conn, member }, Packet::Append(Arc::new(request)));
    }

    /// A token beyond the window must be refused, unless the member has heard meanwhile that the window is further up.
    fn probe_window(&mut self, conn: ConnId, session: SessionId, world: &mut Outside<'_>) {
        let seq = self.low() + TOKEN_WINDOW + world.chooser.below(3);
        let token = Token { shard: shard_id(self.shard), session, seq };
        let color = world.color_on(self.shard);
        let member = self.member(world);
        let Some(append) = draw_append(token, color, world) else { return };
        world.history.sends(&append);
        self.send_to(conn, session, vec![append], member, world);
    }

    /// Takes an answer of a member.
    pub(crate) fn answer(
        &mut self,
        answer: Answer,
        broken_stores: bool,
        history: &mut History,
    ) -> Result<(), Violation> {
        match answer {
            Answer::SessionOpened { id: of, session } => match self.session {
                Session::Opening { nonce, id } if id == of => {
                    invariants::i03_settled_before_shown::session_told(history, self.shard, nonce, session)?;
                    self.session = Session::Open(session);
                    self.next_seq = 1;
                    self.open.clear();
                }
                _ => {}
            },
            Answer::Appended(appended) => self.appended(&appended, history)?,
            Answer::AppendRefused { token, why, .. } => self.refused(token, why, broken_stores, history)?,
            Answer::Failed { why: Failure::TooManySessions | Failure::NotReady(_), .. } => {}
            other => {
                return Err(i12_bounds::wrong_refusal(format!("a client that only appends is answered {other:?}")));
            }
        }
        Ok(())
    }

    fn appended(&mut self, appended: &Appended, history: &mut History) -> Result<(), Violation> {
        use invariants::{i01_one_number_one_record as i01, i03_settled_before_shown as i03};
        for (token, first) in appended.runs.iter().flat_map(flexlog_protocol::Assign::each) {
            if appended.settled {
                i03::acknowledged(history, token, first)?;
                i01::told(history, token, first)?;
            }
            if !self.is_at(token) {
                continue;
            }
            let Some(open) = self.open.get_mut(&token.seq) else { continue };
            let votes = open.votes.entry((appended.view.number, first)).or_default();
            votes.extend(appended.members.iter().copied());
            let done = appended.settled || appended.view.members.iter().all(|member| votes.contains(member));
            if done {
                i03::acknowledged(history, token, first)?;
                i01::told(history, token, first)?;
                let color = open.append.color();
                // Where a client breaks the rules, what settled may be another one than what it holds for it.
                let count = history.appends.get(&token).map_or(open.append.count(), |append| append.count());
                for index in 0..count {
                    history.shows(color, SeqNum::new(first.epoch(), first.counter() + index));
                }
                history.acknowledges(token, color, first, count);
                history.acknowledged += 1;
                self.open.remove(&token.seq);
            }
        }
        Ok(())
    }

    fn refused(
        &mut self,
        token: Token,
        why: AppendRefusal,
        broken_stores: bool,
        history: &History,
    ) -> Result<(), Violation> {
        if !self.is_at(token) {
            return Ok(());
        }
        let wrong = || Err(i12_bounds::wrong_refusal(format!("{token} is refused: {why:?}; low is {}", self.low())));
        match why {
            AppendRefusal::Full => self.met_full = true,
            AppendRefusal::Busy => {}
            AppendRefusal::StorageFailed if broken_stores => {}
            AppendRefusal::TooOld if token.seq < self.low() => {}
            AppendRefusal::WindowFull if token.seq >= self.next_seq => {}
            AppendRefusal::Conflict => match self.open.get(&token.seq) {
                Some(open) if open.lie => _ = self.open.remove(&token.seq),
                Some(_) => return wrong(),
                None => {}
            },
            AppendRefusal::SessionExpired => {
                // One that is not in the view any more may not know of it.
                if !history.shards[self.shard].sessions.get(&token.session).is_some_and(|session| session.closed) {
                    return Ok(());
                }
                // Whether what is open was appended it will never know.
                self.session = Session::None;
                self.open.clear();
            }
            _ => return wrong(),
        }
        Ok(())
    }
}

fn draw_append(token: Token, color: Color, world: &mut Outside<'_>) -> Option<Arc<Append>> {
    let count = world.chooser.pick(&[1, 1, 1, 1, 2, 3, 5]);
    let mut records = Vec::new();
    for _ in 0..count {
        let len = match world.chooser.below(8) {
            0 => 0,
            1 => world.payload,
            _ => world.chooser.below(64),
        };
        let mut payload = Vec::with_capacity(len as usize + 8);
        while (payload.len() as u64) < len {
            payload.extend_from_slice(&world.chooser.draw().to_le_bytes());
        }
        payload.truncate(len as usize);
        let tags = if world.chooser.one_in(6) {
            (0..world.chooser.between(1, 3))
                .filter_map(|tag| Tag::new(vec![b'a' + tag as u8; 1 + tag as usize]).ok())
                .collect()
        } else {
            Vec::new()
        };
        records.push(Record::with_tags(Bytes::from(payload), tags).ok()?);
    }
    Append::new(token, color, None, records).ok().map(Arc::new)
}
