//! The same test over every device, and what such tests write.
#![allow(dead_code)]

use flexlog_protocol::media::{LogStore, Recovered};
use flexlog_protocol::{Assign, Body, Color, Entry, Epoch, Lsn, SeqNum};
use flexlog_storage_pm::device::{DeviceKind, SimMedia};
use flexlog_storage_pm::{Closed, Options};
use uuid::Uuid;

use crate::common::{OWNER, STORE, open, token};

pub fn n(counter: u32) -> SeqNum {
    SeqNum::new(Epoch(1), counter)
}

pub fn entry(lsn: u64, body: Body) -> Entry {
    Entry { lsn: Lsn(lsn), epoch: Epoch(1), body }
}

pub fn assign(lsn: u64, seq: u64, color: u64, first: u32, records: u32) -> Entry {
    entry(lsn, Body::Assign(vec![Assign::one(token(seq), Color(color), n(first), records)]))
}

/// Runs a test on a store over each device; the function opens it, again and again the same one.
pub fn with_each(options: Options, test: impl Fn(&str, &dyn Fn() -> (Box<dyn LogStore>, Recovered))) {
    let media = SimMedia::new(1 << 30);
    test("sim", &|| {
        let (store, recovered) = open(&media, options).unwrap();
        (Box::new(store), recovered)
    });
    let disk = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let memory = tempfile::tempdir_in("/dev/shm").expect("these tests need a tmpfs at /dev/shm");
    for (name, folder, kind) in [("file", &disk, DeviceKind::File), ("mmap", &memory, DeviceKind::Mmap)] {
        let path = folder.path().join("replica");
        test(name, &|| {
            let closed = Closed::open_folder(&path, Some(kind), OWNER, STORE, options).unwrap();
            let (store, recovered) = closed.open_alone(Uuid::from_u128(1)).unwrap();
            (Box::new(store), recovered)
        });
    }
}

pub fn fence_any(store: &mut dyn LogStore) {
    let fence = store.fence().unwrap();
    while store.fenced().unwrap() < fence {
        std::thread::yield_now();
    }
}
