//! [`Client`] and how to make one.

use std::sync::Arc;
use std::time::Duration;

use flexlog_protocol::api::{Answer, ColorInfo, Failure, Hello, Placement, Request, RetentionChange, Status};
use flexlog_protocol::limits::{DEFAULT_PORT, MAX_CREDIT_BYTES, MAX_RECORD_BYTES};
use flexlog_protocol::net::{ClientConnection, Connect, ConnectError, tcp};
use flexlog_protocol::{ClusterId, ShardId};

use super::Dialer;
use super::shared::{Handle, Settings, Shared};
use super::task;
use crate::core::{NodeId, To};
use crate::error::{CallError, ColorError, StatusError};
use crate::log::Log;

/// A client of a FlexLog cluster, with a connection to each node that it needs; they are made again when they break.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use flexlog_client::Client;
///
/// let client = Client::connect("127.0.0.1:7480").await?;
/// for color in client.colors().await? {
///     println!("{}", color.name);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    handle: Arc<Handle>,
    cluster: ClusterId,
}

/// How a color is to be; see [`Client::create_color`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColorOptions {
    /// The name of the position that counts for it. Without one the cluster chooses.
    pub owner: Option<String>,
    /// How many shards it is on; 0 is 1.
    pub width: u32,
    /// How long its records are kept.
    pub retention: RetentionChange,
}

/// How a client shall be; see [`Client::builder`].
#[derive(Debug, Clone)]
pub struct Builder {
    settings: Settings,
    connect_deadline: Duration,
    cluster: ClusterId,
    dialer: Option<Arc<dyn Dialer>>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            settings: Settings {
                deadline: Duration::from_secs(10),
                append_deadline: Duration::from_secs(30),
                subscription_window: 2 << 20,
            },
            connect_deadline: Duration::from_secs(5),
            cluster: ClusterId::default(),
            dialer: None,
        }
    }
}

impl Builder {
    /// How long an append may take, retries and waiting for room included, before it fails. 30 s unless told otherwise.
    #[must_use]
    pub fn append_deadline(mut self, deadline: Duration) -> Self {
        self.settings.append_deadline = deadline;
        self
    }

    /// How long everything else may take. 10 s unless told otherwise.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// How long one attempt to connect by TCP may take. 5 s unless told otherwise.
    #[must_use]
    pub fn connect_deadline(mut self, deadline: Duration) -> Self {
        self.connect_deadline = deadline;
        self
    }

    /// Talk to this cluster only. Otherwise the first node that answers says which cluster it is from then on.
    #[must_use]
    pub fn cluster(mut self, cluster: ClusterId) -> Self {
        self.cluster = cluster;
        self
    }

    /// How many bytes of a subscription may wait for its user, from about one to 4 MiB. 2 MiB unless told otherwise.
    #[must_use]
    pub fn subscription_window(mut self, bytes: u64) -> Self {
        // Less would stop at a large record for ever: part of the window is with the user until it is worth a message.
        let least = 2 * MAX_RECORD_BYTES as u64;
        self.settings.subscription_window = bytes.clamp(least, MAX_CREDIT_BYTES);
        self
    }

    /// How nodes are connected to, the first and those that it leads to. By TCP unless told otherwise.
    #[must_use]
    pub fn dialer(mut self, dialer: impl Dialer) -> Self {
        self.dialer = Some(Arc::new(dialer));
        self
    }

    fn dial(&self) -> Arc<dyn Dialer> {
        let deadline = self.connect_deadline;
        self.dialer.clone().unwrap_or_else(|| Arc::new(ByTcp { deadline }))
    }

    /// Connects to the cluster that the node at one of `addresses` belongs to: `host:port` or `host`, and more of them
    /// behind commas. They are tried in their order; where the first is away later, the next one stands in for it.
    ///
    /// # Errors
    /// [`ConnectError`], of the last one, after one attempt at each.
    pub async fn connect(self, addresses: impl Into<String>) -> Result<Client, ConnectError> {
        let dialer = self.dial();
        let addresses: String = addresses.into();
        let mut seen: Vec<String> = Vec::new();
        for address in addresses.split(',').map(str::trim) {
            let address = with_port(address);
            if !seen.contains(&address) {
                seen.push(address);
            }
        }
        let homes = seen.iter().map(|address| Arc::from(dialer.dial(address))).collect();
        self.connect_to(homes, dialer).await
    }

