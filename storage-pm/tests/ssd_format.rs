//! The bytes of the SSD tier: golden files of each format version, and damage of every kind to small files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "tests")]

mod ssd_common;

use std::sync::Arc;

use flexlog_protocol::{Color, Lsn, Record, SeqNum, Tag};
use flexlog_storage_pm::ssd::{FileMeta, Folder, Manifest, Refusal, SimFolder, SsdError, SsdFile, Tier, Writer};
use ssd_common::*;

const FILE: &str = "0000000001.ssd";

/// A few colors, tags, an empty record, and a block of its own.
fn small() -> Model {
    let mut model = Model::new();
    let mut put = |color, at, record: Record| drop(model.insert((Color(color), at), record));
    put(1, n(0), record("first", &[b"a"]));
    put(1, n(1), record("", &[]));
    put(1, n(5), record("third", &[b"b", b"a"]));
    put(1, SeqNum::from_raw((7 << 32) | 2), record("later epoch", &[b""]));
    put(2, n(3), record([0xff; 100], &[b"a"]));
    put(9, n(0), record("last", &[]));
    model
}

fn write_small(folder: &SimFolder) -> Tier {
    let tier = open(folder).unwrap();
    add(&tier, &small(), 5).unwrap();
    tier
}

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Reading what version 1 wrote, and writing the same again. To make them: run with `WRITE_GOLDEN=1`, and know that a
/// file that changes without a new version breaks every store there is.
#[test]
fn golden_files_of_version_1_are_read_and_written() {
    let folder = SimFolder::new();
    write_small(&folder);
    for (name, golden_name) in [(FILE, "v1.ssd"), ("manifest", "v1.manifest")] {
        let bytes = folder.contents(name).unwrap();
        if std::env::var_os("WRITE_GOLDEN").is_some() {
            std::fs::write(format!("{}/tests/golden/{golden_name}", env!("CARGO_MANIFEST_DIR")), &bytes).unwrap();
        }
        assert!(bytes == golden(golden_name), "{name} is not written as version 1 was");
    }
    let folder = SimFolder::new();
    folder.put(FILE, &golden("v1.ssd"));
    folder.put("manifest", &golden("v1.manifest"));
    let tier = open(&folder).unwrap();
    assert_eq!(tier.files(), [FileMeta { id: 1, bytes: 936, records: 6, upto: Lsn(5), sources: vec![5, 6] }]);
    assert_eq!(tier.verify(&never), vec![]);
    for color in 0..10 {
        assert_eq!(read_all(&tier, color).unwrap(), of_color(&small(), Color(color), SeqNum::MIN, SeqNum::MAX));
    }
    assert_eq!(tier.tags(Color(1), &Tag::new("a").unwrap()).unwrap(), [n(0), n(5)]);
    assert_eq!(tier.tags(Color(1), &Tag::new("").unwrap()).unwrap(), [SeqNum::from_raw((7 << 32) | 2)]);
    // The next file goes on from there.
    assert_eq!(add(&tier, &run(3, 0, 1), 6).unwrap().id, 2);
}

/// A tier over changed bytes: refused, or what it gives out is right, and what is missing is told.
fn refused_or_right(folder: &SimFolder, model: &Model, what: &str) -> bool {
    let tier = match open(folder) {
        Ok(tier) => tier,
        Err(SsdError::Refused(_)) => return false,
        Err(other) => panic!("{what}: {other}"),
    };
    for color in [0, 1, 2, 3, 9, u64::MAX] {
        let wanted = of_color(model, Color(color), SeqNum::MIN, SeqNum::MAX);
        let mut found = Vec::new();
        match tier.read(Color(color), SeqNum::MIN, SeqNum::MAX, usize::MAX, usize::MAX, &mut found) {
            Ok(_) => assert_eq!(found, wanted, "{what}: color {color}"),
            Err(SsdError::Damaged { number, color: of, .. }) => {
                // Up to the damaged one all is there.
                assert!(wanted.starts_with(&found) && of == Color(color), "{what}: color {color}");
                assert!(wanted.get(found.len()).is_some_and(|(next, _)| number <= *next), "{what}: {color}/{number}");
            }
            Err(other) => panic!("{what}: {other}"),
        }
        for (at, record) in &wanted {
            match read_one(&tier, color, *at) {
                Ok(found) => assert_eq!(found.as_ref(), Some(record), "{what}: {color}/{at}"),
                Err(SsdError::Damaged { number, .. }) => assert_eq!(number, *at, "{what}"),
                Err(other) => panic!("{what}: {other}"),
            }
            match tier.last(Color(color), SeqNum::MIN, SeqNum::from_raw(at.to_raw() + 1)) {
                Ok(found) => assert_eq!(found.as_ref(), Some(&(*at, record.clone())), "{what}: {color}/{at}"),
                Err(SsdError::Damaged { number, .. }) => assert!(number <= *at, "{what}"),
                Err(other) => panic!("{what}: {other}"),
            }
        }
        for tag in [&b"a"[..], b"b", b"", b"c"] {
            let tag = Tag::new(tag.to_vec()).unwrap();
            let has = |(at, record): &(SeqNum, Record)| record.tags().contains(&tag).then_some(*at);
            match tier.tags(Color(color), &tag) {
                Ok(found) => assert_eq!(found, wanted.iter().filter_map(has).collect::<Vec<_>>(), "{what}"),
                Err(SsdError::Refused(Refusal::Damaged { .. })) => {}
                Err(other) => panic!("{what}: {other}"),
            }
        }
    }
    true
}

