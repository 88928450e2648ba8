//! The tier as a whole: which files there are, reading over all of them, adding one, and giving space back.
//!
//! Readers work on the list of files as it was when they began; one job at a time changes it. A change is durable in the
//! manifest before readers see it, and a file is durable before the manifest lists it. After a write that failed in a way
//! that leaves open what is durable, the tier takes nothing any more, but is still read.
//!
//! A file that takes space and says nothing ([`SPARE`]) is given up when the disk is too full even for the manifest that
//! a trim has to write, so that trim works on a full disk, holes or none.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use flexlog_protocol::{Color, Lsn, Record, SeqNum, StoreId, Tag};
use parking_lot::{Mutex, RwLock};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter, sync::Cache, sync::DefaultLifecycle};
use rustc_hash::FxHashMap;
use tracing::{info, warn};

use super::error::{Refusal, SsdError, write_error};
use super::file::{Fault, FileIndex, SsdFile, Trims};
use super::folder::Folder;
use super::format::{file_id, file_name};
use super::manifest::{FileMeta, MANIFEST, Manifest, path};
use super::read::{self, Cursor, merge};
use super::writer::{Writer, temporary};

/// The name of the file whose space is for the manifest on a full disk.
pub const SPARE: &str = "spare";
/// Its bytes: a manifest of some 1,300 files.
const SPARE_BYTES: usize = 64 << 10;

/// A record on its way into the tier.
#[derive(Clone, Debug)]
pub struct Moved<'a> {
    /// The log.
    pub color: Color,
    /// Its number.
    pub number: SeqNum,
    /// Its own checksum.
    pub crc: u32,
    /// Its encoded form: number of tags, each tag's length and bytes, the payload.
    pub encoded: Cow<'a, [u8]>,
}

/// How full the tier is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierUsage {
    /// Files.
    pub files: u64,
    /// Bytes of the files; without those that were given back since the tier was opened.
    pub bytes: u64,
    /// Records in the files, trimmed ones too as long as their file is there.
    pub records: u64,
    /// Bytes of memory.
    pub index_bytes: u64,
}

/// What a trim gave back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reclaimed {
    /// Bytes.
    pub bytes: u64,
    /// Files that are no more.
    pub files: u64,
}

/// Mistakes that checkers must catch, planted for their own tests.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlantedBug {
    /// The manifest lists a file whose data was never made durable.
    ManifestBeforeData,
}

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<u64, Arc<FileIndex>> for ByBytes {
    fn weight(&self, _id: &u64, index: &Arc<FileIndex>) -> u64 {
        index.bytes()
    }
}

type IndexCache = Cache<u64, Arc<FileIndex>, ByBytes>;

/// What the one job that changes the tier has.
#[derive(Debug)]
struct Changes {
    next_id: u64,
    /// Whether there is a manifest on the disk.
    listed: bool,
    /// Whether there is a spare file on the disk.
    spare: bool,
    /// What failed for good.
    failed: Option<String>,
    bug: Option<PlantedBug>,
}

#[derive(Debug)]
struct Inner {
    folder: Arc<dyn Folder>,
    store: StoreId,
    files: RwLock<Arc<Vec<Arc<SsdFile>>>>,
    highest: RwLock<FxHashMap<Color, SeqNum>>,
    indexes: IndexCache,
    changes: Mutex<Changes>,
}

/// See the module. Clones are the same tier.
#[derive(Clone, Debug)]
pub struct Tier(Arc<Inner>);

