//! The members of the shards, and the clients that append and ask there.

use std::collections::BTreeMap;
use std::sync::Arc;

use flexlog_protocol::peer::{Of, Range, Staged, ToLeaf, ToMember};
use flexlog_protocol::{Body, Color, Entry, Incarnation, Lsn, SeqNum, ShardId, Token};
use uuid::Uuid;

use super::{End, Message, OPEN_RECORDS, Shard, World};
use crate::checker::raise;
use crate::member::Member;

impl World {
    // ---- clients ----

    pub(super) fn append(&mut self, a: usize, b: usize) {
        let at = a % self.shards.len();
        let Some(session) = self.shards[at].session else { return };
        self.names += 1;
        let token = Token { shard: ShardId(at as u32), session, seq: self.names };
        let colors = &self.shape.shards[at].1;
        let color = colors[b % colors.len()];
        let staged = Staged { token, color, records: 1 + b as u32 / 16 % 3, digest: 0 };
        self.checker.floors.insert(token, self.checker.acknowledged.get(&color).copied().unwrap_or_default());
        self.shards[at].appends.push(staged);
        let members = self.shards[at].members.len();
        (0..members).filter(|member| b >> 6 >> member & 1 == 1).for_each(|member| self.stage(at, member, staged));
    }

    /// A copy of some append comes late.
    pub(super) fn send_again(&mut self, a: usize, b: usize) {
        let at = a % self.shards.len();
        let Shard { appends, members, .. } = &self.shards[at];
        if !appends.is_empty() {
            let recent = appends.len() - 1 - b % appends.len().min(4);
            self.stage(at, a / 16 % members.len(), appends[recent]);
        }
    }

    pub(super) fn stage(&mut self, at: usize, member: usize, staged: Staged) {
        let open = self.shards.iter().flat_map(|shard| &shard.members).flat_map(|member| &member.staged);
        let open: BTreeMap<_, _> = open.collect();
        let records: u32 = open.values().map(|staged| staged.records).sum();
        if records + staged.records > OPEN_RECORDS && !open.contains_key(&staged.token) {
            return;
        }
        if self.shards[at].members[member].stage(staged) {
            self.follow(at, member, staged.color);
            self.ask(at, member, ToLeaf::Persisted(vec![staged]));
        }
    }

    /// A member that cares for a wide color asks for its tail first, so that it is told its stable.
    fn follow(&mut self, at: usize, member: usize, color: Color) {
        if color.is_wide() && !self.shards[at].members[member].wide.contains_key(&color) {
            self.shards[at].members[member].wide.insert(color, SeqNum::MIN);
            self.names += 1;
            self.shards[at].asks.insert(self.names, (member, color, SeqNum::MIN));
            self.ask(at, member, ToLeaf::TailAsk { ask: self.names, color });
        }
    }

    fn ask(&mut self, at: usize, member: usize, message: ToLeaf) {
        let Some(message) = self.shards[at].members[member].say(message) else { return };
        // The process that it is sealed to, or the one that has the position by now.
        let holder = self.processes.iter().position(|process| process.me == message.leaf);
        let to = holder.unwrap_or(self.current[self.shards[at].position]);
        self.send(End::Member(at, member), End::Process(to), Message::ToLeaf(message));
    }

    pub(super) fn ask_tail(&mut self, a: usize, b: usize) {
        let at = a % self.shards.len();
        let member = a / 16 % self.shards[at].members.len();
        let colors = &self.shape.shards[at].1;
        let color = colors[b % colors.len()];
        self.follow(at, member, color);
        self.names += 1;
        let known = |map: &BTreeMap<Color, SeqNum>| map.get(&color).copied().unwrap_or_default();
        let least = known(&self.checker.acknowledged).max(known(&self.checker.tails));
        self.shards[at].asks.insert(self.names, (member, color, least));
        self.ask(at, member, ToLeaf::TailAsk { ask: self.names, color });
    }

    // ---- members ----

