//! Everything round-trips, agrees with the generated code, and nothing that comes in can break a bound.

use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message as _;
use uuid::Uuid;

use super::*;
use crate::api::{
    AppendRefusal, AppendRequest, Appended, BoundChange, ColorInfo, Failure, LinkStatus, Placement, PositionInfo,
    PositionStatus, ReplicaInfo, ReplicaStatus, Retention, RetentionChange, ShardInfo, ShardPlace, ShardStatus, Status,
    TreeInfo,
};
use crate::entry::Assign;
use crate::ids::{
    ClusterId, Color, Epoch, Lsn, Position, ReplicaId, SeqNum, SessionId, ShardId, Token, View, ViewNumber,
};
use crate::peer::{Child, Peer};
use crate::record::{Append, Condition, Record, Tag};

fn number() -> impl Strategy<Value = SeqNum> {
    any::<u64>().prop_map(SeqNum::from_raw)
}

fn tag() -> impl Strategy<Value = Tag> {
    vec(any::<u8>(), 0..65).prop_map(|bytes| Tag::new(bytes).unwrap())
}

fn record() -> impl Strategy<Value = Record> {
    (vec(any::<u8>(), 0..300), vec(tag(), 0..9)).prop_map(|(payload, tags)| Record::with_tags(payload, tags).unwrap())
}

fn session() -> impl Strategy<Value = SessionId> {
    (any::<u32>(), any::<u64>()).prop_map(|(epoch, lsn)| SessionId { epoch: Epoch(epoch), lsn: Lsn(lsn) })
}

fn token() -> impl Strategy<Value = Token> {
    (any::<u32>(), session(), any::<u64>()).prop_map(|(shard, session, seq)| Token {
        shard: ShardId(shard),
        session,
        seq,
    })
}

fn view() -> impl Strategy<Value = View> {
    (any::<u32>(), proptest::collection::btree_set(any::<u32>(), 0..5)).prop_map(|(number, members)| View {
        number: ViewNumber(number),
        members: members.into_iter().map(ReplicaId).collect(),
    })
}

fn append_request() -> impl Strategy<Value = AppendRequest> {
    let condition = proptest::option::of((tag(), proptest::option::of(number())));
    let one = (1_u64..1000, any::<u64>(), condition, vec(record(), 1..5));
    (any::<u32>(), session(), 0..=MAX_SEQ, vec(any::<u32>(), 0..4), vec(one, 0..6)).prop_map(
        |(shard, session, low, members, ones)| {
            let shard = ShardId(shard);
            let mut seq = 0;
            let appends = ones.into_iter().map(|(step, color, condition, records)| {
                seq += step;
                let condition = condition.map(|(tag, last)| Condition { tag, last });
                Arc::new(Append::new(Token { shard, session, seq }, Color(color), condition, records).unwrap())
            });
            let appends = appends.collect();
            AppendRequest { shard, session, low, members: members.into_iter().map(ReplicaId).collect(), appends }
        },
    )
}

fn bound_change() -> impl Strategy<Value = BoundChange> {
    prop_oneof![Just(BoundChange::Keep), Just(BoundChange::Remove), any::<NonZeroU64>().prop_map(BoundChange::Set),]
}

fn placement() -> impl Strategy<Value = Placement> {
    (proptest::option::of(".*"), any::<u32>()).prop_map(|(owner, width)| Placement { owner, width })
}

