//! Links between processes, as the node's are: numbered streams that keep their order and lose nothing while both ends
//! live and remember; else whoever sends is told that something was lost, and nothing that it sends before it knows
//! arrives. And partitions, which delay streams, or lose them.

use flexlog_protocol::Epoch;
use flexlog_replica::Input;
use flexlog_sequencer::Input as LeafInput;

use crate::bug::Bug;
use crate::invariants::Violation;
use crate::machine::replica_id;
use crate::net::{Cut, Sites, Stream, leaf_site, replica_site};
use crate::shape::position_of;
use crate::world::{Action, World};

impl World {
    /// Whether whoever takes from a stream does so now.
    pub(crate) fn takes(&self, stream: Stream) -> bool {
        if let Some(process) = stream.process().and_then(|epoch| self.sequencer(epoch)) {
            return self.sequencers[process].still_until <= self.history.event;
        }
        let Some(machine) = stream.receiver().map(|member| &self.machines[member]) else { return true };
        let there = machine.up().is_some() || matches!(stream, Stream::Request { .. });
        there && machine.still_until <= self.history.event
    }

    /// What processes may be told of each other.
    pub(crate) fn link_options(&self, options: &mut Vec<(Action, u64)>) {
        let event = self.history.event;
        let up = |member: usize| self.machines[member].up().is_some() && self.machines[member].still_until <= event;
        let open = |stream: Stream| !self.net.is_cut(stream, event);
        for stream in self.net.lost().filter(|stream| open(*stream)) {
            let both = match stream {
                Stream::ToMember { leaf, member } => self.sequencer(leaf).is_some() && up(member),
                Stream::ToLeaf { member, leaf } => self.sequencer(leaf).is_some() && up(member),
                Stream::Peer { from, to } => up(from) && up(to),
                Stream::Up { from, to } | Stream::Down { from, to } => {
                    self.sequencer(from).is_some() && self.sequencer(to).is_some()
                }
                _ => false,
            };
            if both {
                options.push((Action::Notice(stream), 4));
            }
        }
        for (leaf, member) in &self.reach {
            let stream = Stream::ToMember { leaf: *leaf, member: *member };
            if up(*member) && open(stream) && !self.net.is_lost(stream) {
                options.push((Action::Reach(*leaf, *member), 4));
            }
        }
        for (epoch, place) in &self.relink {
            let next = self.leader(*place).map(|at| self.sequencers[at].incarnation.epoch);
            let both = next.is_some_and(|next| !self.net.is_apart(*epoch, next, event));
            if both && self.takes(Stream::Up { from: *epoch, to: *epoch }) {
                options.push((Action::Relink(*epoch, *place), 4));
            }
        }
        options.extend(self.replaced.iter().filter(|at| up(**at)).map(|at| (Action::LeafReplaced(*at), 4)));
    }

    /// The sender of a stream is told that something of it was lost.
    pub(crate) fn notice(&mut self, stream: Stream) -> Result<(), Violation> {
        self.net.found(stream);
        self.counts.lost_streams += 1;
        match stream {
            Stream::ToMember { leaf, member } => {
                let Some(at) = self.sequencer(leaf).filter(|_| !self.is_bug(Bug::LossNotTold)) else { return Ok(()) };
                self.leaf_input(at, self.history.home(member), LeafInput::Lost(replica_id(member)))?;
                self.reached(leaf, member)
            }
            Stream::ToLeaf { member, .. } => self.leaf_replaced(member),
            Stream::Up { from, to } | Stream::Down { from, to } => self.link_lost(from, to),
            Stream::Peer { from, to } => self.member_input(from, Input::PeerReplaced(replica_id(to))),
            _ => Ok(()),
        }
    }

    /// A replica is told that another process leads its shard, or that what it said is lost.
    pub(crate) fn leaf_replaced(&mut self, member: usize) -> Result<(), Violation> {
        let place = self.shape.shards[self.history.home(member)].place;
        self.member_input(member, Input::LeafReplaced(position_of(place)))
    }

    /// A leaf has a connection to a replica.
    pub(crate) fn reached(&mut self, leaf: Epoch, member: usize) -> Result<(), Violation> {
        self.reach.remove(&(leaf, member));
        match self.sequencer(leaf) {
            Some(at) => self.leaf_input(at, self.history.home(member), LeafInput::Present(replica_id(member))),
            None => Ok(()),
        }
    }

    /// A leaf is told of all replicas that it has a connection to.
    pub(crate) fn tell_reached(&mut self, at: usize) -> Result<(), Violation> {
        let leaf = self.sequencers[at].incarnation.epoch;
        for member in self.shape.replicas_of(self.sequencers[at].place) {
            let stream = Stream::ToMember { leaf, member };
            let cut = self.net.is_cut(stream, self.history.event) || self.net.is_lost(stream);
            if self.machines[member].up().is_some() && !cut {
                self.reached(leaf, member)?;
            } else {
                self.reach.insert((leaf, member));
            }
        }
        Ok(())
    }

    /// The processes that lead a replica's shard, or believe so.
    fn leaves_of(&self, member: usize) -> Vec<Epoch> {
        let place = self.shape.shards[self.history.home(member)].place;
        let processes = self.sequencers.iter().filter(|process| process.place == place);
        processes.map(|process| process.incarnation.epoch).collect()
    }

    /// The other replicas of its shard.
    fn peers_of(&self, member: usize) -> impl Iterator<Item = usize> + use<> {
        self.shape.shards[self.history.home(member)].replicas.clone().filter(move |other| *other != member)
    }

