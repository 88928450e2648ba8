//! The FlexLog client: append, read, tail, subscribe and trim from Rust.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use flexlog_client::{Client, Event, SeqNum};
//!
//! let log = Client::connect("127.0.0.1:7480").await?.color("orders").await?;
//! let n = log.append(b"one more order").await?;
//! println!("appended as {n}");
//!
//! let mut events = log.subscribe(SeqNum::MIN);
//! while let Some(event) = events.next().await {
//!     if let Event::Record { number, record } = event? {
//!         println!("{number}: {} bytes", record.payload().len());
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A [`Client`] has a connection to each node that it needs, made again when it breaks; everything that was open then
//! goes on over the next one or at another node, and an append is numbered once however often it was sent. [`Log`] is a color seen through a client.
//! Both are handles: clone them freely. When the last handle is gone, appends that are open are still seen through.
//! [`Client::close`] waits for that, and for the node to take note that the client leaves.
//!
//! What is decided is decided in [`core`], which has no socket and no clock; the rest is a thin shell around it that
//! needs a tokio runtime of either kind, with its I/O and time drivers enabled.
//!
//! A record that was read or delivered over TCP is a part of the block that it was read in, up to 64 KiB: whoever keeps
//! few small records of many for long should copy their payloads.

pub mod core;
mod error;
mod log;
mod payload;
mod shell;
mod subscription;
mod wide;

pub use flexlog_protocol::api::{BoundChange, ColorInfo, Failure, Retention, RetentionChange, Status};
#[cfg(feature = "quic")]
pub use flexlog_protocol::net::quic::{Connector as QuicConnector, Credentials, CredentialsError};
pub use flexlog_protocol::net::{Connect, ConnectError};
pub use flexlog_protocol::{ClusterId, Color, Record, RecordError, SeqNum, Tag};

pub use error::{AppendError, ColorError, NoAnswer, ReadError, StatusError, SubscribeError, TrimError};
pub use log::{Log, NextOutcome, Pending, PrevOutcome, ReadOutcome};
pub use payload::IntoPayload;
pub use shell::{Builder, Client, ColorOptions, Dialer};
pub use subscription::{Event, Subscription};
