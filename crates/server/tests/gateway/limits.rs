//! What is held of an enrolled request and its answer, and for how long; and on which connection it goes.

use crate::keyed_requests::{MADE, ROUTES, ask, exchange, post};
use crate::test_gateway::{Gate, Head, Upstream, code, in_time};

#[tokio::test]
async fn bodies_are_bounded_where_they_are_kept_and_keys_asked_for_where_they_are_required() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    let mut client = gate.connect().await;
    // Refused by its length alone, without `100 Continue`.
    client.say("POST /keyed HTTP/1.1\nHost: a\nIdempotency-Key: k\nContent-Length: 1001\nExpect: 100-continue\n\n").await;
    let (answer, body) = client.message().await;
    assert_eq!((answer.status(), code(&body).as_str()), (413, "body-too-large"));
    for (headers, told) in [("", "key-missing"), ("Idempotency-Key: a b\n", "key-invalid")] {
        let request = format!("POST /opaque/1 HTTP/1.1\nHost: a\n{headers}Content-Length: 0\n\n");
        let (answer, body) = ask(&gate, &request).await;
        assert_eq!((answer.status(), code(&body).as_str()), (400, told));
    }
    assert!(upstream.is_alone().await);
}

/// The head of a request whose body is to be held.
fn announced(key: &str, length: usize) -> String {
    let headers = format!("Idempotency-Key: {key}\nContent-Length: {length}\nExpect: 100-continue");
    format!("POST /keyed HTTP/1.1\nHost: a\n{headers}\n\n")
}

/// The answer to a request that is not told to continue. Bytes of others may still be on their way, so it is asked until
/// there is no room.
async fn refused(gate: &Gate, asked: &str) -> Head {
    loop {
        let mut client = gate.connect().await;
        client.say(asked).await;
        let head = client.head().await;
        if head.status() != 100 {
            return head;
        }
    }
}

#[tokio::test]
async fn a_client_that_sends_nothing_holds_no_room_and_one_that_does_is_bounded() {
    let upstream = Upstream::open().await;
    let bounds = "server.body_time = \"400ms\"\nserver.body_max = 1000\nserver.bodies_max = 1500\n";
    let gate = Gate::before(upstream.address(), &format!("{bounds}{ROUTES}")).await;
    let mut slow = gate.connect().await;
    slow.say(&announced("k", 1000)).await;
    assert_eq!(slow.head().await.status(), 100);
    let (_, fine, _) = exchange(&gate, &upstream, &post("/keyed", "l", &"x".repeat(1000)), MADE).await;
    assert_eq!(fine.status(), 201, "what was announced and not sent holds no room");
    slow.send("x".repeat(900).as_bytes()).await;
    // What does not fit beside it is refused before it is sent: no `100 Continue` comes.
    let refused = in_time(refused(&gate, &announced("m", 1000))).await;
    assert_eq!((refused.status(), refused.get("retry-after")), (503, Some("1")));
    // Requests that are not held always have room.
    let free = "POST /other HTTP/1.1\nHost: a\nContent-Length: 0\n\n";
    assert_eq!(exchange(&gate, &upstream, free, MADE).await.1.status(), 201);
    let (answer, body) = slow.message().await;
    assert_eq!((answer.status(), code(&body).as_str()), (408, "request-slow"));
    assert!(body.contains("\"executed\":\"no\"") && body.contains("\"retryable\":true"), "{body}");
    assert!(slow.rest().await.is_empty(), "and the connection is over");
    let (_, fine, _) = exchange(&gate, &upstream, &post("/keyed", "n", &"x".repeat(1000)), MADE).await;
    assert_eq!(fine.status(), 201, "the room is given back");
}

#[tokio::test]
async fn a_held_body_has_a_time_for_all_of_it_however_steadily_it_comes() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), &format!("gateway.held_time = \"300ms\"\n{ROUTES}")).await;
    let mut drip = gate.connect().await;
    drip.say(&announced("k", 1000)).await;
    assert_eq!(drip.head().await.status(), 100);
    let began = std::time::Instant::now();
    while began.elapsed() < std::time::Duration::from_millis(300) {
        drip.send(b"x").await;
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let (answer, body) = drip.message().await;
    assert_eq!((answer.status(), code(&body).as_str()), (408, "request-slow"));
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn one_client_has_its_share_of_the_room_and_others_have_theirs() {
    let upstream = Upstream::open().await;
    let bounds = "server.body_max = 1000\nserver.bodies_max = 10000\ngateway.client_bodies_max = 1500\n\
                  gateway.trusted = [\"127.0.0.1\"]\n";
    let gate = Gate::before(upstream.address(), &format!("{bounds}{ROUTES}")).await;
    let of = |client: &str, request: String| {
        request.replace("Host: a", &format!("Host: a\nX-Forwarded-For: {client}"))
    };
    let mut greedy = gate.connect().await;
    greedy.say(&of("192.0.2.1", announced("k", 1000))).await;
    assert_eq!(greedy.head().await.status(), 100);
    greedy.send("x".repeat(900).as_bytes()).await;
    let refused = in_time(refused(&gate, &of("192.0.2.1", announced("l", 1000)))).await;
    assert_eq!(refused.status(), 503);
    let other = of("192.0.2.2", post("/keyed", "l", &"x".repeat(1000)));
    assert_eq!(exchange(&gate, &upstream, &other, MADE).await.1.status(), 201);
}

#[tokio::test]
async fn replies_that_find_no_room_are_passed_on_and_not_kept() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), &format!("gateway.replies_max = 3000\n{ROUTES}")).await;
    let large = "x".repeat(8000);
    let made = format!("HTTP/1.1 201 Created\nLocation: /7\nContent-Length: {}\n\n{large}", large.len());
    let request = post("/keyed", "k", "x");
    let (_, first, body) = exchange(&gate, &upstream, &request, &made).await;
    assert_eq!((first.status(), body.len()), (201, large.len()), "it is sent whole");
    let (again, body) = ask(&gate, &request).await;
    assert_eq!((again.status(), code(&body).as_str()), (410, "response-expired"), "and never run again");
    assert_eq!(again.get("location"), Some("/7"));
    exchange(&gate, &upstream, &post("/keyed", "l", "x"), MADE).await;
    assert_eq!(ask(&gate, &post("/keyed", "l", "x")).await.1, "made", "the room is given back");
}

