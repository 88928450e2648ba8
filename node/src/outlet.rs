//! Where messages go out by a connection, for one thread: whoever has something to say writes it at once, and only what
//! the other side does not take yet is left to a task.
//!
//! It relies on a [`Sender`] that has taken its whole batch when it first waits, and on each connection's task to call
//! [`Outlet::open`], run [`Outlet::write`] and [`Outlet::take`] the sender at the end. What is to be written is drawn from
//! a closure when it can be written, so that whatever collected meanwhile goes with one write. It promises that all of it
//! goes out in order, or that the task hears why not.

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

    /// There is a connection, by this `sender`. Its task runs [`Outlet::write`].
    pub(crate) fn open(&self, sender: Box<dyn Sender<M>>) {
        self.sender.set(Some(sender));
        self.failed.take();
        // What has collected before.
        self.left.set(true);
    }

    /// Writes what `next` gives, at first and whenever [`Outlet::write_now`] leaves something, until the connection
    /// fails.
    pub(crate) async fn write(&self, mut next: impl FnMut(&mut Vec<M>)) -> NetError {
        let mut batch = Vec::new();
        loop {
            while !self.left.get() {
                self.wake.notified().await;
            }
            if let Some(error) = self.failed.take() {
                return error;
            }
            let mut used = Used { slot: &self.sender, sender: self.sender.take() };
            // It is there: only this function and `write_now` use it, which do not run at the same time.
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::poll_fn;
    use std::pin::Pin;
    use std::sync::{Arc, Mutex};

    use async_trait::async_trait;

    use super::*;

    /// The other side.
    #[derive(Default)]
    struct Far {
        takes: bool,
        gone: bool,
        buffered: Vec<u32>,
        came: Vec<u32>,
    }

    #[derive(Clone, Default)]
    struct Near(Arc<Mutex<Far>>);

    impl Near {
        fn set(&self, takes: bool, gone: bool) {
            let mut far = self.0.lock().unwrap();
            (far.takes, far.gone) = (takes, gone);
        }

        fn came(&self) -> Vec<u32> {
            self.0.lock().unwrap().came.clone()
        }
    }

    #[async_trait]
    impl Sender<u32> for Near {
        async fn send(&mut self, batch: &mut Vec<u32>) -> Result<(), NetError> {
            self.0.lock().unwrap().buffered.append(batch);
            poll_fn(|_| {
                let far = &mut *self.0.lock().unwrap();
                if far.gone {
                    return Poll::Ready(Err(NetError::Closed { peer: "the other side".into() }));
                }
                if !far.takes {
                    return Poll::Pending;
                }
                far.came.append(&mut far.buffered);
                Poll::Ready(Ok(()))
            })
            .await
        }

        async fn finish(&mut self) -> Result<(), NetError> {
            self.send(&mut Vec::new()).await
        }
    }

    fn look<T>(task: &mut Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        task.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn what_the_other_side_takes_goes_out_at_once_and_the_rest_in_order_by_the_task() {
        let (outlet, far, queue) = (Outlet::default(), Near::default(), RefCell::new(vec![1]));
        let next = |batch: &mut Vec<u32>| batch.append(&mut queue.borrow_mut());
        let say = |what| {
            queue.borrow_mut().push(what);
            outlet.write_now(next);
        };
        say(2);
        assert_eq!(*queue.borrow(), [1, 2], "there is no connection");
        far.set(true, false);
        outlet.open(Box::new(far.clone()));
        say(3);
        assert_eq!(far.came(), Vec::<u32>::new(), "the task begins");
        let mut task = pin!(outlet.write(next));
        assert!(look(&mut task).is_pending());
        assert_eq!(far.came(), [1, 2, 3]);
        say(4);
        assert_eq!(far.came(), [1, 2, 3, 4], "at once");

        far.set(false, false);
        say(5);
        say(6);
        assert_eq!(*queue.borrow(), [6], "no more is drawn while the other side takes nothing");
        assert!(look(&mut task).is_pending());
        say(7);
        far.set(true, false);
        assert_eq!(far.came(), [1, 2, 3, 4]);
        assert!(look(&mut task).is_pending());
        assert_eq!(far.came(), [1, 2, 3, 4, 5, 6, 7]);
        say(8);
        assert_eq!(far.came(), [1, 2, 3, 4, 5, 6, 7, 8], "at once again");
    }

    #[test]
    fn the_task_hears_why_nothing_goes_out_and_the_sender_comes_back() {
        let (outlet, far) = (Outlet::default(), Near::default());
        far.set(true, false);
        outlet.open(Box::new(far.clone()));
        {
            let mut task = pin!(outlet.write(|_| {}));
            assert!(look(&mut task).is_pending());
            far.set(true, true);
            outlet.write_now(|batch| batch.push(1));
            assert!(matches!(look(&mut task), Poll::Ready(NetError::Closed { .. })));
        }
        assert!(outlet.take().is_some());
        assert!(outlet.take().is_none());

        // A task that is dropped while it waits for the other side.
        far.set(false, false);
        outlet.open(Box::new(far));
        {
            let mut task = pin!(outlet.write(|batch| batch.push(1)));
            assert!(look(&mut task).is_pending());
            assert!(outlet.take().is_none(), "it is being used");
        }
        assert!(outlet.take().is_some());
    }
}
