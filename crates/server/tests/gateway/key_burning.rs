//! Keys that a stranger uses first, and tokens that expire: who is refused has not used up a key, and no retry runs twice.

use crate::keyed_requests::{MADE, ask, exchange, post};
use crate::test_gateway::{Gate, Upstream, code};

const DENIED: &str =
    "HTTP/1.1 401 Unauthorized\nWWW-Authenticate: Bearer\nContent-Length: 0\nConnection: close\n\n";
const ROUTE: &str = "[[gateway.routes]]\nmatch = \"POST /orders\"\ntenant = \"acme\"\neffects = \"opaque\"\n";

/// A request under one key with this token.
fn by(token: &str) -> String {
    post("/orders", "k", "x").replace("Host: a", &format!("Host: a\nAuthorization: Bearer {token}"))
}

#[tokio::test]
async fn a_strangers_401_leaves_the_owners_key_free() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTE).await;
    let (_, refused, _) = exchange(&gate, &upstream, &by("stranger"), DENIED).await;
    assert_eq!((refused.status(), refused.get("idempotency-expires")), (401, None));
    let (_, made, _) = exchange(&gate, &upstream, &by("owner"), MADE).await;
    assert_eq!((made.status(), made.get("idempotency-status")), (201, Some("created")));
    assert_eq!(ask(&gate, &by("owner")).await.0.get("idempotent-replayed"), Some("true"));
    assert_eq!(code(&ask(&gate, &by("stranger")).await.1), "key-reused");
}

#[tokio::test]
async fn a_client_refreshes_its_token_and_uses_its_key_again() {
    for effects in ["opaque", "keyed"] {
        let upstream = Upstream::open().await;
        let gate = Gate::before(upstream.address(), &ROUTE.replace("opaque", effects)).await;
        assert_eq!(exchange(&gate, &upstream, &by("expired"), DENIED).await.1.status(), 401);
        assert_eq!(exchange(&gate, &upstream, &by("fresh"), MADE).await.1.status(), 201, "{effects}");
    }
}

#[tokio::test]
async fn where_the_answer_was_lost_a_refreshed_token_runs_nothing_again() {
    // The upstream did it, and the answer was lost: between the gateway and the client, or before the gateway.
    for (effects, answer) in [("opaque", MADE), ("opaque", ""), ("keyed", MADE), ("keyed", "")] {
        let upstream = Upstream::open().await;
        let gate = Gate::before(upstream.address(), &ROUTE.replace("opaque", effects)).await;
        exchange(&gate, &upstream, &by("old"), answer).await;
        let (refused, body) = ask(&gate, &by("new")).await;
        assert_eq!((refused.status(), code(&body).as_str()), (422, "key-reused"), "{effects} {answer}");
        assert!(upstream.is_alone().await, "executed once: {effects} {answer}");
    }
    // Where a proxy names the caller, the refreshed token has the first answer.
    let upstream = Upstream::open().await;
    let trusted =
        format!("gateway.trusted = [\"127.0.0.1\"]\n{ROUTE}principal = {{ header = \"x-user\" }}\n");
    let gate = Gate::before(upstream.address(), &trusted).await;
    let named = |token: &str| by(token).replace("Host: a", "Host: a\nX-User: ann");
    exchange(&gate, &upstream, &named("old"), MADE).await;
    let (again, body) = ask(&gate, &named("new")).await;
    assert_eq!((again.get("idempotent-replayed"), body.as_str()), (Some("true"), "made"));
    assert!(upstream.is_alone().await, "executed once");
}

#[tokio::test]
async fn a_revoked_caller_has_no_replay_where_the_api_is_asked_first() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), &format!("{ROUTE}authorise = \"/auth?for=replays\"\n")).await;
    exchange(&gate, &upstream, &by("ann"), MADE).await;
    for (told, status, body) in [
        ("HTTP/1.1 204 Yes\nConnection: close\n\n", 201, "made"),
        ("HTTP/1.1 403 No\nContent-Length: 7\nConnection: close\n\nrevoked", 403, "revoked"),
    ] {
        let (asked, answer, text) = exchange(&gate, &upstream, &by("ann"), told).await;
        assert_eq!(asked.first, "GET /auth?for=replays HTTP/1.1");
        assert_eq!((asked.get("authorization"), asked.get("idempotency-key")), (Some("Bearer ann"), None));
        let original =
            (asked.get("x-original-method"), asked.get("x-original-uri"), asked.get("content-length"));
        assert_eq!(original, (Some("POST"), Some("/orders"), None));
        assert_eq!((answer.status(), text.as_str()), (status, body));
    }
    let (_, answer, body) = exchange(&gate, &upstream, &by("ann"), "").await;
    assert_eq!((answer.status(), code(&body).as_str()), (503, "not-authorised"));
    // What runs asks by itself, and the record is as it was.
    assert_eq!(code(&ask(&gate, &by("bob")).await.1), "key-reused");
    let (_, answer, _) =
        exchange(&gate, &upstream, &by("ann"), "HTTP/1.1 204 Yes\nConnection: close\n\n").await;
    assert_eq!(answer.get("idempotent-replayed"), Some("true"));
}

#[tokio::test]
async fn a_401_after_an_earlier_attempt_proves_nothing_of_that_attempt() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), &ROUTE.replace("opaque", "keyed")).await;
    let broken = "HTTP/1.1 503 No\nContent-Length: 0\nConnection: close\n\n";
    exchange(&gate, &upstream, &by("old"), broken).await;
    exchange(&gate, &upstream, &by("old"), DENIED).await;
    assert_eq!(code(&ask(&gate, &by("new")).await.1), "key-reused");
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn a_401_that_is_relayed_or_that_asks_for_nothing_keeps_the_key() {
    let relayed = format!("{ROUTE}release_on_401 = false\n");
    let bare = DENIED.replace("WWW-Authenticate: Bearer\n", "");
    for (settings, answer) in [(relayed.as_str(), DENIED), (ROUTE, bare.as_str())] {
        let upstream = Upstream::open().await;
        let gate = Gate::before(upstream.address(), settings).await;
        exchange(&gate, &upstream, &by("a"), answer).await;
        assert_eq!(ask(&gate, &by("a")).await.0.get("idempotent-replayed"), Some("true"));
        assert_eq!(ask(&gate, &by("b")).await.0.status(), 422);
        assert!(upstream.is_alone().await);
    }
}
