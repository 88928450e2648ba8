//! What a member that comes back does with its store: it takes back what never settled, copies what it lacks, and goes on
//! behind a checkpoint far above its last entry.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;
#[path = "common/each.rs"]
mod each;

use std::sync::Arc;

use common::{append, open, open_tiered, options, read_all, token};
use each::{assign, entry, fence_any, n, with_each};
use flexlog_protocol::media::{LogStore, Recovered, StoreError};
use flexlog_protocol::{Assign, Body, Color, Entry, Epoch, Lsn, Record, SeqNum, Tag, Time, limits};
use flexlog_storage_pm::Options;
use flexlog_storage_pm::device::SimMedia;
use flexlog_storage_pm::inspect::{Depth, Report, examine, list_entries};
use flexlog_storage_pm::ssd::SimFolder;
use uuid::Uuid;

fn at(epoch: u32, counter: u32) -> SeqNum {
    SeqNum::new(Epoch(epoch), counter)
}

/// Records that tell which they are: with tags, and empty ones among them.
fn records(from: u32, count: u32) -> Vec<Record> {
    let tags = |i: u32| (0..i % 3).map(|t| Tag::new(vec![t as u8; t as usize]).unwrap()).collect();
    let payload = |i: u32| if i.is_multiple_of(4) { Vec::new() } else { vec![i as u8; (i % 50) as usize * 4] };
    (from..from + count).map(|i| Record::with_tags(payload(i), tags(i)).unwrap()).collect()
}

fn numbered(first: SeqNum, records: &[Record]) -> Vec<(SeqNum, Record)> {
    (0..).zip(records).map(|(i, record)| (first.plus(i).unwrap(), record.clone())).collect()
}

fn entries(list: &[Entry]) -> Vec<Arc<Entry>> {
    list.iter().cloned().map(Arc::new).collect()
}

fn look(media: &SimMedia, folder: Option<&SimFolder>) -> Report {
    let folder = folder.map(|folder| folder as &dyn flexlog_storage_pm::ssd::Folder);
    examine(&media.device(), "sim", folder, Depth::Everything)
}

fn tokens(recovered: &Recovered) -> Vec<u64> {
    recovered.staged.iter().map(|staged| staged.token.seq).collect()
}

fn lsns(recovered: &Recovered) -> Vec<(u64, u32)> {
    recovered.entries.iter().map(|entry| (entry.lsn.0, entry.epoch.0)).collect()
}

#[test]
fn copied_records_read_like_numbered_ones_on_every_device() {
    with_each(options(65536, 8), |name, reopen| {
        let (mut store, _) = reopen();
        // What was there before, then two epochs of another color and more of this one.
        store.stage(&append(1, 1, &[b"own".to_vec()])).unwrap();
        store.append(&assign(1, 1, 1, 0, 1)).unwrap();
        store.copy(Color(1), n(1), &records(1, 300)).unwrap();
        store.copy(Color(2), at(1, 7), &records(0, 1)).unwrap();
        store.copy(Color(2), at(5, 0), &records(2, 5)).unwrap();
        store.copy(Color(2), at(5, 5), &[]).unwrap();
        let mut one = vec![(n(0), Record::new("own").unwrap())];
        one.extend(numbered(n(1), &records(1, 300)));
        let mut two = numbered(at(1, 7), &records(0, 1));
        two.extend(numbered(at(5, 0), &records(2, 5)));
        let check = |store: &dyn LogStore, when: &str| {
            assert!(read_all(store, 1) == one, "{name}, {when}");
            assert_eq!(read_all(store, 2), two, "{name}, {when}");
            assert_eq!(store.prev_through(Color(2), at(4, 9)).unwrap(), two.first().cloned(), "{name}, {when}");
            assert_eq!((store.usage().records, store.usage().staged_tokens), (307, 0), "{name}, {when}");
        };
        check(&*store, "before any fence");
        fence_any(&mut *store);
        check(&*store, "after");
        drop(store);
        let (store, recovered) = reopen();
        assert_eq!((lsns(&recovered), tokens(&recovered)), (vec![(1, 1)], vec![]), "{name}");
        check(&*store, "recovered");
    });
}

