use std::path::Path;

use flexlog_protocol::Position;

use super::*;

const EXAMPLE: &str = include_str!("../../../examples/cluster.toml");

/// One root that leads one shard with one replica, in nine lines.
const SMALL: &str = r#"[[sequencer]]
name = "root"
address = "h:1"
[[shard]]
id = 1
leaf = "root"
[[shard.replica]]
id = 1
address = "h:2"
"#;

fn parse(text: &str) -> Result<Topology, Problems> {
    Topology::parse(Path::new("etc/c.toml"), text)
}

/// The lines and messages of what is wrong with `text`.
fn wrong(text: &str) -> Vec<(usize, String)> {
    let problems = match parse(text) {
        Err(Problems { file, problems }) => {
            assert_eq!(file, Path::new("etc/c.toml"));
            problems
        }
        Ok(topology) => panic!("taken: {topology:?}"),
    };
    assert!(problems.is_sorted() && !problems.is_empty());
    problems.into_iter().map(|problem| (problem.line, problem.message)).collect()
}

/// `text` has one thing wrong with it, in this line, and what is said of it has all these words.
#[track_caller]
fn one(text: &str, line: usize, words: &[&str]) {
    let found = wrong(text);
    assert!(found.len() == 1 && found[0].0 == line, "line {line} {words:?} in {found:#?}");
    for word in words {
        assert!(found[0].1.contains(word), "{word} in {found:#?}");
    }
}

/// The small file with one piece of it replaced.
fn with(piece: &str, by: &str) -> String {
    assert!(SMALL.contains(piece));
    SMALL.replacen(piece, by, 1)
}

#[test]
fn the_example_is_read() {
    let topology = parse(EXAMPLE).unwrap();
    assert_eq!(topology.cluster.as_deref(), Some("demo"));
    assert_eq!((&topology.transport, &topology.metadata), (&Transport::Tcp, &MetadataPlace::Embedded));
    let storage = Storage {
        area_limit: Some(1 << 30),
        segment: Some(16 << 20),
        device: None,
        high_mark: Some(75),
        cache: Some(64 << 20),
        ssd: Some(true),
        scrub_mib_s: Some(8),
    };
    assert_eq!(topology.storage, storage);
    assert_eq!(topology.root().name, "root");
    let children = |name| topology.children(name).map(|child| child.name.as_str()).collect::<Vec<_>>();
    assert_eq!((children("root"), children("left")), (vec!["left", "right"], vec!["left-1", "left-2"]));
    assert_eq!(children("left-1"), Vec::<&str>::new());
    assert_eq!(["root", "right", "right-2"].map(|name| topology.depth(name)), [0, 1, 2]);
    assert_eq!(topology.parent("right-2").unwrap().name, "right");
    assert_eq!((topology.parent("root"), topology.sequencer("middle")), (None, None));
    let (shard, replica) = topology.replica(ReplicaId(7)).unwrap();
    assert_eq!((shard.id, shard.leaf.as_str(), shard.min_view), (ShardId(3), "right-1", 2));
    assert_eq!(replica.address, "127.0.0.1:7417");
    assert_eq!(topology.replica(ReplicaId(13)), None);
    assert_eq!(topology.shards_of("left-2").map(|shard| shard.id).collect::<Vec<_>>(), [ShardId(2)]);
    assert_eq!(topology.standbys().collect::<Vec<_>>(), [("left-1-standby-1".to_owned(), "127.0.0.1:7453")]);
    assert_eq!(topology.detect_ms, 300);
    assert_eq!(topology.sequencer_folder("left"), Path::new("etc/flexlog-cluster/left"));
    assert_eq!(topology.replica_folder(ReplicaId(7)), Path::new("etc/flexlog-cluster/replica-7"));
}

