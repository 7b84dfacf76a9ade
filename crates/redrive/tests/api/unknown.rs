//! Unknown outcomes: rows 12, 12b and 13.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redrive::api::{Effects, Endpoint, Idempotent, OnUnknown, StoredReply, Tenant};
use redrive::http::idempotent::{ProbeOutcome, ProbeRequest, Resolution};
use redrive::{Redrive, testing};

use crate::shop::{BOOK, Calls, behind, memory, records, serve};
use crate::spy::{Gate, Spy};
use crate::wire::{Server, post};

const LEASE: Duration = Duration::from_secs(30);
const SETTLING: Duration = Duration::from_secs(60);

fn endpoint(on_unknown: OnUnknown) -> Endpoint<Tenant, Effects> {
    Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(Effects::Opaque(on_unknown))
}

fn probing<F, P>(probe: F) -> Endpoint<Tenant, Effects>
where
    F: Fn(ProbeRequest) -> P + Send + Sync + 'static,
    P: Future<Output = ProbeOutcome> + Send + 'static,
{
    endpoint(OnUnknown::Probe { settling: SETTLING }).probe(probe)
}

/// A request that began in a process that died: its end is not written, unless the spy lets it through.
async fn crashed(redrive: &Redrive, endpoint: Endpoint<Tenant, Effects>) -> (Arc<Server>, Gate, Arc<Spy>) {
    let spy = Spy::over(redrive);
    spy.ends_fail.store(true, Ordering::SeqCst);
    let layer = Idempotent::new(spy.clone(), endpoint).unwrap();
    let gate = Gate::default();
    let at = gate.clone();
    let handler = move || async move {
        at.pass().await;
        "late"
    };
    let server = Arc::new(behind(&layer, handler).await);
    server.later(post("{}").key("k"));
    gate.reached.wait().await;
    (server, gate, spy)
}

#[tokio::test]
async fn row_12_a_probe_says_how_it_was_once_all_is_settled() {
    let found = |probed: ProbeOutcome| move |_: ProbeRequest| std::future::ready(probed.clone());
    let booked = StoredReply::new(201).header("location", "/bookings/7").body("found");
    let cases = [
        (ProbeOutcome::Completed(booked), (201, "found"), (201, "found")),
        (ProbeOutcome::DidNotHappen, (200, "call 1"), (200, "call 1")),
        (ProbeOutcome::StillUnknown, (409, "outcome-unknown"), (409, "in-flight")),
    ];
    for (probed, first, then) in cases {
        let (redrive, _) = memory();
        let _dead = crashed(&redrive, probing(found(probed.clone()))).await;
        let calls = Calls::default();
        let counted = calls.clone();
        let handler = move || async move { format!("call {}", counted.add()) };
        let server = serve(&redrive, probing(found(probed.clone())), handler).await;
        let ask = || async {
            let answer = server.ask(&post("{}").key("k")).await;
            let problem = answer.header("content-type").as_deref() == Some("application/problem+json");
            (answer.status, if problem { answer.code() } else { answer.text() })
        };
        testing::pass(&redrive, LEASE + SETTLING - Duration::from_nanos(1));
        assert_eq!(ask().await, (409, "in-flight".to_owned()), "what is on its way may still arrive");
        testing::pass(&redrive, Duration::from_nanos(1));
        assert_eq!(ask().await, (first.0, first.1.to_owned()), "{probed:?}");
        assert_eq!(ask().await, (then.0, then.1.to_owned()), "{probed:?}");
        assert_eq!(calls.count(), usize::from(probed == ProbeOutcome::DidNotHappen));
    }
}

#[tokio::test]
async fn row_12_the_probe_takes_the_lease_and_what_it_runs_has_the_same_derived_keys() {
    let (redrive, _) = memory();
    let gate = Gate::default();
    let at = gate.clone();
    let probe = move |probing: ProbeRequest| {
        let at = at.clone();
        async move {
            assert_eq!(probing.request.body().as_ref(), b"{}");
            at.pass().await;
            let charge = probing.operation.derive("charge");
            ProbeOutcome::Completed(StoredReply::new(200).body(charge))
        }
    };
    let _dead = crashed(&redrive, probing(|_| std::future::ready(ProbeOutcome::StillUnknown))).await;
    testing::pass(&redrive, LEASE + SETTLING);
    let handler = |op: redrive::Operation| async move { op.derive("charge") };
    let server = Arc::new(serve(&redrive, probing(probe), handler).await);
    let first = server.later(post("{}").key("k"));
    gate.reached.wait().await;
    assert_eq!(server.ask(&post("{}").key("k")).await.code(), "in-flight");
    gate.open.give();
    let first = first.await.unwrap();
    let (other, _) = memory();
    let fresh = serve(&other, probing(|_| std::future::ready(ProbeOutcome::StillUnknown)), handler).await;
    assert_eq!(first.text(), fresh.ask(&post("{}").key("k")).await.text());
}

#[tokio::test]
async fn row_12_a_probe_that_panics_knows_nothing() {
    let (redrive, store) = memory();
    let probe = |_: ProbeRequest| async { panic!("as it was told to") };
    let _dead = crashed(&redrive, probing(probe)).await;
    let server = serve(&redrive, probing(probe), || async { "never" }).await;
    testing::pass(&redrive, LEASE + SETTLING);
    assert_eq!(server.ask(&post("{}").key("k")).await.code(), "outcome-unknown");
    assert_eq!(records(&redrive, &store).await[0].1.phase.as_str(), "unknown");
}

#[tokio::test]
async fn rows_12b_and_13_what_is_held_is_unknown_until_its_own_late_end() {
    let (redrive, store) = memory();
    let (server, gate, spy) = crashed(&redrive, endpoint(OnUnknown::Hold)).await;
    spy.ends_fail.store(false, Ordering::SeqCst);
    testing::pass(&redrive, LEASE);
    for _ in 0..2 {
        let answer = server.ask(&post("{}").key("k").header("prefer", "wait=20")).await;
        assert_eq!((answer.status, answer.code().as_str()), (409, "outcome-unknown"));
        assert_eq!((answer.header("retry-after"), &answer.json()["retryable"]), (None, &false.into()));
    }
    assert_eq!(server.ask(&post("[]").key("k")).await.code(), "key-reused");
    let epoch = records(&redrive, &store).await[0].1.epoch;
    gate.open.give();
    // It ends on its own connection, so its answer is awaited by asking until it is there.
    let answer = loop {
        let answer = server.ask(&post("{}").key("k")).await;
        if answer.status == 200 {
            break answer;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(answer.text(), "late");
    assert_eq!(records(&redrive, &store).await[0].1.epoch, epoch, "no other run took it over");
}

#[tokio::test]
async fn row_13_an_operator_resolves_it() {
    let (redrive, store) = memory();
    let (server, _gate, _) = crashed(&redrive, endpoint(OnUnknown::Hold)).await;
    testing::pass(&redrive, LEASE);
    assert_eq!(server.ask(&post("{}").key("k")).await.code(), "outcome-unknown");
    let scope = records(&redrive, &store).await[0].0.clone();
    let resolution = Resolution::Completed(StoredReply::new(201).body("by hand"));
    redrive.desk("ann", "test").resolve(scope, resolution, "asked the bank").await.unwrap();
    assert_eq!(server.ask(&post("{}").key("k")).await.text(), "by hand");
}
