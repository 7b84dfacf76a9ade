//! The doors through which a call is retried.
//!
//! [`redrive_core`] decides; this crate waits and calls. Three of the doors, one [`Policy`], the same words behind
//! each:
//!
//! - **Postfix**, on anything that makes a fresh future: [`fetch.retry(&policy).classify(…).await`](Retry).
//! - **A session**, for code that borrows `&mut self` and wants a plain loop: [`policy.start()`](Start).
//! - **Blocking**, the same words without async: [`blocking`].
//!
//! The tower layer and the HTTP client, in `redrive-http`, stand on [`drive`], the future that the postfix
//! door is made of.
//!
//! # Layers that multiply
//!
//! Three attempts on each of three layers are 27 calls for one request, on five layers 243. So a retry that
//! runs inside an attempt of another retry of the same task sees it ([`scope`]) and makes one attempt: the
//! outermost layer retries, and three layers of three attempts make 3 calls. To retry on both layers all the
//! same, say [`.independent()`](Retrying::independent) at the call.
//!
//! # What it costs
//!
//! A first-try success allocates nothing, reads no clock and takes no lock. `cargo xtask bench retry`
//! measures it.

pub mod scope;

pub mod attempt;

pub mod drive;

pub mod held;

pub mod postfix;

pub mod session;

pub mod blocking;

pub mod classify;

pub mod observe;

mod clock;
mod course;

pub use attempt::Attempt;
pub use clock::{clock, instant, moment};
pub use postfix::{Reported, Retry, Retrying};
pub use redrive_core::{Policy, Report, StopReason, Stopped};
pub use session::{Session, Start};