#[test]
fn what_is_copied_twice_is_there_once() {
    let media = SimMedia::new(1 << 20);
    let (mut store, _) = open(&media, options(4096, 12)).unwrap();
    store.stage(&append(1, 1, &[vec![9; 20], vec![8; 20]])).unwrap();
    store.append(&assign(1, 1, 1, 4, 2)).unwrap();
    let own: Vec<Record> = read_all(&store, 1).into_iter().map(|(_, record)| record).collect();
    let all: Vec<Record> = records(0, 4).into_iter().chain(own).chain(records(6, 30)).collect();
    // Around what was numbered here, over and over, never twice the same pieces.
    for step in [36, 5, 7] {
        let mut from = 0;
        for piece in all.chunks(step) {
            store.copy(Color(1), n(from), piece).unwrap();
            from += piece.len() as u32;
        }
        assert_eq!(read_all(&store, 1), numbered(n(0), &all));
        assert_eq!(store.usage().records, 36);
    }
    fence_any(&mut store);
    drop(store);
    let (mut store, _) = open(&media.crash(1), options(4096, 12)).unwrap();
    assert_eq!(read_all(&store, 1), numbered(n(0), &all));
    assert_eq!(look(&media, None).findings, vec![]);
    // A trim takes all of them.
    store.trim(Color(1), n(20));
    assert_eq!(read_all(&store, 1), numbered(n(21), &all[21..]));
    store.copy(Color(1), n(18), &all[18..24]).unwrap();
    assert_eq!(read_all(&store, 1), numbered(n(21), &all[21..]), "what is trimmed stays so");
}

#[test]
fn a_copy_is_full_as_staging_is_and_trim_gives_its_space_back() {
    with_each(options(65536, 6), |name, reopen| {
        let (mut store, _) = reopen();
        let record = Record::new(vec![5; 1000]).unwrap();
        let (mut next, mut upto) = (0, 0);
        for round in 0..3 {
            loop {
                let before = (store.usage().segments, store.usage().records);
                match store.copy(Color(1), n(next), &[record.clone(), record.clone()]) {
                    Ok(()) => next += 2,
                    Err(StoreError::Full { .. }) => {
                        let after = (store.usage().segments, store.usage().records);
                        assert_eq!(before, after, "{name}: a refused copy writes nothing");
                        break;
                    }
                    Err(error) => panic!("{name}: {error}"),
                }
            }
            assert!(store.usage().records >= 40, "{name}, round {round}: {:?}", store.usage());
            assert!(
                matches!(store.stage(&append(1, 1, &vec![vec![1; 1000]; 2])), Err(StoreError::Full { .. })),
                "{name}"
            );
            upto += 100;
            store.trim(Color(1), n(next - 2));
            assert_eq!(read_all(&*store, 1), [(n(next - 1), record.clone())], "{name}");
            assert!(store.checkpoint_wanted(), "{name}");
            store.checkpoint(Lsn(upto), b"state").unwrap();
            fence_any(&mut *store);
        }
        drop(store);
        let (store, recovered) = reopen();
        assert_eq!(recovered.checkpoint.unwrap().0, Lsn(300), "{name}");
        assert_eq!(read_all(&*store, 1), [(n(next - 1), record.clone())], "{name}");
    });
}

#[test]
fn copied_records_move_to_ssd_files_without_any_entry() {
    let (media, folder) = (SimMedia::new(1 << 20), SimFolder::new());
    let options = Options { high_mark: 20, ..options(4096, 16) };
    let (mut store, _) = open_tiered(&media, &folder, options).unwrap();
    let all = records(0, 200);
    let copy = |store: &mut dyn LogStore, from: usize, upto: usize| {
        for at in (from..upto).step_by(10) {
            store.copy(Color(1), n(at as u32), &all[at..at + 10]).unwrap();
        }
        fence_any(store);
    };
    copy(&mut store, 0, 200);
    let mut now = Time(0);
    while let Some(work) = store.background(now, Lsn(0)).unwrap() {
        work();
        now = now.after(2_000_000);
    }
    let moved = store.usage().ssd_records;
    assert!(moved > 100 && store.usage().records + moved == 200, "{:?}", store.usage());
    assert_eq!(read_all(&store, 1), numbered(n(0), &all));
    // What was interrupted begins again, over what moved.
    copy(&mut store, 0, 100);
    assert_eq!(read_all(&store, 1), numbered(n(0), &all));
    let copies = (media.crash(3), folder.crash(3));
    let (mut store, _) = open_tiered(&copies.0, &copies.1, options).unwrap();
    assert_eq!(read_all(&store, 1), numbered(n(0), &all));
    assert_eq!(look(&copies.0, Some(&copies.1)).findings, vec![]);
    store.trim(Color(1), n(149));
    assert_eq!(read_all(&store, 1), numbered(n(150), &all[150..]));
}

