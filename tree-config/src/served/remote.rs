//! The side that asks.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flexlog_protocol::net::ConnectError;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use uuid::Uuid;

use super::link::{Link, Lost};
use super::message::{Question, Reply};
use super::{AskingConnection, MAX_IN_FLIGHT};
use crate::key::{Key, Kind};
use crate::metadata::{CommitError, Event, MAX_PAGE, Metadata, Page, ReadError, Revision, Versioned, Watch};
use crate::transaction::Transaction;

/// How long a [`Remote`] tries to get an answer unless it is told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How long it waits after a dial that failed: this long at first, twice as long each time, never longer than the other.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Connects to the process that keeps the metadata, as often as asked.
#[async_trait]
pub trait Dial: Send + Sync + 'static {
    /// A new connection, its opening words done. The caller drops this when it takes too long.
    ///
    /// # Errors
    /// [`ConnectError`]; all but `Refused` may go well later.
    async fn dial(&self) -> Result<AskingConnection, ConnectError>;

    /// Where it connects to, for people.
    fn address(&self) -> String;
}

/// The metadata that another process keeps. See the module.
pub struct Remote {
    shared: Arc<Shared>,
}

struct Shared {
    dial: Box<dyn Dial>,
    /// Names this `Remote` to the server.
    client: Uuid,
    patience: Duration,
    line: Mutex<Line>,
    /// One for each request that may be under way.
    places: Semaphore,
}

/// The connection in use, and how often one was made.
#[derive(Default)]
struct Line {
    dials: u64,
    link: Option<Arc<Link>>,
}

/// There is no connection.
struct NoLink {
    why: String,
    /// Trying again would not help.
    is_final: bool,
}

impl Remote {
    /// Asks the process that `dial` connects to. The first connection is made when something is asked. An answer may
    /// take `patience`, connecting included.
    #[must_use]
    pub fn new(dial: impl Dial, patience: Duration) -> Self {
        Self {
            shared: Arc::new(Shared {
                dial: Box::new(dial),
                client: Uuid::new_v4(),
                patience,
                line: Mutex::default(),
                places: Semaphore::new(MAX_IN_FLIGHT),
            }),
        }
    }
}

impl Shared {
    fn what(&self) -> String {
        format!("the metadata kept by the process at {}", self.dial.address())
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }

    /// Why in words, with the next step.
    fn advice(&self, why: &str) -> String {
        format!(
            "{why} (tried for {} ms). Check that the process that keeps the metadata runs at {}, and is not overloaded",
            self.patience.as_millis(),
            self.dial.address()
        )
    }

    fn unavailable(&self, why: &str) -> ReadError {
        ReadError::Unavailable { what: self.what(), why: self.advice(why) }
    }

    /// What the other side says that does not answer what was asked.
    fn unexpected(&self, link: &Link, reply: &Reply) -> ReadError {
        link.close("it answered something else than was asked");
        let why = format!("it answered something else than was asked ({reply:?}): is it of the same version?");
        ReadError::Unavailable { what: self.what(), why }
    }

    /// The connection in use, or a new one.
    async fn link(&self, deadline: Instant) -> Result<Arc<Link>, String> {
        let mut pause = FIRST_PAUSE;
        let mut last = "it did not answer in time".to_owned();
        loop {
            match timeout_at(deadline, self.link_once()).await {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(NoLink { why, is_final: true })) => return Err(why),
                Ok(Err(NoLink { why, .. })) => last = why,
                Err(_) => return Err(last),
            }
            if Instant::now() + pause >= deadline {
                return Err(last);
            }
            sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    async fn link_once(&self) -> Result<Arc<Link>, NoLink> {
        // Held while it dials: one connection for all who wait.
        let mut line = self.line.lock().await;
        if let Some(link) = line.link.as_ref().filter(|link| link.is_open()) {
            return Ok(Arc::clone(link));
        }
        line.link = None;
        line.dials += 1;
        let connection = self.dial.dial().await.map_err(|error| NoLink {
            why: error.to_string(),
            is_final: matches!(error, ConnectError::Refused { .. }),
        })?;
        let link = Link::begin(connection, self.client, line.dials, self.patience).await;
        let link = Arc::new(link.map_err(|error| NoLink { why: error.to_string(), is_final: false })?);
        line.link = Some(Arc::clone(&link));
        Ok(link)
    }

    async fn place(&self, deadline: Instant) -> Result<SemaphorePermit<'_>, String> {
        match timeout_at(deadline, self.places.acquire()).await {
            Ok(Ok(place)) => Ok(place),
            // It is never closed.
            Ok(Err(_)) | Err(_) => Err(format!("{MAX_IN_FLIGHT} requests are under way, and none was answered")),
        }
    }

    /// Asks until there is an answer: for what may be asked twice.
    async fn read(&self, question: Question) -> Result<(Arc<Link>, Reply), ReadError> {
        let deadline = self.deadline();
        let _place = self.place(deadline).await.map_err(|why| self.unavailable(&why))?;
        loop {
            let link = self.link(deadline).await.map_err(|why| self.unavailable(&why))?;
            match link.call(link.fresh_id(), question.clone(), deadline).await {
                Ok(Reply::NotRead(error)) => return Err(error),
                Ok(reply) => return Ok((link, reply)),
                Err(lost) if Instant::now() >= deadline => return Err(self.unavailable(&lost.why())),
                // The link is closed, so the next turn dials.
                Err(_) => {}
            }
        }
    }

