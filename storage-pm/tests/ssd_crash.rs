//! Power cuts at every step of adding and trimming: the tier opens, and what was reported added is whole.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "tests")]

mod ssd_common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use flexlog_protocol::{Color, SeqNum};
use flexlog_storage_pm::device::SplitMix;
use flexlog_storage_pm::ssd::{PlantedBug, SimFolder};
use ssd_common::*;

/// What the crash images are compared with.
#[derive(Clone, Default)]
struct Expected {
    /// Files that were reported added.
    reported: Vec<Model>,
    /// The one under way: there or not.
    under_way: Option<Model>,
    /// Trim points that are committed: what is at or below them may be gone.
    points: BTreeMap<Color, SeqNum>,
}

impl Expected {
    /// What is wrong with an image.
    fn check(&self, image: &SimFolder) -> Result<(), String> {
        let tier = open(image).map_err(|error| error.to_string())?;
        let trim = |color: Color| self.points.get(&color).copied();
        if let Some((file, fault)) = tier.verify(&trim).first() {
            return Err(format!("{file}: {fault:?}"));
        }
        for (color, at) in self.reported.iter().flat_map(|model| model.keys()) {
            if trim(*color).is_some_and(|point| point >= *at) {
                continue;
            }
            let found = read_one(&tier, color.0, *at).map_err(|error| error.to_string())?;
            let wanted = self.reported.iter().find_map(|model| model.get(&(*color, *at)));
            if found.as_ref() != wanted {
                return Err(format!("{color}/{at} is {found:?}"));
            }
        }
        // Of the one under way all or nothing.
        let under_way = self.under_way.iter().flat_map(|model| model.iter());
        let mut there = 0;
        for ((color, at), record) in under_way.clone() {
            match read_one(&tier, color.0, *at).map_err(|error| error.to_string())? {
                Some(found) if found == *record => there += 1,
                Some(found) => return Err(format!("{color}/{at} is {found:?}")),
                None => {}
            }
        }
        if there != 0 && there != under_way.count() {
            return Err(format!("{there} records of a file that is not whole"));
        }
        // What is left of the folder is enough to go on with.
        add(&tier, &run(77, 0, 3), 99).map_err(|error| error.to_string())?;
        match read_all(&open(image).map_err(|error| error.to_string())?, 77) {
            Ok(found) if found.len() == 3 => Ok(()),
            other => Err(format!("after going on: {other:?}")),
        }
    }
}

#[derive(Default)]
struct Found {
    images: usize,
    exhaustive: usize,
    bad: Vec<String>,
}

/// Looks at crash images of `folder` after each of its steps.
fn watch(folder: &SimFolder, expected: &Arc<Mutex<Expected>>, seeds: u64) -> Arc<Mutex<Found>> {
    let found = Arc::new(Mutex::new(Found::default()));
    let (view, expected, into) = (folder.clone(), expected.clone(), found.clone());
    folder.on_step(Box::new(move || {
        let expected = expected.lock().unwrap().clone();
        let mut found = into.lock().unwrap();
        let atoms = view.atoms();
        let mut images: Vec<SimFolder> = (0..seeds).map(|seed| view.crash(seed)).collect();
        images.push(view.copy());
        // All choices where they are few.
        if atoms <= 8 {
            found.exhaustive += 1;
            images.extend((0..1u64 << atoms).map(|choice| view.crash_with(choice)));
        }
        for image in images {
            found.images += 1;
            if let Err(error) = expected.check(&image) {
                found.bad.push(error);
            }
        }
    }));
    found
}

/// A few rounds of adding and trimming, with a crash at each step.
fn story(seed: u64, bug: Option<PlantedBug>, holes: bool) -> Found {
    let folder = SimFolder::new();
    if !holes {
        folder.without_holes();
    }
    let expected = Arc::new(Mutex::new(Expected::default()));
    let found = watch(&folder, &expected, 6);
    let tier = open(&folder).unwrap();
    tier.plant(bug);
    let mut draw = SplitMix(seed);
    let mut next = [0; 3];
    for round in 0..5 {
        let mut model = Model::new();
        for (color, next) in next.iter_mut().enumerate() {
            let to = *next + 1 + (draw.draw() % 6) as u32;
            for at in *next..to {
                let len = if draw.draw().is_multiple_of(5) { 5000 } else { 200 };
                let payload = vec![(at as u8).max(1); len];
                model.insert((Color(color as u64), n(at)), record(payload, &[b"tag"]));
            }
            *next = to;
        }
        expected.lock().unwrap().under_way = Some(model.clone());
        let meta = add(&tier, &model, round).unwrap();
        assert_eq!(meta.records, model.len() as u64);
        {
            let mut expected = expected.lock().unwrap();
            expected.under_way = None;
            expected.reported.push(model);
        }
        let color = draw.draw() % 3;
        for (at, next) in next.iter().enumerate().filter(|(at, _)| round % 2 == 1 || *at as u64 == color) {
            let point = n((next - 1).saturating_sub((draw.draw() % 4) as u32));
            let mut expected = expected.lock().unwrap();
            let known = expected.points.entry(Color(at as u64)).or_insert(point);
            *known = (*known).max(point);
        }
        let points = expected.lock().unwrap().points.clone();
        tier.trim(&|color| points.get(&color).copied()).unwrap();
    }
    // The observer holds the folder.
    folder.on_step(Box::new(|| {}));
    std::mem::take(&mut *found.lock().unwrap())
}

#[test]
fn a_power_cut_at_any_step_loses_nothing_that_was_reported() {
    let (mut images, mut exhaustive) = (0, 0);
    for seed in 0..6 {
        let found = story(seed, None, seed % 3 != 2);
        assert!(
            found.bad.is_empty(),
            "seed {seed}: {} of {} images, first {}",
            found.bad.len(),
            found.images,
            found.bad[0]
        );
        images += found.images;
        exhaustive += found.exhaustive;
    }
    eprintln!("{images} images, at {exhaustive} steps all there are");
    assert!(images > 1000 && exhaustive > 50, "{images} {exhaustive}");
}

#[test]
fn a_manifest_before_its_data_is_caught() {
    let found = story(1, Some(PlantedBug::ManifestBeforeData), true);
    assert!(!found.bad.is_empty(), "{} images", found.images);
}
