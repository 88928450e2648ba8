//! One suite for all transports, and what only a stream of bytes can get wrong.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::*;
use crate::api::{AppendRequest, Welcome};
use crate::ids::{ClusterId, Color, ReplicaId, SessionId, ShardId, Token};
use crate::limits::MAX_FRAME_BYTES;
use crate::record::{Append, Record};
use crate::wire;

const PATIENCE: Duration = Duration::from_secs(10);

fn cluster() -> ClusterId {
    ClusterId(Uuid::from_u128(77))
}

/// A node's end that hands out what it accepts, whatever the transport.
struct Bench {
    connector: Box<dyn Connect>,
    accepted: mpsc::Receiver<Result<NodeConnection, ConnectError>>,
}

impl Bench {
    async fn tcp() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (send, accepted) = mpsc::channel(8);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let accepted = tcp::accept_client(stream, &Hello::node(cluster()), PATIENCE).await;
                if send.send(accepted).await.is_err() {
                    return;
                }
            }
        });
        Self { connector: Box::new(tcp::Connector::new(address, PATIENCE)), accepted }
    }

    #[cfg(feature = "quic")]
    async fn quic() -> Self {
        let ca = quic::tests::Ca::new("FlexLog test");
        let listener = quic::Listener::bind("127.0.0.1:0", ca.credentials("node")).await.unwrap();
        let address = listener.local_addr().to_string();
        let (send, accepted) = mpsc::channel(8);
        tokio::spawn(async move {
            while let Ok(incoming) = listener.accept().await {
                let accepted = quic::accept_client(incoming, &Hello::node(cluster()), PATIENCE).await;
                if send.send(accepted).await.is_err() {
                    return;
                }
            }
        });
        Self { connector: Box::new(quic::Connector::new(address, ca.credentials("client"), PATIENCE)), accepted }
    }

    fn in_process() -> Self {
        let (connector, mut listener) = in_process::listen("a node in this process", Hello::node(cluster()));
        let (send, accepted) = mpsc::channel(8);
        tokio::spawn(async move {
            while let Some(connection) = listener.accept().await {
                if send.send(Ok(connection)).await.is_err() {
                    return;
                }
            }
        });
        Self { connector: Box::new(connector), accepted }
    }

    async fn pair(&mut self) -> (ClientConnection, NodeConnection) {
        let client = self.connector.connect(&Hello::client(ClusterId::default())).await.unwrap();
        let node = self.accepted.recv().await.unwrap().unwrap();
        (client, node)
    }
}

fn append(bytes: usize) -> Request {
    let token = Token { shard: ShardId(0), session: SessionId::default(), seq: 1 };
    let record = Record::new(vec![9; bytes]).unwrap();
    let append = Append::new(token, Color(1), None, vec![record]).unwrap();
    Request::Append(Arc::new(AppendRequest {
        shard: token.shard,
        session: token.session,
        low: 1,
        members: vec![ReplicaId(1)],
        appends: vec![Arc::new(append)],
    }))
}

async fn recv_exactly<M>(receiver: &mut dyn Receiver<M>, count: usize) -> Vec<M> {
    let mut messages = Vec::new();
    while messages.len() < count {
        assert!(receiver.recv(&mut messages).await.unwrap());
    }
    messages
}

async fn opening_words_are_exchanged_and_checked(mut bench: Bench) {
    let (client, node) = bench.pair().await;
    assert_eq!(client.hello, Hello::node(cluster()));
    assert_eq!(node.hello, Hello::client(ClusterId::default()));
    assert_eq!(client.peer, bench.connector.address());
    let versions = format!("speaks version 7 of the protocol, this node speaks {}", wire::VERSION);
    for (hello, words) in [
        (Hello { version: 7, ..Hello::client(cluster()) }, versions.as_str()),
        (Hello::client(ClusterId(Uuid::from_u128(78))), "is of cluster"),
        (Hello::node(cluster()), "both sides say that they are a node"),
    ] {
        let error = bench.connector.connect(&hello).await.unwrap_err();
        let ConnectError::Refused { address, reason } = error else { panic!("{error}") };
        assert_eq!(address, bench.connector.address());
        assert!(reason.contains(words), "{reason}");
    }
}

