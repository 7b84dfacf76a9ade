//! Events that are published or settled together: each gets the same answer as alone.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::mpsc;
use std::time::Duration;

use redrive_core::Event;
use redrive_core::event::State;
use redrive_core::queue_entry::{EventChange, FencingToken, Seq, SettleRequest, SettleResult};
use redrive_store::{EventStatus, NewEvent, PublishError, Published, Sqlite, StoreError, prelude::*};

mod sqlite_common;
use sqlite_common::{AT, TestStore, due, job, publish, rows, settle};

const DONE: SettleResult = SettleResult::Applied { rev: 1, next: None };

/// A store with events of these keys, and a settle for each.
async fn filled(
    store_dir: &TestStore,
    keys: [Option<&str>; 6],
) -> (std::sync::Arc<Sqlite>, FencingToken, Vec<SettleRequest>) {
    let store = store_dir.open().await;
    let token = store.take(0, AT).await.unwrap().token;
    for (id, key) in keys.into_iter().enumerate() {
        let event = Event::new("orders", id.to_string());
        publish(&store, key.map_or(event.clone(), |key| event.key(key))).await.unwrap();
    }
    let settles =
        due(&store, token).await.iter().map(|entry| settle(token, entry, EventChange::Done)).collect();
    (store, token, settles)
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
    as_one_by_one(&events).await;
}

#[tokio::test]
async fn many_at_once_are_published_as_one_by_one() {
    // More than one statement; out of order, with some of them twice, adjacent and far apart.
    let number = |at: usize| if at % 7 == 3 { at / 2 } else { (at * 37) % 101 };
    let events: Vec<_> = (0..150).map(|at| Event::new("orders", number(at).to_string())).collect();
    as_one_by_one(&events).await;
}

#[tokio::test]
async fn calls_that_wait_together_are_published_as_one_by_one() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    let number = |at: usize| (at * 37) % 101;
    let events: Vec<_> = (0..150).map(|at| Event::new("orders", number(at).to_string())).collect();
    // The writer is busy until all have called.
    let (go, wait) = mpsc::channel::<()>();
    let busy = store.transact(job(move |_| Ok(wait.recv()?)));
    let commits = store.commits().0;
    let calls: Vec<_> =
        events.iter().map(|event| store.publish(vec![NewEvent::at(event.clone(), AT)])).collect();
    go.send(()).unwrap();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap().remove(0));
    }
    busy.await.unwrap();
    assert!(store.commits().0 <= commits + 2, "they shared a commit");
    let accepted: Vec<_> = answers.iter().map(accepted).collect();
    for (at, seq) in accepted.iter().enumerate() {
        assert_eq!(seq.is_some(), at < 101, "{at}: {:?}", answers[at]);
    }
    assert!(accepted[..101].is_sorted(), "numbers are given in the order of coming");
    assert_eq!(rows(&store_dir, LIVE).len(), 101);
}

#[tokio::test]
async fn what_need_not_be_remembered_any_more_is_published_again() {
    let store_dir = TestStore::new();
    let (store, token, settles) = filled(&store_dir, [None; 6]).await;
    assert_eq!(store.settle(settles).await.unwrap(), vec![DONE; 6]);
    store_dir.raw().execute("UPDATE redrive_dedupe SET until = until + 1 WHERE id = '4'", []).unwrap();
    // The queue's horizon is a second, and so is its window.
    let late = AT + Duration::from_secs(10);
    let ids = (0..40).chain([3, 17]).map(|id: u32| id.to_string());
    let events = ids.map(|id| NewEvent::at(Event::new("orders", id), late)).collect();
    let answers = store.publish(events).await.unwrap();
    for (at, answer) in answers.iter().enumerate() {
        match at {
            4 => {
                assert!(matches!(answer, Err(PublishError::Store(StoreError::Damaged { .. }))), "{answer:?}");
            }
            0..40 => assert!(accepted(answer).is_some(), "{at}: {answer:?}"),
            _ => assert!(matches!(answer, Ok(Published::Duplicate(_))), "{at}: {answer:?}"),
        }
    }
    let accepted: Vec<_> = answers.iter().filter_map(accepted).collect();
    assert!(accepted.is_sorted(), "numbers are given in the order of coming");
    assert_eq!(due(&store, token).await.iter().map(|entry| entry.seq).collect::<Vec<_>>(), accepted);
}

