//! Random trees: which position is where, which shards it has, and the colors that each shard has.

use flexlog_protocol::{Color, Position};

/// The most positions and shards of a tree, so that a script reaches all of them.
const MAX_POSITIONS: usize = 10;
const MAX_SHARDS: usize = 6;
/// The most shards of a wide color.
const MAX_WIDTH: usize = 4;

/// What a tree is made of.
pub type Seed = (u8, Vec<u8>);

#[derive(Default)]
pub struct Place {
    pub parent: Option<usize>,
    pub children: Vec<usize>,
    pub shards: Vec<usize>,
}

pub struct Shape {
    /// By position: the root is 0.
    pub places: Vec<Place>,
    /// By shard: its position, and its colors, owned by that and by each position above.
    pub shards: Vec<(usize, Vec<Color>)>,
}

impl Shape {
    pub fn new(seed: &Seed) -> Self {
        let mut shape = Self { places: Vec::new(), shards: Vec::new() };
        let mut bytes = seed.1.iter().copied().cycle();
        shape.grow(None, usize::from(seed.0 % 5) + 1, &mut || bytes.next().unwrap_or_default());
        shape.paint();
        shape
    }

    fn grow(&mut self, parent: Option<usize>, height: usize, next: &mut impl FnMut() -> u8) {
        let me = self.places.len();
        self.places.push(Place { parent, ..Place::default() });
        if let Some(parent) = parent {
            self.places[parent].children.push(me);
        }
        let byte = next();
        let fan_out = if height == 1 { 0 } else { usize::from(byte % 3) + 1 };
        // The first child always is there, and always goes down to the end.
        for child in 0..fan_out {
            if child == 0 || self.places.len() + height < MAX_POSITIONS {
                self.grow(Some(me), height - 1, next);
            }
        }
        let shards = if height == 1 { 1 + usize::from(byte % 2) } else { usize::from(byte / 64 == 3) };
        for shard in 0..shards {
            let needed = shard == 0 && height == 1;
            if needed || self.shards.len() < MAX_SHARDS {
                self.places[me].shards.push(self.shards.len());
                self.shards.push((me, Vec::new()));
            }
        }
    }

    /// The positions above a shard, its own first.
    fn above(&self, shard: usize) -> Vec<usize> {
        std::iter::successors(Some(self.shards[shard].0), |at| self.places[*at].parent).collect()
    }

    /// Each shard has a narrow color of every position above it; each position has a wide color on the shards below.
    fn paint(&mut self) {
        let owned = |owner: usize, wide: bool, serial: usize| Color::new(Position(owner as u32), wide, serial as u64);
        let mut width = vec![0; self.places.len()];
        for shard in 0..self.shards.len() {
            for owner in self.above(shard) {
                self.shards[shard].1.extend(owned(owner, false, shard + 1));
                width[owner] += 1;
                if width[owner] <= MAX_WIDTH {
                    self.shards[shard].1.extend(owned(owner, true, 100));
                }
            }
        }
    }
}
