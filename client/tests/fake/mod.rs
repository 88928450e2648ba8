//! A node that keeps a log in memory and does as it is told: answers late, goes away, refuses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;
use uuid::Uuid;

use flexlog_protocol::api::{
    Answer, AppendRefusal, AppendRequest, Appended, ColorInfo, Failure, Hello, Request, RequestId, Retention,
    ShardInfo, Status, delivered_cost,
};
use flexlog_protocol::entry::push_assign;
use flexlog_protocol::limits::TOKEN_WINDOW;
use flexlog_protocol::net::{ClientConnection, Connect, ConnectError, NodeConnection, in_process, tcp};
use flexlog_protocol::{
    Assign, ClusterId, Color, Epoch, Lsn, Record, ReplicaId, SeqNum, SessionId, ShardId, Token, View, ViewNumber,
};

pub fn cluster() -> ClusterId {
    ClusterId(Uuid::from_u128(5))
}

fn view() -> View {
    View { number: ViewNumber(1), members: vec![ReplicaId(1), ReplicaId(2), ReplicaId(3)] }
}

#[derive(Default)]
pub struct Log {
    pub name: String,
    owner: String,
    /// On more than one shard, each is at the node of the same number.
    width: usize,
    pub records: Vec<(SeqNum, Record)>,
    /// Of each record.
    pub shards: Vec<u32>,
    pub trimmed: Option<SeqNum>,
    pub next: u32,
}

impl Log {
    /// The records that a node has.
    fn at(&self, node: usize) -> impl DoubleEndedIterator<Item = &(SeqNum, Record)> {
        let all = self.records.iter().zip(&self.shards);
        all.filter(move |(_, shard)| self.width < 2 || **shard as usize == node).map(|(record, _)| record)
    }
}

/// What the node is told to do, and what it saw.
#[derive(Default)]
pub struct State {
    pub logs: BTreeMap<u64, Log>,
    sessions: HashMap<Uuid, SessionId>,
    tokens: HashMap<Token, SeqNum>,
    /// Appends are taken, and answered when this is over.
    pub hold: bool,
    /// Close the connection after so many more appends were taken, without an answer.
    pub close_after: Option<usize>,
    /// The reason given on closing; without one the connection just breaks.
    pub reason: Option<String>,
    /// Connections that are there are not served any more, and stay open.
    pub mute: usize,
    /// New connections are closed at once.
    pub away: bool,
    /// Where the members are, in their order; all at the node that is asked unless it is said here.
    pub addresses: Vec<String>,
    /// Nodes, by their listeners, that are away; the others are there.
    pub down: BTreeSet<usize>,
    /// Nodes that are not ready for reads.
    pub not_ready: BTreeSet<usize>,
    /// Which node answered how many reads.
    pub reads: BTreeMap<usize, usize>,
    listeners: usize,
    /// All members refuse appends.
    pub refuse: Option<AppendRefusal>,
    pub connections: usize,
    pub unsubscribed: usize,
    /// Sessions that clients closed.
    pub closed: Vec<SessionId>,
    /// The most bytes that a subscription was sent beyond what its user had allowed at that time.
    pub sent_to_subscribers: u64,
    pub allowed_to_subscribers: u64,
}

#[derive(Clone)]
pub struct Node {
    pub state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

struct Sub {
    color: Color,
    next: SeqNum,
    credit: u64,
    told: SeqNum,
}

pub fn number(counter: u32) -> SeqNum {
    SeqNum::new(Epoch(1), counter)
}

impl Node {
    pub fn new() -> Self {
        Self { state: Arc::default(), changed: watch::channel(0).0 }
    }

    /// Changes what the node does, and lets it look at once.
    pub fn tell(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.send_modify(|count| *count += 1);
    }

    /// Waits until something holds.
    pub async fn until(&self, holds: impl Fn(&State) -> bool) {
        let mut changed = self.changed.subscribe();
        tokio::time::timeout(Duration::from_secs(20), async {
            while !holds(&self.state.lock()) {
                changed.changed().await.unwrap();
            }
        })
        .await
        .expect("what the test waits for does not happen");
    }

    pub fn payloads(&self) -> Vec<String> {
        let state = self.state.lock();
        let all = state.logs.values().flat_map(|log| &log.records);
        all.map(|(_, record)| String::from_utf8(record.payload().to_vec()).unwrap()).collect()
    }

