//! What leaves are told and what they want, carried out as the node's engine does it, with a look at everything on its way.

use std::sync::Arc;

use flexlog_protocol::peer::{Of, ToLeaf, ToMember, ToParent};
use flexlog_protocol::{Body, Entry, Epoch, Lsn, ReplicaId};
use flexlog_sequencer::{StopReason, ViewOutcome};

use crate::bug::Bug;
use crate::invariants::{
    Violation, i01_one_number_one_record as i01, i02_on_every_member as i02, i06_alike_below_stable as i06,
    i09_old_incarnations as i09,
};
use crate::machine::{member_of, replica_id};
use crate::net::{Packet, Stream};
use crate::shape::shard_id;
use crate::world::World;

impl World {
    pub(crate) fn deliver_to_leaf(&mut self, at: usize, leaf: Epoch, mut of: Of<ToLeaf>) -> Result<(), Violation> {
        let (from, shard) = (replica_id(at), self.history.home(at));
        let place = self.shape.shards[shard].place;
        // In one process every message goes to the leaf that is there now; it must see that it is not meant.
        for other in &mut self.sequencers {
            if other.incarnation.epoch == leaf || other.place != place {
                continue;
            }
            let Some(led) = other.led_mut(shard) else { continue };
            let mut outputs = Vec::new();
            let before = led.leaf.status();
            let input = flexlog_sequencer::Input::Member { from, message: of.clone() };
            led.leaf.handle(self.now, input, &mut outputs);
            let mut after = led.leaf.status();
            after.ignored = before.ignored;
            i09::unchanged("a leaf", &before, &after, &outputs)?;
        }
        let Some(sequencer) = self.sequencer(leaf) else { return Ok(()) };
        let replicas = self.shape.shards[shard].replicas.clone();
        if at == replicas.start + 1 && self.is_bug(Bug::ForgedReport) && matches!(of.message, ToLeaf::Persisted(_)) {
            let from = replica_id(replicas.start + 2);
            let input = flexlog_sequencer::Input::Member { from, message: of.clone() };
            self.leaf_input(sequencer, shard, input)?;
        }
        for from in self.forged(sequencer, shard, from, &of.message) {
            let input = flexlog_sequencer::Input::Member { from, message: of.clone() };
            self.leaf_input(sequencer, shard, input)?;
        }
        if self.is_bug(Bug::ReportsCutShort)
            && let ToLeaf::Sealed(report) = &mut of.message
            && report.entries.pop().is_some()
        {
            let before = Lsn(report.last.1.0 - 1);
            let ledger = &self.history.ledgers[at];
            let epoch = before.0.checked_sub(1).and_then(|at| ledger.log.get(at as usize)).map(|entry| entry.epoch);
            report.last = (epoch.unwrap_or_default(), before);
        }
        self.leaf_input(sequencer, shard, flexlog_sequencer::Input::Member { from, message: of })
    }

    /// Planted faults: as whose messages a leaf hears what a member says, besides.
    fn forged(&self, at: usize, shard: usize, from: ReplicaId, message: &ToLeaf) -> Vec<ReplicaId> {
        let Some(led) = self.sequencers[at].led(shard) else { return Vec::new() };
        let status = led.leaf.status();
        let members = match message {
            ToLeaf::Persisted(_) if self.is_bug(Bug::AskedAfterOne) => led.in_force(),
            ToLeaf::Confirmed { .. } if self.is_bug(Bug::ConfirmedByOne) => led.in_force(),
            ToLeaf::Acked(_) if self.is_bug(Bug::CommittedByOne) => led.in_force(),
            ToLeaf::Acked(_) if self.is_bug(Bug::NumbersBeforeNewView) && status.phase == "recovering" => {
                led.in_force()
            }
            ToLeaf::Acked(_) if self.is_bug(Bug::JoinsEarly) => {
                return status.learner.into_iter().filter(|learner| *learner != from).collect();
            }
            _ => Vec::new(),
        };
        members.into_iter().map(replica_id).filter(|member| *member != from).collect()
    }

