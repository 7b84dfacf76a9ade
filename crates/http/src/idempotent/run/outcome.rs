//! What is stored of a run, and what is sent.
//!
//! No record is kept only if it is proven that nothing happened: the handler said so, or the endpoint is
//! transactional and committed nothing. Otherwise 2xx, 3xx and repeatable 4xx complete the request; 408, 425, 429,
//! 5xx, timeouts and panics make it retriable if that is safe, otherwise unknown; so does a 409 that asks to be
//! repeated, because it says that a request under the same key is still running.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use redrive_core::Moment;
use redrive_core::ledger::{Effects, RequestScope, RunEnding, StoredReply};
use redrive_core::names::header as names;

use crate::idempotent::body::{Body, Read};
use crate::idempotent::layer::Shared;
use crate::idempotent::operation::{Commit, KeyedOperation};
use crate::idempotent::problem::Problem;
use crate::{retry_after, retry_hints};

/// How a run ended.
pub(in crate::idempotent) enum RunEnd<E> {
    /// With an answer.
    Answered(Box<Parts>, Read),
    /// The service failed, and has no answer.
    Failed(E),
    /// It panicked.
    Panicked,
    /// It exceeded its time limit.
    TooLong,
    /// The server stops.
    Drained,
}

/// What is sent to the client.
pub(in crate::idempotent) enum Outgoing<E> {
    /// An answer.
    Answer(Response<Body>),
    /// The service's own error.
    Error(E),
}

/// The end to record, if one is still needed, and the response to send.
pub(in crate::idempotent) fn verdict<E>(
    shared: &Shared,
    operation: &KeyedOperation,
    ended: RunEnd<E>,
    now: Moment,
) -> (Option<RunEnding>, Outgoing<E>) {
    match operation.commit() {
        Commit::Done(reply) => {
            let mut response = respond(&reply);
            response.headers_mut().remove(names::IDEMPOTENCY_OUTCOME);
            return (None, Outgoing::Answer(response));
        }
        Commit::InDoubt => {
            let problem = in_doubt().after(Duration::from_secs(1));
            return (None, Outgoing::Answer(shared.problem(problem)));
        }
        Commit::None => {}
    }
    let again = || if shared.effects.may_rerun() { RunEnding::Retriable(None) } else { RunEnding::Unknown };
    let failed = |status, code, detail: &str| {
        let problem = Problem::new(status, code, detail).retryable(shared.effects.may_rerun());
        (Some(again()), Outgoing::Answer(shared.problem(problem)))
    };
    match ended {
        RunEnd::Failed(error) => (Some(again()), Outgoing::Error(error)),
        RunEnd::Panicked => {
            failed(StatusCode::INTERNAL_SERVER_ERROR, "handler-failed", "the handler panicked")
        }
        RunEnd::TooLong => {
            failed(StatusCode::GATEWAY_TIMEOUT, "timed-out", "the handler exceeded its time limit")
        }
        RunEnd::Drained => failed(
            StatusCode::SERVICE_UNAVAILABLE,
            "shutting-down",
            "the server stopped before the handler finished",
        ),
        RunEnd::Answered(_, Read::Broken) => {
            failed(StatusCode::INTERNAL_SERVER_ERROR, "handler-failed", "the handler's response was cut off")
        }
        RunEnd::Answered(mut parts, read) => {
            let said = parts.headers.remove(names::IDEMPOTENCY_OUTCOME);
            if is_uncommitted(shared, parts.status) {
                return (Some(RunEnding::Nothing), Outgoing::Answer(shared.problem(not_committed())));
            }
            let said = said.as_ref().map(HeaderValue::as_bytes);
            let (end, body) = end(shared, operation, &parts, said, read, now);
            (Some(end), Outgoing::Answer(Response::from_parts(*parts, body)))
        }
    }
}

/// The outcome of the commit is unknown. A repeated request learns it if there is a record.
pub(in crate::idempotent) fn in_doubt() -> Problem {
    let detail = "the outcome of the commit is unknown; repeat the request with the same key to learn it";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "commit-unknown", detail)
}

/// Whether this response claims a success that was not committed.
pub(in crate::idempotent) fn is_uncommitted(shared: &Shared, status: StatusCode) -> bool {
    shared.effects == Effects::Transactional && (status.is_success() || status.is_redirection())
}

