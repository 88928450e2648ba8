//! Answers on the wire.

use std::num::NonZeroU64;

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use super::proto::{self, answer::Kind};
use super::scan::Fields;
use super::{Frames, MAX_MEMBERS, MAX_MESSAGES_PER_FRAME, TARGET_FRAME_BYTES, WireError, scan, status};
use crate::api::{Answer, AppendRefusal, Appended, ColorInfo, Failure, Retention, ShardInfo};
use crate::entry::Assign;
use crate::ids::{Color, Epoch, Lsn, ReplicaId, SeqNum, SessionId, ShardId, Token, View, ViewNumber};
use crate::record::{Record, Tag};

/// Puts answers, as one or several whole frames, at the end of `out`. Large deliveries are split.
///
/// # Errors
/// `MessageTooLarge`; `out` is then as it was.
pub fn encode_answers(answers: &[Answer], out: &mut BytesMut) -> Result<(), WireError> {
    let mut frames = Frames::new(out);
    for answer in answers {
        let mut put = |answer: proto::Answer| frames.message(answer.encoded_len(), |out| answer.encode_raw(out));
        match answer {
            Answer::Delivered { id, records, upto } => {
                for (records, upto) in deliveries(records, *upto) {
                    let records = records.iter().map(|(number, record)| numbered(*number, record)).collect();
                    let kind = Kind::Delivered(proto::Delivered { records, upto: upto.to_raw() });
                    put(proto::Answer { id: *id, kind: Some(kind) })?;
                }
            }
            other => put(to_proto(other))?,
        }
    }
    frames.close();
    Ok(())
}

/// Cuts a delivery into pieces of about [`TARGET_FRAME_BYTES`]; each ends where the next one begins.
fn deliveries(records: &[(SeqNum, Record)], upto: SeqNum) -> impl Iterator<Item = (&[(SeqNum, Record)], SeqNum)> {
    let mut rest = Some(records);
    std::iter::from_fn(move || {
        let records = rest.take()?;
        let (mut count, mut bytes) = (0, 0);
        for (_, record) in records {
            bytes += record.encoded_len() + 48;
            if count > 0 && bytes > TARGET_FRAME_BYTES {
                break;
            }
            count += 1;
        }
        let (piece, behind) = records.split_at(count);
        let end = behind.first().map(|(number, _)| *number);
        rest = end.map(|_| behind);
        Some((piece, end.unwrap_or(upto)))
    })
}

/// The answers of one frame, its header taken off.
///
/// # Errors
/// Everything that [`WireError`] names but `FrameTooLarge` and `MessageTooLarge`.
pub fn decode_answers(frame: Bytes) -> Result<Vec<Answer>, WireError> {
    let mut answers = Vec::new();
    decode_into(frame, &mut answers)?;
    Ok(answers)
}

pub(super) fn decode_into(frame: Bytes, into: &mut Vec<Answer>) -> Result<(), WireError> {
    let mut fields = Fields::new(&frame);
    let mut count = 0;
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            count += 1;
            if count > MAX_MESSAGES_PER_FRAME {
                return Err(WireError::Malformed("a frame has too many messages"));
            }
            into.push(from_proto(proto::Answer::decode(scan::share(&frame, value.bytes()?))?)?);
        }
    }
    Ok(())
}

fn to_proto(answer: &Answer) -> proto::Answer {
    let (id, kind) = match answer {
        Answer::Appended(appended) => (0, Kind::Appended(appended_to(appended))),
        Answer::AppendRefused { token, member, why } => {
            let refused = proto::AppendRefused {
                shard: token.shard.0,
                session: Some(session_to(token.session)),
                seq: token.seq,
                member: member.0,
                why: refusal_to(*why).into(),
            };
            (0, Kind::AppendRefused(refused))
        }
        Answer::Color { id, info } => (*id, Kind::Color(color_to(info))),
        Answer::Colors { id, colors } => {
            (*id, Kind::Colors(proto::ColorPage { colors: colors.iter().map(color_to).collect() }))
        }
        Answer::Status { id, status } => (*id, Kind::Status(Box::new(status::to_proto(status)))),
        Answer::Pong { id, holder } => (*id, Kind::Pong(proto::Pong { holder: *holder })),
        Answer::SessionOpened { id, session } => (*id, Kind::SessionOpened(session_to(*session))),
        Answer::Record { id, number, record } => (*id, Kind::Record(numbered(*number, record))),
        Answer::Hole { id } => (*id, Kind::Hole(proto::Hole {})),
        Answer::Trimmed { id, point } => (*id, Kind::Trimmed(point.to_raw())),
        Answer::NotYet { id, tail } => (*id, Kind::NotYet(tail.to_raw())),
        Answer::NothingBefore { id } => (*id, Kind::NothingBefore(proto::NothingBefore {})),
        Answer::Elsewhere { id } => (*id, Kind::Elsewhere(proto::Elsewhere {})),
        Answer::Tail { id, tail } => (*id, Kind::Tail(tail.to_raw())),
        Answer::TrimDone { id, point } => (*id, Kind::TrimDone(point.to_raw())),
        Answer::Delivered { id, records, upto } => {
            let records = records.iter().map(|(number, record)| numbered(*number, record)).collect();
            (*id, Kind::Delivered(proto::Delivered { records, upto: upto.to_raw() }))
        }
        Answer::Failed { id, why } => (*id, Kind::Failed(failure_to(why))),
        Answer::Closing { reason } => (0, Kind::Closing(reason.clone())),
    };
    proto::Answer { id, kind: Some(kind) }
}