    /// Starts a watch behind `after`.
    async fn watch(&self, after: Revision) -> Result<(Arc<Link>, u64), ReadError> {
        let deadline = self.deadline();
        loop {
            let link = self.link(deadline).await.map_err(|why| self.unavailable(&why))?;
            let id = link.fresh_id();
            match link.call(id, Question::Watch { after }, deadline).await {
                Ok(Reply::Watching) => return Ok((link, id)),
                Ok(Reply::NotRead(error)) => return Err(error),
                Ok(reply) => return Err(self.unexpected(&link, &reply)),
                Err(lost) if Instant::now() >= deadline => {
                    // It may have been started all the same.
                    link.tell(Question::Leave { watch: id });
                    return Err(self.unavailable(&lost.why()));
                }
                Err(_) => {}
            }
        }
    }
}

#[async_trait]
impl Metadata for Remote {
    fn describe(&self) -> String {
        self.shared.what()
    }

    async fn get(&self, key: &Key) -> Result<Option<Versioned>, ReadError> {
        match self.shared.read(Question::Get(key.clone())).await? {
            (_, Reply::Found(found)) => Ok(found),
            (link, other) => Err(self.shared.unexpected(&link, &other)),
        }
    }

    async fn list(&self, kind: Kind, after: Option<&Key>, limit: usize) -> Result<Page, ReadError> {
        let question = Question::List { kind, after: after.cloned(), limit: limit.min(MAX_PAGE) };
        match self.shared.read(question).await? {
            (_, Reply::Page(page)) => Ok(page),
            (link, other) => Err(self.shared.unexpected(&link, &other)),
        }
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision, CommitError> {
        transaction.check()?;
        let shared = &self.shared;
        let unavailable = |why: &str| CommitError::Unavailable { what: shared.what(), why: shared.advice(why) };
        let unknown = |why: String| CommitError::Unknown {
            what: shared.what(),
            why: format!("{why}. Read what it was to change once {} answers again", shared.dial.address()),
        };
        let deadline = shared.deadline();
        let _place = shared.place(deadline).await.map_err(|why| unavailable(&why))?;
        loop {
            let link = shared.link(deadline).await.map_err(|why| unavailable(&why))?;
            match link.call(link.fresh_id(), Question::Commit(transaction.clone()), deadline).await {
                Ok(Reply::Committed(revision)) => return Ok(revision),
                Ok(Reply::NotCommitted(failure)) => return Err(failure.into()),
                Ok(reply) => return Err(unknown(shared.unexpected(&link, &reply).to_string())),
                Err(Lost::NotSent(why)) if Instant::now() >= deadline => return Err(unavailable(&why)),
                Err(Lost::NotSent(_)) => {}
                Err(Lost::InDoubt(why)) => {
                    // Reads go by a connection that is made later, which begins behind this commit.
                    link.close("a commit was not answered");
                    return Err(unknown(why));
                }
            }
        }
    }

    async fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, ReadError> {
        let (link, id) = self.shared.watch(after).await?;
        Ok(Box::new(RemoteWatch { shared: Arc::clone(&self.shared), seen: after, at: Some((link, id)), asked: None }))
    }
}

/// A watch that is started again after a break, from where it was.
struct RemoteWatch {
    shared: Arc<Shared>,
    /// The revision told last.
    seen: Revision,
    /// The watch of the connection in use; `None` after a break.
    at: Option<(Arc<Link>, u64)>,
    /// Where the next event comes, once it was asked for. Kept when the caller stops waiting.
    asked: Option<oneshot::Receiver<Reply>>,
}

#[async_trait]
impl Watch for RemoteWatch {
    async fn next(&mut self) -> Result<Event, ReadError> {
        loop {
            let (link, id) = match &self.at {
                Some((link, id)) => (Arc::clone(link), *id),
                None => {
                    let (link, id) = self.shared.watch(self.seen).await?;
                    self.asked = None;
                    self.at = Some((Arc::clone(&link), id));
                    (link, id)
                }
            };
            if self.asked.is_none() {
                match link.ask(link.fresh_id(), Question::Next { watch: id }).await {
                    Ok(asked) => self.asked = Some(asked),
                    Err(_) => {
                        self.at = None;
                        continue;
                    }
                }
            }
            let Some(asked) = &mut self.asked else { continue };
            let answered = link.answer(asked).await;
            self.asked = None;
            let (event, seen) = match answered {
                Ok(Reply::Changes(changes)) => {
                    let seen = changes.revision;
                    (Event::Changes(Arc::new(changes)), seen)
                }
                Ok(Reply::Lagged { revision }) => (Event::Lagged { revision }, revision),
                Ok(Reply::NotRead(error)) => return Err(error),
                Ok(reply) => return Err(self.shared.unexpected(&link, &reply)),
                Err(_) => {
                    self.at = None;
                    continue;
                }
            };
            self.seen = seen;
            return Ok(event);
        }
    }
}

impl Drop for RemoteWatch {
    fn drop(&mut self) {
        if let Some((link, id)) = &self.at {
            link.tell(Question::Leave { watch: *id });
        }
    }
}
