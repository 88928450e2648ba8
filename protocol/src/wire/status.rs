//! The status of a process on the wire.

use super::answer::{view_from, view_to};
use super::{WireError, hello, proto};
use crate::api::{
    LinkStatus, PositionInfo, PositionStatus, ReplicaInfo, ReplicaStatus, ShardPlace, ShardStatus, Status, TreeInfo,
};
use crate::ids::{Epoch, Lsn, Position, ReplicaId, ShardId};
use crate::peer::{Child, Peer};

pub(super) fn to_proto(status: &Status) -> proto::Status {
    let replica = |replica: &ReplicaStatus| proto::ReplicaStatus {
        replica: replica.replica.0,
        state: replica.state.clone(),
        path: replica.path.clone(),
        device: replica.device.clone(),
        used_bytes: replica.used_bytes,
        limit_bytes: replica.limit_bytes,
        records: replica.records,
        staged: replica.staged,
        index_bytes: replica.index_bytes,
        opened: replica.opened,
        ssd_files: replica.ssd_files,
        ssd_bytes: replica.ssd_bytes,
        ssd_records: replica.ssd_records,
        damaged: replica.damaged,
        repaired: replica.repaired,
        lost: replica.lost,
        scrubbed_bytes: replica.scrubbed_bytes,
        scrub_passes: replica.scrub_passes,
        scrub_ended_secs: replica.scrub_ended_secs,
    };
    let shard = |shard: &ShardStatus| proto::ShardStatus {
        shard: shard.shard.0,
        epoch: shard.epoch.0,
        view: shard.view,
        state: shard.state.clone(),
        last: shard.last.0,
        commit: shard.commit.0,
        sessions: shard.sessions,
        replicas: shard.replicas.iter().map(replica).collect(),
    };
    proto::Status {
        cluster: hello::cluster_bytes(status.cluster),
        version: status.version.clone(),
        directory: status.directory.clone(),
        uptime_micros: status.uptime_micros,
        connections: status.connections,
        colors: status.colors,
        appends: status.appends,
        shards: status.shards.iter().map(shard).collect(),
        process: status.process.clone(),
        position: status.position.as_ref().map(position_to),
        links: status.links.iter().map(link_to).collect(),
        tree: Some(tree_to(&status.tree)),
    }
}

pub(super) fn from_proto(status: proto::Status) -> Result<Status, WireError> {
    let replica = |replica: proto::ReplicaStatus| ReplicaStatus {
        replica: ReplicaId(replica.replica),
        state: replica.state,
        path: replica.path,
        device: replica.device,
        used_bytes: replica.used_bytes,
        limit_bytes: replica.limit_bytes,
        records: replica.records,
        staged: replica.staged,
        index_bytes: replica.index_bytes,
        opened: replica.opened,
        ssd_files: replica.ssd_files,
        ssd_bytes: replica.ssd_bytes,
        ssd_records: replica.ssd_records,
        damaged: replica.damaged,
        repaired: replica.repaired,
        lost: replica.lost,
        scrubbed_bytes: replica.scrubbed_bytes,
        scrub_passes: replica.scrub_passes,
        scrub_ended_secs: replica.scrub_ended_secs,
    };
    let shard = |shard: proto::ShardStatus| ShardStatus {
        shard: ShardId(shard.shard),
        epoch: Epoch(shard.epoch),
        view: shard.view,
        state: shard.state,
        last: Lsn(shard.last),
        commit: Lsn(shard.commit),
        sessions: shard.sessions,
        replicas: shard.replicas.into_iter().map(replica).collect(),
    };
    Ok(Status {
        cluster: hello::cluster(&status.cluster)?,
        version: status.version,
        directory: status.directory,
        uptime_micros: status.uptime_micros,
        connections: status.connections,
        colors: status.colors,
        appends: status.appends,
        shards: status.shards.into_iter().map(shard).collect(),
        process: status.process,
        position: status.position.map(position_from),
        links: status.links.into_iter().map(link_from).collect::<Result<_, _>>()?,
        tree: tree_from(status.tree.unwrap_or_default())?,
    })
}

