//! The `mmap` device: an area on tmpfs, mapped into memory.
//!
//! It stands in for persistent memory: same instructions, same order, but the bytes outlive the process only, not the
//! machine. One mapping of the limit's length is made up front (address space, not memory), so that growing never moves
//! it; what has not been allocated in the file is never touched, so a full tmpfs is an error and not a signal.
//!
//! Writes gather in one line: whole lines are streamed past the cache, and the last, begun one is kept beside so that
//! the next write goes on in it without loading it.
//!
//! Where lines are to be written back by msync (`FLEXLOG_FLUSH=msync`, and processors whose instructions are not known)
//! a fence can fail. That is final: the device then refuses all but reads.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flexlog_protocol::media::{AreaReader, Device, FenceId};
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, fallocate};

use super::persist::{Flush, LINE, Persist};
use super::{FsKind, fs_kind};

/// Pages are faulted in this much at a time, so that no write waits for long.
const CHUNK: u64 = 256 << 10;

/// Writes up to this many bytes are copied and written back, longer ones streamed. Measured on tmpfs, with a fence each:
/// copying takes 160 to 210 ns for 1 to 5 lines where streaming takes 200 to 230, and twice as long as streaming for 18.
const COPIED_UPTO: usize = 256;

/// Address space behind the limit, for a store that cannot be opened without going beyond it.
const BEYOND: u64 = 64 << 20;

const NO_LINE: u64 = u64::MAX;

/// How an area is to be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The bytes that it is to grow to. What asks for much more than that is refused as `StorageFull`.
    pub limit: u64,
    /// Fault in everything when it is allocated, not as it is written. For measurements.
    pub prefault: bool,
}

/// See the module.
#[derive(Debug)]
pub struct MmapDevice {
    path: PathBuf,
    file: File,
    map: MmapRaw,
    len: u64,
    persist: Persist,
    prefault: bool,
    /// Which chunks were faulted in, and the one that was asked for last.
    faulted: Vec<bool>,
    chunk: usize,
    /// The line at `line_at`, as it is in the map. Nothing where `line_at` is [`NO_LINE`].
    line: [u8; LINE],
    line_at: u64,
    /// What msync has to be told of, where that is the way.
    dirty: Option<(u64, u64)>,
    /// What msync said when it failed.
    failed: Option<(io::ErrorKind, String)>,
    fences: u64,
}

impl MmapDevice {
    /// Opens or creates the area at `path`. Lines are written back as `FLEXLOG_FLUSH` says, or else in the best way that
    /// the processor has.
    ///
    /// # Errors
    /// `Unsupported` on a file system that is not in memory; a `FLEXLOG_FLUSH` that is unknown, or that the processor
    /// lacks; and those of the file system.
    pub fn open(path: &Path, options: Mapping) -> io::Result<Self> {
        Self::open_with(path, options, Flush::wanted()?)
    }

    /// As [`MmapDevice::open`], with lines written back in this way.
    ///
    /// # Errors
    /// As [`MmapDevice::open`].
    pub fn open_with(path: &Path, options: Mapping, flush: Flush) -> io::Result<Self> {
        let persist = Persist::new(flush)?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let kind = fs_kind(&file)?;
        if kind != FsKind::Memory {
            let why = if kind == FsKind::Dax {
                "is on a DAX file system: mapping it safely needs MAP_SYNC, which this device lacks; use the pmem2 device, \
                 in a build that has it, or the file device"
            } else {
                "is not on tmpfs or ramfs, so a mapping would not be durable at a memory fence; use the file device"
            };
            return Err(io::Error::new(io::ErrorKind::Unsupported, format!("{} {why}", path.display())));
        }
        let len = file.metadata()?.len();
        // A hole in the file would be filled by the first write to it, and kill the process where the medium is full.
        if len > 0 {
            fallocate(&file, FallocateFlags::empty(), 0, len)?;
        }
        let limit = usize::try_from(options.limit.max(len) + BEYOND).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let map = MmapOptions::new().len(limit).map_raw(&file)?;
        let mut device = Self {
            path: path.to_owned(),
            file,
            map,
            len,
            persist,
            prefault: options.prefault,
            faulted: Vec::new(),
            chunk: usize::MAX,
            line: [0; LINE],
            line_at: NO_LINE,
            dirty: None,
            failed: None,
            fences: 0,
        };
        if device.prefault {
            device.fault_in(0, len);
        }
        Ok(device)
    }

    /// The path of the area.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Streams `bytes`, whole lines to a whole line: nothing but the copy, the raw limit that stores are measured by.
    ///
    /// # Errors
    /// As [`Device::write`], and `InvalidInput` for what is not whole lines.
    #[inline]
    pub fn stream(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(at, bytes.len())?;
        if !at.is_multiple_of(LINE as u64) || !bytes.len().is_multiple_of(LINE) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.line_at = NO_LINE;
        if self.persist.flush() == Flush::Msync {
            self.mark_dirty(at, at + bytes.len() as u64)?;
        }
        // SAFETY: both are whole lines, the range was checked, and `bytes` cannot overlap the mapping, whose slices end
        // before this takes `&mut self`.
        unsafe { self.persist.stream(self.map.as_mut_ptr().add(at as usize), bytes.as_ptr(), bytes.len() / LINE) };
        Ok(())
    }

