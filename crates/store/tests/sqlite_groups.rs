//! Jobs that share a commit: none of them must affect the others.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use redrive_core::Event;
use redrive_core::queue_entry::EventChange;
use redrive_store::{NewEvent, Sqlite, StoreError, TxJob, TxOutcome, TxSettle, prelude::*};
use tokio::sync::oneshot;

mod sqlite_common;
use sqlite_common::{AT, TestStore, due, job, publish, settle};

/// Blocks the writer until it is dropped, so that calls made meanwhile share one commit.
struct HoldUp {
    _go: mpsc::Sender<()>,
}

async fn hold_up(store: &Sqlite) -> HoldUp {
    let (go, wait) = mpsc::channel::<()>();
    let (tell, told) = oneshot::channel();
    let mut tell = Some(tell);
    drop(store.transact(job(move |_| {
        if let Some(tell) = tell.take() {
            tell.send(()).unwrap();
        }
        let _ = wait.recv();
        Ok(())
    })));
    told.await.unwrap();
    HoldUp { _go: go }
}

async fn store_dir() -> (TestStore, Arc<Sqlite>) {
    let store_dir = TestStore::new();
    store_dir
        .raw()
        .execute_batch(
            "CREATE TABLE effect (name TEXT UNIQUE);
             CREATE TABLE child (parent TEXT REFERENCES effect (name) DEFERRABLE INITIALLY DEFERRED)",
        )
        .unwrap();
    let store = store_dir.open().await;
    (store_dir, store)
}

fn effects(store_dir: &TestStore) -> Vec<String> {
    let raw = store_dir.raw();
    let mut select = raw.prepare("SELECT name FROM effect ORDER BY name").unwrap();
    select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// A job that writes an effect, and counts how often it runs.
fn effect(name: &'static str, runs: &Arc<AtomicUsize>) -> TxJob {
    let runs = Arc::clone(runs);
    job(move |conn| {
        runs.fetch_add(1, SeqCst);
        conn.execute("INSERT INTO effect VALUES (?1)", [name])?;
        Ok(())
    })
}

/// Runs a job between two good ones that share its commit, and returns its outcome. The good ones must commit, and
/// `reruns` says whether they had to run again.
async fn among_others(bad: TxJob, reruns: bool) -> (TestStore, Arc<Sqlite>, TxOutcome) {
    let (store_dir, store) = store_dir().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let held = hold_up(&store).await;
    let first = store.transact(effect("first", &runs));
    let bad = store.transact(bad);
    let published = store.publish(vec![NewEvent::at(Event::new("orders", "1"), AT)]);
    let last = store.transact(effect("last", &runs));
    drop(held);
    assert!(matches!(first.await, Ok(TxOutcome::Committed { .. })));
    assert!(matches!(last.await, Ok(TxOutcome::Committed { .. })));
    assert!(published.await.unwrap()[0].is_ok());
    let bad = bad.await.unwrap();
    let effects = effects(&store_dir);
    assert!(effects.contains(&"first".to_owned()) && effects.contains(&"last".to_owned()), "{effects:?}");
    assert!(store.find("", "orders", "1").await.unwrap().is_some());
    // The first runs before the bad one and again after; the last perhaps only after.
    assert_eq!(runs.load(SeqCst) > 2, reruns);
    (store_dir, store, bad)
}

#[tokio::test]
async fn an_error_rolls_back_its_own_job_alone() {
    let bad = job(|conn| {
        conn.execute("INSERT INTO effect VALUES ('bad')", [])?;
        Err("no".into())
    });
    let (store_dir, _store, bad) = among_others(bad, false).await;
    assert!(matches!(bad, TxOutcome::Aborted(error) if error.to_string() == "no"));
    assert_eq!(effects(&store_dir), ["first", "last"]);
}

#[tokio::test]
async fn a_panic_rolls_back_its_own_job_alone() {
    let bad = job(|conn| {
        conn.execute("INSERT INTO effect VALUES ('bad')", [])?;
        panic!("out of order");
    });
    let (store_dir, _store, bad) = among_others(bad, false).await;
    assert!(matches!(bad, TxOutcome::Panicked(why) if why == "out of order"));
    assert_eq!(effects(&store_dir), ["first", "last"]);
}

#[tokio::test]
async fn or_rollback_destroys_nobody_elses_work() {
    let bad = job(|conn| {
        conn.execute("INSERT INTO effect VALUES ('bad')", [])?;
        // It fails, ends the transaction of all, and the job ignores that.
        let _ = conn.execute("INSERT OR ROLLBACK INTO effect VALUES ('bad')", []);
        Ok(())
    });
    let (store_dir, _store, bad) = among_others(bad, true).await;
    assert!(matches!(bad, TxOutcome::Aborted(error) if error.to_string().contains("ended the transaction")));
    assert_eq!(effects(&store_dir), ["first", "last"]);
}

#[tokio::test]
async fn or_rollback_and_going_on_writes_nothing() {
    let bad = job(|conn| {
        let _ = conn.execute("INSERT OR ROLLBACK INTO effect VALUES (NULL), ('x'), ('x')", []);
        // Without a transaction now: this would commit by itself.
        let _ = conn.execute("INSERT INTO effect VALUES ('alone')", []);
        Ok(())
    });
    let (store_dir, store, bad) = among_others(bad, true).await;
    assert!(matches!(bad, TxOutcome::Aborted(_)), "{bad:?}");
    assert_eq!(effects(&store_dir), ["first", "last"]);

    let publishes = TxJob {
        work: Box::new(|tx| {
            let conn = redrive_store::sqlite::connection(tx).ok_or("not in SQLite")?;
            let _ = conn.execute("INSERT OR ROLLBACK INTO effect VALUES ('x'), ('x')", []);
            let _ = tx.publish(NewEvent::at(Event::new("orders", "alone"), AT));
            let _ = tx.mark("handler", "alone", AT);
            Ok(None)
        }),
        ..job(|_| Ok(()))
    };
    assert!(matches!(store.transact(publishes).await, Ok(TxOutcome::Aborted(_))));
    assert!(store.find("", "orders", "alone").await.unwrap().is_none());
}

#[tokio::test]
async fn a_deferred_foreign_key_fails_its_own_job_alone() {
    let bad = job(|conn| {
        conn.execute("INSERT INTO child VALUES ('nobody')", [])?;
        Ok(())
    });
    let (store_dir, _store, bad) = among_others(bad, true).await;
    assert!(matches!(bad, TxOutcome::Aborted(error) if error.to_string().contains("FOREIGN KEY")));
    let children: u32 =
        store_dir.raw().query_row("SELECT count(*) FROM child", [], |row| row.get(0)).unwrap();
    assert_eq!(children, 0);
}

const COUNT_FOR_EVER: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)";

