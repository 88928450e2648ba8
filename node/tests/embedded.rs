//! The embedded cluster, spoken to in the protocol's own words over an in-process connection.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "a test that panics has failed")]

use std::sync::Arc;

use flexlog_node::embedded::{Embedded, Options};
use flexlog_protocol::api::{Answer, AppendRequest, ColorInfo, Hello, Placement, Request, RetentionChange, Role};
use flexlog_protocol::net::{ClientConnection, Connect};
use flexlog_protocol::{Append, Assign, ClusterId, Record, SeqNum, SessionId, ShardId, Token, wire};
use uuid::Uuid;

struct Talk {
    connection: ClientConnection,
    waiting: Vec<Answer>,
}

impl Talk {
    async fn to(cluster: &Embedded) -> Self {
        let hello = Hello { version: wire::VERSION, cluster: ClusterId(Uuid::nil()), role: Role::Client };
        let connection = cluster.ready().connector.connect(&hello).await.unwrap();
        Self { connection, waiting: vec![] }
    }

    async fn say(&mut self, request: Request) {
        self.connection.sender.send(&mut vec![request]).await.unwrap();
    }

    async fn hear(&mut self) -> Answer {
        while self.waiting.is_empty() {
            assert!(self.connection.receiver.recv(&mut self.waiting).await.unwrap(), "the node has closed");
        }
        self.waiting.remove(0)
    }

    async fn ask(&mut self, request: Request) -> Answer {
        self.say(request).await;
        self.hear().await
    }

    async fn color(&mut self, name: &str) -> ColorInfo {
        match self
            .ask(Request::Lookup {
                id: 1,
                name: name.into(),
                create: Some(Placement::default()),
                retention: RetentionChange::default(),
            })
            .await
        {
            Answer::Color { info, .. } => info,
            other => panic!("{other:?}"),
        }
    }

    async fn session(&mut self, shard: ShardId, nonce: u128) -> SessionId {
        match self.ask(Request::OpenSession { id: 2, shard, nonce: Uuid::from_u128(nonce) }).await {
            Answer::SessionOpened { session, .. } => session,
            other => panic!("{other:?}"),
        }
    }

    /// Appends one record under each seq, and returns the numbers as they come: seq and number.
    async fn append(&mut self, info: &ColorInfo, session: SessionId, seqs: std::ops::Range<u64>) -> Vec<(u64, SeqNum)> {
        let shard = &info.shards[0];
        let appends = seqs.clone().map(|seq| {
            let token = Token { shard: shard.shard, session, seq };
            let record = Record::new(format!("record {seq}")).unwrap();
            Arc::new(Append::new(token, info.color, None, vec![record]).unwrap())
        });
        let request = AppendRequest {
            shard: shard.shard,
            session,
            low: seqs.start,
            members: shard.view.members.clone(),
            appends: appends.collect(),
        };
        self.say(Request::Append(Arc::new(request))).await;
        let mut numbers = Vec::new();
        // Each member's word counts once for each append.
        let mut words = 0;
        while words < (seqs.end - seqs.start) * shard.view.members.len() as u64 {
            match self.hear().await {
                Answer::Appended(appended) => {
                    let each = appended.runs.iter().flat_map(Assign::each);
                    let each: Vec<_> = each.map(|(token, n)| (token.seq, n)).collect();
                    words += (each.len() * appended.members.len()) as u64;
                    numbers.extend(each);
                }
                other => panic!("{other:?}"),
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    async fn payload(&mut self, info: &ColorInfo, number: SeqNum) -> String {
        match self.ask(Request::Read { id: 3, color: info.color, number, wait_micros: 1_000_000 }).await {
            Answer::Record { record, .. } => String::from_utf8(record.payload().to_vec()).unwrap(),
            other => panic!("{number}: {other:?}"),
        }
    }
}

fn on_tmpfs() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("flexlog-test-").tempdir_in("/dev/shm").unwrap()
}

fn on_disk() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("flexlog-test-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[tokio::test]
async fn appends_are_numbered_in_order_and_read_back_after_a_restart() {
    for folder in [on_tmpfs(), on_disk()] {
        let options = Options::new(folder.path());
        let cluster = Embedded::start(options.clone()).unwrap();
        let mut talk = Talk::to(&cluster).await;
        let info = talk.color("orders").await;
        let session = talk.session(info.shards[0].shard, 1).await;
        let numbers = talk.append(&info, session, 1..101).await;
        let first = numbers[0].1;
        let expected: Vec<_> = (0..100u64).map(|i| (i + 1, first.plus(i as u32).unwrap())).collect();
        assert_eq!(numbers, expected);
        assert_eq!(talk.payload(&info, first.plus(41).unwrap()).await, "record 42");
        cluster.stop();

        let cluster = Embedded::start(options).unwrap();
        let mut talk = Talk::to(&cluster).await;
        let again = talk.color("orders").await;
        assert_eq!(again.color, info.color);
        assert_eq!(talk.payload(&again, first.plus(99).unwrap()).await, "record 100");
        assert_eq!(talk.session(info.shards[0].shard, 1).await, session, "the session is still open");
        let retried = talk.append(&again, session, 1..101).await;
        assert_eq!(retried, expected, "a retry is answered with the numbers it has");
        let more = talk.append(&again, session, 101..102).await;
        assert!(more[0].1.epoch() > first.epoch(), "numbers go on in a fresh epoch");
        assert_eq!(more[0].1.counter(), 0);
        let hole =
            talk.ask(Request::Read { id: 3, color: info.color, number: first.plus(100).unwrap(), wait_micros: 0 });
        assert_eq!(hole.await, Answer::Hole { id: 3 }, "the old epoch has ended");
    }
}

#[tokio::test]
async fn numbers_go_on_when_an_epoch_is_used_up() {
    let folder = on_tmpfs();
    let options = Options { numbers_per_epoch: 10, ..Options::new(folder.path()) };
    let cluster = Embedded::start(options).unwrap();
    let mut talk = Talk::to(&cluster).await;
    let info = talk.color("orders").await;
    let session = talk.session(info.shards[0].shard, 1).await;
    let mut all = Vec::new();
    for batch in 0..10 {
        all.extend(talk.append(&info, session, batch * 7 + 1..batch * 7 + 8).await);
    }
    assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].1), "{all:?}");
    assert!(all.iter().all(|(_, number)| number.counter() < 10));
    assert!(all[69].1.epoch() > all[0].1.epoch());
    for (seq, number) in all {
        assert_eq!(talk.payload(&info, number).await, format!("record {seq}"));
    }
}
