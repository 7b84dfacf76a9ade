//! The first answer, and the same again: rows 7, 9, 16 and 23; authorization.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::IntoResponse;
use axum::routing::{get_service, post as post_to};
use redrive::api::{Effects, Endpoint, Tenant};

use crate::shop::{BOOK, Calls, counting, keyed, layer, memory, serve};
use crate::spy::Gate;
use crate::wire::{Server, post};

#[tokio::test]
async fn row_7_the_first_request_runs_and_is_told_that_it_did() {
    let shop = counting(keyed()).await;
    let answer = shop.server.ask(&post("{}").key("\"order-17\"")).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "call 1"));
    assert_eq!(answer.header("idempotency-key").as_deref(), Some("\"order-17\""));
    assert_eq!(answer.header("idempotent-replayed").as_deref(), Some("false"));
    assert_eq!(answer.header("idempotency-status").as_deref(), Some("created"));
    assert_eq!(answer.header("idempotency-attempt"), None);
    // The store's clock stands at a day in 2026, and an answer is kept for one more.
    assert_eq!(answer.header("idempotency-expires").as_deref(), Some("Tue, 22 Sep 2026 14:13:20 GMT"));
}

#[tokio::test]
async fn row_9_a_request_that_runs_is_in_flight_for_everybody_else() {
    let (redrive, _) = memory();
    let gate = Gate::default();
    let handler = {
        let gate = gate.clone();
        move || async move {
            gate.pass().await;
            "done"
        }
    };
    let server = Arc::new(serve(&redrive, keyed(), handler).await);
    let first = server.later(post("{}").key("k"));
    gate.reached.wait().await;
    let second = server.ask(&post("{}").key("k")).await;
    assert_eq!((second.status, second.code().as_str()), (409, "in-flight"));
    // No run has finished yet: the rest of its lease.
    assert_eq!(second.header("retry-after").as_deref(), Some("30"));
    assert_eq!(
        (&second.json()["retryable"], &second.json()["retry_after_ms"]),
        (&true.into(), &30_000.into())
    );
    // A mismatch takes precedence over "in flight".
    let other = server.ask(&post("[]").key("k")).await;
    assert_eq!((other.status, other.code().as_str()), (422, "key-reused"));
    gate.open.give();
    assert_eq!(first.await.unwrap().text(), "done");
    assert_eq!(server.ask(&post("{}").key("k")).await.text(), "done");
    // Now its duration is known.
    let _running = server.later(post("{}").key("l"));
    gate.reached.wait().await;
    let third = server.ask(&post("{}").key("l")).await;
    assert!(third.header("retry-after").unwrap().parse::<u64>().unwrap() < 30, "{third:?}");
}