/// Entries 1 to 2 that stay, and 3 to 5 that go: three appends got numbers, one of them two records.
fn half_settled(store: &mut dyn LogStore) -> Vec<Arc<Entry>> {
    for (seq, payloads) in [(1, 1), (2, 2), (3, 1), (4, 1), (5, 1)] {
        store.stage(&append(seq, 1, &vec![vec![seq as u8; 30]; payloads])).unwrap();
    }
    store.append(&assign(1, 1, 1, 0, 1)).unwrap();
    store.append(&entry(2, Body::OpenSession { nonce: Uuid::nil() })).unwrap();
    let go = [
        assign(3, 2, 1, 1, 2),
        entry(4, Body::Hole { color: Color(1), first: n(3), count: 2 }),
        entry(5, Body::Assign(vec![Assign { token: token(3), tokens: 2, records: 1, color: Color(1), first: n(5) }])),
    ];
    go.iter().for_each(|entry| store.append(entry).unwrap());
    assert_eq!(read_all(store, 1).len(), 5);
    entries(&go)
}

fn later(lsn: u64, epoch: u32, body: Body) -> Entry {
    Entry { lsn: Lsn(lsn), epoch: Epoch(epoch), body }
}

fn one(seq: u64, first: SeqNum, records: u32) -> Body {
    Body::Assign(vec![Assign::one(token(seq), Color(1), first, records)])
}

#[test]
fn what_is_taken_back_is_staged_again_on_every_device() {
    with_each(options(65536, 8), |name, reopen| {
        let (mut store, _) = reopen();
        let go = half_settled(&mut *store);
        store.truncate(Lsn(5), &[]).unwrap();
        assert_eq!(read_all(&*store, 1).len(), 5, "{name}: nothing to take back");
        store.truncate(Lsn(2), &go).unwrap();
        let check = |store: &dyn LogStore| {
            assert_eq!(read_all(store, 1), [(n(0), Record::new(vec![1; 30]).unwrap())], "{name}");
            assert_eq!((store.usage().records, store.usage().staged_tokens), (1, 4), "{name}");
            for seq in 2..=5 {
                let found = store.read_staged(token(seq)).unwrap();
                assert_eq!(
                    found,
                    Some(append(seq, 1, &vec![vec![seq as u8; 30]; 1 + usize::from(seq == 2)])),
                    "{name}"
                );
            }
        };
        check(&*store);
        fence_any(&mut *store);
        drop(store);
        let (mut store, recovered) = reopen();
        assert_eq!((lsns(&recovered), tokens(&recovered)), (vec![(1, 1), (2, 1)], vec![2, 3, 4, 5]), "{name}");
        check(&*store);
        // On in a higher epoch: other numbers, another order, and one number that was somebody else's.
        store.append(&later(3, 2, one(4, n(1), 1))).unwrap();
        store.append(&later(4, 2, one(2, at(2, 0), 2))).unwrap();
        // And that, once more.
        let go = [later(5, 2, one(3, at(2, 2), 1)), later(6, 2, one(5, at(2, 3), 1))];
        go.iter().for_each(|entry| store.append(entry).unwrap());
        store.truncate(Lsn(5), &entries(&go[1..])).unwrap();
        store.truncate(Lsn(4), &entries(&go[..1])).unwrap();
        store.append(&later(5, 3, one(5, at(2, 2), 1))).unwrap();
        let expected = [(n(0), 1), (n(1), 4), (at(2, 0), 2), (at(2, 1), 2), (at(2, 2), 5)];
        let expected = expected.map(|(number, byte)| (number, Record::new(vec![byte; 30]).unwrap()));
        assert_eq!(read_all(&*store, 1), expected, "{name}");
        fence_any(&mut *store);
        drop(store);
        let (store, recovered) = reopen();
        assert_eq!(lsns(&recovered), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)], "{name}");
        assert_eq!(tokens(&recovered), [3], "{name}");
        assert_eq!(read_all(&*store, 1), expected, "{name}");
    });
}

