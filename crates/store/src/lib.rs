//! Where events and receipts are kept: one contract, and its implementations.
//!
//! The [`Store`] contract is about a dozen verbs. Every promise of it is a function in
//! `redrive_testkit::conformance`, and every implementation runs all of them:
//!
//! | store | for | domain |
//! |---|---|---|
//! | [`Memory`] | tests, and the reference for what the words mean | this process |
//! | `Sqlite` (feature `sqlite`) | one process, one file, no service | this file |
//! | `Postgres` (feature `postgres`) | many processes, one database | this database |
//!
//! A store knows nothing of handlers and policies: it keeps what it is told, under the fence.

mod store;

mod error;

mod found;

mod figures;

mod transaction;

pub mod sql;

pub mod operate;

pub mod lease;

pub mod ledger;

pub mod nodes;

mod stores;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub mod moving;

pub mod window;

pub use error::{Cause, PublishError, StoreError};
pub use figures::{Commits, Figures, Room, Spread};
pub use found::{Count, Found, Listed, Matching, PAGE_BYTES, Query};
pub use ledger::Ledger;
pub use store::{
    Answer, Answers, Arrivals, By, Domain, Keep, Load, Loaded, New, Overdue, Published, QueueSpec, Store,
    Taken, Watcher,
};
pub use stores::memory::{self, Memory};
#[cfg(feature = "postgres")]
pub use stores::postgres::{self, Postgres};
#[cfg(feature = "sqlite")]
pub use stores::sqlite::{self, Sqlite};
pub use transaction::{Claim, CompleteError, Job, Transacted, Tx, Work};
pub use window::Window;
