//! What no file may hold, wherever it is.

use crate::Finding;
use crate::tokens::{Token, in_test_modules, tokens};
use crate::tree::SourceFile;

/// Longer files are about more than one thing.
pub const MAX_LINES: usize = 900;

/// Exceptions that a tree allows, each a file.
#[derive(Clone, Copy, Debug)]
pub struct Allowed<'a> {
    /// Files that may have `unsafe` code. Each must be there and have some.
    pub unsafe_code: &'a [&'a str],
    /// Files whose tests may sleep, and why that is no synchronisation.
    pub sleeping_tests: &'a [(&'a str, &'a str)],
}

/// Checks all files.
#[must_use]
pub fn check(files: &[SourceFile], allowed: Allowed<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut with_unsafe = Vec::new();
    for file in files {
        check_paths(file, &mut findings);
        if file.path.ends_with(".rs") {
            check_length(file, &mut findings);
            let code = tokens(&file.text);
            check_unfinished(file, &code, &mut findings);
            check_sleep(file, &code, allowed, &mut findings);
            if check_unsafe(file, &code, allowed, &mut findings) {
                with_unsafe.push(file.path.as_str());
            }
        }
    }
    for stale in allowed.unsafe_code.iter().filter(|path| !with_unsafe.contains(path)) {
        findings.push(Finding::new(stale, 0, "it is listed for its unsafe code and has none: take it off the list"));
    }
    findings
}

fn check_length(file: &SourceFile, findings: &mut Vec<Finding>) {
    let lines = file.text.lines().count();
    if lines > MAX_LINES {
        findings.push(Finding::new(
            &file.path,
            lines,
            format!("it has {lines} lines, and may have {MAX_LINES}: split it"),
        ));
    }
}

/// Whether it has any.
fn check_unsafe(file: &SourceFile, code: &[Token], allowed: Allowed<'_>, findings: &mut Vec<Finding>) -> bool {
    let first = code.iter().find(|token| token.text == "unsafe");
    if let Some(token) = first.filter(|_| !allowed.unsafe_code.contains(&file.path.as_str())) {
        findings.push(Finding::new(
            &file.path,
            token.line,
            "unsafe code is in a few listed files only: list it, or do without",
        ));
    }
    first.is_some()
}

fn check_unfinished(file: &SourceFile, code: &[Token], findings: &mut Vec<Finding>) {
    let is = |at: usize, words: &[&str]| {
        code[at..].iter().map(|token| token.text.as_str()).take(words.len()).eq(words.iter().copied())
    };
    for (at, token) in code.iter().enumerate() {
        let what = if is(at, &["todo", "!"]) || is(at, &["unimplemented", "!"]) {
            "unfinished code is not kept: finish it, or refuse with an error"
        } else if is(at, &["#", "[", "ignore"]) {
            "a test that is not run is not kept: mend it, or delete it"
        } else {
            continue;
        };
        findings.push(Finding::new(&file.path, token.line, what));
    }
}

/// Whether all of the file is test code.
fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "test.rs")) || path.ends_with("_tests.rs")
}

fn check_sleep(file: &SourceFile, code: &[Token], allowed: Allowed<'_>, findings: &mut Vec<Finding>) {
    if allowed.sleeping_tests.iter().any(|(path, _)| *path == file.path) {
        return;
    }
    let inside = in_test_modules(code);
    for (at, token) in code.iter().enumerate() {
        let sleeps = matches!(token.text.as_str(), "sleep" | "sleep_ms" | "sleep_until");
        if sleeps && (inside[at] || is_test_file(&file.path)) {
            let what = "a test must not sleep to wait for something: wait for the thing itself";
            findings.push(Finding::new(&file.path, token.line, what));
        }
    }
}

/// Where people's machines differ: the folders that homes are in.
const HOMES: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/"), concat!(":\\Us", "ers\\")];

fn check_paths(file: &SourceFile, findings: &mut Vec<Finding>) {
    for (line, text) in (1..).zip(file.text.lines()) {
        for home in HOMES {
            let stands_alone = |at: usize| {
                let before = text[..at].chars().next_back();
                home.starts_with(':')
                    || !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}'))
            };
            if text.match_indices(home).any(|(at, _)| stands_alone(at)) {
                let what = format!("it names a folder below {home} of one machine: make it relative");
                findings.push(Finding::new(&file.path, line, what));
            }
        }
    }
}
