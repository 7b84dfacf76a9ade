//! How events end, and what is remembered of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use redrive::event::{DeadReason, State};
use redrive::policy::Tuning;
use redrive::prelude::*;
use redrive::{Delivery, Event, Failure, PublishError, Published, Reply, testing};

use crate::{SECOND, Seen, patient};

#[tokio::test(start_paused = true)]
async fn an_event_is_handled_once_and_remembered() {
    let redrive = testing::memory();
    let seen = Seen::new();
    let noted = seen.clone();
    let handler = move |delivery: Delivery| {
        noted.note(delivery.id().to_owned());
        async { Reply::with_result(*b"receipt 1") }
    };
    redrive.queue("orders").handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    let event = || Event::new("orders", "order-17").payload(*b"17 EUR");
    assert!(matches!(redrive.publish(event()).await.unwrap(), Published::Accepted(_)));
    testing::drain(&redrive).await;
    let Published::Duplicate(first) = redrive.publish(event()).await.unwrap() else {
        panic!("accepted twice")
    };
    assert_eq!((first.state, first.result.as_deref()), (State::Done, Some(&b"receipt 1"[..])));
    let reused = redrive.publish(event().payload(*b"18 EUR")).await.unwrap_err();
    assert!(matches!(reused, PublishError::IdReused { .. }), "{reused}");
    assert_eq!(seen.all(), ["order-17"]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_put_off_is_not_charged() {
    let redrive = testing::memory();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let handler = move |_: Delivery| {
        let call = counted.fetch_add(1, Ordering::Relaxed);
        async move { if call < 20 { Reply::put_off() } else { Reply::ok() } }
    };
    redrive.queue("orders").policy(patient()).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    testing::drain(&redrive).await;
    let found = testing::fate(&redrive, "orders", "1").await;
    assert_eq!((found.state, calls.load(Ordering::Relaxed)), (State::Done, 21));
    assert!(found.attempts <= 1 && found.history.is_none(), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_transient_fault_is_retried_until_it_works() {
    let redrive = testing::memory();
    let handler = |delivery: Delivery| async move {
        let fails = delivery.attempt() < 4;
        let failure = Failure::transient(std::io::Error::other("no answer")).code("503");
        if fails { Err(failure) } else { Ok(()) }
    };
    redrive.queue("orders").policy(patient()).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    testing::drain(&redrive).await;
    let found = testing::fate(&redrive, "orders", "1").await;
    assert_eq!((found.state, found.attempts), (State::Done, 4));
    let history = found.history.unwrap();
    let cause = history.records().next().unwrap().cause.clone().unwrap();
    assert_eq!((cause.code.as_deref(), cause.message.as_str()), (Some("503"), "no answer"));
    assert_eq!(history.records().last().unwrap().disposition, "ok");
}

#[tokio::test(start_paused = true)]
async fn what_nobody_classified_is_dead_at_once_with_its_story() {
    let redrive = testing::memory();
    let handler = |_| async { Err::<(), _>(std::io::Error::other("what is this")) };
    redrive.queue("orders").handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    testing::drain(&redrive).await;
    let letter = testing::expect_dead(&redrive, "orders", "1").await;
    assert_eq!((letter.reason, letter.attempts), (Some(DeadReason::Unclassified), 1));
    let letters = testing::dead_letters(&redrive, "orders").await;
    assert_eq!(letters, [("1".to_owned(), DeadReason::Unclassified)]);
    let Published::Duplicate(again) = redrive.publish(Event::new("orders", "1")).await.unwrap() else {
        panic!("a dead letter is remembered")
    };
    assert_eq!(again.state, State::Dead);
}

#[tokio::test(start_paused = true)]
async fn a_classifier_says_which_errors_may_pass() {
    let redrive = testing::memory();
    let handler = |delivery: Delivery| async move {
        let kind = if delivery.id() == "cut" {
            std::io::ErrorKind::ConnectionReset
        } else {
            std::io::ErrorKind::InvalidData
        };
        Err::<(), _>(std::io::Error::from(kind))
    };
    redrive.queue("orders").handle_with(classify::io, handler).await.unwrap();
    redrive.start().await.unwrap();
    for id in ["cut", "malformed"] {
        redrive.publish(Event::new("orders", id)).await.unwrap();
    }
    testing::drain(&redrive).await;
    assert_eq!(testing::expect_dead(&redrive, "orders", "cut").await.attempts, 3);
    assert_eq!(testing::expect_dead(&redrive, "orders", "malformed").await.attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_takes_too_long_is_unknown_and_retried() {
    let policy = Policy::builder().attempts(2).attempt_time(SECOND).build().unwrap();
    let redrive = testing::memory();
    redrive.queue("orders").policy(policy).handle(|_| std::future::pending::<()>()).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    testing::drain(&redrive).await;
    let letter = testing::expect_dead(&redrive, "orders", "1").await;
    assert_eq!((letter.reason, letter.attempts), (Some(DeadReason::AttemptsSpent), 2));
    let history = letter.history.unwrap();
    assert!(
        history.is_unsure() && history.records().all(|record| record.disposition == "timeout"),
        "{history:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_attempt_and_means_what_the_queue_says() {
    for (panics, attempts, reason) in
        [(Fault::permanent(), 1, DeadReason::Panicked), (Fault::transient(), 3, DeadReason::AttemptsSpent)]
    {
        let redrive = testing::memory();
        let handler = |delivery: Delivery| async move { assert!(delivery.attempt() > 9, "boom") };
        redrive.queue("orders").panics(panics).handle(handler).await.unwrap();
        redrive.start().await.unwrap();
        redrive.publish(Event::new("orders", "1")).await.unwrap();
        testing::drain(&redrive).await;
        let letter = testing::expect_dead(&redrive, "orders", "1").await;
        assert_eq!((letter.attempts, letter.reason), (attempts, Some(reason)));
        assert_eq!(letter.history.unwrap().records().last().unwrap().cause.as_ref().unwrap().message, "boom");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_runs_when_it_is_due_and_not_after_it_expired() {
    let redrive = testing::memory();
    let seen = Seen::new();
    redrive.queue("orders").handle(seen.handler(|_| None)).await.unwrap();
    let never = Event::new("orders", "never").delay(10 * SECOND).expires_after(5 * SECOND);
    let error = redrive.publish(never).await.unwrap_err().to_string();
    assert!(error.contains("it would never run"), "{error}");
    let late = Event::new("orders", "late").delay(SECOND).expires_after(5 * SECOND);
    redrive.publish(late).await.unwrap();
    redrive.publish(Event::new("orders", "later").delay(20 * SECOND)).await.unwrap();
    tokio::time::sleep(10 * SECOND).await;
    redrive.start().await.unwrap();
    tokio::time::sleep(9 * SECOND).await;
    assert_eq!(testing::fate(&redrive, "orders", "late").await.state, State::Expired);
    assert!(seen.all().is_empty());
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(seen.all(), ["later"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_may_have_changes_of_its_own() {
    let redrive = testing::memory();
    redrive.queue("orders").handle(|_| async { Disposition::from(Fault::transient()) }).await.unwrap();
    redrive.start().await.unwrap();
    let once = Tuning { attempts: Some(1), ..Tuning::default() };
    redrive.publish(Event::new("orders", "1").tuning(once)).await.unwrap();
    let endless = Tuning { attempts: Some(1_000_000), ..Tuning::default() };
    let refused = redrive.publish(Event::new("orders", "2").tuning(endless)).await.unwrap_err();
    assert!(refused.to_string().contains("outlasts the dedupe window"), "{refused}");
    testing::drain(&redrive).await;
    assert_eq!(testing::expect_dead(&redrive, "orders", "1").await.attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_window_shorter_than_the_retries_is_refused_with_the_sum() {
    let redrive = testing::memory();
    let queue = redrive.queue("orders").policy(patient()).window(SECOND);
    let error = queue.handle(|_| async {}).await.unwrap_err().to_string();
    assert!(error.contains("4 waits of at most") && error.contains("= "), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_queue_is_refused_with_those_there_are() {
    let redrive = testing::memory();
    redrive.queue("orders").declare().await.unwrap();
    let error = redrive.publish(Event::new("order", "1")).await.unwrap_err().to_string();
    assert!(error.contains("no queue `order`; known are: orders"), "{error}");
    let answers = redrive.publish_all([Event::new("orders", "1"), Event::new("orders", "")]).await.unwrap();
    assert!(answers[0].is_ok() && answers[1].is_err(), "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_takes_no_events_and_burns_no_attempts() {
    use redrive::breaker::{Breaker, BreakerSettings};
    let settings =
        BreakerSettings { window: 4, least_calls: 4, open_for: 60 * SECOND, ..BreakerSettings::default() };
    let policy = Policy::builder().attempts(100).backoff(Backoff::constant(SECOND)).not_before_max(SECOND);
    let policy = policy.no_budget().breaker(Breaker::new(settings).unwrap()).build().unwrap();
    let redrive = testing::memory();
    let calls = Arc::new(AtomicU32::new(0));
    let counter = calls.clone();
    let handler = move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        async { Disposition::from(Fault::transient()) }
    };
    redrive.queue("orders").policy(policy).concurrency(2).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish_all((0..10).map(|id| Event::new("orders", id.to_string()))).await.unwrap();
    tokio::time::sleep(30 * SECOND).await;
    assert!(calls.load(Ordering::SeqCst) <= 6, "{calls:?}");
    tokio::time::sleep(40 * SECOND).await;
    assert!(calls.load(Ordering::SeqCst) > 4, "a probe goes through: {calls:?}");
    assert!(testing::dead_letters(&redrive, "orders").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_wait_longer_than_the_policy_accepts_is_shortened_and_kills_no_event() {
    let policy = Policy::builder().not_before_max(60 * SECOND).build().unwrap();
    let redrive = testing::memory();
    let handler = |delivery: Delivery| async move {
        if delivery.attempt() == 1 {
            Fault::transient().not_before(86_400 * SECOND).into()
        } else {
            Disposition::Ok
        }
    };
    redrive.queue("orders").policy(policy).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    tokio::time::sleep(59 * SECOND).await;
    let found = redrive.event("", "orders", "1").await.unwrap().unwrap();
    assert_eq!((found.state, found.attempts), (State::Waiting, 1), "it waits as long as the policy accepts");
    tokio::time::sleep(8 * SECOND).await;
    let found = redrive.event("", "orders", "1").await.unwrap().unwrap();
    assert_eq!((found.state, found.attempts), (State::Done, 2));
}

#[tokio::test(start_paused = true)]
async fn a_spent_budget_makes_retries_wait_and_kills_nobody() {
    use redrive::budget::{Budget, BudgetSettings};
    let budget = BudgetSettings { share: 0.0, floor: 1.0, ..BudgetSettings::default() };
    let policy = Policy::builder().attempts(3).backoff(Backoff::constant(Duration::ZERO));
    let policy = policy.not_before_max(Duration::ZERO).budget(Budget::new(budget).unwrap()).build().unwrap();
    let redrive = testing::memory();
    let calls = Arc::new(AtomicU32::new(0));
    let counter = calls.clone();
    let handler = move |delivery: Delivery| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move { if delivery.attempt() < 2 { Fault::transient().into() } else { Disposition::Ok } }
    };
    redrive.queue("orders").policy(policy).concurrency(100).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish_all((0..60).map(|id| Event::new("orders", id.to_string()))).await.unwrap();
    tokio::time::sleep(10 * SECOND).await;
    let soon = calls.load(Ordering::SeqCst);
    assert!((60..=85).contains(&soon), "{soon}");
    testing::drain(&redrive).await;
    assert_eq!(calls.load(Ordering::SeqCst), 120);
    assert!(testing::dead_letters(&redrive, "orders").await.is_empty());
}

use std::time::Duration;

/// A future that panics when it is dropped before its end.
struct PanicsInDrop;

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_when_it_is_dropped_is_not_stuck() {
    let policy = Policy::builder().attempts(2).attempt_time(SECOND).build().unwrap();
    let redrive = testing::memory();
    let handler = |_| async {
        let _guard = PanicsInDrop;
        std::future::pending::<()>().await;
    };
    redrive.queue("orders").policy(policy).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    testing::drain(&redrive).await;
    assert_eq!(testing::expect_dead(&redrive, "orders", "1").await.reason, Some(DeadReason::Panicked));
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_comes_after_the_policy_s_time_does_not_run() {
    let policy = Policy::builder().attempts(9).time(60 * SECOND).backoff(Backoff::constant(10 * SECOND));
    let policy = policy.jitter(Jitter::None).not_before_max(Duration::ZERO).build().unwrap();
    let redrive = testing::memory();
    let seen = Seen::new();
    let noted = seen.clone();
    // The first attempt occupies the only slot until the other's time is over.
    let handler = move |delivery: Delivery| {
        noted.note(format!("{} {}", delivery.id(), delivery.attempt()));
        async move {
            if delivery.id() == "long" {
                tokio::time::sleep(3600 * SECOND).await;
            }
            Disposition::from(Fault::transient())
        }
    };
    redrive.queue("orders").policy(policy).concurrency(1).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "short")).await.unwrap();
    tokio::time::sleep(SECOND).await;
    let alone = Tuning { time: Some(7200 * SECOND), ..Tuning::default() };
    redrive.publish(Event::new("orders", "long").tuning(alone)).await.unwrap();
    tokio::time::sleep(4000 * SECOND).await;
    let letter = testing::expect_dead(&redrive, "orders", "short").await;
    assert_eq!((letter.reason, letter.attempts), (Some(DeadReason::TimeSpent), 1));
    assert_eq!(seen.all().iter().filter(|run| run.starts_with("short")).count(), 1);
}
