//! A PostgreSQL server that stops as if it had crashed, again and again, under load: acknowledged events are there,
//! and have their effects once, in the order of their keys.
//!
//! Some restarts are a part of every run of the tests; `cargo xtask faults postgres` makes more.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use redrive::engine::{OpenOptions, Redrive, Transaction};
use redrive::event::State;
use redrive::prelude::*;
use redrive::store::postgres::PostgresSettings;
use redrive::store::sql::SqlError;
use redrive::{Delivery, Event, Failure, Published, testing};
use redrive_testkit::postgres::{Disk, Server, Stop};

/// How many publishers there are: each has a key, and publishes one event after the other.
const PUBLISHERS: u64 = 6;
/// How many events are acknowledged between two restarts, at least.
const BETWEEN: u64 = 30;
/// Of this many events one is refused by its handler for good, and one is tried twice.
const REFUSED: u64 = 29;
const TRIED_TWICE: u64 = 7;

/// What the publishers know.
#[derive(Default)]
struct SettledEvent {
    acknowledged: AtomicU64,
    /// How often a call failed transiently, and how often its outcome was unknown.
    passing: AtomicU64,
    unanswered: AtomicU64,
    is_over: AtomicBool,
}

fn restarts() -> u32 {
    std::env::var("REDRIVE_FAULTS").ok().map_or(5, |restarts| restarts.parse().unwrap())
}

/// Publishes until it is stopped. An event that is not acknowledged is published again, under the same id.
async fn publish(redrive: Redrive, told: Arc<SettledEvent>, publisher: u64) -> u64 {
    let key = format!("p{publisher}");
    for n in 0.. {
        loop {
            let event =
                Event::new("orders", format!("{publisher}-{n}")).key(key.as_str()).payload(n.to_string());
            match redrive.publish(event).await {
                Ok(Published::Accepted(_) | Published::Duplicate(_)) => break,
                Err(error) => {
                    assert!(error.is_transient(), "{error:?}");
                    let text = error.to_string();
                    let count =
                        if text.contains("may or may not") { &told.unanswered } else { &told.passing };
                    count.fetch_add(1, Relaxed);
                }
            }
        }
        told.acknowledged.fetch_add(1, Relaxed);
        if told.is_over.load(Relaxed) {
            return n + 1;
        }
    }
    unreachable!()
}

/// Records its effect, in the transaction that settles the event.
fn handle(tx: &mut Transaction<'_>, order: &Delivery) -> Result<(), Failure> {
    let n: u64 = String::from_utf8_lossy(order.payload()).parse().map_err(Failure::permanent)?;
    let key = order.key().unwrap_or_default().to_owned();
    tx.execute(
        "INSERT INTO effect (id, key, n) VALUES ($1, $2, $3)",
        &[order.id().into(), key.into(), i64::try_from(n).unwrap_or(i64::MAX).into()],
    )
    .map_err(Failure::transient)?;
    if n % REFUSED == REFUSED - 1 {
        return Err(Failure::permanent(std::io::Error::other("never")));
    }
    if n % TRIED_TWICE == TRIED_TWICE - 1 && order.attempt() == 1 {
        return Err(Failure::transient(std::io::Error::other("not yet")));
    }
    Ok(())
}

/// The final figures, read from the database.
async fn numbers(redrive: &Redrive, statement: &'static str) -> Vec<i64> {
    let read = move |tx: &mut Transaction<'_>| {
        let rows = tx.query(statement, &[])?;
        rows.iter().map(|row| row.get::<i64>(0)).collect::<Result<Vec<_>, SqlError>>()
    };
    redrive.transact(read).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_the_server_crashes() {
    let mut server = Server::start(Disk::Synced).unwrap();
    let redrive = OpenOptions::new().postgres(PostgresSettings::default()).open(&server.url()).await.unwrap();
    let make = "CREATE TABLE effect (place BIGSERIAL PRIMARY KEY, id TEXT, key TEXT, n BIGINT)";
    redrive.transact(move |tx| tx.execute(make, &[])).await.unwrap();
    let policy = Policy::builder().backoff(Backoff::constant(Duration::from_millis(5))).build().unwrap();
    redrive.queue("orders").ordered().policy(policy).handle_in(handle).await.unwrap();
    redrive.start().await.unwrap();

    let told = Arc::new(SettledEvent::default());
    let publishers: Vec<_> =
        (0..PUBLISHERS).map(|n| tokio::spawn(publish(redrive.clone(), Arc::clone(&told), n))).collect();
    let began = Instant::now();
    let all = async {
        for restart in 1..=restarts() {
            let before = told.acknowledged.load(Relaxed);
            while told.acknowledged.load(Relaxed) < before + BETWEEN {
                tokio::task::yield_now().await;
            }
            // Under load: some calls are on their way when it stops. This blocks, unlike a crash of the server.
            server = tokio::task::spawn_blocking(move || {
                server.stop(Stop::Immediate).unwrap();
                server.start_again().unwrap();
                server
            })
            .await
            .unwrap();
            let (acknowledged, passing, unanswered) =
                (told.acknowledged.load(Relaxed), told.passing.load(Relaxed), told.unanswered.load(Relaxed));
            println!(
                "restart {restart}, {:.0} s: {acknowledged} acknowledged, {passing} told to try again, {unanswered} not answered",
                began.elapsed().as_secs_f64()
            );
        }
        told.is_over.store(true, Relaxed);
        let mut published = Vec::new();
        for publisher in publishers {
            published.push(publisher.await.unwrap());
        }
        testing::drain(&redrive).await;
        (published, server)
    };
    let (published, _server) = tokio::select! {
        all = all => all,
        error = redrive.failed() => panic!("the engine ended: {error}"),
    };

    let sum: u64 = published.iter().sum();
    let refused: u64 = published.iter().map(|count| count / REFUSED).sum();
    // Published = done + dead + pending, and nothing is pending.
    let counts = redrive.counts().await.unwrap();
    let of = |state: State| {
        counts.iter().filter(|count| count.state == state).map(|count| count.events).sum::<u64>()
    };
    let receipts = numbers(&redrive, "SELECT count(*) FROM redrive.dedupe").await[0];
    println!("{sum} published, {receipts} receipts, {} dead, {counts:?}", of(State::Dead));
    assert_eq!(u64::try_from(receipts).unwrap(), sum, "what was acknowledged is there, and nothing else");
    assert_eq!(of(State::Dead), refused);
    assert_eq!(counts.iter().map(|count| count.events).sum::<u64>(), refused, "something is still pending");
    let effects = numbers(&redrive, "SELECT count(*) FROM effect").await[0];
    assert_eq!(u64::try_from(effects).unwrap(), sum - refused, "one effect each, of all that was done");
    let twice = numbers(&redrive, "SELECT count(*) FROM effect GROUP BY id HAVING count(*) > 1").await;
    assert!(twice.is_empty(), "effects that happened twice: {}", twice.len());
    let disorder = "SELECT n FROM (SELECT n, lag(n) OVER (PARTITION BY key ORDER BY place) AS before FROM effect) e \
                    WHERE before > n";
    assert_eq!(numbers(&redrive, disorder).await, [0; 0], "not in the order of their key");
    redrive.shutdown(Duration::from_secs(5)).await.unwrap();
}
