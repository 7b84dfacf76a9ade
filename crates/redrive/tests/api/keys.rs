//! Which requests are looked up, and which are refused before: rows 1 to 6, and 8; identity; and row 23.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{any, get_service};
use redrive::api::{Effects, Endpoint, Tenant};
use redrive::testing;

use crate::shop::{BOOK, counting, keyed, layer, memory, serve};
use crate::spy::Gate;
use crate::wire::{Request, Server, post};

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn row_1_safe_methods_and_others_pass_and_their_key_is_ignored() {
    let shop = counting(keyed().required()).await;
    for line in ["GET /bookings", "OPTIONS /bookings", "DELETE /bookings"] {
        for _ in 0..2 {
            let answer = shop.server.ask(&post("{}").line(line).key("k, not a key")).await;
            assert_eq!(answer.status, 200, "{line}");
            assert_eq!(answer.header("idempotency-status"), None);
        }
    }
    assert_eq!(shop.calls.count(), 6);
    // Safe ones also where it is for all methods.
    let endpoint = Endpoint::new("/bookings").tenant(Tenant::fixed("acme")).effects(Effects::Keyed);
    let shop = counting(endpoint).await;
    for call in ["call 1", "call 2"] {
        assert_eq!(shop.server.ask(&post("{}").line("GET /bookings").key("k")).await.text(), call);
    }
    assert_eq!(shop.records().await, 0);
}

#[tokio::test]
async fn row_2_without_a_key_an_optional_route_passes() {
    let shop = counting(keyed()).await;
    for _ in 0..2 {
        let answer = shop.server.ask(&post("{}")).await;
        assert_eq!((answer.status, answer.header("idempotency-status").as_deref()), (200, Some("none")));
    }
    assert_eq!(shop.calls.count(), 2);
    assert_eq!(shop.records().await, 0);
    // It is not read here, so it may be of any length.
    let shop = counting(keyed().body_max(1)).await;
    assert_eq!(shop.server.ask(&post("more than one").chunked()).await.status, 200);
}

#[tokio::test]
async fn row_3_without_a_key_a_required_route_refuses() {
    let shop = counting(keyed().required()).await;
    let answer = shop.server.ask(&post("{}")).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "key-missing"));
    assert!(answer.header("link").unwrap().ends_with("#key-missing>; rel=\"describedby\""));
    assert_eq!(shop.calls.count(), 0);
}

#[tokio::test]
async fn row_4_a_malformed_key_is_refused_and_the_store_is_untouched() {
    let shop = counting(keyed()).await;
    let long = "k".repeat(256);
    let bad: [&[u8]; 6] = [b"", b"a,b", b"\"open", b"a\xffb", b"a b", long.as_bytes()];
    for key in bad {
        let answer = shop.server.ask(&post("{}").header("idempotency-key", key)).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "key-invalid"), "{key:?}");
        assert!(answer.header("link").is_some());
    }
    let answer = shop.server.ask(&post("{}").key("a").key("b")).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "key-invalid"), "two keys");
    assert_eq!(shop.calls.count(), 0);
    assert_eq!(shop.records().await, 0);
}

#[tokio::test]
async fn row_5_a_body_over_the_cap_is_refused() {
    let shop = counting(keyed().body_max(8)).await;
    let fits = shop.server.ask(&post("12345678").key("fits")).await;
    assert_eq!(fits.status, 200);
    // By its announced length, and by reading it.
    for request in [post("123456789").key("k"), post("123456789").key("k").chunked()] {
        let answer = shop.server.ask(&request).await;
        assert_eq!((answer.status, answer.code().as_str()), (413, "body-too-large"));
    }
    assert_eq!((shop.calls.count(), shop.records().await), (1, 1));
}

