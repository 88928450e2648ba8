//! Clusters of processes: a topology in a temporary folder, and its sequencers and replicas, each this program again as
//! the `flexlog` command.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;

use clap::ValueEnum;
use tempfile::TempDir;

use crate::Outcome;
use crate::servers::{Process, Starting};

/// How processes and clients are connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Transport {
    Tcp,
    Quic,
}

impl Transport {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Quic => "quic",
        }
    }
}

/// A position, and how many replicas its shard has; those without have no shard.
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) parent: Option<String>,
    pub(crate) replicas: usize,
    /// Somebody else stands in for it: its process and its replicas are not started.
    pub(crate) stand_in: bool,
}

impl Place {
    /// A position without a shard.
    pub(crate) fn position(name: &str, parent: Option<&str>) -> Self {
        Self { name: name.to_owned(), parent: parent.map(str::to_owned), replicas: 0, stand_in: false }
    }

    /// A place below a position that the bench takes itself.
    pub(crate) fn stand_in(name: &str, parent: &str) -> Self {
        Self { replicas: 1, stand_in: true, ..Self::position(name, Some(parent)) }
    }

    /// A root that leads a shard.
    pub(crate) fn shard(replicas: usize) -> Self {
        Self { replicas, ..Self::position("root", None) }
    }
}

/// Processes that are starting.
pub(crate) struct Launch {
    starting: Vec<(String, Starting)>,
    cluster: Cluster,
}

/// A cluster. Its processes end, and its folder goes, with it.
pub(crate) struct Cluster {
    /// By name; replicas are `replica-ID`.
    pub(crate) processes: Vec<(String, Process)>,
    /// Of all positions, in the order of the places.
    pub(crate) addresses: Vec<String>,
    /// Of all replicas.
    pub(crate) replicas: Vec<String>,
    /// The certificates, with QUIC.
    pub(crate) certificates: Option<PathBuf>,
    /// Where the processes leave the times of appends.
    pub(crate) traces: PathBuf,
    _folder: TempDir,
}

/// Addresses on this machine that nobody uses now.
pub(crate) fn free_addresses(count: usize) -> Outcome<Vec<String>> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<std::io::Result<_>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string())).collect()
}

impl Launch {
    /// Starts the processes of `places` in a folder in `parent`; the root is the first. `traced`: they note when appends
    /// pass.
    pub(crate) fn start(parent: &str, places: &[Place], transport: Transport, traced: bool) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("flexlog-bench-").tempdir_in(parent)?;
        let count: usize = places.iter().map(|place| place.replicas).sum();
        let mut addresses = free_addresses(places.len() + count)?;
        let replicas = addresses.split_off(places.len());
        let traces = folder.path().join("traces");
        std::fs::create_dir(&traces)?;
        let certificates = (transport == Transport::Quic).then(|| folder.path().join("certs"));
        let mut text = format!("cluster = \"bench\"\ntransport = \"{}\"\ndata = \"data\"\n", transport.name());
        if certificates.is_some() {
            text.push_str("[certificates]\ndirectory = \"certs\"\n");
        }
        text.push_str("[metadata]\nbackend = \"embedded\"\n[storage]\nssd = false\n");
        // Writing to a String does not fail.
        for (place, address) in places.iter().zip(&addresses) {
            let _ = writeln!(text, "[[sequencer]]\nname = \"{}\"\naddress = \"{address}\"", place.name);
            if let Some(parent) = &place.parent {
                let _ = writeln!(text, "parent = \"{parent}\"");
            }
        }
        let mut names: Vec<(String, [String; 2])> = places
            .iter()
            .filter(|place| !place.stand_in)
            .map(|place| (place.name.clone(), ["sequencer".to_owned(), place.name.clone()]))
            .collect();
        let mut id = 0;
        for (place, shard) in places.iter().filter(|place| place.replicas > 0).zip(1..) {
            let _ = writeln!(text, "[[shard]]\nid = {shard}\nleaf = \"{}\"\nmin_view = 1", place.name);
            for _ in 0..place.replicas {
                let _ = writeln!(text, "[[shard.replica]]\nid = {}\naddress = \"{}\"", id + 1, replicas[id]);
                id += 1;
                if !place.stand_in {
                    names.push((format!("replica-{id}"), ["replica".to_owned(), id.to_string()]));
                }
            }
        }
        let file = folder.path().join("cluster.toml");
        std::fs::write(&file, text)?;
        if let Some(dir) = &certificates {
            let dir = dir.to_str().ok_or("the folder's name is not UTF-8")?;
            run(&["cert", "init", "--dir", dir])?;
            let mut issue = vec!["cert", "issue", "client", "--dir", dir];
            issue.extend(names.iter().map(|(name, _)| name.as_str()));
            run(&issue)?;
        }
        let file = file.to_str().ok_or("the folder's name is not UTF-8")?;
        let variables = if traced { vec![("FLEXLOG_TRACE_APPENDS", traces.as_os_str())] } else { Vec::new() };
        let mut starting = Vec::new();
        for (name, [command, which]) in names {
            let args = ["flexlog", &command, &which, "--config", file];
            starting.push((name, Starting::with_env(&args, &variables)?));
        }
        let cluster = Cluster { processes: Vec::new(), addresses, replicas, certificates, traces, _folder: folder };
        Ok(Self { starting, cluster })
    }

    /// Where the positions are.
    pub(crate) fn addresses(&self) -> &[String] {
        &self.cluster.addresses
    }

    /// Waits until all of them serve.
    pub(crate) fn ready(mut self) -> Outcome<Cluster> {
        for (name, starting) in self.starting {
            self.cluster.processes.push((name, starting.ready()?));
        }
        Ok(self.cluster)
    }
}

fn run(args: &[&str]) -> Outcome<()> {
    let program = std::env::current_exe()?;
    let output = std::process::Command::new(program).arg("flexlog").args(args).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`flexlog {}`: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)).into())
}

impl Cluster {
    /// The process of a position or a replica.
    pub(crate) fn process(&self, name: &str) -> Outcome<&Process> {
        let found = self.processes.iter().find(|(other, _)| other == name);
        found.map(|(_, process)| process).ok_or_else(|| format!("there is no process {name}").into())
    }

    /// Asks all processes to end, and waits until they have. The folder is kept until this is dropped.
    pub(crate) fn stop(&mut self) -> Outcome<()> {
        self.processes.iter().try_for_each(|(_, process)| process.ask_to_end())?;
        self.processes.drain(..).try_for_each(|(_, process)| process.ended())
    }
}
