//! What the ledger answers for, through the gateway: the layer's own contract, with somebody else's program as the
//! handler.

use std::time::Duration;

use redrive::http::idempotent::{Resolution, Scope};

use crate::stand::{Gate, Head, Talk, Upstream, code, in_time};

/// Two routes: one whose effects may happen again, one whose may not.
const ROUTES: &str = r#"
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
fn post(path: &str, key: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\nHost: a\nIdempotency-Key: {key}\nContent-Length: {length}\n\n{body}")
}

/// Sends a request, and has its answer.
async fn ask(gate: &Gate, request: &str) -> (Head, String) {
    let mut client = gate.connect().await;
    client.say(request).await;
    client.message().await
}

/// Sends a request that the upstream is to answer so; gives what the upstream was asked, and what the client got.
async fn exchange(gate: &Gate, upstream: &Upstream, request: &str, answer: &str) -> (Head, Head, String) {
    let mut client = gate.connect().await;
    client.say(request).await;
    let mut served = upstream.accept().await;
    let (asked, _) = served.message().await;
    served.say(answer).await;
    drop(served);
    let (head, body) = client.message().await;
    (asked, head, body)
}

const MADE: &str = "HTTP/1.1 201 Created\nLocation: /orders/17\nX-Twice: 1\nX-Twice: 2\nSet-Cookie: a=1\n\
                    Content-Length: 4\nConnection: close\n\nmade";

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
async fn bodies_are_bounded_where_they_are_kept_and_keys_asked_for_where_they_are_required() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    let mut client = gate.connect().await;
    // Refused by its length alone, and nobody is told to send it.
    client.say("POST /keyed HTTP/1.1\nHost: a\nIdempotency-Key: k\nContent-Length: 1001\nExpect: 100-continue\n\n").await;
    let (answer, body) = client.message().await;
    assert_eq!((answer.status(), code(&body).as_str()), (413, "body-too-large"));
    for (headers, told) in [("", "key-missing"), ("Idempotency-Key: a b\n", "key-invalid")] {
        let request = format!("POST /opaque/1 HTTP/1.1\nHost: a\n{headers}Content-Length: 0\n\n");
        let (answer, body) = ask(&gate, &request).await;
        assert_eq!((answer.status(), code(&body).as_str()), (400, told));
    }
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn without_a_key_a_request_passes_as_if_nothing_were_enrolled() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    let mut client = gate.connect().await;
    // Larger than the cap, and streamed.
    client.say("POST /keyed HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n3\none\n").await;
    let mut served = upstream.accept().await;
    assert_eq!(served.head().await.get("idempotency-key"), None);
    assert_eq!(served.bytes(8).await, "3\r\none\r\n");
    let rest = "x".repeat(2000);
    client.say(&format!("7D0\n{rest}\n0\n\n")).await;
    assert_eq!(served.bytes(5 + 2000 + 2 + 5).await, format!("7D0\r\n{rest}\r\n0\r\n\r\n"));
    served.say(MADE).await;
    let (answer, _) = client.message().await;
    assert_eq!((answer.status(), answer.get("idempotency-status")), (201, Some("none")));
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_end_what_was_begun_for_it() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let request = post("/orders", "k", "x");
    let mut client = gate.connect().await;
    client.say(&request).await;
    let mut served = upstream.accept().await;
    served.message().await;
    drop(client);
    // It is told only after the client is gone for the gateway, too: another request on its way through shows that.
    let other = "GET / HTTP/1.1\nHost: a\n\n";
    let (_, fine, _) = exchange(&gate, &upstream, other, "HTTP/1.1 204 No\nConnection: close\n\n").await;
    assert_eq!(fine.status(), 204);
    served.say(MADE).await;
    let request = request.replace("Host: a", "Host: a\nPrefer: wait=20");
    let (again, body) = ask(&gate, &request).await;
    assert_eq!((again.status(), body.as_str()), (201, "made"));
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn what_may_not_run_again_has_a_connection_of_its_own() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    let kept = "HTTP/1.1 200 OK\nContent-Length: 0\n\n";
    let mut client = gate.connect().await;
    client.say(&post("/keyed", "a", "x")).await;
    let mut served = upstream.accept().await;
    served.message().await;
    served.say(kept).await;
    assert_eq!(client.message().await.0.status(), 200);
    // The connection is kept, and used by what may run again; what may not has a fresh one.
    client.say(&post("/opaque/1", "b", "x")).await;
    let mut fresh = upstream.accept().await;
    assert!(fresh.message().await.0.first.starts_with("POST /opaque"));
    fresh.say(kept).await;
    assert_eq!(client.message().await.0.status(), 200);
    assert_eq!(fresh.rest().await, "", "and nobody uses it again");
    client.say(&post("/keyed", "c", "x")).await;
    assert_eq!(served.message().await.0.get("idempotency-key"), Some("c"));
    // Closed under the request, it is sent again by nobody but the client.
    drop(served);
    let (answer, body) = client.message().await;
    assert_eq!((answer.status(), code(&body).as_str()), (502, "upstream-broke-off"));
    assert!(body.contains("\"retryable\":true"), "{body}");
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn an_enrolled_request_goes_on_in_no_other_protocol() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let request = post("/orders", "k", "x").replace("Host: a", "Host: a\nConnection: upgrade\nUpgrade: chat");
    let (asked, answer, _) = exchange(&gate, &upstream, &request, MADE).await;
    assert_eq!((asked.get("upgrade"), answer.status()), (None, 201));
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
    // Somebody looked, and says that it did not happen.
    let scope =
        Scope { tenant: "acme".to_owned(), operation: "POST /opaque/{id}".to_owned(), key: "k".to_owned() };
    let desk = gate.0.redrive().desk("ada", "test");
    desk.resolve(scope, Resolution::Retriable, "looked").await.expect("it is unknown");
    let (_, again, _) = exchange(&gate, &upstream, &opaque, MADE).await;
    assert_eq!((again.status(), again.get("idempotency-status")), (201, Some("resumed")));
}

