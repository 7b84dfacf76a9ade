//! Events on their way to a destination, over real sockets.

use redrive::desk::Rule;
use redrive::event::{AttemptRecord, State};
use redrive::{EventStatus, Executed};
use serde_json::json;

use crate::receiver::{Receiver, status};
use crate::test_server::TestServer;

/// A queue that pushes to this address; more settings of the queue, then of the destination.
pub(crate) fn queue(address: impl std::fmt::Display, policy: &str, push: &str) -> String {
    format!(
        "push.allow = [\"127.0.0.0/8\"]\n[queues.orders.policy]\n{policy}\n[queues.orders.push]\nurl = \
         \"http://{address}/hook?x=1\"\n{push}\n"
    )
}

const ONCE: &str = "attempts = 1\nbudget = \"none\"";

impl TestServer {
    /// Publishes an event whose id is `a`.
    pub(crate) async fn publish(&self, event: serde_json::Value) {
        let (status, told) = self.post("/v1/queues/orders/events", event).await;
        assert_eq!(status, 202, "{told}");
    }

    /// What became of an event once nothing is due, with so many attempts made.
    pub(crate) async fn fate(&self, id: &str, attempts: u32) -> EventStatus {
        let redrive = &self.server.as_ref().expect("it runs").app().redrive;
        loop {
            redrive.idle().await;
            let found = redrive.event("", "orders", id).await.expect("the store").expect("it was published");
            if found.attempts >= attempts || found.state.is_ended() || found.state == State::Dead {
                return found;
            }
            tokio::task::yield_now().await;
        }
    }
}

fn records(found: &EventStatus) -> Vec<AttemptRecord> {
    found.history.as_ref().map(|history| history.records().cloned().collect()).unwrap_or_default()
}

fn message(found: &EventStatus) -> String {
    records(found)[0].cause.clone().expect("a cause").message
}

