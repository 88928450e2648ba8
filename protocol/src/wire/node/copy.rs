//! What a learner and the member that it copies from say to each other.

use super::{lsn, proto, record_from, record_to};
use crate::ids::{Color, Epoch, Lsn, SeqNum};
use crate::media::LogEnd;
use crate::peer::PeerMessage;
use crate::record::Record;
use crate::wire::WireError;

pub(super) fn from_to(copy: u64, behind: Lsn, runs: &[LogEnd]) -> proto::CopyFrom {
    let runs = runs.iter().flat_map(|(epoch, last)| [u64::from(epoch.0), last.0]).collect();
    proto::CopyFrom { copy, behind: behind.0, runs }
}

pub(super) fn from_from(message: &proto::CopyFrom) -> Result<PeerMessage, WireError> {
    let runs: Vec<LogEnd> =
        super::flat::read(&message.runs, 2, |reader| Ok((Epoch(reader.u32()?), lsn(reader.u64()?)?)))?;
    if !runs.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1) {
        return Err(WireError::Malformed("the epochs of a shard log do not ascend"));
    }
    Ok(PeerMessage::CopyFrom { copy: message.copy, behind: lsn(message.behind)?, runs })
}

pub(super) fn copied_to(copy: u64, color: Color, records: &[(SeqNum, Record)], covered: SeqNum) -> proto::Copied {
    proto::Copied {
        copy,
        color: color.0,
        numbers: records.iter().map(|(number, _)| number.to_raw()).collect(),
        records: records.iter().map(|(_, record)| record_to(record)).collect(),
        covered: covered.to_raw(),
    }
}

pub(super) fn copied_from(message: proto::Copied) -> Result<PeerMessage, WireError> {
    let proto::Copied { copy, color, numbers, records, covered } = message;
    let covered = SeqNum::from_raw(covered);
    let in_order =
        numbers.is_sorted_by(|a, b| a < b) && numbers.last().is_none_or(|last| SeqNum::from_raw(*last) < covered);
    if numbers.len() != records.len() || !in_order {
        return Err(WireError::Malformed("copied records do not ascend, or are not as many as their numbers"));
    }
    let pair = |(number, record)| Ok((SeqNum::from_raw(number), record_from(record)?));
    let records = numbers.into_iter().zip(records).map(pair).collect::<Result<_, WireError>>()?;
    Ok(PeerMessage::Copied { copy, color: Color(color), records, covered })
}