    pub(crate) fn leaf_input(
        &mut self,
        at: usize,
        shard: usize,
        input: flexlog_sequencer::Input,
    ) -> Result<(), Violation> {
        let mut outputs = Vec::new();
        if let Some(led) = self.sequencers[at].led_mut(shard) {
            led.leaf.handle(self.now, input, &mut outputs);
        }
        self.route_leaf(at, shard, outputs)
    }

    /// The leaves of a process for which it is time.
    pub(crate) fn tick_leaves(&mut self, at: usize) -> Result<(), Violation> {
        let now = self.now;
        let leaves = self.sequencers[at].leaves.iter();
        let due = leaves.filter(|led| led.leaf.next_deadline().is_some_and(|at| at <= now)).map(|led| led.shard);
        let due: Vec<usize> = due.collect();
        due.into_iter().try_for_each(|shard| self.leaf_input(at, shard, flexlog_sequencer::Input::Tick))
    }

    pub(crate) fn flush(&mut self, at: usize) -> Result<(), Violation> {
        self.check_bounds()?;
        for shard in self.shape.places[self.sequencers[at].place].shards.clone() {
            let mut outputs = Vec::new();
            if let Some(led) = self.sequencers[at].led_mut(shard) {
                led.leaf.flush(&mut outputs);
            }
            self.route_leaf(at, shard, outputs)?;
        }
        if self.shape.is_tree() { self.flush_counter(at) } else { Ok(()) }
    }

    pub(crate) fn route_leaf(
        &mut self,
        at: usize,
        shard: usize,
        outputs: Vec<flexlog_sequencer::Output>,
    ) -> Result<(), Violation> {
        use flexlog_sequencer::Output;
        self.chooser.note(outputs.len() as u64);
        let incarnation = self.sequencers[at].incarnation;
        let leaf = incarnation.epoch;
        for output in outputs {
            match output {
                Output::Member { to, message } => {
                    if let ToMember::Entries { entries, commit } = &message.message {
                        self.leaf_writes(at, shard, entries)?;
                        i02::commits(&self.history, shard, *commit)?;
                    }
                    if let ToMember::Stable { upto: colors, .. } = &message.message {
                        colors.iter().for_each(|(color, upto)| i06::told_stable(&mut self.history, *color, *upto));
                    }
                    let member = member_of(to);
                    let lost = self.is_bug(Bug::LosesStream)
                        && member + 1 == self.machines.len()
                        && matches!(message.message, ToMember::Entries { .. })
                        && self.chooser.one_in(20);
                    if !lost {
                        self.push(Stream::ToMember { leaf, member }, Packet::ToMember(message));
                    }
                }
                Output::Parent(message) => {
                    if let ToParent::Order { color, count, .. } = &message
                        && !self.is_deposed(at, shard)
                        && let Some(led) = self.sequencers[at].led_mut(shard)
                    {
                        let members = led.in_force();
                        let since = led.since(&members);
                        let outstanding = led.outstanding.entry(*color).or_default();
                        *outstanding += u64::from(*count);
                        let numbers = (*count, *outstanding);
                        let log = (shard_id(shard), *color);
                        i02::asks(&self.history, (&members, &since), log, numbers, &led.numbered)?;
                    }
                    self.push(Stream::ToCounter { leaf, shard }, Packet::ToCounter(message));
                }
                Output::Serving => {}
                Output::ChangeView { from, to } => {
                    if let Some(led) = self.sequencers[at].led_mut(shard) {
                        led.doubt = Some(to.clone());
                    }
                    let wanted = Packet::ChangeView { by: incarnation, from, to };
                    self.push(Stream::ToMetadata { leaf, shard }, wanted);
                }
                Output::Stopped(StopReason::Deposed) => self.sequencers[at].over = true,
                // One that is replaced may find anything.
                Output::Stopped(_) if self.metadata.holders[self.sequencers[at].place] != Some(incarnation) => {
                    self.sequencers[at].over = true
                }
                Output::Stopped(reason) => {
                    self.stopped(&format!("the leaf of epoch {leaf} and shard {shard}"), &reason.to_string())?
                }
            }
        }
        Ok(())
    }

