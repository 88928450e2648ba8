//! Every crash of every short workload: at each write, fence and file operation, what power cuts can leave is made and
//! opened, and must be what the model says (I10).
//!
//! A workload is up to three operations on a small store that has sealed segments. Images of its media are taken after
//! every step. Of each image all subsets of the lines, pages and names that are not durable are tried where there are at
//! most ten such choices, else a sample of them, torn ones within lines among them. Some of what recovers is crashed again
//! while it recovers; some goes on with another append and is crashed behind that.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use flexlog_protocol::media::{LogStore, ReadError};
use flexlog_protocol::{Color, Record, SeqNum};

use crate::common::{Expected, World, Write, check, options, recover};
use crate::device::{Fences, SimDevice, SimMedia, SplitMix};
use crate::planted::{self, Bug};
use crate::ssd::{PlantedBug, SimFolder};
use crate::{Options, Store};

/// One operation of a workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Append,
    Batch,
    Assign,
    Trim,
    Hole,
    Seal,
    NewView,
    Checkpoint,
    Move,
    Copy,
    Truncate,
    /// A record rots and is written again.
    Repair,
}

const OPS: [Op; 12] = [
    Op::Append,
    Op::Batch,
    Op::Assign,
    Op::Trim,
    Op::Hole,
    Op::Seal,
    Op::NewView,
    Op::Checkpoint,
    Op::Move,
    Op::Copy,
    Op::Truncate,
    Op::Repair,
];

/// Bytes of an append: as the first entry of a segment it ends with a line, so that nothing is padded behind it.
const APPENDED: usize = 71;
/// Choices up to which all subsets are tried.
const ALL_UPTO: usize = 10;
/// Images tried where there are more.
const SAMPLED: u64 = 64;

/// A mistake of the driver or of the media, planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Planted {
    /// The medium's fences do nothing.
    MissingFence,
    /// What was written counts as durable when its fence is asked for, not when it is done.
    ReportBeforeFence,
    ManifestBeforeData,
    Store(Bug),
}

/// The media at some step, and how many writes were reported durable then.
struct Shot {
    media: SimMedia,
    folder: SimFolder,
    fenced: usize,
}

/// Takes a shot at every step of a world.
#[derive(Clone, Default)]
struct Camera {
    shots: Arc<Mutex<Vec<Shot>>>,
    fenced: Arc<AtomicUsize>,
}

impl Camera {
    fn watch(&self, media: &SimMedia, folder: &SimFolder) {
        let take = |camera: Self, media: SimMedia, folder: SimFolder| move || camera.take(&media, &folder);
        media.on_step(Box::new(take(self.clone(), media.clone(), folder.clone())));
        folder.on_step(Box::new(take(self.clone(), media.clone(), folder.clone())));
    }

    /// Ends it: the media hold the camera, and that holds the media.
    fn unwatch(media: &SimMedia, folder: &SimFolder) {
        media.on_step(Box::new(|| {}));
        folder.on_step(Box::new(|| {}));
    }

    fn take(&self, media: &SimMedia, folder: &SimFolder) {
        let fenced = self.fenced.load(Ordering::Relaxed);
        let shot = Shot { media: media.snapshot(), folder: folder.snapshot(), fenced };
        self.shots.lock().unwrap().push(shot);
    }

    fn roll(&self) -> Vec<Shot> {
        std::mem::take(&mut self.shots.lock().unwrap())
    }
}

/// What was tried.
#[derive(Clone, Copy, Default, Debug)]
struct Tried {
    workloads: u64,
    steps: u64,
    states: u64,
    again: u64,
}

impl std::ops::AddAssign for Tried {
    fn add_assign(&mut self, other: Self) {
        self.workloads += other.workloads;
        self.steps += other.steps;
        self.states += other.states;
        self.again += other.again;
    }
}

