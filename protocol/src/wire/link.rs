//! The frames that a stream between two processes is carried in; what they mean is with the machines of
//! `net::link`.

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use uuid::Uuid;

use super::scan::{self, Fields};
use super::{Frames, MAX_MESSAGES_PER_FRAME, Message, WireError, hello, proto};

/// The longest name of one who is addressed on a link, in bytes.
pub const MAX_PEER_NAME_BYTES: usize = 256;
/// The largest number of a piece of a stream. Nobody gets there; sums with it do not overflow.
const MAX_PIECES: u64 = super::MAX_SEQ;

/// A numbered piece of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parcel {
    /// Its place in the stream, from 0 up.
    pub seq: u64,
    /// What it holds goes on in the next one. Otherwise a message ends with it.
    pub more: bool,
    /// Encoded messages, or a part of one.
    pub content: Bytes,
}

/// What two processes say to each other on a connection. Messages go one way, from the one that dialed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkFrame {
    /// The first word of the one that dialed, and again after it learned that the stream is lost.
    Open {
        /// The process that speaks; drawn at its start.
        process: Uuid,
        /// Drawn when the numbering began.
        stream: Uuid,
        /// Who is addressed, for both sides to see that they mean the same.
        to: String,
        /// The first parcel that is not known to be received; `None` while nobody has welcomed the stream.
        first: Option<u64>,
    },
    /// The answer.
    Welcome {
        /// The process that speaks.
        process: Uuid,
        /// Every parcel below is received. `None`: the stream had begun and is not known here.
        next: Option<u64>,
    },
    /// A piece of the stream.
    Data(Parcel),
    /// Every parcel below is received. The other way.
    Ack {
        /// Exclusive.
        upto: u64,
    },
    /// The last word of the one that was dialed.
    Refused {
        /// In words.
        reason: String,
    },
}

impl Message for LinkFrame {
    fn encode(batch: &[Self], out: &mut BytesMut) -> Result<(), WireError> {
        let mut frames = Frames::new(out);
        for frame in batch {
            let frame = to_proto(frame);
            frames.message(frame.encoded_len(), |out| frame.encode_raw(out))?;
        }
        frames.close();
        Ok(())
    }

    fn decode(frame: Bytes, into: &mut Vec<Self>) -> Result<(), WireError> {
        let mut fields = Fields::new(&frame);
        let mut count = 0;
        while let Some((field, value)) = fields.next()? {
            if field == 1 {
                count += 1;
                if count > MAX_MESSAGES_PER_FRAME {
                    return Err(WireError::Malformed("a frame has too many messages"));
                }
                into.push(from_proto(proto::LinkFrame::decode(scan::share(&frame, value.bytes()?))?)?);
            }
        }
        Ok(())
    }
}

fn to_proto(frame: &LinkFrame) -> proto::LinkFrame {
    use proto::link_frame::Kind;
    let uuid = |uuid: &Uuid| Bytes::copy_from_slice(uuid.as_bytes());
    let kind = match frame {
        LinkFrame::Open { process, stream, to, first } => {
            Kind::Open(proto::LinkOpen { process: uuid(process), stream: uuid(stream), to: to.clone(), first: *first })
        }
        LinkFrame::Welcome { process, next } => {
            Kind::Welcome(proto::LinkWelcome { process: uuid(process), next: *next })
        }
        LinkFrame::Data(Parcel { seq, more, content }) => {
            Kind::Data(proto::LinkData { seq: *seq, more: *more, content: content.clone() })
        }
        LinkFrame::Ack { upto } => Kind::Ack(*upto),
        LinkFrame::Refused { reason } => Kind::Refused(reason.clone()),
    };
    proto::LinkFrame { kind: Some(kind) }
}

