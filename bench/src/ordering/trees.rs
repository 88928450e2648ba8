//! Trees: 1, 2 and 4 leaves below a root, each with a load process of its own; and a line of three positions, for what
//! each level adds to the latency.
//!
//! A load process stands in for a position below the leaf, so that a leaf is a process that does what a leaf's process
//! does with requests from below. **Flexible**: each load asks for a color that its leaf owns. **Total**: all loads ask
//! for the same color of the root, by way of the same leaves.

use serde_json::{Value, json};

use super::load::Slice;
use super::{EchoLoad, OrderingArgs, Turns, child_of, spread, two_processors};
use crate::Outcome;
use crate::cluster::{Cluster, Launch, Place, Transport};
use crate::measure::{self, Spread};
use crate::servers::Worker;

const LEAVES: [usize; 3] = [1, 2, 4];
/// Requests of one load outstanding at once.
const OUTSTANDING: usize = 1000;
/// Positions on the way from the load to the root, in a line.
const HEIGHTS: [usize; 3] = [1, 2, 3];

/// One kind of order in a tree.
#[derive(Default)]
struct Side {
    per_s: Vec<f64>,
    /// Numbers for each second of processor time of all sequencers together.
    per_cpu_s: Vec<f64>,
    turns: Turns,
}

impl Side {
    fn object(&self) -> Value {
        json!({
            "numbers_per_s": Spread::of(self.per_s.iter().copied()).median,
            "numbers_per_s_spread": Spread::of(self.per_s.iter().copied()),
            "numbers_per_cpu_s": Spread::of(self.per_cpu_s.iter().copied()).median,
            "p50_us": self.turns.p50().median,
        })
    }
}

pub(super) struct Trees {
    /// Leaves, flexible, total.
    by_leaves: Vec<(usize, Side, Side)>,
    /// Height, latency, echo round trips for each level.
    by_height: Vec<(usize, Turns, Spread)>,
}

/// Sequencers, and the loads below them.
struct Tree {
    loads: Vec<Worker>,
    cluster: Cluster,
}

impl Tree {
    fn start(args: &OrderingArgs, places: &[Place]) -> Outcome<Self> {
        let launch = Launch::start(&args.tmpfs, places, Transport::Tcp, false)?;
        let addresses = launch.addresses();
        let mut loads = Vec::new();
        for (at, place) in places.iter().enumerate().filter(|(_, place)| place.stand_in) {
            // Positions are counted from the root in the order of the file, which is that of the places.
            let above = places.iter().position(|other| place.parent.as_ref() == Some(&other.name));
            let above = above.ok_or("a load has a position above it")?;
            loads.push(child_of(&addresses[at], at as u32, &addresses[above], above as u32, 1)?);
        }
        let cluster = launch.ready()?;
        loads.iter_mut().try_for_each(Worker::ready)?;
        Ok(Self { loads, cluster })
    }

    fn cpu_s(&self) -> Outcome<f64> {
        let times = self.cluster.processes.iter().map(|(_, process)| process.cpu_time());
        Ok(times.collect::<Outcome<Vec<_>>>()?.iter().map(std::time::Duration::as_secs_f64).sum())
    }

    /// All loads at once, each of a color of the owner given.
    fn turn(&mut self, args: &OrderingArgs, owner: impl Fn(usize) -> u32) -> Outcome<(Vec<Slice>, f64)> {
        let before = self.cpu_s()?;
        for (at, load) in self.loads.iter_mut().enumerate() {
            load.begin(&args.ask(OUTSTANDING, owner(at)))?;
        }
        let slices = self.loads.iter_mut().map(Worker::end).collect::<Outcome<_>>()?;
        Ok((slices, self.cpu_s()? - before))
    }
}

