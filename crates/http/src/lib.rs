//! Retrying over HTTP, on both sides of the wire.
//!
//! - [`RetryLayer`] retries any tower service; [`Repeatable`] says which requests may be sent again.
//! - [`Client`] (feature `reqwest`) wraps a `reqwest::Client`: one policy, one idempotency key for each
//!   logical call, `Retry-After` honoured, streamed bodies never sent twice.
//! - [`IncomingLayer`] reads what the sender says of its attempts, so that a server does not multiply them,
//!   and tells it when to leave it be.
//! - `idempotent` (feature `server`) answers the repetition of a request with the answer of the first.
//! - [`classify`] and [`StatusMap`] say what a status or an error means.
//!
//! What travels is in three headers: `redrive-attempt` and `redrive-deadline` with a request that somebody
//! repeats, `redrive-no-retry: 1` with an answer that is final. See [`travel`].

pub mod classify;

pub mod status;

pub mod retry_after;

pub mod travel;

pub mod key;

pub mod standing;

pub mod json;

pub mod fingerprint;

#[cfg(feature = "seal")]
pub mod seal;

pub mod repeat;

pub mod layer;

pub mod incoming;

#[cfg(feature = "server")]
pub mod idempotent;

#[cfg(feature = "reqwest")]
pub mod client;

#[cfg(feature = "reqwest")]
pub use client::{Call, Client, Code, Refusal};
pub use incoming::IncomingLayer;
pub use layer::RetryLayer;
pub use repeat::{Cloned, Repeat, Repeatable};
pub use standing::Standing;
pub use status::StatusMap;
