//! Everything that processes say round-trips, and nothing that comes in can break a bound.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::entry::Assign;
use crate::ids::{SessionId, View, ViewNumber};
use crate::peer::{Between, ColorEnd, FromParent, Range, Staged, ToParent};

fn number() -> impl Strategy<Value = SeqNum> {
    any::<u64>().prop_map(SeqNum::from_raw)
}

fn color() -> impl Strategy<Value = Color> {
    any::<u64>().prop_map(Color)
}

fn place() -> impl Strategy<Value = Lsn> {
    (0..=MAX_SEQ).prop_map(Lsn)
}

fn uuid() -> impl Strategy<Value = Uuid> {
    any::<u128>().prop_map(Uuid::from_u128)
}

fn incarnation() -> impl Strategy<Value = Incarnation> {
    (any::<u32>(), any::<u32>(), uuid()).prop_map(|(position, epoch, uuid)| Incarnation {
        position: Position(position),
        epoch: Epoch(epoch),
        uuid,
    })
}

fn session() -> impl Strategy<Value = SessionId> {
    (any::<u32>(), any::<u64>()).prop_map(|(epoch, lsn)| SessionId { epoch: Epoch(epoch), lsn: Lsn(lsn) })
}

fn token() -> impl Strategy<Value = Token> {
    (any::<u32>(), session(), 1..=MAX_SEQ).prop_map(|(shard, session, seq)| Token {
        shard: ShardId(shard),
        session,
        seq,
    })
}

fn range() -> impl Strategy<Value = Range> {
    (any::<u32>(), any::<u32>(), 1..=u32::MAX).prop_map(|(epoch, counter, count)| Range {
        first: SeqNum::new(Epoch(epoch), counter.min(u32::MAX - count)),
        count,
    })
}

fn view() -> impl Strategy<Value = View> {
    (any::<u32>(), proptest::collection::btree_set(any::<u32>(), 0..5)).prop_map(|(number, members)| View {
        number: ViewNumber(number),
        members: members.into_iter().map(ReplicaId).collect(),
    })
}

fn staged() -> impl Strategy<Value = Staged> {
    (token(), color(), 1_u32..=4096, any::<u64>()).prop_map(|(token, color, records, digest)| Staged {
        token,
        color,
        records,
        digest,
    })
}

fn assign() -> impl Strategy<Value = Assign> {
    (token(), 1_u32..1000, 1_u32..1000, color(), any::<u32>(), 0_u32..1000).prop_map(
        |(mut token, tokens, records, color, epoch, counter)| {
            token.seq = token.seq.min(MAX_SEQ - 1000);
            Assign { token, tokens, records, color, first: SeqNum::new(Epoch(epoch), counter) }
        },
    )
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![
        vec(assign(), 0..5).prop_map(Body::Assign),
        (color(), range()).prop_map(|(color, range)| Body::Hole { color, first: range.first, count: range.count }),
        (color(), number(), any::<u32>()).prop_map(|(color, end, step)| {
            let epoch = end.epoch().0.min(u32::MAX - 1);
            let next = Epoch(epoch.saturating_add(step.max(1)));
            Body::EpochEnd { color, end: SeqNum::new(Epoch(epoch), end.counter()), next }
        }),
        view().prop_map(Body::NewView),
        uuid().prop_map(|nonce| Body::OpenSession { nonce }),
        session().prop_map(Body::CloseSession),
        (color(), number()).prop_map(|(color, upto)| Body::Trim { color, upto }),
    ]
}

fn entries() -> impl Strategy<Value = Vec<Arc<Entry>>> {
    (1_u64..1 << 62, vec((any::<u32>(), body()), 0..5)).prop_map(|(first, bodies)| {
        let entry = |(lsn, (epoch, body))| Arc::new(Entry { lsn: Lsn(lsn), epoch: Epoch(epoch), body });
        (first..).zip(bodies).map(entry).collect()
    })
}

fn color_end() -> impl Strategy<Value = ColorEnd> {
    let own = vec((1_u32..1000, 1_u32..1000), 0..4);
    (color(), number(), any::<bool>(), number(), any::<u32>(), own).prop_map(
        |(color, end, closed, stable, epoch, own)| {
            let mut counter = 0;
            let own = own.into_iter().map(|(gap, count)| {
                let first = SeqNum::new(Epoch(epoch), counter + gap);
                counter += gap + count;
                Range { first, count }
            });
            ColorEnd { color, end, closed, stable, own: own.collect() }
        },
    )
}

