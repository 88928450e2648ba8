//! One process of a cluster of several: a position of the tree, or a replica, as the topology file describes it.
//!
//! The order at start: take the address; find the metadata, and the cluster in it, which the file makes where there is
//! none; for a replica, open its store in the steps that keep its identity; then accept connections, and for a position
//! claim it and seal what is below, or stand by for the process that holds it. Processes may be started in any order: each
//! waits for those that it needs. From then on each follows what changes in the metadata (the module `follow`).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use flexlog_protocol::api::{Hello, Role};
use flexlog_protocol::net::ConnectError;
use flexlog_protocol::{ClusterId, ReplicaId, SeqNum, limits, wire};
use flexlog_storage_pm::device::DeviceKind;
use flexlog_tree_config::operations::{self, OperationError, Tree};
use flexlog_tree_config::record::{ClusterRecord, ReplicaRecord};
use flexlog_tree_config::topology::{self, MetadataPlace, Topology};
use flexlog_tree_config::{CommitError, Embedded as EmbeddedMetadata, Metadata, ReadError, served};
use tokio::sync::Notify;
use tokio::task::{LocalSet, spawn_local};
use uuid::Uuid;

use crate::embedded::{SsdPlace, StartError};
use crate::engine::{Engine, Led, Place};
use crate::follow;
use crate::links::{Dial, Links, Peer};
use crate::retention::keeper::Keeper;
use crate::seat::{Heart, Seat};
use crate::server::{Parts, Server};
use crate::standby::Part;
use crate::stores::{Homes, Storing, open_members};
use crate::trace::Trace;
use crate::transport::Transport;

/// How long an answer of the process that keeps the metadata may take.
const METADATA_PATIENCE: Duration = served::PATIENCE;
/// How long to wait before the metadata is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// How often people are told that it still does not answer.
const SAY_AGAIN: Duration = Duration::from_secs(5);

/// What a process of a cluster is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// The first process of the position of this name.
    Sequencer(String),
    /// A standby of it.
    Standby {
        /// The name of the position.
        of: String,
        /// Which of its standbys, from 1 up.
        number: usize,
    },
    /// A replica.
    Replica(ReplicaId),
}

/// What there is to know of a process that serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ready {
    /// Its name in the topology: of its folder, and its certificate.
    pub name: String,
    /// Where it listens.
    pub address: Option<SocketAddr>,
}

/// How a process is to be started.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster.
    pub topology: Topology,
    /// Which of its processes.
    pub what: What,
    /// The most numbers of a color in one epoch; lower than the largest possible only in tests.
    pub numbers_per_epoch: u32,
}

impl Options {
    /// A process of this cluster with every other choice left to us.
    #[must_use]
    pub fn new(topology: Topology, what: What) -> Self {
        Self { topology, what, numbers_per_epoch: SeqNum::MAX_COUNT }
    }
}

/// Runs a process until `stopped` is done. Calls `ready` once it serves: a position when everything below it has
/// reported, or when another process that holds it answers, a replica when it has recovered and accepts connections.
///
/// # Errors
/// [`StartError`], before `ready` was called.
pub async fn run(
    options: Options,
    ready: impl FnOnce(Ready),
    stopped: impl Future<Output = ()>,
) -> Result<(), StartError> {
    LocalSet::new()
        .run_until(async move {
            let mut stopped = std::pin::pin!(stopped);
            let server = tokio::select! {
                started = start(&options) => started?,
                () = &mut stopped => return Ok(()),
            };
            let (server, address) = server;
            let serves = async {
                server.take_seat();
                if !matches!(options.what, What::Replica(_)) {
                    let folder = PathBuf::from(server.directory());
                    server.serves().await.map_err(|why| StartError::Shard { path: folder, why })?;
                }
                Ok::<_, StartError>(())
            };
            let served = tokio::select! {
                served = serves => served,
                () = &mut stopped => {
                    server.stop().await;
                    return Ok(());
                }
            };
            if let Err(error) = served {
                server.stop().await;
                return Err(error);
            }
            ready(Ready { name: server.name().to_owned(), address });
            stopped.await;
            server.stop().await;
            Ok(())
        })
        .await
}

/// The process's own lines in the topology.
struct Own {
    /// As its folder and certificate are called.
    name: String,
    address: String,
    folder: PathBuf,
}

