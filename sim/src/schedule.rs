//! The one source of chance of a run: everything that happens is drawn here, from the seed.
//!
//! It promises that a seed gives one run and no other, and says so with a hash over all draws and all notes: two runs
//! that differ anywhere have different traces, because what could happen next, and so the bound of a draw, differs too.

use uuid::Uuid;

/// Draws, and the hash of what was drawn.
#[derive(Clone, Debug)]
pub struct Chooser {
    state: u64,
    trace: u64,
}

impl Chooser {
    /// The draws of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed ^ 0x5f0f_a11e_d00d_1065, trace: 0xcbf2_9ce4_8422_2325 }
    }

    /// Another source, that this one determines and that leaves this one as it is.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::new(self.state.rotate_left(32))
    }

    /// The next number: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..bound`; 0 where that is empty.
    pub fn below(&mut self, bound: u64) -> u64 {
        let drawn = if bound == 0 { 0 } else { self.draw() % bound };
        self.note(bound);
        self.note(drawn);
        drawn
    }

    /// One of `from..=upto`.
    pub fn between(&mut self, from: u64, upto: u64) -> u64 {
        from + self.below(upto.saturating_sub(from) + 1)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `list`, which has some.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    /// One of `list` by its weight; `None` where all weigh nothing.
    pub fn weighted<T: Copy>(&mut self, list: &[(T, u64)]) -> Option<T> {
        let mut left = self.below(list.iter().map(|(_, weight)| weight).sum());
        list.iter().find_map(|(item, weight)| {
            if left < *weight {
                return Some(*item);
            }
            left -= weight;
            None
        })
    }

    /// A name that was never drawn before.
    pub fn uuid(&mut self) -> Uuid {
        Uuid::from_u128(u128::from(self.draw()) << 64 | u128::from(self.draw()))
    }

    /// Takes something that happened into the trace.
    pub fn note(&mut self, what: u64) {
        // FNV-1a's multiplier, a word at a time: this tells runs apart, it keeps nobody out.
        self.trace = (self.trace ^ what).wrapping_mul(0x0000_0100_0000_01b3);
        self.trace ^= self.trace >> 29;
    }

    /// Takes a line of text into the trace.
    pub fn note_text(&mut self, text: &str) {
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.note(u64::from_le_bytes(word));
        }
    }

    /// The hash of everything so far.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.trace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_sequence_and_weights_count() {
        let (mut a, mut b) = (Chooser::new(7), Chooser::new(7));
        let list = [('x', 0), ('y', 3), ('z', 1)];
        let mut counts = [0; 2];
        for _ in 0..4000 {
            let drawn = a.weighted(&list);
            assert_eq!(drawn, b.weighted(&list));
            match drawn {
                Some('y') => counts[0] += 1,
                Some('z') => counts[1] += 1,
                other => panic!("{other:?} weighs nothing"),
            }
        }
        assert!((2800..3200).contains(&counts[0]), "{counts:?}");
        assert_eq!(a.trace(), b.trace());
        assert_eq!(a.weighted(&[((), 0)]), None);
        assert_ne!(a.trace(), b.trace(), "a draw shows in the trace");
    }
}
