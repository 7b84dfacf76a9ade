//! Waiting for events: who is woken, who is not served any more.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::pull::{QUEUE, held, lease, publish, settle};
use crate::test_server::TestServer;

async fn until_waiting(server: &TestServer, count: usize) {
    let app = server.server.as_ref().expect("it runs").app();
    let waiting = async {
        while app.waiting("jobs") != count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("it comes to this");
}

#[tokio::test]
async fn a_worker_that_waits_gets_what_is_published() {
    let server = TestServer::open(QUEUE).await;
    let began = std::time::Instant::now();
    for id in 0..20 {
        let waiting = lease(&server, json!({ "wait": "50s", "lease": "1h" }));
        let publishing = async {
            until_waiting(&server, 1).await;
            publish(&server, json!({ "id": id.to_string() })).await;
        };
        let (lease, ()) = tokio::join!(waiting, publishing);
        assert_eq!(lease["id"], id.to_string());
    }
    // By looking now and then, it would take a second each.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_worker_that_waits_gets_the_next_of_a_key_when_the_one_before_is_settled() {
    let server = TestServer::open(QUEUE).await;
    for id in ["1", "2"] {
        publish(&server, json!({ "id": id, "key": "k" })).await;
    }
    let first = lease(&server, json!({ "lease": "1h" })).await;
    let settling = async {
        until_waiting(&server, 1).await;
        settle(&server, &first, json!({ "disposition": "ok" })).await;
    };
    let (second, ()) = tokio::join!(lease(&server, json!({ "wait": "50s" })), settling);
    assert_eq!(second["id"], "2");
}

#[tokio::test]
async fn a_worker_that_waits_gets_what_another_let_lapse() {
    let server = TestServer::open(QUEUE).await;
    publish(&server, json!({ "id": "1" })).await;
    lease(&server, json!({ "lease": "300ms" })).await;
    let again = lease(&server, json!({ "wait": "50s" })).await;
    assert_eq!((&again["id"], &again["attempt"]), (&json!("1"), &json!(2)));
}

#[tokio::test]
async fn nothing_is_leased_for_a_worker_that_hung_up() {
    let server = TestServer::open(QUEUE).await;
    let address = server.server.as_ref().expect("it runs").address();
    let mut gone = TcpStream::connect(address).await.expect("a connection");
    let body = r#"{"wait":"50s","lease":"1h"}"#;
    let request = format!(
        "POST /v1/queues/jobs/leases HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    gone.write_all(request.as_bytes()).await.expect("it is sent");
    until_waiting(&server, 1).await;
    drop(gone);
    until_waiting(&server, 0).await;
    publish(&server, json!({ "id": "1" })).await;
    let lease = lease(&server, json!({ "wait": "50s" })).await;
    assert_eq!((&lease["id"], &lease["attempt"]), (&json!("1"), &json!(1)), "{}", held(&lease));
}

#[tokio::test]
async fn a_stop_ends_every_wait_at_once_and_with_nothing() {
    let mut server = TestServer::open(QUEUE).await;
    let ask = || {
        let request =
            server.client.post(server.url("/v1/queues/jobs/leases")).json(&json!({ "wait": "50s" }));
        tokio::spawn(crate::test_server::answer(request))
    };
    let waiting = [ask(), ask(), ask()];
    until_waiting(&server, 3).await;
    let began = std::time::Instant::now();
    server.stop().await;
    for worker in waiting {
        assert_eq!(worker.await.expect("an answer"), (200, json!({ "leases": [] })));
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}