fn report() -> impl Strategy<Value = SealReport> {
    let lists = (entries(), vec(staged(), 0..4), vec(color_end(), 0..4), vec(session(), 0..4));
    ((any::<u32>(), place()), place(), option::of(view()), lists).prop_map(
        |((epoch, last), commit, view, (entries, staged, colors, sessions))| SealReport {
            last: (Epoch(epoch), last),
            commit,
            view,
            entries,
            staged,
            colors,
            sessions,
        },
    )
}

fn stables() -> impl Strategy<Value = Vec<(Color, SeqNum)>> {
    vec((color(), number()), 0..5)
}

fn to_member() -> impl Strategy<Value = ToMember> {
    prop_oneof![
        Just(ToMember::Seal),
        (entries(), place()).prop_map(|(entries, commit)| ToMember::Entries { entries, commit }),
        (token(), any::<u32>()).prop_map(|(token, from)| ToMember::Complete { token, from: ReplicaId(from) }),
        any::<u64>().prop_map(|round| ToMember::Confirm { round }),
        (any::<u64>(), number(), place()).prop_map(|(ask, tail, after)| ToMember::Tail { ask, tail, after }),
        token().prop_map(|token| ToMember::Conflict { token }),
        uuid().prop_map(|nonce| ToMember::SessionRefused { nonce }),
        (stables(), any::<u64>()).prop_map(|(upto, commit)| ToMember::Stable { upto, commit: Lsn(commit) }),
        (any::<u32>(), place()).prop_map(|(from, behind)| ToMember::Learn { from: ReplicaId(from), behind }),
    ]
}

fn to_leaf() -> impl Strategy<Value = ToLeaf> {
    prop_oneof![
        report().prop_map(|report| ToLeaf::Sealed(Box::new(report))),
        vec(staged(), 0..5).prop_map(ToLeaf::Persisted),
        place().prop_map(ToLeaf::Acked),
        uuid().prop_map(|nonce| ToLeaf::OpenSession { nonce }),
        session().prop_map(|session| ToLeaf::CloseSession { session }),
        (color(), number()).prop_map(|(color, upto)| ToLeaf::Trim { color, upto }),
        (any::<u64>(), color()).prop_map(|(ask, color)| ToLeaf::TailAsk { ask, color }),
        any::<u64>().prop_map(|round| ToLeaf::Confirmed { round }),
        Just(ToLeaf::Learning),
        place().prop_map(|upto| ToLeaf::Learned { upto }),
    ]
}

fn append() -> impl Strategy<Value = Append> {
    let tag = || vec(any::<u8>(), 0..65).prop_map(|bytes| Tag::new(bytes).unwrap());
    let record = (vec(any::<u8>(), 0..100), vec(tag(), 0..9))
        .prop_map(|(payload, tags)| Record::with_tags(payload, tags).unwrap());
    let condition = option::of((tag(), option::of(number())).prop_map(|(tag, last)| Condition { tag, last }));
    (token(), color(), condition, vec(record, 1..5))
        .prop_map(|(token, color, condition, records)| Append::new(token, color, condition, records).unwrap())
}

fn peer() -> impl Strategy<Value = PeerMessage> {
    prop_oneof![
        token().prop_map(|token| PeerMessage::Pull { token }),
        append().prop_map(|append| PeerMessage::Pulled(Arc::new(append))),
        token().prop_map(|token| PeerMessage::NotHere { token }),
        (any::<u64>(), place(), vec(1u32..9, 0..5)).prop_map(|(copy, behind, steps)| {
            let runs = steps.iter().scan(0, |sum, step| {
                *sum += step;
                Some((Epoch(*sum), Lsn(u64::from(*sum) * 3)))
            });
            PeerMessage::CopyFrom { copy, behind, runs: runs.collect() }
        }),
        (any::<u64>(), place(), place(), vec(any::<u8>(), 0..9), any::<bool>()).prop_map(
            |(copy, same, upto, piece, whole)| PeerMessage::CopyState { copy, same, upto, piece: piece.into(), whole }
        ),
        (any::<u64>(), color(), number(), number()).prop_map(|(copy, color, from, upto)| PeerMessage::CopyRead {
            copy,
            color,
            from,
            upto
        }),
        (any::<u64>(), append(), 0u32..9).prop_map(|(copy, append, first)| {
            let numbers = (first..).map(|counter| SeqNum::new(Epoch(4), counter * 2));
            let records: Vec<_> = numbers.zip(append.records().iter().cloned()).collect();
            let covered = SeqNum::new(Epoch(5), 0);
            PeerMessage::Copied { copy, color: append.color(), records, covered }
        }),
        any::<(u64, bool)>().prop_map(|(copy, damaged)| PeerMessage::CannotCopy { copy, why: "gone".into(), damaged }),
    ]
}

