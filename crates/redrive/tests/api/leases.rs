//! The lease of a run: what ends it when the ledger does not answer, and the time left to a probe.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::post as post_to;
use redrive::api::{Effects, Endpoint, Idempotent, OnUnknown, StoredReply, Tenant};
use redrive::http::idempotent::{ProbeOutcome, ProbeRequest};
use redrive::{Operation, Redrive, testing};
use tower::ServiceExt;

use crate::shop::{BOOK, Calls, behind, keyed, layer, memory};
use crate::spy::{Gate, Signal, Spy};
use crate::wire::post;

const LEASE: Duration = Duration::from_secs(30);
const SETTLING: Duration = Duration::from_secs(10);

/// An endpoint whose probe tells the truth about these effects.
fn probed(effects: &Calls) -> Endpoint<Tenant, Effects> {
    let effects = effects.clone();
    let probe = move |_: ProbeRequest| {
        let happened = effects.count() > 0;
        async move {
            if happened { ProbeOutcome::Completed(StoredReply::new(200)) } else { ProbeOutcome::DidNotHappen }
        }
    };
    unprobed().probe(probe)
}

fn unprobed() -> Endpoint<Tenant, Effects> {
    let effects = Effects::Opaque(OnUnknown::Probe { settling: SETTLING });
    Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(effects)
}

fn request() -> Request {
    Request::post("/bookings").header("idempotency-key", "k").body(Body::empty()).unwrap()
}

/// A handler that has its effect after this time.
fn acting(layer: Idempotent, after: Duration, effects: &Calls) -> Router {
    let effects = effects.clone();
    let handler = move || async move {
        tokio::time::sleep(after).await;
        effects.add();
    };
    Router::new().route("/bookings", post_to(handler).layer(layer))
}

/// A layer whose leases cannot be renewed.
fn cut_off(redrive: &Redrive, endpoint: Endpoint<Tenant, Effects>) -> Idempotent {
    let spy = Spy::over(redrive);
    spy.renewals_fail.store(true, Ordering::SeqCst);
    Idempotent::new(spy, endpoint).unwrap()
}

#[tokio::test(start_paused = true)]
async fn row_12_a_run_that_is_probed_ends_with_the_last_lease_that_was_confirmed() {
    for lost in ["the renewals", "the renewals and the end"] {
        let redrive = testing::memory();
        let effects = Calls::default();
        let spy = Spy::over(&redrive);
        spy.renewals_fail.store(true, Ordering::SeqCst);
        spy.ends_fail.store(lost != "the renewals", Ordering::SeqCst);
        let late = Duration::from_secs(45);
        let cut_off = acting(Idempotent::new(spy, probed(&effects)).unwrap(), late, &effects);
        let other = acting(layer(&redrive, probed(&effects)), late, &effects);
        let began = tokio::time::Instant::now();
        let first = tokio::spawn(async move {
            let answer = cut_off.oneshot(request()).await.unwrap();
            (answer.status().as_u16(), began.elapsed())
        });
        tokio::time::sleep(LEASE + SETTLING + Duration::from_secs(1)).await;
        let second = other.oneshot(request()).await.unwrap();
        assert_eq!(first.await.unwrap(), (504, LEASE), "{lost}");
        assert_eq!((second.status().as_u16(), effects.count()), (200, 1), "{lost}");
    }
}

#[tokio::test]
async fn row_12_a_run_that_is_probed_does_nothing_after_a_sleep_of_its_machine() {
    let (redrive, _) = memory();
    let (gate, effects) = (Gate::default(), Calls::default());
    let (at, acts) = (gate.clone(), effects.clone());
    let handler = move || async move {
        at.pass().await;
        acts.add();
    };
    let server = Arc::new(behind(&layer(&redrive, probed(&effects)), handler).await);
    let first = server.later(post("{}").key("k"));
    gate.reached.wait().await;
    testing::pass(&redrive, LEASE);
    gate.open.give();
    let first = first.await.unwrap();
    assert_eq!((first.status, first.code().as_str(), effects.count()), (504, "timed-out", 0));
}

