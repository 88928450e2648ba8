//! The two storage traits: a byte device, and the store of one replica that is built over it.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::entry::Entry;
use crate::ids::{Color, Epoch, Incarnation, Lsn, SeqNum, StoreId, Time, Token};
use crate::peer::Staged;
use crate::record::{Append, Record};

/// Names a memory fence of one device; they count up from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FenceId(pub u64);

/// A range of bytes that can be made durable: persistent memory, a file, or a simulation of either.
///
/// Between two fences any subset of what was written may reach the media, in any order, torn at 8-byte grain. All
/// offsets are in bytes from the start of the device.
pub trait Device: Send + Sync {
    /// What it is and what it promises, for people: `mmap on tmpfs (does not outlive the machine)`.
    fn describe(&self) -> String;

    /// Bytes that can be used now. All of them can be read and written without a signal.
    fn len(&self) -> u64;

    /// Whether nothing can be used yet.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the device at least `len` bytes long, the new part zero, its space allocated.
    ///
    /// # Errors
    /// Those of the medium, `StorageFull` and `QuotaExceeded` among them; the device is then as it was.
    fn grow(&mut self, len: u64) -> io::Result<()>;

    /// Copies `parts`, one after the other, to `at`. `at` and the end must be within [`Device::len`].
    ///
    /// What was written can be read back at once, and is durable once a later fence is done.
    ///
    /// # Errors
    /// Those of the medium. After an error the device must not be written again.
    fn write(&mut self, at: u64, parts: &[&[u8]]) -> io::Result<()>;

    /// Starts a memory fence over everything written so far, and returns its name.
    ///
    /// Memory devices are done when this returns. A file device is done later; it takes one fence at a time, and
    /// callers start none while [`Device::fenced`] is below the last.
    ///
    /// # Errors
    /// Those of the medium. An error is final: nothing written since the last fence that is done may be relied on.
    fn fence(&mut self) -> io::Result<FenceId>;

    /// The newest fence that is done.
    ///
    /// # Errors
    /// As [`Device::fence`].
    fn fenced(&mut self) -> io::Result<FenceId>;

    /// Waits until `fence` is done. For those who have nothing else to do.
    ///
    /// # Errors
    /// As [`Device::fence`].
    fn wait(&mut self, fence: FenceId) -> io::Result<()>;

    /// Has `wake` called, from any thread, each time a fence is done or failed after [`Device::fence`] returned.
    fn on_fenced(&mut self, wake: Box<dyn Fn() + Send + Sync>);

    /// Copies bytes from `at` into `into`.
    ///
    /// # Errors
    /// Those of the medium, and `UnexpectedEof` beyond [`Device::len`].
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()>;

    /// The bytes at `at`, where the device is memory; `None` where it must be [`Device::read`].
    fn slice(&self, at: u64, len: usize) -> Option<&[u8]>;

    /// Says that this range is about to be read as a whole. What comes of it is the device's business.
    fn will_read(&self, _at: u64, _len: u64) {}

    /// Reads the same medium from any thread, while the device goes on.
    ///
    /// # Errors
    /// Those of the medium.
    fn reader(&self) -> io::Result<Arc<dyn AreaReader>>;
}

/// Reads what a [`Device`] made durable, from any thread.
pub trait AreaReader: Send + Sync {
    /// Copies bytes from `at` into `into`. A done fence covers them, and nobody writes to them meanwhile.
    ///
    /// # Errors
    /// As [`Device::read`].
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
}

/// Why a store takes no more.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The area is at its limit, or its medium is. Reads and trim go on; trim gives space back.
    #[error("{what} is full ({used} of {limit} bytes): trim colors, or give the replica a larger area")]
    Full {
        /// The store, by its path.
        what: String,
        /// Bytes in use.
        used: u64,
        /// Bytes that it may use.
        limit: u64,
    },
    /// The medium failed. The store takes nothing any more.
    #[error("{what} failed and takes nothing any more: {source}. Check the disk, then start the replica again")]
    Failed {
        /// The store, by its path.
        what: String,
        /// What the medium said.
        source: io::Error,
    },
}

