//! What operators do to a file: damage in one row stops nobody else's order, the audit only grows, and several
//! processes count as one.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;

use redrive_core::Event;
use redrive_core::entry::{Change, Grant, Park, Progress};
use redrive_core::event::{DeadReason, State};
use redrive_core::triage::job::JobAct;
use redrive_core::triage::{Filter, JobPlan, Operator, Redrive, Rule, Strategy};
use redrive_store::operate::{Act, Advance, GroupQuery, Operated, Order, Refusal, Target, What};
use redrive_store::{Query, Sqlite, Store, StoreError};

mod sqlite_common;
use sqlite_common::{AT, Place, due, publish, settle};

/// Events that are dead.
async fn dead(store: &Sqlite, grant: Grant, ids: &[&str]) {
    for id in ids {
        publish(store, Event::new("orders", *id)).await.unwrap();
        let entry = due(store, grant).await.remove(0);
        let progress = Progress { attempts: 1, ..Progress::fresh(AT) };
        let dead = Change::Dead { reason: DeadReason::Permanent, progress, park: Park::GoOn };
        store.settle(vec![settle(grant, &entry, dead)]).await.unwrap();
    }
}

async fn opened(ids: &[&str]) -> (Place, Arc<Sqlite>, Grant) {
    let place = Place::new();
    let store = place.open().await;
    let grant = store.take(0, AT).await.unwrap().grant;
    dead(&store, grant, ids).await;
    (place, store, grant)
}

async fn order(store: &Sqlite, what: What) -> Operated {
    let by = Operator::new("ann", "a test");
    store.operate(Order { by, at: AT, what }).await.unwrap()
}

fn targets(ids: &[&str]) -> Vec<Target> {
    ids.iter().map(|id| Target::new("", "orders", *id)).collect()
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
        let (place, store, _) = opened(&["1", "2"]).await;
        let sql = format!("UPDATE redrive_held SET {column} WHERE id = '1'");
        assert_eq!(place.raw().execute(&sql, []).unwrap(), 1);
        let found = store.find("", "orders", "1").await;
        assert!(matches!(found, Err(StoreError::Damaged { .. })), "{column}: {found:?}");
        let page = store.list(Query { state: Some(State::Dead), ..Query::default() }).await.unwrap();
        assert_eq!((page.events.len(), page.damaged.len()), (1, 1), "{column}");

        let act = Act::Redrive(Redrive::default());
        let done = order(&store, What::Events(targets(&["1", "2"]), act)).await;
        assert_eq!(done.changed, 1, "{column}");
        assert!(matches!(&done.refused[..], [(0, Refusal::Senseless(_))]), "{column}: {done:?}");
        assert_eq!(store.find("", "orders", "2").await.unwrap().unwrap().state, State::Ready);
    }
}

#[tokio::test]
async fn a_job_goes_past_a_damaged_letter() {
    let (place, store, _) = opened(&["1", "2", "3"]).await;
    place.raw().execute("UPDATE redrive_held SET attempts = 9 WHERE id = '2'", []).unwrap();
    let plan = JobPlan {
        filter: Filter::queue("orders"),
        act: JobAct::Redrive(Redrive::default()),
        strategy: Strategy::default(),
    };
    let job = order(&store, What::Start(Box::new(plan))).await.job.unwrap();
    let step = Advance { job, from: None, most: 10, at: AT };
    let done = store.advance(step).await.unwrap().unwrap();
    assert_eq!((done.taken, done.skipped, done.exhausted), (2, 1, true));

    place.raw().execute("UPDATE redrive_job SET taken = 99", []).unwrap();
    assert!(matches!(store.jobs(Some(job)).await, Err(StoreError::Damaged { .. })));
    assert_eq!(store.jobs(None).await.unwrap(), []);
}

#[tokio::test]
async fn the_audit_only_grows() {
    let (place, store, _) = opened(&["1"]).await;
    order(&store, What::Events(targets(&["1"]), Act::Discard)).await;
    let raw = place.raw();
    for sql in ["UPDATE redrive_audit SET who = 'nobody'", "DELETE FROM redrive_audit"] {
        assert!(raw.execute(sql, []).is_err(), "{sql}");
    }
    let lines = store.audit(None, 0).await.unwrap();
    assert_eq!((lines.len(), lines[0].by.who.as_str(), lines[0].count), (1, "ann", 1));
}

#[tokio::test]
async fn two_processes_count_as_one() {
    let (place, owner, grant) = opened(&["1", "2"]).await;
    let guest = place.try_open().unwrap();
    order(&guest, What::Events(targets(&["1"]), Act::Discard)).await;
    dead(&owner, grant, &["3"]).await;
    order(&guest, What::Events(targets(&["1"]), Act::Restore)).await;
    dead(&owner, grant, &["4"]).await;
    assert_eq!(letters(&owner).await, 4);

    // A rule of the other one holds at once.
    let version = owner.controls().await.unwrap().version;
    let (queue, tenant, key) = ("orders".to_owned(), String::new(), "k".to_owned());
    let rule = Rule::QuarantineKey { queue, tenant, key };
    order(&guest, What::Set { rule, until: None, why: String::new() }).await;
    publish(&owner, Event::new("orders", "5").key("k")).await.unwrap();
    assert_eq!(owner.find("", "orders", "5").await.unwrap().unwrap().state, State::Quarantined);
    assert_eq!(due(&owner, grant).await, []);
    assert_eq!(owner.controls().await.unwrap().version, version + 1);
}

#[tokio::test]
async fn a_job_does_not_wait_for_a_damaged_letter_of_a_key() {
    let (place, store, grant) = opened(&[]).await;
    publish(&store, Event::new("orders", "1").key("k")).await.unwrap();
    let entry = due(&store, grant).await.remove(0);
    let progress = Progress { attempts: 1, ..Progress::fresh(AT) };
    let dead = Change::Dead { reason: DeadReason::Permanent, progress, park: Park::Stay };
    store.settle(vec![settle(grant, &entry, dead)]).await.unwrap();
    assert_eq!(
        place.raw().execute("UPDATE redrive_held SET payload = x'00' WHERE key = 'k'", []).unwrap(),
        1
    );
    for act in [JobAct::Redrive(Redrive::default()), JobAct::Discard] {
        let plan = JobPlan { filter: Filter::queue("orders"), act, strategy: Strategy::default() };
        let job = order(&store, What::Start(Box::new(plan))).await.job.unwrap();
        let done = store.advance(Advance { job, from: None, most: 10, at: AT }).await.unwrap().unwrap();
        assert_eq!((done.taken, done.skipped, done.under_way()), (0, 1, 0), "{done:?}");
    }
}
