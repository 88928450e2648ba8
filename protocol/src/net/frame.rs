//! Frames over a stream of bytes.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::limits::MAX_FRAME_BYTES;
use crate::wire::{self, HEADER_BYTES, Message, WireError};

/// Space that a read finds at least, while there is no reason for more: below what allocators map page by page.
const READ_BYTES: usize = 64 << 10;
/// A buffer that a large batch made larger than this is given back.
const KEEP_BYTES: usize = 1 << 20;

/// What can go wrong with frames, before anyone says whose they are.
#[derive(Debug)]
pub enum FrameError {
    /// The stream failed.
    Io(io::Error),
    /// It is not the protocol.
    Wire(WireError),
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<WireError> for FrameError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

/// Reads frames from a stream, as many at a time as have come.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
    buffer: BytesMut,
    limit: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads from `stream`, whose frames have up to `limit` bytes.
    pub fn new(stream: R, limit: usize) -> Self {
        Self { stream, buffer: BytesMut::new(), limit }
    }

    /// The handshake is done: frames may be as long as any.
    pub fn lift_limit(&mut self) {
        self.limit = MAX_FRAME_BYTES;
    }

    /// The next frame, its header taken off; `None` when the stream ended between two frames. Loses nothing when
    /// dropped.
    ///
    /// # Errors
    /// Those of the stream, `FrameTooLarge`, and `Truncated` when the stream ended inside a frame.
    pub async fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        loop {
            if let Some(frame) = self.ready()? {
                return Ok(Some(frame));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// A frame that is here already.
    ///
    /// # Errors
    /// `FrameTooLarge`.
    pub fn ready(&mut self) -> Result<Option<Bytes>, WireError> {
        wire::split_frame(&mut self.buffer, self.limit)
    }

    /// Reads once. Returns whether the stream goes on.
    async fn fill(&mut self) -> Result<bool, FrameError> {
        let want = HEADER_BYTES + wire::announced(&self.buffer).unwrap_or(0);
        let missing = want.saturating_sub(self.buffer.len());
        // Memory follows what has come, not what a header promises: at most as much again.
        let space = missing.min(self.buffer.len().max(READ_BYTES));
        if self.buffer.capacity() - self.buffer.len() < space.max(READ_BYTES / 4) {
            self.buffer.reserve(space.max(READ_BYTES));
        }
        if self.stream.read_buf(&mut self.buffer).await? > 0 {
            return Ok(true);
        }
        if self.buffer.is_empty() {
            return Ok(false);
        }
        Err(WireError::Truncated { got: self.buffer.len(), want }.into())
    }

    #[cfg(test)]
    pub(super) fn buffered_capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Reads and drops everything until the stream ends or fails.
    pub async fn discard(&mut self) {
        loop {
            self.buffer.clear();
            self.buffer.reserve(READ_BYTES);
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}

/// Writes messages to a stream, a batch with one write.
#[derive(Debug)]
pub struct FrameWriter<W> {
    stream: W,
    buffer: BytesMut,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// Writes to `stream`.
    pub fn new(stream: W) -> Self {
        Self { stream, buffer: BytesMut::with_capacity(4096) }
    }

    /// What is to be written next; for the opening words.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Encodes all of `batch`, leaves it empty, and writes. What is not written when this is dropped goes out first
    /// next time.
    ///
    /// # Errors
    /// Those of the stream, and `MessageTooLarge`.
    pub async fn send<M: Message>(&mut self, batch: &mut Vec<M>) -> Result<(), FrameError> {
        M::encode(batch, &mut self.buffer)?;
        batch.clear();
        self.flush().await
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// Those of the stream.
    pub async fn flush(&mut self) -> Result<(), FrameError> {
        while self.buffer.has_remaining() {
            if self.stream.write_buf(&mut self.buffer).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
        }
        if self.buffer.capacity() > KEEP_BYTES {
            self.buffer = BytesMut::with_capacity(4096);
        } else {
            // Everything is written: the space is there for the next batch.
            self.buffer.clear();
        }
        Ok(())
    }

    /// Writes what is left, then ends the stream.
    ///
    /// # Errors
    /// Those of the stream.
    pub async fn finish(&mut self) -> Result<(), FrameError> {
        self.flush().await?;
        Ok(self.stream.shutdown().await?)
    }
}
