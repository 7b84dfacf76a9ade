//! Where a request ends is read once, and written anew: nobody gets a second request past the gateway in the first.

use crate::stand::{Gate, Upstream, code};

#[tokio::test]
async fn a_request_that_could_be_read_in_two_ways_is_refused() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    for headers in [
        "Content-Length: 5\nContent-Length: 6",
        "Content-Length: 5, 6",
        "Content-Length: +5",
        "Content-Length: 0x5",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: chunkedd",
        "Transfer-Encoding: chunked\nTransfer-Encoding: gzip",
        "Transfer-Encoding : chunked",
        "X-A: 1\n Content-Length: 5",
    ] {
        let mut client = gate.connect().await;
        client.say(&format!("PUT /a HTTP/1.1\nHost: a\n{headers}\n\n")).await;
        let answer = client.head().await;
        assert_eq!(answer.status(), 400, "{headers}");
        assert!(client.rest().await.is_empty(), "and the connection is over");
    }
    let mut client = gate.connect().await;
    client.say("GET /a HTTP/1.1\nHost: a\nHost: b\n\n").await;
    let (answer, body) = client.message().await;
    assert_eq!((answer.status(), code(&body).as_str()), (400, "host-ambiguous"));
    // HTTP/1.0 knows no chunks.
    let mut client = gate.connect().await;
    client.say("PUT /a HTTP/1.0\nTransfer-Encoding: chunked\n\n0\n\n").await;
    assert_eq!(client.head().await.status(), 400);
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn a_length_beside_chunks_is_not_passed_on() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    let hidden = "GET /admin HTTP/1.1\nHost: a\n\n";
    client
        .say(&format!(
            "PUT /a HTTP/1.1\nHost: a\nContent-Length: 3\nTransfer-Encoding: chunked\n\n2\nhi\n0\n\n{hidden}"
        ))
        .await;
    let mut served = upstream.accept().await;
    let asked = served.head().await;
    assert_eq!((asked.get("content-length"), asked.get("transfer-encoding")), (None, Some("chunked")));
    assert_eq!(served.bytes(12).await, "2\r\nhi\r\n0\r\n\r\n");
    served.say("HTTP/1.1 200 OK\nContent-Length: 0\nConnection: close\n\n").await;
    assert_eq!(client.head().await.status(), 200);
    assert_eq!(served.rest().await, "", "what follows is no part of it");
}

#[tokio::test]
async fn a_connection_header_takes_nothing_away_that_frames_or_tells() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    client
        .say(
            "PUT /a HTTP/1.1\nHost: shop\nConnection: content-length, host, x-forwarded-for\nContent-Length: 2\n\nhi",
        )
        .await;
    let mut served = upstream.accept().await;
    let (asked, body) = served.message().await;
    assert_eq!(body, "hi");
    assert_eq!(asked.all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(asked.all("host").len(), 1);
}

#[tokio::test]
async fn a_request_goes_to_the_upstream_whatever_host_it_names() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    client.say("GET http://elsewhere.example/a?b HTTP/1.1\nHost: elsewhere.example\n\n").await;
    let mut served = upstream.accept().await;
    assert_eq!(served.head().await.first, "GET /a?b HTTP/1.1");
    served.say("HTTP/1.1 200 OK\nContent-Length: 0\n\n").await;
    assert_eq!(client.head().await.status(), 200);
    client.say("CONNECT elsewhere.example:443 HTTP/1.1\nHost: elsewhere.example\n\n").await;
    let (answer, body) = client.message().await;
    assert_eq!((answer.status(), code(&body).as_str()), (405, "no-tunnels"));
}
