//! The file: its owner, other processes that have it open, and errors of opening.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use redrive_core::Event;
use redrive_core::queue_entry::EventChange;
use redrive_store::sqlite::{FileRole, SqliteSettings};
use redrive_store::{Arrivals, DeclaredBy, PublishError, Published, Sqlite, Store, StoreError, prelude::*};
use tokio::sync::mpsc;

mod sqlite_common;
use sqlite_common::{AT, TestStore, due, orders, publish, settle};

fn refusal(opened: Result<Sqlite, StoreError>) -> String {
    opened.err().unwrap().to_string()
}

#[tokio::test]
async fn what_cannot_be_opened_says_what_to_do() {
    let store_dir = TestStore::new();
    let open = |path: &std::path::Path| refusal(Sqlite::open(path, SqliteSettings::default()));
    let nowhere = open(&store_dir.folder.path().join("missing/store.db"));
    assert!(nowhere.contains("there is no folder") && nowhere.contains("create it first"), "{nowhere}");
    let folder = open(store_dir.folder.path());
    assert!(folder.contains("it is a folder"), "{folder}");
    std::fs::write(
        &store_dir.path,
        "a letter to my mother, rather longer than a header of a hundred bytes would be; \
        and it goes on",
    )
    .unwrap();
    let letter = open(&store_dir.path);
    assert!(letter.contains("not a SQLite database"), "{letter}");
}

#[tokio::test]
async fn a_read_only_file_says_so() {
    let store_dir = TestStore::new();
    drop(store_dir.open().await);
    let mut rights = std::fs::metadata(&store_dir.path).unwrap().permissions();
    rights.set_readonly(true);
    std::fs::set_permissions(&store_dir.path, rights).unwrap();
    match store_dir.try_open() {
        Err(error) => assert!(error.to_string().contains("read-only"), "{error}"),
        // Root may write to it, too.
        Ok(_) => assert!(std::fs::OpenOptions::new().write(true).open(&store_dir.path).is_ok()),
    }
}

#[tokio::test]
async fn a_newer_schema_is_left_alone() {
    let store_dir = TestStore::new();
    drop(store_dir.open().await);
    store_dir.raw().execute("UPDATE redrive_meta SET schema = 99", []).unwrap();
    let error = store_dir.try_open().err().unwrap();
    assert!(matches!(error, StoreError::Newer { found: 99, known: 1, .. }), "{error}");
}

#[tokio::test]
async fn the_users_own_tables_stay_as_they_were() {
    let store_dir = TestStore::new();
    store_dir.raw().execute_batch("CREATE TABLE mine (x); INSERT INTO mine VALUES (17)").unwrap();
    drop(store_dir.open().await);
    let x: i64 = store_dir.raw().query_row("SELECT x FROM mine", [], |row| row.get(0)).unwrap();
    assert_eq!(x, 17);
}

#[tokio::test]
async fn a_guest_publishes_and_looks_and_the_owner_hears_of_it() {
    let store_dir = TestStore::new();
    let owner = store_dir.open().await;
    let token = owner.take(0, AT).await.unwrap().token;
    let guest = store_dir.open().await;

    let refused = guest.take(0, AT).await.unwrap_err();
    let pid = std::process::id();
    assert!(matches!(refused, StoreError::NotOwner { pid: Some(owner), .. } if owner == pid), "{refused}");

    let (tell, mut told) = mpsc::unbounded_channel();
    owner.watch(Arc::new(move |arrivals: Arrivals| drop(tell.send(arrivals))));
    publish(&guest, Event::new("orders", "1")).await.unwrap();
    assert!(told.recv().await.unwrap().missed);
    assert_eq!(due(&owner, token).await.len(), 1);

    // Both draw numbers of one stream, and none twice.
    for n in 2..20 {
        let store = if n % 2 == 0 { &owner } else { &guest };
        let event = Event::new("orders", n.to_string());
        assert!(matches!(publish(store, event).await, Ok(Published::Accepted(_))));
    }
    assert!(matches!(publish(&owner, Event::new("orders", "3")).await, Ok(Published::Duplicate(_))));
    assert_eq!(due(&owner, token).await.len(), 19);
    assert_eq!(guest.list(redrive_store::EventQuery::default()).await.unwrap().events.len(), 19);
}