#[tokio::test]
async fn an_attempt_carries_the_event_and_what_it_is() {
    let mut receiver = Receiver::friendly().await;
    let headers = "headers = { authorization = \"Bearer abc\", x-shop = \"ours\" }";
    let server = TestServer::open(&queue(receiver.address, "", headers)).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    server
        .publish(json!({
            "id": "örder-1", "tenant": "acme", "key": "customer 7", "payload": { "euro": 17 },
            "correlation": "cart-3", "causation": "cart-3/checkout",
            "headers": { "traceparent": trace, "tracestate": "a=b", "X-Source": "web", "x-shop": "theirs" },
        }))
        .await;
    let got = receiver.next().await;
    assert_eq!((got.path.as_str(), got.body.as_slice()), ("/hook?x=1", &br#"{"euro":17}"#[..]));
    for (name, value) in [
        ("redrive-id", "%C3%B6rder-1"),
        ("redrive-tenant", "acme"),
        ("redrive-queue", "orders"),
        ("redrive-key", "customer 7"),
        ("redrive-attempt", "1"),
        ("redrive-mode", "live"),
        ("redrive-correlation", "cart-3"),
        ("redrive-causation", "cart-3/checkout"),
        ("traceparent", trace),
        ("tracestate", "a=b"),
        ("x-source", "web"),
        ("x-shop", "ours"),
        ("authorization", "Bearer abc"),
        ("content-type", "application/json"),
        ("redrive-out-of-order", ""),
        ("webhook-signature", ""),
    ] {
        assert_eq!(got.text(name), value, "{name}");
    }
    let key = redrive::event::identity::downstream_key("acme", "orders", "örder-1", "");
    assert_eq!(got.text("idempotency-key"), format!("\"{key}\""));
    assert!(got.text("user-agent").starts_with("redrive/"));
    let (epoch, seq) = got.text("redrive-fence").split_once('.').expect("two numbers");
    assert!(epoch.parse::<u64>().is_ok() && seq.parse::<u64>().is_ok());
    let time = |name| humantime::parse_rfc3339(got.text(name)).unwrap_or_else(|_| panic!("{name}"));
    // A queue with a destination has 30 seconds where its policy does not say.
    let left = time("redrive-deadline").duration_since(time("redrive-first-seen")).expect("later");
    assert!((30..40).contains(&left.as_secs()), "{left:?}");
    // Nothing that could be logged shows the credentials of a destination.
    let shown = format!("{:?}", server.server.as_ref().expect("it runs").app());
    assert!(
        shown.contains("authorization") && !shown.contains("Bearer abc") && !shown.contains("hook"),
        "{shown}"
    );
}

/// lighttpd and others answer 411 to a POST without a length.
#[tokio::test]
async fn an_empty_body_has_a_length() {
    let mut receiver = Receiver::friendly().await;
    let server = TestServer::open(&queue(receiver.address, "", "")).await;
    server.publish(json!({ "id": "a" })).await;
    let got = receiver.next().await;
    assert_eq!((got.text("content-length"), got.body.len()), ("0", 0));
}

#[tokio::test]
async fn a_structured_push_is_a_cloudevent_with_its_types() {
    let mut receiver = Receiver::friendly().await;
    let server = TestServer::open(&queue(receiver.address, "", "format = \"structured\"")).await;
    let event = json!({
        "specversion": "1.0", "id": "17", "source": "/shop", "type": "order", "subject": "Größe 50%  \"xl\"",
        "count": 7, "urgent": true, "text": "7", "datacontenttype": "application/json", "data": { "b": 1.50, "a": [] },
    });
    let request = server.client.post(server.url("/v1/queues/orders/events"));
    let request = request.header("content-type", "application/cloudevents+json").body(event.to_string());
    assert_eq!(request.send().await.expect("an answer").status(), 202);
    let got = receiver.next().await;
    assert_eq!(got.text("content-type"), "application/cloudevents+json");
    assert_eq!((got.text("ce-id"), got.text("redrive-ce-types")), ("", ""));
    let body: serde_json::Value = serde_json::from_slice(&got.body).expect("JSON");
    assert_eq!(body, event);
    server.publish(json!({ "id": "plain", "key": "k", "payload": [1] })).await;
    let got = receiver.next().await;
    let body: serde_json::Value = serde_json::from_slice(&got.body).expect("JSON");
    let made = json!({
        "specversion": "1.0", "id": "plain", "source": "/v1/queues/orders", "type": "redrive.event",
        "partitionkey": "k", "datacontenttype": "application/json", "data": [1],
    });
    assert_eq!(body, made);
}

#[tokio::test]
async fn a_state_of_a_trace_goes_with_its_own_parent() {
    let mut receiver = Receiver::friendly().await;
    let server = TestServer::open(&queue(receiver.address, "", "")).await;
    server.publish(json!({ "id": "a", "headers": { "tracestate": "of=none" } })).await;
    assert_eq!(receiver.next().await.text("tracestate"), "");
}

#[tokio::test]
async fn a_retry_says_which_it_is_under_the_same_key() {
    let mut receiver = Receiver::open(|n| status(if n == 1 { 500 } else { 200 }, "")).await;
    let server =
        TestServer::open(&queue(receiver.address, "attempts = 2\nbackoff.constant.delay = \"1ms\"", ""))
            .await;
    server.publish(json!({ "id": "a" })).await;
    let (first, second) = (receiver.next().await, receiver.next().await);
    assert_eq!((second.text("redrive-attempt"), second.text("redrive-mode")), ("2", "retry"));
    assert_eq!(first.text("idempotency-key"), second.text("idempotency-key"));
    assert_eq!(first.text("redrive-first-seen"), second.text("redrive-first-seen"));
    let found = server.fate("a", 2).await;
    assert_eq!(found.state, State::Done);
    let failed = &records(&found)[0];
    assert_eq!((failed.disposition.as_str(), failed.executed), ("retry", Some(Executed::Unknown)));
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let mut receiver = Receiver::open(|_| {
        let mut answer = status(302, "");
        answer.headers_mut().insert("location", http::HeaderValue::from_static("/elsewhere"));
        answer
    })
    .await;
    let server = TestServer::open(&queue(receiver.address, "", "")).await;
    server.publish(json!({ "id": "a" })).await;
    assert_eq!(receiver.next().await.path, "/hook?x=1");
    let found = server.fate("a", 1).await;
    assert_eq!((found.state, message(&found).as_str()), (State::Dead, "answered 302 Found"));
    assert!(receiver.is_quiet());
}

#[tokio::test]
async fn a_wait_that_is_asked_for_is_kept() {
    let mut receiver = Receiver::open(|_| {
        let mut answer = status(503, "come later");
        answer.headers_mut().insert("retry-after", http::HeaderValue::from_static("120"));
        answer
    })
    .await;
    let server = TestServer::open(&queue(receiver.address, "", "")).await;
    server.publish(json!({ "id": "a" })).await;
    receiver.next().await;
    let found = server.fate("a", 1).await;
    let failed = &records(&found)[0];
    assert_eq!(
        (found.state, failed.cause.as_ref().expect("a cause").code.as_deref()),
        (State::Waiting, Some("503"))
    );
    let delay = failed.delay_ms.expect("a delay");
    assert!((120_000..150_000).contains(&delay), "{delay}");
    assert_eq!(message(&found), "answered 503 Service Unavailable: come later");
}

#[tokio::test]
async fn statuses_mean_what_the_destination_says() {
    for (answer, told, state) in [
        (404, "", State::Dead),
        (404, "statuses = { \"404\" = \"drop\" }", State::Dropped),
        (409, "statuses = { \"4xx\" = \"drop\", \"409\" = \"ok\" }", State::Done),
        (500, "", State::Waiting),
        (500, "statuses = { \"5xx\" = \"permanent\" }", State::Dead),
        (418, "statuses = { \"418\" = \"retry\" }", State::Waiting),
        (204, "statuses = { \"2xx\" = \"permanent\" }", State::Dead),
    ] {
        let mut receiver = Receiver::open(move |_| status(answer, "")).await;
        let waits = "backoff.constant.delay = \"1h\"\njitter = \"none\"";
        let server = TestServer::open(&queue(receiver.address, waits, told)).await;
        server.publish(json!({ "id": "a" })).await;
        receiver.next().await;
        assert_eq!(server.fate("a", 1).await.state, state, "{answer} {told}");
    }
}

#[tokio::test]
async fn an_answer_is_read_up_to_a_bound_and_kept_up_to_another() {
    let bounds = "push.answer_max = 4096\npush.answer_kept = 100\n";
    for (code, length, kept) in [(200, 100, 100), (200, 101, 0), (200, 1 << 20, 0), (400, 1 << 20, 100)] {
        let mut receiver = Receiver::open(move |_| status(code, "x".repeat(length))).await;
        let server = TestServer::open(&format!("{bounds}{}", queue(receiver.address, "", ""))).await;
        server.publish(json!({ "id": "a" })).await;
        receiver.next().await;
        let found = server.fate("a", 1).await;
        let (state, text) = if code == 200 {
            (State::Done, String::from_utf8(found.result.clone().unwrap_or_default()).expect("text"))
        } else {
            (State::Dead, message(&found))
        };
        assert_eq!((found.state, text.matches('x').count()), (state, kept), "{code} {length}");
    }
}

/// The status has decided; an endless body blocks nothing beyond the end of the attempt.
#[tokio::test]
async fn an_endless_answer_is_let_go() {
    let mut receiver = Receiver::open(|_| {
        let endless = futures_util::stream::repeat_with(|| {
            Ok::<_, std::io::Error>(bytes::Bytes::from_static(&[b'x'; 1024]))
        });
        status(200, axum::body::Body::from_stream(endless))
    })
    .await;
    let server = TestServer::open(&queue(receiver.address, ONCE, "")).await;
    server.publish(json!({ "id": "a" })).await;
    receiver.next().await;
    let found = server.fate("a", 1).await;
    assert_eq!((found.state, found.result), (State::Done, None));
}

#[tokio::test]
async fn a_refused_connection_executed_nothing() {
    let nobody =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let server = TestServer::open(&queue(nobody, ONCE, "")).await;
    server.publish(json!({ "id": "a" })).await;
    let found = server.fate("a", 1).await;
    let failed = &records(&found)[0];
    assert_eq!((failed.disposition.as_str(), failed.executed), ("retry", Some(Executed::No)));
    let cause = failed.cause.clone().expect("a cause");
    assert!(cause.kind == "connect" && cause.message.contains("refused"), "{cause:?}");
    assert!(!cause.message.contains("hook"), "the address may hold credentials: {cause:?}");
}

#[tokio::test]
async fn a_time_out_after_sending_is_unknown() {
    let (release, released) = tokio::sync::watch::channel(false);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let silent = axum::Router::new().fallback(async move || {
        let _ = released.clone().wait_for(|released| *released).await;
    });
    tokio::spawn(async move { axum::serve(listener, silent).await });
    let server = TestServer::open(&queue(address, "attempts = 1\nattempt_time = \"150ms\"", "")).await;
    server.publish(json!({ "id": "a" })).await;
    let found = server.fate("a", 1).await;
    let failed = &records(&found)[0];
    assert_eq!((failed.disposition.as_str(), failed.executed), ("timeout", Some(Executed::Unknown)));
    release.send_replace(true);
}

/// One that is cut off while the answer is awaited may have had its effect.
#[tokio::test]
async fn a_connection_that_is_cut_is_unknown() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // The request is taken, and nothing is said.
            let mut some = [0; 16];
            let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut some).await;
        }
    });
    let server = TestServer::open(&queue(address, ONCE, "")).await;
    server.publish(json!({ "id": "a" })).await;
    let found = server.fate("a", 1).await;
    let failed = &records(&found)[0];
    assert_eq!((failed.disposition.as_str(), failed.executed), ("retry", Some(Executed::Unknown)));
}

