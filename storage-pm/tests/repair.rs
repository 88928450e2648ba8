//! Records that are damaged where they are, in the area or in an SSD file, and written again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "tests")]

mod common;
#[path = "common/each.rs"]
mod each;

use std::collections::BTreeMap;

use common::{append, open_tiered, options, read_all, token};
use each::{assign, entry, fence_any, n};
use flexlog_protocol::media::{LogStore, ReadError, StoreError};
use flexlog_protocol::{Append, Assign, Body, Color, Lsn, Record, SeqNum, Time};
use flexlog_storage_pm::device::{SimDevice, SimMedia, SplitMix};
use flexlog_storage_pm::inspect::{Depth, SegmentState, examine};
use flexlog_storage_pm::ssd::{Folder, SimFolder};
use flexlog_storage_pm::{Options, Store};
use proptest::prelude::*;

const COLORS: [u64; 2] = [1, 2];

fn small() -> Options {
    Options { high_mark: 40, ..options(4096, 12) }
}

/// A store whose bytes rot, beside what it must hold. All that it writes is durable at once.
struct World {
    media: SimMedia,
    folder: SimFolder,
    store: Store<SimDevice>,
    records: BTreeMap<(Color, SeqNum), Record>,
    next: [u32; COLORS.len()],
    now: Time,
    lsn: u64,
    seq: u64,
    draw: SplitMix,
    /// Records that were hit, written again, written again in a file's stead.
    rotten: u64,
    repaired: u64,
    files_hit: u64,
    /// It cannot be told of every damaged place of a file which record it was.
    blurred: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let (media, folder) = (SimMedia::new(1 << 20), SimFolder::new());
        let (store, _) = open_tiered(&media, &folder, small()).unwrap();
        let (records, draw) = (BTreeMap::new(), SplitMix(seed));
        Self {
            media,
            folder,
            store,
            records,
            next: [0; COLORS.len()],
            now: Time(0),
            lsn: 0,
            seq: 0,
            draw,
            rotten: 0,
            repaired: 0,
            files_hit: 0,
            blurred: false,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.draw.draw() % bound.max(1)
    }

    fn put(&mut self, body: Body) {
        self.lsn += 1;
        self.store.append(&entry(self.lsn, body)).unwrap();
        fence_any(&mut self.store);
    }

    fn append(&mut self) {
        let (color, count) = (1 + self.below(2), 1 + self.below(3));
        let payloads: Vec<Vec<u8>> = (0..count)
            .map(|_| {
                let words = 3 + self.below(20);
                (0..words).flat_map(|_| self.draw.draw().to_le_bytes()).collect()
            })
            .collect();
        self.seq += 1;
        let append: Append = append(self.seq, color, &payloads);
        match self.store.stage(&append) {
            Ok(()) => {}
            Err(StoreError::Full { .. }) => return self.work(),
            Err(error) => panic!("{error}"),
        }
        let first = self.next[color as usize - 1];
        self.next[color as usize - 1] += count as u32;
        for (i, record) in (0..).zip(append.records()) {
            self.records.insert((Color(color), n(first + i)), record.clone());
        }
        self.put(Body::Assign(vec![Assign::one(token(self.seq), Color(color), n(first), count as u32)]));
    }

    fn files(&self) -> Vec<String> {
        self.folder.list().unwrap().into_iter().filter(|name| name.ends_with(".ssd")).collect()
    }

