//! Which crate may depend on which.
//!
//! ```text
//! protocol     <- all others
//! tree-config  <- sequencer, replica, client
//! all of these <- node, sim, bench
//! ```
//!
//! `model` shares nothing with what it is a model of.
//!
//! `sequencer`, `replica`, `client` and `storage-pm` never import one another. A runtime (tokio) belongs to those who own
//! sockets or threads; protocol and tree-config have it behind features. Only `bench` knows baselines. Development
//! dependencies keep the same rules, with one exception: protocol's and tree-config's own tests may run on a runtime.

use std::path::Path;
use std::{fs, io};

use toml::{Table, Value};

use crate::Finding;

struct Rule {
    /// The folder of the crate.
    member: &'static str,
    /// The crate's own name.
    package: &'static str,
    /// Crates of the workspace that it may depend on.
    may_use: &'static [&'static str],
    /// Whether it may have a runtime.
    runtime: Runtime,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Runtime {
    Never,
    /// Only behind these features, and in its tests.
    Features(&'static [&'static str]),
    Yes,
}

const PROTOCOL: &str = "flexlog-protocol";
const TREE_CONFIG: &str = "flexlog-tree-config";
const ALL: &[&str] = &[
    PROTOCOL,
    TREE_CONFIG,
    "flexlog-storage-pm",
    "flexlog-sequencer",
    "flexlog-replica",
    "flexlog-client",
    "flexlog-node",
    "flexlog-history",
    "flexlog-sim",
];

#[rustfmt::skip]
const RULES: &[Rule] = &[
    Rule { member: "protocol", package: PROTOCOL, may_use: &[], runtime: Runtime::Features(&["net", "quic"]) },
    Rule { member: "tree-config", package: TREE_CONFIG, may_use: &[PROTOCOL], runtime: Runtime::Features(&["embedded", "served", "etcd"]) },
    Rule { member: "storage-pm", package: "flexlog-storage-pm", may_use: &[PROTOCOL], runtime: Runtime::Never },
    Rule { member: "sequencer", package: "flexlog-sequencer", may_use: &[PROTOCOL, TREE_CONFIG], runtime: Runtime::Never },
    Rule { member: "replica", package: "flexlog-replica", may_use: &[PROTOCOL, TREE_CONFIG], runtime: Runtime::Never },
    Rule { member: "client", package: "flexlog-client", may_use: &[PROTOCOL, TREE_CONFIG], runtime: Runtime::Yes },
    Rule { member: "node", package: "flexlog-node", may_use: ALL, runtime: Runtime::Yes },
    Rule { member: "sim", package: "flexlog-sim", may_use: ALL, runtime: Runtime::Never },
    Rule { member: "history", package: "flexlog-history", may_use: &[], runtime: Runtime::Never },
    Rule { member: "model", package: "flexlog-model", may_use: &[], runtime: Runtime::Never },
    Rule { member: "bench", package: "bench", may_use: ALL, runtime: Runtime::Yes },
    Rule { member: "ci", package: "flexlog-ci", may_use: &[], runtime: Runtime::Never },
];

/// Crates whose protocol code takes the passage of time, chance and the network as input only: the features of protocol
/// that bring the network in are not theirs to turn on; tree-config's feature `served`, a backend beside its pure part,
/// passes the wish on.
const WITHOUT_NET: &[&str] = &["protocol", "tree-config", "storage-pm", "sequencer", "replica", "sim"];
/// Of those, the ones that have no business with chance either.
const WITHOUT_CHANCE: &[&str] = &["sequencer", "replica"];
/// The features of protocol that bring the network in.
const NETWORK: &[&str] = &["net", "quic"];
/// What runs futures or owns sockets; and everything whose name begins so.
const RUNTIMES: &[&str] =
    &["tokio", "async-std", "async-io", "smol", "mio", "quinn", "socket2", "hyper", "tonic", "etcd-client"];
/// Where chance comes from.
const CHANCE: &[&str] = &["rand", "rand_core", "fastrand", "getrandom", "oorandom"];
/// What others keep records with: for comparison alone.
const BASELINES: &[&str] = &[
    "rocksdb",
    "librocksdb-sys",
    "rust-rocksdb",
    "sled",
    "redb",
    "fjall",
    "heed",
    "lmdb",
    "rusqlite",
    "raft",
    "openraft",
    "raft-engine",
    "rdkafka",
    "async-nats",
    "redis",
    "s2-sdk",
];

/// A dependency as a manifest states it.
struct Dependency {
    /// The crate, whatever it is called where it is used.
    package: String,
    /// What it is called there.
    name: String,
    section: String,
    optional: bool,
    features: Vec<String>,
}

fn is_one_of(package: &str, list: &[&str]) -> bool {
    list.iter().any(|item| package == *item || package.starts_with(&format!("{item}-")))
}

fn table(path: &Path) -> io::Result<Table> {
    let text = fs::read_to_string(path).map_err(|e| io::Error::other(format!("{}: {e}", path.display())))?;
    text.parse().map_err(|e| io::Error::other(format!("{}: {e}", path.display())))
}

