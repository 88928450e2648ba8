//! The core against a model of a shard whose members are on one node or on several, which come and go one by one, deliver
//! late, refuse, repeat themselves, move and close sessions, all at random: every append comes out once, with the number
//! it has on all members; what is said not to be appended is not, ever; and nothing is appended twice. Connections are
//! made only where the core wants them, and in the end it is asked for what to send only where it said that there is
//! something.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use flexlog_protocol::api::{AppendRefusal, Appended, Retention, ShardInfo};
use flexlog_protocol::limits::TOKEN_WINDOW;
use flexlog_protocol::{Append, Assign, Epoch, Lsn, ReplicaId, SessionId, Token, View, ViewNumber};

use super::*;

const MEMBERS: usize = 3;
const DEADLINE_MICROS: u64 = 2_000_000;

pub(super) fn shard_info(addresses: &[&str]) -> ShardInfo {
    let members: Vec<_> = (1..=addresses.len() as u32).map(ReplicaId).collect();
    let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
    ShardInfo { shard: ShardId(4), view: View { number: ViewNumber(1), members }, addresses }
}

/// A color on one shard with a member at each of these addresses.
pub(super) fn color_info(addresses: &[&str]) -> ColorInfo {
    let shards = vec![shard_info(addresses)];
    ColorInfo { color: Color(6), name: "c".into(), shards, owner: "root".into(), retention: Retention::default() }
}

/// Nodes, and at which of them each member is, in several ways.
const NODES: usize = 3;
const ADDRESSES: [&str; NODES] = ["home", "b", "c"];
const LAYOUTS: [[usize; MEMBERS]; 5] = [[0, 0, 0], [0, 1, 2], [1, 1, 2], [2, 0, 2], [2, 1, 0]];

type Fails = Result<(), TestCaseError>;

#[derive(Default)]
struct Member {
    inbox: VecDeque<(Arc<Append>, u64)>,
    staged: BTreeSet<Token>,
    /// How many entries of the log it has.
    applied: usize,
    lows: BTreeMap<SessionId, u64>,
}

/// The client, the shard, and what lies between them.
struct World {
    core: Core<u64, (), ()>,
    now: Time,
    layout: [usize; MEMBERS],
    connected: [bool; NODES],
    to_node: [VecDeque<Request>; NODES],
    to_client: [VecDeque<Answer>; NODES],
    /// Nodes that there may be something to send to.
    woken: BTreeSet<NodeId>,
    /// Sent over connections that are gone, and still on the way.
    late: Vec<(usize, Request)>,
    /// Whether the members' areas are full, more or less.
    full: bool,
    members: Vec<Member>,
    sessions: BTreeMap<Uuid, SessionId>,
    closed: BTreeSet<SessionId>,
    /// Appends by token, once anyone has them.
    appends: BTreeMap<Token, Arc<Append>>,
    log: Vec<Assign>,
    numbers: u32,
    lows: BTreeMap<SessionId, u64>,
    submitted: u64,
    outcomes: BTreeMap<u64, Result<SeqNum, AppendFailure>>,
}

fn job_of(append: &Append) -> u64 {
    let payload: [u8; 8] = append.records()[0].payload()[..8].try_into().unwrap();
    u64::from_be_bytes(payload)
}

impl World {
    fn new(layout: usize, faults: (bool, bool)) -> Self {
        let mut core = Core::new(Uuid::from_u128(99), &[ADDRESSES[0].to_owned()]);
        (core.one_answer_is_enough, core.old_refusals_count) = faults;
        let mut world = Self {
            layout: LAYOUTS[layout],
            core,
            now: Time(0),
            connected: [false; NODES],
            to_node: Default::default(),
            to_client: Default::default(),
            woken: BTreeSet::new(),
            late: Vec::new(),
            full: false,
            members: (0..MEMBERS).map(|_| Member::default()).collect(),
            sessions: BTreeMap::new(),
            closed: BTreeSet::new(),
            appends: BTreeMap::new(),
            log: Vec::new(),
            numbers: 0,
            lows: BTreeMap::new(),
            submitted: 0,
            outcomes: BTreeMap::new(),
        };
        world.tell_layout();
        world
    }

