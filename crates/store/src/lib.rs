//! Where events, dedupe records and idempotency records are kept: one contract, and its implementations.
//!
//! The [`Store`] contract comes in parts: [`EventStore`], [`SettleStore`], [`ShardStore`], [`OperatorStore`] and
//! [`LedgerStore`]. Every promise of it is a function in `redrive_testkit::conformance`, and every implementation runs all
//! of them:
//!
//! | store | for | domain |
//! |---|---|---|
//! | [`Memory`] | tests, and the reference implementation of the contract | this process |
//! | `Sqlite` (feature `sqlite`) | one process, one file, no service | this file |
//! | `Postgres` (feature `postgres`) | many processes, one database | this database |
//!
//! A store knows nothing of handlers and policies: it stores what the engine decides, under the fence. To call a
//! method on a store of a known type, import all parts with the [`prelude`].

mod store;

mod error;

mod event_status;

mod stats;

mod transaction;

pub mod sql;

pub mod operate;

pub mod lease;

pub mod ledger;

pub mod nodes;

mod stores;

/// All parts of the contract: their methods, without their names.
pub mod prelude {
    pub use crate::ledger::LedgerStore as _;
    pub use crate::store::{
        EventStore as _, OperatorStore as _, SettleStore as _, ShardStore as _, Store as _,
    };
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub mod moving;

pub mod sequence;

pub mod window;

pub use error::{PublishError, StoreError, StoreErrorSource};
pub use event_status::{EventCount, EventPage, EventQuery, EventStatus, FilterMatches, Named, PAGE_BYTES};
pub use ledger::LedgerStore;
pub use stats::{CommitAndDiskStats, Commits, DiskSpace, Histogram};
pub use store::{
    Arrivals, DeadLetterRetention, DeclaredBy, Domain, EventStore, LoadRequest, LoadedEvents, NewEvent,
    OperatorStore, OverdueDeadLetter, PendingReplies, Published, QueueSpec, SettleStore, ShardStore, Store,
    StoreFuture, TakenShard, Watcher,
};
pub use stores::memory::{self, Memory};
#[cfg(feature = "postgres")]
pub use stores::postgres::{self, Postgres};
#[cfg(feature = "sqlite")]
pub use stores::sqlite::{self, Sqlite};
pub use transaction::{CompleteError, Tx, TxJob, TxOutcome, TxSettle, TxWork};
pub use window::DedupeWindow;
