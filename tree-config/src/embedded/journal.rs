//! The journal file, format 3.
//!
//! Lines of text, each `crc json\n`: eight hex digits of CRC32C over the JSON, a space, the JSON without line breaks.
//!
//! | line | JSON |
//! |---|---|
//! | 1 | `{"flexlog-metadata":3,"revision":R,"entries":E}` |
//! | 2 … E + 1 | `[key, version, value]`: the state at revision R, in order of the keys |
//! | every other | `{"revision":N,"durable":D,"put":[[key, value], …],"delete":[key, …]}`: one transaction each, N contiguous from R + 1 |
//!
//! The first E + 1 lines are durable before the file has its name, so a crash cannot damage them. Transactions are
//! appended; several may be on their way to the disk at once, and a crash may leave any part of them there. `durable` is
//! the length of the file that was known durable when the line was written. So a bad line below the highest `durable` of
//! the good lines is damage, and reported; at or above it, it is what a crash left: it and all that follows were
//! never answered, and are dropped.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use flexlog_protocol::checksum::crc32c;
use serde::{Deserialize, Serialize};

use super::state::State;
use crate::key::{Key, Value};
use crate::metadata::Revision;
use crate::transaction::Transaction;

/// The version of the file, and of the facts in it: it goes up with [`crate::record::FORMAT_VERSION`] too, so that another
/// form of a fact is refused as such and not taken for damage.
pub(super) const FORMAT: u64 = 3;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    #[serde(rename = "flexlog-metadata")]
    format: u64,
    revision: Revision,
    entries: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<K, V> {
    revision: Revision,
    durable: u64,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    put: Vec<(K, V)>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    delete: Vec<K>,
}

/// Adds a line with this JSON to `to`.
fn push(to: &mut Vec<u8>, json: &impl Serialize) -> io::Result<()> {
    let start = to.len();
    to.extend_from_slice(b"00000000 ");
    serde_json::to_writer(&mut *to, json)?;
    let crc = crc32c(&to[start + 9..]);
    // Eight digits over the eight zeros.
    let digits = format!("{crc:08x}");
    to[start..start + 8].copy_from_slice(digits.as_bytes());
    to.push(b'\n');
    Ok(())
}

/// The JSON of a line without its end, or what is wrong with the line.
fn json(line: &[u8]) -> Result<&[u8], String> {
    let (crc, json) = line.split_at_checked(9).ok_or("it is too short")?;
    let written = std::str::from_utf8(&crc[..8])
        .ok()
        .filter(|_| crc[8] == b' ')
        .and_then(|digits| u32::from_str_radix(digits, 16).ok())
        .ok_or("it does not begin with a checksum")?;
    let found = crc32c(json);
    if written == found {
        Ok(json)
    } else {
        Err(format!("its checksum is {written:08x}, and its bytes have {found:08x}"))
    }
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(json(line)?).map_err(|e| format!("its checksum is right, but it cannot be read: {e}"))
}

/// Adds the line of a transaction to `to`.
pub(super) fn push_transaction(
    to: &mut Vec<u8>,
    revision: Revision,
    durable: u64,
    transaction: &Transaction,
) -> io::Result<()> {
    let put: Vec<(&Key, &Value)> = transaction.puts.iter().map(|(key, value)| (key, value)).collect();
    push(to, &Line { revision, durable, put, delete: transaction.deletes.iter().collect() })
}

/// How many bytes this fact takes of a snapshot.
pub(super) fn entry_bytes(key: &Key, version: Revision, value: &Value) -> u64 {
    let mut line = Vec::with_capacity(256);
    // Writing to memory does not fail, and records are plain enough for JSON.
    let _ = push(&mut line, &(key, version, value));
    line.len() as u64
}

/// Writes a journal of `state` alone, and answers how long it is.
pub(super) fn write_snapshot(state: &State, to: &mut impl Write) -> io::Result<u64> {
    let mut line = Vec::with_capacity(1024);
    push(&mut line, &Header { format: FORMAT, revision: state.revision(), entries: state.len() })?;
    to.write_all(&line)?;
    let mut size = line.len() as u64;
    for (key, version, value) in state.entries() {
        line.clear();
        push(&mut line, &(key, version, value))?;
        to.write_all(&line)?;
        size += line.len() as u64;
    }
    Ok(size)
}

/// What a journal says.
#[derive(Debug)]
pub(super) struct Scanned {
    pub(super) state: State,
    /// How many bytes of it are good; what follows is to be dropped.
    pub(super) good: u64,
}

/// Why a journal cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ScanError {
    /// It has another format.
    Format(u64),
    /// It is damaged.
    Damage { line: usize, why: String },
}

