//! The `pmem2` device: an area on persistent memory, through libpmem2.
//!
//! The area is a file on a DAX file system, or a devdax device. libpmem2 maps it (with MAP_SYNC, for a file), finds out
//! what a store needs to be durable, and hands out the functions that do it: the line written back, or nothing where
//! the caches outlive the power too. Where it would take an msync the area is refused: libpmem2 ends the process when
//! one fails.
//!
//! A file is allocated before it is mapped, so a full medium is an error and not a signal. Growing maps it anew; nobody
//! holds a slice of the old mapping then, as growing takes `&mut self`. A devdax device is as long as it is.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use flexlog_protocol::media::{AreaReader, Device, FenceId};
use rustix::fs::{FallocateFlags, fallocate};

use super::persist::LINE;
use super::pmem2_sys as sys;
use super::{FsKind, fs_kind};

/// Whole lines of a part are streamed where they are more bytes than this; all else is copied, and written back together
/// with its neighbours. It is where libpmem2 itself begins to stream.
const COPIED_UPTO: usize = 256;

const OUTLIVES: &str = "outlives the machine";

/// What is mapped for a moment to find out whether an empty file can be.
const PROBE: u64 = 4096;

/// What a store needs, to be durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Granularity {
    /// Nothing but to be done.
    Byte,
    /// Its line written back.
    CacheLine,
}

fn error(what: &str, code: c_int) -> io::Error {
    // SAFETY: the library returns a string of this thread, which is copied before the next call.
    let said = unsafe {
        let said = sys::pmem2_errormsg();
        if said.is_null() { String::new() } else { CStr::from_ptr(said).to_string_lossy().into_owned() }
    };
    let kind = match code {
        sys::E_GRANULARITY_NOT_SUPPORTED => {
            let why = "libpmem2 can map it with the granularity PAGE only: each fence would be an msync, and one that \
                       fails would end the process; use the file device, which serves such a disk";
            return io::Error::new(io::ErrorKind::Unsupported, format!("{what}: {why} ({said})"));
        }
        sys::E_INVALID_FILE_TYPE => io::ErrorKind::Unsupported,
        code if code < 0 && code > sys::E_FIRST => io::Error::from_raw_os_error(-code).kind(),
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("{what}: libpmem2 says: {said} ({code})"))
}

/// 0, or what went wrong.
fn check(what: &str, code: c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(error(what, code)) }
}

struct Config(*mut sys::Config);

impl Config {
    fn new(what: &str) -> io::Result<Self> {
        let mut config = null_mut();
        // SAFETY: the library writes a pointer to where it is told.
        check(what, unsafe { sys::pmem2_config_new(&mut config) })?;
        let config = Self(config);
        // SAFETY: the config is one that the library made.
        let set = unsafe { sys::pmem2_config_set_required_store_granularity(config.0, sys::GRANULARITY_CACHE_LINE) };
        check(what, set).map(|()| config)
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        // SAFETY: the config is one that the library made, and nobody else has it.
        unsafe { sys::pmem2_config_delete(&mut self.0) };
    }
}

struct Source(*mut sys::Source);

impl Source {
    /// The source uses the file's descriptor, so it must go before the file.
    fn new(file: &File, what: &str) -> io::Result<Self> {
        let mut source = null_mut();
        // SAFETY: the library writes a pointer to where it is told.
        check(what, unsafe { sys::pmem2_source_from_fd(&mut source, file.as_raw_fd()) })?;
        Ok(Self(source))
    }

    fn size(&self, what: &str) -> io::Result<u64> {
        let mut bytes = 0;
        // SAFETY: the source is one that the library made; it writes a number to where it is told.
        check(what, unsafe { sys::pmem2_source_size(self.0, &mut bytes) })?;
        Ok(bytes as u64)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // SAFETY: the source is one that the library made, and nobody else has it.
        unsafe { sys::pmem2_source_delete(&mut self.0) };
    }
}

/// A mapping of the whole area, as long as it was when it was mapped.
#[derive(Debug)]
struct Map {
    map: NonNull<sys::Map>,
    at: NonNull<u8>,
    granularity: Granularity,
    flush: sys::FlushFn,
    drain: sys::DrainFn,
    memcpy: sys::MemcpyFn,
}

