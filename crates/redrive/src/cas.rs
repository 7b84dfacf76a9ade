//! Compare and set: change a value that others change too, and lose no update.
//!
//! | target | version | |
//! |---|---|---|
//! | `postgres::PgVersionedRow` (feature `postgres`) | a column, numbers from one sequence | in the caller's own database |
//! | `sqlite::SqliteVersionedRow` (feature `sqlite`) | the same | in the caller's own file |
//! | `http::cas::HttpResource` (feature `reqwest`) | a strong ETag | `If-Match` |
//! | [`CasTarget`], [`blocking::CasTarget`] | yours | etcd, S3, a key-value store |
//!
//! A conflict is retried with jitter, within a bound. A conflict after a lost answer is [`CasError::Unknown`], unless
//! the target remembers the operation's id. The rows here do, in a table `redrive_operation` of the same database.
//! `docs/guides/ladder.md` says when to take this rung.

pub use redrive_core::ladder::cas::{CasAnswer, CasNext, CasPromise, CasRun, CasSettings, Versions};
pub use redrive_retry::cas::{
    Cas, CasApplied, CasError, CasFailure, CasLoaded, CasStored, CasTarget, blocking,
};

#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod version_column;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use version_column::{NameError, VersionColumn};
