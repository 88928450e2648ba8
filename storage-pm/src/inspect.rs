//! Looking into a replica's folder without touching it: what is in it, and whether all of it is as it was written.
//!
//! [`inspect`] works on any folder, one that another process writes and one that is damaged too: it opens files for reading
//! only, makes and removes nothing, and goes on behind damage as far as it can. [`verify`] reads every byte that means
//! something, and so needs a folder that nobody writes. Both rely on what recovery relies on (`recover`): what
//! they call damaged is what it would refuse, and what it would not look at. What they promise is that nothing changed,
//! and that damage is told with its file and its byte.

mod area;
mod numbers;
mod report;
mod ssd;
mod twice;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flexlog_protocol::media::{AreaReader, Device, FenceId};
use rustix::fs::{FlockOperation, flock};

use crate::device::AREA;
use crate::ssd::{DirFolder, Folder, Reading, Writing};

pub use area::list_entries;
pub use report::{
    Checkpoint, ColorReport, EntryLine, Finding, Identity, KINDS, LogEnd, Numbers, Report, SegmentReport, SegmentState,
    SsdFileReport, SsdReport, SuperblockCopy,
};

/// How often an area that is being written is read again where what was read does not fit together.
const ATTEMPTS: usize = 5;

/// Why a folder cannot be looked into.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// There is no area.
    #[error("{} is not the folder of a replica: it has no file `area`. Name a replica's folder, or the folder of its cluster", path.display())]
    NotAReplica {
        /// The folder.
        path: PathBuf,
    },
    /// The area is a device.
    #[error("{} is a device, not a file: copy it into a file named `area` in a folder of its own, and look at that", path.display())]
    Device {
        /// The area.
        path: PathBuf,
    },
    /// Another process writes it.
    #[error("{} is in use by another process: stop that one first, or look at it with `inspect`", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// How thorough a look is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// Everything in the area; of the SSD files what says what is in them.
    Contents,
    /// Every byte that means something.
    Everything,
}

/// Says what is in a replica's folder. `ssd`: where its SSD files are, if not in the folder `ssd` in it.
///
/// Where another process uses the folder, what it writes meanwhile is left out, and nothing of it is called damage.
///
/// # Errors
/// See [`InspectError`]; never `InUse`. Damage is no error, it is in the report.
pub fn inspect(folder: &Path, ssd: Option<&Path>) -> Result<Report, InspectError> {
    let area = Area::open(folder)?;
    // Not held: whoever wants to start a replica here may.
    let in_use = Quiet::of(folder)?.is_none();
    let ssd = SsdFolder::of(folder, ssd);
    if !in_use {
        return Ok(examine(&area, &area.name, ssd.as_folder(), Depth::Contents));
    }
    let mut attempt = 1;
    loop {
        let mut report = examine_with(&area.again()?, &area.name, ssd.as_folder(), Depth::Contents, true);
        if report.is_sound() || attempt == ATTEMPTS {
            report.in_use = true;
            report.soften();
            return Ok(report);
        }
        attempt += 1;
    }
}

/// Reads all of a replica's folder and says what is not as it should be: see [`Report::faults`]. As long as this takes, no
/// process can start to use the folder.
///
/// # Errors
/// See [`InspectError`]. Damage is no error, it is in the report.
pub fn verify(folder: &Path, ssd: Option<&Path>) -> Result<Report, InspectError> {
    let area = Area::open(folder)?;
    let Some(_quiet) = Quiet::of(folder)? else { return Err(InspectError::InUse { path: folder.to_owned() }) };
    let ssd = SsdFolder::of(folder, ssd);
    Ok(examine(&area, &area.name, ssd.as_folder(), Depth::Everything))
}

/// Calls `each` with every entry of the log of a replica's folder, in the order of the log, until it says no.
///
/// # Errors
/// Those of [`inspect`], and of reading.
pub fn entries(folder: &Path, report: &Report, each: &mut dyn FnMut(&EntryLine) -> bool) -> Result<(), InspectError> {
    let area = Area::open(folder)?;
    list_entries(&area, report, each).map_err(|source| InspectError::Io { path: folder.join(AREA), source })
}

/// The same of an area on `device`, called `what` towards people, which nobody writes.
#[must_use]
pub fn examine<D: Device>(device: &D, what: &str, ssd: Option<&dyn Folder>, depth: Depth) -> Report {
    examine_with(device, what, ssd, depth, false)
}

