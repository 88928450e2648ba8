//! Appends on the wire, by hand: they are the bulk of what a node reads, and building the generated types in between
//! would cost as much as all the rest. The bounds hold while decoding, so a small frame cannot ask for much memory.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::scan::{self, Fields};
use super::{MAX_MEMBERS, MAX_SEQ, WireError};
use crate::api::AppendRequest;
use crate::ids::{Color, Epoch, Lsn, ReplicaId, SeqNum, SessionId, ShardId, Token};
use crate::limits::{MAX_RECORDS_PER_TOKEN, MAX_TAGS, TOKEN_WINDOW};
use crate::record::{Append, Condition, Record, RecordError, Tag};

/// Fields of a `Session`, inside the message.
fn session_len(session: SessionId) -> usize {
    scan::field_varint_len(u64::from(session.epoch.0)) + scan::field_varint_len(session.lsn.0)
}

fn record_len(record: &Record) -> usize {
    let tags: usize = record.tags().iter().map(|tag| scan::field_bytes_len(tag.as_bytes().len())).sum();
    let payload = if record.payload().is_empty() { 0 } else { scan::field_bytes_len(record.payload().len()) };
    let crc = if record.crc() == 0 { 0 } else { 5 };
    payload + tags + crc
}

fn put_record(record: &Record, out: &mut BytesMut) {
    if !record.payload().is_empty() {
        scan::put_field_bytes(out, 1, record.payload());
    }
    for tag in record.tags() {
        scan::put_field_bytes(out, 2, tag.as_bytes());
    }
    if record.crc() != 0 {
        out.put_u8(scan::key_fixed32(3));
        out.put_u32_le(record.crc());
    }
}

fn condition_len(condition: &Condition) -> usize {
    let tag = condition.tag.as_bytes();
    let tag = if tag.is_empty() { 0 } else { scan::field_bytes_len(tag.len()) };
    tag + if condition.last.is_some() { 9 } else { 0 }
}

/// Bytes of a `OneAppend`.
fn one_len(append: &Append) -> usize {
    let records: usize = append.records().iter().map(|record| scan::field_bytes_len(record_len(record))).sum();
    let condition = append.condition().map_or(0, |condition| scan::field_bytes_len(condition_len(condition)));
    scan::field_varint_len(append.token().seq) + scan::field_varint_len(append.color().0) + records + condition
}

fn put_one(append: &Append, out: &mut BytesMut) {
    scan::put_field_varint(out, 1, append.token().seq);
    scan::put_field_varint(out, 2, append.color().0);
    for record in append.records() {
        out.put_u8(scan::key_len(3));
        scan::put_varint(out, record_len(record) as u64);
        put_record(record, out);
    }
    if let Some(condition) = append.condition() {
        out.put_u8(scan::key_len(4));
        scan::put_varint(out, condition_len(condition) as u64);
        if !condition.tag.as_bytes().is_empty() {
            scan::put_field_bytes(out, 1, condition.tag.as_bytes());
        }
        if let Some(last) = condition.last {
            out.put_u8(scan::key_fixed64(2));
            out.put_u64_le(last.to_raw());
        }
    }
}

/// A part of an `Append`: some of the appends under the same head.
pub(super) struct Part<'a> {
    head: &'a AppendRequest,
    appends: &'a [Arc<Append>],
    bytes: usize,
}

/// Cuts a request into parts of about `target` bytes, at least one append each.
pub(super) fn parts(request: &AppendRequest, target: usize) -> impl Iterator<Item = Part<'_>> {
    let mut rest = request.appends.as_slice();
    let mut first = true;
    std::iter::from_fn(move || {
        // A request without appends still tells the low mark.
        if rest.is_empty() && !first {
            return None;
        }
        first = false;
        let (mut count, mut bytes) = (0, 0);
        for append in rest {
            let len = scan::field_bytes_len(one_len(append));
            if count > 0 && bytes + len > target {
                break;
            }
            count += 1;
            bytes += len;
        }
        let (appends, behind) = rest.split_at(count);
        rest = behind;
        Some(Part { head: request, appends, bytes })
    })
}

impl Part<'_> {
    fn members_len(&self) -> usize {
        self.head.members.iter().map(|member| scan::varint_len(u64::from(member.0))).sum()
    }

    /// Bytes of the `Append` message.
    pub(super) fn len(&self) -> usize {
        let members = if self.head.members.is_empty() { 0 } else { scan::field_bytes_len(self.members_len()) };
        scan::field_varint_len(u64::from(self.head.shard.0))
            + scan::field_bytes_len(session_len(self.head.session))
            + scan::field_varint_len(self.head.low)
            + members
            + self.bytes
    }

    pub(super) fn put(&self, out: &mut BytesMut) {
        let session = self.head.session;
        scan::put_field_varint(out, 1, u64::from(self.head.shard.0));
        out.put_u8(scan::key_len(2));
        scan::put_varint(out, session_len(session) as u64);
        scan::put_field_varint(out, 1, u64::from(session.epoch.0));
        scan::put_field_varint(out, 2, session.lsn.0);
        scan::put_field_varint(out, 3, self.head.low);
        if !self.head.members.is_empty() {
            out.put_u8(scan::key_len(4));
            scan::put_varint(out, self.members_len() as u64);
            for member in &self.head.members {
                scan::put_varint(out, u64::from(member.0));
            }
        }
        for append in self.appends {
            out.put_u8(scan::key_len(5));
            scan::put_varint(out, one_len(append) as u64);
            put_one(append, out);
        }
    }
}

