//! The baseline omnipaxos: three nodes, a process each, that replicate values of 64 bytes in memory. Their messages travel
//! over the same connections and in the same frames as ours, encoded by postcard.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use clap::Args;
use flexlog_protocol::ClusterId;
use flexlog_protocol::api::{Hello, Role};
use flexlog_protocol::net::{Connection, tcp};
use flexlog_protocol::wire::{self, HEADER_BYTES, Message as Framed, TARGET_FRAME_BYTES, WireError};
use omnipaxos::messages::Message;
use omnipaxos::storage::{Entry, NoSnapshot};
use omnipaxos::util::LogEntry;
use omnipaxos::{ClusterConfig, OmniPaxos, OmniPaxosConfig, ServerConfig};
use omnipaxos_storage::memory_storage::MemoryStorage;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{LocalSet, spawn_local};

use super::load::Target;
use crate::Outcome;
use crate::servers::ready;

/// What a user would propose: 64 bytes, of which the first 8 name the request.
const VALUE_BYTES: usize = 64;
const TICK: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(5);
/// Decided values are forgotten when there are so many.
const TRIM_EVERY: usize = 1 << 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct Value([u8; VALUE_BYTES]);

impl Value {
    fn new(id: u64) -> Self {
        let mut bytes = [b'x'; VALUE_BYTES];
        bytes[..8].copy_from_slice(&id.to_le_bytes());
        Self(bytes)
    }

    fn id(&self) -> u64 {
        u64::from_le_bytes(self.0.first_chunk().copied().unwrap_or_default())
    }
}

// As one piece: byte by byte would cost the baseline more than it has to.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pieces;
        impl Visitor<'_> for Pieces {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{VALUE_BYTES} bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Value, E> {
                bytes.try_into().map(Value).map_err(|_| E::invalid_length(bytes.len(), &self))
            }
        }
        deserializer.deserialize_bytes(Pieces)
    }
}

impl Entry for Value {
    type Snapshot = NoSnapshot;
}

/// What nodes and clients say.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Word {
    Propose(Value),
    Decided(u64),
    Paxos(Message<Value>),
}

fn malformed<E>(_: E) -> WireError {
    WireError::Malformed("not a message of the omnipaxos baseline")
}

impl Framed for Word {
    fn encode(batch: &[Self], out: &mut BytesMut) -> Result<(), WireError> {
        let mut open: Option<usize> = None;
        let close = |out: &mut BytesMut, start: usize| {
            let bytes = (out.len() - start - HEADER_BYTES) as u32;
            out[start..start + HEADER_BYTES].copy_from_slice(&bytes.to_le_bytes());
        };
        for word in batch {
            let start = open.unwrap_or_else(|| {
                out.put_u32_le(0);
                out.len() - HEADER_BYTES
            });
            out.extend_from_slice(&postcard::to_allocvec(word).map_err(malformed)?);
            open = Some(start);
            if out.len() - start > TARGET_FRAME_BYTES {
                close(out, start);
                open = None;
            }
        }
        if let Some(start) = open {
            close(out, start);
        }
        Ok(())
    }

    fn decode(frame: Bytes, into: &mut Vec<Self>) -> Result<(), WireError> {
        let mut rest = &frame[..];
        while !rest.is_empty() {
            let (word, after) = postcard::take_from_bytes(rest).map_err(malformed)?;
            into.push(word);
            rest = after;
        }
        Ok(())
    }
}

fn hello(role: Role) -> Hello {
    Hello { version: wire::VERSION, cluster: ClusterId::default(), role }
}

/// Arguments of a node.
#[derive(Args)]
pub(crate) struct OmniArgs {
    /// Which of the nodes it is, from 1 up.
    node: u64,
    /// Where all of them listen, in order.
    addresses: Vec<String>,
}

/// Words on their way.
#[derive(Default)]
struct Mailbox {
    words: RefCell<Vec<Word>>,
    filled: Notify,
}

impl Mailbox {
    fn put(&self, words: impl IntoIterator<Item = Word>) {
        self.words.borrow_mut().extend(words);
        self.filled.notify_one();
    }

    async fn take(&self) -> Vec<Word> {
        loop {
            let words = self.words.take();
            if !words.is_empty() {
                return words;
            }
            self.filled.notified().await;
        }
    }
}

/// Runs one node.
pub(crate) fn serve(args: OmniArgs) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, node(args))
}

async fn read(connection: Connection<Word, Word>, inbox: Rc<Mailbox>, clients: Rc<RefCell<Vec<Rc<Mailbox>>>>) {
    let Connection { mut sender, mut receiver, hello, .. } = connection;
    let outbox = Rc::new(Mailbox::default());
    if hello.role == Role::Client {
        clients.borrow_mut().push(Rc::clone(&outbox));
    }
    let write = async { while sender.send(&mut outbox.take().await).await.is_ok() {} };
    let read = async {
        let mut words = Vec::new();
        while receiver.recv(&mut words).await.is_ok_and(|more| more) {
            inbox.put(words.drain(..));
        }
    };
    tokio::select! {
        () = write => {}
        () = read => {}
    }
    clients.borrow_mut().retain(|client| !Rc::ptr_eq(client, &outbox));
}

/// Keeps a connection to another node, for what is said to it.
async fn write(address: String, outbox: Rc<Mailbox>) {
    loop {
        let connection = tcp::connect_as::<Word, Word>(&address, &hello(Role::Node), PATIENCE).await;
        if let Ok(mut connection) = connection {
            while connection.sender.send(&mut outbox.take().await).await.is_ok() {}
        }
        tokio::time::sleep(TICK).await;
    }
}

