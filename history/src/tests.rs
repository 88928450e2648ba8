use super::*;

type Ops = Vec<(Time, Time, Operation<u32>)>;

fn append(first: Number, record: u32) -> Operation<u32> {
    Operation::Append { first, records: vec![record] }
}

fn read(number: Number, record: u32) -> Operation<u32> {
    Operation::Read { number, record }
}

fn history(ops: Ops) -> History<u32> {
    let mut history = History::default();
    for (call, ret, operation) in ops {
        history.push(call, ret, operation);
    }
    history
}

/// The words of what contradicts what; empty if nothing does.
fn verdict(ops: Ops) -> String {
    history(ops).check().err().map(|violation| violation.to_string()).unwrap_or_default()
}

#[test]
fn what_a_log_does_is_no_violation() {
    let ops = vec![
        (1, 5, append(0, 10)),
        // Both at once, and the one that was called later is first.
        (2, 4, Operation::Append { first: 2, records: vec![11, 12] }),
        (3, 8, append(1, 13)),
        (6, 7, read(3, 12)),
        (9, 10, Operation::Tail { number: 4 }),
        (11, 12, Operation::NotYet { number: 4 }),
        (13, 16, append(6, 14)),
        (14, 15, Operation::Hole { number: 5 }),
        (17, 18, Operation::Range { from: 1, upto: 6, records: vec![(1, 13), (2, 11), (3, 12)] }),
    ];
    assert_eq!(verdict(ops), "");
}

#[test]
fn a_number_names_one_record() {
    assert!(verdict(vec![(1, 2, append(0, 1)), (3, 4, append(0, 2))]).contains("number 0 is 2 and 1"));
    assert!(verdict(vec![(1, 2, append(0, 1)), (3, 4, read(0, 2))]).contains("2 was seen at 0"));
    assert!(verdict(vec![(1, 2, read(0, 2))]).contains("None was appended"));
    let failed = Operation::Failed { records: vec![2] };
    assert!(verdict(vec![(1, 2, failed), (3, 4, read(0, 2))]).contains("None was appended"));
}

#[test]
fn what_was_acknowledged_comes_before_what_is_sent_later() {
    assert!(verdict(vec![(1, 2, append(5, 1)), (3, 4, append(4, 2))]).contains("called at 3"));
    assert_eq!(verdict(vec![(1, 3, append(5, 1)), (2, 4, append(4, 2))]), "", "at once, in any order");
}

#[test]
fn nothing_is_seen_before_it_is_sent() {
    assert!(verdict(vec![(1, 2, read(0, 1)), (3, 4, append(0, 1))]).contains("called at 3"));
}

#[test]
fn what_was_shown_stays() {
    let not_yet = Operation::NotYet { number: 0 };
    assert!(verdict(vec![(1, 2, append(0, 1)), (3, 4, not_yet.clone())]).contains("NotYet"));
    assert!(verdict(vec![(1, 9, append(0, 1)), (2, 3, read(0, 1)), (4, 5, not_yet.clone())]).contains("NotYet"));
    assert_eq!(verdict(vec![(1, 9, append(0, 1)), (2, 4, read(0, 1)), (3, 5, not_yet)]), "");
    assert!(verdict(vec![(1, 2, append(0, 1)), (3, 4, Operation::Tail { number: 0 })]).contains("Tail"));
    assert!(verdict(vec![(1, 2, append(0, 1)), (3, 4, Operation::Hole { number: 0 })]).contains("said to be a hole"));
}

#[test]
fn a_tail_is_a_bound_for_both_sides() {
    assert!(verdict(vec![(1, 2, Operation::Tail { number: 3 }), (3, 4, append(2, 1))]).contains("called at 3"));
    assert!(
        verdict(vec![(1, 2, Operation::Tail { number: 3 }), (3, 4, Operation::Tail { number: 2 })]).contains("Tail")
    );
    let middle =
        vec![(1, 9, Operation::Append { first: 0, records: vec![1, 2] }), (2, 3, Operation::Tail { number: 1 })];
    assert!(verdict(middle).contains("in the middle"));
}

#[test]
fn all_that_is_there_is_all_there_is() {
    let range = |records| Operation::Range { from: 0, upto: 3, records };
    assert!(verdict(vec![(1, 9, append(1, 7)), (2, 3, range(vec![]))]).contains("was not given 7 at 1"));
    assert!(verdict(vec![(1, 2, range(vec![])), (3, 4, append(2, 7))]).contains("was not given"));
    assert!(verdict(vec![(1, 2, append(4, 7)), (3, 4, range(vec![(4, 7)]))]).contains("came as"));
    assert!(
        verdict(vec![(1, 2, append(0, 1)), (1, 2, append(1, 2)), (3, 4, range(vec![(1, 2), (0, 1)]))])
            .contains("came as")
    );
    let mut trimmed = history(vec![(1, 2, append(0, 1)), (1, 2, append(1, 2)), (3, 4, range(vec![(1, 2)]))]);
    assert!(trimmed.check().is_err());
    trimmed.trimmed(0);
    assert_eq!(trimmed.check(), Ok(()));
}

#[test]
fn what_nobody_answered_is_there_as_a_whole_or_not_at_all() {
    let of = |ops| {
        let mut history = history(ops);
        history.push_open(5, Operation::Unanswered { records: vec![1, 2] });
        history.check().err().map(|violation| violation.to_string()).unwrap_or_default()
    };
    assert_eq!(of(vec![(6, 7, Operation::Tail { number: 0 })]), "");
    assert_eq!(of(vec![(6, 7, read(4, 2)), (8, 9, read(3, 1))]), "");
    assert!(of(vec![(6, 7, read(4, 2)), (8, 9, Operation::NotYet { number: 3 })]).contains("NotYet"));
    assert!(of(vec![(6, 7, read(4, 2)), (8, 9, read(6, 1))]).contains("seen at 6"));
    assert!(of(vec![(6, 7, read(4, 2)), (8, 9, Operation::Hole { number: 3 })]).contains("hole"));
    assert!(of(vec![(1, 2, read(4, 2))]).contains("called at 5"), "before it was sent");
}
