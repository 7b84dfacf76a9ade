//! `op.commit`: business writes, events and the answer in one commit, under the fence.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::IntoResponse;
use redrive::api::{CommitError, Effects, Endpoint, StoredReply, Tenant};
use redrive::store::memory::InjectedFault;
use redrive::{CommittedReply, Operation, PublishError, Redrive, testing};

use crate::shop::{BOOK, Calls, keyed, memory, records, serve};
use crate::spy::Gate;
use crate::wire::post;

fn transactional() -> Endpoint<Tenant, Effects> {
    Endpoint::new(BOOK).tenant(Tenant::fixed("acme")).effects(Effects::Transactional)
}

/// Books a cabin, and puts the confirmation on the outbox.
async fn book(op: &Operation, who: &'static str) -> Result<CommittedReply, CommitError> {
    let email = op.event("emails", "confirmation");
    op.commit(move |tx| {
        let cabins = tx.memory().unwrap();
        cabins.insert(format!("cabin-{}", cabins.len()), who.into());
        tx.publish(email.clone())?;
        Ok::<_, PublishError>(StoredReply::new(201).header("location", "/bookings/7").body(who))
    })
    .await
}

async fn emails(redrive: &Redrive) -> u64 {
    redrive.counts().await.unwrap().iter().map(|count| count.events).sum()
}

#[tokio::test]
async fn what_was_written_the_event_and_the_answer_are_there_together() {
    let (redrive, store) = memory();
    redrive.queue("emails").declare().await.unwrap();
    let handler = |op: Operation| async move {
        op.resource("booking-7");
        book(&op, "ann").await
    };
    let server = serve(&redrive, transactional(), handler).await;
    for replayed in ["false", "true"] {
        let answer = server.ask(&post("{}").key("k")).await;
        assert_eq!((answer.status, answer.text().as_str()), (201, "ann"));
        assert_eq!(answer.header("location").as_deref(), Some("/bookings/7"));
        assert_eq!(answer.header("idempotent-replayed").as_deref(), Some(replayed));
    }
    assert_eq!((store.table_snapshot().len(), emails(&redrive).await), (1, 1));
    assert_eq!(records(&redrive, &store).await[0].1.resource.as_deref(), Some("booking-7"));
}

#[tokio::test]
async fn after_a_commit_its_answer_is_sent_whatever_the_handler_does_next() {
    for after in ["says something else", "fails", "panics", "commits again"] {
        let (redrive, store) = memory();
        redrive.queue("emails").declare().await.unwrap();
        let handler = move |op: Operation| async move {
            book(&op, "ann").await.unwrap();
            match after {
                "fails" => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
                "panics" => panic!("as it was told to"),
                "commits again" => {
                    assert!(matches!(book(&op, "bob").await, Err(CommitError::Twice)));
                    StatusCode::OK.into_response()
                }
                _ => (StatusCode::IM_A_TEAPOT, "something else").into_response(),
            }
        };
        let server = serve(&redrive, transactional(), handler).await;
        for _ in 0..2 {
            let answer = server.ask(&post("{}").key("k")).await;
            assert_eq!((answer.status, answer.text().as_str()), (201, "ann"), "{after}");
        }
        assert_eq!(store.table_snapshot().len(), 1);
    }
}

#[tokio::test]
async fn what_is_rolled_back_did_not_happen_and_runs_again() {
    let (redrive, store) = memory();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move |op: Operation| async move {
        let call = counted.add();
        let committed = op.commit(move |tx| {
            tx.memory().unwrap().insert(format!("cabin-{call}"), b"taken".to_vec());
            if call == 1 { Err("sold out") } else { Ok(StoredReply::new(201)) }
        });
        committed.await
    };
    let server = serve(&redrive, transactional(), handler).await;
    let first = server.ask(&post("{}").key("k")).await;
    assert_eq!((first.status, first.code().as_str()), (500, "handler-failed"));
    assert!(!first.text().contains("sold out"), "what went wrong inside is not told");
    assert!(store.table_snapshot().is_empty());
    assert_eq!(server.ask(&post("{}").key("k")).await.status, 201);
    assert_eq!(store.table_snapshot().len(), 1);
}