async fn node(OmniArgs { node, addresses }: OmniArgs) -> Outcome<()> {
    let own = addresses.get(node as usize - 1).ok_or("the node has no address")?;
    let listener = TcpListener::bind(own).await?;
    let (inbox, clients) = (Rc::new(Mailbox::default()), Rc::new(RefCell::new(Vec::new())));
    let (into, of) = (Rc::clone(&inbox), Rc::clone(&clients));
    spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(accepted) = tcp::accept_if(stream, &hello(Role::Node), PATIENCE, |_| None).await {
                spawn_local(read(accepted.into_connection(), Rc::clone(&into), Rc::clone(&of)));
            }
        }
    });
    let peers: Vec<Rc<Mailbox>> = addresses
        .iter()
        .zip(1..)
        .map(|(address, other)| {
            let outbox = Rc::new(Mailbox::default());
            if other != node {
                spawn_local(write(address.clone(), Rc::clone(&outbox)));
            }
            outbox
        })
        .collect();
    let nodes = (1..=addresses.len() as u64).collect();
    let server = ServerConfig {
        pid: node,
        election_tick_timeout: 10,
        resend_message_tick_timeout: 100,
        // The first node leads: it is the one that clients speak to.
        leader_priority: u32::from(node == 1),
        ..ServerConfig::default()
    };
    let cluster = ClusterConfig { configuration_id: 1, nodes, flexible_quorum: None };
    let config = OmniPaxosConfig { cluster_config: cluster, server_config: server };
    let paxos: OmniPaxos<Value, MemoryStorage<Value>> =
        config.build(MemoryStorage::default()).map_err(|error| format!("omnipaxos: {error:?}"))?;
    run(paxos, &inbox, &peers, &clients).await
}

async fn run(
    mut paxos: OmniPaxos<Value, MemoryStorage<Value>>,
    inbox: &Mailbox,
    peers: &[Rc<Mailbox>],
    clients: &RefCell<Vec<Rc<Mailbox>>>,
) -> Outcome<()> {
    let mut ticks = tokio::time::interval(TICK);
    let (mut proposed, mut outgoing) = (Vec::new(), Vec::new());
    let (told, mut trimmed) = (Cell::new(0), 0);
    let mut serves = false;
    loop {
        tokio::select! {
            words = inbox.take() => for word in words {
                match word {
                    Word::Propose(value) => proposed.push(value),
                    Word::Paxos(message) => paxos.handle_incoming(message),
                    Word::Decided(_) => {}
                }
            },
            _ = ticks.tick() => paxos.tick(),
        }
        if paxos.get_current_leader().is_some_and(|(_, accepting)| accepting) {
            if !serves {
                serves = true;
                ready("omnipaxos");
            }
            for value in proposed.drain(..) {
                paxos.append(value).map_err(|error| format!("omnipaxos: {error:?}"))?;
            }
        }
        let decided = paxos.get_decided_idx();
        if decided > told.get() {
            let suffix = paxos.read_decided_suffix(told.replace(decided)).unwrap_or_default();
            let ids = suffix.iter().filter_map(|entry| match entry {
                LogEntry::Decided(value) => Some(Word::Decided(value.id())),
                _ => None,
            });
            clients.borrow().iter().for_each(|client| client.put(ids.clone()));
            if decided - trimmed > TRIM_EVERY {
                // Only the leader's goes through, and only what all have: else it is done later.
                let upto = decided - TRIM_EVERY / 2;
                if paxos.trim(Some(upto)).is_ok() {
                    trimmed = upto;
                }
            }
        }
        paxos.take_outgoing_messages(&mut outgoing);
        for message in outgoing.drain(..) {
            if let Some(peer) = peers.get(message.get_receiver() as usize - 1) {
                peer.put([Word::Paxos(message)]);
            }
        }
    }
}

/// A client of one node.
pub(super) struct OmniClient {
    connection: Connection<Word, Word>,
    batch: Vec<Word>,
    words: Vec<Word>,
}

impl OmniClient {
    pub(super) async fn connect(address: &str) -> Outcome<Self> {
        let connection = tcp::connect_as(address, &hello(Role::Client), PATIENCE).await?;
        Ok(Self { connection, batch: Vec::new(), words: Vec::new() })
    }
}

impl Target for OmniClient {
    fn ask(&mut self, id: u64) -> Outcome<()> {
        self.batch.push(Word::Propose(Value::new(id)));
        Ok(())
    }

    async fn answered(&mut self, into: &mut Vec<u64>) -> Outcome<()> {
        self.connection.sender.send(&mut self.batch).await?;
        if !self.connection.receiver.recv(&mut self.words).await? {
            return Err("the omnipaxos node closed the connection".into());
        }
        into.extend(self.words.drain(..).filter_map(|word| match word {
            Word::Decided(id) => Some(id),
            _ => None,
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_arrive_as_they_were_sent() {
        let words: Vec<Word> = (0..10_000).map(|id| Word::Propose(Value::new(id))).collect();
        let mut out = BytesMut::new();
        Word::encode(&words, &mut out).unwrap();
        let mut heard = Vec::new();
        while let Some(frame) = wire::split_frame(&mut out, 1 << 20).unwrap() {
            Word::decode(frame, &mut heard).unwrap();
        }
        let ids = heard.iter().map(|word| if let Word::Propose(value) = word { value.id() } else { u64::MAX });
        assert!(ids.eq(0..10_000));
    }
}