    /// The client learns where the members are.
    fn tell_layout(&mut self) {
        // As the home says it: what is there has no address.
        let addresses = self.layout.map(|node| if node == 0 { "" } else { ADDRESSES[node] });
        self.core.learn(NodeId::HOME, &color_info(&addresses));
        self.hear_bells();
    }

    fn hear_bells(&mut self) {
        let mut woken = Vec::new();
        self.core.take_woken(&mut woken);
        self.woken.extend(woken);
    }

    /// The core's name for a node.
    fn id(&self, node: usize) -> Option<NodeId> {
        self.core.wanted_nodes().find(|(_, address)| *address == ADDRESSES[node]).map(|(id, _)| id)
    }

    fn submit(&mut self, records: usize) {
        let record = |i: usize| {
            let mut payload = self.submitted.to_be_bytes().to_vec();
            payload.push(i as u8);
            Record::new(payload).unwrap()
        };
        let records: Vec<_> = (0..records).map(record).collect();
        if self.core.has_room(ShardId(4), open_cost(&records)) {
            let deadline = self.now.after(DEADLINE_MICROS);
            self.core.submit(ShardId(4), Job { color: Color(6), records, deadline, waiter: self.submitted });
            self.submitted += 1;
            self.hear_bells();
        }
    }

    fn send(&mut self, node: usize) -> Fails {
        let Some(id) = self.id(node) else { return Ok(()) };
        self.woken.remove(&id);
        let mut requests = Vec::new();
        self.core.take_requests(self.now, id, &mut requests);
        prop_assert!(self.connected[node] || requests.is_empty(), "sent without a connection");
        for request in &requests {
            if let Request::Append(append) = request {
                let there = |member: &ReplicaId| self.layout[member.0 as usize - 1] == node;
                prop_assert!(append.members.iter().all(there), "sent to where the member is not");
                let low = self.lows.entry(append.session).or_default();
                prop_assert!(append.low >= *low, "the low mark went back");
                *low = append.low;
                for one in &append.appends {
                    let seq = one.token().seq;
                    prop_assert!(seq >= append.low, "an append below the low mark");
                    prop_assert!(seq < append.low + TOKEN_WINDOW, "an append beyond the window");
                    prop_assert!(!self.outcomes.contains_key(&job_of(one)), "an append that is finished");
                }
            }
        }
        self.to_node[node].extend(requests);
        Ok(())
    }

    fn say(&mut self, node: usize, answer: Answer) {
        if self.connected[node] {
            self.to_client[node].push_back(answer);
        }
    }

    /// Says something about a member, by the node where that is.
    fn say_of(&mut self, member: usize, answer: Answer) {
        self.say(self.layout[member], answer);
    }

    fn node_takes_one(&mut self, node: usize) {
        if let Some(request) = self.to_node[node].pop_front() {
            self.node_takes(node, request);
        }
    }

    /// Something of an earlier connection arrives after all.
    fn node_takes_late(&mut self, chance: u16) {
        if !self.late.is_empty() {
            let (node, request) = self.late.remove(chance as usize % self.late.len());
            self.node_takes(node, request);
        }
    }

    fn node_takes(&mut self, node: usize, request: Request) {
        match request {
            Request::OpenSession { id, nonce, .. } => {
                let next = SessionId { epoch: Epoch(1), lsn: Lsn(self.sessions.len() as u64 + 1) };
                let session = *self.sessions.entry(nonce).or_insert(next);
                self.say(node, Answer::SessionOpened { id, session });
            }
            Request::Append(request) => {
                for member in &request.members {
                    let member = &mut self.members[member.0 as usize - 1];
                    member.inbox.extend(request.appends.iter().map(|append| (Arc::clone(append), request.low)));
                }
            }
            _ => {}
        }
    }

