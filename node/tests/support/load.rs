//! What clients do while things fail, and how it is judged afterwards: writers of which each knows what became of every
//! append (acknowledged, not appended, or unknown), readers that tail, and askers that read what was acknowledged.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use flexlog_client::{AppendError, Client, Event, ReadOutcome, Record};
use flexlog_history::Operation;
use flexlog_protocol::SeqNum;
use tokio::time::{sleep, timeout};

use super::history::{Done, check, missing, read_all};

/// One color's history so far.
#[derive(Default)]
pub struct History {
    pub done: Vec<Done>,
    /// Those of which it is not known whether they took place, with the tick at which they were sent. Each is one append.
    unknown: Vec<(Vec<String>, u64)>,
    /// What each reader was delivered.
    delivered: Vec<Vec<(SeqNum, String)>>,
    highest: SeqNum,
    /// All that was done and seen, with its times.
    seen: flexlog_history::History<String>,
}

/// The colors that are written to, by name.
pub struct Load {
    colors: BTreeMap<&'static str, RefCell<History>>,
    clock: Cell<u64>,
    over: Cell<bool>,
    pub not_appended: Cell<u64>,
}

impl Load {
    pub fn new(names: impl Iterator<Item = &'static str>) -> Self {
        let colors = names.map(|name| (name, RefCell::default())).collect();
        Self { colors, clock: Cell::new(0), over: Cell::new(false), not_appended: Cell::new(0) }
    }

    fn tick(&self) -> u64 {
        self.clock.replace(self.clock.get() + 1)
    }

    pub fn stop(&self) {
        self.over.set(true);
    }

    pub fn acknowledged(&self) -> Vec<usize> {
        self.colors.values().map(|history| history.borrow().done.len()).collect()
    }

    pub fn unknown(&self) -> usize {
        self.colors.values().map(|history| history.borrow().unknown.len()).sum()
    }

