//! The rules between the parts of a topology: nothing twice, one root, no circles, a shard below every sequencer.

use std::collections::{BTreeMap, BTreeSet};

use super::parse::ParsedShard;
use super::reader::{Notes, Section, nearest};
use super::{MetadataPlace, Sequencer};
use crate::record::MAX_VIEW_MEMBERS;

pub(super) fn check(
    sequencers: &[(Section<'_>, Sequencer)],
    shards: &[ParsedShard<'_>],
    metadata: &MetadataPlace,
    notes: &mut Notes,
) {
    twice(sequencers, shards, notes);
    if *metadata == MetadataPlace::Embedded {
        keepers(sequencers, notes);
    }
    let by_name: BTreeMap<&str, usize> =
        sequencers.iter().enumerate().rev().map(|(i, (_, sequencer))| (sequencer.name.as_str(), i)).collect();
    let names = Names { sequencers, by_name };
    if sequencers.is_empty() {
        notes
            .add(1, "there is no sequencer: write [[sequencer]] with name = \"root\" and address = \"127.0.0.1:7400\"");
        for ParsedShard { section, shard, .. } in shards {
            views(section, shard.replicas.len(), shard.min_view, notes);
        }
        return;
    }
    let parents = parents(&names, notes);
    let has_circle = circles(sequencers, &parents, notes);
    roots(sequencers, has_circle, notes);

    let mut leaves = Vec::new();
    for ParsedShard { section, shard, .. } in shards {
        leaves.extend(names.look_up(section, "leaf", &shard.leaf, notes));
        views(section, shard.replicas.len(), shard.min_view, notes);
    }
    if shards.is_empty() {
        let line = sequencers.last().map_or(1, |(section, _)| section.line);
        notes.add(line, "there is no shard: write [[shard]] with id = 1, leaf = \"NAME\" and a [[shard.replica]]");
    } else {
        barren(&names, &parents, &leaves, notes);
    }
}

/// The sequencers by their names.
struct Names<'d> {
    sequencers: &'d [(Section<'d>, Sequencer)],
    by_name: BTreeMap<&'d str, usize>,
}

impl Names<'_> {
    /// The sequencer that a key names, or is likely to mean: then what else is wrong is not due to that slip. `None`
    /// where there is nothing to go by.
    fn look_up(&self, section: &Section<'_>, key: &str, name: &str, notes: &mut Notes) -> Option<usize> {
        if name.is_empty() && (!section.has(key) || notes.problems.iter().any(|p| p.line == section.line_of(key))) {
            return None;
        }
        if let Some(found) = self.by_name.get(name) {
            return Some(*found);
        }
        let known = || self.sequencers.iter().map(|(_, sequencer)| sequencer.name.as_str()).filter(|n| !n.is_empty());
        let guess = nearest(name, known());
        let advice = match guess {
            Some(guess) => format!("did you mean {guess}?"),
            None if known().count() <= 8 => {
                format!("write one of {}, or add a [[sequencer]] of this name", known().collect::<Vec<_>>().join(", "))
            }
            None => "write the name of one, or add a [[sequencer]] of this name".to_owned(),
        };
        notes.add(section.line_of(key), format!("{key} = '{name}': there is no such sequencer: {advice}"));
        self.by_name.get(guess?).copied()
    }
}

/// Notes what may be there once and was there before.
fn once<K: Ord>(seen: &mut BTreeMap<K, (String, usize)>, key: K, what: String, line: usize, notes: &mut Notes) {
    match seen.get(&key) {
        Some((other, first)) => {
            let message = format!("{what} is that of {other} in line {first} too: write another one");
            notes.add(line, message);
        }
        None => {
            let owner = what.split_once(" of ").map_or(what.clone(), |(_, owner)| owner.to_owned());
            seen.insert(key, (owner, line));
        }
    }
}

fn twice(sequencers: &[(Section<'_>, Sequencer)], shards: &[ParsedShard<'_>], notes: &mut Notes) {
    let mut names = BTreeMap::new();
    let mut addresses = BTreeMap::new();
    // Hosts are the same in either case.
    let mut address = |section: &Section<'_>, key: &str, text: &str, of: String, notes: &mut Notes| {
        if !text.is_empty() {
            let what = format!("address '{text}' of {of}");
            once(&mut addresses, text.to_lowercase(), what, section.line_of(key), notes);
        }
    };
    for (section, sequencer) in sequencers {
        let name = &sequencer.name;
        if !name.is_empty() {
            let what = format!("the name '{name}' of a sequencer");
            once(&mut names, name.as_str(), what, section.line_of("name"), notes);
        }
        address(section, "address", &sequencer.address, format!("sequencer '{name}'"), notes);
        for (number, standby) in (1..).zip(&sequencer.standbys) {
            address(section, "standbys", standby, format!("standby {number} of '{name}'"), notes);
        }
    }
    let (mut shard_ids, mut replica_ids) = (BTreeMap::new(), BTreeMap::new());
    for ParsedShard { section, shard, replicas } in shards {
        if shard.id.0 != 0 {
            once(&mut shard_ids, shard.id, format!("the id {} of a shard", shard.id), section.line_of("id"), notes);
        }
        for (section, replica) in replicas.iter().zip(&shard.replicas) {
            let id = replica.id;
            if id.0 != 0 {
                let what = format!("the id {id} of a replica");
                once(&mut replica_ids, id, what, section.line_of("id"), notes);
            }
            address(section, "address", &replica.address, format!("replica {id}"), notes);
        }
    }
}

