//! The cluster: machines, members, leaves with their counters, metadata; its clients and readers; and the scheduler that
//! lets one thing happen at a time.
//!
//! The cores are those that production runs, and are put together as the node's engine does it: each output is carried out
//! where the engine would, each message is what the engine would have queued. What the engine does in one go (a queue
//! emptied in order, a flush, a fence, a look at what is done) are events of their own here, in any order that the streams
//! allow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use flexlog_protocol::media::LogStore;
use flexlog_protocol::peer::Child;
use flexlog_protocol::{Color, Epoch, Incarnation, Lsn, Position, SeqNum, Time, Token, View, ViewNumber};
use flexlog_replica::ConnId;
use flexlog_sequencer::{Leaf, Sequencer as Counter};
use flexlog_storage_pm::Options;
use flexlog_storage_pm::device::Fences;
use flexlog_storage_pm::ssd::SimFolder;
use flexlog_tree_config::StoreState;

use crate::bug::Bug;
use crate::client::{Client, Outside, Wish};
use crate::history::History;
use crate::invariants::{Violation, i10_recovery, i12_bounds, liveness};
use crate::machine::{Machine, Member, Metadata, OpenFailure, Opened, replica_id};
use crate::net::{Net, Stream};
use crate::readers::Reader;
use crate::schedule::Chooser;
use crate::{Config, Report};

/// Bytes of an area before its segments, at most.
const HEAD: u64 = 64 << 10;
/// Lines of the end of a run that are kept.
const LINES: usize = 20_000;

/// One thing that can happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Deliver(Stream),
    Flush(usize),
    TickLeaf(usize),
    TickMember(usize),
    StartFence(usize),
    FinishFence(usize),
    Checkpoint(usize),
    Work(usize),
    Open(usize),
    Claim,
    Retire,
    PassTime,
    Client(usize),
    Reader(usize),
    Fault(Fault),
}

/// One thing that can go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    PowerCut,
    PowerCutAndOlderImage,
    Kill,
    PowerCutOne,
    KillOne,
    LeafDies,
    ClaimAgain,
    Stall,
    BreakMedium,
    LongIdle,
    LoseConnection,
}

/// A process that leads the shard and owns its colors, or believes so.
pub(crate) struct Sequencer {
    pub(crate) incarnation: Incarnation,
    pub(crate) leaf: Leaf,
    pub(crate) counter: Option<Counter>,
    /// Numbers asked for and not given out, by color.
    pub(crate) outstanding: BTreeMap<Color, u64>,
    /// The tokens that it gave numbers to, and how far its entries were looked at.
    pub(crate) numbered: BTreeSet<Token>,
    pub(crate) seen: Lsn,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    Client(usize),
    Reader(usize),
}

/// How a run is: drawn once, so that runs differ in kind.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) fences: Fences,
    pub(crate) numbers_per_epoch: u32,
    pub(crate) colors: u64,
    pub(crate) payload: u64,
    /// A fault comes once in so many events.
    pub(crate) fault_every: u64,
    faults: Vec<(Fault, u64)>,
}

/// See the module.
pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) kind: Kind,
    pub(crate) chooser: Chooser,
    pub(crate) now: Time,
    pub(crate) history: History,
    pub(crate) net: Net,
    pub(crate) machines: Vec<Machine>,
    pub(crate) metadata: Metadata,
    /// Those that live, the newest last.
    pub(crate) sequencers: Vec<Sequencer>,
    pub(crate) clients: Vec<Client>,
    pub(crate) readers: Vec<Reader>,
    pub(crate) conns: BTreeMap<ConnId, Owner>,
    next_conn: u64,
    pub(crate) needs_claim: bool,
    /// A medium failed as it was told to: the power goes before anything else happens.
    pub(crate) power_fails: bool,
    /// A medium failed and the power stays.
    pub(crate) broken_stores: bool,
    pub(crate) crashes: u64,
    pub(crate) refused_images: u64,
    pub(crate) moves: u64,
    pub(crate) lines: VecDeque<String>,
    options: Vec<(Action, u64)>,
}