pub(super) fn run(args: &OrderingArgs) -> Outcome<Trees> {
    let mut by_leaves = Vec::new();
    for leaves in LEAVES {
        let mut places = vec![Place::position("root", None)];
        places.extend((1..=leaves).map(|leaf| Place::position(&format!("leaf-{leaf}"), Some("root"))));
        places.extend((1..=leaves).map(|leaf| Place::stand_in(&format!("load-{leaf}"), &format!("leaf-{leaf}"))));
        let mut tree = Tree::start(args, &places)?;
        let (mut flexible, mut total) = (Side::default(), Side::default());
        for counted in 0..=args.runs() {
            let owned_by_leaf = |at: usize| at as u32 + 1;
            for (side, (slices, cpu_s)) in
                [(&mut flexible, tree.turn(args, owned_by_leaf)?), (&mut total, tree.turn(args, |_| 0)?)]
            {
                if counted > 0 {
                    let per_s: f64 = slices.iter().map(|slice| slice.per_s).sum();
                    side.per_s.push(per_s);
                    side.per_cpu_s.push(per_s * args.millis() as f64 / 1e3 / cpu_s.max(0.01));
                    slices.into_iter().for_each(|slice| side.turns.add(slice));
                }
            }
        }
        by_leaves.push((leaves, flexible, total));
    }
    Ok(Trees { by_leaves, by_height: heights(args)? })
}

fn heights(args: &OrderingArgs) -> Outcome<Vec<(usize, Turns, Spread)>> {
    let places = [
        Place::position("root", None),
        Place::position("middle", Some("root")),
        Place::position("leaf", Some("middle")),
        Place::stand_in("load", "leaf"),
    ];
    let mut tree = Tree::start(args, &places)?;
    let [one, other] = two_processors()?;
    // Every message goes to another processor, as between machines.
    tree.loads[0].process().bind(&[one])?;
    for (name, processor) in [("leaf", other), ("middle", one), ("root", other)] {
        tree.cluster.process(name)?.bind(&[processor])?;
    }
    let mut echo = EchoLoad::start()?;
    let mut found: Vec<_> = HEIGHTS.into_iter().map(|height| (height, Turns::default(), Vec::new())).collect();
    for counted in 0..=args.runs() {
        for (height, turns, levels) in &mut found {
            let baseline = echo.turn(args.ask(1, 0))?;
            tree.loads[0].begin(&args.ask(1, (HEIGHTS.len() - *height) as u32))?;
            let slice: Slice = tree.loads[0].end()?;
            if counted > 0 {
                turns.add(slice);
                levels.push(slice.p50 / baseline.p50 / *height as f64);
            }
        }
    }
    Ok(found.into_iter().map(|(height, turns, levels)| (height, turns, Spread::of(levels))).collect())
}

impl Trees {
    pub(super) fn object(&self) -> Value {
        let leaves: serde_json::Map<String, Value> = self
            .by_leaves
            .iter()
            .map(|(leaves, flexible, total)| {
                let both = json!({ "flexible": flexible.object(), "total": total.object() });
                (format!("leaves_{leaves}"), both)
            })
            .collect();
        let heights: serde_json::Map<String, Value> = self
            .by_height
            .iter()
            .map(|(height, turns, level)| {
                let found = json!({ "p50_us": turns.p50().median, "echoes_a_level": level.median, "spread": level });
                (format!("height_{height}"), found)
            })
            .collect();
        json!({ "by_leaves": leaves, "by_height": heights })
    }

    pub(super) fn tables(&self) {
        let mut rows = Vec::new();
        for (leaves, flexible, total) in &self.by_leaves {
            for (name, side) in [("flexible", flexible), ("total", total)] {
                rows.push(vec![
                    leaves.to_string(),
                    name.to_owned(),
                    spread(Spread::of(side.per_s.iter().copied()), 1e3, 0),
                    spread(Spread::of(side.per_cpu_s.iter().copied()), 1e3, 0),
                    spread(side.turns.p50(), 1e3, 1),
                ]);
            }
        }
        measure::table(
            &["leaves", "order", "thousand numbers/s", "thousand for a CPU second of sequencers", "p50 ms"],
            &rows,
        );
        let rows: Vec<_> = self
            .by_height
            .iter()
            .map(|(height, turns, level)| vec![height.to_string(), spread(turns.p50(), 1.0, 0), spread(*level, 1.0, 2)])
            .collect();
        measure::table(&["levels up to the owner", "p50 µs, one outstanding", "TCP echoes for each level"], &rows);
    }
}
