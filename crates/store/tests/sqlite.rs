//! The store in a SQLite file keeps every guarantee.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::PathBuf;
use std::sync::Arc;

use redrive_store::sqlite::{self, SqliteSettings};
use redrive_store::{Sqlite, Store, Tx};
use redrive_testkit::conformance::Subject;
use rusqlite::Connection;

struct InFile {
    store: Arc<Sqlite>,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl InFile {
    fn open(folder: tempfile::TempDir) -> Self {
        let path = folder.path().join("store.db");
        let mut settings = SqliteSettings::default();
        settings.disk_least = 0;
        Self { store: Arc::new(Sqlite::open(&path, settings).unwrap()), path, _folder: folder }
    }
}

impl Subject for InFile {
    async fn fresh() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let raw = Connection::open(folder.path().join("store.db")).unwrap();
        raw.execute_batch("CREATE TABLE effect (name TEXT)").unwrap();
        drop(raw);
        Self::open(folder)
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as _
    }

    /// Opens a copy of the files as they are: what a process that dies leaves behind.
    async fn crash_and_reopen(self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for ending in ["", "-wal", "-notes"] {
            let name = format!("store.db{ending}");
            let from = self.path.with_file_name(&name);
            if from.exists() {
                std::fs::copy(from, folder.path().join(name)).unwrap();
            }
        }
        Self::open(folder)
    }

    fn effect(tx: &mut dyn Tx, name: &str) {
        sqlite::connection(tx).unwrap().execute("INSERT INTO effect VALUES (?1)", [name]).unwrap();
    }

    async fn effects(&self) -> usize {
        let raw = Connection::open(&self.path).unwrap();
        let effects: u32 = raw.query_row("SELECT count(*) FROM effect", [], |row| row.get(0)).unwrap();
        effects as usize
    }
}

redrive_testkit::conformance_tests!(InFile);
