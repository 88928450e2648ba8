//! A member's state as bytes, as of the last committed entry.
//!
//! What is above commit stays out: it is in the entries that follow, and may be taken back. Staged records stay out too:
//! the store tells them itself.

use bytes::Bytes;
use flexlog_protocol::media::LogEnd;
use flexlog_protocol::{Color, Epoch, Lsn, ReplicaId, SeqNum, SessionId, View, ViewNumber};
use prost::Message;
use rustc_hash::FxHashMap;
use uuid::Uuid;

use crate::color::{ColorState, Narrow, Span, Wide};
use crate::log::ShardLog;
use crate::message::RestoreError;
use crate::session::{Session, Slot, SlotState};

/// The version of this format.
const VERSION: u32 = 3;

#[derive(Clone, PartialEq, Message)]
struct StateBytes {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(uint32, tag = "2")]
    last_epoch: u32,
    #[prost(message, optional, tag = "3")]
    view: Option<ViewBytes>,
    #[prost(message, repeated, tag = "4")]
    sessions: Vec<SessionBytes>,
    #[prost(message, repeated, tag = "5")]
    colors: Vec<ColorBytes>,
    /// The last place of each leaf epoch, as far back as is remembered: the epoch, the place.
    #[prost(uint64, repeated, tag = "6")]
    runs: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct ViewBytes {
    #[prost(uint32, tag = "1")]
    number: u32,
    #[prost(uint32, repeated, tag = "2")]
    members: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct SessionBytes {
    #[prost(uint32, tag = "1")]
    epoch: u32,
    #[prost(uint64, tag = "2")]
    lsn: u64,
    #[prost(bytes = "vec", tag = "3")]
    nonce: Vec<u8>,
    #[prost(uint64, tag = "4")]
    base: u64,
    #[prost(message, repeated, tag = "5")]
    answers: Vec<AnswerBytes>,
}

#[derive(Clone, PartialEq, Message)]
struct AnswerBytes {
    #[prost(uint64, tag = "1")]
    seq: u64,
    #[prost(uint64, tag = "2")]
    color: u64,
    #[prost(uint32, tag = "3")]
    records: u32,
    #[prost(fixed64, tag = "4")]
    digest: u64,
    #[prost(fixed64, tag = "5")]
    first: u64,
    #[prost(uint64, tag = "6")]
    lsn: u64,
}

#[derive(Clone, PartialEq, Message)]
struct ColorBytes {
    #[prost(uint64, tag = "1")]
    color: u64,
    #[prost(fixed64, tag = "2")]
    stable: u64,
    #[prost(fixed64, optional, tag = "3")]
    trim: Option<u64>,
    /// For each epoch: its number, its exclusive end, and 1 if it is closed.
    #[prost(uint32, repeated, tag = "4")]
    spans: Vec<u32>,
    #[prost(fixed64, repeated, tag = "5")]
    holes: Vec<u64>,
    #[prost(uint32, repeated, tag = "6")]
    hole_counts: Vec<u32>,
    /// Of a wide color, which has no spans: known ends of epochs, and the epoch after each.
    #[prost(fixed64, repeated, tag = "7")]
    ends: Vec<u64>,
    #[prost(uint32, repeated, tag = "8")]
    nexts: Vec<u32>,
    /// The exclusive end of its last epoch with a number or an end, and whether it is closed.
    #[prost(fixed64, optional, tag = "9")]
    end: Option<u64>,
    #[prost(bool, tag = "10")]
    closed: bool,
    /// The shard's numbers of it at or above stable, and how many from each on.
    #[prost(fixed64, repeated, tag = "11")]
    own: Vec<u64>,
    #[prost(uint32, repeated, tag = "12")]
    own_counts: Vec<u32>,
}

/// What a member starts from.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) last: (Epoch, Lsn),
    pub(crate) view: Option<View>,
    pub(crate) sessions: FxHashMap<SessionId, Session>,
    pub(crate) colors: FxHashMap<Color, ColorState>,
    pub(crate) runs: Vec<LogEnd>,
}

