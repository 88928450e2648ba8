//! The store against the common suite and a real etcd: killed, stopped, compacted, of another format. Each test has a
//! server of its own, in a temporary folder, on free ports of the loopback.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use flexlog_protocol::Color;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

use super::*;
use crate::conformance::{self, Factory, Fixture};
use crate::{ColorName, Event};

/// An etcd of one member. Killed when dropped.
struct Server {
    folder: TempDir,
    ports: [u16; 2],
    child: Child,
}

fn free_ports() -> [u16; 2] {
    let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

fn spawn(folder: &Path, [client, peer]: [u16; 2]) -> Child {
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    Command::new("etcd")
        .args(["--name", "one", "--log-level", "error", "--data-dir"])
        .arg(folder.join("data"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("one={peer}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

impl Server {
    async fn start() -> Self {
        loop {
            let folder = tempfile::tempdir().unwrap();
            let ports = free_ports();
            let child = spawn(folder.path(), ports);
            let mut server = Self { folder, ports, child };
            if server.is_ready().await {
                return server;
            }
        }
    }

    /// Waits until it answers; `false` where it ended, as when somebody else took a port.
    async fn is_ready(&mut self) -> bool {
        loop {
            match Etcd::open(self.options("is-ready")).await {
                Ok(_) => return true,
                Err(_) if self.child.try_wait().unwrap().is_some() => return false,
                Err(_) => {}
            }
        }
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    fn options(&self, prefix: &str) -> Options {
        Options::new([self.endpoint()], prefix)
    }

    async fn open(&self) -> Etcd {
        Etcd::open(self.options("flexlog/test")).await.unwrap()
    }

    /// As `kill -9`.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    async fn start_again(&mut self) {
        self.child = spawn(self.folder.path(), self.ports);
        assert!(self.is_ready().await);
    }

    /// Stops it where it is; all of its threads have stopped when this returns.
    fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a test that needs etcd, or says that it does not.
fn with_etcd(test: impl Future<Output = ()>) {
    let there = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if let Err(error) = there {
        let why = format!("SKIPPED: no etcd ({error}): apt-get install etcd-server");
        assert!(std::env::var("FLEXLOG_REQUIRE_ALL").as_deref() != Ok("1"), "{why}");
        eprintln!("{why}");
        return;
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

struct Kept {
    options: Options,
    store: Etcd,
}

#[async_trait]
impl Fixture for Kept {
    fn store(&self) -> &dyn Metadata {
        &self.store
    }

    async fn reopen(&mut self) {
        self.store = Etcd::open(self.options.clone()).await.unwrap();
    }
}

/// A prefix of its own for each.
struct Prefixes<'a>(&'a Server, AtomicU64);

#[async_trait]
impl Factory for Prefixes<'_> {
    async fn create(&self) -> Box<dyn Fixture> {
        let options = self.0.options(&format!("flexlog/{}", self.1.fetch_add(1, Ordering::SeqCst)));
        Box::new(Kept { store: Etcd::open(options.clone()).await.unwrap(), options })
    }
}

#[test]
fn the_common_suite() {
    with_etcd(async {
        let server = Server::start().await;
        conformance::all(&Prefixes(&server, AtomicU64::new(0))).await;
    });
}

fn key(text: &str) -> Key {
    Key::ColorName(ColorName::new(text).unwrap())
}

fn set(text: &str, n: u64) -> Transaction {
    Transaction::new().put(key(text), Color(n))
}

fn number(found: &Versioned) -> u64 {
    Color::try_from(found.value.clone()).unwrap().0
}

/// What is there, as soon as etcd answers.
async fn patient_get(store: &Etcd, text: &str) -> Option<Versioned> {
    loop {
        match store.get(&key(text)).await {
            Ok(found) => return found,
            Err(ReadError::Unavailable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn killed_in_the_middle_it_keeps_what_it_answered_and_watches_go_on() {
    with_etcd(async {
        let mut server = Server::start().await;
        let store = server.open().await;
        let mut told = store.watch(Revision(0)).await.unwrap();
        let (counted, mut counting) = tokio::sync::watch::channel(0u64);
        let commits = async {
            let mut n = 0;
            loop {
                match store.commit(set("n", n + 1)).await {
                    Ok(_) => n += 1,
                    Err(error) => return (n, error),
                }
                counted.send_replace(n);
            }
        };
        let kill = async {
            counting.wait_for(|n| *n >= 20).await.unwrap();
            server.kill();
        };
        let ((answered, error), ()) = tokio::join!(commits, kill);
        assert!(matches!(error, CommitError::Unknown { .. } | CommitError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains(&server.endpoint()), "{error}");
        // Nobody listens there now: nothing was sent, and that is known.
        let impatient = Options { patience: Duration::from_millis(300), ..server.options("flexlog/test") };
        let refused = Etcd::open(impatient).await.map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains(&server.endpoint()) && refused.contains("no etcd answers there"), "{refused}");
        server.start_again().await;

        let found = number(&patient_get(&store, "n").await.unwrap());
        let possible = if error.is_certain() { answered..=answered } else { answered..=answered + 1 };
        assert!(possible.contains(&found), "{found} is there, {answered} were answered, then {error}");
        // The same watch tells all of it, over the break.
        for n in 1..=found {
            match told.next().await.unwrap() {
                Event::Changes(changes) => {
                    assert_eq!(changes.changes[0].value, Some(Value::ColorName(Color(n))));
                }
                Event::Lagged { revision } => panic!("lagged at {revision}"),
            }
        }
    });
}

#[test]
fn a_commit_to_a_stopped_etcd_is_in_doubt_and_the_doubt_ends_before_anything_is_read() {
    with_etcd(async {
        let server = Server::start().await;
        let (timeout, patience) = (Duration::from_millis(300), Duration::from_millis(600));
        let store = loop {
            // A busy machine may need more than that.
            match Etcd::open(Options { timeout, patience, ..server.options("flexlog/test") }).await {
                Ok(store) => break store,
                Err(OpenError::Read(_)) => {}
                Err(error) => panic!("{error}"),
            }
        };
        for round in 1..=5 {
            let before = patient_get(&store, "a").await.map(|found| found.version);
            server.stop();
            let error = store.commit(set("a", round)).await.unwrap_err();
            assert!(matches!(error, CommitError::Unknown { .. }), "{error}");
            assert!(error.to_string().contains(&server.endpoint()), "{error}");
            let unread = store.get(&key("a")).await.unwrap_err();
            assert!(unread.to_string().contains("in doubt"), "{unread}");
            server.go_on();
            // From the first answer on it is settled: done, or never to be done.
            let found = patient_get(&store, "a").await;
            let now = found.as_ref().map(|found| found.version);
            assert_eq!(now != before, found.as_ref().is_some_and(|found| number(found) == round));
            let transaction = Transaction { conditions: vec![(key("a"), now)], ..set("a", 100 + round) };
            loop {
                match store.commit(transaction.clone()).await {
                    Ok(_) => break,
                    Err(CommitError::Unavailable { .. } | CommitError::Unknown { .. })
                        if patient_get(&store, "a").await.map(|found| found.version) == now => {}
                    Err(CommitError::Unknown { .. }) => break,
                    Err(error) => panic!("what was in doubt came later: {error}"),
                }
            }
        }
    });
}

#[test]
fn what_was_sent_before_a_doubt_ended_is_not_done_any_more() {
    with_etcd(async {
        let server = Server::start().await;
        let (store, other) = (server.open().await, server.open().await);
        store.commit(set("a", 1)).await.unwrap();
        // It is on its way, and its caller has given up.
        let late = store.shared.txn(&set("a", 2), store.shared.gate.load(Ordering::SeqCst)).unwrap();
        drop(Doubt { shared: &store.shared, is_over: false });
        assert_eq!(number(&store.get(&key("a")).await.unwrap().unwrap()), 1);
        let deadline = store.shared.deadline();
        assert!(!store.shared.rpc.txn(late, deadline, Fault::was_not_sent).await.unwrap().succeeded());
        assert_eq!(number(&store.get(&key("a")).await.unwrap().unwrap()), 1);
        // The others only notice that the gate has moved.
        other.commit(set("a", 3)).await.unwrap();
        store.commit(set("a", 4)).await.unwrap();
        // A caller that stops waiting leaves a doubt as well.
        {
            let mut dropped = std::pin::pin!(store.commit(set("a", 5)));
            std::future::poll_fn(|context| {
                let _ = dropped.as_mut().poll(context);
                std::task::Poll::Ready(())
            })
            .await;
        }
        assert_eq!(store.shared.doubts.load(Ordering::SeqCst), 2);
        let now = store.get(&key("a")).await.unwrap().unwrap();
        assert_eq!(*store.shared.settled.lock().await, 2);
        store.commit(set("a", 6).when(key("a"), now.version)).await.unwrap();
    });
}

#[test]
fn what_was_compacted_is_lagged() {
    with_etcd(async {
        let server = Server::start().await;
        let store = server.open().await;
        let first = store.commit(set("a", 1)).await.unwrap();
        let mut newest = first;
        for n in 2..10 {
            newest = store.commit(set("a", n)).await.unwrap();
        }
        let mut raw = etcd_client::Client::connect([server.endpoint()], None).await.unwrap();
        raw.compact(i64::try_from(newest.0).unwrap(), None).await.unwrap();
        let mut watch = store.watch(first).await.unwrap();
        assert_eq!(watch.next().await, Ok(Event::Lagged { revision: newest }));
        let next = store.commit(set("a", 10)).await.unwrap();
        assert!(matches!(watch.next().await, Ok(Event::Changes(changes)) if changes.revision == next));
    });
}

#[test]
fn another_format_is_refused_whatever_is_asked() {
    with_etcd(async {
        let server = Server::start().await;
        let store = server.open().await;
        store.commit(set("a", 1)).await.unwrap();
        let mut raw = etcd_client::Client::connect([server.endpoint()], None).await.unwrap();
        raw.put(store.shared.keys.gate(), "99", None).await.unwrap();
        let words = format!("format 99, and this program knows {FORMAT_VERSION} only");
        let said = [
            store.get(&key("a")).await.unwrap_err().to_string(),
            store.list(Kind::Shard, None, 1).await.unwrap_err().to_string(),
            Etcd::open(server.options("flexlog/test")).await.map(|_| ()).unwrap_err().to_string(),
            store.watch(Revision(0)).await.map(|_| ()).unwrap_err().to_string(),
        ];
        for said in said {
            assert!(said.contains(&words) && said.contains(&server.endpoint()), "{said}");
        }
        let refused = store.commit(set("a", 2)).await.unwrap_err();
        assert!(refused.is_certain() && refused.to_string().contains(&words), "{refused}");
        // A doubt does not write over it.
        drop(Doubt { shared: &store.shared, is_over: false });
        assert!(store.get(&key("a")).await.is_err());
        assert_eq!(raw.get(store.shared.keys.gate(), None).await.unwrap().kvs()[0].value(), b"99");
        raw.delete(store.shared.keys.gate(), None).await.unwrap();
        assert!(store.get(&key("a")).await.unwrap_err().to_string().contains("format mark is gone"));
    });
}

#[test]
fn what_others_wrote_there_is_named() {
    with_etcd(async {
        let server = Server::start().await;
        let store = server.open().await;
        let mut raw = etcd_client::Client::connect([server.endpoint()], None).await.unwrap();
        raw.put("flexlog/test/3/7", "x", None).await.unwrap();
        let said = store.list(Kind::Replica, None, 10).await.unwrap_err().to_string();
        assert!(said.contains("'flexlog/test/3/7'"), "{said}");
        for bad in ["x", r#"{"position":{"position":0}}"#, r#"{"color-name":0}"#, r#"{"cluster":1}"#] {
            raw.put(store.shared.keys.of(&key("a")), bad, None).await.unwrap();
            let said = store.get(&key("a")).await.unwrap_err().to_string();
            assert!(said.contains("the color name 'a'"), "{said}");
        }
    });
}

#[test]
fn one_of_several_endpoints_is_enough() {
    with_etcd(async {
        let server = Server::start().await;
        let nobody = format!("http://127.0.0.1:{}", free_ports()[0]);
        let store = Etcd::open(Options::new([nobody, server.endpoint()], "two")).await.unwrap();
        for n in 1..=30 {
            store.commit(set("a", n)).await.unwrap();
            assert_eq!(number(&store.get(&key("a")).await.unwrap().unwrap()), n);
        }
    });
}

#[test]
fn a_transaction_that_finds_nothing_to_delete_has_its_place_all_the_same() {
    with_etcd(async {
        let server = Server::start().await;
        let store = server.open().await;
        let first = store.commit(set("a", 1)).await.unwrap();
        let mut watch = store.watch(first).await.unwrap();
        let second = store.commit(Transaction::new().delete(key("never there"))).await.unwrap();
        assert!(second > first);
        let nothing = crate::Changes { revision: second, changes: Vec::new() };
        assert_eq!(watch.next().await, Ok(Event::Changes(Arc::new(nothing))));
    });
}

#[test]
fn the_largest_transaction_fits() {
    with_etcd(async {
        let server = Server::start().await;
        let store = server.open().await;
        let names: Vec<String> = (0..MAX_OPERATIONS).map(|i| format!("n{i}")).collect();
        let whole =
            || names.iter().fold(Transaction::new(), |t, name| t.when_absent(key(name)).put(key(name), Color(1)));
        store.commit(whole()).await.unwrap();
        assert_eq!(store.commit(whole()).await, Err(CommitError::Conflict { key: key("n0") }));
        let all = names.iter().fold(Transaction::new(), |t, name| t.delete(key(name)));
        store.commit(all).await.unwrap();
        assert_eq!(store.get(&key("n0")).await, Ok(None));
    });
}

#[test]
fn options_that_cannot_be_right_are_refused_in_words() {
    let said = |endpoints: &[&str], prefix: &str| {
        let options = Options::new(endpoints.iter().copied(), prefix);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        match runtime.block_on(Etcd::open(options)) {
            Err(error @ OpenError::Options { .. }) => error.to_string(),
            other => panic!("{:?}", other.map(|_| ())),
        }
    };
    assert!(said(&[], "p").contains("no endpoints"));
    assert!(said(&["127.0.0.1:2379"], "p").contains("must begin with http://"));
    assert!(said(&["https://127.0.0.1:2379"], "p").contains("TLS"));
    assert!(said(&["http://127.0.0.1:2379"], "").contains("prefix"));
    assert!(said(&["http://127.0.0.1:2379", "http://a b"], "p").contains("'p'"));
}
