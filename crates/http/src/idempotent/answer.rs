//! Responses that need no run: from a record, or instead of one.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use redrive_core::Moment;
use redrive_core::ledger::{LedgerAnswer, LedgerRecord, RecordPhase, RequestFingerprint};
use redrive_core::names::header;

use super::body::Body;
use super::identify::KeyedRequest;
use super::layer::Shared;
use super::observe::RequestOutcome;
use super::problem::Problem;
use crate::fingerprint::RequestDifference;
use crate::idempotent::protection::UnsealError;
use crate::idempotent::replay_cache::ReadyReply;
use crate::idempotent::run::outcome::respond_with;
use crate::json::Json;

pub(super) const KEY: HeaderName = HeaderName::from_static(header::IDEMPOTENCY_KEY);
pub(super) const STATUS: HeaderName = HeaderName::from_static(header::IDEMPOTENCY_STATUS);
const REPLAYED: HeaderName = HeaderName::from_static(header::IDEMPOTENT_REPLAYED);
const EXPIRES: HeaderName = HeaderName::from_static(header::IDEMPOTENCY_EXPIRES);
const FORGOTTEN: HeaderName = HeaderName::from_static(header::IDEMPOTENCY_FORGOTTEN);
const FIRST: HeaderName = HeaderName::from_static(header::IDEMPOTENCY_FIRST_RECEIVED);
const ATTEMPT: HeaderName = HeaderName::from_static(header::IDEMPOTENCY_ATTEMPT);
const APPLIED: HeaderName = HeaderName::from_static(header::PREFERENCE_APPLIED);

/// The wait to suggest if no better estimate exists.
pub(super) const SOON: Duration = Duration::from_secs(1);

/// A moment as an HTTP date.
fn date(moment: Moment) -> HeaderValue {
    let text = httpdate::fmt_http_date(SystemTime::from(moment));
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// What the ledger recorded of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recorded {
    /// Its answer, which is replayed from now on.
    Answer,
    /// Another end: retriable, unknown, or nothing because nothing happened.
    Otherwise,
    /// The end could not be written, or the outcome of the write is unknown.
    Perhaps,
}

/// Adds the layer's headers to the response of a run.
pub(super) fn ran(
    headers: &mut HeaderMap,
    known: &KeyedRequest,
    attempt: u32,
    written: Recorded,
    now: Moment,
) {
    headers.insert(KEY, known.echo.clone());
    headers.insert(REPLAYED, HeaderValue::from_static("false"));
    let status = match (written, attempt) {
        (Recorded::Perhaps, _) => Some("unrecorded"),
        (Recorded::Answer, 0 | 1) => Some("created"),
        (Recorded::Otherwise, 0 | 1) => None,
        _ => Some("resumed"),
    };
    // A handler cannot vouch for these headers itself.
    headers.remove(STATUS);
    headers.remove(EXPIRES);
    if let Some(status) = status {
        headers.insert(STATUS, HeaderValue::from_static(status));
    }
    if written == Recorded::Answer {
        headers.insert(EXPIRES, date(now + known.ask.retention.answer));
    }
    if attempt > 1 {
        headers.insert(ATTEMPT, HeaderValue::from(attempt));
    }
}

/// The response to a request that does not run.
pub(super) fn say(
    shared: &Shared,
    known: &KeyedRequest,
    answer: LedgerAnswer,
    waited: bool,
) -> Response<Body> {
    let now = shared.ledger.now();
    let mut response = match answer {
        LedgerAnswer::Reused => reused(shared, known, None),
        LedgerAnswer::InFlight { left } => {
            shared.became(RequestOutcome::InFlight);
            let wait = shared.pace.usual().map_or(left, |usual| usual.min(left)).max(SOON);
            let problem = Problem::new(
                StatusCode::CONFLICT,
                "in-flight",
                "the first request with this key is still running",
            );
            shared.problem(problem.after(wait))
        }
        LedgerAnswer::Unknown { .. } => unknown(shared, known),
        LedgerAnswer::BackingOff { until } => {
            shared.became(RequestOutcome::BackingOff);
            let detail = "the first request with this key failed and its Retry-After has not passed yet";
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "backing-off", detail);
            shared.problem(problem.after(until.since(now)))
        }
        LedgerAnswer::Replay(record) | LedgerAnswer::Gone(record) => stored(shared, known, *record, waited),
        LedgerAnswer::TooOld => {
            shared.became(RequestOutcome::TooOld);
            let detail =
                "the request was first sent so long ago that its record may have expired; it was not run";
            let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "key-too-old", detail);
            let sent = known.ask.first_sent.unwrap_or(now);
            shared.problem(problem.header(EXPIRES, date(sent + known.ask.retention.record())))
        }
    };
    response.headers_mut().insert(KEY, known.echo.clone());
    response
}

