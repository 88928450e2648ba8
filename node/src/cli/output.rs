//! What the command prints on standard output.

use std::io::{self, BufWriter, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flexlog_protocol::{Record, SeqNum};
use serde_json::{Value, json};

use super::Stop;

/// Standard output, in the form that was asked for.
pub(crate) struct Output {
    json: bool,
    to: BufWriter<io::Stdout>,
}

fn closed(error: io::Error) -> Stop {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Stop::OutputClosed,
        _ => Stop::Failed(format!("cannot write to standard output: {error}")),
    }
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, to: BufWriter::with_capacity(64 << 10, io::stdout()) }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// One object on a line of its own.
    pub(crate) fn object(&mut self, value: &Value) -> Result<(), Stop> {
        writeln!(self.to, "{value}").map_err(closed)
    }

    /// One line of text.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Stop> {
        writeln!(self.to, "{text}").map_err(closed)
    }

    /// One record: its bytes and a newline, or an object with its number.
    pub(crate) fn record(&mut self, number: SeqNum, record: &Record) -> Result<(), Stop> {
        let payload = record.payload();
        if self.json {
            self.object(&json!({ "number": number.to_string(), "payload": STANDARD.encode(payload) }))
        } else {
            self.to.write_all(payload).and_then(|()| self.to.write_all(b"\n")).map_err(closed)
        }
    }

    /// Everything so far is to be seen now.
    pub(crate) fn flush(&mut self) -> Result<(), Stop> {
        self.to.flush().map_err(closed)
    }
}