#[tokio::test]
async fn without_a_key_a_request_passes_as_if_nothing_were_enrolled() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    let mut client = gate.connect().await;
    // Larger than the cap, and streamed.
    client.say("POST /keyed HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n3\none\n").await;
    let mut served = upstream.accept().await;
    assert_eq!(served.head().await.get("idempotency-key"), None);
    assert_eq!(served.bytes(8).await, "3\r\none\r\n");
    let rest = "x".repeat(2000);
    client.say(&format!("7D0\n{rest}\n0\n\n")).await;
    assert_eq!(served.bytes(5 + 2000 + 2 + 5).await, format!("7D0\r\n{rest}\r\n0\r\n\r\n"));
    served.say(MADE).await;
    let (answer, _) = client.message().await;
    assert_eq!((answer.status(), answer.get("idempotency-status")), (201, Some("none")));
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_end_what_was_begun_for_it() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let request = post("/orders", "k", "x");
    let mut client = gate.connect().await;
    client.say(&request).await;
    let mut served = upstream.accept().await;
    served.message().await;
    drop(client);
    // It is told only after the client is gone for the gateway, too: another request on its way through shows that.
    let other = "GET / HTTP/1.1\nHost: a\n\n";
    let (_, fine, _) = exchange(&gate, &upstream, other, "HTTP/1.1 204 No\nConnection: close\n\n").await;
    assert_eq!(fine.status(), 204);
    served.say(MADE).await;
    let request = request.replace("Host: a", "Host: a\nPrefer: wait=20");
    let (again, body) = ask(&gate, &request).await;
    assert_eq!((again.status(), body.as_str()), (201, "made"));
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn what_may_not_run_again_has_a_connection_of_its_own() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), ROUTES).await;
    let kept = "HTTP/1.1 200 OK\nContent-Length: 0\n\n";
    let mut client = gate.connect().await;
    client.say(&post("/keyed", "a", "x")).await;
    let mut served = upstream.accept().await;
    served.message().await;
    served.say(kept).await;
    assert_eq!(client.message().await.0.status(), 200);
    // The connection is kept, and used by what may run again; what may not has a fresh one.
    client.say(&post("/opaque/1", "b", "x")).await;
    let mut fresh = upstream.accept().await;
    assert!(fresh.message().await.0.first.starts_with("POST /opaque"));
    fresh.say(kept).await;
    assert_eq!(client.message().await.0.status(), 200);
    assert_eq!(fresh.rest().await, "", "and the gateway does not use it again");
    client.say(&post("/keyed", "c", "x")).await;
    assert_eq!(served.message().await.0.get("idempotency-key"), Some("c"));
    // If the connection closes under the request, only the client sends it again.
    drop(served);
    let (answer, body) = client.message().await;
    assert_eq!((answer.status(), code(&body).as_str()), (502, "upstream-broke-off"));
    assert!(body.contains("\"retryable\":true"), "{body}");
    assert!(upstream.is_alone().await);
}

#[tokio::test]
async fn an_answer_that_goes_on_and_on_is_passed_on_as_it_comes() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let request = post("/talk", "k", "x");
    let mut client = gate.connect().await;
    client.say(&request).await;
    let mut served = upstream.accept().await;
    served.message().await;
    let head =
        "HTTP/1.1 200 OK\nContent-Type: text/event-stream; charset=utf-8\nTransfer-Encoding: chunked\n\n";
    served.say(&format!("{head}3\none\n")).await;
    assert_eq!(client.head().await.status(), 200);
    assert_eq!(client.bytes(8).await, "3\r\none\r\n");
    served.say("3\ntwo\n0\n\n").await;
    assert_eq!(client.bytes(8).await, "3\r\ntwo\r\n");
    // It is not kept, and never run again.
    let (again, body) = ask(&gate, &request).await;
    assert_eq!((again.status(), code(&body).as_str()), (410, "response-expired"));
    // So is one that is too large to be kept.
    let large = "x".repeat((1 << 20) + 1);
    let made = format!("HTTP/1.1 201 Created\nLocation: /7\nContent-Length: {}\n\n{large}", large.len());
    let request = post("/report", "l", "x");
    let (_, first, body) = exchange(&gate, &upstream, &request, &made).await;
    assert_eq!((first.status(), body.len()), (201, large.len()));
    let (again, body) = ask(&gate, &request).await;
    assert_eq!((again.status(), again.get("location")), (410, Some("/7")));
    assert!(body.contains("\"original_status\":201"), "{body}");
}

#[tokio::test]
async fn an_enrolled_request_goes_on_in_no_other_protocol() {
    let upstream = Upstream::open().await;
    let gate = Gate::before(upstream.address(), "").await;
    let request = post("/orders", "k", "x").replace("Host: a", "Host: a\nConnection: upgrade\nUpgrade: chat");
    let (asked, answer, _) = exchange(&gate, &upstream, &request, MADE).await;
    assert_eq!((asked.get("upgrade"), answer.status()), (None, 201));
}