fn from_proto(answer: proto::Answer) -> Result<Answer, WireError> {
    let id = answer.id;
    Ok(match answer.kind {
        None => return Err(WireError::Malformed("an answer is of no kind that version 2 knows")),
        Some(Kind::Appended(appended)) => Answer::Appended(appended_from(appended)?),
        Some(Kind::AppendRefused(refused)) => Answer::AppendRefused {
            why: refusal_from(refused.why())?,
            token: token(refused.shard, refused.session, refused.seq)?,
            member: ReplicaId(refused.member),
        },
        Some(Kind::Color(info)) => Answer::Color { id, info: color_from(info)? },
        Some(Kind::Colors(page)) => {
            Answer::Colors { id, colors: page.colors.into_iter().map(color_from).collect::<Result<_, _>>()? }
        }
        Some(Kind::Status(status)) => Answer::Status { id, status: Box::new(status::from_proto(*status)?) },
        Some(Kind::Pong(pong)) => Answer::Pong { id, holder: pong.holder },
        Some(Kind::SessionOpened(session)) => Answer::SessionOpened { id, session: session_from(session) },
        Some(Kind::Record(record)) => {
            let (number, record) = numbered_from(record)?;
            Answer::Record { id, number, record }
        }
        Some(Kind::Hole(_)) => Answer::Hole { id },
        Some(Kind::Trimmed(point)) => Answer::Trimmed { id, point: SeqNum::from_raw(point) },
        Some(Kind::NotYet(tail)) => Answer::NotYet { id, tail: SeqNum::from_raw(tail) },
        Some(Kind::NothingBefore(_)) => Answer::NothingBefore { id },
        Some(Kind::Elsewhere(_)) => Answer::Elsewhere { id },
        Some(Kind::Tail(tail)) => Answer::Tail { id, tail: SeqNum::from_raw(tail) },
        Some(Kind::TrimDone(point)) => Answer::TrimDone { id, point: SeqNum::from_raw(point) },
        Some(Kind::Delivered(delivered)) => {
            let records: Vec<_> = delivered.records.into_iter().map(numbered_from).collect::<Result<_, _>>()?;
            let upto = SeqNum::from_raw(delivered.upto);
            let ascending = records.windows(2).all(|pair| pair[0].0 < pair[1].0);
            if !ascending || records.last().is_some_and(|(last, _)| *last >= upto) {
                return Err(WireError::Malformed("delivered records are not in ascending order below their end"));
            }
            Answer::Delivered { id, records, upto }
        }
        Some(Kind::Failed(failure)) => Answer::Failed { id, why: failure_from(failure)? },
        Some(Kind::Closing(reason)) => Answer::Closing { reason },
    })
}

pub(super) fn session_to(session: SessionId) -> proto::Session {
    proto::Session { epoch: session.epoch.0, lsn: session.lsn.0 }
}

pub(super) fn session_from(session: proto::Session) -> SessionId {
    SessionId { epoch: Epoch(session.epoch), lsn: Lsn(session.lsn) }
}

fn token(shard: u32, session: Option<proto::Session>, seq: u64) -> Result<Token, WireError> {
    let session = session.ok_or(WireError::Malformed("a token names no session"))?;
    Ok(Token { shard: ShardId(shard), session: session_from(session), seq })
}

pub(super) fn view_to(view: &View) -> proto::View {
    proto::View { number: view.number.0, members: view.members.iter().map(|member| member.0).collect() }
}