    /// Connects by whatever `connector` connects by, for example to a cluster in this process. Other nodes that it leads
    /// to are connected to as [`Builder::dialer`] says.
    ///
    /// # Errors
    /// [`ConnectError`], after one attempt.
    pub async fn connect_with(self, connector: impl Connect) -> Result<Client, ConnectError> {
        let dialer = self.dial();
        self.connect_to(vec![Arc::new(connector)], dialer).await
    }

    async fn connect_to(self, homes: Vec<Arc<dyn Connect>>, dialer: Arc<dyn Dialer>) -> Result<Client, ConnectError> {
        let (node, first) = first_of(&homes, &Hello::client(self.cluster)).await?;
        let cluster = first.hello.cluster;
        let seed = uuid::Uuid::new_v4();
        let shared = Arc::new(Shared::new(seed, homes, node, dialer, Hello::client(cluster), self.settings));
        tokio::spawn(task::run(Arc::clone(&shared), (node, first)));
        Ok(Client { handle: Arc::new(Handle::new(shared)), cluster })
    }
}

/// A connection to the first of `homes` that answers.
async fn first_of(homes: &[Arc<dyn Connect>], hello: &Hello) -> Result<(NodeId, ClientConnection), ConnectError> {
    let mut last = None;
    for (index, home) in homes.iter().enumerate() {
        match home.connect(hello).await {
            Ok(connection) => return Ok((NodeId(index as u32), connection)),
            Err(error) => last = Some(error),
        }
    }
    // Without an address there is nobody to say why not.
    Err(last.unwrap_or_else(|| ConnectError::Refused { address: String::new(), reason: "no address was given".into() }))
}

/// TCP, the usual way to nodes.
#[derive(Debug)]
struct ByTcp {
    deadline: Duration,
}

impl Dialer for ByTcp {
    fn dial(&self, address: &str) -> Box<dyn Connect> {
        Box::new(tcp::Connector::new(with_port(address), self.deadline))
    }
}

fn with_port(address: &str) -> String {
    if address.contains(':') { address.to_owned() } else { format!("{address}:{DEFAULT_PORT}") }
}

impl Client {
    /// Connects by TCP to the cluster that the node at one of `addresses` belongs to, with the usual deadlines:
    /// `host:port` or `host`, and more of them behind commas.
    ///
    /// Must be called on a tokio runtime, and the client works as long as that runtime does.
    ///
    /// # Errors
    /// [`ConnectError`], after one attempt at each. Once there is a connection, one that breaks is made again without a
    /// word.
    pub async fn connect(addresses: impl Into<String>) -> Result<Self, ConnectError> {
        Self::builder().connect(addresses).await
    }

    /// Says how the client shall be.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use flexlog_client::Client;
    ///
    /// let client = Client::builder().append_deadline(Duration::from_secs(2)).connect("log.example:7480").await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Ends the client and all its handles: waits until the open appends are done or out of time, then closes its sessions
    /// at their shards and leaves. What other handles ask for meanwhile or afterwards is refused as `Stopped`.
    ///
    /// Dropping the last handle does the same in the background, as long as the runtime goes on; a session that is not
    /// closed by its client takes up a place at its shard until it has been idle for a while.
    pub async fn close(self) {
        self.handle.close().await;
    }

    /// The cluster that the client is connected to.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The address of the node that answered first.
    #[must_use]
    pub fn address(&self) -> String {
        self.handle.address()
    }

    /// The log of the color `name`, which is created if there is none.
    ///
    /// # Errors
    /// [`ColorError`]: the name cannot be a color's, or there are too many, or no answer.
    pub async fn color(&self, name: &str) -> Result<Log, ColorError> {
        self.lookup(name, Some(Placement::default())).await
    }

    /// The log of the color `name`, if there is one.
    ///
    /// # Errors
    /// As [`Client::color`], and [`ColorError::is_no_such_color`].
    pub async fn existing_color(&self, name: &str) -> Result<Log, ColorError> {
        self.lookup(name, None).await
    }

    /// What the cluster knows of the color `name`, if there is one: its retention among other things.
    ///
    /// # Errors
    /// As [`Client::existing_color`].
    pub async fn color_info(&self, name: &str) -> Result<ColorInfo, ColorError> {
        self.ask_color(name, None, RetentionChange::default()).await
    }

