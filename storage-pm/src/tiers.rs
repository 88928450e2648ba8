//! What the store keeps beside its area: the SSD files that older records move to, and the cache of what was read.
//!
//! Moving is one piece of background work at a time. The store says which records of sealed segments are to go (all of
//! them at or below a committed place, so nothing that moved is ever taken back); the work reads them from the area,
//! writes one SSD file and has the manifest name it; only when that is durable does the store forget where they were, and
//! only a checkpoint after that gives the segments back. A crash in between leaves records in two places, which recovery
//! tells by the generations that the manifest names with the file.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use flexlog_protocol::checksum::crc32c;
use flexlog_protocol::media::{AreaReader, Background, Late, LaterRead, ReadError};
use flexlog_protocol::{Color, Lsn, Record, SeqNum, Time};
use quick_cache::Weighter;
use quick_cache::sync::Cache as QuickCache;
use rustc_hash::FxHashMap;

use crate::codec::{self, StagedMeta};
use crate::index::Loc;
use crate::layout::{ENTRY_HEADER, HEAD_BYTES, Header, Place};
use crate::segments::Spans;
use crate::ssd::{self, SsdError, Tier};

/// How long trimmed space may wait to be given back, and a move that was given up to be tried again, in microseconds: 1 s.
pub(crate) const PAUSE_MICROS: u64 = 1_000_000;
/// What a cached record costs beside its bytes.
const CACHED_OVERHEAD: u64 = 96;

/// Records that were read, by color and number; bounded in bytes.
pub(crate) struct Cache(QuickCache<(Color, SeqNum), Record, Bytes>);

#[derive(Clone, Debug)]
struct Bytes;

impl Weighter<(Color, SeqNum), Record> for Bytes {
    fn weight(&self, _key: &(Color, SeqNum), record: &Record) -> u64 {
        CACHED_OVERHEAD + record.encoded_len() as u64
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cache({} records, {} bytes)", self.0.len(), self.0.weight())
    }
}

impl Cache {
    /// `None` where it would hold nothing.
    pub(crate) fn new(bytes: u64) -> Option<Arc<Self>> {
        // The count is an estimate that sizes its tables.
        let records = (bytes / 512).clamp(16, 1 << 20) as usize;
        (bytes > 0).then(|| Arc::new(Self(QuickCache::with_weighter(records, bytes, Bytes))))
    }

    #[inline]
    pub(crate) fn get(&self, color: Color, number: SeqNum) -> Option<Record> {
        self.0.get(&(color, number))
    }

    pub(crate) fn put(&self, color: Color, number: SeqNum, record: &Record) {
        self.0.insert((color, number), record.clone());
    }

    pub(crate) fn forget(&self, color: Color, number: SeqNum) {
        self.0.remove(&(color, number));
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.weight()
    }
}

/// A record on its way to an SSD file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) color: Color,
    pub(crate) number: SeqNum,
    pub(crate) loc: Loc,
}

/// The bytes of segments, by slot, and the generation of each.
type Segments = BTreeMap<usize, (u32, Vec<u8>)>;

/// A segment that records move from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) slot: usize,
    pub(crate) generation: u32,
    pub(crate) end: u32,
}

/// What is on the move, and what held each segment before.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) records: Arc<Vec<Moved>>,
    pub(crate) held: Vec<(usize, Spans)>,
}

/// What background work came to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// All is in a file that the manifest names, but for what is in the segments of these slots.
    Moved { left: Vec<usize> },
    /// Space was given back.
    Reclaimed { bytes: u64 },
    /// The SSD has no room.
    Full(String),
    /// It could not be done, and nothing changed: what was just written could not be read back, for one.
    GivenUp(String),
    /// The SSD broke: it cannot be told what is durable there.
    Failed(String),
}

#[derive(Debug)]
enum Work {
    Move(Batch),
    Reclaim,
}

