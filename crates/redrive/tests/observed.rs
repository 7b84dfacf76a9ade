//! The engine's metrics and logs.
#![cfg(all(feature = "engine", feature = "metrics", feature = "tracing"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use redrive::prelude::*;
use redrive::store::lease::LeaseSettleResult;
use redrive::{Delivery, Event, Failure, Policy, Reply, testing};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// One of each outcome: done, done after a retry, dead, dropped, expired; and a duplicate.
async fn one_of_each() {
    let redrive = testing::memory();
    let handler = |delivery: Delivery| async move {
        match delivery.id() {
            "flaky" if delivery.attempt() == 1 => Disposition::from(Fault::transient()),
            "dead" => Disposition::from(Fault::permanent()),
            "dropped" => Disposition::Drop,
            _ => Disposition::Ok,
        }
    };
    redrive.queue("orders").handle(handler).await.unwrap();
    for id in ["done", "flaky", "dead", "dropped", "done"] {
        let event = Event::new("orders", id).payload(*b"secret").header("traceparent", PARENT);
        redrive.publish(event).await.unwrap();
    }
    let late = Event::new("orders", "late").expires_after(std::time::Duration::ZERO);
    redrive.publish(late).await.unwrap();
    redrive.start().await.unwrap();
    testing::drain(&redrive).await;
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// One test at a time: the cache of a log line's call site is shared by the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn block_on(future: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(future);
}

fn counters(snapshotter: &Snapshotter) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: Vec<_> = key.key().labels().map(|label| label.value().to_owned()).collect();
        if let DebugValue::Counter(count @ 1..) = value {
            counters.insert(format!("{} {}", key.key().name(), labels.join(" ")), count);
        }
    }
    counters
}

#[test]
fn every_fate_is_counted() {
    let _alone = ALONE.lock().unwrap();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || block_on(one_of_each()));
    let expected = [
        ("redrive_attempts_total orders drop", 1),
        ("redrive_attempts_total orders ok", 2),
        ("redrive_attempts_total orders permanent", 1),
        ("redrive_attempts_total orders retry", 1),
        ("redrive_dead_total orders permanent", 1),
        // Its handler did not say that nothing was executed.
        ("redrive_dead_unknown_total orders", 1),
        ("redrive_dropped_total orders", 1),
        ("redrive_duplicates_total publish", 1),
        ("redrive_expired_total orders", 1),
        ("redrive_published_total orders accepted", 5),
        ("redrive_published_total orders duplicate", 1),
        ("redrive_retries_total orders unknown", 1),
        ("redrive_success_after_retry_total orders", 1),
    ];
    let expected = expected.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(counters(&snapshotter), BTreeMap::from(expected));
}

#[test]
fn a_marker_that_was_there_already_is_counted_as_a_duplicate() {
    let _alone = ALONE.lock().unwrap();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let marks = async {
        let redrive = testing::memory();
        for (id, is_first) in [("1", true), ("1", false), ("2", true)] {
            let marked = redrive.transact(move |tx| tx.first_time("projector.v1", id)).await.unwrap();
            assert_eq!(marked, is_first, "{id}");
        }
    };
    metrics::with_local_recorder(&recorder, || block_on(marks));
    assert_eq!(counters(&snapshotter).get("redrive_duplicates_total inbox"), Some(&1));
}

/// A request that runs, is repeated, has its key reused, is sent under another key, and fails with an unknown outcome.
#[cfg(feature = "api")]
async fn requests() {
    use axum::body::Body;
    use axum::http::{Request, StatusCode};
    use axum::routing::post;
    use redrive::api::{Effects, Endpoint, Idempotent, OnUnknown, Tenant};
    use tower::ServiceExt as _;

    let redrive = testing::memory();
    let effects = Effects::Opaque(OnUnknown::Hold);
    let endpoint = Endpoint::new("POST /bookings").tenant(Tenant::fixed("acme")).effects(effects).required();
    let layer = Idempotent::new(Arc::new(redrive.ledger()), endpoint).unwrap();
    let handler = async |body: String| match body.as_str() {
        "secret" => StatusCode::CREATED,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let router: axum::Router = axum::Router::new().route("/bookings", post(handler).layer(layer));
    for (key, body, status) in [
        ("a", "secret", 201),
        ("a", "secret", 201),
        ("a", "other", 422),
        ("b", "secret", 201),
        ("c", "fails", 500),
        ("c", "fails", 409),
        ("a b", "secret", 400),
    ] {
        let request = Request::post("/bookings").header("idempotency-key", key).body(Body::from(body));
        let answer = router.clone().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(answer.status(), status, "{key} {body}");
    }
    assert_eq!(redrive.unknown_outcomes().await.unwrap(), [("POST /bookings".to_owned(), 1)]);
}

#[cfg(feature = "api")]
#[test]
fn what_becomes_of_requests_is_counted() {
    let _alone = ALONE.lock().unwrap();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || block_on(requests()));
    let expected = [
        ("redrive_duplicates_total ledger", 1),
        ("redrive_ledger_same_body_other_key_total POST /bookings", 1),
        ("redrive_ledger_total POST /bookings fresh", 3),
        ("redrive_ledger_total POST /bookings mismatch", 1),
        ("redrive_ledger_total POST /bookings refused", 1),
        ("redrive_ledger_total POST /bookings replayed", 1),
        ("redrive_ledger_total POST /bookings unknown", 1),
    ];
    let expected = expected.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(counters(&snapshotter), BTreeMap::from(expected));
}

