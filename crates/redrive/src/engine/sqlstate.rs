//! What a database said, found in the errors of those who asked it.
//!
//! A handler that runs in a transaction of the store may fail because of somebody else: by a deadlock, or because two could
//! not be put in an order. That is no fault of its own, and is not left to whoever classifies: it runs again.

use std::error::Error;

use redrive_store::Tx;

/// The SQLSTATE of an error that goes back to one of `sqlx`.
pub(super) fn sqlstate(error: &(dyn Error + 'static)) -> Option<String> {
    #[cfg(feature = "postgres")]
    {
        use redrive_store::postgres::sqlx;
        let mut sources =
            std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source());
        let said = sources.find_map(|error| error.downcast_ref::<sqlx::Error>()?.as_database_error()?.code());
        said.map(std::borrow::Cow::into_owned)
    }
    #[cfg(not(feature = "postgres"))]
    {
        let _ = error;
        None
    }
}

/// Has the work in a transaction run again, where this was said because of somebody else.
pub(super) fn run_again_after(tx: &mut dyn Tx, code: Option<&str>) {
    #[cfg(feature = "postgres")]
    if matches!(code, Some("40001" | "40P01")) {
        redrive_store::postgres::run_again(tx);
    }
    #[cfg(not(feature = "postgres"))]
    let _ = (tx, code);
}
