//! The store's rules one by one.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
#[path = "common/each.rs"]
mod each;

use common::{OWNER, STORE, append, open, open_tiered, options, read_all, session, token};
use each::{assign, entry, fence_any, n, with_each};
use flexlog_protocol::media::{Device, LogStore, ReadError, StoreError};
use flexlog_protocol::{Body, Color, Condition, Epoch, Incarnation, Lsn, Position, Record, SeqNum, Tag, Time, limits};
use flexlog_storage_pm::device::{AnyDevice, DeviceKind, Fences, SimDevice, SimMedia};
use flexlog_storage_pm::ssd::SimFolder;
use flexlog_storage_pm::{Closed, OpenError, Options, Store};
use uuid::Uuid;

fn fence<D: Device>(store: &mut Store<D>) {
    let fence = store.fence().unwrap();
    store.wait(fence).unwrap();
    assert!(store.fenced().unwrap() >= fence);
}

/// A medium with one store of small segments, and some records in it, all fenced.
fn small_log() -> (SimMedia, Store<SimDevice>) {
    let media = SimMedia::new(1 << 20);
    let (mut store, _) = open(&media, options(4096, 8)).unwrap();
    for i in 1..=5 {
        store.stage(&append(i, 1, &[vec![i as u8; 30 * i as usize], vec![0xa0 + i as u8; 9]])).unwrap();
        store.append(&assign(i, i, 1, 2 * (i as u32 - 1), 2)).unwrap();
        fence(&mut store);
    }
    store.seal(Incarnation { position: Position(0), epoch: Epoch(1), uuid: Uuid::from_u128(9) }).unwrap();
    store.checkpoint(Lsn(3), b"the state").unwrap();
    store.stage(&append(6, 1, &[vec![6; 10]])).unwrap();
    fence(&mut store);
    (media, store)
}

#[test]
fn records_of_every_size_come_back_on_every_device() {
    with_each(options(16 << 20, 8), |name, reopen| {
        let (mut store, recovered) = reopen();
        assert!(
            recovered.entries.is_empty() && recovered.staged.is_empty() && recovered.checkpoint.is_none(),
            "{name}"
        );
        let many: Vec<Vec<u8>> = (0..1000_u32).map(|i| i.to_le_bytes().repeat((i % 40) as usize)).collect();
        let batches: Vec<Vec<Vec<u8>>> = vec![
            vec![vec![]],
            many,
            vec![vec![7; limits::MAX_RECORD_BYTES]],
            vec![vec![8; limits::MAX_RECORD_BYTES - 100]; 3],
            vec![vec![], vec![9; 4096], vec![]],
        ];
        let mut expected = Vec::new();
        for (i, payloads) in batches.iter().enumerate() {
            let first = expected.len() as u32;
            let append = append(i as u64 + 1, 1, payloads);
            store.stage(&append).unwrap();
            assert_eq!(store.read_staged(append.token()).unwrap(), Some(append.clone()), "{name}");
            store.append(&assign(i as u64 + 1, i as u64 + 1, 1, first, append.count())).unwrap();
            assert_eq!(store.read_staged(append.token()).unwrap(), None, "{name}");
            for record in append.records() {
                expected.push((n(expected.len() as u32), record.clone()));
            }
        }
        // Before any fence, and after.
        assert!(read_all(&*store, 1) == expected, "{name}");
        fence_any(&mut *store);
        assert!(read_all(&*store, 1) == expected, "{name}");
        drop(store);
        let (store, recovered) = reopen();
        assert_eq!((recovered.entries.len(), recovered.staged.len()), (5, 0), "{name}");
        assert!(read_all(&*store, 1) == expected, "{name}");
    });
}

