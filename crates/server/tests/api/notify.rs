//! People are told when letters die of something new, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use http::StatusCode;
use redrive::{Failure, Redrive, Reply};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::test_server::TestServer;

struct Receiver {
    told: mpsc::UnboundedSender<Value>,
    /// How many messages are still refused.
    refuse: AtomicUsize,
}

async fn take(State(receiver): State<Arc<Receiver>>, body: String) -> StatusCode {
    if receiver.refuse.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let _ = receiver.told.send(serde_json::from_str(&body).expect("JSON"));
    StatusCode::NO_CONTENT
}

/// A receiver that refuses the first few; its address, and what it is told.
async fn receiver(refuse: usize) -> (String, mpsc::UnboundedReceiver<Value>) {
    let (told, hear) = mpsc::unbounded_channel();
    let receiver = Arc::new(Receiver { told, refuse: refuse.into() });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = Router::new().route("/hook", post(take)).with_state(receiver);
    tokio::spawn(async move { axum::serve(listener, router).await });
    (format!("http://{address}/hook"), hear)
}

async fn kill(server: &TestServer, id: &str, why: &str) {
    server.post("/v1/queues/orders/events", json!({ "id": id, "payload": "never told" })).await;
    let redrive: &Redrive = &server.server.as_ref().expect("it runs").app().redrive;
    let lease = redrive.lease("orders", 1, Duration::from_secs(60)).await.expect("a lease").remove(0);
    let failure = Failure::permanent_text(format!("{why}; got \"never told\"")).kind(why).code("C-1");
    redrive.settle(vec![(lease.held(), Reply::from(failure))]).await.expect("settled");
}

async fn next(hear: &mut mpsc::UnboundedReceiver<Value>) -> Value {
    tokio::time::timeout(Duration::from_secs(30), hear.recv()).await.expect("in time").expect("a message")
}

#[tokio::test]
async fn a_new_cause_is_told_once_also_over_a_restart_and_a_receiver_that_fails() {
    let (url, mut hear) = receiver(1).await;
    let settings = format!(
        "[push]\nallow = [\"127.0.0.0/8\"]\n[notify]\nurl = \"{url}\"\nevery = \"100ms\"\n[queues.orders.pull]\n"
    );
    let mut server = TestServer::open(&settings).await;
    kill(&server, "a", "card refused").await;
    let told = next(&mut hear).await;
    assert_eq!((&told["queue"], &told["kind"]), (&json!("orders"), &json!("new-failure-group")));
    assert_eq!(told["letters"], json!(1));
    assert!(!told.to_string().contains("never told"), "{told}");

    kill(&server, "b", "card refused").await;
    server.stop().await;
    server.start().await;
    kill(&server, "c", "no such account").await;
    // Had the first one been told again, it would have come before this.
    let second = next(&mut hear).await;
    assert_ne!(second["cause"], told["cause"]);
    assert_eq!(second["title"], json!("no such account C-1"));
    server.stop().await;
    assert!(hear.try_recv().is_err());
}