#[test]
fn every_flipped_bit_of_a_file_is_noticed_and_no_wrong_record_is_read() {
    let folder = SimFolder::new();
    let model = small();
    write_small(&folder);
    let bytes = folder.contents(FILE).unwrap();
    let mut opened = 0;
    for bit in 0..bytes.len() * 8 {
        let image = folder.copy();
        assert!(image.damage(FILE, bit / 8, &[bytes[bit / 8] ^ 1 << (bit % 8)]));
        let what = format!("bit {} of byte {}", bit % 8, bit / 8);
        if refused_or_right(&image, &model, &what) {
            opened += 1;
            let faults = open(&image).unwrap().verify(&never);
            assert!(!faults.is_empty(), "{what} is not noticed");
        }
    }
    assert!(opened > 3000 && opened < bytes.len() * 8, "{opened} of {}", bytes.len() * 8);
}

#[test]
fn one_damaged_record_costs_that_record_only() {
    let folder = SimFolder::new();
    let model = small();
    write_small(&folder);
    let bytes = folder.contents(FILE).unwrap();
    let at = bytes.windows(5).position(|window| window == b"third").unwrap();
    let tier = open(&folder).unwrap();
    // Its bytes; its header; and what says how long it is.
    for place in [at, at - 28 - 5, at - 28 - 5 + 16] {
        let image = folder.copy();
        assert!(image.damage(FILE, place, &[bytes[place] ^ 0x40]));
        let tier = open(&image).unwrap();
        for ((color, number), record) in &model {
            let found = read_one(&tier, color.0, *number);
            if (*color, *number) == (Color(1), n(5)) {
                assert!(matches!(found, Err(SsdError::Damaged { color: Color(1), number, .. }) if number == n(5)));
            } else {
                assert_eq!(found.unwrap().as_ref(), Some(record), "{color}/{number}, byte {place}");
            }
        }
    }
    // A copy in another file heals it, where it is known which number it was.
    assert!(folder.damage(FILE, at, b"T"));
    assert!(read_one(&tier, 1, n(5)).is_err() && read_all(&tier, 1).is_err());
    let healed: Model = model.clone().into_iter().filter(|(key, _)| *key == (Color(1), n(5))).collect();
    add(&tier, &healed, 6).unwrap();
    assert_eq!(read_one(&tier, 1, n(5)).unwrap(), healed.values().next().cloned());
    assert_eq!(read_all(&tier, 1).unwrap(), of_color(&model, Color(1), SeqNum::MIN, SeqNum::MAX));
}

#[test]
fn every_truncation_of_a_file_is_refused() {
    let folder = SimFolder::new();
    write_small(&folder);
    let bytes = folder.contents(FILE).unwrap();
    let manifest = Manifest::decode(&folder.contents("manifest").unwrap(), STORE, "m").unwrap();
    for len in 0..bytes.len() {
        let image = folder.copy();
        assert!(image.truncate(FILE, len));
        assert!(matches!(open(&image), Err(SsdError::Refused(Refusal::Length { .. }))), "{len} bytes");
        // Even where the manifest agrees with the length.
        let meta = FileMeta { bytes: len as u64, ..manifest.files[0].clone() };
        assert!(SsdFile::open(&image, STORE, meta).is_err(), "{len} bytes");
    }
}

