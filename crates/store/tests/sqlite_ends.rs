//! How events ended is beside their receipts: told with them, forgotten with them, and checked as they are.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use redrive_core::entry::{Change, Grant, Park, Progress, Settle};
use redrive_core::event::{DeadReason, Fingerprint, State};
use redrive_core::triage::Operator;
use redrive_core::{Event, Moment};
use redrive_store::operate::{Edited, Order, Target, What};
use redrive_store::{New, PublishError, Published, Sqlite, Store, StoreError};

mod sqlite_common;
use sqlite_common::{AT, Place, due, publish, settle, story};

fn done() -> Change {
    Change::DoneWith { result: Some(b"paid".to_vec()), attempts: 2, story: story(1) }
}

/// An event that is done, with something to say.
async fn ended(place: &Place, at: Moment) -> (Arc<Sqlite>, Grant) {
    let store = place.open().await;
    let grant = store.take(0, AT).await.unwrap().grant;
    publish(&store, Event::new("orders", "1")).await.unwrap();
    let entry = due(&store, grant).await.remove(0);
    store.settle(vec![Settle { at, ..settle(grant, &entry, done()) }]).await.unwrap();
    (store, grant)
}

fn count(place: &Place, table: &str) -> i64 {
    place.raw().query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_damaged_end_is_no_answer() {
    let columns = [
        "state = 'dropped'",
        "ended = ended + 1",
        "attempts = 3",
        "story = NULL",
        "result = x'00'",
        "result = NULL",
        "crc = crc + 1",
        "seq = seq + 1",
    ];
    for column in columns {
        let place = Place::new();
        let (store, _) = ended(&place, AT).await;
        let found = store.find("", "orders", "1").await.unwrap().unwrap();
        assert_eq!((found.state, found.attempts, found.story), (State::Done, 2, story(1)));
        let changed = place.raw().execute(&format!("UPDATE redrive_end SET {column}"), []).unwrap();
        assert_eq!(changed, 1, "{column}");
        if column.starts_with("seq") {
            // It is nobody's now; what is at its place is not believed to be another's.
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
    let place = Place::new();
    let (store, _) = ended(&place, AT).await;
    assert_eq!((count(&place, "redrive_receipt"), count(&place, "redrive_end")), (1, 1));
    // The queue's horizon is a second, and so is its window.
    store.forget(AT + Duration::from_secs(2)).await.unwrap();
    assert_eq!((count(&place, "redrive_receipt"), count(&place, "redrive_end")), (1, 1));
    store.forget(AT + Duration::from_secs(3)).await.unwrap();
    assert_eq!((count(&place, "redrive_receipt"), count(&place, "redrive_end")), (0, 0));
}

#[tokio::test]
async fn an_id_that_is_free_again_has_not_ended() {
    let place = Place::new();
    let (store, _) = ended(&place, AT).await;
    let later = AT + Duration::from_secs(3);
    let new = New::at(Event::new("orders", "1"), later);
    let published = store.publish(vec![new]).await.unwrap().remove(0).unwrap();
    assert!(matches!(published, Published::Accepted(_)), "{published:?}");
    assert_eq!(store.find("", "orders", "1").await.unwrap().unwrap().state, State::Ready);
    assert_eq!((count(&place, "redrive_receipt"), count(&place, "redrive_end")), (1, 0));
}

#[tokio::test]
async fn what_ends_late_is_remembered_for_as_long_with_its_end() {
    let place = Place::new();
    let late = AT + Duration::from_secs(10);
    let (store, _) = ended(&place, late).await;
    store.forget(late + Duration::from_secs(1)).await.unwrap();
    let found = store.find("", "orders", "1").await.unwrap().unwrap();
    assert_eq!((found.state, found.ended, found.attempts), (State::Done, Some(late), 2));
    assert_eq!(found.result.as_deref(), Some(&b"paid"[..]));
    store.forget(late + Duration::from_secs(2)).await.unwrap();
    assert_eq!((count(&place, "redrive_receipt"), count(&place, "redrive_end")), (0, 0));
}

#[tokio::test]
async fn an_end_outlasts_the_receipt_of_the_original_that_had_its_place() {
    let place = Place::new();
    let store = place.open().await;
    let grant = store.take(0, AT).await.unwrap().grant;
    publish(&store, Event::new("orders", "1")).await.unwrap();
    let entry = due(&store, grant).await.remove(0);
    let progress = Progress { attempts: 1, ..Progress::fresh(AT) };
    let dead = Change::Dead { reason: DeadReason::Permanent, progress, park: Park::GoOn };
    store.settle(vec![settle(grant, &entry, dead)]).await.unwrap();
    let event = Event::new("orders", "2");
    let edited = Edited { fingerprint: Fingerprint::of(&event), event: Arc::new(event), out_of_order: false };
    let what = What::Edit(Target::new("", "orders", "1"), Box::new(edited));
    let at = AT + Duration::from_millis(1_500);
    assert_eq!(store.operate(Order { by: Operator::engine(), at, what }).await.unwrap().changed, 1);
    let found = store.find("", "orders", "2").await.unwrap().unwrap();
    let end = Settle { grant, seq: found.seq, rev: found.rev, at, change: done() };
    store.settle(vec![end]).await.unwrap();

    // The original is remembered for the window after the edit, the other one for the horizon and the window.
    store.forget(AT + Duration::from_secs(3)).await.unwrap();
    assert!(store.find("", "orders", "1").await.unwrap().is_none());
    let found = store.find("", "orders", "2").await.unwrap().unwrap();
    assert_eq!((found.state, found.attempts, found.story), (State::Done, 2, story(1)));
}
