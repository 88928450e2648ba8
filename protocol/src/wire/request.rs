//! Requests on the wire.

use std::num::NonZeroU64;

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use super::proto::{self, request::Kind};
use super::scan::{Fields, Value};
use super::{Frames, MAX_MESSAGES_PER_FRAME, TARGET_FRAME_BYTES, WireError, answer, append, hello, scan};
use crate::api::{BoundChange, Placement, Request, RetentionChange};
use crate::ids::{Color, SeqNum, ShardId};
use crate::record::Tag;

/// Puts requests, as one or several whole frames, at the end of `out`. Large appends are split.
///
/// # Errors
/// `MessageTooLarge`; `out` is then as it was.
pub fn encode_requests(requests: &[Request], out: &mut BytesMut) -> Result<(), WireError> {
    let mut frames = Frames::new(out);
    for request in requests {
        if let Request::Append(append) = request {
            for part in append::parts(append, TARGET_FRAME_BYTES) {
                let len = part.len();
                frames.message(scan::field_bytes_len(len), |out| {
                    out.extend_from_slice(&[scan::key_len(2)]);
                    scan::put_varint(out, len as u64);
                    part.put(out);
                })?;
            }
        } else if let Some(message) = to_proto(request) {
            frames.message(message.encoded_len(), |out| message.encode_raw(out))?;
        }
    }
    frames.close();
    Ok(())
}

/// The requests of one frame, its header taken off.
///
/// # Errors
/// Everything that [`WireError`] names but `FrameTooLarge` and `MessageTooLarge`.
pub fn decode_requests(frame: Bytes) -> Result<Vec<Request>, WireError> {
    let mut requests = Vec::new();
    decode_into(&frame, &mut requests)?;
    Ok(requests)
}

pub(super) fn decode_into(frame: &Bytes, into: &mut Vec<Request>) -> Result<(), WireError> {
    let mut fields = Fields::new(frame);
    let mut count = 0;
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            count += 1;
            if count > MAX_MESSAGES_PER_FRAME {
                return Err(WireError::Malformed("a frame has too many messages"));
            }
            let message = value.bytes()?;
            let request = match append_in(message)? {
                Some(append) => Request::Append(append::decode(frame, append)?.into()),
                None => from_proto(proto::Request::decode(scan::share(frame, message))?)?,
            };
            into.push(request);
        }
    }
    Ok(())
}

/// Where the `Append` of a request is, if that is its kind.
fn append_in(request: &[u8]) -> Result<Option<&[u8]>, WireError> {
    let mut fields = Fields::new(request);
    let mut found = None;
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, _) => {}
            (2, Value::Bytes(append)) if found.is_none() => found = Some(append),
            (2, _) => return Err(WireError::Malformed("a request is two appends")),
            _ if found.is_some() => return Err(WireError::Malformed("a request is of two kinds")),
            _ => return Ok(None),
        }
    }
    Ok(found)
}

/// Everything but appends, which have a form of their own.
fn to_proto(request: &Request) -> Option<proto::Request> {
    let tag_bytes = |tag: &Option<Tag>| tag.as_ref().map(|tag| tag.as_bytes().clone());
    let (id, kind) = match request {
        Request::Append(_) => return None,
        Request::Lookup { id, name, create, retention } => {
            let retention = (!retention.is_nothing()).then(|| proto::RetentionChange {
                max_age_secs: bound_to(retention.max_age_secs),
                max_bytes: bound_to(retention.max_bytes),
            });
            let place = |place: &Placement| proto::Placement { owner: place.owner.clone(), width: place.width };
            let create = create.as_ref().map(place);
            (id, Kind::Lookup(proto::Lookup { name: name.clone(), retention, create }))
        }
        Request::Colors { id, after } => (id, Kind::Colors(proto::Colors { after: after.clone() })),
        Request::Status { id } => (id, Kind::Status(proto::StatusAsk {})),
        Request::Ping { id } => (id, Kind::Ping(proto::Ping {})),
        Request::OpenSession { id, shard, nonce } => {
            let nonce = Bytes::copy_from_slice(nonce.as_bytes());
            (id, Kind::OpenSession(proto::OpenSession { shard: shard.0, nonce }))
        }
        Request::CloseSession { shard, session } => {
            let session = Some(answer::session_to(*session));
            (&0, Kind::CloseSession(proto::CloseSession { shard: shard.0, session }))
        }
        Request::Read { id, color, number, wait_micros } => {
            let read = proto::Read { color: color.0, number: number.to_raw(), wait_micros: *wait_micros };
            (id, Kind::Read(read))
        }
        Request::ReadNext { id, color, tag, from, wait_micros } => {
            let (tag, from) = (tag_bytes(tag), from.to_raw());
            (id, Kind::ReadNext(proto::ReadNext { color: color.0, tag, from, wait_micros: *wait_micros }))
        }
        Request::ReadPrev { id, color, tag, upto, wait_micros } => {
            let (tag, upto) = (tag_bytes(tag), upto.to_raw());
            (id, Kind::ReadPrev(proto::ReadPrev { color: color.0, tag, upto, wait_micros: *wait_micros }))
        }
        Request::Tail { id, color } => (id, Kind::Tail(proto::TailAsk { color: color.0 })),
        Request::Trim { id, color, upto } => (id, Kind::Trim(proto::Trim { color: color.0, upto: upto.to_raw() })),
        Request::Subscribe { id, color, tag, from, credit } => {
            let (tag, from) = (tag_bytes(tag), from.to_raw());
            (id, Kind::Subscribe(proto::Subscribe { color: color.0, tag, from, credit: *credit }))
        }
        Request::Credit { id, bytes } => (id, Kind::Credit(proto::Credit { bytes: *bytes })),
        Request::Unsubscribe { id } => (id, Kind::Unsubscribe(proto::Unsubscribe {})),
    };
    Some(proto::Request { id: *id, kind: Some(kind) })
}

