//! What a move refuses, and what it leaves behind: one store that can be used, never two and never none.
#![cfg(all(feature = "postgres", feature = "sqlite", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::Path;

use redrive_store::moving::{self, Go, MoveError, Options, Place, Progress, Step};
use redrive_store::postgres::sqlx::Row as _;
use redrive_store::{By, Query, QueueSpec, Sqlite, sqlite};
use redrive_testkit::postgres::{Server, a_name};
use rusqlite::Connection;

mod moving_common;

use moving_common::{
    database, file_with, full_file, open_database, open_file, publish, run, run_while, say, take, why_closed,
};

fn file(folder: &tempfile::TempDir) -> std::path::PathBuf {
    folder.path().join("store.db")
}

/// A file with one event in it, closed.
async fn small_file(path: &Path) -> Place {
    file_with(path, 1).await
}

fn why_file_closed(path: &Path) -> String {
    Sqlite::open(path, sqlite::Settings::default()).unwrap_err().to_string()
}

fn stop_before_comparing(progress: &Progress) -> Go {
    if progress.step == Step::Compare { Go::Stop } else { Go::On }
}

#[tokio::test]
async fn a_store_on_which_a_server_runs_is_not_moved() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let from = small_file(&path).await;
    let schema = a_name("refused");
    let running = open_file(&path);
    take(&running).await;
    let error = run(&from, &database(&schema), Options::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Refused(why) if why.contains("a server runs on")), "{error}");
    // It goes on as if nothing had been.
    publish(&*running, "2").await.unwrap();
    running.close().await.unwrap();
    drop(running);
    run(&from, &database(&schema), Options::default()).await.unwrap();

    let running = open_database(&schema).await;
    let to = Place::File(folder.path().join("back.db"));
    let error = run(&database(&schema), &to, Options::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Refused(why) if why.contains("a server runs on")), "{error}");
    publish(&*running, "3").await.unwrap();
    running.close().await.unwrap();
    let moved = run(&database(&schema), &to, Options::default()).await.unwrap();
    assert_eq!(moved.tables.iter().find(|table| table.table == "events").unwrap().rows, 3);
}

#[tokio::test]
async fn a_target_that_is_in_use_or_has_something_in_it_is_refused_and_the_source_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let from = small_file(&path).await;
    let schema = a_name("refused");
    let there = open_database(&schema).await;
    let error = run(&from, &database(&schema), Options::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Refused(why) if why.contains("a server runs on")), "{error}");
    there.declare(QueueSpec { name: "mine".to_owned(), ..QueueSpec::default() }, By::Runner).await.unwrap();
    there.close().await.unwrap();
    let error = run(&from, &database(&schema), Options::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Refused(why) if why.contains("is not empty")), "{error}");
    open_database(&schema).await.close().await.unwrap();

    let error = run(&from, &from, Options::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Refused(why) if why.contains("a server runs on")), "{error}");
    publish(&*open_file(&path), "2").await.unwrap();
    let nobody = Place::File(folder.path().join("nowhere.db"));
    let error = run(&nobody, &database(&schema), Options::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Refused(why) if why.contains("there is no file")), "{error}");
}

#[tokio::test]
async fn a_target_of_another_move_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("one.db"), folder.path().join("two.db"));
    let (first, second) = (small_file(&one).await, small_file(&two).await);
    let (schema, other) = (a_name("refused"), a_name("refused"));
    let stopped = run_while(&first, &database(&schema), Options::default(), |_| Go::Stop).await;
    assert!(matches!(stopped, Err(MoveError::Stopped)));
    let error = run(&second, &database(&schema), Options::default()).await.unwrap_err();
    assert!(
        matches!(&error, MoveError::Refused(why) if why.contains("given up or is another one")),
        "{error}"
    );
    open_file(&two).close().await.unwrap();
    let error = run(&first, &database(&other), Options::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Refused(why) if why.contains("this is another place")), "{error}");

    // Given up, the source is as it was, and what was begun is nobody's.
    let (given_up, place) = (first.clone(), format!("schema {schema}"));
    let was = tokio::task::spawn_blocking(move || moving::undo(&given_up)).await.unwrap().unwrap();
    assert!(was.unwrap().contains(&place));
    publish(&*open_file(&one), "2").await.unwrap();
    let error = run(&first, &database(&schema), Options::default()).await.unwrap_err();
    assert!(
        matches!(&error, MoveError::Refused(why) if why.contains("given up or is another one")),
        "{error}"
    );
    run(&first, &database(&other), Options::default()).await.unwrap();
}

