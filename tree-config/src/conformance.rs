//! What every backend must do, as checks that run against any of them.
//!
//! A backend gives a [`Factory`]; [`all`] runs every check, each on a store of its own. Checks panic with what they
//! found. They need no runtime but the one that polls them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "this is test code that other crates' tests run")]

pub mod trees;

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::num::NonZeroU64;
use std::pin::{Pin, pin};
use std::task::Poll;

use async_trait::async_trait;
use flexlog_protocol::api::{BoundChange, Retention, RetentionChange};
use flexlog_protocol::limits::MAX_COLORS;
use flexlog_protocol::{ClusterId, Color, Epoch, Position, ReplicaId, ShardId, StoreId};
use uuid::Uuid;

use crate::metadata::{CommitError, Event, Metadata, Revision, Watch};
use crate::operations::{self, Layout, OperationError, Placement};
use crate::record::{ClusterRecord, ColorRecord, PositionRecord, ReplicaRecord, StoreState};
use crate::{ColorName, IdentityRefusal, Key, Kind, Transaction, Value};

/// Makes stores to check.
#[async_trait]
pub trait Factory: Send + Sync {
    /// A store of its own, with nothing in it.
    async fn create(&self) -> Box<dyn Fixture>;
}

/// A store that is being checked.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// The store.
    fn store(&self) -> &dyn Metadata;

    /// Ends it, and opens it again where it was kept.
    async fn reopen(&mut self);
}

/// Runs every check.
pub async fn all(factory: &dyn Factory) {
    versions(&mut *factory.create().await).await;
    conditions(&mut *factory.create().await).await;
    refusals(&mut *factory.create().await).await;
    listings(&mut *factory.create().await).await;
    durability(&mut *factory.create().await).await;
    races(&mut *factory.create().await).await;
    watch_order(&mut *factory.create().await).await;
    watch_waits(&mut *factory.create().await).await;
    watch_lag(&mut *factory.create().await).await;
    clusters(&mut *factory.create().await).await;
    claims(&mut *factory.create().await).await;
    colors(&mut *factory.create().await).await;
    color_limit(&mut *factory.create().await).await;
    color_retention(&mut *factory.create().await).await;
    store_opening(&mut *factory.create().await).await;
    trees::large_trees(&mut *factory.create().await).await;
    trees::adoption(&mut *factory.create().await).await;
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Polls all of them to their ends, in one task.
pub async fn join<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<(Pin<Box<_>>, Option<T>)> = futures.into_iter().map(|f| (Box::pin(f), None)).collect();
    poll_fn(|context| {
        for (future, done) in running.iter_mut().filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                *done = Some(output);
            }
        }
        if running.iter().all(|(_, done)| done.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, done)| done).collect()
}

fn name(text: &str) -> ColorName {
    ColorName::new(text).unwrap()
}

fn key(text: &str) -> Key {
    Key::ColorName(name(text))
}

/// Puts a number under a name; the checks use these as variables.
fn set(text: &str, n: u64) -> Transaction {
    Transaction::new().put(key(text), Color(n))
}

async fn value(store: &dyn Metadata, text: &str) -> Option<u64> {
    let found = store.get(&key(text)).await.unwrap()?;
    Some(Color::try_from(found.value).unwrap().0)
}

async fn version(store: &dyn Metadata, text: &str) -> Option<Revision> {
    Some(store.get(&key(text)).await.unwrap()?.version)
}

/// A put moves a key's version to the revision of its transaction, and no version ever comes again.
pub async fn versions(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    assert_eq!(store.get(&key("a")).await, Ok(None));
    let first = store.commit(set("a", 1).put(key("b"), Color(1))).await.unwrap();
    assert_eq!((version(store, "a").await, version(store, "b").await), (Some(first), Some(first)));
    let second = store.commit(set("a", 1)).await.unwrap();
    assert!(second > first);
    assert_eq!((version(store, "a").await, version(store, "b").await), (Some(second), Some(first)));
    let third = store.commit(Transaction::new().delete(key("a")).delete(key("never there"))).await.unwrap();
    assert_eq!((third > second, store.get(&key("a")).await), (true, Ok(None)));
    let fourth = store.commit(set("a", 1)).await.unwrap();
    assert_eq!((fourth > third, version(store, "a").await), (true, Some(fourth)));
}