#[derive(Debug)]
struct Running {
    work: Work,
    done: Receiver<Outcome>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Tiers {
    pub(crate) tier: Tier,
    running: Option<Running>,
    /// The trim points that are durable, by color, and those that may not be yet, each with the end of the log when it was
    /// told: what is given back is gone, whatever becomes of the entry that said so.
    trims: FxHashMap<Color, SeqNum>,
    trimming: VecDeque<(Place, Color, SeqNum)>,
    /// Something was trimmed since the last time that space was given back.
    trimmed: bool,
    /// Not before that is space given back.
    reclaim_at: Time,
    /// The last move came to nothing: the next is not tried before that.
    pause_until: Option<Time>,
}

/// What ended.
pub(crate) enum Ended {
    Move(Batch, Outcome),
    Reclaim(Outcome),
}

impl Tiers {
    /// `trims`: the trim points that are durable.
    pub(crate) fn new(tier: Tier, trims: FxHashMap<Color, SeqNum>) -> Self {
        Self {
            tier,
            running: None,
            trims,
            trimming: VecDeque::new(),
            trimmed: true,
            reclaim_at: Time::default(),
            pause_until: None,
        }
    }

    /// Numbers up to `upto` were trimmed, when the log ended at `place`.
    pub(crate) fn trim(&mut self, color: Color, upto: SeqNum, place: Place) {
        self.trimming.push_back((place, color, upto));
    }

    /// Below `durable` everything is.
    pub(crate) fn settle(&mut self, durable: Place) {
        while let Some((_, color, upto)) = self.trimming.pop_front_if(|(place, ..)| *place <= durable) {
            let point = self.trims.entry(color).or_insert(upto);
            *point = (*point).max(upto);
            self.trimmed |= self.tier.highest(color).is_some();
        }
    }

    pub(crate) fn busy(&self) -> bool {
        self.running.is_some()
    }

    pub(crate) fn moving(&self) -> bool {
        matches!(&self.running, Some(Running { work: Work::Move(_), .. }))
    }

    /// When something is to be done that nothing else will call for.
    pub(crate) fn at(&self) -> Option<Time> {
        let reclaim = self.trimmed.then_some(self.reclaim_at);
        reclaim.into_iter().chain(self.pause_until).min().filter(|_| self.running.is_none())
    }

    /// Whether records may move now. Not while a trim is not durable: what it took out of the index does not move, and must
    /// not be taken for moved when a crash takes the trim back.
    pub(crate) fn may_move(&mut self, now: Time) -> bool {
        // Once the pause is over there is none, whether or not anything is to move: nobody is to be called for it again.
        self.pause_until.take_if(|until| *until <= now);
        self.trimming.is_empty() && self.pause_until.is_none()
    }

