//! For tests of code that uses the engine: a store in memory, time that stands still until it is needed, and
//! assertions.
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
use redrive_store::{EventQuery, EventStatus};

use crate::engine::{EventClock, OpenOptions, Redrive};

/// How much time may pass in [`drain`]: check a policy that retries for longer directly.
const DRAIN_MAX: Duration = Duration::from_secs(366 * 86_400);

/// How often [`drain`] finds due events while the engine is idle before it panics. In real time another process may be
/// about to hand them over, or to run them.
const IDLE_MAX: u32 = 5_000;

/// An engine over a store in memory. Its time is tokio's: with `start_paused`, no time passes while there is work, and
/// it jumps ahead when there is none. Its random source is seeded: the waits are the same in each run.
#[must_use]
pub fn memory() -> Redrive {
    memory_with_seed(1)
}

/// The same with another seed, to test under many different waits.
#[must_use]
pub fn memory_with_seed(seed: u64) -> Redrive {
    // A day in 2026, so that times look like times.
    let start = Moment::from_nanos(1_790_000_000_000_000_000);
    OpenOptions::new()
        .clock(EventClock::paused_at(start))
        .seed(seed)
        .over(std::sync::Arc::new(crate::engine::Memory::new()))
}

/// Advances time at once: for anything that follows the store's clock rather than a timer, such as the leases of
/// requests and how long their answers are kept.
pub fn pass(redrive: &Redrive, time: Duration) {
    redrive.pass(time);
}

/// Waits until every event is done, dead or parked, including events that wait for a retry or a later time. With
/// paused time that takes no time.
///
/// # Panics
/// If the engine was not started; if events still wait after a year, or are due without a handler that runs them; with
/// their names.
pub async fn drain(redrive: &Redrive) {
    assert!(redrive.is_started(), "nothing is run yet: call `start` first");
    let start = redrive.now();
    let mut idle_for = 0;
    loop {
        redrive.idle().await;
        let now = redrive.now();
        let wait = match left(redrive).await {
            Left::Nothing => return,
            // About to be handed over, or without an owner.
            Left::Ready => Duration::from_millis(1),
            Left::Waiting(due) => due.since(now).max(Duration::from_millis(1)),
        };
        idle_for = if wait <= Duration::from_millis(1) { idle_for + 1 } else { 0 };
        assert!(idle_for < IDLE_MAX, "due, and without a handler here: {}", waiting(redrive).await);
        assert!(now.since(start) < DRAIN_MAX, "events still wait after a year: {}", waiting(redrive).await);
        tokio::time::sleep(wait).await;
    }
}

/// The events that still have to run.
enum Left {
    Nothing,
    Ready,
    /// At least until then. Events that wait for another of their key have a time in the past.
    Waiting(Moment),
}

async fn left(redrive: &Redrive) -> Left {
    // All states as of one moment: between two reads, a waiting event may become due, and be in neither.
    let is_left = |state| matches!(state, State::Ready | State::Waiting);
    match redrive.store().count(redrive.now()).await {
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

async fn page(redrive: &Redrive, state: State) -> Vec<(std::sync::Arc<redrive_core::Event>, EventStatus)> {
    match redrive.events(EventQuery { state: Some(state), ..EventQuery::default() }).await {
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

/// The status of an event.
///
/// # Panics
/// If there is no such event.
pub async fn fate(redrive: &Redrive, queue: &str, id: &str) -> EventStatus {
    match redrive.event("", queue, id).await {
        Ok(Some(found)) => found,
        Ok(None) => panic!("there is no event {queue}/{id}"),
        Err(error) => panic!("cannot look for {queue}/{id}: {error}"),
    }
}

/// The status of a dead letter.
///
/// # Panics
/// If the event is not dead, with its state.
pub async fn expect_dead(redrive: &Redrive, queue: &str, id: &str) -> EventStatus {
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
    let mut query = EventQuery { filter: Filter::queue(queue), state, ..EventQuery::default() };
    loop {
        let page = match redrive.events(query.clone()).await {
            Ok(page) => page,
            Err(error) => panic!("cannot look for dead letters: {error}"),
        };
        let letter = |(event, found): (std::sync::Arc<redrive_core::Event>, EventStatus)| {
            Some((event.id.clone(), found.reason?))
        };
        letters.extend(page.events.into_iter().filter_map(letter));
        query.after = page.next;
        if query.after.is_none() {
            return letters;
        }
    }
}
