//! Every truncation and every flipped bit of a small store: of its area, its SSD file and its manifest.
//!
//! Whatever happens to durable bytes, the store opens to what it was, or to a prefix of it where only what was never known
//! to be durable is lost; or it refuses and names the file; or a read says that the record is damaged; or `verify` says
//! what is wrong. Never is there a panic or a wrong record, and no bit that means something is lost in silence.
//!
//! Bits that mean nothing are those of no entry of the log: the superblocks' pages behind the copies, the padding of
//! entries to a multiple of 8, what stands behind the last entry of a segment, and segments that are not in the log.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "tests")]

mod common;
#[path = "common/small.rs"]
mod small;

use std::io::Write;
use std::ops::{AddAssign, Range};
use std::sync::atomic::{AtomicU64, Ordering};

use flexlog_protocol::Color;
use flexlog_protocol::media::{LogStore, ReadError, Recovered};
use flexlog_protocol::{Record, SeqNum};
use flexlog_storage_pm::OpenError;
use flexlog_storage_pm::device::SimMedia;
use flexlog_storage_pm::inspect::list_entries;
use flexlog_storage_pm::ssd::SimFolder;
use small::{COLORS, FILE, Small, look, media_of, open, small};

/// What became of damaged copies.
#[derive(Default, Debug)]
struct Count {
    tried: u64,
    /// To open it was refused.
    refused: u64,
    /// It opened to a prefix.
    shorter: u64,
    /// A read said so.
    read: u64,
    /// Only `verify` said so.
    verify: u64,
    /// Nobody said so, and it means nothing.
    nothing: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.tried += other.tried;
        self.refused += other.refused;
        self.shorter += other.shorter;
        self.read += other.read;
        self.verify += other.verify;
        self.nothing += other.nothing;
    }
}

type Found = Vec<(SeqNum, Record)>;

/// The store as it was before anything happened to it.
struct Before {
    small: Small,
    area: Vec<u8>,
    recovered: Recovered,
    found: Vec<Found>,
    /// The bytes of the area that mean something.
    meaning: Vec<Range<u64>>,
}

impl Before {
    fn new() -> Self {
        let small = small();
        let area = small.media.bytes();
        let report = look(&small.media, &small.folder);
        assert_eq!(report.findings, vec![]);
        let mut meaning = vec![0..128, 4096..4096 + 128];
        list_entries(&small.media.device(), &report, &mut |entry| {
            meaning.push(entry.offset..entry.offset + entry.bytes);
            true
        })
        .unwrap();
        let (store, recovered) = open(&small.media.copy(), &small.folder.copy()).unwrap();
        let found = COLORS.iter().map(|color| common::read_all(&store, *color)).collect();
        Self { small, area, recovered, found, meaning }
    }

    fn last_entry(&self) -> u64 {
        self.meaning.last().unwrap().start
    }

    fn means(&self, at: u64) -> bool {
        self.meaning.iter().any(|range| range.contains(&at))
    }

