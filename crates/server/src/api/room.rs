//! Room in memory for a large answer, beside the bodies of requests.
//!
//! An answer is in memory until its client has read it. So its room is taken before there is one, and given back as
//! the last of it goes out; when there is none left, the answer is 503 and nothing was done.

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

use super::Problem;
use crate::app::App;

/// Bytes that are handed to a connection at once; it asks for more when these are on their way.
const PIECE: usize = 64 << 10;

/// Room for an answer.
#[derive(Debug)]
pub(super) struct Room(OwnedSemaphorePermit);

impl Room {
    /// So much of it, or all there is where there is never that much.
    pub(super) fn take(app: &Arc<App>, bytes: usize) -> Result<Self, Problem> {
        let bytes = bytes.min(app.live().config.server.bodies_max);
        let taken = app.bodies.clone().try_acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX));
        taken.map(Self).map_err(|_| {
            Problem::busy("too many answers are being read at once; try again later", Duration::from_secs(1))
        })
    }

    /// An answer, which takes as much of the room as it needs.
    pub(super) fn answer(mut self, value: &Value) -> Response {
        let bytes = Bytes::from(value.to_string());
        let length = bytes.len();
        // What it does not need is others'. Text may be longer as JSON than it was; then it takes more, if there is.
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
