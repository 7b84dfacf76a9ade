//! Retries for async and blocking calls.
//!
//! [`redrive_core`] decides; this crate waits and calls. There are three call styles with one [`Policy`]:
//!
//! - **`.retry()`**, on anything that makes a fresh future: [`fetch.retry(&policy).classify(…).await`](Retry).
//! - **A session**, for code that borrows `&mut self` and wants a plain loop: [`policy.start()`](Start).
//! - **Blocking**, the same without async: [`blocking`].
//!
//! The tower layer and the HTTP client in `redrive-http` use [`drive`], the future behind `.retry()`.
//!
//! # Layers that multiply
//!
//! Three attempts on each of three layers are 27 calls for one request, on five layers 243. So a retry that runs
//! inside an attempt of another retry of the same task sees it ([`scope`]) and makes a single attempt: the outermost
//! layer retries, and three layers of three attempts make 3 calls. To retry on both layers all the same, use
//! [`.independent()`](RetryCall::independent).
//!
//! # What it costs
//!
//! A first-try success allocates nothing, reads no clock and takes no lock. `cargo xtask bench retry`
//! measures it.

pub mod scope;

pub mod attempt;

pub mod drive;

pub mod policy_handle;

pub mod retry;

pub mod session;

pub mod blocking;

pub mod cas;

pub mod effects;

pub mod classify;

pub mod observe;

mod call_state;
mod clock;

pub use attempt::Attempt;
pub use clock::{ThreadRandom, clock, instant, moment};
pub use redrive_core::{Policy, Report, StopReason, Stopped};
pub use retry::{Reported, Retry, RetryCall};
pub use session::{Session, Start};
