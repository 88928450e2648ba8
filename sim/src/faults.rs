//! What goes wrong in a run, and how: only what the cluster must survive.

use flexlog_protocol::SeqNum;
use flexlog_replica::ConnId;
use flexlog_storage_pm::device::Fences;

use crate::bug::Bug;
use crate::invariants::Violation;
use crate::net::Stream;
use crate::positions::Seat;
use crate::schedule::Chooser;
use crate::world::World;
use crate::{Config, Happened};

/// One thing that can go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    PowerCut,
    PowerCutAndOlderImage,
    Kill,
    PowerCutOne,
    KillOne,
    LeafDies,
    /// Some positions' processes die together.
    PositionsDie,
    /// A process of a replica stands still for a while, and goes on.
    StandStill,
    /// Some processes do not hear from others for a while, or no more of each other.
    Partition,
    /// What is under way between two processes is lost, and they are told so.
    LoseStream,
    MetadataAway,
    /// Much time passes.
    Wait,
    ClaimAgain,
    Stall,
    BreakMedium,
    LongIdle,
    LoseConnection,
    /// Bits of settled records change on one machine's media.
    BitsRot,
    /// They do so on some of them while the power is gone everywhere.
    PowerCutAndRot,
}

/// How a run is: drawn once, so that runs differ in kind.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) fences: Fences,
    pub(crate) numbers_per_epoch: u32,
    pub(crate) colors: u64,
    pub(crate) payload: u64,
    /// A fault comes once in so many events.
    pub(crate) fault_every: u64,
    pub(crate) faults: Vec<(Fault, u64)>,
    /// The view stays as it is. Only then do some clients send different records under one token: a replica that joins may
    /// have others staged than those that were numbered, and an entry does not say which those are.
    pub(crate) fixed: bool,
    /// Replicas that are not in the first view.
    pub(crate) outside: usize,
    pub(crate) min_view: u32,
    /// After so many microseconds a member that owes something is dropped.
    pub(crate) replica_timeout: u64,
    /// How often stores are read through, beside the other things that happen: 0 for never before the end.
    pub(crate) scrubs: u64,
}

impl Kind {
    pub(crate) fn draw(chooser: &mut Chooser, config: Config) -> Self {
        let all = [
            (Fault::PowerCut, 4),
            (Fault::PowerCutAndOlderImage, 1),
            (Fault::Kill, 3),
            (Fault::PowerCutOne, 4),
            (Fault::KillOne, 4),
            (Fault::LeafDies, 2),
            (Fault::PositionsDie, if config.tree { 3 } else { 0 }),
            (Fault::StandStill, 4),
            (Fault::Partition, 6),
            (Fault::LoseStream, 4),
            (Fault::MetadataAway, 2),
            (Fault::Wait, 4),
            (Fault::ClaimAgain, 4),
            (Fault::Stall, 10),
            (Fault::BreakMedium, 4),
            (Fault::LongIdle, 2),
            (Fault::LoseConnection, 6),
        ];
        // A run in which some faults never come goes further in between than one that has all of them.
        let mut faults: Vec<_> = all.into_iter().filter(|_| !chooser.one_in(4)).collect();
        if !config.views {
            use Fault::{LoseStream, MetadataAway, Partition, StandStill};
            faults.retain(|(fault, _)| !matches!(fault, StandStill | Partition | LoseStream | MetadataAway));
        }
        let mut fences = if chooser.one_in(3) { Fences::AtOnce } else { Fences::WhenTold };
        match config.bug {
            Some(Bug::LyingFences) => fences = Fences::Lying,
            Some(Bug::OlderImage) => faults.push((Fault::PowerCutAndOlderImage, 6)),
            _ => {}
        }
        // Drawn apart: where nothing rots a seed is the run that it would be without.
        let mut apart = chooser.fork();
        let mut rot = vec![(Fault::BitsRot, 12), (Fault::PowerCutAndRot, 2)];
        rot.retain(|_| !apart.one_in(4));
        match config.bug {
            None => faults.extend(rot),
            Some(bug) if bug.is_of_rot() => faults.push((Fault::BitsRot, 20)),
            // It has its run for itself.
            Some(_) => {}
        }
        let members = config.members as u32;
        let fixed = chooser.one_in(5) || !config.views;
        let min_view = if fixed { members } else { chooser.pick(&[1, 2]).min(members) };
        Self {
            fixed,
            outside: if fixed { 0 } else { chooser.pick(&[0, 0, 1, 1, 2]) },
            min_view,
            // Longer than a leaf waits before it has a member get what that lacks.
            replica_timeout: chooser.pick(&[70_000, 150_000, 400_000]),
            fences,
            numbers_per_epoch: chooser.pick(&[20, 60, SeqNum::MAX_COUNT]),
            colors: chooser.between(1, 4),
            payload: chooser.pick(&[64, 200, 600]),
            // So many in a run, however long it is: a longer run is to go further in between.
            fault_every: chooser.pick(&[25, 60, 150, 400]) * (config.events / 3000).max(1),
            scrubs: if rots(&faults) { apart.pick(&[0, 0, 1, 2]) } else { 0 },
            faults,
        }
    }
}

