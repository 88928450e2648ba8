//! Opening a store, in the steps that keep its identity (DESIGN §7): each step is a type, and only the last gives a store.
//!
//! ```text
//! Closed --intend(nonce)--> Intended --advance()--> Advanced --finish()--> Store
//! ```
//!
//! Between `intend` and `advance`, the caller has the metadata store go from `n` to `opening(nonce)`; between `advance`
//! and `finish`, from `opening(nonce)` to `n + 1`. After a crash [`Closed::mark`] says which step was the last that is
//! durable: [`Mark::Intent`] goes on with its own nonce; [`Mark::Opened`] tells the nonce of the last opening, which the
//! metadata may still have to be told of, and then begins a new one. Nothing is read from the log or written to it before
//! `finish`.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flexlog_protocol::media::{Device, LogStore, Recovered, StoreError, StoreIdentity};
use flexlog_protocol::peer::Staged;
use flexlog_protocol::{Assign, Body, ClusterId, Entry, Incarnation, Lsn, ReplicaId, StoreId, Token, limits};
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

use crate::codec::{self, StagedMeta};
use crate::device::{AREA, AnyDevice, DeviceKind, FileDevice, Mapping, MmapDevice, device_for, open_pmem2};
use crate::index::{Index, Loc};
use crate::layout::{HEAD_BYTES, Kind, Place};
use crate::log::{FIRST_ENTRY, GENERATIONS, Log, Resume, is_full};
use crate::recover::{Found, Problem, Reader};
use crate::segments::{Segments, Span};
use crate::ssd::{FileMeta, Folder, MANIFEST, Refusal, SsdError, Tier};
use crate::store::{Begin, StagedAt, Store};
use crate::superblock::{self, Superblock};
use crate::tiers::{Cache, Tiers};

/// The fewest bytes of a segment.
pub const MIN_SEGMENT_BYTES: u64 = 4096;
/// The most bytes of a segment.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// Whose store it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The cluster.
    pub cluster: ClusterId,
    /// The replica.
    pub replica: ReplicaId,
}

/// How a store is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of a segment, a multiple of 4096. Counts when the store is formatted; later it stays as it is.
    pub segment_bytes: u64,
    /// Bytes that the area may grow to.
    pub limit_bytes: u64,
    /// Allocate all that the limit allows at once, and fault in all memory when it is allocated; for measurements.
    pub prefault: bool,
    /// Percent of the area, 1 to 99: when more of it is in use, the oldest records move to SSD files, if there is a place
    /// for them, see [`Closed::with_ssd`].
    pub high_mark: u8,
    /// Bytes of memory for records that were read; 0 for none.
    pub cache_bytes: u64,
    /// Bytes of memory for the indexes of SSD files.
    pub index_cache_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: limits::SEGMENT_BYTES,
            limit_bytes: limits::AREA_LIMIT_BYTES,
            prefault: false,
            high_mark: 50,
            cache_bytes: limits::CACHE_BYTES,
            index_cache_bytes: limits::INDEX_CACHE_BYTES,
        }
    }
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("{} is in use by another process: stop that one, or give this replica a folder of its own", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The folder or its files cannot be written.
    #[error("cannot write to {}: {source}. Make it writable for this user, or choose another folder", path.display())]
    NotWritable {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The medium has not enough room for a store.
    #[error("{what} has no room for a store ({bytes} bytes at least): free some, or choose another folder")]
    NoRoom {
        /// The area, by its path.
        what: String,
        /// Bytes that are needed.
        bytes: u64,
    },
    /// The device cannot promise what is asked of it, or the medium failed.
    #[error("{what}: {source}")]
    Io {
        /// The area or folder, by its path.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// It is something else.
    #[error("{what} is not a FlexLog store: it was left as it is. Choose another folder")]
    NotAStore {
        /// The area, by its path.
        what: String,
    },
    /// It was written by a newer version, most likely.
    #[error(
        "{what} has format version {found}, this program knows version {known}: it was left as it is. Use the program that wrote it"
    )]
    Version {
        /// The area, by its path.
        what: String,
        /// The version that it says.
        found: u32,
        /// The version that this code knows.
        known: u32,
    },
    /// It belongs to another cluster.
    #[error("{what} belongs to cluster {found}, not to {wanted}: choose the right folder")]
    OtherCluster {
        /// The area, by its path.
        what: String,
        /// Its cluster.
        found: ClusterId,
        /// The cluster that was asked for.
        wanted: ClusterId,
    },
    /// It belongs to another replica.
    #[error("{what} belongs to replica {found}, not to replica {wanted}: choose the right folder")]
    OtherReplica {
        /// The area, by its path.
        what: String,
        /// Its replica.
        found: ReplicaId,
        /// The replica that was asked for.
        wanted: ReplicaId,
    },
    /// Bytes that were durable are not as they were written.
    #[error(
        "{what} is damaged at byte {offset}: what was durable there is not as it was written, and more than a record. Put another replica in its place with `flexlog replica replace OLD NEW`: it copies its data from the others"
    )]
    Corrupt {
        /// The area, by its path.
        what: String,
        /// Where in the area.
        offset: u64,
    },
    /// The area is shorter than it was.
    #[error(
        "{what} has {found} bytes and had at least {wanted}: a part of it is missing. Bring the right file back, or remove the folder and let the replica copy its data from the others"
    )]
    Short {
        /// The area, by its path.
        what: String,
        /// Its bytes.
        found: u64,
        /// Bytes that it had.
        wanted: u64,
    },
    /// The SSD files cannot be used.
    #[error(transparent)]
    Ssd(#[from] SsdError),
    /// The options make no store.
    #[error("{what}: {why}")]
    BadOptions {
        /// The area, by its path.
        what: String,
        /// What is wrong.
        why: String,
    },
    /// The store could not be written to.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What the superblock says of openings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// It was opened so often. The metadata may not have been told of the last time, `nonce`.
    Opened {
        /// How many times.
        n: u64,
        /// Of the last opening; `None` before the first.
        nonce: Option<Uuid>,
    },
    /// An opening began and did not get to [`Intended::advance`].
    Intent {
        /// How many times it was opened before that.
        n: u64,
        /// Of the opening that began.
        nonce: Uuid,
    },
}

