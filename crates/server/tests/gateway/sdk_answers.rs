//! What SDKs that others wrote make of answers: an upstream's "still running" is never frozen, and no failure of the
//! gateway's looks like a success.

use crate::keyed_requests::{MADE, ROUTES, ask, exchange, post};
use crate::test_gateway::{Gate, Upstream, code};

/// How APIs say that the first request under a key is still running.
const STILL_RUNNING: [&str; 3] = [
    "HTTP/1.1 409 Conflict\nRetry-After: 0\nContent-Length: 0\nConnection: close\n\n",
    "HTTP/1.1 409 Conflict\nStripe-Should-Retry: true\nContent-Length: 0\nConnection: close\n\n",
    "HTTP/1.1 409 Conflict\nX-Should-Retry: true\nContent-Length: 0\nConnection: close\n\n",
];

#[tokio::test]
async fn a_keyed_route_does_not_freeze_the_upstreams_own_in_flight_answer() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    for (n, running) in STILL_RUNNING.into_iter().enumerate() {
        let request = post("/keyed", &format!("k{n}"), "x");
        let (_, first, _) = exchange(&gate, &upstream, &request, running).await;
        assert_eq!((first.status(), first.get("idempotency-status")), (409, None), "{running}");
        let (_, again, body) = exchange(&gate, &upstream, &request, MADE).await;
        assert_eq!((again.status(), body.as_str()), (201, "made"), "{running}");
        assert_eq!(ask(&gate, &request).await.0.get("idempotent-replayed"), Some("true"));
    }
}

#[tokio::test]
async fn a_keyed_route_keeps_the_wait_that_the_upstream_asks_for() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    let request = post("/keyed", "k", "x");
    let running = "HTTP/1.1 409 Conflict\nRetry-After: 600\nContent-Length: 0\nConnection: close\n\n";
    exchange(&gate, &upstream, &request, running).await;
    let (told, body) = ask(&gate, &request).await;
    assert_eq!((told.status(), code(&body).as_str()), (503, "backing-off"));
    assert_eq!(told.get("stripe-should-retry"), Some("true"));
}

#[tokio::test]
async fn on_hold_an_in_flight_answer_leaves_the_outcome_unknown() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    for (n, running) in STILL_RUNNING.into_iter().enumerate() {
        let request = post("/opaque/1", &format!("k{n}"), "x");
        let (_, first, _) = exchange(&gate, &upstream, &request, running).await;
        assert_eq!(first.status(), 409);
        let (told, body) = ask(&gate, &request).await;
        assert_eq!((told.status(), code(&body).as_str()), (409, "outcome-unknown"), "{running}");
    }
    // A conflict that asks for nothing is the request's own answer.
    let request = post("/opaque/1", "conflict", "x");
    let conflict = "HTTP/1.1 409 Conflict\nContent-Length: 5\nConnection: close\n\nsold!";
    exchange(&gate, &upstream, &request, conflict).await;
    let (again, body) = ask(&gate, &request).await;
    assert_eq!((again.get("idempotent-replayed"), body.as_str()), (Some("true"), "sold!"));
}

#[tokio::test]
async fn failures_are_errors_to_sdks_and_say_whether_to_repeat() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    let held = post("/opaque/1", "k", "x");
    let (_, cut, body) = exchange(&gate, &upstream, &held, "").await;
    let unknown = ask(&gate, &held).await;
    let reused = ask(&gate, &held.replace("\n\nx", "\n\ny")).await;
    let missing = ask(&gate, "POST /opaque/1 HTTP/1.1\nHost: a\nContent-Length: 0\n\n").await;
    let (_, keyed, keyed_body) = exchange(&gate, &upstream, &post("/keyed", "k", "x"), "").await;
    for ((head, body), status, kind, retry) in [
        ((cut, body), 502, "api_error", "false"),
        (unknown, 409, "idempotency_error", "false"),
        (reused, 422, "idempotency_error", "false"),
        (missing, 400, "idempotency_error", "false"),
        ((keyed, keyed_body), 502, "api_error", "true"),
    ] {
        let document: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(head.status(), status, "{body}");
        assert_eq!(document["error"]["type"], kind, "{body}");
        assert_eq!(document["error"]["code"], document["code"], "{body}");
        assert_eq!(document["error"]["message"], document["detail"], "{body}");
        for name in ["stripe-should-retry", "x-should-retry"] {
            assert_eq!(head.get(name), Some(retry), "{name} {body}");
        }
        assert_eq!(document["retryable"], retry == "true", "{body}");
    }
}

#[tokio::test]
async fn a_route_may_wait_without_being_asked() {
    let upstream = Upstream::open().await;
    let routes = ROUTES.replace("body_max = 1000", "wait = \"20s\"");
    let gate = Gate::before(upstream.address(), &routes).await;
    let request = post("/keyed", "k", "x");
    let mut client = gate.connect().await;
    client.say(&request).await;
    let mut served = upstream.accept().await;
    served.message().await;
    let mut second = gate.connect().await;
    second.say(&request).await;
    // A client that asks for less waits less.
    let (told, body) = ask(&gate, &request.replace("Host: a", "Host: a\nPrefer: wait=0")).await;
    assert_eq!((told.status(), code(&body).as_str()), (409, "in-flight"));
    assert!(told.get("retry-after").is_some() && told.get("retry-after-ms").is_some());
    served.say(MADE).await;
    assert_eq!(client.message().await.0.status(), 201);
    let (waited, body) = second.message().await;
    assert_eq!((waited.status(), body.as_str()), (201, "made"));
    assert_eq!((waited.get("idempotent-replayed"), waited.get("preference-applied")), (Some("true"), None));
    assert!(upstream.is_alone().await);
}
