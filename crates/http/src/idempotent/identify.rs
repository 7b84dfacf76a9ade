//! Which request it is, and what it asks.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body::Body as HttpBody;
use redrive_core::Moment;
use redrive_core::ledger::{Ask, Record, Scope};
use redrive_core::names::header;

use super::body::{Body, BoxError, Read, read};
use super::endpoint::Whose;
use super::layer::Shared;
use super::problem::Problem;
use super::remembered::{Remembered, Spelling};
use crate::fingerprint::{self, fingerprint};
use crate::json::{Json, JsonError, Numbers};
use crate::key;

/// What keys are made for that come from a body.
const CONTEXT: &str = "redrive 2026 identity from pointers v1";

/// How many bytes the name of a tenant has at most: it is part of a key in the store.
pub(super) const NAME_MAX: usize = 255;

/// A request that can be looked up.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) scope: Scope,
    pub(super) ask: Ask,
    /// The key, as it goes back with the answer.
    pub(super) echo: HeaderValue,
    /// How long its client waits for one that runs.
    pub(super) wait: Option<Duration>,
    /// Who asks, as it is in the fingerprint.
    pub(super) principal: String,
    /// What is remembered of it, if it is over.
    pub(super) ended: Option<Arc<Remembered>>,
}

/// What came.
pub(super) enum Identified {
    /// It has a key.
    Known(Box<Known>, Bytes),
    /// It has none, and needs none.
    Unkeyed(Scope, Body),
}

/// Reads a request's key and body. Nothing is looked up for one that is refused here.
pub(super) async fn identify<B>(shared: &Shared, parts: &Parts, body: B) -> Result<Identified, Problem>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let settings = &shared.settings;
    let given = key::of(&parts.headers)
        .map_err(|error| Problem::new(StatusCode::BAD_REQUEST, "key-invalid", error.to_string()).linked())?;
    if given.is_none() && settings.identity.is_empty() {
        return unkeyed(shared, parts, Body::stream(body));
    }
    let tenant = tenant(shared, parts).ok_or_else(|| {
        Problem::new(StatusCode::FORBIDDEN, "tenant-missing", "the request does not say whose it is")
    })?;
    let bytes = match read(body, settings.body_max).await {
        Read::Whole(bytes) => bytes,
        Read::Larger(_) => {
            let detail = format!("a request to this operation has at most {} bytes", settings.body_max);
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", detail));
        }
        Read::Broken => {
            let detail = "the request's body broke off; nothing was looked up or run";
            return Err(Problem::new(StatusCode::BAD_REQUEST, "body-broken", detail).retryable(true));
        }
    };
    let (key, echo) = match given {
        Some(key) => (key, parts.headers.get(header::IDEMPOTENCY_KEY).cloned()),
        None => match from_body(&settings.identity, &bytes) {
            Some(key) => {
                let echo = key::quoted(&key);
                (key, echo)
            }
            None => return unkeyed(shared, parts, Body::from(bytes)),
        },
    };
    let first_sent = first_sent(shared, &parts.headers, &key)?;
    let scope = Scope { tenant, operation: named(shared, &parts.method), key };
    let principal = settings.principal.as_ref().and_then(|read| read(parts)).unwrap_or_default();
    let ended = shared.ledger.recall(&scope);
    let headers = headers(shared, parts);
    let asked = asked(parts, &scope.tenant, &principal, &headers, &bytes);
    let ask = ask(shared, &asked, ended.as_deref(), first_sent)?;
    let echo = echo.unwrap_or_else(|| HeaderValue::from_static(""));
    let known = Known { scope, ask, echo, wait: wait(&parts.headers), principal, ended };
    Ok(Identified::Known(Box::new(known), bytes))
}

fn unkeyed(shared: &Shared, parts: &Parts, body: Body) -> Result<Identified, Problem> {
    if shared.settings.required {
        let detail = "mint an Idempotency-Key for each intent, and keep it over all tries";
        return Err(Problem::new(StatusCode::BAD_REQUEST, "key-missing", detail).linked());
    }
    let tenant = tenant(shared, parts).unwrap_or_default();
    let key = key::mint().to_str().unwrap_or_default().trim_matches('"').to_owned();
    Ok(Identified::Unkeyed(Scope { tenant, operation: named(shared, &parts.method), key }, body))
}

pub(super) fn tenant(shared: &Shared, parts: &Parts) -> Option<String> {
    match &shared.tenant.0 {
        Whose::Fixed(name) => Some(name.clone()),
        Whose::Read(read) => read(parts).filter(|name| name.len() <= NAME_MAX),
    }
}