#[test]
fn what_is_left_out_has_its_default() {
    let topology = parse(SMALL).unwrap();
    assert_eq!((&topology.cluster, &topology.transport), (&None, &Transport::Tcp));
    assert_eq!((&topology.metadata, &topology.storage), (&MetadataPlace::Embedded, &Storage::default()));
    assert_eq!(topology.data, Path::new("etc/flexlog-cluster"));
    assert_eq!((topology.root().linger_micros, topology.root().line), (0, 1));
    assert_eq!((topology.detect_ms, topology.standbys().count()), (DEFAULT_DETECT_MS, 0));
    let shard = &topology.shards()[0];
    assert_eq!((shard.min_view, shard.line, shard.replicas[0].line), (1, 4, 7));
    let etcd = format!("metadata = {{ backend = \"etcd\", endpoints = [\"http://h:2379\"] }}\n{SMALL}");
    let place = |prefix: &str| MetadataPlace::Etcd { endpoints: vec!["http://h:2379".into()], prefix: prefix.into() };
    assert_eq!(parse(&etcd).unwrap().metadata, place("flexlog/default"));
    assert_eq!(parse(&format!("cluster = \"demo\"\n{etcd}")).unwrap().metadata, place("flexlog/demo"));
    let quic = format!("transport = \"quic\"\ndata = \"/d\"\ncertificates.directory = \"c\"\n{SMALL}");
    let quic = parse(&quic).unwrap();
    assert_eq!(quic.transport, Transport::Quic { certificates: "etc/c".into() });
    assert_eq!(quic.data, Path::new("/d"), "an absolute folder stays");
}

#[test]
fn positions_are_numbered_in_order_with_the_root_first() {
    let text = "[[sequencer]]\nname = \"leaf\"\nparent = \"top\"\naddress = \"h:3\"\n".to_owned()
        + &with("\"root\"", "\"top\"").replace("leaf = \"root\"", "leaf = \"leaf\"");
    let layout = parse(&text).unwrap().layout();
    let position = |id: u32, parent: Option<u32>, name: &str, address: &str| PositionRecord {
        position: Position(id),
        parent: parent.map(Position),
        name: name.into(),
        address: address.into(),
        holder: None,
    };
    assert_eq!(layout.positions, [position(0, None, "top", "h:1"), position(1, Some(0), "leaf", "h:3")]);
    assert_eq!((layout.shards[0].leaf, layout.shards[0].min_view), (Position(1), 1));
    assert_eq!(layout.replicas[0].addresses, ["h:2"]);
    let layout = parse(EXAMPLE).unwrap().layout();
    assert_eq!((layout.positions.len(), layout.shards.len(), layout.replicas.len()), (7, 4, 12));
    assert_eq!(layout.shards[3].view.members, [10, 11, 12].map(ReplicaId));
}

#[test]
fn unknown_keys_are_named_and_the_nearest_is_offered() {
    one(&with("id = 1", "id = 1\nmin_veiw = 1"), 6, &["'min_veiw' in [[shard]]", "did you mean min_view?"]);
    one(&format!("{SMALL}color = 7\n"), 10, &["'color' in [[shard.replica]]", "leave it out", "id, address"]);
    one(&format!("{SMALL}cache = \"1MiB\"\n"), 10, &["'cache' in [[shard.replica]]", "in [storage]"]);
    one(&format!("{SMALL}[[replica]]\nid = 2\n"), 10, &["'replica' in the file", "[[shard.replica]] below"]);
    one(&format!("{SMALL}[storage]\nhigh_marc = 7\n"), 11, &["'high_marc' in [storage]", "high_mark?"]);
    let found = wrong(&with("address", "adress"));
    let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [1, 3], "{found:#?}");
    assert!(found[0].1.contains("[[sequencer]] has no address: write address = \"127.0.0.1:7400\""), "{found:#?}");
    assert!(found[1].1.contains("did you mean address?"), "{found:#?}");
}

#[test]
fn values_of_another_type_are_refused() {
    one(&with("\"h:1\"", "7400"), 3, &["address is an integer, and must be a string", "write address = "]);
    one(&with("id = 1\nleaf", "id = \"1\"\nleaf"), 5, &["id is a string, and must be an integer", "write id = 1"]);
    one(&format!("storage = 1\n{SMALL}"), 1, &["storage is an integer", "write [storage]"]);
    one(&format!("{SMALL}[storage]\nssd = 1\n"), 11, &["ssd is an integer", "write ssd = true"]);
    one(&format!("{SMALL}[storage]\ncache = 1.5\n"), 11, &["cache is a float", "must be a size", "cache = \"64MiB\""]);
    one(&format!("{SMALL}[storage]\ncache = \"64\"\n"), 11, &["cache is '64'", "must be a size"]);
    one(&format!("{SMALL}[metadata]\nbackend = \"etcd\"\nendpoints = [1]\n"), 12, &["array of strings"]);
    one("[[sequencer]\nname = 1\n", 1, &["this is no TOML"]);
}

