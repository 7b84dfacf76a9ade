//! The headers of every answer of the desk.
//!
//! Nothing inline runs, nothing foreign is loaded, no other page frames this one, and the script may only turn texts into
//! markup through its one policy. So a text that slipped through the escaping would still do nothing.

use axum::response::Response;
use http::HeaderValue;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};

/// What a page may load and do.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types desk";

/// Adds the headers. An answer that has its own, such as a raw payload or a file of the program, keeps it.
pub(super) async fn headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let mut put = |name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    put(CONTENT_SECURITY_POLICY, POLICY);
    put(CACHE_CONTROL, "no-store");
    put(X_CONTENT_TYPE_OPTIONS, "nosniff");
    put(REFERRER_POLICY, "same-origin");
    put(HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    response
}
