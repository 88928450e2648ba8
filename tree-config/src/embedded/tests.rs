//! The embedded store against the common suite, against crashes at every byte, and against a disk that fails.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use flexlog_protocol::checksum::crc32c;
use flexlog_protocol::{ClusterId, Color, Position};
use proptest::prelude::*;
use tempfile::TempDir;
use uuid::Uuid;

use super::journal::Fault;
use super::*;
use crate::conformance::{self, Factory, Fixture, join};
use crate::key::Value;
use crate::operations::{self, Layout, Placement};
use crate::{ColorName, TransactionError};

struct Kept {
    folder: TempDir,
    store: Option<Embedded>,
}

#[async_trait]
impl Fixture for Kept {
    fn store(&self) -> &dyn Metadata {
        self.store.as_ref().unwrap()
    }

    async fn reopen(&mut self) {
        self.store = None;
        self.store = Some(Embedded::open(self.folder.path()).unwrap());
    }
}

struct Folders;

#[async_trait]
impl Factory for Folders {
    async fn create(&self) -> Box<dyn Fixture> {
        let folder = tempfile::tempdir().unwrap();
        let store = Some(Embedded::open(folder.path()).unwrap());
        Box::new(Kept { folder, store })
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[test]
fn the_common_suite() {
    block_on(conformance::all(&Folders));
}

fn key(text: &str) -> Key {
    Key::ColorName(ColorName::new(text).unwrap())
}

fn set(text: &str, n: u64) -> Transaction {
    Transaction::new().put(key(text), Color(n))
}

/// What a store holds: numbers and their versions, by name.
type Contents = BTreeMap<String, (u64, u64)>;

fn contents(store: &Embedded) -> Contents {
    let inner = store.shared.read();
    inner
        .state
        .entries()
        .map(|(key, version, value)| match (key, value) {
            (Key::ColorName(name), Value::ColorName(color)) => (name.to_string(), (color.0, version.0)),
            other => panic!("{other:?}"),
        })
        .collect()
}

fn journal_of(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("journal")).unwrap()
}

/// A folder with this journal, opened.
fn open_with(journal: &[u8]) -> (TempDir, Result<Embedded, OpenError>) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("journal"), journal).unwrap();
    let store = Embedded::open(folder.path());
    (folder, store)
}

/// The journal after these transactions, with its length after each: the first is that of the empty one.
fn journal_after(transactions: &[Transaction]) -> (Vec<u8>, Vec<usize>) {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path()).unwrap();
    let mut lengths = vec![journal_of(folder.path()).len()];
    for transaction in transactions {
        block_on(store.commit(transaction.clone())).unwrap();
        lengths.push(journal_of(folder.path()).len());
    }
    (journal_of(folder.path()), lengths)
}

#[test]
fn a_crash_at_any_byte_of_a_transaction_leaves_all_of_it_or_nothing() {
    let (journal, lengths) =
        journal_after(&[set("a", 1), set("b", 2), set("a", 3).put(key("c"), Color(3)).delete(key("b"))]);
    let all = BTreeMap::from([("a".to_owned(), (3, 3)), ("c".to_owned(), (3, 3))]);
    let two = BTreeMap::from([("a".to_owned(), (1, 1)), ("b".to_owned(), (2, 2))]);
    let one = BTreeMap::from([("a".to_owned(), (1, 1))]);
    for end in lengths[1]..=journal.len() {
        let (folder, store) = open_with(&journal[..end]);
        let store = store.unwrap();
        let (expected, good) = match end {
            _ if end == lengths[3] => (&all, lengths[3]),
            _ if end >= lengths[2] => (&two, lengths[2]),
            _ => (&one, lengths[1]),
        };
        assert_eq!(contents(&store), *expected, "cut at {end}");
        assert_eq!(store.dropped_bytes(), (end - good) as u64, "cut at {end}");
        // It goes on as if nothing had been, and what it writes then is kept.
        block_on(store.commit(set("z", 9).when_absent(key("z")))).unwrap();
        let expected = contents(&store);
        drop(store);
        let store = Embedded::open(folder.path()).unwrap();
        assert_eq!((contents(&store), store.dropped_bytes()), (expected, 0), "cut at {end}");
    }
}