fn from_proto(frame: proto::LinkFrame) -> Result<LinkFrame, WireError> {
    use proto::link_frame::Kind;
    let place = |place: u64| {
        if place > MAX_PIECES {
            Err(WireError::Malformed("a place in a stream is at most 2^63 - 1"))
        } else {
            Ok(place)
        }
    };
    Ok(match frame.kind.ok_or(WireError::Malformed("a frame of a link is of no kind that version 1 knows"))? {
        Kind::Open(open) => {
            if open.to.len() > MAX_PEER_NAME_BYTES {
                return Err(WireError::Malformed("the name of the one who is addressed is too long"));
            }
            let (process, stream) = (hello::uuid(&open.process)?, hello::uuid(&open.stream)?);
            LinkFrame::Open { process, stream, to: open.to, first: open.first.map(place).transpose()? }
        }
        Kind::Welcome(welcome) => {
            LinkFrame::Welcome { process: hello::uuid(&welcome.process)?, next: welcome.next.map(place).transpose()? }
        }
        Kind::Data(data) => LinkFrame::Data(Parcel { seq: place(data.seq)?, more: data.more, content: data.content }),
        Kind::Ack(upto) => LinkFrame::Ack { upto: place(upto)? },
        Kind::Refused(reason) => LinkFrame::Refused { reason },
    })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::limits::MAX_FRAME_BYTES;
    use crate::wire::split_frame;

    fn frame() -> impl Strategy<Value = LinkFrame> {
        let uuid = || any::<u128>().prop_map(Uuid::from_u128);
        let place = || 0..=MAX_PIECES;
        prop_oneof![
            (uuid(), uuid(), "[a-z0-9 ]{0,40}", proptest::option::of(place()))
                .prop_map(|(process, stream, to, first)| LinkFrame::Open { process, stream, to, first }),
            (uuid(), proptest::option::of(place())).prop_map(|(process, next)| LinkFrame::Welcome { process, next }),
            (place(), any::<bool>(), vec(any::<u8>(), 0..300))
                .prop_map(|(seq, more, content)| { LinkFrame::Data(Parcel { seq, more, content: content.into() }) }),
            place().prop_map(|upto| LinkFrame::Ack { upto }),
            ".*".prop_map(|reason| LinkFrame::Refused { reason }),
        ]
    }

    proptest! {
        #[test]
        fn frames_round_trip(batch in vec(frame(), 0..20)) {
            let (mut out, mut back) = (BytesMut::new(), Vec::new());
            LinkFrame::encode(&batch, &mut out).unwrap();
            while let Some(frame) = split_frame(&mut out, MAX_FRAME_BYTES).unwrap() {
                LinkFrame::decode(frame, &mut back).unwrap();
            }
            prop_assert_eq!(back, batch);
        }

        #[test]
        fn bytes_that_came_about_by_chance_do_no_harm(bytes in vec(any::<u8>(), 0..200)) {
            let _ = LinkFrame::decode(bytes.into(), &mut Vec::new());
        }
    }

    #[test]
    fn contents_are_parts_of_their_frame() {
        let mut out = BytesMut::new();
        let parcel = Parcel { seq: 7, more: false, content: vec![1; 1000].into() };
        LinkFrame::encode(&[LinkFrame::Data(parcel)], &mut out).unwrap();
        let frame = split_frame(&mut out, MAX_FRAME_BYTES).unwrap().unwrap();
        let mut back = Vec::new();
        LinkFrame::decode(frame.clone(), &mut back).unwrap();
        let LinkFrame::Data(parcel) = &back[0] else { panic!("{back:?}") };
        assert!(frame.as_ptr_range().contains(&parcel.content.as_ptr()));
    }

    #[test]
    fn long_names_and_places_beyond_the_last_are_refused() {
        let open = LinkFrame::Open { process: Uuid::nil(), stream: Uuid::nil(), to: "x".repeat(257), first: None };
        for frame in [open, LinkFrame::Ack { upto: MAX_PIECES + 1 }] {
            let mut out = BytesMut::new();
            LinkFrame::encode(&[frame], &mut out).unwrap();
            let frame = split_frame(&mut out, MAX_FRAME_BYTES).unwrap().unwrap();
            assert!(matches!(LinkFrame::decode(frame, &mut Vec::new()), Err(WireError::Malformed(_))));
        }
    }
}
