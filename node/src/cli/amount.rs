//! Durations and sizes on the command line: `90s`, `7d`, `10GiB`, or `none` where there is to be no bound.

use std::num::NonZeroU64;

use flexlog_protocol::api::BoundChange;
use flexlog_tree_config::amount::{SIZES, parse};

/// Units, the largest first, and how many seconds each has.
const TIMES: [(&str, u64); 5] = [("w", 7 * 86_400), ("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
/// A bound on the age of records.
pub(crate) fn age(text: &str) -> Result<BoundChange, String> {
    amount(text, &TIMES).ok_or_else(|| {
        format!(
            "'{text}' is not an age: write a whole number from 1 up and a unit, 90s, 15m, 12h, 7d or 2w, or write none"
        )
    })
}

/// A bound on the bytes of records.
pub(crate) fn size(text: &str) -> Result<BoundChange, String> {
    amount(text, &SIZES).ok_or_else(|| {
        format!(
            "'{text}' is not a size: write a whole number from 1 up and a unit, 500B, 64KiB, 10MiB, 10GiB or 2TiB (kB, MB, \
             GB and TB are powers of 1000), or write none"
        )
    })
}

fn amount(text: &str, units: &[(&str, u64)]) -> Option<BoundChange> {
    if text == "none" {
        return Some(BoundChange::Remove);
    }
    parse(text, units).map(BoundChange::Set)
}

/// Seconds, in the largest unit that says them exactly.
pub(crate) fn of_seconds(seconds: NonZeroU64) -> String {
    in_units(seconds.get(), TIMES.iter())
}

/// Bytes, in the largest unit of 1024 that says them exactly.
pub(crate) fn of_bytes(bytes: NonZeroU64) -> String {
    in_units(bytes.get(), SIZES.iter().filter(|(name, _)| name.contains('i') || *name == "B"))
}

fn in_units<'a>(whole: u64, mut units: impl Iterator<Item = &'a (&'a str, u64)>) -> String {
    match units.find(|(_, each)| whole.is_multiple_of(*each)) {
        Some((name, each)) => format!("{}{name}", whole / each),
        None => whole.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(n: u64) -> Result<BoundChange, String> {
        Ok(BoundChange::Set(NonZeroU64::new(n).unwrap()))
    }

    #[test]
    fn ages_and_sizes_are_read() {
        for (text, seconds) in
            [("1s", 1), ("90s", 90), ("15m", 900), ("12h", 43_200), ("7d", 604_800), ("2w", 1_209_600)]
        {
            assert_eq!(age(text), set(seconds), "{text}");
        }
        let sizes = [
            ("1B", 1),
            ("64KiB", 65_536),
            ("64kib", 65_536),
            ("5GiB", 5 << 30),
            ("3MB", 3_000_000),
            ("2TB", 2_000_000_000_000),
        ];
        for (text, bytes) in sizes {
            assert_eq!(size(text), set(bytes), "{text}");
        }
        assert_eq!((age("none"), size("none")), (Ok(BoundChange::Remove), Ok(BoundChange::Remove)));
    }

    #[test]
    fn anything_else_is_refused_with_what_to_write_instead() {
        for text in ["", "7", "d", "0s", "-1s", "+1s", "1.5h", "7 d", "7days", "1GiB", "18446744073709551615w", "None"]
        {
            let says = age(text).unwrap_err();
            assert!(says.contains(&format!("'{text}'")) && says.contains("7d"), "{says}");
        }
        for text in ["", "10", "GiB", "0B", "-1B", "1.5GiB", "1 GiB", "1h", "18446744073709551615KiB"] {
            let says = size(text).unwrap_err();
            assert!(says.contains(&format!("'{text}'")) && says.contains("10GiB"), "{says}");
        }
    }

    #[test]
    fn what_is_printed_is_what_can_be_read() {
        for (seconds, text) in [(1, "1s"), (60, "1m"), (61, "61s"), (86_400, "1d"), (604_800, "1w"), (36 * 3600, "36h")]
        {
            let seconds = NonZeroU64::new(seconds).unwrap();
            assert_eq!(of_seconds(seconds), text);
            assert_eq!(age(text), Ok(BoundChange::Set(seconds)));
        }
        for (bytes, text) in
            [(1, "1B"), (1000, "1000B"), (1024, "1KiB"), (10 << 30, "10GiB"), (u64::MAX, "18446744073709551615B")]
        {
            let bytes = NonZeroU64::new(bytes).unwrap();
            assert_eq!(of_bytes(bytes), text);
            assert_eq!(size(text), Ok(BoundChange::Set(bytes)));
        }
    }
}
