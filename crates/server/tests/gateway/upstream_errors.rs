//! Upstreams that cannot be reached, break off, or take their time.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::test_gateway::{Gate, Upstream, code};

/// An address without a listener.
async fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    listener.local_addr().expect("an address")
}

fn executed(body: &str) -> String {
    let document: serde_json::Value = serde_json::from_str(body).expect("JSON");
    format!("{} {}", document["executed"].as_str().expect("a word"), document["retryable"])
}

#[tokio::test]
async fn the_time_to_answer_does_not_include_the_time_to_connect() {
    let upstream = Upstream::open().await;
    let times = "gateway.connect_time = \"1h\"\ngateway.answer_time = \"200ms\"\n";
    let gate = Gate::before(upstream.address(), times).await;
    for request in ["GET / HTTP/1.1\nHost: a\n\n".to_owned(), crate::keyed_requests::post("/a", "k", "x")] {
        let mut client = gate.connect().await;
        client.say(&request).await;
        let mut served = upstream.accept().await;
        served.message().await;
        let waited = std::time::Instant::now();
        let (answer, body) = client.message().await;
        assert_eq!((answer.status(), code(&body).as_str()), (504, "upstream-slow"));
        assert!(waited.elapsed() < std::time::Duration::from_secs(5), "{:?}", waited.elapsed());
    }
}

#[tokio::test]
async fn an_upstream_that_is_not_there_has_done_nothing() {
    let gate = Gate::before(nobody().await, "").await;
    let mut client = gate.connect().await;
    // No client is told to continue if there is no upstream.
    client.say("POST /a HTTP/1.1\nHost: a\nContent-Length: 2\nExpect: 100-continue\n\n").await;
    let (answer, body) = client.message().await;
    assert_eq!((answer.status(), code(&body).as_str()), (502, "upstream-unreachable"));
    assert_eq!(answer.get("content-type"), Some("application/problem+json"));
    assert_eq!(executed(&body), "no true");
    assert_eq!(answer.get("idempotency-outcome"), None, "that is for the layer");
}

#[tokio::test]
async fn an_upstream_that_breaks_off_may_have_done_it() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    for (method, answer, told) in [
        ("POST", "", "unknown false"),
        ("PUT", "", "unknown true"),
        ("POST", "HTTP/1.1 200 O", "unknown false"),
        ("POST", "SSH-2.0-OpenSSH\n", "unknown false"),
    ] {
        let mut client = gate.connect().await;
        client.say(&format!("{method} /a HTTP/1.1\nHost: a\nContent-Length: 0\n\n")).await;
        let mut served = upstream.accept().await;
        served.head().await;
        served.say(answer).await;
        drop(served);
        let (head, body) = client.message().await;
        assert_eq!((head.status(), code(&body).as_str()), (502, "upstream-broke-off"), "{answer}");
        assert_eq!(executed(&body), told, "{method}");
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_is_cut_for_the_client_too() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    for (framing, sent) in [("Content-Length: 10", "half"), ("Transfer-Encoding: chunked", "4\nhalf\n")] {
        let mut client = gate.connect().await;
        client.say("GET /a HTTP/1.1\nHost: a\n\n").await;
        let mut served = upstream.accept().await;
        served.head().await;
        served.say(&format!("HTTP/1.1 200 OK\n{framing}\n\n{sent}")).await;
        assert_eq!(client.head().await.status(), 200);
        drop(served);
        let rest = client.rest().await;
        assert!(rest.contains("half") && !rest.contains("0\r\n\r\n"), "{rest:?}: it must not look whole");
    }
}

#[tokio::test]
async fn an_upstream_that_does_not_answer_in_time_may_have_done_it() {
    let upstream = Upstream::open().await;
    let times = "gateway.connect_time = \"100ms\"\ngateway.answer_time = \"100ms\"";
    let gate = Gate::before(upstream.address(), times).await;
    let mut client = gate.connect().await;
    client.say("POST /a HTTP/1.1\nHost: a\nContent-Length: 2\n\nhi").await;
    let mut served = upstream.accept().await;
    served.message().await;
    let (answer, body) = client.message().await;
    assert_eq!((answer.status(), code(&body).as_str()), (504, "upstream-slow"));
    assert_eq!(executed(&body), "unknown false");
}

#[tokio::test]
async fn a_slow_client_uses_up_its_own_time_and_not_the_upstreams() {
    let upstream = Upstream::open().await;
    let times =
        "server.body_time = \"600ms\"\ngateway.connect_time = \"50ms\"\ngateway.answer_time = \"50ms\"";
    let gate = Gate::before(upstream.address(), times).await;
    let mut client = gate.connect().await;
    client.say("PUT /a HTTP/1.1\nHost: a\nContent-Length: 2\n\nh").await;
    let mut served = upstream.accept().await;
    served.head().await;
    assert_eq!(served.bytes(1).await, "h");
    let (answer, body) = client.message().await;
    assert_eq!((answer.status(), code(&body).as_str()), (408, "request-slow"));
    assert_eq!(served.rest().await, "", "the upstream is let go as well");
}

#[tokio::test]
async fn what_has_a_time_for_its_whole_is_cut_when_that_is_over() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "gateway.whole_time = \"300ms\"").await;
    let mut client = gate.connect().await;
    client.say("GET /a HTTP/1.1\nHost: a\n\n").await;
    let mut served = upstream.accept().await;
    served.head().await;
    served.say("HTTP/1.1 200 OK\nContent-Length: 10\n\nhalf").await;
    assert_eq!(client.head().await.status(), 200);
    assert_eq!(client.rest().await, "half");
}

#[tokio::test]
async fn a_kept_connection_that_closes_under_a_request_has_it_sent_once() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    client.say("POST /first HTTP/1.1\nHost: a\nContent-Length: 0\n\n").await;
    let mut served = upstream.accept().await;
    served.head().await;
    served.say("HTTP/1.1 200 OK\nContent-Length: 0\n\n").await;
    assert_eq!(client.head().await.status(), 200);
    client.say("POST /second HTTP/1.1\nHost: a\nContent-Length: 0\n\n").await;
    // On the same connection, which closes when the request is there: as if it had been about to.
    assert_eq!(served.head().await.first, "POST /second HTTP/1.1");
    drop(served);
    let (answer, body) = client.message().await;
    assert_eq!((answer.status(), code(&body).as_str()), (502, "upstream-broke-off"));
    assert!(upstream.is_alone().await, "it was not sent again");
}

#[tokio::test]
async fn a_gateway_in_front_of_itself_says_so() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    client.say("GET /a HTTP/1.1\nHost: a\n\n").await;
    let asked = upstream.accept().await.head().await;
    let via = asked.get("via").expect("a way").to_owned();
    let mut again = gate.connect().await;
    again.say(&format!("GET /a HTTP/1.1\nHost: a\nVia: 1.0 other, {via}\n\n")).await;
    let (answer, body) = again.message().await;
    assert_eq!((answer.status(), code(&body).as_str()), (508, "loop"));
}