/// Keeps other processes out of a folder as long as it lives.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _file: File,
}

impl FolderLock {
    fn take(folder: &Path) -> Result<Self, OpenError> {
        let path = folder.join("lock");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|source| not_writable(&path, source))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::InUse { path: folder.to_owned() }),
            Err(error) => Err(OpenError::Io { what: path.display().to_string(), source: error.into() }),
        }
    }
}

fn not_writable(path: &Path, source: io::Error) -> OpenError {
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            OpenError::NotWritable { path: path.to_owned(), source }
        }
        _ => OpenError::Io { what: path.display().to_string(), source },
    }
}

/// A store whose superblock was read, or just written; nothing else was looked at.
#[derive(Debug)]
pub struct Closed<D> {
    device: D,
    what: String,
    superblock: Superblock,
    options: Options,
    ssd: Option<Arc<dyn Folder>>,
    lock: Option<FolderLock>,
}

/// A store that has made it durable that it is about to be opened.
#[derive(Debug)]
pub struct Intended<D>(Closed<D>);

/// A store that has counted this opening.
#[derive(Debug)]
pub struct Advanced<D> {
    closed: Closed<D>,
    /// The first generation that this opening may use.
    generation: u32,
}

impl Closed<AnyDevice> {
    /// Locks `folder`, which is made if need be, and opens the store in it; formats it as `fresh` if there is none.
    ///
    /// `kind`: the device to use; the one that suits the file system where it is `None`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_folder(
        folder: &Path,
        kind: Option<DeviceKind>,
        owner: Owner,
        fresh: StoreId,
        options: Options,
    ) -> Result<Self, OpenError> {
        let io_error = |source| OpenError::Io { what: folder.display().to_string(), source };
        DirBuilder::new().recursive(true).create(folder).map_err(|source| not_writable(folder, source))?;
        let lock = FolderLock::take(folder)?;
        let kind = match kind {
            Some(kind) => kind,
            None => device_for(folder).map_err(io_error)?,
        };
        let path = folder.join(AREA);
        let device = match kind {
            DeviceKind::Mmap => {
                let mapping = Mapping { limit: options.limit_bytes, prefault: options.prefault };
                MmapDevice::open(&path, mapping).map(AnyDevice::Mmap)
            }
            DeviceKind::File => FileDevice::open(&path, options.limit_bytes).map(AnyDevice::File),
            DeviceKind::Pmem2 => open_pmem2(&path),
        };
        let mut device = device.map_err(|source| not_writable(&path, source))?;
        if options.prefault {
            device.grow(options.limit_bytes).map_err(|source| not_writable(&path, source))?;
        }
        if kind == DeviceKind::File {
            // The file's own bytes are the device's business, its name is the folder's.
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error)?;
        }
        let mut closed = Self::open(device, path.display().to_string(), owner, fresh, options)?;
        closed.lock = Some(lock);
        Ok(closed)
    }
}

