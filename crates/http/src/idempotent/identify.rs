//! The identity and fingerprint of a request.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body::Body as HttpBody;
use redrive_core::Moment;
use redrive_core::ledger::{ClaimRequest, LedgerRecord, RequestScope};
use redrive_core::names::header;

use super::body::{Body, BoxError, Read, read};
use super::endpoint::TenantSource;
use super::layer::Shared;
use super::problem::Problem;
use crate::fingerprint::{self, fingerprint};
use crate::idempotency_key;
use crate::idempotent::replay_cache::{CachedReply, ExactRequest};
use crate::json::{Json, JsonError, NumberFormat};

/// What keys are made for that come from a body.
const CONTEXT: &str = "redrive 2026 identity from pointers v1";

/// How many bytes the name of a tenant has at most: it is part of a key in the store.
pub(super) const NAME_MAX: usize = 255;

/// A request that can be looked up.
#[derive(Debug)]
pub(super) struct KeyedRequest {
    pub(super) scope: RequestScope,
    pub(super) ask: ClaimRequest,
    /// The key, as it goes back with the answer.
    pub(super) echo: HeaderValue,
    /// How long it waits for a request in progress: as its client says, or as the endpoint does.
    pub(super) wait: Option<Duration>,
    /// Whether the client said so.
    pub(super) prefers_wait: bool,
    /// The principal, as in the fingerprint.
    pub(super) principal: String,
    /// The cached reply, if the request has completed.
    pub(super) ended: Option<Arc<CachedReply>>,
}

/// An identified request.
pub(super) enum Identified {
    /// It has a key.
    Keyed(Box<KeyedRequest>, Bytes),
    /// It has none, and needs none.
    Unkeyed(RequestScope, Body),
}

/// Reads a request's key and body. A request refused here causes no lookup.
pub(super) async fn identify<B>(shared: &Shared, parts: &Parts, body: B) -> Result<Identified, Problem>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let settings = &shared.settings;
    let given = idempotency_key::of(&parts.headers)
        .map_err(|error| Problem::new(StatusCode::BAD_REQUEST, "key-invalid", error.to_string()).linked())?;
    if given.is_none() && settings.identity.is_empty() {
        return unkeyed(shared, parts, Body::stream(body));
    }
    let tenant = tenant(shared, parts).ok_or_else(|| {
        Problem::new(StatusCode::FORBIDDEN, "tenant-missing", "the request names no tenant")
    })?;
    let bytes = match read(body, settings.body_max).await {
        Read::Whole(bytes) => bytes,
        Read::Larger(_) => {
            let detail = format!(
                "the request body exceeds the limit of {} bytes for this operation",
                settings.body_max
            );
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", detail));
        }
        Read::Broken => {
            let detail = "the request body was cut off; nothing was looked up or run";
            return Err(Problem::new(StatusCode::BAD_REQUEST, "body-broken", detail).retryable(true));
        }
    };
    let (key, echo) = match given {
        Some(key) => (key, parts.headers.get(header::IDEMPOTENCY_KEY).cloned()),
        None => match from_body(&settings.identity, &bytes) {
            Some(key) => {
                let echo = idempotency_key::quoted(&key);
                (key, echo)
            }
            None => return unkeyed(shared, parts, Body::from(bytes)),
        },
    };
    let first_sent = first_sent(shared, &parts.headers, &key)?;
    let caller = principal(shared, parts);
    if caller.is_none() && settings.principal_required {
        let detail = "the request names no principal";
        return Err(Problem::new(StatusCode::FORBIDDEN, "principal-missing", detail));
    }
    let scope = RequestScope { tenant, operation: named(shared, &parts.method), key };
    let scope = caller.iter().fold(scope, |scope, caller| scope.of_principal(caller));
    let credentials = || settings.credentials.as_ref().and_then(|read| read(parts));
    let principal = caller.or_else(credentials).unwrap_or_default();
    let ended = shared.ledger.cached(&scope);
    let headers = headers(shared, parts);
    let asked = asked(parts, &scope.tenant, &principal, &headers, &bytes);
    let ask = ask(shared, &asked, ended.as_deref(), first_sent)?;
    let echo = echo.unwrap_or_else(|| HeaderValue::from_static(""));
    let preferred = wait(&parts.headers);
    let wait = preferred.or(Some(settings.wait).filter(|wait| !wait.is_zero()));
    let prefers_wait = preferred.is_some();
    let known = KeyedRequest { scope, ask, echo, wait, prefers_wait, principal, ended };
    Ok(Identified::Keyed(Box::new(known), bytes))
}

