//! A target with an unfinished move: no other process writes to it, and an abandoned move can start over.
#![cfg(all(feature = "postgres", feature = "sqlite", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use redrive_store::moving::{self, MoveControl, MoveError, MoveOptions, MoveProgress, StoreLocation};
use redrive_store::postgres::sqlx::{self, AssertSqlSafe, Connection as _, PgConnection, Row as _};
use redrive_store::{DeclaredBy, Postgres, QueueSpec, Sqlite, prelude::*, sqlite};
use redrive_testkit::postgres::{Server, a_name};

mod moving_common;

use moving_common::{
    ask, database, file_with, open_database, open_file, publish, run, run_while, say, settings, why_closed,
};

const UNFINISHED: &str = "into it is not finished; run the same `redrive move` again to continue";
/// How many events a store has here.
const EVENTS: usize = 7;

/// A file with some events in it.
async fn small_file(path: &Path) -> StoreLocation {
    file_with(path, EVENTS).await
}

/// Some events at a time.
fn few() -> MoveOptions {
    let mut options = MoveOptions::default();
    options.batch_rows = 3;
    options
}

fn starting_over() -> MoveOptions {
    let mut options = few();
    options.start_over = true;
    options
}

/// Begins a move, which is interrupted in the middle of its events.
async fn begin(from: &StoreLocation, to: &StoreLocation) {
    let stop = |progress: &MoveProgress| {
        if progress.table == "events" { MoveControl::Stop } else { MoveControl::On }
    };
    let stopped = run_while(from, to, few(), stop).await;
    assert!(matches!(stopped, Err(MoveError::Stopped)), "{stopped:?}");
}

async fn undo(from: &StoreLocation) -> Result<Option<String>, MoveError> {
    let from = from.clone();
    tokio::task::spawn_blocking(move || moving::undo(&from)).await.unwrap()
}

#[track_caller]
fn refused(moved: Result<moving::MoveReport, MoveError>, told: &str) {
    assert!(matches!(&moved, Err(MoveError::Refused(why)) if why.contains(told)), "{told}: {moved:?}");
}

/// How many events a store has.
async fn events(place: &StoreLocation) -> i64 {
    match place {
        StoreLocation::File(path) => {
            let raw = rusqlite::Connection::open(path).unwrap();
            raw.query_row("SELECT count(*) FROM redrive_fresh", [], |row| row.get(0)).unwrap()
        }
        StoreLocation::Database(_, settings) => {
            say(&settings.schema, "SELECT count(*) FROM redrive.fresh").await[0].get(0)
        }
        place => panic!("{place:?}"),
    }
}

#[tokio::test]
async fn nobody_publishes_into_a_database_that_a_move_is_not_finished_with() {
    let folder = tempfile::tempdir().unwrap();
    let from = small_file(&folder.path().join("store.db")).await;
    let schema = a_name("again");
    // A process has it open, and has not renewed its lease in time.
    let mut patient = settings(&schema);
    patient.lease = Duration::from_secs(600);
    let open = Postgres::open(&Server::shared().url(), patient).await.unwrap();
    say(&schema, "UPDATE redrive.node SET until = clock_timestamp() - interval '1 s'").await;
    begin(&from, &database(&schema)).await;
    assert_eq!(say(&schema, "SELECT count(*) FROM redrive.queue").await[0].get::<i64, _>(0), 1);
    let moved = events(&database(&schema)).await;

    let told = publish(&open, "mine").await.unwrap_err();
    assert!(told.contains(UNFINISHED) && told.contains("store.db"), "{told}");
    let queue = QueueSpec { name: "mine".to_owned(), ..QueueSpec::default() };
    let told = open.declare(queue, DeclaredBy::Runner).await.unwrap_err().to_string();
    assert!(told.contains(UNFINISHED), "{told}");
    let mut conn = PgConnection::connect(&Server::shared().url()).await.unwrap();
    for sql in [
        "SELECT redrive.publish('orders', 'mine')",
        "BEGIN; SELECT redrive.publish('orders', 'mine', key => 'k', delay => interval '1 h'); COMMIT",
        "DELETE FROM redrive.dedupe",
    ] {
        let sql = sql.replace("redrive.", &format!("{schema}."));
        let error = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.unwrap_err();
        let said = error.as_database_error().unwrap();
        assert!(said.code().as_deref() == Some("RDMOV") && said.message().contains(UNFINISHED), "{said}");
        sqlx::raw_sql("ROLLBACK").execute(&mut conn).await.unwrap();
    }
    assert_eq!(events(&database(&schema)).await, moved, "nothing came of it");

    run(&from, &database(&schema), few()).await.unwrap();
    publish(&open, "mine").await.unwrap();
    say(&schema, "SELECT redrive.publish('orders', 'also')").await;
    assert_eq!(events(&database(&schema)).await, i64::try_from(EVENTS).unwrap() + 2);
}

