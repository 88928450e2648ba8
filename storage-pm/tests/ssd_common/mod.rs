//! What the tests of the SSD tier share: records, and a model of what a tier must hold.
#![allow(dead_code)]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use flexlog_protocol::{Color, Epoch, Lsn, Record, SeqNum, StoreId, Tag};
use flexlog_storage_pm::ssd::{FileMeta, Folder, Moved, SimFolder, SsdError, Tier};
use uuid::Uuid;

pub const STORE: StoreId = StoreId(Uuid::from_u128(3));
pub const CACHE: u64 = 1 << 20;

/// Records by (color, number), as the tier sorts them.
pub type Model = BTreeMap<(Color, SeqNum), Record>;

pub fn number(raw: u64) -> SeqNum {
    SeqNum::from_raw(raw)
}

pub fn n(counter: u32) -> SeqNum {
    SeqNum::new(Epoch(1), counter)
}

pub fn record(payload: impl Into<Vec<u8>>, tags: &[&[u8]]) -> Record {
    let tags = tags.iter().map(|tag| Tag::new(tag.to_vec()).unwrap()).collect();
    Record::with_tags(payload.into(), tags).unwrap()
}

/// The form in which records come from the log.
pub fn encoded(record: &Record) -> Vec<u8> {
    let mut bytes = vec![record.tags().len() as u8];
    for tag in record.tags() {
        bytes.push(tag.as_bytes().len() as u8);
        bytes.extend_from_slice(tag.as_bytes());
    }
    bytes.extend_from_slice(record.payload());
    bytes
}

pub fn moved(records: &Model) -> impl Iterator<Item = io::Result<Moved<'static>>> {
    records.iter().map(|((color, number), record)| {
        Ok(Moved { color: *color, number: *number, crc: record.crc(), encoded: Cow::Owned(encoded(record)) })
    })
}

pub fn open(folder: &SimFolder) -> Result<Tier, SsdError> {
    Tier::open(Arc::new(folder.clone()) as Arc<dyn Folder>, STORE, CACHE)
}

pub fn add(tier: &Tier, records: &Model, upto: u64) -> Result<FileMeta, SsdError> {
    tier.add(&mut moved(records), Lsn(upto), vec![upto as u32, upto as u32 + 1])
}

/// `records` of one color, with numbers `from..upto` and payloads that say which they are.
pub fn run(color: u64, from: u32, upto: u32) -> Model {
    (from..upto).map(|at| ((Color(color), n(at)), record(format!("{color}/{at}"), &[]))).collect()
}

pub fn read_all(tier: &Tier, color: u64) -> Result<Vec<(SeqNum, Record)>, SsdError> {
    let mut into = Vec::new();
    tier.read(Color(color), SeqNum::MIN, SeqNum::MAX, usize::MAX, usize::MAX, &mut into)?;
    Ok(into)
}

/// What the model has of a color in `from..upto`.
pub fn of_color(model: &Model, color: Color, from: SeqNum, upto: SeqNum) -> Vec<(SeqNum, Record)> {
    if from >= upto {
        return Vec::new();
    }
    model.range((color, from)..(color, upto)).map(|((_, number), record)| (*number, record.clone())).collect()
}

pub fn never(_: Color) -> Option<SeqNum> {
    None
}

/// A point read: what a number is.
pub fn read_one(tier: &Tier, color: u64, at: SeqNum) -> Result<Option<Record>, SsdError> {
    let mut into = Vec::new();
    let upto = SeqNum::from_raw(at.to_raw() + 1);
    tier.read(Color(color), at, upto, 1, usize::MAX, &mut into)?;
    Ok(into.pop().map(|(_, record)| record))
}
