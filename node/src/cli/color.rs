//! `flexlog color`, `flexlog colors` and `flexlog trim`.

use std::num::NonZeroU64;

use clap::{Args, Subcommand};
use flexlog_client::ColorOptions;
use flexlog_protocol::SeqNum;
use flexlog_protocol::api::{BoundChange, ColorInfo, Retention, RetentionChange};
use serde_json::{Map, Value, json};

use super::{Common, Stop, amount, number};

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

/// What `flexlog color` does.
#[derive(Subcommand)]
pub(crate) enum ColorCommand {
    /// Create a color, and say where it goes and how long its records are kept.
    Create(CreateArgs),
    /// Change how long a color's records are kept.
    Set(SetArgs),
    /// List the colors, as `flexlog colors` does.
    List(ColorsArgs),
}

/// How long records are kept.
#[derive(Args)]
struct Bounds {
    /// Forget records that are older: 90s, 15m, 12h, 7d, or none.
    #[arg(long, value_name = "AGE", value_parser = amount::age)]
    max_age: Option<BoundChange>,
    /// Keep the newest records with so many bytes, and forget older ones: 64MiB, 10GiB, or none.
    #[arg(long, value_name = "SIZE", value_parser = amount::size)]
    max_bytes: Option<BoundChange>,
}

impl Bounds {
    fn change(&self) -> RetentionChange {
        RetentionChange {
            max_age_secs: self.max_age.unwrap_or_default(),
            max_bytes: self.max_bytes.unwrap_or_default(),
        }
    }
}

/// Arguments of `flexlog color create`.
#[derive(Args)]
pub(crate) struct CreateArgs {
    /// The color.
    color: String,
    /// The position of the tree that counts for it [default: the cluster chooses].
    #[arg(long, value_name = "POSITION")]
    owner: Option<String>,
    /// How many shards it is on [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    width: Option<u32>,
    #[command(flatten)]
    bounds: Bounds,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `flexlog color set`.
#[derive(Args)]
#[command(group(clap::ArgGroup::new("bounds").args(["max_age", "max_bytes"]).required(true).multiple(true)))]
pub(crate) struct SetArgs {
    /// The color.
    color: String,
    #[command(flatten)]
    bounds: Bounds,
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

pub(crate) async fn run_color(command: ColorCommand) -> Result<(), Stop> {
    match command {
        ColorCommand::Create(args) => create(args).await,
        ColorCommand::Set(args) => set(args).await,
        ColorCommand::List(args) => run_colors(args).await,
    }
}

async fn create(args: CreateArgs) -> Result<(), Stop> {
    let client = args.common.connect().await?;
    let change = args.bounds.change();
    // One that is there already and as asked is fine, so that a script may run twice; records of one that is not are
    // not to be forgotten by mistake.
    match client.color_info(&args.color).await {
        Ok(info) if !is_there(&args, &info) => {
            let (name, place) = (&info.name, place(&info));
            return Err(Stop::Failed(format!(
                "color '{name}' is there already, {place}: that is fixed at its creation, so choose another name"
            )));
        }
        Ok(info) if change.apply(info.retention) == info.retention => return told(&args.common, &info),
        Ok(info) => {
            let name = &info.name;
            let kept = in_words(&info.retention);
            return Err(Stop::Failed(format!(
                "color '{name}' is there already, {kept}: to change that, use `flexlog color set`"
            )));
        }
        Err(error) if error.is_no_such_color() => {}
        Err(error) => return Err(error.into()),
    }
    let width = args.width.unwrap_or_default();
    let options = ColorOptions { owner: args.owner.clone(), width, retention: change };
    told(&args.common, &client.create_color(&args.color, options).await?)
}

/// Whether a color is where it was asked for.
fn is_there(args: &CreateArgs, info: &ColorInfo) -> bool {
    args.owner.as_ref().is_none_or(|owner| *owner == info.owner)
        && args.width.is_none_or(|width| width as usize == info.shards.len())
}

/// Who counts for a color, and where it is, in words.
fn place(info: &ColorInfo) -> String {
    let shards: Vec<_> = info.shards.iter().map(|shard| shard.shard.to_string()).collect();
    let word = if shards.len() == 1 { "shard" } else { "shards" };
    format!("owner {}, {word} {}", info.owner, shards.join(", "))
}

async fn set(args: SetArgs) -> Result<(), Stop> {
    let info = args.common.connect().await?.set_retention(&args.color, args.bounds.change()).await?;
    told(&args.common, &info)
}

/// Says how a color is now.
fn told(common: &Common, info: &ColorInfo) -> Result<(), Stop> {
    let mut output = common.output();
    if output.is_json() {
        output.object(&Value::Object(described(info)))?;
    } else {
        output.line(&format!("{}  ({}, {})", info.name, place(info), in_words(&info.retention)))?;
    }
    output.flush()
}

fn described(info: &ColorInfo) -> Map<String, Value> {
    let bound = |bound: Option<NonZeroU64>| bound.map_or(Value::Null, |bound| bound.get().into());
    let fields = [
        ("name", info.name.clone().into()),
        ("id", info.color.0.into()),
        ("owner", info.owner.clone().into()),
        ("shards", info.shards.iter().map(|shard| shard.shard.0).collect::<Vec<_>>().into()),
        ("max_age_secs", bound(info.retention.max_age_secs)),
        ("max_bytes", bound(info.retention.max_bytes)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn in_words(retention: &Retention) -> String {
    let age = retention.max_age_secs.map(|age| format!("kept {}", amount::of_seconds(age)));
    let bytes = retention.max_bytes.map(|bytes| format!("the newest {} kept", amount::of_bytes(bytes)));
    let words: Vec<String> = age.into_iter().chain(bytes).collect();
    if words.is_empty() { "kept until trimmed".to_owned() } else { words.join(", ") }
}

pub(crate) async fn run_colors(args: ColorsArgs) -> Result<(), Stop> {
    let client = args.common.connect().await?;
    let mut output = args.common.output();
    for info in client.colors().await? {
        let tail = client.existing_color(&info.name).await?.tail().await?;
        if output.is_json() {
            let mut fields = described(&info);
            fields.insert("tail".to_owned(), tail.to_string().into());
            output.object(&Value::Object(fields))?;
        } else if info.retention.is_unlimited() {
            output.line(&format!("{}  (next number {tail}, {})", info.name, place(&info)))?;
        } else {
            let (place, kept) = (place(&info), in_words(&info.retention));
            output.line(&format!("{}  (next number {tail}, {place}, {kept})", info.name))?;
        }
    }
    output.flush()
}