impl Tier {
    /// Opens the tier of `store` in `folder`, which is there and used by this process alone. Of the files' indexes,
    /// `index_cache_bytes` are kept in memory.
    ///
    /// Files that the manifest does not list are removed: they were never reported, or are no more.
    ///
    /// # Errors
    /// `Refused`: the manifest or a file that it lists is missing, damaged, of another store or a newer version. Nothing
    /// was changed.
    pub fn open(folder: Arc<dyn Folder>, store: StoreId, index_cache_bytes: u64) -> Result<Self, SsdError> {
        let io = |source| Refusal::Io { file: folder.describe(), source };
        let mut names = folder.list().map_err(io)?;
        names.sort_unstable();
        let manifest = Manifest::load(&*folder, store)?;
        let listed = manifest.is_some();
        let first = names.iter().find(|name| file_id(name).is_some());
        if let (false, Some(first)) = (listed, first) {
            return Err(Refusal::NoManifest { folder: folder.describe(), file: path(&*folder, first) }.into());
        }
        let manifest = manifest.unwrap_or(Manifest { store, next_id: 1, files: Vec::new() });
        let mut files = Vec::with_capacity(manifest.files.len());
        let mut highest = FxHashMap::default();
        let indexes = index_cache(index_cache_bytes);
        for meta in manifest.files {
            let file = SsdFile::open(&*folder, store, meta)?;
            let index = file.index()?;
            raise(&mut highest, &index);
            indexes.insert(file.meta().id, index);
            files.push(Arc::new(file));
        }
        let spare = names.iter().any(|name| name == SPARE);
        // Only now: where anything was refused, all stays as it is.
        for name in names {
            let ours = |name: &str| file_id(name).is_some() || name == MANIFEST;
            let stale = match file_id(&name) {
                Some(id) => files.iter().all(|file: &Arc<SsdFile>| file.meta().id != id),
                None => name.strip_suffix(".tmp").is_some_and(ours),
            };
            if stale {
                match folder.remove(&name) {
                    Ok(()) => info!(file = path(&*folder, &name), "removed what was left of an unfinished move"),
                    Err(error) => {
                        warn!(file = path(&*folder, &name), %error, "cannot remove a file that is not needed")
                    }
                }
            }
        }
        let changes = Changes { next_id: manifest.next_id, listed, spare, failed: None, bug: None };
        Ok(Self(Arc::new(Inner {
            folder,
            store,
            files: RwLock::new(Arc::new(files)),
            highest: RwLock::new(highest),
            indexes,
            changes: Mutex::new(changes),
        })))
    }

