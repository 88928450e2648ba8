//! The network, and the queues inside a process: streams that each keep their order, and no order between streams.
//!
//! A message is in the stream that it was put into until it is taken out; a stream can be stalled for a while, and all
//! that goes to or from someone who is gone can be dropped. A partition delays every stream between two sets of
//! processes, in one direction or both. A stream that was lost takes nothing until its sender has been told so, as the
//! links of a node have it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use flexlog_protocol::api::{Answer, AppendRequest, Request};
use flexlog_protocol::peer::{Between, FromParent, Of, PeerMessage, ToLeaf, ToMember, ToParent};
use flexlog_protocol::{Color, Epoch, Incarnation, SeqNum, View};
use flexlog_replica::{ConnId, FetchId, Input};
use flexlog_sequencer::ViewOutcome;

/// From whom to whom. Replicas are named by their index, processes of positions by the epoch that they claimed, and their
/// leaves by the index of the shard besides.
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
        shard: usize,
    },
    FromCounter {
        leaf: Epoch,
        shard: usize,
    },
    ToMetadata {
        leaf: Epoch,
        shard: usize,
    },
    FromMetadata {
        leaf: Epoch,
        shard: usize,
    },
    /// From a position's process to one of the position above.
    Up {
        from: Epoch,
        to: Epoch,
    },
    /// From a position's process to one of a position below.
    Down {
        from: Epoch,
        to: Epoch,
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
    Up(Between<ToParent>),
    Down(Between<FromParent>),
    Peer(PeerMessage),
    Request(Request),
    Append(Arc<AppendRequest>),
    Disconnected,
    Answer(Answer),
    Store(Input),
    Fetch(Fetch),
    /// A view is to be changed.
    ChangeView {
        by: Incarnation,
        from: View,
        to: View,
    },
    View(ViewOutcome),
}

/// Some processes, by their bits.
pub(crate) type Sites = u64;

/// The process of a replica.
pub(crate) fn replica_site(member: usize) -> Sites {
    1 << member
}

/// The process of a position.
pub(crate) fn leaf_site(leaf: Epoch) -> Sites {
    1 << (16 + leaf.0 % 48)
}

/// A partition: nothing that goes from `from` to `to` arrives before the event `until`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) from: Sites,
    pub(crate) to: Sites,
    pub(crate) until: u64,
}

impl Stream {
    /// The processes at its ends, where those are two of the cluster's.
    pub(crate) fn ends(self) -> Option<(Sites, Sites)> {
        match self {
            Self::ToMember { leaf, member } => Some((leaf_site(leaf), replica_site(member))),
            Self::ToLeaf { member, leaf } => Some((replica_site(member), leaf_site(leaf))),
            Self::Up { from, to } | Self::Down { from, to } => Some((leaf_site(from), leaf_site(to))),
            Self::Peer { from, to } => Some((replica_site(from), replica_site(to))),
            _ => None,
        }
    }

    /// The process of a position that takes from it.
    pub(crate) fn process(self) -> Option<Epoch> {
        match self {
            Self::ToLeaf { leaf, .. }
            | Self::ToCounter { leaf, .. }
            | Self::FromCounter { leaf, .. }
            | Self::FromMetadata { leaf, .. }
            | Self::Up { to: leaf, .. }
            | Self::Down { to: leaf, .. } => Some(leaf),
            _ => None,
        }
    }

    /// The replica that takes from it.
    pub(crate) fn receiver(self) -> Option<usize> {
        match self {
            Self::ToMember { member, .. }
            | Self::Peer { to: member, .. }
            | Self::Request { member, .. }
            | Self::Store { member }
            | Self::Fetch { member } => Some(member),
            _ => None,
        }
    }
}

/// All streams.
#[derive(Debug, Default)]
pub(crate) struct Net {
    /// None of them empty.
    streams: BTreeMap<Stream, VecDeque<Packet>>,
    /// Until which event.
    stalled: BTreeMap<Stream, u64>,
    pub(crate) cuts: Vec<Cut>,
    /// Metadata takes nothing before this event.
    pub(crate) away_until: u64,
    /// Lost, and the sender does not know.
    lost: BTreeSet<Stream>,
    /// The most messages that any stream ever held.
    pub(crate) longest: usize,
}

impl Net {
    pub(crate) fn push(&mut self, stream: Stream, packet: Packet) {
        if self.lost.contains(&stream) {
            return;
        }
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
        let stalled = move |stream: &Stream| self.stalled.get(stream).is_some_and(|until| *until > event);
        let away = move |stream: &Stream| matches!(stream, Stream::ToMetadata { .. }) && self.away_until > event;
        let here = move |stream: &Stream| !stalled(stream) && !away(stream) && !self.is_cut(*stream, event);
        self.streams.keys().copied().filter(here)
    }

    /// Whether a partition is in its way.
    pub(crate) fn is_cut(&self, stream: Stream, event: u64) -> bool {
        let Some((from, to)) = stream.ends().filter(|_| !self.cuts.is_empty()) else { return false };
        self.cuts.iter().any(|cut| cut.until > event && cut.from & from != 0 && cut.to & to != 0)
    }

    /// Whether a partition keeps one process of a position from another.
    pub(crate) fn is_apart(&self, from: Epoch, to: Epoch, event: u64) -> bool {
        self.is_cut(Stream::Up { from, to }, event) || self.is_cut(Stream::Up { from: to, to: from }, event)
    }

    /// What is in it and not among the first `keep` is lost, and so is what comes until the sender is told.
    pub(crate) fn lose(&mut self, stream: Stream, keep: usize) {
        self.cut(stream, keep);
        self.lost.insert(stream);
    }

    /// The streams that are lost.
    pub(crate) fn lost(&self) -> impl Iterator<Item = Stream> + use<'_> {
        self.lost.iter().copied()
    }

    pub(crate) fn is_lost(&self, stream: Stream) -> bool {
        self.lost.contains(&stream)
    }

    /// The sender knows.
    pub(crate) fn found(&mut self, stream: Stream) {
        self.lost.remove(&stream);
    }

    /// What is in a stream, the next to be delivered first.
    pub(crate) fn packets(&self, stream: Stream) -> impl Iterator<Item = &Packet> {
        self.streams.get(&stream).into_iter().flatten()
    }

    /// The streams that have something in them, or may have.
    pub(crate) fn streams(&self) -> impl Iterator<Item = Stream> + use<'_> {
        self.streams.keys().copied()
    }

    /// Nothing comes out of `stream` before the event `until`.
    pub(crate) fn stall(&mut self, stream: Stream, until: u64) {
        self.stalled.insert(stream, until);
    }

    pub(crate) fn end_stalls(&mut self) {
        self.stalled.clear();
        self.cuts.clear();
        self.away_until = 0;
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
        self.lost.retain(|stream| !gone(*stream));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_keep_their_order_and_stall_alone() {
        let mut net = Net::default();
        let (a, b) = (Stream::ToCounter { leaf: Epoch(1), shard: 0 }, Stream::ToCounter { leaf: Epoch(2), shard: 0 });
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
