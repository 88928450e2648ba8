//! The end of a run: no more faults, everything that is under way comes to rest, and then everything is looked at.

use flexlog_protocol::{Color, SeqNum};

use crate::client::Client;
use crate::invariants::{Violation, i06_alike_below_stable as i06, i10_recovery, liveness};
use crate::machine::replica_id;
use crate::readers::Reader;
use crate::world::{Action, Owner, World};

/// Events in which a cluster without faults comes to rest.
const PATIENCE: u64 = 200_000;
/// How often clients send again what is not resolved.
const ROUNDS: usize = 60;
/// How often it is looked whether all replicas are in the view, and how much time passes in between: together longer
/// than a leaf ever leaves a replica alone.
pub(crate) const JOIN_ROUNDS: usize = 80;
pub(crate) const JOIN_MICROS: u64 = 1_000_000;
/// As often as long a member may have to ask again for what is damaged before it answers: an earlier question may have come
/// when the other did not know enough.
const MEND_ROUNDS: usize = 3;
/// Longer than a leaf waits for the last members to report a token.
const ROUND_MICROS: u64 = 60_000;

impl World {
    pub(crate) fn finale(&mut self) -> Result<(), Violation> {
        self.record(|| "no more faults".to_owned());
        let faults = std::mem::take(&mut self.config.faults);
        let rots = faults && self.kind.rots();
        let cut = !self.net.cuts.is_empty();
        self.net.end_stalls();
        for machine in &mut self.machines {
            (machine.down_until, machine.still_until) = (0, 0);
        }
        self.sequencers.iter_mut().for_each(|process| process.still_until = 0);
        if cut {
            (0..self.machines.len()).for_each(|at| self.comes_up(at));
        }
        // A folder that failed in the background may not have been noticed yet.
        if self.broken_stores || self.machines.iter().any(|machine| machine.armed) {
            self.power_cut();
        }
        self.machines.iter_mut().for_each(|machine| machine.disarm());
        self.resolve()?;
        self.join()?;
        self.look(rots)?;
        if faults && self.config.views && self.chooser.one_in(3) {
            self.lose_in_turns()?;
            self.resolve()?;
            self.join()?;
            self.audit()?;
        }
        if self.chooser.one_in(2) {
            self.power_cut();
            self.resolve()?;
            self.join()?;
            self.look(rots)?;
        }
        self.history.judge()
    }

    /// Looks at everything, and has mended what rotted, by whoever comes to it first: readers, or the scrub.
    fn look(&mut self, rots: bool) -> Result<(), Violation> {
        (0..if rots { 4 } else { 0 }).for_each(|_| self.bits_rot());
        if rots && self.chooser.one_in(2) {
            self.audit()?;
            self.mend_everything()
        } else {
            self.mend_everything()?;
            self.audit()
        }
    }

    /// Lets everything that is under way happen, until there is nothing.
    pub(crate) fn rest(&mut self) -> Result<(), Violation> {
        let mut options = Vec::new();
        let latest = self.history.event + PATIENCE;
        loop {
            if self.history.event > latest {
                return Err(liveness::stuck("the cluster does not come to rest"));
            }
            options.clear();
            self.inner_options(&mut options);
            self.leave_held(&mut options);
            let flushes = (0..self.sequencers.len()).map(|at| (Action::Flush(at), 2));
            let busy = !options.is_empty();
            if busy {
                options.extend(flushes);
                let due = (0..self.sequencers.len()).filter(|at| self.is_due(*at));
                options.extend(due.map(|at| (Action::TickLeaf(at), 2)));
                // Whoever was replaced learns it from metadata in the end. Until then it may be busy with a replica that
                // follows it still, for longer than anything here takes.
                if self.history.event > latest - PATIENCE / 2 {
                    let replaced = (0..self.sequencers.len()).filter(|at| self.is_replaced(*at));
                    options.extend(replaced.map(|at| (Action::Retire(at), 1)));
                }
                if let Some(action) = self.chooser.weighted(&options) {
                    self.act(action)?;
                }
                continue;
            }
            for at in 0..self.sequencers.len() {
                self.act(Action::Flush(at))?;
            }
            for at in 0..self.sequencers.len() {
                if self.is_due(at) {
                    self.act(Action::TickLeaf(at))?;
                    self.act(Action::Flush(at))?;
                }
            }
            self.inner_options(&mut options);
            self.leave_held(&mut options);
            if options.is_empty() {
                return Ok(());
            }
        }
    }

