//! The ledger of an HTTP API: what is remembered of a request under its idempotency key, and what a request under
//! the same key is answered.
//!
//! Everything is a function of a [`Record`], what is asked, and the time; a store runs it inside its own write
//! transaction, so that two requests never decide from the same record. The life of one:
//!
//! ```text
//! absent ─▶ in flight ─▶ completed ─▶ tombstone ─▶ absent
//!              │  ▲
//!              ├──┴─▶ retriable (may be run again) ─▶ tombstone
//!              └────▶ unknown (nobody may, until it is resolved)
//! ```
//!
//! A lease that is over is a state and no deletion: what follows depends on what the endpoint said of its
//! [`Effects`]. Neither what is in flight nor what is unknown ever expires.

mod claim;
mod record;
mod settle;

pub use claim::{Answer, Ask, Claim, OLDER_MAX, claim};
pub use record::{Effects, OnUnknown, Phase, Print, Record, Reply, Retention, Scope};
pub use settle::{End, Fenced, Renewed, Resolution, age, complete, fail, hold, release, renew, resolve};