/// A name that resolves to this machine is refused where the connection is made, and that is told.
#[tokio::test]
async fn a_destination_that_is_not_public_is_refused_and_nothing_is_sent() {
    let mut receiver = Receiver::friendly().await;
    let port = receiver.address.port();
    let settings = queue(format!("localhost:{port}"), ONCE, "").replace("\"127.0.0.0/8\"", "");
    let server = TestServer::open(&settings).await;
    server.publish(json!({ "id": "a" })).await;
    let found = server.fate("a", 1).await;
    let failed = &records(&found)[0];
    assert_eq!((failed.disposition.as_str(), failed.executed), ("retry", Some(Executed::No)));
    let cause = failed.cause.clone().expect("a cause");
    assert_eq!(cause.kind, "destination-refused");
    assert!(cause.message.ends_with("1 is loopback; allow it with push.allow"), "{cause:?}");
    assert!(receiver.is_quiet());
}

#[tokio::test]
async fn headers_that_are_not_an_events_are_refused_when_it_is_published() {
    let receiver = Receiver::friendly().await;
    let server = TestServer::open(&queue(receiver.address, "", "")).await;
    for name in ["Authorization", "host", "Redrive-Id", "webhook-signature", "Transfer-Encoding", "a b"] {
        let event = json!({ "id": "a", "headers": { name: "x" } });
        let (status, problem) = server.post("/v1/queues/orders/events", event).await;
        assert_eq!((status, &problem["code"]), (422, &json!("not-an-event")), "{name}");
    }
}

