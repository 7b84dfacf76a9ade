//! The kinds of handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use redrive::desk::{EventRef, How};
use redrive::event::{DeadReason, Mode, State};
use redrive::prelude::*;
use redrive::triage::Filter;
use redrive::{Delivery, Event, EventQuery, Failure, testing};

use crate::{SECOND, Seen, patient};

#[tokio::test(start_paused = true)]
async fn a_payload_that_does_not_decode_is_dead_without_a_run() {
    let redrive = testing::memory();
    let ran = Arc::new(AtomicU32::new(0));
    let counter = ran.clone();
    let handler = move |euro: u32, _| {
        counter.fetch_add(euro, Ordering::SeqCst);
        async {}
    };
    redrive.queue("orders").handle_typed(redrive::engine::json, handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "good").payload(*b"17")).await.unwrap();
    redrive.publish(Event::new("orders", "bad").payload(*b"seventeen")).await.unwrap();
    testing::drain(&redrive).await;
    let letter = testing::expect_dead(&redrive, "orders", "bad").await;
    assert_eq!((letter.attempts, letter.reason), (0, Some(DeadReason::Undecodable)));
    assert_eq!(ran.load(Ordering::SeqCst), 17);
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_a_disposition_for_each_event() {
    let redrive = testing::memory();
    let sizes = Seen::new();
    let noted = sizes.clone();
    let handler = move |batch: Vec<Delivery>| {
        noted.note(batch.len());
        let each = |delivery: &Delivery| match delivery.id() {
            "3" => Disposition::from(Fault::permanent()),
            "4" => Disposition::Drop,
            _ => Disposition::Ok,
        };
        std::future::ready(batch.iter().map(each).collect::<Vec<_>>())
    };
    redrive.queue("orders").handle_batch(10, handler).await.unwrap();
    redrive.publish_all((0..20).map(|id| Event::new("orders", id.to_string()))).await.unwrap();
    redrive.start().await.unwrap();
    testing::drain(&redrive).await;
    for (id, state) in [("3", State::Dead), ("4", State::Dropped), ("19", State::Done)] {
        assert_eq!(testing::fate(&redrive, "orders", id).await.state, state);
    }
    let sizes = sizes.all();
    assert!(sizes.iter().max() == Some(&10) && sizes.iter().sum::<usize>() == 20, "{sizes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_batch_with_a_reply_too_few_is_not_guessed_at() {
    let redrive = testing::memory();
    let handler = |_: Vec<Delivery>| std::future::ready(vec![Disposition::Ok]);
    redrive.queue("orders").handle_batch(10, handler).await.unwrap();
    redrive.publish_all((0..2).map(|id| Event::new("orders", id.to_string()))).await.unwrap();
    redrive.start().await.unwrap();
    testing::drain(&redrive).await;
    let letter = testing::expect_dead(&redrive, "orders", "0").await;
    let message = &letter.history.unwrap().first[0].cause.clone().unwrap().message;
    assert_eq!(message, "the handler returned 1 replies for 2 events");
}

#[tokio::test(start_paused = true)]
async fn effect_and_settle_are_one_commit() {
    let redrive = testing::memory();
    let handler = |tx: &mut redrive::engine::Transaction<'_>, delivery: &Delivery| {
        let row = format!("{}/{}", delivery.id(), delivery.attempt());
        tx.memory().unwrap().insert(row, Vec::new());
        if delivery.attempt() < 3 { Disposition::from(Fault::transient()) } else { Disposition::Ok }
    };
    redrive.queue("orders").policy(patient()).handle_in(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    testing::drain(&redrive).await;
    let rows = |tx: &mut redrive::engine::Transaction<'_>| {
        Ok::<_, std::io::Error>(tx.memory().unwrap().keys().cloned().collect::<Vec<_>>())
    };
    assert_eq!(redrive.transact(rows).await.unwrap(), ["1/3"]);
}

#[tokio::test]
async fn a_blocking_handler_has_a_thread_of_its_own() {
    let redrive = testing::memory();
    let runtime = std::thread::current().id();
    let handler = move |delivery: Delivery| {
        assert_ne!(std::thread::current().id(), runtime, "it would block the runtime");
        assert_ne!(delivery.id(), "2", "boom");
        Ok::<_, Failure>(())
    };
    redrive.queue("orders").handle_blocking(handler).await.unwrap();
    redrive.start().await.unwrap();
    for id in ["1", "2"] {
        redrive.publish(Event::new("orders", id)).await.unwrap();
    }
    testing::drain(&redrive).await;
    assert_eq!(testing::fate(&redrive, "orders", "1").await.state, State::Done);
    assert_eq!(testing::expect_dead(&redrive, "orders", "2").await.reason, Some(DeadReason::Panicked));
}