/// The key was used for a different request.
///
/// A caller that is known, and is the first one, hears whether the body or something in the head differs. Any other
/// learns nothing: not even an empty name proves that two callers are one.
pub(super) fn reused(
    shared: &Shared,
    known: &KeyedRequest,
    recorded: Option<&RequestFingerprint>,
) -> Response<Body> {
    let differs = recorded.and_then(|recorded| RequestDifference::between(recorded, &known.ask.print));
    shared.keyed(known, RequestOutcome::Mismatch, differs);
    let is_first = known.scope.principal().is_some()
        || (!known.principal.is_empty() && differs.is_some_and(|differs| !differs.caller));
    let what = differs.filter(|_| is_first).map_or("", |differs| match (differs.head, differs.body) {
        (true, true) => "; its body differs, and its path, query, media type or a header",
        (true, false) => "; its path, query, media type or a header differs",
        (false, true) => "; its body differs",
        (false, false) => "",
    });
    let said =
        if is_first { "you used this idempotency key" } else { "this idempotency key was already used" };
    let detail = format!("{said} for a different request{what}; use a new key for a new intent");
    let mut response = shared.problem(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "key-reused", detail));
    response.headers_mut().insert(KEY, known.echo.clone());
    response
}

/// The outcome is unknown.
pub(super) fn unknown(shared: &Shared, known: &KeyedRequest) -> Response<Body> {
    shared.keyed(known, RequestOutcome::Unknown, None);
    let mut detail =
        "the outcome of the first request is unknown; it is not run again until an operator resolves it"
            .to_owned();
    if let Some(hint) = &shared.settings.unknown_hint {
        detail.extend(["; ", hint]);
    }
    shared.problem(Problem::new(StatusCode::CONFLICT, "outcome-unknown", detail))
}

/// A freshly rendered response, with the headers of a replay.
pub(super) fn rendered(
    shared: &Shared,
    known: &KeyedRequest,
    record: &LedgerRecord,
    mut response: Response<Body>,
    waited: bool,
) -> Response<Body> {
    if let RecordPhase::Completed { reply, at } = &record.phase {
        shared.became(RequestOutcome::Replayed);
        *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::OK);
        if let Some(location) = reply.location().and_then(|location| HeaderValue::try_from(location).ok()) {
            response.headers_mut().insert(http::header::LOCATION, location);
        }
        replayed(
            response.headers_mut(),
            record.first,
            *at + record.retention.answer,
            waited && known.prefers_wait,
        );
    }
    response.headers_mut().insert(KEY, known.echo.clone());
    response
}

/// The headers of a replay.
pub(super) fn replayed(headers: &mut HeaderMap, first: Moment, expires: Moment, waited: bool) {
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    headers.insert(FIRST, date(first));
    headers.insert(EXPIRES, date(expires));
    if waited {
        headers.append(APPLIED, HeaderValue::from_static("wait"));
    }
}

/// An answer that was ready.
pub(super) fn ready(shared: &Shared, known: &KeyedRequest, ready: &ReadyReply) -> Response<Body> {
    shared.became(RequestOutcome::Replayed);
    let mut response = Response::new(Body::from(ready.body.clone()));
    *response.status_mut() = ready.status;
    *response.headers_mut() = ready.headers.clone();
    response.headers_mut().insert(KEY, known.echo.clone());
    response
}

/// A record that ended.
fn stored(shared: &Shared, known: &KeyedRequest, record: LedgerRecord, waited: bool) -> Response<Body> {
    let ends = record.ends().unwrap_or_default();
    let LedgerRecord { first, phase, .. } = record;
    match phase {
        RecordPhase::Completed { reply, .. } if reply.body.is_some() => {
            let reply = match shared.settings.protection.replay(&known.scope, reply) {
                Ok(reply) => reply,
                Err(UnsealError { status, location }) => {
                    unopened(shared, known);
                    return gone(shared, Some(status), location, ends);
                }
            };
            shared.became(RequestOutcome::Replayed);
            let mut response = respond_with(reply);
            replayed(response.headers_mut(), first, ends.0, waited && known.prefers_wait);
            response
        }
        RecordPhase::Completed { reply, .. } => {
            shared.became(RequestOutcome::Gone);
            gone(shared, Some(reply.status), reply.location(), ends)
        }
        RecordPhase::Tombstone { status, location, .. } => {
            shared.became(RequestOutcome::Gone);
            gone(shared, status, location, ends)
        }
        RecordPhase::InFlight { .. } | RecordPhase::Retriable { .. } | RecordPhase::Unknown { .. } => {
            unknown(shared, known)
        }
    }
}

/// No key opens the reply: a key was removed too early, or the record was tampered with.
#[cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "only the log uses it"))]
fn unopened(shared: &Shared, known: &KeyedRequest) {
    shared.became(RequestOutcome::Unopened);
    #[cfg(feature = "tracing")]
    tracing::warn!(
        operation = known.scope.operation,
        tenant = known.scope.tenant,
        key = known.scope.client_key(),
        "no key opens a stored reply; answered 410 instead"
    );
}

/// The request completed, but there is no reply to replay.
fn gone(
    shared: &Shared,
    status: Option<u16>,
    location: Option<String>,
    (answer, record): (Moment, Moment),
) -> Response<Body> {
    let detail = "the request was completed, but its reply has expired or was too large to store; it is never run again";
    let mut problem = Problem::new(StatusCode::GONE, "response-expired", detail)
        .header(EXPIRES, date(answer))
        .header(FORGOTTEN, date(record));
    if let Some(status) = status {
        problem = problem.with("original_status", Json::Number(status.to_string()));
    }
    if let Some(location) = location.and_then(|location| HeaderValue::try_from(location).ok()) {
        problem = problem.header(http::header::LOCATION, location);
    }
    shared.problem(problem)
}
