//! A row of the caller's own SQLite file, with a version column.
//!
//! ```
//! use redrive::cas::sqlite::{SqliteVersionedRow, create};
//! use redrive::cas::{Cas, VersionColumn};
//! use redrive::rusqlite::Connection;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut file = Connection::open_in_memory()?;
//! file.execute_batch("CREATE TABLE stock (article TEXT PRIMARY KEY, pieces INTEGER, version INTEGER NOT NULL)")?;
//! create(&file)?; // `redrive_version` and `redrive_operation`, once
//! let columns = VersionColumn::new("stock", "article", "pieces", "version")?;
//! let mut row = SqliteVersionedRow::<_, i64>::new(&mut file, columns, "teapot".to_owned());
//! row.insert(7)?;
//! let sold = Cas::new("order-17").change_blocking(&mut row, |pieces| pieces - 1)?;
//! assert_eq!(sold.value, 6);
//! # Ok(())
//! # }
//! ```

use std::fmt::Display;
use std::marker::PhantomData;
use std::time::Duration;

use redrive_core::Fault;
use redrive_core::ladder::cas::{CasPromise, Versions};
use redrive_retry::cas::blocking::CasTarget;
use redrive_retry::cas::{CasFailure, CasStored};
use redrive_retry::classify;
use rusqlite::types::{FromSql, ToSql};
use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use super::VersionColumn;

/// The version that this transaction took from the counter.
const NEXT: &str = "(SELECT last FROM redrive_version)";

const CREATE: &str = "CREATE TABLE IF NOT EXISTS redrive_version (last INTEGER NOT NULL);
INSERT INTO redrive_version (last) SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM redrive_version);
CREATE TABLE IF NOT EXISTS redrive_operation (
  target TEXT NOT NULL, id TEXT NOT NULL, at INTEGER NOT NULL DEFAULT (unixepoch()),
  PRIMARY KEY (target, id)
) WITHOUT ROWID";

/// How many operations one call of [`forget`] deletes at most.
const FORGET_MAX: i64 = 10_000;

/// Creates the counter of versions and the table of operations, where they are missing.
///
/// # Errors
/// If SQLite refuses it.
pub fn create(file: &Connection) -> rusqlite::Result<()> {
    file.execute_batch(CREATE)
}

/// Forgets operations that are older than `age`, a bounded number; returns how many. Keep them for longer than any
/// caller repeats one.
///
/// # Errors
/// If SQLite refuses it.
pub fn forget(file: &Connection, age: Duration) -> rusqlite::Result<usize> {
    let old = "DELETE FROM redrive_operation WHERE (target, id) IN \
               (SELECT target, id FROM redrive_operation WHERE at < unixepoch() - ?1 LIMIT ?2)";
    let secs = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
    file.execute(old, params![secs, FORGET_MAX])
}

/// One row with a version.
#[derive(Debug)]
pub struct SqliteVersionedRow<'c, K, V> {
    file: &'c mut Connection,
    columns: VersionColumn,
    key: K,
    remembers: bool,
    versions: Versions,
    value: PhantomData<fn() -> V>,
}

impl<'c, K: ToSql + Display, V: ToSql> SqliteVersionedRow<'c, K, V> {
    /// The row with this key. It remembers operations, and its versions are monotonic.
    #[must_use]
    pub const fn new(file: &'c mut Connection, columns: VersionColumn, key: K) -> Self {
        let (remembers, versions) = (true, Versions::Monotonic);
        Self { file, columns, key, remembers, versions, value: PhantomData }
    }

    /// Remembers no operation: a conflict after a lost answer is unknown.
    #[must_use]
    pub const fn forgetting(mut self) -> Self {
        self.remembers = false;
        self
    }

    /// Other writers give versions of their own, which may return.
    #[must_use]
    pub const fn opaque(mut self) -> Self {
        self.versions = Versions::Opaque;
        self
    }

    /// Inserts the row with a version that none had before, not even an earlier row of this key.
    ///
    /// # Errors
    /// If SQLite refuses it.
    pub fn insert(&mut self, value: V) -> rusqlite::Result<()> {
        let tx = self.file.transaction_with_behavior(TransactionBehavior::Immediate)?;
        next(&tx)?;
        tx.execute(&self.columns.insert(NEXT), params![self.key, value])?;
        tx.commit()
    }

    fn stored(&mut self, seen: i64, value: &V, operation: &str) -> rusqlite::Result<CasStored> {
        let tx = self.file.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if self.remembers {
            let remember =
                "INSERT INTO redrive_operation (target, id) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
            let target = format!("{}/{}", self.columns.table, self.key);
            if tx.execute(remember, params![target, operation])? == 0 {
                return Ok(CasStored::Already);
            }
        }
        next(&tx)?;
        if tx.execute(&self.columns.store(NEXT), params![value, self.key, seen])? == 0 {
            return Ok(CasStored::Conflict);
        }
        tx.commit()?;
        Ok(CasStored::Written)
    }
}

/// Takes the next version from the counter.
fn next(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    tx.execute("UPDATE redrive_version SET last = last + 1", []).map(drop)
}

impl<K: ToSql + Display, V: ToSql + FromSql + Clone> CasTarget for SqliteVersionedRow<'_, K, V> {
    type Value = V;
    type Version = i64;
    type Error = rusqlite::Error;

    fn promise(&self) -> CasPromise {
        CasPromise { versions: self.versions, remembers: self.remembers }
    }

    fn load(&mut self) -> Result<(V, i64), CasFailure<rusqlite::Error>> {
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        self.file.query_row(&self.columns.load(), [&self.key], read).map_err(failure)
    }

    fn store(
        &mut self,
        seen: &i64,
        value: &V,
        operation: &str,
    ) -> Result<CasStored, CasFailure<rusqlite::Error>> {
        self.stored(*seen, value, operation).map_err(failure)
    }
}

fn failure(error: rusqlite::Error) -> CasFailure<rusqlite::Error> {
    let fault = classify::sqlite(&error).unwrap_or(Fault::permanent());
    CasFailure { error, fault }
}
