use proptest::prelude::*;

use super::*;

const DETECT: u64 = 600;
const BEAT: u64 = DETECT / BEATS;
const ME: Uuid = Uuid::from_u128(7);

fn part() -> Part {
    Part { uuid: ME, address: "me:1".into(), is_first: false, is_alone: false, detect_micros: DETECT }
}

fn holder(epoch: u32) -> Holder {
    Holder { epoch: Epoch(epoch), uuid: Uuid::from_u128(100 + u128::from(epoch)), address: format!("h{epoch}:1") }
}

fn mine(epoch: u32) -> Holder {
    Holder { epoch: Epoch(epoch), uuid: ME, address: "me:1".into() }
}

fn beat(epoch: u32) -> Output {
    Output::Beat { epoch: Epoch(epoch), address: format!("h{epoch}:1") }
}

/// A process that waits for the holder of epoch 1 since time 0.
fn waiting() -> Standby {
    let mut standby = Standby::new(part(), 1);
    assert_eq!(standby.handle(Time(0), Input::Told(Some(holder(1)))), [beat(1)]);
    standby
}

/// Gives ticks when they are due, until something else than a heartbeat is to be done; and when that was.
fn silence(standby: &mut Standby) -> (Time, Vec<Output>) {
    for _ in 0..100 {
        let now = standby.next_deadline().unwrap();
        let mut out = standby.handle(now, Input::Tick);
        out.retain(|output| !matches!(output, Output::Beat { .. }));
        if !out.is_empty() {
            return (now, out);
        }
    }
    panic!("nothing comes of it: {standby:?}");
}

#[test]
fn who_is_first_claims_what_nobody_holds_and_a_standby_waits_for_it() {
    let mut first = Standby::new(Part { is_first: true, ..part() }, 1);
    assert_eq!(first.next_deadline(), None);
    assert_eq!(first.handle(Time(5), Input::Told(None)), [Output::Claim(None)]);
    assert_eq!(first.handle(Time(6), Input::Claimed(Epoch(1))), [Output::Lead(Epoch(1))]);
    assert_eq!((first.holds(), first.next_deadline()), (Some(Epoch(1)), None));

    let mut standby = Standby::new(part(), 1);
    assert_eq!(standby.handle(Time(0), Input::Told(None)), []);
    let (at, out) = silence(&mut standby);
    assert_eq!(out, [Output::Read]);
    assert!(at >= Time(DETECT) && at <= Time(DETECT + DETECT / 3), "{at:?}");
    assert_eq!(standby.handle(at, Input::Read(None)), [Output::Claim(None)]);
}

#[test]
fn what_an_earlier_process_of_this_address_held_is_claimed_at_once() {
    let before = Holder { address: "me:1".into(), ..holder(3) };
    for is_first in [true, false] {
        let mut standby = Standby::new(Part { is_first, ..part() }, 1);
        let out = standby.handle(Time(0), Input::Told(Some(before.clone())));
        assert_eq!(out, [Output::Claim(Some(Epoch(3)))]);
    }
    let mut alone = Standby::new(Part { is_alone: true, is_first: true, ..part() }, 1);
    assert_eq!(alone.handle(Time(0), Input::Told(Some(holder(3)))), [Output::Claim(Some(Epoch(3)))]);
    let mut first = Standby::new(Part { is_first: true, ..part() }, 1);
    assert_eq!(first.handle(Time(0), Input::Told(Some(holder(3)))), [beat(3)]);
}

#[test]
fn a_holder_that_answers_is_left_alone() {
    let mut standby = waiting();
    assert!(!standby.stands_by());
    assert_eq!(standby.handle(Time(1), Input::Answered(Epoch(1))), [Output::StandBy]);
    for beats in 1..50 {
        let now = standby.next_deadline().unwrap();
        assert_eq!(now, Time(beats * BEAT));
        assert_eq!(standby.handle(now, Input::Tick), [beat(1)]);
        // One in five arrives.
        if beats % 5 == 0 {
            assert_eq!(standby.handle(now, Input::Answered(Epoch(1))), []);
        }
    }
    assert!(standby.stands_by() && standby.holds().is_none());
}

