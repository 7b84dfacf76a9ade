//! What is kept of a run, and what is sent.
//!
//! Nothing is kept only where it is proven that nothing happened: the handler said so, or the endpoint is transactional
//! and committed nothing. Otherwise a 2xx, a 3xx and a 4xx that would come out the same again complete the request;
//! 408, 425, 429, 5xx, time-outs and panics let it run again where that is safe, and leave it unknown where not.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use redrive_core::Moment;
use redrive_core::ledger::{Effects, End, Reply, Scope};
use redrive_core::names::header as names;

use super::body::{Body, Read};
use super::layer::Shared;
use super::operation::{Commit, Operation};
use super::problem::Problem;
use crate::retry_after;

/// How a run ended.
pub(super) enum Ended<E> {
    /// With an answer.
    Answered(Box<Parts>, Read),
    /// The service failed, and has no answer.
    Failed(E),
    /// It panicked.
    Panicked,
    /// It ran for longer than it may.
    TooLong,
    /// The server stops.
    Drained,
}

/// What is sent.
pub(super) enum Sent<E> {
    /// An answer.
    Answer(Response<Body>),
    /// The service's own error.
    Error(E),
}

/// What is to be kept, if anything is still to be said, and what is to be sent.
pub(super) fn verdict<E>(
    shared: &Shared,
    operation: &Operation,
    ended: Ended<E>,
    now: Moment,
) -> (Option<End>, Sent<E>) {
    match operation.commit() {
        Commit::Done(reply) => {
            let mut response = respond(&reply);
            response.headers_mut().remove(names::IDEMPOTENCY_OUTCOME);
            return (None, Sent::Answer(response));
        }
        Commit::InDoubt => {
            let problem = in_doubt().after(Duration::from_secs(1));
            return (None, Sent::Answer(shared.problem(problem)));
        }
        Commit::None => {}
    }
    let again = || if shared.effects.may_rerun() { End::Retriable(None) } else { End::Unknown };
    let failed = |status, code, detail: &str| {
        let problem = Problem::new(status, code, detail).retryable(shared.effects.may_rerun());
        (Some(again()), Sent::Answer(shared.problem(problem)))
    };
    match ended {
        Ended::Failed(error) => (Some(again()), Sent::Error(error)),
        Ended::Panicked => {
            failed(StatusCode::INTERNAL_SERVER_ERROR, "handler-failed", "the handler panicked")
        }
        Ended::TooLong => {
            failed(StatusCode::GATEWAY_TIMEOUT, "timed-out", "the handler ran for longer than it may")
        }
        Ended::Drained => {
            failed(StatusCode::SERVICE_UNAVAILABLE, "shutting-down", "the server stopped before the end")
        }
        Ended::Answered(_, Read::Broken) => {
            failed(StatusCode::INTERNAL_SERVER_ERROR, "handler-failed", "the handler's answer broke off")
        }
        Ended::Answered(mut parts, read) => {
            let said = parts.headers.remove(names::IDEMPOTENCY_OUTCOME);
            if is_uncommitted(shared, parts.status) {
                return (Some(End::Nothing), Sent::Answer(shared.problem(not_committed())));
            }
            let said = said.as_ref().map(HeaderValue::as_bytes);
            let (end, body) = end(shared, operation, &parts, said, read, now);
            (Some(end), Sent::Answer(Response::from_parts(*parts, body)))
        }
    }
}

/// Nobody knows whether it was committed. Asking again finds out where it is remembered, and only there.
pub(super) fn in_doubt() -> Problem {
    let detail =
        "the commit failed in a way that leaves its fate open; under a key the same request finds out";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "commit-unknown", detail)
}

/// Whether this would be a success that was not committed.
pub(super) fn is_uncommitted(shared: &Shared, status: StatusCode) -> bool {
    shared.effects == Effects::Transactional && (status.is_success() || status.is_redirection())
}

pub(super) fn not_committed() -> Problem {
    let detail = "the handler reported a success that it had not committed; nothing happened";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "not-committed", detail).retryable(true)
}

