//! The member itself: its state, how it starts, and which part handles what.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use flexlog_protocol::api::RequestId;
use flexlog_protocol::media::Recovered;
use flexlog_protocol::peer::{Of, Staged, ToLeaf};
use flexlog_protocol::{
    Color, Entry, Incarnation, Lsn, ReplicaId, SeqNum, SessionId, ShardId, Time, Token, ViewNumber, limits,
};
use rustc_hash::{FxHashMap, FxHashSet};
use uuid::Uuid;

use crate::checkpoint;
use crate::color::ColorState;
use crate::following::Origin;
use crate::learning::{CopyAsk, Learning};
use crate::log::ShardLog;
use crate::mending::Mend;
use crate::message::{ConnId, Input, Output, Persist, RestoreError, Summary};
use crate::readers::{Ask, Readers};
use crate::session::{Session, Slot, SlotState};

/// One opening of a store has so many names, as a power of two: more than it can use.
const NAMES_BITS: u32 = 40;

/// A write that is not durable yet.
#[derive(Debug)]
pub(crate) enum Pending {
    Stage(Token),
    Entry(Lsn),
    Fence(Incarnation),
    Copy,
    Checkpoint(Lsn),
    /// Nobody waits for it.
    Other,
}

/// What a fetch is for.
#[derive(Debug)]
pub(crate) enum FetchFor {
    Ask {
        ask: Ask,
        number: SeqNum,
        again: bool,
    },
    /// What only the store can tell, below `upto`.
    Search {
        ask: Ask,
        upto: SeqNum,
    },
    Subscription {
        from: ConnId,
        id: RequestId,
        upto: SeqNum,
    },
    /// For a learner.
    Copy {
        to: ReplicaId,
        copy: u64,
        color: Color,
        from: SeqNum,
        upto: SeqNum,
    },
    /// For a member that lacks an append which is numbered here.
    Pull {
        to: ReplicaId,
        token: Token,
        color: Color,
        records: u32,
    },
}

/// One member of one shard.
#[derive(Debug)]
pub struct Replica {
    pub(crate) id: ReplicaId,
    pub(crate) shard: ShardId,
    /// The newest incarnation that asked for a seal; nothing older is heeded.
    pub(crate) sealing: Option<Incarnation>,
    /// That incarnation, once the fence for it is durable and reported.
    pub(crate) leaf: Option<Incarnation>,
    pub(crate) log: ShardLog,
    pub(crate) sessions: FxHashMap<SessionId, Session>,
    pub(crate) nonces: FxHashMap<Uuid, SessionId>,
    /// The connection that answers to a session's appends go to.
    pub(crate) connections: FxHashMap<SessionId, ConnId>,
    /// Clients that wait for a session.
    pub(crate) opening: FxHashMap<Uuid, Vec<(ConnId, RequestId)>>,
    pub(crate) colors: FxHashMap<Color, ColorState>,
    /// Wide colors whose tail the leaf was asked only so that it follows them, and has not told yet how far they are settled.
    pub(crate) asked: FxHashSet<Color>,
    /// Where the log ended when it was sealed, or how far the leaf followed now has told it to be committed since.
    pub(crate) commit_told: Lsn,
    /// How far it said wide colors to be settled, as long as not all is committed here that it told before.
    pub(crate) stables: BTreeMap<Color, SeqNum>,
    pub(crate) readers: Readers,
    pub(crate) fetches: FxHashMap<u64, FetchFor>,
    pub(crate) next_fetch: u64,
    /// What is damaged here, until another member has sent it.
    pub(crate) mends: Vec<Mend>,
    /// Writes that are not durable yet, oldest first; the first of them is number `durable + 1`.
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) durable: u64,
    /// Appends that the leaf had this member ask another one for.
    pub(crate) pulling: FxHashSet<Token>,
    pub(crate) staged_bytes: u64,
    pub(crate) max_staged_bytes: u64,
    pub(crate) staged_tokens: usize,
    pub(crate) stopped: Option<String>,
    /// It is no member as far as it knows, and serves nobody.
    pub(crate) outside: bool,
    /// Since it has reported last, it was sent what follows on that: before, what comes may be for an earlier report.
    pub(crate) in_step: bool,
    /// The number of the view that was in force before the next `NewView`.
    pub(crate) view_before: Option<ViewNumber>,
    pub(crate) learning: Option<Learning>,
    pub(crate) next_copy: u64,
    /// Learners that wait until this member knows enough to be committed.
    pub(crate) copy_asks: Vec<CopyAsk>,
    /// Entries that wait for records, the first of them or one before it.
    pub(crate) blocked: VecDeque<Arc<Entry>>,
    /// When their records are asked for again, and how often they were.
    pub(crate) ask_again: Option<(Time, usize)>,
    /// Appends that another member got from here and that are not committed yet.
    pub(crate) gave: FxHashSet<Token>,
}

