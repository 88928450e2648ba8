//! The files of a source tree.

use std::fs;
use std::io;
use std::path::Path;

/// A text file of the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceFile {
    /// Relative to the root, with `/` between the parts.
    pub path: String,
    /// All of it.
    pub text: String,
}

/// What builds and runs leave behind.
const SKIPPED: [&str; 2] = ["target", "flexlog-data"];
/// What is the project's own although its name begins with a dot; the rest of that kind is of somebody's tools.
const HIDDEN: [&str; 4] = [".ci", ".cargo", ".github", ".gitignore"];

/// All text files of the project below `root`, in order of their paths.
///
/// # Errors
/// Those of reading.
pub fn read(root: &Path) -> io::Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    collect(root, "", &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<SourceFile>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if SKIPPED.contains(&name.as_str()) || (name.starts_with('.') && !HIDDEN.contains(&name.as_str())) {
            continue;
        }
        let kind = entry.file_type()?;
        let path = format!("{prefix}{name}");
        if kind.is_dir() {
            collect(&entry.path(), &format!("{path}/"), files)?;
        } else if kind.is_file() {
            // What is not UTF-8 is no text.
            if let Ok(text) = String::from_utf8(fs::read(entry.path())?) {
                files.push(SourceFile { path, text });
            }
        }
    }
    Ok(())
}
