//! The network, and the queues inside a process: streams that each keep their order, and no order between streams.
//!
//! A message is in the stream that it was put into until it is taken out; a stream can be stalled for a while, and all
//! that goes to or from someone who is gone can be dropped. A partition is to be a stall of every stream between two
//! sets of machines: nothing else here needs to know of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use flexlog_protocol::api::{Answer, AppendRequest, Request};
use flexlog_protocol::peer::{FromParent, Of, PeerMessage, ToLeaf, ToMember, ToParent};
use flexlog_protocol::{Color, Epoch, SeqNum};
use flexlog_replica::{ConnId, FetchId, Input};

/// From whom to whom. Members are named by their place in the view, leaves and counters by their epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Stream {
    ToMember {
        leaf: Epoch,
        member: usize,
    },
    ToLeaf {
        member: usize,
        leaf: Epoch,
    },
    ToCounter {
        leaf: Epoch,
    },
    FromCounter {
        leaf: Epoch,
    },
    Peer {
        from: usize,
        to: usize,
    },
    Request {
        conn: ConnId,
        member: usize,
    },
    Answer {
        member: usize,
        conn: ConnId,
    },
    /// From a store to its own member.
    Store {
        member: usize,
    },
    /// What a member wants to read.
    Fetch {
        member: usize,
    },
}

/// What a member wants to read, or what that found.
#[derive(Clone, Debug)]
pub(crate) enum Fetch {
    Found(Input),
    Wanted { fetch: FetchId, color: Color, from: SeqNum, upto: SeqNum, max_records: usize, max_bytes: usize },
}

/// A message.
#[derive(Clone, Debug)]
pub(crate) enum Packet {
    ToMember(Of<ToMember>),
    ToLeaf(Of<ToLeaf>),
    ToCounter(ToParent),
    FromCounter(FromParent),
    Peer(PeerMessage),
    Request(Request),
    Append(Arc<AppendRequest>),
    Disconnected,
    Answer(Answer),
    Store(Input),
    Fetch(Fetch),
}

/// All streams.
#[derive(Debug, Default)]
pub(crate) struct Net {
    /// None of them empty.
    streams: BTreeMap<Stream, VecDeque<Packet>>,
    /// Until which event.
    stalled: BTreeMap<Stream, u64>,
    /// The most messages that any stream ever held.
    pub(crate) longest: usize,
}

impl Net {
    pub(crate) fn push(&mut self, stream: Stream, packet: Packet) {
        let queue = self.streams.entry(stream).or_default();
        queue.push_back(packet);
        self.longest = self.longest.max(queue.len());
    }

    pub(crate) fn pop(&mut self, stream: Stream) -> Option<Packet> {
        let queue = self.streams.get_mut(&stream)?;
        let packet = queue.pop_front();
        if queue.is_empty() {
            self.streams.remove(&stream);
        }
        packet
    }

    /// The streams that have something to deliver at `event`.
    pub(crate) fn ready(&self, event: u64) -> impl Iterator<Item = Stream> + use<'_> {
        self.streams.keys().copied().filter(move |stream| self.stalled.get(stream).is_none_or(|until| *until <= event))
    }

    /// Nothing comes out of `stream` before the event `until`.
    pub(crate) fn stall(&mut self, stream: Stream, until: u64) {
        self.stalled.insert(stream, until);
    }

    pub(crate) fn end_stalls(&mut self) {
        self.stalled.clear();
    }

    /// Keeps only the first `keep` messages of a stream.
    pub(crate) fn cut(&mut self, stream: Stream, keep: usize) {
        if let Some(queue) = self.streams.get_mut(&stream) {
            queue.truncate(keep);
            if queue.is_empty() {
                self.streams.remove(&stream);
            }
        }
    }

    pub(crate) fn len(&self, stream: Stream) -> usize {
        self.streams.get(&stream).map_or(0, VecDeque::len)
    }

    /// Everything on the way is gone, of the streams that `gone` says.
    pub(crate) fn drop_streams(&mut self, gone: impl Fn(Stream) -> bool) {
        self.streams.retain(|stream, _| !gone(*stream));
        self.stalled.retain(|stream, _| !gone(*stream));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_keep_their_order_and_stall_alone() {
        let mut net = Net::default();
        let (a, b) = (Stream::ToCounter { leaf: Epoch(1) }, Stream::ToCounter { leaf: Epoch(2) });
        for batch in 1..=3 {
            net.push(a, Packet::ToCounter(ToParent::Order { batch, color: Color(1), count: 1 }));
        }
        net.push(b, Packet::Disconnected);
        net.stall(a, 10);
        assert_eq!(net.ready(9).collect::<Vec<_>>(), [b]);
        assert_eq!(net.ready(10).collect::<Vec<_>>(), [a, b]);
        net.cut(a, 2);
        for expected in 1..=2 {
            let packet = net.pop(a);
            assert!(matches!(packet, Some(Packet::ToCounter(ToParent::Order { batch, .. })) if batch == expected));
        }
        net.drop_streams(|stream| stream == b);
        assert!(net.pop(a).is_none() && net.ready(u64::MAX).next().is_none());
        assert_eq!(net.longest, 3);
    }
}
