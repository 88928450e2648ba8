//! Keeps a node's colors to their retentions: tells the [`Planner`] what the engine knows, and has the engine trim what
//! is due, as a client would.
//!
//! It relies on being called once in a while ([`Keeper::look_around`]), when a color reached its mark
//! ([`Keeper::look_at_marked`]), and with every answer to the node's own requests. It promises at most
//! [`MAX_ASKED`] requests under way, one of each color, and at most [`LOOKS_AT_ONCE`] colors looked at in one call.
//!
//! Its clock is the wall's at the start, or the highest time that an earlier process saw if that is later, and from
//! there on the time that passes: the wall clock may jump, back and forth, while the node runs.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use flexlog_protocol::api::{Answer, Request, Retention};
use flexlog_protocol::{ClusterId, Color, SeqNum};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Planner;
use super::file::{self, Kept, ReadError};
use crate::engine::{Engine, OWN};

/// The most requests under way at once.
const MAX_ASKED: usize = 1024;
/// The most colors that are looked at in one call.
const LOOKS_AT_ONCE: usize = 8192;

/// The retentions of a node's colors.
pub(crate) struct Keeper {
    planner: Planner,
    path: PathBuf,
    cluster: ClusterId,
    /// The time when this began, in seconds since 1970, and what has passed since.
    began: (u64, Instant),
    /// Colors with a request under way, and their stable numbers when it was sent.
    asked: FxHashMap<Color, SeqNum>,
    /// The last record of colors whose stable number is the first of an epoch, which is what it is kept with.
    ends: FxHashMap<Color, (SeqNum, Option<SeqNum>)>,
    /// Where the next look around goes on.
    turn: Option<Color>,
    changed: bool,
}

impl Keeper {
    /// Takes up the colors with bounds and what the file at `path` says of them, and has `engine` count their bytes.
    ///
    /// # Errors
    /// The file is there and cannot be used.
    pub(crate) fn open(
        path: &Path,
        cluster: ClusterId,
        bounds: Vec<(Color, Retention)>,
        engine: &mut Engine,
    ) -> Result<Self, ReadError> {
        let kept = file::read(path, cluster)?.unwrap_or_default();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut planner = Planner::default();
        let colors: Vec<Color> = bounds.iter().map(|(color, _)| *color).collect();
        for (color, bounds) in bounds {
            planner.set(color, bounds);
        }
        for (color, samples) in kept.colors {
            planner.restore(kept.time, color, samples);
        }
        let mut keeper = Self {
            planner,
            path: path.to_owned(),
            cluster,
            began: (wall.max(kept.time), Instant::now()),
            asked: FxHashMap::default(),
            ends: FxHashMap::default(),
            turn: None,
            changed: false,
        };
        colors.into_iter().for_each(|color| keeper.count(engine, color));
        Ok(keeper)
    }

    fn now(&self) -> u64 {
        self.began.0.saturating_add(self.began.1.elapsed().as_secs())
    }

    fn count(&mut self, engine: &mut Engine, color: Color) {
        engine.start_counting(color, self.planner.bytes(color));
        self.mark(engine, color);
    }

    /// Has the engine say when so many bytes came that it is time to look again.
    fn mark(&self, engine: &mut Engine, color: Color) {
        if let Some(bytes) = self.planner.next_mark(color) {
            engine.mark(color, bytes);
        }
    }

    /// A color's bounds are these from now on.
    pub(crate) fn set(&mut self, engine: &mut Engine, color: Color, bounds: Retention) {
        self.changed = true;
        if self.planner.set(color, bounds) {
            self.count(engine, color);
            self.look(engine, color);
        } else {
            engine.stop_counting(color);
            self.ends.remove(&color);
        }
    }

    /// What bounds a color has.
    pub(crate) fn bounds(&self, color: Color) -> Retention {
        self.planner.bounds(color)
    }

    /// These are the colors with bounds from now on, and no others are.
    pub(crate) fn set_all(&mut self, engine: &mut Engine, bounds: Vec<(Color, Retention)>) {
        let gone: Vec<Color> = self.planner.colors(None).collect();
        let stays: FxHashSet<Color> = bounds.iter().map(|(color, _)| *color).collect();
        for color in gone.into_iter().filter(|color| !stays.contains(color)) {
            self.set(engine, color, Retention::default());
        }
        for (color, bounds) in bounds {
            if self.bounds(color) != bounds {
                self.set(engine, color, bounds);
            }
        }
    }