    /// Creates the color `name` as `options` say if there is none. Returns what it is then: of one that is there already,
    /// only how long its records are kept is changed.
    ///
    /// ```no_run
    /// # async fn example(client: flexlog_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use flexlog_client::ColorOptions;
    ///
    /// let info = client.create_color("orders", ColorOptions { width: 2, ..ColorOptions::default() }).await?;
    /// println!("{} counts for it, and it is on {} shards", info.owner, info.shards.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Client::color`]. After [`ColorError::NoAnswer`] the change may have been made; to ask again is safe.
    pub async fn create_color(&self, name: &str, options: ColorOptions) -> Result<ColorInfo, ColorError> {
        let ColorOptions { owner, width, retention } = options;
        self.ask_color(name, Some(Placement { owner, width }), retention).await
    }

    /// Changes how long the records of the color `name` are kept, if there is one. Returns what it is then.
    ///
    /// # Errors
    /// As [`Client::existing_color`]. After [`ColorError::NoAnswer`] the change may have been made; to ask again is safe.
    pub async fn set_retention(&self, name: &str, retention: RetentionChange) -> Result<ColorInfo, ColorError> {
        self.ask_color(name, None, retention).await
    }

    async fn lookup(&self, name: &str, create: Option<Placement>) -> Result<Log, ColorError> {
        let info = self.ask_color(name, create, RetentionChange::default()).await?;
        let shards =
            shards_of(&info).map_err(|why| ColorError::new(CallError::Failed(why), self.address(), name.to_owned()))?;
        Ok(Log::new(Arc::clone(&self.handle), info.color, info.name, shards))
    }

    async fn ask_color(
        &self,
        name: &str,
        create: Option<Placement>,
        retention: RetentionChange,
    ) -> Result<ColorInfo, ColorError> {
        let error = |error| ColorError::new(error, self.address(), name.to_owned());
        let owned = name.to_owned();
        match self
            .handle
            .call(To::Home, |id| Request::Lookup { id, name: owned, create, retention })
            .await
            .map_err(error)?
        {
            // A node that knows of no retention would pass over the change.
            Answer::Color { info, .. } if retention.apply(info.retention) == info.retention => Ok(info),
            _ => Err(error(CallError::Unexpected)),
        }
    }

    /// All colors of the cluster, in order of their names.
    ///
    /// # Errors
    /// [`ColorError`], without a name.
    pub async fn colors(&self) -> Result<Vec<ColorInfo>, ColorError> {
        let mut all: Vec<ColorInfo> = Vec::new();
        loop {
            let page = self.colors_after(all.last().map(|last| last.name.clone())).await?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    /// One page of the colors whose names are above `after`, in order; empty behind the last. For clusters with more
    /// colors than should be held at once.
    ///
    /// # Errors
    /// [`ColorError`], without a name.
    pub async fn colors_after(&self, after: Option<String>) -> Result<Vec<ColorInfo>, ColorError> {
        let error = |error| ColorError::new(error, self.address(), String::new());
        let floor = after.clone();
        match self.handle.call(To::Home, |id| Request::Colors { id, after }).await.map_err(error)? {
            // A page that does not go on would be asked for for ever.
            Answer::Colors { colors, .. } if colors.first().is_none_or(|first| Some(&first.name) > floor.as_ref()) => {
                Ok(colors)
            }
            _ => Err(error(CallError::Unexpected)),
        }
    }

    /// How the node is.
    ///
    /// # Errors
    /// [`StatusError`].
    pub async fn status(&self) -> Result<Status, StatusError> {
        let error = |error| StatusError::new(error, self.address());
        match self.handle.call(To::Home, |id| Request::Status { id }).await.map_err(error)? {
            Answer::Status { status, .. } => Ok(*status),
            _ => Err(error(CallError::Unexpected)),
        }
    }
}

/// The shards of a color.
fn shards_of(info: &ColorInfo) -> Result<Vec<ShardId>, Failure> {
    if info.shards.is_empty() || info.shards.iter().any(|shard| shard.view.members.is_empty()) {
        return Err(Failure::Unsupported("colors that are on no replica".into()));
    }
    Ok(info.shards.iter().map(|shard| shard.shard).collect())
}
