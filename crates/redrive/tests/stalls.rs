//! The watchdog: a shard that forgets its work, as by a bug, is detected and taken again.
#![cfg(all(feature = "postgres", feature = "sqlite", unix))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redrive::engine::{OpenOptions, Redrive};
use redrive::store::postgres::PostgresSettings;
use redrive::{Delivery, Event, Policy};
use redrive_testkit::postgres::{Server, a_name};
use tokio::sync::Semaphore;

/// The address of the process's database, and the patience of its watchdog.
const URL: &str = "REDRIVE_TEST_STALL_URL";
const SCHEMA: &str = "REDRIVE_TEST_STALL_SCHEMA";
const STALL_AFTER: &str = "REDRIVE_TEST_STALL_AFTER_MS";
/// How long an engine may do nothing here.
const BOUND: Duration = Duration::from_secs(2);
/// The watchdog looks three times within the bound, and once a second at most.
const LATE: Duration = Duration::from_secs(4);
/// How long a test waits for what must not happen.
const WITHOUT: Duration = Duration::from_secs(8);
/// Events beside the first.
const EVENTS: usize = 20;

/// The result of a stall.
#[derive(Debug)]
struct Came {
    /// When it was detected, after the last running attempt ended: a shard counted as stalled, or the next attempt
    /// began.
    noticed: Option<Duration>,
    /// How many events were done, including the first.
    done: usize,
    /// Whether the shards have recovered.
    is_well: bool,
}

/// Runs one event, makes all shards forget the others, lets the one end, and waits.
async fn stall(redrive: Redrive, patience: Duration) -> Came {
    let (done, may_end) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let (counted, gate) = (done.clone(), may_end.clone());
    let policy = Policy::builder().attempt_time(Duration::from_secs(2)).build().unwrap();
    let handler = move |_: Delivery| {
        let (counted, gate, begun) = (counted.clone(), gate.clone(), begun.clone());
        async move {
            let _ = begun.send(());
            gate.acquire().await.unwrap().forget();
            counted.fetch_add(1, Ordering::AcqRel);
            Ok::<_, redrive::Failure>(())
        }
    };
    redrive.queue("mail").policy(policy).concurrency(1).handle(handler).await.unwrap();
    redrive.start().await.unwrap();
    for number in 0..=EVENTS {
        redrive.publish(Event::new("mail", format!("mail-{number}"))).await.unwrap();
    }
    begins.recv().await.unwrap();
    // A load or an arrival may be under way at the first of these, and bring events back.
    for _ in 0..20 {
        redrive.stall().await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    may_end.add_permits(1 + EVENTS);
    let (began, mut noticed) = (Instant::now(), None);
    while began.elapsed() < patience && done.load(Ordering::Acquire) <= EVENTS {
        // A shard that is taken again in less than a turn of this loop shows in the next attempt.
        if redrive.stalled_shards() > 0 || begins.try_recv().is_ok() {
            noticed.get_or_insert(began.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    if begins.try_recv().is_ok() {
        noticed.get_or_insert(began.elapsed());
    }
    let is_well = redrive.stalled_shards() == 0;
    redrive.shutdown(Duration::from_secs(5)).await.unwrap();
    Came { noticed, done: done.load(Ordering::Acquire), is_well }
}

/// Not a test by itself: the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_a_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let mut settings = PostgresSettings::default();
    settings.schema = std::env::var(SCHEMA).unwrap();
    settings.lease = Duration::from_secs(5);
    let after = Duration::from_millis(std::env::var(STALL_AFTER).unwrap().parse().unwrap());
    let redrive = OpenOptions::new().postgres(settings).stall_after(after).open(&url).await.unwrap();
    let came = stall(redrive, if after == BOUND { 4 * LATE } else { WITHOUT }).await;
    let noticed = came.noticed.map_or(-1, |at| i64::try_from(at.as_millis()).unwrap());
    println!("stalled: {noticed} {} {}", came.done, came.is_well);
}

/// Runs the process on a schema of its own.
fn in_a_process(after: Duration) -> (i64, usize, bool) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "as_a_process", "--nocapture"])
        .env(URL, Server::shared().url())
        .env(SCHEMA, a_name("stalls"))
        .env(STALL_AFTER, after.as_millis().to_string())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.split("stalled: ").nth(1));
    let line = line.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    let words: Vec<&str> = line.split(' ').collect();
    (words[0].parse().unwrap(), words[1].parse().unwrap(), words[2].parse().unwrap())
}

#[test]
fn a_stalled_shard_in_postgres_is_noticed_in_time_and_its_events_are_done() {
    let (noticed, done, is_well) = in_a_process(BOUND);
    let bound = i64::try_from((BOUND + LATE).as_millis()).unwrap();
    assert!(
        (i64::try_from(BOUND.as_millis()).unwrap()..=bound).contains(&noticed),
        "noticed after {noticed} ms"
    );
    assert_eq!(done, 1 + EVENTS);
    assert!(is_well, "an attempt has started since");
}

/// The control: without the watchdog they stay where they are.
#[test]
fn without_the_watchdog_they_stay() {
    let (noticed, done, _) = in_a_process(Duration::from_secs(3600));
    assert_eq!((noticed, done), (-1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_file_is_taken_again() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("stalls.db").display());
    let redrive = OpenOptions::new().stall_after(BOUND).open(&url).await.unwrap();
    let came = stall(redrive, 4 * LATE).await;
    assert!(came.noticed.is_some_and(|at| (BOUND..=BOUND + LATE).contains(&at)), "{came:?}");
    assert_eq!((came.done, came.is_well), (1 + EVENTS, true));
}
