//! A cluster whose processes are started, killed, stopped, cut off and replaced one by one: a root, an inner position, two
//! leaves with a standby each, and two shards of three replicas. Where network namespaces can be made each process has one.
//! What a process says goes to a file, the end of which is shown when a test fails.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use flexlog_client::{Client, Dialer};
use flexlog_protocol::net::quic::{self, Credentials};
use flexlog_protocol::net::{Connect, tcp};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::history::{Etcd, flexlog};
use super::net::Net;
use super::{BINARY, On, folder, free_addresses, json_lines, text};

pub const SHARDS: usize = 2;
pub const REPLICAS: usize = 3;
const PORT: u16 = 7400;
const SEQUENCERS: [(&str, Option<&str>); 4] =
    [("root", None), ("inner", Some("root")), ("leaf-1", Some("inner")), ("leaf-2", Some("inner"))];
/// So many replicas may be replaced, that there are certificates for.
const MOST_REPLICAS: u32 = 60;
/// One attempt to connect: a node that is cut off is asked again soon.
const CONNECT: Duration = Duration::from_secs(2);
/// How many lines of each process are shown.
const LAST_WORDS: usize = 25;

/// How the processes reach one another, and where the metadata is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    pub is_quic: bool,
    pub in_etcd: bool,
}

/// A process's place: who runs there is killed and started again, and as a replica replaced.
struct Place {
    /// Of its namespace.
    name: String,
    address: String,
    words: Vec<String>,
    child: Option<Child>,
    /// Of a replica: its number, and whether its folder is on a disk.
    replica: Option<u32>,
    on_disk: bool,
}

pub struct Fleet {
    plan: Plan,
    file: PathBuf,
    places: RefCell<Vec<Place>>,
    next_replica: Cell<u32>,
    /// One is replaced at a time: each time there is a new file.
    replacing: tokio::sync::Mutex<()>,
    credentials: Option<Credentials>,
    etcd: Option<Etcd>,
    pub net: Option<Net>,
    disk: TempDir,
    folder: TempDir,
}

#[derive(Clone, Debug)]
struct Dial(Option<Credentials>);

impl Dialer for Dial {
    fn dial(&self, address: &str) -> Box<dyn Connect> {
        match &self.0 {
            Some(credentials) => Box::new(quic::Connector::new(address, credentials.clone(), CONNECT)),
            None => Box::new(tcp::Connector::new(address, CONNECT)),
        }
    }
}

impl Fleet {
    /// Starts one. `None`, said loudly, where this machine has not what it needs.
    pub fn start(plan: Plan) -> Option<Self> {
        let (folder, disk) = (folder(On::Tmpfs)?, folder(On::Disk)?);
        let mut names: Vec<String> = SEQUENCERS.iter().map(|(name, _)| (*name).to_owned()).collect();
        let with_standby = if plan.in_etcd { vec!["leaf-1", "leaf-2", "root"] } else { vec!["leaf-1", "leaf-2"] };
        names.extend(with_standby.iter().map(|name| format!("{name}-standby-1")));
        let sequencers = names.len();
        names.extend((1..=SHARDS * REPLICAS).map(|slot| format!("place-{slot}")));
        let spaces: Vec<&str> = names.iter().map(String::as_str).chain(["etcd"]).collect();
        let net = Net::new(&spaces);
        let addresses = match &net {
            Some(net) => spaces.iter().map(|name| format!("{}:{PORT}", net.host(name))).collect(),
            None => free_addresses(spaces.len()),
        };
        let etcd = match plan.in_etcd {
            true => Some(start_etcd(net.as_ref(), &folder.path().join("etcd"))?),
            false => None,
        };
        let place = |(at, (name, address)): (usize, (&String, &String))| {
            let replica = (at >= sequencers).then(|| (at - sequencers + 1) as u32);
            Place {
                name: name.clone(),
                address: address.clone(),
                words: words(name, replica),
                child: None,
                replica,
                // The last of each shard.
                on_disk: replica.is_some_and(|replica| (replica as usize).is_multiple_of(REPLICAS)),
            }
        };
        let places: Vec<Place> = names.iter().zip(&addresses).enumerate().map(place).collect();
        let credentials = plan.is_quic.then(|| certificates(folder.path(), &names[..sequencers], net.as_ref()));
        let file = folder.path().join("cluster.toml");
        let next_replica = Cell::new((SHARDS * REPLICAS) as u32 + 1);
        let places = RefCell::new(places);
        let replacing = tokio::sync::Mutex::default();
        let fleet = Self { plan, file, places, next_replica, replacing, credentials, etcd, net, disk, folder };
        fs::create_dir(fleet.folder.path().join("said")).unwrap();
        fs::create_dir(fleet.folder.path().join("data")).unwrap();
        fleet.write(&fleet.file);
        for at in 0..fleet.count() {
            fleet.make_folder(at);
            fleet.run(at);
        }
        Some(fleet)
    }

