//! From the text of a topology file to its parts, each judged alone; [`super::check`] judges them together.
//!
//! A part that cannot be read is noted and left empty (a name), 0 (an id) or out, so that all other rules can be checked
//! all the same. Nobody is given a topology with such a part.

use std::path::{Path, PathBuf};

use flexlog_protocol::{ReplicaId, ShardId};
use toml::de::DeTable;

use super::check::check;
use super::reader::{Notes, Section, nearest};
use super::{
    DEFAULT_DATA, DEFAULT_DETECT_MS, DEFAULT_REPLICA_TIMEOUT_MS, DETECT_MS, Device, MAX_LINGER_MICROS, MAX_STANDBYS,
    MetadataPlace, Problems, REPLICA_TIMEOUT_MS, Replica, Sequencer, Shard, Storage, Topology, Transport,
};
use crate::record::{MAX_ADDRESS_BYTES, MAX_POSITION_NAME_BYTES, is_word};

const FILE_KEYS: &[&str] =
    &["cluster", "transport", "data", "certificates", "metadata", "failover", "storage", "sequencer", "shard"];
const METADATA_KEYS: &[&str] = &["backend", "endpoints", "prefix"];
pub(super) const STORAGE_KEYS: &[&str] =
    &["area_limit", "segment", "device", "high_mark", "cache", "ssd", "scrub_mib_s"];
const FAILOVER_KEYS: &[&str] = &["detect_ms", "replica_timeout_ms"];
const SEQUENCER_KEYS: &[&str] = &["name", "parent", "address", "linger_micros", "standbys"];
const SHARD_KEYS: &[&str] = &["id", "leaf", "min_view", "replica"];
const REPLICA_KEYS: &[&str] = &["id", "address"];

/// The smallest and the largest segment of an area, in bytes: what processes take.
const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = 8 << 20..=1 << 30;
const ADDRESS_EXAMPLE: &str = "\"127.0.0.1:7400\"";
/// The next replica of the cluster must have a number too.
const LAST_REPLICA: u64 = u32::MAX as u64 - 1;

/// A shard, and where its parts are in the file.
pub(super) struct ParsedShard<'d> {
    pub(super) section: Section<'d>,
    pub(super) shard: Shard,
    /// Of its replicas, in their order.
    pub(super) replicas: Vec<Section<'d>>,
}

