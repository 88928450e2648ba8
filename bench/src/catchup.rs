//! `catchup`: how fast a replica that was away comes back while others write. A replica is killed, records are appended that
//! it will lack, and it is started again while a client goes on appending. The time from its start until it is in the view
//! again stands beside the time that the same records took to be appended in the same run: a replica that copies slower than
//! others write would never arrive.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use flexlog_client::{Client, ColorOptions, Log, Record};
use serde_json::json;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::failover::{Bed, quantile, words};
use crate::measure::{self, Output, Spread};
use crate::{Outcome, plot};

/// Arguments of `bench catchup`.
#[derive(Args)]
pub(crate) struct CatchupArgs {
    /// How many records the replica lacks when it comes back.
    #[arg(long, value_delimiter = ',', default_value = "10000,30000,60000,100000")]
    records: Vec<usize>,
    /// How often, for each.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Bytes of a record.
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Where the areas are.
    #[arg(long, default_value = "/dev/shm")]
    tmpfs: String,
    /// Write a picture of the times against the records to this file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

const DETECT_MS: u64 = 300;
const REPLICA_TIMEOUT_MS: u64 = 1000;
/// Records of a batch, and batches under way, while the replica is away.
const BATCH: usize = 128;
const UNDER_WAY: usize = 8;
const PATIENCE: Duration = Duration::from_secs(120);

/// What came of one kind of run.
struct Row {
    records: usize,
    /// Seconds in which the records were appended, and in which the replica was in the view again.
    appended: Vec<f64>,
    back: Vec<f64>,
    /// Appends a second of the client that went on meanwhile.
    meanwhile: Vec<f64>,
}

pub(crate) fn run(args: &CatchupArgs) -> Outcome<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let mut bed = Bed::new(&args.tmpfs, (DETECT_MS, REPLICA_TIMEOUT_MS), false)?;
    let mut rows = Vec::new();
    for records in &args.records {
        let mut row = Row { records: *records, appended: Vec::new(), back: Vec::new(), meanwhile: Vec::new() };
        for nth in 0..args.runs {
            local.block_on(&runtime, once(&mut bed, nth, args.size, &mut row))?;
        }
        for list in [&mut row.appended, &mut row.back, &mut row.meanwhile] {
            list.sort_by(f64::total_cmp);
        }
        rows.push(row);
    }
    if let Some(path) = &args.plot {
        let points = |of: fn(&Row) -> &Vec<f64>| {
            rows.iter().map(|row| (row.records as f64, Spread::of(of(row).iter().copied()))).collect::<Vec<_>>()
        };
        let picture = plot::lines(
            "A replica comes back while others write",
            ["records that it lacks", "seconds"],
            &[
                ("until it is in the view again", points(|row| &row.back)),
                ("they were appended in", points(|row| &row.appended)),
            ],
        );
        plot::write(path, &picture)?;
    }
    tell(args, &rows)
}

async fn once(bed: &mut Bed, nth: usize, size: usize, row: &mut Row) -> Outcome<()> {
    let record = Record::new(vec![7; size])?;
    let client = Client::builder().append_deadline(PATIENCE).connect(bed.replicas.join(",")).await?;
    let options = ColorOptions { owner: Some("leaf".to_owned()), ..ColorOptions::default() };
    client.create_color("catchup", options).await?;
    let log = client.existing_color("catchup").await?;
    // What an earlier run wrote is nobody's to copy.
    let last = log.append_record(record.clone()).await?;
    log.trim(last).await?;

    let victim = words(&format!("replica {}", nth % 3 + 1));
    bed.kill(&victim)?;
    log.append_record(record.clone()).await?;
    let begun = Instant::now();
    append_many(&log, &record, row.records).await?;
    row.appended.push(begun.elapsed().as_secs_f64());

    let (over, done) = (Cell::new(false), Cell::new(0_u64));
    let begun = Instant::now();
    let writer = async {
        while !over.get() {
            log.append_record(record.clone()).await?;
            done.set(done.get() + 1);
        }
        Outcome::Ok(())
    };
    let back = async {
        // Until the process is ready this thread waits for it, the writer too.
        bed.restart(victim)?;
        loop {
            let status = client.status().await?;
            if status.tree.shards.iter().all(|shard| shard.view.members.len() == 3) {
                over.set(true);
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                over.set(true);
                return Outcome::Err(
                    format!("the replica was not in the view again in {} s", PATIENCE.as_secs()).into(),
                );
            }
        }
    };
    let (wrote, came) = tokio::join!(writer, back);
    wrote?;
    came?;
    let took = begun.elapsed().as_secs_f64();
    row.back.push(took);
    row.meanwhile.push(done.get() as f64 / took);
    client.close().await;
    Ok(())
}

/// Appends so many records, several batches at once.
async fn append_many(log: &Log, record: &Record, count: usize) -> Outcome<()> {
    let mut pending = std::collections::VecDeque::new();
    let mut left = count;
    while left > 0 {
        let now = left.min(BATCH);
        pending.push_back(log.submit_batch(vec![record.clone(); now]).await?);
        left -= now;
        if pending.len() >= UNDER_WAY
            && let Some(oldest) = pending.pop_front()
        {
            oldest.await?;
        }
    }
    for each in pending {
        each.await?;
    }
    Ok(())
}

fn tell(args: &CatchupArgs, rows: &[Row]) -> Outcome<()> {
    let value = json!({
        "size": args.size,
        "replica_timeout_ms": REPLICA_TIMEOUT_MS,
        "rows": rows.iter().map(|row| json!({
            "records": row.records,
            "appended_s": row.appended,
            "back_s": row.back,
            "appends_meanwhile_per_s": row.meanwhile,
        })).collect::<Vec<_>>(),
    });
    args.output.tell(&value, || {
        let head = [
            "records",
            "runs",
            "appended s",
            "back s: least",
            "p50",
            "most",
            "records/s",
            "MiB/s",
            "appends/s meanwhile",
        ];
        let row = |row: &Row| {
            let back = quantile(&row.back, 0.5);
            let rate = row.records as f64 / back;
            vec![
                row.records.to_string(),
                row.back.len().to_string(),
                format!("{:.2}", quantile(&row.appended, 0.5)),
                format!("{:.2}", quantile(&row.back, 0.0)),
                format!("{back:.2}"),
                format!("{:.2}", quantile(&row.back, 1.0)),
                format!("{rate:.0}"),
                format!("{:.1}", rate * args.size as f64 / f64::from(1 << 20)),
                format!("{:.0}", quantile(&row.meanwhile, 0.5)),
            ]
        };
        measure::table(&head, &rows.iter().map(row).collect::<Vec<_>>());
    })
}
