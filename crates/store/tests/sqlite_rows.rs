//! Rows that the disk has changed are reported, and never handed out.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use redrive_core::event::DeadReason;
use redrive_core::queue_entry::{EventChange, FencingToken, LoadRequest, StreamId};
use redrive_core::queue_entry::{EventProgress, ParkFollowers};
use redrive_core::triage::{Operator, RedriveOptions};
use redrive_core::{Event, Moment};
use redrive_store::operate::{EventAction, EventRef, OperatorAction, OperatorCommand};
use redrive_store::{EventQuery, PublishError, Sqlite, StoreError, prelude::*};

mod sqlite_common;
use sqlite_common::{AT, TestStore, due, publish, settle};

async fn damaged(store: &Sqlite, token: FencingToken) -> Vec<String> {
    let load = LoadRequest {
        token,
        stream: StreamId(1),
        until: AT,
        live_max: 9,
        retry_max: 9,
        bytes_max: 1 << 30,
        except: vec![],
    };
    store.load(load).await.unwrap().damaged
}

/// Two events, of which the first is damaged by a statement.
async fn damage(prepare: Option<EventChange>, sql: &str) -> (TestStore, Arc<Sqlite>, FencingToken) {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    let token = store.take(0, AT).await.unwrap().token;
    let event = |id: &str| Event::new("orders", id).payload(*b"17 euro").header("a", "b");
    publish(&store, event("1")).await.unwrap();
    if let Some(change) = prepare {
        let entry = due(&store, token).await.remove(0);
        store.settle(vec![settle(token, &entry, change)]).await.unwrap();
    }
    publish(&store, event("2")).await.unwrap();
    assert_eq!(store_dir.raw().execute(sql, []).unwrap(), 1, "{sql}");
    (store_dir, store, token)
}

#[tokio::test]
async fn a_damaged_event_is_skipped_and_named() {
    let columns = [
        "payload = x'31372045757261'",
        "id = '1 '",
        "tag = 'k'",
        "extra = NULL",
        "published = published + 1",
        "dedupe_ok_until = dedupe_ok_until - 1",
        "crc = crc + 1",
    ];
    for column in columns {
        let sql = format!("UPDATE redrive_fresh SET {column} WHERE id = '1'");
        let (_place, store, token) = damage(None, &sql).await;
        let left = due(&store, token).await;
        assert_eq!(left.iter().map(|entry| entry.event.id.as_str()).collect::<Vec<_>>(), ["2"], "{column}");
        let named = damaged(&store, token).await;
        assert!(named.len() == 1 && named[0].starts_with("redrive_fresh row "), "{column}: {named:?}");
        let found = store.find("", "orders", "1").await;
        assert!(matches!(found, Err(StoreError::Damaged { .. })), "{column}: {found:?}");
        let page = store.list(EventQuery::default()).await.unwrap();
        assert_eq!((page.events.len(), page.damaged), (1, named), "{column}");
        let again = publish(&store, Event::new("orders", "1").payload(*b"17 euro")).await;
        assert!(matches!(again, Err(PublishError::Store(StoreError::Damaged { .. }))), "{again:?}");
    }
}

#[tokio::test]
async fn a_damaged_retry_is_skipped_and_named() {
    let columns = [
        "due = 0",
        "attempts = 99",
        "rev = rev + 1",
        "mode = 'replay'",
        "crash_count = 3",
        "payload = x'00'",
    ];
    for column in columns {
        let sql = format!("UPDATE redrive_tracked SET {column} WHERE id = '1'");
        let again = EventChange::Retry(EventProgress { attempts: 1, ..EventProgress::fresh(AT) });
        let (_place, store, token) = damage(Some(again), &sql).await;
        assert_eq!(due(&store, token).await.len(), 1, "{column}");
        let named = damaged(&store, token).await;
        assert!(named.len() == 1 && named[0].starts_with("redrive_tracked row "), "{column}: {named:?}");
        assert!(matches!(store.find("", "orders", "1").await, Err(StoreError::Damaged { .. })), "{column}");
    }
}

