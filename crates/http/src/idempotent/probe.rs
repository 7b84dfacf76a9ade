//! Asking whether a run that never ended had its effect.
//!
//! For effects that are neither in the ledger's own domain nor keyed, but can be looked for afterwards: a transfer in
//! the bank's list, a file where it was to be put. Whoever asks has the lease, so that two never do.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use redrive_core::ledger::Reply;

use super::operation::Operation;

/// A request of whose effect nobody knows.
#[derive(Debug)]
#[non_exhaustive]
pub struct Probing {
    /// Which it is: its keys for calls further down are those of the run before.
    pub operation: Operation,
    /// The request, as it came again.
    pub request: Request<Bytes>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub enum Probed {
    /// It happened, and this is its answer.
    Completed(Reply),
    /// It did not happen: it runs.
    DidNotHappen,
    /// Nobody knows still.
    StillUnknown,
}

pub(super) type Finding = Pin<Box<dyn Future<Output = Probed> + Send>>;

/// Looks whether something happened.
#[derive(Clone)]
pub(super) struct Probe(Arc<dyn Fn(Probing) -> Finding + Send + Sync>);

impl Probe {
    pub(super) fn new<F, P>(probe: F) -> Self
    where
        F: Fn(Probing) -> P + Send + Sync + 'static,
        P: Future<Output = Probed> + Send + 'static,
    {
        Self(Arc::new(move |probing| Box::pin(probe(probing))))
    }

    pub(super) fn ask(&self, operation: Operation, request: Request<Bytes>) -> Finding {
        (self.0)(Probing { operation, request })
    }
}
