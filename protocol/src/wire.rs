//! How messages look on the wire.
//!
//! The published form is `proto/flexlog/v1/client.proto`, and `node.proto` beside it for what processes of a cluster say
//! to each other: a frame is a little-endian u32 with the length of what
//! follows, then one `Hello`, `Welcome`, `Requests` or `Answers`. This module turns the types of [`crate::api`] into
//! frames and back. It relies on nothing but the vocabulary, does no input or output, and promises two things: what it
//! encodes decodes to the same value, and what it decodes keeps every bound of [`crate::limits`], with the checksum of
//! every record verified. Anything else is a [`WireError`] that says what is wrong.
//!
//! Payload bytes are copied once on the way out, into the frame, and not at all on the way in: a decoded payload is a
//! part of the frame it came in. Whoever keeps a small payload for long keeps the block that it was read in, up to 64
//! KiB; copy it if that matters.

mod answer;
mod append;
mod hello;
mod link;
mod node;
mod request;
mod scan;
mod status;

use bytes::{BufMut, Bytes, BytesMut};

use crate::api::{Answer, Request};
use crate::limits::MAX_FRAME_BYTES;
use crate::record::RecordError;

pub use answer::{decode_answers, encode_answers};
pub use hello::{decode_hello, decode_welcome, encode_hello, encode_welcome, mismatch, not_a_client};
pub use link::{LinkFrame, MAX_PEER_NAME_BYTES, Parcel};
pub use node::{decode_node_messages, encode_node_messages};
pub use request::{decode_requests, encode_requests};

/// The version of the protocol that this crate speaks.
pub const VERSION: u32 = 4;
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 4;
/// A frame is closed when it has this many bytes, unless one message alone has more.
pub const TARGET_FRAME_BYTES: usize = 256 << 10;
/// The most messages in one frame.
pub const MAX_MESSAGES_PER_FRAME: usize = 16_384;
/// The longest frame before the handshake is done.
pub const MAX_HANDSHAKE_BYTES: usize = 4096;
/// The largest seq and low mark of a session. Nobody gets there; sums with it do not overflow.
pub const MAX_SEQ: u64 = u64::MAX >> 1;
/// The most members of a view.
pub const MAX_MEMBERS: usize = 64;

/// What the generated code of the published protocol is called here.
pub(crate) mod proto {
    // `Requests` and `Answers` are taken apart by hand, message by message.
    #![allow(missing_docs, unused_qualifications, dead_code, clippy::pedantic)]
    include!(concat!(env!("OUT_DIR"), "/flexlog.v1.rs"));
}

/// What the other side sent is not the protocol, or what was to be sent does not fit into it.
///
/// After one of these the connection is of no use: the place of the next frame is not known for sure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A frame's header says more than the limit.
    #[error("a frame of {bytes} bytes was announced, the limit is {limit}: is the other side FlexLog?")]
    FrameTooLarge {
        /// As announced.
        bytes: usize,
        /// What is allowed here.
        limit: usize,
    },
    /// The connection ended inside a frame.
    #[error("the connection ended inside a frame, after {got} of {want} bytes")]
    Truncated {
        /// Bytes that came.
        got: usize,
        /// Bytes of the frame, its header included.
        want: usize,
    },
    /// The bytes are not the protobuf message that belongs here.
    #[error("not a FlexLog message: {0}")]
    NotProtobuf(String),
    /// The message lacks something or has something that it cannot have.
    #[error("malformed message: {0}")]
    Malformed(&'static str),
    /// A record or an append breaks a bound, or is damaged.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A message to be sent is larger than a frame may be.
    #[error(
        "a message of {bytes} bytes does not fit into a frame, the limit is {MAX_FRAME_BYTES}: ask for less at once"
    )]
    MessageTooLarge {
        /// Bytes of the message.
        bytes: usize,
    },
}

impl From<prost::DecodeError> for WireError {
    fn from(error: prost::DecodeError) -> Self {
        Self::NotProtobuf(error.to_string())
    }
}

