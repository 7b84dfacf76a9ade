//! `rusqlite` errors: SQLite's own codes, and what rusqlite adds around them.

use redrive_core::Fault;
use rusqlite::Error;

use super::sqlite_code;

/// Knows [`rusqlite::Error`].
///
/// | error | means |
/// |---|---|
/// | `SqliteFailure`, `SqlInputError` | what [`sqlite_code`] says of its code |
/// | parameters, path or SQL that rusqlite refuses before the statement runs | permanent, not executed |
/// | a row too few or too many, a column that does not convert: the statement has run | permanent, unknown |
/// | any other: a function, a virtual table or an extension of yours | not known |
///
/// A busy database is worth another attempt if the whole transaction is inside the closure; [`sqlite_code`] explains
/// why. SQLite's own `busy_timeout`, which rusqlite sets to 5 s by default, waits inside one attempt and is the
/// better first line against short locks, because it costs no attempt. It cannot help with a `SQLITE_BUSY_SNAPSHOT`,
/// or if waiting would be a deadlock.
///
/// ```
/// use redrive_retry::blocking::Retry;
/// use redrive_retry::{Policy, classify};
/// use rusqlite::{Connection, TransactionBehavior};
///
/// let mut database = Connection::open_in_memory()?;
/// database.execute_batch("create table counter (n integer); insert into counter values (0)")?;
///
/// let count = || {
///     let counting = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
///     counting.execute("update counter set n = n + 1", [])?;
///     counting.commit() // Dropped without it, as after an error, it is rolled back.
/// };
/// count.retry(&Policy::default()).classify(classify::sqlite).call()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn sqlite(error: &Error) -> Option<Fault> {
    match error {
        Error::SqliteFailure(error, _) | Error::SqlInputError { error, .. } => {
            sqlite_code(error.extended_code)
        }
        Error::SqliteSingleThreadedMode
        | Error::NulError(_)
        | Error::InvalidParameterName(_)
        | Error::InvalidParameterCount(..)
        | Error::InvalidPath(_)
        | Error::InvalidQuery
        | Error::InvalidDatabaseIndex(_)
        | Error::MultipleStatement
        | Error::ToSqlConversionFailure(_) => Some(Fault::permanent().not_executed()),
        Error::ExecuteReturnedResults
        | Error::QueryReturnedNoRows
        | Error::QueryReturnedMoreThanOneRow
        | Error::StatementChangedRows(_)
        | Error::FromSqlConversionFailure(..)
        | Error::IntegralValueOutOfRange(..)
        | Error::Utf8Error(..)
        | Error::InvalidColumnIndex(_)
        | Error::InvalidColumnName(_)
        | Error::InvalidColumnType(..) => Some(Fault::permanent()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use redrive_core::{Jitter, Policy, StopReason};
    use rusqlite::{Connection, OpenFlags, ffi};
    use tempfile::TempDir;

    use super::*;
    use crate::blocking::Retry;

    const AGAIN: Option<Fault> = Some(Fault::transient().not_executed());
    const REFUSED: Option<Fault> = Some(Fault::permanent().not_executed());

    /// Two connections to one file without a busy timeout, and the file.
    fn two(journal: &str) -> (Connection, Connection, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let connection = Connection::open(folder.path().join("test.db")).unwrap();
            connection.busy_timeout(Duration::ZERO).unwrap();
            connection
        };
        let (first, second) = (open(), open());
        first
            .execute_batch(&format!(
                "pragma journal_mode = {journal}; create table t (n integer primary key)"
            ))
            .unwrap();
        (first, second, folder)
    }

    fn rows(connection: &Connection) -> u32 {
        connection.query_row("select count(*) from t", [], |row| row.get(0)).unwrap()
    }

    fn code(error: &Error) -> i32 {
        match error {
            Error::SqliteFailure(error, _) | Error::SqlInputError { error, .. } => error.extended_code,
            other => panic!("not from SQLite: {other:?}"),
        }
    }

    #[test]
    fn a_database_that_another_holds_is_tried_again() {
        let (holder, waiter, _folder) = two("delete");
        holder.execute_batch("begin immediate").unwrap();
        let error = waiter.execute_batch("begin immediate").unwrap_err();
        assert_eq!(code(&error), ffi::SQLITE_BUSY);
        assert_eq!(sqlite(&error), AGAIN);
    }

    #[test]
    fn busy_at_commit_has_committed_nothing_and_keeps_the_transaction_open() {
        let (reader, writer, _folder) = two("delete");
        reader.execute_batch("begin; select * from t").unwrap();
        assert_eq!(rows(&reader), 0);
        writer.execute_batch("begin; insert into t values (1)").unwrap();
        let error = writer.execute_batch("commit").unwrap_err();
        assert_eq!(code(&error), ffi::SQLITE_BUSY);
        assert_eq!(sqlite(&error), AGAIN);
        assert!(!writer.is_autocommit(), "the transaction is still open");
        assert_eq!(rows(&reader), 0);
        reader.execute_batch("commit").unwrap();
        writer.execute_batch("commit").unwrap();
        assert_eq!(rows(&reader), 1);
    }

    #[test]
    fn a_stale_snapshot_is_cured_by_a_fresh_transaction_and_by_nothing_else() {
        let (stale, other, _folder) = two("wal");
        stale.execute_batch("begin").unwrap();
        assert_eq!(rows(&stale), 0);
        other.execute_batch("insert into t values (1)").unwrap();
        for _ in 0..2 {
            let error = stale.execute_batch("insert into t values (2)").unwrap_err();
            assert_eq!(code(&error), ffi::SQLITE_BUSY_SNAPSHOT);
            assert_eq!(sqlite(&error), AGAIN);
        }
        stale.execute_batch("rollback; begin; insert into t values (2); commit").unwrap();
        assert_eq!(rows(&other), 2);
    }

    #[test]
    fn a_table_that_the_shared_cache_has_locked_is_tried_again() {
        let name = "file:a_table_that_the_shared_cache_has_locked?mode=memory&cache=shared";
        let flags = OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_SHARED_CACHE;
        let writer = Connection::open_with_flags(name, flags).unwrap();
        let reader = Connection::open_with_flags(name, flags).unwrap();
        writer.execute_batch("create table t (n); begin; insert into t values (1)").unwrap();
        let error = reader.query_row("select n from t", [], |_| Ok(())).unwrap_err();
        assert_eq!(code(&error), ffi::SQLITE_LOCKED_SHAREDCACHE);
        assert_eq!(sqlite(&error), AGAIN);
    }

    #[test]
    fn an_interrupted_statement_is_not_repeated() {
        let connection = Connection::open_in_memory().unwrap();
        let endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select i from n";
        let mut statement = connection.prepare(endless).unwrap();
        let mut rows = statement.query([]).unwrap();
        assert!(rows.next().unwrap().is_some());
        connection.get_interrupt_handle().interrupt();
        let error = rows.next().unwrap_err();
        assert_eq!(code(&error), ffi::SQLITE_INTERRUPT);
        assert_eq!(sqlite(&error), REFUSED);
    }

    #[test]
    fn what_the_statement_itself_is_to_blame_for_is_permanent() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch("pragma max_page_count = 2; create table t (n integer primary key, b); insert into t values (1, 0)")
            .unwrap();
        for (sql, primary) in [
            ("insert into t values (1, 0)", ffi::SQLITE_CONSTRAINT),
            ("insert into t values ('one', 0)", ffi::SQLITE_MISMATCH),
            ("insert into t values (2, zeroblob(1000000))", ffi::SQLITE_FULL),
            ("insert into t values (2, zeroblob(2000000000))", ffi::SQLITE_TOOBIG),
            ("insert into nowhere values (1)", ffi::SQLITE_ERROR),
            ("insert in to t", ffi::SQLITE_ERROR),
        ] {
            let error = connection.execute(sql, []).unwrap_err();
            assert_eq!(code(&error) & 0xff, primary, "{sql}");
            assert_eq!(sqlite(&error), REFUSED, "{sql}");
        }
        connection.execute_batch("pragma query_only = on").unwrap();
        let error = connection.execute("delete from t", []).unwrap_err();
        assert_eq!(code(&error), ffi::SQLITE_READONLY);
        assert_eq!(sqlite(&error), REFUSED);
    }

    #[test]
    fn a_disk_that_fails_leaves_the_effect_unknown() {
        let error = Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_FSYNC), None);
        assert_eq!(sqlite(&error), Some(Fault::permanent()));
    }

    #[test]
    fn what_rusqlite_refuses_has_run_or_not() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("create table t (n)").unwrap();
        let one = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, u8>(0)).unwrap_err();
        let ran = Some(Fault::permanent());
        for (error, want) in [
            (connection.execute("insert into t values (?1)", []).unwrap_err(), REFUSED),
            (connection.execute("insert into t values (1); delete from t", []).unwrap_err(), REFUSED),
            (connection.execute("insert into t values (:n)", &[(":m", &1)]).unwrap_err(), REFUSED),
            (Connection::open("a\0b").unwrap_err(), REFUSED),
            (one("select n from t"), ran),
            (one("insert into t values (1000) returning n"), ran),
            (one("insert into t values ('many') returning n"), ran),
            (connection.execute("insert into t values (1) returning n", []).unwrap_err(), ran),
            (Error::UnwindingPanic, None),
        ] {
            assert_eq!(sqlite(&error), want, "{error:?}");
        }
    }

    #[test]
    fn a_busy_database_is_written_once_it_is_free() {
        let (holder, mut writer, _folder) = two("delete");
        holder.execute_batch("begin immediate").unwrap();
        // With a wait of zero the holder would never release the lock.
        let policy = Policy::builder().jitter(Jitter::None).build().unwrap();
        let attempts = Cell::new(0);
        let write = || {
            attempts.set(attempts.get() + 1);
            let writing = writer.transaction()?;
            writing.execute("insert into t values (1)", [])?;
            writing.commit()
        };
        let reported = write
            .retry(&policy)
            .classify(sqlite)
            .wait_with(|_| holder.execute_batch("commit").is_ok())
            .report();
        assert_eq!(reported.report.reason, StopReason::Succeeded);
        assert_eq!(attempts.get(), 2);
        assert_eq!(rows(&holder), 1);
    }
}
