//! `kill -9` of a process that has a store open and works on it: while it appends, while records move to SSD files, in a
//! checkpoint, and while it opens the store again.
//!
//! What a process said was durable is in a pipe when it dies. The next one opens the same folder, is told all that was
//! ever said, and compares: everything is there with the right bytes, nothing is torn, nothing invented, what was trimmed
//! stays trimmed. Each append, its numbers and its bytes follow from its seq alone, so that the pipe need not carry them.
//!
//! A kill leaves the page cache, so this shows the order of writes within a process and not that of the medium; the
//! simulated devices do that (`store.rs`, `ssd_crash.rs`).
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use flexlog_protocol::entry::push_assign;
use flexlog_protocol::media::{Background, LogStore, Recovered, StoreError};
use flexlog_protocol::{
    Append, Assign, Body, ClusterId, Color, Entry, Epoch, Lsn, Record, ReplicaId, SeqNum, SessionId, ShardId, StoreId,
    Time, Token,
};
use flexlog_storage_pm::device::{AnyDevice, DeviceKind, SplitMix};
use flexlog_storage_pm::ssd::{DirFolder, Folder, Reading, Writing};
use flexlog_storage_pm::{Closed, Options, Owner, Store};
use uuid::Uuid;

/// Kills on each medium, at least, and of each class.
const KILLS: usize = 100;
const OF_EACH: usize = 20;
/// Kills after which it is given up to meet each class often enough.
const MOST: usize = 1000;
const COLORS: u64 = 3;
const SEGMENT: u64 = 64 << 10;
const SEGMENTS: u64 = 16;

/// Set in the processes that are killed: the folder.
const FOLDER: &str = "FLEXLOG_KILL_FOLDER";
/// What was said to be durable before.
const TOLD: &str = "FLEXLOG_KILL_TOLD";
/// What the process is to do more of than of other things.
const CLASS: &str = "FLEXLOG_KILL_CLASS";
const SEED: &str = "FLEXLOG_KILL_SEED";

/// Where a kill may find the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Append,
    Move,
    Checkpoint,
    Recovery,
}

const CLASSES: [Class; 4] = [Class::Append, Class::Move, Class::Checkpoint, Class::Recovery];

impl Class {
    fn name(self) -> &'static str {
        ["append", "move", "checkpoint", "recovery"][self as usize]
    }
}

// What follows from a seq.

fn color_of(seq: u64) -> u64 {
    1 + seq % COLORS
}

fn records_of(seq: u64) -> u32 {
    if seq.is_multiple_of(7) { 4 } else { 1 }
}

fn token(seq: u64) -> Token {
    Token { shard: ShardId(0), session: SessionId { epoch: Epoch(1), lsn: Lsn(1) }, seq }
}

fn payload(seq: u64, index: u32) -> Vec<u8> {
    let mut draw = SplitMix(seq << 8 | u64::from(index));
    let len = (draw.draw() % 900) as usize;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&draw.draw().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn append(seq: u64) -> Append {
    let records = (0..records_of(seq)).map(|index| Record::new(payload(seq, index)).unwrap()).collect();
    Append::new(token(seq), Color(color_of(seq)), None, records).unwrap()
}

fn number(counter: u32) -> SeqNum {
    SeqNum::first_of(Epoch(1)).plus(counter).unwrap()
}

/// What is said to be durable: appends up to one seq, those with numbers up to another, the log up to an lsn, and for
/// each color how many of its first numbers were trimmed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Told {
    staged: u64,
    assigned: u64,
    lsn: u64,
    trimmed: [u32; COLORS as usize],
}

impl Told {
    fn line(&self) -> String {
        let [a, b, c] = self.trimmed;
        format!("{} {} {} {a} {b} {c}", self.staged, self.assigned, self.lsn)
    }

    fn parse(line: &str) -> Self {
        let mut fields = line.split(' ').map(|field| field.parse::<u64>().unwrap());
        let mut next = || fields.next().unwrap();
        let (staged, assigned, lsn) = (next(), next(), next());
        Self { staged, assigned, lsn, trimmed: [(); 3].map(|()| next() as u32) }
    }
}