// SAFETY: the mapping belongs to the process and not to a thread, and libpmem2's functions may be called from any.
// Through a shared one bytes can only be read; writing is unsafe, and its caller answers for who else reads.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps all of `file`, which has `len` bytes or more, and all of them allocated.
    fn new(file: &File, len: u64, what: &str) -> io::Result<Self> {
        let config = Config::new(what)?;
        let source = Source::new(file, what)?;
        let mut map = null_mut();
        // SAFETY: config and source are the library's own; it writes a pointer to where it is told.
        check(what, unsafe { sys::pmem2_map_new(&mut map, config.0, source.0) })?;
        let lacks = |lacking: &str| io::Error::other(format!("{what}: libpmem2 mapped it without {lacking}"));
        let map = NonNull::new(map).ok_or_else(|| lacks("saying where"))?;
        // SAFETY: the map is one that the library made, and is not deleted before the last of these.
        let mapped = unsafe {
            let at = NonNull::new(sys::pmem2_map_get_address(map.as_ptr()).cast::<u8>());
            let functions = (
                sys::pmem2_get_flush_fn(map.as_ptr()),
                sys::pmem2_get_drain_fn(map.as_ptr()),
                sys::pmem2_get_memcpy_fn(map.as_ptr()),
            );
            let granularity = match sys::pmem2_map_get_store_granularity(map.as_ptr()) {
                sys::GRANULARITY_BYTE => Some(Granularity::Byte),
                sys::GRANULARITY_CACHE_LINE => Some(Granularity::CacheLine),
                _ => None,
            };
            let size = sys::pmem2_map_get_size(map.as_ptr());
            match (at, functions, granularity) {
                (Some(at), (Some(flush), Some(drain), Some(memcpy)), Some(granularity)) if size as u64 >= len => {
                    Some(Self { map, at, granularity, flush, drain, memcpy })
                }
                _ => None,
            }
        };
        mapped.ok_or_else(|| {
            let mut map = map.as_ptr();
            // SAFETY: the map is the library's, and nobody has it.
            unsafe { sys::pmem2_map_delete(&mut map) };
            lacks("all of its bytes, its functions or the granularity that was asked for")
        })
    }

    /// Copies `parts`, one after the other, to `at`; durable once [`Map::drain`] returned.
    ///
    /// # Safety
    /// The range is within the mapping, and nobody reads or writes it meanwhile.
    unsafe fn copy(&self, at: usize, parts: &[&[u8]]) {
        // What was copied and has to be written back.
        let (mut from, mut to) = (at, at);
        for part in parts {
            // Only whole lines are streamed: a line that is copied and streamed costs both.
            let head = to.next_multiple_of(LINE) - to;
            let streamed = part.len().saturating_sub(head) / LINE * LINE;
            let (head, rest) = if streamed > COPIED_UPTO { part.split_at(head) } else { (*part, &[][..]) };
            // SAFETY: the caller's promise. `part` cannot overlap the mapping, where nobody else has a slice.
            unsafe {
                self.copy_plainly(&mut to, head);
                if !rest.is_empty() {
                    self.write_back(from, to);
                    let flags = sys::F_MEM_NODRAIN | sys::F_MEM_NONTEMPORAL;
                    (self.memcpy)(self.at.as_ptr().add(to).cast(), rest.as_ptr().cast(), streamed, flags);
                    to += streamed;
                    from = to;
                    self.copy_plainly(&mut to, &rest[streamed..]);
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.write_back(from, to) };
    }

    /// # Safety
    /// As [`Map::copy`].
    unsafe fn copy_plainly(&self, to: &mut usize, bytes: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.as_ptr().add(*to), bytes.len()) };
        *to += bytes.len();
    }

    /// # Safety
    /// The range is within the mapping.
    unsafe fn write_back(&self, from: usize, to: usize) {
        if from < to {
            // SAFETY: the caller's promise; at granularity `Byte` the function does nothing.
            unsafe { (self.flush)(self.at.as_ptr().add(from).cast(), to - from) };
        }
    }

    /// The memory fence.
    fn drain(&self) {
        // SAFETY: it touches no memory of ours.
        unsafe { (self.drain)() };
    }

    /// # Safety
    /// The range is within the mapping, and nobody writes to it while the slice is there.
    unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(at), len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let mut map = self.map.as_ptr();
        // SAFETY: the map is one that the library made; slices of it borrow `self`, so there are none.
        unsafe { sys::pmem2_map_delete(&mut map) };
    }
}

