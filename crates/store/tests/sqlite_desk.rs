//! Operators' commands on a file: a damaged row fails no other command, the audit only grows, and several processes
//! count as one.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use redrive_core::Event;
use redrive_core::event::{DeadReason, State};
use redrive_core::queue_entry::{EventChange, EventProgress, FencingToken, ParkFollowers};
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Filter, JobPlan, JobStrategy, Operator, RedriveOptions, Rule};
use redrive_store::operate::{
    CommandResult, EventAction, EventRef, GroupQuery, JobAdvance, OperatorAction, OperatorCommand, Refusal,
};
use redrive_store::{EventQuery, Sqlite, StoreError, prelude::*};

mod sqlite_common;
use sqlite_common::{AT, TestStore, due, publish, settle};

/// Makes these events dead letters.
async fn dead(store: &Sqlite, token: FencingToken, ids: &[&str]) {
    for id in ids {
        publish(store, Event::new("orders", *id)).await.unwrap();
        let entry = due(store, token).await.remove(0);
        let progress = EventProgress { attempts: 1, ..EventProgress::fresh(AT) };
        let dead = EventChange::Dead { reason: DeadReason::Permanent, progress, park: ParkFollowers::No };
        store.settle(vec![settle(token, &entry, dead)]).await.unwrap();
    }
}

async fn opened(ids: &[&str]) -> (TestStore, Arc<Sqlite>, FencingToken) {
    let store_dir = TestStore::new();
    let store = store_dir.open().await;
    let token = store.take(0, AT).await.unwrap().token;
    dead(&store, token, ids).await;
    (store_dir, store, token)
}

async fn order(store: &Sqlite, what: OperatorAction) -> CommandResult {
    let by = Operator::new("ann", "a test");
    store.operate(OperatorCommand { by, at: AT, what }).await.unwrap()
}

fn targets(ids: &[&str]) -> Vec<EventRef> {
    ids.iter().map(|id| EventRef::new("", "orders", *id)).collect()
}

async fn letters(store: &Sqlite) -> u64 {
    store.groups(GroupQuery::default()).await.unwrap().iter().map(|group| group.letters).sum()
}

#[tokio::test]
async fn a_damaged_letter_stops_no_order_for_another() {
    let columns = [
        "state = 2",
        "route = 'other'",
        "out_of_order = 1",
        "cause = cause + 1",
        "death = death + 1",
        "redrive = 7",
        "redriven = 7",
        "lease_attempt = 1",
        "lease_token = zeroblob(16)",
        "lease_until = 1",
        "payload = x'00'",
    ];
    for column in columns {
        let (store_dir, store, _) = opened(&["1", "2"]).await;
        let sql = format!("UPDATE redrive_tracked SET {column} WHERE id = '1'");
        assert_eq!(store_dir.raw().execute(&sql, []).unwrap(), 1);
        let found = store.find("", "orders", "1").await;
        assert!(matches!(found, Err(StoreError::Damaged { .. })), "{column}: {found:?}");
        let page =
            store.list(EventQuery { state: Some(State::Dead), ..EventQuery::default() }).await.unwrap();
        assert_eq!((page.events.len(), page.damaged.len()), (1, 1), "{column}");

        let act = EventAction::Redrive(RedriveOptions::default());
        let done = order(&store, OperatorAction::Events(targets(&["1", "2"]), act)).await;
        assert_eq!(done.changed, 1, "{column}");
        assert!(matches!(&done.refused[..], [(0, Refusal::Senseless(_))]), "{column}: {done:?}");
        assert_eq!(store.find("", "orders", "2").await.unwrap().unwrap().state, State::Ready);
    }
}

