//! Streams between two processes that outlive a connection: every message arrives once and in order, or the sender is
//! told that some may not have arrived.
//!
//! Messages of a stream are packed into numbered **parcels**: those that wait together share one, and a large message is
//! cut into several. [`Outgoing`] keeps each until it is acknowledged, and after a new connection goes on where the other
//! side says that it was. [`Incoming`] takes each once. A stream has a uuid; it is **lost** when the process at the other
//! end is another one, or that process does not know the stream any more, or too much waits. Then all that was not
//! acknowledged is dropped, the caller is told, and another stream begins.
//!
//! Both are pure machines: bytes and frames go in and out, uuids are given by the caller. They rely on a connection that
//! delivers whole [`LinkFrame`]s in order until it ends.
//!
//! ```text
//! dialing side                         dialed side
//!   Open{process, stream, to, first} ->
//!                                    <- Welcome{process, next}      without next: the stream is lost
//!   Data{seq, more, content}         ->
//!                                    <- Ack{upto}
//! ```

use std::collections::{HashMap, VecDeque};

use bytes::{Bytes, BytesMut};
use uuid::Uuid;

use crate::wire::TARGET_FRAME_BYTES;
pub use crate::wire::{LinkFrame, Parcel};

/// The most bytes that may wait in a stream to be acknowledged, bulk not counted: 64 MiB.
pub const MAX_UNACKED_BYTES: usize = 64 << 20;
/// A message above this is bulk, such as the report of a recovery: 8 MiB.
pub const BULK_BYTES: usize = 8 << 20;
/// The largest message, and the most bytes of bulk that may wait in a stream: 1 GiB.
pub const MAX_BULK_BYTES: usize = 1 << 30;
/// Content of a parcel of several messages, and of one that is a part of a message.
const PARCEL_BYTES: usize = TARGET_FRAME_BYTES - 64;
/// Bytes that are taken to be written at once, unless one parcel has more.
const WRITE_BYTES: usize = 1 << 20;
/// Bytes and parcels after which a receiver acknowledges without waiting for a better moment.
const ACK_BYTES: usize = 256 << 10;
const ACK_PARCELS: u64 = 256;
/// The most streams that a process remembers having received.
const MAX_STREAMS: usize = 4096;

/// More waits in a stream than may: the other side does not take it. The stream is given up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes wait to be taken by the other side, which is more than may: is it overloaded, or unreachable?")]
pub struct Overflowed {
    /// Bytes that waited.
    pub bytes: usize,
}

/// What the other side sent breaks the rules of the link. The connection is of no use any more; a new one goes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A parcel came that is not the next one.
    #[error("parcel {got} of a stream came where {want} was due")]
    Gap {
        /// The next one.
        want: u64,
        /// The one that came.
        got: u64,
    },
    /// More was acknowledged than sent.
    #[error("parcels up to {upto} were acknowledged, {sent} were sent")]
    NeverSent {
        /// As acknowledged.
        upto: u64,
        /// As sent.
        sent: u64,
    },
    /// Parts of a message that together are larger than a message may be.
    #[error("a message of more than {MAX_BULK_BYTES} bytes")]
    TooLarge,
    /// The stream has gone on over another connection.
    #[error("the stream goes on over another connection")]
    Superseded,
    /// All streams that there may be are in use.
    #[error("{MAX_STREAMS} streams are open, which is as many as may be")]
    TooManyStreams,
}

/// What a [`LinkFrame::Welcome`] means for the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Welcomed {
    /// It goes on.
    Resumed,
    /// It is lost. [`Outgoing::restart`] and [`Outgoing::open`] begin another one.
    Restarted,
}

/// The sending end of a stream.
#[derive(Debug)]
pub struct Outgoing {
    stream: Uuid,
    /// The process at the other end; `None` before the first welcome.
    receiver: Option<Uuid>,
    phase: Phase,
    /// Messages that are in no parcel yet.
    waiting: BytesMut,
    /// Not acknowledged, in order.
    parcels: VecDeque<(Parcel, Kind)>,
    /// The number of the first of them, or of the next one.
    first: u64,
    /// Some process knows the stream.
    begun: bool,
    /// How many of them went out by this connection.
    written: usize,
    bytes: usize,
    bulk: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not connected, or not welcomed yet.
    Waiting,
    Welcomed,
    /// Nothing goes in or out until [`Outgoing::restart`].
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Small,
    Bulk,
}

impl Outgoing {
    /// A stream of this fresh uuid.
    #[must_use]
    pub fn new(stream: Uuid) -> Self {
        Self {
            stream,
            receiver: None,
            phase: Phase::Waiting,
            waiting: BytesMut::new(),
            parcels: VecDeque::new(),
            first: 0,
            begun: false,
            written: 0,
            bytes: 0,
            bulk: 0,
        }
    }

