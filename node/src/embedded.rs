//! A cluster in one process: opening what is in a folder, in the order that keeps it safe, and serving it.
//!
//! The order: lock and read the metadata; open each replica's store in the two steps that keep its identity, see
//! [`flexlog_tree_config::identity`]; recover the stores, all at once; claim the position, which takes a fresh epoch; seal
//! the members and recover the shard. Only then is anything served.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use flexlog_protocol::api::{Hello, Role};
use flexlog_protocol::net::in_process::{self, Connector};
use flexlog_protocol::{ClusterId, ReplicaId, SeqNum, ShardId, limits, wire};
use flexlog_replica::RestoreError;
use flexlog_storage_pm::OpenError;
use flexlog_storage_pm::device::DeviceKind;
use flexlog_tree_config::operations::{self, Layout, OperationError};
use flexlog_tree_config::topology::DEFAULT_DETECT_MS;
use flexlog_tree_config::{Embedded as EmbeddedMetadata, Metadata};
use tokio::sync::Notify;
use tokio::task::{LocalSet, spawn_local};
use uuid::Uuid;

use crate::engine::{Engine, Led, Place};
pub use crate::retention::file::ReadError as AgesError;
use crate::retention::keeper::Keeper;
use crate::seat::Seat;
use crate::server::{Parts, Server};
use crate::standby::Part;
use crate::stores::{Homes, Storing, open_members};
use crate::transport::{Listener, Transport};

/// The replicas of a new cluster unless told otherwise.
pub const DEFAULT_REPLICAS: u32 = 3;
/// The smallest segment: the largest append and the largest entry fit into one.
pub const MIN_SEGMENT_BYTES: u64 = 2 * limits::MAX_TOKEN_BYTES as u64;
/// The one shard of an embedded cluster.
const SHARD: ShardId = ShardId(1);

/// Where older records go when a replica's area fills.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum SsdPlace {
    /// Into a folder `ssd` beside the area.
    #[default]
    Beside,
    /// Into a folder of each replica's in this one.
    In(PathBuf),
    /// Nowhere: a full area takes no more until something is trimmed. Not for replicas that have SSD files.
    Nowhere,
}

/// How a cluster is to be started.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder that holds everything; made if need be.
    pub directory: PathBuf,
    /// Where to listen for clients; within the process alone where it is `None`.
    pub listen: Option<String>,
    /// How many replicas a new cluster has: 1 to 15. An existing one must have as many, where it is given.
    pub replicas: Option<u32>,
    /// Bytes that each replica's area may grow to.
    pub area_limit: u64,
    /// Bytes of a segment of a new replica's area: a multiple of 4096, at least [`MIN_SEGMENT_BYTES`].
    pub segment_bytes: u64,
    /// The device of every replica's area; the one that suits its file system where it is `None`.
    pub device: Option<DeviceKind>,
    /// Where older records go.
    pub ssd: SsdPlace,
    /// Percent of an area, 1 to 99, above which its oldest records move to SSD files.
    pub high_mark: u8,
    /// Bytes of memory in which each replica keeps records that were read.
    pub cache_bytes: u64,
    /// MiB a second that are read of each replica's records to find what is damaged; 0 for none.
    pub scrub_mib_s: u32,
    /// The most numbers of a color in one epoch; lower than the largest possible only in tests.
    pub numbers_per_epoch: u32,
}

impl Options {
    /// A cluster in `directory` with every other choice left to us.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            listen: None,
            replicas: None,
            area_limit: limits::AREA_LIMIT_BYTES,
            segment_bytes: limits::SEGMENT_BYTES,
            device: None,
            ssd: SsdPlace::default(),
            high_mark: flexlog_storage_pm::Options::default().high_mark,
            cache_bytes: limits::CACHE_BYTES,
            scrub_mib_s: limits::SCRUB_MIB_S,
            numbers_per_epoch: SeqNum::MAX_COUNT,
        }
    }
}

