//! Who holds a position of the tree, as one of the processes sees it that may: the first one, or a standby.
//!
//! It relies on being told what the metadata says of the position, in any order and more than once; which heartbeats were
//! answered; what became of its claims; and when its deadline has come. It promises that a process claims a position only
//! in place of the holder that it knows, and only when that one has not answered for as long as it may be silent, or
//! there is none, or it ran at this process's own address; that it leads from each claim that was made, and stops leading
//! as soon as it hears of another holder. Nothing that is safe depends on any of this: whoever claims takes a fresh epoch,
//! and all others refuse what older ones say (I9, I11).
//!
//! Silence is counted in heartbeats and not in time: a process that did not run itself for a while has not asked, so it
//! takes nobody for dead.
//!
//! ```text
//! start ─▶ waiting: listening ◀──answer── backing off ──▶ reading ──▶ claiming ──made──▶ holding
//!              │        ▲  silent for long ──▲   ▲                       │                 │
//!              │        └───── another holder ───┴──── not made ─────────┘                 │
//!              └─────────────────────────── another holder ◀───────────────────────────────┘
//! ```
//!
//! It is pure: time, answers and chance (a seed) are given to it.

use std::mem;

use flexlog_protocol::{Epoch, Time};
use flexlog_tree_config::Holder;
use uuid::Uuid;

/// Heartbeats in the time that a holder may be silent.
const BEATS: u64 = 6;
/// A claim by a holder that could not be made is tried again after this time, in microseconds.
const CLAIM_AGAIN_MICROS: u64 = 500_000;

/// What the process is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Input {
    /// This is the holder, as the metadata had it not long ago.
    Told(Option<Holder>),
    /// The answer to [`Output::Read`].
    Read(Option<Holder>),
    /// The holder of this epoch answered a heartbeat: it holds the position.
    Answered(Epoch),
    /// The claim was made, with this epoch.
    Claimed(Epoch),
    /// The claim was not made: somebody else holds the position meanwhile.
    Lost,
    /// The metadata did not answer a read or a claim.
    Away,
    /// The position is to be claimed again by this process, if it holds it.
    Again,
    /// [`Standby::next_deadline`] has come.
    Tick,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Output {
    /// Send a heartbeat to the holder of this epoch.
    Beat {
        /// Its epoch.
        epoch: Epoch,
        /// Where it is.
        address: String,
    },
    /// Read the holder from the metadata.
    Read,
    /// Claim the position from the holder of this epoch, or from nobody.
    Claim(Option<Epoch>),
    /// Lead with this epoch from now on.
    Lead(Epoch),
    /// Stop leading.
    Depose,
    /// There is a holder that answers: this process stands by for it. Said once for each time of waiting.
    StandBy,
}

/// How a process takes part in a position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// Drawn by the process.
    pub(crate) uuid: Uuid,
    /// Where it listens; no other process that may hold the position listens there.
    pub(crate) address: String,
    /// Whether it is the first one and not a standby: then it claims a position that nobody holds at once.
    pub(crate) is_first: bool,
    /// Whether no other process may hold the position: then it claims it at once, whoever held it.
    pub(crate) is_alone: bool,
    /// How long a holder may be silent, in microseconds.
    pub(crate) detect_micros: u64,
}

/// The state of one process.
#[derive(Debug)]
pub(crate) struct Standby {
    me: Part,
    /// What the next draw comes from.
    seed: u64,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// The metadata has not been heard of.
    Starting,
    Waiting(Waiting),
    Holding {
        epoch: Epoch,
        claim: Claim,
    },
}

/// For a holder, or for nobody.
#[derive(Debug)]
struct Waiting {
    holder: Option<Holder>,
    /// It has answered, and [`Output::StandBy`] was said.
    stands_by: bool,
    /// It has answered since the last heartbeat.
    heard: bool,
    /// Heartbeats in a row that were not answered.
    silent: u64,
    /// When the next one is due.
    beat_at: Time,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Listening,
    /// It was silent for too long; another standby may have seen that too.
    BackingOff {
        until: Time,
    },
    Reading,
    Claiming,
}

