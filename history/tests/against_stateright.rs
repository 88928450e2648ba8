//! The checker's word on small histories is that of stateright's linearizability tester, which tries every order.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::BTreeMap;

use flexlog_history::{History, Operation};
use proptest::prelude::*;
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

/// One log, one operation after another.
#[derive(Clone, Default, Debug)]
struct Log {
    records: BTreeMap<u64, u32>,
    /// What comes later is not below it.
    next: u64,
}

impl SequentialSpec for Log {
    type Op = ();
    type Ret = Operation<u32>;

    fn invoke(&mut self, (): &()) -> Self::Ret {
        unreachable!("only what returned is looked at")
    }

    fn is_valid_step(&mut self, (): &(), ret: &Self::Ret) -> bool {
        match ret {
            Operation::Append { first, records } => {
                let fits = *first >= self.next;
                self.records.extend((*first..).zip(records.iter().copied()));
                self.next = first + records.len() as u64;
                fits
            }
            Operation::Read { number, record } => self.records.get(number) == Some(record),
            Operation::NotYet { number } => *number >= self.next,
            Operation::Hole { number } => {
                let fits = !self.records.contains_key(number);
                self.next = self.next.max(number + 1);
                fits
            }
            Operation::Range { from, upto, records } if from >= upto => from == upto && records.is_empty(),
            Operation::Range { from, upto, records } => {
                let there = self.records.range(from..upto).map(|(number, record)| (*number, *record));
                let fits = there.eq(records.iter().copied());
                self.next = self.next.max(*upto);
                fits
            }
            Operation::Tail { number } => {
                let fits = *number >= self.next;
                self.next = self.next.max(*number);
                fits
            }
            Operation::Unanswered { .. } | Operation::Failed { .. } => unreachable!("not made here"),
        }
    }
}

/// Operations of one history with the times of calls and returns: a log is played through in some order, each at a moment
/// between its call and its return; then a few answers and times are changed.
fn histories() -> impl Strategy<Value = Vec<(u64, u64, Operation<u32>)>> {
    let step = (0_u8..8, 0_u64..4, 1_u64..3, 0_u64..12, 0_u64..12);
    let change = (0_usize..8, 0_u8..4, 0_u64..6);
    (prop::collection::vec(step, 1..8), prop::collection::vec(change, 0..3)).prop_map(|(steps, changes)| {
        let mut log = Log::default();
        let mut ops = Vec::new();
        for (at, (kind, a, b, before, after)) in steps.into_iter().enumerate() {
            let operation = match kind {
                0..=2 => {
                    // With a gap at times: a hole.
                    let first = log.next + a / 3;
                    Operation::Append { first, records: (0..b).map(|i| (at * 10) as u32 + i as u32).collect() }
                }
                3 => match log.records.iter().nth(a as usize) {
                    Some((number, record)) => Operation::Read { number: *number, record: *record },
                    None => Operation::NotYet { number: log.next },
                },
                4 => Operation::NotYet { number: log.next + a / 2 },
                5 => match (0..log.next).find(|number| !log.records.contains_key(number)) {
                    Some(number) => Operation::Hole { number },
                    None => Operation::Tail { number: log.next },
                },
                6 => {
                    let (from, upto) = (a.min(log.next), log.next);
                    let records = log.records.range(from..upto).map(|(number, record)| (*number, *record)).collect();
                    Operation::Range { from, upto, records }
                }
                _ => Operation::Tail { number: log.next },
            };
            assert!(log.is_valid_step(&(), &operation), "{operation:?} of {log:?}");
            let moment = 20 + 10 * at as u64;
            // Times differ: a call's is even, a return's odd, and each operation has its own.
            let own = |time: u64| 32 * time + 2 * at as u64;
            ops.push((own(moment - before), own(moment + after) + 1, operation));
        }
        for (which, what, by) in changes {
            let count = ops.len();
            let (call, ret, operation) = &mut ops[which % count];
            match (what, operation) {
                (0, _) => (*call, *ret) = (*call + 32 * 20, *ret + 32 * 20),
                (
                    1 | 2,
                    Operation::Append { first: number, .. }
                    | Operation::Read { number, .. }
                    | Operation::NotYet { number }
                    | Operation::Hole { number }
                    | Operation::Tail { number },
                ) => *number = by,
                (1 | 2, Operation::Range { upto, .. }) => *upto = by,
                (_, Operation::Range { records, .. }) => _ = records.pop(),
                _ => *ret = *call + 1,
            }
        }
        ops
    })
}

/// What trying every order says.
fn in_some_order(ops: &[(u64, u64, Operation<u32>)]) -> bool {
    let mut moments: Vec<(u64, usize, bool)> = Vec::new();
    for (at, (call, ret, _)) in ops.iter().enumerate() {
        moments.extend([(*call, at, false), (*ret, at, true)]);
    }
    moments.sort_unstable();
    // Each operation is a thread of its own.
    let mut tester = LinearizabilityTester::new(Log::default());
    for (_, at, returns) in moments {
        if returns {
            tester.on_return(at, ops[at].2.clone()).unwrap();
        } else {
            tester.on_invoke(at, ()).unwrap();
        }
    }
    tester.is_consistent()
}

fn in_one_pass(ops: &[(u64, u64, Operation<u32>)]) -> bool {
    let mut history = History::default();
    for (call, ret, operation) in ops {
        history.push(*call, *ret, operation.clone());
    }
    history.check().is_ok()
}

#[test]
fn both_say_the_same() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(20_000));
    let counts = std::cell::Cell::new([0_u32; 2]);
    runner
        .run(&histories(), |ops| {
            let says = in_some_order(&ops);
            let mut now = counts.get();
            now[usize::from(says)] += 1;
            counts.set(now);
            prop_assert_eq!(in_one_pass(&ops), says, "{:#?}", ops);
            Ok(())
        })
        .unwrap();
    let [wrong, right] = counts.get();
    assert!(wrong > 2000 && right > 2000, "{wrong} histories are none of a log, {right} are");
}