fn request() -> impl Strategy<Value = Request> {
    let (id, color, wait_micros) = (any::<u64>(), any::<u64>().prop_map(Color), any::<u64>());
    let tags = || proptest::option::of(tag());
    prop_oneof![
        append_request().prop_map(|append| Request::Append(Arc::new(append))),
        (id, ".*", proptest::option::of(placement()), bound_change(), bound_change()).prop_map(
            |(id, name, create, max_age_secs, max_bytes)| {
                let retention = RetentionChange { max_age_secs, max_bytes };
                Request::Lookup { id, name, create, retention }
            }
        ),
        (id, proptest::option::of(".*")).prop_map(|(id, after)| Request::Colors { id, after }),
        id.prop_map(|id| Request::Status { id }),
        id.prop_map(|id| Request::Ping { id }),
        (id, any::<u32>(), any::<u128>()).prop_map(|(id, shard, nonce)| Request::OpenSession {
            id,
            shard: ShardId(shard),
            nonce: Uuid::from_u128(nonce)
        }),
        (id, color.clone(), number(), wait_micros).prop_map(|(id, color, number, wait_micros)| Request::Read {
            id,
            color,
            number,
            wait_micros
        }),
        (id, color.clone(), tags(), number(), wait_micros)
            .prop_map(|(id, color, tag, from, wait_micros)| Request::ReadNext { id, color, tag, from, wait_micros }),
        (id, color.clone(), tags(), number(), wait_micros)
            .prop_map(|(id, color, tag, upto, wait_micros)| Request::ReadPrev { id, color, tag, upto, wait_micros }),
        (id, color.clone()).prop_map(|(id, color)| Request::Tail { id, color }),
        (id, color.clone(), number()).prop_map(|(id, color, upto)| Request::Trim { id, color, upto }),
        (id, color, tags(), number(), any::<u64>()).prop_map(|(id, color, tag, from, credit)| Request::Subscribe {
            id,
            color,
            tag,
            from,
            credit
        }),
        (id, any::<u64>()).prop_map(|(id, bytes)| Request::Credit { id, bytes }),
        id.prop_map(|id| Request::Unsubscribe { id }),
        (any::<u32>(), session()).prop_map(|(shard, session)| Request::CloseSession { shard: ShardId(shard), session }),
    ]
}

fn appended() -> impl Strategy<Value = Appended> {
    let run = (token(), 1_u32..1000, 1_u32..1000, any::<u64>(), any::<u32>(), 0_u32..1000).prop_map(
        |(mut token, tokens, records, color, epoch, counter)| {
            token.seq &= MAX_SEQ;
            Assign { token, tokens, records, color: Color(color), first: SeqNum::new(Epoch(epoch), counter) }
        },
    );
    (vec(any::<u32>(), 0..4), view(), any::<bool>(), vec(run, 0..4)).prop_map(|(members, view, settled, runs)| {
        Appended { members: members.into_iter().map(ReplicaId).collect(), view, settled, runs }
    })
}

fn failure() -> impl Strategy<Value = Failure> {
    prop_oneof![
        ".*".prop_map(Failure::NoSuchColor),
        (".*", ".*").prop_map(|(name, why)| Failure::BadName { name, why }),
        any::<u64>().prop_map(Failure::TooManyColors),
        Just(Failure::TooManySessions),
        (number(), number()).prop_map(|(upto, tail)| Failure::TrimBeyondTail { upto, tail }),
        ".*".prop_map(Failure::TooMany),
        any::<u32>().prop_map(|shard| Failure::NoSuchShard(ShardId(shard))),
        ".*".prop_map(Failure::Unsupported),
        ".*".prop_map(Failure::Unreadable),
        ".*".prop_map(Failure::StorageFailed),
        ".*".prop_map(Failure::Metadata),
        ".*".prop_map(Failure::NotReady),
    ]
}

fn refusal() -> impl Strategy<Value = AppendRefusal> {
    use AppendRefusal as R;
    proptest::sample::select(vec![
        R::Full,
        R::Busy,
        R::SessionExpired,
        R::TooOld,
        R::WindowFull,
        R::Conflict,
        R::Unsupported,
        R::StorageFailed,
        R::NotReady,
        R::NoSuchColor,
    ])
}

