//! Which records of a color may be forgotten, by its [`Retention`].
//!
//! [`Planner`] remembers, of each color with a bound, a few [`Sample`]s: at this time this was the last settled number,
//! and so many bytes had been appended. A record at or below a sample's number was appended no later than the sample
//! was taken, so once the sample is too old, or enough bytes came after it, all of those may go. Nothing is remembered
//! of a single record, and a color without a bound is not known here at all.
//!
//! It is pure: time, numbers and bytes are told to it. It relies on nothing for safety; what it promises is that it
//! errs to one side. A record goes late, by about a 64th of the bound and a little more, and never early:
//! - a sample that is lost or merged into a later one lets records live longer;
//! - bytes count from when they are staged, so that a sample has counted at least what is below its number;
//! - time never goes back here: it is the highest that was told. While a clock that went back catches up, nothing ages.
//!
//! What a trim says is an entry of the shard log, so members agree on what is gone whatever this decides (I5, I6, I11).
//! [`keeper`] plugs it into a node, and [`file`] has it outlive the process.

pub(crate) mod file;
pub(crate) mod keeper;

use std::collections::{BTreeMap, VecDeque};

use flexlog_protocol::api::Retention;
use flexlog_protocol::{Color, SeqNum};
use serde::{Deserialize, Serialize};

/// The most samples of a color.
pub(crate) const MAX_SAMPLES: usize = 128;
/// Into how many samples a bound is divided.
const PARTS: u64 = 64;
/// A color is not looked at out of turn before so many bytes came: 1 MiB.
const MIN_MARK_BYTES: u64 = 1 << 20;

/// What was so at some time. On disk it is `[at, last, bytes]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "(u64, u64, u64)", into = "(u64, u64, u64)")]
pub(crate) struct Sample {
    /// Seconds since 1970.
    pub(crate) at: u64,
    /// The last settled number, or one a little below it.
    pub(crate) last: SeqNum,
    /// Bytes of payload appended so far, since some beginning.
    pub(crate) bytes: u64,
}

impl From<(u64, u64, u64)> for Sample {
    fn from((at, last, bytes): (u64, u64, u64)) -> Self {
        Self { at, last: SeqNum::from_raw(last), bytes }
    }
}

impl From<Sample> for (u64, u64, u64) {
    fn from(sample: Sample) -> Self {
        (sample.at, sample.last.to_raw(), sample.bytes)
    }
}

/// One color with a bound.
#[derive(Debug)]
struct Track {
    bounds: Retention,
    /// Ascending in every part, in `last` strictly. None at or below `trimmed`.
    samples: VecDeque<Sample>,
    trimmed: Option<SeqNum>,
    /// As observed last.
    bytes: u64,
}

/// What may be forgotten, of all colors with a bound.
#[derive(Debug, Default)]
pub(crate) struct Planner {
    /// The highest time told so far.
    now: u64,
    colors: BTreeMap<Color, Track>,
}

impl Planner {
    /// Sets what bounds a color has from now on. Returns whether it has any.
    pub(crate) fn set(&mut self, color: Color, bounds: Retention) -> bool {
        if bounds.is_unlimited() {
            self.colors.remove(&color);
            return false;
        }
        let new = Track { bounds, samples: VecDeque::new(), trimmed: None, bytes: 0 };
        self.colors.entry(color).or_insert(new).bounds = bounds;
        true
    }

    /// What bounds a color has.
    pub(crate) fn bounds(&self, color: Color) -> Retention {
        self.colors.get(&color).map(|track| track.bounds).unwrap_or_default()
    }

    /// Takes up what an earlier process knew: its time, and samples of colors whose bounds are set already.
    ///
    /// Samples that do not ascend are not what [`Planner::samples`] gave; those behind the first such are left out.
    pub(crate) fn restore(&mut self, time: u64, color: Color, samples: impl IntoIterator<Item = Sample>) {
        self.now = self.now.max(time);
        let Some(track) = self.colors.get_mut(&color) else { return };
        for sample in samples.into_iter().take(MAX_SAMPLES) {
            let follows = track.samples.back().is_none_or(|before| {
                before.at <= sample.at && before.last < sample.last && before.bytes <= sample.bytes
            });
            if !follows || sample.at > self.now {
                return;
            }
            track.bytes = sample.bytes;
            track.samples.push_back(sample);
        }
    }

