//! The server side of idempotency keys: a client that does not know whether its POST went through sends it again and
//! gets the first response.
//!
//! Each operation has an [`Idempotent`] layer, made of a [`Ledger`] and an [`Endpoint`] that declares the tenant of
//! its requests and the kind of their effects:
//!
//! - `Transactional`: everything happens in the ledger's own database, in one commit with the answer;
//! - `Keyed`: downstream calls carry keys derived from this one ([`KeyedOperation::derive`]);
//! - `Opaque`: neither. If a process dies, the outcome is unknown, and the endpoint declares what follows.
//!
//! A request is identified by tenant, operation and key. Its fingerprint covers path, query, body, the headers that
//! count, and the principal. The same key with another fingerprint is refused. `docs/guides/idempotency.md` has the table of
//! states and responses, [`problem`] the layer's own responses.
//!
//! Cost: a replay is one query to the ledger; a first run is two commits, one before and one after.

mod answer;
mod body;
mod drain;
mod endpoint;
#[cfg(feature = "axum")]
mod extractor;
mod identify;
mod key_lookup;
mod layer;
mod ledger;
mod observe;
mod operation;
pub mod problem;
pub mod protection;
mod replay_cache;
mod run;
mod serve;

pub use body::{Body, BoxError};
pub use drain::DrainReport;
pub use endpoint::bounds::EndpointError;
pub use endpoint::probe::{ProbeOutcome, ProbeRequest};
pub use endpoint::rendered_reply::RenderRequest;
pub use endpoint::{Endpoint, Tenant, Unset};
#[cfg(feature = "axum")]
pub use extractor::MissingOperation;
pub use key_lookup::KeyLookup;
pub use layer::{Idempotent, IdempotentFuture, IdempotentService};
pub use ledger::{Ledger, LedgerError, LedgerFuture};
pub use observe::{LedgerObserver, RequestOutcome};
pub use operation::{KeyedOperation, RunMode};
pub use problem::Problem;
pub use protection::{ProtectionError, ReplyProtection};
pub use redrive_core::ledger::{
    ClaimRequest, Effects, FencedRun, LedgerAnswer, LedgerClaim, LedgerRecord, OnUnknown, RecordPhase,
    RenewResult, RequestScope, Resolution, Retention, RunEnding, StoredReply,
};
pub use replay_cache::CachedReply;
pub use run::outcome::respond;

pub use crate::fingerprint::{FingerprintParts, RequestDifference};
