//! Asking whether a run that never ended had its effect.
//!
//! For effects that are neither in the ledger's database nor keyed, but can be looked up afterwards: a transfer in
//! the bank's list, a file at its path. A probe runs under the lease, so that two never run at once.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use redrive_core::ledger::StoredReply;

use crate::idempotent::operation::KeyedOperation;

/// A request with an unknown outcome.
#[derive(Debug)]
#[non_exhaustive]
pub struct ProbeRequest {
    /// The operation; it derives the same downstream keys as the earlier run.
    pub operation: KeyedOperation,
    /// The request, as it came again.
    pub request: Request<Bytes>,
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq)]
pub enum ProbeOutcome {
    /// It happened, and this is its answer.
    Completed(StoredReply),
    /// It did not happen: it runs.
    DidNotHappen,
    /// Still unknown.
    StillUnknown,
}

pub(in crate::idempotent) type Finding = Pin<Box<dyn Future<Output = ProbeOutcome> + Send>>;

/// Looks whether something happened.
#[derive(Clone)]
pub(in crate::idempotent) struct Probe(Arc<dyn Fn(ProbeRequest) -> Finding + Send + Sync>);

impl Probe {
    pub(in crate::idempotent) fn new<F, P>(probe: F) -> Self
    where
        F: Fn(ProbeRequest) -> P + Send + Sync + 'static,
        P: Future<Output = ProbeOutcome> + Send + 'static,
    {
        Self(Arc::new(move |probing| Box::pin(probe(probing))))
    }

    pub(in crate::idempotent) fn ask(&self, operation: KeyedOperation, request: Request<Bytes>) -> Finding {
        (self.0)(ProbeRequest { operation, request })
    }
}
