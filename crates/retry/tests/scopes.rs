//! What sees the retry around it, and what does not.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use redrive_core::{Backoff, Jitter, PolicyBuilder};
use redrive_retry::scope::{self, RetryScope};
use redrive_retry::{Attempt, Policy, Retry, StopReason, blocking, classify, clock};
use tokio::time::sleep;

/// Three attempts, 100 ms between them.
fn three() -> PolicyBuilder {
    Policy::builder().backoff(Backoff::constant(Duration::from_millis(100))).jitter(Jitter::None).no_budget()
}

#[tokio::test(start_paused = true)]
async fn a_spawned_task_sees_the_retry_around_it_only_when_it_is_carried() {
    let (policy, calls) = (three().build().unwrap(), Arc::new(AtomicU32::new(0)));
    let inner = |policy: Policy, calls: Arc<AtomicU32>| async move {
        let call = || async {
            calls.fetch_add(1, SeqCst);
            Err::<(), _>("down")
        };
        let repeated = scope::current().is_some_and(|scope| scope.repeats());
        (repeated, call.retry(&policy).classify(classify::all).await)
    };
    for (carried, expected) in [(true, 3), (false, 9)] {
        let call = || async {
            let work = inner(policy.clone(), Arc::clone(&calls));
            let task = if carried { tokio::spawn(scope::carry(work)) } else { tokio::spawn(work) };
            let (repeated, ended) = task.await.unwrap();
            assert_eq!(repeated, carried);
            ended
        };
        calls.store(0, SeqCst);
        call.retry(&policy).classify(classify::all).await.unwrap_err();
        assert_eq!(calls.load(SeqCst), expected, "carried: {carried}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_runs_beside_an_attempt_does_not_see_it() {
    let policy = three().build().unwrap();
    let call = || async {
        sleep(Duration::from_millis(100)).await;
        Ok::<_, &str>(Attempt::current().is_some())
    };
    let beside = async {
        sleep(Duration::from_millis(50)).await;
        Attempt::current().is_some()
    };
    let (inside, beside) = tokio::join!(call.retry(&policy).into_future(), beside);
    assert_eq!((inside.unwrap(), beside), (true, false));
}

#[test]
fn a_panic_inside_an_attempt_leaves_the_scope_around_it() {
    use blocking::Retry;
    let policy = three().build().unwrap();
    let outer = |attempt: Attempt| {
        let panics = || -> Result<(), &str> { panic!("inside the inner attempt") };
        let caught = catch_unwind(AssertUnwindSafe(|| panics.retry(&policy).call()));
        assert!(caught.is_err());
        assert_eq!(Attempt::current(), Some(attempt), "the outer attempt's own scope is back");
        panic!("inside the outer attempt") as Result<(), &str>
    };
    assert!(catch_unwind(AssertUnwindSafe(|| outer.retry(&policy).call())).is_err());
    assert_eq!(Attempt::current(), None);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_leaves_no_scope_on_its_thread() {
    let task = tokio::spawn(async {
        let panics = || async { panic!("inside an attempt") as Result<(), &str> };
        panics.retry(&Policy::default()).await
    });
    assert!(task.await.unwrap_err().is_panic());
    assert!(scope::current().is_none(), "this test has one thread");
}

#[tokio::test(start_paused = true)]
async fn an_incoming_request_whose_sender_counts_is_tried_once() {
    let policy = three().build().unwrap();
    let handler =
        || async { (|| async { Err::<(), _>("down") }).retry(&policy).classify(classify::all).await };

    let (ended, scope) = RetryScope::incoming(Some(2), None).around(handler()).await;
    assert_eq!(ended.unwrap_err().report.attempts, 1);
    assert_eq!(scope.unwrap().forbidden(), None, "the sender may try again");

    let (ended, scope) = RetryScope::incoming(None, None).around(handler()).await;
    assert_eq!(ended.unwrap_err().report.attempts, 3);
    let told = scope.unwrap().forbidden();
    assert_eq!(told, Some(StopReason::AttemptsSpent), "the sender need not: it was tried");

    let soon = clock() + Duration::from_millis(150);
    let (ended, _) = RetryScope::incoming(None, Some(soon)).around(handler()).await;
    let report = ended.unwrap_err().report;
    assert_eq!((report.reason, report.attempts), (StopReason::Deadline, 2));
}

#[tokio::test(start_paused = true)]
async fn in_vain_is_heard_through_a_layer_that_does_not_retry_itself() {
    let (policy, once) = (three().build().unwrap(), three().attempts(1).build().unwrap());
    let calls = AtomicU32::new(0);
    let down = || async {
        calls.fetch_add(1, SeqCst);
        Err::<(), _>("down")
    };
    let inner = || async { down.retry(&policy).classify(classify::all).await };
    let handler = async { inner.retry(&once).classify(classify::all).await };
    let (ended, scope) = RetryScope::incoming(None, None).around(handler).await;
    assert_eq!((ended.unwrap_err().report.attempts, calls.load(SeqCst)), (1, 3));
    assert_eq!(scope.unwrap().forbidden(), Some(StopReason::AttemptsSpent));
}