fn color_info() -> impl Strategy<Value = ColorInfo> {
    let shard = (any::<u32>(), view(), ".*").prop_map(|(shard, view, address)| ShardInfo {
        shard: ShardId(shard),
        addresses: vec![address; view.members.len()],
        view,
    });
    let bound = || proptest::option::of(any::<NonZeroU64>());
    (any::<u64>(), ".*", vec(shard, 0..3), ".*", bound(), bound()).prop_map(
        |(color, name, shards, owner, max_age_secs, max_bytes)| ColorInfo {
            color: Color(color),
            name,
            shards,
            owner,
            retention: Retention { max_age_secs, max_bytes },
        },
    )
}

fn status() -> impl Strategy<Value = Status> {
    (any::<u128>(), ".*", any::<u64>(), any::<u32>(), any::<bool>()).prop_map(|(cluster, text, n, m, shards)| {
        let replica = ReplicaStatus {
            replica: ReplicaId(m),
            state: text.clone(),
            path: "p".into(),
            device: "d".into(),
            used_bytes: n,
            limit_bytes: 2,
            records: 3,
            staged: 4,
            index_bytes: 5,
            opened: 6,
            ssd_files: 7,
            ssd_bytes: 8,
            ssd_records: 9,
            damaged: 10,
            repaired: 11,
            lost: 12,
            scrubbed_bytes: 13,
            scrub_passes: 14,
            scrub_ended_secs: 15,
        };
        let shard = ShardStatus {
            shard: ShardId(m),
            epoch: Epoch(3),
            view: 4,
            state: "serving".into(),
            last: Lsn(n),
            commit: Lsn(5),
            sessions: 6,
            replicas: vec![replica],
        };
        Status {
            cluster: ClusterId(Uuid::from_u128(cluster)),
            version: text,
            directory: "dir".into(),
            uptime_micros: n,
            connections: 1,
            colors: 2,
            appends: 3,
            shards: if shards { vec![shard] } else { vec![] },
            ..Status::default()
        }
    })
}

/// A status of a process of a tree: what an embedded cluster leaves out.
fn tree_status() -> impl Strategy<Value = Status> {
    let child = prop_oneof![
        any::<u32>().prop_map(|position| Child::Position(Position(position))),
        any::<u32>().prop_map(|shard| Child::Shard(ShardId(shard))),
    ];
    let peer = prop_oneof![
        any::<u32>().prop_map(|position| Peer::Position(Position(position))),
        any::<u32>().prop_map(|replica| Peer::Replica(ReplicaId(replica))),
    ];
    let link = (peer, proptest::option::of(".*"), any::<u64>()).prop_map(|(peer, down, queued_bytes)| LinkStatus {
        peer,
        address: "a:1".into(),
        down,
        queued_bytes,
    });
    let position = (any::<[u64; 4]>(), any::<bool>(), proptest::option::of(any::<u32>()), vec(child, 0..4)).prop_map(
        |(n, serving, parent, mut awaited)| {
            // In the order in which they are on the wire.
            awaited.sort_unstable();
            PositionStatus {
                position: Position(n[0] as u32),
                name: "left".into(),
                epoch: Epoch(n[1] as u32),
                serving,
                awaited,
                parent_epoch: parent.map(Epoch),
                colors: n[0],
                granted: n[1],
                under_way: n[2],
                ignored: n[3],
                standby: n[3] % 2 == 0,
            }
        },
    );
    let tree = (view(), proptest::option::of(".*"), any::<u32>(), proptest::option::of(any::<u32>())).prop_map(
        |(view, stale, n, parent)| TreeInfo {
            stale,
            positions: vec![PositionInfo {
                position: Position(n),
                name: "left".into(),
                parent: parent.map(Position),
                address: "b:2".into(),
                epoch: Epoch(n),
                holder: "d:4".into(),
                standbys: vec!["e:5".into(); n as usize % 3],
            }],
            shards: vec![ShardPlace {
                shard: ShardId(n),
                leaf: Position(n),
                view,
                min_view: 2,
                replicas: vec![ReplicaInfo { replica: ReplicaId(n), address: "c:3".into() }],
            }],
        },
    );
    (proptest::option::of(position), vec(link, 0..3), tree).prop_map(|(position, links, tree)| Status {
        process: "left".into(),
        position,
        links,
        tree,
        ..Status::default()
    })
}

