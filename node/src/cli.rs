//! The `flexlog` command: what it understands, how it says what went wrong, and how it ends.
//!
//! Exit codes: 0 done, 1 the log said no (the message says what, and what to do), 2 wrong usage; `verify` has its own.

mod amount;
mod append;
#[cfg(feature = "quic")]
mod cert;
mod cluster;
mod color;
mod config;
mod inspect;
mod output;
mod process;
mod read;
mod status;
mod up;
mod verify;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use flexlog_client::{Builder, Client};
#[cfg(feature = "quic")]
use flexlog_client::{Connect, Credentials, Dialer, QuicConnector};
use flexlog_protocol::SeqNum;
use flexlog_protocol::limits::DEFAULT_PORT;

use self::output::Output;

/// Why a command did not do what it was asked, for people.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The message says what is wrong and what to do.
    Failed(String),
    /// It was asked for something that cannot be done: the message says what.
    Usage(String),
    /// What is wrong was said on standard output.
    Told,
    /// Whoever read the output has gone away; there is nobody to tell.
    OutputClosed,
}

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A shared log: every color is a totally ordered, replicated log of its own.
#[derive(Parser)]
#[command(name = "flexlog", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a cluster in this process, or start the one in DIR again.
    Up(up::UpArgs),
    /// Append each line of a file or of standard input to a color, and print the numbers.
    Append(append::AppendArgs),
    /// Print one record, or all from one number on.
    Read(read::ReadArgs),
    /// Print the last records of a color, and with --follow those that come.
    Tail(read::TailArgs),
    /// Forget a color's records up to and including a number.
    Trim(color::TrimArgs),
    /// List the colors.
    Colors(color::ColorsArgs),
    /// Create colors, and say how long their records are kept.
    #[command(subcommand)]
    Color(color::ColorCommand),
    /// Say how the cluster is.
    Status(status::StatusArgs),
    /// Say what is in the folder of a replica or a cluster, running or not. Changes nothing.
    Inspect(inspect::InspectArgs),
    /// Check every byte in the folder of a replica or a cluster that does not run. Changes nothing.
    Verify(verify::VerifyArgs),
    /// Run a position of the tree of a cluster, as its file describes it.
    Sequencer(process::SequencerArgs),
    /// Run a replica of a cluster, as its file describes it.
    Replica(process::ReplicaArgs),
    /// Run a whole cluster as processes on this machine, for trying things.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Look at the file that describes a cluster.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Make and list the certificates by which the machines of a cluster know one another.
    #[cfg(feature = "quic")]
    #[command(subcommand)]
    Cert(cert::CertCommand),
}

/// Where the cluster is, and how to print.
#[derive(Args)]
pub(crate) struct Common {
    /// The cluster's address, host:port; more of its nodes' behind commas, in case one is away.
    #[arg(long, env = "FLEXLOG_CLUSTER", value_name = "ADDR", default_value_t = format!("127.0.0.1:{DEFAULT_PORT}"))]
    cluster: String,
    /// Connect by QUIC, with the certificates in this folder: see `flexlog cert`.
    #[cfg(feature = "quic")]
    #[arg(long, env = "FLEXLOG_CERTS", value_name = "DIR")]
    certs: Option<PathBuf>,
    /// Whose certificate in that folder to show.
    #[cfg(feature = "quic")]
    #[arg(long = "as", env = "FLEXLOG_AS", value_name = "NAME", default_value = "client")]
    name: String,
    /// Print one JSON object a line, payloads in base64.
    #[arg(long)]
    json: bool,
}

/// How long an attempt to connect may take.
const PATIENCE: Duration = Duration::from_secs(5);

impl Common {
    async fn connect(&self) -> Result<Client, Stop> {
        Ok(self.builder(PATIENCE)?.connect(&self.cluster).await?)
    }

    /// A client as the options say; an attempt of it to connect may take `patience`.
    fn builder(&self, patience: Duration) -> Result<Builder, Stop> {
        let builder = Client::builder().connect_deadline(patience);
        #[cfg(feature = "quic")]
        if let Some(directory) = &self.certs {
            let credentials = Credentials::load(&absolute(directory), &self.name)?;
            return Ok(builder.dialer(ByQuic { credentials, patience }));
        }
        Ok(builder)
    }

    fn output(&self) -> Output {
        Output::new(self.json)
    }
}

/// Connects to nodes by QUIC.
#[cfg(feature = "quic")]
#[derive(Debug)]
struct ByQuic {
    credentials: Credentials,
    patience: Duration,
}

#[cfg(feature = "quic")]
impl Dialer for ByQuic {
    fn dial(&self, address: &str) -> Box<dyn Connect> {
        Box::new(QuicConnector::new(address, self.credentials.clone(), self.patience))
    }
}

/// A number on the command line.
fn number(text: &str) -> Result<SeqNum, String> {
    text.parse::<SeqNum>().map_err(|error| error.to_string())
}

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    main_with(std::env::args_os())
}

/// Runs a command given as its words, the program's name first.
#[must_use]
pub fn main_with(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    let cli = Cli::parse_from(words);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("cannot start: {error}")),
    };
    let result = runtime.block_on(async {
        match cli.command {
            Command::Up(args) => up::run(args).await,
            Command::Append(args) => append::run(args).await,
            Command::Read(args) => read::run_read(args).await,
            Command::Tail(args) => read::run_tail(args).await,
            Command::Trim(args) => color::run_trim(args).await,
            Command::Colors(args) => color::run_colors(args).await,
            Command::Color(command) => color::run_color(command).await,
            Command::Status(args) => status::run(args).await,
            Command::Inspect(args) => inspect::run(&args),
            Command::Verify(args) => verify::run(&args),
            Command::Sequencer(args) => process::run_sequencer(args).await,
            Command::Replica(args) => process::run_replica(args).await,
            Command::Cluster(command) => cluster::run(command).await,
            Command::Config(command) => config::run(&command),
            #[cfg(feature = "quic")]
            Command::Cert(command) => cert::run(command),
        }
    });
    // A thread that still reads standard input must not hold the process.
    runtime.shutdown_background();
    match result {
        Ok(()) | Err(Stop::OutputClosed) => ExitCode::SUCCESS,
        Err(Stop::Told) => ExitCode::FAILURE,
        Err(Stop::Failed(message)) => complain(&message),
        Err(Stop::Usage(message)) => {
            complain(&message);
            ExitCode::from(2)
        }
    }
}

#[expect(clippy::print_stderr, reason = "this is where the command speaks to people")]
fn complain(message: &str) -> ExitCode {
    eprintln!("flexlog: {message}");
    ExitCode::FAILURE
}

/// A folder on the command line, made absolute for messages and for the status report.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// What `future` gives without waiting. Whoever waits for it later polls it again.
fn at_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
