//! The `sim` device: a medium in memory that can lose what was not fenced, for tests and the simulator.
//!
//! [`SimMedia`] is the medium: it outlives the device that a store holds, says when fences are done, injects faults, and
//! gives out images of what a crash would leave, any subset of the unfenced 8-byte words, drawn from a seed.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flexlog_protocol::media::{AreaReader, Device, FenceId};

/// The pseudo-random numbers of one seed: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Bytes of a line.
const LINE: u64 = 64;

/// When fences are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fences {
    /// When they are asked for, as on memory.
    #[default]
    AtOnce,
    /// When [`SimMedia::finish_fence`] says so, as on a disk.
    WhenTold,
    /// They claim to be done at once and do nothing: a broken medium, for checking the checkers.
    Lying,
}

type Wake = Arc<dyn Fn() + Send + Sync>;

#[derive(Clone, Default)]
struct State {
    /// What a reader sees.
    seen: Vec<u8>,
    /// What the last fence that is done left.
    kept: Vec<u8>,
    /// Writes since then, in order, each with the fence that covers it once that was asked for.
    writes: Vec<(Option<u64>, u64, Vec<u8>)>,
    started: u64,
    done: u64,
    fences: Fences,
    limit: u64,
    broken: bool,
    break_at_fence: Option<u64>,
    break_at_write: Option<u64>,
    write_count: u64,
    wake: Option<Wake>,
    step: Option<Wake>,
}

/// The medium. Clones are the same medium.
#[derive(Clone, Default)]
pub struct SimMedia(Arc<Mutex<State>>);

impl std::fmt::Debug for SimMedia {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        write!(f, "SimMedia({} bytes, {} unfenced writes)", state.seen.len(), state.writes.len())
    }
}

impl State {
    fn settle(&mut self, upto: u64) {
        let Self { kept, seen, writes, .. } = self;
        kept.resize(seen.len(), 0);
        writes.retain(|(fence, at, bytes)| {
            let covered = fence.is_some_and(|fence| fence <= upto);
            if covered {
                kept[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
            }
            !covered
        });
        self.done = upto;
    }
}

impl SimMedia {
    /// An empty medium that takes `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let media = Self::default();
        media.state().limit = limit;
        media
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A device on this medium. At most one is used at a time.
    #[must_use]
    pub fn device(&self) -> SimDevice {
        SimDevice(self.clone())
    }

    /// Sets when fences are done.
    pub fn set_fences(&self, fences: Fences) {
        self.state().fences = fences;
    }

    /// Ends the fence that is under way, where fences are done when told. Returns whether there was one.
    pub fn finish_fence(&self) -> bool {
        let mut state = self.state();
        if state.done == state.started {
            return false;
        }
        let upto = state.started;
        state.settle(upto);
        let wake = state.wake.clone();
        drop(state);
        if let Some(wake) = wake {
            wake();
        }
        true
    }

    /// The `n`th fence from now on fails, and everything after it; 1 is the next.
    pub fn fail_fence(&self, n: u64) {
        let mut state = self.state();
        state.break_at_fence = Some(state.started + n);
    }

    /// The `n`th write from now on fails, and everything after it; 1 is the next.
    pub fn fail_write(&self, n: u64) {
        let mut state = self.state();
        state.break_at_write = Some(state.write_count + n);
    }

    /// The medium takes so many bytes from now on; what it has stays.
    pub fn set_limit(&self, limit: u64) {
        self.state().limit = limit;
    }

    /// A new medium that holds what a power cut now could leave: all that was fenced, and of the writes since then some
    /// of the 8-byte words, or of the 64-byte lines, or all, or nothing, as the seed has it.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        let mut draw = SplitMix(seed);
        let state = self.state();
        let mut kept = state.kept.clone();
        kept.resize(state.seen.len(), 0);
        let grain = [8, 8, 64, 64, 4096][(draw.draw() % 5) as usize];
        // Out of 8: from nothing to everything.
        let odds = draw.draw() % 9;
        for (_, at, bytes) in &state.writes {
            let (mut at, mut bytes) = (*at as usize, bytes.as_slice());
            while !bytes.is_empty() {
                let n = bytes.len().min(grain - at % grain);
                if draw.draw() % 8 < odds {
                    kept[at..at + n].copy_from_slice(&bytes[..n]);
                }
                at += n;
                bytes = &bytes[n..];
            }
        }
        Self::of(kept, state.limit)
    }

