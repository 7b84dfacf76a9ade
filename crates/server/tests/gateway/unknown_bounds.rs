//! Outcomes that are unknown stay until a person resolves them, so how many there can be is bounded.

use redrive::desk::{RequestScope, Resolution};

use crate::keyed_requests::{MADE, ask, exchange, post};
use crate::test_gateway::{Gate, Upstream, code};

const HOLD: &str = "[[gateway.routes]]\nmatch = \"POST /mails\"\ntenant = \"acme\"\neffects = \"opaque\"\n\
                    [[gateway.routes]]\nmatch = \"POST /other\"\ntenant = \"other\"\neffects = \"opaque\"\n\
                    [[gateway.routes]]\nmatch = \"POST /keyed\"\ntenant = \"acme\"\neffects = \"keyed\"\n";
const LIMITED: &str = "HTTP/1.1 429 Too Many\nContent-Length: 0\nConnection: close\n\n";

#[tokio::test]
async fn beyond_a_tenants_bound_requests_are_refused_before_they_are_sent() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), &format!("gateway.unknown_max = 2\n{HOLD}")).await;
    exchange(&gate, &upstream, &post("/mails", "done", "x"), MADE).await;
    exchange(&gate, &upstream, &post("/mails", "a", "x"), LIMITED).await;
    // The upstream breaks off: unknown as well.
    exchange(&gate, &upstream, &post("/mails", "b", "x"), "").await;
    let (refused, body) = ask(&gate, &post("/mails", "c", "x")).await;
    assert_eq!((refused.status(), code(&body).as_str()), (429, "too-many-unknown"));
    assert_eq!((refused.get("retry-after"), refused.get("idempotency-outcome")), (Some("60"), None));
    assert!(body.contains("\"executed\":\"no\"") && body.contains("gateway.unknown_max"), "{body}");
    assert!(upstream.is_alone().await, "it was not sent");
    // What is known, what may run again and what is another tenant's goes on.
    assert_eq!(ask(&gate, &post("/mails", "done", "x")).await.0.get("idempotent-replayed"), Some("true"));
    assert_eq!(code(&ask(&gate, &post("/mails", "a", "x")).await.1), "outcome-unknown");
    for path in ["/keyed", "/other"] {
        assert_eq!(exchange(&gate, &upstream, &post(path, "k", "x"), MADE).await.1.status(), 201);
    }
    // An operator resolves one, and the refused key is as free as before.
    let desk = gate.0.redrive().desk("ann", "test");
    let scope = RequestScope { tenant: "acme".into(), operation: "POST /mails".into(), key: "a".into() };
    desk.resolve(scope, Resolution::Retriable, "").await.expect("it is unknown");
    let again = async {
        while ask_or_serve(&gate, &upstream).await == 429 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    crate::test_gateway::in_time(again).await;
}

/// The status of a request that the upstream answers if it comes there.
async fn ask_or_serve(gate: &Gate, upstream: &Upstream) -> u16 {
    let mut client = gate.connect().await;
    client.say(&post("/mails", "c", "x")).await;
    tokio::select! {
        (head, _) = client.message() => head.status(),
        mut served = upstream.accept() => {
            served.message().await;
            served.say(MADE).await;
            201
        }
    }
}

#[tokio::test]
async fn a_client_has_its_own_bound_beside_the_tenants() {
    let upstream = Upstream::open().await;
    let bounds = "gateway.client_unknown_max = 1\ngateway.trusted = [\"127.0.0.1\"]\n";
    let gate = Gate::before(upstream.address(), &format!("{bounds}{HOLD}")).await;
    let of = |client: &str, key: &str| {
        post("/mails", key, "x").replace("Host: a", &format!("Host: a\nX-Forwarded-For: {client}"))
    };
    exchange(&gate, &upstream, &of("192.0.2.1", "a"), LIMITED).await;
    let (refused, body) = ask(&gate, &of("192.0.2.1", "b")).await;
    assert_eq!((refused.status(), code(&body).as_str()), (429, "too-many-unknown"));
    assert!(body.contains("gateway.client_unknown_max"), "{body}");
    assert_eq!(exchange(&gate, &upstream, &of("192.0.2.2", "b"), MADE).await.1.status(), 201);
}

#[tokio::test]
async fn an_undeclared_429_is_unknown_and_its_answer_names_the_setting() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), HOLD).await;
    exchange(&gate, &upstream, &post("/mails", "k", "x"), LIMITED).await;
    let (held, body) = ask(&gate, &post("/mails", "k", "x")).await;
    assert_eq!((held.status(), code(&body).as_str()), (409, "outcome-unknown"));
    assert!(body.contains("not_executed"), "{body}");
    // A 403 is an answer, and one that may run again is run again.
    let forbidden = "HTTP/1.1 403 No\nContent-Length: 0\nConnection: close\n\n";
    exchange(&gate, &upstream, &post("/mails", "l", "x"), forbidden).await;
    assert_eq!(ask(&gate, &post("/mails", "l", "x")).await.0.get("idempotent-replayed"), Some("true"));
    exchange(&gate, &upstream, &post("/keyed", "k", "x"), LIMITED).await;
    assert_eq!(exchange(&gate, &upstream, &post("/keyed", "k", "x"), MADE).await.1.status(), 201);
}