pub(super) fn view_from(view: Option<proto::View>) -> Result<View, WireError> {
    let view = view.ok_or(WireError::Malformed("a view is missing"))?;
    if view.members.len() > MAX_MEMBERS {
        return Err(WireError::Malformed("a view has more members than it may have"));
    }
    if !view.members.windows(2).all(|pair| pair[0] < pair[1]) {
        return Err(WireError::Malformed("the members of a view are not in ascending order"));
    }
    Ok(View { number: ViewNumber(view.number), members: view.members.into_iter().map(ReplicaId).collect() })
}

fn appended_to(appended: &Appended) -> proto::Appended {
    let run = |run: &Assign| proto::Run {
        shard: run.token.shard.0,
        session: Some(session_to(run.token.session)),
        seq: run.token.seq,
        tokens: run.tokens,
        records: run.records,
        color: run.color.0,
        first: run.first.to_raw(),
    };
    proto::Appended {
        members: appended.members.iter().map(|member| member.0).collect(),
        view: Some(view_to(&appended.view)),
        settled: appended.settled,
        runs: appended.runs.iter().map(run).collect(),
    }
}

fn appended_from(appended: proto::Appended) -> Result<Appended, WireError> {
    let run = |run: proto::Run| {
        let assign = Assign {
            token: token(run.shard, run.session, run.seq)?,
            tokens: run.tokens,
            records: run.records,
            color: Color(run.color),
            first: SeqNum::from_raw(run.first),
        };
        if assign.is_sound() {
            Ok(assign)
        } else {
            Err(WireError::Malformed("a run's counts do not fit into an epoch"))
        }
    };
    if appended.members.len() > MAX_MEMBERS {
        return Err(WireError::Malformed("a message names more replicas than a view may have"));
    }
    Ok(Appended {
        members: appended.members.into_iter().map(ReplicaId).collect(),
        view: view_from(appended.view)?,
        settled: appended.settled,
        runs: appended.runs.into_iter().map(run).collect::<Result<_, _>>()?,
    })
}

fn refusal_to(why: AppendRefusal) -> proto::Refusal {
    match why {
        AppendRefusal::Full => proto::Refusal::Full,
        AppendRefusal::Busy => proto::Refusal::Busy,
        AppendRefusal::SessionExpired => proto::Refusal::SessionExpired,
        AppendRefusal::TooOld => proto::Refusal::TooOld,
        AppendRefusal::WindowFull => proto::Refusal::WindowFull,
        AppendRefusal::Conflict => proto::Refusal::Conflict,
        AppendRefusal::Unsupported => proto::Refusal::Unsupported,
        AppendRefusal::StorageFailed => proto::Refusal::StorageFailed,
        AppendRefusal::NotReady => proto::Refusal::NotReady,
        AppendRefusal::NoSuchColor => proto::Refusal::NoSuchColor,
    }
}

fn refusal_from(why: proto::Refusal) -> Result<AppendRefusal, WireError> {
    Ok(match why {
        proto::Refusal::Unspecified => {
            return Err(WireError::Malformed("an append was refused for no reason that version 2 knows"));
        }
        proto::Refusal::Full => AppendRefusal::Full,
        proto::Refusal::Busy => AppendRefusal::Busy,
        proto::Refusal::SessionExpired => AppendRefusal::SessionExpired,
        proto::Refusal::TooOld => AppendRefusal::TooOld,
        proto::Refusal::WindowFull => AppendRefusal::WindowFull,
        proto::Refusal::Conflict => AppendRefusal::Conflict,
        proto::Refusal::Unsupported => AppendRefusal::Unsupported,
        proto::Refusal::StorageFailed => AppendRefusal::StorageFailed,
        proto::Refusal::NotReady => AppendRefusal::NotReady,
        proto::Refusal::NoSuchColor => AppendRefusal::NoSuchColor,
    })
}

fn numbered(number: SeqNum, record: &Record) -> proto::NumberedRecord {
    let record = proto::Record {
        payload: record.payload().clone(),
        tags: record.tags().iter().map(|tag| tag.as_bytes().clone()).collect(),
        crc: record.crc(),
    };
    proto::NumberedRecord { number: number.to_raw(), record: Some(record) }
}

fn numbered_from(numbered: proto::NumberedRecord) -> Result<(SeqNum, Record), WireError> {
    let record = numbered.record.ok_or(WireError::Malformed("a number comes without its record"))?;
    let tags = record.tags.into_iter().map(Tag::new).collect::<Result<_, _>>()?;
    Ok((SeqNum::from_raw(numbered.number), Record::checked(record.payload, tags, record.crc)?))
}

