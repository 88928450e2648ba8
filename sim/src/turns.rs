//! Replicas that are lost one after another, for good as far as the others know: the view without the first, then a new leaf
//! without one of those that are left. Where the view may not be smaller, the leaf has the first take the second's place before
//! it recovers. Nothing that was acknowledged is lost, and the shard goes on by itself.

use crate::finale::{JOIN_MICROS, JOIN_ROUNDS};
use crate::invariants::{Violation, liveness};
use crate::world::World;

/// How often a leaf looks, in a quarter of the time that a member is given each, before much time passes.
const LOOKS: usize = 8;

impl World {
    /// In each shard that has a third replica, two are lost in turns. Afterwards all are back.
    pub(crate) fn lose_in_turns(&mut self) -> Result<(), Violation> {
        let mut turns = Vec::new();
        for shard in self.shape.shards.clone() {
            let count = shard.replicas.len() as u64;
            // What was trimmed is not mended, but whoever takes the log over asks for it: with the others lost nobody has it whole.
            let whole = shard.replicas.clone().all(|at| self.history.ledgers[at].rot.is_none());
            if whole && count >= 3 && count > u64::from(shard.min_view) {
                let first = self.chooser.below(count);
                let second = (first + 1 + self.chooser.below(count - 1)) % count;
                turns.push((
                    shard.place,
                    shard.replicas.start + first as usize,
                    shard.replicas.start + second as usize,
                ));
            }
        }
        if turns.is_empty() || self.kind.fixed {
            return Ok(());
        }
        for (_, first, _) in &turns {
            self.loses(*first)?;
        }
        let away: Vec<usize> = turns.iter().map(|(_, first, _)| *first).collect();
        self.go_on_without(&away)?;
        // With the power gone everywhere, too, the one that is left may have given up what was trimmed, and not know that the
        // trim was committed: then nobody can copy its log, and the shard waits for the second.
        for (place, first, second) in &turns {
            self.position_dies(*place);
            self.loses(*second)?;
            self.machines[*first].down_until = 0;
        }
        let away: Vec<usize> = turns.iter().map(|(_, _, second)| *second).collect();
        self.go_on_without(&away)?;
        away.iter().for_each(|at| self.machines[*at].down_until = 0);
        self.counts.lost_in_turns += turns.len() as u64;
        Ok(())
    }

    fn loses(&mut self, at: usize) -> Result<(), Violation> {
        self.record(|| format!("replica {at} is lost"));
        let kill = self.chooser.one_in(2);
        self.end_one(at, kill)?;
        self.machines[at].down_until = u64::MAX;
        Ok(())
    }

    /// Lets time pass until every view has all replicas but these.
    fn go_on_without(&mut self, away: &[usize]) -> Result<(), Violation> {
        let at = self.auditor();
        let mut last = None;
        for _ in 0..JOIN_ROUNDS {
            last = self.unjoined(away);
            if last.is_none() {
                break;
            }
            // Whoever owes nothing is not missed: a tail needs a word of every member.
            let mut readers = std::mem::take(&mut self.readers);
            for shard in self.shape.shards.clone() {
                let up = shard.replicas.clone().find(|member| self.machines[*member].up().is_some());
                for color in shard.colors {
                    if let Some(member) = up {
                        readers[at].ask_of(member, color, false, &mut self.outside());
                    }
                }
            }
            self.readers = readers;
            self.pass(JOIN_MICROS)?;
            self.rest()?;
            // A leaf that has not looked for long takes nobody for dead.
            for _ in 0..LOOKS {
                self.pass(self.kind.replica_timeout / 4)?;
                self.rest()?;
            }
        }
        self.go(at);
        match last {
            None => Ok(()),
            Some(why) => Err(liveness::stuck(format!("without replicas {away:?} the others do not go on: {why}"))),
        }
    }
}
