//! Processes that are measured: this program again, as a server.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

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

/// Says that a server serves.
pub(crate) fn ready(address: &str) {
    let mut out = std::io::stdout().lock();
    // Whoever started it reads this, or has gone.
    let _ = writeln!(out, "ready {address}").and_then(|()| out.flush());
}

impl Process {
    /// Starts this program with `args`. It runs where the calling thread may run.
    pub(crate) fn start(args: &[&str]) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?).args(args).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            let mut stdout = BufReader::new(stdout);
            stdout.read_line(&mut line)?;
            std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        }
        match line.trim_end().strip_prefix("ready ") {
            Some(address) => Ok(Self { child, address: address.to_owned() }),
            None => Err(format!("the server `bench {}` did not start: {}", args.join(" "), child.wait()?).into()),
        }
    }

    /// Starts a cluster with three replicas in `folder`.
    pub(crate) fn cluster(folder: &Path) -> Outcome<Self> {
        let folder = folder.to_str().ok_or("the folder's name is not UTF-8")?;
        Self::start(&["flexlog", "up", "--listen", "127.0.0.1:0", "--dir", folder])
    }

    /// Binds the process's threads to some processors.
    pub(crate) fn bind(&self, cpus: &[usize]) -> Outcome<()> {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let id: i32 = task?.file_name().to_string_lossy().parse()?;
            sched_setaffinity(Pid::from_raw(id), &set)?;
        }
        Ok(())
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