#[tokio::test]
async fn who_opens_what_was_moved_hears_where_it_went_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let from = small_file(&path).await;
    let schema = a_name("refused");
    let settings = moving_common::settings(&schema);
    let url = Server::shared().url().replace("redrive@", "redrive:hush@");
    let to = Place::Database(url, settings.clone());
    // Those that publish have it open all the time.
    let mut guest = sqlite::Settings::default();
    guest.role = sqlite::Role::Guest;
    let guest = Sqlite::open(&path, guest).unwrap();
    publish(&guest, "2").await.unwrap();
    let moved = run(&from, &to, Options::default()).await.unwrap();
    let said = [why_file_closed(&path), publish(&guest, "3").await.unwrap_err()];
    for said in said.iter().chain([&format!("{moved:?} {to:?}")]) {
        assert!(said.contains(&format!("schema {schema}")) && !said.contains("hush"), "{said}");
    }
    assert!(said[0].contains("it was moved to") && said[0].contains("--undo"), "{said:?}");
    let again = run(&from, &to, Options::default()).await.unwrap_err();
    assert!(matches!(&again, MoveError::Refused(why) if why.contains("was moved to")), "{again}");

    // A database, too; and whoever writes to its tables past everything.
    let back = Place::File(folder.path().join("back.db"));
    run(&to, &back, Options::default()).await.unwrap();
    let said = why_closed(&schema).await;
    assert!(said.contains("it was moved") && said.contains("back.db"), "{said}");
    let write = format!(
        "DO $$ BEGIN DELETE FROM {schema}.receipt; EXCEPTION WHEN SQLSTATE 'RDMOV' THEN \
                         RETURN; END $$"
    );
    say(&schema, &write).await;
    assert_eq!(say(&schema, "SELECT count(*) FROM redrive.receipt").await[0].get::<i64, _>(0), 2);

    // The mark comes off, and it is as it was.
    let undone = to.clone();
    tokio::task::spawn_blocking(move || moving::undo(&undone)).await.unwrap().unwrap();
    publish(&*open_database(&schema).await, "4").await.unwrap();
    drop(guest);
    let undone = from.clone();
    tokio::task::spawn_blocking(move || moving::undo(&undone)).await.unwrap().unwrap();
    let store = open_file(&path);
    take(&store).await;
    publish(&*store, "4").await.unwrap();
}

#[tokio::test]
async fn a_rehearsal_leaves_both() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let from = small_file(&path).await;
    let schema = a_name("refused");
    let mut options = Options::default();
    options.keep_source = true;
    run(&from, &database(&schema), options).await.unwrap();
    for store in [open_file(&path), open_database(&schema).await] {
        take(&store).await;
        publish(&*store, "2").await.unwrap();
    }
}