fn own(topology: &Topology, what: &What) -> Result<Own, StartError> {
    let file = topology.file.display();
    match what {
        What::Sequencer(name) => {
            let found = topology.sequencer(name).ok_or_else(|| {
                let known: Vec<&str> = topology.sequencers().iter().map(|known| known.name.as_str()).collect();
                StartError::Topology(format!("there is no sequencer '{name}' in {file}: it has {}", known.join(", ")))
            })?;
            let folder = topology.sequencer_folder(name);
            Ok(Own { name: name.clone(), address: found.address.clone(), folder })
        }
        What::Standby { of, number } => {
            own(topology, &What::Sequencer(of.clone()))?;
            let standbys = topology.sequencer(of).map(|found| found.standbys.as_slice()).unwrap_or_default();
            let address = number.checked_sub(1).and_then(|at| standbys.get(at)).ok_or_else(|| {
                let count = standbys.len();
                StartError::Topology(format!(
                    "there is no standby {number} of '{of}' in {file}: it has {count}. Add its address to standbys"
                ))
            })?;
            let name = Topology::standby_name(of, *number);
            Ok(Own { folder: topology.sequencer_folder(&name), name, address: address.clone() })
        }
        What::Replica(id) => {
            let (_, found) = topology.replica(*id).ok_or_else(|| {
                let known = topology.shards().iter().flat_map(|shard| &shard.replicas);
                let known: Vec<String> = known.map(|known| known.id.to_string()).collect();
                StartError::Topology(format!("there is no replica {id} in {file}: it has {}", known.join(", ")))
            })?;
            let folder = topology.replica_folder(*id);
            Ok(Own { name: Topology::replica_name(*id), address: found.address.clone(), folder })
        }
    }
}

fn transport(topology: &Topology, name: &str) -> Result<Transport, StartError> {
    match &topology.transport {
        topology::Transport::Tcp => Ok(Transport::Tcp),
        #[cfg(feature = "quic")]
        topology::Transport::Quic { certificates } => {
            Ok(Transport::Quic(flexlog_protocol::net::quic::Credentials::load(certificates, name)?))
        }
        #[cfg(not(feature = "quic"))]
        topology::Transport::Quic { .. } => Err(StartError::Topology(format!(
            "{} wants connections by QUIC for '{name}', and this program was built without: build it with the feature quic",
            topology.file.display()
        ))),
    }
}

async fn start(options: &Options) -> Result<(Rc<Server>, Option<SocketAddr>), StartError> {
    let Options { topology, what, numbers_per_epoch } = options;
    let own = own(topology, what)?;
    let transport = transport(topology, &own.name)?;
    // The address is taken first: what is wrong with it shows before anything is read.
    let listener = transport.listen(&own.address).await.map_err(|error| match error {
        StartError::Listen { address, source } => StartError::Topology(format!(
            "cannot listen on {address}: {source}. Does '{}' run already? Its address is in {}",
            own.name,
            topology.file.display()
        )),
        other => other,
    })?;
    let address = listener.local_addr();
    std::fs::create_dir_all(&own.folder).map_err(|source| StartError::Folder { path: own.folder.clone(), source })?;

    let (metadata, kept) = metadata(topology, what, &own, &transport).await?;
    let cluster = join(&*metadata, topology).await?;
    let (from, tree) = when_it_answers(async || {
        // What changes behind the revision is followed, so that is read first.
        let from = follow::revision(&*metadata).await.map_err(OperationError::Read)?;
        Ok((from, operations::tree(&*metadata).await?))
    })
    .await?;
    let fenced = Arc::new(Notify::new());
    let (mut engine, seat) = match what {
        What::Sequencer(name) | What::Standby { of: name, .. } => {
            let place = place(&tree, name, topology, *numbers_per_epoch)?;
            let found = topology.sequencer(name);
            let part = Part {
                uuid: Uuid::new_v4(),
                address: own.address.clone(),
                is_first: matches!(what, What::Sequencer(_)),
                is_alone: found.is_none_or(|sequencer| sequencer.standbys.is_empty()),
                detect_micros: topology.detect_ms * 1000,
            };
            let seat = Seat::new(place.position, part, Some(Heart::new(transport.clone(), cluster.id)));
            let linger = found.map_or(0, |sequencer| sequencer.linger_micros);
            (Engine::new(Vec::new(), Some(place)).with_linger(linger), Some(seat))
        }
        What::Replica(id) => {
            let members =
                when_it_answers(async || open(topology, *id, &own, &*metadata, cluster.id, &tree, &fenced).await)
                    .await?;
            (Engine::new(members, None), None)
        }
    };
    engine.trace(Trace::wanted(&own.name));
    let replica = match what {
        What::Replica(id) => tree.replica(*id).map(|record| (*id, record.shard)),
        What::Sequencer(_) | What::Standby { .. } => None,
    };
    let bounds = match replica.and_then(|(id, _)| follow::trims(&tree, id)) {
        Some(shard) => when_it_answers(async || Ok(follow::bounds_of(&*metadata, shard).await?)).await?,
        None => Vec::new(),
    };
    let keeper = Keeper::open(&own.folder.join("retention.json"), cluster.id, bounds, &mut engine)?;
    let links = links(&tree, what, &transport, cluster.id);
    let standbys = topology.sequencers().iter().map(|found| (found.name.clone(), found.standbys.clone())).collect();
    let server = Server::start(Parts {
        engine,
        metadata,
        kept,
        cluster: cluster.id,
        name: own.name,
        directory: own.folder.display().to_string(),
        seat,
        replica,
        tree,
        standbys,
        links: Some(links),
        from: Some(from),
        keeper,
        fenced,
    });
    spawn_local(Rc::clone(&server).listen(listener));
    Ok((server, address))
}

