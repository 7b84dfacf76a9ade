//! The body of a request, bounded: in bytes, in time, together with those of its caller, and with all others.
//!
//! Nothing of it is read before it is known who calls and that they may. Room is taken as bytes arrive, not for what
//! a head promises, and one token gets a share of it: who holds it up holds nobody else up.

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

use super::Problem;
use crate::app::App;
use crate::auth::Caller;
use crate::config::Right;

/// Room is taken in steps of so many bytes.
const STEP: usize = 64 << 10;

/// What a caller has to be allowed before a body is read: an extension of a route. Where there is none it is
/// [`Right::Operate`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs(pub(super) Right);

/// A body that was read whole, and the room that it takes until it is dropped.
#[derive(Debug)]
pub struct Body {
    /// The request's headers, for what the body does not say.
    pub headers: HeaderMap,
    /// The bytes.
    pub bytes: Bytes,
    _room: Taken,
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
        serde_json::from_slice(&self.bytes).map(|Object(read)| read).map_err(Some)
    }

    /// The same, and the default where there is no body at all.
    ///
    /// # Errors
    /// 400 with what is wrong with it.
    pub fn object_or_default<T: DeserializeOwned + Default>(&self) -> Result<T, Problem> {
        if self.bytes.is_empty() { Ok(T::default()) } else { self.object() }
    }
}

/// What is a JSON object. A struct by itself is read from the list of its members' values as well: a way that nobody
/// describes, and that those who look at single members first do not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = Object<T>;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(members)).map(Object)
            }
        }
        deserializer.deserialize_map(Members(PhantomData))
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
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, state).await?;
        let Needs(right) = parts.extensions.get().copied().unwrap_or(Needs(Right::Operate));
        caller.may(right)?;
        let length = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let length: usize = length.unwrap_or(body_max);
        if length > body_max {
            return Err(too_large(body_max));
        }
        let share = app.live().shares.get(&*caller.name).cloned();
        let reading = read(body, length, body_max, Taken::new(app.bodies.clone(), share));
        let Ok(read) = tokio::time::timeout(body_time, reading).await else {
            let detail = format!("the body did not arrive within {}", humantime::format_duration(body_time));
            return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", detail));
        };
        let (bytes, room) = read?;
        Ok(Self { headers: parts.headers, bytes, _room: room })
    }
}

/// Reads all of it, with room for what came and at most a step more.
async fn read(
    mut body: axum::body::Body,
    length: usize,
    body_max: usize,
    mut room: Taken,
) -> Result<(Bytes, Taken), Problem> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::bad_request("the body was cut off"))?;
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
struct Taken {
    of: Vec<Arc<Semaphore>>,
    permits: Vec<OwnedSemaphorePermit>,
    bytes: usize,
}

impl Taken {
    fn new(all: Arc<Semaphore>, share: Option<Arc<Semaphore>>) -> Self {
        Self { of: share.into_iter().chain([all]).collect(), permits: Vec::new(), bytes: 0 }
    }

    /// Takes more, until there are so many bytes.
    fn grow(&mut self, bytes: usize) -> Result<(), Problem> {
        let more = u32::try_from(bytes.saturating_sub(self.bytes)).unwrap_or(u32::MAX);
        if more == 0 {
            return Ok(());
        }
        for room in &self.of {
            let permit = room.clone().try_acquire_many_owned(more).map_err(|_| {
                Problem::busy("too much is being published at once; try again later", Duration::from_secs(1))
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

fn too_large(body_max: usize) -> Problem {
    let detail = format!("a body has at most {body_max} bytes here");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
}
