//! The engine over a SQLite file, in real time.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive::engine::{Redrive, Transaction};
use redrive::event::State;
use redrive::prelude::*;
use redrive::{Delivery, Event, Published, testing};
use tokio::sync::Semaphore;

const SECOND: Duration = Duration::from_secs(1);

async fn open(folder: &Path) -> Redrive {
    Redrive::open(&format!("sqlite:{}", folder.join("orders.db").display())).await.unwrap()
}

#[tokio::test]
async fn events_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let redrive = open(folder.path()).await;
    redrive.queue("orders").declare().await.unwrap();
    for id in 0..100 {
        redrive.publish(Event::new("orders", id.to_string()).payload(vec![7; 300])).await.unwrap();
    }
    redrive.shutdown(SECOND).await.unwrap();

    let redrive = open(folder.path()).await;
    let done = Arc::new(AtomicU32::new(0));
    let counter = done.clone();
    let handler = move |delivery: Delivery| {
        assert_eq!(delivery.payload(), [7; 300]);
        counter.fetch_add(1, Ordering::SeqCst);
        async {}
    };
    redrive.queue("orders").handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    testing::drain(&redrive).await;
    assert_eq!(done.load(Ordering::SeqCst), 100);
    let again = redrive.publish(Event::new("orders", "7").payload(vec![7; 300])).await.unwrap();
    assert!(matches!(again, Published::Duplicate(found) if found.state == State::Done));
    redrive.shutdown(SECOND).await.unwrap();
}

#[tokio::test]
async fn a_clock_that_is_behind_at_the_next_start_holds_up_no_event() {
    let folder = tempfile::tempdir().unwrap();
    // To a process whose clock is a day ahead, the right one is a day behind.
    let clock = redrive::engine::EventClock::wrong_by(86_400);
    let address = format!("sqlite:{}", folder.path().join("orders.db").display());
    let redrive = redrive::engine::OpenOptions::new().clock(clock).open(&address).await.unwrap();
    redrive.queue("orders").handle(|_: Delivery| async {}).await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("orders", "1").delay(2 * SECOND)).await.unwrap();
    redrive.shutdown(SECOND).await.unwrap();

    let redrive = open(folder.path()).await;
    let (tell, mut hear) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |_: Delivery| {
        tell.send(()).unwrap();
        async {}
    };
    redrive.queue("orders").handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    let ran = tokio::time::timeout(30 * SECOND, hear.recv()).await;
    assert!(ran.is_ok(), "it waits for a day");
    redrive.shutdown(SECOND).await.unwrap();
}

#[tokio::test]
async fn the_caller_s_own_tables_commit_with_the_event() {
    let folder = tempfile::tempdir().unwrap();
    let redrive = open(folder.path()).await;
    let handler = |tx: &mut Transaction<'_>, delivery: &Delivery| {
        let table = tx.sqlite().unwrap();
        table
            .execute("INSERT INTO paid (id, attempt) VALUES (?1, ?2)", (delivery.id(), delivery.attempt()))?;
        if delivery.attempt() == 1 {
            return Err(redrive::Failure::transient(std::io::Error::other("not yet")));
        }
        Ok(())
    };
    let policy = Policy::builder().backoff(Backoff::constant(Duration::from_millis(5))).build().unwrap();
    redrive.queue("orders").policy(policy).handle_in(handler).await.unwrap();
    let make = |tx: &mut Transaction<'_>| {
        tx.sqlite().unwrap().execute_batch("CREATE TABLE paid (id TEXT PRIMARY KEY, attempt INTEGER)")
    };
    redrive.transact(make).await.unwrap();
    redrive.start().await.unwrap();
    let publish = |tx: &mut Transaction<'_>| {
        for id in ["1", "2", "3"] {
            tx.publish(Event::new("orders", id))?;
        }
        Ok::<_, redrive::PublishError>(())
    };
    redrive.transact(publish).await.unwrap();
    testing::drain(&redrive).await;
    let read = |tx: &mut Transaction<'_>| {
        let table = tx.sqlite().unwrap();
        table.query_row("SELECT count(*), min(attempt) FROM paid", [], |row| {
            Ok((row.get::<_, u32>(0)?, row.get::<_, u32>(1)?))
        })
    };
    assert_eq!(redrive.transact(read).await.unwrap(), (3, 2));
    redrive.shutdown(SECOND).await.unwrap();
}