impl Kind {
    /// Whether bits rot.
    pub(crate) fn rots(&self) -> bool {
        rots(&self.faults)
    }
}

fn rots(faults: &[(Fault, u64)]) -> bool {
    faults.iter().any(|(fault, _)| matches!(fault, Fault::BitsRot | Fault::PowerCutAndRot))
}

impl World {
    pub(crate) fn fault(&mut self, fault: Fault) -> Result<(), Violation> {
        let number = self.drawn_faults;
        self.drawn_faults += 1;
        if self.config.left_out.checked_shr(number).is_some_and(|rest| rest & 1 == 1) {
            return Ok(());
        }
        self.faults.push(Happened { number, event: self.history.event, what: format!("{fault:?}") });
        self.counts.faults += 1;
        match fault {
            Fault::PowerCut => self.power_cut(),
            Fault::PowerCutAndOlderImage => {
                self.power_cut();
                let at = self.chooser.below(self.machines.len() as u64) as usize;
                self.machines[at].swap_in_image();
            }
            Fault::Kill => self.kill()?,
            Fault::PowerCutOne | Fault::KillOne => {
                let at = self.chooser.below(self.machines.len() as u64) as usize;
                self.end_one(at, fault == Fault::KillOne)?;
                // Long enough to be dropped from the view, or not.
                let events = if self.chooser.one_in(2) { 40 } else { 1500 };
                self.machines[at].down_until = self.history.event + self.chooser.below(events);
            }
            Fault::StandStill => {
                let until = self.history.event + self.chooser.between(20, 700);
                if self.shape.is_tree() && !self.sequencers.is_empty() && self.chooser.one_in(3) {
                    let at = self.chooser.below(self.sequencers.len() as u64) as usize;
                    self.sequencers[at].still_until = until;
                } else {
                    let at = self.chooser.below(self.machines.len() as u64) as usize;
                    self.machines[at].still_until = until;
                }
            }
            Fault::Partition => self.partition(),
            Fault::LoseStream => self.lose_stream(),
            Fault::MetadataAway => self.net.away_until = self.history.event + self.chooser.between(20, 600),
            Fault::LeafDies => {
                let place = self.any_place();
                self.position_dies(place);
            }
            Fault::PositionsDie => {
                let place = self.any_place();
                // With those above it, or any others.
                let above: Vec<usize> = self.shape.above(place).collect();
                let all = above.len() > 2 && self.chooser.one_in(3);
                above.into_iter().take(if all { usize::MAX } else { 2 }).for_each(|place| self.position_dies(place));
                if self.chooser.one_in(3) {
                    let other = self.any_place();
                    self.position_dies(other);
                }
            }
            Fault::Wait => self.now = self.now.after(self.chooser.between(100_000, 7_000_000)),
            Fault::ClaimAgain => {
                let place = self.any_place();
                self.seats[place].needs_claim = true;
            }
            Fault::Stall => {
                let streams: Vec<_> = self.net.ready(self.history.event).map(|stream| (stream, 1)).collect();
                if let Some(stream) = self.chooser.weighted(&streams) {
                    let until = self.history.event + self.chooser.between(10, 300);
                    self.net.stall(stream, until);
                }
            }
            Fault::BreakMedium => {
                let at = self.chooser.below(self.machines.len() as u64) as usize;
                if !self.machines[at].armed {
                    self.machines[at].armed = true;
                    let machine = &self.machines[at];
                    match (self.chooser.below(7), &machine.ssd) {
                        (n @ (0 | 1), _) => machine.media.fail_fence(n + 1),
                        (5, Some(ssd)) => ssd.fail_sync(self.chooser.between(1, 4)),
                        (6, Some(ssd)) => ssd.fail_append(self.chooser.between(1, 4)),
                        (n, _) => machine.media.fail_write(n - 1),
                    }
                }
            }
            Fault::BitsRot => self.bits_rot(),
            Fault::PowerCutAndRot => {
                self.power_cut();
                (0..self.chooser.between(1, 6)).for_each(|_| self.bits_rot());
            }
            Fault::LongIdle => self.now = self.now.after(flexlog_protocol::limits::SESSION_IDLE_MICROS + 1_000_000),
            Fault::LoseConnection => {
                let conns: Vec<_> = self.conns.keys().map(|conn| (*conn, 1)).collect();
                if let Some(conn) = self.chooser.weighted(&conns) {
                    self.disconnect(conn);
                }
            }
        }
        Ok(())
    }