struct Run {
    world: World,
    folder: SimFolder,
    camera: Camera,
    draw: SplitMix,
    planted: Option<Planted>,
    /// What rotted last, and how many writes there were once it was written again.
    rotten: Option<(SeqNum, Record, usize)>,
    tried: Tried,
}

impl Run {
    /// A store with two sealed segments and more, all durable. `room`: about how many bytes the last segment has left, so
    /// that sooner or later an operation begins another.
    fn new(seed: u64, room: usize, planted: Option<Planted>) -> Result<Self, String> {
        let options = Options { high_mark: 1, ..options(4096, 10) };
        let mut world = World::tiered(seed, options);
        for i in 0..5 {
            world.stage_exactly(1 + i % 2, &[900])?;
            world.stage_exactly(1, &[700])?;
            world.assign_all()?;
        }
        let left = world.store.left().saturating_sub(room + 112);
        world.stage_exactly(3, &[left])?;
        world.fence()?;
        world.finish_fence();
        let folder = world.folder.clone().ok_or("a tiered world has a folder")?;
        if planted == Some(Planted::MissingFence) {
            world.media.set_fences(Fences::Lying);
        }
        let camera = Camera::default();
        camera.watch(&world.media, &folder);
        camera.fenced.store(world.fenced, Ordering::Relaxed);
        Ok(Self { world, folder, camera, draw: SplitMix(seed), planted, rotten: None, tried: Tried::default() })
    }

    fn fence(&mut self) -> Result<(), String> {
        if self.planted == Some(Planted::ReportBeforeFence) {
            self.camera.fenced.store(self.world.writes.len(), Ordering::Relaxed);
            self.camera.take(&self.world.media, &self.folder);
        }
        self.world.fence()?;
        self.world.finish_fence();
        self.camera.fenced.store(self.world.fenced, Ordering::Relaxed);
        self.camera.take(&self.world.media, &self.folder);
        Ok(())
    }

