//! Opening, sharing and leaving a database.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use redrive_core::queue_entry::{EventChange, SettleResult};
use redrive_store::postgres::sqlx::{self, AssertSqlSafe};
use redrive_store::{Domain, Postgres, Published, StoreError, TxJob, TxOutcome, prelude::*};

mod postgres_common;

use postgres_common::{TestStore, at};

/// Two processes that open a new schema at once create it once, and share it.
#[tokio::test]
async fn a_schema_is_made_once() {
    let store_dir = TestStore::new();
    let opening: Vec<_> = (0..4)
        .map(|_| {
            let store_dir = store_dir.clone();
            tokio::spawn(async move { Postgres::open(&store_dir.url, store_dir.settings()).await })
        })
        .collect();
    for opening in opening {
        assert_eq!(opening.await.unwrap().unwrap().shards(), 2);
    }
    let mut raw = store_dir.raw().await;
    assert_eq!(raw.number("SELECT count(*) FROM redrive.shard").await, 2);
    assert_eq!(raw.number("SELECT count(DISTINCT incarnation) FROM redrive.shard").await, 1);
    let mut settings = store_dir.settings();
    settings.shards = 7;
    let again = Postgres::open(&store_dir.url, settings).await.unwrap();
    assert_eq!(again.shards(), 2, "the number of shards is fixed when the store is made");
}

/// A schema of a newer program is refused.
#[tokio::test]
async fn a_newer_schema_is_refused() {
    let store_dir = TestStore::new();
    let node = store_dir.node().await;
    node.store.close().await.unwrap();
    let mut raw = store_dir.raw().await;
    raw.say("UPDATE redrive.meta SET schema = 99, least = 99").await.unwrap();
    let refused = Postgres::open(&store_dir.url, store_dir.settings()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Newer { found: 99, .. }), "{refused}");
}

/// An error of opening says what to do, and never a password.
#[tokio::test]
async fn an_error_tells_what_to_do_and_no_secret() {
    let store_dir = TestStore::new();
    let secret = store_dir.url.replace("redrive@", "redrive:hush-hush@");
    let (wrong, bad) = (secret.replace("/postgres?", "/nowhere?"), "postgres://redrive:hush-hush@[:bad");
    let mut settings = store_dir.settings();
    settings.schema = "robert; drop".to_owned();
    for (url, settings, says) in [
        (wrong.as_str(), store_dir.settings(), "create it first"),
        (bad, store_dir.settings(), "URL"),
        (secret.as_str(), settings, "lower-case letters"),
    ] {
        let error = Postgres::open(url, settings).await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(says), "{text}");
        assert!(!text.contains("hush"), "{text}");
    }
    let node = store_dir.node_at(&secret).await;
    assert!(!format!("{:?}", node.store).contains("hush"));
    let Domain::Database(store_dir) = node.store.domain() else { panic!() };
    assert!(!store_dir.contains("hush"), "{store_dir}");
}

/// A process that closes without handing back lets others take its shards at once; one that hands back leaves clean
/// shards.
#[tokio::test]
async fn who_leaves_is_not_waited_for() {
    let store_dir = TestStore::new();
    let (mut one, mut two, mut three) =
        (store_dir.node().await, store_dir.node().await, store_dir.node().await);
    one.take().await;
    one.store.close().await.unwrap();
    two.take().await;
    assert!(two.taken.iter().all(|taken| taken.unclean));
    for taken in &two.taken {
        two.store.release(taken.token).await.unwrap();
    }
    three.take().await;
    assert!(three.taken.iter().all(|taken| !taken.unclean));
}

/// A deadlock ends one of two transactions, and that one is repeated.
#[tokio::test]
async fn who_is_rolled_back_by_a_deadlock_tries_again() {
    let store_dir = TestStore::new();
    let mut node = store_dir.node().await;
    node.take().await;
    for id in ["1", "2"] {
        node.publish(id, Some(id)).await.unwrap();
    }
    let due = node.due(at(9)).await;
    let settles: Vec<_> = due.iter().map(|entry| node.settling(entry, EventChange::Done)).collect();
    let mut raw = store_dir.raw().await;
    raw.say("SET deadlock_timeout = '60s'; BEGIN; SELECT seq FROM redrive.fresh WHERE id = '2' FOR UPDATE")
        .await
        .unwrap();
    let settling = tokio::spawn(node.store.settle(settles));
    store_dir.raw().await.until_somebody_waits().await;
    raw.say("SELECT seq FROM redrive.fresh WHERE id = '1' FOR UPDATE").await.unwrap();
    raw.say("COMMIT").await.unwrap();
    let settled = settling.await.unwrap().unwrap();
    assert!(settled.iter().all(|settled| matches!(settled, SettleResult::Applied { .. })), "{settled:?}");
    assert!(node.due(at(9)).await.is_empty());
}