/// Changes are made only where all conditions hold, and then all.
pub async fn conditions(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    let conflict = |text: &str| Err(CommitError::Conflict { key: key(text) });
    let v1 = store.commit(set("a", 1).when_absent(key("a"))).await.unwrap();
    assert_eq!(store.commit(set("a", 2).when_absent(key("a"))).await, conflict("a"));
    assert_eq!(store.commit(set("a", 2).when(key("b"), v1)).await, conflict("b"));
    let v2 = store.commit(set("a", 2).when(key("a"), v1)).await.unwrap();
    assert_eq!(store.commit(set("a", 3).when(key("a"), v1)).await, conflict("a"));

    // Some hold, one does not: nothing of it is done, and the first that does not is named.
    let mixed = set("a", 9)
        .put(key("new"), Color(9))
        .when(key("a"), v2)
        .when_absent(key("b"))
        .when(key("c"), v1)
        .when(key("d"), v1);
    assert_eq!(store.commit(mixed).await, conflict("c"));
    assert_eq!((value(store, "a").await, value(store, "new").await), (Some(2), None));

    // A condition may be about what is not changed.
    store.commit(set("c", 1).when(key("a"), v2).when_absent(key("b"))).await.unwrap();
    assert_eq!(value(store, "c").await, Some(1));
    // Deleted is absent, and the old version is gone for good.
    store.commit(Transaction::new().delete(key("a")).when(key("a"), v2)).await.unwrap();
    assert_eq!(store.commit(set("a", 5).when(key("a"), v2)).await, conflict("a"));
    store.commit(set("a", 5).when_absent(key("a"))).await.unwrap();
}

/// A transaction that breaks a rule changes nothing.
pub async fn refusals(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    let orphan = position(3, None);
    for transaction in [
        Transaction::new().when_absent(key("a")),
        set("a", 1).put(key("a"), Color(2)),
        set("a", 1).put(Key::Position(Position(3)), orphan),
        set("a", 1).put(Key::Cluster, Color(2)),
        set("a", 0),
    ] {
        assert!(matches!(store.commit(transaction).await, Err(CommitError::Invalid(_))));
    }
    assert_eq!(value(store, "a").await, None);
}

/// Listings are in order, within one kind, and can be paged.
pub async fn listings(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    let empty = store.list(Kind::ColorName, None, 10).await.unwrap();
    assert!(empty.entries.is_empty());
    let names = ["b", "a", "ab", "z", "é", "a/b"];
    let mut transaction = Transaction::new();
    for (i, text) in (1..).zip(names) {
        transaction = transaction.put(key(text), Color(i));
    }
    store.commit(transaction).await.unwrap();
    for id in [0u32, 1, 9, 10, 300] {
        let record = position(id, (id > 0).then_some(0));
        store.commit(Transaction::new().put(Key::Position(Position(id)), record)).await.unwrap();
    }
    let mut sorted: Vec<Key> = names.iter().map(|text| key(text)).collect();
    sorted.sort();
    for limit in 1..=names.len() + 1 {
        let (mut seen, mut after): (Vec<Key>, Option<Key>) = (Vec::new(), None);
        loop {
            let page = store.list(Kind::ColorName, after.as_ref(), limit).await.unwrap();
            assert!(page.entries.len() <= limit && page.revision > empty.revision);
            let Some((last, _)) = page.entries.last() else { break };
            after = Some(last.clone());
            seen.extend(page.entries.into_iter().map(|(key, _)| key));
        }
        assert_eq!(seen, sorted);
    }
    let from_between = store.list(Kind::ColorName, Some(&key("aa")), 1).await.unwrap();
    assert_eq!(from_between.entries[0].0, key("ab"));
    let positions = store.list(Kind::Position, None, 100).await.unwrap();
    let ids: Vec<Key> = positions.entries.into_iter().map(|(key, _)| key).collect();
    assert_eq!(ids, [0, 1, 9, 10, 300].map(|p| Key::Position(Position(p))));
    assert!(store.list(Kind::Shard, None, 100).await.unwrap().entries.is_empty());
    assert!(store.list(Kind::ColorName, None, 0).await.unwrap().entries.is_empty());
}

/// What was answered is there after the store was opened again, versions included.
pub async fn durability(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    let first = store.commit(set("a", 1).put(key("b"), Color(1))).await.unwrap();
    let second = store.commit(set("b", 2)).await.unwrap();
    store.commit(Transaction::new().delete(key("a"))).await.unwrap();
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!((value(store, "a").await, value(store, "b").await), (None, Some(2)));
    assert_eq!(version(store, "b").await, Some(second));
    assert!(store.commit(set("b", 3).when(key("b"), first)).await.is_err());
    let third = store.commit(set("b", 3).when(key("b"), second)).await.unwrap();
    assert!(third > second.next(), "the delete's revision was given again");
}