fn up() -> impl Strategy<Value = ToParent> {
    prop_oneof![
        Just(ToParent::Here),
        (incarnation(), any::<u32>(), vec(color_end(), 0..4)).prop_map(|(by, nth, colors)| ToParent::Sealed {
            by,
            nth,
            colors
        }),
        (any::<u64>(), color(), 1..=u32::MAX).prop_map(|(batch, color, count)| ToParent::Order { batch, color, count }),
        (any::<u64>(), vec(color(), 0..5)).prop_map(|(round, colors)| ToParent::Tails { round, colors }),
        stables().prop_map(ToParent::Settle),
    ]
}

fn down() -> impl Strategy<Value = FromParent> {
    prop_oneof![
        (incarnation(), any::<u32>()).prop_map(|(by, nth)| FromParent::Seal { by, nth }),
        (any::<u64>(), color(), range(), option::of(number())).prop_map(|(batch, color, range, ends)| {
            FromParent::Grant { batch, color, first: range.first, count: range.count, ends }
        }),
        (any::<u64>(), vec((color(), number(), option::of(number())), 0..5))
            .prop_map(|(round, tails)| FromParent::Tails { round, tails }),
        stables().prop_map(FromParent::Stable),
    ]
}

/// Messages between the same two, of which some go together.
fn run() -> impl Strategy<Value = Vec<NodeMessage>> {
    let order = (any::<u64>(), color(), 1..=u32::MAX);
    let order = order.prop_map(|(batch, color, count)| ToParent::Order { batch, color, count });
    let grant = (any::<u64>(), color(), range(), option::of(number())).prop_map(|(batch, color, range, ends)| {
        FromParent::Grant { batch, color, first: range.first, count: range.count, ends }
    });
    let up = vec(prop_oneof![20 => order, 1 => up()], 0..40);
    let down = vec(prop_oneof![20 => grant, 1 => down()], 0..40);
    (any::<u32>(), incarnation(), incarnation(), up, down).prop_map(|(to, from, addressed, up, down)| {
        let (to, addressed) = (Position(to), Some(addressed));
        let up =
            up.into_iter().map(|message| NodeMessage::Up { to, message: Between { from, to: addressed, message } });
        let down =
            down.into_iter().map(|message| NodeMessage::Down { to, message: Between { from, to: addressed, message } });
        up.chain(down).collect()
    })
}

fn message() -> impl Strategy<Value = NodeMessage> {
    let (id, member) = (any::<u32>(), any::<u32>().prop_map(ReplicaId));
    let shard = || any::<u32>().prop_map(ShardId);
    prop_oneof![
        (shard(), member.clone(), incarnation(), to_member())
            .prop_map(|(shard, to, leaf, message)| NodeMessage::ToMember { shard, to, message: Of { leaf, message } }),
        (shard(), member.clone(), incarnation(), to_leaf()).prop_map(|(shard, from, leaf, message)| {
            NodeMessage::ToLeaf { shard, from, message: Of { leaf, message } }
        }),
        (shard(), member.clone(), member, peer()).prop_map(|(shard, from, to, message)| NodeMessage::Peer {
            shard,
            from,
            to,
            message
        }),
        (id, incarnation(), option::of(incarnation()), incarnation(), up()).prop_map(
            |(to, from, addressed, or, said)| {
                let addressed = if said == ToParent::Here { addressed } else { addressed.or(Some(or)) };
                NodeMessage::Up { to: Position(to), message: Between { from, to: addressed, message: said } }
            }
        ),
        (id, incarnation(), option::of(incarnation()), incarnation(), down()).prop_map(
            |(to, from, addressed, or, said)| {
                let addressed =
                    if matches!(said, FromParent::Seal { .. }) { addressed } else { addressed.or(Some(or)) };
                NodeMessage::Down { to: Position(to), message: Between { from, to: addressed, message: said } }
            }
        ),
    ]
}

