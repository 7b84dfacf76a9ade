//! A store with everything in it is moved, and is the same at its target.
#![cfg(all(feature = "postgres", feature = "sqlite", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redrive_store::moving::{MoveControl, MoveError, MoveOptions, MoveProgress, MoveStep, StoreLocation};
use redrive_store::{Sqlite, sqlite};
use redrive_testkit::postgres::{Server, a_name};

mod moving_common;

use moving_common::{
    ask, copy_files, database, full_file, open_database, open_file, run, run_all, run_while, say, settings,
    why_closed,
};

fn names(path: &std::path::Path) -> Vec<String> {
    let names = std::fs::read_to_string(path.with_extension("names")).unwrap();
    names.lines().map(str::to_owned).collect()
}

#[track_caller]
fn assert_same(there: &str, here: &str) {
    for (there, here) in there.lines().zip(here.lines()) {
        assert_eq!(there, here);
    }
    assert_eq!(there.lines().count(), here.lines().count());
}

#[tokio::test]
async fn whatever_can_be_asked_of_a_store_has_the_same_answer_where_it_was_moved() {
    for seed in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        let (from, asked) = full_file(path.clone(), seed).await;
        let names = names(&path);
        // A twin that stays, and goes on in its file.
        let twin = folder.path().join("twin.db");
        copy_files(&path, &twin);

        let schema = a_name("moved");
        let moved = run(&from, &database(&schema), MoveOptions::default()).await.unwrap();
        assert!(moved.tables.iter().all(|table| table.rows > 0), "a table had nothing in it: {moved:?}");
        let there = open_database(&schema).await;
        assert_same(&asked, &ask(&there, &names).await);

        let twin = open_file(&twin);
        assert_eq!(run_all(&twin).await, run_all(&there).await, "seed {seed}");
        assert_same(&ask(&twin, &names).await, &ask(&there, &names).await);
        there.close().await.unwrap();

        // And back again, into a file.
        let back = folder.path().join("back.db");
        run(&database(&schema), &StoreLocation::File(back.clone()), MoveOptions::default()).await.unwrap();
        assert_same(&ask(&twin, &names).await, &ask(&open_file(&back), &names).await);
    }
}

#[tokio::test]
async fn from_one_database_to_another_it_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let (file, asked) = full_file(path.clone(), 2).await;
    let (names, twin) = (names(&path), folder.path().join("twin.db"));
    copy_files(&path, &twin);
    let (one, two) = (a_name("moved"), a_name("moved"));
    run(&file, &database(&one), MoveOptions::default()).await.unwrap();

    // With another number of shards, and interrupted after each batch.
    let mut settings = settings(&two);
    settings.shards = 5;
    let to = StoreLocation::Database(Server::shared().url(), settings);
    let mut options = MoveOptions::default();
    options.batch_rows = 20;
    let mut stops = 0;
    let moved = loop {
        let told = |progress: &MoveProgress| {
            if progress.step == MoveStep::Copy { MoveControl::Stop } else { MoveControl::On }
        };
        match run_while(&database(&one), &to, options, told).await {
            Ok(moved) => break moved,
            Err(MoveError::Stopped) => stops += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(why_closed(&one).await.contains("it was moved, or is being moved, to postgres"));
        assert!(why_closed(&two).await.contains("is not finished"));
    };
    assert!(stops > 20 && moved.tables.iter().all(|table| table.rows > 0), "{stops}: {moved:?}");
    assert!(why_closed(&one).await.contains(&format!("schema {two}")));
    let (there, twin) = (open_database(&two).await, open_file(&twin));
    assert_eq!(there.shards(), 5);
    assert_same(&asked, &ask(&there, &names).await);
    assert_eq!(run_all(&twin).await, run_all(&there).await);
    assert_same(&ask(&twin, &names).await, &ask(&there, &names).await);
}

