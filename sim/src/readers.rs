//! Model readers: they ask about numbers, tails and neighbours, subscribe and trim, each time at a member of chance, and
//! hold every answer against what was acknowledged, read and committed before.

use std::collections::BTreeMap;

use flexlog_history::Operation;
use flexlog_protocol::api::{Answer, Failure, Request, RequestId, delivered_cost};
use flexlog_protocol::{Color, Epoch, Record, SeqNum};
use flexlog_replica::ConnId;

use crate::client::{Outside, Wish};
use crate::history::History;
use crate::invariants::{
    Violation, i03_settled_before_shown as i03, i05_stays_readable as i05, i06_alike_below_stable as i06, i12_bounds,
    liveness,
};

/// Longer than any run.
const FOR_EVER: u64 = 1 << 50;
/// Questions and subscriptions that a reader has open.
const MOST_OPEN: usize = 6;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Question {
    Read(SeqNum),
    Next(SeqNum),
    Prev(SeqNum),
    Tail,
    Trim(SeqNum),
}

#[derive(Clone, Debug)]
struct Asked {
    color: Color,
    shard: usize,
    question: Question,
    /// What was given away when it was asked, and when that was.
    floor: SeqNum,
    event: u64,
    /// It does not give up.
    patient: bool,
}

#[derive(Clone, Debug)]
struct Subscription {
    color: Color,
    shard: usize,
    member: usize,
    next: SeqNum,
    credit: i64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) conn: Option<ConnId>,
    asked: BTreeMap<RequestId, Asked>,
    subscriptions: BTreeMap<RequestId, Subscription>,
    next_id: RequestId,
    /// It only does what it is told, and keeps the answers.
    pub(crate) auditor: bool,
    /// Every member is there: each must answer.
    pub(crate) strict: bool,
    /// What an auditor heard: the answers in words, by color.
    pub(crate) heard: BTreeMap<Color, Vec<String>>,
}

impl Reader {
    /// One that is told what to ask.
    pub(crate) fn auditor() -> Self {
        Self { auditor: true, ..Self::default() }
    }

    /// Questions without an answer.
    pub(crate) fn open(&self) -> usize {
        self.asked.len()
    }

    /// For people.
    pub(crate) fn state(&self) -> String {
        format!("{:?}", self.asked)
    }

    pub(crate) fn disconnected(&mut self) {
        self.conn = None;
        self.asked.clear();
        self.subscriptions.clear();
    }

    /// Does one thing of its choice.
    pub(crate) fn act(&mut self, world: &mut Outside<'_>) -> Wish {
        let Some(conn) = self.conn else { return Wish::Connect };
        if world.chooser.one_in(30) {
            return Wish::Disconnect;
        }
        if let Some((id, subscription)) = self.subscriptions.iter_mut().next()
            && world.chooser.one_in(3)
        {
            let (id, member) = (*id, subscription.member);
            if world.chooser.one_in(8) {
                self.subscriptions.remove(&id);
                world.request(conn, member, Request::Unsubscribe { id });
            } else {
                let bytes = world.chooser.between(1, 600);
                subscription.credit += bytes as i64;
                world.request(conn, member, Request::Credit { id, bytes });
            }
            return Wish::Nothing;
        }
        if self.asked.len() + self.subscriptions.len() >= MOST_OPEN {
            return Wish::Nothing;
        }
        let (color, member) = world.color_and_replica();
        let number = draw_number(color, member, world);
        match world.chooser.below(20) {
            0..=6 => self.ask(conn, member, color, Question::Read(number), world),
            7..=9 => self.ask(conn, member, color, Question::Next(number), world),
            10..=12 => self.ask(conn, member, color, Question::Prev(number), world),
            13..=15 => self.ask(conn, member, color, Question::Tail, world),
            16..=17 if number > SeqNum::MIN => self.ask(conn, member, color, Question::Trim(number), world),
            _ => {
                let credit = world.chooser.between(0, 2000);
                self.subscribe(conn, member, color, number, credit, world);
            }
        }
        Wish::Nothing
    }

