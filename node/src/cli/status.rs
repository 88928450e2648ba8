//! `flexlog status`: asks one process, and then all others of the cluster that its answer names.
//!
//! What they say is put together by [`Report`]. Two samples make a rate; a process that does not answer is shown with
//! the reason, and keeps nobody waiting for longer than [`PATIENCE`].

mod json;
mod report;
mod text;

use std::time::Duration;

use clap::Args;
use flexlog_client::{Client, ConnectError};
use flexlog_protocol::ClusterId;
use flexlog_protocol::api::{Status, TreeInfo};
use flexlog_tree_config::topology::Topology;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::report::{Process, Report};
use super::{Common, Stop};

/// How long a process of the cluster may take to connect, and as long again to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time between the two samples unless told otherwise, in milliseconds.
const INTERVAL: u64 = 500;

/// Arguments of `flexlog status`.
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Count for so many milliseconds for what is given per second; 0 leaves rates away [default: 500 for a cluster of
    /// several processes, 0 for one].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    interval: Option<u64>,
    /// End with exit code 1 unless every process answers, every position and shard serves, and every replica is ok.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) async fn run(args: StatusArgs) -> Result<(), Stop> {
    let client = args.common.connect().await?;
    let asked = client.status().await?;
    let others = others(&asked);
    let interval = args.interval.unwrap_or(if others.is_empty() { 0 } else { INTERVAL });
    let first = Process { name: asked.process.clone(), address: client.address(), answer: Ok(asked), later: None };
    let mut processes = vec![(first, Some(client))];
    processes.extend(ask(&args.common, processes[0].1.as_ref().map(Client::cluster), others).await?);
    if interval > 0 {
        sleep(Duration::from_millis(interval)).await;
        ask_again(&mut processes).await;
    }
    let report = Report::new(processes.into_iter().map(|(process, _)| process).collect());
    let mut output = args.common.output();
    if output.is_json() {
        output.object(&json::of(&report))?;
    } else {
        for line in text::of(&report) {
            output.line(&line)?;
        }
    }
    output.flush()?;
    if args.check && !report.is_healthy() { Err(Stop::Told) } else { Ok(()) }
}

/// The other processes of the cluster, by name and address; none where all is in one process.
fn others(asked: &Status) -> Vec<(String, String)> {
    let TreeInfo { positions, shards, .. } = &asked.tree;
    let positions = positions.iter().flat_map(report::processes_of);
    let replicas = shards.iter().flat_map(|shard| &shard.replicas);
    let replicas = replicas.map(|replica| (Topology::replica_name(replica.replica), replica.address.clone()));
    positions.chain(replicas).filter(|(name, address)| !address.is_empty() && *name != asked.process).collect()
}

/// Asks all of them at once; they come back in the same order.
async fn ask(
    common: &Common,
    cluster: Option<ClusterId>,
    others: Vec<(String, String)>,
) -> Result<Vec<(Process, Option<Client>)>, Stop> {
    let builder = common.builder(PATIENCE)?.deadline(PATIENCE).cluster(cluster.unwrap_or_default());
    let mut asking = JoinSet::new();
    for (at, (name, address)) in others.into_iter().enumerate() {
        let builder = builder.clone();
        asking.spawn(async move {
            let (answer, client) = match builder.connect(address.as_str()).await {
                Ok(client) => (client.status().await.map_err(|error| error.to_string()), Some(client)),
                Err(error) => (Err(in_short(error)), None),
            };
            // Another process may have taken the address.
            let answer = answer.and_then(|status| match status.process == name {
                true => Ok(status),
                false => Err(format!("'{}' is at {address}", status.process)),
            });
            (at, (Process { name, address, answer, later: None }, client))
        });
    }
    let mut asked = asking.join_all().await;
    asked.sort_unstable_by_key(|(at, _)| *at);
    Ok(asked.into_iter().map(|(_, process)| process).collect())
}

/// Why there is no connection; the line has the address already.
fn in_short(error: ConnectError) -> String {
    match error {
        ConnectError::Unreachable { source, .. } => source.to_string(),
        ConnectError::TimedOut { after, .. } => format!("no answer within {} s", after.as_secs()),
        ConnectError::Refused { reason, .. } => reason,
        error => error.to_string(),
    }
}

/// Takes the second sample, of those that gave the first.
async fn ask_again(processes: &mut [(Process, Option<Client>)]) {
    let mut asking = JoinSet::new();
    for (at, (process, client)) in processes.iter().enumerate() {
        if process.answer.is_ok()
            && let Some(client) = client.clone()
        {
            asking.spawn(async move { (at, timeout(PATIENCE, client.status()).await) });
        }
    }
    for (at, status) in asking.join_all().await {
        // Without a second sample there is no rate; that it went away in this moment, the next call will show.
        processes[at].0.later = status.ok().and_then(Result::ok);
    }
}