/// See the module.
#[derive(Debug)]
pub struct Pmem2Device {
    path: PathBuf,
    file: File,
    /// What it is, for people.
    medium: String,
    /// A devdax device does not grow.
    fixed: bool,
    /// `None` while the area is empty. Shared, so that a reader of durable bytes can keep the mapping that it reads from
    /// while the area grows.
    map: Option<Arc<Map>>,
    len: u64,
    fences: u64,
}

impl Pmem2Device {
    /// Opens or creates the area at `path`: a file on a DAX file system, or (a link to) a devdax device.
    ///
    /// # Errors
    /// `Unsupported` where libpmem2 cannot promise durability without msync, and for other kinds of files; those of
    /// libpmem2 and of the file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let what = path.display().to_string();
        let is_new = !path.try_exists()?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let metadata = file.metadata()?;
        let fixed = metadata.file_type().is_char_device();
        if !fixed && !metadata.is_file() {
            let what = format!("{what} is neither a file nor a devdax device");
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        let len = if fixed { Source::new(&file, &what)?.size(&what)? } else { metadata.len() };
        if !fixed {
            // A hole in the file would be filled by the first write to it, and kill the process where there is no room.
            allocate(&file, 0, if len == 0 { PROBE } else { len }, &what)?;
        }
        let map = Map::new(&file, len, &what).inspect_err(|_| {
            // The file shall be as it was; the error that counts is the one above.
            if len == 0 && !fixed {
                let _ = file.set_len(0);
                if is_new {
                    let _ = std::fs::remove_file(path);
                }
            }
        })?;
        let medium = medium(&file, fixed, map.granularity)?;
        let map = if len == 0 {
            drop(map);
            file.set_len(0)?;
            None
        } else {
            Some(Arc::new(map))
        };
        if is_new && let Some(folder) = path.parent() {
            // The bytes are the device's business, and so is the name that they are found by.
            File::open(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })?.sync_all()?;
        }
        Ok(Self { path: path.to_owned(), file, medium, fixed, map, len, fences: 0 })
    }

    fn check(&self, at: u64, len: usize) -> io::Result<()> {
        if at.checked_add(len as u64).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        let what = format!("{len} bytes at {at} are beyond the {} of {}", self.len, self.path.display());
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, what))
    }
}

fn allocate(file: &File, from: u64, to: u64, what: &str) -> io::Result<()> {
    fallocate(file, FallocateFlags::empty(), from, to - from).map_err(|error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("{what}: cannot allocate {to} bytes: {error}"))
    })
}

/// What the area is on and what that promises, for people.
fn medium(file: &File, is_device: bool, granularity: Granularity) -> io::Result<String> {
    let granularity = match granularity {
        Granularity::Byte => "byte",
        Granularity::CacheLine => "cache line",
    };
    // Whoever sets this says what libpmem2 cannot find, and may be wrong.
    let forced = std::env::var_os("PMEM2_FORCE_GRANULARITY").is_some();
    let (on, promise) = match (is_device, fs_kind(file)?) {
        (true, _) => ("a devdax device", OUTLIVES),
        (false, FsKind::Memory) => ("tmpfs", "does not outlive the machine"),
        (false, FsKind::Disk) if forced => ("the page cache of a disk", "does not outlive the machine"),
        // Older kernels do not say that a file is DAX; that it was mapped with MAP_SYNC does.
        (false, FsKind::Dax | FsKind::Disk) => ("a DAX file", OUTLIVES),
    };
    let (forced, condition) = match (forced, promise) {
        (true, OUTLIVES) => (", forced by PMEM2_FORCE_GRANULARITY", " if that is true"),
        (true, _) => (", forced by PMEM2_FORCE_GRANULARITY", ""),
        (false, _) => ("", ""),
    };
    Ok(format!("pmem2 on {on}, granularity {granularity}{forced} ({promise}{condition})"))
}

