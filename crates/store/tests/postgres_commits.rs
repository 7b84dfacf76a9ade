//! Commits of unknown outcome, connections that break, and a server that is stopped as if it had crashed.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use redrive_core::queue_entry::{EventChange, SettleResult};
use redrive_store::postgres::sqlx;
use redrive_store::{Postgres, Published, StoreError, TxJob, TxOutcome, prelude::*};
use redrive_testkit::postgres::{Cut, Disk, Proxy, Server, Stop};

mod postgres_common;

use postgres_common::{TestStore, again, at, publish};

const CUTS: [Cut; 2] = [Cut::Before, Cut::After];

/// P5: a publish whose COMMIT was not answered is repeated, and is one event, accepted.
#[tokio::test]
async fn a_publish_of_unknown_fate_is_one_event() {
    let store_dir = TestStore::new();
    let proxy = Proxy::start(Server::shared()).unwrap();
    let node = store_dir.node_at(&proxy.url()).await;
    let mut raw = store_dir.raw().await;
    for (round, cut) in CUTS.into_iter().enumerate() {
        let id = format!("{cut:?}");
        proxy.cut_next(cut);
        let published = node.publish(&id, None).await;
        assert!(matches!(published, Ok(Published::Accepted(_))), "{cut:?}: {published:?}");
        assert_eq!(proxy.cuts(), round + 1);
        let rows = raw.number(&format!("SELECT count(*) FROM redrive.fresh WHERE id = '{id}'")).await;
        assert_eq!(rows, 1, "{cut:?}");
        assert!(matches!(node.publish(&id, None).await, Ok(Published::Duplicate(_))));
    }
}

/// P5: a settle whose COMMIT was not answered is repeated, and reports that it is done, with the next event of its
/// key.
#[tokio::test]
async fn a_settle_of_unknown_fate_is_applied_once() {
    let store_dir = TestStore::new();
    let proxy = Proxy::start(Server::shared()).unwrap();
    let mut node = store_dir.node_at(&proxy.url()).await;
    node.take().await;
    for cut in CUTS {
        for (what, change) in [("done", EventChange::Done), ("again", again(5))] {
            let id = format!("{cut:?} {what}");
            node.publish(&id, None).await.unwrap();
            let entry = node.one(&id).await;
            proxy.cut_next(cut);
            let settled = node.settle(&entry, change.clone()).await;
            assert!(matches!(settled, SettleResult::Applied { rev: 1, .. }), "{id}: {settled:?}");
            assert_eq!(node.settle(&entry, change).await, SettleResult::Stale, "{id}");
        }
    }
    assert_eq!(proxy.cuts(), 4);
    assert_eq!(node.due_ids(at(9)).await, ["Before again", "After again"]);
}

/// P5: work whose COMMIT was not answered has its effect once.
#[tokio::test]
async fn work_of_unknown_fate_has_its_effect_once() {
    let store_dir = TestStore::new();
    let proxy = Proxy::start(Server::shared()).unwrap();
    let mut node = store_dir.node_at(&proxy.url()).await;
    node.take().await;
    let mut raw = store_dir.raw().await;
    raw.say("CREATE TABLE redrive.effect (id TEXT)").await.unwrap();
    for cut in CUTS {
        let id = format!("{cut:?}");
        node.publish(&id, None).await.unwrap();
        let claim = node.claim(&node.one(&id).await);
        let insert = format!("INSERT INTO {}.effect VALUES ('{id}')", store_dir.schema);
        let work = move |tx: &mut dyn redrive_store::Tx| {
            let query = sqlx::query(sqlx::AssertSqlSafe(insert.clone()));
            redrive_store::postgres::with(tx, async |conn| query.execute(conn).await).unwrap()?;
            Ok(None)
        };
        let job =
            TxJob { work: Box::new(work), claim: Some(claim), time: Duration::from_secs(60), alone: false };
        proxy.cut_next(cut);
        let done = node.store.transact(job).await.unwrap();
        assert!(matches!(done, TxOutcome::Committed { .. }), "{cut:?}: {done:?}");
        let effects = raw.number(&format!("SELECT count(*) FROM redrive.effect WHERE id = '{id}'")).await;
        assert_eq!(effects, 1, "{cut:?}");
    }
    assert_eq!(proxy.cuts(), 2);
    assert!(node.due_ids(at(9)).await.is_empty());
}

/// A connection that broke while idle is replaced, and no call notices.
#[tokio::test]
async fn broken_connections_are_replaced() {
    let store_dir = TestStore::new();
    let proxy = Proxy::start(Server::shared()).unwrap();
    let mut node = store_dir.node_at(&proxy.url()).await;
    node.take().await;
    for round in 0..3 {
        proxy.cut_all();
        node.publish(&round.to_string(), None).await.unwrap();
        proxy.cut_all();
        assert_eq!(node.due(at(9)).await.len(), round + 1);
    }
    let mut raw = store_dir.raw().await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%redrive.%' \
               AND pid <> pg_backend_pid()";
    raw.say(end).await.unwrap();
    let entry = node.one("0").await;
    assert!(matches!(node.settle(&entry, EventChange::Done).await, SettleResult::Applied { .. }));
}

/// Answered calls are durable after the server stopped as if it had crashed, again and again, under load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_acknowledged_is_lost_in_a_crash_of_the_server() {
    let mut server = Server::start(Disk::Synced).unwrap();
    let store_dir = TestStore::at(&server.url());
    let mut node = store_dir.node().await;
    node.take().await;
    let stop = Arc::new(AtomicBool::new(false));
    let publishers: Vec<_> = (0..4)
        .map(|publisher| {
            let (store, stop) = (Arc::clone(&node.store), Arc::clone(&stop));
            tokio::spawn(publish_until(store, stop, publisher))
        })
        .collect();
    for _ in 0..4 {
        let before = place_count(&node.store).await;
        // Under load: some calls are on their way when it stops.
        while place_count(&node.store).await < before + 50 {}
        server.stop(Stop::Immediate).unwrap();
        server.start_again().unwrap();
    }
    stop.store(true, Relaxed);
    let mut acknowledged = Vec::new();
    for publisher in publishers {
        acknowledged.extend(publisher.await.unwrap());
    }
    assert!(acknowledged.len() > 100, "{}", acknowledged.len());
    let mut raw = store_dir.raw().await;
    for id in &acknowledged {
        assert_eq!(
            raw.number(&format!("SELECT count(*) FROM redrive.fresh WHERE id = '{id}'")).await,
            1,
            "{id}"
        );
    }
}

async fn place_count(store: &Arc<Postgres>) -> u64 {
    loop {
        match store.count(at(0)).await {
            Ok(counts) => return counts.iter().map(|count| count.events).sum(),
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
    }
}

async fn publish_until(store: Arc<Postgres>, stop: Arc<AtomicBool>, publisher: u32) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for n in 0.. {
        let id = format!("{publisher}-{n}");
        match publish(&store, &id, None).await {
            Ok(_) => acknowledged.push(id),
            Err(redrive_store::PublishError::Store(
                StoreError::Passing { .. } | StoreError::Unknown { .. },
            )) => {}
            Err(error) => panic!("{error:?}"),
        }
        if stop.load(Relaxed) {
            break;
        }
    }
    acknowledged
}
