//! What a look into a store says, and the bytes of the formats.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "tests")]

mod common;
#[path = "common/small.rs"]
mod small;

use flexlog_protocol::media::LogStore;
use flexlog_protocol::{Color, Lsn};
use flexlog_storage_pm::OpenError;
use flexlog_storage_pm::inspect::{Depth, KINDS, SegmentState, examine, list_entries};
use flexlog_storage_pm::ssd::{Refusal, SimFolder, SsdError};
use small::{COLORS, FILE, Small, look, media_of, n, open, small};

#[test]
fn a_sound_store_has_no_faults_and_all_of_it_is_told() {
    let Small { media, folder, written } = small();
    let report = look(&media, &folder);
    assert_eq!(report.findings, vec![], "{report:#?}");
    let identity = report.identity.unwrap();
    assert_eq!((identity.version, identity.opened, identity.tiered, identity.intent), (4, 1, true, false));
    assert!(report.superblocks.iter().all(|copy| copy.good));
    assert_eq!(report.superblocks.iter().filter(|copy| copy.counts).count(), 1);
    assert_eq!((report.log.last, report.log.clean), (written.entries.last().unwrap().lsn, true));
    assert_eq!(report.fence.map(|fence| fence.epoch.0), Some(1));
    let checkpoint = report.checkpoint.as_ref().unwrap();
    assert_eq!((checkpoint.state_bytes, checkpoint.staged, checkpoint.trims), (16, 1, 1));
    let live: Vec<_> = report.segments.iter().filter(|segment| segment.state == SegmentState::Live).collect();
    assert!(!live.is_empty() && live.iter().all(|segment| segment.generation.is_some() && segment.used > 0));
    assert_eq!(live.iter().map(|segment| segment.staged).sum::<u64>(), 1);
    let mut kinds = [0; KINDS.len()];
    live.iter().for_each(|segment| kinds.iter_mut().zip(segment.entries).for_each(|(sum, count)| *sum += count));
    assert_eq!(kinds.iter().sum::<u64>(), report.log.entries);
    assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
    // What was trimmed is in the SSD file still, and not in the area.
    let count = |color: u64| written.records.keys().filter(|(c, _)| c.0 == color).count() as u64;
    for (color, trim) in [(1, None), (2, Some(n(2))), (3, None)] {
        let row = report.colors.iter().find(|row| row.color == Color(color)).unwrap();
        let there = [row.area, row.ssd].into_iter().flatten().map(|numbers| numbers.records).sum::<u64>();
        assert_eq!((there, row.trim), (count(color), trim), "{row:?}");
    }
    assert_eq!(report.records(), written.records.len() as u64);
    let ssd = report.ssd.as_ref().unwrap();
    assert_eq!((ssd.files.len(), ssd.next_id), (1, 2));
    assert!(ssd.files[0].upto <= report.log.last && !ssd.files[0].sources.is_empty());
    // Looking at the contents alone says the same.
    assert_eq!(examine(&media.device(), "sim", Some(&folder), Depth::Contents), report);

    let mut lines = Vec::new();
    list_entries(&media.device(), &report, &mut |entry| {
        lines.push(entry.clone());
        true
    })
    .unwrap();
    assert_eq!(lines.len() as u64, report.log.entries);
    let lsns: Vec<Lsn> = lines.iter().filter_map(|line| line.lsn).collect();
    assert!(lsns.is_sorted() && lsns.last() == Some(&report.log.last), "{lsns:?}");
    let last = lines.last().unwrap();
    assert_eq!(last.offset + last.bytes.next_multiple_of(8), report.log.offset);
    assert!(last.says.contains("1/1.15..1.15"), "{last:?}");
}

#[test]
fn damage_in_two_places_is_told_with_both() {
    let Small { media, folder, .. } = small();
    let bytes = media.bytes();
    let report = look(&media, &folder);
    let mut places = Vec::new();
    list_entries(&media.device(), &report, &mut |entry| {
        places.push(entry.offset);
        true
    })
    .unwrap();
    let (a, b) = (places[1], places[places.len() - 4]);
    for at in [a, b] {
        media.damage(at + 30, &[bytes[at as usize + 30] ^ 1]);
    }
    let report = look(&media, &folder);
    let offsets: Vec<u64> = report.faults().filter_map(|finding| finding.offset).collect();
    assert!(offsets.contains(&a) && offsets.contains(&b), "{a} {b} {:#?}", report.findings);
    // It goes on behind damage; of the last entry nothing says that it was durable.
    assert_eq!(report.log.entries as usize, places.len() - 3);
}

