//! Messages between the processes of a cluster on the wire.
//!
//! The published form is `proto/flexlog/v1/node.proto`. A stream between two processes is a sequence of bytes that
//! [`encode_node_messages`] writes run by run and [`decode_node_messages`] reads, wherever it is cut between two
//! runs: frames and numbering are the link's, see [`super::LinkFrame`]. Relies on the vocabulary and promises what
//! [`super`] does: the same value back, and every bound checked on what comes in. That bytes come from the own cluster
//! is no reason to trust them: a process of another version, or a damaged memory, is in it too.
//!
//! What an append needs (`Persisted`, `Entries` with assignments, `Acked`, `Order`, `Grant`) is plain numbers, without an
//! allocation for each item. Requests or grants that follow one another between the same two incarnations are one run,
//! which names these once.

mod copy;
mod flat;
mod tree;

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message as _;
use uuid::Uuid;

use super::answer::{session_from, session_to, view_from, view_to};
use super::scan::Fields;
use super::{MAX_SEQ, WireError, hello, proto, scan};
use crate::entry::{Body, Entry};
use crate::ids::{Color, Epoch, Incarnation, Lsn, Position, ReplicaId, SeqNum, ShardId, Token};
use crate::peer::{NodeMessage, Of, PeerMessage, SealReport, ToLeaf, ToMember};
use crate::record::{Append, Condition, Record, Tag};

const NO_KIND: WireError = WireError::Malformed("a message between nodes is of no kind that version 1 knows");

/// Puts the first of some messages at the end of a stream's bytes, and those behind it that are of the same run. Returns
/// how many these are: 0 only where there is none.
pub fn encode_node_messages(messages: &[NodeMessage], out: &mut BytesMut) -> usize {
    use proto::node_message::Kind;
    let Some(first) = messages.first() else { return 0 };
    let mut run = 1;
    let kind = match first {
        NodeMessage::ToMember { shard, to, message } => Kind::ToMember(member_to(*shard, *to, message)),
        NodeMessage::ToLeaf { shard, from, message } => Kind::ToLeaf(leaf_to(*shard, *from, message)),
        NodeMessage::Peer { shard, from, to, message } => {
            let kind = peer_to(message);
            Kind::Peer(proto::MemberToMember { shard: shard.0, from: from.0, to: to.0, kind: Some(kind) })
        }
        NodeMessage::Up { to, message } => {
            let (up, count) = tree::up_to(*to, message, messages);
            run = count;
            Kind::Up(up)
        }
        NodeMessage::Down { to, message } => {
            let (down, count) = tree::down_to(*to, message, messages);
            run = count;
            Kind::Down(down)
        }
    };
    let message = proto::NodeMessage { kind: Some(kind) };
    let len = message.encoded_len();
    out.reserve(scan::field_bytes_len(len));
    out.put_u8(scan::key_len(1));
    scan::put_varint(out, len as u64);
    message.encode_raw(out);
    run
}

/// Puts the messages of a piece of a stream at the end of `into`.
///
/// # Errors
/// `NotProtobuf`, `Malformed` and `Record`. Messages before the one that is wrong have been added.
pub fn decode_node_messages(bytes: &Bytes, into: &mut Vec<NodeMessage>) -> Result<(), WireError> {
    use proto::node_message::Kind;
    let mut fields = Fields::new(bytes);
    while let Some((field, value)) = fields.next()? {
        if field != 1 {
            continue;
        }
        let message = proto::NodeMessage::decode(scan::share(bytes, value.bytes()?))?;
        match message.kind.ok_or(NO_KIND)? {
            Kind::ToMember(message) => into.push(member_from(message)?),
            Kind::ToLeaf(message) => into.push(leaf_from(message)?),
            Kind::Peer(message) => into.push(peer_from(message)?),
            Kind::Up(message) => tree::up_from(message, into)?,
            Kind::Down(message) => tree::down_from(message, into)?,
        }
    }
    Ok(())
}

