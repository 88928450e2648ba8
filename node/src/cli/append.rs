//! `flexlog append`: records in, numbers out, in the order of the input.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::PathBuf;

use clap::Args;
use flexlog_client::{AppendError, Client, Log, Pending};
use flexlog_protocol::{Record, SeqNum, limits};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokio::sync::mpsc;

use super::output::Output;
use super::{Common, Stop, at_once};

/// Arguments of `flexlog append`.
#[derive(Args)]
pub(crate) struct AppendArgs {
    /// The color; it is created if there is none of this name.
    color: String,
    /// Read from this file instead of standard input.
    #[arg(long, value_name = "F")]
    file: Option<PathBuf>,
    /// Append the whole input as one record instead of one for each line.
    #[arg(long)]
    raw: bool,
    /// Fail if the color does not exist.
    #[arg(long)]
    no_create: bool,
    #[command(flatten)]
    common: Common,
}

/// Records that the reader may be ahead of the log, in batches of [`BATCH`].
const BATCHES_AHEAD: usize = 16;
/// Records in a batch.
const BATCH: usize = 256;

pub(crate) async fn run(args: AppendArgs) -> Result<(), Stop> {
    let source = Source::open(&args)?;
    let client = args.common.connect().await?;
    let result = append(&client, source, &args).await;
    // Also after an error: a session that nobody closes takes up a place at its shard.
    client.close().await;
    result
}

async fn append(client: &Client, source: Source, args: &AppendArgs) -> Result<(), Stop> {
    let log = match args.no_create {
        true => client.existing_color(&args.color).await?,
        false => client.color(&args.color).await?,
    };
    let mut batches = source.read(args.raw);
    let mut numbers = Numbers::new(args.common.output());
    let result = append_all(&log, &mut batches, &mut numbers).await;
    // What was appended before something went wrong is in the log, so its numbers are told.
    let drained = numbers.drain().await;
    numbers.bar.finish_and_clear();
    result.and(drained)
}

async fn append_all(
    log: &Log,
    batches: &mut mpsc::Receiver<Result<Vec<Record>, String>>,
    numbers: &mut Numbers,
) -> Result<(), Stop> {
    loop {
        let batch = tokio::select! {
            biased;
            batch = batches.recv() => batch,
            // A slow input must not keep back numbers that are known.
            result = numbers.next(), if !numbers.pending.is_empty() => {
                result?;
                numbers.ready()?;
                continue;
            }
        };
        let Some(batch) = batch else { return Ok(()) };
        for record in batch.map_err(Stop::Failed)? {
            numbers.pending.push_back(log.submit(record).await?);
        }
        numbers.ready()?;
    }
}

/// Appends under way, and where their numbers go.
struct Numbers {
    pending: VecDeque<Pending>,
    output: Output,
    bar: ProgressBar,
}

impl Numbers {
    fn new(output: Output) -> Self {
        // A bar beside numbers on the same terminal would only be in their way.
        let bar = match io::stderr().is_terminal() && !io::stdout().is_terminal() {
            true => ProgressBar::new_spinner(),
            false => ProgressBar::hidden(),
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} records, {per_sec}, {elapsed}") {
            bar.set_style(style);
        }
        Self { pending: VecDeque::new(), output, bar }
    }

    /// Waits for the oldest append, and prints its number.
    async fn next(&mut self) -> Result<(), Stop> {
        let Some(pending) = self.pending.front_mut() else { return Ok(()) };
        let number = pending.await;
        self.print(number)
    }

    /// Prints the number of the oldest append, which is done.
    fn print(&mut self, number: Result<SeqNum, AppendError>) -> Result<(), Stop> {
        self.pending.pop_front();
        let number = number?;
        self.bar.inc(1);
        match self.output.is_json() {
            true => self.output.object(&json!({ "number": number.to_string() })),
            false => self.output.line(&number.to_string()),
        }
    }

    /// Prints the numbers that are known, without waiting for more.
    fn ready(&mut self) -> Result<(), Stop> {
        while let Some(number) = self.pending.front_mut().and_then(at_once) {
            self.print(number)?;
        }
        self.output.flush()
    }

    /// Waits for all, and prints their numbers up to the first that failed.
    async fn drain(&mut self) -> Result<(), Stop> {
        let mut result = Ok(());
        while result.is_ok() && !self.pending.is_empty() {
            result = self.next().await;
        }
        result.and(self.output.flush())
    }
}

