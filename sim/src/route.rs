//! How messages get from one core to another, and what replicas want to where it belongs: the part that the node's engine has.
//! What leaves want is carried out next door, in `leading`, and what sequencers say to each other in `positions`.

use std::sync::Arc;

use flexlog_protocol::api::{Answer, AppendRefusal, Request};
use flexlog_protocol::media::LogStore;
use flexlog_protocol::peer::{FromParent, Of, PeerMessage, Staged, ToLeaf, ToMember};
use flexlog_protocol::{Body, Record, ReplicaId, SeqNum};
use flexlog_replica::{Damage, Input, Output};

use crate::bug::Bug;
use crate::invariants::{
    Violation, i02_on_every_member as i02, i03_settled_before_shown as i03, i05_stays_readable as i05,
    i09_old_incarnations as i09, i12_bounds, outside,
};
use crate::machine::{member_of, replica_id};
use crate::net::{Fetch, Packet, Stream};
use crate::world::{Owner, World};

/// Marks the name of a copy that mends something.
const MENDS: u64 = 1 << 63;

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
            (Stream::ToCounter { leaf, shard }, Packet::ToCounter(message)) => {
                self.deliver_to_counter(leaf, shard, message)
            }
            (Stream::Up { to, .. }, Packet::Up(message)) => self.deliver_up(to, message),
            (Stream::Down { to, .. }, Packet::Down(message)) => self.deliver_down(to, message),
            (Stream::FromCounter { leaf, shard }, Packet::FromCounter(mut message)) => {
                if let FromParent::Grant { ends: Some(end), .. } = &mut message
                    && self.is_bug(Bug::WrongEpochEnd)
                {
                    *end = SeqNum::new(end.epoch(), end.counter().saturating_sub(1));
                }
                match self.sequencer(leaf) {
                    Some(at) => self.leaf_input(at, shard, flexlog_sequencer::Input::Parent(message)),
                    None => Ok(()),
                }
            }
            (Stream::ToMetadata { .. }, packet @ Packet::ChangeView { .. }) => self.change_view(stream, packet),
            (Stream::FromMetadata { leaf, shard }, Packet::View(outcome)) => self.view_decided(leaf, shard, outcome),
            (Stream::Peer { from, to }, Packet::Peer(mut message)) => {
                if self.is_bug(Bug::MendsWithOtherBytes)
                    && let PeerMessage::Copied { copy, records, .. } = &mut message
                    && *copy & MENDS != 0
                    && let Ok(other) = Record::new("another")
                {
                    records.iter_mut().for_each(|(_, record)| *record = other.clone());
                }
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
            Request::OpenSession { id, nonce, .. } if self.is_bug(Bug::SessionToldEarly) => {
                let mut log = self.history.ledgers[at].log.iter();
                let entry = log.rfind(|entry| matches!(entry.body, Body::OpenSession { nonce: of } if of == nonce))?;
                let session = flexlog_protocol::SessionId { epoch: entry.epoch, lsn: entry.lsn };
                Some(Answer::SessionOpened { id, session })
            }
            Request::Tail { id, color } if self.is_bug(Bug::LocalTail) => {
                Some(Answer::Tail { id, tail: self.stable(at, color) })
            }
            _ => None,
        }
    }

    /// A planted fault: every member reports what it has numbered last once more.
    fn report_again(&mut self) {
        let Some(leaf) = self.leader(self.shape.shards[0].place).map(|at| self.sequencers[at].incarnation) else {
            return;
        };
        for at in self.shape.shards[0].replicas.clone() {
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
            if let ToMember::Entries { entries, .. } = &of.message
                && let Some(last) = entries.last()
                && self.is_bug(Bug::AcksOnArrival)
            {
                let acked = Of { leaf, message: ToLeaf::Acked(last.lsn) };
                self.push(Stream::ToLeaf { member: at, leaf: leaf.epoch }, Packet::ToLeaf(acked));
            }
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
                Output::Damaged(_) => {}
                // Of each record a member of each view has one that is whole.
                Output::Lost(damage) => return Err(i05::unreadable(&damage.why)),
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
            && self.history.of(at).view.contains(&at)
            && crate::shape::shard_of(token.shard) == self.history.home(at)
        {
            let closed = self.history.of(at).sessions.get(&token.session).is_none_or(|session| session.closed);
            return outside::denies(at, *token, closed);
        }
        Ok(())
    }

    fn push_peer(&mut self, from: usize, to: ReplicaId, message: PeerMessage) {
        self.push(Stream::Peer { from, to: member_of(to) }, Packet::Peer(message));
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
            Err(error) if records.is_empty() => self.rot_shown(error),
            // As in the engine: the one that cannot be read is met again, first, by the next fetch.
            _ => Ok(records),
        };
        Some(Input::Fetched { fetch, result })
    }
}
