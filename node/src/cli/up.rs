//! `flexlog up`: a cluster in this process.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use flexlog_protocol::limits::{AREA_LIMIT_BYTES, DEFAULT_PORT};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::{Stop, absolute};
use crate::embedded::{self, Options, Ready};

/// Arguments of `flexlog up`.
#[derive(Args)]
pub(crate) struct UpArgs {
    /// The folder that holds everything; made if need be.
    #[arg(long, value_name = "DIR", default_value = "./flexlog-data")]
    dir: PathBuf,
    /// Where to listen for clients.
    #[arg(long, value_name = "ADDR", default_value_t = format!("127.0.0.1:{DEFAULT_PORT}"))]
    listen: String,
    /// How many replicas a new cluster has [default: 3]; an existing one keeps its number.
    #[arg(long, value_name = "N")]
    replicas: Option<u32>,
    /// Bytes that each replica's area may grow to.
    #[arg(long, value_name = "BYTES", default_value_t = AREA_LIMIT_BYTES)]
    area_limit: u64,
    /// Bytes of a segment of a new cluster's areas: a multiple of 4096 from 8 MiB to 1 GiB.
    #[arg(long, value_name = "BYTES", default_value_t = flexlog_protocol::limits::SEGMENT_BYTES)]
    segment: u64,
}

pub(crate) async fn run(args: UpArgs) -> Result<(), Stop> {
    let filter = EnvFilter::try_from_env("FLEXLOG_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();

    let options = Options {
        listen: Some(args.listen),
        replicas: args.replicas,
        area_limit: args.area_limit,
        segment_bytes: args.segment,
        ..Options::new(absolute(&args.dir))
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let stopped = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            // Without a handler for it the process ends by the signal all the same.
            result = tokio::signal::ctrl_c() => { let _ = result; }
        }
    };
    let directory = options.directory.display().to_string();
    embedded::run(options, |ready| announce(&ready, &directory), stopped).await?;
    Ok(())
}

/// Says that the cluster serves, and what to try. Whether anybody reads it does not matter to the cluster.
fn announce(ready: &Ready, directory: &str) {
    let Some(address) = ready.address else { return };
    let mut devices = ready.devices.clone();
    devices.dedup();
    let mut cluster = String::new();
    if address.to_string() != format!("127.0.0.1:{DEFAULT_PORT}") {
        cluster = format!(" --cluster {address}");
    }
    let text = format!(
        "ready {address}\n\
         data in {directory}, {} replicas on {}\n\
         try:\n  \
         echo hello | flexlog append orders{cluster}\n  \
         flexlog tail orders --follow{cluster}\n  \
         flexlog status{cluster}\n",
        ready.devices.len(),
        devices.join(", "),
    );
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