    /// Any position.
    fn any_place(&mut self) -> usize {
        let places = self.shape.places.len() as u64;
        if places > 1 { self.chooser.below(places) as usize } else { 0 }
    }

    /// The process that holds a position is gone, and another one will claim it.
    pub(crate) fn position_dies(&mut self, place: usize) {
        self.seats[place] = Seat { claimed: None, needs_claim: true };
        if let Some(last) = self.leader(place) {
            self.retire(last);
        }
    }

    /// The power is gone everywhere: no process is left, and of what was not fenced any part.
    pub(crate) fn power_cut(&mut self) {
        self.counts.crashes += 1;
        self.end_cluster();
        for at in 0..self.machines.len() {
            let seed = self.chooser.draw();
            // What lies in the place of a medium is not what it was written to.
            self.machines[at].swap_out_image();
            self.machines[at].power_cut(seed);
            self.history.ledgers[at].process_ended();
        }
        self.broken_stores = false;
    }

    /// The power is gone at one machine, and of what was not fenced some lines stay, as `kept` says.
    pub(crate) fn power_cut_but_for(&mut self, at: usize, kept: u64) {
        self.counts.crashes += 1;
        self.machines[at].power_cut_but_for(kept);
        self.history.ledgers[at].process_ended();
        self.lose_process(at);
        self.disconnect_readers();
    }

    /// `kill -9`: no process is left, the media are as written.
    fn kill(&mut self) -> Result<(), Violation> {
        self.counts.crashes += 1;
        self.end_cluster();
        self.broken_stores = false;
        (0..self.machines.len()).try_for_each(|at| self.kill_process(at))
    }

    fn kill_process(&mut self, at: usize) -> Result<(), Violation> {
        if let Some(upto) = self.machines[at].kill() {
            self.history.durable_upto(at, upto)?;
        }
        self.history.ledgers[at].process_ended();
        Ok(())
    }

    /// One machine is gone for a while, and comes back.
    pub(crate) fn end_one(&mut self, at: usize, kill: bool) -> Result<(), Violation> {
        self.counts.crashes += 1;
        if kill {
            self.kill_process(at)?;
        } else {
            let seed = self.chooser.draw();
            self.machines[at].swap_out_image();
            self.machines[at].power_cut(seed);
            self.history.ledgers[at].process_ended();
        }
        self.broken_stores = self.machines.iter().any(|m| m.up().is_some_and(|member| member.failed.is_some()));
        self.lose_process(at);
        self.disconnect_readers();
        Ok(())
    }

    fn end_cluster(&mut self) {
        self.sequencers.clear();
        self.relink.clear();
        self.reach.clear();
        self.replaced.clear();
        // What metadata was asked for may still be done.
        self.net.drop_streams(|stream| !matches!(stream, Stream::ToMetadata { .. }));
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        conns.into_iter().for_each(|conn| self.forget_connection(conn));
        self.seats.iter_mut().for_each(|seat| *seat = Seat { claimed: None, needs_claim: true });
        self.machines.iter_mut().for_each(|machine| machine.still_until = 0);
    }
}
