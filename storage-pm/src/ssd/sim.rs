//! A file system in memory that can lose what was not synced: [`SimFolder`], for crash tests and the simulator.
//!
//! The model, as POSIX allows it: of a file, what was synced is kept; behind that any of its pages of 4096 bytes, or its
//! words of 8, may be there or be zeros, and its length may be anything between. Of names, each is what it was at the last
//! [`Folder::sync`], or what any of the operations since then made it, one after the other; names are independent, but for
//! a rename, which never takes the old name away without giving the new one. A punch is done or lost as a whole.
//! Everything is drawn from a seed, or chosen bit by bit where there are few enough choices ([`SimFolder::atoms`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::folder::{Folder, Reading, Writing};
use crate::device::SplitMix;

const PAGE: usize = 4096;

#[derive(Clone, Debug, Default)]
struct Inode {
    /// What a reader sees.
    seen: Vec<u8>,
    /// What the last sync left. Without the punches that are pending.
    kept: Vec<u8>,
    /// Not sure to be kept yet.
    punches: Vec<(usize, usize)>,
    /// Pages that take no space.
    holes: BTreeSet<usize>,
    /// A sync failed: the next one says it went well, and keeps nothing.
    lost: bool,
    /// As long as there is another one of it, someone has the file open.
    handle: Arc<()>,
}

impl Inode {
    fn pages(&self) -> u64 {
        (self.seen.len().div_ceil(PAGE) - self.holes.len()) as u64
    }

    /// The pages that have something that was not synced.
    fn unsynced(&self) -> std::ops::Range<usize> {
        if self.seen.len() == self.kept.len() { 0..0 } else { self.kept.len() / PAGE..self.seen.len().div_ceil(PAGE) }
    }

    /// A file that holds `bytes` and nothing else.
    fn settled(bytes: Vec<u8>) -> Self {
        let zero = |page: &usize| bytes.chunks(PAGE).nth(*page).is_some_and(|page| page.iter().all(|byte| *byte == 0));
        let whole = bytes.len() / PAGE;
        let holes = (0..whole).filter(zero).collect();
        Self { seen: bytes.clone(), kept: bytes, holes, ..Self::default() }
    }
}

/// A name became this file, or none.
#[derive(Clone, Debug)]
struct NameOp {
    name: String,
    file: Option<u64>,
    /// The operation before this one that must be kept for this one to be.
    needs_last: bool,
}

type Step = Arc<dyn Fn() + Send + Sync>;

#[derive(Clone, Default)]
struct State {
    inodes: BTreeMap<u64, Inode>,
    next: u64,
    /// What a reader sees.
    seen: BTreeMap<String, u64>,
    /// What the last sync left.
    kept: BTreeMap<String, u64>,
    ops: Vec<NameOp>,
    limit: Option<u64>,
    no_holes: bool,
    /// Counts down to the one that fails.
    fail_append: u64,
    fail_sync: u64,
    fail_read: u64,
    step: Option<Step>,
}

/// See the module. Clones are the same folder.
#[derive(Clone, Default)]
pub struct SimFolder(Arc<Mutex<State>>);

impl std::fmt::Debug for SimFolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.0.lock();
        write!(f, "SimFolder({} files, {} pending name operations)", state.seen.len(), state.ops.len())
    }
}

fn fault() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())
}

/// Whether this is the one that is to fail: `count` counts down to it, and is 0 where none is to.
fn due(count: &mut u64) -> bool {
    let due = *count == 1;
    *count = count.saturating_sub(1);
    due
}

impl State {
    fn used(&self) -> u64 {
        let there: BTreeSet<u64> = self.seen.values().copied().collect();
        there.iter().filter_map(|id| self.inodes.get(id)).map(|inode| inode.pages() * PAGE as u64).sum()
    }

    fn set(&mut self, name: &str, file: Option<u64>, needs_last: bool) {
        match file {
            Some(file) => self.seen.insert(name.to_owned(), file),
            None => self.seen.remove(name),
        };
        self.ops.push(NameOp { name: name.to_owned(), file, needs_last });
    }

