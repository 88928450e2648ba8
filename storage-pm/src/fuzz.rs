//! Fuzz targets for what comes from the area: entries, the bodies of entries, checkpoints. They run a while inside
//! `cargo test`, and as long as one likes under `cargo bolero test`.

use bytes::Bytes;
use flexlog_protocol::{Append, Color, Condition, Epoch, Lsn, Record, SeqNum, SessionId, ShardId, Tag, Token};

use crate::codec::{self, Checkpoint, Continue, PartMeta, StagedMeta, Truncate};
use crate::layout::{ENTRY_HEADER, Kind, Place, finish_head};
use crate::recover::good_entry;

const SEED: u32 = 99;

/// An entry of this kind and body, its checksum right.
fn entry(kind: Kind, body: &[u8], covered: usize) -> Vec<u8> {
    let mut bytes = vec![0; ENTRY_HEADER];
    bytes.extend_from_slice(body);
    let (place, fenced) = (Place::new(3, 0), Place::new(2, 64));
    finish_head(&mut bytes, kind, body.len() as u32, place, fenced, SEED, ENTRY_HEADER + covered);
    bytes
}

/// The body of an append, or of records that were copied.
fn records(kind: Kind) -> Vec<u8> {
    let session = SessionId { epoch: Epoch(1), lsn: Lsn(1) };
    let tag = Tag::new("tag").expect("short");
    let records = vec![
        Record::with_tags("payload", vec![tag.clone()]).expect("small"),
        Record::new(vec![7; 100]).expect("small"),
    ];
    let (token, condition) = match kind {
        Kind::Copied => (codec::copied_token(SeqNum::new(Epoch(3), 4)), None),
        _ => (Token { shard: ShardId(0), session, seq: 1 }, Some(Condition { tag, last: None })),
    };
    let append = Append::new(token, Color(1), condition, records).expect("sound");
    let mut body = Vec::new();
    codec::put_staged_head(&mut body, &append);
    for record in append.records() {
        codec::put_tags(&mut body, record);
        body.extend_from_slice(record.payload());
    }
    body
}

#[test]
fn an_entry_of_any_bytes() {
    bolero::check!().for_each(|bytes: &[u8]| {
        for at in 0..bytes.len().min(16) {
            assert!(good_entry(bytes, at, None, SEED).is_none(), "a checksum that nobody made holds");
        }
        // Bodies are decoded only where the checksum holds; they must not rely on it.
        let _ = codec::decode_entry(bytes);
        let _ = codec::decode_fence(bytes);
        let _ = codec::decode_append(Bytes::copy_from_slice(bytes));
        let _ = codec::decode_record(Bytes::copy_from_slice(bytes), 0);
        let _ = StagedMeta::decode(bytes);
        let _ = Continue::decode(bytes);
        let _ = PartMeta::decode(bytes);
        let _ = Truncate::decode(bytes);
        let _ = codec::decode_copied(bytes);
    });
}

#[test]
fn a_shard_log_entry_that_decodes_is_written_the_same() {
    bolero::check!().with_type::<(u8, Vec<u8>)>().for_each(|(variant, rest)| {
        let mut body = vec![1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, variant % 9, 0, 0, 0];
        body.extend_from_slice(rest);
        let bytes = entry(Kind::Entry, &body, body.len());
        let (header, found) = good_entry(&bytes, 0, Some(3), SEED).expect("its checksum is right");
        assert_eq!((header.kind, found), (Kind::Entry, &body[..]));
        if let Some(decoded) = codec::decode_entry(found) {
            let mut again = Vec::new();
            codec::put_entry(&mut again, &decoded);
            assert_eq!(again, body);
            assert_eq!(codec::entry_len(&decoded), body.len());
        }
    });
}

#[test]
fn a_staged_entry_that_was_changed() {
    changed(Kind::Staged);
}

#[test]
fn a_copied_entry_that_was_changed() {
    changed(Kind::Copied);
}

fn changed(kind: Kind) {
    let body = records(kind);
    let covered = StagedMeta::decode(&body).expect("sound").records_at();
    let good = entry(kind, &body, covered);
    assert!(good_entry(&good, 0, Some(3), SEED).is_some());
    bolero::check!().with_type::<(Vec<(u16, u8)>, bool)>().for_each(|(changes, mended)| {
        let mut body = body.clone();
        changes.iter().for_each(|(at, to)| body[usize::from(*at) % (2 * covered).min(good.len() - ENTRY_HEADER)] = *to);
        let changed = body != good[ENTRY_HEADER..];
        // A changed head may say that the checksum covers more, or less.
        let covers = StagedMeta::decode(&body).map_or(covered, |meta| meta.records_at()).min(body.len());
        let bytes = if *mended { entry(kind, &body, covers) } else { [&good[..ENTRY_HEADER], &body].concat() };
        let found = good_entry(&bytes, 0, Some(3), SEED);
        assert!(*mended || !changed || found.is_none(), "a change went unnoticed");
        let _ = codec::decode_copied(&body);
        let _ = codec::decode_append(Bytes::from(body));
    });
}

#[test]
fn a_truncate_that_decodes_is_written_the_same() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Some(truncate) = Truncate::decode(bytes) {
            let mut again = Vec::new();
            truncate.put(&mut again);
            assert_eq!(again, bytes);
        }
    });
}

#[test]
fn a_checkpoint_that_decodes_is_written_the_same() {
    bolero::check!().with_type::<(u8, u8, u8, bool, Vec<u8>)>().for_each(|(live, staged, truncates, fence, rest)| {
        let mut bytes = vec![0; 8];
        for word in [u32::from(*live), u32::from(*staged), u32::from(*fence), 0] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&[0; codec::FENCE]);
        bytes.extend_from_slice(&u64::from(*truncates).to_le_bytes());
        bytes.extend_from_slice(rest);
        if let Some(checkpoint) = Checkpoint::decode(Bytes::copy_from_slice(&bytes)) {
            let mut again = Vec::new();
            checkpoint.put(&mut again);
            assert_eq!(again, bytes);
        }
    });
    bolero::check!().for_each(|bytes: &[u8]| {
        let _ = Checkpoint::decode(Bytes::copy_from_slice(bytes));
    });
}