    /// Whether no color has a bound, so that there is nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.planner.colors(None).next().is_none()
    }

    /// Looks at the colors with bounds, at some of them where they are many.
    pub(crate) fn look_around(&mut self, engine: &mut Engine) {
        let colors: Vec<Color> = self.planner.colors(self.turn).take(LOOKS_AT_ONCE).collect();
        self.turn = colors.last().copied().filter(|_| colors.len() == LOOKS_AT_ONCE);
        colors.into_iter().for_each(|color| self.look(engine, color));
    }

    /// Looks at the colors to which much was appended.
    pub(crate) fn look_at_marked(&mut self, engine: &mut Engine) {
        engine.take_marked().into_iter().for_each(|color| self.look(engine, color));
    }

    fn look(&mut self, engine: &mut Engine, color: Color) {
        let (Some(bytes), now) = (engine.bytes(color), self.now()) else { return };
        let stable = engine.stable(color);
        if let Some(last) = self.last_below(engine, color, stable) {
            self.changed |= self.planner.observe(now, color, last, bytes);
        }
        self.mark(engine, color);
        if let Some(upto) = self.planner.due(now, color) {
            // Nothing at or above stable is settled, and only what is may be trimmed.
            if upto < stable {
                self.ask(engine, color, stable, Request::Trim { id: color.0, color, upto });
            }
        }
    }

    /// The last settled number below `stable`, as far as it is known.
    fn last_below(&mut self, engine: &mut Engine, color: Color, stable: SeqNum) -> Option<SeqNum> {
        if let Some(counter) = stable.counter().checked_sub(1) {
            return Some(SeqNum::new(stable.epoch(), counter));
        }
        // The number before the first of an epoch is where an earlier one ended, and the member knows where.
        match self.ends.get(&color) {
            Some((at, last)) if *at == stable => *last,
            _ => {
                let request = Request::ReadPrev { id: color.0, color, tag: None, upto: SeqNum::MAX, wait_micros: 0 };
                self.ask(engine, color, stable, request);
                None
            }
        }
    }

    /// Asks, unless there is a request of this color under way already, or too many: it is looked at again.
    fn ask(&mut self, engine: &mut Engine, color: Color, stable: SeqNum, request: Request) {
        if self.asked.len() < MAX_ASKED && !self.asked.contains_key(&color) {
            self.asked.insert(color, stable);
            engine.request(OWN, request);
        }
    }

    /// Takes an answer to one of the node's own requests.
    pub(crate) fn answered(&mut self, answer: Answer) {
        let (id, end) = match answer {
            Answer::TrimDone { id, point } => {
                tracing::debug!(color = id, %point, "trimmed, as the color's retention says");
                self.changed |= self.planner.trimmed(Color(id), point);
                (id, None)
            }
            Answer::Record { id, number, .. } => (id, Some(Some(number))),
            Answer::NothingBefore { id } | Answer::Trimmed { id, .. } => (id, Some(None)),
            // It is asked again when the color is looked at again.
            Answer::Failed { id, why } => {
                tracing::warn!(color = id, %why, "the color cannot be kept to its retention now");
                (id, None)
            }
            Answer::NotYet { id, .. } | Answer::Hole { id } | Answer::Elsewhere { id } => (id, None),
            _ => return,
        };
        if let Some(stable) = self.asked.remove(&Color(id))
            && let Some(end) = end
        {
            self.ends.insert(Color(id), (stable, end));
        }
    }

    /// What is to be written, if it is not what was written last.
    pub(crate) fn take_changed(&mut self) -> Option<Unwritten> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let kept = Kept { time: self.planner.time(), colors: self.planner.samples().collect() };
        Some(Unwritten { path: self.path.clone(), cluster: self.cluster, kept })
    }

    /// What was taken could not be written.
    pub(crate) fn not_written(&mut self, error: &io::Error) {
        self.changed = true;
        let path = self.path.display();
        tracing::warn!(%error, "cannot write {path}: if the node stops before it can, records live longer than they should");
    }

    /// What is to be written when the node stops: as of now.
    pub(crate) fn take_last(&mut self, engine: &mut Engine) -> Option<Unwritten> {
        if self.is_idle() && !self.changed {
            return None;
        }
        self.turn = None;
        self.look_around(engine);
        self.changed = true;
        self.take_changed()
    }
}

/// The content of the file, on its way there.
pub(crate) struct Unwritten {
    path: PathBuf,
    cluster: ClusterId,
    kept: Kept,
}

impl Unwritten {
    /// Writes it. Waits for the disk.
    ///
    /// # Errors
    /// What the system said.
    pub(crate) fn write(self) -> io::Result<()> {
        file::write(&self.path, self.cluster, self.kept)
    }
}
