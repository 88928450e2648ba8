//! Clusters of several processes, as `flexlog cluster up` runs them, over TCP and over QUIC.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

use serde_json::Value;
use support::{BINARY, On, assert_contiguous, folder, free_addresses, json_lines, numbers, run, text, turn};

/// Root, inner and two leaves, each with a shard of one replica.
const PROCESSES: [&str; 6] = ["root", "inner", "leaf-1", "leaf-2", "replica-1", "replica-2"];

/// The file of a cluster, in a folder of its own.
struct Plan {
    file: PathBuf,
    /// In the order of [`PROCESSES`].
    addresses: Vec<String>,
    certificates: Option<PathBuf>,
}

impl Plan {
    fn new(folder: &Path, quic: bool) -> Self {
        let addresses = free_addresses(PROCESSES.len());
        let [root, inner, leaf_1, leaf_2, one, two] = addresses.as_slice() else { unreachable!() };
        let transport =
            if quic { "transport = \"quic\"\n[certificates]\ndirectory = \"certs\"" } else { "transport = \"tcp\"" };
        let text = format!(
            r#"cluster = "test"
data = "data"
{transport}

[storage]
area_limit = "64MiB"
segment = "8MiB"

[[sequencer]]
name = "root"
address = "{root}"

[[sequencer]]
name = "inner"
parent = "root"
address = "{inner}"

[[sequencer]]
name = "leaf-1"
parent = "inner"
address = "{leaf_1}"

[[sequencer]]
name = "leaf-2"
parent = "inner"
address = "{leaf_2}"

[[shard]]
id = 1
leaf = "leaf-1"
min_view = 1

  [[shard.replica]]
  id = 1
  address = "{one}"

[[shard]]
id = 2
leaf = "leaf-2"
min_view = 1

  [[shard.replica]]
  id = 2
  address = "{two}"
"#
        );
        let file = folder.join("cluster.toml");
        fs::write(&file, text).unwrap();
        Self { file, addresses, certificates: quic.then(|| folder.join("certs")) }
    }

    fn change(&self, from: &str, to: &str) {
        let text = fs::read_to_string(&self.file).unwrap();
        assert!(text.contains(from));
        fs::write(&self.file, text.replace(from, to)).unwrap();
    }

    fn flexlog(words: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(words);
        command
    }

    fn make_certificates(&self) {
        let Some(certificates) = &self.certificates else { return };
        let names = ["client"].into_iter().chain(PROCESSES);
        for mut command in [Self::flexlog(&["cert", "init"]), {
            let mut issue = Self::flexlog(&["cert", "issue"]);
            issue.args(names);
            issue
        }] {
            command.arg("--dir").arg(certificates);
            let output = run(command, b"");
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
    }

    /// A command of a client, which asks the process of this name.
    fn at(&self, process: &str, words: &[&str]) -> Command {
        let place = PROCESSES.iter().position(|name| *name == process).unwrap();
        let mut command = Self::flexlog(words);
        command.args(["--cluster", &self.addresses[place]]);
        if let Some(certificates) = &self.certificates {
            command.arg("--certs").arg(certificates);
        }
        command
    }

    /// Runs a command of a client to its end, which must be a good one.
    fn run(&self, process: &str, words: &[&str], input: &str) -> String {
        let output = run(self.at(process, words), input.as_bytes());
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn status(&self, process: &str) -> Value {
        json_lines(&self.run(process, &["status", "--json"], "")).remove(0)
    }

    /// Starts a process by itself, which must fail with `code`; gives what it says.
    fn start_fails(&self, words: &[&str], code: i32) -> String {
        let mut command = Self::flexlog(words);
        command.arg("--config").arg(&self.file);
        let output = run(command, b"");
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output.stderr));
        text(&output.stderr)
    }

    fn up(&self) -> Cluster {
        let mut command = Self::flexlog(&["cluster", "up"]);
        command.arg(&self.file);
        Cluster::spawn(command).unwrap_or_else(|(status, errors)| panic!("it ended with {status}: {errors}"))
    }
}

