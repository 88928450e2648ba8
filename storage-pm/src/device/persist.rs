//! Copying bytes into mapped memory and getting them out of the caches: all the instructions that Rust cannot express.
//!
//! [`Persist::copy`] leaves whole lines either streamed (non-temporal) or copied and written back; what it did is durable
//! once [`Persist::fence`] returns, on memory that is. The instruction to write back with is chosen once, at run time.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__cpuid, __cpuid_count, __m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// How lines are written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flush {
    /// `clwb`: may stay in the cache.
    #[cfg(target_arch = "x86_64")]
    Clwb,
    /// `clflushopt`: leaves the cache.
    #[cfg(target_arch = "x86_64")]
    ClflushOpt,
    /// `clflush`: leaves the cache, one after the other.
    #[cfg(target_arch = "x86_64")]
    Clflush,
    /// No instruction is known: the mapping's owner calls msync.
    #[cfg_attr(target_arch = "x86_64", allow(dead_code))]
    Msync,
}

/// The ways of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Persist {
    pub(super) flush: Flush,
}

impl Persist {
    /// Asks the processor.
    #[cfg(target_arch = "x86_64")]
    #[allow(unused_unsafe)] // whether `__cpuid` is unsafe depends on the compiler's version
    pub(super) fn detect() -> Self {
        // SAFETY: every x86_64 processor has `cpuid`; leaf 7 is asked for only where leaf 0 says that there is one.
        let ebx = unsafe { if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 } };
        let flush = if ebx & 1 << 24 != 0 {
            Flush::Clwb
        } else if ebx & 1 << 23 != 0 {
            Flush::ClflushOpt
        } else {
            Flush::Clflush
        };
        Self { flush }
    }

    /// There is nothing to ask.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn detect() -> Self {
        Self { flush: Flush::Msync }
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
                // change no byte; the one that is used was found by `detect`.
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
    fn streams_exactly_the_lines_it_is_told() {
        let persist = Persist::detect();
        let from: Vec<u8> = (0..4 * LINE as u32 + 1).map(|i| i as u8 | 1).collect();
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
