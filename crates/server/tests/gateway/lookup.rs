//! What is told of a key, at the admin address; and requests that are known by something else than a header.

use std::time::Duration;

use redrive::testing::pass;
use serde_json::Value;

use crate::keyed_requests::{MADE, ROUTES, ask, exchange, post};
use crate::test_gateway::{Gate, Talk, Upstream};

/// What the gateway knows of a key: its status, and the document.
async fn look(gate: &Gate, query: &str) -> (u16, Value) {
    let mut client = Talk::to(gate.0.admin().expect("an address")).await;
    client.say(&format!("GET /keys?{query} HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n")).await;
    let (head, body) = client.message().await;
    (head.status(), serde_json::from_str(&body).expect("JSON"))
}

#[tokio::test]
async fn row_23_a_key_can_be_looked_up() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), &format!("gateway.admin = \"127.0.0.1:0\"\n{ROUTES}")).await;
    let opaque = "operation=POST+/opaque/%7Bid%7D&tenant=acme&key=k";
    let keyed = "operation=POST+/keyed&tenant=acme&key=k";
    assert_eq!(look(&gate, opaque).await.0, 404);
    let mut client = gate.connect().await;
    client.say(&post("/opaque/1", "k", "secret-asked")).await;
    let mut served = upstream.accept().await;
    served.message().await;
    let (status, told) = look(&gate, opaque).await;
    assert_eq!((status, &told["state"], &told["attempts"]), (200, &"in_flight".into(), &1.into()));
    assert!(told.get("expires").is_none() && told["first_received"].is_string(), "{told}");
    served.say(MADE).await;
    assert_eq!(client.message().await.0.status(), 201);
    // In both spellings, and with nothing of the answer.
    for query in [opaque.to_owned(), opaque.replace("key=k", "key=%22k%22")] {
        let (status, told) = look(&gate, &query).await;
        assert_eq!((status, &told["state"]), (200, &"completed".into()));
        let members: Vec<_> = told.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(members, ["attempts", "expires", "first_received", "forgotten", "state"]);
    }
    let ends =
        |told: &Value| ["expires", "forgotten"].map(|name| told[name].as_str().expect("a time").to_owned());
    let before = ends(&look(&gate, opaque).await.1);
    assert!(before[0] < before[1], "{before:?}");
    // A tombstone tells the same of both.
    pass(gate.0.redrive(), Duration::from_secs(25 * 3600));
    let (_, told) = look(&gate, opaque).await;
    assert_eq!((&told["state"], ends(&told)), (&"tombstone".into(), before));
    for _ in 0..2 {
        exchange(&gate, &upstream, &post("/keyed", "k", "x"), "HTTP/1.1 503 No\nContent-Length: 0\n\n").await;
    }
    let (_, told) = look(&gate, keyed).await;
    assert_eq!((&told["state"], &told["attempts"]), (&"retriable".into(), &2.into()));
    for (query, status) in [
        (keyed.replace("acme", "other"), 404),
        (keyed.replace("/keyed", "/else"), 404),
        (keyed.replace("key=k", "key="), 400),
        (keyed.replace("&tenant=acme", ""), 400),
        (format!("{keyed}&contents=yes"), 400),
    ] {
        assert_eq!(look(&gate, &query).await.0, status, "{query}");
    }
}

#[tokio::test]
async fn a_request_without_a_key_can_be_known_by_its_body() {
    let route = "[[gateway.routes]]\nmatch = \"POST /orders\"\ntenant = \"acme\"\neffects = \"keyed\"\n\
                 identity = [\"/order\"]\nbody_max = 1000\n";
    let upstream = Upstream::open().await;
    let bounds = "server.body_max = 1000\nserver.bodies_max = 1500\nserver.body_time = \"300ms\"\n";
    let gate = Gate::before(upstream.address(), &format!("{bounds}{route}")).await;
    let request = |body: &str| post("/orders", "-", body).replace("Idempotency-Key: -\n", "");
    let order = request("{\"order\":17,\"cabins\":2}");
    let (asked, first, _) = exchange(&gate, &upstream, &order, MADE).await;
    assert_eq!((first.status(), first.get("idempotency-status")), (201, Some("created")));
    assert!(asked.get("idempotency-key").is_some_and(|key| key.starts_with("body-")), "{asked:?}");
    let (again, _) = ask(&gate, &order).await;
    assert_eq!((again.status(), again.get("idempotent-replayed")), (201, Some("true")));
    let (other, _) = ask(&gate, &order.replace(":2}", ":3}")).await;
    assert_eq!(other.status(), 422);
    // Without that in it, it passes.
    let (_, passed, _) = exchange(&gate, &upstream, &request("{\"cabins\":2}"), MADE).await;
    assert_eq!(passed.get("idempotency-status"), Some("none"));
    // It is held, so it has the bounds of what is held.
    let mut slow = gate.connect().await;
    slow.say("POST /orders HTTP/1.1\nHost: a\nContent-Length: 1000\nExpect: 100-continue\n\n").await;
    assert_eq!(slow.head().await.status(), 100);
    assert_eq!(slow.message().await.0.status(), 408);
    assert!(upstream.is_alone().await);
}
