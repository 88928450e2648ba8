//! How messages get from one core to another, and outputs to where they belong: the part that the node's engine has.

use std::collections::BTreeMap;
use std::sync::Arc;

use flexlog_protocol::api::{Answer, AppendRefusal, Request};
use flexlog_protocol::media::LogStore;
use flexlog_protocol::peer::{FromParent, Of, PeerMessage, Staged, ToLeaf, ToMember, ToParent};
use flexlog_protocol::{Body, Entry, Epoch, Lsn, ReplicaId, SeqNum};
use flexlog_replica::{Damage, Input, Output};
use flexlog_sequencer::{StopReason, ViewOutcome, tree};

use crate::bug::Bug;
use crate::invariants::{
    Violation, i01_one_number_one_record as i01, i02_on_every_member as i02, i03_settled_before_shown as i03,
    i09_old_incarnations as i09, i12_bounds, outside,
};
use crate::machine::{SHARD, member_of, replica_id};
use crate::net::{Fetch, Packet, Stream};
use crate::world::{Owner, World};

impl World {
    pub(crate) fn push(&mut self, stream: Stream, packet: Packet) {
        self.record(|| format!("         {stream:?}: {packet:?}"));
        self.net.push(stream, packet);
    }

    /// Takes the next message out of a stream to whom it is for.
    pub(crate) fn deliver(&mut self, stream: Stream) -> Result<(), Violation> {
        let Some(packet) = self.net.pop(stream) else { return Ok(()) };
        match (stream, packet) {
            (Stream::ToMember { member, .. }, Packet::ToMember(of)) => self.deliver_to_member(member, of),
            (Stream::ToLeaf { member, leaf }, Packet::ToLeaf(of)) => self.deliver_to_leaf(member, leaf, of),
            (Stream::ToCounter { leaf }, Packet::ToCounter(message)) => {
                self.deliver_to_counter(leaf, message);
                Ok(())
            }
            (Stream::FromCounter { leaf }, Packet::FromCounter(mut message)) => {
                if let FromParent::Grant { ends: Some(end), .. } = &mut message
                    && self.is_bug(Bug::WrongEpochEnd)
                {
                    *end = SeqNum::new(end.epoch(), end.counter().saturating_sub(1));
                }
                match self.sequencer(leaf) {
                    Some(at) => self.leaf_input(at, flexlog_sequencer::Input::Parent(message)),
                    None => Ok(()),
                }
            }
            (Stream::ToMetadata { .. }, packet @ Packet::ChangeView { .. }) => self.change_view(stream, packet),
            (Stream::FromMetadata { leaf }, Packet::View(outcome)) => self.view_decided(leaf, outcome),
            (Stream::Peer { from, to }, Packet::Peer(message)) => {
                self.member_input(to, Input::Peer { from: replica_id(from), message })
            }
            (Stream::Request { conn, .. }, Packet::Disconnected) => {
                let Stream::Request { member, .. } = stream else { return Ok(()) };
                self.member_input(member, Input::Disconnected(conn))
            }
            (Stream::Request { conn, member }, _) if self.member(member).is_none() => {
                // Nobody is there to talk to. A client has other members, and goes on.
                if matches!(self.conns.get(&conn), Some(Owner::Reader(_))) {
                    self.disconnect(conn);
                }
                Ok(())
            }
            (Stream::Request { conn, member }, Packet::Request(request)) => {
                match self.answered_wrongly(member, &request) {
                    Some(answer) => self.push(Stream::Answer { member, conn }, Packet::Answer(answer)),
                    None => self.member_input(member, Input::Request { from: conn, request })?,
                }
                Ok(())
            }
            (Stream::Request { conn, member }, Packet::Append(request)) => {
                let input = Input::Append { from: conn, request: Arc::clone(&request) };
                let Some(mut outputs) = self.handle(member, input) else { return Ok(()) };
                if self.is_bug(Bug::SilentRefusal) {
                    outputs.retain(|output| {
                        !matches!(output, Output::Answer { answer: Answer::AppendRefused { .. }, .. })
                    });
                }
                // One that is outside knows nothing of sessions.
                if self.member(member).is_some_and(|member| member.failed.is_none() && member.outside.is_none()) {
                    i12_bounds::told(&self.history, member, &request, &outputs)?;
                }
                self.route_member(member, outputs)
            }
            (Stream::Answer { conn, .. }, Packet::Answer(answer)) => self.deliver_answer(conn, answer),
            (Stream::Store { member }, Packet::Store(input)) => {
                if let Input::StageRefused(token) = &input {
                    self.history.ledgers[member].refused.remove(token);
                }
                self.member_input(member, input)
            }
            (Stream::Fetch { member }, Packet::Fetch(fetch)) => {
                let input = match fetch {
                    Fetch::Found(input) => Some(input),
                    wanted => self.read(member, &wanted),
                };
                input.map_or(Ok(()), |input| self.member_input(member, input))
            }
            _ => Ok(()),
        }
    }