    pub fn count(&self) -> usize {
        self.places.borrow().len()
    }

    pub fn name(&self, at: usize) -> String {
        let places = self.places.borrow();
        match places[at].replica {
            Some(replica) => format!("replica-{replica}"),
            None => places[at].name.clone(),
        }
    }

    /// The places of a shard's replicas, from 0 up, and those of the sequencers.
    pub fn replicas_of(&self, shard: usize) -> Vec<usize> {
        let first = self.count() - (SHARDS - shard) * REPLICAS;
        (first..first + REPLICAS).collect()
    }

    pub fn sequencers(&self) -> Vec<usize> {
        (0..self.count() - SHARDS * REPLICAS).collect()
    }

    pub fn is_on_disk(&self, at: usize) -> bool {
        self.places.borrow()[at].on_disk
    }

    /// Writes the file of the cluster as it is now.
    fn write(&self, file: &Path) {
        let mut text = String::from("cluster = \"chaos\"\ndata = \"data\"\n");
        if self.plan.is_quic {
            text += "transport = \"quic\"\n[certificates]\ndirectory = \"certs\"\n";
        }
        if let Some(etcd) = &self.etcd {
            let address = &etcd.address;
            writeln!(text, "[metadata]\nbackend = \"etcd\"\nendpoints = [\"{address}\"]\nprefix = \"flexlog/chaos\"")
                .unwrap();
        }
        text += "[failover]\ndetect_ms = 500\nreplica_timeout_ms = 1000\n";
        text += "[storage]\narea_limit = \"64MiB\"\nsegment = \"8MiB\"\n";
        let places = self.places.borrow();
        let address = |name: &str| places.iter().find(|place| place.name == name).map(|place| &place.address);
        for (name, parent) in SEQUENCERS {
            write!(text, "[[sequencer]]\nname = \"{name}\"\naddress = \"{}\"\n", address(name).unwrap()).unwrap();
            if let Some(parent) = parent {
                writeln!(text, "parent = \"{parent}\"").unwrap();
            }
            if let Some(standby) = address(&format!("{name}-standby-1")) {
                writeln!(text, "standbys = [\"{standby}\"]").unwrap();
            }
        }
        for shard in 1..=SHARDS {
            write!(text, "[[shard]]\nid = {shard}\nleaf = \"leaf-{shard}\"\nmin_view = 2\n").unwrap();
            let replicas = places.iter().filter_map(|place| Some((place.replica?, &place.address)));
            for (replica, address) in replicas.skip((shard - 1) * REPLICAS).take(REPLICAS) {
                write!(text, "[[shard.replica]]\nid = {replica}\naddress = \"{address}\"\n").unwrap();
            }
        }
        fs::write(file, text).unwrap();
    }

    /// The folder of a replica, where its store is.
    fn data(&self, at: usize) -> PathBuf {
        let root = if self.is_on_disk(at) { self.disk.path().to_owned() } else { self.folder.path().join("data") };
        root.join(self.name(at))
    }

    pub fn area(&self, at: usize) -> PathBuf {
        self.data(at).join("area")
    }

    fn make_folder(&self, at: usize) {
        if self.is_on_disk(at) {
            fs::create_dir(self.data(at)).unwrap();
            let link = self.folder.path().join("data").join(self.name(at));
            std::os::unix::fs::symlink(self.data(at), link).unwrap();
        }
    }

    fn command(&self, at: usize, program: &str) -> Command {
        match &self.net {
            Some(net) => net.command(&self.places.borrow()[at].name, program),
            None => Command::new(program),
        }
    }

