//! The file: who owns it, who else has it open, and what is said when it cannot be opened.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use redrive_core::Event;
use redrive_core::entry::Change;
use redrive_store::sqlite::{Role, Settings};
use redrive_store::{Arrivals, By, PublishError, Published, Sqlite, Store, StoreError};
use tokio::sync::mpsc;

mod sqlite_common;
use sqlite_common::{AT, Place, due, orders, publish, settle};

fn refusal(opened: Result<Sqlite, StoreError>) -> String {
    opened.err().unwrap().to_string()
}

#[tokio::test]
async fn what_cannot_be_opened_says_what_to_do() {
    let place = Place::new();
    let open = |path: &std::path::Path| refusal(Sqlite::open(path, Settings::default()));
    let nowhere = open(&place.folder.path().join("missing/store.db"));
    assert!(nowhere.contains("there is no folder") && nowhere.contains("make it first"), "{nowhere}");
    let folder = open(place.folder.path());
    assert!(folder.contains("it is a folder"), "{folder}");
    std::fs::write(
        &place.path,
        "a letter to my mother, rather longer than a header of a hundred bytes would be; \
        and it goes on",
    )
    .unwrap();
    let letter = open(&place.path);
    assert!(letter.contains("not a SQLite database"), "{letter}");
}

#[tokio::test]
async fn a_read_only_file_says_so() {
    let place = Place::new();
    drop(place.open().await);
    let mut rights = std::fs::metadata(&place.path).unwrap().permissions();
    rights.set_readonly(true);
    std::fs::set_permissions(&place.path, rights).unwrap();
    match place.try_open() {
        Err(error) => assert!(error.to_string().contains("read-only"), "{error}"),
        // Whoever may do everything may write to it, too.
        Ok(_) => assert!(std::fs::OpenOptions::new().write(true).open(&place.path).is_ok()),
    }
}

#[tokio::test]
async fn a_newer_schema_is_left_alone() {
    let place = Place::new();
    drop(place.open().await);
    place.raw().execute("UPDATE redrive_meta SET schema = 99", []).unwrap();
    let error = place.try_open().err().unwrap();
    assert!(matches!(error, StoreError::Newer { found: 99, known: 1, .. }), "{error}");
}

#[tokio::test]
async fn the_users_own_tables_stay_as_they_were() {
    let place = Place::new();
    place.raw().execute_batch("CREATE TABLE mine (x); INSERT INTO mine VALUES (17)").unwrap();
    drop(place.open().await);
    let x: i64 = place.raw().query_row("SELECT x FROM mine", [], |row| row.get(0)).unwrap();
    assert_eq!(x, 17);
}

#[tokio::test]
async fn a_guest_publishes_and_looks_and_the_owner_hears_of_it() {
    let place = Place::new();
    let owner = place.open().await;
    let grant = owner.take(0, AT).await.unwrap().grant;
    let guest = place.open().await;

    let refused = guest.take(0, AT).await.unwrap_err();
    let pid = std::process::id();
    assert!(matches!(refused, StoreError::NotOwner { pid: Some(owner), .. } if owner == pid), "{refused}");

    let (tell, mut told) = mpsc::unbounded_channel();
    owner.watch(Arc::new(move |arrivals: Arrivals| drop(tell.send(arrivals))));
    publish(&guest, Event::new("orders", "1")).await.unwrap();
    assert!(told.recv().await.unwrap().missed);
    assert_eq!(due(&owner, grant).await.len(), 1);

    // Both give numbers of one stream, and none twice.
    for n in 2..20 {
        let store = if n % 2 == 0 { &owner } else { &guest };
        let event = Event::new("orders", n.to_string());
        assert!(matches!(publish(store, event).await, Ok(Published::Accepted(_))));
    }
    assert!(matches!(publish(&owner, Event::new("orders", "3")).await, Ok(Published::Duplicate(_))));
    assert_eq!(due(&owner, grant).await.len(), 19);
    assert_eq!(guest.list(redrive_store::Query::default()).await.unwrap().events.len(), 19);
}

