//! Scripted runs: an execution that broke a draft of the protocol, played step by step.
//!
//! A scenario brings its own cluster and a script. The script keeps some things from happening ([`Play::hold`]), lets the
//! scheduler draw everything else until something is so ([`Play::until`]), has processes die or be cut off, and lets go
//! ([`Play::release`]). No fault is drawn: only what the script does goes wrong. All invariants are checked on the way as
//! in any run, and the final phase comes behind the script.
//!
//! It promises that a run that goes well has been through every step: where a step's condition is not reached within
//! [`PATIENCE`] events, or does not stay as it must, the run fails and names the step.

mod shard;
mod store;
mod tree;

use std::fmt;

use flexlog_protocol::peer::{FromParent, ToLeaf, ToMember, ToParent};
use flexlog_protocol::{Body, Color, Entry, Epoch};
use flexlog_storage_pm::device::Fences;

use crate::bug::Bug;
use crate::client::Client;
use crate::faults::Kind;
use crate::invariants::{Invariant, Violation};
use crate::net::{Cut, Packet, Sites, Stream};
use crate::positions::Sequencer;
use crate::shape::Shape;
use crate::world::{Action, World};
use crate::{Config, Happened};

/// Events within which each step's condition is reached.
const PATIENCE: u64 = 40_000;
/// So many events, and then everything comes to rest and seconds pass, unless the script holds the time.
const BREATH: u64 = 1500;
/// Appends that are acknowledged before a script goes on.
const SOME: u64 = 4;

type Done = Result<(), Violation>;

/// The cluster of a scenario.
pub(crate) struct Cluster {
    shape: fn(&Cluster, &Kind) -> Shape,
    /// Replicas of each shard in its first view, and others of the first shard, which are down until the script has them up.
    members: usize,
    outside: usize,
    min_view: u32,
    /// Fences are done when told, so that something can come before. Else the seed says.
    slow: bool,
}

/// A run by script. [`Scenario::all`] has all of them.
pub struct Scenario {
    /// Its name: what happens, in plain words.
    pub name: &'static str,
    /// Which execution of the design's list it is.
    pub execution: u32,
    /// One line about it.
    pub says: &'static str,
    cluster: Cluster,
    script: fn(&mut Play<'_>) -> Done,
}

impl PartialEq for Scenario {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Scenario {}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Scenario {
    /// All scenarios, by their executions.
    pub fn all() -> Vec<&'static Self> {
        let mut all: Vec<&Self> = shard::ALL.iter().chain(tree::ALL).chain(store::ALL).collect();
        all.sort_by_key(|scenario| scenario.execution);
        all
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::all().into_iter().find(|scenario| scenario.name == name)
    }

    /// What is as the script needs it, whatever was drawn.
    pub(crate) fn set(&self, kind: &mut Kind, config: Config) {
        let cluster = &self.cluster;
        (kind.fixed, kind.outside, kind.min_view) = (false, cluster.outside, cluster.min_view);
        (kind.numbers_per_epoch, kind.colors) = (flexlog_protocol::SeqNum::MAX_COUNT, 1);
        kind.replica_timeout = 400_000;
        if config.bug == Some(Bug::LyingFences) {
            kind.fences = Fences::Lying;
        } else if cluster.slow {
            kind.fences = Fences::WhenTold;
        }
    }

    pub(crate) fn shape(&self, kind: &Kind) -> Shape {
        (self.cluster.shape)(&self.cluster, kind)
    }

    /// Plays the script.
    pub(crate) fn play(&'static self, world: &mut World) -> Done {
        world.config.faults = false;
        let clients = world.clients.len();
        for at in self.cluster.members..self.cluster.members + self.cluster.outside {
            world.machines[at].down_until = u64::MAX;
        }
        let mut play = Play { world, scenario: self, step: 0, clients, retries: false };
        (self.script)(&mut play)?;
        play.release();
        Ok(())
    }
}

/// A script under way.
pub(crate) struct Play<'a> {
    world: &'a mut World,
    scenario: &'static Scenario,
    /// Conditions so far.
    step: u32,
    clients: usize,
    /// Clients do nothing but send again what they wait for.
    retries: bool,
}