#[test]
fn tags_and_conditions_come_back() {
    let media = SimMedia::new(1 << 20);
    let (mut store, _) = open(&media, options(4096, 8)).unwrap();
    let tag = |text: &'static str| Tag::new(text).unwrap();
    let records = vec![
        Record::with_tags("one", vec![tag("a"), tag("bb")]).unwrap(),
        Record::with_tags("", vec![tag("")]).unwrap(),
    ];
    let condition = Some(Condition { tag: tag("c"), last: Some(n(3)) });
    let append = flexlog_protocol::Append::new(token(1), Color(1), condition, records.clone()).unwrap();
    store.stage(&append).unwrap();
    assert_eq!(store.read_staged(token(1)).unwrap(), Some(append));
    store.append(&assign(1, 1, 1, 0, 2)).unwrap();
    let found: Vec<Record> = read_all(&store, 1).into_iter().map(|(_, record)| record).collect();
    assert_eq!(found, records);
}

#[test]
fn reads_keep_to_their_bounds() {
    let media = SimMedia::new(1 << 20);
    let (mut store, _) = open(&media, options(65536, 8)).unwrap();
    store.stage(&append(1, 1, &vec![vec![1; 100]; 10])).unwrap();
    store.append(&assign(1, 1, 1, 0, 10)).unwrap();
    let read = |from, upto, max_records, max_bytes| {
        let mut into = Vec::new();
        let _ = store.read(Color(1), from, upto, max_records, max_bytes, &mut into).unwrap();
        into.iter().map(|(number, _)| number.counter()).collect::<Vec<_>>()
    };
    assert_eq!(read(n(3), n(6), 99, 9999), [3, 4, 5]);
    assert_eq!(read(n(3), n(9), 2, 9999), [3, 4]);
    assert_eq!(read(n(3), n(9), 99, 250), [3, 4]);
    assert_eq!(read(n(3), n(9), 99, 300), [3, 4, 5]);
    assert_eq!(read(n(3), n(9), 99, 0), [3], "one record at least");
    assert_eq!(read(n(6), n(6), 99, 9999), [0; 0]);
    assert_eq!(read(SeqNum::MIN, SeqNum::MAX, 99, 9999).len(), 10);
    assert_eq!(read(n(3), n(9), 0, 9999), [0; 0]);
}

#[test]
fn a_full_area_takes_appends_again_after_trim_and_checkpoint() {
    with_each(options(65536, 6), |name, reopen| {
        let (mut store, _) = reopen();
        let (mut lsn, mut seq, mut next, mut rounds) = (0, 0, 0, 0);
        let payload = vec![vec![5; 1000]];
        for _ in 0..8 {
            let used = store.usage();
            let full = loop {
                seq += 1;
                let before = store.usage();
                match store.stage(&append(seq, 1, &payload)) {
                    Ok(()) => {}
                    Err(StoreError::Full { used, limit, .. }) => {
                        assert_eq!(store.usage().segments, before.segments, "{name}: a refused append writes nothing");
                        assert!(used <= limit, "{name}");
                        assert_eq!(store.read_staged(token(seq)).unwrap(), None, "{name}");
                        break seq;
                    }
                    Err(error) => panic!("{name}: {error}"),
                }
                lsn += 1;
                store.append(&assign(lsn, seq, 1, next, 1)).unwrap();
                next += 1;
            };
            assert!(full > 0 && store.usage().records >= 50, "{name}: {:?}, before {used:?}", store.usage());
            // All but the last can go. Reading goes on meanwhile.
            assert_eq!(read_all(&*store, 1).len() as u64, store.usage().records, "{name}");
            lsn += 1;
            let upto = n(next - 2);
            store.append(&entry(lsn, Body::Trim { color: Color(1), upto })).unwrap();
            store.trim(Color(1), upto);
            assert_eq!(store.usage().records, 1, "{name}");
            assert!(store.checkpoint_wanted(), "{name}");
            store.checkpoint(Lsn(lsn), b"state").unwrap();
            assert!(!store.checkpoint_wanted(), "{name}");
            fence_any(&mut *store);
            rounds += 1;
        }
        assert_eq!(rounds, 8);
        drop(store);
        let (mut store, recovered) = reopen();
        assert_eq!(recovered.checkpoint.map(|(upto, _)| upto), Some(Lsn(lsn)), "{name}");
        store.trim(Color(1), n(next - 2));
        assert_eq!(read_all(&*store, 1).len(), 1, "{name}");
        store.stage(&append(seq + 1, 1, &payload)).unwrap();
    });
}

