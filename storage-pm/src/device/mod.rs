//! The byte devices: [`mmap`] on tmpfs, [`mod@file`] on any disk, `pmem2` on persistent memory (in builds with that
//! feature), and [`sim`], which can lose what was not fenced.
//!
//! Each promises what [`flexlog_protocol::media::Device`] asks, and passes the one suite in `tests/devices.rs`. Which of
//! them a folder calls for is [`device_for`]'s to say.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Arc;

use flexlog_protocol::media::{AreaReader, Device, FenceId};
use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags, fstatfs, openat, statx};

pub mod file;
pub mod mmap;
mod persist;
#[cfg(feature = "pmem2")]
pub mod pmem2;
#[cfg(feature = "pmem2")]
mod pmem2_sys;
pub mod sim;

pub use file::FileDevice;
pub use mmap::{Mapping, MmapDevice};
pub use persist::Flush;
pub(crate) use persist::prefetch;
#[cfg(feature = "pmem2")]
pub use pmem2::Pmem2Device;
pub use sim::{Fences, SimDevice, SimMedia, SplitMix};

/// What a file system is, as far as a device cares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FsKind {
    /// tmpfs or ramfs: the file is memory, and gone with the machine.
    Memory,
    /// The file is on memory that persists, mapped without a page cache.
    Dax,
    /// A disk of any kind.
    Disk,
}

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

pub(crate) fn fs_kind(file: &File) -> io::Result<FsKind> {
    let magic = fstatfs(file)?.f_type as u64 & 0xffff_ffff;
    if magic == TMPFS_MAGIC || magic == RAMFS_MAGIC {
        return Ok(FsKind::Memory);
    }
    let dax = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::DAX));
    Ok(if dax { FsKind::Dax } else { FsKind::Disk })
}

/// The devices that a folder can have its area on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// [`MmapDevice`]: memory, does not outlive the machine.
    Mmap,
    /// [`FileDevice`]: a disk.
    File,
    /// `Pmem2Device`: persistent memory, through libpmem2. Only builds with the feature `pmem2` have it.
    Pmem2,
}

/// The name of an area in its folder.
pub(crate) const AREA: &str = "area";

/// The device that suits `folder`, which is there: `Mmap` on tmpfs and ramfs; `Pmem2` where the area in it is (a link
/// to) a character device, and on a DAX file system if this build has it; else `File`.
///
/// # Errors
/// Those of the file system.
pub fn device_for(folder: &Path) -> io::Result<DeviceKind> {
    let area = folder.join(AREA);
    // Asked before it is opened: other special files may wait for a peer.
    let file = match fs::metadata(&area) {
        Ok(found) if found.file_type().is_char_device() => return Ok(DeviceKind::Pmem2),
        Ok(found) if found.is_file() => File::open(&area)?,
        Ok(_) => File::open(folder)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => unnamed_file(folder)?,
        Err(error) => return Err(error),
    };
    Ok(match fs_kind(&file)? {
        FsKind::Memory => DeviceKind::Mmap,
        FsKind::Dax if cfg!(feature = "pmem2") => DeviceKind::Pmem2,
        FsKind::Dax | FsKind::Disk => DeviceKind::File,
    })
}

/// Reads an area through its file.
struct FileReader(Arc<File>);

impl AreaReader for FileReader {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, at)
    }
}

/// A file in `folder` that has no name and goes when it is closed: only regular files say that they are DAX, folders on
/// the same file system do not. Where there can be none this is the folder itself.
fn unnamed_file(folder: &Path) -> io::Result<File> {
    let folder = File::open(folder)?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(openat(&folder, ".", flags, Mode::RUSR | Mode::WUSR).map_or(folder, File::from))
}

/// # Errors
/// Those of [`Pmem2Device::open`].
#[cfg(feature = "pmem2")]
pub(crate) fn open_pmem2(path: &Path) -> io::Result<AnyDevice> {
    Pmem2Device::open(path).map(AnyDevice::Pmem2)
}

/// # Errors
/// `Unsupported`.
#[cfg(not(feature = "pmem2"))]
pub(crate) fn open_pmem2(path: &Path) -> io::Result<AnyDevice> {
    let what = format!(
        "{} needs the pmem2 device, which this build lacks: install libpmem2-dev and pkg-config, and build with \
         `--features pmem2`",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::Unsupported, what))
}

/// The device of a folder, whichever it is.
#[derive(Debug)]
pub enum AnyDevice {
    /// Memory.
    Mmap(MmapDevice),
    /// A disk.
    File(FileDevice),
    /// Persistent memory.
    #[cfg(feature = "pmem2")]
    Pmem2(Pmem2Device),
}

macro_rules! each {
    ($any:expr, $device:ident => $do:expr) => {
        match $any {
            AnyDevice::Mmap($device) => $do,
            AnyDevice::File($device) => $do,
            #[cfg(feature = "pmem2")]
            AnyDevice::Pmem2($device) => $do,
        }
    };
}

impl Device for AnyDevice {
    fn describe(&self) -> String {
        each!(self, device => device.describe())
    }

    #[inline]
    fn len(&self) -> u64 {
        each!(self, device => device.len())
    }

    fn grow(&mut self, len: u64) -> io::Result<()> {
        each!(self, device => device.grow(len))
    }

    #[inline]
    fn write(&mut self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        each!(self, device => device.write(at, parts))
    }

    #[inline]
    fn fence(&mut self) -> io::Result<FenceId> {
        each!(self, device => device.fence())
    }

    #[inline]
    fn fenced(&mut self) -> io::Result<FenceId> {
        each!(self, device => device.fenced())
    }

    fn wait(&mut self, fence: FenceId) -> io::Result<()> {
        each!(self, device => device.wait(fence))
    }

    fn on_fenced(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        each!(self, device => device.on_fenced(wake))
    }

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        each!(self, device => device.read(at, into))
    }

    #[inline]
    fn slice(&self, at: u64, len: usize) -> Option<&[u8]> {
        each!(self, device => device.slice(at, len))
    }

    fn will_read(&self, at: u64, len: u64) {
        each!(self, device => device.will_read(at, len))
    }

    fn reader(&self) -> io::Result<Arc<dyn AreaReader>> {
        each!(self, device => device.reader())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_folder_is_found_without_leaving_anything_in_it() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        assert_eq!(device_for(folder.path()).unwrap(), DeviceKind::Mmap);
        assert!(unnamed_file(folder.path()).unwrap().metadata().unwrap().is_file());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // Nothing can be made in this one, so it is asked itself.
        assert!(unnamed_file(Path::new("/proc/self")).unwrap().metadata().unwrap().is_dir());
        assert_eq!(device_for(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_area_that_is_a_character_device_is_for_pmem2() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        std::os::unix::fs::symlink("/dev/null", folder.path().join(AREA)).unwrap();
        assert_eq!(device_for(folder.path()).unwrap(), DeviceKind::Pmem2);
    }

    #[cfg(not(feature = "pmem2"))]
    #[test]
    fn a_build_without_pmem2_says_how_to_get_it() {
        let error = open_pmem2(Path::new("/x/area")).unwrap_err().to_string();
        assert!(error.starts_with("/x/area ") && error.contains("--features pmem2"), "{error}");
    }
}
