//! One row: our store and RocksDB take turns at the same mix of appends and reads.

use std::path::Path;
use std::time::{Duration, Instant};

use flexlog_storage_pm::device::SplitMix;

use super::ours::{OwnStore, SharedClient, SharedStore};
use super::peer::{Database, PeerClient};
use crate::Outcome;
use crate::measure::Spread;
use crate::stores::together;

/// Records that are there before the first slice, of all threads together: so many, but no more than these bytes.
const BEFORE: u64 = 100_000;
const BEFORE_BYTES: u64 = 256 << 20;
/// Operations between two looks at the clock, where one takes less than a microsecond.
const SHORT: u64 = 32;
/// Records that are compared afterwards.
const COMPARED: u64 = 1000;

/// What the records are on, and whether RocksDB syncs its log for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Medium {
    /// Memory, RocksDB's log not synced.
    Tmpfs,
    /// Memory, RocksDB's log synced.
    TmpfsSync,
    /// A disk, synced.
    Disk,
}

/// One row's conditions.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(super) struct Cell {
    pub(super) medium: Medium,
    pub(super) size: usize,
    pub(super) threads: usize,
    /// Percent of the operations.
    pub(super) reads: u64,
}

impl Cell {
    pub(super) fn sync(&self) -> bool {
        self.medium != Medium::Tmpfs
    }

    fn medium(&self) -> &'static str {
        match self.medium {
            Medium::Tmpfs => "tmpfs",
            Medium::TmpfsSync => "tmpfs, sync",
            Medium::Disk => "disk, sync",
        }
    }

    pub(super) fn name(&self) -> String {
        format!("{}, {} B, {} threads, {} % reads", self.medium(), self.size, self.threads, self.reads)
    }

    /// Records of each thread that are there before the first slice.
    pub(super) fn before(&self) -> u64 {
        BEFORE.min(BEFORE_BYTES / self.size as u64) / self.threads as u64
    }
}

/// What was measured, in operations per second.
#[derive(serde::Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) cell: Cell,
    pub(super) ours: Spread,
    pub(super) peer: Spread,
    pub(super) ratio: Spread,
    /// With a store for each thread, where `ours` is one that they share, and that against RocksDB.
    pub(super) stores: Option<(Spread, Spread)>,
}

impl Row {
    pub(super) const HEAD: [&str; 9] =
        ["medium", "bytes", "threads", "reads", "ours, k/s", "RocksDB, k/s", "times", "from, to", "a store a thread"];

    pub(super) fn cells(&self) -> Vec<String> {
        let stores = |(rate, ratio): &(Spread, Spread)| format!("{:.1} k/s, {:.2}", rate.median / 1e3, ratio.median);
        vec![
            self.cell.medium().to_owned(),
            self.cell.size.to_string(),
            self.cell.threads.to_string(),
            format!("{} %", self.cell.reads),
            format!("{:.1}", self.ours.median / 1e3),
            format!("{:.1}", self.peer.median / 1e3),
            format!("{:.2}", self.ratio.median),
            format!("{:.2} to {:.2}", self.ratio.min, self.ratio.max),
            self.stores.as_ref().map_or_else(String::new, stores),
        ]
    }
}

/// What one thread does in a store or database.
pub(super) trait Client: Send {
    /// Appends this thread's next record; it is durable, where the medium asks for that, and can be read afterwards.
    fn append(&mut self) -> Outcome<()>;

    /// Reads one of this thread's records, which `drawn` says; it is an error if it is not there. Where `compare` is set,
    /// it is an error too if it is not as it was written.
    fn read(&mut self, drawn: u64, compare: bool) -> Outcome<()>;
}

/// Works for this long, and returns operations per second.
fn drive<C: Client>((client, draw): &mut (C, SplitMix), cell: Cell, time: Duration) -> Outcome<f64> {
    let look = if cell.medium == Medium::Disk { 1 } else { SHORT };
    let mut done = 0;
    let began = Instant::now();
    loop {
        for _ in 0..look {
            let drawn = draw.draw();
            if drawn % 100 < cell.reads {
                client.read(drawn >> 16, false)?;
            } else {
                client.append()?;
            }
        }
        done += look;
        let taken = began.elapsed();
        if taken >= time {
            return Ok(done as f64 / taken.as_secs_f64());
        }
    }
}

/// Operations per second of all threads, in one slice.
fn slice<C: Client>(clients: &mut [(C, SplitMix)], cell: Cell, time: Duration) -> Outcome<f64> {
    Ok(together(clients, |client| drive(client, cell, time))?.into_iter().sum())
}

fn compare<C: Client>(clients: &mut [(C, SplitMix)]) -> Outcome<()> {
    for (client, draw) in clients {
        for _ in 0..COMPARED {
            client.read(draw.draw() >> 16, true)?;
        }
    }
    Ok(())
}

/// Each with numbers to draw of its own.
fn drawing<C>(clients: impl IntoIterator<Item = Outcome<C>>) -> Outcome<Vec<(C, SplitMix)>> {
    clients.into_iter().enumerate().map(|(nth, client)| Ok((client?, SplitMix(nth as u64)))).collect()
}

/// Measures one row in `folder`, which is empty. Returns also which RocksDB it was.
pub(super) fn measure(
    folder: &Path,
    cell: Cell,
    slices: usize,
    time: Duration,
    gather: Duration,
) -> Outcome<(Row, String)> {
    let database = Database::open(&folder.join("rocksdb"))?;
    let mut peers = drawing((0..cell.threads).map(|nth| PeerClient::new(&database, nth, cell)))?;
    let shares = cell.medium == Medium::Disk && cell.threads > 1;
    let own = |nth: usize| OwnStore::new(&folder.join(format!("store-{nth}")), nth, cell);
    let mut owners = drawing((0..cell.threads).map(own))?;
    let shared = shares.then(|| SharedStore::new(&folder.join("store"), cell, gather)).transpose()?;
    let mut sharers = match &shared {
        Some(shared) => drawing((0..cell.threads).map(|nth| SharedClient::new(shared, nth, cell)))?,
        None => Vec::new(),
    };
    let (mut peer, mut ours, mut stores) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..=slices {
        let with_own = slice(&mut owners, cell, time)?;
        let with_peer = slice(&mut peers, cell, time)?;
        let with_shared = if shares { slice(&mut sharers, cell, time)? } else { with_own };
        // The first run warms everything up.
        if run > 0 {
            stores.push(with_own);
            peer.push(with_peer);
            ours.push(with_shared);
        }
    }
    compare(&mut owners)?;
    compare(&mut sharers)?;
    compare(&mut peers)?;
    let against = |ours: &[f64]| Spread::of(ours.iter().zip(&peer).map(|(ours, peer)| ours / peer));
    let ratio = against(&ours);
    let stores = shares.then(|| (Spread::of(stores.iter().copied()), against(&stores)));
    let row =
        Row { cell, ours: Spread::of(ours.iter().copied()), peer: Spread::of(peer.iter().copied()), ratio, stores };
    Ok((row, database.version()?))
}