    /// A member looks at the next append that it was sent.
    fn member_takes_one(&mut self, which: usize, chance: u16) {
        let Some((append, low)) = self.members[which].inbox.pop_front() else { return };
        let token = append.token();
        let member = ReplicaId(which as u32 + 1);
        let refuse = |why| Answer::AppendRefused { token, member, why };
        let known = self.members[which].lows.entry(token.session).or_default();
        *known = low.max(*known);
        let low = *known;
        let entry = self.log.iter().position(|assign| assign.token == token);
        if let Some(entry) = entry.filter(|entry| *entry < self.members[which].applied) {
            self.tell(which, entry, false);
        } else if self.closed.contains(&token.session) {
            self.say_of(which, refuse(AppendRefusal::SessionExpired));
        } else if token.seq < low {
            self.say_of(which, refuse(AppendRefusal::TooOld));
        } else if entry.is_none() && !self.members[which].staged.contains(&token) {
            match chance % 8 {
                3..=7 if self.full => self.say_of(which, refuse(AppendRefusal::Full)),
                0 => self.say_of(which, refuse(AppendRefusal::Full)),
                1 => self.say_of(which, refuse(AppendRefusal::Busy)),
                2 if chance.is_multiple_of(5) => self.say_of(which, refuse(AppendRefusal::StorageFailed)),
                _ => {
                    self.members[which].staged.insert(token);
                    self.appends.insert(token, append);
                }
            }
        }
    }

    fn tell(&mut self, which: usize, entry: usize, settled: bool) {
        let appended = Appended {
            members: vec![ReplicaId(which as u32 + 1)],
            view: shard_info(&[""; MEMBERS]).view,
            settled,
            runs: vec![self.log[entry]],
        };
        self.say_of(which, Answer::Appended(appended));
    }

    /// The leaf has a token's records copied to the members that lack them.
    fn complete_one(&mut self, chance: u16) {
        let staged: Vec<_> = self.unassigned().collect();
        if !staged.is_empty() {
            let token = staged[chance as usize % staged.len()];
            for member in &mut self.members {
                member.staged.insert(token);
            }
        }
    }

    /// Staged somewhere, and not in the log.
    fn unassigned(&self) -> impl Iterator<Item = Token> + use<> {
        let assigned: BTreeSet<_> = self.log.iter().map(|assign| assign.token).collect();
        let all: BTreeSet<_> = self.members.iter().flat_map(|member| member.staged.iter().copied()).collect();
        all.into_iter().filter(move |token| !assigned.contains(token))
    }

    fn assign_one(&mut self, chance: u16) {
        let whole = |token: &Token| self.members.iter().all(|member| member.staged.contains(token));
        let ready: Vec<_> = self.unassigned().filter(whole).collect();
        if !ready.is_empty() {
            let token = ready[chance as usize % ready.len()];
            let append = &self.appends[&token];
            let first = SeqNum::new(Epoch(1), self.numbers);
            self.log.push(Assign::one(token, append.color(), first, append.count()));
            self.numbers += append.count();
        }
    }

    fn apply_one(&mut self, which: usize) {
        let entry = self.members[which].applied;
        if entry < self.log.len() {
            self.members[which].applied += 1;
            self.tell(which, entry, false);
        }
    }

    fn committed(&self) -> usize {
        self.members.iter().map(|member| member.applied).min().unwrap_or_default()
    }

    fn close_session(&mut self, chance: u16) {
        let open: Vec<_> = self.sessions.values().copied().filter(|session| !self.closed.contains(session)).collect();
        if !open.is_empty() {
            let session = open[chance as usize % open.len()];
            self.closed.insert(session);
            let dropped: Vec<_> = self.unassigned().filter(|token| token.session == session).collect();
            for member in &mut self.members {
                member.staged.retain(|token| !dropped.contains(token));
            }
        }
    }

