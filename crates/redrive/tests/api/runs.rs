//! How handlers run: to their end, in their time, within their bounds; rows 7, 11, 14 and 15.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::routing::post as post_to;
use redrive::api::{Effects, Endpoint, Idempotent, OnUnknown, Tenant};
use redrive::http::idempotent::{KeyedOperation, RunMode};
use redrive::{Redrive, testing};
use tower::ServiceExt;

use crate::shop::{BOOK, Calls, behind, keyed, layer, memory, records, serve};
use crate::spy::{Gate, Signal, Spy, within};
use crate::wire::{Server, post};

fn opaque() -> Endpoint<Tenant, Effects> {
    Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(Effects::Opaque(OnUnknown::Hold))
}

/// Signals when it is dropped.
struct Gone(Signal);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.give();
    }
}

#[tokio::test]
async fn row_7_a_handler_runs_to_its_end_when_the_client_hangs_up() {
    let (redrive, _) = memory();
    let (gate, calls, hung_up) = (Gate::default(), Calls::default(), Signal::default());
    let (at, counted, gone) = (gate.clone(), calls.clone(), hung_up.clone());
    let handler = move || async move {
        at.pass().await;
        format!("call {}", counted.add())
    };
    let watch = move |request: Request, next: Next| {
        let gone = Gone(gone.clone());
        async move {
            let response = next.run(request).await;
            drop(gone);
            response
        }
    };
    let app = Router::new()
        .route("/bookings", post_to(handler).layer(layer(&redrive, keyed())))
        .layer(axum::middleware::from_fn(watch));
    let server = Server::start(app).await;
    let client = server.send(&post("{}").key("k")).await;
    gate.reached.wait().await;
    drop(client);
    hung_up.wait().await;
    assert_eq!(server.ask(&post("{}").key("k")).await.code(), "in-flight", "it runs on");
    gate.open.give();
    let again = server.ask(&post("{}").key("k").header("prefer", "wait=20")).await;
    assert_eq!(again.text(), "call 1");
    assert_eq!(calls.count(), 1);
}

#[tokio::test]
async fn row_7_room_is_taken_before_the_claim() {
    let (redrive, store) = memory();
    let spy = Spy::over(&redrive);
    let layer = Idempotent::new(spy.clone(), keyed().concurrency(1).patience(Duration::ZERO)).unwrap();
    let gate = Gate::default();
    let at = gate.clone();
    let server = Arc::new(behind(&layer, move || async move { at.pass().await }).await);
    let first = server.later(post("{}").key("k"));
    gate.reached.wait().await;
    let second = server.ask(&post("{}").key("l")).await;
    assert_eq!((second.status, second.code().as_str()), (503, "too-busy"));
    assert_eq!(second.header("retry-after").as_deref(), Some("1"));
    assert_eq!(records(&redrive, &store).await.len(), 1, "the second was not claimed");
    gate.open.give();
    gate.open.give();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(
        server.ask(&post("{}").key("l")).await.header("idempotency-status").as_deref(),
        Some("created")
    );
}

#[tokio::test]
async fn a_panic_lets_a_keyed_request_run_again_and_leaves_an_opaque_one_unknown() {
    for (endpoint, again) in [(keyed(), true), (opaque(), false)] {
        let (redrive, _) = memory();
        let calls = Calls::default();
        let counted = calls.clone();
        let handler = move || async move {
            assert!(counted.add() > 1, "as it was told to");
            "fine"
        };
        let server = serve(&redrive, endpoint, handler).await;
        let first = server.ask(&post("{}").key("k")).await;
        assert_eq!((first.status, first.code().as_str()), (500, "handler-failed"));
        assert_eq!(first.json()["retryable"], again);
        let second = server.ask(&post("{}").key("k")).await;
        if again {
            assert_eq!((second.status, second.header("idempotency-attempt").as_deref()), (200, Some("2")));
        } else {
            assert_eq!(second.code(), "outcome-unknown");
        }
    }
}

#[tokio::test]
async fn row_11_after_a_crash_it_is_resumed_when_its_lease_is_over() {
    for effects in [Effects::Keyed, Effects::Transactional, Effects::Opaque(OnUnknown::Rerun)] {
        let (redrive, _) = memory();
        let endpoint = || Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(effects);
        let gate = Gate::default();
        let at = gate.clone();
        // A run that never ends, as in a process that died.
        let dead = Arc::new(serve(&redrive, endpoint(), move || async move { at.pass().await }).await);
        let _first = dead.later(post("{}").key("k"));
        gate.reached.wait().await;
        let handler = |op: KeyedOperation| async move {
            assert_eq!((op.attempt(), op.mode()), (2, RunMode::Resumed));
            StatusCode::BAD_REQUEST
        };
        let server = serve(&redrive, endpoint(), handler).await;
        testing::pass(&redrive, Duration::from_secs(30) - Duration::from_nanos(1));
        assert_eq!(server.ask(&post("{}").key("k")).await.code(), "in-flight");
        testing::pass(&redrive, Duration::from_nanos(1));
        let second = server.ask(&post("{}").key("k")).await;
        assert_eq!(second.status, 400);
        assert_eq!(second.header("idempotency-status").as_deref(), Some("resumed"));
        assert_eq!(second.header("idempotency-attempt").as_deref(), Some("2"));
    }
}

