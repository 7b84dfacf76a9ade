//! Two processes on one file, both with requests: a request runs in one of them, and when the owner dies in the middle of
//! a commit, the other goes on and takes over what it had.
#![cfg(all(feature = "sqlite", feature = "planted"))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redrive_core::Moment;
use redrive_core::ledger::{Answer, Ask, Claim, Effects, Print, Reply, Retention, Scope};
use redrive_store::ledger::Records;
use redrive_store::{Job, Ledger, Sqlite, Store, StoreError, Transacted, sqlite};
use redrive_testkit::crash::this_test;

mod sqlite_common;
use sqlite_common::Place;

const PLACE: &str = "REDRIVE_TEST_PLACE";
/// Set for the process that owns the file.
const OWNS: &str = "REDRIVE_TEST_OWNS";

const KEYS: u32 = 60;
/// Requests at once, in each process.
const AT_ONCE: u32 = 8;
/// What a process that died had is the other's after so long.
const LEASE: Duration = Duration::from_millis(300);

fn now() -> Moment {
    SystemTime::now().into()
}

fn scope(key: u32) -> Scope {
    Scope { tenant: "acme".to_owned(), operation: "POST /bookings".to_owned(), key: key.to_string() }
}

/// Not a test by itself: one of two processes. Ends when every request is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two() {
    let Some(path) = std::env::var_os(PLACE) else { return };
    let place = Place { path: path.into(), ..Place::new() };
    let store = place.open().await;
    if std::env::var_os(OWNS).is_some() {
        // The other may be about to open the file, and has its lock for that moment.
        while let Err(StoreError::NotOwner { pid: None, .. }) = store.take(0, now()).await {}
    }
    let lanes: Vec<_> = (0..AT_ONCE).map(|lane| tokio::spawn(answer_all(store.clone(), lane))).collect();
    for lane in lanes {
        lane.await.unwrap();
    }
    store.close().await.unwrap();
}

/// Answers all requests, beginning elsewhere in each lane, so that the same one is asked for from several sides.
async fn answer_all(store: Arc<Sqlite>, lane: u32) {
    for at in 0..KEYS {
        let key = (at + lane * KEYS / AT_ONCE / 4) % KEYS;
        loop {
            let ask = Ask {
                print: Print { version: 1, hash: [7; 32] },
                older: Vec::new(),
                effects: Effects::Keyed,
                lease: LEASE,
                retention: Retention { answer: Duration::from_secs(86_400) },
                first_sent: None,
                skew: Duration::ZERO,
            };
            match store.claim(scope(key), ask, now()).await.unwrap() {
                Claim::Run(record) => {
                    if record.attempt == 1 && key.is_multiple_of(10) {
                        // It dawdles until somebody else has the request, and then wants to end it all the same.
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
                Claim::Say(Answer::Replay(_)) => break,
                // The other may die with it: then it is ours when the lease is over.
                Claim::Say(Answer::InFlight { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// The business and the end of the request, in one commit, or neither.
async fn book(store: &Sqlite, key: u32, epoch: u64) {
    let work = Box::new(move |tx: &mut dyn redrive_store::Tx| {
        let db = sqlite::connection(tx).ok_or("not in SQLite")?;
        db.execute("INSERT INTO booking (key) VALUES (?1)", [key])?;
        let reply = Reply { status: 201, headers: Vec::new(), body: Some(Vec::new()) };
        tx.complete(&scope(key), epoch, reply, None, now())?;
        Ok(None)
    });
    let job = Job { work, claim: None, time: Duration::from_secs(5), alone: false };
    match store.transact(job).await.unwrap() {
        // Aborted by the fence: somebody else has it, and nothing of this is kept.
        Transacted::Committed { .. } | Transacted::Aborted(_) => {}
        other => panic!("{other:?}"),
    }
}

fn start(place: &Place, crash: Option<&str>) -> Child {
    let mut command = this_test("one_of_two");
    command.env(PLACE, &place.path).stdout(Stdio::null());
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
        let place = Place::new();
        let store = place.open().await;
        place.raw().execute_batch("CREATE TABLE booking (key INTEGER)").unwrap();
        let (mut owner, mut other) = (start(&place, Some(point)), start(&place, None));
        let (owner, other) = (owner.wait().unwrap(), other.wait().unwrap());
        assert_eq!(owner.signal(), Some(9), "{point}: {owner}");
        assert!(other.success(), "{point}: {other}");

        let count = |sql: &str| place.raw().query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap();
        assert_eq!(count("SELECT count(DISTINCT key) FROM booking"), KEYS, "{point}");
        assert_eq!(count("SELECT count(*) FROM booking"), KEYS, "{point}: some are there twice");
        let limit = usize::try_from(KEYS).unwrap() + 1;
        let records = store.records(Records { limit, ..Records::default() }, now()).await.unwrap().records;
        let completed = records.iter().filter(|(_, record)| record.phase.as_str() == "completed").count();
        assert_eq!((records.len(), completed), (limit - 1, limit - 1), "{point}");
        assert!(store.take(0, now()).await.unwrap().unclean, "{point}: it can be owned again");
        store.close().await.unwrap();
    }
}