    /// By TCP; returns the address.
    pub async fn serve_tcp(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let node = self.clone();
        let which = self.state.lock().listeners;
        self.state.lock().listeners += 1;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let node = node.clone();
                tokio::spawn(async move {
                    let patience = Duration::from_secs(5);
                    let away = node.state.lock().away || node.state.lock().down.contains(&which);
                    if !away && let Ok(connection) = tcp::accept_client(stream, &Hello::node(cluster()), patience).await
                    {
                        node.serve(which, connection).await;
                    }
                });
            }
        });
        address
    }

    pub fn serve_in_process(&self) -> InProcess {
        let (connector, mut listener) = in_process::listen("the fake node", Hello::node(cluster()));
        let node = self.clone();
        tokio::spawn(async move {
            while let Some(connection) = listener.accept().await {
                let node = node.clone();
                tokio::spawn(async move {
                    if !node.state.lock().away {
                        node.serve(0, connection).await;
                    }
                });
            }
        });
        InProcess { connector }
    }

    async fn serve(&self, which: usize, connection: NodeConnection) {
        let NodeConnection { mut sender, mut receiver, .. } = connection;
        self.tell(|state| state.connections += 1);
        let mine = self.state.lock().connections;
        let mut changed = self.changed.subscribe();
        let (mut requests, mut answers) = (Vec::new(), Vec::new());
        let mut held = Vec::new();
        let mut subs: BTreeMap<RequestId, Sub> = BTreeMap::new();
        loop {
            tokio::select! {
                got = receiver.recv(&mut requests) => if !matches!(got, Ok(true)) { return },
                _ = changed.changed() => {}
            }
            if mine <= self.state.lock().mute {
                receiver.discard().await;
                return;
            }
            let mut close = false;
            let any = !requests.is_empty();
            {
                let mut state = self.state.lock();
                for request in requests.drain(..) {
                    close |= state.take(which, request, &mut answers, &mut held, &mut subs);
                }
                if !state.hold {
                    answers.append(&mut held);
                }
                for (id, sub) in &mut subs {
                    state.pump(which, *id, sub, &mut answers);
                }
                close |= state.away || state.down.contains(&which);
            }
            if any {
                self.changed.send_modify(|count| *count += 1);
            }
            if close {
                let reason = self.state.lock().reason.clone();
                if let Some(reason) = reason {
                    flexlog_protocol::net::close(&mut *sender, &mut *receiver, reason).await;
                }
                return;
            }
            if !answers.is_empty() && sender.send(&mut answers).await.is_err() {
                return;
            }
        }
    }
}

impl State {
    fn info(&self, color: u64) -> ColorInfo {
        let addresses = if self.addresses.is_empty() { vec![String::new(); 3] } else { self.addresses.clone() };
        let shards = match self.logs[&color].width {
            0 | 1 => vec![ShardInfo { shard: ShardId(0), view: view(), addresses }],
            width => {
                let at = |shard: usize| vec![self.addresses[shard].clone(); 3];
                let shard = |i| ShardInfo { shard: ShardId(i as u32), view: view(), addresses: at(i) };
                (0..width).map(shard).collect()
            }
        };
        let (name, owner) = (self.logs[&color].name.clone(), self.logs[&color].owner.clone());
        ColorInfo { color: Color(color), name, shards, owner, retention: Retention::default() }
    }

