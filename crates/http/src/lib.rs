//! Retrying over HTTP, on both sides of the wire.
//!
//! - [`RetryLayer`] retries any tower service; [`IdempotentRequests`] says which requests may be sent again.
//! - [`Client`] (feature `reqwest`) wraps a `reqwest::Client`: one policy, one idempotency key for each
//!   logical call, `Retry-After` honoured, streamed bodies never sent twice.
//! - [`IncomingLayer`] reads the sender's attempt and deadline, so that a server does not multiply retries, and tells
//!   the sender when not to retry.
//! - `idempotent` (feature `server`) answers the repetition of a request with the answer of the first.
//! - [`classify`] and [`StatusMap`] give the meaning of a status or an error.
//!
//! Three headers propagate between processes: `redrive-attempt` and `redrive-deadline` with a request whose sender
//! retries, `redrive-no-retry: 1` with a final response. See [`propagation`].

pub mod classify;

pub mod status;

pub mod retry_after;

pub mod retry_hints;

pub mod propagation;

pub mod idempotency_key;

pub mod ledger_status;

pub mod json;

pub mod fingerprint;

#[cfg(feature = "seal")]
pub mod seal;

pub mod request_copy;

pub mod layer;

pub mod incoming;

#[cfg(feature = "server")]
pub mod idempotent;

#[cfg(feature = "reqwest")]
pub mod client;

#[cfg(feature = "reqwest")]
pub mod cas;

#[cfg(feature = "reqwest")]
pub use client::{Client, ClientRequest, ProblemCode, ProblemDetails};
pub use incoming::IncomingLayer;
pub use layer::RetryLayer;
pub use ledger_status::LedgerStatus;
pub use request_copy::{CloneAll, IdempotentRequests, RequestCopy};
pub use status::StatusMap;
