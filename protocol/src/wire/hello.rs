//! The opening words of a connection on the wire, and whether two sides can talk.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message as _;
use uuid::Uuid;

use super::{VERSION, WireError, proto};
use crate::api::{Hello, Role, Welcome};
use crate::ids::ClusterId;

pub(super) fn uuid(bytes: &[u8]) -> Result<Uuid, WireError> {
    Uuid::from_slice(bytes).map_err(|_| WireError::Malformed("a UUID has 16 bytes"))
}

pub(super) fn cluster_bytes(cluster: ClusterId) -> Bytes {
    if cluster.0.is_nil() { Bytes::new() } else { Bytes::copy_from_slice(cluster.0.as_bytes()) }
}

pub(super) fn cluster(bytes: &[u8]) -> Result<ClusterId, WireError> {
    if bytes.is_empty() { Ok(ClusterId::default()) } else { uuid(bytes).map(ClusterId) }
}

fn to_proto(hello: &Hello) -> proto::Hello {
    let role = match hello.role {
        Role::Client => proto::Role::Client,
        Role::Node => proto::Role::Node,
        Role::Metadata => proto::Role::Metadata,
    };
    proto::Hello { version: hello.version, cluster: cluster_bytes(hello.cluster), role: role.into() }
}

fn from_proto(hello: &proto::Hello) -> Result<Hello, WireError> {
    let role = match hello.role() {
        proto::Role::Client => Role::Client,
        proto::Role::Node => Role::Node,
        proto::Role::Metadata => Role::Metadata,
        proto::Role::Unspecified => return Err(WireError::Malformed("the opening words name no role")),
    };
    Ok(Hello { version: hello.version, cluster: cluster(&hello.cluster)?, role })
}

fn frame(message: &impl prost::Message, out: &mut BytesMut) {
    out.put_u32_le(message.encoded_len() as u32);
    out.put_slice(&message.encode_to_vec());
}

/// Puts a frame with the client's opening words at the end of `out`.
pub fn encode_hello(hello: &Hello, out: &mut BytesMut) {
    frame(&to_proto(hello), out);
}

/// The opening words in a frame, its header taken off.
///
/// # Errors
/// `NotProtobuf` and `Malformed`.
pub fn decode_hello(frame: Bytes) -> Result<Hello, WireError> {
    from_proto(&proto::Hello::decode(frame)?)
}

/// Puts a frame with the node's answer to the opening words at the end of `out`.
pub fn encode_welcome(welcome: &Welcome, out: &mut BytesMut) {
    let kind = match welcome {
        Welcome::Accepted(hello) => proto::welcome::Kind::Accepted(to_proto(hello)),
        Welcome::Refused(reason) => proto::welcome::Kind::Refused(reason.clone()),
    };
    frame(&proto::Welcome { kind: Some(kind) }, out);
}

/// The node's answer in a frame, its header taken off.
///
/// # Errors
/// `NotProtobuf` and `Malformed`.
pub fn decode_welcome(frame: Bytes) -> Result<Welcome, WireError> {
    match proto::Welcome::decode(frame)?.kind {
        Some(proto::welcome::Kind::Accepted(hello)) => Ok(Welcome::Accepted(from_proto(&hello)?)),
        Some(proto::welcome::Kind::Refused(reason)) => Ok(Welcome::Refused(reason)),
        None => Err(WireError::Malformed("the answer to the opening words neither accepts nor refuses")),
    }
}

/// Why the side that says `mine` cannot talk to the one that said `theirs`, in words; `None` if it can.
#[must_use]
pub fn mismatch(mine: &Hello, theirs: &Hello) -> Option<String> {
    let (me, them) = match (mine.role, theirs.role) {
        (Role::Client, _) => ("this client", "the node"),
        (Role::Node | Role::Metadata, Role::Client) => ("this node", "the client"),
        (Role::Node | Role::Metadata, Role::Node | Role::Metadata) => ("this node", "the other node"),
    };
    if theirs.version != mine.version {
        let (version, own) = (theirs.version, mine.version);
        return Some(format!(
            "{them} speaks version {version} of the protocol, {me} speaks {own}: update the older one"
        ));
    }
    if theirs.role != Role::Node && mine.role != Role::Node {
        return Some("neither side says that it is a node that serves: check the address".to_owned());
    }
    let any = ClusterId::default();
    if theirs.cluster != any && mine.cluster != any && theirs.cluster != mine.cluster {
        let (cluster, own) = (theirs.cluster, mine.cluster);
        return Some(format!("{them} is of cluster {cluster}, {me} of {own}: check the address"));
    }
    None
}

