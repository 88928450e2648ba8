//! The SSD tier beside a model: reading over several files, tags, limits, trim, a full disk, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod ssd_common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flexlog_protocol::{Color, Lsn, SeqNum, StoreId, Tag};
use flexlog_storage_pm::device::SplitMix;
use flexlog_storage_pm::ssd::{DirFolder, Folder, Refusal, SimFolder, SsdError, Tier};
use proptest::prelude::*;
use ssd_common::*;
use uuid::Uuid;

/// Some records in some files, numbers of a color spread over them, some in two.
fn build(seed: u64, files: usize, big: bool) -> (SimFolder, Tier, Model, Vec<Model>) {
    let mut draw = SplitMix(seed);
    let mut model = Model::new();
    let mut parts = vec![Model::new(); files];
    for color in [1, 2, 3, 500, u64::MAX] {
        let mut raw = draw.draw() % 5;
        for _ in 0..draw.draw() % 120 {
            raw += 1 + if draw.draw().is_multiple_of(6) { (1 << 32) + draw.draw() % 9 } else { draw.draw() % 2 };
            let len = match draw.draw() % 20 {
                0 if big => 1 << 20,
                1 => 17_000,
                2 => 4096,
                n => (n * 37) % 300,
            };
            let payload: Vec<u8> = (0..len).map(|at| (at ^ raw ^ color) as u8).collect();
            let tags: Vec<Vec<u8>> = (0..draw.draw() % 4).map(|_| vec![b't', (draw.draw() % 5) as u8]).collect();
            let tags: Vec<&[u8]> = tags.iter().map(Vec::as_slice).collect();
            let record = record(payload, &tags);
            for _ in 0..1 + u64::from(draw.draw().is_multiple_of(10)) {
                let part = (draw.draw() % files as u64) as usize;
                parts[part].insert((Color(color), number(raw)), record.clone());
            }
            model.insert((Color(color), number(raw)), record);
        }
    }
    let folder = SimFolder::new();
    let tier = open(&folder).unwrap();
    for (at, part) in parts.iter().enumerate() {
        let meta = add(&tier, part, at as u64 + 1).unwrap();
        assert_eq!((meta.records, meta.upto), (part.len() as u64, Lsn(at as u64 + 1)));
    }
    (folder, tier, model, parts)
}