fn incarnation_to(incarnation: Incarnation) -> proto::Incarnation {
    let (uuid_high, uuid_low) = incarnation.uuid.as_u64_pair();
    proto::Incarnation { position: incarnation.position.0, epoch: incarnation.epoch.0, uuid_high, uuid_low }
}

fn incarnation_from(incarnation: Option<proto::Incarnation>) -> Result<Incarnation, WireError> {
    let incarnation = incarnation.ok_or(WireError::Malformed("a message names no incarnation"))?;
    Ok(Incarnation {
        position: Position(incarnation.position),
        epoch: Epoch(incarnation.epoch),
        uuid: Uuid::from_u64_pair(incarnation.uuid_high, incarnation.uuid_low),
    })
}

fn token_to(token: Token) -> proto::Token {
    proto::Token {
        shard: token.shard.0,
        session_epoch: token.session.epoch.0,
        session_lsn: token.session.lsn.0,
        seq: token.seq,
    }
}

fn token_from(token: Option<proto::Token>) -> Result<Token, WireError> {
    let token = token.ok_or(WireError::Malformed("a message names no token"))?;
    let session = proto::Session { epoch: token.session_epoch, lsn: token.session_lsn };
    flat::token(ShardId(token.shard), session_from(session), token.seq)
}

fn nonce_to(nonce: Uuid) -> Bytes {
    Bytes::copy_from_slice(nonce.as_bytes())
}

/// A place of a log that has one after it.
fn lsn(raw: u64) -> Result<Lsn, WireError> {
    if raw > MAX_SEQ { Err(WireError::Malformed("a place of a shard log is at most 2^63 - 1")) } else { Ok(Lsn(raw)) }
}

fn entry_to(entry: &Entry) -> proto::Entry {
    use proto::entry::Body as B;
    let body = match &entry.body {
        Body::Assign(list) => B::Assign(proto::Numbers { numbers: flat::assigns_to(list) }),
        Body::Hole { color, first, count } => {
            B::Hole(proto::ColorRange { color: color.0, first: first.to_raw(), count: *count })
        }
        Body::EpochEnd { color, end, next } => {
            B::EpochEnd(proto::EpochEnd { color: color.0, end: end.to_raw(), next: next.0 })
        }
        Body::NewView(view) => B::NewView(view_to(view)),
        Body::OpenSession { nonce } => B::OpenSession(nonce_to(*nonce)),
        Body::CloseSession(session) => B::CloseSession(session_to(*session)),
        Body::Trim { color, upto } => B::Trim(proto::Trim { color: color.0, upto: upto.to_raw() }),
    };
    proto::Entry { lsn: entry.lsn.0, epoch: entry.epoch.0, body: Some(body) }
}

fn entry_from(entry: proto::Entry) -> Result<Entry, WireError> {
    use proto::entry::Body as B;
    let body = match entry.body.ok_or(WireError::Malformed("an entry is of no kind that version 1 knows"))? {
        B::Assign(list) => Body::Assign(flat::assigns_from(&list.numbers)?),
        B::Hole(hole) => {
            let range = flat::range(SeqNum::from_raw(hole.first), hole.count)?;
            Body::Hole { color: Color(hole.color), first: range.first, count: range.count }
        }
        B::EpochEnd(end) => {
            let (color, next) = (Color(end.color), Epoch(end.next));
            let end = SeqNum::from_raw(end.end);
            if end.epoch() >= next {
                return Err(WireError::Malformed("the epoch after an ended one is not a later one"));
            }
            Body::EpochEnd { color, end, next }
        }
        B::NewView(view) => Body::NewView(view_from(Some(view))?),
        B::OpenSession(nonce) => Body::OpenSession { nonce: hello::uuid(&nonce)? },
        B::CloseSession(session) => Body::CloseSession(session_from(session)),
        B::Trim(trim) => Body::Trim { color: Color(trim.color), upto: SeqNum::from_raw(trim.upto) },
    };
    Ok(Entry { lsn: lsn(entry.lsn)?, epoch: Epoch(entry.epoch), body })
}

fn entries_to(entries: &[Arc<Entry>]) -> Vec<proto::Entry> {
    entries.iter().map(|entry| entry_to(entry)).collect()
}

