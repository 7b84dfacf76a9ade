//! The ledger: requests under their idempotency keys.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::ledger::{
    ClaimRequest, Effects, LedgerAnswer, LedgerClaim, LedgerRecord, OnUnknown, RecordPhase, RenewResult,
    RequestFingerprint, RequestScope, Resolution, Retention, StoredReply,
};
use redrive_store::ledger::{LedgerPage, LedgerQuery, RunEnding};
use redrive_store::operate::{CommandResult, OperatorAction, OperatorCommand, Refusal};
use redrive_store::{CompleteError, Store, Tx, TxJob, TxOutcome};

use super::Subject;
use super::desk::ann;
use super::owner::at;

const LEASE: Duration = Duration::from_secs(10);
const DAY: u64 = 86_400;

fn scope(key: &str) -> RequestScope {
    RequestScope { tenant: "acme".to_owned(), operation: "POST /bookings".to_owned(), key: key.to_owned() }
}

fn ask(effects: Effects) -> ClaimRequest {
    ClaimRequest {
        print: RequestFingerprint { version: 1, hash: [7; 32] },
        older: Vec::new(),
        effects,
        lease: LEASE,
        retention: Retention { answer: Duration::from_secs(DAY) },
        first_sent: None,
        skew: Duration::ZERO,
    }
}

fn booked() -> StoredReply {
    let header = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
    let headers = vec![header("link", b"a"), header("x-odd", &[0xff, 0x41]), header("link", b"b")];
    StoredReply { status: 201, headers, body: Some(vec![0, 1, 0xfe]) }
}

async fn run(store: &Arc<dyn Store>, key: &str, seconds: u64) -> LedgerRecord {
    match store.claim(scope(key), ask(Effects::Keyed), at(seconds)).await.unwrap() {
        LedgerClaim::Run(record) => record,
        other => panic!("{other:?}"),
    }
}

async fn claim(store: &Arc<dyn Store>, key: &str, effects: Effects, seconds: u64) -> LedgerClaim {
    store.claim(scope(key), ask(effects), at(seconds)).await.unwrap()
}

fn completed() -> RunEnding {
    RunEnding::Completed { reply: booked(), resource: Some("booking-7".to_owned()) }
}

/// A second request under the key does not run while the first runs, and later gets the same reply byte for
/// byte.
pub async fn a_second_request_is_given_the_first_answer<S: Subject>(subject: S) {
    let store = subject.store();
    let first = run(&store, "k", 0).await;
    let second = claim(&store, "k", Effects::Keyed, 1).await;
    assert_eq!(second, LedgerClaim::Say(LedgerAnswer::InFlight { left: Duration::from_secs(9) }));
    store.end(scope("k"), first.epoch, completed(), at(2)).await.unwrap().unwrap();
    let subject = subject.crash_and_reopen().await;
    let LedgerClaim::Say(LedgerAnswer::Replay(record)) =
        claim(&subject.store(), "k", Effects::Keyed, 3).await
    else {
        panic!("it is not replayed")
    };
    assert_eq!(record.phase, RecordPhase::Completed { reply: booked(), at: at(2) });
    assert_eq!((record.first, record.attempt), (at(0), 1));
}

/// Of many concurrent requests, one runs.
pub async fn one_of_many_requests_runs<S: Subject>(subject: S) {
    let store = subject.store();
    let all: Vec<_> =
        (0..20).map(|_| tokio::spawn(store.claim(scope("k"), ask(Effects::Keyed), at(0)))).collect();
    let mut runs = 0;
    for claim in all {
        runs += u32::from(matches!(claim.await.unwrap().unwrap(), LedgerClaim::Run(_)));
    }
    assert_eq!(runs, 1);
}

/// Tenants, operations and keys are separate.
pub async fn requests_of_others_are_others<S: Subject>(subject: S) {
    let store = subject.store();
    run(&store, "k", 0).await;
    for other in [
        RequestScope { tenant: "other".to_owned(), ..scope("k") },
        RequestScope { operation: "POST /refunds".to_owned(), ..scope("k") },
        scope("l"),
    ] {
        assert!(matches!(store.claim(other, ask(Effects::Keyed), at(0)).await, Ok(LedgerClaim::Run(_))));
    }
    let mut different = ask(Effects::Keyed);
    different.print.hash = [8; 32];
    let reused = store.claim(scope("k"), different, at(0)).await.unwrap();
    assert_eq!(reused, LedgerClaim::Say(LedgerAnswer::Reused));
}

