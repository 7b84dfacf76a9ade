//! The user's own PostgreSQL transaction: [`Redrive::publish_in`], [`Inbox::mark_in`] and, with the feature `api`,
//! `Operation::complete_in` commit together with the caller's own writes.
//!
//! ```no_run
//! use redrive::postgres::sqlx::{self, PgPool};
//! use redrive::{Event, Redrive};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "postgres://shop@localhost/shop";
//! let redrive = Redrive::open(url).await?;
//! redrive.queue("emails").declare().await?;
//! let pool = PgPool::connect(url).await?;
//!
//! let mut tx = pool.begin().await?;
//! if redrive.inbox("importer.v1").mark_in(&mut tx, "message-17").await? {
//!     sqlx::query("INSERT INTO booking (guest) VALUES ('Ada')").execute(&mut *tx).await?;
//!     let email = Event::new("emails", "message-17").payload(*b"Ada");
//!     let (_, wakeup) = redrive.publish_in(&mut tx, email).await?;
//!     tx.commit().await?;
//!     wakeup.wake();
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The pool is the caller's, of the same `sqlx` release as [`sqlx`]. `docs/guides/postgres.md` describes the behaviour at
//! each isolation level.

pub use crate::engine::Inbox;
pub use redrive_store::postgres::{PostgresSettings, Wakeup, sqlx};

#[cfg(doc)]
use crate::Redrive;
