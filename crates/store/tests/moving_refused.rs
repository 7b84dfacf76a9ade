//! Refused moves, and their remains: always one usable store, never two and never none.
#![cfg(all(feature = "postgres", feature = "sqlite", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::Path;

use redrive_store::moving::{
    self, MoveControl, MoveError, MoveOptions, MoveProgress, MoveStep, StoreLocation,
};
use redrive_store::postgres::sqlx::Row as _;
use redrive_store::{DeclaredBy, EventQuery, QueueSpec, Sqlite, sqlite};
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
async fn small_file(path: &Path) -> StoreLocation {
    file_with(path, 1).await
}

fn why_file_closed(path: &Path) -> String {
    Sqlite::open(path, sqlite::SqliteSettings::default()).unwrap_err().to_string()
}

fn stop_before_comparing(progress: &MoveProgress) -> MoveControl {
    if progress.step == MoveStep::Compare { MoveControl::Stop } else { MoveControl::On }
}

#[tokio::test]
async fn a_store_on_which_a_server_runs_is_not_moved() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let from = small_file(&path).await;
    let schema = a_name("refused");
    let running = open_file(&path);
    take(&running).await;
    let error = run(&from, &database(&schema), MoveOptions::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Refused(why) if why.contains("a server runs on")), "{error}");
    // It goes on as if nothing had happened.
    publish(&*running, "2").await.unwrap();
    running.close().await.unwrap();
    drop(running);
    run(&from, &database(&schema), MoveOptions::default()).await.unwrap();

    let running = open_database(&schema).await;
    let to = StoreLocation::File(folder.path().join("back.db"));
    let error = run(&database(&schema), &to, MoveOptions::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Refused(why) if why.contains("a server runs on")), "{error}");
    publish(&*running, "3").await.unwrap();
    running.close().await.unwrap();
    let moved = run(&database(&schema), &to, MoveOptions::default()).await.unwrap();
    assert_eq!(moved.tables.iter().find(|table| table.table == "events").unwrap().rows, 3);
}

#[tokio::test]
async fn a_target_that_is_in_use_or_has_something_in_it_is_refused_and_the_source_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let from = small_file(&path).await;
    let schema = a_name("refused");
    let there = open_database(&schema).await;
    let error = run(&from, &database(&schema), MoveOptions::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Refused(why) if why.contains("a server runs on")), "{error}");
    there
        .declare(QueueSpec { name: "mine".to_owned(), ..QueueSpec::default() }, DeclaredBy::Runner)
        .await
        .unwrap();
    there.close().await.unwrap();
    let error = run(&from, &database(&schema), MoveOptions::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Refused(why) if why.contains("is not empty")), "{error}");
    open_database(&schema).await.close().await.unwrap();

    let error = run(&from, &from, MoveOptions::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Refused(why) if why.contains("a server runs on")), "{error}");
    publish(&*open_file(&path), "2").await.unwrap();
    let nobody = StoreLocation::File(folder.path().join("nowhere.db"));
    let error = run(&nobody, &database(&schema), MoveOptions::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Refused(why) if why.contains("there is no file")), "{error}");
}

#[tokio::test]
async fn a_target_of_another_move_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("one.db"), folder.path().join("two.db"));
    let (first, second) = (small_file(&one).await, small_file(&two).await);
    let (schema, other) = (a_name("refused"), a_name("refused"));
    let stopped = run_while(&first, &database(&schema), MoveOptions::default(), |_| MoveControl::Stop).await;
    assert!(matches!(stopped, Err(MoveError::Stopped)));
    let error = run(&second, &database(&schema), MoveOptions::default()).await.unwrap_err();
    assert!(
        matches!(&error, MoveError::Refused(why) if why.contains("abandoned or is another one")),
        "{error}"
    );
    open_file(&two).close().await.unwrap();
    let error = run(&first, &database(&other), MoveOptions::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Refused(why) if why.contains("which is another target")), "{error}");

    // After it is abandoned, the source is as it was, and the unfinished target belongs to no source.
    let (given_up, place) = (first.clone(), format!("schema {schema}"));
    let was = tokio::task::spawn_blocking(move || moving::undo(&given_up)).await.unwrap().unwrap();
    assert!(was.unwrap().contains(&place));
    publish(&*open_file(&one), "2").await.unwrap();
    let error = run(&first, &database(&schema), MoveOptions::default()).await.unwrap_err();
    assert!(
        matches!(&error, MoveError::Refused(why) if why.contains("abandoned or is another one")),
        "{error}"
    );
    run(&first, &database(&other), MoveOptions::default()).await.unwrap();
}

