//! Measures FlexLog beside the limits of the machine it runs on.
//!
//! Every figure stands beside its baseline, measured in the same run, interleaved with it in time: the machines this runs
//! on are shared and noisy, so a ratio says more than a figure. Each subcommand prints a table, or with `--json` one
//! object, which `--out FILE` writes to a file too.

mod append;
mod catchup;
mod cluster;
mod cluster_append;
mod echo;
mod failover;
mod measure;
mod memory;
mod ordering;
mod plot;
mod reads;
mod recovery;
mod replication;
#[cfg(feature = "rocksdb")]
mod rocks;
mod servers;
mod storage;
mod stores;
mod tiers;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A benchmark that could not be run, for people.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
#[command(name = "bench", about = "Measures FlexLog beside the limits of the machine it runs on")]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Durable records per second in one store, beside raw copies of the same bytes.
    Storage(storage::StorageArgs),
    /// Appends over real sockets to an `up` process, beside a TCP echo (and fdatasync) of the same size.
    Append(append::AppendArgs),
    /// Appends and reads in one store, beside the same in RocksDB.
    #[cfg(feature = "rocksdb")]
    Rocksdb(rocks::RocksArgs),
    /// Appends and reads in one store, beside the same in RocksDB: not in this build, see below.
    ///
    /// RocksDB takes many minutes to build and needs libclang, so this is for those who ask for it:
    /// CXXFLAGS=-march=native cargo run --release -p bench --features rocksdb -- rocksdb
    #[cfg(not(feature = "rocksdb"))]
    Rocksdb {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        args: Vec<String>,
    },
    /// How long it takes to read a record, beside a copy with a checksum.
    Reads(reads::ReadsArgs),
    /// How long a store takes to open, beside reading its area once.
    Recovery(recovery::RecoveryArgs),
    /// What records on SSD cost in memory, and how many bytes are written for those that move there.
    Tiers(tiers::TiersArgs),
    /// Numbers without records: the core, one position beside omnipaxos and libpaxos, and trees of positions.
    Ordering(ordering::OrderingArgs),
    /// What more replicas cost, in clusters of processes.
    Replication(replication::ReplicationArgs),
    /// For how long appends wait when a sequencer or a replica is killed, in a cluster of processes.
    Failover(failover::FailoverArgs),
    /// How fast a replica that was away comes back while others write, beside how fast they wrote what it lacks.
    Catchup(catchup::CatchupArgs),
    /// Memory of the server while a gigabyte is written.
    Memory(memory::MemoryArgs),
    /// The flexlog command, for the server processes that are measured.
    #[command(hide = true, disable_help_flag = true)]
    Flexlog {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Opens a store that another process measures.
    #[command(hide = true)]
    Open(tiers::OpenArgs),
    /// What asks for numbers.
    #[command(hide = true)]
    OrderLoad(ordering::load::LoadArgs),
    /// A node of the baseline omnipaxos.
    #[command(hide = true)]
    OmniNode(ordering::omni::OmniArgs),
    /// An echo server, for the baseline.
    #[command(hide = true)]
    Echo(echo::EchoArgs),
}

#[expect(clippy::print_stderr, reason = "this is where the program speaks to people")]
fn main() -> ExitCode {
    let result = match Cli::parse().what {
        What::Storage(args) => storage::run(&args),
        What::Append(args) => append::run(&args),
        #[cfg(feature = "rocksdb")]
        What::Rocksdb(args) => rocks::run(&args),
        #[cfg(not(feature = "rocksdb"))]
        What::Rocksdb { args } => Err(format!(
            "this program was built without RocksDB. Run: CXXFLAGS=-march=native cargo run --release -p bench \
             --features rocksdb -- rocksdb {}",
            args.join(" ")
        )
        .into()),
        What::Reads(args) => reads::run(&args),
        What::Recovery(args) => recovery::run(&args),
        What::Tiers(args) => tiers::run(&args),
        What::Open(args) => tiers::open_and_tell(&args),
        What::Memory(args) => memory::run(&args),
        What::Replication(args) => replication::run(&args),
        What::Failover(args) => failover::run(&args),
        What::Catchup(args) => catchup::run(&args),
        What::Ordering(args) => ordering::run(&args),
        What::OrderLoad(args) => ordering::load::serve(args),
        What::OmniNode(args) => ordering::omni::serve(args),
        What::Flexlog { args } => {
            // A server must not outlive the bench that measures it, however that ends.
            let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
            return flexlog_node::cli::main_with(std::iter::once("flexlog".to_owned()).chain(args));
        }
        What::Echo(args) => echo::serve(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}