/// It goes to the destination of the queue that runs it, under the identity that it was published with.
#[tokio::test]
async fn a_rerouted_event_goes_to_the_other_queues_destination() {
    let (mut own, mut other) = (Receiver::friendly().await, Receiver::friendly().await);
    let spare = format!("[queues.spare.push]\nurl = \"http://{}/spare\"\n", other.address);
    let server = TestServer::open(&format!("{}{spare}", queue(own.address, "", ""))).await;
    let desk = server.server.as_ref().expect("it runs").app().redrive.desk("ada", "test");
    let rule = Rule::Reroute { queue: "orders".to_owned(), to: "spare".to_owned() };
    desk.set(rule, None, "a test").await.expect("a rule");
    server.publish(json!({ "id": "a" })).await;
    let got = other.next().await;
    assert_eq!((got.path.as_str(), got.text("redrive-queue")), ("/spare", "orders"));
    assert!(own.is_quiet());
}

/// What fails for all is met by few where the policy has a breaker: the others wait, and none of them dies.
#[tokio::test]
async fn a_breaker_keeps_events_from_a_destination_that_is_refused() {
    let policy = "attempts = 1\nbreaker = { least_calls = 10, open_for = \"1h\" }";
    let settings = queue("localhost:1", policy, "").replace("\"127.0.0.0/8\"", "");
    let server = TestServer::open(
        &settings.replace("[queues.orders.policy]", "queues.orders.concurrency = 1\n[queues.orders.policy]"),
    )
    .await;
    let events: Vec<_> = (0..50).map(|number| json!({ "id": format!("{number}") })).collect();
    server.publish(json!({ "events": events })).await;
    let redrive = &server.server.as_ref().expect("it runs").app().redrive;
    // Those that wait for the breaker are due, so it may never be idle.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(3), redrive.idle()).await;
    let counts = redrive.counts().await.expect("the store");
    let in_state =
        |state| counts.iter().filter(|count| count.state == state).map(|count| count.events).sum::<u64>();
    assert_eq!(
        (in_state(State::Dead), in_state(State::Ready) + in_state(State::Waiting)),
        (10, 40),
        "{counts:?}"
    );
}