#[test]
fn a_record_that_stays_keeps_only_its_own_segment() {
    let media = SimMedia::new(1 << 20);
    let (mut store, _) = open(&media, options(4096, 12)).unwrap();
    store.stage(&append(1, 2, &[b"stays".to_vec()])).unwrap();
    store.append(&assign(1, 1, 2, 0, 1)).unwrap();
    // Staged and never numbered: holds its segment too.
    store.stage(&append(2, 3, &[b"waits".to_vec()])).unwrap();
    let mut lsn = 1;
    for i in 0..1000 {
        let seq = 10 + u64::from(i);
        store.stage(&append(seq, 1, &[vec![1; 500]])).unwrap();
        lsn += 1;
        store.append(&assign(lsn, seq, 1, i, 1)).unwrap();
        if store.checkpoint_wanted() || i % 5 == 4 {
            store.trim(Color(1), n(i));
            store.checkpoint(Lsn(lsn), b"").unwrap();
            fence(&mut store);
        }
    }
    assert!(store.usage().segments <= 4, "{:?}", store.usage());
    drop(store);
    let (store, recovered) = open(&media, options(4096, 12)).unwrap();
    assert_eq!(read_all(&store, 2), [(n(0), Record::new("stays").unwrap())]);
    assert_eq!(recovered.staged.iter().map(|staged| staged.token).collect::<Vec<_>>(), [token(2)]);
    assert!(store.read_staged(token(2)).unwrap().is_some());
}

#[test]
fn a_segment_is_not_used_again_before_its_checkpoint_is_durable() {
    let media = SimMedia::new(1 << 20);
    let (mut store, _) = open(&media, options(4096, 8)).unwrap();
    media.set_fences(Fences::WhenTold);
    for i in 1..=6 {
        store.stage(&append(i, 1, &[vec![1; 900]])).unwrap();
        store.append(&assign(i, i, 1, i as u32, 1)).unwrap();
    }
    store.trim(Color(1), n(6));
    store.checkpoint(Lsn(6), b"").unwrap();
    let used = store.usage().segments;
    let fence = store.fence().unwrap();
    assert!(store.fenced().unwrap() < fence);
    assert_eq!(store.usage().segments, used, "the checkpoint is not durable yet");
    assert!(media.finish_fence());
    assert_eq!(store.fenced().unwrap(), fence);
    assert_eq!((used, store.usage().segments), (2, 1));
}

#[test]
fn a_full_medium_is_full_and_not_the_end() {
    let media = SimMedia::new(8192 + 4 * 4096);
    let (mut store, _) = open(&media, options(4096, 100)).unwrap();
    let mut seq = 0;
    while store.stage(&append(seq + 1, 1, &[vec![1; 700]])).is_ok() {
        seq += 1;
    }
    assert!(seq > 0 && matches!(store.stage(&append(99, 1, &[vec![1; 700]])), Err(StoreError::Full { .. })));
    for i in 1..=seq {
        store.append(&assign(i, i, 1, i as u32, 1)).unwrap();
    }
    media.set_limit(8192 + 20 * 4096);
    store.stage(&append(99, 1, &[vec![1; 700]])).unwrap();
}

#[test]
fn an_append_that_fits_no_segment_is_full() {
    let media = SimMedia::new(1 << 20);
    let (mut store, _) = open(&media, options(4096, 8)).unwrap();
    assert!(matches!(store.stage(&append(1, 1, &[vec![1; 4096]])), Err(StoreError::Full { .. })));
    store.stage(&append(1, 1, &[vec![1; 3900]])).unwrap();
}