#[tokio::test]
async fn who_opens_what_was_moved_hears_where_it_went_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let from = small_file(&path).await;
    let schema = a_name("refused");
    let settings = moving_common::settings(&schema);
    let url = Server::shared().url().replace("redrive@", "redrive:hush@");
    let to = StoreLocation::Database(url, settings.clone());
    // Publishers have it open all the time.
    let mut guest = sqlite::SqliteSettings::default();
    guest.role = sqlite::FileRole::Guest;
    let guest = Sqlite::open(&path, guest).unwrap();
    publish(&guest, "2").await.unwrap();
    let moved = run(&from, &to, MoveOptions::default()).await.unwrap();
    let said = [why_file_closed(&path), publish(&guest, "3").await.unwrap_err()];
    for said in said.iter().chain([&format!("{moved:?} {to:?}")]) {
        assert!(said.contains(&format!("schema {schema}")) && !said.contains("hush"), "{said}");
    }
    assert!(said[0].contains("it was moved to") && said[0].contains("--undo"), "{said:?}");
    let again = run(&from, &to, MoveOptions::default()).await.unwrap_err();
    assert!(matches!(&again, MoveError::Refused(why) if why.contains("was already moved to")), "{again}");

    // A database, too; and a client that writes to its tables directly.
    let back = StoreLocation::File(folder.path().join("back.db"));
    run(&to, &back, MoveOptions::default()).await.unwrap();
    let said = why_closed(&schema).await;
    assert!(said.contains("it was moved") && said.contains("back.db"), "{said}");
    let write = format!(
        "DO $$ BEGIN DELETE FROM {schema}.dedupe; EXCEPTION WHEN SQLSTATE 'RDMOV' THEN \
                         RETURN; END $$"
    );
    say(&schema, &write).await;
    assert_eq!(say(&schema, "SELECT count(*) FROM redrive.dedupe").await[0].get::<i64, _>(0), 2);

    // The mark is removed, and the source is as it was.
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
    let mut options = MoveOptions::default();
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
        (
            "events",
            "UPDATE redrive.tracked SET due = due + 1 WHERE seq = (SELECT min(seq) FROM redrive.tracked)",
        ),
        ("events", "DELETE FROM redrive.tracked WHERE seq = (SELECT max(seq) FROM redrive.tracked)"),
        (
            "dedupe records",
            "UPDATE redrive.dedupe SET until = until + 1 WHERE id = (SELECT min(id) FROM redrive.dedupe)",
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
        let stopped =
            run_while(&from, &database(&schema), MoveOptions::default(), stop_before_comparing).await;
        assert!(matches!(stopped, Err(MoveError::Stopped)));
        // Only a move can do so.
        say(&schema, &format!("SET redrive_move.is_mover = 'yes'; {change}")).await;
        let error = run(&from, &database(&schema), MoveOptions::default()).await.unwrap_err();
        assert!(
            matches!(error, MoveError::Differs { table: differs, .. } if differs == table),
            "{table}: {error}"
        );
        assert!(why_closed(&schema).await.contains("is not finished"));
        let undone = from.clone();
        tokio::task::spawn_blocking(move || moving::undo(&undone)).await.unwrap().unwrap();
    }
    run(&from, &database(&a_name("differs")), MoveOptions::default()).await.unwrap();
}

#[tokio::test]
async fn a_damaged_row_stops_a_move_or_is_taken_along_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let (from, _) = full_file(path.clone(), 3).await;
    let raw = Connection::open(&path).unwrap();
    let seq: i64 =
        raw.query_row("SELECT min(seq) FROM redrive_tracked WHERE state = 2", [], |row| row.get(0)).unwrap();
    raw.execute("UPDATE redrive_tracked SET attempts = attempts + 1 WHERE seq = ?1", [seq]).unwrap();
    let live = "SELECT min(seq) FROM redrive_fresh";
    raw.execute(&format!("UPDATE redrive_fresh SET payload = x'00' WHERE seq = ({live})"), []).unwrap();
    let live: i64 = raw.query_row(live, [], |row| row.get(0)).unwrap();
    raw.execute(
        "UPDATE redrive_dedupe SET until = until + 1 WHERE id = (SELECT min(id) FROM redrive_dedupe)",
        [],
    )
    .unwrap();
    raw.execute("CREATE TABLE charge (customer INTEGER)", []).unwrap();
    drop(raw);
    let schema = a_name("damaged");
    let error = run(&from, &database(&schema), MoveOptions::default()).await.unwrap_err();
    assert!(matches!(&error, MoveError::Damaged { row } if row.starts_with("events row")), "{error}");
    let mut options = MoveOptions::default();
    options.even_damaged = true;
    let moved = run(&from, &database(&schema), options).await.unwrap();
    assert_eq!(moved.left, ["charge"]);
    let mut named = moved.damaged.0.clone();
    named.sort();
    assert!(moved.damaged.1 == 3 && named[0].starts_with("dedupe records row"), "{moved:?}");
    for seq in [seq, live] {
        assert!(named.contains(&format!("events row {seq}")), "{named:?}");
    }
    // At the target they are as damaged as here.
    let there = open_database(&schema).await;
    let listed = there.list(EventQuery { limit: 1000, ..EventQuery::default() }).await.unwrap();
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
    let before = take(&store).await.remove(0).token;
    store.release(before).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let schema = a_name("life");
    run(&from, &database(&schema), MoveOptions::default()).await.unwrap();
    let there = open_database(&schema).await;
    let taken = take(&there).await;
    assert_eq!(taken.len(), 16);
    for taken in &taken {
        assert!(
            taken.token.epoch > before.epoch
                && taken.token.incarnation != before.incarnation
                && !taken.unclean
        );
    }
}