#[test]
fn values_out_of_bounds_are_refused() {
    let storage = |line: &str| format!("{SMALL}[storage]\n{line}\n");
    one(&storage("high_mark = 100"), 11, &["high_mark is 100", "1 to 99"]);
    one(&storage("segment = \"1MiB\""), 11, &["segment", "from 8MiB to 1GiB"]);
    one(&storage("segment = 8388609"), 11, &["multiple of 4KiB"]);
    one(&storage("device = \"pmem\""), 11, &["'pmem' is not known", "pmem2?", "device = \"file\""]);
    one(&with("\"h:1\"", "\"h:1\"\nlinger_micros = 10001"), 4, &["linger_micros is 10001", "0 to 10000"]);
    one(&with("\"h:1\"", "\"h:1\"\nlinger_micros = -1"), 4, &["linger_micros is -1", "0 to 10000"]);
    one(&with("id = 1", "id = 0"), 5, &["id is 0", "1 to 4294967295"]);
    one(&with("id = 1\naddress", "id = 4294967295\naddress"), 8, &["1 to 4294967294"]);
    one(&with("h:2", "h:0"), 9, &["'h:0' is no address", "the port '0'", "write address = "]);
    one(
        &format!("transport = \"udp\"\n{SMALL}"),
        1,
        &["'udp' is not known", "transport = \"tcp\" or transport = \"quic\""],
    );
    one(&format!("cluster = \"my log\"\n{SMALL}"), 1, &["cluster = 'my log' is no name", "left-1"]);
    one(&SMALL.replace("\"root\"", "\"the root\""), 2, &["name = 'the root' is no name"]);
    one(&SMALL.replace("\"root\"", "\"replica-1\""), 2, &["'replica-1' is what the folder of a replica is called"]);
    one(&format!("data = \"\"\n{SMALL}"), 1, &["data is empty"]);
}

#[test]
fn standbys_are_checked_as_other_processes_are() {
    let etcd = "metadata = { backend = \"etcd\", endpoints = [\"http://h:2379\"] }\n";
    let standbys = |list: &str| format!("{etcd}{}", with("\"h:1\"", &format!("\"h:1\"\nstandbys = {list}")));
    let topology = parse(&standbys("[\"h:8\", \"h:9\"]")).unwrap();
    assert_eq!(topology.root().standbys, ["h:8", "h:9"]);
    let names: Vec<_> = topology.standbys().map(|(name, _)| name).collect();
    assert_eq!(names, ["root-standby-1", "root-standby-2"]);
    let parent_less = with("\"h:1\"", "\"h:1\"\nstandbys = [\"h:8\"]");
    one(&parent_less, 4, &["'root' is the root, whose process keeps the metadata", "backend = \"etcd\""]);

    one(&standbys("\"h:8\""), 5, &["standbys is a string, and must be an array", "standbys = [\"127.0.0.1:7400\"]"]);
    one(&standbys("[\"h:8\", \"h:0\"]"), 5, &["'h:0' is no address", "the port '0'"]);
    one(&standbys("[\"h:8\", \"H:8\"]"), 5, &["address 'H:8' of standby 2 of 'root'", "standby 1 of 'root' in line 5"]);
    one(&standbys("[\"h:1\"]"), 5, &["address 'h:1' of standby 1 of 'root'", "sequencer 'root' in line 4 too"]);
    one(&standbys("[\"h:2\"]"), 11, &["address 'h:2' of replica 1", "standby 1 of 'root' in line 5 too"]);
    let many: Vec<String> = (100..110).map(|port| format!("\"h:{port}\"")).collect();
    one(&standbys(&format!("[{}]", many.join(","))), 5, &["standbys names 10", "there may be 9"]);
    assert!(parse(&standbys(&format!("[{}]", many[1..].join(",")))).is_ok());
    let long = "x".repeat(55);
    one(&standbys("[\"h:8\"]").replace("\"root\"", &format!("\"{long}\"")), 3, &["is too long", "at most 54"]);
    one(&SMALL.replace("\"root\"", "\"a-standby-1\""), 2, &["'a-standby-1' is what the folder of a standby"]);
    assert!(parse(&SMALL.replace("\"root\"", "\"a-standby-x\"")).is_ok());
    one(&with("address", "standby = [\"h:8\"]\naddress"), 3, &["unknown key 'standby'", "did you mean standbys?"]);

    let failover = |line: &str| format!("{SMALL}[failover]\n{line}\n");
    assert_eq!(parse(&failover("detect_ms = 50")).unwrap().detect_ms, 50);
    for ms in [0, 49, 60_001] {
        one(&failover(&format!("detect_ms = {ms}")), 11, &[&format!("detect_ms is {ms}"), "50 to 60000"]);
    }
    assert_eq!(parse(&failover("replica_timeout_ms = 100")).unwrap().replica_timeout_ms, 100);
    one(&failover("replica_timeout_ms = 99"), 11, &["replica_timeout_ms is 99", "100 to 60000"]);
    one(&failover("detect = 300"), 11, &["unknown key 'detect' in [failover]"]);
}

