//! A store behind a connection against the common suite, over TCP and in one process; and what only a connection has:
//! breaks, lost answers, silence, bounds.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flexlog_protocol::api::Hello;
use flexlog_protocol::net::{ConnectError, Connection, FrameReader, FrameWriter, NetError, Receiver, Sender};
use flexlog_protocol::wire::Message;
use flexlog_protocol::{ClusterId, Color};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::message::{Question, Reply};
use super::*;
use crate::conformance::{self, Factory, Fixture};
use crate::embedded::{Embedded, OpenError};
use crate::{
    ColorName, CommitError, Event, Key, Kind, Metadata, Page, ReadError, Revision, Transaction, Value, Versioned, Watch,
};
use async_trait::async_trait;
use std::sync::Arc;

/// Frames over any stream, without opening words.
struct Out<W>(FrameWriter<W>);
struct In<R>(FrameReader<R>);

fn closed() -> NetError {
    NetError::Closed { peer: "the other side".to_owned() }
}

#[async_trait]
impl<M: Message, W: AsyncWrite + Unpin + Send> Sender<M> for Out<W> {
    async fn send(&mut self, batch: &mut Vec<M>) -> Result<(), NetError> {
        self.0.send(batch).await.map_err(|_| closed())
    }

    async fn finish(&mut self) -> Result<(), NetError> {
        self.0.finish().await.map_err(|_| closed())
    }
}

#[async_trait]
impl<M: Message, R: AsyncRead + Unpin + Send> Receiver<M> for In<R> {
    async fn recv(&mut self, into: &mut Vec<M>) -> Result<bool, NetError> {
        match self.0.next().await.map_err(|_| closed())? {
            Some(frame) => M::decode(frame, into).map(|()| true).map_err(|_| closed()),
            None => Ok(false),
        }
    }

    async fn discard(&mut self) {
        self.0.discard().await;
    }
}

fn framed<O: Message, I: Message>(
    read: impl AsyncRead + Unpin + Send + 'static,
    write: impl AsyncWrite + Unpin + Send + 'static,
) -> Connection<O, I> {
    Connection {
        sender: Box::new(Out(FrameWriter::new(write))),
        receiver: Box::new(In(FrameReader::new(read, 8 << 20))),
        hello: Hello::node(ClusterId::default()),
        peer: "the other side".to_owned(),
    }
}

fn over_tcp<O: Message, I: Message>(stream: TcpStream) -> Connection<O, I> {
    stream.set_nodelay(true).unwrap();
    let (read, write) = stream.into_split();
    framed(read, write)
}

/// Both ends of a connection within this process.
fn pair() -> (AskingConnection, ServingConnection) {
    let (one, other) = tokio::io::duplex(1 << 16);
    let ((read, write), (other_read, other_write)) = (tokio::io::split(one), tokio::io::split(other));
    (framed(read, write), framed(other_read, other_write))
}

/// Dials over TCP.
struct Tcp(String);

#[async_trait]
impl Dial for Tcp {
    async fn dial(&self) -> Result<AskingConnection, ConnectError> {
        let stream = TcpStream::connect(&self.0).await;
        stream.map(over_tcp).map_err(|source| ConnectError::Unreachable { address: self.0.clone(), source })
    }

    fn address(&self) -> String {
        self.0.clone()
    }
}

/// Dials within the process.
struct Local(mpsc::Sender<ServingConnection>);

#[async_trait]
impl Dial for Local {
    async fn dial(&self) -> Result<AskingConnection, ConnectError> {
        let (asking, serving) = pair();
        match self.0.send(serving).await {
            Ok(()) => Ok(asking),
            Err(_) => Err(ConnectError::Broken(closed())),
        }
    }

    fn address(&self) -> String {
        "this process".to_owned()
    }
}

/// Serves each connection that comes until it is dropped.
fn serve_each(metadata: Arc<dyn Metadata>, mut incoming: mpsc::Receiver<ServingConnection>) -> JoinSet<()> {
    let server = Arc::new(Server::new(metadata));
    let mut all = JoinSet::new();
    all.spawn(async move {
        let mut connections = JoinSet::new();
        while let Some(connection) = incoming.recv().await {
            let server = Arc::clone(&server);
            connections.spawn(async move {
                let _ = server.serve(connection).await;
            });
        }
    });
    all
}

fn local(metadata: Arc<dyn Metadata>, patience: Duration) -> (Remote, JoinSet<()>) {
    let (dial, incoming) = mpsc::channel(4);
    (Remote::new(Local(dial), patience), serve_each(metadata, incoming))
}

