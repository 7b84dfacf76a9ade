//! Many attempts that start at once.
//!
//! A task for each of them costs more than a short handler does: memory for it, a place in the runtime's lists, a
//! worker that is woken. So where many start together, a few tasks take them from one line, one after the other,
//! and poll each once. A short handler ends there. One that waits for something gets a task of its own, in which it
//! goes on.
//!
//! A handler that computes or blocks holds up nobody: as many tasks take from the line as the runtime has workers,
//! and after [`PATIENCE`] everyone who is still in line gets a task of its own. Somebody watches that, because all
//! who take from the line may be blocked while the runtime is not (`block_in_place`).

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture};
use redrive_core::scheduler::{Ending, Said, Ticket};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::context::Context;
use super::perform::{Attempted, Ended, attempt_one};

/// From how many on. For fewer, a task each starts them sooner.
pub(super) const LINE_LEAST: usize = 16;
/// How long a line may take.
const PATIENCE: Duration = Duration::from_millis(1);
/// How many are started before other tasks have their turn.
const TURN: usize = 32;

/// An attempt that has a task of its own, or is to get one.
pub(super) type Attempt = BoxFuture<'static, Option<Ended>>;

/// A line, and whoever watches it.
struct Line {
    places: Mutex<Places>,
    /// Told when nobody is in line any more.
    is_over: Notify,
}

/// Those that are to start, and what became of the others.
struct Places {
    waiting: std::vec::IntoIter<Box<Ticket>>,
    ended: Vec<Ended>,
    going_on: Vec<Attempt>,
}

impl Places {
    /// What became of all so far.
    fn bring(&mut self) -> Attempted {
        Attempted::Several(std::mem::take(&mut self.ended), std::mem::take(&mut self.going_on))
    }

    /// Everyone who is still in line gets a task of its own.
    fn dissolve(&mut self, context: &Context) {
        let attempt = |ticket: Box<Ticket>| attempt_one(context, *ticket).map(Some).boxed();
        self.going_on.extend(self.waiting.by_ref().map(attempt));
    }
}

/// Starts attempts of handlers that take one event each.
#[allow(clippy::vec_box, reason = "they come in boxes, and a box is moved for less than a ticket")]
pub(super) fn start(context: &Arc<Context>, tickets: Vec<Box<Ticket>>, attempts: &mut JoinSet<Attempted>) {
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

/// Starts one after the other. Whoever is the first to find nobody in line brings what became of all so far.
async fn take_from(context: Arc<Context>, line: Arc<Line>) -> Attempted {
    let began = Instant::now();
    let mut place = Box::pin(OptionFuture::from(None));
    for turn in 1.. {
        let next = lock(&line).waiting.next();
        let Some(ticket) = next else { break };
        let (grant, seq, rev) = (ticket.grant, ticket.entry.seq, ticket.entry.rev);
        place.set(Some(attempt_one(&context, *ticket)).into());
        // It catches its handler's panics. Of one that is not its handler's, an observer's perhaps, only this event
        // suffers.
        let polled = std::future::poll_fn(|task| Poll::Ready(place.as_mut().poll(task)));
        match AssertUnwindSafe(polled).catch_unwind().await {
            Ok(Poll::Ready(ended)) => lock(&line).ended.extend(ended),
            Ok(Poll::Pending) => {
                // It stays where it is, and whoever comes next gets another place.
                let going_on = std::mem::replace(&mut place, Box::pin(OptionFuture::from(None)));
                lock(&line).going_on.push(going_on);
            }
            Err(_) => lock(&line).ended.push((grant, seq, rev, Ending::new(Said::Panicked))),
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

/// Sees to it that nobody is in line for too long.
async fn watch(context: Arc<Context>, line: Arc<Line>) -> Attempted {
    let _ = tokio::time::timeout(PATIENCE, line.is_over.notified()).await;
    let mut places = lock(&line);
    places.dissolve(&context);
    places.bring()
}

fn lock(line: &Line) -> MutexGuard<'_, Places> {
    line.places.lock().unwrap_or_else(PoisonError::into_inner)
}
