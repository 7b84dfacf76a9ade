//! CloudEvents, in each of their three ways.

use serde_json::{Value, json};

use crate::pull::{QUEUE, lease};
use crate::test_server::{TestServer, answer};

async fn structured(server: &TestServer, media_type: &str, body: Value) -> (u16, Value) {
    let request = server.client.post(server.url("/v1/queues/jobs/events")).header("content-type", media_type);
    answer(request.body(body.to_string())).await
}

const ONE: &str = "application/cloudevents+json; charset=utf-8";
const MANY: &str = "application/cloudevents-batch+json";

fn event(id: &str) -> Value {
    json!({ "specversion": "1.0", "id": id, "source": "/shop", "type": "com.example.order" })
}

fn with(mut event: Value, more: Value) -> Value {
    event.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    event
}

#[tokio::test]
async fn the_same_event_is_one_whichever_way_it_comes() {
    let server = TestServer::open(QUEUE).await;
    let binary = server.client.post(server.url("/v1/queues/jobs/events"));
    let headers = [
        ("ce-specversion", "1.0"),
        ("ce-id", "17"),
        ("ce-source", "/shop"),
        ("ce-type", "com.example.order"),
        ("content-type", "application/json"),
    ];
    let binary = headers.iter().fold(binary, |request, (name, value)| request.header(*name, *value));
    let (status, told) = answer(binary.body("{\"euro\":17}")).await;
    assert_eq!(
        (status, &told["result"], &told["id"]),
        (202, &json!("accepted"), &json!("/shop 17")),
        "{told}"
    );
    let same = with(event("17"), json!({ "data": { "euro": 17 } }));
    let (status, told) = structured(&server, ONE, same.clone()).await;
    assert_eq!((status, &told["result"]), (202, &json!("duplicate")), "{told}");
    let other = with(event("17"), json!({ "source": "/other" }));
    let (status, told) = structured(&server, MANY, json!([same, other])).await;
    let results: Vec<_> = told["results"].as_array().expect("a list").iter().map(|r| &r["result"]).collect();
    assert_eq!((status, results), (202, vec![&json!("duplicate"), &json!("accepted")]));
}

#[tokio::test]
async fn attributes_are_kept_and_come_back() {
    let server = TestServer::open(QUEUE).await;
    let more = json!({
        "subject": "Größe 50%", "time": "2026-01-31T12:00:00.5+01:00", "dataschema": "https://a.example/s",
        "partitionkey": "customer-3", "sampledrate": 7, "urgent": true, "nothing": null,
        "datacontenttype": "text/plain", "data": "as it is",
    });
    let (status, told) = structured(&server, ONE, with(event("1"), more)).await;
    assert_eq!(status, 202, "{told}");
    let lease = lease(&server, json!({})).await;
    assert_eq!((&lease["payload"], &lease["content_type"]), (&json!("as it is"), &json!("text/plain")));
    assert_eq!(lease["key"], "customer-3");
    let back = json!({
        "specversion": "1.0", "id": "1", "source": "/shop", "type": "com.example.order",
        "subject": "Größe 50%", "time": "2026-01-31T12:00:00.5+01:00", "dataschema": "https://a.example/s",
        "partitionkey": "customer-3", "sampledrate": 7, "urgent": true, "datacontenttype": "text/plain",
    });
    assert_eq!(lease["cloudevent"], back);
    let headers = lease["headers"].as_array().expect("a list");
    assert!(headers.contains(&json!(["ce-subject", "Gr%C3%B6%C3%9Fe%2050%25"])), "{headers:?}");
}

