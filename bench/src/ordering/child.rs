//! A stand-in for a position of the tree that asks the one above it for numbers, one request for each, over the links
//! that processes of a cluster have. It has no shard: it says that nothing is below it.

use std::time::Duration;

use clap::Args;
use flexlog_node::links::{Dial, Event, Links, Peer};
use flexlog_protocol::api::{Hello, Role};
use flexlog_protocol::net::tcp;
use flexlog_protocol::peer::{Between, FromParent, NodeMessage, ToParent};
use flexlog_protocol::{ClusterId, Color, Epoch, Incarnation, Position, wire};
use tokio::net::TcpListener;
use tokio::task::spawn_local;
use tokio::time::timeout;
use uuid::Uuid;

use super::load::{Ask, Target};
use crate::Outcome;

const PATIENCE: Duration = Duration::from_secs(30);

/// Arguments of a stand-in.
#[derive(Args)]
pub(crate) struct ChildArgs {
    /// The position that it stands in for, and its address in the topology.
    #[arg(long)]
    position: u32,
    #[arg(long)]
    listen: String,
    /// The position above.
    #[arg(long)]
    parent: u32,
    #[arg(long)]
    parent_address: String,
    /// Of the colors that it asks for.
    #[arg(long)]
    serial: u64,
}

pub(super) struct Child {
    links: std::rc::Rc<Links>,
    me: Incarnation,
    parent: Position,
    /// Who holds the position above, once it has asked to seal.
    above: Option<Incarnation>,
    serial: u64,
    color: Color,
    /// Requests that go out next.
    batch: Vec<NodeMessage>,
}

fn hello() -> Hello {
    Hello { version: wire::VERSION, cluster: ClusterId::default(), role: Role::Node }
}

/// One request as it goes over a link, in bytes, framing included.
pub(super) fn request_bytes() -> usize {
    let me = Incarnation { position: Position(1), epoch: Epoch(1), uuid: Uuid::from_u128(u128::MAX) };
    let message = ToParent::Order { batch: 100_000, color: Color(1), count: 1 };
    let mut content = bytes::BytesMut::new();
    let message = NodeMessage::Up { to: Position(0), message: Between { from: me, to: Some(me), message } };
    wire::encode_node_messages(&[message], &mut content);
    let parcel = wire::Parcel { seq: 100_000, more: false, content: content.freeze() };
    let mut frame = bytes::BytesMut::new();
    // It is far smaller than a frame may be.
    let _ = wire::Message::encode(&[wire::LinkFrame::Data(parcel)], &mut frame);
    frame.len()
}

impl Child {
    /// Takes its place: returns when the position above has heard what is below, which is nothing.
    pub(super) async fn start(args: ChildArgs) -> Outcome<Self> {
        let listener = TcpListener::bind(&args.listen).await?;
        let (own, parent) = (Position(args.position), Position(args.parent));
        let dial: Dial = Box::new(|address| {
            Box::pin(async move { tcp::connect_as(&address, &hello(), Duration::from_secs(5)).await })
        });
        let peers = [(Peer::Position(parent), args.parent_address)];
        let links = std::rc::Rc::new(Links::new(Uuid::new_v4(), [Peer::Position(own)], peers, dial));
        let accepting = std::rc::Rc::clone(&links);
        spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // Whoever does not get in tries again.
                if let Ok(accepted) = tcp::accept_if(stream, &hello(), Duration::from_secs(5), |_| None).await {
                    accepting.incoming(accepted.into_connection());
                }
            }
        });
        let me = Incarnation { position: own, epoch: Epoch(1), uuid: Uuid::new_v4() };
        let mut child =
            Self { links, me, parent, above: None, serial: args.serial, color: Color(1), batch: Vec::new() };
        child.say(None, ToParent::Here)?;
        let mut none = Vec::new();
        timeout(PATIENCE, async {
            while child.above.is_none() {
                child.links.ready().await;
                child.hear(&mut none)?;
            }
            Outcome::Ok(())
        })
        .await
        .map_err(|_| format!("position {parent} did not ask to seal within {} s", PATIENCE.as_secs()))??;
        Ok(child)
    }

    fn say(&self, to: Option<Incarnation>, message: ToParent) -> Outcome<()> {
        let message = NodeMessage::Up { to: self.parent, message: Between { from: self.me, to, message } };
        Ok(self.links.send(Peer::Position(self.parent), &[message])?)
    }

    fn hear(&mut self, granted: &mut Vec<u64>) -> Outcome<()> {
        while let Some(event) = self.links.next() {
            match event {
                Event::Message(NodeMessage::Down { message: Between { from, message, .. }, .. }) => match message {
                    FromParent::Grant { batch, .. } => granted.push(batch),
                    FromParent::Seal { by, nth } => {
                        self.above = Some(from);
                        self.say(Some(from), ToParent::Sealed { by, nth, colors: Vec::new() })?;
                    }
                    _ => {}
                },
                Event::Restarted(peer) | Event::Overflowed(peer) if self.above.is_some() => {
                    return Err(format!("{peer} lost what was said: is it still running?").into());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Target for Child {
    fn aim(&mut self, ask: Ask) -> Outcome<()> {
        let color = Color::new(Position(ask.owner), false, self.serial);
        self.color = color.ok_or("a position that can own no color")?;
        Ok(())
    }

    fn ask(&mut self, id: u64) -> Outcome<()> {
        let message = ToParent::Order { batch: id, color: self.color, count: 1 };
        let message = Between { from: self.me, to: self.above, message };
        self.batch.push(NodeMessage::Up { to: self.parent, message });
        Ok(())
    }

    async fn answered(&mut self, into: &mut Vec<u64>) -> Outcome<()> {
        self.links.send(Peer::Position(self.parent), &self.batch)?;
        self.batch.clear();
        while into.is_empty() {
            self.links.ready().await;
            self.hear(into)?;
        }
        Ok(())
    }
}
