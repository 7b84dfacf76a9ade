//! Layers of retries that do not multiply.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use redrive_core::breaker::BreakerSettings;
use redrive_core::{Backoff, Breaker, Budget, Fault, Jitter, PolicyBuilder};
use redrive_retry::{Attempt, Policy, Retry, Start, StopReason, blocking, classify, clock};
use tokio::time::{Instant, sleep};

/// Three attempts, 100 ms between them.
fn three() -> PolicyBuilder {
    Policy::builder().backoff(Backoff::constant(Duration::from_millis(100))).jitter(Jitter::None).no_budget()
}

/// A downstream that is down, and counts.
#[derive(Clone, Default)]
struct Down(Rc<Cell<u32>>);

impl Down {
    fn call(&self) -> Result<(), &'static str> {
        self.0.set(self.0.get() + 1);
        Err("down")
    }

    fn calls(&self) -> u32 {
        self.0.get()
    }
}

#[tokio::test(start_paused = true)]
async fn three_layers_of_three_attempts_make_three_calls() {
    let (policy, down) = (three().build().unwrap(), Down::default());
    let innermost = || async { (|| async { down.call() }).retry(&policy).classify(classify::all).await };
    let middle = || async { innermost.retry(&policy).classify(classify::all).await };
    let stopped = middle.retry(&policy).classify(classify::all).await.unwrap_err();
    assert_eq!((down.calls(), stopped.report.attempts), (3, 3), "and not 27");
    assert_eq!(stopped.report.waited, Duration::from_millis(200));
}

#[tokio::test(start_paused = true)]
async fn independent_layers_multiply() {
    let (policy, down) = (three().build().unwrap(), Down::default());
    let innermost = || async {
        let call = || async { down.call() };
        call.retry(&policy).classify(classify::all).independent().await
    };
    let outer = innermost.retry(&policy).classify(classify::all).await;
    assert_eq!((down.calls(), outer.unwrap_err().report.attempts), (9, 3));

    let middle = || async { innermost.retry(&policy).classify(classify::all).independent().await };
    let outer = middle.retry(&policy).classify(classify::all).await;
    assert_eq!((down.calls(), outer.unwrap_err().report.attempts), (9 + 27, 3));
}

#[test]
fn blocking_layers_do_not_multiply_either() {
    use blocking::Retry;
    let (policy, down) = (three().build().unwrap(), Down::default());
    let inner = || (|| down.call()).retry(&policy).classify(classify::all).wait_with(|_| true).call();
    let outer = inner.retry(&policy).classify(classify::all).wait_with(|_| true).call();
    assert_eq!((down.calls(), outer.unwrap_err().report.attempts), (3, 3));

    let inner = || {
        let call = (|| down.call()).retry(&policy).classify(classify::all);
        call.wait_with(|_| true).independent().call()
    };
    let outer = inner.retry(&policy).classify(classify::all).wait_with(|_| true).call();
    assert_eq!((down.calls(), outer.unwrap_err().report.attempts), (3 + 9, 3));
}

