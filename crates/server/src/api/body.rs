//! The body of a request, bounded: in bytes, in time, and together with all others.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRef, FromRequest, Request};
use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;

use super::Problem;
use crate::app::App;

/// A body that was read whole, and the room that it takes until it is dropped.
#[derive(Debug)]
pub struct Body {
    /// The request's headers, for what the body does not say.
    pub headers: HeaderMap,
    /// The bytes.
    pub bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl Body {
    /// The media type, in lower case and without its parameters; empty where there is none.
    #[must_use]
    pub fn media_type(&self) -> String {
        let text = self.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        text.and_then(|text| text.split(';').next()).unwrap_or_default().trim().to_ascii_lowercase()
    }

    /// The body as a JSON object of this shape. A list of its members' values is not taken for one.
    ///
    /// # Errors
    /// 400 with what is wrong with it.
    pub fn object<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        self.shaped().map_err(|error| match error {
            None => Problem::bad_request("the body is a list, and an object is wanted here"),
            Some(error) => {
                Problem::bad_request(format!("the body is not the JSON that is wanted here: {error}"))
            }
        })
    }

    /// The same, without words for what is wrong: nothing where it is a list.
    pub(super) fn shaped<T: DeserializeOwned>(&self) -> Result<T, Option<serde_json::Error>> {
        if self.bytes.trim_ascii_start().first() == Some(&b'[') {
            return Err(None);
        }
        serde_json::from_slice(&self.bytes).map_err(Some)
    }

    /// The same, and the default where there is no body at all.
    ///
    /// # Errors
    /// 400 with what is wrong with it.
    pub fn object_or_default<T: DeserializeOwned + Default>(&self) -> Result<T, Problem> {
        if self.bytes.is_empty() { Ok(T::default()) } else { self.object() }
    }
}

impl<S> FromRequest<S> for Body
where
    Arc<App>: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let app = Arc::<App>::from_ref(state);
        let (body_max, body_time) = {
            let live = app.live();
            (live.config.server.body_max, live.config.server.body_time)
        };
        let (parts, body) = request.into_parts();
        let length = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let length: usize = length.unwrap_or(body_max);
        if length > body_max {
            return Err(too_large(body_max));
        }
        // Room for what may come, before any of it is read.
        let room = u32::try_from(length).unwrap_or(u32::MAX);
        let room = app.bodies.clone().try_acquire_many_owned(room).map_err(|_| {
            Problem::busy("too much is being published at once; try again later", Duration::from_secs(1))
        })?;
        let reading = Limited::new(body, body_max).collect();
        let bytes = match tokio::time::timeout(body_time, reading).await {
            Ok(Ok(collected)) => collected.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large(body_max)),
            Ok(Err(_)) => return Err(Problem::bad_request("the body was cut off")),
            Err(_) => {
                let detail =
                    format!("the body did not arrive within {}", humantime::format_duration(body_time));
                return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", detail));
            }
        };
        Ok(Self { headers: parts.headers, bytes, _room: room })
    }
}

fn too_large(body_max: usize) -> Problem {
    let detail = format!("a body has at most {body_max} bytes here");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
}
