//! The ledger of an HTTP API: the record of a request under its idempotency key, and the reply to a repeated
//! request under the same key.
//!
//! Every decision is a function of a [`LedgerRecord`], the request and the time. A store runs it inside its own
//! write transaction, so that two requests never decide from the same record. The life of a record:
//!
//! ```text
//! absent ─▶ in flight ─▶ completed ─▶ tombstone ─▶ absent
//!              │  ▲
//!              ├──┴─▶ retriable (may be run again) ─▶ tombstone
//!              └────▶ unknown (must not run again until it is resolved)
//! ```
//!
//! A lapsed lease is a state, not a deletion: what follows depends on the [`Effects`] that the endpoint
//! declared. A record that is in flight or unknown never expires.

mod claim;
mod record;
mod settle;

pub use claim::{ClaimRequest, LedgerAnswer, LedgerClaim, OLDER_MAX, claim};
pub use record::{
    Effects, LedgerRecord, OnUnknown, RecordPhase, RequestFingerprint, RequestScope, Retention, StoredReply,
};
pub use settle::{
    FencedRun, RenewResult, Resolution, RunEnding, age, complete, fail, hold, release, renew, resolve,
};
