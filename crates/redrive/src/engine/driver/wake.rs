//! Waking many publishers at once.
//!
//! Each answer wakes a task, and for each woken task the runtime checks whether another worker sleeps and wakes that
//! one, too. The worker finds one task, runs it, finds nothing more and sleeps again: on two cores, two switches for
//! every other event. Tasks that are woken while the runtime processes its timers are queued together, and one worker
//! is woken for all of them. A task that yields is woken there, so a waker that yields gives the answers.
//!
//! Correctness does not depend on that. Another runtime wakes the waker earlier or later, and the store gives the
//! answers itself if that takes too long.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

use redrive_store::PendingReplies;

/// Answers that are given when this is woken, or when its last waker is dropped.
struct Giving(Mutex<PendingReplies>);

impl Wake for Giving {
    fn wake(self: Arc<Self>) {
        let answers = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(answers);
    }
}

/// Gives answers when the runtime wakes other tasks as well.
pub(in crate::engine) fn give_soon(answers: PendingReplies) {
    if answers.is_empty() {
        return;
    }
    let waker = Waker::from(Arc::new(Giving(Mutex::new(answers))));
    let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker));
}