impl Play<'_> {
    /// Lets things happen until something is so.
    fn until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) -> Done {
        self.begins(what);
        let latest = self.world.history.event + PATIENCE;
        for n in 1.. {
            if is_so(self.world) {
                break;
            }
            if self.world.history.event >= latest {
                return Err(self.fails(what, "was not reached"));
            }
            if n % BREATH == 0 && !self.world.is_held(Action::PassTime) {
                // Whoever is busy all the time takes nobody in, and what was given up is tried again after seconds.
                for _ in 0..8 {
                    self.world.rest()?;
                    self.world.pass(1_000_000)?;
                }
                // A link that gets nothing through for so long is lost, as a node's is.
                let event = self.world.history.event;
                let cut = self.world.links().into_iter().filter(|at| self.world.net.is_cut(*at, event));
                let cut: Vec<_> = cut.collect();
                cut.into_iter().for_each(|stream| self.world.net.lose(stream, 0));
            } else {
                self.happens()?;
            }
        }
        Ok(())
    }

    /// Lets so much happen, and all the while something stays so.
    fn stays(&mut self, events: u64, what: &str, is_so: impl Fn(&World) -> bool) -> Done {
        self.begins(what);
        for _ in 0..events {
            self.happens()?;
            if !is_so(self.world) {
                return Err(self.fails(what, "did not stay so"));
            }
        }
        Ok(())
    }

    fn begins(&mut self, what: &str) {
        self.step += 1;
        let step = self.step;
        self.world.record(|| format!("step {step}: {what}"));
        let event = self.world.history.event;
        self.world.faults.push(Happened { number: u32::MAX, event, what: format!("step {step}: {what}") });
    }

    fn fails(&self, what: &str, how: &str) -> Violation {
        let what = format!("scenario {}: step {} {how}: {what}", self.scenario.name, self.step);
        Violation { invariant: Invariant::Scenario, what }
    }

    /// One thing happens. Clients that would be gone for good come back, and those that are held send again what they
    /// wait for.
    fn happens(&mut self) -> Done {
        if self.world.is_held(Action::Client(0)) && self.retries && self.world.chooser.one_in(20) {
            (0..self.clients).for_each(|at| self.world.client_acts(at, true));
        }
        self.world.step()?;
        self.world.clients[..self.clients].iter_mut().for_each(|client: &mut Client| client.alive = true);
        Ok(())
    }

    /// Clients send nothing new, only what they wait for, until [`Play::release`].
    fn only_retries(&mut self) {
        self.retries = true;
        self.hold(|_, action| matches!(action, Action::Client(_)));
    }

    /// Every shard serves with all its replicas that are up, and something is appended at each.
    fn all_serve(&mut self) -> Done {
        self.until("every shard serves", |w| {
            (0..w.shape.shards.len()).all(|shard| w.serves(shard) && w.is_whole(shard))
        })?;
        self.appends()
    }

    /// Each shard acknowledges some more appends.
    fn appends(&mut self) -> Done {
        let before: Vec<u64> = (0..self.world.shape.shards.len()).map(|shard| self.world.acknowledged(shard)).collect();
        self.until("each shard acknowledges some more", |w| {
            before.iter().enumerate().all(|(shard, before)| w.acknowledged(shard) >= before + SOME)
        })
    }

    /// Something does not happen until [`Play::release`].
    fn hold(&mut self, what: impl Fn(&World, Action) -> bool + 'static) {
        self.world.held.push(Box::new(what));
    }

    /// No time passes, so nobody gives up on anybody.
    fn hold_time(&mut self) {
        self.hold(|_, action| action == Action::PassTime);
    }

    /// What is next for a replica from a leaf does not arrive while it is such.
    fn hold_to_member(&mut self, what: impl Fn(usize, &ToMember) -> bool + 'static) {
        self.hold(move |w, action| match (action, w.next_packet(action)) {
            (Action::Deliver(Stream::ToMember { member, .. }), Some(Packet::ToMember(of))) => what(member, &of.message),
            _ => false,
        });
    }

    /// What is next for a leaf from a replica does not arrive while it is such.
    fn hold_to_leaf(&mut self, what: impl Fn(usize, &ToLeaf) -> bool + 'static) {
        self.hold(move |w, action| match (action, w.next_packet(action)) {
            (Action::Deliver(Stream::ToLeaf { member, .. }), Some(Packet::ToLeaf(of))) => what(member, &of.message),
            _ => false,
        });
    }

    /// What was held and what was cut off goes on.
    fn release(&mut self) {
        self.world.held.clear();
        self.retries = false;
        self.heal();
    }

    /// What was cut off goes on.
    fn heal(&mut self) {
        let event = self.world.history.event;
        self.world.net.cuts.iter_mut().for_each(|cut| cut.until = event);
        self.world.end_cuts();
    }

    /// Cuts these processes off from all others.
    fn cut_off(&mut self, side: Sites) {
        let until = u64::MAX;
        let cuts = [Cut { from: side, to: !side, until }, Cut { from: !side, to: side, until }];
        self.world.net.cuts.extend(cuts);
    }

    /// A replica's process is gone, or its power, until [`Play::returns`].
    fn dies(&mut self, member: usize) -> Done {
        let kill = self.world.chooser.one_in(2);
        self.world.end_one(member, kill)?;
        self.world.machines[member].down_until = u64::MAX;
        Ok(())
    }

    fn returns(&mut self, member: usize) {
        self.world.machines[member].down_until = 0;
    }

    /// A position's process is gone with what it sent to its members, and another one will claim it.
    fn position_dies(&mut self, place: usize) {
        let gone = self.world.process(place).map(|process| process.incarnation.epoch);
        self.world.position_dies(place);
        self.world.net.drop_streams(|stream| matches!(stream, Stream::ToMember { leaf, .. } if Some(leaf) == gone));
    }

    /// Another process claims a position; the one that has it lives, and does not hear of it.
    fn is_replaced(&mut self, place: usize) {
        self.world.seats[place].needs_claim = true;
        self.hold(|_, action| matches!(action, Action::Retire(_)));
    }

    /// Somebody asks for a tail. Returns who.
    fn asks_for_tail(&mut self, member: usize, color: Color) -> usize {
        let at = self.world.auditor();
        let mut readers = std::mem::take(&mut self.world.readers);
        readers[at].ask_of(member, color, false, &mut self.world.outside());
        self.world.readers = readers;
        at
    }

    /// The epoch of the process that holds a position.
    fn epoch(&self, place: usize) -> Epoch {
        self.world.process(place).map(|process| process.incarnation.epoch).unwrap_or_default()
    }
}

