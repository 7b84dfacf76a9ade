//! `redrive move`, as it is typed. What it does to stores is tested where stores are.

use std::path::Path;
use std::time::{Duration, Instant};

use redrive::Event;
use redrive::store::postgres::sqlx::{self, AssertSqlSafe, Connection as _, PgConnection, Row as _};
use redrive::store::{DeclaredBy, NewEvent, Postgres, QueueSpec, Sqlite, postgres, prelude::*, sqlite};
use redrive_testkit::postgres::{Disk, Server};

use crate::dead_letters::{die, publish};
use crate::program::{Running, run};
use crate::test_server::TestServer;

const QUEUE: &str = "[queues.orders.pull]\n";

#[tokio::test]
async fn a_store_is_moved_told_of_and_taken_back() {
    let mut server = TestServer::open(QUEUE).await;
    publish(&server, "orders", "", None, &["a", "b"]).await;
    die(&server, "orders").await;
    publish(&server, "orders", "", None, &["c"]).await;
    let folder = server.folder.path().to_owned();
    let file = async |args: &[&str]| run(&folder, args, &[], "").await;
    let there = ["move", "--from", "sqlite:redrive.db", "--to", "sqlite:new.db"];

    let busy = file(&there).await;
    assert_eq!(busy.code, Some(1));
    assert!(
        busy.err.contains("a server runs on redrive.db (pid ") && busy.err.contains("stop it first"),
        "{busy:?}"
    );
    server.stop().await;
    let letters = file(&["dead", "ls", "--store", "sqlite:redrive.db", "--json"]).await.fine().json();

    let moved = file(&[&there[..], &["--json"]].concat()).await.fine();
    let answer = moved.json();
    let tables = answer["tables"].as_array().expect("tables");
    let rows =
        |name: &str| tables.iter().find(|table| table["table"] == name).map(|table| table["rows"].clone());
    assert_eq!(
        (rows("events"), rows("dedupe records"), rows("audit")),
        (Some(3.into()), Some(3.into()), Some(0.into()))
    );
    assert!(
        tables.iter().all(|table| table["checksum"].as_str().is_some_and(|sum| sum.len() == 32)),
        "{answer}"
    );
    assert!(moved.err.contains("both were read again and are identical"), "{moved:?}");

    let closed = file(&["dead", "ls", "--store", "sqlite:redrive.db"]).await;
    assert_eq!(closed.code, Some(1));
    assert!(closed.err.contains("it was moved to sqlite:") && closed.err.contains("new.db"), "{closed:?}");
    let same = file(&["dead", "ls", "--store", "sqlite:new.db", "--json"]).await.fine().json();
    assert_eq!(letters, same);
    let again = file(&there).await;
    assert_eq!(again.code, Some(1));
    assert!(again.err.contains("was already moved to"), "{again:?}");

    let undone = file(&["move", "--undo", "--from", "sqlite:redrive.db"]).await.fine();
    assert!(
        undone.out.contains("The store can be used again.") && undone.out.contains("new.db"),
        "{undone:?}"
    );
    file(&["dead", "ls", "--store", "sqlite:redrive.db"]).await.fine();
    let nothing = file(&["move", "--undo", "--from", "sqlite:redrive.db"]).await.fine();
    assert_eq!(nothing.out, "The store was not moved.\n");
    let full = file(&there).await;
    assert!(full.code == Some(1) && full.err.contains("is not empty"), "{full:?}");
}

#[tokio::test]
async fn what_cannot_be_moved_is_told_with_what_to_do_and_without_passwords() {
    let mut server = TestServer::open(QUEUE).await;
    server.stop().await;
    let from = ["move", "--from", "sqlite:redrive.db", "--to"];
    for (to, told) in [
        ("memory:", "a store in memory cannot be moved"),
        ("orders.db", "write sqlite:FILE or postgres://"),
        ("postgres:hush", "write sqlite:FILE or postgres://"),
        ("postgres://ann:hush@127.0.0.1:1/shop", "it cannot be reached"),
        ("postgres://ann:hush@127.0.0.1:noport/shop", "not that of a PostgreSQL database"),
        ("sqlite:nowhere/new.db", "there is no folder nowhere; create it first"),
    ] {
        let said = run(server.folder.path(), &[&from[..], &[to]].concat(), &[], "").await;
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.err.contains(told) && !said.err.contains("hush") && said.out.is_empty(), "{said:?}");
    }
    let flags = run(server.folder.path(), &["move", "--from", "sqlite:redrive.db"], &[], "").await;
    assert_eq!(flags.code, Some(2));
    // Nothing came of any of it.
    run(server.folder.path(), &["dead", "ls", "--store", "sqlite:redrive.db"], &[], "").await.fine();
}

