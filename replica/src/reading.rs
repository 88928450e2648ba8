//! Reads, tails, trims and subscriptions: who gets to see what, and when.

use flexlog_protocol::api::{self, Answer, Failure, Request, RequestId};
use flexlog_protocol::peer::{PeerMessage, ToLeaf};
use flexlog_protocol::{Color, Record, SeqNum, Time, limits};
use uuid::Uuid;

use crate::color::{ColorState, after};
use crate::mending::is_mend;
use crate::message::{ConnId, Damage, FetchId, Output};
use crate::readers::{Ask, Question, Subscription, Told, Verdict};
use crate::replica::{FetchFor, Replica};

/// How long a client waits for the shard to answer where it did not say itself, in microseconds: 10 s.
const ANSWER_MICROS: u64 = 10_000_000;
/// Bytes of records in one message of a subscription.
pub(crate) const DELIVERY_BYTES: u64 = 256 << 10;
/// Records in one message of a subscription.
pub(crate) const DELIVERY_RECORDS: usize = 4096;

impl Replica {
    pub(crate) fn on_request(&mut self, now: Time, from: ConnId, request: Request, out: &mut Vec<Output>) {
        let mut fail = |id, why| out.push(Output::Answer { to: from, answer: Answer::Failed { id, why } });
        if self.outside
            && let Some(id) = request.awaited()
        {
            return fail(id, Failure::NotReady(format!("replica {} catches up with its shard", self.id)));
        }
        match request {
            Request::OpenSession { id, shard, .. } if shard != self.shard => fail(id, Failure::NoSuchShard(shard)),
            Request::OpenSession { id, nonce, .. } => self.on_open_session(from, id, nonce, out),
            Request::CloseSession { shard, session } => {
                if shard == self.shard && self.sessions.contains_key(&session) {
                    self.to_leaf(ToLeaf::CloseSession { session }, out);
                }
            }
            Request::ReadNext { id, tag: Some(_), .. }
            | Request::ReadPrev { id, tag: Some(_), .. }
            | Request::Subscribe { id, tag: Some(_), .. } => fail(id, Failure::Unsupported("reading by tag".into())),
            Request::Read { id, color, number, wait_micros } => {
                self.ask(now, from, id, color, Question::Read(number), wait_micros, out);
            }
            Request::ReadNext { id, color, from: first, wait_micros, .. } => {
                self.ask(now, from, id, color, Question::Next(first), wait_micros, out);
            }
            Request::ReadPrev { id, color, upto, wait_micros, .. } => {
                self.ask(now, from, id, color, Question::Prev(upto), wait_micros, out);
            }
            Request::Tail { id, color } => self.ask(now, from, id, color, Question::Tail, 0, out),
            Request::Trim { id, color, upto } => self.ask(now, from, id, color, Question::Trim(upto), 0, out),
            Request::Subscribe { id, color, from: first, credit, .. } => {
                if self.readers.subscriptions_from(from) >= limits::MAX_SUBSCRIPTIONS_PER_CONNECTION {
                    return fail(id, Failure::TooMany("subscriptions".into()));
                }
                let credit = credit.min(limits::MAX_CREDIT_BYTES) as i64;
                let subscription = Subscription { color, next: first, credit, fetching: false };
                self.readers.subscribe(from, id, subscription);
                self.follow(color, out);
                self.feed(from, id, out);
            }
            Request::Credit { id, bytes } => {
                if let Some(subscription) = self.readers.subscription(from, id) {
                    let bytes = bytes.min(limits::MAX_CREDIT_BYTES) as i64;
                    subscription.credit = (subscription.credit + bytes).min(limits::MAX_CREDIT_BYTES as i64);
                    self.feed(from, id, out);
                }
            }
            Request::Unsubscribe { id } => self.readers.unsubscribe(from, id),
            // The node answers these itself.
            Request::Lookup { id, .. } | Request::Colors { id, .. } | Request::Status { id } | Request::Ping { id } => {
                fail(id, Failure::Unsupported("this request at a replica".into()));
            }
            Request::Append(request) => self.on_append(from, &request, out),
        }
    }

