//! Giving up: by a token, by dropping the future, by leaving a session.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive_core::observe::{Observer, RunFinished};
use redrive_core::{Backoff, Executed, Fault, Jitter, PolicyBuilder, Report};
use redrive_retry::{Policy, Retry, Start, StopReason, blocking, classify};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Ten attempts, 100 ms between them.
fn ten() -> PolicyBuilder {
    Policy::builder().attempts(10).backoff(Backoff::constant(MS(100))).jitter(Jitter::None).no_budget()
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_a_wait_in_the_middle() {
    let (token, start) = (CancellationToken::new(), Instant::now());
    let cancelled = token.clone();
    let task = tokio::spawn(async move {
        let policy = ten().backoff(Backoff::constant(MS(3_600_000))).build().unwrap();
        let down = || async { Err::<(), _>("down") };
        let retried = down.retry(&policy).classify(classify::all).cancel_on(cancelled.cancelled());
        retried.await.unwrap_err()
    });
    sleep(MS(10)).await;
    token.cancel();
    let stopped = task.await.unwrap();
    assert_eq!(start.elapsed(), MS(10), "not a millisecond of the hour");
    assert_eq!(stopped.error, Some("down"));
    assert_eq!((stopped.report.reason, stopped.report.waited), (StopReason::Cancelled, MS(10)));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_under_way_is_finished_before_it_is_cancelled() {
    let policy = ten().build().unwrap();
    let start = Instant::now();
    let fails = || async {
        sleep(MS(1_000)).await;
        Err::<(), _>("down")
    };
    let stopped = fails.retry(&policy).classify(classify::all).cancel_on(sleep(MS(500))).await.unwrap_err();
    assert_eq!((start.elapsed(), stopped.error), (MS(1_000), Some("down")));
    assert_eq!((stopped.report.reason, stopped.report.attempts), (StopReason::Cancelled, 1));

    let works = || async {
        sleep(MS(1_000)).await;
        Ok::<_, &str>("done")
    };
    let done = works.retry(&policy).classify(classify::all).cancel_on(sleep(MS(500))).await;
    assert_eq!(done.unwrap(), "done", "its answer is not thrown away");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_future_drops_the_attempt() {
    struct PolicyHandle(Arc<AtomicBool>);
    impl Drop for PolicyHandle {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let (policy, torn, calls) = (ten().build().unwrap(), Arc::new(AtomicBool::new(false)), AtomicU32::new(0));
    let call = || {
        calls.fetch_add(1, SeqCst);
        let held = PolicyHandle(Arc::clone(&torn));
        async move {
            let _held = held;
            pending::<Result<(), &str>>().await
        }
    };
    let waited = timeout(MS(10), call.retry(&policy).classify(classify::all).into_future()).await;
    assert!(waited.is_err() && torn.load(SeqCst));
    sleep(MS(10_000)).await;
    assert_eq!(calls.load(SeqCst), 1, "and nothing follows");
}

#[tokio::test(start_paused = true)]
async fn a_session_s_wait_that_was_dropped_goes_on_where_it_was() {
    let policy = ten().build().unwrap();
    let (mut session, start) = (policy.start(), Instant::now());
    session.next().await;
    session.failed("down", classify::all);
    assert!(timeout(MS(60), session.next()).await.is_err());
    assert_eq!(session.next().await.map(|attempt| attempt.number()), Some(2));
    assert_eq!(start.elapsed(), MS(100));
}

#[tokio::test(start_paused = true)]
async fn a_session_s_attempt_of_which_nothing_was_said_is_the_last() {
    let policy = ten().build().unwrap();
    let mut session = policy.start::<&str>();
    session.next().await;
    assert!(timeout(MS(60), session.run(pending::<Result<(), _>>(), classify::all)).await.is_err());
    assert_eq!(session.next().await, None);
    assert_eq!(session.report().unwrap().reason, StopReason::Unclassified);
    assert_eq!(session.report().unwrap().executed, Executed::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_blocking_wait_that_says_no_is_the_end() {
    let policy = ten().build().unwrap();
    let mut waits = Vec::new();
    let stopped = blocking::Retry::retry(|| Err::<(), _>("down"), &policy)
        .classify(classify::all)
        .wait_with(|wait| {
            waits.push(wait);
            waits.len() < 3
        })
        .call()
        .unwrap_err();
    assert_eq!(waits, [MS(100); 3]);
    assert_eq!((stopped.report.reason, stopped.report.attempts), (StopReason::Cancelled, 3));
}

/// Hears how runs end.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<Vec<Report>>>);

impl Observer for Ends {
    fn ended(&self, ended: RunFinished<'_>) {
        self.0.lock().unwrap().push(*ended.report);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_dropped_is_heard_of_as_cancelled() {
    let ends = Ends::default();
    let policy = ten().observer(ends.clone()).build().unwrap();
    let refused = || async { Err::<(), _>("refused") };
    let waiting = refused.retry(&policy).classify(|_: &&str| Fault::transient().not_executed()).into_future();
    let stuck = (|| pending::<Result<(), &str>>()).retry(&policy).into_future();
    let _ = timeout(Duration::from_nanos(1), waiting).await;
    let _ = timeout(Duration::from_millis(1), stuck).await;
    drop((|| async { Ok::<_, &str>(()) }).retry(&policy).into_future());
    (|| async { Ok::<_, &str>(()) }).retry(&policy).await.unwrap();

    let ends = ends.0.lock().unwrap();
    let seen: Vec<_> = ends.iter().map(|report| (report.reason, report.attempts, report.executed)).collect();
    let wanted = [
        (StopReason::Cancelled, 1, Executed::No),
        (StopReason::Cancelled, 1, Executed::Unknown),
        (StopReason::Succeeded, 1, Executed::No),
    ];
    assert_eq!(seen, wanted, "what was never polled never began");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_left_in_the_middle_of_an_attempt_knows_nothing_of_its_effect() {
    let mut session = ten().build().unwrap().start::<&str>();
    assert!(session.next().await.is_some());
    let report = session.stopped().report;
    assert_eq!((report.reason, report.executed), (StopReason::Cancelled, Executed::Unknown));
}

#[tokio::test(start_paused = true)]
async fn a_session_calls_nothing_twice_for_one_attempt() {
    let mut session = ten().build().unwrap().start::<&str>();
    let calls = AtomicU32::new(0);
    let call = || async {
        calls.fetch_add(1, SeqCst);
        Ok::<_, &str>(())
    };
    assert!(session.run(call(), classify::all).await.is_none(), "before the first");
    assert!(session.next().await.is_some());
    assert!(session.run(call(), classify::all).await.is_some());
    assert!(session.run(call(), classify::all).await.is_none(), "after the last");
    assert_eq!(calls.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_session_cancelled_while_it_waits_ends_at_once() {
    let mut session = ten().build().unwrap().start();
    assert!(session.next_unless(pending()).await.is_some());
    session.failed("down", classify::all);
    let before = Instant::now();
    assert!(session.next_unless(sleep(MS(10))).await.is_none());
    assert_eq!(before.elapsed(), MS(10));
    assert_eq!(session.stopped().report.reason, StopReason::Cancelled);
}

#[test]
fn a_blocking_retry_without_waits_can_be_cancelled_too() {
    use blocking::Retry;
    let policy = ten().backoff(Backoff::NONE).build().unwrap();
    let stopped =
        (|| Err::<(), _>("down")).retry(&policy).classify(classify::all).wait_with(|_| false).call();
    assert_eq!(stopped.unwrap_err().report.attempts, 1);
}

#[tokio::test]
async fn an_observer_that_panics_fails_the_call_and_not_the_process() {
    struct Panics;
    impl Observer for Panics {
        fn attempted(&self, _: redrive_core::observe::AttemptFinished<'_>) {
            panic!("while told of an attempt");
        }
        fn ended(&self, _: RunFinished<'_>) {
            panic!("while told of the end");
        }
    }
    let policy = Policy::builder().observer(Panics).build().unwrap();
    let call = async move { (|| async { Ok::<_, &str>(()) }).retry(&policy).await };
    assert!(tokio::spawn(call).await.unwrap_err().is_panic());
}
