//! The baseline libpaxos3, as its own client speaks to it: values go to a proposer, and a client learns of them as every
//! learner does, from the acceptors: a value is decided when most of them have accepted it. Messages are arrays in
//! msgpack, one behind the other on a TCP connection, their kind first.

use std::collections::HashMap;
use std::task::Poll;
use std::time::Duration;

use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::load::Target;
use crate::Outcome;

const VALUE_BYTES: usize = 64;
/// Kinds of messages.
const ACCEPTED: u64 = 3;
const CLIENT_VALUE: u8 = 8;
const PATIENCE: Duration = Duration::from_secs(5);

/// Arguments of a client.
#[derive(Args)]
pub(crate) struct LibpaxosArgs {
    /// Where the proposer listens.
    proposer: String,
    /// Where the acceptors listen.
    #[arg(required = true)]
    acceptors: Vec<String>,
}

/// What was done.
enum Step {
    Written(usize),
    /// From which acceptor.
    Read(usize),
}

pub(super) struct Libpaxos {
    proposer: TcpStream,
    acceptors: Vec<(TcpStream, Vec<u8>)>,
    out: Vec<u8>,
    /// Values that are not decided, and the acceptors that have accepted each.
    open: HashMap<u64, u64>,
    /// Values of other clients have other first bytes.
    client: u64,
}

impl Libpaxos {
    pub(super) async fn connect(args: LibpaxosArgs) -> Outcome<Self> {
        let dial = async |address: &str| {
            let stream = timeout(PATIENCE, TcpStream::connect(address)).await;
            let stream = stream
                .map_err(|_| "no answer".to_owned())
                .and_then(|stream| stream.map_err(|error| error.to_string()))
                .map_err(|error| format!("libpaxos at {address}: {error}: is it running, with this address?"))?;
            stream.set_nodelay(true)?;
            Outcome::Ok(stream)
        };
        let mut acceptors = Vec::new();
        for address in &args.acceptors {
            acceptors.push((dial(address).await?, Vec::new()));
        }
        let proposer = dial(&args.proposer).await?;
        let client = uuid::Uuid::new_v4().as_u64_pair().0;
        Ok(Self { proposer, acceptors, out: Vec::new(), open: HashMap::new(), client })
    }

    /// Writes or reads one piece, whichever is possible first. Loses nothing when dropped.
    async fn step(&mut self) -> Outcome<Step> {
        let wants = !self.out.is_empty();
        let mut reads: Vec<_> =
            self.acceptors.iter_mut().map(|(stream, bytes)| Box::pin(stream.read_buf(bytes))).collect();
        let first = std::future::poll_fn(|context| {
            let ready = reads.iter_mut().enumerate().find_map(|(from, read)| match read.as_mut().poll(context) {
                Poll::Ready(result) => Some((from, result)),
                Poll::Pending => None,
            });
            ready.map_or(Poll::Pending, Poll::Ready)
        });
        tokio::select! {
            biased;
            written = self.proposer.write(&self.out), if wants => Ok(Step::Written(written?)),
            (from, read) = first => match read? {
                0 => Err("an acceptor of libpaxos closed the connection".into()),
                _ => Ok(Step::Read(from)),
            },
        }
    }

    fn take_in(&mut self, from: usize, into: &mut Vec<u64>) -> Outcome<()> {
        let most = self.acceptors.len() as u32 / 2 + 1;
        let bytes = &mut self.acceptors[from].1;
        let mut at = 0;
        while let Some((message, len)) = parse(&bytes[at..])? {
            at += len;
            let Some(value) = message else { continue };
            let word = |nth: usize| value.get(8 * nth..).and_then(|rest| rest.first_chunk().copied());
            let (Some(client), Some(id)) = (word(0).map(u64::from_le_bytes), word(1).map(u64::from_le_bytes)) else {
                continue;
            };
            if client != self.client {
                continue;
            }
            if let Some(by) = self.open.get_mut(&id) {
                *by |= 1 << from;
                if by.count_ones() >= most {
                    self.open.remove(&id);
                    into.push(id);
                }
            }
        }
        bytes.drain(..at);
        Ok(())
    }
}