#[test]
fn errors_of_the_medium_are_final() {
    let broken = |break_it: fn(&SimMedia)| {
        let (media, mut store) = small_log();
        break_it(&media);
        let first = store.stage(&append(7, 1, &[vec![]])).and_then(|()| store.fence().map(|_| ()));
        assert!(matches!(first, Err(StoreError::Failed { .. })), "{first:?}");
        for result in [
            store.stage(&append(8, 1, &[vec![]])),
            store.append(&entry(6, Body::OpenSession { nonce: Uuid::nil() })),
            store.checkpoint(Lsn(4), b""),
            store.fence().map(|_| ()),
            store.fenced().map(|_| ()),
        ] {
            assert!(matches!(result, Err(StoreError::Failed { .. })), "{result:?}");
        }
        assert_eq!(read_all(&store, 1).len(), 10, "reads go on");
    };
    broken(|media| media.fail_write(1));
    broken(|media| media.fail_fence(1));
}

#[test]
fn no_flipped_bit_gives_a_wrong_record() {
    let (media, store) = small_log();
    let expected = read_all(&store, 1);
    let staged = store.read_staged(token(6)).unwrap();
    drop(store);
    let bytes = media.bytes();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 100;
    let (mut refused, mut fewer, mut told) = (0, 0, 0);
    for bit in 0..used * 8 {
        let copy = media.copy();
        copy.damage(bit as u64 / 8, &[bytes[bit / 8] ^ 1 << (bit % 8)]);
        match open(&copy, options(4096, 8)) {
            Ok((store, recovered)) => {
                let mut found = Vec::new();
                match store.read_through(Color(1), SeqNum::MIN, SeqNum::MAX, 99, 99999, &mut found) {
                    Ok(()) => fewer += usize::from(found.len() < expected.len()),
                    Err(ReadError::Damaged { number, end, .. }) => {
                        told += 1;
                        assert_eq!((number, end.to_raw()), (expected[found.len()].0, number.to_raw() + 1), "bit {bit}");
                    }
                    Err(other) => panic!("bit {bit}: {other}"),
                }
                assert!(expected.starts_with(&found), "bit {bit}");
                assert!(recovered.staged.len() <= 1 && recovered.entries.len() <= 5, "bit {bit}");
                if let Ok(Some(append)) = store.read_staged(token(6)) {
                    assert_eq!(Some(append), staged, "bit {bit}");
                }
            }
            Err(OpenError::Corrupt { offset, .. }) => {
                refused += 1;
                assert!(offset as usize <= bit / 8, "bit {bit} is reported at {offset}");
            }
            Err(OpenError::Version { .. } | OpenError::NotAStore { .. }) => assert!(bit / 8 < 8192, "bit {bit}"),
            Err(error) => panic!("bit {bit}: {error}"),
        }
        // What is damaged while the store is open is noticed by the read.
        if bit % 7 == 0 && bit / 8 > 8192 {
            let copy = media.copy();
            let (store, _) = open(&copy, options(4096, 8)).unwrap();
            copy.damage(bit as u64 / 8, &[bytes[bit / 8] ^ 1 << (bit % 8)]);
            let mut found = Vec::new();
            let result = store.read_through(Color(1), SeqNum::MIN, SeqNum::MAX, 99, 99999, &mut found);
            assert!(expected.starts_with(&found), "bit {bit}");
            assert!(found.len() == expected.len() || matches!(result, Err(ReadError::Damaged { .. })), "bit {bit}");
        }
    }
    // All but the last entry was covered by the `fenced` of a later one.
    assert!(refused > 6000 && told > 3000 && fewer == 0, "{refused} refused, {told} told, {fewer} with less");
}