    /// What the store says of a damaged copy of itself; `names`: how a refusal may name the file, `must`: somebody has to
    /// notice.
    fn check(
        &self,
        media: &SimMedia,
        folder: &SimFolder,
        names: &[&str],
        must: bool,
        what: &str,
        count: &mut Count,
    ) -> Kind {
        count.tried += 1;
        let (store, recovered) = match open(&media.copy(), &folder.copy()) {
            Ok(opened) => opened,
            Err(error) => {
                assert!(!matches!(error, OpenError::Store(_)), "{what}: {error}");
                let text = error.to_string();
                assert!(names.iter().any(|name| text.contains(name)), "{what}: {text}");
                count.refused += 1;
                return Kind::Refused;
            }
        };
        let written = &self.small.written;
        let upto = recovered.checkpoint.as_ref().map_or(0, |(upto, _)| upto.0 as usize);
        let end = upto + recovered.entries.len();
        assert_eq!(Some(&recovered.entries[..]), written.entries.get(upto..end), "{what}: not a prefix of the log");
        let (mut same, mut told) = (true, false);
        for (color, before) in COLORS.iter().zip(&self.found) {
            let mut found = Vec::new();
            match store.read_through(Color(*color), SeqNum::MIN, SeqNum::MAX, usize::MAX, usize::MAX, &mut found) {
                Ok(()) => {}
                Err(ReadError::Damaged { .. }) => told = true,
                Err(other) => panic!("{what}: {other}"),
            }
            for (number, record) in &found {
                assert_eq!(written.records.get(&(Color(*color), *number)), Some(record), "{what}: {color}/{number}");
            }
            same &= found == *before;
        }
        if told {
            count.read += 1;
            return Kind::Told;
        }
        let staged = |recovered: &Recovered| recovered.staged.iter().map(|staged| staged.token).collect::<Vec<_>>();
        same &= recovered.fence == self.recovered.fence && recovered.checkpoint == self.recovered.checkpoint;
        same &= recovered.entries == self.recovered.entries && staged(&recovered) == staged(&self.recovered);
        if !same {
            count.shorter += 1;
            return Kind::Shorter;
        }
        // Nobody noticed so far.
        if look(media, folder).findings.is_empty() {
            assert!(!must, "{what} is not noticed");
            count.nothing += 1;
        } else {
            count.verify += 1;
        }
        Kind::Same
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Refused,
    Told,
    Shorter,
    Same,
}

/// Does `each` for all of `0..upto`, on all processors.
fn all(upto: usize, each: impl Fn(usize, &mut Count) + Sync) -> Count {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let mut sum = Count::default();
    std::thread::scope(|scope| {
        let each = &each;
        let threads: Vec<_> = (0..threads)
            .map(|nth| {
                scope.spawn(move || {
                    let mut count = Count::default();
                    (nth..upto).step_by(threads).for_each(|at| each(at, &mut count));
                    count
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| sum += thread.join().unwrap());
    });
    sum
}

/// Said past the test's own capture, so that it shows where tests are run by machines.
fn say(what: &str, count: &Count) {
    let _ = writeln!(std::io::stderr(), "{what}: {count:?}");
}

#[test]
fn every_flipped_bit_of_the_area() {
    let before = Before::new();
    let count = all(before.area.len() * 8, |bit, count| {
        let at = bit as u64 / 8;
        let media = before.small.media.copy();
        media.damage(at, &[before.area[bit / 8] ^ 1 << (bit % 8)]);
        let what = format!("bit {} of byte {at} of the area", bit % 8);
        let kind = before.check(&media, &before.small.folder, &["sim"], before.means(at), &what, count);
        // Every entry but the last is known to be durable by a later one.
        assert!(kind != Kind::Shorter || at >= before.last_entry(), "{what} costs durable entries");
    });
    say("bits of the area", &count);
    assert_eq!(count.tried as usize, before.area.len() * 8);
    assert!(
        count.refused > 30_000 && count.read > 20_000 && count.verify >= 128 * 8 / 2 && count.shorter > 100,
        "{count:?}"
    );
}

#[test]
fn every_truncation_of_the_area() {
    let before = Before::new();
    let end = before.meaning.last().unwrap().end as usize;
    let unseen = AtomicU64::new(0);
    let count = all(before.area.len(), |len, count| {
        let what = format!("the area cut to {len} bytes");
        let media = media_of(&before.area[..len]);
        // A store of another id in its place does not fit the SSD files.
        let kind = before.check(&media, &before.small.folder, &["sim", "manifest"], false, &what, count);
        assert!(kind != Kind::Same || len >= end, "{what}, and nothing is missing");
        // Whole segments that are gone from the end of the area leave a log that is good as far as it goes. What the SSD
        // files know of it shows most of these.
        if kind == Kind::Shorter && look(&media, &before.small.folder).is_sound() {
            unseen.fetch_add(1, Ordering::Relaxed);
        }
    });
    let _ = writeln!(
        std::io::stderr(),
        "{} of these cannot be told from a log that was never longer",
        unseen.load(Ordering::Relaxed)
    );
    say("truncations of the area", &count);
    assert_eq!(count.tried as usize, before.area.len());
    assert!(count.refused > 4096, "{count:?}");
}

#[test]
fn every_flipped_bit_and_truncation_of_the_files() {
    let before = Before::new();
    for name in [FILE, "manifest"] {
        let bytes = before.small.folder.contents(name).unwrap();
        let mut sum = all(bytes.len() * 8, |bit, count| {
            let folder = before.small.folder.copy();
            assert!(folder.damage(name, bit / 8, &[bytes[bit / 8] ^ 1 << (bit % 8)]));
            let what = format!("bit {} of byte {} of {name}", bit % 8, bit / 8);
            let kind = before.check(&before.small.media, &folder, &[name], true, &what, count);
            assert!(kind != Kind::Shorter, "{what} costs records");
        });
        sum += all(bytes.len(), |len, count| {
            let folder = before.small.folder.copy();
            assert!(folder.truncate(name, len));
            let kind =
                before.check(&before.small.media, &folder, &[name], true, &format!("{name} cut to {len}"), count);
            assert_eq!(kind, Kind::Refused);
        });
        say(name, &sum);
        assert_eq!(sum.tried as usize, bytes.len() * 9);
    }
}