async fn reopened(folder: &TempDir) -> Arc<Embedded> {
    loop {
        match Embedded::open(folder.path()) {
            Ok(store) => return Arc::new(store),
            // A commit that was answered may still hold the old one, for a moment.
            Err(OpenError::Locked { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// An embedded store behind a TCP port. The process of the store is started anew to reopen it; the `Remote` stays.
struct Behind {
    folder: TempDir,
    address: String,
    server: JoinSet<()>,
    remote: Remote,
}

impl Behind {
    async fn create() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Self::serve(listener, reopened(&folder).await);
        let remote = Remote::new(Tcp(address.clone()), PATIENCE);
        Self { folder, address, server, remote }
    }

    fn serve(listener: TcpListener, store: Arc<Embedded>) -> JoinSet<()> {
        let (accepted, incoming) = mpsc::channel(4);
        let mut all = serve_each(store, incoming);
        all.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = accepted.send(over_tcp(stream)).await;
            }
        });
        all
    }
}

#[async_trait]
impl Fixture for Behind {
    fn store(&self) -> &dyn Metadata {
        &self.remote
    }

    async fn reopen(&mut self) {
        self.server.shutdown().await;
        let listener = TcpListener::bind(&self.address).await.unwrap();
        self.server = Self::serve(listener, reopened(&self.folder).await);
    }
}

struct OverTcp;

#[async_trait]
impl Factory for OverTcp {
    async fn create(&self) -> Box<dyn Fixture> {
        Box::new(Behind::create().await)
    }
}

/// An embedded store within this process; a new `Remote` each time.
struct Beside {
    folder: TempDir,
    server: JoinSet<()>,
    remote: Remote,
}

#[async_trait]
impl Fixture for Beside {
    fn store(&self) -> &dyn Metadata {
        &self.remote
    }

    async fn reopen(&mut self) {
        self.server.shutdown().await;
        (self.remote, self.server) = local(reopened(&self.folder).await, PATIENCE);
    }
}

struct InProcess;

#[async_trait]
impl Factory for InProcess {
    async fn create(&self) -> Box<dyn Fixture> {
        let folder = tempfile::tempdir().unwrap();
        let (remote, server) = local(reopened(&folder).await, PATIENCE);
        Box::new(Beside { folder, server, remote })
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn the_common_suite_over_tcp() {
    block_on(conformance::all(&OverTcp));
}

#[test]
fn the_common_suite_in_one_process() {
    block_on(conformance::all(&InProcess));
}

fn key(text: &str) -> Key {
    Key::ColorName(ColorName::new(text).unwrap())
}

fn set(text: &str, n: u64) -> Transaction {
    Transaction::new().put(key(text), Color(n))
}

/// A store whose commits wait until they are let through, and that answers reads from what was committed.
#[derive(Default)]
struct Gated {
    written: Mutex<Vec<Transaction>>,
    gate: Option<Semaphore>,
    /// Whether a commit waits.
    waiting: tokio::sync::Notify,
    broken: AtomicBool,
}

impl Gated {
    fn closed() -> Arc<Self> {
        Arc::new(Self { gate: Some(Semaphore::new(0)), ..Self::default() })
    }

    fn let_through(&self) {
        self.gate.as_ref().unwrap().add_permits(1);
    }
}

struct Never;

#[async_trait]
impl Watch for Never {
    async fn next(&mut self) -> Result<Event, ReadError> {
        std::future::pending().await
    }
}

#[async_trait]
impl Metadata for Gated {
    fn describe(&self) -> String {
        "the gated metadata".to_owned()
    }

    async fn get(&self, _: &Key) -> Result<Option<Versioned>, ReadError> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(ReadError::Unavailable { what: self.describe(), why: "it broke".to_owned() });
        }
        let n = self.written.lock().unwrap().len() as u64;
        Ok((n > 0).then_some(Versioned { version: Revision(n), value: Value::ColorName(Color(n)) }))
    }

    async fn list(&self, _: Kind, _: Option<&Key>, limit: usize) -> Result<Page, ReadError> {
        let name = |i: usize| Key::ColorName(ColorName::new(format!("{i:0250}")).unwrap());
        let found = Versioned { version: Revision(1), value: Value::ColorName(Color(1)) };
        Ok(Page { entries: (0..limit).map(|i| (name(i), found.clone())).collect(), revision: Revision(1) })
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision, CommitError> {
        if let Some(gate) = &self.gate {
            self.waiting.notify_one();
            gate.acquire().await.unwrap().forget();
        }
        let mut written = self.written.lock().unwrap();
        written.push(transaction);
        Ok(Revision(written.len() as u64))
    }

    async fn watch(&self, _: Revision) -> Result<Box<dyn Watch>, ReadError> {
        Ok(Box::new(Never))
    }
}

/// For what is to fail. Where something must go well before, it is tried again or given more.
const SHORT: Duration = Duration::from_millis(200);

#[test]
fn a_commit_without_an_answer_is_in_doubt_and_nothing_is_read_before_it_is_over() {
    block_on(async {
        let store = Gated::closed();
        let (remote, _server) = local(Arc::clone(&store) as Arc<dyn Metadata>, SHORT);
        let error = loop {
            match remote.commit(set("a", 1)).await.unwrap_err() {
                // On a busy machine even connecting may take too long.
                CommitError::Unavailable { .. } => {}
                error => break error,
            }
        };
        assert!(matches!(&error, CommitError::Unknown { .. }) && !error.is_certain(), "{error}");
        assert!(error.to_string().contains("this process"), "{error}");
        // The store would answer; but the commit is still under way there.
        let error = remote.get(&key("a")).await.unwrap_err();
        assert!(matches!(&error, ReadError::Unavailable { .. }), "{error}");
        store.let_through();
        let found = loop {
            match remote.get(&key("a")).await {
                Ok(found) => break found,
                // The machine may be slow; what is never seen is the state without it.
                Err(ReadError::Unavailable { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(found.unwrap().version, Revision(1));
    });
}

/// What comes next over a connection.
async fn hear(connection: &mut AskingConnection, heard: &mut VecDeque<MetadataAnswer>) -> Option<Reply> {
    while heard.is_empty() {
        let mut come = Vec::new();
        match connection.receiver.recv(&mut come).await {
            Ok(true) => heard.extend(come),
            Ok(false) | Err(_) => return None,
        }
    }
    heard.pop_front().map(|answer| answer.reply)
}

async fn say(connection: &mut AskingConnection, questions: impl IntoIterator<Item = Question>) {
    let mut batch: Vec<_> = (1..).zip(questions).map(|(id, question)| MetadataRequest { id, question }).collect();
    connection.sender.send(&mut batch).await.unwrap();
}

#[test]
fn an_old_connection_commits_nothing_once_there_is_a_new_one() {
    block_on(async {
        let store = Arc::new(Gated::default());
        let server = Arc::new(Server::new(Arc::clone(&store) as Arc<dyn Metadata>));
        let connect = || {
            let (asking, serving) = pair();
            let server = Arc::clone(&server);
            (asking, tokio::spawn(async move { server.serve(serving).await }))
        };
        let client = uuid::Uuid::from_u128(1);
        let begin = |dial| [Question::Begin { client, dial }];
        let ((mut old, old_end), (mut new, _new_end)) = (connect(), connect());
        let mut heard = VecDeque::new();
        say(&mut old, begin(1)).await;
        assert_eq!(hear(&mut old, &mut heard).await, Some(Reply::Begun));
        say(&mut old, [Question::Commit(set("a", 1))]).await;
        assert_eq!(hear(&mut old, &mut heard).await, Some(Reply::Committed(Revision(1))));
        say(&mut new, begin(2)).await;
        assert_eq!(hear(&mut new, &mut heard).await, Some(Reply::Begun));
        say(&mut old, [Question::Commit(set("a", 2))]).await;
        assert_eq!(hear(&mut old, &mut heard).await, None);
        assert!(matches!(old_end.await.unwrap(), Err(ServeError::Replaced { .. })));
        assert_eq!(store.written.lock().unwrap().len(), 1);
        // An older dial that comes late is of no use either; another client is not concerned.
        let (mut late, late_end) = connect();
        say(&mut late, begin(1)).await;
        assert!(matches!(late_end.await.unwrap(), Err(ServeError::Replaced { .. })));
        let (mut other, _end) = connect();
        say(&mut other, [Question::Begin { client: uuid::Uuid::from_u128(2), dial: 1 }]).await;
        assert_eq!(hear(&mut other, &mut heard).await, Some(Reply::Begun));
        say(&mut new, [Question::Commit(set("a", 3))]).await;
        assert_eq!(hear(&mut new, &mut heard).await, Some(Reply::Committed(Revision(2))));
    });
}

#[test]
fn a_commit_goes_to_its_end_when_its_connection_breaks() {
    block_on(async {
        let store = Gated::closed();
        let server = Arc::new(Server::new(Arc::clone(&store) as Arc<dyn Metadata>));
        let (mut asking, serving) = pair();
        let serving = tokio::spawn({
            let server = Arc::clone(&server);
            async move { server.serve(serving).await }
        });
        let client = uuid::Uuid::from_u128(1);
        say(&mut asking, [Question::Begin { client, dial: 1 }, Question::Commit(set("a", 1))]).await;
        store.waiting.notified().await;
        drop(asking);
        let _ = serving.await.unwrap();
        // The next connection begins behind it.
        let (mut next, serving) = pair();
        tokio::spawn(async move { server.serve(serving).await });
        say(&mut next, [Question::Begin { client, dial: 2 }, Question::Get(key("a"))]).await;
        let mut heard = VecDeque::new();
        {
            let mut first = pin!(hear(&mut next, &mut heard));
            let early = std::future::poll_fn(|context| std::task::Poll::Ready(first.as_mut().poll(context))).await;
            assert!(early.is_pending());
            store.let_through();
            assert_eq!(first.await, Some(Reply::Begun));
        }
        let Some(Reply::Found(Some(found))) = hear(&mut next, &mut heard).await else { panic!("{heard:?}") };
        assert_eq!(found.version, Revision(1));
    });
}

#[test]
fn what_is_not_allowed_ends_the_connection_in_words() {
    block_on(async {
        let refused = async |questions: Vec<Question>| {
            let (mut asking, serving) = pair();
            let server = Server::new(Arc::new(Gated::default()));
            let begin = Question::Begin { client: uuid::Uuid::from_u128(1), dial: 1 };
            let questions = questions.into_iter().map(|q| if q == Question::Ping { begin.clone() } else { q });
            say(&mut asking, questions).await;
            server.serve(serving).await.unwrap_err().to_string()
        };
        let begin = Question::Ping;
        assert!(refused(vec![Question::Get(key("a"))]).await.contains("before it has said who it is"));
        assert!(refused(vec![begin.clone(), begin.clone()]).await.contains("says twice"));
        assert!(refused(vec![begin.clone(), Question::Next { watch: 9 }]).await.contains("not there"));
        let watch = Question::Watch { after: Revision(0) };
        let next = Question::Next { watch: 2 };
        let greedy = vec![begin, watch, next.clone(), next.clone(), next.clone()];
        assert!(refused(greedy).await.contains("while it waits for others"));
    });
}

#[test]
fn nobody_there_is_said_with_the_address() {
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let remote = Remote::new(Tcp(address.clone()), SHORT);
        let unreadable = remote.get(&key("a")).await.unwrap_err();
        assert!(matches!(&unreadable, ReadError::Unavailable { why, .. } if why.contains(&address)), "{unreadable}");
        // Nothing was sent, so this is sure.
        let refused = remote.commit(set("a", 1)).await.unwrap_err();
        assert!(matches!(&refused, CommitError::Unavailable { why, .. } if why.contains(&address)), "{refused}");
        assert!(remote.watch(Revision(0)).await.is_err());
        assert!(remote.list(Kind::Shard, None, 1).await.is_err());
    });
}

#[test]
fn one_that_takes_connections_and_says_nothing_is_given_up() {
    block_on(async {
        let (dial, mut incoming) = mpsc::channel(4);
        let silent = tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Some(connection) = incoming.recv().await {
                kept.push(connection);
            }
        });
        let remote = Remote::new(Local(dial), SHORT);
        assert!(matches!(remote.get(&key("a")).await, Err(ReadError::Unavailable { .. })));
        assert!(matches!(remote.commit(set("a", 1)).await, Err(CommitError::Unavailable { .. })));
        silent.abort();
    });
}

#[test]
fn a_connection_that_falls_silent_under_a_watch_is_replaced() {
    block_on(async {
        let (dial, mut dialed) = mpsc::channel::<ServingConnection>(4);
        let remote = Remote::new(Local(dial), 8 * SHORT);
        let watching = async {
            let mut watch = remote.watch(Revision(7)).await.unwrap();
            watch.next().await
        };
        let serving = async {
            // The first one answers the first words and the watch, and nothing after that, pings included.
            let mut first = dialed.recv().await.unwrap();
            let mut asked = Vec::new();
            while asked.len() < 2 {
                let before = asked.len();
                assert!(first.receiver.recv(&mut asked).await.unwrap());
                let reply = |request: &MetadataRequest| MetadataAnswer {
                    id: request.id,
                    reply: if request.id == 0 { Reply::Begun } else { Reply::Watching },
                };
                first.sender.send(&mut asked[before..].iter().map(reply).collect()).await.unwrap();
            }
            // So there is a second one, which goes on where the watch was.
            let mut second = dialed.recv().await.unwrap();
            let mut asked = Vec::new();
            loop {
                let before = asked.len();
                assert!(second.receiver.recv(&mut asked).await.unwrap());
                for MetadataRequest { id, question } in asked[before..].iter().cloned() {
                    let reply = match question {
                        Question::Begin { dial, .. } => {
                            assert_eq!(dial, 2);
                            Reply::Begun
                        }
                        Question::Watch { after } => {
                            assert_eq!(after, Revision(7));
                            Reply::Watching
                        }
                        Question::Next { .. } => {
                            let reply = Reply::Lagged { revision: Revision(9) };
                            second.sender.send(&mut vec![MetadataAnswer { id, reply }]).await.unwrap();
                            return (first, second);
                        }
                        other => panic!("{other:?}"),
                    };
                    second.sender.send(&mut vec![MetadataAnswer { id, reply }]).await.unwrap();
                }
            }
        };
        let (event, _connections) = tokio::join!(watching, serving);
        assert_eq!(event, Ok(Event::Lagged { revision: Revision(9) }));
    });
}

#[test]
fn a_watch_goes_on_after_the_store_was_opened_again() {
    block_on(async {
        let mut fixture = Behind::create().await;
        let first = fixture.store().commit(set("a", 1)).await.unwrap();
        let mut watch = fixture.store().watch(first).await.unwrap();
        fixture.reopen().await;
        // A commit over a connection that broke unseen would be in doubt; a read is asked again.
        assert_eq!(fixture.store().get(&key("a")).await.unwrap().map(|found| found.version), Some(first));
        let second = fixture.store().commit(set("a", 2)).await.unwrap();
        match watch.next().await.unwrap() {
            Event::Changes(changes) => assert_eq!(changes.revision, second),
            Event::Lagged { revision } => panic!("lagged at {revision}"),
        }
        // Behind what the new process remembers.
        let mut behind = fixture.store().watch(Revision(0)).await.unwrap();
        assert_eq!(behind.next().await, Ok(Event::Lagged { revision: second }));
    });
}

#[test]
fn watches_are_bounded_and_make_room_when_dropped() {
    block_on(async {
        let (remote, _server) = local(Arc::new(Gated::default()), PATIENCE);
        let mut watches = Vec::new();
        for _ in 0..MAX_WATCHES {
            watches.push(remote.watch(Revision(0)).await.unwrap());
        }
        let full = remote.watch(Revision(0)).await.map(|_| ());
        assert!(matches!(full, Err(ReadError::TooManyWatchers { limit: MAX_WATCHES, .. })), "{full:?}");
        for _ in 0..3 {
            watches.pop();
            watches.push(remote.watch(Revision(0)).await.unwrap());
        }
    });
}

#[test]
fn a_long_page_is_made_shorter() {
    block_on(async {
        let (remote, _server) = local(Arc::new(Gated::default()), PATIENCE);
        let page = remote.list(Kind::ColorName, None, usize::MAX).await.unwrap();
        let bytes: usize = page.entries.iter().map(|entry| serde_json::to_vec(entry).unwrap().len()).sum();
        assert!(bytes <= PAGE_BYTES && bytes > PAGE_BYTES - 1000, "{bytes}");
        assert_eq!(remote.list(Kind::ColorName, None, 7).await.unwrap().entries.len(), 7);
        assert!(remote.list(Kind::ColorName, None, 0).await.unwrap().entries.is_empty());
    });
}

#[test]
fn errors_of_the_store_come_through() {
    block_on(async {
        let store = Arc::new(Gated::default());
        let (remote, _server) = local(Arc::clone(&store) as Arc<dyn Metadata>, PATIENCE);
        store.broken.store(true, Ordering::SeqCst);
        let what = store.describe();
        assert_eq!(remote.get(&key("a")).await, Err(ReadError::Unavailable { what, why: "it broke".to_owned() }));
    });
}

#[test]
fn more_requests_than_may_be_under_way_are_all_answered() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (remote, _server) = local(reopened(&folder).await, PATIENCE);
        let names: Vec<String> = (0..4 * MAX_IN_FLIGHT).map(|i| format!("n{i}")).collect();
        let done = conformance::join(names.iter().map(|name| remote.commit(set(name, 1)))).await;
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        let read = conformance::join(names.iter().map(|name| async { remote.get(&key(name)).await })).await;
        assert!(read.into_iter().all(|found| found.unwrap().is_some()));
    });
}

/// The futures may be moved between threads, and run anywhere.
#[test]
fn serving_is_send() {
    fn is_send(_: impl Send) {}
    let server = Server::new(Arc::new(Gated::default()));
    block_on(async {
        let (_asking, serving) = pair();
        is_send(server.serve(serving));
    });
}
