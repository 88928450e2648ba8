//! A tree of processes, the members of their shards, and the streams between all of these.

use std::collections::{BTreeMap, VecDeque};

use flexlog_protocol::limits::COMPLETION_DELAY_MICROS;
use flexlog_protocol::peer::{Between, FromParent, Of, Range, Staged, ToLeaf, ToMember, ToParent};
use flexlog_protocol::{Color, Position, ReplicaId, SeqNum, SessionId, ShardId, Time};
use flexlog_sequencer::{Input, Output, tree};

use crate::checker::Checker;
use crate::member::Member;
use crate::process::{Process, incarnation};
use crate::shape::{Seed, Shape};

mod clients;

/// Numbers of a color in one epoch; and the most records staged without a number: a request that was asked again and
/// again, for children that were replaced since, must still fit.
const EPOCH_LIMIT: u32 = 64;
const OPEN_RECORDS: u32 = 8;

/// A fault that the checks must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    Nothing,
    /// What an old parent granted counts as if the one that sealed last had.
    OldParentsGrants,
    /// What a child's predecessor was granted counts as if the child were.
    OldChildsGrants,
    /// What a leaf is granted counts as settled at once.
    EarlySettle,
    /// A leaf's part of a grant begins one number too early.
    SplitOffByOne,
    /// Grants of an owner overtake each other.
    OutOfOrder,
}

/// How much happened.
#[derive(Default, Debug)]
pub struct Reached {
    pub numbered: usize,
    pub wide: usize,
    pub holes: usize,
    pub ends: usize,
    pub tails: usize,
    pub merges: usize,
    pub lost: u64,
    pub full: usize,
    /// Positions claimed again: the root, inner ones, those at the bottom.
    pub replaced: [usize; 3],
}

