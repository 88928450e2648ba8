//! The side that keeps the metadata.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use flexlog_protocol::net::{Connection, NetError, Receiver};
use tokio::sync::{RwLock, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use uuid::Uuid;

use super::message::{Failure, MetadataAnswer, MetadataRequest, Question, Reply};
use super::{MAX_IN_FLIGHT, MAX_WATCHES, PAGE_BYTES, ServingConnection};
use crate::key::{Key, Kind};
use crate::metadata::{Event, MAX_PAGE, Metadata, Page, ReadError, Watch};

/// Why a connection was not served to its end.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The connection broke, or what came is not the protocol.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The other side may not say that.
    #[error("{peer} {what}: is it of the same version?")]
    Protocol {
        /// The other side's address.
        peer: String,
        /// What it did.
        what: &'static str,
    },
    /// A later connection of the same process has taken this one's place.
    #[error("{peer} has connected anew; this connection of it is of no use any more")]
    Replaced {
        /// The other side's address.
        peer: String,
    },
}

/// The dial of a client's newest connection. A commit holds it for reading, so that it does not change meanwhile.
type Line = Arc<RwLock<u64>>;

/// Serves a store to other processes.
pub struct Server {
    metadata: Arc<dyn Metadata>,
    /// Of the clients that have a connection, or a commit under way.
    lines: Mutex<BTreeMap<Uuid, Weak<RwLock<u64>>>>,
}

impl Server {
    /// Serves `metadata`. One server for all connections: it tells an old connection of a process from its new one.
    #[must_use]
    pub fn new(metadata: Arc<dyn Metadata>) -> Self {
        Self { metadata, lines: Mutex::default() }
    }

    /// Serves one connection until the other side has finished. May run on any thread of a tokio runtime.
    ///
    /// Commits that are under way when this ends, or is dropped, are still made.
    ///
    /// # Errors
    /// Any [`ServeError`]; all of them are about this connection alone.
    pub async fn serve(&self, connection: ServingConnection) -> Result<(), ServeError> {
        let Connection { mut sender, mut receiver, peer, .. } = connection;
        let (answers, mut outbox) = mpsc::channel(MAX_IN_FLIGHT);
        let write = async {
            let mut batch = Vec::new();
            while outbox.recv_many(&mut batch, MAX_IN_FLIGHT).await > 0 {
                sender.send(&mut batch).await?;
            }
            sender.finish().await
        };
        let conversation = Conversation {
            server: self,
            peer,
            line: None,
            answers,
            places: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            tasks: JoinSet::new(),
            watches: HashMap::new(),
        };
        tokio::select! {
            heard = conversation.run(&mut *receiver) => heard,
            written = write => Ok(written?),
        }
    }

    fn line(&self, client: Uuid) -> Line {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get(&client).and_then(Weak::upgrade) {
            return line;
        }
        lines.retain(|_, line| line.strong_count() > 0);
        let line = Line::default();
        lines.insert(client, Arc::downgrade(&line));
        line
    }
}

/// What is known of one connection.
struct Conversation<'a> {
    server: &'a Server,
    peer: String,
    /// Whose it is, and which of its connections; `None` before it said so.
    line: Option<(Line, u64)>,
    answers: mpsc::Sender<MetadataAnswer>,
    /// One for each request that may be under way.
    places: Arc<Semaphore>,
    /// Reads and watches. They end with the conversation.
    tasks: JoinSet<()>,
    watches: HashMap<u64, Watching>,
}

/// A watch, and where to tell it that somebody waits for its next event.
struct Watching {
    wanted: mpsc::Sender<u64>,
    task: AbortHandle,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Conversation<'_> {
    async fn run(mut self, receiver: &mut dyn Receiver<MetadataRequest>) -> Result<(), ServeError> {
        let mut batch = Vec::new();
        while receiver.recv(&mut batch).await? {
            for MetadataRequest { id, question } in batch.drain(..) {
                self.take(id, question).await?;
            }
            while self.tasks.try_join_next().is_some() {}
        }
        Ok(())
    }

    fn wrong<T>(&self, what: &'static str) -> Result<T, ServeError> {
        Err(ServeError::Protocol { peer: self.peer.clone(), what })
    }

    async fn answer(&self, id: u64, reply: Reply) {
        // Whoever writes them has ended where this fails, and so does the conversation.
        let _ = self.answers.send(MetadataAnswer { id, reply }).await;
    }