#[tokio::test]
async fn a_guest_becomes_the_owner_when_the_other_one_is_gone() {
    let place = Place::new();
    let owner = place.open().await;
    let old = owner.take(0, AT).await.unwrap().grant;
    publish(&owner, Event::new("orders", "1")).await.unwrap();
    let entry = due(&owner, old).await.remove(0);
    let guest = place.open().await;
    owner.close().await.unwrap();
    let taken = guest.take(0, AT).await.unwrap();
    assert!(taken.unclean, "it was closed without being released");
    assert!(taken.grant.epoch > old.epoch);
    let settled = guest.settle(vec![settle(old, &entry, Change::Done)]).await.unwrap();
    assert_eq!(settled, [redrive_core::entry::Settled::Fenced]);
    assert_eq!(due(&guest, taken.grant).await.len(), 1);
}

#[tokio::test]
async fn who_wants_to_be_the_owner_alone_is_told_at_once() {
    let place = Place::new();
    let owner = place.open().await;
    owner.take(0, AT).await.unwrap();
    let mut settings = Settings::default();
    settings.role = Role::Owner;
    assert!(matches!(Sqlite::open(&place.path, settings), Err(StoreError::NotOwner { pid: Some(_), .. })));
}

#[tokio::test]
async fn a_key_is_kept_in_order_by_publishers_in_two_processes() {
    let place = Place::new();
    let owner = place.open().await;
    let guest = place.open().await;
    let grant = owner.take(0, AT).await.unwrap().grant;
    publish(&owner, Event::new("orders", "1").key("k")).await.unwrap();
    publish(&guest, Event::new("orders", "2").key("k")).await.unwrap();
    let head = due(&owner, grant).await;
    assert_eq!(head.iter().map(|entry| entry.event.id.as_str()).collect::<Vec<_>>(), ["1"]);
    let settled = owner.settle(vec![settle(grant, &head[0], Change::Done)]).await.unwrap();
    let redrive_core::entry::Settled::Applied { next: Some(next), .. } = &settled[0] else {
        panic!("{settled:?}")
    };
    assert_eq!(next.event.id, "2");
}

#[tokio::test]
async fn publishing_stops_at_the_watermark_and_settling_goes_on() {
    let place = Place::new();
    let owner = place.open().await;
    publish(&owner, Event::new("orders", "1")).await.unwrap();
    drop(owner);
    let mut settings = Settings::default();
    settings.disk_least = u64::MAX;
    let full = Sqlite::open(&place.path, settings).unwrap();
    let refused = publish(&full, Event::new("orders", "2")).await;
    assert!(matches!(refused, Err(PublishError::Store(StoreError::DiskLow { .. }))), "{refused:?}");
    let grant = full.take(0, AT).await.unwrap().grant;
    let entry = due(&full, grant).await.remove(0);
    full.settle(vec![settle(grant, &entry, Change::Done)]).await.unwrap();
    assert_eq!(due(&full, grant).await, []);
}

#[tokio::test]
async fn a_clean_stop_leaves_an_empty_log_and_a_clean_file() {
    let place = Place::new();
    let store = place.open().await;
    let grant = store.take(0, AT).await.unwrap().grant;
    publish(&store, Event::new("orders", "1")).await.unwrap();
    store.release(grant).await.unwrap();
    store.close().await.unwrap();
    let log = place.path.with_file_name("store.db-wal");
    assert!(!log.exists() || log.metadata().unwrap().len() == 0);
    assert!(!place.path.with_file_name("store.db-notes").exists());
    let again = place.open().await;
    assert!(!again.take(0, AT).await.unwrap().unclean);
    again.declare(orders(), By::Runner).await.unwrap();
}

#[tokio::test]
async fn who_released_the_file_settles_nothing_any_more() {
    let place = Place::new();
    let store = place.open().await;
    let grant = store.take(0, AT).await.unwrap().grant;
    publish(&store, Event::new("orders", "1")).await.unwrap();
    let entry = due(&store, grant).await.remove(0);
    store.release(grant).await.unwrap();
    let settled = store.settle(vec![settle(grant, &entry, Change::Done)]).await.unwrap();
    assert_eq!(settled, [redrive_core::entry::Settled::Fenced]);
    assert!(matches!(store.release(grant).await, Err(StoreError::NotOwner { .. })));
}

#[tokio::test]
async fn a_long_log_is_written_back_by_the_writer() {
    let place = Place::new();
    let store = place.open().await;
    for n in 0..40 {
        let event = Event::new("orders", n.to_string()).payload(vec![1; 1 << 20]);
        publish(&store, event).await.unwrap();
    }
    let log = place.path.with_file_name("store.db-wal").metadata().unwrap().len();
    assert!(log < 30 << 20, "the log has {log} bytes");
}