/// Why a number cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The bytes are not those that were written.
    #[error("{what}: the record {color}/{number} at byte {at} is damaged: its checksum does not match")]
    Damaged {
        /// The store, by its path.
        what: String,
        /// The log.
        color: Color,
        /// The number, or the first one that may be affected.
        number: SeqNum,
        /// Exclusive: no number from here on is. The same as `number` where it is not known which are.
        end: SeqNum,
        /// Where in the area or file.
        at: u64,
    },
    /// The medium failed on this read; others may go well.
    #[error("{what}: cannot read the record {color}/{number}: {source}. Check the disk")]
    Io {
        /// The store, by its path.
        what: String,
        /// The log.
        color: Color,
        /// The number, or the first one that may be affected.
        number: SeqNum,
        /// As above.
        end: SeqNum,
        /// What the medium said.
        source: io::Error,
    },
}

/// What became of a read.
#[must_use]
pub enum Reading {
    /// All that there is to say is said.
    Done,
    /// What comes first is where reading takes its time: nothing was read. Call this on another thread.
    Later(LaterRead),
}

/// A read that may wait for a disk.
pub type LaterRead = Box<dyn FnOnce() -> Late + Send>;

/// What a [`LaterRead`] came to.
#[derive(Debug)]
pub struct Late {
    /// In order, without any missing in between.
    pub records: Vec<(SeqNum, Record)>,
    /// Exclusive: nothing below is missing from `records`. Whoever wants more reads on from here. [`SeqNum::MAX`] where
    /// that is all: always so for [`LogStore::prev`].
    pub covered: SeqNum,
    /// What was in the way at `covered`, if anything.
    pub error: Option<ReadError>,
}

/// Work that a store has for another thread.
pub type Background = Box<dyn FnOnce() + Send>;

/// What an opened store holds, for its replica to start from.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The newest incarnation that a `Fence` was written for.
    pub fence: Option<Incarnation>,
    /// The newest checkpoint: the place it covers, and the state its replica wrote.
    pub checkpoint: Option<(Lsn, Bytes)>,
    /// The entries above the checkpoint, in order, without gaps; none that was taken back.
    pub entries: Vec<Entry>,
    /// What is staged and not numbered by any entry that stands.
    pub staged: Vec<Staged>,
}

/// How full a store is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// What the device is and promises.
    pub device: String,
    /// Bytes of segments in use.
    pub used_bytes: u64,
    /// Bytes that the area has on its medium.
    pub area_bytes: u64,
    /// Bytes that the area may grow to.
    pub limit_bytes: u64,
    /// Segments in use.
    pub segments: u64,
    /// Numbers that can be read from the area.
    pub records: u64,
    /// Tokens staged.
    pub staged_tokens: u64,
    /// Bytes of memory that the indexes take.
    pub index_bytes: u64,
    /// Bytes of memory that the cache holds.
    pub cache_bytes: u64,
    /// SSD files.
    pub ssd_files: u64,
    /// Bytes that they take on their medium.
    pub ssd_bytes: u64,
    /// Records in them, trimmed ones whose file is still there included.
    pub ssd_records: u64,
}

/// The store of one replica: staged records, shard-log entries, and an index from numbers to records.
///
/// Writes are durable once a later [`LogStore::fence`] is done, and count in the order in which they were made: a crash
/// leaves a prefix of them that includes all that were fenced (I10). Every write but [`LogStore::stage`],
/// [`LogStore::copy`] and [`LogStore::repair`] is small and has space kept back for it, so `Full` is answered for those alone until that
/// reserve is gone too.
///
/// A member that comes back makes up for what it missed in this order: [`LogStore::truncate`], where its log differs from
/// the leaf's; [`LogStore::copy`], as often as need be; [`LogStore::checkpoint`] at the place that the copies go up to;
/// then [`LogStore::append`] goes on right behind that place.
pub trait LogStore {
    /// Writes the records of an append. Its token is not staged, and no entry assigned it.
    ///
    /// # Errors
    /// `Full`: nothing was written, and the store goes on. `Failed` is final.
    fn stage(&mut self, append: &Append) -> Result<(), StoreError>;