/// What travels in one direction of a connection.
pub trait Message: Sized + Send + 'static {
    /// Puts the messages, as one or several whole frames, at the end of `out`.
    ///
    /// # Errors
    /// `MessageTooLarge`; `out` is then as it was.
    fn encode(batch: &[Self], out: &mut BytesMut) -> Result<(), WireError>;

    /// Puts the messages of one frame, its header taken off, at the end of `into`.
    ///
    /// # Errors
    /// Everything that [`WireError`] names but `FrameTooLarge` and `MessageTooLarge`.
    fn decode(frame: Bytes, into: &mut Vec<Self>) -> Result<(), WireError>;
}

impl Message for Request {
    fn encode(batch: &[Self], out: &mut BytesMut) -> Result<(), WireError> {
        encode_requests(batch, out)
    }

    fn decode(frame: Bytes, into: &mut Vec<Self>) -> Result<(), WireError> {
        request::decode_into(&frame, into)
    }
}

impl Message for Answer {
    fn encode(batch: &[Self], out: &mut BytesMut) -> Result<(), WireError> {
        encode_answers(batch, out)
    }

    fn decode(frame: Bytes, into: &mut Vec<Self>) -> Result<(), WireError> {
        answer::decode_into(frame, into)
    }
}

/// Takes one frame, its header off, from the front of `buffer`; `None` while it is not there as a whole.
///
/// # Errors
/// `FrameTooLarge` when the header says more than `limit`, before any byte of the frame is needed.
pub fn split_frame(buffer: &mut BytesMut, limit: usize) -> Result<Option<Bytes>, WireError> {
    let Some(bytes) = announced(buffer) else { return Ok(None) };
    if bytes > limit {
        return Err(WireError::FrameTooLarge { bytes, limit });
    }
    if buffer.len() < HEADER_BYTES + bytes {
        return Ok(None);
    }
    let mut frame = buffer.split_to(HEADER_BYTES + bytes);
    Ok(Some(frame.split_off(HEADER_BYTES).freeze()))
}

/// The length that the header at the front of `buffer` announces, once the header is there.
#[must_use]
pub fn announced(buffer: &[u8]) -> Option<usize> {
    buffer.first_chunk::<HEADER_BYTES>().map(|header| u32::from_le_bytes(*header) as usize)
}

/// Puts messages, each a `repeated` field 1, into frames at the end of a buffer.
struct Frames<'a> {
    out: &'a mut BytesMut,
    /// Where `out` ended before; it is cut there when something fails.
    before: usize,
    /// Where the open frame begins, and how many messages it has.
    open: Option<(usize, usize)>,
}

impl<'a> Frames<'a> {
    fn new(out: &'a mut BytesMut) -> Self {
        let before = out.len();
        Self { out, before, open: None }
    }

    /// A message whose encoding, `len` bytes, `write` puts at the end of the buffer.
    fn message(&mut self, len: usize, write: impl FnOnce(&mut BytesMut)) -> Result<(), WireError> {
        let with_key = 1 + scan::varint_len(len as u64) + len;
        if with_key > MAX_FRAME_BYTES {
            self.out.truncate(self.before);
            self.open = None;
            return Err(WireError::MessageTooLarge { bytes: len });
        }
        if let Some((start, count)) = self.open {
            let bytes = self.out.len() - start - HEADER_BYTES;
            if bytes + with_key > TARGET_FRAME_BYTES || count >= MAX_MESSAGES_PER_FRAME {
                self.close();
            }
        }
        self.out.reserve(HEADER_BYTES + with_key);
        let (start, count) = self.open.unwrap_or_else(|| {
            let start = self.out.len();
            self.out.put_u32_le(0);
            (start, 0)
        });
        self.open = Some((start, count + 1));
        self.out.put_u8(scan::key_len(1));
        scan::put_varint(self.out, len as u64);
        let body = self.out.len();
        write(self.out);
        debug_assert_eq!(self.out.len() - body, len, "a message has the length that it announced");
        Ok(())
    }

    /// Ends the open frame, if there is one.
    fn close(&mut self) {
        if let Some((start, _)) = self.open.take() {
            let bytes = (self.out.len() - start - HEADER_BYTES) as u32;
            self.out[start..start + HEADER_BYTES].copy_from_slice(&bytes.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
