//! [`Subscription`]: the records of a color as they come.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use parking_lot::Mutex;

use flexlog_protocol::api::{Failure, RequestId, delivered_cost};
use flexlog_protocol::{Record, SeqNum};

use crate::core::{Delivery, MIN_PART_WINDOW, Wanted};
use crate::error::SubscribeError;
use crate::log::Inner;

/// What a subscription brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The next record.
    Record {
        /// Its number.
        number: SeqNum,
        /// It.
        record: Record,
    },
    /// What was there up to and including `point` is gone; what follows comes.
    Trimmed {
        /// The trim point.
        point: SeqNum,
    },
    /// Every record below `upto` has come. Said when nothing else waits.
    Progress {
        /// Exclusive; where a subscription would go on.
        upto: SeqNum,
    },
}

/// What has come and was not taken. The window of the subscription bounds it.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<InboxState>,
}

#[derive(Debug, Default)]
struct InboxState {
    deliveries: VecDeque<Delivery>,
    stopped: bool,
    waker: Option<Waker>,
}

impl Inbox {
    pub(crate) fn put(&self, delivery: Delivery) {
        let waker = {
            let mut state = self.state.lock();
            match (state.deliveries.back_mut(), delivery) {
                // Progress alone must not fill the memory of one who does not look.
                (Some(Delivery::Records { upto, .. }), Delivery::Records { records, upto: later })
                    if records.is_empty() =>
                {
                    *upto = later;
                }
                (Some(Delivery::Trimmed(point)), Delivery::Trimmed(later)) => *point = later,
                (_, delivery) => state.deliveries.push_back(delivery),
            }
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn stop(&self) {
        let waker = {
            let mut state = self.state.lock();
            state.stopped = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The records of a color from some number on. A [`Stream`] too.
///
/// A record that a user takes makes room for another; one who does not look stops the node after a window of bytes, and
/// nobody else.
#[derive(Debug)]
pub struct Subscription {
    log: Arc<Inner>,
    inbox: Arc<Inbox>,
    id: RequestId,
    /// Records of the delivery that is being taken.
    records: VecDeque<(SeqNum, Record)>,
    /// How far everything has come, and whether the user was told.
    upto: Option<SeqNum>,
    /// Bytes taken that the core does not know of.
    taken: u64,
    over: bool,
}

impl Subscription {
    pub(crate) fn new(log: Arc<Inner>, from: SeqNum) -> Self {
        let inbox = Arc::new(Inbox::default());
        let id = log.handle.subscribe(&Wanted::all(log.color, from), &log.shards, &inbox);
        Self { log, inbox, id, records: VecDeque::new(), upto: None, taken: 0, over: false }
    }

    /// The next event; waits for it. After an error there is nothing more. Loses nothing when dropped.
    pub async fn next(&mut self) -> Option<Result<Event, SubscribeError>> {
        std::future::poll_fn(|context| self.poll_event(context)).await
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Event, SubscribeError>>> {
        if self.over {
            return Poll::Ready(None);
        }
        loop {
            if let Some((number, record)) = self.records.pop_front() {
                self.take(delivered_cost(&record));
                return Poll::Ready(Some(Ok(Event::Record { number, record })));
            }
            let mut state = self.inbox.state.lock();
            match state.deliveries.pop_front() {
                Some(Delivery::Records { records, upto }) => {
                    drop(state);
                    self.records = records.into();
                    self.upto = Some(upto);
                }
                Some(Delivery::Trimmed(point)) => return Poll::Ready(Some(Ok(Event::Trimmed { point }))),
                Some(Delivery::Failed(why)) => {
                    drop(state);
                    return Poll::Ready(Some(Err(self.fail(why))));
                }
                None => {
                    if let Some(upto) = self.upto.take() {
                        return Poll::Ready(Some(Ok(Event::Progress { upto })));
                    }
                    if state.stopped {
                        drop(state);
                        self.over = true;
                        let address = self.log.handle.address();
                        return Poll::Ready(Some(Err(SubscribeError::Stopped { address })));
                    }
                    state.waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }

    fn take(&mut self, bytes: u64) {
        self.taken += bytes;
        // No window is smaller than this part of it times eight.
        if self.taken >= MIN_PART_WINDOW / 8 {
            self.log.handle.consumed(self.id, std::mem::take(&mut self.taken));
        }
    }

    fn fail(&mut self, why: Failure) -> SubscribeError {
        self.over = true;
        SubscribeError::Failed { color: self.log.name.clone(), address: self.log.handle.address(), why }
    }
}

impl Stream for Subscription {
    type Item = Result<Event, SubscribeError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_event(context)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.log.handle.unsubscribe(self.id);
    }
}
