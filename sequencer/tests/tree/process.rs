//! One process of the tree: the cores of one position, all of one incarnation, and what they have under way among each
//! other. What is said between them arrives in order from each to each, and otherwise whenever it likes.

use std::collections::{BTreeMap, VecDeque};

use flexlog_protocol::peer::{Child, FromParent, ToParent};
use flexlog_protocol::{Epoch, Incarnation, Position, ReplicaId, ShardId, View, ViewNumber};
use flexlog_sequencer::{Leaf, Sequencer};
use uuid::Uuid;

use crate::shape::Shape;

pub struct Process {
    pub position: usize,
    pub me: Incarnation,
    pub sequencer: Sequencer,
    pub leaves: BTreeMap<usize, Leaf>,
    pub to_leaf: BTreeMap<usize, VecDeque<FromParent>>,
    pub to_tree: BTreeMap<usize, VecDeque<ToParent>>,
    /// The processes that it takes for its neighbours, by their position.
    pub links: BTreeMap<usize, usize>,
    /// Children that it will notice to be replaced.
    pub replaced: VecDeque<usize>,
    pub alive: bool,
}

pub fn incarnation(position: usize, epoch: u32) -> Incarnation {
    Incarnation { position: Position(position as u32), epoch: Epoch(epoch), uuid: Uuid::from_u128(epoch.into()) }
}

impl Process {
    pub fn new(shape: &Shape, me: Incarnation, limit: u32, members: usize) -> Self {
        let position = me.position.0 as usize;
        let place = &shape.places[position];
        let positions = place.children.iter().map(|child| Child::Position(Position(*child as u32)));
        let shards = place.shards.iter().map(|shard| Child::Shard(ShardId(*shard as u32)));
        let children: Vec<Child> = positions.chain(shards).collect();
        let view = View { number: ViewNumber(1), members: (0..members as u32).map(ReplicaId).collect() };
        let leaf = |shard: &usize| (*shard, Leaf::new(me, ShardId(*shard as u32), view.clone()));
        Self {
            position,
            me,
            sequencer: Sequencer::new(me, place.parent.is_none(), &children).with_limit(limit),
            leaves: place.shards.iter().map(leaf).collect(),
            to_leaf: BTreeMap::new(),
            to_tree: BTreeMap::new(),
            links: BTreeMap::new(),
            replaced: VecDeque::new(),
            alive: true,
        }
    }

    /// The same process holds the position anew: fresh cores, and the streams to others go on.
    pub fn lead(&mut self, fresh: Self) {
        let links = std::mem::take(&mut self.links);
        *self = Self { links, ..fresh };
    }
}
