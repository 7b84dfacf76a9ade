//! Two versions side by side: programs that know different steps of the schema share a database.
#![cfg(all(feature = "postgres", feature = "planted", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use redrive_core::queue_entry::{EventChange, SettleResult};
use redrive_store::moving::{self, MoveControl, MoveOptions};
use redrive_store::postgres::FutureSchemaStep;
use redrive_store::{Postgres, Published, StoreError, prelude::*};
use redrive_testkit::postgres::a_name;

mod postgres_common;

use postgres_common::steps::{ADDS, TAKES};
use postgres_common::{Node, PATIENCE, TestStore, again, at};

async fn open(store_dir: &TestStore, more: &[FutureSchemaStep]) -> Result<Postgres, StoreError> {
    Postgres::open_with(&store_dir.url, store_dir.settings(), more).await
}

/// All calls of an old program, with ids of its own: it publishes in three ways, runs, settles, reads.
async fn do_everything(node: &Node, store_dir: &TestStore, name: &str) {
    let [done, later] = ["done", "later"].map(|what| format!("{name}-{what}"));
    for id in [&done, &later] {
        let said = node.publish(id, Some(id)).await;
        assert!(matches!(said, Ok(Published::Accepted(_))), "{id}: {said:?}");
        let said = node.publish(id, Some(id)).await;
        assert!(matches!(said, Ok(Published::Duplicate { .. })), "{id}: {said:?}");
    }
    let in_sql = format!("SELECT redrive.publish('orders', '{name}-sql', key => '{name}-sql')");
    store_dir.raw().await.say(&in_sql).await.unwrap();
    for (id, change) in [(&done, EventChange::Done), (&later, again(5))] {
        let entry = node.one(id).await;
        let said = node.settle(&entry, change).await;
        assert!(matches!(said, SettleResult::Applied { .. }), "{id}: {said:?}");
    }
    for id in [&later, &format!("{name}-sql")] {
        let entry = node.one(id).await;
        let said = node.settle(&entry, EventChange::Done).await;
        assert!(matches!(said, SettleResult::Applied { .. }), "{id}: {said:?}");
    }
    let found = node.store.find("", "orders", &later).await.unwrap().unwrap();
    assert_eq!(found.state.as_str(), "done", "{found:?}");
    node.store.count(at(10)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_program_works_on_while_a_new_one_adds_to_the_tables() {
    let store_dir = TestStore::new();
    let mut node = store_dir.node().await;
    node.take().await;
    // All of its statements are prepared now.
    do_everything(&node, &store_dir, "before").await;
    let (node, store_dir) = (Arc::new(node), Arc::new(store_dir));
    let (is_over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let busy = {
        let (node, store_dir) = (Arc::clone(&node), Arc::clone(&store_dir));
        let (is_over, rounds) = (Arc::clone(&is_over), Arc::clone(&rounds));
        tokio::spawn(async move {
            while !is_over.load(Relaxed) {
                let round = rounds.fetch_add(1, Relaxed);
                do_everything(&node, &store_dir, &format!("during-{round}")).await;
            }
        })
    };
    while rounds.load(Relaxed) < 2 {
        tokio::task::yield_now().await;
    }
    let new = open(&store_dir, &[ADDS]).await.unwrap();
    let migrated = rounds.load(Relaxed);
    while rounds.load(Relaxed) < migrated + 2 && !busy.is_finished() {
        tokio::task::yield_now().await;
    }
    is_over.store(true, Relaxed);
    busy.await.unwrap();
    do_everything(&node, &store_dir, "after").await;
    assert_eq!(store_dir.raw().await.number("SELECT schema FROM redrive.meta").await, 2);
    // And the new one beside it.
    let new = Node { store: Arc::new(new), taken: Vec::new() };
    let said = new.publish("after-done", Some("after-done")).await;
    assert!(matches!(said, Ok(Published::Duplicate { .. })), "{said:?}");
    new.publish("of-the-new", Some("k")).await.unwrap();
    let entry = node.one("of-the-new").await;
    assert!(matches!(node.settle(&entry, EventChange::Done).await, SettleResult::Applied { .. }));
}

/// A transaction was left open. The new program waits for it, and the old one does not wait for either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_has_to_wait_holds_up_nobody_for_long() {
    let store_dir = TestStore { patience: PATIENCE, ..TestStore::new() };
    let node = store_dir.node().await;
    node.publish("0", None).await.unwrap();
    let (mut left_open, mut raw) = (store_dir.raw().await, store_dir.raw().await);
    left_open.say("BEGIN; SELECT redrive.publish('orders', 'left-open')").await.unwrap();
    let migrating = {
        let store_dir = store_dir.clone();
        tokio::spawn(async move { open(&store_dir, &[ADDS]).await })
    };
    for n in 0..3 {
        raw.until_somebody_waits().await;
        let said =
            tokio::time::timeout(store_dir.lock_wait / 2, node.publish(&format!("beside-{n}"), None)).await;
        assert!(matches!(said, Ok(Ok(Published::Accepted(_)))), "{said:?}");
    }
    assert!(!migrating.is_finished());
    left_open.say("COMMIT").await.unwrap();
    migrating.await.unwrap().unwrap().close().await.unwrap();

    // A program with less patience gets an error that names the obstacle.
    let store_dir = TestStore { patience: std::time::Duration::from_millis(100), ..TestStore::new() };
    store_dir.node().await.store.close().await.unwrap();
    let mut left_open = store_dir.raw().await;
    left_open.say("BEGIN; SELECT redrive.publish('orders', 'left-open')").await.unwrap();
    let error = open(&store_dir, &[ADDS]).await.unwrap_err().to_string();
    assert!(error.contains("an open transaction blocks that"), "{error}");
}

#[tokio::test]
async fn an_old_program_opens_what_only_has_more_and_not_what_is_otherwise() {
    let store_dir = TestStore::new();
    open(&store_dir, &[ADDS]).await.unwrap().close().await.unwrap();
    // It knows one step of two, and that is enough.
    let mut old = store_dir.node().await;
    old.take().await;
    do_everything(&old, &store_dir, "old").await;
    let mut raw = store_dir.raw().await;
    assert_eq!(raw.number("SELECT schema FROM redrive.meta").await, 2, "no program takes a step back");
    // But not enough to move the store: it would leave unknown columns behind.
    old.store.close().await.unwrap();
    raw.expire_all().await;
    let mut target = store_dir.settings();
    target.schema = a_name("versions");
    let [from, to] = [store_dir.settings(), target]
        .map(|settings| moving::StoreLocation::Database(store_dir.url.clone(), settings));
    let moved = tokio::task::spawn_blocking(move || {
        [(&from, &to), (&to, &from)].map(|(from, to)| {
            moving::run(from, to, &MoveOptions::default(), |_| MoveControl::On).unwrap_err().to_string()
        })
    });
    for said in moved.await.unwrap() {
        assert!(said.contains("has schema 2, and this program knows up to 1; use a newer one"), "{said}");
    }

    open(&store_dir, &[ADDS, TAKES]).await.unwrap().close().await.unwrap();
    for more in [&[][..], &[ADDS]] {
        let error = open(&store_dir, more).await.unwrap_err();
        assert!(matches!(&error, StoreError::Newer { found: 3, .. }), "{error}");
        let said = format!("has schema 3, and this program knows up to {}; use a newer one", more.len() + 1);
        assert!(error.to_string().contains(&said), "{error}");
    }
    open(&store_dir, &[ADDS, TAKES]).await.unwrap().close().await.unwrap();
}

/// All of them have read that there is one step, when the first of them does the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_those_that_open_at_once_one_takes_the_step() {
    let store_dir = TestStore { patience: PATIENCE, ..TestStore::new() };
    store_dir.node().await.store.close().await.unwrap();
    let (mut in_the_way, mut raw) = (store_dir.raw().await, store_dir.raw().await);
    in_the_way.say("BEGIN; LOCK TABLE redrive.queue IN ACCESS SHARE MODE").await.unwrap();
    let opening: Vec<_> = (0..4)
        .map(|_| {
            let store_dir = store_dir.clone();
            tokio::spawn(async move { open(&store_dir, &[ADDS]).await })
        })
        .collect();
    let waiting = format!(
        "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND (relation = 'redrive.queue'::regclass \
         OR locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = \
         hashtextextended('redrive {}', 8462017))",
        store_dir.schema
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