/// Why a cluster does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folder cannot be made.
    #[error("cannot make the folder {}: {source}. Make its parent writable, or choose another with --dir", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}. Is another cluster running there? Choose another with --listen")]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The certificates of this process cannot be used.
    #[cfg(feature = "quic")]
    #[error(transparent)]
    Credentials(#[from] flexlog_protocol::net::quic::CredentialsError),
    /// Something in the topology does not go with this process.
    #[error("{0}")]
    Topology(String),
    /// The topology file cannot be used.
    #[error(transparent)]
    TopologyFile(#[from] flexlog_tree_config::topology::TopologyError),
    /// The number of replicas is not possible, or not the one that the cluster has.
    #[error("{0}")]
    Replicas(String),
    /// An append would not fit into a segment.
    #[error("a segment of {0} bytes is too small: the smallest has {MIN_SEGMENT_BYTES}")]
    Segment(u64),
    /// The metadata cannot be opened.
    #[error(transparent)]
    Metadata(#[from] flexlog_tree_config::embedded::OpenError),
    /// The metadata does not do what is asked.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A replica's store cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// What is known of the ages of records cannot be read.
    #[error(transparent)]
    Ages(#[from] AgesError),
    /// A replica cannot start from what its store holds.
    #[error("replica {replica} in {}: {source}", path.display())]
    Restore {
        /// The replica.
        replica: ReplicaId,
        /// Its folder.
        path: PathBuf,
        /// Why.
        source: RestoreError,
    },
    /// The shard cannot serve.
    #[error("the cluster in {} cannot serve: {why}", path.display())]
    Shard {
        /// The folder.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The thread that the cluster was to run on cannot be started, or ended.
    #[error("the cluster's thread: {0}")]
    Thread(String),
}

/// A cluster that serves.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Where it listens, if it does.
    pub address: Option<SocketAddr>,
    /// Connects to it within the process.
    pub connector: Connector,
    /// What the replicas' devices are and promise.
    pub devices: Vec<String>,
}

/// Runs a cluster until `stopped` is done. Calls `ready` once it serves.
///
/// # Errors
/// [`StartError`], before `ready` was called.
pub async fn run(
    options: Options,
    ready: impl FnOnce(Ready),
    stopped: impl Future<Output = ()>,
) -> Result<(), StartError> {
    LocalSet::new().run_until(serve(options, ready, stopped)).await
}

async fn serve(
    options: Options,
    ready: impl FnOnce(Ready),
    stopped: impl Future<Output = ()>,
) -> Result<(), StartError> {
    let directory = options.directory.clone();
    // The address is taken first: what is wrong with it shows before the stores are read.
    let listener = match &options.listen {
        Some(address) => Some(Transport::Tcp.listen(address).await?),
        None => None,
    };
    let address = listener.as_ref().and_then(Listener::local_addr);
    let opened = open(&options).await?;
    let devices = opened.engine.shards();
    let devices = devices.into_iter().flat_map(|shard| shard.replicas).map(|replica| replica.device).collect();
    let cluster = opened.cluster;
    let server = Server::start(opened);
    server.take_seat();
    server.serves().await.map_err(|why| StartError::Shard { path: directory.clone(), why })?;

    let hello = Hello { version: wire::VERSION, cluster, role: Role::Node };
    let (connector, in_process) = in_process::listen(directory.display().to_string(), hello);
    spawn_local(std::rc::Rc::clone(&server).listen_in_process(in_process));
    if let Some(listener) = listener {
        spawn_local(std::rc::Rc::clone(&server).listen(listener));
    }
    ready(Ready { address, connector, devices });
    stopped.await;
    server.stop().await;
    Ok(())
}

async fn open(options: &Options) -> Result<Parts, StartError> {
    if options.segment_bytes < MIN_SEGMENT_BYTES {
        return Err(StartError::Segment(options.segment_bytes));
    }
    let directory = &options.directory;
    std::fs::create_dir_all(directory).map_err(|source| StartError::Folder { path: directory.clone(), source })?;
    let metadata: Arc<dyn Metadata> = Arc::new(EmbeddedMetadata::open(directory.join("metadata"))?);
    let cluster = match operations::cluster(&*metadata).await? {
        Some(cluster) => cluster,
        None => {
            let replicas = options.replicas.unwrap_or(DEFAULT_REPLICAS);
            if !(1..=flexlog_tree_config::record::MAX_VIEW_MEMBERS as u32).contains(&replicas) {
                let most = flexlog_tree_config::record::MAX_VIEW_MEMBERS;
                return Err(StartError::Replicas(format!("a cluster has 1 to {most} replicas, not {replicas}")));
            }
            let layout = Layout::single(replicas, replicas.min(2));
            operations::create_cluster(&*metadata, ClusterId(Uuid::new_v4()), &layout).await?
        }
    };
    let shard = operations::shard(&*metadata, SHARD).await?;
    let members = shard.view.members.len();
    if let Some(asked) = options.replicas.filter(|asked| *asked as usize != members) {
        return Err(StartError::Replicas(format!(
            "the cluster in {} has {members} replicas, not {asked}: leave --replicas away, or choose another folder",
            directory.display()
        )));
    }
    let fenced = Arc::new(Notify::new());
    let folder = |replica: &ReplicaId| (*replica, directory.join(format!("replica-{replica}")));
    let here = shard.view.members.iter().map(folder).collect();
    let homes = Homes { cluster: cluster.id, shard: SHARD, members: shard.view.members.len(), here };
    let storing = Storing {
        area_limit: options.area_limit,
        segment_bytes: options.segment_bytes,
        device: options.device,
        ssd: options.ssd.clone(),
        high_mark: options.high_mark,
        cache_bytes: options.cache_bytes,
        scrub_mib_s: options.scrub_mib_s,
    };
    let members = open_members(&storing, &*metadata, homes, &fenced).await?;
    let tree = operations::tree(&*metadata).await?;
    let place = Place {
        position: shard.leaf,
        parent: None,
        children: Vec::new(),
        shards: Led::by(&tree, shard.leaf),
        // One process has them all: none is lost alone.
        replica_timeout: u64::MAX,
        numbers_per_epoch: options.numbers_per_epoch,
    };
    let mut engine = Engine::new(members, Some(place));
    let bounds = operations::retentions(&*metadata).await?;
    let bounds = bounds.into_iter().map(|record| (record.color, record.retention)).collect();
    let keeper = Keeper::open(&directory.join("retention.json"), cluster.id, bounds, &mut engine)?;
    let part = Part {
        uuid: Uuid::new_v4(),
        address: String::new(),
        is_first: true,
        is_alone: true,
        detect_micros: DEFAULT_DETECT_MS * 1000,
    };
    Ok(Parts {
        engine,
        keeper,
        tree,
        metadata,
        kept: None,
        cluster: cluster.id,
        name: "root".to_owned(),
        directory: directory.display().to_string(),
        seat: Some(Seat::new(shard.leaf, part, None)),
        replica: None,
        standbys: BTreeMap::new(),
        from: None,
        links: None,
        fenced,
    })
}

/// A cluster on a thread of its own, for programs that have it in their own process, and for tests.
pub struct Embedded {
    ready: Ready,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<Result<(), StartError>>>,
}

impl Embedded {
    /// Starts the cluster, and returns once it serves.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(options: Options) -> Result<Self, StartError> {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (told, ready) = std::sync::mpsc::channel();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| StartError::Thread(error.to_string()))?;
            let stopped = async {
                // An `Embedded` that was dropped has stopped too.
                let _ = stopped.await;
            };
            let on_ready = move |ready| {
                // Whoever started it waits for this.
                let _ = told.send(ready);
            };
            runtime.block_on(run(options, on_ready, stopped))
        };
        let thread = thread::Builder::new()
            .name("flexlog".to_owned())
            .spawn(body)
            .map_err(|error| StartError::Thread(error.to_string()))?;
        match ready.recv() {
            Ok(ready) => Ok(Self { ready, stop: Some(stop), thread: Some(thread) }),
            Err(_) => match thread.join() {
                Ok(Err(error)) => Err(error),
                _ => Err(StartError::Thread("it ended before it was ready".to_owned())),
            },
        }
    }

    /// What there is to know of a cluster that serves.
    #[must_use]
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Stops it, and waits until its files are closed.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It may have ended by itself.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take()
            && let Ok(Err(error)) = thread.join()
        {
            tracing::error!(%error, "the cluster ended");
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.end();
    }
}
