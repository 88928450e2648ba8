//! The byte devices: [`mmap`] on tmpfs, [`mod@file`] on any disk, and [`sim`], which can lose what was not fenced.
//!
//! Each promises what [`flexlog_protocol::media::Device`] asks, and passes the one suite in `tests/devices.rs`. Which of
//! them a folder calls for is [`device_for`]'s to say.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use flexlog_protocol::media::{AreaReader, Device, FenceId};
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, fstatfs, statx};

pub mod file;
pub mod mmap;
mod persist;
pub mod sim;

pub use file::FileDevice;
pub use mmap::{Mapping, MmapDevice};
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
}

/// The device that suits the file system of `folder`, which is there: `Mmap` on tmpfs and ramfs, else `File`.
///
/// # Errors
/// Those of the file system.
pub fn device_for(folder: &Path) -> io::Result<DeviceKind> {
    Ok(match fs_kind(&File::open(folder)?)? {
        FsKind::Memory => DeviceKind::Mmap,
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

/// The device of a folder, whichever it is.
#[derive(Debug)]
pub enum AnyDevice {
    /// Memory.
    Mmap(MmapDevice),
    /// A disk.
    File(FileDevice),
}

macro_rules! each {
    ($any:expr, $device:ident => $do:expr) => {
        match $any {
            AnyDevice::Mmap($device) => $do,
            AnyDevice::File($device) => $do,
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

    fn reader(&self) -> io::Result<Arc<dyn AreaReader>> {
        each!(self, device => device.reader())
    }
}