async fn messages_arrive_in_order_both_ways_at_once(mut bench: Bench) {
    let (mut client, mut node) = bench.pair().await;
    // Far more than any buffer or channel takes: each side must be able to read while it writes.
    let (count, batch) = (60_000_u64, 500);
    let requests = async {
        for from in (0..count).step_by(batch) {
            let mut batch = (from..from + batch as u64).map(|id| Request::Status { id }).collect();
            client.sender.send(&mut batch).await.unwrap();
            assert!(batch.is_empty());
        }
    };
    let echo = async {
        let (mut requests, mut answers) = (Vec::new(), Vec::new());
        let mut seen = 0;
        while seen < count {
            assert!(node.receiver.recv(&mut requests).await.unwrap());
            for request in requests.drain(..) {
                assert_eq!(request, Request::Status { id: seen });
                answers.push(Answer::Hole { id: seen });
                seen += 1;
            }
            node.sender.send(&mut answers).await.unwrap();
        }
    };
    let answers = async {
        let answers = recv_exactly(&mut *client.receiver, count as usize).await;
        assert!(answers.iter().zip(0..).all(|(answer, id)| *answer == Answer::Hole { id }));
    };
    tokio::join!(requests, echo, answers);
}

async fn large_messages_arrive_whole(mut bench: Bench) {
    let (mut client, mut node) = bench.pair().await;
    let sent: Vec<_> = [1, 70_000, 1 << 20, 300_000, 0].into_iter().map(append).collect();
    let mut batch = sent.clone();
    let (sent_well, got) = tokio::join!(client.sender.send(&mut batch), recv_exactly(&mut *node.receiver, sent.len()));
    sent_well.unwrap();
    assert_eq!(got, sent);
}

async fn dropped_calls_lose_nothing(mut bench: Bench) {
    let (mut client, mut node) = bench.pair().await;
    // A send that cannot finish, because nobody reads, and is dropped.
    let mut batch: Vec<_> = (0..20_000).map(|_| append(1000)).collect();
    let mut sending = Box::pin(client.sender.send(&mut batch));
    let polled = std::future::poll_fn(|context| std::task::Poll::Ready(sending.as_mut().poll(context))).await;
    assert!(polled.is_pending());
    drop(sending);
    assert!(batch.is_empty());
    // A recv that is dropped before anything came.
    let mut answers = Vec::new();
    {
        let mut waiting = Box::pin(client.receiver.recv(&mut answers));
        let polled = std::future::poll_fn(|context| std::task::Poll::Ready(waiting.as_mut().poll(context))).await;
        assert!(polled.is_pending());
    }
    node.sender.send(&mut vec![Answer::Hole { id: 1 }]).await.unwrap();
    assert!(client.receiver.recv(&mut answers).await.unwrap());
    assert_eq!(answers, [Answer::Hole { id: 1 }]);
    let mut last = vec![Request::Status { id: 5 }];
    let (sent, got) = tokio::join!(client.sender.send(&mut last), recv_exactly(&mut *node.receiver, 20_001));
    sent.unwrap();
    assert!(got[..20_000].iter().all(|request| *request == append(1000)));
    assert_eq!(got[20_000], Request::Status { id: 5 });
}