/// Two events whose only lease ran out: dead letters, of which one is done late, and one fails permanently late.
async fn settled_late() {
    let redrive = testing::memory();
    let once = Policy::builder().attempts(1).no_budget().build().unwrap();
    redrive.queue("orders").policy(once).pull().await.unwrap();
    redrive.start().await.unwrap();
    for id in ["1", "2"] {
        redrive.publish(Event::new("orders", id)).await.unwrap();
    }
    let second = std::time::Duration::from_secs(1);
    let leases = redrive.lease("orders", 2, second).await.unwrap();
    tokio::time::sleep(5 * second).await;
    for id in ["1", "2"] {
        testing::expect_dead(&redrive, "orders", id).await;
    }
    let replies = [Reply::ok(), Failure::permanent_text("no such order").into()];
    let late = leases.iter().map(|lease| lease.held()).zip(replies).collect();
    assert_eq!(redrive.settle(late).await.unwrap(), [LeaseSettleResult::Applied, LeaseSettleResult::Applied]);
}

#[test]
fn a_letter_is_counted_once_however_often_its_cause_changes() {
    let _alone = ALONE.lock().unwrap();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || block_on(settled_late()));
    let expected = [
        ("redrive_attempts_total orders ok", 1),
        ("redrive_attempts_total orders permanent", 1),
        ("redrive_dead_total orders attempts_spent", 2),
        ("redrive_dead_unknown_total orders", 2),
        ("redrive_published_total orders accepted", 2),
    ];
    let expected = expected.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(counters(&snapshotter), BTreeMap::from(expected));
}

/// Keeps every event as one line of text.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl<S: tracing::Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
}

#[test]
fn dead_letters_and_retries_are_logged_without_payloads() {
    let _alone = ALONE.lock().unwrap();
    let lines = Lines::default();
    let subscriber = tracing_subscriber::registry().with(lines.clone());
    tracing::subscriber::with_default(subscriber, || block_on(one_of_each()));
    let lines = lines.0.lock().unwrap().join("\n");
    for part in [
        "WARN message=dead letter queue=\"orders\" id=\"dead\"",
        "reason=\"permanent\"",
        "INFO message=retrying queue=\"orders\" id=\"flaky\"",
        "executed=\"unknown\" reason=\"retry\" next_delay_ms=",
        "message=done after retrying",
        "message=dropped by its handler",
        "message=expired",
        "trace_id=\"0af7651916cd43dd8448eb211c80319c\"",
    ] {
        assert!(lines.contains(part), "no {part} in\n{lines}");
    }
    assert!(!lines.contains("secret"), "{lines}");
    // Each of them, on every such line.
    for line in lines.lines().filter(|line| line.contains("message=retrying")) {
        for field in ["attempt=1", "reason=\"retry\"", "next_delay_ms="] {
            assert!(line.contains(field), "no {field} in\n{line}");
        }
    }
}

#[test]
fn a_retry_is_logged_with_the_reason_of_its_failure() {
    let _alone = ALONE.lock().unwrap();
    let lines = Lines::default();
    let subscriber = tracing_subscriber::registry().with(lines.clone());
    let handler = |delivery: Delivery| async move {
        match (delivery.id(), delivery.attempt()) {
            ("panics", 1) => panic!("once"),
            ("refused", 1) => Err(Failure::transient_text("not now").code("503")),
            _ => Ok(()),
        }
    };
    let attempts = async {
        let redrive = testing::memory();
        redrive.queue("orders").panics(Fault::transient()).handle(handler).await.unwrap();
        for id in ["panics", "refused"] {
            redrive.publish(Event::new("orders", id)).await.unwrap();
        }
        redrive.start().await.unwrap();
        testing::drain(&redrive).await;
    };
    tracing::subscriber::with_default(subscriber, || block_on(attempts));
    let lines = lines.0.lock().unwrap();
    for (id, reason) in [("panics", "panic"), ("refused", "503")] {
        let line =
            lines.iter().find(|line| line.contains("retrying") && line.contains(&format!("id={id:?}")));
        let line = line.unwrap_or_else(|| panic!("no retry of {id} in {lines:?}"));
        assert!(line.contains(&format!("reason={reason:?}")), "{line}");
    }
}

#[cfg(feature = "api")]
#[test]
fn what_an_operator_should_know_of_requests_is_logged_without_bodies() {
    let _alone = ALONE.lock().unwrap();
    let lines = Lines::default();
    let subscriber = tracing_subscriber::registry().with(lines.clone());
    tracing::subscriber::with_default(subscriber, || block_on(requests()));
    let lines = lines.0.lock().unwrap().join("\n");
    for part in [
        "WARN message=the outcome of a request is unknown operation=\"POST /bookings\"",
        "INFO message=a key was used for a different request operation=\"POST /bookings\" key=",
        "differs=body",
        "INFO message=the same request repeats under new keys operation=\"POST /bookings\"",
    ] {
        assert!(lines.contains(part), "no {part} in\n{lines}");
    }
    assert!(!lines.contains("secret"), "{lines}");
}