    /// Returns whether the connection is to be closed.
    fn take(
        &mut self,
        which: usize,
        request: Request,
        answers: &mut Vec<Answer>,
        held: &mut Vec<Answer>,
        subs: &mut BTreeMap<RequestId, Sub>,
    ) -> bool {
        let answer = match request {
            Request::Append(append) => return self.append(&append, held),
            Request::Lookup { id, name, create, retention: _ } => {
                let found = self.logs.iter().find(|(_, log)| log.name == name).map(|(color, _)| *color);
                match found {
                    Some(color) => Answer::Color { id, info: self.info(color) },
                    None => match create {
                        Some(placement) => {
                            let color = self.logs.len() as u64 + 1;
                            let owner = placement.owner.unwrap_or_else(|| "root".into());
                            let width = placement.width as usize;
                            self.logs.insert(color, Log { name, owner, width, ..Log::default() });
                            Answer::Color { id, info: self.info(color) }
                        }
                        None => Answer::Failed { id, why: Failure::NoSuchColor(name) },
                    },
                }
            }
            Request::Colors { id, after } => {
                let mut all: Vec<_> = self.logs.keys().map(|color| self.info(*color)).collect();
                all.sort_by(|a, b| a.name.cmp(&b.name));
                let colors = all.into_iter().filter(|info| Some(&info.name) > after.as_ref()).take(2).collect();
                Answer::Colors { id, colors }
            }
            Request::Status { id } => {
                let status = Status { cluster: cluster(), version: "fake".into(), ..Status::default() };
                Answer::Status { id, status: Box::new(status) }
            }
            Request::OpenSession { id, nonce, .. } => {
                let next = SessionId { epoch: Epoch(1), lsn: Lsn(self.sessions.len() as u64 + 1) };
                Answer::SessionOpened { id, session: *self.sessions.entry(nonce).or_insert(next) }
            }
            Request::Read { id, .. } if self.not_ready.contains(&which) => {
                Answer::Failed { id, why: Failure::NotReady("asked to".into()) }
            }
            Request::Read { id, color, number, .. } => {
                *self.reads.entry(which).or_default() += 1;
                let log = &self.logs[&color.0];
                if let Some(point) = log.trimmed.filter(|point| number <= *point) {
                    Answer::Trimmed { id, point }
                } else if let Some((_, record)) = log.at(which).find(|(n, _)| *n == number) {
                    Answer::Record { id, number, record: record.clone() }
                } else if log.width > 1 && number < super::fake::number(log.next) {
                    Answer::Elsewhere { id }
                } else if number < super::fake::number(log.next) {
                    Answer::Hole { id }
                } else {
                    Answer::NotYet { id, tail: super::fake::number(log.next) }
                }
            }
            Request::ReadNext { id, color, from, .. } => {
                let log = &self.logs[&color.0];
                match log.at(which).find(|(n, _)| *n >= from) {
                    _ if log.trimmed.is_some_and(|point| from <= point) => {
                        Answer::Trimmed { id, point: log.trimmed.unwrap() }
                    }
                    Some((number, record)) => Answer::Record { id, number: *number, record: record.clone() },
                    None => Answer::NotYet { id, tail: number(log.next) },
                }
            }
            Request::ReadPrev { id, color, upto, .. } => {
                let log = &self.logs[&color.0];
                match log.at(which).rev().find(|(n, _)| *n <= upto) {
                    Some((n, _)) if log.trimmed.is_some_and(|point| *n <= point) => {
                        Answer::Trimmed { id, point: log.trimmed.unwrap() }
                    }
                    Some((number, record)) => Answer::Record { id, number: *number, record: record.clone() },
                    None => Answer::NothingBefore { id },
                }
            }
            Request::Tail { id, color } => Answer::Tail { id, tail: number(self.logs[&color.0].next) },
            Request::Trim { id, color, upto } => {
                let log = self.logs.get_mut(&color.0).unwrap();
                let tail = number(log.next);
                if upto >= tail {
                    Answer::Failed { id, why: Failure::TrimBeyondTail { upto, tail } }
                } else {
                    log.trimmed = log.trimmed.max(Some(upto));
                    Answer::TrimDone { id, point: log.trimmed.unwrap() }
                }
            }
            Request::Subscribe { id, color, from, credit, .. } => {
                self.allowed_to_subscribers += credit;
                subs.insert(id, Sub { color, next: from, credit, told: SeqNum::MIN });
                return false;
            }
            Request::Credit { id, bytes } => {
                self.allowed_to_subscribers += bytes;
                if let Some(sub) = subs.get_mut(&id) {
                    sub.credit += bytes;
                }
                return false;
            }
            Request::CloseSession { session, .. } => {
                self.closed.push(session);
                return false;
            }
            Request::Ping { id } => Answer::Pong { id, holder: false },
            Request::Unsubscribe { id } => {
                self.unsubscribed += usize::from(subs.remove(&id).is_some());
                return false;
            }
        };
        answers.push(answer);
        false
    }

    fn append(&mut self, request: &AppendRequest, held: &mut Vec<Answer>) -> bool {
        let mut runs = Vec::new();
        for append in &request.appends {
            let token = append.token();
            assert!(token.seq >= request.low && token.seq < request.low + TOKEN_WINDOW, "{token} of {}", request.low);
            if let Some(why) = self.refuse {
                held.extend(request.members.iter().map(|member| Answer::AppendRefused { token, member: *member, why }));
                continue;
            }
            let log = self.logs.get_mut(&append.color().0).unwrap();
            let first = *self.tokens.entry(token).or_insert_with(|| {
                let first = number(log.next);
                for record in append.records() {
                    log.records.push((number(log.next), record.clone()));
                    log.shards.push(token.shard.0);
                    log.next += 1;
                }
                first
            });
            push_assign(&mut runs, Assign::one(token, append.color(), first, append.count()));
            if let Some(left) = &mut self.close_after {
                *left -= 1;
                if *left == 0 {
                    self.close_after = None;
                    return true;
                }
            }
        }
        held.push(Answer::Appended(Appended { members: request.members.clone(), view: view(), settled: false, runs }));
        false
    }

    /// Sends a subscription what it may have.
    fn pump(&mut self, which: usize, id: RequestId, sub: &mut Sub, answers: &mut Vec<Answer>) {
        let log = &self.logs[&sub.color.0];
        if let Some(point) = log.trimmed.filter(|point| sub.next <= *point) {
            answers.push(Answer::Trimmed { id, point });
            sub.next = point.plus(1).unwrap();
        }
        let mut records = Vec::new();
        let mut upto = number(log.next);
        for (n, record) in log.at(which).skip_while(|(n, _)| *n < sub.next) {
            let cost = delivered_cost(record);
            if cost > sub.credit {
                upto = *n;
                break;
            }
            sub.credit -= cost;
            self.sent_to_subscribers += cost;
            records.push((*n, record.clone()));
        }
        sub.next = sub.next.max(upto);
        if !records.is_empty() || upto > sub.told {
            sub.told = upto;
            answers.push(Answer::Delivered { id, records, upto });
        }
    }
}

/// A connector of one's own making works too.
#[derive(Clone)]
pub struct InProcess {
    connector: in_process::Connector,
}

#[async_trait]
impl Connect for InProcess {
    async fn connect(&self, hello: &Hello) -> Result<ClientConnection, ConnectError> {
        self.connector.connect(hello).await
    }

    fn address(&self) -> String {
        self.connector.address()
    }
}