/// A running `flexlog cluster up`.
struct Cluster {
    child: Child,
    said: String,
    errors: Option<JoinHandle<String>>,
}

impl Cluster {
    fn spawn(mut command: Command) -> Result<Self, (ExitStatus, String)> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        // "ready", "try", and three lines to try.
        for _ in 0..5 {
            if lines.read_line(&mut said).unwrap() == 0 {
                let status = child.wait().unwrap();
                return Err((status, errors.join().unwrap()));
            }
        }
        Ok(Self { child, said, errors: Some(errors) })
    }

    /// The processes that it runs.
    fn processes(&self) -> Vec<u32> {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_whitespace().map(|child| child.parse().unwrap()).collect()
    }

    /// SIGTERM, which must end it and all that it started.
    fn stop(mut self) {
        let processes = self.processes();
        assert_eq!(processes.len(), PROCESSES.len());
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        let errors = self.errors.take().unwrap().join().unwrap();
        assert!(status.success(), "{status}: {errors}");
        assert!(!errors.contains("is killed"), "{errors}");
        for process in processes {
            assert!(!Path::new(&format!("/proc/{process}")).exists(), "process {process} is there still");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.errors.is_none() {
            return;
        }
        // A test failed: what it started must not stay.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
        if let Some(errors) = self.errors.take() {
            eprintln!("the cluster said:\n{}", errors.join().unwrap_or_default());
        }
    }
}

/// Colors, by the words that create them.
const COLORS: [(&str, &[&str], &str, usize); 4] = [
    ("low", &["--owner", "leaf-2"], "leaf-2", 1),
    ("middle", &["--owner", "inner"], "inner", 1),
    ("high", &["--owner", "root"], "root", 1),
    ("wide", &["--owner", "inner", "--width", "2"], "inner", 2),
];

fn lines(what: &str, count: usize) -> String {
    (0..count).map(|i| format!("{what} {i}\n")).collect()
}

/// The epoch of each position, as its process says.
fn epochs(status: &Value) -> Vec<(String, u64)> {
    let position =
        |position: &Value| (position["name"].as_str().unwrap().to_owned(), position["epoch"].as_u64().unwrap());
    status["positions"].as_array().unwrap().iter().map(position).collect()
}