#[tokio::test]
async fn a_guest_becomes_the_owner_when_the_other_one_is_gone() {
    let store_dir = TestStore::new();
    let owner = store_dir.open().await;
    let old = owner.take(0, AT).await.unwrap().token;
    publish(&owner, Event::new("orders", "1")).await.unwrap();
    let entry = due(&owner, old).await.remove(0);
    let guest = store_dir.open().await;
    owner.close().await.unwrap();
    let taken = guest.take(0, AT).await.unwrap();
    assert!(taken.unclean, "it was closed without being released");
    assert!(taken.token.epoch > old.epoch);
    let settled = guest.settle(vec![settle(old, &entry, EventChange::Done)]).await.unwrap();
    assert_eq!(settled, [redrive_core::queue_entry::SettleResult::Fenced]);
    assert_eq!(due(&guest, taken.token).await.len(), 1);
}

#[tokio::test]
async fn who_wants_to_be_the_owner_alone_is_told_at_once() {
    let store_dir = TestStore::new();
    let owner = store_dir.open().await;
    owner.take(0, AT).await.unwrap();
    let mut settings = SqliteSettings::default();
    settings.role = FileRole::Owner;
    assert!(matches!(
        Sqlite::open(&store_dir.path, settings),
        Err(StoreError::NotOwner { pid: Some(_), .. })
    ));
}

#[tokio::test]
async fn a_key_is_kept_in_order_by_publishers_in_two_processes() {
    let store_dir = TestStore::new();
    let owner = store_dir.open().await;
    let guest = store_dir.open().await;
    let token = owner.take(0, AT).await.unwrap().token;
    publish(&owner, Event::new("orders", "1").key("k")).await.unwrap();
    publish(&guest, Event::new("orders", "2").key("k")).await.unwrap();
    let head = due(&owner, token).await;
    assert_eq!(head.iter().map(|entry| entry.event.id.as_str()).collect::<Vec<_>>(), ["1"]);
    let settled = owner.settle(vec![settle(token, &head[0], EventChange::Done)]).await.unwrap();
    let redrive_core::queue_entry::SettleResult::Applied { next: Some(next), .. } = &settled[0] else {
        panic!("{settled:?}")
    };
    assert_eq!(next.event.id, "2");
}

#[tokio::test]
async fn publishing_stops_at_the_watermark_and_settling_goes_on() {
    let store_dir = TestStore::new();
    let owner = store_dir.open().await;
    publish(&owner, Event::new("orders", "1")).await.unwrap();
    drop(owner);
    let mut settings = SqliteSettings::default();
    settings.disk_least = u64::MAX;
    let full = Sqlite::open(&store_dir.path, settings).unwrap();
    let refused = publish(&full, Event::new("orders", "2")).await;
    assert!(matches!(refused, Err(PublishError::Store(StoreError::DiskLow { .. }))), "{refused:?}");
    let token = full.take(0, AT).await.unwrap().token;
    let entry = due(&full, token).await.remove(0);
    full.settle(vec![settle(token, &entry, EventChange::Done)]).await.unwrap();
    assert_eq!(due(&full, token).await, []);
}

#[tokio::test]
async fn a_clean_stop_leaves_an_empty_log_and_a_clean_file() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    let token = store.take(0, AT).await.unwrap().token;
    publish(&store, Event::new("orders", "1")).await.unwrap();
    store.release(token).await.unwrap();
    store.close().await.unwrap();
    let log = store_dir.path.with_file_name("store.db-wal");
    assert!(!log.exists() || log.metadata().unwrap().len() == 0);
    assert!(!store_dir.path.with_file_name("store.db-notes").exists());
    let again = store_dir.open().await;
    assert!(!again.take(0, AT).await.unwrap().unclean);
    again.declare(orders(), DeclaredBy::Runner).await.unwrap();
}

#[tokio::test]
async fn who_released_the_file_settles_nothing_any_more() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    let token = store.take(0, AT).await.unwrap().token;
    publish(&store, Event::new("orders", "1")).await.unwrap();
    let entry = due(&store, token).await.remove(0);
    store.release(token).await.unwrap();
    let settled = store.settle(vec![settle(token, &entry, EventChange::Done)]).await.unwrap();
    assert_eq!(settled, [redrive_core::queue_entry::SettleResult::Fenced]);
    assert!(matches!(store.release(token).await, Err(StoreError::NotOwner { .. })));
}

#[tokio::test]
async fn a_long_log_is_written_back_by_the_writer() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    for n in 0..40 {
        let event = Event::new("orders", n.to_string()).payload(vec![1; 1 << 20]);
        publish(&store, event).await.unwrap();
    }
    let log = store_dir.path.with_file_name("store.db-wal").metadata().unwrap().len();
    assert!(log < 30 << 20, "the log has {log} bytes");
}
