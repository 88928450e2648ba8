//! One position with one shard: its leaf, three members, and the streams between them.

use std::collections::{BTreeMap, VecDeque};

use flexlog_protocol::limits::{COMPLETION_DELAY_MICROS, SESSION_IDLE_MICROS};
use flexlog_protocol::peer::{Child, FromParent, Of, Staged, ToLeaf, ToMember, ToParent};
use flexlog_protocol::{
    Body, Color, Epoch, Incarnation, Lsn, Position, ReplicaId, SeqNum, ShardId, Time, Token, View, ViewNumber,
};
use flexlog_sequencer::{Input, Leaf, Output, Sequencer, tree};
use uuid::Uuid;

use crate::checker::Checker;
use crate::member::Member;

const SHARD: ShardId = ShardId(4);
const MEMBERS: usize = 3;
/// Numbers of a color in one epoch; and with how many records staged clients wait, so that one request always fits.
const EPOCH_LIMIT: u32 = 24;
const OPEN_RECORDS: u32 = EPOCH_LIMIT - 3;

/// A fault that the checks must find.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    Nothing,
    /// The leaf takes one member's report for everybody's.
    ForgedReports,
    /// The leaf takes one member's acknowledgement for everybody's.
    ForgedAcks,
    /// Members report tokens again whose numbers they have acknowledged.
    LateReports,
}

pub struct World {
    plant: Plant,
    now: Time,
    me: Incarnation,
    leaf: Leaf,
    counter: Sequencer,
    members: Vec<Member>,
    up: Vec<VecDeque<Of<ToLeaf>>>,
    down: Vec<VecDeque<Of<ToMember>>>,
    /// What leaves that are gone had sent.
    stale: Vec<VecDeque<Of<ToMember>>>,
    to_counter: VecDeque<ToParent>,
    from_counter: VecDeque<FromParent>,
    checker: Checker,
    appends: Vec<Staged>,
    /// Tokens that all members hold alike, or held.
    complete: BTreeMap<Token, Staged>,
    ordered: BTreeMap<Color, u32>,
    /// The exclusive end of what was acknowledged, and of what was told as a tail.
    acknowledged: BTreeMap<Color, SeqNum>,
    tail: BTreeMap<Color, SeqNum>,
    asks: BTreeMap<(usize, u64), (Color, SeqNum)>,
    tails_told: usize,
    epochs_full: usize,
    restart: bool,
    names: u64,
}

fn incarnation(epoch: u32) -> Incarnation {
    Incarnation { position: Position(0), epoch: Epoch(epoch), uuid: Uuid::from_u128(epoch.into()) }
}

fn new_leaf(me: Incarnation) -> Leaf {
    let members = (0..MEMBERS as u32).map(ReplicaId).collect();
    Leaf::new(me, SHARD, View { number: ViewNumber(1), members })
}

fn new_counter(me: Incarnation) -> Sequencer {
    Sequencer::new(me, true, &[Child::Shard(SHARD)]).with_limit(EPOCH_LIMIT)
}

fn raise(map: &mut BTreeMap<Color, SeqNum>, color: Color, to: SeqNum) {
    let value = map.entry(color).or_default();
    *value = to.max(*value);
}

impl World {
    pub fn new(plant: Plant) -> Self {
        let mut world = Self {
            plant,
            now: Time(0),
            me: incarnation(1),
            leaf: new_leaf(incarnation(1)),
            counter: new_counter(incarnation(1)),
            members: (0..MEMBERS).map(|_| Member::default()).collect(),
            up: vec![VecDeque::new(); MEMBERS],
            down: vec![VecDeque::new(); MEMBERS],
            stale: vec![VecDeque::new(); MEMBERS],
            to_counter: VecDeque::new(),
            from_counter: VecDeque::new(),
            checker: Checker::default(),
            appends: Vec::new(),
            complete: BTreeMap::new(),
            ordered: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            tail: BTreeMap::new(),
            asks: BTreeMap::new(),
            tails_told: 0,
            epochs_full: 0,
            restart: false,
            names: 0,
        };
        let mut out = Vec::new();
        world.start_counter();
        world.leaf.start(world.now, &mut out);
        world.down.iter_mut().for_each(|down| down.push_back(Of { leaf: world.me, message: ToMember::Seal }));
        world
    }