/// The state as of the log's commit.
pub(crate) fn encode(
    log: &ShardLog,
    sessions: &FxHashMap<SessionId, Session>,
    colors: &FxHashMap<Color, ColorState>,
) -> Bytes {
    let commit = log.commit();
    let view = log
        .view()
        .map(|view| ViewBytes { number: view.number.0, members: view.members.iter().map(|member| member.0).collect() });
    let mut sessions: Vec<SessionBytes> = sessions
        .iter()
        .filter(|(id, _)| id.lsn <= commit)
        .map(|(id, session)| session_bytes(*id, session, commit))
        .collect();
    sessions.sort_unstable_by_key(|session| session.lsn);
    let mut colors: Vec<ColorBytes> = colors.iter().map(|(color, state)| color_bytes(*color, state)).collect();
    colors.sort_unstable_by_key(|color| color.color);
    let runs = log.committed_runs().into_iter().flat_map(|(epoch, last)| [u64::from(epoch.0), last.0]).collect();
    StateBytes { version: VERSION, last_epoch: log.commit_epoch().0, view, sessions, colors, runs }
        .encode_to_vec()
        .into()
}

fn session_bytes(id: SessionId, session: &Session, commit: Lsn) -> SessionBytes {
    let answers = session.slots().filter_map(|(seq, slot)| match slot.state {
        SlotState::Assigned(first, lsn) if lsn <= commit => Some(AnswerBytes {
            seq,
            color: slot.color.0,
            records: slot.records,
            digest: slot.digest,
            first: first.to_raw(),
            lsn: lsn.0,
        }),
        _ => None,
    });
    SessionBytes {
        epoch: id.epoch.0,
        lsn: id.lsn.0,
        nonce: session.nonce.as_bytes().to_vec(),
        base: session.base(),
        answers: answers.collect(),
    }
}

fn color_bytes(color: Color, state: &ColorState) -> ColorBytes {
    let raw = |(number, count): (&SeqNum, &u32)| (number.to_raw(), *count);
    let (stable, trim) = (state.stable().to_raw(), state.trim_point().map(SeqNum::to_raw));
    let bytes = ColorBytes { color: color.0, stable, trim, ..ColorBytes::default() };
    match state {
        ColorState::Narrow(state) => {
            let (holes, hole_counts) = state.holes().iter().map(raw).unzip();
            let spans = state.spans().iter().flat_map(|s| [s.epoch.0, s.end, u32::from(s.closed)]).collect();
            ColorBytes { spans, holes, hole_counts, ..bytes }
        }
        ColorState::Wide(state) => {
            let (holes, hole_counts) = state.holes().iter().map(raw).unzip();
            let (ends, nexts) = state.ends().iter().map(|(end, next)| (end.to_raw(), next.0)).unzip();
            let (own, own_counts) = state.own().map(|range| (range.first.to_raw(), range.count)).unzip();
            let (end, closed) = state.end().map_or((None, false), |(end, closed)| (Some(end.to_raw()), closed));
            ColorBytes { holes, hole_counts, ends, nexts, end, closed, own, own_counts, ..bytes }
        }
    }
}

fn color_of(bytes: ColorBytes) -> Result<ColorState, RestoreError> {
    let (spans, rest) = bytes.spans.as_chunks::<3>();
    let paired = bytes.holes.len() == bytes.hole_counts.len()
        && bytes.ends.len() == bytes.nexts.len()
        && bytes.own.len() == bytes.own_counts.len();
    if !rest.is_empty() || !paired {
        return Err(RestoreError(format!("its checkpoint of color {} is incomplete", bytes.color)));
    }
    let holes = bytes.holes.into_iter().map(SeqNum::from_raw).zip(bytes.hole_counts).collect();
    let (stable, trim) = (SeqNum::from_raw(bytes.stable), bytes.trim.map(SeqNum::from_raw));
    if Color(bytes.color).is_wide() {
        let ends = bytes.ends.into_iter().map(SeqNum::from_raw).zip(bytes.nexts.into_iter().map(Epoch)).collect();
        let own = bytes.own.into_iter().map(SeqNum::from_raw).zip(bytes.own_counts).collect();
        let last = bytes.end.map(|end| (SeqNum::from_raw(end), bytes.closed));
        return Ok(ColorState::Wide(Wide::restore((stable, trim), last, own, holes, ends)));
    }
    let spans = spans.iter().map(|[epoch, end, closed]| Span { epoch: Epoch(*epoch), end: *end, closed: *closed == 1 });
    Ok(ColorState::Narrow(Narrow::restore(spans.collect(), stable, trim, holes)))
}