#[tokio::test(start_paused = true)]
async fn a_session_or_a_blocking_call_inside_postfix_makes_one_attempt_and_so_does_postfix_inside_a_session()
{
    let (policy, down) = (three().build().unwrap(), Down::default());
    let in_a_session = || async {
        let mut session = policy.start();
        while session.next().await.is_some() {
            let ended = session.run(async { down.call() }, classify::all).await;
            assert_eq!(ended, None);
        }
        Err::<(), _>(session.stopped())
    };
    let outer = in_a_session.retry(&policy).classify(classify::all).await;
    assert_eq!((down.calls(), outer.unwrap_err().report.attempts), (3, 3));

    let blocks = || async {
        let call = blocking::Retry::retry(|| down.call(), &policy).classify(classify::all);
        call.wait_with(|_| unreachable!("the outer one waits")).call()
    };
    let outer = blocks.retry(&policy).classify(classify::all).await;
    assert_eq!((down.calls(), outer.unwrap_err().report.attempts), (6, 3));

    let mut session = policy.start();
    while session.next().await.is_some() {
        let postfix = async { (|| async { down.call() }).retry(&policy).classify(classify::all).await };
        session.run(postfix, classify::all).await;
    }
    assert_eq!((down.calls(), session.report().unwrap().attempts), (9, 3));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_goes_inwards() {
    let outer = three().attempt_time(Duration::from_secs(1)).build().unwrap();
    let patient = three().backoff(Backoff::constant(Duration::from_secs(2))).build().unwrap();
    let start = Instant::now();
    let reasons = Rc::new(Cell::new(None));
    let call = || async {
        sleep(Duration::from_millis(400)).await;
        let inner = || async {
            let left = Attempt::current().unwrap().remaining();
            assert_eq!(left, Some(Duration::from_millis(600)));
            Err::<(), _>("down")
        };
        let ended = inner.retry(&patient).classify(classify::all).independent().await;
        reasons.set(ended.as_ref().err().map(|stopped| stopped.report.reason));
        ended
    };
    call.retry(&outer).classify(classify::all).await.unwrap_err();
    assert_eq!(reasons.get(), Some(StopReason::Deadline), "a wait of 2 s does not fit into 600 ms");
    assert_eq!(start.elapsed(), Duration::from_millis(3 * 400 + 200));
}

/// What ends the inner retry, and the reason that the outer one is to end for.
#[tokio::test(start_paused = true)]
async fn leave_it_alone_goes_outwards_whatever_the_outer_classifier_says() {
    let open =
        Breaker::new(BreakerSettings { window: 1, least_calls: 1, ..BreakerSettings::default() }).unwrap();
    open.admit(&clock).unwrap().failed(clock());
    let far = Fault::transient().not_before(Duration::from_secs(301));
    let nothing = Budget::share_of(0.0).unwrap();
    for (inner, fault, reason, calls) in [
        (three().budget(nothing.clone()), Fault::transient(), StopReason::BudgetSpent, 1),
        (three().budget(nothing), Fault::overload(), StopReason::BudgetSpent, 1),
        (three(), Fault::overload(), StopReason::BudgetSpent, 1),
        (three().breaker(open), Fault::transient(), StopReason::BreakerOpen, 0),
        (three(), far, StopReason::NotBeforeTooFar, 1),
    ] {
        let (inner, outer, down) = (inner.build().unwrap(), three().build().unwrap(), Down::default());
        let call = || async {
            let call = || async { down.call() };
            call.retry(&inner).classify(|_: &&str| fault).await
        };
        let stopped = call.retry(&outer).classify(classify::all).await.unwrap_err();
        assert_eq!((stopped.report.reason, stopped.report.attempts), (reason, 1), "{fault:?}");
        assert_eq!(down.calls(), calls, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_copes_with_what_was_forbidden_inside_succeeds() {
    let (policy, down) = (three().build().unwrap(), Down::default());
    let call = || async {
        let call = || async { down.call() };
        let busy = |_: &&str| Fault::overload();
        let fallen_back = call.retry(&policy).classify(busy).independent().await.is_err();
        Ok::<_, &str>(fallen_back)
    };
    assert_eq!(call.retry(&policy).classify(classify::all).await, Ok(true));
}

#[tokio::test(start_paused = true)]
async fn not_before_goes_outwards_although_the_error_has_lost_it() {
    let (policy, down) = (three().build().unwrap(), Down::default());
    let asks_for_a_minute = |_: &&str| Fault::transient().not_before(Duration::from_secs(60));
    let inner = || async {
        (|| async { down.call() }).retry(&policy).classify(asks_for_a_minute).await.map_err(|_| "it failed")
    };
    let middle = || async { inner.retry(&policy).classify(classify::all).await };
    let before = Instant::now();
    let stopped = middle.retry(&policy).classify(classify::all).await.unwrap_err();
    assert_eq!(down.calls(), 3);
    assert_eq!(stopped.report.waited, Duration::from_secs(120), "and not 200 ms");
    assert_eq!(before.elapsed(), Duration::from_secs(120));
}

#[tokio::test(start_paused = true)]
async fn an_independent_call_forbids_nothing() {
    let (policy, optional) = (three().build().unwrap(), Down::default());
    let call = || async {
        let cache = || async { optional.call() };
        let busy = |_: &&str| Fault::overload();
        let _ = cache.retry(&policy).classify(busy).independent().await;
        Err::<(), _>("deadlock")
    };
    let stopped = call.retry(&policy).classify(classify::all).await.unwrap_err();
    assert_eq!((stopped.report.reason, stopped.report.attempts), (StopReason::AttemptsSpent, 3));
}

#[tokio::test(start_paused = true)]
async fn a_budget_on_two_layers_bounds_what_both_of_them_add() {
    let policy = three().budget(Budget::share_of(0.1).unwrap()).build().unwrap();
    let down = Down::default();
    for _ in 0..1_000 {
        let inner = || async { (|| async { down.call() }).retry(&policy).classify(classify::all).await };
        let _ = inner.retry(&policy).classify(classify::all).await;
    }
    assert!((1_050..=1_100).contains(&down.calls()), "{} calls for a thousand requests", down.calls());
}