    /// Metadata is asked to change the view. Whoever asks does so again until it has an answer.
    pub(crate) fn change_view(&mut self, stream: Stream, packet: Packet) -> Result<(), Violation> {
        let (Stream::ToMetadata { leaf, shard }, Packet::ChangeView { by, from, to }) = (stream, packet.clone()) else {
            return Ok(());
        };
        let asks = self.sequencer(leaf).is_some();
        if asks && self.chooser.one_in(8) {
            self.push(stream, packet);
            return Ok(());
        }
        let before = self.metadata.views[shard].number;
        let always = self.is_bug(Bug::ViewWithoutCondition);
        let outcome = self.metadata.change_view(by, shard, &from, &to, always);
        if self.metadata.views[shard].number != before {
            self.counts.views += 1;
            self.counts.added += u64::from(to.members.len() > from.members.len());
            self.history.set_view(shard, to.members.iter().map(|id| member_of(*id)).collect())?;
        }
        if asks && self.chooser.one_in(4) {
            self.push(stream, packet);
        } else if asks {
            self.push(Stream::FromMetadata { leaf, shard }, Packet::View(outcome));
        }
        Ok(())
    }

    pub(crate) fn view_decided(&mut self, leaf: Epoch, shard: usize, outcome: ViewOutcome) -> Result<(), Violation> {
        let Some(at) = self.sequencer(leaf) else { return Ok(()) };
        let Some(led) = self.sequencers[at].led_mut(shard) else { return Ok(()) };
        if let Some(to) = led.doubt.take()
            && outcome == ViewOutcome::Applied
        {
            let before = &led.leaf.view().members;
            let joined = to.members.iter().filter(|id| !before.contains(id)).map(|id| member_of(*id));
            let joined: Vec<usize> = joined.collect();
            led.joined.extend(joined);
        }
        self.leaf_input(at, shard, flexlog_sequencer::Input::View(outcome))?;
        // A member that was dropped may be within reach all along.
        self.tell_reached(at)
    }

    /// Whether some member refuses what this leaf says: then it gets nothing committed, whatever it does.
    fn is_deposed(&self, at: usize, shard: usize) -> bool {
        let epoch = self.sequencers[at].incarnation.epoch;
        let ledgers = &self.history.ledgers[self.shape.shards[shard].replicas.clone()];
        ledgers.iter().any(|ledger| ledger.fence.is_some_and(|fence| fence.epoch > epoch))
    }

    /// A leaf sends entries: looks at those that it wrote itself and sends for the first time.
    fn leaf_writes(&mut self, at: usize, shard: usize, entries: &[Arc<Entry>]) -> Result<(), Violation> {
        let deposed = self.is_deposed(at, shard);
        let epoch = self.sequencers[at].incarnation.epoch;
        let Some(led) = self.sequencers[at].led_mut(shard) else { return Ok(()) };
        let members = led.in_force();
        // Who came later gets the records of what was asked for before by itself.
        let since = led.since(&members);
        for entry in entries {
            if entry.epoch != epoch || entry.lsn <= led.seen {
                continue;
            }
            led.seen = entry.lsn;
            match &entry.body {
                Body::Assign(runs) => {
                    for run in runs {
                        for (token, first) in run.each() {
                            if !deposed {
                                i01::has_no_number(&self.history, &members, token, first)?;
                            }
                            i02::numbers(&self.history, &since, token)?;
                            led.numbered.insert(token);
                        }
                        let outstanding = led.outstanding.entry(run.color).or_default();
                        *outstanding = outstanding.saturating_sub(u64::from(run.count()));
                    }
                }
                Body::Hole { color, count, .. } => {
                    let outstanding = led.outstanding.entry(*color).or_default();
                    *outstanding = outstanding.saturating_sub(u64::from(*count));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
