//! `sqlx` errors: the database's own codes, the connection, and the pool.

use redrive_core::Fault;
use redrive_core::classify::{io, sqlstate};
use sqlx::Error;
use sqlx::error::{DatabaseError, ErrorKind};

use super::sqlite_code;

/// Knows [`sqlx::Error`], whichever database is behind it.
///
/// | error | means |
/// |---|---|
/// | `Database` with a SQLSTATE: PostgreSQL, MySQL | what [`sqlstate`] says of it |
/// | `Database` with a number of up to four digits: SQLite | what [`sqlite_code`] says of it |
/// | `Database` with another code, but a constraint violated | permanent, not executed |
/// | `Io` | what [`io`] says of it |
/// | `PoolTimedOut`: no connection came free in time | overload, not executed |
/// | `PoolClosed`: this process is shutting down | permanent, not executed |
/// | `Configuration`, `InvalidArgument`, `Tls`, `Encode`, `BeginFailed`, `InvalidSavePointStatement` | permanent, not executed |
/// | `RowNotFound`, `ColumnNotFound`, `Decode` and their like: the statement has run | permanent, unknown |
/// | `Protocol`, `TypeNotFound`, `AnyDriverError`, `WorkerCrashed` | permanent, unknown |
/// | any other | not known |
///
/// As always with databases, an attempt is a whole transaction: if it was rolled back to break a deadlock, repeating
/// only its last statement would write half of it.
///
/// # Why so
///
/// - A pool that times out has more callers than connections. Retrying adds to the callers, hence an
///   overload, which is retried out of a [`Budget`](redrive_core::Budget) and without one not at all.
/// - A worker, the thread that runs SQLite, crashes because a statement made it panic. The next attempt would run
///   that statement again.
/// - MySQL says of a lock wait time-out (1205) only `HY000`, which is its SQLSTATE for nearly everything, and
///   it rolls back the statement and not the transaction. It is not known here; where you set
///   `innodb_rollback_on_timeout`, put a classifier of your own in front.
///
/// ```
/// use redrive_core::Fault;
/// use redrive_retry::classify;
///
/// assert_eq!(classify::sqlx(&sqlx::Error::PoolTimedOut), Some(Fault::overload()));
/// assert_eq!(classify::sqlx(&sqlx::Error::RowNotFound), Some(Fault::permanent()));
/// ```
#[must_use]
pub fn sqlx(error: &Error) -> Option<Fault> {
    match error {
        Error::Database(error) => database(&**error),
        Error::Io(error) => io(error),
        Error::PoolTimedOut => Some(Fault::overload()),
        Error::PoolClosed
        | Error::Configuration(_)
        | Error::InvalidArgument(_)
        | Error::Tls(_)
        | Error::Encode(_)
        | Error::BeginFailed
        | Error::InvalidSavePointStatement => Some(Fault::permanent().not_executed()),
        Error::RowNotFound
        | Error::ColumnIndexOutOfBounds { .. }
        | Error::ColumnNotFound(_)
        | Error::ColumnDecode { .. }
        | Error::Decode(_)
        | Error::Protocol(_)
        | Error::TypeNotFound { .. }
        | Error::AnyDriverError(_)
        | Error::WorkerCrashed => Some(Fault::permanent()),
        _ => None,
    }
}

fn database(error: &dyn DatabaseError) -> Option<Fault> {
    let by_code = error.code().and_then(|code| match sqlite_number(&code) {
        Some(number) => sqlite_code(number),
        None => sqlstate(&code),
    });
    by_code.or_else(|| match error.kind() {
        ErrorKind::Other => None,
        _constraint => Some(Fault::permanent().not_executed()),
    })
}

/// A SQLSTATE has five characters. SQLite's extended codes have at most four digits, and some of them begin
/// like a SQLSTATE: 5386, which is an I/O error, is not class 53.
fn sqlite_number(code: &str) -> Option<i32> {
    if code.len() < 5 { code.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::{fmt, io};

    use super::*;

    /// A database error without a database.
    #[derive(Debug)]
    struct Said {
        code: Option<&'static str>,
        constraint: bool,
    }

    impl fmt::Display for Said {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.message())
        }
    }

    impl std::error::Error for Said {}

    impl DatabaseError for Said {
        fn message(&self) -> &str {
            "said no"
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            self.code.map(Cow::Borrowed)
        }

        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> ErrorKind {
            if self.constraint { ErrorKind::CheckViolation } else { ErrorKind::Other }
        }
    }

    fn said(code: &'static str) -> Error {
        Error::from(Said { code: Some(code), constraint: false })
    }

    const AGAIN: Option<Fault> = Some(Fault::transient().not_executed());
    const UNKNOWN: Option<Fault> = Some(Fault::transient());
    const REFUSED: Option<Fault> = Some(Fault::permanent().not_executed());
    const RAN: Option<Fault> = Some(Fault::permanent());

    #[test]
    fn a_database_is_understood_by_its_code() {
        for (code, want) in [
            ("40001", AGAIN),
            ("40P01", AGAIN),
            ("55P03", AGAIN),
            ("08006", UNKNOWN),
            ("57P01", UNKNOWN),
            ("53300", Some(Fault::overload())),
            ("23505", REFUSED),
            ("42P01", REFUSED),
            ("HY000", None),
            ("5", AGAIN),
            ("6", AGAIN),
            ("261", AGAIN),
            ("262", AGAIN),
            ("517", AGAIN),
            ("2067", REFUSED),
            ("10", RAN),
            ("0", None),
            ("", None),
        ] {
            assert_eq!(sqlx(&said(code)), want, "{code}");
        }
    }

    #[test]
    fn a_number_of_sqlite_is_not_taken_for_a_sqlstate() {
        assert_eq!(sqlx(&said("5386")), RAN, "an I/O error, not out of resources");
        assert_eq!(sqlx(&said("2314")), RAN, "an I/O error, not a constraint");
    }

    #[test]
    fn a_constraint_is_known_by_its_kind_where_the_code_says_nothing() {
        for code in [None, Some("HY000")] {
            assert_eq!(sqlx(&Error::from(Said { code, constraint: true })), REFUSED);
            assert_eq!(sqlx(&Error::from(Said { code, constraint: false })), None);
        }
    }

    #[test]
    fn the_errors_of_the_table_mean_what_it_says() {
        let text = String::new;
        for (error, want) in [
            (Error::Io(io::ErrorKind::ConnectionRefused.into()), AGAIN),
            (Error::Io(io::ErrorKind::ConnectionReset.into()), UNKNOWN),
            (Error::Io(io::ErrorKind::Other.into()), None),
            (Error::PoolTimedOut, Some(Fault::overload())),
            (Error::PoolClosed, REFUSED),
            (Error::Configuration("no".into()), REFUSED),
            (Error::InvalidArgument(text()), REFUSED),
            (Error::Tls("no".into()), REFUSED),
            (Error::Encode("no".into()), REFUSED),
            (Error::BeginFailed, REFUSED),
            (Error::InvalidSavePointStatement, REFUSED),
            (Error::RowNotFound, RAN),
            (Error::ColumnIndexOutOfBounds { index: 1, len: 1 }, RAN),
            (Error::ColumnNotFound(text()), RAN),
            (Error::ColumnDecode { index: text(), source: "no".into() }, RAN),
            (Error::Decode("no".into()), RAN),
            (Error::Protocol(text()), RAN),
            (Error::TypeNotFound { type_name: text() }, RAN),
            (Error::AnyDriverError("no".into()), RAN),
            (Error::WorkerCrashed, RAN),
        ] {
            assert_eq!(sqlx(&error), want, "{error:?}");
        }
    }
}
