//! Breakers, limits and rates, as callers meet them.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::future::{IntoFuture, pending};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use redrive_core::breaker::{BreakerSettings, BreakerState};
use redrive_core::{Backoff, Breaker, Executed, Jitter, Limit, PolicyBuilder, Rate};
use redrive_retry::{Policy, Retry, Start, StopReason, Stopped, blocking, classify, clock};
use tokio::time::{Instant, advance, sleep, timeout};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Longer than a breaker of ours stays open; it counts in whole milliseconds and rounds up.
const JUST_OVER: Duration = Duration::from_millis(1_001);

/// Three attempts, 100 ms between them.
fn three() -> PolicyBuilder {
    Policy::builder().backoff(Backoff::constant(MS(100))).jitter(Jitter::None).no_budget()
}

/// Opens at the first failure, for a second, and wants `probes` successes to close.
fn touchy(probes: u32) -> Breaker {
    Breaker::new(BreakerSettings {
        window: 1,
        least_calls: 1,
        open_for: MS(1_000),
        probes,
        ..BreakerSettings::default()
    })
    .unwrap()
}

fn opened(probes: u32) -> Breaker {
    let breaker = touchy(probes);
    breaker.admit(&clock).unwrap().failed(clock());
    breaker
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_stops_before_the_call_in_every_call_style() {
    let policy = three().breaker(opened(1)).build().unwrap();
    let never = || async { unreachable!("the breaker is open") as Result<(), &str> };

    let postfix = never.retry(&policy).classify(classify::all).await.unwrap_err();
    let mut session = policy.start();
    assert_eq!(session.next().await, None);
    let session: Stopped<&str> = session.stopped();
    let blocking = blocking::Retry::retry(|| unreachable!("open") as Result<(), &str>, &policy)
        .classify(classify::all)
        .call()
        .unwrap_err();

    assert_eq!((postfix.error, postfix.report.attempts), (None, 0), "there is no error to show");
    assert_eq!(postfix.report.reason, StopReason::BreakerOpen);
    assert_eq!(postfix.report.executed, Executed::No);
    assert_eq!((&session, &blocking), (&postfix, &postfix));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_failure_opens_the_breaker_does_not_wait_for_nothing() {
    let policy = three().breaker(touchy(1)).build().unwrap();
    let start = Instant::now();
    let down = || async { Err::<(), _>("down") };
    let stopped = down.retry(&policy).classify(classify::all).await.unwrap_err();
    assert_eq!((stopped.error, stopped.report.reason), (Some("down"), StopReason::BreakerOpen));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn probes_that_succeed_close_it_and_one_that_fails_opens_it_again() {
    let breaker = opened(2);
    let policy = three().breaker(breaker.clone()).build().unwrap();
    let call = |up: bool| {
        let policy = policy.clone();
        async move {
            let call = || async { if up { Ok(()) } else { Err("down") } };
            call.retry(&policy).classify(classify::all).await.is_ok()
        }
    };
    assert!(!call(true).await, "still open");
    advance(JUST_OVER).await;
    assert_eq!(breaker.state(clock()), BreakerState::HalfOpen);
    assert!(!call(false).await);
    assert_eq!(breaker.state(clock()), BreakerState::Open);
    advance(JUST_OVER).await;
    assert!(call(true).await);
    assert_eq!(breaker.state(clock()), BreakerState::HalfOpen, "one of two");
    assert!(call(true).await);
    assert_eq!(breaker.state(clock()), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_dropped_gives_its_place_back() {
    let policy = three().breaker(opened(1)).build().unwrap();
    advance(JUST_OVER).await;
    let hangs = || pending::<Result<(), &str>>();
    let works = || async { Ok::<_, &str>(()) };
    {
        let mut probe = Box::pin(hangs.retry(&policy).into_future());
        assert!(timeout(MS(1), &mut probe).await.is_err(), "it hangs");
        let stopped = works.retry(&policy).await.unwrap_err();
        assert_eq!(stopped.report.reason, StopReason::BreakerOpen, "the only place is taken");
    }
    let mut session = policy.start::<&str>();
    assert!(session.next().await.is_some(), "the place is free again");
    drop(session);
    works.retry(&policy).await.expect("and again");
}

#[tokio::test(start_paused = true)]
async fn a_full_limit_is_an_overload_that_was_not_executed() {
    let limit = Limit::fixed(1).unwrap();
    let policy = three().limit(limit.clone()).build().unwrap();
    let never = || async { unreachable!("the limit is full") as Result<(), &str> };
    let taken = limit.acquire().unwrap();
    let stopped = never.retry(&policy).classify(classify::all).await.unwrap_err();
    assert_eq!(stopped.report.reason, StopReason::BudgetSpent, "overload without a budget is not retried");
    assert_eq!((stopped.error, stopped.report.executed), (None, Executed::No));
    drop(taken);

    let works = || async { Ok::<_, &str>(()) };
    works.retry(&policy).await.expect("there is room");
    assert_eq!(limit.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn with_a_budget_a_refused_attempt_comes_back_when_there_is_room() {
    let limit = Limit::fixed(1).unwrap();
    let budget = redrive_core::Budget::default();
    let policy = three().budget(budget).limit(limit.clone()).build().unwrap();
    let taken = limit.acquire().unwrap();
    let works = || async { Ok::<_, &str>(()) };
    let freed = async {
        sleep(MS(150)).await;
        drop(taken);
    };
    let start = Instant::now();
    let (reported, ()) = tokio::join!(works.retry(&policy).report().into_future(), freed);
    assert_eq!((reported.report.attempts, start.elapsed()), (3, MS(200)));
    assert_eq!(reported.report.reason, StopReason::Succeeded);
    assert_eq!(reported.report.waited, MS(200));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_future_gives_its_permit_back() {
    let limit = Limit::fixed(1).unwrap();
    let policy = three().limit(limit.clone()).build().unwrap();
    let hangs = || pending::<Result<(), &str>>();
    let mut call = Box::pin(hangs.retry(&policy).into_future());
    assert!(timeout(MS(1), &mut call).await.is_err());
    assert_eq!(limit.used(), 1);
    drop(call);
    assert_eq!(limit.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_rate_makes_attempts_wait_for_their_turn() {
    let policy = three().rate(Rate::new(10.0, 1).unwrap()).build().unwrap();
    let (calls, start) = (AtomicU32::new(0), Instant::now());
    let works = || async { Ok::<_, &str>(calls.fetch_add(1, SeqCst)) };
    for turn in 0..5 {
        let reported = works.retry(&policy).report().await;
        assert_eq!(start.elapsed(), MS(100) * turn);
        assert_eq!(reported.report.waited, MS(if turn == 0 { 0 } else { 100 }));
        assert_eq!(reported.report.attempts, 1, "to wait is not to try");
    }
    // Retries wait for it too, where it is slower than the backoff.
    let slow = three().rate(Rate::new(1.0, 1).unwrap()).build().unwrap();
    let start = Instant::now();
    let down = || async { Err::<(), _>("down") };
    let stopped = down.retry(&slow).classify(classify::all).await.unwrap_err();
    assert_eq!((stopped.report.attempts, start.elapsed()), (3, MS(2_000)));
    assert_eq!(stopped.report.waited, MS(2_000));
}

#[tokio::test(start_paused = true)]
async fn everybody_who_waits_for_the_rate_has_a_turn_of_his_own() {
    let policy = three().rate(Rate::new(100.0, 1).unwrap()).build().unwrap();
    let (start, polls) = (Instant::now(), AtomicU32::new(0));
    let calls = (0..50).map(|_| async {
        let mut call = std::pin::pin!((|| async { Ok::<_, &str>(()) }).retry(&policy).into_future());
        std::future::poll_fn(|cx| {
            polls.fetch_add(1, SeqCst);
            call.as_mut().poll(cx)
        })
        .await
        .unwrap();
        start.elapsed()
    });
    let mut ends = futures_util::future::join_all(calls).await;
    ends.sort();
    let wanted: Vec<_> = (0..50).map(|turn| MS(10) * turn).collect();
    assert_eq!(ends, wanted);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_turn_that_comes_after_the_deadline() {
    let policy = three().rate(Rate::new(1.0, 1).unwrap()).build().unwrap();
    let works = || async { Ok::<_, &str>(()) };
    works.retry(&policy).await.unwrap();
    let start = Instant::now();
    let stopped = works.retry(&policy).within(MS(999)).await.unwrap_err();
    assert_eq!((stopped.report.reason, start.elapsed()), (StopReason::Deadline, Duration::ZERO));
    works.retry(&policy).within(MS(1_001)).await.unwrap();
    assert_eq!(start.elapsed(), MS(1_000));
}

#[tokio::test(start_paused = true)]
async fn a_caller_in_a_hurry_does_not_open_everybodys_breaker() {
    let stuck = || std::future::pending::<Result<(), &str>>();
    let breaker = Breaker::default();
    let patient = Policy::builder().attempts(1).breaker(breaker.clone()).build().unwrap();
    for _ in 0..40 {
        let _ = stuck.retry(&patient).within(Duration::from_millis(1)).await;
    }
    assert_eq!(breaker.state(clock()), BreakerState::Closed);

    let strict = Policy::builder()
        .attempts(1)
        .breaker(breaker.clone())
        .attempt_time(Duration::from_millis(1))
        .build()
        .unwrap();
    for _ in 0..40 {
        let _ = stuck.retry(&strict).await;
    }
    assert_eq!(
        breaker.state(clock()),
        BreakerState::Open,
        "what did not answer in its own time is another matter"
    );
}
