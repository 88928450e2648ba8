use proptest::prelude::*;

use super::*;

fn token(seq: u64) -> Token {
    Token { shard: ShardId(1), session: SessionId { epoch: Epoch(2), lsn: Lsn(3) }, seq }
}

fn incarnation() -> Incarnation {
    Incarnation { position: Position(4), epoch: Epoch(5), uuid: Uuid::from_u128(6) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn entry(body: Body) -> Entry {
    Entry { lsn: Lsn(7), epoch: Epoch(8), body }
}

/// One of each, with its bytes. These never change: stores in use have them.
fn entries() -> Vec<(Body, &'static str)> {
    let number = SeqNum::new(Epoch(9), 10);
    vec![
        (
            Body::Assign(vec![Assign { token: token(11), tokens: 2, records: 3, color: Color(12), first: number }]),
            "0700000000000000080000000100000001000000020000000300000000000000\
             0b000000000000000c000000000000000a000000090000000200000003000000",
        ),
        (
            Body::Hole { color: Color(12), first: number, count: 2 },
            "070000000000000008000000020000000c000000000000000a0000000900000002000000",
        ),
        (
            Body::EpochEnd { color: Color(12), end: number, next: Epoch(13) },
            "070000000000000008000000030000000c000000000000000a000000090000000d000000",
        ),
        (
            Body::NewView(View { number: ViewNumber(2), members: vec![ReplicaId(1), ReplicaId(3)] }),
            "07000000000000000800000004000000020000000100000003000000",
        ),
        (
            Body::OpenSession { nonce: Uuid::from_u128(14) },
            "070000000000000008000000050000000000000000000000000000000000000e",
        ),
        (
            Body::CloseSession(SessionId { epoch: Epoch(15), lsn: Lsn(16) }),
            "0700000000000000080000000600000010000000000000000f000000",
        ),
        (
            Body::Trim { color: Color(12), upto: number },
            "070000000000000008000000070000000c000000000000000a00000009000000",
        ),
    ]
}

#[test]
fn shard_log_entries_have_these_bytes() {
    for (body, expected) in entries() {
        let entry = entry(body);
        let mut bytes = Vec::new();
        put_entry(&mut bytes, &entry);
        assert_eq!(hex(&bytes), expected, "{entry:?}");
        assert_eq!(bytes.len(), entry_len(&entry));
        assert_eq!(decode_entry(&bytes), Some(entry));
    }
}

#[test]
fn short_and_long_entries_are_refused() {
    for (body, _) in entries() {
        let mut bytes = Vec::new();
        put_entry(&mut bytes, &entry(body.clone()));
        for len in 0..bytes.len() {
            // Shorter lists are lists too.
            let is_list = matches!(body, Body::NewView(_)) && len >= LOG_META + 4 && len % 4 == 0;
            assert!(is_list || decode_entry(&bytes[..len]).is_none(), "{body:?} cut to {len}");
        }
        bytes.push(0);
        assert_eq!(decode_entry(&bytes), None, "{body:?}");
    }
}

#[test]
fn unsound_counts_are_refused() {
    let number = SeqNum::new(Epoch(1), u32::MAX - 1);
    let assign = |tokens, records| Assign { token: token(1), tokens, records, color: Color(1), first: number };
    let bodies = [
        Body::Assign(vec![]),
        Body::Assign(vec![assign(0, 1)]),
        Body::Assign(vec![assign(1, 0)]),
        Body::Assign(vec![assign(1, 2)]),
        Body::Assign(vec![assign(1 << 16, 1 << 16)]),
        Body::Hole { color: Color(1), first: number, count: 0 },
        Body::Hole { color: Color(1), first: number, count: 2 },
        Body::NewView(View { number: ViewNumber(1), members: vec![ReplicaId(2), ReplicaId(1)] }),
        Body::NewView(View { number: ViewNumber(1), members: vec![ReplicaId(2), ReplicaId(2)] }),
    ];
    for body in bodies {
        let mut bytes = Vec::new();
        put_entry(&mut bytes, &entry(body.clone()));
        assert_eq!(decode_entry(&bytes), None, "{body:?}");
    }
}

fn append() -> Append {
    let condition = Condition { tag: Tag::new("tag").unwrap(), last: Some(SeqNum::new(Epoch(1), 2)) };
    let records = vec![
        Record::with_tags("one", vec![Tag::new("a").unwrap(), Tag::new("").unwrap()]).unwrap(),
        Record::new("").unwrap(),
    ];
    Append::new(token(4), Color(5), Some(condition), records).unwrap()
}

fn append_bytes(append: &Append) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_staged_head(&mut bytes, append);
    assert_eq!(bytes.len(), staged_head_len(append));
    for record in append.records() {
        put_tags(&mut bytes, record);
        bytes.extend_from_slice(record.payload());
    }
    assert_eq!(bytes.len(), staged_len(append));
    bytes
}

#[test]
fn a_staged_append_has_these_bytes_and_each_of_them_counts() {
    let append = append();
    let bytes = append_bytes(&append);
    assert_eq!(
        hex(&bytes),
        format!(
            "0100000002000000030000000000000004000000000000000500000000000000{:016x}020000000b000000\
             0200000001000000746167000000000007000000{:08x}08000000{:08x}\
             0201610{}6f6e6500",
            append.digest().swap_bytes(),
            append.records()[0].crc().swap_bytes(),
            append.records()[1].crc().swap_bytes(),
            "0"
        )
    );
    assert_eq!(decode_append(bytes.clone().into()), Some(append.clone()));
    let padding = 59..64;
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let found = decode_append(bad.into());
        // The token is in the entry's own checksum only; the padding is in none that is looked at here.
        let own = bit / 8 < 24 || padding.contains(&(bit / 8));
        assert!(own || found.is_none(), "bit {bit} of byte {}", bit / 8);
    }
}