    fn op(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Append => self.world.stage_exactly(1, &[APPENDED]).map(|_| ()),
            Op::Batch => self.world.stage_exactly(2, &[0, 40, 7]).map(|_| ()),
            Op::Assign => self.world.assign_all(),
            Op::Trim => self.world.trim(1, 60),
            Op::Hole => self.world.hole(),
            Op::Seal => self.world.seal(),
            Op::NewView => self.world.new_view(),
            Op::Checkpoint => self.world.checkpoint(),
            // The second time what is there already.
            Op::Copy => self.world.copy(1, 2, !self.world.copied.is_multiple_of(2)).map(|_| ()),
            Op::Truncate => self.world.truncate(50),
            Op::Repair => self.repair(),
            Op::Move => {
                self.world.checkpoint_all()?;
                self.camera.fenced.store(self.world.fenced, Ordering::Relaxed);
                self.world.work()
            }
        }
    }

    /// The first record of color 1 rots where it is in the area, and is written again.
    fn repair(&mut self) -> Result<(), String> {
        let Some((number, record)) = self.world.first(1) else { return Ok(()) };
        let Some(entry) = self.world.store.entry_of(Color(1), number) else { return Ok(()) };
        // Behind it something says that it was durable.
        self.fence()?;
        self.world.hole()?;
        self.fence()?;
        // Header, meta, one row, the number of tags; then the payload.
        self.world.media.damage(entry + 24 + 48 + 8 + 1, &[!record.payload()[0]]);
        if self.world.repair(1, number, &record)? {
            self.rotten = Some((number, record, self.world.writes.len()));
        }
        Ok(())
    }

    /// What rotted is whole, or it was not durable that it was written again; then it is now.
    fn heal(&self, store: &mut Store<SimDevice>, fenced: usize) -> Result<(), String> {
        let Some((number, record, written)) = &self.rotten else { return Ok(()) };
        let mut found = Vec::new();
        match store.read_through(Color(1), *number, SeqNum::MAX, 1, 1, &mut found) {
            Ok(()) => Ok(()),
            Err(ReadError::Damaged { .. }) if fenced < *written => {
                store.repair(Color(1), *number, record).map(|_| ()).map_err(|error| error.to_string())
            }
            Err(error) => Err(format!("written again and durable: {error}")),
        }
    }

    /// Runs a workload with a fence after each operation, or one at the end; tries all its crashes.
    fn workload(&mut self, ops: &[Op], each: bool) -> Result<(), String> {
        self.tried.workloads += 1;
        for (at, op) in ops.iter().enumerate() {
            self.op(*op)?;
            if each || at + 1 == ops.len() {
                self.fence()?;
            }
            let writes = self.world.writes.clone();
            for shot in self.camera.roll() {
                self.tried.steps += 1;
                self.crashes(&shot, &writes).map_err(|error| format!("{ops:?}, operation {at}: {error}"))?;
            }
        }
        Ok(())
    }

    fn crashes(&mut self, shot: &Shot, writes: &[Write]) -> Result<(), String> {
        let lines = shot.media.lines().len();
        let choices = lines + shot.folder.atoms();
        if choices <= ALL_UPTO {
            for choice in 0..1_u64 << choices {
                let media = shot.media.crash_with(choice & ((1 << lines) - 1));
                self.image(media, shot.folder.crash_with(choice >> lines), writes, shot.fenced)?;
            }
        }
        let sampled = if choices > ALL_UPTO { SAMPLED } else { choices.min(6) as u64 };
        for _ in 0..sampled {
            let seed = self.draw.draw();
            self.image(shot.media.crash(seed), shot.folder.crash(seed >> 7), writes, shot.fenced)?;
        }
        Ok(())
    }

    /// Opens an image, and now and then crashes it again.
    fn image(&mut self, media: SimMedia, folder: SimFolder, writes: &[Write], fenced: usize) -> Result<(), String> {
        self.tried.states += 1;
        let again = self.draw.draw().is_multiple_of(8);
        if !again || self.rotten.is_some() {
            let (mut store, _, prefix) = recover(&media, Some(&folder), self.world.options, writes, fenced)?;
            self.heal(&mut store, fenced)?;
            return check(&store, &Expected::after(&writes[..prefix]), true, true);
        }
        let camera = Camera::default();
        camera.watch(&media, &folder);
        let (store, _, prefix) = recover(&media, Some(&folder), self.world.options, writes, fenced)?;
        drop(store);
        let mut shots = camera.roll();
        Camera::unwatch(&media, &folder);
        // What recovery has told is told for good.
        camera.fenced.store(prefix, Ordering::Relaxed);
        camera.take(&media, &folder);
        shots.extend(camera.roll());
        for _ in 0..3 {
            self.tried.states += 1;
            self.tried.again += 1;
            let shot = &shots[(self.draw.draw() % shots.len() as u64) as usize];
            let seed = self.draw.draw();
            let writes = &writes[..if shot.fenced == prefix { prefix } else { writes.len() }];
            let fenced = if shot.fenced == prefix { prefix } else { fenced };
            let (media, folder) = (shot.media.crash(seed), shot.folder.crash(seed >> 7));
            let mut world = World::resume(seed, media, folder, self.world.options, writes, fenced)
                .map_err(|error| format!("crashed again while it recovered: {error}"))?;
            // And on from there.
            let on = |world: &mut World| {
                // As long as the append of the workload in half of the cases, so that what comes behind meets what came
                // behind that one.
                world.stage_exactly(1, &[if seed.is_multiple_of(2) { APPENDED } else { (seed % 300) as usize }])?;
                if seed.is_multiple_of(3) {
                    world.assign_all()?;
                }
                world.fence()?;
                world.finish_fence();
                world.stage_exactly(2, &[(seed % 50) as usize])?;
                world.crash(Fences::AtOnce)?;
                world.stage_exactly(3, &[(seed % 70) as usize])?;
                world.assign_all()?;
                world.fence()?;
                world.finish_fence();
                world.crash(Fences::AtOnce)
            };
            on(&mut world).map_err(|error| format!("gone on after two crashes: {error}"))?;
        }
        Ok(())
    }
}

