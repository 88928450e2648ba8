//! What is said over a connection, and how it looks on the wire: `proto/flexlog/metadata/v1/metadata.proto`.

use bytes::{BufMut, Bytes, BytesMut};
use flexlog_protocol::limits::MAX_FRAME_BYTES;
use flexlog_protocol::wire::{HEADER_BYTES, Message, TARGET_FRAME_BYTES, WireError};
use prost::Message as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::key::{Key, Kind};
use crate::metadata::{Changes, CommitError, Page, ReadError, Revision, Versioned};
use crate::transaction::Transaction;

mod proto {
    #![allow(missing_docs, unused_qualifications, clippy::pedantic)]
    include!(concat!(env!("OUT_DIR"), "/flexlog.metadata.v1.rs"));
}

/// To the process that keeps the metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetadataRequest {
    /// Not in use by another request of the connection.
    pub(super) id: u64,
    pub(super) question: Question,
}

/// From the process that keeps the metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetadataAnswer {
    /// Of the request.
    pub(super) id: u64,
    pub(super) reply: Reply,
}

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Question {
    /// The first words of a connection: whose it is, and its place among those of the same.
    Begin {
        client: Uuid,
        dial: u64,
    },
    Get(Key),
    List {
        kind: Kind,
        after: Option<Key>,
        limit: usize,
    },
    Commit(Transaction),
    /// Starts a watch, named by the id of this request.
    Watch {
        after: Revision,
    },
    /// The next event of a watch.
    Next {
        watch: u64,
    },
    /// Ends a watch. Has no answer.
    Leave {
        watch: u64,
    },
    /// Whether the other side is there.
    Ping,
}

/// What is answered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Reply {
    Begun,
    Found(Option<Versioned>),
    Page(Page),
    Committed(Revision),
    NotCommitted(Failure),
    Watching,
    Changes(Changes),
    Lagged { revision: Revision },
    NotRead(ReadError),
    Pong,
}

/// A [`CommitError`] as it travels.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Failure {
    Conflict { key: Key },
    Refused { what: String, why: String },
    Unavailable { what: String, why: String },
    Unknown { what: String, why: String },
}

impl Failure {
    /// `what` is the store, for the one error that does not name it.
    pub(super) fn new(error: CommitError, what: String) -> Self {
        match error {
            CommitError::Conflict { key } => Self::Conflict { key },
            // The other side has checked it by the same rules: it is of another version.
            CommitError::Invalid(rule) => {
                Self::Refused { what, why: format!("{rule}. Do both processes run the same version of the program?") }
            }
            CommitError::Refused { what, why } => Self::Refused { what, why },
            CommitError::Unavailable { what, why } => Self::Unavailable { what, why },
            CommitError::Unknown { what, why } => Self::Unknown { what, why },
        }
    }
}

impl From<Failure> for CommitError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Conflict { key } => Self::Conflict { key },
            Failure::Refused { what, why } => Self::Refused { what, why },
            Failure::Unavailable { what, why } => Self::Unavailable { what, why },
            Failure::Unknown { what, why } => Self::Unknown { what, why },
        }
    }
}

fn to_json(value: &impl Serialize) -> Result<Bytes, WireError> {
    serde_json::to_vec(value).map(Bytes::from).map_err(|e| WireError::NotProtobuf(e.to_string()))
}

fn from_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, WireError> {
    serde_json::from_slice(json).map_err(|e| WireError::NotProtobuf(format!("the metadata in it cannot be read: {e}")))
}

impl Message for MetadataRequest {
    fn encode(batch: &[Self], out: &mut BytesMut) -> Result<(), WireError> {
        frames(batch, out, |request| {
            Ok(proto::Request { id: request.id, question: to_json(&request.question)? }.encode_to_vec())
        })
    }

    fn decode(frame: Bytes, into: &mut Vec<Self>) -> Result<(), WireError> {
        for request in proto::Requests::decode(frame)?.requests {
            into.push(Self { id: request.id, question: from_json(&request.question)? });
        }
        Ok(())
    }
}

impl Message for MetadataAnswer {
    fn encode(batch: &[Self], out: &mut BytesMut) -> Result<(), WireError> {
        frames(batch, out, |answer| Ok(proto::Answer { id: answer.id, reply: to_json(&answer.reply)? }.encode_to_vec()))
    }

    fn decode(frame: Bytes, into: &mut Vec<Self>) -> Result<(), WireError> {
        for answer in proto::Answers::decode(frame)?.answers {
            into.push(Self { id: answer.id, reply: from_json(&answer.reply)? });
        }
        Ok(())
    }
}

/// Puts messages, each a `repeated` field 1, into frames at the end of `out`; on an error `out` is as it was.
fn frames<M>(
    batch: &[M],
    out: &mut BytesMut,
    encode: impl Fn(&M) -> Result<Vec<u8>, WireError>,
) -> Result<(), WireError> {
    let before = out.len();
    let done = (|| {
        // Where the open frame begins.
        let mut open = None;
        for message in batch {
            let body = encode(message)?;
            let with_key = 1 + prost::length_delimiter_len(body.len()) + body.len();
            if with_key > MAX_FRAME_BYTES {
                return Err(WireError::MessageTooLarge { bytes: body.len() });
            }
            if let Some(start) = open.filter(|start| out.len() - start - HEADER_BYTES + with_key > TARGET_FRAME_BYTES) {
                close(out, start);
                open = None;
            }
            if open.is_none() {
                open = Some(out.len());
                out.put_u32_le(0);
            }
            // Field 1, length-delimited.
            out.put_u8(1 << 3 | 2);
            let length = prost::encode_length_delimiter(body.len(), out);
            length.map_err(|e| WireError::NotProtobuf(e.to_string()))?;
            out.put_slice(&body);
        }
        if let Some(start) = open {
            close(out, start);
        }
        Ok(())
    })();
    if done.is_err() {
        out.truncate(before);
    }
    done
}

