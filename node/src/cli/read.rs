//! `flexlog read` and `flexlog tail`.

use std::pin::pin;

use clap::Args;
use flexlog_client::{Event, Log, PrevOutcome, ReadOutcome};
use flexlog_protocol::SeqNum;
use serde_json::json;

use super::output::Output;
use super::{Common, Stop, at_once, number};

/// Arguments of `flexlog read`.
#[derive(Args)]
pub(crate) struct ReadArgs {
    /// The color.
    color: String,
    /// The number of one record, epoch.counter.
    #[arg(value_parser = number, allow_negative_numbers = true, required_unless_present = "from", conflicts_with_all = ["from", "to", "limit"])]
    number: Option<SeqNum>,
    /// Print every record from this number on.
    #[arg(long, value_name = "N", value_parser = number)]
    from: Option<SeqNum>,
    /// Stop behind this number.
    #[arg(long, value_name = "N", value_parser = number, requires = "from")]
    to: Option<SeqNum>,
    /// Stop after this many records.
    #[arg(long, value_name = "K", requires = "from")]
    limit: Option<u64>,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `flexlog tail`.
#[derive(Args)]
pub(crate) struct TailArgs {
    /// The color.
    color: String,
    /// Start at this number instead of near the end.
    #[arg(long, value_name = "N", value_parser = number, conflicts_with = "last")]
    from: Option<SeqNum>,
    /// How many of the last records to print.
    #[arg(long, value_name = "K", default_value_t = 10)]
    last: u64,
    /// Go on with the records that come, until interrupted.
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) async fn run_read(args: ReadArgs) -> Result<(), Stop> {
    let log = args.common.connect().await?.existing_color(&args.color).await?;
    let mut output = args.common.output();
    match (args.number, args.from) {
        (Some(number), _) => read_one(&log, &args.color, number, &mut output).await?,
        (None, from) => {
            let end = match args.to {
                // What is asked for by number may be about to come; everything else ends where the color ends now.
                Some(to) => log.tail().await?.min(to.plus(1).unwrap_or(SeqNum::MAX)),
                None => log.tail().await?,
            };
            let span = Span { from: from.unwrap_or(SeqNum::MIN), end: Some(end), limit: args.limit };
            span.print(&log, &args.color, &mut output).await?;
        }
    }
    output.flush()
}

async fn read_one(log: &Log, color: &str, number: SeqNum, output: &mut Output) -> Result<(), Stop> {
    match log.read(number).await? {
        ReadOutcome::Record(record) => output.record(number, &record),
        ReadOutcome::Hole => Err(Stop::Failed(format!(
            "{color} has no record at {number}: the number was given up, or is behind the end of its epoch"
        ))),
        ReadOutcome::Trimmed { point } => Err(Stop::Failed(format!(
            "{number} of {color} is Trimmed: everything up to and including {point} is gone; read from behind that"
        ))),
        ReadOutcome::NotYet { tail } => {
            Err(Stop::Failed(format!("{color} has no record at {number} yet: its next number is {tail}")))
        }
    }
}

pub(crate) async fn run_tail(args: TailArgs) -> Result<(), Stop> {
    let log = args.common.connect().await?.existing_color(&args.color).await?;
    let mut output = args.common.output();
    let tail = log.tail().await?;
    let from = match args.from {
        Some(from) => from,
        None => start_of_last(&log, args.last, tail).await?,
    };
    let span = Span { from, end: (!args.follow).then_some(tail), limit: None };
    span.print(&log, &args.color, &mut output).await?;
    output.flush()
}

/// Where the last `count` records below `tail` begin.
async fn start_of_last(log: &Log, count: u64, tail: SeqNum) -> Result<SeqNum, Stop> {
    let mut from = tail;
    for _ in 0..count {
        let Some(before) = below(from) else { break };
        match log.read_prev(before).await? {
            PrevOutcome::Record { number, .. } => from = number,
            PrevOutcome::Trimmed { .. } | PrevOutcome::Nothing => break,
        }
    }
    Ok(from)
}

/// The highest number that can be below `n`; as a bound, it need not be one that was given.
fn below(n: SeqNum) -> Option<SeqNum> {
    n.to_raw().checked_sub(1).map(SeqNum::from_raw)
}

/// Records to print.
struct Span {
    from: SeqNum,
    /// Exclusive; without it, never.
    end: Option<SeqNum>,
    limit: Option<u64>,
}

impl Span {
    async fn print(self, log: &Log, color: &str, output: &mut Output) -> Result<(), Stop> {
        let over = |next: SeqNum| self.end.is_some_and(|end| next >= end);
        let mut left = self.limit.unwrap_or(u64::MAX);
        if left == 0 || over(self.from) {
            return Ok(());
        }
        let mut subscription = log.subscribe(self.from);
        // What is printed is seen when nothing more is at hand.
        loop {
            let at_hand = at_once(&mut pin!(subscription.next()));
            let event = match at_hand {
                Some(event) => event,
                None => {
                    output.flush()?;
                    subscription.next().await
                }
            };
            let Some(event) = event else { return Ok(()) };
            match event? {
                Event::Record { number, .. } if over(number) => return Ok(()),
                Event::Record { number, record } => {
                    output.record(number, &record)?;
                    left -= 1;
                    if left == 0 || number.plus(1).is_some_and(over) {
                        return Ok(());
                    }
                }
                Event::Trimmed { point } => {
                    if output.is_json() {
                        output.object(&json!({ "trimmed": point.to_string() }))?;
                    } else {
                        note(&format!(
                            "{color}: everything up to and including {point} is Trimmed; going on behind it"
                        ));
                    }
                    if point.plus(1).is_some_and(over) {
                        return Ok(());
                    }
                }
                Event::Progress { upto } if over(upto) => return Ok(()),
                Event::Progress { .. } => {}
            }
        }
    }
}

#[expect(clippy::print_stderr, reason = "a remark for people, beside the records on standard output")]
fn note(message: &str) {
    eprintln!("flexlog: {message}");
}
