//! Names of colors.
//!
//! A name is what people and programs type, so the rules keep out only what cannot be told apart in a terminal or would
//! break a line of it: 1 to [`MAX_COLOR_NAME_BYTES`] bytes of UTF-8, no control characters, no whitespace at either end.
//! Anything else goes, `/` and spaces inside included, and two names are the same only if their bytes are: case counts,
//! and nothing is normalised.

use std::fmt;

use flexlog_protocol::limits::MAX_COLOR_NAME_BYTES;
use serde::{Deserialize, Serialize};

/// The name of a color, known to be a good one. Ordered by its bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ColorName(String);

/// Why a text cannot name a color.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ColorNameError {
    /// There is nothing in it.
    #[error("a name has at least one character")]
    Empty,
    /// It has more than [`MAX_COLOR_NAME_BYTES`] bytes.
    #[error("it has {bytes} bytes, and a name has at most {MAX_COLOR_NAME_BYTES}")]
    TooLong {
        /// How many it has.
        bytes: usize,
    },
    /// It has a control character: a line break, a tab, an escape.
    #[error("it has a control character (U+{code:04X}) at byte {at}: leave it out")]
    Control {
        /// Which.
        code: u32,
        /// Where, in bytes from the start.
        at: usize,
    },
    /// It starts or ends with whitespace.
    #[error("it starts or ends with whitespace: leave that out")]
    Whitespace,
}

impl ColorName {
    /// Takes a name that keeps to the rules of this module.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn new(name: impl Into<String>) -> Result<Self, ColorNameError> {
        let name = name.into();
        if name.is_empty() {
            return Err(ColorNameError::Empty);
        }
        if name.len() > MAX_COLOR_NAME_BYTES {
            return Err(ColorNameError::TooLong { bytes: name.len() });
        }
        if let Some((at, c)) = name.char_indices().find(|(_, c)| c.is_control()) {
            return Err(ColorNameError::Control { code: c.into(), at });
        }
        if name.trim().len() != name.len() {
            return Err(ColorNameError::Whitespace);
        }
        Ok(Self(name))
    }

    /// Below every name. Not a name itself: only a bound for ranges.
    pub(crate) fn lowest() -> Self {
        Self(String::new())
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ColorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ColorName {
    type Error = ColorNameError;

    fn try_from(name: String) -> Result<Self, ColorNameError> {
        Self::new(name)
    }
}

impl From<ColorName> for String {
    fn from(name: ColorName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names_are_taken_as_they_are() {
        for name in ["a", "orders", "shop/orders 2", "Grüße", "日本", ".", &"x".repeat(MAX_COLOR_NAME_BYTES)] {
            assert_eq!(ColorName::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn bad_names_are_refused_for_the_right_reason() {
        assert_eq!(ColorName::new(""), Err(ColorNameError::Empty));
        assert_eq!(ColorName::new("x".repeat(257)), Err(ColorNameError::TooLong { bytes: 257 }));
        // Bytes count, not characters.
        assert_eq!(ColorName::new("ü".repeat(129)), Err(ColorNameError::TooLong { bytes: 258 }));
        assert_eq!(ColorName::new("a\nb"), Err(ColorNameError::Control { code: 10, at: 1 }));
        assert_eq!(ColorName::new("ü\u{1b}"), Err(ColorNameError::Control { code: 27, at: 2 }));
        assert_eq!(ColorName::new("a\u{85}"), Err(ColorNameError::Control { code: 0x85, at: 1 }));
        for name in [" ", " a", "a ", "a\u{a0}", "\u{3000}a"] {
            assert_eq!(ColorName::new(name), Err(ColorNameError::Whitespace), "{name:?}");
        }
    }

    #[test]
    fn a_stored_name_is_checked_again() {
        assert_eq!(serde_json::to_string(&ColorName::new("a b").unwrap()).unwrap(), "\"a b\"");
        assert!(serde_json::from_str::<ColorName>("\"a b\"").is_ok());
        assert!(serde_json::from_str::<ColorName>("\" a\"").is_err());
    }
}
