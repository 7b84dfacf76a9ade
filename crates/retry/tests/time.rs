//! Time-outs and deadlines, on a clock that stands still until everybody waits.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use redrive_core::{Backoff, Executed, Jitter, PolicyBuilder};
use redrive_retry::{Attempt, Policy, Retry, Start, StopReason, blocking, classify};
use tokio::time::{Instant, sleep};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Ten attempts, 100 ms between them.
fn ten() -> PolicyBuilder {
    Policy::builder().attempts(10).backoff(Backoff::constant(MS(100))).jitter(Jitter::None).no_budget()
}

/// A call that hangs. If it is not ended, the test fails instead of hanging.
async fn hang<T>() -> T {
    sleep(Duration::from_secs(24 * 60 * 60)).await;
    panic!("it was not ended")
}

/// A call that takes this long and then fails.
fn slow(time: Duration) -> impl AsyncFn() -> Result<(), &'static str> + Copy {
    async move || {
        sleep(time).await;
        Err("down")
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_takes_too_long_is_ended_and_its_effect_is_unknown() {
    let policy = ten().attempts(3).attempt_time(MS(1_000)).build().unwrap();
    let hangs = || hang::<Result<(), &str>>();

    let start = Instant::now();
    let stopped = hangs.retry(&policy).classify(classify::all).await.unwrap_err();
    assert_eq!(start.elapsed(), MS(3_200));
    assert_eq!(stopped.error, None);
    assert_eq!(stopped.report.reason, StopReason::AttemptsSpent);
    assert_eq!(stopped.report.executed, Executed::Unknown);
    assert!(stopped.report.timed_out);
    assert!(stopped.to_string().ends_with("the last attempt timed out"));

    let start = Instant::now();
    let mut session = policy.start();
    while session.next().await.is_some() {
        assert_eq!(session.run(hangs(), classify::all).await, None);
    }
    assert_eq!(start.elapsed(), MS(3_200));
    assert_eq!(session.stopped(), stopped);
}

#[tokio::test(start_paused = true)]
async fn a_success_after_a_time_out_is_no_time_out() {
    let policy = ten().attempt_time(MS(1_000)).build().unwrap();
    let call = |attempt: Attempt| async move {
        if attempt.number() == 1 {
            hang::<()>().await;
        }
        Ok::<_, &str>(attempt.number())
    };
    let reported = call.retry(&policy).classify(classify::all).report().await;
    assert!(!reported.report.timed_out);
    assert_eq!(reported.into_result().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_error_before_a_time_out_is_kept() {
    let policy = ten().attempts(2).attempt_time(MS(1_000)).build().unwrap();
    let call = |attempt: Attempt| async move {
        if attempt.number() == 2 {
            hang::<()>().await;
        }
        Err::<(), _>("down")
    };
    let stopped = call.retry(&policy).classify(classify::all).await.unwrap_err();
    assert_eq!((stopped.error, stopped.report.timed_out), (Some("down"), true));
}

#[tokio::test(start_paused = true)]
async fn the_time_in_all_counts_the_calls_too() {
    let policy = ten().time(MS(1_000)).build().unwrap();
    let start = Instant::now();
    let call = slow(MS(400));
    let stopped = (|| call()).retry(&policy).classify(classify::all).await.unwrap_err();
    // Calls from 0 to 400 and from 500 to 900; the next could only start at 1000.
    assert_eq!(stopped.report.reason, StopReason::TimeSpent);
    assert_eq!((stopped.report.attempts, start.elapsed()), (2, MS(900)));
    assert_eq!(stopped.report.waited, MS(100));
}

#[tokio::test(start_paused = true)]
async fn the_time_in_all_ends_a_running_attempt() {
    let policy = ten().time(MS(1_000)).build().unwrap();
    let start = Instant::now();
    let call = slow(MS(700));
    let stopped = (|| call()).retry(&policy).classify(classify::all).await.unwrap_err();
    assert_eq!(stopped.report.reason, StopReason::TimeSpent);
    assert_eq!((stopped.report.attempts, start.elapsed()), (2, MS(1_000)));
    assert!(stopped.report.timed_out);
}

#[tokio::test(start_paused = true)]
async fn in_every_call_style_no_wait_is_planned_past_the_deadline() {
    let policy = ten().build().unwrap();
    let start = Instant::now();
    let down = || async { Err::<(), _>("down") };
    let stopped = down.retry(&policy).classify(classify::all).within(MS(250)).await.unwrap_err();
    assert_eq!(start.elapsed(), MS(200), "it stops at once, and not at the deadline");
    assert_eq!((stopped.report.reason, stopped.report.attempts), (StopReason::Deadline, 3));

    let start = Instant::now();
    let mut session = policy.start().deadline((start + MS(250)).into_std());
    while session.next().await.is_some() {
        session.failed("down", classify::all);
    }
    assert_eq!(start.elapsed(), MS(200));
    assert_eq!(session.stopped(), stopped);

    let now = Instant::now().into_std();
    let ended = blocking::Retry::retry(|| Err::<(), _>("down"), &policy)
        .classify(classify::all)
        .deadline(now + MS(100))
        .wait_with(|_| unreachable!("a wait of 100 ms ends too late"))
        .call()
        .unwrap_err();
    assert_eq!((ended.report.reason, ended.report.attempts), (StopReason::Deadline, 1));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_a_running_attempt() {
    let policy = ten().build().unwrap();
    let start = Instant::now();
    let hangs = |attempt: Attempt| {
        assert_eq!(attempt.remaining(), Some(MS(1_000)));
        hang::<Result<(), &str>>()
    };
    let stopped = hangs.retry(&policy).classify(classify::all).within(MS(1_000)).await.unwrap_err();
    assert_eq!(start.elapsed(), MS(1_000));
    assert_eq!(stopped.report.reason, StopReason::Deadline);
    assert!(stopped.report.timed_out);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_called_when_the_deadline_has_passed() {
    let policy = ten().build().unwrap();
    let past = Instant::now().into_std();
    sleep(MS(1)).await;
    let call = || async { unreachable!("too late") as Result<(), &str> };
    let stopped = call.retry(&policy).deadline(past).await.unwrap_err();
    assert_eq!((stopped.error, stopped.report.attempts), (None, 0));
    assert_eq!(stopped.report.reason, StopReason::Deadline);
}

/// On the real clock: an attempt that never gives up its thread does not let a paused one run on.
#[tokio::test]
async fn an_attempt_that_hogs_its_thread_ends_at_its_time_out() {
    let policy = Policy::builder().attempts(1).attempt_time(MS(5)).build().unwrap();
    let free = tokio::sync::Semaphore::new(1);
    // It gives up by itself after a second, so that a time-out that does not come is a failure and no hang.
    let hog = || async {
        let started = std::time::Instant::now();
        while started.elapsed() < MS(1_000) {
            drop(free.acquire().await);
        }
        Ok::<(), &str>(())
    };
    let stopped = hog.retry(&policy).await.unwrap_err();
    assert!(stopped.report.timed_out);
    let mut session = policy.start();
    assert!(session.next().await.is_some());
    assert!(session.run(hog(), classify::all).await.is_none());
    assert!(session.stopped().report.timed_out);
}
