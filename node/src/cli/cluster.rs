//! `flexlog cluster up`: every process of a cluster on this machine, started, watched, and stopped together.
//!
//! It is for trying things: a process that ends is not started again, so that whoever kills one sees what the others do.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use clap::{Args, Subcommand};
use flexlog_tree_config::topology::{Topology, Transport};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Stop;
use super::process::stopped;

/// How long processes may take to stop before they are killed.
const STOPPING: Duration = Duration::from_secs(15);

/// What is done with a whole cluster.
#[derive(Subcommand)]
pub(crate) enum ClusterCommand {
    /// Run every process of the cluster on this machine until this command is stopped.
    Up(UpArgs),
}

/// Arguments of `flexlog cluster up`.
#[derive(Args)]
pub(crate) struct UpArgs {
    /// The file that describes the cluster.
    file: PathBuf,
    /// As the option of `flexlog sequencer`.
    #[arg(long, value_name = "N", hide = true)]
    numbers_per_epoch: Option<u32>,
}

pub(crate) async fn run(command: ClusterCommand) -> Result<(), Stop> {
    match command {
        ClusterCommand::Up(args) => up(args).await,
    }
}

/// Finds out before anything is started which certificates there are not, all of them at once.
#[cfg(feature = "quic")]
fn check_certificates(topology: &Topology) -> Result<(), Stop> {
    use flexlog_protocol::net::quic::{Credentials, CredentialsError};

    let Transport::Quic { certificates } = &topology.transport else { return Ok(()) };
    let sequencers = topology.sequencers().iter().map(|sequencer| sequencer.name.clone());
    let replicas = topology.shards().iter().flat_map(|shard| &shard.replicas);
    let replicas = replicas.map(|replica| Topology::replica_name(replica.id));
    let mut missing = Vec::new();
    let standbys = topology.standbys().map(|(name, _)| name);
    for name in sequencers.chain(standbys).chain(replicas) {
        match Credentials::load(certificates, &name) {
            Ok(_) => {}
            Err(CredentialsError::Unreadable { path, .. }) if path == certificates.join(format!("{name}.pem")) => {
                missing.push(name);
            }
            Err(error) => return Err(error.into()),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let dir = certificates.display();
    let files: Vec<String> = missing.iter().map(|name| format!("{name}.pem")).collect();
    Err(Stop::Failed(format!(
        "processes of {} have no certificate in {dir}: {} cannot be read. `flexlog cert issue {} --dir {dir}` makes them; \
         --host is needed for one that is reached at another address than this machine's own",
        topology.file.display(),
        files.join(", "),
        missing.join(" "),
    )))
}

/// What a process says.
enum Said {
    Ready(String),
    Line(String, String),
    Ended(String),
}

async fn up(args: UpArgs) -> Result<(), Stop> {
    let topology = Topology::load(&args.file)?;
    #[cfg(feature = "quic")]
    check_certificates(&topology)?;
    let stopped = stopped()?;
    let (say, mut heard) = mpsc::channel(256);
    let mut processes = Vec::new();
    let replicas = topology.shards().iter().flat_map(|shard| &shard.replicas);
    let replicas = replicas
        .map(|replica| (Topology::replica_name(replica.id), vec!["replica".to_owned(), replica.id.to_string()]));
    let words = |name: &str| vec!["sequencer".to_owned(), name.to_owned()];
    let sequencers = topology.sequencers().iter().map(|s| (s.name.clone(), words(&s.name)));
    let standbys = topology.sequencers().iter().flat_map(|s| {
        let with_number =
            move |number: usize| [words(&s.name), vec!["--standby".to_owned(), number.to_string()]].concat();
        (1..=s.standbys.len()).map(move |number| (Topology::standby_name(&s.name, number), with_number(number)))
    });
    for (name, words) in sequencers.chain(standbys).chain(replicas) {
        match start(&args, &name, &words, &say) {
            Ok(child) => processes.push((name, child)),
            Err(error) => {
                stop(processes).await;
                return Err(error.into());
            }
        }
    }
    let mut awaited: Vec<String> = processes.iter().map(|(name, _)| name.clone()).collect();
    let mut stopped = std::pin::pin!(stopped);
    let outcome = loop {
        let said = tokio::select! {
            said = heard.recv() => said,
            () = &mut stopped => break Ok(()),
        };
        match said {
            Some(Said::Ready(name)) => {
                let before = awaited.len();
                awaited.retain(|other| *other != name);
                if awaited.is_empty() && before > 0 {
                    announce(&topology, &args.file);
                }
            }
            Some(Said::Line(name, line)) => tell(&format!("{name}: {line}")),
            Some(Said::Ended(name)) => {
                tell(&format!("{name}: ended"));
                if awaited.contains(&name) {
                    break Err(Stop::Failed(format!("{name} ended before it served: its words are above")));
                }
                // One more would be the last to be told of.
                if processes.iter_mut().all(|(_, child)| !matches!(child.try_wait(), Ok(None))) {
                    break Err(Stop::Failed("every process has ended".to_owned()));
                }
            }
            None => break Ok(()),
        }
    };
    stop(processes).await;
    // What they said while they stopped; all of them have, so this ends.
    drop(say);
    while let Some(said) = heard.recv().await {
        if let Said::Line(name, line) = said {
            tell(&format!("{name}: {line}"));
        }
    }
    outcome
}

fn start(args: &UpArgs, name: &str, words: &[String], say: &mpsc::Sender<Said>) -> std::io::Result<Child> {
    let mut line = Command::new(std::env::current_exe()?);
    line.args(words).arg("--config").arg(&args.file);
    if let Some(numbers) = args.numbers_per_epoch {
        line.arg("--numbers-per-epoch").arg(numbers.to_string());
    }
    line.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    // What a terminal sends to all of its programs is for this one, which stops the others in order.
    line.process_group(0);
    let mut child = line.spawn()?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let complains = err.map(|err| {
        let (name, say) = (name.to_owned(), say.clone());
        tokio::spawn(async move {
            let mut lines = BufReader::new(err).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let _ = say.send(Said::Line(name.clone(), line)).await;
            }
        })
    });
    if let Some(out) = out {
        let (name, say) = (name.to_owned(), say.clone());
        tokio::spawn(async move {
            let mut lines = BufReader::new(out).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let said =
                    if line.starts_with("ready ") { Said::Ready(name.clone()) } else { Said::Line(name.clone(), line) };
                // Whoever hears it may have stopped.
                let _ = say.send(said).await;
            }
            // Its last words come before its end.
            if let Some(complains) = complains {
                let _ = complains.await;
            }
            let _ = say.send(Said::Ended(name)).await;
        });
    }
    Ok(child)
}