    fn deliver_answer(&mut self, conn: flexlog_replica::ConnId, answer: Answer) -> Result<(), Violation> {
        match self.conns.get(&conn) {
            Some(Owner::Client(at)) => {
                let before = self.history.acknowledged;
                let broken = self.ever_broken;
                self.clients[*at].answer(answer, broken, &mut self.history)?;
                if self.history.acknowledged > before && self.is_bug(Bug::ReportedAgain) {
                    self.report_again();
                }
                Ok(())
            }
            Some(Owner::Reader(at)) => self.readers[*at].answer(answer, &mut self.history),
            None => Ok(()),
        }
    }

    /// What the planted faults answer in a member's place.
    fn answered_wrongly(&self, at: usize, request: &Request) -> Option<Answer> {
        match *request {
            Request::Read { id, color, number, .. } if self.is_bug(Bug::UncommittedRead) => {
                let mut found = Vec::new();
                let upto = number.plus(1)?;
                self.member(at)?.store.read_through(color, number, upto, 1, 1, &mut found).ok()?;
                let (number, record) = found.pop()?;
                Some(Answer::Record { id, number, record })
            }
            Request::Tail { id, color } if self.is_bug(Bug::LocalTail) => {
                Some(Answer::Tail { id, tail: self.stable(at, color) })
            }
            _ => None,
        }
    }

    /// A planted fault: every member reports what it has numbered last once more.
    fn report_again(&mut self) {
        let Some(leaf) = self.sequencers.last().map(|sequencer| sequencer.incarnation) else { return };
        for at in 0..self.machines.len() {
            let Some((token, written)) = self.history.ledgers[at].staged.iter().next_back() else { continue };
            let append = &written.append;
            let (token, color, records, digest) = (*token, append.color(), append.count(), append.digest());
            let message = ToLeaf::Persisted(vec![Staged { token, color, records, digest }]);
            let stream = Stream::ToLeaf { member: at, leaf: leaf.epoch };
            self.push(stream, Packet::ToLeaf(Of { leaf, message }));
        }
    }

    // ---- members ----

    fn deliver_to_member(&mut self, at: usize, mut of: Of<ToMember>) -> Result<(), Violation> {
        let Some(member) = self.machines[at].up_mut() else { return Ok(()) };
        let leaf = of.leaf;
        let heeded = if matches!(of.message, ToMember::Seal) {
            let news = member.sealing.is_none_or(|newest| newest.epoch < leaf.epoch);
            // One that has stopped promises nothing any more.
            if news && member.replica.summary().stopped.is_none() {
                member.sealing = Some(leaf);
                member.follows = None;
            }
            news || member.sealing == Some(leaf)
        } else {
            member.follows == Some(leaf)
        };
        let follows = member.follows;
        if let Some(follows) = follows
            && self.is_bug(Bug::OldLeafSpeaksAsNew)
        {
            of.leaf = follows;
        }
        if heeded {
            if let ToMember::Learn { from, .. } = &of.message
                && *from != replica_id(at)
            {
                self.machines[at].up_mut().into_iter().for_each(|member| member.outside = Some(u64::MAX));
            }
            return self.member_input(at, Input::Leaf(of));
        }
        let before = self.member(at).map(|member| member.replica.summary());
        let Some(outputs) = self.handle(at, Input::Leaf(of)) else { return Ok(()) };
        let after = self.member(at).map(|member| member.replica.summary());
        i09::unchanged(&format!("member {at}"), &before, &after, &outputs)
    }

