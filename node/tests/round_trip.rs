//! What goes in through the command comes back byte for byte, in order.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "a test that panics has failed")]

mod support;

use std::path::{Path, PathBuf};

use support::{On, Seeded, Server, assert_contiguous, folder, numbers, skipped, turn};

const LINES: usize = 100_000;
const LIMIT: usize = 1 << 20;

/// Lines of every kind: empty, not UTF-8, with a carriage return, one of exactly the limit, and none at the end.
fn generated(seed: u64) -> Vec<Vec<u8>> {
    let mut seeded = Seeded::new(seed);
    let mut lines: Vec<Vec<u8>> = (0..LINES)
        .map(|i| match seeded.below(20) {
            0 => Vec::new(),
            1..=4 => (0..seeded.below(64)).map(|_| seeded.draw() as u8).filter(|b| *b != b'\n').collect(),
            5..=6 => format!("line {i} with a carriage return\r").into_bytes(),
            7 => b"\xff\xfe broken \xc3".to_vec(),
            _ => format!("{i} {:x} {:x}", seeded.draw(), seeded.draw()).into_bytes(),
        })
        .collect();
    lines[LINES / 3] = (0..LIMIT).map(|i| if i % 251 == 10 { 11 } else { (i % 251) as u8 }).collect();
    assert!(!lines[LINES / 3].contains(&b'\n'));
    lines[LINES - 1] = b"no newline behind this".to_vec();
    lines
}

fn joined(lines: &[Vec<u8>], newline_at_end: bool) -> Vec<u8> {
    let mut bytes = lines.join(&b'\n');
    if newline_at_end {
        bytes.push(b'\n');
    }
    bytes
}

/// Appends the lines, and asserts that they come back.
fn round_trip(server: &Server, color: &str, lines: &[Vec<u8>], newline_at_end: bool) {
    let output = server.run_with(&["append", color], &joined(lines, newline_at_end));
    let given = numbers(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(given.len(), lines.len());
    assert_contiguous(&given, 0);
    let first = format!("{}.0", given[0].0);
    let back = server.run_with(&["read", color, "--from", &first], b"").stdout;
    // Not `assert_eq`: a difference would print a hundred thousand lines.
    assert!(back == joined(lines, true), "what came back differs from what went in");
    let last = given[given.len() - 1];
    let one = server.run_with(&["read", color, &format!("{}.{}", last.0, last.1)], b"").stdout;
    assert_eq!(one.strip_suffix(b"\n"), lines.last().map(Vec::as_slice));
}

#[test]
fn generated_lines_come_back_byte_for_byte() {
    let _turn = turn();
    let Some(folder) = folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    round_trip(&server, "generated", &generated(1), false);
    round_trip(&server, "generated-with-newline", &generated(2)[..1000], true);
}

#[test]
fn real_text_comes_back_byte_for_byte() {
    let _turn = turn();
    let mut lines = Vec::new();
    for root in ["/usr/share", "/usr/include", "/usr/lib"] {
        collect(Path::new(root), &mut lines);
    }
    if lines.len() < LINES {
        return skipped("this machine has not 100,000 lines of text in /usr/share, /usr/include and /usr/lib");
    }
    let Some(folder) = folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    round_trip(&server, "text", &lines, true);
}

/// Adds the lines of text files below `path`, in order of their names, until there are enough.
fn collect(path: &Path, lines: &mut Vec<Vec<u8>>) {
    let Ok(entries) = std::fs::read_dir(path) else { return };
    let mut entries: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    for entry in entries {
        if lines.len() >= LINES {
            return;
        }
        let Ok(kind) = std::fs::symlink_metadata(&entry) else { continue };
        if kind.is_dir() {
            collect(&entry, lines);
        } else if kind.is_file() && kind.len() < 1 << 20 {
            let Ok(bytes) = std::fs::read(&entry) else { continue };
            if std::str::from_utf8(&bytes).is_ok() && !bytes.contains(&0) {
                let room = LINES - lines.len();
                lines.extend(bytes.split(|b| *b == b'\n').take(room).map(<[u8]>::to_vec));
            }
        }
    }
}

#[test]
fn the_whole_input_as_one_record() {
    let Some(folder) = folder(On::Disk) else { return };
    let server = Server::start(folder.path());
    let input = b"two\nlines\n";
    let output = server.run_with(&["append", "raw", "--raw"], input);
    let given = numbers(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(given.len(), 1);
    let back = server.run_with(&["read", "raw", &format!("{}.0", given[0].0)], b"").stdout;
    assert_eq!(back, b"two\nlines\n\n");
}
