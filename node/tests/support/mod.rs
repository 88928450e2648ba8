//! What the whole-binary tests share: a server process, commands, folders on tmpfs and on disk, seeded lines.

#![allow(dead_code, reason = "each test file uses its own part")]

#[cfg(feature = "quic")]
pub mod fleet;
#[cfg(feature = "quic")]
pub mod history;
#[cfg(feature = "quic")]
pub mod load;
pub mod net;

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use flexlog_storage_pm::device::SplitMix;
use tempfile::TempDir;

pub const BINARY: &str = env!("CARGO_BIN_EXE_flexlog");

/// What a test needs is not there: said loudly, and a failure where everything must be there.
pub fn skipped(what: &str) {
    assert!(std::env::var_os("FLEXLOG_REQUIRE_ALL").is_none(), "{what}, and FLEXLOG_REQUIRE_ALL is set");
    eprintln!("SKIPPED: {what}");
}

/// Where a test's folders are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum On {
    Tmpfs,
    Disk,
}

/// A folder that goes with the test; `None` where the machine has no such file system.
pub fn folder(on: On) -> Option<TempDir> {
    let made = match on {
        On::Tmpfs => tempfile::Builder::new().prefix("flexlog-test-").tempdir_in("/dev/shm"),
        On::Disk => tempfile::Builder::new().prefix("flexlog-test-").tempdir_in(env!("CARGO_TARGET_TMPDIR")),
    };
    match made {
        Ok(folder) => Some(folder),
        Err(error) => {
            skipped(&format!("no folder on {on:?}: {error}"));
            None
        }
    }
}

/// A running `flexlog up`.
pub struct Server {
    child: Child,
    pub address: String,
    errors: Option<JoinHandle<String>>,
}

impl Server {
    pub fn start(folder: &Path) -> Self {
        Self::start_at(folder, "127.0.0.1:0", &[])
    }

    pub fn start_at(folder: &Path, listen: &str, more: &[&str]) -> Self {
        let mut command = Command::new(BINARY);
        command.args(["up", "--listen", listen, "--dir"]).arg(folder).args(more);
        Self::spawn(command).unwrap_or_else(|(status, errors)| panic!("`up` ended with {status}: {errors}"))
    }

    /// Starts `command`, which must be an `up`, and waits until it is ready; else gives how it ended and what it said.
    pub fn spawn(mut command: Command) -> Result<Self, (ExitStatus, String)> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let Some(address) = line.trim_end().strip_prefix("ready ").map(str::to_owned) else {
            let status = child.wait().unwrap();
            return Err((status, errors.join().unwrap()));
        };
        // What follows is for people; it must be taken for the server not to wait.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Ok(Self { child, address, errors: Some(errors) })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; gives how it ended.
    pub fn terminate(mut self) -> (ExitStatus, String) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        (status, self.errors.take().unwrap().join().unwrap())
    }

    /// As [`Server::terminate`] for a server that a tracer started: the tracer ends with it.
    pub fn terminate_child(mut self) -> (ExitStatus, String) {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let child = children.split_whitespace().next().unwrap().parse().unwrap();
        let child = rustix::process::Pid::from_raw(child).unwrap();
        rustix::process::kill_process(child, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        (status, self.errors.take().unwrap().join().unwrap())
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// A command for this cluster.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(args).args(["--cluster", &self.address]);
        command
    }

    /// Runs a command to its end, which must be a good one.
    pub fn run(&self, args: &[&str]) -> String {
        String::from_utf8(self.run_with(args, b"").stdout).unwrap()
    }

    /// Runs a command over this input to its end, which must be a good one.
    pub fn run_with(&self, args: &[&str], input: &[u8]) -> Output {
        let output = run(self.command(args), input);
        assert!(output.status.success(), "{args:?}: {} {}", output.status, text(&output.stderr));
        output
    }

    /// Runs a command that must fail with `code`; gives what it says.
    pub fn fails(&self, args: &[&str], input: &[u8], code: i32) -> String {
        let output = run(self.command(args), input);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stderr));
        text(&output.stderr)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command over this input to its end.
pub fn run(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A command that fails does not read its input to the end.
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// A port of loopback that nobody has, by TCP and UDP, and that nobody is given who does not ask for one by its number: the system
/// hands out those from 32768 on, also between this look and the server's start.
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 22_000;
    // Each once in a process, and processes begin at places of their own.
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let free =
        |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok();
    (0..COUNT)
        .map(|_| std::process::id().wrapping_mul(257).wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)))
        .map(|place| (FIRST + place % COUNT) as u16)
        .find(|port| free(*port))
        .unwrap()
}

/// So many addresses of loopback, each with a [`free_port`] of its own.
pub fn free_addresses(count: usize) -> Vec<String> {
    (0..count).map(|_| format!("127.0.0.1:{}", free_port())).collect()
}

/// A seeded generator: the same lines for the same seed, everywhere.
pub struct Seeded(SplitMix);

impl Seeded {
    pub fn new(seed: u64) -> Self {
        Self(SplitMix(seed))
    }

    pub fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n
    }
}

/// `epoch.counter` of each line.
pub fn numbers(output: &str) -> Vec<(u32, u32)> {
    output
        .lines()
        .map(|line| {
            let (epoch, counter) = line.split_once('.').unwrap_or_else(|| panic!("'{line}' is no number"));
            (epoch.parse().unwrap(), counter.parse().unwrap())
        })
        .collect()
}

/// Asserts that the numbers are those from `first` on in one epoch.
pub fn assert_contiguous(numbers: &[(u32, u32)], first: u32) {
    for (i, number) in numbers.iter().enumerate() {
        assert_eq!(*number, (numbers[0].0, first + i as u32), "place {i}");
    }
}

/// The fields of one JSON object a line that a test asks for, as strings.
pub fn json_lines(output: &str) -> Vec<serde_json::Value> {
    output.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}"))).collect()
}

/// Where `name` is found on this machine's path.
pub fn tool(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Bytes as hex, for names that cannot collide.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Heavy tests of one file take turns: the machine has two cores.
pub static TURN: Mutex<()> = Mutex::new(());

pub fn turn() -> std::sync::MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &target),
            false => {
                fs::copy(entry.path(), target).unwrap();
            }
        }
    }
}
