//! The queues in front of the writer and the readers.
//!
//! Bounded by weight, not by calls: a thousand small events are no burden, and a hundred of a megabyte are. A call
//! that finds no room waits for it, in order of arrival. A call that is dropped before there was room was not made.
//!
//! A lock and a condition variable, because the writer is a thread of its own that takes everything at once, and must
//! wake up now and then if there is nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A queue that calls wait in.
pub(in crate::stores::sqlite) struct Queue<T> {
    weight_max: u32,
    room: Arc<Semaphore>,
    line: Mutex<QueueState<T>>,
    news: Condvar,
}

struct QueueState<T> {
    waiting: VecDeque<Waiting<T>>,
    closed: bool,
}

/// A call in the queue, and the room it takes there.
pub(in crate::stores::sqlite) struct Waiting<T> {
    pub(in crate::stores::sqlite) call: T,
    pub(in crate::stores::sqlite) room: OwnedSemaphorePermit,
}

impl<T: Send + 'static> Queue<T> {
    /// An empty queue with this much room.
    pub(in crate::stores::sqlite) fn new(weight_max: u32) -> Self {
        let room = Arc::new(Semaphore::new(weight_max as usize));
        let line = QueueState { waiting: VecDeque::new(), closed: false };
        Self { weight_max, room, line: Mutex::new(line), news: Condvar::new() }
    }

    /// Puts a call in the queue: now if there is room, and otherwise with the returned future. A closed queue drops
    /// the call, and with it its answer channel.
    pub(in crate::stores::sqlite) fn push(
        self: &Arc<Self>,
        call: T,
        weight: u32,
    ) -> Result<(), impl Future<Output = ()> + Send + 'static + use<T>> {
        let weight = weight.clamp(1, self.weight_max);
        if let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(weight) {
            self.enter(Waiting { call, room });
            return Ok(());
        }
        let queue = Arc::clone(self);
        Err(async move {
            if let Ok(room) = Arc::clone(&queue.room).acquire_many_owned(weight).await {
                queue.enter(Waiting { call, room });
            }
        })
    }

    fn enter(&self, waiting: Waiting<T>) {
        let mut line = self.line();
        if line.closed {
            return;
        }
        line.waiting.push_back(waiting);
        drop(line);
        self.news.notify_one();
    }

    /// The next call, when there is one. None when the queue is closed and empty.
    pub(in crate::stores::sqlite) fn take_one(&self) -> Option<Waiting<T>> {
        let idle = |line: &mut QueueState<T>| line.waiting.is_empty() && !line.closed;
        let mut line = self.news.wait_while(self.line(), idle).unwrap_or_else(PoisonError::into_inner);
        line.waiting.pop_front()
    }

    /// Moves everything to `into`, after waiting for at most `patience`. `false` when the queue is closed and empty.
    pub(in crate::stores::sqlite) fn take_all(
        &self,
        into: &mut VecDeque<Waiting<T>>,
        patience: Duration,
    ) -> bool {
        let line = self.line();
        let idle = |line: &mut QueueState<T>| line.waiting.is_empty() && !line.closed;
        let waited = self.news.wait_timeout_while(line, patience, idle);
        let (mut line, _) = waited.unwrap_or_else(PoisonError::into_inner);
        into.append(&mut line.waiting);
        !line.closed || !into.is_empty()
    }

    /// Refuses new calls.
    pub(in crate::stores::sqlite) fn close(&self) {
        self.line().closed = true;
        self.room.close();
        self.news.notify_all();
    }

    fn line(&self) -> MutexGuard<'_, QueueState<T>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