/// Of many that compare and set the same version one wins, so that counting up by it counts right.
pub async fn races(fixture: &mut dyn Fixture) {
    const TASKS: u64 = 16;
    const EACH: u64 = 10;
    let store = fixture.store();
    let start = store.commit(set("n", 1)).await.unwrap();
    let once = join((0..TASKS).map(|_| store.commit(set("n", 1).when(key("n"), start)))).await;
    assert_eq!(once.iter().filter(|result| result.is_ok()).count(), 1);
    join((0..TASKS).map(|_| async move {
        for _ in 0..EACH {
            loop {
                let found = store.get(&key("n")).await.unwrap().unwrap();
                let Value::ColorName(Color(n)) = found.value else { panic!("a number was put") };
                match store.commit(set("n", n + 1).when(key("n"), found.version)).await {
                    Ok(_) => break,
                    Err(CommitError::Conflict { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }))
    .await;
    assert_eq!(value(store, "n").await, Some(1 + TASKS * EACH));
}

/// The next event, which must be of a transaction.
async fn changes(watch: &mut Box<dyn Watch>) -> (Revision, Vec<(Key, Option<Value>)>) {
    match watch.next().await.unwrap() {
        Event::Changes(changes) => {
            (changes.revision, changes.changes.iter().map(|c| (c.key.clone(), c.value.clone())).collect())
        }
        Event::Lagged { revision } => panic!("lagged at {revision}"),
    }
}

/// A watch tells of all transactions behind its start, in order, with what each changed.
pub async fn watch_order(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    let start = store.commit(set("a", 1)).await.unwrap();
    let mut early = store.watch(start).await.unwrap();
    let put = |text: &str, n| (key(text), Some(Value::ColorName(Color(n))));
    let mut expected = Vec::new();
    expected.push((store.commit(set("a", 2).put(key("b"), Color(2))).await.unwrap(), vec![put("a", 2), put("b", 2)]));
    assert!(store.commit(set("a", 3).when(key("a"), start)).await.is_err());
    let removal = set("c", 3).delete(key("a")).delete(key("never there"));
    expected.push((store.commit(removal).await.unwrap(), vec![put("c", 3), (key("a"), None)]));
    let revisions = join((10..40).map(|n| store.commit(set("d", n)))).await;
    for (revision, n) in revisions.into_iter().zip(10..) {
        expected.push((revision.unwrap(), vec![put("d", n)]));
    }
    expected.sort_by_key(|(revision, _)| *revision);
    let mut late = store.watch(start).await.unwrap();
    let mut middle = store.watch(expected[0].0).await.unwrap();
    for (i, (revision, what)) in expected.iter().enumerate() {
        assert_eq!(changes(&mut early).await, (*revision, what.clone()));
        assert_eq!(changes(&mut late).await, (*revision, what.clone()));
        if i > 0 {
            assert_eq!(changes(&mut middle).await, (*revision, what.clone()));
        }
    }
}

/// A watch with nothing to tell waits, loses nothing when its future is dropped, and wakes.
pub async fn watch_waits(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    let start = store.commit(set("a", 1)).await.unwrap();
    let mut watch = store.watch(start).await.unwrap();
    {
        let mut dropped = pin!(watch.next());
        let now = poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context))).await;
        assert!(now.is_pending(), "told of something that nobody did");
    }
    let writes = async {
        for n in 2..=20 {
            store.commit(set("a", n)).await.unwrap();
        }
        Vec::new()
    };
    let reads = async {
        let mut seen = Vec::new();
        while seen.last() != Some(&Some(Value::ColorName(Color(20)))) {
            seen.push(changes(&mut watch).await.1[0].1.clone());
        }
        seen
    };
    let both: Vec<Boxed<'_, Vec<Option<Value>>>> = vec![Box::pin(reads), Box::pin(writes)];
    let seen = join(both).await.remove(0);
    assert_eq!(seen, (2..=20).map(|n| Some(Value::ColorName(Color(n)))).collect::<Vec<_>>());
}

/// A watch that cannot be told everything is told so, and goes on from there.
pub async fn watch_lag(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    let now = store.commit(set("a", 1)).await.unwrap();
    // A place that the store never reached: as after metadata went back.
    let mut ahead = store.watch(Revision(now.0 + 1000)).await.unwrap();
    assert_eq!(ahead.next().await, Ok(Event::Lagged { revision: now }));
    let next = store.commit(set("a", 2)).await.unwrap();
    assert_eq!(changes(&mut ahead).await.0, next);
}

async fn cluster(store: &dyn Metadata) -> ClusterRecord {
    let layout = Layout::single(3, 2);
    operations::create_cluster(store, ClusterId(Uuid::from_u128(77)), &layout).await.unwrap()
}

fn on(shards: &[u32]) -> Placement {
    Placement { owner: Position(0), shards: shards.iter().copied().map(ShardId).collect() }
}

fn position(position: u32, parent: Option<u32>) -> PositionRecord {
    PositionRecord {
        position: Position(position),
        parent: parent.map(Position),
        name: format!("p{position}"),
        address: String::new(),
        holder: None,
    }
}

/// A cluster is created once, with all that it starts with.
pub async fn clusters(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    assert_eq!(operations::cluster(store).await, Ok(None));
    let missing = |key| Err(OperationError::Missing(key));
    assert_eq!(operations::claim(store, Position(0), Uuid::nil(), "").await, missing(Key::Position(Position(0))));
    let no_cluster = operations::create_color(store, &name("a"), &on(&[1])).await;
    assert_eq!(no_cluster, Err(OperationError::Missing(Key::Cluster)));
    let layout = Layout::single(3, 2);
    let created =
        join((1..=4).map(|i| operations::create_cluster(store, ClusterId(Uuid::from_u128(i)), &layout))).await;
    let mut winners = created.iter().filter_map(|result| result.as_ref().ok());
    let winner = winners.next().unwrap();
    assert_eq!(winners.next(), None);
    let lost = OperationError::Commit(CommitError::Conflict { key: Key::Cluster });
    assert_eq!(created.iter().filter(|result| **result == Err(lost.clone())).count(), 3);
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(operations::cluster(store).await, Ok(Some(winner.clone())));
    assert_eq!(winner.next_replica, ReplicaId(4));
    assert_eq!(operations::shard(store, ShardId(1)).await.as_ref(), Ok(&layout.shards[0]));
    assert_eq!(operations::replica(store, ReplicaId(2)).await.as_ref(), Ok(&layout.replicas[1]));
}

/// Claims are given epochs that grow, each once, whoever claims what and when.
pub async fn claims(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    cluster(store).await;
    let child = position(1, Some(0));
    store.commit(Transaction::new().put(Key::Position(Position(1)), child)).await.unwrap();
    let mut all = BTreeSet::new();
    let mut last = Epoch(0);
    for round in 0..3u32 {
        let claimed = join((0..8u32).map(|i| async move {
            let mut epochs = Vec::new();
            for _ in 0..3 {
                let uuid = Uuid::from_u128((round * 8 + i).into());
                epochs.push(operations::claim(store, Position(i % 2), uuid, "host:1").await.unwrap());
            }
            epochs
        }))
        .await;
        let before = last;
        for epochs in claimed {
            assert!(epochs.is_sorted() && epochs[0] > before, "{epochs:?} after {before}");
            last = last.max(epochs[2]);
            all.extend(epochs);
        }
    }
    assert_eq!(all.len(), 3 * 8 * 3, "an epoch was given twice");
    fixture.reopen().await;
    let store = fixture.store();
    let uuid = Uuid::from_u128(4711);
    let epoch = operations::claim(store, Position(1), uuid, "here:2").await.unwrap();
    assert!(epoch > last);
    let found = store.get(&Key::Position(Position(1))).await.unwrap().unwrap();
    let holder = PositionRecord::try_from(found.value).unwrap().holder.unwrap();
    assert_eq!((holder.epoch, holder.uuid, holder.address.as_str()), (epoch, uuid, "here:2"));

    // Of all that take over from one holder, one does; asked again, as after a commit in doubt, it claims nothing more.
    let rivals = (1..=5).map(Uuid::from_u128);
    let take = |uuid: Uuid| operations::take_over(store, Position(1), Some(epoch), uuid, "rival:1");
    let taken = join(rivals.clone().map(take)).await;
    let won: Vec<(Uuid, Epoch)> = rivals.zip(taken).filter_map(|(uuid, taken)| Some((uuid, taken.unwrap()?))).collect();
    let [(winner, later)] = won[..] else { panic!("{won:?}") };
    assert!(later > epoch);
    assert_eq!(take(winner).await.unwrap(), Some(later));
    assert_eq!(operations::take_over(store, Position(1), None, uuid, "").await.unwrap(), None);
    let held = operations::position(store, Position(1)).await.unwrap().holder.unwrap();
    assert_eq!((held.epoch, held.uuid, held.address.as_str()), (later, winner, "rival:1"));
    let again = operations::take_over(store, Position(1), Some(later), winner, "rival:1").await.unwrap();
    assert!(again > Some(later), "{again:?}");

    let cluster = operations::cluster(store).await.unwrap().unwrap();
    let exhausted = ClusterRecord { next_epoch: Epoch(u32::MAX), ..cluster };
    store.commit(Transaction::new().put(Key::Cluster, exhausted)).await.unwrap();
    let refused = operations::claim(store, Position(1), uuid, "").await;
    assert_eq!(refused, Err(OperationError::EpochsExhausted(Position(1))));
}

/// A name names one color for all who ask, however many create it at once.
pub async fn colors(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    cluster(store).await;
    assert_eq!(operations::find_color(store, &name("x")).await, Ok(None));
    let texts = ["x", "y", "z"].map(name);
    let place = on(&[1]);
    let created = join((0..24).map(|i| operations::create_color(store, &texts[i % 3], &place))).await;
    let mut ids = BTreeMap::new();
    for record in created.into_iter().map(Result::unwrap) {
        assert_eq!(*ids.entry(record.name.clone()).or_insert(record.color), record.color);
        assert_eq!((record.owner, record.width, record.shards), (Position(0), 1, vec![ShardId(1)]));
    }
    assert_eq!(ids.values().copied().collect::<BTreeSet<_>>(), (1..=3).map(Color).collect());

    // Many at once, some known, some twice, over several transactions.
    let mut many: Vec<ColorName> = (0..150).map(|i| name(&format!("many/{i:03}"))).collect();
    many.extend([name("many/000"), name("x"), name("many/149"), name("many/149")]);
    let records = operations::create_colors(store, &many, &on(&[1])).await.unwrap();
    assert!(records.iter().map(|r| &r.name).eq(&many));
    assert_eq!((records[150].color, records[152].color), (records[0].color, records[149].color));
    assert_eq!(operations::cluster(store).await.unwrap().unwrap().colors(), 153);
    let elsewhere = on(&[9]);
    let missing = Err(OperationError::Missing(Key::Shard(ShardId(9))));
    assert_eq!(operations::create_color(store, &name("new"), &elsewhere).await, missing);
    // The placement counts for a new color alone.
    assert_eq!(operations::create_color(store, &name("x"), &elsewhere).await.unwrap().shards, [ShardId(1)]);

    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(operations::find_color(store, &name("x")).await.unwrap().unwrap().color, ids[&name("x")]);
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = operations::colors_by_name(store, after.as_ref(), 40).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.name.clone());
        seen.extend(page.into_iter().map(|record| record.name));
    }
    assert_eq!(seen.len(), 153);
    assert!(seen.is_sorted());
}

