//! Traces, as an OTLP collector gets them: all attempts of an event are linked to the trace of its publisher.
#![cfg(feature = "otlp")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;
use redrive::policy::PolicySettings;
use redrive::{Backoff, Event, Failure, Redrive};
use redrive_server::config::{LogForm, ObserveSettings};
use redrive_server::observe::{log, trace};
use tokio::sync::mpsc;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

type Spans = Arc<Mutex<Vec<Span>>>;

async fn take(State(spans): State<Spans>, body: Bytes) -> Vec<u8> {
    let request = ExportTraceServiceRequest::decode(body).expect("OTLP");
    let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
    spans.lock().expect("spans").extend(scopes.flat_map(|scope| scope.spans));
    Vec::new()
}

async fn receiver() -> (String, Spans) {
    let spans = Spans::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = Router::new().route("/v1/traces", post(take)).with_state(spans.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (format!("http://{address}/v1/traces"), spans)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_attempts_are_linked_to_the_publisher() {
    let (url, spans) = receiver().await;
    let settings = ObserveSettings {
        otlp: Some(url),
        log: "warn".to_owned(),
        log_form: LogForm::Json,
        ..ObserveSettings::default()
    };
    let observing = log::start(&settings).expect("no other subscriber is set");
    let redrive = Redrive::open("memory:").await.expect("a store");
    let backoff = Backoff::constant(Duration::from_millis(1));
    let policy = PolicySettings { attempts: 5, backoff, ..PolicySettings::default() };
    let (tell, mut told) = mpsc::unbounded_channel();
    redrive
        .queue("orders")
        .policy(policy.build().expect("a policy"))
        .handle(move |order| {
            let (tell, sent) = (tell.clone(), trace::for_attempt(&order));
            async move {
                let _ = tell.send((order.attempt(), sent));
                if order.attempt() < 3 { Err(Failure::transient_text("busy")) } else { Ok(()) }
            }
        })
        .await
        .expect("a queue");
    redrive.start().await.expect("a start");
    redrive.publish(Event::new("orders", "1").header("traceparent", PARENT)).await.expect("published");
    let mut sent = Vec::new();
    while sent.len() < 3 {
        sent.push(told.recv().await.expect("an attempt"));
    }
    redrive.shutdown(Duration::from_secs(5)).await.expect("a clean stop");
    observing.end().await;

    let spans = spans.lock().expect("spans").clone();
    let attempts: Vec<_> = spans.iter().filter(|span| span.name == "redrive.attempt").collect();
    assert_eq!(attempts.len(), 3, "{spans:?}");
    for span in &attempts {
        let links: Vec<_> = span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect();
        assert_eq!(links, [(TRACE.to_owned(), "b7ad6b7169203331".to_owned())]);
        assert_ne!(hex(&span.trace_id), TRACE, "a trace of its own");
    }
    // Failure is an error, and the last attempt was none; a collector can count and chart what it knows.
    for span in &attempts {
        let attribute = |name: &str| {
            let found = span.attributes.iter().find(|attribute| attribute.key == name);
            found.and_then(|found| found.value.clone()?.value)
        };
        let number = match attribute("attempt") {
            Some(Value::IntValue(number)) => number,
            other => panic!("the attempt is {other:?}"),
        };
        let text = |name: &str| match attribute(name) {
            Some(Value::StringValue(text)) => Some(text),
            other => other.map(|other| panic!("{name} is {other:?}")),
        };
        assert_eq!(span.kind(), SpanKind::Consumer);
        let status = span.status.as_ref().map_or(StatusCode::Unset, |status| status.code());
        let failed = number < 3;
        assert_eq!(status, if failed { StatusCode::Error } else { StatusCode::Unset }, "{number}");
        assert_eq!(text("error.type").is_some(), failed, "{number}");
        assert_eq!(text("messaging.system").as_deref(), Some("redrive"));
        assert_eq!(text("messaging.destination.name").as_deref(), Some("orders"));
        assert_eq!(text("messaging.message.id").as_deref(), Some("1"));
        assert_eq!(text("messaging.operation.type").as_deref(), Some("process"));
        let lines = span.attributes.iter().map(|attribute| attribute.key.as_str());
        let lines: Vec<_> =
            lines.filter(|key| key.starts_with("code.") || key.starts_with("thread.")).collect();
        assert!(lines.is_empty(), "source lines are not the collector's matter: {lines:?}");
    }
    // What an attempt calls is told the attempt's own span.
    for (attempt, headers) in sent {
        let [("traceparent", parent)] = &headers[..] else { panic!("{attempt}: {headers:?}") };
        let own = attempts
            .iter()
            .filter(|span| parent == &format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id)));
        assert_eq!(own.count(), 1, "{attempt} {parent}");
    }
}