/// A run that was taken over can neither end nor renew.
pub async fn a_run_that_was_taken_over_changes_nothing<S: Subject>(subject: S) {
    let store = subject.store();
    let first = run(&store, "k", 0).await;
    let second = run(&store, "k", 10).await;
    assert_eq!((second.epoch, second.attempt), (first.epoch + 1, 2));
    for end in [completed(), RunEnding::Retriable(None), RunEnding::Unknown, RunEnding::Nothing] {
        let refused = store.end(scope("k"), first.epoch, end, at(11)).await.unwrap();
        assert!(matches!(&refused, Err(Some(fenced)) if *fenced.0 == second), "{refused:?}");
    }
    let renewed = store.renew(scope("k"), first.epoch, LEASE, LEASE * 9, at(11)).await.unwrap();
    assert!(matches!(renewed, Err(Some(_))));
    let Ok(RenewResult::On(on)) =
        store.renew(scope("k"), second.epoch, LEASE, LEASE * 9, at(12)).await.unwrap()
    else {
        panic!("its own run may")
    };
    assert_eq!(on.phase, RecordPhase::InFlight { began: at(10), until: at(22) });
    assert_eq!(store.record(scope("k"), at(12)).await.unwrap(), Some(on));
    assert!(matches!(store.end(scope("x"), 1, completed(), at(1)).await.unwrap(), Err(None)));
}

async fn complete_in<S: Subject>(store: &Arc<dyn Store>, epoch: u64, seconds: u64) -> TxOutcome {
    let work = move |tx: &mut dyn Tx| {
        S::effect(tx, "booking");
        match tx.complete(&scope("k"), epoch, booked(), None, at(seconds)) {
            Ok(()) => Ok(None),
            Err(error @ CompleteError::Fenced(_)) => Err(error.into()),
            Err(error) => panic!("{error}"),
        }
    };
    let job = TxJob { work: Box::new(work), claim: None, time: Duration::from_secs(5), alone: false };
    store.transact(job).await.unwrap()
}

/// Effect and reply commit together, and a run that was taken over leaves neither.
pub async fn the_fence_holds_inside_a_transaction<S: Subject>(subject: S) {
    let store = subject.store();
    let first = run(&store, "k", 0).await;
    let second = run(&store, "k", 10).await;
    assert!(matches!(complete_in::<S>(&store, first.epoch, 11).await, TxOutcome::Aborted(_)));
    assert_eq!(subject.effects().await, 0);
    assert!(matches!(complete_in::<S>(&store, second.epoch, 12).await, TxOutcome::Committed { .. }));
    assert!(matches!(complete_in::<S>(&store, second.epoch, 13).await, TxOutcome::Aborted(_)));
    drop(store);
    let subject = subject.crash_and_reopen().await;
    assert_eq!(subject.effects().await, 1);
    assert!(matches!(
        claim(&subject.store(), "k", Effects::Keyed, 14).await,
        LedgerClaim::Say(LedgerAnswer::Replay(_))
    ));
}

/// An unknown outcome waits for its own run, or for an operator, over a crash, and is listed until then.
pub async fn an_unknown_outcome_waits_until_it_is_resolved<S: Subject>(subject: S) {
    let store = subject.store();
    let hold = Effects::Opaque(OnUnknown::Hold);
    let mut epochs = Vec::new();
    for key in ["a", "b", "c"] {
        epochs.push(run(&store, key, 0).await.epoch);
        assert!(matches!(claim(&store, key, hold, 10).await, LedgerClaim::Hold(_)));
    }
    drop(store);
    let subject = subject.crash_and_reopen().await;
    let store = subject.store();
    let unknown = |after: Option<RequestScope>, limit| LedgerQuery {
        phase: Some("unknown"),
        after,
        limit,
        ..LedgerQuery::default()
    };
    let listed = store.records(unknown(None, 2), at(1000 * DAY)).await.unwrap();
    assert_eq!(keys(&listed), ["a", "b"]);
    assert_eq!(listed.next, Some(scope("b")));
    let rest = store.records(unknown(listed.next, 2), at(20)).await.unwrap();
    assert_eq!((keys(&rest), &rest.next), (vec!["c"], &None));
    let counted = store.unknown().await.unwrap();
    let counted: Vec<_> =
        counted.iter().map(|c| (c.tenant.as_str(), c.operation.as_str(), c.count)).collect();
    assert_eq!(counted, [("acme", "POST /bookings", 3)]);
    assert_eq!(claim(&store, "a", hold, 30).await, LedgerClaim::Say(LedgerAnswer::Unknown { since: at(10) }));

    store.end(scope("a"), epochs[0], completed(), at(31)).await.unwrap().expect("its own run may");
    assert_eq!(resolve(&store, "b", Resolution::Completed(booked()), 31).await.changed, 1);
    assert_eq!(resolve(&store, "c", Resolution::Retriable, 31).await.changed, 1);
    for (key, is) in [("a", "completed"), ("b", "completed"), ("c", "retriable")] {
        let again = resolve(&store, key, Resolution::Retriable, 32).await;
        assert_eq!((again.changed, again.refused), (0, vec![(0, Refusal::NotUnknown { is })]), "{key}");
    }
    assert!(store.end(scope("c"), epochs[2], completed(), at(32)).await.unwrap().is_err());
    assert!(matches!(claim(&store, "b", hold, 33).await, LedgerClaim::Say(LedgerAnswer::Replay(_))));
    assert!(matches!(claim(&store, "c", hold, 33).await, LedgerClaim::Run(record) if record.attempt == 2));
    assert_eq!(store.records(unknown(None, 0), at(33)).await.unwrap(), LedgerPage::default());
    assert_eq!(store.unknown().await.unwrap(), []);
}