impl<D: Device> Closed<D> {
    /// Opens the store on `device`, called `what` towards people; formats it as `fresh` if there is none.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        mut device: D,
        what: String,
        owner: Owner,
        fresh: StoreId,
        options: Options,
    ) -> Result<Self, OpenError> {
        let found = find_superblock(&device).map_err(|source| OpenError::Io { what: what.clone(), source })?;
        let superblock = match found {
            superblock::Found::Nothing => return Self::format(device, what, owner, fresh, options),
            superblock::Found::Foreign => return Err(OpenError::NotAStore { what }),
            superblock::Found::Version(found) => {
                return Err(OpenError::Version { what, found, known: superblock::VERSION });
            }
            superblock::Found::Damaged => return Err(OpenError::Corrupt { what, offset: 0 }),
            superblock::Found::Superblock(superblock) => superblock,
        };
        if superblock.cluster != owner.cluster {
            return Err(OpenError::OtherCluster { what, found: superblock.cluster, wanted: owner.cluster });
        }
        if superblock.replica != owner.replica {
            return Err(OpenError::OtherReplica { what, found: superblock.replica, wanted: owner.replica });
        }
        check_segment(&what, superblock.segment_bytes)?;
        check_mark(&what, options.high_mark)?;
        let wanted = HEAD_BYTES + u64::from(superblock.segments) * superblock.segment_bytes;
        if device.len() < wanted {
            return Err(OpenError::Short { what, found: device.len(), wanted });
        }
        // A process that died may have left the newer copy in a cache; it must not be the first to be written over.
        fence_now(&mut device).map_err(|source| OpenError::Io { what: what.clone(), source })?;
        Ok(Self { device, what, superblock, options, ssd: None, lock: None })
    }

    fn format(mut device: D, what: String, owner: Owner, fresh: StoreId, options: Options) -> Result<Self, OpenError> {
        check_segment(&what, options.segment_bytes)?;
        check_mark(&what, options.high_mark)?;
        let bytes = HEAD_BYTES + options.segment_bytes;
        if bytes > options.limit_bytes {
            let why = format!(
                "a limit of {} bytes has no room for one segment of {}",
                options.limit_bytes, options.segment_bytes
            );
            return Err(OpenError::BadOptions { what, why });
        }
        let superblock = Superblock {
            sequence: 0,
            cluster: owner.cluster,
            store: fresh,
            replica: owner.replica,
            intent: false,
            opened: 0,
            nonce: Uuid::nil(),
            segment_bytes: options.segment_bytes,
            // Generation 0 is before the first.
            generation_limit: 1,
            tiered: false,
            segments: 0,
        };
        match device.grow(bytes) {
            Ok(()) => {}
            Err(error) if is_full(&error) => return Err(OpenError::NoRoom { what, bytes }),
            Err(source) => return Err(OpenError::Io { what, source }),
        }
        let mut closed = Self { device, what, superblock, options, ssd: None, lock: None };
        closed.write()?;
        Ok(closed)
    }

    /// Makes the superblock durable.
    fn write(&mut self) -> Result<(), OpenError> {
        let bytes = self.superblock.encode();
        let written = self.device.write(self.superblock.offset(), &[&bytes]).and_then(|()| fence_now(&mut self.device));
        written.map_err(|source| OpenError::Io { what: self.what.clone(), source })
    }

    /// The same store, with a folder for the SSD files that older records move to. Once it has one it always needs it.
    #[must_use]
    pub fn with_ssd(self, folder: Arc<dyn Folder>) -> Self {
        Self { ssd: Some(folder), ..self }
    }

    /// Opens the SSD files, if the store has or gets any.
    fn open_tier(&mut self) -> Result<Option<Tier>, OpenError> {
        let Some(folder) = self.ssd.take() else {
            if self.superblock.tiered {
                let why = "some of its records are in SSD files: name the folder that they are in";
                return Err(OpenError::BadOptions { what: self.what.clone(), why: why.to_owned() });
            }
            return Ok(None);
        };
        let cache = self.options.index_cache_bytes;
        let manifest = format!("{}/{MANIFEST}", folder.describe());
        let tier = Tier::open(folder, self.superblock.store, cache)?;
        if self.superblock.tiered && !tier.is_listed() {
            return Err(SsdError::from(Refusal::Missing { file: manifest }).into());
        }
        // The manifest first: where the superblock says that there is one, it is never missing.
        tier.begin()?;
        self.superblock.tiered = true;
        Ok(Some(tier))
    }

    /// Which store it is, and how often it was opened.
    #[must_use]
    pub fn identity(&self) -> StoreIdentity {
        StoreIdentity { id: self.superblock.store, opened: self.superblock.opened }
    }

    /// How far the last opening got.
    #[must_use]
    pub fn mark(&self) -> Mark {
        let Superblock { opened: n, nonce, intent, .. } = self.superblock;
        if intent {
            Mark::Intent { n, nonce }
        } else {
            Mark::Opened { n, nonce: Some(nonce).filter(|nonce| !nonce.is_nil()) }
        }
    }

    /// Makes it durable that the store is about to be opened, under `nonce`, which was never used before; where an
    /// opening was begun already this goes on with that one and *its* nonce, see [`Intended::nonce`].
    ///
    /// # Errors
    /// `Io`.
    pub fn intend(mut self, nonce: Uuid) -> Result<Intended<D>, OpenError> {
        if !self.superblock.intent {
            self.superblock.sequence += 1;
            self.superblock.intent = true;
            self.superblock.nonce = nonce;
            self.write()?;
        }
        Ok(Intended(self))
    }

    /// Opens the store without anyone else knowing: for tests and measurements.
    ///
    /// # Errors
    /// As the steps that it takes.
    pub fn open_alone(self, nonce: Uuid) -> Result<(Store<D>, Recovered), OpenError> {
        self.intend(nonce)?.advance()?.finish()
    }
}