#[tokio::test]
async fn nobody_publishes_into_a_file_that_a_move_is_not_finished_with() {
    let folder = tempfile::tempdir().unwrap();
    let (path, target) = (folder.path().join("store.db"), folder.path().join("new.db"));
    let (from, to) = (small_file(&path).await, StoreLocation::File(target.clone()));
    open_file(&target).close().await.unwrap();
    // Publishers have it open all the time.
    let mut guest = sqlite::SqliteSettings::default();
    (guest.role, guest.disk_least) = (sqlite::FileRole::Guest, 0);
    let guest = Sqlite::open(&target, guest).unwrap();
    begin(&from, &to).await;
    let told = publish(&guest, "mine").await.unwrap_err();
    assert!(told.contains(UNFINISHED) && told.contains("store.db"), "{told}");
    run(&from, &to, few()).await.unwrap();
    publish(&guest, "mine").await.unwrap();
    assert_eq!(events(&to).await, i64::try_from(EVENTS).unwrap() + 1);
}

/// A publisher is in the middle of writing when the move finds the target empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_about_to_be_written_to_a_target_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let from = small_file(&path).await;
    let schema = a_name("again");
    open_database(&schema).await.close().await.unwrap();
    let mut conn = PgConnection::connect(&Server::shared().url()).await.unwrap();
    let write = format!("BEGIN; INSERT INTO {schema}.kept (name, bytes) VALUES ('mine', '')");
    sqlx::raw_sql(AssertSqlSafe(write)).execute(&mut conn).await.unwrap();
    let moving = {
        let (from, to) = (from.clone(), database(&schema));
        tokio::spawn(async move { run(&from, &to, few()).await })
    };
    let waits =
        format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{schema}.kept'::regclass");
    let began = Instant::now();
    while say(&schema, &waits).await[0].get::<i64, _>(0) == 0 {
        assert!(began.elapsed() < Duration::from_secs(60) && !moving.is_finished(), "it does not wait");
    }
    sqlx::raw_sql("COMMIT").execute(&mut conn).await.unwrap();
    refused(moving.await.unwrap(), "is not empty: it has kept");
    open_database(&schema).await.close().await.unwrap();
    publish(&*open_file(&path), "more").await.unwrap();
}

#[tokio::test]
async fn a_move_that_was_given_up_starts_over() {
    let folder = tempfile::tempdir().unwrap();
    for (n, to) in
        [database(&a_name("again")), StoreLocation::File(folder.path().join("new.db"))].iter().enumerate()
    {
        let path = folder.path().join(format!("{n}.db"));
        let from = small_file(&path).await;
        begin(&from, to).await;
        assert!(events(to).await > 0);
        // The source was used since, so the moved rows are outdated.
        undo(&from).await.unwrap();
        let store = open_file(&path);
        publish(&*store, "since").await.unwrap();
        let names = ["1", "since"].map(|id| format!("\torders\t{id}"));
        let asked = ask(&store, &names).await;
        store.close().await.unwrap();
        drop(store);
        refused(run(&from, to, few()).await, "`--start-over` empties the target");
        run(&from, to, starting_over()).await.unwrap();
        let there = match to {
            StoreLocation::File(path) => open_file(path),
            StoreLocation::Database(_, settings) => open_database(&settings.schema).await,
            place => panic!("{place:?}"),
        };
        assert_eq!(asked, ask(&there, &names).await);
        there.close().await.unwrap();
        drop(there);
        // Its audit is as immutable as any.
        if let StoreLocation::File(path) = to {
            let raw = rusqlite::Connection::open(path).unwrap();
            let triggers =
                "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger' AND name LIKE 'redrive%'";
            assert_eq!(raw.query_row(triggers, [], |row| row.get::<_, i64>(0)).unwrap(), 2);
        } else if let StoreLocation::Database(_, settings) = to {
            let enabled = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'redrive.audit'::regclass \
                           AND tgenabled = 'O' AND NOT tgisinternal";
            assert_eq!(say(&settings.schema, enabled).await[0].get::<i64, _>(0), 1);
        }
    }
}