    fn check(&self, at: u64, len: usize) -> io::Result<()> {
        if at.checked_add(len as u64).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        let what = format!("{} bytes at {at} are beyond the {} of {}", len, self.len, self.path.display());
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, what))
    }

    /// What is refused after a failed msync: nobody knows what the medium holds.
    #[cold]
    fn refused(&self) -> io::Error {
        let (kind, what) = self.failed.clone().unwrap_or((io::ErrorKind::Other, "the device failed".to_owned()));
        io::Error::new(kind, what)
    }

    /// Only msync fails, so whoever writes lines back need not ask.
    #[inline]
    fn check_usable(&self) -> io::Result<()> {
        if self.failed.is_none() { Ok(()) } else { Err(self.refused()) }
    }

    fn mark_dirty(&mut self, at: u64, end: u64) -> io::Result<()> {
        self.check_usable()?;
        let (from, to) = self.dirty.unwrap_or((at, end));
        self.dirty = Some((from.min(at), to.max(end)));
        Ok(())
    }

    #[cold]
    fn msync(&mut self) -> io::Result<()> {
        self.check_usable()?;
        let Some((from, to)) = self.dirty.take() else { return Ok(()) };
        if let Err(error) = self.map.flush_range(from as usize, (to - from) as usize) {
            self.failed = Some((error.kind(), format!("{}: msync: {error}", self.path.display())));
            return Err(self.refused());
        }
        Ok(())
    }

    /// Faults in the pages of a range. Where that fails, the writes themselves do it, one page at a time.
    fn fault_in(&mut self, from: u64, to: u64) {
        let to = to.min(self.len);
        if to > from {
            let _ = self.map.advise_range(Advice::PopulateWrite, from as usize, (to - from) as usize);
        }
    }

    #[cold]
    fn enter_chunk(&mut self, chunk: usize) {
        if self.faulted.len() <= chunk {
            self.faulted.resize(chunk + 1, false);
        }
        if !std::mem::replace(&mut self.faulted[chunk], true) {
            self.fault_in(chunk as u64 * CHUNK, (chunk as u64 + 1) * CHUNK);
        }
        self.chunk = chunk;
    }

    /// Copies what the map holds at `from`, up to the end of that line, into the same place of the kept line.
    fn load_line(&mut self, from: u64) {
        let within = (from % LINE as u64) as usize;
        // SAFETY: the caller checked that the line begins below `len`; the file and the mapping are whole pages.
        let held = unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(from as usize), LINE - within) };
        self.line[within..].copy_from_slice(held);
    }

    fn stream_line(&mut self, to: u64) {
        // SAFETY: `to` is a multiple of 64, the line begins in the checked range, and the mapping is whole pages.
        unsafe { self.persist.stream(self.map.as_mut_ptr().add(to as usize), self.line.as_ptr(), 1) };
        self.line_at = to;
    }

    #[inline]
    fn write_streamed(&mut self, at: u64, parts: &[&[u8]]) {
        // Bytes of the kept line that are as they shall be, and where that line goes.
        let mut filled = (at % LINE as u64) as usize;
        let mut to = at - filled as u64;
        // Whether the rest of the kept line is known too.
        let mut whole = self.line_at == to;
        if filled > 0 && !whole {
            self.load_line(to);
            whole = true;
        }
        for part in parts {
            let mut part = *part;
            while !part.is_empty() {
                if filled == 0 && part.len() >= LINE {
                    let lines = part.len() / LINE;
                    // SAFETY: `to` is a multiple of 64, the lines are within the checked range and within `part`, which
                    // cannot overlap the mapping: slices of it end before `write` takes `&mut self`.
                    unsafe { self.persist.stream(self.map.as_mut_ptr().add(to as usize), part.as_ptr(), lines) };
                    to += (lines * LINE) as u64;
                    part = &part[lines * LINE..];
                    whole = false;
                    self.line_at = NO_LINE;
                    continue;
                }
                let n = part.len().min(LINE - filled);
                self.line[filled..filled + n].copy_from_slice(&part[..n]);
                filled += n;
                part = &part[n..];
                if filled == LINE {
                    self.stream_line(to);
                    to += LINE as u64;
                    filled = 0;
                    whole = false;
                }
            }
        }
        if filled > 0 {
            if !whole {
                self.load_line(to + filled as u64);
            }
            self.stream_line(to);
        }
    }

    fn write_copied(&mut self, at: u64, parts: &[&[u8]], total: usize) {
        let mut to = at;
        for part in parts {
            // SAFETY: the range was checked; `part` cannot overlap the mapping, as in `write_streamed`.
            unsafe {
                let to = self.map.as_mut_ptr().add(to as usize);
                std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
            }
            to += part.len() as u64;
        }
        // SAFETY: the range was checked.
        unsafe { self.persist.write_back(self.map.as_ptr().add(at as usize), total) };
        self.line_at = NO_LINE;
    }
}

