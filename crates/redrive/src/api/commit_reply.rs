//! One commit for everything that a request does in the store's own domain, including its answer.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use redrive_core::ledger::StoredReply;
use redrive_http::idempotent::{KeyedOperation, Problem, respond};
use redrive_store::{CompleteError, StoreError};

use crate::engine::TransactError;
use crate::{Redrive, Transaction};

/// The answer of a request, committed together with the request's writes.
#[derive(Debug, Clone)]
pub struct CommittedReply(pub(super) Arc<StoredReply>);

impl CommittedReply {
    /// The answer.
    #[must_use]
    pub fn reply(&self) -> &StoredReply {
        &self.0
    }
}

impl IntoResponse for CommittedReply {
    fn into_response(self) -> Response {
        respond(&self.0).map(axum_core::body::Body::new)
    }
}

/// Why nothing was committed. As an HTTP answer it says whether to try again and does not reveal the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The work returned an error; everything is rolled back.
    #[error("{0}")]
    Work(#[source] Box<dyn Error + Send + Sync>),
    /// The work panicked; everything is rolled back.
    #[error("the work in a transaction panicked: {0}")]
    Panicked(String),
    /// The work took too long; everything is rolled back.
    #[error("the work in a transaction took too long")]
    TimedOut,
    /// Another run took the request over. Everything is rolled back, and the client gets the answer of that run.
    #[error("another run took over the request; this one was rolled back")]
    Fenced,
    /// The request was committed before; this work did not run.
    #[error("the request has already committed; put everything into one commit")]
    Twice,
    /// The store operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl CommitError {
    /// An error of the handler's own work.
    pub fn work(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Work(error.into())
    }
}

impl IntoResponse for CommitError {
    fn into_response(self) -> Response {
        if matches!(&self, Self::Store(error) if !error.is_definite()) {
            // If the request has a key, the layer answers instead that repeating the request finds out.
            let detail = "the commit failed, and its outcome is unknown";
            return Problem::new(StatusCode::SERVICE_UNAVAILABLE, "commit-unknown", detail).into_response();
        }
        let (status, code, detail) = match &self {
            Self::Store(error) if error.is_transient() => {
                (StatusCode::SERVICE_UNAVAILABLE, "ledger-down", "the store cannot commit just now")
            }
            Self::Store(_) => (StatusCode::SERVICE_UNAVAILABLE, "ledger-down", "the store does not commit"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "handler-failed", "the request was rolled back"),
        };
        let problem = Problem::new(status, code, detail).retryable(true);
        let problem = if status == StatusCode::SERVICE_UNAVAILABLE {
            problem.after(Duration::from_secs(1))
        } else {
            problem
        };
        problem.into_response()
    }
}

/// What ends a transaction.
#[derive(Debug)]
enum Stop {
    Work(Box<dyn Error + Send + Sync>),
    Complete(CompleteError),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(error) => error.fmt(f),
            Self::Complete(error) => error.fmt(f),
        }
    }
}

impl Error for Stop {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Work(error) => Some(&**error),
            Self::Complete(error) => Some(error),
        }
    }
}

pub(super) async fn commit<E>(
    redrive: &Redrive,
    operation: &KeyedOperation,
    mut work: impl FnMut(&mut Transaction<'_>) -> Result<StoredReply, E> + Send + 'static,
) -> Result<CommittedReply, CommitError>
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    if operation.is_committed() {
        return Err(CommitError::Twice);
    }
    let op = operation.clone();
    let work = move |tx: &mut Transaction<'_>| {
        let reply = work(tx).map_err(|error| Stop::Work(error.into()))?;
        if let Some(epoch) = op.epoch() {
            let completed = tx.complete(op.scope(), epoch, op.kept(&reply), op.named_resource());
            completed.map_err(Stop::Complete)?;
        }
        Ok::<_, Stop>(Arc::new(reply))
    };
    match redrive.transact(work).await {
        Ok(reply) => {
            operation.committed(Arc::clone(&reply));
            Ok(CommittedReply(reply))
        }
        Err(TransactError::Work(error)) => Err(match error.downcast::<Stop>().map(|stop| *stop) {
            Ok(Stop::Work(error)) => CommitError::Work(error),
            Ok(Stop::Complete(CompleteError::Store(error))) => CommitError::Store(error),
            // Whatever the handler answers now, the layer gets the same error when it records the answer.
            Ok(Stop::Complete(_)) => CommitError::Fenced,
            Err(error) => CommitError::Work(error),
        }),
        Err(TransactError::Panicked(message)) => Err(CommitError::Panicked(message)),
        Err(TransactError::TimedOut) => Err(CommitError::TimedOut),
        Err(TransactError::Store(error)) => {
            if !error.is_definite() {
                operation.in_doubt();
            }
            Err(CommitError::Store(error))
        }
    }
}