/// The state that was written for `upto`.
pub(crate) fn decode(upto: Lsn, bytes: &[u8]) -> Result<State, RestoreError> {
    let state = StateBytes::decode(bytes).map_err(|error| RestoreError(error.to_string()))?;
    if state.version != VERSION {
        return Err(RestoreError(format!("its checkpoint has version {}, this is version {VERSION}", state.version)));
    }
    let mut sessions = FxHashMap::default();
    for bytes in state.sessions {
        let nonce = Uuid::from_slice(&bytes.nonce).map_err(|error| RestoreError(error.to_string()))?;
        let mut session = Session::new(nonce);
        session.forget_below(bytes.base);
        for answer in bytes.answers {
            let state = SlotState::Assigned(SeqNum::from_raw(answer.first), Lsn(answer.lsn));
            let (color, records, digest) = (Color(answer.color), answer.records, answer.digest);
            session.put(answer.seq, Slot { color, records, digest, bytes: 0, state });
        }
        sessions.insert(SessionId { epoch: Epoch(bytes.epoch), lsn: Lsn(bytes.lsn) }, session);
    }
    let mut colors = FxHashMap::default();
    for bytes in state.colors {
        colors.insert(Color(bytes.color), color_of(bytes)?);
    }
    let view = state.view.map(|view| View {
        number: ViewNumber(view.number),
        members: view.members.into_iter().map(ReplicaId).collect(),
    });
    let (pairs, odd) = state.runs.as_chunks::<2>();
    let runs: Vec<LogEnd> = pairs.iter().map(|[epoch, last]| (Epoch(*epoch as u32), Lsn(*last))).collect();
    if !odd.is_empty() || runs.last().is_some_and(|(_, last)| *last != upto) {
        return Err(RestoreError("the epochs of its log do not end where its checkpoint does".into()));
    }
    Ok(State { last: (Epoch(state.last_epoch), upto), view, sessions, colors, runs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexlog_protocol::Position;

    #[test]
    fn a_wide_color_is_restored_as_it_was() {
        let n = |epoch, counter| SeqNum::new(Epoch(epoch), counter);
        let color = Color::new(Position(3), true, 7).unwrap();
        let mut state = ColorState::new(color);
        state.assign(n(1, 2), 3).unwrap();
        state.hole(n(1, 8), 2).unwrap();
        state.end_epoch(n(1, 12), Epoch(3)).unwrap();
        state.assign(n(3, 4), 2).unwrap();
        let ColorState::Wide(wide) = &mut state else { panic!("it is wide") };
        wide.settle(n(1, 4));
        wide.trim(n(1, 2));
        let Ok(ColorState::Wide(found)) = color_of(color_bytes(color, &state)) else { panic!("it is wide") };
        assert_eq!((found.stable(), found.trim_point(), found.end()), (n(1, 4), Some(n(1, 2)), Some((n(3, 6), false))));
        assert_eq!(
            found.own().map(|r| (r.first, r.count)).collect::<Vec<_>>(),
            [(n(1, 4), 1), (n(1, 8), 2), (n(3, 4), 2)]
        );
        assert_eq!(found.holes().iter().collect::<Vec<_>>(), [(&n(1, 8), &2)]);
        assert_eq!(found.ends().iter().collect::<Vec<_>>(), [(&n(1, 12), &Epoch(3))]);
        let cut = ColorBytes { nexts: vec![], ..color_bytes(color, &state) };
        assert!(color_of(cut).is_err());
    }
}
