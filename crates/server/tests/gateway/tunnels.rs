//! Connections that go on in another protocol.

use std::time::Duration;

use crate::test_gateway::{Gate, Talk, Upstream, code, in_time};

const ASK: &str = "GET /chat HTTP/1.1\nHost: a\nConnection: keep-alive, Upgrade\nUpgrade: websocket\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n\n";
const AGREE: &str = "HTTP/1.1 101 Switching Protocols\nConnection: Upgrade\nUpgrade: websocket\n\
                     Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\n\n";

/// A tunnel, both its ends.
async fn dug(gate: &Gate, upstream: &Upstream) -> (Talk, Talk) {
    let mut client = gate.connect().await;
    client.say(ASK).await;
    let mut served = upstream.accept().await;
    let asked = served.head().await;
    assert_eq!((asked.get("connection"), asked.get("upgrade")), (Some("upgrade"), Some("websocket")));
    assert_eq!(asked.get("sec-websocket-key"), Some("dGhlIHNhbXBsZSBub25jZQ=="));
    // What is said right after it is in the same segment.
    served.send(format!("{}first", AGREE.replace('\n', "\r\n")).as_bytes()).await;
    let answer = client.head().await;
    assert_eq!((answer.status(), answer.get("upgrade")), (101, Some("websocket")));
    assert_eq!(answer.get("connection"), Some("upgrade"));
    assert_eq!(answer.get("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert_eq!(client.bytes(5).await, "first");
    (client, served)
}

#[tokio::test]
async fn a_websocket_is_passed_through_untouched() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let (mut client, mut served) = dug(&gate, &upstream).await;
    for n in 0..3 {
        client.send(format!("\u{1}ping {n}").as_bytes()).await;
        assert_eq!(served.bytes(7).await, format!("\u{1}ping {n}"));
        served.send(format!("\u{2}pong {n}").as_bytes()).await;
        assert_eq!(client.bytes(7).await, format!("\u{2}pong {n}"));
    }
    drop(served);
    assert_eq!(client.rest().await, "", "it ends where the other side ends");
}

#[tokio::test]
async fn who_is_not_let_go_on_has_the_answer_and_the_connection() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    client.say(ASK).await;
    let mut served = upstream.accept().await;
    served.head().await;
    served.say("HTTP/1.1 426 Upgrade Required\nContent-Length: 2\n\nno").await;
    let (answer, body) = client.message().await;
    assert_eq!((answer.status(), body.as_str()), (426, "no"));
    client.say("GET /next HTTP/1.1\nHost: a\n\n").await;
    assert_eq!(served.head().await.first, "GET /next HTTP/1.1");
}

#[tokio::test]
async fn nobody_goes_on_in_http_past_the_gateway() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    client
        .say("GET / HTTP/1.1\nHost: a\nConnection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAA\n\n")
        .await;
    let mut served = upstream.accept().await;
    let asked = served.head().await;
    for name in ["connection", "upgrade", "http2-settings"] {
        assert_eq!(asked.get(name), None, "{asked:?}");
    }
    // And an upstream that switches without being asked is none to talk to.
    served.say(AGREE).await;
    assert_eq!(client.head().await.status(), 502);
}

#[tokio::test]
async fn a_header_of_the_connection_that_is_not_ascii_is_refused() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    for lines in [
        &b"Connection: Upgrade\r\nUpgrade: h2c\xa0\r\n"[..],
        b"Connection: Upgrade\r\nUpgrade: websocket\xa0\r\n",
        b"Connection: Upgrade\xa0\r\nUpgrade: h2c\r\n",
        b"Trailer: x-sum\xff\r\n",
    ] {
        let mut client = gate.connect().await;
        client.send(&[b"GET / HTTP/1.1\r\nHost: a\r\n", lines, b"\r\n"].concat()).await;
        let (answer, body) = client.message().await;
        assert_eq!((answer.status(), code(&body).as_str()), (400, "headers-ambiguous"));
        assert!(client.rest().await.is_empty(), "and the connection is over");
    }
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn an_upstream_switches_to_the_protocol_that_was_asked_for_and_to_no_other() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "gateway.upgrades = [\"websocket\", \"chat\"]").await;
    for agreed in [
        "Connection: Upgrade\nUpgrade: h2c\n\n",
        "Connection: Upgrade\nUpgrade: chat\n\n",
        "Connection: Upgrade\n\n",
        "Upgrade: websocket\n\n",
    ] {
        let mut client = gate.connect().await;
        client.say(ASK).await;
        let mut served = upstream.accept().await;
        served.head().await;
        served.say(&format!("HTTP/1.1 101 Switching Protocols\n{agreed}")).await;
        assert_eq!(client.head().await.status(), 502, "{agreed}");
    }
}

#[tokio::test]
async fn a_tunnel_ends_when_both_sides_are_silent_and_not_before() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "gateway.tunnel_idle = \"400ms\"").await;
    let (mut client, mut served) = dug(&gate, &upstream).await;
    // Either side's word keeps it open, for longer than both may be silent.
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        served.send(b"tick").await;
        assert_eq!(client.bytes(4).await, "tick");
    }
    assert_eq!((client.rest().await, served.rest().await), (String::new(), String::new()));
}

#[tokio::test]
async fn a_stop_waits_for_tunnels_for_its_grace_and_no_longer() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let (mut client, mut served) = dug(&gate, &upstream).await;
    let stopping = tokio::spawn(gate.0.stop(Duration::from_millis(300)));
    client.send(b"still").await;
    assert_eq!(served.bytes(5).await, "still");
    in_time(stopping).await.expect("no panic").expect("it stops");
    assert_eq!((client.rest().await, served.rest().await), (String::new(), String::new()));
}

#[tokio::test]
async fn a_tunnel_keeps_the_place_of_its_connection() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "server.connections_max = 1").await;
    let (mut client, mut served) = dug(&gate, &upstream).await;
    // Accepted by the system but not by the gateway, although others get their turn again and again.
    let mut waits = gate.connect().await;
    waits.say("GET /next HTTP/1.1\nHost: a\n\n").await;
    for _ in 0..20 {
        client.send(b"still").await;
        assert_eq!(served.bytes(5).await, "still");
    }
    assert!(upstream.is_alone().await);
    drop((client, served));
    assert_eq!(upstream.accept().await.head().await.first, "GET /next HTTP/1.1");
}
