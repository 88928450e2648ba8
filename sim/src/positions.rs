//! Positions of the tree: the processes that hold them or believe so, how they are claimed and die, and what their
//! sequencers say to each other.
//!
//! Every claim is a process of its own, with a fresh epoch. One that was replaced goes on until it hears of that, and so
//! do its neighbours: each process sends to the one that it takes for the holder of the position next to it, and is told
//! when that is another one, as the links of a node do it. What was sent meanwhile may arrive at the old one, or nowhere.

use std::collections::{BTreeMap, BTreeSet};

use flexlog_protocol::peer::{Between, Child, FromParent, Range, ToParent};
use flexlog_protocol::{Color, Epoch, Incarnation, Lsn, SeqNum, Token, View};
use flexlog_sequencer::{Leaf, Sequencer as Counter, tree};

use crate::bug::Bug;
use crate::invariants::{Violation, i01_one_number_one_record as i01, i09_old_incarnations as i09};
use crate::machine::member_of;
use crate::net::{Packet, Stream};
use crate::shape::{place_of, position_of, shard_id, shard_of};
use crate::world::World;

/// A leaf, and what is noted about it.
pub(crate) struct Led {
    pub(crate) shard: usize,
    pub(crate) leaf: Leaf,
    /// Numbers asked for and not given out, by color.
    pub(crate) outstanding: BTreeMap<Color, u64>,
    /// The tokens that it gave numbers to, and how far its entries were looked at.
    pub(crate) numbered: BTreeSet<Token>,
    pub(crate) seen: Lsn,
    /// The change of view that it asked for, until it knows what became of it.
    pub(crate) doubt: Option<View>,
    /// The replicas that were taken in since it leads.
    pub(crate) joined: BTreeSet<usize>,
}

impl Led {
    /// The replicas in the views in force.
    pub(crate) fn in_force(&self) -> Vec<usize> {
        let mut members: Vec<usize> = self.leaf.view().members.iter().map(|id| member_of(*id)).collect();
        members.extend(self.doubt.iter().flat_map(|view| &view.members).map(|id| member_of(*id)));
        members.sort_unstable();
        members.dedup();
        members
    }

    /// Those of `members` that were there before it led.
    pub(crate) fn since(&self, members: &[usize]) -> Vec<usize> {
        members.iter().copied().filter(|member| !self.joined.contains(member)).collect()
    }
}

/// A process that holds a position, or believes so.
pub(crate) struct Sequencer {
    pub(crate) place: usize,
    pub(crate) incarnation: Incarnation,
    pub(crate) counter: Option<Counter>,
    pub(crate) leaves: Vec<Led>,
    /// Whom it takes for the holders of the positions next to its own, by place.
    pub(crate) links: BTreeMap<usize, Epoch>,
    /// It stands still until this event.
    pub(crate) still_until: u64,
    /// It knows that another one holds the position.
    pub(crate) over: bool,
    /// A planted fault: what was granted by parents before.
    pub(crate) old_grants: Vec<FromParent>,
}

impl Sequencer {
    /// Its leaf of a shard.
    pub(crate) fn led(&self, shard: usize) -> Option<&Led> {
        self.leaves.iter().find(|led| led.shard == shard)
    }

    pub(crate) fn led_mut(&mut self, shard: usize) -> Option<&mut Led> {
        self.leaves.iter_mut().find(|led| led.shard == shard)
    }
}

/// Who is about to hold a position.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seat {
    /// Some process is to claim it.
    pub(crate) needs_claim: bool,
    /// Claimed, and not led yet.
    pub(crate) claimed: Option<Incarnation>,
}

impl World {
    /// The process that claimed this epoch.
    pub(crate) fn sequencer(&self, leaf: Epoch) -> Option<usize> {
        self.sequencers.iter().position(|sequencer| sequencer.incarnation.epoch == leaf)
    }

    /// The newest process of a position.
    pub(crate) fn leader(&self, place: usize) -> Option<usize> {
        self.sequencers.iter().rposition(|sequencer| sequencer.place == place)
    }

    /// Whether a newer process of its position leads.
    pub(crate) fn is_replaced(&self, at: usize) -> bool {
        self.leader(self.sequencers[at].place) != Some(at)
    }

    /// Whether some leaf of a process waits for the time that it is.
    pub(crate) fn is_due(&self, at: usize) -> bool {
        let due = |led: &Led| led.leaf.next_deadline().is_some_and(|at| at <= self.now);
        self.sequencers.get(at).is_some_and(|process| process.leaves.iter().any(due))
    }