impl<D: Device> Intended<D> {
    /// Which store it is, and how often it was opened before.
    #[must_use]
    pub fn identity(&self) -> StoreIdentity {
        self.0.identity()
    }

    /// The nonce of this opening.
    #[must_use]
    pub fn nonce(&self) -> Uuid {
        self.0.superblock.nonce
    }

    /// Counts this opening. The metadata says `opening(nonce)`, with this nonce.
    ///
    /// # Errors
    /// `Io`.
    pub fn advance(mut self) -> Result<Advanced<D>, OpenError> {
        let superblock = &mut self.0.superblock;
        let generation = superblock.generation_limit;
        let Some(limit) = generation.checked_add(GENERATIONS) else {
            let why = "its segments were used 2^32 times: move the replica to a new folder".to_owned();
            return Err(OpenError::BadOptions { what: self.0.what, why });
        };
        superblock.generation_limit = limit;
        superblock.sequence += 1;
        superblock.intent = false;
        superblock.opened += 1;
        self.0.write()?;
        Ok(Advanced { closed: self.0, generation })
    }
}

impl<D: Device> Advanced<D> {
    /// Which store it is, and how often it was opened, this time included.
    #[must_use]
    pub fn identity(&self) -> StoreIdentity {
        self.closed.identity()
    }

    /// The nonce of this opening.
    #[must_use]
    pub fn nonce(&self) -> Uuid {
        self.closed.superblock.nonce
    }