#[test]
fn a_crash_may_leave_any_part_of_what_was_on_its_way() {
    let (journal, lengths) = journal_after(&[set("a", 1)]);
    let mut batch = Vec::new();
    let mut ends = Vec::new();
    for (revision, transaction) in (2..).zip([set("b", 2), set("c", 3), set("d", 4)]) {
        let durable = journal.len() as u64;
        journal::push_transaction(&mut batch, Revision(revision), durable, &transaction).unwrap();
        ends.push(batch.len());
    }
    assert_eq!(lengths[1], journal.len());
    // Each byte of the batch may be the one that is not there; what follows it may be.
    for lost in 0..batch.len() {
        let mut torn = batch.clone();
        torn[lost] = 0;
        let (_folder, store) = open_with(&[journal.clone(), torn].concat());
        let store = store.unwrap();
        let whole = ends.iter().filter(|end| **end <= lost).count();
        assert_eq!(contents(&store).len(), 1 + whole, "byte {lost}");
    }
}

#[test]
fn damage_that_no_crash_explains_is_reported_and_left_alone() {
    let (journal, lengths) = journal_after(&[set("a", 1), set("b", 2), set("c", 3)]);
    // Every byte that a later line relies on.
    for at in 0..lengths[2] {
        let mut damaged = journal.clone();
        damaged[at] ^= 1;
        let (folder, store) = open_with(&damaged);
        let line = lengths.iter().position(|end| at < *end).unwrap() + 1;
        match store {
            Err(OpenError::Damaged { file, line: found, .. }) => {
                assert_eq!((file, found), (folder.path().join("journal"), line), "byte {at}");
            }
            other => panic!("byte {at}: {other:?}"),
        }
        assert_eq!(journal_of(folder.path()), damaged);
    }
    // A line that is missing from the middle has no bad byte.
    let (_folder, gap) = open_with(&[&journal[..lengths[1]], &journal[lengths[2]..]].concat());
    let text = gap.unwrap_err().to_string();
    assert!(text.contains("line 3") && text.contains("transaction 3, and 2 comes next"), "{text}");
    let (_folder, empty) = open_with(b"");
    assert!(matches!(empty, Err(OpenError::Damaged { line: 1, .. })));
}

/// A line as the journal has it.
fn line(json: &str) -> String {
    format!("{:08x} {json}\n", crc32c(json.as_bytes()))
}

