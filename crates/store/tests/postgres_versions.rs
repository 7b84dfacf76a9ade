//! Two versions side by side: programs that know different steps of the schema share a database.
#![cfg(all(feature = "postgres", feature = "planted", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use redrive_core::entry::{Change, Settled};
use redrive_store::moving::{self, Go, Options};
use redrive_store::postgres::Step;
use redrive_store::{Postgres, Published, Store, StoreError};
use redrive_testkit::postgres::a_name;

mod postgres_common;

use postgres_common::steps::{ADDS, TAKES};
use postgres_common::{Node, PATIENCE, Place, again, at};

async fn open(place: &Place, more: &[Step]) -> Result<Postgres, StoreError> {
    Postgres::open_with(&place.url, place.settings(), more).await
}

/// An old program does whatever one does, with ids of its own: it publishes in three ways, runs, settles, looks.
async fn do_everything(node: &Node, place: &Place, name: &str) {
    let [done, later] = ["done", "later"].map(|what| format!("{name}-{what}"));
    for id in [&done, &later] {
        let said = node.publish(id, Some(id)).await;
        assert!(matches!(said, Ok(Published::Accepted(_))), "{id}: {said:?}");
        let said = node.publish(id, Some(id)).await;
        assert!(matches!(said, Ok(Published::Duplicate { .. })), "{id}: {said:?}");
    }
    let in_sql = format!("SELECT redrive.publish('orders', '{name}-sql', key => '{name}-sql')");
    place.raw().await.say(&in_sql).await.unwrap();
    for (id, change) in [(&done, Change::Done), (&later, again(5))] {
        let entry = node.one(id).await;
        let said = node.settle(&entry, change).await;
        assert!(matches!(said, Settled::Applied { .. }), "{id}: {said:?}");
    }
    for id in [&later, &format!("{name}-sql")] {
        let entry = node.one(id).await;
        let said = node.settle(&entry, Change::Done).await;
        assert!(matches!(said, Settled::Applied { .. }), "{id}: {said:?}");
    }
    let found = node.store.find("", "orders", &later).await.unwrap().unwrap();
    assert_eq!(found.state.as_str(), "done", "{found:?}");
    node.store.count(at(10)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_program_works_on_while_a_new_one_adds_to_the_tables() {
    let place = Place::new();
    let mut node = place.node().await;
    node.take().await;
    // All of its statements are prepared by then.
    do_everything(&node, &place, "before").await;
    let (node, place) = (Arc::new(node), Arc::new(place));
    let (is_over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let busy = {
        let (node, place) = (Arc::clone(&node), Arc::clone(&place));
        let (is_over, rounds) = (Arc::clone(&is_over), Arc::clone(&rounds));
        tokio::spawn(async move {
            while !is_over.load(Relaxed) {
                let round = rounds.fetch_add(1, Relaxed);
                do_everything(&node, &place, &format!("during-{round}")).await;
            }
        })
    };
    while rounds.load(Relaxed) < 2 {
        tokio::task::yield_now().await;
    }
    let new = open(&place, &[ADDS]).await.unwrap();
    let migrated = rounds.load(Relaxed);
    while rounds.load(Relaxed) < migrated + 2 && !busy.is_finished() {
        tokio::task::yield_now().await;
    }
    is_over.store(true, Relaxed);
    busy.await.unwrap();
    do_everything(&node, &place, "after").await;
    assert_eq!(place.raw().await.number("SELECT schema FROM redrive.meta").await, 2);
    // And the new one beside it.
    let new = Node { store: Arc::new(new), taken: Vec::new() };
    let said = new.publish("after-done", Some("after-done")).await;
    assert!(matches!(said, Ok(Published::Duplicate { .. })), "{said:?}");
    new.publish("of-the-new", Some("k")).await.unwrap();
    let entry = node.one("of-the-new").await;
    assert!(matches!(node.settle(&entry, Change::Done).await, Settled::Applied { .. }));
}

/// Somebody has left a transaction open. The new program waits for it, and the old one does not wait for either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_has_to_wait_holds_up_nobody_for_long() {
    let place = Place { patience: PATIENCE, ..Place::new() };
    let node = place.node().await;
    node.publish("0", None).await.unwrap();
    let (mut left_open, mut raw) = (place.raw().await, place.raw().await);
    left_open.say("BEGIN; SELECT redrive.publish('orders', 'left-open')").await.unwrap();
    let migrating = {
        let place = place.clone();
        tokio::spawn(async move { open(&place, &[ADDS]).await })
    };
    for n in 0..3 {
        raw.until_somebody_waits().await;
        let said =
            tokio::time::timeout(place.lock_wait / 2, node.publish(&format!("beside-{n}"), None)).await;
        assert!(matches!(said, Ok(Ok(Published::Accepted(_)))), "{said:?}");
    }
    assert!(!migrating.is_finished());
    left_open.say("COMMIT").await.unwrap();
    migrating.await.unwrap().unwrap().close().await.unwrap();

    // Who has less patience is told what is in the way.
    let place = Place { patience: std::time::Duration::from_millis(100), ..Place::new() };
    place.node().await.store.close().await.unwrap();
    let mut left_open = place.raw().await;
    left_open.say("BEGIN; SELECT redrive.publish('orders', 'left-open')").await.unwrap();
    let error = open(&place, &[ADDS]).await.unwrap_err().to_string();
    assert!(error.contains("somebody's transaction that is open is in the way"), "{error}");
}

#[tokio::test]
async fn an_old_program_opens_what_only_has_more_and_not_what_is_otherwise() {
    let place = Place::new();
    open(&place, &[ADDS]).await.unwrap().close().await.unwrap();
    // It knows one step of two, and that is enough.
    let mut old = place.node().await;
    old.take().await;
    do_everything(&old, &place, "old").await;
    let mut raw = place.raw().await;
    assert_eq!(raw.number("SELECT schema FROM redrive.meta").await, 2, "nobody takes a step back");
    // But not to take all of it along: of what it does not know it would leave some behind.
    old.store.close().await.unwrap();
    raw.expire_all().await;
    let mut target = place.settings();
    target.schema = a_name("versions");
    let [from, to] =
        [place.settings(), target].map(|settings| moving::Place::Database(place.url.clone(), settings));
    let moved = tokio::task::spawn_blocking(move || {
        [(&from, &to), (&to, &from)]
            .map(|(from, to)| moving::run(from, to, &Options::default(), |_| Go::On).unwrap_err().to_string())
    });
    for said in moved.await.unwrap() {
        assert!(said.contains("has schema 2, and this program knows up to 1; use a newer one"), "{said}");
    }

    open(&place, &[ADDS, TAKES]).await.unwrap().close().await.unwrap();
    for more in [&[][..], &[ADDS]] {
        let error = open(&place, more).await.unwrap_err();
        assert!(matches!(&error, StoreError::Newer { found: 3, .. }), "{error}");
        let said = format!("has schema 3, and this program knows up to {}; use a newer one", more.len() + 1);
        assert!(error.to_string().contains(&said), "{error}");
    }
    open(&place, &[ADDS, TAKES]).await.unwrap().close().await.unwrap();
}

/// All of them have found that there is one step, when the first of them does the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_those_that_open_at_once_one_takes_the_step() {
    let place = Place { patience: PATIENCE, ..Place::new() };
    place.node().await.store.close().await.unwrap();
    let (mut in_the_way, mut raw) = (place.raw().await, place.raw().await);
    in_the_way.say("BEGIN; LOCK TABLE redrive.queue IN ACCESS SHARE MODE").await.unwrap();
    let opening: Vec<_> = (0..4)
        .map(|_| {
            let place = place.clone();
            tokio::spawn(async move { open(&place, &[ADDS]).await })
        })
        .collect();
    let waiting = format!(
        "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND (relation = 'redrive.queue'::regclass \
         OR locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = \
         hashtextextended('redrive {}', 8462017))",
        place.schema
    );
    let began = std::time::Instant::now();
    while raw.number(&waiting).await < 4 {
        assert!(began.elapsed() < PATIENCE, "they do not wait");
        tokio::task::yield_now().await;
    }
    in_the_way.say("COMMIT").await.unwrap();
    for opening in opening {
        opening.await.unwrap().unwrap().close().await.unwrap();
    }
    assert_eq!(raw.number("SELECT count(*) FROM redrive.painted").await, 1);
    assert_eq!(raw.number("SELECT schema FROM redrive.meta").await, 2);
}