    /// Waits until every color has so many more acknowledgements.
    pub async fn grow(&self, by: usize, patience: Duration) {
        let (before, begun) = (self.acknowledged(), Instant::now());
        while self.acknowledged().iter().zip(&before).any(|(now, before)| *now < before + by) {
            let now = self.acknowledged();
            assert!(
                begun.elapsed() < patience,
                "appends do not go on: {:?}",
                self.colors.keys().zip(now).collect::<Vec<_>>()
            );
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Appends `batch` records at a time. Where `is_patient`, an append must not end without an outcome.
    pub async fn write(
        self: Rc<Self>,
        client: Client,
        name: &'static str,
        batch: usize,
        pace: Duration,
        is_patient: bool,
    ) {
        let log = loop {
            match client.existing_color(name).await {
                Ok(log) => break log,
                Err(error) => assert!(!is_patient, "{name}: {error}"),
            }
        };
        for i in 0.. {
            if self.over.get() {
                return;
            }
            let payloads: Vec<String> =
                (0..batch).map(|part| format!("{name} {batch} {is_patient} {i} {part}")).collect();
            let records: Vec<Record> = payloads.iter().map(|payload| Record::new(payload.clone()).unwrap()).collect();
            let sent = self.tick();
            let outcome = loop {
                match log.append_batch(records.clone()).await {
                    // Nothing was appended, it says, so the same may be appended again: were it there already it would be twice.
                    Err(error) if !error.is_outcome_unknown() => {
                        assert!(!matches!(error, AppendError::Invalid { .. }), "{error}");
                        self.not_appended.set(self.not_appended.get() + 1);
                        if self.over.get() {
                            return;
                        }
                        sleep(Duration::from_millis(20)).await;
                    }
                    outcome => break outcome,
                }
            };
            self.keep(name, payloads, sent, outcome, is_patient);
            sleep(pace).await;
        }
    }

    /// What became of an append.
    fn keep(
        &self,
        name: &str,
        payloads: Vec<String>,
        sent: u64,
        outcome: Result<Range<SeqNum>, AppendError>,
        is_patient: bool,
    ) {
        let mut history = self.colors[name].borrow_mut();
        match outcome {
            Ok(numbers) => {
                let acknowledged = self.tick();
                let append = Operation::Append { first: numbers.start.to_raw(), records: payloads.clone() };
                history.seen.push(sent, acknowledged, append);
                for (payload, part) in payloads.into_iter().zip(0..) {
                    let number = numbers.start.plus(part).unwrap();
                    history.highest = history.highest.max(number);
                    history.done.push(Done { payload, number, sent, acknowledged });
                }
            }
            Err(error) => {
                assert!(!is_patient, "{}: {error}", payloads[0]);
                history.seen.push_open(sent, Operation::Unanswered { records: payloads.clone() });
                history.unknown.push((payloads, sent));
            }
        }
    }

    /// Follows a color from its beginning.
    pub async fn tail(self: Rc<Self>, client: Client, name: &'static str) {
        let log = loop {
            if let Ok(log) = client.existing_color(name).await {
                break log;
            }
        };
        let place = {
            let mut history = self.colors[name].borrow_mut();
            history.delivered.push(Vec::new());
            history.delivered.len() - 1
        };
        let mut from = SeqNum::MIN;
        while !self.over.get() {
            let mut events = log.subscribe(from);
            while !self.over.get() {
                // Looks now and then whether it is over.
                let Ok(event) = timeout(Duration::from_millis(200), events.next()).await else { continue };
                match event {
                    Some(Ok(Event::Record { number, record })) => {
                        assert!(number >= from, "{name}: {number} is delivered though {from} was to be next");
                        from = number.plus(1).unwrap();
                        let payload = String::from_utf8(record.payload().to_vec()).unwrap();
                        let mut history = self.colors[name].borrow_mut();
                        let record = payload.clone();
                        history.seen.push(
                            self.tick(),
                            self.tick(),
                            Operation::Read { number: number.to_raw(), record },
                        );
                        history.delivered[place].push((number, payload));
                    }
                    Some(Ok(Event::Progress { upto })) => from = from.max(upto),
                    Some(Ok(Event::Trimmed { point })) => panic!("{name} is trimmed up to {point}"),
                    Some(Err(_)) | None => break,
                }
            }
        }
    }

    /// Reads what was acknowledged, and tails.
    pub async fn ask(self: Rc<Self>, client: Client, name: &'static str, pace: Duration) {
        let log = loop {
            if let Ok(log) = client.existing_color(name).await {
                break log;
            }
        };
        let mut turn = 0_usize;
        while !self.over.get() {
            sleep(pace).await;
            turn = turn.wrapping_mul(31).wrapping_add(17);
            let (one, highest) = {
                let history = self.colors[name].borrow();
                // Every other time the newest.
                let place = if turn.is_multiple_of(2) {
                    history.done.len().wrapping_sub(1)
                } else {
                    turn % history.done.len().max(1)
                };
                (history.done.get(place).cloned(), history.highest)
            };
            let Some(one) = one else { continue };
            let (number, asked) = (one.number.to_raw(), self.tick());
            match log.read(one.number).await {
                Ok(ReadOutcome::Record(record)) => {
                    assert_eq!(record.payload().as_ref(), one.payload.as_bytes(), "{name}: {}", one.number);
                    let read = Operation::Read { number, record: one.payload };
                    self.colors[name].borrow_mut().seen.push(asked, self.tick(), read);
                }
                // Given, it says, and not known to be settled in time: another shard of a wide color is away.
                Ok(ReadOutcome::NotYet { tail }) if tail > one.number && name.starts_with("wide") => {}
                Ok(other) => panic!("{name}: {one:?} was acknowledged, and a read says {other:?}"),
                Err(_) => {}
            }
            let asked = self.tick();
            if let Ok(tail) = log.tail().await {
                let told = Operation::Tail { number: tail.to_raw() };
                self.colors[name].borrow_mut().seen.push(asked, self.tick(), told);
                assert!(
                    tail > highest,
                    "{name}: {highest} was acknowledged before the tail was asked for, which is {tail}"
                );
            }
        }
    }

    /// Judges everything that was seen, with what each of these clients reads now.
    pub async fn judge(&self, readers: &[Client]) {
        for (name, history) in &self.colors {
            let mut history = history.take();
            let read = read_all(&readers[0], name).await;
            for other in &readers[1..] {
                assert!(read_all(other, name).await.starts_with(&read), "{name}: two readers read different histories");
            }
            let mut numbers: BTreeMap<&str, Vec<SeqNum>> = BTreeMap::new();
            for (number, payload) in &read {
                numbers.entry(payload).or_default().push(*number);
            }
            if let Some((payload, numbers)) = numbers.iter().find(|(_, numbers)| numbers.len() > 1) {
                panic!("{name}: {payload} is there more than once: {numbers:?}");
            }
            // What is unknown took place as a whole or not at all, at any time after it was sent.
            for (payloads, sent) in std::mem::take(&mut history.unknown) {
                let found: Vec<SeqNum> =
                    payloads.iter().filter_map(|payload| Some(numbers.get(payload.as_str())?[0])).collect();
                assert!(
                    found.is_empty() || found.len() == payloads.len(),
                    "{name}: {payloads:?} is there in part: {found:?}"
                );
                for (payload, number) in payloads.into_iter().zip(found) {
                    history.done.push(Done { payload, number, sent, acknowledged: u64::MAX });
                }
            }
            let log = readers[0].existing_color(name).await.unwrap();
            let mut holes = Vec::new();
            for number in missing(&read) {
                if matches!(log.read(number).await.unwrap(), ReadOutcome::Hole) {
                    holes.push(number);
                }
            }
            if let Err(violation) = check(name, &history.done, &read, &holes) {
                panic!("{violation}");
            }
            for number in &holes {
                history.seen.push(self.tick(), self.tick(), Operation::Hole { number: number.to_raw() });
            }
            let all: Vec<(u64, String)> =
                read.iter().map(|(number, payload)| (number.to_raw(), payload.clone())).collect();
            let upto = all.last().map_or(0, |(number, _)| number + 1);
            history.seen.push(self.tick(), self.tick(), Operation::Range { from: 0, upto, records: all });
            if let Err(violation) = history.seen.check() {
                panic!("{name}: {violation}");
            }
            for delivered in &history.delivered {
                let same = delivered.iter().zip(&read).take_while(|(one, other)| one == other).count();
                assert!(
                    same == delivered.len(),
                    "{name}: a reader was delivered {:?} where {:?} is",
                    delivered.get(same),
                    read.get(same)
                );
            }
            let unique: BTreeSet<SeqNum> = read.iter().map(|(number, _)| *number).collect();
            assert_eq!(unique.len(), read.len());
        }
    }
}
