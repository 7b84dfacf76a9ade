//! How SQLite's errors are handled.
//!
//! Three questions matter. Is it certain that nothing was written? Only an error of the COMMIT itself leaves that
//! unknown. Can the store be trusted afterwards? Not after an I/O error: the writes of a failed sync were invisible to
//! every connection, and there again after a restart. And may the same call work later? If the file is busy or the
//! disk is full, yes.

use std::sync::{Arc, OnceLock};

use rusqlite::ErrorCode;

use crate::error::StoreError;
use crate::stores::rows;

/// Why a step of a transaction failed.
pub(super) type Fault = rows::Fault<rusqlite::Error>;

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

/// The result of a step of a transaction.
pub(super) type Step<T> = Result<T, Fault>;

/// What kind of error it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Another process is writing, or the disk is full: it may pass.
    Passing,
    /// A rule of the schema was broken.
    Constraint,
    /// The disk, or what is on it, cannot be trusted.
    Disk,
    /// Anything else.
    Other,
}

/// The kind of an error.
pub(super) fn kind(error: &rusqlite::Error) -> Kind {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull) => Kind::Passing,
        Some(ErrorCode::ConstraintViolation) => Kind::Constraint,
        Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Kind::Disk,
        _ => Kind::Other,
    }
}

/// An error as text. SQLite calls a file malformed even if its file system is gone, or returns nothing: it reads less
/// than it wrote. For a file in use, only the next opening can tell.
pub(super) fn told(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => format!(
            "the file cannot be read as it was written: its file system is gone, or the file is damaged; check the disk and start again; the start says whether to restore a backup ({error})"
        ),
        Some(ErrorCode::SystemIoFailure) => {
            format!(
                "the disk failed: check that its file system is mounted and writable, and start again ({error})"
            )
        }
        _ => error.to_string(),
    }
}

/// The error of a call whose transaction was rolled back: nothing was written.
pub(super) fn rolled_back(error: rusqlite::Error) -> StoreError {
    let what = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk is full".to_owned(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another process is writing to the database".to_owned()
        }
        _ => told(&error),
    };
    match kind(&error) {
        Kind::Passing | Kind::Constraint => StoreError::Passing { what, source: Some(Arc::new(error)) },
        Kind::Disk | Kind::Other => StoreError::Broken { what, source: Some(Arc::new(error)) },
    }
}

/// The error of a failed read; reads write nothing.
pub(super) fn not_seen(fault: Fault) -> StoreError {
    match fault {
        Fault::Refused(error) => error,
        Fault::Sql(error) => rolled_back(error),
        Fault::Void => broken("a read ended in a transaction that was rolled back"),
    }
}

/// An internal error.
pub(super) fn broken(what: impl Into<String>) -> StoreError {
    StoreError::Broken { what: what.into(), source: None }
}

/// A row with a wrong checksum.
pub(super) fn damaged(table: &str, row: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged { row: damaged_row(table, row) }
}

/// The name of a row.
pub(super) fn damaged_row(table: &str, row: impl std::fmt::Display) -> String {
    format!("{table} row {row}")
}

/// Whether the store can still be trusted. Once it cannot, it has to be opened anew.
#[derive(Debug, Default)]
pub(super) struct Health(OnceLock<String>);

impl Health {
    /// From now on everything fails.
    pub(super) fn poison(&self, what: &str) {
        let _ = self.0.set(what.to_owned());
    }

    pub(super) fn is_poisoned(&self) -> bool {
        self.0.get().is_some()
    }

    /// Fails if the store can no longer be trusted.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.0.get().map_or(Ok(()), |what| Err(StoreError::Poisoned { what: what.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_any_more_is_not_called_malformed_alone() {
        for (code, word) in [
            (rusqlite::ffi::SQLITE_CORRUPT, "its file system is gone, or the file is damaged"),
            (rusqlite::ffi::SQLITE_NOTADB, "its file system is gone, or the file is damaged"),
            (rusqlite::ffi::SQLITE_IOERR_READ, "the disk failed"),
        ] {
            let error = || rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
            let said = rolled_back(error()).to_string();
            assert!(said.contains(word), "{code}: {said}");
            assert_eq!(kind(&error()), Kind::Disk);
        }
    }
}
