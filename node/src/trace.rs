//! When appends pass this process, for those who measure where the time of one goes.
//!
//! Off unless [`VARIABLE`] names a folder: then the moments are kept in memory, up to a bound, and written there when the
//! process stops. A line is a [`Mark`]'s name and the machine's time in nanoseconds, so that those of several processes of
//! one machine can be put in order. Which append a moment belongs to is for the reader to know: it is meant for one at a
//! time.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Names the folder.
pub(crate) const VARIABLE: &str = "FLEXLOG_TRACE_APPENDS";
/// The most moments that are kept.
const MAX_MARKS: usize = 1 << 20;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    /// A member got an append from a client.
    Received,
    /// A member told its leaf that records are persisted.
    Staged,
    /// A leaf was told so.
    Heard,
    /// A leaf told a member of entries.
    Assigned,
    /// A member was told of entries.
    Told,
    /// A member told its leaf that entries are persisted.
    Acked,
    /// A member answered a client.
    Answered,
}

impl Mark {
    fn name(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Staged => "staged",
            Self::Heard => "heard",
            Self::Assigned => "assigned",
            Self::Told => "told",
            Self::Acked => "acked",
            Self::Answered => "answered",
        }
    }
}

/// The moments so far.
#[derive(Debug)]
pub(crate) struct Trace {
    file: PathBuf,
    marks: Vec<(Mark, u64)>,
}

impl Trace {
    /// Of the process of this name, if somebody wants it.
    pub(crate) fn wanted(name: &str) -> Option<Box<Self>> {
        let folder = std::env::var_os(VARIABLE)?;
        Some(Box::new(Self { file: PathBuf::from(folder).join(name), marks: Vec::new() }))
    }

    pub(crate) fn mark(&mut self, mark: Mark) {
        if self.marks.len() < MAX_MARKS {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.marks.push((mark, now.as_nanos() as u64));
        }
    }

    /// Writes them down.
    pub(crate) fn write(&self) {
        let mut text = String::new();
        for (mark, at) in &self.marks {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{} {at}", mark.name());
        }
        if let Err(error) = std::fs::write(&self.file, text) {
            tracing::error!(file = %self.file.display(), %error, "the times of appends were not written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_in_order_one_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("replica-1");
        let mut trace = Trace { file: file.clone(), marks: Vec::new() };
        trace.mark(Mark::Received);
        trace.mark(Mark::Answered);
        trace.write();
        let text = std::fs::read_to_string(file).unwrap();
        let lines: Vec<(&str, u64)> = text
            .lines()
            .map(|line| line.split_once(' ').map(|(name, at)| (name, at.parse().unwrap())).unwrap())
            .collect();
        assert_eq!(lines.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["received", "answered"]);
        assert!(lines[0].1 <= lines[1].1);
    }
}