    /// The lines of 64 bytes that have something which no done fence covers, in order.
    #[must_use]
    pub fn lines(&self) -> Vec<u64> {
        let state = self.state();
        let lines = |(_, at, bytes): &(_, u64, Vec<u8>)| at / LINE..(at + bytes.len() as u64).div_ceil(LINE);
        let lines: std::collections::BTreeSet<u64> = state.writes.iter().flat_map(lines).collect();
        lines.into_iter().collect()
    }

    /// A new medium that holds what a power cut now leaves if it keeps those of [`SimMedia::lines`] whose bit is set, the
    /// lowest 64, as a reader sees them; and the others as the last done fence left them.
    #[must_use]
    pub fn crash_with(&self, choice: u64) -> Self {
        let lines = self.lines();
        let state = self.state();
        let mut kept = state.kept.clone();
        kept.resize(state.seen.len(), 0);
        for (_, line) in lines.iter().enumerate().filter(|(bit, _)| *bit < 64 && choice >> bit & 1 == 1) {
            let (from, to) = ((line * LINE) as usize, (((line + 1) * LINE) as usize).min(kept.len()));
            kept[from..to].copy_from_slice(&state.seen[from..to]);
        }
        Self::of(kept, state.limit)
    }

    /// The medium as it is, what is not fenced included, and apart from this one from now on.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        let state = State { step: None, wake: None, ..self.state().clone() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Has `step` called after each write, fence and growth.
    pub fn on_step(&self, step: Box<dyn Fn() + Send + Sync>) {
        self.state().step = Some(step.into());
    }

    fn stepped(&self) {
        let step = self.state().step.clone();
        if let Some(step) = step {
            step();
        }
    }

    /// A new medium that holds what the next reader of this one would see: the process died, the machine did not.
    #[must_use]
    pub fn copy(&self) -> Self {
        let state = self.state();
        Self::of(state.seen.clone(), state.limit)
    }

    fn of(bytes: Vec<u8>, limit: u64) -> Self {
        let media = Self::new(limit);
        {
            let mut state = media.state();
            state.seen.clone_from(&bytes);
            state.kept = bytes;
        }
        media
    }

    /// What a reader sees.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.state().seen.clone()
    }

    /// Changes bytes behind the store's back.
    ///
    /// # Panics
    /// Beyond the end of the medium.
    pub fn damage(&self, at: u64, bytes: &[u8]) {
        let mut state = self.state();
        let range = at as usize..at as usize + bytes.len();
        state.seen[range.clone()].copy_from_slice(bytes);
        let len = state.seen.len();
        state.kept.resize(len, 0);
        state.kept[range].copy_from_slice(bytes);
    }
}

/// A device on a [`SimMedia`].
#[derive(Debug)]
pub struct SimDevice(SimMedia);

impl SimDevice {
    /// The medium that it is on.
    #[must_use]
    pub fn media(&self) -> SimMedia {
        self.0.clone()
    }
}

fn broken() -> io::Error {
    io::Error::other("the simulated medium failed")
}

fn beyond(at: u64, len: usize, end: usize) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("{len} bytes at {at} are beyond the {end} of the medium"))
}

impl SimDevice {
    fn do_grow(&mut self, len: u64) -> io::Result<()> {
        let mut state = self.0.state();
        if state.broken {
            return Err(broken());
        }
        if len > state.seen.len() as u64 {
            if len > state.limit {
                return Err(io::Error::new(io::ErrorKind::StorageFull, "the simulated medium is full"));
            }
            state.seen.resize(len as usize, 0);
        }
        Ok(())
    }

    fn do_write(&mut self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        let mut state = self.0.state();
        state.write_count += 1;
        state.broken |= state.break_at_write.is_some_and(|n| state.write_count >= n);
        if state.broken {
            return Err(broken());
        }
        let bytes = parts.concat();
        let end = at.checked_add(bytes.len() as u64).filter(|end| *end <= state.seen.len() as u64);
        let Some(end) = end else { return Err(beyond(at, bytes.len(), state.seen.len())) };
        state.seen[at as usize..end as usize].copy_from_slice(&bytes);
        state.writes.push((None, at, bytes));
        Ok(())
    }