/// What [`Tier::read`] must give, from the model.
fn limited(records: &[(SeqNum, flexlog_protocol::Record)], max_records: usize, max_bytes: usize) -> usize {
    let (mut count, mut bytes) = (0, 0);
    for (_, record) in records.iter().take(max_records) {
        bytes += record.payload().len();
        if count > 0 && bytes > max_bytes {
            break;
        }
        count += 1;
        if bytes >= max_bytes {
            break;
        }
    }
    count
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn reads_are_those_of_the_model(seed: u64, files in 1usize..6, reopen: bool, big in prop::bool::weighted(0.1)) {
        let (folder, tier, model, parts) = build(seed, files, big);
        let tier = if reopen { open(&folder).unwrap() } else { tier };
        let mut draw = SplitMix(seed ^ 1);
        let keys: Vec<_> = model.keys().copied().collect();
        for _ in 0..200 {
            let near = |draw: &mut SplitMix| match keys.len() as u64 {
                0 => SeqNum::MIN,
                len => number(keys[(draw.draw() % len) as usize].1.to_raw().saturating_add(draw.draw() % 3).saturating_sub(1)),
            };
            let color = Color([0, 1, 2, 3, 4, 500, u64::MAX][(draw.draw() % 7) as usize]);
            let from = if draw.draw().is_multiple_of(4) { SeqNum::MIN } else { near(&mut draw) };
            let upto = if draw.draw().is_multiple_of(3) { SeqNum::MAX } else { near(&mut draw) };
            let max_records = [0, 1, 2, 7, usize::MAX][(draw.draw() % 5) as usize];
            let max_bytes = [0, 1, 100, 5000, usize::MAX][(draw.draw() % 5) as usize];
            let expected = of_color(&model, color, from, upto);
            let take = limited(&expected, max_records, max_bytes);
            let mut found = Vec::new();
            let bound = tier.read(color, from, upto, max_records, max_bytes, &mut found).unwrap();
            prop_assert_eq!(&found[..], &expected[..take]);
            // Nothing is passed by, and all is looked at where nothing stopped it.
            prop_assert!(expected[take..].iter().all(|(number, _)| *number >= bound));
            prop_assert!(take < expected.len() || max_records == take || bound >= upto || max_bytes != usize::MAX);
            prop_assert!(found.last().is_none_or(|(last, _)| *last < bound));
        }
        for _ in 0..100 {
            let (from, upto) = (number(draw.draw() % 6), keys.get(draw.draw() as usize % keys.len().max(1)));
            let Some((color, upto)) = upto else { break };
            let upto = number(upto.to_raw() + draw.draw() % 3);
            let last = tier.last(*color, from, upto).unwrap();
            prop_assert_eq!(last, of_color(&model, *color, from, upto).pop());
        }
        for color in [1, 2, 3, 4, 500, u64::MAX] {
            let highest = model.range((Color(color), SeqNum::MIN)..=(Color(color), SeqNum::MAX)).next_back();
            prop_assert_eq!(tier.highest(Color(color)), highest.map(|((_, number), _)| *number));
            for tag in 0..6 {
                let tag = Tag::new(vec![b't', tag]).unwrap();
                let has = |((of, number), record): (&(Color, SeqNum), &flexlog_protocol::Record)| {
                    (*of == Color(color) && record.tags().contains(&tag)).then_some(*number)
                };
                let expected: Vec<_> = model.iter().filter_map(has).collect();
                prop_assert_eq!(tier.tags(Color(color), &tag).unwrap(), expected);
            }
        }
        prop_assert_eq!(tier.verify(&never), vec![]);
        prop_assert_eq!(tier.usage().records, parts.iter().map(|part| part.len() as u64).sum::<u64>());
    }

    #[test]
    fn trim_gives_back_what_is_trimmed_and_nothing_else(seed: u64, files in 1usize..5, rounds in 1usize..5) {
        let (folder, tier, model, parts) = build(seed, files, false);
        let before = tier.usage().bytes;
        let (mut points, mut given, mut draw) = (BTreeMap::new(), 0, SplitMix(seed ^ 2));
        for round in 0..rounds {
            for color in [1, 2, 3, 500, u64::MAX].map(Color) {
                let numbers = of_color(&model, color, SeqNum::MIN, SeqNum::MAX);
                if numbers.is_empty() || draw.draw().is_multiple_of(4) {
                    continue;
                }
                let at = numbers[(draw.draw() % numbers.len() as u64) as usize].0;
                let point = points.entry(color).or_insert(at);
                *point = (*point).max(at);
            }
            let trim = |color: Color| points.get(&color).copied();
            let reclaimed = tier.trim(&trim).unwrap();
            given += reclaimed.bytes;
            prop_assert_eq!(tier.usage().bytes + given, before, "round {}", round);
            prop_assert_eq!(tier.trim(&trim).unwrap().bytes, 0, "it is given back once");
            let gone = |part: &&Model| part.keys().all(|(color, number)| trim(*color).is_some_and(|at| at >= *number));
            prop_assert_eq!(tier.files().len(), files - parts.iter().filter(gone).count());
            for tier in [&tier, &open(&folder).unwrap()] {
                prop_assert_eq!(tier.verify(&trim), vec![]);
                for color in [1, 2, 3, 500, u64::MAX].map(Color) {
                    let from = trim(color).map_or(SeqNum::MIN, |at| number(at.to_raw() + 1));
                    let mut found = Vec::new();
                    tier.read(color, from, SeqNum::MAX, usize::MAX, usize::MAX, &mut found).unwrap();
                    prop_assert_eq!(found, of_color(&model, color, from, SeqNum::MAX));
                }
            }
        }
    }
}