    fn handle(&mut self, at: usize, input: Input) -> Option<Vec<Output>> {
        let now = self.now;
        let member = self.machines[at].up_mut()?;
        let mut outputs = Vec::new();
        member.replica.handle(now, input, &mut outputs);
        self.chooser.note(outputs.len() as u64);
        Some(outputs)
    }

    pub(crate) fn member_input(&mut self, at: usize, input: Input) -> Result<(), Violation> {
        match self.handle(at, input) {
            Some(outputs) => self.route_member(at, outputs),
            None => Ok(()),
        }
    }

    fn route_member(&mut self, at: usize, outputs: Vec<Output>) -> Result<(), Violation> {
        for output in outputs {
            match output {
                Output::Persist(what) => self.write(at, what)?,
                Output::Fetch { fetch, color, from, upto, max_records, max_bytes } => {
                    let wanted = Fetch::Wanted { fetch, color, from, upto, max_records, max_bytes };
                    // A disk may read later than it was asked to.
                    let fetch = if self.chooser.one_in(2) {
                        wanted
                    } else {
                        self.read(at, &wanted).map_or(wanted, Fetch::Found)
                    };
                    self.push(Stream::Fetch { member: at }, Packet::Fetch(fetch));
                }
                Output::FetchPrev { fetch, color, upto } => {
                    let Some(found) = self.member(at).map(|member| member.store.prev_through(color, upto)) else {
                        continue;
                    };
                    let result = found.map(Vec::from_iter).map_err(Damage::from);
                    let found = Fetch::Found(Input::Fetched { fetch, result });
                    self.push(Stream::Fetch { member: at }, Packet::Fetch(found));
                }
                Output::FetchStaged { token, to } => {
                    let staged = self.member(at).map(|member| member.store.read_staged(token));
                    let message = match staged {
                        Some(Ok(Some(append))) => PeerMessage::Pulled(Arc::new(append)),
                        _ => PeerMessage::NotHere { token },
                    };
                    self.push_peer(at, to, message);
                }
                Output::Trim { color, upto } => {
                    let upto = if self.is_bug(Bug::TrimsOneMore) { upto.plus(1).unwrap_or(upto) } else { upto };
                    if let Some(member) = self.machines[at].up_mut() {
                        member.store.trim(color, upto);
                        member.may_have_work = true;
                    }
                    self.history.ledgers[at].trims.insert(color, upto);
                }
                Output::DropStaged(tokens) => {
                    if let Some(member) = self.machines[at].up_mut() {
                        member.store.drop_staged(&tokens);
                    }
                    self.history.ledgers[at].dropped.extend(tokens);
                }
                Output::ToLeaf(of) => self.member_says(at, of)?,
                Output::ToPeer { to, message } => self.push_peer(at, to, message),
                Output::Answer { to, answer } => {
                    self.check_answer(at, &answer)?;
                    if self.conns.contains_key(&to) {
                        self.push(Stream::Answer { member: at, conn: to }, Packet::Answer(answer));
                    }
                }
                Output::Damaged(_) | Output::Lost(_) => {}
                Output::Stopped(why) => {
                    self.stopped(&format!("member {at}"), &why)?;
                    if let Some(member) = self.machines[at].up_mut() {
                        member.failed.get_or_insert(why);
                    }
                }
            }
        }
        Ok(())
    }

    /// One that is outside serves nobody, and no member denies a session that is open.
    fn check_answer(&mut self, at: usize, answer: &Answer) -> Result<(), Violation> {
        let Some(member) = self.machines[at].up() else { return Ok(()) };
        let (copied, upto) = (member.outside, member.replica.commit().0);
        let log = &self.history.ledgers[at].log;
        let views = log.iter().rev().skip_while(|entry| entry.lsn.0 > upto).filter_map(|entry| match &entry.body {
            Body::NewView(view) => Some((entry.lsn.0, view)),
            _ => None,
        });
        let is_in =
            |copied: u64| views.take(1).any(|(lsn, view)| lsn > copied && view.members.contains(&replica_id(at)));
        let is_outside = copied.is_some_and(|copied| !is_in(copied));
        outside::answers(at, is_outside, answer)?;
        if let Answer::Appended(appended) = answer
            && !appended.settled
        {
            for (token, first) in appended.runs.iter().flat_map(flexlog_protocol::Assign::each) {
                i03::member_tells(&self.history, at, token, first)?;
            }
        }
        if let Answer::AppendRefused { token, why: AppendRefusal::SessionExpired, .. } = answer
            && self.history.view.contains(&at)
        {
            let closed = self.history.sessions.get(&token.session).is_none_or(|session| session.closed);
            return outside::denies(at, *token, closed);
        }
        Ok(())
    }