#[test]
fn what_belongs_together_is_asked_for() {
    one(&format!("transport = \"quic\"\n{SMALL}"), 1, &["needs certificates", "[certificates]"]);
    one(&format!("transport = \"quic\"\n{SMALL}[certificates]\n"), 11, &["[certificates] has no directory"][..0]);
    let metadata = |lines: &str| format!("{SMALL}[metadata]\n{lines}\n");
    one(&metadata("backend = \"etcd\""), 11, &["needs its servers", "endpoints = [\"http://127.0.0.1:2379\"]"]);
    one(&metadata("backend = \"etcd\"\nendpoints = []"), 12, &["names no server"]);
    one(&metadata("backend = \"etcd\"\nendpoints = [\"h:1\"]"), 12, &["'h:1' is no address", "http://"]);
    one(&metadata("backend = \"etcd\"\nendpoints = [\"http://h\"]"), 12, &["'http://h'", "no port"]);
    one(&metadata("backend = \"etcd\"\nprefix = \"a b\"\nendpoints = [\"http://h:1\"]"), 12, &["prefix = 'a b'"]);
    one(&metadata("endpoints = [\"http://h:1\"]"), 11, &["for etcd alone", "backend = \"etcd\""]);
    one(&metadata("backend = \"embedded\"\nprefix = \"a\""), 12, &["for etcd alone"]);
    one(&metadata("backend = \"etcdd\"\nendpoints = [\"http://h:1\"]"), 11, &["did you mean etcd?"]);
}

/// The small file and more sequencers: name, parent.
fn tree(more: &[(&str, Option<&str>)]) -> String {
    let mut text = SMALL.to_owned();
    for (i, (name, parent)) in more.iter().enumerate() {
        let parent = parent.map_or(String::new(), |parent| format!("parent = \"{parent}\"\n"));
        text += &format!("[[sequencer]]\nname = \"{name}\"\naddress = \"h:{}\"\n{parent}", 10 + i);
    }
    text
}

/// A shard of one replica, led by `leaf`.
fn led_by(leaf: &str, id: u32) -> String {
    format!("[[shard]]\nid = {id}\nleaf = \"{leaf}\"\n[[shard.replica]]\nid = {id}\naddress = \"h:{}\"\n", 100 + id)
}

#[test]
fn nothing_is_there_twice() {
    let other = |replica: &str| format!("{SMALL}[[shard]]\nid = 2\nleaf = \"root\"\n[[shard.replica]]\n{replica}");
    one(&other("id = 1\naddress = \"h:3\"\n"), 14, &["the id 1 of a replica", "line 8 too"]);
    one(&other("id = 2\naddress = \"H:2\"\n"), 15, &["address 'H:2' of replica 2", "replica 1 in line 9 too"]);
    one(&other("id = 2\naddress = \"h:1\"\n"), 15, &["address 'h:1'", "sequencer 'root' in line 3 too"]);
    one(&(SMALL.to_owned() + &led_by("root", 9).replace("id = 9\nleaf", "id = 1\nleaf")), 11, &["the id 1 of a shard"]);
    one(&tree(&[("root", Some("root"))]), 11, &["the name 'root' of a sequencer", "line 2 too"]);
    assert!(wrong(&with("id = 1\nleaf", "id = 1\nid = 2\nleaf"))[0].1.contains("duplicate"));
}