/// Notes standbys of the root, whose process keeps the metadata: they could not claim anything without it.
fn keepers(sequencers: &[(Section<'_>, Sequencer)], notes: &mut Notes) {
    let roots = sequencers.iter().filter(|(_, sequencer)| sequencer.parent.is_none());
    for (section, root) in roots.filter(|(_, root)| !root.standbys.is_empty()) {
        let message = format!(
            "'{}' is the root, whose process keeps the metadata, so a standby of it could not take over: write backend = \
             \"etcd\" in [metadata], or leave standbys out",
            root.name
        );
        notes.add(section.line_of("standbys"), message);
    }
}

/// The parent of each sequencer, where it has one that is known.
fn parents(names: &Names<'_>, notes: &mut Notes) -> Vec<Option<usize>> {
    let parent = |(section, sequencer): &(Section<'_>, Sequencer)| {
        let parent = sequencer.parent.as_deref()?;
        names.look_up(section, "parent", parent, notes)
    };
    names.sequencers.iter().map(parent).collect()
}

/// Notes each circle once; says whether there is one.
fn circles(sequencers: &[(Section<'_>, Sequencer)], parents: &[Option<usize>], notes: &mut Notes) -> bool {
    let mut done = vec![false; sequencers.len()];
    let mut found = false;
    for start in 0..sequencers.len() {
        let mut path = Vec::new();
        let mut at = Some(start);
        while let Some(i) = at.filter(|i| !done[*i]) {
            done[i] = true;
            path.push(i);
            at = parents[i];
        }
        // The way up ended where it had been before: what lies between is a circle.
        let Some(from) = at.and_then(|i| path.iter().position(|seen| *seen == i)) else { continue };
        found = true;
        let circle = &path[from..];
        let Some(first) = circle.iter().min() else { continue };
        let mut names: Vec<&str> = circle.iter().map(|i| sequencers[*i].1.name.as_str()).collect();
        names.extend(names.first().copied());
        let line = sequencers[*first].0.line_of("parent");
        let names = names.join("' is below '");
        notes.add(line, format!("'{names}', a circle: give one of them a parent that leads up to the root"));
    }
    found
}

fn roots(sequencers: &[(Section<'_>, Sequencer)], has_circle: bool, notes: &mut Notes) {
    let mut roots = sequencers.iter().filter(|(_, sequencer)| sequencer.parent.is_none());
    match roots.next() {
        // A circle says as much, and where.
        None if has_circle => {}
        None => {
            let line = sequencers.first().map_or(1, |(section, _)| section.line_of("parent"));
            notes.add(line, "no sequencer is the root: leave parent out in one");
        }
        Some((first, root)) => {
            for (section, other) in roots {
                notes.add(
                    section.line,
                    format!(
                        "sequencer '{}' has no parent, and the root is '{}' in line {}: write parent = \"{}\"",
                        other.name, root.name, first.line, root.name
                    ),
                );
            }
        }
    }
}

fn views(section: &Section<'_>, replicas: usize, min_view: u32, notes: &mut Notes) {
    if replicas == 0 {
        // One that is written wrongly was noted.
        if !section.has("replica") || section.line_of("replica") == section.line {
            let message = "the shard has no replica: write [[shard.replica]] below it, with id = 1 and address = \"127.0.0.1:7411\"";
            notes.add(section.line, message);
        }
        return;
    }
    if replicas > MAX_VIEW_MEMBERS {
        let message =
            format!("the shard has {replicas} replicas, and may have {MAX_VIEW_MEMBERS}: move some to another shard");
        notes.add(section.line, message);
    }
    if min_view as usize > replicas {
        let message = format!(
            "min_view is {min_view}, and the shard has {replicas} replicas: write min_view = {}",
            replicas.min(2)
        );
        notes.add(section.line_of("min_view"), message);
    }
}

/// Notes sequencers below which there is no shard, the highest of each branch.
fn barren(names: &Names<'_>, parents: &[Option<usize>], leaves: &[usize], notes: &mut Notes) {
    let mut bears = BTreeSet::new();
    for leaf in leaves {
        let mut at = Some(*leaf);
        while let Some(i) = at.filter(|i| bears.insert(*i)) {
            at = parents[i];
        }
    }
    for (i, (section, sequencer)) in names.sequencers.iter().enumerate() {
        // One whose name another has is not the one that shards name; that was noted.
        let is_meant = names.by_name.get(sequencer.name.as_str()) == Some(&i);
        let is_highest = parents[i].is_none_or(|parent| bears.contains(&parent));
        if !bears.contains(&i) && is_highest && is_meant && !sequencer.name.is_empty() {
            let name = &sequencer.name;
            notes.add(
                section.line,
                format!(
                    "no shard is below sequencer '{name}', so it could do nothing: add a [[shard]] with leaf = \"{name}\", or \
                     leave the sequencer out"
                ),
            );
        }
    }
}
