//! The states of a request, through the gateway: the layer's own contract, with an external program as the handler.

use std::time::Duration;

use redrive::http::idempotent::{RequestScope, Resolution};

use crate::keyed_requests::{MADE, ROUTES, ask, exchange, post};
use crate::test_gateway::{Gate, Talk, Upstream, code, in_time};

#[tokio::test]
async fn a_repetition_has_the_first_answer_and_the_upstream_hears_nothing_of_it() {
    let upstream = Upstream::open().await;
    // Without routes: what is enrolled is the usual.
    let gate = Gate::before(upstream.address(), "").await;
    for path in ["/orders", "/"] {
        let request = post(path, &format!("key-{}", path.len()), "{\"cabins\":2}");
        let (_, first, body) = exchange(&gate, &upstream, &request, MADE).await;
        assert_eq!((first.status(), body.as_str()), (201, "made"));
        assert_eq!(first.get("idempotency-status"), Some("created"));
        assert_eq!((first.get("idempotent-replayed"), first.get("set-cookie")), (Some("false"), Some("a=1")));
        let (again, body) = ask(&gate, &request).await;
        assert_eq!((again.status(), body.as_str()), (201, "made"));
        assert_eq!((again.get("idempotent-replayed"), again.get("set-cookie")), (Some("true"), None));
        assert_eq!((again.all("x-twice"), again.get("location")), (vec!["1", "2"], Some("/orders/17")));
        let (other, body) = ask(&gate, &request.replace(":2}", ":3}")).await;
        assert_eq!((other.status(), code(&body).as_str()), (422, "key-reused"));
    }
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn who_asks_while_it_runs_is_told_so_or_waits() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let request = post("/orders", "k", "x");
    let mut client = gate.connect().await;
    client.say(&request).await;
    let mut served = upstream.accept().await;
    served.message().await;
    let (told, body) = ask(&gate, &request).await;
    assert_eq!((told.status(), code(&body).as_str()), (409, "in-flight"));
    assert!(told.get("retry-after").is_some());
    let mut waits = gate.connect().await;
    waits.say(&request.replace("Host: a", "Host: a\nPrefer: wait=20")).await;
    served.say(MADE).await;
    assert_eq!(client.message().await.0.status(), 201);
    let (waited, body) = waits.message().await;
    assert_eq!((waited.status(), body.as_str()), (201, "made"));
    assert_eq!(waited.get("idempotent-replayed"), Some("true"));
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn what_breaks_off_after_it_was_sent_is_unknown_and_held() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    for (n, answer) in
        ["", "HTTP/1.1 201 Created\nContent-Length: 10\n\nhalf", "HTTP/1.1 500 Oh\nContent-Length: 0\n\n"]
            .into_iter()
            .enumerate()
    {
        let request = post("/opaque/1", &format!("k{n}"), "x");
        let (_, first, body) = exchange(&gate, &upstream, &request, answer).await;
        if answer.contains("500") {
            assert_eq!(first.status(), 500, "an answer is passed on, whatever it is");
        } else {
            assert_eq!((first.status(), code(&body).as_str()), (502, "upstream-broke-off"), "{answer}");
            assert!(body.contains("\"retryable\":false"), "{body}");
        }
        let (again, body) = ask(&gate, &request).await;
        assert_eq!((again.status(), code(&body).as_str()), (409, "outcome-unknown"), "{answer}");
        assert_eq!(again.get("retry-after"), None);
    }
    assert!(upstream.is_alone().await, "nothing is sent again");
}

#[tokio::test]
async fn what_is_keyed_runs_again_with_the_same_key() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    let broken =
        ["", "HTTP/1.1 201 Created\nContent-Length: 10\n\nhalf", "HTTP/1.1 503 No\nContent-Length: 0\n\n"];
    for (n, answer) in broken.into_iter().enumerate() {
        // Two spellings are one key, and the upstream is always told the same.
        let key = format!("k{n}");
        let request = post("/keyed", &format!("\"{key}\""), "x");
        let (asked, first, _) = exchange(&gate, &upstream, &request, answer).await;
        assert!(first.status() >= 500, "{answer}");
        assert_eq!(asked.all("idempotency-key"), [key.as_str()]);
        let (asked, again, body) = exchange(&gate, &upstream, &post("/keyed", &key, "x"), MADE).await;
        assert_eq!(asked.all("idempotency-key"), [key.as_str()]);
        assert_eq!((again.status(), body.as_str()), (201, "made"));
        assert_eq!(
            (again.get("idempotency-status"), again.get("idempotency-attempt")),
            (Some("resumed"), Some("2"))
        );
    }
}

#[tokio::test]
async fn a_time_out_after_sending_is_unknown_where_it_may_not_run_again() {
    let upstream = Upstream::open().await;
    let times = "gateway.connect_time = \"100ms\"\ngateway.answer_time = \"100ms\"\n";
    let gate = Gate::before(upstream.address(), &format!("{times}{ROUTES}")).await;
    for (path, retry) in [("/opaque/1", Some("outcome-unknown")), ("/keyed", None)] {
        let request = post(path, "k", "x");
        let mut client = gate.connect().await;
        client.say(&request).await;
        let mut silent = upstream.accept().await;
        silent.message().await;
        let (answer, body) = client.message().await;
        assert_eq!((answer.status(), code(&body).as_str()), (504, "upstream-slow"));
        match retry {
            Some(told) => assert_eq!(code(&ask(&gate, &request).await.1), told),
            None => assert_eq!(exchange(&gate, &upstream, &request, MADE).await.1.status(), 201),
        }
    }
}

