//! What is answered without running: from a record, or instead of one.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use redrive_core::Moment;
use redrive_core::ledger::{Answer, Phase, Record};
use redrive_core::names::header;

use super::body::Body;
use super::identify::Known;
use super::keep::Unopened;
use super::layer::Shared;
use super::observe::Became;
use super::outcome::respond_with;
use super::problem::Problem;
use super::remembered::Ready;
use crate::json::Json;

pub(super) const KEY: HeaderName = HeaderName::from_static(header::IDEMPOTENCY_KEY);
pub(super) const STATUS: HeaderName = HeaderName::from_static(header::IDEMPOTENCY_STATUS);
const REPLAYED: HeaderName = HeaderName::from_static(header::IDEMPOTENT_REPLAYED);
const EXPIRES: HeaderName = HeaderName::from_static(header::IDEMPOTENCY_EXPIRES);
const FORGOTTEN: HeaderName = HeaderName::from_static(header::IDEMPOTENCY_FORGOTTEN);
const FIRST: HeaderName = HeaderName::from_static(header::IDEMPOTENCY_FIRST_RECEIVED);
const ATTEMPT: HeaderName = HeaderName::from_static(header::IDEMPOTENCY_ATTEMPT);
const APPLIED: HeaderName = HeaderName::from_static(header::PREFERENCE_APPLIED);

/// How long to wait where nothing better is known.
pub(super) const SOON: Duration = Duration::from_secs(1);

/// A moment as a header has it.
fn date(moment: Moment) -> HeaderValue {
    let text = httpdate::fmt_http_date(SystemTime::from(moment));
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// What is written down of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// Its answer, which is replayed from now on.
    Answer,
    /// That it may be run again, that nobody knows, or nothing, as it did nothing.
    Otherwise,
    /// Its end could not be written, or nobody knows whether it was.
    Perhaps,
}

/// What an answer of a run has beside what its handler said.
pub(super) fn ran(headers: &mut HeaderMap, known: &Known, attempt: u32, written: Written, now: Moment) {
    headers.insert(KEY, known.echo.clone());
    headers.insert(REPLAYED, HeaderValue::from_static("false"));
    let status = match (written, attempt) {
        (Written::Perhaps, _) => Some("unrecorded"),
        (Written::Answer, 0 | 1) => Some("created"),
        (Written::Otherwise, 0 | 1) => None,
        _ => Some("resumed"),
    };
    // What a handler says of itself is not known to be so.
    headers.remove(STATUS);
    headers.remove(EXPIRES);
    if let Some(status) = status {
        headers.insert(STATUS, HeaderValue::from_static(status));
    }
    if written == Written::Answer {
        headers.insert(EXPIRES, date(now + known.ask.retention.answer));
    }
    if attempt > 1 {
        headers.insert(ATTEMPT, HeaderValue::from(attempt));
    }
}

/// What a request is answered that does not run.
pub(super) fn say(shared: &Shared, known: &Known, answer: Answer, waited: bool) -> Response<Body> {
    let now = shared.ledger.now();
    let mut response = match answer {
        Answer::Reused => {
            shared.became(Became::Mismatch);
            let detail = "the key was used for something else; a new intent needs a new key";
            shared.problem(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "key-reused", detail))
        }
        Answer::InFlight { left } => {
            shared.became(Became::InFlight);
            let wait = shared.pace.usual().map_or(left, |usual| usual.min(left)).max(SOON);
            let problem = Problem::new(StatusCode::CONFLICT, "in-flight", "the first try is still running");
            shared.problem(problem.after(wait))
        }
        Answer::Unknown { .. } => unknown(shared),
        Answer::BackingOff { until } => {
            shared.became(Became::BackingOff);
            let detail = "the first try failed and asked to be left alone for longer";
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "backing-off", detail);
            shared.problem(problem.after(until.since(now)))
        }
        Answer::Replay(record) | Answer::Gone(record) => stored(shared, known, *record, waited),
        Answer::TooOld => {
            shared.became(Became::TooOld);
            let detail = "it was first sent so long ago that its first try may be forgotten; it was not run";
            let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "key-too-old", detail);
            let sent = known.ask.first_sent.unwrap_or(now);
            shared.problem(problem.header(EXPIRES, date(sent + known.ask.retention.record())))
        }
    };
    response.headers_mut().insert(KEY, known.echo.clone());
    response
}

