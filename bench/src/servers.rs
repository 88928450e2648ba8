//! Processes that are measured: this program again, as a server.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::Outcome;

/// A server process that said `ready ADDRESS`.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: String,
}

/// The processors that this program was started on, whatever it was bound to since.
pub(crate) fn processors_at_start() -> Outcome<Vec<usize>> {
    static FIRST: OnceLock<Vec<usize>> = OnceLock::new();
    let allowed = sched_getaffinity(None)?;
    Ok(FIRST.get_or_init(|| (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()).clone())
}

/// Binds the calling thread, and those that it starts, to some processors.
pub(crate) fn bind(cpus: &[usize]) -> Outcome<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(None, &set)?)
}

/// Binds the threads of a process to some processors.
pub(crate) fn bind_process(process: u32, cpus: &[usize]) -> Outcome<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let id: i32 = task?.file_name().to_string_lossy().parse()?;
        sched_setaffinity(Pid::from_raw(id), &set)?;
    }
    Ok(())
}

/// Says that a server serves.
pub(crate) fn ready(address: &str) {
    let mut out = std::io::stdout().lock();
    // Whoever started it reads this, or has gone.
    let _ = writeln!(out, "ready {address}").and_then(|()| out.flush());
}

/// How long a process may take to serve, and a worker to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long it may take to end.
const ENDING: Duration = Duration::from_secs(15);

/// A process that has not said yet that it serves.
pub(crate) struct Starting {
    process: Process,
    what: String,
    lines: Receiver<String>,
}

impl Starting {
    /// Starts this program with `args`. It runs where the calling thread may run.
    pub(crate) fn new(args: &[&str]) -> Outcome<Self> {
        Self::with_env(args, &[])
    }

    /// The same with more in its environment.
    pub(crate) fn with_env(args: &[&str], variables: &[(&str, &OsStr)]) -> Outcome<Self> {
        Self::of(args, Command::new(std::env::current_exe()?).args(args).envs(variables.iter().copied()))
    }

    fn of(args: &[&str], command: &mut Command) -> Outcome<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let (say, lines) = sync_channel(64);
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    // What nobody listens to any more is read all the same, so that the process can go on.
                    let _ = say.send(line);
                }
            });
        }
        Ok(Self { process: Process { child, address: String::new() }, what: args.join(" "), lines })
    }

    fn wait(&mut self) -> Outcome<()> {
        let line = self.lines.recv_timeout(PATIENCE).unwrap_or_default();
        match line.trim_end().strip_prefix("ready ") {
            // A process of a cluster says its name before the address.
            Some(said) => {
                said.rsplit(' ').next().unwrap_or_default().clone_into(&mut self.process.address);
                Ok(())
            }
            None => {
                let seconds = PATIENCE.as_secs();
                let why = match self.process.child.try_wait()? {
                    Some(status) => format!("it ended: {status}"),
                    None => format!("it did not say so within {seconds} s; try again with FLEXLOG_LOG=info"),
                };
                Err(format!("`bench {}` does not serve: {why}", self.what).into())
            }
        }
    }

    /// The process, without waiting.
    pub(crate) fn into_process(self) -> Process {
        self.process
    }

    /// Waits until it serves.
    pub(crate) fn ready(mut self) -> Outcome<Process> {
        self.wait()?;
        Ok(self.process)
    }
}

/// A process that does what it is told, line by line.
pub(crate) struct Worker {
    starting: Starting,
    stdin: ChildStdin,
}

impl Worker {
    /// Starts this program with `args`.
    pub(crate) fn start(args: &[&str]) -> Outcome<Self> {
        let mut starting = Starting::of(args, Command::new(std::env::current_exe()?).args(args).stdin(Stdio::piped()))?;
        let stdin = starting.process.child.stdin.take().ok_or("a worker has no standard input")?;
        Ok(Self { starting, stdin })
    }

    /// Waits until it can be told something.
    pub(crate) fn ready(&mut self) -> Outcome<()> {
        self.starting.wait()
    }

    /// Has it begin something.
    pub(crate) fn begin(&mut self, what: &impl serde::Serialize) -> Outcome<()> {
        Ok(writeln!(self.stdin, "{}", serde_json::to_string(what)?)?)
    }

    /// What came of it.
    pub(crate) fn end<T: serde::de::DeserializeOwned>(&mut self) -> Outcome<T> {
        match self.starting.lines.recv_timeout(PATIENCE) {
            Ok(line) => Ok(serde_json::from_str(&line)?),
            Err(_) => Err(format!("`bench {}` gave no answer: its words are above", self.starting.what).into()),
        }
    }

    /// Its process.
    pub(crate) fn process(&self) -> &Process {
        &self.starting.process
    }
}

impl Process {
    /// Starts this program with `args`, and waits until it serves. It runs where the calling thread may run.
    pub(crate) fn start(args: &[&str]) -> Outcome<Self> {
        Starting::new(args)?.ready()
    }

    /// Starts a cluster with three replicas in `folder`.
    pub(crate) fn cluster(folder: &Path) -> Outcome<Self> {
        let folder = folder.to_str().ok_or("the folder's name is not UTF-8")?;
        Self::start(&["flexlog", "up", "--listen", "127.0.0.1:0", "--dir", folder])
    }

    /// Its number in the system.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end.
    pub(crate) fn ask_to_end(&self) -> Outcome<()> {
        if let Some(id) = Pid::from_raw(self.child.id().cast_signed()) {
            rustix::process::kill_process(id, rustix::process::Signal::TERM)?;
        }
        Ok(())
    }

    /// Waits until it has ended, as it was asked to.
    pub(crate) fn ended(mut self) -> Outcome<()> {
        let begin = Instant::now();
        while self.child.try_wait()?.is_none() {
            if begin.elapsed() > ENDING {
                return Err(
                    format!("process {} did not end within {} s of SIGTERM", self.id(), ENDING.as_secs()).into()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Binds the process's threads to some processors.
    pub(crate) fn bind(&self, cpus: &[usize]) -> Outcome<()> {
        bind_process(self.child.id(), cpus)
    }

    /// Bytes of memory that belong to the process alone.
    pub(crate) fn anonymous_bytes(&self) -> Outcome<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("no RssAnon in /proc")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib << 10)
    }

    /// Processor time that it has used.
    pub(crate) fn cpu_time(&self) -> Outcome<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // Behind the name, which may hold anything, fields 14 and 15 of the whole are user and system ticks.
        let fields = stat.rsplit_once(')').ok_or("no process in /proc")?.1;
        let ticks: u64 = fields.split_whitespace().skip(11).take(2).map(|field| field.parse().unwrap_or(0)).sum();
        Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