#[tokio::test]
async fn what_was_never_sent_has_not_happened() {
    let address = Upstream::open().await.address();
    let gate = Gate::before(address, ROUTES).await;
    let request = post("/opaque/1", "k", "x");
    let (answer, body) = ask(&gate, &request).await;
    assert_eq!((answer.status(), code(&body).as_str()), (502, "upstream-unreachable"));
    assert!(body.contains("\"executed\":\"no\"") && body.contains("\"retryable\":true"), "{body}");
    assert_eq!(answer.get("idempotency-outcome"), None, "it is for the layer");
    // Nothing is remembered: the next try is the first.
    let upstream = Upstream::at(address).await;
    let (_, again, _) = exchange(&gate, &upstream, &request, MADE).await;
    assert_eq!((again.status(), again.get("idempotency-status")), (201, Some("created")));
}

#[tokio::test]
async fn a_status_that_proves_that_nothing_was_done_leaves_nothing() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    let request = post("/opaque/1", "k", "x");
    let full = "HTTP/1.1 507 Full\nContent-Length: 0\n\n";
    let (_, first, _) = exchange(&gate, &upstream, &request, full).await;
    assert_eq!((first.status(), first.get("idempotency-outcome")), (507, None));
    let (_, again, _) = exchange(&gate, &upstream, &request, MADE).await;
    assert_eq!((again.status(), again.get("idempotency-status")), (201, Some("created")));
}

#[tokio::test]
async fn what_the_upstream_says_of_the_outcome_is_believed_where_the_route_says_so() {
    let route = |path: &str, rest: &str| {
        format!(
            "[[gateway.routes]]\nmatch = \"POST /{path}\"\ntenant = \"acme\"\neffects = \"opaque\"\n{rest}\n"
        )
    };
    let routes = [route("deaf", ""), route("hears", "upstream_outcome = true")].concat();
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), &routes).await;
    // The status, what is said of it, and what a repetition has: its answer, or what is told, or a run of its own.
    for (n, (status, said, deaf, hears)) in [
        (201, "none", "replayed", "run"),
        (201, "unknown", "replayed", "outcome-unknown"),
        (500, "none", "outcome-unknown", "run"),
        (500, "final", "outcome-unknown", "replayed"),
        (500, "perhaps", "outcome-unknown", "outcome-unknown"),
    ]
    .into_iter()
    .enumerate()
    {
        for (path, expected) in [("/deaf", deaf), ("/hears", hears)] {
            let request = post(path, &format!("k{n}"), "x");
            let answer = format!(
                "HTTP/1.1 {status} A\nIdempotency-Outcome: {said}\nContent-Length: 0\nConnection: close\n\n"
            );
            let (_, first, _) = exchange(&gate, &upstream, &request, &answer).await;
            assert_eq!((first.status(), first.get("idempotency-outcome")), (status, None));
            if expected == "run" {
                let (_, again, _) = exchange(&gate, &upstream, &request, MADE).await;
                assert_eq!((again.status(), again.get("idempotency-status")), (201, Some("created")));
                continue;
            }
            let (again, body) = ask(&gate, &request).await;
            let has = if again.get("idempotent-replayed") == Some("true") {
                "replayed".to_owned()
            } else {
                code(&body)
            };
            assert_eq!(has, expected, "{path} {status} {said}");
        }
    }
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn a_stop_records_what_did_not_end_in_time() {
    let upstream = Upstream::open().await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("store.address = \"sqlite:{}\"\n", folder.path().join("gateway.db").display());
    let gate = Gate::before(upstream.address(), &format!("{store}{ROUTES}")).await;
    let (opaque, keyed) = (post("/opaque/1", "k", "x"), post("/keyed", "k", "x"));
    let mut clients: Vec<(Talk, Talk)> = Vec::new();
    for request in [&opaque, &keyed] {
        let mut client = gate.connect().await;
        client.say(request).await;
        let mut served = upstream.accept().await;
        served.message().await;
        clients.push((client, served));
    }
    let stopped = in_time(gate.0.stop(Duration::from_millis(200))).await.expect("it stops");
    assert_eq!(stopped.aborted, 2);
    for (client, _) in &mut clients {
        let (answer, body) = client.message().await;
        assert_eq!((answer.status(), code(&body).as_str()), (503, "shutting-down"));
    }
    drop(clients);
    let gate = Gate::before(upstream.address(), &format!("{store}{ROUTES}")).await;
    assert_eq!(code(&ask(&gate, &opaque).await.1), "outcome-unknown");
    let (_, again, _) = exchange(&gate, &upstream, &keyed, MADE).await;
    assert_eq!((again.status(), again.get("idempotency-status")), (201, Some("resumed")));
    // An operator resolves it as not happened.
    let scope = RequestScope {
        tenant: "acme".to_owned(),
        operation: "POST /opaque/{id}".to_owned(),
        key: "k".to_owned(),
    };
    let desk = gate.0.redrive().desk("ada", "test");
    desk.resolve(scope, Resolution::Retriable, "looked").await.expect("it is unknown");
    let (_, again, _) = exchange(&gate, &upstream, &opaque, MADE).await;
    assert_eq!((again.status(), again.get("idempotency-status")), (201, Some("resumed")));
}