/// Nobody knows.
pub(super) fn unknown(shared: &Shared) -> Response<Body> {
    shared.became(Became::Unknown);
    let detail = "it may have happened, and nobody knows; it is not run again until that is resolved";
    shared.problem(Problem::new(StatusCode::CONFLICT, "outcome-unknown", detail))
}

/// An answer that was made anew, with what a replay has.
pub(super) fn rendered(
    shared: &Shared,
    known: &Known,
    record: &Record,
    mut response: Response<Body>,
    waited: bool,
) -> Response<Body> {
    if let Phase::Completed { reply, at } = &record.phase {
        shared.became(Became::Replayed);
        *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::OK);
        if let Some(location) = reply.location().and_then(|location| HeaderValue::try_from(location).ok()) {
            response.headers_mut().insert(http::header::LOCATION, location);
        }
        replayed(response.headers_mut(), record.first, *at + record.retention.answer, waited);
    }
    response.headers_mut().insert(KEY, known.echo.clone());
    response
}

/// What a replay says of itself.
pub(super) fn replayed(headers: &mut HeaderMap, first: Moment, expires: Moment, waited: bool) {
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    headers.insert(FIRST, date(first));
    headers.insert(EXPIRES, date(expires));
    if waited {
        headers.append(APPLIED, HeaderValue::from_static("wait"));
    }
}

/// An answer that was ready.
pub(super) fn ready(shared: &Shared, known: &Known, ready: &Ready) -> Response<Body> {
    shared.became(Became::Replayed);
    let mut response = Response::new(Body::from(ready.body.clone()));
    *response.status_mut() = ready.status;
    *response.headers_mut() = ready.headers.clone();
    response.headers_mut().insert(KEY, known.echo.clone());
    response
}

/// A record that ended.
fn stored(shared: &Shared, known: &Known, record: Record, waited: bool) -> Response<Body> {
    let ends = record.ends().unwrap_or_default();
    let Record { first, phase, .. } = record;
    match phase {
        Phase::Completed { reply, .. } if reply.body.is_some() => {
            let reply = match shared.settings.keep.replay(&known.scope, reply) {
                Ok(reply) => reply,
                Err(Unopened { status, location }) => {
                    unopened(shared, known);
                    return gone(shared, Some(status), location, ends);
                }
            };
            shared.became(Became::Replayed);
            let mut response = respond_with(reply);
            replayed(response.headers_mut(), first, ends.0, waited);
            response
        }
        Phase::Completed { reply, .. } => {
            shared.became(Became::Gone);
            gone(shared, Some(reply.status), reply.location(), ends)
        }
        Phase::Tombstone { status, location, .. } => {
            shared.became(Became::Gone);
            gone(shared, status, location, ends)
        }
        Phase::InFlight { .. } | Phase::Retriable { .. } | Phase::Unknown { .. } => unknown(shared),
    }
}

/// No key opens the answer: somebody took one away too early, or the record was meddled with.
#[cfg_attr(
    not(feature = "tracing"),
    expect(unused_variables, reason = "without logs there is nobody to tell")
)]
fn unopened(shared: &Shared, known: &Known) {
    shared.became(Became::Unopened);
    #[cfg(feature = "tracing")]
    tracing::warn!(
        operation = known.scope.operation,
        tenant = known.scope.tenant,
        key = known.scope.key,
        "no key opens a stored answer; it is told to be gone"
    );
}

/// It happened, and there is no answer to replay.
fn gone(
    shared: &Shared,
    status: Option<u16>,
    location: Option<String>,
    (answer, record): (Moment, Moment),
) -> Response<Body> {
    let detail =
        "it ended, and its answer is not kept any more or was too large to be; it is never run again";
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
