//! RocksDB as it is measured: one database, its write-ahead log on, 64 MiB of memtable, no compression, all else as it
//! comes. Its block cache is as large as what our store holds, so that neither reads from further away.

use std::hint::black_box;
use std::path::{Path, PathBuf};

use rocksdb::{BlockBasedOptions, Cache, DB, DBCompressionType, Options, ReadOptions, WriteOptions};

use super::cell::{Cell, Client};
use super::ours::HELD_BYTES;
use crate::Outcome;
use crate::stores::{payload, pool};

const MEMTABLE: usize = 64 << 20;

/// See the module.
pub(super) struct Database {
    db: DB,
    path: PathBuf,
}

impl Database {
    pub(super) fn open(path: &Path) -> Outcome<Self> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_write_buffer_size(MEMTABLE);
        options.set_compression_type(DBCompressionType::None);
        let mut tables = BlockBasedOptions::default();
        tables.set_block_cache(&Cache::new_lru_cache(HELD_BYTES as usize));
        options.set_block_based_table_factory(&tables);
        let database = Self { db: DB::open(&options, path)?, path: path.to_owned() };
        if database.said("Fast CRC32 supported:")?.starts_with("Not") {
            let what = "RocksDB was built without the processor's CRC32C, which makes it slower than it is: \
                        remove it from the target folder and build it with CXXFLAGS=-march=native";
            return Err(what.into());
        }
        Ok(database)
    }

    /// Which RocksDB it is.
    pub(super) fn version(&self) -> Outcome<String> {
        self.said("RocksDB version:")
    }

    /// What the database's own log says after these words.
    fn said(&self, words: &str) -> Outcome<String> {
        let log = self.path.join("LOG");
        let text = std::fs::read_to_string(&log)?;
        let said = text.lines().find_map(|line| line.split_once(words)).map(|(_, said)| said.trim().to_owned());
        said.ok_or_else(|| format!("{} does not say '{words}': is this another RocksDB?", log.display()).into())
    }
}

/// One thread's records: keys are its color and their number.
pub(super) struct PeerClient<'a> {
    db: &'a DB,
    pool: &'static [u8],
    color: u64,
    size: usize,
    next: u64,
    write: WriteOptions,
    read: ReadOptions,
}

impl<'a> PeerClient<'a> {
    pub(super) fn new(database: &'a Database, nth: usize, cell: Cell) -> Outcome<Self> {
        let mut client = Self {
            db: &database.db,
            pool: pool(),
            color: nth as u64 + 1,
            size: cell.size,
            next: 0,
            write: WriteOptions::default(),
            read: ReadOptions::default(),
        };
        for _ in 0..cell.before() {
            client.append()?;
        }
        database.db.flush_wal(true)?;
        client.write.set_sync(cell.sync());
        Ok(client)
    }

    fn key(&self, number: u64) -> [u8; 16] {
        (u128::from(self.color) << 64 | u128::from(number)).to_be_bytes()
    }
}

impl Client for PeerClient<'_> {
    #[inline]
    fn append(&mut self) -> Outcome<()> {
        self.db.put_opt(self.key(self.next), payload(self.pool, self.next, self.size), &self.write)?;
        self.next += 1;
        Ok(())
    }

    #[inline]
    fn read(&mut self, drawn: u64, compare: bool) -> Outcome<()> {
        let number = drawn % self.next;
        let value = self.db.get_pinned_opt(self.key(number), &self.read)?;
        let value = value.ok_or_else(|| format!("RocksDB lost the record {}/{number}", self.color))?;
        if value.len() != self.size || compare && *value != *payload(self.pool, number, self.size) {
            return Err(format!("RocksDB changed the record {}/{number}", self.color).into());
        }
        black_box(value);
        Ok(())
    }
}