/// Why the side that said `theirs` is not served where only clients are, in words; `None` if it is a client.
#[must_use]
pub fn not_a_client(theirs: &Hello) -> Option<String> {
    let served = theirs.role == Role::Client;
    (!served).then(|| "both sides say that they are a node, and this one serves clients here: check the address".into())
}

impl Hello {
    /// The opening words of a client; [`ClusterId::default`] where it does not know the cluster.
    #[must_use]
    pub fn client(cluster: ClusterId) -> Self {
        Self { version: VERSION, cluster, role: Role::Client }
    }

    /// The opening words of a node.
    #[must_use]
    pub fn node(cluster: ClusterId) -> Self {
        Self { version: VERSION, cluster, role: Role::Node }
    }

    /// The opening words of a node that wants the metadata which another one keeps.
    #[must_use]
    pub fn metadata(cluster: ClusterId) -> Self {
        Self { version: VERSION, cluster, role: Role::Metadata }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(out: &BytesMut) -> Bytes {
        assert_eq!(super::super::announced(out), Some(out.len() - 4));
        Bytes::copy_from_slice(&out[4..])
    }

    #[test]
    fn opening_words_round_trip() {
        let cluster = ClusterId(Uuid::from_u128(7));
        for hello in [Hello::client(ClusterId::default()), Hello::node(cluster), Hello::metadata(cluster)] {
            let mut out = BytesMut::new();
            encode_hello(&hello, &mut out);
            assert_eq!(decode_hello(body(&out)).unwrap(), hello);
            for welcome in [Welcome::Accepted(hello), Welcome::Refused("no".into())] {
                let mut out = BytesMut::new();
                encode_welcome(&welcome, &mut out);
                assert_eq!(decode_welcome(body(&out)).unwrap(), welcome);
            }
        }
    }

    #[test]
    fn opening_words_without_a_role_or_with_half_a_cluster_are_malformed() {
        assert_eq!(
            decode_welcome(Bytes::new()),
            Err(WireError::Malformed("the answer to the opening words neither accepts nor refuses"))
        );
        assert_eq!(decode_hello(Bytes::new()), Err(WireError::Malformed("the opening words name no role")));
        let half = proto::Hello { version: 1, cluster: Bytes::from_static(&[1; 8]), role: 1 };
        assert_eq!(decode_hello(half.encode_to_vec().into()), Err(WireError::Malformed("a UUID has 16 bytes")));
    }

    #[test]
    fn who_cannot_talk_is_told_why() {
        let (one, two) = (ClusterId(Uuid::from_u128(1)), ClusterId(Uuid::from_u128(2)));
        let node = Hello::node(one);
        assert_eq!(mismatch(&node, &Hello::client(one)), None);
        assert_eq!(mismatch(&node, &Hello::client(ClusterId::default())), None);
        let why = mismatch(&node, &Hello { version: 7, ..Hello::client(one) }).unwrap();
        assert!(
            why.contains(&format!("the client speaks version 7 of the protocol, this node speaks {VERSION}")),
            "{why}"
        );
        assert!(mismatch(&node, &Hello::client(two)).unwrap().contains("cluster"));
        assert!(mismatch(&Hello::metadata(one), &Hello::client(one)).unwrap().contains("neither side"));
        for other in [Hello::node(one), Hello::metadata(one)] {
            assert_eq!(mismatch(&node, &other), None);
            assert_eq!(mismatch(&other, &node), None);
            assert!(not_a_client(&other).unwrap().contains("this one serves clients here"));
            let old = Hello { version: 0, ..other };
            assert!(mismatch(&node, &old).unwrap().contains("the other node speaks version 0"));
        }
        assert_eq!(not_a_client(&Hello::client(one)), None);
    }
}
