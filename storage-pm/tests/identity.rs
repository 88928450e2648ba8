//! Whose store it is, and the two-step opening.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{OWNER, STORE, append, open, options, token};
use flexlog_protocol::media::LogStore;
use flexlog_protocol::{ClusterId, ReplicaId, StoreId};
use flexlog_storage_pm::device::{SimDevice, SimMedia};
use flexlog_storage_pm::{Closed, Mark, OpenError, Options, Owner};
use uuid::Uuid;

const A: Uuid = Uuid::from_u128(0xa);
const B: Uuid = Uuid::from_u128(0xb);
const OPTIONS: Options = Options {
    segment_bytes: 4096,
    limit_bytes: 1 << 20,
    prefault: false,
    high_mark: 50,
    cache_bytes: 0,
    index_cache_bytes: 0,
};

fn closed(media: &SimMedia) -> Closed<SimDevice> {
    Closed::open(media.device(), "sim".to_owned(), OWNER, STORE, OPTIONS).unwrap()
}

#[test]
fn each_step_is_durable_and_an_opening_goes_on_where_it_stopped() {
    let media = SimMedia::new(1 << 20);
    let fresh = closed(&media);
    assert_eq!((fresh.mark(), fresh.identity().id), (Mark::Opened { n: 0, nonce: None }, STORE));
    let intended = fresh.intend(A).unwrap();
    assert_eq!((intended.nonce(), intended.identity().opened), (A, 0));
    drop(intended);

    // Stopped after the first step: the same nonce, whatever is offered.
    let media = media.crash(1);
    assert_eq!(closed(&media).mark(), Mark::Intent { n: 0, nonce: A });
    let intended = closed(&media).intend(B).unwrap();
    assert_eq!(intended.nonce(), A);
    let advanced = intended.advance().unwrap();
    assert_eq!((advanced.nonce(), advanced.identity().opened), (A, 1));
    drop(advanced);

    // Stopped after the second: counted, and the nonce is still told; then a new opening.
    let media = media.crash(2);
    assert_eq!(closed(&media).mark(), Mark::Opened { n: 1, nonce: Some(A) });
    let advanced = closed(&media).intend(B).unwrap().advance().unwrap();
    assert_eq!(advanced.identity().opened, 2);
    let (mut store, _) = advanced.finish().unwrap();
    store.stage(&append(1, 1, &[vec![1]])).unwrap();
    store.fence().unwrap();

    let media = media.crash(3);
    assert_eq!(closed(&media).mark(), Mark::Opened { n: 2, nonce: Some(B) });
    let (store, recovered) = open(&media, OPTIONS).unwrap();
    assert_eq!(recovered.staged[0].token, token(1));
    drop(store);
    assert_eq!(closed(&media).identity().opened, 3);
}

/// A power cut within a step leaves the state before it or after it.
#[test]
fn a_torn_step_did_not_happen() {
    use flexlog_storage_pm::device::Fences;
    let prepared = SimMedia::new(1 << 20);
    drop(closed(&prepared).intend(A).unwrap().advance().unwrap());
    type Step = (fn(Closed<SimDevice>), [Mark; 2]);
    let steps: [Step; 2] = [
        (|closed| drop(closed.intend(B)), [Mark::Opened { n: 1, nonce: Some(A) }, Mark::Intent { n: 1, nonce: B }]),
        (
            |closed| drop(closed.intend(B).unwrap().advance()),
            [Mark::Intent { n: 1, nonce: B }, Mark::Opened { n: 2, nonce: Some(B) }],
        ),
    ];
    for (step, (run, marks)) in steps.into_iter().enumerate() {
        let mut seen = [0, 0];
        for seed in 0..100 {
            let media = prepared.copy();
            if step == 1 {
                drop(closed(&media).intend(B).unwrap());
            }
            // The fence of the step lies, so its write may be lost or torn.
            let opened = closed(&media);
            media.set_fences(Fences::Lying);
            run(opened);
            let mark = closed(&media.crash(seed)).mark();
            let place = marks.iter().position(|expected| *expected == mark);
            seen[place.unwrap_or_else(|| panic!("step {step}, seed {seed}: {mark:?}"))] += 1;
        }
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    }
}