#[test]
fn trim_punches_blocks_of_a_file_that_stays() {
    let folder = SimFolder::new();
    let tier = open(&folder).unwrap();
    let records: Model = (0..4000).map(|at| ((Color(1), n(at)), record(vec![at as u8; 1000], &[]))).collect();
    add(&tier, &records, 1).unwrap();
    let used = folder.used();
    let reclaimed = tier.trim(&|_| Some(n(1999))).unwrap();
    assert!(reclaimed.bytes > 1_900_000 && reclaimed.files == 0, "{reclaimed:?}");
    assert_eq!(folder.used(), used - reclaimed.bytes);
    assert_eq!(read_one(&tier, 1, n(2000)).unwrap(), records.get(&(Color(1), n(2000))).cloned());
    // A reader that comes late is told nothing wrong.
    let mut late = Vec::new();
    tier.read(Color(1), n(0), n(4000), usize::MAX, usize::MAX, &mut late).unwrap();
    assert!(late.iter().all(|(at, found)| records.get(&(Color(1), *at)) == Some(found)));
    assert!(late.len() >= 2000);
    // A little more: only what is new.
    let more = tier.trim(&|_| Some(n(2099))).unwrap();
    assert!(more.bytes > 80_000 && more.bytes < 120_000, "{more:?}");
    // What is gone and should not be is told.
    assert!(!tier.verify(&never).is_empty());
    assert!(!open(&folder).unwrap().verify(&|_| Some(n(500))).is_empty());
    assert_eq!(open(&folder).unwrap().verify(&|_| Some(n(2099))), vec![]);
}

#[test]
fn where_there_are_no_holes_files_still_go_as_a_whole() {
    let folder = SimFolder::new();
    folder.without_holes();
    let tier = open(&folder).unwrap();
    add(&tier, &run(1, 0, 5000), 1).unwrap();
    add(&tier, &run(2, 0, 10), 2).unwrap();
    assert_eq!(tier.trim(&|color| (color == Color(1)).then_some(n(4000))).unwrap().bytes, 0);
    let reclaimed = tier.trim(&|color| (color == Color(1)).then_some(n(4999))).unwrap();
    assert!(reclaimed.files == 1 && reclaimed.bytes > 5000 * 30);
    assert_eq!((tier.highest(Color(1)), tier.highest(Color(2))), (None, Some(n(9))));
    assert_eq!(folder.list().unwrap(), ["0000000002.ssd", "manifest", "spare"]);
}

#[test]
fn a_full_disk_takes_nothing_until_trim_made_room() {
    let folder = SimFolder::new();
    let tier = open(&folder).unwrap();
    let payload = vec![7; 10_000];
    let part = |color| -> Model { (0..30).map(|at| ((Color(color), n(at)), record(payload.clone(), &[]))).collect() };
    add(&tier, &part(1), 1).unwrap();
    add(&tier, &part(2), 2).unwrap();
    // Not a page is free.
    folder.set_limit(folder.used());
    for _ in 0..3 {
        let full = add(&tier, &part(3), 3).unwrap_err();
        assert!(matches!(full, SsdError::Full { .. }), "{full}");
        assert_eq!(folder.list().unwrap(), ["0000000001.ssd", "0000000002.ssd", "manifest", "spare"]);
    }
    assert_eq!((tier.files().len(), tier.highest(Color(3))), (2, None));
    let reclaimed = tier.trim(&|color| (color == Color(1)).then_some(n(29))).unwrap();
    assert_eq!(reclaimed.files, 1);
    // What went is as long as what comes, and the manifest needs a page beside it.
    assert!(matches!(add(&tier, &part(3), 3), Err(SsdError::Full { .. })));
    let less: Model = part(3).into_iter().take(29).collect();
    assert_eq!(add(&tier, &less, 3).unwrap().id, 3);
    for tier in [&tier, &open(&folder).unwrap()] {
        assert_eq!(read_all(tier, 3).unwrap().len(), 29);
        assert_eq!(read_all(tier, 2).unwrap().len(), 30);
    }
}

