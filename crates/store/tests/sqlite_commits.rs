//! Failed commits: which outcomes are certain, which are not, and how the store goes on.
#![cfg(all(feature = "sqlite", feature = "planted"))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use redrive_core::Event;
use redrive_core::queue_entry::EventChange;
use redrive_store::{PublishError, Published, Sqlite, Store, StoreError, prelude::*};
use rusqlite::ffi::{self, SQLITE_IOERR_FSYNC};

mod sqlite_common;
use sqlite_common::{AT, TestStore, due, publish, settle};

/// Makes the next commit report a failed sync, though it happened.
async fn fail_next_sync(store: &Sqlite) {
    let answered = store.meddle(|conn| {
        // Called after each commit that writes something. This call writes nothing.
        let hook = |_: &mut rusqlite::hooks::Wal, _| {
            Err(rusqlite::Error::SqliteFailure(ffi::Error::new(SQLITE_IOERR_FSYNC), None))
        };
        conn.wal_hook(Some(hook)).unwrap();
    });
    answered.await.unwrap();
}

#[tokio::test]
async fn after_a_failed_sync_nobody_is_answered_until_the_file_is_opened_again() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    fail_next_sync(&store).await;
    let lost = publish(&store, Event::new("orders", "1")).await;
    assert!(matches!(lost, Err(PublishError::Store(StoreError::Unknown { .. }))), "{lost:?}");
    assert!(matches!(store.find("", "orders", "1").await, Err(StoreError::Poisoned { .. })));
    assert!(matches!(store.take(0, AT).await, Err(StoreError::Poisoned { .. })));
    let refused = publish(&store, Event::new("orders", "2")).await;
    assert!(matches!(refused, Err(PublishError::Store(StoreError::Poisoned { .. }))), "{refused:?}");
    store.close().await.unwrap();
    let log = store_dir.path.with_file_name("store.db-wal").metadata().unwrap().len();
    assert!(log > 0, "a store that is not to be trusted writes nothing back");

    let store = store_dir.open().await;
    let again = publish(&store, Event::new("orders", "1")).await;
    assert!(matches!(again, Ok(Published::Duplicate(_))), "it had happened: {again:?}");
}

#[tokio::test]
async fn a_full_disk_loses_nothing_and_passes() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    publish(&store, Event::new("orders", "1")).await.unwrap();
    let token = store.take(0, AT).await.unwrap().token;
    let limit = |pages: &'static str| {
        store.meddle(move |conn| {
            let sql = format!("PRAGMA max_page_count = {pages}");
            conn.query_row(&sql, [], |_| Ok(())).unwrap();
        })
    };
    limit("1").await.unwrap();
    let large = || Event::new("orders", "2").payload(vec![1; 100_000]);
    let full = publish(&store, large()).await;
    let Err(PublishError::Store(error)) = full else { panic!("{full:?}") };
    assert!(error.is_transient() && error.to_string().contains("the disk is full"), "{error}");
    assert!(store.find("", "orders", "2").await.unwrap().is_none());
    // Settling goes on: it frees more than it takes.
    let entry = due(&store, token).await.remove(0);
    store.settle(vec![settle(token, &entry, EventChange::Done)]).await.unwrap();
    limit("1000000").await.unwrap();
    assert!(matches!(publish(&store, large()).await, Ok(Published::Accepted(_))));
}

#[tokio::test]
async fn a_file_that_somebody_else_writes_to_is_busy_and_passes() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    store.meddle(|conn| conn.busy_timeout(std::time::Duration::ZERO).unwrap()).await.unwrap();
    let other = store_dir.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let busy = publish(&store, Event::new("orders", "1")).await;
    assert!(matches!(&busy, Err(error) if error.is_transient()), "{busy:?}");
    other.execute_batch("ROLLBACK").unwrap();
    assert!(matches!(publish(&store, Event::new("orders", "1")).await, Ok(Published::Accepted(_))));
}
