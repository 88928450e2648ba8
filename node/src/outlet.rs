//! Where messages go out by a connection, for one thread: whoever has something to say writes it at once, and only what
//! the other side does not take yet is left to a task.
//!
//! It relies on a [`Sender`] that has taken its whole batch when it first waits, and on each connection's task to run
//! [`Outlet::write`]. What is to be written is drawn from a closure when it can be written, so that whatever collected
//! meanwhile goes with one write. It promises that all of it goes out in order, or that the task hears why not.

use std::cell::Cell;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use flexlog_protocol::net::{NetError, Sender};
use tokio::sync::Notify;

/// The sending half of a connection, if there is one and nobody writes.
type Slot<M> = Cell<Option<Box<dyn Sender<M>>>>;

/// The way out to one peer.
pub(crate) struct Outlet<M> {
    sender: Slot<M>,
    /// The task has to go on.
    left: Cell<bool>,
    failed: Cell<Option<NetError>>,
    wake: Notify,
}

impl<M> Default for Outlet<M> {
    fn default() -> Self {
        Self { sender: Cell::default(), left: Cell::new(false), failed: Cell::default(), wake: Notify::new() }
    }
}

/// A sender that is being used; it goes back when this is dropped, wherever the task was.
struct Used<'a, M> {
    slot: &'a Slot<M>,
    sender: Option<Box<dyn Sender<M>>>,
}

impl<M> Drop for Used<'_, M> {
    fn drop(&mut self) {
        self.slot.set(self.sender.take());
    }
}

impl<M> Outlet<M> {
    /// Writes what `next` puts into its batch, until it puts in nothing or the other side does not take more. Where the
    /// task writes already, or there is no connection, it is left to that.
    pub(crate) fn write_now(&self, mut next: impl FnMut(&mut Vec<M>)) {
        if self.left.get() {
            return;
        }
        let mut used = Used { slot: &self.sender, sender: self.sender.take() };
        let Some(sender) = &mut used.sender else { return };
        let mut batch = Vec::new();
        loop {
            next(&mut batch);
            if batch.is_empty() {
                return;
            }
            match pin!(sender.send(&mut batch)).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(())) => continue,
                Poll::Ready(Err(error)) => self.failed.set(Some(error)),
                Poll::Pending => {}
            }
            self.left.set(true);
            return self.wake.notify_one();
        }
    }

    /// Writes by `sender` what `next` gives, at first and whenever [`Outlet::write_now`] leaves something, until the
    /// connection fails.
    pub(crate) async fn write(&self, sender: Box<dyn Sender<M>>, mut next: impl FnMut(&mut Vec<M>)) -> NetError {
        self.sender.set(Some(sender));
        self.failed.take();
        self.left.set(true);
        let mut batch = Vec::new();
        loop {
            while !self.left.get() {
                self.wake.notified().await;
            }
            if let Some(error) = self.failed.take() {
                return error;
            }
            let mut used = Used { slot: &self.sender, sender: self.sender.take() };
            let Some(sender) = &mut used.sender else { return std::future::pending().await };
            // The first batch is empty: that sends what an earlier attempt left.
            loop {
                if let Err(error) = sender.send(&mut batch).await {
                    return error;
                }
                next(&mut batch);
                if batch.is_empty() {
                    break;
                }
            }
            self.left.set(false);
        }
    }

    /// Takes the sending half of a connection that is at its end.
    pub(crate) fn take(&self) -> Option<Box<dyn Sender<M>>> {
        self.sender.take()
    }
}
