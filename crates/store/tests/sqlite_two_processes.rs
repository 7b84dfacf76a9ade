//! Two processes on one file, both with requests: a request runs in one of them, and when the owner dies in the middle
//! of a commit, the other goes on and takes its requests over.
#![cfg(all(feature = "sqlite", feature = "planted"))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redrive_core::Moment;
use redrive_core::ledger::{
    ClaimRequest, Effects, LedgerAnswer, LedgerClaim, RequestFingerprint, RequestScope, Retention,
    StoredReply,
};
use redrive_store::ledger::LedgerQuery;
use redrive_store::{Sqlite, StoreError, TxJob, TxOutcome, prelude::*, sqlite};
use redrive_testkit::crash::this_test;

mod sqlite_common;
use sqlite_common::TestStore;

const PLACE: &str = "REDRIVE_TEST_PLACE";
/// Set for the process that owns the file.
const OWNS: &str = "REDRIVE_TEST_OWNS";

const KEYS: u32 = 60;
/// Concurrent requests in each process.
const AT_ONCE: u32 = 8;
/// After this time the other process takes over the requests of one that died.
const LEASE: Duration = Duration::from_millis(300);

fn now() -> Moment {
    SystemTime::now().into()
}

fn scope(key: u32) -> RequestScope {
    RequestScope { tenant: "acme".to_owned(), operation: "POST /bookings".to_owned(), key: key.to_string() }
}

/// Not a test by itself: one of two processes. Ends when every request is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two() {
    let Some(path) = std::env::var_os(PLACE) else { return };
    let store_dir = TestStore { path: path.into(), ..TestStore::new() };
    let store = store_dir.open().await;
    if std::env::var_os(OWNS).is_some() {
        // The other process may be opening the file, and has its lock for that moment.
        while let Err(StoreError::NotOwner { pid: None, .. }) = store.take(0, now()).await {}
    }
    let lanes: Vec<_> = (0..AT_ONCE).map(|lane| tokio::spawn(answer_all(store.clone(), lane))).collect();
    for lane in lanes {
        lane.await.unwrap();
    }
    store.close().await.unwrap();
}

/// Answers all requests, beginning elsewhere in each lane, so that several lanes ask for the same one.
async fn answer_all(store: Arc<Sqlite>, lane: u32) {
    for at in 0..KEYS {
        let key = (at + lane * KEYS / AT_ONCE / 4) % KEYS;
        loop {
            let ask = ClaimRequest {
                print: RequestFingerprint { version: 1, hash: [7; 32] },
                older: Vec::new(),
                effects: Effects::Keyed,
                lease: LEASE,
                retention: Retention { answer: Duration::from_secs(86_400) },
                first_sent: None,
                skew: Duration::ZERO,
            };
            match store.claim(scope(key), ask, now()).await.unwrap() {
                LedgerClaim::Run(record) => {
                    if record.attempt == 1 && key.is_multiple_of(10) {
                        // It waits until another run has taken the request over, and then tries to end it all the
                        // same.
                        let epoch = record.epoch;
                        while store
                            .record(scope(key), now())
                            .await
                            .unwrap()
                            .is_some_and(|it| it.epoch == epoch)
                        {}
                    }
                    book(&store, key, record.epoch).await;
                }
                LedgerClaim::Say(LedgerAnswer::Replay(_)) => break,
                // The other process may die with it: then it is ours when the lease runs out.
                LedgerClaim::Say(LedgerAnswer::InFlight { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// The business writes and the end of the request, in one commit, or neither.
async fn book(store: &Sqlite, key: u32, epoch: u64) {
    let work = Box::new(move |tx: &mut dyn redrive_store::Tx| {
        let db = sqlite::connection(tx).ok_or("not in SQLite")?;
        db.execute("INSERT INTO booking (key) VALUES (?1)", [key])?;
        let reply = StoredReply { status: 201, headers: Vec::new(), body: Some(Vec::new()) };
        tx.complete(&scope(key), epoch, reply, None, now())?;
        Ok(None)
    });
    let job = TxJob { work, claim: None, time: Duration::from_secs(5), alone: false };
    match store.transact(job).await.unwrap() {
        // Aborted by the fence: another run has it, and nothing of this one is committed.
        TxOutcome::Committed { .. } | TxOutcome::Aborted(_) => {}
        other => panic!("{other:?}"),
    }
}

fn start(store_dir: &TestStore, crash: Option<&str>) -> Child {
    let mut command = this_test("one_of_two");
    command.env(PLACE, &store_dir.path).stdout(Stdio::null());
    match crash {
        Some(point) => command.env("REDRIVE_CRASH_AT", point).env(OWNS, "1"),
        None => command.env_remove("REDRIVE_CRASH_AT").env_remove(OWNS),
    };
    command.spawn().unwrap()
}

#[tokio::test]
async fn a_request_runs_once_in_two_processes_of_which_the_owner_dies() {
    for point in
        ["after-begin:30", "after-work:20", "before-commit:25", "after-commit:20", "before-answer:30"]
    {
        let store_dir = TestStore::new();
        let store = store_dir.open().await;
        store_dir.raw().execute_batch("CREATE TABLE booking (key INTEGER)").unwrap();
        let (mut owner, mut other) = (start(&store_dir, Some(point)), start(&store_dir, None));
        let (owner, other) = (owner.wait().unwrap(), other.wait().unwrap());
        assert_eq!(owner.signal(), Some(9), "{point}: {owner}");
        assert!(other.success(), "{point}: {other}");

        let count = |sql: &str| store_dir.raw().query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap();
        assert_eq!(count("SELECT count(DISTINCT key) FROM booking"), KEYS, "{point}");
        assert_eq!(count("SELECT count(*) FROM booking"), KEYS, "{point}: some are there twice");
        let limit = usize::try_from(KEYS).unwrap() + 1;
        let records =
            store.records(LedgerQuery { limit, ..LedgerQuery::default() }, now()).await.unwrap().records;
        let completed = records.iter().filter(|(_, record)| record.phase.as_str() == "completed").count();
        assert_eq!((records.len(), completed), (limit - 1, limit - 1), "{point}");
        assert!(store.take(0, now()).await.unwrap().unclean, "{point}: it can be owned again");
        store.close().await.unwrap();
    }
}
