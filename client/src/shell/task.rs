//! The tasks behind a client. The manager starts one task for each node that the core wants to be connected to, and lets
//! time pass. A connection task sends what the core wants sent, hands it what comes, and makes the connection again.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use flexlog_protocol::api::{Answer, Request};
use flexlog_protocol::net::{CLOSING_TIME, ClientConnection, Connection, Receiver, Sender};

use super::shared::{Shared, Start};
use crate::core::NodeId;

/// The first and the longest wait between two attempts to connect.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(2));

/// Runs until nobody is left who wants anything. `first` is a connection that is there already.
pub(super) async fn run(shared: Arc<Shared>, first: (NodeId, ClientConnection)) {
    // Also when the runtime drops this task.
    let _stop = Stop(Arc::clone(&shared));
    let mut tasks = JoinSet::new();
    let mut start = Vec::new();
    let mut first = Some(first);
    loop {
        let deadline = shared.plan(&mut start);
        for start in start.drain(..) {
            let connection = first.take_if(|(node, _)| *node == start.node).map(|(_, connection)| connection);
            tasks.spawn(keep(Arc::clone(&shared), start, connection));
        }
        let Some(deadline) = deadline else { break };
        tokio::select! {
            () = shared.manager.notified() => {}
            () = sleep_until(shared.instant(deadline)) => shared.tick(),
            Some(ended) = tasks.join_next() => match ended {
                Ok(node) => shared.ended(node),
                // It panicked: what its node was told is not known any more.
                Err(_) => return,
            },
        }
    }
    while tasks.join_next().await.is_some() {}
}

struct Stop(Arc<Shared>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Keeps a connection to one node until nothing needs it.
async fn keep(shared: Arc<Shared>, start: Start, mut first: Option<ClientConnection>) -> NodeId {
    let node = start.node;
    let mut wait = Duration::ZERO;
    loop {
        let connection = match first.take() {
            Some(connection) => connection,
            None => {
                let dismissed = std::pin::pin!(dismissed(&shared, &start));
                tokio::select! {
                    connection = connect(&shared, &start, wait) => connection,
                    () = dismissed => return node,
                }
            }
        };
        shared.connected(node);
        let why = serve(&shared, &start, connection).await;
        let over = why.is_none();
        if let Some(why) = &why {
            tracing::info!(%why, "connection lost");
        }
        shared.disconnected(node, why);
        if over {
            return node;
        }
        wait = RECONNECT.0;
    }
}

async fn dismissed(shared: &Shared, start: &Start) {
    while !shared.is_dismissed(start.node) {
        start.link.bell.notified().await;
    }
}

/// Serves one connection. Returns why it ended, or `None` when nothing needs it any more.
async fn serve(shared: &Shared, start: &Start, connection: ClientConnection) -> Option<String> {
    let Connection { mut sender, mut receiver, peer, .. } = connection;
    let (node, link) = (start.node, &*start.link);
    let (mut outbox, mut inbox) = (Vec::new(), Vec::new());
    let mut heard = Instant::now();
    // A machine that is gone closes no connection: its silence must do.
    let silence = |heard: Instant| {
        let late = link.take_suspicion() && heard.elapsed() >= shared.patience();
        late.then(|| format!("{peer} has said nothing for {} ms", heard.elapsed().as_millis()))
    };
    loop {
        if shared.collect(node, &mut outbox) {
            leave(sender, receiver, outbox).await;
            return None;
        }
        if outbox.is_empty() {
            tokio::select! {
                biased;
                got = receiver.recv(&mut inbox) => match got {
                    Ok(true) => heard = Instant::now(),
                    Ok(false) => return Some(format!("{peer} closed the connection")),
                    Err(error) => return Some(error.to_string()),
                },
                () = link.bell.notified() => if let Some(why) = silence(heard) { return Some(why) },
            }
            if !inbox.is_empty()
                && let Some(last_words) = shared.take_in(node, &peer, &mut inbox)
            {
                return Some(last_words);
            }
            continue;
        }
        let mut sending = std::pin::pin!(sender.send(&mut outbox));
        loop {
            // The node may wait for us to take its answers before it takes our requests.
            tokio::select! {
                biased;
                sent = &mut sending => match sent {
                    Ok(()) => break,
                    Err(error) => return Some(error.to_string()),
                },
                got = receiver.recv(&mut inbox) => match got {
                    Ok(true) => {
                        heard = Instant::now();
                        if let Some(last_words) = shared.take_in(node, &peer, &mut inbox) {
                            return Some(last_words);
                        }
                    }
                    Ok(false) => return Some(format!("{peer} closed the connection")),
                    Err(error) => return Some(error.to_string()),
                },
                // What there is to send is looked for behind this anyway.
                () = link.bell.notified() => if let Some(why) = silence(heard) { return Some(why) },
            }
        }
    }
}

/// Says the last words, and waits a moment for the node to take them in: then its sessions are closed there. A courtesy;
/// without it the node closes them later.
async fn leave(mut sender: Box<dyn Sender<Request>>, mut receiver: Box<dyn Receiver<Answer>>, mut last: Vec<Request>) {
    let goodbye = async {
        if sender.send(&mut last).await.is_ok() && sender.finish().await.is_ok() {
            receiver.discard().await;
        }
    };
    let _ = tokio::time::timeout(CLOSING_TIME, goodbye).await;
}

/// Tries until there is a connection; at once if `wait` is zero.
async fn connect(shared: &Shared, start: &Start, mut wait: Duration) -> ClientConnection {
    loop {
        // Clients that lost the same node do not come back all at once.
        let part = rand::random_range(0.5..1.0);
        tokio::time::sleep(wait.mul_f64(part)).await;
        wait = (wait * 2).clamp(RECONNECT.0, RECONNECT.1);
        match start.connector.connect(&shared.hello).await {
            Ok(connection) => return connection,
            Err(error) => {
                tracing::debug!(%error, "no connection");
                shared.unreachable(start.node, error.to_string());
            }
        }
    }
}
