//! The stores of a process's replicas: opening them in the two steps that keep their identity, see
//! [`flexlog_tree_config::identity`], and recovering them, all at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use flexlog_protocol::media::{LogStore, Recovered};
use flexlog_protocol::{ClusterId, ReplicaId, ShardId, StoreId};
use flexlog_replica::{Output, Replica};
use flexlog_storage_pm::device::{AnyDevice, DeviceKind};
use flexlog_storage_pm::ssd::DirFolder;
use flexlog_storage_pm::{Advanced, Closed, Mark, Owner, Store};
use flexlog_tree_config::{Metadata, operations};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::embedded::{MIN_SEGMENT_BYTES, SsdPlace, StartError};
use crate::engine::Member;

/// How replicas keep their records.
#[derive(Clone, Debug)]
pub(crate) struct Storing {
    pub(crate) area_limit: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) device: Option<DeviceKind>,
    pub(crate) ssd: SsdPlace,
    pub(crate) high_mark: u8,
    pub(crate) cache_bytes: u64,
    pub(crate) scrub_mib_s: u32,
}

/// The replicas of this process, all of one shard.
pub(crate) struct Homes {
    pub(crate) cluster: ClusterId,
    pub(crate) shard: ShardId,
    /// How many members the shard has, here and elsewhere.
    pub(crate) members: usize,
    /// Those that are here, and their folders.
    pub(crate) here: Vec<(ReplicaId, PathBuf)>,
}

/// Opens and recovers the stores of the replicas that are here. `fenced` is told when a fence of one may be done.
///
/// # Errors
/// [`StartError`]
pub(crate) async fn open_members(
    options: &Storing,
    metadata: &dyn Metadata,
    homes: Homes,
    fenced: &Arc<Notify>,
) -> Result<Vec<Member>, StartError> {
    if options.segment_bytes < MIN_SEGMENT_BYTES {
        return Err(StartError::Segment(options.segment_bytes));
    }
    let mut counted = Vec::new();
    for (replica, path) in homes.here {
        let owner = Owner { cluster: homes.cluster, replica };
        let store = count_opening(options, metadata, owner, &path).await?;
        counted.push((replica, path, store));
    }
    // Reading the logs takes the time, so all are read at once.
    let recovered: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = counted
            .into_iter()
            .map(|(replica, path, store)| {
                let opened = store.identity().opened;
                (replica, path, opened, scope.spawn(move || store.finish()))
            })
            .collect();
        let join = |(replica, path, opened, thread): (_, _, _, thread::ScopedJoinHandle<'_, _>)| {
            (replica, path, opened, thread.join())
        };
        threads.into_iter().map(join).collect()
    });
    let staged_limit = options.area_limit / (2 * homes.members.max(1) as u64);
    let mut members = Vec::new();
    for (replica, path, opened, result) in recovered {
        let panicked = |_| StartError::Thread(format!("the recovery of replica {replica} failed"));
        let (mut store, recovered) = result.map_err(panicked)??;
        let core = member(replica, homes.shard, &path, &mut store, recovered, fenced)?
            .with_staged_limit(staged_limit)
            .opened(opened);
        let member = Member::new(replica, core, Box::new(store), path.display().to_string(), opened);
        members.push(member.with_scrub(u64::from(options.scrub_mib_s) << 20));
    }
    Ok(members)
}

/// Opens a store up to where both sides have counted this opening.
async fn count_opening(
    options: &Storing,
    metadata: &dyn Metadata,
    owner: Owner,
    path: &Path,
) -> Result<Advanced<AnyDevice>, StartError> {
    let fresh = StoreId(Uuid::new_v4());
    let store_options = flexlog_storage_pm::Options {
        segment_bytes: options.segment_bytes,
        limit_bytes: options.area_limit,
        high_mark: options.high_mark,
        cache_bytes: options.cache_bytes,
        ..flexlog_storage_pm::Options::default()
    };
    let mut closed = Closed::open_folder(path, options.device, owner, fresh, store_options)?;
    let ssd = match &options.ssd {
        SsdPlace::Beside => Some(path.join("ssd")),
        SsdPlace::In(folder) => Some(folder.join(format!("replica-{}", owner.replica))),
        SsdPlace::Nowhere => None,
    };
    if let Some(ssd) = ssd {
        let made = std::fs::create_dir_all(&ssd).and_then(|()| {
            // The name of the folder is to outlast a crash as what will be in it does.
            std::fs::File::open(ssd.parent().unwrap_or(&ssd))?.sync_all()
        });
        made.map_err(|source| StartError::Folder { path: ssd.clone(), source })?;
        closed = closed.with_ssd(Arc::new(DirFolder::new(ssd)));
    }
    let id = closed.identity().id;
    if let Mark::Opened { n, nonce: Some(nonce) } = closed.mark() {
        // The metadata may not have heard of the end of the last opening; where it has, this changes nothing.
        if let Some(before) = n.checked_sub(1) {
            operations::finish_open(metadata, owner.replica, id, before, nonce).await?;
        }
    }
    let intended = closed.intend(Uuid::new_v4())?;
    let (n, nonce) = (intended.identity().opened, intended.nonce());
    operations::begin_open(metadata, owner.replica, id, n, nonce).await?;
    let advanced = intended.advance()?;
    operations::finish_open(metadata, owner.replica, id, n, nonce).await?;
    Ok(advanced)
}

fn member(
    replica: ReplicaId,
    shard: ShardId,
    path: &Path,
    store: &mut Store<AnyDevice>,
    recovered: Recovered,
    fenced: &Arc<Notify>,
) -> Result<Replica, StartError> {
    let (core, outputs) = Replica::restore(replica, shard, recovered).map_err(|source| StartError::Restore {
        replica,
        path: path.to_owned(),
        source,
    })?;
    for output in outputs {
        match output {
            Output::Trim { color, upto } => store.trim(color, upto),
            Output::DropStaged(tokens) => store.drop_staged(&tokens),
            other => tracing::error!(?other, "a replica wants more than its store when it starts"),
        }
    }
    let fenced = Arc::clone(fenced);
    store.on_fenced(Box::new(move || fenced.notify_one()));
    Ok(core)
}