fn entries_from(raw: Vec<proto::Entry>) -> Result<Vec<Arc<Entry>>, WireError> {
    if raw.len() > flat::MAX_ITEMS {
        return Err(flat::TOO_MANY);
    }
    let mut entries: Vec<Arc<Entry>> = Vec::with_capacity(raw.len());
    for entry in raw {
        let entry = entry_from(entry)?;
        if entry.lsn == Lsn(0) || entries.last().is_some_and(|last| last.lsn.next() != entry.lsn) {
            return Err(WireError::Malformed("the entries of a shard log do not follow one another, from 1 up"));
        }
        entries.push(Arc::new(entry));
    }
    Ok(entries)
}

fn member_to(shard: ShardId, to: ReplicaId, message: &Of<ToMember>) -> proto::LeafToMember {
    use proto::leaf_to_member::Kind;
    let kind = match &message.message {
        ToMember::Seal => Kind::Seal(proto::Nothing {}),
        ToMember::Entries { entries, commit } => {
            Kind::Entries(proto::Entries { entries: entries_to(entries), commit: commit.0 })
        }
        ToMember::Complete { token, from } => {
            Kind::Complete(proto::Complete { token: Some(token_to(*token)), from: from.0 })
        }
        ToMember::Confirm { round } => Kind::Confirm(*round),
        ToMember::Tail { ask, tail, after } => {
            Kind::Tail(proto::MemberTail { ask: *ask, tail: tail.to_raw(), after: after.0 })
        }
        ToMember::Conflict { token } => Kind::Conflict(token_to(*token)),
        ToMember::SessionRefused { nonce } => Kind::SessionRefused(nonce_to(*nonce)),
        ToMember::Stable { upto, commit } => {
            Kind::Stable(proto::StableUpto { numbers: flat::stables_to(upto), commit: commit.0 })
        }
        ToMember::Learn { from, behind } => Kind::Learn(proto::Learn { from: from.0, behind: behind.0 }),
    };
    proto::LeafToMember { shard: shard.0, to: to.0, leaf: Some(incarnation_to(message.leaf)), kind: Some(kind) }
}

fn member_from(message: proto::LeafToMember) -> Result<NodeMessage, WireError> {
    use proto::leaf_to_member::Kind;
    let said = match message.kind.ok_or(NO_KIND)? {
        Kind::Seal(proto::Nothing {}) => ToMember::Seal,
        Kind::Entries(entries) => {
            ToMember::Entries { entries: entries_from(entries.entries)?, commit: lsn(entries.commit)? }
        }
        Kind::Complete(complete) => {
            ToMember::Complete { token: token_from(complete.token)?, from: ReplicaId(complete.from) }
        }
        Kind::Confirm(round) => ToMember::Confirm { round },
        Kind::Tail(tail) => {
            ToMember::Tail { ask: tail.ask, tail: SeqNum::from_raw(tail.tail), after: lsn(tail.after)? }
        }
        Kind::Conflict(token) => ToMember::Conflict { token: token_from(Some(token))? },
        Kind::SessionRefused(nonce) => ToMember::SessionRefused { nonce: hello::uuid(&nonce)? },
        Kind::Stable(list) => ToMember::Stable { upto: flat::stables_from(&list.numbers)?, commit: Lsn(list.commit) },
        Kind::Learn(learn) => ToMember::Learn { from: ReplicaId(learn.from), behind: lsn(learn.behind)? },
    };
    let message_of = Of { leaf: incarnation_from(message.leaf)?, message: said };
    Ok(NodeMessage::ToMember { shard: ShardId(message.shard), to: ReplicaId(message.to), message: message_of })
}

