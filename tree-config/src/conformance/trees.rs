//! What every backend must do with the tree of a cluster: creating one of any size, adopting it by its file, reading it.

use std::path::Path;

use flexlog_protocol::{ClusterId, Color, Position, ReplicaId, ShardId, StoreId};
use uuid::Uuid;

use super::{Fixture, join, name, on, position};
use crate::metadata::{CommitError, Metadata};
use crate::operations::{self, OperationError, Placement, Tree};
use crate::topology::Topology;
use crate::{Key, Transaction};

/// A topology with one root and `shards` leaves of one shard each, of two replicas each.
fn wide(shards: u32) -> String {
    let mut text = "[[sequencer]]\nname = \"root\"\naddress = \"h:1\"\n".to_owned();
    for i in 1..=shards {
        let port = 1000 + 3 * i;
        text += &format!("[[sequencer]]\nname = \"leaf-{i}\"\nparent = \"root\"\naddress = \"h:{port}\"\n");
        text += &format!("[[shard]]\nid = {i}\nleaf = \"leaf-{i}\"\n");
        for (id, port) in [(2 * i - 1, port + 1), (2 * i, port + 2)] {
            text += &format!("[[shard.replica]]\nid = {id}\naddress = \"h:{port}\"\n");
        }
    }
    text
}

fn topology(text: &str) -> Topology {
    Topology::parse(Path::new("c.toml"), text).unwrap()
}

fn id(n: u128) -> ClusterId {
    ClusterId(Uuid::from_u128(n))
}

async fn adopt(store: &dyn Metadata, text: &str) -> Result<(), OperationError> {
    operations::adopt(store, id(99), &topology(text)).await.map(|_| ())
}

/// A tree of any size is created as a whole, once, and read as it was written.
pub async fn large_trees(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    // More than one transaction takes; an earlier creation got as far as its root and two positions more.
    let file = topology(&wide(70));
    let left = Transaction::new()
        .put(Key::Position(Position(0)), position(0, None))
        .put(Key::Position(Position(7)), position(7, Some(0)))
        .put(Key::Position(Position(300)), position(300, Some(0)));
    store.commit(left).await.unwrap();
    let layout = file.layout();
    let created = join((1..=3).map(|n| operations::create_cluster(store, id(n), &layout))).await;
    assert_eq!(created.iter().filter(|result| result.is_ok()).count(), 1, "{created:?}");
    let lost = [CommitError::Conflict { key: Key::Cluster }.into(), OperationError::BeingCreated];
    let losers = created.iter().filter_map(|result| result.as_ref().err());
    assert!(losers.clone().count() == 2 && losers.clone().all(|error| lost.contains(error)), "{created:?}");
    fixture.reopen().await;
    let store = fixture.store();
    let written = Tree { positions: layout.positions, shards: layout.shards, replicas: layout.replicas };
    assert_eq!(operations::tree(store).await.unwrap(), written);
    let cluster = operations::cluster(store).await.unwrap().unwrap();
    assert_eq!(cluster.next_replica, ReplicaId(141));
    assert_eq!(operations::adopt(store, id(9), &file).await, Ok(cluster));
    // A color that is as wide as any can be.
    let shards = operations::place(store, Position(0), 64, Color(1)).await.unwrap();
    let placement = Placement { owner: Position(0), shards };
    let color = operations::create_color(store, &name("wide"), &placement).await.unwrap();
    assert_eq!((color.width, color.shards), (64, placement.shards));
    let too_wide = OperationError::TooWide { owner: "leaf-1".into(), shards: 1, width: 2 };
    assert_eq!(operations::place(store, Position(1), 2, Color(1)).await, Err(too_wide));
    let not_below = OperationError::NotBelow { shard: ShardId(1), owner: Position(2) };
    let elsewhere = Placement { owner: Position(2), ..on(&[1]) };
    assert_eq!(operations::create_color(store, &name("x"), &elsewhere).await, Err(not_below));
}