fn encoded(messages: &[NodeMessage]) -> Bytes {
    let (mut out, mut rest) = (BytesMut::new(), messages);
    while !rest.is_empty() {
        rest = &rest[encode_node_messages(rest, &mut out)..];
    }
    out.freeze()
}

fn decoded(bytes: &Bytes) -> Result<Vec<NodeMessage>, WireError> {
    let mut messages = Vec::new();
    decode_node_messages(bytes, &mut messages)?;
    Ok(messages)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn messages_round_trip(messages in vec(message(), 0..6), run in run()) {
        let messages = [messages, run].concat();
        let bytes = encoded(&messages);
        prop_assert_eq!(decoded(&bytes).unwrap(), messages.clone());
        // What is written by hand agrees with the published protocol.
        prop_assert_eq!(as_published(bytes), messages.iter().map(published).collect::<Vec<_>>());
    }

    #[test]
    fn bytes_that_came_about_by_chance_do_no_harm(bytes in vec(any::<u8>(), 0..300)) {
        let _ = decoded(&bytes.into());
    }

    /// Such bytes are seldom a message at all; these nearly are.
    #[test]
    fn damaged_messages_do_no_harm(messages in vec(message(), 1..3), hits in vec((any::<usize>(), any::<u8>()), 1..4)) {
        let mut bytes = encoded(&messages).to_vec();
        for (place, byte) in hits {
            let place = place % bytes.len();
            bytes[place] = byte;
        }
        for message in decoded(&bytes.into()).unwrap_or_default() {
            match message {
                NodeMessage::ToMember { message: Of { message: ToMember::Entries { entries, .. }, .. }, .. } => {
                    prop_assert!(entries.windows(2).all(|pair| pair[0].lsn.next() == pair[1].lsn));
                    for entry in &entries {
                        if let Body::Assign(list) = &entry.body {
                            prop_assert!(list.iter().all(Assign::is_sound));
                        }
                    }
                }
                NodeMessage::Down { message: Between { message: FromParent::Grant { first, count, .. }, .. }, .. } => {
                    prop_assert!(count > 0 && first.plus(count).is_some());
                }
                _ => {}
            }
        }
    }
}

/// A message on its own.
fn published(message: &NodeMessage) -> proto::NodeMessage {
    let mut alone = BytesMut::new();
    assert_eq!(encode_node_messages(std::slice::from_ref(message), &mut alone), 1);
    let mut messages = proto::NodeMessages::decode(alone).unwrap().messages;
    assert_eq!(messages.len(), 1);
    messages.remove(0)
}

/// A stream as the published protocol reads it, runs taken apart.
fn as_published(bytes: Bytes) -> Vec<proto::NodeMessage> {
    use proto::{from_parent, node_message::Kind, to_parent};
    let mut apart = Vec::new();
    for message in proto::NodeMessages::decode(bytes).unwrap().messages {
        match message.kind.unwrap() {
            Kind::Up(proto::ToParent { kind: Some(to_parent::Kind::Orders(list)), to, from, addressed }) => {
                for item in list.numbers.chunks(3) {
                    let kind = Some(to_parent::Kind::Orders(proto::Numbers { numbers: item.to_vec() }));
                    let up = proto::ToParent { to, from, addressed, kind };
                    apart.push(proto::NodeMessage { kind: Some(Kind::Up(up)) });
                }
            }
            Kind::Down(proto::FromParent { kind: Some(from_parent::Kind::Grants(list)), to, from, addressed }) => {
                let mut rest = &list.numbers[..];
                while !rest.is_empty() {
                    let (item, after) = rest.split_at(5 + rest[4] as usize);
                    rest = after;
                    let kind = Some(from_parent::Kind::Grants(proto::Numbers { numbers: item.to_vec() }));
                    let down = proto::FromParent { to, from, addressed, kind };
                    apart.push(proto::NodeMessage { kind: Some(Kind::Down(down)) });
                }
            }
            kind => apart.push(proto::NodeMessage { kind: Some(kind) }),
        }
    }
    apart
}

