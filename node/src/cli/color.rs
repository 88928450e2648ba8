//! `flexlog colors` and `flexlog trim`.

use clap::Args;
use flexlog_protocol::SeqNum;
use serde_json::json;

use super::{Common, Stop, number};

/// Arguments of `flexlog trim`.
#[derive(Args)]
pub(crate) struct TrimArgs {
    /// The color.
    color: String,
    /// The last number to forget, epoch.counter.
    #[arg(value_parser = number)]
    number: SeqNum,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `flexlog colors`.
#[derive(Args)]
pub(crate) struct ColorsArgs {
    #[command(flatten)]
    common: Common,
}

pub(crate) async fn run_trim(args: TrimArgs) -> Result<(), Stop> {
    let log = args.common.connect().await?.existing_color(&args.color).await?;
    let point = log.trim(args.number).await?;
    let mut output = args.common.output();
    if output.is_json() {
        output.object(&json!({ "color": args.color, "trimmed": point.to_string() }))?;
    } else {
        output.line(&format!("trimmed {} up to and including {point}", args.color))?;
    }
    output.flush()
}

pub(crate) async fn run_colors(args: ColorsArgs) -> Result<(), Stop> {
    let client = args.common.connect().await?;
    let mut output = args.common.output();
    for info in client.colors().await? {
        let tail = client.existing_color(&info.name).await?.tail().await?;
        if output.is_json() {
            output.object(&json!({ "name": info.name, "id": info.color.0, "tail": tail.to_string() }))?;
        } else {
            output.line(&format!("{}  (next number {tail})", info.name))?;
        }
    }
    output.flush()
}