const PATIENCE: Duration = Duration::from_secs(60);
/// How many events are moved: three batches.
const EVENTS: usize = 2500;

/// A file with some events in it.
async fn file_with_events(path: &Path) {
    let store = Sqlite::open(path, sqlite::SqliteSettings::default()).expect("a file");
    let orders = QueueSpec { name: "orders".to_owned(), ..QueueSpec::default() };
    store.declare(orders, DeclaredBy::Runner).await.expect("a queue");
    let event = |n: usize| NewEvent::at(Event::new("orders", n.to_string()), redrive::Moment::default());
    store.publish((0..EVENTS).map(event).collect()).await.expect("events");
    store.close().await.expect("a clean end");
}

async fn number(conn: &mut PgConnection, sql: &str) -> i64 {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_one(conn).await.expect("a number").get(0)
}

async fn until(conn: &mut PgConnection, sql: &str, is: i64) {
    let began = Instant::now();
    while number(conn, sql).await != is {
        assert!(began.elapsed() < PATIENCE, "it never is {is}: {sql}");
        tokio::task::yield_now().await;
    }
}

/// Another transaction blocks the first batch of receipts, so that it is in progress when Ctrl-C arrives.
#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_lets_a_batch_come_to_its_end_and_says_how_to_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    file_with_events(&folder.path().join("redrive.db")).await;
    let server = Server::start(Disk::Fast).expect("a server");
    let url = server.url();
    let empty = Postgres::open(&url, postgres::PostgresSettings::default()).await.expect("a database");
    empty.close().await.expect("a clean end");
    let mut conn = PgConnection::connect(&url).await.expect("a connection");
    let hold = "CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS \
                $$ BEGIN PERFORM pg_advisory_xact_lock(17); RETURN NULL; END $$; \
                CREATE TRIGGER hold BEFORE INSERT ON redrive.dedupe FOR EACH STATEMENT EXECUTE FUNCTION public.hold(); \
                SELECT pg_advisory_lock(17)";
    sqlx::raw_sql(hold).execute(&mut conn).await.expect("it is held");
    let (waiting, moving, receipts, release) = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()",
        "SELECT count(*) FROM redrive.dedupe",
        "SELECT pg_advisory_unlock(17)::int::bigint",
    );
    let there = ["move", "--from", "sqlite:redrive.db", "--to", url.as_str()];
    let start = || Running::start(folder.path(), &there, &[]);

    // The second one does not wait for anything.
    let mut running = start();
    until(&mut conn, waiting, 1).await;
    running.interrupt();
    tokio::task::block_in_place(|| running.hear("Ctrl-C again to stop at once"));
    running.interrupt();
    let ended = tokio::task::block_in_place(|| running.end());
    assert_eq!((ended.code, ended.out.as_str()), (Some(130), ""), "{ended:?}");
    assert_eq!(number(&mut conn, release).await, 1);
    until(&mut conn, moving, 0).await;
    let begun = number(&mut conn, receipts).await;
    assert!(begun == 0 || begun == 1000, "a batch is there or not: {begun}");

    // The first one waits for the batch that is under way.
    assert_eq!(number(&mut conn, "SELECT 1::bigint FROM pg_advisory_lock(17)").await, 1);
    let mut running = start();
    until(&mut conn, waiting, 1).await;
    running.interrupt();
    tokio::task::block_in_place(|| running.hear("Ctrl-C again to stop at once"));
    assert_eq!(number(&mut conn, release).await, 1);
    let ended = tokio::task::block_in_place(|| running.end());
    assert_eq!((ended.code, ended.out.as_str()), (Some(130), ""), "{ended:?}");
    assert!(ended.err.contains("run the same command to continue"), "{ended:?}");
    assert!(ended.err.contains("`redrive move --undo --from …` to abandon the move"), "{ended:?}");
    assert_eq!(number(&mut conn, receipts).await, begun + 1000, "it was the last one");

    // Given up, it goes on no more, but may start over.
    let file = async |args: &[&str]| run(folder.path(), args, &[], "").await;
    file(&["move", "--undo", "--from", "sqlite:redrive.db"]).await.fine();
    let given_up = file(&there).await;
    assert!(given_up.code == Some(1) && given_up.err.contains("`--start-over` empties"), "{given_up:?}");
    let moved = file(&[&there[..], &["--start-over", "--json"]].concat()).await.fine().json();
    let receipts =
        moved["tables"].as_array().into_iter().flatten().find(|is| is["table"] == "dedupe records");
    assert_eq!(receipts.map(|table| table["rows"].clone()), Some(EVENTS.into()), "{moved:#}");
    let wrong = file(&["move", "--undo", "--start-over", "--from", "sqlite:redrive.db"]).await;
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
}