fn record(frame: &Bytes, message: &[u8]) -> Result<Record, WireError> {
    let mut fields = Fields::new(message);
    let (mut payload, mut tags, mut crc): (&[u8], _, _) = (&[], Vec::new(), 0);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => payload = value.bytes()?,
            2 => {
                if tags.len() >= MAX_TAGS {
                    return Err(RecordError::TooManyTags { tags: tags.len() + 1 }.into());
                }
                tags.push(Tag::new(scan::share(frame, value.bytes()?))?);
            }
            3 => crc = value.fixed32()?,
            _ => {}
        }
    }
    Ok(Record::checked(scan::share(frame, payload), tags, crc)?)
}

fn condition(frame: &Bytes, message: &[u8]) -> Result<Condition, WireError> {
    let mut fields = Fields::new(message);
    let (mut tag, mut last): (&[u8], _) = (&[], None);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => tag = value.bytes()?,
            2 => last = Some(SeqNum::from_raw(value.fixed64()?)),
            _ => {}
        }
    }
    Ok(Condition { tag: Tag::new(scan::share(frame, tag))?, last })
}

fn one(frame: &Bytes, message: &[u8], shard: ShardId, session: SessionId) -> Result<Append, WireError> {
    let mut fields = Fields::new(message);
    let (mut seq, mut color, mut guard) = (0, 0, None);
    let mut records = Vec::new();
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => seq = value.varint()?,
            2 => color = value.varint()?,
            3 => {
                if records.len() >= MAX_RECORDS_PER_TOKEN {
                    return Err(RecordError::RecordCount { records: records.len() + 1 }.into());
                }
                if records.is_empty() {
                    // Nearly always the only one.
                    records.reserve_exact(1);
                }
                records.push(record(frame, value.bytes()?)?);
            }
            4 => guard = Some(condition(frame, value.bytes()?)?),
            _ => {}
        }
    }
    if seq == 0 || seq > MAX_SEQ {
        return Err(WireError::Malformed("an append's seq is from 1 to 2^63 - 1"));
    }
    Ok(Append::new(Token { shard, session, seq }, Color(color), guard, records)?)
}

fn session(message: &[u8]) -> Result<SessionId, WireError> {
    let mut fields = Fields::new(message);
    let mut session = SessionId::default();
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => session.epoch = Epoch(value.u32()?),
            2 => session.lsn = Lsn(value.varint()?),
            _ => {}
        }
    }
    Ok(session)
}

/// The `Append` message in this part of the frame.
pub(super) fn decode(frame: &Bytes, message: &[u8]) -> Result<AppendRequest, WireError> {
    // The head may come after the appends: protobuf leaves the order of fields to the sender.
    let mut fields = Fields::new(message);
    let (mut shard, mut session_id, mut low) = (ShardId(0), None, 0);
    let (mut members, mut count) = (Vec::new(), 0);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => shard = ShardId(value.u32()?),
            2 => session_id = Some(session(value.bytes()?)?),
            3 => low = value.varint()?,
            4 => match value {
                scan::Value::Bytes(numbers) => Fields::packed(numbers, &mut members)?,
                value => members.push(value.varint()?),
            },
            5 => count += 1,
            _ => {}
        }
    }
    let session = session_id.ok_or(WireError::Malformed("an append names no session"))?;
    if low > MAX_SEQ {
        return Err(WireError::Malformed("a low mark is at most 2^63 - 1"));
    }
    if count > TOKEN_WINDOW {
        return Err(WireError::Malformed("a message has more appends than a session may have open"));
    }
    let members = replicas(members)?;
    let mut appends: Vec<Arc<Append>> = Vec::with_capacity(count as usize);
    let mut fields = Fields::new(message);
    while let Some((field, value)) = fields.next()? {
        if field == 5 {
            let append = one(frame, value.bytes()?, shard, session)?;
            if appends.last().is_some_and(|last| last.token().seq >= append.token().seq) {
                return Err(WireError::Malformed("the appends of a message are not in ascending order of their seqs"));
            }
            appends.push(Arc::new(append));
        }
    }
    Ok(AppendRequest { shard, session, low, members, appends })
}

fn replicas(raw: Vec<u64>) -> Result<Vec<ReplicaId>, WireError> {
    if raw.len() > MAX_MEMBERS {
        return Err(WireError::Malformed("a message names more replicas than a view may have"));
    }
    raw.into_iter()
        .map(|id| u32::try_from(id).map(ReplicaId).map_err(|_| WireError::Malformed("a replica is named by 32 bits")))
        .collect()
}