/// In the middle of it, without abandoning it: from the beginning again.
#[tokio::test]
async fn a_move_that_is_under_way_starts_over() {
    let folder = tempfile::tempdir().unwrap();
    let from = small_file(&folder.path().join("store.db")).await;
    for to in [database(&a_name("again")), StoreLocation::File(folder.path().join("new.db"))] {
        begin(&from, &to).await;
        let mut first = None;
        let told = move |progress: &MoveProgress| {
            let first = first.get_or_insert_with(|| progress.clone());
            assert!(first.table == "queues" && first.rows == 1, "{first:?}");
            MoveControl::On
        };
        run_while(&from, &to, starting_over(), told).await.unwrap();
        assert_eq!(events(&to).await, i64::try_from(EVENTS).unwrap());
        undo(&from).await.unwrap();
    }
}

#[tokio::test]
async fn nothing_else_is_emptied() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (one, two) = (small_file(&path("one.db")).await, small_file(&path("two.db")).await);
    for (n, to) in [database(&a_name("again")), StoreLocation::File(path("new.db"))].into_iter().enumerate() {
        begin(&one, &to).await;
        let there = events(&to).await;
        assert!(there > 0);
        // It belongs to another source.
        refused(run(&two, &to, starting_over()).await, "nothing was deleted");
        // Another store is at the address of the source.
        undo(&one).await.unwrap();
        std::fs::rename(path("one.db"), path("kept.db")).unwrap();
        small_file(&path("one.db")).await;
        refused(run(&one, &to, starting_over()).await, "and not of this");
        std::fs::rename(path("kept.db"), path("one.db")).unwrap();
        // The source is being moved elsewhere.
        let elsewhere = StoreLocation::File(path(&format!("elsewhere-{n}.db")));
        begin(&one, &elsewhere).await;
        refused(run(&one, &to, starting_over()).await, "which is another target");
        undo(&one).await.unwrap();
        assert_eq!(events(&to).await, there, "all of it is still there");

        // A finished target is a store, and so is one that a user created.
        run(&one, &to, starting_over()).await.unwrap();
        undo(&one).await.unwrap();
        refused(run(&one, &to, starting_over()).await, "is not empty");
        assert_eq!(events(&to).await, i64::try_from(EVENTS).unwrap());
    }
    let own = small_file(&path("own.db")).await;
    refused(run(&one, &own, starting_over()).await, "is not empty");
    assert_eq!(events(&own).await, i64::try_from(EVENTS).unwrap());
}

#[tokio::test]
async fn half_a_store_is_not_moved_on() {
    let folder = tempfile::tempdir().unwrap();
    let from = small_file(&folder.path().join("store.db")).await;
    for (n, half) in
        [database(&a_name("again")), StoreLocation::File(folder.path().join("half.db"))].iter().enumerate()
    {
        begin(&from, half).await;
        let on = StoreLocation::File(folder.path().join(format!("on-{n}.db")));
        refused(run(half, &on, few()).await, "so the store is incomplete");
        run(&from, half, few()).await.unwrap();
        run(half, &on, few()).await.unwrap();
        undo(&from).await.unwrap();
    }
}

/// One of them is in the middle of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_moves_at_once_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = small_file(&folder.path().join("store.db")).await;
    let (one, two, other) =
        (database(&a_name("again")), database(&a_name("again")), database(&a_name("again")));
    run(&file, &one, few()).await.unwrap();
    let (tell, told) = channel();
    let (go, goes) = channel();
    let moving = {
        let (one, two) = (one.clone(), two.clone());
        tokio::spawn(async move {
            let mut once = Some((tell, goes));
            let stand = move |_: &MoveProgress| {
                if let Some((tell, goes)) = once.take() {
                    tell.send(()).unwrap();
                    goes.recv().unwrap();
                }
                MoveControl::On
            };
            run_while(&one, &two, few(), stand).await
        })
    };
    tokio::task::block_in_place(|| told.recv().unwrap());
    let busy = "another `redrive move` is running on";
    refused(run(&one, &two, few()).await, busy);
    refused(run(&one, &other, starting_over()).await, busy);
    refused(run(&two, &other, few()).await, busy);
    let undone = undo(&one).await;
    assert!(matches!(&undone, Err(MoveError::Refused(why)) if why.contains(busy)), "{undone:?}");
    go.send(()).unwrap();
    moving.await.unwrap().unwrap();
    let StoreLocation::Database(_, settings) = &one else { panic!() };
    assert!(why_closed(&settings.schema).await.contains("it was moved"));
}
