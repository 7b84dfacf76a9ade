//! Room in memory for a large answer, beside the bodies of requests.
//!
//! A response is in memory until its client has read it. So memory is reserved before the response exists, and
//! released as the last of it is sent; if none is left, the response is 503 and nothing was done.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::HeaderValue;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::ApiProblem;
use crate::app::App;

/// Bytes handed to a connection at once.
const PIECE: usize = 64 << 10;

/// Room for an answer.
#[derive(Debug)]
pub(super) struct ResponseMemory(OwnedSemaphorePermit);

impl ResponseMemory {
    /// Reserves this much, or everything if the limit is lower.
    pub(super) fn take(app: &Arc<App>, bytes: usize) -> Result<Self, ApiProblem> {
        let bytes = bytes.min(app.live().config.server.bodies_max);
        let taken = app.bodies.clone().try_acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX));
        taken.map(Self).map_err(|_| {
            ApiProblem::busy(
                "too many large responses are in memory; try again later",
                Duration::from_secs(1),
            )
        })
    }

    /// An answer, which takes as much of the room as it needs.
    pub(super) fn answer(mut self, value: &Value) -> Response {
        let bytes = Bytes::from(value.to_string());
        let length = bytes.len();
        // Releases what it does not need. JSON may be longer than the text; then it reserves more, if possible.
        match self.0.num_permits().checked_sub(length) {
            Some(spare) => drop(self.0.split(spare)),
            None => {
                let more = u32::try_from(length - self.0.num_permits()).unwrap_or(u32::MAX);
                if let Ok(more) = self.0.semaphore().clone().try_acquire_many_owned(more) {
                    self.0.merge(more);
                }
            }
        }
        let pieces = stream::unfold((bytes, self), |(mut rest, room)| async move {
            let piece = rest.split_to(rest.len().min(PIECE));
            (!piece.is_empty()).then(|| (Ok::<_, Infallible>(piece), (rest, room)))
        });
        let mut response = Response::new(Body::from_stream(pieces));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
        response
    }
}