    pub fn run(&self, at: usize) {
        let said = self.folder.path().join("said").join(self.name(at));
        let said = File::options().create(true).append(true).open(said).unwrap();
        let mut command = self.command(at, BINARY);
        command.args(&self.places.borrow()[at].words).arg("--config").arg(&self.file);
        command.env("FLEXLOG_LOG", std::env::var("FLEXLOG_LOG").unwrap_or_else(|_| "info".into()));
        command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said);
        let child = command.spawn().unwrap();
        self.places.borrow_mut()[at].child = Some(child);
    }

    /// The process must be running: none ends by itself, whatever happens to others. But one that read the file, waited for
    /// the metadata, and then found a replica replaced says that it has an old file, and is started again with the new one.
    pub fn assert_runs(&self, at: usize) {
        let ended = match &mut self.places.borrow_mut()[at].child {
            Some(child) => child.try_wait().unwrap(),
            None => return,
        };
        let Some(status) = ended else { return };
        let said = fs::read_to_string(self.folder.path().join("said").join(self.name(at))).unwrap();
        let last = said.rsplit("flexlog: ").next().unwrap();
        assert!(
            last.lines().next().is_some_and(|line| line.ends_with("is not the cluster that the metadata holds:")),
            "{} ended by itself: {status}",
            self.name(at)
        );
        self.run(at);
    }

    pub fn pid(&self, at: usize) -> Pid {
        Pid::from_child(self.places.borrow()[at].child.as_ref().unwrap())
    }

    /// `kill -9`.
    pub fn kill(&self, at: usize) {
        self.assert_runs(at);
        let mut child = self.places.borrow_mut()[at].child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn signal(&self, at: usize, signal: Signal) {
        self.assert_runs(at);
        kill_process(self.pid(at), signal).unwrap();
    }

    /// Cuts a process off, or joins it again.
    pub fn link(&self, at: usize, state: &str) {
        if let Some(net) = &self.net {
            net.link(&self.places.borrow()[at].name, state);
        }
    }

    /// Removes a killed replica's store, and gives its place to one with a new number. The command may have to wait for the
    /// metadata, so it runs beside everything else.
    pub async fn replace(&self, at: usize) {
        let _turn = self.replacing.lock().await;
        let (old, new) = (self.places.borrow()[at].replica.unwrap(), self.next_replica.get());
        assert!(new <= MOST_REPLICAS, "no more certificates");
        self.next_replica.set(new + 1);
        fs::remove_dir_all(self.data(at)).unwrap();
        {
            let place = &mut self.places.borrow_mut()[at];
            place.replica = Some(new);
            place.words = words(&place.name, place.replica);
        }
        // Others go by it once the metadata has it: before that it would be refused.
        let next = self.file.with_extension("next");
        self.write(&next);
        self.make_folder(at);
        let begun = Instant::now();
        loop {
            let mut command = self.command(at, BINARY);
            command.args(["replica", "replace", &old.to_string(), &new.to_string(), "--config"]).arg(&next);
            command.stdin(Stdio::null());
            let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
            if output.status.success() {
                break;
            }
            let said = text(&output.stderr);
            assert!(begun.elapsed() < Duration::from_secs(60), "replica {old} is not replaced by {new}: {said}");
        }
        fs::rename(next, &self.file).unwrap();
        self.run(at);
    }

    /// Where clients find the cluster, beginning with a replica of choice.
    fn addresses(&self, first: usize) -> String {
        let places = self.places.borrow();
        let mut replicas: Vec<&str> =
            places.iter().filter(|place| place.replica.is_some()).map(|place| place.address.as_str()).collect();
        let count = replicas.len();
        replicas.rotate_left(first % count);
        replicas.join(",")
    }

    /// A client that gives up after `patience`.
    pub async fn client(&self, first: usize, patience: Duration) -> Client {
        let begun = Instant::now();
        loop {
            let builder = Client::builder().append_deadline(patience).deadline(patience).connect_deadline(CONNECT);
            match builder.dialer(Dial(self.credentials.clone())).connect(self.addresses(first)).await {
                Ok(client) => return client,
                Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "no client: {error}"),
            }
        }
    }

    /// The numbers of a shard's replicas, which are to be its view.
    pub fn members(&self, shard: usize) -> Vec<u32> {
        let places = self.places.borrow();
        let mut all: Vec<u32> = self.replicas_of(shard).into_iter().map(|at| places[at].replica.unwrap()).collect();
        all.sort_unstable();
        all
    }

    /// `flexlog status --json`, of those who answer.
    pub async fn status(&self) -> Result<Value, String> {
        let mut command = Command::new(BINARY);
        command.args(["status", "--json", "--interval", "0", "--cluster", &self.addresses(0)]);
        if self.plan.is_quic {
            command.arg("--certs").arg(self.folder.path().join("certs"));
        }
        command.stdin(Stdio::null());
        let output: Output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        match output.status.success() {
            true => Ok(json_lines(&text(&output.stdout)).remove(0)),
            false => Err(text(&output.stderr)),
        }
    }

    /// Ends all in order, and gives each replica's report once its folder was found to have no fault: place and report.
    pub fn stop_and_inspect(&self) -> Vec<(usize, Value)> {
        let at_once: Vec<usize> = (0..self.count()).collect();
        for at in &at_once {
            self.signal(*at, Signal::TERM);
        }
        for at in at_once {
            let mut child = self.places.borrow_mut()[at].child.take().unwrap();
            let status = child.wait().unwrap();
            assert!(status.success(), "{} ended with {status} when it was asked to stop", self.name(at));
        }
        let replicas = (0..SHARDS).flat_map(|shard| self.replicas_of(shard));
        replicas
            .map(|at| {
                let look = |what: &str| {
                    let folder = self.data(at);
                    let output = Command::new(BINARY).arg(what).arg(folder).arg("--json").output().unwrap();
                    let said = text(&output.stdout);
                    assert!(output.status.success(), "{what} of {}: {said}{}", self.name(at), text(&output.stderr));
                    json_lines(&said).pop().unwrap()
                };
                look("verify");
                (at, look("inspect")["replicas"][0].clone())
            })
            .collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for place in self.places.borrow_mut().iter_mut() {
            if let Some(mut child) = place.child.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        if std::thread::panicking() {
            let said = self.folder.path().join("said");
            for entry in fs::read_dir(&said).into_iter().flatten().flatten() {
                let all = fs::read_to_string(entry.path()).unwrap_or_default();
                let lines: Vec<&str> = all.lines().collect();
                let last = lines[lines.len().saturating_sub(LAST_WORDS)..].join("\n");
                eprintln!("--- {} said:\n{last}", entry.file_name().to_string_lossy());
            }
            if let Some(keep) = std::env::var_os("FLEXLOG_CHAOS_KEEP") {
                let _ = fs::remove_dir_all(&keep);
                super::copy_folder(&said, Path::new(&keep));
            }
        }
    }
}