fn answer() -> impl Strategy<Value = Answer> {
    let id = any::<u64>();
    prop_oneof![
        appended().prop_map(Answer::Appended),
        (token(), any::<u32>(), refusal()).prop_map(|(token, member, why)| Answer::AppendRefused {
            token,
            member: ReplicaId(member),
            why
        }),
        (id, color_info()).prop_map(|(id, info)| Answer::Color { id, info }),
        (id, vec(color_info(), 0..3)).prop_map(|(id, colors)| Answer::Colors { id, colors }),
        (id, prop_oneof![status(), tree_status()])
            .prop_map(|(id, status)| Answer::Status { id, status: Box::new(status) }),
        (id, any::<bool>()).prop_map(|(id, holder)| Answer::Pong { id, holder }),
        (id, session()).prop_map(|(id, session)| Answer::SessionOpened { id, session }),
        (id, number(), record()).prop_map(|(id, number, record)| Answer::Record { id, number, record }),
        id.prop_map(|id| Answer::Hole { id }),
        (id, number()).prop_map(|(id, point)| Answer::Trimmed { id, point }),
        (id, number()).prop_map(|(id, tail)| Answer::NotYet { id, tail }),
        id.prop_map(|id| Answer::NothingBefore { id }),
        id.prop_map(|id| Answer::Elsewhere { id }),
        (id, number()).prop_map(|(id, tail)| Answer::Tail { id, tail }),
        (id, number()).prop_map(|(id, point)| Answer::TrimDone { id, point }),
        (id, vec(record(), 0..4), 0_u64..1000).prop_map(|(id, records, first)| {
            let upto = SeqNum::from_raw(first + 2 * records.len() as u64);
            let records = records.into_iter().enumerate();
            let records = records.map(|(i, record)| (SeqNum::from_raw(first + 2 * i as u64), record)).collect();
            Answer::Delivered { id, records, upto }
        }),
        (id, failure()).prop_map(|(id, why)| Answer::Failed { id, why }),
        ".*".prop_map(|reason| Answer::Closing { reason }),
    ]
}

/// All frames of `out`, taken apart again.
fn decode_all<M: Message>(mut out: BytesMut) -> Vec<M> {
    let mut messages = Vec::new();
    while let Some(frame) = split_frame(&mut out, MAX_FRAME_BYTES).unwrap() {
        M::decode(frame, &mut messages).unwrap();
    }
    assert!(out.is_empty());
    messages
}

