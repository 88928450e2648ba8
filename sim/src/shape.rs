//! The tree of a run: which positions there are, which shards each leads with which replicas, and which colors are where.
//!
//! It is drawn once and stays. The root is place 0; a place's position, and a shard, are named by their index. Trees are
//! small on purpose: what goes wrong between three levels goes wrong between more, and a small tree gets around more often.

use std::ops::Range;

use flexlog_protocol::{Color, Position, ShardId};

use crate::faults::Kind;
use crate::schedule::Chooser;

/// The most shards and replicas of a tree.
const MAX_SHARDS: usize = 3;
const MAX_REPLICAS: usize = 8;

/// A position.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) parent: Option<usize>,
    pub(crate) children: Vec<usize>,
    pub(crate) shards: Vec<usize>,
}

/// A shard.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) place: usize,
    /// Its replicas, members and others.
    pub(crate) replicas: Range<usize>,
    /// So many of the first of them are in the first view.
    pub(crate) members: usize,
    pub(crate) min_view: u32,
    pub(crate) colors: Vec<Color>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shape {
    pub(crate) places: Vec<Place>,
    pub(crate) shards: Vec<Shard>,
    /// All colors, each with the shards that it is on.
    pub(crate) colors: Vec<(Color, Vec<usize>)>,
}

/// The name of a place.
pub(crate) fn position_of(place: usize) -> Position {
    Position(place as u32)
}

/// The place of a position.
pub(crate) fn place_of(position: Position) -> usize {
    position.0 as usize
}

/// The name of a shard.
pub(crate) fn shard_id(shard: usize) -> ShardId {
    ShardId(shard as u32 + 1)
}

/// Which shard this is.
pub(crate) fn shard_of(id: ShardId) -> usize {
    id.0 as usize - 1
}

impl Shape {
    /// One leaf, one shard.
    pub(crate) fn one(members: usize, kind: &Kind) -> Self {
        let mut shape = Self::default();
        let root = shape.add_place(None);
        shape.add_shard(root, members, kind.outside, kind);
        for serial in 1..=kind.colors {
            shape.add_color(root, false, serial, vec![0]);
        }
        shape
    }

    /// A tree by chance.
    pub(crate) fn draw(chooser: &mut Chooser, kind: &Kind) -> Self {
        let mut shape = Self::default();
        let root = shape.add_place(None);
        let leaves: Vec<usize> = match chooser.below(6) {
            // A root that leads its own shards.
            0 => vec![root],
            1 => vec![shape.add_place(Some(root))],
            2 | 3 => (0..2).map(|_| shape.add_place(Some(root))).collect(),
            // A root over an inner position over leaves.
            _ => {
                let inner = shape.add_place(Some(root));
                let mut leaves: Vec<_> = (0..chooser.between(1, 2)).map(|_| shape.add_place(Some(inner))).collect();
                // A position that has both shards and children, or a leaf beside the inner position.
                match chooser.below(4) {
                    0 => leaves.push(inner),
                    1 => leaves.push(shape.add_place(Some(root))),
                    _ => {}
                }
                leaves
            }
        };
        for (nth, leaf) in leaves.iter().enumerate() {
            let left = MAX_SHARDS.saturating_sub(shape.shards.len() + leaves.len() - nth);
            let shards = 1 + usize::from(left > 0 && (leaves.len() == 1 || chooser.one_in(3)));
            for _ in 0..shards {
                let members = if chooser.one_in(3) { 3 } else { 2 };
                let replicas = shape.replicas();
                let room = MAX_REPLICAS.saturating_sub(replicas + members);
                let outside = if chooser.one_in(3) { kind.outside.min(room) } else { 0 };
                shape.add_shard(*leaf, members, outside, kind);
            }
        }
        shape.paint(chooser);
        shape
    }

    pub(crate) fn add_place(&mut self, parent: Option<usize>) -> usize {
        let place = self.places.len();
        self.places.push(Place { parent, ..Place::default() });
        if let Some(parent) = parent {
            self.places[parent].children.push(place);
        }
        place
    }

    pub(crate) fn add_shard(&mut self, place: usize, members: usize, outside: usize, kind: &Kind) {
        let first = self.replicas();
        let min_view = if kind.fixed { members as u32 } else { kind.min_view.min(members as u32) };
        self.places[place].shards.push(self.shards.len());
        let replicas = first..first + members + outside;
        self.shards.push(Shard { place, replicas, members, min_view, colors: Vec::new() });
    }

    pub(crate) fn add_color(&mut self, owner: usize, wide: bool, serial: u64, shards: Vec<usize>) {
        if let Some(color) = Color::new(position_of(owner), wide, serial) {
            shards.iter().for_each(|shard| self.shards[*shard].colors.push(color));
            self.colors.push((color, shards));
        }
    }

    /// Each shard has at least one color; most positions own some of those below, and some of them are wide.
    fn paint(&mut self, chooser: &mut Chooser) {
        let mut serial = 0;
        let mut next = || {
            serial += 1;
            serial
        };
        for owner in 0..self.places.len() {
            let below: Vec<usize> = (0..self.shards.len()).filter(|shard| self.is_below(*shard, owner)).collect();
            if below.len() > 1 && !chooser.one_in(4) {
                let without = chooser.below(below.len() as u64) as usize;
                let some = below.iter().copied().filter(|shard| below.len() == 2 || *shard != below[without]);
                let on = if chooser.one_in(2) { below.clone() } else { some.collect() };
                self.add_color(owner, true, next(), on);
            }
            if !chooser.one_in(3) {
                let on = chooser.pick(&below);
                self.add_color(owner, false, next(), vec![on]);
            }
        }
        for shard in 0..self.shards.len() {
            if self.shards[shard].colors.is_empty() {
                let above: Vec<usize> = self.above(self.shards[shard].place).collect();
                self.add_color(chooser.pick(&above), false, next(), vec![shard]);
            }
        }
    }

    /// A place and those above it.
    pub(crate) fn above(&self, place: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(place), |at| self.places[*at].parent)
    }

    /// Whether `place` is on the way from a shard to the root.
    fn is_below(&self, shard: usize, place: usize) -> bool {
        self.above(self.shards[shard].place).any(|at| at == place)
    }

    /// The places right above and below.
    pub(crate) fn next_to(&self, place: usize) -> impl Iterator<Item = usize> {
        self.places[place].children.iter().copied().chain(self.places[place].parent)
    }

    /// How many replicas there are.
    pub(crate) fn replicas(&self) -> usize {
        self.shards.last().map_or(0, |shard| shard.replicas.end)
    }

    /// The shard of a replica.
    pub(crate) fn shard_at(&self, member: usize) -> usize {
        self.shards.iter().position(|shard| shard.replicas.contains(&member)).unwrap_or_default()
    }

    /// The replicas of the shards of a place.
    pub(crate) fn replicas_of(&self, place: usize) -> Vec<usize> {
        self.places[place].shards.iter().flat_map(|shard| self.shards[*shard].replicas.clone()).collect()
    }

    /// Whether there is more than one position with one shard.
    pub(crate) fn is_tree(&self) -> bool {
        self.places.len() > 1 || self.shards.len() > 1
    }
}