#[test]
fn zeros_and_pages_of_elsewhere_are_noticed() {
    let folder = SimFolder::new();
    let tier = open(&folder).unwrap();
    let model: Model = (0..300).map(|at| ((Color(1), n(at)), record(vec![at as u8; 300], &[]))).collect();
    add(&tier, &model, 1).unwrap();
    let bytes = folder.contents(FILE).unwrap();
    for page in 0..bytes.len() / 4096 {
        for from in [None, Some(0), Some(page + 1), Some(page + 4)] {
            let there = from.and_then(|from| bytes.get(from * 4096..(from + 1) * 4096));
            let image = folder.copy();
            assert!(image.damage(FILE, page * 4096, there.unwrap_or(&[0; 4096])));
            let Ok(tier) = open(&image) else { continue };
            assert_eq!(tier.verify(&never).is_empty(), there == Some(&bytes[page * 4096..(page + 1) * 4096]));
            let mut bad = 0;
            for ((_, number), record) in &model {
                match read_one(&tier, 1, *number) {
                    Ok(found) => assert_eq!(found.as_ref(), Some(record)),
                    Err(SsdError::Damaged { .. }) => bad += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            // Those of the page, and those beside it in part.
            assert!(bad <= 4096 / 328 + 2, "page {page}: {bad} records");
        }
    }
}

#[test]
fn a_payload_that_looks_like_a_record_is_none() {
    // What a client knows of the format, but for the seed.
    let mut fake = Vec::new();
    fake.extend_from_slice(&1u64.to_le_bytes());
    fake.extend_from_slice(&n(1).to_raw().to_le_bytes());
    fake.extend_from_slice(&4u32.to_le_bytes());
    fake.extend_from_slice(&[0; 8]);
    fake.extend_from_slice(b"\0abc");
    let folder = SimFolder::new();
    let tier = open(&folder).unwrap();
    let mut model = run(1, 0, 1);
    model.insert((Color(1), n(2)), record(fake.repeat(20), &[]));
    add(&tier, &model, 1).unwrap();
    // Its own header is lost, so its payload is searched for the next record.
    assert!(folder.damage(FILE, 64 + 16 + 32, &[0xee; 8]));
    assert!(matches!(read_one(&tier, 1, n(1)), Err(SsdError::Damaged { .. })), "it may have been this one");
    assert_eq!(read_one(&tier, 1, n(0)).unwrap().as_ref(), Some(&model[&(Color(1), n(0))]));
}

#[test]
fn every_flipped_bit_and_truncation_of_a_manifest_is_refused() {
    let folder = SimFolder::new();
    write_small(&folder);
    let bytes = folder.contents("manifest").unwrap();
    let manifest = Manifest::decode(&bytes, STORE, "m").unwrap();
    assert_eq!(manifest.encode(), bytes);
    for len in 0..bytes.len() {
        assert!(Manifest::decode(&bytes[..len], STORE, "m").is_err(), "{len} bytes");
    }
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Manifest::decode(&bad, STORE, "m").is_err(), "bit {bit}");
        let image = folder.copy();
        image.put("manifest", &bad);
        assert!(matches!(open(&image), Err(SsdError::Refused(_))), "bit {bit}");
        assert!(image.contents(FILE).is_some(), "what it lists is never removed for it");
    }
    let longer = [&bytes[..], &[0; 8]].concat();
    assert!(Manifest::decode(&longer, STORE, "m").is_err());
}

#[test]
fn a_file_is_the_same_however_it_is_written() {
    let (a, b) = (SimFolder::new(), SimFolder::new());
    write_small(&a);
    let mut writer = Writer::new(Arc::new(b.clone()) as Arc<dyn Folder>, 1, STORE).unwrap();
    for ((color, number), record) in &small() {
        writer.add(*color, *number, record.crc(), &encoded(record)).unwrap();
    }
    let meta = writer.finish(Lsn(5), vec![5, 6]).unwrap();
    assert_eq!(a.contents(FILE), b.contents(FILE));
    let file = Arc::new(SsdFile::open(&b, STORE, meta).unwrap());
    let index = file.index().unwrap();
    assert_eq!(
        index.colors().iter().map(|row| (row.color.0, row.records)).collect::<Vec<_>>(),
        [(1, 4), (2, 1), (9, 1)]
    );
    let mut found = Vec::new();
    file.read(&index, Color(1), n(1), SeqNum::MAX, 2, usize::MAX, &mut found).unwrap();
    assert_eq!(found.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [n(1), n(5)]);
    assert!(!file.all_trimmed(&index, &|color| (color != Color(9)).then_some(SeqNum::MAX)));
    assert!(file.all_trimmed(&index, &|_| Some(SeqNum::MAX)));
}

#[test]
fn an_empty_file_is_possible_and_goes_with_the_first_trim() {
    let folder = SimFolder::new();
    let tier = open(&folder).unwrap();
    add(&tier, &Model::new(), 1).unwrap();
    let tier = open(&folder).unwrap();
    assert_eq!((tier.files().len(), tier.verify(&never)), (1, vec![]));
    assert_eq!(tier.trim(&never).unwrap().files, 1);
}
