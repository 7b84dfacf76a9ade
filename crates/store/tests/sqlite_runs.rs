//! Events that are published or settled together: each has the answer that it has alone.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use redrive_core::Event;
use redrive_core::entry::{Change, Grant, Settle, Settled};
use redrive_core::event::State;
use redrive_store::{New, Sqlite, Store};

mod sqlite_common;
use sqlite_common::{AT, Place, due, publish, settle};

const DONE: Settled = Settled::Applied { rev: 1, next: None };

/// A store with events of these keys, and a settle for each.
async fn filled(place: &Place, keys: [Option<&str>; 6]) -> (std::sync::Arc<Sqlite>, Grant, Vec<Settle>) {
    let store = place.open().await;
    let grant = store.take(0, AT).await.unwrap().grant;
    for (id, key) in keys.into_iter().enumerate() {
        let event = Event::new("orders", id.to_string());
        publish(&store, key.map_or(event.clone(), |key| event.key(key))).await.unwrap();
    }
    let settles = due(&store, grant).await.iter().map(|entry| settle(grant, entry, Change::Done)).collect();
    (store, grant, settles)
}

#[tokio::test]
async fn together_they_are_published_as_one_by_one() {
    let plain = |id: &str| Event::new("orders", id).payload(*b"17 euro");
    let events = [
        plain("1"),
        plain("2"),
        plain("1"),
        plain("3"),
        plain("4"),
        plain("3").payload(*b"18 euro"),
        plain("5").key("k"),
        plain("6"),
        plain("7"),
        plain("8").tenant("another"),
        plain("9").delay(Duration::from_secs(1)),
        plain(""),
        plain("10").key("k"),
        plain("11"),
        plain("12"),
        plain("13"),
        Event::new("nowhere", "14"),
        plain("15"),
        plain("16"),
        plain("17"),
        plain("\u{7}"),
        plain("18"),
        plain("2"),
    ];
    let (together, alone) = (Place::new(), Place::new());
    let (store, other) = (together.open().await, alone.open().await);
    let new = |event: &Event| New::at(event.clone(), AT);
    let answers = store.publish(events.iter().map(new).collect()).await.unwrap();
    let mut expected = Vec::new();
    for event in &events {
        expected.push(other.publish(vec![new(event)]).await.unwrap().remove(0));
    }
    assert_eq!(format!("{answers:#?}"), format!("{expected:#?}"));
    for table in ["redrive_live", "redrive_held", "redrive_receipt", "redrive_stream"] {
        assert_eq!(rows(&together, table), rows(&alone, table), "{table}");
    }
}

/// All that is in a table.
fn rows(place: &Place, table: &str) -> Vec<Vec<rusqlite::types::Value>> {
    let conn = place.raw();
    let mut select = conn.prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2")).unwrap();
    let columns = select.column_count();
    let read = |row: &rusqlite::Row<'_>| (0..columns).map(|at| row.get(at)).collect();
    select.query_map([], read).unwrap().map(Result::unwrap).collect()
}

#[tokio::test]
async fn all_of_them_are_gone() {
    let place = Place::new();
    let (store, grant, settles) = filled(&place, [None; 6]).await;
    assert_eq!(store.settle(settles[..4].to_vec()).await.unwrap(), vec![DONE; 4]);
    let left = due(&store, grant).await;
    assert_eq!(left.iter().map(|entry| entry.event.id.as_str()).collect::<Vec<_>>(), ["4", "5"]);
    assert_eq!(store.find("", "orders", "3").await.unwrap().unwrap().state, State::Done);
}

#[tokio::test]
async fn one_that_was_gone_before_is_stale_and_the_others_are_not() {
    let place = Place::new();
    let (store, grant, settles) = filled(&place, [None; 6]).await;
    store.settle(vec![settles[2].clone()]).await.unwrap();
    let mut expected = vec![DONE; 6];
    expected[2] = Settled::Stale;
    assert_eq!(store.settle(settles).await.unwrap(), expected);
    assert_eq!(due(&store, grant).await, vec![]);
}

#[tokio::test]
async fn one_with_a_key_lets_the_next_of_its_key_go() {
    let place = Place::new();
    let (store, grant, settles) = filled(&place, [None, Some("k"), None, None, None, Some("k")]).await;
    assert_eq!(settles.len(), 5, "the second of the key waits");
    let answers = store.settle(settles).await.unwrap();
    let next = |answer: &Settled| match answer {
        Settled::Applied { next, .. } => next.as_ref().map(|entry| entry.event.id.clone()),
        other => panic!("{other:?}"),
    };
    let nexts: Vec<_> = answers.iter().map(next).collect();
    assert_eq!(nexts, [None, Some("5".to_owned()), None, None, None]);
    assert_eq!(due(&store, grant).await.len(), 1);
}

#[tokio::test]
async fn another_owner_changes_nothing() {
    let place = Place::new();
    let (store, grant, mut settles) = filled(&place, [None; 6]).await;
    for settle in &mut settles {
        settle.grant.epoch -= 1;
    }
    assert_eq!(store.settle(settles).await.unwrap(), vec![Settled::Fenced; 6]);
    assert_eq!(due(&store, grant).await.len(), 6);
}

#[tokio::test]
async fn those_that_end_late_are_remembered_for_as_long() {
    let place = Place::new();
    let (store, _, mut settles) = filled(&place, [None; 6]).await;
    // The queue's horizon is a second, and so is its window.
    let late = AT + Duration::from_secs(10);
    settles[3].at = late;
    assert_eq!(store.settle(settles).await.unwrap(), vec![DONE; 6]);
    let until = |id: &str| -> i64 {
        let sql = "SELECT until FROM redrive_receipt WHERE id = ?1";
        place.raw().query_row(sql, [id], |row| row.get(0)).unwrap()
    };
    let late = i64::try_from((late + Duration::from_secs(1)).as_nanos()).unwrap();
    assert_eq!(until("3"), late);
    assert!(until("2") < late);
}
