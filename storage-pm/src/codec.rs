//! The bodies of entries, to bytes and back.
//!
//! Decoding trusts nothing: a count or a length that does not fit its bytes, or that no writer would write, is refused.
//!
//! ```text
//! staged                bytes
//!   token                0..24   shard u32, session epoch u32, session lsn u64, seq u64
//!   color               24..32
//!   digest              32..40
//!   n                   40..44   records, 1 to 4096
//!   condition_len       44..48   bytes of the condition, 0 for none
//!   condition                    last number u64 (all ones for none), tag; padded to 8
//!   table                        n times: end u32 (from the first record), crc u32
//!   records                      each: number of tags u8, for each tag its length u8 and bytes, then the payload
//! copied                         as staged; the token's shard and session are 0, its seq is the first number; no condition
//! repaired                       as copied, one record
//! shard-log entry
//!   lsn                  0..8
//!   epoch                8..12
//!   variant             12..16   1 assign, 2 hole, 3 epoch end, 4 view, 5 open session, 6 close session, 7 trim
//!   assign                       each 48: token 24, color 8, first 8, tokens u32, records u32
//!   hole                         color 8, first 8, count u32
//!   epoch end                    color 8, end 8, next u32
//!   view                         number u32, then each member u32
//!   open session                 nonce 16
//!   close session                lsn 8, epoch u32
//!   trim                         color 8, upto 8
//! fence                          uuid 16, position u32, epoch u32
//! truncate                       upto 8, last 8: the entries above upto that stand before it are no more, up to last
//! continue                       slot u32, generation of the segment before u32 (0 none), its end u32, zero u32
//! part of a checkpoint           place of its first part u64, which part u32, how many u32, bytes
//! checkpoint                     upto 8, number of segments u32, of staged u32, has fence u32, of trims u32, fence 24,
//!                                of truncates u64; each segment: generation u32, end u32; each staged: place u64; each
//!                                trim: color 8, upto 8; each truncate: place u64, upto 8; the replica's state
//! ```

use bytes::{Buf, Bytes};
use flexlog_protocol::checksum::crc32c;
use flexlog_protocol::peer::Staged;
use flexlog_protocol::{
    Append, Assign, Body, Color, Condition, Entry, Epoch, Incarnation, Lsn, Position, Record, ReplicaId, SeqNum,
    SessionId, ShardId, Tag, Token, View, ViewNumber, limits,
};
use uuid::Uuid;

use crate::layout::{ENTRY_HEADER, Place, padded};

/// Bytes of a staged entry's body before the condition.
pub(crate) const STAGED_META: usize = 48;
/// Bytes of one record's row in the table.
pub(crate) const ROW: usize = 8;
/// Bytes of a shard-log entry's body before its variant's own.
pub(crate) const LOG_META: usize = 16;
/// Bytes of one `Assign`.
pub(crate) const ASSIGN: usize = 48;
/// Bytes of the body of a `Continue`.
pub(crate) const CONTINUE: usize = 16;
/// Bytes of a checkpoint part's body before its piece of the checkpoint.
pub(crate) const PART_META: usize = 16;
/// Bytes of a checkpoint before its lists.
pub(crate) const CHECKPOINT_META: usize = 56;
/// Bytes of the body of a `Fence`.
pub(crate) const FENCE: usize = 24;
/// Bytes of the body of a `Truncate`.
pub(crate) const TRUNCATE: usize = 16;

const NO_NUMBER: u64 = u64::MAX;

const _: () = assert!(STAGED_META.is_multiple_of(8) && ASSIGN.is_multiple_of(8) && ROW == 8);
const _: () = assert!(limits::MAX_TAGS < 256 && limits::MAX_TAG_BYTES < 256);
const _: () = assert!(limits::MAX_RECORDS_PER_TOKEN <= 4096);