#[test]
fn copied_records_have_a_token_that_no_client_has() {
    let first = SeqNum::new(Epoch(2), 3);
    let records = || vec![Record::new("x").unwrap(); 2];
    let body = |token, condition| append_bytes(&Append::new(token, Color(5), condition, records()).unwrap());
    let bytes = body(copied_token(first), None);
    assert_eq!(hex(&bytes[..32]), "0000000000000000000000000000000003000000020000000500000000000000");
    let (meta, found) = decode_copied(&bytes).unwrap();
    assert_eq!((meta.staged.color, meta.staged.records, found), (Color(5), 2, first));
    for len in 0..STAGED_META {
        assert!(decode_copied(&bytes[..len]).is_none());
    }
    assert!(decode_copied(&body(token(4), None)).is_none(), "an append");
    let condition = Condition { tag: Tag::new("t").unwrap(), last: None };
    assert!(decode_copied(&body(copied_token(first), Some(condition))).is_none(), "a condition");
    let end = |counter| decode_copied(&body(copied_token(SeqNum::new(Epoch(2), counter)), None));
    assert!(end(u32::MAX - 2).is_some() && end(u32::MAX - 1).is_none(), "beyond the epoch");
}

#[test]
fn a_truncate_has_these_bytes() {
    let truncate = Truncate { upto: Lsn(7), last: Lsn(9) };
    let mut bytes = Vec::new();
    truncate.put(&mut bytes);
    assert_eq!(hex(&bytes), "07000000000000000900000000000000");
    assert_eq!((bytes.len(), Truncate::decode(&bytes)), (TRUNCATE, Some(truncate)));
    assert_eq!((Truncate::decode(&bytes[..15]), Truncate::decode(&[&bytes[..], &[0]].concat())), (None, None));
    bytes[8] = 7;
    assert_eq!(Truncate::decode(&bytes), None, "nothing goes");
}

#[test]
fn fences_continues_and_parts_have_these_bytes() {
    let mut bytes = Vec::new();
    put_fence(&mut bytes, &incarnation());
    assert_eq!(hex(&bytes), "000000000000000000000000000000060400000005000000");
    assert_eq!(decode_fence(&bytes), Some(incarnation()));
    assert_eq!(decode_fence(&bytes[..23]), None);

    let mut bytes = Vec::new();
    let first = Continue { slot: 1, before: Place::new(2, 3) };
    first.put(&mut bytes);
    assert_eq!(hex(&bytes), "01000000020000000300000000000000");
    assert_eq!((bytes.len(), Continue::decode(&bytes)), (CONTINUE, Some(first)));

    let mut bytes = Vec::new();
    let meta = PartMeta { name: Place::new(1, 2), part: 3, parts: 4 };
    meta.put(&mut bytes);
    assert_eq!(hex(&bytes), "02000000010000000300000004000000");
    assert_eq!((bytes.len(), PartMeta::decode(&bytes)), (PART_META, Some(meta)));
}

#[test]
fn a_checkpoint_has_these_bytes() {
    let mut checkpoint = Checkpoint {
        upto: Lsn(1),
        fence: Some(incarnation()),
        live: vec![Place::new(2, 3), Place::new(4, 5)],
        staged: vec![Place::new(4, 6)],
        trims: vec![(Color(7), SeqNum::new(Epoch(8), 9))],
        truncates: vec![TakenBack { place: Place::new(10, 11), upto: Lsn(12) }],
        state: "state".into(),
    };
    let mut bytes = Vec::new();
    checkpoint.put(&mut bytes);
    assert_eq!(
        hex(&bytes),
        "010000000000000002000000010000000100000001000000\
         000000000000000000000000000000060400000005000000\
         0100000000000000\
         02000000030000000400000005000000\
         0600000004000000\
         07000000000000000900000008000000\
         0b0000000a0000000c000000000000007374617465"
    );
    assert_eq!(Checkpoint::decode(bytes.clone().into()), Some(checkpoint.clone()));
    for len in 0..bytes.len() - 5 {
        assert_eq!(Checkpoint::decode(bytes[..len].to_vec().into()), None);
    }
    checkpoint.fence = None;
    bytes.clear();
    checkpoint.put(&mut bytes);
    assert_eq!(Checkpoint::decode(bytes.into()), Some(checkpoint));
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_entry(&bytes);
        let _ = decode_fence(&bytes);
        let _ = Continue::decode(&bytes);
        let _ = PartMeta::decode(&bytes);
        let _ = Truncate::decode(&bytes);
        let _ = decode_copied(&bytes);
        let _ = Checkpoint::decode(bytes.clone().into());
        let _ = decode_record(bytes.clone().into(), 0);
        let _ = decode_append(bytes.into());
    }

    #[test]
    fn appends_round_trip(
        records in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 0..100),
             proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..65), 0..9)),
            1..20),
        condition in proptest::option::of((proptest::collection::vec(any::<u8>(), 0..65), proptest::option::of(0..u64::MAX))),
    ) {
        let tag = |bytes: Vec<u8>| Tag::new(bytes).unwrap();
        let condition = condition.map(|(bytes, last)| Condition { tag: tag(bytes), last: last.map(SeqNum::from_raw) });
        let records = records.into_iter()
            .map(|(payload, tags)| Record::with_tags(payload, tags.into_iter().map(tag).collect()).unwrap())
            .collect();
        let append = Append::new(token(9), Color(1), condition, records).unwrap();
        prop_assert_eq!(decode_append(append_bytes(&append).into()), Some(append));
    }
}