    /// Takes one message, whose bytes `write` puts at the end of the buffer that it is given.
    ///
    /// # Errors
    /// `Overflowed`: the stream is lost, this message included.
    pub fn send(&mut self, write: impl FnOnce(&mut BytesMut)) -> Result<(), Overflowed> {
        if self.phase == Phase::Lost {
            return Err(Overflowed { bytes: 0 });
        }
        let before = self.waiting.len();
        write(&mut self.waiting);
        let len = self.waiting.len() - before;
        let kind = if len > BULK_BYTES { Kind::Bulk } else { Kind::Small };
        *self.count(kind) += len;
        if self.bytes > MAX_UNACKED_BYTES || self.bulk > MAX_BULK_BYTES {
            let bytes = self.unacked_bytes();
            self.drop_all();
            return Err(Overflowed { bytes });
        }
        if self.waiting.len() > PARCEL_BYTES {
            let message = self.waiting.split_off(before);
            self.pack();
            self.waiting = message;
            if len > PARCEL_BYTES {
                self.cut(kind);
            }
        }
        Ok(())
    }

    fn count(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Small => &mut self.bytes,
            Kind::Bulk => &mut self.bulk,
        }
    }

    /// Closes the parcel of the messages that wait.
    fn pack(&mut self) {
        if !self.waiting.is_empty() {
            let content = self.waiting.split().freeze();
            self.push(content, false, Kind::Small);
        }
    }

    /// Makes parcels of the one message that waits.
    fn cut(&mut self, kind: Kind) {
        let mut message = self.waiting.split().freeze();
        while message.len() > PARCEL_BYTES {
            let content = message.split_to(PARCEL_BYTES);
            self.push(content, true, kind);
        }
        self.push(message, false, kind);
    }

    fn push(&mut self, content: Bytes, more: bool, kind: Kind) {
        let seq = self.first + self.parcels.len() as u64;
        self.parcels.push_back((Parcel { seq, more, content }, kind));
    }

    fn drop_all(&mut self) {
        self.phase = Phase::Lost;
        self.waiting = BytesMut::new();
        self.parcels = VecDeque::new();
        (self.written, self.bytes, self.bulk) = (0, 0, 0);
    }

    /// Begins another stream in place of a lost one.
    pub fn restart(&mut self, stream: Uuid) {
        *self = Self { receiver: self.receiver, ..Self::new(stream) };
    }

    /// The first frame on a new connection, or on the same one after [`Outgoing::restart`].
    pub fn open(&mut self, process: Uuid, to: &str) -> LinkFrame {
        self.disconnected();
        let first = self.begun.then_some(self.first);
        LinkFrame::Open { process, stream: self.stream, to: to.to_owned(), first }
    }

    /// The connection is at its end: nothing is to be written until the next one is welcome.
    pub fn disconnected(&mut self) {
        if self.phase == Phase::Welcomed {
            self.phase = Phase::Waiting;
        }
        self.written = 0;
    }

    /// The other side, this `process`, has every parcel below `next`; `None` if it does not know the stream.
    pub fn welcomed(&mut self, process: Uuid, next: Option<u64>) -> Welcomed {
        let same = self.receiver.replace(process).is_none_or(|before| before == process);
        let sent = self.first..=self.first + self.parcels.len() as u64;
        match next {
            Some(next) if same && self.phase != Phase::Lost && sent.contains(&next) => {
                self.release(next);
                self.begun = true;
                self.phase = Phase::Welcomed;
                Welcomed::Resumed
            }
            _ => {
                self.drop_all();
                Welcomed::Restarted
            }
        }
    }

    /// The other side has every parcel below `upto`. Returns whether that is news.
    ///
    /// # Errors
    /// `NeverSent`.
    pub fn acked(&mut self, upto: u64) -> Result<bool, LinkError> {
        if self.phase != Phase::Welcomed {
            // From before the stream was lost.
            return Ok(false);
        }
        let sent = self.first + self.written as u64;
        if upto > sent {
            return Err(LinkError::NeverSent { upto, sent });
        }
        let news = upto > self.first;
        self.release(upto);
        Ok(news)
    }

    fn release(&mut self, upto: u64) {
        while self.first < upto
            && let Some((parcel, kind)) = self.parcels.pop_front()
        {
            *self.count(kind) -= parcel.content.len();
            self.first += 1;
            self.written = self.written.saturating_sub(1);
        }
    }

    /// Puts what is to be written next at the end of `into`: everything that has come since the last call, up to about
    /// 1 MiB. Nothing while the other side has not said its welcome.
    pub fn take(&mut self, into: &mut Vec<LinkFrame>) {
        if self.phase != Phase::Welcomed {
            return;
        }
        self.pack();
        let mut bytes = 0;
        for (parcel, _) in self.parcels.range(self.written..) {
            if bytes > 0 && bytes + parcel.content.len() > WRITE_BYTES {
                break;
            }
            bytes += parcel.content.len();
            into.push(LinkFrame::Data(parcel.clone()));
            self.written += 1;
        }
    }

    /// Bytes of messages that are not acknowledged.
    #[must_use]
    pub fn unacked_bytes(&self) -> usize {
        self.bytes + self.bulk
    }

    /// Whether something was written that is not acknowledged.
    #[must_use]
    pub fn awaits_ack(&self) -> bool {
        self.written > 0
    }
}