proptest! {
    #[test]
    fn requests_round_trip(requests in vec(request(), 0..8)) {
        let mut out = BytesMut::new();
        encode_requests(&requests, &mut out).unwrap();
        prop_assert_eq!(decode_all::<Request>(out), requests);
    }

    #[test]
    fn answers_round_trip(answers in vec(answer(), 0..8)) {
        let mut out = BytesMut::new();
        encode_answers(&answers, &mut out).unwrap();
        prop_assert_eq!(decode_all::<Answer>(out), answers);
    }

    /// What is written by hand is byte for byte what the generated code writes.
    #[test]
    fn appends_are_encoded_as_published(append in append_request()) {
        let mut out = BytesMut::new();
        encode_requests(&[Request::Append(Arc::new(append))], &mut out).unwrap();
        let body = &out[HEADER_BYTES..];
        let generated = proto::Requests::decode(body).unwrap();
        prop_assert_eq!(generated.encode_to_vec(), body);
        prop_assert!(matches!(generated.requests[0].kind, Some(proto::request::Kind::Append(_))));
    }

    #[test]
    fn garbage_is_refused_or_harmless(bytes in vec(any::<u8>(), 0..200)) {
        let _ = decode_requests(Bytes::from(bytes.clone()));
        let _ = decode_answers(Bytes::from(bytes.clone()));
        let _ = decode_hello(Bytes::from(bytes.clone()));
        let _ = decode_welcome(Bytes::from(bytes));
    }

    /// A flipped bit either shows, or leaves every record as it was made: a record is never damaged in silence.
    #[test]
    fn damage_to_a_payload_shows(append in append_request(), at: proptest::sample::Index, bit in 0_u8..8) {
        let mut out = BytesMut::new();
        encode_requests(&[Request::Append(Arc::new(append.clone()))], &mut out).unwrap();
        let at = HEADER_BYTES + at.index(out.len() - HEADER_BYTES);
        out[at] ^= 1 << bit;
        if let Ok(requests) = decode_requests(Bytes::copy_from_slice(&out[HEADER_BYTES..])) {
            let made: Vec<_> = append.appends.iter().flat_map(|append| append.records()).collect();
            for request in &requests {
                if let Request::Append(got) = request {
                    for record in got.appends.iter().flat_map(|append| append.records()) {
                        // An empty record is sound whatever becomes of the bytes around it.
                        prop_assert!(made.contains(&record) || record.payload().is_empty());
                    }
                }
            }
        }
    }
}

fn token_of(seq: u64) -> Token {
    Token { shard: ShardId(0), session: SessionId { epoch: Epoch(3), lsn: Lsn(17) }, seq }
}

fn appends_of(count: u64, bytes: usize) -> AppendRequest {
    let one = |seq| {
        let record = Record::new(vec![seq as u8; bytes]).unwrap();
        Arc::new(Append::new(token_of(100_000 + seq), Color(5), None, vec![record]).unwrap())
    };
    let session = token_of(0).session;
    let members = vec![ReplicaId(1), ReplicaId(2), ReplicaId(3)];
    AppendRequest { shard: ShardId(0), session, low: 99_000, members, appends: (0..count).map(one).collect() }
}

#[test]
fn large_appends_and_deliveries_are_split() {
    let request = appends_of(20, 100_000);
    let mut out = BytesMut::new();
    encode_requests(&[Request::Append(Arc::new(request.clone()))], &mut out).unwrap();
    let (mut frames, mut appends) = (0, Vec::new());
    while let Some(frame) = split_frame(&mut out, MAX_FRAME_BYTES).unwrap() {
        assert!(frame.len() <= TARGET_FRAME_BYTES + 100_000, "{}", frame.len());
        frames += 1;
        for part in decode_requests(frame).unwrap() {
            let Request::Append(part) = part else { panic!("{part:?}") };
            assert_eq!((part.low, &part.members), (request.low, &request.members));
            appends.extend(part.appends.iter().cloned());
        }
    }
    assert!(frames >= 8);
    assert_eq!(appends, request.appends);

    let records: Vec<_> = (0..20).map(|i| (SeqNum::from_raw(10 * i), Record::new(vec![1; 100_000]).unwrap())).collect();
    let upto = SeqNum::from_raw(1000);
    encode_answers(&[Answer::Delivered { id: 4, records: records.clone(), upto }], &mut out).unwrap();
    let (mut got, mut end) = (Vec::new(), SeqNum::MIN);
    for answer in decode_all::<Answer>(out) {
        let Answer::Delivered { records, upto, .. } = answer else { panic!("{answer:?}") };
        assert!(records[0].0 >= end && records.last().unwrap().0 < upto);
        end = upto;
        got.extend(records);
    }
    assert_eq!((got, end), (records, upto));
}

