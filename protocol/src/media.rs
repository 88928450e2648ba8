//! The two storage traits: a byte device, and the store of one replica that is built over it.

use std::io;

use bytes::Bytes;

use crate::entry::Entry;
use crate::ids::{Color, Epoch, Incarnation, Lsn, SeqNum, StoreId, Token};
use crate::peer::Staged;
use crate::record::{Append, Record};

/// Names a memory fence of one device; they count up from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FenceId(pub u64);

/// A range of bytes that can be made durable: persistent memory, a file, or a simulation of either.
///
/// Between two fences any subset of what was written may reach the media, in any order, torn at 8-byte grain. All
/// offsets are in bytes from the start of the device.
pub trait Device: Send {
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
        /// The number.
        number: SeqNum,
        /// Where in the area.
        at: u64,
    },
    /// The medium failed on this read; others may go well.
    #[error("{what}: cannot read the record {color}/{number}: {source}")]
    Io {
        /// The store, by its path.
        what: String,
        /// The log.
        color: Color,
        /// The number.
        number: SeqNum,
        /// What the medium said.
        source: io::Error,
    },
}

/// What an opened store holds, for its replica to start from.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The newest incarnation that a `Fence` was written for.
    pub fence: Option<Incarnation>,
    /// The newest checkpoint: the place it covers, and the state its replica wrote.
    pub checkpoint: Option<(Lsn, Bytes)>,
    /// The entries above the checkpoint, in order, without gaps.
    pub entries: Vec<Entry>,
    /// What is staged and not numbered by any entry.
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
    /// Numbers that can be read.
    pub records: u64,
    /// Tokens staged.
    pub staged_tokens: u64,
    /// Bytes of memory that the indexes take.
    pub index_bytes: u64,
}

/// The store of one replica: staged records, shard-log entries, and an index from numbers to records.
///
/// Writes are durable once a later [`LogStore::fence`] is done, and count in the order in which they were made: a crash
/// leaves a prefix of them that includes all that were fenced (I10). Every write but [`LogStore::stage`] is small and
/// has space kept back for it, so `Full` is answered for staging alone until that reserve is gone too.
pub trait LogStore {
    /// Writes the records of an append. Its token is not staged, and no entry assigned it.
    ///
    /// # Errors
    /// `Full`: nothing was written, and the store goes on. `Failed` is final.
    fn stage(&mut self, append: &Append) -> Result<(), StoreError>;

    /// Writes an entry; `lsn` is the last one's next. An `Assign` moves its tokens, all staged here, into the index.
    ///
    /// # Errors
    /// `Full` and `Failed`, both final for a shard log: the entry is not there.
    fn append(&mut self, entry: &Entry) -> Result<(), StoreError>;

    /// Writes a `Fence` for this incarnation, behind everything written before.
    ///
    /// # Errors
    /// As [`LogStore::append`].
    fn seal(&mut self, incarnation: Incarnation) -> Result<(), StoreError>;

    /// Writes the replica's state as of `upto`, which is committed; entries up to there need not be kept for it.
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

    /// Reads the records of `color` from `from` on, up to but not including `upto`, in order, passing by numbers that
    /// name none. Stops after `max_records`, or when `max_bytes` of payload are reached, but not before one record.
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
    ) -> Result<(), ReadError>;

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