    /// Asks everything that can be asked of every color at one member.
    pub(crate) fn audit(&mut self, member: usize, world: &mut Outside<'_>) {
        let Some(conn) = self.conn else { return };
        for color in world.shape.shards[world.history.home(member)].colors.clone() {
            let truth = world.history.color(color);
            let mut numbers: Vec<SeqNum> = truth.records.keys().copied().collect();
            numbers.extend(truth.holes.iter().map(|(first, _)| *first));
            for number in numbers {
                self.ask(conn, member, color, Question::Read(number), world);
            }
            self.ask(conn, member, color, Question::Next(SeqNum::MIN), world);
            self.ask(conn, member, color, Question::Prev(SeqNum::MAX), world);
            self.subscribe(conn, member, color, SeqNum::MIN, 1 << 20, world);
        }
    }

    /// Asks for a tail, or a trim up to the last record.
    pub(crate) fn ask_of(&mut self, member: usize, color: Color, trim: bool, world: &mut Outside<'_>) {
        let Some(conn) = self.conn else { return };
        let last = world.history.color(color).records.keys().next_back().copied();
        match last {
            Some(last) if trim => self.ask(conn, member, color, Question::Trim(last), world),
            _ => self.ask(conn, member, color, Question::Tail, world),
        }
    }

    fn ask(&mut self, conn: ConnId, member: usize, color: Color, question: Question, world: &mut Outside<'_>) {
        self.next_id += 1;
        let id = self.next_id;
        let wait_micros = if self.auditor { FOR_EVER } else { world.chooser.pick(&[0, 500, 50_000, FOR_EVER]) };
        let request = match question {
            Question::Read(number) => Request::Read { id, color, number, wait_micros },
            Question::Next(from) => Request::ReadNext { id, color, tag: None, from, wait_micros },
            Question::Prev(upto) => Request::ReadPrev { id, color, tag: None, upto, wait_micros },
            Question::Tail => Request::Tail { id, color },
            Question::Trim(upto) => Request::Trim { id, color, upto },
        };
        let (floor, event, shard) = (world.history.floor(color), world.history.event, world.history.home(member));
        self.asked.insert(id, Asked { color, shard, question, floor, event, patient: wait_micros == FOR_EVER });
        world.request(conn, member, request);
    }

    fn subscribe(
        &mut self,
        conn: ConnId,
        member: usize,
        color: Color,
        from: SeqNum,
        credit: u64,
        world: &mut Outside<'_>,
    ) {
        self.next_id += 1;
        let id = self.next_id;
        let shard = world.history.home(member);
        self.subscriptions.insert(id, Subscription { color, shard, member, next: from, credit: credit as i64 });
        world.request(conn, member, Request::Subscribe { id, color, tag: None, from, credit });
    }

    /// Takes an answer.
    pub(crate) fn answer(&mut self, answer: Answer, history: &mut History) -> Result<(), Violation> {
        let id = match &answer {
            Answer::Record { id, .. }
            | Answer::Hole { id }
            | Answer::Elsewhere { id }
            | Answer::Trimmed { id, .. }
            | Answer::NotYet { id, .. }
            | Answer::NothingBefore { id }
            | Answer::Tail { id, .. }
            | Answer::TrimDone { id, .. }
            | Answer::Delivered { id, .. }
            | Answer::Failed { id, .. } => *id,
            other => return Err(i12_bounds::wrong_refusal(format!("a reader is answered {other:?}"))),
        };
        if let Some(subscription) = self.subscriptions.get_mut(&id) {
            let color = subscription.color;
            if let Answer::Failed { why: Failure::NotReady(_), .. } = answer
                && !self.strict
            {
                self.subscriptions.remove(&id);
                return Ok(());
            }
            if self.auditor {
                self.heard.entry(color).or_default().push(format!("{answer:?}"));
            }
            return subscription.take(answer, history);
        }
        // What comes for an ended subscription is of no interest.
        let Some(asked) = self.asked.remove(&id) else { return Ok(()) };
        if self.auditor {
            if let Answer::Failed { why: Failure::NotReady(why), .. } = &answer
                && self.strict
            {
                return Err(liveness::stuck(format!("{asked:?} is answered: {why}")));
            }
            let words = strip_id(&answer);
            self.heard.entry(asked.color).or_default().push(format!("{:?} {words}", asked.question));
        }
        asked.take(answer, history)
    }