/// Where the records come from.
struct Source {
    name: String,
    input: Box<dyn Read + Send>,
}

impl Source {
    fn open(args: &AppendArgs) -> Result<Self, Stop> {
        Ok(match &args.file {
            None => Self { name: "standard input".into(), input: Box::new(io::stdin()) },
            Some(path) => {
                let name = path.display().to_string();
                match File::open(path) {
                    Ok(file) => Self { name, input: Box::new(file) },
                    Err(error) => return Err(Stop::Failed(format!("cannot read {name}: {error}"))),
                }
            }
        })
    }

    /// Reads on a thread of its own, since files and terminals block.
    fn read(self, raw: bool) -> mpsc::Receiver<Result<Vec<Record>, String>> {
        let (to, from) = mpsc::channel(BATCHES_AHEAD);
        std::thread::spawn(move || {
            let result = if raw { self.read_raw(&to) } else { self.read_lines(&to) };
            if let Err(message) = result {
                // Nobody listens any more: then nobody needs the message.
                let _ = to.blocking_send(Err(message));
            }
        });
        from
    }

    fn read_raw(self, to: &mpsc::Sender<Result<Vec<Record>, String>>) -> Result<(), String> {
        let mut bytes = Vec::new();
        let limit = limits::MAX_RECORD_BYTES as u64 + 1;
        self.input
            .take(limit)
            .read_to_end(&mut bytes)
            .map_err(|error| format!("cannot read {}: {error}", self.name))?;
        if bytes.len() > limits::MAX_RECORD_BYTES {
            return Err(format!(
                "{} is larger than a record may be, {} bytes: split it, or append it line by line without --raw",
                self.name,
                limits::MAX_RECORD_BYTES
            ));
        }
        let record = Record::new(bytes).map_err(|error| format!("{}: {error}", self.name))?;
        let _ = to.blocking_send(Ok(vec![record]));
        Ok(())
    }

    fn read_lines(self, to: &mpsc::Sender<Result<Vec<Record>, String>>) -> Result<(), String> {
        let mut input = BufReader::with_capacity(256 << 10, self.input);
        let mut batch = Vec::with_capacity(BATCH);
        let mut line = 0u64;
        loop {
            line += 1;
            let mut bytes = Vec::new();
            // One byte more than a line of exactly the limit with its newline, so that a longer one shows.
            let mut limited = (&mut input).take(limits::MAX_RECORD_BYTES as u64 + 1);
            let read = limited.read_until(b'\n', &mut bytes);
            let read = read.map_err(|error| format!("cannot read {}: {error}", self.name));
            let result = read.and_then(|read| match read {
                0 => Ok(None),
                _ => {
                    let ended = bytes.last() == Some(&b'\n');
                    bytes.truncate(bytes.len() - usize::from(ended));
                    Record::new(bytes).map(Some).map_err(|error| format!("{}, line {line}: {error}", self.name))
                }
            });
            let (done, error) = match result {
                Ok(Some(record)) => {
                    batch.push(record);
                    (false, None)
                }
                Ok(None) => (true, None),
                Err(error) => (true, Some(error)),
            };
            // Lines from a terminal or a pipe go on their way when no more are at hand.
            if done || batch.len() == BATCH || !input.buffer().contains(&b'\n') {
                let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
                if !full.is_empty() && to.blocking_send(Ok(full)).is_err() {
                    return Ok(());
                }
            }
            match (done, error) {
                (_, Some(error)) => return Err(error),
                (true, None) => return Ok(()),
                (false, None) => {}
            }
        }
    }
}
