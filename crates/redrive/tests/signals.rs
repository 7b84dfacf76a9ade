//! Stopping by signals. A binary of its own: a signal goes to the whole process.
#![cfg(all(feature = "engine", unix))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use redrive::{Event, Redrive, testing};
use tokio::sync::Semaphore;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn signal(name: &str) {
    let sent = Command::new("kill").args([name, &std::process::id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// An engine with a running attempt that ends when the gate gives a permit.
async fn with_an_attempt(gate: &Arc<Semaphore>) -> Redrive {
    let redrive = testing::memory();
    let (began, gate) = (Arc::new(Semaphore::new(0)), gate.clone());
    let begins = began.clone();
    let handler = move |_| {
        begins.add_permits(1);
        let gate = gate.clone();
        async move { gate.acquire().await.unwrap().forget() }
    };
    redrive.queue("orders").handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    began.acquire().await.unwrap().forget();
    redrive
}

async fn is_closed(redrive: &Redrive) {
    let closed = redrive.publish(Event::new("orders", "2")).await.unwrap_err().to_string();
    assert!(closed.contains("closed"), "{closed}");
    let again = redrive.start().await.unwrap_err().to_string();
    assert!(again.contains("closed"), "{again}");
}

// One test, because a signal reaches all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_signal_waits_for_attempts_and_the_second_does_not() {
    let gate = Arc::new(Semaphore::new(0));
    let redrive = with_an_attempt(&gate).await;
    let mut running = pin!(redrive.run_until_signal(HOUR));
    // Once it was polled it listens; before, a signal would end this process.
    assert!(poll!(&mut running).is_pending());
    signal("-TERM");
    assert!(tokio::time::timeout(SECOND / 10, &mut running).await.is_err(), "an attempt is under way");
    gate.add_permits(1);
    let stopping = tokio::time::timeout(10 * SECOND, running).await.expect("it hangs").unwrap();
    assert!(stopping.all_ended);
    is_closed(&redrive).await;

    let redrive = with_an_attempt(&gate).await;
    let mut running = pin!(redrive.run_until_signal(HOUR));
    assert!(poll!(&mut running).is_pending());
    signal("-INT");
    assert!(tokio::time::timeout(SECOND / 10, &mut running).await.is_err(), "an attempt is under way");
    signal("-INT");
    let stopping = tokio::time::timeout(10 * SECOND, running).await.expect("it hangs").unwrap();
    assert!(!stopping.all_ended);
    is_closed(&redrive).await;
}