fn leaf_to(shard: ShardId, from: ReplicaId, message: &Of<ToLeaf>) -> proto::MemberToLeaf {
    use proto::member_to_leaf::Kind;
    let kind = match &message.message {
        ToLeaf::Sealed(report) => Kind::Sealed(report_to(report)),
        ToLeaf::Persisted(list) => Kind::Persisted(proto::Numbers { numbers: flat::staged_to(list) }),
        ToLeaf::Acked(lsn) => Kind::Acked(lsn.0),
        ToLeaf::OpenSession { nonce } => Kind::OpenSession(nonce_to(*nonce)),
        ToLeaf::CloseSession { session } => Kind::CloseSession(session_to(*session)),
        ToLeaf::Trim { color, upto } => Kind::Trim(proto::Trim { color: color.0, upto: upto.to_raw() }),
        ToLeaf::TailAsk { ask, color } => Kind::TailAsk(proto::MemberTailAsk { ask: *ask, color: color.0 }),
        ToLeaf::Confirmed { round } => Kind::Confirmed(*round),
        ToLeaf::Learning => Kind::Learning(proto::Nothing {}),
        ToLeaf::Learned { upto } => Kind::Learned(upto.0),
    };
    proto::MemberToLeaf { shard: shard.0, from: from.0, leaf: Some(incarnation_to(message.leaf)), kind: Some(kind) }
}

fn leaf_from(message: proto::MemberToLeaf) -> Result<NodeMessage, WireError> {
    use proto::member_to_leaf::Kind;
    let said = match message.kind.ok_or(NO_KIND)? {
        Kind::Sealed(report) => ToLeaf::Sealed(Box::new(report_from(report)?)),
        Kind::Persisted(list) => ToLeaf::Persisted(flat::staged_from(&list.numbers)?),
        Kind::Acked(upto) => ToLeaf::Acked(lsn(upto)?),
        Kind::OpenSession(nonce) => ToLeaf::OpenSession { nonce: hello::uuid(&nonce)? },
        Kind::CloseSession(session) => ToLeaf::CloseSession { session: session_from(session) },
        Kind::Trim(trim) => ToLeaf::Trim { color: Color(trim.color), upto: SeqNum::from_raw(trim.upto) },
        Kind::TailAsk(ask) => ToLeaf::TailAsk { ask: ask.ask, color: Color(ask.color) },
        Kind::Confirmed(round) => ToLeaf::Confirmed { round },
        Kind::Learning(proto::Nothing {}) => ToLeaf::Learning,
        Kind::Learned(upto) => ToLeaf::Learned { upto: lsn(upto)? },
    };
    let message_of = Of { leaf: incarnation_from(message.leaf)?, message: said };
    Ok(NodeMessage::ToLeaf { shard: ShardId(message.shard), from: ReplicaId(message.from), message: message_of })
}

fn report_to(report: &SealReport) -> proto::SealReport {
    proto::SealReport {
        last_epoch: report.last.0.0,
        last_lsn: report.last.1.0,
        commit: report.commit.0,
        view: report.view.as_ref().map(view_to),
        entries: entries_to(&report.entries),
        staged: flat::staged_to(&report.staged),
        colors: flat::ends_to(&report.colors),
        sessions: flat::sessions_to(&report.sessions),
    }
}

fn report_from(report: proto::SealReport) -> Result<SealReport, WireError> {
    Ok(SealReport {
        last: (Epoch(report.last_epoch), lsn(report.last_lsn)?),
        commit: lsn(report.commit)?,
        view: report.view.map(|view| view_from(Some(view))).transpose()?,
        entries: entries_from(report.entries)?,
        staged: flat::staged_from(&report.staged)?,
        colors: flat::ends_from(&report.colors)?,
        sessions: flat::sessions_from(&report.sessions)?,
    })
}

