//! What is not enrolled passes through as it is.

use crate::test_gateway::{Gate, Upstream};

#[tokio::test]
async fn headers_of_a_connection_stay_on_it_and_all_others_pass() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    client
        .say(
            "GET /a%20b?c=d%26 HTTP/1.1\nHost: shop.example\nConnection: keep-alive, X-Mine\nKeep-Alive: timeout=5\n\
             X-Mine: 1\nProxy-Authorization: Basic abc\nProxy-Connection: close\nTE: gzip\nUpgrade: other\n\
             X-Twice: 1\nX-Twice: 2\nAuthorization: Bearer abc\n\n",
        )
        .await;
    let mut served = upstream.accept().await;
    let asked = served.head().await;
    assert_eq!(asked.first, "GET /a%20b?c=d%26 HTTP/1.1");
    for name in
        ["connection", "keep-alive", "x-mine", "proxy-authorization", "proxy-connection", "te", "upgrade"]
    {
        assert_eq!(asked.get(name), None, "{asked:?}");
    }
    assert_eq!((asked.all("x-twice"), asked.get("authorization")), (vec!["1", "2"], Some("Bearer abc")));
    served
        .say(
            "HTTP/1.1 203 Fine\nConnection: X-Theirs\nX-Theirs: 1\nKeep-Alive: timeout=9\nUpgrade: h2\n\
             Set-Cookie: a=1\nSet-Cookie: b=2\nProxy-Authenticate: Basic\nContent-Length: 2\n\nhi",
        )
        .await;
    let (answer, body) = client.message().await;
    assert_eq!((answer.status(), body.as_str()), (203, "hi"));
    assert_eq!(answer.all("set-cookie"), ["a=1", "b=2"]);
    for name in ["connection", "keep-alive", "x-theirs", "upgrade", "proxy-authenticate"] {
        assert_eq!(answer.get(name), None, "{answer:?}");
    }
}

#[tokio::test]
async fn the_upstream_is_told_who_asked_and_by_nobody_but_the_gateway() {
    let upstream = Upstream::open().await;
    for (trusted, seen) in [("", vec!["127.0.0.1"]), ("127.0.0.0/8", vec!["1.2.3.4, 127.0.0.1"])] {
        let trusted =
            if trusted.is_empty() { String::new() } else { format!("gateway.trusted = [\"{trusted}\"]") };
        let gate = Gate::before(upstream.address(), &trusted).await;
        let mut client = gate.connect().await;
        client.say("GET / HTTP/1.1\nHost: shop.example\nX-Forwarded-For: 1.2.3.4\n\n").await;
        let asked = upstream.accept().await.head().await;
        assert_eq!(asked.all("x-forwarded-for"), seen);
        assert_eq!(asked.all("forwarded"), ["for=127.0.0.1;host=\"shop.example\";proto=http"]);
        assert_eq!((asked.get("host"), asked.get("x-forwarded-proto")), (Some("shop.example"), Some("http")));
    }
}

#[tokio::test]
async fn a_body_is_streamed_both_ways_piece_by_piece_with_its_trailers() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    client
        .say(
            "PUT /stream HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\nTE: trailers\nTrailer: x-sum\n\n3\none\n",
        )
        .await;
    let mut served = upstream.accept().await;
    let asked = served.head().await;
    assert_eq!((asked.get("transfer-encoding"), asked.get("te")), (Some("chunked"), Some("trailers")));
    // Each chunk arrives before the next one is sent, so nothing waits for the whole.
    assert_eq!(served.bytes(8).await, "3\r\none\r\n");
    client.say("3\ntwo\n0\nX-Sum: 6\n\n").await;
    assert_eq!(served.bytes(8).await, "3\r\ntwo\r\n");
    assert_eq!(served.bytes(3).await, "0\r\n");
    assert_eq!(served.head().await.first, "x-sum: 6");
    served
        .say(
            "HTTP/1.1 200 OK\nContent-Type: text/event-stream\nTransfer-Encoding: chunked\nTrailer: x-end\n\n\
             7\ndata: 1\n",
        )
        .await;
    let answer = client.head().await;
    assert_eq!((answer.status(), answer.get("content-type")), (200, Some("text/event-stream")));
    assert_eq!((client.line().await.as_str(), client.line().await.as_str()), ("7", "data: 1"));
    served.say("7\ndata: 2\n0\nX-End: yes\n\n").await;
    let rest = [client.line().await, client.line().await, client.line().await, client.line().await];
    assert_eq!(rest, ["7", "data: 2", "0", "x-end: yes"]);
}

