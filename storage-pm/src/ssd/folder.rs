//! The file system as the SSD tier uses it: a folder of files that are appended to once and read from then on.
//!
//! [`Folder`] is small enough to be simulated whole ([`crate::ssd::sim`]), so that every crash a real file system allows
//! can be tried. [`DirFolder`] is the real one. What both promise is what POSIX promises: data is durable after
//! [`Writing::sync`], a name after [`Folder::sync`], and a rename replaces its target at once or not at all.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};

/// A folder of files. Names are plain: no separators in them.
pub trait Folder: Send + Sync + Debug {
    /// The full path, for messages.
    fn describe(&self) -> String;

    /// The names of the files that are there, in no particular order.
    ///
    /// # Errors
    /// Those of the file system.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes an empty file of this name, in place of one that is there.
    ///
    /// # Errors
    /// Those of the file system, `StorageFull` and `QuotaExceeded` among them.
    fn create(&self, name: &str) -> io::Result<Box<dyn Writing>>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// `NotFound`, and those of the file system.
    fn open(&self, name: &str) -> io::Result<Arc<dyn Reading>>;

    /// Gives a file another name, in place of a file that has it. After a crash the target is the old file or the new.
    ///
    /// # Errors
    /// Those of the file system; both names are then as they were.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Those who have it open can still read it.
    ///
    /// # Errors
    /// `NotFound`, and those of the file system.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes durable which names there are, and which file each of them is.
    ///
    /// # Errors
    /// Those of the file system. They are final: what was lost cannot be told.
    fn sync(&self) -> io::Result<()>;
}

/// A file that is being written.
pub trait Writing: Send {
    /// Writes at the end.
    ///
    /// # Errors
    /// Those of the file system; a part may have been written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes durable all that was written.
    ///
    /// # Errors
    /// Those of the file system. They are final: nothing of this file may be relied on.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file that is written no more.
pub trait Reading: Send + Sync + Debug {
    /// Its bytes.
    ///
    /// # Errors
    /// Those of the file system.
    fn len(&self) -> io::Result<u64>;

    /// Whether it has no bytes.
    ///
    /// # Errors
    /// As [`Reading::len`].
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `into` with the bytes at `at`.
    ///
    /// # Errors
    /// Those of the file system, and `UnexpectedEof` beyond the end.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()>;

    /// Gives back the space of whole pages (4096 bytes) of the file, which read as zeros from then on; its length stays.
    ///
    /// # Errors
    /// `Unsupported` where the file system cannot, or the file may not be written: leave it then.
    fn punch(&self, at: u64, len: u64) -> io::Result<()>;
}

/// A folder of a real file system.
#[derive(Debug)]
pub struct DirFolder {
    path: PathBuf,
}

impl DirFolder {
    /// The folder at `path`, which is there.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Folder for DirFolder {
    fn describe(&self) -> String {
        self.path.display().to_string()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            // What has a name that is no text, or is no file, is not ours.
            if let (true, Ok(name)) = (entry.file_type()?.is_file(), entry.file_name().into_string()) {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Writing>> {
        Ok(Box::new(File::create(self.path.join(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn Reading>> {
        let path = self.path.join(name);
        // Punching needs a file that may be written; reading does not.
        let file = OpenOptions::new().read(true).write(true).open(&path).or_else(|error| match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => File::open(&path),
            _ => Err(error),
        })?;
        Ok(Arc::new(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

impl Writing for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        // The length is part of what fdatasync makes durable.
        self.sync_data()
    }
}

impl Reading for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(into, at)
    }

    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        fallocate(self, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len).map_err(|error| match error {
            // Opened for reading only, or a file system that has no holes.
            rustix::io::Errno::BADF | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS => {
                io::ErrorKind::Unsupported.into()
            }
            error => error.into(),
        })
    }
}