#[tokio::test]
async fn rows_14_and_15_a_failure_runs_again_and_not_before_its_own_retry_after() {
    let (redrive, _) = memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move || async move {
        match counted.add() {
            1 => (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "20")], "later"),
            2 => (StatusCode::INTERNAL_SERVER_ERROR, [("x", "")], "oh"),
            _ => (StatusCode::OK, [("x", "")], "fine"),
        }
    };
    let server = serve(&redrive, keyed(), handler).await;
    let request = post("{}").key("k");
    let first = server.ask(&request).await;
    assert_eq!((first.status, first.header("retry-after").as_deref()), (503, Some("20")));
    testing::pass(&redrive, Duration::from_millis(500));
    let early = server.ask(&request).await;
    assert_eq!((early.status, early.code().as_str()), (503, "backing-off"));
    assert_eq!(
        (early.header("retry-after").as_deref(), &early.json()["retry_after_ms"]),
        (Some("20"), &19_500.into())
    );
    assert_eq!(calls.count(), 1);
    testing::pass(&redrive, Duration::from_millis(19_500));
    for (attempt, status) in [("2", 500), ("3", 200)] {
        let answer = server.ask(&request).await;
        assert_eq!((answer.status, answer.header("idempotency-attempt").as_deref()), (status, Some(attempt)));
        assert_eq!(answer.header("idempotency-status").as_deref(), Some("resumed"));
    }
    assert_eq!(server.ask(&request).await.header("idempotent-replayed").as_deref(), Some("true"));
    assert_eq!(calls.count(), 3);
}

#[tokio::test]
async fn row_15_a_retry_after_is_honoured_up_to_a_bound() {
    let (redrive, _) = memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move || async move {
        counted.add();
        (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "99999999999999999999")])
    };
    let server = serve(&redrive, keyed().backoff_max(Duration::from_secs(60)), handler).await;
    let request = post("{}").key("k");
    server.ask(&request).await;
    let early = server.ask(&request).await;
    assert_eq!((early.code().as_str(), early.header("retry-after").as_deref()), ("backing-off", Some("60")));
    testing::pass(&redrive, Duration::from_secs(60));
    server.ask(&request).await;
    assert_eq!(calls.count(), 2);
}

#[tokio::test]
async fn row_7_what_runs_at_the_end_of_a_drain_is_aborted_and_recorded() {
    for (endpoint, state) in [(keyed as fn() -> _, "retriable"), (opaque, "unknown")] {
        let (redrive, store) = memory();
        let stopping = layer(&redrive, endpoint());
        let (gate, calls, gone) = (Gate::default(), Calls::default(), Signal::default());
        let (at, counted, goes) = (gate.clone(), calls.clone(), gone.clone());
        let handler = move |body: String| async move {
            let _gone = Gone(goes);
            counted.add();
            if body == "stuck" {
                at.pass().await;
            }
            body
        };
        let server = Arc::new(behind(&stopping, handler).await);
        assert_eq!(server.ask(&post("done").key("done")).await.text(), "done");
        gone.wait().await;
        let stuck = server.later(post("stuck").key("stuck"));
        gate.reached.wait().await;
        assert_eq!(within(stopping.drain(Duration::ZERO)).await.aborted, 1);
        gone.wait().await;
        let answer = stuck.await.unwrap();
        assert_eq!((answer.status, answer.code().as_str()), (503, "shutting-down"));
        assert_eq!(answer.json()["retryable"], state == "retriable");
        let kept = records(&redrive, &store).await;
        let (_, record) = kept.iter().find(|(scope, _)| scope.key == "stuck").unwrap();
        assert_eq!(record.phase.as_str(), state);
        // New requests are refused without a record; completed ones are replayed.
        assert_eq!(server.ask(&post("new").key("new")).await.code(), "shutting-down");
        assert_eq!(server.ask(&post("done").key("done")).await.text(), "done");
        assert_eq!((records(&redrive, &store).await.len(), calls.count()), (2, 2));
    }
}

#[tokio::test]
async fn a_drain_waits_for_what_ends_by_itself() {
    let (redrive, _) = memory();
    let stopping = layer(&redrive, keyed());
    let gate = Gate::default();
    let at = gate.clone();
    let handler = move || async move {
        at.pass().await;
        "done"
    };
    let server = Arc::new(behind(&stopping, handler).await);
    let first = server.later(post("{}").key("k"));
    gate.reached.wait().await;
    let draining = tokio::spawn(async move { stopping.drain(Duration::from_secs(3600)).await });
    gate.open.give();
    assert_eq!(draining.await.unwrap().aborted, 0);
    assert_eq!(first.await.unwrap().text(), "done");
}

/// A router over a store whose time is tokio's, called without a socket: time is paused.
fn paused<H, T>(redrive: &Redrive, endpoint: Endpoint<Tenant, Effects>, handler: H) -> Router
where
    H: axum::handler::Handler<T, ()>,
    T: 'static,
{
    Router::new().route("/bookings", post_to(handler).layer(layer(redrive, endpoint)))
}