    /// Recovers what the store holds. The metadata counts this opening.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, and those of the store's first writes.
    pub fn finish(mut self) -> Result<(Store<D>, Recovered), OpenError> {
        let tier = self.closed.open_tier()?;
        // Both copies shall say it, so that damage to one of them is no harm.
        self.closed.superblock.sequence += 1;
        self.closed.write()?;
        let Closed { device, what, superblock, options, lock, .. } = self.closed;
        let named = |problem: Problem| match problem {
            Problem::Corrupt(offset) => OpenError::Corrupt { what: what.clone(), offset },
            Problem::Io(source) => OpenError::Io { what: what.clone(), source },
        };
        let reader = Reader::new(&device, &superblock);
        let found = reader.find().map_err(named)?;
        if found.generation >= self.generation {
            // The superblock that counts is not the last that was written.
            return Err(named(Problem::Corrupt(0)));
        }
        #[cfg(test)]
        if crate::planted::is(crate::planted::Bug::GenerationReuse) {
            self.generation = found.chain.last().map_or(1, |(_, end)| end.generation + 1);
        }
        let replayed = Replayed::of(&reader, &found, &moved_from(tier.as_ref())).map_err(named)?;
        for at in &found.spoiled {
            // What has no number yet can be told by nobody else, nor had from anybody under it.
            if replayed.staged.values().any(|(_, staged, _)| staged.entry == *at) {
                return Err(named(Problem::Corrupt(*at)));
            }
            tracing::warn!(
                area = what,
                byte = at,
                "records here are damaged: they are to be repaired from another replica"
            );
        }
        let behind = |end: &Place| found.checkpoint.as_ref().is_none_or(|(name, _)| end.generation > name.generation);
        let since_checkpoint = found.chain.iter().filter(|(_, end)| behind(end)).count() as u64;
        let (head, end) = found.chain.last().map_or((None, Place::default()), |(slot, end)| (Some(*slot), *end));
        let resume =
            Resume { end, head: head.filter(|_| found.clean), fenced: found.fenced, next_generation: self.generation };
        let Replayed { segments, index, staged, entries, fence, .. } = replayed;
        let log = Log::resume(device, segments, what, superblock, options.limit_bytes, resume)?;
        let trims = index.trims().collect();
        let checkpoint = found.checkpoint.map(|(_, checkpoint)| (checkpoint.upto, checkpoint.state));
        let mut staged: Vec<_> = staged.into_values().collect();
        staged.sort_unstable_by_key(|(place, ..)| *place);
        let mut store = Store::new(Begin {
            log,
            index,
            staged: staged.iter().map(|(_, at, staged)| (staged.token, *at)).collect(),
            fence,
            taken_back: found.taken_back,
            checkpoint_bytes: checkpoint.as_ref().map_or(0, |(_, state)| state.len()),
            committed: checkpoint.as_ref().map_or(Lsn(0), |(upto, _)| *upto),
            tiers: tier.map(|tier| Tiers::new(tier, trims)),
            high_mark: options.high_mark,
            cache: Cache::new(options.cache_bytes),
            lock,
        });
        // Allocated now, so that the first append does not wait for it. Where that fails, staging says so.
        store.allocate()?;
        // Each opening may have taken a segment: without a checkpoint now and then, openings alone would fill the area.
        store.opened(since_checkpoint);
        // What was read may be in a cache only, where the machine outlived the process: nobody hears of it before it is
        // durable.
        let now = store.fence()?;
        store.wait(now)?;
        let staged = staged.into_iter().map(|(_, _, staged)| staged).collect();
        Ok((store, Recovered { fence, checkpoint, entries, staged }))
    }
}

/// For each generation of a segment that records moved from to SSD files: those numbered up to there did.
fn moved_from(tier: Option<&Tier>) -> FxHashMap<u32, Lsn> {
    sources_of(tier.into_iter().flat_map(Tier::files))
}

/// The same of the files of a manifest.
pub(crate) fn sources_of(files: impl Iterator<Item = FileMeta>) -> FxHashMap<u32, Lsn> {
    let mut moved = FxHashMap::default();
    for file in files {
        for generation in file.sources {
            let upto = moved.entry(generation).or_insert(file.upto);
            *upto = (*upto).max(file.upto);
        }
    }
    moved
}

/// What the entries of the log say.
struct Replayed {
    segments: Segments,
    index: Index,
    /// What is staged and has no number.
    staged: FxHashMap<Token, (Place, StagedAt, Staged)>,
    /// Those above the checkpoint.
    entries: Vec<Entry>,
    fence: Option<Incarnation>,
    /// What got its numbers from entries that were taken back since the checkpoint, and so is staged again.
    again: FxHashSet<Token>,
}