#[tokio::test]
async fn what_is_not_the_same_in_the_end_is_told_and_stays_closed() {
    let folder = tempfile::tempdir().unwrap();
    let (from, _) = full_file(file(&folder), 3).await;
    let kept = "UPDATE redrive.kept SET bytes = bytes || '\\x00'::bytea WHERE name = (SELECT min(name) FROM redrive.kept)";
    for (table, change) in [
        ("events", "UPDATE redrive.held SET due = due + 1 WHERE seq = (SELECT min(seq) FROM redrive.held)"),
        ("events", "DELETE FROM redrive.held WHERE seq = (SELECT max(seq) FROM redrive.held)"),
        (
            "receipts",
            "UPDATE redrive.receipt SET until = until + 1 WHERE id = (SELECT min(id) FROM redrive.receipt)",
        ),
        ("markers", "INSERT INTO redrive.inbox VALUES ('other.v1', 'm', 1)"),
        ("kept", kept),
        (
            "groups",
            "UPDATE redrive.tally SET title = title || ' ' WHERE cause = (SELECT min(cause) FROM redrive.tally)",
        ),
        (
            "audit",
            "INSERT INTO redrive.audit SELECT number + 1000, at, who, place, verb, target, count, note \
                   FROM redrive.audit LIMIT 1",
        ),
    ] {
        let schema = a_name("differs");
        let stopped = run_while(&from, &database(&schema), Options::default(), stop_before_comparing).await;
        assert!(matches!(stopped, Err(MoveError::Stopped)));
        // Nobody but a move can do so.
        say(&schema, &format!("SET redrive_move.is_mover = 'yes'; {change}")).await;
        let error = run(&from, &database(&schema), Options::default()).await.unwrap_err();
        assert!(
            matches!(error, MoveError::Differs { table: differs, .. } if differs == table),
            "{table}: {error}"
        );
        assert!(why_closed(&schema).await.contains("is not finished"));
        let undone = from.clone();
        tokio::task::spawn_blocking(move || moving::undo(&undone)).await.unwrap().unwrap();
    }
    run(&from, &database(&a_name("differs")), Options::default()).await.unwrap();
}

#[tokio::test]
async fn a_damaged_row_stops_a_move_or_is_taken_along_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let (from, _) = full_file(path.clone(), 3).await;
    let raw = Connection::open(&path).unwrap();
    let seq: i64 =
        raw.query_row("SELECT min(seq) FROM redrive_held WHERE state = 2", [], |row| row.get(0)).unwrap();
    raw.execute("UPDATE redrive_held SET attempts = attempts + 1 WHERE seq = ?1", [seq]).unwrap();
    let live = "SELECT min(seq) FROM redrive_live";
    raw.execute(&format!("UPDATE redrive_live SET payload = x'00' WHERE seq = ({live})"), []).unwrap();
    let live: i64 = raw.query_row(live, [], |row| row.get(0)).unwrap();
    raw.execute(
        "UPDATE redrive_receipt SET until = until + 1 WHERE id = (SELECT min(id) FROM redrive_receipt)",
        [],
    )
    .unwrap();
    raw.execute("CREATE TABLE charge (customer INTEGER)", []).unwrap();
    drop(raw);
    let schema = a_name("damaged");
    let error = run(&from, &database(&schema), Options::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Damaged { row } if row.starts_with("events row")), "{error}");
    let mut options = Options::default();
    options.even_damaged = true;
    let moved = run(&from, &database(&schema), options).await.unwrap();
    assert_eq!(moved.left, ["charge"]);
    let mut named = moved.damaged.0.clone();
    named.sort();
    assert!(moved.damaged.1 == 3 && named[2].starts_with("receipts row"), "{moved:?}");
    for seq in [seq, live] {
        assert!(named.contains(&format!("events row {seq}")), "{named:?}");
    }
    // There they are as damaged as here.
    let there = open_database(&schema).await;
    let listed = there.list(Query { limit: 1000, ..Query::default() }).await.unwrap();
    let damaged: Vec<bool> =
        [seq, live].map(|seq| listed.damaged.iter().any(|row| row.contains(&seq.to_string()))).to_vec();
    assert_eq!(damaged, [true, true], "{:?}", listed.damaged);
}

#[tokio::test]
async fn what_is_moved_is_another_life_whose_tokens_go_on_growing() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let from = small_file(&path).await;
    let store = open_file(&path);
    let before = take(&store).await.remove(0).grant;
    store.release(before).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let schema = a_name("life");
    run(&from, &database(&schema), Options::default()).await.unwrap();
    let there = open_database(&schema).await;
    let taken = take(&there).await;
    assert_eq!(taken.len(), 16);
    for taken in &taken {
        assert!(
            taken.grant.epoch > before.epoch
                && taken.grant.incarnation != before.incarnation
                && !taken.unclean
        );
    }
}
