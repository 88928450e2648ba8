//! The cores of one process, on one thread: members with their stores, a position of the tree with the leaves of its
//! shards, or both.
//!
//! Cores of one process speak to each other through one queue that is emptied before anything waits: in the embedded
//! cluster a record that a client sent is staged on all members, numbered, and in every member's log when [`Engine::run`]
//! returns, where the device is memory; where it is a file, as far as the fences that are done allow. Nothing is sent
//! from one thread to another on that way. What is for a core of another process collects ([`Engine::remote_messages`]).
//!
//! What takes its time is handed out to be done elsewhere: reads of SSD files ([`Engine::take_reads`]) and what stores do
//! in the background ([`Engine::take_work`]). While a store is about to have room again, appends wait here.
//!
//! It relies on being told when a fence of a store may be done ([`Engine::fenced`]), when what it handed out has ended, and
//! when a deadline has come ([`Engine::next_deadline`]). It promises that writes reach each store in the order in which its member made them, that
//! a member hears of durable writes only after the fence that covers them, and one fence for all that is queued.

use std::collections::{BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;

use flexlog_protocol::api::{Answer, AppendRequest, Appended, Failure, PositionStatus, Request, ShardStatus};
use flexlog_protocol::media::Background;
use flexlog_protocol::peer::{NodeMessage, Of, PeerMessage, ToLeaf, ToMember};
use flexlog_protocol::{Append, Color, Incarnation, Position, ReplicaId, SeqNum, ShardId, Time, View, limits};
use flexlog_replica::ConnId;
use flexlog_sequencer::{Leaf, StopReason, ViewOutcome, tree};
use rustc_hash::FxHashMap;

use crate::links::Peer;
use crate::trace::{Mark, Trace};

mod members;
mod scrub;
mod station;

use members::Wanted;
pub use members::{Member, ReadDone, SlowRead, StoreAt};
use station::Station;
pub(crate) use station::{Claimed, Led, Place};

/// The most bytes of appends that wait for room in a store; more are passed on, and may be refused.
const MAX_HELD_BYTES: usize = 64 << 20;
/// Bytes of appends that are passed on before it is looked again whether the stores have room: less than a segment.
const MAX_PASSED_BYTES: usize = limits::MAX_TOKEN_BYTES;

/// The connection of the node's own requests: those that keep to the colors' retentions. No client has it.
pub(crate) const OWN: ConnId = ConnId(u64::MAX);

/// A color whose bytes are counted.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// Bytes of payload staged.
    bytes: u64,
    /// Once there are so many, [`Engine::take_marked`] says so, once.
    mark: u64,
}

/// One message inside the process.
enum Message {
    Member(usize, flexlog_replica::Input),
    Leaf(ShardId, flexlog_sequencer::Input),
    Tree(tree::Input),
}

/// What the engine needs from outside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The position serves, and all of its shards.
    Serving,
    /// The position is to be claimed again, and `Engine::lead` called with that: its epoch is used up, or somebody that
    /// it leads lost what was said.
    ClaimAgain,
    /// A shard's view is to be changed in metadata, if this incarnation still holds the position; what became of it goes to
    /// `Engine::view_decided`.
    ChangeView {
        /// Who wants it.
        by: Incarnation,
        /// The shard.
        shard: ShardId,
        /// The view that metadata has.
        from: View,
        /// The one that it shall have.
        to: View,
    },
    /// Another process holds the position.
    Deposed,
}

