//! `flexlog config`: what a topology file says, and what is wrong with it.
//!
//! Exit codes: 0 the file is good, 1 it is not, or cannot be read.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use flexlog_tree_config::topology::{MetadataPlace, Problems, Sequencer, Shard, Topology, TopologyError, Transport};
use serde_json::{Value, json};

use super::Stop;
use super::output::Output;

/// Arguments of `flexlog config`.
#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the file that describes a cluster, and print the tree that it describes. Starts and changes nothing.
    Check(CheckArgs),
}

/// Arguments of `flexlog config check`.
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// The topology file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &ConfigCommand) -> Result<(), Stop> {
    let ConfigCommand::Check(args) = command;
    let mut output = Output::new(args.json);
    let result = match Topology::load(&args.file) {
        Ok(topology) => {
            if args.json {
                output.object(&as_json(&topology))?;
            } else {
                describe(&topology, &mut output)?;
            }
            Ok(())
        }
        Err(TopologyError::Wrong(problems)) => {
            if args.json {
                output.object(&problems_json(&problems))?;
            } else {
                output.line(&problems.to_string())?;
            }
            Err(Stop::Told)
        }
        Err(error) => Err(error.into()),
    };
    output.flush()?;
    result
}

fn describe(topology: &Topology, output: &mut Output) -> Result<(), Stop> {
    let replicas: usize = topology.shards().iter().map(|shard| shard.replicas.len()).sum();
    let standbys = match topology.standbys().count() {
        0 => String::new(),
        n => format!("{}, ", count(n, "standby")),
    };
    output.line(&format!(
        "cluster {}: {}, {standbys}{}, {}",
        topology.cluster.as_deref().unwrap_or("without a name"),
        count(topology.sequencers().len(), "sequencer"),
        count(topology.shards().len(), "shard"),
        count(replicas, "replica"),
    ))?;
    output.line(&match &topology.transport {
        Transport::Tcp => "transport tcp".to_owned(),
        Transport::Quic { certificates } => format!("transport quic, certificates in {}", certificates.display()),
    })?;
    output.line(&match &topology.metadata {
        MetadataPlace::Embedded => format!("metadata embedded, kept by {}", topology.root().name),
        MetadataPlace::Etcd { endpoints, prefix } => {
            format!("metadata in etcd {} below {prefix}", endpoints.join(", "))
        }
    })?;
    output.line(&format!("data in {}", topology.data.display()))?;
    if !standbys.is_empty() {
        output.line(&format!("a standby takes over after {} ms of silence", topology.detect_ms))?;
    }
    // The tree may be deep, so those still to come are on a stack of our own.
    let mut next = vec![(0, topology.root())];
    while let Some((depth, sequencer)) = next.pop() {
        let indent = "  ".repeat(depth);
        let linger = match sequencer.linger_micros {
            0 => String::new(),
            micros => format!(", lingers {micros} µs"),
        };
        output.line(&format!("{indent}{} at {}{linger}", sequencer.name, sequencer.address))?;
        for (number, address) in (1..).zip(&sequencer.standbys) {
            output.line(&format!("{indent}  {} at {address}", Topology::standby_name(&sequencer.name, number)))?;
        }
        for shard in topology.shards_of(&sequencer.name) {
            output.line(&format!("{indent}  shard {}, views of {} or more", shard.id, shard.min_view))?;
            for replica in &shard.replicas {
                output.line(&format!("{indent}    replica {} at {}", replica.id, replica.address))?;
            }
        }
        let children: Vec<&Sequencer> = topology.children(&sequencer.name).collect();
        next.extend(children.into_iter().rev().map(|child| (depth + 1, child)));
    }
    Ok(())
}

fn count(n: usize, what: &str) -> String {
    let many = if n == 1 { "" } else { "s" };
    format!("{n} {what}{many}")
}

fn as_json(topology: &Topology) -> Value {
    let transport = match &topology.transport {
        Transport::Tcp => json!({ "kind": "tcp" }),
        Transport::Quic { certificates } => json!({ "kind": "quic", "certificates": certificates }),
    };
    let metadata = match &topology.metadata {
        MetadataPlace::Embedded => json!({ "backend": "embedded", "sequencer": topology.root().name }),
        MetadataPlace::Etcd { endpoints, prefix } => {
            json!({ "backend": "etcd", "endpoints": endpoints, "prefix": prefix })
        }
    };
    let sequencer = |sequencer: &Sequencer| {
        json!({
            "name": sequencer.name,
            "parent": sequencer.parent,
            "depth": topology.depth(&sequencer.name),
            "address": sequencer.address,
            "linger_micros": sequencer.linger_micros,
            "standbys": sequencer.standbys,
        })
    };
    let shard = |shard: &Shard| {
        let replicas = shard.replicas.iter().map(|r| json!({ "id": r.id.0, "address": r.address }));
        json!({
            "id": shard.id.0,
            "leaf": shard.leaf,
            "min_view": shard.min_view,
            "replicas": replicas.collect::<Vec<_>>(),
        })
    };
    json!({
        "good": true,
        "cluster": topology.cluster,
        "transport": transport,
        "metadata": metadata,
        "data": topology.data,
        "detect_ms": topology.detect_ms,
        "replica_timeout_ms": topology.replica_timeout_ms,
        "sequencers": topology.sequencers().iter().map(sequencer).collect::<Vec<_>>(),
        "shards": topology.shards().iter().map(shard).collect::<Vec<_>>(),
    })
}

fn problems_json(problems: &Problems) -> Value {
    let each = problems.problems.iter().map(|problem| json!({ "line": problem.line, "message": problem.message }));
    json!({ "good": false, "file": problems.file, "errors": each.collect::<Vec<_>>() })
}