impl Replica {
    /// A member that starts from what its store holds. Returns what it has to tell the store first.
    ///
    /// # Errors
    /// When the store's contents are not a replica's.
    pub fn restore(id: ReplicaId, shard: ShardId, recovered: Recovered) -> Result<(Self, Vec<Output>), RestoreError> {
        let state = match &recovered.checkpoint {
            Some((upto, bytes)) => checkpoint::decode(*upto, bytes)?,
            None => checkpoint::State::default(),
        };
        let view_before = state.view.as_ref().map(|view| view.number);
        let mut replica = Self {
            id,
            shard,
            sealing: recovered.fence,
            leaf: None,
            log: ShardLog::restore(state.last, state.view, state.runs),
            nonces: state.sessions.iter().map(|(id, session)| (session.nonce, *id)).collect(),
            sessions: state.sessions,
            connections: FxHashMap::default(),
            opening: FxHashMap::default(),
            colors: state.colors,
            asked: FxHashSet::default(),
            commit_told: Lsn(0),
            stables: BTreeMap::new(),
            readers: Readers::default(),
            fetches: FxHashMap::default(),
            next_fetch: 0,
            mends: Vec::new(),
            pending: VecDeque::new(),
            durable: 0,
            pulling: FxHashSet::default(),
            staged_bytes: 0,
            max_staged_bytes: limits::MAX_STAGED_BYTES,
            staged_tokens: 0,
            stopped: None,
            outside: false,
            in_step: false,
            view_before,
            learning: None,
            next_copy: 0,
            copy_asks: Vec::new(),
            blocked: VecDeque::new(),
            ask_again: None,
            gave: FxHashSet::default(),
        };
        let mut out = Vec::new();
        for (color, state) in &replica.colors {
            if let Some(upto) = state.trim_point() {
                out.push(Output::Trim { color: *color, upto });
            }
        }
        for entry in recovered.entries {
            replica.take_entry(&Arc::new(entry), Origin::Store).map_err(RestoreError)?;
        }
        replica.log.persisted_upto(replica.log.last().1);
        // One that went down while it learned is as much outside as before.
        let view = replica.log.view_at(replica.log.last().1);
        replica.outside = view.is_some_and(|view| !view.members.contains(&id));
        let mut orphans = Vec::new();
        for staged in recovered.staged {
            let Staged { token, color, records, digest } = staged;
            match replica.sessions.get_mut(&token.session) {
                Some(session) if session.get(token.seq).is_none() => {
                    // Its size is not known without reading it; what matters is that it is counted as a token.
                    session.put(token.seq, Slot { color, records, digest, bytes: 0, state: SlotState::Staged });
                    replica.staged_tokens += 1;
                }
                // Its number was copied from another member, and the crash came before it was dropped.
                Some(_) | None => orphans.push(token),
            }
        }
        if !orphans.is_empty() {
            out.push(Output::DropStaged(orphans));
        }
        Ok((replica, out))
    }

    /// The same member, holding at most so many bytes of clients' appends staged, or [`limits::MAX_STAGED_BYTES`] if that
    /// is less.
    ///
    /// Members may hold different appends when their stores are full, and each must still have room for those of all
    /// others: so this is at most the size of the store divided by twice the number of members.
    #[must_use]
    pub fn with_staged_limit(self, bytes: u64) -> Self {
        Self { max_staged_bytes: bytes.min(limits::MAX_STAGED_BYTES), ..self }
    }

    /// The same member, whose store was opened `opened` times. It names its questions from there on: an answer that was meant
    /// for the process before must not be taken for one to a question of this one.
    #[must_use]
    pub fn opened(mut self, opened: u64) -> Self {
        let first = opened << NAMES_BITS;
        self.readers.name_from(first);
        (self.next_copy, self.next_fetch) = (first, first);
        self
    }