/// Reads forward over bytes; `None` at the end of them.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn uuid(&mut self) -> Option<Uuid> {
        Uuid::from_slice(self.take(16)?).ok()
    }

    fn token(&mut self) -> Option<Token> {
        let shard = ShardId(self.u32()?);
        let epoch = Epoch(self.u32()?);
        let lsn = Lsn(self.u64()?);
        Some(Token { shard, session: SessionId { epoch, lsn }, seq: self.u64()? })
    }

    fn color(&mut self) -> Option<Color> {
        self.u64().map(Color)
    }

    fn number(&mut self) -> Option<SeqNum> {
        self.u64().map(SeqNum::from_raw)
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

fn token_bytes(token: Token) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..4].copy_from_slice(&token.shard.0.to_le_bytes());
    bytes[4..8].copy_from_slice(&token.session.epoch.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&token.session.lsn.0.to_le_bytes());
    bytes[16..].copy_from_slice(&token.seq.to_le_bytes());
    bytes
}

/// Bytes of the body of an append, records included.
pub(crate) fn staged_len(append: &Append) -> usize {
    staged_head_len(append) + append.encoded_len()
}

/// Bytes of the body of an append before its records: what the entry's checksum covers.
pub(crate) fn staged_head_len(append: &Append) -> usize {
    let condition = append.condition().map_or(0, |c| padded(8 + c.tag.as_bytes().len()));
    STAGED_META + condition + ROW * append.records().len()
}

/// Appends the body of an append up to its records.
pub(crate) fn put_staged_head(into: &mut Vec<u8>, append: &Append) {
    let mut meta = [0; STAGED_META];
    meta[..24].copy_from_slice(&token_bytes(append.token()));
    meta[24..32].copy_from_slice(&append.color().0.to_le_bytes());
    meta[32..40].copy_from_slice(&append.digest().to_le_bytes());
    meta[40..44].copy_from_slice(&append.count().to_le_bytes());
    let condition_len = append.condition().map_or(0, |c| 8 + c.tag.as_bytes().len());
    meta[44..48].copy_from_slice(&(condition_len as u32).to_le_bytes());
    into.extend_from_slice(&meta);
    if let Some(condition) = append.condition() {
        into.extend_from_slice(&condition.last.map_or(NO_NUMBER, SeqNum::to_raw).to_le_bytes());
        into.extend_from_slice(condition.tag.as_bytes());
        into.resize(into.len() + padded(condition_len) - condition_len, 0);
    }
    let mut end = 0;
    for record in append.records() {
        end += record.encoded_len() as u32;
        into.extend_from_slice(&(u64::from(record.crc()) << 32 | u64::from(end)).to_le_bytes());
    }
}

/// Appends what stands before a record's payload.
pub(crate) fn put_tags(into: &mut Vec<u8>, record: &Record) {
    into.push(record.tags().len() as u8);
    for tag in record.tags() {
        into.push(tag.as_bytes().len() as u8);
        into.extend_from_slice(tag.as_bytes());
    }
}

/// What stands before the table of a staged entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StagedMeta {
    pub(crate) staged: Staged,
    condition_len: u32,
}

impl StagedMeta {
    /// Reads it from the start of a body.
    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let mut cursor = Cursor(body.get(..STAGED_META)?);
        let token = cursor.token()?;
        let color = cursor.color()?;
        let digest = cursor.u64()?;
        let records = cursor.u32()?;
        let condition_len = cursor.u32()?;
        let sound = (1..=limits::MAX_RECORDS_PER_TOKEN as u32).contains(&records)
            && (condition_len == 0 || (8..=8 + limits::MAX_TAG_BYTES as u32).contains(&condition_len));
        sound.then_some(Self { staged: Staged { token, color, records, digest }, condition_len })
    }

    /// Where the table is, from the body's start.
    pub(crate) fn table_at(&self) -> usize {
        STAGED_META + padded(self.condition_len as usize)
    }

    /// Where the first record is, from the body's start.
    pub(crate) fn records_at(&self) -> usize {
        self.table_at() + ROW * self.staged.records as usize
    }

    fn condition(&self, body: &[u8]) -> Option<Option<Condition>> {
        if self.condition_len == 0 {
            return Some(None);
        }
        let mut cursor = Cursor(body.get(STAGED_META..STAGED_META + self.condition_len as usize)?);
        let last = Some(cursor.u64()?).filter(|raw| *raw != NO_NUMBER).map(SeqNum::from_raw);
        let tag = Tag::new(Bytes::copy_from_slice(cursor.0)).ok()?;
        Some(Some(Condition { tag, last }))
    }
}

