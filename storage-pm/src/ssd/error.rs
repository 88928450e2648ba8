//! What can go wrong in the SSD tier: an error says which file, what it means for the caller, and what to do next.

use std::io;

use flexlog_protocol::{Color, SeqNum, StoreId};

/// Why something of the tier could not be done.
#[derive(Debug, thiserror::Error)]
pub enum SsdError {
    /// The disk is full. Nothing changed; reads and trim go on.
    #[error("{what}: no space left ({source}): trim colors, or free space on this disk")]
    Full {
        /// The file or folder.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The medium failed on this read; others may go well. Fetch the record from a peer.
    #[error("{file}: cannot read the record {color}/{number} at byte {offset}: {source}")]
    Io {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// The log.
        color: Color,
        /// The number, or the first one that may be affected.
        number: SeqNum,
        /// Exclusive: no number from here on is.
        end: SeqNum,
        /// What the system said.
        source: io::Error,
    },
    /// The bytes are not those that were written. Fetch the record from a peer.
    #[error("{file}: the record {color}/{number} at byte {offset} is damaged: its checksum does not match")]
    Damaged {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// The log.
        color: Color,
        /// The number, or the first one that may be affected.
        number: SeqNum,
        /// Exclusive: no number from here on is.
        end: SeqNum,
    },
    /// The tier, or a file of it, is not what it should be.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// What was to be moved here could not be read, or is not fit to be written. Nothing changed.
    #[error("{what}: cannot write {color}/{number}: {source}")]
    Source {
        /// The tier's folder.
        what: String,
        /// The log of the last record that was taken, or of the one that is wrong.
        color: Color,
        /// Its number.
        number: SeqNum,
        /// What is wrong.
        source: io::Error,
    },
    /// Writing failed, and it cannot be told what is durable. Final: the tier takes nothing any more.
    #[error("{what} failed and takes nothing any more: {source}. Check the disk, then start the replica again")]
    Failed {
        /// The file or folder.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl SsdError {
    /// The same for these numbers: those before are whole elsewhere, and up to the end there are others that are not.
    pub(crate) fn of_numbers(mut self, low: SeqNum, upto: SeqNum) -> Self {
        if let Self::Io { number, end, .. } | Self::Damaged { number, end, .. } = &mut self {
            (*number, *end) = (low, upto);
        }
        self
    }
}

/// Why a tier, or a file of it, is refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A file that the manifest lists is not there.
    #[error(
        "{file} is missing, and the manifest lists it. Bring it back, or remove the replica's folder and let it copy its data from the others"
    )]
    Missing {
        /// The file.
        file: String,
    },
    /// There are files, and no manifest.
    #[error(
        "{folder} has files of records and no manifest: {file} is one. Bring the manifest back, or remove the replica's folder and let it copy its data from the others"
    )]
    NoManifest {
        /// The folder.
        folder: String,
        /// One of the files.
        file: String,
    },
    /// A file is shorter or longer than it was.
    #[error(
        "{file} has {found} bytes and should have {wanted}. Bring the right one back, or remove the replica's folder and let it copy its data from the others"
    )]
    Length {
        /// The file.
        file: String,
        /// Its bytes.
        found: u64,
        /// Bytes that it should have.
        wanted: u64,
    },
    /// It was written by a newer version, most likely.
    #[error(
        "{file} has format version {found}, this program knows version {known}: it was left as it is. Use the program that wrote it"
    )]
    Version {
        /// The file.
        file: String,
        /// The version that it says.
        found: u32,
        /// The version that this code knows.
        known: u32,
    },
    /// It belongs to another store.
    #[error("{file} belongs to the store {found}, not to {wanted}: choose the right folder")]
    OtherStore {
        /// The file.
        file: String,
        /// Its store.
        found: StoreId,
        /// The store that it should belong to.
        wanted: StoreId,
    },
    /// It is something else.
    #[error("{file} is not a file of a FlexLog store: it was left as it is. Choose another folder")]
    Foreign {
        /// The file.
        file: String,
    },
    /// Bytes that were durable are not as they were written.
    #[error(
        "{file} is damaged at byte {offset}: {what}. Remove the replica's folder and let it copy its data from the others"
    )]
    Damaged {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// It cannot be read.
    #[error("{file}: {source}")]
    Io {
        /// The file or folder.
        file: String,
        /// What the system said.
        source: io::Error,
    },
}

/// A write that failed: for want of space, or for good.
pub(crate) fn write_error(what: String, source: io::Error) -> SsdError {
    if crate::log::is_full(&source) { SsdError::Full { what, source } } else { SsdError::Failed { what, source } }
}
