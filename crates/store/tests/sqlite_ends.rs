//! The ends of events are beside their dedupe records: returned with them, deleted with them, and checked as they are.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use redrive_core::event::{DeadReason, Fingerprint, State};
use redrive_core::queue_entry::{EventChange, EventProgress, FencingToken, ParkFollowers, SettleRequest};
use redrive_core::triage::Operator;
use redrive_core::{Event, Moment};
use redrive_store::operate::{EditedEvent, EventRef, OperatorAction, OperatorCommand};
use redrive_store::{NewEvent, PublishError, Published, Sqlite, Store, StoreError, prelude::*};

mod sqlite_common;
use sqlite_common::{AT, TestStore, due, history, publish, settle};

fn done() -> EventChange {
    EventChange::DoneWith { result: Some(b"paid".to_vec()), attempts: 2, history: history(1) }
}

/// An event that is done, with a result.
async fn ended(store_dir: &TestStore, at: Moment) -> (Arc<Sqlite>, FencingToken) {
    let store = store_dir.open().await;
    let token = store.take(0, AT).await.unwrap().token;
    publish(&store, Event::new("orders", "1")).await.unwrap();
    let entry = due(&store, token).await.remove(0);
    store.settle(vec![SettleRequest { at, ..settle(token, &entry, done()) }]).await.unwrap();
    (store, token)
}

fn count(store_dir: &TestStore, table: &str) -> i64 {
    store_dir.raw().query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_damaged_end_is_no_answer() {
    let columns = [
        "state = 'dropped'",
        "ended = ended + 1",
        "attempts = 3",
        "history = NULL",
        "result = x'00'",
        "result = NULL",
        "crc = crc + 1",
        "seq = seq + 1",
    ];
    for column in columns {
        let store_dir = TestStore::new();
        let (store, _) = ended(&store_dir, AT).await;
        let found = store.find("", "orders", "1").await.unwrap().unwrap();
        assert_eq!((found.state, found.attempts, found.history), (State::Done, 2, history(1)));
        let changed = store_dir.raw().execute(&format!("UPDATE redrive_ending SET {column}"), []).unwrap();
        assert_eq!(changed, 1, "{column}");
        if column.starts_with("seq") {
            // The end belongs to no event now; the event with its seq does not get it.
            publish(&store, Event::new("orders", "2")).await.unwrap();
            let found = store.find("", "orders", "2").await;
            assert!(matches!(found, Err(StoreError::Damaged { .. })), "{found:?}");
            continue;
        }
        let found = store.find("", "orders", "1").await;
        assert!(matches!(found, Err(StoreError::Damaged { .. })), "{column}: {found:?}");
        let again = publish(&store, Event::new("orders", "1")).await;
        assert!(matches!(again, Err(PublishError::Store(StoreError::Damaged { .. }))), "{column}: {again:?}");
    }
}

#[tokio::test]
async fn an_end_is_forgotten_with_its_receipt() {
    let store_dir = TestStore::new();
    let (store, _) = ended(&store_dir, AT).await;
    assert_eq!((count(&store_dir, "redrive_dedupe"), count(&store_dir, "redrive_ending")), (1, 1));
    // The queue's horizon is a second, and so is its window.
    store.forget(AT + Duration::from_secs(2)).await.unwrap();
    assert_eq!((count(&store_dir, "redrive_dedupe"), count(&store_dir, "redrive_ending")), (1, 1));
    store.forget(AT + Duration::from_secs(3)).await.unwrap();
    assert_eq!((count(&store_dir, "redrive_dedupe"), count(&store_dir, "redrive_ending")), (0, 0));
}

#[tokio::test]
async fn an_id_that_is_free_again_has_not_ended() {
    let store_dir = TestStore::new();
    let (store, _) = ended(&store_dir, AT).await;
    let later = AT + Duration::from_secs(3);
    let new = NewEvent::at(Event::new("orders", "1"), later);
    let published = store.publish(vec![new]).await.unwrap().remove(0).unwrap();
    assert!(matches!(published, Published::Accepted(_)), "{published:?}");
    assert_eq!(store.find("", "orders", "1").await.unwrap().unwrap().state, State::Ready);
    assert_eq!((count(&store_dir, "redrive_dedupe"), count(&store_dir, "redrive_ending")), (1, 0));
}

#[tokio::test]
async fn what_ends_late_is_remembered_for_as_long_with_its_end() {
    let store_dir = TestStore::new();
    let late = AT + Duration::from_secs(10);
    let (store, _) = ended(&store_dir, late).await;
    store.forget(late + Duration::from_secs(1)).await.unwrap();
    let found = store.find("", "orders", "1").await.unwrap().unwrap();
    assert_eq!((found.state, found.ended, found.attempts), (State::Done, Some(late), 2));
    assert_eq!(found.result.as_deref(), Some(&b"paid"[..]));
    store.forget(late + Duration::from_secs(2)).await.unwrap();
    assert_eq!((count(&store_dir, "redrive_dedupe"), count(&store_dir, "redrive_ending")), (0, 0));
}

#[tokio::test]
async fn an_end_outlasts_the_receipt_of_the_original_that_had_its_place() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    let token = store.take(0, AT).await.unwrap().token;
    publish(&store, Event::new("orders", "1")).await.unwrap();
    let entry = due(&store, token).await.remove(0);
    let progress = EventProgress { attempts: 1, ..EventProgress::fresh(AT) };
    let dead = EventChange::Dead { reason: DeadReason::Permanent, progress, park: ParkFollowers::No };
    store.settle(vec![settle(token, &entry, dead)]).await.unwrap();
    let event = Event::new("orders", "2");
    let edited =
        EditedEvent { fingerprint: Fingerprint::of(&event), event: Arc::new(event), out_of_order: false };
    let what = OperatorAction::Edit(EventRef::new("", "orders", "1"), Box::new(edited));
    let at = AT + Duration::from_millis(1_500);
    assert_eq!(store.operate(OperatorCommand { by: Operator::engine(), at, what }).await.unwrap().changed, 1);
    let found = store.find("", "orders", "2").await.unwrap().unwrap();
    let end = SettleRequest { token, seq: found.seq, rev: found.rev, at, change: done() };
    store.settle(vec![end]).await.unwrap();

    // The original is remembered for the window after the edit, the replacement for the horizon and the window.
    store.forget(AT + Duration::from_secs(3)).await.unwrap();
    assert!(store.find("", "orders", "1").await.unwrap().is_none());
    let found = store.find("", "orders", "2").await.unwrap().unwrap();
    assert_eq!((found.state, found.attempts, found.history), (State::Done, 2, history(1)));
}
