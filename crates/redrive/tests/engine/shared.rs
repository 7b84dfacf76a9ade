//! What a queue shares: its policy with direct calls, its declaration with other processes.

use std::sync::Arc;
use std::time::Duration;

use redrive::breaker::{Breaker, BreakerSettings};
use redrive::engine::{Memory, OpenOptions};
use redrive::policy::Tuning;
use redrive::prelude::*;
use redrive::{Delivery, Event, Executed, Rate, Transaction, testing};

use crate::{SECOND, Seen};

#[tokio::test(start_paused = true)]
async fn a_breaker_that_a_queue_opened_closes_in_time_for_direct_calls() {
    let settings =
        BreakerSettings { window: 4, least_calls: 4, open_for: 10 * SECOND, ..BreakerSettings::default() };
    let policy = Policy::builder().attempts(1).no_budget().breaker(Breaker::new(settings).unwrap());
    let policy = policy.build().unwrap();
    let redrive = testing::memory();
    let handler = |_| async { Disposition::from(Fault::transient()) };
    redrive.queue("orders").policy(policy.clone()).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish_all((0..4).map(|id| Event::new("orders", id.to_string()))).await.unwrap();
    redrive.idle().await;
    let call = || async { Ok::<_, std::io::Error>(()) };
    let stopped = call.retry(&policy).classify(classify::io).await.unwrap_err();
    assert_eq!(stopped.report.reason, StopReason::BreakerOpen);
    tokio::time::sleep(11 * SECOND).await;
    call.retry(&policy).classify(classify::io).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_one_for_a_queue_and_direct_calls() {
    let policy = Policy::builder().rate(Rate::new(10.0, 1).unwrap()).build().unwrap();
    let redrive = testing::memory();
    let seen = Seen::new();
    redrive.queue("orders").policy(policy.clone()).handle(seen.handler(|_| None)).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    redrive.idle().await;
    let begin = tokio::time::Instant::now();
    let call = || async { Ok::<_, std::io::Error>(()) };
    call.retry(&policy).classify(classify::io).await.unwrap();
    assert!(begin.elapsed() <= Duration::from_millis(101), "{:?}", begin.elapsed());
    redrive.publish(Event::new("orders", "2")).await.unwrap();
    redrive.idle().await;
    assert_eq!(seen.all(), ["1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn who_only_publishes_does_not_change_a_queue() {
    let store = Memory::new();
    let [owner, publisher] = [(); 2].map(|()| OpenOptions::new().over(Arc::new(store.clone())));
    let seen = Seen::new();
    owner.queue("orders").ordered().handle(seen.handler(|_| None)).await.unwrap();
    publisher.queue("orders").declare().await.unwrap();
    let twice = owner.queue("orders").declare().await.unwrap_err().to_string();
    assert!(twice.contains("already has a handler"), "{twice}");
    publisher.publish(Event::new("orders", "first").key("k").delay(10 * SECOND)).await.unwrap();
    publisher.publish(Event::new("orders", "second").key("k")).await.unwrap();
    owner.start().await.unwrap();
    testing::drain(&owner).await;
    assert_eq!(seen.all(), ["first", "second"], "the queue is still ordered");
}

#[tokio::test(start_paused = true)]
async fn changes_of_an_event_s_own_are_checked_inside_a_transaction_too() {
    let redrive = testing::memory();
    redrive.queue("orders").declare().await.unwrap();
    let endless = Tuning { attempts: Some(1_000_000), ..Tuning::default() };
    let event = Event::new("orders", "1").tuning(endless);
    let refused = redrive.transact(move |tx| tx.publish(event.clone())).await.unwrap_err().to_string();
    assert!(refused.contains("outlasts the dedupe window"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn what_was_rolled_back_was_not_executed() {
    let redrive = testing::memory();
    let handler = |_: &mut Transaction<'_>, delivery: &Delivery| {
        assert_ne!(delivery.id(), "panics");
        Err::<(), _>(std::io::Error::other("no"))
    };
    redrive.queue("orders").handle_in(handler).await.unwrap();
    redrive.start().await.unwrap();
    for id in ["fails", "panics"] {
        redrive.publish(Event::new("orders", id)).await.unwrap();
    }
    testing::drain(&redrive).await;
    for id in ["fails", "panics"] {
        let history = testing::expect_dead(&redrive, "orders", id).await.history.unwrap();
        assert_eq!(history.records().next().unwrap().executed, Some(Executed::No), "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_needed_a_retry_says_so() {
    let redrive = testing::memory();
    let handler = |_: &mut Transaction<'_>, delivery: &Delivery| {
        if delivery.attempt() < 2 { Disposition::from(Fault::transient()) } else { Disposition::Ok }
    };
    redrive.queue("orders").handle_in(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    testing::drain(&redrive).await;
    assert_eq!(testing::fate(&redrive, "orders", "1").await.attempts, 2);
}