#[test]
fn a_checkpoint_before_or_behind_a_truncation_changes_nothing() {
    // The checkpoint of the middle is written while the tokens are numbered, so its list lacks them.
    for (before, behind) in [(false, false), (true, false), (false, true), (true, true)] {
        let media = SimMedia::new(1 << 20);
        let (mut store, _) = open(&media, options(4096, 12)).unwrap();
        let go = half_settled(&mut store);
        if before {
            store.checkpoint(Lsn(2), b"before").unwrap();
        }
        store.truncate(Lsn(2), &go).unwrap();
        if behind {
            store.checkpoint(Lsn(2), b"behind").unwrap();
        }
        for round in 0..2 {
            fence_any(&mut store);
            assert_eq!(look(&media, None).findings, vec![], "{before} {behind}");
            let (again, recovered) = open(&media.copy(), options(4096, 12)).unwrap();
            let stay = if before || behind || round > 0 { vec![] } else { vec![(1, 1), (2, 1)] };
            assert_eq!((lsns(&recovered), tokens(&recovered)), (stay, vec![2, 3, 4, 5]), "{before} {behind} {round}");
            assert_eq!(read_all(&again, 1).len(), 1);
            // The next checkpoint leaves nothing to tell.
            store.checkpoint(Lsn(2), b"last").unwrap();
        }
        store.append(&later(3, 2, one(3, n(1), 1))).unwrap();
        store.drop_staged(&[token(4)]);
        store.checkpoint(Lsn(3), b"on").unwrap();
        fence_any(&mut store);
        let (again, recovered) = open(&media.copy(), options(4096, 12)).unwrap();
        assert_eq!((lsns(&recovered), tokens(&recovered)), (vec![], vec![2, 5]), "{before} {behind}");
        assert_eq!(read_all(&again, 1).len(), 2);
    }
}

/// An append that was dropped after its entry was taken back does not come back when that entry's place is taken back again.
#[test]
fn what_was_dropped_stays_so_when_its_place_is_taken_back_again() {
    let media = SimMedia::new(1 << 20);
    let (mut store, _) = open(&media, options(4096, 12)).unwrap();
    let first = half_settled_at(&mut store, 1);
    store.truncate(Lsn(0), &first).unwrap();
    store.drop_staged(&[token(2)]);
    store.checkpoint(Lsn(0), b"").unwrap();
    let again = later(1, 2, one(3, at(2, 0), 1));
    store.append(&again).unwrap();
    store.truncate(Lsn(0), &entries(&[again])).unwrap();
    fence_any(&mut store);
    assert_eq!(look(&media, None).findings, vec![]);
    let (store, recovered) = open(&media, options(4096, 12)).unwrap();
    assert_eq!((lsns(&recovered), tokens(&recovered), store.usage().staged_tokens), (vec![], vec![3], 1));
}

