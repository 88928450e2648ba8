//! Answers on their way to one client: written at once, or by its connection's task where the client does not take them.
//!
//! It promises that a client which does not read is not read from: its connection waits for [`Outbox::room`].

use std::cell::{Cell, RefCell};
use std::mem;

use flexlog_protocol::api::{Answer, delivered_cost};
use flexlog_protocol::limits::MAX_OUTBOUND_BYTES;
use flexlog_protocol::net::{NetError, Sender};
use tokio::sync::Notify;

use crate::outlet::Outlet;

/// Answers on their way to one client.
#[derive(Default)]
pub(super) struct Outbox {
    answers: RefCell<Vec<Answer>>,
    /// Of those, and of those being written.
    bytes: Cell<usize>,
    writing: Cell<usize>,
    outlet: Outlet<Answer>,
    emptied: Notify,
    /// It is a standby that asks whether this process is there, and no client.
    pub(super) is_heartbeat: Cell<bool>,
}

impl Outbox {
    /// Puts an answer to those that [`Outbox::write_now`] writes.
    pub(super) fn put(&self, answer: Answer) {
        self.bytes.set(self.bytes.get() + cost(&answer));
        self.answers.borrow_mut().push(answer);
    }

    /// Writes what there is as far as the client takes it; the rest is [`Outbox::write`]'s.
    pub(super) fn write_now(&self) {
        self.outlet.write_now(|batch| self.next(batch));
    }

    /// There is a connection, by this `sender`.
    pub(super) fn open(&self, sender: Box<dyn Sender<Answer>>) {
        self.outlet.open(sender);
    }

    /// Writes what is not written at once, until the connection fails.
    pub(super) async fn write(&self) -> NetError {
        self.outlet.write(|batch| self.next(batch)).await
    }

    /// Takes the sender of a connection that is at its end.
    pub(super) fn take(&self) -> Option<Box<dyn Sender<Answer>>> {
        self.outlet.take()
    }

    /// Waits while the client has to take some first.
    pub(super) async fn room(&self) {
        while self.bytes.get() > MAX_OUTBOUND_BYTES {
            self.emptied.notified().await;
        }
    }

    /// What is to be written next. What was before is on its way.
    fn next(&self, batch: &mut Vec<Answer>) {
        let sent = self.writing.take();
        if sent > 0 {
            self.bytes.set(self.bytes.get().saturating_sub(sent));
            self.emptied.notify_one();
        }
        mem::swap(batch, &mut *self.answers.borrow_mut());
        self.writing.set(batch.iter().map(cost).sum());
    }
}

/// What an answer takes of an outbox, in bytes, about.
fn cost(answer: &Answer) -> usize {
    let payload = match answer {
        Answer::Delivered { records, .. } => records.iter().map(|(_, record)| delivered_cost(record) as usize).sum(),
        Answer::Record { record, .. } => record.payload().len(),
        Answer::Appended(appended) => appended.runs.len() * 48,
        Answer::Colors { colors, .. } => colors.len() * 128,
        Answer::Status { status, .. } => (status.tree.positions.len() + status.tree.shards.len()) * 128,
        _ => 0,
    };
    64 + payload
}
