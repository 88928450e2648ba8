//! The writing end of the log: puts entries behind one another, takes up segments, and knows what is fenced.
//!
//! It keeps to three rules that recovery relies on. An entry's `fenced` names only what a done fence covered. A
//! segment's generation is below a limit that was durable before. The first entry of a segment names the segment before
//! it and where that one ended.

use std::io;

use flexlog_protocol::media::{Device, FenceId, StoreError};

use crate::codec::{CONTINUE, Continue};
use crate::layout::{self, ENTRY_HEADER, HEAD_BYTES, Kind, LINE, Place, ZEROS, padded};
use crate::segments::Segments;
use crate::superblock::Superblock;

/// Bytes of the first entry of a segment.
pub(crate) const FIRST_ENTRY: usize = padded(ENTRY_HEADER + CONTINUE);
/// By how much the limit of generations is raised at a time.
pub(crate) const GENERATIONS: u32 = 256;

/// The buffer is handed to the device when it has more than this.
const BUFFERED: usize = 4096;
/// The area grows by this part of a segment at a time.
const STEPS: u32 = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Log<D> {
    pub(crate) device: D,
    pub(crate) segments: Segments,
    /// For people: the area's path.
    pub(crate) what: String,
    superblock: Superblock,
    seed: u32,
    segment_bytes: u32,
    max_segments: usize,
    /// The segment that is written, its place in the area, and where in it the next entry goes.
    head: usize,
    base: u64,
    next: Place,
    fenced: Place,
    /// The fence under way, where the log ended when it was started, and the segment of that place.
    under_way: Option<(FenceId, Place, usize)>,
    next_generation: u32,
    /// No segment may have this generation until a superblock that says more is durable.
    generation_limit: u32,
    /// A superblock was written, with this fence behind it once one was started. Until that is done there is no other:
    /// one of the two copies must be whole at any time.
    renewing: Option<Option<FenceId>>,
    /// The area is so many segments long, and that is durable.
    durable_segments: u32,
    failed: Option<(io::ErrorKind, String)>,
    /// The medium refused to give more; asked again when there is need.
    medium_full: bool,
    /// Free segments that entries other than staged ones leave alone.
    pub(crate) keep: usize,
    /// Entries that the device was not given yet, all that stand between `buffered_at` and `next`. Two writes that share
    /// a line would have the second wait for the first, so small entries go along with what follows them.
    buffer: Vec<u8>,
    buffered_at: u64,
    /// Where in the buffer the entry begins that is being put together.
    begun: usize,
}

/// Where the log goes on after recovery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resume {
    /// Where it ends; generation 0 for an empty one.
    pub(crate) end: Place,
    /// The segment of that place, where the next entry may go right there.
    pub(crate) head: Option<usize>,
    /// Below this all is durable.
    pub(crate) fenced: Place,
    /// No segment has this generation or one above it.
    pub(crate) next_generation: u32,
}

impl<D: Device> Log<D> {
    /// Goes on at `resume`. The caller has marked the segments that are in use.
    ///
    /// # Errors
    /// As [`LogStore::append`](flexlog_protocol::media::LogStore::append).
    pub(crate) fn resume(
        device: D,
        segments: Segments,
        what: String,
        superblock: Superblock,
        limit_bytes: u64,
        resume: Resume,
    ) -> Result<Self, StoreError> {
        let segment_bytes = superblock.segment_bytes as u32;
        let max_segments = (limit_bytes.saturating_sub(HEAD_BYTES) / superblock.segment_bytes) as usize;
        let mut log = Self {
            device,
            segments,
            what,
            superblock,
            seed: layout::seed(superblock.store),
            segment_bytes,
            max_segments,
            head: 0,
            base: HEAD_BYTES,
            next: resume.end,
            fenced: resume.fenced,
            under_way: None,
            next_generation: resume.next_generation,
            generation_limit: superblock.generation_limit,
            renewing: None,
            durable_segments: superblock.segments,
            failed: None,
            medium_full: false,
            keep: 1,
            buffer: Vec::new(),
            buffered_at: 0,
            begun: 0,
        };
        match resume.head {
            Some(head) => {
                log.head = head;
                log.base = HEAD_BYTES + head as u64 * superblock.segment_bytes;
                log.buffered_at = log.next_at();
            }
            None => {
                if log.segments.free() == 0 && log.segments.len() >= log.max_segments {
                    // Crash after crash while the area was full: rather a segment beyond the limit than no store.
                    log.max_segments = log.segments.len() + 1;
                    let rolled = log.roll();
                    log.max_segments -= 1;
                    rolled?;
                } else {
                    log.roll()?;
                }
            }
        }
        Ok(log)
    }

