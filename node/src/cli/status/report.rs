//! What the processes of a cluster say, put together: who speaks for which position, shard and replica.

use std::collections::BTreeMap;

use flexlog_protocol::api::{
    LinkStatus, PositionInfo, PositionStatus, ReplicaStatus, ShardPlace, ShardStatus, Status, TreeInfo,
};
use flexlog_protocol::peer::{Child, Peer};
use flexlog_protocol::{Position, ReplicaId, ShardId};
use flexlog_tree_config::topology::Topology;

/// A process, and what it said.
pub(super) struct Process {
    /// Its name in the topology.
    pub(super) name: String,
    /// Where it was asked.
    pub(super) address: String,
    /// What it said first, or why it did not.
    pub(super) answer: Result<Status, String>,
    /// What it said a moment later.
    pub(super) later: Option<Status>,
}

impl Process {
    /// What it said last.
    pub(super) fn status(&self) -> Option<&Status> {
        self.later.as_ref().or(self.answer.as_ref().ok())
    }

    /// How fast something grows, per second; `None` without two samples.
    fn rate(&self, of: impl Fn(&Status) -> u64) -> Option<f64> {
        let (first, later) = (self.answer.as_ref().ok()?, self.later.as_ref()?);
        // One that was started again in between counts from the beginning.
        let micros = later.uptime_micros.checked_sub(first.uptime_micros).filter(|micros| *micros > 0)?;
        Some(of(later).saturating_sub(of(first)) as f64 * 1e6 / micros as f64)
    }
}

/// A cluster.
pub(super) struct Report {
    /// The one that was asked first, and answered, before all others.
    pub(super) processes: Vec<Process>,
    /// The cluster, as the first of them has it.
    pub(super) asked: Status,
}

/// The processes that may hold a position, the first one before its standbys: their names and addresses.
pub(super) fn processes_of(info: &PositionInfo) -> impl Iterator<Item = (String, String)> + '_ {
    let standbys = (1..).zip(&info.standbys);
    let standbys = standbys.map(|(number, address)| (Topology::standby_name(&info.name, number), address.clone()));
    std::iter::once((info.name.clone(), info.address.clone())).chain(standbys)
}

impl Report {
    /// The first of `processes` has answered.
    pub(super) fn new(processes: Vec<Process>) -> Self {
        let asked = processes.first().and_then(Process::status).cloned().unwrap_or_default();
        Self { processes, asked }
    }

    pub(super) fn tree(&self) -> &TreeInfo {
        &self.asked.tree
    }

    pub(super) fn is_one_process(&self) -> bool {
        self.tree().positions.iter().all(|position| position.address.is_empty())
    }

    fn statuses(&self) -> impl Iterator<Item = &Status> {
        self.processes.iter().filter_map(Process::status)
    }

    /// Why the process of this name does not answer, if it does not.
    pub(super) fn away(&self, name: &str) -> Option<&str> {
        let process = self.processes.iter().find(|process| process.name == name)?;
        process.answer.as_ref().err().map(String::as_str)
    }

    /// How a position is, and the numbers that it grants per second.
    pub(super) fn position(&self, position: Position) -> Option<(&PositionStatus, Option<f64>)> {
        let all = self.processes.iter().filter_map(|process| {
            let status = process.status()?.position.as_ref().filter(|status| status.position == position)?;
            Some((status, process.rate(|status| status.position.as_ref().map_or(0, |position| position.granted))))
        });
        // Its standbys are in no epoch.
        all.max_by_key(|(status, _)| status.epoch)
    }

    /// The process that holds a position, or where nobody does the first one that may: its name and address.
    pub(super) fn holder(&self, info: &PositionInfo) -> (String, String) {
        let holder = processes_of(info).find(|(_, address)| *address == info.holder);
        holder.unwrap_or_else(|| (info.name.clone(), info.address.clone()))
    }

    /// The processes that may hold a position and do not: their names and addresses, why one is away, and how it is.
    pub(super) fn standbys(&self, info: &PositionInfo) -> impl Iterator<Item = (String, String, Option<&str>, String)> {
        let (holder, _) = self.holder(info);
        processes_of(info).filter(move |(name, _)| *name != holder).map(move |(name, address)| {
            let away = self.away(&name);
            let process = self.processes.iter().find(|process| process.name == name);
            let status = process.and_then(Process::status).and_then(|status| status.position.as_ref());
            let state = match (away, status) {
                (Some(why), _) => format!("not reachable: {why}"),
                (None, Some(status)) if status.standby => "waiting".to_owned(),
                (None, Some(status)) if status.epoch.0 > 0 => self.state(info, status),
                (None, Some(_)) => "starting, or about to take over".to_owned(),
                (None, None) => "not known".to_owned(),
            };
            (name, address, away, state)
        })
    }