#[test]
fn the_largest_append_fits_into_a_frame() {
    let records = vec![Record::new(vec![7; 900]).unwrap(); 4096];
    let append = Append::new(token_of(1), Color(1), None, records).unwrap();
    let request = AppendRequest { appends: vec![Arc::new(append)], ..appends_of(0, 0) };
    let mut out = BytesMut::new();
    encode_requests(&[Request::Append(Arc::new(request.clone()))], &mut out).unwrap();
    assert_eq!(decode_all::<Request>(out), [Request::Append(Arc::new(request))]);
}

#[test]
fn a_message_beyond_a_frame_is_refused_before_it_is_sent() {
    let mut out = BytesMut::from(&b"before"[..]);
    let status = Answer::Closing { reason: "x".into() };
    let large = Answer::Closing { reason: "x".repeat(MAX_FRAME_BYTES) };
    let error = encode_answers(&[status, large], &mut out).unwrap_err();
    assert!(matches!(error, WireError::MessageTooLarge { .. }));
    assert_eq!(&out[..], b"before");
}

#[test]
fn a_frame_is_refused_by_its_header() {
    let mut buffer = BytesMut::from(&b"GET / HTTP/1.1\r\n"[..]);
    let error = split_frame(&mut buffer, MAX_FRAME_BYTES).unwrap_err();
    assert_eq!(error, WireError::FrameTooLarge { bytes: 0x2054_4547, limit: MAX_FRAME_BYTES });
    assert!(error.to_string().contains("is the other side FlexLog?"));
}

