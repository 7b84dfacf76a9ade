//! For tests of code that uses the engine: a store in memory, time that stands still until it is needed, and
//! questions to ask afterwards.
//!
//! ```
//! use redrive::prelude::*;
//! use redrive::{Event, testing};
//!
//! # fn main() {
//! # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(
//! // #[tokio::test(start_paused = true)]
//! async {
//!     let redrive = testing::memory();
//!     redrive.queue("orders").handle(|_| async { Disposition::from(Fault::transient()) }).await.unwrap();
//!     redrive.start().await.unwrap();
//!     redrive.publish(Event::new("orders", "order-17")).await.unwrap();
//!
//!     testing::drain(&redrive).await; // all retries, in no time
//!     let letter = testing::expect_dead(&redrive, "orders", "order-17").await;
//!     assert_eq!(letter.attempts, 3);
//! }
//! # );
//! # }
//! ```

use std::time::Duration;

use redrive_core::Moment;
use redrive_core::event::{DeadReason, State};
use redrive_core::triage::Filter;
use redrive_store::{Found, Query};

use crate::engine::{Options, Redrive, Timepiece};

/// How much time may pass in [`drain`]: a policy that retries for longer is better asked about directly.
const DRAIN_MAX: Duration = Duration::from_secs(366 * 86_400);

/// How often [`drain`] finds events that are due while the engine has nothing to do, before it says so. In real time
/// another process may be about to hand them over, or to run them.
const IDLE_MAX: u32 = 5_000;

/// An engine over a store in memory. Its time is tokio's: with `start_paused`, none passes while there is
/// something to do, and all that is needed at once when there is not. Its dice are seeded: the waits are the
/// same in each run.
#[must_use]
pub fn memory() -> Redrive {
    // A day in 2026, so that times look like times.
    let start = Moment::from_nanos(1_790_000_000_000_000_000);
    Options::new()
        .clock(Timepiece::paused_at(start))
        .seed(1)
        .over(std::sync::Arc::new(crate::engine::Memory::new()))
}

/// Has time pass at once: for what goes by the store's clock and by no timer, such as leases of requests and how long
/// their answers are kept.
pub fn pass(redrive: &Redrive, time: Duration) {
    redrive.pass(time);
}

/// Waits until every event is done, dead or parked: also those that wait for a retry or a later time. With
/// paused time that takes no time.
///
/// # Panics
/// If it was not started; if events are still waiting after a year, or are due and nobody runs them, naming them.
pub async fn drain(redrive: &Redrive) {
    assert!(redrive.is_started(), "nothing is run yet: call `start` first");
    let start = redrive.now();
    let mut idle_for = 0;
    loop {
        redrive.idle().await;
        let now = redrive.now();
        let wait = match left(redrive).await {
            Left::Nothing => return,
            // About to be handed over, or nobody's.
            Left::Ready => Duration::from_millis(1),
            Left::Waiting(due) => due.since(now).max(Duration::from_millis(1)),
        };
        idle_for = if wait <= Duration::from_millis(1) { idle_for + 1 } else { 0 };
        assert!(idle_for < IDLE_MAX, "due, and without a handler here: {}", waiting(redrive).await);
        assert!(now.since(start) < DRAIN_MAX, "events still wait after a year: {}", waiting(redrive).await);
        tokio::time::sleep(wait).await;
    }
}

/// What is still to run.
enum Left {
    Nothing,
    Ready,
    /// Until then at least. Those that wait for another of their key have a time that is past.
    Waiting(Moment),
}

async fn left(redrive: &Redrive) -> Left {
    // All states as of one moment: between two looks, one that waited may be due, and be in neither.
    let is_left = |state| matches!(state, State::Ready | State::Waiting);
    match redrive.counts().await {
        Ok(counts) if !counts.iter().any(|count| is_left(count.state)) => return Left::Nothing,
        Ok(_) => {}
        Err(error) => panic!("cannot count events: {error}"),
    }
    let now = redrive.now();
    if !page(redrive, State::Ready).await.is_empty() {
        return Left::Ready;
    }
    let waiting = page(redrive, State::Waiting).await;
    let due = waiting.iter().filter_map(|(_, found)| found.due).filter(|due| *due > now).min();
    due.map_or(Left::Ready, Left::Waiting)
}

async fn page(redrive: &Redrive, state: State) -> Vec<(std::sync::Arc<redrive_core::Event>, Found)> {
    match redrive.events(Query { state: Some(state), ..Query::default() }).await {
        Ok(page) => page.events,
        Err(error) => panic!("cannot look for events: {error}"),
    }
}

async fn waiting(redrive: &Redrive) -> String {
    let mut events = Vec::new();
    for state in [State::Ready, State::Waiting] {
        events.extend(page(redrive, state).await.into_iter().take(5));
    }
    events.iter().map(|(event, _)| format!("{}/{}", event.queue, event.id)).collect::<Vec<_>>().join(", ")
}

/// What became of an event.
///
/// # Panics
/// If there is no such event.
pub async fn fate(redrive: &Redrive, queue: &str, id: &str) -> Found {
    match redrive.event("", queue, id).await {
        Ok(Some(found)) => found,
        Ok(None) => panic!("there is no event {queue}/{id}"),
        Err(error) => panic!("cannot look for {queue}/{id}: {error}"),
    }
}

/// A dead letter.
///
/// # Panics
/// If the event is not dead, saying what it is.
pub async fn expect_dead(redrive: &Redrive, queue: &str, id: &str) -> Found {
    let found = fate(redrive, queue, id).await;
    assert_eq!(found.state, State::Dead, "{queue}/{id} is not dead: {found:?}");
    found
}

/// The ids of a queue's dead letters and why they died, oldest first.
///
/// # Panics
/// If the store cannot be read.
pub async fn dead_letters(redrive: &Redrive, queue: &str) -> Vec<(String, DeadReason)> {
    let mut letters = Vec::new();
    let state = Some(State::Dead);
    let mut query = Query { filter: Filter::queue(queue), state, ..Query::default() };
    loop {
        let page = match redrive.events(query.clone()).await {
            Ok(page) => page,
            Err(error) => panic!("cannot look for dead letters: {error}"),
        };
        let letter = |(event, found): (std::sync::Arc<redrive_core::Event>, Found)| {
            Some((event.id.clone(), found.reason?))
        };
        letters.extend(page.events.into_iter().filter_map(letter));
        query.after = page.next;
        if query.after.is_none() {
            return letters;
        }
    }
}
