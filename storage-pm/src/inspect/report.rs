//! What a look into a folder comes to.

use std::fmt;

use flexlog_protocol::{ClusterId, Color, Incarnation, Lsn, ReplicaId, SeqNum, StoreId};
use uuid::Uuid;

use crate::codec::TakenBack;
use crate::layout::Place;
use crate::superblock::Superblock;

/// More findings are counted and not kept.
const MOST_FINDINGS: usize = 1000;

/// The kinds of entries, in the order of [`SegmentReport::entries`].
pub const KINDS: [&str; 8] = ["staged", "entry", "fence", "checkpoint", "continue", "copied", "truncate", "repaired"];

/// Something that people should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The full path of the file.
    pub file: String,
    /// Where in it; `None`: it is about all of it.
    pub offset: Option<u64>,
    /// What.
    pub what: String,
    /// It is not as it should be; else it is worth knowing, and no harm.
    pub is_fault: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            Some(offset) => write!(f, "{}: byte {offset}: {}", self.file, self.what),
            None => write!(f, "{}: {}", self.file, self.what),
        }
    }
}

/// One of the two copies of the superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SuperblockCopy {
    /// Where it is.
    pub offset: u64,
    /// Its checksum holds.
    pub good: bool,
    /// It is the one that counts.
    pub counts: bool,
    /// How often the superblock was written when this was, if it is good.
    pub sequence: u64,
}

/// What the superblock that counts says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The format's version.
    pub version: u32,
    /// Of which cluster.
    pub cluster: ClusterId,
    /// Of which replica.
    pub replica: ReplicaId,
    /// Which store.
    pub store: StoreId,
    /// How often it was opened.
    pub opened: u64,
    /// An opening began and was not counted.
    pub intent: bool,
    /// Of the opening that began, else of the last.
    pub nonce: Uuid,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// No segment has this generation or one above it.
    pub generation_limit: u32,
    /// Some of its records may be in SSD files.
    pub tiered: bool,
}

impl From<&Superblock> for Identity {
    fn from(superblock: &Superblock) -> Self {
        let Superblock { cluster, replica, store, opened, intent, nonce, segment_bytes, .. } = *superblock;
        let Superblock { generation_limit, tiered, .. } = *superblock;
        let version = crate::superblock::VERSION;
        Self { version, cluster, replica, store, opened, intent, nonce, segment_bytes, generation_limit, tiered }
    }
}

/// What a segment is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SegmentState {
    /// It is part of the log.
    Live,
    /// It is no part of the log: never used, or used again when there is need.
    #[default]
    Free,
    /// It has something in it, and nothing says what.
    Unknown,
}

/// One segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SegmentReport {
    /// Which of the area's segments.
    pub slot: usize,
    /// Its byte of the area.
    pub offset: u64,
    /// What it is used for.
    pub state: SegmentState,
    /// Its generation, if its first entry is good.
    pub generation: Option<u32>,
    /// Bytes of entries.
    pub used: u32,
    /// How many entries of each of [`KINDS`].
    pub entries: [u64; KINDS.len()],
    /// Lowest and highest place in the shard log, of entries that were not taken back.
    pub lsns: Option<(Lsn, Lsn)>,
    /// Appends in it that wait for their numbers.
    pub staged: u64,
}

/// The newest checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Its byte of the area.
    pub offset: u64,
    /// The place in the shard log that it covers.
    pub upto: Lsn,
    /// Bytes of it that are the replica's state.
    pub state_bytes: u64,
    /// Appends that waited for their numbers.
    pub staged: usize,
    /// Colors with a trim point.
    pub trims: usize,
    /// Generations of the segments before its own that stay in use.
    pub live: Vec<u32>,
}

/// Where the log ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogEnd {
    /// The byte of the area at which the next entry would go.
    pub offset: u64,
    /// The generation of its segment; 0: the log is empty.
    pub generation: u32,
    /// The highest place in the shard log, of any entry or of the checkpoint.
    pub last: Lsn,
    /// Entries.
    pub entries: u64,
    /// Nothing stands behind the end that could be taken for an entry.
    pub clean: bool,
}

/// Numbers of a color.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbers {
    /// The lowest.
    pub first: SeqNum,
    /// The highest.
    pub last: SeqNum,
    /// How many have a record.
    pub records: u64,
}

/// One color.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColorReport {
    /// Which.
    pub color: Color,
    /// The records in the area, without trimmed ones and those that moved to SSD files.
    pub area: Option<Numbers>,
    /// The records in SSD files; trimmed ones among them.
    pub ssd: Option<Numbers>,
    /// Everything at or below is gone.
    pub trim: Option<SeqNum>,
}

