//! A client's session at this member: which of its appends are open, staged or numbered, and which are forgotten.
//!
//! A ring of at most [`TOKEN_WINDOW`] slots by seq. The client sends with each append the smallest seq it still cares
//! about; answers below are forgotten and tokens below are never staged again. What was staged below and is not
//! numbered yet stays known beside the ring, since a staged record leaves only by an assignment or with its session.

use std::collections::{BTreeMap, VecDeque};

use flexlog_protocol::limits::TOKEN_WINDOW;
use flexlog_protocol::{Color, Lsn, SeqNum};
use uuid::Uuid;

/// An append that is on its way, or arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    pub(crate) color: Color,
    pub(crate) records: u32,
    pub(crate) digest: u64,
    pub(crate) bytes: u32,
    pub(crate) state: SlotState,
}

/// How far an append has come here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotState {
    /// Written, not durable yet.
    Staging,
    /// Durable, without a number.
    Staged,
    /// Numbered by the entry at this place.
    Assigned(SeqNum, Lsn),
}

/// What a session says to a seq.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lookup {
    /// Never seen; it may be staged.
    Free,
    /// Known.
    Known(Slot),
    /// Below the client's low mark.
    TooOld,
    /// Too far above the client's low mark.
    WindowFull,
}

/// One session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Session {
    pub(crate) nonce: Uuid,
    /// The smallest seq that is still answered; the ring starts here.
    base: u64,
    ring: VecDeque<Option<Slot>>,
    /// Staged below `base`.
    behind: BTreeMap<u64, Slot>,
}

impl Session {
    pub(crate) fn new(nonce: Uuid) -> Self {
        Self { nonce, base: 1, ring: VecDeque::new(), behind: BTreeMap::new() }
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The client cares no more about seqs below `low`.
    pub(crate) fn forget_below(&mut self, low: u64) {
        while self.base < low {
            match self.ring.pop_front() {
                None => {
                    self.base = low;
                    return;
                }
                Some(Some(slot)) if !matches!(slot.state, SlotState::Assigned(..)) => {
                    self.behind.insert(self.base, slot);
                }
                Some(_) => {}
            }
            self.base += 1;
        }
    }

    pub(crate) fn lookup(&self, seq: u64) -> Lookup {
        if seq < self.base {
            return Lookup::TooOld;
        }
        if seq - self.base >= TOKEN_WINDOW {
            return Lookup::WindowFull;
        }
        match self.ring.get((seq - self.base) as usize) {
            Some(Some(slot)) => Lookup::Known(*slot),
            _ => Lookup::Free,
        }
    }

    /// The slot of `seq`, also where it is behind the ring.
    pub(crate) fn get(&self, seq: u64) -> Option<Slot> {
        match seq.checked_sub(self.base) {
            Some(at) => self.ring.get(at as usize).copied().flatten(),
            None => self.behind.get(&seq).copied(),
        }
    }

    /// Puts `slot` at `seq`. A seq more than the window above the base moves the base: the client had given up
    /// everything below when it sent that seq.
    pub(crate) fn put(&mut self, seq: u64, slot: Slot) {
        if let Some(low) = (seq + 1).checked_sub(TOKEN_WINDOW) {
            self.forget_below(low);
        }
        if seq < self.base {
            if matches!(slot.state, SlotState::Assigned(..)) {
                self.behind.remove(&seq);
            } else {
                self.behind.insert(seq, slot);
            }
            return;
        }
        let at = (seq - self.base) as usize;
        if self.ring.len() <= at {
            self.ring.resize(at + 1, None);
        }
        self.ring[at] = Some(slot);
    }

    /// Forgets `seq`: its records were refused by the store.
    pub(crate) fn clear(&mut self, seq: u64) {
        match seq.checked_sub(self.base) {
            Some(at) => {
                if let Some(slot) = self.ring.get_mut(at as usize) {
                    *slot = None;
                }
            }
            None => {
                self.behind.remove(&seq);
            }
        }
    }

    /// Every known append, in order of seq.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u64, Slot)> {
        let ring = self.ring.iter().enumerate().filter_map(|(at, slot)| Some((self.base + at as u64, (*slot)?)));
        self.behind.iter().map(|(seq, slot)| (*seq, *slot)).chain(ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexlog_protocol::Epoch;

    fn slot(state: SlotState) -> Slot {
        Slot { color: Color(1), records: 1, digest: 7, bytes: 10, state }
    }

    fn assigned() -> Slot {
        slot(SlotState::Assigned(SeqNum::new(Epoch(1), 0), Lsn(3)))
    }

    #[test]
    fn a_forgotten_append_is_too_old() {
        let mut session = Session::new(Uuid::nil());
        session.put(1, assigned());
        session.put(2, slot(SlotState::Staged));
        assert_eq!(session.lookup(1), Lookup::Known(assigned()));
        session.forget_below(3);
        assert_eq!((session.lookup(1), session.lookup(2)), (Lookup::TooOld, Lookup::TooOld));
        assert_eq!(session.get(1), None);
        assert_eq!(session.get(2), Some(slot(SlotState::Staged)), "what is staged stays known until it is numbered");
        session.put(2, assigned());
        assert_eq!(session.get(2), None);
    }

    #[test]
    fn the_window_is_bounded() {
        let mut session = Session::new(Uuid::nil());
        assert_eq!(session.lookup(TOKEN_WINDOW), Lookup::Free);
        assert_eq!(session.lookup(TOKEN_WINDOW + 1), Lookup::WindowFull);
        session.forget_below(2);
        assert_eq!(session.lookup(TOKEN_WINDOW + 1), Lookup::Free);
    }

    #[test]
    fn replay_without_low_marks_keeps_a_window() {
        let mut session = Session::new(Uuid::nil());
        for seq in 1..=3 * TOKEN_WINDOW {
            session.put(seq, assigned());
        }
        assert_eq!(session.slots().count() as u64, TOKEN_WINDOW);
        assert_eq!(session.lookup(2 * TOKEN_WINDOW), Lookup::TooOld);
        assert_eq!(session.lookup(2 * TOKEN_WINDOW + 1), Lookup::Known(assigned()));
    }

    #[test]
    fn low_marks_may_jump() {
        let mut session = Session::new(Uuid::nil());
        session.put(1, assigned());
        session.forget_below(1_000_000);
        assert_eq!((session.base(), session.lookup(1_000_000)), (1_000_000, Lookup::Free));
        session.forget_below(5);
        assert_eq!(session.base(), 1_000_000, "a late message does not take a low mark back");
    }
}