#[test]
fn another_format_is_refused_and_left_alone() {
    let journal = line(r#"{"flexlog-metadata":1,"anything":["else"]}"#) + "not even a line";
    let (folder, store) = open_with(journal.as_bytes());
    fs::write(folder.path().join("journal.new"), "theirs").unwrap();
    assert!(matches!(store, Err(OpenError::UnknownFormat { found: 1, .. })));
    assert!(Embedded::open(folder.path()).is_err());
    assert_eq!(journal_of(folder.path()), journal.as_bytes());
    assert_eq!(fs::read(folder.path().join("journal.new")).unwrap(), b"theirs");
}

#[test]
fn a_journal_of_format_3_is_read_and_written_as_ever() {
    let uuid = "00000000-0000-0000-0000-000000000007";
    let cluster = format!(r#"{{"id":"{uuid}","format":3,"next_epoch":3,"next_color":2,"next_replica":4}}"#);
    let holder = format!(r#"{{"epoch":2,"uuid":"{uuid}","address":""}}"#);
    let opening = format!(r#"{{"opening":{{"store":"{uuid}","n":0,"nonce":"{uuid}"}}}}"#);
    let snapshot = [
        r#"{"flexlog-metadata":3,"revision":7,"entries":7}"#.to_owned(),
        format!(r#"["cluster",7,{{"cluster":{cluster}}}]"#),
        format!(r#"[{{"position":0}},5,{{"position":{{"position":0,"parent":null,"name":"root","address":"","holder":{holder}}}}}]"#),
        r#"[{"shard":1},1,{"shard":{"shard":1,"leaf":0,"view":{"number":1,"members":[1,2,3]},"min_view":2}}]"#.to_owned(),
        r#"[{"replica":1},1,{"replica":{"replica":1,"shard":1,"addresses":["a:1"],"store":"fresh"}}]"#.to_owned(),
        format!(r#"[{{"replica":2}},6,{{"replica":{{"replica":2,"shard":1,"addresses":[],"store":{opening}}}}}]"#),
        r#"[{"color":1},7,{"color":{"color":1,"name":"orders","owner":0,"width":1,"shards":[1],"retention":{"max_age_secs":null,"max_bytes":5}}}]"#
            .to_owned(),
        r#"[{"color-name":"orders"},7,{"color-name":1}]"#.to_owned(),
    ];
    let snapshot: String = snapshot.iter().map(|json| line(json)).collect();
    let transaction = r#""put":[[{"color-name":"b"},{"color-name":9}]],"delete":[{"color-name":"orders"}]}"#;
    let transaction = line(&format!(r#"{{"revision":8,"durable":{},{transaction}"#, snapshot.len()));
    let (_other, read) = open_with((snapshot.clone() + &transaction).as_bytes());
    let store = read.unwrap();
    assert_eq!(block_on(store.get(&key("orders"))), Ok(None));
    assert_eq!(block_on(store.get(&key("b"))).unwrap().unwrap().version, Revision(8));

    let (folder, read) = open_with(snapshot.as_bytes());
    let store = read.unwrap();
    let mut written = Vec::new();
    journal::write_snapshot(&store.shared.read().state, &mut written).unwrap();
    assert_eq!(String::from_utf8(written).unwrap(), snapshot);
    block_on(store.commit(set("b", 9).delete(key("orders")))).unwrap();
    assert_eq!(String::from_utf8(journal_of(folder.path())).unwrap(), snapshot + &transaction);
}

#[test]
fn a_folder_is_opened_once_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path()).unwrap();
    let text = match Embedded::open(folder.path()) {
        Err(error @ OpenError::Locked { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(text.contains(&folder.path().display().to_string()), "{text}");
    drop(store);
    Embedded::open(folder.path()).unwrap();
}

#[test]
fn a_folder_is_created_with_those_above_it() {
    let above = tempfile::tempdir().unwrap();
    let folder = above.path().join("a/b");
    drop(Embedded::open(&folder).unwrap());
    assert!(folder.join("journal").is_file());
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    // Permissions do not bind root, and nobody at all may create files there.
    let folder = Path::new("/sys");
    match Embedded::open(folder) {
        Err(error @ OpenError::ReadOnly { .. }) => {
            let text = error.to_string();
            assert!(text.contains("the metadata folder /sys cannot be written"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_journal_is_replaced_when_most_of_it_is_history() {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path()).unwrap();
    let (mut longest, mut last) = (0, 0);
    for n in 1..=4000 {
        block_on(store.commit(set(&format!("k{}", n % 7), n))).unwrap();
        let now = journal_of(folder.path()).len();
        longest = longest.max(now);
        last = now;
    }
    // One transaction more than the bound may be there, for the replacement comes after the answer.
    assert!(longest < (64 << 10) + 1000, "it grew to {longest} bytes");
    assert!(last < longest, "it was never replaced");
    let expected = contents(&store);
    assert_eq!(expected.len(), 7);
    drop(store);
    assert!(!folder.path().join("journal.new").exists());
    let store = Embedded::open(folder.path()).unwrap();
    assert_eq!((contents(&store), store.shared.read().state.revision()), (expected, Revision(4000)));
}

/// A store whose thread is the test.
fn by_hand(folder: &Path) -> (Worker, Arc<Shared>) {
    let folder = Folder::lock(folder).unwrap();
    let (journal, state, _) = folder.open_journal().unwrap();
    let shared = Arc::new(Shared {
        path: folder.path().to_owned(),
        inner: RwLock::new(Inner { state, history: VecDeque::new(), stopped: None }),
        news: watch::Sender::new(()),
    });
    (Worker::new(folder, journal, Arc::clone(&shared)), shared)
}

/// Commits all of these with one wait for the disk.
fn commit(worker: &mut Worker, batch: Vec<Transaction>) -> Vec<Result<Revision, CommitError>> {
    let (jobs, answers): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .map(|transaction| {
            let (answer, answered) = oneshot::channel();
            (Job { transaction, answer }, answered)
        })
        .unzip();
    worker.commit(jobs);
    answers.into_iter().map(|mut answered| answered.try_recv().unwrap()).collect()
}

#[test]
fn a_new_journal_that_was_not_put_in_place_means_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut worker, shared) = by_hand(folder.path());
    commit(&mut worker, vec![set("a", 1)]).remove(0).unwrap();
    worker.folder().write_next(&shared.read().state).unwrap();
    // The crash comes here, or after any byte of the new journal.
    let next = fs::read(folder.path().join("journal.new")).unwrap();
    drop(worker);
    for end in 0..=next.len() {
        fs::write(folder.path().join("journal.new"), &next[..end]).unwrap();
        let store = Embedded::open(folder.path()).unwrap();
        assert_eq!(contents(&store), BTreeMap::from([("a".to_owned(), (1, 1))]));
        assert!(!folder.path().join("journal.new").exists());
    }
    // In place, it is all that is needed, and all of it is.
    for end in 0..next.len() {
        let (_folder, store) = open_with(&next[..end]);
        assert!(matches!(store, Err(OpenError::Damaged { .. })), "cut at {end}");
    }
    let (_folder, store) = open_with(&next);
    assert_eq!(contents(&store.unwrap()), BTreeMap::from([("a".to_owned(), (1, 1))]));
}

#[test]
fn transactions_that_wait_together_are_judged_in_turn_and_made_durable_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (mut worker, _shared) = by_hand(folder.path());
    let header = journal_of(folder.path()).len();
    let absent = |n| set("a", n).when_absent(key("a"));
    let answers = commit(
        &mut worker,
        vec![
            absent(1),
            absent(2),
            set("a", 3).when(key("a"), Revision(1)),
            Transaction::new().delete(key("a")),
            absent(4),
        ],
    );
    let conflict = Err(CommitError::Conflict { key: key("a") });
    assert_eq!(answers, [Ok(Revision(1)), conflict, Ok(Revision(2)), Ok(Revision(3)), Ok(Revision(4))]);
    let text = String::from_utf8(journal_of(folder.path())).unwrap();
    assert_eq!(text.lines().count(), 5);
    // One wait for all: each knew only the header to be durable.
    assert_eq!(text.matches(&format!("\"durable\":{header},")).count(), 4);
    drop(worker);
    assert_eq!(contents(&Embedded::open(folder.path()).unwrap()), BTreeMap::from([("a".to_owned(), (4, 4))]));
}

#[test]
fn a_full_disk_refuses_and_the_store_goes_on() {
    let one = set("a", 1);
    let (journal, lengths) = journal_after(std::slice::from_ref(&one));
    for bytes in 0..=journal.len() - lengths[0] {
        let folder = tempfile::tempdir().unwrap();
        let (mut worker, shared) = by_hand(folder.path());
        worker.journal.fault = Some(Fault::Full(bytes));
        let refused = commit(&mut worker, vec![one.clone()]).remove(0);
        assert!(matches!(refused, Err(CommitError::Refused { .. })), "{refused:?}");
        assert!(refused.unwrap_err().is_certain());
        assert_eq!(shared.readable().unwrap().state.len(), 0);
        assert_eq!(commit(&mut worker, vec![set("b", 2)]), [Ok(Revision(1))]);
        drop(worker);
        let store = Embedded::open(folder.path()).unwrap();
        assert_eq!(contents(&store), BTreeMap::from([("b".to_owned(), (2, 1))]));
    }
}

#[test]
fn after_a_failed_fdatasync_nothing_is_said_until_it_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut worker, shared) = by_hand(folder.path());
    commit(&mut worker, vec![set("a", 1)]).remove(0).unwrap();
    let mut watcher = Watcher { shared: Arc::clone(&shared), news: shared.news.subscribe(), seen: Revision(1) };
    worker.journal.fault = Some(Fault::Sync);
    let answers = commit(&mut worker, vec![set("a", 2), set("b", 2).when(key("b"), Revision(1))]);
    assert!(matches!(answers[0], Err(CommitError::Unknown { .. })), "{answers:?}");
    assert!(!answers[0].as_ref().unwrap_err().is_certain());
    // This one was not done, whatever became of the other.
    assert_eq!(answers[1], Err(CommitError::Conflict { key: key("b") }));
    // The old value may be wrong by now, so it is not shown either.
    assert!(matches!(shared.readable(), Err(ReadError::Unavailable { .. })));
    assert!(matches!(block_on(watcher.next()), Err(ReadError::Unavailable { .. })));
    let later = commit(&mut worker, vec![set("a", 3)]).remove(0);
    assert!(matches!(later, Err(CommitError::Unavailable { .. })), "{later:?}");
    drop(worker);
    let found = contents(&Embedded::open(folder.path()).unwrap());
    assert!([(1, 1), (2, 2)].contains(&found["a"]) && found.len() == 1, "{found:?}");
}

#[test]
fn a_watcher_that_falls_behind_is_told_so() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(folder.path()).unwrap();
        let mut slow = store.watch(Revision(0)).await.unwrap();
        let total = HISTORY as u64 + 1;
        for chunk in (1..=total).collect::<Vec<_>>().chunks(200) {
            join(chunk.iter().map(|n| store.commit(set("a", *n)))).await;
        }
        assert_eq!(slow.next().await, Ok(Event::Lagged { revision: Revision(total) }));
        // All that is kept can be told.
        let mut whole = store.watch(Revision(1)).await.unwrap();
        for n in 2..=total {
            match whole.next().await.unwrap() {
                Event::Changes(changes) => assert_eq!(changes.revision, Revision(n)),
                Event::Lagged { .. } => panic!("{n} was kept"),
            }
        }
        store.commit(set("a", 1)).await.unwrap();
        assert!(matches!(slow.next().await, Ok(Event::Changes(_))));
    });
}

#[test]
fn watchers_are_bounded_and_told_of_the_end() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(folder.path()).unwrap();
        let mut watchers = Vec::new();
        for _ in 0..MAX_WATCHERS {
            watchers.push(store.watch(Revision(0)).await.unwrap());
        }
        assert!(matches!(store.watch(Revision(0)).await, Err(ReadError::TooManyWatchers { .. })));
        // One that is gone makes room.
        watchers.pop();
        let mut last = store.watch(Revision(0)).await.unwrap();
        drop(store);
        assert!(matches!(last.next().await, Err(ReadError::Unavailable { .. })));
    });
}

#[test]
fn a_hundred_thousand_colors() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(folder.path()).unwrap();
        let id = ClusterId(Uuid::from_u128(1));
        operations::create_cluster(&store, id, &Layout::single(3, 2)).await.unwrap();
        let names: Vec<ColorName> = (0..100_000).map(|i| ColorName::new(format!("color/{i}")).unwrap()).collect();
        let place = Placement { owner: Position(0), shards: vec![flexlog_protocol::ShardId(1)] };
        let records = operations::create_colors(&store, &names, &place).await.unwrap();
        assert_eq!(records.last().unwrap().color, Color(100_000));
        drop(store);
        let store = Embedded::open(folder.path()).unwrap();
        assert_eq!(operations::find_color(&store, &names[99_999]).await.unwrap().as_ref(), records.last());
    });
}