/// What scripts look at.
impl World {
    /// The newest process of a position.
    fn process(&self, place: usize) -> Option<&Sequencer> {
        self.leader(place).map(|at| &self.sequencers[at])
    }

    /// Whether the newest leaf of a shard gives out numbers.
    fn serves(&self, shard: usize) -> bool {
        let led = self.process(self.shape.shards[shard].place).and_then(|process| process.led(shard));
        led.is_some_and(|led| led.leaf.status().phase == "serving")
    }

    /// Whether the newest process of a position counts: all below have reported to it.
    fn counts_at(&self, place: usize) -> bool {
        self.process(place).and_then(|process| process.counter.as_ref()).is_some_and(|counter| counter.serves())
    }

    /// Whom a position's newest process has sealed to.
    fn parent_of(&self, place: usize) -> Option<Epoch> {
        self.process(place)?.counter.as_ref()?.status().parent
    }

    /// Appends that a shard acknowledged to their clients.
    fn acknowledged(&self, shard: usize) -> u64 {
        let sent = self.history.sent.iter().filter(|(_, sent)| sent.is_acknowledged);
        sent.filter(|(token, _)| crate::shape::shard_of(token.shard) == shard).count() as u64
    }

    /// Whether all replicas of a shard that may be up are in its view.
    fn is_whole(&self, shard: usize) -> bool {
        let mut up = self.shape.shards[shard].replicas.clone().filter(|at| self.machines[*at].down_until < u64::MAX);
        up.all(|at| self.view(shard).contains(&at))
    }

    fn view(&self, shard: usize) -> &[usize] {
        &self.history.shards[shard].view
    }

    /// How often a shard has numbered something, for good.
    fn numbered(&self, shard: usize) -> usize {
        self.history.shards[shard].committed.iter().filter(|entry| assigns(entry)).count()
    }

    /// What a delivery would deliver.
    fn next_packet(&self, action: Action) -> Option<&Packet> {
        let Action::Deliver(stream) = action else { return None };
        self.net.packets(stream).next()
    }

    /// The message from a child's process to its parent's that a delivery would deliver.
    fn next_up(&self, action: Action) -> Option<&ToParent> {
        if let Packet::Up(message) = self.next_packet(action)? { Some(&message.message) } else { None }
    }

    /// The message from a parent's process to its child's that a delivery would deliver.
    fn next_down(&self, action: Action) -> Option<&FromParent> {
        if let Packet::Down(message) = self.next_packet(action)? { Some(&message.message) } else { None }
    }
}

/// Whether an entry gives numbers to records.
fn assigns(entry: &Entry) -> bool {
    matches!(entry.body, Body::Assign(_))
}

/// Whether a message to a member has such an entry.
fn brings(message: &ToMember, what: fn(&Entry) -> bool) -> bool {
    matches!(message, ToMember::Entries { entries, .. } if entries.iter().any(|entry| what(entry)))
}
