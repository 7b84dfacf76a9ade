//! Errors of the database: repeated, reported as passing, or reported as broken.
//!
//! The server itself raises the codes, in the middle of a call, by a trigger that counts.
#![cfg(all(feature = "postgres", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use redrive_core::queue_entry::{EventChange, SettleResult};
use redrive_core::triage::Operator;
use redrive_store::operate::{CommandResult, OperatorAction, OperatorCommand};
use redrive_store::{Postgres, StoreError, Tx, TxJob, TxOutcome, prelude::*};
use redrive_testkit::postgres::{Proxy, Server};

mod postgres_common;

use postgres_common::{Raw, TestStore, at};

/// Makes the next inserts into a table fail, this many times.
async fn fail(raw: &mut Raw, table: &str, code: &str, times: u32) {
    let make = format!(
        "DROP TRIGGER IF EXISTS fails ON redrive.{table}; DROP SEQUENCE IF EXISTS redrive.fails; \
         CREATE SEQUENCE redrive.fails; CREATE OR REPLACE FUNCTION redrive.fail() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN IF nextval('redrive.fails') <= {times} THEN RAISE EXCEPTION 'so it is' USING ERRCODE = '{code}'; \
         END IF; RETURN NEW; END $$; \
         CREATE TRIGGER fails BEFORE INSERT ON redrive.{table} FOR EACH ROW EXECUTE FUNCTION redrive.fail()"
    );
    raw.say(&make).await.unwrap();
}

async fn order(store: &Postgres) -> Result<CommandResult, StoreError> {
    let what = OperatorAction::Note { verb: "note", target: "it".to_owned(), count: 1, note: String::new() };
    store.operate(OperatorCommand { by: Operator::engine(), at: at(1), what }).await
}

#[tokio::test]
async fn what_passes_is_done_again_and_nothing_is_done_twice() {
    let store_dir = TestStore::new();
    let node = store_dir.node().await;
    let mut raw = store_dir.raw().await;
    let mut lines = 0;
    for code in ["40001", "40P01", "53100", "53200", "53300", "57P03", "25006"] {
        fail(&mut raw, "audit", code, 2).await;
        let done = order(&node.store).await;
        lines += 1;
        assert!(done.is_ok(), "{code}: {done:?}");
        assert_eq!(raw.number("SELECT count(*) FROM redrive.audit").await, lines, "{code}");
    }
    for code in ["55P03", "57014", "42501", "28P01", "3D000"] {
        fail(&mut raw, "audit", code, 1).await;
        let error = order(&node.store).await.unwrap_err();
        assert!(matches!(error, StoreError::Passing { .. }), "{code}: {error:?}");
        assert!(error.to_string().contains(code), "{error}");
        assert!(order(&node.store).await.is_ok(), "{code}");
        lines += 1;
    }
    for (code, told) in [("26000", "statement-cache-capacity=0"), ("22012", "so it is")] {
        fail(&mut raw, "audit", code, 1).await;
        let error = order(&node.store).await.unwrap_err();
        assert!(matches!(error, StoreError::Broken { .. }) && error.to_string().contains(told), "{error:?}");
    }
    assert_eq!(raw.number("SELECT count(*) FROM redrive.audit").await, lines);
}

/// The same rules hold for publishing and settling.
#[tokio::test]
async fn a_publish_is_done_again_and_is_one_event() {
    let store_dir = TestStore::new();
    let mut node = store_dir.node().await;
    node.take().await;
    let mut raw = store_dir.raw().await;
    for code in ["40001", "40P01", "53100", "57P03", "25006"] {
        fail(&mut raw, "fresh", code, 2).await;
        node.publish(code, None).await.unwrap();
        let entry = node.one(code).await;
        assert!(
            matches!(node.settle(&entry, EventChange::Done).await, SettleResult::Applied { .. }),
            "{code}"
        );
    }
}

/// Persistent trouble is reported in time, as an error that may pass.
#[tokio::test]
async fn trouble_that_does_not_end_is_told() {
    let store_dir = TestStore { patience: Duration::from_millis(300), ..TestStore::new() };
    let node = store_dir.node().await;
    let mut raw = store_dir.raw().await;
    for code in ["40001", "53100", "25006"] {
        fail(&mut raw, "audit", code, 1_000_000).await;
        let error = order(&node.store).await.unwrap_err();
        assert!(matches!(error, StoreError::Passing { .. }), "{code}: {error:?}");
    }
    assert_eq!(raw.number("SELECT count(*) FROM redrive.audit").await, 0);
}