#[tokio::test]
async fn row_6_what_was_first_sent_too_long_ago_is_not_run() {
    // Answers are kept for a day and remembered for four; the store's clock stands at 14:13:20 on September 21.
    let shop = counting(keyed()).await;
    let sent = |date: &str| post("{}").header("repeatability-first-sent", date);
    let old = shop.server.ask(&sent("Thu, 17 Sep 2026 14:18:20 GMT").key("old")).await;
    assert_eq!((old.status, old.code().as_str()), (412, "key-too-old"));
    assert_eq!(old.header("idempotency-expires").as_deref(), Some("Mon, 21 Sep 2026 14:18:20 GMT"));
    assert_eq!((shop.calls.count(), shop.records().await), (0, 0));
    // One second more than the five minutes that clients' clocks may be off.
    let young = shop.server.ask(&sent("Thu, 17 Sep 2026 14:18:21 GMT").key("young")).await;
    assert_eq!(young.status, 200);
    let bad = shop.server.ask(&sent("yesterday").key("bad")).await;
    assert_eq!((bad.status, bad.code().as_str()), (400, "first-sent-invalid"));
}

#[tokio::test]
async fn row_6_the_time_of_a_uuid_counts_where_it_was_asked_for() {
    // Of 2023.
    let old = "018bcfe5-6800-7000-8000-000000000000";
    let shop = counting(keyed().uuid_time()).await;
    let answer = shop.server.ask(&post("{}").key(old)).await;
    assert_eq!((answer.status, answer.code().as_str()), (412, "key-too-old"));
    let other = counting(keyed()).await;
    assert_eq!(other.server.ask(&post("{}").key(old)).await.status, 200);
}

#[tokio::test]
async fn row_6_does_not_keep_a_known_request_from_its_answer() {
    let shop = counting(keyed()).await;
    let request = post("{}").key("k").header("repeatability-first-sent", "Mon, 21 Sep 2026 14:13:20 GMT");
    assert_eq!(shop.server.ask(&request).await.text(), "call 1");
    testing::pass(&shop.redrive, DAY - Duration::from_secs(60));
    assert_eq!(shop.server.ask(&request).await.text(), "call 1");
    testing::pass(&shop.redrive, 3 * DAY);
    assert_eq!(shop.server.ask(&request).await.code(), "response-expired", "its tombstone is there");
    testing::pass(&shop.redrive, DAY);
    assert_eq!(
        shop.server.ask(&request).await.code(),
        "key-too-old",
        "it is forgotten, and is not run again"
    );
    assert_eq!(shop.calls.count(), 1);
}