    /// Writes an entry; `lsn` is the last one's next, or the next of the newest checkpoint's place where that is above the
    /// last one. An `Assign` moves its tokens, all staged here, into the index.
    ///
    /// # Errors
    /// `Full` and `Failed`, both final for a shard log: the entry is not there.
    fn append(&mut self, entry: &Entry) -> Result<(), StoreError>;

    /// Writes a `Fence` for this incarnation, behind everything written before.
    ///
    /// # Errors
    /// As [`LogStore::append`].
    fn seal(&mut self, incarnation: Incarnation) -> Result<(), StoreError>;

    /// Writes records that are settled elsewhere, with the numbers from `first` on: 1 to
    /// [`MAX_RECORDS_PER_TOKEN`](crate::limits::MAX_RECORDS_PER_TOKEN) records of at most
    /// [`MAX_TOKEN_BYTES`](crate::limits::MAX_TOKEN_BYTES) encoded, all in the epoch of `first`. From then on they are like
    /// records that an entry numbered, and they count as committed.
    ///
    /// Numbers that the store has already MUST name the same records, by entries that are never taken back: it is
    /// truncated before it is copied to. They stay as they are, so a copy that a crash interrupted can begin again.
    ///
    /// # Errors
    /// As [`LogStore::stage`].
    fn copy(&mut self, color: Color, first: SeqNum, records: &[Record]) -> Result<(), StoreError>;

    /// Writes a record that is damaged here, as another member has it, under its number, which is committed. From then on
    /// it is the one that is read, after a restart too. Returns whether it was written: not where the number is trimmed,
    /// or its record can be read after all.
    ///
    /// # Errors
    /// As [`LogStore::stage`].
    fn repair(&mut self, color: Color, number: SeqNum, record: &Record) -> Result<bool, StoreError>;

    /// Takes back the entries above `upto`: `entries` MUST be all of them, in order, and none of them committed or at or
    /// below a checkpoint's place. What their `Assign`s numbered is staged again under its tokens, and their numbers name
    /// nothing. [`LogStore::append`] goes on at the next of `upto`, in a higher epoch. Without entries it does nothing.
    ///
    /// Trims and sessions need nothing: whoever calls told the store of committed ones only.
    ///
    /// # Errors
    /// As [`LogStore::append`]: nothing was taken back then.
    fn truncate(&mut self, upto: Lsn, entries: &[Arc<Entry>]) -> Result<(), StoreError>;

    /// Writes the replica's state as of `upto`, which is committed; entries up to there need not be kept for it.
    ///
    /// `upto` may be far above the last entry: a member that copied what it missed goes on there without the entries in
    /// between. Entries at or below it never come back, and what is staged stays so until it is dropped.
    ///
    /// # Errors
    /// As [`LogStore::append`].
    fn checkpoint(&mut self, upto: Lsn, state: &[u8]) -> Result<(), StoreError>;

    /// Whether a checkpoint now would give space back or shorten recovery by much.
    fn checkpoint_wanted(&self) -> bool;

    /// Forgets every number of `color` at or below `upto`. The `Trim` entry for it is committed.
    fn trim(&mut self, color: Color, upto: SeqNum);

    /// Forgets staged tokens. The `CloseSession` entry for them is committed.
    fn drop_staged(&mut self, tokens: &[Token]);

    /// Starts a memory fence over everything written so far; see [`Device::fence`].
    ///
    /// # Errors
    /// `Failed`, final.
    fn fence(&mut self) -> Result<FenceId, StoreError>;

    /// The newest fence that is done.
    ///
    /// # Errors
    /// `Failed`, final.
    fn fenced(&mut self) -> Result<FenceId, StoreError>;

    /// Takes in what the last [`Background`] work did, and says what is next: records move to SSD files when the area
    /// passes its high mark, and what was trimmed is given back. At most one such work is under way; this is to be called
    /// again when it has ended, when something was written, fenced or trimmed, and at [`LogStore::background_at`].
    /// Everything up to `commit` is committed: only that may move.
    ///
    /// # Errors
    /// `Failed`, final: the medium of the SSD files broke.
    fn background(&mut self, now: Time, commit: Lsn) -> Result<Option<Background>, StoreError>;