    fn push_peer(&mut self, from: usize, to: ReplicaId, message: PeerMessage) {
        if let Some(to) = (0..self.machines.len()).find(|at| replica_id(*at) == to) {
            self.push(Stream::Peer { from, to }, Packet::Peer(message));
        }
    }

    fn member_says(&mut self, at: usize, of: Of<ToLeaf>) -> Result<(), Violation> {
        match &of.message {
            ToLeaf::Sealed(report) => {
                i09::seals(&self.history, at, of.leaf, report)?;
                if let Some(member) = self.machines[at].up_mut() {
                    member.follows = Some(of.leaf);
                }
            }
            ToLeaf::Persisted(list) => i02::reports_staged(&self.history, at, list)?,
            ToLeaf::Acked(lsn) => i02::acknowledges(&self.history, at, *lsn)?,
            ToLeaf::Learned { upto } => {
                i02::has_all(&self.history, at, *upto)?;
                self.machines[at].up_mut().into_iter().for_each(|member| member.outside = Some(upto.0));
            }
            ToLeaf::OpenSession { .. }
            | ToLeaf::CloseSession { .. }
            | ToLeaf::Trim { .. }
            | ToLeaf::TailAsk { .. }
            | ToLeaf::Confirmed { .. }
            | ToLeaf::Learning => {}
        }
        self.push(Stream::ToLeaf { member: at, leaf: of.leaf.epoch }, Packet::ToLeaf(of));
        Ok(())
    }

    fn read(&self, at: usize, wanted: &Fetch) -> Option<Input> {
        let Fetch::Wanted { fetch, color, from, upto, max_records, max_bytes } = *wanted else { return None };
        let mut records = Vec::new();
        let read = self.member(at)?.store.read_through(color, from, upto, max_records, max_bytes, &mut records);
        let result = match read {
            Err(error) if records.is_empty() => Err(Damage::from(error)),
            // As in the engine: the one that cannot be read is met again, first, by the next fetch.
            _ => Ok(records),
        };
        Some(Input::Fetched { fetch, result })
    }

    // ---- leaves and counters ----

    pub(crate) fn sequencer(&self, leaf: Epoch) -> Option<usize> {
        self.sequencers.iter().position(|sequencer| sequencer.incarnation.epoch == leaf)
    }