    /// Bits of a record change, wherever it is. `head`: rather those that stand before it in a file.
    fn rot(&mut self, head: bool) {
        let keys: Vec<_> = self.records.keys().copied().collect();
        if keys.is_empty() {
            return;
        }
        let key = keys[self.below(keys.len() as u64) as usize];
        let payload = self.records[&key].payload().clone();
        let find = |bytes: &[u8]| bytes.windows(payload.len()).position(|window| window == &payload[..]);
        let (byte, bit) = (self.below(payload.len() as u64) as usize, 1 << self.below(8));
        let mut hit = false;
        if let Some(at) = find(&self.media.bytes()) {
            self.media.damage((at + byte) as u64, &[payload[byte] ^ bit]);
            hit = true;
        }
        for name in self.files() {
            let bytes = self.folder.contents(&name).unwrap();
            if let Some(at) = find(&bytes) {
                let at = if head { at - 8 - byte % 24 } else { at + byte };
                self.folder.damage(&name, at, &[bytes[at] ^ bit]);
                hit = true;
                self.files_hit += 1;
                self.blurred |= head;
            }
        }
        self.rotten += u64::from(hit);
    }

    /// Reads everything; what is damaged is written again, as another member would send it.
    fn mend(&mut self) {
        for color in COLORS.map(Color) {
            let mut from = SeqNum::MIN;
            loop {
                let mut found = Vec::new();
                let read = self.store.read_through(color, from, SeqNum::MAX, usize::MAX, usize::MAX, &mut found);
                for (number, record) in &found {
                    assert_eq!(self.records.get(&(color, *number)), Some(record), "{color}/{number}");
                }
                let (number, end) = match read {
                    Ok(()) => break,
                    Err(ReadError::Damaged { color: c, number, end, .. }) => {
                        assert!(c == color && number < end, "{number} to {end}");
                        (number, end)
                    }
                    Err(error) => panic!("{error}"),
                };
                let hit: Vec<_> =
                    self.records.range((color, number)..(color, end)).map(|(k, r)| (*k, r.clone())).collect();
                for ((color, number), record) in hit {
                    let mut tries = 0;
                    loop {
                        match self.store.repair(color, number, &record) {
                            Ok(written) => break self.repaired += u64::from(written),
                            Err(StoreError::Full { .. }) if tries < 10 => self.work(),
                            Err(error) => panic!("{error}"),
                        }
                        tries += 1;
                    }
                }
                fence_any(&mut self.store);
                from = end;
            }
        }
        self.check();
    }

    fn check(&self) {
        for color in COLORS {
            let wanted: Vec<_> = self.records.iter().filter(|((c, _), _)| c.0 == color).collect();
            let wanted: Vec<_> = wanted.into_iter().map(|((_, number), record)| (*number, record.clone())).collect();
            assert_eq!(read_all(&self.store, color), wanted);
            for (number, record) in wanted.iter().step_by(5) {
                let last = self.store.prev_through(Color(color), *number).unwrap();
                assert_eq!(last, Some((*number, record.clone())));
            }
        }
        let report = examine(&self.media.device(), "sim", Some(&self.folder), Depth::Everything);
        assert!(report.is_sound() || self.blurred, "{:#?}", report.findings);
    }

    fn work(&mut self) {
        for _ in 0..4 {
            self.now = self.now.after(2_000_000);
            while let Some(work) = self.store.background(self.now, Lsn(self.lsn)).unwrap() {
                work();
            }
            if self.store.checkpoint_wanted() && self.store.checkpoint(Lsn(self.lsn), b"state").is_ok() {
                fence_any(&mut self.store);
            }
        }
    }

    fn trim(&mut self) {
        let color = 1 + self.below(2);
        let numbers: Vec<_> = self.records.keys().filter(|(c, _)| c.0 == color).map(|(_, number)| *number).collect();
        if numbers.is_empty() {
            return;
        }
        let upto = numbers[(self.below(numbers.len() as u64) / 2) as usize];
        self.put(Body::Trim { color: Color(color), upto });
        self.store.trim(Color(color), upto);
        self.records.retain(|(c, number), _| c.0 != color || *number > upto);
    }

    fn restart(&mut self) {
        // Only what stands before something that was fenced is known to have been durable.
        self.put(Body::Hole { color: Color(9), first: n(self.lsn as u32 * 2), count: 1 });
        self.put(Body::Hole { color: Color(9), first: n(self.lsn as u32 * 2), count: 1 });
        let (store, recovered) = open_tiered(&self.media, &self.folder, small()).unwrap();
        self.store = store;
        for entry in recovered.entries {
            if let Body::Trim { color, upto } = entry.body {
                self.store.trim(color, upto);
            }
        }
    }