/// The cores of one process.
pub struct Engine {
    members: Vec<Member>,
    station: Option<Station>,
    queue: VecDeque<Message>,
    /// What is for other processes, in order for each.
    remote: Vec<(Peer, Vec<NodeMessage>)>,
    answers: FxHashMap<ConnId, Vec<Answer>>,
    reads: Vec<SlowRead>,
    work: Vec<(StoreAt, Background)>,
    /// Appends that wait for room, oldest first, and their bytes.
    held: VecDeque<(ConnId, Arc<AppendRequest>)>,
    held_bytes: usize,
    /// Bytes of appends that were passed on and may not be in the stores yet.
    passed_bytes: usize,
    events: Vec<Event>,
    stopped: Option<String>,
    serving: bool,
    /// How long what goes up the tree waits for more, in microseconds; and until when what is there does.
    linger_micros: u64,
    flush_due: Option<Time>,
    /// Replicas that there is a connection to.
    reached: BTreeSet<ReplicaId>,
    appends: u64,
    counted: FxHashMap<Color, Counted>,
    marked: Vec<Color>,
    trace: Option<Box<Trace>>,
    /// When [`Engine::run`] was called last.
    now: Time,
    member_out: Vec<flexlog_replica::Output>,
    leaf_out: Vec<flexlog_sequencer::Output>,
    tree_out: Vec<tree::Output>,
}

impl Engine {
    /// Members, in the order of their shard's view, which follow no leaf yet; and a place of the tree that nobody holds
    /// yet.
    #[must_use]
    pub(crate) fn new(members: Vec<Member>, place: Option<Place>) -> Self {
        Self {
            members,
            station: place.map(Station::new),
            queue: VecDeque::new(),
            remote: Vec::new(),
            answers: FxHashMap::default(),
            reads: Vec::new(),
            work: Vec::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            passed_bytes: 0,
            events: Vec::new(),
            stopped: None,
            serving: false,
            linger_micros: 0,
            flush_due: None,
            reached: BTreeSet::new(),
            appends: 0,
            counted: FxHashMap::default(),
            marked: Vec::new(),
            trace: None,
            now: Time::default(),
            member_out: Vec::new(),
            leaf_out: Vec::new(),
            tree_out: Vec::new(),
        }
    }

    /// Notes from now on when appends pass.
    pub(crate) fn trace(&mut self, trace: Option<Box<Trace>>) {
        self.trace = trace;
    }

    /// Writes down when appends passed, if that was to be noted.
    pub(crate) fn write_trace(&mut self) {
        if let Some(trace) = self.trace.take() {
            trace.write();
        }
    }

    fn pass(&mut self, mark: Mark) {
        if let Some(trace) = &mut self.trace {
            trace.mark(mark);
        }
    }

    /// Holds the position as `incarnation`, in place of the one before, with what metadata had once that was claimed. [`Engine::run`] comes next.
    pub(crate) fn lead(&mut self, now: Time, incarnation: Incarnation, claimed: Claimed) {
        let Some(station) = &mut self.station else { return };
        // What the cores before were about to be told is not for these.
        self.queue.retain(|message| matches!(message, Message::Member(..)));
        self.serving = false;
        self.stopped = None;
        station.lead(incarnation, claimed, &mut self.tree_out);
        self.route_tree();
        self.each_leaf(|leaf, out| leaf.start(now, out));
        let within: Vec<ReplicaId> = self.reached.iter().copied().collect();
        within.into_iter().for_each(|replica| self.present(replica));
    }

    /// There is a connection to a replica: one that is no member of its shard can be taken in.
    pub(crate) fn reached(&mut self, peer: Peer) {
        if let Peer::Replica(replica) = peer {
            self.reached.insert(replica);
            self.present(replica);
        }
    }

    /// There is no connection to it.
    pub(crate) fn unreached(&mut self, peer: Peer) {
        if let Peer::Replica(replica) = peer {
            self.reached.remove(&replica);
        }
    }

    fn present(&mut self, replica: ReplicaId) {
        if let Some(shard) = self.station.as_ref().and_then(|station| station.shard_of(replica)) {
            self.queue.push_back(Message::Leaf(shard, flexlog_sequencer::Input::Present(replica)));
        }
    }

    /// A shard that the position leads has these replicas from now on, members and others.
    pub(crate) fn set_replicas(&mut self, shard: ShardId, replicas: Vec<ReplicaId>) {
        if let Some(station) = &mut self.station {
            station.set_replicas(shard, replicas.clone());
        }
        self.queue.push_back(Message::Leaf(shard, flexlog_sequencer::Input::Replicas(replicas.clone())));
        for replica in replicas {
            if self.reached.contains(&replica) {
                self.present(replica);
            }
        }
    }