/// An entry that was taken back must stay so when the segment that said it is gone, as long as its own is there.
#[test]
fn what_is_taken_back_stays_so_when_the_segment_that_says_it_is_used_again() {
    let media = SimMedia::new(1 << 20);
    let (mut store, _) = open(&media, options(4096, 12)).unwrap();
    store.stage(&append(1, 2, &[b"stays".to_vec()])).unwrap();
    store.append(&assign(1, 1, 2, 0, 1)).unwrap();
    let go = half_settled_at(&mut store, 2);
    // Into another segment.
    let mut seq = 100;
    let mut fill = |store: &mut dyn LogStore, color: u64| {
        for _ in 0..8 {
            seq += 1;
            store.stage(&append(seq, color, &[vec![7; 900]])).unwrap();
            store.drop_staged(&[token(seq)]);
        }
    };
    fill(&mut store, 3);
    store.truncate(Lsn(1), &go).unwrap();
    fill(&mut store, 3);
    store.append(&later(2, 2, one(3, at(2, 0), 1))).unwrap();
    let mut lsn = 2;
    for _ in 0..20 {
        lsn += 1;
        store.append(&later(lsn, 2, Body::OpenSession { nonce: Uuid::from_u128(lsn.into()) })).unwrap();
        fill(&mut store, 3);
        store.checkpoint(Lsn(lsn), b"").unwrap();
        fence_any(&mut store);
        let (again, recovered) = open(&media.copy(), options(4096, 12)).unwrap();
        assert_eq!((lsns(&recovered), tokens(&recovered)), (vec![], vec![2]), "{lsn}");
        let one = read_all(&again, 1);
        assert_eq!(one, [(at(2, 0), Record::new(vec![3; 30]).unwrap())]);
        assert_eq!(read_all(&again, 2), [(n(0), Record::new("stays").unwrap())]);
        let report = look(&media, None);
        assert_eq!(report.findings, vec![]);
        let mut kinds = Vec::new();
        list_entries(&media.device(), &report, &mut |line| {
            kinds.push((line.kind, line.says.ends_with("(taken back)")));
            true
        })
        .unwrap();
        assert_eq!(kinds.iter().filter(|(_, back)| *back).count(), 2, "they are there, and told for what they are");
        if lsn > 4 {
            assert!(kinds.iter().all(|(kind, _)| *kind != "truncate"), "and what took them back is gone");
        }
    }
}

/// Two appends that get numbers from entries that go.
fn half_settled_at(store: &mut dyn LogStore, lsn: u64) -> Vec<Arc<Entry>> {
    for seq in [2, 3] {
        store.stage(&append(seq, 1, &[vec![seq as u8; 30]])).unwrap();
    }
    let go = [assign(lsn, 2, 1, 0, 1), assign(lsn + 1, 3, 1, 1, 1)];
    go.iter().for_each(|entry| store.append(entry).unwrap());
    entries(&go)
}

#[test]
fn a_checkpoint_far_above_the_last_entry_is_where_the_log_goes_on() {
    with_each(options(65536, 8), |name, reopen| {
        let (mut store, _) = reopen();
        let go = half_settled(&mut *store);
        store.truncate(Lsn(2), &go).unwrap();
        store.copy(Color(1), n(1), &records(1, 40)).unwrap();
        store.checkpoint(Lsn(1000), b"copied").unwrap();
        // Those that the others settled meanwhile.
        store.drop_staged(&[token(2), token(3), token(4)]);
        store.append(&later(1001, 9, one(5, at(9, 0), 1))).unwrap();
        fence_any(&mut *store);
        let mut expected = numbered(n(0), &[Record::new(vec![1; 30]).unwrap()]);
        expected.extend(numbered(n(1), &records(1, 40)));
        expected.extend(numbered(at(9, 0), &[Record::new(vec![5; 30]).unwrap()]));
        for (upto, staged) in [(1000, vec![2, 3, 4]), (1001, vec![])] {
            drop(store);
            let recovered;
            (store, recovered) = reopen();
            assert_eq!(recovered.checkpoint.as_ref().unwrap().0, Lsn(upto), "{name}");
            assert_eq!(lsns(&recovered), if upto == 1000 { vec![(1001, 9)] } else { vec![] }, "{name}");
            assert_eq!(tokens(&recovered), staged, "{name}");
            assert_eq!(read_all(&*store, 1), expected, "{name}");
            store.drop_staged(&[token(2), token(3), token(4)]);
            store.checkpoint(Lsn(1001), b"on").unwrap();
            fence_any(&mut *store);
        }
    });
}