/// Each bound of a retention is set on its own, however many set some at once; the rest of the color stays.
pub async fn color_retention(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    cluster(store).await;
    let [x, y] = ["x", "y"].map(name);
    let before = operations::create_color(store, &x, &on(&[1])).await.unwrap();
    let other = operations::create_color(store, &y, &on(&[1])).await.unwrap();
    assert_eq!(before.retention, Retention::default());
    assert_eq!(operations::retentions(store).await.unwrap(), []);
    let (age, bytes) = (NonZeroU64::new(7), NonZeroU64::new(9));
    let set = |n| BoundChange::Set(NonZeroU64::new(n).unwrap());
    let by_age = RetentionChange { max_age_secs: set(7), ..RetentionChange::default() };
    let by_bytes = RetentionChange { max_bytes: set(9), ..RetentionChange::default() };
    join([by_age, by_bytes].map(|change| operations::set_retention(store, before.color, change))).await;
    let both = Retention { max_age_secs: age, max_bytes: bytes };
    let now = operations::find_color(store, &x).await.unwrap().unwrap();
    assert_eq!(now, ColorRecord { retention: both, ..before.clone() });
    assert_eq!(operations::find_color(store, &y).await.unwrap().unwrap(), other);

    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(operations::retentions(store).await.unwrap(), [ColorRecord { retention: both, ..before.clone() }]);
    let key = Key::Color(before.color);
    let unchanged = version_of(store, &key).await;
    operations::set_retention(store, before.color, by_age).await.unwrap();
    assert_eq!(version_of(store, &key).await, unchanged, "nothing changed, nothing is written");
    let none = RetentionChange { max_age_secs: BoundChange::Remove, max_bytes: BoundChange::Remove };
    assert_eq!(operations::set_retention(store, before.color, none).await.unwrap(), before);
    assert_eq!(operations::retentions(store).await.unwrap(), []);
    let missing = Err(OperationError::Missing(Key::Color(Color(9))));
    assert_eq!(operations::set_retention(store, Color(9), none).await, missing);
}

