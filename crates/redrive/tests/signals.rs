//! Stopping by signals. A binary of its own: a signal is the whole process'.
#![cfg(all(feature = "engine", unix))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;
use std::time::{Duration, Instant};

use redrive::event::State;
use redrive::{Event, testing};

const SECOND: Duration = Duration::from_secs(1);

fn signal(name: &str) {
    let sent = Command::new("kill").args([name, &std::process::id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_signal_waits_for_attempts_and_the_second_does_not() {
    for signals in [vec!["-TERM"], vec!["-INT", "-INT"]] {
        let redrive = testing::memory();
        let time = if signals.len() == 1 { SECOND / 5 } else { 3600 * SECOND };
        redrive.queue("orders").handle(move |_| tokio::time::sleep(time)).await.unwrap();
        redrive.start().await.unwrap();
        redrive.publish(Event::new("orders", "1")).await.unwrap();
        while testing::fate(&redrive, "orders", "1").await.state != State::Running {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let running = tokio::spawn({
            let redrive = redrive.clone();
            async move { redrive.run_until_signal(3600 * SECOND).await }
        });
        let begin = Instant::now();
        for name in &signals {
            // Until the handlers of signals are there, a signal would end this process.
            tokio::time::sleep(SECOND / 10).await;
            signal(name);
        }
        let stopping = tokio::time::timeout(10 * SECOND, running).await.unwrap().unwrap().unwrap();
        assert_eq!(stopping.all_ended, signals.len() == 1, "{signals:?}");
        assert!(begin.elapsed() < 5 * SECOND);
        let closed = redrive.publish(Event::new("orders", "2")).await.unwrap_err().to_string();
        assert!(closed.contains("closed"), "{closed}");
        let again = redrive.start().await.unwrap_err().to_string();
        assert!(again.contains("closed"), "{again}");
    }
}