    /// A process claims the position: from now on metadata does what that one wants and no other.
    pub(crate) fn claim(&mut self, place: usize) {
        self.metadata.epoch += 1;
        let epoch = Epoch(self.metadata.epoch);
        let incarnation = Incarnation { position: position_of(place), epoch, uuid: self.chooser.uuid() };
        self.metadata.holders[place] = Some(incarnation);
        self.seats[place] = Seat { needs_claim: false, claimed: Some(incarnation) };
    }

    /// Whoever claimed the position starts with what metadata has.
    pub(crate) fn lead(&mut self, place: usize) -> Result<(), Violation> {
        let Some(incarnation) = self.seats[place].claimed.take() else { return Ok(()) };
        let of = self.shape.places[place].clone();
        let positions = of.children.iter().map(|child| Child::Position(position_of(*child)));
        let children: Vec<Child> =
            positions.chain(of.shards.iter().map(|shard| Child::Shard(shard_id(*shard)))).collect();
        let near: Vec<usize> = self.shape.next_to(place).collect();
        let holders = near.iter().filter_map(|other| self.metadata.holders[*other]);
        let holders: Vec<_> = holders.map(|holder| (holder.position, holder.epoch)).collect();
        let limit = self.epoch_limit();
        let mut counter =
            Counter::new(incarnation, of.parent.is_none(), &children).with_limit(limit).with_neighbours(holders);
        let mut counter_out = Vec::new();
        counter.start(&mut counter_out);
        let timeout = self.kind.replica_timeout;
        let mut started = Vec::new();
        let mut leaves = Vec::new();
        for shard in of.shards {
            let view = self.metadata.views[shard].clone();
            let min_view = self.shape.shards[shard].min_view;
            let mut leaf = Leaf::new(incarnation, shard_id(shard), view).with_views(min_view, timeout);
            let mut out = Vec::new();
            leaf.start(self.now, &mut out);
            started.push((shard, out));
            leaves.push(Led {
                shard,
                leaf,
                outstanding: BTreeMap::new(),
                numbered: BTreeSet::new(),
                seen: Lsn(0),
                doubt: None,
                joined: BTreeSet::new(),
            });
        }
        let links = near.iter().filter_map(|other| {
            let holder = &self.sequencers[self.leader(*other)?];
            Some((*other, holder.incarnation.epoch))
        });
        let process = Sequencer {
            place,
            incarnation,
            counter: Some(counter),
            leaves,
            links: links.collect(),
            still_until: 0,
            over: false,
            old_grants: Vec::new(),
        };
        self.sequencers.push(process);
        if self.sequencers.iter().filter(|process| process.place == place).count() > 2
            && let Some(oldest) = self.sequencers.iter().position(|process| process.place == place)
        {
            self.retire(oldest);
        }
        // Everybody next to it hears of it some time.
        let others = self.sequencers.iter().filter(|process| near.contains(&process.place));
        self.relink.extend(others.map(|process| (process.incarnation.epoch, place)));
        let at = self.sequencers.len() - 1;
        let up = self.shape.replicas_of(place).into_iter().filter(|at| self.machines[*at].up().is_some());
        self.replaced.extend(up);
        self.route_counter(at, counter_out)?;
        for (shard, out) in started {
            self.route_leaf(at, shard, out)?;
        }
        self.tell_reached(at)
    }

    /// The process of a position is gone.
    pub(crate) fn retire(&mut self, at: usize) {
        let gone = self.sequencers.remove(at).incarnation.epoch;
        self.reach.retain(|(of, _)| *of != gone);
        self.relink.retain(|(of, _)| *of != gone);
        self.net.drop_streams(|stream| match stream {
            Stream::ToCounter { leaf, .. } | Stream::FromCounter { leaf, .. } => leaf == gone,
            Stream::Up { to, .. } | Stream::Down { to, .. } => to == gone,
            _ => false,
        });
        // What it sent may still arrive, or a part of it.
        let sent: Vec<Stream> = self.net.streams().chain(self.net.lost()).collect();
        for stream in sent {
            if matches!(stream, Stream::Up { from, .. } | Stream::Down { from, .. } if from == gone) {
                self.in_flight(stream);
            }
        }
    }

    /// So many numbers of a color an epoch has. A limit this low must have room for all that is staged already, as the
    /// real one does: else no epoch is ever long enough.
    fn epoch_limit(&self) -> u32 {
        if self.kind.numbers_per_epoch == SeqNum::MAX_COUNT {
            return self.kind.numbers_per_epoch;
        }
        let staged: BTreeMap<_, _> = self.history.ledgers.iter().flat_map(|ledger| &ledger.staged).collect();
        let waiting = staged.iter().filter(|(token, _)| !self.history.tokens.contains_key(token));
        let records: u32 = waiting.map(|(_, written)| written.append.count()).sum();
        self.kind.numbers_per_epoch.max(records + 20)
    }

