//! `flexlog up`: a cluster in this process.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use flexlog_protocol::limits::{AREA_LIMIT_BYTES, DEFAULT_PORT};
use flexlog_storage_pm::device::DeviceKind;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::{Stop, absolute};
use crate::embedded::{self, Options, Ready, SsdPlace};

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
    /// What the areas are on [default: what suits the file system].
    #[arg(long, value_enum)]
    device: Option<Device>,
    /// Where older records go when an area fills: a folder, `none`, or `beside` for a folder beside each area.
    #[arg(long, value_name = "DIR", default_value = "beside")]
    ssd: String,
    /// Percent of an area above which its oldest records move to SSD files.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=99))]
    high_mark: u8,
    /// Bytes of memory in which each replica keeps records that were read.
    #[arg(long, value_name = "BYTES", default_value_t = flexlog_protocol::limits::CACHE_BYTES)]
    cache: u64,
    /// MiB a second that are read of each replica's records to find what is damaged; 0 for none.
    #[arg(long, value_name = "N", default_value_t = flexlog_protocol::limits::SCRUB_MIB_S)]
    scrub_mib_s: u32,
}

/// The devices, as they are named on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum Device {
    /// Memory on tmpfs: does not outlive the machine.
    Mmap,
    /// Any disk.
    File,
    /// Persistent memory, through libpmem2; needs a build with the feature `pmem2`.
    Pmem2,
}

impl From<Device> for DeviceKind {
    fn from(device: Device) -> Self {
        match device {
            Device::Mmap => Self::Mmap,
            Device::File => Self::File,
            Device::Pmem2 => Self::Pmem2,
        }
    }
}

pub(crate) async fn run(args: UpArgs) -> Result<(), Stop> {
    let filter = EnvFilter::try_from_env("FLEXLOG_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();

    let options = Options {
        listen: Some(args.listen),
        replicas: args.replicas,
        area_limit: args.area_limit,
        segment_bytes: args.segment,
        device: args.device.map(DeviceKind::from),
        ssd: match args.ssd.as_str() {
            "beside" => SsdPlace::Beside,
            "none" => SsdPlace::Nowhere,
            folder => SsdPlace::In(absolute(Path::new(folder))),
        },
        high_mark: args.high_mark,
        cache_bytes: args.cache,
        scrub_mib_s: args.scrub_mib_s,
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
