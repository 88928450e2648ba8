//! The connection task: sends what the core wants sent, hands it what comes, and makes the connection again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use flexlog_protocol::Time;
use flexlog_protocol::api::{Answer, Request};
use flexlog_protocol::net::{CLOSING_TIME, ClientConnection, Connection, Receiver, Sender};

use super::shared::Shared;

/// The first and the longest wait between two attempts to connect.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(2));

/// Runs until nobody is left who wants anything.
pub(super) async fn run(shared: Arc<Shared>, first: ClientConnection) {
    // Also when the runtime drops this task.
    let _stop = Stop(Arc::clone(&shared));
    let mut connection = first;
    loop {
        shared.connected();
        let Some(why) = serve(&shared, connection).await else { return };
        tracing::info!(%why, "connection lost");
        shared.disconnected(why);
        let idle = std::pin::pin!(idle(&shared));
        connection = tokio::select! {
            connection = reconnect(&shared) => connection,
            () = idle => return,
        };
    }
}

struct Stop(Arc<Shared>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Serves one connection. Returns why it ended, or `None` when nobody is left.
async fn serve(shared: &Shared, connection: ClientConnection) -> Option<String> {
    let Connection { mut sender, mut receiver, peer, .. } = connection;
    let (mut outbox, mut inbox) = (Vec::new(), Vec::new());
    let mut alarm = std::pin::pin!(Alarm::new());
    let mut heard = Instant::now();
    // A machine that is gone closes no connection: its silence must do.
    let silence = |heard: Instant| {
        let late = shared.tick() && heard.elapsed() >= shared.patience();
        late.then(|| format!("{peer} has said nothing for {} ms", heard.elapsed().as_millis()))
    };
    loop {
        let Some(deadline) = shared.collect(&mut outbox) else {
            leave(sender, receiver, outbox).await;
            return None;
        };
        alarm.as_mut().set(shared, deadline);
        if outbox.is_empty() {
            tokio::select! {
                biased;
                got = receiver.recv(&mut inbox) => match got {
                    Ok(true) => heard = Instant::now(),
                    Ok(false) => return Some(format!("{peer} closed the connection")),
                    Err(error) => return Some(error.to_string()),
                },
                () = shared.bell.notified() => {}
                () = alarm.as_mut().rings() => if let Some(why) = silence(heard) { return Some(why) },
            }
            if !inbox.is_empty()
                && let Some(last_words) = shared.take_in(&mut inbox)
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
                        if let Some(last_words) = shared.take_in(&mut inbox) {
                            return Some(last_words);
                        }
                    }
                    Ok(false) => return Some(format!("{peer} closed the connection")),
                    Err(error) => return Some(error.to_string()),
                },
                () = alarm.as_mut().rings() => if let Some(why) = silence(heard) { return Some(why) },
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

/// Tries until there is a connection.
async fn reconnect(shared: &Shared) -> ClientConnection {
    let mut wait = RECONNECT.0;
    loop {
        // Clients that lost the same node do not come back all at once.
        let part = rand::random_range(0.5..1.0);
        tokio::time::sleep(wait.mul_f64(part)).await;
        wait = (wait * 2).min(RECONNECT.1);
        match shared.connector.connect(&shared.hello).await {
            Ok(connection) => return connection,
            Err(error) => {
                tracing::debug!(%error, "no connection");
                shared.still_disconnected(error.to_string());
            }
        }
    }
}

/// Keeps the deadlines while there is no connection. Returns when nobody is left.
async fn idle(shared: &Shared) {
    let mut alarm = std::pin::pin!(Alarm::new());
    while let Some(deadline) = shared.collect(&mut Vec::new()) {
        alarm.as_mut().set(shared, deadline);
        tokio::select! {
            () = shared.bell.notified() => {}
            () = alarm.as_mut().rings() => drop(shared.tick()),
        }
    }
}

/// A timer that is set only when it must ring earlier than it would: most deadlines move back, not forward.
struct Alarm {
    sleep: std::pin::Pin<Box<Sleep>>,
    at: Time,
}

impl Alarm {
    fn new() -> Self {
        Self { sleep: Box::pin(sleep_until(Instant::now())), at: Time(u64::MAX) }
    }

    fn set(mut self: std::pin::Pin<&mut Self>, shared: &Shared, deadline: Time) {
        if deadline < self.at {
            self.at = deadline;
            let instant = shared.instant(deadline);
            self.sleep.as_mut().reset(instant);
        }
    }

    async fn rings(mut self: std::pin::Pin<&mut Self>) {
        if self.at == Time(u64::MAX) {
            std::future::pending::<()>().await;
        }
        self.sleep.as_mut().await;
        self.at = Time(u64::MAX);
    }
}