#[test]
fn what_the_files_lack_and_have_too_much_is_told() {
    let Small { media, folder, .. } = small();
    // Not in the manifest: no fault.
    let more = folder.copy();
    more.put("0000000009.ssd", b"left over");
    more.put("manifest.tmp", b"");
    let report = look(&media, &more);
    assert!(report.is_sound() && report.findings.len() == 2, "{:?}", report.findings);
    let gone = SimFolder::new();
    gone.put("manifest", &folder.contents("manifest").unwrap());
    let report = look(&media, &gone);
    assert!(
        report.faults().any(|fault| fault.file.ends_with(FILE) && fault.what.contains("missing")),
        "{:?}",
        report.findings
    );
    // And each record that was in it is missed where it got its number.
    let report = look(&media, &SimFolder::new());
    assert!(report.faults().any(|fault| fault.file.ends_with("/manifest") && fault.what.contains("missing")));
    let report = examine(&media.device(), "sim", None, Depth::Everything);
    assert!(report.faults().any(|fault| fault.what.contains("--ssd")), "{:?}", report.findings);
    let short = folder.copy();
    assert!(short.truncate(FILE, 500));
    let report = look(&media, &short);
    assert!(report.faults().any(|fault| fault.file.ends_with(FILE) && fault.what.contains("500 bytes")));
}

#[test]
fn an_area_that_lost_its_newest_segments_does_not_fit_the_files() {
    let Small { media, folder, .. } = small();
    let report = look(&media_of(&media.bytes()[..8192]), &folder);
    assert!(report.faults().any(|fault| fault.what.contains("the area lost its end")), "{:?}", report.findings);
}

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Reading what version 4 wrote, and writing the same again. To make them: run with `WRITE_GOLDEN=1`, and know that a file
/// that changes without a new version breaks every store there is.
#[test]
fn golden_files_of_version_4_are_read_and_written() {
    let Small { media, folder, written } = small();
    let made = [
        ("v4.area", media.bytes()),
        ("v4.area.ssd", folder.contents(FILE).unwrap()),
        ("v4.area.manifest", folder.contents("manifest").unwrap()),
    ];
    for (name, bytes) in made {
        if std::env::var_os("WRITE_GOLDEN").is_some() {
            std::fs::write(format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR")), &bytes).unwrap();
        }
        assert!(bytes == golden(name), "{name} is not written as version 4 was");
    }
    let (media, folder) = (media_of(&golden("v4.area")), SimFolder::new());
    folder.put(FILE, &golden("v4.area.ssd"));
    folder.put("manifest", &golden("v4.area.manifest"));
    assert_eq!(look(&media, &folder).findings, vec![]);
    let (store, recovered) = open(&media, &folder).unwrap();
    let (upto, state) = recovered.checkpoint.unwrap();
    assert_eq!(&state[..], b"the second state");
    assert_eq!(recovered.entries, written.entries[upto.0 as usize..]);
    assert_eq!((recovered.staged.len(), recovered.staged[0].color), (1, Color(3)));
    for color in COLORS {
        let wanted = written.records.iter().filter(|((c, number), _)| c.0 == color && (color != 2 || *number > n(2)));
        let wanted: Vec<_> = wanted.map(|((_, number), record)| (*number, record.clone())).collect();
        assert_eq!(common::read_all(&store, color), wanted, "color {color}");
    }
    assert!(store.read_staged(recovered.staged[0].token).unwrap().is_some());
}

#[test]
fn another_version_of_each_file_is_refused_and_left_as_it_is() {
    let area = golden("v4.area");
    let files = || {
        let folder = SimFolder::new();
        folder.put(FILE, &golden("v4.area.ssd"));
        folder.put("manifest", &golden("v4.area.manifest"));
        folder
    };
    // Of the area, one copy is enough.
    for (at, version) in [(8, 5), (4096 + 8, 5), (8, 3), (4096 + 8, 3)] {
        let (media, folder) = (media_of(&area), files());
        media.damage(at, &[version]);
        let before = media.bytes();
        let error = open(&media, &folder).unwrap_err();
        let refused = matches!(error, OpenError::Version { found, known: 4, .. } if found == u32::from(version));
        assert!(refused, "{error}");
        let report = look(&media, &folder);
        let told = format!("format version {version}");
        assert!(report.faults().any(|fault| fault.file == "sim" && fault.what.contains(&told)));
        assert!(media.bytes() == before, "it was left as it is");
    }
    for name in [FILE, "manifest"] {
        let (media, folder) = (media_of(&area), files());
        assert!(folder.damage(name, 8, &[2]));
        let before = folder.contents(name).unwrap();
        let error = open(&media, &folder).unwrap_err();
        assert!(matches!(error, OpenError::Ssd(SsdError::Refused(Refusal::Version { found: 2, .. }))), "{error}");
        assert!(error.to_string().contains(name), "{error}");
        let report = look(&media_of(&area), &folder);
        let told = |fault: &flexlog_storage_pm::inspect::Finding| {
            fault.file.ends_with(name) && fault.what.contains("format version 2")
        };
        assert!(report.faults().any(told), "{:?}", report.findings);
        assert!(folder.contents(name).unwrap() == before, "{name} was left as it is");
    }
}
