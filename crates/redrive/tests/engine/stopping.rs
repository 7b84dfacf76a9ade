//! Starting and stopping.

use redrive::engine::{EventClock, Memory, OpenOptions, Redrive, StartError};
use redrive::event::State;
use redrive::{Event, Moment, testing};
use std::sync::Arc;

use crate::SECOND;

/// A process that has opened this store.
fn opened(store: &Memory) -> Redrive {
    let clock = EventClock::paused_at(Moment::from_nanos(1_790_000_000_000_000_000));
    OpenOptions::new().clock(clock).over(Arc::new(store.clone()))
}

/// The same, with handlers that run.
async fn over(store: &Memory, sleeps: std::time::Duration) -> Redrive {
    let redrive = opened(store);
    redrive.queue("orders").handle(move |_| tokio::time::sleep(sleeps)).await.unwrap();
    redrive.start().await.unwrap();
    redrive
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_attempts_and_releases_the_rest() {
    let store = Memory::new();
    let redrive = over(&store, 3600 * SECOND).await;
    redrive.publish(Event::new("orders", "slow")).await.unwrap();
    tokio::time::sleep(SECOND).await;
    assert_eq!(testing::fate(&redrive, "orders", "slow").await.state, State::Running);
    let begin = tokio::time::Instant::now();
    let stopping = redrive.shutdown(5 * SECOND).await.unwrap();
    assert!(!stopping.all_ended && begin.elapsed() >= 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_with_the_last_attempt() {
    let redrive = over(&Memory::new(), SECOND).await;
    redrive.publish(Event::new("orders", "quick")).await.unwrap();
    tokio::time::sleep(SECOND / 2).await;
    let begin = tokio::time::Instant::now();
    let stopping = redrive.shutdown(3600 * SECOND).await.unwrap();
    assert!(stopping.all_ended && begin.elapsed() < SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_wait_does_not_hold_up_a_shutdown() {
    let redrive = over(&Memory::new(), SECOND).await;
    redrive.publish(Event::new("orders", "later").delay(3600 * SECOND)).await.unwrap();
    let begin = tokio::time::Instant::now();
    redrive.shutdown(60 * SECOND).await.unwrap();
    assert!(begin.elapsed() < SECOND);
}

#[tokio::test(start_paused = true)]
async fn it_starts_once() {
    let redrive = over(&Memory::new(), SECOND).await;
    assert!(matches!(redrive.start().await, Err(StartError::Twice)));
    let late = redrive.queue("late").handle(|_| async {}).await.unwrap_err().to_string();
    assert!(late.contains("after the start"), "{late}");
}

/// A process that dies soon after each start, for a reason of its own.
async fn die_soon(store: &mut Memory, starts: usize, lives: std::time::Duration) {
    for _ in 0..starts {
        *store = store.reopen();
        let redrive = over(store, 3600 * SECOND).await;
        tokio::time::sleep(lives).await;
        // No shutdown, no drop: anything it still does comes from a dead process.
        std::mem::forget(redrive);
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_cannot_start_convicts_nobody() {
    let mut store = Memory::new();
    let publisher = opened(&store);
    publisher.queue("orders").declare().await.unwrap();
    publisher.publish(Event::new("orders", "innocent")).await.unwrap();
    die_soon(&mut store, 20, SECOND).await;
    assert_ne!(testing::fate(&publisher, "orders", "innocent").await.state, State::Dead);
    // A process that lives longer, and dies each time while this event runs alone, has reason to convict it.
    die_soon(&mut store, 3, 10 * SECOND).await;
    assert_eq!(testing::fate(&publisher, "orders", "innocent").await.state, State::Dead);
}