    /// The segment that is written.
    #[inline]
    pub(crate) fn head(&self) -> usize {
        self.head
    }

    /// Where the next entry goes, unless it begins a segment.
    #[inline]
    pub(crate) fn next(&self) -> Place {
        self.next
    }

    /// Below this all is durable.
    #[inline]
    pub(crate) fn durable(&self) -> Place {
        self.fenced
    }

    /// The byte of the area at which the next entry begins.
    #[inline]
    pub(crate) fn next_at(&self) -> u64 {
        self.base + u64::from(self.next.offset)
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        u64::from(self.segment_bytes)
    }

    pub(crate) fn max_segments(&self) -> usize {
        self.max_segments
    }

    /// Segments that are free, or that the area may still grow by.
    pub(crate) fn available(&self) -> usize {
        let growth = if self.medium_full { 0 } else { self.max_segments.saturating_sub(self.segments.len()) };
        self.segments.free() + growth
    }

    /// The most bytes of an entry.
    pub(crate) fn capacity(&self) -> usize {
        self.segment_bytes as usize - FIRST_ENTRY
    }

    /// The slot of a byte of the area.
    #[inline]
    pub(crate) fn slot_of(&self, at: u64) -> usize {
        ((at - HEAD_BYTES) / u64::from(self.segment_bytes)) as usize
    }

    /// The place of a byte of the area.
    pub(crate) fn place_of(&self, at: u64) -> Place {
        let slot = self.slot_of(at);
        let offset = at - HEAD_BYTES - slot as u64 * self.segment_bytes();
        Place::new(self.segments.get(slot).generation, offset as u32)
    }