fn a_tree_serves_and_starts_again(quic: bool) {
    let _turn = turn();
    let Some(folder) = folder(On::Tmpfs) else { return };
    let plan = Plan::new(folder.path(), quic);
    plan.make_certificates();
    let cluster = plan.up();
    assert!(cluster.said.starts_with("ready: 4 sequencers, 2 shards, 2 replicas"), "{}", cluster.said);
    assert_eq!(cluster.said.matches("--certs").count(), if quic { 3 } else { 0 }, "{}", cluster.said);

    for (color, words, owner, width) in COLORS {
        let created = plan.run("replica-1", &[&["color", "create", color, "--json"], words].concat(), "");
        let created = &json_lines(&created)[0];
        assert_eq!(created["owner"], owner, "{color}");
        assert_eq!(created["shards"].as_array().unwrap().len(), width, "{color}");
    }
    for (color, _, _, width) in COLORS {
        let sent = lines(color, 50);
        // Whoever is asked knows where a color is.
        let given = numbers(&plan.run("root", &["append", color], &sent));
        assert_eq!(given.len(), 50, "{color}");
        let read = plan.run("replica-2", &["read", color, "--from", "0.0"], "");
        if width == 1 {
            assert_contiguous(&given, 0);
            assert_eq!(read, sent, "{color}");
        } else {
            // Appends that are open at once may be numbered in another order on different shards.
            let sorted = |text: &str| {
                let mut lines: Vec<&str> = text.lines().collect();
                lines.sort_unstable();
                lines.join("\n")
            };
            assert_eq!(sorted(&read), sorted(&sent), "{color}");
        }
        let last = plan.run("leaf-1", &["tail", color, "--last", "1", "--json"], "");
        let last = json_lines(&last).remove(0)["number"].as_str().unwrap().to_owned();
        let (epoch, counter) = *given.iter().max().unwrap();
        assert_eq!(last, format!("{epoch}.{counter}"), "{color}");
    }

    // Every process has the whole tree to tell.
    for process in PROCESSES {
        let said = plan.run(process, &["status", "--check"], "");
        assert!(said.lines().all(|line| line.chars().count() <= 100), "{said}");
        assert!(said.contains("6 of 6 answer"), "{said}");
        for (name, address) in
            ["root", "inner", "leaf-1", "leaf-2", "replica 1", "replica 2"].iter().zip(&plan.addresses)
        {
            let line = said.lines().find(|line| line.trim_start().starts_with(&format!("{name} "))).unwrap();
            assert!(line.contains(address) && (line.contains("serving") || line.contains("ok;")), "{said}");
        }
        let depth =
            |name: &str| said.lines().find_map(|line| line.find(name).filter(|at| line[..*at].trim().is_empty()));
        assert_eq!(
            ["root ", "inner ", "leaf-1 ", "shard 1 ", "replica 1 "].map(depth),
            [0, 2, 4, 6, 8].map(Some),
            "{said}"
        );
    }
    let status = plan.status("leaf-1");
    assert_eq!(status["healthy"], true, "{status}");
    assert_eq!(status["metadata_away"], Value::Null);
    assert_eq!(status["colors"], 4);
    assert_eq!(status["appends"], 200, "{status}");
    assert!(status["appends_per_s"].is_number(), "{status}");
    let processes = status["processes"].as_array().unwrap();
    let mut names: Vec<_> = processes.iter().map(|process| process["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["inner", "leaf-1", "leaf-2", "replica-1", "replica-2", "root"]);
    let leaf = processes.iter().find(|process| process["name"] == "leaf-1").unwrap();
    let linked: Vec<_> = leaf["links"].as_array().unwrap().iter().map(|link| (&link["to"], &link["down"])).collect();
    for to in ["inner", "replica-1"] {
        assert!(linked.contains(&(&Value::from(to), &Value::Null)), "{linked:?}");
    }
    let granted = |status: &Value| -> Vec<(String, u64, u64)> {
        let position = |p: &Value| {
            (p["name"].as_str().unwrap().to_owned(), p["colors"].as_u64().unwrap(), p["granted"].as_u64().unwrap())
        };
        status["positions"].as_array().unwrap().iter().map(position).collect()
    };
    let expected = [("root", 1, 50), ("inner", 2, 100), ("leaf-1", 0, 0), ("leaf-2", 1, 50)];
    assert_eq!(granted(&status), expected.map(|(name, colors, numbers)| (name.to_owned(), colors, numbers)));
    let before = epochs(&status);
    cluster.stop();

    let cluster = plan.up();
    for (color, _, _, width) in COLORS {
        let read = plan.run("replica-1", &["read", color, "--from", "0.0"], "");
        assert_eq!(read.lines().count(), 50, "{color}: {read}");
        if width == 1 {
            assert_eq!(read, lines(color, 50), "{color}");
        }
        let given = numbers(&plan.run("inner", &["append", color], &lines("more", 5)));
        let old = before.iter().map(|(_, epoch)| *epoch).max().unwrap();
        assert!(given.iter().all(|(epoch, _)| u64::from(*epoch) > old), "{color}: {given:?} after {before:?}");
        let read = plan.run("root", &["read", color, "--from", "0.0"], "");
        assert_eq!(read.lines().count(), 55, "{color}: {read}");
    }
    for ((name, before), (same, after)) in before.iter().zip(epochs(&plan.status("root"))) {
        assert_eq!(*name, same);
        assert!(after > *before, "{name}: {after} after {before}");
    }
    cluster.stop();
}

#[test]
fn a_tree_serves_and_starts_again_over_tcp() {
    a_tree_serves_and_starts_again(false);
}

#[cfg(feature = "quic")]
#[test]
fn a_tree_serves_and_starts_again_over_quic() {
    a_tree_serves_and_starts_again(true);
}

#[test]
fn a_status_says_who_is_away() {
    let _turn = turn();
    let Some(folder) = folder(On::Tmpfs) else { return };
    let plan = Plan::new(folder.path(), false);
    let cluster = plan.up();
    plan.run("root", &["append", "orders"], "one\n");
    let killed = |name: &str| {
        let of = |process: &u32| fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let process = *cluster
            .processes()
            .iter()
            .find(|process| of(process).split(|byte| *byte == 0).nth(2) == Some(name.as_bytes()))
            .unwrap();
        let pid = rustix::process::Pid::from_raw(process.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    };
    // The replica of the second shard, by its number.
    killed("2");
    killed("root");
    // A process that is killed may hold its port for a moment longer; then its silence is what is told.
    let said = plan.run("leaf-1", &["status"], "");
    assert!(said.lines().all(|line| line.chars().count() <= 100), "{said}");
    assert!(said.contains("4 of 6 answer"), "{said}");
    for name in ["root", "replica 2"] {
        let line = said.lines().find(|line| line.trim_start().starts_with(&format!("{name} "))).unwrap();
        assert!(line.contains("away"), "{said}");
    }
    // The root kept the metadata.
    assert!(said.contains("metadata   away: "), "{said}");
    let output = run(plan.at("leaf-1", &["status", "--check", "--json"]), b"");
    assert_eq!(output.status.code(), Some(1));
    let status = json_lines(&text(&output.stdout)).remove(0);
    assert_eq!(status["healthy"], false);
    assert!(status["positions"][0]["away"].is_string(), "{status}");
    assert_eq!(status["positions"].as_array().unwrap().len(), 4);
    assert!(status["shards"][1]["replicas"][0]["away"].is_string(), "{status}");
    assert_eq!(status["shards"][0]["state"], "serving", "{status}");
    drop(cluster);
}

#[test]
fn a_retention_that_is_set_at_any_process_is_kept_to() {
    let _turn = turn();
    let Some(folder) = folder(On::Tmpfs) else { return };
    let plan = Plan::new(folder.path(), false);
    let cluster = plan.up();
    for color in ["short", "long"] {
        plan.run("root", &["color", "create", color, "--owner", "leaf-2"], "");
    }
    let number = |color: &str| plan.run("root", &["append", color], "one\n").trim_end().to_owned();
    let [short, long] = ["short", "long"].map(number);
    // Neither leads nor holds the color's shard.
    plan.run("leaf-1", &["color", "set", "short", "--max-age", "1s"], "");
    let start = std::time::Instant::now();
    loop {
        let output = run(plan.at("replica-1", &["read", "short", &short]), b"");
        if text(&output.stderr).contains("Trimmed") {
            break;
        }
        assert!(output.status.success() && start.elapsed().as_secs() < 60, "{}", text(&output.stderr));
    }
    assert_eq!(plan.run("replica-2", &["read", "long", &long], ""), "one\n");
    cluster.stop();
}

#[test]
fn what_cannot_start_says_why() {
    let _turn = turn();
    let Some(folder) = folder(On::Tmpfs) else { return };
    let plan = Plan::new(folder.path(), false);
    let says = plan.start_fails(&["sequencer", "nobody"], 1);
    assert!(says.contains("'nobody'") && says.contains("root, inner, leaf-1, leaf-2"), "{says}");
    let says = plan.start_fails(&["replica", "7"], 1);
    assert!(says.contains("replica 7") && says.contains("1, 2"), "{says}");

    let taken = TcpListener::bind(&plan.addresses[0]).unwrap();
    let says = plan.start_fails(&["sequencer", "root"], 1);
    assert!(says.contains(&plan.addresses[0]) && says.contains("cluster.toml"), "{says}");
    let mut up = Plan::flexlog(&["cluster", "up"]);
    up.arg(&plan.file);
    let (status, says) = Cluster::spawn(up).map(|_| ()).unwrap_err();
    assert_eq!(status.code(), Some(1));
    assert!(says.contains("root: ") && says.contains(&plan.addresses[0]), "{says}");
    drop(taken);

    plan.up().stop();
    plan.change("leaf = \"leaf-1\"", "leaf = \"leaf-3\"");
    plan.change("leaf = \"leaf-2\"", "leaf = \"leaf-1\"");
    plan.change("leaf = \"leaf-3\"", "leaf = \"leaf-2\"");
    let says = plan.start_fails(&["sequencer", "root"], 1);
    assert!(says.contains("shard 2") && says.contains("'leaf-2'") && says.contains("line "), "{says}");
    plan.change("name = \"leaf-2\"", "name = \"other\"");
    plan.change("leaf = \"leaf-2\"", "leaf = \"other\"");
    let says = plan.start_fails(&["sequencer", "root"], 1);
    assert!(says.contains("sequencer 'other'") && says.contains("sequencer 'leaf-2'"), "{says}");
}

#[test]
fn a_position_tells_a_client_that_it_has_no_records() {
    use flexlog_protocol::api::{Answer, Failure, Hello, Request};
    use flexlog_protocol::net::{Connect as _, tcp};

    let _turn = turn();
    let Some(folder) = folder(On::Tmpfs) else { return };
    let plan = Plan::new(folder.path(), false);
    let cluster = plan.up();
    let created = plan.run("root", &["color", "create", "orders", "--json"], "");
    let color = flexlog_protocol::Color(json_lines(&created)[0]["id"].as_u64().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let connector = tcp::Connector::new(&plan.addresses[2], std::time::Duration::from_secs(5));
        let mut connection = connector.connect(&Hello::client(Default::default())).await.unwrap();
        connection.sender.send(&mut vec![Request::Tail { id: 7, color }]).await.unwrap();
        let mut answers = Vec::new();
        assert!(connection.receiver.recv(&mut answers).await.unwrap());
        assert!(matches!(&answers[..], [Answer::Failed { id: 7, why: Failure::NotReady(_) }]), "{answers:?}");
    });
    assert!(plan.run("leaf-1", &["status", "--check"], "").contains("6 of 6 answer"));
    cluster.stop();
}

#[cfg(feature = "quic")]
#[test]
fn a_certificate_that_is_missing_is_named() {
    let _turn = turn();
    let Some(folder) = folder(On::Tmpfs) else { return };
    let plan = Plan::new(folder.path(), true);
    let certificates = plan.certificates.clone().unwrap();
    let fails = || {
        let mut up = Plan::flexlog(&["cluster", "up"]);
        up.arg(&plan.file);
        let (status, says) = Cluster::spawn(up).map(|_| ()).unwrap_err();
        assert_eq!(status.code(), Some(1));
        says
    };
    let says = fails();
    assert!(says.contains("ca.pem") && says.contains("`flexlog cert init --dir "), "{says}");
    plan.make_certificates();
    for name in ["inner", "replica-2"] {
        fs::remove_file(certificates.join(format!("{name}.pem"))).unwrap();
        fs::remove_file(certificates.join(format!("{name}.key"))).unwrap();
    }
    let says = fails();
    assert!(says.contains("inner.pem") && says.contains("`flexlog cert issue inner replica-2 --dir "), "{says}");
    let says = plan.start_fails(&["sequencer", "inner"], 1);
    assert!(says.contains("inner.pem") && says.contains("`flexlog cert issue inner --dir "), "{says}");

    fs::remove_file(certificates.join("client.pem")).unwrap();
    let output = run(plan.at("root", &["status"]), b"");
    assert_eq!(output.status.code(), Some(1));
    let says = text(&output.stderr);
    assert!(says.contains("client.pem") && says.contains("`flexlog cert issue client --dir "), "{says}");
}

#[cfg(feature = "quic")]
#[test]
fn a_client_without_certificates_is_told_the_option() {
    let _turn = turn();
    let Some(folder) = folder(On::Tmpfs) else { return };
    let mut plan = Plan::new(folder.path(), true);
    plan.make_certificates();
    let cluster = plan.up();
    // Any name will do that the CA has signed.
    assert!(plan.run("root", &["status", "--as", "replica-1"], "").contains("6 of 6 answer"));
    let certificates = plan.certificates.take();
    let output = run(plan.at("root", &["status"]), b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--certs"), "{}", text(&output.stderr));
    plan.certificates = certificates;
    cluster.stop();
}