impl Replayed {
    fn of<D: Device>(reader: &Reader<'_, D>, found: &Found, moved: &FxHashMap<u32, Lsn>) -> Result<Self, Problem> {
        let mut segments = Segments::new();
        segments.grow(reader.slots());
        for (slot, end) in &found.chain {
            segments.adopt(*slot, *end);
        }
        let (name, checkpoint) = match &found.checkpoint {
            Some((name, checkpoint)) => (*name, Some(checkpoint)),
            None => (Place::default(), None),
        };
        let mut replayed = Self {
            segments,
            index: Index::default(),
            staged: FxHashMap::default(),
            entries: Vec::new(),
            fence: checkpoint.and_then(|checkpoint| checkpoint.fence),
            again: FxHashSet::default(),
        };
        for (color, upto) in checkpoint.into_iter().flat_map(|checkpoint| &checkpoint.trims) {
            replayed.index.trim(*color, *upto);
        }
        let upto = checkpoint.map(|checkpoint| checkpoint.upto);
        for (slot, end) in &found.chain {
            reader.replay(*slot, *end, |place, at, header, body| {
                let read = match header.kind {
                    Kind::Staged => replayed.stage(place, at, body),
                    Kind::Copied => replayed.copied(*slot, place, at, body, moved),
                    Kind::Repaired => replayed.repaired(*slot, place, at, body, reader, moved),
                    Kind::Entry => match codec::decode_entry(body) {
                        Some(entry) if found.is_taken_back(place, entry.lsn) => {
                            replayed.taken_back(*slot, found.is_taken_back_since(place, entry.lsn), &entry);
                            Some(())
                        }
                        Some(entry) => replayed.entry(*slot, entry, upto, reader, moved),
                        None => None,
                    },
                    Kind::Fence if place > name => {
                        replayed.fence = codec::decode_fence(body);
                        replayed.fence.map(|_| ())
                    }
                    // What an older fence said is in the checkpoint, what was taken back is known beforehand.
                    Kind::Fence | Kind::Part | Kind::Continue | Kind::Truncate => Some(()),
                };
                read.ok_or(Problem::Corrupt(at))
            })?;
        }
        // What was staged before the checkpoint and is not in its list was numbered or dropped, and what says so may be
        // gone with its segment.
        let kept: FxHashSet<Place> =
            checkpoint.into_iter().flat_map(|checkpoint| &checkpoint.staged).copied().collect();
        let again = std::mem::take(&mut replayed.again);
        replayed.staged.retain(|token, (place, ..)| *place > name || kept.contains(place) || again.contains(token));
        for (_, at, _) in replayed.staged.values() {
            replayed.segments.get_mut(reader.slot_of(at.entry)).staged += 1;
        }
        Ok(replayed)
    }

    fn stage(&mut self, place: Place, at: u64, body: &[u8]) -> Option<()> {
        let staged = StagedMeta::decode(body)?.staged;
        let waits = StagedAt { entry: at, color: staged.color, records: staged.records };
        self.staged.insert(staged.token, (place, waits, staged));
        Some(())
    }

    fn copied(&mut self, slot: usize, place: Place, at: u64, body: &[u8], moved: &FxHashMap<u32, Lsn>) -> Option<()> {
        let (meta, first) = codec::decode_copied(body)?;
        // Settled before they came here: where their segment moved, they did.
        if !moved.contains_key(&place.generation) {
            let waits = StagedAt { entry: at, color: meta.staged.color, records: meta.staged.records };
            self.index.insert(waits.color, first, waits.records, at);
            self.segments.get_mut(slot).own.add(waits.color, Span { low: first, high: waits.last(first) });
        }
        Some(())
    }

    /// A record that takes the place of a damaged one, which stands before it or is in an SSD file.
    fn repaired<D: Device>(
        &mut self,
        slot: usize,
        place: Place,
        at: u64,
        body: &[u8],
        reader: &Reader<'_, D>,
        moved: &FxHashMap<u32, Lsn>,
    ) -> Option<()> {
        let (meta, number) = codec::decode_copied(body).filter(|(meta, _)| meta.staged.records == 1)?;
        let color = meta.staged.color;
        let before = self.index.find(color, number);
        if let Some(before) = before {
            let generation = self.segments.get(reader.slot_of(before.entry())).generation;
            self.segments.stand_in(slot, generation);
        }
        if !moved.contains_key(&place.generation) {
            self.index.replace(color, number, Loc::new(at, 0));
            self.segments.get_mut(slot).own.add(color, Span { low: number, high: number });
        } else if let Some(before) = before {
            // What took its place is in an SSD file.
            self.index.forget(color, number, before);
        }
        Some(())
    }

