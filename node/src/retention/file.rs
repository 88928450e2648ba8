//! The file that samples are kept in, `retention.json` in the cluster's folder.
//!
//! | field | what |
//! |---|---|
//! | `version` | [`VERSION`] |
//! | `cluster` | whose it is |
//! | `time` | the highest time seen, in seconds since 1970 |
//! | `colors` | `[color, [[at, last, bytes], …]]` for each color with samples, see [`super::Sample`] |
//!
//! It is replaced as a whole: written beside, made durable, renamed. It holds nothing that could not be lost: without it
//! all ages start anew, and records live longer.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flexlog_protocol::{ClusterId, Color};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Sample;

/// The version of the file that this program reads and writes.
const VERSION: u64 = 1;

/// What is in the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Kept {
    /// The highest time seen.
    pub(crate) time: u64,
    /// Samples of each color.
    pub(crate) colors: Vec<(Color, Vec<Sample>)>,
}

/// The version first: another one may have anything else beside it.
#[derive(Deserialize)]
struct Version {
    version: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u64,
    cluster: Uuid,
    time: u64,
    colors: Vec<(u64, Vec<Sample>)>,
}

/// The file is not one that can be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system does not let it be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is of a version that this program does not know.
    #[error(
        "{} has version {found}, and this program knows {VERSION} only: use the one that wrote it, or remove the file, \
         and records age from now on",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// It is damaged.
    #[error("{} is damaged: {why}. Put a backup back, or remove the file, and records age from now on", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It is of another cluster.
    #[error(
        "{} belongs to cluster {found}: put this cluster's own back, or remove the file, and records age from now on",
        path.display()
    )]
    Stranger {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: ClusterId,
    },
}

/// Reads the file; `None` where there is none.
///
/// # Errors
/// [`ReadError`].
pub(crate) fn read(path: &Path, cluster: ClusterId) -> Result<Option<Kept>, ReadError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ReadError::Io { path: path.to_owned(), source }),
    };
    let damaged = |why: serde_json::Error| ReadError::Damaged { path: path.to_owned(), why: why.to_string() };
    let Version { version } = serde_json::from_slice(&bytes).map_err(damaged)?;
    if version != VERSION {
        return Err(ReadError::Version { path: path.to_owned(), found: version });
    }
    let content: Content = serde_json::from_slice(&bytes).map_err(damaged)?;
    if content.cluster != cluster.0 {
        return Err(ReadError::Stranger { path: path.to_owned(), found: ClusterId(content.cluster) });
    }
    let colors = content.colors.into_iter().map(|(color, samples)| (Color(color), samples)).collect();
    Ok(Some(Kept { time: content.time, colors }))
}

/// Puts a file with this in place of the one that is there: whole, or not at all.
///
/// # Errors
/// What the system said.
pub(crate) fn write(path: &Path, cluster: ClusterId, kept: Kept) -> io::Result<()> {
    let colors = kept.colors.into_iter().map(|(color, samples)| (color.0, samples)).collect();
    let content = Content { version: VERSION, cluster: cluster.0, time: kept.time, colors };
    let next = path.with_extension("json.new");
    let mut file = BufWriter::new(File::create(&next)?);
    serde_json::to_writer(&mut file, &content)?;
    file.write_all(b"\n")?;
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    fs::rename(&next, path)?;
    File::open(path.parent().unwrap_or(path))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: ClusterId = ClusterId(Uuid::from_u128(7));

    fn kept() -> Kept {
        let samples = [(10, 3 << 32 | 4, 100), (11, 3 << 32 | 9, 150)].map(Sample::from);
        Kept { time: 12, colors: vec![(Color(2), samples.to_vec())] }
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("retention.json");
        assert_eq!(read(&path, OURS).unwrap(), None);
        write(&path, OURS, Kept::default()).unwrap();
        write(&path, OURS, kept()).unwrap();
        assert_eq!(read(&path, OURS).unwrap(), Some(kept()));
        let uuid = "00000000-0000-0000-0000-000000000007";
        let text = format!(
            r#"{{"version":1,"cluster":"{uuid}","time":12,"colors":[[2,[[10,12884901892,100],[11,12884901897,150]]]]}}"#
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), text + "\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn others_are_refused_in_words_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("retention.json");
        write(&path, ClusterId(Uuid::from_u128(8)), kept()).unwrap();
        let theirs = fs::read_to_string(&path).unwrap();
        let texts = [
            (theirs.as_str(), "belongs to cluster"),
            (r#"{"version":2,"anything":["else"]}"#, "has version 2"),
            (r#"{"version":1,"cluster":"00000000-0000-0000-0000-000000000007","time":1"#, "is damaged"),
            (r#"{"time":1}"#, "is damaged"),
            ("", "is damaged"),
        ];
        for (text, says) in texts {
            fs::write(&path, text).unwrap();
            let error = read(&path, OURS).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("retention.json") && error.contains("remove"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
