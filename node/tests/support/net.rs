//! Network namespaces: one for each process of a cluster, joined by a bridge, so that each has an address of its own and can
//! be cut off from all others while it lives.
//!
//! Needs iproute2 and the right to make namespaces: `apt-get install iproute2`, and root.

use std::process::Command;

use super::{BINARY, skipped};

const CLIENT: &str = "client";

/// The namespaces. They go with this.
pub struct Net {
    /// Begins their names.
    prefix: String,
    names: Vec<String>,
}

fn ip(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(words).output().map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {}: {}", words.join(" "), said.trim())) }
}

impl Net {
    /// Of these processes, and of a client. `None`, said loudly, where the machine does not allow it.
    pub fn new(processes: &[&str]) -> Option<Self> {
        let names = processes.iter().copied().chain([CLIENT]).map(str::to_owned).collect();
        let net = Self { prefix: format!("flx{}", std::process::id()), names };
        let made = net.hub().and_then(|()| (0..net.names.len()).try_for_each(|place| net.join(place)));
        match made {
            Ok(()) => Some(net),
            Err(why) => {
                skipped(&format!("network namespaces cannot be made here: {why}"));
                None
            }
        }
    }

    /// Where a process listens, without a port.
    pub fn host(&self, process: &str) -> String {
        self.at(self.place(process))
    }

    /// All hosts, the client's too.
    pub fn hosts(&self) -> Vec<String> {
        (0..self.names.len()).map(|place| self.at(place)).collect()
    }

    fn at(&self, place: usize) -> String {
        format!("10.83.71.{}", place + 2)
    }

    fn place(&self, process: &str) -> usize {
        self.names.iter().position(|name| name == process).unwrap()
    }

    /// The name of a namespace.
    pub fn name(&self, of: &str) -> String {
        format!("{}-{of}", self.prefix)
    }

    fn hub(&self) -> Result<(), String> {
        let hub = self.name("hub");
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "add", "bridge", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "bridge", "up"])
    }

    fn join(&self, place: usize) -> Result<(), String> {
        let (hub, name) = (self.name("hub"), self.name(&self.names[place]));
        let port = format!("port{place}");
        ip(&["netns", "add", &name])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        ip(&["-n", &hub, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
        ip(&["-n", &hub, "link", "set", &port, "master", "bridge"])?;
        ip(&["-n", &hub, "link", "set", &port, "up"])?;
        ip(&["-n", &name, "address", "add", &format!("{}/24", self.at(place)), "dev", "eth0"])?;
        ip(&["-n", &name, "link", "set", "eth0", "up"])
    }

    /// Cuts a process off from all others (`down`), or joins it again (`up`).
    pub fn link(&self, process: &str, state: &str) {
        ip(&["-n", &self.name("hub"), "link", "set", &format!("port{}", self.place(process)), state]).unwrap();
    }

    /// A program in a process's namespace.
    pub fn command(&self, process: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(process), program]);
        command
    }

    /// `flexlog` in a process's namespace.
    pub fn flexlog(&self, process: &str, words: &[&str]) -> Command {
        let mut command = self.command(process, BINARY);
        command.args(words);
        command
    }

    /// Takes the calling thread into the client's namespace, for good.
    #[cfg(feature = "quic")]
    pub fn enter_client(&self) {
        use std::os::fd::AsFd as _;
        let file = std::fs::File::open(format!("/run/netns/{}", self.name(CLIENT))).unwrap();
        let kind = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind)).unwrap();
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in self.names.iter().map(String::as_str).chain(["hub"]) {
            // It may not have been made.
            let _ = ip(&["netns", "delete", &self.name(name)]);
        }
    }
}
