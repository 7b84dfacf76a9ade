//! The retry advice of a problem document (RFC 9457).
//!
//! A status alone does not distinguish a request that still runs from one with an unknown outcome; both are 409. So
//! the client reads the body of a problem document, however it is framed, up to a bound. The caller still gets the
//! whole body, also of a longer document. All other responses are judged by status and headers.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use redrive_core::Disposition;
use reqwest::{Error, Response, ResponseBuilderExt};

use crate::json::Json;
use crate::status::StatusMap;

/// The longest document that is read: what fits into the first packets of a response. Redrive's own have a few
/// hundred bytes.
const LENGTH_MAX: u64 = 16 * 1024;

/// A problem document, as far as it says whether another try may help. In the extensions of the answer that it came
/// with: [`Client::problem`](super::Client::problem).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProblemDetails {
    /// What clients may go by.
    pub code: Option<ProblemCode>,
    /// A description for people.
    pub detail: Option<String>,
    /// Whether the same request may succeed later.
    pub retryable: Option<bool>,
    /// How much later.
    pub retry_after: Option<Duration>,
    /// The status of the first response, if that has expired.
    pub original_status: Option<u16>,
}

/// Why the idempotent layer of a server did not run a request, or not to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProblemCode {
    /// The operation wants a key.
    KeyMissing,
    /// The key cannot be one.
    KeyInvalid,
    /// The key was used for something else. A new intent needs a new one.
    KeyReused,
    /// The request was first sent so long ago that its record may have expired; it was not run.
    KeyTooOld,
    /// The first try is still running.
    InFlight,
    /// The outcome is unknown.
    OutcomeUnknown,
    /// It happened, and its answer is not kept any more.
    ResponseExpired,
    /// The first try failed and asked to be left alone.
    BackingOff,
    /// Another.
    Other(String),
}

impl From<&str> for ProblemCode {
    fn from(code: &str) -> Self {
        match code {
            "key-missing" => Self::KeyMissing,
            "key-invalid" => Self::KeyInvalid,
            "key-reused" => Self::KeyReused,
            "key-too-old" => Self::KeyTooOld,
            "in-flight" => Self::InFlight,
            "outcome-unknown" => Self::OutcomeUnknown,
            "response-expired" => Self::ResponseExpired,
            "backing-off" => Self::BackingOff,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl ProblemDetails {
    /// Parses a document; `None` if it is not an object.
    fn read(body: &[u8]) -> Option<Self> {
        let json = Json::parse(body).ok()?;
        let Json::Object(members) = json else { return None };
        let member = |name: &str| members.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        let text = |name| match member(name) {
            Some(Json::Text(text)) => Some(text.clone()),
            _ => None,
        };
        let number = |name| match member(name) {
            Some(Json::Number(number)) => Some(number.as_str()),
            _ => None,
        };
        let retryable = match member("retryable") {
            Some(Json::Bool(retryable)) => Some(*retryable),
            _ => None,
        };
        Some(Self {
            code: text("code").map(|code| ProblemCode::from(code.as_str())),
            detail: text("detail"),
            retryable,
            retry_after: number("retry_after_ms").and_then(|ms| ms.parse().ok()).map(Duration::from_millis),
            original_status: number("original_status").and_then(|status| status.parse().ok()),
        })
    }

    /// Combines this advice with the disposition by status and headers. "Do not retry" always wins; "retry" wins
    /// unless the client was configured for this status.
    pub(super) fn over(&self, said: Disposition, statuses: &StatusMap, response: &Response) -> Disposition {
        match (self.retryable, said) {
            (Some(false), Disposition::Retry(again)) => Disposition::Permanent(again.executed),
            (Some(true), Disposition::Permanent(_)) if statuses.has_override(response.status()) => said,
            (Some(true), Disposition::Permanent(_)) => {
                statuses.again(response.headers(), self.retry_after).unwrap_or(said)
            }
            (_, Disposition::Retry(mut again)) => {
                again.not_before = again.not_before.max(self.retry_after);
                Disposition::Retry(again)
            }
            (_, said) => said,
        }
    }
}

/// Puts the retry advice into the response's extensions, if the response is a problem document.
pub(super) async fn understood(mut response: Response) -> Result<Response, Error> {
    let is_long = response.content_length().is_some_and(|length| length > LENGTH_MAX);
    if is_long || !is_problem(&response) {
        return Ok(response);
    }
    // The length is often unknown: the body is chunked or compressed.
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await? {
        body.extend_from_slice(&part);
        if body.len() as u64 > LENGTH_MAX {
            return Ok(with_body(response, body));
        }
    }
    let refusal = ProblemDetails::read(&body);
    let mut read = with_body(response, body);
    if let Some(refusal) = refusal {
        read.extensions_mut().insert(refusal);
    }
    Ok(read)
}

fn is_problem(response: &Response) -> bool {
    let status = response.status();
    let media_type = response.headers().get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = media_type.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    (status.is_client_error() || status.is_server_error())
        && essence.eq_ignore_ascii_case("application/problem+json")
}

/// The same response, with the bytes already read put back in front of the rest.
fn with_body(response: Response, read: Vec<u8>) -> Response {
    let url = response.url().clone();
    let (parts, rest) = http::Response::<reqwest::Body>::from(response).into_parts();
    // Only a builder can set the URL of a response.
    let mut whole = http::Response::new(reqwest::Body::wrap(Whole { read: Bytes::from(read), rest }));
    if let Ok(located) = http::Response::builder().url(url).body(()) {
        *whole.extensions_mut() = located.into_parts().0.extensions;
    }
    *whole.status_mut() = parts.status;
    *whole.version_mut() = parts.version;
    *whole.headers_mut() = parts.headers;
    whole.extensions_mut().extend(parts.extensions);
    Response::from(whole)
}

/// A body that was read in part: first those bytes, then the rest.
struct Whole {
    read: Bytes,
    rest: reqwest::Body,
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.rest).poll_frame(cx);
        }
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.read)))))
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (read, rest) = (self.read.len() as u64, self.rest.size_hint());
        let mut hint = SizeHint::new();
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(read));
        }
        hint.set_lower(rest.lower().saturating_add(read));
        hint
    }
}