    /// Has clients and readers stay until each has its answers.
    fn resolve(&mut self) -> Result<(), Violation> {
        self.rest()?;
        self.join()?;
        for _ in 0..ROUNDS {
            let waiting = self.readers.iter().any(|reader| reader.open() > 0);
            let open = self.clients.iter().any(Client::waits);
            let leading = (0..self.sequencers.len()).filter(|at| !self.is_replaced(*at));
            let mut leaves = leading.flat_map(|at| &self.sequencers[at].leaves);
            let pending = leaves.any(|led| led.leaf.status().pending > 0);
            if !waiting && !open && !pending {
                return Ok(());
            }
            self.pass(ROUND_MICROS)?;
            for at in 0..self.clients.len() {
                if self.clients[at].waits() {
                    self.client_acts(at, true);
                    self.client_acts(at, true);
                }
            }
            if self.clients.iter_mut().any(|client| std::mem::take(&mut client.met_full)) {
                self.trim_everything();
            }
            self.rest()?;
        }
        self.unresolved()
    }

    /// Lets time pass. Whoever waits for it notices before anything else happens, as with a clock that does not jump.
    pub(crate) fn pass(&mut self, micros: u64) -> Result<(), Violation> {
        self.now = self.now.after(micros);
        for at in 0..self.sequencers.len() {
            if self.is_due(at) {
                self.act(Action::TickLeaf(at))?;
            }
        }
        Ok(())
    }

    /// Lets time pass until all replicas are in the view.
    fn join(&mut self) -> Result<(), Violation> {
        let mut last = String::new();
        for round in 0..JOIN_ROUNDS {
            match self.unjoined(&[]) {
                None => return Ok(()),
                Some(why) => last = why,
            }
            if round % 10 == 9 {
                // A store without room for what is to be copied.
                self.trim_everything();
            }
            self.pass(JOIN_MICROS)?;
            self.rest()?;
        }
        Err(liveness::stuck(format!("with every replica there, not all are in the view: {last}")))
    }

    /// What keeps a shard from having all its replicas but these in its view, if anything does.
    pub(crate) fn unjoined(&self, away: &[usize]) -> Option<String> {
        self.shape.shards.iter().enumerate().find_map(|(shard, of)| {
            let Some(led) = self.leader(of.place).and_then(|at| self.sequencers[at].led(shard)) else {
                return Some(format!("shard {shard} has no leaf"));
            };
            let (status, view) = (led.leaf.status(), led.leaf.view());
            let there = of.replicas.clone().filter(|at| !away.contains(at)).map(replica_id);
            let all = status.phase == "serving" && there.eq(view.members.iter().copied());
            (!all).then(|| format!("shard {shard}: {status:?}, view {view:?}"))
        })
    }

    fn unresolved(&self) -> Result<(), Violation> {
        if let Some(client) = self.clients.iter().find(|client| client.waits()) {
            let usage: Vec<_> = self.machines.iter().filter_map(|machine| machine.up()).map(usage).collect();
            return Err(liveness::stuck(format!("a client never has its answer: {}; {usage:?}", client.state())));
        }
        if let Some(reader) = self.readers.iter().find(|reader| reader.open() > 0) {
            return Err(liveness::stuck(format!("a reader never has its answer: {}", reader.state())));
        }
        // A token that members have different records for stays until its session ends.
        Ok(())
    }