#[tokio::test]
async fn row_8_a_key_used_for_something_else_is_refused_and_nothing_is_told() {
    let shop = counting(keyed()).await;
    assert_eq!(shop.server.ask(&post(r#"{"cabin":7}"#).key("k")).await.status, 200);
    for other in [post(r#"{"cabin":8}"#).key("k"), post(r#"{"cabin":7}"#).line("POST /bookings?x").key("k")] {
        let answer = shop.server.ask(&other).await;
        assert_eq!((answer.status, answer.code().as_str()), (422, "key-reused"));
        assert!(!answer.text().contains("call"), "{}", answer.text());
        assert_eq!(answer.header("idempotency-first-received"), None);
    }
    assert_eq!(shop.calls.count(), 1);
}

#[tokio::test]
async fn row_8_other_credentials_are_refused_also_while_it_runs() {
    let who =
        |parts: &axum::http::request::Parts| Some(parts.headers.get("x-user")?.to_str().ok()?.to_owned());
    let (redrive, _) = memory();
    let gate = Gate::default();
    let at = gate.clone();
    let handler = move || async move {
        at.pass().await;
        "done"
    };
    let server = Arc::new(serve(&redrive, keyed().credentials(who), handler).await);
    let by = |user: &str| post("{}").key("k").header("x-user", user);
    let first = server.later(by("ann"));
    gate.reached.wait().await;
    assert_eq!(server.ask(&by("bob")).await.code(), "key-reused", "also while it runs");
    assert_eq!(server.ask(&by("ann")).await.code(), "in-flight");
    gate.open.give();
    assert_eq!(first.await.unwrap().text(), "done");
    assert_eq!(server.ask(&by("bob")).await.code(), "key-reused");
    assert_eq!(server.ask(&by("ann")).await.text(), "done");
}

#[tokio::test]
async fn row_8_only_a_caller_with_the_same_credentials_learns_what_differs() {
    let who =
        |parts: &axum::http::request::Parts| Some(parts.headers.get("x-user")?.to_str().ok()?.to_owned());
    let shop = counting(keyed().credentials(who)).await;
    let by = |user: &str, body: &str| post(body).key("k").header("x-user", user);
    assert_eq!(shop.server.ask(&by("ann", "{}")).await.status, 200);
    let said = async |request| shop.server.ask(&request).await.text();
    assert!(said(by("ann", "[]")).await.contains("; its body differs;"));
    assert!(said(by("ann", "{}").line("POST /bookings?x")).await.contains("; its path, query, media type"));
    let stranger = said(by("bob", "[]")).await;
    assert_eq!(said(by("bob", "{}")).await, stranger, "which of them differs is not told");
    assert!(stranger.contains("already used for a different request; use a new key"), "{stranger}");
    assert_eq!(said(post("[]").key("k")).await, stranger, "without credentials");
    assert_eq!(shop.calls.count(), 1);
}

#[tokio::test]
async fn row_8_without_credentials_nobody_learns_what_differs() {
    let shop = counting(keyed()).await;
    assert_eq!(shop.server.ask(&post("{}").key("k")).await.status, 200);
    let reused = shop.server.ask(&post("[]").key("k")).await.text();
    assert!(reused.contains("for a different request; use a new key"), "{reused}");
}

#[tokio::test]
async fn each_principal_has_keys_of_its_own() {
    let who =
        |parts: &axum::http::request::Parts| Some(parts.headers.get("x-user")?.to_str().ok()?.to_owned());
    let shop = counting(keyed().principal(who)).await;
    let by = |user: &str, body: &str| post(body).key("k").header("x-user", user);
    assert_eq!(shop.server.ask(&by("ann", "{}")).await.text(), "call 1");
    assert_eq!(shop.server.ask(&by("bob", "{}")).await.text(), "call 2", "a stranger burns no key");
    assert_eq!(shop.server.ask(&by("ann", "{}")).await.text(), "call 1");
    let reused = shop.server.ask(&by("bob", "[]")).await;
    assert_eq!((reused.status, reused.code().as_str()), (422, "key-reused"));
    let told = "you used this idempotency key for a different request; its body differs; use a new key";
    assert!(reused.text().contains(told), "{}", reused.text());
    let reused = shop.server.ask(&by("bob", "{}").line("POST /bookings?x")).await;
    assert!(reused.text().contains("its path, query, media type or a header differs"), "{}", reused.text());
    // With a letter that no name has, and longer than a name may be: still a caller of its own.
    let long = "x".repeat(300);
    assert_eq!(shop.server.ask(&by(&long, "{}")).await.text(), "call 3");
    assert_eq!(shop.server.ask(&by(&long, "{}")).await.text(), "call 3");
    let required = counting(keyed().principal(who).principal_required()).await;
    let unnamed = required.server.ask(&post("{}").key("k")).await;
    assert_eq!((unnamed.status, unnamed.code().as_str()), (403, "principal-missing"));
    assert_eq!((required.calls.count(), required.records().await), (0, 0));
}

#[tokio::test]
async fn a_chosen_header_counts_and_others_do_not() {
    let shop = counting(keyed().headers([axum::http::header::ACCEPT_LANGUAGE])).await;
    let said = |language: &str, trace: &str| {
        post("{}").key("k").header("accept-language", language).header("x-trace", trace)
    };
    assert_eq!(shop.server.ask(&said("en", "1")).await.status, 200);
    assert_eq!(shop.server.ask(&said("en", "2")).await.status, 200);
    assert_eq!(shop.server.ask(&said("de", "1")).await.status, 422);
}

#[tokio::test]
async fn a_name_that_stands_twice_in_a_body_is_refused() {
    let shop = counting(keyed()).await;
    let answer = shop.server.ask(&post(r#"{"cabin":7,"cabin":8}"#).key("k")).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "body-ambiguous"));
    assert_eq!((shop.calls.count(), shop.records().await), (0, 0));
}

#[tokio::test]
async fn without_a_key_the_identity_comes_from_the_body() {
    let shop = counting(keyed().identity(["/order/id", "/line"]).required()).await;
    let order = |id: &str, rest: &str| post(&format!(r#"{{"order":{{"id":{id}}},"line":1{rest}}}"#));
    let first = shop.server.ask(&order("17", "")).await;
    assert_eq!(first.text(), "call 1");
    assert!(first.header("idempotency-key").unwrap().starts_with("\"body-"));
    assert_eq!(shop.server.ask(&order("17.0", "")).await.text(), "call 1");
    assert_eq!(shop.server.ask(&order("18", "")).await.text(), "call 2");
    assert_eq!(shop.server.ask(&order("17", r#","note":"x""#)).await.code(), "key-reused");
    // A part of the identity is missing: there is none.
    assert_eq!(shop.server.ask(&post(r#"{"order":{"id":17}}"#)).await.code(), "key-missing");
    // The client's own key takes precedence.
    assert_eq!(shop.server.ask(&order("17", "").key("own")).await.text(), "call 3");
}

#[tokio::test]
async fn one_operation_for_several_methods_is_several_operations() {
    let endpoint = Endpoint::new("/bookings").tenant(Tenant::fixed("acme")).effects(Effects::Keyed);
    let shop = counting(endpoint).await;
    let put = |request: Request| request.line("PUT /bookings");
    assert_eq!(shop.server.ask(&post("{}").key("k")).await.text(), "call 1");
    assert_eq!(shop.server.ask(&put(post("{}").key("k"))).await.text(), "call 2");
    assert_eq!(shop.server.ask(&put(post("{}").key("k"))).await.text(), "call 2");
    assert_eq!(shop.server.ask(&post("{}").key("k")).await.text(), "call 1");
}

#[tokio::test]
async fn who_has_no_tenant_is_refused() {
    let tenant =
        |parts: &axum::http::request::Parts| Some(parts.headers.get("x-tenant")?.to_str().ok()?.to_owned());
    let shop = counting(Endpoint::new(BOOK).tenant(Tenant::from(tenant)).effects(Effects::Keyed)).await;
    for request in [post("{}").key("k"), post("{}").key("k").header("x-tenant", "t".repeat(256))] {
        let answer = shop.server.ask(&request).await;
        assert_eq!((answer.status, answer.code().as_str()), (403, "tenant-missing"));
    }
    assert_eq!(shop.calls.count(), 0);
}

#[tokio::test]
async fn row_23_a_key_is_found_whatever_its_method() {
    let (redrive, _) = memory();
    let endpoint = Endpoint::new("/bookings").tenant(Tenant::fixed("acme")).effects(Effects::Keyed);
    let layer = layer(&redrive, endpoint);
    let app = Router::new()
        .route("/bookings", any(|| async { "done" }).layer(layer.clone()))
        .route("/bookings/keys/{key}", get_service(layer.keys()));
    let server = Server::start(app).await;
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let request = post("{}").line(&format!("{method} /bookings")).key(method);
        assert_eq!(server.ask(&request).await.text(), "done");
        let found = server.ask(&post("").line(&format!("GET /bookings/keys/{method}"))).await;
        assert_eq!((found.status, &found.json()["state"]), (200, &"completed".into()), "{method}");
    }
    assert_eq!(server.ask(&post("").line("GET /bookings/keys/none")).await.status, 404);
    // Of several the latest one.
    testing::pass(&redrive, Duration::from_secs(1));
    server.ask(&post("{}").line("PUT /bookings").key("PATCH")).await;
    let found = server.ask(&post("").line("GET /bookings/keys/PATCH")).await;
    assert_eq!(found.json()["first_received"], "2026-09-21T14:13:21Z");
}

#[tokio::test]
async fn row_23_a_tombstone_tells_when_its_answer_expired() {
    let (redrive, _) = memory();
    let layer = layer(&redrive, keyed());
    let app = Router::new()
        .route("/bookings", any(|| async { "done" }).layer(layer.clone()))
        .route("/bookings/keys/{key}", get_service(layer.keys()));
    let server = Server::start(app).await;
    server.ask(&post("{}").key("k")).await;
    for state in ["completed", "tombstone"] {
        let found = server.ask(&post("").line("GET /bookings/keys/k")).await.json();
        assert_eq!(found["state"], state);
        assert_eq!(found["expires"], "2026-09-22T14:13:20Z");
        assert_eq!(found["forgotten"], "2026-09-25T14:13:20Z");
        testing::pass(&redrive, DAY);
    }
}
