//! A disk that fills up: publishing is refused, nothing is lost, and it goes on when there is room.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive::engine::{OpenOptions, Transaction};
use redrive::prelude::*;
use redrive::{Delivery, Event, PublishError, Published, Redrive, StoreError, testing};
use redrive_testkit::disk::SmallDisk;
use tokio::sync::Semaphore;

use crate::{SECOND, file};

const DISK_KIB: u32 = 16 << 10;

/// A small disk, or a message why there is none.
fn small_disk(folder: &tempfile::TempDir) -> Option<SmallDisk> {
    match SmallDisk::mount(folder.path(), DISK_KIB) {
        Ok(disk) => Some(disk),
        Err(error) => {
            eprintln!("skipped, because no small disk can be mounted here: {error}");
            None
        }
    }
}

/// A queue whose effect is as large as its event, in the same file.
async fn open(disk: &SmallDisk, least: u64) -> Redrive {
    let options = OpenOptions::new().disk_least(least);
    let redrive = options.open(&format!("sqlite:{}", file(disk.folder()).display())).await.unwrap();
    let make = |tx: &mut Transaction<'_>| {
        tx.sqlite().unwrap().execute_batch("CREATE TABLE IF NOT EXISTS effect (id TEXT, payload BLOB)")
    };
    redrive.transact(make).await.unwrap();
    let handler = |tx: &mut Transaction<'_>, delivery: &Delivery| {
        let row = (delivery.id(), delivery.payload());
        tx.sqlite().unwrap().execute("INSERT INTO effect VALUES (?1, ?2)", row).map(drop)
    };
    // So few and quick that they would be used up while the disk is full, if that were charged.
    let wait = Backoff::constant(Duration::from_millis(1));
    let policy = Policy::builder().attempts(3).backoff(wait).no_budget().build().unwrap();
    redrive.queue("orders").policy(policy).concurrency(4).handle_in(handler).await.unwrap();
    redrive
}

fn event(n: u32) -> Event {
    Event::new("orders", format!("order-{n}")).payload(vec![7; 32 << 10])
}

async fn effects(redrive: &Redrive) -> (u32, u32) {
    let read = |tx: &mut Transaction<'_>| {
        let both = "SELECT count(*), count(DISTINCT id) FROM effect";
        tx.sqlite().unwrap().query_row(both, [], |row| Ok((row.get(0)?, row.get(1)?)))
    };
    redrive.transact(read).await.unwrap()
}

async fn drain(redrive: &Redrive) {
    tokio::time::timeout(30 * SECOND, testing::drain(redrive)).await.expect("all done in half a minute");
}

/// Publishes until it is refused; returns which event was, and the error.
async fn publish_until_refused(redrive: &Redrive, from: u32) -> (u32, PublishError) {
    for n in from..from + 10_000 {
        match redrive.publish(event(n)).await {
            Ok(published) => assert!(matches!(published, Published::Accepted(_)), "{n}: {published:?}"),
            Err(error) => return (n, error),
        }
    }
    panic!("a small disk took everything");
}

/// Publishes the refused event until it is accepted.
async fn publish_until_taken(redrive: &Redrive, n: u32) {
    let begin = Instant::now();
    while let Err(error) = redrive.publish(event(n)).await {
        assert!(error.is_transient() && begin.elapsed() < 10 * SECOND, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn below_the_watermark_publishing_stops_and_settling_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = small_disk(&folder) else { return };
    let redrive = open(&disk, 8 << 20).await;
    for n in 0..10 {
        redrive.publish(event(n)).await.unwrap();
    }
    disk.fill_but(4 << 10).unwrap();
    // The disk is checked now and then; so small a one would be full before. A duplicate writes nothing.
    while redrive.publish(event(0)).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let (refused, error) = publish_until_refused(&redrive, 10).await;
    assert_eq!(refused, 10);
    assert!(error.is_transient(), "{error}");
    let PublishError::Store(StoreError::DiskLow { free, least }) = error else { panic!("{error}") };
    assert!(free <= 4 << 20 && least == 8 << 20, "{free} of {least}");

    redrive.start().await.unwrap();
    drain(&redrive).await;
    assert_eq!(effects(&redrive).await, (refused, refused));

    disk.free().unwrap();
    publish_until_taken(&redrive, refused).await;
    drain(&redrive).await;
    assert_eq!(effects(&redrive).await, (refused + 1, refused + 1));
    redrive.shutdown(SECOND).await.unwrap();
}

#[tokio::test]
async fn a_full_disk_refuses_for_a_while_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = small_disk(&folder) else { return };
    let redrive = open(&disk, 0).await;
    disk.fill_but(2 << 10).unwrap();
    let (refused, error) = publish_until_refused(&redrive, 0).await;
    assert!(error.is_transient(), "{error}");
    assert!(
        matches!(&error, PublishError::Store(StoreError::Passing { what, .. }) if what == "the disk is full")
    );
    assert!(refused > 10, "{refused}");

    // Nothing can be settled, either. From outside, the only sign is that nothing happens.
    redrive.start().await.unwrap();
    for n in refused..refused + 20 {
        assert!(redrive.publish(event(n)).await.unwrap_err().is_transient());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    disk.free().unwrap();
    for n in 0..refused + 20 {
        publish_until_taken(&redrive, n).await;
    }
    drain(&redrive).await;
    assert_eq!(testing::dead_letters(&redrive, "orders").await, []);
    assert_eq!(effects(&redrive).await, (refused + 20, refused + 20));
    redrive.shutdown(SECOND).await.unwrap();
}

/// There is room for a settle, and none for the effect: it is the store that fails, not the handler.
#[tokio::test]
async fn a_full_disk_is_charged_to_no_event() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = small_disk(&folder) else { return };
    let redrive = open(&disk, 0).await;
    let tried = Arc::new(Semaphore::new(0));
    let tries = tried.clone();
    let large = move |tx: &mut Transaction<'_>, delivery: &Delivery| {
        tries.add_permits(1);
        let insert = "INSERT INTO effect VALUES (?1, zeroblob(1048576))";
        tx.sqlite().unwrap().execute(insert, [delivery.id()]).map(drop)
    };
    let wait = Backoff::constant(Duration::from_millis(1));
    let policy = Policy::builder().attempts(3).backoff(wait).no_budget().build().unwrap();
    redrive.queue("large").policy(policy).handle_in(large).await.unwrap();
    for n in 0..3 {
        redrive.publish(Event::new("large", format!("large-{n}"))).await.unwrap();
    }
    disk.fill_but(512).unwrap();
    redrive.start().await.unwrap();
    // More often than any of them may fail.
    let tried = tokio::time::timeout(20 * SECOND, tried.acquire_many(3 * 3 + 1)).await;
    tried.expect("they are tried again").unwrap().forget();
    assert_eq!(testing::dead_letters(&redrive, "large").await, []);
    disk.free().unwrap();
    drain(&redrive).await;
    assert_eq!(testing::dead_letters(&redrive, "large").await, []);
    assert_eq!(effects(&redrive).await, (3, 3));
    redrive.shutdown(SECOND).await.unwrap();
}