/// The name of the operation; with the method before it, where it is for several.
pub(super) fn named(shared: &Shared, method: &Method) -> String {
    let name = &shared.settings.operation;
    if shared.settings.method.is_some() { name.clone() } else { format!("{method} {name}") }
}

/// The headers that count.
fn headers<'a>(shared: &'a Shared, parts: &'a Parts) -> Vec<(&'a str, &'a [u8])> {
    let mut headers: Vec<(&str, &[u8])> = Vec::new();
    for name in &shared.settings.headers {
        let values = parts.headers.get_all(name).iter();
        headers.extend(values.map(|value| (name.as_str(), value.as_bytes())));
    }
    headers
}

fn asked<'a>(
    parts: &'a Parts,
    tenant: &'a str,
    principal: &'a str,
    headers: &'a [(&'a str, &'a [u8])],
    body: &'a [u8],
) -> fingerprint::Asked<'a> {
    let media_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    fingerprint::Asked {
        tenant,
        principal,
        path: parts.uri.path(),
        query: parts.uri.query().unwrap_or_default(),
        headers,
        media_type: media_type.unwrap_or_default(),
        body,
    }
}

fn ask(
    shared: &Shared,
    asked: &fingerprint::Asked<'_>,
    ended: Option<&Remembered>,
    first_sent: Option<Moment>,
) -> Result<Ask, Problem> {
    let settings = &shared.settings;
    let ambiguous =
        |error: JsonError| Problem::new(StatusCode::BAD_REQUEST, "body-ambiguous", error.to_string());
    let (print, older) = match ended.and_then(|ended| ended.prints(asked, &settings.parts)) {
        Some(prints) => prints,
        None => {
            let print = fingerprint(asked, &settings.parts).map_err(ambiguous)?;
            (print, fingerprint::older(asked, &settings.parts).map_err(ambiguous)?)
        }
    };
    Ok(Ask {
        print,
        older,
        effects: shared.effects,
        lease: settings.lease,
        retention: settings.kept(),
        first_sent,
        skew: settings.skew,
    })
}

/// Has a ledger remember a request that is over, in its memory.
pub(super) fn remember(shared: &Shared, known: &Known, parts: &Parts, body: &[u8], record: &Record) {
    let spelling = || {
        let headers = headers(shared, parts);
        let asked = asked(parts, &known.scope.tenant, &known.principal, &headers, body);
        Spelling::of(&asked, &shared.settings.parts, &known.ask)
    };
    let spelling = shared.settings.keep.keeps_all().then(spelling).flatten();
    if let Some(ended) = Remembered::new(record) {
        shared.ledger.remember(&known.scope, ended.asked(spelling));
    }
}

/// When the client first sent it, as its header or its key says.
fn first_sent(shared: &Shared, headers: &HeaderMap, key: &str) -> Result<Option<Moment>, Problem> {
    if let Some(value) = headers.get(header::REPEATABILITY_FIRST_SENT) {
        let date = value.to_str().ok().and_then(|text| httpdate::parse_http_date(text).ok());
        return date.map(|date| Some(Moment::from(date))).ok_or_else(|| {
            let detail = "Repeatability-First-Sent is an HTTP date, such as `Sun, 06 Nov 1994 08:49:37 GMT`";
            Problem::new(StatusCode::BAD_REQUEST, "first-sent-invalid", detail)
        });
    }
    if !shared.settings.uuid_time {
        return Ok(None);
    }
    let minted = uuid::Uuid::try_parse(key).ok().filter(|uuid| uuid.get_version_num() == 7);
    let stamp = minted.and_then(|uuid| uuid.get_timestamp());
    Ok(stamp.map(|stamp| {
        let (seconds, nanos) = stamp.to_unix();
        Moment::from(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos))
    }))
}

/// A key made of what stands in the body; none where something is missing.
fn from_body(pointers: &[String], body: &[u8]) -> Option<String> {
    let json = Json::parse(body).ok()?;
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    for pointer in pointers {
        let value = json.at(pointer).filter(|value| **value != Json::Null)?;
        for part in [pointer, &value.canonical(Numbers::Exact).ok()?] {
            hasher.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hasher.update(part.as_bytes());
        }
    }
    Some(format!("body-{}", &hasher.finalize().to_hex()[..32]))
}

/// `Prefer: wait=n`, in seconds (RFC 7240).
fn wait(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all(header::PREFER).iter().filter_map(|value| value.to_str().ok());
    let mut wishes = values.flat_map(|value| value.split([',', ';']));
    wishes.find_map(|wish| {
        let (name, seconds) = wish.split_once('=')?;
        let seconds = seconds.trim().trim_matches('"').parse().ok()?;
        name.trim().eq_ignore_ascii_case("wait").then(|| Duration::from_secs(seconds))
    })
}
