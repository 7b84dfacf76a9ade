//! Sharing the concurrency.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive::prelude::*;
use redrive::{Delivery, Event, Rate, testing};

use crate::{SECOND, Seen};

#[tokio::test(start_paused = true)]
async fn tenants_share_a_queue_fairly() {
    let redrive = testing::memory();
    let seen = Seen::new();
    let noted = seen.clone();
    let handler = move |delivery: Delivery| {
        noted.note(delivery.tenant().to_owned());
        tokio::time::sleep(SECOND)
    };
    redrive.queue("orders").concurrency(1).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive
        .publish_all((0..2000).map(|id| Event::new("orders", id.to_string()).tenant("big")))
        .await
        .unwrap();
    tokio::time::sleep(10 * SECOND).await;
    redrive.publish_all((0..5).map(|id| Event::new("orders", id.to_string()).tenant("small"))).await.unwrap();
    tokio::time::sleep(20 * SECOND).await;
    let small = seen.all().iter().filter(|tenant| *tenant == "small").count();
    assert_eq!(small, 5, "{:?}", seen.all());
}

#[tokio::test(start_paused = true)]
async fn retries_do_not_starve_first_attempts_nor_the_other_way_round() {
    let redrive = testing::memory();
    let [live, retried] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let counters = [live.clone(), retried.clone()];
    let policy = Policy::builder().attempts(1000).backoff(Backoff::constant(Duration::ZERO));
    let policy = policy.not_before_max(Duration::ZERO).no_budget().build().unwrap();
    let handler = move |delivery: Delivery| {
        let fails = delivery.id().starts_with("bad");
        counters[usize::from(delivery.attempt() > 1)].fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::time::sleep(SECOND).await;
            if fails { Disposition::from(Fault::transient()) } else { Disposition::Ok }
        }
    };
    redrive.queue("orders").policy(policy).concurrency(4).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish_all((0..50).map(|id| Event::new("orders", format!("bad-{id}")))).await.unwrap();
    tokio::time::sleep(30 * SECOND).await;
    let before = [&live, &retried].map(|it| it.load(Ordering::SeqCst));
    redrive.publish_all((0..500).map(|id| Event::new("orders", format!("good-{id}")))).await.unwrap();
    tokio::time::sleep(40 * SECOND).await;
    let [lives, retries] = [&live, &retried].map(|it| it.load(Ordering::SeqCst));
    let (lives, retries) = (lives - before[0], retries - before[1]);
    assert!(
        lives.abs_diff(120) < 12 && retries.abs_diff(40) < 12,
        "{lives} first attempts, {retries} retries"
    );
}

#[tokio::test(start_paused = true)]
async fn a_rate_bounds_attempts_a_second() {
    let redrive = testing::memory();
    let seen = Seen::new();
    let rate = Rate::new(5.0, 1).unwrap();
    redrive.queue("orders").rate(rate).handle(seen.handler(|_| None)).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish_all((0..100).map(|id| Event::new("orders", id.to_string()))).await.unwrap();
    tokio::time::sleep(10 * SECOND).await;
    assert!(seen.all().len().abs_diff(50) < 4, "{}", seen.all().len());
}

#[tokio::test(start_paused = true)]
async fn a_backlog_larger_than_memory_is_handled_in_order_and_in_full() {
    let redrive = testing::memory();
    let seen = Seen::new();
    redrive.queue("orders").concurrency(4).handle(seen.handler(|_| None)).await.unwrap();
    redrive.publish_all((0..5000).map(|id| Event::new("orders", format!("{id:05}")))).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish_all((5000..7000).map(|id| Event::new("orders", format!("{id:05}")))).await.unwrap();
    testing::drain(&redrive).await;
    let ids = seen.all();
    assert_eq!(ids.len(), 7000);
    assert!(ids.is_sorted(), "first come, first served");
}

#[tokio::test(start_paused = true)]
async fn retries_that_wait_for_the_budget_are_not_in_the_way_of_first_attempts() {
    let redrive = testing::memory();
    let firsts = Arc::new(AtomicU32::new(0));
    let counter = firsts.clone();
    let handler = move |delivery: Delivery| {
        let is_first = delivery.attempt() == 1;
        counter.fetch_add(u32::from(is_first), Ordering::SeqCst);
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let fails = is_first && delivery.id().starts_with("bad");
            if fails { Disposition::from(Fault::transient()) } else { Disposition::Ok }
        }
    };
    redrive.queue("orders").handle(handler).await.unwrap();
    for name in ["bad", "good"] {
        let events = (0..400).map(|id| Event::new("orders", format!("{name}-{id}")));
        redrive.publish_all(events).await.unwrap();
    }
    redrive.start().await.unwrap();
    // Sixteen at once, fifty a second each: eight hundred in a second.
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(firsts.load(Ordering::SeqCst), 800);
}
