//! Tables of a TOML file, taken apart key by key. What is wrong is noted with its line, and reading goes on.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Problem;
use crate::amount::{self, SIZES};

/// What is wrong so far.
pub(super) struct Notes {
    /// Where each line begins, in bytes.
    lines: Vec<usize>,
    pub(super) problems: Vec<Problem>,
}

impl Notes {
    pub(super) fn new(text: &str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { lines: std::iter::once(0).chain(breaks).collect(), problems: Vec::new() }
    }

    pub(super) fn line_of(&self, span: &Range<usize>) -> usize {
        self.lines.partition_point(|start| *start <= span.start).max(1)
    }

    pub(super) fn add(&mut self, line: usize, message: impl Into<String>) {
        self.problems.push(Problem { line, message: message.into() });
    }
}

/// A table of the file.
pub(super) struct Section<'d> {
    /// As the file writes it: `[storage]`.
    what: &'static str,
    /// Where it begins.
    pub(super) line: usize,
    values: BTreeMap<&'d str, (usize, &'d Spanned<DeValue<'d>>)>,
}

impl<'d> Section<'d> {
    /// The table; keys that are none of `known` are noted.
    pub(super) fn open(
        what: &'static str,
        line: usize,
        table: &'d DeTable<'d>,
        known: &[&str],
        notes: &mut Notes,
    ) -> Self {
        let mut values = BTreeMap::new();
        for (key, value) in table {
            let (name, line) = (key.get_ref().as_ref(), notes.line_of(&key.span()));
            if known.contains(&name) {
                values.insert(name, (line, value));
            } else {
                notes.add(line, unknown(what, name, known));
            }
        }
        Self { what, line, values }
    }

    /// The line of a key, or of the table where it is not there.
    pub(super) fn line_of(&self, key: &str) -> usize {
        self.values.get(key).map_or(self.line, |(line, _)| *line)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Notes where a key that must be there is not. `example` is a value for it.
    pub(super) fn must_have(&self, key: &str, example: &str, notes: &mut Notes) {
        if !self.has(key) {
            notes.add(self.line, format!("{} has no {key}: write {key} = {example}", self.what));
        }
    }

    /// A value of one type; what is of another is noted, and taken as not there.
    fn typed<T>(
        &self,
        key: &str,
        wanted: &str,
        example: &str,
        notes: &mut Notes,
        take: impl FnOnce(&'d DeValue<'d>) -> Option<T>,
    ) -> Option<T> {
        let (line, value) = self.values.get(key)?;
        let taken = take(value.get_ref());
        if taken.is_none() {
            let is = with_article(value.get_ref().type_str());
            notes.add(*line, format!("{key} is {is}, and must be {wanted}: write {key} = {example}"));
        }
        taken
    }

    pub(super) fn text(&self, key: &str, example: &str, notes: &mut Notes) -> Option<&'d str> {
        self.typed(key, "a string", example, notes, |value| value.as_str())
    }

    pub(super) fn flag(&self, key: &str, notes: &mut Notes) -> Option<bool> {
        self.typed(key, "a boolean", "true", notes, DeValue::as_bool)
    }