async fn version_of(store: &dyn Metadata, key: &Key) -> Option<Revision> {
    store.get(key).await.unwrap().map(|found| found.version)
}

/// A cluster that has all its colors says so, and still finds them.
pub async fn color_limit(fixture: &mut dyn Fixture) {
    let store = fixture.store();
    let record = cluster(store).await;
    let almost = ClusterRecord { next_color: Color(MAX_COLORS as u64), ..record };
    store.commit(Transaction::new().put(Key::Cluster, almost)).await.unwrap();
    let full = |n| Err(OperationError::TooManyColors(n));
    let two = operations::create_colors(store, &[name("a"), name("b")], &on(&[1])).await;
    assert_eq!(two.map(|_| ()), full(MAX_COLORS as u64 - 1));
    let last = operations::create_color(store, &name("a"), &on(&[1])).await.unwrap();
    assert_eq!(last.color, Color(MAX_COLORS as u64));
    assert_eq!(operations::create_color(store, &name("b"), &on(&[1])).await.map(|_| ()), full(MAX_COLORS as u64));
    assert_eq!(operations::create_color(store, &name("a"), &on(&[1])).await, Ok(last));
}

/// A replica's store is opened in steps, each of which may be repeated; a stranger is refused and changes nothing.
pub async fn store_opening(fixture: &mut dyn Fixture) {
    cluster(fixture.store()).await;
    let (replica, id) = (ReplicaId(2), StoreId(Uuid::from_u128(5)));
    let nonce = |n: u64| Uuid::from_u128(100 + u128::from(n));
    for n in 0..3 {
        for _ in 0..2 {
            operations::begin_open(fixture.store(), replica, id, n, nonce(n)).await.unwrap();
            fixture.reopen().await;
            let found = operations::replica(fixture.store(), replica).await.unwrap().store;
            assert_eq!(found, StoreState::Opening { store: id, n, nonce: nonce(n) });
        }
        for _ in 0..2 {
            operations::finish_open(fixture.store(), replica, id, n, nonce(n)).await.unwrap();
            fixture.reopen().await;
            let found = operations::replica(fixture.store(), replica).await.unwrap().store;
            assert_eq!(found, StoreState::Opened { store: id, n: n + 1 });
        }
    }
    let store = fixture.store();
    let refused = |result: Result<(), OperationError>| match result {
        Err(OperationError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let other = StoreId(Uuid::from_u128(6));
    let before = store.get(&Key::Replica(replica)).await;
    let wiped = refused(operations::begin_open(store, replica, other, 0, nonce(9)).await);
    assert_eq!(wiped, IdentityRefusal::Wiped { replica, found: other, known: id, opened: 3 });
    let older = refused(operations::begin_open(store, replica, id, 2, nonce(9)).await);
    assert_eq!(older, IdentityRefusal::OlderImage { replica, store: id, found_opened: 2, opened: 3 });
    let behind = refused(operations::begin_open(store, replica, id, 4, nonce(9)).await);
    assert_eq!(behind, IdentityRefusal::MetadataBehind { replica, store: id, found_opened: 4, opened: 3 });
    assert_eq!(store.get(&Key::Replica(replica)).await, before);

    // Two copies of the folder at once: one goes on.
    let copies = join([21, 22].map(|n| operations::begin_open(store, replica, id, 3, nonce(n)))).await;
    assert_eq!(copies.iter().filter(|result| result.is_ok()).count(), 1);
    let loser = copies.into_iter().find(Result::is_err).unwrap();
    assert!(matches!(refused(loser), IdentityRefusal::CopiedFolder { .. }));
    // The others are as they were.
    let untouched = ReplicaRecord::try_from(store.get(&Key::Replica(ReplicaId(1))).await.unwrap().unwrap().value);
    assert_eq!(untouched.unwrap().store, StoreState::Fresh);
    let missing = operations::begin_open(store, ReplicaId(9), id, 0, nonce(9)).await;
    assert_eq!(missing, Err(OperationError::Missing(Key::Replica(ReplicaId(9)))));
}
