//! Requests with keys, and what both sides see of them.

use crate::test_gateway::{Gate, Head, Upstream};

/// Two routes: one whose effects may happen again, one whose may not.
pub(crate) const ROUTES: &str = r#"
[[gateway.routes]]
match = "POST /keyed"
tenant = "acme"
effects = "keyed"
body_max = 1000
not_executed = [507]

[[gateway.routes]]
match = "POST /opaque/{id}"
tenant = "acme"
effects = "opaque"
key = "required"
not_executed = [507]
"#;

/// A request with a key.
pub(crate) fn post(path: &str, key: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\nHost: a\nIdempotency-Key: {key}\nContent-Length: {length}\n\n{body}")
}

/// Sends a request, and has its answer.
pub(crate) async fn ask(gate: &Gate, request: &str) -> (Head, String) {
    let mut client = gate.connect().await;
    client.say(request).await;
    client.message().await
}

/// Sends a request that the upstream is to answer so; gives what the upstream was asked, and what the client got.
pub(crate) async fn exchange(
    gate: &Gate,
    upstream: &Upstream,
    request: &str,
    answer: &str,
) -> (Head, Head, String) {
    let mut client = gate.connect().await;
    client.say(request).await;
    let mut served = upstream.accept().await;
    let (asked, _) = served.message().await;
    served.say(answer).await;
    drop(served);
    let (head, body) = client.message().await;
    (asked, head, body)
}

pub(crate) const MADE: &str = "HTTP/1.1 201 Created\nLocation: /orders/17\nX-Twice: 1\nX-Twice: 2\nSet-Cookie: a=1\n\
                    Content-Length: 4\nConnection: close\n\nmade";