/// A role may have fewer connections than the store would like: the store makes do with those, or reports an error
/// that may pass.
#[tokio::test]
async fn too_many_connections_lose_nothing() {
    let store_dir = TestStore::new();
    let mut raw = store_dir.raw().await;
    let role = format!("few_{}", store_dir.schema);
    raw.say(&format!(
        "CREATE ROLE {role} LOGIN CONNECTION LIMIT 4; GRANT CREATE ON DATABASE postgres TO {role}"
    ))
    .await
    .unwrap();
    let node = store_dir.node_at(&store_dir.url.replace("redrive@", &format!("{role}@"))).await;
    let calls: Vec<_> = (0..20)
        .map(|n| {
            let store = Arc::clone(&node.store);
            tokio::spawn(async move { store.find("", postgres_common::ORDERS, &n.to_string()).await })
        })
        .collect();
    for call in calls {
        match call.await.unwrap() {
            Ok(found) => assert!(found.is_none()),
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
    }
    let published = node.publish("1", None).await;
    assert!(matches!(published, Ok(Published::Accepted(_))), "{published:?}");
}

/// Work that swallows the error of a statement, ends the transaction itself or takes too long is rolled back, with an
/// error.
#[tokio::test]
async fn work_that_cannot_be_kept_is_told_so() {
    let store_dir = TestStore::new();
    let mut node = store_dir.node().await;
    node.take().await;
    let mut raw = store_dir.raw().await;
    raw.say("CREATE TABLE redrive.effect (id TEXT)").await.unwrap();
    let insert = format!("INSERT INTO {}.effect VALUES ('x')", store_dir.schema);
    let second = Duration::from_secs(1);
    for (what, time) in
        [("SELECT 1 / 0", 60 * second), ("COMMIT", 60 * second), ("SELECT pg_sleep(60)", second)]
    {
        node.publish(what, None).await.unwrap();
        let claim = Some(node.claim(&node.one(what).await));
        let insert = insert.clone();
        let work = move |tx: &mut dyn redrive_store::Tx| {
            for sql in [insert.as_str(), what] {
                let query = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
                let _ = redrive_store::postgres::with(tx, async |conn| query.execute(conn).await);
            }
            Ok(None)
        };
        let job = TxJob { work: Box::new(work), claim, time, alone: false };
        let done = node.store.transact(job).await.unwrap();
        match what {
            "SELECT pg_sleep(60)" => assert!(matches!(done, TxOutcome::TimedOut), "{done:?}"),
            _ => assert!(matches!(done, TxOutcome::Aborted(_)), "{what}: {done:?}"),
        }
        assert_eq!(node.one(what).await.rev, 0, "{what}");
    }
    // The rows that the work has committed by itself are there; nothing else is.
    assert_eq!(raw.number("SELECT count(*) FROM redrive.effect").await, 1);
}

/// The caller's own statements take plain values, including NULL, whatever the column types.
#[tokio::test]
async fn plain_values_go_in_and_come_out() {
    use redrive_store::sql::Value;
    let store_dir = TestStore::new();
    let node = store_dir.node().await;
    let table = format!("{}.thing", store_dir.schema);
    let work = move |tx: &mut dyn redrive_store::Tx| {
        tx.execute(
            &format!("CREATE TABLE {table} (a INT, b BIGINT, c FLOAT8, d TEXT, e BYTEA, f BOOL)"),
            &[],
        )?;
        let values = [7.into(), Value::Null, 1.5.into(), "text".into(), Value::Bytes(vec![1, 2])];
        let insert = format!("INSERT INTO {table} VALUES ($1, $2, $3, $4, $5, $1 > 0)");
        assert_eq!(tx.execute(&insert, &values)?, 1);
        let rows = tx.query(&format!("SELECT * FROM {table} WHERE d = $1"), &["text".into()])?;
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].get::<i64>(0)?, 7);
        assert_eq!(rows[0].get::<Option<i64>>(1)?, None);
        assert_eq!(rows[0].get::<f64>(2)?, 1.5);
        assert_eq!(rows[0].get::<String>(3)?, "text");
        assert_eq!(rows[0].get::<Vec<u8>>(4)?, [1, 2]);
        assert!(rows[0].get::<bool>(5)?);
        assert!(tx.execute("SELECT nonsense", &[]).is_err());
        Err("looked enough".into())
    };
    let job = TxJob { work: Box::new(work), claim: None, time: Duration::from_secs(60), alone: false };
    let done = node.store.transact(job).await.unwrap();
    assert!(matches!(&done, TxOutcome::Aborted(error) if error.to_string() == "looked enough"), "{done:?}");
}
