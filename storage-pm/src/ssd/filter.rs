//! A Bloom filter over the colors of a file: whether the file may hold a color, in at most [`MAX_BYTES`] of memory.
//!
//! About 10 bits a color and two hash functions, both from one 64-bit mix: some 3 % of the colors that a file does not
//! hold are taken for held. Above 52,000 colors in a file the filter grows no further, and more are.

use flexlog_protocol::Color;

use super::format::u64_at;

/// The most bytes of a filter.
pub(crate) const MAX_BYTES: usize = 64 << 10;
const BITS_A_COLOR: usize = 10;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Filter {
    words: Box<[u64]>,
}

/// The finalizer of SplitMix64: every bit of the color reaches every bit of the hash.
fn mix(color: Color) -> u64 {
    let mut z = color.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Filter {
    /// A filter that has these colors.
    pub(crate) fn of(colors: impl ExactSizeIterator<Item = Color>) -> Self {
        let words = (colors.len() * BITS_A_COLOR).div_ceil(64).clamp(1, MAX_BYTES / 8);
        let mut filter = Self { words: vec![0; words].into() };
        for color in colors {
            for bit in filter.bits(color) {
                filter.words[bit / 64] |= 1 << (bit % 64);
            }
        }
        filter
    }

    /// Reads one. `None`: nobody writes such a filter.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let sound = !bytes.is_empty() && bytes.len() <= MAX_BYTES && bytes.len().is_multiple_of(8);
        sound.then(|| Self { words: bytes.chunks_exact(8).map(|word| u64_at(word, 0)).collect() })
    }

    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        self.words.iter().for_each(|word| into.extend_from_slice(&word.to_le_bytes()));
    }

    fn bits(&self, color: Color) -> [usize; 2] {
        let hash = mix(color);
        let bits = self.words.len() as u64 * 64;
        // The high half of a product spreads 32 bits evenly over any range.
        [hash as u32, (hash >> 32) as u32].map(|half| ((u64::from(half) * bits) >> 32) as usize)
    }

    /// Whether the color may be among those it was made of. Never false for one that is.
    pub(crate) fn may_have(&self, color: Color) -> bool {
        self.bits(color).iter().all(|bit| self.words[bit / 64] >> (bit % 64) & 1 == 1)
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.words.len() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_color_is_found_and_few_others() {
        let colors = (0..1000u32).map(|n| Color(u64::from(n) * 3));
        let filter = Filter::of(colors.clone());
        assert!(colors.clone().all(|color| filter.may_have(color)));
        let wrong = (0..10_000).filter(|n| n % 3 != 0 && filter.may_have(Color(*n))).count();
        assert!(wrong < 500, "{wrong} of 6,667");
        let mut bytes = Vec::new();
        filter.put(&mut bytes);
        assert_eq!(Filter::decode(&bytes), Some(filter));
    }

    #[test]
    fn it_is_bounded_and_nothing_odd_is_taken_for_one() {
        let filter = Filter::of((0..100_000u32).map(|n| Color(n.into())));
        assert_eq!(filter.bytes(), MAX_BYTES);
        assert!((0..100_000).all(|n| filter.may_have(Color(n))));
        assert!(Filter::of(std::iter::empty()).bits(Color(7)).iter().all(|bit| *bit < 64));
        for len in [0, 7, 12, MAX_BYTES + 8] {
            assert_eq!(Filter::decode(&vec![0; len]), None);
        }
    }
}