fn endless(sql: &'static str) -> TxJob {
    let mut endless = job(move |conn| {
        conn.execute_batch(sql)?;
        Ok(())
    });
    endless.time = Duration::from_millis(20);
    endless
}

#[tokio::test]
async fn an_endless_read_is_interrupted() {
    let sql: &'static str = format!("{COUNT_FOR_EVER} SELECT max(i) FROM n").leak();
    let (_place, _store, bad) = among_others(endless(sql), false).await;
    assert!(matches!(bad, TxOutcome::TimedOut), "{bad:?}");
}

#[tokio::test]
async fn an_endless_write_is_interrupted_and_others_run_again() {
    let sql: &'static str = format!("{COUNT_FOR_EVER} INSERT INTO effect SELECT 'n' || i FROM n").leak();
    let (store_dir, _store, bad) = among_others(endless(sql), true).await;
    assert!(matches!(bad, TxOutcome::TimedOut), "{bad:?}");
    assert_eq!(effects(&store_dir), ["first", "last"]);
}

#[tokio::test]
async fn what_reaches_beyond_a_job_is_refused() {
    let (store_dir, store) = store_dir().await;
    let refused = [
        "COMMIT",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT mine",
        "RELEASE redrive_job",
        "ROLLBACK TO redrive_job",
        "ATTACH ':memory:' AS other",
        "PRAGMA synchronous = OFF",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA foreign_keys = OFF",
        "INSERT INTO redrive_inbox VALUES ('h', 'i', 0)",
        "UPDATE redrive_meta SET epoch = 99",
        "DELETE FROM redrive_dedupe",
        "DROP TABLE redrive_fresh",
        "ALTER TABLE redrive_fresh ADD COLUMN mine",
        "CREATE TEMP TABLE redrive_fresh (seq INTEGER)",
        "CREATE TRIGGER mine AFTER INSERT ON redrive_fresh BEGIN SELECT 1; END",
        "CREATE INDEX mine ON redrive_fresh (id)",
        "CREATE TRIGGER mine AFTER INSERT ON effect BEGIN DELETE FROM redrive_fresh; END; \
         INSERT INTO effect VALUES ('x')",
    ];
    for sql in refused {
        let outcome = store.transact(job(|conn| Ok(conn.execute_batch(sql)?))).await.unwrap();
        let said = format!("{outcome:?}");
        assert!(matches!(outcome, TxOutcome::Aborted(_)) && said.contains("authoriz"), "{sql}: {said}");
    }
    let allowed = [
        "CREATE TABLE mine (id INTEGER PRIMARY KEY)",
        "INSERT INTO mine VALUES (1)",
        "PRAGMA table_info(mine)",
        "SELECT count(*) FROM redrive_fresh",
        "DROP TABLE mine",
    ];
    for sql in allowed {
        let outcome = store.transact(job(|conn| Ok(conn.execute_batch(sql)?))).await.unwrap();
        assert!(matches!(outcome, TxOutcome::Committed { .. }), "{sql}: {outcome:?}");
    }
    assert_eq!(effects(&store_dir), [""; 0]);
    publish(&store, Event::new("orders", "after all that")).await.unwrap();
}