#[tokio::test]
async fn a_job_goes_past_a_damaged_letter() {
    let (store_dir, store, _) = opened(&["1", "2", "3"]).await;
    store_dir.raw().execute("UPDATE redrive_tracked SET attempts = 9 WHERE id = '2'", []).unwrap();
    let plan = JobPlan {
        filter: Filter::queue("orders"),
        act: JobAct::Redrive(RedriveOptions::default()),
        strategy: JobStrategy::default(),
    };
    let job = order(&store, OperatorAction::Start(Box::new(plan))).await.job.unwrap();
    let step = JobAdvance { job, from: None, most: 10, at: AT };
    let done = store.advance(step).await.unwrap().unwrap();
    assert_eq!((done.taken, done.skipped, done.exhausted), (2, 1, true));

    store_dir.raw().execute("UPDATE redrive_job SET taken = 99", []).unwrap();
    assert!(matches!(store.jobs(Some(job)).await, Err(StoreError::Damaged { .. })));
    assert_eq!(store.jobs(None).await.unwrap(), []);
}

#[tokio::test]
async fn the_audit_only_grows() {
    let (store_dir, store, _) = opened(&["1"]).await;
    order(&store, OperatorAction::Events(targets(&["1"]), EventAction::Discard)).await;
    let raw = store_dir.raw();
    for sql in ["UPDATE redrive_audit SET who = 'nobody'", "DELETE FROM redrive_audit"] {
        assert!(raw.execute(sql, []).is_err(), "{sql}");
    }
    let lines = store.audit(None, 0).await.unwrap();
    assert_eq!((lines.len(), lines[0].by.who.as_str(), lines[0].count), (1, "ann", 1));
}

#[tokio::test]
async fn two_processes_count_as_one() {
    let (store_dir, owner, token) = opened(&["1", "2"]).await;
    let guest = store_dir.try_open().unwrap();
    order(&guest, OperatorAction::Events(targets(&["1"]), EventAction::Discard)).await;
    dead(&owner, token, &["3"]).await;
    order(&guest, OperatorAction::Events(targets(&["1"]), EventAction::Restore)).await;
    dead(&owner, token, &["4"]).await;
    assert_eq!(letters(&owner).await, 4);

    // A rule set by the other process holds at once.
    let version = owner.controls().await.unwrap().version;
    let (queue, tenant, key) = ("orders".to_owned(), String::new(), "k".to_owned());
    let rule = Rule::QuarantineKey { queue, tenant, key };
    order(&guest, OperatorAction::Set { rule, until: None, why: String::new() }).await;
    publish(&owner, Event::new("orders", "5").key("k")).await.unwrap();
    assert_eq!(owner.find("", "orders", "5").await.unwrap().unwrap().state, State::Quarantined);
    assert_eq!(due(&owner, token).await, []);
    assert_eq!(owner.controls().await.unwrap().version, version + 1);
}

#[tokio::test]
async fn a_job_does_not_wait_for_a_damaged_letter_of_a_key() {
    let (store_dir, store, token) = opened(&[]).await;
    publish(&store, Event::new("orders", "1").key("k")).await.unwrap();
    let entry = due(&store, token).await.remove(0);
    let progress = EventProgress { attempts: 1, ..EventProgress::fresh(AT) };
    let dead =
        EventChange::Dead { reason: DeadReason::Permanent, progress, park: ParkFollowers::UntilResolved };
    store.settle(vec![settle(token, &entry, dead)]).await.unwrap();
    assert_eq!(
        store_dir.raw().execute("UPDATE redrive_tracked SET payload = x'00' WHERE key = 'k'", []).unwrap(),
        1
    );
    for act in [JobAct::Redrive(RedriveOptions::default()), JobAct::Discard] {
        let plan = JobPlan { filter: Filter::queue("orders"), act, strategy: JobStrategy::default() };
        let job = order(&store, OperatorAction::Start(Box::new(plan))).await.job.unwrap();
        let done = store.advance(JobAdvance { job, from: None, most: 10, at: AT }).await.unwrap().unwrap();
        assert_eq!((done.taken, done.skipped, done.under_way()), (0, 1, 0), "{done:?}");
    }
}