#[test]
fn the_tree_is_one() {
    let bearing = |more: &[(&str, Option<&str>)]| {
        let shards: String = more.iter().zip(2..).map(|((name, _), id)| led_by(name, id)).collect();
        tree(more) + &shards
    };
    assert!(parse(&bearing(&[("a", Some("root")), ("b", Some("a"))])).is_ok());
    one(&bearing(&[("a", None)]), 10, &["'a' has no parent", "'root' in line 1", "write parent = \"root\""]);
    one(&bearing(&[("a", Some("rooot"))]), 13, &["parent = 'rooot'", "did you mean root?"]);
    one(&bearing(&[("a", Some("elsewhere"))]), 13, &["parent = 'elsewhere'", "write one of root, a"]);
    one(&bearing(&[("a", Some("b")), ("b", Some("a"))]), 13, &["'a' is below 'b' is below 'a', a circle"]);
    one(&bearing(&[("a", Some("a"))]), 13, &["'a' is below 'a', a circle"]);
    // A way into a circle is no part of it.
    one(&bearing(&[("c", Some("a")), ("a", Some("b")), ("b", Some("a"))]), 17, &["'a' is below 'b' is below 'a'"]);
    let no_root = with("\"h:1\"", "\"h:1\"\nparent = \"root\"");
    one(&no_root, 4, &["'root' is below 'root', a circle"]);
    let (_, shard) = SMALL.split_once("[[shard]]").unwrap();
    let found = wrong(&format!("[[shard]]{shard}"));
    assert!(found.len() == 1 && found[0].0 == 1 && found[0].1.contains("there is no sequencer"), "{found:#?}");
    assert!(wrong("")[0].1.contains("there is no sequencer"));
}

#[test]
fn every_sequencer_has_a_shard_below_it() {
    let (sequencer, _) = SMALL.split_once("[[shard]]").unwrap();
    one(sequencer, 1, &["there is no shard", "write [[shard]]"]);
    one(&tree(&[("a", Some("root"))]), 10, &["no shard is below sequencer 'a'", "leaf = \"a\""]);
    // The highest of a branch alone; and what a slip of the pen meant counts.
    one(&tree(&[("a", Some("root")), ("b", Some("a"))]), 10, &["below sequencer 'a'"]);
    one(&(tree(&[("alpha", Some("root"))]) + &led_by("alhpa", 2)), 16, &["leaf = 'alhpa'", "did you mean alpha?"]);
}

#[test]
fn views_can_be_formed() {
    let (without, _) = SMALL.split_once("[[shard.replica]]").unwrap();
    one(without, 4, &["no replica", "[[shard.replica]]"]);
    one(&with("id = 1", "id = 1\nmin_view = 2"), 6, &["min_view is 2", "1 replicas", "min_view = 1"]);
    one(&with("id = 1", "id = 1\nmin_view = 0"), 6, &["min_view is 0", "1 to"]);
    let many = |count: u32| -> String {
        let replica = |id| format!("[[shard.replica]]\nid = {id}\naddress = \"h:{}\"\n", 100 + id);
        SMALL.to_owned() + &(2..=count).map(replica).collect::<String>()
    };
    assert_eq!(parse(&many(15)).unwrap().shards()[0].min_view, 2);
    one(&many(16), 4, &["16 replicas", "15"]);
}

#[test]
fn everything_wrong_is_said_at_once_in_order() {
    let text = SMALL
        .replace("\"h:1\"", "\"h\"")
        .replace("leaf = \"root\"", "leaf = \"rot\"\nmin_view = 9")
        .replace("h:2", "h:0");
    let found = wrong(&text);
    assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [3, 6, 7, 10], "{found:#?}");
    let all = parse(&text).unwrap_err().to_string();
    assert!(all.starts_with("etc/c.toml:3: address = 'h'") && all.lines().count() == 4, "{all}");
    assert!(all.contains("\netc/c.toml:6: leaf = 'rot': there is no such sequencer: did you mean root?\n"), "{all}");
}