/// A primary that became a standby: nothing can be written for a while, and then it can.
#[tokio::test]
async fn a_database_that_only_reads_is_waited_for() {
    let store_dir = TestStore { patience: Duration::from_millis(300), ..TestStore::new() };
    let proxy = Proxy::start(Server::shared()).unwrap();
    let mut raw = store_dir.raw().await;
    raw.say("CREATE ROLE reader LOGIN SUPERUSER").await.unwrap();
    let node = store_dir.node_at(&proxy.url().replace("redrive@", "reader@")).await;
    raw.say("ALTER ROLE reader SET default_transaction_read_only = on").await.unwrap();
    proxy.cut_all();
    let error = node.publish("1", None).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("standby"), "{error}");
    node.store.count(at(0)).await.unwrap();
    raw.say("ALTER ROLE reader SET default_transaction_read_only = off").await.unwrap();
    proxy.cut_all();
    node.publish("1", None).await.unwrap();
}

/// Work that fails because of a concurrent transaction runs again, and no attempt is charged; its own errors count.
#[tokio::test]
async fn work_that_was_shaken_runs_again() {
    let store_dir = TestStore::new();
    let proxy = Proxy::start(Server::shared()).unwrap();
    let node = store_dir.node_at(&proxy.url()).await;
    let mut raw = store_dir.raw().await;
    raw.say("CREATE TABLE redrive.effect (id TEXT)").await.unwrap();
    let insert = format!("INSERT INTO {}.effect VALUES ('a')", store_dir.schema);
    let work = |insert: String| {
        Box::new(move |tx: &mut dyn Tx| {
            tx.execute(&insert, &[])?;
            Ok(None)
        })
    };
    let job = |work| TxJob { work, claim: None, time: Duration::from_secs(30), alone: false };
    for code in ["40001", "40P01", "53100", "08006"] {
        fail(&mut raw, "effect", code, 2).await;
        let done = node.store.transact(job(work(insert.clone()))).await.unwrap();
        assert!(matches!(done, TxOutcome::Committed { .. }), "{code}: {done:?}");
    }
    fail(&mut raw, "effect", "23514", 1).await;
    let done = node.store.transact(job(work(insert.clone()))).await.unwrap();
    assert!(matches!(done, TxOutcome::Aborted(_)), "{done:?}");
    assert_eq!(raw.number("SELECT count(*) FROM redrive.effect").await, 4);
}

/// A restored backup has a new incarnation: an owner of the old one changes nothing.
#[tokio::test]
async fn a_new_life_fences_the_owners_of_the_old_one() {
    let store_dir = TestStore::new();
    let mut old = store_dir.node().await;
    old.take().await;
    old.publish("1", None).await.unwrap();
    let entry = old.one("1").await;
    let mut raw = store_dir.raw().await;
    raw.say("SELECT redrive.begin_new_life()").await.unwrap();
    assert_eq!(old.settle(&entry, EventChange::Done).await, SettleResult::Fenced);
    let mut new = store_dir.node().await;
    new.take().await;
    assert!(new.taken.iter().all(|taken| taken.unclean), "they were not handed back");
    let lives = |node: &postgres_common::Node| node.taken[0].token.incarnation;
    assert_ne!(lives(&old), lives(&new));
    assert!(matches!(new.settle(&new.one("1").await, EventChange::Done).await, SettleResult::Applied { .. }));

    let error = new.store.backup("copy".into()).await.unwrap_err().to_string();
    assert!(error.contains("pg_dump") && error.contains("begin_new_life()"), "{error}");
}

/// A damaged record is skipped, and the others are deleted.
#[tokio::test]
async fn a_damaged_record_holds_up_no_other() {
    use redrive_core::ledger::{
        ClaimRequest, Effects, LedgerClaim, RequestFingerprint, RequestScope, Retention, RunEnding,
        StoredReply,
    };

    let store_dir = TestStore::new();
    let node = store_dir.node().await;
    for key in ["1", "2", "3"] {
        let scope = RequestScope { tenant: "t".to_owned(), operation: "o".to_owned(), key: key.to_owned() };
        let ask = ClaimRequest {
            print: RequestFingerprint { version: 1, hash: [7; 32] },
            older: Vec::new(),
            effects: Effects::Keyed,
            lease: Duration::from_secs(60),
            retention: Retention { answer: Duration::from_secs(60) },
            first_sent: None,
            skew: Duration::ZERO,
        };
        let LedgerClaim::Run(record) = node.store.claim(scope.clone(), ask, at(0)).await.unwrap() else {
            panic!()
        };
        let reply = StoredReply { status: 201, headers: Vec::new(), body: None };
        let end = RunEnding::Completed { reply, resource: None };
        node.store.end(scope, record.epoch, end, at(1)).await.unwrap().unwrap();
    }
    let mut raw = store_dir.raw().await;
    raw.say("UPDATE redrive.request SET status = 500 WHERE key = '1'").await.unwrap();
    while raw.number("SELECT count(*) FROM redrive.request").await > 1 {
        assert!(node.store.forget(at(1_000_000)).await.unwrap() > 0, "nothing is forgotten");
    }
    assert_eq!(raw.number("SELECT key::bigint FROM redrive.request").await, 1);
}