/// Publishes in one call, and in a call for each, and compares everything but the numbers: a duplicate leaves a number
/// unused in one of them.
async fn as_one_by_one(events: &[Event]) {
    let (together, alone) = (TestStore::new(), TestStore::new());
    let (store, other) = (together.open().await, alone.open().await);
    let new = |event: &Event| NewEvent::at(event.clone(), AT);
    let answers = store.publish(events.iter().map(new).collect()).await.unwrap();
    let mut expected = Vec::new();
    for event in events {
        expected.push(other.publish(vec![new(event)]).await.unwrap().remove(0));
    }
    assert_eq!(said(&answers), said(&expected));
    for select in [LIVE, HELD, RECEIPTS] {
        assert_eq!(rows(&together, select), rows(&alone, select), "{select}");
    }
    // Each has the seq of its answer, and the right checksum.
    for (event, seq) in events.iter().zip(answers.iter().map(accepted)) {
        if let Some(seq) = seq {
            let sql = format!(
                "SELECT id FROM redrive_fresh WHERE seq = {0} UNION ALL SELECT id FROM redrive_tracked WHERE seq = {0}",
                seq.0
            );
            assert_eq!(rows(&together, &sql), [[event.id.clone().into()]]);
            assert!(store.find(&event.tenant, "orders", &event.id).await.unwrap().is_some());
        }
    }
    let token = store.take(0, AT).await.unwrap().token;
    let other_grant = other.take(0, AT).await.unwrap().token;
    let ids = |due: Vec<redrive_core::queue_entry::QueueEntry>| {
        due.into_iter().map(|entry| entry.event.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(due(&store, token).await), ids(due(&other, other_grant).await));
}

/// The answers, with the position among the accepted events in place of the number.
fn said(answers: &[Result<Published, PublishError>]) -> Vec<String> {
    let numbers: Vec<_> = answers.iter().filter_map(accepted).collect();
    let rank = |seq: Seq| numbers.iter().position(|number| *number == seq).unwrap();
    let say = |answer: &Result<Published, PublishError>| match answer {
        Ok(Published::Accepted(seq)) => format!("accepted as {}", rank(*seq)),
        Ok(Published::Duplicate(found)) => {
            let rank = rank(found.seq);
            format!("{rank}: {:?}", EventStatus { seq: Seq(0), ..(**found).clone() })
        }
        Err(error) => format!("{error:?}"),
    };
    answers.iter().map(say).collect()
}

fn accepted(answer: &Result<Published, PublishError>) -> Option<Seq> {
    match answer {
        Ok(Published::Accepted(seq)) => Some(*seq),
        _ => None,
    }
}

/// Everything but numbers, and checksums of them, in the order of the numbers.
const LIVE: &str =
    "SELECT id, key, tag, payload, extra, published, dedupe_ok_until FROM redrive_fresh ORDER BY seq";
const HELD: &str = "SELECT id, key, tag, payload, extra, published, dedupe_ok_until, stream, state, due FROM redrive_tracked ORDER BY seq";
const RECEIPTS: &str =
    "SELECT stream, id, fingerprint, published, until, state FROM redrive_dedupe ORDER BY seq";

#[tokio::test]
async fn all_of_them_are_gone() {
    let store_dir = TestStore::new();
    let (store, token, settles) = filled(&store_dir, [None; 6]).await;
    assert_eq!(store.settle(settles[..4].to_vec()).await.unwrap(), vec![DONE; 4]);
    let left = due(&store, token).await;
    assert_eq!(left.iter().map(|entry| entry.event.id.as_str()).collect::<Vec<_>>(), ["4", "5"]);
    assert_eq!(store.find("", "orders", "3").await.unwrap().unwrap().state, State::Done);
}

#[tokio::test]
async fn one_that_was_gone_before_is_stale_and_the_others_are_not() {
    let store_dir = TestStore::new();
    let (store, token, settles) = filled(&store_dir, [None; 6]).await;
    store.settle(vec![settles[2].clone()]).await.unwrap();
    let mut expected = vec![DONE; 6];
    expected[2] = SettleResult::Stale;
    assert_eq!(store.settle(settles).await.unwrap(), expected);
    assert_eq!(due(&store, token).await, vec![]);
}

#[tokio::test]
async fn one_with_a_key_lets_the_next_of_its_key_go() {
    let store_dir = TestStore::new();
    let (store, token, settles) = filled(&store_dir, [None, Some("k"), None, None, None, Some("k")]).await;
    assert_eq!(settles.len(), 5, "the second of the key waits");
    let answers = store.settle(settles).await.unwrap();
    let next = |answer: &SettleResult| match answer {
        SettleResult::Applied { next, .. } => next.as_ref().map(|entry| entry.event.id.clone()),
        other => panic!("{other:?}"),
    };
    let nexts: Vec<_> = answers.iter().map(next).collect();
    assert_eq!(nexts, [None, Some("5".to_owned()), None, None, None]);
    assert_eq!(due(&store, token).await.len(), 1);
}

#[tokio::test]
async fn another_owner_changes_nothing() {
    let store_dir = TestStore::new();
    let (store, token, mut settles) = filled(&store_dir, [None; 6]).await;
    for settle in &mut settles {
        settle.token.epoch -= 1;
    }
    assert_eq!(store.settle(settles).await.unwrap(), vec![SettleResult::Fenced; 6]);
    assert_eq!(due(&store, token).await.len(), 6);
}

#[tokio::test]
async fn those_that_end_late_are_remembered_for_as_long() {
    let store_dir = TestStore::new();
    let (store, _, mut settles) = filled(&store_dir, [None; 6]).await;
    // The queue's horizon is a second, and so is its window.
    let late = AT + Duration::from_secs(10);
    settles[3].at = late;
    assert_eq!(store.settle(settles).await.unwrap(), vec![DONE; 6]);
    let until = |id: &str| -> i64 {
        let sql = "SELECT until FROM redrive_dedupe WHERE id = ?1";
        store_dir.raw().query_row(sql, [id], |row| row.get(0)).unwrap()
    };
    let late = i64::try_from((late + Duration::from_secs(1)).as_nanos()).unwrap();
    assert_eq!(until("3"), late);
    assert!(until("2") < late);
}
