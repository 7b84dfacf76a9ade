//! The SQLSTATE inside an error.
//!
//! A handler that runs in a transaction of the store may fail because of a concurrent transaction: by a deadlock or a
//! serialization failure. That is no fault of its own, and no matter for the classifier: it runs again.

use std::error::Error;

/// The SQLSTATE of an error that comes from `sqlx`, however it is wrapped.
pub(in crate::engine) fn sqlstate(error: &(dyn Error + 'static)) -> Option<String> {
    #[cfg(feature = "postgres")]
    {
        let sources = std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| next(*error));
        sources.take(DEPTH).find_map(code)
    }
    #[cfg(not(feature = "postgres"))]
    {
        let _ = error;
        None
    }
}

/// Whether a transaction with this SQLSTATE lost against a concurrent one.
pub(in crate::engine) fn is_of_another(code: Option<&str>) -> bool {
    matches!(code, Some("40001" | "40P01"))
}

/// How deep errors may be nested.
#[cfg(feature = "postgres")]
const DEPTH: usize = 32;

/// The source of an error. A shared error is looked into: its `source` is that of the error it shares.
#[cfg(feature = "postgres")]
fn next<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<std::sync::Arc<dyn Error + Send + Sync>>() {
        Some(shared) => Some(&**shared),
        None => error.source(),
    }
}

/// The SQLSTATE of this error. A transparent wrapper of an `sqlx` error is seen first as the source of that.
#[cfg(feature = "postgres")]
fn code(error: &(dyn Error + 'static)) -> Option<String> {
    use redrive_store::postgres::sqlx;
    let by_sqlx = || error.downcast_ref::<sqlx::Error>()?.as_database_error()?.code();
    let by_database = || error.downcast_ref::<Box<dyn sqlx::error::DatabaseError>>()?.code();
    by_sqlx().or_else(by_database).map(std::borrow::Cow::into_owned)
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use std::borrow::Cow;
    use std::fmt;
    use std::sync::Arc;

    use redrive_store::postgres::sqlx;
    use sqlx::error::{DatabaseError, ErrorKind};

    use super::*;

    /// What a database says.
    #[derive(Debug)]
    struct Victim;

    impl fmt::Display for Victim {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("deadlock detected")
        }
    }

    impl Error for Victim {}

    impl DatabaseError for Victim {
        fn message(&self) -> &'static str {
            "deadlock detected"
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some("40P01".into())
        }

        fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    #[derive(Debug, thiserror::Error)]
    enum Wrapped {
        #[error("not booked")]
        Source(#[source] sqlx::Error),
        #[error(transparent)]
        Transparent(sqlx::Error),
        #[error("not booked")]
        Shared(#[source] Arc<dyn Error + Send + Sync>),
    }

    fn said() -> sqlx::Error {
        sqlx::Error::Database(Box::new(Victim))
    }

    #[test]
    fn it_is_found_in_whatever_it_is_wrapped() {
        let boxed: Box<dyn Error + Send + Sync> = Box::new(Wrapped::Transparent(said()));
        for (error, shape) in [
            (&said() as &(dyn Error + 'static), "bare"),
            (&Wrapped::Source(said()), "a source"),
            (&Wrapped::Transparent(said()), "transparent"),
            (&Wrapped::Shared(Arc::new(said())), "shared"),
            (&*boxed, "boxed"),
        ] {
            assert_eq!(sqlstate(error).as_deref(), Some("40P01"), "{shape}");
        }
        assert_eq!(sqlstate(&fmt::Error), None);
    }
}