#[tokio::test]
async fn headers_are_decoded_and_say_the_rest() {
    let server = TestServer::open(QUEUE).await;
    let mut request = server.client.post(server.url("/v1/queues/jobs/events"));
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-id", "a%20b"),
        ("ce-source", "/shop"),
        ("ce-type", "\"t\""),
        ("redrive-correlation", "c"),
        ("redrive-tenant", "acme"),
    ] {
        request = request.header(name, value);
    }
    let (status, told) = answer(request.body(vec![0xff])).await;
    assert_eq!((status, &told["id"]), (202, &json!("/shop a b")), "{told}");
    let lease = lease(&server, json!({})).await;
    assert_eq!((&lease["tenant"], &lease["correlation"]), (&json!("acme"), &json!("c")));
    assert_eq!((&lease["cloudevent"]["type"], &lease["payload_base64"]), (&json!("t"), &json!("/w==")));
}

/// As the SDKs of Go (UTF-8) and npm (Latin-1, of what Node.js lets pass) send them.
#[tokio::test]
async fn attributes_that_sdks_do_not_encode_are_taken_as_they_are() {
    let server = TestServer::open(QUEUE).await;
    for (n, (sent, meant)) in [
        ("Zürich".as_bytes(), "Zürich"),
        (b"Z\xfcrich", "Zürich"),
        (b"100% sure", "100% sure"),
        (br#""say \"hi\"""#, "say \"hi\""),
    ]
    .into_iter()
    .enumerate()
    {
        let request = server.client.post(server.url("/v1/queues/jobs/events"));
        let request = request.header("ce-specversion", "1.0").header("ce-id", n.to_string());
        let subject = http::HeaderValue::from_bytes(sent).expect("a value");
        let request =
            request.header("ce-source", "/shop").header("ce-type", "t").header("ce-subject", subject);
        let (status, told) = answer(request).await;
        assert_eq!(status, 202, "{meant}: {told}");
        assert_eq!(lease(&server, json!({})).await["cloudevent"]["subject"], meant);
    }
}

/// The Go SDK's `Request()` reads a CloudEvent in return.
#[tokio::test]
async fn the_answer_to_a_cloudevent_is_one() {
    let server = TestServer::open(QUEUE).await;
    let request = server.client.post(server.url("/v1/queues/jobs/events")).header("content-type", ONE);
    let answer = request.body(event("1").to_string()).send().await.expect("an answer");
    let header =
        |name: &str| answer.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
    assert_eq!((answer.status().as_u16(), header("ce-specversion").as_deref()), (202, Some("1.0")));
    assert_eq!(header("ce-source").as_deref(), Some("/v1/queues/jobs/events"));
    assert_eq!(header("ce-type").as_deref(), Some("redrive.published"));
    assert!(header("ce-id").is_some_and(|id| !id.is_empty()));
    let plain = server.client.post(server.url("/v1/queues/jobs/events")).json(&json!({ "id": "plain" }));
    assert!(!plain.send().await.expect("an answer").headers().contains_key("ce-id"));
}

#[tokio::test]
async fn data_is_what_its_type_says() {
    let server = TestServer::open(QUEUE).await;
    let json_type = "application/vnd.a+json";
    let cases = [
        (json!({ "data": [1, "é"] }), Some("[1,\"é\"]"), Some("application/json")),
        (json!({ "data": "x", "datacontenttype": json_type }), Some("\"x\""), Some(json_type)),
        (json!({ "data": null }), Some("null"), Some("application/json")),
        (json!({ "data": "x", "datacontenttype": "text/xml" }), Some("x"), Some("text/xml")),
        (json!({ "data_base64": "eA==", "datacontenttype": "text/xml" }), Some("x"), Some("text/xml")),
        (json!({}), Some(""), None),
    ];
    for (n, (more, payload, content_type)) in cases.into_iter().enumerate() {
        let (status, told) = structured(&server, ONE, with(event(&n.to_string()), more.clone())).await;
        assert_eq!(status, 202, "{more}: {told}");
        let lease = lease(&server, json!({})).await;
        let is = (lease["payload"].as_str(), lease["content_type"].as_str());
        assert_eq!(is, (payload, content_type), "{more}");
    }
}

#[tokio::test]
async fn what_is_no_cloudevent_is_refused_with_what_is_wrong() {
    let server = TestServer::open(QUEUE).await;
    let without = |name: &str| {
        let mut event = event("1");
        event.as_object_mut().expect("an object").remove(name);
        event
    };
    for (body, part) in [
        (without("id"), "needs the attribute `id`"),
        (without("source"), "needs the attribute `source`"),
        (without("type"), "needs the attribute `type`"),
        (without("specversion"), "needs the attribute `specversion`"),
        (with(event("1"), json!({ "specversion": "0.3" })), "not `0.3`"),
        (with(event("1"), json!({ "id": "" })), "`id` is empty"),
        (with(event("1"), json!({ "id": 17.5 })), "32-bit integer"),
        (with(event("1"), json!({ "id": "a\u{7f}" })), "control character"),
        (with(event("1"), json!({ "source": "a b" })), "without spaces"),
        (with(event("1"), json!({ "time": "yesterday" })), "RFC 3339"),
        (with(event("1"), json!({ "Ext": "x" })), "not a valid attribute name"),
        (with(event("1"), json!({ "my_ext": "x" })), "not a valid attribute name"),
        (with(event("1"), json!({ "ext": { "a": 1 } })), "`ext` must be"),
        (with(event("1"), json!({ "ext": 5_000_000_000u64 })), "`ext` must be"),
        (with(event("1"), json!({ "data": 1, "data_base64": "eA==" })), "not both"),
        (with(event("1"), json!({ "data_base64": "!" })), "data_base64"),
        (with(event("1"), json!({ "data": 1, "datacontenttype": "text/plain" })), "must be a string"),
        (with(event("1"), json!({ "ext": "x".repeat(20_000) })), "bytes; the limit is 16384"),
    ] {
        let (status, told) = structured(&server, ONE, body.clone()).await;
        let detail = told["detail"].as_str().unwrap_or_default();
        assert!(status == 422 && detail.contains(part), "{body}: {status} {told}");
        let (status, told) = structured(&server, MANY, json!([event("good"), body])).await;
        let results = &told["results"];
        assert_eq!((status, &results[1]["result"]), (207, &json!("refused")), "{told}");
        assert_ne!(results[0]["result"], "refused", "{told}");
    }
    assert_eq!(structured(&server, ONE, json!([])).await.0, 400);
    assert_eq!(structured(&server, MANY, json!({})).await.0, 400);
    assert_eq!(structured(&server, "application/cloudevents+avro", json!({})).await.0, 415);
    for headers in [
        &[("ce-id", "1")][..],
        &[("ce-specversion", "1.0"), ("ce-id", "%00"), ("ce-source", "/"), ("ce-type", "t")],
        &[("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-id", "2"), ("ce-source", "/"), ("ce-type", "t")],
        &[
            ("ce-specversion", "1.0"),
            ("ce-id", "1"),
            ("ce-source", "/"),
            ("ce-type", "t"),
            ("redrive-id", "1"),
        ],
        &[("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/"), ("ce-type", "t"), ("ce-data", "1")],
    ] {
        let request = server.client.post(server.url("/v1/queues/jobs/events"));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let (status, told) = answer(request).await;
        assert_eq!((status, &told["code"]), (422, &json!("not-a-cloudevent")), "{headers:?}");
    }
}

#[tokio::test]
async fn long_identities_are_hashed_and_stay_apart() {
    let server = TestServer::open(QUEUE).await;
    let long = "x".repeat(300);
    let (_, one) = structured(&server, ONE, event(&long)).await;
    let (_, other) = structured(&server, ONE, with(event(&format!("{long}y")), json!({}))).await;
    let id = |told: &Value| told["id"].as_str().expect("an id").to_owned();
    assert!(id(&one).starts_with("sha256:") && id(&one).len() == 71 && id(&one) != id(&other));
    assert_eq!(structured(&server, ONE, event(&long)).await.1["result"], "duplicate");
}