#[tokio::test]
async fn our_own_transaction_statements_cannot_be_had_from_the_cache() {
    let (_place, store) = store_dir().await;
    publish(&store, Event::new("orders", "1")).await.unwrap();
    let outcome = store.transact(job(|conn| {
        for sql in ["COMMIT", "BEGIN IMMEDIATE", "ROLLBACK", "RELEASE redrive_job"] {
            if conn.prepare_cached(sql).is_ok() {
                return Err(sql.into());
            }
        }
        Ok(())
    }));
    assert!(matches!(outcome.await, Ok(TxOutcome::Committed { .. })));
}

#[tokio::test]
async fn a_job_may_publish_change_tables_and_fail_without_a_trace() {
    let (_place, store) = store_dir().await;
    let fail = TxJob {
        work: Box::new(|tx| {
            tx.publish(NewEvent::at(Event::new("orders", "1").tenant("new"), AT))?;
            Err("no".into())
        }),
        ..job(|_| Ok(()))
    };
    let held = hold_up(&store).await;
    let before = store.publish(vec![NewEvent::at(Event::new("orders", "before"), AT)]);
    let failed = store.transact(fail);
    let after = store.publish(vec![NewEvent::at(Event::new("orders", "after").tenant("other"), AT)]);
    let again = store.publish(vec![NewEvent::at(Event::new("orders", "again"), AT)]);
    drop(held);
    assert!(matches!(failed.await, Ok(TxOutcome::Aborted(_))));
    for published in [before, after, again] {
        assert!(published.await.unwrap()[0].is_ok());
    }
    assert!(store.find("new", "orders", "1").await.unwrap().is_none());
    // After the rollback another tenant has the number of the stream, which must not be used twice.
    publish(&store, Event::new("orders", "later").tenant("new")).await.unwrap();
    let listed = store.list(redrive_store::EventQuery::default()).await.unwrap();
    let store_dir = |id: &str| {
        let found = listed.events.iter().find(|(event, _)| event.id == id).unwrap();
        (found.1.seq.0 >> 40, found.0.tenant.as_str())
    };
    assert_eq!(listed.events.len(), 4);
    assert_eq!((store_dir("before"), store_dir("again")), ((1, ""), (1, "")));
    assert_eq!((store_dir("after"), store_dir("later")), ((2, "other"), (3, "new")));
}

#[tokio::test]
async fn a_claim_that_was_settled_in_the_same_group_does_not_run() {
    let (store_dir, store) = store_dir().await;
    publish(&store, Event::new("orders", "1")).await.unwrap();
    let token = store.take(0, AT).await.unwrap().token;
    let entry = due(&store, token).await.remove(0);
    let runs = Arc::new(AtomicUsize::new(0));
    let held = hold_up(&store).await;
    let settled = store.settle(vec![settle(token, &entry, EventChange::Done)]);
    let claim = TxSettle { token, seq: entry.seq, rev: entry.rev, at: AT, attempts: 1, history: None };
    let late = store.transact(TxJob { claim: Some(claim), ..effect("late", &runs) });
    drop(held);
    settled.await.unwrap();
    assert!(matches!(late.await, Ok(TxOutcome::Stale)));
    assert_eq!(effects(&store_dir), [""; 0]);
}

#[tokio::test]
async fn a_job_that_is_to_be_alone_shares_no_commit() {
    let (store_dir, store) = store_dir().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let held = hold_up(&store).await;
    let first = store.transact(effect("first", &runs));
    let bad = store.transact(TxJob {
        alone: true,
        ..job(|conn| {
            let _ = conn.execute("INSERT OR ROLLBACK INTO effect VALUES ('a'), ('a')", []);
            Ok(())
        })
    });
    drop(held);
    assert!(matches!(first.await, Ok(TxOutcome::Committed { .. })));
    assert!(matches!(bad.await, Ok(TxOutcome::Aborted(_))));
    assert_eq!((runs.load(SeqCst), effects(&store_dir)), (1, vec!["first".to_owned()]));
}

#[tokio::test]
async fn what_was_called_before_the_close_is_done() {
    let (store_dir, store) = store_dir().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let held = hold_up(&store).await;
    let first = store.transact(effect("first", &runs));
    let closed = store.close();
    let late = store.transact(effect("late", &runs));
    drop(held);
    assert!(matches!(first.await, Ok(TxOutcome::Committed { .. })));
    closed.await.unwrap();
    assert!(matches!(late.await, Err(StoreError::Closed)));
    assert_eq!(effects(&store_dir), ["first"]);
}