    /// A replica's process has started: it has no streams from before.
    pub(crate) fn comes_up(&mut self, member: usize) {
        let leaves = self.leaves_of(member).into_iter().map(|leaf| (leaf, member));
        self.reach.extend(leaves);
    }

    /// A replica's process is gone: what was sent to it is lost, of what it sent some may still arrive.
    pub(crate) fn lose_process(&mut self, at: usize) {
        self.replaced.remove(&at);
        self.net.drop_streams(|stream| match stream {
            Stream::Request { member, .. } | Stream::Store { member } | Stream::Fetch { member } => member == at,
            _ => false,
        });
        let streams: Vec<Stream> = self.net.streams().chain(self.net.lost()).collect();
        for stream in streams {
            match stream {
                Stream::ToMember { member, .. } if member == at => self.net.cut(stream, 0),
                Stream::ToLeaf { member, .. } | Stream::Answer { member, .. } if member == at => self.in_flight(stream),
                Stream::Peer { from, .. } if from == at => self.in_flight(stream),
                _ => {}
            }
        }
        for leaf in self.leaves_of(at) {
            self.net.lose(Stream::ToMember { leaf, member: at }, 0);
        }
        for from in self.peers_of(at) {
            self.net.lose(Stream::Peer { from, to: at }, 0);
        }
    }

    /// The sender is gone; the one who comes next has a stream of its own.
    pub(crate) fn in_flight(&mut self, stream: Stream) {
        let keep = self.chooser.below(self.net.len(stream) as u64 + 1) as usize;
        self.net.cut(stream, keep);
        self.net.found(stream);
    }

    /// Every stream between two processes of the cluster.
    pub(crate) fn links(&self) -> Vec<Stream> {
        let mut links = Vec::new();
        for member in 0..self.machines.len() {
            for leaf in self.leaves_of(member) {
                links.extend([Stream::ToMember { leaf, member }, Stream::ToLeaf { member, leaf }]);
            }
            links.extend(self.peers_of(member).map(|to| Stream::Peer { from: member, to }));
        }
        (0..self.sequencers.len()).for_each(|at| links.extend(self.links_of(at)));
        links
    }

    /// Some part of what is under way in one stream is lost.
    pub(crate) fn lose_stream(&mut self) {
        let links: Vec<_> = self.links().into_iter().map(|stream| (stream, 1)).collect();
        if let Some(stream) = self.chooser.weighted(&links) {
            let keep = self.chooser.below(self.net.len(stream) as u64 + 1) as usize;
            self.net.lose(stream, keep);
        }
    }

    /// The processes of a position and of all below it.
    pub(crate) fn sites_below(&self, place: usize) -> Sites {
        let is_below = |other: usize| self.shape.above(other).any(|at| at == place);
        let processes = self.sequencers.iter().filter(|process| is_below(process.place));
        let replicas = (0..self.machines.len()).filter(|at| is_below(self.shape.shards[self.history.home(*at)].place));
        let leaves = processes.map(|process| leaf_site(process.incarnation.epoch));
        leaves.chain(replicas.map(replica_site)).fold(0, |all, one| all | one)
    }

    /// Some processes are cut off from the others, in one direction or both.
    pub(crate) fn partition(&mut self) {
        let replicas: Sites = (0..self.machines.len()).map(replica_site).sum();
        let leaves = self.sequencers.iter().map(|sequencer| leaf_site(sequencer.incarnation.epoch));
        let leaves: Sites = leaves.fold(0, |all, leaf| all | leaf);
        let one = replica_site(self.chooser.below(self.machines.len() as u64) as usize);
        // Any position, with some of what is near it.
        let at = if self.sequencers.len() > 1 { self.chooser.below(self.sequencers.len() as u64) as usize } else { 0 };
        let process = self.sequencers.get(at);
        let site = process.map(|process| leaf_site(process.incarnation.epoch));
        let below = process.map_or(0, |process| self.sites_below(process.place));
        let side = match self.chooser.below(if self.shape.is_tree() { 8 } else { 6 }) {
            0..=2 => one,
            3 => site.unwrap_or(one),
            4 => one | site.unwrap_or(one),
            5 => self.chooser.draw() & replicas,
            6 => below,
            _ => self.chooser.draw() & (replicas | leaves),
        };
        let (from, to) = (side, !side);
        let until = self.history.event + self.chooser.between(20, 900);
        let cuts = [Cut { from, to, until }, Cut { from: to, to: from, until }];
        let cuts = match self.chooser.below(4) {
            0 => &cuts[..1],
            1 => &cuts[1..],
            _ => &cuts[..],
        };
        self.net.cuts.extend(cuts);
        self.counts.partitions += 1;
        if (replicas | leaves) & side != 0 && self.chooser.one_in(2) {
            let event = self.history.event;
            let gone: Vec<Stream> = self.links().into_iter().filter(|stream| self.net.is_cut(*stream, event)).collect();
            for stream in gone {
                if self.chooser.one_in(2) {
                    let keep = self.chooser.below(self.net.len(stream) as u64 + 1) as usize;
                    self.net.lose(stream, keep);
                }
            }
        }
    }

    /// Partitions that are over: there are connections again.
    pub(crate) fn end_cuts(&mut self) {
        let before = self.net.cuts.len();
        let event = self.history.event;
        self.net.cuts.retain(|cut| cut.until > event);
        if self.net.cuts.len() < before {
            for member in 0..self.machines.len() {
                self.comes_up(member);
            }
        }
    }
}
