//! However many events wait or are dead, no other call reads through them. The planner of the database would, if it
//! assumed the searched values to be common.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_core::Event;
use redrive_core::event::DeadReason;
use redrive_core::queue_entry::{EventChange, EventProgress, ParkFollowers};
use redrive_store::lease::LeaseRequest;
use redrive_store::postgres::sqlx::Row as _;
use redrive_store::{DeclaredBy, NewEvent, QueueSpec, prelude::*};
use redrive_testkit::postgres::{Server, a_name};

mod postgres_common;

use postgres_common::{Node, ORDERS, PATIENCE, Raw, TestStore, again, at};

/// How many events of each waiting kind there are.
const MANY: u32 = 30_000;
/// How many rows of a table all calls here may read.
const FEW: u32 = 10_000;
/// A queue with nothing but running attempts, one whose dead letters block their keys for a while, and one whose
/// events are leased.
const EMPTY: &str = "empty";
const PARKED: &str = "parked";
const LEASED: &str = "leased";

fn dead(park: ParkFollowers) -> EventChange {
    let progress = EventProgress { attempts: 1, ..EventProgress::fresh(at(0)) };
    EventChange::Dead { reason: DeadReason::Permanent, progress, park }
}

async fn publish(node: &Node, event: Event) {
    node.store.publish(vec![NewEvent::at(event, at(0))]).await.unwrap().remove(0).unwrap();
}

/// One of each kind: some wait for their time, after a failure or before their first attempt, and some are dead.
async fn one_of_each(node: &mut Node) {
    for queue in [EMPTY, PARKED, LEASED] {
        let hour = Duration::from_secs(3600);
        let (name, pull) = (queue.to_owned(), queue == LEASED);
        let spec =
            QueueSpec { name, pull, ordered: true, window: hour, horizon: hour, ..QueueSpec::default() };
        node.store.declare(spec, DeclaredBy::Runner).await.unwrap();
    }
    node.take().await;
    let for_long = ParkFollowers::UpTo { until: Some(at(1_000_000)), count: None };
    for (event, change) in [
        (Event::new(ORDERS, "waits"), again(1_000_000)),
        (Event::new(ORDERS, "died"), dead(ParkFollowers::No)),
        (Event::new(PARKED, "holds up").key("held up"), dead(for_long)),
    ] {
        let id = event.id.clone();
        publish(node, event).await;
        let entry = node.one(&id).await;
        node.settle(&entry, change).await;
    }
    publish(node, Event::new(LEASED, "later").delay(Duration::from_secs(1_000_000))).await;
}

/// Adds this many of each waiting kind, in one transaction.
async fn multiply(raw: &mut Raw) {
    let columns = "SELECT string_agg(attname, ', ') FROM pg_attribute WHERE attrelid = 'redrive.tracked'::regclass \
                   AND attnum > 0 AND attname NOT IN ('seq', 'id')";
    let columns: String = raw.say(columns).await.unwrap()[0].get(0);
    raw.say(&format!(
        "WITH few AS MATERIALIZED (SELECT * FROM redrive.tracked), more AS (INSERT INTO redrive.tracked (seq, id, {columns}) \
         SELECT seq + 100 * n, id || n, {columns} FROM few, generate_series(1, {MANY}) n RETURNING *) \
         INSERT INTO redrive.dedupe (id, stream, fingerprint, seq, published, until, crc) \
         SELECT id, stream, '', seq, published, 9223372036854775807, 0 FROM more"
    ))
    .await
    .unwrap();
    // Their seqs are before all later ones.
    raw.say(&format!("SELECT setval('redrive.place', nextval('redrive.place') + 101 * {MANY})"))
        .await
        .unwrap();
    raw.say("ANALYZE").await.unwrap();
}

/// All calls of the hot path.
async fn work(node: &mut Node, round: u8) {
    node.take().await;
    for queue in [ORDERS, EMPTY, PARKED] {
        let id = |name: &str| format!("{queue} {name} {round}");
        publish(node, Event::new(queue, id("done"))).await;
        publish(node, Event::new(queue, id("first")).key("key")).await;
        publish(node, Event::new(queue, id("second")).key("key")).await;
        for (name, change) in [("done", EventChange::Done), ("first", again(2)), ("first", EventChange::Done)]
        {
            let entry = node.one(&id(name)).await;
            node.settle(&entry, change).await;
        }
        let entry = node.one(&id("second")).await;
        node.settle(&entry, dead(ParkFollowers::No)).await;
        assert!(node.store.find("", queue, &id("second")).await.unwrap().is_some());
    }
    publish(node, Event::new(LEASED, format!("leased {round}"))).await;
    let lease = LeaseRequest {
        queue: LEASED.to_owned(),
        tenant: None,
        at: at(1),
        until: at(60),
        tokens: vec![[round; 16]],
        bytes_max: usize::MAX,
        lapsed: Box::new(|_, _| EventChange::Done),
    };
    assert_eq!(node.store.lease(lease).await.unwrap().entries.len(), 1);
    for taken in std::mem::take(&mut node.taken) {
        node.store.release(taken.token).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_done_all_the_time_reads_few_rows_however_many_wait() {
    // A database of its own, so that all sessions in it are ours.
    let database = a_name("many");
    let url = Server::shared().url();
    let mut postgres = TestStore::at(&url).raw().await;
    postgres.say(&format!("CREATE DATABASE {database}")).await.unwrap();
    let store_dir = TestStore::at(&url.replace("/postgres?", &format!("/{database}?")));
    let (mut node, other, mut raw) = (store_dir.node().await, store_dir.node().await, store_dir.raw().await);
    one_of_each(&mut node).await;
    multiply(&mut raw).await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    node.store.watch(Arc::new(move |arrivals| {
        let _ = tell.send(arrivals.missed);
    }));
    for round in 0..6 {
        work(&mut node, round).await;
        // Another process publishes, and a look finds the event.
        while told.try_recv().is_ok() {}
        publish(&other, Event::new(ORDERS, format!("other {round}"))).await;
        tokio::time::timeout(PATIENCE, told.recv()).await.expect("the watcher did not look").unwrap();
    }
    // The statistics of a session are written when it ends.
    node.store.close().await.unwrap();
    other.store.close().await.unwrap();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                    AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let began = Instant::now();
    while raw.number(sessions).await > 0 {
        assert!(began.elapsed() < PATIENCE, "a session is still open");
        tokio::task::yield_now().await;
    }
    let schema = &store_dir.schema;
    let read = format!(
        "SELECT relname || ': ' || seq_tup_read || ' in order, ' || coalesce(idx_tup_fetch, 0) || ' by an index' \
         FROM pg_stat_user_tables WHERE schemaname = '{schema}' AND seq_tup_read + coalesce(idx_tup_fetch, 0) > {FEW}"
    );
    let read: Vec<String> = raw.say(&read).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert!(read.is_empty(), "many rows were read: {read:?}");
}