fn position_to(status: &PositionStatus) -> proto::PositionStatus {
    let (mut positions, mut shards) = (Vec::new(), Vec::new());
    for child in &status.awaited {
        match child {
            Child::Position(position) => positions.push(position.0),
            Child::Shard(shard) => shards.push(shard.0),
        }
    }
    proto::PositionStatus {
        position: status.position.0,
        name: status.name.clone(),
        epoch: status.epoch.0,
        serving: status.serving,
        awaited_positions: positions,
        awaited_shards: shards,
        parent_epoch: status.parent_epoch.map(|epoch| epoch.0),
        colors: status.colors,
        granted: status.granted,
        under_way: status.under_way,
        ignored: status.ignored,
        standby: status.standby,
    }
}

fn position_from(status: proto::PositionStatus) -> PositionStatus {
    let positions = status.awaited_positions.into_iter().map(|position| Child::Position(Position(position)));
    let shards = status.awaited_shards.into_iter().map(|shard| Child::Shard(ShardId(shard)));
    PositionStatus {
        position: Position(status.position),
        name: status.name,
        epoch: Epoch(status.epoch),
        serving: status.serving,
        awaited: positions.chain(shards).collect(),
        parent_epoch: status.parent_epoch.map(Epoch),
        colors: status.colors,
        granted: status.granted,
        under_way: status.under_way,
        ignored: status.ignored,
        standby: status.standby,
    }
}

fn link_to(link: &LinkStatus) -> proto::LinkStatus {
    use proto::link_status::Peer as Kind;
    let peer = match link.peer {
        Peer::Position(position) => Kind::Position(position.0),
        Peer::Replica(replica) => Kind::Replica(replica.0),
    };
    let (address, down) = (link.address.clone(), link.down.clone());
    proto::LinkStatus { peer: Some(peer), address, down, queued_bytes: link.queued_bytes }
}

fn link_from(link: proto::LinkStatus) -> Result<LinkStatus, WireError> {
    use proto::link_status::Peer as Kind;
    let peer = match link.peer {
        None => return Err(WireError::Malformed("a link leads to nobody that version 2 knows")),
        Some(Kind::Position(position)) => Peer::Position(Position(position)),
        Some(Kind::Replica(replica)) => Peer::Replica(ReplicaId(replica)),
    };
    Ok(LinkStatus { peer, address: link.address, down: link.down, queued_bytes: link.queued_bytes })
}

fn tree_to(tree: &TreeInfo) -> proto::TreeInfo {
    let position = |position: &PositionInfo| proto::PositionInfo {
        position: position.position.0,
        name: position.name.clone(),
        parent: position.parent.map(|parent| parent.0),
        address: position.address.clone(),
        epoch: position.epoch.0,
        holder: position.holder.clone(),
        standbys: position.standbys.clone(),
    };
    let replica =
        |replica: &ReplicaInfo| proto::ReplicaInfo { replica: replica.replica.0, address: replica.address.clone() };
    let shard = |shard: &ShardPlace| proto::ShardPlace {
        shard: shard.shard.0,
        leaf: shard.leaf.0,
        view: Some(view_to(&shard.view)),
        min_view: shard.min_view,
        replicas: shard.replicas.iter().map(replica).collect(),
    };
    proto::TreeInfo {
        stale: tree.stale.clone(),
        positions: tree.positions.iter().map(position).collect(),
        shards: tree.shards.iter().map(shard).collect(),
    }
}

fn tree_from(tree: proto::TreeInfo) -> Result<TreeInfo, WireError> {
    let position = |position: proto::PositionInfo| PositionInfo {
        position: Position(position.position),
        name: position.name,
        parent: position.parent.map(Position),
        address: position.address,
        epoch: Epoch(position.epoch),
        holder: position.holder,
        standbys: position.standbys,
    };
    let replica =
        |replica: proto::ReplicaInfo| ReplicaInfo { replica: ReplicaId(replica.replica), address: replica.address };
    let shard = |shard: proto::ShardPlace| {
        Ok(ShardPlace {
            shard: ShardId(shard.shard),
            leaf: Position(shard.leaf),
            view: view_from(shard.view)?,
            min_view: shard.min_view,
            replicas: shard.replicas.into_iter().map(replica).collect(),
        })
    };
    Ok(TreeInfo {
        stale: tree.stale,
        positions: tree.positions.into_iter().map(position).collect(),
        shards: tree.shards.into_iter().map(shard).collect::<Result<_, WireError>>()?,
    })
}