async fn resolve(store: &Arc<dyn Store>, key: &str, resolution: Resolution, seconds: u64) -> CommandResult {
    let what = OperatorAction::Resolve { scope: scope(key), resolution, why: "asked the bank".to_owned() };
    store.operate(OperatorCommand { by: ann(), at: at(seconds), what }).await.unwrap()
}

fn keys(page: &LedgerPage) -> Vec<&str> {
    page.records.iter().map(|(scope, _)| scope.key.as_str()).collect()
}

/// An operator's resolution commits together with its audit entry, and so does a refused one.
pub async fn resolving_a_request_leaves_a_line<S: Subject>(subject: S) {
    let store = subject.store();
    for key in ["a", "b"] {
        let epoch = run(&store, key, 0).await.epoch;
        store.end(scope(key), epoch, RunEnding::Unknown, at(1)).await.unwrap().unwrap();
    }
    let stands = run(&store, "c", 0).await;
    resolve(&store, "a", Resolution::Completed(booked()), 2).await;
    resolve(&store, "b", Resolution::Retriable, 3).await;
    let refused = resolve(&store, "c", Resolution::Retriable, 4).await.refused;
    assert_eq!(refused, [(0, Refusal::NotUnknown { is: "in_flight" })]);
    assert_eq!(resolve(&store, "d", Resolution::Retriable, 5).await.refused, [(0, Refusal::NoRequest)]);
    drop(store);
    let subject = subject.crash_and_reopen().await;
    let store = subject.store();
    assert_eq!(
        store.record(scope("c"), at(5)).await.unwrap(),
        Some(stands),
        "what was refused changed nothing"
    );
    let phase = async |key: &str| store.record(scope(key), at(5)).await.unwrap().unwrap().phase;
    assert_eq!(phase("a").await, RecordPhase::Completed { reply: booked(), at: at(2) });
    assert_eq!(phase("b").await, RecordPhase::Retriable { not_before: None, since: at(3) });
    let mut lines = store.audit(None, 0).await.unwrap();
    lines.reverse();
    let target = |key: &str| format!("POST /bookings, tenant acme, key {key}");
    for (line, (key, count, note)) in lines.iter().zip([
        ("a", 1, "as completed with 201; asked the bank"),
        ("b", 1, "as retriable; asked the bank"),
        ("c", 0, "as retriable; asked the bank; 1 refused"),
        ("d", 0, "as retriable; asked the bank; 1 refused"),
    ]) {
        assert_eq!((&line.by, line.verb.as_str(), line.count), (&ann(), "resolve", count));
        assert_eq!(line.target, target(key));
        assert!(line.note.starts_with(note), "{}", line.note);
    }
    assert_eq!(lines.len(), 4);
}

/// Records are listed by their phase as of now, page by page, and for one tenant if that is asked.
pub async fn requests_are_listed_by_phase<S: Subject>(subject: S) {
    let store = subject.store();
    for (key, end) in [
        ("done", Some(completed())),
        ("failed", Some(RunEnding::Retriable(None))),
        ("held", Some(RunEnding::Unknown)),
        ("runs", None),
    ] {
        let epoch = run(&store, key, 0).await.epoch;
        if let Some(end) = end {
            store.end(scope(key), epoch, end, at(1)).await.unwrap().unwrap();
        }
    }
    let other = RequestScope { tenant: "other".to_owned(), ..scope("runs") };
    assert!(matches!(store.claim(other, ask(Effects::Keyed), at(0)).await, Ok(LedgerClaim::Run(_))));
    let page = async |phase: Option<&'static str>, tenant: Option<&str>, seconds| {
        let tenant = tenant.map(str::to_owned);
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let records =
                LedgerQuery { tenant: tenant.clone(), phase, after, limit: 1, ..LedgerQuery::default() };
            let page = store.records(records, at(seconds)).await.unwrap();
            assert!(page.records.len() <= 1);
            found.extend(page.records.into_iter().map(|(scope, _)| scope.key));
            after = page.next;
            if after.is_none() {
                return found;
            }
        }
    };
    for (phase, now, later) in [
        ("completed", &["done"][..], &[][..]),
        ("retriable", &["failed"], &[]),
        ("unknown", &["held"], &["held"]),
        ("in_flight", &["runs"], &["runs"]),
        ("tombstone", &[], &["done", "failed"]),
    ] {
        assert_eq!(page(Some(phase), Some("acme"), 2).await, now, "{phase}");
        assert_eq!(page(Some(phase), Some("acme"), DAY + 2).await, later, "{phase}");
    }
    assert_eq!(page(None, None, 2).await, ["done", "failed", "held", "runs", "runs"]);
    assert_eq!(page(None, Some("other"), 2).await, ["runs"]);
    assert!(page(None, Some("nobody"), 2).await.is_empty());
}

