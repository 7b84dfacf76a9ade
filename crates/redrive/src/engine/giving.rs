//! Giving many answers at once.
//!
//! Each answer wakes a task, and for each task that wakes the runtime looks whether another worker sleeps and wakes
//! that one, too. It finds one thing to do, takes it, finds nothing more and sleeps again: on two cores, two switches
//! for every other event. Tasks that are woken while the runtime looks at its timers are put in line together, and
//! one worker is woken for all of them. A task that yields is woken there, so the answers are given by a waker that
//! yields.
//!
//! Nothing depends on that. A runtime that does it otherwise wakes the waker earlier or later, and the store gives
//! the answers itself if it takes too long.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

use redrive_store::Answers;

/// Answers that are given when this is woken, or when nobody can wake it any more.
struct Giving(Mutex<Answers>);

impl Wake for Giving {
    fn wake(self: Arc<Self>) {
        let answers = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(answers);
    }
}

/// Has answers given when the runtime wakes others as well.
pub(super) fn give_soon(answers: Answers) {
    if answers.is_empty() {
        return;
    }
    let waker = Waker::from(Arc::new(Giving(Mutex::new(answers))));
    let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker));
}