impl Reached {
    pub fn add(&mut self, other: &Self) {
        self.numbered += other.numbered;
        self.wide += other.wide;
        self.holes += other.holes;
        self.ends += other.ends;
        self.tails += other.tails;
        self.merges += other.merges;
        self.lost += other.lost;
        self.full += other.full;
        self.replaced.iter_mut().zip(other.replaced).for_each(|(sum, count)| *sum += count);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum End {
    Process(usize),
    Member(usize, usize),
}

enum Message {
    Up(Between<ToParent>),
    Down(Between<FromParent>),
    ToMember(Of<ToMember>),
    ToLeaf(Of<ToLeaf>),
}

struct Shard {
    position: usize,
    members: Vec<Member>,
    settled: usize,
    session: Option<SessionId>,
    appends: Vec<Staged>,
    /// Open questions: member, color, and what the answer may not be below.
    asks: BTreeMap<u64, (usize, Color, SeqNum)>,
}

pub struct World {
    plant: Plant,
    shape: Shape,
    now: Time,
    epochs: u32,
    processes: Vec<Process>,
    /// By position.
    current: Vec<usize>,
    shards: Vec<Shard>,
    streams: BTreeMap<(End, End), VecDeque<Message>>,
    checker: Checker,
    reached: Reached,
    names: u64,
    /// Grants for incarnations that were gone, for a plant.
    old: BTreeMap<Position, Vec<Between<FromParent>>>,
}

impl World {
    pub fn new(seed: &Seed, plant: Plant) -> Self {
        let shape = Shape::new(seed);
        let shard = |at: usize| Shard {
            position: shape.shards[at].0,
            members: (0..1 + (usize::from(seed.0) / 5 + shape.shards[at].0) % 2).map(|_| Member::default()).collect(),
            settled: 0,
            session: None,
            appends: Vec::new(),
            asks: BTreeMap::new(),
        };
        let mut world = Self {
            plant,
            shards: (0..shape.shards.len()).map(shard).collect(),
            now: Time(0),
            epochs: 0,
            processes: Vec::new(),
            current: vec![usize::MAX; shape.places.len()],
            streams: BTreeMap::new(),
            checker: Checker::default(),
            reached: Reached::default(),
            names: 0,
            old: BTreeMap::new(),
            shape,
        };
        (0..world.shape.places.len()).for_each(|position| _ = world.fresh(position));
        for at in 0..world.processes.len() {
            // One process a position, in order.
            world.processes[at].links.iter_mut().for_each(|(neighbour, process)| *process = *neighbour);
            world.start(at);
        }
        world
    }

    pub fn reached(mut self) -> Reached {
        let reached = &mut self.reached;
        (reached.numbered, reached.wide) = (self.checker.tokens.len(), self.checker.wide());
        (reached.holes, reached.ends, reached.lost) = (self.checker.holes, self.checker.ends, self.checker.lost());
        self.reached
    }

    pub fn step(&mut self, step: u8, a: usize, b: usize) -> Result<(), String> {
        let position = a % self.current.len();
        match step {
            0..=29 => self.append(a, b),
            30..=44 => self.send_again(a, b),
            45..=149 => (0..=b % 4).try_for_each(|_| self.deliver_some(a * 31 + b / 4))?,
            150..=189 => (0..=b % 4).try_for_each(|_| self.deliver_inside(a * 31 + b / 4))?,
            190..=214 => self.flush(a * 31 + b)?,
            215..=219 => self.tick(a)?,
            220..=229 => self.ask_tail(a, b),
            230..=235 => self.notice(a, b),
            236..=237 if b.is_multiple_of(4) => self.claim_again(position)?,
            238..=240 if b.is_multiple_of(2) => self.replace(position, b),
            241 => self.kill_old(a),
            242..=244 => self.run(1)?,
            _ => self.run_inside()?,
        }
        Ok(())
    }

    /// All that is under way arrives, and then nothing may be left undone.
    pub fn finish(&mut self) -> Result<(), String> {
        for at in 0..self.processes.len() {
            self.processes[at].alive = self.current[self.processes[at].position] == at;
        }
        for round in 0.. {
            for at in self.current.clone() {
                let position = self.processes[at].position;
                let place = &self.shape.places[position];
                for neighbour in place.parent.into_iter().chain(place.children.clone()).collect::<Vec<_>>() {
                    self.link(at, neighbour);
                }
            }
            (0..10).try_for_each(|_| self.run(1))?;
            for shard in 0..self.shards.len() {
                for staged in self.shards[shard].appends.clone() {
                    (0..self.shards[shard].members.len()).for_each(|member| self.stage(shard, member, staged));
                }
                if round % 4 == 3 {
                    (0..self.shape.shards[shard].1.len()).for_each(|color| self.ask_tail(shard, color));
                }
            }
            (0..self.processes.len()).try_for_each(|at| self.tick(at))?;
            match self.undone() {
                None if round >= 20 => return Ok(()),
                Some(undone) if round > 60 => return Err(undone),
                _ => {}
            }
        }
        Ok(())
    }

    fn undone(&self) -> Option<String> {
        let still = |what: String| Some(format!("nothing is under way, but {what}"));
        // Those below first: others wait for them.
        for process in self.current.iter().rev().map(|at| &self.processes[*at]) {
            let status = process.sequencer.status();
            if !process.sequencer.serves() || !status.awaited.is_empty() || status.under_way > 0 {
                return still(format!("position {} is at {status:?}, of {}", process.position, self.all()));
            }
            for leaf in process.leaves.values() {
                let status = leaf.status();
                if status.phase != "serving" || status.commit != status.last || status.pending > 0 {
                    return still(format!(
                        "a leaf of position {} is at {status:?}, of {}",
                        process.position,
                        self.all()
                    ));
                }
            }
        }
        for (at, shard) in self.shards.iter().enumerate() {
            if let Some((member, color, _)) = shard.asks.values().next() {
                return still(format!("member {member} of shard {at} waits for the tail of {color}"));
            }
            for member in &shard.members {
                if let Some(staged) = member.staged.values().next() {
                    return still(format!("{} is staged and has no number", staged.token));
                }
                if member.commit != member.last() {
                    return still(format!("a member is at {} of {}", member.commit, member.last()));
                }
                for (color, stable) in &member.wide {
                    let tail = self.checker.tails.get(color).copied().unwrap_or_default();
                    if *stable != tail {
                        return still(format!("the tail of {color} is {tail}, its stable on shard {at} {stable}"));
                    }
                }
            }
        }
        None
    }

    fn all(&self) -> String {
        let all = self.current.iter().map(|at| &self.processes[*at]);
        let all = all.map(|process| format!("{}: {:?}", process.position, process.sequencer.status()));
        all.collect::<Vec<_>>().join("\n")
    }

    // ---- processes ----

    /// A process for a position, in a fresh epoch, that knows who its neighbours are.
    fn fresh(&mut self, position: usize) -> usize {
        self.epochs += 1;
        let members = self.shape.places[position].shards.first().map_or(0, |shard| self.shards[*shard].members.len());
        let mut process = Process::new(&self.shape, incarnation(position, self.epochs), EPOCH_LIMIT, members);
        let place = &self.shape.places[position];
        for neighbour in place.parent.iter().chain(&place.children) {
            process.links.insert(*neighbour, self.current[*neighbour]);
        }
        self.processes.push(process);
        self.current[position] = self.processes.len() - 1;
        self.current[position]
    }

    fn start(&mut self, at: usize) {
        let now = self.now;
        let process = &mut self.processes[at];
        let mut out = Vec::new();
        process.sequencer.start(&mut out);
        let mut leaf_out = Vec::new();
        for (shard, leaf) in &mut process.leaves {
            let mut out = Vec::new();
            leaf.start(now, &mut out);
            leaf_out.push((*shard, out));
        }
        // None of these can fail a check.
        _ = self.tree_says(at, out);
        leaf_out.into_iter().for_each(|(shard, out)| _ = self.leaf_says(at, shard, out));
    }

    fn count_replaced(&mut self, position: usize) {
        let place = &self.shape.places[position];
        let level = if place.parent.is_none() { 0 } else { 1 + usize::from(place.children.is_empty()) };
        self.reached.replaced[level] += 1;
    }

    /// The process that holds a position claims it again.
    fn claim_again(&mut self, position: usize) -> Result<(), String> {
        self.count_replaced(position);
        let at = self.current[position];
        self.fresh(position);
        if let Some(fresh) = self.processes.pop() {
            self.current[position] = at;
            self.processes[at].lead(fresh);
            self.start(at);
        }
        Ok(())
    }

    /// Another process claims a position. The one before does not know; or it is dead.
    fn replace(&mut self, position: usize, b: usize) {
        self.count_replaced(position);
        let before = self.current[position];
        let old = (0..self.processes.len()).filter(|at| self.processes[*at].position == position && *at != before);
        old.collect::<Vec<_>>().into_iter().for_each(|at| self.processes[at].alive = false);
        self.processes[before].alive = b & 4 != 0;
        let at = self.fresh(position);
        self.start(at);
    }

    fn kill_old(&mut self, a: usize) {
        let at = a % self.processes.len();
        if self.current[self.processes[at].position] != at {
            self.processes[at].alive = false;
        }
    }

    /// A process notices that a neighbour is another one.
    fn notice(&mut self, a: usize, b: usize) {
        let alive: Vec<_> = (0..self.processes.len()).filter(|at| self.processes[*at].alive).collect();
        let at = alive[alive.len() - 1 - a % alive.len()];
        let neighbours: Vec<_> = self.processes[at].links.keys().copied().collect();
        if let Some(neighbour) = neighbours.get(b % neighbours.len().max(1)) {
            self.link(at, *neighbour);
        }
    }

    fn link(&mut self, at: usize, neighbour: usize) {
        let other = self.current[neighbour];
        let process = &mut self.processes[at];
        if process.links.insert(neighbour, other) != Some(other) {
            process.replaced.push_back(neighbour);
        }
    }

    /// Neighbours that were found to be replaced.
    fn take_replaced(&mut self, at: usize) -> Result<(), String> {
        while let Some(neighbour) = self.processes[at].replaced.pop_front() {
            let is_parent = self.shape.places[self.processes[at].position].parent == Some(neighbour);
            let replaced = tree::Input::ChildReplaced(Position(neighbour as u32));
            self.tree_input(at, if is_parent { tree::Input::ParentReplaced } else { replaced })?;
        }
        Ok(())
    }

    // ---- streams ----

    fn send(&mut self, from: End, to: End, message: Message) {
        self.streams.entry((from, to)).or_default().push_back(message);
    }

    fn deliver_some(&mut self, a: usize) -> Result<(), String> {
        let waiting: Vec<_> =
            self.streams.iter().filter(|(_, stream)| !stream.is_empty()).map(|(key, _)| *key).collect();
        if waiting.is_empty() { Ok(()) } else { self.deliver(waiting[a % waiting.len()]) }
    }

    fn deliver(&mut self, key: (End, End)) -> Result<(), String> {
        let Some(message) = self.streams.get_mut(&key).and_then(VecDeque::pop_front) else { return Ok(()) };
        match (message, key) {
            (_, (_, End::Process(at))) if !self.processes[at].alive => Ok(()),
            (Message::Up(message), (End::Process(child), End::Process(at))) => {
                // It hears of a new process before that process speaks to it as one that it knows.
                self.take_replaced(at)?;
                let from = Position(self.processes[child].position as u32);
                self.tree_input(at, tree::Input::Child { from, message })
            }
            (Message::Down(message), (_, End::Process(at))) => {
                self.take_replaced(at)?;
                self.forge(at, &message)?;
                self.tree_input(at, tree::Input::Parent(message))
            }
            (Message::ToMember(message), (_, End::Member(shard, member))) => self.member_takes(shard, member, message),
            (Message::ToLeaf(message), (End::Member(shard, member), End::Process(at))) => {
                let from = ReplicaId(member as u32);
                self.leaf_input(at, shard, Input::Member { from, message })
            }
            _ => Err("a stream between nobody".into()),
        }
    }

    /// Keeps grants that are not for this incarnation or not of its parent's, and tries whether it takes them if they
    /// look as if they were.
    fn forge(&mut self, at: usize, message: &Between<FromParent>) -> Result<(), String> {
        let Process { me, position, sequencer, .. } = &self.processes[at];
        let (me, epoch, above) = (*me, sequencer.status().parent, self.shape.places[*position].parent);
        let parent = epoch.zip(above).map(|(epoch, above)| incarnation(above, epoch.0));
        let old = match self.plant {
            Plant::OldParentsGrants => message.to == Some(me) && parent.is_some_and(|parent| message.from != parent),
            Plant::OldChildsGrants => message.to != Some(me),
            _ => return Ok(()),
        };
        let kept = self.old.entry(me.position).or_default();
        if old && matches!(message.message, FromParent::Grant { .. }) {
            kept.push(message.clone());
        }
        let forge_from = parent.filter(|_| self.plant == Plant::OldParentsGrants);
        for old in kept.clone() {
            let forged = Between { from: forge_from.unwrap_or(old.from), to: Some(me), message: old.message };
            self.tree_input(at, tree::Input::Parent(forged))?;
        }
        Ok(())
    }

    fn deliver_inside(&mut self, a: usize) -> Result<(), String> {
        let alive: Vec<_> = (0..self.processes.len()).filter(|at| self.processes[*at].alive).collect();
        let at = alive[a % alive.len()];
        let shards: Vec<_> = self.processes[at].leaves.keys().copied().collect();
        if shards.is_empty() {
            return self.take_replaced(at);
        }
        let shard = shards[a / alive.len() % shards.len()];
        self.deliver_to_tree(at, shard)?;
        self.deliver_to_leaf(at, shard)
    }

    fn deliver_to_tree(&mut self, at: usize, shard: usize) -> Result<(), String> {
        let message = self.processes[at].to_tree.get_mut(&shard).and_then(VecDeque::pop_front);
        let from = ShardId(shard as u32);
        message.map_or(Ok(()), |message| self.tree_input(at, tree::Input::Shard { from, message }))
    }

    fn deliver_to_leaf(&mut self, at: usize, shard: usize) -> Result<(), String> {
        let message = self.processes[at].to_leaf.get_mut(&shard).and_then(VecDeque::pop_front);
        let Some(message) = message else { return Ok(()) };
        if let (FromParent::Grant { color, first, count, .. }, Plant::EarlySettle) = (&message, self.plant) {
            let settled = ToParent::Settle(vec![(*color, Range { first: *first, count: *count }.end())]);
            self.processes[at].to_tree.entry(shard).or_default().push_back(settled);
        }
        self.leaf_input(at, shard, Input::Parent(message))
    }

    fn flush(&mut self, a: usize) -> Result<(), String> {
        let at = a % self.processes.len();
        if !self.processes[at].alive {
            return Ok(());
        }
        let shards: Vec<_> = self.processes[at].leaves.keys().copied().collect();
        for shard in shards {
            let mut out = Vec::new();
            if let Some(leaf) = self.processes[at].leaves.get_mut(&shard) {
                leaf.flush(&mut out);
            }
            self.leaf_says(at, shard, out)?;
        }
        let mut out = Vec::new();
        self.processes[at].sequencer.flush(&mut out);
        self.tree_says(at, out)
    }

    /// What is said between the cores of each process arrives.
    fn run_inside(&mut self) -> Result<(), String> {
        for at in 0..self.processes.len() {
            if self.processes[at].alive {
                self.take_replaced(at)?;
            }
            for shard in self.shape.places[self.processes[at].position].shards.clone() {
                let waiting = |queue: Option<usize>| queue.unwrap_or_default();
                for _ in 0..waiting(self.processes[at].to_tree.get(&shard).map(VecDeque::len)) {
                    self.deliver_to_tree(at, shard)?;
                }
                for _ in 0..waiting(self.processes[at].to_leaf.get(&shard).map(VecDeque::len)) {
                    self.deliver_to_leaf(at, shard)?;
                }
            }
            self.flush(at)?;
        }
        Ok(())
    }

    /// Everything arrives in turn.
    fn run(&mut self, rounds: usize) -> Result<(), String> {
        for _ in 0..rounds {
            let keys: Vec<_> = self.streams.iter().map(|(key, stream)| (*key, stream.len())).collect();
            for (key, count) in keys {
                (0..count).try_for_each(|_| self.deliver(key))?;
            }
            self.run_inside()?;
        }
        Ok(())
    }

    fn tick(&mut self, a: usize) -> Result<(), String> {
        self.now = self.now.after(COMPLETION_DELAY_MICROS);
        let at = a % self.processes.len();
        let shards: Vec<_> = self.processes[at].leaves.keys().copied().collect();
        if self.processes[at].alive {
            shards.into_iter().try_for_each(|shard| self.leaf_input(at, shard, Input::Tick))?;
        }
        Ok(())
    }

    // ---- cores ----

    fn tree_input(&mut self, at: usize, input: tree::Input) -> Result<(), String> {
        let granted = matches!(&input, tree::Input::Parent(Between { message: FromParent::Grant { .. }, .. }));
        let mut out = Vec::new();
        self.processes[at].sequencer.handle(input, &mut out);
        if granted && out.len() > 1 {
            self.reached.merges += 1;
        }
        self.tree_says(at, out)
    }

    fn leaf_input(&mut self, at: usize, shard: usize, input: Input) -> Result<(), String> {
        let mut out = Vec::new();
        let now = self.now;
        if let Some(leaf) = self.processes[at].leaves.get_mut(&shard) {
            leaf.handle(now, input, &mut out);
        }
        self.leaf_says(at, shard, out)
    }

    fn tree_says(&mut self, at: usize, out: Vec<tree::Output>) -> Result<(), String> {
        let position = self.processes[at].position;
        let mut full = false;
        for output in out {
            match output {
                tree::Output::Child { to, message } => {
                    self.owner_says(position, &message.message)?;
                    let to = End::Process(self.processes[at].links[&(to.0 as usize)]);
                    let stream = self.streams.entry((End::Process(at), to)).or_default();
                    stream.push_back(Message::Down(message));
                    if self.plant == Plant::OutOfOrder && stream.len() > 1 {
                        swap_grants(stream);
                    }
                }
                tree::Output::Shard { to, mut message } => {
                    self.owner_says(position, &message)?;
                    if let FromParent::Grant { color, first, count, .. } = &mut message {
                        if self.plant == Plant::SplitOffByOne && first.counter() > 0 {
                            *first = SeqNum::new(first.epoch(), first.counter() - 1);
                        }
                        self.checker.given(*color, Range { first: *first, count: *count })?;
                    }
                    self.processes[at].to_leaf.entry(to.0 as usize).or_default().push_back(message);
                }
                tree::Output::Parent(message) => {
                    let above = self.shape.places[position].parent.ok_or("the root speaks to a parent")?;
                    let to = End::Process(self.processes[at].links[&above]);
                    self.send(End::Process(at), to, Message::Up(message));
                }
                tree::Output::Serving => {}
                tree::Output::EpochFull => full = true,
            }
        }
        if full && self.current[position] == at {
            self.reached.full += 1;
            self.claim_again(position)?;
        }
        Ok(())
    }

    fn owner_says(&mut self, position: usize, message: &FromParent) -> Result<(), String> {
        match message {
            FromParent::Grant { color, first, count, .. } if color.owner().0 as usize == position => {
                self.checker.granted(*color, Range { first: *first, count: *count })
            }
            _ => Ok(()),
        }
    }

    fn leaf_says(&mut self, at: usize, shard: usize, out: Vec<Output>) -> Result<(), String> {
        for output in out {
            match output {
                Output::Member { to, message } => {
                    if let ToMember::Stable { upto: colors, .. } = &message.message {
                        colors.iter().for_each(|(color, upto)| self.checker.told_stable(*color, *upto));
                    }
                    let to = End::Member(shard, to.0 as usize);
                    self.send(End::Process(at), to, Message::ToMember(message));
                }
                Output::Parent(message) => {
                    self.processes[at].to_tree.entry(shard).or_default().push_back(message);
                }
                Output::Serving => {}
                Output::ChangeView { .. } => return Err("a view that never changes is to be changed".into()),
                // One that was replaced finds members that have gone on with another; it is of no use any more.
                Output::Stopped(reason) if self.current[self.shards[shard].position] == at => {
                    return Err(reason.to_string());
                }
                Output::Stopped(_) => {}
            }
        }
        Ok(())
    }
}

/// The last two messages change places, if both grant numbers.
fn swap_grants(stream: &mut VecDeque<Message>) {
    let is_grant =
        |message: &Message| matches!(message, Message::Down(Between { message: FromParent::Grant { .. }, .. }));
    let last = stream.len() - 1;
    if is_grant(&stream[last]) && is_grant(&stream[last - 1]) {
        stream.swap(last, last - 1);
    }
}