/// The token that copied records from `first` on are written under. No client has it: there is no session 0.
pub(crate) fn copied_token(first: SeqNum) -> Token {
    Token { seq: first.to_raw(), ..Token::default() }
}

/// What stands before the table of a copied entry, and its first number.
pub(crate) fn decode_copied(body: &[u8]) -> Option<(StagedMeta, SeqNum)> {
    let meta = StagedMeta::decode(body)?;
    let first = SeqNum::from_raw(meta.staged.token.seq);
    let sound = meta.staged.token == copied_token(first)
        && meta.condition_len == 0
        && first.plus(meta.staged.records).is_some();
    sound.then_some((meta, first))
}

/// A row of the table: where a record ends, and its checksum.
pub(crate) fn row(bytes: &[u8], index: usize) -> Option<(u32, u32)> {
    let mut cursor = Cursor(bytes.get(ROW * index..ROW * (index + 1))?);
    Some((cursor.u32()?, cursor.u32()?))
}

/// Which of the records in the body of an entry are damaged.
pub(crate) fn damaged_records(body: &[u8]) -> Vec<u32> {
    let Some(meta) = StagedMeta::decode(body) else { return Vec::new() };
    let (table, records) = (body.get(meta.table_at()..), body.get(meta.records_at()..));
    let (Some(table), Some(records)) = (table, records) else { return Vec::new() };
    let mut from = 0;
    let mut is_damaged = |index: &u32| {
        let Some((end, crc)) = row(table, *index as usize) else { return true };
        let record = records.get(from..end as usize);
        from = end as usize;
        record.is_none_or(|record| crc32c(record) != crc)
    };
    (0..meta.staged.records).filter(|index| is_damaged(index)).collect()
}

/// A record from its encoded form. `None`: its checksum does not match, or it is no record.
pub(crate) fn decode_record(encoded: Bytes, crc: u32) -> Option<Record> {
    let mut payload = encoded;
    let count = payload.try_get_u8().ok()?;
    let mut tags = Vec::with_capacity(usize::from(count).min(limits::MAX_TAGS));
    for _ in 0..count {
        let len = usize::from(payload.try_get_u8().ok()?);
        if len > payload.len() {
            return None;
        }
        tags.push(Tag::new(payload.split_to(len)).ok()?);
    }
    Record::checked(payload, tags, crc).ok()
}

/// An append from the body of its entry. `None`: some checksum does not match, or it is no append.
pub(crate) fn decode_append(body: Bytes) -> Option<Append> {
    let meta = StagedMeta::decode(&body)?;
    let condition = meta.condition(&body)?;
    let table = body.get(meta.table_at()..meta.records_at())?;
    let mut records = Vec::with_capacity(meta.staged.records as usize);
    let mut from = meta.records_at();
    for index in 0..meta.staged.records as usize {
        let (end, crc) = row(table, index)?;
        let end = meta.records_at().checked_add(end as usize)?;
        if from > end || end > body.len() {
            return None;
        }
        records.push(decode_record(body.slice(from..end), crc)?);
        from = end;
    }
    let append = Append::new(meta.staged.token, meta.staged.color, condition, records).ok()?;
    (from == body.len() && append.digest() == meta.staged.digest).then_some(append)
}

/// Bytes of the body of a shard-log entry.
#[inline]
pub(crate) fn entry_len(entry: &Entry) -> usize {
    LOG_META
        + match &entry.body {
            Body::Assign(assigns) => ASSIGN * assigns.len(),
            Body::Hole { .. } | Body::EpochEnd { .. } => 20,
            Body::NewView(view) => 4 + 4 * view.members.len(),
            Body::OpenSession { .. } | Body::Trim { .. } => 16,
            Body::CloseSession(_) => 12,
        }
}

