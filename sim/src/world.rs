//! The cluster: machines, members, leaves with their counters, metadata; its clients and readers; and the scheduler that
//! lets one thing happen at a time.
//!
//! The cores are those that production runs, and are put together as the node's engine does it: each output is carried out
//! where the engine would, each message is what the engine would have queued. What the engine does in one go (a queue
//! emptied in order, a flush, a fence, a look at what is done) are events of their own here, in any order that the streams
//! allow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use flexlog_protocol::media::LogStore;
use flexlog_protocol::{Color, Epoch, SeqNum, Time, View, ViewNumber};
use flexlog_replica::ConnId;
use flexlog_storage_pm::Options;
use flexlog_storage_pm::ssd::SimFolder;
use flexlog_tree_config::StoreState;

use crate::bug::Bug;
use crate::client::{Client, Outside, Wish};
use crate::faults::{Fault, Kind};
use crate::history::History;
use crate::invariants::{Violation, i10_recovery, i12_bounds, liveness};
use crate::machine::{Machine, Member, OpenFailure, Opened, replica_id};
use crate::metadata::Metadata;
use crate::net::{Net, Stream};
use crate::positions::{Seat, Sequencer};
use crate::readers::Reader;
use crate::schedule::Chooser;
use crate::shape::{Shape, Shard, shard_id};
use crate::{Config, Counts, Happened, Report};

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
    Claim(usize),
    Lead(usize),
    /// A process that was replaced hears of it.
    Retire(usize),
    /// A process is told that the one next to it is another one, or lost what was said.
    Relink(Epoch, usize),
    /// The sender of a stream is told that it was lost.
    Notice(Stream),
    /// A leaf is told that a replica is within reach.
    Reach(Epoch, usize),
    /// A replica is told that another process leads.
    LeafReplaced(usize),
    /// A process whose store failed is started again.
    Restart(usize),
    /// A member reads on in its store, to find what is damaged.
    Scrub(usize),
    PassTime,
    Client(usize),
    Reader(usize),
    Fault(Fault),
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    Client(usize),
    Reader(usize),
}

/// Whether something must not happen now.
pub(crate) type Held = Box<dyn Fn(&World, Action) -> bool>;

/// See the module.
pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) kind: Kind,
    pub(crate) shape: Shape,
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
    /// By place.
    pub(crate) seats: Vec<Seat>,
    /// Processes that are to be told of another one at a place next to theirs.
    pub(crate) relink: BTreeSet<(Epoch, usize)>,
    /// Whom leaves are to be told to be within reach.
    pub(crate) reach: BTreeSet<(Epoch, usize)>,
    /// Replicas that are to be told of another leaf's process.
    pub(crate) replaced: BTreeSet<usize>,
    /// A medium failed as it was told to: the power goes before anything else happens.
    pub(crate) power_fails: bool,
    /// A medium failed and the power stays.
    pub(crate) broken_stores: bool,
    /// That was so at some time.
    pub(crate) ever_broken: bool,
    pub(crate) counts: Counts,
    pub(crate) faults: Vec<Happened>,
    /// Those that happened and those that were left out.
    pub(crate) drawn_faults: u32,
    pub(crate) lines: VecDeque<String>,
    options: Vec<(Action, u64)>,
    /// What a scenario's script keeps from happening.
    pub(crate) held: Vec<Held>,
}

