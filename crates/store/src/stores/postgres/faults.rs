//! How PostgreSQL's errors are handled.
//!
//! | error | before COMMIT | at COMMIT |
//! |---|---|---|
//! | `40001`, `40P01`: serialisation, deadlock | repeated at once | repeated |
//! | `55P03`, `57014`: a lock or a statement took too long | passing | passing |
//! | `28xxx`, `3D000`, `42501`, TLS: access was withdrawn | passing | |
//! | `53xxx`, `57P03`: too many connections, no room, starting up | repeated after a while | repeated after a while |
//! | `25006`: a standby answers instead of the primary | repeated after a while | |
//! | `26000`, `42P05`: a pooler changes sessions | broken, with what to do | |
//! | no connection was available for a while | passing | |
//! | `08xxx`, `57P01`, `57P02`, a cut connection | repeated, with another connection | unknown |
//! | any other | broken | broken: it is rolled back |
//!
//! If the outcome of a COMMIT is unknown, the same conditional write is repeated, if there is one: its locks wait for
//! the first one to end. If there is none, the caller gets an error that says so.

use std::sync::Arc;

use super::database::TRIES_MAX;
use crate::error::StoreError;
use crate::stores::rows;

/// Why a step of a transaction failed.
pub(super) type Fault = rows::Fault<sqlx::Error>;

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

/// The result of a step of a transaction.
pub(super) type Step<T> = Result<T, Fault>;

/// What kind of error it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Rolled back because of a concurrent transaction: the same may work at once.
    Again,
    /// Rolled back, or not begun, and it may take some time until it works.
    Busy,
    /// Rolled back, or not begun, after a wait: it may work later.
    Passing,
    /// The connection is gone, and with it everything that was not committed.
    Cut,
    /// Anything else.
    Other,
}

/// The kind of an error.
pub(super) fn kind(error: &sqlx::Error) -> Kind {
    match error {
        sqlx::Error::Database(said) => said.code().map_or(Kind::Other, |code| kind_of(&code)),
        sqlx::Error::PoolTimedOut | sqlx::Error::Tls(_) => Kind::Passing,
        sqlx::Error::Io(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => Kind::Cut,
        _ => Kind::Other,
    }
}

fn kind_of(code: &str) -> Kind {
    match (code, code.get(..2)) {
        ("40001" | "40P01", _) => Kind::Again,
        ("57P03" | "25006", _) | (_, Some("53")) => Kind::Busy,
        ("55P03" | "57014" | "3D000" | "42501" | "58030", _) | (_, Some("28")) => Kind::Passing,
        // 25P03: the session was ended because it was idle for too long, in the middle of a transaction.
        ("57P01" | "57P02" | "57P04" | "57P05" | "25P03", _) | (_, Some("08")) => Kind::Cut,
        _ => Kind::Other,
    }
}

/// The error of a call that certainly wrote nothing.
pub(super) fn rolled_back(error: sqlx::Error) -> StoreError {
    let what = match kind(&error) {
        Kind::Again => format!("gave up after {TRIES_MAX} conflicts with concurrent transactions"),
        Kind::Cut => "the database cannot be reached".to_owned(),
        _ => said(&error),
    };
    match kind(&error) {
        Kind::Other => StoreError::Broken { what, source: Some(Arc::new(error)) },
        _ => StoreError::Passing { what, source: Some(Arc::new(error)) },
    }
}

/// The error of a call whose COMMIT was not answered.
pub(super) fn unknown(error: &sqlx::Error) -> StoreError {
    StoreError::Unanswered { what: said(error) }
}

/// The error of a call whose COMMIT was not answered, and which then met this fault.
pub(super) fn undecided(fault: Fault) -> StoreError {
    match fault {
        Fault::Sql(error) => unknown(&error),
        fault => StoreError::Unanswered { what: not_done(fault).to_string() },
    }
}

/// The same for an error that by itself would mean that nothing was written.
pub(super) fn left_open(error: &StoreError) -> StoreError {
    let what = match error {
        StoreError::Passing { what, .. }
        | StoreError::Broken { what, .. }
        | StoreError::Unanswered { what } => what.clone(),
        error => error.to_string(),
    };
    StoreError::Unanswered { what }
}

/// The error as text, in the database's own words if there are any.
pub(super) fn said(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(said) => {
            let code = said.code().unwrap_or_default();
            let advice = match &*code {
                "26000" | "42P05" => {
                    "; a pooler in transaction mode seems to be in between: write `statement-cache-capacity=0` into the URL"
                }
                "25006" => "; a standby answers: name the primary, or wait until this one is promoted",
                "53100" => "; the database has no room left on its disk",
                _ => "",
            };
            format!("{} ({code}){advice}", said.message())
        }
        sqlx::Error::PoolTimedOut => {
            "no connection to the database was available for some seconds".to_owned()
        }
        error => error.to_string(),
    }
}

/// The error of a step that is not part of a commit.
pub(super) fn not_done(fault: Fault) -> StoreError {
    match fault {
        Fault::Refused(error) => error,
        Fault::Sql(error) => rolled_back(error),
        Fault::Void => StoreError::Passing { what: "the shard has another owner".to_owned(), source: None },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_mean_what_the_table_says() {
        for (code, kind) in [
            ("40001", Kind::Again),
            ("40P01", Kind::Again),
            ("55P03", Kind::Passing),
            ("57014", Kind::Passing),
            ("53300", Kind::Busy),
            ("57P03", Kind::Busy),
            ("57P01", Kind::Cut),
            ("57P02", Kind::Cut),
            ("25P03", Kind::Cut),
            ("57P04", Kind::Cut),
            ("08006", Kind::Cut),
            ("53100", Kind::Busy),
            ("25006", Kind::Busy),
            ("28P01", Kind::Passing),
            ("28000", Kind::Passing),
            ("3D000", Kind::Passing),
            ("42501", Kind::Passing),
            ("26000", Kind::Other),
            ("42P05", Kind::Other),
            ("23505", Kind::Other),
            ("42P01", Kind::Other),
            ("XX000", Kind::Other),
        ] {
            assert_eq!(kind_of(code), kind, "{code}");
        }
    }
}