fn unkeyed(shared: &Shared, parts: &Parts, body: Body) -> Result<Identified, Problem> {
    if shared.settings.required {
        let detail =
            "this operation requires an Idempotency-Key; create one per intent and reuse it for every retry";
        return Err(Problem::new(StatusCode::BAD_REQUEST, "key-missing", detail).linked());
    }
    let tenant = tenant(shared, parts).unwrap_or_default();
    let key = idempotency_key::mint().to_str().unwrap_or_default().trim_matches('"').to_owned();
    Ok(Identified::Unkeyed(RequestScope { tenant, operation: named(shared, &parts.method), key }, body))
}

pub(super) fn tenant(shared: &Shared, parts: &Parts) -> Option<String> {
    match &shared.tenant.0 {
        TenantSource::Fixed(name) => Some(name.clone()),
        TenantSource::Read(read) => read(parts).filter(|name| name.len() <= NAME_MAX),
    }
}

/// The principal, in a form that fits into a scope.
pub(super) fn principal(shared: &Shared, parts: &Parts) -> Option<String> {
    let name = shared.settings.principal.as_ref().and_then(|read| read(parts))?;
    let fits = name.len() <= NAME_MAX && !name.chars().any(char::is_control);
    Some(if fits { name } else { format!("blake3:{}", blake3::hash(name.as_bytes()).to_hex()) })
}

/// The operation's name, prefixed with the method if it covers several.
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
) -> fingerprint::FingerprintInput<'a> {
    let media_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    fingerprint::FingerprintInput {
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
    asked: &fingerprint::FingerprintInput<'_>,
    ended: Option<&CachedReply>,
    first_sent: Option<Moment>,
) -> Result<ClaimRequest, Problem> {
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
    Ok(ClaimRequest {
        print,
        older,
        effects: shared.effects,
        lease: settings.lease,
        retention: settings.kept(),
        first_sent,
        skew: settings.skew,
    })
}

/// Caches the reply of a completed request in the ledger's memory.
pub(super) fn remember(
    shared: &Shared,
    known: &KeyedRequest,
    parts: &Parts,
    body: &[u8],
    record: &LedgerRecord,
) {
    let exact = || {
        let headers = headers(shared, parts);
        let asked = asked(parts, &known.scope.tenant, &known.principal, &headers, body);
        ExactRequest::of(&asked, &shared.settings.parts, &known.ask)
    };
    let exact = shared.settings.protection.keeps_all().then(exact).flatten();
    if let Some(ended) = CachedReply::new(record) {
        shared.ledger.cache(&known.scope, ended.asked(exact));
    }
}

/// When the client first sent it, as its header or its key says.
fn first_sent(shared: &Shared, headers: &HeaderMap, key: &str) -> Result<Option<Moment>, Problem> {
    if let Some(value) = headers.get(header::REPEATABILITY_FIRST_SENT) {
        let date = value.to_str().ok().and_then(|text| httpdate::parse_http_date(text).ok());
        return date.map(|date| Some(Moment::from(date))).ok_or_else(|| {
            let detail =
                "Repeatability-First-Sent must be an HTTP date, such as `Sun, 06 Nov 1994 08:49:37 GMT`";
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

/// Derives a key from the body; `None` if a value is missing.
fn from_body(pointers: &[String], body: &[u8]) -> Option<String> {
    let json = Json::parse(body).ok()?;
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    for pointer in pointers {
        let value = json.at(pointer).filter(|value| **value != Json::Null)?;
        for part in [pointer, &value.canonical(NumberFormat::Exact).ok()?] {
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