#[tokio::test(start_paused = true)]
async fn what_may_run_again_goes_on_without_its_lease() {
    let redrive = testing::memory();
    let effects = Calls::default();
    let app = acting(cut_off(&redrive, keyed()), Duration::from_secs(45), &effects);
    assert_eq!(app.oneshot(request()).await.unwrap().status(), 200);
    assert_eq!(effects.count(), 1);
}

/// A run that died in the middle, long enough ago to be probed.
async fn died(redrive: &Redrive) {
    let dead = cut_off(redrive, unprobed().probe(|_| std::future::ready(ProbeOutcome::StillUnknown)));
    let dead = acting(dead, Duration::from_secs(3600), &Calls::default());
    tokio::spawn(dead.oneshot(request()));
    tokio::time::sleep(LEASE + SETTLING + Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn row_12_a_probe_keeps_its_lease_and_what_it_lets_run_has_a_whole_one() {
    let redrive = testing::memory();
    died(&redrive).await;
    let effects = Calls::default();
    let probe = |_: ProbeRequest| async {
        tokio::time::sleep(LEASE - Duration::from_secs(1)).await;
        ProbeOutcome::DidNotHappen
    };
    let spy = Spy::over(&redrive);
    let watched = Idempotent::new(spy.clone(), unprobed().probe(probe)).unwrap();
    let slow = acting(watched, Duration::from_secs(20), &effects);
    let running = tokio::spawn(slow.oneshot(request()));
    tokio::time::sleep(LEASE - Duration::from_millis(500)).await;
    assert_eq!(spy.renewals.count(), 3, "two while it probed, and one before the handler");
    let other = acting(layer(&redrive, probed(&effects)), Duration::ZERO, &effects);
    assert_eq!(other.oneshot(request()).await.unwrap().status(), 409);
    assert_eq!((running.await.unwrap().unwrap().status().as_u16(), effects.count()), (200, 1));
}

#[tokio::test(start_paused = true)]
async fn row_12_what_did_not_happen_does_not_run_where_the_lease_cannot_be_renewed() {
    let redrive = testing::memory();
    died(&redrive).await;
    let effects = Calls::default();
    let app = acting(cut_off(&redrive, probed(&effects)), Duration::ZERO, &effects);
    assert_eq!(app.oneshot(request()).await.unwrap().status(), 503);
    assert_eq!(effects.count(), 0);
    // The probe proves that it did not happen, so the next one runs.
    let app = acting(layer(&redrive, probed(&effects)), Duration::ZERO, &effects);
    assert_eq!(app.oneshot(request()).await.unwrap().status(), 200);
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_after_its_commit_is_ended_as_well() {
    let redrive = testing::memory();
    let (calls, committed) = (Calls::default(), Signal::default());
    let (counted, told) = (calls.clone(), committed.clone());
    let handler = move |op: Operation| async move {
        counted.add();
        op.commit(|_| Ok::<_, std::fmt::Error>(StoredReply::new(201))).await.unwrap();
        told.give();
        std::future::pending::<()>().await;
    };
    let endpoint = Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(Effects::Transactional);
    let endpoint = endpoint.max_run(Duration::from_secs(90)).concurrency(1);
    let app = Router::new().route("/bookings", post_to(handler).layer(layer(&redrive, endpoint)));
    let began = tokio::time::Instant::now();
    let hour = Duration::from_secs(3600);
    let first = tokio::time::timeout(hour, app.clone().oneshot(request())).await.expect("it hangs");
    assert_eq!((first.unwrap().status().as_u16(), began.elapsed()), (201, Duration::from_secs(90)));
    committed.wait().await;
    assert_eq!(app.oneshot(request()).await.unwrap().status(), 201, "its room is free again");
    assert_eq!(calls.count(), 1);
}
