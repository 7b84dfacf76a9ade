//! A request body with limits: in bytes, in time, per caller and over all callers.
//!
//! Nothing is read before the caller is authenticated and authorised. Memory is reserved as bytes arrive, not for the
//! announced length, and each token has a share: a slow caller blocks no other.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRef, FromRequest, FromRequestParts, Request};
use bytes::{Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::ApiProblem;
use crate::app::App;
use crate::auth::Caller;
use crate::config::Right;

/// Memory is reserved in steps of this many bytes.
const STEP: usize = 64 << 10;

/// The right required before a body is read: an extension of a route. The default is [`Right::Operate`].
#[derive(Debug, Clone, Copy)]
pub(super) struct RequiredRight(pub(super) Right);

/// A body that was read whole, and the room that it takes until it is dropped.
#[derive(Debug)]
pub struct RequestBody {
    /// The request's headers, for values that the body lacks.
    pub headers: HeaderMap,
    /// The bytes.
    pub bytes: Bytes,
    _room: MemoryReservation,
}

impl RequestBody {
    /// The media type, in lower case and without its parameters; empty if absent.
    #[must_use]
    pub fn media_type(&self) -> String {
        let text = self.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        text.and_then(|text| text.split(';').next()).unwrap_or_default().trim().to_ascii_lowercase()
    }

    /// The body as a JSON object of this shape. A list of its members' values is not taken for one.
    ///
    /// # Errors
    /// 400 with the reason.
    pub fn object<T: DeserializeOwned>(&self) -> Result<T, ApiProblem> {
        self.shaped().map_err(|error| match error {
            None => ApiProblem::bad_request("the body must be an object, not a list"),
            Some(error) => {
                ApiProblem::bad_request(format!("the body is not valid for this request: {error}"))
            }
        })
    }

    /// The same, with the parse error instead of a problem; `None` for a list.
    pub(super) fn shaped<T: DeserializeOwned>(&self) -> Result<T, Option<serde_json::Error>> {
        if self.bytes.trim_ascii_start().first() == Some(&b'[') {
            return Err(None);
        }
        serde_json::from_slice(&self.bytes).map(|JsonObject(read)| read).map_err(Some)
    }

    /// The same, with the default for an empty body.
    ///
    /// # Errors
    /// 400 with the reason.
    pub fn object_or_default<T: DeserializeOwned + Default>(&self) -> Result<T, ApiProblem> {
        if self.bytes.is_empty() { Ok(T::default()) } else { self.object() }
    }
}

/// A JSON object. Serde would also read a struct from a list of its members' values: an undocumented form, which code
/// that peeks at single members would miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonObject<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = JsonObject<T>;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<JsonObject<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(members)).map(JsonObject)
            }
        }
        deserializer.deserialize_map(Members(PhantomData))
    }
}

impl<S> FromRequest<S> for RequestBody
where
    Arc<App>: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = ApiProblem;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiProblem> {
        let app = Arc::<App>::from_ref(state);
        let (body_max, body_time) = {
            let live = app.live();
            (live.config.server.body_max, live.config.server.body_time)
        };
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, state).await?;
        let RequiredRight(right) = parts.extensions.get().copied().unwrap_or(RequiredRight(Right::Operate));
        caller.may(right)?;
        let length = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let length: usize = length.unwrap_or(body_max);
        if length > body_max {
            return Err(too_large(body_max));
        }
        let share = app.live().shares.get(&*caller.name).cloned();
        let reading = read(body, length, body_max, MemoryReservation::new(app.bodies.clone(), share));
        let Ok(read) = tokio::time::timeout(body_time, reading).await else {
            let detail = format!("the body did not arrive within {}", humantime::format_duration(body_time));
            return Err(ApiProblem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", detail));
        };
        let (bytes, room) = read?;
        Ok(Self { headers: parts.headers, bytes, _room: room })
    }
}

/// Reads the whole body, with memory reserved for what arrived and at most one step more.
async fn read(
    mut body: axum::body::Body,
    length: usize,
    body_max: usize,
    mut room: MemoryReservation,
) -> Result<(Bytes, MemoryReservation), ApiProblem> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ApiProblem::bad_request("the body was cut off"))?;
        let Ok(data) = frame.into_data() else { continue };
        let come = bytes.len() + data.len();
        if come > body_max {
            return Err(too_large(body_max));
        }
        room.grow(come.next_multiple_of(STEP).min(length).max(come))?;
        bytes.extend_from_slice(&data);
    }
    Ok((bytes.freeze(), room))
}

/// Room that was taken: of that of all callers, and of its caller's share.
#[derive(Debug)]
struct MemoryReservation {
    of: Vec<Arc<Semaphore>>,
    permits: Vec<OwnedSemaphorePermit>,
    bytes: usize,
}

impl MemoryReservation {
    fn new(all: Arc<Semaphore>, share: Option<Arc<Semaphore>>) -> Self {
        Self { of: share.into_iter().chain([all]).collect(), permits: Vec::new(), bytes: 0 }
    }

    /// Reserves more, up to `bytes` in total.
    fn grow(&mut self, bytes: usize) -> Result<(), ApiProblem> {
        let more = u32::try_from(bytes.saturating_sub(self.bytes)).unwrap_or(u32::MAX);
        if more == 0 {
            return Ok(());
        }
        for room in &self.of {
            let permit = room.clone().try_acquire_many_owned(more).map_err(|_| {
                ApiProblem::busy(
                    "too many request bodies are in memory; try again later",
                    Duration::from_secs(1),
                )
            })?;
            match self.permits.iter_mut().find(|has| Arc::ptr_eq(has.semaphore(), room)) {
                Some(has) => has.merge(permit),
                None => self.permits.push(permit),
            }
        }
        self.bytes = bytes;
        Ok(())
    }
}

fn too_large(body_max: usize) -> ApiProblem {
    let detail = format!("the body exceeds the limit of {body_max} bytes");
    ApiProblem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
}