    /// Whether there is a manifest.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.0.changes.lock().listed
    }

    /// Makes a manifest, if there is none: from then on a tier without one is refused.
    ///
    /// # Errors
    /// `Full`, and `Failed`.
    pub fn begin(&self) -> Result<(), SsdError> {
        let mut changes = self.0.changes.lock();
        if !changes.listed {
            self.manifest(changes.next_id, &[]).save(&*self.0.folder)?;
            changes.listed = true;
        }
        Ok(())
    }

    /// Whether there is no file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.files.read().is_empty()
    }

    #[doc(hidden)]
    pub fn plant(&self, bug: Option<PlantedBug>) {
        self.0.changes.lock().bug = bug;
    }

    fn snapshot(&self) -> Arc<Vec<Arc<SsdFile>>> {
        self.0.files.read().clone()
    }

    /// A file's indexes, from the cache or the disk.
    fn index(&self, file: &SsdFile) -> Result<Arc<FileIndex>, SsdError> {
        self.0.indexes.get_or_insert_with(&file.meta().id, || file.index())
    }

    /// The same for those who look at all files: the cache stays as it is.
    fn index_once(&self, file: &SsdFile) -> Result<Arc<FileIndex>, SsdError> {
        self.0.indexes.peek(&file.meta().id).map_or_else(|| file.index(), Ok)
    }

    /// The highest number of a color in any file; it may be trimmed.
    #[must_use]
    pub fn highest(&self, color: Color) -> Option<SeqNum> {
        self.0.highest.read().get(&color).copied()
    }

    /// The files, by id.
    #[must_use]
    pub fn files(&self) -> Vec<FileMeta> {
        self.snapshot().iter().map(|file| file.meta().clone()).collect()
    }

    /// Makes a file of `records`, which come in ascending order of (color, number) and are committed at `upto`. When
    /// this returns they are durable and can be read, and `sources`, the generations of the segments that they are from,
    /// may be given up. A number that is in the tier already may be added again, with the same record.
    ///
    /// # Errors
    /// `Full`: try again when there is space. `Source`: a record could not be had, is damaged or out of order. `Refused`:
    /// what was written cannot be read back. Nothing changed then. `Failed` is final: the records stay where they are.
    pub fn add<'a>(
        &self,
        records: &mut dyn Iterator<Item = io::Result<Moved<'a>>>,
        upto: Lsn,
        sources: Vec<u32>,
    ) -> Result<FileMeta, SsdError> {
        let mut changes = self.0.changes.lock();
        let done = self.try_add(&mut changes, records, upto, sources);
        self.note_failure(&mut changes, &done);
        done
    }

    fn note_failure<T>(&self, changes: &mut Changes, done: &Result<T, SsdError>) {
        if let Err(error @ SsdError::Failed { .. }) = done {
            changes.failed.get_or_insert_with(|| error.to_string());
        }
    }

    fn check(&self, changes: &Changes) -> Result<(), SsdError> {
        match &changes.failed {
            None => Ok(()),
            Some(why) => {
                Err(SsdError::Failed { what: self.0.folder.describe(), source: io::Error::other(why.clone()) })
            }
        }
    }

    fn try_add<'a>(
        &self,
        changes: &mut Changes,
        records: &mut dyn Iterator<Item = io::Result<Moved<'a>>>,
        upto: Lsn,
        sources: Vec<u32>,
    ) -> Result<FileMeta, SsdError> {
        self.check(changes)?;
        let folder = &self.0.folder;
        if !changes.listed {
            // Before the first file, so that files without a manifest are always a sign of loss.
            self.manifest(changes.next_id, &[]).save(&**folder)?;
            changes.listed = true;
        }
        self.put_spare(changes);
        let id = changes.next_id;
        let written = self.write(id, records, upto, sources, changes.bug);
        let file = written.and_then(|meta| {
            let file = Arc::new(SsdFile::open(&**folder, self.0.store, meta)?);
            let index = file.index()?;
            let mut files = self.snapshot().to_vec();
            files.push(file.clone());
            self.manifest(id + 1, &files).save(&**folder)?;
            Ok((file, index, files))
        });
        let (file, index, files) = match file {
            Ok(file) => file,
            Err(error) => {
                // After a failure for good the manifest on the disk may list the file.
                if !matches!(error, SsdError::Failed { .. }) {
                    let _ = folder.remove(&temporary(id));
                    let _ = folder.remove(&file_name(id));
                }
                return Err(error);
            }
        };
        changes.next_id = id + 1;
        raise(&mut self.0.highest.write(), &index);
        self.0.indexes.insert(id, index);
        *self.0.files.write() = Arc::new(files);
        Ok(file.meta().clone())
    }

    fn manifest(&self, next_id: u64, files: &[Arc<SsdFile>]) -> Manifest {
        Manifest { store: self.0.store, next_id, files: files.iter().map(|file| file.meta().clone()).collect() }
    }

    /// Makes the spare file, where there is none. Nothing relies on its bytes, so no error counts.
    fn put_spare(&self, changes: &mut Changes) {
        if changes.spare {
            return;
        }
        let folder = &self.0.folder;
        let write = || {
            let mut file = folder.create(SPARE)?;
            // Zeros might be stored without taking space.
            let noise: Vec<u8> = (0..SPARE_BYTES as u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
            file.append(&noise)?;
            file.sync()
        };
        match write() {
            Ok(()) => changes.spare = true,
            Err(error) => {
                warn!(file = path(&**folder, SPARE), %error, "no space is kept back for trims on a full disk");
                let _ = folder.remove(SPARE);
            }
        }
    }

    /// Writes a file. It is not listed yet.
    fn write<'a>(
        &self,
        id: u64,
        records: &mut dyn Iterator<Item = io::Result<Moved<'a>>>,
        upto: Lsn,
        sources: Vec<u32>,
        bug: Option<PlantedBug>,
    ) -> Result<FileMeta, SsdError> {
        let folder = &self.0.folder;
        let failed = |error| write_error(path(&**folder, &temporary(id)), error);
        let mut writer = Writer::new(folder.clone(), id, self.0.store).map_err(failed)?;
        let (mut color, mut number) = (Color(0), SeqNum::MIN);
        for record in records {
            let wrong = |color, number, source| SsdError::Source { what: folder.describe(), color, number, source };
            let record = record.map_err(|source| wrong(color, number, source))?;
            (color, number) = (record.color, record.number);
            writer.add(color, number, record.crc, &record.encoded).map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => wrong(color, number, error),
                _ => failed(error),
            })?;
        }
        writer.end(upto, sources, bug != Some(PlantedBug::ManifestBeforeData)).map_err(failed)
    }

    /// Reads the records of `color` from `from` on, up to but not including `upto`, in order, passing by numbers that are
    /// not here. Stops after `max_records`, or when `max_bytes` of payload are reached, but not before one record.
    /// Returns the bound up to which all was looked at, exclusive: `upto` when there is no more.
    ///
    /// Trimmed numbers may be given out or not; callers know what is trimmed.
    ///
    /// # Errors
    /// Those of the first record that could not be read (`Io`, `Damaged`), what came before it is in `into`; `Refused`:
    /// the indexes of a file that may have such records cannot be read.
    pub fn read(
        &self,
        color: Color,
        from: SeqNum,
        upto: SeqNum,
        max_records: usize,
        max_bytes: usize,
        into: &mut Vec<(SeqNum, Record)>,
    ) -> Result<SeqNum, SsdError> {
        merge(self.cursors(color, from, upto)?, from, upto, max_records, max_bytes, into)
    }

    /// The last record of `color` from `from` on, up to but not including `upto`; trimmed or not.
    ///
    /// # Errors
    /// `Io`, `Damaged`: it could not be read, or what may have been one behind it; `Refused` as in [`Tier::read`].
    pub fn last(&self, color: Color, from: SeqNum, upto: SeqNum) -> Result<Option<(SeqNum, Record)>, SsdError> {
        read::last(self.cursors(color, from, upto)?)
    }

    /// One for each file that has numbers of `color` in `from..upto`.
    fn cursors(&self, color: Color, from: SeqNum, upto: SeqNum) -> Result<Vec<Cursor>, SsdError> {
        let mut cursors = Vec::new();
        if self.highest(color).is_none_or(|highest| highest < from) {
            return Ok(cursors);
        }
        for file in self.snapshot().iter().filter(|file| file.may_have(color)) {
            let index = self.index(file)?;
            if index.color(color).is_some_and(|row| row.first < upto && row.last >= from) {
                cursors.push(Cursor::new(file.clone(), index, color, from, upto));
            }
        }
        Ok(cursors)
    }

    /// The numbers of `color` that carry `tag`, ascending; trimmed ones may be among them. Reads the tag index of each
    /// file that has the color.
    ///
    /// # Errors
    /// `Refused`: an index cannot be read.
    pub fn tags(&self, color: Color, tag: &Tag) -> Result<Vec<SeqNum>, SsdError> {
        let mut numbers = Vec::new();
        for file in self.snapshot().iter().filter(|file| file.may_have(color)) {
            if self.index(file)?.color(color).is_some() {
                numbers.extend(file.tags(color, tag)?);
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// Gives back what is at or below its color's trim point: files as a whole where nothing else is in them, else the
    /// blocks. Works on a full disk, by the space that punching gives and that of the spare file.
    ///
    /// # Errors
    /// `Full`: the disk is full and there was no spare file either; blocks may be given back already. `Failed` is final.
    pub fn trim(&self, trim: &dyn Fn(Color) -> Option<SeqNum>) -> Result<Reclaimed, SsdError> {
        let mut changes = self.0.changes.lock();
        let done = self.try_trim(&mut changes, trim);
        self.note_failure(&mut changes, &done);
        done
    }

    fn try_trim(&self, changes: &mut Changes, trim: Trims<'_>) -> Result<Reclaimed, SsdError> {
        self.check(changes)?;
        let (mut live, mut dead) = (Vec::new(), Vec::new());
        let mut reclaimed = Reclaimed::default();
        for file in self.snapshot().iter() {
            let index = match self.index_once(file) {
                Ok(index) => index,
                Err(error) => {
                    warn!(%error, "cannot tell what of a file is trimmed");
                    live.push(file.clone());
                    continue;
                }
            };
            // Of a file that goes too: on a full disk the manifest needs the space.
            match file.reclaim(&index, trim) {
                Ok(bytes) => reclaimed.bytes += bytes,
                Err(error) => warn!(file = file.name(), %error, "cannot give space back"),
            }
            let goes = file.all_trimmed(&index, trim);
            if goes { &mut dead } else { &mut live }.push(file.clone());
        }
        if dead.is_empty() {
            return Ok(reclaimed);
        }
        let folder = &self.0.folder;
        let manifest = self.manifest(changes.next_id, &live);
        match manifest.save(&**folder) {
            Err(SsdError::Full { .. }) if changes.spare => {
                changes.spare = false;
                if let Err(error) = folder.remove(SPARE) {
                    warn!(file = path(&**folder, SPARE), %error, "cannot give up the spare file");
                }
                manifest.save(&**folder)?;
            }
            saved => saved?,
        }
        *self.0.files.write() = Arc::new(live);
        for file in dead {
            let id = file.meta().id;
            self.0.indexes.remove(&id);
            reclaimed.bytes += file.meta().bytes - file.given_back();
            reclaimed.files += 1;
            // The manifest does not list it: where this fails, the next open does it.
            if let Err(error) = folder.remove(&file_name(id)) {
                warn!(file = file.name(), %error, "cannot remove a file that is not needed");
            }
        }
        self.put_spare(changes);
        let kept = |color: &Color, highest: &mut SeqNum| trim(*color).is_none_or(|point| point < *highest);
        self.0.highest.write().retain(|color, highest| kept(color, highest));
        Ok(reclaimed)
    }

    /// Reads all of every file and says what is not as it should be, by the file's full path.
    #[must_use]
    pub fn verify(&self, trim: &dyn Fn(Color) -> Option<SeqNum>) -> Vec<(String, Fault)> {
        let faults_of = |file: &Arc<SsdFile>| {
            let name = file.name().to_owned();
            file.verify(trim).into_iter().map(move |fault| (name.clone(), fault))
        };
        self.snapshot().iter().flat_map(faults_of).collect()
    }

    /// How full it is.
    #[must_use]
    pub fn usage(&self) -> TierUsage {
        let highest = self.0.highest.read().capacity() * size_of::<(Color, SeqNum)>();
        let mut usage = TierUsage { index_bytes: highest as u64 + self.0.indexes.weight(), ..TierUsage::default() };
        for file in self.snapshot().iter() {
            usage.files += 1;
            usage.bytes += file.meta().bytes - file.given_back();
            usage.records += file.meta().records;
            usage.index_bytes += file.resident_bytes();
        }
        usage
    }
}

fn raise(highest: &mut FxHashMap<Color, SeqNum>, index: &FileIndex) {
    for row in index.colors() {
        let known = highest.entry(row.color).or_insert(row.last);
        *known = (*known).max(row.last);
    }
}

/// One shard: the indexes are few and large, and a share of the bound would often be too small for one of them.
fn index_cache(bytes: u64) -> IndexCache {
    let mut options = OptionsBuilder::new();
    options.shards(1).estimated_items_capacity(64).weight_capacity(bytes);
    match options.build() {
        Ok(options) => {
            Cache::with_options(options, ByBytes, DefaultHashBuilder::default(), DefaultLifecycle::default())
        }
        Err(_) => Cache::with_weighter(64, bytes, ByBytes),
    }
}