/// Appends the body of a shard-log entry.
pub(crate) fn put_entry(into: &mut Vec<u8>, entry: &Entry) {
    let variant: u32 = match &entry.body {
        Body::Assign(_) => 1,
        Body::Hole { .. } => 2,
        Body::EpochEnd { .. } => 3,
        Body::NewView(_) => 4,
        Body::OpenSession { .. } => 5,
        Body::CloseSession(_) => 6,
        Body::Trim { .. } => 7,
    };
    let mut meta = [0; LOG_META];
    meta[..8].copy_from_slice(&entry.lsn.0.to_le_bytes());
    meta[8..].copy_from_slice(&(u64::from(variant) << 32 | u64::from(entry.epoch.0)).to_le_bytes());
    into.extend_from_slice(&meta);
    let mut words = |words: &[u64]| words.iter().for_each(|word| into.extend_from_slice(&word.to_le_bytes()));
    match &entry.body {
        Body::Assign(assigns) => {
            for assign in assigns {
                let mut bytes = [0; ASSIGN];
                bytes[..24].copy_from_slice(&token_bytes(assign.token));
                bytes[24..32].copy_from_slice(&assign.color.0.to_le_bytes());
                bytes[32..40].copy_from_slice(&assign.first.to_raw().to_le_bytes());
                bytes[40..44].copy_from_slice(&assign.tokens.to_le_bytes());
                bytes[44..].copy_from_slice(&assign.records.to_le_bytes());
                into.extend_from_slice(&bytes);
            }
        }
        Body::Hole { color, first, count } => {
            words(&[color.0, first.to_raw()]);
            into.extend_from_slice(&count.to_le_bytes());
        }
        Body::EpochEnd { color, end, next } => {
            words(&[color.0, end.to_raw()]);
            into.extend_from_slice(&next.0.to_le_bytes());
        }
        Body::NewView(view) => {
            into.extend_from_slice(&view.number.0.to_le_bytes());
            view.members.iter().for_each(|member| into.extend_from_slice(&member.0.to_le_bytes()));
        }
        Body::OpenSession { nonce } => into.extend_from_slice(nonce.as_bytes()),
        Body::CloseSession(session) => {
            words(&[session.lsn.0]);
            into.extend_from_slice(&session.epoch.0.to_le_bytes());
        }
        Body::Trim { color, upto } => words(&[color.0, upto.to_raw()]),
    }
}

/// Reads a shard-log entry from its body.
pub(crate) fn decode_entry(body: &[u8]) -> Option<Entry> {
    let mut cursor = Cursor(body);
    let lsn = Lsn(cursor.u64()?);
    let epoch = Epoch(cursor.u32()?);
    let variant = cursor.u32()?;
    let body = match variant {
        1 => {
            if cursor.0.is_empty() || cursor.0.len() % ASSIGN != 0 {
                return None;
            }
            let mut assigns = Vec::with_capacity(cursor.0.len() / ASSIGN);
            while !cursor.0.is_empty() {
                let token = cursor.token()?;
                let color = cursor.color()?;
                let first = cursor.number()?;
                let assign = Assign { token, tokens: cursor.u32()?, records: cursor.u32()?, color, first };
                if !assign.is_sound() {
                    return None;
                }
                assigns.push(assign);
            }
            Body::Assign(assigns)
        }
        2 => {
            let (color, first, count) = (cursor.color()?, cursor.number()?, cursor.u32()?);
            if count == 0 || first.plus(count).is_none() {
                return None;
            }
            Body::Hole { color, first, count }
        }
        3 => Body::EpochEnd { color: cursor.color()?, end: cursor.number()?, next: Epoch(cursor.u32()?) },
        4 => {
            let number = ViewNumber(cursor.u32()?);
            let mut members = Vec::with_capacity(cursor.0.len() / 4);
            while !cursor.0.is_empty() {
                members.push(ReplicaId(cursor.u32()?));
            }
            if !members.is_sorted_by(|a, b| a < b) {
                return None;
            }
            Body::NewView(View { number, members })
        }
        5 => Body::OpenSession { nonce: cursor.uuid()? },
        6 => {
            let lsn = Lsn(cursor.u64()?);
            Body::CloseSession(SessionId { epoch: Epoch(cursor.u32()?), lsn })
        }
        7 => Body::Trim { color: cursor.color()?, upto: cursor.number()? },
        _ => return None,
    };
    cursor.end()?;
    Some(Entry { lsn, epoch, body })
}