#[tokio::test]
async fn row_22_what_a_zombie_wrote_is_rolled_back_with_its_completion() {
    let (redrive, store) = memory();
    redrive.queue("emails").declare().await.unwrap();
    let gate = Gate::default();
    let at = gate.clone();
    let zombie = move |op: Operation| async move {
        at.pass().await;
        let committed = book(&op, "zombie").await;
        assert!(matches!(committed, Err(CommitError::Fenced)), "{committed:?}");
        committed
    };
    let old = Arc::new(serve(&redrive, transactional(), zombie).await);
    let first = old.later(post("{}").key("k"));
    gate.reached.wait().await;
    testing::pass(&redrive, Duration::from_secs(30));
    let new =
        serve(&redrive, transactional(), |op: Operation| async move { book(&op, "winner").await }).await;
    assert_eq!(new.ask(&post("{}").key("k")).await.text(), "winner");
    gate.open.give();
    let first = first.await.unwrap();
    assert_eq!((first.status, first.text().as_str()), (201, "winner"));
    let cabins: Vec<_> = store.table_snapshot().into_values().collect();
    assert_eq!((cabins, emails(&redrive).await), (vec![b"winner".to_vec()], 1));
}

#[tokio::test]
async fn row_21_a_commit_of_unknown_fate_is_answered_503_and_found_out_by_asking_again() {
    for lands in [true, false] {
        let (redrive, store) = memory();
        redrive.queue("emails").declare().await.unwrap();
        let failing = store.clone();
        let calls = Calls::default();
        let counted = calls.clone();
        let handler = move |op: Operation| async move {
            if counted.add() == 1 {
                failing.fail_next(InjectedFault::FailedSync { lands });
            }
            book(&op, "ann").await
        };
        let server = serve(&redrive, transactional(), handler).await;
        let first = server.ask(&post("{}").key("k")).await;
        assert_eq!((first.status, first.code().as_str()), (503, "commit-unknown"));
        assert_eq!(first.json()["retryable"], true);
        store.recover();
        testing::pass(&redrive, Duration::from_secs(30));
        let second = server.ask(&post("{}").key("k")).await;
        assert_eq!((second.status, second.text().as_str()), (201, "ann"));
        assert_eq!(
            second.header("idempotent-replayed").as_deref(),
            Some(if lands { "true" } else { "false" })
        );
        assert_eq!((store.table_snapshot().len(), emails(&redrive).await), (1, 1));
        assert_eq!(calls.count(), if lands { 1 } else { 2 });
    }
}

#[tokio::test]
async fn a_committed_answer_over_the_cap_is_sent_and_completes_without_its_body() {
    let (redrive, _) = memory();
    let handler = |op: Operation| async move {
        op.commit(|_| Ok::<_, std::fmt::Error>(StoredReply::new(201).body("x".repeat(2000)))).await
    };
    let server = serve(&redrive, transactional().reply_max(1000), handler).await;
    assert_eq!(server.ask(&post("{}").key("k")).await.body.len(), 2000);
    let again = server.ask(&post("{}").key("k")).await;
    assert_eq!((again.status, again.json()["original_status"].as_u64()), (410, Some(201)));
}

#[tokio::test]
async fn a_request_without_a_key_commits_as_well() {
    let (redrive, store) = memory();
    redrive.queue("emails").declare().await.unwrap();
    let handler = |op: Operation| async move {
        book(&op, "ann").await.unwrap();
        StatusCode::IM_A_TEAPOT
    };
    let server = serve(&redrive, transactional(), handler).await;
    for _ in 0..2 {
        let answer = server.ask(&post("{}")).await;
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (201, "ann"),
            "what was committed is sent here, too"
        );
        assert_eq!(answer.header("idempotency-status").as_deref(), Some("none"));
    }
    assert_eq!((store.table_snapshot().len(), emails(&redrive).await), (2, 2));
}

#[tokio::test]
async fn derived_keys_are_the_same_over_attempts_and_processes_and_differ_by_everything_else() {
    let handler = |op: Operation| async move { format!("{} {}", op.derive("charge"), op.derive("refund")) };
    let derived = async |tenant: &str, operation: &str, key: &str| {
        let (redrive, _) = memory();
        let endpoint = Endpoint::new(operation).tenant(Tenant::fixed(tenant)).effects(Effects::Keyed);
        serve(&redrive, endpoint, handler).await.ask(&post("{}").key(key)).await.text()
    };
    let mut all = Vec::new();
    for (tenant, operation, key) in
        [("a", BOOK, "k"), ("b", BOOK, "k"), ("a", "POST /orders", "k"), ("a", BOOK, "l"), ("ak", BOOK, "")]
            .into_iter()
            .filter(|(_, _, key)| !key.is_empty())
    {
        let keys = derived(tenant, operation, key).await;
        assert_eq!(keys, derived(tenant, operation, key).await);
        all.extend(keys.split(' ').map(str::to_owned));
    }
    for key in &all {
        assert_eq!(redrive::http::idempotency_key::parse(key.as_bytes()).as_deref(), Ok(key.as_str()));
    }
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!((all.len(), count), (8, 8));
}