    /// What became of an [`Event::ChangeView`]. [`Engine::run`] comes next.
    pub(crate) fn view_decided(&mut self, by: Incarnation, shard: ShardId, outcome: ViewOutcome) {
        if self.station.as_ref().and_then(Station::incarnation) == Some(by) {
            self.queue.push_back(Message::Leaf(shard, flexlog_sequencer::Input::View(outcome)));
            // A member that was dropped may be within reach all along: no link says so again.
            let within: Vec<ReplicaId> = self.reached.iter().copied().collect();
            within.into_iter().for_each(|replica| self.present(replica));
        }
    }

    /// Does not hold the position any more: somebody else has claimed it. Members are left alone, and so is what is under
    /// way to other processes: they refuse what this incarnation says from now on. [`Engine::run`] comes next.
    pub fn depose(&mut self) {
        let Some(station) = &mut self.station else { return };
        station.depose();
        self.queue.retain(|message| matches!(message, Message::Member(..)));
        self.serving = false;
        self.stopped = None;
        self.flush_due = None;
    }

    /// Has every leaf do something, and passes on what it says.
    fn each_leaf(&mut self, what: impl Fn(&mut Leaf, &mut Vec<flexlog_sequencer::Output>)) {
        let mut at = 0;
        while let Some((shard, leaf)) = self.station.as_mut().and_then(|station| station.leaf_at(at)) {
            what(leaf, &mut self.leaf_out);
            self.route_leaf(shard);
            at += 1;
        }
    }

    /// A core of another process says something. [`Engine::run`] comes next.
    pub fn remote(&mut self, message: NodeMessage) {
        match message {
            NodeMessage::ToMember { to, message, .. } => {
                if has_entries(&message) {
                    self.pass(Mark::Told);
                }
                if let Some(at) = self.members.iter().position(|member| member.id == to) {
                    self.queue.push_back(Message::Member(at, flexlog_replica::Input::Leaf(message)));
                }
            }
            NodeMessage::ToLeaf { shard, from, message } => {
                if matches!(message.message, ToLeaf::Persisted(_)) {
                    self.pass(Mark::Heard);
                }
                self.queue.push_back(Message::Leaf(shard, flexlog_sequencer::Input::Member { from, message }));
            }
            NodeMessage::Peer { from, to, message, .. } => self.send_to_peer(from, to, message),
            NodeMessage::Up { to, message } if self.holds(to) => {
                let from = message.from.position;
                self.queue.push_back(Message::Tree(tree::Input::Child { from, message }));
            }
            NodeMessage::Down { to, message } if self.holds(to) => {
                self.queue.push_back(Message::Tree(tree::Input::Parent(message)));
            }
            // It was sent to an address that another position had before.
            NodeMessage::Up { .. } | NodeMessage::Down { .. } => {}
        }
    }

    fn holds(&self, position: Position) -> bool {
        self.station.as_ref().is_some_and(|station| station.position() == position)
    }

    /// The process of a peer is another one than before, or lost what was said to it: what it is to know must be said
    /// anew.
    pub fn replaced(&mut self, peer: Peer) {
        let led = |station: &Station, replica| station.shard_of(replica);
        match (peer, &self.station) {
            (Peer::Replica(replica), Some(station)) if led(station, replica).is_some() => {
                if let Some(shard) = led(station, replica) {
                    self.queue.push_back(Message::Leaf(shard, flexlog_sequencer::Input::Lost(replica)));
                    // It is still there, and may be taken in anew.
                    if self.reached.contains(&replica) {
                        self.queue.push_back(Message::Leaf(shard, flexlog_sequencer::Input::Present(replica)));
                    }
                }
            }
            (Peer::Position(position), Some(station)) if station.parent() == Some(position) => {
                self.queue.push_back(Message::Tree(tree::Input::ParentReplaced));
            }
            (Peer::Position(position), Some(_)) => {
                self.queue.push_back(Message::Tree(tree::Input::ChildReplaced(position)));
            }
            (Peer::Position(position), None) => {
                for at in 0..self.members.len() {
                    let input = flexlog_replica::Input::LeafReplaced(position);
                    self.queue.push_back(Message::Member(at, input));
                }
            }
            (Peer::Replica(replica), _) => {
                for at in 0..self.members.len() {
                    let input = flexlog_replica::Input::PeerReplaced(replica);
                    self.queue.push_back(Message::Member(at, input));
                }
            }
        }
    }