/// All workloads of up to `most` operations, one after the other. Of three operations with copies or truncations among
/// them, those are left out that have what is like another one to these: a batch, a hole, a seal; and all with repairs.
fn workloads(most: u32) -> Vec<Vec<Op>> {
    let of = |len: u32| {
        (0..OPS.len().pow(len)).map(move |nth| (0..len).map(|at| OPS[nth / OPS.len().pow(at) % OPS.len()]).collect())
    };
    let worth_it = |ops: &Vec<Op>| {
        let has = |some: &[Op]| ops.iter().any(|op| some.contains(op));
        ops.len() < 3
            || !has(&[Op::Repair]) && (!has(&[Op::Copy, Op::Truncate]) || !has(&[Op::Batch, Op::Hole, Op::Seal]))
    };
    (1..=most).flat_map(of).filter(worth_it).collect()
}

fn try_one(nth: usize, ops: &[Op], each: bool, planted: Option<Planted>) -> Result<Tried, String> {
    let mut run = Run::new(nth as u64, [0, 60, 150, 500][nth % 4], planted)?;
    if let Some(Planted::Store(bug)) = planted {
        planted::plant(Some(bug));
    }
    if planted == Some(Planted::ManifestBeforeData) {
        run.world.store.plant(Some(PlantedBug::ManifestBeforeData));
    }
    let done = run.workload(ops, each);
    Camera::unwatch(&run.world.media, &run.folder);
    planted::plant(None);
    done.map(|()| run.tried)
}

/// One after the other with a fence behind each operation, then with one behind the last.
fn try_both(nth: usize, ops: &[Op], planted: Option<Planted>) -> Result<Tried, String> {
    let mut tried = try_one(nth, ops, true, planted)?;
    tried += try_one(nth + 1, ops, false, planted)?;
    Ok(tried)
}

#[test]
fn every_crash_of_every_short_workload_leaves_what_was_reported() {
    let workloads = workloads(3);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut tried = Tried::default();
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            let Some(ops) = workloads.get(nth) else { return Ok(tried) };
            tried += try_both(nth, ops, None).map_err(|error| format!("workload {nth}: {error}"))?;
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let results: Vec<Result<Tried, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut tried = Tried::default();
    for result in results {
        match result {
            Ok(more) => tried += more,
            Err(error) => panic!("{error}"),
        }
    }
    let Tried { workloads, steps, states, again } = tried;
    // Past the test harness, which keeps what tests print to itself.
    let said =
        format!("crash enumeration: {workloads} workloads, {steps} steps, {states} states, {again} of them twice\n");
    std::io::stderr().write_all(said.as_bytes()).unwrap();
    assert!(states > 200_000, "{states} states are too few");
}

/// How many of the first workloads show the mistake; it must be some.
fn caught(planted: Planted) {
    let workloads = workloads(2);
    let failed = |(nth, ops): (usize, &Vec<Op>)| try_both(nth, ops, Some(planted)).err();
    let first = workloads.iter().enumerate().find_map(failed);
    assert!(first.is_some(), "{planted:?} was not noticed in {} workloads", workloads.len());
}

#[test]
fn a_missing_fence_is_caught() {
    caught(Planted::MissingFence);
}

#[test]
fn a_report_before_the_fence_is_caught() {
    caught(Planted::ReportBeforeFence);
}

#[test]
fn a_checksum_that_does_not_cover_the_length_is_caught() {
    caught(Planted::Store(Bug::ChecksumWithoutLength));
}

#[test]
fn a_generation_that_is_used_again_is_caught() {
    caught(Planted::Store(Bug::GenerationReuse));
}

#[test]
fn entries_that_come_back_are_caught() {
    caught(Planted::Store(Bug::TakenBackComesBack));
}

#[test]
fn a_manifest_before_its_data_is_caught() {
    caught(Planted::ManifestBeforeData);
}