impl Target for Libpaxos {
    fn ask(&mut self, id: u64) -> Outcome<()> {
        // An array of two: the kind, and a string of 16-bit length, which every version of msgpack knows.
        self.out.extend_from_slice(&[0x92, CLIENT_VALUE, 0xda, 0, VALUE_BYTES as u8]);
        let start = self.out.len();
        self.out.extend_from_slice(&self.client.to_le_bytes());
        self.out.extend_from_slice(&id.to_le_bytes());
        self.out.resize(start + VALUE_BYTES, b'x');
        self.open.insert(id, 0);
        Ok(())
    }

    async fn answered(&mut self, into: &mut Vec<u64>) -> Outcome<()> {
        while into.is_empty() {
            match self.step().await? {
                Step::Written(bytes) => _ = self.out.drain(..bytes),
                Step::Read(from) => self.take_in(from, into)?,
            }
        }
        Ok(())
    }
}

/// A number or a string.
enum Item<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The item at the front, and its length; `None` while it is not there as a whole.
fn item(bytes: &[u8]) -> Outcome<Option<(Item<'_>, usize)>> {
    let Some(kind) = bytes.first() else { return Ok(None) };
    let (number, width) = match kind {
        0x00..=0x7f => return Ok(Some((Item::Number(u64::from(*kind)), 1))),
        0xa0..=0xbf => (false, 0),
        0xc4 | 0xd9 => (false, 1),
        0xc5 | 0xda => (false, 2),
        0xc6 | 0xdb => (false, 4),
        0xcc | 0xd0 => (true, 1),
        0xcd | 0xd1 => (true, 2),
        0xce | 0xd2 => (true, 4),
        0xcf | 0xd3 => (true, 8),
        kind => return Err(format!("libpaxos sent {kind:#x}, which is neither a number nor a string").into()),
    };
    let Some(head) = bytes.get(1..1 + width) else { return Ok(None) };
    if number {
        return Ok(Some((Item::Number(big_endian(head)), 1 + width)));
    }
    let len = if width == 0 { usize::from(kind & 0x1f) } else { big_endian(head) as usize };
    Ok(bytes.get(1 + width..1 + width + len).map(|value| (Item::Bytes(value), 1 + width + len)))
}

/// The value of a message, if it has one that matters, and the length of the whole.
type Message<'a> = (Option<&'a [u8]>, usize);

/// The message at the front; `None` while it is not there as a whole. Of one that says what was accepted its value, which
/// comes last.
fn parse(bytes: &[u8]) -> Outcome<Option<Message<'_>>> {
    let Some(head) = bytes.first() else { return Ok(None) };
    let items = match head {
        0x91..=0x9f => head & 0x0f,
        head => return Err(format!("libpaxos sent {head:#x} where a message begins: is that an acceptor?").into()),
    };
    let (mut at, mut accepted, mut last) = (1, false, None);
    for nth in 0..items {
        let Some((item, len)) = item(&bytes[at..])? else { return Ok(None) };
        at += len;
        match item {
            Item::Number(kind) if nth == 0 => accepted = kind == ACCEPTED,
            Item::Number(_) => {}
            Item::Bytes(value) => last = Some(value),
        }
    }
    Ok(Some((last.filter(|_| accepted), at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accepted_value_is_taken_out_once_it_is_there_as_a_whole() {
        // [3, 1, 700, 2, "hello"], and what acceptors say every second: [7, 0].
        let message = b"\x95\x03\x01\xcd\x02\xbc\x02\xda\x00\x05hello\x92\x07\x00";
        for end in 0..message.len() - 3 {
            assert!(parse(&message[..end]).unwrap().is_none(), "{end}");
        }
        let (value, len) = parse(message).unwrap().unwrap();
        assert_eq!((value, len), (Some(&b"hello"[..]), message.len() - 3));
        let (value, len) = parse(&message[len..]).unwrap().unwrap();
        assert_eq!((value, len), (None, 3));
        assert!(parse(b"HTTP").is_err());
    }
}
