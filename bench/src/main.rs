//! Measures FlexLog beside the limits of the machine it runs on.
//!
//! Every figure stands beside its baseline, measured in the same run, interleaved with it in time: the machines this runs
//! on are shared and noisy, so a ratio says more than a figure. Each subcommand prints a table, or with `--json` one
//! object.

mod append;
mod echo;
mod measure;
mod memory;
mod servers;
mod storage;

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
    /// Memory of the server while a gigabyte is written.
    Memory(memory::MemoryArgs),
    /// The flexlog command, for the server processes that are measured.
    #[command(hide = true, disable_help_flag = true)]
    Flexlog {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// An echo server, for the baseline.
    #[command(hide = true)]
    Echo(echo::EchoArgs),
}

#[expect(clippy::print_stderr, reason = "this is where the program speaks to people")]
fn main() -> ExitCode {
    let result = match Cli::parse().what {
        What::Storage(args) => storage::run(&args),
        What::Append(args) => append::run(&args),
        What::Memory(args) => memory::run(&args),
        What::Flexlog { args } => {
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