    /// Forgets the files that nobody can come to any more.
    fn collect(&mut self) {
        let mut named: BTreeSet<u64> = self.seen.values().chain(self.kept.values()).copied().collect();
        named.extend(self.ops.iter().filter_map(|op| op.file));
        self.inodes.retain(|id, inode| named.contains(id) || Arc::strong_count(&inode.handle) > 1);
    }

    /// What a power cut leaves: `name` says whether the next operation is kept, `file` what is of a file.
    fn image(&self, mut name: impl FnMut() -> bool, mut file: impl FnMut(&Inode) -> Vec<u8>) -> SimFolder {
        let mut names = self.kept.clone();
        let mut cut: BTreeSet<&str> = BTreeSet::new();
        let mut last = true;
        for op in &self.ops {
            last = name() && !cut.contains(op.name.as_str()) && (last || !op.needs_last);
            if !last {
                cut.insert(&op.name);
                continue;
            }
            match op.file {
                Some(file) => names.insert(op.name.clone(), file),
                None => names.remove(&op.name),
            };
        }
        // All files are asked for, so that the same choices mean the same whichever names there are.
        let inodes: BTreeMap<u64, Inode> =
            self.inodes.iter().map(|(id, inode)| (*id, Inode::settled(file(inode)))).collect();
        SimFolder::of(names, inodes, self)
    }
}

