//! `KeyedOperation` as an argument of an axum handler.

use std::convert::Infallible;

use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

use super::body::Body;
use super::operation::KeyedOperation;
use super::problem::{PAGE, Problem};

/// The handler is not inside of an `Idempotent` layer.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the handler extracts `Operation` but is not behind an `Idempotent` layer")]
pub struct MissingOperation;

impl IntoResponse for MissingOperation {
    fn into_response(self) -> Response {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "handler-failed", self.to_string()).into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for KeyedOperation {
    type Rejection = MissingOperation;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, MissingOperation> {
        parts.extensions.get::<Self>().cloned().ok_or(MissingOperation)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for KeyedOperation {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.response(PAGE).map(axum_core::body::Body::new)
    }
}

impl IntoResponse for Body {
    fn into_response(self) -> Response {
        Response::new(axum_core::body::Body::new(self))
    }
}