    /// An entry in the segment `by` was taken back; `since`: later than the checkpoint.
    fn taken_back(&mut self, by: usize, since: bool, entry: &Entry) {
        self.segments.get_mut(by).taken_back = true;
        if let (true, Body::Assign(assigns)) = (since, &entry.body) {
            self.again.extend(assigns.iter().flat_map(Assign::each).map(|(token, _)| token));
        }
    }

    fn entry<D: Device>(
        &mut self,
        by: usize,
        entry: Entry,
        upto: Option<Lsn>,
        reader: &Reader<'_, D>,
        moved: &FxHashMap<u32, Lsn>,
    ) -> Option<()> {
        let segment = self.segments.get_mut(by);
        segment.lsn = segment.lsn.max(entry.lsn);
        if let Body::Assign(assigns) = &entry.body {
            for assign in assigns {
                for (token, first) in assign.each() {
                    // Where the record is gone its number was trimmed, or moved to an SSD file.
                    let Some((place, staged, _)) = self.staged.remove(&token) else { continue };
                    if moved.get(&place.generation).is_some_and(|upto| entry.lsn <= *upto) {
                        continue;
                    }
                    self.index.insert(assign.color, first, staged.records, staged.entry);
                    let (slot, span) = (reader.slot_of(staged.entry), Span { low: first, high: staged.last(first) });
                    let segment = self.segments.get_mut(slot);
                    segment.own.add(assign.color, span);
                    segment.numbered = entry.lsn;
                    if by != slot {
                        self.segments.get_mut(by).given.add(assign.color, span);
                    }
                }
            }
        }
        if upto.is_none_or(|upto| entry.lsn > upto) {
            let last = self.entries.last().map(|last| last.lsn).or(upto);
            if last.is_some_and(|last| last.next() != entry.lsn) {
                return None;
            }
            self.entries.push(entry);
        }
        Some(())
    }
}

fn check_segment(what: &str, bytes: u64) -> Result<(), OpenError> {
    if (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes) && bytes.is_multiple_of(4096) {
        return Ok(());
    }
    let why = format!(
        "a segment of {bytes} bytes is not possible: it is a multiple of 4096 from {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}"
    );
    Err(OpenError::BadOptions { what: what.to_owned(), why })
}

fn check_mark(what: &str, percent: u8) -> Result<(), OpenError> {
    if (1..=99).contains(&percent) {
        return Ok(());
    }
    let why = format!("a high mark of {percent} percent is not possible: it is from 1 to 99");
    Err(OpenError::BadOptions { what: what.to_owned(), why })
}

fn fence_now<D: Device>(device: &mut D) -> io::Result<()> {
    let fence = device.fence()?;
    device.wait(fence)
}

pub(crate) fn find_superblock<D: Device>(device: &D) -> io::Result<superblock::Found> {
    let mut copies = [[0; superblock::BYTES]; 2];
    for (index, copy) in copies.iter_mut().enumerate() {
        let at = index as u64 * superblock::STRIDE;
        let len = copy.len().min(device.len().saturating_sub(at) as usize);
        device.read(at.min(device.len()), &mut copy[..len])?;
    }
    let mut failed = None;
    let rest_is_zero = || {
        let rest = is_zero_from(device, HEAD_BYTES);
        rest.unwrap_or_else(|error| {
            failed = Some(error);
            false
        })
    };
    let found = Superblock::find([&copies[0], &copies[1]], rest_is_zero);
    failed.map_or(Ok(found), Err)
}

fn is_zero_from<D: Device>(device: &D, mut at: u64) -> io::Result<bool> {
    let mut bytes = vec![0; 1 << 16];
    while at < device.len() {
        let n = (bytes.len() as u64).min(device.len() - at) as usize;
        device.read(at, &mut bytes[..n])?;
        if bytes[..n].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += n as u64;
    }
    Ok(true)
}

const _: () = assert!(FIRST_ENTRY * 4 < MIN_SEGMENT_BYTES as usize);