#[tokio::test]
async fn strangers_share_no_answers() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let request = post("/orders", "k", "x").replace("Host: a", "Host: a\nAuthorization: Bearer one");
    exchange(&gate, &upstream, &request, MADE).await;
    assert_eq!(ask(&gate, &request).await.0.status(), 201);
    for other in ["Authorization: Bearer two", "Cookie: one", "X-Api-Key: one"] {
        let (answer, body) = ask(&gate, &request.replace("Authorization: Bearer one", other)).await;
        assert_eq!((answer.status(), code(&body).as_str()), (422, "key-reused"), "{other}");
    }
}

#[tokio::test]
async fn tenants_and_principals_are_those_that_a_trusted_proxy_names() {
    let route = "[[gateway.routes]]\nmatch = \"POST /orders\"\neffects = \"opaque\"\n\
                 tenant = { header = \"x-tenant\" }\nprincipal = { header = \"x-user\" }\n";
    let upstream = Upstream::open().await;
    let trusted =
        Gate::before(upstream.address(), &format!("gateway.trusted = [\"127.0.0.1\"]\n{route}")).await;
    let named = |tenant: &str, user: &str, token: &str| {
        let headers = format!("Host: a\nX-Tenant: {tenant}\nX-User: {user}\nAuthorization: {token}");
        post("/orders", "k", "x").replace("Host: a", &headers)
    };
    for tenant in ["acme", "other"] {
        let (_, first, _) = exchange(&trusted, &upstream, &named(tenant, "ada", "t1"), MADE).await;
        assert_eq!(first.get("idempotency-status"), Some("created"), "{tenant}");
    }
    // A new token of the same person is the same person.
    let (again, _) = ask(&trusted, &named("acme", "ada", "t2")).await;
    assert_eq!((again.status(), again.get("idempotent-replayed")), (201, Some("true")));
    assert_eq!(ask(&trusted, &named("acme", "bob", "t1")).await.0.status(), 422);
    for nobody in [post("/orders", "k", "x"), named("a\nX-Tenant: b", "ada", "t1")] {
        assert_eq!(code(&ask(&trusted, &nobody).await.1), "tenant-missing");
    }
    let strange =
        Gate::before(upstream.address(), &format!("gateway.trusted = [\"10.0.0.1\"]\n{route}")).await;
    assert_eq!(code(&ask(&strange, &named("acme", "ada", "t1")).await.1), "tenant-missing");
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn a_derived_key_is_another_for_each_tenant_and_the_same_each_time() {
    let route = |tenant: &str, word: &str| {
        format!(
            "[[gateway.routes]]\nmatch = \"POST /{tenant}\"\ntenant = \"{tenant}\"\neffects = \"keyed\"\n\
             upstream_key = \"{word}\"\n"
        )
    };
    let routes = [route("one", "derived"), route("two", "derived"), route("three", "quoted")].concat();
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), &routes).await;
    let mut keys = Vec::new();
    for path in ["/one", "/one", "/two", "/three"] {
        let broken = "HTTP/1.1 503 No\nContent-Length: 0\nConnection: close\n\n";
        let (asked, _, _) = exchange(&gate, &upstream, &post(path, "k", "x"), broken).await;
        keys.push(asked.get("idempotency-key").expect("a key").to_owned());
    }
    assert_eq!(keys[0], keys[1]);
    assert_ne!(keys[0], keys[2]);
    assert_eq!((keys[0].len(), keys[3].as_str()), (36, "\"k\""));
}

#[tokio::test]
async fn health_and_metrics_have_an_address_of_their_own() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "gateway.admin = \"127.0.0.1:0\"\n").await;
    let admin = gate.0.admin().expect("an address");
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/other", 404)] {
        let mut client = Talk::to(admin).await;
        client.say(&format!("GET {path} HTTP/1.1\nHost: a\nConnection: close\n\n")).await;
        assert_eq!(client.head().await.status(), status, "{path}");
    }
    // The API's own are the API's.
    let health = "GET /healthz HTTP/1.1\nHost: a\n\n";
    let (asked, _, _) = exchange(&gate, &upstream, health, "HTTP/1.1 204 No\n\n").await;
    assert_eq!(asked.first, "GET /healthz HTTP/1.1");
}