/// A list shows which replies are kept, without their bodies; a single lookup returns the whole record.
pub async fn lists_of_requests_have_no_bodies<S: Subject>(subject: S) {
    let store = subject.store();
    let reply = |key: &str| StoredReply { body: (key == "kept").then(|| vec![7; 5000]), ..booked() };
    for key in ["gone", "kept"] {
        let epoch = run(&store, key, 0).await.epoch;
        let end = RunEnding::Completed { reply: reply(key), resource: None };
        store.end(scope(key), epoch, end, at(1)).await.unwrap().unwrap();
    }
    let page = store.records(LedgerQuery::default(), at(2)).await.unwrap();
    let listed: Vec<_> = page.records.into_iter().map(|(_, record)| record.phase).collect();
    let completed = |body| RecordPhase::Completed { reply: StoredReply { body, ..booked() }, at: at(1) };
    assert_eq!(listed, [completed(None), completed(Some(Vec::new()))]);
    for key in ["gone", "kept"] {
        let record = store.record(scope(key), at(2)).await.unwrap().unwrap();
        assert_eq!(record.phase, RecordPhase::Completed { reply: reply(key), at: at(1) });
    }
}

/// Replies expire first, then their records; records in flight or unknown stay.
pub async fn requests_are_forgotten_in_time<S: Subject>(subject: S) {
    let store = subject.store();
    let epoch = run(&store, "done", 0).await.epoch;
    store.end(scope("done"), epoch, completed(), at(0)).await.unwrap().unwrap();
    let epoch = run(&store, "failed", 0).await.epoch;
    store.end(scope("failed"), epoch, RunEnding::Retriable(Some(at(60))), at(0)).await.unwrap().unwrap();
    run(&store, "running", 0).await;
    let phase = async |key: &str, seconds| {
        let record = store.record(scope(key), at(seconds)).await.unwrap();
        record.map(|record| record.phase.as_str())
    };
    for sweep in [false, true] {
        if sweep {
            while store.forget(at(DAY)).await.unwrap() > 0 {}
        }
        assert_eq!(phase("done", DAY).await, Some("tombstone"));
        assert_eq!(phase("failed", DAY).await, Some("tombstone"));
        assert_eq!(phase("done", 4 * DAY - 1).await, Some("tombstone"));
        assert_eq!(phase("done", 4 * DAY).await, None);
    }
    while store.forget(at(4 * DAY)).await.unwrap() > 0 {}
    let all = store.records(LedgerQuery::default(), at(0)).await.unwrap();
    assert_eq!(keys(&all), ["running"]);
}

/// A request is found by the resource it created, and a released one is as if it had never arrived.
pub async fn requests_are_found_by_what_they_made<S: Subject>(subject: S) {
    let store = subject.store();
    let epoch = run(&store, "k", 0).await.epoch;
    store.end(scope("k"), epoch, completed(), at(1)).await.unwrap().unwrap();
    let epoch = run(&store, "l", 0).await.epoch;
    store.end(scope("l"), epoch, RunEnding::Nothing, at(1)).await.unwrap().unwrap();
    assert_eq!(store.record(scope("l"), at(1)).await.unwrap(), None);
    let made = |tenant: &str, resource: &str| LedgerQuery {
        tenant: Some(tenant.to_owned()),
        resource: Some(resource.to_owned()),
        ..LedgerQuery::default()
    };
    let found = store.records(made("acme", "booking-7"), at(2)).await.unwrap();
    assert_eq!(keys(&found), ["k"]);
    assert_eq!(store.records(made("other", "booking-7"), at(2)).await.unwrap(), LedgerPage::default());
    assert_eq!(store.records(made("acme", "booking-8"), at(2)).await.unwrap(), LedgerPage::default());
}