#[test]
fn a_run_names_its_incarnations_once_and_is_bounded() {
    let order = |batch| up_from_here(ToParent::Order { batch, color: Color(1), count: 1 });
    let orders: Vec<_> = (0..5000).map(order).collect();
    let mut out = BytesMut::new();
    assert_eq!(encode_node_messages(&orders, &mut out), 4096);
    assert!(out.len() < 4096 * 5);
    assert_eq!(encode_node_messages(&orders[4096..], &mut out), 904);
    assert_eq!(decoded(&out.freeze()).unwrap(), orders);
    assert_eq!(encode_node_messages(&[], &mut BytesMut::new()), 0);
    // Another pair is another run, and so is another kind of message.
    let NodeMessage::Up { message, .. } = order(1) else { panic!() };
    let other = NodeMessage::Up { to: Position(1), message };
    let settle = up_from_here(ToParent::Settle(Vec::new()));
    for (messages, first) in [([order(0), other, order(2)], 1), ([order(0), order(1), settle], 2)] {
        assert_eq!(encode_node_messages(&messages, &mut BytesMut::new()), first);
    }
    let long: Vec<u64> = (0..4097).flat_map(|batch| [batch, 1, 1]).collect();
    let kind = Some(proto::to_parent::Kind::Orders(proto::Numbers { numbers: long }));
    let (from, addressed) = (Some(incarnation_to(leaf())), Some(incarnation_to(leaf())));
    let long = proto::ToParent { to: 0, from, addressed, kind };
    assert!(tree::up_from(long, &mut Vec::new()).unwrap_err().to_string().contains("4096"));
}

fn leaf() -> Incarnation {
    Incarnation { position: Position(1), epoch: Epoch(2), uuid: Uuid::from_u128(3) }
}

fn a_token() -> Token {
    Token { shard: ShardId(0), session: SessionId { epoch: Epoch(2), lsn: Lsn(9) }, seq: 77 }
}

fn to_a_member(message: ToMember) -> NodeMessage {
    NodeMessage::ToMember { shard: ShardId(0), to: ReplicaId(1), message: Of { leaf: leaf(), message } }
}

fn to_a_leaf(message: ToLeaf) -> NodeMessage {
    NodeMessage::ToLeaf { shard: ShardId(0), from: ReplicaId(1), message: Of { leaf: leaf(), message } }
}

fn up_from_here(message: ToParent) -> NodeMessage {
    NodeMessage::Up { to: Position(0), message: Between { from: leaf(), to: Some(leaf()), message } }
}

fn down_from_here(message: FromParent) -> NodeMessage {
    NodeMessage::Down { to: Position(1), message: Between { from: leaf(), to: Some(leaf()), message } }
}

