//! `memory`: what the server keeps in memory of its own while a gigabyte of records is written.

use clap::Args;
use flexlog_client::{Client, Record};
use serde_json::json;

use crate::Outcome;
use crate::measure::{self, Output};
use crate::servers::Process;

/// Arguments of `bench memory`.
#[derive(Args)]
pub(crate) struct MemoryArgs {
    /// Records of 1 KiB to write.
    #[arg(long, default_value_t = 1 << 20)]
    records: u64,
    /// Where the folder is made.
    #[arg(long, default_value = "/dev/shm")]
    tmpfs: String,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(args: &MemoryArgs) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let folder = tempfile::Builder::new().prefix("flexlog-bench-").tempdir_in(&args.tmpfs)?;
    let server = Process::cluster(folder.path())?;
    let before = server.anonymous_bytes()?;
    let (most, index) = runtime.block_on(write(args.records, &server))?;
    let object = json!({
        "records": args.records,
        "size": 1024,
        "anonymous_mib_before": before >> 20,
        "anonymous_mib_most": most >> 20,
        "index_bytes_per_record_and_replica": index,
    });
    args.output.tell(&object, || {
        measure::table(
            &["records of 1 KiB", "anonymous MiB before", "at most", "index bytes a record and replica"],
            &[vec![
                args.records.to_string(),
                (before >> 20).to_string(),
                (most >> 20).to_string(),
                format!("{index:.1}"),
            ]],
        );
    })
}

/// Writes all, and gives the most anonymous bytes seen and the index bytes of a record on one replica.
async fn write(records: u64, server: &Process) -> Outcome<(u64, f64)> {
    let client = Client::connect(&server.address).await?;
    let log = client.color("bench").await?;
    let record = Record::new(vec![b'x'; 1024])?;
    let mut most = 0;
    let mut pending = std::collections::VecDeque::new();
    for i in 0..records {
        if pending.len() == flexlog_protocol::limits::TOKEN_WINDOW as usize
            && let Some(oldest) = pending.pop_front()
        {
            wait(oldest).await?;
        }
        pending.push_back(log.submit(record.clone()).await?);
        if i % 4096 == 0 {
            most = most.max(server.anonymous_bytes()?);
        }
    }
    for one in pending {
        wait(one).await?;
    }
    most = most.max(server.anonymous_bytes()?);
    let status = client.status().await?;
    let replica = status.shards.first().and_then(|shard| shard.replicas.first()).ok_or("the cluster has no replica")?;
    Ok((most, replica.index_bytes as f64 / replica.records as f64))
}

async fn wait(pending: flexlog_client::Pending) -> Outcome<()> {
    pending.await?;
    Ok(())
}