impl Device for MmapDevice {
    fn describe(&self) -> String {
        format!("mmap on tmpfs, {} (does not outlive the machine)", self.persist.flush().name())
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn grow(&mut self, len: u64) -> io::Result<()> {
        self.check_usable()?;
        if len <= self.len {
            return Ok(());
        }
        if len > self.map.len() as u64 {
            let what = format!("{} may not grow beyond {} bytes", self.path.display(), self.map.len());
            return Err(io::Error::new(io::ErrorKind::StorageFull, what));
        }
        fallocate(&self.file, FallocateFlags::empty(), self.len, len - self.len)?;
        let from = self.len;
        self.len = len;
        if self.prefault {
            self.fault_in(from, len);
        }
        Ok(())
    }

    #[inline]
    fn write(&mut self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        let total = parts.iter().map(|part| part.len()).sum();
        self.check(at, total)?;
        if total == 0 {
            return Ok(());
        }
        let end = at + total as u64;
        let chunk = ((end - 1) / CHUNK) as usize;
        if chunk != self.chunk && !self.prefault {
            self.enter_chunk(chunk);
        }
        if self.persist.flush() == Flush::Msync {
            self.mark_dirty(at, end)?;
        }
        if total <= COPIED_UPTO {
            self.write_copied(at, parts, total);
        } else {
            self.write_streamed(at, parts);
        }
        Ok(())
    }

    #[inline]
    fn fence(&mut self) -> io::Result<FenceId> {
        // Before msync too: what was streamed may still be on its way to the memory that msync reads.
        self.persist.fence();
        if self.persist.flush() == Flush::Msync {
            self.msync()?;
        }
        self.fences += 1;
        Ok(FenceId(self.fences))
    }

    #[inline]
    fn fenced(&mut self) -> io::Result<FenceId> {
        self.check_usable()?;
        Ok(FenceId(self.fences))
    }

    fn wait(&mut self, _fence: FenceId) -> io::Result<()> {
        self.check_usable()
    }

    fn on_fenced(&mut self, _wake: Box<dyn Fn() + Send + Sync>) {
        // A fence is done when `fence` returns, so there is nothing to call for.
    }

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.check(at, into.len())?;
        // SAFETY: the range was checked, and nobody writes to it while `self` is borrowed.
        into.copy_from_slice(unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(at as usize), into.len()) });
        Ok(())
    }

    #[inline]
    fn slice(&self, at: u64, len: usize) -> Option<&[u8]> {
        self.check(at, len).ok()?;
        // SAFETY: the range was checked. Writing takes `&mut self`, so the bytes do not change while the slice lives;
        // other processes are kept out by the lock on the store's folder.
        Some(unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(at as usize), len) })
    }

    fn will_read(&self, at: u64, len: u64) {
        let len = len.min(self.len.saturating_sub(at));
        if len > 0 {
            // Where this is not possible, each page is faulted in when it is read: slower, and as good.
            let _ = self.map.advise_range(Advice::PopulateRead, at as usize, len as usize);
        }
    }

    fn reader(&self) -> io::Result<Arc<dyn AreaReader>> {
        // The file and the mapping are the same pages, and reading the file needs no promise about who writes where.
        Ok(Arc::new(super::FileReader(Arc::new(self.file.try_clone()?))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_msync_is_final_but_for_reads() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let mapping = Mapping { limit: 1 << 20, prefault: false };
        let mut device = MmapDevice::open_with(&folder.path().join("area"), mapping, Flush::Msync).unwrap();
        device.grow(8192).unwrap();
        device.write(100, &[b"durable"]).unwrap();
        assert_eq!(device.dirty, Some((100, 107)));
        assert_eq!(device.fence().unwrap(), FenceId(1));
        assert_eq!(device.dirty, None);
        device.write(200, &[b"lost"]).unwrap();
        // No write makes this: it is what a call that the kernel turns down looks like.
        device.dirty = Some((0, u64::MAX / 2));
        let error = device.fence().unwrap_err();
        assert!(error.to_string().contains("area: msync"), "{error}");
        for refused in [
            device.fence().map(drop),
            device.fenced().map(drop),
            device.wait(FenceId(1)),
            device.write(0, &[b"x"]),
            device.grow(16384),
        ] {
            assert_eq!(refused.unwrap_err().to_string(), error.to_string());
        }
        let mut read = [0; 7];
        device.read(100, &mut read).unwrap();
        assert_eq!(&read, b"durable");
    }
}