/// Names the connection that a stream comes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Via(u64);

/// The receiving ends of all streams to one process.
#[derive(Debug)]
pub struct Incoming {
    process: Uuid,
    /// By the connection that each came by last.
    streams: HashMap<Via, Stream>,
    last: u64,
}

#[derive(Debug)]
struct Stream {
    sender: Uuid,
    to: String,
    id: Uuid,
    connected: bool,
    /// The parcel that is due.
    next: u64,
    /// Parts of a message that has not ended.
    part: BytesMut,
    /// Acknowledged up to here, and bytes since.
    acked: u64,
    bytes: usize,
}

impl Stream {
    fn new(sender: Uuid, to: &str, id: Uuid) -> Self {
        Self { sender, to: to.to_owned(), id, connected: true, next: 0, part: BytesMut::new(), acked: 0, bytes: 0 }
    }
}

impl Incoming {
    /// None yet, to this process.
    #[must_use]
    pub fn new(process: Uuid) -> Self {
        Self { process, streams: HashMap::new(), last: 0 }
    }

    /// A [`LinkFrame::Open`] came by a connection, whose name this gives, with the frame to answer. The connection that
    /// the stream came by before counts no more; it is named if it was not closed.
    ///
    /// # Errors
    /// `TooManyStreams`.
    pub fn open(
        &mut self,
        sender: Uuid,
        stream: Uuid,
        to: &str,
        first: Option<u64>,
    ) -> Result<(Via, LinkFrame, Option<Via>), LinkError> {
        let before = self.streams.iter().find(|(_, known)| known.sender == sender && known.to == to);
        let before = before.map(|(via, _)| *via);
        let known = before.and_then(|via| self.streams.remove(&via));
        let superseded = before.filter(|_| known.as_ref().is_some_and(|known| known.connected));
        let entry = match (known, first) {
            (Some(known), _) if known.id == stream => (known.next >= first.unwrap_or(0)).then_some(known),
            (_, None) => Some(Stream::new(sender, to, stream)),
            // It was begun, and is not known here, so what came of it before is not known either.
            (_, Some(_)) => None,
        };
        self.last += 1;
        let via = Via(self.last);
        let next = entry.as_ref().map(|entry| entry.next);
        if let Some(entry) = entry {
            if self.streams.len() >= MAX_STREAMS {
                let idle = self.streams.iter().filter(|(_, stream)| !stream.connected).map(|(via, _)| *via).min();
                self.streams.remove(&idle.ok_or(LinkError::TooManyStreams)?);
            }
            self.streams.insert(via, Stream { connected: true, acked: entry.next, bytes: 0, ..entry });
        }
        Ok((via, LinkFrame::Welcome { process: self.process, next }, superseded))
    }

    /// A parcel came. Returns whole messages, once one ends with it.
    ///
    /// # Errors
    /// `Superseded`, `Gap` and `TooLarge`: close the connection.
    pub fn data(&mut self, via: Via, parcel: Parcel) -> Result<Option<Bytes>, LinkError> {
        let stream = self.streams.get_mut(&via).ok_or(LinkError::Superseded)?;
        if parcel.seq < stream.next {
            return Ok(None);
        }
        if parcel.seq > stream.next {
            return Err(LinkError::Gap { want: stream.next, got: parcel.seq });
        }
        if stream.part.len() + parcel.content.len() > MAX_BULK_BYTES {
            // It would come again for ever.
            self.streams.remove(&via);
            return Err(LinkError::TooLarge);
        }
        stream.next += 1;
        stream.bytes += parcel.content.len();
        if !parcel.more && stream.part.is_empty() {
            return Ok(Some(parcel.content));
        }
        stream.part.extend_from_slice(&parcel.content);
        Ok((!parcel.more).then(|| std::mem::take(&mut stream.part).freeze()))
    }

    /// Whether an [`Incoming::ack`] is due now.
    #[must_use]
    pub fn ack_is_due(&self, via: Via) -> bool {
        self.streams
            .get(&via)
            .is_some_and(|stream| stream.bytes >= ACK_BYTES || stream.next - stream.acked >= ACK_PARCELS)
    }

    /// What has not been acknowledged yet. To be sent when it is due, and within about a tenth of a second in any case.
    pub fn ack(&mut self, via: Via) -> Option<LinkFrame> {
        let stream = self.streams.get_mut(&via).filter(|stream| stream.next > stream.acked)?;
        (stream.acked, stream.bytes) = (stream.next, 0);
        Some(LinkFrame::Ack { upto: stream.next })
    }

    /// The connection is at its end. Its stream may go on by another one.
    pub fn closed(&mut self, via: Via) {
        if let Some(stream) = self.streams.get_mut(&via) {
            stream.connected = false;
        }
    }

    /// What came by the stream cannot be read: it is lost, and the sender will hear of that.
    pub fn forget(&mut self, via: Via) {
        self.streams.remove(&via);
    }
}

#[cfg(test)]
mod tests;
