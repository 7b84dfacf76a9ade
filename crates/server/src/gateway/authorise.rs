//! Authorisation before a replay: the gateway asks the API whether this caller may have the stored reply.
//!
//! A replay does not reach the API, so a caller whose rights were revoked would still have its own replies. With
//! `authorise`, each replay is preceded by a `GET` with the caller's headers, as nginx' `auth_request` sends it. Only a
//! 2xx lets the replay pass; nothing is run either way.

use axum::body::Body;
use http::header::{
    CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, RANGE, TRAILER,
};
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use redrive::names::header::{IDEMPOTENCY_KEY, PREFER};
use tower::Service as _;

use super::proxy::Proxy;
use super::upstream_error::UpstreamError;
use crate::auth::Origin;

const ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");

/// Headers of the body, of the key, and of what the replay is to look like.
const NOT_ASKED: [HeaderName; 9] = [
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    EXPECT,
    RANGE,
    TRAILER,
    HeaderName::from_static(IDEMPOTENCY_KEY),
    HeaderName::from_static(PREFER),
];

/// The question, made before the request is used up.
pub(super) fn question(path: &PathAndQuery, request: &Request<Body>) -> Request<Body> {
    let mut question = Request::new(Body::empty());
    *question.method_mut() = Method::GET;
    *question.uri_mut() = Uri::from(path.clone());
    *question.headers_mut() = request.headers().clone();
    let headers = question.headers_mut();
    for name in NOT_ASKED {
        headers.remove(name);
    }
    if let Ok(method) = HeaderValue::try_from(request.method().as_str()) {
        headers.insert(ORIGINAL_METHOD, method);
    }
    if let Ok(target) =
        HeaderValue::try_from(request.uri().path_and_query().map_or("/", PathAndQuery::as_str))
    {
        headers.insert(ORIGINAL_URI, target);
    }
    if let Some(origin) = request.extensions().get::<Origin>().cloned() {
        question.extensions_mut().insert(origin);
    }
    question
}

/// Asks. `None` if the caller may have the reply; otherwise what it gets instead.
pub(super) async fn refusal(mut proxy: Proxy, question: Request<Body>) -> Option<Response<Body>> {
    let Ok(answer) = proxy.call(question).await;
    match answer.status() {
        status if status.is_success() => None,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Some(answer),
        _ => Some(UpstreamError::not_authorised()),
    }
}