fn color_to(info: &ColorInfo) -> proto::ColorInfo {
    let shard = |shard: &ShardInfo| proto::ShardInfo {
        shard: shard.shard.0,
        view: Some(view_to(&shard.view)),
        addresses: shard.addresses.clone(),
    };
    let retention = (!info.retention.is_unlimited()).then(|| proto::Retention {
        max_age_secs: info.retention.max_age_secs.map(NonZeroU64::get),
        max_bytes: info.retention.max_bytes.map(NonZeroU64::get),
    });
    let shards = info.shards.iter().map(shard).collect();
    let (name, owner) = (info.name.clone(), info.owner.clone());
    proto::ColorInfo { color: info.color.0, name, shards, retention, owner }
}

fn color_from(info: proto::ColorInfo) -> Result<ColorInfo, WireError> {
    let shard = |shard: proto::ShardInfo| {
        let view = view_from(shard.view)?;
        if shard.addresses.len() != view.members.len() {
            return Err(WireError::Malformed("a shard has not one address for each member"));
        }
        Ok(ShardInfo { shard: ShardId(shard.shard), view, addresses: shard.addresses })
    };
    let bound = |bound: u64| NonZeroU64::new(bound).ok_or(WireError::Malformed("a bound of a retention is 0"));
    let retention = info.retention.unwrap_or_default();
    Ok(ColorInfo {
        retention: Retention {
            max_age_secs: retention.max_age_secs.map(bound).transpose()?,
            max_bytes: retention.max_bytes.map(bound).transpose()?,
        },
        color: Color(info.color),
        name: info.name,
        shards: info.shards.into_iter().map(shard).collect::<Result<_, _>>()?,
        owner: info.owner,
    })
}

fn failure_to(why: &Failure) -> proto::Failure {
    use proto::failure::Kind;
    let kind = match why {
        Failure::NoSuchColor(name) => Kind::NoSuchColor(name.clone()),
        Failure::BadName { name, why } => Kind::BadName(proto::BadName { name: name.clone(), why: why.clone() }),
        Failure::TooManyColors(limit) => Kind::TooManyColors(*limit),
        Failure::TooManySessions => Kind::TooManySessions(true),
        Failure::TrimBeyondTail { upto, tail } => {
            Kind::TrimBeyondTail(proto::TrimBeyondTail { upto: upto.to_raw(), tail: tail.to_raw() })
        }
        Failure::TooMany(what) => Kind::TooMany(what.clone()),
        Failure::Placement(why) => Kind::Placement(why.clone()),
        Failure::NoSuchShard(shard) => Kind::NoSuchShard(shard.0),
        Failure::Unsupported(what) => Kind::Unsupported(what.clone()),
        Failure::Unreadable(what) => Kind::Unreadable(what.clone()),
        Failure::StorageFailed(what) => Kind::StorageFailed(what.clone()),
        Failure::Metadata(what) => Kind::Metadata(what.clone()),
        Failure::NotReady(what) => Kind::NotReady(what.clone()),
    };
    proto::Failure { kind: Some(kind) }
}

fn failure_from(failure: proto::Failure) -> Result<Failure, WireError> {
    use proto::failure::Kind;
    Ok(match failure.kind {
        None => return Err(WireError::Malformed("a request failed for no reason that version 2 knows")),
        Some(Kind::NoSuchColor(name)) => Failure::NoSuchColor(name),
        Some(Kind::BadName(bad)) => Failure::BadName { name: bad.name, why: bad.why },
        Some(Kind::TooManyColors(limit)) => Failure::TooManyColors(limit),
        Some(Kind::TooManySessions(_)) => Failure::TooManySessions,
        Some(Kind::TrimBeyondTail(trim)) => {
            Failure::TrimBeyondTail { upto: SeqNum::from_raw(trim.upto), tail: SeqNum::from_raw(trim.tail) }
        }
        Some(Kind::TooMany(what)) => Failure::TooMany(what),
        Some(Kind::Placement(why)) => Failure::Placement(why),
        Some(Kind::NoSuchShard(shard)) => Failure::NoSuchShard(ShardId(shard)),
        Some(Kind::Unsupported(what)) => Failure::Unsupported(what),
        Some(Kind::Unreadable(what)) => Failure::Unreadable(what),
        Some(Kind::StorageFailed(what)) => Failure::StorageFailed(what),
        Some(Kind::Metadata(what)) => Failure::Metadata(what),
        Some(Kind::NotReady(what)) => Failure::NotReady(what),
    })
}
