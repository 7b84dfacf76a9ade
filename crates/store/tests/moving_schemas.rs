//! Every column of a store is moved, or known not to be: a new column cannot be forgotten.
#![cfg(all(feature = "postgres", feature = "sqlite", unix))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;

use redrive_store::moving;
use redrive_store::postgres::sqlx::Row as _;
use redrive_testkit::postgres::a_name;

mod moving_common;

use moving_common::{open_database, open_file, say};

/// Tables that are not moved row by row, and why.
const LEFT: [(&str, &str); 12] = [
    ("redrive_meta", "one row of counters: carried over by themselves, and the life is another"),
    ("redrive_fresh", "events; read together with those that are tracked"),
    ("redrive_stream.next", "a counter"),
    ("redrive_tracked.stream", "in the seq"),
    ("redrive_tracked.flow", "follows from attempts and mode"),
    ("meta", "as in SQLite"),
    ("shard", "the life is another"),
    ("node", "who runs on the source is not there any more"),
    ("note", "carried over by itself"),
    ("commit_id", "of no use once a commit was answered"),
    ("fresh", "events; read together with those that are tracked"),
    ("tracked.stream tracked.shard tracked.stamp tracked.flow", "worked out anew"),
];

fn is_left(table: &str, column: &str) -> bool {
    let name = format!("{table}.{column}");
    LEFT.iter().any(|(left, _)| left.split(' ').any(|left| left == table || left == name))
}

#[test]
fn every_column_of_a_file_is_moved_or_known_not_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    drop(open_file(&path));
    let raw = rusqlite::Connection::open(&path).unwrap();
    let mut select = raw
        .prepare(
            "SELECT t.name, c.name FROM sqlite_schema t, pragma_table_info(t.name) c WHERE t.type = 'table' \
             AND t.name NOT LIKE 'sqlite%'",
        )
        .unwrap();
    let found: BTreeSet<(String, String)> =
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect();
    let known = moving::known();
    let moved = known.iter().flat_map(|(table, _, columns)| columns.iter().map(|column| (*table, *column)));
    check(&found, moved.collect());
}

#[tokio::test]
async fn every_column_of_a_database_is_moved_or_known_not_to_be() {
    let schema = a_name("schemas");
    open_database(&schema).await.close().await.unwrap();
    let select = format!(
        "SELECT table_name::text, column_name::text FROM information_schema.columns WHERE table_schema = '{schema}'"
    );
    let found: BTreeSet<(String, String)> =
        say(&schema, &select).await.iter().map(|row| (row.get(0), row.get(1))).collect();
    let known = moving::known();
    let moved = known.iter().flat_map(|(_, table, columns)| columns.iter().map(|column| (*table, *column)));
    check(&found, moved.collect());
}

fn check(found: &BTreeSet<(String, String)>, moved: BTreeSet<(&str, &str)>) {
    assert!(found.len() > 100);
    for (table, column) in found {
        let is_moved = moved.contains(&(table.as_str(), column.as_str()));
        assert!(is_moved != is_left(table, column), "{table}.{column} is moved: {is_moved}");
    }
    for (table, column) in moved {
        assert!(found.contains(&(table.to_owned(), column.to_owned())), "there is no {table}.{column}");
    }
}