    /// How a shard is: as its leaf says, or where that is away, the replica that is furthest.
    pub(super) fn shard(&self, place: &ShardPlace) -> Option<&ShardStatus> {
        let found = self.statuses().filter_map(|status| {
            let leads = status.position.as_ref().is_some_and(|position| position.position == place.leaf);
            Some((leads, status.shards.iter().find(|shard| shard.shard == place.shard)?))
        });
        found.max_by_key(|(leads, shard)| (*leads, shard.epoch, shard.commit)).map(|(_, shard)| shard)
    }

    pub(super) fn replica(&self, replica: ReplicaId) -> Option<&ReplicaStatus> {
        let mut replicas = self.statuses().flat_map(|status| &status.shards).flat_map(|shard| &shard.replicas);
        replicas.find(|status| status.replica == replica)
    }

    pub(super) fn connections(&self) -> u64 {
        // What was opened to ask for this is no client.
        self.statuses().map(|status| status.connections.saturating_sub(1)).sum()
    }

    /// Appends, and how many come in a second. Each replica of a shard counts all of them.
    pub(super) fn appends(&self) -> (u64, Option<f64>) {
        let mut shards: BTreeMap<ShardId, (u64, Option<f64>)> = BTreeMap::new();
        for process in &self.processes {
            let Some(status) = process.status() else { continue };
            let Some(shard) = status.shards.iter().find(|shard| !shard.replicas.is_empty()) else { continue };
            let (appends, rate) = shards.entry(shard.shard).or_default();
            *appends = (*appends).max(status.appends);
            let theirs = process.rate(|status| status.appends);
            *rate = match (*rate, theirs) {
                (Some(a), Some(b)) => Some(a.max(b)),
                (a, b) => a.or(b),
            };
        }
        let rates = shards.values().filter_map(|(_, rate)| *rate);
        let rate = self.asked_twice().then(|| rates.sum());
        (shards.values().map(|(appends, _)| appends).sum(), rate)
    }

    fn asked_twice(&self) -> bool {
        self.processes.iter().any(|process| process.later.is_some())
    }

    /// The name of a process that a link leads to.
    pub(super) fn name_of(&self, peer: Peer) -> String {
        match peer {
            Peer::Replica(replica) => Topology::replica_name(replica),
            Peer::Position(position) => self.position_name(position),
        }
    }

    fn position_name(&self, position: Position) -> String {
        let found = self.tree().positions.iter().find(|info| info.position == position);
        found.map_or_else(|| format!("position {position}"), |info| info.name.clone())
    }

    /// Those whom a position waits for, by their names.
    pub(super) fn awaited(&self, status: &PositionStatus) -> Vec<String> {
        let name = |child: &Child| match child {
            Child::Position(position) => self.position_name(*position),
            Child::Shard(shard) => format!("shard {shard}"),
        };
        status.awaited.iter().map(name).collect()
    }

    /// What a position does, in words, its epoch first.
    pub(super) fn state(&self, info: &PositionInfo, status: &PositionStatus) -> String {
        let epoch = status.epoch;
        if epoch.0 == 0 {
            return "starting: it has not claimed its position yet".to_owned();
        }
        if info.epoch > epoch {
            return format!(
                "epoch {epoch}, replaced: another process has claimed the position with epoch {}",
                info.epoch
            );
        }
        let awaited = self.awaited(status).join(", ");
        let mut words = match (status.serving, awaited.is_empty()) {
            (true, true) => format!("epoch {epoch}, serving"),
            (true, false) => format!("epoch {epoch}, serving, waits for {awaited} again"),
            (false, false) => format!("epoch {epoch}, waits for {awaited}"),
            (false, true) => format!("epoch {epoch}, its shards recover"),
        };
        if let Some(parent) = info.parent
            && status.parent_epoch.is_none()
        {
            words.push_str(&format!(", not joined to {}", self.position_name(parent)));
        }
        words
    }

    /// Links that are down although both ends answer: who, to whom, how.
    pub(super) fn broken_links(&self) -> impl Iterator<Item = (&str, String, &LinkStatus, &str)> {
        self.processes.iter().flat_map(move |process| {
            let links = process.status().map(|status| status.links.as_slice()).unwrap_or_default();
            links.iter().filter_map(move |link| {
                let to = self.name_of(link.peer);
                let down = link.down.as_deref()?;
                self.away(&to).is_none().then_some((process.name.as_str(), to, link, down))
            })
        })
    }

    /// Whether all is as it is meant to be.
    pub(super) fn is_healthy(&self) -> bool {
        let position = |info: &PositionInfo| {
            self.position(info.position).is_some_and(|(status, _)| {
                let joined = info.parent.is_none() || status.parent_epoch.is_some();
                status.serving && status.awaited.is_empty() && joined && info.epoch <= status.epoch
            })
        };
        let shard = |place: &ShardPlace| {
            let replicas = place.view.members.iter();
            self.shard(place).is_some_and(|shard| shard.state == "serving")
                && replicas.map(|replica| self.replica(*replica)).all(|status| status.is_some_and(|s| s.state == "ok"))
        };
        let tree = self.tree();
        tree.stale.is_none()
            && self.processes.iter().all(|process| process.answer.is_ok())
            && tree.positions.iter().all(position)
            && tree.shards.iter().all(shard)
    }
}