#[tokio::test]
async fn a_damaged_receipt_is_no_answer() {
    let columns =
        ["fingerprint = zeroblob(16)", "until = 0", "state = 'done'", "seq = seq + 1", "became = 'x'"];
    for column in columns {
        let sql = format!("UPDATE redrive_dedupe SET {column} WHERE id = '1'");
        let (_place, store, token) = damage(None, &sql).await;
        assert!(matches!(store.find("", "orders", "1").await, Err(StoreError::Damaged { .. })), "{column}");
        let again = publish(&store, Event::new("orders", "1").payload(*b"17 euro")).await;
        assert!(matches!(again, Err(PublishError::Store(StoreError::Damaged { .. }))), "{column}: {again:?}");
        // Its event runs all the same, once.
        let entry = due(&store, token).await.remove(0);
        let end = EventChange::Dropped { attempts: 1, history: None };
        store.settle(vec![settle(token, &entry, end)]).await.unwrap();
        assert!(matches!(store.find("", "orders", "1").await, Err(StoreError::Damaged { .. })), "{column}");
    }
}

#[tokio::test]
async fn a_damaged_name_of_a_stream_is_noticed() {
    let (_place, store, token) = damage(None, "UPDATE redrive_stream SET tenant = 'another'").await;
    // The names were not read before.
    assert_eq!(damaged(&store, token).await.len(), 2);
}

#[tokio::test]
async fn a_damaged_next_of_a_key_is_named_and_its_key_stands_still() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    let token = store.take(0, AT).await.unwrap().token;
    for id in ["1", "2", "3"] {
        publish(&store, Event::new("orders", id).key("k")).await.unwrap();
    }
    store_dir.raw().execute("UPDATE redrive_tracked SET payload = x'00' WHERE id = '2'", []).unwrap();
    let head = due(&store, token).await.remove(0);
    let settled = store.settle(vec![settle(token, &head, EventChange::Done)]).await.unwrap();
    assert!(matches!(settled[0], redrive_core::queue_entry::SettleResult::Applied { next: None, .. }));
    assert_eq!(due(&store, token).await, []);
    assert_eq!(damaged(&store, token).await.len(), 1);
}

#[tokio::test]
async fn a_dead_letter_comes_back_as_the_head_of_its_key() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    let token = store.take(0, AT).await.unwrap().token;
    for id in ["1", "2", "3"] {
        publish(&store, Event::new("orders", id).key("k")).await.unwrap();
    }
    let first = due(&store, token).await.remove(0);
    let progress = EventProgress { attempts: 1, ..EventProgress::fresh(AT) };
    let dead = EventChange::Dead { reason: DeadReason::Permanent, progress, park: ParkFollowers::No };
    store.settle(vec![settle(token, &first, dead)]).await.unwrap();
    let second = due(&store, token).await.remove(0);
    assert_eq!(second.event.id, "2");

    let how = RedriveOptions { out_of_order: true, ..RedriveOptions::default() };
    let what = OperatorAction::Events(vec![EventRef::new("", "orders", "1")], EventAction::Redrive(how));
    let done = store.operate(OperatorCommand { by: Operator::engine(), at: AT, what }).await.unwrap();
    assert_eq!(done.changed, 1);
    let heads = due(&store, token).await;
    assert_eq!(heads.iter().map(|entry| entry.event.id.as_str()).collect::<Vec<_>>(), ["1"]);

    // The second was running: its settle counts, and no event overtakes the first.
    let settled = store.settle(vec![settle(token, &second, EventChange::Done)]).await.unwrap();
    assert!(
        matches!(settled[0], redrive_core::queue_entry::SettleResult::Applied { next: None, .. }),
        "{settled:?}"
    );
    let settled = store.settle(vec![settle(token, &heads[0], EventChange::Done)]).await.unwrap();
    let redrive_core::queue_entry::SettleResult::Applied { next: Some(next), .. } = &settled[0] else {
        panic!("{settled:?}")
    };
    assert_eq!(next.event.id, "3");
}

#[tokio::test]
async fn everything_of_an_event_comes_back() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    let token = store.take(0, AT).await.unwrap().token;
    let events = [
        Event::new("orders", "plain"),
        Event::new("orders", "all").key("k").payload(vec![0, 255, 1]).header("a", "b").content_type("text/x"),
        Event::new("orders", "past").at(Moment::from_nanos(1)).expires_at(Moment::FAR),
        Event::new("orders", "soon").delay(Duration::ZERO).expires_after(Duration::from_secs(1)),
    ];
    for event in &events {
        publish(&store, event.clone()).await.unwrap();
    }
    let mut loaded = due(&store, token).await;
    loaded.sort_by_key(|entry| entry.seq);
    let loaded: Vec<_> = loaded.into_iter().map(|entry| Event::clone(&entry.event)).collect();
    assert_eq!(loaded, events);
}
