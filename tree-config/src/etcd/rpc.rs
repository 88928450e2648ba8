//! One request to etcd: how long it may take, when it is tried again, and what its failure means.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error, KvClient, Txn, TxnResponse, WatchClient};
use tokio::time::{Instant, sleep, timeout};

use super::Options;

/// How long an answer may be: a page of the largest records there are.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// The pause after a failure: this long at first, twice as long each time, never longer than the other.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// After this long without a sign of life etcd is asked for one. It refuses to be asked more than every 5 s.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Why a request was not done, or may not have been.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// No etcd was reached.
    NotSent(String),
    /// etcd took it and refused it. Nothing was changed.
    Refused(String),
    /// Anything else: it may have been done.
    InDoubt(String),
}

impl Fault {
    /// Whether a request that may be done twice should be tried again.
    pub(super) fn may_go_well_later(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }

    /// Whether a request that may not be done twice can be tried again.
    pub(super) fn was_not_sent(&self) -> bool {
        matches!(self, Self::NotSent(_))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(why) => write!(f, "no etcd answers there ({why}): check that it runs, and the endpoints"),
            Self::Refused(why) => write!(f, "etcd refuses it ({why}): check how etcd is set up"),
            Self::InDoubt(why) => {
                write!(f, "etcd did not say what became of it ({why}): check that etcd is healthy, then read again")
            }
        }
    }
}

/// What this failure of a request means for what it was to do.
pub(super) fn judge(error: &Error) -> Fault {
    let Error::GRpcStatus(status) = error else { return Fault::InDoubt(error.to_string()) };
    let mut why = status.message().to_owned();
    let mut source = status.source();
    while let Some(cause) = source {
        // Only connecting fails so: the request is still here.
        if cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
            return Fault::NotSent(cause.to_string());
        }
        if !why.contains(&cause.to_string()) {
            why = format!("{why}: {cause}");
        }
        source = cause.source();
    }
    match status.code() as i32 {
        // InvalidArgument, PermissionDenied and Unauthenticated are said before anything is done. ResourceExhausted is
        // not here: a database that is full may have taken the transaction that filled it.
        3 | 7 | 16 => Fault::Refused(why),
        _ => Fault::InDoubt(why),
    }
}

/// The way to etcd.
pub(super) struct Rpc {
    client: Client,
    timeout: Duration,
    pub(super) patience: Duration,
}

impl Rpc {
    /// Connects when something is asked, not yet here. Says what is wrong with the options.
    pub(super) async fn new(options: &Options) -> Result<Self, String> {
        if options.endpoints.is_empty() {
            return Err("it has no endpoints: name at least one, for example http://127.0.0.1:2379".to_owned());
        }
        if let Some(bad) = options.endpoints.iter().find(|endpoint| !endpoint.starts_with("http://")) {
            return Err(format!("its endpoint '{bad}' must begin with http://, as TLS to etcd is not supported yet"));
        }
        let connect = ConnectOptions::new()
            .with_connect_timeout(options.timeout)
            .with_keep_alive(KEEP_ALIVE, options.patience)
            .with_require_leader(true);
        let client = Client::connect(&options.endpoints, Some(connect)).await;
        let client = client.map_err(|error| format!("its endpoints cannot be used: {error}"))?;
        Ok(Self { client, timeout: options.timeout, patience: options.patience })
    }

    fn kv(&self) -> KvClient {
        self.client.kv_client().max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    pub(super) fn watches(&self) -> WatchClient {
        self.client.watch_client().max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    /// Sends a transaction, and again after a fault that `again` accepts, until the deadline.
    pub(super) async fn txn(
        &self,
        txn: Txn,
        deadline: Instant,
        again: impl Fn(&Fault) -> bool,
    ) -> Result<TxnResponse, Fault> {
        let mut pause = FIRST_PAUSE;
        loop {
            let left = self.timeout.min(deadline.saturating_duration_since(Instant::now()));
            let mut kv = self.kv();
            let fault = match timeout(left, kv.txn(txn.clone())).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) => judge(&error),
                Err(_) => Fault::InDoubt(format!("no answer within {} ms", left.as_millis())),
            };
            if !again(&fault) || Instant::now() + pause >= deadline {
                return Err(fault);
            }
            sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Waits before the next try; how long depends on how many there were.
    pub(super) async fn pause(tries: u32) {
        sleep((FIRST_PAUSE * 2u32.saturating_pow(tries.min(8))).min(LONGEST_PAUSE)).await;
    }

    /// What is awaited, within the time of a request.
    pub(super) async fn within<T>(&self, what: impl Future<Output = Result<T, Error>>) -> Result<T, Fault> {
        match timeout(self.timeout, what).await {
            Ok(done) => done.map_err(|error| judge(&error)),
            Err(_) => Err(Fault::InDoubt(format!("no answer within {} ms", self.timeout.as_millis()))),
        }
    }
}