#[test]
fn damage_in_the_middle_is_reported_with_its_place() {
    let (media, mut store) = small_log();
    // What waits for its numbers is durable, and it is known.
    let fence = store.fence().unwrap();
    store.wait(fence).unwrap();
    store.seal(Incarnation { position: Position(0), epoch: Epoch(1), uuid: Uuid::from_u128(9) }).unwrap();
    let fence = store.fence().unwrap();
    store.wait(fence).unwrap();
    drop(store);
    let place =
        |payload: &[u8]| media.bytes().windows(payload.len()).position(|window| window == payload).unwrap() as u64;
    // In the third record's payload: it is known which record that is.
    let copy = media.copy();
    copy.damage(place(&[3; 30]), &[99]);
    let (store, _) = open(&copy, options(4096, 8)).unwrap();
    let mut found = Vec::new();
    let error = store.read_through(Color(1), SeqNum::MIN, SeqNum::MAX, 99, 99999, &mut found).unwrap_err();
    assert!(matches!(error, ReadError::Damaged { number, .. } if number == n(found.len() as u32)), "{error}");
    // In that of the one that waits for its number: no other member can be asked for it.
    let copy = media.copy();
    let staged = store.read_staged(token(6)).unwrap().unwrap();
    let at = place(staged.records()[0].payload());
    copy.damage(at, &[99]);
    let error = open(&copy, options(4096, 8)).unwrap_err();
    assert!(matches!(&error, OpenError::Corrupt { offset, .. } if *offset < at && at - offset < 200), "{error}");
    // In its head: what it is is not known any more.
    let copy = media.copy();
    let at = place(&[3; 30]) - 20;
    copy.damage(at, &[99]);
    let error = open(&copy, options(4096, 8)).unwrap_err();
    match &error {
        OpenError::Corrupt { offset, .. } => assert!(*offset < at && at - offset < 200, "{offset} for {at}"),
        other => panic!("{other}"),
    }
    assert!(error.to_string().starts_with("sim is damaged at byte "), "{error}");
}

#[test]
fn a_torn_tail_ends_the_log_and_what_stood_behind_it_never_comes_back() {
    let (media, mut store) = small_log();
    let expected = read_all(&store, 1);
    // Two entries after the last fence; of the first a word is lost.
    store.stage(&append(7, 1, &[vec![7; 40]])).unwrap();
    store.stage(&append(8, 1, &[vec![8; 40]])).unwrap();
    drop(store);
    let torn = media.bytes().windows(40).position(|window| window == [7; 40]).unwrap() as u64;
    media.damage(torn, &[0; 8]);
    for round in 0..3 {
        let (mut store, recovered) = open(&media, options(4096, 8)).unwrap();
        let tokens: Vec<u64> = recovered.staged.iter().map(|staged| staged.token.seq).collect();
        let expected_tokens: Vec<u64> = [6].into_iter().chain((0..round).map(|i| 20 + i)).collect();
        assert_eq!(tokens, expected_tokens, "round {round}");
        assert_eq!(read_all(&store, 1), expected);
        // As long as the torn one: what came behind it stands where the next entry would be.
        store.stage(&append(20 + round, 1, &[vec![9; 40]])).unwrap();
        fence(&mut store);
    }
}

#[test]
fn reopening_does_not_use_up_segments() {
    let media = SimMedia::new(1 << 20);
    for round in 0..100 {
        let (mut store, recovered) = open(&media, options(4096, 8)).unwrap();
        assert_eq!(recovered.staged.len(), round);
        store.stage(&append(round as u64 + 1, 1, &[vec![]])).unwrap();
        assert!(store.usage().segments < 8);
    }
}

#[test]
fn generations_go_on_beyond_what_an_opening_reserves() {
    for fences in [Fences::AtOnce, Fences::WhenTold] {
        let media = SimMedia::new(1 << 20);
        let (mut store, _) = open(&media, options(4096, 8)).unwrap();
        media.set_fences(fences);
        let mut under_way = None;
        for i in 1..=1500 {
            store.stage(&append(i, 1, &[vec![1; 2500]])).unwrap();
            store.append(&assign(i, i, 1, i as u32, 1)).unwrap();
            if i % 2 == 0 {
                store.trim(Color(1), n(i as u32));
                store.checkpoint(Lsn(i), b"").unwrap();
                // A wait inside of the store may have ended the last one.
                media.finish_fence();
                store.fenced().unwrap();
                under_way = Some(store.fence().unwrap());
            }
        }
        store.wait(under_way.unwrap()).unwrap();
        drop(store);
        let (store, recovered) = open(&media.crash(1), options(4096, 8)).unwrap();
        assert_eq!(recovered.checkpoint.unwrap().0, Lsn(1500));
        assert_eq!(store.usage().staged_tokens, 0);
    }
}

