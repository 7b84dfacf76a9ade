//! Retry-safe APIs: a client that cannot tell whether its POST went through sends it again and gets the first answer.
//!
//! The layer itself is [`http::idempotent`](redrive_http::idempotent). This module keeps its ledger in the engine's
//! store ([`Redrive::ledger`]), so that a handler commits its own writes, its events and its answer together
//! ([`Operation::commit`]).
//!
//! ```
//! use redrive::api::{Effects, Endpoint, Idempotent, StoredReply, Tenant};
//! use redrive::{CommittedReply, Operation, Redrive};
//! use std::sync::Arc;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let redrive = Redrive::open("memory:").await?; // "sqlite:bookings.db"
//! redrive.queue("emails").declare().await?;
//! let endpoint = Endpoint::new("POST /bookings").tenant(Tenant::fixed("acme")).effects(Effects::Transactional);
//! let layer = Idempotent::new(Arc::new(redrive.ledger()), endpoint)?;
//!
//! async fn book(op: Operation) -> Result<CommittedReply, redrive::api::CommitError> {
//!     let email = op.event("emails", "confirmation").payload(*b"booked");
//!     op.commit(move |tx| {
//!         tx.memory().ok_or("not in memory")?.insert("cabin-7".to_owned(), b"taken".to_vec());
//!         tx.publish(email.clone())?;
//!         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(StoredReply::new(201).body("cabin 7 is yours"))
//!     })
//!     .await
//! }
//! let app: axum::Router = axum::Router::new().route("/bookings", axum::routing::post(book).layer(layer));
//! # Ok(())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(run()).unwrap();
//! ```

mod commit_reply;
#[cfg(feature = "postgres")]
mod complete;
mod memory;
mod observe;
mod operation;
mod requests;

pub use commit_reply::{CommitError, CommittedReply};
#[cfg(feature = "postgres")]
pub use complete::Completing;
pub use operation::{NoLedger, Operation};
pub use redrive_http::idempotent::{
    DrainReport, Effects, Endpoint, EndpointError, FingerprintParts, Idempotent, LedgerObserver, OnUnknown,
    Problem, ProtectionError, ReplyProtection, RequestDifference, RequestOutcome, RequestScope, RunMode,
    StoredReply, Tenant,
};
pub use requests::EngineLedger;

#[cfg(doc)]
use crate::Redrive;