fn peer_to(message: &PeerMessage) -> proto::member_to_member::Kind {
    use proto::member_to_member::Kind;
    match message {
        PeerMessage::Pull { token } => Kind::Pull(token_to(*token)),
        PeerMessage::Pulled(append) => Kind::Pulled(pulled_to(append)),
        PeerMessage::NotHere { token } => Kind::NotHere(token_to(*token)),
        PeerMessage::CopyFrom { copy, behind, runs } => Kind::CopyFrom(copy::from_to(*copy, *behind, runs)),
        PeerMessage::CopyState { copy, same, upto, piece, whole } => Kind::CopyState(proto::CopyState {
            copy: *copy,
            same: same.0,
            upto: upto.0,
            piece: piece.clone(),
            whole: *whole,
        }),
        PeerMessage::CopyRead { copy, color, from, upto } => {
            let (from, upto) = (from.to_raw(), upto.to_raw());
            Kind::CopyRead(proto::CopyRead { copy: *copy, color: color.0, from, upto })
        }
        PeerMessage::Copied { copy, color, records, covered } => {
            Kind::Copied(copy::copied_to(*copy, *color, records, *covered))
        }
        PeerMessage::CannotCopy { copy, why, damaged } => {
            Kind::CannotCopy(proto::CannotCopy { copy: *copy, why: why.clone(), damaged: *damaged })
        }
    }
}

fn peer_from(message: proto::MemberToMember) -> Result<NodeMessage, WireError> {
    use proto::member_to_member::Kind;
    let said = match message.kind.ok_or(NO_KIND)? {
        Kind::Pull(token) => PeerMessage::Pull { token: token_from(Some(token))? },
        Kind::Pulled(pulled) => PeerMessage::Pulled(Arc::new(pulled_from(pulled)?)),
        Kind::NotHere(token) => PeerMessage::NotHere { token: token_from(Some(token))? },
        Kind::CopyFrom(message) => copy::from_from(&message)?,
        Kind::CopyState(proto::CopyState { copy, same, upto, piece, whole }) => {
            PeerMessage::CopyState { copy, same: lsn(same)?, upto: lsn(upto)?, piece, whole }
        }
        Kind::CopyRead(message) => {
            let (from, upto) = (SeqNum::from_raw(message.from), SeqNum::from_raw(message.upto));
            PeerMessage::CopyRead { copy: message.copy, color: Color(message.color), from, upto }
        }
        Kind::Copied(message) => copy::copied_from(message)?,
        Kind::CannotCopy(proto::CannotCopy { copy, why, damaged }) => PeerMessage::CannotCopy { copy, why, damaged },
    };
    Ok(NodeMessage::Peer {
        shard: ShardId(message.shard),
        from: ReplicaId(message.from),
        to: ReplicaId(message.to),
        message: said,
    })
}

fn record_to(record: &Record) -> proto::Record {
    proto::Record {
        payload: record.payload().clone(),
        tags: record.tags().iter().map(|tag| tag.as_bytes().clone()).collect(),
        crc: record.crc(),
    }
}

fn record_from(record: proto::Record) -> Result<Record, WireError> {
    let tags = record.tags.into_iter().map(Tag::new).collect::<Result<_, _>>()?;
    Ok(Record::checked(record.payload, tags, record.crc)?)
}

fn pulled_to(append: &Append) -> proto::Pulled {
    let condition = |condition: &Condition| proto::Condition {
        tag: condition.tag.as_bytes().clone(),
        last: condition.last.map(SeqNum::to_raw),
    };
    let token = append.token();
    proto::Pulled {
        shard: token.shard.0,
        session: Some(session_to(token.session)),
        append: Some(proto::OneAppend {
            seq: token.seq,
            color: append.color().0,
            records: append.records().iter().map(record_to).collect(),
            condition: append.condition().map(condition),
        }),
    }
}

fn pulled_from(pulled: proto::Pulled) -> Result<Append, WireError> {
    let (Some(session), Some(append)) = (pulled.session, pulled.append) else {
        return Err(WireError::Malformed("an append that was asked for comes without its session or its records"));
    };
    let token = flat::token(ShardId(pulled.shard), session_from(session), append.seq)?;
    let condition = |condition: proto::Condition| -> Result<Condition, WireError> {
        Ok(Condition { tag: Tag::new(condition.tag)?, last: condition.last.map(SeqNum::from_raw) })
    };
    let records = append.records.into_iter().map(record_from).collect::<Result<_, _>>()?;
    Ok(Append::new(token, Color(append.color), append.condition.map(condition).transpose()?, records)?)
}

#[cfg(test)]
mod tests;
