//! The `flexlog` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    flexlog_node::cli::main()
}