pub(in crate::idempotent) fn not_committed() -> Problem {
    let detail = "the handler returned success without committing; nothing happened";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "not-committed", detail).retryable(true)
}

/// The end to record for a response, and its body.
fn end(
    shared: &Shared,
    operation: &KeyedOperation,
    parts: &Parts,
    said: Option<&[u8]>,
    read: Read,
    now: Moment,
) -> (RunEnding, Body) {
    let (bytes, body) = match read {
        Read::Whole(bytes) => (Some(bytes.clone()), Body::from(bytes)),
        Read::Larger(body) => (None, body),
        Read::Broken => (None, Body::empty()),
    };
    let transactional = shared.effects == Effects::Transactional;
    let end = match (said, parts.status.as_u16()) {
        (Some(b"none"), _) => RunEnding::Nothing,
        (Some(b"unknown"), _) => RunEnding::Unknown,
        (Some(b"final"), _) if !transactional => completed(shared, operation, parts, bytes),
        (_, 408 | 425 | 429 | 500..=599) if shared.effects.may_rerun() => {
            RunEnding::Retriable(not_before(&parts.headers, now, shared.settings.backoff_max))
        }
        (_, 408 | 425 | 429 | 500..=599) => RunEnding::Unknown,
        // It committed nothing, so nothing happened.
        _ if transactional => RunEnding::Nothing,
        // A request under this key still runs behind the handler: the answer of a moment, which must not be replayed.
        _ if retry_hints::is_in_progress(parts.status, &parts.headers) => match shared.effects.may_rerun() {
            true => RunEnding::Retriable(not_before(&parts.headers, now, shared.settings.backoff_max)),
            false => RunEnding::Unknown,
        },
        _ => completed(shared, operation, parts, bytes),
    };
    (end, body)
}

fn completed(shared: &Shared, operation: &KeyedOperation, parts: &Parts, bytes: Option<Bytes>) -> RunEnding {
    let headers =
        parts.headers.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()));
    let reply = StoredReply {
        status: parts.status.as_u16(),
        headers: headers.collect(),
        body: bytes.map(|bytes| bytes.to_vec()),
    };
    let reply = kept(shared, operation.scope(), reply);
    RunEnding::Completed { reply, resource: operation.named_resource() }
}

/// When the handler asked to be asked again.
fn not_before(headers: &HeaderMap, now: Moment, most: Duration) -> Option<Moment> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    let wait = retry_after::parse(text, SystemTime::from(now))?;
    (!wait.is_zero()).then(|| now + wait.min(most))
}

/// The stored form of a reply.
pub(in crate::idempotent) fn kept(
    shared: &Shared,
    scope: &RequestScope,
    mut reply: StoredReply,
) -> StoredReply {
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
    shared.settings.protection.kept(scope, reply)
}

/// How many bytes an answer has.
fn size(reply: &StoredReply) -> usize {
    let headers = reply.headers.iter().map(|(name, value)| name.len() + value.len());
    headers.sum::<usize>() + reply.body.as_ref().map_or(0, Vec::len)
}

/// The headers that `Connection` names: they are for this connection alone.
fn connection_names(reply: &StoredReply) -> Vec<String> {
    let values = reply.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("connection"));
    let text = values.flat_map(|(_, value)| value.split(|byte| *byte == b','));
    text.map(|name| String::from_utf8_lossy(name).trim().to_owned()).collect()
}

/// Headers of one connection, one session or one moment, and those set anew for each response.
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

/// A response from a stored reply.
pub fn respond(reply: &StoredReply) -> Response<Body> {
    let body = reply.body.as_ref().map_or_else(Body::empty, |body| Body::from(body.clone()));
    dressed(reply.status, &reply.headers, body)
}

/// The same, without copying the body.
pub(in crate::idempotent) fn respond_with(reply: StoredReply) -> Response<Body> {
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
pub(in crate::idempotent) fn headers_of(kept: &[(String, Vec<u8>)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in kept {
        // Stored headers are valid; those that an operator resolved by hand may not be.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value))
        {
            headers.append(name, value);
        }
    }
    headers
}

/// Whether a response is an endless stream.
pub(in crate::idempotent) fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.len() >= 17 && kind[..17].eq_ignore_ascii_case(b"text/event-stream")
}