    /// A process hears that the position next to its own is held by another one, or that what it said is lost.
    pub(crate) fn relinked(&mut self, epoch: Epoch, place: usize) -> Result<(), Violation> {
        self.relink.remove(&(epoch, place));
        let (Some(at), Some(leader)) = (self.sequencer(epoch), self.leader(place)) else { return Ok(()) };
        let to = self.sequencers[leader].incarnation.epoch;
        let before = self.sequencers[at].links.insert(place, to);
        let stream = |to| self.link_stream(epoch, self.sequencers[at].place, to, place);
        if let Some(before) = before.filter(|before| *before != to) {
            // What is on its way to the old one may get there, or not.
            let stream = stream(before);
            self.in_flight(stream);
        } else {
            let stream = stream(to);
            self.net.found(stream);
        }
        self.neighbour_replaced(at, place)
    }

    fn neighbour_replaced(&mut self, at: usize, place: usize) -> Result<(), Violation> {
        let is_parent = self.shape.places[self.sequencers[at].place].parent == Some(place);
        let replaced = tree::Input::ChildReplaced(position_of(place));
        self.tree_input(at, if is_parent { tree::Input::ParentReplaced } else { replaced })
    }

    /// The stream from one process to one of a position next to its own.
    fn link_stream(&self, from: Epoch, place: usize, to: Epoch, next: usize) -> Stream {
        if self.shape.places[place].parent == Some(next) { Stream::Up { from, to } } else { Stream::Down { from, to } }
    }

    /// All streams from a process to those next to it.
    pub(crate) fn links_of(&self, at: usize) -> impl Iterator<Item = Stream> {
        let Sequencer { place, incarnation, links, .. } = &self.sequencers[at];
        links.iter().map(|(next, to)| self.link_stream(incarnation.epoch, *place, *to, *next))
    }

    /// The sender of a stream between positions is told that some of it was lost; the other end may be, too.
    pub(crate) fn link_lost(&mut self, from: Epoch, to: Epoch) -> Result<(), Violation> {
        let (Some(sender), Some(receiver)) = (self.sequencer(from), self.sequencer(to)) else { return Ok(()) };
        let (sender_place, place) = (self.sequencers[sender].place, self.sequencers[receiver].place);
        if self.chooser.one_in(2) {
            self.relink.insert((to, sender_place));
        }
        // It sends to another one by now.
        if self.sequencers[sender].links.get(&place) != Some(&to) || self.is_bug(Bug::PositionLossNotTold) {
            return Ok(());
        }
        self.neighbour_replaced(sender, place)
    }

    // ---- what sequencers take and say ----

    pub(crate) fn deliver_up(&mut self, to: Epoch, message: Between<ToParent>) -> Result<(), Violation> {
        let Some(at) = self.sequencer(to) else { return Ok(()) };
        let from = message.from.position;
        let counts = message.to.is_none_or(|meant| meant == self.sequencers[at].incarnation);
        let input = tree::Input::Child { from, message };
        if counts { self.tree_input(at, input) } else { self.not_meant(at, input) }
    }

    pub(crate) fn deliver_down(&mut self, to: Epoch, mut message: Between<FromParent>) -> Result<(), Violation> {
        let Some(at) = self.sequencer(to) else { return Ok(()) };
        self.change_ends(at, &mut message.message);
        let process = &self.sequencers[at];
        let parent = process.counter.as_ref().and_then(|counter| counter.status().parent);
        let is_seal = matches!(message.message, FromParent::Seal { .. });
        let meant = message.to == Some(process.incarnation) && parent == Some(message.from.epoch);
        let input = tree::Input::Parent(message.clone());
        if !is_seal && !meant {
            if self.is_bug(Bug::OldParentsGrants) && matches!(message.message, FromParent::Grant { .. }) {
                self.sequencers[at].old_grants.push(message.message);
            }
            return self.not_meant(at, input);
        }
        if meant && self.is_bug(Bug::OldParentsGrants) {
            for old in self.sequencers[at].old_grants.clone() {
                let message = Between { message: old, ..message.clone() };
                self.tree_input(at, tree::Input::Parent(message))?;
            }
        }
        self.tree_input(at, input)
    }