impl Device for Pmem2Device {
    fn describe(&self) -> String {
        self.medium.clone()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn grow(&mut self, len: u64) -> io::Result<()> {
        if len <= self.len {
            return Ok(());
        }
        let what = self.path.display().to_string();
        if self.fixed {
            let what = format!("{what} is a device of {} bytes and cannot grow to {len}", self.len);
            return Err(io::Error::new(io::ErrorKind::StorageFull, what));
        }
        allocate(&self.file, self.len, len, &what)?;
        // MAP_SYNC makes durable where the blocks are, but not how long the file is.
        self.file.sync_data()?;
        self.map = Some(Arc::new(Map::new(&self.file, len, &what)?));
        self.len = len;
        Ok(())
    }

    fn write(&mut self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.check(at, parts.iter().map(|part| part.len()).sum())?;
        if let Some(map) = &self.map {
            // SAFETY: the range was checked, and `len` is within the mapping. Slices of it end before this takes
            // `&mut self`, and other processes are kept out by the lock on the store's folder.
            unsafe { map.copy(at as usize, parts) };
        }
        Ok(())
    }

    fn fence(&mut self) -> io::Result<FenceId> {
        if let Some(map) = &self.map {
            map.drain();
        }
        self.fences += 1;
        Ok(FenceId(self.fences))
    }

    fn fenced(&mut self) -> io::Result<FenceId> {
        Ok(FenceId(self.fences))
    }

    fn wait(&mut self, _fence: FenceId) -> io::Result<()> {
        Ok(())
    }

    fn on_fenced(&mut self, _wake: Box<dyn Fn() + Send + Sync>) {
        // A fence is done when `fence` returns, so there is nothing to call for.
    }

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.check(at, into.len())?;
        if let Some(bytes) = self.slice(at, into.len()) {
            into.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn slice(&self, at: u64, len: usize) -> Option<&[u8]> {
        self.check(at, len).ok()?;
        // SAFETY: the range was checked, and `len` is within the mapping. Writing takes `&mut self`, so the bytes do not
        // change while the slice lives.
        self.map.as_ref().map_or(Some(&[]), |map| Some(unsafe { map.bytes(at as usize, len) }))
    }

    fn reader(&self) -> io::Result<Arc<dyn AreaReader>> {
        match &self.map {
            // A device file cannot be read, only mapped.
            Some(map) if self.fixed => Ok(Arc::new(MapReader { map: Arc::clone(map), len: self.len })),
            _ => Ok(Arc::new(super::FileReader(Arc::new(self.file.try_clone()?)))),
        }
    }
}

/// Reads a device file through the mapping.
struct MapReader {
    map: Arc<Map>,
    len: u64,
}

impl AreaReader for MapReader {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        if at.checked_add(into.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the range was checked, the mapping lives as long as `self`, and the caller promises that nobody writes
        // to these bytes meanwhile.
        into.copy_from_slice(unsafe { self.map.bytes(at as usize, into.len()) });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_area_and_keep_their_kind() {
        for (code, kind) in [
            (-28, io::ErrorKind::StorageFull),
            (-12, io::ErrorKind::OutOfMemory),
            (-13, io::ErrorKind::PermissionDenied),
            (sys::E_GRANULARITY_NOT_SUPPORTED, io::ErrorKind::Unsupported),
            (sys::E_INVALID_FILE_TYPE, io::ErrorKind::Unsupported),
            (sys::E_FIRST, io::ErrorKind::Other),
        ] {
            let error = error("/x/area", code);
            assert_eq!(error.kind(), kind, "{code}");
            assert!(error.to_string().starts_with("/x/area: "), "{error}");
        }
        assert!(check("/x/area", 0).is_ok() && check("/x/area", -28).is_err());
    }
}
