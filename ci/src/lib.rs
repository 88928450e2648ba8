//! Checks on the shape of the project itself.
//!
//! Rules that the compiler does not know, as functions over the root of a source tree: which crate may depend on which
//! ([`manifests`]), what protocol cores may not touch ([`cores`]), and what no file may hold ([`files`]). Each answers
//! with all that it found wrong. `tests/dependencies.rs` runs them on this tree, and on small trees with a fault in each.

pub mod cores;
pub mod files;
pub mod manifests;
pub mod tokens;
pub mod tree;

use std::fmt;

/// Something that breaks a rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Finding {
    /// The file, relative to the root.
    pub file: String,
    /// The line, from 1; 0 where it is the file as a whole.
    pub line: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

impl Finding {
    /// Something wrong in this line of this file.
    #[must_use]
    pub fn new(file: &str, line: usize, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}
