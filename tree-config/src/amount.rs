//! Whole numbers with a unit, as people write them: `64MiB`, `90s`.

use std::num::NonZeroU64;

/// Units of sizes, the largest first, and how many bytes each has.
pub const SIZES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("B", 1),
];

/// Digits and one of `units` right behind them, in either case; `None` for anything else, for 0, and above a u64.
#[must_use]
pub fn parse(text: &str, units: &[(&str, u64)]) -> Option<NonZeroU64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, each) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    number.parse::<u64>().ok()?.checked_mul(*each).and_then(NonZeroU64::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read() {
        for (text, bytes) in [("1B", 1), ("64kib", 65_536), ("3MB", 3_000_000), ("2TiB", 2 << 40)] {
            assert_eq!(parse(text, &SIZES), NonZeroU64::new(bytes), "{text}");
        }
        for text in ["", "10", "GiB", "0B", "-1B", "+1B", "1.5GiB", "1 GiB", "1h", "18446744073709551615KiB"] {
            assert_eq!(parse(text, &SIZES), None, "{text}");
        }
    }
}