    pub(super) fn member_takes(&mut self, at: usize, place: usize, message: Of<ToMember>) -> Result<(), String> {
        let Of { leaf, message } = message;
        let sealed = self.shards[at].members[place].sealed;
        if let ToMember::Seal = message {
            if sealed.is_none_or(|sealed| sealed.epoch < leaf.epoch) {
                self.seal(at, place, leaf);
            }
            return Ok(());
        }
        if sealed != Some(leaf) {
            return Ok(());
        }
        let member = &mut self.shards[at].members[place];
        match message {
            ToMember::Entries { entries, commit } => {
                for entry in &entries {
                    self.shards[at].members[place].apply(entry)?;
                    self.applied(at)?;
                }
                if !entries.is_empty() {
                    let last = self.shards[at].members[place].last();
                    self.ask(at, place, ToLeaf::Acked(last));
                }
                if self.shards[at].settled < commit.0 as usize {
                    return Err(format!("I2: {commit} is said to be committed, but some member lacks it"));
                }
                let member = &mut self.shards[at].members[place];
                member.commit = commit.max(member.commit);
            }
            ToMember::Stable { upto: colors, .. } => {
                for (color, upto) in colors {
                    let own = member.log.iter().skip(member.commit.0 as usize);
                    if own.flat_map(|entry| numbers(entry, color)).any(|range| range.first < upto) {
                        return Err(format!("I6: stable of {color} covers numbers that are not committed here"));
                    }
                    raise(&mut member.wide, color, upto);
                }
            }
            ToMember::Complete { token, from } => {
                if let Some(staged) = member.staged.get(&token).copied() {
                    self.ask(at, place, ToLeaf::Persisted(vec![staged]));
                } else if let Some(staged) = self.shards[at].members[from.0 as usize].has(token) {
                    self.stage(at, place, staged);
                }
            }
            ToMember::Confirm { round } => self.ask(at, place, ToLeaf::Confirmed { round }),
            ToMember::Tail { ask, tail, .. } => {
                // A question asked again may be answered twice.
                let Some((_, color, least)) = self.shards[at].asks.remove(&ask) else { return Ok(()) };
                if tail < least {
                    return Err(format!("the tail of {color} is {tail}, was {least} before the question"));
                }
                raise(&mut self.checker.tails, color, tail);
                self.reached.tails += 1;
            }
            ToMember::Seal
            | ToMember::Conflict { .. }
            | ToMember::SessionRefused { .. }
            // Only to replicas that are no members: here all are, for good.
            | ToMember::Learn { .. } => {}
        }
        Ok(())
    }

    /// Reports to a new leaf; what was asked of the one before is asked again.
    fn seal(&mut self, at: usize, place: usize, leaf: Incarnation) {
        let report = self.shards[at].members[place].seal(leaf);
        self.ask(at, place, report);
        if self.shards[at].session.is_none() {
            self.ask(at, place, ToLeaf::OpenSession { nonce: Uuid::from_u128(at as u128) });
        }
        let asks = self.shards[at].asks.iter().filter(|(_, (member, ..))| *member == place);
        let asks: Vec<_> = asks.map(|(ask, (_, color, _))| (*ask, *color)).collect();
        asks.into_iter().for_each(|(ask, color)| self.ask(at, place, ToLeaf::TailAsk { ask, color }));
    }

    /// What all members have is settled, and its clients have their answers.
    fn applied(&mut self, at: usize) -> Result<(), String> {
        let shard = &mut self.shards[at];
        let on_all = shard.members.iter().map(Member::last).min().unwrap_or(Lsn(0)).0 as usize;
        let log: Vec<Arc<Entry>> = shard.members[0].log[shard.settled.min(on_all)..on_all].to_vec();
        shard.settled = on_all;
        for entry in log {
            if let Some(session) = self.checker.settled(at, &entry)? {
                self.shards[at].session = Some(session);
            }
            if let Body::Assign(runs) = &entry.body {
                runs.iter().for_each(|run| raise(&mut self.checker.acknowledged, run.color, run.end()));
            }
        }
        Ok(())
    }
}

/// The numbers of a color that an entry gives away.
fn numbers(entry: &Entry, of: Color) -> Vec<Range> {
    match &entry.body {
        Body::Assign(runs) => runs
            .iter()
            .filter(|run| run.color == of)
            .map(|run| Range { first: run.first, count: run.count() })
            .collect(),
        Body::Hole { color, first, count } if *color == of => vec![Range { first: *first, count: *count }],
        _ => Vec::new(),
    }
}
