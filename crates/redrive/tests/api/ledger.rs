//! A ledger that fails, and a run that was taken over: rows 20, 21 and 22.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redrive::api::{Effects, Endpoint, EndpointError, Idempotent, OnUnknown, Tenant};
use redrive::http::idempotent::{KeyedOperation, ProbeOutcome, RunMode};
use redrive::store::memory::InjectedFault;
use redrive::store::sqlite::Sqlite;
use redrive::testing;

use crate::shop::{BOOK, Calls, behind, keyed, memory, over, records, serve};
use crate::spy::{Gate, Spy};
use crate::wire::post;

#[tokio::test]
async fn a_first_run_asks_its_ledger_twice_and_a_replay_once() {
    let (redrive, _) = memory();
    let spy = Spy::over(&redrive);
    let layer = Idempotent::new(spy.clone(), keyed()).unwrap();
    let server = behind(&layer, || async { "fine" }).await;
    server.ask(&post("{}").key("k")).await;
    assert_eq!((spy.claims.count(), spy.ends.count()), (1, 1));
    server.ask(&post("{}").key("k")).await;
    assert_eq!((spy.claims.count(), spy.ends.count()), (2, 1));
    assert_eq!((spy.looks.count(), spy.renewals.count()), (0, 0));
}

#[tokio::test]
async fn row_20_without_its_ledger_a_route_is_closed() {
    let (redrive, _) = memory();
    let spy = Spy::over(&redrive);
    let calls = Calls::default();
    let counted = calls.clone();
    let layer = Idempotent::new(spy.clone(), keyed()).unwrap();
    let server = behind(&layer, move || async move { format!("call {}", counted.add()) }).await;
    spy.claims_fail.store(true, Ordering::SeqCst);
    let answer = server.ask(&post("{}").key("k")).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "ledger-down"));
    assert_eq!(
        (answer.header("retry-after").as_deref(), &answer.json()["retryable"]),
        (Some("1"), &true.into())
    );
    assert_eq!(calls.count(), 0);
    spy.claims_fail.store(false, Ordering::SeqCst);
    assert_eq!(server.ask(&post("{}").key("k")).await.text(), "call 1");
}

#[tokio::test]
async fn row_20_a_route_that_opted_to_stay_open_says_so() {
    let (redrive, _) = memory();
    let spy = Spy::over(&redrive);
    let layer = Idempotent::new(spy.clone(), keyed().stay_open()).unwrap();
    let handler = |op: KeyedOperation| async move {
        assert_eq!((op.mode(), op.key()), (RunMode::Bypassed, "k"));
        op.derive("charge")
    };
    let server = behind(&layer, handler).await;
    spy.claims_fail.store(true, Ordering::SeqCst);
    let answer = server.ask(&post("{}").key("k")).await;
    assert_eq!((answer.status, answer.header("idempotency-status").as_deref()), (200, Some("bypassed")));
}

#[test]
fn row_20_a_transactional_route_cannot_stay_open() {
    let (redrive, _) = memory();
    let endpoint = Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(Effects::Transactional);
    let refused = Idempotent::new(Arc::new(redrive.ledger()), endpoint.stay_open()).unwrap_err();
    assert_eq!(refused, EndpointError::Bypass);
}

#[test]
fn what_makes_no_sense_is_refused_when_it_is_set_up() {
    let (redrive, _) = memory();
    let refused = |endpoint| Idempotent::new(Arc::new(redrive.ledger()), endpoint).unwrap_err().to_string();
    let day = Duration::from_secs(86_400);
    assert!(refused(keyed().horizon(2 * day)).contains("clients may repeat a request for 172800s"));
    assert!(Idempotent::new(Arc::new(redrive.ledger()), keyed().horizon(2 * day).retention(2 * day)).is_ok());
    let bad = [
        (keyed().retention(Duration::ZERO), "retention"),
        (keyed().lease(Duration::ZERO), "lease"),
        (keyed().max_run(Duration::from_secs(29)), "max_run"),
        (keyed().wait_max(day), "wait_max"),
        (keyed().body_max(usize::MAX), "body_max"),
        (keyed().reply_max(usize::MAX), "reply_max"),
        (keyed().concurrency(0), "concurrency"),
        (keyed().patience(day), "patience"),
        (keyed().skew(2 * day), "skew"),
        (keyed().backoff_max(2 * day), "backoff_max"),
    ];
    for (endpoint, what) in bad {
        let error = refused(endpoint);
        assert!(error.starts_with(&format!("{what} must be between")), "{error}");
    }
    let probed = |settling| {
        let effects = Effects::Opaque(OnUnknown::Probe { settling });
        Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(effects)
    };
    let error = refused(probed(day));
    assert!(error.contains("probe"), "{error}");
    let error =
        refused(probed(Duration::from_millis(999)).probe(|_| std::future::ready(ProbeOutcome::StillUnknown)));
    assert!(error.starts_with("settling must be between 1000 and"), "{error}");
}

