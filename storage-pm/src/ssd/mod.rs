//! The SSD tier: what was moved out of persistent memory, as immutable files sorted by (color, number).
//!
//! [`Tier`] is the whole of it. It lives in a folder of its own: files of records ([`SsdFile`]), and a manifest that says
//! which of them exist; what the manifest does not list is not there. It relies on a [`Folder`] for what POSIX promises
//! of files and names, and on its caller to hand over committed records only. It promises that what [`Tier::add`]
//! reported is whole after any crash, that every byte it gives out was checked, and that damage is told, never skipped.
//!
//! What it costs, for 100 million records of 100 bytes in 10,000 colors, in 100 files:
//!
//! | | a record | all |
//! |---|---|---|
//! | record headers, number of tags, padding on disk | 32 bytes | 3.2 GB |
//! | block headers and sparse index on disk | 0.5 bytes | 52 MB |
//! | tag index on disk, for each tag of a record that many share | 8 bytes | 0.8 GB |
//! | color tables on disk | 0.4 bytes | 40 MB |
//! | sparse indexes and color tables in memory, if the cache may hold them all | 0.8 bytes | 79 MB |
//! | filters in memory | | 1.3 MB |
//! | the highest number of each color, and some 500 bytes a file | | 0.4 MB |
//!
//! A read whose index is in the cache is one read of some 16 KiB from the disk for each file that holds a part of the
//! answer; one whose index is not, one more for the index.

mod error;
mod file;
mod filter;
mod folder;
mod format;
mod manifest;
mod read;
mod sim;
mod tier;
mod writer;

pub use error::{Refusal, SsdError};
pub use file::{Fault, FileIndex, SsdFile};
pub use folder::{DirFolder, Folder, Reading, Writing};
pub use format::ColorRow;
pub(crate) use format::file_id;
pub use manifest::{FileMeta, MANIFEST, Manifest};
pub(crate) use read::after;
pub use sim::SimFolder;
pub use tier::{Moved, PlantedBug, Reclaimed, SPARE, Tier, TierUsage};
pub use writer::Writer;