#[test]
fn trim_works_on_a_full_disk_without_holes() {
    let folder = SimFolder::new();
    folder.without_holes();
    let tier = open(&folder).unwrap();
    for color in 1..4 {
        add(&tier, &run(color, 0, 3000), color).unwrap();
    }
    folder.set_limit(folder.used());
    for color in 1..3 {
        let tier = open(&folder).unwrap();
        assert!(matches!(add(&tier, &run(9, 0, 10_000), 9), Err(SsdError::Full { .. })));
        let reclaimed = tier.trim(&|of| (of.0 <= color).then_some(SeqNum::MAX)).unwrap();
        assert_eq!(reclaimed.files, 1);
        // What went is not quite what the spare file takes, but its space is free.
        assert!(add(&tier, &run(8, 100 * color as u32, 100 * color as u32 + 10), 9).is_ok());
        assert!(tier.trim(&|of| (of.0 == 8).then_some(SeqNum::MAX)).is_ok());
    }
    assert_eq!(read_all(&open(&folder).unwrap(), 3).unwrap().len(), 3000);
}

#[test]
fn a_disk_too_full_for_the_manifest_takes_no_file() {
    for spare in 0..20 {
        let folder = SimFolder::new();
        let tier = open(&folder).unwrap();
        add(&tier, &run(1, 0, 10), 1).unwrap();
        folder.set_limit(folder.used() + spare * 4096);
        match add(&tier, &run(2, 0, 500), 2) {
            Ok(_) => assert_eq!(read_all(&open(&folder).unwrap(), 2).unwrap().len(), 500),
            Err(error) => {
                assert!(matches!(error, SsdError::Full { .. }), "{error}");
                assert_eq!(folder.list().unwrap(), ["0000000001.ssd", "manifest", "spare"], "spare {spare}");
                assert_eq!(read_all(&open(&folder).unwrap(), 2).unwrap(), []);
            }
        }
        assert_eq!(read_all(&tier, 1).unwrap().len(), 10);
    }
}

#[test]
fn a_write_error_is_final_and_reads_go_on() {
    // A sync or an append that fails, at each of the steps of adding a file.
    let mut failures = 0;
    for kind in 0..2 {
        for nth in 1..12 {
            let folder = SimFolder::new();
            let tier = open(&folder).unwrap();
            add(&tier, &run(1, 0, 10), 1).unwrap();
            if kind == 0 {
                folder.fail_sync(nth)
            } else {
                folder.fail_append(nth)
            }
            if add(&tier, &run(2, 0, 10), 2).is_ok() {
                continue;
            }
            failures += 1;
            for again in 0..2 {
                let error = add(&tier, &run(3, 0, 10), 3).unwrap_err();
                assert!(matches!(error, SsdError::Failed { .. }), "{again}: {error}");
                assert!(matches!(tier.trim(&|_| Some(SeqNum::MAX)), Err(SsdError::Failed { .. })));
            }
            assert_eq!(read_all(&tier, 1).unwrap().len(), 10);
            assert_eq!(read_all(&tier, 2).unwrap(), []);
            for seed in 0..20 {
                assert_eq!(read_all(&open(&folder.crash(seed)).unwrap(), 1).unwrap().len(), 10);
            }
        }
    }
    // Data, names, manifest, names; data, manifest.
    assert_eq!(failures, 4 + 2);
}

