//! The server side of idempotency keys: a client that cannot tell whether its POST went through sends it again, and
//! gets the first answer.
//!
//! An [`Idempotent`] layer for each operation, made of a [`Ledger`] and an [`Endpoint`] that says whose requests they
//! are and what their effects are:
//!
//! - `Transactional`: everything happens in the ledger's own database, in one commit with the answer;
//! - `Keyed`: calls further down carry keys that are derived from this one's ([`Operation::derive`]);
//! - `Opaque`: neither, and when a process dies nobody knows what happened; the endpoint says what follows.
//!
//! Which request it is: tenant, operation and key. What it asks is in its fingerprint: path, query, body, those headers
//! that count, and who asks. The same key for something else is refused. What is answered in which state is in the
//! table of `docs/idempotency.md`, and each of the layer's own answers in [`problem`].
//!
//! What it costs: a replay is one question to the ledger; a first run is two commits, one before and one after.

mod answer;
mod body;
mod bounds;
mod caught;
mod drain;
mod endpoint;
#[cfg(feature = "axum")]
mod extract;
mod hints;
mod identify;
pub mod keep;
mod keys;
mod layer;
mod lease;
mod ledger;
mod minted;
mod observe;
mod operation;
mod outcome;
mod pace;
mod place;
mod probe;
pub mod problem;
mod remembered;
mod render;
mod run;
mod serve;
mod wait;

pub use body::{Body, BoxError};
pub use bounds::EndpointError;
pub use drain::Drained;
pub use endpoint::{Endpoint, Missing, Tenant};
#[cfg(feature = "axum")]
pub use extract::NoOperation;
pub use keep::{Keep, KeepError};
pub use keys::Keys;
pub use layer::{Answering, Guarded, Idempotent};
pub use ledger::{Asked, Ledger, LedgerError};
pub use observe::{Became, Observer};
pub use operation::{Mode, Operation};
pub use outcome::respond;
pub use probe::{Probed, Probing};
pub use problem::Problem;
pub use redrive_core::ledger::{
    Answer, Ask, Claim, Effects, End, Fenced, OnUnknown, Phase, Record, Renewed, Reply, Resolution,
    Retention, Scope,
};
pub use remembered::Remembered;
pub use render::Pointer;

pub use crate::fingerprint::Parts;