#[tokio::test]
async fn row_21_a_completion_that_was_not_written_is_told_and_asked_again_later() {
    for (effects, later) in
        [(Effects::Keyed, "call 2"), (Effects::Opaque(OnUnknown::Hold), "outcome-unknown")]
    {
        let (redrive, _) = memory();
        let spy = Spy::over(&redrive);
        let calls = Calls::default();
        let counted = calls.clone();
        let endpoint = Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(effects);
        let layer = Idempotent::new(spy.clone(), endpoint).unwrap();
        let server = behind(&layer, move || async move { format!("call {}", counted.add()) }).await;
        spy.ends_fail.store(true, Ordering::SeqCst);
        let first = server.ask(&post("{}").key("k")).await;
        assert_eq!((first.status, first.text().as_str()), (200, "call 1"));
        assert_eq!(first.header("idempotency-status").as_deref(), Some("unrecorded"));
        spy.ends_fail.store(false, Ordering::SeqCst);
        assert_eq!(server.ask(&post("{}").key("k")).await.code(), "in-flight");
        testing::pass(&redrive, Duration::from_secs(30));
        let second = server.ask(&post("{}").key("k")).await;
        assert!(second.text().contains(later), "{second:?}");
    }
}

#[tokio::test]
async fn row_22_a_zombie_sends_the_winners_answer() {
    let (redrive, store) = memory();
    let gate = Gate::default();
    let at = gate.clone();
    let zombie = move || async move {
        at.pass().await;
        "zombie"
    };
    let old = Arc::new(serve(&redrive, keyed(), zombie).await);
    let first = old.later(post("{}").key("k"));
    gate.reached.wait().await;
    testing::pass(&redrive, Duration::from_secs(30));
    let new = serve(&redrive, keyed(), || async { "winner" }).await;
    assert_eq!(new.ask(&post("{}").key("k")).await.text(), "winner");
    gate.open.give();
    let first = first.await.unwrap();
    assert_eq!((first.status, first.text().as_str()), (200, "winner"));
    assert_eq!(first.header("idempotent-replayed").as_deref(), Some("true"));
    assert_eq!(old.ask(&post("{}").key("k")).await.text(), "winner");
    assert_eq!(records(&redrive, &store).await[0].1.attempt, 2);
}

#[tokio::test]
async fn row_22_a_zombie_goes_through_the_table_while_the_winner_runs() {
    for wait in [false, true] {
        let (redrive, _) = memory();
        let spy = Spy::over(&redrive);
        let gates = [Gate::default(), Gate::default()];
        let calls = Calls::default();
        let (at, counted) = (gates.clone(), calls.clone());
        let handler = move || async move {
            let call = counted.add();
            at[call - 1].pass().await;
            format!("call {call}")
        };
        let layer = Idempotent::new(spy.clone(), keyed()).unwrap();
        let server = Arc::new(behind(&layer, handler).await);
        let prefer = if wait { "wait=20" } else { "return=minimal" };
        let zombie = server.later(post("{}").key("k").header("prefer", prefer));
        gates[0].reached.wait().await;
        testing::pass(&redrive, Duration::from_secs(30));
        let winner = server.later(post("{}").key("k"));
        gates[1].reached.wait().await;
        gates[0].open.give();
        if wait {
            spy.looks.wait().await;
            gates[1].open.give();
            assert_eq!(zombie.await.unwrap().text(), "call 2");
        } else {
            assert_eq!(zombie.await.unwrap().code(), "in-flight");
            gates[1].open.give();
        }
        assert_eq!(winner.await.unwrap().text(), "call 2");
        assert_eq!(calls.count(), 2);
    }
}

