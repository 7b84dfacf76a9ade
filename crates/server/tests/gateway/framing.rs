//! The end of a request is parsed once and written anew: no second request can be smuggled through the gateway inside
//! the first.

use crate::test_gateway::{Gate, Upstream, code};

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
        "Content-Length: 3\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\nContent-Length: 3",
        "Transfer-Encoding: chunked\ncOnTeNt-LeNgTh: 0",
        "Transfer-Encoding: chunked\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: \"chunked\"",
    ] {
        let mut client = gate.connect().await;
        client.say(&format!("PUT /a HTTP/1.1\nHost: a\n{headers}\n\n")).await;
        let (answer, _) = client.message().await;
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
    assert_eq!(asked.all("host"), ["shop"]);
}

#[tokio::test]
async fn another_spelling_of_a_route_is_refused_and_not_forwarded() {
    let upstream = Upstream::open().await;
    let route = "[[gateway.routes]]\nmatch = \"POST /orders\"\ntenant = \"acme\"\neffects = \"keyed\"\nkey = \"required\"\n";
    let gate = Gate::before(upstream.address(), route).await;
    for target in [
        "POST //orders",
        "POST /orders/",
        "POST /a/../orders",
        "POST /%6frders",
        "POST /..;/orders",
        "POST /ORDERS",
        "post /orders",
        "POST http://shop//orders",
    ] {
        let mut client = gate.connect().await;
        client.say(&format!("{target} HTTP/1.1\nHost: shop\nContent-Length: 2\n\nhi")).await;
        let (answer, body) = client.message().await;
        assert_eq!((answer.status(), code(&body).as_str()), (400, "path-ambiguous"), "{target}");
    }
    for target in ["POST orders", "POST *", "POST shop:80"] {
        let mut client = gate.connect().await;
        client.say(&format!("{target} HTTP/1.1\nHost: shop\nContent-Length: 2\n\nhi")).await;
        let (answer, body) = client.message().await;
        assert_eq!((answer.status(), code(&body).as_str()), (400, "target-invalid"), "{target}");
    }
    assert!(upstream.is_alone().await);
    // What is no route in any spelling passes as it is spelt; and all does where the API tells spellings apart.
    let loose =
        Gate::before(upstream.address(), &format!("gateway.refuse_lookalikes = false\n{route}")).await;
    for (gate, target) in [(&gate, "/mails//a/../b"), (&loose, "//orders")] {
        let mut client = gate.connect().await;
        client.say(&format!("POST {target} HTTP/1.1\nHost: shop\nContent-Length: 2\n\nhi")).await;
        let mut served = upstream.accept().await;
        assert!(served.message().await.0.first.contains(&format!(" {target} ")), "{target}");
    }
}

/// A body of empty lines was once read byte by byte, and a megabyte of them took a minute of the processor.
#[tokio::test]
async fn a_body_of_empty_lines_takes_no_longer_than_another() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    for (line, count) in [("\n", 1_000_000), ("G / HTTP/1.1\n\n", 5_000)] {
        let body = line.repeat(count);
        let head = format!("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut client = gate.connect().await;
        let sent = format!("{head}{body}");
        let received = async {
            let mut served = upstream.accept().await;
            served.message().await.1.len()
        };
        let ((), length) = tokio::join!(client.send(sent.as_bytes()), received);
        assert_eq!(length, body.len());
    }
}

#[tokio::test]
async fn chunks_are_framed_anew_request_after_request() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let mut client = gate.connect().await;
    // A body that looks like heads of requests is a body; and requests may follow one another at once.
    let trap = "PUT /b HTTP/1.1\r\nContent-Length: 3\r\n\r\nGET /c HTTP/1.1\r\n\r\n";
    let chunked = format!(
        "PUT /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{trap}\r\n0\r\n\r\n",
        trap.len()
    );
    let sized = "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
    client.send(format!("{sized}{chunked}{sized}{chunked}").as_bytes()).await;
    let mut served = upstream.accept().await;
    for _ in 0..2 {
        assert_eq!(served.message().await.1, "hi");
        served.say("HTTP/1.1 200 OK\nContent-Length: 0\n\n").await;
        assert_eq!(client.head().await.status(), 200);
        assert_eq!(served.head().await.get("transfer-encoding"), Some("chunked"));
        let mut body = String::new();
        while !body.ends_with("0\r\n\r\n") {
            body.push_str(&served.bytes(1).await);
        }
        served.say("HTTP/1.1 200 OK\nContent-Length: 0\n\n").await;
        assert_eq!(client.head().await.status(), 200);
    }
    // After all of these, a request that is ambiguous still is.
    client.say("PUT /a HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\nContent-Length: 3\n\n0\n\n").await;
    assert_eq!(client.head().await.status(), 400);
}

#[tokio::test]
async fn a_request_names_one_host_and_the_target_wins() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    for (hosts, told) in
        [("", "host-missing"), ("Host: a\nHost: a\n", "host-ambiguous"), ("Host: a/b\n", "host-ambiguous")]
    {
        let mut client = gate.connect().await;
        client.say(&format!("GET /a HTTP/1.1\n{hosts}\n")).await;
        let (answer, body) = client.message().await;
        assert_eq!((answer.status(), code(&body).as_str()), (400, told), "{hosts}");
        assert!(client.rest().await.is_empty(), "and the connection is over");
    }
    assert!(upstream.is_alone().await);
    let mut client = gate.connect().await;
    client.say("GET http://inner.example:82/a HTTP/1.1\nHost: shop\n\n").await;
    let asked = upstream.accept().await.head().await;
    assert_eq!((asked.first.as_str(), asked.all("host")), ("GET /a HTTP/1.1", vec!["inner.example:82"]));
    assert_eq!(asked.get("x-forwarded-host"), Some("inner.example:82"));
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
