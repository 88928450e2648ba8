//! A small store with something of everything: segments of 4096 bytes, a checkpoint, trimmed numbers, tags, a batch, an
//! append that waits, a fence, copied records, one that was repaired, entries that were taken back, and an SSD file. The same calls give the same
//! bytes.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::Arc;

use flexlog_protocol::media::{Device, LogStore, Recovered};
use flexlog_protocol::{
    Append, Assign, Body, Color, Condition, Entry, Epoch, Incarnation, Lsn, Position, Record, SeqNum, StoreId, Tag,
    Time,
};
use flexlog_storage_pm::device::{SimDevice, SimMedia};
use flexlog_storage_pm::inspect::{Depth, Report, examine};
use flexlog_storage_pm::ssd::SimFolder;
use flexlog_storage_pm::{Closed, OpenError, Options, Store};
use uuid::Uuid;

use crate::common::{OWNER, STORE, options, token};

pub const FILE: &str = "0000000001.ssd";
pub const LIMIT: u64 = 1 << 20;
pub const COLORS: [u64; 3] = [1, 2, 3];

/// What was ever written: every record by its number, and the entries of the shard log from 1 on.
#[derive(Default)]
pub struct Written {
    pub records: BTreeMap<(Color, SeqNum), Record>,
    pub entries: Vec<Entry>,
}

pub struct Small {
    pub media: SimMedia,
    pub folder: SimFolder,
    pub written: Written,
}

pub fn small_options() -> Options {
    Options { high_mark: 30, ..options(4096, 8) }
}

pub fn n(counter: u32) -> SeqNum {
    SeqNum::new(Epoch(1), counter)
}

/// A medium that holds these bytes and no more.
pub fn media_of(bytes: &[u8]) -> SimMedia {
    let media = SimMedia::new(LIMIT);
    media.device().grow(bytes.len() as u64).unwrap();
    media.damage(0, bytes);
    media
}

/// Opens it as a replica does: where there is no store, it becomes one of another id.
pub fn open(media: &SimMedia, folder: &SimFolder) -> Result<(Store<SimDevice>, Recovered), OpenError> {
    let fresh = StoreId(Uuid::from_u128(99));
    let closed = Closed::open(media.device(), "sim".to_owned(), OWNER, fresh, small_options())?;
    closed.with_ssd(Arc::new(folder.clone())).open_alone(Uuid::from_u128(77))
}

pub fn look(media: &SimMedia, folder: &SimFolder) -> Report {
    examine(&media.device(), "sim", Some(folder), Depth::Everything)
}

struct Builder {
    store: Store<SimDevice>,
    written: Written,
    seq: u64,
    next: BTreeMap<u64, u32>,
    epoch: Epoch,
}

impl Builder {
    fn fence(&mut self) {
        let fence = self.store.fence().unwrap();
        self.store.wait(fence).unwrap();
        assert!(self.store.fenced().unwrap() >= fence);
    }

    fn put(&mut self, body: Body) {
        let entry = Entry { lsn: Lsn(self.written.entries.len() as u64 + 1), epoch: self.epoch, body };
        self.store.append(&entry).unwrap();
        self.written.entries.push(entry);
        self.fence();
    }

    fn stage(&mut self, color: u64, records: Vec<Record>, condition: Option<Condition>) -> Append {
        self.seq += 1;
        let append = Append::new(token(self.seq), Color(color), condition, records).unwrap();
        self.store.stage(&append).unwrap();
        self.fence();
        append
    }

    fn append(&mut self, color: u64, records: Vec<Record>) {
        let append = self.stage(color, records, None);
        let counter = self.next.entry(color).or_insert(0);
        let first = *counter;
        *counter += append.count();
        for (i, record) in append.records().iter().enumerate() {
            self.written.records.insert((Color(color), n(first + i as u32)), record.clone());
        }
        self.put(Body::Assign(vec![Assign::one(append.token(), Color(color), n(first), append.count())]));
    }

    fn copy(&mut self, color: u64, first: u32, records: Vec<Record>) {
        self.store.copy(Color(color), n(first), &records).unwrap();
        self.fence();
        for (i, record) in (0..).zip(records) {
            self.written.records.insert((Color(color), n(first + i)), record);
        }
    }