/// Of a holder, for a fresh epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Claim {
    None,
    /// Under way; and whether one more is due after that.
    UnderWay {
        again: bool,
    },
    /// To be made at this time.
    At(Time),
}

impl Standby {
    /// A process that knows nothing yet. `seed` is drawn for it.
    pub(crate) fn new(me: Part, seed: u64) -> Self {
        Self { me, seed, phase: Phase::Starting }
    }

    /// The epoch in which this process holds the position, if it does as far as it knows.
    pub(crate) fn holds(&self) -> Option<Epoch> {
        match &self.phase {
            Phase::Holding { epoch, .. } => Some(*epoch),
            Phase::Starting | Phase::Waiting(_) => None,
        }
    }

    /// Whether it waits for a holder that has answered.
    pub(crate) fn stands_by(&self) -> bool {
        matches!(&self.phase, Phase::Waiting(waiting) if waiting.stands_by)
    }

    /// When to give [`Input::Tick`], if nothing else comes before.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Starting => None,
            Phase::Waiting(Waiting { step: Step::BackingOff { until }, beat_at, .. }) => Some(*until.min(beat_at)),
            Phase::Waiting(waiting) => Some(waiting.beat_at),
            Phase::Holding { claim: Claim::At(at), .. } => Some(*at),
            Phase::Holding { .. } => None,
        }
    }

    /// Takes one input, and says what is to be done, in this order.
    pub(crate) fn handle(&mut self, now: Time, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::Told(holder) => self.told(now, holder, &mut out),
            Input::Read(holder) => self.read(now, holder, &mut out),
            Input::Answered(epoch) => self.answered(epoch, &mut out),
            Input::Claimed(epoch) => self.claimed(epoch, &mut out),
            Input::Lost => match &mut self.phase {
                Phase::Waiting(waiting) if waiting.step == Step::Claiming => {
                    waiting.step = Step::Reading;
                    out.push(Output::Read);
                }
                // Who holds it now will be told.
                Phase::Holding { claim: claim @ Claim::UnderWay { .. }, .. } => {
                    *claim = Claim::None;
                    out.push(Output::Read);
                }
                _ => {}
            },
            Input::Away => match &mut self.phase {
                Phase::Waiting(waiting) if matches!(waiting.step, Step::Reading | Step::Claiming) => {
                    waiting.step = Step::Listening;
                }
                Phase::Holding { claim: claim @ Claim::UnderWay { .. }, .. } => {
                    *claim = Claim::At(now.after(CLAIM_AGAIN_MICROS));
                }
                _ => {}
            },
            Input::Again => {
                if let Phase::Holding { epoch, claim } = &mut self.phase {
                    match claim {
                        Claim::None => {
                            *claim = Claim::UnderWay { again: false };
                            out.push(Output::Claim(Some(*epoch)));
                        }
                        Claim::UnderWay { again } => *again = true,
                        Claim::At(_) => {}
                    }
                }
            }
            Input::Tick => self.tick(now, &mut out),
        }
        out
    }

    fn told(&mut self, now: Time, holder: Option<Holder>, out: &mut Vec<Output>) {
        let told = holder.as_ref().map(|holder| holder.epoch);
        let known = match &self.phase {
            Phase::Starting => return self.start(now, holder, out),
            Phase::Waiting(waiting) => waiting.holder.as_ref().map(|holder| holder.epoch),
            Phase::Holding { epoch, .. } => Some(*epoch),
        };
        // What was so before changes nothing: claims take ever higher epochs.
        if told <= known {
            return;
        }
        match holder {
            // A claim whose outcome this process has not heard yet.
            Some(holder) if holder.uuid == self.me.uuid => self.claimed(holder.epoch, out),
            holder => {
                if self.holds().is_some() {
                    out.push(Output::Depose);
                }
                self.wait_for(now, holder, out);
            }
        }
    }

    fn start(&mut self, now: Time, holder: Option<Holder>, out: &mut Vec<Output>) {
        let nobody = match &holder {
            None => self.me.is_first,
            // An earlier process; this one listens there now.
            Some(holder) => holder.address == self.me.address,
        };
        self.wait_for(now, holder, out);
        if (nobody || self.me.is_alone)
            && let Phase::Waiting(waiting) = &mut self.phase
        {
            out.clear();
            waiting.claim(out);
        }
    }

    fn wait_for(&mut self, now: Time, holder: Option<Holder>, out: &mut Vec<Output>) {
        let mut waiting = Waiting {
            holder,
            stands_by: false,
            // The first heartbeat goes out now; it counts when the second is due.
            heard: true,
            silent: 0,
            beat_at: now,
            step: Step::Listening,
        };
        waiting.beat(now, self.me.detect_micros, out);
        self.phase = Phase::Waiting(waiting);
    }

    fn read(&mut self, now: Time, holder: Option<Holder>, out: &mut Vec<Output>) {
        if let Phase::Waiting(waiting) = &mut self.phase
            && waiting.step == Step::Reading
            && waiting.holder.as_ref().map(|holder| holder.epoch) == holder.as_ref().map(|holder| holder.epoch)
        {
            return waiting.claim(out);
        }
        self.told(now, holder, out);
        // What was read is older than what is known: it is not what to go by.
        if let Phase::Waiting(waiting) = &mut self.phase
            && waiting.step == Step::Reading
        {
            waiting.step = Step::Listening;
        }
    }

    fn answered(&mut self, epoch: Epoch, out: &mut Vec<Output>) {
        let Phase::Waiting(waiting) = &mut self.phase else { return };
        if waiting.holder.as_ref().is_none_or(|holder| holder.epoch != epoch) {
            return;
        }
        waiting.heard = true;
        waiting.silent = 0;
        if matches!(waiting.step, Step::BackingOff { .. } | Step::Reading) {
            waiting.step = Step::Listening;
        }
        if !mem::replace(&mut waiting.stands_by, true) {
            out.push(Output::StandBy);
        }
    }

    fn claimed(&mut self, epoch: Epoch, out: &mut Vec<Output>) {
        let mut again = false;
        match &self.phase {
            // It was heard of in another way first.
            Phase::Holding { epoch: known, .. } if *known >= epoch => return,
            // Meanwhile somebody else has claimed the position.
            Phase::Waiting(waiting) if waiting.holder.as_ref().is_some_and(|holder| holder.epoch > epoch) => return,
            Phase::Holding { claim, .. } => again = *claim == Claim::UnderWay { again: true },
            Phase::Starting | Phase::Waiting(_) => {}
        }
        out.push(Output::Lead(epoch));
        self.phase = Phase::Holding { epoch, claim: Claim::None };
        if again {
            out.extend(self.handle(Time(0), Input::Again));
        }
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Output>) {
        let detect = self.me.detect_micros;
        match &mut self.phase {
            Phase::Starting => {}
            Phase::Holding { epoch, claim } => {
                if matches!(claim, Claim::At(at) if *at <= now) {
                    *claim = Claim::UnderWay { again: false };
                    out.push(Output::Claim(Some(*epoch)));
                }
            }
            Phase::Waiting(waiting) => {
                if waiting.beat_at <= now {
                    waiting.beat(now, detect, out);
                }
                match waiting.step {
                    Step::Listening if waiting.silent >= BEATS => {
                        let wait = draw(&mut self.seed) % (detect / 3 + 1);
                        waiting.step = Step::BackingOff { until: now.after(wait) };
                    }
                    Step::BackingOff { until } if until <= now => {
                        waiting.step = Step::Reading;
                        out.push(Output::Read);
                    }
                    _ => {}
                }
            }
        }
    }
}

impl Waiting {
    /// A heartbeat is due: counts the one before, and sends the next.
    fn beat(&mut self, now: Time, detect_micros: u64, out: &mut Vec<Output>) {
        self.silent = if mem::replace(&mut self.heard, false) { 0 } else { self.silent + 1 };
        self.beat_at = now.after((detect_micros / BEATS).max(1));
        if let Some(Holder { epoch, address, .. }) = &self.holder {
            out.push(Output::Beat { epoch: *epoch, address: address.clone() });
        }
    }

    fn claim(&mut self, out: &mut Vec<Output>) {
        self.step = Step::Claiming;
        out.push(Output::Claim(self.holder.as_ref().map(|holder| holder.epoch)));
    }
}

/// A number of 64 bits: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
fn draw(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests;