#[tokio::test]
async fn what_headers_decide_does_not_come_behind_a_body() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    let trailers =
        "Trailer: X-Sum, X-Real-Ip, Authorization, Idempotency-Key\nTrailer: X_Forwarded_For, X-Mine";
    client
        .say(&format!(
            "PUT /a HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\nTE: trailers\nConnection: x-mine\n{trailers}\n\n0\n\
             X-Real-Ip: 1.2.3.4\nAuthorization: Bearer abc\nIdempotency-Key: k\nX_Forwarded_For: 1.2.3.4\n\
             X-Mine: 1\nX-Unannounced: 1\nX-Sum: 6\n\n"
        ))
        .await;
    let mut served = upstream.accept().await;
    assert_eq!(served.head().await.get("trailer"), Some("x-sum"));
    assert_eq!(served.bytes(3).await, "0\r\n");
    assert_eq!(served.bytes(12).await, "x-sum: 6\r\n\r\n");
    served
        .say(
            "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\nTrailer: Set-Cookie, X-End, Content-Length\n\n0\n\
             Set-Cookie: a=1\nContent-Length: 7\nX-End: yes\n\n",
        )
        .await;
    assert_eq!(client.head().await.get("trailer"), Some("x-end"));
    let rest = [client.line().await, client.line().await, client.line().await];
    assert_eq!(rest, ["0", "x-end: yes", ""]);
}

#[tokio::test]
async fn a_body_larger_than_any_cap_passes_where_nothing_is_enrolled() {
    const SIZE: usize = 24 << 20;
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    let piece = "x".repeat(1 << 20);
    let sending = async {
        client.say(&format!("POST /upload HTTP/1.1\nHost: a\nContent-Length: {SIZE}\n\n")).await;
        for _ in 0..SIZE >> 20 {
            client.send(piece.as_bytes()).await;
        }
    };
    let serving = async {
        let mut served = upstream.accept().await;
        let (_, body) = served.message().await;
        served.say("HTTP/1.1 204 No Content\n\n").await;
        body.len()
    };
    let ((), size) = tokio::join!(sending, serving);
    assert_eq!(size, SIZE);
    assert_eq!(client.head().await.status(), 204);
}

#[tokio::test]
async fn answers_without_a_body_say_what_they_would_have_had() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    for (request, answer, length) in [
        ("HEAD /file", "200 OK\nContent-Length: 17", Some("17")),
        ("GET /file", "304 Not Modified\nETag: \"a\"", None),
        ("DELETE /file", "204 No Content", None),
    ] {
        client.say(&format!("{request} HTTP/1.1\nHost: a\n\n")).await;
        let mut served = upstream.accept().await;
        assert!(served.head().await.first.starts_with(request));
        served.say(&format!("HTTP/1.1 {answer}\nConnection: close\n\n")).await;
        // On one connection: had a body been expected, the next answer would be taken for it.
        let got = client.head().await;
        assert_eq!(got.first, format!("HTTP/1.1 {}", answer.lines().next().expect("a line")));
        assert_eq!(got.get("content-length"), length, "{request}");
    }
}

#[tokio::test]
async fn an_upstream_that_speaks_http_1_0_is_no_concern_of_the_clients() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    for n in ["1", "2"] {
        // The client's connection stays, though the upstream ends its own with each answer.
        client.say(&format!("GET /{n} HTTP/1.1\nHost: a\n\n")).await;
        let mut served = upstream.accept().await;
        assert_eq!(served.head().await.first, format!("GET /{n} HTTP/1.1"));
        served.say("HTTP/1.0 200 OK\n\nold").await;
        drop(served);
        let answer = client.head().await;
        assert_eq!((answer.first.as_str(), answer.get("connection")), ("HTTP/1.1 200 OK", None));
        assert_eq!(answer.get("transfer-encoding"), Some("chunked"));
        assert_eq!(client.bytes(13).await, "3\r\nold\r\n0\r\n\r\n");
    }
}

#[tokio::test]
async fn whoever_waits_to_be_told_to_go_on_is_told_once_somebody_listens() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    client.say("PUT /a HTTP/1.1\nHost: a\nContent-Length: 2\nExpect: 100-continue\n\n").await;
    let mut served = upstream.accept().await;
    assert_eq!(served.head().await.get("expect"), None);
    assert_eq!(client.head().await.first, "HTTP/1.1 100 Continue");
    client.say("hi").await;
    assert_eq!(served.bytes(2).await, "hi");
    served.say("HTTP/1.1 200 OK\nContent-Length: 0\n\n").await;
    assert_eq!(client.head().await.status(), 200);
}

#[tokio::test]
async fn a_client_that_hangs_up_ends_what_nobody_answers_for() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    client.say("GET /long HTTP/1.1\nHost: a\n\n").await;
    let mut served = upstream.accept().await;
    served.head().await;
    drop(client);
    assert_eq!(served.rest().await, "", "it is told by the connection's end");
}
