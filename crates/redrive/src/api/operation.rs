//! The request that a handler runs for, which can commit together with its answer.

use std::any::Any;
use std::ops::Deref;

use axum_core::extract::FromRequestParts;
use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use redrive_core::Event;
use redrive_core::ledger::StoredReply;
use redrive_http::idempotent::{self, Ledger, Problem};

use super::commit_reply::{self as commit, CommitError, CommittedReply};
use super::requests::EngineLedger;
use crate::{Redrive, Transaction};

/// The request that a handler runs for: an argument of an axum handler inside an [`Idempotent`](super::Idempotent)
/// layer over [`Redrive::ledger`].
#[derive(Debug, Clone)]
pub struct Operation {
    operation: idempotent::KeyedOperation,
    redrive: Redrive,
}

impl Operation {
    /// Runs work in a transaction of the store's own domain and commits the answer with it: the caller's own tables,
    /// events, markers and the answer commit together or not at all. If another run took the request over, everything
    /// is rolled back. Once committed, this answer is the one the client gets, whatever the handler returns.
    ///
    /// The work is synchronous and does database work only: every other commit waits for it, and it may run more than
    /// once.
    ///
    /// # Errors
    /// The work's own error, with everything rolled back; if another run took the request over; or if the store
    /// operation fails.
    pub async fn commit<E>(
        &self,
        work: impl FnMut(&mut Transaction<'_>) -> Result<StoredReply, E> + Send + 'static,
    ) -> Result<CommittedReply, CommitError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        commit::commit(&self.redrive, &self.operation, work).await
    }

    /// An event that belongs to this request: the same event id over all attempts, another for each name.
    #[must_use]
    pub fn event(&self, queue: &str, name: &str) -> Event {
        Event::new(queue, self.operation.derive(name))
    }

    /// The engine whose store keeps the request.
    #[must_use]
    pub fn redrive(&self) -> &Redrive {
        &self.redrive
    }
}

impl Deref for Operation {
    type Target = idempotent::KeyedOperation;

    fn deref(&self) -> &idempotent::KeyedOperation {
        &self.operation
    }
}

/// The handler is not inside an `Idempotent` layer over [`Redrive::ledger`].
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the handler takes an `Operation`, and is not inside an `Idempotent` layer over `Redrive::ledger`")]
pub struct NoLedger;

impl IntoResponse for NoLedger {
    fn into_response(self) -> Response {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "handler-failed", self.to_string()).into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for Operation {
    type Rejection = NoLedger;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoLedger> {
        let operation = parts.extensions.get::<idempotent::KeyedOperation>().cloned().ok_or(NoLedger)?;
        let redrive = find(&**operation.ledger()).ok_or(NoLedger)?.clone();
        Ok(Self { operation, redrive })
    }
}

/// The engine behind a ledger, through any wrappers.
fn find(ledger: &dyn Ledger) -> Option<&Redrive> {
    let own = (ledger as &dyn Any).downcast_ref::<EngineLedger>().map(|requests| &requests.redrive);
    own.or_else(|| find(ledger.inside()?))
}
