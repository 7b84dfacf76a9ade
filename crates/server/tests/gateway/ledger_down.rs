//! A ledger that does not answer: when a request comes, and when it has been run.

use std::time::Duration;

use redrive::testing::pass;
use tempfile::TempDir;

use crate::keyed_requests::{MADE, ask, exchange, post};
use crate::test_gateway::{Gate, Head, Talk, Upstream, code};

const ROUTES: &str = "[[gateway.routes]]\nmatch = \"POST /closed\"\ntenant = \"acme\"\neffects = \"opaque\"\n\
                      [[gateway.routes]]\nmatch = \"POST /open\"\ntenant = \"acme\"\neffects = \"opaque\"\n\
                      stay_open = true\n";

fn settings(folder: &TempDir) -> String {
    format!("store.address = \"sqlite:{}\"\n{ROUTES}", folder.path().join("gateway.db").display())
}

/// Takes the ledger away, under the gateway.
async fn take_away(gate: &Gate) {
    gate.0.redrive().shutdown(Duration::ZERO).await.expect("it is closed");
}

#[tokio::test]
async fn row_20_without_its_ledger_nothing_enrolled_is_run_unless_the_route_stays_open() {
    let folder = tempfile::tempdir().expect("a folder");
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), &settings(&folder)).await;
    let (closed, open) = (post("/closed", "k", "x"), post("/open", "k", "x"));
    exchange(&gate, &upstream, &closed, MADE).await;
    take_away(&gate).await;
    let (answer, body) = ask(&gate, &closed.replace("Key: k", "Key: l")).await;
    assert_eq!((answer.status(), code(&body).as_str()), (503, "ledger-down"));
    assert!(answer.get("retry-after").is_some() && body.contains("\"retryable\":true"), "{body}");
    assert!(upstream.is_alone().await);
    // Each time anew: that is what staying open means.
    for _ in 0..2 {
        let (_, answer, _) = exchange(&gate, &upstream, &open, MADE).await;
        assert_eq!((answer.status(), answer.get("idempotency-status")), (201, Some("bypassed")));
    }
    // What is not enrolled needs no ledger.
    let free = "POST /other HTTP/1.1\nHost: a\nContent-Length: 0\n\n";
    assert_eq!(exchange(&gate, &upstream, free, MADE).await.1.status(), 201);
}

/// What the admin address answers.
async fn admin(gate: &Gate, path: &str) -> (Head, String) {
    let mut client = Talk::to(gate.0.admin().expect("an address")).await;
    client.say(&format!("GET {path} HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n")).await;
    let head = client.head().await;
    (head, client.rest().await)
}

#[tokio::test]
async fn a_gateway_that_cannot_write_is_not_ready_and_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let upstream = Upstream::open().await;
    let room = "gateway.admin = \"127.0.0.1:0\"\nstore.disk_least = 4611686018427387904\n";
    let gate = Gate::before(upstream.address(), &format!("{room}{}", settings(&folder))).await;
    assert_eq!(code(&ask(&gate, &post("/closed", "k", "x")).await.1), "ledger-down");
    let (ready, why) = admin(&gate, "/readyz").await;
    assert_eq!(ready.status(), 503, "{why}");
    assert!(why.contains("disk"), "{why}");
    assert_eq!(admin(&gate, "/healthz").await.0.status(), 200);
    let (_, metrics) = admin(&gate, "/metrics").await;
    assert!(metrics.contains("redrive_ledger_failures_total{place=\"claim\"}"), "{metrics}");
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn a_gateway_whose_ledger_failed_to_record_an_answer_is_not_ready() {
    let folder = tempfile::tempdir().expect("a folder");
    let upstream = Upstream::open().await;
    let settings = format!("gateway.admin = \"127.0.0.1:0\"\n{}", settings(&folder));
    let gate = Gate::before(upstream.address(), &settings).await;
    assert_eq!(admin(&gate, "/readyz").await.0.status(), 200);
    let mut client = gate.connect().await;
    client.say(&post("/closed", "k", "x")).await;
    let mut served = upstream.accept().await;
    served.message().await;
    take_away(&gate).await;
    served.say(MADE).await;
    assert_eq!(client.message().await.0.get("idempotency-status"), Some("unrecorded"));
    assert_eq!(admin(&gate, "/readyz").await.0.status(), 503);
    let (_, metrics) = admin(&gate, "/metrics").await;
    assert!(metrics.contains("redrive_ledger_failures_total{place=\"end\"}"), "{metrics}");
}

#[tokio::test]
async fn row_21_an_answer_that_could_not_be_recorded_is_sent_and_its_repetition_is_held() {
    let folder = tempfile::tempdir().expect("a folder");
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), &settings(&folder)).await;
    let request = post("/closed", "k", "x");
    let mut client = gate.connect().await;
    client.say(&request).await;
    let mut served = upstream.accept().await;
    served.message().await;
    take_away(&gate).await;
    served.say(MADE).await;
    let (answer, body) = client.message().await;
    assert_eq!((answer.status(), body.as_str()), (201, "made"));
    assert_eq!(answer.get("idempotency-status"), Some("unrecorded"));
    drop(served);
    // When the ledger is back: in flight at first, then unknown.
    let back = Gate::before(upstream.address(), &settings(&folder)).await;
    assert_eq!(code(&ask(&back, &request).await.1), "in-flight");
    pass(back.0.redrive(), Duration::from_secs(31));
    let (told, body) = ask(&back, &request).await;
    assert_eq!((told.status(), code(&body).as_str()), (409, "outcome-unknown"));
    assert!(upstream.is_alone().await, "nothing is sent again");
}