    /// When to be told [`Input::Tick`], if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let again = self.ask_again.map(|(at, _)| at);
        self.readers.next_deadline().into_iter().chain(again).chain(self.mends_at()).min()
    }

    /// The member in numbers.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            last: self.log.last().1,
            commit: self.log.commit(),
            view: self.log.view().map(|view| view.number).unwrap_or_default(),
            epoch: self.leaf.map(|leaf| leaf.epoch).unwrap_or_default(),
            sessions: self.sessions.len() as u64,
            colors: self.colors.len() as u64,
            staged: self.staged_tokens as u64,
            stopped: self.stopped.clone(),
        }
    }

    /// The colors that it knows, in no order.
    pub fn colors(&self) -> impl Iterator<Item = Color> {
        self.colors.keys().copied()
    }

    /// Everything up to here is committed, as far as this member knows.
    #[must_use]
    pub fn commit(&self) -> Lsn {
        self.log.commit()
    }

    /// Whether an entry of the leaf that this member follows is known to be committed: what was recovered is, too, then.
    #[must_use]
    pub fn is_led(&self) -> bool {
        self.leaf.is_some_and(|leaf| self.log.commit_epoch() == leaf.epoch)
    }

    /// The shard that it is a member of.
    #[must_use]
    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// Everything below this number of `color` is settled here.
    #[must_use]
    pub fn stable(&self, color: Color) -> SeqNum {
        self.colors.get(&color).map_or(SeqNum::MIN, ColorState::stable)
    }

    /// Does what `input` calls for; what is to be done outside goes to the end of `out`, in order.
    pub fn handle(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Request { from, request } => self.on_request(now, from, request, out),
            Input::Append { from, request } => self.on_append(from, &request, out),
            Input::Disconnected(conn) => self.on_disconnected(conn),
            Input::Leaf(of) => self.on_leaf(now, of, out),
            Input::LeafReplaced(position) => self.on_leaf_replaced(position, out),
            Input::Peer { from, message } => self.on_peer(now, from, message, out),
            Input::Durable { upto } => self.on_durable(upto, out),
            Input::StageRefused(token) => self.on_stage_refused(token, out),
            Input::PeerReplaced(peer) => {
                self.on_peer_replaced(peer, out);
                self.tick_mends(now, Some(peer), out);
            }
            Input::CopyRefused => self.on_copy_refused(),
            Input::CheckpointWanted => self.on_checkpoint_wanted(out),
            Input::StoreFailed(why) => self.stop(why, out),
            Input::Fetched { fetch, result } => self.on_fetched(now, fetch, result, out),
            Input::Damaged(damage) => self.mend(now, damage, None, out),
            Input::Tick => {
                self.tick_mends(now, None, out);
                while let Some(name) = self.readers.expired(now) {
                    if let Some(ask) = self.readers.finish(name) {
                        let answer = ask.give_up(self.stable(ask.color));
                        out.push(Output::Answer { to: ask.from, answer });
                    }
                }
                self.pull_again(now, out);
            }
        }
        self.watch_pulls(now);
    }

    pub(crate) fn color_mut(&mut self, color: Color) -> &mut ColorState {
        self.colors.entry(color).or_insert_with(|| ColorState::new(color))
    }

    pub(crate) fn stop(&mut self, why: String, out: &mut Vec<Output>) {
        if self.stopped.is_none() {
            self.stopped = Some(why.clone());
            out.push(Output::Stopped(why));
        }
    }

    pub(crate) fn persist(&mut self, what: Persist, out: &mut Vec<Output>) {
        self.pending.push_back(match &what {
            Persist::Stage(append) => Pending::Stage(append.token()),
            Persist::Entry(entry) => Pending::Entry(entry.lsn),
            Persist::Fence(incarnation) => Pending::Fence(*incarnation),
            Persist::Copy { .. } => Pending::Copy,
            Persist::Truncate { .. } | Persist::Repair { .. } => Pending::Other,
            Persist::Checkpoint { upto, .. } => Pending::Checkpoint(*upto),
        });
        out.push(Output::Persist(what));
    }

    pub(crate) fn to_leaf(&self, message: ToLeaf, out: &mut Vec<Output>) -> bool {
        if let Some(leaf) = self.leaf {
            out.push(Output::ToLeaf(Of { leaf, message }));
        }
        self.leaf.is_some()
    }
}