impl SimFolder {
    /// An empty folder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn of(names: BTreeMap<String, u64>, inodes: BTreeMap<u64, Inode>, from: &State) -> Self {
        let mut state = State {
            inodes,
            next: from.next,
            seen: names.clone(),
            kept: names,
            limit: from.limit,
            no_holes: from.no_holes,
            ..State::default()
        };
        state.collect();
        Self(Arc::new(Mutex::new(state)))
    }

    /// What a power cut now could leave, as the seed has it.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        let draw = std::cell::RefCell::new(SplitMix(seed));
        let next = |below: u64| draw.borrow_mut().draw() % below;
        // Out of 8: from nothing to everything.
        let (names, data) = (next(9), next(9));
        let grain = [8, PAGE, PAGE][next(3) as usize];
        let whole_length = next(2) == 0;
        let file = |inode: &Inode| {
            let (from, to) = (inode.kept.len(), inode.seen.len());
            let len = if whole_length { to } else { from + next((to - from) as u64 + 1) as usize };
            let mut bytes = inode.kept.clone();
            bytes.resize(len, 0);
            let mut at = from;
            while at < len {
                let n = (grain - at % grain).min(len - at);
                if next(8) < data {
                    bytes[at..at + n].copy_from_slice(&inode.seen[at..at + n]);
                }
                at += n;
            }
            for (from, to) in &inode.punches {
                if next(2) == 0 {
                    let to = (*to).min(bytes.len());
                    bytes[(*from).min(to)..to].fill(0);
                }
            }
            bytes
        };
        self.0.lock().image(|| next(8) < names, file)
    }

    /// How many choices there are between what a power cut keeps and what it loses: pages, punches, names.
    #[must_use]
    pub fn atoms(&self) -> usize {
        let state = self.0.lock();
        let data: usize = state.inodes.values().map(|inode| inode.unsynced().len() + inode.punches.len()).sum();
        data + state.ops.len()
    }

    /// What a power cut now leaves if it keeps the choices whose bit is set, the lowest 64 of [`SimFolder::atoms`]; none
    /// of the others. A file ends with the last of its pages that is kept.
    #[must_use]
    pub fn crash_with(&self, choice: u64) -> Self {
        let bits = std::cell::Cell::new(choice);
        let next = || {
            let bit = bits.get() & 1 == 1;
            bits.set(bits.get() >> 1);
            bit
        };
        let file = |inode: &Inode| {
            let mut bytes = inode.kept.clone();
            let synced = bytes.len();
            for page in inode.unsynced() {
                if next() {
                    let (from, to) = ((page * PAGE).max(synced), ((page + 1) * PAGE).min(inode.seen.len()));
                    bytes.resize(to, 0);
                    bytes[from..to].copy_from_slice(&inode.seen[from..to]);
                }
            }
            for (from, to) in &inode.punches {
                if next() {
                    let to = (*to).min(bytes.len());
                    bytes[(*from).min(to)..to].fill(0);
                }
            }
            bytes
        };
        self.0.lock().image(next, file)
    }

    /// The folder as it is, what is not synced included, and apart from this one from now on.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        let mut state = State { step: None, ..self.0.lock().clone() };
        // Whoever has a file of the other one open has none of this one's.
        state.inodes.values_mut().for_each(|inode| inode.handle = Arc::new(()));
        Self(Arc::new(Mutex::new(state)))
    }

    /// What the next process sees: this one died, the machine did not.
    #[must_use]
    pub fn copy(&self) -> Self {
        let state = self.0.lock();
        let settled = |(id, inode): (&u64, &Inode)| (*id, Inode::settled(inode.seen.clone()));
        Self::of(state.seen.clone(), state.inodes.iter().map(settled).collect(), &state)
    }

    /// The `n`th append from now on fails, having written nothing; 1 is the next.
    pub fn fail_append(&self, n: u64) {
        self.0.lock().fail_append = n;
    }

    /// The `n`th sync from now on, of a file or of names, fails; 1 is the next. What it should have made durable never is,
    /// though later syncs go well.
    pub fn fail_sync(&self, n: u64) {
        self.0.lock().fail_sync = n;
    }

    /// The `n`th read from now on fails; 1 is the next.
    pub fn fail_read(&self, n: u64) {
        self.0.lock().fail_read = n;
    }

    /// All files together take so many bytes from now on, in whole pages; what is there stays.
    pub fn set_limit(&self, bytes: u64) {
        self.0.lock().limit = Some(bytes);
    }

    /// From now on punching is not supported.
    pub fn without_holes(&self) {
        self.0.lock().no_holes = true;
    }

    /// Bytes that all files take, in whole pages.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.lock().used()
    }

    /// Has `step` called after each operation that changes something.
    pub fn on_step(&self, step: Box<dyn Fn() + Send + Sync>) {
        self.0.lock().step = Some(step.into());
    }

    /// Changes bytes of a file behind everyone's back. Returns whether they were there.
    pub fn damage(&self, name: &str, at: usize, bytes: &[u8]) -> bool {
        self.edit(name, |content| {
            let range = content.get_mut(at..at + bytes.len());
            range.map(|range| range.copy_from_slice(bytes)).is_some()
        })
    }

    /// Cuts a file to `len` bytes behind everyone's back. Returns whether it is there.
    pub fn truncate(&self, name: &str, len: usize) -> bool {
        self.edit(name, |content| {
            content.truncate(len);
            true
        })
    }

    fn edit(&self, name: &str, mut change: impl FnMut(&mut Vec<u8>) -> bool) -> bool {
        let mut state = self.0.lock();
        let id = state.seen.get(name).copied();
        let Some(inode) = id.and_then(|id| state.inodes.get_mut(&id)) else { return false };
        let changed = change(&mut inode.seen);
        change(&mut inode.kept);
        let pages = inode.seen.len().div_ceil(PAGE);
        inode.holes.retain(|page| *page < pages);
        changed
    }

    /// What a reader sees of a file.
    #[must_use]
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.0.lock();
        Some(state.inodes.get(state.seen.get(name)?)?.seen.clone())
    }

    /// Puts a durable file there behind everyone's back, in place of one that is there.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let mut state = self.0.lock();
        state.next += 1;
        let id = state.next;
        state.inodes.insert(id, Inode::settled(bytes.to_vec()));
        state.seen.insert(name.to_owned(), id);
        state.kept.insert(name.to_owned(), id);
        state.ops.retain(|op| op.name != name);
    }

    /// Runs `change`, and the observer if something changed.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let (done, step) = {
            let mut state = self.0.lock();
            (change(&mut state), state.step.clone())
        };
        if let Some(step) = step {
            step();
        }
        done
    }

    fn handle(&self, state: &State, id: u64) -> Handle {
        let held = state.inodes.get(&id).map(|inode| inode.handle.clone()).unwrap_or_default();
        Handle { folder: self.clone(), id, _held: held }
    }
}

