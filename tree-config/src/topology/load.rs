//! The one place of the topology that touches a file.

use std::fs;
use std::path::Path;

use super::{Topology, TopologyError};

impl Topology {
    /// Reads a topology file.
    ///
    /// # Errors
    /// Any [`TopologyError`].
    pub fn load(path: &Path) -> Result<Self, TopologyError> {
        let unreadable = |source| TopologyError::Unreadable { path: path.to_owned(), source };
        let text = fs::read_to_string(path).map_err(unreadable)?;
        Ok(Self::parse(path, &text)?)
    }
}