    #[inline]
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.failed.is_none() { Ok(()) } else { Err(self.failure()) }
    }

    #[cold]
    fn failure(&self) -> StoreError {
        let (kind, said) = self.failed.clone().unwrap_or((io::ErrorKind::Other, String::new()));
        StoreError::Failed { what: self.what.clone(), source: io::Error::new(kind, said) }
    }

    #[cold]
    pub(crate) fn fail(&mut self, error: &io::Error) -> StoreError {
        // The first error is the one that people need.
        self.failed.get_or_insert_with(|| (error.kind(), error.to_string()));
        self.failure()
    }

    #[cold]
    pub(crate) fn full(&self) -> StoreError {
        StoreError::Full {
            what: self.what.clone(),
            used: self.segments.used() as u64 * self.segment_bytes(),
            limit: self.max_segments as u64 * self.segment_bytes(),
        }
    }

    /// Makes sure that an entry of `len` bytes can be put, and that `keep` free segments are left then.
    ///
    /// # Errors
    /// `Full`, and then nothing was written; `Failed`.
    #[inline]
    pub(crate) fn make_room(&mut self, len: usize, keep: usize) -> Result<(), StoreError> {
        let fits = self.fits(len);
        if fits && self.segments.free() >= keep { Ok(()) } else { self.find_room(len, keep, fits) }
    }

    #[cold]
    fn find_room(&mut self, len: usize, keep: usize, fits: bool) -> Result<(), StoreError> {
        if padded(len) > self.capacity() {
            return Err(self.full());
        }
        if self.want_free(keep + usize::from(!fits))? {
            if fits { Ok(()) } else { self.roll() }
        } else {
            Err(self.full())
        }
    }

    /// Whether an entry of `len` bytes can be put without another segment.
    #[inline]
    pub(crate) fn fits(&self, len: usize) -> bool {
        self.next.offset as usize + padded(len) <= self.segment_bytes as usize
    }

    /// Makes sure that an entry of `len` bytes other than a staged one can be put. The last free segment is kept for the
    /// next opening, which may not be able to go on in the current one.
    ///
    /// # Errors
    /// As [`Log::make_room`].
    #[inline]
    pub(crate) fn make_room_in_reserve(&mut self, len: usize) -> Result<(), StoreError> {
        let fits = self.fits(len);
        if fits { Ok(()) } else { self.find_room(len, self.keep, fits) }
    }

    /// Tries to have so many free segments. Returns whether there are.
    pub(crate) fn want_free(&mut self, count: usize) -> Result<bool, StoreError> {
        if self.segments.free() < count {
            self.fenced()?;
        }
        while self.segments.free() < count && self.segments.len() < self.max_segments {
            let segments = self.segments.len() + 1;
            match self.device.grow(HEAD_BYTES + segments as u64 * self.segment_bytes()) {
                Ok(()) => {
                    self.medium_full = false;
                    self.segments.grow(segments);
                }
                Err(error) if is_full(&error) => {
                    self.medium_full = true;
                    break;
                }
                Err(error) => return Err(self.fail(&error)),
            }
        }
        Ok(self.segments.free() >= count)
    }

    /// Has the area grow by about as much as the last `len` bytes took, where the next segment needs it to keep `keep`
    /// free. Allocating a whole segment at once would make one append wait for milliseconds.
    #[inline]
    pub(crate) fn grow_ahead(&mut self, len: usize, keep: usize) {
        let step = (self.segment_bytes / STEPS).max(4096);
        let steps = self.next.offset / step - self.next.offset.saturating_sub(padded(len) as u32) / step;
        if steps > 0 && self.segments.free() <= keep && self.segments.len() < self.max_segments {
            self.grow_by(u64::from(steps) * u64::from(step));
        }
    }

    #[cold]
    fn grow_by(&mut self, bytes: u64) {
        let segments = self.segments.len() + 1;
        let whole = HEAD_BYTES + segments as u64 * self.segment_bytes();
        let len = (self.device.len() + bytes).min(whole);
        match self.device.grow(len) {
            Ok(()) if len == whole => self.segments.grow(segments),
            Ok(()) => {}
            // What is wrong is told to the one who needs the segment.
            Err(error) => self.medium_full |= is_full(&error),
        }
    }

    /// Goes on in a free segment.
    fn roll(&mut self) -> Result<(), StoreError> {
        if self.segments.free() == 0 && !self.want_free(1)? {
            return Err(self.full());
        }
        let generation = self.generation()?;
        self.flush()?;
        let Some(slot) = self.segments.take(generation) else { return Err(self.full()) };
        let before = std::mem::replace(&mut self.next, Place::new(generation, 0));
        self.head = slot;
        self.base = HEAD_BYTES + slot as u64 * self.segment_bytes();
        self.buffered_at = self.base;
        Continue { slot: slot as u32, before }.put(self.begin());
        self.finish(Kind::Continue)
    }

    /// A generation that was never used, below the durable limit.
    fn generation(&mut self) -> Result<u32, StoreError> {
        loop {
            if self.renewing.is_none() && self.generation_limit - self.next_generation < GENERATIONS / 2 {
                let Some(limit) = self.superblock.generation_limit.checked_add(GENERATIONS) else {
                    let used_up =
                        io::Error::other("the area's segments were used 2^32 times; move the replica to a new one");
                    return Err(self.fail(&used_up));
                };
                // Rides on the next fence. Nobody waits for it unless half of the step is used up before that.
                self.superblock.generation_limit = limit;
                self.renew_superblock()?;
            }
            if self.next_generation < self.generation_limit {
                self.next_generation += 1;
                return Ok(self.next_generation - 1);
            }
            let fence = match self.under_way {
                Some((fence, ..)) => fence,
                None => self.fence()?,
            };
            self.wait(fence)?;
        }
    }

    fn renew_superblock(&mut self) -> Result<(), StoreError> {
        self.superblock.sequence += 1;
        let bytes = self.superblock.encode();
        if let Err(error) = self.device.write(self.superblock.offset(), &[&bytes]) {
            return Err(self.fail(&error));
        }
        self.renewing = Some(None);
        Ok(())
    }

    /// Begins an entry that there is room for: its body, or the first part of it, goes behind what is in the buffer.
    #[inline]
    pub(crate) fn begin(&mut self) -> &mut Vec<u8> {
        self.begun = self.buffer.len();
        self.buffer.extend_from_slice(&[0; ENTRY_HEADER]);
        &mut self.buffer
    }

    /// Bytes of the entry that was begun.
    #[inline]
    pub(crate) fn begun(&self) -> usize {
        self.buffer.len() - self.begun
    }

    /// Ends an entry that is in the buffer as a whole.
    #[inline]
    pub(crate) fn finish(&mut self, kind: Kind) -> Result<(), StoreError> {
        let len = self.begun();
        self.seal(kind, len, len);
        self.buffer.resize(self.begun + padded(len), 0);
        self.advance(len);
        if self.buffer.len() > BUFFERED { self.flush() } else { Ok(()) }
    }

    /// Ends an entry of `len` bytes whose checksum covers the first `covered`, and whose last part is `rest`. Returns the
    /// byte of the area that it begins at.
    #[inline]
    pub(crate) fn finish_with(
        &mut self,
        kind: Kind,
        covered: usize,
        len: usize,
        rest: &[&[u8]],
    ) -> Result<u64, StoreError> {
        let at = self.next_at();
        self.seal(kind, covered, len);
        self.advance(len);
        self.hand_over(rest)?;
        Ok(at)
    }

    #[inline]
    fn seal(&mut self, kind: Kind, covered: usize, len: usize) {
        let body_len = (len - ENTRY_HEADER) as u32;
        let head = &mut self.buffer[self.begun..];
        layout::finish_head(head, kind, body_len, self.next, self.fenced, self.seed, covered);
    }

    #[inline]
    fn advance(&mut self, len: usize) {
        self.next.offset += padded(len) as u32;
        self.segments.get_mut(self.head).end = self.next.offset;
    }

    /// Gives the device what is in the buffer.
    #[inline]
    fn flush(&mut self) -> Result<(), StoreError> {
        if self.buffer.is_empty() { Ok(()) } else { self.hand_over(&[]) }
    }

    /// Gives the device what is in the buffer, `rest`, and zeros up to the next line, so that no write has to load the rest
    /// of a line. The next write begins within the zeros.
    #[inline]
    fn hand_over(&mut self, rest: &[&[u8]]) -> Result<(), StoreError> {
        let end = self.buffered_at + (self.buffer.len() + rest.iter().map(|part| part.len()).sum::<usize>()) as u64;
        let pad = &ZEROS[..(end.next_multiple_of(LINE as u64) - end) as usize];
        let written = if let [one] = rest {
            self.device.write(self.buffered_at, &[&self.buffer, one, pad])
        } else {
            let own = self.buffer.as_slice();
            let parts: Vec<&[u8]> = [own].into_iter().chain(rest.iter().copied()).chain([pad]).collect();
            self.device.write(self.buffered_at, &parts)
        };
        self.buffer.clear();
        self.buffered_at = self.next_at();
        written.map_err(|error| self.fail(&error))
    }

    #[inline]
    pub(crate) fn fence(&mut self) -> Result<FenceId, StoreError> {
        self.check()?;
        self.flush()?;
        if self.durable_segments > self.superblock.segments && self.renewing.is_none() {
            self.superblock.segments = self.durable_segments;
            self.renew_superblock()?;
        }
        let started = self.device.fence().and_then(|fence| Ok((fence, self.device.fenced()?)));
        match started {
            Ok((fence, done)) => {
                if let Some(covered) = &mut self.renewing {
                    covered.get_or_insert(fence);
                }
                self.under_way = Some((fence, self.next, self.head));
                self.done(done);
                Ok(fence)
            }
            Err(error) => Err(self.fail(&error)),
        }
    }

    #[inline]
    fn done(&mut self, done: FenceId) {
        if let Some((fence, place, head)) = self.under_way
            && fence <= done
        {
            self.fenced = place;
            self.under_way = None;
            self.segments.fenced(place);
            // The file is as long as that, or the fence had nothing to cover.
            self.durable_segments = self.durable_segments.max(head as u32 + 1);
        }
        if let Some(Some(fence)) = self.renewing
            && fence <= done
        {
            self.generation_limit = self.superblock.generation_limit;
            self.renewing = None;
        }
    }

    #[inline]
    pub(crate) fn fenced(&mut self) -> Result<FenceId, StoreError> {
        self.check()?;
        match self.device.fenced() {
            Ok(done) => {
                self.done(done);
                Ok(done)
            }
            Err(error) => Err(self.fail(&error)),
        }
    }

    pub(crate) fn wait(&mut self, fence: FenceId) -> Result<(), StoreError> {
        self.check()?;
        match self.device.wait(fence) {
            Ok(()) => self.fenced().map(|_| ()),
            Err(error) => Err(self.fail(&error)),
        }
    }
}

/// Whether the medium has no room, as opposed to being broken.
pub(crate) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