async fn a_side_that_is_gone_is_noticed(mut bench: Bench) {
    let (mut client, node) = bench.pair().await;
    drop(node);
    assert!(!matches!(client.receiver.recv(&mut Vec::new()).await, Ok(true)));
    let gone = async { while client.sender.send(&mut vec![Request::Status { id: 1 }]).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
    // And the other way round.
    let (client, mut node) = bench.pair().await;
    drop(client);
    assert!(!matches!(node.receiver.recv(&mut Vec::new()).await, Ok(true)));
}

async fn a_node_closes_in_words(mut bench: Bench) {
    let (mut client, mut node) = bench.pair().await;
    // Unread requests must not cost the client the reason.
    client.sender.send(&mut (0..500).map(|id| Request::Status { id }).collect()).await.unwrap();
    let closing = tokio::spawn(async move {
        close(&mut *node.sender, &mut *node.receiver, "the node is stopping".to_owned()).await;
    });
    let mut answers = Vec::new();
    assert!(client.receiver.recv(&mut answers).await.unwrap());
    assert_eq!(answers, [Answer::Closing { reason: "the node is stopping".to_owned() }]);
    assert!(!client.receiver.recv(&mut answers).await.unwrap());
    drop(client);
    closing.await.unwrap();
}

macro_rules! conformance {
    ($($name:ident),* $(,)?) => {
        mod over_tcp {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Bench::tcp().await).await;
            })*
        }
        #[cfg(feature = "quic")]
        mod over_quic {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Bench::quic().await).await;
            })*
        }
        mod over_channels {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Bench::in_process()).await;
            })*
        }
    };
}

conformance!(
    opening_words_are_exchanged_and_checked,
    messages_arrive_in_order_both_ways_at_once,
    large_messages_arrive_whole,
    dropped_calls_lose_nothing,
    a_side_that_is_gone_is_noticed,
    a_node_closes_in_words,
);

/// A raw socket to a node that has accepted it, the opening words done.
async fn raw(bench: &mut Bench) -> (TcpStream, NodeConnection) {
    let mut stream = TcpStream::connect(bench.connector.address()).await.unwrap();
    let mut out = bytes::BytesMut::new();
    wire::encode_hello(&Hello::client(cluster()), &mut out);
    stream.write_all(&out).await.unwrap();
    let node = bench.accepted.recv().await.unwrap().unwrap();
    let mut header = [0; 4];
    stream.read_exact(&mut header).await.unwrap();
    let mut welcome = vec![0; u32::from_le_bytes(header) as usize];
    stream.read_exact(&mut welcome).await.unwrap();
    assert_eq!(wire::decode_welcome(welcome.into()).unwrap(), Welcome::Accepted(Hello::node(cluster())));
    (stream, node)
}

/// Sends `bytes`, ends the stream if told so, and returns what the node has to say about it, on both sides.
async fn offend(bytes: &[u8], end: bool) -> (WireError, String) {
    let mut bench = Bench::tcp().await;
    let (mut stream, mut node) = raw(&mut bench).await;
    stream.write_all(bytes).await.unwrap();
    if end {
        stream.shutdown().await.unwrap();
    }
    let error = node.receiver.recv(&mut Vec::new()).await.unwrap_err();
    let reason = error.to_string();
    let NetError::Wire { source, .. } = error else { panic!("{error}") };
    let closing = tokio::spawn(async move { close(&mut *node.sender, &mut *node.receiver, reason).await });
    let mut said = Vec::new();
    stream.read_to_end(&mut said).await.unwrap();
    drop(stream);
    closing.await.unwrap();
    let answers = wire::decode_answers(said[4..].to_vec().into()).unwrap();
    let [Answer::Closing { reason }] = answers.as_slice() else { panic!("{answers:?}") };
    (source, reason.clone())
}

#[tokio::test]
async fn offenders_are_told_why_and_closed() {
    let (error, reason) = offend(b"GET / HTTP/1.1\r\n\r\n", false).await;
    assert!(matches!(error, WireError::FrameTooLarge { .. }));
    assert!(reason.contains("is the other side FlexLog?"), "{reason}");
    let too_large = (MAX_FRAME_BYTES as u32 + 1).to_le_bytes();
    assert!(matches!(offend(&too_large, false).await.0, WireError::FrameTooLarge { .. }));
    assert_eq!(offend(&[10, 0, 0, 0, 1, 2], true).await.0, WireError::Truncated { got: 6, want: 14 });
    assert_eq!(offend(&[10, 0], true).await.0, WireError::Truncated { got: 2, want: 4 });
    let (error, reason) = offend(&[3, 0, 0, 0, 0xff, 0xff, 0xff], false).await;
    assert!(matches!(error, WireError::Malformed(_)));
    assert!(reason.contains("malformed"), "{reason}");
}