#[tokio::test]
async fn a_move_that_is_cut_off_after_any_batch_goes_on_and_ends_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let (from, asked) = full_file(path.clone(), 1).await;
    let schema = a_name("moved");
    let mut options = MoveOptions::default();
    options.batch_rows = 9;
    // Every batch is the last one of its run; then the comparison is interrupted, each time a little later.
    let (mut copied, compared) = (0, Arc::new(AtomicU64::new(0)));
    let mut patience = 1;
    let moved = loop {
        let steps = Arc::clone(&compared);
        steps.store(0, Relaxed);
        let told = move |progress: &MoveProgress| match progress.step {
            MoveStep::Copy => MoveControl::Stop,
            MoveStep::Compare if steps.fetch_add(1, Relaxed) + 1 == patience => MoveControl::Stop,
            MoveStep::Compare => MoveControl::On,
        };
        match run_while(&from, &database(&schema), options, told).await {
            Ok(moved) => break moved,
            Err(MoveError::Stopped) if compared.load(Relaxed) == 0 => copied += 1,
            Err(MoveError::Stopped) => patience += 9,
            Err(error) => panic!("{error}"),
        }
        assert!(why_closed(&schema).await.contains("run the same `redrive move` again"));
        let error = Sqlite::open(&path, sqlite::SqliteSettings::default()).unwrap_err().to_string();
        assert!(error.contains("a move of it to") && error.contains("--undo"), "{error}");
    };
    assert!(copied > 30 && patience > 40 && moved.tables.len() == 12, "{copied}, {patience}: {moved:?}");
    let there = open_database(&schema).await;
    assert_same(&asked, &ask(&there, &names(&path)).await);
}

#[tokio::test]
async fn rows_and_how_far_they_are_come_together_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let (from, asked) = full_file(path.clone(), 1).await;
    let (schema, file) = (a_name("moved"), folder.path().join("copy.db"));
    let mut options = MoveOptions::default();
    (options.keep_source, options.batch_rows) = (true, 20);
    let begin = |progress: &MoveProgress| {
        if progress.table == "streams" { MoveControl::Stop } else { MoveControl::On }
    };
    // Each of the two is refused in its turn, in the middle of a table.
    let later = "SELECT count(*) > 30 FROM";

    run_while(&from, &database(&schema), options, begin).await.unwrap_err();
    say(
        &schema,
        &format!(
            "CREATE FUNCTION redrive.broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF ({later} redrive.dedupe) THEN RAISE EXCEPTION 'broken'; END IF; RETURN NEW; END $$"
        ),
    )
    .await;
    for table in ["moving_table", "dedupe"] {
        let broken = "CREATE TRIGGER broken BEFORE INSERT OR UPDATE ON redrive.";
        say(&schema, &format!("{broken}{table} FOR EACH ROW EXECUTE FUNCTION redrive.broken()")).await;
        let error = run(&from, &database(&schema), options).await.unwrap_err();
        assert!(error.to_string().contains("broken"), "{error}");
        say(&schema, &format!("DROP TRIGGER broken ON redrive.{table}")).await;
    }
    run(&from, &database(&schema), options).await.unwrap();
    assert_same(&asked, &ask(&open_database(&schema).await, &names(&path)).await);

    let to = StoreLocation::File(file.clone());
    run_while(&from, &to, options, begin).await.unwrap_err();
    for table in ["redrive_moving_table", "redrive_dedupe"] {
        let raw = rusqlite::Connection::open(&file).unwrap();
        let broken = "BEGIN SELECT RAISE(ABORT, 'broken'); END";
        raw.execute_batch(&format!(
            "CREATE TRIGGER broken BEFORE INSERT ON {table} WHEN ({later} redrive_dedupe) {broken}"
        ))
        .unwrap();
        drop(raw);
        let error = run(&from, &to, options).await.unwrap_err();
        assert!(error.to_string().contains("broken"), "{error}");
        rusqlite::Connection::open(&file).unwrap().execute_batch("DROP TRIGGER broken").unwrap();
    }
    run(&from, &to, options).await.unwrap();
    assert_same(&asked, &ask(&open_file(&file), &names(&path)).await);
}