impl World {
    pub(crate) fn new(seed: u64, config: Config) -> Self {
        let mut chooser = Chooser::new(seed);
        let kind = Kind::draw(&mut chooser, config);
        let segment_bytes = chooser.pick(&[8192, 16_384]);
        // Small enough to be full at times; more of it where more is to come.
        let segments = chooser.pick(&[6, 8, 12, 64]) * (config.events / 3000).max(1);
        let options = Options {
            segment_bytes,
            limit_bytes: HEAD + segments * segment_bytes,
            cache_bytes: 0,
            high_mark: chooser.pick(&[10, 25, 50, 75]),
            ..Options::default()
        };
        let tiered = !chooser.one_in(3);
        let small = tiered && chooser.one_in(4);
        let ssd = || {
            let folder = SimFolder::new();
            if small {
                folder.set_limit(128 << 10);
            }
            folder
        };
        let machine = |member| Machine::new(member, kind.fences, options, tiered.then(ssd));
        let machines = (0..config.members).map(machine).collect();
        let clients = (0..chooser.between(1, 5))
            .map(|_| Client::new(chooser.between(1, 8) as usize, chooser.one_in(8)))
            .collect();
        let readers = (0..chooser.between(1, 3)).map(|_| Reader::default()).collect();
        Self {
            config,
            kind,
            chooser,
            now: Time(0),
            history: History::new(config.members),
            net: Net::default(),
            machines,
            metadata: Metadata { epoch: 0, stores: vec![StoreState::Fresh; config.members] },
            sequencers: Vec::new(),
            clients,
            readers,
            conns: BTreeMap::new(),
            next_conn: 0,
            needs_claim: true,
            power_fails: false,
            broken_stores: false,
            crashes: 0,
            refused_images: 0,
            moves: 0,
            lines: VecDeque::new(),
            options: Vec::new(),
        }
    }

