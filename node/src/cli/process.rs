//! `flexlog sequencer` and `flexlog replica`: one process of a cluster of several.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use flexlog_protocol::{ReplicaId, SeqNum};
use flexlog_tree_config::topology::Topology;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::Stop;
use crate::process::{self, Options, Ready, What};

/// Where the cluster is described.
#[derive(Args)]
pub(crate) struct FileArgs {
    /// The file that describes the cluster: see `flexlog config check`.
    #[arg(long, value_name = "FILE", default_value = "cluster.toml")]
    config: PathBuf,
    /// The most numbers of a color in one epoch: small ones are for trying what happens at the end of an epoch.
    #[arg(long, value_name = "N", default_value_t = SeqNum::MAX_COUNT, hide = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    numbers_per_epoch: u32,
}

/// Arguments of `flexlog sequencer`.
#[derive(Args)]
pub(crate) struct SequencerArgs {
    /// Its name in the file.
    name: String,
    /// Run its Nth standby, which takes over when the process that holds the position is gone.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    standby: Option<u16>,
    #[command(flatten)]
    file: FileArgs,
}

/// Arguments of `flexlog replica`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ReplicaArgs {
    #[command(subcommand)]
    command: Option<ReplicaCommand>,
    /// Its number in the file.
    #[arg(required = true)]
    id: Option<u32>,
    #[command(flatten)]
    file: FileArgs,
}

#[derive(Subcommand)]
enum ReplicaCommand {
    /// Put a new replica in the place of one whose store is lost, or that is to go. The file has the new one by now, and the
    /// old one no more. Start the new one's process then; the shard takes it in by itself.
    Replace {
        /// The number of the replica that goes. It never comes back.
        old: u32,
        /// The number of the new one, which no replica had before.
        new: u32,
        #[command(flatten)]
        file: FileArgs,
    },
}

pub(crate) async fn run_sequencer(args: SequencerArgs) -> Result<(), Stop> {
    let what = match args.standby {
        None => What::Sequencer(args.name),
        Some(number) => What::Standby { of: args.name, number: number.into() },
    };
    run(what, args.file).await
}

pub(crate) async fn run_replica(args: ReplicaArgs) -> Result<(), Stop> {
    match (args.command, args.id) {
        (Some(ReplicaCommand::Replace { old, new, file }), _) => {
            say_more();
            let topology = Topology::load(&file.config)?;
            let record = process::replace(&topology, ReplicaId(old), ReplicaId(new)).await?;
            let mut out = std::io::stdout().lock();
            writeln!(out, "replica {new} is in the place of replica {old} in shard {}", record.shard)?;
            Ok(())
        }
        (None, Some(id)) => run(What::Replica(ReplicaId(id)), args.file).await,
        // The parser asks for one of them.
        (None, None) => Ok(()),
    }
}

fn say_more() {
    let filter = EnvFilter::try_from_env("FLEXLOG_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
}

async fn run(what: What, file: FileArgs) -> Result<(), Stop> {
    say_more();
    let topology = Topology::load(&file.config)?;
    let options = Options { numbers_per_epoch: file.numbers_per_epoch, ..Options::new(topology, what) };
    process::run(options, |ready| announce(&ready), stopped()?).await?;
    Ok(())
}

/// Done when the process is asked to end.
pub(super) fn stopped() -> Result<impl Future<Output = ()>, Stop> {
    let mut terminate = signal(SignalKind::terminate())?;
    // A task of its own: beside the others it would be looked at whenever one of them has something to do.
    let stopped = tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            // Without a handler for it the process ends by the signal all the same.
            result = tokio::signal::ctrl_c() => { let _ = result; }
        }
    });
    Ok(async move {
        // It fails only where the runtime ends.
        let _ = stopped.await;
    })
}

/// Says that the process serves. Whether anybody reads it does not matter to it.
fn announce(ready: &Ready) {
    let Some(address) = ready.address else { return };
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "ready {} {address}", ready.name).and_then(|()| out.flush());
}