#[derive(Clone, Debug)]
enum Act {
    Commit(Vec<(u8, u8)>, Vec<(u8, u64)>, Vec<u8>),
    Reopen,
    Cut(u8),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let conditions = proptest::collection::vec((0..6u8, 0..3u8), 0..3);
    let puts = proptest::collection::vec((0..6u8, 1..100u64), 0..4);
    let deletes = proptest::collection::vec(0..6u8, 0..3);
    let act = prop_oneof![
        8 => (conditions, puts, deletes).prop_map(|(c, p, d)| Act::Commit(c, p, d)),
        1 => Just(Act::Reopen),
        1 => any::<u8>().prop_map(Act::Cut),
    ];
    proptest::collection::vec(act, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any transactions, with the store opened again or its last transaction cut anywhere between them, do what they do
    /// to a map.
    #[test]
    fn it_is_a_map_with_a_memory(acts in acts()) {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Embedded::open(folder.path()).unwrap();
        let name = |k: u8| format!("k{k}");
        // What is there, and what was there before the last transaction with how long the journal was then.
        let mut model: Contents = BTreeMap::new();
        let mut revision = 0;
        let mut before: Option<(Contents, usize)> = None;
        for act in acts {
            match act {
                Act::Commit(conditions, puts, deletes) => {
                    let mut transaction = Transaction::new();
                    let mut wrong = None;
                    for (k, how) in conditions {
                        let version = model.get(&name(k)).map(|(_, version)| *version);
                        // Mostly right; sometimes absent or old.
                        let wanted = match how { 0 => None, 1 => version, _ => version.map(|v| v.saturating_sub(1)) };
                        if wanted != version && wrong.is_none() {
                            wrong = Some(key(&name(k)));
                        }
                        transaction.conditions.push((key(&name(k)), wanted.map(Revision)));
                    }
                    for (k, n) in &puts { transaction = transaction.put(key(&name(*k)), Color(*n)); }
                    for k in &deletes { transaction = transaction.delete(key(&name(*k))); }
                    let checked = transaction.check();
                    let length = journal_of(folder.path()).len();
                    let answer = block_on(store.commit(transaction));
                    match (checked, wrong) {
                        (Err(why), _) => {
                            prop_assert!(matches!(why, TransactionError::Empty | TransactionError::Twice(_)));
                            prop_assert_eq!(answer, Err(CommitError::Invalid(why)));
                        }
                        (Ok(()), Some(key)) => prop_assert_eq!(answer, Err(CommitError::Conflict { key })),
                        (Ok(()), None) => {
                            before = Some((model.clone(), length));
                            revision += 1;
                            prop_assert_eq!(answer, Ok(Revision(revision)));
                            for (k, n) in puts { model.insert(name(k), (n, revision)); }
                            for k in deletes { model.remove(&name(k)); }
                        }
                    }
                }
                Act::Reopen => {
                    drop(store);
                    store = Embedded::open(folder.path()).unwrap();
                }
                Act::Cut(where_to) => {
                    drop(store);
                    if let Some((old, length)) = before.take() {
                        let journal = journal_of(folder.path());
                        let end = length + usize::from(where_to) * (journal.len() - length) / 256;
                        fs::write(folder.path().join("journal"), &journal[..end]).unwrap();
                        model = old;
                        revision -= 1;
                    }
                    store = Embedded::open(folder.path()).unwrap();
                }
            }
            prop_assert_eq!(&contents(&store), &model);
        }
    }
}