    fn deliver_to_leaf(&mut self, at: usize, leaf: Epoch, mut of: Of<ToLeaf>) -> Result<(), Violation> {
        let from = replica_id(at);
        // In one process every message goes to the leaf that is there now; it must see that it is not meant.
        for other in 0..self.sequencers.len() {
            if self.sequencers[other].incarnation.epoch == leaf {
                continue;
            }
            let sequencer = &mut self.sequencers[other];
            let mut outputs = Vec::new();
            let before = sequencer.leaf.status();
            let input = flexlog_sequencer::Input::Member { from, message: of.clone() };
            sequencer.leaf.handle(self.now, input, &mut outputs);
            let mut after = sequencer.leaf.status();
            after.ignored = before.ignored;
            i09::unchanged("a leaf", &before, &after, &outputs)?;
        }
        let Some(sequencer) = self.sequencer(leaf) else { return Ok(()) };
        if at == 1 && self.is_bug(Bug::ForgedReport) && matches!(of.message, ToLeaf::Persisted(_)) {
            let input = flexlog_sequencer::Input::Member { from: replica_id(2), message: of.clone() };
            self.leaf_input(sequencer, input)?;
        }
        for from in self.forged(sequencer, from, &of.message) {
            let input = flexlog_sequencer::Input::Member { from, message: of.clone() };
            self.leaf_input(sequencer, input)?;
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
        self.leaf_input(sequencer, flexlog_sequencer::Input::Member { from, message: of })
    }

    /// Planted faults: as whose messages a leaf hears what a member says, besides.
    fn forged(&self, at: usize, from: ReplicaId, message: &ToLeaf) -> Vec<ReplicaId> {
        let status = self.sequencers[at].leaf.status();
        let members = match message {
            ToLeaf::Persisted(_) if self.is_bug(Bug::AskedAfterOne) => self.sequencers[at].in_force(),
            ToLeaf::Acked(_) if self.is_bug(Bug::CommittedByOne) => self.sequencers[at].in_force(),
            ToLeaf::Acked(_) if self.is_bug(Bug::NumbersBeforeNewView) && status.phase == "recovering" => {
                self.sequencers[at].in_force()
            }
            ToLeaf::Acked(_) if self.is_bug(Bug::JoinsEarly) => {
                return status.learner.into_iter().filter(|learner| *learner != from).collect();
            }
            _ => Vec::new(),
        };
        members.into_iter().map(replica_id).filter(|member| *member != from).collect()
    }

    fn deliver_to_counter(&mut self, leaf: Epoch, message: ToParent) {
        let Some(at) = self.sequencer(leaf) else { return };
        let mut outputs = Vec::new();
        if let Some(counter) = &mut self.sequencers[at].counter {
            counter.handle(tree::Input::Shard { from: SHARD, message }, &mut outputs);
            counter.flush(&mut outputs);
        }
        self.route_counter(at, outputs);
    }

    pub(crate) fn route_counter(&mut self, at: usize, outputs: Vec<tree::Output>) {
        let leaf = self.sequencers[at].incarnation.epoch;
        for output in outputs {
            match output {
                tree::Output::Shard { message, .. } => {
                    self.push(Stream::FromCounter { leaf }, Packet::FromCounter(message));
                }
                // An old leaf's epoch is nobody's concern.
                tree::Output::EpochFull => self.needs_claim |= at + 1 == self.sequencers.len(),
                // There is one position, and it is the root.
                tree::Output::Serving | tree::Output::Child { .. } | tree::Output::Parent(_) => {}
            }
        }
    }

    pub(crate) fn leaf_input(&mut self, at: usize, input: flexlog_sequencer::Input) -> Result<(), Violation> {
        let mut outputs = Vec::new();
        self.sequencers[at].leaf.handle(self.now, input, &mut outputs);
        self.route_leaf(at, outputs)
    }

    pub(crate) fn flush(&mut self, at: usize) -> Result<(), Violation> {
        let mut outputs = Vec::new();
        self.sequencers[at].leaf.flush(&mut outputs);
        self.check_bounds()?;
        self.route_leaf(at, outputs)
    }

    pub(crate) fn route_leaf(&mut self, at: usize, outputs: Vec<flexlog_sequencer::Output>) -> Result<(), Violation> {
        use flexlog_sequencer::Output;
        self.chooser.note(outputs.len() as u64);
        let incarnation = self.sequencers[at].incarnation;
        let leaf = incarnation.epoch;
        for output in outputs {
            match output {
                Output::Member { to, message } => {
                    if let ToMember::Entries { entries, commit } = &message.message {
                        self.leaf_writes(at, entries)?;
                        i02::commits(&self.history, *commit)?;
                    }
                    let Some(member) = (0..self.machines.len()).find(|at| replica_id(*at) == to) else { continue };
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
                        && !self.is_deposed(at)
                    {
                        let sequencer = &mut self.sequencers[at];
                        let members = sequencer.in_force();
                        let since = sequencer.since(&members);
                        let outstanding = sequencer.outstanding.entry(*color).or_default();
                        *outstanding += u64::from(*count);
                        let numbers = (*count, *outstanding);
                        i02::asks(&self.history, (&members, &since), *color, numbers, &sequencer.numbered)?;
                    }
                    self.push(Stream::ToCounter { leaf }, Packet::ToCounter(message));
                }
                Output::Serving => {
                    // A limit this low must have room for all that is staged already, as the real one does: else no epoch
                    // is ever long enough.
                    let staged: BTreeMap<_, _> =
                        self.history.ledgers.iter().flat_map(|ledger| &ledger.staged).collect();
                    let waiting = staged.iter().filter(|(token, _)| !self.history.tokens.contains_key(token));
                    let records: u32 = waiting.map(|(_, written)| written.append.count()).sum();
                    let limit = self.kind.numbers_per_epoch.max(records + 20);
                    let counter = self.sequencers[at].counter.take();
                    self.sequencers[at].counter = counter.map(|counter| counter.with_limit(limit));
                }
                Output::ChangeView { from, to } => {
                    self.sequencers[at].doubt = Some(to.clone());
                    let wanted = Packet::ChangeView { by: incarnation, from, to };
                    self.push(Stream::ToMetadata { leaf }, wanted);
                }
                Output::Stopped(StopReason::Deposed) => self.sequencers[at].over = true,
                // One that is replaced may find anything.
                Output::Stopped(_) if self.metadata.holder != Some(incarnation) => self.sequencers[at].over = true,
                Output::Stopped(reason) => self.stopped(&format!("the leaf of epoch {leaf}"), &reason.to_string())?,
            }
        }
        Ok(())
    }

    /// Metadata is asked to change the view. Whoever asks does so again until it has an answer.
    fn change_view(&mut self, stream: Stream, packet: Packet) -> Result<(), Violation> {
        let (Stream::ToMetadata { leaf }, Packet::ChangeView { by, from, to }) = (stream, packet.clone()) else {
            return Ok(());
        };
        let asks = self.sequencer(leaf).is_some();
        if asks && self.chooser.one_in(8) {
            self.push(stream, packet);
            return Ok(());
        }
        let before = self.metadata.view.number;
        let always = self.is_bug(Bug::ViewWithoutCondition);
        let outcome = self.metadata.change_view(by, &from, &to, always);
        if self.metadata.view.number != before {
            self.counts.views += 1;
            self.counts.added += u64::from(to.members.len() > from.members.len());
            self.history.set_view(to.members.iter().map(|id| member_of(*id)).collect())?;
        }
        if asks && self.chooser.one_in(4) {
            self.push(stream, packet);
        } else if asks {
            self.push(Stream::FromMetadata { leaf }, Packet::View(outcome));
        }
        Ok(())
    }

    fn view_decided(&mut self, leaf: Epoch, outcome: ViewOutcome) -> Result<(), Violation> {
        let Some(at) = self.sequencer(leaf) else { return Ok(()) };
        let sequencer = &mut self.sequencers[at];
        if let Some(to) = sequencer.doubt.take()
            && outcome == ViewOutcome::Applied
        {
            let before = &sequencer.leaf.view().members;
            let joined = to.members.iter().filter(|id| !before.contains(id)).map(|id| member_of(*id));
            sequencer.joined.extend(joined);
        }
        self.leaf_input(at, flexlog_sequencer::Input::View(outcome))?;
        // A member that was dropped may be within reach all along.
        self.tell_reached(at)
    }

    /// Whether some member refuses what this leaf says: then it gets nothing committed, whatever it does.
    fn is_deposed(&self, at: usize) -> bool {
        let epoch = self.sequencers[at].incarnation.epoch;
        self.history.ledgers.iter().any(|ledger| ledger.fence.is_some_and(|fence| fence.epoch > epoch))
    }

    /// A leaf sends entries: looks at those that it wrote itself and sends for the first time.
    fn leaf_writes(&mut self, at: usize, entries: &[Arc<Entry>]) -> Result<(), Violation> {
        let deposed = self.is_deposed(at);
        let members = self.sequencers[at].in_force();
        // Who came later gets the records of what was asked for before by itself.
        let since = self.sequencers[at].since(&members);
        for entry in entries {
            let sequencer = &mut self.sequencers[at];
            if entry.epoch != sequencer.incarnation.epoch || entry.lsn <= sequencer.seen {
                continue;
            }
            sequencer.seen = entry.lsn;
            match &entry.body {
                Body::Assign(runs) => {
                    for run in runs {
                        for (token, first) in run.each() {
                            if !deposed {
                                i01::has_no_number(&self.history, &members, token, first)?;
                            }
                            i02::numbers(&self.history, &since, token)?;
                            sequencer.numbered.insert(token);
                        }
                        let outstanding = sequencer.outstanding.entry(run.color).or_default();
                        *outstanding = outstanding.saturating_sub(u64::from(run.count()));
                    }
                }
                Body::Hole { color, count, .. } => {
                    let outstanding = sequencer.outstanding.entry(*color).or_default();
                    *outstanding = outstanding.saturating_sub(u64::from(*count));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
