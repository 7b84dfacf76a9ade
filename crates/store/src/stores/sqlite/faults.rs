//! What SQLite's errors mean here.
//!
//! Three questions matter. Is it certain that nothing was written? Only the COMMIT itself can leave that open.
//! May the store be trusted afterwards? Not after an I/O error: what a failed sync left behind was invisible
//! to every connection, and there again after a restart. And may the same call work later? Where the file is
//! busy or the disk is full, yes.

use std::sync::{Arc, OnceLock};

use rusqlite::ErrorCode;

use crate::error::StoreError;

/// Why a step of a transaction could not be done.
#[derive(Debug)]
pub(super) enum Fault {
    /// SQLite said no: the transaction is rolled back, for everybody in it.
    Sql(rusqlite::Error),
    /// This call alone is refused; it has written nothing.
    Refused(StoreError),
    /// Somebody's work ended the transaction of all.
    Spoiled,
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

/// What a step of a transaction gives.
pub(super) type Step<T> = Result<T, Fault>;

/// What kind of error it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Somebody else is at it, or the disk is full: it may pass.
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

/// The error of a call whose transaction was rolled back: it is certain that nothing was written.
pub(super) fn rolled_back(error: rusqlite::Error) -> StoreError {
    let what = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk is full".to_owned(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another process is writing to the database".to_owned()
        }
        _ => error.to_string(),
    };
    match kind(&error) {
        Kind::Passing | Kind::Constraint => StoreError::Passing { what, source: Some(Arc::new(error)) },
        Kind::Disk | Kind::Other => StoreError::Broken { what, source: Some(Arc::new(error)) },
    }
}

/// The error of a look that failed; looks write nothing.
pub(super) fn not_seen(fault: Fault) -> StoreError {
    match fault {
        Fault::Refused(error) => error,
        Fault::Sql(error) => rolled_back(error),
        Fault::Spoiled => broken("a look ended in a transaction that was rolled back"),
    }
}

/// Something that should not be possible.
pub(super) fn broken(what: impl Into<String>) -> StoreError {
    StoreError::Broken { what: what.into(), source: None }
}

/// A row whose checksum does not fit.
pub(super) fn damaged(table: &str, row: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged { row: damaged_row(table, row) }
}

/// The name of a row.
pub(super) fn damaged_row(table: &str, row: impl std::fmt::Display) -> String {
    format!("{table} row {row}")
}

/// Whether the store may still be trusted. Once it may not, it never may again: it has to be opened anew.
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

    /// Nothing, while it may be trusted.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.0.get().map_or(Ok(()), |what| Err(StoreError::Poisoned { what: what.clone() }))
    }
}