/// The metadata, and how this process serves it to the others if it is the one that keeps it.
async fn metadata(
    topology: &Topology,
    what: &What,
    own: &Own,
    transport: &Transport,
) -> Result<(Arc<dyn Metadata>, Option<served::Server>), StartError> {
    match &topology.metadata {
        MetadataPlace::Embedded => {
            let root = topology.root();
            if *what == What::Sequencer(root.name.clone()) {
                let store: Arc<dyn Metadata> = Arc::new(EmbeddedMetadata::open(own.folder.join("metadata"))?);
                return Ok((Arc::clone(&store), Some(served::Server::new(store))));
            }
            let dial = Keeps { transport: transport.clone(), address: root.address.clone() };
            Ok((Arc::new(served::Remote::new(dial, METADATA_PATIENCE)), None))
        }
        #[cfg(feature = "etcd")]
        MetadataPlace::Etcd { endpoints, prefix } => Ok((Arc::new(etcd(endpoints, prefix).await?), None)),
        #[cfg(not(feature = "etcd"))]
        MetadataPlace::Etcd { .. } => Err(StartError::Topology(format!(
            "{} keeps its metadata in etcd, and this program was built without: build it with the feature etcd",
            topology.file.display()
        ))),
    }
}

/// The metadata in etcd. Waits for that to answer.
#[cfg(feature = "etcd")]
async fn etcd(endpoints: &[String], prefix: &str) -> Result<flexlog_tree_config::Etcd, StartError> {
    use flexlog_tree_config::etcd::{OpenError, Options};
    let mut said: Option<Instant> = None;
    loop {
        let error = match flexlog_tree_config::Etcd::open(Options::new(endpoints.iter().cloned(), prefix)).await {
            Ok(store) => return Ok(store),
            Err(error @ OpenError::Read(ReadError::Unavailable { .. })) => error,
            Err(error) => return Err(StartError::Topology(error.to_string())),
        };
        if said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
            said = Some(Instant::now());
            tracing::warn!(%error, "waiting for the metadata");
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// The process that keeps the metadata.
struct Keeps {
    transport: Transport,
    address: String,
}

#[async_trait]
impl served::Dial for Keeps {
    async fn dial(&self) -> Result<served::AskingConnection, ConnectError> {
        let hello = Hello { version: wire::VERSION, cluster: ClusterId::default(), role: Role::Metadata };
        self.transport.dial(&self.address, &hello).await
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}

/// Puts `new`, which the topology has, in the place of `old`, which it has no more.
///
/// # Errors
/// [`StartError`] where the file is another one, or the metadata refuses it.
pub async fn replace(topology: &Topology, old: ReplicaId, new: ReplicaId) -> Result<ReplicaRecord, StartError> {
    let file = topology.file.display();
    if topology.replica(old).is_some() {
        return Err(StartError::Topology(format!(
            "{file} still has replica {old}: put replica {new} in its place there first"
        )));
    }
    let what = What::Replica(new);
    let own = own(topology, &what)?;
    let transport = transport(topology, &own.name)?;
    let (metadata, _) = metadata(topology, &what, &own, &transport).await?;
    let Some((shard, _)) = topology.replica(new) else {
        return Err(StartError::Topology(format!("{file} has no replica {new}")));
    };
    let known = operations::replica(&*metadata, old).await;
    if let Ok(known) = known
        && known.shard != shard.id
    {
        return Err(StartError::Topology(format!(
            "replica {old} is of shard {}, and replica {new} is in shard {} of {file}: put it below the same shard",
            known.shard, shard.id
        )));
    }
    Ok(operations::replace_replica(&*metadata, old, new, &own.address).await?)
}

/// The cluster of the topology, made where there is none. Waits for the metadata.
async fn join(metadata: &dyn Metadata, topology: &Topology) -> Result<ClusterRecord, StartError> {
    when_it_answers(async || Ok(operations::adopt(metadata, ClusterId(Uuid::new_v4()), topology).await?)).await
}

/// Does what needs the metadata, from its beginning for as long as that is away or a change is in doubt: processes are started
/// in any order, and whoever keeps the metadata may be started again meanwhile.
async fn when_it_answers<T>(mut act: impl AsyncFnMut() -> Result<T, StartError>) -> Result<T, StartError> {
    let mut said: Option<Instant> = None;
    loop {
        let error = match act().await {
            Err(StartError::Operation(
                error @ (OperationError::BeingCreated
                | OperationError::Read(ReadError::Unavailable { .. })
                | OperationError::Commit(
                    CommitError::Unknown { .. } | CommitError::Refused { .. } | CommitError::Unavailable { .. },
                )),
            )) => error,
            done => return done,
        };
        if said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
            said = Some(Instant::now());
            tracing::warn!(%error, "waiting for the metadata");
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// What a sequencer holds.
fn place(tree: &Tree, name: &str, topology: &Topology, numbers_per_epoch: u32) -> Result<Place, StartError> {
    let record = tree.position_named(name);
    // The file was found to agree with the metadata.
    let record = record.ok_or_else(|| StartError::Topology(format!("the metadata has no sequencer '{name}'")))?;
    let below = tree.positions.iter().filter(|other| other.parent == Some(record.position));
    Ok(Place {
        position: record.position,
        parent: record.parent,
        children: below.map(|other| other.position).collect(),
        shards: Led::by(tree, record.position),
        replica_timeout: topology.replica_timeout_ms * 1000,
        numbers_per_epoch,
    })
}

async fn open(
    topology: &Topology,
    id: ReplicaId,
    own: &Own,
    metadata: &dyn Metadata,
    cluster: ClusterId,
    tree: &Tree,
    fenced: &Arc<Notify>,
) -> Result<Vec<crate::engine::Member>, StartError> {
    let lacks = || StartError::Topology(format!("the metadata has no replica {id}"));
    let shard = tree.replica(id).and_then(|record| tree.shard(record.shard)).ok_or_else(lacks)?;
    let wanted = &topology.storage;
    let defaults = flexlog_storage_pm::Options::default();
    let storing = Storing {
        area_limit: wanted.area_limit.unwrap_or(limits::AREA_LIMIT_BYTES),
        segment_bytes: wanted.segment.unwrap_or(limits::SEGMENT_BYTES),
        device: wanted.device.map(|device| match device {
            topology::Device::Mmap => DeviceKind::Mmap,
            topology::Device::File => DeviceKind::File,
            topology::Device::Pmem2 => DeviceKind::Pmem2,
        }),
        ssd: if wanted.ssd.unwrap_or(true) { SsdPlace::Beside } else { SsdPlace::Nowhere },
        high_mark: wanted.high_mark.unwrap_or(defaults.high_mark),
        cache_bytes: wanted.cache.unwrap_or(limits::CACHE_BYTES),
        scrub_mib_s: wanted.scrub_mib_s.unwrap_or(limits::SCRUB_MIB_S),
    };
    let members = shard.view.members.len();
    let homes = Homes { cluster, shard: shard.shard, members, here: vec![(id, own.folder.clone())] };
    open_members(&storing, metadata, homes, fenced).await
}

/// Links to everyone else of the cluster.
fn links(tree: &Tree, what: &What, transport: &Transport, cluster: ClusterId) -> Links {
    let here = match what {
        What::Sequencer(name) | What::Standby { of: name, .. } => {
            tree.position_named(name).map(|record| Peer::Position(record.position))
        }
        What::Replica(id) => Some(Peer::Replica(*id)),
    };
    let address = |record| follow::address_of(record).to_owned();
    let positions = tree.positions.iter().map(|record| (Peer::Position(record.position), address(record)));
    let replicas = tree
        .replicas
        .iter()
        .filter_map(|record| record.addresses.first().map(|address| (Peer::Replica(record.replica), address.clone())));
    let transport = transport.clone();
    let dial: Dial = Box::new(move |address| {
        let transport = transport.clone();
        Box::pin(async move {
            let hello = Hello { version: wire::VERSION, cluster, role: Role::Node };
            transport.dial(&address, &hello).await
        })
    });
    Links::new(Uuid::new_v4(), here, positions.chain(replicas), dial)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away() -> StartError {
        let unavailable = ReadError::Unavailable { what: "the metadata".to_owned(), why: "away".to_owned() };
        OperationError::Read(unavailable).into()
    }

    #[tokio::test]
    async fn a_start_waits_for_metadata_that_is_away_and_ends_by_what_metadata_says() {
        let mut tried = 0;
        let mut act = async || {
            tried += 1;
            match tried {
                1 => Err(away()),
                2 => {
                    let (what, why) = ("the metadata".to_owned(), "lost on the way".to_owned());
                    Err(OperationError::Commit(CommitError::Unknown { what, why }).into())
                }
                _ => Ok(tried),
            }
        };
        assert_eq!(when_it_answers(&mut act).await.unwrap(), 3);
        let refused = when_it_answers(async || Err::<(), _>(OperationError::Width(0).into())).await;
        assert!(matches!(refused, Err(StartError::Operation(OperationError::Width(0)))));
    }
}