    /// Runs to the end, faults first, then without.
    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        while self.history.event < self.config.events {
            self.step()?;
        }
        self.finale()
    }

    pub(crate) fn report(&self, violation: Option<Violation>) -> Report {
        Report {
            trace: self.chooser.trace(),
            events: self.history.event,
            crashes: self.crashes,
            acknowledged: self.history.acknowledged,
            committed: self.history.committed.len() as u64,
            refused_images: self.refused_images,
            moves: self.moves,
            violation,
            last_events: self.lines.iter().cloned().collect(),
        }
    }

    pub(crate) fn is_bug(&self, bug: Bug) -> bool {
        self.config.bug == Some(bug)
    }

    /// Writes a line into the record of the run, if there is one.
    pub(crate) fn record(&mut self, line: impl FnOnce() -> String) {
        if self.config.record {
            let line = line();
            self.chooser.note_text(&line);
            if self.lines.len() >= LINES {
                self.lines.pop_front();
            }
            self.lines.push_back(line);
        }
    }

    fn step(&mut self) -> Result<(), Violation> {
        if self.config.faults
            && self.chooser.one_in(self.kind.fault_every)
            && let Some(fault) = self.chooser.weighted(&self.kind.faults)
        {
            return self.act(Action::Fault(fault));
        }
        let mut options = std::mem::take(&mut self.options);
        options.clear();
        self.inner_options(&mut options);
        for (at, leaf) in self.sequencers.iter().enumerate() {
            options.push((Action::Flush(at), 6));
            if leaf.leaf.next_deadline().is_some_and(|at| at <= self.now) {
                options.push((Action::TickLeaf(at), 4));
            }
        }
        if self.sequencers.len() > 1 {
            options.push((Action::Retire, 1));
        }
        options.push((Action::PassTime, 3));
        options.extend((0..self.clients.len()).filter(|at| self.clients[*at].alive).map(|at| (Action::Client(at), 3)));
        options
            .extend((0..self.readers.len()).filter(|at| !self.readers[*at].auditor).map(|at| (Action::Reader(at), 3)));
        if self.broken_stores {
            options.push((Action::Fault(Fault::PowerCut), 1));
        }
        let action = self.chooser.weighted(&options);
        self.options = options;
        self.act(action.unwrap_or(Action::PassTime))
    }

    /// What the cluster has to do by itself.
    pub(crate) fn inner_options(&self, options: &mut Vec<(Action, u64)>) {
        options.extend(self.net.ready(self.history.event).map(|stream| (Action::Deliver(stream), 6)));
        let serving = self.sequencers.last().is_some_and(|sequencer| sequencer.leaf.status().phase == "serving");
        for (at, machine) in self.machines.iter().enumerate() {
            let Some(member) = machine.up() else {
                options.push((Action::Open(at), 6));
                continue;
            };
            if member.replica.next_deadline().is_some_and(|at| at <= self.now) {
                options.push((Action::TickMember(at), 4));
            }
            if member.failed.is_some() {
                continue;
            }
            match member.fence {
                Some(_) => options.push((Action::FinishFence(at), 4)),
                None if member.written > member.covered => options.push((Action::StartFence(at), 5)),
                None if serving && !member.checkpointing && member.store.checkpoint_wanted() => {
                    options.push((Action::Checkpoint(at), 4));
                }
                None => {}
            }
            let due = member.store.background_at().is_some_and(|at| at <= self.now);
            if member.job.is_some() || member.may_have_work || due {
                options.push((Action::Work(at), 2));
            }
        }
        if self.needs_claim && self.machines.iter().all(|machine| machine.up().is_some()) {
            options.push((Action::Claim, 6));
        }
    }

    /// Lets one thing happen.
    pub(crate) fn act(&mut self, action: Action) -> Result<(), Violation> {
        self.history.event += 1;
        let event = self.history.event;
        self.record(|| format!("{event:6} {action:?}"));
        match action {
            Action::Deliver(stream) => self.deliver(stream)?,
            Action::Flush(at) => self.flush(at)?,
            Action::TickLeaf(at) => self.leaf_input(at, flexlog_sequencer::Input::Tick)?,
            Action::TickMember(at) => self.member_input(at, flexlog_replica::Input::Tick)?,
            Action::StartFence(at) => self.start_fence(at)?,
            Action::FinishFence(at) => self.finish_fence(at)?,
            Action::Checkpoint(at) => self.want_checkpoint(at),
            Action::Work(at) => self.work(at)?,
            Action::Open(at) => self.open_step(at)?,
            Action::Claim => self.claim()?,
            Action::Retire => _ = self.sequencers.remove(0),
            Action::PassTime => {
                let micros = self.chooser.between(1, 20_000);
                self.now = self.now.after(micros);
            }
            Action::Client(at) => self.client_acts(at, false),
            Action::Reader(at) => self.reader_acts(at),
            Action::Fault(fault) => self.fault(fault)?,
        }
        if std::mem::take(&mut self.power_fails) {
            self.power_cut();
        }
        Ok(())
    }

    pub(crate) fn outside(&mut self) -> Outside<'_> {
        Outside {
            chooser: &mut self.chooser,
            history: &mut self.history,
            net: &mut self.net,
            colors: self.kind.colors,
            payload: self.kind.payload,
        }
    }

    pub(crate) fn client_acts(&mut self, at: usize, only_retry: bool) {
        let mut clients = std::mem::take(&mut self.clients);
        let wish = {
            let mut outside = self.outside();
            if only_retry { clients[at].retry_all(&mut outside) } else { clients[at].act(&mut outside) }
        };
        self.clients = clients;
        match (wish, self.clients[at].conn) {
            (Wish::Connect, _) => self.clients[at].conn = Some(self.connect(Owner::Client(at))),
            (Wish::Disconnect, Some(conn)) => self.disconnect(conn),
            _ => {}
        }
    }

    fn reader_acts(&mut self, at: usize) {
        let mut readers = std::mem::take(&mut self.readers);
        let wish = readers[at].act(&mut self.outside());
        self.readers = readers;
        match (wish, self.readers[at].conn) {
            (Wish::Connect, _) => self.readers[at].conn = Some(self.connect(Owner::Reader(at))),
            (Wish::Disconnect, Some(conn)) => self.disconnect(conn),
            _ => {}
        }
    }

    pub(crate) fn connect(&mut self, owner: Owner) -> ConnId {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        self.conns.insert(conn, owner);
        conn
    }

    /// A connection is gone: each member got some part of what was sent over it, and hears of the end after that.
    pub(crate) fn disconnect(&mut self, conn: ConnId) {
        for member in 0..self.machines.len() {
            let stream = Stream::Request { conn, member };
            let keep = self.chooser.below(self.net.len(stream) as u64 + 1) as usize;
            self.net.cut(stream, keep);
            self.net.push(stream, crate::net::Packet::Disconnected);
        }
        self.net.drop_streams(|stream| matches!(stream, Stream::Answer { conn: of, .. } if of == conn));
        self.forget_connection(conn);
    }

    fn forget_connection(&mut self, conn: ConnId) {
        match self.conns.remove(&conn) {
            Some(Owner::Client(at)) => self.clients[at].disconnected(),
            Some(Owner::Reader(at)) => self.readers[at].disconnected(),
            None => {}
        }
    }

    fn disconnect_all(&mut self) {
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        conns.into_iter().for_each(|conn| self.disconnect(conn));
    }

    // ---- opening and claiming ----

    fn open_step(&mut self, at: usize) -> Result<(), Violation> {
        let nonce = self.chooser.uuid();
        let believing = self.is_bug(Bug::OlderImage);
        let machine = &mut self.machines[at];
        match machine.open_step(&mut self.metadata, nonce, believing) {
            Ok(Opened::NotYet) => Ok(()),
            Ok(Opened::Store(opened)) => {
                let (store, recovered) = *opened;
                i10_recovery::recovered(&mut self.history, at, &recovered, &store)?;
                let outputs =
                    self.machines[at].start(store, recovered).map_err(|why| i10_recovery::opening(at, &why))?;
                for output in outputs {
                    if let flexlog_replica::Output::DropStaged(tokens) = output {
                        self.history.ledgers[at].dropped.extend(tokens);
                    }
                }
                if let Some(member) = self.machines[at].up() {
                    i10_recovery::reads_back(&self.history, at, &member.store)?;
                }
                self.needs_claim = true;
                Ok(())
            }
            Err(OpenFailure::Refused(_)) if machine.aside.is_some() => {
                machine.swap_out_image();
                self.refused_images += 1;
                Ok(())
            }
            Err(_) if machine.armed => {
                self.power_fails = true;
                Ok(())
            }
            Err(OpenFailure::Refused(why) | OpenFailure::Store(why)) => Err(i10_recovery::opening(at, &why)),
        }
    }

    fn claim(&mut self) -> Result<(), Violation> {
        self.needs_claim = false;
        self.metadata.epoch += 1;
        let epoch = Epoch(self.metadata.epoch);
        let incarnation = Incarnation { position: Position(0), epoch, uuid: self.chooser.uuid() };
        let members = (0..self.machines.len()).map(replica_id).collect();
        let view = View { number: ViewNumber(1), members };
        let mut leaf = Leaf::new(incarnation, crate::machine::SHARD, view);
        let mut out = Vec::new();
        leaf.start(self.now, &mut out);
        let mut counter = Counter::new(incarnation, true, &[Child::Shard(crate::machine::SHARD)]);
        let mut counter_out = Vec::new();
        counter.start(&mut counter_out);
        self.sequencers.push(Sequencer {
            incarnation,
            leaf,
            counter: Some(counter),
            outstanding: BTreeMap::new(),
            numbered: BTreeSet::new(),
            seen: Lsn(0),
        });
        if self.sequencers.len() > 2 {
            self.sequencers.remove(0);
        }
        self.route_counter(self.sequencers.len() - 1, counter_out);
        self.route_leaf(self.sequencers.len() - 1, out)
    }

    // ---- faults ----

    fn fault(&mut self, fault: Fault) -> Result<(), Violation> {
        match fault {
            Fault::PowerCut => self.power_cut(),
            Fault::PowerCutAndOlderImage => {
                self.power_cut();
                let at = self.chooser.below(self.machines.len() as u64) as usize;
                self.machines[at].swap_in_image();
            }
            Fault::Kill => self.kill()?,
            Fault::PowerCutOne | Fault::KillOne => {
                let at = self.chooser.below(self.machines.len() as u64) as usize;
                self.end_one(at, fault == Fault::KillOne)?;
            }
            Fault::LeafDies => {
                if self.sequencers.pop().is_some() {
                    self.needs_claim = true;
                }
            }
            Fault::ClaimAgain => self.needs_claim = true,
            Fault::Stall => {
                let streams: Vec<_> = self.net.ready(self.history.event).map(|stream| (stream, 1)).collect();
                if let Some(stream) = self.chooser.weighted(&streams) {
                    let until = self.history.event + self.chooser.between(10, 300);
                    self.net.stall(stream, until);
                }
            }
            Fault::BreakMedium => {
                let at = self.chooser.below(self.machines.len() as u64) as usize;
                if !self.machines[at].armed {
                    self.machines[at].armed = true;
                    let machine = &self.machines[at];
                    match (self.chooser.below(7), &machine.ssd) {
                        (n @ (0 | 1), _) => machine.media.fail_fence(n + 1),
                        (5, Some(ssd)) => ssd.fail_sync(self.chooser.between(1, 4)),
                        (6, Some(ssd)) => ssd.fail_append(self.chooser.between(1, 4)),
                        (n, _) => machine.media.fail_write(n - 1),
                    }
                }
            }
            Fault::LongIdle => self.now = self.now.after(flexlog_protocol::limits::SESSION_IDLE_MICROS + 1_000_000),
            Fault::LoseConnection => {
                let conns: Vec<_> = self.conns.keys().map(|conn| (*conn, 1)).collect();
                if let Some(conn) = self.chooser.weighted(&conns) {
                    self.disconnect(conn);
                }
            }
        }
        Ok(())
    }

    /// The power is gone everywhere: no process is left, and of what was not fenced any part.
    pub(crate) fn power_cut(&mut self) {
        self.crashes += 1;
        self.end_cluster();
        for at in 0..self.machines.len() {
            let seed = self.chooser.draw();
            // What lies in the place of a medium is not what it was written to.
            self.machines[at].swap_out_image();
            self.machines[at].power_cut(seed);
            self.history.ledgers[at].process_ended();
        }
        self.broken_stores = false;
    }

    /// `kill -9`: no process is left, the media are as written.
    fn kill(&mut self) -> Result<(), Violation> {
        self.crashes += 1;
        self.end_cluster();
        self.broken_stores = false;
        (0..self.machines.len()).try_for_each(|at| self.kill_process(at))
    }

    fn kill_process(&mut self, at: usize) -> Result<(), Violation> {
        if let Some(upto) = self.machines[at].kill() {
            self.history.durable_upto(at, upto)?;
        }
        self.history.ledgers[at].process_ended();
        Ok(())
    }

    /// One machine is gone for a while, and comes back.
    fn end_one(&mut self, at: usize, kill: bool) -> Result<(), Violation> {
        self.crashes += 1;
        if kill {
            self.kill_process(at)?;
        } else {
            let seed = self.chooser.draw();
            self.machines[at].swap_out_image();
            self.machines[at].power_cut(seed);
            self.history.ledgers[at].process_ended();
        }
        self.broken_stores = self.machines.iter().any(|m| m.up().is_some_and(|member| member.failed.is_some()));
        self.net.drop_streams(|stream| match stream {
            Stream::ToMember { member, .. } | Stream::Request { member, .. } => member == at,
            Stream::Peer { to, .. } => to == at,
            Stream::Store { member } | Stream::Fetch { member } => member == at,
            Stream::ToLeaf { .. } | Stream::ToCounter { .. } | Stream::FromCounter { .. } | Stream::Answer { .. } => {
                false
            }
        });
        self.disconnect_all();
        Ok(())
    }

    fn end_cluster(&mut self) {
        self.sequencers.clear();
        self.net.drop_streams(|_| true);
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        conns.into_iter().for_each(|conn| self.forget_connection(conn));
        self.needs_claim = true;
    }

    // ---- bounds ----

    /// Looks at every count that has a bound.
    pub(crate) fn check_bounds(&self) -> Result<(), Violation> {
        i12_bounds::queues(self.net.longest)?;
        for (at, machine) in self.machines.iter().enumerate() {
            if let Some(member) = machine.up() {
                i12_bounds::member(at, &member.replica.summary())?;
            }
        }
        self.sequencers.iter().try_for_each(|sequencer| i12_bounds::leaf(&sequencer.leaf.status()))
    }

    pub(crate) fn member(&self, at: usize) -> Option<&Member> {
        self.machines[at].up()
    }

    /// How far `color` is settled at a member.
    pub(crate) fn stable(&self, at: usize, color: Color) -> SeqNum {
        self.member(at).map_or(SeqNum::MIN, |member| member.replica.stable(color))
    }

    /// A core stopped: only a broken medium explains that.
    pub(crate) fn stopped(&self, who: &str, why: &str) -> Result<(), Violation> {
        if self.broken_stores { Ok(()) } else { Err(liveness::stuck(format!("{who} stopped: {why}"))) }
    }
}