#[test]
fn a_read_that_fails_names_the_record_and_the_next_one_goes_well() {
    let folder = SimFolder::new();
    let tier = open(&folder).unwrap();
    add(&tier, &run(1, 5, 10), 1).unwrap();
    folder.fail_read(1);
    match read_one(&tier, 1, n(7)).unwrap_err() {
        SsdError::Io { file, offset, color, number, .. } => {
            assert!(file.ends_with("/0000000001.ssd"));
            assert_eq!((offset, color, number), (64, Color(1), n(7)));
        }
        other => panic!("{other}"),
    }
    assert!(read_one(&tier, 1, n(7)).unwrap().is_some());
}

#[test]
fn what_is_out_of_order_or_damaged_is_not_taken() {
    let folder = SimFolder::new();
    let tier = open(&folder).unwrap();
    let good: Vec<_> = moved(&run(1, 0, 3)).map(Result::unwrap).collect();
    let mut twice = good.clone();
    twice.push(good[2].clone());
    let mut back = good.clone();
    back.swap(0, 2);
    let mut bad = good.clone();
    bad[1].crc ^= 1;
    let mut cut = good.clone();
    cut[2].encoded.to_mut().clear();
    for wrong in [twice, back, bad, cut] {
        let error = tier.add(&mut wrong.into_iter().map(Ok), Lsn(1), vec![]).unwrap_err();
        assert!(matches!(error, SsdError::Source { .. }), "{error}");
    }
    let mut source = good.into_iter().map(Ok).chain([Err(std::io::Error::other("the area"))]);
    assert!(matches!(tier.add(&mut source, Lsn(1), vec![]), Err(SsdError::Source { .. })));
    assert_eq!(folder.list().unwrap(), ["manifest", "spare"]);
    // None of it is final.
    assert_eq!(add(&tier, &run(1, 0, 3), 1).unwrap().id, 1);
}

#[test]
fn what_is_left_over_is_removed_and_nothing_else() {
    let folder = SimFolder::new();
    let tier = open(&folder).unwrap();
    add(&tier, &run(1, 0, 3), 1).unwrap();
    for name in ["0000000009.ssd", "0000000002.ssd.tmp", "manifest.tmp", "notes", "x.tmp", "5.ssd"] {
        folder.put(name, b"x");
    }
    assert_eq!(read_all(&open(&folder).unwrap(), 1).unwrap().len(), 3);
    assert_eq!(folder.list().unwrap(), ["0000000001.ssd", "5.ssd", "manifest", "notes", "spare", "x.tmp"]);
}