impl World {
    pub(crate) fn new(seed: u64, config: Config) -> Self {
        let mut chooser = Chooser::new(seed);
        let mut kind = Kind::draw(&mut chooser, config);
        let script = config.scenario;
        script.into_iter().for_each(|script| script.set(&mut kind, config));
        let shape = if let Some(script) = script {
            script.shape(&kind)
        } else if config.tree && !chooser.one_in(5) {
            Shape::draw(&mut chooser, &kind)
        } else {
            Shape::one(config.members, &kind)
        };
        let segment_bytes = chooser.pick(&[8192, 16_384]);
        // Small enough to be full at times; more of it where more is to come.
        let mut segments = chooser.pick(&[6, 8, 12, 64]) * (config.events / 3000).max(1);
        if script.is_some() {
            segments = 128;
        }
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
        let machine =
            |member| Machine::new(member, shard_id(shape.shard_at(member)), kind.fences, options, tiered.then(ssd));
        let replicas = shape.replicas();
        let machines = (0..replicas).map(machine).collect();
        let first = |shard: &Shard| {
            let members = shard.replicas.clone().take(shard.members).map(replica_id).collect();
            View { number: ViewNumber(1), members }
        };
        let metadata = Metadata {
            epoch: 0,
            holders: vec![None; shape.places.len()],
            views: shape.shards.iter().map(first).collect(),
            stores: vec![StoreState::Fresh; replicas],
        };
        let clients = (0..chooser.between(1, 5).max(script.map_or(1, |_| 4)))
            .map(|_| Client::new(chooser.between(1, 8) as usize, kind.fixed && chooser.one_in(3)))
            .collect();
        let readers = (0..chooser.between(1, 3)).map(|_| Reader::default()).collect();
        Self {
            config,
            kind,
            chooser,
            now: Time(0),
            history: History::new(&shape),
            net: Net::default(),
            machines,
            metadata,
            sequencers: Vec::new(),
            clients,
            readers,
            conns: BTreeMap::new(),
            next_conn: 0,
            seats: vec![Seat { needs_claim: true, claimed: None }; shape.places.len()],
            relink: BTreeSet::new(),
            shape,
            reach: BTreeSet::new(),
            replaced: BTreeSet::new(),
            power_fails: false,
            broken_stores: false,
            ever_broken: false,
            counts: Counts::default(),
            faults: Vec::new(),
            drawn_faults: 0,
            lines: VecDeque::new(),
            options: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Runs to the end, faults first, then without.
    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        match self.config.scenario {
            Some(scenario) => scenario.play(self)?,
            None => {
                while self.history.event < self.config.events {
                    self.step()?;
                }
            }
        }
        self.finale()
    }

    pub(crate) fn report(&self, violation: Option<Violation>) -> Report {
        Report {
            trace: self.chooser.trace(),
            events: self.history.event,
            acknowledged: self.history.acknowledged,
            committed: self.history.committed(),
            counts: self.counts,
            faults: self.faults.clone(),
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

    pub(crate) fn step(&mut self) -> Result<(), Violation> {
        if self.config.faults
            && self.chooser.one_in(self.kind.fault_every)
            && let Some(fault) = self.chooser.weighted(&self.kind.faults)
        {
            return self.act(Action::Fault(fault));
        }
        self.end_cuts();
        let mut options = std::mem::take(&mut self.options);
        options.clear();
        self.inner_options(&mut options);
        for (at, process) in self.sequencers.iter().enumerate() {
            if self.is_replaced(at) {
                options.push((Action::Retire(at), 1));
            }
            if process.still_until > self.history.event {
                continue;
            }
            options.push((Action::Flush(at), 6));
            if self.is_due(at) {
                options.push((Action::TickLeaf(at), 4));
            }
        }
        self.scrub_options(&mut options);
        options.push((Action::PassTime, 3));
        options.extend((0..self.clients.len()).filter(|at| self.clients[*at].alive).map(|at| (Action::Client(at), 3)));
        options
            .extend((0..self.readers.len()).filter(|at| !self.readers[*at].auditor).map(|at| (Action::Reader(at), 3)));
        if self.broken_stores {
            options.push((Action::Fault(Fault::PowerCut), 1));
        }
        self.leave_held(&mut options);
        let action = self.chooser.weighted(&options);
        self.options = options;
        self.act(action.unwrap_or(Action::PassTime))
    }

    /// What a scenario's script holds does not happen.
    pub(crate) fn leave_held(&self, options: &mut Vec<(Action, u64)>) {
        if !self.held.is_empty() {
            options.retain(|(action, _)| !self.is_held(*action));
        }
    }

    pub(crate) fn is_held(&self, action: Action) -> bool {
        self.held.iter().any(|held| held(self, action))
    }

    /// What the cluster has to do by itself.
    pub(crate) fn inner_options(&self, options: &mut Vec<(Action, u64)>) {
        let event = self.history.event;
        let takes = |stream: &Stream| self.takes(*stream);
        options.extend(self.net.ready(event).filter(takes).map(|stream| (Action::Deliver(stream), 6)));
        self.link_options(options);
        let serving = |shard: usize| {
            let leader = self.leader(self.shape.shards[shard].place);
            let led = leader.and_then(|at| self.sequencers[at].led(shard));
            led.is_some_and(|led| led.leaf.status().phase == "serving")
        };
        let away = self.net.away_until > event;
        for (at, machine) in self.machines.iter().enumerate() {
            if machine.still_until > event {
                continue;
            }
            let Some(member) = machine.up() else {
                if machine.down_until <= event && !away {
                    options.push((Action::Open(at), 6));
                }
                continue;
            };
            if member.replica.next_deadline().is_some_and(|at| at <= self.now) {
                options.push((Action::TickMember(at), 4));
            }
            if member.failed.is_some() {
                options.push((Action::Restart(at), 1));
                continue;
            }
            match member.fence {
                Some(_) => options.push((Action::FinishFence(at), 4)),
                None if member.written > member.covered => options.push((Action::StartFence(at), 5)),
                None if member.replica.is_led()
                    && !member.checkpointing
                    && member.store.checkpoint_wanted()
                    && serving(self.history.home(at)) =>
                {
                    options.push((Action::Checkpoint(at), 4));
                }
                None => {}
            }
            let due = member.store.background_at().is_some_and(|at| at <= self.now);
            if member.job.is_some() || member.may_have_work || due {
                options.push((Action::Work(at), 2));
            }
        }
        if !away {
            for (place, seat) in self.seats.iter().enumerate() {
                match seat.claimed {
                    Some(_) => options.push((Action::Lead(place), 4)),
                    None if seat.needs_claim || self.leader(place).is_none() => options.push((Action::Claim(place), 4)),
                    None => {}
                }
            }
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
            Action::TickLeaf(at) => self.tick_leaves(at)?,
            Action::TickMember(at) => self.member_input(at, flexlog_replica::Input::Tick)?,
            Action::StartFence(at) => self.start_fence(at)?,
            Action::FinishFence(at) => self.finish_fence(at)?,
            Action::Checkpoint(at) => self.want_checkpoint(at),
            Action::Work(at) => self.work(at)?,
            Action::Open(at) => self.open_step(at)?,
            Action::Claim(place) => self.claim(place),
            Action::Lead(place) => self.lead(place)?,
            Action::Retire(at) => self.retire(at),
            Action::Relink(epoch, place) => self.relinked(epoch, place)?,
            Action::Notice(stream) => self.notice(stream)?,
            Action::Reach(leaf, member) => self.reached(leaf, member)?,
            Action::LeafReplaced(at) => {
                self.replaced.remove(&at);
                self.leaf_replaced(at)?;
            }
            Action::Restart(at) => self.end_one(at, true)?,
            Action::Scrub(at) => self.scrub(at)?,
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
        while let Some(at) = self.sequencers.iter().position(|sequencer| sequencer.over) {
            self.retire(at);
        }
        Ok(())
    }

    pub(crate) fn outside(&mut self) -> Outside<'_> {
        Outside {
            chooser: &mut self.chooser,
            history: &mut self.history,
            net: &mut self.net,
            shape: &self.shape,
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

    pub(crate) fn forget_connection(&mut self, conn: ConnId) {
        match self.conns.remove(&conn) {
            Some(Owner::Client(at)) => self.clients[at].disconnected(),
            Some(Owner::Reader(at)) => self.readers[at].disconnected(),
            None => {}
        }
    }

    /// Readers lose their connections.
    pub(crate) fn disconnect_readers(&mut self) {
        let readers = self.conns.iter().filter(|(_, owner)| matches!(owner, Owner::Reader(_)));
        let conns: Vec<ConnId> = readers.map(|(conn, _)| *conn).collect();
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
                self.opened_with_rot(at);
                self.comes_up(at);
                Ok(())
            }
            Err(OpenFailure::Refused(_)) if machine.aside.is_some() => {
                machine.swap_out_image();
                self.counts.refused_images += 1;
                Ok(())
            }
            Err(_) if machine.armed => {
                self.power_fails = true;
                Ok(())
            }
            Err(OpenFailure::Refused(why) | OpenFailure::Store(why)) => Err(i10_recovery::opening(at, &why)),
        }
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
        let mut leaves = self.sequencers.iter().flat_map(|process| &process.leaves);
        leaves.try_for_each(|led| i12_bounds::leaf(&led.leaf.status()))
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