fn request() -> Request {
    Request::post("/bookings").header("idempotency-key", "k").body(Body::empty()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_its_handler_runs() {
    let redrive = testing::memory();
    let handler = || async {
        tokio::time::sleep(Duration::from_secs(200)).await;
        "done"
    };
    let app = paused(&redrive, keyed(), handler);
    let first = tokio::spawn(app.clone().oneshot(request()));
    for seconds in [31, 60, 100] {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        assert_eq!(app.clone().oneshot(request()).await.unwrap().status(), 409, "no other run takes it over");
    }
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed_also_while_its_handler_blocks_a_thread() {
    let (redrive, _) = memory();
    let spy = Spy::over(&redrive);
    let layer = Idempotent::new(spy.clone(), keyed().lease(Duration::from_secs(1))).unwrap();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = Arc::new(std::sync::Mutex::new(gone));
    let handler = move || async move {
        gone.lock().unwrap().recv_timeout(Duration::from_secs(30)).unwrap();
        "done"
    };
    let server = Arc::new(behind(&layer, handler).await);
    let first = server.later(post("{}").key("k"));
    spy.renewals.wait().await;
    go.send(()).unwrap();
    assert_eq!(first.await.unwrap().text(), "done");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_runs_for_too_long_is_ended_and_recorded() {
    for (endpoint, next) in [(keyed(), 504), (opaque(), 409)] {
        let redrive = testing::memory();
        let calls = Calls::default();
        let counted = calls.clone();
        let handler = move || async move {
            counted.add();
            // Also one that panics when it is dropped.
            let _bomb = Bomb;
            std::future::pending::<()>().await;
        };
        let app = paused(&redrive, endpoint.max_run(Duration::from_secs(90)), handler);
        let began = tokio::time::Instant::now();
        let hour = Duration::from_secs(3600);
        let first = tokio::time::timeout(hour, app.clone().oneshot(request())).await.unwrap();
        assert_eq!(first.unwrap().status(), 504);
        assert_eq!(began.elapsed(), Duration::from_secs(90));
        assert_eq!(app.oneshot(request()).await.unwrap().status(), next);
        assert_eq!(calls.count(), if next == 504 { 2 } else { 1 });
    }
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "as it was told to");
    }
}

#[tokio::test]
async fn at_the_limit_whatever_needs_no_run_is_answered() {
    let (redrive, _) = memory();
    let spy = Spy::over(&redrive);
    let layer = Idempotent::new(spy.clone(), keyed().concurrency(1).patience(Duration::ZERO)).unwrap();
    let gate = Gate::default();
    let at = gate.clone();
    let handler = move |body: String| async move {
        if body == "1" {
            at.pass().await;
        }
        body
    };
    let server = Arc::new(behind(&layer, handler).await);
    assert_eq!(server.ask(&post("2").key("done")).await.text(), "2");
    let first = server.later(post("1").key("k"));
    gate.reached.wait().await;
    let old = post("2").key("old").header("repeatability-first-sent", "Sun, 06 Nov 1994 08:49:37 GMT");
    for (what, request, code) in [
        ("row 6", old, "key-too-old"),
        ("row 8", post("3").key("done"), "key-reused"),
        ("row 8, in flight", post("3").key("k"), "key-reused"),
        ("row 9", post("1").key("k"), "in-flight"),
        ("row 7", post("2").key("new"), "too-busy"),
    ] {
        assert_eq!(server.ask(&request).await.code(), code, "{what}");
    }
    let replayed = server.ask(&post("2").key("done")).await;
    assert_eq!(
        (replayed.text().as_str(), replayed.header("idempotent-replayed").as_deref()),
        ("2", Some("true"))
    );
    assert_eq!(
        (spy.claims.count(), spy.looks.count()),
        (2, 8),
        "they look, a mismatch twice, and do not claim"
    );
    gate.open.give();
    assert_eq!(first.await.unwrap().text(), "1");
    server.ask(&post("2").key("done")).await;
    assert_eq!(spy.looks.count(), 8, "where there is room, no request looks first");
}

#[tokio::test]
async fn a_server_that_stops_claims_nothing() {
    let (redrive, store) = memory();
    let spy = Spy::over(&redrive);
    let stopping = Idempotent::new(spy.clone(), opaque()).unwrap();
    let server = behind(&stopping, || async { "done" }).await;
    assert_eq!(server.ask(&post("{}").key("done")).await.text(), "done");
    within(stopping.drain(Duration::ZERO)).await;
    spy.ends_fail.store(true, std::sync::atomic::Ordering::SeqCst);
    let refused = server.ask(&post("{}").key("k")).await;
    assert_eq!((refused.code().as_str(), &refused.json()["retryable"]), ("shutting-down", &true.into()));
    assert_eq!(
        (spy.claims.count(), records(&redrive, &store).await.len()),
        (1, 1),
        "there is no trace of it"
    );
    assert_eq!(server.ask(&post("{}").key("done")).await.text(), "done");
}