/// What is kept of an answer, and its body.
fn end(
    shared: &Shared,
    operation: &Operation,
    parts: &Parts,
    said: Option<&[u8]>,
    read: Read,
    now: Moment,
) -> (End, Body) {
    let (bytes, body) = match read {
        Read::Whole(bytes) => (Some(bytes.clone()), Body::from(bytes)),
        Read::Larger(body) => (None, body),
        Read::Broken => (None, Body::empty()),
    };
    let transactional = shared.effects == Effects::Transactional;
    let end = match (said, parts.status.as_u16()) {
        (Some(b"none"), _) => End::Nothing,
        (Some(b"unknown"), _) => End::Unknown,
        (Some(b"final"), _) if !transactional => completed(shared, operation, parts, bytes),
        (_, 408 | 425 | 429 | 500..=599) if shared.effects.may_rerun() => {
            End::Retriable(not_before(&parts.headers, now, shared.settings.backoff_max))
        }
        (_, 408 | 425 | 429 | 500..=599) => End::Unknown,
        // It committed nothing, so nothing happened.
        _ if transactional => End::Nothing,
        _ => completed(shared, operation, parts, bytes),
    };
    (end, body)
}

fn completed(shared: &Shared, operation: &Operation, parts: &Parts, bytes: Option<Bytes>) -> End {
    let headers =
        parts.headers.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()));
    let reply = Reply {
        status: parts.status.as_u16(),
        headers: headers.collect(),
        body: bytes.map(|bytes| bytes.to_vec()),
    };
    let reply = kept(shared, operation.scope(), reply);
    End::Completed { reply, resource: operation.named_resource() }
}

/// When the handler asked to be asked again.
fn not_before(headers: &HeaderMap, now: Moment, most: Duration) -> Option<Moment> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    let wait = retry_after::parse(text, SystemTime::from(now))?;
    (!wait.is_zero()).then(|| now + wait.min(most))
}

/// An answer as it is kept.
pub(super) fn kept(shared: &Shared, scope: &Scope, mut reply: Reply) -> Reply {
    let named = connection_names(&reply);
    reply.headers.retain(|(name, _)| {
        !never_replayed(name) && !named.iter().any(|other| other.eq_ignore_ascii_case(name))
    });
    let most = shared.settings.reply_max;
    if size(&reply) > most || shared.settings.render.is_some() {
        reply.body = None;
    }
    if size(&reply) > most {
        // Without its body an answer is only pointed at.
        reply.headers.retain(|(name, _)| name.eq_ignore_ascii_case("location"));
    }
    if size(&reply) > most {
        reply.headers.clear();
    }
    shared.settings.keep.kept(scope, reply)
}

/// How many bytes an answer has.
fn size(reply: &Reply) -> usize {
    let headers = reply.headers.iter().map(|(name, value)| name.len() + value.len());
    headers.sum::<usize>() + reply.body.as_ref().map_or(0, Vec::len)
}

/// The headers that `Connection` names: they are for this connection alone.
fn connection_names(reply: &Reply) -> Vec<String> {
    let values = reply.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("connection"));
    let text = values.flat_map(|(_, value)| value.split(|byte| *byte == b','));
    text.map(|name| String::from_utf8_lossy(name).trim().to_owned()).collect()
}

/// What is for one connection, one session or one moment, and what is said anew with each answer.
fn never_replayed(name: &str) -> bool {
    const NAMES: [&str; 18] = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "set-cookie",
        "date",
        names::IDEMPOTENCY_KEY,
        names::IDEMPOTENCY_STATUS,
        names::IDEMPOTENT_REPLAYED,
        names::IDEMPOTENCY_EXPIRES,
        names::IDEMPOTENCY_FIRST_RECEIVED,
        names::IDEMPOTENCY_ATTEMPT,
        names::IDEMPOTENCY_OUTCOME,
    ];
    NAMES.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// A kept answer as it is sent.
pub fn respond(reply: &Reply) -> Response<Body> {
    let body = reply.body.as_ref().map_or_else(Body::empty, |body| Body::from(body.clone()));
    dressed(reply.status, &reply.headers, body)
}

/// The same, without a copy of the body.
pub(super) fn respond_with(reply: Reply) -> Response<Body> {
    let body = reply.body.map_or_else(Body::empty, Body::from);
    dressed(reply.status, &reply.headers, body)
}

fn dressed(status: u16, headers: &[(String, Vec<u8>)], body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = headers_of(headers);
    response
}

/// Kept headers as they are sent.
pub(super) fn headers_of(kept: &[(String, Vec<u8>)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in kept {
        // What was a header once is one again; what a person resolved by hand may not be.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value))
        {
            headers.append(name, value);
        }
    }
    headers
}

/// Whether an answer goes on and on.
pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.len() >= 17 && kind[..17].eq_ignore_ascii_case(b"text/event-stream")
}
