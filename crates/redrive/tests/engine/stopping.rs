//! Starting and stopping.

use redrive::engine::{Memory, Options, Redrive, StartError, Timepiece};
use redrive::event::State;
use redrive::{Event, Moment, testing};
use std::sync::Arc;

use crate::SECOND;

/// An engine over this store; what a restart makes anew.
async fn over(store: &Memory, sleeps: std::time::Duration) -> Redrive {
    let clock = Timepiece::paused_at(Moment::from_nanos(1_790_000_000_000_000_000));
    let redrive = Options::new().clock(clock).over(Arc::new(store.clone()));
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