#[tokio::test(start_paused = true)]
async fn a_marker_is_set_once_and_carries_a_version() {
    let redrive = testing::memory();
    let mark = |handler: &'static str| redrive.transact(move |tx| tx.first_time(handler, "1"));
    assert!(mark("projector.v1").await.unwrap());
    assert!(!mark("projector.v1").await.unwrap());
    assert!(mark("projector.v2").await.unwrap());
    let error = mark("projector").await.unwrap_err().to_string();
    assert!(error.contains("projector.v1"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_publishes_inherits_its_correlation() {
    let redrive = testing::memory();
    redrive.queue("mails").declare().await.unwrap();
    let publisher = redrive.clone();
    let plain = move |delivery: Delivery| {
        let publisher = publisher.clone();
        async move { publisher.publish(Event::new("mails", format!("mail-{}", delivery.id()))).await.map(drop) }
    };
    redrive.queue("orders").handle(plain).await.unwrap();
    let inside = |tx: &mut redrive::engine::Transaction<'_>, delivery: &Delivery| {
        tx.publish(Event::new("mails", format!("mail-{}", delivery.id()))).map(drop)
    };
    redrive.queue("refunds").handle_in(inside).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1").correlation("cart-9")).await.unwrap();
    redrive.publish(Event::new("refunds", "2")).await.unwrap();
    tokio::time::sleep(SECOND).await;
    let mails = EventQuery { filter: Filter::queue("mails"), ..EventQuery::default() };
    let mut lineage: Vec<_> = redrive
        .events(mails)
        .await
        .unwrap()
        .events
        .iter()
        .map(|(event, _)| {
            let meta = event.meta.clone().unwrap();
            (event.id.clone(), meta.correlation.unwrap(), meta.causation.unwrap())
        })
        .collect();
    lineage.sort();
    let expected = [("mail-1", "cart-9", "1"), ("mail-2", "2", "2")];
    assert_eq!(lineage, expected.map(|(id, from, by)| (id.to_owned(), from.to_owned(), by.to_owned())));
}

#[tokio::test(start_paused = true)]
async fn keys_for_downstream_are_the_same_over_attempts() {
    let redrive = testing::memory();
    let keys = Seen::new();
    let noted = keys.clone();
    let handler = move |delivery: Delivery| {
        noted.note((delivery.idempotency_key(), delivery.fence(), delivery.mode()));
        async move { if delivery.attempt() < 2 { Fault::transient().into() } else { Disposition::Ok } }
    };
    redrive.queue("orders").policy(patient()).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    testing::drain(&redrive).await;
    let keys = keys.all();
    let [(first, fence, live), (second, later, retry)] = &keys[..] else { panic!("{keys:?}") };
    assert_eq!(first, second);
    assert!(fence < later, "a receiver can tell which attempt is the later one");
    assert_eq!((live.as_str(), retry.as_str()), ("live", "retry"));
}

#[tokio::test(start_paused = true)]
async fn a_redriven_event_passes_the_fence_of_those_that_ran_before_it() {
    let redrive = testing::memory();
    let fences = Seen::new();
    let noted = fences.clone();
    let handler = move |delivery: Delivery| {
        noted.note((delivery.id().to_owned(), delivery.seq(), delivery.fence()));
        let fails = delivery.id() == "1" && delivery.mode() == Mode::Live;
        async move { if fails { Fault::permanent().into() } else { Disposition::Ok } }
    };
    redrive.queue("orders").handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    for id in ["1", "2"] {
        redrive.publish(Event::new("orders", id).key("customer-7")).await.unwrap();
        testing::drain(&redrive).await;
    }
    let (letter, how) = (EventRef::new("", "orders", "1"), How { out_of_order: true, ..How::default() });
    assert_eq!(redrive.desk("ann", "").redrive(vec![letter], how).await.unwrap().changed, 1);
    testing::drain(&redrive).await;
    let fences = fences.all();
    let [_, (_, place, second), (id, earlier, redriven)] = &fences[..] else { panic!("{fences:?}") };
    assert_eq!(id, "1");
    assert!(earlier < place, "by its place in the queue it would be late");
    assert!(redriven > second, "by its start it is not");
}

#[tokio::test(start_paused = true)]
async fn a_retry_inside_a_handler_makes_one_attempt() {
    let redrive = testing::memory();
    let calls = Arc::new(AtomicU32::new(0));
    let counter = calls.clone();
    let handler = move |_| {
        let counter = counter.clone();
        async move {
            let call = || {
                counter.fetch_add(1, Ordering::SeqCst);
                async { Err::<(), _>(std::io::Error::other("down")) }
            };
            let stopped = call.retry(&patient()).classify(classify::all).await;
            stopped.map_err(Failure::transient)
        }
    };
    redrive.queue("orders").policy(patient()).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1")).await.unwrap();
    testing::drain(&redrive).await;
    assert_eq!(calls.load(Ordering::SeqCst), 5, "five attempts of one call each, not of five");
}

#[tokio::test(start_paused = true)]
async fn an_event_in_a_hurry_has_a_batch_of_its_own() {
    let policy = Policy::builder().attempt_time(30 * SECOND).build().unwrap();
    let redrive = testing::memory();
    let handler = |batch: Vec<Delivery>| async move {
        tokio::time::sleep(2 * SECOND).await;
        vec![Disposition::Ok; batch.len()]
    };
    redrive.queue("orders").policy(policy).handle_batch(20, handler).await.unwrap();
    let hurried = Event::new("orders", "hurried").expires_after(SECOND);
    let events = (0..10).map(|id| Event::new("orders", id.to_string())).chain([hurried]);
    redrive.publish_all(events).await.unwrap();
    redrive.start().await.unwrap();
    testing::drain(&redrive).await;
    assert_eq!(testing::fate(&redrive, "orders", "hurried").await.state, State::Expired);
    for id in 0..10 {
        let found = testing::fate(&redrive, "orders", &id.to_string()).await;
        assert_eq!((found.state, found.attempts), (State::Done, 1));
    }
}