/// Checks the manifests of the workspace at `root`.
///
/// # Errors
/// A manifest that cannot be read.
pub fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let workspace = table(&root.join("Cargo.toml"))?;
    let workspace = workspace.get("workspace").and_then(Value::as_table).cloned().unwrap_or_default();
    let shared = workspace.get("dependencies").and_then(Value::as_table).cloned().unwrap_or_default();
    let members: Vec<&str> =
        workspace.get("members").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    if members.is_empty() {
        findings.push(Finding::new("Cargo.toml", 0, "the workspace has no members: there is nothing to check"));
    }
    for member in &members {
        let file = format!("{member}/Cargo.toml");
        let manifest = table(&root.join(&file))?;
        match RULES.iter().find(|rule| rule.member == *member) {
            Some(rule) => check_member(rule, &file, &manifest, &shared, &mut findings),
            None => findings.push(Finding::new(&file, 0, format!("no rule says what '{member}' may use: add one"))),
        }
    }
    Ok(findings)
}

fn check_member(rule: &Rule, file: &str, manifest: &Table, shared: &Table, findings: &mut Vec<Finding>) {
    let mut wrong = |what: String| findings.push(Finding::new(file, 0, what));
    let package = manifest.get("package").and_then(|package| package.get("name")).and_then(Value::as_str);
    if package != Some(rule.package) {
        wrong(format!("the package is {package:?}, and the rules know it as '{}'", rule.package));
    }
    for dependency in dependencies(manifest, shared) {
        let Dependency { package, name, section, optional, features } = &dependency;
        let of_tests = section.ends_with("dev-dependencies");
        let internal = RULES.iter().any(|other| other.package == package);
        if internal && !rule.may_use.contains(&package.as_str()) {
            wrong(format!("[{section}] '{}' must not use '{package}'", rule.package));
        }
        let network = features.iter().find(|feature| NETWORK.contains(&feature.as_str()));
        if let Some(feature) = network.filter(|_| package == PROTOCOL && WITHOUT_NET.contains(&rule.member)) {
            wrong(format!("[{section}] '{}' must not turn on the feature '{feature}' of '{PROTOCOL}'", rule.package));
        }
        if is_one_of(package, BASELINES) && rule.member != "bench" {
            wrong(format!("[{section}] '{package}' is a baseline: only 'bench' may use it"));
        }
        if is_one_of(package, CHANCE) && WITHOUT_CHANCE.contains(&rule.member) {
            wrong(format!("[{section}] '{}' must not use '{package}': chance comes in as an input", rule.package));
        }
        if is_one_of(package, RUNTIMES) {
            match rule.runtime {
                Runtime::Yes => {}
                Runtime::Features(_) if of_tests => {}
                Runtime::Features(allowed) => {
                    let those = allowed.join("' or '");
                    if !*optional {
                        wrong(format!("[{section}] '{package}' must be optional, behind the feature '{those}'"));
                    }
                    for other in features_with(manifest, name).filter(|other| !allowed.contains(&other.as_str())) {
                        wrong(format!("the feature '{other}' turns on '{package}': only '{those}' may"));
                    }
                }
                Runtime::Never => wrong(format!("[{section}] '{}' must not use '{package}'", rule.package)),
            }
        }
    }
    // The pure half must be there for those who ask for it: no other feature of protocol may pull the network in.
    if rule.package == PROTOCOL {
        for feature in NETWORK {
            for other in features_with_feature(manifest, feature) {
                wrong(format!("the feature '{other}' turns on '{feature}': crates ask for that by name"));
            }
        }
    }
}

/// All dependencies of a manifest, of every section and platform.
fn dependencies(manifest: &Table, shared: &Table) -> Vec<Dependency> {
    const SECTIONS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let platforms = manifest.get("target").and_then(Value::as_table).into_iter().flatten();
    let platforms = platforms.filter_map(|(name, of)| Some((format!("target.{name}."), of.as_table()?)));
    let tables = std::iter::once((String::new(), manifest)).chain(platforms).flat_map(|(prefix, table)| {
        SECTIONS.into_iter().filter_map(move |section| {
            Some((format!("{prefix}{section}"), table.get(section).and_then(Value::as_table)?))
        })
    });

    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let list = |value: &Value| -> Vec<String> {
        let features = value.get("features").and_then(Value::as_array).into_iter().flatten();
        features.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut all = Vec::new();
    for (section, table) in tables {
        for (name, value) in table {
            let inherited = value.get("workspace").and_then(Value::as_bool) == Some(true);
            let base = shared.get(name).filter(|_| inherited);
            let package = text(value, "package").or_else(|| base.and_then(|base| text(base, "package")));
            let mut features = list(value);
            features.extend(base.map(list).unwrap_or_default());
            all.push(Dependency {
                package: package.unwrap_or_else(|| name.clone()),
                name: name.clone(),
                section: section.clone(),
                optional: value.get("optional").and_then(Value::as_bool) == Some(true),
                features,
            });
        }
    }
    all
}

/// The features that turn the optional dependency `name` on, by themselves.
fn features_with(manifest: &Table, name: &str) -> impl Iterator<Item = String> {
    let (by_dep, by_feature) = (format!("dep:{name}"), format!("{name}/"));
    features(manifest, move |item| item == by_dep || item.starts_with(&by_feature))
}

/// The features that turn the feature `name` on.
fn features_with_feature(manifest: &Table, name: &'static str) -> impl Iterator<Item = String> {
    features(manifest, move |item| item == name)
}

fn features(manifest: &Table, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = String> {
    let all = manifest.get("features").and_then(Value::as_table).cloned().unwrap_or_default();
    let has = move |items: &Value| items.as_array().into_iter().flatten().filter_map(Value::as_str).any(&wanted);
    all.into_iter().filter(move |(_, items)| has(items)).map(|(feature, _)| feature)
}