    fn step(&mut self, what: u64) {
        match what % 32 {
            0..=15 => self.append(),
            16..=19 => self.rot(false),
            20 => self.rot(true),
            21..=23 => self.mend(),
            24..=26 => self.work(),
            27..=28 => self.trim(),
            29 => {
                // The crash is of power: the media are as they are.
                self.restart();
            }
            30 => {
                self.mend();
                self.restart();
                self.check();
            }
            _ => {
                self.mend();
                self.work();
                self.check();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_was_written_again_is_read_wherever_the_damage_was(
        seed: u64, steps in proptest::collection::vec(0u64..32, 1..300),
    ) {
        let mut world = World::new(seed);
        steps.into_iter().for_each(|step| world.step(step));
        world.mend();
        world.restart();
        world.check();
    }
}

#[test]
fn the_walks_hit_the_area_and_files() {
    let (mut rotten, mut repaired, mut files_hit) = (0, 0, 0);
    for seed in 0..10 {
        let mut world = World::new(seed);
        let mut draw = SplitMix(seed + 100);
        for _ in 0..300 {
            world.step(draw.draw());
        }
        rotten += world.rotten;
        repaired += world.repaired;
        files_hit += world.files_hit;
    }
    assert!(
        rotten > 200 && repaired > 100 && files_hit > 30,
        "{rotten} rotten, {repaired} repaired, {files_hit} in files"
    );
}

/// A store with records of 700 bytes, durable.
fn filled() -> World {
    let mut world = World::new(1);
    fill(&mut world, 30);
    world
}

fn fill(world: &mut World, count: u64) {
    for _ in 0..count {
        let i = world.seq;
        let append = append(i + 1, 1, &[vec![i as u8 + 1; 700]]);
        world.store.stage(&append).unwrap();
        world.store.append(&assign(i + 1, i + 1, 1, i as u32, 1)).unwrap();
        fence_any(&mut world.store);
        world.records.insert((Color(1), n(i as u32)), append.records()[0].clone());
        (world.lsn, world.seq) = (i + 1, i + 1);
    }
}

fn hit(world: &World, counter: u32) -> u64 {
    let payload = vec![counter as u8 + 1; 700];
    let at = world.media.bytes().windows(700).position(|window| window == payload).unwrap() as u64;
    world.media.damage(at, &[0]);
    at
}

#[test]
fn only_what_is_damaged_and_not_trimmed_is_written() {
    let mut world = filled();
    let record = world.records[&(Color(1), n(3))].clone();
    assert!(!world.store.repair(Color(1), n(3), &record).unwrap(), "it is whole");
    let at = hit(&world, 3);
    let error = world.store.read_through(Color(1), n(3), n(4), 1, 1, &mut vec![]).unwrap_err();
    assert!(
        matches!(error, ReadError::Damaged { number, end, at: entry, .. }
        if (number, end) == (n(3), n(4)) && entry < at && at - entry < 200),
        "{error}"
    );
    let report = examine(&world.media.device(), "sim", Some(&world.folder), Depth::Everything);
    let faults: Vec<_> = report.faults().map(|fault| fault.what.clone()).collect();
    assert_eq!(faults, ["the record 1/1.3 is damaged"]);
    assert!(world.store.repair(Color(1), n(3), &record).unwrap());
    assert!(!world.store.repair(Color(1), n(3), &record).unwrap(), "it is whole again");
    fence_any(&mut world.store);
    world.check();
    hit(&world, 0);
    world.put(Body::Trim { color: Color(1), upto: n(0) });
    world.store.trim(Color(1), n(0));
    assert!(!world.store.repair(Color(1), n(0), &record).unwrap(), "it is trimmed");
}

#[test]
fn a_segment_that_damage_kept_back_moves_once_that_is_mended() {
    let mut world = filled();
    let is_in_use = |world: &World| {
        let report = examine(&world.media.device(), "sim", Some(&world.folder), Depth::Everything);
        report.segments.iter().any(|segment| segment.state == SegmentState::Live && segment.generation == Some(1))
    };
    hit(&world, 0);
    world.work();
    fill(&mut world, 10);
    world.work();
    assert!(is_in_use(&world) && world.store.usage().ssd_files > 0);
    world.mend();
    for _ in 0..4 {
        fill(&mut world, 10);
        world.work();
    }
    assert!(!is_in_use(&world), "{:?}", world.store.usage());
    world.check();
    world.restart();
    world.check();
}

/// What is not fenced is lost with the power, and then the damage is there as before.
#[test]
fn a_crash_before_the_fence_leaves_it_damaged_and_one_behind_it_does_not() {
    for fenced in [false, true] {
        let mut world = filled();
        hit(&world, 2);
        let record = world.records[&(Color(1), n(2))].clone();
        assert!(world.store.repair(Color(1), n(2), &record).unwrap());
        if fenced {
            fence_any(&mut world.store);
        }
        let image = world.media.crash_with(0);
        let (store, _) = open_tiered(&image, &world.folder.copy(), small()).unwrap();
        let mut found = Vec::new();
        let read = store.read_through(Color(1), n(2), n(3), 1, 1, &mut found);
        match fenced {
            true => assert_eq!(found, [(n(2), record)]),
            false => assert!(matches!(read, Err(ReadError::Damaged { .. })), "{found:?}"),
        }
    }
}

#[test]
fn a_scrub_reads_on_behind_damage_and_asks_no_cache() {
    let (media, folder) = (SimMedia::new(1 << 20), SimFolder::new());
    let (mut store, _) = open_tiered(&media, &folder, Options { cache_bytes: 1 << 20, ..small() }).unwrap();
    store.stage(&append(1, 1, &[vec![1; 50], vec![2; 50], vec![3; 50]])).unwrap();
    store.append(&assign(1, 1, 1, 0, 3)).unwrap();
    fence_any(&mut store);
    assert_eq!(read_all(&store, 1).len(), 3);
    let at = media.bytes().windows(50).position(|window| window == [2; 50]).unwrap() as u64;
    media.damage(at, &[9]);
    let mut found = Vec::new();
    let error = store.scrub(Color(1), SeqNum::MIN, 10, 1000, &mut found).err().unwrap();
    assert!(matches!(error, ReadError::Damaged { number, .. } if number == n(1)), "{error}");
    assert_eq!(found.len(), 1);
    assert!(store.scrub(Color(1), n(2), 10, 1000, &mut found).is_ok());
    assert_eq!(found.len(), 2);
}

/// A replica that does not know what is committed takes back settled entries too, and is given them again.
#[test]
fn what_was_written_again_stays_when_its_entry_is_taken_back_and_comes_again() {
    let mut world = filled();
    let record = world.records[&(Color(1), n(3))].clone();
    hit(&world, 3);
    assert!(world.store.repair(Color(1), n(3), &record).unwrap());
    fence_any(&mut world.store);
    let entries: Vec<_> = (1..=30).map(|i| std::sync::Arc::new(assign(i, i, 1, i as u32 - 1, 1))).collect();
    world.store.truncate(Lsn(2), &entries[2..]).unwrap();
    fence_any(&mut world.store);
    let mut found = vec![];
    world.store.read_through(Color(1), n(4), n(5), 1, 1, &mut found).unwrap();
    assert_eq!(found, [], "the others are staged again");
    for entry in &entries[2..] {
        world.store.append(entry).unwrap();
    }
    fence_any(&mut world.store);
    world.check();
    // Behind a crash it may be damaged again, and then it is written again.
    world.restart();
    world.mend();
    world.check();
}