#[test]
fn a_silent_holder_is_replaced_after_it_was_read_again() {
    let mut standby = waiting();
    standby.handle(Time(1), Input::Answered(Epoch(1)));
    // Of a holder before: no answer of this one.
    standby.handle(Time(2), Input::Answered(Epoch(0)));
    let (at, out) = silence(&mut standby);
    assert_eq!(out, [Output::Read]);
    assert!(at >= Time(DETECT + BEAT) && at <= Time(DETECT + BEAT + DETECT / 3), "{at:?}");
    assert_eq!(standby.handle(at, Input::Told(Some(holder(1)))), [], "only what is read counts");
    assert_eq!(standby.handle(at, Input::Read(Some(holder(1)))), [Output::Claim(Some(Epoch(1)))]);
    assert_eq!(standby.handle(at, Input::Claimed(Epoch(4))), [Output::Lead(Epoch(4))]);
    // The watch says so too.
    assert_eq!(standby.handle(at, Input::Told(Some(mine(4)))), []);
    assert_eq!(standby.holds(), Some(Epoch(4)));
}

#[test]
fn an_answer_while_it_backs_off_is_in_time() {
    for reads in [false, true] {
        let mut standby = waiting();
        let (at, _) = silence(&mut standby);
        if !reads {
            standby = waiting();
            while !matches!(&standby.phase, Phase::Waiting(Waiting { step: Step::BackingOff { .. }, .. })) {
                let now = standby.next_deadline().unwrap();
                standby.handle(now, Input::Tick);
            }
        }
        assert_eq!(standby.handle(at, Input::Answered(Epoch(1))), [Output::StandBy]);
        assert_eq!(standby.handle(at, Input::Read(Some(holder(1)))), []);
        assert!(standby.next_deadline().unwrap() > Time(DETECT));
    }
}

#[test]
fn another_standby_that_was_faster_is_waited_for() {
    let mut standby = waiting();
    let (at, _) = silence(&mut standby);
    assert_eq!(standby.handle(at, Input::Read(Some(holder(2)))), [beat(2)]);
    // A new holder has all of its time.
    assert_eq!(standby.next_deadline(), Some(at.after(BEAT)));
    let (later, out) = silence(&mut standby);
    assert_eq!(out, [Output::Read]);
    assert!(later >= at.after(DETECT));
    // And one that is faster in the last moment.
    assert_eq!(standby.handle(later, Input::Read(Some(holder(2)))), [Output::Claim(Some(Epoch(2)))]);
    assert_eq!(standby.handle(later, Input::Lost), [Output::Read]);
    assert_eq!(standby.handle(later, Input::Read(Some(holder(3)))), [beat(3)]);
}

#[test]
fn one_that_did_not_run_itself_takes_nobody_for_dead() {
    let mut standby = waiting();
    standby.handle(Time(1), Input::Answered(Epoch(1)));
    // Stopped for long: one tick, and not all that were missed.
    let long = Time(1000 * DETECT);
    assert_eq!(standby.handle(long, Input::Tick), [beat(1)]);
    assert_eq!(standby.next_deadline(), Some(long.after(BEAT)));
    assert_eq!(standby.handle(long.after(1), Input::Answered(Epoch(1))), []);
    let (at, _) = silence(&mut standby);
    assert!(at > long.after(DETECT));
}