/// A cluster is created from its file by whoever is first; afterwards the file may move addresses and nothing else.
pub async fn adoption(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    let text = wide(2);
    let file = topology(&text);
    let adopted = join((1..=4).map(|n| operations::adopt(store, id(n), &file))).await;
    let first = adopted[0].clone().unwrap();
    assert!(adopted.iter().all(|cluster| cluster.as_ref() == Ok(&first)), "{adopted:?}");
    operations::claim(store, Position(2), Uuid::from_u128(5), "h:9").await.unwrap();
    operations::begin_open(store, ReplicaId(3), StoreId(Uuid::from_u128(6)), 0, Uuid::nil()).await.unwrap();
    let before = operations::tree(store).await.unwrap();
    adopt(store, &text).await.unwrap();
    assert_eq!(operations::tree(store).await.unwrap(), before, "nothing changed");

    // Two processes live elsewhere now; what they are stays. The order of the file does not count.
    let (root, rest) = text.split_once("[[sequencer]]\nname = \"leaf-1\"").unwrap();
    let (one, two) = rest.split_once("[[sequencer]]").unwrap();
    let turned = format!("[[sequencer]]{two}[[sequencer]]\nname = \"leaf-1\"{one}{root}");
    adopt(store, &turned.replace("h:1006", "i:6").replace("h:1007", "i:7")).await.unwrap();
    let mut moved = before.clone();
    moved.positions[2].address = "i:6".into();
    moved.replicas[2].addresses = vec!["i:7".into()];
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(operations::tree(store).await.unwrap(), moved);

    let differs = async |text: &str| match adopt(store, text).await {
        Err(OperationError::Differs { file, differences }) => {
            assert_eq!(file, "c.toml");
            differences
        }
        other => panic!("{other:?}"),
    };
    // Each difference alone, with what is said of it.
    let replica_4 = "[[shard.replica]]\nid = 4\naddress = \"h:1008\"\n";
    let fifth = "[[shard.replica]]\nid = 5\naddress = \"h:5\"\n";
    let cases = [
        (text.replace(replica_4, ""), "replica 4 of shard 2 is in the metadata and not in c.toml"),
        (text.clone() + fifth, "replica 5 of shard 2 is in line 30 of c.toml and not in the metadata"),
        (
            text.replace("leaf = \"leaf-2\"", "min_view = 1\nleaf = \"leaf-2\""),
            "shard 2 has min_view 2 in the metadata, and 1",
        ),
        (
            text.replace("name = \"leaf-2\"\nparent = \"root\"", "name = \"leaf-2\"\nparent = \"leaf-1\""),
            "write parent = \"root\"",
        ),
    ];
    for (changed, says) in cases {
        assert_ne!(changed, text);
        let found = differs(&changed).await;
        assert!(found.iter().any(|difference| difference.contains(says)), "{says} in {found:#?}");
    }
    // All at once: another name is one sequencer gone, one come, and a shard that is led by another.
    let renamed = differs(&text.replace("leaf-2", "other")).await;
    for says in [
        "sequencer 'leaf-2' is in the metadata and not in c.toml: a cluster's sequencers cannot be removed by leaving them out",
        "sequencer 'other' is in line",
        "shard 2 is led by 'leaf-2' in the metadata, and 'other' in line",
    ] {
        assert!(renamed.iter().any(|difference| difference.starts_with(says)), "{says} in {renamed:#?}");
    }
    assert_eq!(renamed.len(), 3, "{renamed:#?}");
    let one_shard = differs(&wide(1)).await;
    assert_eq!(one_shard.len(), 4, "a sequencer, a shard and two replicas: {one_shard:#?}");
    let swapped = text
        .replace("id = 4\n", "id = x\n")
        .replace("id = 1\naddress", "id = 4\naddress")
        .replace("id = x\n", "id = 1\n");
    let found = differs(&swapped).await;
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].starts_with("replica 1 is one of shard 1 in the metadata, and 2 in line 2"), "{found:#?}");
    assert_eq!(operations::tree(store).await.unwrap(), moved, "a file that differs changes nothing");
}
