//! What a problem document (RFC 9457) says of another try.
//!
//! A status alone does not tell a request that still runs from one whose outcome nobody knows; both are 409. So the body
//! of an answer that is a problem document is read, however it is framed, as far as such a document may be long; and the
//! answer is handed out with its body all the same, of a longer one too. Anything else is judged by status and headers,
//! as ever.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use redrive_core::Disposition;
use reqwest::{Error, Response, ResponseBuilderExt};

use crate::json::Json;
use crate::status::StatusMap;

/// How long a document is that is read: as much as fits into the first packets of an answer. Ours have some hundred
/// bytes.
const LENGTH_MAX: u64 = 16 * 1024;

/// A problem document, as far as it says whether another try may help. In the extensions of the answer that it came
/// with: [`Client::refusal`](super::Client::refusal).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// What clients may go by.
    pub code: Option<Code>,
    /// What was wrong, for people.
    pub detail: Option<String>,
    /// Whether the same request may help, later.
    pub retryable: Option<bool>,
    /// How much later.
    pub retry_after: Option<Duration>,
    /// The status of the first answer, where that is gone.
    pub original_status: Option<u16>,
}

/// Why the idempotent layer of a server did not run a request, or not to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Code {
    /// The operation wants a key.
    KeyMissing,
    /// The key cannot be one.
    KeyInvalid,
    /// The key was used for something else. A new intent needs a new one.
    KeyReused,
    /// It was first sent so long ago that it may have been forgotten; it was not run.
    KeyTooOld,
    /// The first try is still running.
    InFlight,
    /// It may have happened, and nobody knows.
    OutcomeUnknown,
    /// It happened, and its answer is not kept any more.
    ResponseExpired,
    /// The first try failed and asked to be left alone.
    BackingOff,
    /// Another.
    Other(String),
}

impl From<&str> for Code {
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

impl Refusal {
    /// Reads a document; none where it is no object.
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
            code: text("code").map(|code| Code::from(code.as_str())),
            detail: text("detail"),
            retryable,
            retry_after: number("retry_after_ms").and_then(|ms| ms.parse().ok()).map(Duration::from_millis),
            original_status: number("original_status").and_then(|status| status.parse().ok()),
        })
    }

    /// What it makes of what status and headers said. "Not again" is always believed; "again" is where nobody who set
    /// up the client said otherwise of the status.
    pub(super) fn over(&self, said: Disposition, statuses: &StatusMap, response: &Response) -> Disposition {
        match (self.retryable, said) {
            (Some(false), Disposition::Retry(again)) => Disposition::Permanent(again.executed),
            (Some(true), Disposition::Permanent(_)) if statuses.has_say_on(response.status()) => said,
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

/// The answer with what it says of another try in its extensions, where it is a document that says it.
pub(super) async fn understood(mut response: Response) -> Result<Response, Error> {
    let is_long = response.content_length().is_some_and(|length| length > LENGTH_MAX);
    if is_long || !is_problem(&response) {
        return Ok(response);
    }
    // Its length is often not told: it comes in chunks, or is compressed.
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await? {
        body.extend_from_slice(&part);
        if body.len() as u64 > LENGTH_MAX {
            return Ok(with_body(response, body));
        }
    }
    let refusal = Refusal::read(&body);
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

/// The same answer, with what was read of its body put back before the rest.
fn with_body(response: Response, read: Vec<u8>) -> Response {
    let url = response.url().clone();
    let (parts, rest) = http::Response::<reqwest::Body>::from(response).into_parts();
    // Only a builder knows how to say where an answer came from.
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

/// A body of which something was read: that first, then what is left.
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