    fn on_open_session(&mut self, from: ConnId, id: RequestId, nonce: Uuid, out: &mut Vec<Output>) {
        let known = self.nonces.get(&nonce).copied().filter(|session| session.lsn <= self.log.commit());
        if let Some(session) = known {
            out.push(Output::Answer { to: from, answer: Answer::SessionOpened { id, session } });
            return;
        }
        if self.opening.len() >= limits::MAX_SESSIONS {
            out.push(Output::Answer { to: from, answer: Answer::Failed { id, why: Failure::TooManySessions } });
            return;
        }
        let waiting = self.opening.entry(nonce).or_default();
        let first = waiting.is_empty();
        if !waiting.contains(&(from, id)) {
            waiting.push((from, id));
        }
        if first {
            self.to_leaf(ToLeaf::OpenSession { nonce }, out);
        }
    }

    pub(crate) fn on_disconnected(&mut self, conn: ConnId) {
        self.connections.retain(|_, other| *other != conn);
        self.opening.retain(|_, waiting| {
            waiting.retain(|(other, _)| *other != conn);
            !waiting.is_empty()
        });
        self.readers.disconnect(conn);
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "a question has that many parts, and this is where it is put together"
    )]
    fn ask(
        &mut self,
        now: Time,
        from: ConnId,
        id: RequestId,
        color: Color,
        question: Question,
        wait_micros: u64,
        out: &mut Vec<Output>,
    ) {
        if self.readers.waiting_of(from) >= limits::MAX_WAITING_READS_PER_CONNECTION {
            let why = Failure::TooMany("requests that wait".into());
            out.push(Output::Answer { to: from, answer: Answer::Failed { id, why } });
            return;
        }
        let until = now.after(wait_micros);
        let deadline = until.max(now.after(ANSWER_MICROS));
        self.decide(
            Ask { from, id, color, question, until, deadline, tail: None, told: None, searched: SeqNum::MIN },
            out,
        );
    }

    /// Answers `ask`, or keeps it until more is known.
    pub(crate) fn decide(&mut self, ask: Ask, out: &mut Vec<Output>) {
        match self.verdict(&ask) {
            Verdict::Answer(answer) => out.push(Output::Answer { to: ask.from, answer }),
            Verdict::Fetch(number) => self.fetch_one(ask, number, false, out),
            Verdict::Search { from, upto } => self.search(ask, from, upto, out),
            Verdict::Trim | Verdict::NeedTail | Verdict::Wait => {
                let name = self.readers.wait(ask);
                self.judge(name, out);
            }
        }
    }

    fn verdict(&self, ask: &Ask) -> Verdict {
        let (commit, coming) = (self.log.commit(), self.log.open_trim(ask.color));
        match self.colors.get(&ask.color) {
            Some(color) => ask.judge(color, commit, coming),
            None => ask.judge(&ColorState::new(ask.color), commit, coming),
        }
    }

    /// Looks again at a question that waits.
    pub(crate) fn judge(&mut self, name: u64, out: &mut Vec<Output>) {
        let Some(ask) = self.readers.ask(name) else { return };
        let verdict = self.verdict(ask);
        let (color, told) = (ask.color, ask.told);
        let tell = match verdict {
            Verdict::Answer(answer) => {
                if let Some(ask) = self.readers.finish(name) {
                    out.push(Output::Answer { to: ask.from, answer });
                }
                return;
            }
            Verdict::Fetch(number) => {
                if let Some(ask) = self.readers.finish(name) {
                    self.fetch_one(ask, number, false, out);
                }
                return;
            }
            Verdict::Search { from, upto } => {
                if let Some(ask) = self.readers.finish(name) {
                    self.search(ask, from, upto, out);
                }
                return;
            }
            Verdict::Wait => return,
            Verdict::NeedTail => (Told::Tail, ToLeaf::TailAsk { ask: name, color }),
            Verdict::Trim => match ask.question {
                Question::Trim(upto) => (Told::Trim, ToLeaf::Trim { color, upto }),
                _ => return,
            },
        };
        if told != Some(tell.0)
            && self.to_leaf(tell.1, out)
            && let Some(ask) = self.readers.ask_mut(name)
        {
            ask.told = Some(tell.0);
        }
    }

    fn fetch_one(&mut self, ask: Ask, number: SeqNum, again: bool, out: &mut Vec<Output>) {
        // A record's number is never the last of its epoch, so the next one exists.
        let upto = number.plus(1).unwrap_or(SeqNum::MAX);
        let color = ask.color;
        let fetch = self.remember(FetchFor::Ask { ask, number, again });
        out.push(Output::Fetch { fetch, color, from: number, upto, max_records: 1, max_bytes: 1 });
    }

    pub(crate) fn remember(&mut self, purpose: FetchFor) -> FetchId {
        self.next_fetch += 1;
        self.fetches.insert(self.next_fetch, purpose);
        FetchId(self.next_fetch)
    }

    /// Looks again at everyone who waits for news of `color`.
    pub(crate) fn wake(&mut self, color: Color, out: &mut Vec<Output>) {
        let commit = self.log.commit();
        for name in self.readers.asks_of(color) {
            if let Some((tail, after)) = self.readers.ask(name).and_then(|ask| ask.tail)
                && after <= commit
            {
                self.goes_on(color, tail);
            }
            self.judge(name, out);
        }
        for (from, id) in self.readers.subscriptions_of(color) {
            self.feed(from, id, out);
        }
    }

    /// Sends a subscription what it may have now.
    pub(crate) fn feed(&mut self, from: ConnId, id: RequestId, out: &mut Vec<Output>) {
        let Some(subscription) = self.readers.subscription(from, id) else { return };
        let Some(color) = self.colors.get(&subscription.color) else { return };
        if subscription.fetching || subscription.credit <= 0 {
            return;
        }
        if let Some(point) = color.trim_point().filter(|point| *point >= subscription.next) {
            // As a bound, the number after the trim point may be one that names no record.
            subscription.next = after(point);
            out.push(Output::Answer { to: from, answer: Answer::Trimmed { id, point } });
        }
        let (name, stable) = (subscription.color, color.stable());
        if subscription.next >= stable {
            return;
        }
        let first = match color {
            ColorState::Narrow(state) => state.next_record(subscription.next),
            // The commit of the trim wakes it.
            ColorState::Wide(_) if Some(subscription.next) <= self.log.open_trim(name) => return,
            ColorState::Wide(_) => Some(subscription.next),
        };
        match first {
            None => {
                subscription.next = stable;
                out.push(Output::Answer { to: from, answer: Answer::Delivered { id, records: vec![], upto: stable } });
            }
            Some(first) => {
                subscription.fetching = true;
                let max_bytes = DELIVERY_BYTES.min(subscription.credit as u64) as usize;
                // The smallest record costs 32: small ones alone must not run far over the credit.
                let affordable = (subscription.credit as u64).div_ceil(32) as usize;
                let fetch = self.remember(FetchFor::Subscription { from, id, upto: stable });
                let (color, max_records) = (name, DELIVERY_RECORDS.min(affordable));
                out.push(Output::Fetch { fetch, color, from: first, upto: stable, max_records, max_bytes });
            }
        }
    }

    pub(crate) fn on_fetched(
        &mut self,
        now: Time,
        fetch: FetchId,
        result: Result<Vec<(SeqNum, Record)>, Damage>,
        out: &mut Vec<Output>,
    ) {
        if let Some(purpose) = self.fetches.remove(&fetch.0) {
            self.fetched(now, purpose, result, out);
        }
    }

    /// What was read for something, here or by another member.
    pub(crate) fn fetched(
        &mut self,
        now: Time,
        purpose: FetchFor,
        result: Result<Vec<(SeqNum, Record)>, Damage>,
        out: &mut Vec<Output>,
    ) {
        let result = match result {
            Ok(records) => records,
            Err(damage) => return self.on_damaged(now, purpose, damage, out),
        };
        match (purpose, result) {
            (FetchFor::Copy { to, copy, color, from, upto }, records) => {
                self.on_copy_fetched(to, copy, color, (from, upto), records, out);
            }
            (FetchFor::Pull { to, token, color, records: count }, records) => {
                Self::on_pull_fetched(to, token, color, count, records, out);
            }
            (FetchFor::Ask { ask, number, again }, records) => {
                match records.into_iter().find(|(n, _)| *n == number) {
                    Some((number, record)) => {
                        let answer = Answer::Record { id: ask.id, number, record };
                        out.push(Output::Answer { to: ask.from, answer });
                    }
                    None if self.trim_is_coming(ask.color, number) => _ = self.readers.wait(ask),
                    // It may have been trimmed meanwhile; then the second look says so.
                    None => match self.verdict(&ask) {
                        Verdict::Fetch(same) if again || same == number => {
                            let why = Failure::Unreadable(format!(
                                "replica {} does not find the record {}/{number}, which is settled",
                                self.id, ask.color
                            ));
                            out.push(Output::Answer { to: ask.from, answer: Answer::Failed { id: ask.id, why } });
                        }
                        Verdict::Fetch(other) => self.fetch_one(ask, other, true, out),
                        _ => self.decide(ask, out),
                    },
                }
            }
            (FetchFor::Search { ask, upto }, records) => self.on_searched(ask, upto, records, out),
            (FetchFor::Subscription { from, id, upto }, records) => {
                let color = self.readers.subscription(from, id).map(|subscription| subscription.color);
                if color.is_some_and(Color::is_wide) {
                    return self.on_delivery((from, id), upto, records, out);
                }
                self.on_fetched_for_subscription(from, id, upto, records, out);
            }
        }
    }

    /// What was to be read is damaged: it is had from another member, unless it is about to be trimmed.
    fn on_damaged(&mut self, now: Time, purpose: FetchFor, damage: Damage, out: &mut Vec<Output>) {
        match purpose {
            FetchFor::Ask { ask, number, .. } if self.trim_is_coming(ask.color, number) => {
                self.readers.wait(ask);
            }
            FetchFor::Search { ask, upto } if self.is_trimmed_or_soon(&ask) => {
                self.on_searched(ask, upto, Vec::new(), out);
            }
            FetchFor::Subscription { from, id, .. } if self.trim_is_coming(damage.color, damage.number) => {
                // The trim will wake it.
                if let Some(subscription) = self.readers.subscription(from, id) {
                    subscription.fetching = false;
                }
            }
            FetchFor::Copy { to, copy, .. } if is_mend(copy) => {
                // It is not mended for that: members whose copies are all damaged would ask each other without end.
                let message = PeerMessage::CannotCopy { copy, why: damage.why, damaged: true };
                out.push(Output::ToPeer { to, message });
            }
            FetchFor::Pull { to, token, .. } => {
                out.push(Output::ToPeer { to, message: PeerMessage::NotHere { token } });
                self.mend(now, damage, None, out);
            }
            purpose => self.mend(now, damage, Some(purpose), out),
        }
    }

    fn on_fetched_for_subscription(
        &mut self,
        from: ConnId,
        id: RequestId,
        upto: SeqNum,
        records: Vec<(SeqNum, Record)>,
        out: &mut Vec<Output>,
    ) {
        let Some(subscription) = self.readers.subscription(from, id) else { return };
        subscription.fetching = false;
        let color = subscription.color;
        let state = self.colors.get(&color).and_then(ColorState::narrow);
        let expected = state.and_then(|state| state.next_record(subscription.next));
        match (records.last(), expected) {
            (Some((last, _)), _) => {
                let next = last.plus(1).unwrap_or(upto);
                // Where nothing but holes follows, the subscription is through to the end of what it asked for.
                let rest = state.and_then(|state| state.next_record(next)).filter(|n| *n < upto);
                subscription.next = if rest.is_none() { upto } else { next };
                let cost: u64 = records.iter().map(|(_, record)| api::delivered_cost(record)).sum();
                subscription.credit -= cost as i64;
                let upto = subscription.next;
                out.push(Output::Answer { to: from, answer: Answer::Delivered { id, records, upto } });
            }
            // The trim will wake it.
            (None, Some(missing)) if self.trim_is_coming(color, missing) => return,
            (None, Some(missing)) if missing < upto => {
                let why = format!("replica {} does not find the record {color}/{missing}, which is settled", self.id);
                self.end_subscription(from, id, why, out);
                return;
            }
            (None, _) => {}
        }
        self.feed(from, id, out);
    }

    /// Whether the log has a trim of this number that is not known to be committed: after a restart the store may have
    /// given up already what its replica is yet to hear of.
    fn trim_is_coming(&self, color: Color, number: SeqNum) -> bool {
        Some(number) <= self.log.open_trim(color)
    }

    pub(crate) fn end_subscription(&mut self, from: ConnId, id: RequestId, why: String, out: &mut Vec<Output>) {
        self.readers.unsubscribe(from, id);
        out.push(Output::Answer { to: from, answer: Answer::Failed { id, why: Failure::Unreadable(why) } });
    }
}
