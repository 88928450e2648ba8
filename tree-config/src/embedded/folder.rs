//! The folder: who may use it, and which of its files is the journal.
//!
//! | file | what it is |
//! |---|---|
//! | `journal` | the facts, see [`super::journal`] |
//! | `journal.new` | the next journal, before it is whole; of no meaning after a crash |
//! | `lock` | empty; locked by the process that has the folder |

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::error::OpenError;
use super::journal::{self, Journal, ScanError};
use super::state::State;

/// A folder that this process has for itself.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Holds the lock; the system lets go of it with the file.
    _lock: File,
}

impl Folder {
    /// Creates the folder if it is not there, and locks it.
    pub(super) fn lock(path: &Path) -> Result<Self, OpenError> {
        if !path.is_dir() {
            fs::create_dir_all(path).map_err(|e| OpenError::writing("create the folder", path, path, e))?;
            // Or the folder itself could be gone after a crash, and all that was promised with it.
            if let Some(above) = path.parent() {
                let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
                sync_folder(above).map_err(|e| OpenError::io("make durable", above, e))?;
            }
        }
        let file = path.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&file)
            .map_err(|e| OpenError::writing("open", path, &file, e))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Locked { folder: path.to_owned() }),
            Err(e) => Err(OpenError::io("lock", &file, e.into())),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the journal is.
    pub(super) fn journal(&self) -> PathBuf {
        self.path.join("journal")
    }

    fn next_journal(&self) -> PathBuf {
        self.path.join("journal.new")
    }

    /// Reads the journal, or begins one. Also answers how many bytes of it a crash had left half written.
    pub(super) fn open_journal(&self) -> Result<(Journal, State, u64), OpenError> {
        let path = self.journal();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let state = State::default();
                let journal = self
                    .replace_journal(&state)
                    .map_err(|e| OpenError::writing("begin a journal in", &self.path, &self.path, e))?;
                return Ok((journal, state, 0));
            }
            Err(e) => return Err(OpenError::io("read", &path, e)),
        };
        let scanned = journal::scan(&bytes).map_err(|e| match e {
            ScanError::Format(found) => OpenError::UnknownFormat { file: path.clone(), found },
            ScanError::Damage { line, why } => OpenError::Damaged { file: path.clone(), line, why },
        })?;
        let dropped = bytes.len() as u64 - scanned.good;
        let file =
            OpenOptions::new().write(true).open(&path).map_err(|e| OpenError::writing("open", &self.path, &path, e))?;
        if dropped > 0 {
            file.set_len(scanned.good).map_err(|e| OpenError::io("shorten", &path, e))?;
        }
        // What was read may still be on its way to the disk, after a crash of the process alone: it is shown from now
        // on, so it must be there.
        file.sync_all().map_err(|e| OpenError::io("make durable", &path, e))?;
        match fs::remove_file(self.next_journal()) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(OpenError::io("remove", &self.next_journal(), e)),
        }
        Ok((Journal::new(file, scanned.good), scanned.state, dropped))
    }

    /// Puts a journal of `state` alone in place of the one that is there: whole, or not at all.
    ///
    /// Until it is in place an error leaves the old journal in force, see [`Folder::install`].
    pub(super) fn replace_journal(&self, state: &State) -> io::Result<Journal> {
        let journal = self.write_next(state)?;
        self.install()?;
        Ok(journal)
    }

    /// Writes the next journal beside the one in force, durable.
    pub(super) fn write_next(&self, state: &State) -> io::Result<Journal> {
        let path = self.next_journal();
        let written = (|| {
            let mut file = io::BufWriter::with_capacity(1 << 16, File::create(&path)?);
            let size = journal::write_snapshot(state, &mut file)?;
            file.flush()?;
            let file = file.into_inner().map_err(|e| e.into_error())?;
            file.sync_all()?;
            Ok(Journal::new(file, size))
        })();
        if written.is_err() {
            // It holds space that the disk may be short of; it means nothing where it stays.
            let _ = fs::remove_file(&path);
        }
        written
    }

    /// Puts what [`Folder::write_next`] wrote in force. After an error it is not known which of the two a crash leaves.
    pub(super) fn install(&self) -> io::Result<()> {
        fs::rename(self.next_journal(), self.journal())?;
        sync_folder(&self.path)
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
