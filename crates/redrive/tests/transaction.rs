//! The transaction loop: the whole body runs again until it commits, and effects do not belong into it.
#![cfg(all(feature = "sqlite", feature = "postgres", feature = "reqwest"))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use redrive::http::Client;
use redrive::postgres::sqlx::postgres::PgPoolOptions;
use redrive::postgres::sqlx::{self, Executor, PgPool};
use redrive::rusqlite::Connection;
use redrive::transaction::postgres::{Isolation, transact, transact_once};
use redrive::transaction::{CommittedOnce, TransactionError, TransactionSettings, effects, sqlite};
use redrive::{Backoff, Event, Jitter, Policy, PublishError, StopReason, testing};
use redrive_testkit::postgres::{Cut, Proxy, Server, a_name};

async fn pool_at(url: &str, schema: &str, connections: u32) -> PgPool {
    let name = schema.to_owned();
    PgPoolOptions::new()
        .max_connections(connections)
        .after_connect(move |conn, _| {
            let path = format!("SET search_path TO {name}");
            Box::pin(async move { conn.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(path))).await.map(drop) })
        })
        .connect(url)
        .await
        .unwrap()
}

/// A pool on a schema with a counter.
async fn counter(connections: u32) -> (PgPool, String) {
    let schema = a_name("transaction");
    let pool = pool_at(&Server::shared().url(), &schema, connections).await;
    let tables =
        format!("CREATE SCHEMA {schema}; CREATE TABLE counter (n BIGINT); INSERT INTO counter VALUES (0)");
    pool.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(tables))).await.unwrap();
    redrive::cas::postgres::create(&pool).await.unwrap();
    (pool, schema)
}

async fn count(pool: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT n FROM counter").fetch_one(pool).await.unwrap()
}