impl Kind {
    fn draw(chooser: &mut Chooser, config: Config) -> Self {
        let all = [
            (Fault::PowerCut, 4),
            (Fault::PowerCutAndOlderImage, 1),
            (Fault::Kill, 3),
            (Fault::PowerCutOne, 2),
            (Fault::KillOne, 2),
            (Fault::LeafDies, 2),
            (Fault::ClaimAgain, 4),
            (Fault::Stall, 10),
            (Fault::BreakMedium, 4),
            (Fault::LongIdle, 2),
            (Fault::LoseConnection, 6),
        ];
        // A run in which some faults never come goes further in between than one that has all of them.
        let mut faults: Vec<_> = all.into_iter().filter(|_| !chooser.one_in(4)).collect();
        let mut fences = if chooser.one_in(3) { Fences::AtOnce } else { Fences::WhenTold };
        match config.bug {
            Some(Bug::LyingFences) => fences = Fences::Lying,
            Some(Bug::OlderImage) => faults.push((Fault::PowerCutAndOlderImage, 6)),
            _ => {}
        }
        Self {
            fences,
            numbers_per_epoch: chooser.pick(&[20, 60, SeqNum::MAX_COUNT]),
            colors: chooser.between(1, 4),
            payload: chooser.pick(&[64, 200, 600]),
            // So many in a run, however long it is: a longer run is to go further in between.
            fault_every: chooser.pick(&[25, 60, 150, 400]) * (config.events / 3000).max(1),
            faults,
        }
    }
}