/// Says a line to the parent, all of it or none.
fn say(line: &str) {
    // Not `print!`, which the test harness keeps to itself.
    io::stdout().lock().write_all(format!("@{line}\n").as_bytes()).unwrap();
}

/// The folder of SSD files, which says when a file is begun.
#[derive(Debug)]
struct Telling {
    folder: DirFolder,
    moving: Arc<AtomicBool>,
}

impl Folder for Telling {
    fn describe(&self) -> String {
        self.folder.describe()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.folder.list()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Writing>> {
        if name.ends_with(".ssd.tmp") {
            self.moving.store(true, Ordering::Release);
            say("begin move");
        }
        self.folder.create(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn Reading>> {
        self.folder.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.folder.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.folder.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.folder.sync()
    }
}

/// The process that is killed.
struct Worker {
    store: Store<AnyDevice>,
    draw: SplitMix,
    /// What it did; what of that is durable was said.
    done: Told,
    /// The next number of each color.
    next: [u32; COLORS as usize],
    now: Time,
    work: SyncSender<Background>,
    ended: Receiver<()>,
    working: bool,
    /// How often there was no room since there was some.
    refused: u32,
}

impl Worker {
    /// Opens the store, and compares what it holds with all that was ever said.
    fn open(folder: &Path, told: Told, seed: u64) -> Self {
        let owner = Owner { cluster: ClusterId(Uuid::from_u128(1)), replica: ReplicaId(2) };
        let options = Options {
            segment_bytes: SEGMENT,
            limit_bytes: 8192 + SEGMENTS * SEGMENT,
            high_mark: 30,
            // Every read shows what is on the medium.
            cache_bytes: 0,
            ..Options::default()
        };
        let moving = Arc::new(AtomicBool::new(false));
        let ssd = Telling { folder: DirFolder::new(folder.join("ssd")), moving: Arc::clone(&moving) };
        say("begin recovery");
        let store = StoreId(Uuid::from_u128(3));
        let closed = Closed::open_folder(&folder.join("replica"), None, owner, store, options).unwrap();
        let nonce = Uuid::from_u128(u128::from(seed) + 1);
        let (store, recovered) = closed.with_ssd(Arc::new(ssd)).open_alone(nonce).unwrap();
        say("end recovery");

        let (work, jobs) = sync_channel::<Background>(1);
        let (tell, ended) = sync_channel(1);
        std::thread::spawn(move || {
            for job in jobs {
                job();
                if moving.swap(false, Ordering::AcqRel) {
                    say("end move");
                }
                tell.send(()).unwrap();
            }
        });
        let (draw, done) = (SplitMix(seed), Told::default());
        let mut worker =
            Self { store, draw, done, next: [0; 3], now: Time(0), work, ended, working: false, refused: 0 };
        worker.replay(&recovered);
        worker.compare(&recovered, told);
        worker
    }

    /// Takes over what the store recovered.
    fn replay(&mut self, recovered: &Recovered) {
        if let Some((upto, state)) = &recovered.checkpoint {
            let text = std::str::from_utf8(state).unwrap();
            let (told, filling) = text.split_once('\n').unwrap();
            assert!(filling.bytes().all(|byte| byte == b'.'), "the filling of a checkpoint");
            self.done = Told::parse(told);
            assert_eq!(self.done.lsn, upto.0);
        }
        for entry in &recovered.entries {
            assert_eq!(entry.lsn.0, self.done.lsn + 1, "the log has no gaps");
            self.done.lsn = entry.lsn.0;
            match &entry.body {
                Body::Assign(assigns) => {
                    // Assigns of one entry are by color; together they are the next seqs.
                    let mut seqs: Vec<u64> =
                        assigns.iter().flat_map(|assign| assign.each().map(|(token, _)| token.seq)).collect();
                    seqs.sort_unstable();
                    for seq in seqs {
                        assert_eq!(seq, self.done.assigned + 1, "numbers are given in the order of the seqs");
                        self.done.assigned = seq;
                    }
                }
                Body::Trim { color, upto } => {
                    self.done.trimmed[color.0 as usize - 1] = upto.counter() + 1;
                    self.store.trim(*color, *upto);
                }
                other => panic!("{other:?} was never written"),
            }
        }
        self.done.staged = self.done.assigned + recovered.staged.len() as u64;
        for seq in 1..=self.done.assigned {
            self.next[color_of(seq) as usize - 1] += records_of(seq);
        }
    }

    fn compare(&mut self, recovered: &Recovered, told: Told) {
        let done = self.done;
        let kept = done.staged >= told.staged && done.assigned >= told.assigned && done.lsn >= told.lsn;
        assert!(kept, "said: {told:?}, found: {done:?}");
        let trimmed = done.trimmed.iter().zip(told.trimmed).all(|(done, told)| *done >= told);
        assert!(trimmed, "a trim was taken back: said: {told:?}, found: {done:?}");

        let mut waiting: Vec<u64> = recovered.staged.iter().map(|staged| staged.token.seq).collect();
        waiting.sort_unstable();
        assert!(waiting.iter().copied().eq(done.assigned + 1..=done.staged), "staged: {waiting:?}, found: {done:?}");
        for seq in waiting {
            let found = self.store.read_staged(token(seq)).unwrap();
            assert_eq!(found.as_ref(), Some(&append(seq)), "the staged append {seq}");
        }

        for color in 1..=COLORS {
            let trimmed = done.trimmed[color as usize - 1];
            let mut found = Vec::new();
            self.store
                .read_through(Color(color), SeqNum::MIN, SeqNum::MAX, usize::MAX, usize::MAX, &mut found)
                .unwrap();
            let mut found = found.into_iter();
            let mut counter = 0;
            for seq in (1..=done.assigned).filter(|seq| color_of(*seq) == color) {
                for index in 0..records_of(seq) {
                    if counter >= trimmed {
                        let (at, record) = found.next().unwrap_or_else(|| panic!("{color}/{counter} is not there"));
                        assert_eq!(at, number(counter), "of color {color}");
                        assert_eq!(record.payload(), &payload(seq, index)[..], "the bytes of {color}/{counter}");
                    }
                    counter += 1;
                }
            }
            let more: Vec<SeqNum> = found.map(|(number, _)| number).collect();
            assert!(more.is_empty(), "color {color} ends at {counter}, found besides: {more:?}");
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.draw.draw() % n
    }

    /// Makes durable what was done, and says so.
    fn fence(&mut self) {
        let fence = self.store.fence().unwrap();
        self.store.wait(fence).unwrap();
        say(&format!("durable {}", self.done.line()));
    }

    fn entry(&mut self, body: Body) {
        let lsn = Lsn(self.done.lsn + 1);
        self.store.append(&Entry { lsn, epoch: Epoch(1), body }).unwrap();
        self.done.lsn = lsn.0;
    }

    fn stage(&mut self) {
        match self.store.stage(&append(self.done.staged + 1)) {
            Ok(()) => {
                self.done.staged += 1;
                self.refused = 0;
            }
            Err(StoreError::Full { .. }) => {
                self.refused += 1;
                assert!(self.refused < 10_000, "there is no room, and never will be: {:?}", self.store.usage());
                self.make_room();
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// There is no room until what is on the move is gone.
    fn make_room(&mut self) {
        self.assign();
        self.fence();
        if self.store.checkpoint_wanted() {
            self.checkpoint(100);
        }
        self.background();
        if self.working {
            self.ended.recv().unwrap();
            self.working = false;
            self.background();
        }
    }

    fn assign(&mut self) {
        let upto = (self.done.assigned + 1 + self.below(12)).min(self.done.staged);
        let mut assigns = Vec::new();
        for seq in self.done.assigned + 1..=upto {
            let (color, records) = (color_of(seq), records_of(seq));
            let next = &mut self.next[color as usize - 1];
            push_assign(&mut assigns, Assign::one(token(seq), Color(color), number(*next), records));
            *next += records;
        }
        if !assigns.is_empty() {
            self.entry(Body::Assign(assigns));
            self.done.assigned = upto;
        }
    }

    /// So that what there is to compare stays small.
    fn trim(&mut self) {
        let color = self.below(COLORS);
        let upto = self.next[color as usize].saturating_sub(500 + self.below(1000) as u32);
        if upto > self.done.trimmed[color as usize] {
            let (color_id, last) = (Color(color + 1), number(upto - 1));
            self.entry(Body::Trim { color: color_id, upto: last });
            self.fence();
            // Said only after that: the entry is durable, and so the trim is.
            self.done.trimmed[color as usize] = upto;
            self.store.trim(color_id, last);
            say(&format!("durable {}", self.done.line()));
        }
    }

    fn checkpoint(&mut self, filling: u64) {
        // What it says is to be committed.
        self.fence();
        let state = format!("{}\n{:.<2$}", self.done.line(), "", filling as usize);
        say("begin checkpoint");
        match self.store.checkpoint(Lsn(self.done.lsn), state.as_bytes()) {
            Ok(()) => {
                let fence = self.store.fence().unwrap();
                self.store.wait(fence).unwrap();
            }
            Err(StoreError::Full { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        say("end checkpoint");
    }

    fn background(&mut self) {
        if self.working && self.ended.try_recv().is_ok() {
            self.working = false;
        }
        if !self.working
            && let Some(work) = self.store.background(self.now, Lsn(self.done.lsn)).unwrap()
        {
            self.working = true;
            self.work.send(work).unwrap();
        }
    }

    fn run(mut self, class: Class) {
        loop {
            for _ in 0..self.below(10) {
                self.stage();
            }
            if self.below(3) > 0 {
                self.assign();
            }
            self.fence();
            if self.below(10) == 0 {
                self.trim();
            }
            let often = if class == Class::Checkpoint { 1 } else { 60 };
            // What nobody wanted must not take the space that is kept for what is.
            let usage = self.store.usage();
            let room = usage.used_bytes + 6 * SEGMENT <= SEGMENTS * SEGMENT;
            if self.store.checkpoint_wanted() || room && self.below(often) == 0 {
                // The space that is kept is for one about as long as the last.
                let filling = if room { self.below(SEGMENT / 2) } else { 100 };
                self.checkpoint(filling);
            }
            if self.below(20) == 0 {
                // Trimmed space is given back once a second.
                self.now = self.now.after(1_000_001);
            }
            self.background();
        }
    }
}

/// Not a test by itself: what the killed processes run.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let told = Told::parse(&std::env::var(TOLD).unwrap());
    let class = std::env::var(CLASS).unwrap();
    let class = CLASSES.into_iter().find(|known| known.name() == class).unwrap();
    let worker = Worker::open(Path::new(&folder), told, std::env::var(SEED).unwrap().parse().unwrap());
    say("compared");
    worker.run(class);
}

/// The parent's side of one process.
struct Victim {
    process: Child,
    lines: io::Lines<BufReader<ChildStdout>>,
    told: Told,
    /// What it was in the middle of when it said its last line.
    within: Vec<String>,
    compared: bool,
}

impl Victim {
    fn start(folder: &Path, told: Told, class: Class, seed: u64) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture", "--test-threads", "1"]).stdout(Stdio::piped());
        command.env(FOLDER, folder).env(TOLD, told.line()).env(CLASS, class.name()).env(SEED, seed.to_string());
        let mut process = command.spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines, told, within: Vec::new(), compared: false }
    }

    /// Takes in one line; `None` at the end.
    fn next(&mut self) -> Option<String> {
        loop {
            let line = self.lines.next()?.unwrap();
            // What the test harness says has no mark.
            let Some((_, line)) = line.split_once('@') else { continue };
            match line.split_once(' ') {
                Some(("durable", told)) => self.told = Told::parse(told),
                Some(("begin", what)) => self.within.push(what.to_owned()),
                Some(("end", what)) => self.within.retain(|within| within != what),
                _ => self.compared |= line == "compared",
            }
            return Some(line.to_owned());
        }
    }

    fn wait_for(&mut self, wanted: &str) {
        while let Some(line) = self.next() {
            if line == wanted {
                return;
            }
        }
        panic!("the process ended before it said `{wanted}`: {}", self.process.wait().unwrap());
    }

    /// `kill -9`; gives what it was in the middle of.
    fn kill(mut self) -> (Told, Option<Class>) {
        self.process.kill().unwrap();
        let status = self.process.wait().unwrap();
        while self.next().is_some() {}
        assert_eq!(status.code(), None, "the process ended by itself, with {status}");
        let within = |class: Class| self.within.iter().any(|within| within == class.name());
        let found = [Class::Recovery, Class::Move, Class::Checkpoint].into_iter().find(|class| within(*class));
        (self.told, found.or(self.compared.then_some(Class::Append)))
    }
}

/// Kills processes that work on the store in `folder`, until each class was met often enough.
fn kills(medium: &str, folder: &Path, kind: DeviceKind, seed: u64) {
    std::fs::create_dir(folder.join("ssd")).unwrap();
    std::fs::create_dir(folder.join("replica")).unwrap();
    assert_eq!(flexlog_storage_pm::device::device_for(&folder.join("replica")).unwrap(), kind);
    let mut draw = SplitMix(seed);
    let (mut told, mut met, mut elsewhere) = (Told::default(), [0; CLASSES.len()], 0);
    for kill in 0.. {
        if kill >= KILLS && met.iter().all(|met| *met >= OF_EACH) {
            break;
        }
        assert!(kill < MOST, "{medium}: {kill} kills, and only {met:?} of {CLASSES:?}");
        let class = CLASSES.into_iter().min_by_key(|class| met[*class as usize]).unwrap();
        let mut victim = Victim::start(folder, told, class, draw.draw());
        // The longest delay, as a power of 2 of a microsecond.
        let longest = match class {
            Class::Recovery => 14,
            Class::Move | Class::Checkpoint => 10,
            Class::Append => 15,
        };
        match class {
            Class::Append => victim.wait_for("compared"),
            Class::Recovery => victim.wait_for("begin recovery"),
            Class::Move | Class::Checkpoint => {
                victim.wait_for("compared");
                for _ in 0..1 + draw.draw() % 3 {
                    victim.wait_for(&format!("begin {}", class.name()));
                }
            }
        }
        let bits = draw.draw() % (longest + 1);
        std::thread::sleep(Duration::from_micros(draw.draw() % (1 << bits)));
        let found;
        (told, found) = victim.kill();
        match found {
            Some(class) => met[class as usize] += 1,
            None => elsewhere += 1,
        }
    }
    // Once more, to its end: what the last one left is whole too.
    let mut last = Victim::start(folder, told, Class::Append, draw.draw());
    last.wait_for("compared");
    last.kill();
    let each: Vec<String> = CLASSES.iter().map(|class| format!("{} {}", met[*class as usize], class.name())).collect();
    let said = format!("kills on {medium}: {}, {elsewhere} elsewhere; at the end {told:?}\n", each.join(", "));
    io::stderr().write_all(said.as_bytes()).unwrap();
    assert!(told.trimmed.iter().any(|trimmed| *trimmed > 0), "nothing was trimmed: {told:?}");
}

#[test]
fn killed_on_tmpfs() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("this test needs a tmpfs at /dev/shm");
    kills("tmpfs", folder.path(), DeviceKind::Mmap, 1);
}

#[test]
fn killed_on_disk() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    kills("disk", folder.path(), DeviceKind::File, 2);
}