    fn connect(&mut self, node: usize) {
        if !self.connected[node]
            && let Some(id) = self.id(node)
        {
            self.connected[node] = true;
            self.core.connected(id);
            self.hear_bells();
        }
    }

    fn cannot_connect(&mut self, node: usize) {
        if !self.connected[node]
            && let Some(id) = self.id(node)
        {
            self.core.unreachable(id);
            self.hear_bells();
        }
    }

    fn disconnect(&mut self, node: usize, chance: u16) {
        if self.connected[node]
            && let Some(id) = self.id(node)
        {
            self.connected[node] = false;
            self.core.disconnected(id);
            self.hear_bells();
            self.to_client[node].clear();
            // What was sent may be lost, or may still come.
            let left = chance as usize % (self.to_node[node].len() + 1);
            self.to_node[node].truncate(left);
            self.late.extend(self.to_node[node].drain(..).map(|request| (node, request)));
        }
    }

    /// The members are elsewhere from now on, and the client hears of it at once.
    fn move_members(&mut self, chance: u16) {
        self.layout = LAYOUTS[chance as usize % LAYOUTS.len()];
        self.tell_layout();
    }

    fn client_takes_one(&mut self, node: usize, repeat: bool) -> Fails {
        if let Some(answer) = self.to_client[node].pop_front() {
            // A refusal answers one sending, and says nothing of the next: members make each once.
            if repeat && matches!(answer, Answer::Appended(_)) {
                self.to_client[node].push_back(answer.clone());
            }
            let Some(id) = self.id(node) else {
                return Err(TestCaseError::fail("a connection is not wanted any more"));
            };
            self.core.answer(self.now, id, answer);
            // Whoever told it looks by himself.
            self.woken.insert(id);
            self.hear_bells();
            self.check_outcomes()?;
        }
        Ok(())
    }

    fn pass(&mut self, micros: u64) -> Fails {
        self.now = self.now.after(micros);
        self.core.tick(self.now);
        self.hear_bells();
        self.check_outcomes()
    }

    fn check_outcomes(&mut self) -> Fails {
        let mut outcomes = Outcomes::default();
        self.core.take_outcomes(&mut outcomes);
        for (job, outcome) in outcomes.appends {
            if let Ok(number) = &outcome {
                let committed = &self.log[..self.committed()];
                let found = committed.iter().any(|a| a.first == *number && job_of(&self.appends[&a.token]) == job);
                prop_assert!(found, "append {job} is said to be {number}, which is not on all members");
            }
            prop_assert!(self.outcomes.insert(job, outcome).is_none(), "append {job} came out twice");
        }
        Ok(())
    }

    fn step(&mut self, kind: u8, chance: u16) -> Fails {
        let which = chance as usize % MEMBERS;
        let node = chance as usize / 5 % NODES;
        match kind {
            0..=9 => self.submit(1 + chance as usize % 3),
            10..=19 => self.send(node)?,
            20..=29 => self.node_takes_one(node),
            30..=49 => self.member_takes_one(which, chance / 3),
            50..=55 => self.complete_one(chance),
            56..=67 => self.assign_one(chance),
            68..=87 => self.apply_one(which),
            88..=92 => {
                let committed = self.committed();
                if committed > 0 {
                    self.tell(which, chance as usize / 3 % committed, true);
                }
            }
            93..=112 => self.client_takes_one(node, chance.is_multiple_of(7))?,
            113..=116 => self.disconnect(node, chance / 15),
            117..=121 => self.connect(node),
            122..=126 => self.pass(u64::from(chance) * 5)?,
            127 => self.close_session(chance),
            128 => self.node_takes_late(chance),
            129 => self.cannot_connect(node),
            130 if chance.is_multiple_of(8) => self.move_members(chance / 8),
            _ => self.full = !self.full,
        }
        Ok(())
    }

