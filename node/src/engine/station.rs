//! A position of the tree as one process holds it: its sequencer, and the leaves of its shards, all of one incarnation.

use flexlog_protocol::api::PositionStatus;
use flexlog_protocol::peer::Child;
use flexlog_protocol::{Epoch, Incarnation, Position, ReplicaId, ShardId, Time, View};
use flexlog_sequencer::{Leaf, Sequencer, Status, tree};
use flexlog_tree_config::operations::Tree;
use flexlog_tree_config::record::{PositionRecord, ShardRecord};

/// What is fixed of a position while its process lives.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) position: Position,
    /// `None` at the root.
    pub(crate) parent: Option<Position>,
    /// The positions right below.
    pub(crate) children: Vec<Position>,
    /// Its shards, as metadata has them.
    pub(crate) shards: Vec<Led>,
    /// How long a member that owes an answer may make no progress, in microseconds.
    pub(crate) replica_timeout: u64,
    /// As in [`Sequencer::with_limit`].
    pub(crate) numbers_per_epoch: u32,
}

/// A shard that a position leads.
#[derive(Clone, Debug)]
pub(crate) struct Led {
    pub(crate) shard: ShardId,
    /// The view decided last.
    pub(crate) view: View,
    /// The fewest members that it may have.
    pub(crate) min_view: u32,
    /// Every replica that holds the shard or is to hold it.
    pub(crate) replicas: Vec<ReplicaId>,
}

/// What the metadata had once a position was claimed: nobody else changes the first any more.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub(crate) shards: Vec<Led>,
    /// The epochs of those who hold the positions right above and below.
    pub(crate) neighbours: Vec<(Position, Epoch)>,
}

impl Claimed {
    /// Of a position in this tree, which was read after the claim.
    pub(crate) fn by(tree: &Tree, position: Position) -> Self {
        let parent = tree.position(position).and_then(|record| record.parent);
        let near = |other: &&PositionRecord| Some(other.position) == parent || other.parent == Some(position);
        let epoch = |other: &PositionRecord| Some((other.position, other.holder.as_ref()?.epoch));
        let neighbours = tree.positions.iter().filter(near).filter_map(epoch).collect();
        Self { shards: Led::by(tree, position), neighbours }
    }
}

impl Led {
    /// The shards that `position` leads.
    pub(crate) fn by(tree: &Tree, position: Position) -> Vec<Self> {
        let led = |record: &ShardRecord| Self {
            shard: record.shard,
            view: record.view.clone(),
            min_view: record.min_view,
            replicas: tree.replicas_of(record.shard).map(|replica| replica.replica).collect(),
        };
        tree.led_by(position).map(led).collect()
    }
}

pub(super) struct Station {
    place: Place,
    held: Option<Held>,
    /// Numbers that incarnations before granted.
    granted: u64,
}

/// The cores of one incarnation.
struct Held {
    me: Incarnation,
    sequencer: Sequencer,
    leaves: Vec<(ShardId, Leaf)>,
}

impl Station {
    pub(super) fn new(place: Place) -> Self {
        Self { place, held: None, granted: 0 }
    }

    /// Starts the sequencer of a new incarnation, in place of all cores before; its leaves are to be started next.
    pub(super) fn lead(&mut self, me: Incarnation, claimed: Claimed, out: &mut Vec<tree::Output>) {
        self.place.shards = claimed.shards;
        self.granted += self.held.as_ref().map_or(0, |held| held.sequencer.status().granted);
        let Place { parent, children, shards, numbers_per_epoch, replica_timeout, .. } = &self.place;
        let below = children.iter().copied().map(Child::Position);
        let below: Vec<Child> = below.chain(shards.iter().map(|led| Child::Shard(led.shard))).collect();
        let mut sequencer = Sequencer::new(me, parent.is_none(), &below)
            .with_limit(*numbers_per_epoch)
            .with_neighbours(claimed.neighbours);
        sequencer.start(out);
        let leaf = |led: &Led| {
            let leaf = Leaf::new(me, led.shard, led.view.clone());
            (led.shard, leaf.with_views(led.min_view, *replica_timeout))
        };
        let leaves = shards.iter().map(leaf).collect();
        self.held = Some(Held { me, sequencer, leaves });
    }

    /// Drops the cores of the incarnation that held it.
    pub(super) fn depose(&mut self) {
        if let Some(held) = self.held.take() {
            self.granted += held.sequencer.status().granted;
        }
    }

    pub(super) fn position(&self) -> Position {
        self.place.position
    }

    pub(super) fn parent(&self) -> Option<Position> {
        self.place.parent
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = ShardId> + use<'_> {
        self.place.shards.iter().map(|led| led.shard)
    }

    /// The view in which a shard is led.
    pub(super) fn view(&self, shard: ShardId) -> Option<&View> {
        let led = self.held.iter().flat_map(|held| &held.leaves).find(|(other, _)| *other == shard);
        let known = || self.place.shards.iter().find(|led| led.shard == shard).map(|led| &led.view);
        led.map(|(_, leaf)| leaf.view()).or_else(known)
    }

    /// The shard of its own that a replica holds.
    pub(super) fn shard_of(&self, replica: ReplicaId) -> Option<ShardId> {
        self.place.shards.iter().find(|led| led.replicas.contains(&replica)).map(|led| led.shard)
    }

    /// The shard has these replicas.
    pub(super) fn set_replicas(&mut self, shard: ShardId, replicas: Vec<ReplicaId>) {
        if let Some(led) = self.place.shards.iter_mut().find(|led| led.shard == shard) {
            led.replicas = replicas;
        }
    }

    /// The incarnation that holds it.
    pub(super) fn incarnation(&self) -> Option<Incarnation> {
        self.held.as_ref().map(|held| held.me)
    }

    pub(super) fn sequencer(&mut self) -> Option<&mut Sequencer> {
        self.held.as_mut().map(|held| &mut held.sequencer)
    }

    pub(super) fn leaf(&mut self, shard: ShardId) -> Option<&mut Leaf> {
        self.held.as_mut()?.leaves.iter_mut().find(|(other, _)| *other == shard).map(|(_, leaf)| leaf)
    }

    pub(super) fn leaf_at(&mut self, at: usize) -> Option<(ShardId, &mut Leaf)> {
        self.held.as_mut()?.leaves.get_mut(at).map(|(shard, leaf)| (*shard, leaf))
    }

    pub(super) fn leaf_status(&self, shard: ShardId) -> Option<Status> {
        self.held.as_ref()?.leaves.iter().find(|(other, _)| *other == shard).map(|(_, leaf)| leaf.status())
    }

    /// For people. The name is the caller's to know.
    pub(super) fn status(&self) -> PositionStatus {
        let position = self.place.position;
        let Some(held) = &self.held else {
            return PositionStatus { position, granted: self.granted, ..PositionStatus::default() };
        };
        let tree::Status { epoch, awaited, parent, colors, granted, under_way, ignored } = held.sequencer.status();
        PositionStatus {
            position,
            name: String::new(),
            epoch,
            serving: self.serves(),
            awaited,
            parent_epoch: parent,
            colors: colors as u64,
            granted: self.granted + granted,
            under_way: under_way as u64,
            ignored,
            standby: false,
        }
    }

    /// Whether all below has reported, and every shard is led.
    pub(super) fn serves(&self) -> bool {
        self.held.as_ref().is_some_and(|held| {
            held.sequencer.serves() && held.leaves.iter().all(|(_, leaf)| leaf.status().phase == "serving")
        })
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.held.iter().flat_map(|held| &held.leaves).filter_map(|(_, leaf)| leaf.next_deadline()).min()
    }
}