fn not_found(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no file '{name}' in the simulated folder"))
}

impl Folder for SimFolder {
    fn describe(&self) -> String {
        "simulated folder".to_owned()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().seen.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Writing>> {
        self.change(|state| {
            // A file that is there is emptied in truth; here it becomes another one. A crash may leave either.
            state.next += 1;
            let id = state.next;
            state.inodes.insert(id, Inode::default());
            state.set(name, Some(id), false);
            Ok(Box::new(self.handle(state, id)) as Box<dyn Writing>)
        })
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn Reading>> {
        let state = self.0.lock();
        let id = *state.seen.get(name).ok_or_else(|| not_found(name))?;
        Ok(Arc::new(self.handle(&state, id)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(|state| {
            let id = *state.seen.get(from).ok_or_else(|| not_found(from))?;
            if from != to {
                state.set(to, Some(id), false);
                state.set(from, None, true);
            }
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change(|state| {
            state.seen.get(name).ok_or_else(|| not_found(name))?;
            state.set(name, None, false);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.change(|state| {
            if due(&mut state.fail_sync) {
                return Err(fault());
            }
            state.kept = state.seen.clone();
            state.ops.clear();
            // A file system's journal has what went before, so punches are in it.
            for inode in state.inodes.values_mut() {
                for (from, to) in std::mem::take(&mut inode.punches) {
                    let to = to.min(inode.kept.len());
                    inode.kept[from.min(to)..to].fill(0);
                }
            }
            state.collect();
            Ok(())
        })
    }
}

/// An open file.
struct Handle {
    folder: SimFolder,
    id: u64,
    _held: Arc<()>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle(file {} of {:?})", self.id, self.folder)
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the simulated file is gone")
}

impl Writing for Handle {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.folder.change(|state| {
            if due(&mut state.fail_append) {
                return Err(fault());
            }
            let room = state.limit.map_or(u64::MAX, |limit| limit.saturating_sub(state.used()));
            let inode = state.inodes.get_mut(&self.id).ok_or_else(gone)?;
            let tail = inode.seen.len().next_multiple_of(PAGE) - inode.seen.len();
            let fits = usize::try_from(room).unwrap_or(usize::MAX) / PAGE * PAGE;
            let n = bytes.len().min(fits.saturating_add(tail));
            inode.seen.extend_from_slice(&bytes[..n]);
            if n < bytes.len() {
                return Err(io::Error::new(io::ErrorKind::StorageFull, "the simulated file system is full"));
            }
            Ok(())
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        self.folder.change(|state| {
            let failed = due(&mut state.fail_sync);
            let inode = state.inodes.get_mut(&self.id).ok_or_else(gone)?;
            if failed {
                inode.lost = true;
                return Err(fault());
            }
            if !inode.lost {
                inode.kept.clone_from(&inode.seen);
            }
            Ok(())
        })
    }
}

impl Reading for Handle {
    fn len(&self) -> io::Result<u64> {
        let state = self.folder.0.lock();
        Ok(state.inodes.get(&self.id).ok_or_else(gone)?.seen.len() as u64)
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let mut state = self.folder.0.lock();
        if due(&mut state.fail_read) {
            return Err(fault());
        }
        let seen = &state.inodes.get(&self.id).ok_or_else(gone)?.seen;
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let bytes = seen.get(at..).and_then(|rest| rest.get(..into.len()));
        into.copy_from_slice(bytes.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        self.folder.change(|state| {
            if state.no_holes {
                return Err(io::ErrorKind::Unsupported.into());
            }
            let inode = state.inodes.get_mut(&self.id).ok_or_else(gone)?;
            let to = (at.saturating_add(len) as usize).min(inode.seen.len());
            let from = (at as usize).min(to);
            inode.seen[from..to].fill(0);
            inode.punches.push((from, to));
            inode.holes.extend(from.div_ceil(PAGE)..to / PAGE);
            Ok(())
        })
    }
}
