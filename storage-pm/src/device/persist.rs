//! Copying bytes into mapped memory and getting them out of the caches: all the instructions that Rust cannot express.
//!
//! [`Persist::stream`] and [`Persist::write_back`] leave whole lines either streamed (non-temporal) or copied and written back; what it did is durable
//! once [`Persist::fence`] returns, on memory that is. The instruction to write back with is chosen once, at run time:
//! the best that the processor has, or the one that `FLEXLOG_FLUSH` names.
#![allow(unsafe_code)]

use std::io;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__cpuid, __cpuid_count, __m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Has the lines of `bytes` on their way to the processor's caches, all at once, before anybody waits for the first.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: this is a hint, which reads nothing and faults nowhere, and the processor has SSE as each x86_64 has.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// The environment variable that names the way to write lines back, in place of the best one that the processor has.
const VARIABLE: &str = "FLEXLOG_FLUSH";

/// How lines are written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// `clwb`: the line may stay in the cache.
    Clwb,
    /// `clflushopt`: the line leaves the cache.
    ClflushOpt,
    /// `clflush`: lines leave the cache, one after the other.
    Clflush,
    /// No instruction: the mapping's owner calls msync at each memory fence.
    Msync,
}

impl Flush {
    const ALL: [Self; 4] = [Self::Clwb, Self::ClflushOpt, Self::Clflush, Self::Msync];

    /// What `FLEXLOG_FLUSH` calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clwb => "clwb",
            Self::ClflushOpt => "clflushopt",
            Self::Clflush => "clflush",
            Self::Msync => "msync",
        }
    }

    /// The ways of this processor, the best first. [`Flush::Msync`] is always among them.
    #[cfg(target_arch = "x86_64")]
    #[must_use]
    #[allow(unused_unsafe)] // whether `__cpuid` is unsafe depends on the compiler's version
    pub fn here() -> Vec<Self> {
        // SAFETY: every x86_64 processor has `cpuid`; leaf 7 is asked for only where leaf 0 says that there is one.
        let ebx = unsafe { if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 } };
        let mut ways = Vec::from(Self::ALL);
        ways.retain(|way| match way {
            Self::Clwb => ebx & 1 << 24 != 0,
            Self::ClflushOpt => ebx & 1 << 23 != 0,
            Self::Clflush | Self::Msync => true,
        });
        ways
    }

    /// The ways of this processor, the best first. [`Flush::Msync`] is always among them.
    #[cfg(not(target_arch = "x86_64"))]
    #[must_use]
    pub fn here() -> Vec<Self> {
        vec![Self::Msync]
    }

    /// The way that `FLEXLOG_FLUSH` asks for; where it is not set, the best of this processor.
    pub(super) fn wanted() -> io::Result<Self> {
        let asked = std::env::var_os(VARIABLE);
        choose(asked.as_ref().map(|asked| asked.to_string_lossy()).as_deref(), &Self::here())
    }
}

fn names(ways: &[Flush]) -> String {
    ways.iter().map(|way| way.name()).collect::<Vec<_>>().join(", ")
}

/// `here`: what the processor has, the best first.
fn choose(asked: Option<&str>, here: &[Flush]) -> io::Result<Flush> {
    let Some(asked) = asked else {
        return Ok(here.first().copied().unwrap_or(Flush::Msync));
    };
    let Some(way) = Flush::ALL.into_iter().find(|way| way.name() == asked) else {
        let what = format!("{VARIABLE} is `{asked}`, which is none of {}: correct or unset it", names(&Flush::ALL));
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    };
    if here.contains(&way) {
        return Ok(way);
    }
    let what = format!("{VARIABLE} is `{asked}`, which this processor lacks: it has {}", names(here));
    Err(io::Error::new(io::ErrorKind::Unsupported, what))
}

/// A way that this machine has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Persist {
    /// Only [`Persist::new`] makes one: an instruction that the processor lacks would kill the process.
    flush: Flush,
}

impl Persist {
    /// # Errors
    /// `Unsupported` where the processor lacks it.
    pub(super) fn new(flush: Flush) -> io::Result<Self> {
        choose(Some(flush.name()), &Flush::here()).map(|flush| Self { flush })
    }

    pub(super) fn flush(self) -> Flush {
        self.flush
    }