#[tokio::test]
async fn row_16_a_repetition_gets_the_same_bytes_and_headers() {
    let (redrive, _) = memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move || async move {
        let mut headers = HeaderMap::new();
        headers.append("x-part", HeaderValue::from_static("one"));
        headers.append("x-part", HeaderValue::from_static("two"));
        headers.append("x-name", HeaderValue::from_bytes(b"caf\xe9").unwrap());
        headers.append("set-cookie", HeaderValue::from_static("session=1"));
        headers.append("x-hop", HeaderValue::from_static("1"));
        headers.append("connection", HeaderValue::from_static("x-hop"));
        headers.append("date", HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT"));
        (StatusCode::CREATED, headers, vec![0_u8, 255, u8::try_from(counted.add()).unwrap()])
    };
    let server = serve(&redrive, keyed(), handler).await;
    let first = server.ask(&post(r#"{"a":1,"b":2}"#).key("k")).await;
    assert_eq!(first.header("set-cookie").as_deref(), Some("session=1"));
    // Another spelling of key and body is the same request.
    let again = server.ask(&post(r#"{"b":2.0, "a":1}"#).key("\"k\"")).await;
    assert_eq!((again.status, &again.body), (201, &vec![0, 255, 1]));
    assert_eq!(again.all("x-part"), ["one", "two"]);
    let name = again.headers.iter().find(|(name, _)| name == "x-name").unwrap();
    assert_eq!(name.1, b"caf\xe9");
    assert_eq!(again.header("idempotent-replayed").as_deref(), Some("true"));
    assert_eq!(again.header("idempotency-first-received").as_deref(), Some("Mon, 21 Sep 2026 14:13:20 GMT"));
    assert_eq!((again.header("set-cookie"), again.header("x-hop")), (None, None));
    assert_ne!(again.header("date").as_deref(), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
    assert_eq!(calls.count(), 1);
}

#[tokio::test]
async fn row_23_a_key_can_be_looked_up_by_its_own_tenant() {
    let (redrive, _) = memory();
    let tenant =
        |parts: &axum::http::request::Parts| Some(parts.headers.get("x-tenant")?.to_str().ok()?.to_owned());
    let layer = layer(&redrive, Endpoint::new(BOOK).tenant(Tenant::from(tenant)).effects(Effects::Keyed));
    let app = Router::new()
        .route("/bookings", post_to(|| async { "secret" }).layer(layer.clone()))
        .route("/bookings/keys/{key}", get_service(layer.keys()));
    let server = Server::start(app).await;
    let look = |tenant: &str, key: &str| {
        post("").line(&format!("GET /bookings/keys/{key}")).header("x-tenant", tenant)
    };
    assert_eq!(server.ask(&look("acme", "a%2Fb")).await.code(), "no-such-key");
    server.ask(&post("{}").key("a/b").header("x-tenant", "acme")).await;
    let found = server.ask(&look("acme", "a%2Fb")).await;
    assert_eq!(
        (found.status, &found.json()["state"], &found.json()["attempts"]),
        (200, &"completed".into(), &1.into())
    );
    assert_eq!(found.json()["expires"], "2026-09-22T14:13:20Z");
    assert!(!found.text().contains("secret"));
    assert_eq!(server.ask(&look("other", "a%2Fb")).await.status, 404);
    assert_eq!(server.ask(&look("acme", "%zz")).await.status, 404);
}

#[tokio::test]
async fn a_handler_that_is_not_inside_of_the_layer_is_told_so() {
    let bare = |op: redrive::Operation| async move { op.key().to_owned() };
    let plain = |op: redrive::http::idempotent::KeyedOperation| async move { op.key().to_owned() };
    let app = Router::new().route("/bookings", post_to(bare)).route("/plain", post_to(plain));
    let server = Server::start(app).await;
    for line in ["POST /bookings", "POST /plain"] {
        let answer = server.ask(&post("{}").line(line).key("k")).await;
        assert_eq!((answer.status, answer.code().as_str()), (500, "handler-failed"));
        assert!(answer.text().contains("an `Idempotent` layer"), "{}", answer.text());
    }
}

#[tokio::test]
async fn authorization_runs_again_on_every_replay() {
    let (redrive, _) = memory();
    let (calls, asked) = (Calls::default(), Calls::default());
    let (counted, asks) = (calls.clone(), asked.clone());
    let authorize = move |request: Request, next: Next| {
        let asks = asks.clone();
        async move {
            asks.add();
            match request.headers().get("authorization") {
                Some(token) if token == "good" => next.run(request).await,
                _ => StatusCode::UNAUTHORIZED.into_response(),
            }
        }
    };
    let handler = move || async move { format!("call {}", counted.add()) };
    // What is added later is further out.
    let app: Router = Router::new()
        .route("/bookings", post_to(handler).layer(layer(&redrive, keyed())))
        .layer(axum::middleware::from_fn(authorize));
    let server = Server::start(app).await;
    let with = |token: &str| post("{}").key("k").header("authorization", token);
    assert_eq!(server.ask(&with("good")).await.text(), "call 1");
    assert_eq!(server.ask(&with("good")).await.text(), "call 1");
    let refused = server.ask(&with("revoked")).await;
    assert_eq!((refused.status, refused.text().as_str()), (401, ""));
    assert_eq!((calls.count(), asked.count()), (1, 3));
}
