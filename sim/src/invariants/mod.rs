//! The invariants of the log, one named check a file. Each compares what the cores said or did with the
//! [`History`](crate::history::History), and answers with a [`Violation`] that names the invariant.
//!
//! Not here yet, because nothing that they speak of exists: I7 (a record whose condition was false is void on all members
//! alike; a tag's sub-stream is the same everywhere) comes with conditions and reading by tag, I8 (a multi-color append is
//! visible in all its colors or in none) with appends to several colors. I11 (no safety property depends on a clock) needs
//! no file: time passes here as chance has it, so whatever depends on it breaks another invariant.

pub(crate) mod history;
pub(crate) mod i01_one_number_one_record;
pub(crate) mod i02_on_every_member;
pub(crate) mod i03_settled_before_shown;
pub(crate) mod i04_acknowledged_before_sent;
pub(crate) mod i05_stays_readable;
pub(crate) mod i06_alike_below_stable;
pub(crate) mod i09_old_incarnations;
pub(crate) mod i10_recovery;
pub(crate) mod i12_bounds;
pub(crate) mod liveness;
pub(crate) mod mended;
pub(crate) mod outside;

use std::fmt;

/// What was broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Invariant {
    /// I1: no settled number names two records, and no token settles twice.
    OneNumberOneRecord,
    /// I2: numbers are asked for, and entries commit, only for what every member has persisted.
    OnEveryMember,
    /// I3: nothing is shown before it is settled.
    SettledBeforeShown,
    /// I4: what was acknowledged before another was sent has the smaller number.
    AcknowledgedBeforeSent,
    /// I5: what was acknowledged or read stays readable, same number, same bytes, until trimmed.
    StaysReadable,
    /// I6: below stable all members are alike, and an epoch has one last number.
    AlikeBelowStable,
    /// I9: an old incarnation changes nothing.
    OldIncarnations,
    /// I10: recovery yields all that was reported persisted, nothing torn, nothing invented.
    Recovery,
    /// I12: bounds hold, and who runs into one is told.
    Bounds,
    /// What clients of a color saw is the history of one log.
    History,
    /// A replica that is outside the view serves nobody.
    OutsideServesNobody,
    /// With faults at an end, nothing that rotted stays damaged, and each store has every settled record.
    Mended,
    /// No invariant of the log: a scenario's script comes to its end.
    Scenario,
    /// With faults at an end, everything comes to an end: appends are resolved, readers answered, members level.
    Liveness,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneNumberOneRecord => "I1 (one number, one record)",
            Self::OnEveryMember => "I2 (on every member)",
            Self::SettledBeforeShown => "I3 (settled before shown)",
            Self::AcknowledgedBeforeSent => "I4 (acknowledged before sent)",
            Self::StaysReadable => "I5 (stays readable)",
            Self::AlikeBelowStable => "I6 (alike below stable)",
            Self::OldIncarnations => "I9 (old incarnations)",
            Self::Recovery => "I10 (recovery)",
            Self::Bounds => "I12 (bounds)",
            Self::History => "history",
            Self::OutsideServesNobody => "outside serves nobody",
            Self::Mended => "mended",
            Self::Scenario => "scenario",
            Self::Liveness => "liveness",
        })
    }
}

/// An invariant does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// How.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// Fails unless `holds`; `what` says how.
pub(crate) fn check(holds: bool, invariant: Invariant, what: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { invariant, what: what() }) }
}