/// Asks all processes to end, replicas and sequencers at once, and kills those that do not.
async fn stop(processes: Vec<(String, Child)>) {
    let mut waiting = Vec::new();
    for (name, child) in processes {
        if let Some(id) = child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
            // It may have ended by itself.
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        }
        waiting.push((name, child));
    }
    for (name, mut child) in waiting {
        if timeout(STOPPING, child.wait()).await.is_err() {
            tell(&format!("{name} did not stop in {} s and is killed", STOPPING.as_secs()));
            let _ = child.kill().await;
        }
    }
}

fn tell(line: &str) {
    let mut err = std::io::stderr().lock();
    // Whether anybody reads it does not matter to the cluster.
    let _ = writeln!(err, "{line}");
}

fn announce(topology: &Topology, file: &Path) {
    let Some(replica) = topology.shards().iter().flat_map(|shard| &shard.replicas).next() else { return };
    let address = &replica.address;
    let certificates = match &topology.transport {
        Transport::Tcp => String::new(),
        Transport::Quic { certificates } => format!(" --certs {}", certificates.display()),
    };
    let standbys = match topology.standbys().count() {
        0 => String::new(),
        1 => "1 standby, ".to_owned(),
        count => format!("{count} standbys, "),
    };
    let text = format!(
        "ready: {} sequencers, {standbys}{} shards, {} replicas of {}\n\
         try:\n  \
         echo hello | flexlog append orders --cluster {address}{certificates}\n  \
         flexlog tail orders --follow --cluster {address}{certificates}\n  \
         flexlog status --cluster {address}{certificates}\n",
        topology.sequencers().len(),
        topology.shards().len(),
        topology.shards().iter().map(|shard| shard.replicas.len()).sum::<usize>(),
        file.display(),
    );
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