fn bound_to(change: BoundChange) -> Option<u64> {
    match change {
        BoundChange::Keep => None,
        BoundChange::Remove => Some(0),
        BoundChange::Set(bound) => Some(bound.get()),
    }
}

fn bound_from(change: Option<u64>) -> BoundChange {
    match change.map(NonZeroU64::new) {
        None => BoundChange::Keep,
        Some(None) => BoundChange::Remove,
        Some(Some(bound)) => BoundChange::Set(bound),
    }
}

fn from_proto(request: proto::Request) -> Result<Request, WireError> {
    let id = request.id;
    let tag = |bytes: Option<Bytes>| bytes.map(Tag::new).transpose();
    Ok(match request.kind {
        None => return Err(WireError::Malformed("a request is of no kind that version 2 knows")),
        Some(Kind::Append(_)) => return Err(WireError::Malformed("a request is of two kinds")),
        Some(Kind::Lookup(lookup)) => {
            let change = lookup.retention.unwrap_or_default();
            let retention = RetentionChange {
                max_age_secs: bound_from(change.max_age_secs),
                max_bytes: bound_from(change.max_bytes),
            };
            let create = lookup.create.map(|place| Placement { owner: place.owner, width: place.width });
            Request::Lookup { id, name: lookup.name, create, retention }
        }
        Some(Kind::Colors(colors)) => Request::Colors { id, after: colors.after },
        Some(Kind::Status(_)) => Request::Status { id },
        Some(Kind::Ping(_)) => Request::Ping { id },
        Some(Kind::OpenSession(open)) => {
            Request::OpenSession { id, shard: ShardId(open.shard), nonce: hello::uuid(&open.nonce)? }
        }
        Some(Kind::CloseSession(close)) => {
            let session = close.session.ok_or(WireError::Malformed("a session to close has no name"))?;
            Request::CloseSession { shard: ShardId(close.shard), session: answer::session_from(session) }
        }
        Some(Kind::Read(read)) => Request::Read {
            id,
            color: Color(read.color),
            number: SeqNum::from_raw(read.number),
            wait_micros: read.wait_micros,
        },
        Some(Kind::ReadNext(read)) => Request::ReadNext {
            id,
            color: Color(read.color),
            tag: tag(read.tag)?,
            from: SeqNum::from_raw(read.from),
            wait_micros: read.wait_micros,
        },
        Some(Kind::ReadPrev(read)) => Request::ReadPrev {
            id,
            color: Color(read.color),
            tag: tag(read.tag)?,
            upto: SeqNum::from_raw(read.upto),
            wait_micros: read.wait_micros,
        },
        Some(Kind::Tail(tail)) => Request::Tail { id, color: Color(tail.color) },
        Some(Kind::Trim(trim)) => Request::Trim { id, color: Color(trim.color), upto: SeqNum::from_raw(trim.upto) },
        Some(Kind::Subscribe(subscribe)) => Request::Subscribe {
            id,
            color: Color(subscribe.color),
            tag: tag(subscribe.tag)?,
            from: SeqNum::from_raw(subscribe.from),
            credit: subscribe.credit,
        },
        Some(Kind::Credit(credit)) => Request::Credit { id, bytes: credit.bytes },
        Some(Kind::Unsubscribe(_)) => Request::Unsubscribe { id },
    })
}