#[tokio::test]
async fn row_22_a_zombie_is_not_sent_what_a_stranger_was_answered() {
    let (redrive, _) = memory();
    let who =
        |parts: &axum::http::request::Parts| Some(parts.headers.get("x-user")?.to_str().ok()?.to_owned());
    let minute = Duration::from_secs(60);
    let endpoint = || keyed().credentials(who).retention(minute).backoff_max(minute);
    let gate = Gate::default();
    let at = gate.clone();
    let old = Arc::new(serve(&redrive, endpoint(), move || async move { at.pass().await }).await);
    let by = |user: &str| post("{}").key("k").header("x-user", user);
    let zombie = old.later(by("ann"));
    gate.reached.wait().await;
    testing::pass(&redrive, Duration::from_secs(30));
    let new = serve(&redrive, endpoint(), || async { "secret" }).await;
    assert_eq!(new.ask(&by("ann")).await.text(), "secret");
    // Ann's record is forgotten, and another client has used the key.
    testing::pass(&redrive, 4 * minute);
    assert_eq!(new.ask(&by("bob")).await.text(), "secret");
    gate.open.give();
    let zombie = zombie.await.unwrap();
    assert_eq!((zombie.status, zombie.code().as_str()), (422, "key-reused"));
}

/// Nothing ran under it, and a store that has to be opened again cannot be told: the claim waits for its lease to run
/// out.
#[tokio::test]
async fn row_20_a_claim_of_unknown_fate_runs_nothing_and_asking_again_finds_out() {
    let hold = Effects::Opaque(OnUnknown::Hold);
    for (effects, lands, then) in [
        (Effects::Keyed, false, "call 1"),
        (Effects::Keyed, true, "call 1"),
        (hold, false, "call 1"),
        (hold, true, "outcome-unknown"),
    ] {
        let (redrive, store) = memory();
        let calls = Calls::default();
        let counted = calls.clone();
        let endpoint = Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(effects);
        let handler = move || async move { format!("call {}", counted.add()) };
        let server = serve(&redrive, endpoint, handler).await;
        store.fail_next(InjectedFault::FailedSync { lands });
        for which in ["itself", "after it, until the store is opened again"] {
            let answer = server.ask(&post("{}").key("k")).await;
            assert_eq!((answer.status, answer.code().as_str()), (503, "ledger-down"), "{which}");
            let again = (answer.header("retry-after"), answer.json()["retryable"].as_bool());
            assert_eq!(again, (Some("1".to_owned()), Some(true)), "{which}");
        }
        assert_eq!(calls.count(), 0);
        store.recover();
        if lands {
            assert_eq!(server.ask(&post("{}").key("k")).await.code(), "in-flight", "{effects:?}");
            testing::pass(&redrive, Duration::from_secs(31));
        }
        let found = server.ask(&post("{}").key("k")).await;
        let said = if found.status == 200 { found.text() } else { found.code() };
        assert_eq!(said, then, "{effects:?}, landed: {lands}");
    }
}

#[tokio::test]
async fn row_20_a_record_that_cannot_be_read_is_no_ledger_that_is_down() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bookings.db");
    let redrive = over(Arc::new(Sqlite::open(path.clone(), Default::default()).unwrap()));
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move || async move { format!("call {}", counted.add()) };
    let server = serve(&redrive, keyed().stay_open(), handler).await;
    assert_eq!(server.ask(&post("{}").key("k")).await.text(), "call 1");
    let file = redrive::rusqlite::Connection::open(&path).unwrap();
    assert_eq!(file.execute("UPDATE redrive_request SET crc = crc + 1", []).unwrap(), 1);
    for _ in 0..2 {
        let again = server.ask(&post("{}").key("k")).await;
        assert_eq!((again.status, again.code().as_str()), (503, "ledger-down"));
    }
    assert_eq!(calls.count(), 1, "it happened, and is not run again");
}