    async fn take(&mut self, id: u64, question: Question) -> Result<(), ServeError> {
        let Some((line, dial)) = &self.line else {
            return match question {
                Question::Begin { client, dial } => self.begin(id, client, dial).await,
                _ => self.wrong("asks before it has said who it is"),
            };
        };
        match question {
            Question::Begin { .. } => return self.wrong("says twice who it is"),
            Question::Ping => self.answer(id, Reply::Pong).await,
            Question::Commit(transaction) => {
                let (line, dial) = (Arc::clone(line), *dial);
                let metadata = Arc::clone(&self.server.metadata);
                let Some(place) = self.place().await else { return Ok(()) };
                let current = line.read_owned().await;
                if *current != dial {
                    return Err(ServeError::Replaced { peer: self.peer.clone() });
                }
                let answers = self.answers.clone();
                // Not one of `tasks`: it goes to its end, so that the next connection can wait for that.
                tokio::spawn(async move {
                    let reply = match metadata.commit(transaction).await {
                        Ok(revision) => Reply::Committed(revision),
                        Err(error) => Reply::NotCommitted(Failure::new(error, metadata.describe())),
                    };
                    drop((current, metadata));
                    let _ = answers.send(MetadataAnswer { id, reply }).await;
                    drop(place);
                });
            }
            Question::Get(_) | Question::List { .. } => {
                let Some(place) = self.place().await else { return Ok(()) };
                let (metadata, answers) = (Arc::clone(&self.server.metadata), self.answers.clone());
                self.tasks.spawn(async move {
                    let reply = read(&*metadata, question).await.unwrap_or_else(Reply::NotRead);
                    drop(metadata);
                    let _ = answers.send(MetadataAnswer { id, reply }).await;
                    drop(place);
                });
            }
            Question::Watch { after } => {
                if self.watches.contains_key(&id) {
                    return self.wrong("starts two watches of one name");
                }
                let reply = if self.watches.len() >= MAX_WATCHES {
                    let what = format!("a connection to {}", self.server.metadata.describe());
                    Reply::NotRead(ReadError::TooManyWatchers { what, limit: MAX_WATCHES })
                } else {
                    match self.server.metadata.watch(after).await {
                        Ok(watch) => {
                            let (wanted, wants) = mpsc::channel(1);
                            let task = self.tasks.spawn(tell(watch, wants, self.answers.clone()));
                            self.watches.insert(id, Watching { wanted, task });
                            Reply::Watching
                        }
                        Err(error) => Reply::NotRead(error),
                    }
                };
                self.answer(id, reply).await;
            }
            Question::Next { watch } => match self.watches.get(&watch) {
                None => return self.wrong("wants the next event of a watch that is not there"),
                Some(watching) => match watching.wanted.try_send(id) {
                    Ok(()) => {}
                    Err(mpsc::error::TrySendError::Full(_)) => {
                        return self.wrong("wants an event while it waits for others of the same watch");
                    }
                    Err(mpsc::error::TrySendError::Closed(_)) => {
                        let what = self.server.metadata.describe();
                        let why = "the watch has ended: start another".to_owned();
                        self.answer(id, Reply::NotRead(ReadError::Unavailable { what, why })).await;
                    }
                },
            },
            Question::Leave { watch } => drop(self.watches.remove(&watch)),
        }
        Ok(())
    }

    async fn begin(&mut self, id: u64, client: Uuid, dial: u64) -> Result<(), ServeError> {
        let line = self.server.line(client);
        {
            // Waits for the commits that are under way, and turns away those that are not yet.
            let mut current = line.write().await;
            if dial <= *current {
                return Err(ServeError::Replaced { peer: self.peer.clone() });
            }
            *current = dial;
        }
        self.line = Some((line, dial));
        self.answer(id, Reply::Begun).await;
        Ok(())
    }

    /// A place among the requests under way; waits for one.
    async fn place(&self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        // Fails only once it is closed, which nobody does.
        Arc::clone(&self.places).acquire_owned().await.ok()
    }
}

async fn read(metadata: &dyn Metadata, question: Question) -> Result<Reply, ReadError> {
    match question {
        Question::Get(key) => metadata.get(&key).await.map(Reply::Found),
        Question::List { kind, after, limit } => page(metadata, kind, after.as_ref(), limit).await.map(Reply::Page),
        _ => Ok(Reply::Pong),
    }
}

/// A page that is not too long for the wire: a beginning of it is a page too.
async fn page(metadata: &dyn Metadata, kind: Kind, after: Option<&Key>, limit: usize) -> Result<Page, ReadError> {
    let mut page = metadata.list(kind, after, limit.min(MAX_PAGE)).await?;
    let mut bytes = 0;
    let fits = page.entries.iter().take_while(|entry| {
        bytes += serde_json::to_vec(entry).map_or(PAGE_BYTES, |json| json.len());
        bytes <= PAGE_BYTES
    });
    // One entry goes by itself, whatever its size: an empty page would be the end.
    let fits = fits.count().max(1);
    page.entries.truncate(fits);
    Ok(page)
}

/// Tells of the next event whenever somebody wants it.
async fn tell(mut watch: Box<dyn Watch>, mut wants: mpsc::Receiver<u64>, answers: mpsc::Sender<MetadataAnswer>) {
    while let Some(id) = wants.recv().await {
        let event = watch.next().await;
        let over = event.is_err();
        let reply = match event {
            Ok(Event::Changes(changes)) => Reply::Changes(Arc::unwrap_or_clone(changes)),
            Ok(Event::Lagged { revision }) => Reply::Lagged { revision },
            Err(error) => Reply::NotRead(error),
        };
        if answers.send(MetadataAnswer { id, reply }).await.is_err() || over {
            return;
        }
    }
}
