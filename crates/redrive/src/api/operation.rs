//! The request that a handler runs for, where it can commit together with its answer.

use std::any::Any;
use std::ops::Deref;

use axum_core::extract::FromRequestParts;
use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use redrive_core::Event;
use redrive_core::ledger::Reply;
use redrive_http::idempotent::{self, Ledger, Problem};

use super::commit::{self, CommitError, Committed};
use super::requests::Requests;
use crate::{Redrive, Transaction};

/// The request that a handler runs for: an argument of an axum handler inside of an
/// [`Idempotent`](super::Idempotent) layer over [`Redrive::ledger`].
#[derive(Debug, Clone)]
pub struct Operation {
    operation: idempotent::Operation,
    redrive: Redrive,
}

impl Operation {
    /// Runs work in a transaction of the store's own domain, and commits with it the answer that it gives: the caller's
    /// own tables, events, markers and the answer are there together or not at all. Where another run took the request
    /// over, nothing of this one is kept. Once it is committed, that answer is what is sent, whatever the handler does
    /// next.
    ///
    /// The work is synchronous and does database work only: it holds up everybody's commit, and it may run more than
    /// once.
    ///
    /// # Errors
    /// With the work's own error, and everything rolled back; where it was taken over; or where the store could not.
    pub async fn commit<E>(
        &self,
        work: impl FnMut(&mut Transaction<'_>) -> Result<Reply, E> + Send + 'static,
    ) -> Result<Committed, CommitError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        commit::commit(&self.redrive, &self.operation, work).await
    }

    /// An event that belongs to this request: the same one over all attempts, another for each name.
    #[must_use]
    pub fn event(&self, queue: &str, name: &str) -> Event {
        Event::new(queue, self.operation.derive(name))
    }

    /// The store that it is remembered in.
    #[must_use]
    pub fn redrive(&self) -> &Redrive {
        &self.redrive
    }
}

impl Deref for Operation {
    type Target = idempotent::Operation;

    fn deref(&self) -> &idempotent::Operation {
        &self.operation
    }
}

/// The handler is not inside of an `Idempotent` layer over [`Redrive::ledger`].
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error(
    "the handler asks for its operation, and is not inside of an `Idempotent` layer over `Redrive::ledger`"
)]
pub struct NoLedger;

impl IntoResponse for NoLedger {
    fn into_response(self) -> Response {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "handler-failed", self.to_string()).into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for Operation {
    type Rejection = NoLedger;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoLedger> {
        let operation = parts.extensions.get::<idempotent::Operation>().cloned().ok_or(NoLedger)?;
        let redrive = find(&**operation.ledger()).ok_or(NoLedger)?.clone();
        Ok(Self { operation, redrive })
    }
}

/// The store behind a ledger, however many stand before it.
fn find(ledger: &dyn Ledger) -> Option<&Redrive> {
    let own = (ledger as &dyn Any).downcast_ref::<Requests>().map(|requests| &requests.redrive);
    own.or_else(|| find(ledger.inside()?))
}