fn words(name: &str, replica: Option<u32>) -> Vec<String> {
    match (replica, name.split_once("-standby-")) {
        (Some(replica), _) => vec!["replica".to_owned(), replica.to_string()],
        (None, Some((of, number))) => ["sequencer", of, "--standby", number].map(str::to_owned).to_vec(),
        (None, None) => ["sequencer", name].map(str::to_owned).to_vec(),
    }
}

fn start_etcd(net: Option<&Net>, data: &Path) -> Option<Etcd> {
    match net {
        None => Etcd::start(data),
        Some(net) => {
            let [client, peer] = [2379, 2380].map(|port| format!("http://{}:{port}", net.host("etcd")));
            Etcd::start_as(net.command("etcd", "etcd"), &client, &peer, data)
        }
    }
}

/// Makes all that are needed; gives the client's.
fn certificates(folder: &Path, sequencers: &[String], net: Option<&Net>) -> Credentials {
    flexlog(&["cert", "init", "--dir", "certs"], folder);
    let replicas: Vec<String> = (1..=MOST_REPLICAS).map(|id| format!("replica-{id}")).collect();
    let mut words = vec!["cert", "issue", "--dir", "certs", "client"];
    words.extend(sequencers.iter().map(String::as_str));
    words.extend(replicas.iter().map(String::as_str));
    let hosts = net.map(Net::hosts).unwrap_or_default();
    words.extend(hosts.iter().flat_map(|host| ["--host", host.as_str()]));
    flexlog(&words, folder);
    Credentials::load(&folder.join("certs"), "client").unwrap()
}