#[test]
fn who_hears_of_another_holder_stops_leading() {
    let mut standby = Standby::new(Part { is_first: true, ..part() }, 1);
    standby.handle(Time(0), Input::Told(None));
    standby.handle(Time(0), Input::Claimed(Epoch(2)));
    assert_eq!(standby.handle(Time(1), Input::Told(Some(holder(1)))), [], "from before its claim");
    assert_eq!(standby.handle(Time(2), Input::Told(Some(holder(3)))), [Output::Depose, beat(3)]);
    assert_eq!((standby.holds(), standby.stands_by()), (None, false));
    assert_eq!(standby.handle(Time(3), Input::Answered(Epoch(3))), [Output::StandBy]);
    // It takes over again.
    let (at, _) = silence(&mut standby);
    assert_eq!(standby.handle(at, Input::Read(Some(holder(3)))), [Output::Claim(Some(Epoch(3)))]);
    assert_eq!(standby.handle(at, Input::Claimed(Epoch(4))), [Output::Lead(Epoch(4))]);
}

#[test]
fn without_the_metadata_it_goes_on_trying() {
    let mut standby = waiting();
    for _ in 0..3 {
        let (at, out) = silence(&mut standby);
        assert_eq!(out, [Output::Read]);
        assert_eq!(standby.handle(at, Input::Away), []);
    }
    let (at, _) = silence(&mut standby);
    assert_eq!(standby.handle(at, Input::Read(Some(holder(1)))), [Output::Claim(Some(Epoch(1)))]);
    assert_eq!(standby.handle(at, Input::Away), []);
    // The claim was made all the same.
    assert_eq!(standby.handle(at, Input::Told(Some(mine(5)))), [Output::Lead(Epoch(5))]);
}

#[test]
fn a_holder_claims_again_when_asked_one_claim_at_a_time() {
    let mut standby = Standby::new(Part { is_alone: true, ..part() }, 1);
    assert_eq!(standby.handle(Time(0), Input::Again), [], "it holds nothing yet");
    standby.handle(Time(0), Input::Told(None));
    assert_eq!(standby.handle(Time(0), Input::Again), []);
    standby.handle(Time(0), Input::Claimed(Epoch(1)));
    assert_eq!(standby.handle(Time(1), Input::Again), [Output::Claim(Some(Epoch(1)))]);
    assert_eq!(standby.handle(Time(1), Input::Again), []);
    let again = [Output::Lead(Epoch(2)), Output::Claim(Some(Epoch(2)))];
    assert_eq!(standby.handle(Time(2), Input::Claimed(Epoch(2))), again);
    assert_eq!(standby.handle(Time(3), Input::Away), []);
    let at = standby.next_deadline().unwrap();
    assert_eq!(at, Time(3 + CLAIM_AGAIN_MICROS));
    assert_eq!(standby.handle(at, Input::Tick), [Output::Claim(Some(Epoch(2)))]);
    assert_eq!(standby.handle(at, Input::Lost), [Output::Read]);
    assert_eq!(standby.handle(at, Input::Read(Some(holder(3)))), [Output::Depose, beat(3)]);
}

/// What may happen to a group of processes and the metadata that they share.
#[derive(Clone, Copy, Debug)]
enum Happens {
    /// Time passes, in heartbeats of the group; heartbeats reach those whose holders run.
    Pass(u8),
    /// A process stops, or goes on.
    Stop(usize),
    Go(usize),
    /// A process is told what the metadata says.
    Tell(usize),
    /// The metadata goes away, or comes back.
    Away(bool),
    /// A process is to claim again.
    Again(usize),
}

fn step() -> impl Strategy<Value = Happens> {
    prop_oneof![
        6 => (1_u8..20).prop_map(Happens::Pass),
        2 => (0_usize..3).prop_map(Happens::Stop),
        2 => (0_usize..3).prop_map(Happens::Go),
        2 => (0_usize..3).prop_map(Happens::Tell),
        1 => any::<bool>().prop_map(Happens::Away),
        1 => (0_usize..3).prop_map(Happens::Again),
    ]
}

struct Group {
    processes: Vec<(Standby, bool)>,
    holder: Option<Holder>,
    epochs: u32,
    away: bool,
    now: Time,
}

impl Group {
    fn new() -> Self {
        let process = |n: usize| {
            let part = Part {
                uuid: Uuid::from_u128(n as u128),
                address: format!("p{n}:1"),
                is_first: n == 0,
                is_alone: false,
                detect_micros: DETECT,
            };
            (Standby::new(part, n as u64), true)
        };
        Self { processes: (0..3).map(process).collect(), holder: None, epochs: 0, away: false, now: Time(0) }
    }