    pub(crate) fn auditor(&mut self) -> usize {
        let at = self.readers.len();
        self.readers.push(Reader::auditor());
        self.readers[at].conn = Some(self.connect(Owner::Reader(at)));
        at
    }

    pub(crate) fn trim_everything(&mut self) {
        let at = self.auditor();
        let mut readers = std::mem::take(&mut self.readers);
        for shard in 0..self.shape.shards.len() {
            let member = self.history.shards[shard].view[0];
            for color in self.shape.shards[shard].colors.clone() {
                readers[at].ask_of(member, color, true, &mut self.outside());
            }
        }
        self.readers = readers;
    }

    /// Reads everything at every member, and compares.
    fn audit(&mut self) -> Result<(), Violation> {
        i10_recovery::committed_is_there(&self.history)?;
        let auditors: Vec<usize> = (0..self.machines.len()).map(|_| self.auditor()).collect();
        auditors.iter().for_each(|at| self.readers[*at].strict = true);
        // The tails come first: they tell a member in which epoch a color goes on.
        for look in [false, true] {
            let mut readers = std::mem::take(&mut self.readers);
            for (member, at) in auditors.iter().enumerate() {
                if look {
                    readers[*at].audit(member, &mut self.outside());
                } else {
                    for color in self.shape.shards[self.history.home(member)].colors.clone() {
                        readers[*at].ask_of(member, color, false, &mut self.outside());
                    }
                }
            }
            self.readers = readers;
            self.rest()?;
            for _ in 0..MEND_ROUNDS {
                if auditors.iter().any(|at| self.readers[*at].open() > 0) {
                    self.pass(JOIN_MICROS)?;
                    self.rest()?;
                }
            }
        }
        if let Some(at) = auditors.iter().find(|at| self.readers[**at].open() > 0) {
            return Err(liveness::stuck(format!("nobody answers {}", self.readers[*at].state())));
        }
        for (color, shards) in self.shape.colors.clone() {
            let all: Vec<usize> = shards.iter().flat_map(|shard| self.shape.shards[*shard].replicas.clone()).collect();
            let stables: Vec<_> = all.iter().map(|at| self.stable(*at, color)).collect();
            i06::level("stable", color, &stables)?;
            for shard in shards {
                let auditors = &auditors[self.shape.shards[shard].replicas.clone()];
                self.compare(auditors, color, stables[0])?;
            }
        }
        auditors.into_iter().for_each(|at| self.go(at));
        self.rest()?;
        self.check_bounds()
    }

    /// A reader that has no more questions.
    pub(crate) fn go(&mut self, at: usize) {
        if let Some(conn) = self.readers[at].conn {
            self.disconnect(conn);
        }
    }

    /// What members of one shard say of a color is alike, and all of it is told.
    fn compare(&mut self, auditors: &[usize], color: Color, stable: SeqNum) -> Result<(), Violation> {
        let mut heard: Vec<_> =
            auditors.iter().map(|at| self.readers[*at].heard.remove(&color).unwrap_or_default()).collect();
        heard.iter_mut().for_each(|answers| {
            answers.retain(|answer| !answer.starts_with("Delivered") && !answer.starts_with("Trimmed"));
            answers.sort_unstable();
        });
        i06::level("answers", color, &heard)?;
        for at in auditors {
            let upto = self.readers[*at].subscribed_upto();
            if let Some((_, upto)) = upto.iter().find(|(of, upto)| *of == color && *upto < stable) {
                return Err(liveness::stuck(format!("a subscriber to color {color} stays at {upto} of {stable}")));
            }
        }
        Ok(())
    }
}

fn usage(member: &crate::machine::Member) -> (u64, u64, u64) {
    use flexlog_protocol::media::LogStore;
    let usage = member.store.usage();
    (usage.segments, usage.staged_tokens, usage.records)
}