fn close(out: &mut BytesMut, start: usize) {
    let bytes = (out.len() - start - HEADER_BYTES) as u32;
    out[start..start + HEADER_BYTES].copy_from_slice(&bytes.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use flexlog_protocol::wire::split_frame;
    use flexlog_protocol::{Color, Position};

    use super::*;
    use crate::ColorName;
    use crate::record::PositionRecord;

    fn decoded<M: Message>(mut bytes: BytesMut) -> (Vec<M>, usize) {
        let (mut all, mut frames) = (Vec::new(), 0);
        while let Some(frame) = split_frame(&mut bytes, MAX_FRAME_BYTES).unwrap() {
            M::decode(frame, &mut all).unwrap();
            frames += 1;
        }
        assert!(bytes.is_empty());
        (all, frames)
    }

    fn key() -> Key {
        Key::ColorName(ColorName::new("a \"b\"\u{e9}").unwrap())
    }

    #[test]
    fn what_is_said_is_what_is_heard() {
        let root = PositionRecord {
            position: Position(0),
            parent: None,
            name: "root".into(),
            address: String::new(),
            holder: None,
        };
        let transaction = Transaction::new()
            .when(key(), Revision(u64::MAX))
            .when_absent(Key::Cluster)
            .put(Key::Position(Position(0)), root.clone())
            .delete(key());
        let questions = [
            Question::Begin { client: Uuid::from_u128(7), dial: 3 },
            Question::Get(key()),
            Question::List { kind: Kind::ColorName, after: Some(key()), limit: 9 },
            Question::List { kind: Kind::Cluster, after: None, limit: usize::MAX },
            Question::Commit(transaction),
            Question::Watch { after: Revision(1) },
            Question::Next { watch: 4 },
            Question::Leave { watch: 4 },
            Question::Ping,
        ];
        let requests: Vec<_> =
            (0..).zip(questions).map(|(id, question)| MetadataRequest { id: id * 1000, question }).collect();
        let mut out = BytesMut::new();
        Message::encode(&requests, &mut out).unwrap();
        assert_eq!(decoded::<MetadataRequest>(out), (requests, 1));

        let found = Versioned { version: Revision(5), value: root.clone().into() };
        let page = Page { entries: vec![(Key::Position(Position(0)), found.clone())], revision: Revision(9) };
        let change = |value| crate::Change { key: Key::Position(Position(0)), value };
        let changes = Changes { revision: Revision(2), changes: vec![change(Some(root.into())), change(None)] };
        let (what, why) = ("it".to_owned(), "so".to_owned());
        let replies = [
            Reply::Begun,
            Reply::Found(None),
            Reply::Found(Some(found)),
            Reply::Page(page),
            Reply::Committed(Revision(3)),
            Reply::NotCommitted(Failure::Conflict { key: key() }),
            Reply::NotCommitted(Failure::Unknown { what: what.clone(), why: why.clone() }),
            Reply::Watching,
            Reply::Changes(changes),
            Reply::Lagged { revision: Revision(1) },
            Reply::NotRead(ReadError::TooManyWatchers { what: what.clone(), limit: 3 }),
            Reply::NotRead(ReadError::Unavailable { what, why }),
            Reply::Pong,
        ];
        let answers: Vec<_> = (0..).zip(replies).map(|(id, reply)| MetadataAnswer { id, reply }).collect();
        let mut out = BytesMut::new();
        Message::encode(&answers, &mut out).unwrap();
        assert_eq!(decoded::<MetadataAnswer>(out), (answers, 1));
    }

    #[test]
    fn frames_are_closed_in_time_and_never_too_long() {
        let long = |bytes| MetadataAnswer {
            id: 1,
            reply: Reply::NotCommitted(Failure::Refused { what: "x".repeat(bytes), why: String::new() }),
        };
        let batch: Vec<_> = (0..10).map(|_| long(TARGET_FRAME_BYTES / 4)).collect();
        let mut out = BytesMut::from(&b""[..]);
        Message::encode(&batch, &mut out).unwrap();
        assert_eq!(decoded::<MetadataAnswer>(out), (batch, 4));

        let mut out = BytesMut::from(&b"before"[..]);
        let refused = Message::encode(&[long(1), long(MAX_FRAME_BYTES)], &mut out);
        assert!(matches!(refused, Err(WireError::MessageTooLarge { .. })));
        assert_eq!(&out[..], b"before");
    }

    #[test]
    fn what_is_not_the_protocol_is_refused_in_words() {
        let refused = |question: &'static [u8]| {
            let request = proto::Request { id: 1, question: Bytes::from_static(question) };
            let frame = proto::Requests { requests: vec![request] }.encode_to_vec();
            MetadataRequest::decode(frame.into(), &mut Vec::new()).unwrap_err().to_string()
        };
        assert!(refused(b"{\"drop\":1}").contains("unknown variant `drop`"));
        assert!(refused(b"{\"get\":{\"color-name\":\" \"}}").contains("whitespace"));
        assert!(refused(b"").contains("cannot be read"));
        assert!(MetadataRequest::decode(Bytes::from_static(b"\xff"), &mut Vec::new()).is_err());
        let color = Question::Get(Key::Color(Color(1)));
        assert_eq!(serde_json::to_string(&color).unwrap(), r#"{"get":{"color":1}}"#);
    }
}
