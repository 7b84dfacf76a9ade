//! What is remembered under a key, for the client that has it: `GET …/keys/{key}`.
//!
//! The state, how often it was begun and until when it is known; never the answer, which whoever has the right to it
//! gets by repeating the request.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use redrive_core::Moment;
use redrive_core::ledger::{Record, Scope};
use tower::Service;

use super::answer::SOON;
use super::body::Body;
use super::identify::{named, tenant};
use super::layer::Shared;
use super::ledger::LedgerError;
use super::problem::Problem;
use crate::json::{Json, Numbers};
use crate::key;

/// A service that tells what is remembered under the key that is the last part of the path, for the caller's own
/// tenant. Made by [`Idempotent::keys`](super::Idempotent::keys).
#[derive(Debug, Clone)]
pub struct Keys(pub(super) Arc<Shared>);

impl<B> Service<Request<B>> for Keys {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        let (parts, _) = request.into_parts();
        let last = parts.uri.path().rsplit('/').next().unwrap_or_default();
        let key = decoded(last).and_then(|key| key::parse(&key).ok());
        let tenant = tenant(&shared, &parts);
        Box::pin(async move {
            let (Some(tenant), Some(key)) = (tenant, key) else { return Ok(nothing(&shared)) };
            Ok(match latest(&shared, &tenant, &key).await {
                Ok(Some(record)) => told(&record),
                Ok(None) => nothing(&shared),
                Err(_) => {
                    let detail = "the ledger does not answer";
                    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ledger-down", detail);
                    shared.problem(problem.after(SOON))
                }
            })
        })
    }
}

/// The methods that are not safe. One of another name is not looked for.
const METHODS: [Method; 4] = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// What is remembered under a key; where the operation is for several methods, of the last request that came.
async fn latest(shared: &Shared, tenant: &str, key: &str) -> Result<Option<Record>, LedgerError> {
    let methods = if shared.settings.method.is_some() { &METHODS[..1] } else { &METHODS };
    let mut last: Option<Record> = None;
    for method in methods {
        let (tenant, operation) = (tenant.to_owned(), named(shared, method));
        let found = shared.ledger.record(Scope { tenant, operation, key: key.to_owned() }).await?;
        let is_later = |record: &Record| last.as_ref().is_none_or(|last| record.first > last.first);
        if let Some(record) = found.filter(is_later) {
            last = Some(record);
        }
    }
    Ok(last)
}

fn nothing(shared: &Shared) -> Response<Body> {
    let detail = "nothing is remembered under this key";
    shared.problem(Problem::new(StatusCode::NOT_FOUND, "no-such-key", detail))
}

fn told(record: &Record) -> Response<Body> {
    let date = |moment: Moment| Json::Text(humantime::format_rfc3339_seconds(moment.into()).to_string());
    let mut members = vec![
        ("state".to_owned(), Json::Text(record.phase.as_str().to_owned())),
        ("attempts".to_owned(), Json::Number(record.attempt.to_string())),
        ("first_received".to_owned(), date(record.first)),
    ];
    if let Some((expires, forgotten)) = record.ends() {
        members.push(("expires".to_owned(), date(expires)));
        members.push(("forgotten".to_owned(), date(forgotten)));
    }
    let body = Json::Object(members).canonical(Numbers::Exact).unwrap_or_default();
    let mut response = Response::new(Body::from(body.into_bytes()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A part of a path without its escapes.
fn decoded(part: &str) -> Option<Vec<u8>> {
    let mut bytes = part.bytes();
    let mut plain = Vec::with_capacity(part.len());
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    Some(plain)
}