#[tokio::test]
async fn who_opened_first_and_never_started_is_in_nobody_s_way() {
    let folder = tempfile::tempdir().unwrap();
    let publisher = open(folder.path()).await;
    publisher.queue("orders").declare().await.unwrap();
    publisher.publish(Event::new("orders", "1")).await.unwrap();
    let worker = open(folder.path()).await;
    worker.queue("orders").handle(|_| async {}).await.unwrap();
    worker.start().await.unwrap();
    testing::drain(&worker).await;
    assert_eq!(testing::fate(&publisher, "orders", "1").await.state, State::Done);
    worker.shutdown(SECOND).await.unwrap();
    publisher.shutdown(SECOND).await.unwrap();
}

#[tokio::test]
async fn a_second_opening_publishes_and_does_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let owner = open(folder.path()).await;
    let ran = Arc::new(Semaphore::new(0));
    let runs = ran.clone();
    let handler = move |_| {
        runs.add_permits(1);
        async {}
    };
    owner.queue("orders").handle(handler).await.unwrap();
    owner.start().await.unwrap();
    let guest = open(folder.path()).await;
    guest.publish(Event::new("orders", "1")).await.unwrap();
    let error = guest.start().await.unwrap_err().to_string();
    assert!(error.contains("is owned by another process") && error.contains("publish and read"), "{error}");
    let heard = tokio::time::timeout(10 * SECOND, ran.acquire()).await;
    heard.expect("the owner did not hear of it").unwrap().forget();
    owner.idle().await;
    assert_eq!(testing::fate(&guest, "orders", "1").await.state, State::Done);
    assert_eq!(ran.available_permits(), 0, "it ran once");
    guest.shutdown(SECOND).await.unwrap();
    owner.shutdown(SECOND).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_in_the_middle_of_everything_answers_everybody() {
    for grace in [Duration::ZERO, SECOND] {
        let folder = tempfile::tempdir().unwrap();
        let redrive = open(folder.path()).await;
        let handler = |_| tokio::time::sleep(Duration::from_millis(1));
        redrive.queue("orders").concurrency(64).handle(handler).await.unwrap();
        redrive.start().await.unwrap();
        let going = Arc::new(Semaphore::new(0));
        let publishers: Vec<_> = (0..200)
            .map(|publisher| {
                let (redrive, going) = (redrive.clone(), going.clone());
                tokio::spawn(async move {
                    let mut accepted = Vec::new();
                    for n in 0.. {
                        let id = format!("{publisher}-{n}");
                        if redrive.publish(Event::new("orders", id.as_str())).await.is_err() {
                            break;
                        }
                        accepted.push(id);
                        going.add_permits(1);
                    }
                    accepted
                })
            })
            .collect();
        going.acquire_many(1000).await.unwrap().forget();
        let stops = [redrive.shutdown(grace), redrive.shutdown(10 * SECOND)];
        let stops = tokio::time::timeout(20 * SECOND, futures_util::future::join_all(stops)).await;
        assert!(stops.expect("a stop hangs").into_iter().all(|stop| stop.is_ok()));
        let mut accepted = Vec::new();
        for publisher in publishers {
            let ended = tokio::time::timeout(10 * SECOND, publisher).await;
            accepted.extend(ended.expect("a publisher hangs").unwrap());
        }
        // Nothing that was acknowledged is lost.
        let again = open(folder.path()).await;
        again.queue("orders").concurrency(64).handle(|_| async {}).await.unwrap();
        again.start().await.unwrap();
        testing::drain(&again).await;
        for id in accepted {
            assert_eq!(testing::fate(&again, "orders", &id).await.state, State::Done, "{id}");
        }
        again.shutdown(SECOND).await.unwrap();
    }
}
