//! `flexlog status`.

use clap::Args;
use flexlog_protocol::api::{ReplicaStatus, ShardStatus, Status};
use serde_json::{Value, json};

use super::{Common, Stop};

/// Arguments of `flexlog status`.
#[derive(Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    common: Common,
}

pub(crate) async fn run(args: StatusArgs) -> Result<(), Stop> {
    let status = args.common.connect().await?.status().await?;
    let mut output = args.common.output();
    if output.is_json() {
        output.object(&as_json(&status))?;
    } else {
        for line in as_text(&status) {
            output.line(&line)?;
        }
    }
    output.flush()
}

fn as_json(status: &Status) -> Value {
    let replica = |replica: &ReplicaStatus| {
        json!({
            "replica": replica.replica.0,
            "state": replica.state,
            "path": replica.path,
            "device": replica.device,
            "used_bytes": replica.used_bytes,
            "limit_bytes": replica.limit_bytes,
            "records": replica.records,
            "staged": replica.staged,
            "index_bytes": replica.index_bytes,
            "opened": replica.opened,
            "ssd_files": replica.ssd_files,
            "ssd_bytes": replica.ssd_bytes,
            "ssd_records": replica.ssd_records,
        })
    };
    let shard = |shard: &ShardStatus| {
        json!({
            "shard": shard.shard.0,
            "state": shard.state,
            "epoch": shard.epoch.0,
            "view": shard.view,
            "last": shard.last.0,
            "commit": shard.commit.0,
            "sessions": shard.sessions,
            "replicas": shard.replicas.iter().map(replica).collect::<Vec<_>>(),
        })
    };
    json!({
        "cluster": status.cluster.to_string(),
        "version": status.version,
        "directory": status.directory,
        "uptime_s": status.uptime_micros as f64 / 1e6,
        "connections": status.connections,
        "colors": status.colors,
        "appends": status.appends,
        "shards": status.shards.iter().map(shard).collect::<Vec<_>>(),
    })
}

fn as_text(status: &Status) -> Vec<String> {
    let mut lines = vec![
        format!("cluster    {} (flexlog {})", status.cluster, status.version),
        format!("directory  {}", status.directory),
        format!("up for     {:.0} s", status.uptime_micros as f64 / 1e6),
        format!("clients    {}", status.connections),
        format!("colors     {}", status.colors),
        format!("appends    {} since the start", status.appends),
    ];
    for shard in &status.shards {
        lines.push(format!(
            "shard {}    {}: epoch {}, view {}, log at {} (committed {}), {} sessions",
            shard.shard, shard.state, shard.epoch, shard.view, shard.last, shard.commit, shard.sessions
        ));
        for replica in &shard.replicas {
            lines.push(format!(
                "  replica {}  {}: {} of {} MiB used, {} records, {} staged, index {} KiB, opened {} times",
                replica.replica,
                replica.state,
                replica.used_bytes >> 20,
                replica.limit_bytes >> 20,
                replica.records,
                replica.staged,
                replica.index_bytes >> 10,
                replica.opened
            ));
            lines.push(format!("             {} at {}", replica.device, replica.path));
            if replica.ssd_files > 0 {
                lines.push(format!(
                    "             SSD: {} records in {} files, {} MiB",
                    replica.ssd_records,
                    replica.ssd_files,
                    replica.ssd_bytes >> 20
                ));
            }
        }
    }
    lines
}
