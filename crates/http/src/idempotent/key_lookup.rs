//! The record of a key, for its client: `GET …/keys/{key}`.
//!
//! State, number of attempts and expiry; never the reply, which an authorised client gets by repeating the request.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use redrive_core::Moment;
use redrive_core::ledger::{LedgerRecord, RequestScope};
use tower::Service;

use super::answer::SOON;
use super::body::Body;
use super::identify::{named, principal, tenant};
use super::layer::Shared;
use super::ledger::LedgerError;
use super::problem::Problem;
use crate::idempotency_key;
use crate::json::{Json, NumberFormat};

/// A service that returns the record of the key in the last path segment, for the caller's own tenant and principal. Made by
/// [`Idempotent::keys`](super::Idempotent::keys).
#[derive(Debug, Clone)]
pub struct KeyLookup(pub(super) Arc<Shared>);

impl<B> Service<Request<B>> for KeyLookup {
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
        let key = decoded(last).and_then(|key| idempotency_key::parse(&key).ok());
        let (tenant, caller) = (tenant(&shared, &parts), principal(&shared, &parts));
        Box::pin(async move {
            let (Some(tenant), Some(key)) = (tenant, key) else { return Ok(nothing(&shared)) };
            Ok(match latest(&shared, &tenant, &key, caller.as_deref()).await {
                Ok(Some(record)) => told(&record),
                Ok(None) => nothing(&shared),
                Err(_) => {
                    let detail = "the ledger does not respond";
                    let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ledger-down", detail);
                    shared.problem(problem.after(SOON))
                }
            })
        })
    }
}

/// The unsafe methods. Operations of other methods are not looked up.
const METHODS: [Method; 4] = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// The record of a key; if the operation covers several methods, the most recent one.
async fn latest(
    shared: &Shared,
    tenant: &str,
    key: &str,
    caller: Option<&str>,
) -> Result<Option<LedgerRecord>, LedgerError> {
    let methods = if shared.settings.method.is_some() { &METHODS[..1] } else { &METHODS };
    let mut last: Option<LedgerRecord> = None;
    for method in methods {
        let (tenant, operation) = (tenant.to_owned(), named(shared, method));
        let scope = RequestScope { tenant, operation, key: key.to_owned() };
        let scope = caller.iter().fold(scope, |scope, caller| scope.of_principal(caller));
        let found = shared.ledger.record(scope).await?;
        let is_later = |record: &LedgerRecord| last.as_ref().is_none_or(|last| record.first > last.first);
        if let Some(record) = found.filter(is_later) {
            last = Some(record);
        }
    }
    Ok(last)
}

fn nothing(shared: &Shared) -> Response<Body> {
    let detail = "no record exists for this key";
    shared.problem(Problem::new(StatusCode::NOT_FOUND, "no-such-key", detail))
}

fn told(record: &LedgerRecord) -> Response<Body> {
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
    let body = Json::Object(members).canonical(NumberFormat::Exact).unwrap_or_default();
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