    /// When to call [`LogStore::background`] if nothing else happens before.
    fn background_at(&self) -> Option<Time>;

    /// Whether staging would be refused now, or is about to be, and background work or a checkpoint will change that:
    /// appends had better wait a moment.
    fn pressed(&self) -> bool;

    /// Reads the records of `color` from `from` on, up to but not including `upto`, in order, passing by numbers that
    /// name none. Stops after `max_records`, or when `max_bytes` of payload are reached, but not before one record; and
    /// where the next record is on a slower tier than those before.
    ///
    /// # Errors
    /// Those of the first record that could not be read; what came before it is in `into`.
    fn read(
        &self,
        color: Color,
        from: SeqNum,
        upto: SeqNum,
        max_records: usize,
        max_bytes: usize,
        into: &mut Vec<(SeqNum, Record)>,
    ) -> Result<Reading, ReadError>;

    /// As [`LogStore::read`] up to the last number, to see whether all can be read: what a cache has does not count, and
    /// none is filled.
    ///
    /// # Errors
    /// As [`LogStore::read`].
    fn scrub(
        &self,
        color: Color,
        from: SeqNum,
        max_records: usize,
        max_bytes: usize,
        into: &mut Vec<(SeqNum, Record)>,
    ) -> Result<Reading, ReadError>;

    /// As [`LogStore::read`], waiting for whatever there is to wait for, up to `max_records` from all tiers.
    ///
    /// # Errors
    /// As [`LogStore::read`].
    fn read_through(
        &self,
        color: Color,
        from: SeqNum,
        upto: SeqNum,
        max_records: usize,
        max_bytes: usize,
        into: &mut Vec<(SeqNum, Record)>,
    ) -> Result<(), ReadError> {
        let mut from = from;
        let mut bytes = 0;
        let before = into.len();
        while from < upto && into.len() - before < max_records && (bytes < max_bytes || into.len() == before) {
            let had = into.len();
            let room = (max_records - (had - before), max_bytes.saturating_sub(bytes));
            match self.read(color, from, upto, room.0, room.1, into)? {
                Reading::Later(read) => {
                    let late = read();
                    into.extend(late.records);
                    if let Some(error) = late.error {
                        return Err(error);
                    }
                    from = late.covered;
                }
                Reading::Done => match into.last().filter(|_| into.len() > had).and_then(|(last, _)| last.plus(1)) {
                    Some(next) => from = next,
                    None => break,
                },
            }
            bytes += into[had..].iter().map(|(_, record)| record.payload().len()).sum::<usize>();
        }
        Ok(())
    }

    /// Reads the last record of `color` at or before `upto`, if there is one.
    ///
    /// # Errors
    /// Those of that record; and of what may have been one behind it, where that cannot be told. Nothing is in `into` then.
    fn prev(&self, color: Color, upto: SeqNum, into: &mut Vec<(SeqNum, Record)>) -> Result<Reading, ReadError>;

    /// As [`LogStore::prev`], waiting for whatever there is to wait for.
    ///
    /// # Errors
    /// As [`LogStore::prev`].
    fn prev_through(&self, color: Color, upto: SeqNum) -> Result<Option<(SeqNum, Record)>, ReadError> {
        let mut found = Vec::new();
        if let Reading::Later(read) = self.prev(color, upto, &mut found)? {
            let late = read();
            if let Some(error) = late.error {
                return Err(error);
            }
            found = late.records;
        }
        Ok(found.pop())
    }

    /// The append that is staged under `token`; `None` where it is not staged, or no more.
    ///
    /// # Errors
    /// As [`LogStore::read`].
    fn read_staged(&self, token: Token) -> Result<Option<Append>, ReadError>;

    /// How full it is.
    fn usage(&self) -> Usage;
}

/// Which replica a store belongs to, as its superblock says and the metadata store must agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreIdentity {
    /// Drawn when the store was formatted.
    pub id: StoreId,
    /// How many times it was opened.
    pub opened: u64,
}

/// The epoch a leaf had at some place of its log; what two logs are compared by.
pub type LogEnd = (Epoch, Lsn);
