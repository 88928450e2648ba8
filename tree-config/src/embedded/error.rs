//! Why a folder cannot be opened as a metadata store.

use std::io;
use std::path::{Path, PathBuf};

use super::journal::FORMAT;

/// The metadata store cannot be opened. Its journal is as it was.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it, or another store of this one.
    #[error("the metadata folder {} is in use by another process: stop that one, or use another folder", folder.display())]
    Locked {
        /// The folder.
        folder: PathBuf,
    },
    /// It cannot be written.
    #[error(
        "the metadata folder {} cannot be written ({source}): make it writable for this user, or use another folder",
        folder.display()
    )]
    ReadOnly {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The journal is of a version that this program does not know.
    #[error(
        "{} has format {found}, and this program knows {FORMAT} only: use the program that wrote it. Nothing was changed",
        file.display()
    )]
    UnknownFormat {
        /// The journal.
        file: PathBuf,
        /// Its version.
        found: u64,
    },
    /// The journal is damaged where no crash can damage it.
    #[error(
        "{}, line {line} is damaged: {why}. Nothing was changed: put the file back from a backup, and check the disk",
        file.display()
    )]
    Damaged {
        /// The journal.
        file: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The system refused something else.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    /// What the system refused, told apart where a user can do something about it.
    pub(super) fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), source }
    }

    /// As [`OpenError::io`], for what writes to `folder`.
    pub(super) fn writing(doing: &'static str, folder: &Path, path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::ReadOnly { folder: folder.to_owned(), source }
            }
            _ => Self::io(doing, path, source),
        }
    }
}
