//! Two layers over one SQLite file, each with a store of its own, as in two processes.

use std::sync::Arc;
use std::time::Duration;

use redrive::api::{Effects, Endpoint, Idempotent, StoredReply, Tenant};
use redrive::rusqlite;
use redrive::store::sqlite::Sqlite;
use redrive::{Operation, Redrive, testing};

use crate::shop::{BOOK, Calls, behind, keyed, over, serve};
use crate::spy::{Gate, Spy};
use crate::wire::post;

fn open(folder: &tempfile::TempDir) -> Redrive {
    let store = Sqlite::open(folder.path().join("bookings.db"), Default::default()).unwrap();
    over(Arc::new(store))
}

fn transactional() -> Endpoint<Tenant, Effects> {
    Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(Effects::Transactional)
}

#[tokio::test]
async fn of_many_at_once_in_both_processes_one_runs_and_all_get_its_answer() {
    let folder = tempfile::tempdir().unwrap();
    let calls = Calls::default();
    let mut servers = Vec::new();
    for redrive in [open(&folder), open(&folder)] {
        let counted = calls.clone();
        let handler = move || async move { format!("call {}", counted.add()) };
        servers.push(Arc::new(serve(&redrive, keyed(), handler).await));
    }
    let request = post("{}").key("k").header("prefer", "wait=30");
    let asked: Vec<_> = (0..20).map(|at| servers[at % 2].later(request.clone())).collect();
    for asked in asked {
        let answer = asked.await.unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (200, "call 1"));
    }
    assert_eq!(calls.count(), 1);
}

#[tokio::test]
async fn row_10_one_waits_for_what_runs_in_the_other_process() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Gate::default();
    let at = gate.clone();
    let handler = move || async move {
        at.pass().await;
        "there"
    };
    let there = Arc::new(serve(&open(&folder), keyed(), handler).await);
    let spy = Spy::over(&open(&folder));
    // Longer than the test takes, so that only polling ends it.
    let endpoint = keyed().wait_max(Duration::from_secs(300));
    let layer = Idempotent::new(spy.clone(), endpoint).unwrap();
    let here = Arc::new(behind(&layer, || async { "here" }).await);
    let first = there.later(post("{}").key("k"));
    gate.reached.wait().await;
    assert_eq!(here.ask(&post("{}").key("k")).await.code(), "in-flight");
    let second = here.later(post("{}").key("k").header("prefer", "wait=300"));
    // It waits, and nothing in its own process will notify it.
    spy.looks.wait().await;
    gate.open.give();
    assert_eq!(first.await.unwrap().text(), "there");
    assert_eq!(second.await.unwrap().text(), "there");
}

#[tokio::test]
async fn row_16_an_answer_outlives_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let handler = || async { ([("x-name", "one")], "first") };
    let first = open(&folder);
    let server = serve(&first, keyed(), handler).await;
    assert_eq!(server.ask(&post("{}").key("k")).await.text(), "first");
    first.shutdown(Duration::ZERO).await.unwrap();
    let later = serve(&open(&folder), keyed(), || async { "second" }).await;
    let again = later.ask(&post("{}").key("k")).await;
    assert_eq!((again.text().as_str(), again.header("x-name").as_deref()), ("first", Some("one")));
}

#[tokio::test]
async fn row_22_the_rows_of_a_zombie_are_rolled_back() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (open(&folder), open(&folder));
    let table = "CREATE TABLE booking (who TEXT NOT NULL)";
    old.transact(move |tx| tx.sqlite().unwrap().execute(table, [])).await.unwrap();
    let gate = Gate::default();
    let book = |who: &'static str| {
        let gate = gate.clone();
        move |op: Operation| async move {
            if who == "zombie" {
                gate.pass().await;
            }
            op.commit(move |tx| {
                tx.sqlite().unwrap().execute("INSERT INTO booking VALUES (?1)", [who])?;
                Ok::<_, rusqlite::Error>(StoredReply::new(201).body(who))
            })
            .await
        }
    };
    let there = Arc::new(serve(&old, transactional(), book("zombie")).await);
    let here = serve(&new, transactional(), book("winner")).await;
    let first = there.later(post("{}").key("k"));
    gate.reached.wait().await;
    for process in [&old, &new] {
        testing::pass(process, Duration::from_secs(30));
    }
    let second = here.ask(&post("{}").key("k")).await;
    assert_eq!(
        (second.text().as_str(), second.header("idempotency-attempt").as_deref()),
        ("winner", Some("2"))
    );
    gate.open.give();
    assert_eq!(first.await.unwrap().text(), "winner");
    let who = new.transact(|tx| {
        tx.sqlite()
            .unwrap()
            .query_row("SELECT group_concat(who) FROM booking", [], |row| row.get::<_, String>(0))
    });
    assert_eq!(who.await.unwrap(), "winner");
}