    /// A whole number in these bounds, the ends included.
    pub(super) fn number(&self, key: &str, bounds: (u64, u64), example: &str, notes: &mut Notes) -> Option<u64> {
        let (least, most) = bounds;
        let integer = self.typed(key, "an integer", example, notes, DeValue::as_integer)?;
        match u64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) if (least..=most).contains(&number) => Some(number),
            _ => {
                let text = integer.to_string();
                notes.add(
                    self.line_of(key),
                    format!("{key} is {text}, and must be {least} to {most}: write {key} = {example}"),
                );
                None
            }
        }
    }

    /// A size: text with a unit, or a whole number of bytes; from 1 up.
    pub(super) fn size(&self, key: &str, example: &str, notes: &mut Notes) -> Option<u64> {
        let (line, value) = self.values.get(key)?;
        let (found, size) = match value.get_ref() {
            DeValue::String(text) => (format!("'{text}'"), amount::parse(text, &SIZES).map(|size| size.get())),
            DeValue::Integer(integer) => {
                let bytes = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
                (integer.to_string(), bytes.filter(|bytes| *bytes > 0))
            }
            other => (with_article(other.type_str()), None),
        };
        if size.is_none() {
            let units = "a whole number and B, KiB, MiB, GiB or TiB (kB, MB, GB and TB are powers of 1000)";
            notes.add(*line, format!("{key} is {found}, and must be a size, {units}: write {key} = {example}"));
        }
        size
    }

    /// A list of texts; one that is none is noted.
    pub(super) fn texts(&self, key: &str, example: &str, notes: &mut Notes) -> Vec<String> {
        let all = |value: &'d DeValue<'d>| {
            value.as_array()?.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        };
        self.typed(key, "an array of strings", example, notes, all).unwrap_or_default()
    }

    /// A table below this one.
    pub(super) fn table(
        &self,
        key: &str,
        what: &'static str,
        known: &[&str],
        notes: &mut Notes,
    ) -> Option<Section<'d>> {
        let (line, value) = self.values.get(key)?;
        match value.get_ref().as_table() {
            Some(table) => Some(Section::open(what, *line, table, known, notes)),
            None => {
                notes.add(*line, format!("{key} is {}: write {what}", with_article(value.get_ref().type_str())));
                None
            }
        }
    }

    /// The tables of an array of them.
    pub(super) fn tables(&self, key: &str, what: &'static str, known: &[&str], notes: &mut Notes) -> Vec<Section<'d>> {
        let Some((line, value)) = self.values.get(key) else { return Vec::new() };
        let mut sections = Vec::new();
        let Some(items) = value.get_ref().as_array() else {
            let is = with_article(value.get_ref().type_str());
            notes.add(*line, format!("{key} is {is}: write {what}, with two brackets on each side"));
            return sections;
        };
        for item in items {
            let line = notes.line_of(&item.span());
            match item.get_ref().as_table() {
                Some(table) => sections.push(Section::open(what, line, table, known, notes)),
                None => {
                    notes.add(line, format!("{key} holds {}: write {what}", with_article(item.get_ref().type_str())))
                }
            }
        }
        sections
    }
}

fn with_article(kind: &str) -> String {
    let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {kind}")
}

fn unknown(what: &str, key: &str, known: &[&str]) -> String {
    let advice = match (what, key) {
        ("the file", "replica" | "replicas") => "write [[shard.replica]] below the [[shard]] of the replica".to_owned(),
        ("[[shard.replica]]", _) if super::parse::STORAGE_KEYS.contains(&key) => {
            "replicas store alike: write it in [storage]".to_owned()
        }
        _ => match nearest(key, known.iter().copied()) {
            Some(nearest) => format!("did you mean {nearest}?"),
            None => format!("leave it out; what is known there is {}", known.join(", ")),
        },
    };
    format!("unknown key '{key}' in {what}: {advice}")
}

/// The one of `known` that somebody who wrote `word` may have meant.
pub(super) fn nearest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let letters = |text: &str| text.to_lowercase().chars().collect::<Vec<_>>();
    let wanted = letters(word);
    let (distance, length, found) = known
        .map(|candidate| {
            let other = letters(candidate);
            (distance(&wanted, &other), other.len().max(wanted.len()), candidate)
        })
        .min_by_key(|(distance, ..)| *distance)?;
    (distance <= (length / 3).max(2) && distance < length).then_some(found)
}

/// How many letters must be changed, put in or left out to make one word of the other (Levenshtein).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_guessed_when_it_is_near() {
        let known = ["name", "parent", "address", "linger_micros"];
        let guess = |word: &str| nearest(word, known.into_iter());
        for (word, meant) in
            [("adress", "address"), ("Name", "name"), ("praent", "parent"), ("linger_micro", "linger_micros")]
        {
            assert_eq!(guess(word), Some(meant), "{word}");
        }
        assert_eq!((guess("color"), guess("x")), (None, None));
        assert_eq!(nearest("x", ["y"].into_iter()), None);
    }

    #[test]
    fn distances_are_those_of_the_book() {
        let of = |a: &str, b: &str| distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        assert_eq!((of("kitten", "sitting"), of("", "abc"), of("abc", ""), of("a", "a")), (3, 3, 3, 0));
    }
}