#[tokio::test]
async fn an_event_of_a_request_that_runs_twice_is_one_event() {
    let (redrive, _) = memory();
    redrive.queue("emails").declare().await.unwrap();
    let calls = Calls::default();
    let counted = calls.clone();
    let handler = move |op: Operation| async move {
        op.redrive().publish(op.event("emails", "confirmation")).await.unwrap();
        if counted.add() == 1 { StatusCode::BAD_GATEWAY } else { StatusCode::OK }
    };
    let server = serve(&redrive, keyed(), handler).await;
    assert_eq!(server.ask(&post("{}").key("k")).await.status, 502);
    assert_eq!(server.ask(&post("{}").key("k")).await.status, 200);
    assert_eq!(emails(&redrive).await, 1);
}

#[tokio::test]
async fn a_commit_of_unknown_fate_without_a_key_is_not_to_be_repeated() {
    for lands in [true, false] {
        for hidden in [false, true] {
            let (redrive, store) = memory();
            redrive.queue("emails").declare().await.unwrap();
            let failing = store.clone();
            let handler = move |op: Operation| async move {
                failing.fail_next(InjectedFault::FailedSync { lands });
                let committed = book(&op, "ann").await;
                // Whatever the handler returns.
                if hidden { StatusCode::OK.into_response() } else { committed.into_response() }
            };
            let server = serve(&redrive, transactional(), handler).await;
            let answer = server.ask(&post("{}")).await;
            assert_eq!((answer.status, answer.code().as_str()), (503, "commit-unknown"));
            assert_eq!((&answer.json()["retryable"], answer.header("retry-after")), (&false.into(), None));
            assert_eq!(answer.header("idempotency-status").as_deref(), Some("none"));
        }
    }
}

#[tokio::test]
async fn a_success_without_a_commit_is_none_also_without_a_key() {
    for (status, answered) in [(200, 500), (303, 500), (404, 404)] {
        let (redrive, _) = memory();
        let handler = move || async move { StatusCode::from_u16(status).unwrap() };
        let server = serve(&redrive, transactional(), handler).await;
        let answer = server.ask(&post("{}")).await;
        assert_eq!(answer.status, answered);
        if answered == 500 {
            assert_eq!(
                (answer.code().as_str(), &answer.json()["retryable"]),
                ("not-committed", &true.into())
            );
        }
    }
}

#[tokio::test]
async fn created_is_said_only_where_something_was_completed() {
    let (redrive, store) = memory();
    let failing = store.clone();
    let handler = move |body: String| {
        let status = StatusCode::from_bytes(body.as_bytes()).unwrap();
        async move { status }
    };
    let server = serve(&redrive, keyed(), handler).await;
    for (status, said) in [("201", Some("created")), ("404", Some("created")), ("503", None)] {
        let answer = server.ask(&post(status).key(status)).await;
        assert_eq!(answer.header("idempotency-status").as_deref(), said, "{status}");
        assert_eq!(answer.header("idempotency-expires").is_some(), said.is_some(), "{status}");
    }
    let resumed = server.ask(&post("503").key("503")).await;
    assert_eq!(resumed.header("idempotency-status").as_deref(), Some("resumed"));
    assert_eq!(resumed.header("idempotency-expires"), None);
    // Nothing is kept, and the outcome is unknown.
    let refusing = serve(&redrive, transactional(), || async { StatusCode::NOT_FOUND }).await;
    assert_eq!(refusing.ask(&post("{}").key("nothing")).await.header("idempotency-status"), None);
    let handler = move |op: Operation| async move {
        failing.fail_next(InjectedFault::FailedSync { lands: true });
        op.commit(|_| Ok::<_, std::fmt::Error>(StoredReply::new(201))).await
    };
    let server = serve(&redrive, transactional(), handler).await;
    let answer = server.ask(&post("{}").key("in-doubt")).await;
    assert_eq!((answer.code().as_str(), answer.header("idempotency-expires")), ("commit-unknown", None));
    assert_eq!(answer.header("idempotency-status").as_deref(), Some("unrecorded"));
}