#[tokio::test]
async fn strangers_are_turned_away_during_the_handshake() {
    let mut bench = Bench::tcp().await;
    // Says too much before it says who it is.
    let mut stream = TcpStream::connect(bench.connector.address()).await.unwrap();
    stream.write_all(b"SSH-2.0-OpenSSH\r\n").await.unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).await.unwrap();
    let Welcome::Refused(reason) = wire::decode_welcome(said[4..].to_vec().into()).unwrap() else { panic!() };
    assert!(reason.contains("is the other side FlexLog?"), "{reason}");
    drop(stream);
    assert!(matches!(bench.accepted.recv().await.unwrap(), Err(ConnectError::Broken(NetError::Wire { .. }))));
    // Leaves without a word.
    drop(TcpStream::connect(bench.connector.address()).await.unwrap());
    assert!(matches!(bench.accepted.recv().await.unwrap(), Err(ConnectError::Broken(NetError::Closed { .. }))));
}

/// Nodes speak to nodes, once the accepting side has heard who it is.
#[tokio::test]
async fn what_is_said_goes_by_the_role() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for hello in [Hello::node(cluster()), Hello::metadata(cluster())] {
        let accept = async {
            let (stream, _) = listener.accept().await.unwrap();
            let accepted = tcp::accept(stream, &Hello::node(cluster()), PATIENCE).await.unwrap();
            assert_eq!((accepted.hello(), accepted.certificate_name()), (&hello, None));
            assert!(accepted.peer().starts_with("127.0.0.1:"));
            // Any pair of messages does, here the client's the other way round.
            accepted.into_connection::<Request, Answer>()
        };
        let dial = async { tcp::connect_as::<Answer, Request>(&address, &hello, PATIENCE).await.unwrap() };
        let (mut accepted, mut dialed) = tokio::join!(accept, dial);
        accepted.sender.send(&mut vec![Request::Status { id: 3 }]).await.unwrap();
        assert_eq!(recv_exactly(&mut *dialed.receiver, 1).await, [Request::Status { id: 3 }]);
        dialed.sender.send(&mut vec![Answer::Hole { id: 3 }]).await.unwrap();
        assert_eq!(recv_exactly(&mut *accepted.receiver, 1).await, [Answer::Hole { id: 3 }]);
    }
}

#[tokio::test]
async fn nobody_and_silence_are_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let patience = Duration::from_millis(20);
    let silent = tcp::connect(&address, &Hello::client(cluster()), patience).await.unwrap_err();
    assert!(matches!(silent, ConnectError::TimedOut { after, .. } if after == patience), "{silent}");
    drop(listener);
    let nobody = tcp::connect(&address, &Hello::client(cluster()), PATIENCE).await.unwrap_err();
    assert!(matches!(nobody, ConnectError::Unreachable { .. }), "{nobody}");
    assert!(nobody.to_string().contains(&address));
}

/// A header that promises much does not get memory for it.
#[tokio::test]
async fn memory_follows_what_has_come() {
    let (mut far, near) = tokio::io::duplex(1 << 20);
    let mut reader = FrameReader::new(near, MAX_FRAME_BYTES);
    far.write_all(&(MAX_FRAME_BYTES as u32).to_le_bytes()).await.unwrap();
    far.write_all(&[0; 1000]).await.unwrap();
    let mut next = Box::pin(reader.next());
    let polled = std::future::poll_fn(|context| std::task::Poll::Ready(next.as_mut().poll(context))).await;
    assert!(polled.is_pending());
    drop(next);
    assert!(reader.buffered_capacity() <= 256 << 10, "{}", reader.buffered_capacity());
}