    /// What is to be said to cores of other processes, in order for each. The caller clears the lists.
    pub fn remote_messages(&mut self) -> impl Iterator<Item = (Peer, &mut Vec<NodeMessage>)> {
        self.remote.iter_mut().filter(|(_, messages)| !messages.is_empty()).map(|(peer, messages)| (*peer, messages))
    }

    /// Whether clients can append to and read from this process.
    #[must_use]
    pub fn has_members(&self) -> bool {
        !self.members.is_empty()
    }

    /// The member that answers a connection's reads.
    fn reader_of(&self, conn: ConnId) -> usize {
        // A connection stays with one member, so that what it has read there it can read again there.
        (conn.0 % self.members.len().max(1) as u64) as usize
    }

    /// Takes a client's request. [`Engine::run`] comes next.
    pub fn request(&mut self, from: ConnId, request: Request) {
        match request {
            // Records are at replicas; a position that leads some has none.
            request if self.members.is_empty() => {
                if let Some(id) = request.awaited() {
                    let why = Failure::NotReady("this process has no replica: ask one of the color's".into());
                    self.answer(from, Answer::Failed { id, why });
                }
            }
            Request::Append(request) => {
                self.pass(Mark::Received);
                self.append(from, &request);
            }
            Request::OpenSession { id, .. } | Request::Trim { id, .. } if self.failed().is_some() => {
                // Entries commit on all members or not at all: whoever waited for this one would never hear why not.
                let why = Failure::StorageFailed(self.failed().unwrap_or_default());
                self.answer(from, Answer::Failed { id, why });
            }
            request => {
                let member = self.reader_of(from);
                let input = flexlog_replica::Input::Request { from, request };
                self.queue.push_back(Message::Member(member, input));
            }
        }
    }

    fn append(&mut self, from: ConnId, request: &Arc<AppendRequest>) {
        // Those that wait go first, so that a session's appends arrive in their order.
        if self.pressed() || !self.held.is_empty() || self.passed_bytes >= MAX_PASSED_BYTES {
            self.held_bytes += bytes_of(request);
            self.held.push_back((from, Arc::clone(request)));
            if self.held_bytes > MAX_HELD_BYTES {
                self.release();
            }
        } else {
            self.pass_on(from, request);
        }
    }

    /// Some store has no room and is about to have some.
    fn pressed(&self) -> bool {
        self.members.iter().any(|member| member.failed.is_none() && !member.cramped && member.store.pressed())
    }

    /// Passes on appends that wait, as many as may be before the stores are looked at again.
    fn release(&mut self) {
        let before = self.passed_bytes;
        while let Some((from, request)) = self.held.pop_front() {
            self.held_bytes -= bytes_of(&request);
            self.pass_on(from, &request);
            if self.passed_bytes - before >= MAX_PASSED_BYTES {
                break;
            }
        }
    }

    fn pass_on(&mut self, from: ConnId, request: &Arc<AppendRequest>) {
        self.passed_bytes += bytes_of(request);
        for (at, member) in self.members.iter().enumerate() {
            if request.members.contains(&member.id) {
                let input = flexlog_replica::Input::Append { from, request: Arc::clone(request) };
                self.queue.push_back(Message::Member(at, input));
            }
        }
    }

    /// A client is gone. What it appended goes on.
    pub fn disconnected(&mut self, conn: ConnId) {
        for at in 0..self.members.len() {
            self.queue.push_back(Message::Member(at, flexlog_replica::Input::Disconnected(conn)));
        }
    }

    /// Some store's fence may be done.
    pub fn fenced(&mut self) {
        for at in 0..self.members.len() {
            self.look_at_fence(at);
        }
    }

