//! Starting many attempts at once.
//!
//! A task for each attempt costs more than a short handler does: memory, a slot in the runtime's lists, a worker to
//! wake. So if many start together, a few tasks take them from one batch, one after the other, and poll each once. A
//! short handler ends there. A handler that waits moves into a task of its own.
//!
//! A handler that computes or blocks does not hold up the others: as many tasks take from the batch as the runtime has
//! workers, and after [`PATIENCE`] every attempt that has not started gets a task of its own. A watcher sees to that,
//! because all tasks of the batch may be blocked while the runtime is not (`block_in_place`).

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture};
use redrive_core::scheduler::{AttemptEnd, DispatchedAttempt, EndedAttempt};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::engine::context::Context;
use crate::engine::perform::{Attempted, Ended, attempt_one};

/// The smallest batch. For fewer attempts, a task each starts them sooner.
pub(in crate::engine) const LINE_LEAST: usize = 16;
/// How long starting a batch may take.
const PATIENCE: Duration = Duration::from_millis(1);
/// How many attempts start before other tasks have their turn.
const TURN: usize = 32;

/// An attempt that has a task of its own, or gets one.
pub(in crate::engine) type Attempt = BoxFuture<'static, Option<Ended>>;

/// A batch of attempts, and the signal for its watcher.
struct Line {
    places: Mutex<Places>,
    /// Notified when every attempt has started.
    is_over: Notify,
}

/// Attempts to start, and the results of the others.
struct Places {
    waiting: std::vec::IntoIter<Box<DispatchedAttempt>>,
    ended: Vec<Ended>,
    going_on: Vec<Attempt>,
}

impl Places {
    /// The results so far.
    fn bring(&mut self) -> Attempted {
        Attempted::Several(std::mem::take(&mut self.ended), std::mem::take(&mut self.going_on))
    }

    /// Gives every attempt that has not started a task of its own.
    fn dissolve(&mut self, context: &Context) {
        let attempt = |ticket: Box<DispatchedAttempt>| attempt_one(context, *ticket).map(Some).boxed();
        self.going_on.extend(self.waiting.by_ref().map(attempt));
    }
}

/// Starts attempts of handlers that take one event each.
#[allow(clippy::vec_box, reason = "they come in boxes, and a box is moved for less than a ticket")]
pub(in crate::engine) fn start(
    context: &Arc<Context>,
    tickets: Vec<Box<DispatchedAttempt>>,
    attempts: &mut JoinSet<Attempted>,
) {
    let workers = tokio::runtime::Handle::current().metrics().num_workers();
    let takers = workers.clamp(1, tickets.len() / LINE_LEAST + 1);
    let ended = Vec::with_capacity(tickets.len());
    let places = Places { waiting: tickets.into_iter(), ended, going_on: Vec::new() };
    let line = Arc::new(Line { places: Mutex::new(places), is_over: Notify::new() });
    for _ in 0..takers {
        attempts.spawn(take_from(context.clone(), line.clone()));
    }
    attempts.spawn(watch(context.clone(), line));
}

/// Starts one attempt after the other. The first task that finds the batch empty returns the results so far.
async fn take_from(context: Arc<Context>, line: Arc<Line>) -> Attempted {
    let began = Instant::now();
    let mut place = Box::pin(OptionFuture::from(None));
    for turn in 1.. {
        let next = lock(&line).waiting.next();
        let Some(ticket) = next else { break };
        let (token, seq, rev) = (ticket.token, ticket.entry.seq, ticket.entry.rev);
        place.set(Some(attempt_one(&context, *ticket)).into());
        // The attempt catches its handler's panics. Any other panic, an observer's perhaps, harms this event only.
        let polled = std::future::poll_fn(|task| Poll::Ready(place.as_mut().poll(task)));
        match AssertUnwindSafe(polled).catch_unwind().await {
            Ok(Poll::Ready(ended)) => lock(&line).ended.extend(ended),
            Ok(Poll::Pending) => {
                // It stays where it is, and the next attempt gets another slot.
                let going_on = std::mem::replace(&mut place, Box::pin(OptionFuture::from(None)));
                lock(&line).going_on.push(going_on);
            }
            Err(_) => lock(&line).ended.push((token, seq, rev, EndedAttempt::new(AttemptEnd::Panicked))),
        }
        if began.elapsed() > PATIENCE {
            lock(&line).dissolve(&context);
        }
        if turn % TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
    line.is_over.notify_one();
    lock(&line).bring()
}

/// Makes sure that no attempt waits too long for its start.
async fn watch(context: Arc<Context>, line: Arc<Line>) -> Attempted {
    let _ = tokio::time::timeout(PATIENCE, line.is_over.notified()).await;
    let mut places = lock(&line);
    places.dissolve(&context);
    places.bring()
}

fn lock(line: &Line) -> MutexGuard<'_, Places> {
    line.places.lock().unwrap_or_else(PoisonError::into_inner)
}