    fn do_fence(&mut self) -> io::Result<FenceId> {
        let mut state = self.0.state();
        let fence = state.started + 1;
        state.broken |= state.break_at_fence.is_some_and(|n| fence >= n);
        if state.broken {
            return Err(broken());
        }
        if state.done < state.started {
            return Err(io::Error::other("a fence was started while another is under way"));
        }
        state.started = fence;
        if state.fences == Fences::Lying {
            state.done = fence;
            return Ok(FenceId(fence));
        }
        state.writes.iter_mut().for_each(|write| write.0 = write.0.or(Some(fence)));
        if state.fences == Fences::AtOnce {
            state.settle(fence);
        }
        Ok(FenceId(fence))
    }
}

impl Device for SimDevice {
    fn describe(&self) -> String {
        "simulated (memory of this process)".to_owned()
    }

    fn len(&self) -> u64 {
        self.0.state().seen.len() as u64
    }

    fn grow(&mut self, len: u64) -> io::Result<()> {
        self.do_grow(len).inspect(|()| self.0.stepped())
    }

    fn write(&mut self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.do_write(at, parts).inspect(|()| self.0.stepped())
    }

    fn fence(&mut self) -> io::Result<FenceId> {
        self.do_fence().inspect(|_| self.0.stepped())
    }

    fn fenced(&mut self) -> io::Result<FenceId> {
        let state = self.0.state();
        if state.broken { Err(broken()) } else { Ok(FenceId(state.done)) }
    }

    fn wait(&mut self, fence: FenceId) -> io::Result<()> {
        let mut state = self.0.state();
        if state.broken {
            return Err(broken());
        }
        if state.done < fence.0 {
            let upto = state.started;
            state.settle(upto);
        }
        Ok(())
    }

    fn on_fenced(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        self.0.state().wake = Some(wake.into());
    }

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let state = self.0.state();
        let bytes = state.seen.get(at as usize..).and_then(|bytes| bytes.get(..into.len()));
        let Some(bytes) = bytes else { return Err(beyond(at, into.len(), state.seen.len())) };
        into.copy_from_slice(bytes);
        Ok(())
    }

    fn slice(&self, _at: u64, _len: usize) -> Option<&[u8]> {
        None
    }

    fn reader(&self) -> io::Result<Arc<dyn AreaReader>> {
        Ok(Arc::new(self.media()))
    }
}

impl AreaReader for SimMedia {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.device().read(at, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_keeps_what_was_fenced_and_any_part_of_the_rest() {
        let media = SimMedia::new(1 << 20);
        let mut device = media.device();
        device.grow(8192).unwrap();
        device.write(0, &[&[1; 64]]).unwrap();
        device.fence().unwrap();
        device.write(64, &[&[2; 64]]).unwrap();
        let (mut none, mut some, mut all) = (0, 0, 0);
        for seed in 0..200 {
            let bytes = media.crash(seed).bytes();
            assert_eq!(bytes[..64], [1; 64]);
            assert!(bytes[64..128].chunks(8).all(|word| word == [0; 8] || word == [2; 8]));
            match bytes[64..128].iter().filter(|byte| **byte == 2).count() {
                0 => none += 1,
                64 => all += 1,
                _ => some += 1,
            }
            assert_eq!(bytes, media.crash(seed).bytes(), "the same seed gives the same image");
        }
        assert!(none > 0 && some > 0 && all > 0, "{none} {some} {all}");
    }

    #[test]
    fn a_fence_that_waits_to_be_told_covers_only_what_was_written_before_it() {
        let media = SimMedia::new(1 << 20);
        media.set_fences(Fences::WhenTold);
        let mut device = media.device();
        device.grow(8192).unwrap();
        device.write(0, &[&[1; 8]]).unwrap();
        let fence = device.fence().unwrap();
        device.write(8, &[&[2; 8]]).unwrap();
        assert!(device.fenced().unwrap() < fence);
        assert!(media.finish_fence() && !media.finish_fence());
        assert_eq!(device.fenced().unwrap(), fence);
        assert_eq!(media.state().kept[..16], [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