    /// No more faults: everything that is under way arrives.
    fn settle(&mut self) -> Fails {
        for round in 0..400 {
            for node in 0..NODES {
                self.connect(node);
                if self.id(node).is_some_and(|id| self.woken.contains(&id)) {
                    self.send(node)?;
                }
                while !self.to_node[node].is_empty() {
                    self.node_takes_one(node);
                }
            }
            self.full = false;
            if round > 1 {
                while !self.late.is_empty() {
                    self.node_takes_late(0);
                }
            }
            for which in 0..MEMBERS {
                while !self.members[which].inbox.is_empty() {
                    self.member_takes_one(which, 7);
                }
            }
            // Whatever the leaf may still number, it numbers.
            while self.unassigned().next().is_some() {
                self.complete_one(0);
                self.assign_one(0);
            }
            for which in 0..MEMBERS {
                while self.members[which].applied < self.log.len() {
                    self.apply_one(which);
                }
            }
            for node in 0..NODES {
                while !self.to_client[node].is_empty() {
                    self.client_takes_one(node, false)?;
                }
            }
            self.pass(if round < 300 { 1_000 } else { 100_000 })?;
        }
        Ok(())
    }

    fn check_end(&self) -> Fails {
        prop_assert_eq!(self.core.open_appends(), 0);
        prop_assert_eq!(self.outcomes.len() as u64, self.submitted);
        let mut times: BTreeMap<u64, u32> = BTreeMap::new();
        for assign in &self.log {
            *times.entry(job_of(&self.appends[&assign.token])).or_default() += 1;
        }
        for (job, outcome) in &self.outcomes {
            let times = times.get(job).copied().unwrap_or_default();
            prop_assert!(times <= 1, "append {job} was numbered {times} times");
            match outcome {
                Ok(_) => prop_assert_eq!(times, 1),
                Err(why) if !why.is_outcome_unknown() => {
                    prop_assert_eq!(times, 0, "append {} is said not to be appended: {:?}", job, why);
                }
                Err(_) => {}
            }
        }
        Ok(())
    }
}

fn run(layout: usize, steps: &[(u8, u16)], faults: (bool, bool)) -> Fails {
    let mut world = World::new(layout, faults);
    for node in 0..NODES {
        world.connect(node);
    }
    for (kind, chance) in steps {
        world.step(*kind, *chance)?;
    }
    world.settle()?;
    world.check_end()
}

fn steps() -> impl Strategy<Value = (usize, Vec<(u8, u16)>)> {
    (0..LAYOUTS.len(), vec((0_u8..132, any::<u16>()), 0..600))
}

proptest! {
    #![proptest_config(Config { cases: 600, ..Config::default() })]
    #[test]
    fn every_append_comes_out_once_and_as_it_is((layout, steps) in steps()) {
        run(layout, &steps, (false, false))?;
    }
}

/// What the check above says of a core with a fault.
fn found(faults: (bool, bool)) -> String {
    let mut runner = TestRunner::new(Config { cases: 2000, failure_persistence: None, ..Config::default() });
    let found = runner.run(&steps(), |(layout, steps)| run(layout, &steps, faults));
    let Err(TestError::Fail(why, _)) = found else { panic!("not found: {found:?}") };
    why.to_string()
}

/// The check above can fail: a core that takes one member's word for all is found out.
#[test]
fn a_core_that_believes_one_member_is_found_out() {
    let why = found((true, false));
    assert!(why.contains("which is not on all members"), "{why}");
}

/// So is one that forgets, when one of several connections is lost, that something may still arrive over it.
#[test]
fn a_core_that_forgets_what_a_lost_connection_may_hold_is_found_out() {
    let why = found((false, true));
    assert!(
        why.contains("times") || why.contains("is said not to be appended") || why.contains("left == right"),
        "{why}"
    );
}