/// What a process of another version, or with a damaged memory, could say.
#[test]
fn values_out_of_their_bounds_are_refused_in_words() {
    let entries = |list: Vec<(u64, Body)>| {
        let entry = |(lsn, body)| Arc::new(Entry { lsn: Lsn(lsn), epoch: Epoch(1), body });
        to_a_member(ToMember::Entries { entries: list.into_iter().map(entry).collect(), commit: Lsn(0) })
    };
    let sound = Assign::one(a_token(), Color(1), SeqNum::new(Epoch(2), 5), 3);
    let trim = || Body::Trim { color: Color(1), upto: SeqNum::MIN };
    let hole = |counter, count| {
        let first = SeqNum::new(Epoch(1), counter);
        entries(vec![(1, Body::Hole { color: Color(1), first, count })])
    };
    let staged = |seq, records| {
        let token = Token { seq, ..a_token() };
        to_a_leaf(ToLeaf::Persisted(vec![Staged { token, color: Color(1), records, digest: 4 }]))
    };
    let view = |members: Vec<u32>| {
        let members = members.into_iter().map(ReplicaId).collect();
        entries(vec![(1, Body::NewView(View { number: ViewNumber(1), members }))])
    };
    let grant = |counter, count| {
        let first = SeqNum::new(Epoch(1), counter);
        down_from_here(FromParent::Grant { batch: 1, color: Color(1), first, count, ends: None })
    };
    let ends = |own: Vec<(u32, u32)>| {
        let range = |(counter, count)| Range { first: SeqNum::new(Epoch(1), counter), count };
        let own = own.into_iter().map(range).collect();
        let end = ColorEnd { own, ..ColorEnd::narrow(Color(1), SeqNum::MAX, false) };
        up_from_here(ToParent::Sealed { by: leaf(), nth: 0, colors: vec![end] })
    };
    let end = |next| {
        let end = SeqNum::new(Epoch(4), 9);
        entries(vec![(1, Body::EpochEnd { color: Color(1), end, next: Epoch(next) })])
    };
    let nobody = |message| NodeMessage::Up { to: Position(0), message: Between { from: leaf(), to: None, message } };
    let order = |count| ToParent::Order { batch: 1, color: Color(1), count };

    for good in [
        entries(vec![(1, trim()), (2, Body::Assign(vec![sound]))]),
        hole(u32::MAX - 1, 1),
        staged(1, 4096),
        view((0..64).collect()),
        grant(0, u32::MAX),
        ends(vec![(1, 2), (3, 1)]),
        end(5),
        nobody(ToParent::Here),
        up_from_here(order(1)),
    ] {
        assert_eq!(decoded(&encoded(std::slice::from_ref(&good))), Ok(vec![good]));
    }
    for (bad, word) in [
        (entries(vec![(1, trim()), (3, trim())]), "do not follow"),
        (entries(vec![(2, trim()), (1, trim())]), "do not follow"),
        (entries(vec![(0, trim())]), "from 1 up"),
        (entries(vec![(u64::MAX, trim())]), "2^63"),
        (entries(vec![(1, Body::Assign(vec![Assign { tokens: 0, ..sound }]))]), "assignment"),
        (entries(vec![(1, Body::Assign(vec![Assign { tokens: u32::MAX, ..sound }]))]), "assignment"),
        (hole(0, 0), "range"),
        (hole(u32::MAX, 1), "range"),
        (staged(0, 1), "seq"),
        (staged(u64::MAX, 1), "seq"),
        (staged(1, 0), "no records"),
        (staged(1, 4097), "no records"),
        (to_a_leaf(ToLeaf::Acked(Lsn(u64::MAX))), "2^63"),
        (view((0..65).collect()), "more members"),
        (view(vec![2, 1]), "ascending"),
        (grant(0, 0), "range"),
        (grant(2, u32::MAX - 1), "range"),
        (ends(vec![(1, 3), (3, 1)]), "apart"),
        (end(4), "later"),
        (nobody(order(1)), "which incarnation"),
        (up_from_here(order(0)), "asks for none"),
    ] {
        let error = decoded(&encoded(std::slice::from_ref(&bad))).unwrap_err().to_string();
        assert!(error.contains(word), "{bad:?}: {error}");
    }
}

#[test]
fn records_that_were_asked_for_are_checked() {
    let append = Append::new(a_token(), Color(1), None, vec![Record::new("hello world").unwrap()]).unwrap();
    let pulled = |append| NodeMessage::Peer {
        shard: ShardId(0),
        from: ReplicaId(1),
        to: ReplicaId(2),
        message: PeerMessage::Pulled(Arc::new(append)),
    };
    let mut bytes = encoded(&[pulled(append)]).to_vec();
    let place = bytes.windows(5).position(|part| part == b"world").unwrap();
    bytes[place] = b'W';
    let error = decoded(&bytes.into()).unwrap_err();
    assert_eq!(error, WireError::Record(crate::record::RecordError::Damaged));
}

#[test]
fn lists_that_end_inside_an_item_are_refused() {
    assert!(flat::assigns_from(&[1; 7]).is_err());
    assert!(flat::staged_from(&[1; 8]).is_err());
    // More own ranges than there are numbers for, however large the count.
    assert!(flat::ends_from(&[1, 2, 0, 4, u64::MAX]).is_err());
    assert!(flat::ends_from(&[1, 2, 2, 4, 0]).unwrap_err().to_string().contains("flag"));
    assert!(flat::stables_from(&vec![0; 2 * flat::MAX_ITEMS + 2]).unwrap_err().to_string().contains("more items"));
}

/// What one append costs on its way.
#[test]
fn the_messages_of_an_append_are_small() {
    let assign = Assign::one(a_token(), Color::new(Position(3), false, 12).unwrap(), SeqNum::new(Epoch(5), 70_000), 1);
    let entry = Arc::new(Entry { lsn: Lsn(100_000), epoch: Epoch(5), body: Body::Assign(vec![assign]) });
    let entries = to_a_member(ToMember::Entries { entries: vec![entry], commit: Lsn(99_999) });
    assert!(encoded(&[entries]).len() <= 80);
    assert!(encoded(&[to_a_leaf(ToLeaf::Acked(Lsn(100_000)))]).len() <= 40);
    let staged = Staged { token: a_token(), color: assign.color, records: 1, digest: u64::MAX };
    assert!(encoded(&[to_a_leaf(ToLeaf::Persisted(vec![staged]))]).len() <= 70);
}