    /// Tokens numbered, holes, epoch ends, tails told, leaves, epochs that were full.
    pub fn reached(&self) -> [usize; 6] {
        let Checker { tokens, holes, ends, .. } = &self.checker;
        [tokens.len(), *holes, *ends, self.tails_told, self.me.epoch.0 as usize, self.epochs_full]
    }

    pub fn step(&mut self, step: u8, a: usize, b: usize) -> Result<(), String> {
        let member = a % MEMBERS;
        match step {
            0..=39 => self.append(a, b),
            40..=69 => self.send_again(member, b),
            70..=119 => (0..=b % 4).try_for_each(|_| self.deliver_up(member, b > 200))?,
            120..=169 => (0..=b % 4).try_for_each(|_| self.deliver_down(member))?,
            170..=179 => self.deliver_stale(member)?,
            180..=189 => self.deliver_to_counter()?,
            190..=199 => self.deliver_from_counter()?,
            200..=224 => self.flush()?,
            225..=231 => self.wait(COMPLETION_DELAY_MICROS)?,
            232..=235 => self.ask(member, ToLeaf::OpenSession { nonce: Uuid::from_u128(b as u128 % 8) }),
            236..=243 => self.ask_tail(member, Color(b as u64 % 2)),
            244..=246 => self.trim(member, Color(b as u64 % 2)),
            247 => self.wait(SESSION_IDLE_MICROS)?,
            248 => self.close_session(member, a / MEMBERS),
            249..=250 => self.replace_leaf(),
            251.. => self.run(2)?,
        }
        Ok(())
    }