/// Appends the body of a `Fence`.
pub(crate) fn put_fence(into: &mut Vec<u8>, fence: &Incarnation) {
    into.extend_from_slice(fence.uuid.as_bytes());
    into.extend_from_slice(&fence.position.0.to_le_bytes());
    into.extend_from_slice(&fence.epoch.0.to_le_bytes());
}

/// Reads the body of a `Fence`.
pub(crate) fn decode_fence(body: &[u8]) -> Option<Incarnation> {
    let mut cursor = Cursor(body);
    let uuid = cursor.uuid()?;
    let fence = Incarnation { uuid, position: Position(cursor.u32()?), epoch: Epoch(cursor.u32()?) };
    cursor.end()?;
    Some(fence)
}

/// What a `Truncate` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Truncate {
    /// The last entry that stays.
    pub(crate) upto: Lsn,
    /// The last one that goes.
    pub(crate) last: Lsn,
}

impl Truncate {
    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.upto.0.to_le_bytes());
        into.extend_from_slice(&self.last.0.to_le_bytes());
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let mut cursor = Cursor(body);
        let (upto, last) = (Lsn(cursor.u64()?), Lsn(cursor.u64()?));
        cursor.end()?;
        (upto < last).then_some(Self { upto, last })
    }
}

/// The first entry of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Continue {
    /// Which segment of the area this is, so that bytes in the wrong place show.
    pub(crate) slot: u32,
    /// Where the segment before ended; generation 0 for the first of all.
    pub(crate) before: Place,
}

impl Continue {
    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        let words = [self.slot, self.before.generation, self.before.offset, 0];
        words.iter().for_each(|word| into.extend_from_slice(&word.to_le_bytes()));
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let mut cursor = Cursor(body);
        let slot = cursor.u32()?;
        let before = Place::new(cursor.u32()?, cursor.u32()?);
        (cursor.u32()? == 0).then_some(())?;
        cursor.end()?;
        Some(Self { slot, before })
    }
}

/// What stands before a part's piece of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PartMeta {
    /// The place of the first part, which names the checkpoint.
    pub(crate) name: Place,
    /// From 0.
    pub(crate) part: u32,
    /// How many there are.
    pub(crate) parts: u32,
}

impl PartMeta {
    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.name.to_raw().to_le_bytes());
        into.extend_from_slice(&self.part.to_le_bytes());
        into.extend_from_slice(&self.parts.to_le_bytes());
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let mut cursor = Cursor(body);
        let name = Place::from_raw(cursor.u64()?);
        let (part, parts) = (cursor.u32()?, cursor.u32()?);
        (part < parts).then_some(Self { name, part, parts })
    }
}

/// The entries that stand before `place` in the log and are above `upto` are no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TakenBack {
    /// Of the `Truncate`.
    pub(crate) place: Place,
    pub(crate) upto: Lsn,
}

impl TakenBack {
    /// Whether the entry `lsn` at `place` is one of them.
    pub(crate) fn covers(&self, place: Place, lsn: Lsn) -> bool {
        place < self.place && lsn > self.upto
    }
}