    /// A planted fault: the end of a wide color's epoch differs from child to child.
    pub(crate) fn change_ends(&self, at: usize, message: &mut FromParent) {
        if let FromParent::Grant { color, ends: Some(end), .. } = message
            && color.is_wide()
            && at.is_multiple_of(2)
            && self.is_bug(Bug::EpochEndsDiffer)
        {
            *end = SeqNum::new(end.epoch(), end.counter() + 1);
        }
    }

    /// What is for another incarnation changes nothing (I9).
    fn not_meant(&mut self, at: usize, input: tree::Input) -> Result<(), Violation> {
        let mut outputs = Vec::new();
        let Some(counter) = &mut self.sequencers[at].counter else { return Ok(()) };
        let before = counter.status();
        counter.handle(input, &mut outputs);
        let mut after = counter.status();
        after.ignored = before.ignored;
        i09::unchanged("a sequencer", &before, &after, &outputs)
    }

    pub(crate) fn deliver_to_counter(&mut self, leaf: Epoch, shard: usize, message: ToParent) -> Result<(), Violation> {
        let Some(at) = self.sequencer(leaf) else { return Ok(()) };
        self.tree_input(at, tree::Input::Shard { from: shard_id(shard), message })
    }

    fn tree_input(&mut self, at: usize, input: tree::Input) -> Result<(), Violation> {
        let is_report = |message: &ToParent| matches!(message, ToParent::Sealed { .. });
        let reports = match &input {
            tree::Input::Child { message, .. } => is_report(&message.message),
            tree::Input::Shard { message, .. } => is_report(message),
            _ => false,
        };
        let limit = if reports { Some(self.epoch_limit()) } else { None };
        // Elsewhere than in a lone leaf what goes up may wait for more.
        let flush = !self.shape.is_tree() || self.chooser.one_in(2);
        let mut outputs = Vec::new();
        if let Some(mut counter) = self.sequencers[at].counter.take() {
            if let Some(limit) = limit.filter(|_| !counter.serves()) {
                counter = counter.with_limit(limit);
            }
            counter.handle(input, &mut outputs);
            if flush {
                counter.flush(&mut outputs);
            }
            self.sequencers[at].counter = Some(counter);
        }
        self.route_counter(at, outputs)
    }

    /// Has a sequencer send what has collected.
    pub(crate) fn flush_counter(&mut self, at: usize) -> Result<(), Violation> {
        let mut outputs = Vec::new();
        if let Some(counter) = self.sequencers.get_mut(at).and_then(|process| process.counter.as_mut()) {
            counter.flush(&mut outputs);
        }
        self.route_counter(at, outputs)
    }

    fn route_counter(&mut self, at: usize, outputs: Vec<tree::Output>) -> Result<(), Violation> {
        for output in outputs {
            let (place, from) = (self.sequencers[at].place, self.sequencers[at].incarnation.epoch);
            match output {
                tree::Output::Shard { to, mut message } => {
                    self.owner_says(place, &message)?;
                    let shard = shard_of(to);
                    if let FromParent::Grant { color, first, count, .. } = &message {
                        i01::is_given(&mut self.history, *color, Range { first: *first, count: *count })?;
                        if self.is_bug(Bug::SettledWhenGranted) && color.is_wide() {
                            let end = Range { first: *first, count: *count }.end();
                            let settled = ToParent::Settle(vec![(*color, end)]);
                            self.push(Stream::ToCounter { leaf: from, shard }, Packet::ToCounter(settled));
                        }
                    }
                    self.change_ends(shard, &mut message);
                    self.push(Stream::FromCounter { leaf: from, shard }, Packet::FromCounter(message));
                }
                tree::Output::Child { to, message } => {
                    self.owner_says(place, &message.message)?;
                    if let Some(to) = self.sequencers[at].links.get(&place_of(to)).copied() {
                        self.push(Stream::Down { from, to }, Packet::Down(message));
                    }
                }
                tree::Output::Parent(message) => {
                    let above = self.shape.places[place].parent;
                    if let Some(to) = above.and_then(|above| self.sequencers[at].links.get(&above).copied()) {
                        self.push(Stream::Up { from, to }, Packet::Up(message));
                    }
                }
                // An old process's epoch is nobody's concern.
                tree::Output::EpochFull => self.seats[place].needs_claim |= !self.is_replaced(at),
                tree::Output::Serving => {}
            }
        }
        Ok(())
    }

    fn owner_says(&mut self, place: usize, message: &FromParent) -> Result<(), Violation> {
        match message {
            FromParent::Grant { color, first, count, .. } if place_of(color.owner()) == place => {
                i01::grants(&mut self.history, *color, Range { first: *first, count: *count })
            }
            _ => Ok(()),
        }
    }
}
