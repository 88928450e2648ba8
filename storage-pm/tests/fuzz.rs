//! Fuzz targets for what comes from the SSD tier's disk: runs a while inside `cargo test`, and as long as one likes under
//! `cargo bolero test`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod ssd_common;

use std::sync::Arc;

use flexlog_protocol::{Color, Lsn, SeqNum, Tag};
use flexlog_storage_pm::ssd::{FileMeta, Manifest, SimFolder, SsdFile};
use ssd_common::*;

const FILE: &str = "0000000001.ssd";

fn sample() -> Model {
    let mut model = run(1, 0, 40);
    model.extend(run(2, 7, 9));
    model.insert((Color(5), n(3)), record(vec![1; 20_000], &[b"t"]));
    model.insert((Color(5), n(4)), record("tagged", &[b"t", b"u"]));
    model
}

/// Reads all that a file gives out. `model`: what its records may be.
fn use_up(folder: &SimFolder, meta: FileMeta, model: Option<&Model>) {
    let Ok(file) = SsdFile::open(folder, STORE, meta) else { return };
    let file = Arc::new(file);
    let _ = file.verify(&never);
    let _ = file.tags(Color(5), &Tag::new("t").unwrap());
    let Ok(index) = file.index() else { return };
    for color in [1, 2, 5] {
        let mut found = Vec::new();
        let read = file.read(&index, Color(color), SeqNum::MIN, SeqNum::MAX, 100, 1 << 20, &mut found);
        if let Some(model) = model {
            let wanted = of_color(model, Color(color), SeqNum::MIN, SeqNum::MAX);
            assert!(wanted.starts_with(&found));
            assert!(read.is_err() || found.len() == wanted.len(), "a record is missing and nobody says so");
        }
    }
    let _ = file.reclaim(&index, &|_| Some(SeqNum::MAX));
    assert!(file.all_trimmed(&index, &|_| Some(SeqNum::MAX)));
}

#[test]
fn an_ssd_file_of_any_bytes() {
    bolero::check!().with_type::<(Vec<u8>, u64)>().for_each(|(bytes, records)| {
        let folder = SimFolder::new();
        folder.put(FILE, bytes);
        let meta = FileMeta { id: 1, bytes: bytes.len() as u64, records: *records, upto: Lsn(1), sources: vec![] };
        use_up(&folder, meta, None);
    });
}

/// Checksums stop most of what arbitrary bytes could do, so here they are made right again.
fn mend(bytes: &mut [u8]) {
    use flexlog_protocol::checksum::{crc32c, crc32c_append};
    let len = bytes.len();
    let seed = crc32c_append(crc32c(STORE.0.as_bytes()), &1u64.to_le_bytes());
    let crc = crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    let footer = len - 192;
    for nth in 0..5 {
        let row = footer + 56 + nth * 24;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (at, of) = (word(row) as usize, word(row + 8) as usize);
        if let Some(region) = at.checked_add(of).and_then(|end| bytes.get(at..end)) {
            let crc = crc32c_append(seed, region);
            bytes[row + 16..row + 20].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let crc = crc32c(&bytes[footer..len - 12]);
    bytes[len - 12..len - 8].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn an_ssd_file_that_was_changed() {
    let model = sample();
    let folder = SimFolder::new();
    let tier = open(&folder).unwrap();
    let meta = add(&tier, &model, 1).unwrap();
    let bytes = folder.contents(FILE).unwrap();
    bolero::check!().with_type::<(Vec<(u32, u8)>, bool)>().for_each(|(changes, mended)| {
        let mut bad = bytes.clone();
        for (at, to) in changes {
            // Every other change goes to the indexes and the footer, which are a small part of the file.
            let (at, tail) = (*at as usize, 1400.min(bad.len()));
            let at = if at % 2 == 0 { at / 2 % bad.len() } else { bad.len() - 1 - at / 2 % tail };
            bad[at] = *to;
        }
        if *mended {
            mend(&mut bad);
        }
        let folder = SimFolder::new();
        folder.put(FILE, &bad);
        use_up(&folder, meta.clone(), (!mended).then_some(&model));
    });
}

#[test]
fn a_manifest_of_any_bytes() {
    bolero::check!().with_type::<(Vec<u8>, bool)>().for_each(|(bytes, mended)| {
        let mut bytes = bytes.clone();
        if *mended {
            bytes.splice(0..0, *b"FLEXLOGM\x01\0\0\0\x01\0\0\0");
            bytes.splice(16..16, *STORE.0.as_bytes());
            let crc = flexlog_protocol::checksum::crc32c(&bytes);
            bytes.extend_from_slice(&crc.to_le_bytes());
        }
        if let Ok(manifest) = Manifest::decode(&bytes, STORE, "manifest") {
            let again = Manifest::decode(&manifest.encode(), STORE, "manifest").unwrap();
            assert_eq!(again, manifest);
        }
    });
}