/// What a checkpoint says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Checkpoint {
    /// The place in the shard log that it covers.
    pub(crate) upto: Lsn,
    /// The newest `Fence` before it.
    pub(crate) fence: Option<Incarnation>,
    /// The segments before its own that stay in use, with their ends, in the order of the log.
    pub(crate) live: Vec<Place>,
    /// Where the entries are that were staged and not numbered; what was staged before and is not here is no more.
    pub(crate) staged: Vec<Place>,
    /// The trim points that the store was told of, by color.
    pub(crate) trims: Vec<(Color, SeqNum)>,
    /// What was taken back in the segments that stay, in the order of the log.
    pub(crate) truncates: Vec<TakenBack>,
    /// The replica's own.
    pub(crate) state: Bytes,
}

impl Checkpoint {
    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.upto.0.to_le_bytes());
        let counts = [
            self.live.len() as u32,
            self.staged.len() as u32,
            u32::from(self.fence.is_some()),
            self.trims.len() as u32,
        ];
        counts.iter().for_each(|word| into.extend_from_slice(&word.to_le_bytes()));
        match &self.fence {
            Some(fence) => put_fence(into, fence),
            None => into.extend_from_slice(&[0; FENCE]),
        }
        into.extend_from_slice(&(self.truncates.len() as u64).to_le_bytes());
        for place in &self.live {
            into.extend_from_slice(&place.generation.to_le_bytes());
            into.extend_from_slice(&place.offset.to_le_bytes());
        }
        self.staged.iter().for_each(|place| into.extend_from_slice(&place.to_raw().to_le_bytes()));
        for (color, upto) in &self.trims {
            into.extend_from_slice(&color.0.to_le_bytes());
            into.extend_from_slice(&upto.to_raw().to_le_bytes());
        }
        for TakenBack { place, upto } in &self.truncates {
            into.extend_from_slice(&place.to_raw().to_le_bytes());
            into.extend_from_slice(&upto.0.to_le_bytes());
        }
        into.extend_from_slice(&self.state);
    }

    pub(crate) fn decode(bytes: Bytes) -> Option<Self> {
        let mut cursor = Cursor(&bytes);
        let upto = Lsn(cursor.u64()?);
        let (live, staged) = (cursor.u32()? as usize, cursor.u32()? as usize);
        let (has_fence, trims) = (cursor.u32()?, cursor.u32()? as usize);
        let fence = decode_fence(cursor.take(FENCE)?)?;
        let truncates = usize::try_from(cursor.u64()?).ok()?;
        let pairs = trims.checked_add(truncates)?.checked_mul(16)?;
        let lists = live.checked_mul(8)?.checked_add(staged.checked_mul(8)?)?.checked_add(pairs)?;
        if has_fence > 1 || lists > cursor.0.len() {
            return None;
        }
        let live: Vec<Place> =
            (0..live).map(|_| Some(Place::new(cursor.u32()?, cursor.u32()?))).collect::<Option<_>>()?;
        let staged = (0..staged).map(|_| cursor.u64().map(Place::from_raw)).collect::<Option<_>>()?;
        let trims: Vec<_> = (0..trims).map(|_| Some((cursor.color()?, cursor.number()?))).collect::<Option<_>>()?;
        let taken_back = |cursor: &mut Cursor<'_>| {
            Some(TakenBack { place: Place::from_raw(cursor.u64()?), upto: Lsn(cursor.u64()?) })
        };
        let truncates: Vec<_> = (0..truncates).map(|_| taken_back(&mut cursor)).collect::<Option<_>>()?;
        let state = bytes.slice(bytes.len() - cursor.0.len()..);
        let sound = live.is_sorted_by(|a, b| a.generation < b.generation)
            && trims.is_sorted_by(|a, b| a.0 < b.0)
            && truncates.is_sorted_by(|a, b| a.place < b.place);
        sound.then_some(Self { upto, fence: (has_fence == 1).then_some(fence), live, staged, trims, truncates, state })
    }
}

/// The bytes of the largest possible entry for numbers of a single token; what staging one has to keep back for it.
pub(crate) const ONE_ASSIGN_ENTRY: usize = padded(ENTRY_HEADER + LOG_META + ASSIGN);

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