/// What a client could send to make a node allocate much, or trip over.
#[test]
fn hostile_requests_are_refused_in_words() {
    use proto::request::Kind;
    let encode = |append: proto::Append| {
        let request = proto::Request { id: 0, kind: Some(Kind::Append(append)) };
        Bytes::from(proto::Requests { requests: vec![request] }.encode_to_vec())
    };
    let record = proto::Record { payload: "x".into(), tags: vec![], crc: Record::new("x").unwrap().crc() };
    let one = |seq| proto::OneAppend { seq, color: 1, records: vec![record.clone()], condition: None };
    let session = Some(proto::Session { epoch: 1, lsn: 1 });
    let good = proto::Append { shard: 0, session, low: 1, members: vec![1], appends: vec![one(1)] };
    assert!(decode_requests(encode(good.clone())).is_ok());
    let refused = |append: proto::Append, word: &str| {
        let error = decode_requests(encode(append)).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(proto::Append { session: None, ..good.clone() }, "no session");
    refused(proto::Append { low: u64::MAX, ..good.clone() }, "low mark");
    refused(proto::Append { members: vec![1; 65], ..good.clone() }, "more replicas");
    refused(proto::Append { appends: vec![one(0)], ..good.clone() }, "seq is from 1");
    refused(proto::Append { appends: vec![one(u64::MAX)], ..good.clone() }, "seq is from 1");
    refused(proto::Append { appends: vec![one(2), one(2)], ..good.clone() }, "ascending");
    refused(proto::Append { appends: (1..=4097).map(one).collect(), ..good.clone() }, "more appends");
    let with = |record: proto::Record| proto::Append {
        appends: vec![proto::OneAppend { records: vec![record], ..one(1) }],
        ..good.clone()
    };
    refused(with(proto::Record { crc: 1, ..record.clone() }), "checksum");
    refused(with(proto::Record { tags: vec![Bytes::new(); 9], ..record.clone() }), "9 tags");
    refused(with(proto::Record { tags: vec![vec![0; 65].into()], ..record.clone() }), "tag has 65 bytes");
    refused(with(proto::Record { payload: vec![0; (1 << 20) + 1].into(), ..record.clone() }), "limit is 1048576");
    let none = proto::OneAppend { records: vec![], ..one(1) };
    refused(proto::Append { appends: vec![none], ..good.clone() }, "0 records");

    // Two bytes a message: 8 MiB of them would become hundreds of megabytes.
    let many = vec![proto::Request { id: 1, kind: None }; MAX_MESSAGES_PER_FRAME + 1];
    let error = decode_requests(proto::Requests { requests: many }.encode_to_vec().into()).unwrap_err();
    assert_eq!(error, WireError::Malformed("a request is of no kind that version 2 knows"));
    let kind = Some(Kind::Status(proto::StatusAsk {}));
    let many = vec![proto::Request { id: 1, kind }; MAX_MESSAGES_PER_FRAME + 1];
    let error = decode_requests(proto::Requests { requests: many }.encode_to_vec().into()).unwrap_err();
    assert_eq!(error, WireError::Malformed("a frame has too many messages"));
}

/// Unknown fields are passed over, and the order of fields is the sender's.
#[test]
fn fields_of_later_versions_are_passed_over() {
    let request = appends_of(2, 10);
    let mut out = BytesMut::new();
    encode_requests(&[Request::Append(Arc::new(request.clone()))], &mut out).unwrap();
    let generated = proto::Requests::decode(&out[HEADER_BYTES..]).unwrap();
    let Some(proto::request::Kind::Append(append)) = &generated.requests[0].kind else { panic!() };
    // The appends first, then an unknown field 100 of two bytes, then the head.
    let head = proto::Append { appends: vec![], ..append.clone() };
    let tail = proto::Append { appends: append.appends.clone(), ..proto::Append::default() };
    let mut body = tail.encode_to_vec();
    body.extend([0xa2, 0x06, 2, 1, 1]);
    body.extend(head.encode_to_vec());
    let mut message = BytesMut::new();
    scan::put_field_bytes(&mut message, 2, &body);
    let mut frame = BytesMut::new();
    scan::put_field_bytes(&mut frame, 1, &message);
    assert_eq!(decode_requests(frame.freeze()).unwrap(), [Request::Append(Arc::new(request))]);
}

/// Payloads are parts of their frame, not copies.
#[test]
fn payloads_share_their_frame() {
    let mut out = BytesMut::new();
    encode_requests(&[Request::Append(Arc::new(appends_of(3, 100)))], &mut out).unwrap();
    let frame = split_frame(&mut out, MAX_FRAME_BYTES).unwrap().unwrap();
    let range = frame.as_ptr_range();
    for request in decode_requests(frame.clone()).unwrap() {
        let Request::Append(append) = request else { panic!() };
        assert!(append.appends.iter().all(|append| range.contains(&append.records()[0].payload().as_ptr())));
    }
}

/// What the bytes are, so that they stay: a lookup that creates, and the color that answers it.
#[test]
fn a_creation_is_these_bytes() {
    let create = Some(Placement { owner: Some("eu".into()), width: 3 });
    let request = Request::Lookup { id: 7, name: "c".into(), create, retention: RetentionChange::default() };
    let mut out = BytesMut::new();
    encode_requests(&[request], &mut out).unwrap();
    let lookup = [0x0a, 1, b'c', 0x22, 6, 0x0a, 2, b'e', b'u', 0x10, 3];
    let mut message = vec![0x08, 7, 0x1a, lookup.len() as u8];
    message.extend(lookup);
    let mut frame = vec![message.len() as u8 + 2, 0, 0, 0, 0x0a, message.len() as u8];
    frame.extend(message);
    assert_eq!(out[..], frame[..]);
    let info = ColorInfo {
        color: Color(9),
        name: "c".into(),
        shards: vec![],
        owner: "eu".into(),
        retention: Retention::default(),
    };
    let mut out = BytesMut::new();
    encode_answers(&[Answer::Color { id: 7, info }], &mut out).unwrap();
    let color = [0x08, 9, 0x12, 1, b'c', 0x2a, 2, b'e', b'u'];
    let mut message = vec![0x08, 7, 0x22, color.len() as u8];
    message.extend(color);
    let mut frame = vec![message.len() as u8 + 2, 0, 0, 0, 0x0a, message.len() as u8];
    frame.extend(message);
    assert_eq!(out[..], frame[..]);
}