    /// How far each subscription came.
    pub(crate) fn subscribed_upto(&self) -> Vec<(Color, SeqNum)> {
        self.subscriptions.values().map(|subscription| (subscription.color, subscription.next)).collect()
    }
}

/// An answer in words, without the number of its request.
fn strip_id(answer: &Answer) -> String {
    match answer {
        Answer::Record { number, record, .. } => format!("{number} {:08x}", record.crc()),
        Answer::Hole { .. } => "hole".to_owned(),
        Answer::Elsewhere { .. } => "elsewhere".to_owned(),
        Answer::Trimmed { point, .. } => format!("trimmed {point}"),
        Answer::NotYet { tail, .. } => format!("not yet {tail}"),
        Answer::NothingBefore { .. } => "nothing before".to_owned(),
        Answer::Tail { tail, .. } => format!("tail {tail}"),
        Answer::TrimDone { point, .. } => format!("trim done {point}"),
        other => format!("{other:?}"),
    }
}

fn shown(history: &mut History, color: Color, number: SeqNum, record: &Record) -> Result<(), Violation> {
    i03::shows(history, color, number)?;
    i05::same_bytes(history, color, number, record)?;
    history.shows(color, number);
    if let Some(record) = history.name(color, number) {
        let now = history.event;
        history.saw(color, now, Operation::Read { number: number.to_raw(), record });
    }
    Ok(())
}

/// A reader was given all records of these numbers.
fn range(history: &mut History, color: Color, asked: u64, (from, upto): (SeqNum, SeqNum), numbers: &[SeqNum]) {
    let named = |number: &SeqNum| Some((number.to_raw(), history.name(color, *number)?));
    let records = numbers.iter().filter_map(named).collect();
    history.saw(color, asked, Operation::Range { from: from.to_raw(), upto: upto.to_raw(), records });
}

impl Asked {
    fn tail(&self, tail: SeqNum, history: &mut History) -> Result<(), Violation> {
        i05::tail(self.color, tail, self.floor)?;
        let truth = history.color(self.color);
        truth.floor = truth.floor.max(tail);
        history.saw(self.color, self.event, Operation::Tail { number: tail.to_raw() });
        Ok(())
    }

    fn take(&self, answer: Answer, history: &mut History) -> Result<(), Violation> {
        let (color, event) = (self.color, self.event);
        let at = (self.shard, color);
        let wrong = |answer: &Answer| Err(i12_bounds::wrong_refusal(format!("{self:?} is answered {answer:?}")));
        match (self.question, answer) {
            (Question::Read(n), Answer::Record { number, record, .. }) if n == number => {
                shown(history, color, number, &record)
            }
            (Question::Read(n), Answer::Hole { .. }) => {
                history.saw(color, event, Operation::Hole { number: n.to_raw() });
                i06::told_hole(history, color, n)
            }
            (Question::Read(n) | Question::Next(n), Answer::Trimmed { point, .. }) if n <= point => {
                i06::told_trimmed(history, color, point)
            }
            (Question::Next(from), Answer::Record { number, record, .. }) if number >= from => {
                shown(history, color, number, &record)?;
                let upto = number.plus(1).unwrap_or(number);
                i06::told_all(history, at, from, upto, &[number])?;
                // Of a wide color other shards may yet settle numbers before this one.
                if !color.is_wide() {
                    i06::told_stable(history, color, upto);
                    range(history, color, event, (from, upto), &[number]);
                }
                Ok(())
            }
            (Question::Read(n), Answer::Elsewhere { .. }) => i06::told_elsewhere(history, self.shard, color, n),
            (Question::Read(n), Answer::NotYet { tail, .. }) if tail <= n => {
                history.saw(color, event, Operation::NotYet { number: n.to_raw() });
                self.tail(tail, history)
            }
            (Question::Read(_) | Question::Prev(_), Answer::NotYet { tail, .. }) => self.tail(tail, history),
            // Who gives up says how far this shard has come with a wide color: that is no tail.
            (Question::Next(from), Answer::NotYet { tail, .. }) if color.is_wide() && !self.patient => {
                i05::none_shown(history, at, from, tail, event)
            }
            (Question::Next(from), Answer::NotYet { tail, .. }) => {
                self.tail(tail, history)?;
                if self.patient { i05::none_shown(history, at, from, tail, event) } else { Ok(()) }
            }
            (Question::Prev(upto), Answer::Record { number, record, .. }) if number <= upto => {
                shown(history, color, number, &record)?;
                i05::none_shown(history, at, after(number), after(upto), event)
            }
            (Question::Prev(upto), Answer::NothingBefore { .. }) => {
                i05::none_shown(history, at, SeqNum::MIN, after(upto), event)
            }
            (Question::Prev(upto), Answer::Trimmed { point, .. }) => {
                i06::told_trimmed(history, color, point)?;
                i05::none_shown(history, at, SeqNum::MIN, after(upto), event)
            }
            (Question::Tail, Answer::Tail { tail, .. }) => self.tail(tail, history),
            (Question::Trim(upto), Answer::TrimDone { point, .. }) if upto <= point => {
                i06::told_trimmed(history, color, point)
            }
            (Question::Trim(upto), Answer::Failed { why: Failure::TrimBeyondTail { tail, .. }, .. })
                if upto >= tail =>
            {
                self.tail(tail, history)
            }
            (_, Answer::Failed { why: Failure::NotReady(_), .. }) => Ok(()),
            (_, Answer::Failed { why: Failure::Unreadable(why), .. }) => Err(i05::unreadable(&why)),
            (_, answer) => wrong(&answer),
        }
    }
}