    /// What the work that was under way came to, if it has ended.
    pub(crate) fn ended(&mut self, now: Time) -> Option<Ended> {
        let running = self.running.as_ref()?;
        let outcome = match running.done.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                Outcome::Failed("work on the SSD files ended without saying how".to_owned())
            }
        };
        let work = self.running.take()?.work;
        match &outcome {
            Outcome::Full(_) | Outcome::GivenUp(_) => self.pause_until = Some(now.after(PAUSE_MICROS)),
            Outcome::Reclaimed { bytes } if *bytes > 0 => self.pause_until = None,
            Outcome::Moved { .. } | Outcome::Reclaimed { .. } | Outcome::Failed(_) => {}
        }
        Some(match work {
            Work::Move(batch) => Ended::Move(batch, outcome),
            Work::Reclaim => Ended::Reclaim(outcome),
        })
    }

    fn start(&mut self, work: Work, run: impl FnOnce() -> Outcome + Send + 'static) -> Background {
        let (tell, done): (SyncSender<Outcome>, _) = sync_channel(1);
        self.running = Some(Running { work, done });
        Box::new(move || {
            // Nobody listens any more where the store is gone.
            let _ = tell.send(run());
        })
    }

    /// The work of moving `batch` from `sources`. All of it was numbered at or below `upto`, which is committed.
    pub(crate) fn start_move(
        &mut self,
        batch: Batch,
        area: Arc<dyn AreaReader>,
        segment_bytes: u64,
        sources: Vec<Source>,
        upto: Lsn,
    ) -> Background {
        let (tier, records) = (self.tier.clone(), Arc::clone(&batch.records));
        self.start(Work::Move(batch), move || {
            let (segments, left) = read_segments(&*area, segment_bytes, &sources, &records);
            let found = |moved: &Moved| {
                let (crc, encoded) = find(&segments, segment_bytes, moved)?;
                let Moved { color, number, .. } = *moved;
                Some(Ok(ssd::Moved { color, number, crc, encoded: Cow::Borrowed(encoded) }))
            };
            let generations = sources.iter().filter(|source| segments.contains_key(&source.slot));
            let generations: Vec<u32> = generations.map(|source| source.generation).collect();
            if generations.is_empty() {
                return Outcome::Moved { left };
            }
            match tier.add(&mut records.iter().filter_map(found), upto, generations) {
                Ok(_) => Outcome::Moved { left },
                Err(error) => failed(error),
            }
        })
    }

    /// The work of giving back what was trimmed, if there is any and it is time.
    pub(crate) fn start_reclaim(&mut self, now: Time) -> Option<Background> {
        if !self.trimmed || now < self.reclaim_at {
            return None;
        }
        self.trimmed = false;
        self.reclaim_at = now.after(PAUSE_MICROS);
        if self.tier.is_empty() {
            return None;
        }
        let (tier, trims) = (self.tier.clone(), self.trims.clone());
        Some(self.start(Work::Reclaim, move || match tier.trim(&|color| trims.get(&color).copied()) {
            Ok(reclaimed) => Outcome::Reclaimed { bytes: reclaimed.bytes },
            Err(error) => failed(error),
        }))
    }

    /// A read of SSD files.
    pub(crate) fn read(
        &self,
        cache: Option<Arc<Cache>>,
        color: Color,
        from: SeqNum,
        upto: SeqNum,
        max_records: usize,
        max_bytes: usize,
    ) -> LaterRead {
        let tier = self.tier.clone();
        Box::new(move || {
            let mut records = Vec::new();
            let result = tier.read(color, from, upto, max_records, max_bytes, &mut records);
            if let (Some(cache), [(number, record)]) = (cache, records.as_slice()) {
                // A record alone was asked for by its number, and may be again. Its bytes are part of a block: the cache
                // keeps a copy of its own. What comes in a row is on its way through.
                cache.put(color, *number, &record.detached());
            }
            let after = records.last().and_then(|(last, _)| last.plus(1)).unwrap_or(from);
            match result {
                Ok(covered) => Late { records, covered, error: None },
                Err(error) => Late { records, covered: after, error: Some(error.into_read(color, after)) },
            }
        })
    }

    /// A read of the last record from `from` on, up to and including `upto`, in SSD files. Where they have none, it is
    /// `here`.
    pub(crate) fn last(
        &self,
        cache: Option<Arc<Cache>>,
        color: Color,
        from: SeqNum,
        upto: SeqNum,
        here: Option<Result<(SeqNum, Record), ReadError>>,
    ) -> LaterRead {
        let tier = self.tier.clone();
        Box::new(move || {
            let result = match tier.last(color, from, ssd::after(upto)) {
                Ok(Some((number, record))) => {
                    if let Some(cache) = cache {
                        cache.put(color, number, &record.detached());
                    }
                    Ok(Some((number, record)))
                }
                Ok(None) => here.transpose(),
                Err(error) => Err(error.into_read(color, upto)),
            };
            let (found, error) = match result {
                Ok(found) => (found, None),
                Err(error) => (None, Some(error)),
            };
            Late { records: found.into_iter().collect(), covered: SeqNum::MAX, error }
        })
    }
}

