//! What protocol cores may not touch: the network, files, threads, clocks and chance. They are told all of it.

use crate::Finding;
use crate::tokens::{Path, paths, tokens};
use crate::tree::SourceFile;

/// The sources of the cores: what is below the first, but not below any of the others.
const CORES: &[(&str, &[&str])] = &[
    ("sequencer/src", &[]),
    ("replica/src", &[]),
    ("client/src/core", &[]),
    ("protocol/src", &["protocol/src/net"]),
    (
        "tree-config/src",
        &[
            "tree-config/src/embedded",
            "tree-config/src/etcd",
            "tree-config/src/served",
            "tree-config/src/topology/load",
        ],
    ),
];

/// Paths that begin with these are not for cores.
const FORBIDDEN_PATHS: &[(&[&str], &str)] = &[
    (&["tokio"], "a core has no runtime"),
    (&["rand"], "chance comes in as an input"),
    (&["std", "net"], "a core has no sockets"),
    (&["std", "fs"], "a core has no files"),
    (&["std", "thread"], "a core has no threads"),
    (&["std", "process"], "a core has no processes"),
    (&["std", "env"], "a core is configured by its caller"),
    (&["std", "os"], "a core knows no system"),
    (&["std", "*"], "name what is used"),
    (&["std", "collections", "HashMap"], "its order is chance: take FxHashMap or BTreeMap"),
    (&["std", "collections", "HashSet"], "its order is chance: take FxHashSet or BTreeSet"),
    (&["std", "collections", "*"], "name what is used"),
];
/// Names that are not for cores, wherever they stand in a path.
const FORBIDDEN_NAMES: &[(&str, &str)] = &[
    ("Instant", "time comes in as an input"),
    ("SystemTime", "time comes in as an input"),
    ("RandomState", "its order is chance"),
    ("new_v4", "chance comes in as an input"),
];
/// Macros that are not for cores.
const FORBIDDEN_MACROS: &[&str] = &["println", "eprintln", "print", "eprint", "dbg"];

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/') || rest == ".rs")
}

/// Checks the sources of the cores, tests in them included.
#[must_use]
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (core, except) in CORES {
        let mut seen = false;
        for file in files.iter().filter(|file| file.path.ends_with(".rs") && is_below(&file.path, core)) {
            if !except.iter().any(|folder| is_below(&file.path, folder)) {
                seen = true;
                check_file(file, &mut findings);
            }
        }
        if !seen {
            findings.push(Finding::new(core, 0, "this core is not there: say in the checks where it went"));
        }
    }
    // `fs::{self, File}` names one thing twice.
    findings.sort();
    findings.dedup();
    findings
}

fn check_file(file: &SourceFile, findings: &mut Vec<Finding>) {
    let tokens = tokens(&file.text);
    for path in paths(&tokens) {
        if let Some((name, why)) = forbidden(&path) {
            findings.push(Finding::new(&file.path, path.line, format!("a protocol core must not use {name}: {why}")));
        }
    }
    for pair in tokens.windows(2) {
        if pair[1].text == "!" && FORBIDDEN_MACROS.contains(&pair[0].text.as_str()) {
            let what = format!("a protocol core must not use {}!: what it has to say is an output", pair[0].text);
            findings.push(Finding::new(&file.path, pair[0].line, what));
        }
    }
}

fn forbidden(path: &Path) -> Option<(String, &'static str)> {
    let by_start = FORBIDDEN_PATHS.iter().find(|(parts, _)| path.starts_with(parts));
    let by_name = || FORBIDDEN_NAMES.iter().find(|(name, _)| path.parts.iter().any(|part| part == name));
    by_start.map(|(parts, why)| (parts.join("::"), *why)).or_else(|| by_name().map(|(n, why)| ((*n).to_owned(), *why)))
}