pub(super) fn parse(file: &Path, text: &str) -> Result<Topology, Problems> {
    let mut notes = Notes::new(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let line = error.span().map_or(1, |span| notes.line_of(&span));
        notes.add(line, format!("this is no TOML: {}", error.message()));
    }
    // What else is said of a file that is torn would be about what is not in it.
    if !errors.is_empty() {
        return Err(problems(file, notes));
    }
    let all = Section::open("the file", 1, document.get_ref(), FILE_KEYS, &mut notes);
    let folder = file.parent().unwrap_or(Path::new(""));

    let cluster = all.text("cluster", "\"demo\"", &mut notes).map(str::to_owned);
    if let Some(name) = cluster.as_deref().filter(|name| !is_word(name)) {
        notes.add(all.line_of("cluster"), no_word("cluster", name));
    }
    let data = path(&all, "data", DEFAULT_DATA, &mut notes).unwrap_or_else(|| DEFAULT_DATA.into());
    let metadata = metadata(&all, cluster.as_deref().unwrap_or("default"), &mut notes);
    let storage = storage(&all, &mut notes);
    let failover = all.table("failover", "[failover]", FAILOVER_KEYS, &mut notes);
    let mut wait =
        |key, bounds, example| failover.as_ref().and_then(|section| section.number(key, bounds, example, &mut notes));
    let detect_ms = wait("detect_ms", DETECT_MS, "300");
    let replica_timeout_ms = wait("replica_timeout_ms", REPLICA_TIMEOUT_MS, "1000");
    let transport = transport(&all, folder, &mut notes);

    let sequencers: Vec<(Section<'_>, Sequencer)> = all
        .tables("sequencer", "[[sequencer]]", SEQUENCER_KEYS, &mut notes)
        .into_iter()
        .map(|section| {
            let sequencer = sequencer(&section, &mut notes);
            (section, sequencer)
        })
        .collect();
    let shards: Vec<ParsedShard<'_>> = all
        .tables("shard", "[[shard]]", SHARD_KEYS, &mut notes)
        .into_iter()
        .map(|section| shard(section, &mut notes))
        .collect();
    check(&sequencers, &shards, &metadata, &mut notes);

    if !notes.problems.is_empty() {
        return Err(problems(file, notes));
    }
    Ok(Topology {
        file: file.to_owned(),
        cluster,
        transport,
        data: folder.join(data),
        metadata,
        storage,
        detect_ms: detect_ms.unwrap_or(DEFAULT_DETECT_MS),
        replica_timeout_ms: replica_timeout_ms.unwrap_or(DEFAULT_REPLICA_TIMEOUT_MS),
        sequencers: sequencers.into_iter().map(|(_, sequencer)| sequencer).collect(),
        shards: shards.into_iter().map(|parsed| parsed.shard).collect(),
    })
}

fn problems(file: &Path, notes: Notes) -> Problems {
    let mut problems = notes.problems;
    problems.sort();
    problems.dedup();
    Problems { file: file.to_owned(), problems }
}

fn no_word(key: &str, name: &str) -> String {
    format!(
        "{key} = '{name}' is no name: write 1 to {MAX_POSITION_NAME_BYTES} letters (a to z), digits, '-' and '_', such as \
         {key} = \"left-1\""
    )
}

/// One of a few words.
fn choice<T: Copy>(section: &Section<'_>, key: &str, words: &[(&str, T)], notes: &mut Notes) -> Option<T> {
    let all = words.iter().map(|(word, _)| format!("{key} = \"{word}\"")).collect::<Vec<_>>().join(" or ");
    let text = section.text(key, &format!("\"{}\"", words.first()?.0), notes)?;
    let found = words.iter().find(|(word, _)| *word == text).map(|(_, meant)| *meant);
    if found.is_none() {
        let guess = nearest(text, words.iter().map(|(word, _)| *word));
        let guess = guess.map(|guess| format!(" (did you mean {guess}?)")).unwrap_or_default();
        notes.add(section.line_of(key), format!("{key} = '{text}' is not known{guess}: write {all}"));
    }
    found
}

/// A folder, not the empty text.
fn path(section: &Section<'_>, key: &str, example: &str, notes: &mut Notes) -> Option<PathBuf> {
    let example = format!("\"{example}\"");
    let text = section.text(key, &example, notes)?;
    if text.is_empty() {
        notes.add(section.line_of(key), format!("{key} is empty: write the name of a folder, {key} = {example}"));
    }
    Some(text.into())
}

fn transport(all: &Section<'_>, folder: &Path, notes: &mut Notes) -> Transport {
    #[derive(Clone, Copy)]
    enum Word {
        Tcp,
        Quic,
    }
    let word = choice(all, "transport", &[("tcp", Word::Tcp), ("quic", Word::Quic)], notes);
    let section = all.table("certificates", "[certificates]", &["directory"], notes);
    if let Some(section) = &section {
        section.must_have("directory", "\"certs\"", notes);
    }
    let directory = section.and_then(|section| path(&section, "directory", "certs", notes));
    match word {
        None | Some(Word::Tcp) => Transport::Tcp,
        Some(Word::Quic) => {
            if !all.has("certificates") {
                notes.add(
                    all.line_of("transport"),
                    "transport = \"quic\" needs certificates: write [certificates] with directory = \"certs\", a folder with \
                     ca.pem, and NAME.pem and NAME.key of each process",
                );
            }
            Transport::Quic { certificates: folder.join(directory.unwrap_or_default()) }
        }
    }
}

fn metadata(all: &Section<'_>, cluster: &str, notes: &mut Notes) -> MetadataPlace {
    let Some(section) = all.table("metadata", "[metadata]", METADATA_KEYS, notes) else {
        return MetadataPlace::Embedded;
    };
    let is_etcd = choice(&section, "backend", &[("embedded", false), ("etcd", true)], notes);
    let endpoints = section.texts("endpoints", "[\"http://127.0.0.1:2379\"]", notes);
    let prefix = section.text("prefix", "\"flexlog/demo\"", notes).map(str::to_owned);
    match is_etcd {
        Some(true) => {}
        Some(false) | None => {
            // A backend that is not known was noted; its other keys may be right.
            for key in ["endpoints", "prefix"].into_iter().filter(|key| section.has(key)) {
                if is_etcd.is_some() || !section.has("backend") {
                    notes.add(
                        section.line_of(key),
                        format!("{key} is for etcd alone: write backend = \"etcd\", or leave {key} out"),
                    );
                }
            }
            return MetadataPlace::Embedded;
        }
    }
    let example = "endpoints = [\"http://127.0.0.1:2379\"]";
    if !section.has("endpoints") {
        notes.add(section.line_of("backend"), format!("backend = \"etcd\" needs its servers: write {example}"));
    } else if endpoints.is_empty() && !notes.problems.iter().any(|p| p.line == section.line_of("endpoints")) {
        notes.add(section.line_of("endpoints"), format!("endpoints names no server: write {example}"));
    }
    for endpoint in &endpoints {
        let server = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
        if let Err(why) = server.ok_or_else(|| "it does not begin with http:// or https://".into()).and_then(address) {
            let message = format!("endpoint '{endpoint}' is no address of etcd, {why}: write {example}");
            notes.add(section.line_of("endpoints"), message);
        }
    }
    let prefix = prefix.unwrap_or_else(|| format!("flexlog/{cluster}"));
    if !prefix.split('/').all(is_word) {
        notes.add(
            section.line_of("prefix"),
            format!(
                "prefix = '{prefix}' cannot begin a key: write words with / between them, prefix = \"flexlog/demo\""
            ),
        );
    }
    MetadataPlace::Etcd { endpoints, prefix }
}

fn storage(all: &Section<'_>, notes: &mut Notes) -> Storage {
    let Some(section) = all.table("storage", "[storage]", STORAGE_KEYS, notes) else {
        return Storage::default();
    };
    let devices = [("mmap", Device::Mmap), ("file", Device::File), ("pmem2", Device::Pmem2)];
    let segment = section.size("segment", "\"16MiB\"", notes);
    if segment.is_some_and(|bytes| !SEGMENT_BYTES.contains(&bytes) || !bytes.is_multiple_of(4096)) {
        let line = section.line_of("segment");
        notes.add(line, "segment must be a multiple of 4KiB from 8MiB to 1GiB: write segment = \"16MiB\"");
    }
    Storage {
        area_limit: section.size("area_limit", "\"1GiB\"", notes),
        segment,
        device: choice(&section, "device", &devices, notes),
        high_mark: section.number("high_mark", (1, 99), "75", notes).and_then(|percent| percent.try_into().ok()),
        cache: section.size("cache", "\"64MiB\"", notes),
        ssd: section.flag("ssd", notes),
        scrub_mib_s: section.number("scrub_mib_s", (0, 100_000), "8", notes).and_then(|rate| rate.try_into().ok()),
    }
}

fn sequencer(section: &Section<'_>, notes: &mut Notes) -> Sequencer {
    section.must_have("name", "\"root\"", notes);
    let name = section.text("name", "\"root\"", notes);
    if let Some(name) = name {
        if !is_word(name) {
            notes.add(section.line_of("name"), no_word("name", name));
        } else if name.strip_prefix("replica-").is_some_and(|id| id.bytes().all(|b| b.is_ascii_digit())) {
            let message = format!("name = '{name}' is what the folder of a replica is called: write another name");
            notes.add(section.line_of("name"), message);
        } else if name.rsplit_once("-standby-").is_some_and(|(_, number)| number.bytes().all(|b| b.is_ascii_digit())) {
            let message = format!("name = '{name}' is what the folder of a standby is called: write another name");
            notes.add(section.line_of("name"), message);
        }
    }
    // One that cannot be read is a parent all the same: its child is not the root.
    let parent = section.text("parent", "\"root\"", notes).or_else(|| section.has("parent").then_some(""));
    Sequencer {
        line: section.line,
        name: name.unwrap_or_default().to_owned(),
        parent: parent.map(str::to_owned),
        address: listen_address(section, notes),
        standbys: standbys(section, name.unwrap_or_default(), notes),
        linger_micros: section.number("linger_micros", (0, MAX_LINGER_MICROS), "50", notes).unwrap_or(0),
    }
}

/// Where the standbys of a sequencer listen.
fn standbys(section: &Section<'_>, name: &str, notes: &mut Notes) -> Vec<String> {
    let example = format!("[{ADDRESS_EXAMPLE}]");
    let standbys = section.texts("standbys", &example, notes);
    let line = section.line_of("standbys");
    for text in &standbys {
        if let Err(why) = address(text) {
            notes.add(line, format!("standbys: '{text}' is no address, {why}: write standbys = {example}"));
        }
    }
    if standbys.len() > MAX_STANDBYS {
        let message = format!("standbys names {}, and there may be {MAX_STANDBYS}: leave some out", standbys.len());
        notes.add(line, message);
    }
    let longest = MAX_POSITION_NAME_BYTES - Topology::standby_name("", MAX_STANDBYS).len();
    if !standbys.is_empty() && is_word(name) && name.len() > longest {
        let message =
            format!("name = '{name}' is too long for one with standbys: write at most {longest} letters and digits");
        notes.add(section.line_of("name"), message);
    }
    standbys
}

fn shard<'d>(section: Section<'d>, notes: &mut Notes) -> ParsedShard<'d> {
    section.must_have("id", "1", notes);
    section.must_have("leaf", "\"left\"", notes);
    let replicas = section.tables("replica", "[[shard.replica]]", REPLICA_KEYS, notes);
    let most = u64::from(u32::MAX);
    let members: Vec<Replica> = replicas
        .iter()
        .map(|of| {
            of.must_have("id", "1", notes);
            let id = of.number("id", (1, LAST_REPLICA), "1", notes);
            let address = listen_address(of, notes);
            Replica { line: of.line, id: ReplicaId(id_of(id)), address }
        })
        .collect();
    let shard = Shard {
        line: section.line,
        id: ShardId(id_of(section.number("id", (1, most), "1", notes))),
        leaf: section.text("leaf", "\"left\"", notes).unwrap_or_default().to_owned(),
        // More than its replicas is noted where they are counted.
        min_view: match section.number("min_view", (1, most), "2", notes) {
            None => members.len().min(2) as u32,
            given => id_of(given),
        },
        replicas: members,
    };
    ParsedShard { section, shard, replicas }
}