fn failed(error: SsdError) -> Outcome {
    let why = error.to_string();
    match error {
        SsdError::Full { .. } => Outcome::Full(why),
        SsdError::Failed { .. } => Outcome::Failed(why),
        // Not writing failed but reading: of the records to be moved, or of the file that they went to. They are where
        // they were, and the file is in no manifest.
        SsdError::Io { .. } | SsdError::Damaged { .. } | SsdError::Refused(_) | SsdError::Source { .. } => {
            Outcome::GivenUp(why)
        }
    }
}

/// The bytes of each segment, by slot, with its generation; and the slots of those that not all records can be read of.
/// These stay as a whole: recovery must be able to say of a segment that its records moved, not of each of them.
fn read_segments(
    area: &dyn AreaReader,
    segment_bytes: u64,
    sources: &[Source],
    records: &[Moved],
) -> (Segments, Vec<usize>) {
    let mut segments = BTreeMap::new();
    let mut left = Vec::new();
    for source in sources {
        let mut bytes = vec![0; source.end as usize];
        match area.read(HEAD_BYTES + source.slot as u64 * segment_bytes, &mut bytes) {
            Ok(()) => {
                segments.insert(source.slot, (source.generation, bytes));
            }
            Err(error) => {
                tracing::error!(%error, slot = source.slot, "a segment cannot be read to move its records: they stay");
                left.push(source.slot);
            }
        }
    }
    for moved in records {
        let slot = ((moved.loc.entry() - HEAD_BYTES) / segment_bytes) as usize;
        if segments.contains_key(&slot) && !is_good(find(&segments, segment_bytes, moved)) {
            let Moved { color, number, .. } = moved;
            tracing::error!(
                slot,
                "the record {color}/{number} is damaged: the records of its segment stay in the area"
            );
            segments.remove(&slot);
            left.push(slot);
        }
    }
    (segments, left)
}

fn is_good(record: Option<(u32, &[u8])>) -> bool {
    record.is_some_and(|(crc, encoded)| crc32c(encoded) == crc)
}

/// A record's checksum and encoded bytes.
fn find<'a>(segments: &'a Segments, segment_bytes: u64, moved: &Moved) -> Option<(u32, &'a [u8])> {
    let at = moved.loc.entry() - HEAD_BYTES;
    let (generation, bytes) = segments.get(&((at / segment_bytes) as usize))?;
    let entry = bytes.get((at % segment_bytes) as usize..)?;
    let header = Header::peek(entry)?;
    if !header.kind.has_records() || header.generation != *generation {
        return None;
    }
    let body = entry.get(ENTRY_HEADER..ENTRY_HEADER + header.body_len as usize)?;
    let meta = StagedMeta::decode(body)?;
    let index = moved.loc.index() as usize;
    if meta.staged.color != moved.color || index >= meta.staged.records as usize {
        return None;
    }
    let table = body.get(meta.table_at()..meta.records_at())?;
    let from = if index == 0 { 0 } else { codec::row(table, index - 1)?.0 as usize };
    let (to, crc) = codec::row(table, index)?;
    let encoded = body.get(meta.records_at()..)?.get(from..to as usize)?;
    Some((crc, encoded))
}

impl SsdError {
    /// As the answer to a read of `color` that got to `number`.
    fn into_read(self, color: Color, number: SeqNum) -> ReadError {
        match self {
            Self::Damaged { file, offset, color, number, end } => {
                ReadError::Damaged { what: file, color, number, end, at: offset }
            }
            Self::Io { file, color, number, end, source, .. } => {
                ReadError::Io { what: file, color, number, end, source }
            }
            other => {
                let what = "the SSD files".to_owned();
                ReadError::Io { what, color, number, end: number, source: io::Error::other(other.to_string()) }
            }
        }
    }
}