    /// A record is damaged and written again; then its old bytes are as they were, and nobody reads them any more.
    fn repair(&mut self, media: &SimMedia, color: u64, number: SeqNum) {
        let record = self.written.records[&(Color(color), number)].clone();
        let (bytes, payload) = (media.bytes(), record.payload());
        let at = bytes.windows(payload.len()).position(|window| window == &payload[..]).unwrap();
        media.damage(at as u64, &[!payload[0]]);
        assert!(self.store.repair(Color(color), number, &record).unwrap());
        media.damage(at as u64, &payload[..1]);
        self.fence();
    }

    /// A record gets a number, loses it again, and gets another.
    fn number_and_take_back(&mut self, color: u64, record: Record) {
        let append = self.stage(color, vec![record.clone()], None);
        let assign = |number| Body::Assign(vec![Assign::one(append.token(), Color(color), number, 1)]);
        self.put(assign(n(100)));
        let entry = Arc::new(self.written.entries.pop().unwrap());
        self.store.truncate(Lsn(entry.lsn.0 - 1), &[entry]).unwrap();
        self.epoch = Epoch(2);
        let number = SeqNum::new(self.epoch, 0);
        self.written.records.insert((Color(color), number), record);
        self.put(assign(number));
    }

    /// One file, which the store does not hear of any more: what is in it stays in the area too.
    fn move_some(&mut self) {
        let mut now = Time(0);
        while self.store.usage().ssd_files == 0 {
            now = now.after(2_000_000);
            self.store.background(now, Lsn(0)).unwrap().unwrap()();
        }
    }
}

fn record(payload: Vec<u8>, tags: &[&[u8]]) -> Record {
    let tags = tags.iter().map(|tag| Tag::new(tag.to_vec()).unwrap()).collect();
    Record::with_tags(payload, tags).unwrap()
}

pub fn small() -> Small {
    let (media, folder) = (SimMedia::new(LIMIT), SimFolder::new());
    let closed = Closed::open(media.device(), "sim".to_owned(), OWNER, STORE, small_options()).unwrap();
    let closed = closed.with_ssd(Arc::new(folder.clone()));
    let (store, _) = closed.open_alone(Uuid::from_u128(77)).unwrap();
    let mut build = Builder { store, written: Written::default(), seq: 0, next: BTreeMap::new(), epoch: Epoch(1) };
    build.put(Body::OpenSession { nonce: Uuid::from_u128(5) });
    // Three segments, of which the older ones move.
    for i in 0..9_u8 {
        build.append(1, vec![record(vec![i; 700], &[b"tag", &[i]])]);
        build.append(2, vec![record(vec![0x80 | i; 5], &[])]);
    }
    let last = build.written.entries.last().unwrap().lsn;
    build.store.checkpoint(last, b"the first state").unwrap();
    build.fence();
    build.move_some();
    build.put(Body::Trim { color: Color(2), upto: n(2) });
    build.store.trim(Color(2), n(2));
    build.put(Body::Hole { color: Color(1), first: n(9), count: 3 });
    build.next.insert(1, 12);
    build.append(1, vec![record(b"a batch".to_vec(), &[b"tag"]), record(Vec::new(), &[]), record(vec![7; 33], &[])]);
    let condition = Condition { tag: Tag::new("tag").unwrap(), last: Some(n(8)) };
    build.stage(3, vec![record(b"waits".to_vec(), &[])], Some(condition));
    build.store.seal(Incarnation { position: Position(0), epoch: Epoch(1), uuid: Uuid::from_u128(9) }).unwrap();
    build.fence();
    let last = build.written.entries.last().unwrap().lsn;
    build.store.checkpoint(last, b"the second state").unwrap();
    build.fence();
    build.append(3, vec![record(b"behind the checkpoint".to_vec(), &[])]);
    build.copy(3, 7, vec![record(b"copied".to_vec(), &[b"tag", b""]), record(Vec::new(), &[])]);
    build.repair(&media, 3, n(0));
    build.number_and_take_back(3, record(b"numbered twice".to_vec(), &[]));
    build.append(1, vec![record(b"the last".to_vec(), &[b"tag"])]);
    let Builder { written, .. } = build;
    Small { media, folder, written }
}
