//! A status for programs: one object, of the same form for one process and for many.

use flexlog_protocol::api::{PositionInfo, ReplicaInfo, ShardPlace};
use flexlog_tree_config::topology::Topology;
use serde_json::{Value, json};

use super::report::{Process, Report};

pub(super) fn of(report: &Report) -> Value {
    let status = &report.asked;
    let (appends, rate) = if report.is_one_process() { (status.appends, report.appends().1) } else { report.appends() };
    let connections = if report.is_one_process() { status.connections } else { report.connections() };
    let tree = report.tree();
    json!({
        "cluster": status.cluster.to_string(),
        "version": status.version,
        "process": status.process,
        "directory": status.directory,
        "uptime_s": status.uptime_micros as f64 / 1e6,
        "connections": connections,
        "colors": tree.stale.is_none().then_some(status.colors),
        "appends": appends,
        "appends_per_s": rate,
        "healthy": report.is_healthy(),
        "metadata_away": tree.stale,
        "positions": tree.positions.iter().map(|info| position(report, info)).collect::<Vec<_>>(),
        "shards": tree.shards.iter().map(|place| shard(report, place)).collect::<Vec<_>>(),
        "processes": report.processes.iter().map(|each| process(report, each)).collect::<Vec<_>>(),
    })
}

fn position(report: &Report, info: &PositionInfo) -> Value {
    let parent = info.parent.and_then(|parent| report.tree().positions.iter().find(|p| p.position == parent));
    let (status, rate) = report.position(info.position).unzip();
    let (holder, address) = report.holder(info);
    let standbys = report
        .standbys(info)
        .map(|(name, address, away, state)| json!({ "name": name, "address": address, "away": away, "state": state }));
    json!({
        "id": info.position.0,
        "name": info.name,
        "parent": parent.map(|parent| &parent.name),
        "address": address,
        "holder": (info.epoch.0 > 0).then_some(&holder),
        "holder_epoch": info.epoch.0,
        "standbys": standbys.collect::<Vec<_>>(),
        "away": report.away(&holder),
        "state": status.map(|status| report.state(info, status)),
        "serving": status.map(|status| status.serving),
        "epoch": status.map(|status| status.epoch.0),
        "parent_epoch": status.and_then(|status| status.parent_epoch).map(|epoch| epoch.0),
        "awaited": status.map(|status| report.awaited(status)),
        "colors": status.map(|status| status.colors),
        "granted": status.map(|status| status.granted),
        "granted_per_s": rate.flatten(),
        "under_way": status.map(|status| status.under_way),
        "ignored": status.map(|status| status.ignored),
    })
}

fn shard(report: &Report, place: &ShardPlace) -> Value {
    let shard = report.shard(place);
    let leaf = report.tree().positions.iter().find(|position| position.position == place.leaf);
    json!({
        "shard": place.shard.0,
        "leaf": leaf.map(|leaf| &leaf.name),
        "view": place.view.number.0,
        "members": place.view.members.iter().map(|member| member.0).collect::<Vec<_>>(),
        "min_view": place.min_view,
        "state": shard.map(|shard| &shard.state),
        "epoch": shard.map(|shard| shard.epoch.0),
        "last": shard.map(|shard| shard.last.0),
        "commit": shard.map(|shard| shard.commit.0),
        "sessions": shard.map(|shard| shard.sessions),
        "replicas": place.replicas.iter().map(|info| replica(report, info)).collect::<Vec<_>>(),
    })
}

fn replica(report: &Report, info: &ReplicaInfo) -> Value {
    let status = report.replica(info.replica);
    json!({
        "replica": info.replica.0,
        "address": info.address,
        "away": report.away(&Topology::replica_name(info.replica)),
        "state": status.map(|status| &status.state),
        "path": status.map(|status| &status.path),
        "device": status.map(|status| &status.device),
        "used_bytes": status.map(|status| status.used_bytes),
        "limit_bytes": status.map(|status| status.limit_bytes),
        "records": status.map(|status| status.records),
        "staged": status.map(|status| status.staged),
        "index_bytes": status.map(|status| status.index_bytes),
        "opened": status.map(|status| status.opened),
        "ssd_files": status.map(|status| status.ssd_files),
        "ssd_bytes": status.map(|status| status.ssd_bytes),
        "ssd_records": status.map(|status| status.ssd_records),
        "damaged": status.map(|status| status.damaged),
        "repaired": status.map(|status| status.repaired),
        "lost": status.map(|status| status.lost),
        "scrubbed_bytes": status.map(|status| status.scrubbed_bytes),
        "scrub_passes": status.map(|status| status.scrub_passes),
        "scrub_ended_secs": status.filter(|status| status.scrub_passes > 0).map(|status| status.scrub_ended_secs),
    })
}

fn process(report: &Report, process: &Process) -> Value {
    let status = process.status();
    let links = status.map(|status| {
        let links = status.links.iter().map(|link| {
            json!({
                "to": report.name_of(link.peer),
                "address": link.address,
                "down": link.down,
                "queued_bytes": link.queued_bytes,
            })
        });
        links.collect::<Vec<_>>()
    });
    json!({
        "name": process.name,
        "address": process.address,
        "away": process.answer.as_ref().err(),
        "version": status.map(|status| &status.version),
        "directory": status.map(|status| &status.directory),
        "uptime_s": status.map(|status| status.uptime_micros as f64 / 1e6),
        "connections": status.map(|status| status.connections),
        "appends": status.map(|status| status.appends),
        "links": links,
    })
}