    /// Copies whole lines past the cache.
    ///
    /// # Safety
    /// `to` is a multiple of 64; `lines` lines from `from` may be read and from `to` may be written, and they do not
    /// overlap.
    #[inline]
    pub(super) unsafe fn stream(self, to: *mut u8, from: *const u8, lines: usize) {
        // Wider stores were measured too: the line is what counts, and these need no asking for the processor's features.
        #[cfg(target_arch = "x86_64")]
        for part in 0..lines * (LINE / 16) {
            // SAFETY: the part is within what the caller promised; `to` is a multiple of 64, so of 16. Every x86_64
            // processor has SSE2.
            unsafe {
                let bytes = _mm_loadu_si128(from.add(part * 16).cast());
                _mm_stream_si128(to.add(part * 16).cast::<__m128i>(), bytes);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, lines * LINE);
        }
    }

    /// Writes back the lines of `len` bytes from `at`. Nothing where the way is [`Flush::Msync`].
    ///
    /// # Safety
    /// The bytes may be read.
    #[inline]
    pub(super) unsafe fn write_back(self, at: *const u8, len: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            let end = at as usize + len;
            let mut line = at as usize & !(LINE - 1);
            while line < end {
                // SAFETY: the line holds a byte that may be read, and lines do not cross pages. The instructions
                // change no byte; `new` found that the processor has the one that is used.
                unsafe {
                    match self.flush {
                        Flush::Clwb => std::arch::asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                        Flush::ClflushOpt => {
                            std::arch::asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                        }
                        Flush::Clflush => {
                            std::arch::asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
                        }
                        Flush::Msync => {}
                    }
                }
                line += LINE;
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (at, len);
    }

    /// The one memory fence: everything streamed or written back before is with the memory when this returns.
    #[inline]
    pub(super) fn fence(self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86_64 processor has SSE, and the fence touches no memory of ours.
        unsafe {
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Lines([u8; 5 * LINE]);

    #[test]
    fn each_way_streams_exactly_the_lines_it_is_told() {
        let from: Vec<u8> = (0..4 * LINE as u32 + 1).map(|i| i as u8 | 1).collect();
        for flush in Flush::here() {
            let persist = Persist::new(flush).unwrap();
            for lines in 0..=4 {
                let mut to = Lines([0; 5 * LINE]);
                // SAFETY: `to` is aligned and has 5 lines, `from` has 4 behind its first byte.
                unsafe {
                    persist.stream(to.0.as_mut_ptr(), from.as_ptr().add(1), lines);
                    persist.write_back(to.0.as_ptr(), to.0.len());
                }
                persist.fence();
                assert_eq!(to.0[..lines * LINE], from[1..1 + lines * LINE]);
                assert!(to.0[lines * LINE..].iter().all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    fn the_best_way_is_taken_unless_another_is_asked_for() {
        assert_eq!(choose(None, &Flush::ALL).unwrap(), Flush::Clwb);
        assert_eq!(choose(None, &[Flush::Clflush, Flush::Msync]).unwrap(), Flush::Clflush);
        assert_eq!(choose(None, &[Flush::Msync]).unwrap(), Flush::Msync);
        for way in Flush::ALL {
            assert_eq!(choose(Some(way.name()), &Flush::ALL).unwrap(), way);
        }
    }

    #[test]
    fn a_way_that_is_unknown_or_lacking_is_refused_by_name() {
        for unknown in ["", "CLWB", "clwb ", "fsync"] {
            let error = choose(Some(unknown), &Flush::ALL).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            let text = error.to_string();
            assert!(text.contains(&format!("FLEXLOG_FLUSH is `{unknown}`")) && text.contains("clflushopt"), "{text}");
        }
        let error = choose(Some("clwb"), &[Flush::Clflush, Flush::Msync]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert_eq!(error.to_string(), "FLEXLOG_FLUSH is `clwb`, which this processor lacks: it has clflush, msync");
    }

    #[test]
    fn a_way_that_the_processor_lacks_is_not_made() {
        let here = Flush::here();
        assert_eq!(here.last(), Some(&Flush::Msync));
        for way in Flush::ALL {
            assert_eq!(Persist::new(way).is_ok(), here.contains(&way), "{way:?}");
        }
    }
}