#[test]
fn what_is_not_as_the_manifest_says_is_refused_and_left_alone() {
    let folder = SimFolder::new();
    assert!(open(&folder).unwrap().files().is_empty());
    assert!(folder.list().unwrap().is_empty(), "looking changes nothing");
    let tier = open(&folder).unwrap();
    add(&tier, &run(1, 0, 300), 1).unwrap();
    add(&tier, &run(1, 300, 600), 2).unwrap();
    let refused = |change: &dyn Fn(&SimFolder)| -> Refusal {
        let image = folder.copy();
        image.put("0000000077.ssd", b"not listed");
        change(&image);
        let before: BTreeSet<_> = image.list().unwrap().into_iter().map(|name| (image.contents(&name), name)).collect();
        let error = match open(&image) {
            Err(SsdError::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        };
        let after: BTreeSet<_> = image.list().unwrap().into_iter().map(|name| (image.contents(&name), name)).collect();
        assert_eq!(before, after, "it was changed: {error}");
        error
    };
    let second = "0000000002.ssd";
    let len = folder.contents(second).unwrap().len();
    assert!(matches!(refused(&|image| image.remove("manifest").unwrap()), Refusal::NoManifest { .. }));
    assert!(
        matches!(refused(&|image| image.remove(second).unwrap()), Refusal::Missing { file } if file.ends_with(second))
    );
    let short = refused(&|image| assert!(image.truncate(second, len - 1)));
    assert!(matches!(short, Refusal::Length { found, wanted, .. } if found + 1 == wanted && wanted == len as u64));
    let swapped = |image: &SimFolder| image.put(second, &image.contents("0000000001.ssd").unwrap());
    assert!(matches!(refused(&swapped), Refusal::Damaged { .. } | Refusal::Length { .. }));
    assert!(matches!(refused(&|image| assert!(image.damage(second, 0, b"\x7fELF"))), Refusal::Foreign { .. }));
    for (name, at) in [("manifest", 8), (second, 8), (second, len - 192)] {
        let newer = refused(&|image| assert!(image.damage(name, at, &2u32.to_le_bytes())));
        assert!(matches!(&newer, Refusal::Version { found: 2, known: 1, file } if file.ends_with(name)), "{newer}");
    }
    let other = Tier::open(Arc::new(folder.copy()), StoreId(Uuid::from_u128(4)), CACHE).unwrap_err();
    assert!(matches!(other, SsdError::Refused(Refusal::OtherStore { .. })), "{other}");
    assert!(matches!(refused(&|image| image.put("manifest", b"")), Refusal::Damaged { .. }));
}

#[test]
fn a_cache_that_holds_nothing_costs_a_read_and_no_record() {
    let folder = SimFolder::new();
    let tier = Tier::open(Arc::new(folder.clone()), STORE, 0).unwrap();
    add(&tier, &run(1, 0, 1000), 1).unwrap();
    add(&tier, &run(1, 1000, 2000), 2).unwrap();
    assert_eq!(read_all(&tier, 1).unwrap().len(), 2000);
    let ample = Tier::open(Arc::new(folder.clone()), STORE, CACHE).unwrap();
    assert!(ample.usage().index_bytes > tier.usage().index_bytes);
    // With the index in the cache a read is one read of the file.
    folder.fail_read(2);
    assert!(read_one(&ample, 1, n(3)).unwrap().is_some());
    assert!(read_one(&ample, 1, n(1003)).is_err());
}

#[test]
fn the_tier_works_on_a_real_folder() {
    let mut places = vec![tempfile::tempdir().unwrap()];
    places.extend(tempfile::tempdir_in("/dev/shm"));
    for dir in places {
        let folder: Arc<dyn Folder> = Arc::new(DirFolder::new(dir.path()));
        let tier = Tier::open(folder.clone(), STORE, CACHE).unwrap();
        add(&tier, &run(1, 0, 9000), 1).unwrap();
        add(&tier, &run(2, 0, 100), 2).unwrap();
        tier.trim(&|color| (color == Color(1)).then_some(n(8000))).unwrap();
        tier.trim(&|color| (color == Color(2)).then_some(n(99))).unwrap();
        let again = Tier::open(folder, STORE, CACHE).unwrap();
        assert_eq!(again.files(), tier.files());
        assert_eq!(again.verify(&|color| (color == Color(1)).then_some(n(8000))), vec![]);
        let mut found = Vec::new();
        again.read(Color(1), n(8001), SeqNum::MAX, usize::MAX, usize::MAX, &mut found).unwrap();
        assert_eq!(found.len(), 999);
    }
}

#[test]
fn readers_go_on_while_files_come_and_go() {
    let folder = SimFolder::new();
    let tier = open(&folder).unwrap();
    add(&tier, &run(1, 0, 2000), 1).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let tier = tier.clone();
            scope.spawn(move || {
                for at in (0..2000).chain(0..2000) {
                    assert!(read_one(&tier, 1, n(at)).unwrap().is_some(), "{at}");
                    // What is being trimmed may be gone, but is never wrong.
                    if let Some(found) = read_one(&tier, 2, n(at)).unwrap() {
                        assert_eq!(found.payload(), format!("2/{at}").as_bytes());
                    }
                }
            });
        }
        for round in 0..10 {
            add(&tier, &run(2, 200 * round, 200 * (round + 1)), 2 + u64::from(round)).unwrap();
            tier.trim(&|color| (color == Color(2)).then_some(n(200 * round + 100))).unwrap();
        }
    });
}
