//! The order of keys.

use redrive::engine::AfterDead;
use redrive::prelude::*;
use redrive::{Event, testing};

use crate::{SECOND, Seen, patient};

#[tokio::test(start_paused = true)]
async fn a_key_keeps_its_order_over_retries_and_holds_up_nobody_else() {
    let redrive = testing::memory();
    let seen = Seen::new();
    let handler = seen.handler(|it| (it.id() == "a1" && it.attempt() < 3).then_some(Fault::transient()));
    redrive.queue("orders").policy(patient()).ordered().handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    for (id, key) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a"), ("b2", "b")] {
        redrive.publish(Event::new("orders", id).key(key)).await.unwrap();
    }
    testing::drain(&redrive).await;
    let ids = seen.all();
    let of = |key: &str| ids.iter().filter(|id| id.starts_with(key)).cloned().collect::<Vec<_>>();
    assert_eq!(of("a"), ["a1", "a1", "a1", "a2", "a3"]);
    assert_eq!(of("b"), ["b1", "b2"]);
    assert!(ids.iter().position(|id| id == "b2") < ids.iter().rposition(|id| id == "a1"), "{ids:?}");
}

#[tokio::test(start_paused = true)]
async fn a_delayed_head_holds_up_its_key() {
    let redrive = testing::memory();
    let seen = Seen::new();
    redrive.queue("orders").ordered().handle(seen.handler(|_| None)).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "first").key("k").delay(10 * SECOND)).await.unwrap();
    redrive.publish(Event::new("orders", "second").key("k")).await.unwrap();
    tokio::time::sleep(5 * SECOND).await;
    assert!(seen.all().is_empty());
    testing::drain(&redrive).await;
    assert_eq!(seen.all(), ["first", "second"]);
}

#[tokio::test(start_paused = true)]
async fn what_follows_a_dead_letter_is_the_queue_s_choice() {
    for (after_dead, ran) in [
        (AfterDead::GoOn, vec!["1", "2", "3"]),
        (AfterDead::Park, vec!["1"]),
        (AfterDead::ParkUpTo { time: Some(60 * SECOND), count: None }, vec!["1", "2", "3"]),
        (AfterDead::ParkUpTo { time: None, count: Some(1) }, vec!["1", "2", "3"]),
        (AfterDead::ParkUpTo { time: None, count: Some(2) }, vec!["1"]),
    ] {
        let redrive = testing::memory();
        let seen = Seen::new();
        let handler = seen.handler(|it| (it.id() == "1").then_some(Fault::permanent()));
        redrive.queue("orders").after_dead(after_dead).handle(handler).await.unwrap();
        redrive.start().await.unwrap();
        for id in ["1", "2", "3"] {
            redrive.publish(Event::new("orders", id).key("k")).await.unwrap();
        }
        tokio::time::sleep(120 * SECOND).await;
        testing::drain(&redrive).await;
        assert_eq!(seen.all(), ran, "{after_dead:?}");
    }
}