#[test]
fn the_whole_way_back_is_sound_to_those_who_look() {
    let (media, folder) = (SimMedia::new(1 << 20), SimFolder::new());
    let options = Options { high_mark: 20, ..options(4096, 16) };
    let (mut store, _) = open_tiered(&media, &folder, options).unwrap();
    let go = half_settled(&mut store);
    store.truncate(Lsn(2), &go).unwrap();
    for at in 0..20 {
        store.copy(Color(1), n(1 + 10 * at), &records(1 + 10 * at, 10)).unwrap();
    }
    store.checkpoint(Lsn(1000), b"copied").unwrap();
    fence_any(&mut store);
    let mut now = Time(0);
    while let Some(work) = store.background(now, Lsn(1000)).unwrap() {
        work();
        now = now.after(2_000_000);
    }
    store.append(&later(1001, 9, one(2, at(9, 0), 2))).unwrap();
    store.append(&later(1002, 9, Body::OpenSession { nonce: Uuid::nil() })).unwrap();
    fence_any(&mut store);
    assert!(store.usage().ssd_records > 0);
    let report = look(&media, Some(&folder));
    assert_eq!(report.findings, vec![]);
    assert_eq!((report.log.last, report.records()), (Lsn(1002), 203));
    let (store, recovered) = open_tiered(&media.crash(1), &folder.crash(1), options).unwrap();
    assert_eq!((lsns(&recovered), tokens(&recovered)), (vec![(1001, 9), (1002, 9)], vec![3, 4, 5]));
    assert_eq!(read_all(&store, 1).len(), 203);
}

#[test]
fn a_copy_is_as_large_as_an_append_may_be() {
    with_each(options(16 << 20, 4), |name, reopen| {
        let (mut store, _) = reopen();
        let many: Vec<Record> = (0..limits::MAX_RECORDS_PER_TOKEN).map(|_| Record::new("x").unwrap()).collect();
        store.copy(Color(1), n(0), &many).unwrap();
        let large = vec![Record::new(vec![7; limits::MAX_RECORD_BYTES]).unwrap()];
        store.copy(Color(2), at(3, u32::MAX - 1), &large).unwrap();
        fence_any(&mut *store);
        drop(store);
        let (store, _) = reopen();
        assert!(read_all(&*store, 1) == numbered(n(0), &many), "{name}");
        assert!(read_all(&*store, 2) == [(at(3, u32::MAX - 1), large[0].clone())], "{name}");
    });
}

#[test]
fn a_number_that_is_given_again_is_not_read_from_the_cache() {
    with_each(Options { cache_bytes: 1 << 20, ..options(65536, 8) }, |name, reopen| {
        let (mut store, _) = reopen();
        let go = half_settled_at(&mut *store, 1);
        fence_any(&mut *store);
        // Twice, so that the cache has them.
        for _ in 0..2 {
            assert_eq!(store.prev_through(Color(1), n(0)).unwrap().unwrap().1.payload()[..], [2; 30], "{name}");
        }
        store.truncate(Lsn(0), &go).unwrap();
        store.append(&later(1, 2, one(3, n(0), 1))).unwrap();
        assert_eq!(store.prev_through(Color(1), n(0)).unwrap().unwrap().1.payload()[..], [3; 30], "{name}");
    });
}

#[test]
fn a_number_that_was_copied_as_two_records_is_told() {
    let (media, folder) = (SimMedia::new(1 << 20), SimFolder::new());
    let options = Options { high_mark: 1, ..options(4096, 16) };
    let (mut store, _) = open_tiered(&media, &folder, options).unwrap();
    let (first, other) = (vec![Record::new(vec![1; 3000]).unwrap()], vec![Record::new("other").unwrap()]);
    store.copy(Color(1), n(0), &first).unwrap();
    store.copy(Color(2), n(0), &first).unwrap();
    store.copy(Color(2), n(0), &first).unwrap();
    fence_any(&mut store);
    assert!(look(&media, Some(&folder)).is_sound(), "the same record, twice");
    let mut now = Time(0);
    while let Some(work) = store.background(now, Lsn(0)).unwrap() {
        work();
        now = now.after(2_000_000);
    }
    assert_eq!(store.usage().ssd_records, 2);
    store.copy(Color(1), n(0), &first).unwrap();
    fence_any(&mut store);
    assert!(look(&media, Some(&folder)).is_sound(), "here and there");
    // One of the area, one of an SSD file.
    store.copy(Color(1), n(0), &other).unwrap();
    fence_any(&mut store);
    let report = look(&media, Some(&folder));
    assert!(report.faults().all(|fault| fault.what.contains("1/1.0 names two records")), "{:?}", report.findings);
    assert_eq!(report.faults().count(), 1);
}
