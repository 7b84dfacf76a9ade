//! Rows of the contract that take time, by the ledger's clock: leases, waits, and what is kept.

use std::time::Duration;

use redrive::testing::pass;

use crate::keyed_requests::{MADE, ROUTES, ask, exchange, post};
use crate::test_gateway::{Gate, Upstream, code};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn row_6_a_request_that_was_first_sent_too_long_ago_is_not_run() {
    let route = |path: &str, rest: &str| {
        format!(
            "[[gateway.routes]]\nmatch = \"POST /{path}\"\ntenant = \"acme\"\neffects = \"keyed\"\n{rest}\n"
        )
    };
    let routes = [route("plain", ""), route("dated", "uuid_time = true")].concat();
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), &routes).await;
    // A UUID of version 7, of 1970.
    let old = "00000000-0000-7000-8000-000000000000";
    let header = "Host: a\nRepeatability-First-Sent: Sun, 06 Nov 1994 08:49:37 GMT";
    for request in [post("/plain", "k", "x").replace("Host: a", header), post("/dated", old, "x")] {
        let (answer, body) = ask(&gate, &request).await;
        assert_eq!((answer.status(), code(&body).as_str()), (412, "key-too-old"), "{request}");
        assert!(answer.get("idempotency-expires").is_some());
    }
    assert!(upstream.is_alone().await);
    // Elsewhere a key is a name and has no time.
    let (_, ran, _) = exchange(&gate, &upstream, &post("/plain", old, "x"), MADE).await;
    assert_eq!(ran.status(), 201);
}

#[tokio::test]
async fn row_12b_a_lease_that_lapses_is_unknown_until_its_own_run_says_how_it_was() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    let request = post("/opaque/1", "k", "x");
    let mut client = gate.connect().await;
    client.say(&request).await;
    let mut served = upstream.accept().await;
    served.message().await;
    assert_eq!(code(&ask(&gate, &request).await.1), "in-flight");
    pass(gate.0.redrive(), Duration::from_secs(31));
    for _ in 0..2 {
        let (told, body) = ask(&gate, &request).await;
        assert_eq!((told.status(), code(&body).as_str()), (409, "outcome-unknown"));
        assert_eq!(told.get("retry-after"), None);
    }
    served.say(MADE).await;
    assert_eq!(client.message().await.0.status(), 201);
    let (again, body) = ask(&gate, &request).await;
    assert_eq!((again.status(), again.get("idempotent-replayed")), (201, Some("true")));
    assert_eq!(body, "made");
    assert!(upstream.is_alone().await, "nothing is sent again");
}

#[tokio::test]
async fn row_22_who_was_overtaken_has_the_winners_answer() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    let request = post("/keyed", "k", "x");
    let mut late = gate.connect().await;
    late.say(&request).await;
    let mut zombie = upstream.accept().await;
    zombie.message().await;
    pass(gate.0.redrive(), Duration::from_secs(31));
    let (_, winner, _) = exchange(&gate, &upstream, &request, MADE).await;
    let resumed = (winner.get("idempotency-status"), winner.get("idempotency-attempt"));
    assert_eq!((winner.status(), resumed), (201, (Some("resumed"), Some("2"))));
    zombie.say("HTTP/1.1 200 OK\nContent-Length: 5\nConnection: close\n\nother").await;
    let (told, body) = late.message().await;
    assert_eq!((told.status(), body.as_str()), (201, "made"));
    assert_eq!(ask(&gate, &request).await.1, "made");
}

#[tokio::test]
async fn row_15_the_upstreams_own_wait_is_kept_to() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    let request = post("/keyed", "k", "x");
    let busy = "HTTP/1.1 503 No\nRetry-After: 90\nContent-Length: 0\nConnection: close\n\n";
    let (_, first, _) = exchange(&gate, &upstream, &request, busy).await;
    assert_eq!((first.status(), first.get("retry-after")), (503, Some("90")));
    let (told, body) = ask(&gate, &request).await;
    assert_eq!((told.status(), code(&body).as_str()), (503, "backing-off"));
    let wait: u64 = told.get("retry-after").and_then(|wait| wait.parse().ok()).expect("a wait");
    assert!((60..=90).contains(&wait), "{wait}");
    assert!(upstream.is_alone().await);
    pass(gate.0.redrive(), Duration::from_secs(91));
    let (_, again, _) = exchange(&gate, &upstream, &request, MADE).await;
    assert_eq!((again.status(), again.get("idempotency-attempt")), (201, Some("2")));
}

#[tokio::test]
async fn rows_19_and_19b_that_there_was_an_answer_is_known_for_longer_than_the_answer() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    let request = post("/opaque/1", "k", "x");
    exchange(&gate, &upstream, &request, MADE).await;
    pass(gate.0.redrive(), 23 * HOUR);
    assert_eq!(ask(&gate, &request).await.1, "made");
    pass(gate.0.redrive(), 2 * HOUR);
    for hours in [0, 70] {
        pass(gate.0.redrive(), hours * HOUR);
        let (gone, body) = ask(&gate, &request).await;
        assert_eq!((gone.status(), code(&body).as_str()), (410, "response-expired"), "{hours}");
        assert_eq!(gone.get("location"), Some("/orders/17"));
        let ends = (gone.get("idempotency-expires"), gone.get("idempotency-forgotten"));
        assert!(ends.0.is_some() && ends.1.is_some() && ends.0 != ends.1, "{ends:?}");
    }
    assert!(upstream.is_alone().await, "it is not run");
    pass(gate.0.redrive(), 2 * HOUR);
    let (_, anew, _) = exchange(&gate, &upstream, &request, MADE).await;
    assert_eq!((anew.status(), anew.get("idempotency-status")), (201, Some("created")));
}