impl Subscription {
    fn take(&mut self, answer: Answer, history: &mut History) -> Result<(), Violation> {
        match answer {
            Answer::Trimmed { point, .. } => {
                i06::told_trimmed(history, self.color, point)?;
                self.next = self.next.max(after(point));
                Ok(())
            }
            Answer::Delivered { records, upto, .. } => {
                let numbers: Vec<SeqNum> = records.iter().map(|(number, _)| *number).collect();
                for (number, record) in &records {
                    shown(history, self.color, *number, record)?;
                    self.credit -= delivered_cost(record) as i64;
                }
                i06::told_all(history, (self.shard, self.color), self.next, upto, &numbers)?;
                i06::told_stable(history, self.color, upto);
                if !self.color.is_wide() {
                    let now = history.event;
                    range(history, self.color, now, (self.next, upto), &numbers);
                }
                self.next = upto;
                // What surrounds a record counts, but nothing is held back for it.
                let last = records.last().map_or(0, |(_, record)| delivered_cost(record) as i64);
                let around = 32 * records.len() as i64;
                if self.credit + last + around <= 0 && !records.is_empty() {
                    let what = format!("a subscriber was sent {} more than its credit", -self.credit);
                    return Err(i12_bounds::wrong_refusal(what));
                }
                Ok(())
            }
            Answer::Failed { why: Failure::Unreadable(why), .. } => Err(i05::unreadable(&why)),
            other => Err(i12_bounds::wrong_refusal(format!("{self:?} is answered {other:?}"))),
        }
    }
}

/// The bound right above a number.
fn after(number: SeqNum) -> SeqNum {
    number.plus(1).unwrap_or(SeqNum::MAX)
}

/// A number that is there, or near one.
fn draw_number(color: Color, member: usize, world: &mut Outside<'_>) -> SeqNum {
    let shard = world.history.home(member);
    let truth = world.history.color(color);
    let count = truth.records.len() as u64;
    let end = truth.end.unwrap_or_default();
    let (low, high) = (truth.trim(shard).unwrap_or_default(), truth.floor);
    match world.chooser.below(10) {
        0 => SeqNum::MIN,
        1 => high,
        2 => SeqNum::new(Epoch(end.epoch().0 + 1), 0),
        3 => low,
        4 => SeqNum::new(Epoch(end.epoch().0.saturating_sub(1)), world.chooser.below(40) as u32),
        5 => SeqNum::new(end.epoch(), end.counter().saturating_add(world.chooser.below(4) as u32)),
        _ if count > 0 => {
            let nth = world.chooser.below(count) as usize;
            world.history.color(color).records.keys().nth(nth).copied().unwrap_or_default()
        }
        _ => end,
    }
}