    /// The deadline has come.
    pub fn tick(&mut self) {
        for at in 0..self.members.len() {
            self.queue.push_back(Message::Member(at, flexlog_replica::Input::Tick));
        }
        let shards: Vec<ShardId> = self.station.iter().flat_map(Station::shards).collect();
        self.queue.extend(shards.into_iter().map(|shard| Message::Leaf(shard, flexlog_sequencer::Input::Tick)));
    }

    /// When to call [`Engine::tick`], if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let members = self.members.iter().filter_map(|member| member.replica.next_deadline());
        let stores = self.members.iter().filter(|member| !member.working && member.failed.is_none());
        let stores = stores.filter_map(|member| member.store.background_at());
        let leaves = self.station.as_ref().and_then(Station::next_deadline);
        let scrubs = self.members.iter().filter_map(Member::scrub_at);
        members.chain(stores).chain(scrubs).chain(leaves).chain(self.flush_due).min()
    }

    /// Works until there are answers to send, or nothing is left to do but to wait for fences, deadlines and clients.
    ///
    /// Returns whether there is more to do at once: whoever has waited for an answer need not wait for that too.
    pub fn run(&mut self, now: Time) -> bool {
        self.now = now;
        loop {
            while let Some(message) = self.queue.pop_front() {
                self.dispatch(now, message);
            }
            self.passed_bytes = 0;
            if !self.answers.is_empty() {
                return true;
            }
            self.each_leaf(Leaf::flush);
            if self.may_flush_tree(now)
                && let Some(sequencer) = self.station.as_mut().and_then(Station::sequencer)
            {
                self.flush_due = None;
                sequencer.flush(&mut self.tree_out);
                self.route_tree();
            }
            if self.queue.is_empty() {
                self.start_fences();
            }
            // In this order: what stores learn by the first may make them want the second.
            if self.queue.is_empty() {
                self.want_work(now);
            }
            if self.queue.is_empty() {
                self.want_checkpoints();
            }
            if self.queue.is_empty() && !self.held.is_empty() && !self.pressed() {
                self.release();
            }
            if self.queue.is_empty() {
                self.scrub(now);
            }
            if self.queue.is_empty() {
                return false;
            }
        }
    }

    /// Whether what goes up the tree has waited for as long as it is to.
    fn may_flush_tree(&self, now: Time) -> bool {
        self.linger_micros == 0 || self.flush_due.is_some_and(|due| due <= now)
    }

    /// Has what goes up the tree wait so long for more of its kind.
    pub(crate) fn with_linger(self, micros: u64) -> Self {
        Self { linger_micros: micros, ..self }
    }

    /// What to say to clients, by connection.
    pub fn take_answers(&mut self) -> impl Iterator<Item = (ConnId, Vec<Answer>)> + use<'_> {
        self.answers.drain()
    }

    /// Reads to be done elsewhere; what they came to goes to [`Engine::read_done`].
    pub fn take_reads(&mut self) -> Vec<SlowRead> {
        mem::take(&mut self.reads)
    }

    /// Work to be done elsewhere, one after the other; each is followed by [`Engine::work_done`].
    pub fn take_work(&mut self) -> Vec<(StoreAt, Background)> {
        mem::take(&mut self.work)
    }

    /// What happened that the engine cannot handle itself.
    pub fn take_events(&mut self) -> Vec<Event> {
        mem::take(&mut self.events)
    }

    fn dispatch(&mut self, now: Time, message: Message) {
        match message {
            Message::Member(at, input) => {
                let checkpoint = matches!(input, flexlog_replica::Input::CheckpointWanted);
                self.members[at].replica.handle(now, input, &mut self.member_out);
                self.route_member(at);
                if checkpoint {
                    // Whether it wrote one or had nothing to write: it may be asked again.
                    self.members[at].checkpointing = false;
                }
            }
            Message::Leaf(shard, input) => {
                if let Some(leaf) = self.station.as_mut().and_then(|station| station.leaf(shard)) {
                    leaf.handle(now, input, &mut self.leaf_out);
                    self.route_leaf(shard);
                }
            }
            Message::Tree(input) => {
                if let Some(sequencer) = self.station.as_mut().and_then(Station::sequencer) {
                    sequencer.handle(input, &mut self.tree_out);
                    if self.linger_micros > 0 {
                        self.flush_due.get_or_insert(now.after(self.linger_micros));
                    }
                    self.route_tree();
                }
            }
        }
    }

    fn route_tree(&mut self) {
        use tree::Output;
        let Some(station) = &self.station else { return };
        for output in self.tree_out.drain(..) {
            match output {
                Output::Child { to, message } => {
                    tell(&mut self.remote, Peer::Position(to), NodeMessage::Down { to, message });
                }
                Output::Shard { to, message } => {
                    self.queue.push_back(Message::Leaf(to, flexlog_sequencer::Input::Parent(message)));
                }
                Output::Parent(message) => {
                    if let Some(to) = station.parent() {
                        tell(&mut self.remote, Peer::Position(to), NodeMessage::Up { to, message });
                    }
                }
                Output::Serving => {}
                Output::EpochFull => self.events.push(Event::ClaimAgain),
            }
        }
        self.look_whether_serving();
    }

    fn route_leaf(&mut self, shard: ShardId) {
        use flexlog_sequencer::Output;
        let mut outputs = mem::take(&mut self.leaf_out);
        for output in outputs.drain(..) {
            match output {
                Output::Member { to, message } => self.send_to_member(shard, to, message),
                Output::Parent(message) => {
                    self.queue.push_back(Message::Tree(tree::Input::Shard { from: shard, message }));
                }
                Output::Serving => {}
                Output::ChangeView { from, to } => {
                    if let Some(by) = self.station.as_ref().and_then(Station::incarnation) {
                        self.events.push(Event::ChangeView { by, shard, from, to });
                    }
                }
                Output::Stopped(StopReason::Deposed) => self.events.push(Event::Deposed),
                Output::Stopped(reason) => self.stopped = Some(format!("shard {shard}: {reason}")),
            }
        }
        self.leaf_out = outputs;
        self.look_whether_serving();
    }

    fn look_whether_serving(&mut self) {
        if !self.serving && self.station.as_ref().is_some_and(Station::serves) {
            self.serving = true;
            self.events.push(Event::Serving);
        }
    }

    fn send_to_member(&mut self, shard: ShardId, to: ReplicaId, message: Of<ToMember>) {
        if has_entries(&message) {
            self.pass(Mark::Assigned);
        }
        match self.members.iter().position(|member| member.id == to) {
            Some(at) => self.queue.push_back(Message::Member(at, flexlog_replica::Input::Leaf(message))),
            None => tell(&mut self.remote, Peer::Replica(to), NodeMessage::ToMember { shard, to, message }),
        }
    }

    fn send_to_leaf(&mut self, shard: ShardId, from: ReplicaId, message: Of<ToLeaf>) {
        match message.message {
            ToLeaf::Persisted(_) => self.pass(Mark::Staged),
            ToLeaf::Acked(_) => self.pass(Mark::Acked),
            _ => {}
        }
        let position = message.leaf.position;
        if self.holds(position) {
            self.queue.push_back(Message::Leaf(shard, flexlog_sequencer::Input::Member { from, message }));
        } else {
            tell(&mut self.remote, Peer::Position(position), NodeMessage::ToLeaf { shard, from, message });
        }
    }

    fn route_member(&mut self, at: usize) {
        use flexlog_replica::Output;
        let from = self.members[at].id;
        let mut outputs = mem::take(&mut self.member_out);
        for output in outputs.drain(..) {
            match output {
                Output::Persist(what) => self.write(at, what),
                Output::Fetch { fetch, color, from, upto, max_records, max_bytes } => {
                    self.fetch(at, Wanted { fetch: Some(fetch), color, from, upto, max_records, max_bytes });
                }
                Output::FetchPrev { fetch, color, upto } => self.fetch_prev(at, fetch, color, upto),
                Output::FetchStaged { token, to } => {
                    let message = match self.members[at].store.read_staged(token) {
                        Ok(Some(append)) => PeerMessage::Pulled(Arc::new(append)),
                        Ok(None) => PeerMessage::NotHere { token },
                        Err(error) => {
                            tracing::error!(%error, %token, "a staged record cannot be read");
                            PeerMessage::NotHere { token }
                        }
                    };
                    self.send_to_peer(from, to, message);
                }
                Output::Trim { color, upto } => {
                    self.members[at].store.trim(color, upto);
                    self.members[at].cramped = false;
                }
                Output::DropStaged(tokens) => {
                    self.members[at].store.drop_staged(&tokens);
                    self.members[at].cramped = false;
                }
                Output::ToLeaf(message) => {
                    let shard = self.members[at].replica.shard();
                    self.send_to_leaf(shard, from, message);
                }
                Output::ToPeer { to, message } => self.send_to_peer(from, to, message),
                Output::Answer { to, answer } => self.answer(to, answer),
                Output::Damaged(damage) => {
                    self.members[at].damaged += 1;
                    tracing::warn!(replica = %from, why = damage.why, "asks another replica for a damaged record");
                }
                Output::Lost(damage) => {
                    self.members[at].lost += 1;
                    tracing::error!(replica = %from, why = damage.why, "no replica has this record whole");
                }
                Output::Stopped(why) => {
                    tracing::error!(replica = %from, why, "a replica stopped");
                    self.members[at].failed.get_or_insert(why);
                }
            }
        }
        self.member_out = outputs;
    }

    fn send_to_peer(&mut self, from: ReplicaId, to: ReplicaId, message: PeerMessage) {
        match self.members.iter().position(|member| member.id == to) {
            Some(at) => {
                let input = flexlog_replica::Input::Peer { from, message };
                self.queue.push_back(Message::Member(at, input));
            }
            None => {
                // Only members speak to members, and those of a process are all of one shard.
                let Some(shard) = self.members.first().map(|member| member.replica.shard()) else { return };
                tell(&mut self.remote, Peer::Replica(to), NodeMessage::Peer { shard, from, to, message });
            }
        }
    }

    /// Puts an answer to those that wait for the same connection. Members that say the same of the same appends say it
    /// in one message.
    fn answer(&mut self, to: ConnId, answer: Answer) {
        if matches!(answer, Answer::Appended(_)) {
            self.pass(Mark::Answered);
        }
        let waiting = self.answers.entry(to).or_default();
        if let Answer::Appended(new) = &answer {
            let same = |old: &Appended| {
                old.settled == new.settled && old.view.number == new.view.number && old.runs == new.runs
            };
            let old = waiting.iter_mut().rev().take(2).find_map(|old| match old {
                Answer::Appended(old) if same(old) => Some(old),
                _ => None,
            });
            if let Some(old) = old {
                old.members.extend_from_slice(&new.members);
                return;
            }
            if new.members.first() == self.members.first().map(|member| &member.id) {
                self.appends += new.runs.iter().map(|run| u64::from(run.tokens)).sum::<u64>();
            }
        }
        waiting.push(answer);
    }

    fn count(&mut self, append: &Append) {
        if let Some(counted) = self.counted.get_mut(&append.color()) {
            counted.bytes += append.records().iter().map(|record| record.payload().len() as u64).sum::<u64>();
            if counted.bytes >= counted.mark {
                counted.mark = u64::MAX;
                self.marked.push(append.color());
            }
        }
    }

    /// Counts the bytes of a color from now on, from `bytes` on; those of other colors cost nothing.
    pub fn start_counting(&mut self, color: Color, bytes: u64) {
        self.counted.entry(color).or_insert(Counted { bytes, mark: u64::MAX });
    }

    /// The bytes of a color are of no interest any more.
    pub fn stop_counting(&mut self, color: Color) {
        self.counted.remove(&color);
    }

    /// Bytes of payload of a color that is counted, those included that are staged and have no number yet.
    #[must_use]
    pub fn bytes(&self, color: Color) -> Option<u64> {
        self.counted.get(&color).map(|counted| counted.bytes)
    }

    /// Asks to be told, by [`Engine::take_marked`], once a color that is counted has `bytes`.
    pub fn mark(&mut self, color: Color, bytes: u64) {
        if let Some(counted) = self.counted.get_mut(&color) {
            counted.mark = bytes;
        }
    }

    /// Colors that have reached their marks since this was called last.
    pub fn take_marked(&mut self) -> Vec<Color> {
        mem::take(&mut self.marked)
    }

    /// Whether some colors have reached their marks.
    #[must_use]
    pub fn has_marked(&self) -> bool {
        !self.marked.is_empty()
    }

    /// Everything below this number of a color is settled at the member that answers the node's own requests.
    #[must_use]
    pub fn stable(&self, color: Color) -> SeqNum {
        self.members.get(self.reader_of(OWN)).map_or(SeqNum::MIN, |member| member.replica.stable(color))
    }

    /// Why the shard does not serve and never will, if that is so.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.stopped.clone().or_else(|| self.failed())
    }

    /// Which member's store failed and why, if one did.
    fn failed(&self) -> Option<String> {
        let failed = |member: &Member| Some(format!("replica {}: {}", member.id, member.failed.as_ref()?));
        self.members.iter().find_map(failed)
    }

    /// How many appends were numbered since the start.
    #[must_use]
    pub fn appends(&self) -> u64 {
        self.appends
    }

    /// How the position is that this process holds or is about to, for people; without its name.
    #[must_use]
    pub fn position(&self) -> Option<PositionStatus> {
        self.station.as_ref().map(Station::status)
    }

    /// The shards that this process has members or the leaf of, for people.
    #[must_use]
    pub fn shards(&self) -> Vec<ShardStatus> {
        let led = self.station.iter().flat_map(Station::shards);
        let held = self.members.iter().map(|member| member.replica.shard());
        let mut shards: Vec<ShardId> = led.chain(held).collect();
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().map(|shard| self.shard(shard)).collect()
    }

    fn shard(&self, shard: ShardId) -> ShardStatus {
        let station = self.station.as_ref();
        let leaf = station.and_then(|station| station.leaf_status(shard));
        let members = || self.members.iter().filter(|member| member.replica.shard() == shard);
        let followed = members().next().map(|member| (member.replica.is_led(), member.replica.summary()));
        let state = match (&self.stopped, &leaf, &followed) {
            (Some(why), Some(_), _) => format!("stopped: {why}"),
            (None, Some(leaf), _) => leaf.phase.to_owned(),
            (_, None, Some((true, _))) => "following".to_owned(),
            (_, None, _) => "without a leaf".to_owned(),
        };
        let summary = followed.map(|(_, summary)| summary).unwrap_or_default();
        let view = station.and_then(|station| station.view(shard)).map_or(summary.view, |view| view.number);
        ShardStatus {
            shard,
            epoch: leaf.as_ref().map_or(summary.epoch, |leaf| leaf.epoch),
            view: view.0,
            state,
            last: leaf.as_ref().map_or(summary.last, |leaf| leaf.last),
            commit: leaf.as_ref().map_or(summary.commit, |leaf| leaf.commit),
            sessions: leaf.as_ref().map_or(summary.sessions, |leaf| leaf.sessions as u64),
            replicas: members().map(|member| member.status(self.now)).collect(),
        }
    }
}

/// Puts a message to those that are for the same process.
fn tell(remote: &mut Vec<(Peer, Vec<NodeMessage>)>, to: Peer, message: NodeMessage) {
    match remote.iter_mut().find(|(peer, _)| *peer == to) {
        Some((_, messages)) => messages.push(message),
        None => remote.push((to, vec![message])),
    }
}

fn has_entries(message: &Of<ToMember>) -> bool {
    matches!(&message.message, ToMember::Entries { entries, .. } if !entries.is_empty())
}

fn bytes_of(request: &AppendRequest) -> usize {
    request.appends.iter().map(|append| append.encoded_len()).sum()
}