/// Without a fence in between, the store itself waits for the limit to be durable before it goes beyond.
#[test]
fn no_generation_is_used_before_its_limit_is_durable() {
    let media = SimMedia::new(4 << 20);
    let (mut store, _) = open(&media, options(4096, 400)).unwrap();
    for i in 1..=350 {
        store.stage(&append(i, 1, &[vec![1; 3000]])).unwrap();
    }
    for seed in 0..20 {
        let (_, recovered) = open(&media.crash(seed), options(4096, 400)).unwrap();
        assert!(recovered.staged.len() >= 200, "{}", recovered.staged.len());
    }
}

#[test]
fn a_long_checkpoint_counts_only_when_whole() {
    let state: Vec<u8> = (0..8000_u32).map(|i| (i % 251) as u8).collect();
    let (media, mut store) = small_log();
    media.set_fences(Fences::WhenTold);
    store.checkpoint(Lsn(5), &state).unwrap();
    store.fence().unwrap();
    let (mut old, mut new) = (0, 0);
    for seed in 0..60 {
        let (_, recovered) = open(&media.crash(seed), options(4096, 8)).unwrap();
        match recovered.checkpoint.unwrap() {
            (Lsn(3), state) if &*state == b"the state" => {
                old += 1;
                assert_eq!(recovered.entries.iter().map(|entry| entry.lsn.0).collect::<Vec<_>>(), [4, 5]);
            }
            (Lsn(5), found) if *found == *state => {
                new += 1;
                assert!(recovered.entries.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(old > 0 && new > 0, "{old} {new}");
    media.finish_fence();
    assert_eq!(open(&media.crash(0), options(4096, 8)).unwrap().1.checkpoint.unwrap().0, Lsn(5));
}

#[test]
fn entries_above_the_checkpoint_keep_their_segments() {
    let media = SimMedia::new(1 << 20);
    let (mut store, _) = open(&media, options(4096, 12)).unwrap();
    for lsn in 1..=400 {
        store.append(&entry(lsn, Body::OpenSession { nonce: Uuid::from_u128(lsn.into()) })).unwrap();
    }
    for (upto, segments) in [(100, 5), (250, 3), (400, 1)] {
        // What recovery makes of it has to keep them too.
        fence(&mut store);
        drop(store);
        store = open(&media, options(4096, 12)).unwrap().0;
        store.checkpoint(Lsn(upto), b"").unwrap();
        fence(&mut store);
        let (_, recovered) = open(&media.copy(), options(4096, 12)).unwrap();
        let lsns: Vec<u64> = recovered.entries.iter().map(|entry| entry.lsn.0).collect();
        assert_eq!(lsns, (upto + 1..=400).collect::<Vec<_>>());
        assert!(store.usage().segments <= segments, "{upto}: {:?}", store.usage());
    }
}

#[test]
fn dropped_tokens_are_gone_after_the_next_checkpoint() {
    let (media, mut store) = small_log();
    store.drop_staged(&[token(6), token(99)]);
    assert_eq!((store.usage().staged_tokens, store.read_staged(token(6)).unwrap()), (0, None));
    store.append(&entry(6, Body::CloseSession(session()))).unwrap();
    fence(&mut store);
    assert_eq!(open(&media.copy(), options(4096, 8)).unwrap().1.staged.len(), 1, "its replica drops it again");
    store.checkpoint(Lsn(6), b"").unwrap();
    fence(&mut store);
    assert_eq!(open(&media.copy(), options(4096, 8)).unwrap().1.staged.len(), 0);
}

#[test]
fn the_folder_of_an_open_store_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("replica");
    let options = options(65536, 8);
    let open = || Closed::<AnyDevice>::open_folder(&path, Some(DeviceKind::File), OWNER, STORE, options);
    let (store, _) = open().unwrap().open_alone(Uuid::from_u128(1)).unwrap();
    let error = open().unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert!(error.to_string().starts_with(&format!("{} is in use", path.display())), "{error}");
    drop(store);
    open().unwrap();
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a file");
    std::fs::write(&path, "x").unwrap();
    let error = Closed::<AnyDevice>::open_folder(&path, None, OWNER, STORE, options(65536, 8)).unwrap_err();
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    // Nobody can make folders there, not even root.
    let path = std::path::Path::new("/proc/flexlog");
    let error = Closed::<AnyDevice>::open_folder(path, None, OWNER, STORE, options(65536, 8)).unwrap_err();
    assert!(error.to_string().contains("/proc/flexlog"), "{error}");
}

/// A full SSD is tried again after a while; where nothing is to move then, nobody is woken for it for ever.
#[test]
fn a_full_ssd_is_tried_again_and_calls_for_nobody_when_nothing_is_to_move() {
    let (media, folder) = (SimMedia::new(1 << 20), SimFolder::new());
    let options = Options { high_mark: 30, ..options(4096, 10) };
    let (mut store, _) = open_tiered(&media, &folder, options).unwrap();
    folder.set_limit(folder.used());
    for i in 1..=20_u32 {
        store.stage(&append(i.into(), 1, &[vec![1; 900]])).unwrap();
        store.append(&assign(i.into(), i.into(), 1, i - 1, 1)).unwrap();
        fence(&mut store);
    }
    let (mut now, committed) = (Time(0), Lsn(20));
    let work = |store: &mut Store<SimDevice>, now| match store.background(now, committed).unwrap() {
        Some(work) => {
            work();
            true
        }
        None => false,
    };
    while work(&mut store, now) {
        assert_eq!(store.usage().ssd_records, 0, "there is no room");
    }
    let again = store.background_at().unwrap();
    assert!(again > now, "not at once");
    // What was to move is trimmed and freed meanwhile.
    store.append(&entry(21, Body::Trim { color: Color(1), upto: n(19) })).unwrap();
    store.trim(Color(1), n(19));
    store.checkpoint(Lsn(21), b"").unwrap();
    fence(&mut store);
    now = again;
    while work(&mut store, now) {}
    assert_eq!(store.background_at(), None);
}

/// A file that cannot be read back is no file: its records stay where they are, and it is tried again after a while.
#[test]
fn a_move_that_cannot_read_what_it_wrote_is_given_up_and_tried_again() {
    // It reads the header, the footer, and the indexes.
    for nth in 1..=3 {
        let (media, folder) = (SimMedia::new(1 << 20), SimFolder::new());
        let options = Options { high_mark: 30, ..options(4096, 12) };
        let (mut store, _) = open_tiered(&media, &folder, options).unwrap();
        for i in 1..=20_u32 {
            store.stage(&append(i.into(), 1, &[vec![i as u8; 900]])).unwrap();
            store.append(&assign(i.into(), i.into(), 1, i - 1, 1)).unwrap();
            fence(&mut store);
        }
        let (before, used) = (read_all(&store, 1), store.usage().segments);
        let (mut now, committed) = (Time(0), Lsn(20));
        folder.fail_read(nth);
        store.background(now, committed).unwrap().unwrap()();
        assert!(store.background(now, committed).unwrap().is_none(), "not at once");
        assert_eq!((store.usage().ssd_files, store.usage().segments), (0, used));
        assert!(folder.contents("0000000001.ssd").is_none(), "nothing is left of it");
        assert_eq!(read_all(&store, 1), before);
        // The store goes on.
        store.stage(&append(21, 1, &[vec![21; 10]])).unwrap();
        fence(&mut store);
        let again = store.background_at().unwrap();
        assert!(again > now, "after a while");
        now = again;
        while let Some(work) = store.background(now, committed).unwrap() {
            work();
        }
        assert!(store.usage().ssd_records > 0);
        assert_eq!(read_all(&store, 1), before);
        let (store, recovered) = open_tiered(&media.crash(nth), &folder.crash(nth), options).unwrap();
        assert_eq!((read_all(&store, 1), recovered.staged.len()), (before, 1));
    }
}