fn id_of(number: Option<u64>) -> u32 {
    number.and_then(|number| number.try_into().ok()).unwrap_or(0)
}

/// Where a process listens.
fn listen_address(section: &Section<'_>, notes: &mut Notes) -> String {
    section.must_have("address", ADDRESS_EXAMPLE, notes);
    let Some(text) = section.text("address", ADDRESS_EXAMPLE, notes) else { return String::new() };
    match address(text) {
        Ok(()) => text.to_owned(),
        Err(why) => {
            let line = section.line_of("address");
            notes.add(line, format!("address = '{text}' is no address, {why}: write address = {ADDRESS_EXAMPLE}"));
            String::new()
        }
    }
}

/// Whether a text is `host:port`, and else why not.
fn address(text: &str) -> Result<(), String> {
    if text.len() > MAX_ADDRESS_BYTES {
        return Err(format!("it has more than {MAX_ADDRESS_BYTES} bytes"));
    }
    let (host, port) = text.rsplit_once(':').ok_or("it has no port")?;
    let is_host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
        Some(inner) => {
            inner.is_some_and(|ip| ip.contains(':') && ip.bytes().all(|b| b.is_ascii_hexdigit() || b":.".contains(&b)))
        }
        None => !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)),
    };
    if !is_host {
        return Err(format!("'{host}' is no host (an IPv6 address is written in brackets)"));
    }
    let digits = !port.starts_with('0') && port.bytes().all(|b| b.is_ascii_digit());
    match port.parse::<u16>() {
        Ok(_) if digits => Ok(()),
        _ => Err(format!("the port '{port}' is none from 1 to 65535")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for good in ["127.0.0.1:7400", "node-1.example:1", "localhost:65535", "[::1]:7400", "[fe80::1]:80"] {
            assert_eq!(address(good), Ok(()), "{good}");
        }
        for (bad, says) in [
            ("", "no port"),
            ("host", "no port"),
            (":7400", "'' is no host"),
            ("a b:1", "'a b' is no host"),
            ("::1:7400", "brackets"),
            ("[::1:7400", "no host"),
            ("[a]:1", "no host"),
            ("http://a:1", "no host"),
            ("a:", "the port '' is none"),
            ("a:0", "port '0'"),
            ("a:080", "port '080'"),
            ("a:+1", "port '+1'"),
            ("a:65536", "port '65536'"),
        ] {
            let why = address(bad).unwrap_err();
            assert!(why.contains(says), "{bad}: {why}");
        }
        assert!(address(&format!("{}:1", "a".repeat(255))).is_err());
    }
}
