//! The whole cluster under a seeded scheduler, on devices that lose what was not fenced.
//!
//! [`run`] runs one seed: the cores that production runs, over simulated media, with every message, fence, tick and crash
//! an event of its own in an order drawn from the seed; then without faults, until everything is at rest. On the way and
//! at the end the invariants are checked, each in a file of its own. The same seed is the same run, to the last event:
//! [`Report::trace`] says so.
//!
//! It relies on the cores having no clock, chance, or threads of their own. Faults are only those that the cluster must
//! survive, so every violation is a defect; [`Bug`] plants some on purpose, to see that they are found.
//!
//! The shard's view changes: members that are away or slow are dropped by their leaf, replicas that are within reach are
//! taken in. Processes are cut off from each other, and streams between them lost, as the node's links would have it.

mod bug;
mod client;
mod faults;
mod finale;
mod history;
mod invariants;
mod leading;
mod ledger;
mod links;
mod machine;
mod metadata;
mod net;
mod positions;
mod readers;
mod rot;
mod route;
mod scenario;
mod schedule;
mod shape;
mod shrink;
mod stores;
mod turns;
mod world;

pub use bug::Bug;
pub use invariants::{Invariant, Violation};
pub use scenario::Scenario;
pub use schedule::Chooser;
pub use shrink::shrink;

use world::World;

/// What is the same for all runs of a series.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Members of the first view of a lone shard; in a tree that is drawn. Some runs have replicas besides, which are taken
    /// in.
    pub members: usize,
    /// Events before the faults end.
    pub events: u64,
    /// Whether there are faults.
    pub faults: bool,
    /// Whether views change; else the shard keeps its first one, whatever happens.
    pub views: bool,
    /// Whether the tree is drawn: several positions and shards, wide colors. Else one leaf leads one shard.
    pub tree: bool,
    /// Keeps the last events in words, and hashes all of them: slower.
    pub record: bool,
    /// A planted fault.
    pub bug: Option<Bug>,
    /// Faults that do not happen: the first that is drawn is bit 0.
    pub left_out: u128,
    /// Plays this script, on its own cluster, in the place of `events` events with drawn faults.
    pub scenario: Option<&'static Scenario>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            members: 3,
            events: 3000,
            faults: true,
            views: true,
            tree: true,
            record: false,
            bug: None,
            left_out: 0,
            scenario: None,
        }
    }
}

/// How a run went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// A hash over everything that was drawn and done.
    pub trace: u64,
    /// Events.
    pub events: u64,
    /// Appends that were acknowledged.
    pub acknowledged: u64,
    /// Entries that were committed.
    pub committed: u64,
    /// What else happened.
    pub counts: Counts,
    /// The faults that happened.
    pub faults: Vec<Happened>,
    /// What was broken; the run ended there.
    pub violation: Option<Violation>,
    /// The last events in words, where they are recorded.
    pub last_events: Vec<String>,
}

/// A fault that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Happened {
    /// Which of those that were drawn it was, from 0 on.
    pub number: u32,
    /// At which event.
    pub event: u64,
    /// In words.
    pub what: String,
}

/// What happened in a run, and how often.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Faults of any kind.
    pub faults: u64,
    /// Crashes of some or all processes.
    pub crashes: u64,
    /// Partitions.
    pub partitions: u64,
    /// Streams that were lost, with one end or by themselves, and whose sender was told so.
    pub lost_streams: u64,
    /// Older images that were put in the place of a store, and refused.
    pub refused_images: u64,
    /// How often records moved to an SSD file.
    pub moves: u64,
    /// Views that came into force in metadata.
    pub views: u64,
    /// Replicas that were taken into the view.
    pub added: u64,
    /// Shards that lost two replicas in turns after everything else, and went on.
    pub lost_in_turns: u64,
    /// Writes of copied records.
    pub copies: u64,
    /// Logs that were cut back to what is the shard's.
    pub truncations: u64,
    /// Records of which bits rotted on some medium.
    pub rotten: u64,
    /// Records that were written again for that.
    pub mended: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.faults += other.faults;
        self.crashes += other.crashes;
        self.partitions += other.partitions;
        self.lost_streams += other.lost_streams;
        self.lost_in_turns += other.lost_in_turns;
        self.refused_images += other.refused_images;
        self.moves += other.moves;
        self.views += other.views;
        self.added += other.added;
        self.copies += other.copies;
        self.truncations += other.truncations;
        self.rotten += other.rotten;
        self.mended += other.mended;
    }
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, config: Config) -> Report {
    let mut world = World::new(seed, config);
    let violation = world.run().err();
    world.report(violation)
}