    fn give(&mut self, n: usize, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let before = self.processes[n].0.holds();
            for output in self.processes[n].0.handle(self.now, input) {
                match output {
                    Output::Beat { epoch, .. } => {
                        let answers = self.processes.iter().any(|(other, runs)| *runs && other.holds() == Some(epoch));
                        if answers {
                            inputs.push(Input::Answered(epoch));
                        }
                    }
                    Output::Read if self.away => inputs.push(Input::Away),
                    Output::Read => inputs.push(Input::Read(self.holder.clone())),
                    Output::Claim(_) if self.away => inputs.push(Input::Away),
                    Output::Claim(from) => {
                        if self.holder.as_ref().map(|holder| holder.epoch) == from {
                            self.epochs += 1;
                            let part = &self.processes[n].0.me;
                            let (uuid, address) = (part.uuid, part.address.clone());
                            self.holder = Some(Holder { epoch: Epoch(self.epochs), uuid, address });
                            inputs.push(Input::Claimed(Epoch(self.epochs)));
                        } else {
                            inputs.push(Input::Lost);
                        }
                    }
                    Output::Lead(epoch) => assert!(before.is_none_or(|before| before < epoch)),
                    Output::Depose => assert!(before.is_some()),
                    Output::StandBy => {}
                }
            }
        }
    }

    fn pass(&mut self) {
        self.now = self.now.after(BEAT);
        for n in 0..self.processes.len() {
            if self.processes[n].1 && self.processes[n].0.next_deadline().is_some_and(|due| due <= self.now) {
                self.give(n, Input::Tick);
            }
        }
    }
}

proptest! {
    /// Whatever happens, nobody holds an epoch that it was not given, no two the same one; and once all runs and the
    /// metadata is there, one process holds the position, the metadata names it, and all others stand by for it.
    #[test]
    fn one_of_a_group_holds_the_position_in_the_end(steps in proptest::collection::vec(step(), 0..60)) {
        let mut group = Group::new();
        for n in 0..3 {
            group.give(n, Input::Told(None));
        }
        for step in steps {
            match step {
                Happens::Pass(beats) => (0..beats).for_each(|_| group.pass()),
                Happens::Stop(n) => group.processes[n].1 = false,
                Happens::Go(n) => group.processes[n].1 = true,
                Happens::Away(away) => group.away = away,
                Happens::Tell(n) if group.processes[n].1 && !group.away => group.give(n, Input::Told(group.holder.clone())),
                Happens::Again(n) if group.processes[n].1 => group.give(n, Input::Again),
                Happens::Tell(_) | Happens::Again(_) => {}
            }
            let mut held: Vec<Epoch> = group.processes.iter().filter_map(|(process, _)| process.holds()).collect();
            held.sort_unstable();
            prop_assert!(held.windows(2).all(|pair| pair[0] < pair[1]), "{held:?}");
            prop_assert!(held.last().is_none_or(|last| *last <= Epoch(group.epochs)));
        }
        group.away = false;
        for n in 0..3 {
            group.processes[n].1 = true;
            group.give(n, Input::Told(group.holder.clone()));
        }
        // Enough for a silence, a backoff, the claim, and a heartbeat to the new holder; claims that failed wait for long.
        group.now = group.now.after(CLAIM_AGAIN_MICROS);
        for _ in 0..4 * BEATS {
            group.pass();
            for n in 0..3 {
                group.give(n, Input::Told(group.holder.clone()));
            }
        }
        let holder = group.holder.as_ref().map(|holder| holder.epoch);
        let holding: Vec<_> = group.processes.iter().filter_map(|(process, _)| process.holds()).collect();
        prop_assert_eq!(holding, holder.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(group.processes.iter().filter(|(process, _)| process.stands_by()).count(), 2);
    }
}