#[test]
fn a_torn_format_is_done_again() {
    use flexlog_storage_pm::device::Fences;
    for seed in 0..100 {
        let media = SimMedia::new(1 << 20);
        media.set_fences(Fences::Lying);
        drop(closed(&media));
        let media = media.crash(seed);
        let again = Closed::open(media.device(), "sim".to_owned(), OWNER, StoreId(B), OPTIONS).unwrap();
        assert_eq!(again.mark(), Mark::Opened { n: 0, nonce: None });
        again.open_alone(A).unwrap();
        assert_eq!(closed(&media).identity().opened, 1);
    }
}

#[test]
fn another_owner_is_refused_by_name() {
    let media = SimMedia::new(1 << 20);
    drop(closed(&media));
    let before = media.bytes();
    let open = |owner| Closed::open(media.device(), "sim".to_owned(), owner, STORE, OPTIONS).unwrap_err();
    let other = Owner { cluster: ClusterId(B), ..OWNER };
    let error = open(other);
    assert!(matches!(error, OpenError::OtherCluster { wanted, .. } if wanted == other.cluster), "{error}");
    let error = open(Owner { replica: ReplicaId(9), ..OWNER });
    assert_eq!(error.to_string(), "sim belongs to replica 2, not to replica 9: choose the right folder");
    assert!(media.bytes() == before);
}

#[test]
fn what_is_no_store_or_a_newer_one_is_left_as_it_is() {
    let refused = |damage: &[(u64, &[u8])]| {
        let media = SimMedia::new(1 << 20);
        drop(closed(&media).intend(A).unwrap());
        for (at, bytes) in damage {
            media.damage(*at, bytes);
        }
        let before = media.bytes();
        let error = Closed::open(media.device(), "sim".to_owned(), OWNER, STORE, OPTIONS).unwrap_err();
        assert!(media.bytes() == before, "{error}");
        error
    };
    let version = refused(&[(8, &[5]), (4096 + 8, &[5])]);
    assert!(matches!(version, OpenError::Version { found: 5, known: 4, .. }), "{version}");
    assert!(matches!(refused(&[(8, &[7])]), OpenError::Version { found: 7, .. }));
    assert!(matches!(refused(&[(0, b"PNG"), (4096, b"PNG")]), OpenError::NotAStore { .. }));
    assert!(matches!(refused(&[(40, b"x"), (4096 + 40, b"x")]), OpenError::Corrupt { .. }));
}

#[test]
fn one_damaged_copy_is_no_harm() {
    for copy in [0, 4096] {
        let media = SimMedia::new(1 << 20);
        let (mut store, _) = open(&media, options(4096, 8)).unwrap();
        store.stage(&append(1, 1, &[vec![1]])).unwrap();
        store.fence().unwrap();
        drop(store);
        media.damage(copy + 40, &[0xff; 8]);
        assert_eq!(closed(&media).mark(), Mark::Opened { n: 1, nonce: Some(Uuid::from_u128(77)) });
        let (_, recovered) = closed(&media).open_alone(B).unwrap();
        assert_eq!(recovered.staged.len(), 1);
    }
}

/// A superblock that went back would give out generations a second time.
#[test]
fn a_superblock_older_than_the_log_is_corrupt() {
    let media = SimMedia::new(1 << 20);
    drop(closed(&media).intend(A).unwrap());
    let old = media.bytes();
    let (mut store, _) = open(&media, OPTIONS).unwrap();
    store.stage(&append(1, 1, &[vec![1]])).unwrap();
    store.fence().unwrap();
    drop(store);
    media.damage(0, &old[..8192]);
    let error = closed(&media).open_alone(B).unwrap_err();
    assert!(matches!(error, OpenError::Corrupt { offset: 0, .. }), "{error}");
}

#[test]
fn options_that_make_no_store_are_refused() {
    for (segment_bytes, limit_bytes) in
        [(0, 1 << 20), (4000, 1 << 20), (5000, 1 << 20), (1 << 31, 1 << 40), (8192, 8192)]
    {
        let media = SimMedia::new(1 << 20);
        let options = Options { segment_bytes, limit_bytes, ..OPTIONS };
        let error = Closed::open(media.device(), "sim".to_owned(), OWNER, STORE, options).unwrap_err();
        assert!(matches!(error, OpenError::BadOptions { .. }), "{error}");
        assert_eq!(media.bytes().len(), 0);
    }
    let error = Closed::open(SimMedia::new(4096).device(), "sim".to_owned(), OWNER, STORE, OPTIONS).unwrap_err();
    assert!(matches!(error, OpenError::NoRoom { .. }), "{error}");
}
