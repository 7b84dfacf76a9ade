//! Requests whose rows are damaged or large: no wrong answer is returned, and they block no other request.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use redrive_core::Moment;
use redrive_core::ledger::{
    ClaimRequest, Effects, LedgerClaim, RecordPhase, RequestFingerprint, RequestScope, Retention, StoredReply,
};
use redrive_store::ledger::{LedgerQuery, LedgerStore, RunEnding};
use redrive_store::{Sqlite, StoreError, prelude::*};

mod sqlite_common;
use sqlite_common::{AT, TestStore};

const KEPT: Duration = Duration::from_secs(60);

fn scope(key: &str) -> RequestScope {
    RequestScope { tenant: "acme".to_owned(), operation: "POST /bookings".to_owned(), key: key.to_owned() }
}

fn ask() -> ClaimRequest {
    ClaimRequest {
        print: RequestFingerprint { version: 1, hash: [7; 32] },
        older: Vec::new(),
        effects: Effects::Keyed,
        lease: KEPT,
        retention: Retention { answer: KEPT },
        first_sent: None,
        skew: Duration::ZERO,
    }
}

async fn complete(store: &Sqlite, key: &str, body: Vec<u8>, at: Moment) {
    let LedgerClaim::Run(record) = store.claim(scope(key), ask(), at).await.unwrap() else { panic!("{key}") };
    let end = RunEnding::Completed { reply: StoredReply::new(201).body(body), resource: None };
    store.end(scope(key), record.epoch, end, at).await.unwrap().unwrap();
}

/// As a sweep does: until nothing is left. Returns how many calls that took, and how many records changed in each at
/// most.
async fn sweep(store: &Sqlite, now: Moment) -> (u32, usize) {
    let (mut calls, mut most) = (0, 0);
    loop {
        let changed = store.forget(now).await.unwrap();
        if changed == 0 {
            return (calls, most);
        }
        (calls, most) = (calls + 1, most.max(changed));
        assert!(calls < 1000, "a sweep that never ends");
    }
}

#[tokio::test]
async fn damaged_requests_end_no_sweep_and_hold_up_no_other() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    // More than a call reads, all of them due before the intact one.
    let damaged = "WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 5000) \
                   INSERT INTO redrive_request (tenant, operation, key, version, print, first, epoch, attempt, phase, \
                   retention, phase_at, ends, crc) \
                   SELECT 'acme', 'POST /bookings', n, 1, zeroblob(32), 1, 1, 1, 'retriable', 1, 1, 1, 0 FROM n";
    assert_eq!(store_dir.raw().execute(damaged, []).unwrap(), 5000);
    complete(&store, "whole", b"booked".to_vec(), AT).await;
    let late = AT + KEPT;
    // The next call continues where one ended.
    let changed = store.forget(late).await.unwrap() + store.forget(late).await.unwrap();
    assert_eq!(changed, 1, "the one that is whole");
    let record = store.record(scope("whole"), AT).await.unwrap().unwrap();
    assert_eq!(record.phase.as_str(), "tombstone");
    assert_eq!(store.forget(late).await.unwrap(), 0);
    complete(&store, "later", b"booked".to_vec(), AT).await;
    let changed = store.forget(late).await.unwrap() + store.forget(late).await.unwrap();
    assert_eq!(changed, 1, "it begins again at the start");
    let left: u32 =
        store_dir.raw().query_row("SELECT count(*) FROM redrive_request", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 5002, "what is damaged stays");
}

#[tokio::test]
async fn a_sweep_lets_go_of_a_bounded_number_of_bytes_in_a_commit() {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    for n in 0..40 {
        complete(&store, &n.to_string(), vec![7; 1 << 20], AT).await;
    }
    let (calls, most) = sweep(&store, AT + KEPT).await;
    assert_eq!((calls, most), (3, 16));
    for n in 0..40 {
        let record = store.record(scope(&n.to_string()), AT).await.unwrap().unwrap();
        assert_eq!(
            record.phase,
            RecordPhase::Tombstone { status: Some(201), location: None, until: AT + 4 * KEPT }
        );
    }
}

#[tokio::test]
async fn a_body_that_is_damaged_is_never_given_and_stops_neither_list_nor_sweep() {
    for damage in [
        "body = x'00'",
        "body = NULL",
        "body_crc = body_crc + 1",
        "body_crc = NULL",
        "ends = ends - 1",
        "crc = crc + 1",
    ] {
        let store_dir = TestStore::new();
        let store = store_dir.open().await;
        complete(&store, "k", b"booked".to_vec(), AT).await;
        complete(&store, "l", b"booked".to_vec(), AT).await;
        let update = format!("UPDATE redrive_request SET {damage} WHERE key = 'k'");
        assert_eq!(store_dir.raw().execute(&update, []).unwrap(), 1);
        let refused = store.record(scope("k"), AT).await;
        assert!(matches!(refused, Err(StoreError::Damaged { .. })), "{damage}: {refused:?}");
        let refused = store.claim(scope("k"), ask(), AT).await;
        assert!(matches!(refused, Err(StoreError::Damaged { .. })), "{damage}: {refused:?}");
        let page = store.records(LedgerQuery::default(), AT).await.unwrap();
        assert!(page.records.iter().any(|(scope, _)| scope.key == "l"), "{damage}");
        sweep(&store, AT + KEPT).await;
        let record = store.record(scope("l"), AT).await.unwrap().unwrap();
        assert_eq!(record.phase.as_str(), "tombstone", "{damage}");
    }
}