    /// The colors that have a bound, those above `after` only.
    pub(crate) fn colors(&self, after: Option<Color>) -> impl Iterator<Item = Color> + '_ {
        let above = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        self.colors.range((above, std::ops::Bound::Unbounded)).map(|(color, _)| *color)
    }

    /// What is to outlive the process: each color's samples.
    pub(crate) fn samples(&self) -> impl Iterator<Item = (Color, Vec<Sample>)> + '_ {
        let kept = self.colors.iter().filter(|(_, track)| !track.samples.is_empty());
        kept.map(|(color, track)| (*color, track.samples.iter().copied().collect()))
    }

    /// Bytes of a color as observed last, to be counted on from.
    pub(crate) fn bytes(&self, color: Color) -> u64 {
        self.colors.get(&color).map_or(0, |track| track.bytes)
    }

    /// The highest time told so far.
    pub(crate) fn time(&self) -> u64 {
        self.now
    }

    /// It is `now`; `last` is a settled number of `color`, the last one or a little below, and `bytes` were appended so
    /// far. Returns whether a sample was taken, or given up.
    pub(crate) fn observe(&mut self, now: u64, color: Color, last: SeqNum, bytes: u64) -> bool {
        self.now = self.now.max(now);
        let now = self.now;
        let Some(track) = self.colors.get_mut(&color) else { return false };
        track.bytes = track.bytes.max(bytes);
        let before = track.samples.len();
        // Of a log that was put in place of this one, or one that lost its end: they name numbers that are not settled.
        track.samples.retain(|sample| sample.last <= last);
        if track.wants(now, last) {
            if track.samples.len() >= MAX_SAMPLES {
                track.merge();
            }
            track.samples.push_back(Sample { at: now, last, bytes: track.bytes });
            return true;
        }
        track.samples.len() != before
    }

    /// How many bytes a color must have for a sample to be taken at once, where it has a bound in bytes.
    pub(crate) fn next_mark(&self, color: Color) -> Option<u64> {
        let track = self.colors.get(&color)?;
        let step = byte_step(track.bounds.max_bytes?.get());
        Some(track.bytes.saturating_add(step.max(MIN_MARK_BYTES)))
    }

    /// The highest number that may be forgotten by what was observed last, if that is news. At or below it everything may.
    pub(crate) fn due(&mut self, now: u64, color: Color) -> Option<SeqNum> {
        self.now = self.now.max(now);
        let track = self.colors.get(&color)?;
        // Times are whole seconds, so only what is more than a second past is past for sure.
        let aged = |sample: &Sample| track.bounds.max_age_secs.is_some_and(|age| self.now - sample.at > age.get());
        let full =
            |sample: &Sample| track.bounds.max_bytes.is_some_and(|most| track.bytes - sample.bytes >= most.get());
        let newest = track.samples.iter().rev().find(|sample| aged(sample) || full(sample))?;
        Some(newest.last)
    }

    /// Everything of a color at or below `point` is gone. Returns whether that changed what is to outlive the process.
    pub(crate) fn trimmed(&mut self, color: Color, point: SeqNum) -> bool {
        let Some(track) = self.colors.get_mut(&color) else { return false };
        track.trimmed = track.trimmed.max(Some(point));
        let before = track.samples.len();
        track.samples.retain(|sample| sample.last > point);
        track.samples.len() != before
    }
}

/// Bytes between samples.
fn byte_step(most: u64) -> u64 {
    (most / PARTS).max(1)
}

impl Track {
    /// Whether there is something to remember that the last sample does not say.
    fn wants(&self, now: u64, last: SeqNum) -> bool {
        if self.trimmed.is_some_and(|point| last <= point) {
            return false;
        }
        let Some(newest) = self.samples.back() else { return true };
        if last <= newest.last {
            return false;
        }
        let by_age = self.bounds.max_age_secs.is_some_and(|age| now - newest.at >= (age.get() / PARTS).max(1));
        let by_bytes = self.bounds.max_bytes.is_some_and(|most| self.bytes - newest.bytes >= byte_step(most.get()));
        by_age || by_bytes
    }

    /// Leaves out every second sample: its records are taken to be as new as those of the next one.
    fn merge(&mut self) {
        let newest = self.samples.len() - 1;
        let mut place = 0;
        self.samples.retain(|_| {
            place += 1;
            // The newest stays, so that what it covers is not taken for newer than it is.
            (newest + 1 - place).is_multiple_of(2)
        });
    }
}

#[cfg(test)]
mod tests;