    /// All that is under way arrives, and then nothing may be left undone.
    pub fn finish(&mut self) -> Result<(), String> {
        for round in 0.. {
            self.run(10)?;
            (0..self.appends.len()).for_each(|i| (0..MEMBERS).for_each(|m| self.stage(m, self.appends[i])));
            self.wait(COMPLETION_DELAY_MICROS)?;
            let undone = self.undone();
            match undone {
                None => break,
                Some(undone) if round > 20 => return Err(undone),
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn undone(&self) -> Option<String> {
        let status = self.leaf.status();
        let disputes = self.members.iter().map(|member| member.staged.len()).max().unwrap_or_default();
        if status.phase != "serving" || status.commit != status.last || status.pending > disputes {
            return Some(format!("nothing is under way, but the leaf is at {status:?}"));
        }
        for member in &self.members {
            if member.commit != status.commit || member.log != self.members[0].log {
                return Some(format!("a member is at {} of {}", member.commit, status.commit));
            }
            let disputed = |staged: &Staged| {
                self.members.iter().any(|other| other.has(staged.token).is_some_and(|other| other != *staged))
            };
            if let Some(staged) = member.staged.values().find(|staged| !disputed(staged)) {
                return Some(format!("{} is staged and has no number", staged.token));
            }
        }
        None
    }

    /// Everything arrives in turn.
    fn run(&mut self, rounds: usize) -> Result<(), String> {
        for _ in 0..rounds {
            for member in 0..MEMBERS {
                (0..self.down[member].len()).try_for_each(|_| self.deliver_down(member))?;
                (0..self.stale[member].len()).try_for_each(|_| self.deliver_stale(member))?;
                (0..self.up[member].len()).try_for_each(|_| self.deliver_up(member, false))?;
            }
            self.flush()?;
            (0..self.to_counter.len()).try_for_each(|_| self.deliver_to_counter())?;
            (0..self.from_counter.len()).try_for_each(|_| self.deliver_from_counter())?;
            self.flush()?;
        }
        Ok(())
    }

    // ---- clients ----

    fn append(&mut self, a: usize, b: usize) {
        let sessions = &self.checker.sessions;
        if sessions.is_empty() {
            return;
        }
        // The latest sessions are the likeliest to be open.
        let session = sessions[sessions.len() - 1 - a % sessions.len().min(2)];
        self.names += 1;
        let token = Token { shard: SHARD, session, seq: self.names };
        let color = Color(b as u64 % 2);
        let staged = Staged { token, color, records: 1 + b as u32 % 3, digest: 0 };
        self.checker.floors.insert(token, self.acknowledged.get(&color).copied().unwrap_or_default());
        self.appends.push(staged);
        (0..MEMBERS).filter(|member| b >> 4 >> member & 1 == 1).for_each(|member| self.stage(member, staged));
    }

    /// A copy of some append comes late; now and then it is not the same.
    fn send_again(&mut self, member: usize, b: usize) {
        if !self.appends.is_empty() {
            let recent = self.appends.len() - 1 - b % self.appends.len().min(16);
            let digest = u64::from(b >= 250);
            self.stage(member, Staged { digest, ..self.appends[recent] });
        }
    }

    fn stage(&mut self, member: usize, staged: Staged) {
        let open: BTreeMap<_, _> = self.members.iter().flat_map(|member| &member.staged).collect();
        let records: u32 = open.values().map(|staged| staged.records).sum();
        if records > OPEN_RECORDS && !open.contains_key(&staged.token) {
            return;
        }
        if self.members[member].stage(staged) {
            self.ask(member, ToLeaf::Persisted(vec![staged]));
            if self.members.iter().all(|other| other.has(staged.token) == Some(staged)) {
                self.complete.insert(staged.token, staged);
            }
        }
    }

    fn ask(&mut self, member: usize, message: ToLeaf) {
        self.up[member].extend(self.members[member].say(message));
    }

    fn ask_tail(&mut self, member: usize, color: Color) {
        self.names += 1;
        let known = |map: &BTreeMap<Color, SeqNum>| map.get(&color).copied().unwrap_or_default();
        let least = known(&self.acknowledged).max(known(&self.tail));
        self.asks.insert((member, self.names), (color, least));
        self.ask(member, ToLeaf::TailAsk { ask: self.names, color });
    }

    fn trim(&mut self, member: usize, color: Color) {
        if let Some(number) = self.checker.tokens.values().next_back() {
            self.ask(member, ToLeaf::Trim { color, upto: *number });
        }
    }

    /// A client is done with a session, though what it appended may be under way.
    fn close_session(&mut self, member: usize, which: usize) {
        let sessions = &self.checker.sessions;
        if !sessions.is_empty() {
            let session = sessions[sessions.len() - 1 - which % sessions.len().min(2)];
            self.ask(member, ToLeaf::CloseSession { session });
        }
    }

    // ---- streams ----

    fn deliver_up(&mut self, member: usize, twice: bool) -> Result<(), String> {
        let Some(message) = self.up[member].pop_front() else { return Ok(()) };
        let forged = match message.message {
            ToLeaf::Persisted(_) => self.plant == Plant::ForgedReports,
            ToLeaf::Acked(_) => self.plant == Plant::ForgedAcks,
            _ => false,
        };
        let repeated = twice && matches!(message.message, ToLeaf::Persisted(_) | ToLeaf::Acked(_));
        for from in (0..MEMBERS).filter(|from| *from == member || forged) {
            for _ in 0..=usize::from(repeated) {
                let from = ReplicaId(from as u32);
                self.input(Input::Member { from, message: message.clone() })?;
            }
        }
        Ok(())
    }

    fn deliver_down(&mut self, member: usize) -> Result<(), String> {
        self.down[member].pop_front().map_or(Ok(()), |message| self.member_takes(member, message))
    }

    fn deliver_stale(&mut self, member: usize) -> Result<(), String> {
        self.stale[member].pop_front().map_or(Ok(()), |message| self.member_takes(member, message))
    }

    fn deliver_to_counter(&mut self) -> Result<(), String> {
        let Some(message) = self.to_counter.pop_front() else { return Ok(()) };
        let mut out = Vec::new();
        self.counter.handle(tree::Input::Shard { from: SHARD, message }, &mut out);
        self.counter.flush(&mut out);
        self.counter_says(out)
    }

    fn start_counter(&mut self) {
        let mut out = Vec::new();
        self.counter.start(&mut out);
        self.from_counter.extend(out.into_iter().filter_map(|output| match output {
            tree::Output::Shard { message, .. } => Some(message),
            _ => None,
        }));
    }

    fn counter_says(&mut self, out: Vec<tree::Output>) -> Result<(), String> {
        for output in out {
            match output {
                tree::Output::Shard { message, .. } => self.from_counter.push_back(message),
                tree::Output::Serving => {}
                tree::Output::EpochFull => self.restart = true,
                other => return Err(format!("a root with one shard says {other:?}")),
            }
        }
        if std::mem::take(&mut self.restart) {
            self.epochs_full += 1;
            self.replace_leaf();
        }
        Ok(())
    }

    fn deliver_from_counter(&mut self) -> Result<(), String> {
        self.from_counter.pop_front().map_or(Ok(()), |message| self.input(Input::Parent(message)))
    }

    fn wait(&mut self, micros: u64) -> Result<(), String> {
        self.now = self.now.after(micros);
        if self.leaf.next_deadline().is_some_and(|at| at <= self.now) { self.input(Input::Tick) } else { Ok(()) }
    }

    fn member_takes(&mut self, place: usize, message: Of<ToMember>) -> Result<(), String> {
        let Of { leaf, message } = message;
        let sealed = self.members[place].sealed;
        if let ToMember::Seal = message {
            if sealed.is_none_or(|sealed| sealed.epoch < leaf.epoch) {
                let report = self.members[place].seal(leaf);
                self.ask(place, report);
            }
            return Ok(());
        }
        if sealed != Some(leaf) {
            return Ok(());
        }
        match message {
            ToMember::Entries { entries, commit } => {
                for entry in &entries {
                    self.members[place].apply(entry)?;
                    self.applied(&entry.body);
                }
                if !entries.is_empty() {
                    self.ask(place, ToLeaf::Acked(self.members[place].last()));
                }
                self.committed(place, commit)?;
                if self.plant == Plant::LateReports {
                    let numbered = self.members[place].numbered.values().map(|(staged, _)| *staged).collect();
                    self.ask(place, ToLeaf::Persisted(numbered));
                }
            }
            ToMember::Stable { upto: colors, .. } => self.members[place].wide.extend(colors),
            ToMember::Complete { token, from } => {
                // One that has it already may say so again.
                if let Some(staged) = self.members[place].staged.get(&token).copied() {
                    self.ask(place, ToLeaf::Persisted(vec![staged]));
                } else if let Some(staged) = self.members[from.0 as usize].has(token) {
                    self.stage(place, staged);
                }
            }
            ToMember::Confirm { round } => self.ask(place, ToLeaf::Confirmed { round }),
            ToMember::Tail { ask, tail, .. } => {
                let (color, least) = self.asks.remove(&(place, ask)).ok_or("an answer to no question")?;
                if tail < least {
                    return Err(format!("the tail of {color} is {tail}, was {least} before the question"));
                }
                raise(&mut self.tail, color, tail);
                self.tails_told += 1;
            }
            ToMember::Seal
            | ToMember::Conflict { .. }
            | ToMember::SessionRefused { .. }
            // Only to replicas that are no members: here all are, for good.
            | ToMember::Learn { .. } => {}
        }
        Ok(())
    }

    /// A client has its answer when all members have told the number.
    fn applied(&mut self, body: &Body) {
        let Body::Assign(runs) = body else { return };
        for run in runs {
            for (token, number) in run.each() {
                if self.members.iter().all(|member| member.numbered.contains_key(&token)) {
                    raise(&mut self.acknowledged, run.color, number.plus(run.records).unwrap_or(SeqNum::MAX));
                }
            }
        }
    }

    fn committed(&mut self, place: usize, commit: Lsn) -> Result<(), String> {
        if self.members.iter().any(|member| member.last() < commit) {
            return Err(format!("I2: {commit} is said to be committed, but some member lacks it"));
        }
        let member = &mut self.members[place];
        member.commit = commit.max(member.commit);
        self.checker.commit(&member.log[..member.commit.0 as usize])
    }

    // ---- the leaf's shell ----

    fn input(&mut self, input: Input) -> Result<(), String> {
        let mut out = Vec::new();
        self.leaf.handle(self.now, input, &mut out);
        self.outputs(out)
    }

    fn flush(&mut self) -> Result<(), String> {
        let mut out = Vec::new();
        self.leaf.flush(&mut out);
        self.outputs(out)
    }

    fn outputs(&mut self, out: Vec<Output>) -> Result<(), String> {
        for output in out {
            match output {
                Output::ChangeView { .. } => return Err("a view that never changes is to be changed".into()),
                Output::Member { to, message } => {
                    self.check_sent(&message.message)?;
                    self.down[to.0 as usize].push_back(message);
                }
                Output::Parent(message) => {
                    self.check_order(&message)?;
                    self.to_counter.push_back(message);
                }
                Output::Serving => {}
                Output::Stopped(reason) => return Err(reason.to_string()),
            }
        }
        Ok(())
    }

    /// I2, by name: whoever is numbered is on every member, and alike.
    fn check_sent(&self, message: &ToMember) -> Result<(), String> {
        let ToMember::Entries { entries, .. } = message else { return Ok(()) };
        for entry in entries.iter().filter(|entry| entry.epoch == self.me.epoch) {
            let Body::Assign(runs) = &entry.body else { continue };
            for (token, _) in runs.iter().flat_map(|run| run.each()) {
                if !self.complete.contains_key(&token) {
                    return Err(format!("I2: {token} is numbered before all members have it"));
                }
            }
        }
        Ok(())
    }

    /// I2, by count: no more numbers are asked for than complete tokens need.
    fn check_order(&mut self, message: &ToParent) -> Result<(), String> {
        let ToParent::Order { color, count, .. } = message else { return Ok(()) };
        let earlier = |token: &Token| {
            let number = self.members.iter().find_map(|member| member.numbered.get(token));
            number.is_some_and(|(_, number)| number.epoch() < self.me.epoch)
        };
        let of_color = self.complete.values().filter(|staged| staged.color == *color && !earlier(&staged.token));
        let most: u32 = of_color.map(|staged| staged.records).sum();
        let ordered = self.ordered.entry(*color).or_default();
        *ordered += count;
        if *ordered > most && self.plant != Plant::LateReports {
            return Err(format!("I2: {ordered} numbers of {color} are asked for, all members have {most} records"));
        }
        Ok(())
    }

    /// The leaf is gone with its counter, and with all that members sent to it and the counter had under way; what it
    /// sent to members still arrives. Messages that name it go to the next one.
    fn replace_leaf(&mut self) {
        self.me = incarnation(self.me.epoch.0 + 1);
        self.leaf = new_leaf(self.me);
        self.counter = new_counter(self.me);
        self.to_counter.clear();
        self.from_counter.clear();
        self.start_counter();
        self.ordered.clear();
        for (stale, down) in self.stale.iter_mut().zip(&mut self.down) {
            stale.append(down);
        }
        let mut out = Vec::new();
        self.leaf.start(self.now, &mut out);
        for output in out {
            if let Output::Member { to, message } = output {
                self.down[to.0 as usize].push_back(message);
            }
        }
    }
}