/// 50 writers of one row, serialisable; each commits once and sends an email from inside the body. Returns commits and
/// emails.
async fn writers(jitter: Jitter) -> (u32, u32) {
    let (pool, _) = counter(50).await;
    let emails = Arc::new(AtomicU32::new(0));
    let gate = Arc::new(tokio::sync::Barrier::new(50));
    let tasks = (0..50).map(|_| {
        let (pool, emails, gate) = (pool.clone(), emails.clone(), gate.clone());
        tokio::spawn(async move {
            // So many writers of one row want waits that are longer than the default.
            let backoff = Backoff::exponential(Duration::from_millis(100), 2.0, Duration::from_secs(2));
            let settings = TransactionSettings { runs: 10_000, backoff, jitter };
            drop(pool.acquire().await.unwrap());
            gate.wait().await;
            let committed = transact(&pool, Isolation::Serializable, &settings, |tx| {
                emails.fetch_add(1, Relaxed);
                Box::pin(async move {
                    let n: i64 = sqlx::query_scalar("SELECT n FROM counter").fetch_one(&mut **tx).await?;
                    sqlx::query("UPDATE counter SET n = $1").bind(n + 1).execute(&mut **tx).await?;
                    Ok(())
                })
            });
            committed.await.unwrap().runs
        })
    });
    let mut runs = 0;
    for task in tasks.collect::<Vec<_>>() {
        runs += task.await.unwrap();
    }
    assert_eq!(count(&pool).await, 50, "no update is lost");
    assert_eq!(runs, emails.load(Relaxed), "an effect in the body happens once a run");
    (50, runs)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_serialisable_writers_of_one_row_need_few_runs_with_jitter() {
    let (commits, jittered) = writers(Jitter::Full).await;
    let (_, together) = writers(Jitter::None).await;
    println!(
        "{commits} commits: {jittered} runs with jitter, {together} without; an email in the body is sent as often"
    );
    assert!(jittered > commits, "they met, so emails exceed commits");
    assert!(jittered <= 5 * commits, "{jittered} runs");
}

#[tokio::test]
async fn effects_inside_a_body_are_refused_and_the_outbox_is_named() {
    let (pool, _) = counter(2).await;
    let redrive = testing::memory();
    redrive.queue("emails").declare().await.unwrap();
    let client = Client::new(reqwest::Client::new(), Policy::default());
    let (publisher, sender) = (redrive.clone(), client.clone());
    let settings = TransactionSettings::default();
    let ended = transact(&pool, Isolation::Default, &settings, |_| {
        let (redrive, client) = (publisher.clone(), sender.clone());
        Box::pin(async move {
            let published = redrive.publish(Event::new("emails", "1")).await;
            let refused = published.unwrap_err();
            assert!(matches!(refused, PublishError::InTransaction));
            assert!(refused.to_string().contains("outbox"), "{refused}");
            let many = redrive.publish_all([Event::new("emails", "2")]).await?;
            assert!(matches!(many[0], Err(PublishError::InTransaction)));
            let sent = client.post("http://127.0.0.1:9/").send().await.unwrap_err();
            assert_eq!((sent.report.reason, sent.report.attempts), (StopReason::InTransaction, 0));
            Ok(())
        })
    });
    assert_eq!(ended.await.unwrap().runs, 1);
    assert!(!effects::are_refused());
    redrive.publish(Event::new("emails", "1")).await.unwrap();

    // The store's own transaction and its handlers as well; what is published in the transaction is the outbox.
    let own = redrive.clone();
    redrive
        .transact(move |tx| {
            let plain = futures_util::future::FutureExt::now_or_never(own.publish(Event::new("emails", "3")));
            assert!(matches!(plain, Some(Err(PublishError::InTransaction))));
            tx.publish(Event::new("emails", "4")).map(drop)
        })
        .await
        .unwrap();
    assert!(redrive.event("", "emails", "3").await.unwrap().is_none());
    assert!(redrive.event("", "emails", "4").await.unwrap().is_some());
}

type Body<'t> = futures_util::future::BoxFuture<'t, Result<(), Box<dyn std::error::Error + Send + Sync>>>;

fn increment<'t>(tx: &'t mut sqlx::PgTransaction<'static>) -> Body<'t> {
    Box::pin(async move {
        sqlx::query("UPDATE counter SET n = n + 1").execute(&mut **tx).await?;
        Ok(())
    })
}

/// Adds one, and returns whether this call committed it.
async fn add(pool: &PgPool, number: Option<&str>) -> Result<bool, TransactionError> {
    let settings = TransactionSettings { runs: 10, ..TransactionSettings::default() };
    match number {
        None => transact(pool, Isolation::Default, &settings, increment).await.map(|_| true),
        Some(number) => {
            let done = transact_once(pool, number, Isolation::Default, &settings, increment).await?;
            Ok(matches!(done, CommittedOnce::Now(_)))
        }
    }
}

#[tokio::test]
async fn a_number_commits_once_however_often_it_is_asked_for() {
    let (pool, _) = counter(2).await;
    assert!(add(&pool, Some("7")).await.unwrap());
    assert!(!add(&pool, Some("7")).await.unwrap(), "committed before");
    assert!(add(&pool, Some("8")).await.unwrap());
    assert_eq!(count(&pool).await, 2);
}

#[tokio::test]
async fn a_cut_commit_is_unknown_unless_the_body_has_a_number() {
    let server = Server::shared();
    let (direct, schema) = counter(1).await;
    let proxy = Proxy::start(server).unwrap();
    let pool = pool_at(&proxy.url(), &schema, 2).await;
    let mut expected = 0;
    for (cut, committed) in [(Cut::After, 1), (Cut::Before, 0)] {
        proxy.cut_next(cut);
        let ended = add(&pool, None).await;
        assert!(matches!(ended, Err(TransactionError::Unknown { runs: 1, .. })), "{cut:?} {ended:?}");
        expected += committed;
        assert_eq!(count(&direct).await, expected, "{cut:?}: the caller cannot tell these two apart");
        proxy.cut_next(cut);
        let now = add(&pool, Some(&format!("{cut:?}"))).await.unwrap();
        assert_eq!(now, cut == Cut::Before, "the second run finds the number of the first, or commits");
        expected += 1;
        assert_eq!(count(&direct).await, expected, "{cut:?}: once");
    }
    assert_eq!(proxy.cuts(), 4);
}

#[test]
fn sqlite_waits_for_a_busy_file_and_runs_the_whole_body_again() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let file = Connection::open(folder.path().join("shop.db")).unwrap();
        file.busy_timeout(Duration::ZERO).unwrap();
        file
    };
    let mut file = open();
    file.execute_batch(
        "PRAGMA journal_mode = wal; CREATE TABLE counter (n INTEGER); INSERT INTO counter VALUES (0)",
    )
    .unwrap();
    redrive::cas::sqlite::create(&file).unwrap();
    let settings = TransactionSettings { runs: 10_000, ..TransactionSettings::default() };
    let runs = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut file = open();
                for _ in 0..10 {
                    let committed = sqlite::transact(&mut file, &settings, |tx| {
                        let n: i64 = tx.query_row("SELECT n FROM counter", [], |row| row.get(0))?;
                        tx.execute("UPDATE counter SET n = ?1", [n + 1])?;
                        Ok(())
                    });
                    runs.fetch_add(committed.unwrap().runs, Relaxed);
                }
            });
        }
    });
    let n: i64 = file.query_row("SELECT n FROM counter", [], |row| row.get(0)).unwrap();
    assert_eq!(n, 40);
    let mut add = || {
        sqlite::transact_once(&mut file, "7", &settings, |tx| {
            tx.execute("UPDATE counter SET n = n + 1", [])?;
            Ok(())
        })
    };
    assert!(matches!(add().unwrap(), CommittedOnce::Now(_)));
    assert!(matches!(add().unwrap(), CommittedOnce::Before));
    let own = sqlite::transact(&mut file, &settings, |_| Err::<(), _>("no stock".into()));
    assert!(matches!(own, Err(TransactionError::Body(error)) if error.to_string() == "no stock"));
}
