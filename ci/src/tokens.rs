//! Just enough of Rust's grammar to tell code from comments and strings, and to see which paths the code names.

/// A piece of code: an identifier, `::`, or any other single character.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    /// As written; a raw identifier without its `r#`.
    pub text: String,
    /// Its line, from 1.
    pub line: usize,
}

impl Token {
    /// Whether it is a name or a keyword.
    #[must_use]
    pub fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// The code of a file, without comments, strings, characters and lifetimes.
#[must_use]
pub fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
    while let Some(&c) = chars.get(at) {
        let start = at;
        let next = chars.get(at + 1).copied();
        match c {
            '/' if next == Some('/') => at = find(&chars, at, |c| c == '\n'),
            '/' if next == Some('*') => at = block_comment(&chars, at),
            '"' => at = string(&chars, at),
            '\'' => at = character_or_lifetime(&chars, at),
            _ if c.is_alphabetic() || c == '_' => {
                at = find(&chars, at, |c| !(c.is_alphanumeric() || c == '_'));
                let word: String = chars[start..at].iter().collect();
                match (word.as_str(), chars.get(at)) {
                    ("r" | "br" | "cr", Some('"' | '#')) if raw_string(&chars, at).is_some() => {
                        at = raw_string(&chars, at).unwrap_or(at);
                    }
                    ("b" | "c", Some('"')) => at = string(&chars, at),
                    ("b", Some('\'')) => at = character_or_lifetime(&chars, at),
                    ("r", Some('#')) => at += 1,
                    _ => tokens.push(Token { text: word, line }),
                }
            }
            ':' if next == Some(':') => {
                at += 2;
                tokens.push(Token { text: "::".to_owned(), line });
            }
            _ => {
                at += 1;
                if !c.is_whitespace() {
                    tokens.push(Token { text: c.to_string(), line });
                }
            }
        }
        line += chars[start..at.min(chars.len())].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

/// The first place from `at` on where `stop` holds, or the end.
fn find(chars: &[char], at: usize, stop: impl Fn(char) -> bool) -> usize {
    chars[at..].iter().position(|c| stop(*c)).map_or(chars.len(), |n| at + n)
}

fn block_comment(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < chars.len() {
        match chars[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The end of the string whose quote is at `at`.
fn string(chars: &[char], at: usize) -> usize {
    let mut end = at + 1;
    while let Some(c) = chars.get(end) {
        match c {
            '\\' => end += 2,
            '"' => return end + 1,
            _ => end += 1,
        }
    }
    chars.len()
}

/// The end of the raw string whose `#`s or quote are at `at`; `None` where there is none.
fn raw_string(chars: &[char], at: usize) -> Option<usize> {
    let quote = find(chars, at, |c| c != '#');
    let hashes = quote - at;
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let closes =
        |end: usize| chars[end] == '"' && chars[end + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
    Some((quote + 1..chars.len()).find(|end| closes(*end)).map_or(chars.len(), |end| end + 1 + hashes))
}

fn character_or_lifetime(chars: &[char], at: usize) -> usize {
    match chars[at + 1..] {
        ['\\', ..] => find(chars, at + 3, |c| c == '\'') + 1,
        [_, '\'', ..] => at + 3,
        _ => find(chars, at + 1, |c| !(c.is_alphanumeric() || c == '_')),
    }
}

/// A path that the code names, groups taken apart: `use a::{b, c::d}` names `a::b` and `a::c::d`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// Its parts; `*` is one.
    pub parts: Vec<String>,
    /// The line of its last part.
    pub line: usize,
}

impl Path {
    /// Whether it begins with these parts.
    #[must_use]
    pub fn starts_with(&self, parts: &[&str]) -> bool {
        self.parts.len() >= parts.len() && self.parts.iter().zip(parts).all(|(a, b)| a == b)
    }
}

/// All paths of some code, single names included.
#[must_use]
pub fn paths(tokens: &[Token]) -> Vec<Path> {
    let (mut paths, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let leading = tokens[at].text == "::";
        let start = if leading { at + 1 } else { at };
        if tokens.get(start).is_some_and(Token::is_word) {
            at = path(tokens, start, &[], &mut paths);
        } else {
            at += 1;
        }
    }
    paths
}

/// Reads the path at `at`, below `prefix`; answers where it ends.
fn path(tokens: &[Token], mut at: usize, prefix: &[String], paths: &mut Vec<Path>) -> usize {
    let mut parts = prefix.to_vec();
    let mut line = tokens[at].line;
    loop {
        parts.push(tokens[at].text.clone());
        line = tokens[at].line.max(line);
        at += 1;
        if tokens.get(at).is_none_or(|token| token.text != "::") {
            break;
        }
        match tokens.get(at + 1) {
            Some(token) if token.is_word() || token.text == "*" => at += 1,
            Some(token) if token.text == "{" => return group(tokens, at + 2, &parts, paths),
            _ => break,
        }
    }
    paths.push(Path { parts, line });
    at
}

/// Reads what is in the braces of a `use`, from behind the opening one; answers where it ends.
fn group(tokens: &[Token], mut at: usize, prefix: &[String], paths: &mut Vec<Path>) -> usize {
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "}" => return at + 1,
            // The name that an import is given here is none of the path.
            "as" => at += 2,
            "{" => at = group(tokens, at + 1, prefix, paths),
            _ if token.is_word() || token.text == "*" => at = path(tokens, at, prefix, paths),
            _ => at += 1,
        }
    }
    at
}

/// For each token, whether it is in a `#[cfg(test)]` module.
#[must_use]
pub fn in_test_modules(tokens: &[Token]) -> Vec<bool> {
    let mut inside = vec![false; tokens.len()];
    let opening = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].iter().map(|t| t.text.as_str()).take(opening.len()).eq(opening) {
            at += 1;
            continue;
        }
        let is_module = tokens[at..].iter().skip(opening.len()).take(3).any(|t| t.text == "mod");
        let open = tokens[at..].iter().position(|t| t.text == "{" || t.text == ";").map(|n| at + n);
        match open.filter(|open| is_module && tokens[*open].text == "{") {
            Some(open) => {
                let mut depth = 0;
                while at < tokens.len() {
                    inside[at] = true;
                    match tokens[at].text.as_str() {
                        "{" => depth += 1,
                        "}" => depth -= 1,
                        _ => {}
                    }
                    at += 1;
                    if depth == 0 && at > open {
                        break;
                    }
                }
            }
            None => at += opening.len(),
        }
    }
    inside
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> String {
        tokens(text).into_iter().map(|token| token.text).collect::<Vec<_>>().join(" ")
    }

    fn named(text: &str) -> Vec<String> {
        paths(&tokens(text)).into_iter().map(|path| path.parts.join("::")).collect()
    }

    #[test]
    fn comments_and_strings_are_no_code() {
        assert_eq!(words("a // b\nc /* d /* e */ f */ g"), "a c g");
        assert_eq!(words(r##"a "b \" c" d r"e" f r#"g " h"# i b"j" k br#"l"# m"##), "a d f i k m");
        assert_eq!(words(r"a 'b' c '\'' d '\u{61}' e b'f' g"), "a c d e g");
        assert_eq!(words("fn f<'a>(x: &'a str) {}"), "fn f < > ( x : & str ) { }");
        assert_eq!(words("r#type"), "type");
        assert_eq!(words("\"never closed"), "");
        assert_eq!(words("/* never closed"), "");
    }

    #[test]
    fn lines_are_counted_through_comments_and_strings() {
        let lines: Vec<usize> = tokens("a\n/*\n*/ b \"\n\" c\nd").into_iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 3, 4, 5]);
    }

    #[test]
    fn groups_are_taken_apart() {
        assert_eq!(
            named("use std::{fs, io::{self, Read as R}, net::*};")[1..],
            ["std::fs", "std::io::self", "std::io::Read", "std::net::*"]
        );
        assert_eq!(named("::std::fs::read(x)"), ["std::fs::read", "x"]);
        assert_eq!(named("std :: fs\n:: read"), ["std::fs::read"]);
    }

    #[test]
    fn test_modules_are_seen_to_their_ends() {
        let code = tokens("a #[cfg(test)] mod t { b { c } } d #[cfg(test)] use e; f {} #[cfg(test)] mod u; g {}");
        let inside = in_test_modules(&code);
        let seen: Vec<&str> =
            code.iter().zip(&inside).filter(|(t, i)| **i && t.is_word()).map(|(t, _)| t.text.as_str()).collect();
        assert_eq!(seen, ["cfg", "test", "mod", "t", "b", "c"]);
    }
}