/// Reads a journal.
pub(super) fn scan(bytes: &[u8]) -> Result<Scanned, ScanError> {
    // Pieces with their line end, but for a last one that lacks it.
    let mut lines = bytes.split_inclusive(|b| *b == b'\n').zip(1..);
    let mut next = |need: &str| match lines.next() {
        Some((piece, number)) => Ok((piece, number, whole(piece))),
        None => Err(need.to_owned()),
    };
    let damage = |line, why| ScanError::Damage { line, why };

    let (piece, _, line) = next("it is missing").map_err(|why| damage(1, why))?;
    let mut good = piece.len() as u64;
    let first = line.and_then(parse::<serde_json::Value>).map_err(|why| damage(1, why))?;
    // The version first: a later one may have anything else in this line.
    match first.get("flexlog-metadata").and_then(serde_json::Value::as_u64) {
        Some(FORMAT) => {}
        Some(other) => return Err(ScanError::Format(other)),
        None => return Err(damage(1, "it is not the first line of a metadata journal".to_owned())),
    }
    let header: Header = serde_json::from_value(first).map_err(|e| damage(1, e.to_string()))?;

    let mut state = State::at(header.revision);
    for i in 0..header.entries {
        let (piece, number, line) = next("it is missing").map_err(|why| damage(i + 2, why))?;
        let (key, version, value): (Key, Revision, Value) = line.and_then(parse).map_err(|why| damage(number, why))?;
        if !value.belongs_under(&key) || version > header.revision {
            return Err(damage(number, format!("it holds a record that does not belong under {key}")));
        }
        value.check().map_err(|why| damage(number, why.to_string()))?;
        state.restore(key, version, value);
        good += piece.len() as u64;
    }
    if state.len() != header.entries {
        return Err(damage(1, format!("it announces {} entries, and some are there twice", header.entries)));
    }

    // The first bad line: where it begins, which it is, what is wrong.
    let mut bad: Option<(u64, usize, String)> = None;
    let mut at = good;
    while let Ok((piece, number, line)) = next("") {
        let relied_on = match line.and_then(parse::<Line<Key, Value>>) {
            Ok(line) if bad.is_none() => {
                apply(&mut state, line).map_err(|why| damage(number, why))?;
                good = at + piece.len() as u64;
                0
            }
            Ok(line) => line.durable,
            Err(why) => {
                bad.get_or_insert((at, number, why));
                swallowed(piece)
            }
        };
        if let Some((place, number, why)) = bad.as_ref().filter(|(place, ..)| relied_on > *place) {
            return Err(damage(*number, format!("{why} (byte {place}, and later lines rely on it)")));
        }
        at += piece.len() as u64;
    }
    Ok(Scanned { state, good })
}

/// The highest `durable` of the good lines inside of a piece that is not one: damage to the end of a line joins it with
/// the next.
fn swallowed(piece: &[u8]) -> u64 {
    let start = b"{\"revision\":";
    let candidates = piece.windows(start.len()).enumerate().filter(|(at, window)| *at >= 9 && window == start);
    let lines = candidates.filter_map(|(at, _)| parse::<Line<Key, Value>>(whole(&piece[at - 9..]).ok()?).ok());
    lines.map(|line| line.durable).max().unwrap_or(0)
}

fn whole(piece: &[u8]) -> Result<&[u8], String> {
    piece.strip_suffix(b"\n").ok_or_else(|| "it has no end".to_owned())
}

fn apply(state: &mut State, line: Line<Key, Value>) -> Result<(), String> {
    if line.revision != state.revision().next() {
        return Err(format!("it is transaction {}, and {} comes next", line.revision, state.revision().next()));
    }
    let transaction = Transaction { conditions: Vec::new(), puts: line.put, deletes: line.delete };
    transaction.check().map_err(|e| e.to_string())?;
    state.apply(transaction);
    Ok(())
}

/// The journal in force, for the one who appends to it.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    /// How long it is; all of it is durable between two appends.
    size: u64,
    /// What the tests have go wrong next.
    #[cfg(test)]
    pub(super) fault: Option<Fault>,
}

/// What a disk may do to an append.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The disk takes this many bytes and is full then.
    Full(usize),
    /// What was written cannot be made durable.
    Sync,
}

/// An append that did not go well.
#[derive(Debug)]
pub(super) enum AppendError {
    /// Nothing of it is there, and never will be.
    Undone(io::Error),
    /// Any part of it may be there, or come to be there.
    InDoubt(io::Error),
}

impl Journal {
    pub(super) fn new(file: File, size: u64) -> Self {
        Self {
            file,
            size,
            #[cfg(test)]
            fault: None,
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Appends whole lines and makes them durable.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<(), AppendError> {
        if let Err(error) = self.write(lines) {
            // Such as a full disk. The part that was written must not come back after a crash.
            return match self.file.set_len(self.size).and_then(|()| self.file.sync_all()) {
                Ok(()) => Err(AppendError::Undone(error)),
                Err(_) => Err(AppendError::InDoubt(error)),
            };
        }
        self.sync().map_err(AppendError::InDoubt)?;
        self.size += lines.len() as u64;
        Ok(())
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        if let Some(Fault::Full(bytes)) = self.fault {
            self.fault = None;
            self.file.write_all_at(&lines[..bytes.min(lines.len())], self.size)?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write_all_at(lines, self.size)
    }

    fn sync(&mut self) -> io::Result<()> {
        #[cfg(test)]
        if self.fault == Some(Fault::Sync) {
            self.fault = None;
            return Err(io::Error::other("input/output error"));
        }
        self.file.sync_data()
    }
}
