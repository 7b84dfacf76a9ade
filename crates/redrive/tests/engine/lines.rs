//! Many events that start at once.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use redrive::event::{DeadReason, State};
use redrive::prelude::*;
use redrive::{Delivery, Event, testing};
use tokio::sync::Semaphore;

use crate::SECOND;

/// Enough to be started as one batch.
const MANY: u32 = 40;

fn events() -> impl Iterator<Item = Event> {
    (0..MANY).map(|number| Event::new("orders", number.to_string()))
}

fn number(delivery: &Delivery) -> u32 {
    delivery.id().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_ends_as_it_says_at_once_or_later() {
    let redrive = testing::memory();
    let handler = |delivery: Delivery| async move {
        let number = number(&delivery);
        if number % 2 == 1 {
            tokio::time::sleep(SECOND).await;
        }
        match number % 6 {
            0 | 1 => Disposition::Ok,
            2 | 3 => Disposition::Drop,
            _ => panic!("{number} of {MANY}"),
        }
    };
    redrive.queue("orders").concurrency(MANY).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish_all(events()).await.unwrap();
    testing::drain(&redrive).await;
    for number in 0..MANY {
        let found = testing::fate(&redrive, "orders", &number.to_string()).await;
        let expected = match number % 6 {
            0 | 1 => (State::Done, None),
            2 | 3 => (State::Dropped, None),
            _ => (State::Dead, Some(DeadReason::Panicked)),
        };
        assert_eq!((found.state, found.reason), expected, "{number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_blocks_holds_up_nobody_else() {
    all_but_the_first_go_on(1, |wait| wait()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_that_block_in_place_hold_up_nobody_else() {
    all_but_the_first_go_on(5, |wait| tokio::task::block_in_place(wait)).await;
}

/// The first ones block until all others are done.
async fn all_but_the_first_go_on(first: u32, block: fn(&dyn Fn())) {
    let redrive = testing::memory();
    let is_free = Arc::new((Mutex::new(false), Condvar::new()));
    let waited_for = is_free.clone();
    let handler = move |delivery: Delivery| {
        if number(&delivery) < first {
            block(&|| {
                let (is_free, news) = &*waited_for;
                let time = Duration::from_secs(30);
                let waited = news.wait_timeout_while(is_free.lock().unwrap(), time, |is_free| !*is_free);
                assert!(!waited.unwrap().1.timed_out(), "the others were not done meanwhile");
            });
        }
        std::future::ready(())
    };
    redrive.queue("orders").concurrency(MANY).handle(handler).await.unwrap();
    redrive.publish_all(events()).await.unwrap();
    redrive.start().await.unwrap();
    for number in first..MANY {
        while testing::fate(&redrive, "orders", &number.to_string()).await.state != State::Done {
            tokio::task::yield_now().await;
        }
    }
    *is_free.0.lock().unwrap() = true;
    is_free.1.notify_all();
    testing::drain(&redrive).await;
    assert_eq!(testing::fate(&redrive, "orders", "0").await.state, State::Done);
}

#[tokio::test(start_paused = true)]
async fn those_that_still_wait_are_given_up_when_it_stops() {
    let redrive = testing::memory();
    let begun = Arc::new(Semaphore::new(0));
    let told = begun.clone();
    let handler = move |_| {
        told.add_permits(1);
        std::future::pending::<()>()
    };
    redrive.queue("orders").concurrency(MANY).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish_all(events()).await.unwrap();
    begun.acquire_many(MANY).await.unwrap().forget();
    assert!(!redrive.shutdown(SECOND).await.unwrap().all_ended);
}