/// One SSD file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SsdFileReport {
    /// Its full path.
    pub path: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its records.
    pub records: u64,
    /// Colors in it.
    pub colors: usize,
    /// The place in the shard log that its records were moved at.
    pub upto: Lsn,
    /// Generations of the segments that they were moved from.
    pub sources: Vec<u32>,
}

/// The SSD files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SsdReport {
    /// The folder.
    pub path: String,
    /// The next file's id.
    pub next_id: u64,
    /// Those that the manifest names and that could be opened.
    pub files: Vec<SsdFileReport>,
}

/// See [`crate::inspect`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The area's full path.
    pub area: String,
    /// Bytes of the area.
    pub area_bytes: u64,
    /// Another process uses it: what it wrote meanwhile is not in here.
    pub in_use: bool,
    /// The copies of the superblock.
    pub superblocks: [SuperblockCopy; 2],
    /// What it says; `None`: no copy of it can be read, and so nothing else.
    pub identity: Option<Identity>,
    /// The segments, in the order of the area.
    pub segments: Vec<SegmentReport>,
    /// The newest checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// Where the log ends.
    pub log: LogEnd,
    /// The newest incarnation that a `Fence` names.
    pub fence: Option<Incarnation>,
    /// The colors, ascending.
    pub colors: Vec<ColorReport>,
    /// The SSD files, if it has any.
    pub ssd: Option<SsdReport>,
    /// What people should know.
    pub findings: Vec<Finding>,
    /// Findings beyond those.
    pub more_findings: u64,
    /// Faults among those.
    more_faults: u64,
    /// The segments of the log with their ends, in order.
    pub(super) chain: Vec<(usize, Place)>,
    /// Which entries are no more.
    pub(super) taken_back: Vec<TakenBack>,
}

impl Report {
    pub(super) fn new(area: &str, area_bytes: u64) -> Self {
        Self { area: area.to_owned(), area_bytes, ..Self::default() }
    }

    /// What is not as it should be.
    pub fn faults(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.is_fault)
    }

    /// Whether all is as it should be.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.more_faults == 0 && self.faults().next().is_none()
    }

    /// Records in the area and in SSD files; trimmed ones in SSD files are among them, and those count twice that were
    /// copied here after they had moved there.
    #[must_use]
    pub fn records(&self) -> u64 {
        let both = self.colors.iter().flat_map(|color| [color.area, color.ssd]);
        both.flatten().map(|numbers| numbers.records).sum()
    }

    /// Whether the shard-log entry at `place` was taken back.
    pub(super) fn is_taken_back(&self, place: Place, lsn: Lsn) -> bool {
        self.taken_back.iter().any(|taken| taken.covers(place, lsn))
    }

    pub(super) fn fault(&mut self, file: impl Into<String>, offset: Option<u64>, what: impl Into<String>) {
        self.find(Finding { file: file.into(), offset, what: what.into(), is_fault: true });
    }

    pub(super) fn note(&mut self, file: impl Into<String>, offset: Option<u64>, what: impl Into<String>) {
        self.find(Finding { file: file.into(), offset, what: what.into(), is_fault: false });
    }

    /// A fault in the area.
    pub(super) fn bad(&mut self, offset: u64, what: impl Into<String>) {
        self.fault(self.area.clone(), Some(offset), what);
    }

    fn find(&mut self, finding: Finding) {
        if self.findings.len() < MOST_FINDINGS {
            self.findings.push(finding);
        } else {
            self.more_findings += 1;
            self.more_faults += u64::from(finding.is_fault);
        }
    }

    /// What does not fit together in a folder that is written meanwhile need not be damage.
    pub(super) fn soften(&mut self) {
        self.more_faults = 0;
        for finding in self.findings.iter_mut().filter(|finding| finding.is_fault) {
            finding.is_fault = false;
            finding.what.push_str(" (or it changed while it was read: stop the process that uses it, then verify)");
        }
    }
}

/// One entry of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryLine {
    /// Its byte of the area.
    pub offset: u64,
    /// The generation of its segment.
    pub generation: u32,
    /// Where in the segment.
    pub at: u32,
    /// One of [`KINDS`].
    pub kind: &'static str,
    /// Its bytes, the header included.
    pub bytes: u64,
    /// Its place in the shard log, if it is an entry of that.
    pub lsn: Option<Lsn>,
    /// What it says.
    pub says: String,
}