fn examine_with<D: Device>(device: &D, what: &str, ssd: Option<&dyn Folder>, depth: Depth, live: bool) -> Report {
    let mut report = Report::new(what, device.len());
    let Some(superblock) = area::superblocks(device, &mut report) else { return report };
    // What a file holds left the area only after the manifest named it. So the manifest is read first to tell what moved,
    // and again behind the area, where it may have changed.
    let mut tier = ssd::Tier::load(ssd, &superblock, &mut report);
    let log = area::log(device, &superblock, &tier, live, &mut report);
    if live && tier.changed(ssd, &superblock) {
        report.fault(tier.manifest(), None, "the files changed while they were looked at");
    }
    tier.open_files(ssd, &superblock, &log, depth, &mut report);
    log.damaged_records(&tier, depth == Depth::Everything, &mut report);
    if depth == Depth::Everything {
        tier.damaged_records(&log, &mut report);
        let twice = log.check_against(&tier, &mut report);
        if !twice.is_empty()
            && let Err(error) = twice::compare(device, &superblock, &twice, std::mem::take(&mut tier.sums), &mut report)
        {
            report.fault(what, None, error.to_string());
        }
    }
    log.colors(&tier, &mut report);
    report
}

/// A folder that no process writes. As long as this lives none begins to.
struct Quiet {
    _lock: Option<File>,
}

impl Quiet {
    /// `None`: it is in use.
    fn of(folder: &Path) -> Result<Option<Self>, InspectError> {
        let path = folder.join("lock");
        let io = |source| InspectError::Io { path: path.clone(), source };
        let file = match OpenOptions::new().read(true).open(&path) {
            Ok(file) => file,
            // Whoever used it would have made the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(Self { _lock: None })),
            Err(error) => return Err(io(error)),
        };
        // A shared lock changes nothing in the file system, and does not disturb a process that has the other one.
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(Some(Self { _lock: Some(file) })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(io(error.into())),
        }
    }
}

/// An area that is only read.
#[derive(Debug)]
struct Area {
    file: Arc<File>,
    name: String,
    path: PathBuf,
    len: u64,
}

impl Area {
    fn open(folder: &Path) -> Result<Self, InspectError> {
        let path = folder.join(AREA);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound || error.kind() == io::ErrorKind::NotADirectory => {
                return Err(InspectError::NotAReplica { path: folder.to_owned() });
            }
            Err(source) => return Err(InspectError::Io { path, source }),
        };
        Self { file: Arc::new(file), name: path.display().to_string(), path, len: 0 }.again()
    }

    /// The same with the length that it has now.
    fn again(&self) -> Result<Self, InspectError> {
        let Self { file, name, path, .. } = self;
        let found = file.metadata().map_err(|source| InspectError::Io { path: path.clone(), source })?;
        if !found.is_file() {
            return Err(InspectError::Device { path: path.clone() });
        }
        Ok(Self { file: Arc::clone(file), name: name.clone(), path: path.clone(), len: found.len() })
    }
}

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "it was opened to be looked at, not to be changed")
}

impl AreaReader for Area {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }
}

impl Device for Area {
    fn describe(&self) -> String {
        "file that is only read".to_owned()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn grow(&mut self, _len: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn write(&mut self, _at: u64, _parts: &[&[u8]]) -> io::Result<()> {
        Err(read_only())
    }

    fn fence(&mut self) -> io::Result<FenceId> {
        Err(read_only())
    }

    fn fenced(&mut self) -> io::Result<FenceId> {
        Err(read_only())
    }

    fn wait(&mut self, _fence: FenceId) -> io::Result<()> {
        Err(read_only())
    }

    fn on_fenced(&mut self, _wake: Box<dyn Fn() + Send + Sync>) {}

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        AreaReader::read(self, at, into)
    }

    fn slice(&self, _at: u64, _len: usize) -> Option<&[u8]> {
        None
    }

    fn reader(&self) -> io::Result<Arc<dyn AreaReader>> {
        Err(read_only())
    }
}

/// Where the SSD files are, if there is such a folder: only read.
#[derive(Debug)]
struct SsdFolder(Option<DirFolder>);

impl SsdFolder {
    fn of(folder: &Path, ssd: Option<&Path>) -> Self {
        let path = ssd.map_or_else(|| folder.join("ssd"), Path::to_owned);
        Self(path.is_dir().then(|| DirFolder::new(path)))
    }

    fn as_folder(&self) -> Option<&dyn Folder> {
        self.0.is_some().then_some(self as &dyn Folder)
    }

    fn inner(&self) -> io::Result<&DirFolder> {
        self.0.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Folder for SsdFolder {
    fn describe(&self) -> String {
        self.0.as_ref().map(DirFolder::describe).unwrap_or_default()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.inner()?.list()
    }

    fn create(&self, _name: &str) -> io::Result<Box<dyn Writing>> {
        Err(read_only())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn Reading>> {
        Ok(Arc::new(File::open(self.inner()?.path().join(name))?))
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn sync(&self) -> io::Result<()> {
        Err(read_only())
    }
}
