//! The manifest: which files the tier has. It is replaced as a whole, so it is always the old one or the new one.
//!
//! ```text
//! magic          0..8     "FLEXLOGM"
//! version        8..12    1
//! files         12..16    how many
//! store         16..32
//! next id       32..40    no file has this id or one above it
//! each file
//!   id           0..8     ascending
//!   bytes        8..16
//!   records     16..24
//!   upto        24..32    the committed place that the records were moved at
//!   sources     32..36    how many
//!   zero        36..40
//!   each source           generation u32 of a segment that they were moved from; padded to 8
//! zero           4        then
//! crc            4        CRC32C over what stands before it
//! ```

use std::io;

use flexlog_protocol::checksum::crc32c;
use flexlog_protocol::{Lsn, StoreId};
use uuid::Uuid;

use super::error::{Refusal, SsdError, write_error};
use super::folder::Folder;
use super::format::{u32_at, u64_at};

/// The manifest's name.
pub const MANIFEST: &str = "manifest";
const TEMPORARY: &str = "manifest.tmp";
/// The one version of the format that this code knows.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"FLEXLOGM";
const HEAD: usize = 40;
const ROW: usize = 40;
const TAIL: usize = 8;
/// No manifest is longer: that would be millions of files.
const MAX_BYTES: u64 = 1 << 30;

const _: () = assert!(HEAD == 8 + 4 + 4 + 16 + 8 && ROW == 4 * 8 + 4 + 4 && TAIL == 4 + 4);

/// What the manifest says of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileMeta {
    /// Its id, which its name is made of. Ids are never used again.
    pub id: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Its records.
    pub records: u64,
    /// The committed place in the shard log that its records were moved at.
    pub upto: Lsn,
    /// Generations of the segments that they were moved from.
    pub sources: Vec<u32>,
}

/// What the manifest says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    /// Whose it is.
    pub store: StoreId,
    /// No file has this id or one above it.
    pub next_id: u64,
    /// The files, by id.
    pub files: Vec<FileMeta>,
}

impl Manifest {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + self.files.len() * (ROW + 8) + TAIL);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.files.len() as u32).to_le_bytes());
        bytes.extend_from_slice(self.store.0.as_bytes());
        bytes.extend_from_slice(&self.next_id.to_le_bytes());
        for file in &self.files {
            for word in [file.id, file.bytes, file.records, file.upto.0, file.sources.len() as u64] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            file.sources.iter().for_each(|source| bytes.extend_from_slice(&source.to_le_bytes()));
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        bytes.extend_from_slice(&[0; 4]);
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// From bytes. `file` is for messages.
    ///
    /// # Errors
    /// `Foreign`, `Version`, `OtherStore` and `Damaged`.
    pub fn decode(bytes: &[u8], store: StoreId, file: &str) -> Result<Self, Refusal> {
        let file = || file.to_owned();
        let damaged = |offset: usize, what| Refusal::Damaged { file: file(), offset: offset as u64, what };
        if bytes.len() < HEAD + TAIL {
            return Err(damaged(bytes.len(), "it is too short for a manifest"));
        }
        if bytes[..8] != MAGIC {
            return Err(Refusal::Foreign { file: file() });
        }
        let version = u32_at(bytes, 8);
        // A newer version may have its checksum elsewhere, so this comes first.
        if version > VERSION {
            return Err(Refusal::Version { file: file(), found: version, known: VERSION });
        }
        let end = bytes.len() - 4;
        if version != VERSION || u32_at(bytes, end) != crc32c(&bytes[..end]) {
            return Err(damaged(0, "its checksum does not match"));
        }
        let found = StoreId(Uuid::from_slice(&bytes[16..32]).unwrap_or_default());
        if found != store {
            return Err(Refusal::OtherStore { file: file(), found, wanted: store });
        }
        let next_id = u64_at(bytes, 32);
        let end = bytes.len() - TAIL;
        let mut files: Vec<FileMeta> = Vec::new();
        let mut at = HEAD;
        for _ in 0..u32_at(bytes, 12) {
            let bad = || damaged(at, "this is no file's entry");
            let row = bytes[..end].get(at..at + ROW).ok_or_else(bad)?;
            let sources = u32_at(row, 32) as usize;
            let len = sources.checked_mul(4).map(|len| len.next_multiple_of(8)).ok_or_else(bad)?;
            let list = bytes[..end].get(at + ROW..).and_then(|rest| rest.get(..len)).ok_or_else(bad)?;
            let id = u64_at(row, 0);
            if u32_at(row, 36) != 0 || id >= next_id || files.last().is_some_and(|last| last.id >= id) {
                return Err(bad());
            }
            files.push(FileMeta {
                id,
                bytes: u64_at(row, 8),
                records: u64_at(row, 16),
                upto: Lsn(u64_at(row, 24)),
                sources: (0..sources).map(|nth| u32_at(list, 4 * nth)).collect(),
            });
            at += ROW + len;
        }
        if at != end {
            return Err(damaged(at, "it has more bytes than files"));
        }
        Ok(Self { store, next_id, files })
    }

    /// Reads the manifest of a folder; `None` where there is none.
    ///
    /// # Errors
    /// As [`Manifest::decode`], and `Io`.
    pub(crate) fn load(folder: &dyn Folder, store: StoreId) -> Result<Option<Self>, Refusal> {
        let name = path(folder, MANIFEST);
        let io = |source| Refusal::Io { file: name.clone(), source };
        let file = match folder.open(MANIFEST) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        let len = file.len().map_err(io)?;
        if len > MAX_BYTES {
            return Err(Refusal::Damaged { file: name, offset: MAX_BYTES, what: "it is too long for a manifest" });
        }
        let mut bytes = vec![0; len as usize];
        file.read_at(0, &mut bytes).map_err(io)?;
        Self::decode(&bytes, store, &name).map(Some)
    }

    /// Makes this the manifest of the folder.
    ///
    /// # Errors
    /// `Full`: the old one is in force. `Failed`: either may be.
    pub(crate) fn save(&self, folder: &dyn Folder) -> Result<(), SsdError> {
        let write = || {
            let mut file = folder.create(TEMPORARY)?;
            file.append(&self.encode())?;
            file.sync()?;
            folder.rename(TEMPORARY, MANIFEST)
        };
        if let Err(error) = write() {
            // Left behind it would only take space until the next open.
            let _ = folder.remove(TEMPORARY);
            return Err(write_error(path(folder, TEMPORARY), error));
        }
        folder.sync().map_err(|source| SsdError::Failed { what: folder.describe(), source })
    }
}

/// The full path of a file.
pub(crate) fn path(folder: &dyn Folder, name: &str) -> String {
    format!("{}/{name}", folder.describe())
}
